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


def check_diagonal(name: str, diagonal: np.ndarray) -> None:
  """Raises ValueError unless every entry of the diagonal of C is positive."""
  if not np.all(diagonal > 0):
    raise ValueError(
        errors.invalid(
            name, float(np.min(diagonal)),
            'the diagonal of C must be positive',
            'C must be lower-triangular and invertible'))
