"""Tests of the server's optimiser and its learning rate."""

import numpy as np
import pytest
import tensorflow as tf

from simulations import config as config_lib
from simulations import server_optimizer


def _training(**changes):
  return config_lib.Training(rounds=20, clients_per_round=2, **changes)


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
  optimizer = server_optimizer.build(training)
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
  optimizer = server_optimizer.build(training)
  state = optimizer.initialize((tf.TensorSpec([1]),))
  weights = (tf.constant([1.0]),)
  state, weights = optimizer.next(state, weights, (tf.constant([1.0]),))
  _, after = optimizer.next(state, weights, (tf.constant([0.0]),))
  assert float(after[0]) < float(weights[0])


def test_models_are_those_of_the_workload():
  training = _training(
    server_learning_rate=0.5,
    server_learning_rates=np.linspace(1, 0.1, 20).tolist(),
    server_weight_decay=0.2,
  )
  optimizer = server_optimizer.build(training)
  gradients = np.random.default_rng(0).normal(size=20)
  state = optimizer.initialize((tf.TensorSpec([1]),))
  weights, models = (tf.constant([0.0]),), []
  for gradient in gradients:
    state, weights = optimizer.next(
      state, weights, (tf.constant([gradient], tf.float32),)
    )
    models.append(float(weights[0][0]))
  workload = training.server_schedule.matrix(20)
  np.testing.assert_allclose(models, -0.5 * workload @ gradients, atol=1e-5)
