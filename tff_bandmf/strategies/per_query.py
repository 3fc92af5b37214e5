"""Per-query errors of a workload, for C or C^-1 with few bands.

With L y = R z, L and R lower-triangular and banded and z iid of unit variance,
e_t is the variance of y_t. Two pairs cover what has bands at all:

| C has few bands    | L = C A^-1 | R = I    |
| C^-1 has few bands | L = A^-1   | R = C^-1 |

A block of M rounds at a time, M at least the memory of L and R:

  T Y = R_0 Z + R_1 Z' - H Y'          (') the block before
  cov(Y) = T^-1 (R_0 R_0^T + S) T^-T
  S = H cov(Y') H^T + R_1 R_1^T - H K R_1^T - R_1 K^T H^T,  K = cov(Y', Z')

so the cost is O(n M^2), in matrix products, and the memory O(M^2). [BandMF24,
Alg 3] is O(n^2 M).
"""

from __future__ import annotations

from typing import Callable

import numpy as np
import scipy.linalg

from tff_bandmf import errors, workloads

# A block is at least so long: matrix products cost little up to here.
_SHORTEST_BLOCK = 64
# Float64 matrices of this side are as large as is sensible: 3.2 GB.
LONGEST_BLOCK = 20_000

# Rows of a banded matrix by their bands: (start, stop) -> [stop - start, bands]
BandRows = Callable[[int, int], np.ndarray]


def of_banded(
  rounds: int, bands: int, rows: BandRows, workload: workloads.Workload
) -> np.ndarray:
  """Returns e, [rounds] float64, for C of few bands, given by its rows.

  Raises:
    ValueError: the blocks would not fit in memory, or C^-1 overflows.
  """
  inverse = workload.inverse_rows(rounds)
  inverse_bands = inverse.shape[1]

  def left(start, stop):
    # L[t, t - s] = sum_i C[t, t - i] A^-1[t - i, t - s]
    product = np.zeros((stop - start, bands + inverse_bands - 1))
    c = rows(start, stop)
    for i in range(bands):
      t = np.arange(start, stop) - i
      product[:, i : i + inverse_bands] += (
        c[:, i : i + 1] * inverse[np.maximum(t, 0)]
      )
    return product

  return of_noise(rounds, bands + inverse_bands - 1, left)


def of_banded_inverse(
  rounds: int, bands: int, rows: BandRows, workload: workloads.Workload
) -> np.ndarray:
  """Returns e, [rounds] float64, for C^-1 of few bands, given by its rows.

  Raises:
    ValueError: the blocks would not fit in memory.
  """
  inverse = workload.inverse_rows(rounds)
  return of_noise(
    rounds,
    inverse.shape[1],
    lambda start, stop: inverse[start:stop],
    bands,
    rows,
  )


def of_noise(
  rounds: int,
  left_bands: int,
  left: BandRows,
  right_bands: int = 1,
  right: BandRows = lambda start, stop: np.ones((stop - start, 1)),
) -> np.ndarray:
  """Returns the variances of y where L y = R z, [rounds] float64.

  R is the identity where none is given.

  Raises:
    ValueError: the blocks would not fit in memory, or L^-1 overflows.
  """
  memory = max(left_bands, right_bands) - 1
  block = min(max(memory, _SHORTEST_BLOCK), rounds)
  if block > LONGEST_BLOCK:
    raise errors.value_error(
      f'rounds={rounds}: with more than {LONGEST_BLOCK} bands the errors of '
      'this workload do not fit in memory; use fewer rounds or bands'
    )
  e = np.empty(rounds)
  y_cov = cross = np.zeros((block, block))
  for start in range(0, rounds, block):
    stop = min(start + block, rounds)
    count = stop - start
    before, triangle = _dense(left(start, stop), block)
    right_before, right_triangle = _dense(right(start, stop), block)
    mixed = (before @ cross) @ right_before.T
    noise = (
      right_triangle @ right_triangle.T
      + right_before @ right_before.T
      + before @ y_cov @ before.T
      - mixed
      - mixed.T
    )
    with np.errstate(over='ignore', invalid='ignore'):
      solved = scipy.linalg.solve_triangular(
        triangle,
        np.concatenate([noise, right_triangle], 1),
        lower=True,
        check_finite=False,
      )
      y_cov = scipy.linalg.solve_triangular(
        triangle, solved[:, :count].T, lower=True, check_finite=False
      )
    cross = solved[:, count:]
    e[start:stop] = np.diagonal(y_cov)
  return check_finite(e)


def check_finite(e: np.ndarray) -> np.ndarray:
  """Returns e, [rounds] float64; raises ValueError if C^-1 overflows."""
  if not np.all(np.isfinite(e)):
    raise errors.value_error(
      f'C={len(e)} rounds: C^-1 overflows; use a better conditioned C'
    )
  return e


def _dense(rows: np.ndarray, block: int) -> tuple[np.ndarray, np.ndarray]:
  """Returns [count, block] before the diagonal, and [count, count] at it."""
  dense = np.zeros((len(rows), block + len(rows)))
  entries = skewed(rows)
  dense[:, -entries.shape[1] :] = entries[:, -dense.shape[1] :]
  return dense[:, :block], dense[:, block:]


def skewed(rows: np.ndarray) -> np.ndarray:
  """Returns M[t, t - s + bands - 1] = rows[t, s], 0 elsewhere.

  It is [count, count + bands - 1] float64, and its last `count` columns are
  square; `rows` is [count, bands].
  """
  count, bands = rows.shape
  padded = np.zeros((count, count + bands))
  padded[:, :bands] = rows[:, ::-1]
  # Rows one shorter than they were move by one more each.
  return padded.reshape(-1)[:-count].reshape(count, count + bands - 1)
