"""The assumptions of a run's privacy claim."""

from __future__ import annotations

from tff_bandmf.report import claim as claim_lib
from tff_bandmf.report import statement
from tff_bandmf.run_files import run_json

_UNCHECKED = 'not checked here'
_STOPPED = (
  'The decision to start no more rounds did not depend on released values.'
)
_CHOSEN = (
  'The choice of the noise and the number of rounds of this run did not depend '
  'on releases of earlier runs.'
)


def rows(
  claim: claim_lib.Claim, run: run_json.RunRecord, elsewhere: bool
) -> list[dict[str, str]]:
  """Returns the assumptions, each with its enforcer and its check.

  Args:
    claim: claim of the run.
    run: content of `run.json`.
    elsewhere: whether training ran outside this library, without a ledger.
  """
  enforced = (run.enforced or {}).get('by', statement.NOT_STATED)
  signed = (
    "the ledger's chain: it has a digest of this setting for every started "
    'round'
    if claim.signed
    else _UNCHECKED
  )
  measured = (
    'not checked: the ledger has no measurement'
    if claim.observed.z_stddev is None
    else 'the ledger has the standard deviation that the aggregator measured '
    'in each round; this report compared it with the claim'
  )
  trainer = 'the operator of the training' if elsewhere else 'the program'
  record = (
    _UNCHECKED
    if claim.stated
    else f'the {"log" if elsewhere else "ledger"}, read for this report'
  )
  clipped = f'its L2 norm is clipped to {claim.l2_norm_clip}'
  if run.claim.get('adaptive_clip'):
    clipped = (
      'its L2 norm is clipped to the clip of the round, which follows from '
      'earlier releases; scaled from the clip of the round to the first clip, '
      'the update together with its indicator has a norm of at most '
      f'{claim.l2_norm_clip}'
    )
  table = (
    (
      f'A client sends at most one update a round, and {clipped}.',
      run.clipped_by or statement.NOT_STATED,
      signed,
    ),
    *_participants(claim, enforced, record),
    *_recorded(claim, elsewhere, trainer),
    (
      'No round was released for two cohorts.',
      trainer if elsewhere else 'the ledger refuses a second cohort',
      _UNCHECKED
      if elsewhere
      else 'the ledger has one cohort of each round, and one result',
    ),
    (
      'The participation of clients does not depend on their data.',
      trainer,
      _UNCHECKED,
    ),
    # PRIVACY: if the number of rounds or the noise depended on releases, the
    # claim could be false, and no file shows how they were chosen. So the
    # report lists their independence as an assumption that nobody checked.
    # Guards: after_test.test_report_claims_the_composition,
    # report_test.test_stopped_run_claims_the_rounds_it_started.
    *(
      (what, trainer, _UNCHECKED)
      for what, holds in (
        (_STOPPED, claim.may_grow),
        (_CHOSEN, run.after),
      )
      if holds
    ),
    (
      'One unit of privacy is one client, and never two clients.'
      if claim.held.clients_per_unit == 1
      else 'One unit of privacy is at most '
      f'{claim.held.clients_per_unit} clients.',
      'the operator who enrols clients',
      _UNCHECKED,
    ),
    (
      'The noise of all rounds is C^-1 z, for the stated strategy C and the '
      'stated standard deviation of z.',
      trainer if elsewhere else 'the aggregator',
      _UNCHECKED if elsewhere else measured,
    ),
    (
      'One key makes the noise of the run, and is used for nothing else.',
      trainer if elsewhere else 'the run: its ledger is bound to the key',
      signed,
    ),
    (
      'The output of the generator, ChaCha20, cannot be distinguished from '
      'uniform bits: its key is secret.',
      trainer
      if elsewhere
      else 'the operator: only the owner of the key file can read the file',
      run.key_after or _UNCHECKED,
    ),
    (
      'No value of clients bypasses the aggregator, except for the values that '
      'are named here.',
      'the program'
      if claim.observed.examined is None
      else 'the learning process',
      _process(claim, run, elsewhere),
    ),
    (
      'Float64 operations are rounded as IEEE 754 says, and the logarithm has '
      'an error of at most 2 units of its last place. The error of every other '
      'computation of the noise is bounded by a proof.',
      'the processor and its mathematical library',
      'not checked here',
    ),
  )
  return [
    {'assumption': assumption, 'enforced_by': by, 'checked': checked}
    for assumption, by, checked in table
  ]


def _process(
  claim: claim_lib.Claim, run: run_json.RunRecord, elsewhere: bool
) -> str:
  """Returns how it was checked that no value bypasses the aggregator."""
  if claim.observed.examined is None:
    return (
      'no process: the program gave each update to round.release; nobody '
      'checked other uses of the updates in the program'
    )
  return (
    (run.process or _UNCHECKED)
    if claim.observed.examined or elsewhere
    else _UNCHECKED
  )


def _recorded(
  claim: claim_lib.Claim, elsewhere: bool, trainer: str
) -> list[tuple[str, str, str]]:
  """Returns the assumption about the log or ledger; [] if there is neither."""
  if claim.stated:
    return []
  if elsewhere:
    return [
      (
        'The log has every participation, and one name for each client.',
        'the keeper of the log',
        _UNCHECKED,
      )
    ]
  return [
    (
      'The ledger has every cohort that was used: each cohort is written '
      'before its round.',
      trainer,
      f'this report compared the ledger with {run_json.METRICS_FILE} and '
      f'{run_json.RESULT_FILE}',
    )
  ]


def _participants(
  claim: claim_lib.Claim, enforced: str, record: str
) -> list[tuple[str, str, str]]:
  """Returns the assumptions about participation."""
  if claim.amplified is None:
    return [
      (
        'No client takes part more often, or in closer rounds, than the '
        'statement allows.',
        enforced,
        record,
      )
    ]
  return [
    (
      'The server draws every cohort as the statement says, with a key that is '
      'fresh, secret and used for nothing else.',
      enforced,
      _UNCHECKED
      if claim.observed.drawn is None
      else 'the run: it drew all cohorts again, and recorded the result of the '
      "comparison in the ledger's chain",
    ),
    (
      'Nobody who sees a release can tell which clients, or how many clients, '
      'were drawn: not from the ledger, metrics or network traffic.',
      'the operator: clients must not check in by themselves',
      _UNCHECKED,
    ),
    (
      'Drawn clients come, or contribute zero under the same divisor; whether '
      'a client comes does not depend on the data or the draws of other '
      'clients.',
      'the run: it divides by the expected number of clients',
      'the ledger, which states for every round whether the sum has one update '
      'of each client',
    ),
  ]
