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


def _log_excess(
  problem: Problem, delta: float, options: monte_carlo.Options
) -> Callable[..., float]:
  """Returns (ln x, pilots) -> ln(expected `Bound.total` / `delta`)."""
  seed = options.seeds()[0]
  failure = options.failure_probability
  log_term = math.log(2 * options.tries * monte_carlo.ATTEMPTS / failure)

  @functools.cache
  def log_excess(log_x, pilots=_FEW):
    mixture, epsilon = problem(math.exp(log_x))
    rng = np.random.default_rng(seed)
    plans = monte_carlo.plans(
      mixture, epsilon, options.samples, log_term, rng, pilots
    )
    upper = max(mean + margin for _, mean, margin in plans)
    return math.log((upper + failure) / delta)

  return log_excess


def guess(
  problem: Problem, start: float, delta: float, options: monte_carlo.Options
) -> Optional[float]:
  """Returns an x near the result of `least`, from few pilot samples.

  The result is None if the expected `Bound.total` at `start` is at least
  `delta`.

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
  options: monte_carlo.Options,
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
  # Two steps refine x, with the same pilot samples, which are more than in
  # `guess`.
  many = max(_FEW, min(_MANY, options.samples // 10), options.samples // 100)
  log_x += max(-0.1, min(0.1, -log_excess(log_x, many) / slope))
  log_x += max(-0.1, min(0.1, -log_excess(log_x, many) / slope)) + 3e-3
  for seed in options.seeds()[1:]:
    if log_x >= math.log(start):
      return None
    # PRIVACY: Each attempt may confirm a wrong x with its failure probability.
    # So each attempt gets an equal share of the whole failure probability.
    # Guard: monte_carlo_test.test_attempts_share_the_failure_probability.
    tries = options.tries * monte_carlo.ATTEMPTS
    attempt = dataclasses.replace(options, seed=seed, tries=tries)
    bound = monte_carlo.delta_bound(*problem(math.exp(log_x)), attempt)
    # PRIVACY: The average of the samples can be below delta by chance. Only the
    # bound with its failure probability confirms x.
    # Guard: monte_carlo_test.test_attempts_share_the_failure_probability.
    if bound.total <= delta:
      return math.exp(log_x), bound
    log_x += 2e-3 + math.log(bound.total / delta) / max(-slope, 1.0)
  return None
