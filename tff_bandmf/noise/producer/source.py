"""Where a round's y comes from: TFF's state, or a tape."""

from __future__ import annotations

import abc
import collections
import dataclasses
import os
import threading
from typing import Any, ClassVar, Optional

import tensorflow as tf

from tff_bandmf import errors
from tff_bandmf.noise import graph_generator, placements, self_test
from tff_bandmf.noise import key as key_lib
from tff_bandmf.noise import position as position_lib
from tff_bandmf.noise.producer import stream
from tff_bandmf.noise.tape import folder as tape_folder
from tff_bandmf.noise.tape import reader as tape_reader
from tff_bandmf.noise.tape import served as served_tape
from tff_bandmf.noise.tape import writer as tape_lib
from tff_bandmf.strategies import recursion as recursion_lib

# Past 1.9 GB TFF's local runtime refuses a state or retries for ever.
_MAX_STATE_BYTES = 1_800_000_000
# How long a round waits for its file before it fails.
_TAPE_TIMEOUT_SECONDS = 600.0
# The run of a state that has not begun.
_NOBODY = 0

# What names the keys whose noise is on the tapes of this process.
_held: set[Optional[int]] = set()
_holding = threading.Lock()


class NoiseSource(abc.ABC):
  """Adds y_t to an integer sum inside a graph; y_t itself never leaves.

  All is a pure function of the state, and with a tape of its files.

  Attributes:
    placement: 'state', 'tape' or 'none'.
    dimension: d, coordinates of y_t.
    start_round: the round that `begin` begins at.
  """

  placement: ClassVar[str]
  dimension: int
  start_round: int = 0

  @abc.abstractmethod
  def initial_state(self) -> Any:
    """Returns the structure of tensors of a run that has not begun."""

  def begin(self, state: Any) -> Any:
    """Returns the state of a new run, from that of `initial_state`."""
    return state

  def round_index(self, stated: tf.Tensor) -> tf.Tensor:
    """Returns t, scalar int64, given what the state says."""
    return stated

  @abc.abstractmethod
  def release(
    self, state: Any, round_index: tf.Tensor, total: tf.Tensor
  ) -> tuple[tf.Tensor, Any]:
    """Returns (total + y_t, state of the next round).

    Args:
      state: of the round, of a run that has begun.
      round_index: t, scalar int64.
      total: [dimension] int32, in steps of the lattice.
    """

  def metrics(
    self, state: Any, round_index: tf.Tensor
  ) -> collections.OrderedDict[str, tf.Tensor]:
    """Returns what may be said after a round, in a graph."""
    del state, round_index
    # Noise that fails its test fails its round.
    return collections.OrderedDict(
      noise_placement=tf.constant(self.placement),
      noise_checked=tf.constant(self.placement != NoNoise.placement),
    )

  def close(self) -> None:  # noqa: B027
    """Ends what runs in the background."""


@dataclasses.dataclass(frozen=True, eq=False)
class NoNoise(NoiseSource):
  """Adds nothing, for a run that claims nothing."""

  placement: ClassVar[str] = 'none'
  dimension: int
  start_round: int = 0

  def initial_state(self):
    return ()

  def release(self, state, round_index, total):
    return total, state


@dataclasses.dataclass(frozen=True, eq=False)
class StateSource(NoiseSource):
  """The key and what the recursion remembers are in the state.

    y_t = round(z_steps scale_t z_t + readout_t . S_t)

  The state is secret: who has it can take the noise off. The recursion's table
  is a constant of the graph, which passes between processes as the state does.

  Attributes:
    recursion: of C.
    z_steps: standard deviation of z in steps of the lattice.
    dimension: d.
  """

  placement: ClassVar[str] = 'state'
  recursion: recursion_lib.Recursion
  z_steps: float
  dimension: int

  @staticmethod
  def bytes_passed(recursion: recursion_lib.Recursion, dimension: int) -> int:
    """Returns what passes between processes every round, in bytes."""
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
    # PRIVACY: a key a run: no two runs share noise. Guard:
    # aggregator_runs_test.test_two_runs_in_the_state_share_no_noise.
    return collections.OrderedDict(state, key=graph_generator.fresh_key_words())

  def release(self, state, round_index, total):
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
    # PRIVACY: a wrap of y is not post-processing, as one of the sum is.
    # Guard: source_test.test_noise_beyond_32_bits_fails_the_round.
    held = tf.debugging.Assert(
      tf.reduce_all(tf.abs(v) < 2.0**31), ['noise beyond 32 bits']
    )
    with tf.control_dependencies([held]):
      y = tf.cast(v, tf.int32)
    y = self_test.check(
      y,
      z_steps=self.z_steps,
      row_norms=recursion.row_norms,
      round_index=round_index,
    )
    new_state = collections.OrderedDict(key=state['key'])
    # PRIVACY: the y that was added is what is remembered. Guard:
    # source_test.test_rounds_are_those_of_the_recursion.
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
  """y is read from the files of a tape; the state names the tape.

  The process that runs the round must see the tape's folders. A tape serves one
  run: the one that reads a round of it first. Runs are told apart from `begin`
  on; states that it did not make are one run.
  """

  placement: ClassVar[str] = 'tape'

  def __init__(
    self,
    tape: tape_folder.ReadableTape,
    held: Optional[int] = None,
    position: Optional[position_lib.Position] = None,
  ):
    """Takes the tape, what `_hold` gave for its key, what says the round."""
    self.dimension = tape.dimension
    self.start_round = tape.start_round
    self._tape = tape
    self._held = held
    self._position = position

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
    # A name, not a secret. Positive.
    number = tf.raw_ops.NonDeterministicInts(shape=[1], dtype=tf.int64)[0]
    run = tf.bitwise.bitwise_and(number, 2**63 - 1) | 1
    return collections.OrderedDict(tape_id=state['tape_id'], run=run)

  def release(self, state, round_index, total):
    released = tape_reader.release(
      self._tape,
      total,
      tape_id=state['tape_id'],
      round_index=round_index,
      run=state['run'],
      timeout_seconds=_TAPE_TIMEOUT_SECONDS,
    )
    if self._position is not None:
      released = self._position.mark(released, round_index)
    return released, state

  def metrics(self, state, round_index):
    metrics = super().metrics(state, round_index)
    metrics['rounds_ahead'] = tape_reader.rounds_ahead(
      self._tape.shards, round_index
    )
    return metrics

  def close(self) -> None:
    self._tape.close()
    _held.discard(self._held)
    # A second call must not give back what another source has by then.
    self._held = None


def _hold(key: key_lib.Key) -> int:
  """Returns what names the key, whose noise is on no other tape here.

  Raises:
    ValueError: it is.
  """
  name = key.identify(b'held')
  with _holding:
    # PRIVACY: two runs with one key have the same noise, and the difference of
    # their releases has none. Guard:
    # aggregator_runs_test.test_second_factory_with_a_key_is_refused.
    if name in _held:
      raise errors.value_error(
        'key',
        'Key(<secret>)',
        'serves another aggregator',
        'close that one first, and go on from its state; a new run takes '
        'a new key',
      )
    _held.add(name)
  return name


def _memory_type(recursion: recursion_lib.Recursion) -> tf.DType:
  """Returns the type in which S is kept: past y are integers."""
  return tf.int32 if recursion.keeps == recursion_lib.PAST_Y else tf.float64


def of(
  placement: placements.Placement,
  recursion: recursion_lib.Recursion,
  z_steps: float,
  dimension: int,
) -> NoiseSource:
  """Returns the source of a placement; of a tape, its producer runs.

  Args:
    placement: where y comes from.
    recursion: of C.
    z_steps: standard deviation of z in steps of the lattice; 0 for no noise.
    dimension: d.

  Raises:
    TypeError: a placement of another kind.
    ValueError: a value out of range, a state that is too large to pass between
      processes, a key that serves another source of this process, or folders
      of servers that do not fit or have a reader.
    OSError: there is no room for the folder of a tape.
  """
  if not z_steps:
    return NoNoise(dimension, placement.start_round)
  if isinstance(placement, placements.Tape):
    key = placement.key or key_lib.Key.from_entropy()
    held = _hold(key)
    try:
      return TapeSource(
        tape_lib.Tape(
          placement.directory,
          stream.Stream(
            recursion,
            z_steps,
            dimension,
            key,
            placement.max_memory_bytes,
            devices=placement.devices,
            backend=placement.backend,
          ),
          start_round=placement.start_round,
        ),
        held,
        placement.position,
      )
    except BaseException:
      _held.discard(held)
      raise
  if isinstance(placement, placements.Served):
    folders = placement.folders
    if isinstance(folders, (str, os.PathLike)):
      folders = [folders]
    return TapeSource(
      served_tape.ServedTape(
        folders, recursion, z_steps, dimension, placement.start_round
      )
    )
  if not isinstance(placement, placements.InState):
    raise errors.type_error(
      'noise',
      type(placement).__name__,
      'has no source',
      'use a placement of noise.placements',
    )
  passed = StateSource.bytes_passed(recursion, dimension)
  if passed > _MAX_STATE_BYTES:
    raise errors.value_error(
      'noise',
      placement,
      f'{passed / 1e9:.1f} GB of noise cannot pass between TFF '
      f'processes, {_MAX_STATE_BYTES / 1e9:.1f} GB can',
      'use Tape()',
    )
  return StateSource(recursion, z_steps, dimension)
