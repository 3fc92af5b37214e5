"""The privacy guarantee of a run, and the least noise that gives it."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Optional

import attrs

from tff_bandmf import _checks, _files, errors, strategies
from tff_bandmf import participation as participation_lib
from tff_bandmf import sensitivity as sensitivity_lib
from tff_bandmf.accounting.kinds import known_kinds, logged_cohorts
from tff_bandmf.accounting.methods import accountants, gaussian, monte_carlo
from tff_bandmf.strategies import base

if TYPE_CHECKING:
  import dp_accounting

SAMPLES = monte_carlo.Samples()
# Largest relative difference, by rounding, of two computations of one claim.
_SAME = 1e-12


def _clients_per_unit(value: int) -> int:
  return _checks.count(
    'clients_per_unit', value, 'give the devices of a person'
  )


# The class has no slots: `functools.cached_property` needs a `__dict__`.
@attrs.frozen(slots=False)
class Guarantee:
  """The guarantee of a whole run.

    z_stddev = noise_multiplier * sensitivity * clip

  The guarantee is about the release of the noised sums of all rounds, for one
  client or unit of privacy. It assumes that each client's contribution to a
  round has L2 norm at most the clipping norm, and one of these conditions:

  - The schema of `cohorts` is enforced.
  - Clients are drawn by exactly the rule of `cohorts` with secret randomness,
    and nobody who sees the release knows the cohorts.
  - The cohorts are read from a log, and participation did not depend on private
    data.

  Attributes:
    strategy: strategy matrix C.
    cohorts: rule of participation, enforced or sampled, or cohorts of a log.
    noise_multiplier: stddev(z) / (clip * sensitivity), >= 0; 0 means no noise
      and no guarantee.
    samples: options for claims that need random samples.
    clients_per_unit: largest number of clients of one unit of privacy, such as
      the devices of a person. The schema limits each client and not the unit.

  Raises:
    ValueError: `noise_multiplier` is negative or not finite, or no guarantee is
      proved for the strategy and the cohorts.
  """

  strategy: strategies.Strategy
  cohorts: participation_lib.Cohorts
  noise_multiplier: float = attrs.field()
  samples: monte_carlo.Samples = attrs.field(default=SAMPLES, kw_only=True)
  clients_per_unit: int = attrs.field(
    default=1, kw_only=True, converter=_clients_per_unit
  )

  @noise_multiplier.validator
  def _check_noise_multiplier(self, attribute, value):
    # PRIVACY: A noise multiplier that is infinite or not a number would give an
    # epsilon for noise that no run adds. It is refused.
    # Guard: guarantee_test.test_guarantee_refuses_noise_that_is_none.
    _checks.nonnegative('noise_multiplier', value, '0 adds no noise')

  def __attrs_post_init__(self):
    base.check_strategy(self.strategy)
    if isinstance(self.cohorts, participation_lib.Budget):
      # PRIVACY: A budget may have costs that were computed for another C than
      # `strategy`. If these costs are smaller than the costs under `strategy`,
      # a client could exceed its budget. The costs are computed for `strategy`.
      # Guard: budget_test.test_budget_of_another_matrix_is_computed_again.
      completed = sensitivity_lib.budget.completed(self.cohorts, self.strategy)
      object.__setattr__(self, 'cohorts', completed)
    # Raises an error if no claim is proved for the strategy and the cohorts.
    _ = self.accountant

  @functools.cached_property
  def accountant(self) -> accountants.Accountant:
    """The accountant of the run in real numbers."""
    return known_kinds.accountant(
      self.strategy, self.cohorts, self.clients_per_unit
    )

  @property
  def sensitivity(self) -> sensitivity_lib.Sensitivity:
    """The sensitivity of C for one unit of privacy, clip = 1."""
    return self.accountant.sensitivity

  # PRIVACY: If the standard deviation of z were the noise multiplier, a run
  # with a sensitivity above 1 would have too little noise. The multiplier is
  # multiplied by the sensitivity.
  # Guard: guarantee_test.test_guarantee_names_both_noise_multipliers.
  @property
  def z_stddev_per_clip(self) -> float:
    """Standard deviation of z for clip = 1; multiply by the clipping norm."""
    return self.noise_multiplier * self.sensitivity.value

  @property
  def rho(self) -> Optional[float]:
    """rho of zero-concentrated DP; None if no rho is proved.

    The run may stop, so it is not exactly rho-zCDP. On every data set, it is
    within total variation tau = 4e-39 of a mechanism that is rho-zCDP.
    """
    if not self.noise_multiplier:
      return None
    # PRIVACY: The sensitivity has rounding errors, so rho could be too small.
    # The noise multiplier is divided by a bound of these errors.
    # Guard: accounting_cohorts_test.test_rounding_errors_raise_epsilon.
    return self.accountant.rho(self.exact_noise)

  @property
  def exact_noise(self) -> float:
    """The noise multiplier for the largest value of the true sensitivity."""
    return self.accountant.exact_noise(self.noise_multiplier)

  @functools.cached_property
  def _claims(self) -> dict[float, monte_carlo.Bound]:
    """Claims by delta; with new samples, a claim would have a new epsilon."""
    return {}

  def claim(self, delta: float) -> monte_carlo.Bound:
    """Returns the claim with the least epsilon at `delta`.

    The claim is about the released bits. Its epsilon is infinite if no epsilon
    is proved at `delta`.

    Raises:
      ValueError: a value is out of range, or the run has no noise.
    """
    gaussian.check_delta(delta)
    if delta not in self._claims:
      noise = self.noise_multiplier
      self._claims[delta] = self.accountant.claim(noise, delta, self.samples)
    return self._claims[delta]

  def claim_at(self, epsilon: float) -> monte_carlo.Bound:
    """Returns the claim with the least delta at `epsilon`.

    Raises:
      ValueError: a value is out of range, or the run has no noise.
    """
    noise = self.noise_multiplier
    return self.accountant.claim_at(noise, epsilon, self.samples)

  def confirm(self, bound: monte_carlo.Bound, delta: float) -> None:
    """Computes an earlier claim again, and stores it; `claim` then returns it.

    If the earlier claim has a seed, the same samples are drawn from this seed.

    Args:
      bound: the earlier claim.
      delta: delta of the earlier claim.

    Raises:
      ValueError: the new epsilon is larger than the earlier epsilon, or the new
        delta is larger than `delta`.
    """
    claim = self.accountant.confirmed(self.noise_multiplier, bound, delta)
    # PRIVACY: A file may have a claim that is too small for the noise. Epsilon
    # and delta are computed again. If one of them exceeds the claim, the claim
    # is refused.
    # Guard: accounting_cohorts_test.test_claim_without_its_noise_is_refused.
    if claim.epsilon > bound.epsilon * (1 + _SAME) or claim.total > delta:
      raise errors.value_error(
        f'epsilon={bound.epsilon}: the noise gives epsilon {claim.epsilon} at '
        f'delta {claim.total}; calibrate the noise again'
      )
    self._claims[delta] = claim

  def for_cohorts(self, cohorts: participation_lib.Cohorts) -> Guarantee:
    """Returns the guarantee of the same noise for other cohorts.

    PRIVACY: If the sensitivity of C is larger under `cohorts` than under
    `self.cohorts`, epsilon of the old noise multiplier would be too small. The
    new noise multiplier is computed from the unchanged standard deviation of z.
    Guard: report_test.test_closer_participation_leads_and_raises_epsilon.
    """
    other = attrs.evolve(self, cohorts=cohorts)
    noise = self.z_stddev_per_clip / other.sensitivity.value
    return attrs.evolve(other, noise_multiplier=noise)

  def for_first_rounds(self, rounds: int) -> Guarantee:
    """Returns the guarantee of the same noise for the first rounds of a run.

    **Formal guarantee.** Assumption: the number t of these rounds was fixed
    before the first round. Statement: the releases of the first t rounds have
    the guarantee of the result. Proof: C is lower triangular, so the first t
    rows of C^-1 (C G + Z) are a function of the first t rows of C G + Z. With a
    min_sep b, a client takes part in at most m = min(k, ceil(t / b)) of these
    rounds, which are at least b apart. So it moves the t rows by at most
    sens(C; b, m), the sensitivity of all rows. Under `Single`, a `Budget` and
    sampled cohorts, nothing is proved for fewer rounds, and the result is this
    guarantee: the first t rounds are a function of all rounds.

    If the number T of rounds depends on releases, the run is another mechanism:
    the program can stop at the worst moment, and delta at the epsilon of T
    rounds exceeds the delta of every fixed number of rounds. The releases of T
    rounds are a function of the releases of the largest possible T, so only the
    guarantee of the largest possible T holds.

    Args:
      rounds: t, >= 1.
    """
    schema, whole = self.cohorts.schema, self.strategy.rounds
    if (
      not self.cohorts.is_enforced
      or schema.min_sep is None
      or isinstance(schema, participation_lib.Budget)
    ):
      return self
    # PRIVACY: A client may have taken part as often as the schema allows. An
    # epsilon for fewer participations would be too small. `participations`
    # returns the largest number that the schema allows in these rounds.
    # Guard: plan_test.test_spent_is_at_least_that_of_a_run_so_short.
    most = schema.participations(min(rounds, whole))
    if most == schema.participations(whole) and not schema.evenly_spaced:
      return self
    return self.for_cohorts(participation_lib.MinSep(schema.min_sep, most))

  def epsilon(self, delta: float) -> float:
    """Returns epsilon at `delta`, rounded up; infinite if none is proved.

    Raises:
      ValueError: `delta` is out of range.
    """
    return self.claim(delta).epsilon if self.noise_multiplier else math.inf

  def proved_epsilon(self, delta: Optional[float]) -> Optional[float]:
    """Returns epsilon at `delta`; None if none is proved or `delta` is None."""
    epsilon = math.inf if delta is None else self.epsilon(delta)
    return epsilon if math.isfinite(epsilon) else None

  def delta(self, epsilon: float) -> float:
    """Returns delta at `epsilon`, rounded up; 1 without noise.

    Raises:
      ValueError: `epsilon` is out of range.
    """
    return self.claim_at(epsilon).total if self.noise_multiplier else 1.0

  def for_observed(self, observed: sensitivity_lib.Observed) -> Guarantee:
    """Returns the guarantee of the same noise for the rounds in a log.

    Suppose that the schema of this guarantee is enforced, does not assume
    evenly spaced rounds, and is satisfied by the log. Then epsilon of the
    result is at most epsilon of this guarantee.

    Args:
      observed: statistics of the log, with the sensitivity of the strategy.
    """
    logged = self.for_cohorts(logged_cohorts.Logged(observed))
    schema = self.cohorts.schema
    # PRIVACY: The statistics of a log do not show whether rounds are evenly
    # spaced, so a claim that assumes evenly spaced rounds may be false for the
    # log. `self` is returned only if its schema does not assume such rounds.
    # Guard: guarantee_test.test_log_of_uneven_epochs_is_not_what_was_planned.
    if (
      self.cohorts.is_enforced
      and not schema.evenly_spaced
      and observed.satisfies(schema, self.strategy.rounds)
      and logged.exact_noise < self.exact_noise
    ):
      # Both guarantees hold, and `self` has the smaller epsilon.
      return self
    return logged

  def dp_event(self) -> dp_accounting.DpEvent:
    """Returns the event of the whole run, for a dp-accounting accountant.

    The event describes a run that never stops. If dp-accounting has no event
    for the run, the result is an `UnsupportedDpEvent`, which every accountant
    refuses.
    """
    if not self.noise_multiplier:
      import dp_accounting

      return dp_accounting.NonPrivateDpEvent()
    return self.accountant.dp_event(self.exact_noise)

  def to_dict(self) -> _files.JsonObject:
    """Returns the numbers of the guarantee under their JSON keys."""
    rounds, schema = self.strategy.rounds, self.cohorts.schema
    return {
      'family': self.strategy.family,
      'rounds': rounds,
      'bands': self.strategy.bands,
      **self.cohorts.to_dict(),
      'participations': schema.participations(rounds),
      'sensitivity': self.sensitivity.value,
      'sensitivity_method': self.sensitivity.method,
      'sensitivity_reason': self.sensitivity.reason,
      'noise_multiplier': self.noise_multiplier,
      'z_stddev_per_clip': self.z_stddev_per_clip,
      'clients_per_unit': self.clients_per_unit,
      'adjacency': self.cohorts.adjacency,
    }


def calibrate(
  strategy: strategies.Strategy,
  cohorts: participation_lib.Cohorts,
  *,
  epsilon: float,
  delta: float,
  samples: monte_carlo.Samples = SAMPLES,
  clients_per_unit: int = 1,
) -> Guarantee:
  """Returns the guarantee with the least noise that meets (epsilon, delta).

  If delta is bounded by random samples, the noise is only nearly the least.

  **Formal guarantee.** Assumptions: the run meets the conditions of `Guarantee`
  and of docs/reference/arithmetic.md. Statement: `claim(delta).epsilon` of the
  result is at most `epsilon`, and the released bits of the run are
  (epsilon, delta)-DP for one unit of privacy. If delta is bounded by random
  samples, this holds except with probability `samples.failure_probability` over
  the samples, and `claim(delta)` is the bound that the search confirmed.
  Source: the theorems of docs/reference/arithmetic.md for the released bits,
  the modules of `accounting.kinds` and `accounting.methods` for real numbers.

  Args:
    strategy: strategy matrix C.
    cohorts: enforced participation schema, or kind of sampling.
    epsilon: target epsilon of the whole run, > 0, at most 70 at a `delta` of
      1e-6.
    delta: target delta of the whole run, in (0, 1).
    samples: options for claims that need random samples. With more samples, the
      noise is smaller.
    clients_per_unit: largest number of clients of one unit of privacy, >= 1.

  Raises:
    ValueError: a value is out of range, or no guarantee is proved for the
      strategy and the cohorts.
  """
  gaussian.check_epsilon(epsilon)
  gaussian.check_delta(delta)
  guarantee = Guarantee(
    strategy, cohorts, 1.0, samples=samples, clients_per_unit=clients_per_unit
  )
  noise, claim = guarantee.accountant.calibrate(epsilon, delta, samples)
  guarantee = attrs.evolve(guarantee, noise_multiplier=noise)
  guarantee._claims[delta] = claim
  return guarantee
