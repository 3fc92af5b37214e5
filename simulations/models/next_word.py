"""Loss, accuracies and TFF form of a next-word model of any architecture."""

from __future__ import annotations

import dataclasses
from typing import Any, Callable

import numpy as np
import tensorflow as tf


@dataclasses.dataclass(frozen=True, eq=False)
class Model:
  """A network and its initial weights.

  Attributes:
    weights: initial values, float32.
    logits: function from (weights, [batch, time] int32 ids) to the [batch,
      time, num_ids] float32 logits of the next words; padding (id 0) may only
      follow words. With a third argument, [count, 2] int64 places (sentence,
      time), it returns the logits at these places only, [count, num_ids].
  """

  weights: list[np.ndarray]
  logits: Callable[..., tf.Tensor]

  @property
  def num_parameters(self) -> int:
    return sum(weight.size for weight in self.weights)

  def loss(self, weights: Any, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    """Returns `next_word_loss`; computes logits only for words, not padding."""
    places = tf.where(tf.not_equal(y, 0))
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(
      tf.gather_nd(y, places), self.logits(weights, x, places)
    )
    return tf.reduce_sum(losses) / tf.maximum(
      tf.cast(tf.size(losses), tf.float32), 1.0
    )


def next_word_loss(logits: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
  """Returns the mean cross-entropy over words that are not padding (id 0)."""
  mask = tf.cast(tf.not_equal(y, 0), tf.float32)
  losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits)
  return tf.reduce_sum(losses * mask) / tf.maximum(tf.reduce_sum(mask), 1.0)


@dataclasses.dataclass(frozen=True)
class Accuracy:
  """An accuracy: the targets that count, and the ids that may be predicted.

  Attributes:
    ignored: ids that do not count as targets.
    hidden: ids that are never predicted.
  """

  ignored: tuple[int, ...]
  hidden: tuple[int, ...] = ()

  def correct(
    self, logits: tf.Tensor, y: tf.Tensor
  ) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns (correct predictions, targets that count), scalar float32.

    Args:
      logits: [..., num_ids].
      y: [...] int32.
    """
    shown = np.ones(logits.shape[-1], bool)
    shown[list(self.hidden)] = False
    counts = tf.reduce_all(
      tf.not_equal(y[..., tf.newaxis], tf.constant(self.ignored)), -1
    )
    chosen = tf.argmax(tf.where(shown, logits, -np.inf), -1, tf.int32)
    right = tf.equal(chosen, y) & counts
    return (
      tf.reduce_sum(tf.cast(right, tf.float32)),
      tf.reduce_sum(tf.cast(counts, tf.float32)),
    )


def accuracies(num_ids: int) -> dict[str, Accuracy]:
  """Returns the accuracies of a model.

  | accuracy                        | targets                    | predictions |
  |---------------------------------|----------------------------|-------------|
  | `accuracy`                      | words                      | words       |
  | `accuracy_of_tff`               | words                      | all ids     |
  | `accuracy_with_end_and_unknown` | words, unknown and the end | all ids     |

  `accuracy_of_tff` is `accuracy_without_out_of_vocab_or_end_of_sentence` of
  TFF's StackOverflow baseline, which publications quote. It increases if a
  model predicts 'unknown' and the end less often, even if it predicts words no
  better. `accuracy_with_end_and_unknown` is the `accuracy` of the baseline.

  Args:
    num_ids: vocabulary with its special ids: padding 0, words, then
      out-of-vocabulary, beginning and end of sentence.
  """
  padding, unknown, beginning, end = 0, num_ids - 3, num_ids - 2, num_ids - 1
  no_words = (padding, unknown, beginning, end)
  return {
    'accuracy': Accuracy(no_words, no_words),
    'accuracy_of_tff': Accuracy((padding, unknown, end)),
    'accuracy_with_end_and_unknown': Accuracy((padding,)),
  }
