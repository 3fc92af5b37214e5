"""The assumptions of a run's privacy claim."""

from __future__ import annotations

from tff_bandmf.accounting.arithmetic import cells
from tff_bandmf.report import claim as claim_lib
from tff_bandmf.report import statement
from tff_bandmf.run_files import run_json

_UNCHECKED = 'not checked here'
_STOPPED = (
  'The decision to start no more rounds did not depend on what was released.'
)
_CHOSEN = (
  'The choice of the noise and rounds of this run did not depend on what the '
  'runs before it released.'
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
    'the ledger, in whose chain it stands for every round that started'
    if claim.signed
    else _UNCHECKED
  )
  measured = (
    'not checked: the ledger has no measurement'
    if claim.observed.z_stddev is None
    else 'the ledger has the standard deviation that the aggregator measured '
    'in each round; compared with the claim here'
  )
  trainer = 'whoever trained' if elsewhere else 'the training program'
  record = (
    _UNCHECKED
    if claim.stated
    else f'the {"log" if elsewhere else "ledger"}, read for this report'
  )
  clipped = f'its L2 norm is clipped to {claim.l2_norm_clip}'
  if run.claim.get('adaptive_clip'):
    clipped = (
      'its L2 norm is clipped to the clip of the round, which earlier releases '
      'tell; with the indicator of whether it was, the norm over the first '
      f'clip, times that, is at most {claim.l2_norm_clip}'
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
      'Who takes part does not depend on what the clients hold.',
      trainer,
      _UNCHECKED,
    ),
    # PRIVACY: the claim does not cover a number of rounds, or a noise, that
    # somebody chose after looking at releases. The report states the assumption
    # that nobody did so.
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
      'One unit of privacy is one client: nobody has two.'
      if claim.held.clients_per_unit == 1
      else f'One unit of privacy is {claim.held.clients_per_unit} clients at '
      'most.',
      'whoever enrols clients',
      _UNCHECKED,
    ),
    (
      'The noise of all rounds is that of the strategy and of this standard '
      'deviation.',
      trainer if elsewhere else 'the aggregator',
      _UNCHECKED if elsewhere else measured,
    ),
    (
      'One key makes the noise of the run, and is used for nothing else.',
      trainer if elsewhere else 'the run: its ledger is bound to the key',
      signed,
    ),
    (
      'The words of the generator, ChaCha20, cannot be told from uniform '
      'ones: its key is secret.',
      trainer
      if elsewhere
      else 'the operator: the file of the key is readable to its owner alone',
      run.key_after or _UNCHECKED,
    ),
    (
      'No value of clients bypasses the aggregator but those named here.',
      'the program'
      if claim.observed.examined is None
      else 'the learning process',
      _process(claim, run, elsewhere),
    ),
    (
      'The inverse of the normal CDF is right to '
      f'{cells.INVERSE_UNITS:g} units of 2^-53, relatively, and to '
      f'{cells.INVERSE_MOST:g}, absolutely, between 0.9 and 1.5; all else '
      'that arithmetic costs is proved and part of epsilon and delta.',
      'SciPy, or TensorFlow where noise is made in a graph',
      'measured by tests, not proved',
    ),
  )
  return [
    {'assumption': assumption, 'enforced_by': by, 'checked': checked}
    for assumption, by, checked in table
  ]


def _process(
  claim: claim_lib.Claim, run: run_json.RunRecord, elsewhere: bool
) -> str:
  """Returns how values that bypass the aggregator were checked."""
  if claim.observed.examined is None:
    return (
      'no process: the program gave each update to round.release; nobody '
      'looked at what else the program did with it'
    )
  return (
    (run.process or _UNCHECKED)
    if claim.observed.examined or elsewhere
    else _UNCHECKED
  )


def _recorded(
  claim: claim_lib.Claim, elsewhere: bool, trainer: str
) -> list[tuple[str, str, str]]:
  """Returns the assumption about the log or ledger, [] if neither exists."""
  if claim.stated:
    return []
  if elsewhere:
    return [
      (
        'The log has every participation, and a client has one name in it.',
        'whoever kept the log',
        _UNCHECKED,
      )
    ]
  return [
    (
      'The ledger has every cohort that was used: it is written before its '
      'round.',
      trainer,
      f'compared with {run_json.METRICS_FILE} and {run_json.RESULT_FILE} here',
    )
  ]


def _participants(
  claim: claim_lib.Claim, enforced: str, record: str
) -> list[tuple[str, str, str]]:
  """Returns the assumptions about participation."""
  if claim.amplified is None:
    return [
      (
        'Clients take part as often, and as far apart, as the statement says.',
        enforced,
        record,
      )
    ]
  return [
    (
      'The server draws every cohort as the statement says, by a key that is '
      'fresh, secret and used for nothing else.',
      enforced,
      _UNCHECKED
      if claim.observed.drawn is None
      else 'the run: it drew all cohorts again, and its verdict is in the '
      'chain of the ledger',
    ),
    (
      'Nobody who sees a release can tell who was drawn, or how many: not from '
      'the ledger, from metrics, or from whom devices talk to.',
      'the operator: clients that check in by themselves show it',
      _UNCHECKED,
    ),
    (
      'Drawn clients come, or send zero under the same divisor; whether one '
      'comes does not depend on what another holds, or on who else was drawn.',
      'the run: it divides by the expected number',
      'each sum has as many updates as its round has clients; the ledger has '
      'the verdict of every round',
    ),
  ]
