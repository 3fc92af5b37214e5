"""The folder of a run, opened: its plan, its keys and its journal."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Optional, Union

import attrs

from tff_bandmf import clips, errors
from tff_bandmf.noise import key as key_lib
from tff_bandmf.noise import placements
from tff_bandmf.program import folder, metrics, plan_file, run_record
from tff_bandmf.program import ledger as ledger_lib
from tff_bandmf.program import plan as plan_lib
from tff_bandmf.run import journal as journal_lib
from tff_bandmf.run import noised, record, sampling

GO_ON = (
  'for more, make a new plan and run it in another folder, from the last '
  'state; `bandmf compose` says what both cost together'
)


@dataclasses.dataclass(frozen=True)
class Program:
  """What a program of its own adds to a run.

  Attributes:
    says: what `run.json` says in place of the run, see `program.RunRecord`.
    columns: of `metrics.csv`, besides those that every run has; they are for
      everybody.
    max_memory_bytes: as for `placements.Tape`.
  """

  says: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  columns: Sequence[str] = ()
  max_memory_bytes: Optional[int] = None


@dataclasses.dataclass(frozen=True)
class Opened:
  """A folder that is open, and locked.

  Attributes:
    plan: that the folder keeps.
    ended: whether the run has ended.
    sampling_key: of the draws, None where cohorts are enforced.
    journal: of the run.
    noise: of the run; of another key where the run has ended.
  """

  plan: plan_lib.Plan
  ended: bool
  sampling_key: Optional[key_lib.Key]
  journal: journal_lib.Journal
  noise: noised.Noised


@contextlib.contextmanager
def open_folder(
  directory: pathlib.Path,
  plan: plan_lib.Plan,
  *,
  ledger: Optional[Union[str, os.PathLike]],
  after: Sequence[Union[str, os.PathLike]],
  moved: bool,
  program: Program,
) -> Iterator[Opened]:
  """Yields the folder, made or gone on with; see `Run` for the arguments."""
  from tff_bandmf.noise import position as position_lib

  with folder.locked(directory):
    plan = _stored(directory, plan)
    if ledger is not None:
      ledger_lib.place(directory, ledger)
    ended = (directory / run_record.RESULT_FILE).exists()
    sampling_key = None if ended else sampling.key_of(directory, plan)
    described = attrs.evolve(
      record.of(plan, sampling_key),
      after=record.named(directory, after, plan),
      **program.says,
    )
    if (directory / run_record.RUN_FILE).exists():
      there = run_record.RunRecord.read(directory)
      described = described.noted(there.notes())
      if ended:
        described = attrs.evolve(
          described, sampling_key_id=there.sampling_key_id
        )
    if ended:
      folder.check_record(directory, described)
      key = key_lib.Key.from_entropy()
    else:
      key = folder.open_run(
        directory, described, plan.strategy, plan.cohorts.schema, moved
      )
    run, _ = run_record.RunRecord.read(directory).bound()
    position = position_lib.Position(directory / run_record.PRIVATE, run)
    if not ended:
      # PRIVACY: what was killed in a round left it open, and its noise would
      # meet who is not recorded. Guard:
      # run_test.test_round_that_a_kill_left_open_is_closed.
      position.close()
    # PRIVACY: who knows how many were drawn can tell who was. Guard:
    # run_sampling_test.test_sizes_of_sampled_cohorts_are_not_released.
    columns = (
      *(('round', 'clients') if plan.sampled is None else ('round',)),
      *metrics.RELEASED * clips.indicators(plan.l2_norm_clip),
      *program.columns,
    )
    with ledger_lib.of_run(directory) as opened:
      journal = journal_lib.Journal(directory, opened, position, columns)
      noise = noised.Noised(
        plan,
        lambda: placements.Tape(
          key=key,
          start_round=journal.next,
          position=position,
          max_memory_bytes=program.max_memory_bytes,
        ),
      )
      yield Opened(plan, ended, sampling_key, journal, noise)


def _stored(directory: pathlib.Path, plan: plan_lib.Plan) -> plan_lib.Plan:
  """Returns the plan that the folder keeps, if it is the one given."""
  path = directory / run_record.PLAN_FILE
  if not path.exists():
    plan.save(path)
  stored = plan_lib.Plan.load(path)
  written, given = plan_file.request(stored), plan_file.request(plan)
  for name, value in given.items():
    if written[name] != value:
      raise errors.value_error(
        name,
        value,
        f'is not what the run was planned with, {written[name]}',
        f'go back to that; {GO_ON}'
        if name == 'rounds'
        else 'go back to that, or choose another folder',
      )
  return stored
