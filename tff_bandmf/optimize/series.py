"""Losses of Toeplitz strategies in TensorFlow, from the first n terms.

| symbol | meaning                                                           |
|--------|-------------------------------------------------------------------|
| c, r   | first columns of C and C^-1; as power series r = 1 / c            |
| a      | first column of A, 1 / ((1 - x) (1 - beta x))                     |
| w      | first column of A C^-1, w = a r                                   |
| a_j    | weight of w_j^2 in the error: (n - j) / n (mean) or 1 (max)       |
| v      | r / (1 - beta x)                                                  |
| eta    | learning rates                                                    |
| B      | A C^-1 with learning rates, B[t, i] = sum_{s<=t} eta_s v_{s-i}    |
| Q      | of the mean error with learning rates, v^T Q v                    |
| b, k   | least separation, participations                                  |
| m      | m_t = |c_t| for t < b, else max_{s>=t} |c_s|                      |

  loss = error * sens^2
  error = sum_j a_j w_j^2, or v^T Q v or max_t (B B^T)[t, t] with learning rates
  sens = || sum_{j<k} shift(m, j b) ||, or || c || for one participation

sens is exact where m = c, and a bound elsewhere, as |C| is at most the matrix
of m. For if c >= 0 falls from b on, X = C^T C is largest at the leftmost
pattern: X[i, j] = sum_{t<n-j} c_{t+j-i} c_t, and both j and j - i are least
there. [BSR24, Thm 2] asks c to fall from 0 on.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, Callable, Optional

import numpy as np
import tensorflow as tf

from tff_bandmf import errors
from tff_bandmf import participation as participation_lib
from tff_bandmf.optimize import solver

# Above, what is n x n does not fit.
_MOST_SCHEDULED_ROUNDS = 4096
# Powers p of the norm that stands for the maximum over rounds: it exceeds it
# by a factor of n^(1 / p) at most. One after the other, as large p are stiff.
_NORMS = (100.0, 1e4)
# Decrease of a log loss that is none.
_NO_GAIN = 1e-10

# Takes [parameters], returns c and r: [n], or fewer terms if the rest are 0.
Build = Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]


def _solve(series: tf.Tensor, coefficients: tf.Tensor) -> tf.Tensor:
  """Returns the first terms of `series` / `coefficients`, as `divide` does.

  y_t = (x_t - sum_{s=1..b-1} c_s y_{t-s}) / c_0
  """
  terms, width = series.shape
  memory = coefficients.shape[0] - 1
  lags = tf.reverse(coefficients[1:], [0])[:, None] / coefficients[0]
  scaled = series / coefficients[0]

  def step(t, y):
    past = tf.slice(y, [t, 0], [memory, width])
    value = scaled[t] - tf.reduce_sum(lags * past, 0)
    return t + 1, tf.tensor_scatter_nd_update(y, [[t + memory]], [value])

  _, quotient = tf.while_loop(
    lambda t, _: t < terms,
    step,
    (tf.constant(0), tf.zeros([memory + terms, width], tf.float64)),
  )
  return quotient[memory:]


@tf.custom_gradient
def divide(series: tf.Tensor, coefficients: tf.Tensor):
  """Returns the first terms of the power series `series` / `coefficients`.

  Args:
    series: [terms, width] float64, `width` series side by side.
    coefficients: [b] float64, b > 1.

  Returns:
    [terms, width] float64. The gradient is the same division, backwards.
  """
  quotient = _solve(series, coefficients)

  def gradient(upstream):
    adjoint = tf.reverse(_solve(tf.reverse(upstream, [0]), coefficients), [0])
    terms, width = quotient.shape
    memory = coefficients.shape[0] - 1
    padded = tf.concat([tf.zeros([memory, width], tf.float64), quotient], 0)
    correlation = tf.map_fn(
      lambda i: tf.reduce_sum(
        adjoint * tf.slice(padded, [memory - i, 0], [terms, width])
      ),
      tf.range(memory + 1),
      fn_output_signature=tf.float64,
    )
    return adjoint, -correlation

  return quotient, gradient


def reciprocal(coefficients: tf.Tensor, terms: int) -> tf.Tensor:
  """Returns the first terms of 1 / `coefficients`, [terms] float64."""
  return divide(tf.one_hot([0], terms, axis=0, dtype=tf.float64), coefficients)[
    :, 0
  ]


def lower_toeplitz(column: tf.Tensor) -> tf.Tensor:
  """Returns M[i, j] = column_{i-j}, 0 for i < j, [m, m] float64."""
  m = column.shape[0]
  # Rows a little shorter than the period they are cut from move to the right.
  period = tf.concat(
    [column[:1], tf.zeros([m], tf.float64), tf.reverse(column[1:], [0])], 0
  )
  length = 2 * m - 1
  return tf.reshape(tf.tile(period, [m])[: m * length], [m, length])[:, :m]


def squared_sensitivity(
  column: tf.Tensor,
  rounds: int,
  participation: participation_lib.Participation,
  falls: bool = False,
) -> tf.Tensor:
  """Returns sens^2 of the Toeplitz C with this first column, or a bound.

  Args:
    column: [terms] float64, c; terms past the last are 0.
    rounds: n.
    participation: of one client.
    falls: whether c is sure to be positive and to fall from c_1 on.
  """
  k = participation.participations(rounds)
  if k == 1:
    return tf.reduce_sum(column**2)
  min_sep = participation.separation(rounds)
  m = tf.abs(column)
  # PRIVACY: |c| alone understates a bound where gaps may be more than b.
  # Guard: optimize_series_test.test_sensitivity_is_never_below_brute_force.
  if not (falls or participation.evenly_spaced):
    m = tf.concat([m[:min_sep], _majorant(m[min_sep:])], 0)
  rows = -(-rounds // min_sep)
  padded = tf.pad(m, [[0, rows * min_sep - column.shape[0]]])
  summed = divide(tf.reshape(padded, [rows, min_sep]), _difference())
  if k < rows:
    summed -= tf.pad(summed[:-k], [[k, 0], [0, 0]])
  return tf.reduce_sum(tf.reshape(summed, [-1])[:rounds] ** 2)


def _majorant(m: tf.Tensor) -> tf.Tensor:
  """Returns max_{s>=t} m_s, [terms] float64, by runs of doubling length."""
  reach = 1
  while reach < m.shape[0]:
    m = tf.maximum(m, tf.pad(m[reach:], [[0, reach]]))
    reach *= 2
  return m


def _difference() -> tf.Tensor:
  """Returns 1 - x, by which a series is divided to sum its terms."""
  return tf.constant([1.0, -1.0], tf.float64)


def compiled(
  function: Callable[..., Any], *shapes: Sequence[int]
) -> Callable[..., Any]:
  """Returns a function of float64 tensors of these shapes, compiled by XLA."""
  # A trace per problem is meant; called otherwise, TensorFlow warns of each.
  return tf.function(
    function, jit_compile=True, autograph=False
  ).get_concrete_function(*(tf.TensorSpec(each, tf.float64) for each in shapes))


class Objective:
  """The log loss of a Toeplitz strategy as a function of few parameters.

  Attributes:
    size: the number of parameters.
  """

  def __init__(
    self,
    build: Build,
    size: int,
    problem: solver.Problem,
    falls: bool = False,
  ):
    """Compiles the loss.

    Args:
      build: c and r of the parameters.
      size: the number of parameters.
      problem: what is minimised.
      falls: whether c is sure to be positive and to fall from c_1 on.

    Raises:
      ValueError: learning rates and too many rounds.
    """
    rounds, workload = problem.rounds, problem.workload
    is_mean = problem.objective == solver.MEAN
    self.size = size
    self._problem = problem
    if not workload.is_toeplitz and rounds > _MOST_SCHEDULED_ROUNDS:
      raise errors.value_error(
        'rounds',
        rounds,
        f'learning rates are taken up to {_MOST_SCHEDULED_ROUNDS} rounds',
        'use a constant learning rate, or family banded',
      )
    self._norms: tuple[float, ...] = (1.0,)
    if workload.is_toeplitz:
      self._weights = (
        1 - np.arange(rounds) / rounds if is_mean else np.ones(rounds)
      )
      error = _toeplitz_error
    elif is_mean:
      self._weights = _mean_form(workload.learning_rates(rounds))
      error = _scheduled_mean
    else:
      self._weights = workload.learning_rates(rounds)
      self._norms = _NORMS
      error = _scheduled_max

    def loss_and_gradient(x, weights, norm):
      with tf.GradientTape() as tape:
        tape.watch(x)
        column, inverse = build(x)
        inverse = tf.pad(inverse, [[0, rounds - inverse.shape[0]]])
        loss = tf.math.log(
          error(inverse, weights, norm, workload.momentum)
        ) + tf.math.log(
          squared_sensitivity(column, rounds, problem.participation, falls)
        )
      return loss, tape.gradient(loss, x)

    self._function = compiled(
      loss_and_gradient, [size], self._weights.shape, []
    )
    self._weights = tf.constant(self._weights, tf.float64)

  def __call__(
    self, x: np.ndarray, norm: Optional[float] = None
  ) -> tuple[float, np.ndarray]:
    """Returns the log loss, infinite where it is NaN, and its gradient.

    `norm` is the power that stands for a maximum with learning rates.
    """
    value, gradient = self._function(
      tf.constant(x, tf.float64),
      self._weights,
      tf.constant(norm or self._norms[-1], tf.float64),
    )
    value, gradient = float(value), gradient.numpy()
    if not (np.isfinite(value) and np.all(np.isfinite(gradient))):
      return np.inf, np.zeros_like(gradient)
    return value, gradient

  def minimize(
    self,
    start: np.ndarray,
    bounds: Optional[list] = None,
    evaluations: int = 0,
  ) -> solver.Minimum:
    """Returns the best point that `minimize`, below, finds.

    Args:
      start: [size] float64.
      bounds: (low, high) of each parameter, None for none.
      evaluations: that were spent before; they are counted in what is returned.
    """
    problem = self._problem
    for norm in self._norms:
      found = minimize(
        functools.partial(self, norm=norm),
        start,
        bounds,
        problem.max_evaluations - evaluations,
        problem.callback,
      )
      start, evaluations = found.x, evaluations + found.evaluations
      if found.interrupted or evaluations >= problem.max_evaluations:
        break
    return dataclasses.replace(found, evaluations=evaluations)


def minimize(
  function: Callable[[np.ndarray], tuple[float, np.ndarray]],
  start: np.ndarray,
  bounds: Optional[list] = None,
  max_evaluations: int = solver.MAX_EVALUATIONS,
  callback: Optional[solver.Callback] = None,
) -> solver.Minimum:
  """Returns the best point of `solver.minimize` for a log loss.

  L-BFGS-B also gives up at a kink, or where rounding hides what is left to
  gain. It starts again from there, and has converged if that gains nothing.

  Args:
    function: takes [parameters] float64, returns log loss and gradient.
    callback: called after every iteration with the loss reached.
    others: as for `solver.minimize`.

  Returns:
    The minimum; its `value` is the loss, not the logarithm.
  """
  evaluations, previous = 0, np.inf
  while True:
    found = solver.minimize(
      function,
      start,
      bounds,
      max_evaluations - evaluations,
      None if callback is None else lambda log: callback(float(np.exp(log))),
    )
    evaluations += found.evaluations
    if evaluations < max_evaluations and not found.interrupted:
      gained = previous - found.value
      found = dataclasses.replace(
        found, converged=found.converged or gained <= _NO_GAIN
      )
    if found.converged or found.interrupted or evaluations >= max_evaluations:
      return dataclasses.replace(
        found, value=float(np.exp(found.value)), evaluations=evaluations
      )
    start, previous = found.x, found.value


def _toeplitz_error(inverse, weights, norm, momentum):
  """Returns sum_j a_j w_j^2."""
  del norm  # The errors do not decrease; the maximum is the last.
  steps = tf.constant([1.0, -1.0 - momentum, momentum], tf.float64)
  w = divide(inverse[:, None], steps)[:, 0]
  return tf.reduce_sum(weights * w**2)


def _scheduled_mean(inverse, weights, norm, momentum):
  """Returns v^T Q v; the detour halves the work of its gradient."""
  del norm
  v = _with_momentum(inverse, momentum)
  product = tf.stop_gradient(tf.linalg.matvec(weights, v))
  return 2 * tf.reduce_sum(v * product) - tf.stop_gradient(
    tf.reduce_sum(v * product)
  )


def _scheduled_max(inverse, weights, norm, momentum):
  """Returns (sum_t e_t^p)^(1 / p), e_t the squared norms of the rows of B."""
  v = _with_momentum(inverse, momentum)
  b = divide(weights[:, None] * lower_toeplitz(v), _difference())
  e = tf.reduce_sum(b**2, 1)
  return tf.exp(tf.reduce_logsumexp(norm * tf.math.log(e)) / norm)


def _with_momentum(inverse: tf.Tensor, momentum: float) -> tf.Tensor:
  """Returns v, [n] float64."""
  if not momentum:
    return inverse
  return divide(inverse[:, None], tf.constant([1.0, -momentum], tf.float64))[
    :, 0
  ]


def _mean_form(rates: np.ndarray) -> np.ndarray:
  """Returns Q, [n, n] float64, for learning rates eta.

  n Q[a, a - l] = sum_{s>=a} eta_s eta_{s-l} (n - s)
  """
  n = len(rates)
  form = np.zeros((n, n))
  left = rates * np.arange(n, 0, -1) / n
  for lag in range(n):
    a = np.arange(lag, n)
    form[a, a - lag] = np.cumsum((left[lag:] * rates[: n - lag])[::-1])[::-1]
  return np.tril(form) + np.tril(form, -1).T
