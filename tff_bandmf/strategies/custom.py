"""A C of one's own, given by numbers."""

from __future__ import annotations

from typing import ClassVar, Optional

from tff_bandmf import _checks, errors
from tff_bandmf.strategies import (
  banded,
  banded_inverse,
  banded_toeplitz,
  base,
  dense,
  families,
)


class CustomToeplitz(banded_toeplitz.BandedToeplitz):
  """C given by the first entries of its first column."""

  family: ClassVar[str] = 'custom'


class CustomInverse(banded_inverse.BandedInverse):
  """C given by the first entries of the first column of C^-1."""

  family: ClassVar[str] = 'custom'


class CustomBanded(banded.Banded):
  """C given by its bands, row by row."""

  family: ClassVar[str] = 'custom'


class CustomDense(dense.Dense):
  """C given as a matrix."""

  family: ClassVar[str] = 'custom'


def custom(
  rounds: Optional[int] = None,
  *,
  coefficients: object = None,
  inverse_coefficients: object = None,
  columns: object = None,
  matrix: object = None,
) -> base.Strategy:
  """Returns a C of one's own: a strategy of the family `custom`.

  The numbers define C exactly. The sensitivity is computed from the numbers,
  exactly or as an upper bound.

  Args:
    rounds: n; needed with `coefficients` and `inverse_coefficients` only.
    coefficients: first entries of the first column of a Toeplitz C, [bands].
    inverse_coefficients: first entries of the first column of a Toeplitz C^-1,
      [bands].
    columns: C[j + s, j] at [j, s], [n, bands]; entries with j + s >= n do not
      count.
    matrix: C, [n, n], lower-triangular.

  Raises:
    TypeError: an entry is not a real number.
    ValueError: not exactly one form is given, or the numbers do
      not define a C.

  >>> custom(columns=[[1.0, 0.5], [2.0, 0.0]]).matrix()
  array([[1. , 0. ],
         [0.5, 2. ]])
  """
  forms = {
    'coefficients': coefficients,
    'inverse_coefficients': inverse_coefficients,
    'columns': columns,
    'matrix': matrix,
  }
  given = [name for name, values in forms.items() if values is not None]
  if len(given) != 1:
    raise errors.value_error(
      f'custom={given}: must be exactly one of {", ".join(forms)}; give one'
    )
  if coefficients is not None:
    return CustomToeplitz(rounds, coefficients)
  if inverse_coefficients is not None:
    return CustomInverse(rounds, inverse_coefficients)
  if matrix is not None:
    return CustomDense(matrix)
  bands = _checks.real_array('columns', columns)
  if bands.ndim != 2 or not bands.size:
    raise errors.value_error(
      f'columns.shape={bands.shape}: must be [rounds, bands]; give columns of C'
    )
  return CustomBanded(banded.rows_of_columns(bands))


FAMILIES = (
  families.Family(
    CustomBanded,
    'given by numbers of your own',
    forms=(CustomToeplitz, CustomInverse, CustomBanded, CustomDense),
    memory=families.Memory('bands - 1, of C or of C^-1', lambda rounds: 0),
  ),
)
