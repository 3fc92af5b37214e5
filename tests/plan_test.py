"""Tests of the recursion y = C^-1 z against dense algebra."""

import numpy as np
import pytest

from tff_bandmf import noise, strategies

_ROUNDS = 40


def _strategy(bands):
  coefficients = 0.9**np.arange(bands) / np.sqrt(1 + np.arange(bands))
  return strategies.BandedToeplitz(_ROUNDS, 2 * coefficients)


@pytest.mark.parametrize('bands', [1, 2, 3, 8, 17, 40])
@pytest.mark.parametrize('m', [1, 2, 3, 7, 16, 40])
def test_blocks_of_any_size_give_the_dense_noise(bands, m):
  strategy = _strategy(bands)
  plan = noise.ToeplitzPlan.of(strategy)
  z = np.random.default_rng(0).normal(size=(_ROUNDS + m, 5))
  scale, weights = plan.block(m)
  assert scale.shape == (m, m) and weights.shape == (m, bands - 1)
  assert scale.dtype == weights.dtype == np.float32
  y = np.zeros((0, 5))
  while len(y) < _ROUNDS:
    past = np.zeros((bands - 1, 5))
    latest_first = y[::-1][:bands - 1]
    past[:len(latest_first)] = latest_first
    y = np.concatenate([y, scale @ z[len(y):len(y) + m] - weights @ past])
  dense = np.linalg.solve(strategy.matrix(), z[:_ROUNDS])
  np.testing.assert_allclose(y[:_ROUNDS], dense, rtol=0, atol=3e-6)


def test_identity_passes_z_through():
  plan = noise.ToeplitzPlan.of(strategies.Identity(_ROUNDS))
  assert plan.memory == 0
  scale, weights = plan.block(3)
  assert np.array_equal(scale, np.eye(3)) and weights.shape == (3, 0)


def test_family_without_streaming_noise_is_refused():
  dense = strategies.Dense(np.tril(np.ones((3, 3))))
  with pytest.raises(TypeError, match='no streaming noise'):
    noise.ToeplitzPlan.of(dense)
