"""From the accounting of real numbers to claims about released bits.

An accountant knows one strategy and one kind of cohorts. Its claim about real
numbers is `Exact`, in closed form or by convolution, or `Sampled`, a bound by
random samples of a mixture; what the arithmetic of the noise adds is the same
for all (`slack`).
"""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Callable
from typing import ClassVar, Optional

import dp_accounting

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

_SMALLEST_DELTA = 1e-300
# Searches for the least noise, each with samples of its own.
_SEARCHES = 4


class Accountant(abc.ABC):
  """The claims for one strategy and one kind of cohorts.

  Attributes:
    sensitivity: sensitivity that noise multipliers are relative to, clip = 1.
    participations: most rounds of a client that touch the same rows of C, whose
      cut weights add up.
    sampled: whether chance decides who takes part, so that all rounds are
      compared.
  """

  sampled: ClassVar[bool] = True

  def __init__(
    self,
    strategy: strategies.Strategy,
    schema: participation_lib.Participation,
    sensitivity: Optional[sensitivity_lib.Sensitivity] = None,
  ):
    """Takes C, what a client can do at worst, and the sensitivity under it.

    Noise multipliers are relative to it; None computes it.
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
    """Returns (nearly) the least epsilon at `delta`, and what it is made of."""

  @abc.abstractmethod
  def claim_at(
    self,
    cost: slack_lib.Cost,
    noise_multiplier: float,
    epsilon: float,
    samples: monte_carlo.Samples,
  ) -> monte_carlo.Bound:
    """Returns a bound of delta at `epsilon`, and what it is made of."""

  @abc.abstractmethod
  def calibrate(
    self,
    cost: slack_lib.Cost,
    epsilon: float,
    delta: float,
    samples: monte_carlo.Samples,
  ) -> tuple[float, monte_carlo.Bound]:
    """Returns (nearly) the least noise multiplier, and the claim it meets."""

  @abc.abstractmethod
  def confirmed(
    self,
    cost: slack_lib.Cost,
    noise_multiplier: float,
    bound: monte_carlo.Bound,
    delta: float,
  ) -> monte_carlo.Bound:
    """Returns a claim at `delta` of before, computed again, seed and all."""

  def rho(self, noise_multiplier: float) -> Optional[float]:
    """Returns rho of zero-concentrated DP, None where none is proved."""
    return None

  def dp_event(self, noise_multiplier: float) -> dp_accounting.DpEvent:
    """Returns the event of the run, `UnsupportedDpEvent` where none is one."""
    return dp_accounting.UnsupportedDpEvent()

  def more_noise(self, cost: slack_lib.Cost) -> float:
    """Returns how much more noise the C of cut weights needs, as a factor."""
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
    # PRIVACY: the accountant speaks of real numbers, the release has others.
    # Guards: slack_test.test_epsilon_includes_the_arithmetic and
    # test_amplified_epsilon_includes_the_arithmetic.
    epsilon = self.epsilon(noise, slack.exact_delta) + slack.epsilon
    return monte_carlo.Bound.certain(
      epsilon, slack.exact_delta, slack.epsilon, slack.delta
    )

  def claim_at(self, cost, noise_multiplier, epsilon, samples):
    noise = noise_multiplier / self.more_noise(cost)
    # Less than what is returned.
    least = max(_SMALLEST_DELTA, self.delta(noise, epsilon))
    slack = cost.slack(epsilon, least)
    delta = self.delta(noise, slack.exact_epsilon(epsilon))
    more = slack.below(epsilon) + slack.total(delta) - delta
    return monte_carlo.Bound.certain(epsilon, delta, slack.epsilon, more)

  def calibrate(self, cost, epsilon, delta, samples):
    slack = cost.slack(epsilon, delta)
    target = slack_lib.less(epsilon, slack)
    while True:
      noise = self.more_noise(cost) * self.noise_multiplier(
        target, slack.exact_delta
      )
      bound = self.claim(cost, noise, delta, samples)
      # PRIVACY: what is returned was seen to meet epsilon.
      # Guard: slack_test.test_calibrate_meets_epsilon.
      if bound.epsilon <= epsilon:
        return noise, bound
      target -= 2 * (bound.epsilon - epsilon)

  def confirmed(self, cost, noise_multiplier, bound, delta):
    return self.claim(cost, noise_multiplier, delta, monte_carlo.Samples())


class Gaussian(Exact):
  """A whole run whose schema is enforced: one Gaussian release.

  A unit of privacy may be several clients. Each moves the run by a vector of
  norm `sensitivity` at most, in rounds of its own, and all of them by the sum;
  where they come in the same rounds it is reached.
  """

  sampled = False

  def __init__(
    self,
    strategy: strategies.Strategy,
    schema: participation_lib.Participation,
    sensitivity: Optional[sensitivity_lib.Sensitivity] = None,
    clients_per_unit: int = 1,
  ):
    """Takes as many clients as a unit of privacy has at most, too."""
    super().__init__(strategy, schema, sensitivity)
    if clients_per_unit > 1:
      # PRIVACY: norms add, and not their squares. Guard:
      # guarantee_test.test_clients_of_a_unit_move_a_run_by_their_sum.
      value = clients_per_unit * self.sensitivity.value
      self.sensitivity = dataclasses.replace(
        self.sensitivity,
        value=math.nextafter(value, math.inf),
        reason=f'{clients_per_unit} clients a unit of privacy, each: '
        f'{self.sensitivity.reason}',
      )
      # PRIVACY: rounds of all of them are compared. Guard:
      # guarantee_test.test_clients_of_a_unit_have_the_slack_of_all.
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
    return dp_accounting.GaussianDpEvent(noise_multiplier)


class Logged(Gaussian):
  """A run that is over, by the rounds that its clients took."""

  def __init__(
    self,
    strategy: strategies.Strategy,
    schema: participation_lib.Participation,
    sensitivity: Optional[sensitivity_lib.Sensitivity] = None,
    clients_per_unit: int = 1,
  ):
    """Takes what `Gaussian` takes, and an observed sensitivity or None."""
    super().__init__(strategy, schema, sensitivity, clients_per_unit)
    self._observed = sensitivity is not None

  def more_noise(self, cost):
    # PRIVACY: an observed sensitivity is rounded up and has the cut weights;
    # one that is computed here from the schema lacks both. Guards:
    # accounting_cohorts_test.test_log_claims_what_its_clients_did and
    # test_log_without_a_sensitivity_is_rounded_up.
    return 1.0 if self._observed else super().more_noise(cost)


class Sampled(Accountant):
  """An accountant whose delta is bounded by samples of a mixture.

  It never exceeds that of the run without amplification, whose sensitivity is
  that of the worst participations: a mixture is no farther from Q than the
  farthest of its components.
  """

  def __init__(
    self,
    strategy: strategies.Strategy,
    schema: participation_lib.Participation,
    mixture_of: Callable[[float], importance.Mixture],
    default_samples: int,
  ):
    """Takes P as a function of stddev(z) over clip, and N if none is given."""
    super().__init__(strategy, schema)
    self._mixture_of, self._default_samples = mixture_of, default_samples

  def mixture(self, noise_multiplier: float) -> importance.Mixture:
    """Returns P."""
    return self._mixture_of(noise_multiplier * self.sensitivity.value)

  def moved(self, cost: slack_lib.Cost, noise_multiplier: float) -> float:
    """Returns how far cut weights move means, L2, in deviations of z."""
    return (self.more_noise(cost) - 1) / noise_multiplier

  def claim(self, cost, noise_multiplier, delta, samples):
    exact = cost.least_delta(delta)
    options = *samples.completed(self._default_samples, exact), samples.tries
    start = gaussian.gaussian_epsilon(noise_multiplier, exact)
    bound = _unamplified(noise_multiplier, start)
    if start > 0:
      mixture = self.mixture(noise_multiplier)
      amplified = search.least(
        lambda epsilon: (mixture, epsilon),
        start,
        exact,
        *options,
      )
      bound = bound if amplified is None else amplified[1]
    # PRIVACY: as in `Exact`; the bound of delta leaves room for it.
    # Guard: slack_test.test_amplified_epsilon_includes_the_arithmetic.
    return _with_slack(
      bound,
      cost.slack(bound.epsilon, delta, self.moved(cost, noise_multiplier)),
    )

  def claim_at(self, cost, noise_multiplier, epsilon, samples):
    options = *samples.completed(self._default_samples), samples.tries
    # A total that is less than what is claimed.
    slack = cost.slack(epsilon, options[1], self.moved(cost, noise_multiplier))
    exact = slack.exact_epsilon(epsilon)
    bound = search.attempted(self.mixture(noise_multiplier), exact, *options)
    unamplified = _unamplified(noise_multiplier, exact)
    bound = _with_slack(
      bound if bound.total < unamplified.total else unamplified, slack
    )
    return dataclasses.replace(
      bound,
      epsilon=epsilon,
      slack_delta=bound.slack_delta + slack.below(epsilon),
    )

  def calibrate(self, cost, epsilon, delta, samples):
    # Cut weights cost more where there is less noise, which is not known yet.
    least_noise = gaussian.gaussian_noise_multiplier(epsilon, delta) / 4
    count, failure, seed = samples.completed(self._default_samples, delta)
    tries = samples.tries * _SEARCHES
    for search_index in range(_SEARCHES):
      slack = cost.slack(epsilon, delta, self.moved(cost, least_noise))
      noise, bound = self._least_noise(
        slack_lib.less(epsilon, slack),
        slack.exact_delta,
        (count, failure, seed + search_index, tries),
      )
      # PRIVACY: less noise has more slack than more.
      # Guard: slack_test.test_calibrated_noise_covers_its_own_slack.
      if noise >= least_noise:
        return noise, dataclasses.replace(
          _with_slack(bound, slack), epsilon=epsilon
        )
      # PRIVACY: other samples, since these chose the slack, and a bound that
      # fails may end the search: each of the few searches has a share of the
      # failure probability. Guard:
      # monte_carlo_test.test_searches_share_the_failure_probability.
      least_noise = noise / 2
    raise errors.value_error(
      f'samples={count}: are too few: none of {_SEARCHES} searches found as '
      'much noise as its slack was for; use more of them'
    )

  def confirmed(self, cost, noise_multiplier, bound, delta):
    # PRIVACY: another noise, or what it was not sampled for, has another bound.
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
      confirmation, cost.slack(exact, delta, self.moved(cost, noise_multiplier))
    )

  def _least_noise(
    self, epsilon: float, delta: float, options: tuple[int, float, int, int]
  ) -> tuple[float, monte_carlo.Bound]:
    """Returns nearly the least noise multiplier of the run in real numbers."""
    start = gaussian.gaussian_noise_multiplier(epsilon, delta)
    least = search.least(
      lambda noise: (self.mixture(noise), epsilon), start, delta, *options
    )
    return (start, _unamplified(start, epsilon)) if least is None else least


def check_bands(strategy: strategies.Strategy, name: str, value: int) -> None:
  """Raises ValueError if C has more bands than a value of that name."""
  if strategy.bands > value:
    raise errors.value_error(
      f'{name}={value}: must be at least the bands={strategy.bands} of C; use '
      'a strategy with fewer bands'
    )


def check_nonnegative(smallest: float) -> None:
  """Raises ValueError if C has a negative entry.

  With one, gradients of opposite directions can tell more participations apart
  than equal ones do, and the mixture of scalars no longer dominates the run.
  """
  # PRIVACY: the theorems assume C >= 0.
  # Guard: balls_in_bins_test.test_negative_entries_are_refused.
  if smallest < 0:
    raise errors.value_error(
      f'strategy=entry {smallest:g}: this amplification is proved for C '
      'without negative entries only; use another strategy, or cyclic-poisson'
    )


def _unamplified(noise_multiplier: float, epsilon: float) -> monte_carlo.Bound:
  """Returns the bound without amplification."""
  delta = gaussian.gaussian_delta(noise_multiplier, epsilon)
  return monte_carlo.Bound.certain(epsilon, delta)


def _with_slack(
  bound: monte_carlo.Bound, slack: slack_lib.Slack
) -> monte_carlo.Bound:
  """Returns the claim of the released bits."""
  return dataclasses.replace(
    bound,
    epsilon=bound.epsilon + slack.epsilon,
    slack_epsilon=slack.epsilon,
    slack_delta=slack.total(bound.total) - bound.total,
  )
