"""One Gaussian release: its privacy profile, epsilon and calibration.

A whole run without amplification is one Gaussian release of sensitivity 1 and
standard deviation `noise_multiplier`, so mu = 1 / noise_multiplier in Gaussian
DP and rho = mu^2 / 2 in zCDP. The profile delta(epsilon) is a closed form plus
a bound on its rounding errors. The closed form is exact, and is the same for
both orders of two neighbouring data sets. Bisections for epsilon and for the
noise multiplier return the end of the bracket at which (epsilon, delta) holds.
"""

from __future__ import annotations

import math

import scipy.special

from tff_bandmf import _checks, errors

# Factor of the bound on rounding errors; several times the unit roundoff of
# float64.
_ROUNDING = 1e-15
_SMALLEST_DELTA = 1e-50
_LARGEST_EPSILON = 1e6
# Relative width of the bracket at which a bisection ends.
_RELATIVE_WIDTH = 1e-13
# Relative reduction of a target epsilon before calibration.
_CALIBRATION_MARGIN = 1e-10


def zcdp_rho(noise_multiplier: float) -> float:
  """Returns rho = 1 / (2 noise_multiplier^2) of zero-concentrated DP."""
  check_noise_multiplier(noise_multiplier)
  return 0.5 / noise_multiplier**2


def gaussian_delta(noise_multiplier: float, epsilon: float) -> float:
  """Returns delta at `epsilon`, rounded up.

    delta = Phi(a) - e^epsilon Phi(b),  mu = 1 / noise_multiplier,
    a = mu / 2 - epsilon / mu,  b = -mu / 2 - epsilon / mu

  If mu is small, the two terms are nearly equal and their difference has few
  correct digits. The bound 1e-15 (100 + b^2) Phi(a) of the rounding errors is
  added. The 100 covers a few units in the last place of each factor. The b^2
  covers the rounding of exponents: Phi(b) is about e^(-b^2 / 2), and a relative
  error r of the exponent b^2 / 2 is a relative error r b^2 / 2 of Phi(b).

  Args:
    noise_multiplier: standard deviation / sensitivity, > 0.
    epsilon: at least 0, finite.

  Raises:
    ValueError: a value is out of range.
  """
  check_noise_multiplier(noise_multiplier)
  _checks.nonnegative('epsilon', epsilon, 'typical values are 0.1 to 20')
  half, shift = 0.5 / noise_multiplier, epsilon * noise_multiplier
  first = float(scipy.special.ndtr(half - shift))
  # PRIVACY: Rounding errors could make the difference `first` - `second`, and
  # so delta, too small. A bound of these errors is added to the difference.
  # Guards: gaussian_test.test_epsilon_rounds_up and
  # gaussian_test.test_noise_multiplier_is_the_published_one.
  second = math.exp(epsilon + float(scipy.special.log_ndtr(-half - shift)))
  rounding = _ROUNDING * (100 + (half + shift) ** 2) * first
  return min(1.0, max(0.0, first - second) + rounding)


def gaussian_epsilon(noise_multiplier: float, delta: float) -> float:
  """Returns the smallest epsilon at `delta`, rounded up; infinite above 1e6.

  Args:
    noise_multiplier: standard deviation / sensitivity, > 0.
    delta: in [1e-50, 1).

  Raises:
    ValueError: a value is out of range.

  >>> round(gaussian_epsilon(noise_multiplier=4.22468, delta=1e-6), 5)
  1.0
  """
  check_delta(delta)

  def holds(epsilon):
    return gaussian_delta(noise_multiplier, epsilon) <= delta

  if holds(0.0):
    return 0.0
  if not holds(_LARGEST_EPSILON):
    return math.inf
  return _bisect(holds, _LARGEST_EPSILON)


def gaussian_noise_multiplier(epsilon: float, delta: float) -> float:
  """Returns the smallest noise multiplier for (epsilon, delta), rounded up.

  `gaussian_epsilon` of the result is at most `epsilon`.

  Args:
    epsilon: positive, at most 1e6.
    delta: in [1e-50, 1).

  Raises:
    ValueError: a value is out of range.

  >>> round(gaussian_noise_multiplier(epsilon=1.0, delta=1e-6), 5)
  4.22468
  """
  check_epsilon(epsilon)
  check_delta(delta)

  # PRIVACY: Calibration and report compute epsilon with different rounding
  # errors. If the noise were calibrated for exactly `epsilon`, the report could
  # state a larger epsilon. So calibration aims slightly lower.
  # Guards: gaussian_test.test_noise_multiplier_rounds_up and
  # gaussian_test.test_calibrated_noise_reports_no_more_than_was_asked.
  target = epsilon * (1 - _CALIBRATION_MARGIN)

  def holds(multiplier):
    return gaussian_delta(multiplier, target) <= delta

  high = 1.0
  while not holds(high):
    high *= 2
  return _bisect(holds, high)


def _bisect(holds, high: float) -> float:
  """Returns the least x in (0, high] with `holds(x)`, rounded up.

  Args:
    holds: predicate that is false below some x and true above it.
    high: an x with `holds(x)`.
  """
  low = 0.0
  while high - low > _RELATIVE_WIDTH * high:
    middle = (low + high) / 2
    if holds(middle):
      high = middle
    else:
      low = middle
  # PRIVACY: The predicate may be false for an x between `low` and `high`. If
  # such an x were returned, epsilon or the noise would be too small. `high` is
  # returned, for which the predicate was true.
  # Guard: gaussian_test.test_epsilon_rounds_up.
  return high


def check_noise_multiplier(value: float) -> None:
  """Raises ValueError unless a noise multiplier is positive and finite."""
  _checks.positive('noise_multiplier', value, 'it is stddev / sensitivity')


def check_epsilon(epsilon: float) -> None:
  """Raises ValueError unless a target epsilon is in (0, 1e6]."""
  _checks.positive('epsilon', epsilon, 'typical values are 0.1 to 20')
  remedy = 'train without noise if no guarantee is wanted'
  _checks.at_most('epsilon', epsilon, _LARGEST_EPSILON, 'the limit', remedy)


def check_delta(delta: float) -> None:
  """Raises ValueError unless delta is in [1e-50, 1)."""
  number = _checks.number('delta', delta, 'use less than 1 / population')
  # PRIVACY: With a delta of 1 or more, every mechanism is private. Below the
  # least delta, the functions of this module are not exact. Both are refused.
  # Guard: gaussian_test.test_delta_out_of_range_is_refused.
  if not _SMALLEST_DELTA <= number < 1:
    raise errors.value_error(
      f'delta={delta}: must be in [1e-50, 1); use less than 1 / population'
    )
