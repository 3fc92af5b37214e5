"""C^-1 with constant diagonals, the first p of them non-zero."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np

from tff_bandmf.strategies import base, toeplitz


@dataclasses.dataclass(frozen=True, eq=False)
class BandedInverse(toeplitz.BandedInverseC):
  """C^-1[t, t - s] = inverse_coefficients[s] for s < p.

  Round t's noise is a sum of p of the z, each a function of (key, round).

  Attributes:
    rounds: n.
    inverse_coefficients: [p] float64, finite, the first positive, p <= n.
      Copied; read-only.

  >>> BandedInverse(3, [1.0, -0.5]).column(3).tolist()
  [1.0, 0.5, 0.25]
  """

  family: ClassVar[str] = 'banded-inverse'
  rounds: int
  inverse_coefficients: np.ndarray

  def __post_init__(self):
    rounds, coefficients = base.check_series(
      self.rounds, 'inverse_coefficients', self.inverse_coefficients
    )
    object.__setattr__(self, 'rounds', rounds)
    object.__setattr__(self, 'inverse_coefficients', coefficients)

  @property
  def inverse_bands(self) -> int:
    return len(self.inverse_coefficients)

  def arrays(self) -> dict[str, np.ndarray]:
    return {'inverse_coefficients': self.inverse_coefficients}
