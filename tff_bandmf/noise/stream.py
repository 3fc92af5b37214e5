"""y_t for all rounds in order, a block of rounds at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Optional

import numpy as np
import tensorflow as tf

from tff_bandmf.noise import key as key_lib
from tff_bandmf.noise import normal
from tff_bandmf.noise import plan as plan_lib

# Coordinates made at once: a block's z and y stay in cache.
_CHUNK = 1 << 16
_BLOCK_ROUNDS = 16
# TensorFlow's vector instructions want their operands so.
_ALIGNMENT_BYTES = 64


class Stream:
  """Blocks of y = C^-1 Z from round 0 on.

  Every block is made by the same operations, so two streams of one key and
  plan are equal to the bit on one machine.

  The past is a ring of rounds, kept in place: it is as large as bands - 1
  rounds of y, and a block reads it once and writes only its own rounds.

  Attributes:
    block_rounds: m, rounds a block.
  """

  def __init__(
      self,
      plan: plan_lib.ToeplitzPlan,
      dimension: int,
      rounds: int,
      key: key_lib.Key,
  ):
    """Initializes the stream.

    Args:
      plan: the recursion of C.
      dimension: d.
      rounds: n.
      key: of z.
    """
    self.block_rounds = min(_BLOCK_ROUNDS, rounds)
    self._plan = plan
    self._dimension = dimension
    self._rounds = rounds
    self._key = key

  def blocks(self) -> Iterator[Optional[np.ndarray]]:
    """Yields [m, dimension] float32 for rounds 0 .. m - 1, m .. 2m - 1, ...

    Yields None after each part of the work, so that the caller can stop. The
    array is written over by the next block; rows past round n mean nothing.
    """
    m, d = self.block_rounds, self._dimension
    words = tf.constant(self._key.words())
    scale, weights = self._plan.block(m)
    lags = np.arange(self._plan.memory)
    # Row u % ring_rounds of the ring holds round u.
    ring_rounds = -(-self._plan.memory // m) * m
    chunks = [
        (start, _aligned_zeros(ring_rounds, min(_CHUNK, d - start)))
        for start in range(0, d, _CHUNK)
    ]
    block = np.empty((m, d), np.float32)
    for first in range(0, self._rounds, m):
      ring_weights = np.zeros((m, ring_rounds), np.float32)
      if ring_rounds:
        ring_weights[:, (first - 1 - lags) % ring_rounds] = weights
        row = first % ring_rounds
      for start, ring in chunks:
        count = ring.shape[1]
        y = _advance(
            words, tf.constant(first, tf.int64), tf.constant(start, tf.int64),
            tf.constant(scale), tf.constant(ring_weights),
            # Not a copy: the ring is most of what a block reads.
            tf.experimental.dlpack.from_dlpack(ring.__dlpack__())
            if ring_rounds else None, count).numpy()
        if ring_rounds:
          ring[row:row + m] = y
        block[:, start:start + count] = y
        yield None
      yield block


@tf.function(autograph=False)
def _advance(words, first, start, scale, weights, ring, count):
  """Returns y of rounds first .. first + m - 1, [m, count]; see `plan`."""
  # Where the ring is; other devices would also round z in other ways.
  with tf.device('/CPU:0'):
    z = tf.stack([
        normal.standard_normal(words, first + r, start, count)
        for r in range(scale.shape[0])
    ])
    if ring is None:
      return scale[0, 0] * z
    return tf.matmul(scale, z) - tf.matmul(weights, ring)


def _aligned_zeros(rows: int, columns: int) -> np.ndarray:
  """Returns [rows, columns] float32 zeros whose memory is aligned."""
  padding = _ALIGNMENT_BYTES // 4
  memory = np.zeros(rows * columns + padding, np.float32)
  offset = -memory.ctypes.data % _ALIGNMENT_BYTES // 4
  return memory[offset:offset + rows * columns].reshape(rows, columns)
