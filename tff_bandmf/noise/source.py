"""Where a round's y comes from: TFF's state, or a tape."""

from __future__ import annotations

import abc
import collections
from typing import Optional

import tensorflow as tf

from tff_bandmf.noise import key as key_lib
from tff_bandmf.noise import normal, tape_reader
from tff_bandmf.noise import plan as plan_lib
from tff_bandmf.noise import tape as tape_lib

# How long a round waits for its file before it fails.
_TAPE_TIMEOUT_SECONDS = 600.0


class NoiseSource(abc.ABC):
  """Gives y_t = (C^-1 Z)[t] inside a graph, as a pure function of its state.

  Attributes:
    placement: 'state' or 'tape'.
    dimension: d, coordinates of y_t.
    start_round: the round that `initial_state` belongs to.
  """

  placement: str
  dimension: int
  start_round: int = 0

  @abc.abstractmethod
  def initial_state(self):
    """Returns the structure of tensors that `next` takes at `start_round`."""

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

  def close(self) -> None:  # noqa: B027
    """Ends what runs in the background."""


class StateSource(NoiseSource):
  """The key and the last bands - 1 rounds of y are in the state.

  The state is secret: who has it can take the noise off. For small models and
  for runtimes that share no file system with this process.
  """

  placement = 'state'

  def __init__(
      self,
      plan: plan_lib.ToeplitzPlan,
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

  def initial_state(self):
    words = tf.constant(self._key.words())
    if not self._repeatable:
      # Secrecy comes from the key; this part only has to differ.
      offset = tf.raw_ops.NonDeterministicInts(shape=[1], dtype=tf.int64)
      words = tf.concat([words[:1], words[1:] + offset], 0)
    state = collections.OrderedDict(key=words)
    if self._plan.memory:
      state['past'] = tf.zeros([self._plan.memory, self.dimension])
    return state

  def next(self, state, round_index: tf.Tensor):
    z = normal.standard_normal(state['key'], round_index, 0, self.dimension)
    scale, weights = self._plan.block(1)
    y = z * scale[0, 0]
    new_state = collections.OrderedDict(key=state['key'])
    if self._plan.memory:
      y -= tf.reshape(tf.matmul(weights, state['past']), [self.dimension])
      new_state['past'] = tf.concat([y[tf.newaxis], state['past'][:-1]], 0)
    return y, new_state


class TapeSource(NoiseSource):
  """y is read from the files of a `Tape`; the state names the tape.

  The process that runs the round must see the tape's folder. A tape serves one
  run: two that go on from its initial state would share noise.
  """

  placement = 'tape'

  def __init__(self, tape: tape_lib.Tape):
    self.dimension = tape.dimension
    self.start_round = tape.start_round
    self._tape = tape

  def initial_state(self):
    return collections.OrderedDict(
        tape_id=tf.constant(self._tape.tape_id, tf.int64))

  def next(self, state, round_index: tf.Tensor):
    y = tape_reader.read(
        str(self._tape.directory), state['tape_id'], round_index,
        self.dimension, _TAPE_TIMEOUT_SECONDS)
    return y, state

  def close(self) -> None:
    self._tape.close()
