"""Banded C with c_j = (1 / (j + 1) + constant) / (1 + constant)."""

from __future__ import annotations

from typing import ClassVar

import attrs
import numpy as np

from tff_bandmf.strategies import base, families, toeplitz

_CONSTANT = families.Parameter(
  'constant',
  float,
  'Constant that is added to each 1/(j+1).',
  high=1e6,
  # Beyond 100 all c_j are nearly equal.
  sweep=(0.0, 100.0),
)


@attrs.frozen(slots=False)
class InversePlusConstant(toeplitz.BandedC):
  """C with c_j proportional to 1 / (j + 1) + constant, j < bands.

  Attributes:
    rounds: n.
    bands: b_hat.
    constant: number in [0, 1e6] that is added.

  >>> InversePlusConstant(rounds=9, bands=2, constant=0.0).coefficients
  array([1. , 0.5])
  """

  family: ClassVar[str] = 'inverse-plus-constant'
  bands: int = attrs.field(converter=base.count_bands, validator=base.check_fit)
  constant: float = attrs.field(converter=lambda x: _CONSTANT.check(x))

  @property
  def coefficients(self) -> np.ndarray:
    j = np.arange(self.bands)
    return (1 / (j + 1) + self.constant) / (1 + self.constant)


FAMILIES = (
  families.Family(
    InversePlusConstant,
    '1/(j+1) + constant, cut',
    parameters=(*families.BANDED, _CONSTANT),
  ),
)
