"""Initial values of weights, for models of any architecture."""

from __future__ import annotations

import numpy as np


def glorot(
  generator: np.random.Generator, rows: int, columns: int
) -> np.ndarray:
  """Returns a [rows, columns] float64 matrix of uniform draws.

  The draws are in [-l, l] with l = sqrt(6 / (rows + columns)) [Glorot10, Eq
  16]: Glorot, Bengio, "Understanding the difficulty of training deep
  feedforward neural networks", AISTATS 2010.
  """
  limit = np.sqrt(6 / (rows + columns))
  return generator.uniform(-limit, limit, (rows, columns))


def softmax_bias(num_ids: int) -> np.ndarray:
  """Returns log-frequencies of ids by Zipf's law, [num_ids] float64.

    log p(id) = -log(id + 2) + const

  The ids of words are in the order of their frequency. This initial bias saves
  the rounds that would learn frequencies. It uses no data but the order of the
  words.

  Args:
    num_ids: number of ids of a `Vocabulary`: padding 0, words by frequency,
      then out-of-vocabulary, beginning and end of sentence.
  """
  bias = -np.log(np.arange(num_ids) + 2.0)
  # Out-of-vocabulary and the end of a sentence get the frequency of the second
  # word. Padding and the beginning are never targets and get the least value.
  bias[-3] = bias[-1] = bias[2]
  bias[0] = bias[-2] = bias.min()
  return bias
