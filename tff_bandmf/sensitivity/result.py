"""A sensitivity, and how it is known."""

from __future__ import annotations

import dataclasses
import math

EXACT = 'exact'
UPPER_BOUND = 'upper_bound'

# Relative rounding error of a squared sensitivity; far less than any noise
# multiplier is known to.
_ROUNDING = 1e-12


@dataclasses.dataclass(frozen=True)
class Sensitivity:
  """A sensitivity, and how it was obtained.

  Attributes:
    value: in units of the clipping norm.
    method: `EXACT` or `UPPER_BOUND`.
    reason: the theorem or algorithm.
  """

  value: float
  method: str
  reason: str


def exact(squared: float, reason: str) -> Sensitivity:
  """Returns the `EXACT` sensitivity with this square."""
  return Sensitivity(math.sqrt(squared), EXACT, reason)


def bound(squared: float, reason: str, attained: float = 0.0) -> Sensitivity:
  """Returns the sensitivity with this upper bound of its square.

  Args:
    squared: the bound.
    reason: theorem or method behind the bound, in words.
    attained: square that some pattern reaches; a bound that is reached is
      exact.
  """
  if squared <= attained * (1 + _ROUNDING):
    return exact(squared, f'{reason}; a pattern attains it')
  return Sensitivity(math.sqrt(squared), UPPER_BOUND, reason)


def better(first: Sensitivity, second: Sensitivity) -> Sensitivity:
  """Returns the smaller of two that both hold: no bound is below the exact."""
  return min(first, second, key=lambda s: (s.method != EXACT, s.value))
