"""The stream of noise: y_t of all rounds in order, block by block."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any, Optional

import numpy as np

from tff_bandmf import _checks, errors
from tff_bandmf.noise import generator as generator_lib
from tff_bandmf.noise import key as key_lib
from tff_bandmf.noise.producer import blocks, makers
from tff_bandmf.strategies import recursion as recursion_lib

# Shards begin at multiples of this number of coordinates.
_GRID = 1 << 16
# Number of coordinates made at once on the host, so few that a block's z and y
# stay in cache.
_CHUNK = 1 << 13
# Measured with `benchmarks.bench producer`: shorter blocks read a long window
# too often, and longer ones leave the cache.
_BLOCK_ROUNDS = range(32, 65)
_SHORT_MEMORY, _SHORT_BLOCK_ROUNDS = 24, 4

# Backends: NumPy on the host, or a library on its devices.
NUMPY, TENSORFLOW, JAX = BACKENDS = ('numpy', 'tensorflow', 'jax')


class Stream:
  """The rows of y from round 0 to n - 1, of all coordinates or of a shard.

    y_t = round(z_steps * (C^-1 Z)[t]), the rounded y of the past fed back

  Windows of past y have exact sums, so their y is the same to the bit for every
  choice of blocks, chunks and devices. The other recursions add float64
  numbers, in one order for each chunk of a block. On one machine and kind of
  device their y is the same to the bit. Elsewhere y can differ in the rare
  coordinates in which the last bit of a sum decides.

  Attributes:
    recursion: the recursion by which y follows from z, for the strategy C.
    z_steps: standard deviation of z in lattice steps, > 0.
    dimension: d, number of coordinates of y_t, > 0.
    identifier: ID of the noise, 63 bits, see `identify`.
    block_rounds: m, rounds of a block, > 0; the last block may be shorter.
    coordinates: the coordinates of y to be made.
    kind: kind of the devices that do the work; 'host' without devices.
  """

  def __init__(
    self,
    recursion: recursion_lib.Recursion,
    z_steps: float,
    dimension: int,
    key: key_lib.Key,
    max_memory_bytes: Optional[int] = None,
    coordinates: Optional[range] = None,
    devices: Sequence[str] = (),
    backend: str = NUMPY,
  ):
    """Initializes the stream; `rows` starts the work.

    Args:
      recursion: the recursion by which y follows from z, for the strategy C.
      z_steps: standard deviation of z in lattice steps, > 0.
      dimension: d, number of coordinates of y_t, > 0.
      key: the secret key of z.
      max_memory_bytes: most bytes of past noise in memory, > 0; a larger past
        goes to disk, see `chunks.Chunks`. A few rows of y stay in memory in any
        case. The limit has no effect if devices hold the past.
      coordinates: the coordinates of y to be made, a range that `shard`
        returns; None makes all.
      devices: names of the backend's devices, all of one kind. They hold the
        past of their chunks, up to 63 rounds more than the recursion needs. ()
        takes all devices of the kind that the backend prefers.
      backend: one of `BACKENDS`; NumPy works on the host.

    Raises:
      ValueError: a value is out of range, a device is unknown, or devices are
        of several kinds.
      ImportError: the backend is not installed.
    """
    if max_memory_bytes is not None:
      _checks.count(
        'max_memory_bytes',
        max_memory_bytes,
        'leave it out to keep all in memory',
      )
    self.recursion = recursion
    self.dimension = _checks.count(
      'dimension', dimension, 'the model has no parameters'
    )
    self.z_steps = _checks.positive(
      'z_steps', z_steps, 'a run without noise needs no stream'
    )
    self.coordinates = (
      range(dimension)
      if coordinates is None
      else _checked(coordinates, dimension)
    )
    self.block_rounds = min(recursion.rounds, _block_rounds(recursion.memory))
    self.identifier = identify(key, recursion, dimension, self.z_steps)
    self._generator = generator_lib.Generator(key)
    self._max_memory_bytes = max_memory_bytes
    self._backend = backend
    self._devices, self.kind = _known(backend, devices)

  def rows(self) -> Iterator[Optional[np.ndarray]]:
    """Yields y_t, [len(coordinates)] int32 in lattice steps, for t = 0, 1, ...

    The generator also yields None after each part of the work, so that the
    caller can stop. The next row overwrites the array.

    Raises:
      OverflowError: a value of y does not fit in 32 bits.
      OSError: the disk has no room for past noise.
      tf.errors.ResourceExhaustedError: the devices have no room.
    """
    y = np.empty(len(self.coordinates), np.int32)
    with self._maker() as maker:
      for block in self._blocks():
        for _ in maker.advance(block):
          yield None
        for r in range(block.rounds):
          maker.copy_row(r, y)
          yield y

  @property
  def _memory_rows(self) -> int:
    memory, m = self.recursion.memory, self.block_rounds
    if self.recursion.keeps == recursion_lib.BUFFERS:
      return memory
    # Row u % memory_rows of a ring holds round u.
    return -(-memory // m) * m

  def _blocks(self) -> Iterator[blocks.Block]:
    recursion, m = self.recursion, self.block_rounds
    for first in range(0, recursion.rounds, m):
      rounds = range(first, min(first + m, recursion.rounds))
      if isinstance(recursion, recursion_lib.Window):
        yield blocks.WindowBlock.of(
          recursion, self.z_steps, rounds, self._memory_rows
        )
      else:
        assert isinstance(recursion, recursion_lib.Buffers)
        yield blocks.BufferBlock.of(recursion, self.z_steps, rounds)

  def _maker(self) -> makers.Maker:
    """Returns the maker of the backend."""
    layout = makers.Layout(
      self.recursion.keeps,
      self._memory_rows,
      self.block_rounds,
      self.coordinates,
      _CHUNK if self._backend == NUMPY else _GRID,
    )
    if self._backend == NUMPY:
      return makers.Host(layout, self._generator, self._max_memory_bytes)
    return _module(self._backend).Devices(
      layout, self._generator, self._devices
    )


def _known(backend: str, names: Sequence[str]) -> tuple[tuple[Any, ...], str]:
  """Returns (devices of a backend, their kind)."""
  if backend != NUMPY:
    return _module(backend).known(names)
  if names:
    raise errors.value_error(
      f'devices={" ".join(names)}: need a backend, and {NUMPY} works on the '
      f'host; use backend={TENSORFLOW!r} or {JAX!r}'
    )
  return (), 'host'


def _module(backend: str) -> Any:
  """Returns the module that has the class `Devices` of a backend."""
  # TensorFlow and JAX are slow to import, and the host needs neither.
  if backend == TENSORFLOW:
    from tff_bandmf.noise.producer import devices

    return devices
  if backend != JAX:
    raise errors.value_error(
      f'backend={backend}: is not known; use one of {", ".join(BACKENDS)}'
    )
  try:
    from tff_bandmf.noise.producer import jax_devices
  except ModuleNotFoundError as error:
    raise errors.needs_jax(f'backend={JAX!r}') from error
  return jax_devices


def identify(
  key: key_lib.Key,
  recursion: recursion_lib.Recursion,
  dimension: int,
  z_steps: float,
) -> int:
  """Returns the ID of the noise of a key: 63 bits, one-way.

  **Formal guarantee.**
  Assumption: keyed BLAKE2b, cut to 63 bits, has no collisions among the noises
  of a user. Statement: the same key, C, d and z_steps give the same ID, and
  others give another ID; the ID tells nothing about a key that cannot be
  guessed. Source: `Key.identify`; `recursion.digest` names C.

  Args:
    key: the secret key of z.
    recursion: the recursion of the strategy C.
    dimension: d, number of coordinates of y_t.
    z_steps: standard deviation of z in lattice steps.
  """
  return key.identify(
    struct.pack('<qd', dimension, z_steps) + recursion.digest.encode()
  )


def _block_rounds(memory: int) -> int:
  """Returns the rounds of a block.

  The ring of a long window has as many whole blocks as the window needs. The
  result is the number of rounds for which this ring has the fewest rows.

  Args:
    memory: number of rows of the recursion's memory, >= 0.
  """
  if memory <= _SHORT_MEMORY:
    return _SHORT_BLOCK_ROUNDS
  return min(reversed(_BLOCK_ROUNDS), key=lambda m: -(-memory // m) * m)


def shard(dimension: int, index: int, shards: int) -> range:
  """Returns the coordinates of one of several streams that make y together.

  Each shard consists of whole chunks, so its y is the same as without shards.

  >>> [shard(200_000, i, 2) for i in range(2)]
  [range(0, 131072), range(131072, 200000)]

  Args:
    dimension: d, number of coordinates of y_t, > 0.
    index: number of the shard, in [0, shards).
    shards: number of shards, > 0; their sizes are as even as chunks allow.

  Raises:
    ValueError: there is no such shard, or one would be empty.
  """
  _checks.count('dimension', dimension, 'the model has no parameters')
  _checks.count('shards', shards, 'one shard makes all')
  if not 0 <= index < shards:
    raise errors.value_error(
      f'shard={index}: must be in [0, shards={shards}); number the shards from '
      '0'
    )
  pieces = -(-dimension // _GRID)
  if shards > pieces:
    raise errors.value_error(
      f'shards={shards}: {dimension} coordinates have {pieces} pieces of '
      f'{_GRID}; use at most {pieces}'
    )
  edges = [
    min(dimension, _GRID * (-(-pieces * i // shards)))
    for i in (index, index + 1)
  ]
  return range(*edges)


def _checked(coordinates: range, dimension: int) -> range:
  """Returns the coordinates, if they consist of whole chunks of the grid."""
  on_grid = not coordinates.start % _GRID and (
    not coordinates.stop % _GRID or coordinates.stop == dimension
  )
  if not (
    on_grid
    and coordinates.step == 1
    and 0 <= coordinates.start < coordinates.stop <= dimension
  ):
    raise errors.value_error(
      f'coordinates={coordinates}: must be whole pieces of {_GRID} in [0, '
      f'dimension={dimension}); use stream.shard'
    )
  return coordinates
