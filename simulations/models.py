"""The next-word model: embedding, LSTM, projection, softmax."""

from __future__ import annotations

import collections
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff


def lstm_weights(
    num_ids: int,
    embedding_size: int,
    lstm_size: int,
    tied: bool,
    skip: bool,
    embedding_scale: float,
    seed: int,
) -> list[np.ndarray]:
  """Returns initial weights, a function of `seed`.

  The softmax bias starts at Zipf's law, log p(rank r) = -log(r + 2) + const:
  words are numbered by frequency, so the order of the vocabulary, and nothing
  else of the data, saves the rounds that would learn it. The forget gate
  starts open (bias 1).

  Args:
    num_ids: vocabulary with its special ids: padding 0, words by frequency,
      then out-of-vocabulary, beginning and end of sentence.
    embedding_size: of a word, also of the projection before the softmax.
    lstm_size: units.
    tied: whether the softmax uses the embedding, transposed.
    skip: whether the projection also sees the embedding of the last word, which
      learns pairs of words before the LSTM has learnt anything.
    embedding_scale: embeddings are uniform in +- this.
    seed: of the draws.

  Returns:
    embedding [num_ids, embedding_size], kernel [embedding_size + lstm_size,
    4 lstm_size], LSTM bias [4 lstm_size], projection [lstm_size, or with the
    skip lstm_size + embedding_size, embedding_size] and its bias
    [embedding_size], softmax bias [num_ids] and, unless tied, softmax kernel
    [embedding_size, num_ids]; all float32.
  """
  generator = np.random.default_rng(seed)

  def glorot(rows, columns):
    limit = np.sqrt(6 / (rows + columns))
    return generator.uniform(-limit, limit, (rows, columns))

  # The gates of BlockLSTM: input, cell, forget, output.
  lstm_bias = np.repeat([0.0, 0.0, 1.0, 0.0], lstm_size)
  softmax_bias = -np.log(np.arange(num_ids) + 2.0)
  # As frequent as the first words; the other two are never predicted.
  softmax_bias[-3] = softmax_bias[-1] = softmax_bias[2]
  softmax_bias[0] = softmax_bias[-2] = softmax_bias.min()
  weights = [
      generator.uniform(
          -embedding_scale, embedding_scale, (num_ids, embedding_size)),
      glorot(embedding_size + lstm_size, 4 * lstm_size),
      lstm_bias,
      glorot(lstm_size + skip * embedding_size, embedding_size),
      np.zeros(embedding_size),
      softmax_bias,
  ]
  if not tied:
    weights.append(glorot(embedding_size, num_ids))
  return [weight.astype(np.float32) for weight in weights]


def lstm_logits(weights: Any, x: tf.Tensor) -> tf.Tensor:
  """Returns logits of the next word.

  Args:
    weights: as `lstm_weights` gives them.
    x: [batch, time] int32 word ids.

  Returns:
    [batch, time, num_ids] float32.
  """
  embedding, kernel, bias, projection, projection_bias, softmax_bias = (
      weights[:6])
  lstm_size = kernel.shape[1] // 4
  embedded = tf.transpose(tf.gather(embedding, x), [1, 0, 2])
  zero = tf.zeros([tf.shape(x)[0], lstm_size])
  peephole = tf.zeros([lstm_size])
  # One fused operation for all steps: no loop in the graph of a client.
  hidden = tf.raw_ops.BlockLSTMV2(
      seq_len_max=tf.shape(x, out_type=tf.int64)[1], x=embedded,
      cs_prev=zero, h_prev=zero, w=kernel, wci=peephole, wcf=peephole,
      wco=peephole, b=bias, cell_clip=0.0, use_peephole=False).h
  if projection.shape[0] > lstm_size:
    hidden = tf.concat([hidden, embedded], -1)
  projected = tf.tensordot(hidden, projection, 1) + projection_bias
  softmax = tf.transpose(embedding) if len(weights) == 6 else weights[6]
  logits = tf.tensordot(projected, softmax, 1) + softmax_bias
  return tf.transpose(logits, [1, 0, 2])


def next_word_loss(logits: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
  """Returns the mean cross-entropy over words that are not padding (id 0)."""
  mask = tf.cast(tf.not_equal(y, 0), tf.float32)
  losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits)
  return tf.reduce_sum(losses * mask) / tf.maximum(tf.reduce_sum(mask), 1.0)


def correct_words(
    logits: tf.Tensor, y: tf.Tensor, ignored: tuple[int, ...]
) -> tuple[tf.Tensor, tf.Tensor]:
  """Returns (words predicted right, words that count), scalar float32.

  Args:
    logits: [batch, time, num_ids].
    y: [batch, time] int32.
    ignored: ids that do not count as targets.
  """
  counts = tf.reduce_all(
      tf.not_equal(y[..., tf.newaxis], tf.constant(ignored)), -1)
  right = tf.equal(tf.argmax(logits, -1, tf.int32), y) & counts
  return (
      tf.reduce_sum(tf.cast(right, tf.float32)),
      tf.reduce_sum(tf.cast(counts, tf.float32)),
  )


# Metric: clients of a round whose update was finite.
FINITE = 'finite_clients'


def functional_model(
    weights: list[np.ndarray], sequence_length: int
) -> tff.learning.models.FunctionalModel:
  """Returns the model in the form that TFF trains.

  Its one training metric, `FINITE`, is 1 for a client. TFF turns an update with
  NaN or infinity into zero and such a client's metrics back to their initial
  values, before any aggregator sees them: the sum counts the others.
  """
  spec = tf.TensorSpec([None, sequence_length], tf.int32)

  @tf.function(autograph=False)
  def predict(model_weights, x, training):
    del training
    return lstm_logits(model_weights[0], x)

  @tf.function(autograph=False)
  def loss(output, label, sample_weight=None):
    del sample_weight
    return next_word_loss(output, label)

  @tf.function(autograph=False)
  def initial_metrics():
    return collections.OrderedDict({FINITE: 0.0})

  @tf.function(autograph=False)
  def update_metrics(state, labels, batch_output, sample_weight=None):
    del state, labels, batch_output, sample_weight
    return collections.OrderedDict({FINITE: 1.0})

  @tf.function(autograph=False)
  def finalize_metrics(state):
    return state

  return tff.learning.models.FunctionalModel(
      initial_weights=(tuple(weights), ()),
      predict_on_batch_fn=predict,
      loss_fn=loss,
      metrics_fns=(initial_metrics, update_metrics, finalize_metrics),
      input_spec=(spec, spec))
