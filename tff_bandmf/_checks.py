"""Checks of values. A check returns the converted value or raises an error."""

from __future__ import annotations

import operator
from typing import Any, SupportsFloat, SupportsIndex

import numpy as np

from tff_bandmf import errors


def is_number(value: Any, kind: type = SupportsFloat) -> bool:
  """Returns whether a value is one integer or one real number.

  Python and NumPy can convert a bool, text in an array, a complex number or an
  array of one entry to a number. The result for each of these is False.

  Args:
    value: any value.
    kind: SupportsFloat for a real number, SupportsIndex for an integer.
  """
  numpy_kind = getattr(getattr(value, 'dtype', None), 'kind', 'i')
  refused = 'bcfmMOSU' if kind is SupportsIndex else 'bcmMOSU'
  return (
    isinstance(value, kind)
    and not isinstance(value, (bool, str, bytes))
    and numpy_kind not in refused
    and not getattr(value, 'ndim', 0)
  )


def instance(name: str, value: Any, kind: type, remedy: str) -> Any:
  """Returns `value` if it is an instance of `kind`, else raises TypeError."""
  if not isinstance(value, kind):
    raise errors.type_error(
      f'{name}={value}: must be a {kind.__name__}; {remedy}'
    )
  return value


def count(name: str, value: Any, remedy: str, least: int = 1) -> int:
  """Returns `value` as an int if it is an integer of at least `least`.

  Raises:
    TypeError: `value` is not an integer, or is a bool.
    ValueError: `value` is below `least`.
  """
  if not is_number(value, SupportsIndex):
    raise errors.type_error(f'{name}={value}: must be an integer; {remedy}')
  number = operator.index(value)
  if number < least:
    raise _broken(name, value, f'be at least {least}', remedy)
  return number


def number(name: str, value: Any, remedy: str) -> float:
  """Returns `value` as a float if it is a number, else raises TypeError."""
  if not is_number(value, SupportsFloat):
    raise errors.type_error(f'{name}={value}: must be a number; {remedy}')
  return float(value)


def positive(name: str, value: object, remedy: str) -> float:
  """Returns `value` as a float if it is a positive finite number, else raises.

  Raises:
    TypeError: `value` is not a real number.
    ValueError: `value` is not positive, or is infinite or NaN.
  """
  checked = number(name, value, remedy)
  if not 0 < checked < float('inf'):
    raise _broken(name, value, 'be positive and finite', remedy)
  return checked


def nonnegative(name: str, value: object, remedy: str) -> float:
  """Returns `value` as a float if it is finite and at least 0, else raises.

  Raises:
    TypeError: `value` is not a real number.
    ValueError: `value` is negative, or is infinite or NaN.
  """
  checked = number(name, value, remedy)
  if not 0 <= checked < float('inf'):
    raise _broken(name, value, 'be at least 0 and finite', remedy)
  return checked


def at_most(
  name: str, value: float, most: float, limit: str, remedy: str
) -> None:
  """Raises ValueError if `value` exceeds `most`, whose name is `limit`."""
  if value > most:
    raise _broken(name, value, f'not exceed {limit}={most}', remedy)


def between(
  name: str, value: object, low: float, high: float, remedy: str
) -> float:
  """Returns `value` as a float if it is in [low, high], else raises.

  Raises:
    TypeError: `value` is not a number.
    ValueError: `value` is out of range.
  """
  checked = number(name, value, remedy)
  if not low <= checked <= high:
    raise _broken(name, value, f'be in [{low:g}, {high:g}]', remedy)
  return checked


def real_array(name: str, values: object) -> np.ndarray:
  """Returns a read-only copy of `values` as float64.

  Raises:
    TypeError: a value is not a real number, or is masked.
    ValueError: the shape is ragged.
  """
  try:
    array = np.array(values)
  except ValueError as error:
    raise errors.value_error(
      f'{name}={type(values).__name__}: must have rows of one length; give an '
      'array of numbers'
    ) from error
  # NumPy converts a bool in a list of numbers to a number.
  has_bool = not isinstance(values, np.ndarray) and any(
    isinstance(value, (bool, np.bool_))
    for value in np.array(values, object).ravel()
  )
  if array.dtype.kind not in 'fiu' or has_bool or np.ma.isMaskedArray(values):
    raise errors.type_error(
      f'{name}.dtype={"bool" if has_bool else array.dtype}: must be real '
      'numbers; give an array of float64'
    )
  array = array.astype(np.float64)
  array.flags.writeable = False
  return array


def lower_triangular(name: str, values: object) -> np.ndarray:
  """Returns a read-only copy of a lower-triangular matrix as float64.

  Raises:
    TypeError: an entry is not a real number, or is masked.
    ValueError: the matrix is empty or not square, or an entry above the
      diagonal is not 0.
  """
  matrix = real_array(name, values)
  if matrix.ndim != 2 or len(matrix) != matrix.shape[1] or not len(matrix):
    raise errors.value_error(
      f'{name}.shape={matrix.shape}: must be square; give [rounds, rounds]'
    )
  if np.any(np.triu(matrix, 1)):
    raise errors.value_error(
      f'{name}=entries above the diagonal: must be lower-triangular; give zeros'
    )
  return matrix


def _broken(name: str, value: object, rule: str, remedy: str) -> ValueError:
  """Returns the error for a number that breaks a rule."""
  return errors.value_error(f'{name}={value}: must {rule}; {remedy}')
