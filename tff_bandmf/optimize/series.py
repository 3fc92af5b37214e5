"""Losses of Toeplitz strategies and their gradients, from the first n terms.

| symbol | meaning                                                           |
|--------|-------------------------------------------------------------------|
| n      | number of rounds                                                  |
| A      | workload; without learning rates, A(x) = 1 / ((1 - x) h(x))       |
| h      | polynomial of the workload                                        |
| c, r   | first columns of C and C^-1; as power series r(x) = 1 / c(x)      |
| w      | first column of A C^-1, w(x) = A(x) r(x)                          |
| a_j    | weight of w_j^2 in the error: (n - j) / n (mean) or 1 (max)       |
| eta    | learning rates, one for each round                                |
| v      | v(x) = r(x) / h(x)                                                |
| B      | A C^-1 with learning rates, B[t, i] = sum_{s<=t} eta_s v_{s-i}    |
| Q      | matrix of the mean error with learning rates, v^T Q v             |
| e_t    | error of query t with learning rates, (B B^T)[t, t]               |
| b, k   | min_sep, and the largest number of rounds of one client           |
| m      | m_t = |c_t| for t < b, else max_{s>=t} |c_s|                      |

  loss = error * sens^2
  error = sum_j a_j w_j^2                                no learning rates
  error = v^T Q v (mean) or max_t e_t (max)                 learning rates
  sens = || sum_{j<k} shift(m, j b) ||, or || c || for one participation

sens is exact if m = c. Otherwise it is an upper bound, because the entries of
|C| are at most the entries of the Toeplitz matrix of m. Proof that sens is
exact for m = c: c >= 0 does not increase from b on, and X = C^T C has
X[i, j] = sum_{t<n-j} c_{t+j-i} c_t. Each pair of rounds i < j of the leftmost
pattern 0, b, ... has the least j and the least j - i, so this pattern has the
largest sum of X. [BSR24, Thm 2] assumes that c does not increase from 0 on.

Gradients are computed by formulas. The power series y = x / c is L(c)^-1 x,
where L(c) is the lower-triangular Toeplitz matrix of c. If `by_y` is the
gradient by y, then the gradient by x is u = L(c)^-T by_y, which is the same
division backwards in time, and the gradient by c_s is -sum_t u_t y_{t-s}.
"""

from __future__ import annotations

import functools
from typing import Callable, Optional

import numpy as np
import scipy
import scipy.special

from tff_bandmf import errors, workloads
from tff_bandmf.optimize import solver

# Largest number of rounds with learning rates, which need n x n matrices.
_MOST_SCHEDULED_ROUNDS = 4096
# Powers p of the norm that replaces the maximum over rounds; the norm exceeds
# the maximum by a factor of at most n^(1 / p). There is one search for each p.
# The search for the large p starts at the result for the small p, because it
# converges slowly from other starts.
_NORMS = (100.0, 1e4)
# Function from the gradients by c and r to the gradient by the parameters.
Pullback = Callable[[np.ndarray, np.ndarray], np.ndarray]
# Function from [parameters] to c, r and their `Pullback`; c and r are [n], or
# shorter if further terms are 0.
Build = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray, Pullback]]


def divide(series: np.ndarray, coefficients: np.ndarray) -> np.ndarray:
  """Returns the first terms of the power series `series` / `coefficients`.

  Args:
    series: [terms] float64.
    coefficients: [b] float64.
  """
  return scipy.signal.lfilter([1.0], coefficients, series)


def divide_back(
  by_quotient: np.ndarray, coefficients: np.ndarray
) -> np.ndarray:
  """Returns the gradient of a loss by the argument `series` of `divide`.

  Args:
    by_quotient: [terms] float64, gradient of the loss by the result.
    coefficients: [b] float64.
  """
  return divide(by_quotient[::-1], coefficients)[::-1]


def reciprocal(coefficients: np.ndarray, terms: int) -> np.ndarray:
  """Returns the first terms of 1 / `coefficients`, [terms] float64."""
  return divide(np.eye(1, terms)[0], coefficients)


def reciprocal_back(
  by_quotient: np.ndarray, quotient: np.ndarray, coefficients: np.ndarray
) -> np.ndarray:
  """Returns the gradient of a loss by the argument of `reciprocal`.

  Args:
    by_quotient: [terms] float64, gradient of the loss by the result.
    quotient: [terms] float64, the result of `reciprocal`.
    coefficients: [b] float64, b at most `terms`.
  """
  by_series = divide_back(by_quotient, coefficients)
  padded = np.concatenate([np.zeros(len(coefficients) - 1), quotient])
  # Entry i of the correlation has lag b - 1 - i.
  return -np.correlate(padded, by_series, 'valid')[::-1]


def from_few(
  free: np.ndarray, rounds: int
) -> tuple[np.ndarray, np.ndarray, Pullback]:
  """Returns a polynomial, its reciprocal, and their pullback.

  Args:
    free: [terms] float64, coefficients of the polynomial after the first,
      which is 1.
    rounds: number of terms of the reciprocal.

  Returns:
    [terms + 1] float64, [rounds] float64, and the function from the gradients
    by both to the gradient by `free`.
  """
  few = np.concatenate([[1.0], free])
  many = reciprocal(few, rounds)

  def pullback(by_few, by_many):
    return (by_few + reciprocal_back(by_many, many, few))[1:]

  return few, many, pullback


def squared_noise(
  column: np.ndarray, problem: solver.Problem, falls: bool = False
) -> tuple[float, np.ndarray]:
  """Returns the squared noise that a Toeplitz C needs, and its gradient.

  For sampled cohorts, `Problem.noise` computes the noise. For other cohorts,
  the noise is the sensitivity or an upper bound of the sensitivity.

  Args:
    column: [terms] float64, c; terms past the last are 0.
    problem: problem with the rounds and the schema of one client.
    falls: whether c is known to be positive and to decrease from c_1 on.

  Returns:
    The squared noise, and its gradient by c, [terms] float64.
  """
  if problem.noise:
    return problem.noise.squared_of_column(column)
  rounds, participation = problem.rounds, problem.participation
  k = participation.participations(rounds)
  if k == 1:
    return float(column @ column), 2 * column
  min_sep = participation.separation(rounds)
  m = np.abs(column)
  largest = np.arange(len(m))
  # PRIVACY: The code below computes sens for the rounds 0, b, 2 b, .... If c is
  # not monotone and rounds of a client may be more than b apart, sens may be
  # larger for other rounds. m >= |c| does not increase from lag b on. So the
  # rounds 0, b, ... have the largest sens for m, which bounds sens for c.
  # Guard: optimize_series_test.test_sensitivity_is_never_below_brute_force.
  if not (falls or participation.evenly_spaced):
    largest[min_sep:] = min_sep + _last_maxima(m[min_sep:])
    m = m[largest]
  rows = -(-rounds // min_sep)
  summed = np.zeros((rows, min_sep))
  summed.reshape(-1)[: len(m)] = m
  summed = np.cumsum(summed, axis=0)
  summed[k:] -= summed[:-k].copy()
  summed.reshape(-1)[rounds:] = 0.0
  squared = float(np.sum(summed**2))
  by_sums = 2 * summed
  by_sums[:-k] -= 2 * summed[k:]
  by_m = np.cumsum(by_sums[::-1], axis=0)[::-1].reshape(-1)[: len(m)]
  by_column = np.bincount(largest, by_m, len(m)) * np.sign(column)
  return squared, by_column


def _last_maxima(m: np.ndarray) -> np.ndarray:
  """Returns for each t the last index of the maximum of m_t, m_{t+1}, ...."""
  running, positions = np.maximum.accumulate(m[::-1]), np.arange(len(m))
  is_maximum = np.append(True, running[1:] > running[:-1])[: len(m)]
  last = np.maximum.accumulate(np.where(is_maximum, positions, 0))
  return len(m) - 1 - last[::-1]


class Objective:
  """The log loss of a Toeplitz strategy as a function of its parameters."""

  def __init__(
    self, build: Build, problem: solver.Problem, falls: bool = False
  ):
    """Makes the objective.

    Args:
      build: function from parameters to c, r and their `Pullback`.
      problem: error to minimise.
      falls: whether c is known to be positive and to decrease from c_1 on.

    Raises:
      ValueError: the workload has a learning rate schedule, and there are too
        many rounds.
    """
    rounds, workload = problem.rounds, problem.workload
    self._build, self._problem, self._falls = build, problem, falls
    # `_form` is Q or its diagonal; `_steps` is the divisor of r. See
    # `_quadratic`.
    self._form: Optional[np.ndarray] = None
    self._steps = workload.steps
    self._norms: tuple[float, ...] = (1.0,)
    is_max = problem.objective == solver.MAX
    if workload.is_toeplitz:
      # The error of a query does not decrease from round to round, so the max
      # error is the error of the last round.
      last = np.eye(1, rounds, rounds - 1)[0]
      weights = last if is_max else problem.weights
      self._form = np.cumsum(weights[::-1])[::-1]
      return
    if rounds > _MOST_SCHEDULED_ROUNDS:
      raise errors.value_error(
        f'rounds={rounds}: must be at most {_MOST_SCHEDULED_ROUNDS} with a '
        'learning rate schedule; use a constant learning rate, or family banded'
      )
    self._steps = workload.polynomial
    if is_max:
      self._norms = _NORMS
    else:
      self._form = _mean_form(problem)

  def __call__(
    self, x: np.ndarray, norm: Optional[float] = None
  ) -> tuple[float, np.ndarray]:
    """Returns the log loss and its gradient; both may be infinite or NaN.

    Args:
      x: [parameters] float64.
      norm: power p of the norm that replaces the maximum if there are learning
        rates; None means the largest power.
    """
    problem = self._problem
    with np.errstate(all='ignore'):
      column, inverse, pullback = self._build(x)
      padded = np.zeros(problem.rounds)
      padded[: len(inverse)] = inverse
      if self._form is None:
        power = norm or self._norms[-1]
        error, by_inverse = _scheduled_max(padded, power, problem.workload)
      else:
        error, by_inverse = _quadratic(padded, self._form, self._steps)
      squared, by_column = squared_noise(column, problem, self._falls)
      return float(np.log(error) + np.log(squared)), pullback(
        by_column / squared, by_inverse[: len(inverse)] / error
      )

  def minimize(
    self,
    start: np.ndarray,
    bounds: Optional[solver.Bounds] = None,
    evaluations: int = 0,
    tolerance: Optional[float] = None,
  ) -> solver.Minimum:
    """Returns the best point that `solver.minimize` finds from `start`."""
    for norm in self._norms:
      minimum = solver.minimize(
        functools.partial(self, norm=norm),
        start,
        self._problem,
        bounds,
        evaluations=evaluations,
        tolerance=tolerance,
      )
      start, evaluations = minimum.x, minimum.evaluations
      if minimum.interrupted or evaluations >= self._problem.max_evaluations:
        break
    return minimum


def _quadratic(
  inverse: np.ndarray, form: np.ndarray, steps: np.ndarray
) -> tuple[float, np.ndarray]:
  """Returns w^T Q w for w(x) = r(x) / steps(x), and its gradient by r.

  Args:
    inverse: r, [n] float64.
    form: Q, [n, n] float64, or its diagonal, [n], if it is diagonal.
    steps: coefficients of the divisor.
  """
  w = divide(inverse, steps)
  product = form @ w if form.ndim == 2 else form * w
  return float(w @ product), divide_back(2 * product, steps)


def _scheduled_max(
  inverse: np.ndarray, norm: float, workload: workloads.Workload
) -> tuple[float, np.ndarray]:
  """Returns (sum_t e_t^p)^(1 / p) and its gradient by r.

  Args:
    inverse: r, [n] float64.
    norm: p.
    workload: A.
  """
  n, steps = len(inverse), workload.polynomial
  v = divide(inverse, steps)
  # Row t of `windows` is v_t, ..., v_0, 0, ..., a part of the reversed v.
  reversed_v = np.concatenate([v[::-1], np.zeros(n - 1)])
  windows = np.lib.stride_tricks.sliding_window_view(reversed_v, n)[::-1]
  b = workload.summed(windows)
  log_e = np.log(np.einsum('ij,ij->i', b, b))
  log_error = scipy.special.logsumexp(norm * log_e) / norm
  by_e = np.exp((norm - 1) * log_e - (norm - 1) * log_error)
  b *= 2 * by_e[:, None]
  # by_v[l] = sum_s by_rows[s, s - l].
  padded = np.zeros((n, 2 * n))
  padded[:, n:] = workload.summed_back(b)
  row, entry = padded.strides
  by_v = np.lib.stride_tricks.as_strided(
    padded.reshape(-1)[n:], (n, n), (row + entry, -entry)
  ).sum(0)
  return float(np.exp(log_error)), divide_back(by_v, steps)


def _mean_form(problem: solver.Problem) -> np.ndarray:
  """Returns Q, [n, n] float64.

    Q[i, j] = G[i, j] + Q[i + 1, j + 1],   G = M^-T A^T diag(a) A M^-1

  where a_s is the weight of the error of round s, and M is the Toeplitz matrix
  of momentum; see the module `workloads`.
  """
  workload = problem.workload
  form = workload.summed_back(
    problem.weights[:, None] * workload.summed(np.eye(problem.rounds))
  )
  for row, below in zip(form[-2::-1], form[:0:-1]):
    row[:-1] += below[1:]
  return form
