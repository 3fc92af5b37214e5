"""Optimal banded C and optimal banded Toeplitz C, for any workload.

| symbol | meaning                                                         |
|--------|-----------------------------------------------------------------|
| n, b   | number of rounds, and of bands of C                             |
| A      | workload, [n, n]                                                |
| X      | C^T C, which has the bands of C above and below its diagonal    |
| e_t    | squared norm of row t of A C^-1, times sens(C)^2                |
| w_t    | weight of e_t, positive; the sum of all weights is 1            |
| p      | power in the loss of the largest error, >= 1                    |

  minimise log mean(e), or log max(e), over C scaled to sensitivity 1

The largest error is minimised by the method of multipliers on

  loss(C; w, p) = log (sum_t w_t e_t^p)^(1/p)
  v_t = w_t e_t^(p-1) / sum_s w_s e_s^(p-1)

After each minimisation v replaces w, and p grows from 1 to 256. If C minimises
loss(.; w, p), it also minimises sum_t v_t e_t, because both gradients at C are
parallel, e_t is convex in X, and X ranges over a convex set. So

  sum_t v_t e_t <= least possible max(e) <= max(e)

and the search ends when sum_t v_t e_t is nearly max(e). For a Toeplitz C the
first inequality is not proved; if the two numbers stay apart, the search
reports that it has not converged.

The optimum is defined in [BandMF23, Sec 4 and App B]. The module `covariance`
computes e and its gradient.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable
from typing import Callable, Optional, Union

import numpy as np
import scipy.linalg
import scipy.special

from tff_bandmf import _blas, errors, strategies, workloads
from tff_bandmf import participation as participation_lib
from tff_bandmf.optimize import covariance, series, solver, toeplitz
from tff_bandmf.strategies import base

# The search ends if an iteration decreases the log loss by less than this.
_TOLERANCE = 1e-10
# Largest number of evaluations with the same weights w.
_STAGE_EVALUATIONS = 200
# Powers p of the first stages, and the power of all later stages. A stage is a
# minimisation with the same w and p.
_POWERS = (1.0, 4.0, 16.0, 64.0)
_LAST_POWER = 256.0
# Fraction of the sum of all w_t that is divided equally among the rounds,
# because a weight of 0 could never grow again.
_LEAST_WEIGHT = 1e-2
# Largest log(max(e) / lower bound) at which the search has converged.
_GAP = 1e-4
# Number of past gradients that L-BFGS stores. Each of them takes 2 n b numbers,
# and with more of them the search is hardly faster.
_CORRECTIONS = 5
# Least diagonal entry for sampled cohorts, relative to the first.
_LEAST_DIAGONAL = 1e-3

# Function from the gradient by the columns of C, [n, b], to the gradient by the
# parameters, for a constant sens(C).
_Pullback = Callable[[np.ndarray], np.ndarray]
# Function from parameters, [n, b] or [b - 1], to the columns of C, [n, b], to
# log sens(C)^2 with its gradient by the parameters, and to the pullback.
_ToColumns = Callable[
  [np.ndarray], tuple[np.ndarray, float, Union[np.ndarray, float], _Pullback]
]


def optimize_banded(
  problem: solver.Problem,
  bands: int,
  equal_column_norms: bool = True,
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
      fixed epochs. For one round of a client, both conditions are the same.

  Raises:
    ValueError: a value is out of range, or two values contradict each other.

  >>> from tff_bandmf import participation
  >>> found = optimize_banded(solver.Problem(9, participation.Single()), 3)
  >>> round(9 * found.loss, 4), found.converged
  (24.8809, True)
  """
  rounds, schema = problem.rounds, problem.participation
  base.check_few(base.count_bands(bands), rounds)
  k = schema.participations(rounds)
  solver.check_separated(bands, schema.min_sep)
  # Columns with the same index modulo `groups` form a set, and their squared
  # norms have sum 1. One client has the columns of `sets` sets.
  if equal_column_norms or k == 1:
    groups, sets = rounds, k
  else:
    groups, sets = _check_epochs(rounds, schema), 1
  if problem.noise:
    return _optimize_sampled(problem, bands)
  toeplitz_start = _toeplitz_start(problem, bands)
  inside = np.add.outer(np.arange(rounds), np.arange(bands)) < rounds
  columns = np.where(inside, toeplitz_start, 0.0)
  columns /= np.linalg.norm(columns, axis=1, keepdims=True)
  if groups == rounds:
    # Columns are scaled to norm 1 later, so their norms here are free. A change
    # of the parameters turns a column in inverse proportion to its squared
    # norm. The curvature of the loss by column j grows with n - j, so the norm
    # decreases with j.
    columns *= np.sqrt(np.arange(rounds, 0, -1) / rounds)[:, None]

  # The parameters are the rows of Z in C = Z T, where T is the Toeplitz matrix
  # at which the search starts. The second derivative of a sum of e_t in
  # direction D of C is about |A C^-1 D C^-1|^2. A direction E of Z gives D =
  # E T and about |A C^-1 E|^2, which varies less with the direction. So the
  # search needs half as many steps as with the rows of C.
  times = scipy.linalg.toeplitz(
    toeplitz_start[0] * np.eye(1, bands)[0], toeplitz_start
  )

  def to_columns(parameters):
    columns, scaled_back = _scaled(_columns(parameters @ times), groups)

    def pullback(by_columns):
      return _rows(scaled_back(by_columns)) @ times.T

    return columns, math.log(sets), 0.0, pullback

  start = scipy.linalg.solve_triangular(times, _rows(columns).T, trans='T').T
  with _blas.one_thread():
    minimum = _search(to_columns, start, problem, None)
  columns, *_ = to_columns(minimum.x.reshape(columns.shape))
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


def _optimize_sampled(
  problem: solver.Problem, bands: int
) -> solver.Optimized[strategies.Banded]:
  """Returns the banded C >= 0 of least loss for sampled cohorts.

    loss = error * s(C)^2, where s(C) is `problem.noise`

  The search starts at the best Toeplitz C, and its parameters are the columns.
  """
  assert problem.noise is not None
  noise = problem.noise
  first = _sampled_toeplitz(problem, bands).strategy.coefficients
  start = _inside(first, problem.rounds)

  def to_columns(columns):
    squared, by_columns = noise.squared_of_columns(columns)
    return columns, math.log(squared), by_columns / squared, lambda by: by

  bounds = np.zeros((*start.shape, 2))
  bounds[..., 1] = np.where(_inside(np.ones(bands), problem.rounds), np.inf, 0)
  bounds[:, 0, 0] = _LEAST_DIAGONAL
  minimum = _search(to_columns, start, problem, bounds.reshape(-1, 2).tolist())
  strategy = strategies.Banded(_rows(minimum.x.reshape(start.shape)))
  return problem.evaluated(strategy, minimum)


def unit_column_loss(rounds: int, bands: int) -> Loss:
  """Returns the function log mean(e) of C, with columns scaled to norm 1.

  The workload is prefix sums. The argument of the function is [n * bands]
  float64, C[j + s, j] at [j, s] of its [n, bands] view.

  Args:
    rounds: n.
    bands: number of bands of C.
  """

  def to_columns(columns):
    scaled, pullback = _scaled(_inside(columns, rounds), rounds)
    return scaled, 0.0, 0.0, pullback

  return Loss(to_columns, (rounds, bands), rounds, workloads.PREFIX)


def optimize_banded_toeplitz_scheduled(
  problem: solver.Problem,
  bands: int,
) -> solver.Optimized[strategies.BandedToeplitz]:
  """Returns the banded Toeplitz strategy of least loss, for any workload.

    loss = error * |c|^2, where c is the first column of C

  This search is for workloads that are not Toeplitz, such as workloads with a
  learning rate schedule; for Toeplitz workloads `optimize_banded_toeplitz` is
  much faster.

  Args:
    problem: error to minimise; the search assumes that each client has only
      one round, whatever its participation schema is.
    bands: number of bands of C, at most n.

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
      lambda free: _toeplitz_columns(free, problem),
      start[1:],
      problem,
      [(0.0, 1.0)] * (bands - 1),
    )
  strategy = strategies.BandedToeplitz(
    rounds, np.concatenate([[1.0], minimum.x])
  )
  if problem.noise:
    return problem.evaluated(strategy, minimum)
  loss = problem.error(strategy) * (1 + float(minimum.x @ minimum.x))
  return solver.Optimized(
    strategy, loss, minimum.evaluations, minimum.converged
  )


def _check_epochs(
  rounds: int, participation: participation_lib.Participation
) -> int:
  """Returns min_sep if a client has all rounds r, r + min_sep, ... for some r.

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
      f'max_participations={k}: must be {every}, the number of epochs, if '
      'column norms differ; use equal column norms, or leave '
      'max_participations out'
    )
  return min_sep


def _sampled_toeplitz(
  problem: solver.Problem, bands: int
) -> solver.Optimized[strategies.BandedToeplitz]:
  if problem.workload.is_toeplitz:
    return toeplitz.optimize_banded_toeplitz(problem, bands)
  return optimize_banded_toeplitz_scheduled(problem, bands)


def _toeplitz_start(problem: solver.Problem, bands: int) -> np.ndarray:
  """Returns the best Toeplitz coefficients, [b], for a constant rate."""
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


def _scaled(columns: np.ndarray, groups: int) -> tuple[np.ndarray, _Pullback]:
  """Returns scaled columns, [n, b], and their pullback of gradients.

  The squared norms of all columns with the same index modulo `groups` have
  sum 1.
  """
  rounds = len(columns)

  def totals(squares):
    """Returns the sum of the group of each column, [n, 1] float64."""
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


def _toeplitz_columns(
  free: np.ndarray, problem: solver.Problem
) -> tuple[np.ndarray, float, np.ndarray, _Pullback]:
  """Returns the four values of `_ToColumns` for the Toeplitz C of c_1, ...."""
  coefficients = np.concatenate([[1.0], free])
  squared, by_squared = float(coefficients @ coefficients), 2 * coefficients
  if problem.noise:
    squared, by_squared = problem.noise.squared_of_column(coefficients)
  return (
    _inside(coefficients, problem.rounds),
    math.log(squared),
    by_squared[1:] / squared,
    lambda by_columns: by_columns.sum(0)[1:],
  )


def _columns(rows: np.ndarray) -> np.ndarray:
  """Returns columns[j, s] = rows[j + s, s], 0 where j + s >= n."""
  columns = np.zeros_like(rows)
  for s in range(rows.shape[1]):
    columns[: len(rows) - s, s] = rows[s:, s]
  return columns


def _rows(columns: np.ndarray) -> np.ndarray:
  """Returns rows[t, s] = columns[t - s, s], 0 where t < s."""
  rows = np.zeros_like(columns)
  for s in range(columns.shape[1]):
    rows[s:, s] = columns[: len(columns) - s, s]
  return rows


class Loss:
  """The loss of the module docstring, as a function of the parameters of C.

  Attributes:
    log_weights: [n] float64, log w.
    power: p.
    least: least log max(e) so far; infinity if `keep_best` is not set.
    best: parameters with this log max(e); empty if there are none yet.
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
    self._to_columns = to_columns
    self._inverse_rows = workload.inverse_rows(rounds)

  def __call__(self, x: np.ndarray) -> tuple[float, np.ndarray]:
    """Returns the loss and its gradient at x, [parameters]."""
    parameters = x.reshape(self._shape)
    if parameters.ndim == 2 and np.min(parameters[:, 0]) <= 0:
      # A diagonal entry of C is not positive: the loss counts as infinite.
      return np.inf, np.zeros_like(x)
    with np.errstate(all='ignore'):
      columns, log_sens, by_sens, pullback = self._to_columns(parameters)
      e, errors_back = covariance.per_query_errors(
        covariance.times_inverse_workload(columns, self._inverse_rows)
      )
      log_e = np.log(e)
      terms = self.log_weights + self.power * log_e
      total = scipy.special.logsumexp(terms)
      by_columns = covariance.times_inverse_workload_back(
        errors_back(np.exp(terms - total) / e), self._inverse_rows
      )
      gradient = pullback(by_columns) + by_sens
    if self._keep_best:
      most = log_sens + float(np.max(log_e))
      if most < self.least:
        self.least, self.best = most, x.copy()
    return log_sens + float(total / self.power), gradient.reshape(-1)

  def log_errors(self, x: np.ndarray) -> np.ndarray:
    """Returns log e at x, [n] float64."""
    columns, log_sens, *_ = self._to_columns(x.reshape(self._shape))
    e, _ = covariance.per_query_errors(
      covariance.times_inverse_workload(columns, self._inverse_rows)
    )
    return log_sens + np.log(e)


def _search(
  to_columns: _ToColumns,
  start: np.ndarray,
  problem: solver.Problem,
  bounds: Optional[list[tuple[float, float]]],
) -> solver.Minimum:
  """Returns the minimum of the log loss, with parameters as a flat array."""
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
    tolerance=series.SAMPLED_TOLERANCE if problem.noise else _TOLERANCE,
    corrections=_CORRECTIONS,
  )
  if is_max:
    most = problem.max_evaluations
    powers: Iterable[float] = _POWERS
    if not problem.noise:
      powers = itertools.chain(_POWERS, itertools.repeat(_LAST_POWER))
    return _search_max(loss, start.reshape(-1), minimize, most, powers)
  return minimize(start.reshape(-1), max_evaluations=problem.max_evaluations)


def _search_max(
  loss: Loss,
  x: np.ndarray,
  minimize: Callable[..., solver.Minimum],
  max_evaluations: int,
  powers: Iterable[float],
) -> solver.Minimum:
  """Returns the minimum of log max(e), with parameters as a flat array."""
  converged = interrupted = False
  evaluations = 0
  try:
    log_e = loss.log_errors(x)
    for power in powers:
      loss.power = power
      before = scipy.special.logsumexp(loss.log_weights + power * log_e) / power
      left = min(_STAGE_EVALUATIONS, max_evaluations - evaluations)
      minimum = minimize(x, max_evaluations=left)
      x, interrupted = minimum.x, minimum.interrupted
      log_e = loss.log_errors(x)
      evaluations += minimum.evaluations + 1
      weights = scipy.special.softmax(loss.log_weights + (power - 1) * log_e)
      lower_bound = np.log(weights @ np.exp(log_e))
      # The lower bound holds only at a minimum of the loss of this stage. So
      # the decrease of the loss in this stage is added to the gap.
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
