"""The workload matrix A of SGD: prefix sums, momentum, learning rates.

| symbol | name here        | meaning                                        |
|--------|------------------|------------------------------------------------|
| beta   | `momentum`       | momentum of the server's SGD, 0 for plain SGD  |
| eta_t  | `learning_rates` | learning rate of round t, relative to the peak |
| M      | `column`         | M[t, i] = beta^(t - i) for i <= t, Toeplitz    |
| h      | `polynomial`     | first column of M^-1: h(x) = 1 - beta x        |
| A      | `matrix`         | tri(n) diag(eta) M; row t gives the model      |
|        |                  | after round t                                  |

Here n is the number of rounds, and tri(n) is the lower triangular matrix of
ones. With momentum 0 and a constant learning rate, A = tri(n), whose rows give
prefix sums. A^-1 has 2 bands, or 3 bands with momentum, for all learning rates.
The code for errors and searches uses h in place of M. It is written for h of
any degree with h_0 = 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Optional

import attrs
import numpy as np

from tff_bandmf import _checks, _files, errors

# First and last learning rate of a schedule, relative to the peak.
_LOWEST_RATE = 0.05


def _momentum(value: float) -> float:
  momentum = _checks.number('momentum', value, 'give a fraction')
  if not 0 <= momentum < 1:
    raise errors.value_error(
      f'momentum={value}: must be in [0, 1); give a fraction'
    )
  return momentum


def _warmup(value: float) -> float:
  return _checks.between('warmup', value, 0, 1, 'give a fraction')


def _cooldown(value: float) -> float:
  return _checks.between('cooldown', value, 0, 1, 'give a fraction')


@attrs.frozen
class Workload:
  """A = tri(n) diag(eta) M. [BandMF23, Sec 2 and App I]

  The learning rate rises linearly from 5% to 100% of its peak over the first
  rounds, a fraction `warmup` of all rounds, and falls linearly back to 5% over
  the last rounds, a fraction `cooldown` of all rounds.

  Attributes:
    momentum: beta, in [0, 1).
    warmup: fraction of the rounds in which the learning rate rises, in [0, 1].
    cooldown: fraction of the rounds in which the learning rate falls, in
      [0, 1 - warmup].

  Raises:
    TypeError: a value is not a number.
    ValueError: a value is out of range.

  >>> Workload(momentum=0.5).matrix(3)
  array([[1.  , 0.  , 0.  ],
         [1.5 , 1.  , 0.  ],
         [1.75, 1.5 , 1.  ]])
  """

  momentum: float = attrs.field(
    default=0.0,
    converter=_momentum,
    metadata={'about': 'Momentum beta of the SGD, in [0, 1).'},
  )
  warmup: float = attrs.field(
    default=0.0,
    converter=_warmup,
    metadata={
      'about': 'Fraction of the rounds in which the learning rate climbs from '
      '5%.'
    },
  )
  cooldown: float = attrs.field(
    default=0.0,
    converter=_cooldown,
    metadata={
      'about': 'Fraction of the rounds in which the learning rate falls to 5%, '
      'at the end.'
    },
  )

  def __attrs_post_init__(self):
    if self.warmup + self.cooldown > 1:
      raise errors.value_error(
        f'cooldown={self.cooldown}: cooldown + warmup must be at most 1, and '
        f'warmup={self.warmup}; use smaller fractions'
      )

  @property
  def name(self) -> str:
    """Name of the workload: 'prefix' or 'momentum'."""
    return 'prefix' if self == PREFIX else 'momentum'

  @property
  def is_toeplitz(self) -> bool:
    """Whether the learning rate is constant, so that A is Toeplitz."""
    return not (self.warmup or self.cooldown)

  @property
  def unscheduled(self) -> Workload:
    """The same workload with a constant learning rate."""
    return attrs.evolve(self, warmup=0.0, cooldown=0.0)

  @property
  def polynomial(self) -> np.ndarray:
    """The coefficients of h, [degree of h + 1] float64.

    They are the first entries of the first column of M^-1, whose other entries
    are 0. The coefficient h_0 is 1.
    """
    return np.array([1.0, -self.momentum])

  def column(self, terms: int) -> np.ndarray:
    """Returns column 0 of M, [terms] float64, the coefficients of 1 / h(x)."""
    return self.momentum ** np.arange(terms, dtype=float)

  def learning_rates(self, rounds: int) -> np.ndarray:
    """Returns eta of each round, [rounds] float64 in (0, 1]."""
    rates = np.ones(rounds)
    rising, falling = (
      int(round(part * rounds)) for part in (self.warmup, self.cooldown)
    )
    falling = min(falling, rounds - rising)
    rates[:rising] = np.linspace(_LOWEST_RATE, 1, rising + 1)[:rising]
    if falling:
      rates[-falling:] = np.linspace(1, _LOWEST_RATE, falling + 1)[1:]
    return rates

  def inverse_rows(self, rounds: int) -> np.ndarray:
    """Returns the bands of A^-1, row by row.

      A^-1 = M^-1 diag(1 / eta) tri^-1
      R[t, s] = h_s / eta_{t-s} - h_{s-1} / eta_{t-s+1}

    Returns:
      [rounds, degree of h + 2] float64 array R with R[t, s] = A^-1[t, t - s],
      and 0 for t < s.
    """
    h = np.trim_zeros(self.polynomial, 'b')
    inverse = 1 / self.learning_rates(rounds)
    rows = np.zeros((rounds, len(h) + 1))
    for s, weight in enumerate(h[:rounds]):
      rows[s:, s] += weight * inverse[: rounds - s]
      rows[s + 1 :, s + 1] -= weight * inverse[1 : rounds - s]
    return rows

  def matrix(self, rounds: int) -> np.ndarray:
    """Returns A as a dense [rounds, rounds] float64 array."""
    lags = np.subtract.outer(np.arange(rounds), np.arange(rounds))
    m = np.where(lags >= 0, self.column(rounds)[np.maximum(lags, 0)], 0.0)
    return np.cumsum(self.learning_rates(rounds)[:, None] * m, axis=0)

  def to_dict(self) -> _files.JsonObject:
    """Returns the workload as a JSON object; `from_dict` reads it back."""
    return {'workload': self.name, **attrs.asdict(self)}


PREFIX = Workload()
# Description of each attribute of a workload, for --help.
PARAMETERS = {
  field.name: field.metadata['about'] for field in attrs.fields(Workload)
}


def from_name(name: str, **parameters: Optional[float]) -> Workload:
  """Returns the workload called `name`.

  Args:
    name: 'prefix' or 'momentum'.
    **parameters: attributes of the workload. An attribute that is None counts
      as missing. The workload 'momentum' requires the attribute `momentum`.

  Raises:
    ValueError: the name is unknown, or a parameter is missing or does not
      apply.
  """
  given = {key: value for key, value in parameters.items() if value is not None}
  if name == 'prefix':
    for key, value in given.items():
      if value:
        raise errors.value_error(
          f'{key}={value}: workload prefix does not take it; use workload '
          'momentum'
        )
    return PREFIX
  if name == 'momentum':
    if 'momentum' not in given:
      raise errors.value_error(
        'momentum=None: workload momentum needs it; give momentum, or 0 if '
        'only the learning rate varies'
      )
    return Workload(**given)
  raise errors.value_error(
    f'workload={name}: is not known; use prefix or momentum'
  )


def from_dict(record: Mapping[str, _files.Json]) -> Workload:
  """Returns the workload from the result of `to_dict`.

  Raises:
    TypeError: the keys differ from the result of `to_dict`, or an attribute is
      not a number.
    ValueError: a value is out of range.
  """
  if list(record) != ['workload', *PARAMETERS]:
    raise errors.type_error(
      f'workload={dict(record)}: must have {", ".join(PARAMETERS)}; write it '
      'with to_dict'
    )
  parameters = dict(record)
  return from_name(parameters.pop('workload'), **parameters)
