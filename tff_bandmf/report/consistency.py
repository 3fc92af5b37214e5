"""Checks that the files in a run's folder agree with each other.

| part of the ledger             | compared with                               |
|--------------------------------|---------------------------------------------|
| IDs of the run and its key     | `run.json`                                  |
| cohorts and events             | the ledger's hash chain, when it is opened  |
| heads of the chain             | every checkpoint in the folder              |
| digests of rows, cohort sizes  | every row of metrics                        |
| finished rounds                | started rounds; the flag that says that the |
|                                | noise of the attempt was verified           |
| digest of the files that may   | plan and `run.json`                         |
| not change during a run        |                                             |
| results and last head; also    | the exported copies, if they exist          |
| the strategy of the plan       |                                             |
| attempts of each round         | files with fingerprints of released sums    |

A head is the last hash of the ledger's chain at some time. The operator of the
training could edit all files consistently. The checks would not notice this.
"""

from __future__ import annotations

import pathlib

from tff_bandmf import errors
from tff_bandmf import ledger as ledger_lib
from tff_bandmf.plan import plan as plan_lib
from tff_bandmf.run_files import (
  checkpoints,
  exports,
  folder,
  metrics,
  run_json,
  run_ledger,
)

# Relative tolerance of the ledger's standard deviation, which is float32.
_TOLERANCE = 1e-6
_REMEDY = 'nothing can be claimed for such a run'


def verified_ledger(
  directory: pathlib.Path, run: run_json.RunDetails, plan: plan_lib.Plan
) -> ledger_lib.Counts:
  """Returns the participation in the ledger of a run, after all checks.

  Args:
    directory: folder of the run.
    run: content of `run.json`.
    plan: plan of the run.

  Raises:
    ValueError: the ledger is missing or damaged, belongs to another run, or
      contradicts another file.
  """
  strategy = plan.strategy
  costs = (plan.unamplified or plan.guarantee).cohorts.schema.costs
  with run_ledger.open_ledger(directory, check=False) as ledger:
    bound = ledger.bound()
    last_round = ledger.last_round()
    # PRIVACY: a round after the last row of C has no noise, and its release
    # would expose its clients. A ledger with such a round is refused.
    # Guard:
    # report_test.test_ledger_with_more_rounds_than_the_strategy_is_refused.
    _require(
      last_round < strategy.rounds,
      f'rounds={last_round + 1}: the strategy has only {strategy.rounds}',
    )
    observed = ledger.observed(strategy, costs)
  # PRIVACY: the ledger of another run could show fewer participations than this
  # run had, and epsilon would be too small. The IDs of the run and of its key
  # must be the same in the ledger and in run.json.
  # Guard: consistency_test.test_ledger_of_another_run_is_refused.
  _require(
    bound == run.bound(),
    f'ledger={directory / run_json.LEDGER_FILE}: belongs to another run or key '
    f'than {run_json.RUN_FILE} names',
  )
  run = run.with_notes(observed.notes)
  if run.population is not None:
    highest = run.highest_client
    if highest is None:
      highest = run.population - 1
    # PRIVACY: a client index outside the population may be a second ID of a
    # person who is in the population. This person then took part more often
    # than the ledger shows for one ID. A ledger with more clients or larger
    # indices than the population is refused.
    # Guards: report_test.test_client_beyond_the_population_is_refused and
    # run_rounds_test.test_run_of_any_ids_is_reported.
    _require(
      observed.last_client <= highest,
      f'client={observed.last_client}: the population ends at {highest}',
    )
    _require(
      # PRIVACY: If a ledger has more clients than the population, the claim
      # does not cover all of them. Such a ledger is refused.
      # Guard: run_rounds_test.test_run_of_any_ids_is_reported.
      observed.clients <= run.population,
      f'clients={observed.clients}: are more than population={run.population}',
    )
  measured, z_stddev = observed.z_stddev, plan.z_stddev
  if measured is not None:
    words = 'a round had less' if measured < z_stddev else 'all rounds had more'
    _require(
      abs(measured - z_stddev) <= _TOLERANCE * z_stddev,
      f'z_stddev={measured}: {words} noise than the claim, {z_stddev}',
    )
  # PRIVACY: one release without its noise exposes its clients. The noise of
  # every finished round must have been verified.
  # Guard: consistency_test.test_noise_verified_in_one_of_six_rounds_is_refused.
  _require(
    not (z_stddev and observed.unchecked),
    f'round={min(observed.unchecked, default=None)}: is the first of '
    f'{len(observed.unchecked)} of {observed.finished} finished rounds whose '
    'noise was not verified by the program that added it',
  )
  # PRIVACY: a file that was edited after a round could claim another noise or
  # clip than the round had. If the ledger has a digest of the files for a
  # round, the files must still have this digest.
  # Guard: consistency_test.test_other_clip_than_the_rounds_held_to_is_refused.
  _require(
    observed.enforced <= {None, run.enforced_digest(directory)},
    f'run={directory / run_json.RUN_FILE}: this file or {run_json.PLAN_FILE} '
    'was changed after rounds in the ledger',
  )
  # PRIVACY: a round that finishes twice has the same noise both times, and two
  # sums with the same noise reveal their difference. A ledger is refused if a
  # round finished twice with sums that may be different.
  # Guard: consistency_test.test_round_that_was_finished_twice_is_refused.
  _require(
    not (z_stddev and observed.finished_twice),
    f'round={min(observed.finished_twice, default=None)}: was finished twice, '
    'so two different sums may have the same noise',
  )
  attempts = observed.attempts
  _require(
    observed.ended is None or not observed.open,
    f'round={min(observed.open, default=None)}: is open, but the run has ended',
  )
  folder.check_releases(directory, attempts)
  for path in sorted((directory / run_json.CHECKPOINTS).glob('*.npz')):
    _, head = checkpoints.read(path)
    # The checkpoint before round 0 follows no round.
    before = int(path.stem) - 1 if path.stem.isdecimal() else -2
    heads = {attempt.head for attempt in attempts.get(before, ())}
    # PRIVACY: a ledger that was replaced or shortened could hide participation.
    # A checkpoint has the hash that the true ledger's chain had after the last
    # round of the checkpoint. This hash must be in the ledger.
    # Guard: consistency_test.test_checkpoint_of_another_ledger_is_refused.
    _require(
      before == -1 or head in heads,
      f'checkpoint={path}: does not follow from the rounds in the ledger',
    )
  exports.check(directory, plan, observed.ended)
  metrics.check(directory, attempts)
  for row in metrics.rows(directory, attempts):
    t, clients = int(row['round']), row.get('clients')
    # PRIVACY: a forger could remove clients from the ledger and compute its
    # chain again, and epsilon would be too small. Each row has the size of its
    # cohort, and the ledger must have a cohort of this size.
    # Guard: consistency_test.test_client_cut_out_of_two_cohorts_is_refused.
    _require(
      not clients or clients == str(observed.cohort_sizes[t]),
      f'clients={clients}: the metrics of round {t} have this number, and the '
      f'ledger has {observed.cohort_sizes[t]}',
    )
  return observed


def _require(holds: bool, message: str) -> None:
  if not holds:
    raise errors.value_error(f'{message}; {_REMEDY}')
