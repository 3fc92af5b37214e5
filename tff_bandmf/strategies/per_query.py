"""Per-query errors of a workload A, for C or C^-1 with few bands.

The per-query error e_t is the squared L2 norm of row t of A C^-1. It equals the
variance of row t of y = A C^-1 z for iid z of unit variance. This y solves
L y = R z with lower-triangular, banded L and R:

| C has few bands    | L = C A^-1 | R = I    |
| C^-1 has few bands | L = A^-1   | R = C^-1 |

The variances are computed for one block of M rounds after another, where L and
R have at most M + 1 bands. A prime denotes the previous block:

| symbol   | meaning, in the rows of this block                   |
|----------|------------------------------------------------------|
| Y, Z     | rows of y and z                                      |
| T, H     | L in this block's columns; in the previous block's   |
| R_0, R_1 | R in this block's columns; in the previous block's   |

  T Y = R_0 Z + R_1 Z' - H Y'
  cov(Y) = T^-1 (R_0 R_0^T + S) T^-T
  S = H cov(Y') H^T + R_1 R_1^T - H K R_1^T - R_1 K^T H^T,  K = cov(Y', Z')

The time is O(n M^2), spent in matrix products, and the memory is O(M^2);
[BandMF24, Alg 3] takes O(n^2 M) time.
"""

from __future__ import annotations

from typing import Any, Callable

import numpy as np
import scipy.linalg

from tff_bandmf import _checks, errors, workloads

# Least number of rounds of a block: smaller products take nearly as long.
_SHORTEST_BLOCK = 64
# Largest number of rounds of a block, whose float64 matrix takes 3.2 GB.
LONGEST_BLOCK = 20_000

# Function (start, stop) -> [stop - start, bands] float64, the rows start to
# stop - 1 of a banded matrix M. The entry of row t and column s is M[t, t - s].
BandRows = Callable[[int, int], np.ndarray]


def of_few_bands(strategy: Any, workload: workloads.Workload) -> np.ndarray:
  """Returns e, [rounds] float64, for a C or a C^-1 of few bands.

  Args:
    strategy: C, a `Strategy`.
    workload: A, whose inverse has few bands.

  Raises:
    ValueError: the blocks would not fit in memory, or C^-1 overflows.
  """
  rounds, bands = strategy.rounds, strategy.bands
  inverse = workload.inverse_rows(rounds)
  width = inverse.shape[1]

  def left(start, stop):
    # L[t, t - s] = sum_i C[t, t - i] A^-1[t - i, t - s]
    product = np.zeros((stop - start, bands + width - 1))
    c = strategy.band_rows(start, stop)
    for i in range(bands):
      t = np.maximum(np.arange(start, stop) - i, 0)
      product[:, i : i + width] += c[:, i : i + 1] * inverse[t]
    return product

  few = strategy.inverse_bands
  if few is None:
    return of_noise(rounds, bands + width - 1, left)
  rows = strategy.inverse_band_rows
  return of_noise(rounds, width, lambda low, high: inverse[low:high], few, rows)


def of_matrix(c: np.ndarray, workload: np.ndarray) -> np.ndarray:
  """Returns e, [rounds] float64, of matrices C and A, [rounds, rounds] each."""
  # The columns of (A C^-1)^T = C^-T A^T are the rows of A C^-1.
  decoder = scipy.linalg.solve_triangular(c.T, workload.T, lower=False)
  with np.errstate(over='ignore', invalid='ignore'):
    return check_finite(np.einsum('ij,ij->j', decoder, decoder))


def of_noise(
  rounds: int,
  left_bands: int,
  left: BandRows,
  right_bands: int = 1,
  right: BandRows = lambda start, stop: np.ones((stop - start, 1)),
) -> np.ndarray:
  """Returns the variances of y where L y = R z, [rounds] float64.

  Args:
    rounds: n.
    left_bands: number of bands of L.
    left: function that returns rows of L.
    right_bands: number of bands of R.
    right: function that returns rows of R; by default R is the identity.

  Raises:
    ValueError: the blocks would not fit in memory, or L^-1 overflows.
  """
  memory = max(left_bands, right_bands) - 1
  block = min(max(memory, _SHORTEST_BLOCK), rounds)
  _checks.at_most('bands', block, LONGEST_BLOCK, 'LONGEST_BLOCK', 'use fewer')
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
      both = np.concatenate([noise, right_triangle], 1)
      solved = scipy.linalg.solve_triangular(
        triangle, both, lower=True, check_finite=False
      )
      y_cov = scipy.linalg.solve_triangular(
        triangle, solved[:, :count].T, lower=True, check_finite=False
      )
    cross = solved[:, count:]
    e[start:stop] = np.diagonal(y_cov)
  return check_finite(e)


def check_finite(values: Any) -> Any:
  """Returns numbers that follow from C; raises ValueError if one overflows."""
  if not np.all(np.isfinite(values)):
    raise errors.value_error(
      'C=NaN or infinity: C or C^-1 overflows; use fewer rounds, or a better '
      'conditioned C, whose series has no root in the unit disc'
    )
  return values


def _dense(rows: np.ndarray, block: int) -> tuple[np.ndarray, np.ndarray]:
  """Returns banded rows of a block as two dense matrices.

  Args:
    rows: [count, bands] float64.
    block: rounds of the previous block, at least bands - 1.

  Returns:
    [count, block], the columns of the previous block, and [count, count],
    the columns of this block.
  """
  dense = np.zeros((len(rows), block + len(rows)))
  entries = skewed(rows)
  dense[:, -entries.shape[1] :] = entries[:, -dense.shape[1] :]
  return dense[:, :block], dense[:, block:]


def skewed(rows: np.ndarray) -> np.ndarray:
  """Returns M with M[t, t - s + bands - 1] = rows[t, s] and 0 elsewhere.

  Args:
    rows: [count, bands] float64.

  Returns:
    [count, count + bands - 1] float64. Its last `count` columns are the square
    part of the banded matrix around the diagonal.
  """
  count, bands = rows.shape
  padded = np.zeros((count, count + bands))
  padded[:, :bands] = rows[:, ::-1]
  # A row of the result is one entry shorter than a row of `padded`. So
  # `reshape` moves row t by t columns to the right.
  return padded.reshape(-1)[:-count].reshape(count, count + bands - 1)
