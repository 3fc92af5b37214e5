"""Optimal C with few bands, and few-banded Toeplitz C, for any workload.

| symbol | meaning                                                         |
|--------|-----------------------------------------------------------------|
| X      | C^T C; banded as C is                                           |
| e_t    | squared norm of row t of A C^-1, times sens(C)^2                |
| w_t    | weights of the queries, positive, of sum 1                      |
| p      | power                                                           |

  minimise log mean(e), or log max(e), over C scaled to sensitivity 1

The largest error is minimised by the method of multipliers on

  loss(C; w, p) = log (sum_t w_t e_t^p)^(1/p),   v_t = w_t e_t^(p-1) / sum

and after each minimisation v becomes w; p grows to a moderate size only. At a
minimum of loss(.; w, p), C also minimises sum_t v_t e_t, because both have the
same gradient, e_t is convex in X, and X ranges over a convex set. Therefore

  sum_t v_t e_t <= least possible max(e) <= max(e)

and the search ends when the two sides are nearly equal. For a Toeplitz C this
bound is not proved; if the two sides stay apart, the search reports that it has
not converged.

The optimum is that of [BandMF23, Sec 4 and App B], computed by the recursion of
`covariance`.
"""

from __future__ import annotations

import functools
import itertools
from typing import Callable, Optional

import numpy as np
import scipy.linalg
import scipy.special
import tensorflow as tf

from tff_bandmf import errors, strategies, workloads
from tff_bandmf import participation as participation_lib
from tff_bandmf.optimize import covariance, solver, toeplitz
from tff_bandmf.strategies import base

# Least decrease of the log loss by an iteration; below it the search ends.
_TOLERANCE = 1e-10
# Most evaluations with one set of weights.
_STAGE_EVALUATIONS = 200
_POWERS = (1.0, 4.0, 16.0, 64.0)
_LAST_POWER = 256.0
# Least weight of a query, because a weight of 0 could never grow again.
_LEAST_WEIGHT = 1e-2
# Gap between the largest error and its lower bound, in log loss, at the end.
_GAP = 1e-4
# Past gradients that L-BFGS stores; each takes 2 n b numbers, and more of them
# hardly speed it up.
_CORRECTIONS = 5

# Parameters [n, b] or [b] -> columns of C, [n, b], and sens(C)^2.
_ToColumns = Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]


def optimize_banded(
  problem: solver.Problem,
  bands: int,
  equal_column_norms: bool = True,
) -> solver.Optimized[strategies.Banded]:
  """Returns the banded strategy of least loss.

    loss = error * sens^2
    sens^2 = k                                          equal column norms
    sens^2 = max_{r < b} sum_j |C[:, r + j b]|^2 = 1    otherwise

  Both are exact for bands <= min_sep = b, where columns of one client do not
  overlap. [BandMF23, Sec 4; App B]

  Args:
    problem: error to minimise.
    bands: at most n, and at most min_sep.
    equal_column_norms: whether all columns of C must have norm 1. If not, only
      the columns of one client together must, which gives a slightly smaller
      loss and is for fixed epochs only. With a single participation there is no
      difference.

  Raises:
    ValueError: a value is out of range, or two values do not fit each other.

  >>> from tff_bandmf import participation
  >>> found = optimize_banded(solver.Problem(9, participation.Single()), 3)
  >>> round(9 * found.loss, 4), found.converged
  (24.8809, True)
  """
  rounds, schema = problem.rounds, problem.participation
  base.check_few(base.count_bands(bands), rounds)
  k = schema.participations(rounds)
  solver.check_separated(bands, schema.min_sep)
  # Number of sets of columns with norm 1, and of such sets for one client.
  if equal_column_norms or k == 1:
    groups, sets = rounds, k
  else:
    groups, sets = _check_epochs(rounds, schema), 1
  toeplitz_start = _toeplitz_start(problem, bands)
  inside = np.add.outer(np.arange(rounds), np.arange(bands)) < rounds
  columns = np.where(inside, toeplitz_start, 0.0)
  columns /= np.linalg.norm(columns, axis=1, keepdims=True)
  if groups == rounds:
    # The scale of columns is free, and a step changes the direction of a column
    # by the inverse square of its norm. The curvature by column j grows with
    # n - j, so earlier columns get larger norms.
    columns *= np.sqrt(np.arange(rounds, 0, -1) / rounds)[:, None]

  # The parameters are the rows of Z in C = Z T, where T is Toeplitz with the
  # coefficients of the start. The second derivative of a sum of e in direction
  # D of C is close to |A C^-1 D C^-1|^2, and this choice removes the last
  # factor, which halves the number of steps.
  times = scipy.linalg.toeplitz(
    toeplitz_start[0] * np.eye(1, bands)[0], toeplitz_start
  )

  def to_columns(parameters):
    columns = _columns(parameters @ tf.constant(times))
    return _scaled(columns, groups), tf.constant(sets, tf.float64)

  start = scipy.linalg.solve_triangular(times, _rows(columns).T, trans='T').T
  minimum = _search(to_columns, start, problem, None)
  columns = to_columns(tf.constant(minimum.x.reshape(columns.shape)))[0].numpy()
  strategy = strategies.Banded(_rows(columns))
  sums = np.bincount(
    np.arange(rounds) % groups, np.einsum('ij,ij->i', columns, columns)
  )
  return solver.Optimized(
    strategy,
    problem.error(strategy) * sets * float(sums.max()),
    minimum.evaluations,
    minimum.converged,
  )


def unit_column_loss(rounds: int, bands: int) -> Loss:
  """Returns log mean(e) of C with columns scaled to norm 1, as a function.

  Args:
    rounds: n, of prefix sums.
    bands: bands of C; the function takes the columns of C by their bands,
      [n * bands] float64.
  """
  return Loss(
    lambda columns: (_scaled(columns, rounds), tf.ones([], tf.float64)),
    (rounds, bands),
    rounds,
    workloads.PREFIX,
  )


def optimize_banded_toeplitz_scheduled(
  problem: solver.Problem,
  bands: int,
) -> solver.Optimized[strategies.BandedToeplitz]:
  """Returns the banded Toeplitz strategy of least loss, for any workload.

    loss = error * |c|^2

  This search is for workloads that are not Toeplitz, such as those with a
  learning rate schedule; for others `optimize_banded_toeplitz` is much faster.

  Args:
    problem: error to minimise; its participation is replaced by a single one.
    bands: at most n.

  Raises:
    ValueError: a value is out of range.

  >>> from tff_bandmf import participation
  >>> workload = workloads.Workload(cooldown=0.25)
  >>> problem = solver.Problem(64, participation.Single(), workload)
  >>> found = optimize_banded_toeplitz_scheduled(problem, 8)
  >>> found.converged
  True
  """
  rounds = problem.rounds
  base.check_few(base.count_bands(bands), rounds)
  start = _toeplitz_start(problem, bands)
  if bands == 1:
    minimum = solver.Minimum(start[1:], 0.0, 0, True)
  else:
    minimum = _search(
      lambda free: _toeplitz_columns(free, rounds),
      start[1:],
      problem,
      [(0.0, 1.0)] * (bands - 1),
    )
  strategy = strategies.BandedToeplitz(
    rounds, np.concatenate([[1.0], minimum.x])
  )
  loss = problem.error(strategy) * (1 + float(minimum.x @ minimum.x))
  return solver.Optimized(
    strategy, loss, minimum.evaluations, minimum.converged
  )


def _check_epochs(
  rounds: int, participation: participation_lib.Participation
) -> int:
  """Returns min_sep if a client's rounds are all rounds r modulo min_sep.

  Raises:
    ValueError: the schema allows other patterns.
  """
  if not participation.evenly_spaced:
    raise errors.value_error(
      'equal_column_norms=False: is for fixed epochs, not for participation '
      f'{participation.name}; use equal column norms, or participation '
      'fixed-epoch'
    )
  min_sep = participation.separation(rounds)
  k, every = participation.participations(rounds), -(-rounds // min_sep)
  if k < every:
    raise errors.value_error(
      f'max_participations={k}: must be {every}, every epoch, for columns of '
      'unequal norms; use equal column norms, or leave max_participations out'
    )
  return min_sep


def _toeplitz_start(problem: solver.Problem, bands: int) -> np.ndarray:
  """Returns the best Toeplitz coefficients for a constant rate, [bands]."""
  easier = solver.Problem(
    problem.rounds, problem.participation, problem.workload.unscheduled
  )
  return toeplitz.optimize_banded_toeplitz(easier, bands).strategy.coefficients


def _inside(columns: tf.Tensor, rounds: int) -> tf.Tensor:
  """Returns columns [n, b] with 0 past round n."""
  rows = tf.range(rounds)[:, None] + tf.range(columns.shape[-1])
  return tf.where(rows < rounds, columns, tf.zeros([], tf.float64))


def _scaled(columns: tf.Tensor, groups: int) -> tf.Tensor:
  """Returns columns cut at n and scaled.

  All columns with the same index modulo `groups` together have norm 1.
  """
  rounds = columns.shape[0]
  epochs = -(-rounds // groups)
  inside = _inside(columns, rounds)
  squares = tf.pad(tf.reduce_sum(inside**2, 1), [[0, epochs * groups - rounds]])
  sums = tf.reduce_sum(tf.reshape(squares, [epochs, groups]), 0)
  return inside / tf.tile(tf.sqrt(sums), [epochs])[:rounds, None]


def _toeplitz_columns(
  free: tf.Tensor, rounds: int
) -> tuple[tf.Tensor, tf.Tensor]:
  """Returns the columns of C for c_1 .. c_{b-1}, and |c|^2."""
  coefficients = tf.concat([tf.ones([1], tf.float64), free], 0)
  return _inside(coefficients, rounds), tf.reduce_sum(coefficients**2)


def _columns(rows: tf.Tensor) -> tf.Tensor:
  """Returns columns[j, s] = rows[j + s, s], 0 where j + s >= n."""
  rounds, bands = rows.shape
  wide = tf.reshape(tf.pad(tf.transpose(rows), [[0, 0], [0, bands]]), [-1])
  # Each row is longer by one, so the next row begins one entry further right.
  skewed = tf.reshape(tf.pad(wide, [[0, bands]]), [bands, rounds + bands + 1])
  return tf.transpose(skewed[:, :rounds])


def _rows(columns: np.ndarray) -> np.ndarray:
  """Returns rows[t, s] = columns[t - s, s], 0 where t < s."""
  rows = np.zeros_like(columns)
  for s in range(columns.shape[1]):
    rows[s:, s] = columns[: len(columns) - s, s]
  return rows


class Loss:
  """The loss of this module's docstring, as a function of the parameters.

  Attributes:
    log_weights: [n] float64, log w.
    power: p.
    least: least log max(e) so far.
    best: parameters with the least log max(e); None if they are not stored.
  """

  def __init__(
    self,
    to_columns: _ToColumns,
    shape: tuple[int, ...],
    rounds: int,
    workload: workloads.Workload,
    keep_best: bool = False,
  ):
    self.log_weights = np.full(rounds, -np.log(rounds))
    self.power = 1.0
    self.least = np.inf
    self.best = np.empty(0)
    self._shape = shape
    self._keep_best = keep_best
    self._inverse_rows = tf.constant(workload.inverse_rows(rounds))

    def compute(parameters, inverse_rows, log_weights, power):
      with tf.GradientTape() as tape:
        tape.watch(parameters)
        columns, sensitivity_squared = to_columns(parameters)
        e = sensitivity_squared * covariance.per_query_errors(
          covariance.times_inverse_workload(columns, inverse_rows)
        )
        loss = tf.reduce_logsumexp(log_weights + power * tf.math.log(e)) / power
      return loss, tape.gradient(loss, parameters), e

    self._compute = covariance.compiled(
      compute, shape, self._inverse_rows.shape, [rounds], []
    )

  def __call__(self, x: np.ndarray) -> tuple[float, np.ndarray]:
    """Returns the loss and its gradient at x, [parameters]."""
    parameters = x.reshape(self._shape)
    if parameters.ndim == 2 and np.min(parameters[:, 0]) <= 0:
      # C is singular or beyond: the loss is infinite there.
      return np.inf, np.zeros_like(x)
    loss, gradient, e = self._evaluate(parameters)
    if self._keep_best:
      most = float(np.log(np.max(e)))
      if most < self.least:
        self.least, self.best = most, x.copy()
    return float(loss), gradient.numpy().reshape(-1)

  def log_errors(self, x: np.ndarray) -> np.ndarray:
    """Returns log e at x, [n] float64."""
    return np.log(self._evaluate(x.reshape(self._shape))[2].numpy())

  def _evaluate(self, parameters):
    return self._compute(
      tf.constant(parameters),
      self._inverse_rows,
      tf.constant(self.log_weights),
      tf.constant(self.power, tf.float64),
    )


def _search(
  to_columns: _ToColumns,
  start: np.ndarray,
  problem: solver.Problem,
  bounds: Optional[list[tuple[float, float]]],
) -> solver.Minimum:
  """Returns the best parameters, as a flat array, and their log loss."""
  is_max, callback = problem.objective == solver.MAX, problem.callback
  loss = Loss(to_columns, start.shape, problem.rounds, problem.workload, is_max)

  minimize = functools.partial(
    solver.minimize,
    loss,
    bounds=bounds,
    callback=callback
    and (
      lambda value: callback(float(np.exp(loss.least if is_max else value)))
    ),
    tolerance=_TOLERANCE,
    corrections=_CORRECTIONS,
  )
  if is_max:
    most = problem.max_evaluations
    return _search_max(loss, start.reshape(-1), minimize, most)
  return minimize(start.reshape(-1), max_evaluations=problem.max_evaluations)


def _search_max(
  loss: Loss,
  x: np.ndarray,
  minimize: Callable[..., solver.Minimum],
  max_evaluations: int,
) -> solver.Minimum:
  """Returns the parameters of least max(e), as a flat array, and its log."""
  converged = interrupted = False
  evaluations = 0
  try:
    log_e = loss.log_errors(x)
    for power in itertools.chain(_POWERS, itertools.repeat(_LAST_POWER)):
      loss.power = power
      before = scipy.special.logsumexp(loss.log_weights + power * log_e) / power
      left = min(_STAGE_EVALUATIONS, max_evaluations - evaluations)
      minimum = minimize(x, max_evaluations=left)
      x, interrupted = minimum.x, minimum.interrupted
      log_e = loss.log_errors(x)
      evaluations += minimum.evaluations + 1
      weights = scipy.special.softmax(loss.log_weights + (power - 1) * log_e)
      lower_bound = np.log(weights @ np.exp(log_e))
      # The bound holds only at a minimum, so the gain of this stage, too, must
      # be small.
      converged = bool(
        loss.least - lower_bound + before - minimum.value <= _GAP
      )
      if converged or interrupted or evaluations >= max_evaluations:
        break
      loss.log_weights = np.log(
        (1 - _LEAST_WEIGHT) * weights + _LEAST_WEIGHT / len(weights)
      )
  except KeyboardInterrupt:
    if not np.isfinite(loss.least):
      raise
    interrupted = True
  return solver.Minimum(
    loss.best,
    loss.least,
    evaluations,
    converged and not interrupted,
    interrupted,
  )
