"""Optimal banded Toeplitz coefficients for prefix sums, exact for any n.

| symbol | meaning                                                        |
|--------|----------------------------------------------------------------|
| c      | coefficients, c_0 = 1, c_1 .. c_{b-1} in [0, 1]                |
| w      | C^-1 1: w(x) = 1 / ((1 - x) c(x)) as power series              |
| v      | v(x) = w(x) / c(x); d w_j / d c_i = -v_{j-i}                   |
| a_j    | weight of w_j^2 in the error: (n - j) / n (mean) or 1 (max)    |
| J      | terms until w and v have converged to W = 1 / sum(c) and W^2   |

  error(c) = sum_{j<J} a_j w_j^2 + W^2 sum_{j>=J} a_j
  minimise log error(c) + log |c|^2

[BandMF24, Sec 4] has the loss; closing the tail after J terms is ours, and
makes the cost independent of n. W^2 is taken as the mean of the last b terms,
which is the same once w has converged and harmless at a trial point where it
has not (c = 1 has its roots on the unit circle). Without the bounds L-BFGS-B
diverges.
"""

from __future__ import annotations

import dataclasses
from typing import Callable, Optional

import numpy as np
import scipy.optimize
import tensorflow as tf

from tff_bandmf import errors, strategies

MEAN = 'mean'
MAX = 'max'

_CONVERGED = 1e-8
_FEWEST_TERMS = 1024
_MOST_TERMS = 2**20


@dataclasses.dataclass(frozen=True, eq=False)
class Optimized:
  """An optimised strategy.

  Attributes:
    strategy: the best one found.
    loss: its error times its squared column norm.
    evaluations: losses and gradients computed.
    converged: False if the optimiser stopped for another reason.
  """

  strategy: strategies.BandedToeplitz
  loss: float
  evaluations: int
  converged: bool


@tf.function(jit_compile=True, autograph=False)
def _divide(series: tf.Tensor, coefficients: tf.Tensor) -> tf.Tensor:
  """Returns the first terms of the power series `series` / `coefficients`.

    y_t = (x_t - sum_{s=1..b-1} c_s y_{t-s}) / c_0

  Args:
    series: [terms] float64, x.
    coefficients: [b] float64, c.

  Returns:
    [terms] float64, y.
  """
  lags = tf.reverse(coefficients[1:], [0]) / coefficients[0]
  terms, memory = series.shape[0], coefficients.shape[0] - 1
  quotient = tf.zeros([memory + terms], tf.float64)
  scaled = series / coefficients[0]

  def step(t, y):
    past = tf.slice(y, [t], [memory])
    value = scaled[t] - tf.reduce_sum(lags * past)
    return t + 1, tf.tensor_scatter_nd_update(y, [[t + memory]], [value])

  _, quotient = tf.while_loop(
      lambda t, _: t < terms, step, (tf.constant(0), quotient))
  return quotient[memory:]


@tf.function(jit_compile=True, autograph=False)
def _loss_and_gradient(coefficients, weights, tail_weight):
  """Returns log loss, its gradient and how far from converged w and v are.

  Args:
    coefficients: [b] float64.
    weights: [terms] float64, a_j.
    tail_weight: scalar float64, the sum of a_j past the last term.

  Returns:
    (scalar, [b], scalar) float64.
  """
  terms, bands = weights.shape[0], coefficients.shape[0]
  w = _divide(tf.ones_like(weights), coefficients)
  v = _divide(w, coefficients)
  last_w, last_v = w[-bands:], v[-bands:]
  error = (
      tf.reduce_sum(weights * w**2) + tail_weight * tf.reduce_mean(last_w**2))
  # d error / d c_i = -2 (sum_{j<J} a_j w_j v_{j-i} + W^3 sum_{j>=J} a_j).
  padded = tf.concat([tf.zeros([bands - 1], tf.float64), v], 0)
  aw = weights * w
  correlation = tf.map_fn(
      lambda i: tf.reduce_sum(aw * tf.slice(padded, [bands - 1 - i], [terms])),
      tf.range(bands), fn_output_signature=tf.float64)
  gradient = -2 * (
      correlation + tail_weight * tf.reduce_mean(last_w * last_v))
  norm_squared = tf.reduce_sum(coefficients**2)
  limit = 1 / tf.reduce_sum(coefficients)
  residual = tf.maximum(
      tf.reduce_max(tf.abs(last_w / limit - 1)),
      tf.reduce_max(tf.abs(last_v / limit**2 - 1)))
  return (
      tf.math.log(error) + tf.math.log(norm_squared),
      gradient / error + 2 * coefficients / norm_squared,
      residual,
  )


class _Objective:
  """The log loss as a function of c_1 .. c_{b-1}, with J grown as needed.

  Attributes:
    exact: whether w and v had converged, or were complete, at the last call.
  """

  def __init__(self, rounds: int, bands: int, objective: str):
    self._rounds = rounds
    self._bands = bands
    self._objective = objective
    self._set_terms(max(_FEWEST_TERMS, 8 * bands))

  def _set_terms(self, terms: int) -> None:
    self._terms = min(terms, self._rounds)
    # A trace per shape is meant; called otherwise, TensorFlow warns of each.
    self._loss_and_gradient = _loss_and_gradient.get_concrete_function(
        *(tf.TensorSpec(shape, tf.float64)
          for shape in ([self._bands], [self._terms], [])))
    n, left = float(self._rounds), float(self._rounds - self._terms)
    if self._objective == MEAN:
      self._weights = 1 - np.arange(self._terms) / n
      self._tail_weight = left * (left + 1) / 2 / n
    else:
      self._weights = np.ones(self._terms)
      self._tail_weight = left

  def __call__(self, free: np.ndarray) -> tuple[float, np.ndarray]:
    coefficients = np.concatenate([[1.0], free])
    while True:
      value, gradient, residual = self._loss_and_gradient(
          tf.constant(coefficients, tf.float64),
          tf.constant(self._weights, tf.float64),
          tf.constant(self._tail_weight, tf.float64))
      self.exact = bool(
          self._terms == self._rounds or residual <= _CONVERGED)
      if self.exact or self._terms >= _MOST_TERMS:
        return float(value), gradient.numpy()[1:]
      self._set_terms(2 * self._terms)


def square_root_coefficients(bands: int) -> np.ndarray:
  """Returns the first coefficients of (1 - x)^(-1/2), [bands] float64."""
  j = np.arange(1, bands)
  return np.concatenate([[1.0], np.cumprod((j - 0.5) / j)])


def optimize_banded_toeplitz(
    rounds: int,
    bands: int,
    objective: str = MEAN,
    max_evaluations: int = 2000,
    callback: Optional[Callable[[], None]] = None,
) -> Optimized:
  """Returns the banded Toeplitz strategy of least loss for prefix sums.

    loss = error * sens^2, sens = |c| for a single participation

  With at most `min_sep` bands the same strategy is optimal under every
  min-separation schema: all of them scale |c| alike up to columns that end at
  round n.

  Args:
    rounds: n.
    bands: b, at most n.
    objective: `MEAN` or `MAX`, over the errors of the n prefix sums.
    max_evaluations: of the loss and its gradient.
    callback: called after every iteration of L-BFGS-B.

  Raises:
    ValueError: a value out of range.

  >>> found = optimize_banded_toeplitz(rounds=1000, bands=16)
  >>> round(found.loss, 6), found.converged
  (39.415317, True)
  """
  errors.check_count('rounds', rounds, 'give the number of rounds')
  errors.check_count('bands', bands, '1 is the identity')
  if bands > rounds:
    raise ValueError(
        errors.invalid(
            'bands', bands, f'must not exceed rounds={rounds}',
            'use fewer bands'))
  if objective not in (MEAN, MAX):
    raise ValueError(
        errors.invalid(
            'objective', objective, 'is not known', 'use mean or max'))
  if bands == 1:
    return _optimized(rounds, objective, np.ones(1), 0, True)
  loss = _Objective(rounds, bands, objective)
  found = scipy.optimize.minimize(
      loss,
      square_root_coefficients(bands)[1:],
      method='L-BFGS-B',
      jac=True,
      bounds=[(0, 1)] * (bands - 1),
      callback=None if callback is None else lambda _: callback(),
      options={
          'maxcor': 20, 'ftol': 1e-15, 'gtol': 1e-9,
          'maxfun': max_evaluations, 'maxiter': max_evaluations,
      },
  )
  loss(found.x)
  return _optimized(
      rounds, objective, np.concatenate([[1.0], found.x]), found.nfev,
      bool(found.success) and loss.exact)


def _optimized(
    rounds: int,
    objective: str,
    coefficients: np.ndarray,
    evaluations: int,
    converged: bool,
) -> Optimized:
  """Returns the result, with the loss computed again without TensorFlow."""
  strategy = strategies.BandedToeplitz(rounds, coefficients)
  mean, largest = strategy.prefix_errors()
  error = mean if objective == MEAN else largest
  return Optimized(
      strategy, error * float(coefficients @ coefficients), evaluations,
      converged)
