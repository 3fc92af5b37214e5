"""A maker on TensorFlow's devices, which hold the memory of past rounds.

`makers` defines makers, blocks and chunks. A block has m rounds, and a chunk
has `count` coordinates.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from multiprocessing import pool as pool_lib
from typing import Callable, Optional

import numpy as np
import tensorflow as tf

from tff_bandmf import errors
from tff_bandmf.noise import generator as generator_lib
from tff_bandmf.noise.producer import blocks, makers

# Number of rounds of a group. A block is computed group by group: one matrix
# product adds the weighted rows of all earlier groups to the rounds of a group.
_TOGETHER = 8


class Devices(makers.Maker):
  """A maker that works on several devices at the same time.

  Chunk i belongs to the device whose index is i modulo the number of devices.
  The device computes the chunk and holds its memory. The host sends the normals
  to the device, and the device returns y of the block. Products are in float64,
  so that products of integers with weights from `recursion.cut` are exact on
  every device.
  """

  def __init__(
    self,
    layout: makers.Layout,
    generator: generator_lib.Generator,
    devices: Sequence[str],
  ):
    """Starts one thread for each device.

    Args:
      layout: sizes of the memory and of the chunks.
      generator: generator of the normals of the key.
      devices: names of logical devices of TensorFlow, at least one.
    """
    super().__init__(layout, generator)
    self._devices = devices
    self._pools = [pool_lib.ThreadPool(1) for _ in devices]
    # Memory of each chunk, [memory rows, count]: None until the first block is
    # computed, and always None if the recursion has no memory.
    self._memories: list[Optional[tf.Variable]] = [None] * len(layout.starts)
    # y of each chunk of the latest block, [m, count] int32.
    self._y: list[np.ndarray] = []

  def __exit__(self, *exc_info) -> None:
    for pool in self._pools:
      pool.terminate()
    for pool in self._pools:
      pool.join()
    self._memories.clear()

  def advance(self, block: blocks.Block) -> Iterator[None]:
    parts = [
      self._pools[i % len(self._pools)].apply_async(
        self._advance_chunk, (i, block)
      )
      for i in range(len(self._layout.starts))
    ]
    self._y = []
    for part in parts:
      self._y.append(blocks.checked(part.get()).astype(np.int32))
      yield

  def _advance_chunk(self, i: int, block: blocks.Block) -> np.ndarray:
    """Computes a block of chunk i, and updates the memory of the chunk.

    Args:
      i: index of the chunk.
      block: the block.

    Returns:
      y, [m, count] float64.
    """
    layout = self._layout
    z = self._draw(i, block, blocks.Workspace())
    with tf.device(self._devices[i % len(self._devices)]):
      if not layout.memory_rows:
        return tf.round(tf.constant(z)).numpy()
      memory = self._memories[i]
      if memory is None:
        memory = self._memories[i] = tf.Variable(
          tf.zeros([layout.memory_rows, layout.count(i)], layout.dtype)
        )
      if isinstance(block, blocks.WindowBlock):
        y, fed = _window(block.rounds, block.feeds_y)(
          z, memory, block.far, block.near, block.scale
        )
        memory[block.row : block.row + block.rounds].assign(
          tf.cast(fed, layout.dtype)
        )
      else:
        assert isinstance(block, blocks.BufferBlock)
        _, *steps = map(np.stack, zip(*block.steps))
        y, buffers = _buffers(block.rounds)(z, memory, *steps)
        memory.assign(buffers)
      return y.numpy()

  def _row(self, i: int, r: int) -> np.ndarray:
    return self._y[i][r]


@functools.cache
def _window(
  rounds: int, feeds_y: bool
) -> Callable[..., tuple[tf.Tensor, tf.Tensor]]:
  """Returns the function that computes a `blocks.WindowBlock`."""

  @tf.function(autograph=False, reduce_retracing=True)
  def advance(z, memory, far, near, scale):
    mean = tf.unstack(tf.matmul(far, tf.cast(memory, tf.float64)), rounds)
    z = tf.unstack(z, rounds)
    y: list[tf.Tensor] = []
    fed: list[tf.Tensor] = []
    for start in range(0, rounds, _TOGETHER):
      stop = min(start + _TOGETHER, rounds)
      if start:
        added = tf.unstack(
          tf.matmul(near[start:stop, :start], tf.stack(fed)), stop - start
        )
        for r in range(start, stop):
          mean[r] += added[r - start]
      for r in range(start, stop):
        for s in range(start, r):
          mean[r] += near[r, s] * fed[s]
        y.append(tf.round(z[r] + mean[r]))
        # PRIVACY: Released sums contain the rounded y. If later rounds were
        # computed from y before rounding, the noise would not be C^-1 z, and
        # epsilon would not hold. They are computed from the rounded y.
        # Guard: devices_test.test_devices_make_the_noise_of_the_host.
        fed.append(y[r] if feeds_y else (y[r] - mean[r]) / scale[r])
    return tf.stack(y), tf.stack(fed)

  return advance


@functools.cache
def _buffers(rounds: int) -> Callable[..., tuple[tf.Tensor, tf.Tensor]]:
  """Returns the function that computes a `blocks.BufferBlock`."""

  @tf.function(autograph=False, reduce_retracing=True)
  def advance(z, memory, readout, update, gain):
    y = []
    memory = tf.convert_to_tensor(memory)
    for r in range(rounds):
      mean = tf.linalg.matvec(memory, readout[r], transpose_a=True)
      y.append(tf.round(z[r] + mean))
      memory = tf.matmul(update[r], memory) + gain[r][:, tf.newaxis] * y[r]
    return tf.stack(y), memory

  return advance


def known(devices: Sequence[str]) -> tuple[tuple[str, ...], str]:
  """Returns (full names of devices, type of these devices).

  Args:
    devices: names of devices. An empty sequence means all GPUs, or all CPUs if
      TensorFlow sees no GPU.

  Raises:
    ValueError: TensorFlow does not see a device, or the devices are of several
      types.
  """
  logical = tf.config.list_logical_devices()
  by_name = {
    name: device
    for device in logical
    for name in (device.name, device.name.removeprefix('/device:'))
  }
  devices = devices or [
    device.name
    for device in tf.config.list_logical_devices('GPU')
    or tf.config.list_logical_devices('CPU')
  ]
  for name in devices:
    if name not in by_name:
      raise errors.value_error(
        f'devices={name}: is not a device that TensorFlow sees; use '
        f'{" ".join(device.name for device in logical)}'
      )
  chosen = [by_name[name] for name in devices]
  kinds = {device.device_type for device in chosen}
  # PRIVACY: If a run resumes with fewer or more devices, some chunks move from
  # one device to another, which computes past noise again. If these two devices
  # rounded differently, past noise would not be the released noise, and epsilon
  # would not hold. Devices of several types are refused.
  # Guard: devices_test.test_devices_of_two_kinds_are_refused.
  if len(kinds) > 1:
    raise errors.value_error(
      f'devices={" ".join(device.name for device in chosen)}: are of several '
      'types; use devices of one type'
    )
  return tuple(device.name for device in chosen), kinds.pop()
