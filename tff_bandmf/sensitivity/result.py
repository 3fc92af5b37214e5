"""The value of a sensitivity, and whether it is exact or an upper bound."""

from __future__ import annotations

import dataclasses
import math

EXACT = 'exact'
UPPER_BOUND = 'upper_bound'

# Relative difference of two squared sensitivities that counts as rounding.
_ROUNDING = 1e-12


@dataclasses.dataclass(frozen=True)
class Sensitivity:
  """A sensitivity and the method that gave it.

  Attributes:
    value: sensitivity in units of the clipping norm, > 0.
    method: `EXACT` or `UPPER_BOUND`.
    reason: theorem or algorithm, in words.
  """

  value: float
  method: str
  reason: str


def exact(squared: float, reason: str) -> Sensitivity:
  """Returns the `EXACT` sensitivity whose square is `squared`."""
  return Sensitivity(math.sqrt(squared), EXACT, reason)


def bound(squared: float, reason: str, attained: float = 0.0) -> Sensitivity:
  """Returns the sensitivity for an upper bound of its square.

  Args:
    squared: the bound.
    reason: theorem or method behind the bound, in words.
    attained: square that some pattern attains; a bound no larger than this is
      exact.
  """
  if squared <= attained * (1 + _ROUNDING):
    return exact(squared, f'{reason}; a pattern attains it')
  return Sensitivity(math.sqrt(squared), UPPER_BOUND, reason)


def better(first: Sensitivity, second: Sensitivity) -> Sensitivity:
  """Returns the exact sensitivity, if there is one, else the smaller bound."""
  return min(first, second, key=lambda s: (s.method != EXACT, s.value))
