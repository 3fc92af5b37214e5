"""Blocks of rounds: what follows from z, and what the past leaves."""

from __future__ import annotations

import abc
import dataclasses
import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tff_bandmf.noise import generator as generator_lib
from tff_bandmf.strategies import recursion as recursion_lib

# Rounds whose weighted sums within a block are taken together.
_TOGETHER = 16
# Columns of a window that are float64 numbers at once: they stay in cache.
_PIECE = 512
# PRIVACY: past it y would wrap, and C y would no longer be z. Guard:
# stream_test.test_noise_out_of_range_is_refused.
_LARGEST = 2.0**31 - 1


class Workspace:
  """Float64 arrays that are used again for every chunk."""

  def __init__(self):
    self._arrays: dict[str, np.ndarray] = {}

  def array(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Returns an array of this shape, whatever is in it."""
    size = int(np.prod(shape))
    if name not in self._arrays or len(self._arrays[name]) < size:
      self._arrays[name] = np.empty(size)
    return self._arrays[name][:size].reshape(shape)


@dataclasses.dataclass(frozen=True)
class Block(abc.ABC):
  """Some rounds together, in lattice steps.

  Attributes:
    first: round.
    noise_scale: [m] float64, z_steps scale_t.
    row: of the ring of a window, where the rounds go; 0 for buffers.
  """

  first: int
  noise_scale: np.ndarray
  row: int

  @property
  def rounds(self) -> int:
    """m."""
    return len(self.noise_scale)

  @abc.abstractmethod
  def advance(
    self, z: np.ndarray, memory: np.ndarray, made: np.ndarray, work: Workspace
  ) -> None:
    """Makes y and changes the memory.

    Args:
      z: [m, count], times noise_scale; overwritten.
      memory: [memory rows, count].
      made: [m, count] int32, y is written here; may be part of the memory.
      work: arrays to work in.

    Raises:
      OverflowError: noise left the range of 32 bits.
    """


@dataclasses.dataclass(frozen=True)
class WindowBlock(Block):
  """Some rounds of a window; see `recursion.Window.block`.

    V = noise_scale * Z + far S + near U,   Y = round(V)

  Attributes:
    feeds_y: whether U is Y, and not (Y - (V - noise_scale * Z)) / scale.
    scale: [m].
    far: [m, rows of the ring], its columns as the ring's rows are.
    near: [m, m], strictly lower-triangular.
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
    """Returns the block of some rounds; round u is in row u % ring_rows."""
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
    self, z: np.ndarray, memory: np.ndarray, made: np.ndarray, work: Workspace
  ) -> None:
    y, ring = z, memory
    if not len(ring):
      # z that cannot leave the range need not be looked at.
      checked(generator_lib.MOST_DEVIATIONS * self.noise_scale)
      made[:] = np.rint(z, out=y)
      return
    mean = self._mean_of_past(ring, work)
    # PRIVACY: the y that is added is what feeds back. Guard:
    # stream_test.test_noise_is_that_of_the_recursion.
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
      made[start:stop] = checked(y[start:stop])
    if not self.feeds_y:
      ring[self.row : self.row + self.rounds] = fed

  def _mean_of_past(self, ring: np.ndarray, work: Workspace) -> np.ndarray:
    """Returns far S, [m, count]."""
    mean = work.array('mean', (self.rounds, ring.shape[1]))
    for start in range(0, ring.shape[1], _PIECE):
      piece = ring[:, start : start + _PIECE]
      past = work.array('past', piece.shape)
      np.copyto(past, piece)
      np.matmul(self.far, past, out=mean[:, start : start + _PIECE])
    return mean


@dataclasses.dataclass(frozen=True)
class BufferBlock(Block):
  """Some rounds over buffers, one after the other.

  Attributes:
    steps: m of them.
  """

  steps: Sequence[recursion_lib.Step]

  @classmethod
  def of(
    cls, buffers: recursion_lib.Buffers, z_steps: float, rounds: range
  ) -> BufferBlock:
    """Returns the block of some rounds."""
    steps = [buffers.step(int(buffers.phase(t))) for t in rounds]
    noise_scale = z_steps * np.array([step.scale for step in steps])
    return cls(rounds.start, noise_scale, 0, steps)

  @functools.cached_property
  def _split_steps(self) -> list[_Step]:
    return list(map(_Step.of, self.steps))

  def advance(
    self, z: np.ndarray, memory: np.ndarray, made: np.ndarray, work: Workspace
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
    made[:] = checked(y)


class _Step(NamedTuple):
  """A `recursion.Step` whose update is split into what is cheap and the rest.

  Attributes:
    readout: [memory].
    decay: [memory, 1], the diagonal of the update.
    mixed: buffers that others are added to.
    mix: [mixed, memory], what is beside the diagonal.
    fed: buffers that y is added to.
    gain: [memory].
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
  """Returns y if 32 bits hold it.

  Raises:
    OverflowError: they do not.
  """
  if y.size and not max(y.max(), -y.min()) <= _LARGEST:
    raise OverflowError('noise: a value left the range of 32 bits')
  return y
