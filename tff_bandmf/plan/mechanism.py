"""The mechanism of a plan: a family of strategies and its parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from tff_bandmf import strategies

# Name that asks for the family with the least error.
BEST = 'best'


@attrs.frozen(init=False)
class Mechanism:
  """A family of strategies and its parameters.

  Attributes:
    family: name of a family of `strategies.FAMILIES`.
    parameters: maps the names of the family's parameters to values. Missing
      parameters are optimised, or several values are compared.

  >>> Mechanism('banded', bands=64)
  Mechanism(family='banded', parameters={'bands': 64})
  """

  family: str
  parameters: Mapping[str, Any]

  def __init__(self, family: str, **parameters: Any):
    checked = strategies.families.get(family).checked(parameters)
    self.__attrs_init__(family, checked)
