"""Any lower-triangular C with few bands."""

from __future__ import annotations

from typing import ClassVar

import attrs
import numpy as np

from tff_bandmf import _checks, errors
from tff_bandmf.strategies import base, families


@attrs.frozen(slots=False, eq=False)
class Banded(base.Strategy):
  """C[t, t - s] = rows[t, s] for s < bands. [BandMF23, BandMF24]

  Attributes:
    rows: [n, bands] float64, rows[t, s] = 0 where t < s, rows[:, 0] > 0.
      Copied; read-only.

  Raises:
    TypeError: an entry is not a real number.
    ValueError: `rows` has another shape, an entry with t < s is not 0, an entry
      of the diagonal is not positive, or entries are too small, too large or
      not finite.

  >>> Banded([[1.0, 0.0], [2.0, 0.5]]).matrix()
  array([[1. , 0. ],
         [0.5, 2. ]])
  """

  family: ClassVar[str] = 'banded'
  rows_are_given: ClassVar[bool] = True
  rows: np.ndarray = attrs.field(
    converter=lambda rows: _checks.real_array('rows', rows)
  )

  @rows.validator
  def _check_rows(self, _, rows: np.ndarray) -> None:
    if rows.ndim != 2 or not rows.size or rows.shape[1] > rows.shape[0]:
      raise errors.value_error(
        f'rows.shape={rows.shape}: must be [rounds, bands] with 1 <= bands <= '
        'rounds; give the bands of each row of C, the diagonal first'
      )
    if np.any(np.triu(rows[: rows.shape[1]], 1)):
      raise errors.value_error(
        'rows=entries with t < s: must be 0; give C[t, t - s] as rows[t, s]'
      )
    base.check_entries('rows', rows, rows[:, 0])

  @property
  def rounds(self) -> int:
    return len(self.rows)

  @property
  def bands(self) -> int:
    return self.rows.shape[1]

  def band_rows(self, start: int, stop: int) -> np.ndarray:
    return self.rows[start:stop]


def rows_of_columns(columns: np.ndarray) -> np.ndarray:
  """Returns rows[t, s] = columns[t - s, s], 0 where t < s, [n, bands]."""
  rows = np.zeros_like(columns)
  for s, row in enumerate(rows.T):
    row[s:] = columns[: max(len(columns) - s, 0), s]
  return rows


def columns_of_rows(rows: np.ndarray) -> np.ndarray:
  """Returns columns[j, s] = rows[j + s, s], 0 where j + s >= n, [n, bands]."""
  columns = np.zeros_like(rows)
  for s in range(rows.shape[1]):
    columns[: len(rows) - s, s] = rows[s:, s]
  return columns


FAMILIES = (
  families.Family(
    Banded,
    'few bands, optimised',
    'BandMF23, BandMF24',
    (families.BANDS, attrs.evolve(families.COLUMN_NORMALIZE, default=True)),
    optimizer='tff_bandmf.optimize.searches:banded',
  ),
)
