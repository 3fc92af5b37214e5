"""Tests of the models, against computations in NumPy and Keras."""

import numpy as np
import pytest
import small_training
import tensorflow as tf
import tensorflow_federated as tff
from tensorflow_federated.python.simulation.baselines import keras_metrics
from tensorflow_federated.python.simulation.baselines.stackoverflow import (
  word_prediction_models,
)

from simulations import config as config_lib
from simulations import models
from simulations.corpora import vocabulary

_NUM_IDS = 20
_SIZES = {
  'embedding_size': 8,
  'embedding_scale': 0.5,
  'lstm_size': 6,
  'layers': 2,
  'heads': 2,
  'feed_forward_size': 12,
}
_SMALL = {
  **{
    name: config_lib.Model(name, **_SIZES) for name in config_lib.ARCHITECTURES
  },
  'lstm, tied': config_lib.Model(**_SIZES, tied=True),
  'lstm, skip': config_lib.Model(**_SIZES, skip=True),
}
_EACH = pytest.mark.parametrize('name', _SMALL)


def _ids(rows=3, time=7, seed=0):
  return (
    np.random.default_rng(seed)
    .integers(1, _NUM_IDS, (rows, time))
    .astype(np.int32)
  )


def _random_model(name):
  """Returns a model none of whose weights is zero or one by design."""
  model = models.build(_SMALL[name], _NUM_IDS, seed=0)
  generator = np.random.default_rng(1)
  weights = [
    w + generator.normal(0, 0.3, w.shape).astype(np.float32)
    for w in model.weights
  ]
  return models.Model(weights, model.logits)


def test_lstm_has_the_parameters_of_the_literature():
  model = models.build(config_lib.Model(), 10_004, seed=0)
  keras = word_prediction_models.create_recurrent_model(10_004)
  assert model.num_parameters == keras.count_params() == 4_050_748


@pytest.mark.parametrize(
  'changes, num_parameters',
  [
    # Without the second matrix of 10,004 x 96.
    ({'tied': True}, 4_050_748 - 960_384),
    ({'skip': True}, 4_050_748 + 96 * 96),
    (
      {'embedding_size': 32, 'lstm_size': 48, 'tied': True},
      10_004 * 33 + (32 + 48) * 192 + 192 + 48 * 32 + 32,
    ),
    (
      {'architecture': 'transformer'},
      10_004 * 97 + 2 * (4 * 96**2 + 2 * 96 * 384 + 384 + 96 + 4 * 96) + 192,
    ),
  ],
)
def test_variants_have_the_parameters_that_their_shapes_say(
  changes, num_parameters
):
  model = models.build(config_lib.Model(**changes), 10_004, seed=0)
  assert model.num_parameters == num_parameters


def _sigmoid(x):
  return 1 / (1 + np.exp(-x))


def _numpy_lstm(weights, x):
  weights = [np.float64(w) for w in weights]
  embedding, kernel, bias, projection, projection_bias, softmax_bias = weights[
    :6
  ]
  softmax = weights[6] if len(weights) > 6 else embedding.T
  units = len(bias) // 4
  logits = np.zeros(x.shape + (len(softmax_bias),))
  for row in range(len(x)):
    hidden = cell = np.zeros(units)
    for time in range(x.shape[1]):
      word = embedding[x[row, time]]
      gates = np.concatenate([word, hidden]) @ kernel + bias
      enter, new, forget, leave = np.split(gates, 4)
      cell = _sigmoid(enter) * np.tanh(new) + _sigmoid(forget) * cell
      hidden = _sigmoid(leave) * np.tanh(cell)
      seen = (
        np.concatenate([hidden, word]) if len(projection) > units else hidden
      )
      logits[row, time] = (
        seen @ projection + projection_bias
      ) @ softmax + softmax_bias
  return logits


def _numpy_norm(x, scale_and_shift):
  x = (x - x.mean()) / np.sqrt(x.var() + 1e-6)
  return x * scale_and_shift[0] + scale_and_shift[1]


def _numpy_transformer(weights, x):
  """One sentence, one word, one head at a time."""
  (
    embedding,
    norm_1,
    attention,
    output,
    norm_2,
    feed_in,
    feed_in_bias,
    feed_out,
    feed_out_bias,
    last_norm,
    softmax_bias,
  ) = map(np.float64, weights)
  layers, d, _, heads, head_size = attention.shape
  logits = np.zeros(x.shape + (len(softmax_bias),))
  for row, sentence in enumerate(x):
    hidden = [embedding[word] * np.sqrt(d) for word in sentence]
    for layer in range(layers):
      normed = [_numpy_norm(h, norm_1[layer]) for h in hidden]
      after = []
      for now in range(len(sentence)):
        added = np.zeros(d)
        seen = [t for t in range(now + 1) if sentence[t] != 0]
        for head in range(heads):
          query, *_ = (
            normed[now] @ attention[layer][:, i, head] for i in range(3)
          )
          keys = [normed[t] @ attention[layer][:, 1, head] for t in seen]
          values = [normed[t] @ attention[layer][:, 2, head] for t in seen]
          slope = 2 ** (-8 * (head + 1) / heads)
          scores = np.array(
            [
              query @ key / np.sqrt(head_size) - slope * (now - t)
              for t, key in zip(seen, keys)
            ]
          )
          shares = np.exp(scores) / np.exp(scores).sum()
          added += (
            sum(share * value for share, value in zip(shares, values))
            @ output[layer][head]
          )
        after.append(hidden[now] + added)
      hidden = []
      for h in after:
        inner = _numpy_norm(h, norm_2[layer]) @ feed_in[layer]
        inner = tf.nn.gelu(inner + feed_in_bias[layer]).numpy()
        hidden.append(h + inner @ feed_out[layer] + feed_out_bias[layer])
    logits[row] = [
      _numpy_norm(h, last_norm) @ embedding.T + softmax_bias for h in hidden
    ]
  return logits


_ORACLES = pytest.mark.parametrize(
  'name, oracle',
  [
    ('lstm', _numpy_lstm),
    ('lstm, tied', _numpy_lstm),
    ('lstm, skip', _numpy_lstm),
    ('transformer', _numpy_transformer),
  ],
)


@_ORACLES
def test_logits_are_those_of_numpy(name, oracle):
  model = _random_model(name)
  x = _ids()
  x[0, 4:] = 0
  np.testing.assert_allclose(
    model.logits(model.weights, x),
    oracle(model.weights, x),
    rtol=2e-4,
    atol=2e-4,
  )


@_ORACLES
def test_gradients_are_differences_of_numpy(name, oracle):
  model = _random_model(name)
  rows = _ids()
  x, y = rows[:, :-1], rows[:, 1:]

  def loss(weights):
    logits = oracle(weights, x)
    of_words = np.log(np.exp(logits).sum(-1))
    return np.mean(
      of_words - np.take_along_axis(logits, y[..., np.newaxis], -1)[..., 0]
    )

  weights = [np.float64(w) for w in model.weights]
  tensors = list(map(tf.constant, model.weights))
  with tf.GradientTape() as tape:
    tape.watch(tensors)
    value = model.loss(tensors, x, y)
  generator = np.random.default_rng(2)
  for i, gradient in enumerate(tape.gradient(value, tensors)):
    way = generator.normal(size=weights[i].shape)
    ahead, behind = (
      loss([*weights[:i], weights[i] + move * way, *weights[i + 1 :]])
      for move in (1e-5, -1e-5)
    )
    np.testing.assert_allclose(
      np.vdot(tf.convert_to_tensor(gradient), way),
      (ahead - behind) / 2e-5,
      rtol=1e-3,
      atol=1e-5,
      err_msg=f'weight {i}',
    )


@_EACH
def test_later_words_and_other_sentences_change_nothing(name):
  model = _random_model(name)
  x = _ids()
  logits = model.logits(model.weights, x).numpy()
  changed = x.copy()
  changed[:, 4:] = 0
  changed[1:, :] = _ids(2, seed=1)
  found = model.logits(model.weights, changed).numpy()
  np.testing.assert_allclose(found[0, :4], logits[0, :4], rtol=1e-4, atol=1e-5)
  assert np.abs(found[1:] - logits[1:]).max() > 0.1


@_EACH
def test_sentence_of_padding_is_finite_and_has_no_gradient(name):
  model = _random_model(name)
  weights = [tf.constant(w) for w in model.weights]
  x = tf.zeros([1, 4], tf.int32)
  with tf.GradientTape() as tape:
    tape.watch(weights)
    logits = model.logits(weights, x)
    loss = models.next_word_loss(logits, x)
  assert np.isfinite(logits).all()
  assert loss == 0
  for gradient in tape.gradient(loss, weights):
    gradient = tf.convert_to_tensor(gradient).numpy()
    assert np.isfinite(gradient).all() and not gradient.any()


@pytest.mark.parametrize('name', config_lib.ARCHITECTURES)
def test_loss_falls_the_same_way_every_time(name):
  rows = _ids(rows=6, time=8)
  model = models.build(_SMALL[name], _NUM_IDS, seed=3)

  @tf.function(autograph=False)
  def step(weights):
    with tf.GradientTape() as tape:
      tape.watch(weights)
      loss = models.next_word_loss(
        model.logits(weights, rows[:, :-1]), rows[:, 1:]
      )
    gradients = tape.gradient(loss, weights)
    return loss, [
      w - 0.3 * tf.convert_to_tensor(g) for w, g in zip(weights, gradients)
    ]

  def losses():
    weights = [tf.constant(w) for w in model.weights]
    for _ in range(60):
      loss, weights = step(weights)
      yield float(loss)

  first = list(losses())
  assert first == list(losses())
  assert first[-1] < 0.9 * first[0]


@_EACH
def test_initial_weights_are_a_function_of_the_seed(name):
  first, again, other = (
    models.build(_SMALL[name], _NUM_IDS, seed=seed).weights
    for seed in (0, 0, 1)
  )
  assert all(w.dtype == np.float32 for w in first)
  assert all(map(np.array_equal, first, again))
  assert not all(map(np.array_equal, first, other))


@pytest.mark.deep
def test_transformer_trains_in_tff(runtime):
  model = models.build(_SMALL['transformer'], _NUM_IDS, seed=0)
  process = tff.learning.algorithms.build_unweighted_fed_avg(
    small_training.functional_model(model, sequence_length=7),
    tff.learning.optimizers.build_sgdm(0.5),
    loop_implementation=tff.learning.LoopImplementation.DATASET_ITERATOR,
  )
  state = process.initialize()
  rows = _ids(rows=4, time=8)
  data = tf.data.Dataset.from_tensor_slices((rows[:, :-1], rows[:, 1:])).batch(
    2
  )
  before = process.get_model_weights(state).trainable
  output = process.next(state, [data, data])
  after = process.get_model_weights(output.state).trainable
  losses = [
    float(models.next_word_loss(model.logits(w, rows[:, :-1]), rows[:, 1:]))
    for w in (before, after)
  ]
  assert losses[1] < losses[0]


def test_accuracies_are_those_of_tff():
  words = vocabulary.Vocabulary(tuple(f'w{i}' for i in range(_NUM_IDS - 4)))
  y = np.random.default_rng(0).integers(0, _NUM_IDS, (40, 9)).astype(np.int32)
  logits = np.random.default_rng(1).normal(size=(40, 9, _NUM_IDS))
  logits += 2 * tf.one_hot(y, _NUM_IDS).numpy()
  masked = {
    'accuracy_of_tff': [0, words.out_of_vocabulary_id, words.end_id],
    'accuracy_with_end_and_unknown': [0],
  }
  accuracies = models.accuracies(words.num_ids)
  assert set(accuracies) == {'accuracy', *masked}
  found = set()
  for name, tokens in masked.items():
    metric = keras_metrics.MaskedCategoricalAccuracy(masked_tokens=tokens)
    metric.update_state(y, logits)
    right, count = accuracies[name].correct(logits, y)
    assert float(right / count) == pytest.approx(float(metric.result()))
    found.add(float(count))
  assert len(found) == 2


@pytest.mark.parametrize(
  'changes, message',
  [
    ({'architecture': 'gru'}, 'model.architecture=gru: is not known'),
    ({'architecture': 'transformer', 'skip': True}, 'model.skip=True'),
    ({'architecture': 'transformer', 'heads': 5}, 'model.embedding_size=96'),
  ],
)
def test_bad_models_are_refused(changes, message):
  with pytest.raises(ValueError, match=message):
    config_lib.Model(**changes)
