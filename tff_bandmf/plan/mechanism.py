"""The mechanism of a plan: a family of strategies and its parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from tff_bandmf import strategies
from tff_bandmf.strategies import base

# Name that asks for the family with the least error.
BEST = 'best'


@attrs.frozen(init=False)
class Mechanism:
  """A family of strategies and its parameters.

  Attributes:
    family: name of a family of `strategies.FAMILIES`.
    parameters: maps the names of the family's parameters to values. A search
      optimises a missing parameter, or compares several values of it.

  >>> Mechanism('banded', bands=64)
  Mechanism(family='banded', parameters={'bands': 64})
  """

  family: str
  parameters: Mapping[str, Any]

  def __init__(self, family: str, **parameters: Any):
    checked = strategies.families.get(family).checked(parameters)
    self.__attrs_init__(family, checked)

  def describes(self, strategy: strategies.Strategy) -> bool:
    """Returns whether a strategy can be the result of this mechanism.

    A search may use fewer bands or buffers than the mechanism has. Parameters
    that a strategy lacks, such as the gap at which a search ends, are not
    compared.
    """
    if strategy.family != self.family:
      return False
    given, stated = dict(self.parameters), strategy.parameters()
    if strategy.structure in (base.TOEPLITZ, base.NORMALIZED_TOEPLITZ):
      stated = {'column_normalize': False, **stated}
    block = getattr(strategy, 'block', None)
    if block is not None:
      stated = {'block_rounds': block.rounds, 'block_family': block.family}
      own = {name: given.pop(name) for name in stated if name in given}
      if not Mechanism(block.family, **given).describes(block):
        return False
      given = own
    for each in strategies.families.get(self.family).parameters:
      asked = given.get(each.name, None if each.sweep else each.default)
      value = stated.get(each.name, stated.get(each.field))
      if asked is None:
        continue
      if value is None:
        if (getattr(strategy, each.field, None) or 0) > asked:
          return False
      elif value != asked:
        return False
    return True
