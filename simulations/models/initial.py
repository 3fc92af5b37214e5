"""Initial values that the models share."""

from __future__ import annotations

import numpy as np


def glorot(
  generator: np.random.Generator, rows: int, columns: int
) -> np.ndarray:
  """Returns a [rows, columns] float64 matrix, uniform as [Glorot10, Eq 16]."""
  limit = np.sqrt(6 / (rows + columns))
  return generator.uniform(-limit, limit, (rows, columns))


def softmax_bias(num_ids: int) -> np.ndarray:
  """Returns log-frequencies by Zipf's law, [num_ids] float64.

  log p(rank r) = -log(r + 2) + const. Ids of words are in the order of their
  frequency. This start saves the rounds that would learn frequencies, and uses
  no data but the order of the vocabulary.

  Args:
    num_ids: vocabulary with its special ids: padding 0, words by frequency,
      then out-of-vocabulary, beginning and end of sentence.
  """
  bias = -np.log(np.arange(num_ids) + 2.0)
  # Unknown words and the end of a sentence are as frequent as the first words.
  # Padding and the beginning are never predicted.
  bias[-3] = bias[-1] = bias[2]
  bias[0] = bias[-2] = bias.min()
  return bias
