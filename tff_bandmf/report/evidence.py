"""Whether a ledger is the whole ledger of a run, round by round.

| compared                      | with                                         |
|-------------------------------|----------------------------------------------|
| what the ledger is bound to   | run and key of `run.json`                    |
| its cohorts and events        | its own chain, as it is opened               |
| the heads of the chain        | `result.json`, every checkpoint that is here |
| the digests of rows, the size | every row of `metrics.csv`                   |
| of each cohort                |                                              |
| finished rounds               | started ones; noise verified in each         |
| what each round held to       | `run.json` but its notes, plan, strategy     |
| the results of the run        | `result.json`                                |
| marks of releases             | attempts that the ledger has                 |

Files are compared with each other. Against someone who edits all of them alike,
and so against whoever trains, there is no defence here.
"""

from __future__ import annotations

import pathlib

from tff_bandmf import errors, strategies
from tff_bandmf import ledger as ledger_lib
from tff_bandmf.run_files import (
  checkpoints,
  folder,
  metrics,
  run_json,
  run_ledger,
)

# z is measured in float32.
_MEASURED = 1e-6
_NOTHING = 'nothing can be claimed for such a run'


def observed(
  directory: pathlib.Path,
  run: run_json.RunRecord,
  strategy: strategies.Strategy,
  z_stddev: float,
) -> ledger_lib.Observed:
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
  with run_ledger.open_ledger(directory) as ledger:
    bound = ledger.bound()
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
    directory / run_json.LEDGER_FILE,
    f'is not that of the run and the key in {run_json.RUN_FILE}',
  )
  if run.population is not None:
    highest = run.highest_client
    if highest is None:
      highest = run.population - 1
    # PRIVACY: clients that nobody may draw are of another population, or one
    # person under two names. So their number and their indices are compared.
    # Guards: report_test.test_client_beyond_the_population_is_refused and
    # run_rounds_test.test_run_of_any_ids_is_reported.
    _require(
      found.last_client <= highest,
      'client',
      found.last_client,
      f'the ledger has clients beyond the highest of the population, {highest}',
    )
    _require(
      found.clients <= run.population,
      'clients',
      found.clients,
      f'the ledger has more than the population={run.population}',
    )
  _check_noise(found, z_stddev)
  # PRIVACY: whoever edits a file after the rounds would claim noise, clip or
  # clients that the rounds never had. Guard:
  # evidence_test.test_other_clip_than_the_rounds_held_to_is_refused.
  _require(
    found.enforced <= {None, run.enforced_digest(directory)},
    'run',
    directory / run_json.RUN_FILE,
    f'or {run_json.PLAN_FILE} or {run_json.STRATEGY_FILE} is not that which '
    'the rounds in the ledger held to',
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
  results, ended = run_json.read_result(directory)
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
      ended == found.head,
      'ledger',
      directory / run_json.LEDGER_FILE,
      f'is not the one that {run_json.RESULT_FILE} was written with',
    )
    # PRIVACY: an edited accuracy could make a reader choose another model than
    # the run supports. The ledger's last event has the digest of all. Guard:
    # evidence_test.test_results_that_the_run_did_not_end_with_are_refused.
    _require(
      found.ended == run_json.result_digest(results),
      'result',
      directory / run_json.RESULT_FILE,
      'has other results than the ledger says that the run ended with',
    )
  folder.check_releases(directory, lambda t: attempts.get(t, ()))
  _check_checkpoints(directory, attempts)
  _check_metrics(directory, found, attempts, ended is not None)
  return found


def _check_noise(found: ledger_lib.Observed, z_stddev: float) -> None:
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
  for path in sorted((directory / run_json.CHECKPOINTS).glob('*.npz')):
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
  found: ledger_lib.Observed,
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
      f'{run_json.METRICS_FILE} has it, and the ledger lacks it',
    )
    _require(
      attempts[t][-1].row == digest,
      'round',
      t,
      f'{run_json.METRICS_FILE} has another row than the one whose digest '
      'is in the ledger',
    )
  for row in metrics.rows(directory):
    t, clients = int(row['round']), row.get('clients')
    _require(
      not clients or int(clients) == found.cohort_sizes[t],
      'clients',
      clients,
      f'{run_json.METRICS_FILE} has so many in round {t}, and the '
      f'ledger {found.cohort_sizes[t]}',
    )
  if digests:
    first, last = min(digests), max(digests)
    _require(
      len(digests) == last - first + 1,
      'rounds',
      len(digests),
      f'{run_json.METRICS_FILE} has so many between {first} and {last}',
    )
    _require(
      not ended or last == found.last_round,
      'round',
      last,
      f'is the last one of {run_json.METRICS_FILE}, and the run has ended '
      f'with round {found.last_round}',
    )


def _require(holds: bool, name: str, value: object, rule: str) -> None:
  if not holds:
    if isinstance(value, tuple):
      (value,) = value
    raise errors.value_error(f'{name}={value}: {rule}; {_NOTHING}')
