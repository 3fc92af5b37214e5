"""TFF's `tff.learning.programs.train_model` for a run.

| what TFF's program does                  | what is done here                 |
|------------------------------------------|-----------------------------------|
| saves states in the background, some     | a round is durable, in the ledger |
| rounds late, with where the data stands  | and as a checkpoint, before the   |
|                                          | program has its result            |
| selects clients without a memory         | cohorts are those of the run      |
| releases the whole training state        | model weights alone               |
| repeats rounds that are to be discarded  | not offered                       |
| releases metrics by a task that may fail | a failure is raised               |
| unnoticed                                |                                   |
| forgets the last release after a crash   | releases again when begun again   |

A round whose sum is another one than was released before is burnt: to the
program it is a round that changed nothing.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import Any, Callable, Optional, Union

from tff_bandmf import errors
from tff_bandmf.run import journal as journal_lib
from tff_bandmf.run import rounds as rounds_lib

try:
  import tensorflow_federated as tff
except ImportError as error:
  raise errors.needs_tff(__name__) from error


async def train_model(
  process: Any,
  source: Source,
  journal: journal_lib.Journal,
  last: int,
  *,
  model_output_manager: Optional[Any] = None,
  train_metrics_manager: Optional[Any] = None,
  evaluation_manager: Optional[Any] = None,
  evaluation_periodicity: Union[int, datetime.timedelta] = 1,
) -> None:
  """Runs the rounds that are left in TFF's program.

  Args:
    process: of the run.
    source: of the rounds that are left.
    journal: of the run.
    last: how many rounds the plan has.
    model_output_manager: gets the model weights, every 10 rounds and last.
    train_metrics_manager: gets what clients measured, without noise, under the
      number of rounds done.
    evaluation_manager: of TFF.
    evaluation_periodicity: likewise.
  """
  outputs = _Weights(process, model_output_manager)
  first = await tff.program.materialize_value(process.initialize())
  state = journal.restore(lambda: first)
  if journal.next == last:
    # It gives none, and looks at who was drawn.
    next(source.rounds, None)
    await outputs.release(state, f'training_checkpoint_round_{last}')
  else:
    await tff.learning.programs.train_model(
      train_process=_Process(process, journal, train_metrics_manager),
      initial_train_state=state,
      train_data_source=source,
      train_per_round_clients=1,
      train_total_rounds=last,
      program_state_manager=_States(state, journal.next, source),
      model_output_manager=outputs,
      evaluation_manager=evaluation_manager,
      evaluation_periodicity=evaluation_periodicity,
    )
  if outputs.failure is not None:
    raise outputs.failure


class Source(
  tff.program.FederatedDataSource, tff.program.FederatedDataSourceIterator
):
  """The rounds of a run, as TFF selects data: a source, and its iterator."""

  def __init__(
    self,
    process: Any,
    rounds: Iterator[rounds_lib.Round],
    dataset: Callable[[Any, int], Any],
    journal: journal_lib.Journal,
  ):
    """Takes the rounds left, and what gives the data of (client, round)."""
    self.rounds = rounds
    self._type = process.next.type_signature.parameter[1]
    self._dataset = dataset
    self._next = journal.next
    self._opened: Optional[rounds_lib.Round] = None

  @property
  def federated_type(self):
    return self._type

  def iterator(self) -> Source:
    """Returns what selects: a round has one cohort, whoever asks for it."""
    return self

  def __deepcopy__(self, memo) -> Source:
    return self

  @classmethod
  def from_bytes(cls, buffer):
    raise NotImplementedError('the run keeps where it is')

  def to_bytes(self):
    raise NotImplementedError('the run keeps where it is')

  def select(
    self, k: Optional[int] = None
  ) -> Optional[tuple[rounds_lib.Round, list[Any]]]:
    """Returns the round that TFF is at, and its data; None if it is burnt."""
    if self._opened is None:
      self._opened = next(self.rounds, None)
    at, opened = self._next, self._opened
    self._next += 1
    if opened is None or opened.index > at:
      return None
    self._opened = None
    return opened, [
      self._dataset(client, at) for client in opened.cohort.tolist()
    ]


class _Process:
  """A learning process whose rounds are durable before they are seen."""

  def __init__(self, process, journal, metrics_manager):
    self.get_model_weights = process.get_model_weights
    self.output_type = process.next.type_signature.result
    self._process = process
    self._journal = journal
    self._metrics_manager = metrics_manager

  def next(self, state, selected) -> Any:
    """Returns what becomes the output of the round."""
    unchanged = tff.learning.templates.LearningProcessOutput(state, {})
    return unchanged if selected is None else _Output(self, state, *selected)

  async def run(self, state, opened, data) -> Any:
    """Returns the output of a round, which is on the disk or burnt."""
    with self._journal.attempting(opened):
      output = await tff.program.materialize_value(
        self._process.next(state, data)
      )
    if self._journal.is_burnt(opened.index):
      return self.next(state, None)
    # PRIVACY: nobody has seen what is not durable. Guard:
    # train_model_test.test_round_is_durable_before_it_is_released.
    opened.finish(output.state, output.metrics)
    if self._metrics_manager is not None:
      await self._metrics_manager.release(
        tff.learning.programs.extract_and_rewrap_metrics(
          output.metrics, path=('client_work', 'train')
        ),
        key=opened.index + 1,
      )
    return output


class _Output(tff.program.MaterializableValueReference):
  """The output of a round that is yet to run."""

  def __init__(self, process, *arguments):
    self._process = process
    self._arguments = arguments

  @property
  def type_signature(self):
    return self._process.output_type

  async def get_value(self):
    return await self._process.run(*self._arguments)


class _States(tff.program.ProgramStateManager):
  """Where the run is, which it keeps itself."""

  def __init__(self, state, version, source):
    self._state = tff.learning.programs.ProgramState(
      state, version, None, source
    )

  async def get_versions(self):
    done = self._state.round_number
    return [done] if done else None

  async def load(self, version, structure):
    return self._state

  async def save(self, program_state, version):
    # The journal has it.
    pass


class _Weights(tff.program.ReleaseManager):
  """Releases model weights alone.

  Attributes:
    failure: what a release raised; TFF's program goes on without a word.
  """

  def __init__(self, process, manager):
    self._process = process
    self._manager = manager
    self.failure: Optional[Exception] = None

  async def release(self, value, key):
    if self._manager is None:
      return
    try:
      # PRIVACY: the state has more than the guarantee is for. Guard:
      # train_model_test.test_weights_alone_are_released.
      weights = await tff.program.materialize_value(
        self._process.get_model_weights(value)
      )
      await self._manager.release(weights, key)
    except Exception as error:
      self.failure = error
