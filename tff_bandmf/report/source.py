"""What a report is made of: the folder of a run, or a plan and a log."""

from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, Optional, Union

from tff_bandmf import _files, accounting, errors, sensitivity
from tff_bandmf.ledger import observed as observed_lib
from tff_bandmf.plan import plan as plan_lib
from tff_bandmf.report import (
  caveats,
  participation_log,
  side_releases,
  transparency,
)
from tff_bandmf.report import claim as claim_lib
from tff_bandmf.run_files import metrics as metrics_lib
from tff_bandmf.run_files import run_json

COMPARE_DIRECTORY = 'compare'
Path = Union[str, os.PathLike]


@dataclasses.dataclass(frozen=True)
class Source:
  """What a report is made of.

  Attributes:
    name: of the run.
    run: what it says of itself.
    claim: what may be claimed.
    completed: whether it has ended.
    elsewhere: whether a log is all that there is of it.
    side_releases: what is released without noise.
    files_sha256: file to SHA-256.
    before: runs on the same clients before it: run_id to (name, claim).
    result: what the last model was measured to do.
    accuracy: (rounds done, validation accuracy).
    clips: (rounds done, clip) of a clip that adapts.
    compared: runs that are shown next to it.
  """

  name: str
  run: run_json.RunRecord
  claim: claim_lib.Claim
  completed: bool
  elsewhere: bool
  side_releases: list[dict[str, str]]
  files_sha256: dict[str, str]
  before: Mapping[str, tuple[str, claim_lib.Claim]] = dataclasses.field(
    default_factory=dict
  )
  result: Mapping[str, float] = dataclasses.field(default_factory=dict)
  accuracy: Sequence[tuple[int, float]] = ()
  clips: Sequence[tuple[int, float]] = ()
  compared: tuple[Source, ...] = ()

  @property
  def guarantee(self) -> accounting.Composition:
    """What the run may claim, together with the runs before it."""
    claims = {self.run.run_id: self.claim}
    claims.update({name: claim for name, (_, claim) in self.before.items()})
    # PRIVACY: what runs before it released of the same clients counts too.
    # Guard: after_test.test_guarantee_of_a_run_has_those_before_it.
    return accounting.Composition(
      tuple(claim.claimed for claim in claims.values()), tuple(claims)
    )

  @property
  def warned_before(self) -> list[str]:
    """What has to be known of the runs before it."""
    # PRIVACY: the composition is of what was released so far. Guard:
    # after_test.test_predecessor_that_may_go_on_is_warned_of.
    if all(
      claim.rounds == claim.held.strategy.rounds
      for _, claim in self.before.values()
    ):
      return []
    return [caveats.UNENDED_BEFORE]


def of_run(directory: Path) -> Source:
  """Returns what the folder of a run holds.

  Args:
    directory: of the run; runs below `compare/` are shown next to it.

  Raises:
    TypeError: a number of `run.json` is none.
    ValueError: the files do not support a claim.
    OSError: a file cannot be read.
  """
  directory = pathlib.Path(directory)
  run = run_json.RunRecord.read(directory)
  metrics = metrics_lib.rows(directory)
  result, head = run_json.read_result(directory)
  claim = claim_lib.established(directory)
  return Source(
    directory.resolve().name,
    run,
    claim,
    head is not None,
    False,
    side_releases.of(
      directory,
      run,
      list(metrics[0]) if metrics else [],
      claim.amplified is not None,
    ),
    transparency.file_digests(directory),
    _before(directory, run),
    result,
    metrics_lib.accuracy(metrics),
    metrics_lib.clips(metrics),
    tuple(
      of_run(path)
      for path in sorted((directory / COMPARE_DIRECTORY).glob('*'))
      if (path / run_json.RESULT_FILE).exists()
    ),
  )


def _before(
  directory: pathlib.Path, run: run_json.RunRecord
) -> dict[str, tuple[str, claim_lib.Claim]]:
  """Returns the runs that a run names, and those that they name, each once."""
  # PRIVACY: by what tells runs apart, for several may have one name. Guard:
  # after_test.test_predecessors_of_one_name_all_count.
  found: dict[str, tuple[str, claim_lib.Claim]] = {}
  named = [(directory, each) for each in run.after or ()]
  for here, each in named:
    if each['run_id'] in (run.run_id, *found):
      continue
    path = pathlib.Path(os.path.normpath(here / each['run']))
    other = run_json.RunRecord.read(path)
    # PRIVACY: a run that took its place may have used less noise. Guard:
    # after_test.test_other_run_in_the_place_of_a_predecessor_is_refused.
    if other.run_id != each['run_id']:
      raise errors.value_error(
        'after',
        path,
        f'is not the run that {run_json.RUN_FILE} names',
        'put that run back into its place',
      )
    name = os.path.relpath(path, directory)
    found[each['run_id']] = name, claim_lib.established(path)
    named += [(path, more) for more in other.after or ()]
  return found


def of_log(
  plan_file: Path, log_file: Path, notes: Optional[Mapping[str, Any]] = None
) -> Source:
  """Returns what is known of training that ran elsewhere.

  Args:
    plan_file: of `Plan.save`: the noise that was added, and what was planned.
    log_file: who took part, CSV or Parquet; see `participation_log`.
    notes: statements, as `Run.note` takes them.

  Raises:
    ValueError: a file is not what it must be, the plan amplifies by sampling
      or claims nothing at a delta, or nobody took part.
    OSError: a file cannot be read.
  """
  plan = plan_lib.Plan.load(plan_file)
  # PRIVACY: a log does not show how cohorts were drawn. Guard:
  # elsewhere_test.test_sampled_cohorts_are_refused.
  if not plan.cohorts.is_enforced:
    raise errors.value_error(
      'cohorts',
      type(plan.cohorts).__name__,
      'are sampled, and a log does not show how they were drawn',
      'see what it shows without that: bandmf observe',
    )
  if plan.delta is None:
    raise errors.value_error(
      'delta',
      None,
      'epsilon is at a delta, and the plan states none',
      'plan with epsilon and delta',
    )
  log = participation_log.ParticipationLog(log_file)
  log.check_sizes(plan.most_clients)
  found = sensitivity.of_clients(log.parts(), plan.strategy)
  if not found.clients:
    raise errors.value_error(
      'log', log_file, 'shows no participation', 'give a whole log'
    )
  run = run_json.RunRecord.from_plan(plan).with_statements(notes or {})
  sizes = log.cohort_sizes()
  claim = claim_lib.of(
    plan.guarantee,
    observed_lib.of_log(sizes, found),
    delta=plan.delta,
    l2_norm_clip=plan.clip,
    clients_per_round=plan.clients_per_round,
  )
  return Source(
    pathlib.Path(log_file).stem,
    run,
    claim,
    claim.rounds == plan.rounds,
    True,
    [
      {'where': where, 'what': what}
      for where, what in (
        ('the log', 'who took part in which round; do not publish it'),
        ('this report', side_releases.COUNTS),
        *(('stated', item) for item in run.side_releases),
      )
    ],
    {
      name: _files.sha256(pathlib.Path(path))
      for name, path in (('plan', plan_file), ('log', log_file))
    },
  )
