"""Per-query errors of banded C, and their gradient, in TensorFlow.

| symbol | meaning                                                          |
|--------|------------------------------------------------------------------|
| L      | C A^-1, lower-triangular, m + 1 bands; A C^-1 = L^-1             |
| y      | L^-1 z for iid unit z; e_t = var(y_t)                            |
| M      | rounds in a block, at least m                                    |
| T_k    | diagonal block of L, M x M and lower-triangular                  |
| H_k    | block of L to the left of T_k, M x M                             |
| P_k    | covariance of block k of y                                       |
| D_k    | diagonal matrix of d loss / d e                                  |
| G_k    | d loss / d P_k, through all later blocks                         |

Since T_k y_k = z_k - H_k y_{k-1}, with N_k = T_k^-1 H_k and P_{-1} = 0,

  P_k = T_k^-1 T_k^-T + N_k P_{k-1} N_k^T,  e = diag(P_k)
  G_k = D_k + N_{k+1}^T G_{k+1} N_{k+1}
  dT_k = -2 T_k^-T G_k P_k,  dH_k = 2 T_k^-T G_k N_k P_{k-1}

Only the two recursions are sequential, and all operations are matrix products.
The time is O(n M^2) and the memory O(n M); [BandMF24, Alg 3] takes O(n^2 m)
time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Callable, Union

import tensorflow as tf

_Tensors = Union[tf.Tensor, tuple[tf.Tensor, ...]]
# Least rounds in a block; with fewer, the overhead of the loop dominates.
_SHORTEST_BLOCK = 16


def compiled(
  function: Callable[..., _Tensors], *shapes: Sequence[int]
) -> Callable[..., _Tensors]:
  """Returns a function of float64 tensors of these shapes, compiled by XLA."""
  # `tf.function` is called here for each problem, so that each has one trace;
  # otherwise TensorFlow warns about retracing.
  return tf.function(
    function, jit_compile=True, autograph=False
  ).get_concrete_function(*(tf.TensorSpec(each, tf.float64) for each in shapes))


def times_inverse_workload(
  columns: tf.Tensor, inverse_rows: tf.Tensor
) -> tf.Tensor:
  """Returns the columns of L = C A^-1 by their bands.

    L[j + r, j] = sum_p C[j + r, j + p] A^-1[j + p, j]

  Args:
    columns: [n, b] float64, C[j + s, j] at [j, s], 0 where j + s >= n.
    inverse_rows: [n, q] float64, A^-1[t, t - s] at [t, s], 0 where t < s.

  Returns:
    [n, b + min(n, q) - 1] float64, L[j + r, j] at [j, r], 0 where j + r >= n.
  """
  lags = min(inverse_rows.shape)
  product = tf.zeros([], tf.float64)
  for p in range(lags):
    term = columns[p:] * inverse_rows[p:, p : p + 1]
    product += tf.pad(term, [[0, p], [p, lags - 1 - p]])
  return product


@tf.custom_gradient
def per_query_errors(columns: tf.Tensor):
  """Returns e, [n] float64: the squared L2 norms of the rows of L^-1.

  Args:
    columns: [n, m + 1] float64, L[j + s, j] at [j, s], 0 where j + s >= n.
  """
  rounds, bands = columns.shape
  count, size = _blocks(rounds, max(bands - 1, _SHORTEST_BLOCK))
  # Rows of the identity fill the last block. The width of rows is such that
  # after reshaping each diagonal entry is one column right of the one before.
  padding = count * size - rounds
  width = 2 * size + 1
  rows = tf.concat(
    [
      tf.pad(columns, [[0, 0], [0, width - bands]]),
      tf.one_hot([0] * padding, width, dtype=tf.float64),
    ],
    0,
  )
  flat = tf.reshape(rows, [count, size * width])[:, : size * (width - 1)]
  blocks = tf.reshape(flat, [count, size, width - 1])
  nothing = tf.zeros([1, size, size], tf.float64)
  inverse = tf.linalg.triangular_solve(
    blocks[:, :, :size],
    tf.eye(size, batch_shape=[count], dtype=tf.float64),
    lower=False,
    adjoint=True,
  )
  # Block k of `blocks` holds T_k^T and H_{k+1}^T.
  step = tf.concat(
    [nothing, tf.matmul(inverse[1:], blocks[:-1, :, size:], transpose_b=True)],
    0,
  )
  covariance, before = _accumulate(
    tf.matmul(inverse, inverse, transpose_b=True), step, forward=True
  )
  e = tf.reshape(tf.linalg.diag_part(covariance), [-1])[:rounds]

  def gradient(de):
    de = tf.reshape(tf.pad(de, [[0, padding]]), [count, size])
    later = tf.concat([step[1:], nothing], 0)
    adjoint, _ = _accumulate(tf.linalg.diag(de), later, forward=False)
    # K^T = G T^-1; like `blocks`, all further matrices are transposed.
    k = tf.matmul(adjoint, inverse)
    d_diagonal = tf.matmul(covariance, k)
    d_left = tf.matmul(before[1:], k[1:], transpose_a=True)
    d_blocks = 2 * tf.concat([-d_diagonal, tf.concat([d_left, nothing], 0)], 2)
    d_flat = tf.pad(
      tf.reshape(d_blocks, [count, size * (width - 1)]), [[0, 0], [0, size]]
    )
    return tf.reshape(d_flat, [count * size, width])[:rounds, :bands]

  return e, gradient


def _blocks(rounds: int, shortest: int) -> tuple[int, int]:
  """Returns the number and length of blocks with the fewest operations."""
  most, fewer = -(-rounds // shortest), max(rounds // shortest, 1)
  return min(
    (most, shortest),
    (fewer, -(-rounds // fewer)),
    key=lambda blocks: blocks[0] * blocks[1] ** 3,
  )


def _accumulate(
  terms: tf.Tensor, steps: tf.Tensor, forward: bool
) -> tuple[tf.Tensor, tf.Tensor]:
  """Returns all S_k = terms_k + steps_k S_{k-1} steps_k^T, and steps_k S_{k-1}.

  Args:
    terms: [count, M, M] float64.
    steps: [count, M, M] float64.
    forward: if False, S_k = terms_k + steps_k^T S_{k+1} steps_k instead, and
      steps_k^T S_{k+1}.
  """
  count, size, _ = terms.shape

  def body(i, state, states, products):
    k = i if forward else count - 1 - i
    product = tf.matmul(steps[k], state, transpose_a=not forward)
    state = terms[k] + tf.matmul(product, steps[k], transpose_b=forward)
    return (
      i + 1,
      state,
      tf.tensor_scatter_nd_update(states, [[k]], [state]),
      tf.tensor_scatter_nd_update(products, [[k]], [product]),
    )

  nothing = tf.zeros_like(terms)
  *_, states, products = tf.while_loop(
    lambda i, *_: i < count,
    body,
    (tf.constant(0), tf.zeros([size, size], tf.float64), nothing, nothing),
  )
  return states, products
