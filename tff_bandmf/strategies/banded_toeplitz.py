"""C with constant diagonals, and 0 from diagonal `bands` on."""

from __future__ import annotations

from typing import ClassVar

import attrs
import numpy as np

from tff_bandmf import _checks
from tff_bandmf.strategies import base, families, toeplitz

_B0 = families.Parameter(
  'b0', int, 'Least min_sep for which C is made.', required=True
)


@attrs.frozen(slots=False, eq=False)
class BandedToeplitz(toeplitz.BandedC):
  """C[t, t - s] = coefficients[s] for s < bands. [BandMF24, Sec 4]

  Attributes:
    rounds: n.
    coefficients: [bands] float64, finite, coefficients[0] > 0, bands <= n.
      Copied; read-only.

  Raises:
    TypeError: a coefficient is not a real number.
    ValueError: there are more bands than rounds, the first coefficient is not
      positive, or coefficients are too small, too large or not finite.

  >>> c = BandedToeplitz(rounds=3, coefficients=[1.0, 0.5])
  >>> c.matrix()
  array([[1. , 0. , 0. ],
         [0.5, 1. , 0. ],
         [0. , 0.5, 1. ]])
  """

  family: ClassVar[str] = 'banded-toeplitz'
  coefficients: np.ndarray = attrs.field(
    converter=lambda values: base.series('coefficients', values),
    validator=base.check_fit,
  )

  @property
  def bands(self) -> int:
    return len(self.coefficients)


@attrs.frozen(slots=False, eq=False)
class RobustToeplitz(BandedToeplitz):
  """A banded Toeplitz C for a min_sep that lies somewhere in [b0, bands].

  The coefficients from band b0 on are multiplied by factors that fall to zero.
  Two columns of one client that are b0 to bands rounds apart overlap only in
  small coefficients, which add little to the sensitivity. [BandMF24, App H]

  Attributes:
    rounds: n.
    coefficients: [bands] float64, already multiplied by the factors of `taper`.
    b0: least expected min_sep, the difference r2 - r1 of two rounds of one
      client, in [1, bands].
  """

  family: ClassVar[str] = 'robust-toeplitz'
  b0: int = attrs.field(converter=lambda x: _B0.check(x))

  def __attrs_post_init__(self):
    _checks.at_most('b0', self.b0, self.bands, 'bands', 'use a smaller b0')


def taper(coefficients: np.ndarray, b0: int) -> np.ndarray:
  """Returns coefficients times factors that fall to zero from band b0 on.

    c_{i-1} (b - i) / (b - b0) for b0 <= i <= b, [BandMF24, App H]

  Args:
    coefficients: c, [b] float64.
    b0: band in [1, b]; if b0 = b, the result is c.

  Returns:
    [b] float64.
  """
  b = len(coefficients)
  i = np.arange(1, b + 1)
  if b0 == b:
    return coefficients
  return coefficients * np.where(i < b0, 1.0, (b - i) / (b - b0))


FAMILIES = (
  families.Family(
    BandedToeplitz,
    'few coefficients, optimised',
    'BandMF24',
    families.BANDED,
    optimizer='tff_bandmf.optimize.searches:banded_toeplitz',
  ),
  families.Family(
    RobustToeplitz,
    'few coefficients, falling to 0 from b0 on',
    'BandMF24',
    (*families.BANDED, _B0),
    optimizer='tff_bandmf.optimize.searches:robust_toeplitz',
  ),
)
