"""y_t for all rounds in order, a block of rounds at a time."""

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

# Shards are cut at its multiples.
_GRID = 1 << 16
# Coordinates made at once on the host: a block's z and y stay in cache.
_CHUNK = 1 << 13
# Measured with `benchmarks.bench producer`: blocks of fewer rounds read a long
# window too often, and those of more leave the cache.
_BLOCK_ROUNDS = range(32, 65)
_SHORT_MEMORY, _SHORT_BLOCK_ROUNDS = 24, 4

# What makes the noise: NumPy on the host, or a library on its devices.
NUMPY, TENSORFLOW, JAX = BACKENDS = ('numpy', 'tensorflow', 'jax')


class Stream:
  """Rows of y from round 0 to n - 1, of all coordinates or of some.

    y_t = round(z_steps * (C^-1 Z)[t]), the rounded y of the past fed back

  Windows of y are summed exactly, so their y is the same to the bit however
  rounds, coordinates and devices are dealt. The other recursions add float64
  numbers, a chunk of every block by the same operations: they are equal to the
  bit on one machine and kind of device, and elsewhere but for rare cells in
  which the last bit of a sum decides.

  Attributes:
    recursion: of C.
    z_steps: standard deviation of z in lattice steps.
    dimension: d.
    identifier: see `identify`.
    block_rounds: m, rounds a block; the last one may be shorter.
    coordinates: those of y that are made.
    kind: of what does the work: 'host', or of the devices.
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
    """Initializes the stream.

    Args:
      key: of z.
      max_memory_bytes: what is remembered of past rounds goes to disk if it is
        larger; see `chunks.Chunks`. A few rows of y are in memory in any case.
        It has no effect where devices remember.
      coordinates: those of y that are made, one of `shard`; None makes all.
      devices: names of the backend's devices, all of one kind, that the chunks
        are dealt to and that remember their past rounds, up to 63 rounds more
        than the recursion. () takes all of the kind that the backend prefers.
      backend: one of `BACKENDS`; that of NumPy works on the host.
      others: as the attributes.

    Raises:
      ValueError: a value out of range, a device is not known, or devices are
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
    """Yields y_t, [len(coordinates)] int32, for t = 0, 1, ...

    Yields None after each part of the work, so that the caller can stop. The
    array is written over by the next row.

    Raises:
      OverflowError: noise left the range of 32 bits.
      OSError: there is no room on the disk for what is not to be in memory.
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
    """Returns what does the work."""
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
  """Returns the devices of a backend, and what kind they are."""
  if backend != NUMPY:
    return _module(backend).known(names)
  if names:
    raise errors.value_error(
      'devices',
      ' '.join(names),
      f'need a backend, and {NUMPY} works on the host',
      f'use backend={TENSORFLOW!r} or {JAX!r}',
    )
  return (), 'host'


def _module(backend: str) -> Any:
  """Returns the module that has the `Devices` of a backend."""
  # TensorFlow and JAX are slow to import, and the host needs neither.
  if backend == TENSORFLOW:
    from tff_bandmf.noise.producer import devices

    return devices
  if backend != JAX:
    raise errors.value_error(
      'backend', backend, 'is not known', f'use one of {", ".join(BACKENDS)}'
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
  """Returns 63 bits that name the noise of this key, C, size and deviation.

  They are a one-way function of these four: the same noise made again has the
  same name, and no other noise has.
  """
  return key.identify(
    struct.pack('<qd', dimension, z_steps) + recursion.digest.encode()
  )


def _block_rounds(memory: int) -> int:
  """Returns the rounds a block whose ring has the fewest rows for a window."""
  if memory <= _SHORT_MEMORY:
    return _SHORT_BLOCK_ROUNDS
  return min(reversed(_BLOCK_ROUNDS), key=lambda m: -(-memory // m) * m)


def shard(dimension: int, index: int, shards: int) -> range:
  """Returns the coordinates of one of several streams that make y together.

  Shards are cut between chunks, so each is made as it would be in the whole.

  >>> [shard(200_000, i, 2) for i in range(2)]
  [range(0, 131072), range(131072, 200000)]

  Args:
    dimension: d.
    index: of the shard, from 0.
    shards: how many there are, of sizes as even as chunks allow.

  Raises:
    ValueError: there is no such shard, or one would be empty.
  """
  _checks.count('dimension', dimension, 'the model has no parameters')
  _checks.count('shards', shards, 'one shard makes all')
  if not 0 <= index < shards:
    raise errors.value_error(
      'shard',
      index,
      f'must be in [0, shards={shards})',
      'number the shards from 0',
    )
  pieces = -(-dimension // _GRID)
  if shards > pieces:
    raise errors.value_error(
      'shards',
      shards,
      f'{dimension} coordinates have {pieces} pieces of {_GRID}',
      f'use at most {pieces}',
    )
  edges = [
    min(dimension, _GRID * (-(-pieces * i // shards)))
    for i in (index, index + 1)
  ]
  return range(*edges)


def _checked(coordinates: range, dimension: int) -> range:
  """Returns coordinates that are pieces of the whole."""
  on_grid = not coordinates.start % _GRID and (
    not coordinates.stop % _GRID or coordinates.stop == dimension
  )
  if not (
    on_grid
    and coordinates.step == 1
    and 0 <= coordinates.start < coordinates.stop <= dimension
  ):
    raise errors.value_error(
      'coordinates',
      coordinates,
      f'must be whole pieces of {_GRID} in [0, dimension={dimension})',
      'use stream.shard',
    )
  return coordinates
