"""Upper bounds of the delta of a Gaussian mixture from random samples.

Delta has two directions: client removed, client added. For each direction the
module `importance` draws a random x in [0, B] whose expectation is delta, so
that delta <= B. For N independent draws x_i and any eta in [0, 1 / B] that was
fixed before them, the product of (1 - eta x_i) / (1 - eta delta) over i has
expectation 1. By Markov's inequality, with probability at least 1 - beta,

  delta <= (1 - e^(mean ln(1 - eta x_i) - ln(1 / beta) / N)) / eta.

This bound needs no estimate of a variance and no approximation. Separate pilot
samples choose eta and the distribution of x. A bad choice makes the bound
larger; the probability that it is too low stays at most beta.
"""

from __future__ import annotations

import dataclasses
import math
import secrets
from typing import Optional

import numpy as np

from tff_bandmf import _blas, _checks, _files, errors
from tff_bandmf.accounting.methods import importance

FAILURE_PROBABILITY = 1e-8
# Largest number of bounds that one call of `search.least` computes from
# samples.
ATTEMPTS = 4

_PILOT_SAMPLES = 5_000
# Number of pilot samples that choose between candidates.
_FEW_PILOTS = 500
# Number of float64 values in one chunk, which fits into a processor's cache.
_CHUNK_ENTRIES = 2**21
# A direction whose delta is far below delta of the other direction gets 1 /
# `_FEWER` of the samples.
_FEWER = 16
# Largest eta, in units of 1 / B.
_LARGEST_ETA = 0.95


@dataclasses.dataclass(frozen=True)
class Samples:
  """Options for the samples of a bound.

  Attributes:
    count: N, number of samples for each direction; None for the default of the
      kind of cohorts.
    failure_probability: beta, probability in (0, 1) that the claimed bound is
      too low; None for 1e-8 or one percent of the claimed delta, whichever is
      less.
    seed: seed of the samples; None for a random seed. The seed must not be
      chosen by a comparison of the bounds of several seeds.
    tries: number of bounds, >= 1. The caller computes this many bounds, for
      example one for each of several strategies, and claims one of them. Each
      bound gets an equal share of `failure_probability`.
    near: estimate of stddev(z) / clip at which a calibration begins its search;
      None for no estimate. A bad estimate only takes time.

  Raises:
    TypeError: `count` or `tries` is not an integer.
    ValueError: a value is out of range.
  """

  count: Optional[int] = None
  failure_probability: Optional[float] = None
  seed: Optional[int] = None
  tries: int = 1
  near: Optional[float] = None

  def __post_init__(self):
    _checks.count('tries', self.tries, 'bounds of which one is claimed')
    if self.count is not None:
      _checks.count('samples', self.count, 'a million is usual')
    if self.near is not None:
      _checks.positive('near', self.near, 'give an estimate of the noise')
    if self.failure_probability is None:
      return
    failure = _checks.positive(
      'failure_probability', self.failure_probability, '1e-8 is usual'
    )
    # PRIVACY: A failure probability of 1 would allow any bound. It is refused.
    # Guard: balls_in_bins_test.test_samples_out_of_range_are_refused.
    if failure >= 1:
      raise errors.value_error(
        f'failure_probability={failure}: must be below 1; 1e-8 is usual'
      )

  def completed(self, count: int, delta: float = 1.0) -> Options:
    """Returns the options of a search, with defaults in place of None.

    Args:
      count: N if the attribute `count` is None.
      delta: delta to claim.

    Raises:
      ValueError: the failure probability takes more than half of `delta`.
    """
    failure = self.failure_probability
    if failure is None:
      failure = min(FAILURE_PROBABILITY, delta / 100)
    if 2 * failure > delta:
      raise errors.value_error(
        f'failure_probability={failure}: must be at most half of '
        f'delta={delta}; it is part of the delta to claim'
      )
    seed = secrets.randbits(128) if self.seed is None else self.seed
    return Options(self.count or count, failure, seed, self.tries)


@dataclasses.dataclass(frozen=True)
class Options:
  """Options of the samples of a search; see the module `search`.

  Attributes:
    samples: number of samples of a bound, for each direction.
    failure_probability: probability that at least one of the bounds of all
      `tries` is too low.
    seed: seed of all samples, >= 0.
    tries: number of searches or of bounds, >= 1. The caller claims the result
      of one of them. Each search computes up to `ATTEMPTS` bounds.
  """

  samples: int
  failure_probability: float
  seed: int
  tries: int = 1

  # PRIVACY: The caller may claim the least of `tries` bounds. If one of the
  # bounds is too low, the least bound may be too low. If each bound had the
  # whole failure probability, the claim would be false more often than stated.
  # Each bound gets an equal share of the failure probability.
  # Guards:
  # monte_carlo_test.test_attempts_share_the_failure_probability and
  # balls_in_bins_test.test_total_counts_the_failure_probability.
  @property
  def share(self) -> float:
    """Probability that one bound is too low."""
    return self.failure_probability / self.tries

  def seeds(self) -> list[int]:
    """Returns the seed of the pilots, followed by one seed for each bound."""
    sequence = np.random.SeedSequence(self.seed)
    return sequence.generate_state(1 + ATTEMPTS, np.uint64).tolist()


@dataclasses.dataclass(frozen=True)
class Bound:
  """A claim (epsilon, `total`), with the numbers from which it was computed.

  Attributes:
    epsilon: epsilon of the claim; infinite if none is proved.
    estimate: the larger of the estimates of delta in the two directions; not a
      bound.
    upper: bound of delta in both directions.
    failure_probability: probability, over the samples, that `upper` is too low;
      0 if no samples were needed.
    samples: N, number of samples for each direction; the direction with the
      smaller delta may have had fewer samples.
    seed: seed of the samples, >= 0; None if no samples were needed.
    tries: largest number of bounds that may have been sampled for the claim;
      `failure_probability` covers all of them together.
  """

  epsilon: float
  estimate: float
  upper: float
  failure_probability: float = 0.0
  samples: int = 0
  seed: Optional[int] = None
  # The default is for files written before this field existed.
  tries: int = ATTEMPTS

  def __post_init__(self):
    _checks.count('tries', self.tries, 'bounds that were sampled')

  @classmethod
  def certain(cls, epsilon: float, delta: float) -> Bound:
    """Returns the claim of a delta that was computed without samples."""
    return cls(epsilon, delta, delta)

  @property
  def total(self) -> float:
    """Delta to claim.

    The run and the sampling of the bound together are (epsilon, total)-DP:
    whether the bound is too low depends on the samples and not on data.
    """
    # PRIVACY: With probability `failure_probability` the bound `upper` is too
    # low, and delta without this case would be too small. The probability is
    # added to delta.
    # Guard: balls_in_bins_test.test_total_counts_the_failure_probability.
    return min(1.0, self.upper + self.failure_probability)

  def to_dict(self) -> _files.JsonObject:
    """Returns the numbers of the claim under their JSON keys."""
    values = {'epsilon': self.epsilon if math.isfinite(self.epsilon) else None}
    if self.seed is None:
      return values
    return {
      **values,
      'delta_bound': self.total,
      'failure_probability': self.failure_probability,
      'samples': self.samples,
      'seed': self.seed,
    }


UNPROVED = Bound.certain(math.inf, 1.0)


@dataclasses.dataclass(frozen=True)
class _Average:
  """Averages of x, x^2 and ln(1 - eta x)."""

  mean: float
  square: float
  log: float

  def noise(self) -> float:
    """Returns E x^2 / (E x)^2, or infinity if E x is 0."""
    return self.square / self.mean**2 if self.mean else math.inf


def delta_bound(
  mixture: importance.Mixture, epsilon: float, options: Options
) -> Bound:
  """Returns a bound of delta at `epsilon` in both directions.

  Equal arguments give equal bounds.

  Args:
    mixture: mixture P of the module `importance`.
    epsilon: at least 0, finite.
    options: options of the samples. The caller claims one of `tries` bounds,
      and beta is `Options.share`.

  Raises:
    ValueError: a value is out of range.
  """
  _checks.nonnegative('epsilon', epsilon, 'typical values are 0.1 to 20')
  # PRIVACY: A bound is not proved, and may be too low, if its own samples chose
  # eta or the distribution of x. So samples of the generator `pilot` choose
  # them, and samples of the generator `final` give the bound. The bound of
  # either direction may be too low, which would double the failure probability.
  # So each direction gets half of it.
  # Guards: monte_carlo_test.test_samples_of_the_bound_are_used_once and
  # test_bound_without_a_hit_is_the_exact_one.
  sequence = np.random.SeedSequence(options.seed)
  pilot, final = (np.random.default_rng(child) for child in sequence.spawn(2))
  log_term = math.log(2 / options.share)
  estimate, upper, samples = 0.0, 0.0, options.samples
  pilots = max(2 * _FEW_PILOTS, min(_PILOT_SAMPLES, samples // 10))
  plan = plans(mixture, epsilon, samples, log_term, pilot, pilots)
  most = max(mean + margin for _, mean, margin in plan)
  for direction, mean, margin in plan:
    if not direction.eta or direction.bound <= max(upper, options.share):
      # PRIVACY: A direction is not sampled if its B is at most beta, or at most
      # the bound or the expected bound of the earlier direction. If this
      # direction were left out, the bound of delta could be too low. So the
      # bound of this direction is B, which holds without samples.
      # Guard: monte_carlo_test.test_sure_bound_of_a_direction_is_kept.
      upper = max(upper, direction.bound)
      continue
    count = samples
    if mean + 2 * math.sqrt(_FEWER) * margin < most:
      count = -(-samples // _FEWER)
      largest = _LARGEST_ETA / direction.bound
      eta = min(largest, math.sqrt(_FEWER) * direction.eta)
      direction = dataclasses.replace(direction, eta=eta)
    average = _average(direction, count, final)
    estimate = max(estimate, average.mean)
    # PRIVACY: As a bound of delta, the average of the samples alone would be
    # too low with probability about 1/2. With the term `log_term` / N of
    # Markov's inequality the bound is too low with probability at most beta.
    # Guards: monte_carlo_test.test_bound_without_a_hit_is_the_exact_one and
    # balls_in_bins_test.test_bound_fails_as_rarely_as_stated.
    proved = -math.expm1(average.log - log_term / count) / direction.eta
    upper = max(upper, min(direction.bound, proved))
  return Bound(epsilon, estimate, upper, **dataclasses.asdict(options))


def plans(
  mixture: importance.Mixture,
  epsilon: float,
  samples: int,
  log_term: float,
  rng: np.random.Generator,
  pilots: int,
) -> list[tuple[importance.Direction, float, float]]:
  """Returns a way to sample each direction, and the expected bound of delta.

  Args:
    mixture: mixture P of the module `importance`.
    epsilon: at least 0.
    samples: N, number of samples for each direction.
    log_term: ln(1 / beta).
    rng: generator of the pilot samples.
    pilots: number of pilot samples for each candidate.

  Returns:
    (direction, mean, margin) for each direction, where mean + margin is the
    expected bound of delta.
  """

  def tuned(direction, pilot):
    """Returns the least margin of the bound, and its eta in (0, 0.95 / B]."""
    square = max(pilot.square, 1e-300)
    eta = math.sqrt(2 * log_term / (samples * square))
    # PRIVACY: If eta exceeded 1 / B, the bound in the module docstring would
    # not hold, and a claim could be too small. The returned eta is at most
    # 0.95 / B, and the margin is computed from this eta.
    # Guard: monte_carlo_test.test_eta_is_below_one_over_the_largest_value.
    eta = min(_LARGEST_ETA / direction.bound, eta)
    return eta * square / 2 + log_term / (eta * samples), eta

  plans: list[tuple[importance.Direction, float, float]] = []
  removes = importance.removes(mixture, epsilon)
  for candidates in (removes, [importance.add(mixture, epsilon)]):
    least = max((mean + margin for _, mean, margin in plans), default=0.0)
    if candidates[0].bound <= max(least, math.exp(-log_term)):
      plans.append((candidates[0], 0.0, candidates[0].bound))
      continue
    # A few pilots choose one candidate. Only this candidate gets more pilots.
    few = min(pilots, _FEW_PILOTS) if len(candidates) > 1 else pilots
    averages = [_average(candidate, few, rng) for candidate in candidates]
    margins = list(map(tuned, candidates, averages))
    margin, eta = min(margins)
    best = candidates[margins.index((margin, eta))]
    # The mean of x is delta for every candidate. The candidate with the least
    # variance estimates delta best.
    mean = min(averages, key=_Average.noise).mean
    if few < pilots:
      average = _average(best, pilots, rng)
      margin, eta = tuned(best, average)
      mean = average.mean
    plans.append((dataclasses.replace(best, eta=eta), mean, margin))
  return plans


def _average(
  direction: importance.Direction, count: int, rng: np.random.Generator
) -> _Average:
  """Returns averages over `count` draws of x."""
  chunk = max(1, _CHUNK_ENTRIES // direction.entries)
  sums = np.zeros(3)
  with _blas.one_thread():
    for start in range(0, count, chunk):
      # PRIVACY: If a chunk had too many or too few draws, the average would be
      # wrong. The last chunk has exactly the remaining draws.
      # Guard: monte_carlo_test.test_samples_of_the_bound_are_used_once.
      x = direction.draw(rng, min(chunk, count - start))
      sums += x.sum(), x @ x, np.log1p(-direction.eta * x).sum()
  return _Average(*(sums / count).tolist())
