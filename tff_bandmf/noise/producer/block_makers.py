"""Makers: objects that compute blocks of rounds, on the host or on devices.

A block is a group of consecutive rounds, and `blocks` defines Z and y. A chunk
is a range of coordinates. The host and each device compute one block of one
chunk at a time. A maker holds the memory: the rows of past noise from which the
recursion computes y. A window is a recursion whose memory is a ring of the
latest rounds.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import functools
from collections.abc import Iterator
from typing import Optional

import numpy as np

from tff_bandmf import _blas
from tff_bandmf.noise import exact
from tff_bandmf.noise.producer import blocks, past_noise
from tff_bandmf.strategies import recursion as recursion_lib


@dataclasses.dataclass(frozen=True)
class Layout:
  """The sizes of a maker's memory and of its chunks.

  Attributes:
    keeps: content of the memory: `recursion.PAST_Y`, `PAST_Z` or `BUFFERS`.
    memory_rows: number of rows of the memory, >= 0; a multiple of
      `block_rounds` for a window.
    block_rounds: maximum number of rounds of a block, > 0.
    coordinates: the coordinates of y that the maker computes.
    chunk: number of coordinates of a chunk, > 0; the last chunk may have fewer.
  """

  keeps: str
  memory_rows: int
  block_rounds: int
  coordinates: range
  chunk: int

  @functools.cached_property
  def chunks(self) -> list[range]:
    """Coordinates of each chunk."""
    return [
      self.coordinates[start : start + self.chunk]
      for start in range(0, len(self.coordinates), self.chunk)
    ]

  @property
  def dtype(self) -> type:
    """Type of the memory's elements: integers if the memory holds past y."""
    return np.int32 if self.keeps == recursion_lib.PAST_Y else np.float64


class Maker(contextlib.AbstractContextManager):
  """Computes blocks chunk by chunk, and holds the memory between blocks.

  A block reads the whole ring of a window once and writes only its own rounds.
  The memory is zero at first, and is freed at the end of the `with` block.
  """

  def __init__(self, layout: Layout, rounding: exact.Rounding):
    """Initializes the parts that all makers have.

    Args:
      layout: sizes of the memory and of the chunks.
      rounding: decides y if float64 cannot; has the normals of the key.
    """
    self._layout = layout
    self._rounding = rounding

  @abc.abstractmethod
  def advance(self, block: blocks.Block) -> Iterator[None]:
    """Computes a block, and yields None after each chunk.

    Raises:
      OverflowError: a value of y does not fit in 32 bits.
    """

  @abc.abstractmethod
  def _row(self, i: int, r: int) -> np.ndarray:
    """Returns y of round r of the latest block, [count of chunk i] int32."""

  def copy_row(self, r: int, y: np.ndarray) -> None:
    """Copies y of round r of the latest block into `y`, [coordinates] int32."""
    for i, chunk in enumerate(self._layout.chunks):
      start = chunk.start - self._layout.coordinates.start
      y[start : start + len(chunk)] = self._row(i, r)


class Host(Maker):
  """A maker that computes in float64 on the host."""

  def __init__(
    self,
    layout: Layout,
    rounding: exact.Rounding,
    max_memory_bytes: Optional[int],
  ):
    """Allocates the memory of the layout, and arrays for y of a block.

    Args:
      layout: sizes of the memory and of the chunks.
      rounding: decides y if float64 cannot; has the normals of the key.
      max_memory_bytes: maximum number of bytes of past noise in memory, > 0,
        see `past_noise.Chunks`; None means no limit. If past noise does not
        contain y of the latest block, this y may take as many bytes again.

    Raises:
      OSError: the disk has too little space for past noise.
      ValueError: the host has too little free memory for past noise.
    """
    super().__init__(layout, rounding)
    self._work = blocks.Workspace()
    # If the memory is a ring of past y, a block writes its y to the ring.
    self._in_ring = (
      layout.keeps == recursion_lib.PAST_Y and layout.memory_rows > 0
    )
    # Rows of the output arrays that hold y of the latest block.
    self._latest = slice(0)

    sizes = list(map(len, layout.chunks))

    def chunks(rows, dtype):
      return past_noise.Chunks(rows, sizes, dtype, max_memory_bytes)

    self._memory = chunks(layout.memory_rows, layout.dtype)
    # `blocks.Chunk.bounds` of each chunk.
    self._bounds = np.zeros((len(sizes), layout.memory_rows))
    self._out = (
      self._memory if self._in_ring else chunks(layout.block_rounds, np.int32)
    )

  def __exit__(self, *exc_info) -> None:
    self._memory.close()
    self._out.close()

  def advance(self, block: blocks.Block) -> Iterator[None]:
    first = block.row if self._in_ring else 0
    self._latest = slice(first, first + block.rounds)
    with _blas.one_thread():
      for i, coordinates in enumerate(self._layout.chunks):
        z = self._draw(coordinates, block)
        # Get the arrays of one chunk at a time: an array in a file is mapped
        # into memory as long as this method holds it.
        chunk = blocks.Chunk(
          coordinates,
          self._memory[i],
          self._bounds[i],
          self._rounding,
          self._work,
        )
        block.advance(z, self._rows(i), chunk)
        yield

  def _draw(self, coordinates: range, block: blocks.Block) -> np.ndarray:
    """Returns noise_scale * Z of a block for one chunk, [earlier + m, count].

    Rows of earlier rounds are not multiplied by `noise_scale`.
    """
    rows = block.earlier + block.rounds
    z = self._work.array('z', (rows, len(coordinates)))
    first = block.first - block.earlier
    self._rounding.generator.fill(z, first, coordinates.start)
    z[block.earlier :] *= block.noise_scale[:, np.newaxis]
    return z

  def _rows(self, i: int) -> np.ndarray:
    return self._out[i][self._latest]

  def _row(self, i: int, r: int) -> np.ndarray:
    return self._rows(i)[r]
