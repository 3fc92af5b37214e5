"""Largest sums of non-negative weights over participation patterns.

A pattern is a set of indices of rounds.

| symbol | name here | meaning                                        |
|--------|-----------|------------------------------------------------|
| b      | `min_sep` | least difference of two indices of a pattern   |
| k      | `count`   | largest number of indices of a pattern         |
| v      | `weights` | weight of each index                           |
| F[i,m] |           | largest sum over <= m indices, all >= i        |
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np


def heaviest(weights: np.ndarray, min_sep: int, count: int) -> np.ndarray:
  """Returns the largest sum of the weights of a pattern, F[0, k].

    F[i, m] = max(v_i + F[i + b, m - 1], F[i + 1, m])

  is the recursion of [BandMF23, Alg 3]. It is computed for many i at a time.

  PRIVACY: If a heavier pattern were overlooked, a sensitivity would be too
  small. The maximum is over all patterns.
  Guard: sensitivity_test.test_heaviest_pattern_of_random_weights.

  Args:
    weights: [..., n] float64, non-negative.
    min_sep: b, least difference of two indices of a pattern.
    count: k, largest number of indices of a pattern.

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
  # From here on k >= ceil(n / b), so no pattern has more than k indices. The
  # index m is dropped: F[i] = max(v_i + F[i + b], F[i + 1]). F[i + b] belongs
  # to the next block of b indices, so all i of one block are computed together.
  width = min(min_sep, n)
  best = np.zeros((*weights.shape[:-1], width))
  for start in reversed(range(0, n, width)):
    take = weights[..., start : start + width]
    take = best[..., : take.shape[-1]] + take
    # F[start + b] is the largest sum without an index in this block.
    take[..., -1] = np.maximum(take[..., -1], best[..., 0])
    best[..., : take.shape[-1]] = _running_max(take)
  return best[..., 0]


# PRIVACY: If the next round of a pattern were too early or too late, the
# maximum would be wrong. The next round is at least b rounds later.
# Guard: sensitivity_test.test_heaviest_pattern_of_random_weights.
def with_one_more(
  best: np.ndarray, weights: np.ndarray, min_sep: int
) -> np.ndarray:
  """Returns F[:, m] from F[:, m - 1], both [..., n] float64.

  Args:
    best: F[:, m - 1].
    weights: [..., n] float64, non-negative.
    min_sep: b.
  """
  take = weights.copy()
  take[..., :-min_sep] += best[..., min_sep:]
  return _running_max(take)


def heaviest_fixed(
  lags: Iterable[np.ndarray], rounds: int, min_sep: int, count: int
) -> float:
  """Returns the largest sum of X over k indices that are exactly b apart.

    max_i sum_{a, c < k} X[i + a b, i + c b]

  PRIVACY: If a pair of indices, or an offset i, were overlooked, a sensitivity
  would be too small. Each pair counts twice, and each i is tried.
  Guard:
  random_structures_test.test_random_patterns_never_exceed_the_sensitivity.

  Args:
    lags: arrays number e = 0, 1, ... of float64. Element i < n - e b of array e
      is X[i, i + e b] >= 0; further elements, up to n, are 0. If the iterable
      ends before e = k - 1, the remaining X[i, i + e b] are 0.
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
  """Returns the sums of `count` successive rows, [rows, b].

  Row r of the result is the sum of rows r, ..., r + count - 1 of `epochs`.
  """
  sums = np.cumsum(epochs[::-1], axis=0)[::-1]
  if count < len(epochs):
    sums[:-count] -= sums[count:].copy()
  return sums


# PRIVACY: If the maximum missed a later round, the sensitivity would be too
# small. The maximum includes all later rounds.
# Guard: admission_test.test_patterns_let_in_never_exceed_the_sensitivity.
def _running_max(values: np.ndarray) -> np.ndarray:
  """Returns max_{j >= i} values[..., j] for each i, [..., n]."""
  return np.maximum.accumulate(values[..., ::-1], axis=-1)[..., ::-1]
