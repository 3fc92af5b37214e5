"""Toeplitz C from the series of powers, such as (1 - x)^(-1/2).

c is the first column of C, and c(x) = sum_j c_j x^j. The series of the prefix
sum is (1 - x)^-1.

| class                  | c(x)                     | terms of the series used |
|------------------------|--------------------------|--------------------------|
| SqrtToeplitz           | (1 - x)^(-1/2)           | all                      |
| BandedSqrt             | (1 - x)^(-1/2)           | `bands` of c             |
| BandedFractional       | (1 - x)^(-alpha)         | `bands` of c             |
| BandedInverseSqrt      | 1 / (1 - x)^(1/2)        | `inverse_bands` of 1/c   |
| BandedInverseFractional| 1 / (1 - x)^alpha        | `inverse_bands` of 1/c   |
| Lti                    | (1 - (1 - nu) x)^(-1/2)  | all                      |
"""

from __future__ import annotations

from typing import ClassVar

import attrs
import numpy as np

from tff_bandmf.strategies import base, families, toeplitz

_ALPHA = families.Parameter(
  'alpha', float, 'Exponent; 1/2 is the square root.', sweep=(0.0, 1.0)
)
_NU = families.Parameter(
  'nu', float, 'Decay of the coefficients; 0 means none.', sweep=(0.0, 1.0)
)


@attrs.frozen(slots=False)
class Lti(toeplitz.Toeplitz):
  """Square-root coefficients that decay: c_j (1 - nu)^j. [LTI24]

  Attributes:
    rounds: n.
    nu: decay in [0, 1]; 0 is the square root, 1 the identity.

  >>> Lti(rounds=3, nu=0.5).column(3).tolist()
  [1.0, 0.25, 0.09375]
  """

  family: ClassVar[str] = 'lti'
  nu: float = attrs.field(converter=lambda x: _NU.check(x))

  @property
  def bands(self) -> int:
    return self.rounds

  def series(self) -> dict[str, float]:
    return {'decay': 1 - self.nu}

  def column(self, terms: int) -> np.ndarray:
    return self._decaying(0.5, terms)

  def inverse_column(self, terms: int) -> np.ndarray:
    return self._decaying(-0.5, terms)

  def _decaying(self, alpha: float, terms: int) -> np.ndarray:
    decay = (1 - self.nu) ** np.arange(terms, dtype=float)
    return toeplitz.fractional_coefficients(alpha, terms) * decay


@attrs.frozen(slots=False)
class SqrtToeplitz(Lti):
  """The square root of the prefix sum, all n coefficients. [FHU23]

  >>> SqrtToeplitz(rounds=3).column(3).tolist()
  [1.0, 0.5, 0.375]
  """

  family: ClassVar[str] = 'sqrt-toeplitz'
  nu: float = attrs.field(default=0.0, init=False)


@attrs.frozen(slots=False)
class BandedFractional(toeplitz.BandedC):
  """The first `bands` coefficients of (1 - x)^-alpha. [BIFR26]

  Attributes:
    rounds: n.
    bands: b_hat.
    alpha: exponent in [0, 1]; 0 is the identity, 1/2 the banded square root.

  >>> BandedFractional(rounds=9, bands=2, alpha=0.25).coefficients.tolist()
  [1.0, 0.25]
  """

  family: ClassVar[str] = 'banded-fractional'
  bands: int = attrs.field(converter=base.count_bands, validator=base.check_fit)
  alpha: float = attrs.field(converter=lambda x: _ALPHA.check(x))

  @property
  def coefficients(self) -> np.ndarray:
    return toeplitz.fractional_coefficients(self.alpha, self.bands)


@attrs.frozen(slots=False)
class BandedSqrt(BandedFractional):
  """The first `bands` coefficients of (1 - x)^(-1/2). [BSR24]

  >>> BandedSqrt(rounds=9, bands=3).coefficients.tolist()
  [1.0, 0.5, 0.375]
  """

  family: ClassVar[str] = 'banded-sqrt'
  alpha: float = attrs.field(default=0.5, init=False)


@attrs.frozen(slots=False)
class BandedInverseFractional(toeplitz.BandedInverseC):
  """C^-1 has the first p coefficients of (1 - x)^alpha, BIFR. [BIFR26]

  Attributes:
    rounds: n.
    inverse_bands: p, number of diagonals of C^-1, while `bands` is the number
      of diagonals of C.
    alpha: exponent in [0, 1]; 0 is the identity, 1/2 is BISR.

  >>> BandedInverseFractional(9, 3, 0.5).inverse_coefficients.tolist()
  [1.0, -0.5, -0.125]
  """

  family: ClassVar[str] = 'banded-inverse-fractional'
  inverse_bands: int = attrs.field(
    converter=base.count_bands, validator=base.check_fit
  )
  alpha: float = attrs.field(converter=lambda x: _ALPHA.check(x))

  @property
  def inverse_coefficients(self) -> np.ndarray:
    return toeplitz.fractional_coefficients(-self.alpha, self.inverse_bands)


@attrs.frozen(slots=False)
class BandedInverseSqrt(BandedInverseFractional):
  """C^-1 has the first p coefficients of (1 - x)^(1/2), BISR. [BISR25]"""

  family: ClassVar[str] = 'banded-inverse-sqrt'
  alpha: float = attrs.field(default=0.5, init=False)


_ALL = families.ALL_ROUNDS
_NORMALIZE = families.COLUMN_NORMALIZE
FAMILIES = (
  families.Family(BandedSqrt, '(1-x)^-1/2, cut', 'BSR24', families.BANDED),
  families.Family(
    BandedFractional, '(1-x)^-alpha, cut', 'BIFR26', (*families.BANDED, _ALPHA)
  ),
  families.Family(SqrtToeplitz, '(1-x)^-1/2', 'FHU23', (_NORMALIZE,), _ALL),
  families.Family(
    Lti, '(1-x)^-1/2 with decay', 'LTI24', (_NU, _NORMALIZE), _ALL
  ),
  families.Family(
    BandedInverseSqrt,
    'C^-1 = (1-x)^1/2, cut',
    'BISR25',
    families.BANDED_INVERSE,
    families.FEW_NORMALS,
  ),
  families.Family(
    BandedInverseFractional,
    'C^-1 = (1-x)^alpha, cut',
    'BIFR26',
    (*families.BANDED_INVERSE, _ALPHA),
    families.FEW_NORMALS,
  ),
)
