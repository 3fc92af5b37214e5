"""Optimal banded Toeplitz coefficients, for any number of rounds.

| symbol | name here | meaning                                                |
|--------|-----------|--------------------------------------------------------|
| n      | `rounds`  | number of rounds                                       |
| b      | `bands`   | number of bands                                        |
| c      | `c`       | coefficients, c_0 = 1, c_1 .. c_{b-1} in [0, 1]        |
| h      | `h`       | polynomial of the workload, A(x) = 1 / ((1 - x) h(x))  |
| w      |           | first column of A C^-1, w(x) = 1 / ((1 - x) c(x) h(x)) |
| a_j    |           | weight of w_j^2 in the error, see the module `series`  |

  minimise log sum_j a_j w_j^2 + log |c|^2

w_j converges to 1 / (c(1) h(1)), or to 0 with weight decay. If n is large, few
terms are added up, and the limit stands for all later ones. The loss is from
[BandMF24, Sec 4].
"""

from __future__ import annotations

from typing import Callable

import attrs
import numpy as np

from tff_bandmf import participation, strategies
from tff_bandmf.optimize import series, solver

# Number of terms of w at the start, in multiples of b. The number is doubled
# while one of the last terms is further than this from its limit; w_0 is 1.
_TERMS_PER_BAND = 8
_CONVERGED = 1e-12

# Function from c_1 .. c_{b-1} to the log loss and its gradient.
_Loss = Callable[[np.ndarray], tuple[float, np.ndarray]]


def optimize_banded_toeplitz(
  problem: solver.Problem,
  bands: int,
) -> solver.Optimized[strategies.BandedToeplitz]:
  """Returns the banded Toeplitz strategy of least loss.

    loss = error * |c|^2

  |c| is the sensitivity if each client takes part once. With at most `min_sep`
  bands the same strategy is optimal under every min-separation schema, because
  the sensitivity is then a multiple of |c|, up to the effect of columns that
  are cut off at row n.

  Args:
    problem: error to minimise; the search assumes that each client has only
      one round, whatever its participation schema is.
    bands: b, at most n.

  Raises:
    ValueError: a value is out of range, or there are learning rates and too
      many rounds.

  >>> problem = solver.Problem(1000, participation.Single())
  >>> found = optimize_banded_toeplitz(problem, bands=16)
  >>> round(found.loss, 6), found.converged
  (39.415317, True)
  """
  start = strategies.BandedSqrt(problem.rounds, bands).coefficients
  loss, evaluations = _loss(problem, bands), 0
  if problem.noise:
    start, evaluations = _best_start(problem.rounds, bands, loss)
  minimum = solver.Minimum(start[1:], np.nan, 0, True)
  if bands > 1:
    minimum = solver.restarted(
      loss,
      start[1:],
      [(0, 1)] * (bands - 1),
      problem.max_evaluations - evaluations,
      problem.callback,
      series.SAMPLED_TOLERANCE if problem.noise else solver.TOLERANCE,
    )
  start = np.concatenate([[1.0], minimum.x])
  strategy = strategies.BandedToeplitz(problem.rounds, start)
  return solver.Optimized(
    strategy,
    problem.evaluated(strategy).loss
    if problem.noise
    else problem.error(strategy) * float(start @ start),
    evaluations + minimum.evaluations,
    minimum.converged,
    minimum.interrupted,
  )


def _best_start(rounds: int, bands: int, loss: _Loss) -> tuple[np.ndarray, int]:
  """Returns the start of least loss among square roots of few bands.

  Amplification may favour few bands, which a search from all bands reaches in
  many steps only.

  Returns:
    [bands] float64, and the number of evaluations.
  """
  numbers = [1 << i for i in range(bands.bit_length())] + [bands]
  starts = np.zeros((len(numbers), bands))
  for row, number in zip(starts, numbers):
    row[:number] = strategies.BandedSqrt(rounds, number).coefficients
  losses = [loss(row[1:])[0] for row in starts]
  return starts[int(np.argmin(losses))], len(losses)


def _loss(problem: solver.Problem, bands: int) -> _Loss:
  """Returns the function that computes the log loss and its gradient."""
  workload, rounds = problem.workload, problem.rounds

  def build(free):
    c = np.concatenate([[1.0], free])
    inverse = series.reciprocal(c, rounds)

    def pullback(by_c, by_inverse):
      return (by_c + series.reciprocal_back(by_inverse, inverse, c))[1:]

    return c, inverse, pullback

  if problem.noise or not workload.is_toeplitz:
    single = attrs.evolve(problem, participation=participation.Single())
    return series.Objective(build, single)
  weights = series.square_weights(problem)

  def loss(free):
    terms = min(_TERMS_PER_BAND * bands, rounds)
    c = np.concatenate([[1.0], free])
    steps = np.convolve(c, workload.steps)
    limit = 1 / (c.sum() * workload.polynomial.sum())
    limit *= not workload.weight_decay
    w = series.reciprocal(steps, terms)
    while (
      terms < rounds and np.abs(w[-len(steps) :] - limit).max() > _CONVERGED
    ):
      terms = min(2 * terms, rounds)
      w = series.reciprocal(steps, terms)
    with np.errstate(over='ignore', invalid='ignore'):
      later, weighted = weights[terms:].sum() * limit**2, weights[:terms] * w
      error, squared = weighted @ w + later, c @ c
      by_steps = series.reciprocal_back(2 * weighted, w, steps)
      by_c = np.correlate(by_steps, workload.steps, 'valid')
      gradient = (by_c - 2 * later / c.sum()) / error + 2 * c / squared
      return float(np.log(error * squared)), gradient[1:]

  return loss
