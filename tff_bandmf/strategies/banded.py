"""Any lower-triangular C with few bands."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np

from tff_bandmf import errors
from tff_bandmf.strategies import base


@dataclasses.dataclass(frozen=True, eq=False)
class Banded(base.Strategy):
  """C[t, t - s] = rows[t, s] for s < bands. [BandMF23, BandMF24]

  Attributes:
    rows: [n, bands] float64, rows[t, s] = 0 where t < s, rows[:, 0] > 0.
      Copied; read-only.

  Raises:
    TypeError: the entries are no real numbers.
    ValueError: they are no such matrix.

  >>> Banded([[1.0, 0.0], [2.0, 0.5]]).matrix()
  array([[1. , 0. ],
         [0.5, 2. ]])
  """

  family: ClassVar[str] = 'banded'
  rows: np.ndarray

  def __post_init__(self):
    rows = base.real_array('rows', self.rows)
    if rows.ndim != 2 or not rows.size or rows.shape[1] > rows.shape[0]:
      raise ValueError(
        errors.invalid(
          'rows.shape',
          rows.shape,
          'must be [rounds, bands] with 1 <= bands <= rounds',
          'give the bands of each row of C, the diagonal first',
        )
      )
    if np.any(np.triu(rows[: rows.shape[1]], 1)):
      raise ValueError(
        errors.invalid(
          'rows',
          'entries left of column 0',
          'must be 0 where t < s',
          'rows[t, s] is C[t, t - s]',
        )
      )
    base.check_entries('rows', rows, rows[:, 0])
    rows.flags.writeable = False
    object.__setattr__(self, 'rows', rows)

  @property
  def rounds(self) -> int:
    return len(self.rows)

  @property
  def bands(self) -> int:
    return self.rows.shape[1]

  def band_rows(self, start: int, stop: int) -> np.ndarray:
    return self.rows[start:stop]

  def arrays(self) -> dict[str, np.ndarray]:
    return {'rows': self.rows}
