"""Checks that the files in a run's folder agree with each other.

| part of the ledger             | compared with                               |
|--------------------------------|---------------------------------------------|
| IDs of the run and its key     | `run.json`                                  |
| cohorts and events             | the ledger's hash chain, when it is opened  |
| heads of the chain             | `result.json`, every checkpoint in the      |
|                                | folder                                      |
| digests of rows, cohort sizes  | every row of `metrics.csv`                  |
| finished rounds                | started rounds; the record that the noise   |
|                                | of each round was verified                  |
| digest of the fixed files,     | plan, strategy, and the fields of           |
| recorded in each round         | `run.json` that may not change              |
| digest of the results          | `result.json`                               |
| attempts of each round         | files with fingerprints of released sums    |

A head is the last hash of the ledger's chain at some time. If a person edits
all files consistently, as the operator of the training could, the checks do not
notice it.
"""

from __future__ import annotations

import json
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Optional

from tff_bandmf import (
  _files,
  accounting,
  errors,
  participation,
  strategies,
)
from tff_bandmf import ledger as ledger_lib
from tff_bandmf.plan import plan as plan_lib
from tff_bandmf.plan import plan_json
from tff_bandmf.run_files import (
  checkpoints,
  folder,
  metrics,
  run_json,
  run_ledger,
)

_Attempts = Mapping[int, Sequence[ledger_lib.Attempt]]

# Relative tolerance of the measured standard deviation, which is float32.
_TOLERANCE = 1e-6
_REMEDY = 'nothing can be claimed for such a run'


def planned(
  directory: pathlib.Path,
  run: run_json.RunRecord,
  strategy: strategies.Strategy,
) -> Optional[accounting.Guarantee]:
  """Returns the guarantee of the plan in a folder, which `run.json` claims.

  Args:
    directory: folder of the run; without a plan in it, the result is None.
    run: content of `run.json`.
    strategy: C.

  Raises:
    ValueError: the plan is damaged or contradicts itself, or has another
      strategy, cohorts, clip, noise or request than the files of the run.
  """
  path = directory / run_json.PLAN_FILE
  if not path.exists():
    return None
  plan = plan_lib.Plan.load(path)
  _require(
    plan.strategy.digest() == strategy.digest(),
    f'strategy={path}: differs from the strategy in {run_json.STRATEGY_FILE}',
  )
  request = json.loads(json.dumps(plan_json.to_document(plan)))
  # A program may store a configuration of its own.
  if run.config.keys() == request.keys():
    _require_same(run.config, request)
  # PRIVACY: a forger could divide the clip in run.json by ten, multiply the
  # noise multiplier by ten, and compute every hash again. Their product, the
  # standard deviation of the noise, stays correct, but the report would claim a
  # tenth of the true mu = 1 / noise_multiplier. So the clip, the noise
  # multiplier and all other values of the claim must be those of the plan.
  # Guard: verify_test.test_files_that_contradict_each_other_do_not_hold.
  bound = {'bound': plan.result.bound} if plan.sampled else {}
  _require_same(run.claim, run_json.RunRecord.from_plan(plan, bound).claim)
  return plan.guarantee


def _require_same(
  stored: _files.JsonObject, expected: _files.JsonObject
) -> None:
  """Raises ValueError if a value in `run.json` differs from the plan."""
  for name in sorted({*stored, *expected}):
    value, other = stored.get(name), expected.get(name)
    numbers = {type(value), type(other)} <= {int, float}
    if isinstance(value, dict) and isinstance(other, dict):
      _require_same(value, other)
      continue
    _require(
      value == other or numbers and math.isclose(value, other, rel_tol=1e-9),  # type: ignore[arg-type]
      f'{name}={value}: {run_json.RUN_FILE} has this value, and '
      f'{run_json.PLAN_FILE} has {other}',
    )


def verified_ledger(
  directory: pathlib.Path,
  run: run_json.RunRecord,
  strategy: strategies.Strategy,
  schema: participation.Participation,
  z_stddev: float,
) -> ledger_lib.Observed:
  """Returns the participation in the ledger of a run, after all checks.

  Args:
    directory: folder of the run.
    run: content of `run.json`.
    strategy: C.
    schema: participation schema of the claim.
    z_stddev: claimed standard deviation of z, the independent noise from which
      the run makes C^-1 z, in the unit of the updates.

  Raises:
    ValueError: the ledger is missing or damaged, belongs to another run, or
      contradicts another file.
  """
  with run_ledger.open_ledger(directory) as ledger:
    bound = ledger.bound()
    attempts = ledger.all_attempts()
    last_round = max(attempts, default=-1)
    # PRIVACY: a round after the last row of C has no noise, and its release
    # would expose its clients. A ledger with such a round is refused.
    # Guard:
    # report_test.test_ledger_with_more_rounds_than_the_strategy_is_refused.
    _require(
      last_round < strategy.rounds,
      f'rounds={last_round + 1}: the ledger has more rounds than the strategy, '
      f'{strategy.rounds}',
    )
    observed = ledger.observed(strategy, schema.costs)
  # PRIVACY: the ledger of another run could show fewer participations than this
  # run had, and epsilon would be too small. The IDs of the run and of its key
  # must be the same in the ledger and in run.json.
  # Guard: evidence_test.test_ledger_of_another_run_is_refused.
  _require(
    bound == run.bound(),
    f'ledger={directory / run_json.LEDGER_FILE}: belongs to another run or key '
    f'than {run_json.RUN_FILE} names',
  )
  if run.population is not None:
    highest = run.highest_client
    if highest is None:
      highest = run.population - 1
    # PRIVACY: a client outside of the population may be a second ID of a person
    # in it, who then took part more often than the ledger shows for one ID. A
    # ledger with more clients or larger indices than the population is refused.
    # Guards: report_test.test_client_beyond_the_population_is_refused and
    # run_rounds_test.test_run_of_any_ids_is_reported.
    _require(
      observed.last_client <= highest,
      f'client={observed.last_client}: the ledger has an index above the '
      f'highest index of the population, {highest}',
    )
    _require(
      observed.clients <= run.population,
      f'clients={observed.clients}: the ledger has more clients than the '
      f'population={run.population}',
    )
  _check_noise(observed, z_stddev)
  # PRIVACY: a file that was edited after a round could claim another noise or
  # clip than the round had. If the ledger has a digest of the files for a
  # round, the files must still have this digest.
  # Guard: evidence_test.test_other_clip_than_the_rounds_held_to_is_refused.
  _require(
    observed.enforced <= {None, run.enforced_digest(directory)},
    f'run={directory / run_json.RUN_FILE}: this file, {run_json.PLAN_FILE} or '
    f'{run_json.STRATEGY_FILE} was changed after rounds in the ledger',
  )
  # PRIVACY: a round that finishes twice has the same noise both times, and two
  # sums with the same noise reveal their difference. A ledger is refused if a
  # round finished twice with results that may be different.
  # Guard: evidence_test.test_round_that_was_finished_twice_is_refused.
  _require(
    not (z_stddev and observed.finished_twice),
    f'round={min(observed.finished_twice, default=None)}: was finished twice, '
    'and the ledger does not show that both results are the same: two sums may '
    'have the same noise',
  )
  results, ended = run_json.read_result(directory)
  if ended is not None:
    _require(
      # With a `Budget`, a run may end after any number of rounds.
      observed.rounds == strategy.rounds or schema.costs is not None,
      f'rounds={observed.rounds}: the run has ended, but its ledger lacks some '
      f'of {strategy.rounds} rounds',
    )
    _require(
      not observed.open,
      f'round={min(observed.open, default=None)}: was started and neither '
      'finished nor burnt, but the run has ended',
    )
    # PRIVACY: a forger could remove clients from the ledger and compute its
    # chain of hashes again, and epsilon would be too small. The last hash of
    # the chain must be equal to the hash in result.json.
    # Guard: evidence_test.test_client_cut_out_of_two_cohorts_is_refused.
    _require(
      ended == observed.head,
      f'ledger={directory / run_json.LEDGER_FILE}: is not the ledger that '
      f'{run_json.RESULT_FILE} was written with',
    )
    # PRIVACY: a reader could trust an accuracy that was edited after the run.
    # The ledger has the digest of the results at the end of the run, and the
    # results must still have this digest.
    # Guard:
    # evidence_test.test_results_that_the_run_did_not_end_with_are_refused.
    _require(
      observed.ended == run_json.result_digest(results),
      f'result={directory / run_json.RESULT_FILE}: has other results than the '
      'ledger has for the end of the run',
    )
  folder.check_releases(directory, lambda t: attempts.get(t, ()))
  _check_checkpoints(directory, attempts)
  _check_metrics(directory, observed, attempts, ended is not None)
  return observed


def _check_noise(observed: ledger_lib.Observed, z_stddev: float) -> None:
  measured = observed.z_stddev
  if measured is not None:
    _require(
      measured >= z_stddev * (1 - _TOLERANCE),
      f'z_stddev={measured}: a round had less noise than the claim, {z_stddev}',
    )
    _require(
      measured <= z_stddev * (1 + _TOLERANCE),
      f'z_stddev={measured}: all rounds had more noise than the claim, '
      f'{z_stddev}: the claim has another clip or noise than the rounds',
    )
  # PRIVACY: one release without its noise exposes its clients. The noise of
  # every finished round must have been verified.
  # Guard: evidence_test.test_noise_verified_in_one_of_six_rounds_is_refused.
  _require(
    not (z_stddev and observed.unchecked),
    f'round={min(observed.unchecked, default=None)}: is the first of '
    f'{len(observed.unchecked)} of {observed.finished} finished rounds whose '
    'noise was not verified by the program that added it',
  )


def _check_checkpoints(directory: pathlib.Path, attempts: _Attempts) -> None:
  for path in sorted((directory / run_json.CHECKPOINTS).glob('*.npz')):
    _, head = checkpoints.read(path)
    before = int(path.stem) - 1 if path.stem.isdecimal() else -2
    if before == -1:
      # The checkpoint before round 0 follows no round.
      continue
    # PRIVACY: a ledger that was replaced or shortened could hide participation.
    # A checkpoint has the hash that the true ledger's chain had after the last
    # round of the checkpoint. This hash must be in the ledger.
    # Guard: evidence_test.test_checkpoint_of_another_ledger_is_refused.
    _require(
      head in {attempt.head for attempt in attempts.get(before, ())},
      f'checkpoint={path}: does not follow from the rounds in the ledger',
    )


def _check_metrics(
  directory: pathlib.Path,
  observed: ledger_lib.Observed,
  attempts: _Attempts,
  ended: bool,
) -> None:
  digests = metrics.digests(directory)
  for t, digest in digests.items():
    # PRIVACY: if the ledger lacks a round, the sensitivity and the epsilon that
    # are computed from the ledger may be too small. Every row of the metrics
    # must belong to a round in the ledger.
    # Guards: evidence_test.test_ledger_that_lacks_what_metrics_show_is_refused
    # and test_flipped_bit_of_metrics_is_refused.
    _require(
      t in attempts,
      f'round={t}: {run_json.METRICS_FILE} has this round, and the ledger '
      'lacks it',
    )
    _require(
      attempts[t][-1].row == digest,
      f'round={t}: {run_json.METRICS_FILE} has a row that differs from the '
      'digest of the row in the ledger',
    )
  for row in metrics.rows(directory):
    t, clients = int(row['round']), row.get('clients')
    _require(
      not clients or int(clients) == observed.cohort_sizes[t],
      f'clients={clients}: {run_json.METRICS_FILE} has this number in round '
      f'{t}, and the ledger has {observed.cohort_sizes[t]}',
    )
  if digests:
    first, last = min(digests), max(digests)
    _require(
      len(digests) == last - first + 1,
      f'rounds={len(digests)}: {run_json.METRICS_FILE} lacks rounds between '
      f'{first} and {last}',
    )
    _require(
      not ended or last == observed.last_round,
      f'round={last}: is the last round of {run_json.METRICS_FILE}, and the '
      f'run has ended with round {observed.last_round}',
    )


def _require(holds: bool, message: str) -> None:
  if not holds:
    raise errors.value_error(f'{message}; {_REMEDY}')
