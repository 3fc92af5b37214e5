"""The folder of a run, opened: its plan, its keys, its record, its journal."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Optional, Union

import attrs

from tff_bandmf import clips, errors, report
from tff_bandmf.ledger import ledger as ledger_lib
from tff_bandmf.noise import key as key_lib
from tff_bandmf.noise import placements
from tff_bandmf.plan import plan as plan_lib
from tff_bandmf.plan import plan_json
from tff_bandmf.run import journal as journal_lib
from tff_bandmf.run import noised
from tff_bandmf.run_files import folder, metrics, run_json, run_ledger

GO_ON = (
  'for more, make a new plan and run it in another folder, from the last '
  'state; `bandmf compose` says what both cost together'
)


@dataclasses.dataclass(frozen=True)
class Program:
  """What a program of its own adds to a run.

  Attributes:
    says: what `run.json` says in place of the run, see `run_files.RunRecord`.
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
  ledger_head: Optional[str],
  program: Program,
) -> Iterator[Opened]:
  """Yields the folder, made or gone on with; see `Run` for the arguments."""
  try:
    from tff_bandmf.noise import position as position_lib
  except ModuleNotFoundError as error:
    raise errors.needs_tensorflow_privacy('a run') from error

  with folder.locked(directory):
    plan = _stored(directory, plan)
    if ledger is not None:
      run_ledger.set_location(directory, ledger)
    ended = (directory / run_json.RESULT_FILE).exists()
    # An ended run makes no noise and draws nobody: any key will do.
    keys = (
      folder.Keys(key_lib.Key.from_entropy())
      if ended
      else folder.keys(directory, plan.sampled is not None)
    )
    said = attrs.evolve(
      described(plan, keys.sampling),
      after=_named(directory, after, plan),
      **program.says,
    )
    if (directory / run_json.RUN_FILE).exists():
      there = run_json.RunRecord.read(directory)
      said = said.noted(there.notes())
      if ended:
        said = attrs.evolve(said, sampling_key_id=there.sampling_key_id)
    if ended:
      folder.check_record(directory, said)
    else:
      folder.open_run(
        directory, said, plan.strategy, plan.cohorts.schema, keys, moved
      )
    run, _ = run_json.RunRecord.read(directory).bound()
    position = position_lib.Position(directory / run_json.PRIVATE, run)
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
    with run_ledger.open_ledger(directory) as opened:
      _check_ledger(directory, opened, ledger_head)
      journal = journal_lib.Journal(directory, opened, position, columns)
      noise = noised.Noised(
        plan,
        lambda: placements.Tape(
          key=keys.noise,
          start_round=journal.next,
          position=position,
          max_memory_bytes=program.max_memory_bytes,
        ),
      )
      yield Opened(plan, ended, keys.sampling, journal, noise)


def _check_ledger(
  directory: pathlib.Path, ledger: ledger_lib.Ledger, head: Optional[str]
) -> None:
  """Raises ValueError if a ledger is known to lack what happened.

  Args:
    directory: of the run.
    ledger: of the run, open.
    head: that its chain had once; None if nobody noted one.
  """
  folder.check_releases(directory, ledger.attempts)
  # PRIVACY: a ledger of an earlier moment is whole, and what came after it
  # would run again with other sums. Guard:
  # run_folder_test.test_folder_that_was_restored_lacks_the_head_that_was_noted.
  if head is not None and not (
    run_json.is_head(head) and ledger.has_head(head)
  ):
    raise errors.value_error(
      'ledger_head',
      head,
      'is not a head that this ledger has had: its folder was restored to an '
      'earlier moment, or belongs to another run',
      'restore the latest files, all of one time, or start a new run and count '
      'this one in full',
    )


def described(
  plan: plan_lib.Plan, sampling_key: Optional[key_lib.Key] = None
) -> run_json.RunRecord:
  """Returns what the run of a plan says of itself, before its first round.

  Args:
    plan: of the run.
    sampling_key: that draws the cohorts; None where none does.
  """
  drawn = plan.sampled
  enforced = plan.cohorts.schema if drawn is None else drawn.always
  simulated, setting = None, None
  if plan.simulated is not None and plan.delta is not None:
    epsilon = plan.simulated.epsilon(plan.delta)
    simulated = {
      'clients_per_round': plan.stands_for,
      'noise_multiplier': plan.simulated.noise_multiplier,
      'epsilon': epsilon,
    }
    # PRIVACY: no figure of the larger cohort stands where a claim about this
    # run would. Guard: run_test.test_simulated_run_says_that_it_is_one.
    setting = (
      f'SIMULATED: {plan.clients_per_round} clients a round stand for '
      f'{plan.stands_for}, with the noise of the mean that those would get. '
      f'They would have epsilon={epsilon:.6g}; this run has not, and protects '
      'nobody'
    )
  return run_json.RunRecord.of_plan(
    plan,
    # What was sampled is sampled again with its seed.
    {} if drawn is None else {'bound': plan.result.bound},
    config=plan_json.to_document(plan),
    enforced={
      'min_sep': enforced.min_sep,
      'max_participations': enforced.max_participations,
      'by': 'the run: it draws cohorts, or admits clients'
      if drawn is None
      else 'the run: it draws cohorts by a secret key of their own',
    },
    clipped_by='the run',
    noise_key='the operating system',
    setting=setting,
    simulated=simulated,
    versions=report.versions(),
    code_sha256=report.code_digest(),
    sampling_key_id=None
    if sampling_key is None
    else f'{sampling_key.identify(b"sampling"):016x}',
  )


def _named(
  directory: pathlib.Path,
  after: Sequence[Union[str, os.PathLike]],
  plan: plan_lib.Plan,
) -> Optional[list[dict[str, str]]]:
  """Returns how a run names those that it comes after; None without any.

  Args:
    directory: of the run.
    after: folders of the others.
    plan: of the run.

  Raises:
    ValueError: one is not a run, is this one, or has other neighbours.
  """
  found, claim = [], plan.guarantee.to_dict()
  for other in map(pathlib.Path, after):
    if other.resolve() == directory.resolve():
      raise errors.value_error(
        'after', other, 'is the run itself', 'name those before it'
      )
    run = run_json.RunRecord.read(other)
    for name in ('clients_per_unit', 'adjacency'):
      # Before any round: no report could claim anything for both.
      there = run.claim.get(name, claim[name])
      if there != claim[name]:
        raise errors.value_error(
          name,
          claim[name],
          f'is {there} in {other}, which this run comes after',
          'plan runs on the same clients for the same neighbours',
        )
    found.append(
      {'run': os.path.relpath(other, directory), 'run_id': str(run.run_id)}
    )
  return found or None


def _stored(directory: pathlib.Path, plan: plan_lib.Plan) -> plan_lib.Plan:
  """Returns the plan that the folder keeps, if it is the one given."""
  path = directory / run_json.PLAN_FILE
  if not path.exists():
    plan.save(path)
  stored = plan_lib.Plan.load(path)
  written, given = plan_json.to_document(stored), plan_json.to_document(plan)
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
