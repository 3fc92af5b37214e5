"""Checks of values. A check returns the converted value or raises an error."""

from __future__ import annotations

import operator
from typing import SupportsFloat, SupportsIndex

import numpy as np

from tff_bandmf import errors


def count(name: str, value: object, remedy: str, least: int = 1) -> int:
  """Returns `value` as an int if it is an integer of at least `least`.

  Raises:
    TypeError: `value` is not an integer, or is a bool.
    ValueError: `value` is below `least`.
  """
  if isinstance(value, bool) or not isinstance(value, (int, SupportsIndex)):
    raise errors.type_error(f'{name}={value}: must be an integer; {remedy}')
  number = operator.index(value)
  if number < least:
    raise errors.value_error(
      f'{name}={value}: must be at least {least}; {remedy}'
    )
  return number


def number(name: str, value: object, remedy: str) -> float:
  """Returns `value` as a float if it is a number, else raises TypeError."""
  if isinstance(value, bool) or not isinstance(
    value, (float, int, SupportsFloat)
  ):
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
    raise errors.value_error(
      f'{name}={value}: must be positive and finite; {remedy}'
    )
  return checked


def nonnegative(name: str, value: object, remedy: str) -> float:
  """Returns `value` as a float if it is finite and at least 0, else raises.

  Raises:
    TypeError: `value` is not a real number.
    ValueError: `value` is negative, or is infinite or NaN.
  """
  checked = number(name, value, remedy)
  if not 0 <= checked < float('inf'):
    raise errors.value_error(
      f'{name}={value}: must be at least 0 and finite; {remedy}'
    )
  return checked


def at_most(name: str, value: float, most: float, of: str, remedy: str) -> None:
  """Raises ValueError if `value` exceeds `most`, whose name is `of`."""
  if value > most:
    raise errors.value_error(
      f'{name}={value}: must not exceed {of}={most}; {remedy}'
    )


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
    raise errors.value_error(
      f'{name}={value}: must be in [{low:g}, {high:g}]; {remedy}'
    )
  return checked


def real_array(name: str, values: object) -> np.ndarray:
  """Returns a read-only copy of `values` as float64.

  Raises:
    TypeError: a value is not a real number.
    ValueError: the shape is ragged.
  """
  array = np.array(values)
  if array.dtype.kind not in 'fiu':
    raise errors.type_error(
      f'{name}.dtype={array.dtype}: must be real numbers; give float64'
    )
  array = array.astype(np.float64)
  array.flags.writeable = False
  return array
