"""Blocks of rounds: they compute noise Y from normals Z and earlier rounds.

  Y = round(noise_scale * Z + M)

| symbol | meaning                                                           |
|--------|-------------------------------------------------------------------|
| m      | number of rounds of the block                                     |
| count  | number of coordinates that are computed                           |
| C      | strategy matrix of the mechanism                                  |
| Z      | [m, count] unit normals                                           |
| Y      | [m, count] noise of the block in lattice steps; y is one row      |
| M      | [m, count] means: weighted sums of the memory and of earlier rows |
|        | of the block                                                      |
| S      | memory of the recursion before the block                          |
| U      | [m, count] rows that the block writes to the memory of a window   |

The memory of a `WindowBlock` is a ring: round u is in row u modulo the number
of rows. The memory of a `BufferBlock` consists of buffers: weighted sums of
past y. `Block` defines noise_scale. Noise is in steps of `noise.lattice`.
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

# Number of rounds of a group. A block is computed group by group: one matrix
# product adds the weighted rows of all earlier groups to the rounds of a group.
_TOGETHER = 16
# Number of columns of a window that are converted to float64 at a time, so few
# that they stay in cache.
_PIECE = 512
# PRIVACY: If |y| exceeded this bound, y could wrap around in 32 bits, the noise
# would not be C^-1 z, and epsilon would not hold. A block with such a y fails.
# Guard: stream_test.test_noise_out_of_range_is_refused.
_LARGEST = 2.0**31 - 1


class Workspace:
  """Float64 arrays for intermediate results, used by one chunk at a time."""

  def __init__(self):
    self._arrays: dict[str, np.ndarray] = {}

  def array(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Returns an array with arbitrary content.

    Args:
      name: name of the array. A later call with the same name may return the
        same memory.
      shape: shape of the array.
    """
    size = int(np.prod(shape))
    if name not in self._arrays or len(self._arrays[name]) < size:
      self._arrays[name] = np.empty(size)
    return self._arrays[name][:size].reshape(shape)


@dataclasses.dataclass(frozen=True)
class Block(abc.ABC):
  """Consecutive rounds whose noise is computed together.

  Attributes:
    first: first round of the block, >= 0.
    noise_scale: [m] float64, z_steps scale_t for each round t: the standard
      deviation of noise_scale * Z in lattice steps.
    row: row of a window's ring that the block writes first; 0 for buffers.
  """

  first: int
  noise_scale: np.ndarray
  row: int

  @property
  def rounds(self) -> int:
    """m, number of rounds of the block."""
    return len(self.noise_scale)

  @abc.abstractmethod
  def advance(
    self, z: np.ndarray, memory: np.ndarray, output: np.ndarray, work: Workspace
  ) -> None:
    """Computes Y of the block and updates the memory.

    If the memory is a ring of past y, only `output` is written. The caller must
    then pass the m rows of the ring from `row` on as `output`.

    Args:
      z: [m, count] float64, noise_scale * Z; overwritten.
      memory: [memory rows, count], S; updated.
      output: [m, count] int32; overwritten with Y.
      work: arrays for intermediate results.

    Raises:
      OverflowError: a value of y does not fit in 32 bits or, in a block without
        memory, the largest possible |y| does not fit.
    """


@dataclasses.dataclass(frozen=True)
class WindowBlock(Block):
  """A block of the recursion `recursion.Window`; see `Window.block`.

    V = noise_scale * Z + far S + near U,   Y = round(V)

  S holds the rows of the ring. The block overwrites m of them with U.

  Attributes:
    feeds_y: whether U = Y; otherwise U = (Y - (V - noise_scale * Z)) / scale.
    scale: [m] float64, scale_t of each round t, see `recursion.Step`.
    far: [m, rows of the ring] float64, weights of the rounds before the block.
      Column j is for row j of the ring.
    near: [m, m] float64, weights of the block's own rounds, strictly
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
      window: recursion of the strategy matrix C.
      z_steps: standard deviation of z in lattice steps, > 0.
      rounds: the rounds of the block.
      ring_rows: number of rows of the ring, >= `window.memory`, and a multiple
        of the number of rounds of a block, apart from a shorter last block; 0
        if there is no memory.
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
      # Without memory, only the largest possible |y| is checked.
      checked(generator_lib.MOST_DEVIATIONS * self.noise_scale)
      output[:] = np.rint(z, out=y)
      return
    mean = self._mean_of_past(ring, work)
    # PRIVACY: Released sums contain the rounded y. If later rounds were
    # computed from y before rounding, the noise would not be C^-1 z, and
    # epsilon would not hold. They are computed from the rounded y.
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
  """A block of the recursion `recursion.Buffers`, computed round by round.

  Attributes:
    steps: [m] the weights of each round.
  """

  steps: Sequence[recursion_lib.Step]

  @classmethod
  def of(
    cls, buffers: recursion_lib.Buffers, z_steps: float, rounds: range
  ) -> BufferBlock:
    """Returns the block of consecutive rounds.

    Args:
      buffers: recursion of the strategy matrix C.
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
  """A `recursion.Step` with its update matrix as a diagonal plus a remainder.

  Attributes:
    readout: [memory] float64, weights of the buffers in the mean.
    decay: [memory, 1] float64, diagonal of the update matrix.
    mixed: [mixed] indices of the buffers that get sums of other buffers.
    mix: [mixed, memory] float64, rows `mixed` of the update matrix with zeros
      on its diagonal.
    fed: indices of the buffers that get a part of y.
    gain: [memory] float64, weights of y in the buffers.
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
  """Returns y if no absolute value exceeds 2^31 - 1.

  Args:
    y: array of any shape, in lattice steps.

  Raises:
    OverflowError: an absolute value exceeds 2^31 - 1, or a value is NaN.
  """
  if y.size and not max(y.max(), -y.min()) <= _LARGEST:
    raise OverflowError('noise: a value left the range of 32 bits')
  return y
