"""Sums of squares in a fixed order, with the same bits in every library.

The result of a float64 sum depends on the order of its terms, and libraries
choose the order by the number of threads and by the processor. Here a vector is
divided into rows, and the number of rows is a power of two. The second half of
the rows is added to the first half, entry by entry, until one row is left. This
row is padded with zeros to a power of two, and its entries are added in the
same way. Entry-wise sums have the same bits in NumPy and in TensorFlow.
"""

from __future__ import annotations

import numpy as np

# Largest number of entries of a row. A row of this length fits into a cache.
_ROW = 1 << 13


def rows_of(size: int) -> tuple[int, int]:
  """Returns (rows, width), the shape of a vector that is divided into rows.

  The number of rows is a power of two. The width is the number of entries of a
  row: a power of two if there is one row, else a multiple of eight, because
  TensorFlow slices such rows without a copy. The vector is padded with zeros to
  rows * width entries.

  >>> rows_of(10), rows_of(20_000)
  ((1, 16), (4, 5000))

  Args:
    size: number of entries of the vector, >= 0.
  """
  if size <= _ROW:
    return 1, 1 << max(size - 1, 0).bit_length()
  rows = 1 << (-(-size // _ROW) - 1).bit_length()
  return rows, 8 * -(-size // (8 * rows))


def padding(size: int) -> int:
  """Returns the number of zeros that pad a vector to a power of two."""
  return (1 << max(size - 1, 0).bit_length()) - size


def total(x: np.ndarray) -> float:
  """Returns the sum of a vector in the order that the module docstring gives.

  The vector is padded with zeros to a power of two. Then its second half is
  added to its first half until one entry is left.

  Args:
    x: [size] float64.
  """
  if zeros := padding(len(x)):
    x = np.concatenate([x, np.zeros(zeros)])
  while len(x) > 1:
    half = len(x) // 2
    x = x[:half] + x[half:]
  return float(x[0])


def of_squares(leaf: np.ndarray) -> float:
  """Returns |leaf|^2, summed in the order that the module docstring gives.

  In that order, row r + rows / 2 is added to row r for each r, and this is
  repeated with half as many rows. This function does the same additions in
  another sequence. It needs few partial sums and no array of all squares.

  Args:
    leaf: [size] real numbers.
  """
  rows, width = rows_of(leaf.size)

  # PRIVACY: A sum of squares in another order may round to another value, and
  # could be just below the clip although the proof assumes a value above it.
  # The order is fixed.
  # Guard: clipping_test.test_sum_of_squares_has_one_order.
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
