"""Buffered linear Toeplitz (BLT): C from a few decaying powers.

| symbol  | name here | meaning                                                |
|---------|-----------|--------------------------------------------------------|
| n       | `rounds`  | number of rounds                                       |
| c, r    |           | first columns of C and of C^-1                         |
| d       | `buffers` | number of powers, and of noise buffers                 |
| S       |           | the d buffers, each of the model's size                |
| omega_i | `omega`   | factor of power i in c, and of buffer i in the noise   |
| theta_i | `theta`   | decay of power i, and of buffer i, in a round          |
| a_t     | `norms`   | norm by which column t of C is divided; 1 without      |
|         |           | column normalization                                   |
"""

from __future__ import annotations

import fractions
import functools
from collections.abc import Sequence
from typing import ClassVar, Optional

import attrs
import numpy as np
import scipy

from tff_bandmf import _checks, errors
from tff_bandmf.strategies import base, families, toeplitz
from tff_bandmf.strategies import recursion as recursion_lib

# Number of coefficients of C^-1 between two stored states of the recursion.
_BLOCK = 512


@attrs.frozen(slots=False, eq=False)
class Blt(toeplitz.Toeplitz):
  """A Toeplitz C whose first column is a sum of decaying powers. [BLT24]

    c_0 = 1,   c_t = sum_i omega_i theta_i^(t - 1)

  The noise needs d buffers S of the model's size, for every n:

    y_t = z_t - omega . S;   S <- theta * S + y_t

  C^-1 is a BLT too; its decays are the eigenvalues of diag(theta) - 1 omega^T.

  Attributes:
    rounds: n, number of rounds, >= 1.
    omega: [d] float64, output scales. Copied; read-only.
    theta: [d] float64 in [0, 1), buffer decays, distinct. Copied; read-only.

  >>> Blt(rounds=3, omega=[0.5], theta=[0.9]).column(3).tolist()
  [1.0, 0.5, 0.45]
  """

  family: ClassVar[str] = 'blt'
  goes_on: ClassVar[bool] = True
  omega: np.ndarray = attrs.field(
    converter=lambda omega: _checks.real_array('omega', omega)
  )
  theta: np.ndarray = attrs.field(
    converter=lambda theta: _checks.real_array('theta', theta)
  )

  def __attrs_post_init__(self):
    omega, theta = self.omega, self.theta
    if omega.ndim != 1 or not len(omega) or omega.shape != theta.shape:
      raise errors.value_error(
        f'omega.shape={omega.shape}: must be [buffers] like '
        f'theta.shape={theta.shape}; give one omega and one theta a buffer'
      )
    base.check_entries('omega', np.append(omega, 1.0), np.ones(1))
    if not np.all((theta >= 0) & (theta < 1)):
      raise errors.value_error(
        f'theta={theta.tolist()}: must be in [0, 1); buffers must decay'
      )
    if len(np.unique(theta)) < len(theta):
      raise errors.value_error(
        f'theta={theta.tolist()}: must be distinct; add omega of equal theta'
      )

  def series(self) -> dict[str, np.ndarray]:
    return {'omega': self.omega, 'theta': self.theta}

  @property
  def bands(self) -> int:
    return self.rounds

  @property
  def buffers(self) -> int:
    return len(self.theta)

  def column_error(self, participations: int) -> float:
    # PRIVACY: The noise is C^-1 z for exact powers of theta in C. This C may
    # have a larger sensitivity than the one computed from powers in float64. If
    # powers cancel in C, their rounding errors are large relative to C, and a
    # bound relative to C would be too small. So the norms of all powers are
    # added up. The errors of k columns add up, and the sensitivity is at least
    # 1.
    # Guard: recursion_test.test_column_of_a_blt_is_within_its_bound.
    sizes = np.abs(self.omega) / np.sqrt(1 - self.theta**2)
    roundings = self.rounds + self.buffers + 8
    distance = recursion_lib.UNIT * roundings * float(np.sum(sizes))
    return participations * distance

  def buffered(
    self, rounds: int, norms: Optional[np.ndarray] = None
  ) -> recursion_lib.Buffers:
    return BltBuffers(self, rounds, norms)

  def column(self, terms: int) -> np.ndarray:
    impulse = np.eye(1, max(terms - 1, 0))[0]
    powers = np.zeros_like(impulse)
    for omega, theta in zip(self.omega, self.theta):
      powers += omega * scipy.signal.lfilter([1.0], [1.0, -theta], impulse)
    return np.concatenate([[1.0], powers])[:terms]

  def inverse_column(self, terms: int) -> np.ndarray:
    # r is the noise y for z = 1, 0, 0, ... in the recursion of the class. With
    # F = diag(theta) - 1 omega^T, r_0 = 1 and r_{1 + t} = -omega^T F^t 1. For
    # t = k B + j, B = `_BLOCK` and 0 <= j < B, `outputs` has -omega^T F^j, and
    # `states` has (F^B)^k 1. Eigenvalues of F would be faster, but they are
    # badly conditioned if thetas are close.
    step = np.diag(self.theta) - self.omega[None, :]
    outputs = np.empty((_BLOCK, self.buffers))
    outputs[0] = -self.omega
    for j in range(1, _BLOCK):
      outputs[j] = outputs[j - 1] @ step
    leap = np.linalg.matrix_power(step, _BLOCK)
    states = np.empty((-(-terms // _BLOCK), self.buffers))
    states[0] = 1.0
    for k in range(1, len(states)):
      states[k] = leap @ states[k - 1]
    return np.concatenate([[1.0], (states @ outputs.T).ravel()])[:terms]


class BltBuffers(recursion_lib.Buffers):
  """One buffer for each decay. [BLT24]

  If column t of C is divided by a norm a_t, row t of C^-1 is multiplied by a_t:

    y_t = a_t (z_t - omega . S),   S <- theta * S + y_t / a_t
  """

  def __init__(self, blt: Blt, rounds: int, norms: Optional[np.ndarray] = None):
    """Makes the buffers of a run.

    Args:
      blt: strategy; its `rounds` are a period, and the buffers are reset at
        the start of each period.
      rounds: number of rounds of the run.
      norms: [blt.rounds] float64, a_t of each round of a period; None means
        that every a_t is 1.
    """
    self.rounds = rounds
    self.memory = blt.buffers
    self._blt, self._period = blt, blt.rounds
    self._numbers = {} if norms is None else {'norms': norms}
    # Phase 0 is the first round of a period, in which the buffers are reset.
    self.phases = min(2, blt.rounds) if norms is None else blt.rounds

  def phase(self, t: recursion_lib.Index) -> recursion_lib.Index:
    local = t % self._period
    if self._numbers:
      return local
    return (local + self._period - 1) // self._period

  @property
  def scales(self) -> np.ndarray:
    return self._numbers['norms'] if self._numbers else np.ones(self.phases)

  def step(self, phase: int) -> recursion_lib.Step:
    scale = float(self.scales[phase])
    decays = float(phase > 0)
    readout = -scale * decays * self._blt.omega
    update = np.diag(decays * self._blt.theta)
    gain = np.full(self.memory, 1.0 / scale)
    return recursion_lib.Step(scale, readout, update, gain)

  def reach(self, t: int) -> int:
    return t % self._period

  @functools.cached_property
  def _exact(self) -> tuple[Sequence[fractions.Fraction], ...]:
    """theta and omega as fractions."""
    return tuple(
      [fractions.Fraction(float(value)) for value in values]
      for values in (self._blt.theta, self._blt.omega)
    )

  def exact_weights(self, t):
    norm = self._norm(t)
    return norm, [-norm * omega for omega in self._exact[1]]

  def exact_update(self, buffers, t, y, bits):
    # Each product and each quotient is rounded down by less than 2^-bits, and
    # decays below 1 do not enlarge errors.
    norm = self._norm(t)
    added = (y * norm.denominator << bits) // norm.numerator
    return [
      theta.numerator * buffer // theta.denominator + added
      for theta, buffer in zip(self._exact[0], buffers)
    ]

  def _norm(self, t: int) -> fractions.Fraction:
    return fractions.Fraction(float(self.scales[self.phase(t)]))

  def _variances(self) -> np.ndarray:
    local = np.cumsum(self._blt.inverse_column(self._period) ** 2)
    if self._numbers:
      local = local * self.scales**2
    return local[np.arange(self.rounds) % self._period]


_BUFFERS = families.Parameter(
  'buffers', int, 'Number of decaying powers that are added up.'
)
FAMILIES = (
  families.Family(
    Blt,
    'sum of powers, optimised',
    'BLT24, UseBLTs24',
    (_BUFFERS, families.COLUMN_NORMALIZE),
    families.Memory('buffers', lambda rounds: 1),
    'tff_bandmf.optimize.searches:blt',
  ),
)
