"""Loss and accuracies of next-word predictions."""

from __future__ import annotations

from typing import Any, Optional

import numpy as np
import tensorflow as tf

from simulations import models
from simulations.corpora import client_data

_BATCH = 256


class Evaluator:
  """Evaluates weights on the sentences of one split.

  The loss is the mean cross-entropy over all targets that are not padding. Each
  accuracy is a mean over its targets in the table of `models.accuracies`.
  """

  def __init__(
    self,
    model: models.Model,
    clients: client_data.TokenizedClients,
    sentences: Optional[int] = None,
  ):
    """Initializes the evaluator.

    Args:
      model: network whose weights are evaluated.
      clients: clients of the validation or test split.
      sentences: maximum number of sentences, >= 1. If the split has more, the
        evaluated sentences are spaced evenly. If None, all are evaluated.
    """
    self._x, self._y = clients.arrays(sentences)
    self._accuracies = models.accuracies(clients.vocabulary.num_ids)

    @tf.function(autograph=False)
    def evaluate_batch(weights, x, y):
      positions = tf.where(tf.not_equal(y, 0))
      y = tf.gather_nd(y, positions)
      logits = model.logits(weights, x, positions)
      words = tf.cast(tf.size(y), tf.float32)
      return tf.stack(
        [
          (models.next_word_loss(logits, y) * words, words),
          *(
            accuracy.correct(logits, y)
            for accuracy in self._accuracies.values()
          ),
        ]
      )

    self._evaluate_batch = evaluate_batch

  def __call__(self, weights: Any) -> dict[str, float]:
    """Returns `loss`, in nats per word, and accuracies, in [0, 1], by name."""
    weights = [tf.constant(weight) for weight in weights]
    totals = np.zeros((1 + len(self._accuracies), 2))
    for start in range(0, len(self._x), _BATCH):
      stop = start + _BATCH
      totals += self._evaluate_batch(
        weights, self._x[start:stop], self._y[start:stop]
      ).numpy()
    means = (totals[:, 0] / totals[:, 1]).tolist()
    return dict(zip(('loss', *self._accuracies), means))
