"""Blocks of rounds: y from z and from the memory of past rounds.

A block has m rounds. It adds the mean that follows from past y to its scaled
normals, rounds the sum to y, and writes its rounds to the memory. The memory
of a `WindowBlock` is a ring: round u is in row u modulo the number of rows. The
memory of a `BufferBlock` has weighted sums of past y.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tff_bandmf.noise import generator as generator_lib
from tff_bandmf.strategies import recursion as recursion_lib

# Number of rounds of a block whose weighted sums are one matrix product.
_TOGETHER = 16
# Columns of a window that are converted to float64 at once, few enough to stay
# in cache.
_PIECE = 512
# PRIVACY: A larger y would wrap around in 32 bits, so that C y would not be z.
# A block with a larger value fails.
# Guard: stream_test.test_noise_out_of_range_is_refused.
_LARGEST = 2.0**31 - 1


class Workspace:
  """Float64 arrays that all chunks use, one chunk after the other."""

  def __init__(self):
    self._arrays: dict[str, np.ndarray] = {}

  def array(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Returns an array with arbitrary content.

    Args:
      name: name of the array; a later call with the same name reuses its
        memory.
      shape: shape of the array.
    """
    size = int(np.prod(shape))
    if name not in self._arrays or len(self._arrays[name]) < size:
      self._arrays[name] = np.empty(size)
    return self._arrays[name][:size].reshape(shape)


@dataclasses.dataclass(frozen=True)
class Block(abc.ABC):
  """Consecutive rounds that are computed together, in lattice steps.

  Attributes:
    first: first round, >= 0.
    noise_scale: [m] float64, standard deviation of the fresh noise of each
      round in lattice steps, z_steps scale_t.
    row: first row of the ring of a window to which the rounds are written;
      0 for buffers.
  """

  first: int
  noise_scale: np.ndarray
  row: int

  @property
  def rounds(self) -> int:
    """Number of rounds of the block, m."""
    return len(self.noise_scale)

  @abc.abstractmethod
  def advance(
    self, z: np.ndarray, memory: np.ndarray, output: np.ndarray, work: Workspace
  ) -> None:
    """Computes y of the rounds and updates the memory.

    Args:
      z: [m, count] float64, normals times noise_scale; overwritten.
      memory: [memory rows, count], the recursion's memory; updated.
      output: [m, count] int32, overwritten with y; may be rows of the memory.
      work: arrays for intermediate results.

    Raises:
      OverflowError: a value of y does not fit in 32 bits.
    """


@dataclasses.dataclass(frozen=True)
class WindowBlock(Block):
  """A block of the recursion `recursion.Window`; see `Window.block`.

    V = noise_scale * Z + far S + near U,   Y = round(V)

  Attributes:
    feeds_y: whether U = Y; else U = (Y - (V - noise_scale * Z)) / scale.
    scale: [m] float64, scale_t of each round.
    far: [m, rows of the ring] float64, weights of the rounds before the block;
      column j belongs to row j of the ring.
    near: [m, m] float64, weights of the rounds of the block, strictly
      lower-triangular.
  """

  feeds_y: bool
  scale: np.ndarray
  far: np.ndarray
  near: np.ndarray

  @classmethod
  def of(
    cls,
    window: recursion_lib.Window,
    z_steps: float,
    rounds: range,
    ring_rows: int,
  ) -> WindowBlock:
    """Returns the block of consecutive rounds; round u is in row u % ring_rows.

    Args:
      window: the recursion of the strategy C.
      z_steps: standard deviation of z in lattice steps, > 0.
      rounds: the rounds of the block.
      ring_rows: number of rows of the ring, >= 0; 0 without memory.
    """
    first = rounds.start
    scale, near_far, near = window.block(first, len(rounds))
    far = np.zeros((len(rounds), ring_rows))
    row = 0
    if ring_rows:
      row = first % ring_rows
      far[:, (first - 1 - np.arange(window.memory)) % ring_rows] = near_far
    return cls(
      first,
      z_steps * scale,
      row,
      window.keeps == recursion_lib.PAST_Y,
      scale,
      far,
      near,
    )

  def advance(
    self, z: np.ndarray, memory: np.ndarray, output: np.ndarray, work: Workspace
  ) -> None:
    y, ring = z, memory
    if not len(ring):
      # Check the largest z that can occur, in place of every y.
      checked(generator_lib.MOST_DEVIATIONS * self.noise_scale)
      output[:] = np.rint(z, out=y)
      return
    mean = self._mean_of_past(ring, work)
    # PRIVACY: If later rounds followed from another y than the sum got, the
    # noise would be that of another C. Later rounds follow from the rounded y.
    # Guard: stream_test.test_noise_is_that_of_the_recursion.
    fed = y if self.feeds_y else work.array('fed', z.shape)
    for start in range(0, self.rounds, _TOGETHER):
      stop = min(start + _TOGETHER, self.rounds)
      if start:
        mean[start:stop] += self.near[start:stop, :start] @ fed[:start]
      for r in range(start, stop):
        if r > start:
          mean[r] += self.near[r, start:r] @ fed[start:r]
        y[r] += mean[r]
        np.rint(y[r], out=y[r])
        if not self.feeds_y:
          np.subtract(y[r], mean[r], out=fed[r])
          fed[r] /= self.scale[r]
      output[start:stop] = checked(y[start:stop])
    if not self.feeds_y:
      ring[self.row : self.row + self.rounds] = fed

  def _mean_of_past(self, ring: np.ndarray, work: Workspace) -> np.ndarray:
    """Returns far S, [m, count] float64."""
    mean = work.array('mean', (self.rounds, ring.shape[1]))
    for start in range(0, ring.shape[1], _PIECE):
      piece = ring[:, start : start + _PIECE]
      past = work.array('past', piece.shape)
      np.copyto(past, piece)
      np.matmul(self.far, past, out=mean[:, start : start + _PIECE])
    return mean


@dataclasses.dataclass(frozen=True)
class BufferBlock(Block):
  """A block of the recursion `recursion.Buffers`: one round after the other.

  Attributes:
    steps: [m] the single rounds.
  """

  steps: Sequence[recursion_lib.Step]

  @classmethod
  def of(
    cls, buffers: recursion_lib.Buffers, z_steps: float, rounds: range
  ) -> BufferBlock:
    """Returns the block of consecutive rounds.

    Args:
      buffers: the recursion of the strategy C.
      z_steps: standard deviation of z in lattice steps, > 0.
      rounds: the rounds of the block.
    """
    steps = [buffers.step(int(buffers.phase(t))) for t in rounds]
    noise_scale = z_steps * np.array([step.scale for step in steps])
    return cls(rounds.start, noise_scale, 0, steps)

  @functools.cached_property
  def _split_steps(self) -> list[_Step]:
    return list(map(_Step.of, self.steps))

  def advance(
    self, z: np.ndarray, memory: np.ndarray, output: np.ndarray, work: Workspace
  ) -> None:
    y = z
    for r, step in enumerate(self._split_steps):
      y[r] += step.readout @ memory
      np.rint(y[r], out=y[r])
      if len(step.mixed):
        mixed = step.mix @ memory
      memory *= step.decay
      for buffer in step.fed:
        memory[buffer] += step.gain[buffer] * y[r]
      if len(step.mixed):
        memory[step.mixed] += mixed
    output[:] = checked(y)


class _Step(NamedTuple):
  """A `recursion.Step` whose update is split into its diagonal and the rest.

  Attributes:
    readout: [memory] float64, weights of the buffers in the mean.
    decay: [memory, 1] float64, the diagonal of the update.
    mixed: [mixed] indices of the buffers to which other buffers are added.
    mix: [mixed, memory] float64, the rest of the update, rows of `mixed` only.
    fed: [.] indices of the buffers to which y is added.
    gain: [memory] float64, weights of y.
  """

  readout: np.ndarray
  decay: np.ndarray
  mixed: np.ndarray
  mix: np.ndarray
  fed: np.ndarray
  gain: np.ndarray

  @classmethod
  def of(cls, step: recursion_lib.Step) -> _Step:
    decay = np.diag(step.update)
    others = step.update - np.diag(decay)
    mixed = np.flatnonzero(others.any(1))
    return cls(
      step.readout,
      decay[:, np.newaxis].copy(),
      mixed,
      others[mixed],
      np.flatnonzero(step.gain),
      step.gain,
    )


def checked(y: np.ndarray) -> np.ndarray:
  """Returns y, if all its values fit in 32 bits.

  Args:
    y: array of lattice steps, of any shape.

  Raises:
    OverflowError: a value does not fit, or is not a number.
  """
  if y.size and not max(y.max(), -y.min()) <= _LARGEST:
    raise OverflowError('noise: a value left the range of 32 bits')
  return y
