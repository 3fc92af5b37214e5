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
from collections.abc import Iterator
from typing import Any, Optional, Protocol

import numpy as np

from tff_bandmf import _blas
from tff_bandmf.noise import exact
from tff_bandmf.noise.producer import blocks, past_noise
from tff_bandmf.strategies import recursion as recursion_lib

# Number of coordinates of a chunk on the host: z and y of a block fit in cache.
_CHUNK = 1 << 14


class Settings(Protocol):
  """The attributes of a `stream.Stream` that makers read.

  Attributes:
    recursion: recursion that computes y from z, for the strategy matrix C.
    rounding: decides y if float64 cannot; has the normals of the key.
    coordinates: the coordinates of y to compute.
    block_rounds: maximum number of rounds of a block, > 0.
    memory_rows: number of rows of past noise, >= 0; a multiple of
      `block_rounds` for a window, whose memory is a ring: row u % memory_rows
      holds round u.
    max_memory_bytes: maximum number of bytes of past noise in memory, > 0, see
      `past_noise.Chunks`; None means no limit.
    devices: devices of the backend, all of one kind; () on the host.
  """

  recursion: recursion_lib.Recursion
  rounding: exact.Rounding
  coordinates: range
  block_rounds: int
  memory_rows: int
  max_memory_bytes: Optional[int]
  devices: Any


class Maker(contextlib.AbstractContextManager):
  """Computes blocks chunk by chunk, and holds the memory between blocks.

  A block reads the whole ring of a window once and writes only its own rounds.
  The memory is zero at first, and is freed at the end of the `with` block.

  Attributes:
    chunks: coordinates of each chunk.
  """

  def __init__(self, stream: Settings, chunk: int):
    """Initializes the parts that all makers have.

    Args:
      stream: the stream whose blocks the maker computes.
      chunk: number of coordinates of a chunk, > 0; the last chunk may have
        fewer.
    """
    self._stream = stream
    self.chunks = [
      stream.coordinates[start : start + chunk]
      for start in range(0, len(stream.coordinates), chunk)
    ]
    # The memory holds integers if it holds past y.
    past_y = stream.recursion.keeps == recursion_lib.PAST_Y
    self._dtype: type = np.int32 if past_y else np.float64

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
    for i, chunk in enumerate(self.chunks):
      start = chunk.start - self._stream.coordinates.start
      y[start : start + len(chunk)] = self._row(i, r)


class Host(Maker):
  """A maker that computes in float64 on the host."""

  def __init__(self, stream: Settings):
    """Allocates the memory of the stream, and arrays for y of a block.

    Args:
      stream: the stream whose blocks the maker computes. Past noise takes at
        most `stream.max_memory_bytes` of memory. If it does not contain y of
        the latest block, this y may take up to the same amount in addition.

    Raises:
      OSError: the disk has too little space for past noise.
      ValueError: the host has too little free memory for past noise.
    """
    super().__init__(stream, _CHUNK)
    self._work = blocks.Workspace()
    # Rows of the output arrays that hold y of the latest block.
    self._latest = slice(0)
    rows, most = stream.memory_rows, stream.max_memory_bytes
    sizes = list(map(len, self.chunks))
    self._memory = past_noise.Chunks(rows, sizes, self._dtype, most)
    # `blocks.Chunk.bounds` of each chunk.
    self._bounds = np.zeros((len(sizes), rows))
    # If the memory is a ring of past y, a block writes its y to the ring.
    self._in_ring = self._dtype is np.int32 and rows > 0
    self._out = self._memory
    if not self._in_ring:
      rows = stream.block_rounds
      self._out = past_noise.Chunks(rows, sizes, np.int32, most)

  def __exit__(self, *exc_info) -> None:
    self._memory.close()
    self._out.close()

  def advance(self, block: blocks.Block) -> Iterator[None]:
    first = block.row if self._in_ring else 0
    self._latest = slice(first, first + block.rounds)
    rounding = self._stream.rounding
    with _blas.one_thread():
      for i, coordinates in enumerate(self.chunks):
        z = self._work.array('z', (len(block.noise_scale), len(coordinates)))
        earliest = block.first - block.earlier
        rounding.generator.fill(z, earliest, coordinates.start)
        z *= block.noise_scale[:, np.newaxis]
        # Get the arrays of one chunk at a time: an array in a file is mapped
        # into memory as long as this method holds it.
        chunk = blocks.Chunk(
          coordinates, self._memory[i], self._bounds[i], rounding, self._work
        )
        block.advance(z, self._out[i][self._latest], chunk)
        yield

  def _row(self, i: int, r: int) -> np.ndarray:
    return self._out[i][self._latest][r]
