"""Any lower-triangular C, entry by entry."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np
import scipy.linalg

from tff_bandmf import errors
from tff_bandmf.strategies import base


@dataclasses.dataclass(frozen=True, eq=False)
class Dense(base.Strategy):
  """C given as a matrix.

  Attributes:
    values: [n, n] float64, lower-triangular, finite, positive diagonal.
      Copied; read-only.

  Raises:
    TypeError: the entries are no real numbers.
    ValueError: the matrix is not of that form.
  """

  family: ClassVar[str] = 'dense'
  values: np.ndarray

  def __post_init__(self):
    values = base.real_array('C', self.values)
    shape = values.shape
    if len(shape) != 2 or shape[0] != shape[1] or not shape[0]:
      raise ValueError(
          errors.invalid(
              'C.shape', shape, 'must be square and not empty',
              'give the n x n strategy matrix'))
    if np.any(np.triu(values, 1)):
      raise ValueError(
          errors.invalid(
              'C', 'entries above the diagonal', 'must be lower-triangular',
              'C is the factor that multiplies the data, C[t, i] = 0 for i > t'
          ))
    base.check_entries('C', values, np.diagonal(values))
    values.flags.writeable = False
    object.__setattr__(self, 'values', values)

  @property
  def rounds(self) -> int:
    return len(self.values)

  @property
  def bands(self) -> int:
    t, i = np.nonzero(self.values)
    return int(np.max(t - i)) + 1

  def band_rows(self, start: int, stop: int) -> np.ndarray:
    t = np.arange(start, stop)[:, None]
    i = t - np.arange(self.bands)
    return np.where(i >= 0, self.values[t, np.maximum(i, 0)], 0.0)

  def prefix_errors(self) -> tuple[float, float]:
    # (A C^-1)^T = C^-T A^T, solved row by row of A C^-1.
    decoder = scipy.linalg.solve_triangular(
        self.values.T, np.triu(np.ones_like(self.values)), lower=False).T
    with np.errstate(over='ignore', invalid='ignore'):
      per_query = np.einsum('ij,ij->i', decoder, decoder)
    if not np.all(np.isfinite(per_query)):
      raise ValueError(
          errors.invalid(
              'C', f'{self.rounds} rounds', 'C^-1 overflows',
              'use a better conditioned C'))
    return float(per_query.mean()), float(per_query.max())

  def arrays(self) -> dict[str, np.ndarray]:
    return {'values': self.values}

  def matrix(self) -> np.ndarray:
    return self.values
