"""TFF's `tff.learning.programs.train_model` for a run.

| TFF's program                            | this module                       |
|------------------------------------------|-----------------------------------|
| saves states in the background, some     | a round is durable, in the ledger |
| rounds late, with the position in the    | and as a checkpoint, before the   |
| data                                     | program has its result            |
| selects clients without regard to        | the run draws the cohorts, as its |
| earlier rounds                           | plan says                         |
| releases the whole training state        | releases model weights alone      |
| can discard a round and run it again     | has no such option                |
| releases metrics by a task that may fail | raises the failure                |
| unnoticed                                |                                   |
| may lose the last release in a crash     | releases the last weights again   |
|                                          | after a restart                   |

A round is burnt (given up) if an earlier attempt at the round released a
different sum. TFF's program then sees a round that changed nothing.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import Any, Callable, Optional, Union

from tff_bandmf.run import journal as journal_lib
from tff_bandmf.run import rounds as rounds_lib
from tff_bandmf.tff import names as tff


async def train_model(
  process: tff.learning.templates.LearningProcess,
  source: RoundSource,
  journal: journal_lib.Journal,
  rounds: int,
  *,
  model_output_manager: Optional[tff.program.ReleaseManager] = None,
  train_metrics_manager: Optional[tff.program.ReleaseManager] = None,
  evaluation_manager: Optional[tff.learning.programs.EvaluationManager] = None,
  evaluation_periodicity: Union[int, datetime.timedelta] = 1,
) -> None:
  """Runs the remaining rounds of a run in TFF's own program loop.

  Args:
    process: learning process of the run.
    source: data source of the remaining rounds.
    journal: journal of the run.
    rounds: number of rounds of the whole run.
    model_output_manager: release manager that gets the model weights after
      every tenth round and after the last round.
    train_metrics_manager: release manager that gets the metrics of the clients,
      without noise, after each round. The key of each release is the number of
      rounds that are over.
    evaluation_manager: manager that TFF's `train_model` asks to evaluate the
      model. If None, nothing is evaluated.
    evaluation_periodicity: number of rounds, or time, between evaluations.
  """
  outputs = _WeightsManager(process, model_output_manager)
  initial = await tff.program.materialize_value(process.initialize())
  state = journal.restore(lambda: initial)
  if journal.next >= rounds:
    # No rounds are left. If cohorts are sampled, advancing the iterator still
    # checks the population and the last cohort, and gives `Run.record` the
    # sampler that checks all cohorts.
    next(source.rounds, None)
    await outputs.release(state, f'training_checkpoint_round_{rounds}')
  else:
    await tff.learning.programs.train_model(
      train_process=_Process(process, journal, train_metrics_manager),
      initial_train_state=state,
      train_data_source=source,
      train_per_round_clients=1,
      train_total_rounds=rounds,
      program_state_manager=_StateManager(state, journal.next, source),
      model_output_manager=outputs,
      evaluation_manager=evaluation_manager,
      evaluation_periodicity=evaluation_periodicity,
    )
  if outputs.failure is not None:
    raise outputs.failure


class RoundSource(
  tff.program.FederatedDataSource, tff.program.FederatedDataSourceIterator
):
  """A data source of TFF that is its own iterator over the rounds of a run."""

  def __init__(
    self,
    process: tff.learning.templates.LearningProcess,
    rounds: Iterator[rounds_lib.Round],
    dataset: Callable[[Any, int], object],
    journal: journal_lib.Journal,
  ):
    """Initializes the source.

    Args:
      process: learning process of the run.
      rounds: the remaining rounds of the run.
      dataset: function of (ID of a client, index of a round) that returns the
        data of the client.
      journal: journal of the run.
    """
    self.rounds = rounds
    self._type = process.next.type_signature.parameter[1]
    self._dataset = dataset
    self._next = journal.next
    self._round: Optional[rounds_lib.Round] = None

  @property
  def federated_type(self):
    return self._type

  def iterator(self) -> RoundSource:
    """Returns the source itself, since a run has one sequence of cohorts."""
    return self

  def __deepcopy__(self, memo) -> RoundSource:
    return self

  @classmethod
  def from_bytes(cls, buffer):
    raise NotImplementedError('the run stores its own position')

  def to_bytes(self):
    raise NotImplementedError('the run stores its own position')

  def select(
    self, k: Optional[int] = None
  ) -> Optional[tuple[rounds_lib.Round, list[object]]]:
    """Returns the next round and its data; None if the round is burnt."""
    if self._round is None:
      self._round = next(self.rounds, None)
    t, open_round = self._next, self._round
    self._next += 1
    if open_round is None or open_round.index > t:
      return None
    self._round = None
    return open_round, [
      self._dataset(client, t) for client in open_round.cohort.tolist()
    ]


class _Process:
  """A learning process whose rounds are durable before TFF has their output."""

  def __init__(self, process, journal, metrics_manager):
    self.get_model_weights = process.get_model_weights
    self.output_type = process.next.type_signature.result
    self._process = process
    self._journal = journal
    self._metrics_manager = metrics_manager

  def next(self, state, selected):
    """Returns a reference to the output, or the old state of a burnt round."""
    unchanged = tff.learning.templates.LearningProcessOutput(state, {})
    return unchanged if selected is None else _Output(self, state, *selected)

  async def run(self, state, open_round, data):
    """Returns the output of a round after the round is durable or burnt."""
    with self._journal.attempting(open_round):
      output = await tff.program.materialize_value(
        self._process.next(state, data)
      )
    if open_round.burnt:
      return self.next(state, None)
    # PRIVACY: if a crash came after a release manager got the output of a round
    # and before the ledger had the end of this round, the replay could add the
    # same noise to a different sum. The round is durable before any manager
    # gets its output.
    # Guard: train_model_test.test_round_is_durable_before_it_is_released.
    open_round.finish(output.state, output.metrics)
    if self._metrics_manager is not None:
      await self._metrics_manager.release(
        tff.learning.programs.extract_and_rewrap_metrics(
          output.metrics, path=('client_work', 'train')
        ),
        key=open_round.index + 1,
      )
    return output


class _Output(tff.program.MaterializableValueReference):
  """A reference to a round's output; reading the reference runs the round."""

  def __init__(self, process, *arguments):
    self._process = process
    self._arguments = arguments

  @property
  def type_signature(self):
    return self._process.output_type

  async def get_value(self):
    return await self._process.run(*self._arguments)


class _StateManager(tff.program.ProgramStateManager):
  """Gives TFF the restored state; the journal saves all later states."""

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
    # `Round.finish` saved the state.
    pass


class _WeightsManager(tff.program.ReleaseManager):
  """Releases model weights alone.

  Attributes:
    failure: the latest error of a release; None without an error. TFF's program
      ignores errors of releases, so `train_model` raises this error at the end.
  """

  def __init__(self, process, manager):
    self._process = process
    self._manager = manager
    self.failure: Optional[Exception] = None

  async def release(self, value, key):
    if self._manager is None:
      return
    try:
      # PRIVACY: TFF's program passes the whole training state to this manager.
      # The guarantee covers the model weights, and a release of other values in
      # the state would have no guarantee. Only the weights are released.
      # Guard: train_model_test.test_weights_alone_are_released.
      weights = await tff.program.materialize_value(
        self._process.get_model_weights(value)
      )
      await self._manager.release(weights, key)
    except Exception as error:
      self.failure = error
