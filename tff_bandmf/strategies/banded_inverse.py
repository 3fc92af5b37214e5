"""C^-1 with constant diagonals, the first p of them non-zero."""

from __future__ import annotations

from typing import ClassVar

import attrs
import numpy as np

from tff_bandmf.strategies import base, families, toeplitz


@attrs.frozen(slots=False, eq=False)
class BandedInverse(toeplitz.BandedInverseC):
  """C^-1[t, t - s] = inverse_coefficients[s] for s < p.

  The noise of round t is a weighted sum of z_t and the p - 1 rows before it.

  Attributes:
    rounds: n.
    inverse_coefficients: [p] float64, finite, the first positive, p <= n.
      Copied; read-only.

  >>> BandedInverse(3, [1.0, -0.5]).column(3).tolist()
  [1.0, 0.5, 0.25]
  """

  family: ClassVar[str] = 'banded-inverse'
  inverse_coefficients: np.ndarray = attrs.field(
    converter=lambda values: base.series('inverse_coefficients', values),
    validator=base.check_fit,
  )

  @property
  def inverse_bands(self) -> int:
    return len(self.inverse_coefficients)


FAMILIES = (
  families.Family(
    BandedInverse,
    'few coefficients of C^-1, optimised',
    parameters=families.BANDED_INVERSE,
    memory=families.FEW_NORMALS,
    optimizer='tff_bandmf.optimize.searches:banded_inverse',
  ),
)
