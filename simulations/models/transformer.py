"""A small causal transformer with layer norms before the sublayers [Xiong20].

The model is made for training with differential privacy. It has no dropout. It
has no batch norm, so the logits of a sentence depend on no other sentence. It
has few tensors, because one tensor holds the weights of one kind for all
layers. It has no weights for positions: attention scores decrease with distance
[Press22]. The softmax uses the embedding matrix.

[Press22] is Press, Smith, Lewis, "Train Short, Test Long", ICLR 2022; [Xiong20]
is Xiong et al., "On Layer Normalization in the Transformer Architecture", ICML
2020.
"""

from __future__ import annotations

from typing import Any, Optional

import numpy as np
import tensorflow as tf

from simulations import config as config_lib
from simulations.models import initial, next_word

_NORM_EPSILON = 1e-6
# Attention score of positions that a query must not use. In a row with nothing
# but padding, a query must not use any position, and infinite scores would make
# the softmax of the row NaN.
_HIDDEN_SCORE = -1e9


def build(config: config_lib.Model, num_ids: int, seed: int) -> next_word.Model:
  """Returns the model of a configuration, with weights drawn from `seed`."""
  return next_word.Model(
    initial_weights(
      num_ids,
      config.embedding_size,
      config.layers,
      config.heads,
      config.feed_forward_size,
      config.embedding_scale,
      seed,
    ),
    logits,
  )


def initial_weights(
  num_ids: int,
  embedding_size: int,
  layers: int,
  heads: int,
  feed_forward_size: int,
  embedding_scale: float,
  seed: int,
) -> list[np.ndarray]:
  """Returns initial weights, a function of `seed`.

  The output weights of each of the 2 L sublayers are divided by sqrt(2 L), so
  that the sum over all sublayers has the variance of one sublayer without this
  division. The initial softmax bias is `initial.softmax_bias`.

  Args:
    num_ids: V + 4, number of ids of a `Vocabulary`.
    embedding_size: d, dimension of embeddings and of all layers.
    layers: L, number of layers.
    heads: H, number of attention heads of a layer, a divisor of d.
    feed_forward_size: F, number of hidden units of a layer.
    embedding_scale: number > 0; initial embeddings are uniform in
      [-embedding_scale, embedding_scale].
    seed: seed of the draws, >= 0.

  Returns:
    A list of float32 arrays: embedding [num_ids, d]; scale and shift of the
    norms before attention [L, 2, d]; queries, keys and values
    [L, d, 3, H, d / H]; attention output [L, H, d / H, d]; scale and shift of
    the norms before the feed-forward sublayers [L, 2, d]; feed-forward input
    [L, d, F] and its bias [L, F]; feed-forward output [L, F, d] and its bias
    [L, d]; scale and shift of the last norm [2, d]; softmax bias [num_ids].
  """
  generator = np.random.default_rng(seed)
  d, f, residual = embedding_size, feed_forward_size, (2 * layers) ** -0.5

  def matrices(rows, columns):
    return np.stack(
      [initial.glorot(generator, rows, columns) for _ in range(layers)]
    )

  norm = np.stack([np.ones(d), np.zeros(d)])
  norms = np.stack([norm] * layers)
  weights = [
    generator.uniform(-embedding_scale, embedding_scale, (num_ids, d)),
    norms,
    np.stack([matrices(d, d) for _ in range(3)], 2).reshape(
      layers, d, 3, heads, d // heads
    ),
    residual * matrices(d, d).reshape(layers, heads, d // heads, d),
    norms,
    matrices(d, f),
    np.zeros([layers, f]),
    residual * matrices(f, d),
    np.zeros([layers, d]),
    norm,
    initial.softmax_bias(num_ids),
  ]
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
  (
    embedding,
    attention_norm,
    attention_in,
    attention_out,
    feed_norm,
    feed_in,
    feed_in_bias,
    feed_out,
    feed_out_bias,
    last_norm,
    softmax_bias,
  ) = weights
  layers, d, _, heads, head_size = attention_in.shape
  scores_added = _scores_added(x, heads)
  hidden = tf.gather(embedding, x) * d**0.5
  for i in range(layers):
    normed = _layer_norm(hidden, attention_norm[i])
    query, key, value = tf.unstack(
      tf.einsum('btd,dchs->cbhts', normed, attention_in[i])
    )
    scores = tf.einsum('bhqs,bhks->bhqk', query, key) * head_size**-0.5
    attention = tf.nn.softmax(scores + scores_added)
    hidden += tf.einsum(
      'bhqk,bhks,hsd->bqd', attention, value, attention_out[i]
    )
    normed = _layer_norm(hidden, feed_norm[i])
    inner = tf.nn.gelu(tf.tensordot(normed, feed_in[i], 1) + feed_in_bias[i])
    hidden += tf.tensordot(inner, feed_out[i], 1) + feed_out_bias[i]
  if positions is not None:
    hidden = tf.gather_nd(hidden, positions)
  last = _layer_norm(hidden, last_norm)
  return tf.tensordot(last, tf.transpose(embedding), 1) + softmax_bias


def _scores_added(x: tf.Tensor, heads: int) -> tf.Tensor:
  """Returns the term that is added to attention scores.

  The term is -2^(-8 h / heads) (query - key) for head h = 1 to heads. If the
  key comes after the query or is padding, the term is `_HIDDEN_SCORE`.

  Args:
    x: [batch, time] int32 token ids.
    heads: number of attention heads.

  Returns:
    [batch, heads, query, key] float32; query and key are positions in a row.
  """
  position = tf.range(tf.shape(x)[1])
  distance = position[:, tf.newaxis] - position
  slopes = 2.0 ** (-8.0 * np.arange(1, heads + 1) / heads)
  fall = -tf.constant(slopes, tf.float32)[:, tf.newaxis, tf.newaxis] * tf.cast(
    distance, tf.float32
  )
  # `tf.not_equal` compares values; in a graph of TFF, `!=` would compare Python
  # objects.
  words = tf.not_equal(x, 0)[:, tf.newaxis, tf.newaxis, :]
  visible = (distance >= 0) & words
  return tf.where(visible, fall, _HIDDEN_SCORE)


def _layer_norm(hidden: tf.Tensor, scale_and_shift: tf.Tensor) -> tf.Tensor:
  mean, variance = tf.nn.moments(hidden, [-1], keepdims=True)
  scale, shift = scale_and_shift[0], scale_and_shift[1]
  return (hidden - mean) * tf.math.rsqrt(variance + _NORM_EPSILON) * (
    scale
  ) + shift
