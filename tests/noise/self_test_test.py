"""Tests of the test that noise is put to where it is added."""

import math
import types

import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

from tff_bandmf.accounting.methods import stop_probability as stops
from tff_bandmf.noise import self_test

_Z_STEPS = 1000.0
_ROUNDS = 2000
_ROW_NORM = 1.5


def _noise(dimension, sigma, seed=0):
  random = np.random.default_rng(seed)
  return np.rint(random.normal(0.0, sigma, dimension)).astype(np.int32)


def _check(y, z_steps=_Z_STEPS, row_norm=_ROW_NORM):
  y = np.asarray(y, np.int32)
  recursion = types.SimpleNamespace(
    rounds=_ROUNDS, row_norms=np.full(_ROUNDS, row_norm), scales=np.ones(1)
  )
  tape = types.SimpleNamespace(
    recursion=recursion, z_steps=z_steps, dimension=len(y)
  )
  refusal = None
  try:
    self_test.check([y[:1], y[1:]], tape, 7)
  except ValueError as error:
    refusal = error
  try:
    checked = self_test.graph_check(
      tf.constant(y), tape, tf.constant(7, tf.int64)
    )
  except tf.errors.InvalidArgumentError:
    # In NumPy too.
    assert 'deviation does not fit' in str(refusal)
    raise
  assert refusal is None
  return checked.numpy()


def _refused():
  return pytest.raises(
    tf.errors.InvalidArgumentError, match='deviation does not fit'
  )


@pytest.mark.parametrize('dimension', [1, 2, 10, 1000, 100_000])
@pytest.mark.parametrize('z_steps', [0.01, 1.0, 30.0, 2.0**17])
def test_noise_of_the_strategy_passes_unchanged(dimension, z_steps):
  for seed in range(5):
    y = _noise(dimension, z_steps * _ROW_NORM, seed)
    assert np.array_equal(_check(y, z_steps), y)


@pytest.mark.parametrize('factor', [0.0, 0.9, 0.98, 1.02, 1.1, 1000.0])
def test_noise_of_another_deviation_is_refused(factor):
  y = _noise(1_000_000, factor * _Z_STEPS * _ROW_NORM)
  with _refused() as error:
    _check(y)
  # Only the verdict leaves.
  rms = math.sqrt(np.mean(np.square(y.astype(np.float64))))
  for secret in (rms, np.max(y), np.sum(np.square(y.astype(np.int64)))):
    assert factor == 0.0 or f'{secret:.8g}'[:5] not in str(error.value)


def test_noise_that_is_missing_is_refused_in_few_coordinates():
  for dimension in (30, 100, 1000):
    with _refused():
      _check(np.zeros(dimension))


def test_noise_of_which_a_part_is_missing_is_refused():
  y = _noise(1_000_000, _Z_STEPS * _ROW_NORM)
  y[: 1 << 16] = 0
  with _refused():
    _check(y)


def test_largest_noise_does_not_overflow():
  with _refused():
    _check(np.full(1000, -(2**31)))


@pytest.mark.parametrize(
  'dimension', [1, 2, 7, 100, 10**4, 10**6, 4_050_000, 10**9]
)
@pytest.mark.parametrize('rounds', [1, 2000, 10**6])
def test_interval_holds_at_its_rate_and_is_hardly_wider(dimension, rounds):
  low, high = self_test.interval(dimension, rounds)
  side = stops.SELF_TEST / rounds / 2
  # More is outside the exact quantiles than outside these.
  exact_low = stats.chi2.ppf(side, dimension) / dimension
  exact_high = stats.chi2.isf(side, dimension) / dimension
  assert 0 <= low <= exact_low * (1 + 1e-12) < 1 < exact_high <= high
  assert high - 1 < 1.15 * (exact_high - 1)
  if dimension >= 100:
    assert 1 - low < 1.05 * (1 - exact_low)
