"""Standard normals from a key as JAX operations, for noise from accelerators.

`generator` defines z, k and the words of z. This module computes z from its
first word alone, the word of stream 0. The word has the same bits in both
modules, but the last bits of z can differ, since the formula for Phi^-1, the
inverse of the normal CDF, is not SciPy's. `generator.ERROR` bounds the error of
z with both formulas. If k is so small that one word is not enough for this
bound, z is NaN, and the host computes the noise that depends on this z. A group
is eight coordinates that share a block of ChaCha20.

`words` and `normals`, and `inverse` with `jax.numpy`, compute in 64 bits. They
must run in the context `precise()`.
"""

from __future__ import annotations

import contextlib
import functools
import types
from typing import Any

import jax
import jax.experimental
import jax.numpy as jnp
import numpy as np

from tff_bandmf.noise import generator as generator_lib
from tff_bandmf.noise import key as key_lib

# Array or number, of JAX or NumPy.
Array = Any

# ChaCha20's constant words, 'expand 32-byte k', and its number of double
# rounds. A double round has quarter rounds of all columns, then of all
# diagonals [RFC 8439, 2.3].
_CONSTANTS = (0x61707865, 0x3320646E, 0x79622D32, 0x6B206574)
_DOUBLE_ROUNDS = 10
# Indices of the words of each column and then of each diagonal [RFC 8439, 2.3].
_QUARTERS = (
  *((i, i + 4, i + 8, i + 12) for i in range(4)),
  *((i, 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4) for i in range(4)),
)

# Wichura's PPND16 [AS 241, 1988] approximates Phi^-1 by one rational function
# for |u - 1/2| <= 0.425, and by another for r = sqrt(-log u) <= 5. The table
# has the coefficients of the numerator and of the denominator of each function,
# highest power first.
_PARTS = np.array(
  """
  2509.0809287301227 33430.57558358813 67265.7709270087 45921.95393154987
  13731.69376550946 1971.5909503065513 133.14166789178438 3.3871328727963665
  5226.495278852854 28729.085735721943 39307.89580009271 21213.794301586597
  5394.196021424751 687.1870074920579 42.31333070160091 1.0
  0.0007745450142783414 0.022723844989269184 0.2417807251774506
  1.2704582524523684 3.6478483247632045 5.769497221460691 4.630337846156546
  1.4234371107496835
  1.0507500716444169e-09 0.0005475938084995345 0.015198666563616457
  0.14810397642748008 0.6897673349851 1.6763848301838038 2.053191626637759 1.0
  """.split(),
  float,
).reshape(2, 2, 8)
# Relative error of the approximation, without rounding errors, in units of
# 2^-53.
_FORMULA_ERROR = 1.7
# A public key for tests of devices, and the first row, the first group and the
# shape of the z that they compute. In row 171, z of coordinate 34,860 is NaN.
_KNOWN = key_lib.Key(bytes(range(32)))
_ROW, _GROUP, _SHAPE = 170, 4352, (2, 4096)


def precise() -> contextlib.AbstractContextManager:
  """Returns a context in which JAX computes in 64 bits in this thread."""
  # Newer releases of JAX have `enable_x64` at the top level.
  if hasattr(jax, 'enable_x64'):
    return jax.enable_x64(True)
  return jax.experimental.enable_x64()


def key_words(key: key_lib.Key) -> np.ndarray:
  """Returns the words of a key for ChaCha20, [8] uint32; secret."""
  return np.frombuffer(key.secret, '<u4')


def words(key: Array, rows: Array, groups: Array) -> jax.Array:
  """Returns first words of z, [r, g, 8] uint64.

  Args:
    key: [8] uint32; secret.
    rows: [r] int64, indices of rows of z.
    groups: [g] int64, indices of groups; coordinate i is in group i // 8.
  """
  shape = (len(rows), len(groups))
  group, row = groups[None, :].astype(np.uint64), rows[:, None]
  # PRIVACY: Two z from one word would be equal, and an attacker could combine
  # releases so that the noise cancels. The nonce has separate bits for the
  # row, the group and the stream, so two z never share a word.
  # Guard: jax_generator_test.test_words_are_those_of_numpy_to_the_bit.
  nonce = group, group >> 32, row, np.uint32(generator_lib.WORDS)
  start = tuple(
    jnp.broadcast_to(word.astype(np.uint32), shape)
    for word in (*map(np.uint32, _CONSTANTS), *key, *nonce)
  )

  def double_round(_, state):
    x = list(state)
    for a, b, c, d in _QUARTERS:
      # The quarter round [RFC 8439, 2.1].
      for (i, j, k), bits in zip(2 * ((a, b, d), (c, d, b)), (16, 12, 8, 7)):
        x[i] += x[j]
        x[k] = _rotated(x[k] ^ x[i], bits)
    return tuple(x)

  state = jax.lax.fori_loop(0, _DOUBLE_ROUNDS, double_round, start)
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
    [rows, coordinates] float64; NaN where k < `generator.EXTENDED_BELOW`.
  """
  rows = first_row + jnp.arange(shape[0])
  groups = first_group + jnp.arange(shape[1] // generator_lib.GROUP)
  word = words(key, rows, groups)
  magnitude = word >> 1
  z = inverse((magnitude.astype(np.float64) + 0.5) * 2.0**-64, jnp)
  z = jnp.where(word & 1 == 1, -z, z)
  # PRIVACY: If a first word is small, the unread words can change z by more
  # than the bound of its error, and a wrong rounding would not be noticed. z is
  # NaN for such words, so the host decides all roundings that use this z.
  # Guard: jax_generator_test.test_normals_of_small_words_are_no_numbers.
  is_small = magnitude < generator_lib.EXTENDED_BELOW
  return jnp.where(is_small, jnp.nan, z).reshape(shape)


# PRIVACY: The noise y is the rounding of a number that is computed from z. If
# the error of z exceeded its bound, y could differ from the ideal mechanism's
# y. This formula keeps the error below the bound.
# Guard: jax_generator_test.test_inverse_of_the_cdf_errs_less.
def inverse(u: Array, lib: types.ModuleType) -> Array:
  """Returns Phi^-1(u) for u in [2^-36, 1/2].

  Args:
    u: float array.
    lib: `jax.numpy` or `numpy`.
  """
  # JAX's own inverse has an error of 2^-33 at z = -6, and larger errors further
  # out.
  q = u - 0.5
  centre = q * _ratio(_PARTS[0], 0.180625 - q * q)
  r = lib.sqrt(-lib.log(u))
  return lib.where(q >= -0.425, centre, -_ratio(_PARTS[1], r - 1.6))


def is_exact(device: jax.Device) -> bool:
  """Returns whether a device of JAX is as exact as the guarantee assumes.

  The test lets the device compute normals of a public key, and Phi^-1 at fixed
  u.
  """
  u = np.concatenate(
    [2.0 ** -np.linspace(1.0, 25.0, 4001), np.linspace(0.05, 0.5, 4001)]
  )
  with precise(), jax.default_device(device):
    inverted = np.asarray(jax.jit(lambda u: inverse(u, jnp))(u))
    on_device = jax.jit(normals, static_argnums=3)
    values = np.asarray(on_device(key_words(_KNOWN), _ROW, _GROUP, _SHAPE))
  # A long double has 64 bits of mantissa instead of 53, so the rounding errors
  # of `expected` are small.
  expected = inverse(u.astype(np.longdouble), np)
  formula = _FORMULA_ERROR * 2.0**-53 * np.abs(inverted)
  error = np.abs(inverted - expected) + formula
  on_host = np.empty(_SHAPE)
  start = generator_lib.GROUP * _GROUP
  generator_lib.Generator(_KNOWN).fill(on_host, _ROW, start)
  # PRIVACY: If a driver or a compiler reduces precision, errors can exceed
  # their bound, a wrong rounding would not be noticed, and epsilon could be too
  # small. In this case the result is False, and the caller refuses the device.
  # Guards: jax_generator_test.test_device_that_rounds_coarsely_is_not_exact,
  # test_device_with_other_words_is_not_exact.
  return bool(
    np.all(error <= _error(inverted))
    and not np.any(np.abs(values - on_host) > _error(on_host) * 2)
  )


def _error(z: np.ndarray) -> np.ndarray:
  """Returns the bound of the error of `inverse` that a device has to keep.

  The relative error of the formula on CPUs is 2^-50.3. The words that are not
  read contribute at most 3/4 of `generator.ERROR`. The other quarter would
  cover even twice the result of this function.
  """
  return 2.0**-48 * np.maximum(1.0, np.abs(z))


def _ratio(part: np.ndarray, x: Array) -> Array:
  """Returns the quotient of two polynomials, by Horner's rule."""
  numerator, denominator = (
    functools.reduce(lambda value, each: value * x + each, coefficients)
    for coefficients in part
  )
  return numerator / denominator


def _rotated(word: jax.Array, bits: int) -> jax.Array:
  return word << np.uint32(bits) | word >> np.uint32(32 - bits)
