"""The value of a sensitivity, and whether it is exact or an upper bound."""

from __future__ import annotations

import dataclasses
import math

EXACT = 'exact'
UPPER_BOUND = 'upper_bound'

# Values of `Sensitivity.reason`.
ONE_ROUND = 'largest column norm (one participation)'
NO_OVERLAP = 'columns of one client do not overlap (bands <= min_sep)'

# Relative difference of squared sensitivities that counts as a rounding error.
_ROUNDING = 1e-12


@dataclasses.dataclass(frozen=True)
class Sensitivity:
  """A sensitivity, or an upper bound of it.

  Attributes:
    value: sensitivity in units of the clipping norm, > 0.
    method: `EXACT`, or `UPPER_BOUND` if the sensitivity may be smaller.
    reason: theorem or algorithm that gives `value`, in words.
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
    squared: upper bound of the squared sensitivity.
    reason: theorem or algorithm that gives the bound, in words.
    attained: lower bound of the squared sensitivity, which some pattern
      attains; if it equals `squared`, the result is exact.
  """
  if squared <= attained * (1 + _ROUNDING):
    return exact(squared, f'{reason}; a pattern attains it')
  return Sensitivity(math.sqrt(squared), UPPER_BOUND, reason)


# PRIVACY: If a value were below the exact sensitivity, epsilon would be too
# small. An exact value has precedence over every bound.
# Guard: sensitivity_test.test_sensitivity_against_brute_force.
def better(first: Sensitivity, second: Sensitivity) -> Sensitivity:
  """Returns the exact sensitivity, if there is one, else the smaller bound."""
  return min(first, second, key=lambda s: (s.method != EXACT, s.value))
