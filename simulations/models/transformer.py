"""A small causal transformer with layer norms before the sublayers.

The model is made for training with differential privacy. It has no batch norm,
no dropout and nothing else that makes one sentence depend on another. It has
few tensors, each for all layers. It has no weights for positions: attention
decreases with distance [Press22].

The softmax uses the embedding. [Press22] is Press, Smith, Lewis, "Train
Short, Test Long", ICLR 2022; norms before the sublayers as in [Xiong20], "On
Layer Normalization in the Transformer Architecture", ICML 2020.
"""

from __future__ import annotations

from typing import Any, Optional

import numpy as np
import tensorflow as tf

from simulations import config as config_lib
from simulations.models import initial, next_word

_NORM_EPSILON = 1e-6
# Score of hidden positions. It is finite, because a row with only padding hides
# all positions, and infinite scores would make its softmax NaN.
_HIDDEN_SCORE = -1e9


def build(config: config_lib.Model, num_ids: int, seed: int) -> next_word.Model:
  """Returns the model of a configuration; see `registry.build`."""
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

  The output weights of each sublayer are divided by sqrt(2 layers), so that the
  sum over all sublayers has the variance of one. The softmax bias starts at
  Zipf's law.

  Args:
    num_ids: vocabulary with its special ids, see `initial.softmax_bias`.
    embedding_size: d, dimension of embeddings and of all layers.
    layers: L, number of layers.
    heads: H, attention heads of a layer, a divisor of d.
    feed_forward_size: F, hidden units of a layer.
    embedding_scale: half-width of the uniform law of embeddings, > 0.
    seed: seed of the draws, >= 0.

  Returns:
    embedding [num_ids, d]; scale and shift of the norms before attention
    [L, 2, d]; queries, keys and values [L, d, 3, H, d / H]; attention output
    [L, H, d / H, d]; norms before the feed-forward part [L, 2, d]; its input
    [L, d, F] with bias [L, F], its output [L, F, d] with bias [L, d]; the last
    norm [2, d]; softmax bias [num_ids]; all float32.
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
  if places is not None:
    hidden = tf.gather_nd(hidden, places)
  last = _layer_norm(hidden, last_norm)
  return tf.tensordot(last, tf.transpose(embedding), 1) + softmax_bias


def _scores_added(x: tf.Tensor, heads: int) -> tf.Tensor:
  """Returns the addition to attention scores, [batch, heads, query, key].

  It is minus the distance times the slope of the head, 2^(-8 h / heads) for h =
  1 to heads, and `_HIDDEN_SCORE` for later words and padding.
  """
  place = tf.range(tf.shape(x)[1])
  distance = place[:, tf.newaxis] - place
  slopes = 2.0 ** (-8.0 * np.arange(1, heads + 1) / heads)
  fall = -tf.constant(slopes, tf.float32)[:, tf.newaxis, tf.newaxis] * tf.cast(
    distance, tf.float32
  )
  # In a TFF graph the operator `!=` compares objects, not values.
  words = tf.not_equal(x, 0)[:, tf.newaxis, tf.newaxis, :]
  visible = (distance >= 0) & words
  return tf.where(visible, fall, _HIDDEN_SCORE)


def _layer_norm(hidden: tf.Tensor, scale_and_shift: tf.Tensor) -> tf.Tensor:
  mean, variance = tf.nn.moments(hidden, [-1], keepdims=True)
  scale, shift = scale_and_shift[0], scale_and_shift[1]
  return (hidden - mean) * tf.math.rsqrt(variance + _NORM_EPSILON) * (
    scale
  ) + shift
