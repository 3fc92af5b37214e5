"""The columns of a banded C: inner products with vectors and each other."""

from __future__ import annotations

import functools

import numpy as np
import scipy.sparse

from tff_bandmf import _checks, strategies
from tff_bandmf.accounting.methods import accountants

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

  # PRIVACY: Privacy losses are computed from these products. If a product were
  # missing, these losses and delta would be too small.
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

  # PRIVACY: Privacy losses are computed from these columns. If a column were
  # missing, its round would add no privacy loss.
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


def nonnegative(strategy: strategies.Strategy, min_sep: int) -> np.ndarray:
  """Returns the entries of the columns of a C >= 0, [n, bands] float64.

  Raises:
    ValueError: C has more bands than `min_sep`, or a negative entry.
  """
  # PRIVACY: If C had more bands than `min_sep`, columns of a client's rounds
  # could have non-zero entries in the same row. The likelihood ratio would
  # not be a product over rounds, and delta could be too low. Such a C is
  # refused.
  # Guard: b_min_sep_test.test_more_bands_than_min_sep_are_refused.
  _checks.at_most('bands', strategy.bands, min_sep, 'min_sep', 'use fewer')
  rows = strategy.band_rows(0, strategy.rounds)
  accountants.check_nonnegative(np.min(rows))
  return strategies.columns_of_rows(rows)
