"""Opens the folder of a run: its lock, plan, keys, `run.json` and ledger."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Optional, Union

import attrs

from tff_bandmf import _checks, errors, participation, report
from tff_bandmf.ledger import counts
from tff_bandmf.noise import key as key_lib
from tff_bandmf.noise import placements, released_sums
from tff_bandmf.plan import plan as plan_lib
from tff_bandmf.plan import plan_json
from tff_bandmf.run import journal as journal_lib
from tff_bandmf.run import noise_adder as noise_adder_lib
from tff_bandmf.run_files import folder, metrics, run_json, run_ledger

# Remedy in the errors of a run that has no rounds left.
MORE_ROUNDS = (
  'for more rounds, make a new plan and run it in another folder, from the '
  'last state; `bandmf compose` gives the guarantee of both runs together'
)
_FEWER_ROUNDS = 'or give the loop rounds= to stop early'


@dataclasses.dataclass(frozen=True)
class RunOptions:
  """Details and metrics that a program adds to a run, and a memory limit.

  Attributes:
    notes: {attribute of `run_json.RunDetails`: value}; these values replace
      the values from the plan.
    columns: names of columns that the program adds to `metrics.csv`, which is
      public.
    max_memory_bytes: memory limit of the noise producer in bytes, > 0. If None,
      the default of `placements.Tape` holds.

  Raises:
    ValueError: a name in `columns` is a column that the run itself writes.
  """

  notes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  columns: Sequence[str] = ()
  max_memory_bytes: Optional[int] = None

  def __post_init__(self):
    metrics.check_names('columns', self.columns)


@contextlib.contextmanager
def open_folder(
  directory: pathlib.Path,
  plan: plan_lib.Plan,
  ledger: Optional[Union[str, os.PathLike]],
  after: Sequence[Union[str, os.PathLike]],
  moved: bool,
  ledger_head: Optional[str],
  options: RunOptions,
) -> Iterator[tuple[journal_lib.Journal, Optional[key_lib.Key]]]:
  """Yields the journal and the sampling key of a run; see `Run`.

  The run may be new, resumed or ended. The key is None if the plan's cohorts
  are not sampled, or if the run has ended.
  """
  with folder.locked(directory), contextlib.ExitStack() as stack:
    plan = _load_or_save_plan(directory, plan)
    if ledger is not None:
      run_ledger.set_location(directory, ledger)
    begun, ended = folder.has_begun(directory), False
    if begun:
      stored = run_json.RunDetails.read(directory)
      open_ledger = stack.enter_context(
        run_ledger.open_ledger(directory, check=False)
      )
      contents = open_ledger.contents()
      ended = counts.ended(contents.attempts) is not None
    # An ended run adds no noise and draws no cohort, and its keys may be
    # destroyed. It gets a random noise key, which nothing uses.
    if ended:
      keys = folder.Keys(key_lib.Key.from_entropy())
    else:
      keys = folder.keys(directory, plan.sampled is not None)
    details = attrs.evolve(
      run_details(keys.sampling),
      after=_predecessors(directory, after, plan),
      **options.notes,
    )
    if ended:
      stored.check_same(details, ended)
      details = stored
    else:
      details = folder.open_run(directory, details, keys, moved)
    if not begun:
      open_ledger = stack.enter_context(run_ledger.open_ledger(directory))
      contents = open_ledger.contents()
    if contents.attempts or contents.notes:
      details = run_json.RunDetails.read(directory).with_notes(contents.notes)
    elif notes := details.notes():
      run_json.check_visible(notes)
      open_ledger.note(notes)
    run_id, _ = details.bound()
    position = released_sums.Position(directory / run_json.PRIVATE, run_id)
    if not ended:
      # PRIVACY: every aggregation adds the noise of the open round. A killed
      # program leaves its round open. An aggregation before the next round
      # could add this noise to updates of clients that are not in the recorded
      # cohort of the open round. The claim would not count these clients. This
      # line closes the round.
      # Guard: run_replay_test.test_round_that_a_kill_left_open_is_closed.
      position.close()
    folder.check_releases(directory, contents.attempts)
    # PRIVACY: a folder whose files were all restored to an earlier moment can
    # pass every other check. The rounds since that moment would run again, with
    # the same noise and perhaps different sums. If the user noted a head of the
    # ledger's chain outside of the folder, a ledger without this head is
    # refused.
    # Guard:
    # run_folder_test.test_folder_that_was_restored_lacks_the_noted_head.
    if ledger_head is not None and not (
      isinstance(ledger_head, str)
      and re.fullmatch('[0-9a-f]{64}', ledger_head)
      and open_ledger.has_head(ledger_head)
    ):
      raise errors.value_error(
        f'ledger_head={ledger_head}: is not a head that this ledger has had: '
        'the folder is of an earlier moment, or of another run; restore the '
        'latest files, or start a new run and count all rounds of this run'
      )

    def tape() -> placements.Tape:
      return placements.Tape(
        key=keys.noise,
        start_round=journal.next,
        position=position,
        max_memory_bytes=options.max_memory_bytes,
        memory_copies=plan.copies,
        definition=None if ended else directory / run_json.DEFINITION,
      )

    journal = journal_lib.Journal(
      directory,
      plan,
      details,
      open_ledger,
      contents.attempts,
      position,
      options.columns,
      noise_adder_lib.NoiseAdder(plan, tape),
    )
    journal.export()
    journal.settle()
    yield journal, keys.sampling


def run_details(
  sampling_key: Optional[key_lib.Key] = None,
) -> run_json.RunDetails:
  """Returns the details of a run before the first round.

  Args:
    sampling_key: key by which cohorts are sampled; None if the plan's cohorts
      are not sampled.
  """
  return run_json.RunDetails(
    clipped_by='the run',
    noise_key='the operating system',
    versions=report.versions(),
    code_sha256=report.code_digest(),
    sampling_key_id=None
    if sampling_key is None
    else f'{sampling_key.identify(b"sampling"):016x}',
  )


def _predecessors(
  directory: pathlib.Path,
  after: Sequence[Union[str, os.PathLike]],
  plan: plan_lib.Plan,
) -> Optional[list[run_json.Predecessor]]:
  """Returns `RunDetails.after` for the earlier runs; None without earlier runs.

  Args:
    directory: folder of the run.
    after: folders of the earlier runs.
    plan: plan of the run.

  Raises:
    ValueError: a folder of `after` holds no run, or is `directory`, or holds a
      run with another number of clients per unit of privacy.
  """
  if isinstance(after, (str, os.PathLike)):
    raise errors.type_error(
      f'after={after}: must be a list of folders; give [{str(after)!r}]'
    )
  predecessors: list[run_json.Predecessor] = []
  for earlier in map(pathlib.Path, after):
    if earlier.resolve() == directory.resolve():
      raise errors.value_error(
        f'after={earlier}: is the run itself; give the folders of earlier runs'
      )
    details = run_json.RunDetails.read(earlier)
    # Runs that differ in this number have no joint claim, so this run is
    # refused before its first round.
    units = run_json.read_plan(earlier).clients_per_unit
    if units != plan.clients_per_unit:
      raise errors.value_error(
        f'clients_per_unit={plan.clients_per_unit}: is {units} in the earlier '
        f'run {earlier}; plan this run with clients_per_unit={units}'
      )
    path = os.path.relpath(earlier, directory)
    predecessors.append({'run': path, 'run_id': str(details.run_id)})
  return predecessors or None


def _load_or_save_plan(
  directory: pathlib.Path, plan: plan_lib.Plan
) -> plan_lib.Plan:
  """Returns the plan in the folder; saves `plan` to a folder without a plan.

  A plan with a `Budget` may have more rounds than the plan in the folder, if
  the plans differ in nothing else. The run then continues with the noise and
  the claim in the folder.

  Raises:
    ValueError: the plan in the folder differs from `plan` in another way.
  """
  path = directory / run_json.PLAN_FILE
  if not path.exists():
    plan.save(path)
  stored = plan_lib.Plan.load(path)
  stored_request = plan_json.to_document(stored)
  request = plan_json.to_document(plan)
  by_budget = isinstance(stored.cohorts, participation.Budget)
  if by_budget and stored.rounds < plan.rounds:
    _checks.at_most(
      'rounds', plan.rounds, stored.strategy.rounds, 'horizon', MORE_ROUNDS
    )
    if run_ledger.results(directory) is not None:
      raise errors.value_error(
        f'rounds={plan.rounds}: come after the end of the run, which was '
        f'planned with {stored.rounds} rounds and has ended; {MORE_ROUNDS}'
      )
    stored_request['rounds'] = plan.rounds
    longer = {'digest': stored.strategy.of_rounds(plan.rounds).digest()}
    if request['mechanism'] == longer:
      request['mechanism'] = {'digest': stored.planned_strategy.digest()}
  # PRIVACY: the noise of the run was computed for the plan in the folder, and
  # gives no guarantee for a different plan. A plan that differs in any value
  # except the rounds of a `Budget` is refused.
  # Guard: run_budget_test.test_plan_that_differs_in_more_is_refused.
  for name, value in request.items():
    if stored_request[name] != value:
      remedy = 'or choose another folder'
      if name == 'rounds':
        remedy = MORE_ROUNDS if value > stored.rounds else _FEWER_ROUNDS
      raise errors.value_error(
        f'{name}={value}: is not what the run was planned with; give '
        f'{stored_request[name]}; {remedy}'
      )
  return stored
