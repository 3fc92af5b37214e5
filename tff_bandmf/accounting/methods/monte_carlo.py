"""Delta of a Gaussian mixture, sampled, with a bound that holds.

  delta <= B for sure, and delta = E x_i of N independent x_i in [0, B]

(`importance`: both directions of delta, how they are sampled, and B). For any
eta in [0, 1 / B] fixed before, the product of (1 - eta x_i) / (1 - eta delta)
has expectation 1, and by Markov's inequality, with probability 1 - beta,

  delta <= (1 - e^(mean ln(1 - eta x_i) - ln(1 / beta) / N)) / eta.

No variance is estimated and nothing is approximate. The law of the samples and
eta are chosen by pilot samples of their own; a bad choice costs tightness
alone.
"""

from __future__ import annotations

import dataclasses
import math
import secrets
from typing import Optional

import numpy as np

from tff_bandmf import _checks, _files, errors
from tff_bandmf.accounting.methods import importance

FAILURE_PROBABILITY = 1e-8
# Bounds that one search for x may try, see `search`.
ATTEMPTS = 4

_PILOT_SAMPLES = 5_000
# Chunks that stay in a processor's cache, and for which memory is kept.
_CHUNK_ENTRIES = 2**21
# By so much fewer samples do for a direction whose delta is much smaller.
_FEWER = 16
# Times 1 / B.
_LARGEST_ETA = 0.95


@dataclasses.dataclass(frozen=True)
class Samples:
  """How a bound is sampled.

  Attributes:
    count: N, for each direction; None for what the mixture needs.
    failure_probability: probability, over all samples together, in (0, 1); None
      for 1e-8 or, if that is less, one percent of the delta to claim.
    seed: for reproducible samples; None draws one. A bound holds for a seed
      that was not chosen for what it gave.
    tries: bounds of which one is claimed, at least 1, such as those of families
      that are compared. Each may fail with a share of `failure_probability`.

  Raises:
    TypeError: `count` or `tries` is not an integer.
    ValueError: a value out of range.
  """

  count: Optional[int] = None
  failure_probability: Optional[float] = None
  seed: Optional[int] = None
  tries: int = 1

  def __post_init__(self):
    _checks.count('tries', self.tries, 'bounds of which one is claimed')
    if self.count is not None:
      _checks.count('samples', self.count, 'a million is usual')
    if self.failure_probability is None:
      return
    _checks.positive(
      'failure_probability', self.failure_probability, '1e-8 is usual'
    )
    if self.failure_probability >= 1:
      raise errors.value_error(
        f'failure_probability={self.failure_probability}: must be below 1; '
        '1e-8 is usual'
      )

  def completed(self, count: int, delta: float = 1.0) -> tuple[int, float, int]:
    """Returns (N, failure probability, seed), with a value for what is None.

    Args:
      count: N where none is given.
      delta: to be claimed.

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
    return self.count or count, failure, seed


@dataclasses.dataclass(frozen=True)
class Bound:
  """A claim (epsilon, `total`), and what it is made of.

  Attributes:
    epsilon: epsilon of the claim, `slack_epsilon` included.
    estimate: estimate of delta, the larger direction; not a bound.
    upper: bound of delta in both directions, of the run in real numbers.
    failure_probability: probability, over the samples, that `upper` is too low;
      0 if no samples were needed.
    samples: N, in the direction that counts.
    seed: seed of the samples, >= 0.
    slack_epsilon: cost of the arithmetic in epsilon, >= 0.
    slack_delta: cost of the arithmetic in delta, >= 0.
    tries: bounds that were sampled, or may have been, before one was claimed;
      `failure_probability` is that of all of them together.
  """

  epsilon: float
  estimate: float
  upper: float
  failure_probability: float = 0.0
  samples: int = 0
  seed: Optional[int] = None
  slack_epsilon: float = 0.0
  slack_delta: float = 0.0
  # Files of before do not say it.
  tries: int = ATTEMPTS

  def __post_init__(self):
    _checks.count('tries', self.tries, 'bounds that were sampled')

  @classmethod
  def certain(
    cls,
    epsilon: float,
    delta: float,
    slack_epsilon: float = 0.0,
    slack_delta: float = 0.0,
  ) -> Bound:
    """Returns the claim of a delta for which none is sampled."""
    return cls(
      epsilon,
      delta,
      delta,
      slack_epsilon=slack_epsilon,
      slack_delta=slack_delta,
    )

  @property
  def total(self) -> float:
    """delta to claim: sampling and run together are (epsilon, total)-DP.

    Where the bound fails, for which data play no part, nothing is promised.
    """
    # PRIVACY: the accountant's own failure is part of the claim.
    # Guard: balls_in_bins_test.test_total_counts_the_failure_probability.
    return min(1.0, self.upper + self.failure_probability + self.slack_delta)

  def to_dict(self) -> _files.JsonObject:
    """Returns the numbers of the claim under their JSON keys."""
    record = {
      'epsilon': self.epsilon,
      'slack_epsilon': self.slack_epsilon,
      'slack_delta': self.slack_delta,
    }
    if self.seed is None:
      return record
    return {
      **record,
      'delta_bound': self.total,
      'failure_probability': self.failure_probability,
      'samples': self.samples,
      'seed': self.seed,
    }


@dataclasses.dataclass(frozen=True)
class _Average:
  """Averages of x, x^2 and ln(1 - eta x)."""

  mean: float
  square: float
  log: float

  def noise(self) -> float:
    """Returns the mean square of x over its mean, squared."""
    return self.square / self.mean**2 if self.mean else math.inf


def delta_bound(
  mixture: importance.Mixture,
  epsilon: float,
  samples: int,
  failure_probability: float,
  seed: int,
) -> Bound:
  """Returns a bound of the larger of both directions' delta at `epsilon`.

  Args:
    mixture: P.
    epsilon: at least 0, finite.
    samples: N, for each direction.
    failure_probability: beta, over the samples.
    seed: seed of the samples, >= 0.

  Raises:
    ValueError: a value out of range.
  """
  _checks.nonnegative('epsilon', epsilon, 'typical values are 0.1 to 20')
  # PRIVACY: the samples are others than those that chose gamma and eta, and
  # each direction may fail with half of the probability.
  # Guards: monte_carlo_test.test_samples_of_the_bound_are_used_once and
  # test_bound_without_a_hit_is_the_exact_one.
  sequence = np.random.SeedSequence(seed)
  pilot, final = (np.random.default_rng(child) for child in sequence.spawn(2))
  log_term = math.log(2 / failure_probability)
  estimate = upper = 0.0
  plan = plans(mixture, epsilon, samples, log_term, pilot)
  most = max(mean + margin for _, mean, margin in plan)
  for direction, mean, margin in plan:
    # B bounds delta for sure: nothing to sample if the other is larger.
    if not direction.eta or direction.bound <= max(upper, failure_probability):
      upper = max(upper, direction.bound)
      continue
    count = samples
    if mean + 2 * math.sqrt(_FEWER) * margin < most:
      count = -(-samples // _FEWER)
      eta = min(
        _LARGEST_ETA / direction.bound, math.sqrt(_FEWER) * direction.eta
      )
      direction = dataclasses.replace(direction, eta=eta)
    average = _average(direction, count, mixture.entries, final)
    estimate = max(estimate, average.mean)
    upper = max(upper, _upper(direction, average.log, count, log_term))
  return Bound(epsilon, estimate, upper, failure_probability, samples, seed)


def plans(
  mixture: importance.Mixture,
  epsilon: float,
  samples: int,
  log_term: float,
  rng: np.random.Generator,
  pilots: int = _PILOT_SAMPLES,
) -> list[tuple[importance.Direction, float, float]]:
  """Returns, for each direction, how to sample it and what to expect.

  Args:
    mixture: P.
    epsilon: at least 0.
    samples: N.
    log_term: ln(1 / beta).
    rng: generator of `pilots` samples for each candidate.

  Returns:
    (direction, mean, margin) each; mean + margin is the bound to expect.
  """
  plans: list[tuple[importance.Direction, float, float]] = []
  for candidates in (
    importance.removes(mixture, epsilon),
    [importance.add(mixture, epsilon)],
  ):
    # PRIVACY: a bound that holds for sure needs no samples where it counts for
    # nothing. Guard: monte_carlo_test.test_sure_bound_of_a_direction_is_kept.
    least = max((mean + margin for _, mean, margin in plans), default=0.0)
    if candidates[0].bound <= max(least, math.exp(-log_term)):
      plans.append((candidates[0], 0.0, candidates[0].bound))
      continue
    averages = [
      _average(candidate, pilots, mixture.entries, rng)
      for candidate in candidates
    ]
    margins = []
    for candidate, pilot in zip(candidates, averages):
      # The term of the least margin, below 1 / B.
      square = max(pilot.square, 1e-300)
      eta = min(
        _LARGEST_ETA / candidate.bound,
        math.sqrt(2 * log_term / (samples * square)),
      )
      margins.append((eta * pilot.square / 2 + log_term / (eta * samples), eta))
    margin, eta = min(margins)
    best = candidates[margins.index((margin, eta))]
    # All candidates have the same mean; the least noisy knows it best.
    mean = min(averages, key=_Average.noise).mean
    plans.append((dataclasses.replace(best, eta=eta), mean, margin))
  return plans


def _average(
  direction: importance.Direction,
  count: int,
  entries: int,
  rng: np.random.Generator,
) -> _Average:
  """Returns averages over `count` values, drawn in chunks."""
  chunk = max(1, _CHUNK_ENTRIES // entries)
  sums = np.zeros(3)
  for start in range(0, count, chunk):
    x = direction.draw(rng, min(chunk, count - start))
    sums += x.sum(), x @ x, np.log1p(-direction.eta * x).sum()
  return _Average(*(sums / count).tolist())


def _upper(
  direction: importance.Direction, log: float, samples: int, log_term: float
) -> float:
  """Returns the bound of delta; see the module."""
  # PRIVACY: Markov's inequality; B bounds the mean, too.
  # Guards: monte_carlo_test.test_bound_without_a_hit_is_the_exact_one and
  # balls_in_bins_test.test_bound_fails_as_rarely_as_stated.
  return min(
    direction.bound, -math.expm1(log - log_term / samples) / direction.eta
  )
