"""Guarantees whose delta is sampled: the claim, epsilon and calibration."""

from __future__ import annotations

import abc
import dataclasses
import functools
import math
from typing import Any, Callable, ClassVar, Optional, TypeVar, cast

import numpy as np
import scipy.optimize

from tff_bandmf import errors, strategies
from tff_bandmf.accounting import gaussian, monte_carlo
from tff_bandmf.accounting import slack as slack_lib

_ATTEMPTS = 4


def least(
  problem: Callable[[float], tuple[monte_carlo.Mixture, float]],
  start: float,
  delta: float,
  samples: int,
  failure_probability: float,
  seed: Optional[int],
) -> Optional[tuple[float, monte_carlo.DeltaBound]]:
  """Returns nearly the least x whose delta has a total of at most `delta`.

  Pilot samples find x, fresh ones have to confirm it; an x that they do not
  confirm is raised. Every attempt has a share of the failure probability.

  Args:
    problem: maps x to (mixture, epsilon), with delta decreasing in x.
    start: an x that is known to be large enough.
    delta: to be met.
    samples: N of the bound, for each direction.
    failure_probability: beta, of all attempts together.
    seed: for reproducible samples; None draws one.

  Returns:
    x and its bound, or None if no x below `start` was confirmed.
  """
  monte_carlo.check_options(samples, failure_probability)
  if 2 * failure_probability > delta:
    raise ValueError(
      errors.invalid(
        'failure_probability',
        failure_probability,
        f'must be at most half of delta={delta}',
        'it is part of the delta to claim',
      )
    )
  pilot_seed, *attempts = (
    int(word)
    for word in np.random.SeedSequence(seed).generate_state(
      1 + _ATTEMPTS, np.uint64
    )
  )
  share = failure_probability / _ATTEMPTS
  log_term = math.log(2 / share)

  def log_excess(log_x):
    plans = monte_carlo.plans(
      *problem(math.exp(log_x)),
      samples,
      log_term,
      np.random.default_rng(pilot_seed),
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
    log_x = scipy.optimize.brentq(log_excess, low, high, xtol=1e-3)
  slope = (log_excess(log_x + 0.03) - log_excess(log_x)) / 0.03
  log_x += 1e-3
  for attempt in attempts:
    if log_x >= math.log(start):
      return None
    mixture, epsilon = problem(math.exp(log_x))
    # PRIVACY: all attempts together fail with `failure_probability`. Guards:
    # monte_carlo_test.test_attempts_share_the_failure_probability and
    # balls_in_bins_test.test_total_counts_the_failure_probability.
    bound = dataclasses.replace(
      monte_carlo.delta_bound(mixture, epsilon, samples, share, attempt),
      failure_probability=failure_probability,
    )
    if bound.total <= delta:
      return math.exp(log_x), bound
    log_x += 2e-3 + math.log(bound.total / delta) / max(-slope, 1.0)
  return None


class SampledSpec(abc.ABC):
  """A guarantee whose delta is bounded by samples of a mixture.

  It never exceeds that of the run without amplification, whose sensitivity is
  that of the worst participations: a mixture is no farther from Q than the
  farthest of its components.

  Attributes:
    noise_multiplier: standard deviation of z over clip times sensitivity.
    sensitivity: max_S |m_S|.
    dimension: as in `PrivacySpec`.
    max_slack: as in `PrivacySpec`.
    default_samples: N where none is given.
  """

  default_samples: ClassVar[int]
  strategy: strategies.Strategy
  noise_multiplier: float
  sensitivity: float
  dimension: Optional[int]
  max_slack: float

  @property
  @abc.abstractmethod
  def participations(self) -> int:
    """The most rounds of a client."""

  @abc.abstractmethod
  def mixture(self, noise_multiplier: float) -> monte_carlo.Mixture:
    """Returns P with another noise multiplier."""

  @property
  def z_stddev(self) -> float:
    """Standard deviation of z for clip = 1; multiply by the clipping norm."""
    return self.noise_multiplier * self.sensitivity

  @functools.cached_property
  def cost(self) -> slack_lib.Cost:
    """What the arithmetic of the run costs."""
    return slack_lib.Cost.of(
      self.strategy,
      self.participations,
      sampled=True,
      dimension=self.dimension,
      max_slack=self.max_slack,
    )

  def moved(self, noise_multiplier: float) -> float:
    """Returns the L2 distance that cut weights move means by.

    Returns:
      It, in standard deviations of z with this noise multiplier.
    """
    return (self.cost.more_noise(self.sensitivity) - 1) / noise_multiplier

  def delta(
    self,
    epsilon: float,
    samples: Optional[int] = None,
    failure_probability: float = monte_carlo.FAILURE_PROBABILITY,
    seed: Optional[int] = None,
  ) -> monte_carlo.DeltaBound:
    """Returns a bound of delta at `epsilon`; see `monte_carlo.delta_bound`."""
    # A total that is less than what is claimed.
    slack = self.cost.slack(
      epsilon, failure_probability, self.moved(self.noise_multiplier)
    )
    exact = slack.exact_epsilon(epsilon)
    found = monte_carlo.delta_bound(
      self.mixture(self.noise_multiplier),
      exact,
      self.default_samples if samples is None else samples,
      failure_probability,
      seed,
    )
    unamplified = _unamplified(self.noise_multiplier, exact)
    found = _with_slack(
      found if found.total < unamplified.total else unamplified, slack
    )
    return dataclasses.replace(
      found,
      epsilon=epsilon,
      slack_delta=found.slack_delta + slack.below(epsilon),
    )

  def epsilon(
    self,
    delta: float,
    samples: Optional[int] = None,
    failure_probability: float = monte_carlo.FAILURE_PROBABILITY,
    seed: Optional[int] = None,
  ) -> monte_carlo.DeltaBound:
    """Returns nearly the least epsilon with a `total` of at most `delta`.

    Args:
      delta: to be met, the failure probability included.
      samples: N, for each direction; None for `default_samples`.
      failure_probability: of all samples together, at most half of `delta`.
      seed: for reproducible samples; None draws one.

    Raises:
      ValueError: a value out of range.
    """
    samples = self.default_samples if samples is None else samples
    monte_carlo.check_options(samples, failure_probability)
    gaussian.check_delta(delta)
    exact = self.cost.least_delta(delta)
    start = gaussian.gaussian_epsilon(self.noise_multiplier, exact)
    found = _unamplified(self.noise_multiplier, start)
    if start > 0:
      mixture = self.mixture(self.noise_multiplier)
      amplified = least(
        lambda epsilon: (mixture, epsilon),
        start,
        exact,
        samples,
        failure_probability,
        seed,
      )
      found = found if amplified is None else amplified[1]
    # PRIVACY: as in `PrivacySpec`; the bound of delta leaves room for it.
    # Guard: slack_test.test_amplified_epsilon_includes_the_arithmetic.
    return _with_slack(
      found,
      self.cost.slack(found.epsilon, delta, self.moved(self.noise_multiplier)),
    )


Spec = TypeVar('Spec', bound=SampledSpec)


def _with_slack(
  found: monte_carlo.DeltaBound, slack: slack_lib.Slack
) -> monte_carlo.DeltaBound:
  """Returns the claim of the released bits."""
  return dataclasses.replace(
    found,
    epsilon=found.epsilon + slack.epsilon,
    slack_epsilon=slack.epsilon,
    slack_delta=slack.total(found.total) - found.total,
  )


def calibrate_sampled(
  spec: Spec,
  epsilon: float,
  delta: float,
  samples: Optional[int] = None,
  failure_probability: float = monte_carlo.FAILURE_PROBABILITY,
  seed: Optional[int] = None,
) -> tuple[Spec, monte_carlo.DeltaBound]:
  """Returns the spec with nearly the least noise for (epsilon, delta).

  Args:
    spec: of the run, with any noise.
    epsilon: positive, above what the arithmetic costs.
    delta: to be met by `total`, the failure probability included.
    samples: N, for each direction; more of them need less noise. None for
      `default_samples`.
    failure_probability: of all samples together, at most half of `delta`.
    seed: for reproducible samples; None draws one.

  Returns:
    The spec and the bound that it was seen to meet.

  Raises:
    ValueError: a value out of range, or the slack exceeds `max_slack`.
  """
  start = gaussian.gaussian_noise_multiplier(epsilon, delta)
  # Cut weights cost more where there is less noise, which is not known yet.
  least_noise = start / 4
  while True:
    slack = spec.cost.slack(epsilon, delta, spec.moved(least_noise))
    noise, bound = _least_noise(
      spec,
      slack_lib.less(epsilon, slack),
      slack.exact_delta,
      samples,
      failure_probability,
      seed,
    )
    # PRIVACY: the slack of more noise is no bound for less.
    # Guard: slack_test.test_calibrated_noise_covers_its_own_slack.
    if noise >= least_noise:
      found: Any = dataclasses.replace(cast(Any, spec), noise_multiplier=noise)
      return found, dataclasses.replace(
        _with_slack(bound, slack), epsilon=epsilon
      )
    least_noise = noise / 2


def _least_noise(
  spec: SampledSpec,
  epsilon: float,
  delta: float,
  samples: Optional[int],
  failure_probability: float,
  seed: Optional[int],
) -> tuple[float, monte_carlo.DeltaBound]:
  """Returns nearly the least noise multiplier of the run in real numbers."""
  start = gaussian.gaussian_noise_multiplier(epsilon, delta)
  found = least(
    lambda multiplier: (spec.mixture(multiplier), epsilon),
    start,
    delta,
    spec.default_samples if samples is None else samples,
    failure_probability,
    seed,
  )
  return (start, _unamplified(start, epsilon)) if found is None else found


def _unamplified(
  noise_multiplier: float, epsilon: float
) -> monte_carlo.DeltaBound:
  """Returns the bound without amplification, for which none is sampled."""
  delta = gaussian.gaussian_delta(noise_multiplier, epsilon)
  return monte_carlo.DeltaBound(epsilon, delta, delta, 0.0, 0, None)
