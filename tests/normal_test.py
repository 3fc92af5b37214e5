"""Tests of z. Keys are fixed, so a test that passed once always passes."""

import numpy as np
import pytest
import tensorflow as tf

from tff_bandmf import noise

_WORDS = noise.Key.from_seed(1).words()
# Two-sided false-alarm rate 1e-9 for a key drawn at random.
_LIMIT = 6.11


def _z(round_index, start, count, words=_WORDS):
  return noise.standard_normal(
      tf.constant(words), tf.constant(round_index, tf.int64), start,
      count).numpy()


@pytest.mark.parametrize('count', [1, 3, 4, 5, 1000, 70_001])
def test_slices_agree_with_the_whole(count):
  whole = _z(7, 0, count)
  assert whole.shape == (count,) and whole.dtype == np.float32
  for cut in {0, 4, count // 2 // 4 * 4, count // 4 * 4}:
    assert np.array_equal(_z(7, 0, min(cut, count)), whole[:cut])
    if cut < count:
      assert np.array_equal(_z(7, cut, count - cut), whole[cut:])


def test_start_off_the_generator_grid_is_refused():
  with pytest.raises(ValueError, match='multiple of 4'):
    _z(0, 2, 8)


def test_rounds_and_keys_never_share_noise():
  other = _WORDS + np.array([1, 0])
  draws = [_z(t, 0, 4000) for t in (0, 1, 2, 255, 256, 2**31, 2**40)]
  draws += [_z(0, 0, 4000, other), _z(0, 0, 4000, -_WORDS)]
  # Four coordinates come from one step of the counter: no step is used twice.
  steps = np.concatenate([draw.reshape(-1, 4) for draw in draws])
  assert len(np.unique(steps, axis=0)) == len(steps)
  correlation = np.corrcoef(draws) * np.sqrt(4000)
  np.fill_diagonal(correlation, 0)
  assert np.abs(correlation).max() < _LIMIT


def test_counter_wraps_at_the_last_round_of_a_key():
  words = np.array([5, -1])
  assert np.array_equal(_z(1, 0, 8, words), _z(0, 0, 8, np.array([5, 0])))


def _moments(z):
  """Returns mean, variance, kurtosis, lag-one covariance, each ~ N(0, 1)."""
  z = z.astype(np.float64)
  n = z.size
  return np.array([
      z.mean() * np.sqrt(n),
      (z.var() - 1) * np.sqrt(n / 2),
      (np.mean((z - z.mean())**4) / z.var()**2 - 3) * np.sqrt(n / 24),
      np.mean(z[1:] * z[:-1]) * np.sqrt(n),
  ])


def test_moments_are_those_of_a_standard_normal():
  along = _z(3, 0, 2**20)
  across = np.concatenate([_z(t, 0, 1024) for t in range(1024)])
  assert np.abs(_moments(along)).max() < _LIMIT
  assert np.abs(_moments(across)).max() < _LIMIT


def test_moments_would_show_a_wrong_distribution():
  z = _z(3, 0, 2**20)
  rng = np.random.default_rng(0)
  assert np.abs(_moments(z * 1.02))[1] > _LIMIT
  assert np.abs(_moments(z + 0.01))[0] > _LIMIT
  assert np.abs(_moments(np.clip(z, -2.5, 2.5)))[2] > _LIMIT
  assert np.abs(_moments(rng.laplace(size=2**20) / np.sqrt(2)))[2] > _LIMIT
  assert np.abs(_moments(z + np.roll(z, 1) * 0.01))[3] > _LIMIT
