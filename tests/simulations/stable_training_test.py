"""Tests that training without noise stays where it gets to."""

import dataclasses
import math
import pathlib

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from simulations import fed_avg, models, server_optimizer
from simulations.sweeps import analysis, grid
from tff_bandmf import query

_EVIDENCE = pathlib.Path(__file__).parents[2] / 'configs/evidence.toml'
_WORDS = 30
_LENGTH = 10
_ROUNDS = 100
_COHORT = 10


def _sentences(count, seed):
  """Returns ids of a text in which two words may follow a word."""
  follow = np.random.default_rng(0).integers(1, _WORDS - 3, (_WORDS, 2))
  generator = np.random.default_rng([1, seed])
  rows = [np.full(count, _WORDS - 2)]
  for _ in range(_LENGTH):
    choice = (generator.random(count) < 0.2).astype(int)
    rows.append(follow[rows[-1], choice])
  return np.stack(rows, 1).astype(np.int32)


def _losses(factor, seed):
  """Returns validation losses, a round each, of the evidence in small.

  Args:
    factor: of the server's learning rate, beside which weights are as large
      as in the evidence.
    seed: of weights and sentences.
  """
  config = grid.one(f'{_EVIDENCE}:none').config()
  vocabulary = config.data.vocabulary_size + 4
  whole = models.build(config.model, vocabulary, seed)
  model = models.build(
    dataclasses.replace(config.model, embedding_size=8, lstm_size=8),
    _WORDS,
    seed,
  )
  smaller = math.sqrt(model.num_parameters / whole.num_parameters)
  training = dataclasses.replace(
    config.training,
    server_learning_rate=factor
    * smaller
    * config.training.server_learning_rate,
    rounds=_ROUNDS,
    server_warmup_rounds=round(0.15 * _ROUNDS),
    server_cooldown_rounds=round(0.25 * _ROUNDS),
  )
  weights = tuple(map(tf.constant, model.weights))
  specs = tf.nest.map_structure(tf.TensorSpec.from_tensor, weights)
  clipping = query.GraphClipping.from_clip(
    config.privacy.l2_norm_clip, specs, 20
  )
  client = tff.learning.optimizers.build_sgdm(training.client_learning_rate)
  server = server_optimizer.build(training)
  held = _sentences(100, 10**6)

  @tf.function(autograph=False)
  def round_(state, weights, rows):
    total, _ = fed_avg._train_group(
      model,
      client,
      training.batch_size,
      clipping,
      (),
      tff.learning.models.ModelWeights(weights, ()),
      {
        'x': rows[:, :-1],
        'y': rows[:, 1:],
        'sizes': tf.fill([_COHORT], 2 * training.batch_size),
      },
    )
    mean = tf.cast(total, tf.float32) * (clipping.step / _COHORT)
    mean = tuple(
      tf.reshape(part, spec.shape)
      for part, spec in zip(
        tf.split(mean, [spec.shape.num_elements() for spec in specs]), specs
      )
    )
    state, weights = server.next(state, weights, mean)
    return state, weights, model.loss(weights, held[:, :-1], held[:, 1:])

  state, losses = server.initialize(specs), []
  for t in range(_ROUNDS):
    rows = _sentences(2 * training.batch_size * _COHORT, _ROUNDS * seed + t)
    state, weights, loss = round_(state, weights, rows)
    losses.append(float(loss))
  return losses


@pytest.mark.parametrize('seed', range(3))
@pytest.mark.deep(but=('[0]',))
def test_loss_without_noise_stays_low(seed):
  losses = _losses(1.0, seed)
  assert losses[-1] < 0.2 * losses[0]
  assert analysis.drift(losses) < 0.02


def test_loss_at_a_rate_that_is_too_high_rises():
  assert analysis.drift(_losses(6.0, 0)) > 0.05
