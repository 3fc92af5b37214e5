"""Where blocks of rounds are made: in the host's memory, or on devices."""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Optional

import numpy as np
import threadpoolctl

from tff_bandmf.noise import generator as generator_lib
from tff_bandmf.noise.producer import chunks as chunks_lib
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


class Block(abc.ABC):
  """Some rounds together, in lattice steps.

  Attributes:
    first: round.
    noise_scale: [m] float64, z_steps scale_t.
    row: of what is made, where the rounds go.
  """

  first: int
  noise_scale: np.ndarray
  row: int = 0

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
    first: round.
    noise_scale: [m].
    feeds_y: whether U is Y, and not (Y - (V - noise_scale * Z)) / scale.
    scale: [m].
    far: [m, rows of the ring], its columns as the ring's rows are.
    near: [m, m], strictly lower-triangular.
    row: of the ring, where the rounds go.
  """

  first: int
  noise_scale: np.ndarray
  feeds_y: bool
  scale: np.ndarray
  far: np.ndarray
  near: np.ndarray
  row: int

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
      window.keeps == recursion_lib.PAST_Y,
      scale,
      far,
      near,
      row,
    )

  def advance(
    self, z: np.ndarray, memory: np.ndarray, made: np.ndarray, work: Workspace
  ) -> None:
    y, ring = z, memory
    if not len(ring):
      made[:] = checked(np.rint(z, out=y))
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
    first: round.
    noise_scale: [m].
    steps: m of them.
  """

  first: int
  noise_scale: np.ndarray
  steps: Sequence[recursion_lib.Step]

  @classmethod
  def of(
    cls, buffers: recursion_lib.Buffers, z_steps: float, rounds: range
  ) -> BufferBlock:
    """Returns the block of some rounds."""
    steps = [buffers.step(int(buffers.phase(t))) for t in rounds]
    return cls(
      rounds.start, z_steps * np.array([step.scale for step in steps]), steps
    )

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


@dataclasses.dataclass(frozen=True)
class Layout:
  """What a place keeps, and of which coordinates.

  Attributes:
    keeps: `recursion.PAST_Y`, `PAST_U` or `BUFFERS`.
    memory_rows: rows of S; of a window that is kept as a ring, a multiple of
      the rounds of a block.
    block_rounds: most rounds of a block.
    coordinates: those that are made.
    chunk: coordinates made at once.
  """

  keeps: str
  memory_rows: int
  block_rounds: int
  coordinates: range
  chunk: int

  @property
  def starts(self) -> range:
    """First coordinates of the chunks, relative to the first of all."""
    return range(0, len(self.coordinates), self.chunk)

  def count(self, i: int) -> int:
    """Returns the coordinates of chunk i."""
    return min(self.chunk, len(self.coordinates) - self.starts[i])

  @property
  def dtype(self) -> type:
    """Type of the memory; y holds integers."""
    return np.int32 if self.keeps == recursion_lib.PAST_Y else np.float64


class Place(contextlib.AbstractContextManager):
  """Makes blocks chunk by chunk and remembers what the next ones need.

  A window of rounds is a ring: a block reads it once and writes only its own
  rounds. The memory starts at zero and goes at the end of the `with` statement.
  """

  def __init__(self, layout: Layout, generator: generator_lib.Generator):
    self._layout = layout
    self._generator = generator

  def _draw(self, i: int, block: Block, work: Workspace) -> np.ndarray:
    """Returns noise_scale * Z of a block and chunk, [m, count] float64."""
    layout = self._layout
    z = work.array('z', (block.rounds, layout.count(i)))
    start = layout.coordinates.start + layout.starts[i]
    for r, scale in enumerate(block.noise_scale):
      self._generator.fill(z[r : r + 1], block.first + r, start)
      z[r] *= scale
    return z

  @abc.abstractmethod
  def advance(self, block: Block) -> Iterator[None]:
    """Makes a block; yields after each part of the work.

    Raises:
      OverflowError: noise left the range of 32 bits.
    """

  @abc.abstractmethod
  def _rows(self, i: int) -> np.ndarray:
    """Returns y of the block made last, [m, coordinates of chunk i] int32."""

  def copy_row(self, r: int, y: np.ndarray) -> None:
    """Copies row r of the block made last to y, [coordinates] int32."""
    for i, start in enumerate(self._layout.starts):
      y[start : start + self._layout.count(i)] = self._rows(i)[r]


class Host(Place):
  """Works in the host's memory, in float64."""

  def __init__(
    self,
    layout: Layout,
    generator: generator_lib.Generator,
    max_memory_bytes: Optional[int],
  ):
    """Takes what `Place` takes, and the bound of `chunks.Chunks`."""
    super().__init__(layout, generator)
    self._work = Workspace()
    # Threads that wait for each other spin where others have work.
    self._threads = threadpoolctl.ThreadpoolController()
    # A ring of y holds what is made.
    self._in_ring = (
      layout.keeps == recursion_lib.PAST_Y and layout.memory_rows > 0
    )
    self._made = slice(0)

    def chunks(rows, dtype):
      return chunks_lib.Chunks(
        rows, len(layout.coordinates), layout.chunk, dtype, max_memory_bytes
      )

    self._memory = chunks(layout.memory_rows, layout.dtype)
    self._out = (
      self._memory if self._in_ring else chunks(layout.block_rounds, np.int32)
    )

  def __exit__(self, *exc_info) -> None:
    self._memory.close()
    self._out.close()

  def advance(self, block: Block) -> Iterator[None]:
    first = block.row if self._in_ring else 0
    self._made = slice(first, first + block.rounds)
    with self._threads.limit(limits=1, user_api='blas'):
      for i in range(len(self._layout.starts)):
        z = self._draw(i, block, self._work)
        # Mapped no longer than they are used.
        block.advance(z, self._memory[i], self._rows(i), self._work)
        yield

  def _rows(self, i: int) -> np.ndarray:
    return self._out[i][self._made]


def checked(y: np.ndarray) -> np.ndarray:
  """Returns y if 32 bits hold it.

  Raises:
    OverflowError: they do not.
  """
  if y.size and not max(y.max(), -y.min()) <= _LARGEST:
    raise OverflowError('noise: a value left the range of 32 bits')
  return y
