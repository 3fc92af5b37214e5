"""Where blocks of rounds are made: in the host's memory, or on devices."""

from __future__ import annotations

import abc
import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from multiprocessing import pool as pool_lib
from typing import Any, Optional

import numpy as np
import tensorflow as tf

from tff_bandmf.noise import chunks as chunks_lib
from tff_bandmf.noise import generators
from tff_bandmf.noise import plan as plan_lib


@dataclasses.dataclass(frozen=True)
class Block:
  """Y = P Z + Q S for some rounds together; see `plan.Plan.block`.

  Attributes:
    rounds: m.
    first_draw: number of the first row of Z.
    scale: P.
    weights: Q [., rows of the memory], its columns as the memory's rows are.
    row: of the memory, where the rounds of a window go.
  """

  rounds: int
  first_draw: int
  scale: np.ndarray
  weights: np.ndarray
  row: int


class Place(contextlib.AbstractContextManager):
  """Makes blocks chunk by chunk and remembers what the next ones need.

  The memory is kept in place. A window of rounds is a ring: a block reads it
  once and writes only its own rounds. It starts at zero and goes at the end of
  the `with` statement.
  """

  def __init__(
      self,
      keeps: str,
      memory_rows: int,
      block_rounds: int,
      generator: generators.Generator,
      coordinates: range,
      chunk: int,
  ):
    """Initializes the place.

    Args:
      keeps: `plan.Plan.keeps`.
      memory_rows: rows of S, 0 or more.
      block_rounds: most rounds of a block.
      generator: of z.
      coordinates: those that are made.
      chunk: coordinates made at once.
    """
    self._keeps = keeps
    self._memory_rows = memory_rows
    self._block_rounds = block_rounds
    self._generator = generator
    self._coordinates = coordinates
    # Relative to the first coordinate.
    self._starts = range(0, len(coordinates), chunk)

  def _count(self, i: int) -> int:
    """Returns the coordinates of chunk i."""
    return min(self._starts.step, len(self._coordinates) - self._starts[i])

  def _draw(self, i: int, block: Block, device: str) -> tf.Tensor:
    """Returns Z of a block and chunk, [rows, count] float32, on the device."""
    return self._generator.rows(
        block.first_draw, block.scale.shape[1],
        self._coordinates.start + self._starts[i], self._count(i), device)

  @abc.abstractmethod
  def advance(self, block: Block) -> Iterator[None]:
    """Makes the rows of the next block; yields after each part of the work."""

  @abc.abstractmethod
  def _rows(self, i: int) -> np.ndarray:
    """Returns y of the block made last, [rounds, coordinates of chunk i]."""

  def copy_row(self, r: int, y: np.ndarray) -> None:
    """Copies row r of the block made last to y, [coordinates] float32."""
    for i, start in enumerate(self._starts):
      y[start:start + self._count(i)] = self._rows(i)[r]


class Host(Place):
  """Works in the host's memory, float32 throughout."""

  def __init__(self, *args, max_memory_bytes: Optional[int]):
    """Takes what `Place` takes, and the bound of `chunks.Chunks`."""
    super().__init__(*args)
    # A ring of y holds what is made; otherwise it comes after the memory.
    self._in_ring = self._keeps == plan_lib.PAST_Y and self._memory_rows > 0
    self._chunks = chunks_lib.Chunks(
        self._memory_rows + (0 if self._in_ring else self._block_rounds),
        len(self._coordinates), self._starts.step, max_memory_bytes)
    self._made = slice(0)

  def __exit__(self, *exc_info) -> None:
    self._chunks.close()

  def advance(self, block: Block) -> Iterator[None]:
    operands = tf.constant(block.scale), tf.constant(block.weights)
    first = block.row if self._in_ring else self._memory_rows
    self._made = slice(first, first + block.rounds)
    for i in range(len(self._starts)):
      chunk = self._chunks[i]
      memory = chunk[:self._memory_rows]
      z = self._draw(i, block, generators.CPU)
      out = _advance(
          z, *operands,
          # Not a copy: a ring is most of what a block reads.
          tf.experimental.dlpack.from_dlpack(memory.__dlpack__())
          if self._memory_rows else None).numpy()
      chunk[self._made] = out[:block.rounds]
      if self._keeps == plan_lib.BUFFERS:
        memory += out[block.rounds:]
      elif self._keeps == plan_lib.PAST_Z and self._memory_rows:
        memory[block.row:block.row + block.rounds] = z.numpy()
      # Mapped no longer than it is used.
      del chunk, memory
      yield

  def _rows(self, i: int) -> np.ndarray:
    return self._chunks[i][self._made]


class Devices(Place):
  """Works on accelerators at the same time, chunks dealt to them in turn.

  A chunk's memory stays on its device; a block's rows come back. Products are
  in float64 and rounded once: in float32, GPUs may multiply with 10 bits.
  """

  def __init__(self, *args, devices: Sequence[str]):
    """Takes what `Place` takes, and names of logical devices."""
    super().__init__(*args)
    self._devices = devices
    self._pools = [pool_lib.ThreadPool(1) for _ in devices]
    # None, then a tf.Variable.
    self._memories: list[Any] = [None] * len(self._starts)
    self._made: list[np.ndarray] = []

  def __exit__(self, *exc_info) -> None:
    for pool in self._pools:
      pool.terminate()
    for pool in self._pools:
      pool.join()
    self._memories.clear()

  def advance(self, block: Block) -> Iterator[None]:
    parts = [
        self._pools[i % len(self._pools)].apply_async(
            self._advance_chunk, (i, block))
        for i in range(len(self._starts))]
    self._made = []
    for part in parts:
      self._made.append(part.get())
      yield

  def _advance_chunk(self, i: int, block: Block) -> np.ndarray:
    device = self._devices[i % len(self._devices)]
    with tf.device(device):
      z = self._draw(i, block, device)
      # PRIVACY: TensorFloat-32 would round C. Guard:
      # devices_test.test_devices_multiply_in_float64.
      out = tf.matmul(_float64(block.scale), _float64(z))
      if self._memory_rows:
        memory = self._memories[i]
        if memory is None:
          memory = self._memories[i] = tf.Variable(
              tf.zeros([self._memory_rows, self._count(i)]))
        out += tf.matmul(_float64(block.weights), _float64(memory))
      out = tf.cast(out, tf.float32)
      if self._memory_rows and self._keeps == plan_lib.BUFFERS:
        memory.assign_add(out[block.rounds:])
      elif self._memory_rows:
        memory[block.row:block.row + block.rounds].assign(
            z if self._keeps == plan_lib.PAST_Z else out)
      return out[:block.rounds].numpy()

  def _rows(self, i: int) -> np.ndarray:
    return self._made[i]


def _float64(values) -> tf.Tensor:
  return tf.cast(values, tf.float64)


def _advance(z, scale, weights, memory):
  """Returns P Z + Q S, [rows of P, count]; see `plan`."""
  # Where the memory is; other devices would also round in other ways.
  with tf.device(generators.CPU):
    if memory is None:
      # Rounds have nothing to do with one another: P is diagonal.
      return tf.linalg.diag_part(scale)[:, tf.newaxis] * z
    return tf.matmul(scale, z) + tf.matmul(weights, memory)
