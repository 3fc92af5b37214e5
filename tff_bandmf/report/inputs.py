"""Reads the input of a report: a run's folder, or a plan and perhaps a log."""

from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Optional, Union

from tff_bandmf import _files, accounting, errors, sensitivity
from tff_bandmf.cohorts import names
from tff_bandmf.ledger import counts
from tff_bandmf.plan import plan as plan_lib
from tff_bandmf.report import claim as claim_lib
from tff_bandmf.report import participation_log
from tff_bandmf.run_files import metrics as metrics_lib
from tff_bandmf.run_files import run_json, run_ledger

COMPARE_DIRECTORY = 'compare'
# Releases without noise in columns of `metrics.csv`.
_COLUMNS = {
  'seconds': 'duration of every round',
  'memory_mib': 'memory of the program after every round',
  'clients': 'cohort size of every round, exact',
  'non_finite': (
    'exact number of clients of every round whose update was not finite and '
    'counted as zero'
  ),
  'accuracy': (
    'accuracy of released models on validation clients, without noise'
  ),
  'accuracy_of_tff': (
    "accuracy on validation clients by TFF's definition, without noise"
  ),
  'accuracy_with_end_and_unknown': (
    'accuracy on validation clients, with ends of sentence and unknown words, '
    'without noise'
  ),
  'loss': 'loss of released models on validation clients, without noise',
}
# Counts that a report itself states without noise.
_COUNTS = (
  'exact counts: the cohort sizes, the number of clients, and the largest '
  'number and the least distance of the rounds of a client'
)
Path = Union[str, os.PathLike]
# Maps the ID of a run to the name and the claim of the run.
_Runs = dict[str, tuple[str, claim_lib.Claim]]


@dataclasses.dataclass(frozen=True)
class Source:
  """The input of a report.

  Attributes:
    name: name of the run's folder; for training elsewhere, name of the log file
      or, if there is no log, of the plan file.
    run: details of the run.
    claim: claim of the run.
    completed: whether the end of the run was recorded; for training elsewhere,
      whether the claim is for all planned rounds.
    elsewhere: whether training ran elsewhere: outside this library, without a
      ledger.
    side_releases: releases without noise: objects with `where` and `what`.
    files_sha256: maps the name of a file to its SHA-256.
    before: earlier runs on the same clients: maps run ID to (name, claim).
    releases: releases of other programs on the same clients.
    results: maps the name of a metric to its value for the last model.
    accuracy: pairs (rounds done, validation accuracy in [0, 1]).
    clips: pairs (rounds done, clip) of an adaptive clip.
    compared: runs with which the report compares this run.
    alike: warning that names two clients of a log whose names may mean one
      client; None without such names. The warning is for the operator, since a
      report names no client.
  """

  name: str
  run: run_json.RunDetails
  claim: claim_lib.Claim
  completed: bool
  elsewhere: bool
  side_releases: list[dict[str, str]]
  files_sha256: dict[str, str]
  before: _Runs = dataclasses.field(default_factory=dict)
  releases: Sequence[accounting.Release] = ()
  results: Mapping[str, float] = dataclasses.field(default_factory=dict)
  accuracy: Sequence[tuple[int, float]] = ()
  clips: Sequence[tuple[int, float]] = ()
  compared: tuple[Source, ...] = ()
  alike: Optional[str] = None

  @property
  def guarantee(self) -> accounting.Composition:
    """The guarantee of the run, composed with earlier runs and other releases.

    Each run counts with all its planned rounds, started or not.
    """
    claims = {self.run.run_id: self.claim}
    # PRIVACY: Earlier runs on the same clients add to the loss. All claims of
    # earlier runs are composed.
    # Guard: after_test.test_guarantee_of_a_run_has_those_before_it.
    claims.update({name: claim for name, (_, claim) in self.before.items()})
    # PRIVACY: earlier runs and other releases on the same clients add to the
    # privacy loss, so the epsilon of this run alone would be too small. The
    # guarantees of all of them are composed.
    # Guards: after_test.test_guarantee_of_a_run_has_those_before_it and
    # after_test.test_other_releases_are_composed_and_listed.
    return accounting.Composition(
      tuple(claim.composed for claim in claims.values()),
      tuple(claims),
      tuple(self.releases),
    )

  @property
  def composes(self) -> bool:
    """Whether the claim counts more than the releases of this run."""
    return bool(self.before or self.releases)


def of_run(directory: Path) -> Source:
  """Returns the input of a report on a run.

  Args:
    directory: folder of the run. Its folder `compare/` may have runs that the
      report compares with this run.

  Raises:
    ValueError: the files do not support a claim.
    OSError: a file cannot be read.
  """
  directory = pathlib.Path(directory)
  run = run_json.RunDetails.read(directory)
  claim = claim_lib.from_run(directory)
  observed = claim.observed
  rows = metrics_lib.rows(directory, observed.attempts)
  run = run.with_notes({'unit_of_privacy': claim.plan.unit, **observed.notes})
  return Source(
    directory.resolve().name,
    run,
    claim,
    observed.ended is not None,
    False,
    _side_releases(directory, run, list(rows[0]) if rows else [], claim),
    # The head of the ledger's chain stands for the ledger, whose file changes
    # while the run is open.
    {
      name: _files.sha256(directory / name)
      for name in (run_json.RUN_FILE, run_json.PLAN_FILE)
    },
    _before(directory, run),
    results={} if observed.ended is None else observed.ended.results,
    accuracy=metrics_lib.accuracy(rows),
    clips=metrics_lib.clips(observed.attempts),
    compared=tuple(
      of_run(path)
      for path in sorted((directory / COMPARE_DIRECTORY).glob('*'))
      if run_ledger.results(path) is not None
    ),
  )


def _before(directory: pathlib.Path, run: run_json.RunDetails) -> _Runs:
  """Returns all earlier runs on the clients of a run, each once."""
  # PRIVACY: two earlier runs can be in folders of the same name. If they
  # counted as one run, epsilon would be too small. So the keys of this dict are
  # run IDs, not names.
  # Guard: after_test.test_predecessors_of_one_name_all_count.
  predecessors: _Runs = {}
  named = [(directory, each) for each in run.after or ()]
  for folder, each in named:
    if each['run_id'] in (run.run_id, *predecessors):
      continue
    path = pathlib.Path(os.path.normpath(folder / each['run']))
    other = run_json.RunDetails.read(path)
    # PRIVACY: somebody could replace the folder of an earlier run by the folder
    # of a run with a smaller epsilon. The run ID in the folder must be equal to
    # the ID that the later run recorded.
    # Guard: after_test.test_other_run_in_the_place_of_a_predecessor_is_refused.
    if other.run_id != each['run_id']:
      raise errors.value_error(
        f'after={path}: is not the run that {run_json.RUN_FILE} names; restore '
        'the folder of that run'
      )
    name = os.path.relpath(path, directory)
    predecessors[each['run_id']] = name, claim_lib.from_run(path)
    named += [(path, earlier) for earlier in other.after or ()]
  return predecessors


def of_plan(
  plan_file: Path,
  log: Optional[Union[Path, participation_log.ParticipationLog]] = None,
  notes: Optional[Mapping[str, _files.Json]] = None,
) -> Source:
  """Returns the input of a report on training outside this library.

  Args:
    plan_file: file that `Plan.save` wrote, with the noise that was added and
      the planned participation.
    log: participation log, or its path. If None, the claim is for the
      participation that the plan states.
    notes: maps the name of an argument of `Run.note` to its value.

  Raises:
    ValueError: a file is not a plan or a log, the cohorts of the plan are
      sampled, the plan has no delta, or the log has no participation.
    OSError: a file cannot be read.
  """
  plan = plan_lib.Plan.load(plan_file)
  # PRIVACY: a log does not show how cohorts were drawn, so an amplified claim
  # could not be checked. Plans of sampled cohorts are refused.
  # Guard: elsewhere_test.test_sampled_cohorts_are_refused.
  if not plan.cohorts.is_enforced:
    raise errors.value_error(
      f'cohorts={type(plan.cohorts).__name__}: a log does not show how cohorts '
      'were drawn; use bandmf observe, for a guarantee without amplification'
    )
  if plan.delta is None:
    raise errors.value_error(
      'delta=None: epsilon needs a delta; make the plan with epsilon and delta'
    )
  run = run_json.RunDetails(unit_of_privacy=plan.unit).with_notes(notes or {})
  path, alike = pathlib.Path(plan_file), None
  digests = {'plan': _files.sha256(path)}
  tells: list[tuple[str, str]] = []
  if log is None:
    # Without a log, the claim is for all planned rounds. Their clients are
    # unknown, so each round gets the size 0.
    sizes = dict.fromkeys(range(plan.rounds), 0)
    observed = sensitivity.of_clients((), plan.strategy, plan.schema.costs)
  else:
    if not isinstance(log, participation_log.ParticipationLog):
      log = participation_log.ParticipationLog(log)
    log.check_sizes(plan.most_clients)
    sizes = log.cohort_sizes()
    observed = log.observed(plan.strategy, plan.schema.costs)
    path, alike = log.path, log.alike
    digests['log'] = log.sha256()
    tells = [
      ('the log', 'the clients of each round; do not publish the log'),
      ('this report', _COUNTS),
    ]
  if alike is not None:
    run = run.with_notes({'not_covered': [*run.not_covered, names.NOT_COVERED]})
  claim = claim_lib.from_evidence(plan, counts.from_log(sizes, observed))
  return Source(
    path.stem,
    run,
    claim,
    claim.rounds >= plan.rounds,
    True,
    _stated(tells, 'stated', run),
    digests,
    alike=alike,
  )


def _side_releases(
  directory: pathlib.Path,
  run: run_json.RunDetails,
  columns: list[str],
  claim: claim_lib.Claim,
) -> list[dict[str, str]]:
  """Returns the releases without noise: objects with `where` and `what`.

  Args:
    directory: folder of the run.
    run: details of the run.
    columns: columns of `metrics.csv`; unknown columns count as without noise.
    claim: claim of the run. The report of an amplified claim does not state the
      counts `_COUNTS`, and the result leaves them out.
  """
  table = []
  if run.train_sha256:
    table.append((run_json.RUN_FILE, 'a digest of the training data'))
  # PRIVACY: the columns in `RELEASED` have noise only if the clip is adaptive.
  # If the clip is constant, a table without these columns would hide releases
  # without noise. So they are left out only if the clip is adaptive.
  # Guard: run_clip_test.test_adaptive_clip_of_a_process_is_told.
  with_noise = metrics_lib.RELEASED if claim.adaptive_clip else ()
  for column in columns:
    if column not in ('round', *metrics_lib.PLANNED, *with_noise):
      what = _COLUMNS.get(column, 'a column that this report does not know')
      table.append((f'{run_json.METRICS_FILE}, {column}', what))
  if claim.observed.ended is not None:
    table.append((run_json.RESULT_FILE, 'measured results of the last model'))
  ledger, hashes = run_json.LEDGER_FILE, 'hashes of the clients of each round'
  if run.population is not None:
    table.append((ledger, 'exact number of clients that may be drawn'))
  has_key = (directory / run_json.LEDGER_KEY).exists()
  hashes += (
    '; keep the ledger secret' if has_key else ', under a key that is destroyed'
  )
  table.append((ledger, hashes))
  if claim.amplified is None:
    table.append(('this report', _COUNTS))
  return _stated(table, 'stated by the run', run)


def _stated(
  table: list[tuple[str, str]], where: str, run: run_json.RunDetails
) -> list[dict[str, str]]:
  """Returns the releases in `table`, then the side releases of the run."""
  table = table + [(where, item) for item in run.side_releases]
  return [{'where': where, 'what': what} for where, what in table]
