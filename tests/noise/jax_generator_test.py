"""Tests of the normals that JAX makes."""

import functools

import inverse_cdf
import numpy as np
import pytest

from tff_bandmf import noise
from tff_bandmf.noise import generator

jax = pytest.importorskip('jax')
jnp = jax.numpy
from tff_bandmf.noise import jax_generator  # noqa: E402

_KEY = noise.Key(bytes(range(32)))


@pytest.fixture(autouse=True)
def _precise():
  with jax_generator.precise():
    yield


@functools.partial(jax.jit, static_argnums=(0, 4))
def _traced(patched, key, row, group, shape):
  """Traces again for what was patched."""
  return jax_generator.normals(key, row, group, shape)


def _normals(row, group, shape, key=_KEY, patched=''):
  words = jax_generator.key_words(key)
  return np.asarray(
    _traced(patched, words, np.int64(row), np.int64(group), shape)
  )


_jitted_words = jax.jit(jax_generator.words)


def _words(row, groups, key=_KEY):
  words = jax_generator.key_words(key)
  return np.asarray(_jitted_words(words, np.array([row]), groups)).ravel()


@pytest.mark.slow
@pytest.mark.parametrize(
  'key, block, expected',
  [
    # 2.3.2, and test vectors 1 and 3 of A.1.
    (
      bytes(range(32)),
      '01000000000000090000004a00000000',
      '10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e'
      'd2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e',
    ),
    (bytes(32), '00' * 16, '76b8e0ada0f13d90405d6ae55386bd28'),
    (
      bytes(31) + b'\1',
      '01' + '00' * 15,
      '3aeb5224ecf849929b9d828db1ced4dd',
    ),
  ],
)
def test_words_are_those_of_published_blocks(key, block, expected):
  number = int.from_bytes(bytes.fromhex(block), 'little')
  group, row = number & (2**64 - 1), number >> 64
  words = _words(row, np.array([group]), noise.Key(key))
  assert words.tobytes().hex().startswith(expected)


@pytest.mark.slow
@pytest.mark.parametrize('row', [0, 5, 2**31 + 3, 2**32 - 1])
def test_words_are_those_of_numpy_to_the_bit(row):
  first = 2**35
  expected = generator.Generator(_KEY).words(row, 8 * first, 80)
  found = _words(row, first + np.arange(10))
  assert np.array_equal(found, expected)


@pytest.mark.slow
def test_normals_are_those_of_numpy():
  found = _normals(3, 5, (4, 24_000))
  expected = generator.Generator(_KEY).rows(3, 4, 40, 24_000)
  assert found.dtype == np.float64
  # Both inverses of the CDF are a few units from the truth.
  np.testing.assert_allclose(found, expected, rtol=2.5e-15, atol=1e-15)


def _points(count=1500):
  """Returns points of the inverse, as far as one word is enough."""
  u = inverse_cdf.points(count)
  return u[u >= 2.0**-25]


@pytest.mark.slow
def test_inverse_of_the_cdf_errs_less():
  u = _points()
  z = jax.jit(lambda u: jax_generator.inverse(u, jnp))(u)
  assert inverse_cdf.largest_error(u, np.asarray(z)) < 1


def test_inverse_of_the_cdf_never_turns():
  """Where its parts meet, and where floats are next to each other."""
  for border in (0.075, 2.0**-25, 0.3):
    u = border + np.spacing(border) * np.arange(-2000, 2000)
    z = np.asarray(jax_generator.inverse(u, jnp))
    assert np.diff(z).min() > -8 * np.spacing(np.abs(z).max())


def test_formula_errs_as_little_as_the_check_assumes():
  u = _points(400)
  z = jax_generator.inverse(u.astype(np.longdouble), np)
  assert inverse_cdf.largest_units(u, z) < jax_generator._FORMULA_ERROR


@pytest.mark.slow
def test_normals_of_small_words_are_no_numbers(monkeypatch):
  """A word in 2^24 is small; here one in eight."""
  monkeypatch.setattr(generator, 'EXTENDED_BELOW', 2**60)
  magnitudes = generator.Generator(_KEY).words(1, 8, 240) >> np.uint64(1)
  z = _normals(1, 1, (1, 240), patched='below')[0]
  assert np.array_equal(np.isnan(z), magnitudes < 2**60)
  assert 10 < np.isnan(z).sum() < 60


def test_64_bits_are_for_this_thread_and_no_longer():
  # Later releases of JAX have one function for both.
  if hasattr(jax, 'enable_x64'):
    without = jax.enable_x64(False)
  else:
    without = jax.experimental.disable_x64()
  with without:
    assert jnp.zeros(1, float).dtype == np.float32
    with jax_generator.precise():
      assert jnp.zeros(1, float).dtype == np.float64
    assert jnp.zeros(1, float).dtype == np.float32


def _known_normals():
  return generator.Generator(_KEY).rows(170, 2, 8 * 4352, 4096)


@pytest.mark.slow
def test_sound_device_is_exact():
  assert jax_generator.is_exact(jax.devices()[0])


@pytest.mark.parametrize('error', [2.0**-30, 2.0**-46])
def test_device_that_rounds_coarsely_is_not_exact(monkeypatch, error):
  log = jnp.log
  monkeypatch.setattr(jnp, 'log', lambda x: log(x) * (1 + error))
  # Beside it all is well.
  monkeypatch.setattr(
    jax_generator, 'normals', lambda *_: jnp.asarray(_known_normals())
  )
  assert not jax_generator.is_exact(jax.devices()[0])


def test_device_with_other_words_is_not_exact(monkeypatch):
  z = _known_normals()
  # The small word, as one word alone gives it, is no number.
  place = 1, 34860 - 8 * 4352
  assert abs(z[place]) > 5.4
  z[place] += 2.0**-44
  monkeypatch.setattr(jax_generator, 'normals', lambda *_: jnp.asarray(z))
  assert not jax_generator.is_exact(jax.devices()[0])
