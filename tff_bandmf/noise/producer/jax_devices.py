"""A maker on JAX's devices, which compute normals and sums and hold past noise.

`block_makers` defines makers, blocks and chunks, and `blocks` defines V, e and
doubt. A block has m rounds. `count` is the number of coordinates of a chunk,
padded to a multiple of `generator.GROUP`.

A device speculates: it rounds V of a whole block, feeds the rounded y back, and
returns the columns in which some rounding was in doubt. The host computes these
columns of the block anew. Mostly both results agree.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Optional

import jax
import jax.numpy as jnp
import numpy as np

from tff_bandmf import errors
from tff_bandmf.noise import generator as generator_lib
from tff_bandmf.noise import jax_generator
from tff_bandmf.noise.producer import block_makers, blocks
from tff_bandmf.strategies import recursion as recursion_lib

# Number of rounds of a group. A block is computed group by group: one matrix
# product adds the weighted rows of all earlier groups to the rounds of a group.
_TOGETHER = 8
# Maximum bytes of a chunk: on a CPU, so that the chunk fits in cache, and on
# other devices. A chunk of 2^13 coordinates may have more; see `_width`.
_CPU_BYTES, _BYTES = 2**22, 2**31
# Maximum number of columns in doubt that a device returns for one chunk of a
# block. If there are more, the device computes the block again.
_FEW = 16


class _Result(NamedTuple):
  """A block of one chunk, as a device computed it.

  Attributes:
    memory: [memory rows, count], after the block; before the block if there are
      more columns in doubt than `columns` holds.
    y: [m, count] int32, or None if y is a part of the memory.
    bounds: `blocks.Chunk.bounds` after the block.
    largest: scalar, bound of |y|; infinity if sums of integers are inexact.
    number: scalar, number of columns in doubt.
    columns: [k] columns in doubt, padded with `count`.
    rounded: [m, k] y of these columns.
    before: [memory rows, k] the memory of these columns before the block.
  """

  memory: jax.Array
  y: Optional[jax.Array]
  bounds: jax.Array
  largest: jax.Array
  number: jax.Array
  columns: jax.Array
  rounded: jax.Array
  before: jax.Array


class Devices(block_makers.Maker):
  """A maker that works on several devices at the same time.

  Chunk i belongs to the device whose index is i modulo the number of devices.
  The device computes the chunk, and holds its memory and y of the latest block.
  The host copies one row of y at a time. The bits of y are the same as on the
  host.
  """

  def __init__(self, stream: block_makers.Settings):
    """Checks the devices and copies the key to them.

    Args:
      stream: the stream whose blocks the maker computes.

    Raises:
      RuntimeError: a device fails the tests of `check`.
    """
    rows, self._devices = stream.memory_rows, stream.devices
    platform = self._devices[0].platform
    super().__init__(stream, _width(platform, rows, stream.block_rounds))
    for device in self._devices:
      check(device)
    words = jax_generator.key_words(stream.rounding.generator.key)
    self._keys = [jax.device_put(words, device) for device in self._devices]
    count = len(self.chunks)
    # Memory of each chunk: None until the first block is computed, then [memory
    # rows, count].
    self._memories: list[Optional[jax.Array]] = [None] * count
    self._bounds = [np.zeros(rows)] * count
    # y of each chunk of the latest block, [m, count] int32. None if y is in the
    # memory, in the rows from `_first_row` on.
    self._y: list[Optional[jax.Array]] = []
    self._first_row = 0

  def __exit__(self, *exc_info) -> None:
    self._memories.clear()
    self._y.clear()

  def advance(self, block: blocks.Block) -> Iterator[None]:
    # `_start` returns at once; each device computes its chunks one by one.
    results = [self._start(i, block, _FEW) for i in range(len(self.chunks))]
    self._first_row = block.row
    self._y = [None] * len(results)
    for i, result in enumerate(results):
      number = int(result.number)
      while number > len(result.columns):
        self._memories[i] = result.memory
        result = self._start(i, block, 1 << number.bit_length())
      self._memories[i], self._y[i] = result.memory, result.y
      if not float(result.largest) <= blocks.LARGEST:
        raise OverflowError('noise: a value left its range')
      # PRIVACY: The bounds of a device do not count columns that are NaN on the
      # device. If later rounds used only these bounds, the bounds of errors
      # could be too small, and a wrong rounding would not be noticed. The
      # bounds also count the columns that the host computed.
      # Guard: exact_noise_test.test_bounds_on_devices_count_each_column.
      self._bounds[i] = np.maximum(
        np.asarray(result.bounds), self._settle(i, block, result)
      )
      yield

  def _start(self, i: int, block: blocks.Block, few: int) -> _Result:
    """Starts the computation of a block of chunk i.

    Args:
      i: index of the chunk.
      block: the block.
      few: number of columns in doubt that the result has room for.
    """
    device = self._devices[i % len(self._devices)]
    # `precise` makes JAX compute in 64 bits. The setting ends before `advance`
    # yields, because the caller may then use JAX for other computations.
    with jax_generator.precise(), jax.default_device(device):
      z = self.draw(i, block)
      memory = self._memories[i]
      if memory is None:
        # Later memories are committed to the device. If the zeros were not, JAX
        # would compile a second program.
        shape = self._stream.memory_rows, z.shape[1]
        memory = jax.device_put(jnp.zeros(shape, self._dtype), device)
      self._memories[i] = None  # The program overwrites it.
      program, weights = _program(block)
      return _advanced(
        memory, z, weights, self._bounds[i], block.row, program, few
      )

  def _settle(self, i: int, block: blocks.Block, result: _Result) -> np.ndarray:
    """Computes the columns in doubt anew, and corrects y and the memory.

    Args:
      i: index of the chunk.
      block: the block.
      result: the block as the device computed it.

    Returns:
      `blocks.Chunk.bounds` of the corrected columns after the block; 0 if no
      column is corrected.
    """
    columns = np.asarray(result.columns)
    # Columns beyond the coordinates of the chunk are padding.
    columns = columns[columns < len(self.chunks[i])]
    if not len(columns):
      return np.zeros(())
    coordinates = [self.chunks[i][column] for column in columns]
    rounded = np.asarray(result.rounded)[:, : len(columns)]
    memory = np.array(result.before)[:, : len(columns)]
    bounds, rounding = self._bounds[i].copy(), self._stream.rounding
    chunk = blocks.Chunk(
      coordinates, memory, bounds, rounding, blocks.Workspace()
    )
    y = np.empty(rounded.shape, np.int32)
    if result.y is None:
      y = memory[block.row : block.row + block.rounds]
    normal = rounding.generator.normal
    rows = range(block.first - block.earlier, block.first + block.rounds)
    z = np.array([[normal(t, each) for each in coordinates] for t in rows])
    block.advance(z * block.noise_scale[:, np.newaxis], y, chunk)
    wrong = (y != rounded).any(0)
    if not wrong.any():
      return np.zeros(())
    where = columns[wrong]
    with jax_generator.precise():
      if len(memory):
        # PRIVACY: Later rounds are computed from the rounded y. If a correction
        # did not reach the memory, their noise would not be C^-1 z. The memory
        # gets the corrected columns.
        # Guard:
        # exact_noise_test.test_device_that_rounds_otherwise_is_corrected.
        self._memories[i] = result.memory.at[:, where].set(memory[:, wrong])
      if result.y is not None:
        self._y[i] = result.y.at[:, where].set(y[:, wrong])
    return chunk.bounds

  def draw(self, i: int, block: blocks.Block) -> jax.Array:
    """Returns noise_scale * Z of a chunk; the device may still be computing it.

    The caller must be in a `with jax_generator.precise()` block.

    Args:
      i: index of the chunk.
      block: the block.

    Returns:
      [earlier + m, count] float64, on the device of the chunk.
    """
    chunk, group = self.chunks[i], generator_lib.GROUP
    return _draw(
      self._keys[i % len(self._devices)],
      np.int64(block.first - block.earlier),
      np.int64(chunk.start // group),
      block.noise_scale,
      -(-len(chunk) // group) * group,
    )

  def _row(self, i: int, r: int) -> np.ndarray:
    rows: Any = self._y[i]
    if rows is None:
      rows, r = self._memories[i], self._first_row + r
    return np.asarray(_pick(rows, r))[: len(self.chunks[i])]


# PRIVACY: JAX may store compiled programs and their constants on disk, where
# other users could read a key. The key is an argument of the program instead of
# a constant.
# Guards: jax_devices_test.test_key_is_in_no_program and
# jax_devices_test.test_devices_make_the_noise_of_the_host.
@functools.partial(jax.jit, static_argnums=4)
def _draw(key, first_row, first_group, noise_scale, count):
  """Returns noise_scale * Z of a block for one chunk, [rows, count] float64."""
  shape = (len(noise_scale), count)
  z = jax_generator.normals(key, first_row, first_group, shape)
  return z * noise_scale[:, None]


def _program(block: blocks.Block) -> tuple[tuple[Any, int], Any]:
  """Returns (function, static argument) of a kind of block, and its weights."""
  if isinstance(block, blocks.PastYBlock):
    return (_past_y, block.terms), (block.far, block.near, block.noise_scale)
  if isinstance(block, blocks.PastZBlock):
    return (_past_z, 0), (block.far, block.near, block.errors)
  assert isinstance(block, blocks.BufferBlock)
  _, *steps = map(np.stack, zip(*block.steps))
  return (_buffers, block.is_exact), (block.noise_scale, *steps)


@functools.partial(jax.jit, donate_argnums=0, static_argnums=(5, 6))
def _advanced(memory, z, weights, bounds, row, program, few):
  """Returns the `_Result` of a block.

  Args:
    memory: [memory rows, count], before the block.
    z: [earlier + m, count] float64, noise_scale * Z.
    weights: weights of the block; `_program` returns them.
    bounds: `blocks.Chunk.bounds` before the block.
    row: row of a window's ring that the block writes first.
    program: result of `_program`. Its function takes the arguments above and
      the static argument. It returns memory and bounds after the block, y
      ([m, count] float64), bounds of |y| ([m]) and doubt ([m, count] bool).
    few: number of columns in doubt that the result has room for.
  """
  compute, static = program
  after, bounds, y, largest, doubt = compute(
    memory, z, weights, bounds, row, static
  )
  count = y.shape[1]
  few = min(few, count)
  in_doubt = doubt.any(0)
  # `jnp.nonzero` is slow on a GPU, where it adds up the columns one by one.
  ranks = jnp.cumsum(in_doubt, dtype=np.int32)
  number = ranks[-1]
  columns = jnp.searchsorted(ranks, jnp.arange(1, few + 1, dtype=np.int32))
  picked = jnp.minimum(columns, count - 1)
  return _Result(
    jax.lax.cond(number <= few, lambda: after, lambda: memory),
    # A ring of past y holds y.
    None if compute is _past_y and len(memory) else y.astype(np.int32),
    bounds,
    jnp.max(largest),
    number,
    columns,
    y[:, picked],
    memory[:, picked],
  )


def _past_y(memory, z, weights, bounds, row, terms):
  """Computes a `blocks.PastYBlock`; `weights` is (far, near, noise_scale)."""
  far, near, noise_scale = weights
  rounds = len(z)
  mean = _product(far, memory)
  sizes = _product(jnp.abs(far), bounds[:, None])[:, 0]
  # Pad to whole groups of rounds; the added rounds have y = 0.
  together = min(_TOGETHER, rounds)
  more = -rounds % together
  mean, z, near = (
    jnp.pad(rows, ((0, more), (0, 0))) for rows in (mean, z, near)
  )
  near = jnp.pad(near, ((0, 0), (0, more)))
  sizes, noise_scale = (jnp.pad(row, (0, more)) for row in (sizes, noise_scale))

  def make_group(g, carried):
    y, largest, doubt = carried
    start = g * together

    def group(rows, axis=0):
      return jax.lax.dynamic_slice_in_dim(rows, start, together, axis)

    # Rounds of this group and of later groups are still zero in `y` and
    # `largest`, so they add nothing.
    means = group(mean) + _product(group(near), y)
    totals = (
      group(sizes) + _product(jnp.abs(group(near)), largest[:, None])[:, 0]
    )
    own, noise, scales = group(group(near), 1), group(z), group(noise_scale)
    new: list[tuple[jax.Array, jax.Array, jax.Array]] = []
    for r in range(together):
      v, total = noise[r] + means[r], totals[r]
      for s in range(r):
        # PRIVACY: The host computes y from the rounded y of earlier rounds. If
        # a device used other values, its y would differ.
        # Guard: jax_devices_test.test_devices_make_the_noise_of_the_host.
        v += own[r, s] * new[s][0]
        total += jnp.abs(own[r, s]) * new[s][1]
      # PRIVACY: Released sums contain the rounded y. If later rounds were
      # computed from y before rounding, the noise would not be C^-1 z, and
      # epsilon would not hold. They are computed from the rounded y.
      # Guard: jax_devices_test.test_devices_make_the_noise_of_the_host.
      new.append(_rounded(v, blocks.past_y_error(scales[r], total, terms)))
    return tuple(
      jax.lax.dynamic_update_slice_in_dim(rows, jnp.stack(values), start, 0)
      for rows, values in zip(carried, zip(*new))
    )

  empty = jnp.zeros_like(z)
  carried = empty, jnp.zeros(len(z)), empty.astype(bool)
  carried = jax.lax.fori_loop(0, len(z) // together, make_group, carried)
  y, largest, doubt = (rows[:rounds] for rows in carried)
  if len(memory):
    memory = jax.lax.dynamic_update_slice(memory, y.astype(np.int32), (row, 0))
    bounds = jax.lax.dynamic_update_slice(bounds, largest, (row,))
  return memory, bounds, y, largest, doubt


def _past_z(memory, z, weights, bounds, row, _):
  """Computes a `blocks.PastZBlock`; `weights` is (far, near, errors)."""
  far, near, errors_ = weights
  v = _product(near, z)
  if len(memory):
    v += _product(far, memory)
    memory = jax.lax.dynamic_update_slice(memory, z, (row, 0))
  rows = [_rounded(v[r], errors_[r]) for r in range(len(v))]
  return memory, bounds, *map(jnp.stack, zip(*rows))


def _buffers(memory, z, weights, bounds, _, is_exact):
  """Computes a `blocks.BufferBlock`.

  Args:
    memory: [buffers, count] float64.
    z: [m, count] float64, noise_scale * Z.
    weights: noise_scale, [m] float64; weights of the buffers in the mean, [m,
      buffers]; weights of the buffers in the buffers of the next round, [m,
      buffers, buffers]; and weights of y in these, [m, buffers].
    bounds: [buffers] float64, bounds of the errors of the buffers.
    is_exact: whether the buffers hold integers.
  """
  noise_scale, readout, update, gain = weights
  rows = []
  sizes = list(jnp.max(jnp.abs(memory), axis=1))
  errors_: Sequence[Any] = list(bounds)
  most = jnp.zeros(())
  for r in range(len(z)):
    reads, mixes, gains = (list(jnp.abs(w[r])) for w in (readout, update, gain))
    pairs = [list(enumerate(row)) for row in mixes]
    weights = blocks.Weights(reads, pairs, gains)
    v = z[r] + _product(readout[r : r + 1], memory)[0]
    error = blocks.buffer_error(noise_scale[r], weights, sizes, errors_)
    rows.append(_rounded(v, error))
    y, largest, _ = rows[-1]
    memory = _product(update[r], memory) + gain[r][:, None] * y
    sizes, errors_ = blocks.buffer_bounds(
      weights, sizes, errors_, largest, is_exact
    )
    most = jnp.max(jnp.stack([most, *sizes]))
  y, largest, doubt = map(jnp.stack, zip(*rows))
  if is_exact:
    largest = jnp.where(most < blocks.EXACT, largest, jnp.inf)
  bounds = jnp.stack(errors_) if errors_ else bounds
  return memory, bounds, y, largest, doubt


@jax.jit
def _pick(rows, r):
  return rows[r]


def _rounded(v, error):
  """Returns (y, bound of |y|, doubt) of a row of V.

  Args:
    v: [count] float64.
    error: e without `blocks.error_of_y`.
  """
  y = jnp.rint(v)
  largest = jnp.max(jnp.where(jnp.isnan(y), 0.0, jnp.abs(y))) + 1
  # PRIVACY: If y were not the rounding of the ideal mechanism's v, releases
  # would not be a function of that mechanism, and epsilon would not hold. The
  # host decides the coordinates whose rounding the error of v could change. NaN
  # is in doubt.
  # Guard: exact_noise_test.test_noise_is_the_rounding_of_the_ideal.
  sure = jnp.abs(v - y) < 0.5 - error - blocks.error_of_y(largest)
  return y, largest, ~sure


def _product(weights: jax.Array, rows: jax.Array) -> jax.Array:
  """Returns weights @ rows in float64."""
  # PRIVACY: If JAX chose a faster and less precise product, such as
  # TensorFloat-32, errors would exceed the bounds that show which roundings are
  # in doubt, and epsilon would not hold. `precision` asks for the most precise
  # product.
  # Guard: jax_devices_test.test_devices_multiply_in_float64.
  return jnp.matmul(
    weights, rows.astype(np.float64), precision=jax.lax.Precision.HIGHEST
  )


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

  Products and normals must be within the bounds that `blocks` assumes, and NaN
  must be in doubt.

  Raises:
    RuntimeError: the device is less exact than the guarantee assumes.
  """
  random = np.random.default_rng(0)
  rows = random.integers(-(2**31), 2**31, (96, 512), np.int32)
  weights = random.uniform(-1, 1, (24, 96))
  with jax_generator.precise(), jax.default_device(device):
    product = np.asarray(jax.jit(_product)(weights, rows))
    *_, doubt = jax.jit(_rounded)(np.array([np.nan, 0.25]), 0.0)
  # The host's product has 64 bits of mantissa, so its own errors are
  # negligible.
  expected = weights.astype(np.longdouble) @ rows.astype(np.longdouble)
  sizes = np.abs(weights) @ np.abs(rows.astype(float))
  allowed = (len(rows) + 1) * recursion_lib.UNIT * sizes
  # PRIVACY: If a library computes float64 products from numbers with fewer
  # bits, or in a way without the classical bound, wrong roundings are not
  # noticed, and epsilon does not hold. The same happens if a compiler assumes
  # that no number is NaN. A device that computes inexact products or normals,
  # or for which NaN is not in doubt, is refused.
  # Guard: jax_devices_test.test_device_that_is_not_exact_is_refused.
  if not (
    np.all(np.abs(product - expected) <= allowed)
    and doubt.tolist() == [True, False]
    and jax_generator.is_exact(device)
  ):
    raise RuntimeError(
      errors.invalid(
        f'device={device}: does not compute the noise as exactly as the '
        'guarantee assumes; use another device or JAX, or backend=numpy'
      )
    )


def known(names: Sequence[str]) -> tuple[jax.Device, ...]:
  """Returns devices of one kind, for which chunks have one size.

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
        f'devices={name}: is not a device of JAX; use {" ".join(by_name)}'
      )
  chosen = tuple(by_name[name] for name in names or by_name)
  kinds = {each.device_kind for each in chosen}
  # PRIVACY: Devices of two kinds round differently, and the size of chunks
  # suits one kind. Devices of several kinds are refused.
  # Guard: jax_devices_test.test_devices_of_two_kinds_are_refused.
  if len(kinds) > 1:
    raise errors.value_error(
      f'devices={" ".join(names or by_name)}: have several kinds; use one kind'
    )
  return chosen
