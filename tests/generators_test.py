"""Tests of the generators of z. Keys are fixed: what passed once passes again.
"""

import numpy as np
import pytest
import scipy.special
import scipy.stats
import tensorflow as tf
from cryptography.hazmat.primitives import ciphers
from cryptography.hazmat.primitives.ciphers import algorithms, modes

from tff_bandmf import noise, strategies
from tff_bandmf.noise import generators, stream

_KEY = noise.Key.from_seed(1)
_NAMES = (noise.PHILOX, noise.AES_CTR)
# Of each test of a distribution, for a key drawn at random.
_FALSE_ALARM = 1e-9


def _rows(name, first, rows, start, count, key=_KEY):
  z = generators.of(name, key).rows(first, rows, start, count)
  assert z.dtype == tf.float32 and z.shape == (rows, count)
  return z.numpy()


@pytest.mark.parametrize('name', _NAMES)
def test_pieces_agree_with_the_whole(name):
  whole = _rows(name, 7, 5, 0, 1003)
  assert np.array_equal(_rows(name, 9, 2, 400, 603), whole[2:4, 400:])
  assert np.array_equal(_rows(name, 11, 1, 4, 7), whole[4:, 4:11])


def test_philox_is_the_normals_of_the_graphs():
  words = tf.constant(_KEY.words())
  for t in range(3):
    assert np.array_equal(
        _rows(noise.PHILOX, t, 1, 8, 50)[0],
        noise.standard_normal(words, tf.constant(t, tf.int64), 8, 50))


def test_aes_normals_are_those_of_its_blocks_one_by_one():
  aes = ciphers.Cipher(algorithms.AES(_KEY.secret), modes.ECB()).encryptor()
  for row, start in [(0, 0), (3, 8), (2**40, 2**33)]:
    words = np.frombuffer(
        b''.join(
            aes.update(row.to_bytes(8, 'big') + (c // 2).to_bytes(8, 'big'))
            for c in range(start, start + 12, 2)), '<u8')
    # Another inverse of the same CDF.
    tail = np.array([(int(w) // 2 + 0.5) * 2.0**-64 for w in words])
    magnitude = np.sqrt(2) * scipy.special.erfcinv(2 * tail)
    expected = np.where(words % 2, 1, -1) * magnitude
    np.testing.assert_allclose(
        _rows(noise.AES_CTR, row, 1, start, 12)[0], expected, rtol=1e-6)


def test_extreme_words_give_finite_normals_of_either_sign():
  words = np.array([0, 1, 2**64 - 2, 2**64 - 1], np.uint64)
  z = generators._normals(words)
  assert -9.2 < z[0] == -z[1] < -9.1
  assert np.all(np.abs(z[2:]) < 1e-15)


@pytest.mark.parametrize('name', _NAMES)
def test_rows_and_coordinates_never_share_noise(name):
  rows = [0, 1, 2, 255, 256, 2**31, 2**32, 2**40]
  draws = [
      _rows(name, row, 1, start, 4000)[0]
      for row in rows for start in (0, 4000, 2**32, 2**40)]
  draws += [_rows(name, 0, 1, 0, 4000, noise.Key.from_seed(2))[0]]
  steps = np.concatenate([draw.reshape(-1, 4) for draw in draws])
  assert len(np.unique(steps, axis=0)) == len(steps)


@pytest.mark.parametrize('name', _NAMES)
def test_start_off_the_grid_is_refused(name):
  with pytest.raises(ValueError, match='multiple of 4'):
    _rows(name, 0, 1, 2, 8)


def test_unknown_generator_is_refused():
  with pytest.raises(ValueError, match='generator=dice.*philox or aes-ctr'):
    generators.of('dice', _KEY)


def _p_values(z):
  """Returns p-values of 'z [rows, count] are independent normals'."""
  n = z.size
  flat = z.ravel().astype(np.float64)
  beyond = np.sum(np.abs(flat) > 4)
  rate = n * 2 * scipy.stats.norm.sf(4)
  moments = np.sqrt(n) * np.array([
      flat.mean(), (np.mean(flat**2) - 1) / np.sqrt(2),
      np.mean(flat**3) / np.sqrt(15),
      np.mean(flat[1:] * flat[:-1]),
      np.mean(flat**2 * np.roll(flat**2, 1) - 1) / np.sqrt(8),
      np.mean(z * np.roll(z, 1, axis=0))])
  return np.array([
      scipy.stats.kstest(flat, 'norm', method='asymp').pvalue,
      2 * min(scipy.stats.poisson.cdf(beyond, rate),
              scipy.stats.poisson.sf(beyond - 1, rate)),
      *2 * scipy.stats.norm.sf(np.abs(moments))])


@pytest.mark.parametrize('name', _NAMES)
def test_normals_are_normal_and_independent(name):
  """Kolmogorov-Smirnov, tails, moments and neighbours of 10^6 draws."""
  z = _rows(name, 0, 16, 0, 62_500)
  # Eight p-values share the rate.
  assert _p_values(z).min() > _FALSE_ALARM / 8


def test_wrong_distributions_would_be_seen():
  z = _rows(noise.AES_CTR, 0, 16, 0, 62_500)
  uniform = np.random.default_rng(0).uniform(-np.sqrt(3), np.sqrt(3), z.shape)
  for wrong in (
      1.02 * z, z / 1.02, z + 0.01, np.clip(z, -3.9, 3.9), uniform,
      np.repeat(z[:, ::2], 2, axis=1), np.repeat(z[::2], 2, axis=0),
      z + 0.01 * np.roll(z, 1, axis=1)):
    assert _p_values(wrong).min() < _FALSE_ALARM / 8


@pytest.mark.parametrize('family', ['banded', 'blt', 'inverse', 'tree'])
def test_secure_stream_is_that_of_the_matrix(monkeypatch, family):
  monkeypatch.setattr(stream, '_CHUNK', 8)
  strategy = {
      'banded': strategies.BandedToeplitz(40, [1.0, 0.5, 0.2]),
      'blt': strategies.Blt(40, [0.3, 0.2], [0.9, 0.4]),
      'inverse': strategies.BandedInverseSqrt(40, 4),
      'tree': strategies.OnlineTree(40)}[family]
  made = stream.Stream(
      noise.Plan.of(strategy), 21, _KEY, generator=noise.AES_CTR)
  y = np.stack([y.copy() for y in made.rows() if y is not None])
  if family == 'tree':
    decoder = np.diff(strategy.prefix_decoder(), axis=0, prepend=0.0)
    z = _rows(noise.AES_CTR, 0, decoder.shape[1], 0, 21)
    expected = decoder @ z.astype(np.float64)
  else:
    z = _rows(noise.AES_CTR, 0, 40, 0, 21)
    expected = np.linalg.solve(strategy.matrix(), z.astype(np.float64))
  np.testing.assert_allclose(y, expected, rtol=0, atol=1e-5)
