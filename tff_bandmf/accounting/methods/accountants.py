"""Accountants compute claims about the releases of a run.

A claim is an epsilon and a delta that hold for these releases. An accountant is
for one strategy and its cohorts. The releases are a function of a mechanism in
real numbers, whose delta or epsilon the accountant bounds. An `Exact`
accountant uses a closed form or a convolution; a `MonteCarlo` accountant uses
random samples of a mixture. The module `stop_probability` adds to delta the
probability that a run ends early.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Optional

from tff_bandmf import errors, strategies
from tff_bandmf import participation as participation_lib
from tff_bandmf import sensitivity as sensitivity_lib
from tff_bandmf.accounting.methods import (
  gaussian,
  importance,
  monte_carlo,
  search,
)
from tff_bandmf.accounting.methods import stop_probability as stops

if TYPE_CHECKING:
  import dp_accounting

# Largest number of searches for the least noise; each search draws new samples.
_SEARCHES = 4
# A search first computes `MonteCarlo._growth`, the effect of rounding errors,
# at this fraction of the guessed noise multiplier.
_BELOW_GUESS = 0.9
# Numbers with at most this relative difference count as equal.
_EQUAL = 1e-9


class Accountant(abc.ABC):
  """The claims for one strategy and one kind of cohorts.

  Attributes:
    sensitivity: sensitivity of C for clip = 1; a noise multiplier is
      stddev(z) / (clip * sensitivity).
    error: bound of the relative error of `sensitivity`, from rounding; 0 if
      `sensitivity` is rounded up.
  """

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
      sensitivity: sensitivity of C for clip = 1; None for the sensitivity under
        `schema`.
    """
    self.sensitivity = sensitivity or sensitivity_lib.sensitivity(
      strategy, schema
    )
    # PRIVACY: The noise is made with the exact C, which may have a larger
    # sensitivity than C in float64. Noise calibrated for the float64 C would
    # then be too small. `exact_noise` is the noise multiplier for the larger
    # sensitivity.
    # Guard: accounting_cohorts_test.test_rounding_errors_raise_epsilon.
    self.error = sensitivity_lib.rounding(
      strategy, schema.participations(strategy.rounds)
    )

  # PRIVACY: The sensitivity has rounding errors, so the computed privacy
  # losses, and epsilon, could be too small. The noise multiplier is divided by
  # a bound of these errors.
  # Guard: accounting_cohorts_test.test_rounding_errors_raise_epsilon.
  def exact_noise(self, noise_multiplier: float) -> float:
    """Returns the noise multiplier for the largest value of the sensitivity.

    Rounding errors are bounded, so the true sensitivity is at most this value.
    """
    return noise_multiplier / (1 + self.error)

  @abc.abstractmethod
  def claim(
    self, noise_multiplier: float, delta: float, samples: monte_carlo.Samples
  ) -> monte_carlo.Bound:
    """Returns the claim with the least epsilon at `delta`.

    The epsilon is only nearly the least if delta is bounded by random samples.
    """

  @abc.abstractmethod
  def claim_at(
    self, noise_multiplier: float, epsilon: float, samples: monte_carlo.Samples
  ) -> monte_carlo.Bound:
    """Returns the claim with the least delta at `epsilon`.

    The delta is only nearly the least if it is bounded by random samples.
    """

  @abc.abstractmethod
  def calibrate(
    self, epsilon: float, delta: float, samples: monte_carlo.Samples
  ) -> tuple[float, monte_carlo.Bound]:
    """Returns the least noise multiplier for (epsilon, delta), and its claim.

    The noise multiplier is only nearly the least if delta is bounded by random
    samples.
    """

  @abc.abstractmethod
  def confirmed(
    self, noise_multiplier: float, bound: monte_carlo.Bound, delta: float
  ) -> monte_carlo.Bound:
    """Computes an earlier claim at `delta` again.

    Args:
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

  def claim(self, noise_multiplier, delta, samples):
    noise = self.exact_noise(noise_multiplier)
    # PRIVACY: An event that depends on the noise may stop the run, and the
    # probability of this event is a part of `delta`. Epsilon at the whole
    # `delta` would be too small, so epsilon is computed at `delta` minus this
    # part.
    # Guard: stops_test.test_delta_of_a_claim_covers_the_stops.
    for share in stops.SHARES:
      epsilon = self.epsilon(noise, (1 - share) * delta)
      if stops.suffices(share, epsilon, delta):
        return monte_carlo.Bound.certain(epsilon, delta)
    return monte_carlo.UNPROVED

  def claim_at(self, noise_multiplier, epsilon, samples):
    delta = self.delta(self.exact_noise(noise_multiplier), epsilon)
    # PRIVACY: The run may stop. Without a term for this event, delta would be
    # too small. `stops.delta` is this term.
    # Guard: stops_test.test_delta_at_an_epsilon_includes_the_stops.
    return monte_carlo.Bound.certain(epsilon, delta + stops.delta(epsilon))

  def calibrate(self, epsilon, delta, samples):
    noise = self.noise_multiplier(epsilon, stops.remaining(epsilon, delta))
    noise *= 1 + self.error
    return noise, self.claim(noise, delta, samples)

  def confirmed(self, noise_multiplier, bound, delta):
    return self.claim(noise_multiplier, delta, monte_carlo.Samples())


class Gaussian(Exact):
  """A whole run without amplification: one Gaussian release.

  This accountant applies if the run enforces a schema, or if a log has the
  rounds of the clients.

  A unit of privacy may be several clients. Each client shifts the mean of the
  release by a vector whose norm is at most the sensitivity. The clients of a
  unit shift the mean by at most the sum of these norms, and by exactly this sum
  if their vectors have the same direction.
  """

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
      schema: schema of each client, or the strictest schema that a log
        satisfies.
      sensitivity: sensitivity of C for one client and clip = 1, observed in a
        log and rounded up; None for the sensitivity under `schema`.
      clients_per_unit: largest number of clients of one unit of privacy.
    """
    # PRIVACY: A log can have more participations than the schema of the plan
    # allows. If the observed sensitivity were ignored, epsilon would be too
    # small.
    # Guard: accounting_cohorts_test.test_log_claims_what_its_clients_did.
    super().__init__(strategy, schema, sensitivity=sensitivity)
    # PRIVACY: A sensitivity computed for the schema has rounding errors, so
    # epsilon could be too small. A bound of these errors is added, but not to
    # an observed sensitivity, which is already rounded up.
    # Guards: accounting_cohorts_test.test_log_claims_what_its_clients_did and
    # test_log_without_a_sensitivity_is_rounded_up.
    if sensitivity is not None:
      self.error = 0.0
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


class MonteCarlo(Accountant):
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

  def _problem(self, epsilon: float) -> search.Problem:
    """Returns a function from a noise multiplier to (mixture, epsilon)."""
    return lambda noise: (self.mixture(noise), epsilon)

  def _growth(self, noise_multiplier: float) -> float:
    """Returns a bound of the log ratio of two Gaussians with nearby means.

    The mixture has the means of C in float64. The noise is made with the exact
    C, which differs from the float64 C. So the true means differ from the means
    of the mixture by at most eta = `error` / `noise_multiplier` standard
    deviations. The log ratio exceeds eta^2 / 2 + eta x with probability
    Phi(-x). The code sets x = `stops.MEANS`, and `stops.TAU` includes this
    probability.
    """
    eta = self.error / noise_multiplier
    return eta * (eta / 2 + stops.MEANS)

  def claim(self, noise_multiplier, delta, samples):
    growth = self._growth(noise_multiplier)
    start = gaussian.gaussian_epsilon(noise_multiplier, delta / 2)
    if not math.isfinite(start):
      return monte_carlo.UNPROVED
    share = next(
      (each for each in stops.SHARES if stops.suffices(each, start, delta)),
      stops.SHARES[-1],
    )
    exact = (1 - share) * delta * math.exp(-growth)
    options = samples.completed(self._default_samples, exact)
    start = gaussian.gaussian_epsilon(noise_multiplier, exact)
    bound = _unamplified(noise_multiplier, start)
    if start > 0:
      mixture = self.mixture(noise_multiplier)
      amplified = search.least(
        lambda epsilon: (mixture, epsilon), start, exact, options
      )
      if amplified is None:
        _notice_unamplified(mixture, options.samples)
      else:
        # PRIVACY: An epsilon from pilot samples has no proof. The bound comes
        # from new samples.
        # Guard: balls_in_bins_test.test_calibrated_noise_meets_the_true_delta.
        bound = amplified[1]
    bound = _of_program(bound, growth)
    return bound if bound.total <= delta else monte_carlo.UNPROVED

  def claim_at(self, noise_multiplier, epsilon, samples):
    growth = self._growth(noise_multiplier)
    exact = max(0.0, epsilon - growth)
    options = samples.completed(self._default_samples)
    mixture = self.mixture(noise_multiplier)
    bound = monte_carlo.delta_bound(mixture, exact, options)
    unamplified = _unamplified(noise_multiplier, exact)
    bound = min(unamplified, bound, key=lambda each: each.total)
    bound = _of_program(bound, growth)
    # For the laws P and P' of the run on two neighbours,
    # P <= e^growth P' + delta <= e^epsilon P' + (e^growth - e^epsilon) + delta.
    # PRIVACY: Rounding errors move the means of the noise. If epsilon is less
    # than `growth`, the part of epsilon that covers these errors, delta would
    # be too small. The difference e^growth - e^epsilon is added to delta.
    # Guard:
    # accounting_cohorts_test.test_moved_means_raise_an_amplified_epsilon.
    more = max(0.0, _exp(growth) - _exp(epsilon))
    return dataclasses.replace(bound, epsilon=epsilon, upper=bound.upper + more)

  def calibrate(self, epsilon, delta, samples):
    options = samples.completed(self._default_samples, delta)
    # PRIVACY: Each search may end at a bound that is too low. If each search
    # had the whole failure probability, the returned bound would be too low
    # more often than stated. Each search draws new samples and gets an equal
    # share of the failure probability.
    # Guard: monte_carlo_test.test_searches_share_the_failure_probability.
    options = dataclasses.replace(options, tries=samples.tries * _SEARCHES)
    remaining = stops.remaining(epsilon, delta)
    start = gaussian.gaussian_noise_multiplier(epsilon, delta)
    near = (
      samples.near / self.sensitivity.value
      if samples.near
      else search.guess(self._problem(epsilon), start, delta, options)
    )
    # The growth increases as noise decreases, and the noise is not known yet.
    # So the growth is computed for `least_noise`, somewhat below the guess.
    least_noise = _BELOW_GUESS * (near or start)
    for search_index in range(_SEARCHES):
      growth = self._growth(least_noise)
      if growth >= epsilon:
        break
      # The run in real numbers must meet this epsilon and this delta.
      exact, ideal = epsilon - growth, remaining * math.exp(-growth)
      noise = gaussian.gaussian_noise_multiplier(exact, ideal)
      least = None
      if near is not None:
        seeded = dataclasses.replace(options, seed=options.seed + search_index)
        problem = self._problem(exact)
        least = search.least(problem, noise, ideal, seeded, near)
      if least is None:
        _notice_unamplified(self.mixture(noise), options.samples)
        least = noise, _unamplified(noise, exact)
      noise, bound = least
      # PRIVACY: If the noise is below `least_noise`, its growth is larger than
      # `growth`, and epsilon of the claim would be too small. Such noise is not
      # returned; the next search has a lower `least_noise`.
      # Guard: accounting_cohorts_test.test_calibrated_noise_has_its_own_growth.
      if noise >= least_noise:
        claim = _of_program(bound, growth)
        return noise, dataclasses.replace(claim, epsilon=epsilon)
      least_noise = noise / 2
    raise errors.value_error(
      f'epsilon={epsilon}: is not reached within the rounding errors of C, '
      f'{self.error:.3g} of its sensitivity; use a better conditioned C, or '
      'more samples'
    )

  def confirmed(self, noise_multiplier, bound, delta):
    # PRIVACY: A stored bound of another run, with more noise or with another
    # mixture, may be too low for this run. The bound is computed again for the
    # noise and the mixture of this run, with samples drawn from the stored
    # seed.
    # Guard: sampled_plan_test.test_sampled_plan_with_less_noise_is_refused.
    growth = self._growth(noise_multiplier)
    exact = max(0.0, bound.epsilon - growth)
    confirmation = _unamplified(noise_multiplier, exact)
    if bound.seed is not None:
      options = monte_carlo.Options(
        bound.samples, bound.failure_probability, bound.seed, bound.tries
      )
      mixture = self.mixture(noise_multiplier)
      confirmation = monte_carlo.delta_bound(mixture, exact, options)
    return _of_program(confirmation, growth)


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


def _notice_unamplified(mixture: importance.Mixture, samples: int) -> None:
  """Writes a notice that the claim is not amplified.

  If the means of P are equal, P is Gaussian, sampling cannot amplify, and no
  notice is written. The means are equal if the mean of their squares is the
  square of their mean.
  """
  if mixture.mean_square > mixture.square_mean * (1 + _EQUAL):
    errors.notice(
      f'samples={samples}: do not prove that sampling amplifies, so epsilon '
      'and noise are those without amplification; use more samples'
    )


def _of_program(bound: monte_carlo.Bound, growth: float) -> monte_carlo.Bound:
  """Converts a bound for the ideal mixture into a claim about the real run.

  The claim includes rounding errors and stops.

  Args:
    bound: bound of delta for the means of C in float64.
    growth: result of `MonteCarlo._growth`.
  """
  # PRIVACY: The bound is for means with rounding errors, and for a run that
  # never stops. So epsilon and delta would be too small for the real run. The
  # growth is added to epsilon. Delta is multiplied by e^growth, and the
  # probability of stops is added to delta.
  # Guard: accounting_cohorts_test.test_moved_means_raise_an_amplified_epsilon.
  epsilon = bound.epsilon + growth
  upper = bound.upper * _exp(growth) + stops.delta(epsilon)
  return dataclasses.replace(bound, epsilon=epsilon, upper=min(1.0, upper))


def _exp(value: float) -> float:
  """Returns e^`value`, capped at e^700.

  At a growth above 700 the claim has delta 1, so the cap changes no claim.
  """
  return math.exp(min(value, 700.0))
