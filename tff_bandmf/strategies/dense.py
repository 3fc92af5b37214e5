"""Any lower-triangular C, entry by entry."""

from __future__ import annotations

import functools
from typing import ClassVar

import attrs
import numpy as np

from tff_bandmf import _checks, workloads
from tff_bandmf.strategies import base, families, per_query


@attrs.frozen(slots=False, eq=False)
class Dense(base.Strategy):
  """C given as a matrix.

  Attributes:
    values: [n, n] float64, lower-triangular, finite, positive diagonal.
      Copied; read-only.

  Raises:
    TypeError: an entry is not a real number.
    ValueError: the matrix is not square, lower-triangular and finite with a
      positive diagonal, or its entries are too small or too large.
  """

  family: ClassVar[str] = 'dense'
  rows_are_given: ClassVar[bool] = True
  values: np.ndarray = attrs.field(
    converter=lambda values: _checks.lower_triangular('C', values)
  )

  def __attrs_post_init__(self):
    base.check_entries('C', self.values, np.diagonal(self.values))

  @property
  def rounds(self) -> int:
    return len(self.values)

  @functools.cached_property
  def bands(self) -> int:
    t, i = np.nonzero(self.values)
    return int(np.max(t - i)) + 1

  def band_rows(self, start: int, stop: int) -> np.ndarray:
    t = np.arange(start, stop)[:, None]
    i = t - np.arange(self.bands)
    return np.where(i >= 0, self.values[t, np.maximum(i, 0)], 0.0)

  def per_query_errors(
    self, workload: workloads.Workload = workloads.PREFIX
  ) -> np.ndarray:
    return per_query.of_matrix(self.values, workload.matrix(self.rounds))

  def part(self, start: int, stop: int, first: int) -> np.ndarray:
    return self.values[start:stop, first:stop]


def lower_factor(gram: np.ndarray) -> np.ndarray:
  """Returns the lower-triangular C with C^T C = X.

  PRIVACY: The sensitivity of C depends on C^T C. The Cholesky factor F of X has
  F F^T = X instead, so a sensitivity for X could be too small for F. This
  function reverses rows and columns of X and of its factor. Then C^T C = X.
  Guard: strategies_test.test_lower_factor_has_this_gram.

  Args:
    gram: X, [n, n] float64, positive definite.

  Returns:
    [n, n] float64, positive diagonal.

  Raises:
    numpy.linalg.LinAlgError: X is not positive definite.

  >>> lower_factor(np.array([[5.0, 2.0], [2.0, 4.0]]))
  array([[2., 0.],
         [1., 2.]])
  """
  return np.linalg.cholesky(gram[::-1, ::-1])[::-1, ::-1].T.copy()


FAMILIES = (
  families.Family(
    Dense,
    'the optimum',
    'SingleEpoch22, MultiEpoch23',
    parameters=(
      families.Parameter(
        'gap',
        float,
        'Relative distance from the least error at which a search ends.',
        default=1e-6,
      ),
    ),
    memory=families.ALL_ROUNDS,
    optimizer='tff_bandmf.optimize.searches:dense',
  ),
)
