"""y_t for all rounds in order, a block of rounds at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Optional

import numpy as np
import tensorflow as tf

from tff_bandmf.noise import generators
from tff_bandmf.noise import key as key_lib
from tff_bandmf.noise import plan as plan_lib

# Coordinates made at once: a block's z and y stay in cache.
_CHUNK = 1 << 16
# Measured with `simulations.bench producer`. A block is a quarter of the window
# within these bounds: fewer rounds read the window too often, and more depend
# too much on each other.
_BLOCK_ROUNDS = 32
_MOST_BLOCK_ROUNDS = 64
# TensorFlow's vector instructions want their operands so.
_ALIGNMENT_BYTES = 64


class Stream:
  """Blocks of y = C^-1 Z from round 0 to n - 1.

  Every block is made by the same operations, so two streams of one key and
  plan are equal to the bit on one machine.

  The memory is kept in place. A window of rounds is a ring: a block reads it
  once and writes only its own rounds.

  Attributes:
    block_rounds: m, rounds a block; the last one may be shorter.
  """

  def __init__(
      self,
      plan: plan_lib.Plan,
      dimension: int,
      key: key_lib.Key,
      generator: str = generators.PHILOX,
  ):
    """Initializes the stream.

    Args:
      plan: the recursion of C.
      dimension: d.
      key: of z.
      generator: of z, `generators.PHILOX` or `generators.AES_CTR`.

    Raises:
      ValueError: the generator is not known.
    """
    self.block_rounds = min(
        plan.rounds,
        max(_BLOCK_ROUNDS, min(_MOST_BLOCK_ROUNDS, plan.memory // 4)))
    self._plan = plan
    self._dimension = dimension
    self._generator = generators.of(generator, key)

  def blocks(self) -> Iterator[Optional[np.ndarray]]:
    """Yields [m, dimension] float32 for rounds 0 .. m - 1, m .. 2m - 1, ...

    Yields None after each part of the work, so that the caller can stop. The
    array is written over by the next block.
    """
    plan, m, d = self._plan, self.block_rounds, self._dimension
    buffers = plan.keeps == plan_lib.BUFFERS
    # Row u % memory_rows of a ring holds round u.
    memory_rows = plan.memory if buffers else -(-plan.memory // m) * m
    chunks = [
        (start, _aligned_zeros(memory_rows, min(_CHUNK, d - start)))
        for start in range(0, d, _CHUNK)
    ]
    block = np.empty((m, d), np.float32)
    matrices = None
    for first in range(0, plan.rounds, m):
      rounds = min(m, plan.rounds - first)
      # Of one phase, all blocks of a size are the same.
      if matrices is None or plan.phases > 1 or rounds < m:
        matrices = plan.block(first, rounds)
      scale, weights = matrices
      row = 0
      if memory_rows and not buffers:
        row = first % memory_rows
        weights = np.zeros((rounds, memory_rows), np.float32)
        weights[:, (first - 1 - np.arange(plan.memory)) % memory_rows] = (
            matrices[1])
      operands = [tf.constant(scale), tf.constant(weights)]
      for start, memory in chunks:
        count = memory.shape[1]
        z = self._generator.rows(
            plan.first_draw(first), scale.shape[1], start, count)
        out = _advance(
            z, *operands,
            # Not a copy: a ring is most of what a block reads.
            tf.experimental.dlpack.from_dlpack(memory.__dlpack__())
            if memory_rows else None)
        y = out.numpy()[:rounds]
        if buffers:
          memory += out.numpy()[rounds:]
        elif memory_rows:
          memory[row:row + rounds] = (
              z.numpy() if plan.keeps == plan_lib.PAST_Z else y)
        block[:rounds, start:start + count] = y
        yield None
      yield block[:rounds]


@tf.function(autograph=False)
def _advance(z, scale, weights, memory):
  """Returns P Z + Q S, [rows of P, count]; see `plan`."""
  # Where the memory is; other devices would also round in other ways.
  with tf.device('/CPU:0'):
    if memory is None:
      # Rounds have nothing to do with one another: P is diagonal.
      return tf.linalg.diag_part(scale)[:, tf.newaxis] * z
    return tf.matmul(scale, z) + tf.matmul(weights, memory)


def _aligned_zeros(rows: int, columns: int) -> np.ndarray:
  """Returns [rows, columns] float32 zeros whose memory is aligned."""
  padding = _ALIGNMENT_BYTES // 4
  memory = np.zeros(rows * columns + padding, np.float32)
  offset = -memory.ctypes.data % _ALIGNMENT_BYTES // 4
  return memory[offset:offset + rows * columns].reshape(rows, columns)
