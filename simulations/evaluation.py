"""Accuracy of next-word predictions."""

from __future__ import annotations

from typing import Any, Optional

import numpy as np
import tensorflow as tf

from simulations import client_data, models

_BATCH = 256


class Evaluator:
  """Evaluates weights on the sentences of one split.

  Accuracy does not count padding, out-of-vocabulary and end-of-sentence
  targets; loss counts all but padding.
  """

  def __init__(
      self,
      clients: client_data.TokenizedClients,
      sentences: Optional[int] = None,
  ):
    """Initializes the evaluator.

    Args:
      clients: of a split that is not trained on.
      sentences: at most this many are taken, at even distances; None for all.
    """
    self._x, self._y = clients.arrays(sentences)
    vocabulary = clients.vocabulary
    ignored = (vocabulary.pad_id, vocabulary.out_of_vocabulary_id,
               vocabulary.end_id)

    @tf.function(autograph=False)
    def evaluate_batch(weights, x, y):
      logits = models.lstm_logits(weights, x)
      right, count = models.correct_words(logits, y, ignored)
      words = tf.reduce_sum(tf.cast(tf.not_equal(y, 0), tf.float32))
      return right, count, models.next_word_loss(logits, y) * words, words

    self._evaluate_batch = evaluate_batch

  def __call__(self, weights: Any) -> dict[str, float]:
    """Returns `accuracy` in [0, 1] and `loss` in nats a word."""
    weights = [tf.constant(weight) for weight in weights]
    totals = np.zeros(4)
    for start in range(0, len(self._x), _BATCH):
      stop = start + _BATCH
      totals += np.array(self._evaluate_batch(
          weights, self._x[start:stop], self._y[start:stop]))
    right, count, loss, words = totals
    return {'accuracy': right / count, 'loss': loss / words}
