"""The sentences of a report: what is assumed, covered, released.

The fields are those of section 5.3 of [DPfy23], as filled in by [BandMF23,
App K.1].
"""

from __future__ import annotations

import pathlib
from typing import Any, Optional

from tff_bandmf import errors
from tff_bandmf.program import metrics, run_record
from tff_bandmf.report import claim as claim_lib

NOT_STATED = 'not stated'

ACCOUNTING = (
  'The run is one Gaussian release of sensitivity 1 and standard deviation '
  'noise_multiplier, less what cut weights and rounding add to the '
  'sensitivity, in real numbers: rho-zCDP with rho = 1 / (2 '
  'noise_multiplier^2), and (epsilon, delta) from its exact privacy profile, '
  'rounded up; not converted from rho. What is released is integers on a '
  'lattice with noise from 64-bit words: slack_epsilon and slack_delta of '
  'epsilon and delta are what that costs at most.'
)
AMPLIFIED = (
  'The run is compared with one in which the client contributes zero, over all '
  'that chance can draw: composed Poisson-sampled Gaussians by the '
  'distributions of their losses, rounded up, for cyclic-poisson; a mixture '
  'of Gaussians for the others, whose delta is bounded by random samples, the '
  'probability that the bound fails being part of delta. That a cohort is too '
  'large for the lattice is part of delta as well, and so are slack_epsilon '
  'and slack_delta, what the arithmetic of the noise costs. Without '
  'amplification the run is one Gaussian release: rho is of that.'
)
ADJACENCY = (
  'zero-out: in one of two neighbouring data sets all contributions of one '
  'unit of privacy are zero, in every round in which it takes part; who takes '
  'part is the same in both'
)
_SETTING = (
  'central: whoever trains, clips, sums and adds the noise sees updates in '
  'the clear and is trusted; protected against whoever sees what is released'
)
_COVERED = (
  'the updates of training clients, through the noised sum of every round'
)
_COVERED_CLIP = (
  ', and through the noised share of updates below the clip, from which the '
  'clip of the next round follows: both are released'
)

GENERATOR = 'chacha20'
_GENERATOR = {
  'algorithm': 'ChaCha20, a block for 8 numbers of a round; cryptographic',
  'key_bits': 256,
  'key_use': 'all bits are the key of ChaCha20',
  'normals': (
    'inverse of the CDF of 63 bits and a sign in 64-bit floats, 64 more '
    'bits in the tail: up to 13 standard deviations'
  ),
}

_COLUMNS = {
  'seconds': 'how long every round took',
  'clients': 'cohort size of every round, exact',
  'non_finite': (
    'how many clients of a round had an update that was not finite and '
    'counted as zero, exact'
  ),
  'accuracy': 'of released models, on validation clients without noise',
  'accuracy_with_end': 'the same, ends of sentence counted',
  'accuracy_with_end_and_unknown': (
    'the same, ends of sentence and unknown words counted'
  ),
  'loss': 'of released models, on validation clients without noise',
}


# What a report itself tells without noise.
COUNTS = (
  'cohort sizes, how many clients took part, how often and how far apart, exact'
)
# What a report of training that ran elsewhere cannot know.
ELSEWHERE = (
  'Training ran elsewhere. This report did not enforce who took part, and did '
  'not check the noise: the claim is for the rounds in the log and for noise '
  'that was made as the plan and this library make it.'
)
UNENDED_BEFORE = (
  'A run before it has not started all its rounds: epsilon of all together is '
  'for the rounds so far, and grows if that run goes on.'
)
_UNCHECKED = 'not checked here'
_STOPPED = (
  'That no more rounds were started was not decided by what was released.'
)
_CHOSEN = (
  'The noise of this run and its rounds were not chosen by what the runs '
  'before it released.'
)
_SIMULATED = (
  'SIMULATED: a small cohort stands for a larger one. No privacy claim '
  'is made for a deployment; what is claimed here is for the noise that '
  'this run had.'
)
_NOT_LOOKED_AT = (
  'Whether cohorts are those that the key of the draws gives was not checked.'
)
_NOTHING_RELEASED = 'No round finished: nothing of the clients was released.'
_NO_NOISE = 'No noise was added: this run guarantees nothing.'

# What `run.json` says of each use of data outside training, and its title.
ACCESSES = {
  'tuning': 'hyperparameter tuning',
  'model_selection': 'model selection',
  'pre_training': 'public pre-training',
}


def count(number: int, noun: str) -> str:
  """Returns a number of things: '1 round', '2 rounds'."""
  return f'{number} {noun}{"s" * (number != 1)}'


def data_accesses(run: run_record.RunRecord) -> dict[str, str]:
  """Returns what `run.json` says of each use of data outside training."""
  return {
    name: getattr(run, name) or f'{NOT_STATED}: take it as not covered'
    for name in ACCESSES
  }


def accounting(claim: claim_lib.Claim) -> str:
  """Returns what kind of accounting the claim rests on."""
  return ACCOUNTING if claim.amplified is None else AMPLIFIED


def generator(run: run_record.RunRecord) -> dict[str, Any]:
  """Returns what made the noise, and where its key came from.

  Raises:
    ValueError: the run names a generator of another release.
  """
  name = run.noise_generator or GENERATOR
  # PRIVACY: the slack is that of this generator and of no other.
  # Guard: report_pages_test.test_other_generators_are_refused.
  if name != GENERATOR:
    raise errors.value_error(
      'noise_generator',
      name,
      f'must be {GENERATOR}: nothing is proved '
      'here about the arithmetic of another',
      'use the release that trained the run',
    )
  return {**_GENERATOR, 'key_source': run.noise_key or NOT_STATED}


def setting(run: run_record.RunRecord) -> str:
  """Returns who is trusted, and against whom the guarantee protects."""
  return run.setting or _SETTING


def covered(run: run_record.RunRecord) -> str:
  """Returns the accesses to data that the guarantee counts."""
  if run.covered:
    return run.covered
  return _COVERED + _COVERED_CLIP * bool(run.claim.get('adaptive_clip'))


def formal(
  claim: claim_lib.Claim, guarantee: dict[str, Any], run: run_record.RunRecord
) -> str:
  """Returns the formal statement; its numbers are not rounded.

  Args:
    claim: of the run.
    guarantee: `claim.to_dict()`.
    run: what `run.json` says.
  """
  if guarantee['rho'] is None:
    return 'None. No noise was added; this run guarantees nothing.'
  if guarantee['epsilon'] is None:
    return 'None. Nothing is proved about the arithmetic of so little noise.'
  simulated = '' if run.simulated is None else 'SIMULATED: '
  schema = claim.held.cohorts.schema
  rounds = claim.held.strategy.rounds
  most = count(schema.participations(rounds), 'round')
  started = count(claim.rounds, 'round')
  together = (
    ''
    if schema.min_sep is None
    else f', any two of them at least {schema.min_sep} rounds apart'
  )
  conditions = f'each client contributes to at most {most}{together}'
  exact = ''
  if claim.amplified is not None and claim.cohorts is not None:
    unamplified = guarantee['sampling']['epsilon_unamplified']
    exact = (
      'Without amplification, if for sure '
      f'{conditions}, '
      + (
        'no epsilon is proved'
        if unamplified is None
        else f'epsilon is {unamplified!r}'
      )
      + ' at the same delta, and '
    )
    conditions = f'{claim.cohorts.rule}, by secret chance'
  return (
    f'{simulated}Let M map a data set of clients to what {started} of this '
    f"run release ({run.released}). Let D and D' be neighbours: D' is D "
    'with every contribution of one unit of privacy '
    f'({run.unit_of_privacy}) set to zero. If a unit has at most '
    f'{count(claim.held.clients_per_unit, "client")}, {conditions}, and the '
    "assumptions hold, then P[M(D) in S] <= e^epsilon P[M(D') in S] + "
    "delta, also with D and D' exchanged, for every set S of outputs, with "
    f'epsilon = {guarantee["epsilon"]!r} and delta = {claim.delta!r}. M is '
    f'the program with its rounding{". " + exact if exact else "; "}the same '
    f'with real numbers and exact Gaussians is {guarantee["rho"]!r}-zCDP.'
  )


def assumptions(
  claim: claim_lib.Claim, run: run_record.RunRecord, elsewhere: bool
) -> list[dict[str, str]]:
  """Returns what the claim rests on, who enforces it, who checked it.

  Args:
    claim: of the run.
    run: what `run.json` says.
    elsewhere: whether only a log of the training is there.
  """
  enforced = (run.enforced or {}).get('by', NOT_STATED)
  signed = (
    'the ledger, in whose chain it stands for every round that finished'
    if claim.signed
    else _UNCHECKED
  )
  measured = (
    'not checked: the ledger has no measurement'
    if claim.observed.z_stddev is None
    else 'the ledger has the standard deviation that the aggregator told of '
    'each round; compared with the claim here'
  )
  trainer = 'whoever trained' if elsewhere else 'the training program'
  record = 'log' if elsewhere else 'ledger'
  clipped = f'its L2 norm is clipped to {claim.l2_norm_clip}'
  if run.claim.get('adaptive_clip'):
    clipped = (
      'its L2 norm is clipped to the clip of the round, which earlier releases '
      'tell; with the indicator of whether it was, the norm over the first '
      f'clip, times that, is at most {claim.l2_norm_clip}'
    )
  rows = (
    (
      f'A client sends at most one update a round, and {clipped}.',
      run.clipped_by or NOT_STATED,
      signed,
    ),
    *_participants(claim, enforced, record),
    (
      'The log has every participation, and a client has one name in it.',
      'whoever kept the log',
      _UNCHECKED,
    )
    if elsewhere
    else (
      'The ledger has every cohort that was used: it is written before its '
      'round.',
      trainer,
      f'compared with {run_record.METRICS_FILE} and '
      f'{run_record.RESULT_FILE} here',
    ),
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
    # PRIVACY: mu of what may still come counts, where releases decide whether
    # it does. Guards: after_test.test_report_claims_the_composition,
    # report_test.test_stopped_run_claims_the_rounds_it_started.
    *(
      (what, trainer, _UNCHECKED)
      for what, holds in (
        (_STOPPED, claim.rounds < claim.held.strategy.rounds),
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
      'Nothing of clients passes the aggregator but what is named here.',
      'the learning process',
      run.process or _UNCHECKED,
    ),
    (
      'The inverse of the normal CDF is right to 8 units in the last place; '
      'all else that arithmetic costs is proved and part of epsilon and '
      'delta.',
      'SciPy, or TensorFlow where noise is made in a graph',
      'measured by tests, not proved',
    ),
  )
  return [
    {'assumption': assumption, 'enforced_by': by, 'checked': checked}
    for assumption, by, checked in rows
  ]


def _participants(
  claim: claim_lib.Claim, enforced: str, record: str
) -> list[tuple[str, str, str]]:
  """Returns what the claim assumes of who takes part."""
  if claim.amplified is None:
    return [
      (
        'Clients take part as often, and as far apart, as the statement says.',
        enforced,
        f'the {record}, read for this report',
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
      'Drawn clients come, or count as zero under the same divisor; whether '
      'one comes does not depend on what another holds.',
      'the run: it divides by the expected number',
      _UNCHECKED,
    ),
  ]


def side_releases(
  directory: pathlib.Path,
  run: run_record.RunRecord,
  columns: list[str],
  amplified: bool,
) -> list[dict[str, str]]:
  """Returns what is released without noise, one by one, and where it is.

  Args:
    directory: of the run.
    run: what `run.json` says.
    columns: of `metrics.csv`; one that is not known is taken as not noised.
    amplified: whether the claim rests on chance: no counts are told.
  """
  rows = [(run_record.RUN_FILE, 'how many clients may be drawn, exact')]
  if run.train_sha256:
    rows.append((run_record.RUN_FILE, 'a digest of the training data'))
  # PRIVACY: these two have noise where the clip adapts, and only there. Guard:
  # run_test.test_adaptive_clip_of_a_process_is_told.
  noised = metrics.RELEASED if run.claim.get('adaptive_clip') else ()
  rows += [
    (
      f'{run_record.METRICS_FILE}, {column}',
      _COLUMNS.get(column, 'not known to this report'),
    )
    for column in columns
    if column not in ('round', *noised)
  ]
  if (directory / 'tensorboard').exists():
    rows.append(('tensorboard/', f'the same as {run_record.METRICS_FILE}'))
  if (directory / run_record.RESULT_FILE).exists():
    rows.append(
      (
        run_record.RESULT_FILE,
        'accuracy and loss of the last model, on test clients',
      )
    )
  rows.append(
    (
      run_record.LEDGER_FILE,
      'who took part in which round; keep it, and do not publish it'
      if (directory / run_record.LEDGER_KEY).exists()
      else 'hashes of clients, under a key that is gone',
    )
  )
  if not amplified:
    rows.append(('this report', COUNTS))
  rows += [('stated by the run', item) for item in run.side_releases]
  return [{'where': where, 'what': what} for where, what in rows]


def warnings(
  claim: claim_lib.Claim,
  run: run_record.RunRecord,
  completed: bool,
  code_sha256: str,
  elsewhere: bool,
) -> list[str]:
  """Returns what a reader has to know before the numbers, worst first."""
  seen = claim.observed
  found = []
  # PRIVACY: figures of a run that stands for another are not taken for a
  # guarantee. Guard: report_pages_test.test_simulated_run_leads_with_it.
  if run.simulated is not None:
    found.append(_SIMULATED)
  if elsewhere:
    found.append(ELSEWHERE)
  elif not seen.finished:
    found.append(_NOTHING_RELEASED)
  if claim.violated:
    planned = claim.planned.cohorts.schema
    most = planned.participations(claim.held.strategy.rounds)
    found.append(
      'The participation schema was not kept. Planned: '
      f'{_participation(planned.min_sep, most)}. Observed: '
      f'{_participation(seen.min_sep, seen.max_participations)}. The claim '
      'is for what was observed.'
    )
  if claim.cohorts is not None and claim.amplified is None:
    found.append(
      'Cohorts were not those that the key of the draws gives: sampling '
      'amplifies nothing here.'
    )
  if claim.amplified is not None and completed and seen.drawn is None:
    found.append(_NOT_LOOKED_AT)
  if not claim.held.noise_multiplier:
    found.append(_NO_NOISE)
  if not completed:
    of = count(claim.held.strategy.rounds, 'round')
    more = claim.rounds < claim.held.strategy.rounds
    found.append(
      f'This run has not ended: {seen.rounds} of {of} '
      f'{"was" if seen.rounds == 1 else "were"} started. The claim is for '
      f'what they released{", and grows with those that follow" * more}.'
    )
  if seen.burnt:
    found.append(
      f'{seen.burnt} of {count(seen.rounds, "round")} '
      f'{"was" if seen.burnt == 1 else "were"} burnt: started, and what came '
      'of it is not in the model. The claim counts burnt rounds.'
    )
  population = run.population or seen.clients
  if claim.delta * population >= 1:
    found.append(
      f'delta = {claim.delta!r} is not below 1 / population = 1 / '
      f'{population}: publishing all of one client may meet it.'
    )
  if seen.z_stddev is None and seen.finished and not elsewhere:
    found.append('The ledger has no measurement of the noise that was added.')
  if (run.code_sha256 or code_sha256) != code_sha256:
    found.append(
      'The code that wrote this report is not the code that trained.'
    )
  return found


def public_warnings(
  claim: claim_lib.Claim,
  run: run_record.RunRecord,
  completed: bool,
  elsewhere: bool,
) -> list[str]:
  """Returns what everybody has to know before the numbers; no counts."""
  seen = claim.observed
  # PRIVACY: of clients there are no counts here. Guard:
  # public_test.test_counts_of_clients_are_not_published.
  rows = (
    (run.simulated is not None, _SIMULATED),
    (elsewhere, ELSEWHERE),
    (not seen.finished, _NOTHING_RELEASED),
    (not claim.held.noise_multiplier, _NO_NOISE),
    (
      claim.violated,
      'Clients took part more often, or closer together, than was planned. The '
      'claim is for what they did.',
    ),
    (
      not completed,
      'Training has not ended. The claim is for the rounds so far.',
    ),
    (
      claim.amplified is not None and completed and seen.drawn is None,
      _NOT_LOOKED_AT,
    ),
    (seen.burnt > 0, 'Some rounds are not in the model; the claim has them.'),
    (
      claim.delta * (run.population or seen.clients) >= 1,
      'delta is not below one over the number of clients: publishing all of '
      'one client may meet it.',
    ),
  )
  return [text for holds, text in rows if holds]


def _participation(min_sep: Optional[int], participations: int) -> str:
  apart = '' if min_sep is None else f'min_sep {min_sep}, '
  return f'{apart}participations {participations}'
