"""The heaviest participation pattern of a vector of non-negative weights."""

from __future__ import annotations

import numpy as np


def heaviest(weights: np.ndarray, min_sep: int, count: int) -> np.ndarray:
  """Returns the largest sum over at most `count` entries `min_sep` apart.

    F[i, m] = max(v_i + F[i + b, m - 1], F[i + 1, m])

  [BandMF23, Alg 3], for every row of `weights` at once.

  Args:
    weights: [..., n] float64, non-negative.
    min_sep: b, the least difference of two chosen indices.
    count: k, the most indices chosen.

  Returns:
    [...] float64.
  """
  n = weights.shape[-1]
  # Where min_sep alone bounds the count, F needs no m: F[i, m-1] = F[i, m].
  counted = count * min_sep < n
  source = slice(None, -1) if counted else slice(1, None)
  levels = count if counted else 1
  # Ring over i of F[i, 0..k]; entries at or past n are 0.
  ring = np.zeros((min_sep + 1,) + weights.shape[:-1] + (levels + 1,))
  for i in range(n - 1, -1, -1):
    skip = ring[(i + 1) % (min_sep + 1)]
    take = ring[(i + min_sep) % (min_sep + 1)][..., source]
    # i and i + b + 1 share a slot: `take` and `skip` are read before it.
    best = np.maximum(take + weights[..., i, None], skip[..., 1:])
    ring[i % (min_sep + 1)][..., 1:] = best
  return ring[0][..., -1]


def heaviest_fixed(weights: np.ndarray, min_sep: int, count: int) -> float:
  """Returns the largest sum of at most `count` entries exactly `min_sep` apart.

  Args:
    weights: [n] float64, non-negative.
    min_sep: b, the difference of consecutive chosen indices.
    count: k, the most indices chosen.
  """
  n = len(weights)
  rows = -(-n // min_sep)
  epochs = np.zeros((rows, min_sep))
  epochs.reshape(-1)[:n] = weights
  return float(window_sums(epochs, count).max())


def window_sums(epochs: np.ndarray, count: int) -> np.ndarray:
  """Returns sums of `count` consecutive rows that end at each row.

  Args:
    epochs: [rows, b] float64.
    count: rows in a window; windows at the start are shorter.

  Returns:
    [rows, b] float64.
  """
  sums = np.cumsum(epochs, axis=0)
  if count < len(epochs):
    sums[count:] -= sums[:-count].copy()
  return sums
