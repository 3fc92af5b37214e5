"""The request of a search: a family, given parameters, and an error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Optional

import attrs

from tff_bandmf import _checks, errors, strategies
from tff_bandmf.optimize import solver
from tff_bandmf.strategies import base

# A search may try this many bands of C^-1 under any memory limit. With so few
# bands, past normals need no memory, because they are drawn again from the key.
# For 4 rounds together, these are at most 7 past normals of a coordinate. So a
# round draws at most (4 + 7) / 4 = 2.75 normals of a coordinate.
_REDRAWN_BANDS = 8


@attrs.frozen
class Request(solver.Problem):
  """The request of a search: a family, and the error to minimise.

  Attributes:
    family: declaration of the family of strategies.
    parameters: given parameters of the family, checked; the search chooses all
      other parameters.
    memory_copies: limit on the vectors of past noise in memory, each of the
      model's size, >= 0; None for no limit. If past normals can be drawn again,
      only `Strategy.least_copies` vectors must fit within the limit.
  """

  family: strategies.Family = attrs.field(kw_only=True)
  parameters: Mapping[str, object] = attrs.field(kw_only=True)
  memory_copies: Optional[int] = attrs.field(
    default=None,
    converter=attrs.converters.optional(
      lambda copies: _checks.count(
        'memory_copies', copies, 'give the vectors that fit in memory', least=0
      )
    ),
  )

  def __getitem__(self, name: str) -> Any:
    """Returns the given value of a parameter, else its default, else None."""
    parameter = self.family.parameter(name)
    default = None if parameter is None else parameter.default
    return self.parameters.get(name, default)

  def needed(self, name: str, *otherwise: Any) -> Any:
    """Returns the first value that is not None.

    Args:
      name: name of a parameter, whose value comes first.
      *otherwise: further values.

    Raises:
      ValueError: all of these values are None.
    """
    for value in (self[name], *otherwise):
      if value is not None:
        return value
    remedy = f'give {name}' + ' or min_sep' * len(otherwise)
    raise errors.value_error(
      f'{name}=None: {self.family.name} needs it; {remedy}'
    )

  @property
  def bands(self) -> int:
    """The number of bands of the search.

    If no number is given, the number is min_sep, but at most `most_bands`.

    As long as the bands do not exceed min_sep, more bands never increase the
    loss. With more than min_sep bands, columns of a client's rounds overlap,
    and the sensitivity grows.

    Raises:
      ValueError: neither `bands` nor min_sep is given, or the bands exceed the
        rounds.
    """
    if 'bands' in self.parameters:
      return base.check_few(self['bands'], self.rounds)
    bands = self.needed('bands', self.participation.min_sep)
    return min(bands, self.most_bands())

  def most_bands(self) -> int:
    """Returns the largest number of bands that a search tries.

    The noise of so many bands fits into `memory_copies`. If past normals can be
    drawn again from the key, a search tries up to `_REDRAWN_BANDS` bands under
    any limit. The number is at most `rounds` and, for sampled cohorts, at most
    min_sep.
    """
    limit = self.rounds
    if self.noise and self.participation.min_sep:
      limit = min(limit, self.participation.min_sep)
    if self.memory_copies is None:
      return limit
    most = self.memory_copies + 1
    if not self.family.memory.least(self.rounds):
      most = max(most, _REDRAWN_BANDS)
    return min(limit, most)

  def normalized(self, strategy: strategies.Toeplitz) -> strategies.Strategy:
    """Returns the strategy, column-normalised if `column_normalize` is set."""
    if self['column_normalize']:
      return strategies.ColumnNormalized(strategy)
    return strategy
