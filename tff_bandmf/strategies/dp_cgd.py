"""C^-1 of two bands: each noise subtracts a share of the noise before it."""

from __future__ import annotations

from typing import ClassVar

import attrs
import numpy as np

from tff_bandmf.strategies import families, toeplitz

_LAMBDA = families.Parameter(
  'lambda',
  float,
  'Share of the noise of a round that the next round subtracts.',
  sweep=(0.0, 1.0),
)


@attrs.frozen(slots=False)
class DpCgd(toeplitz.BandedInverseC):
  """C^-1 = I - lambda shift, C[t, i] = lambda^(t - i). [DPCGD26]

  Attributes:
    rounds: n.
    lambda_: lambda in [0, 1]; 0 is the identity.

  >>> DpCgd(rounds=3, lambda_=0.5).column(3).tolist()
  [1.0, 0.5, 0.25]
  """

  family: ClassVar[str] = 'dp-cgd'
  is_geometric: ClassVar[bool] = True
  inverse_bands: ClassVar[int] = 2
  lambda_: float = attrs.field(converter=lambda x: _LAMBDA.check(x))

  @property
  def inverse_coefficients(self) -> np.ndarray:
    return np.array([1.0, -self.lambda_])


FAMILIES = (
  families.Family(
    DpCgd,
    'C^-1 = I - lambda shift',
    'DPCGD26',
    (_LAMBDA, families.COLUMN_NORMALIZE),
    families.Memory('1, or 0', lambda rounds: 0),
  ),
)
