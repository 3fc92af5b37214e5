"""The stream of noise: y_t of all rounds t in order, one block at a time.

| symbol  | meaning                                                       |
|---------|---------------------------------------------------------------|
| C       | strategy matrix of the mechanism                              |
| Z       | unit normals from the key, one row for each round             |
| z       | z_steps Z                                                     |
| y       | noise C^-1 z, rounded; row y_t is added to the sum of round t |
| d       | number of coordinates of a row                                |

A block is a group of consecutive rounds, and a chunk is a range of coordinates.
Each part of the work computes one block of one chunk. The module `block_makers`
explains the memory of past noise, and defines windows. Noise is in steps of
`noise.lattice`.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Iterator, Sequence
from typing import Any, NamedTuple, Optional

import numpy as np

from tff_bandmf import _checks, errors
from tff_bandmf.noise import exact
from tff_bandmf.noise import generator as generator_lib
from tff_bandmf.noise import key as key_lib
from tff_bandmf.noise.producer import block_makers, blocks
from tff_bandmf.strategies import recursion as recursion_lib

# A shard, the range of coordinates of one stream, begins at a multiple of this
# number.
_GRID = 1 << 16
# Possible numbers of rounds of a block; `_block_rounds` chooses one. According
# to `benchmarks.bench producer`, shorter blocks read a long window too often,
# and longer blocks do not fit in cache.
_BLOCK_ROUNDS = range(32, 65)
# If the memory has at most this number of rows, a block has
# `SHORT_BLOCK_ROUNDS`.
_SHORT_MEMORY = 24

# Backends: NumPy on the host, or a library on its devices.
NUMPY, JAX = BACKENDS = ('numpy', 'jax')


class Memory(NamedTuple):
  """Limits on the past noise that a stream holds.

  Attributes:
    max_bytes: maximum number of bytes of past noise in memory, > 0. If past
      noise has more bytes, all of it goes to disk; see `past_noise.Chunks`. A
      few rows of y stay in memory in any case. The memory of devices has no
      limit. None means no limit.
    copies: maximum number of rows of past noise; None means no limit. If C^-1
      has few bands and needs more past normals, the stream keeps no past
      normals, and each block draws them again.
  """

  max_bytes: Optional[int] = None
  copies: Optional[int] = None


_UNLIMITED = Memory()


class Stream:
  """The rows y_t of all rounds, for all coordinates or for a shard of them.

    y_t = z_steps (C^-1 Z)[t], apart from rounding

  Each row is the exact value of y_t, rounded once to integers (see `blocks`).
  Later rows are computed from the rounded rows. If C^-1 has few bands, all rows
  are computed from z instead. So y has the same bits for every choice of
  blocks, chunks, devices, libraries and machines.

  Attributes:
    recursion: recursion that computes y from z, for the strategy matrix C.
    z_steps: standard deviation of z in lattice steps, > 0.
    dimension: d, number of coordinates of y_t, > 0.
    identifier: 63-bit ID of the noise; see `identify`.
    block_rounds: number of rounds of a block, > 0; the last block may have
      fewer.
    coordinates: the coordinates of y that the stream computes.
    rounding, memory_rows, max_memory_bytes, devices: see
      `block_makers.Settings`.
  """

  def __init__(
    self,
    recursion: recursion_lib.Recursion,
    z_steps: float,
    dimension: int,
    key: key_lib.Key,
    memory: Memory = _UNLIMITED,
    coordinates: Optional[range] = None,
    devices: Sequence[str] = (),
    backend: str = NUMPY,
  ):
    """Initializes the stream; `rows` starts the work.

    Args:
      recursion: recursion that computes y from z, for the strategy matrix C.
      z_steps: standard deviation of z in lattice steps, > 0.
      dimension: d, number of coordinates of y_t, > 0.
      key: the secret key of z.
      memory: limits on past noise.
      coordinates: the coordinates of y to compute, a range that `shard`
        returns; None means all.
      devices: names of the backend's devices, all of one kind. They hold the
        past noise of their chunks, for up to 63 rounds more than the recursion
        needs. () means all devices of the kind that the backend prefers. NumPy
        takes no devices.
      backend: one of `BACKENDS`; NumPy computes on the host.

    Raises:
      ValueError: a value is out of range; the backend or a device is unknown;
        NumPy gets devices; devices are of several kinds; or past y needs more
        rows than `memory` allows.
      TypeError: `dimension` or a limit is not an integer.
      ImportError: the backend is not installed.
    """
    if memory.max_bytes is not None:
      _checks.count('max_memory_bytes', memory.max_bytes, 'give None: no limit')
    self.recursion = recursion
    self.dimension = _checks.count(
      'dimension', dimension, 'the model has no parameters'
    )
    self.z_steps = _checks.positive(
      'z_steps', z_steps, 'a run without noise needs no stream'
    )
    self.coordinates = _checked(coordinates, self.dimension)
    rows = _checked_copies(recursion, memory.copies)
    self.block_rounds = m = min(recursion.rounds, _block_rounds(rows))
    is_ring = recursion.keeps != recursion_lib.BUFFERS
    self.memory_rows = -(-rows // m) * m if is_ring else rows
    self.max_memory_bytes = memory.max_bytes
    self.identifier = identify(key, recursion, dimension, self.z_steps)
    generator = generator_lib.Generator(key)
    self.rounding = exact.Rounding(recursion, self.z_steps, generator)
    self._backend = backend
    self.devices: Any = ()
    if backend != NUMPY:
      self.devices = _module(backend).known(devices)
    elif devices:
      raise errors.value_error(
        f'devices={" ".join(devices)}: need a backend, and {NUMPY} works on '
        f'the host; use backend={JAX!r}'
      )

  def rows(self) -> Generator[Optional[np.ndarray], None, None]:
    """Yields y_t, [len(coordinates)] int32 in lattice steps, for t = 0, 1, ...

    The iterator also yields None after each part of the work, so that the
    caller can stop. The array is overwritten when the next row is computed.

    Raises:
      OverflowError: a value of y does not fit in 32 bits.
      ValueError: the host has too little free memory for past noise.
      OSError: the disk has too little space for past noise.
      RuntimeError: a device of JAX fails the tests of `jax_devices.check`, or
        has too little memory.
    """
    y = np.empty(len(self.coordinates), np.int32)
    with self._maker() as maker:
      for block in self._blocks():
        yield from maker.advance(block)
        for r in range(block.rounds):
          maker.copy_row(r, y)
          yield y

  def _blocks(self) -> Iterator[blocks.Block]:
    recursion, m = self.recursion, self.block_rounds
    for first in range(0, recursion.rounds, m):
      rounds = range(recursion.rounds)[first : first + m]
      yield blocks.for_rounds(recursion, self.z_steps, rounds, self.memory_rows)

  def _maker(self) -> block_makers.Maker:
    """Returns the object that computes blocks with the backend."""
    if self._backend == NUMPY:
      return block_makers.Host(self)
    return _module(self._backend).Devices(self)


def _checked_copies(
  recursion: recursion_lib.Recursion, most: Optional[int]
) -> int:
  """Returns the number of rows of past noise to keep.

  Raises:
    ValueError: the recursion needs more rows of past y than `most`.
  """
  if most is None or recursion.memory <= most:
    return recursion.memory
  if recursion.keeps != recursion_lib.PAST_Z:
    raise errors.value_error(
      f'memory_copies={most}: the noise keeps {recursion.memory} copies of the '
      'model; allow as many, or use a C whose inverse has few bands'
    )
  return 0


def _module(backend: str) -> Any:
  """Returns the module that has the class `Devices` of a backend."""
  # JAX is slow to import, and NumPy does not need it.
  if backend != JAX:
    raise errors.value_error(
      f'backend={backend}: is not known; use one of {", ".join(BACKENDS)}'
    )
  with errors.importing(f'backend={JAX!r}'):
    from tff_bandmf.noise.producer import jax_devices
  return jax_devices


def identify(
  key: key_lib.Key,
  recursion: recursion_lib.Recursion,
  dimension: int,
  z_steps: float,
) -> int:
  """Returns the 63-bit ID of the noise of a key, a one-way function of the key.

  **Formal guarantee.**
  Assumption: keyed BLAKE2b, truncated to 63 bits, has no collisions among the
  arguments that occur, and its values cannot be distinguished from random bits
  without the key. Statement: two calls return the same ID if and only if
  they have the same key, C, d and z_steps. The ID tells nothing about a key
  that cannot be guessed. Source: `Key.identify`; `recursion.digest` identifies
  C.

  Args:
    key: the secret key of z.
    recursion: recursion of the strategy matrix C.
    dimension: d, number of coordinates of y_t.
    z_steps: standard deviation of z in lattice steps.
  """
  subject = struct.pack('<qd', dimension, z_steps) + recursion.digest.encode()
  return key.identify(subject)


def _block_rounds(memory: int) -> int:
  """Returns the number of rounds of a block.

  A recursion with a window keeps its past rows in a ring buffer, whose length
  is a multiple of the result. If the memory has more than 24 rows, the result
  is the number in `_BLOCK_ROUNDS` with which the ring has the fewest rows. If
  several numbers give the fewest, the result is the largest.

  Args:
    memory: number of rows of the recursion's memory, >= 0.
  """
  if memory <= _SHORT_MEMORY:
    return recursion_lib.SHORT_BLOCK_ROUNDS
  return min(reversed(_BLOCK_ROUNDS), key=lambda m: -(-memory // m) * m)


def shard(dimension: int, index: int, shards: int) -> range:
  """Returns one shard: the coordinates of one of several streams.

  Together the streams of all shards give the y of a single stream. A piece is
  65,536 coordinates, and the last piece may have fewer. A shard consists of
  whole pieces.

  >>> [shard(200_000, i, 2) for i in range(2)]
  [range(0, 131072), range(131072, 200000)]

  Args:
    dimension: d, number of coordinates of y_t, > 0.
    index: index of the shard, in [0, shards).
    shards: number of shards, > 0. Their numbers of pieces differ by at most 1.

  Raises:
    ValueError: a value is out of range, or a shard would be empty.
    TypeError: `dimension` or `shards` is not an integer.
  """
  _checks.count('dimension', dimension, 'the model has no parameters')
  _checks.count('shards', shards, 'give 1 if one server makes all')
  if not 0 <= index < shards:
    raise errors.value_error(
      f'shard={index}: must be in [0, shards={shards}); give 0 to the first'
    )
  pieces = -(-dimension // _GRID)
  if shards > pieces:
    raise errors.value_error(
      f'shards={shards}: {dimension} coordinates have {pieces} pieces of '
      f'{_GRID}; use at most {pieces}'
    )
  edges = [_GRID * (-(-pieces * i // shards)) for i in (index, index + 1)]
  return range(dimension)[slice(*edges)]


def _checked(coordinates: Optional[range], dimension: int) -> range:
  """Returns the coordinates if they are whole pieces; None means all.

  Raises:
    ValueError: the coordinates begin or end within a piece, have a step other
      than 1, or are not in [0, dimension).
  """
  if coordinates is None:
    return range(dimension)
  start, stop = coordinates.start, coordinates.stop
  on_grid = not start % _GRID and (stop == dimension or not stop % _GRID)
  in_range = coordinates == range(dimension)[start:stop]
  if not (coordinates and on_grid and in_range):
    raise errors.value_error(
      f'coordinates={coordinates}: must be whole pieces of {_GRID} in [0, '
      f'dimension={dimension}); use stream.shard'
    )
  return coordinates
