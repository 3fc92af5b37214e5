"""y_t for all rounds in order, a block of rounds at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Optional

import numpy as np
import tensorflow as tf

from tff_bandmf import errors
from tff_bandmf.noise import chunks as chunks_lib
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


class Stream:
  """Rows of y = C^-1 Z from round 0 to n - 1.

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
      max_memory_bytes: Optional[int] = None,
  ):
    """Initializes the stream.

    Args:
      plan: the recursion of C.
      dimension: d.
      key: of z.
      generator: of z, `generators.PHILOX` or `generators.AES_CTR`.
      max_memory_bytes: what is remembered of past rounds goes to disk if it is
        larger; see `chunks.Chunks`. A few rows of y are in memory in any case.

    Raises:
      ValueError: the generator is not known, or no memory is allowed.
    """
    if max_memory_bytes is not None:
      errors.check_count(
          'max_memory_bytes', max_memory_bytes,
          'leave it out to keep all in memory')
    self.block_rounds = min(
        plan.rounds,
        max(_BLOCK_ROUNDS, min(_MOST_BLOCK_ROUNDS, plan.memory // 4)))
    self._plan = plan
    self._dimension = dimension
    self._generator = generators.of(generator, key)
    self._max_memory_bytes = max_memory_bytes

  def rows(self) -> Iterator[Optional[np.ndarray]]:
    """Yields y_t, [dimension] float32, for t = 0, 1, ...

    Yields None after each part of the work, so that the caller can stop. The
    array is written over by the next row.

    Raises:
      OSError: there is no room on the disk for what is not to be in memory.
    """
    plan, m = self._plan, self.block_rounds
    # Row u % memory_rows of a ring holds round u.
    memory_rows = (
        plan.memory if plan.keeps == plan_lib.BUFFERS
        else -(-plan.memory // m) * m)
    # A ring of y holds what is made; otherwise it comes after the memory.
    in_ring = plan.keeps == plan_lib.PAST_Y and memory_rows > 0
    y = np.empty(self._dimension, np.float32)
    matrices = None
    with chunks_lib.Chunks(
        memory_rows + (0 if in_ring else m), self._dimension, _CHUNK,
        self._max_memory_bytes) as chunks:
      for first in range(0, plan.rounds, m):
        rounds = min(m, plan.rounds - first)
        # Of one phase, all blocks of a size are the same.
        if matrices is None or plan.phases > 1 or rounds < m:
          matrices = plan.block(first, rounds)
        scale, weights = matrices
        row = 0
        if memory_rows and plan.keeps != plan_lib.BUFFERS:
          row = first % memory_rows
          weights = np.zeros((rounds, memory_rows), np.float32)
          weights[:, (first - 1 - np.arange(plan.memory)) % memory_rows] = (
              matrices[1])
        operands = [tf.constant(scale), tf.constant(weights)]
        made = row if in_ring else memory_rows
        for i in range(len(chunks.starts)):
          chunk = chunks[i]
          memory = chunk[:memory_rows]
          z = self._generator.rows(
              plan.first_draw(first), scale.shape[1], chunks.starts[i],
              chunks.count(i))
          out = _advance(
              z, *operands,
              # Not a copy: a ring is most of what a block reads.
              tf.experimental.dlpack.from_dlpack(memory.__dlpack__())
              if memory_rows else None).numpy()
          chunk[made:made + rounds] = out[:rounds]
          if plan.keeps == plan_lib.BUFFERS:
            memory += out[rounds:]
          elif plan.keeps == plan_lib.PAST_Z and memory_rows:
            memory[row:row + rounds] = z.numpy()
          yield None
        # Mapped no longer than it is used.
        del chunk, memory
        for r in range(made, made + rounds):
          for i, start in enumerate(chunks.starts):
            y[start:start + chunks.count(i)] = chunks[i][r]
          yield y


def _advance(z, scale, weights, memory):
  """Returns P Z + Q S, [rows of P, count]; see `plan`."""
  # Where the memory is; other devices would also round in other ways.
  with tf.device('/CPU:0'):
    if memory is None:
      # Rounds have nothing to do with one another: P is diagonal.
      return tf.linalg.diag_part(scale)[:, tf.newaxis] * z
    return tf.matmul(scale, z) + tf.matmul(weights, memory)
