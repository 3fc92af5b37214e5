"""Sums of squares in one fixed order, the same in NumPy and in TensorFlow.

Float64 sums depend on their order, and libraries choose theirs by the number of
threads and by the processor. Here a vector of 2^k rows is folded: its second
half is added to the first, entry by entry, until one row is left, which is
folded alike. Entry-wise sums have the same bits everywhere.
"""

from __future__ import annotations

from typing import Any

import numpy as np

# Largest number of entries of a row, small enough to stay in cache.
_ROW = 1 << 13


def rows_of(size: int) -> tuple[int, int]:
  """Returns (rows, width) in which `fold` adds up a vector of this size.

  The number of rows is a power of two. If there are several rows, the number of
  entries of a row is a multiple of eight, because TensorFlow slices such rows
  without a copy. The vector is padded with zeros.

  >>> rows_of(10), rows_of(20_000)
  ((1, 16), (4, 5000))

  Args:
    size: number of entries, >= 0.
  """
  if size <= _ROW:
    return 1, 1 << max(size - 1, 0).bit_length()
  rows = 1 << (-(-size // _ROW) - 1).bit_length()
  return rows, 8 * -(-size // (8 * rows))


def fold(x: Any, stop: int = 1) -> Any:
  """Returns a vector whose halves were added until `stop` entries are left.

  The entries are added in one order, which depends on their number alone.

  Args:
    x: [2^k stop] float64, array or tensor.
    stop: number of entries to be left, > 0.

  Returns:
    [stop] float64.
  """
  while x.shape[0] > stop:
    half = x.shape[0] // 2
    x = x[:half] + x[half:]
  return x


def padding(size: int) -> int:
  """Returns how many zeros a vector lacks to a power of two."""
  return (1 << max(size - 1, 0).bit_length()) - size


def total(x: np.ndarray) -> float:
  """Returns the sum of a vector by `fold`, [size] float64."""
  return float(fold(np.pad(x, (0, padding(len(x)))))[0])


def of_squares(leaf: np.ndarray) -> float:
  """Returns |leaf|^2, with the bits of `fold` over all rows.

  Row r is first added to row r + rows / 2, and so on with half as many rows.
  The rows are read in such an order that one partial sum for each halving is
  enough, without an array of all squares.

  Args:
    leaf: [size] real numbers.
  """
  rows, width = rows_of(leaf.size)

  def added(row: int, stride: int) -> np.ndarray:
    if stride == rows:
      squares = np.zeros(width)
      piece = leaf[row * width : (row + 1) * width]
      squares[: len(piece)] = piece
      squares *= squares
      return squares
    squares = added(row, 2 * stride)
    squares += added(row + stride, 2 * stride)
    return squares

  return total(added(0, 1))
