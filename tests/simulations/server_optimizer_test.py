"""Tests of the server's optimiser and its learning rate."""

import numpy as np
import pytest
import tensorflow as tf

import tff_bandmf
from simulations import config as config_lib
from simulations import server_optimizer
from tff_bandmf import clips, participation, strategies


def _training(**changes):
  return config_lib.Training(rounds=20, clients_per_round=2, **changes)


def _plan(noise_multiplier=0.0, l2_norm_clip=0.5):
  return tff_bandmf.Plan(
    rounds=20,
    clients_per_round=2,
    cohorts=participation.MinSep(4),
    delta=1e-5,
    l2_norm_clip=l2_norm_clip,
    noise_multiplier=noise_multiplier,
    mechanism=strategies.BandedToeplitz(20, [1, 0.5, 0.25]),
  )


def _rates(training):
  return [
    float(server_optimizer.learning_rate(training, tf.constant(t)))
    for t in range(training.rounds)
  ]


def test_learning_rate_is_constant_by_default():
  assert _rates(_training(server_learning_rate=0.5)) == [0.5] * 20


def test_learning_rate_is_that_of_the_workload():
  training = _training(
    server_learning_rate=2.0, server_warmup_rounds=4, server_cooldown_rounds=5
  )
  rates = _rates(training)
  np.testing.assert_allclose(rates[:5], [0.1, 0.575, 1.05, 1.525, 2.0])
  np.testing.assert_allclose(rates[4:15], 2.0)
  np.testing.assert_allclose(rates[15:], [1.62, 1.24, 0.86, 0.48, 0.1])
  workload = training.server_schedule
  assert (workload.momentum, workload.is_toeplitz) == (0.9, False)
  np.testing.assert_allclose(rates, 2 * workload.learning_rates(20), rtol=1e-6)


def test_schedule_of_fewer_rounds_than_it_has_is_cut():
  training = _training(server_warmup_rounds=15, server_cooldown_rounds=30)
  rates = _rates(training)
  assert rates[0] == rates[-1] == pytest.approx(0.05)
  assert max(rates) == rates[14] < 1


@pytest.mark.parametrize('name', config_lib.SERVER_OPTIMIZERS)
def test_optimizer_follows_the_schedule(name):
  training = _training(
    server_optimizer=name,
    server_learning_rate=0.3,
    server_warmup_rounds=4,
    server_cooldown_rounds=3,
    server_momentum=0.0,
  )
  optimizer = server_optimizer.build(training, _plan())
  weights, gradients = (tf.constant([1.0]),), (tf.constant([2.0]),)
  state = optimizer.initialize((tf.TensorSpec([1]),))
  steps = []
  for _ in range(training.rounds):
    state, after = optimizer.next(state, weights, gradients)
    steps.append(float(weights[0] - after[0]))
  if name == config_lib.SGD:
    np.testing.assert_allclose(
      steps, 2.0 * np.array(_rates(training)), rtol=1e-5
    )
  else:
    # Constant gradients: steps of an adaptive optimiser are about the rate.
    assert steps[1] < steps[3]
    assert steps[-1] < steps[-4]
    assert all(0 < step < 3 * 0.3 for step in steps)


@pytest.mark.parametrize('name', config_lib.SERVER_OPTIMIZERS)
def test_momentum_remembers(name):
  training = _training(server_optimizer=name, server_momentum=0.9)
  optimizer = server_optimizer.build(training, _plan())
  state = optimizer.initialize((tf.TensorSpec([1]),))
  weights = (tf.constant([1.0]),)
  state, weights = optimizer.next(state, weights, (tf.constant([1.0]),))
  _, after = optimizer.next(state, weights, (tf.constant([0.0]),))
  assert float(after[0]) < float(weights[0])


def test_noise_of_a_mean_has_the_variance_that_is_taken_out():
  plan = _plan(noise_multiplier=0.7)
  z_stddev = plan.guarantee.z_stddev_per_clip * 0.5
  inverse = np.linalg.inv(plan.strategy.matrix())
  np.testing.assert_allclose(
    server_optimizer.noise_variances(plan),
    (z_stddev / 2) ** 2 * np.sum(inverse**2, 1),
    rtol=1e-9,
  )


@pytest.mark.parametrize('noise_multiplier', [0.0, 0.7])
def test_denoised_adam_does_what_its_equations_say(noise_multiplier):
  plan = _plan(noise_multiplier)
  optimizer = server_optimizer.DenoisedAdam(plan, 0.1, 0.8, 0.9, 0.2)
  generator = np.random.default_rng(0)
  variances = server_optimizer.noise_variances(plan)
  expected = start = generator.normal(size=5).astype(np.float32)
  weights = (tf.constant(start),)
  state = optimizer.initialize((tf.TensorSpec([5]),))
  mean = square = np.zeros(5)
  floored = 0
  # Two more than planned: the last variance holds.
  for t in range(22):
    g = generator.normal(size=5).astype(np.float32)
    state, weights = optimizer.next(state, weights, (tf.constant(g),))
    mean = 0.8 * mean + 0.2 * g
    square = 0.9 * square + 0.1 * (g**2 - variances[min(t, 19)])
    unbiased = square / (1 - 0.9 ** (t + 1))
    floored += np.sum(unbiased < 0.2**2)
    expected = expected - 0.1 * mean / (1 - 0.8 ** (t + 1)) / np.sqrt(
      np.maximum(unbiased, 0.2**2)
    )
    np.testing.assert_allclose(weights[0], expected, rtol=2e-4, atol=1e-5)
  assert (floored > 0) == (noise_multiplier > 0)


def test_second_moment_of_noise_alone_is_none():
  plan = _plan(noise_multiplier=0.7)
  optimizer = server_optimizer.DenoisedAdam(plan, 0.1, 0.9, 0.99)
  deviations = np.sqrt(server_optimizer.noise_variances(plan))
  generator = np.random.default_rng(0)
  weights = (tf.zeros([20_000]),)
  state = optimizer.initialize((tf.TensorSpec([20_000]),))
  for deviation in deviations:
    noise = deviation * generator.normal(size=20_000)
    state, _ = optimizer.next(state, weights, (tf.constant(noise, tf.float32),))
  # Adam's own would be that of the noise.
  total = np.mean(deviations**2) * (1 - 0.99**20)
  assert abs(np.mean(state['square'][0])) < 0.02 * total


@pytest.mark.parametrize(
  'clip', [clips.AdaptiveClip(0.5, 0.5), [0.3, 0.4]], ids=['adaptive', 'layers']
)
def test_noise_of_no_known_variance_is_refused(clip):
  with pytest.raises(ValueError, match='l2_norm_clip=.*one number'):
    server_optimizer.noise_variances(_plan(l2_norm_clip=clip))
