"""Blocks of rounds on JAX's devices: normals, sums and the past are there."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tff_bandmf import errors
from tff_bandmf.noise import generator as generator_lib
from tff_bandmf.noise import jax_generator
from tff_bandmf.noise.producer import blocks, makers
from tff_bandmf.strategies import recursion as recursion_lib

# Rounds whose sums are taken together.
_TOGETHER = 8
# What a chunk of coordinates may need beside its past: a cache, or memory.
_CPU_BYTES, _BYTES = 2**22, 2**31
# Most rows that are added up in one expression.
_UNROLLED = 16


class Devices(makers.Maker):
  """Works on devices at the same time, chunks dealt to them in turn.

  All of a chunk is on its device until a row of y is copied. Sums of integers
  and cut weights are exact in float64, in any order; the others are made row
  after row, the same for every chunk. So the noise does not depend on how many
  devices there are.
  """

  def __init__(
    self,
    layout: makers.Layout,
    generator: generator_lib.Generator,
    devices: Sequence[Any],
  ):
    """Takes what `Maker` takes, and devices.

    Raises:
      RuntimeError: a device does not compute as exactly as it must.
    """
    size = _width(devices[0].platform, layout.memory_rows, layout.block_rounds)
    super().__init__(dataclasses.replace(layout, chunk=size), generator)
    for device in devices:
      check(device)
    words = jax_generator.key_words(generator.key)
    self._keys = [jax.device_put(words, device) for device in devices]
    self._devices = devices
    # None, then [memory rows, count].
    self._memories: list[Any] = [None] * len(self._layout.starts)
    # [m, count]; None where it is in the memory, from `_first_row` on.
    self._made: list[Any] = []
    self._first_row = 0

  def __exit__(self, *exc_info) -> None:
    self._memories.clear()
    self._made.clear()

  def advance(self, block: blocks.Block) -> Iterator[None]:
    # They run on, one after the other on each device.
    parts = [self._start(i, block) for i in range(len(self._layout.starts))]
    self._first_row = block.row
    self._made = [made for made, _ in parts]
    for _, largest in parts:
      blocks.checked(np.asarray(largest))
      yield

  def _start(self, i: int, block: blocks.Block) -> tuple[Any, Any]:
    """Returns (made, |y| at most) of a chunk, which are being made."""
    layout, device = self._layout, self._devices[i % len(self._devices)]
    # 64 bits for the calls of this thread, and not past a `yield`.
    with jax_generator.precise(), jax.default_device(device):
      z = self.draw(i, block.first, block.noise_scale)
      memory = self._memories[i]
      if memory is None:
        # As what follows it, which one program is for.
        memory = jax.device_put(
          jnp.zeros((layout.memory_rows, z.shape[1]), layout.dtype), device
        )
      if isinstance(block, blocks.WindowBlock):
        memory, made, largest = _window(
          memory, z, block.far, block.near, block.scale, block.row
        )
      else:
        assert isinstance(block, blocks.BufferBlock)
        _, *steps = map(np.stack, zip(*block.steps))
        mixes = bool((steps[1] * (1 - np.eye(len(memory)))).any())
        memory, made, largest = _buffers(memory, z, *steps, mixes=mixes)
    self._memories[i] = memory
    return made, largest

  def draw(self, i: int, first: int, noise_scale: np.ndarray) -> jax.Array:
    """Returns noise_scale * Z of a chunk, in the making; in 64 bits.

    Args:
      i: number of the chunk, whose coordinates are filled up to whole groups.
      first: round.
      noise_scale: [m].

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
    rows = self._made[i]
    if rows is None:
      rows, r = self._memories[i], self._first_row + r
    return np.asarray(_pick(rows, r))[: self._layout.count(i)]


# PRIVACY: the key is an argument and not a constant of a program, for JAX may
# keep that on disk. Guard: jax_devices_test.test_key_is_in_no_program.
@functools.partial(jax.jit, static_argnums=4)
def _draw(key, first_row, first_group, noise_scale, count):
  """Returns noise_scale * Z of a block and chunk, [m, count] float64."""
  shape = (len(noise_scale), count)
  z = jax_generator.normals(key, first_row, first_group, shape)
  return z * noise_scale[:, None]


@functools.partial(jax.jit, donate_argnums=0)
def _window(memory, z, far, near, scale, row):
  """Makes a `blocks.WindowBlock`.

  Returns (memory, y [m, count] int32 or None, scalar max |y|); y is None if it
  is in the memory.
  """
  if not len(memory):
    y = jnp.rint(z)
    return memory, y.astype(np.int32), _largest(y)
  rounds = len(z)
  feeds_y = memory.dtype == np.int32
  product = _exact_product if feeds_y else _product
  mean = product(far, memory)
  # Whole groups; y of rounds behind the last is 0.
  together = min(_TOGETHER, rounds)
  more = -rounds % together
  mean, z, near = (
    jnp.pad(rows, ((0, more), (0, 0))) for rows in (mean, z, near)
  )
  near = jnp.pad(near, ((0, 0), (0, more)))
  scale = jnp.pad(scale, (0, more), constant_values=1.0)

  def make_group(g, made):
    start = g * together

    def group(rows, axis=0):
      return jax.lax.dynamic_slice_in_dim(rows, start, together, axis)

    # Zeros meet the groups to come.
    means = group(mean) + product(group(near), made[0])
    weights, noise, scales = group(group(near), 1), group(z), group(scale)
    fed: list[Any] = []
    y: list[Any] = []
    for r in range(together):
      m = means[r]
      for s in range(r):
        m += weights[r, s] * fed[s]
      y.append(jnp.rint(noise[r] + m))
      # PRIVACY: the y that is added is what feeds back. Guard:
      # jax_devices_test.test_devices_make_the_noise_of_the_host.
      fed.append(y[r] if feeds_y else (y[r] - m) / scales[r])
    return tuple(
      jax.lax.dynamic_update_slice(rows, jnp.stack(new), (start, 0))
      for rows, new in zip(made, (fed, y))
    )

  # U, and Y where it is another.
  made = (jnp.zeros_like(z),) * (1 if feeds_y else 2)
  groups = len(z) // together
  made = jax.lax.fori_loop(0, groups, make_group, made)
  fed, y = made[0][:rounds], made[-1][:rounds]
  latest = fed.astype(memory.dtype)
  memory = jax.lax.dynamic_update_slice(memory, latest, (row, 0))
  return memory, None if feeds_y else y.astype(np.int32), _largest(y)


@functools.partial(jax.jit, donate_argnums=0, static_argnames='mixes')
def _buffers(memory, z, readout, update, gain, mixes):
  """Makes a `blocks.BufferBlock`, whose update `mixes` beside its diagonal."""
  made = []
  for r in range(len(z)):
    y = jnp.rint(z[r] + _product(readout[r : r + 1], memory)[0])
    made.append(y)
    if mixes:
      memory = _product(update[r], memory)
    else:
      memory = jnp.diag(update[r])[:, None] * memory
    memory += gain[r][:, None] * y
  y = jnp.stack(made)
  return memory, y.astype(np.int32), _largest(y)


@jax.jit
def _pick(rows, r):
  return rows[r]


def _largest(y: jax.Array) -> jax.Array:
  """Returns max |y|; infinite if one is not a number."""
  return jnp.max(jnp.where(jnp.isnan(y), jnp.inf, jnp.abs(y)))


def _exact_product(weights: jax.Array, rows: jax.Array) -> jax.Array:
  """Returns weights @ rows, of integers and cut weights."""
  # PRIVACY: TensorFloat-32 would be another C. Guard:
  # jax_devices_test.test_devices_multiply_in_float64.
  return jnp.matmul(
    weights, rows.astype(np.float64), precision=jax.lax.Precision.HIGHEST
  )


def _product(weights: jax.Array, rows: jax.Array) -> jax.Array:
  """Returns weights @ rows, added up in the order of the rows."""
  # The order in a library's product depends on the shape.
  total = jnp.zeros((len(weights), rows.shape[1]))
  if len(rows) > _UNROLLED:
    return jax.lax.fori_loop(
      0, len(rows), lambda j, t: t + weights[:, j][:, None] * rows[j], total
    )
  for j in range(len(rows)):
    total += weights[:, j : j + 1] * rows[j]
  return total


def _width(platform: str, memory_rows: int, block_rounds: int) -> int:
  """Returns the coordinates of a chunk, a power of two."""
  row_bytes = 8 * (memory_rows + 4 * block_rounds)
  most = (_CPU_BYTES if platform == 'cpu' else _BYTES) // row_bytes
  return 1 << max(13, most.bit_length() - 1)


@functools.cache
def check(device: Any) -> None:
  """Tries a device of JAX, on normals and on sums.

  Raises:
    RuntimeError: it does not compute as exactly as it must.
  """
  random = np.random.default_rng(0)
  rows = random.integers(-(2**31), 2**31, (96, 512), np.int32)
  weights = random.uniform(-1, 1, (24, 96))
  weights = recursion_lib.cut(weights, np.abs(weights).sum(1).max())
  with jax_generator.precise(), jax.default_device(device):
    product = np.asarray(jax.jit(_exact_product)(weights, rows))
  # PRIVACY: a library may make products of float64 out of shorter ones. Guard:
  # jax_devices_test.test_device_that_is_not_exact_is_refused.
  if not np.array_equal(product, weights @ rows) or not (
    jax_generator.is_exact(device)
  ):
    raise RuntimeError(
      errors.invalid(
        'device',
        device,
        'does not compute the noise as exactly as the guarantee assumes',
        "use another device or version of JAX, or backend='numpy'",
      )
    )


def known(names: Sequence[str]) -> tuple[tuple[Any, ...], str]:
  """Returns devices and what kind they are.

  Args:
    names: like gpu:0; none takes all that JAX has.

  Raises:
    ValueError: a device is not known, or they are of several kinds.
  """
  seen = {f'{each.platform}:{each.id}': each for each in jax.local_devices()}
  for name in names:
    if name not in seen:
      raise errors.value_error(
        'devices',
        name,
        'is not a device that JAX sees',
        f'use {" ".join(seen)}',
      )
  found = tuple(seen[name] for name in names or seen)
  # PRIVACY: which device makes a chunk depends on how many there are; kinds
  # that round differently would make noise that cannot be made again. Guard:
  # jax_devices_test.test_devices_of_two_kinds_are_refused.
  kinds = {each.device_kind for each in found}
  if len(kinds) > 1:
    raise errors.value_error(
      'devices',
      ' '.join(names or seen),
      'are of several kinds',
      'use devices of one kind',
    )
  return found, f'jax {jax.__version__} {kinds.pop()}'
