"""The claim of a run: the planned claim, corrected by observed participation.

| symbol | name here            | meaning                                    |
|--------|----------------------|--------------------------------------------|
| C      | `strategy`           | the matrix in the file `plan.json`         |
| b      | `min_sep`            | least distance of two rounds of a client   |
| k      | `max_participations` | maximum number of rounds of a client       |
| z      | `z_stddev`           | independent Gaussian noise of this         |
|        |                      | standard deviation; the run adds C^-1 z    |
| clip   | `plan.clip`          | largest L2 norm of an update               |
| sens   | `sensitivity`        | sensitivity of C to a client's rounds      |

  noise_multiplier = z_stddev / (clip * sens(C; b, k))

The noise of a finished run is fixed. So if clients took part more often or in
closer rounds than planned, the sensitivity is larger, the noise multiplier
smaller, and epsilon larger than planned. If a run stopped early, the claim is
for a number of rounds that was fixed before the first round: in the ledger,
every round states this number. If the ledger has no such number, the claim is
for all planned rounds.

For sampled cohorts, this noise multiplier gives the guarantee without
amplification. The report also makes the amplified claim if a sampling key drew
the cohorts. The report omits the amplified claim if the ledger has other
cohorts than the key gives, or if a sum lacks drawn clients.
"""

from __future__ import annotations

import dataclasses
import math
import pathlib
from typing import Optional

from tff_bandmf import _files, accounting, clipping_norm, ledger
from tff_bandmf import participation as participation_lib
from tff_bandmf.plan import plan as plan_lib
from tff_bandmf.report import consistency
from tff_bandmf.run_files import run_json

# Delta of the claim if the plan has no delta.
_DEFAULT_DELTA = 1e-6
# Text for each value of `Counts.drawn`, the check of sampled cohorts.
DRAWN = {
  True: 'as the sampling key gives them',
  False: 'not as the sampling key gives them',
  None: 'not checked',
}
# Keys copied from `Claim.claimed`, the guarantee that the report states first.
_LEADING = ('sensitivity', 'sensitivity_method', 'sensitivity_reason')


@dataclasses.dataclass(frozen=True)
class Claim:
  """The claim of a run.

  Attributes:
    plan: plan of the run.
    planned: guarantee for the planned schema or, for sampled cohorts, for the
      schema that every draw satisfies.
    most_rounds: number of rounds that the claim covers, fixed before the first
      round, >= 1.
    unamplified: guarantee that may be claimed without amplification, with the
      noise of `planned`. It is for the planned participation in `most_rounds`
      rounds or, if `violated`, for planned and observed participation.
    amplified: guarantee for the sampled cohorts; None if cohorts are enforced,
      or if cohorts in the ledger have only the guarantee `unamplified`.
    observed_guarantee: guarantee for exactly the participation in the ledger or
      log; None if no client took part.
    observed: participation in the run's ledger or, if training ran outside this
      library, in its participation log.
    violated: whether clients took part more often, or closer together, than
      planned.
    files_match_ledger: whether the ledger's chain has the digest of the run's
      files, see `RunDetails.enforced_digest`, for every round that started.
  """

  plan: plan_lib.Plan
  planned: accounting.Guarantee
  most_rounds: int
  unamplified: accounting.Guarantee
  amplified: Optional[accounting.Guarantee]
  observed_guarantee: Optional[accounting.Guarantee]
  observed: ledger.Counts
  violated: bool
  files_match_ledger: bool

  @property
  def delta(self) -> float:
    """The delta of the claim, in (0, 1)."""
    return self.plan.delta or _DEFAULT_DELTA

  @property
  def adaptive_clip(self) -> Optional[_files.JsonObject]:
    """The rule of an adaptive clip as JSON; None for a constant clip."""
    clip = self.plan.l2_norm_clip
    if not isinstance(clip, clipping_norm.AdaptiveClip):
      return None
    return dict(clipping_norm.to_json(clip))

  @property
  def enforced(self) -> Optional[_files.JsonObject]:
    """The limits that the run enforces on the rounds of each client.

    The value is None if training ran outside this library, without a ledger.
    """
    if self.observed.head is None:
      return None
    schema, budget = self.planned.cohorts.schema, self.budget
    min_sep, most = schema.min_sep, schema.max_participations
    if budget is not None:
      min_sep, most = budget.apart, budget.known_costs.most
    return {
      'min_sep': min_sep,
      'max_participations': most,
      'by': 'the run: it draws cohorts, or admits clients'
      if self.plan.sampled is None
      else 'the run: it samples cohorts with a secret key',
    }

  @property
  def budget(self) -> Optional[participation_lib.Budget]:
    """The planned budget of a client; None if the schema is not a `Budget`."""
    schema = self.planned.cohorts.schema
    return schema if isinstance(schema, participation_lib.Budget) else None

  @property
  def may_grow(self) -> bool:
    """Whether epsilon may grow if the run goes on to its last round."""
    return (
      self.observed.ended is None
      and not self.violated
      and self.unamplified is not self.planned
    )

  @property
  def claimed(self) -> accounting.Guarantee:
    """The guarantee that the report states first."""
    return self.amplified or self.unamplified

  @property
  def whole(self) -> accounting.Guarantee:
    """The guarantee `planned` if epsilon may still grow, else `unamplified`.

    Its epsilon is never below the epsilon of `unamplified`.
    """
    # PRIVACY: a run that has not ended may state more rounds later, and these
    # rounds make its epsilon larger. A composition that counted fewer rounds
    # would give too small an epsilon. So this guarantee counts all planned
    # rounds.
    # Guard: run_until_test.test_open_run_counts_as_planned_in_a_composition.
    return self.planned if self.may_grow else self.unamplified

  @property
  def composed(self) -> accounting.Guarantee:
    """The guarantee of the run in a composition with other runs."""
    return self.amplified or self.whole

  @property
  def without_evidence(self) -> bool:
    """Whether a plan alone states participation, without a ledger or log."""
    return self.observed.head is None and not self.observed.clients

  @property
  def amplification(self) -> str:
    """The kind of sampled cohorts that amplifies the claim, or 'none'."""
    sampled = self.plan.sampled
    return sampled.name if sampled and self.amplified else 'none'

  @property
  def process_unknown(self) -> bool:
    """Whether a learning process may have released data without noise.

    The value is True if the run had noise and finished rounds, and nobody
    checked which values of clients its process releases besides the aggregate.
    """
    return (
      self.observed.examined is False
      and self.observed.finished > 0
      and self.unamplified.noise_multiplier > 0
    )

  @property
  def rounds(self) -> int:
    """The number of rounds up to the last started round."""
    return self.observed.last_round + 1

  @property
  def z_stddev(self) -> float:
    """The standard deviation of z, in the unit of the updates."""
    return self.planned.z_stddev_per_clip * self.plan.clip

  def to_dict(self) -> _files.JsonObject:
    """Returns the numbers of the claim under their JSON keys."""
    strategy, rounds = self.unamplified.strategy, self.plan.rounds
    observed, sampled = self.observed, self.plan.sampled
    if self.budget is not None:
      strategy = strategy.of_rounds(rounds)
    planned, claimed = self.planned.to_dict(), self.claimed.to_dict()
    led = figures(self.claimed, self.delta)
    sampling = sampled and {
      'kind': sampled.name,
      'rule': sampled.rule,
      'drawn': DRAWN[observed.drawn],
      'as_drawn': observed.drawn,
      'complete': not observed.incomplete,
      'epsilon_unamplified': self.unamplified.proved_epsilon(self.delta),
      'samples': led.get('samples'),
      'failure_probability': led.get('failure_probability'),
    }
    return {
      # Some schemas lack these numbers; a missing number is None.
      **dict.fromkeys(('min_sep', 'max_participations', 'apart', 'horizon')),
      **self.unamplified.to_dict(),
      **{name: claimed[name] for name in _LEADING},
      'rounds': rounds,
      'buffers': strategy.buffers,
      'parameters': strategy.parameters(),
      'z_stddev': self.z_stddev,
      'measured_z_stddev': observed.z_stddev,
      **strategy.error_numbers(self.claimed.sensitivity.value),
      **{name: led[name] for name in ('noise_multiplier', 'epsilon', 'delta')},
      # An amplified guarantee has no rho, so this rho is without amplification.
      'rho': self.unamplified.rho,
      'amplification': self.amplification,
      'sampling': sampling,
      'l2_norm_clip': self.plan.clip,
      'clients_per_round': self.plan.clients_per_round,
      'strategy_sha256': self.unamplified.strategy.digest(),
      'planned': {
        'rounds': rounds,
        'min_sep': self.budget.apart if self.budget else planned.get('min_sep'),
        **{name: planned[name] for name in ('participations', 'sensitivity')},
        **figures(self.planned, self.delta),
      },
      'observed': {
        'rounds': observed.rounds,
        'rounds_finished': observed.finished,
        'rounds_burnt': observed.burnt,
        **self._counts(),
      },
      'stated': self.without_evidence,
      'violated': self.violated,
      'process_checked': observed.examined,
    }

  def _counts(self) -> _files.JsonObject:
    """Returns numbers about the observed participation.

    All but delta are None if the claim is amplified, or if neither a ledger nor
    a log shows participation.
    """
    observed, guarantee = self.observed, self.observed_guarantee
    counts = {
      'clients': observed.clients,
      'min_cohort': observed.min_cohort,
      'max_cohort': observed.max_cohort,
      'min_sep': observed.min_sep,
      'participations': observed.max_participations,
      'sensitivity': guarantee and guarantee.sensitivity.value,
      'sensitivity_method': guarantee and guarantee.sensitivity.method,
      **figures(guarantee, self.delta),
    }
    if self.amplified is None and not self.without_evidence:
      return counts
    # PRIVACY: counts of drawn clients reveal something about the cohorts, which
    # amplification assumes to be secret. The report of an amplified claim
    # leaves these counts out.
    # Guard: report_sampling_test.test_report_keeps_what_was_drawn_to_itself.
    return {**dict.fromkeys(counts), 'delta': self.delta}


def figures(
  guarantee: Optional[accounting.Guarantee], delta: float
) -> dict[str, Optional[float]]:
  """Returns noise multiplier, rho and epsilon at delta.

  Epsilon is None if there is no noise, or too little noise for a proof. If
  `guarantee` is None, all values but delta are None.
  """
  noise = None if guarantee is None else guarantee.noise_multiplier
  return {
    'noise_multiplier': noise,
    'rho': None if guarantee is None else guarantee.rho,
    'epsilon': None,
    'delta': delta,
    **(guarantee.claim(delta).to_dict() if guarantee and noise else {}),
  }


def from_run(directory: pathlib.Path) -> Claim:
  """Returns the claim of a run, computed again from its files.

  The sensitivity is for the planned participation or, if the ledger shows more
  or closer rounds of a client, for the observed participation. The noise is the
  noise of the plan, which the ledger must confirm; see `consistency`.

  Raises:
    ValueError: a file is missing or damaged, or contradicts another file.
  """
  run = run_json.RunDetails.read(directory)
  plan = run_json.read_plan(directory)
  observed = consistency.verified_ledger(directory, run, plan)
  claim = from_evidence(
    plan,
    observed,
    # PRIVACY: if the ledger has no digest of run.json and plan.json for a
    # round, this round may have had another clip or strategy than these files
    # state. A report that says that the ledger confirms the files could then be
    # false. `files_match_ledger` is true only if the ledger has the digest of
    # the present files for every round.
    # Guard: report_test.test_what_the_run_held_to_is_checked_in_every_round.
    files_match_ledger=observed.enforced == {run.enforced_digest(directory)},
  )
  # PRIVACY: amplification assumes cohorts that an attacker cannot predict.
  # Cohorts that no secret key drew may follow a pattern that the attacker
  # knows. If there is no sampling key, this line drops the amplified claim.
  # Guard: report_sampling_test.test_cohorts_that_no_key_drew_are_not_amplified.
  if run.sampling_key_id is None:
    claim = dataclasses.replace(claim, amplified=None)
  return claim


def from_evidence(
  plan: plan_lib.Plan, observed: ledger.Counts, files_match_ledger: bool = False
) -> Claim:
  """Returns the claim that a plan and a participation support.

  Args:
    plan: plan of the run.
    observed: participation in the ledger or log, with the sensitivity of C.
    files_match_ledger: whether the ledger's chain has the digest of the run's
      files, see `RunDetails.enforced_digest`, for every round that started.
  """
  planned = plan.unamplified or plan.guarantee
  schema, rounds = planned.cohorts.schema, planned.strategy.rounds
  # PRIVACY: rounds more than b apart can have a larger sensitivity than rounds
  # exactly b apart. The check below compares only the number and the least
  # distance of a client's rounds, so it accepts both patterns. The claim is
  # therefore for all patterns of rounds at least b apart.
  # Guard: report_test.test_fixed_epochs_get_the_bound_of_all_patterns.
  if schema.evenly_spaced:
    apart, most = schema.separation(rounds), schema.max_participations
    planned = planned.for_cohorts(participation_lib.MinSep(apart, most))
  violated = not observed.log.satisfies(planned.cohorts.schema, rounds)
  # PRIVACY: the amplified guarantee holds neither for cohorts that the sampling
  # rule did not draw, nor for a sum that lacks drawn clients. In both cases
  # this line drops the amplified claim.
  # Guards: report_sampling_test.test_other_cohorts_are_not_amplified and
  # test_cut_cohort_has_no_amplified_claim.
  holds = not (violated or observed.drawn is False or observed.incomplete)
  most_rounds, stated = rounds, observed.stated_rounds
  # PRIVACY: a program may have looked at its model to decide when to stop. Then
  # the epsilon of the rounds so far is too small, see
  # `Guarantee.for_first_rounds`. A number of rounds below the plan counts only
  # if every round stated this number at its start, and no round is past it.
  # Otherwise the claim is for all planned rounds.
  # Guards: run_until_test.test_run_that_stops_by_its_model_claims_all_rounds
  # and report_test.test_stopped_run_claims_the_rounds_it_stated.
  if stated is not None and observed.last_round < stated <= rounds:
    most_rounds = math.ceil(stated)
  if not violated:
    unamplified = planned.for_first_rounds(most_rounds)
  else:
    # The claim is for the smaller of the planned and the observed min_sep, and
    # for the larger number of participations.
    min_seps = (schema.min_sep, observed.min_sep)
    min_sep = min(each for each in min_seps if each is not None)
    most = max(schema.participations(rounds), observed.max_participations)
    unamplified = planned.for_cohorts(participation_lib.MinSep(min_sep, most))
  return Claim(
    plan,
    planned,
    most_rounds,
    unamplified,
    plan.guarantee if plan.sampled is not None and holds else None,
    planned.for_observed(observed.log) if observed.clients else None,
    observed,
    violated,
    files_match_ledger,
  )
