"""Accountants: claims about released bits for one strategy and its cohorts.

An accountant first bounds delta or epsilon of the run in real numbers. An
`Exact` accountant uses a closed form or a convolution; a `Sampled` accountant
uses random samples of a mixture. Then the accountant adds the slack of the
module `slack`, since the released sums and their noise are integers.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, Optional

from tff_bandmf import errors, strategies
from tff_bandmf import participation as participation_lib
from tff_bandmf import sensitivity as sensitivity_lib
from tff_bandmf.accounting.arithmetic import slack as slack_lib
from tff_bandmf.accounting.methods import (
  gaussian,
  importance,
  monte_carlo,
  search,
)

if TYPE_CHECKING:
  import dp_accounting

_SMALLEST_DELTA = 1e-300
# Largest number of searches for the least noise; each search draws new samples.
_SEARCHES = 4
# A search first computes the slack for this fraction of a guess of the noise
# multiplier.
_BELOW_GUESS = 0.9


class Accountant(abc.ABC):
  """The claims for one strategy and one kind of cohorts.

  Attributes:
    sensitivity: sensitivity of C for clip = 1; a noise multiplier is
      stddev(z) / (clip * sensitivity).
    participations: largest number of rounds of one unit of privacy, summed over
      its clients.
    sampled: whether cohorts are drawn at random. If they are, the slack covers
      the releases of all rounds.
  """

  sampled: ClassVar[bool] = True

  def __init__(
    self,
    strategy: strategies.Strategy,
    schema: participation_lib.Participation,
    sensitivity: Optional[sensitivity_lib.Sensitivity] = None,
  ):
    """Makes the accountant.

    Args:
      strategy: strategy matrix C.
      schema: schema that the cohorts always satisfy.
      sensitivity: sensitivity of C for clip = 1. If None, it is computed for
        `schema`.
    """
    self.sensitivity = sensitivity or sensitivity_lib.sensitivity(
      strategy, schema
    )
    self.participations = schema.participations(strategy.rounds)

  @abc.abstractmethod
  def claim(
    self,
    cost: slack_lib.Cost,
    noise_multiplier: float,
    delta: float,
    samples: monte_carlo.Samples,
  ) -> monte_carlo.Bound:
    """Returns the claim of the least epsilon at `delta`.

    The epsilon is only nearly the least if delta is bounded by random samples.
    """

  @abc.abstractmethod
  def claim_at(
    self,
    cost: slack_lib.Cost,
    noise_multiplier: float,
    epsilon: float,
    samples: monte_carlo.Samples,
  ) -> monte_carlo.Bound:
    """Returns the claim of the least delta at `epsilon`.

    The delta is only nearly the least if it is bounded by random samples.
    """

  @abc.abstractmethod
  def calibrate(
    self,
    cost: slack_lib.Cost,
    epsilon: float,
    delta: float,
    samples: monte_carlo.Samples,
  ) -> tuple[float, monte_carlo.Bound]:
    """Returns the least noise multiplier for (epsilon, delta), and its claim.

    The noise multiplier is only nearly the least if delta is bounded by random
    samples.
    """

  @abc.abstractmethod
  def confirmed(
    self,
    cost: slack_lib.Cost,
    noise_multiplier: float,
    bound: monte_carlo.Bound,
    delta: float,
  ) -> monte_carlo.Bound:
    """Computes an earlier claim at `delta` again.

    Args:
      cost: bounds of the arithmetic of the run.
      noise_multiplier: noise multiplier of the run.
      bound: the earlier claim. If it has a seed, samples are drawn from this
        seed.
      delta: delta of the claim.
    """

  def rho(self, noise_multiplier: float) -> Optional[float]:
    """Returns rho of zero-concentrated DP, or None if no rho is proved."""
    return None

  def dp_event(self, noise_multiplier: float) -> dp_accounting.DpEvent:
    """Returns the `DpEvent` of the run in real numbers.

    The result is an `UnsupportedDpEvent` if dp-accounting has no event for it.
    """
    import dp_accounting

    return dp_accounting.UnsupportedDpEvent()

  def more_noise(self, cost: slack_lib.Cost) -> float:
    """Returns the factor by which noise grows to cover the cut weights of C."""
    return cost.more_noise(self.sensitivity.value)


class Exact(Accountant):
  """An accountant whose epsilon and delta need no random samples."""

  @abc.abstractmethod
  def epsilon(self, noise_multiplier: float, delta: float) -> float:
    """Returns epsilon at `delta` in real numbers, rounded up."""

  @abc.abstractmethod
  def delta(self, noise_multiplier: float, epsilon: float) -> float:
    """Returns delta at `epsilon` in real numbers, rounded up."""

  @abc.abstractmethod
  def noise_multiplier(self, epsilon: float, delta: float) -> float:
    """Returns the least noise multiplier in real numbers, rounded up."""

  def claim(self, cost, noise_multiplier, delta, samples):
    noise = noise_multiplier / self.more_noise(cost)
    slack = cost.slack(self.epsilon(noise, cost.least_delta(delta)), delta)
    # PRIVACY: The run releases integers. Their epsilon may be larger than
    # epsilon of the run in real numbers, which alone would be too small. The
    # slack is added to epsilon.
    # Guards: slack_test.test_epsilon_includes_the_arithmetic and
    # test_amplified_epsilon_includes_the_arithmetic.
    epsilon = self.epsilon(noise, slack.exact_delta) + slack.epsilon
    return monte_carlo.Bound.certain(
      epsilon, slack.exact_delta, slack.epsilon, slack.delta
    )

  def claim_at(self, cost, noise_multiplier, epsilon, samples):
    noise = noise_multiplier / self.more_noise(cost)
    # A lower bound of the returned delta.
    least = max(_SMALLEST_DELTA, self.delta(noise, epsilon))
    slack = cost.slack(epsilon, least)
    delta = self.delta(noise, slack.exact_epsilon(epsilon))
    more = slack.extra_delta(epsilon) + slack.total(delta) - delta
    return monte_carlo.Bound.certain(epsilon, delta, slack.epsilon, more)

  def calibrate(self, cost, epsilon, delta, samples):
    slack = cost.slack(epsilon, delta)
    target = slack_lib.less(epsilon, slack)
    while True:
      noise = self.more_noise(cost) * self.noise_multiplier(
        target, slack.exact_delta
      )
      bound = self.claim(cost, noise, delta, samples)
      # PRIVACY: The slack was computed before the noise was known, so the noise
      # may be too little for `epsilon`. Noise is returned only if the epsilon
      # of its claim is at most `epsilon`.
      # Guard: slack_test.test_calibrate_meets_epsilon.
      if bound.epsilon <= epsilon:
        return noise, bound
      target -= 2 * (bound.epsilon - epsilon)

  def confirmed(self, cost, noise_multiplier, bound, delta):
    return self.claim(cost, noise_multiplier, delta, monte_carlo.Samples())


class Gaussian(Exact):
  """A whole run whose schema is enforced: one Gaussian release.

  A unit of privacy may be several clients. Each client shifts the mean of the
  release by a vector whose norm is at most the sensitivity. The clients of a
  unit shift the mean by at most the sum of these norms, and by exactly this sum
  if their vectors have the same direction.
  """

  sampled = False

  def __init__(
    self,
    strategy: strategies.Strategy,
    schema: participation_lib.Participation,
    sensitivity: Optional[sensitivity_lib.Sensitivity] = None,
    clients_per_unit: int = 1,
  ):
    """Makes the accountant.

    Args:
      strategy: strategy matrix C.
      schema: schema of each client.
      sensitivity: sensitivity of C for one client and clip = 1. If None, it is
        computed for `schema`.
      clients_per_unit: largest number of clients of one unit of privacy.
    """
    super().__init__(strategy, schema, sensitivity)
    if clients_per_unit > 1:
      # PRIVACY: All clients of a unit may shift the mean in the same direction,
      # so the root of the sum of their squared sensitivities would be too
      # small. The sensitivities are added.
      # Guard: guarantee_test.test_clients_of_a_unit_move_a_run_by_their_sum.
      value = clients_per_unit * self.sensitivity.value
      self.sensitivity = dataclasses.replace(
        self.sensitivity,
        value=math.nextafter(value, math.inf),
        reason=f'{clients_per_unit} clients a unit of privacy, each: '
        f'{self.sensitivity.reason}',
      )
      # PRIVACY: A slack for the rounds of one client alone would be too small
      # for a unit of several clients. The slack covers the rounds of all
      # clients of the unit.
      # Guard: guarantee_test.test_clients_of_a_unit_have_the_slack_of_all.
      self.participations *= clients_per_unit

  def epsilon(self, noise_multiplier, delta):
    return gaussian.gaussian_epsilon(noise_multiplier, delta)

  def delta(self, noise_multiplier, epsilon):
    return gaussian.gaussian_delta(noise_multiplier, epsilon)

  def noise_multiplier(self, epsilon, delta):
    return gaussian.gaussian_noise_multiplier(epsilon, delta)

  def rho(self, noise_multiplier):
    return gaussian.zcdp_rho(noise_multiplier)

  def dp_event(self, noise_multiplier):
    import dp_accounting

    return dp_accounting.GaussianDpEvent(noise_multiplier)


class Logged(Gaussian):
  """A finished run, accounted for by the rounds of its clients in a log."""

  def __init__(
    self,
    strategy: strategies.Strategy,
    schema: participation_lib.Participation,
    sensitivity: Optional[sensitivity_lib.Sensitivity] = None,
    clients_per_unit: int = 1,
  ):
    """Makes the accountant.

    Args:
      strategy: strategy matrix C.
      schema: strictest schema that the log satisfies.
      sensitivity: sensitivity observed in the log, which covers cut weights
        and rounding errors. If None, the sensitivity is computed for `schema`.
      clients_per_unit: largest number of clients of one unit of privacy.
    """
    super().__init__(strategy, schema, sensitivity, clients_per_unit)
    self._observed = sensitivity is not None

  def more_noise(self, cost):
    # PRIVACY: The noise is computed with cut weights (see `slack.Cost`). A
    # sensitivity computed for the schema covers neither their effect nor
    # rounding errors. Without a factor for both, epsilon would be too small.
    # Only an observed sensitivity covers both, and has the factor 1.
    # Guards: accounting_cohorts_test.test_log_claims_what_its_clients_did and
    # test_log_without_a_sensitivity_is_rounded_up.
    return 1.0 if self._observed else super().more_noise(cost)


class Sampled(Accountant):
  """An accountant whose delta is bounded by samples of a mixture.

  The module `importance` defines the mixture P and the distribution Q. By
  convexity, delta between P and Q is at most the largest delta between one
  component of P and Q. So delta never exceeds delta of the run without
  amplification, which is one Gaussian release.
  """

  def __init__(
    self,
    strategy: strategies.Strategy,
    schema: participation_lib.Participation,
    mixture_of: Callable[[float], importance.Mixture],
    default_samples: int,
  ):
    """Makes the accountant.

    Args:
      strategy: strategy matrix C.
      schema: schema that the cohorts always satisfy.
      mixture_of: function from stddev(z) / clip to the mixture P.
      default_samples: number of samples if `Samples.count` is None.
    """
    super().__init__(strategy, schema)
    self._mixture_of, self._default_samples = mixture_of, default_samples

  def mixture(self, noise_multiplier: float) -> importance.Mixture:
    """Returns the mixture P for a noise multiplier."""
    return self._mixture_of(noise_multiplier * self.sensitivity.value)

  def mean_shift(self, cost: slack_lib.Cost, noise_multiplier: float) -> float:
    """Returns the L2 norm by which cut weights move the means of the release.

    The result is in standard deviations of z.
    """
    return (self.more_noise(cost) - 1) / noise_multiplier

  def claim(self, cost, noise_multiplier, delta, samples):
    exact = cost.least_delta(delta)
    count, failure, seed = samples.completed(self._default_samples, exact)
    options = search.Options(count, failure, seed, samples.tries)
    start = gaussian.gaussian_epsilon(noise_multiplier, exact)
    bound = _unamplified(noise_multiplier, start)
    if start > 0:
      mixture = self.mixture(noise_multiplier)
      amplified = search.least(
        lambda epsilon: (mixture, epsilon),
        start,
        exact,
        options,
      )
      bound = bound if amplified is None else amplified[1]
    # PRIVACY: Epsilon and delta of the run in real numbers may be too small for
    # the released integers. `bound` is for the delta `exact`, which is below
    # `delta` by at least the slack of delta. The slack is added to `bound`.
    # Guard: slack_test.test_amplified_epsilon_includes_the_arithmetic.
    return _with_slack(
      bound,
      cost.slack(bound.epsilon, delta, self.mean_shift(cost, noise_multiplier)),
    )

  def claim_at(self, cost, noise_multiplier, epsilon, samples):
    options = *samples.completed(self._default_samples), samples.tries
    # The failure probability is a lower bound of the returned delta.
    slack = cost.slack(
      epsilon, options[1], self.mean_shift(cost, noise_multiplier)
    )
    exact = slack.exact_epsilon(epsilon)
    bound = search.attempted(self.mixture(noise_multiplier), exact, *options)
    unamplified = _unamplified(noise_multiplier, exact)
    bound = _with_slack(
      bound if bound.total < unamplified.total else unamplified, slack
    )
    return dataclasses.replace(
      bound,
      epsilon=epsilon,
      slack_delta=bound.slack_delta + slack.extra_delta(epsilon),
    )

  def calibrate(self, cost, epsilon, delta, samples):
    count, failure, seed = samples.completed(self._default_samples, delta)
    options = search.Options(count, failure, seed, samples.tries * _SEARCHES)
    start = gaussian.gaussian_noise_multiplier(epsilon, delta)
    near = search.guess(
      lambda noise: (self.mixture(noise), epsilon), start, delta, options
    )
    # The slack for cut weights increases as noise decreases, and the noise is
    # not known yet. So the slack is computed for `least_noise`, somewhat below
    # the guess.
    least_noise = _BELOW_GUESS * (near or start)
    for search_index in range(_SEARCHES):
      slack = cost.slack(epsilon, delta, self.mean_shift(cost, least_noise))
      noise, bound = self._least_noise(
        slack_lib.less(epsilon, slack),
        slack.exact_delta,
        dataclasses.replace(options, seed=seed + search_index),
        near,
      )
      # PRIVACY: If the noise is below `least_noise`, its slack is larger than
      # `slack`, and epsilon of the claim would be too small. Such noise is not
      # returned; the next search has a lower `least_noise`.
      # Guard: slack_test.test_calibrated_noise_covers_its_own_slack.
      if noise >= least_noise:
        return noise, dataclasses.replace(
          _with_slack(bound, slack), epsilon=epsilon
        )
      # PRIVACY: Each search may end at a bound that is too low. If each search
      # had the whole failure probability, the returned bound would be too low
      # more often than stated. Each search draws new samples and gets an equal
      # share of the failure probability.
      # Guard: monte_carlo_test.test_searches_share_the_failure_probability.
      least_noise = noise / 2
    raise errors.value_error(
      f'samples={count}: are too few: in all {_SEARCHES} searches the noise is '
      'below the noise for which the slack was computed; use more samples'
    )

  def confirmed(self, cost, noise_multiplier, bound, delta):
    # PRIVACY: A stored bound may be for more noise or for another mixture than
    # this run has, and so be too low. The bound is computed again for the noise
    # and the mixture of this run, with samples drawn from the stored seed.
    # Guard: plan_test.test_sampled_plan_with_less_noise_is_refused.
    exact = bound.epsilon - bound.slack_epsilon
    confirmation = _unamplified(noise_multiplier, exact)
    if bound.seed is not None:
      confirmation = search.attempted(
        self.mixture(noise_multiplier),
        exact,
        bound.samples,
        bound.failure_probability,
        bound.seed,
        bound.tries,
      )
    return _with_slack(
      confirmation,
      cost.slack(exact, delta, self.mean_shift(cost, noise_multiplier)),
    )

  def _least_noise(
    self,
    epsilon: float,
    delta: float,
    options: search.Options,
    near: Optional[float],
  ) -> tuple[float, monte_carlo.Bound]:
    """Returns nearly the least noise multiplier in real numbers, and a bound.

    Args:
      epsilon: target epsilon of the run in real numbers.
      delta: target delta of the run in real numbers.
      options: options of the samples.
      near: guess of the least noise multiplier. If None, the result is the
        noise multiplier without amplification.
    """
    start = gaussian.gaussian_noise_multiplier(epsilon, delta)
    least = (
      None
      if near is None
      else search.least(
        lambda noise: (self.mixture(noise), epsilon),
        start,
        delta,
        options,
        near,
      )
    )
    return least or (start, _unamplified(start, epsilon))


def check_bands(strategy: strategies.Strategy, name: str, value: int) -> None:
  """Raises ValueError if C has more bands than `value`.

  Args:
    strategy: strategy matrix C.
    name: name of the value in the message.
    value: largest number of bands.
  """
  if strategy.bands > value:
    raise errors.value_error(
      f'{name}={value}: must be at least the bands={strategy.bands} of C; use '
      'a strategy with fewer bands'
    )


def check_nonnegative(smallest: float) -> None:
  """Raises ValueError if C has a negative entry.

  If C has a negative entry, opposite gradients in two rounds can shift the
  release farther than equal gradients. The mixture for equal gradients then no
  longer dominates the run.
  """
  # PRIVACY: The theorems on b-min-sep and balls-in-bins sampling assume that
  # all entries of C are >= 0. With a negative entry epsilon could be too small.
  # A C with a negative entry is refused.
  # Guard: balls_in_bins_test.test_negative_entries_are_refused.
  if smallest < 0:
    raise errors.value_error(
      f'strategy=entry {smallest:g}: this amplification is proved for C '
      'without negative entries only; use another strategy, or cyclic-poisson'
    )


def _unamplified(noise_multiplier: float, epsilon: float) -> monte_carlo.Bound:
  """Returns delta at `epsilon` of the run without amplification."""
  delta = gaussian.gaussian_delta(noise_multiplier, epsilon)
  return monte_carlo.Bound.certain(epsilon, delta)


def _with_slack(
  bound: monte_carlo.Bound, slack: slack_lib.Slack
) -> monte_carlo.Bound:
  """Returns the claim about released bits: the bound with slack added."""
  return dataclasses.replace(
    bound,
    epsilon=bound.epsilon + slack.epsilon,
    slack_epsilon=slack.epsilon,
    slack_delta=slack.total(bound.total) - bound.total,
  )
