"""y_t for all rounds in order, a block of rounds at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Optional

import numpy as np
import tensorflow as tf

from tff_bandmf import errors
from tff_bandmf.noise import generators, places
from tff_bandmf.noise import key as key_lib
from tff_bandmf.noise import plan as plan_lib

# Coordinates made at once: a block's z and y stay in cache.
_CHUNK = 1 << 16
# Measured with `simulations.bench producer`. A block is a quarter of the window
# within these bounds: fewer rounds read the window too often, and more depend
# too much on each other.
_BLOCK_ROUNDS = 32
_MOST_BLOCK_ROUNDS = 64

# Where a stream works that no device is given to.
HOST = 'host'


class Stream:
  """Rows of y = C^-1 Z from round 0 to n - 1, of all coordinates or of some.

  Every chunk of every block is made by the same operations, so two streams of
  one key and plan are equal to the bit on one machine, however coordinates are
  dealt to streams and to devices of one kind. On another kind of device or of
  processor they are equal up to the rounding of float32: both are C^-1 Z.

  Attributes:
    block_rounds: m, rounds a block; the last one may be shorter.
    coordinates: those of y that are made.
    kind: of what does the work: `HOST`, or the type of the devices.
  """

  def __init__(
      self,
      plan: plan_lib.Plan,
      dimension: int,
      key: key_lib.Key,
      generator: str = generators.PHILOX,
      max_memory_bytes: Optional[int] = None,
      coordinates: Optional[range] = None,
      devices: Optional[Sequence[str]] = None,
  ):
    """Initializes the stream.

    Args:
      plan: the recursion of C.
      dimension: d.
      key: of z.
      generator: of z, `generators.PHILOX` or `generators.AES_CTR`.
      max_memory_bytes: what is remembered of past rounds goes to disk if it is
        larger; see `chunks.Chunks`. A few rows of y are in memory in any case.
        Of no effect where devices remember.
      coordinates: those of y that are made, one of `shard`; None makes all.
      devices: names of TensorFlow's logical devices, all of one type, that
        the chunks are dealt to and that remember their past rounds, up to 63
        rounds more than the plan's. None takes all GPUs, or the host if there
        are none; () takes the host.

    Raises:
      ValueError: a value out of range, the generator or a device is not known,
        or devices are of several types.
    """
    if max_memory_bytes is not None:
      errors.check_count(
          'max_memory_bytes', max_memory_bytes,
          'leave it out to keep all in memory')
    self.coordinates = (
        range(dimension) if coordinates is None
        else _checked(coordinates, dimension))
    self.block_rounds = min(
        plan.rounds,
        max(_BLOCK_ROUNDS, min(_MOST_BLOCK_ROUNDS, plan.memory // 4)))
    self._plan = plan
    self._generator = generators.of(generator, key)
    self._max_memory_bytes = max_memory_bytes
    self._devices, self.kind = _known(devices)

  def rows(self) -> Iterator[Optional[np.ndarray]]:
    """Yields y_t, [len(coordinates)] float32, for t = 0, 1, ...

    Yields None after each part of the work, so that the caller can stop. The
    array is written over by the next row.

    Raises:
      OSError: there is no room on the disk for what is not to be in memory.
      tf.errors.ResourceExhaustedError: the devices have no room.
    """
    plan, m = self._plan, self.block_rounds
    # Row u % memory_rows of a ring holds round u.
    memory_rows = (
        plan.memory if plan.keeps == plan_lib.BUFFERS
        else -(-plan.memory // m) * m)
    y = np.empty(len(self.coordinates), np.float32)
    matrices: Optional[tuple[np.ndarray, np.ndarray]] = None
    with self._place(memory_rows) as place:
      for first in range(0, plan.rounds, m):
        rounds = min(m, plan.rounds - first)
        # Of one phase, all blocks of a size are the same.
        if matrices is None or plan.phases > 1 or rounds < m:
          matrices = plan.block(first, rounds)
        scale, weights = matrices
        row = 0
        if memory_rows and plan.keeps != plan_lib.BUFFERS:
          row = first % memory_rows
          weights = np.zeros((rounds, memory_rows), np.float32)
          weights[:, (first - 1 - np.arange(plan.memory)) % memory_rows] = (
              matrices[1])
        for _ in place.advance(
            places.Block(rounds, plan.first_draw(first), scale, weights, row)):
          yield None
        for r in range(rounds):
          place.copy_row(r, y)
          yield y

  def _place(self, memory_rows: int) -> places.Place:
    """Returns where the work is done."""
    arguments = (
        self._plan.keeps, memory_rows, self.block_rounds, self._generator,
        self.coordinates, _CHUNK)
    if self._devices:
      return places.Devices(*arguments, devices=self._devices)
    return places.Host(
        *arguments, max_memory_bytes=self._max_memory_bytes)


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
  errors.check_count('dimension', dimension, 'the model has no parameters')
  errors.check_count('shards', shards, 'one shard makes all')
  if not 0 <= index < shards:
    raise ValueError(
        errors.invalid(
            'shard', index, f'must be in [0, shards={shards})',
            'number the shards from 0'))
  chunks = -(-dimension // _CHUNK)
  if shards > chunks:
    raise ValueError(
        errors.invalid(
            'shards', shards,
            f'{dimension} coordinates have {chunks} chunks of {_CHUNK}',
            f'use at most {chunks}'))
  edges = [
      min(dimension, _CHUNK * (-(-chunks * i // shards)))
      for i in (index, index + 1)]
  return range(*edges)


def _checked(coordinates: range, dimension: int) -> range:
  """Returns coordinates that are chunks of the whole."""
  on_grid = not coordinates.start % _CHUNK and (
      not coordinates.stop % _CHUNK or coordinates.stop == dimension)
  if not (on_grid and coordinates.step == 1
          and 0 <= coordinates.start < coordinates.stop <= dimension):
    raise ValueError(
        errors.invalid(
            'coordinates', coordinates,
            f'must be whole chunks of {_CHUNK} in [0, dimension={dimension})',
            'use stream.shard'))
  return coordinates


def _known(devices: Optional[Sequence[str]]) -> tuple[tuple[str, ...], str]:
  """Returns full names of devices, and what kind they are."""
  logical = tf.config.list_logical_devices()
  if devices is None:
    found = [device for device in logical if device.device_type == 'GPU']
  else:
    by_name = {
        name: device for device in logical
        for name in (device.name, device.name.removeprefix('/device:'))}
    for name in devices:
      if name not in by_name:
        raise ValueError(
            errors.invalid(
                'devices', name, 'is no device that TensorFlow sees',
                f'use {" ".join(device.name for device in logical)}'))
    found = [by_name[name] for name in devices]
  kinds = {device.device_type for device in found}
  # PRIVACY: which device makes a chunk depends on how many there are; kinds
  # that round differently would make noise that cannot be made again.
  # Guard: devices_test.test_devices_of_two_kinds_are_refused.
  if len(kinds) > 1:
    raise ValueError(
        errors.invalid(
            'devices', ' '.join(device.name for device in found),
            'are of several types',
            'use devices of one type'))
  return tuple(device.name for device in found), kinds.pop() if kinds else HOST
