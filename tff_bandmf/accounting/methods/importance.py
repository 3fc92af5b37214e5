"""Importance sampling of the delta of a Gaussian mixture.

The set S of a client's rounds is random and secret. The run is dominated by a
pair P, Q of distributions of a vector y:

| symbol | meaning                                                        |
|--------|----------------------------------------------------------------|
| m_S    | C 1_S, mean of y for a client with the rounds S                |
| s      | standard deviation of z / clip                                 |
| P      | E_S N(m_S, s^2), the distribution of y with the client         |
| Q      | N(0, s^2), the distribution of y without the client            |
| l_S    | ln N(m_S, s^2) / Q = (2 <m_S, y> - |m_S|^2) / (2 s^2)          |
| L      | ln P / Q = ln E_S e^(l_S), the privacy loss                    |
| d_S    | |m_S|^2 / s^2                                                  |
| m      | E_S m_S                                                        |

Delta at epsilon has two directions, client removed and client added:

  remove: delta = E_P (1 - e^(epsilon - L))_+
  add:    delta = E_Q (1 - e^(epsilon + L))_+

Both are expectations of values in [0, 1] that are rarely above 0. So y is drawn
from a distribution under which positive values are common, and each value is
multiplied by a weight, the ratio of densities:

  remove: y from R, whose density is approximately proportional to
          Q (E_S e^(a l_S))^r, for an exponent a >= 1 and a number of copies
          r >= 1
  add:    y from N(-kappa m, s^2), kappa >= 0

To draw y from R, draw copies S_1, ..., S_r of S one after another, and then y
from N(a (m_(S_1) + ... + m_(S_r)), s^2). If S_j has the law of S times
e^(t_j) / Z_j with

  t_j = a (a - 1) d_(S_j) / 2 + a^2 <m_(S_j), m_(S_1) + ... + m_(S_(j-1))> / s^2
  Z_j = E_S e^(t_j), a function of S_1, ..., S_(j-1)

then the density of the copies and y is Q times the product of
Pr(S_j) e^(a l_(S_j)) / Z_j over j. The value of a draw is multiplied by

  w = Z_1 ... Z_r e^(L - r ln E_S e^(a l_S)).

This weight is a quotient. The numerator is P(y) times the product over j of
Pr(S_j) e^(a l_(S_j)) / E_S e^(a l_S). The denominator is the density above. For
every y, the product in the numerator sums to 1 over all copies. So the mean of
the weighted values is delta.

Let A be an upper bound of the product Z_1 ... Z_r, for all copies. Z_j is a
convex function of the sum of m over the earlier copies. For each earlier copy
S', take the sum (j - 1) m_S'. The true sum is the mean of these j - 1 sums. So
Z_j is at most the largest of its values at all (j - 1) m_S', and the following
A is an upper bound:

  A = product over j of
      max_S' E_S e^(a (a - 1) d_S / 2 + a^2 (j - 1) <m_S, m_S'> / s^2)

If all copies are drawn at once, from the law proportional to the product of
Pr(S_j) e^(t_j), the normalizer of this law replaces both A and the product.

By Jensen's inequality r ln E_S e^(a l_S) >= gamma L for gamma = r a, and
L >= E l_S. A value is positive if u > 0, for u = L - epsilon (remove) or
u = -L - epsilon (add). The weighted value is then

  remove: (1 - e^(-u)) w <= A e^(-(gamma - 1) (epsilon + u)) (1 - e^(-u))
  add:    at most e^(kappa^2 |m|^2 / (2 s^2) + kappa (E d_S / 2 - epsilon - u))
          (1 - e^(-u))

The largest (1 - e^(-u)) e^(-k u) over u > 0 is g(k) = k^k / (1 + k)^(1 + k).
With k = gamma - 1 (remove) or k = kappa (add) this gives a bound B of all
weighted values. The values of r, gamma and kappa are chosen near the minimum of
B.

With r = 1, strong amplification does not make B small. If an S of probability q
dominates L, then e^(a L) is about q^a e^(a l_S), but E_S e^(a l_S) is about
q e^(a l_S), which is larger. Several copies are rarely equal, so A is small if
amplification is strong. For a = 1 Jensen's inequality is an equality, and
without the maxima A would be E_Q e^(r L), as in the bound of delta by the Renyi
divergence of order r.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import math
from typing import Callable, Union

import numpy as np
import scipy.optimize
import scipy.special

from tff_bandmf import errors

# The candidates are the tilt with the least B, changed by these factors.
# `_FACTORS` multiply its gamma - 1 if this tilt has at most two copies.
# `_COPIES` multiply its number of copies if this number is two or more. Larger
# factors draw more samples from the tail.
_FACTORS = (1.0, 1.4, 2.0)
_COPIES = (1.2, 1.4)
# Ratio of gamma between successive candidates with equally many copies.
_STEP = 1.2
# Largest number of copies of the tilt with the least B, since copies take time.
_MOST_COPIES = 24
# Candidates with a larger log weight are not sampled.
_LARGEST_LOG_WEIGHT = 20.0


@dataclasses.dataclass(frozen=True)
class Tilt:
  """Parameters of the distribution R of the samples.

  Attributes:
    copies: r, at least 1.
    excess: gamma - 1, at least copies - 1.

  Raises:
    ValueError: `excess` is less than copies - 1.
  """

  copies: int
  excess: float

  def __post_init__(self):
    # PRIVACY: For a < 1 Jensen's inequality is reversed. Weighted values could
    # then exceed B, and the bound of delta could be too low. a < 1 is refused.
    # Guard: importance_test.test_tilts_that_bound_nothing_are_refused.
    if self.factor < 1:
      raise errors.value_error(
        f'excess={self.excess}: must be at least {self.copies - 1} for '
        f'{self.copies} copies, or the weights have no bound; use a larger one'
      )

  @property
  def factor(self) -> float:
    """The exponent a = gamma / r."""
    return (1 + self.excess) / self.copies

  def with_copies(self, copies: int) -> Tilt:
    """Returns the tilt with the same exponent a for another r."""
    return Tilt(copies, max(copies * self.factor, copies) - 1)


Draw = Callable[
  [np.random.Generator, int],
  tuple[np.ndarray, np.ndarray, Union[np.ndarray, float]],
]


class Mixture(abc.ABC):
  """P = E_S N(m_S, s^2) against Q = N(0, s^2).

  Attributes:
    mean_square: E_S |m_S|^2 / s^2.
    square_mean: |E_S m_S|^2 / s^2.
    entries: number of float64 values in memory for each sample.
  """

  mean_square: float
  square_mean: float
  entries: int

  @abc.abstractmethod
  def log_normalizer(self, tilt: Tilt) -> float:
    """Returns ln A, a bound of all ln Z_1 ... Z_r; infinity if unknown."""

  @abc.abstractmethod
  def remove(self, tilt: Tilt, epsilon: float) -> Draw:
    """Returns a function that draws y from R.

    The function takes (rng, count) and returns (L, ln E_S e^(a l_S),
    ln Z_1 ... Z_r) for `count` draws of y. All are [count] float64; the last is
    one number if it is equal for all draws. If L <= epsilon, the weighted value
    is 0. For such draws L may be rounded, and the second array holds L in place
    of ln E_S e^(a l_S).

    Args:
      tilt: parameters of R.
      epsilon: the epsilon at which delta is sampled. If it is -infinity,
        ln E_S e^(a l_S) is computed for all draws.
    """

  @abc.abstractmethod
  def sample_add(
    self, rng: np.random.Generator, count: int, kappa: float, epsilon: float
  ) -> tuple[np.ndarray, np.ndarray]:
    """Returns (L, <m, y> / s^2) for `count` draws of y from N(-kappa m, s^2).

    Both are [count] float64. L may be rounded if it is above -epsilon.
    """


@dataclasses.dataclass(frozen=True)
class Direction:
  """A way to sample delta in one direction.

  Attributes:
    draw: function (rng, count) -> [count] float64 values x in [0, bound] whose
      expectation is delta.
    bound: B.
    entries: number of float64 values in memory for each sample.
    eta: parameter of the bound in `monte_carlo`, in [0, 1 / B].
  """

  draw: Callable[[np.random.Generator, int], np.ndarray]
  bound: float
  entries: int
  eta: float = 0.0


def removes(mixture: Mixture, epsilon: float) -> list[Direction]:
  """Returns ways to sample delta with the client removed.

  The first way has nearly the least B.
  """
  normalizer = functools.cache(mixture.log_normalizer)

  def log_weight(tilt):
    return normalizer(tilt) - tilt.excess * epsilon

  def log_bound(tilt):
    return log_weight(tilt) + _log_g(tilt.excess)

  excess = _least_bound(
    lambda k: log_weight(Tilt(1, k)), epsilon, mixture.mean_square
  )
  several, following = Tilt(1, 0.0), Tilt(2, 1.0)
  while several.copies == 1 or log_bound(following) < log_bound(several):
    several = following
    more = several.copies + max(1, several.copies // 5)
    following = min(
      Tilt(several.copies, _STEP * (1 + several.excess) - 1),
      several.with_copies(min(more, _MOST_COPIES)),
      key=log_bound,
    )
  best = min(Tilt(1, excess), several, key=log_bound)
  tilts = [best]
  if best.copies <= 2:
    tilts = [Tilt(best.copies, factor * best.excess) for factor in _FACTORS]
  if best.copies >= 2:
    numbers = {math.ceil(factor * best.copies) for factor in _COPIES}
    tilts += [best.with_copies(each) for each in sorted(numbers)]
  return [
    remove(mixture, epsilon, tilt, normalizer(tilt))
    for tilt in tilts
    if tilt == best or log_weight(tilt) < _LARGEST_LOG_WEIGHT
  ]


# PRIVACY: With another weight, the mean of the samples would not be delta. With
# a smaller normalizer, samples could exceed B, and the bound of delta could be
# too low. The module docstring proves this weight and this B.
# Guard: importance_test.test_values_respect_their_bound_and_average_to_delta.
def remove(
  mixture: Mixture, epsilon: float, tilt: Tilt, log_normalizer: float
) -> Direction:
  """Returns one way to sample delta with the client removed.

  Args:
    mixture: the mixture P.
    epsilon: at least 0, finite.
    tilt: parameters of R.
    log_normalizer: ln A.
  """
  sample = mixture.remove(tilt, epsilon)

  def draw(rng, count):
    loss, tilted, log_product = sample(rng, count)
    log_ratio = log_product + loss - tilt.copies * tilted
    weight = np.exp(np.where(loss > epsilon, log_ratio, 0.0))
    return -np.expm1(np.minimum(epsilon - loss, 0.0)) * weight

  log_bound = log_normalizer - tilt.excess * epsilon + _log_g(tilt.excess)
  return Direction(draw, math.exp(log_bound), mixture.entries)


# PRIVACY: With another weight, the mean of the samples would not be delta, or
# samples could exceed B. The module docstring proves this weight and this B.
# Guard: b_min_sep_test.test_separation_of_one_is_poisson_sampling.
def add(mixture: Mixture, epsilon: float) -> Direction:
  """Returns the way to sample delta with the client added."""
  gap = epsilon - mixture.mean_square / 2

  def log_weight(kappa):
    return kappa**2 * mixture.square_mean / 2 - kappa * gap

  kappa = _least_bound(log_weight, abs(gap), mixture.square_mean)
  shift = kappa**2 * mixture.square_mean / 2

  def draw(rng, count):
    loss, projection = mixture.sample_add(rng, count, kappa, epsilon)
    weight = np.exp(np.where(loss < -epsilon, kappa * projection + shift, 0.0))
    return -np.expm1(np.minimum(epsilon + loss, 0.0)) * weight

  log_bound = log_weight(kappa) + _log_g(kappa)
  return Direction(draw, math.exp(log_bound), mixture.entries)


def _log_g(k: float) -> float:
  """Returns ln g(k), the largest of ln(1 - e^-u) - k u over u > 0."""
  return float(scipy.special.xlogy(k, k) - (1 + k) * math.log1p(k))


def _least_bound(
  log_weight: Callable[[float], float], slope: float, curvature: float
) -> float:
  """Returns the k >= 0 with the least log_weight(k) + ln g(k).

  Args:
    log_weight: convex function, 0 at k = 0 and at least
      -slope k + curvature k^2 / 2.
    slope: number >= 0.
    curvature: number > 0.
  """
  # The derivative of the sum is at least -slope + curvature k / 2 - 1 / k,
  # which is positive from `most` on.
  most = 2 * (slope + math.sqrt(slope**2 + 4 * curvature)) / curvature
  minimum = scipy.optimize.minimize_scalar(
    lambda k: log_weight(k) + _log_g(k), bounds=(0.0, most), method='bounded'
  )
  return float(minimum.x)
