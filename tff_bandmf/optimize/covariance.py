"""Per-query errors of banded C, and their gradient.

| symbol | meaning                                                          |
|--------|------------------------------------------------------------------|
| n      | number of rounds                                                 |
| A      | workload, [n, n]                                                 |
| L      | C A^-1, lower-triangular with m + 1 bands; A C^-1 = L^-1         |
| z, y   | y = L^-1 z for iid unit normals z                                |
| e_t    | var(y_t), the error of query t                                   |
| M      | rounds in a block, at least m                                    |
| y_k    | block k of y: M rounds                                           |
| T_k    | diagonal block of L, M x M and lower-triangular                  |
| H_k    | block of L to the left of T_k, M x M                             |
| P_k    | covariance of y_k                                                |
| D_k    | diagonal matrix of d loss / d e_t in block k                     |
| G_k    | d loss / d P_k, including the effect of P_k on later blocks      |
| dT, dH | d loss / d T and d loss / d H                                    |

Since T_k y_k = z_k - H_k y_{k-1}, with N_k = T_k^-1 H_k and P_{-1} = 0,

  P_k = T_k^-1 T_k^-T + N_k P_{k-1} N_k^T,  e_t of block k: diag(P_k)
  G_k = D_k + N_{k+1}^T G_{k+1} N_{k+1}
  dT_k = -2 T_k^-T G_k P_k,  dH_k = 2 T_k^-T G_k N_k P_{k-1}

Only the recursions of P and G are sequential, and nearly all operations are
matrix products. The time is O(n M^2) and the memory is O(n M);
[BandMF24, Alg 3] takes O(n^2 m) time.
"""

from __future__ import annotations

from typing import Callable

import numpy as np
import scipy.linalg

# Least number of rounds in a block; in smaller blocks the overhead of the loop
# dominates.
SHORTEST_BLOCK = 16

# Function from the gradient by e to the gradient by the columns of C.
Pullback = Callable[[np.ndarray], np.ndarray]


def per_query_errors(
  columns: np.ndarray, inverse_rows: np.ndarray
) -> tuple[np.ndarray, Pullback]:
  """Returns e, the squared L2 norms of the rows of A C^-1, and its pullback.

    L[j + r, j] = sum_p C[j + r, j + p] A^-1[j + p, j]

  Args:
    columns: [n, b] float64, C[j + s, j] at [j, s], 0 where j + s >= n.
    inverse_rows: [n, q] float64, A^-1[t, t - s] at [t, s], 0 where t < s.

  Returns:
    e, [n] float64, and the function from the gradient by e, [n], to the
    gradient by `columns`.
  """
  (rounds, bands), lags = columns.shape, min(inverse_rows.shape)
  count, size = _blocks(rounds, max(bands + lags - 2, SHORTEST_BLOCK))
  # The first columns of `rows` are the bands of the columns of L. Rows of the
  # identity fill up the last block. `rows` is one column wider than `blocks`.
  # So in `blocks`, each diagonal entry is one column to the right of the
  # previous one.
  width = 2 * size + 1
  rows = np.zeros((count * size, width))
  for p in range(lags):
    rows[: rounds - p, p : p + bands] += (
      columns[p:] * inverse_rows[p:, p : p + 1]
    )
  rows[rounds:, 0] = 1.0
  blocks = rows.reshape(count, size * width)[:, : size * (width - 1)]
  blocks = blocks.reshape(count, size, width - 1)
  # Block k of `blocks` holds T_k^T and H_{k+1}^T. LAPACK stores matrices by
  # columns, so that it reads T_k from a block.
  inverse = np.ascontiguousarray(blocks[:, :, :size])
  for block in inverse:
    # LAPACK does not change a T_k that has a 0 on its diagonal.
    inverted, failed = scipy.linalg.lapack.dtrtri(
      block.T, lower=1, overwrite_c=1
    )
    block[:] = np.nan if failed else inverted.T
  inverse = inverse.transpose(0, 2, 1)
  step = np.matmul(inverse[1:], blocks[:-1, :, size:].transpose(0, 2, 1))
  covariance = np.matmul(inverse, inverse.transpose(0, 2, 1))
  before = _accumulate(covariance, step)

  def pullback(by_e):
    adjoint = np.zeros((count, size, size))
    diagonal = adjoint.reshape(count, -1)[:, :: size + 1]
    padded = np.zeros(count * size)
    padded[:rounds] = by_e
    diagonal[:] = padded.reshape(count, size)
    _accumulate(adjoint[::-1], step[::-1].transpose(0, 2, 1))
    # Entry i of `k` is G_i T_i^-1. The gradients below are transposed, like
    # `blocks`.
    k = np.matmul(adjoint, inverse)
    by_rows = np.zeros((count, size * width))
    by_blocks = by_rows[:, : size * (width - 1)]
    by_blocks = by_blocks.reshape(count, size, width - 1)
    np.matmul(covariance, k, out=by_blocks[:, :, :size])
    by_blocks[:, :, :size] *= -2
    np.matmul(before.transpose(0, 2, 1), k[1:], out=by_blocks[:-1, :, size:])
    by_blocks[:-1, :, size:] *= 2
    by_rows = by_rows.reshape(count * size, width)
    by_columns = np.zeros_like(columns)
    for p in range(lags):
      by_columns[p:] += (
        by_rows[: rounds - p, p : p + bands] * inverse_rows[p:, p : p + 1]
      )
    return by_columns

  e = np.einsum('kii->ki', covariance).reshape(-1)[:rounds]
  return e, pullback


def _blocks(rounds: int, shortest: int) -> tuple[int, int]:
  """Returns the number and the length of blocks with the fewest operations."""
  most, fewer = -(-rounds // shortest), max(rounds // shortest, 1)
  return min(
    (most, shortest),
    (fewer, -(-rounds // fewer)),
    key=lambda blocks: blocks[0] * blocks[1] ** 3,
  )


def _accumulate(terms: np.ndarray, steps: np.ndarray) -> np.ndarray:
  """Returns all products N_k S_{k-1}, and replaces `terms` by S.

    S_0 = terms_0,  S_k = N_k S_{k-1} N_k^T + terms_k

  Args:
    terms: [count, M, M] float64.
    steps: [count - 1, M, M] float64, N_1, N_2, ....
  """
  products = np.empty(steps.shape)
  added = np.empty(terms.shape[1:])
  for state, step, product, term in zip(terms, steps, products, terms[1:]):
    np.matmul(step, state, out=product)
    np.matmul(product, step.T, out=added)
    term += added
  return products
