"""The heaviest participation pattern of weights that are not negative.

| symbol | name here | meaning                                        |
|--------|-----------|------------------------------------------------|
| b      | `min_sep` | least difference of two chosen indices         |
| k      | `count`   | most indices chosen                            |
| v      | `weights` | weight of an index                             |
| F[i,m] |           | largest weight of at most m indices >= i       |
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np


def heaviest(weights: np.ndarray, min_sep: int, count: int) -> np.ndarray:
  """Returns the largest sum over at most `count` entries `min_sep` apart.

    F[i, m] = max(v_i + F[i + b, m - 1], F[i + 1, m])

  [BandMF23, Alg 3], computed for blocks of i in one step.

  Args:
    weights: [..., n] float64, non-negative.
    min_sep: b, least difference of two chosen indices.
    count: k, most indices chosen.

  Returns:
    [...] float64, one sum for each row of weights.
  """
  n = weights.shape[-1]
  if min_sep == 1:
    return np.sort(weights)[..., max(n - count, 0) :].sum(-1)
  if count < -(-n // min_sep):
    best = np.zeros_like(weights)
    for _ in range(count):
      best = with_one_more(best, weights, min_sep)
    return best[..., 0]
  # If min_sep alone limits the count, F does not depend on m. F[i + b] belongs
  # to the next block of b indices, so all i of one block are computed together.
  width = min(min_sep, n)
  best = np.zeros((*weights.shape[:-1], width))
  for start in reversed(range(0, n, width)):
    take = weights[..., start : start + width]
    take = best[..., : take.shape[-1]] + take
    # F[start + b]: no index of this block is chosen.
    take[..., -1] = np.maximum(take[..., -1], best[..., 0])
    best[..., : take.shape[-1]] = _running_max(take)
  return best[..., 0]


def with_one_more(
  best: np.ndarray, weights: np.ndarray, min_sep: int
) -> np.ndarray:
  """Returns F[:, m], [..., n] float64, from `best`, F[:, m - 1]."""
  take = weights.copy()
  take[..., :-min_sep] += best[..., min_sep:]
  return _running_max(take)


def heaviest_fixed(
  lags: Iterable[np.ndarray], rounds: int, min_sep: int, count: int
) -> float:
  """Returns the largest sum of X over k indices at distances of exactly b.

    max_i sum_{a, c < k} X[i + a b, i + c b]

  Args:
    lags: arrays [n - e b] float64 of X[i, i + e b] >= 0 for e = 0, 1, ...;
      entries of X at larger distances are 0.
    rounds: n.
    min_sep: b.
    count: k.
  """
  width = min(min_sep, rounds)
  total = np.zeros((-(-rounds // width), width))
  for e, lag in zip(range(count), lags):
    padded = np.zeros_like(total)
    padded.reshape(-1)[: len(lag)] = lag
    total += (2 if e else 1) * _window_sums(padded, count - e)
  return float(total.max())


def _window_sums(epochs: np.ndarray, count: int) -> np.ndarray:
  """Returns the sums of each row and the count - 1 rows after it, [rows, b]."""
  sums = np.cumsum(epochs[::-1], axis=0)[::-1]
  if count < len(epochs):
    sums[:-count] -= sums[count:].copy()
  return sums


def _running_max(values: np.ndarray) -> np.ndarray:
  """Returns max_{j >= i} values[..., j] for each i, [..., n]."""
  return np.maximum.accumulate(values[..., ::-1], axis=-1)[..., ::-1]
