"""The warnings that stand before the numbers of a report."""

from __future__ import annotations

from typing import Any, Optional

from tff_bandmf import _files
from tff_bandmf.report import claim as claim_lib
from tff_bandmf.report import inputs, sentences
from tff_bandmf.run_files import run_json

# 'Elsewhere' is outside this library. The participation log of such training
# shows neither how participation was enforced nor which noise was added.
_ELSEWHERE = (
  'Training ran elsewhere. This report did not enforce the participation, and '
  'did not check the noise or values that bypass the aggregator: the claim is '
  'for the rounds in the log, and for noise of the planned size that was made '
  'by the method of this library.'
)
_STATED = (
  'Training ran elsewhere, and this report read neither a ledger nor a log: C, '
  'the noise and the participation are only stated in the plan. The claim '
  'follows from these numbers, for noise that was made by the method of this '
  'library.'
)
_NOBODY_ENDED = (
  'All planned rounds are over, and nobody recorded the end of the run: the '
  'key of its noise may still exist, and no result file states the head of its '
  'ledger. The claim is for all these rounds. run.record ends a run.'
)
_NOBODY_ENDED_PUBLIC = (
  'All planned rounds are over, and nobody recorded the end of the training: '
  'the key of its noise may still exist. The claim is for all these rounds.'
)
_WHOLE_RUNS = (
  'This run or an earlier run may still state more rounds than it did: the '
  'epsilon of all runs together counts all planned rounds.'
)
_SIMULATED = (
  'SIMULATED: a small cohort stands for a larger cohort. No privacy claim '
  'is made for a deployment; the claim here is for the noise that this run '
  'had.'
)
_NOT_COMPARED = (
  'The sampling was not checked: nobody compared the cohorts in the ledger '
  'with the cohorts that the sampling key gives.'
)
_PROCESS = (
  'NOT CHECKED: the process of this run was not checked, so values of clients '
  'may bypass the aggregator. The claim is only for the releases of the '
  'aggregator. run.check(process) finds values that bypass the aggregator.'
)
_NOISE_ALONE = (
  'All updates of some rounds were zero or not finite, such as NaN: these '
  'rounds released noise alone. Look at the learning rate and at the data.'
)
_CUT = (
  'Some sums did not have one update of each drawn client. Such sums have no '
  'amplified guarantee: the claim here is without amplification.'
)
_NOTHING_RELEASED = 'No round finished: no result of a round was recorded.'
_OTHER_CODE = (
  'The code that wrote this report is not the code that ran the training.'
)
_NO_NOISE = 'No noise was added: this run guarantees nothing.'


def warnings(source: inputs.Source, public: bool = False) -> list[str]:
  """Returns the warnings of the report of a run, worst first.

  Args:
    source: input of the report.
    public: whether the report is public.
  """
  claim, run = source.claim, source.run
  completed, elsewhere = source.completed, source.elsewhere
  seen = claim.observed
  runs = [claim, *(before for _, before in source.before.values())]
  rounds = claim.plan.rounds
  population = run.population or seen.clients
  nothing = not claim.unamplified.noise_multiplier
  broken = '' if nothing else sentences.BROKEN
  started = f'{seen.rounds} of {sentences.count(rounds, "round")} ' + (
    'was' if seen.rounds == 1 else 'were'
  )
  past = seen.rounds - rounds
  if past > 0:
    started = f'{seen.rounds} rounds, {past} past the plan, were'
  away = _STATED if claim.without_evidence else _ELSEWHERE
  over = past >= 0 and not seen.open
  end = 'ended early' if completed else 'has not ended'
  covered = f'{sentences.count(claim.most_rounds, "round")}, ' + (
    'a number that was fixed before round 0'
    if claim.most_rounds < claim.unamplified.strategy.rounds
    else 'since no smaller number was fixed before round 0'
  )
  # A row has a condition and a warning. If the warning of the public report is
  # different, it is the third value of the row. A report leaves an empty
  # warning out.
  rows: tuple[tuple[Any, ...], ...] = (
    # PRIVACY: a reader could take the epsilon of a simulation for the epsilon
    # of a deployment. The first warning says that the run is a simulation.
    # Guard: report_pages_test.test_simulated_run_leads_with_it.
    (claim.plan.simulated is not None, _SIMULATED),
    (
      claim.violated,
      f'{broken}The participation schema was not kept. {_compared(claim)} The '
      'claim below is for the observed participation.',
      broken
      + 'Clients took part more often, or closer together, than was planned. '
      'The claim below is for the observed participation.',
    ),
    (elsewhere, away),
    (not seen.finished, _NOTHING_RELEASED),
    # PRIVACY: a process may let raw updates bypass the aggregator and change
    # the model. The report warns of an unchecked process before the claim.
    # Guard: run_report_test.test_process_that_nobody_checked_leads_the_report.
    (claim.process_unknown and not elsewhere, _PROCESS),
    (run_json.ALL_ZERO in run.not_covered, _NOISE_ALONE, ''),
    # The public report has this warning here; the report of a run has the same
    # warning further down.
    (nothing, '', _NO_NOISE),
    (claim.plan.sampled is not None and bool(seen.incomplete), _CUT),
    (
      claim.plan.sampled is not None
      and claim.amplified is None
      and not seen.incomplete,
      'The cohorts differ from the cohorts that the sampling key gives: the '
      'claim here is without amplification.',
      '',
    ),
    (
      claim.amplified is not None
      and seen.drawn is None
      and (completed or claim.rounds == rounds),
      _NOT_COMPARED,
    ),
    (nothing, _NO_NOISE, ''),
    (
      (past < 0 and claim.budget is None) if completed else not over,
      f'This run {end}: {started} started. The claim is for {covered}.',
      f'Training {end}. The claim is for the rounds that were fixed before the '
      'first round.',
    ),
    (
      not completed and over,
      f'{started} started. ' * (past > 0) + _NOBODY_ENDED,
      _NOBODY_ENDED_PUBLIC,
    ),
    # PRIVACY: exact counts of clients and rounds have no noise, and would
    # reveal participation to the public. The second texts, for the public
    # report, leave counts out.
    # Guard: public_test.test_counts_of_clients_are_not_published.
    (
      seen.burnt > 0,
      f'{seen.burnt} of {sentences.count(seen.rounds, "round")} '
      f'{"was" if seen.burnt == 1 else "were"} burnt: started, but without '
      'effect on the model. The claim counts burnt rounds.',
      'Some rounds did not change the model; the claim counts these rounds.',
    ),
    (
      claim.delta * population >= 1,
      f'delta = {claim.delta!r} is not below 1 / population = 1 / '
      f'{population}: a program that publishes all data of one client can have '
      'such a claim.',
      'delta is not below one over the number of clients: a program that '
      'publishes all data of one client can have such a claim.',
    ),
    (
      seen.z_stddev is None and seen.finished > 0 and not elsewhere,
      'The ledger has no measurement of the noise that was added.',
      '',
    ),
    (run.code_sha256 not in (None, _files.code_digest()), _OTHER_CODE, ''),
    (
      # PRIVACY: An earlier run that goes on will add to the privacy loss. The
      # warning says that its remaining planned rounds count.
      # Guards:
      # report_pages_test.test_simulated_run_that_kept_its_plan_leads_with_it,
      # public_test.test_counts_of_clients_are_not_published and
      # after_test.test_rounds_to_come_count_in_every_composition.
      source.composes and any(each.may_grow for each in runs),
      _WHOLE_RUNS,
    ),
  )
  texts = [row[-1 if public else 1] for row in rows if row[0]]
  return [text for text in texts if text]


def _compared(claim: claim_lib.Claim) -> str:
  """Returns a text that compares the rounds of clients with the plan."""
  schema, seen = claim.planned.cohorts.schema, claim.observed
  if claim.budget is None:
    most = schema.participations(claim.plan.rounds)
    return (
      f'Planned: {_participation(schema.min_sep, most)}. Observed: '
      f'{_participation(seen.min_sep, seen.max_participations)}.'
    )
  cost = (seen.log.cost or 0) / claim.budget.known_costs.limit
  return (
    'Planned: the rounds of a client cost at most its budget, and are at least '
    f'{claim.budget.apart} apart. Observed: a cost of {cost:.6g} budgets, and '
    f'rounds {seen.min_sep} apart.'
  )


def _participation(min_sep: Optional[int], participations: int) -> str:
  apart = '' if min_sep is None else f'min_sep {min_sep}, '
  return f'{apart}participations {participations}'
