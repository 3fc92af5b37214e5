"""Loss and accuracies of a next-word model of any architecture."""

from __future__ import annotations

import dataclasses
from typing import Any, Callable

import numpy as np
import tensorflow as tf


@dataclasses.dataclass(frozen=True, eq=False)
class Model:
  """A network and its initial weights.

  Attributes:
    weights: initial weights, float32 arrays.
    logits: function (weights, ids) or (weights, ids, positions). `ids` are
      [batch, time] int32 token ids; padding (id 0) comes after the words. The
      function returns the logits of the next words, [batch, time, num_ids]
      float32. `positions` are [count, 2] int64 pairs (sentence, time); with
      them, the result has only the logits at these pairs, [count, num_ids].
  """

  weights: list[np.ndarray]
  logits: Callable[..., tf.Tensor]

  @property
  def num_parameters(self) -> int:
    return sum(weight.size for weight in self.weights)

  def loss(self, weights: Any, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    """Returns `next_word_loss` without computing the logits of padding.

    Args:
      weights: weights of the network.
      x: [batch, time] int32 token ids, the inputs.
      y: [batch, time] int32 token ids, the targets; 0 is padding.
    """
    positions = tf.where(tf.not_equal(y, 0))
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(
      tf.gather_nd(y, positions), self.logits(weights, x, positions)
    )
    return tf.reduce_sum(losses) / tf.maximum(
      tf.cast(tf.size(losses), tf.float32), 1.0
    )


def next_word_loss(logits: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
  """Returns the mean cross-entropy over the targets that are not padding.

  Args:
    logits: [..., num_ids] float32.
    y: [...] int32 targets; 0 is padding.
  """
  mask = tf.cast(tf.not_equal(y, 0), tf.float32)
  losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits)
  return tf.reduce_sum(losses * mask) / tf.maximum(tf.reduce_sum(mask), 1.0)


@dataclasses.dataclass(frozen=True)
class Accuracy:
  """The rule of an accuracy: which targets count, which ids are predicted.

  Attributes:
    ignored: ids of the targets that do not count.
    hidden: ids that are never predicted, whatever their logits.
  """

  ignored: tuple[int, ...]
  hidden: tuple[int, ...] = ()

  def correct(
    self, logits: tf.Tensor, y: tf.Tensor
  ) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the numbers of correct predictions and of targets that count.

    Args:
      logits: [..., num_ids] float32.
      y: [...] int32 targets.

    Returns:
      Two scalar float32 tensors. A correct prediction of a target that does not
      count is in neither of them.
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
  """Returns the accuracies of a model, by name.

  | accuracy                        | targets                    | predictions |
  |---------------------------------|----------------------------|-------------|
  | `accuracy`                      | words                      | words       |
  | `accuracy_of_tff`               | words                      | all ids     |
  | `accuracy_with_end_and_unknown` | words, unknown and the end | all ids     |

  'Unknown' is the id of words out of the vocabulary, 'the end' is the id of the
  end of a sentence. `accuracy_of_tff` is the metric
  `accuracy_without_out_of_vocab_or_end_of_sentence` of TFF's StackOverflow
  baseline, which publications quote. This metric increases if a model predicts
  the unknown word and the end less often, even if the model predicts words no
  better. `accuracy_with_end_and_unknown` is the `accuracy` of the baseline.

  Args:
    num_ids: number of ids of a `Vocabulary`: padding 0, words, then
      out-of-vocabulary, beginning and end of sentence.
  """
  padding, unknown, beginning, end = 0, num_ids - 3, num_ids - 2, num_ids - 1
  no_words = (padding, unknown, beginning, end)
  return {
    'accuracy': Accuracy(no_words, no_words),
    'accuracy_of_tff': Accuracy((padding, unknown, end)),
    'accuracy_with_end_and_unknown': Accuracy((padding,)),
  }
