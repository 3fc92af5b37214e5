"""What every strategy matrix C can say about itself."""

from __future__ import annotations

import abc
import hashlib
import json
from typing import Any, ClassVar

import numpy as np

from tff_bandmf import errors

# Above this many rounds nothing n x n is materialised.
_MAX_DENSE_ROUNDS = 20_000
# PRIVACY: squares of such entries neither vanish nor overflow, so sensitivity
# is neither 0 nor infinite; nor do they as float32 noise.
# Guard: strategies_test.test_extreme_scale_is_refused.
_SMALLEST_DIAGONAL = 1e-30
_LARGEST_ENTRY = 1e30


class Strategy(abc.ABC):
  """A lower-triangular n x n matrix C with a non-zero diagonal.

  Round t of a run adds `clip * sigma * (C^-1 Z)[t]` to the clipped sum, with Z
  iid standard normal, and sigma relative to the sensitivity of C.

  | symbol | name here | meaning                                        |
  |--------|-----------|------------------------------------------------|
  | n      | `rounds`  | rounds that the mechanism supports             |
  | b_hat  | `bands`   | diagonals of C that are not all zero           |
  | e_t    |           | squared L2 norm of row t of A C^-1, A = tri(n) |
  """

  family: ClassVar[str]
  rounds: int

  @property
  @abc.abstractmethod
  def bands(self) -> int:
    """The number of non-zero diagonals, the main one included."""

  @abc.abstractmethod
  def band_rows(self, start: int, stop: int) -> np.ndarray:
    """Returns rows of C by their bands.

    Args:
      start: first round.
      stop: round after the last.

    Returns:
      [stop - start, bands] float64 R with R[t - start, s] = C[t, t - s], and
      0 where t < s.
    """

  @abc.abstractmethod
  def prefix_errors(self) -> tuple[float, float]:
    """Returns (mean, max) over t of e_t, unit noise, prefix-sum workload."""

  def arrays(self) -> dict[str, np.ndarray]:
    """Returns the float64 arrays that define C together with `rounds`."""
    return {}

  def matrix(self) -> np.ndarray:
    """Returns C as a dense [n, n] float64 array.

    Raises:
      ValueError: n is so large that the matrix would not fit in memory.
    """
    if self.rounds > _MAX_DENSE_ROUNDS:
      raise ValueError(
          errors.invalid(
              'rounds', self.rounds,
              f'a dense matrix is made up to {_MAX_DENSE_ROUNDS} rounds',
              'use band_rows'))
    dense = np.zeros((self.rounds, self.rounds))
    rows = self.band_rows(0, self.rounds)
    for s in range(self.bands):
      t = np.arange(s, self.rounds)
      dense[t, t - s] = rows[t, s]
    return dense

  def digest(self) -> str:
    """Returns the SHA-256 of what defines C, 64 hexadecimal digits."""
    sha = hashlib.sha256()
    sha.update(json.dumps([self.family, self.rounds]).encode())
    for name, array in sorted(self.arrays().items()):
      header: list[Any] = [name, list(array.shape)]
      sha.update(json.dumps(header).encode())
      sha.update(np.ascontiguousarray(array, '<f8').tobytes())
    return sha.hexdigest()


def real_array(name: str, values: Any) -> np.ndarray:
  """Returns a copy of `values` as float64.

  Raises:
    TypeError: they are no real numbers; a cast would drop what they are.
    ValueError: their shape is ragged.
  """
  array = np.array(values)
  if array.dtype.kind not in 'fiu':
    raise TypeError(
        errors.invalid(
            f'{name}.dtype', array.dtype, 'must be real numbers',
            'give float64'))
  return array.astype(np.float64)


def check_entries(name: str, entries: np.ndarray, diagonal: np.ndarray) -> None:
  """Raises ValueError unless C is finite, invertible and of sane scale.

  Args:
    name: of the array of entries, for messages.
    entries: the entries of C.
    diagonal: those on its diagonal.
  """
  if not np.all(np.isfinite(entries)):
    raise ValueError(
        errors.invalid(
            name, 'NaN or infinity', 'must be finite',
            'check the file or optimise the strategy again'))
  if not np.all(diagonal > 0):
    raise ValueError(
        errors.invalid(
            name, float(np.min(diagonal)),
            'the diagonal of C must be positive',
            'C must be lower-triangular and invertible'))
  smallest, largest = np.min(diagonal), np.max(np.abs(entries))
  if smallest < _SMALLEST_DIAGONAL or largest > _LARGEST_ENTRY:
    raise ValueError(
        errors.invalid(
            name, float(smallest if largest <= _LARGEST_ENTRY else largest),
            f'the diagonal of C must be at least {_SMALLEST_DIAGONAL:g} and '
            f'no entry above {_LARGEST_ENTRY:g}',
            'multiply C by a constant: the mechanism stays the same'))
