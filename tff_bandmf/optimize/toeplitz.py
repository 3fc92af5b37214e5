"""Optimal banded Toeplitz coefficients, for any number of rounds.

| symbol | name here | meaning                                                |
|--------|-----------|--------------------------------------------------------|
| n      | `rounds`  | number of rounds                                       |
| b      | `bands`   | number of bands                                        |
| A      |           | workload, a Toeplitz matrix and a power series A(x)    |
| c      | `c`       | coefficients, c_0 = 1, c_1 .. c_{b-1} in [0, 1]        |
| h      | `h`       | polynomial of the workload, A(x) = 1 / ((1 - x) h(x))  |
| q      | `q`       | coefficients q_0 .. q_m of c(x) h(x)                   |
| m      |           | degree of q                                            |
| w      |           | first column of A C^-1, w(x) = 1 / ((1 - x) q(x))      |
| W      | `limit`   | limit of w_j for large j, 1 / q(1)                     |
| d      |           | d_j = w_j - W, with d(x) = p(x) / q(x)                 |
| p      | `p`       | p_j = 1 - W (q_0 + ... + q_j), j < m                   |
| L1     |           | lower-triangular Toeplitz, first column q_0 .. q_{m-1} |
| L2     |           | lower-triangular Toeplitz, first column q_m .. q_1     |
| K      |           | L1 L1^T - L2 L2^T, [m, m]                              |
| s      | `s`       | K^-1 p                                                 |
| T      |           | sum_j j d_j^2                                          |

  minimise log error(c) + log |c|^2, where error is the mean or the max error:

  n mean = sum_{j<n} (n - j) w_j^2
         = n (n + 1) W^2 / 2 + 2 W (n sum d_j - sum j d_j) + n sum d_j^2 - T
  max    = sum_{j<n} w_j^2 = n W^2 + 2 W sum d_j + sum d_j^2

If d_j is negligible from j = n on, the sums over d_j extend to all j >= 0.
These infinite sums have a closed form, in O(b^3) time for every n. K^-1 is
the matrix of autocovariances of 1 / q (Gohberg and Semencul), so that
sum d_j^2 = p^T s. For any rho, sum rho^(2j) d_j^2 has the same closed form with
rho^j q_j and rho^j p_j in place of q_j and p_j, and T is half of the derivative
of this sum by rho at rho = 1. K is positive definite iff all roots of q are
outside the unit disc, and the search stays in the set of such q. If d_j is not
negligible from j = n on, all n terms are added up. The loss is from
[BandMF24, Sec 4], and the closed form is from this project.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Callable

import attrs
import numpy as np
import scipy.linalg

from tff_bandmf import participation, strategies, workloads
from tff_bandmf.optimize import series, solver

# The closed form is tried if n >= _ROUNDS_PER_BAND * b and
# n >= _ROUNDS_PER_DECAY / h(1).
_ROUNDS_PER_BAND = 64
_ROUNDS_PER_DECAY = 20
# Largest relative difference of the closed form from the exact loss.
_EXACT = 1e-10

# Function from c_1 .. c_{b-1} to the log loss and its gradient.
_Loss = Callable[[np.ndarray], tuple[float, np.ndarray]]


def _form(first: np.ndarray, second: np.ndarray) -> np.ndarray:
  """Returns K, [m, m] float64.

  K[i, j] - K[i - 1, j - 1] is entry [i, j] of a matrix of rank two.

  Args:
    first: first column of L1, [m] float64.
    second: first column of L2, [m] float64.
  """
  form = np.outer(first, first) - np.outer(second, second)
  for above, row in zip(form, form[1:]):
    row[1:] += above[:-1]
  return form


def _times(column: np.ndarray, x: np.ndarray) -> np.ndarray:
  """Returns L x, [m]; L is lower-triangular Toeplitz, first column `column`."""
  return np.convolve(column, x)[: len(x)]


def _hankel(s: np.ndarray, x: np.ndarray) -> np.ndarray:
  """Returns H x, [m], for H[i, j] = s_{i+j}, or 0 if i + j >= m.

  H x = L^T s for the lower-triangular Toeplitz L with first column x, so H is
  the derivative of L^T s by x.
  """
  return np.correlate(np.concatenate([s, np.zeros(len(s) - 1)]), x, 'valid')


class _Settled:
  """The log loss as a function of c_1 .. c_{b-1}, if d_j vanishes for j >= n.

    E = error = W^2 u + 2 W (sum d_j - v sum j d_j) + p^T s - v T
    T = p'^T s - F . F' + G . G',  F = L1^T s,  G = L2^T s

  For the mean error u = (n + 1) / 2 and v = 1 / n, and for the max error u = n
  and v = 0. A prime is the derivative by rho at fixed s. The gradient is
  computed from another formula of E, with 2 p^T s - s^T K s in place of p^T s
  and the additional term y^T (p - K s), where y = -v K^-1 dT/ds. Since K s = p,
  the value of E is the same. The derivative of this formula by s is 0, so the
  derivative of s is not needed.
  """

  def __init__(
    self, rounds: int, objective: workloads.Objective, h: np.ndarray
  ):
    is_mean = objective == solver.MEAN
    self._u = (rounds + 1) / 2 if is_mean else rounds
    self._v = 1 / rounds if is_mean else 0.0
    self._filter = h

  def __call__(self, free: np.ndarray) -> tuple[float, np.ndarray]:
    c = np.concatenate([[1.0], free])
    try:
      error, by_q = self._error(np.convolve(c, self._filter))
    except np.linalg.LinAlgError:
      # K is not positive definite, because q has a root in the unit disc.
      return np.inf, np.zeros_like(free)
    by_c = np.correlate(by_q, self._filter, 'valid') / error
    squared = c @ c
    return float(np.log(error * squared)), (by_c + 2 * c / squared)[1:]

  def _error(self, q: np.ndarray) -> tuple[float, np.ndarray]:
    """Returns E, and its gradient by q, [m + 1]."""
    v = self._v
    steps = np.arange(len(q), dtype=float)
    weighted = steps[:-1]  # `weighted` gives p'_j = weighted_j p_j.
    sums = np.cumsum(q)
    limit = 1 / sums[-1]
    p = 1 - limit * sums[:-1]
    f, g = q[:-1], q[:0:-1]
    df, dg = (steps * q)[:-1], (steps * q)[:0:-1]
    factor = scipy.linalg.cho_factor(_form(f, g), check_finite=False)
    s = scipy.linalg.cho_solve(factor, p, check_finite=False)
    sf, sg, sdf, sdg = (_hankel(s, column) for column in (f, g, df, dg))
    by_s = weighted * p - (
      _times(f, sdf) + _times(df, sf) - _times(g, sdg) - _times(dg, sg)
    )
    y = -v * scipy.linalg.cho_solve(factor, by_s, check_finite=False)

    slope = steps @ q
    total = limit * p.sum()
    weighted_total = limit * (weighted @ p - total * slope)
    error = (
      limit**2 * self._u
      + 2 * limit * (total - v * weighted_total)
      + p @ s
      - v * (weighted * p @ s - sf @ sdf + sg @ sdg)
    )

    by_p = (
      2 * s
      + y
      - v * weighted * s
      + 2 * limit**2 * (1 - v * (weighted - limit * slope))
    )
    by_limit = (
      2 * limit * self._u
      + 4 * total
      - 2 * v * (2 * limit * (weighted @ p) - 3 * limit * total * slope)
      - by_p @ sums[:-1]
    )
    by_f = _hankel(s, v * sdf - 2 * sf - _hankel(y, f)) - _hankel(y, sf)
    by_g = _hankel(s, v * sdg - 2 * sg - _hankel(y, g)) - _hankel(y, sg)
    by_df, by_dg = (v * _hankel(s, each) for each in (sf, sg))
    by_q = 2 * v * limit**2 * total * steps - limit**2 * by_limit
    by_q[:-1] += by_f + weighted * by_df
    by_q[:-1] -= limit * np.cumsum(by_p[::-1])[::-1]
    by_q[:0:-1] -= by_g + steps[:0:-1] * by_dg
    return float(error), by_q


def optimize_banded_toeplitz(
  problem: solver.Problem, bands: int
) -> solver.Optimized[strategies.BandedToeplitz]:
  """Returns the banded Toeplitz strategy of least loss.

    loss = error * |c|^2

  |c| is the sensitivity if each client takes part once. With at most `min_sep`
  bands the same strategy is optimal under every min-separation schema, because
  the sensitivity is then a multiple of |c|, up to the effect of columns that
  are cut off at row n.

  Args:
    problem: error to minimise; the search assumes that each client has only
      one round, whatever the participation schema of the problem is.
    bands: b, at most n.

  Raises:
    ValueError: a value is out of range, or there are learning rates and too
      many rounds.

  >>> problem = solver.Problem(1000, participation.Single())
  >>> best = optimize_banded_toeplitz(problem, bands=16)
  >>> round(best.loss, 6), best.converged
  (39.415317, True)
  """
  problem = attrs.evolve(problem, participation=participation.Single())
  start = strategies.BandedSqrt(problem.rounds, bands).coefficients
  evaluations = 0
  for loss in _losses(problem, bands):
    if problem.noise:
      start, evaluations = _best_start(problem.rounds, bands, loss)
    minimum = solver.minimize(
      loss, start[1:], problem, [(0, 1)] * (bands - 1), evaluations=evaluations
    )
    evaluations = minimum.evaluations
    start = np.concatenate([[1.0], minimum.x])
    optimized = problem.evaluated(
      strategies.BandedToeplitz(problem.rounds, start), minimum
    )
    distance = abs(minimum.value - math.log(optimized.loss))
    # If the closed form is not exact, the next loss adds up all terms.
    exact = bool(problem.noise) or bands == 1 or distance <= _EXACT
    if exact or minimum.interrupted or evaluations >= problem.max_evaluations:
      break
  return dataclasses.replace(optimized, converged=minimum.converged and exact)


def _best_start(rounds: int, bands: int, loss: _Loss) -> tuple[np.ndarray, int]:
  """Returns the start of least loss among square roots of few bands.

  With amplification, few bands may be best. A search that starts from all bands
  needs many steps to reach few bands.

  Returns:
    [bands] float64, and the number of evaluations.
  """
  numbers = [1 << i for i in range(bands.bit_length())] + [bands]
  starts = np.zeros((len(numbers), bands))
  for row, number in zip(starts, numbers):
    row[:number] = strategies.BandedSqrt(rounds, number).coefficients
  losses = [loss(row[1:])[0] for row in starts]
  return starts[int(np.argmin(losses))], len(losses)


def _losses(problem: solver.Problem, bands: int) -> Iterator[_Loss]:
  """Yields functions that compute the log loss, the fastest one first."""
  h, workload = problem.workload.polynomial, problem.workload
  least = max(_ROUNDS_PER_BAND * bands, _ROUNDS_PER_DECAY / h.sum())
  if (
    problem.rounds >= least
    and isinstance(problem.objective, str)
    and workload.is_toeplitz
    and not (workload.weight_decay or problem.noise)
  ):
    yield _Settled(problem.rounds, problem.objective, h)

  yield series.Objective(
    lambda free: series.from_few(free, problem.rounds), problem
  )
