"""Where a round's y comes from: TFF's state, a key's file, or a tape."""

from __future__ import annotations

import abc
import collections
import os
from typing import Optional, Union

import tensorflow as tf

from tff_bandmf import errors
from tff_bandmf.noise import (
    generators,
    key_file,
    normal,
    served_tape,
    tape_reader,
)
from tff_bandmf.noise import key as key_lib
from tff_bandmf.noise import plan as plan_lib
from tff_bandmf.noise import tape as tape_lib

# How long a round waits for its file before it fails.
_TAPE_TIMEOUT_SECONDS = 600.0


class NoiseSource(abc.ABC):
  """Gives y_t = (C^-1 Z)[t] inside a graph, as a pure function of its state.

  Attributes:
    placement: 'state', 'regenerate' or 'tape'.
    dimension: d, coordinates of y_t.
    start_round: the round that `initial_state` belongs to.
  """

  placement: str
  dimension: int
  start_round: int = 0

  @abc.abstractmethod
  def initial_state(self):
    """Returns the structure of tensors that `next` takes at `start_round`."""

  def begin(self, state):
    """Returns the state of a new run, from that of `initial_state`.

    TFF evaluates a round on the latter, and throws away what it gives.
    """
    return state

  @abc.abstractmethod
  def next(self, state, round_index: tf.Tensor):
    """Returns (y, new state).

    Args:
      state: of the round.
      round_index: scalar int64.

    Returns:
      y [dimension] float32 for z of unit standard deviation; the state of the
      next round.
    """

  def metrics(
      self, round_index: tf.Tensor
  ) -> collections.OrderedDict[str, tf.Tensor]:
    """Returns what may be said of the source before a round, in a graph."""
    del round_index
    return collections.OrderedDict(
        noise_placement=tf.constant(self.placement))

  def close(self) -> None:  # noqa: B027
    """Ends what runs in the background."""


class StateSource(NoiseSource):
  """The key and what the plan remembers are in the state.

  The state is secret: who has it can take the noise off. For small models and
  for runtimes that share no file system with this process. The plan's table
  is a constant of the graph, which passes between processes as the state does.
  """

  placement = 'state'

  def __init__(
      self,
      plan: plan_lib.Plan,
      dimension: int,
      key: Optional[key_lib.Key] = None,
  ):
    """Initializes the source.

    Args:
      plan: the recursion of C.
      dimension: d.
      key: the same noise for every `initialize`; None draws a key from the
        operating system and lets every `initialize` start at another place of
        its stream, so that two runs of one process never share noise.
    """
    self.dimension = dimension
    self._plan = plan
    self._repeatable = key is not None
    self._key = key or key_lib.Key.from_entropy()

  @staticmethod
  def bytes_passed(plan: plan_lib.Plan, dimension: int) -> int:
    """Returns what passes between processes every round, in bytes."""
    return 4 * plan.memory * dimension + plan.table_bytes

  def initial_state(self):
    words = tf.constant(self._key.words())
    if not self._repeatable:
      words += tf.stack([0, _any_offset()])
    state = collections.OrderedDict(key=words)
    if self._plan.memory:
      state['past'] = tf.zeros([self._plan.memory, self.dimension])
    return state

  def next(self, state, round_index: tf.Tensor):
    plan = self._plan
    z = self._draw(state['key'], round_index)
    scale, weights = _coefficients(plan, round_index)
    out = tf.matmul(scale[:, :tf.shape(z)[0]], z)
    new_state = collections.OrderedDict(key=state['key'])
    if plan.memory:
      past = state['past']
      out += tf.matmul(weights, past)
      if plan.keeps == plan_lib.BUFFERS:
        past += out[1:]
      else:
        latest = z if plan.keeps == plan_lib.PAST_Z else out
        past = tf.concat([latest, past[:-1]], 0)
      new_state['past'] = past
    return out[0], new_state

  def _draw(self, key: tf.Tensor, round_index: tf.Tensor) -> tf.Tensor:
    """Returns the rows of z that a round takes, [rows, dimension]."""
    def row(number):
      return normal.standard_normal(key, number, 0, self.dimension)

    if self._plan.draws == 1:
      return row(round_index)[tf.newaxis]
    numbers = tf.range(
        self._plan.first_draw(round_index),
        self._plan.first_draw(round_index + 1))
    return tf.map_fn(row, numbers, fn_output_signature=tf.TensorSpec(
        [self.dimension], tf.float32))


class RegenerateSource(NoiseSource):
  """Every round makes the past z that it needs again: nothing is remembered.

    y_t = sum_{s<p} C^-1[t, t - s] z_{t-s}

  A round makes min(t + 1, p) rows of z. The state and the graph name a file
  that holds the key, and hold no secret themselves; the process that runs the
  round must see it. A round that is run twice gets the same noise twice, for
  any cohort: unlike a tape, this source cannot know.
  """

  placement = 'regenerate'

  def __init__(
      self,
      plan: plan_lib.Plan,
      dimension: int,
      key: Optional[key_lib.Key] = None,
      directory: Optional[Union[str, os.PathLike]] = None,
  ):
    """Writes the file of the key.

    Args:
      plan: the recursion of C.
      dimension: d.
      key: as `StateSource` takes it.
      directory: where the file's folder is made; None takes memory.

    Raises:
      ValueError: C^-1 has more than a few bands.
    """
    if plan.keeps != plan_lib.PAST_Z:
      raise ValueError(
          errors.invalid(
              'noise_placement', self.placement,
              'is for strategies whose inverse has few bands',
              'use state or tape, or a dp-cgd or banded-inverse strategy'))
    self.dimension = dimension
    self._plan = plan
    self._repeatable = key is not None
    key = key or key_lib.Key.from_entropy()
    self._key_id = plan.identify(key, dimension, generators.PHILOX)
    self._file = key_file.KeyFile(key, self._key_id, directory)

  def initial_state(self):
    return collections.OrderedDict(
        key_id=tf.constant(self._key_id, tf.int64),
        offset=tf.constant(0, tf.int64) if self._repeatable else _any_offset())

  def next(self, state, round_index: tf.Tensor):
    words = key_file.read(str(self._file.directory), state['key_id'])
    words += tf.stack([0, state['offset']])
    scale, weights = _coefficients(self._plan, round_index)
    row = tf.concat([scale[0], weights[0]], 0)

    def add(s, y):
      z = normal.standard_normal(words, round_index - s, 0, self.dimension)
      return s + 1, y + row[s] * z

    terms = tf.minimum(round_index, self._plan.memory) + 1
    _, y = tf.while_loop(
        lambda s, _: s < terms, add,
        [tf.constant(0, tf.int64), tf.zeros([self.dimension])])
    return y, state

  def close(self) -> None:
    self._file.close()


class TapeSource(NoiseSource):
  """y is read from the files of a tape; the state names the tape.

  The process that runs the round must see the tape's folders. A tape serves one
  run: the one that reads a round of it first. Runs are told apart from `begin`
  on; states that it did not make are one run.
  """

  placement = 'tape'

  def __init__(self, tape: Union[tape_lib.Tape, served_tape.ServedTape]):
    self.dimension = tape.dimension
    self.start_round = tape.start_round
    self._tape = tape

  def initial_state(self):
    return collections.OrderedDict(
        tape_id=tf.constant(self._tape.tape_id, tf.int64),
        run=tf.constant(tape_reader.NOBODY, tf.int64))

  def begin(self, state):
    # Positive.
    run = tf.bitwise.bitwise_and(_any_offset(), 2**63 - 1) | 1
    return collections.OrderedDict(tape_id=state['tape_id'], run=run)

  def next(self, state, round_index: tf.Tensor):
    y = tape_reader.read(
        self._tape.shards, state['tape_id'], round_index,
        _TAPE_TIMEOUT_SECONDS, state['run'])
    return y, state

  def metrics(self, round_index: tf.Tensor):
    metrics = super().metrics(round_index)
    metrics['rounds_ahead'] = tape_reader.rounds_ahead(
        self._tape.shards, round_index)
    return metrics

  def close(self) -> None:
    self._tape.close()


def _any_offset() -> tf.Tensor:
  """Returns a number for word 1 of a key, another one for every call.

  Secrecy comes from the key; this only has to differ.
  """
  return tf.raw_ops.NonDeterministicInts(shape=[1], dtype=tf.int64)[0]


def _coefficients(
    plan: plan_lib.Plan, round_index: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
  """Returns (P, Q) of a single round."""
  phase = plan.phase(round_index)
  return tuple(tf.gather(table, phase) for table in plan.table())
