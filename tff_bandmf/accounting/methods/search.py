"""Search for the least epsilon, or the least noise, with a sampled bound."""

from __future__ import annotations

import dataclasses
import math
from typing import Callable, Optional

import numpy as np
import scipy.optimize

from tff_bandmf.accounting.methods import importance, monte_carlo

# Pilot samples for each candidate x: at the start, and close to the result.
_FEW, _MANY = 1_000, 5_000


def least(
  problem: Callable[[float], tuple[importance.Mixture, float]],
  start: float,
  delta: float,
  samples: int,
  failure_probability: float,
  seed: int,
  tries: int = 1,
) -> Optional[tuple[float, monte_carlo.Bound]]:
  """Returns nearly the least x whose `Bound.total` is at most `delta`.

  x is an epsilon or a noise multiplier. Pilot samples choose x, and a bound
  from fresh samples must confirm it; if it does not, x is raised and confirmed
  again, up to `monte_carlo.ATTEMPTS` times.

  Args:
    problem: maps x to (mixture, epsilon); delta decreases in x.
    start: an x that is known to be large enough, > 0.
    delta: largest total allowed.
    samples: N of the bound, for each direction.
    failure_probability: beta, of all attempts of all tries together.
    seed: seed of all samples, >= 0.
    tries: number of searches from which the caller chooses one to claim.

  Returns:
    x and its bound, or None if no x below `start` was confirmed.
  """
  pilot_seed, *attempts = (
    int(word)
    for word in np.random.SeedSequence(seed).generate_state(
      1 + monte_carlo.ATTEMPTS, np.uint64
    )
  )
  tries *= monte_carlo.ATTEMPTS
  log_term = math.log(2 * tries / failure_probability)

  def log_excess(log_x, pilots=_FEW):
    plans = monte_carlo.plans(
      *problem(math.exp(log_x)),
      samples,
      log_term,
      np.random.default_rng(pilot_seed),
      pilots,
    )
    upper = max(mean + margin for _, mean, margin in plans)
    return math.log((upper + failure_probability) / delta)

  high, step = math.log(start), 0.25
  if log_excess(high) >= 0:
    return None
  low = high - step
  while log_excess(low) < 0 and low > high - 20:
    low, high = low - step, low
  log_x = high
  if log_excess(low) > 0:
    log_x = scipy.optimize.brentq(log_excess, low, high, xtol=1e-2)
  # Refine x with more pilot samples, the same ones at each step.
  many = max(_MANY, samples // 100)
  excess = log_excess(log_x, many)
  slope = min(-1.0, (log_excess(log_x + 0.03, many) - excess) / 0.03)
  log_x += max(-0.1, min(0.1, -excess / slope))
  log_x += max(-0.1, min(0.1, -log_excess(log_x, many) / slope)) + 3e-3
  for attempt in attempts:
    if log_x >= math.log(start):
      return None
    mixture, epsilon = problem(math.exp(log_x))
    bound = attempted(
      mixture, epsilon, samples, failure_probability, attempt, tries
    )
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
  """Returns the bound of one attempt, which is the same for the same seed.

  Args:
    mixture: P.
    epsilon: at least 0, finite.
    samples: N, number of samples for each direction.
    failure_probability: beta, of all tries together.
    seed: seed of the samples, >= 0.
    tries: number of bounds from which the caller chooses one to claim.
  """
  # PRIVACY: The least of several bounds is claimed, so the claim is wrong if
  # any one of them is too low. Each gets an equal share of the probability.
  # Guards:
  # monte_carlo_test.test_attempts_share_the_failure_probability and
  # balls_in_bins_test.test_total_counts_the_failure_probability.
  share = failure_probability / tries
  return dataclasses.replace(
    monte_carlo.delta_bound(mixture, epsilon, samples, share, seed),
    failure_probability=failure_probability,
    tries=tries,
  )
