"""Optimal banded C and optimal banded Toeplitz C, for any workload.

| symbol | meaning                                                         |
|--------|-----------------------------------------------------------------|
| n, b   | number of rounds, and of bands of C                             |
| A      | workload, [n, n]                                                |
| X      | C^T C, which has the bands of C above and below its diagonal    |
| e_t    | squared norm of row t of A C^-1, times sens(C)^2                |
| w_t    | weight of e_t; the sum of all weights is 1                      |

  minimise log sum_t w_t e_t, or log max(e), over C scaled to sensitivity 1

If the objective is max(e), `solver.search` also computes a lower bound of the
least possible max(e). For a Toeplitz C the bound is not proved; if the bound
and max(e) stay apart, the search reports that it has not converged.

The optimum is defined in [BandMF23, Sec 4 and App B]. The module `covariance`
computes e and its gradient.
"""

from __future__ import annotations

import functools
import math
from typing import Callable, Union

import attrs
import numpy as np
import scipy.linalg
import scipy.special

from tff_bandmf import _blas, errors, strategies
from tff_bandmf import participation as participation_lib
from tff_bandmf.optimize import covariance, series, solver, toeplitz

# Least sum of weights by which `Coordinates.parameters` scales a column.
_LEAST_CURVATURE = 1e-4
# Least diagonal entry for sampled cohorts; the search starts at entries of 1.
_LEAST_DIAGONAL = 1e-3

# Function that minimises the log loss until an iteration decreases it by less
# than the tolerance. Each of the past gradients that L-BFGS stores takes 2 n b
# numbers, and more gradients make the search only a little faster.
search = functools.partial(solver.search, tolerance=1e-10, corrections=5)

# Function from the gradient by the columns of C, [n, b], to the gradient by the
# parameters.
_Pullback = Callable[[np.ndarray], np.ndarray]
# Function from parameters, [parameters], to the columns of C, [n, b], and their
# pullback.
_ToColumns = Callable[[np.ndarray], tuple[np.ndarray, _Pullback]]
# Function from the columns of C to the squared sensitivity, or the squared
# noise for sampled cohorts, and its gradient by the columns.
_Squared = Callable[[np.ndarray], tuple[float, Union[np.ndarray, float]]]


def optimize_banded(
  problem: solver.Problem, bands: int, equal_column_norms: bool = True
) -> solver.Optimized[strategies.Banded]:
  """Returns the banded strategy of least loss.

    loss = error * sens^2
    sens^2 = k                                               equal column norms
    sens^2 = max_{r < min_sep} sum_j |C[:, r + j min_sep]|^2 = 1      otherwise

  Here k is the largest number of rounds of a client. Both formulas are exact
  for bands <= min_sep, since columns of a client's rounds then do not overlap.
  [BandMF23, Sec 4; App B]

  Args:
    problem: error to minimise.
    bands: number of bands of C, at most n and at most min_sep.
    equal_column_norms: whether all columns of C must have norm 1. If not, only
      the squared norms of the columns of a client's rounds must have sum 1. The
      loss is then slightly smaller than with norm 1, but the schema must have
      fixed epochs. If a client has only one round, the conditions are equal.

  Raises:
    ValueError: a value is out of range, or two values contradict each other.

  >>> from tff_bandmf import participation
  >>> best = optimize_banded(solver.Problem(9, participation.Single()), 3)
  >>> round(9 * best.loss, 4), best.converged
  (24.8809, True)
  """
  rounds, schema = problem.rounds, problem.participation
  k = schema.participations(rounds)
  solver.check_separated(bands, schema.min_sep)
  # The squared norms of all columns with the same index modulo `groups` have
  # sum 1. The squared norms of the columns of one client have sum `sets`.
  if equal_column_norms or k == 1:
    groups, sets = rounds, k
  else:
    groups, sets = schema.separation(rounds), 1
    epochs = -(-rounds // groups)
    if not schema.evenly_spaced or k < epochs:
      raise errors.value_error(
        f'equal_column_norms=False: is for fixed-epoch with {epochs} rounds of '
        f'a client, not for {schema.name} with {k}; use equal column norms'
      )
  if problem.workload.inverse_bands is None:
    return optimize_in_tensorflow(problem, bands, groups)
  if problem.noise:
    return _optimize_sampled(problem, bands)
  coordinates = Coordinates(problem, bands, groups == rounds)

  def to_columns(x):
    columns, scaled_back = scaled(coordinates.columns(x), groups)

    def pullback(by):
      return strategies.rows_of_columns(scaled_back(by)) @ coordinates.times.T

    return columns, pullback

  with _blas.one_thread():
    loss = Loss(to_columns, lambda _: (sets, 0.0), problem)
    start = coordinates.start(problem.weights)
    minimum = search(loss, start, problem, restart=coordinates.restart)
  columns, _ = to_columns(minimum.x)
  return problem.evaluated(
    strategies.Banded(strategies.rows_of_columns(columns)), minimum
  )


def _optimize_sampled(
  problem: solver.Problem, bands: int
) -> solver.Optimized[strategies.Banded]:
  """Returns the banded C >= 0 of least loss for sampled cohorts.

    loss = error * s(C)^2, where s(C) is `problem.noise`

  The search starts at the best Toeplitz C, and its parameters are the columns.
  """
  assert problem.noise is not None
  first = optimize_toeplitz(problem, bands).strategy.coefficients
  start = _inside(first, problem.rounds)
  bounds = np.zeros((*start.shape, 2))
  bounds[..., 1] = np.where(_inside(np.ones(bands), problem.rounds), np.inf, 0)
  bounds[:, 0, 0] = _LEAST_DIAGONAL
  loss = Loss(
    lambda x: (x.reshape(start.shape), np.ravel),
    problem.noise.squared_of_columns,
    problem,
  )
  limits = bounds.reshape(-1, 2).tolist()
  minimum = search(loss, start.reshape(-1), problem, limits)
  strategy = strategies.Banded(
    strategies.rows_of_columns(minimum.x.reshape(start.shape))
  )
  return problem.evaluated(strategy, minimum)


def optimize_in_tensorflow(
  problem: solver.Problem, bands: int, groups: int
) -> solver.Optimized[strategies.Banded]:
  """Returns the C of least loss with scaled columns, for any workload.

  Args:
    problem: error to minimise.
    bands: number of bands, at most n and at most min_sep.
    groups: the squared norms of all columns with the same index modulo `groups`
      have sum 1; n for columns of norm 1.

  Raises:
    ImportError: TensorFlow is not installed.
  """
  with errors.importing('family banded with this workload', 'optimizer'):
    from tff_bandmf.optimize import in_tensorflow
  tf, n = in_tensorflow.tf, problem.rounds
  coordinates = Coordinates(problem, bands, groups == n)
  group = np.arange(n) % groups

  def build(x):
    rows = tf.reshape(x, [n, bands]) @ coordinates.times
    columns = in_tensorflow.columns_of_rows(rows)
    squares = tf.reduce_sum(columns**2, 1)
    sums = tf.gather(
      tf.math.unsorted_segment_sum(squares, group, groups), group
    )
    return in_tensorflow.Columns(columns / tf.sqrt(sums)[:, None])

  loss = in_tensorflow.Loss(build, problem)
  start = coordinates.start(problem.weights)
  minimum = search(loss, start, problem, restart=coordinates.restart)
  rows = build(tf.constant(minimum.x)).strategy(n).band_rows(0, n)
  return problem.evaluated(strategies.Banded(rows), minimum)


class Coordinates:
  """The rows of Z in C = Z T, where T is the Toeplitz C of the start.

  The second derivative of a sum of e_t in direction D of C is about
  |A C^-1 D C^-1|^2. A direction E of Z gives D = E T, and the second derivative
  is about |A C^-1 E|^2, which varies less with the direction. So a search over
  Z needs half as many steps as a search over the rows of C.

  Attributes:
    times: [b, b] float64, the part of T by which each row of Z is multiplied.
  """

  def __init__(self, problem: solver.Problem, bands: int, free_norms: bool):
    """Makes the coordinates of C with this number of bands.

    Args:
      problem: error to minimise.
      bands: b.
      free_norms: whether columns are scaled later, so that their norms are
        free.
    """
    self._rounds, self._free_norms = problem.rounds, free_norms
    self._first = _toeplitz_start(problem, bands)
    self.times = scipy.linalg.toeplitz(
      self._first[0] * np.eye(1, bands)[0], self._first
    )

  def start(self, weights: np.ndarray) -> np.ndarray:
    """Returns the parameters of T for weights of the rounds, [n]."""
    return self.parameters(_inside(self._first, self._rounds), weights)

  def columns(self, x: np.ndarray) -> np.ndarray:
    """Returns the columns of C, [n, b], for parameters x."""
    return strategies.columns_of_rows(x.reshape(self._rounds, -1) @ self.times)

  def restart(self, x: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Returns the parameters of the same C for other weights, see `search`."""
    return self.parameters(self.columns(x), weights)

  def parameters(self, columns: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Returns the parameters, [n * b] float64, of the columns of C.

    If the norms of columns are free, this method chooses them. The curvature of
    the loss by the parameters of column j is inversely proportional to the
    squared norm of the column, and grows with the sum of the weights of rounds
    t >= j. So the squared norm is this sum.
    """
    columns = columns / np.linalg.norm(columns, axis=1, keepdims=True)
    if self._free_norms:
      later = np.cumsum(weights[::-1])[::-1]
      columns *= np.sqrt(np.maximum(later, _LEAST_CURVATURE))[:, None]
    return scipy.linalg.solve_triangular(
      self.times, strategies.rows_of_columns(columns).T, trans='T'
    ).T.reshape(-1)


def optimize_toeplitz(
  problem: solver.Problem, bands: int
) -> solver.Optimized[strategies.BandedToeplitz]:
  """Returns the banded Toeplitz strategy of least loss, for any workload.

    loss = error * |c|^2, where c is the first column of C

  The module `toeplitz` has a much faster search for workloads that are
  Toeplitz.

  Args:
    problem: error to minimise; the search assumes that each client has only
      one round, whatever the participation schema of the problem is.
    bands: number of bands of C, at most n.

  Raises:
    ValueError: a value is out of range.

  >>> from tff_bandmf import participation, workloads
  >>> workload = workloads.Workload(cooldown=0.25)
  >>> problem = solver.Problem(64, participation.Single(), workload)
  >>> best = optimize_toeplitz(problem, 8)
  >>> best.converged
  True
  """
  rounds, workload = problem.rounds, problem.workload
  if workload.is_toeplitz or workload.inverse_bands is None:
    return toeplitz.optimize_banded_toeplitz(problem, bands)
  single = attrs.evolve(problem, participation=participation_lib.Single())

  def to_columns(free):
    coefficients = np.concatenate([[1.0], free])
    return _inside(coefficients, rounds), lambda by: by.sum(0)[1:]

  def squared(columns):
    value, by_first = series.squared_noise(columns[0], single)
    by_columns = np.zeros_like(columns)
    by_columns[0] = by_first
    return value, by_columns

  minimum = search(
    Loss(to_columns, squared, problem),
    _toeplitz_start(problem, bands)[1:],
    problem,
    [(0.0, 1.0)] * (bands - 1),
  )
  coefficients = np.concatenate([[1.0], minimum.x])
  return single.evaluated(
    strategies.BandedToeplitz(rounds, coefficients), minimum
  )


def _toeplitz_start(problem: solver.Problem, bands: int) -> np.ndarray:
  """Returns the best Toeplitz C for a constant learning rate: c, [b]."""
  easier = solver.Problem(
    problem.rounds, problem.participation, problem.workload.unscheduled
  )
  return toeplitz.optimize_banded_toeplitz(easier, bands).strategy.coefficients


def _inside(columns: np.ndarray, rounds: int) -> np.ndarray:
  """Returns columns, [n, b], with 0 in place of entries below row n - 1.

  Args:
    columns: [n, b] float64, or [b] for n equal columns.
    rounds: n.
  """
  rows = np.add.outer(np.arange(rounds), np.arange(columns.shape[-1]))
  return np.where(rows < rounds, columns, 0.0)


def scaled(columns: np.ndarray, groups: int) -> tuple[np.ndarray, _Pullback]:
  """Returns scaled columns, [n, b], and their pullback.

  The squared norms of all columns with the same index modulo `groups` have
  sum 1.
  """
  rounds = len(columns)

  def totals(squares):
    """Returns the sum over the group of each column, [n, 1] float64."""
    epochs = -(-rounds // groups)
    padded = np.zeros(epochs * groups)
    padded[:rounds] = squares
    sums = padded.reshape(epochs, groups).sum(0)
    return np.tile(sums, epochs)[:rounds, None]

  norms = np.sqrt(totals(np.einsum('ij,ij->i', columns, columns)))
  scaled = columns / norms

  def pullback(by_scaled):
    along = totals(np.einsum('ij,ij->i', by_scaled, scaled))
    return (by_scaled - along * scaled) / norms

  return scaled, pullback


class Loss(solver.Loss):
  """The loss of the module docstring, as a function of the parameters of C."""

  def __init__(
    self, to_columns: _ToColumns, squared: _Squared, problem: solver.Problem
  ):
    super().__init__(problem)
    self._to_columns, self._squared = to_columns, squared
    self._inverse_rows = problem.workload.inverse_rows(problem.rounds)

  def evaluate(self, x):
    with np.errstate(all='ignore'):
      columns, pullback = self._to_columns(x)
      if not np.min(columns[:, 0]) > 0:
        # The loss of a C whose diagonal is not positive counts as infinite.
        return np.inf, np.zeros_like(x), np.full(len(columns), np.inf)
      squared, by_squared = self._squared(columns)
      e, errors_back = covariance.per_query_errors(columns, self._inverse_rows)
      log_e, log_squared = np.log(e), math.log(squared)
      terms = self.log_weights + self.power * log_e
      total = scipy.special.logsumexp(terms)
      by_columns = errors_back(np.exp(terms - total) / e)
      by_columns += by_squared / squared
      gradient = pullback(by_columns)
    return (
      log_squared + float(total / self.power),
      gradient.reshape(-1),
      log_squared + log_e,
    )
