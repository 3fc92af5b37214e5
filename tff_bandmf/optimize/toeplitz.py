"""Optimal banded Toeplitz coefficients, exact for any n.

| symbol | name here | meaning                                                |
|--------|-----------|--------------------------------------------------------|
| c      | `c`       | coefficients, c_0 = 1, c_1 .. c_{b-1} in [0, 1]        |
| q      | `q`       | c(x) (1 - beta x), beta the momentum, q_0 .. q_m, m = b |
| w      |           | first column of A C^-1, w(x) = 1 / ((1 - x) q(x))      |
| W      | `limit`   | of w, 1 / q(1)                                         |
| d      |           | w - W, d(x) = p(x) / q(x)                              |
| p      | `p`       | p_j = 1 - W (q_0 + ... + q_j), j < m                   |
| L1, L2 |           | lower-triangular Toeplitz; first columns q_0 .. q_{m-1} |
|        |           | and q_m .. q_1                                         |
| K      |           | L1 L1^T - L2 L2^T, [m, m]                              |
| s      | `s`       | K^-1 p                                                 |
| T      |           | sum_j j d_j^2                                          |

  minimise log error(c) + log |c|^2

  n mean = sum_{j<n} (n - j) w_j^2
         = n (n + 1) W^2 / 2 + 2 W (n sum d_j - sum j d_j) + n sum d_j^2 - T
  max    = sum_{j<n} w_j^2 = n W^2 + 2 W sum d_j + sum d_j^2

Where d vanishes before round n, its sums run to infinity and cost O(b^3)
whatever n. K^-1 holds the autocovariances of 1 / q (Gohberg and Semencul), so
sum d_j^2 = p^T s. T is half the derivative by rho at 1 of sum rho^2j d_j^2,
where q_j and p_j become rho^j q_j and rho^j p_j. K is positive definite iff q
has all roots outside the unit disc; the search stays there. Where d does not
vanish, all terms are added up. [BandMF24, Sec 4] has the loss; the closed form
is ours.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Callable

import attrs
import numpy as np
import tensorflow as tf

from tff_bandmf import errors, participation, strategies
from tff_bandmf.optimize import series, solver

# The closed form is tried for n of so many times b and 1 / (1 - beta) at least.
_ROUNDS_PER_BAND = 64
_ROUNDS_PER_DECAY = 20
# Relative difference from the loss without TensorFlow.
_EXACT = 1e-10


def _dot(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
  return tf.reduce_sum(x * y)


def _slope(x: tf.Tensor) -> tf.Tensor:
  """Returns j x_j, the derivative of rho^j x_j by rho at 1."""
  return x * tf.range(x.shape[0], dtype=x.dtype)


def _columns(q: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
  """Returns the first columns of L1 and L2, [m] float64 each."""
  return q[:-1], tf.reverse(q[1:], [0])


def _polynomials(c: tf.Tensor, momentum: float):
  """Returns q, [m + 1], its W, and p, [m], float64."""
  q = tf.pad(c, [[0, 1]]) - momentum * tf.pad(c, [[1, 0]])
  limit = 1 / tf.reduce_sum(q)
  return q, limit, 1 - limit * tf.cumsum(q)[:-1]


def _form(q: tf.Tensor) -> tf.Tensor:
  """Returns K, row by row: K[i, j] - K[i - 1, j - 1] is of rank two."""
  first, second = _columns(q)

  def row(above, entries):
    return (
      tf.pad(above[:-1], [[1, 0]]) + entries[0] * first - entries[1] * second
    )

  return tf.scan(
    row, tf.stack([first, second], 1), initializer=tf.zeros_like(first)
  )


def _weighted_slope(q: tf.Tensor, p: tf.Tensor, s: tf.Tensor) -> tf.Tensor:
  """Returns dT/ds for T = sum_j j p_j s_j - (s^T dK/drho s) / 2, [m]."""
  slope = _slope(p)
  pairs = zip((-1, 1), _columns(q), _columns(_slope(q)))
  for sign, *columns in pairs:
    low, derived = map(series.lower_toeplitz, columns)
    for left, right in ((low, derived), (derived, low)):
      slope += sign * tf.linalg.matvec(
        left, tf.linalg.matvec(right, s, transpose_a=True)
      )
  return slope


def _loss_and_gradient(c, s, y, rounds, momentum, is_mean):
  """Returns the log loss, scalar, and its gradient, [b] float64.

  s, [m], and y = -K^-1 dT/ds, [m], solve equations in c, [b], but the loss is
  stationary in s once y^T times the residual of the equation for s is added.
  """
  with tf.GradientTape() as tape:
    tape.watch(c)
    q, limit, p = _polynomials(c, momentum)
    (f, g), (df, dg) = _columns(q), _columns(_slope(q))
    # L^T s = H f for L of first column f and H[i, j] = s_{i+j}.
    hankel = _hankel(s)
    sf, sg, sdf, sdg = (tf.linalg.matvec(hankel, x) for x in (f, g, df, dg))
    total = limit * tf.reduce_sum(p)
    squares = 2 * _dot(p, s) - _dot(sf, sf) + _dot(sg, sg)
    if is_mean:
      hankel = _hankel(y)
      yf, yg = (tf.linalg.matvec(hankel, x) for x in (f, g))
      residual = _dot(y, p) - _dot(yf, sf) + _dot(yg, sg)
      weighted = _dot(_slope(p), s) - _dot(sf, sdf) + _dot(sg, sdg)
      weighted_total = limit * (
        tf.reduce_sum(_slope(p)) - total * tf.reduce_sum(_slope(q))
      )
      error = (
        limit**2 * (rounds + 1) / 2
        + 2 * limit * (total - weighted_total / rounds)
        + squares
        + (residual - weighted) / rounds
      )
    else:
      error = rounds * limit**2 + 2 * limit * total + squares
    loss = tf.math.log(error) + tf.math.log(_dot(c, c))
  return loss, tape.gradient(loss, c)


def _hankel(s: tf.Tensor) -> tf.Tensor:
  """Returns H[i, j] = s_{i+j}, 0 past the end, [m, m] float64."""
  return tf.reverse(series.lower_toeplitz(tf.reverse(s, [0])), [0])


class _Settled:
  """The log loss as a function of c_1 .. c_{b-1}, for n so large that d is 0.

  XLA compiles all but the factorisation, at which it is five times slower.
  """

  def __init__(self, rounds: int, bands: int, objective: str, momentum: float):
    is_mean = objective == solver.MEAN

    def compiled(function: Callable):
      return tf.function(function, jit_compile=True, autograph=False)

    form, weighted_slope = compiled(_form), compiled(_weighted_slope)
    loss_and_gradient = compiled(
      lambda c, s, y, n: _loss_and_gradient(c, s, y, n, momentum, is_mean)
    )

    def function(c, n):
      q, _, p = _polynomials(c, momentum)
      factor = tf.linalg.cholesky(form(q))

      def solve(x):
        return tf.linalg.cholesky_solve(factor, x[:, None])[:, 0]

      s = solve(p)
      y = -solve(weighted_slope(q, p, s)) if is_mean else tf.zeros_like(s)
      return loss_and_gradient(c, s, y, n)

    self._function = tf.function(
      function,
      autograph=False,
    ).get_concrete_function(
      tf.TensorSpec([bands], tf.float64), tf.TensorSpec([], tf.float64)
    )
    self._rounds = tf.constant(rounds, tf.float64)

  def __call__(self, free: np.ndarray) -> tuple[float, np.ndarray]:
    value, gradient = self._function(
      tf.constant(np.concatenate([[1.0], free]), tf.float64), self._rounds
    )
    if not np.isfinite(value):
      # K is not positive definite.
      return np.inf, np.zeros_like(free)
    return float(value), gradient.numpy()[1:]


def optimize_banded_toeplitz(
  problem: solver.Problem,
  bands: int,
) -> solver.Optimized[strategies.BandedToeplitz]:
  """Returns the banded Toeplitz strategy of least loss.

    loss = error * sens^2, sens = |c| for a single participation

  With at most `min_sep` bands the same strategy is optimal under every
  min-separation schema: all of them scale |c| alike up to columns that end at
  round n.

  Args:
    problem: what is minimised, but for a single participation; of constant
      learning rate.
    bands: b, at most n.

  Raises:
    ValueError: a value out of range, or a learning rate schedule.

  >>> problem = solver.Problem(1000, participation.Single())
  >>> found = optimize_banded_toeplitz(problem, bands=16)
  >>> round(found.loss, 6), found.converged
  (39.415317, True)
  """
  start = strategies.BandedSqrt(problem.rounds, bands).coefficients
  if not problem.workload.is_toeplitz:
    raise errors.value_error(
      'workload',
      problem.workload,
      'must have a constant learning rate',
      'use family banded for a schedule',
    )
  evaluations = 0
  for loss in _losses(problem, bands):
    found = solver.Minimum(start[1:], np.nan, 0, True)
    if bands > 1:
      found = series.minimize(
        loss(),
        start[1:],
        [(0, 1)] * (bands - 1),
        problem.max_evaluations - evaluations,
        problem.callback,
      )
    evaluations += found.evaluations
    start = np.concatenate([[1.0], found.x])
    strategy = strategies.BandedToeplitz(problem.rounds, start)
    value = problem.error(strategy) * float(start @ start)
    # Otherwise d has not vanished, and all terms have to be added up.
    exact = bands == 1 or abs(found.value / value - 1) <= _EXACT
    if exact or found.interrupted or evaluations >= problem.max_evaluations:
      break
  return solver.Optimized(
    strategy, value, evaluations, found.converged and exact
  )


def _losses(problem: solver.Problem, bands: int) -> Iterator[Callable]:
  """Yields constructors of the log loss of c_1 .. c_{b-1}, fastest first."""
  momentum = problem.workload.momentum
  if problem.rounds >= max(
    _ROUNDS_PER_BAND * bands, _ROUNDS_PER_DECAY / (1 - momentum)
  ):
    yield lambda: _Settled(problem.rounds, bands, problem.objective, momentum)

  def build(free):
    c = tf.concat([tf.ones([1], tf.float64), free], 0)
    return c, series.reciprocal(c, problem.rounds)

  single = attrs.evolve(problem, participation=participation.Single())
  yield lambda: series.Objective(build, bands - 1, single)
