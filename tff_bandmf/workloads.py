"""The workload matrix A of SGD, and the error of a run.

| symbol | name here        | meaning                                        |
|--------|------------------|------------------------------------------------|
| beta   | `momentum`       | momentum of the server's SGD, 0 for plain SGD  |
| eta_t  | `learning_rates` | learning rate of round t, relative to the peak |
| d_t    | `decays`         | factor of the model in round t, 1 without      |
|        |                  | weight decay                                   |
| M      | `column`         | M[t, i] = beta^(t - i) for i <= t, Toeplitz    |
| h      | `polynomial`     | first column of M^-1: h(x) = 1 - beta x        |
| A      | `matrix`         | A_t = d_t A_{t-1} + eta_t M_t; row t gives the |
|        |                  | model after round t                            |

With momentum 0, no weight decay and a constant learning rate, A is the lower
triangular matrix of ones, whose rows give prefix sums. A^-1 has 2 bands, or 3
bands with momentum, for all learning rates above 0. The code for errors and
searches uses h in place of M. It is written for h of any degree with h_0 = 1.
A program may also give A itself.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, Callable, Optional, Union

import attrs
import numpy as np

from tff_bandmf import _checks, _files, errors

MEAN = 'mean'
MAX = 'max'
LAST = 'last'
# The error of a run: `MEAN`, `MAX` or `LAST` of the errors of its rounds, or a
# weight for each round, for the weighted mean of these errors. A search in
# TensorFlow also takes a function from the errors to a number.
Objective = Union[str, Sequence[float], Callable[[Any], Any]]

# Largest number of rounds of a workload that is given as a matrix.
MAX_MATRIX_ROUNDS = 4096
# First and last learning rate of a schedule, relative to the peak.
_LOWEST_RATE = 0.05


def _momentum(value: float) -> float:
  momentum = _checks.number('momentum', value, 'give a fraction')
  if not 0 <= momentum < 1:
    raise errors.value_error(
      f'momentum={value}: must be in [0, 1); give a fraction'
    )
  return momentum


def _fraction(name: str, about: str) -> Any:
  """Returns a field of `Workload` for a fraction in [0, 1]; 0 by default."""

  def check(value: float) -> float:
    return _checks.between(name, value, 0, 1, 'give a fraction')

  return attrs.field(default=0.0, converter=check, metadata={'about': about})


def _rates(values: Any) -> tuple[float, ...]:
  return _for_rounds('learning_rates', values)


def _for_rounds(name: str, values: Any) -> tuple[float, ...]:
  """Returns a number >= 0 for each round; raises an error if all are 0."""
  numbers = _checks.real_array(name, values)
  is_valid = numbers.ndim == 1 and np.any(numbers)
  if not is_valid or not np.all((0 <= numbers) & (numbers < np.inf)):
    raise errors.value_error(
      f'{name}={values}: must be a list with a number >= 0 for each round, not '
      'all 0; correct the list'
    )
  return tuple(numbers.tolist())


def _given_matrix(values: Any) -> np.ndarray:
  matrix = _checks.lower_triangular('matrix', values)
  if not np.any(matrix) or not np.all(np.isfinite(matrix)):
    raise errors.value_error(
      'matrix=0, NaN or infinity: must be finite and not 0; correct the matrix'
    )
  if len(matrix) > MAX_MATRIX_ROUNDS:
    raise errors.value_error(
      f'matrix.shape={matrix.shape}: exceeds {MAX_MATRIX_ROUNDS} rounds; give '
      'learning rates, momentum and weight decay'
    )
  return matrix


@attrs.frozen
class Workload:
  """A_t = d_t A_{t-1} + eta_t M_t. [BandMF23, Sec 2 and App I]

  Over the first rounds, a fraction `warmup` of all rounds, the learning rate
  rises linearly from 5% to 100% of its peak. Over the last rounds, a fraction
  `cooldown` of all rounds, it falls linearly back to 5%.

  Attributes:
    momentum: beta, in [0, 1).
    warmup: fraction of the rounds in which the learning rate rises, in [0, 1].
    cooldown: fraction of the rounds in which the learning rate falls, in
      [0, 1 - warmup].
    weight_decay: fraction of the model that a round of learning rate 1 removes:
      d_t = 1 - weight_decay * eta_t, which must not be below 0.
    learning_rates: only an argument of the constructor: eta of each round,
      >= 0, in place of `warmup` and `cooldown`.
    matrix: only an argument of the constructor: A, [rounds, rounds]
      lower-triangular, at most 4096 rounds, in place of all other arguments.

  Raises:
    TypeError: a value is not a number.
    ValueError: a value is out of range, or values contradict each other.

  >>> Workload(momentum=0.5).matrix(3)
  array([[1.  , 0.  , 0.  ],
         [1.5 , 1.  , 0.  ],
         [1.75, 1.5 , 1.  ]])
  >>> Workload(learning_rates=[1.0, 0.5], weight_decay=0.5).matrix(2)
  array([[1.  , 0.  ],
         [0.75, 0.5 ]])
  """

  momentum: float = attrs.field(
    default=0.0,
    converter=_momentum,
    metadata={'about': 'Momentum beta of the SGD, in [0, 1).'},
  )
  warmup: float = _fraction(
    'warmup',
    'Fraction of the rounds in which the learning rate climbs from 5%.',
  )
  cooldown: float = _fraction(
    'cooldown',
    'Fraction of the rounds in which the learning rate falls to 5%, at the '
    'end.',
  )
  weight_decay: float = _fraction(
    'weight_decay',
    'Fraction of the model that a round at the peak learning rate removes.',
  )
  _learning_rates: Optional[tuple[float, ...]] = attrs.field(
    default=None, converter=attrs.converters.optional(_rates)
  )
  _matrix: Optional[np.ndarray] = attrs.field(
    default=None,
    converter=attrs.converters.optional(_given_matrix),
    eq=lambda matrix: None if matrix is None else matrix.tobytes(),
  )

  def __attrs_post_init__(self):
    if self.warmup + self.cooldown > 1:
      raise errors.value_error(
        f'cooldown={self.cooldown}: must be at most 1 - warmup; use less'
      )
    if self._learning_rates and self.warmup + self.cooldown:
      raise errors.value_error(
        'learning_rates: do not go with warmup or cooldown; leave both out'
      )
    if self.weight_decay * max(self._learning_rates or [1.0]) > 1:
      raise errors.value_error(
        f'weight_decay={self.weight_decay}: exceeds 1 / learning rate; use less'
      )
    if self._matrix is not None and attrs.evolve(self, matrix=None) != PREFIX:
      raise errors.value_error(
        'matrix: is the whole workload; leave the other arguments out'
      )

  @property
  def name(self) -> str:
    """Name of the workload: 'prefix', 'momentum' or 'matrix'."""
    if self._matrix is not None:
      return 'matrix'
    return 'prefix' if self == PREFIX else 'momentum'

  @property
  def is_toeplitz(self) -> bool:
    """Whether the learning rate is constant, so that A is Toeplitz."""
    given = self._learning_rates is not None or self._matrix is not None
    return not (self.warmup or self.cooldown or given)

  @property
  def inverse_bands(self) -> Optional[int]:
    """Number of bands of A^-1; None if A may have no inverse of few bands."""
    if self._matrix is not None or 0.0 in (self._learning_rates or ()):
      return None
    return len(self.polynomial) + 1

  @property
  def steps(self) -> np.ndarray:
    """The coefficients of 1 / A(x), if A is Toeplitz, float64."""
    return np.convolve([1.0, self.weight_decay - 1.0], self.polynomial)

  @property
  def unscheduled(self) -> Workload:
    """A workload with the same momentum and a constant learning rate."""
    decay = 0.0 if self._learning_rates else self.weight_decay
    return Workload(self.momentum, weight_decay=decay)

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
    """Returns eta of each round, [rounds] float64, >= 0.

    Raises:
      ValueError: the learning rates are given for another number of rounds.
    """
    if self._learning_rates is not None:
      _check_rounds('learning_rates', self._learning_rates, rounds)
      return np.array(self._learning_rates)
    rates = np.ones(rounds)
    rising = round(self.warmup * rounds)
    falling = min(round(self.cooldown * rounds), rounds - rising)
    rates[:rising] = np.linspace(_LOWEST_RATE, 1, rising + 1)[:rising]
    if falling:
      rates[-falling:] = np.linspace(1, _LOWEST_RATE, falling + 1)[1:]
    return rates

  def decays(self, rounds: int) -> np.ndarray:
    """Returns d of each round, [rounds] float64 in [0, 1]."""
    return 1 - self.weight_decay * self.learning_rates(rounds)

  def inverse_rows(self, rounds: int) -> np.ndarray:
    """Returns the bands of A^-1, row by row.

      A^-1 = M^-1 diag(1 / eta) (I - diag(d) shift)
      R[t, s] = h_s / eta_{t-s} - h_{s-1} d_{t-s+1} / eta_{t-s+1}

    Returns:
      [rounds, degree of h + 2] float64 array R with R[t, s] = A^-1[t, t - s],
      and 0 for t < s.
    """
    h = np.trim_zeros(self.polynomial, 'b')
    inverse = 1 / self.learning_rates(rounds)
    later = inverse * self.decays(rounds)
    rows = np.zeros((rounds, len(h) + 1))
    for s, weight in enumerate(h[:rounds]):
      rows[s:, s] += weight * inverse[: rounds - s]
      rows[s + 1 :, s + 1] -= weight * later[1 : rounds - s]
    return rows

  def matrix(self, rounds: int) -> np.ndarray:
    """Returns A as a dense [rounds, rounds] float64 array."""
    if self._matrix is not None:
      _check_rounds('matrix', self._matrix, rounds)
      return self._matrix
    lags = np.subtract.outer(np.arange(rounds), np.arange(rounds))
    m = np.where(lags >= 0, self.column(rounds)[np.maximum(lags, 0)], 0.0)
    return self.summed(m)

  def summed(self, steps: np.ndarray) -> np.ndarray:
    """Returns A M^-1 steps, [rounds, any] float64; if steps = M x, this is A x.

    Args:
      steps: [rounds, any] float64.
    """
    if self._matrix is not None:
      return self.matrix(len(steps)) @ steps
    models = self.learning_rates(len(steps))[:, None] * steps
    if not self.weight_decay:
      return np.cumsum(models, axis=0, out=models)
    decays = self.decays(len(steps))
    for model, before, decay in zip(models[1:], models, decays[1:]):
      model += decay * before
    return models

  def summed_back(self, by_models: np.ndarray) -> np.ndarray:
    """Returns the gradient by `steps` from the gradient by `summed(steps)`."""
    if self._matrix is not None:
      return self.matrix(len(by_models)).T @ by_models
    if not self.weight_decay:
      by_models = np.cumsum(by_models[::-1], axis=0)[::-1]
    else:
      by_models, decays = by_models.copy(), self.decays(len(by_models))
      for t in range(len(by_models) - 1, 0, -1):
        by_models[t - 1] += decays[t] * by_models[t]
    return self.learning_rates(len(by_models))[:, None] * by_models

  def to_dict(self) -> _files.JsonObject:
    """Returns the workload as a JSON object; `from_dict` reads it back."""
    if self._matrix is not None:
      return {'workload': self.name, 'matrix': self._matrix.tolist()}
    values = {name: getattr(self, name) for name in PARAMETERS}
    if not self.weight_decay:
      del values['weight_decay']
    if self._learning_rates is not None:
      values['learning_rates'] = list(self._learning_rates)
    return {'workload': self.name, **values}


def _check_rounds(name: str, values: Any, rounds: int) -> None:
  """Raises ValueError unless `values` has one entry for each round."""
  if len(values) != rounds:
    raise errors.value_error(
      f'{name}={len(values)} rounds: the run has {rounds}; give one for each'
    )


PREFIX = Workload()
# Description of each number that describes a workload, for --help.
PARAMETERS = {
  field.name: field.metadata['about']
  for field in attrs.fields(Workload)
  if field.metadata
}


def from_name(name: str, **parameters: Any) -> Workload:
  """Returns the workload called `name`.

  Args:
    name: 'prefix', 'momentum' or 'matrix'.
    **parameters: arguments of `Workload`. An argument that is None counts as
      missing. The workload 'momentum' requires the argument `momentum`, and
      the workload 'matrix' the argument `matrix`.

  Raises:
    ValueError: the name is unknown, or a parameter is missing or does not
      apply.
  """
  given = {key: value for key, value in parameters.items() if value is not None}
  if name == 'prefix':
    for key, value in given.items():
      if value:
        raise errors.value_error(
          f'{key}={value}: prefix does not take it; use workload momentum'
        )
    return PREFIX
  if name not in ('momentum', 'matrix'):
    raise errors.value_error(
      f'workload={name}: is not known; use prefix, momentum or matrix'
    )
  if name not in given:
    raise errors.value_error(
      f'{name}=None: workload {name} needs it; give {name}'
      + ', or 0 if only the learning rate varies' * (name == 'momentum')
    )
  return Workload(**given)


def from_dict(values: Mapping[str, _files.Json]) -> Workload:
  """Returns the workload from the result of `to_dict`.

  Raises:
    TypeError: the keys differ from the result of `to_dict`, or an attribute is
      not a number.
    ValueError: a value is out of range.
  """
  parameters, same = dict(values), False
  if {'momentum', 'matrix'} & {*values}:
    with contextlib.suppress(KeyError, TypeError):
      workload = from_name(parameters.pop('workload'), **parameters)
      same = list(workload.to_dict()) == list(values)
  if not same:
    raise errors.type_error(
      f'workload={dict(values)}: is not a result of to_dict; write it again'
    )
  return workload


def check_objective(
  objective: object, rounds: Optional[int] = None
) -> Objective:
  """Returns an objective; a list becomes a tuple.

  Args:
    objective: see `Objective`; no function.
    rounds: number of rounds; None if it is not known yet.

  Raises:
    TypeError: a weight is not a number.
    ValueError: the objective is not known, or its weights are wrong.
  """
  if isinstance(objective, str) or objective is None:
    if objective not in (MEAN, MAX, LAST):
      raise errors.value_error(
        f'objective={objective}: is not known; use mean, max, last or weights'
      )
    return objective
  if callable(objective):
    raise errors.type_error(
      'objective=a function: cannot be stored in a plan or a file; give it to '
      'optimize.minimize, and its strategy to the plan'
    )
  weights = _for_rounds('objective', objective)
  if rounds is not None:
    _check_rounds('objective', weights, rounds)
  return weights


def weights(objective: Objective, rounds: int) -> np.ndarray:
  """Returns the weight of each round in an error, [rounds] float64, of sum 1.

  For `MAX`, and for a function, these are the equal weights of the mean. A
  search for `MAX` begins with them.
  """
  values = np.ones(rounds)
  if objective == LAST:
    values[:-1] = 0.0
  elif not isinstance(objective, str) and not callable(objective):
    values = np.array(objective)
  return values / values.sum()
