"""Standard normals from a key as JAX operations, for noise from accelerators.

The words have the same bits as the words of `generator.Generator`, and
`generator` defines V, z and the words. The formula for Phi^-1, the inverse of
the normal CDF, is not SciPy's, so the normals can differ from the generator's
in their last bits; `generator.ERROR` bounds the errors of both. A group is
eight coordinates that share a block of ChaCha20.

`words` and `normals`, and `inverse` with `jax.numpy`, compute in 64 bits. They
must run in the context `precise()`.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Sequence
from typing import Any

import jax
import jax.experimental
import jax.numpy as jnp
import numpy as np

from tff_bandmf.noise import generator as generator_lib
from tff_bandmf.noise import key as key_lib

# Array or number, of JAX or NumPy.
Array = Any
_Polynomials = tuple[Sequence[float], Sequence[float]]

# Indices of the words of each column and then of each diagonal [RFC 8439, 2.3].
_QUARTERS = (
  *((i, i + 4, i + 8, i + 12) for i in range(4)),
  *((i, 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4) for i in range(4)),
)

# Wichura's PPND16 [AS 241, 1988] approximates Phi^-1 by one rational function
# for |u - 1/2| <= 0.425, one for r = sqrt(-log u) <= 5 and one for r > 5. The
# tuples have coefficients of numerator and denominator, highest power first.
_CENTRE = (
  (
    2.5090809287301226727e3,
    3.3430575583588128105e4,
    6.7265770927008700853e4,
    4.5921953931549871457e4,
    1.3731693765509461125e4,
    1.9715909503065514427e3,
    1.3314166789178437745e2,
    3.3871328727963666080e0,
  ),
  (
    5.2264952788528545610e3,
    2.8729085735721942674e4,
    3.9307895800092710610e4,
    2.1213794301586595867e4,
    5.3941960214247511077e3,
    6.8718700749205790830e2,
    4.2313330701600911252e1,
    1.0,
  ),
)
_MIDDLE = (
  (
    7.74545014278341407640e-4,
    2.27238449892691845833e-2,
    2.41780725177450611770e-1,
    1.27045825245236838258e0,
    3.64784832476320460504e0,
    5.76949722146069140550e0,
    4.63033784615654529590e0,
    1.42343711074968357734e0,
  ),
  (
    1.05075007164441684324e-9,
    5.47593808499534494600e-4,
    1.51986665636164571966e-2,
    1.48103976427480074590e-1,
    6.89767334985100004550e-1,
    1.67638483018380384940e0,
    2.05319162663775882187e0,
    1.0,
  ),
)
_TAIL = (
  (
    2.01033439929228813265e-7,
    2.71155556874348757815e-5,
    1.24266094738807843860e-3,
    2.65321895265761230930e-2,
    2.96560571828504891230e-1,
    1.78482653991729133580e0,
    5.46378491116411436990e0,
    6.65790464350110377720e0,
  ),
  (
    2.04426310338993978564e-15,
    1.42151175831644588870e-7,
    1.84631831751005468180e-5,
    7.86869131145613259100e-4,
    1.48753612908506148525e-2,
    1.36929880922735805310e-1,
    5.99832206555887937690e-1,
    1.0,
  ),
)
# Relative error of the approximation, without rounding, in units of 2^-53.
_FORMULA_ERROR = 1.7
# A public key for tests of devices. In row 171, coordinate 34,860 needs a
# second word.
_KNOWN = key_lib.Key(bytes(range(32)))
_KNOWN_ROW, _KNOWN_GROUP, _KNOWN_SHAPE = 170, 4352, (2, 4096)


def precise() -> contextlib.AbstractContextManager:
  """Returns a context in which JAX computes in 64 bits in this thread."""
  # Newer releases of JAX have `enable_x64` at the top level.
  if hasattr(jax, 'enable_x64'):
    return jax.enable_x64(True)
  return jax.experimental.enable_x64()


def key_words(key: key_lib.Key) -> np.ndarray:
  """Returns the words of a key for ChaCha20, [8] uint32; secret."""
  return np.frombuffer(key.secret, '<u4')


def words(key: Array, rows: Array, groups: Array, streams: Array) -> jax.Array:
  """Returns words of ChaCha20, [r, g, 8] uint64.

  Args:
    key: [8] uint32; secret.
    rows: [r] int64, indices of rows of z.
    groups: [g] int64, indices of groups; coordinate i is in group i // 8.
    streams: [r], `generator.WORDS` (first words) or `EXTENSIONS` (second words)
      for each row.
  """
  shape = (len(rows), len(groups))
  group_low, group_high = _halves(groups[None, :])
  row_low, _ = _halves(rows[:, None])
  # PRIVACY: Two z from one word would be equal, and an attacker could combine
  # releases so that the noise cancels. The nonce has separate bits for the
  # row, the group of coordinates and the stream, so two z never share a word.
  # Guard: jax_generator_test.test_words_are_those_of_numpy_to_the_bit.
  stream_bits = streams[:, None].astype(np.uint32) << 31
  nonce = group_low, group_high, row_low, stream_bits
  start = tuple(
    jnp.broadcast_to(word, shape)
    for word in (*map(np.uint32, generator_lib.CONSTANTS), *key, *nonce)
  )

  def double_round(_, state):
    state = list(state)
    for quarter in _QUARTERS:
      mixed = generator_lib.quarter_round(
        _rotated, *(state[i] for i in quarter)
      )
      for i, word in zip(quarter, mixed):
        state[i] = word
    return tuple(state)

  state = jax.lax.fori_loop(0, generator_lib.DOUBLE_ROUNDS, double_round, start)
  halves = [(a + b).astype(np.uint64) for a, b in zip(state, start)]
  return jnp.stack(
    [low | high << 32 for low, high in zip(halves[::2], halves[1::2])], -1
  )


def normals(
  key: Array, first_row: Array, first_group: Array, shape: tuple[int, int]
) -> jax.Array:
  """Returns z of consecutive rows and coordinates, standard normals.

  Args:
    key: [8] uint32; secret.
    first_row: scalar int64, index of the first row.
    first_group: scalar int64, index of the first group.
    shape: (rows, coordinates), static; the number of coordinates is a multiple
      of 8.

  Returns:
    [rows, coordinates] float64.
  """
  rows = first_row + jnp.arange(shape[0])
  groups = first_group + jnp.arange(shape[1] // generator_lib.GROUP)
  word = words(key, rows, groups, jnp.full(len(rows), generator_lib.WORDS))
  u = (_magnitude(word) + 0.5) * 2.0**-64
  z = _signed(word, inverse(u, jnp, (_CENTRE, _MIDDLE))).reshape(shape)
  # With a small first word, one word leaves too large an error of z. No bound
  # of the error holds for k = 0, so it gives NaN.
  rare = (word >> 1 < generator_lib.EXTENDED_BELOW).any(-1)

  # One group in 2 million needs second words. The loop computes them for one
  # group at a time.
  def extend(state):
    z, rare = state
    row, group = jnp.divmod(jnp.argmax(rare), len(groups))
    word, extension = words(
      key,
      jnp.repeat(rows[row], 2),
      groups[group][None],
      jnp.array([generator_lib.WORDS, generator_lib.EXTENSIONS]),
    )
    more = jnp.where(
      word >> 1 < generator_lib.EXTENDED_BELOW,
      (extension.astype(np.float64) + 0.5) * 2.0**-64,
      0.5,
    )
    u = (_magnitude(word) + more) * 2.0**-64
    u = jnp.where(word >> 1 == 0, jnp.nan, u)
    z = jax.lax.dynamic_update_slice(
      z,
      _signed(word, inverse(u, jnp)),
      (row, generator_lib.GROUP * group),
    )
    return z, rare.at[row, group].set(False)

  return jax.lax.while_loop(lambda state: state[1].any(), extend, (z, rare))[0]


def inverse(
  u: Array,
  lib: types.ModuleType,
  parts: Sequence[_Polynomials] = (_CENTRE, _MIDDLE, _TAIL),
) -> Array:
  """Returns Phi^-1(u) for u in (0, 1/2].

  Args:
    u: float array in (0, 1/2].
    lib: `jax.numpy` or `numpy`.
    parts: coefficients of the rational functions for the centre, the middle and
      the tail. Without the tail, u must be at least 2^-36.
  """
  # JAX's own inverse errs by 2^-33 at -6 and by more beyond, so this function
  # uses another formula.
  q = u - 0.5
  centre = q * _ratio(parts[0], 0.180625 - q * q)
  r = lib.sqrt(-lib.log(u))
  tail = _ratio(parts[1], r - 1.6)
  if parts[2:]:
    tail = lib.where(r <= 5, tail, _ratio(parts[2], r - 5.0))
  return lib.where(q >= -0.425, centre, -tail)


def is_exact(device: jax.Device) -> bool:
  """Returns whether a device of JAX is as exact as the guarantee assumes.

  The test lets the device compute normals of a public key, and Phi^-1 at fixed
  u.
  """
  u = np.concatenate(
    [2.0 ** -np.linspace(1.0, 129.0, 4001), np.linspace(0.05, 0.5, 4001)]
  )
  with precise(), jax.default_device(device):
    inverted = np.asarray(jax.jit(lambda u: inverse(u, jnp))(u))
    values = np.asarray(
      jax.jit(normals, static_argnums=3)(
        key_words(_KNOWN),
        np.int64(_KNOWN_ROW),
        np.int64(_KNOWN_GROUP),
        _KNOWN_SHAPE,
      )
    )
  # A long double has 64 bits of mantissa instead of 53, so the rounding errors
  # of `expected` are small.
  expected = inverse(u.astype(np.longdouble), np)
  formula = _FORMULA_ERROR * 2.0**-53 * np.abs(inverted)
  error = np.abs(inverted - expected) + formula
  on_host = generator_lib.Generator(_KNOWN).rows(
    _KNOWN_ROW,
    _KNOWN_SHAPE[0],
    generator_lib.GROUP * _KNOWN_GROUP,
    _KNOWN_SHAPE[1],
  )
  # PRIVACY: If a driver or a compiler reduces precision, errors can exceed the
  # bound by which roundings in doubt are found, and epsilon could be too small.
  # In this case the result is False, and the caller refuses the device.
  # Guards: jax_generator_test.test_device_that_rounds_coarsely_is_not_exact,
  # test_device_with_other_words_is_not_exact.
  return bool(
    np.all(error <= _error(inverted))
    and np.all(np.abs(values - on_host) <= _error(on_host) * 2)
  )


def _error(z: np.ndarray) -> np.ndarray:
  """Returns the bound of the error of `inverse` that a device has to keep.

  The formula errs by 2^-50.3 of |z| on CPUs. Words that are not read take at
  most 3/4 of `generator.ERROR`, so that errors could be 2 times this bound.
  """
  return 2.0**-48 * np.maximum(1.0, np.abs(z))


def _magnitude(word: jax.Array) -> jax.Array:
  return (word >> 1).astype(np.float64)


def _signed(word: jax.Array, z: jax.Array) -> jax.Array:
  return jnp.where(word & 1 == 1, -z, z)


def _ratio(part: _Polynomials, x: Array) -> Array:
  values = []
  for coefficients in part:
    value = coefficients[0]
    for coefficient in coefficients[1:]:
      value = value * x + coefficient
    values.append(value)
  return values[0] / values[1]


def _halves(values: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Returns the low and the high 32 bits of int64 values, uint32."""
  bits = values.astype(np.uint64)
  return bits.astype(np.uint32), (bits >> 32).astype(np.uint32)


def _rotated(word: jax.Array, bits: int) -> jax.Array:
  return word << np.uint32(bits) | word >> np.uint32(32 - bits)
