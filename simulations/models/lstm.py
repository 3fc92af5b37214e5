"""The LSTM of the literature: embedding, LSTM, projection, softmax.

With 10,000 words, an embedding of 96 and 670 units, not tied and without the
skip, it has the 4,050,748 parameters of TFF's StackOverflow baseline.
"""

from __future__ import annotations

from typing import Any, Optional

import numpy as np
import tensorflow as tf

from simulations import config as config_lib
from simulations.models import initial, next_word


def build(config: config_lib.Model, num_ids: int, seed: int) -> next_word.Model:
  """Returns the model of a configuration; see `registry.build`."""
  return next_word.Model(
    initial_weights(
      num_ids,
      config.embedding_size,
      config.lstm_size,
      config.tied,
      config.skip,
      config.embedding_scale,
      seed,
    ),
    logits,
  )


def initial_weights(
  num_ids: int,
  embedding_size: int,
  lstm_size: int,
  tied: bool,
  skip: bool,
  embedding_scale: float,
  seed: int,
) -> list[np.ndarray]:
  """Returns initial weights, a function of `seed`.

  The softmax bias starts at Zipf's law, the bias of the forget gate at 1.

  Args:
    num_ids: vocabulary with its special ids, see `initial.softmax_bias`.
    embedding_size: dimension of embeddings and of the projection before the
      softmax.
    lstm_size: units of the LSTM.
    tied: whether the softmax uses the embedding, transposed.
    skip: whether the projection also sees the embedding of the last word, so
      that pairs of words are learnt before the LSTM is.
    embedding_scale: half-width of the uniform law of embeddings, > 0.
    seed: seed of the draws, >= 0.

  Returns:
    embedding [num_ids, embedding_size], kernel [embedding_size + lstm_size,
    4 lstm_size], LSTM bias [4 lstm_size], projection [lstm_size, or with the
    skip lstm_size + embedding_size, embedding_size] and its bias
    [embedding_size], softmax bias [num_ids] and, unless tied, softmax kernel
    [embedding_size, num_ids]; all float32.
  """
  generator = np.random.default_rng(seed)

  # The gates of BlockLSTM: input, candidate, forget, output.
  lstm_bias = np.repeat([0.0, 0.0, 1.0, 0.0], lstm_size)
  weights = [
    generator.uniform(
      -embedding_scale, embedding_scale, (num_ids, embedding_size)
    ),
    initial.glorot(generator, embedding_size + lstm_size, 4 * lstm_size),
    lstm_bias,
    initial.glorot(
      generator, lstm_size + skip * embedding_size, embedding_size
    ),
    np.zeros(embedding_size),
    initial.softmax_bias(num_ids),
  ]
  if not tied:
    weights.append(initial.glorot(generator, embedding_size, num_ids))
  return [weight.astype(np.float32) for weight in weights]


def logits(
  weights: Any, x: tf.Tensor, places: Optional[tf.Tensor] = None
) -> tf.Tensor:
  """Returns logits of the next word.

  Args:
    weights: result of `initial_weights`, or trained weights of these shapes.
    x: [batch, time] int32 word ids.
    places: [count, 2] int64 (sentence, time) of the logits to return; None
      returns all.

  Returns:
    [batch, time, num_ids] float32, or with places [count, num_ids].
  """
  embedding, kernel, bias, projection, projection_bias, softmax_bias = weights[
    :6
  ]
  lstm_size = kernel.shape[1] // 4
  embedded = tf.transpose(tf.gather(embedding, x), [1, 0, 2])
  zero = tf.zeros([tf.shape(x)[0], lstm_size])
  peephole = tf.zeros([lstm_size])
  # BlockLSTM is one fused operation for all steps, so the graph of a client has
  # no loop. BlockLSTMV2 has its gates in another order, but TensorFlow gives it
  # the gradient of BlockLSTM, which is wrong for it.
  hidden = tf.raw_ops.BlockLSTM(
    seq_len_max=tf.shape(x, out_type=tf.int64)[1],
    x=embedded,
    cs_prev=zero,
    h_prev=zero,
    w=kernel,
    wci=peephole,
    wcf=peephole,
    wco=peephole,
    b=bias,
    forget_bias=0.0,
    cell_clip=-1.0,
    use_peephole=False,
  ).h
  if projection.shape[0] > lstm_size:
    hidden = tf.concat([hidden, embedded], -1)
  hidden = tf.transpose(hidden, [1, 0, 2])
  if places is not None:
    hidden = tf.gather_nd(hidden, places)
  projected = tf.tensordot(hidden, projection, 1) + projection_bias
  softmax = tf.transpose(embedding) if len(weights) == 6 else weights[6]
  return tf.tensordot(projected, softmax, 1) + softmax_bias
