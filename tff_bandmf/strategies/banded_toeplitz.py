"""C with constant diagonals, the first `bands` of them non-zero."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np

from tff_bandmf import errors
from tff_bandmf.strategies import base, toeplitz


@dataclasses.dataclass(frozen=True, eq=False)
class BandedToeplitz(base.Strategy):
  """C[t, t - s] = coefficients[s] for s < bands. [BandMF24, Sec 4]

  Attributes:
    rounds: n.
    coefficients: [bands] float64, finite, coefficients[0] > 0, bands <= n.
      Copied; read-only.

  Raises:
    TypeError: coefficients that are no real numbers.
    ValueError: more bands than rounds, or coefficients that are no series.

  >>> c = BandedToeplitz(rounds=3, coefficients=[1.0, 0.5])
  >>> c.matrix()
  array([[1. , 0. , 0. ],
         [0.5, 1. , 0. ],
         [0. , 0.5, 1. ]])
  """

  family: ClassVar[str] = 'banded-toeplitz'
  rounds: int
  coefficients: np.ndarray

  def __post_init__(self):
    rounds = errors.check_count(
        'rounds', self.rounds, 'give the number of rounds')
    coefficients = base.real_array('coefficients', self.coefficients)
    if coefficients.ndim != 1 or not len(coefficients):
      raise ValueError(
          errors.invalid(
              'coefficients.shape', coefficients.shape,
              'must be one-dimensional and not empty',
              'give the first column of C'))
    if len(coefficients) > self.rounds:
      raise ValueError(
          errors.invalid(
              'bands', len(coefficients),
              f'must not exceed rounds={self.rounds}', 'use fewer bands'))
    base.check_entries('coefficients', coefficients, coefficients[:1])
    coefficients.flags.writeable = False
    object.__setattr__(self, 'rounds', rounds)
    object.__setattr__(self, 'coefficients', coefficients)

  @property
  def bands(self) -> int:
    return len(self.coefficients)

  def band_rows(self, start: int, stop: int) -> np.ndarray:
    t = np.arange(start, stop)[:, None]
    return np.where(t >= np.arange(self.bands), self.coefficients, 0.0)

  def prefix_errors(self) -> tuple[float, float]:
    return toeplitz.prefix_errors(self.coefficients, self.rounds)

  def arrays(self) -> dict[str, np.ndarray]:
    return {'coefficients': self.coefficients}
