"""The assumptions of a run's privacy claim."""

from __future__ import annotations

from collections.abc import Iterator

from tff_bandmf.report import document, inputs, sentences
from tff_bandmf.run_files import run_json

_UNCHECKED = 'not checked here'
_SIGNED = (
  "the ledger's chain: it has a digest of this setting for every started round"
)


def rows(source: inputs.Source) -> Iterator[document.Assumption]:
  """Yields the assumptions, each with its enforcer and its check."""
  claim, run, elsewhere = source.claim, source.run, source.elsewhere
  enforced = (claim.enforced or {}).get('by', sentences.NOT_STATED)
  signed = _SIGNED if claim.files_match_ledger else _UNCHECKED
  measured = (
    'not checked: the ledger has no standard deviation'
    if claim.observed.z_stddev is None
    else 'the ledger has the standard deviation of the noise of each round; '
    'this report compared it with the claim'
  )
  trainer = 'the operator of the training' if elsewhere else 'the program'
  clipped = f'its L2 norm is clipped to {claim.plan.clip}'
  if claim.adaptive_clip:
    clipped = (
      'its L2 norm is clipped to the clip of the round, which follows from '
      'earlier releases; scaled from the clip of the round to the first clip, '
      'the update together with its indicator has a norm of at most '
      f'{claim.plan.clip}'
    )
  yield _row(
    f'A client sends at most one update a round, and {clipped}.',
    run.clipped_by or sentences.NOT_STATED,
    signed,
  )
  if claim.amplified is None:
    yield _row(
      'No client takes part more often, or in closer rounds, than the '
      'statement allows.',
      enforced,
      _UNCHECKED
      if claim.without_evidence
      else f'the {"log" if elsewhere else "ledger"}, read for this report',
    )
  else:
    yield _row(
      'The server draws every cohort as the statement says, with a key that is '
      'fresh, secret and used for nothing else.',
      enforced,
      _UNCHECKED
      if claim.observed.drawn is None
      else 'the run: it drew all cohorts again, and recorded the result of the '
      "comparison in the ledger's chain",
    )
    yield _row(
      'Nobody who sees a release can tell which clients, or how many clients, '
      'were drawn: not from the ledger, metrics or network traffic.',
      'the operator: clients must not check in by themselves',
    )
    yield _row(
      'Drawn clients come, or contribute zero under the same divisor; whether '
      'a client comes does not depend on the data or the draws of other '
      'clients.',
      'the run: it divides by the expected number of clients',
      'the ledger, which states for every round whether the sum has one update '
      'of each client',
    )
  if not elsewhere:
    yield _row(
      'The ledger has every cohort that was used: each cohort is written '
      'before its round.',
      trainer,
      f'this report compared the ledger with {run_json.METRICS_FILE} and '
      f'{run_json.RESULT_FILE}',
    )
  elif not claim.without_evidence:
    yield _row(
      'The log has every participation, and one name for each client.',
      'the keeper of the log',
    )
  yield _row(
    'No round was released for two cohorts.',
    trainer if elsewhere else 'the ledger refuses a second cohort',
    _UNCHECKED
    if elsewhere
    else 'the ledger has one cohort of each round, and one result',
  )
  yield _row(
    'The participation of clients does not depend on their data.', trainer
  )
  # PRIVACY: A claim for fewer rounds than planned holds only if this number was
  # fixed before the first release. The report lists this assumption.
  # Guards: report_test.test_stopped_run_claims_the_rounds_it_stated and
  # after_test.test_report_claims_the_composition.
  if claim.most_rounds < claim.unamplified.strategy.rounds:
    yield _row(
      f'The run has at most {sentences.count(claim.most_rounds, "round")}, a '
      'number that was fixed before its first round.',
      'the run: it states the number when a round starts',
      "the ledger's chain: it has this number for every started round",
    )
  # PRIVACY: if the noise or the number of rounds depended on releases of
  # earlier runs, the claim could be false, and no file shows how they were
  # chosen. So the report lists this as an assumption that nobody checked.
  # Guard: after_test.test_report_claims_the_composition.
  if run.after:
    yield _row(
      'The choice of the noise and the number of rounds of this run did not '
      'depend on releases of earlier runs.',
      trainer,
    )
  clients = claim.unamplified.clients_per_unit
  yield _row(
    'One unit of privacy is one client, and never two clients.'
    if clients == 1
    else f'One unit of privacy is at most {clients} clients.',
    'the operator who enrols clients',
  )
  yield _row(
    'The noise of all rounds is C^-1 z, for the stated strategy C and the '
    'stated standard deviation of z.',
    trainer if elsewhere else 'the aggregator',
    _UNCHECKED if elsewhere else measured,
  )
  yield _row(
    'One key makes the noise of the run, and is used for nothing else.',
    trainer if elsewhere else 'the run: its ledger is bound to the key',
    signed,
  )
  yield _row(
    'The output of the generator, ChaCha20, cannot be distinguished from '
    'uniform bits: its key is secret.',
    trainer
    if elsewhere
    else 'the operator: only the owner of the key file can read the file',
    run.key_after or _UNCHECKED,
  )
  by, checked = 'the learning process', _UNCHECKED
  if claim.observed.examined is None:
    by = 'the program'
    checked = (
      'no process: the program gave each update to round.release; nobody '
      'checked other uses of the updates in the program'
    )
  elif claim.observed.examined or elsewhere:
    checked = run.process or _UNCHECKED
  yield _row(
    'No value of clients bypasses the aggregator, except for the values that '
    'are named here.',
    by,
    checked,
  )
  yield _row(
    'Float64 operations are rounded as IEEE 754 says, and the logarithm has '
    'an error of at most 2 units of its last place. The error of every other '
    'computation of the noise is bounded by a proof.',
    'the processor and its mathematical library',
  )


def _row(
  assumption: str, enforced_by: str, checked: str = _UNCHECKED
) -> document.Assumption:
  return document.Assumption(
    assumption=assumption, enforced_by=enforced_by, checked=checked
  )
