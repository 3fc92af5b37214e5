"""Search for the least epsilon or the least noise, with sampled bounds.

Pilot samples suggest a result and prove nothing. A bound of `monte_carlo` from
new samples then proves the result.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Optional

import numpy as np
import scipy.optimize

from tff_bandmf.accounting.methods import importance, monte_carlo

# Numbers of pilot samples for each x: at the start, and close to the result.
_FEW, _MANY = 500, 5_000
# Distance of ln x from the result at which the slope is estimated. At a smaller
# distance, errors of the pilot samples would be a large part of the difference.
_ASIDE = 0.1


# Maps x to (mixture, epsilon). x is an epsilon or a noise multiplier, and delta
# of the mixture at epsilon decreases in x.
Problem = Callable[[float], tuple[importance.Mixture, float]]


@dataclasses.dataclass(frozen=True)
class Options:
  """Options of the samples of a search.

  Attributes:
    samples: number of samples of a bound, for each direction.
    failure_probability: probability that at least one of the bounds of all
      `tries` searches is too low.
    seed: seed of all samples, >= 0.
    tries: number >= 1 of searches from which the caller claims one result. Each
      search samples up to `monte_carlo.ATTEMPTS` bounds.
  """

  samples: int
  failure_probability: float
  seed: int
  tries: int = 1

  def seeds(self) -> list[int]:
    """Returns the seed of the pilots, followed by one seed for each bound."""
    words = np.random.SeedSequence(self.seed).generate_state(
      1 + monte_carlo.ATTEMPTS, np.uint64
    )
    return [int(word) for word in words]


def _log_excess(
  problem: Problem, delta: float, options: Options
) -> Callable[..., float]:
  """Returns (ln x, pilots) -> ln(expected `Bound.total` / `delta`)."""
  seed = options.seeds()[0]
  failure = options.failure_probability
  log_term = math.log(2 * options.tries * monte_carlo.ATTEMPTS / failure)

  @functools.cache
  def log_excess(log_x, pilots=_FEW):
    plans = monte_carlo.plans(
      *problem(math.exp(log_x)),
      options.samples,
      log_term,
      np.random.default_rng(seed),
      pilots,
    )
    upper = max(mean + margin for _, mean, margin in plans)
    return math.log((upper + failure) / delta)

  return log_excess


def guess(
  problem: Problem, start: float, delta: float, options: Options
) -> Optional[float]:
  """Returns an x near the result of `least`, from few pilot samples.

  The result is None if `Bound.total` seems to exceed `delta` below `start`.

  Args:
    problem: function from x to (mixture, epsilon).
    start: an x > 0 at which delta is known to be at most `delta`.
    delta: largest `Bound.total` allowed.
    options: options of the samples.
  """
  log_excess = _log_excess(problem, delta, options)
  high, step = math.log(start), 0.25
  if log_excess(high) >= 0:
    return None
  low = high - step
  while log_excess(low) < 0 and low > high - 20:
    low, high = low - step, low
  if log_excess(low) > 0:
    high = scipy.optimize.brentq(log_excess, low, high, xtol=1e-2)
  return math.exp(high)


def least(
  problem: Problem,
  start: float,
  delta: float,
  options: Options,
  near: Optional[float] = None,
) -> Optional[tuple[float, monte_carlo.Bound]]:
  """Returns nearly the least x whose `Bound.total` is at most `delta`.

  Pilot samples choose x. A bound from new samples confirms x if its total is at
  most `delta`; if not, x is raised and a new bound is sampled, up to
  `monte_carlo.ATTEMPTS` bounds.

  Args:
    problem: function from x to (mixture, epsilon).
    start: an x > 0 at which delta is known to be at most `delta`.
    delta: largest `Bound.total` allowed.
    options: options of the samples.
    near: an x near the result. If it is None or seems too far off, `guess` is
      called.

  Returns:
    x and its bound, or None if no x below `start` was confirmed.
  """
  log_excess = _log_excess(problem, delta, options)

  def aside(x):
    log_x = math.log(x)
    return log_excess(log_x + _ASIDE), log_excess(log_x - _ASIDE)

  if near is not None:
    above, below = aside(near)
  if near is None or not above < 0 < below:
    near = guess(problem, start, delta, options)
    if near is None:
      return None
    above, below = aside(near)
  log_x = math.log(near)
  slope = min(-1.0, (above - below) / (2 * _ASIDE))
  # More pilot samples than in `guess` refine x, the same at both steps.
  samples = options.samples
  many = max(_FEW, min(_MANY, samples // 10), samples // 100)
  log_x += max(-0.1, min(0.1, -log_excess(log_x, many) / slope))
  log_x += max(-0.1, min(0.1, -log_excess(log_x, many) / slope)) + 3e-3
  for attempt in options.seeds()[1:]:
    if log_x >= math.log(start):
      return None
    mixture, epsilon = problem(math.exp(log_x))
    # PRIVACY: Each attempt may confirm a wrong x with its failure probability.
    # It gets the share of all attempts.
    # Guard: monte_carlo_test.test_attempts_share_the_failure_probability.
    bound = attempted(
      mixture,
      epsilon,
      samples,
      options.failure_probability,
      attempt,
      options.tries * monte_carlo.ATTEMPTS,
    )
    # PRIVACY: The average of the samples can be below delta by chance. Only the
    # bound with its failure probability confirms x.
    # Guard: monte_carlo_test.test_attempts_share_the_failure_probability.
    if bound.total <= delta:
      return math.exp(log_x), bound
    log_x += 2e-3 + math.log(bound.total / delta) / max(-slope, 1.0)
  return None


def attempted(
  mixture: importance.Mixture,
  epsilon: float,
  samples: int,
  failure_probability: float,
  seed: int,
  tries: int,
) -> monte_carlo.Bound:
  """Returns a bound of delta whose failure probability covers `tries` bounds.

  Equal arguments give equal bounds.

  Args:
    mixture: mixture P of the module `importance`.
    epsilon: at least 0, finite.
    samples: number of samples for each direction.
    failure_probability: probability that any of `tries` bounds is too low.
    seed: seed of the samples, >= 0.
    tries: number of bounds of which the caller claims one, >= 1.
  """
  # PRIVACY: The caller may claim the least of several bounds, and this bound
  # may be too low if any one of them is. If each bound had the whole failure
  # probability, the claim would be false more often than stated. Each bound
  # gets an equal share of the failure probability.
  # Guards:
  # monte_carlo_test.test_attempts_share_the_failure_probability and
  # balls_in_bins_test.test_total_counts_the_failure_probability.
  share = failure_probability / tries
  return dataclasses.replace(
    monte_carlo.delta_bound(mixture, epsilon, samples, share, seed),
    failure_probability=failure_probability,
    tries=tries,
  )
