"""A Toeplitz C with its columns scaled to unit norm."""

from __future__ import annotations

import functools
from typing import ClassVar, Optional

import attrs
import numpy as np

from tff_bandmf import _files, errors, workloads
from tff_bandmf.strategies import base, per_query, toeplitz
from tff_bandmf.strategies import recursion as recursion_lib


@attrs.frozen(slots=False, eq=False)
class ColumnNormalized(base.Strategy):
  """C D^-1 for a Toeplitz C, where D = diag(column norms of C).

  The columns of C end at row n - 1, so the last columns have smaller norms than
  the first columns, and the last rounds need less noise. The noise of C D^-1 is
  D (C^-1 z): the noise of round i is multiplied by the norm of column i. C D^-1
  is not Toeplitz, so theorems about the sensitivity of Toeplitz matrices do not
  apply to it. For DP-CGD with scaled columns there is a separate theorem.

  Attributes:
    toeplitz: C.

  >>> from tff_bandmf import strategies
  >>> c = ColumnNormalized(strategies.BandedToeplitz(2, [3.0, 4.0]))
  >>> c.matrix()
  array([[0.6, 0. ],
         [0.8, 1. ]])
  """

  structure: ClassVar[str] = base.NORMALIZED_TOEPLITZ
  toeplitz: toeplitz.Toeplitz

  def __attrs_post_init__(self):
    if not isinstance(self.toeplitz, toeplitz.Toeplitz):
      raise errors.type_error(
        f'column_normalize=True: {type(self.toeplitz).__name__} is not '
        'Toeplitz; leave it out'
      )

  @property
  def family(self) -> str:
    return self.toeplitz.family

  @property
  def rounds(self) -> int:
    return self.toeplitz.rounds

  @property
  def bands(self) -> int:
    return self.toeplitz.bands

  @property
  def inverse_bands(self):
    return self.toeplitz.inverse_bands

  @property
  def buffers(self):
    return self.toeplitz.buffers

  @functools.cached_property
  def column_norms(self) -> np.ndarray:
    """The diagonal of D, [n] float64, read-only."""
    # Column i of C holds the first n - i entries of the first column.
    base.check_rounds(self.rounds)
    with np.errstate(over='ignore', invalid='ignore'):
      # PRIVACY: If the norm of a column overflowed to infinity, the scaled
      # column would be 0. The sensitivity would not count the round of this
      # column, and would be too small. This check refuses norms that overflow.
      # Guards: strategies_test.test_column_norm_that_overflows_is_refused and
      # random_structures_test.test_random_patterns_never_exceed_the_sensitivity
      norms = np.sqrt(np.cumsum(self.toeplitz.column(self.rounds) ** 2))[::-1]
    per_query.check_finite(norms)
    norms.flags.writeable = False
    return norms

  def first_column(self) -> np.ndarray:
    """Returns the first column of the Toeplitz C, before it is scaled."""
    return self.toeplitz.first_column()

  def series(self) -> Optional[_files.JsonObject]:
    return self.toeplitz.series()

  def column_norms_squared(self) -> np.ndarray:
    return np.ones(self.rounds)

  def buffered(
    self, rounds: int, norms: Optional[np.ndarray] = None
  ) -> Optional[recursion_lib.Buffers]:
    return self.toeplitz.buffered(rounds, self.column_norms)

  def _recursion(self) -> recursion_lib.Recursion:
    return self.buffered(self.rounds) or toeplitz.NormalizedWindow(self)

  def column_error(self, participations: int) -> float:
    return self.toeplitz.column_error(participations)

  # PRIVACY: If entries were not divided by the norms of their columns, the
  # sensitivity would be the sensitivity of another C.
  # Guard:
  # random_structures_test.test_random_patterns_never_exceed_the_sensitivity.
  def band_rows(self, start: int, stop: int) -> np.ndarray:
    column = np.arange(start, stop)[:, None] - np.arange(self.bands)
    norms = self.column_norms[np.maximum(column, 0)]
    return self.toeplitz.band_rows(start, stop) / norms

  def gram_entries(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    norms = self.column_norms[first] * self.column_norms[second]
    return self.toeplitz.gram_entries(first, second) / norms

  def inverse_band_rows(self, start: int, stop: int) -> np.ndarray:
    norms = self.column_norms[start:stop, None]
    return norms * self.toeplitz.inverse_band_rows(start, stop)

  def per_query_errors(
    self, workload: workloads.Workload = workloads.PREFIX
  ) -> np.ndarray:
    base.check_rounds(self.rounds)
    if self.has_few_bands or workload.inverse_bands is None:
      return super().per_query_errors(workload)
    return toeplitz.full_errors(self.toeplitz, self.column_norms, workload)

  def parameters(self) -> _files.JsonObject:
    return {**self.toeplitz.parameters(), 'column_normalize': True}

  def arrays(self) -> dict[str, np.ndarray]:
    return self.toeplitz.arrays()
