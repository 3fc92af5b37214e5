"""Whether a ledger is the whole ledger of a run, round by round.

| compared                      | with                                         |
|-------------------------------|----------------------------------------------|
| what the ledger is bound to   | run and key of `run.json`                    |
| its cohorts and events        | its own chain, as it is opened               |
| the heads of the chain        | `result.json`, every checkpoint that is here |
| the digests of rows, the size | every row of `metrics.csv`                   |
| of each cohort                |                                              |
| finished rounds               | started ones; noise verified in each         |

Files are compared with each other. Against someone who edits all of them alike,
and so against whoever trains, there is no defence here.
"""

from __future__ import annotations

import pathlib

from tff_bandmf import errors, program, strategies
from tff_bandmf.program import checkpoints, metrics, run_record
from tff_bandmf.program import ledger as ledger_lib

# z is measured in float32.
_MEASURED = 1e-6
_NOTHING = 'nothing can be claimed for such a run'


def observed(
  directory: pathlib.Path,
  run: run_record.RunRecord,
  strategy: strategies.Strategy,
  z_stddev: float,
) -> program.Observed:
  """Returns what the ledger of a run shows, if it is the run's and whole.

  Args:
    directory: of the run.
    run: what `run.json` says.
    strategy: C.
    z_stddev: standard deviation of z that is claimed, clip included.

  Raises:
    ValueError: the ledger is missing, damaged, another run's, or contradicts
      another file.
  """
  with ledger_lib.of_run(directory) as ledger:
    bound, head = ledger.bound(), ledger.head()
    attempts = ledger.all_attempts()
    last_round = max(attempts, default=-1)
    # PRIVACY: a round past the last one of C has no guarantee. Guard:
    # report_test.test_ledger_with_more_rounds_than_the_strategy_is_refused.
    _require(
      last_round < strategy.rounds,
      'rounds',
      last_round + 1,
      f'the ledger goes further than the strategy supports, {strategy.rounds}',
    )
    found = ledger.observed(strategy)
  # PRIVACY: another run's clients are not this one's. Guard:
  # evidence_test.test_ledger_of_another_run_is_refused.
  _require(
    bound == run.bound(),
    'ledger',
    directory / run_record.LEDGER_FILE,
    f'is not that of the run and the key in {run_record.RUN_FILE}',
  )
  last_client = max(found.last_client, found.clients - 1)
  _require(
    run.population is None or last_client < run.population,
    'client',
    last_client,
    f'the ledger has clients beyond the population={run.population}',
  )
  _check_noise(found, z_stddev)
  # PRIVACY: noise for another clip is not the claim's. Guard:
  # evidence_test.test_other_clip_than_the_rounds_held_to_is_refused.
  _require(
    found.enforced <= {None, run.enforced_digest()},
    'run',
    directory / run_record.RUN_FILE,
    'has another clip, noise or key than the rounds in the ledger held to',
  )
  # PRIVACY: two sums that met one noise show their difference. Guard:
  # evidence_test.test_round_that_was_finished_twice_is_refused.
  _require(
    not (z_stddev and found.finished_twice),
    'round',
    found.finished_twice[:1],
    'was finished twice, and the ledger does not show that one result was '
    'released: its noise may have met two sums',
  )
  _, ended = run_record.read_result(directory)
  if ended is not None:
    _require(
      found.rounds == strategy.rounds,
      'rounds',
      found.rounds,
      f'the run has ended, but its ledger has not all {strategy.rounds} rounds',
    )
    _require(
      not found.open,
      'round',
      found.open[:1],
      'was started and neither finished nor burnt, but the run has ended',
    )
    # PRIVACY: a chain that was computed anew has another head. Guard:
    # evidence_test.test_client_cut_out_of_two_cohorts_is_refused.
    _require(
      ended == head,
      'ledger',
      directory / run_record.LEDGER_FILE,
      f'is not the one that {run_record.RESULT_FILE} was written with',
    )
  _check_checkpoints(directory, attempts)
  _check_metrics(directory, found, attempts, ended is not None)
  return found


def _check_noise(found: program.Observed, z_stddev: float) -> None:
  measured = found.z_stddev
  if measured is not None:
    _require(
      measured >= z_stddev * (1 - _MEASURED),
      'z_stddev',
      measured,
      f'a round measured less noise than the claim, {z_stddev}',
    )
    _require(
      measured <= z_stddev * (1 + _MEASURED),
      'z_stddev',
      measured,
      f'all rounds measured more noise than the claim, {z_stddev}: clip or '
      'noise were others',
    )
  # PRIVACY: the noise of every release counts, not of one. Guard:
  # evidence_test.test_noise_verified_in_one_of_six_rounds_is_refused.
  _require(
    not (z_stddev and found.unchecked),
    'round',
    found.unchecked[:1],
    f'is one of {len(found.unchecked)} of {found.finished} finished rounds '
    'whose noise was not verified where it was added',
  )


def _check_checkpoints(directory: pathlib.Path, attempts) -> None:
  folder = directory / run_record.CHECKPOINTS
  for path in sorted(folder.glob('*.npz')) if folder.is_dir() else ():
    _, head = checkpoints.read(path)
    before = int(path.stem) - 1 if path.stem.isdecimal() else -2
    if before == -1:
      # No round led to it.
      continue
    # PRIVACY: what the ledger said then, it still says. Guard:
    # evidence_test.test_checkpoint_of_another_ledger_is_refused.
    _require(
      head in {attempt.head for attempt in attempts.get(before, ())},
      'checkpoint',
      path,
      'is not what the rounds in the ledger led to',
    )


def _check_metrics(
  directory: pathlib.Path,
  found: program.Observed,
  attempts,
  ended: bool,
) -> None:
  digests = metrics.digests(directory)
  for t, digest in digests.items():
    # PRIVACY: whoever is not in the ledger is not in the sensitivity either.
    # Guards: evidence_test.test_ledger_that_lacks_what_metrics_show_is_refused
    # and test_flipped_bit_of_metrics_is_refused.
    _require(
      t in attempts,
      'round',
      t,
      f'{run_record.METRICS_FILE} has it, and the ledger lacks it',
    )
    _require(
      attempts[t][-1].row == digest,
      'round',
      t,
      f'{run_record.METRICS_FILE} has another row than the one whose digest '
      'is in the ledger',
    )
  for row in metrics.rows(directory):
    t, clients = int(row['round']), row.get('clients')
    _require(
      not clients or int(clients) == found.cohort_sizes[t],
      'clients',
      clients,
      f'{run_record.METRICS_FILE} has so many in round {t}, and the '
      f'ledger {found.cohort_sizes[t]}',
    )
  if digests:
    first, last = min(digests), max(digests)
    _require(
      len(digests) == last - first + 1,
      'rounds',
      len(digests),
      f'{run_record.METRICS_FILE} has so many between {first} and {last}',
    )
    _require(
      not ended or last == found.last_round,
      'round',
      last,
      f'is the last one of {run_record.METRICS_FILE}, and the run has ended '
      f'with round {found.last_round}',
    )


def _require(holds: bool, name: str, value: object, rule: str) -> None:
  if not holds:
    if isinstance(value, tuple):
      (value,) = value
    raise errors.value_error(name, value, rule, _NOTHING)
