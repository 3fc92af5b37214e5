"""Sources of noise: they add y_t to the sum of round t in TFF's graph.

| symbol  | meaning                                                       |
|---------|---------------------------------------------------------------|
| C       | strategy matrix of the mechanism                              |
| S, S_t  | sums of the clipped records; row t is the sum of round t      |
| Z, z_t  | unit normals; row t is for round t                            |
| y, y_t  | noise z_steps C^-1 Z, rounded; row t is for round t           |
| M_t     | memory of the recursion that computes y_t from z_t and past y |

S_t, y_t and M_t are in steps of `lattice`. A placement is the user's choice of
where y_t comes from, and `of` returns its source. `TapeSource` reads y_t from a
tape: files that a producer writes before the round. `StateSource` computes y_t
from TFF's server state.
"""

from __future__ import annotations

import abc
import collections
import dataclasses
from typing import Any, ClassVar, Optional

import tensorflow as tf

from tff_bandmf import errors
from tff_bandmf.noise import (
  graph_generator,
  graph_released_sums,
  placements,
  self_test,
)
from tff_bandmf.noise.tape import graph_reader, opened
from tff_bandmf.strategies import recursion as recursion_lib

# Maximum of `StateSource.bytes_passed`, with a margin: if more than 1.9 GB pass
# between processes, TFF's local runtime fails or retries for ever.
_MAX_STATE_BYTES = 1_800_000_000
# The run ID of a state that `begin` did not create.
_NOBODY = 0

# State of a noise source: nested structure of tensors.
State = Any


class NoiseSource(abc.ABC):
  """Adds y_t to an integer sum inside a graph that never outputs y_t alone.

  The methods that run in a graph depend only on their arguments and, with a
  tape, on the files in its folder and in the folder of a
  `released_sums.Position`. `begin` also draws random numbers.

  Attributes:
    placement: where y_t comes from: 'state', 'tape' or 'none'.
    dimension: d, number of coordinates of y_t, > 0.
    start_round: the first round of a run that `begin` creates, >= 0.
  """

  placement: ClassVar[str]
  dimension: int
  start_round: int = 0

  @abc.abstractmethod
  def initial_state(self) -> State:
    """Returns the state of a run that has not begun, nested tensors."""

  def begin(self, state: State) -> State:
    """Returns the first state of a new run, given `initial_state()`."""
    return state

  def round_index(self, stated: tf.Tensor) -> tf.Tensor:
    """Returns the round t to be released, scalar int64.

    Args:
      stated: scalar int64, the round that TFF's state counts; negative if the
        run has not begun.
    """
    return stated

  @abc.abstractmethod
  def release(
    self,
    state: State,
    round_index: tf.Tensor,
    total: tf.Tensor,
    counts: Optional[tf.Tensor] = None,
  ) -> tuple[tf.Tensor, State]:
    """Returns (total + y_t, state of the next round).

    **Formal guarantee.**
    Assumption: the key is secret and serves one run; the noise of each round is
    added to one sum; the recursion and `z_steps` belong to a `Lattice` on which
    no value of the run is out of range; and nobody can distinguish words of
    ChaCha20 from uniform ones. Statement: if the Gaussian mechanism C S +
    z_steps Z on real numbers is (epsilon, delta)-DP, then the releases of all
    rounds are (epsilon + 2 alpha, e^alpha delta + beta (1 + e^(epsilon +
    alpha)))-DP. A round that fails releases nothing. Source:
    docs/reference/arithmetic.md, Theorems 1 and 2, where alpha and beta are
    defined. The last section of that page lists the properties that are
    measured but not proved.

    `TapeSource` enforces that each round has one sum; see
    `tape.graph_reader.release`. `StateSource` releases from any state that it
    gets, so the caller must ensure that each round has one sum. `NoNoise`
    guarantees nothing.

    Args:
      state: state of the round, from `begin` or from the previous release.
      round_index: t, scalar int64.
      total: [dimension] int32, S_t in lattice steps.
      counts: [2] integers: the number of updates in the total, and the number
        of all-zero updates among them. A source with a `released_sums.Position`
        needs the counts; all other sources ignore them.
    """

  def metrics(
    self, state: State, round_index: tf.Tensor
  ) -> collections.OrderedDict[str, tf.Tensor]:
    """Returns {name: metric} of a round; no metric depends on the noise.

    Args:
      state: state of the round.
      round_index: t, scalar int64.
    """
    del state, round_index
    # If the noise fails its self-test, the round fails. So a round that has
    # metrics has passed the self-test.
    return collections.OrderedDict(
      noise_placement=tf.constant(self.placement),
      noise_checked=tf.constant(self.placement != NoNoise.placement),
    )

  def close(self) -> None:  # noqa: B027
    """Stops the threads of the source, if it has any."""


@dataclasses.dataclass(frozen=True, eq=False)
class NoNoise(NoiseSource):
  """A source that adds nothing, for a run that claims no privacy."""

  placement: ClassVar[str] = 'none'
  dimension: int
  start_round: int = 0

  def initial_state(self):
    return ()

  def release(self, state, round_index, total, counts=None):
    return total, state


@dataclasses.dataclass(frozen=True, eq=False)
class StateSource(NoiseSource):
  """A source that keeps the key and the memory of past noise in TFF's state.

    y_t = round(z_steps scale_t z_t + readout_t . M_t)

  The state is secret: a person who has it can subtract the noise. The weights
  scale_t and readout_t of all rounds are in a table, `Recursion.table`. The
  table is a constant of the graph, so it passes between processes in every
  round like the state.

  Attributes:
    recursion: recursion that computes y from z, for the strategy matrix C.
    z_steps: standard deviation of z in lattice steps, > 0.
    dimension: d, number of coordinates of y_t, > 0.
  """

  placement: ClassVar[str] = 'state'
  recursion: recursion_lib.Recursion
  z_steps: float
  dimension: int

  @staticmethod
  def bytes_passed(recursion: recursion_lib.Recursion, dimension: int) -> int:
    """Returns the size in bytes of M_t, the table and the row norms of C^-1.

    These arrays pass between processes in every round. The key adds 32 bytes.
    """
    kind = _memory_type(recursion)
    return (
      kind.size * recursion.memory * dimension
      + recursion.table_bytes
      + 8 * recursion.rounds
    )

  def initial_state(self):
    state = collections.OrderedDict(
      key=tf.zeros([graph_generator.KEY_WORDS], tf.int32)
    )
    if self.recursion.memory:
      state['past'] = tf.zeros(
        [self.recursion.memory, self.dimension], _memory_type(self.recursion)
      )
    return state

  def begin(self, state):
    # PRIVACY: If two runs had the same noise, the difference of their releases
    # would have no noise. Each run draws its own key.
    # Guard: aggregator_runs_test.test_two_runs_in_the_state_share_no_noise.
    return collections.OrderedDict(state, key=graph_generator.fresh_key_words())

  def release(self, state, round_index, total, counts=None):
    recursion, table = self.recursion, self.recursion.table()
    phase = recursion.phase(round_index)
    scale = tf.gather(table.scale, phase)
    v = (
      self.z_steps
      * scale
      * graph_generator.normals(state['key'], round_index, self.dimension)
    )
    mean = 0.0
    if recursion.memory:
      past = tf.cast(state['past'], tf.float64)
      mean = tf.linalg.matvec(
        past, tf.gather(table.readout, phase), transpose_a=True
      )
    v = tf.round(v + mean)
    # PRIVACY: If y_t wrapped around in 32 bits, later rounds would be computed
    # from a wrong y_t, their noise would not be C^-1 z, and epsilon would not
    # hold. A round whose y_t needs more than 32 bits fails. S_t + y_t may wrap
    # around, because this is post-processing of the exact sum.
    # Guard: source_test.test_noise_beyond_32_bits_fails_the_round.
    in_range = tf.debugging.Assert(
      tf.reduce_all(tf.abs(v) < 2.0**31), ['noise beyond 32 bits']
    )
    with tf.control_dependencies([in_range]):
      y = tf.cast(v, tf.int32)
    y = self_test.graph_check(
      y,
      z_steps=self.z_steps,
      row_norms=recursion.row_norms,
      round_index=round_index,
    )
    new_state = collections.OrderedDict(key=state['key'])
    # PRIVACY: The rounded y_t is added to the sum. If the memory were computed
    # from y_t before rounding, the noise of later rounds would not be C^-1 z,
    # and epsilon would not hold. The memory is computed from the rounded y_t.
    # Guard: source_test.test_rounds_are_those_of_the_recursion.
    if recursion.memory and recursion.keeps == recursion_lib.BUFFERS:
      gain = tf.gather(table.gain, phase)
      new_state['past'] = tf.matmul(
        tf.gather(table.update, phase), past
      ) + gain[:, tf.newaxis] * tf.cast(y, tf.float64)
    elif recursion.memory:
      latest = y
      if recursion.keeps == recursion_lib.PAST_U:
        latest = (tf.cast(y, tf.float64) - mean) / scale
      new_state['past'] = tf.concat([latest[tf.newaxis], state['past'][:-1]], 0)
    return total + y, new_state


class TapeSource(NoiseSource):
  """A source that reads y_t from the files of a tape; the state names the tape.

  The process that runs the round must see the folders of the tape. Each round
  of a tape serves one run: the first run that releases this round. `begin`
  gives each run its own ID. All states that `begin` did not create share the ID
  0.
  """

  placement: ClassVar[str] = 'tape'

  def __init__(self, tape: opened.OpenTape):
    """Initializes the source; its method `close` also closes the tape.

    Args:
      tape: the tape from which the rounds read y_t.
    """
    self._opened = tape
    self._tape = tape.tape
    self.dimension = tape.tape.dimension
    self.start_round = tape.tape.start_round
    self._position = (
      None
      if tape.position is None
      else graph_released_sums.GraphPosition(tape.position)
    )

  def initial_state(self):
    return collections.OrderedDict(
      tape_id=tf.constant(self._tape.tape_id, tf.int64),
      run=tf.constant(_NOBODY, tf.int64),
    )

  def round_index(self, stated):
    if self._position is None:
      return stated
    return self._position.round_index(stated)

  def begin(self, state):
    # The run ID is public and has 62 random bits. The lowest bit is 1, so that
    # the ID is never `_NOBODY`.
    number = tf.raw_ops.NonDeterministicInts(shape=[1], dtype=tf.int64)[0]
    run = tf.bitwise.bitwise_and(number, 2**63 - 1) | 1
    return collections.OrderedDict(tape_id=state['tape_id'], run=run)

  def release(self, state, round_index, total, counts=None):
    if self._position is not None:
      checked = self._position.check_updates(counts[0], round_index)
      with tf.control_dependencies([checked]):
        total = tf.identity(total)
    released = graph_reader.release(
      self._tape,
      total,
      tape_id=state['tape_id'],
      round_index=round_index,
      run=state['run'],
      timeout_seconds=opened.TIMEOUT_SECONDS,
    )
    if self._position is not None:
      released = self._position.mark(released, counts, round_index)
    return released, state

  def metrics(self, state, round_index):
    metrics = super().metrics(state, round_index)
    metrics['rounds_ahead'] = graph_reader.rounds_ahead(
      self._tape.shards, round_index
    )
    return metrics

  def close(self) -> None:
    self._opened.close()


def _memory_type(recursion: recursion_lib.Recursion) -> tf.DType:
  """Returns the type of the memory: integers if the memory holds past y."""
  return tf.int32 if recursion.keeps == recursion_lib.PAST_Y else tf.float64


def of(
  placement: placements.Placement,
  recursion: recursion_lib.Recursion,
  z_steps: float,
  dimension: int,
) -> NoiseSource:
  """Returns the source of a placement; starts the producer of a tape.

  Args:
    placement: the user's choice of where y_t comes from.
    recursion: recursion that computes y from z, for the strategy matrix C.
    z_steps: standard deviation of z in lattice steps, >= 0; 0 means no noise.
    dimension: d, number of coordinates of y_t, > 0.

  Raises:
    TypeError: `placement` is of an unknown kind, and z_steps > 0.
    ValueError: a value is out of range; the state is too large to pass between
      processes; another source of this process uses the key; the folder of a
      tape cannot be used; or a folder of a noise-server does not fit this run
      or has another reader.
    ImportError: the backend of a tape is not installed.
    OSError: a folder or a file of a tape cannot be made.
  """
  if not z_steps:
    return NoNoise(dimension, placement.start_round)
  if isinstance(placement, (placements.Tape, placements.Served)):
    return TapeSource(opened.OpenTape(placement, recursion, z_steps, dimension))
  if not isinstance(placement, placements.InState):
    raise errors.type_error(
      f'noise={type(placement).__name__}: has no source; use a placement of '
      'noise.placements'
    )
  passed = StateSource.bytes_passed(recursion, dimension)
  if passed > _MAX_STATE_BYTES:
    raise errors.value_error(
      f'noise={placement}: {passed / 1000000000.0:.1f} GB of noise cannot pass '
      'between TFF processes, which take at most '
      f'{_MAX_STATE_BYTES / 1000000000.0:.1f} GB; use Tape()'
    )
  return StateSource(recursion, z_steps, dimension)
