"""c_j = (1 / (j + 1) + constant) / (1 + constant), one scalar to choose."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import numpy as np

from tff_bandmf import errors
from tff_bandmf.strategies import base, toeplitz

_LARGEST_CONSTANT = 1e6


@dataclasses.dataclass(frozen=True)
class InversePlusConstant(toeplitz.BandedC):
  """C with c_j proportional to 1 / (j + 1) + constant, j < bands.

  Attributes:
    rounds: n.
    bands: b_hat.
    constant: c, in [0, 1e6].

  >>> InversePlusConstant(rounds=9, bands=2, constant=0.0).coefficients
  array([1. , 0.5])
  """

  family: ClassVar[str] = 'inverse-plus-constant'
  rounds: int
  bands: int
  constant: float

  def __post_init__(self):
    rounds = errors.check_count(
      'rounds', self.rounds, 'give the number of rounds'
    )
    object.__setattr__(self, 'rounds', rounds)
    object.__setattr__(self, 'bands', base.check_bands(rounds, self.bands))
    object.__setattr__(
      self,
      'constant',
      base.check_fraction(
        'constant', self.constant, 0, _LARGEST_CONSTANT, '0 adds none'
      ),
    )

  @property
  def coefficients(self) -> np.ndarray:
    return (1 / np.arange(1, self.bands + 1) + self.constant) / (
      1 + self.constant
    )

  def parameters(self) -> dict[str, Any]:
    return {'bands': self.bands, 'constant': self.constant}
