"""The columns of a banded C: inner products with vectors and each other."""

from __future__ import annotations

import functools

import numpy as np
import scipy.sparse

# Columns in a dense block: smaller blocks have fewer zeros, and larger blocks
# have faster products.
_BLOCK = 64


class Columns:
  """The columns c_i of C.

  Args:
    entries: [n, bands] float64, entries[j, s] = C[j + s, j].

  Attributes:
    matrix: C, [n, n] float64, sparse.
    bands: number of bands of C.
    squares: [n] float64, |c_i|^2.
  """

  def __init__(self, entries: np.ndarray):
    rounds, self.bands = entries.shape
    # Diagonal -s of `dia_matrix` has C[j + s, j] in its column j.
    self.matrix = scipy.sparse.dia_matrix(
      (entries.T, -np.arange(self.bands)), shape=(rounds, rounds)
    ).tocsr()
    self.squares = self.matrix.power(2).sum(axis=0).A1

  # PRIVACY: Losses are computed from these products. If a product were missing,
  # the losses and delta would be too small.
  # Guard: b_min_sep_test.test_separation_of_one_is_poisson_sampling.
  @functools.cached_property
  def gram(self) -> np.ndarray:
    """Returns <c_i, c_(i + d)>, [n, bands] float64, 0 past the last column."""
    rounds = len(self.squares)
    gram = np.zeros((rounds, self.bands))
    size = max(_BLOCK, self.bands)
    for start in range(0, rounds, size):
      part = slice(start, start + size + self.bands - 1)
      dense = self.matrix[part, part].toarray()
      products = dense[:, :size].T @ dense
      for i, row in enumerate(products):
        row = row[i : i + self.bands]
        gram[start + i, : len(row)] = row
    return gram

  # PRIVACY: Losses are computed from these columns. If a column were missing,
  # its round would cost nothing.
  # Guard: b_min_sep_test.test_recursions_are_the_sums_over_patterns.
  @functools.cached_property
  def _blocks(self) -> list[tuple[slice, slice, np.ndarray]]:
    """Blocks of C: (columns, their nonzero rows, [columns, rows] float64)."""
    blocks = []
    for start in range(0, len(self.squares), _BLOCK):
      columns = slice(start, start + _BLOCK)
      rows = slice(start, start + _BLOCK + self.bands - 1)
      blocks.append((columns, rows, self.matrix[rows, columns].T.toarray()))
    return blocks

  def products(self, y: np.ndarray) -> np.ndarray:
    """Returns <c_i, y> for each column y of an [n, count] array.

    The result is [n, count] float64; row i has the products with c_i.
    """
    products = np.empty_like(y)
    for columns, rows, block in self._blocks:
      np.matmul(block, y[rows], out=products[columns])
    return products


def of_rows(rows: np.ndarray) -> np.ndarray:
  """Returns the entries of the columns of C, [n, bands] float64.

  Args:
    rows: [n, bands] float64, rows[t, s] = C[t, t - s].
  """
  entries = np.zeros_like(rows)
  for s in range(rows.shape[1]):
    entries[: len(rows) - s, s] = rows[s:, s]
  return entries
