"""A maker on JAX's devices, which compute normals and sums and hold past noise.

`makers` defines makers, blocks and chunks. A block has m rounds. `count` is the
number of coordinates of a chunk, padded to a multiple of `generator.GROUP`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Optional

import jax
import jax.numpy as jnp
import numpy as np

from tff_bandmf import errors
from tff_bandmf.noise import generator as generator_lib
from tff_bandmf.noise import jax_generator
from tff_bandmf.noise.producer import blocks, makers
from tff_bandmf.strategies import recursion as recursion_lib

# Number of rounds of a group. A block is computed group by group: one matrix
# product adds the weighted rows of all earlier groups to the rounds of a group.
_TOGETHER = 8
# Maximum bytes of a chunk on a CPU, where it should fit in cache, and on other
# devices. A chunk of 2^13 coordinates may have more bytes; see `_width`.
_CPU_BYTES, _BYTES = 2**22, 2**31
# If there are at most this many rows, `_product` adds them without a JAX loop.
_UNROLLED = 16


class Devices(makers.Maker):
  """A maker that works on several devices at the same time.

  Chunk i belongs to the device whose index is i modulo the number of devices.
  The device computes the chunk, and holds its memory and y of the latest block.
  The host copies one row of y at a time. Sums of integers times weights from
  `recursion.cut` are exact in float64, in any order. Other sums add one row
  after the other, in the same order for every chunk. So the noise does not
  depend on the number of devices.
  """

  def __init__(
    self,
    layout: makers.Layout,
    generator: generator_lib.Generator,
    devices: Sequence[jax.Device],
  ):
    """Checks the devices and copies the key to them.

    Args:
      layout: sizes of the memory and of the blocks. `layout.chunk` is ignored;
        the size of a chunk depends on the kind of device.
      generator: generator of the normals of the key.
      devices: devices of JAX, all of one kind, at least one.

    Raises:
      RuntimeError: a device fails the tests of `check`.
    """
    size = _width(devices[0].platform, layout.memory_rows, layout.block_rounds)
    super().__init__(dataclasses.replace(layout, chunk=size), generator)
    for device in devices:
      check(device)
    words = jax_generator.key_words(generator.key)
    self._keys = [jax.device_put(words, device) for device in devices]
    self._devices = devices
    # Memory of each chunk: None until the first block is computed, then [memory
    # rows, count].
    self._memories: list[Optional[jax.Array]] = [None] * len(
      self._layout.starts
    )
    # y of each chunk of the latest block, [m, count] int32. None if y is in the
    # memory, in the rows from `_first_row` on.
    self._y: list[Optional[jax.Array]] = []
    self._first_row = 0

  def __exit__(self, *exc_info) -> None:
    self._memories.clear()
    self._y.clear()

  def advance(self, block: blocks.Block) -> Iterator[None]:
    # `_start` returns at once; each device computes its chunks one by one.
    parts = [self._start(i, block) for i in range(len(self._layout.starts))]
    self._first_row = block.row
    self._y = [output for output, _ in parts]
    for _, largest in parts:
      blocks.checked(np.asarray(largest))
      yield

  def _start(
    self, i: int, block: blocks.Block
  ) -> tuple[Optional[jax.Array], jax.Array]:
    """Starts the computation of a block of chunk i, and updates the memory.

    Args:
      i: index of the chunk.
      block: the block.

    Returns:
      y: [m, count] int32, or None if y is a part of the memory. The device may
        not have computed it yet.
      largest: scalar, max |y|.
    """
    layout, device = self._layout, self._devices[i % len(self._devices)]
    # `precise` makes JAX compute in 64 bits. The setting ends before `advance`
    # yields, because the caller may then use JAX for other computations.
    with jax_generator.precise(), jax.default_device(device):
      z = self.draw(i, block.first, block.noise_scale)
      memory = self._memories[i]
      if memory is None:
        # Place the zeros as later memories are placed, so that one compiled
        # program serves all blocks.
        memory = jax.device_put(
          jnp.zeros((layout.memory_rows, z.shape[1]), layout.dtype), device
        )
      if isinstance(block, blocks.WindowBlock):
        memory, output, largest = _window(
          memory, z, block.far, block.near, block.scale, block.row
        )
      else:
        assert isinstance(block, blocks.BufferBlock)
        _, *steps = map(np.stack, zip(*block.steps))
        mixes = bool((steps[1] * (1 - np.eye(len(memory)))).any())
        memory, output, largest = _buffers(memory, z, *steps, mixes=mixes)
    self._memories[i] = memory
    return output, largest

  def draw(self, i: int, first: int, noise_scale: np.ndarray) -> jax.Array:
    """Returns noise_scale * Z of a chunk; the device may still be computing it.

    The caller must be in a `with jax_generator.precise()` block.

    Args:
      i: index of the chunk.
      first: first round, >= 0.
      noise_scale: [m] float64, standard deviation of the fresh noise of each
        round in lattice steps.

    Returns:
      [m, count] float64, on the device of the chunk.
    """
    layout, group = self._layout, generator_lib.GROUP
    return _draw(
      self._keys[i % len(self._devices)],
      np.int64(first),
      np.int64((layout.coordinates.start + layout.starts[i]) // group),
      noise_scale,
      -(-layout.count(i) // group) * group,
    )

  def _row(self, i: int, r: int) -> np.ndarray:
    rows = self._y[i]
    if rows is None:
      rows, r = self._memories[i], self._first_row + r
    return np.asarray(_pick(rows, r))[: self._layout.count(i)]


# PRIVACY: JAX may store compiled programs and their constants on disk, where
# other users could read a key. The key is an argument of the program instead of
# a constant.
# Guard: jax_devices_test.test_key_is_in_no_program.
@functools.partial(jax.jit, static_argnums=4)
def _draw(key, first_row, first_group, noise_scale, count):
  """Returns noise_scale * Z of a block for one chunk, [m, count] float64."""
  shape = (len(noise_scale), count)
  z = jax_generator.normals(key, first_row, first_group, shape)
  return z * noise_scale[:, None]


@functools.partial(jax.jit, donate_argnums=0)
def _window(memory, z, far, near, scale, row):
  """Computes a `blocks.WindowBlock`; `blocks` defines its arguments.

  Returns:
    memory: [memory rows, count], updated.
    y: [m, count] int32, or None if y is a part of the memory.
    largest: scalar, max |y|.
  """
  if not len(memory):
    y = jnp.rint(z)
    return memory, y.astype(np.int32), _largest(y)
  rounds = len(z)
  feeds_y = memory.dtype == np.int32
  product = _exact_product if feeds_y else _product
  mean = product(far, memory)
  # Pad to whole groups of rounds; the added rounds have y = 0.
  together = min(_TOGETHER, rounds)
  more = -rounds % together
  mean, z, near = (
    jnp.pad(rows, ((0, more), (0, 0))) for rows in (mean, z, near)
  )
  near = jnp.pad(near, ((0, 0), (0, more)))
  scale = jnp.pad(scale, (0, more), constant_values=1.0)

  def make_group(g, buffers):
    start = g * together

    def group(rows, axis=0):
      return jax.lax.dynamic_slice_in_dim(rows, start, together, axis)

    # Rounds of this group and of later groups are still zero in `buffers[0]`,
    # so they add nothing.
    means = group(mean) + product(group(near), buffers[0])
    weights, noise, scales = group(group(near), 1), group(z), group(scale)
    fed: list[jax.Array] = []
    y: list[jax.Array] = []
    for r in range(together):
      m = means[r]
      for s in range(r):
        m += weights[r, s] * fed[s]
      y.append(jnp.rint(noise[r] + m))
      # PRIVACY: Released sums contain the rounded y. If later rounds were
      # computed from y before rounding, the noise would not be C^-1 z, and
      # epsilon would not hold. They are computed from the rounded y.
      # Guard: jax_devices_test.test_devices_make_the_noise_of_the_host.
      fed.append(y[r] if feeds_y else (y[r] - m) / scales[r])
    return tuple(
      jax.lax.dynamic_update_slice(rows, jnp.stack(new), (start, 0))
      for rows, new in zip(buffers, (fed, y))
    )

  # The arrays that the loop fills: U, and also Y if it differs from U.
  carried = (jnp.zeros_like(z),) * (1 if feeds_y else 2)
  groups = len(z) // together
  carried = jax.lax.fori_loop(0, groups, make_group, carried)
  fed, y = carried[0][:rounds], carried[-1][:rounds]
  latest = fed.astype(memory.dtype)
  memory = jax.lax.dynamic_update_slice(memory, latest, (row, 0))
  return memory, None if feeds_y else y.astype(np.int32), _largest(y)


@functools.partial(jax.jit, donate_argnums=0, static_argnames='mixes')
def _buffers(memory, z, readout, update, gain, mixes):
  """Computes a `blocks.BufferBlock`.

  Args:
    memory: [buffers, count] float64.
    z: [m, count] float64, noise_scale * Z.
    readout: [m, buffers] float64, weights of the buffers in the mean.
    update: [m, buffers, buffers] float64, weights of the buffers in the buffers
      of the next round.
    gain: [m, buffers] float64, weights of y in the buffers of the next round.
    mixes: whether `update` has entries outside its diagonal.

  Returns:
    (memory, y [m, count] int32, scalar max |y|).
  """
  rows = []
  for r in range(len(z)):
    y = jnp.rint(z[r] + _product(readout[r : r + 1], memory)[0])
    rows.append(y)
    if mixes:
      memory = _product(update[r], memory)
    else:
      memory = jnp.diag(update[r])[:, None] * memory
    memory += gain[r][:, None] * y
  y = jnp.stack(rows)
  return memory, y.astype(np.int32), _largest(y)


@jax.jit
def _pick(rows, r):
  return rows[r]


def _largest(y: jax.Array) -> jax.Array:
  """Returns max |y|, or infinity if a value is NaN."""
  return jnp.max(jnp.where(jnp.isnan(y), jnp.inf, jnp.abs(y)))


def _exact_product(weights: jax.Array, rows: jax.Array) -> jax.Array:
  """Returns weights @ rows.

  The product is exact if `rows` are integers and `weights` are from
  `recursion.cut`.
  """
  # PRIVACY: If JAX chose a faster and less precise product, such as
  # TensorFloat-32, the weights would be rounded, the noise would not be C^-1 z,
  # and epsilon would not hold. `precision` asks for the most precise product.
  # Guard: jax_devices_test.test_devices_multiply_in_float64.
  return jnp.matmul(
    weights, rows.astype(np.float64), precision=jax.lax.Precision.HIGHEST
  )


def _product(weights: jax.Array, rows: jax.Array) -> jax.Array:
  """Returns weights @ rows; the rows are added in the order of their index."""
  # `jnp.matmul` would add in an order that depends on the shape.
  total = jnp.zeros((len(weights), rows.shape[1]))
  if len(rows) > _UNROLLED:
    return jax.lax.fori_loop(
      0, len(rows), lambda j, t: t + weights[:, j][:, None] * rows[j], total
    )
  for j in range(len(rows)):
    total += weights[:, j : j + 1] * rows[j]
  return total


def _width(platform: str, memory_rows: int, block_rounds: int) -> int:
  """Returns the number of coordinates of a chunk, a power of two.

  The result is at least 2^13, even if such a chunk has more than the maximum
  number of bytes.

  Args:
    platform: JAX's name of the kind of device, such as 'cpu'.
    memory_rows: number of rows of the memory, >= 0.
    block_rounds: maximum number of rounds of a block, > 0.
  """
  row_bytes = 8 * (memory_rows + 4 * block_rounds)
  most = (_CPU_BYTES if platform == 'cpu' else _BYTES) // row_bytes
  return 1 << max(13, most.bit_length() - 1)


@functools.cache
def check(device: jax.Device) -> None:
  """Tests on fixed numbers how exactly a device computes.

  Products must be exact, and errors of normals must be within the bound of the
  proof.

  Raises:
    RuntimeError: the device is less exact than the guarantee assumes.
  """
  random = np.random.default_rng(0)
  rows = random.integers(-(2**31), 2**31, (96, 512), np.int32)
  weights = random.uniform(-1, 1, (24, 96))
  weights = recursion_lib.cut(weights, np.abs(weights).sum(1).max())
  with jax_generator.precise(), jax.default_device(device):
    product = np.asarray(jax.jit(_exact_product)(weights, rows))
  # PRIVACY: If a library computes float64 products from numbers with fewer
  # bits, the noise is not C^-1 z, and epsilon does not hold. A device that
  # computes a wrong product or inexact normals is refused.
  # Guard: jax_devices_test.test_device_that_is_not_exact_is_refused.
  if not np.array_equal(product, weights @ rows) or not (
    jax_generator.is_exact(device)
  ):
    raise RuntimeError(
      errors.invalid(
        f'device={device}: does not compute the noise as exactly as the '
        'guarantee assumes; use another device or version of JAX, or '
        "backend='numpy'"
      )
    )


def known(names: Sequence[str]) -> tuple[tuple[jax.Device, ...], str]:
  """Returns (devices, version of JAX and kind of these devices).

  Args:
    names: names such as 'gpu:0'. An empty sequence means all devices that
      `jax.local_devices` lists: the devices of JAX's default platform.

  Raises:
    ValueError: JAX does not see a device, or the devices are of several kinds.
  """
  by_name = {f'{each.platform}:{each.id}': each for each in jax.local_devices()}
  for name in names:
    if name not in by_name:
      raise errors.value_error(
        f'devices={name}: is not a device that JAX sees; use '
        f'{" ".join(by_name)}'
      )
  chosen = tuple(by_name[name] for name in names or by_name)
  # PRIVACY: If a run resumes with fewer or more devices, some chunks move from
  # one device to another, which computes past noise again. If these two devices
  # rounded differently, past noise would not be the released noise, and epsilon
  # would not hold. Devices of several kinds are refused.
  # Guard: jax_devices_test.test_devices_of_two_kinds_are_refused.
  kinds = {each.device_kind for each in chosen}
  if len(kinds) > 1:
    raise errors.value_error(
      f'devices={" ".join(names or by_name)}: are of several kinds; use '
      'devices of one kind'
    )
  return chosen, f'jax {jax.__version__} {kinds.pop()}'
