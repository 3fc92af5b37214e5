"""The LSTM of the literature: embedding, LSTM, projection, softmax.

With 10,000 words, `embedding_size` 96, `lstm_size` 670, `tied` and `skip`
False, the model has the 4,050,748 parameters of TFF's StackOverflow baseline.
"""

from __future__ import annotations

from typing import Any, Optional

import numpy as np
import tensorflow as tf

from simulations import config as config_lib
from simulations.models import initial, next_word


def build(config: config_lib.Model, num_ids: int, seed: int) -> next_word.Model:
  """Returns the model of a configuration, with weights drawn from `seed`."""
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

  The initial softmax bias is `initial.softmax_bias`. The initial bias of the
  forget gate is 1.

  Args:
    num_ids: V + 4, number of ids of a `Vocabulary`.
    embedding_size: d, dimension of embeddings and of the projection before the
      softmax.
    lstm_size: u, number of units of the LSTM.
    tied: whether the softmax uses the transposed embedding matrix.
    skip: whether the projection also receives the embedding of the last word,
      so that the model can learn pairs of words before the LSTM is trained.
    embedding_scale: number > 0; initial embeddings are uniform in
      [-embedding_scale, embedding_scale].
    seed: seed of the draws, >= 0.

  Returns:
    A list of float32 arrays: embedding [num_ids, d]; LSTM kernel [d + u, 4 u];
    LSTM bias [4 u]; projection [u, d], or [u + d, d] if `skip`; projection bias
    [d]; softmax bias [num_ids]; and, if not `tied`, softmax kernel
    [d, num_ids].
  """
  generator = np.random.default_rng(seed)

  # The order of BlockLSTM's gates is input, candidate, forget, output.
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
  weights: Any, x: tf.Tensor, positions: Optional[tf.Tensor] = None
) -> tf.Tensor:
  """Returns the logits of the next words.

  Args:
    weights: result of `initial_weights`, or trained weights of these shapes.
    x: [batch, time] int32 token ids.
    positions: [count, 2] int64 pairs (sentence, time) whose logits are
      returned; if None, all logits are returned.

  Returns:
    [batch, time, num_ids] float32; [count, num_ids] if `positions` is given.
  """
  embedding, kernel, bias, projection, projection_bias, softmax_bias = weights[
    :6
  ]
  lstm_size = kernel.shape[1] // 4
  embedded = tf.transpose(tf.gather(embedding, x), [1, 0, 2])
  zero = tf.zeros([tf.shape(x)[0], lstm_size])
  peephole = tf.zeros([lstm_size])
  # BlockLSTM is one fused operation for all time steps, so the graph of a
  # client has no loop over them. BlockLSTMV2 cannot be used: its gates have
  # another order than the gates of BlockLSTM, but TensorFlow computes its
  # gradient as if the order were the same.
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
  if positions is not None:
    hidden = tf.gather_nd(hidden, positions)
  projected = tf.tensordot(hidden, projection, 1) + projection_bias
  softmax = tf.transpose(embedding) if len(weights) == 6 else weights[6]
  return tf.tensordot(projected, softmax, 1) + softmax_bias
