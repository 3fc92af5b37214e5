"""Optimal Toeplitz C^-1 of few bands.

| symbol | meaning                                     |
|--------|---------------------------------------------|
| r      | first column of C^-1, r_0 = 1, p terms      |
| c      | first column of C, c(x) = 1 / r(x), n terms |

The module `series` computes the loss. Any two rounds of a client are at least
min_sep apart, so the best c may increase at lags t < min_sep; the sensitivity
that `series` computes is exact for such a c, too. [DPCGD26] and [BIFR26] have
closed forms of C^-1 with few bands; here all p - 1 coefficients are free.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from tff_bandmf import strategies
from tff_bandmf.optimize import series, solver


def optimize_banded_inverse(
  problem: solver.Problem,
  bands: int,
) -> solver.Optimized[strategies.BandedInverse]:
  """Returns the best strategy found whose C^-1 has `bands` bands.

    loss = error * sens^2

  If the sensitivity sens is not known exactly, an upper bound replaces it in
  the loss of the search.

  Args:
    problem: error to minimise.
    bands: p, number of bands of C^-1, at most n.

  Raises:
    ValueError: a value is out of range, or the workload has a learning rate
      schedule and too many rounds.

  >>> from tff_bandmf import participation
  >>> problem = solver.Problem(2052, participation.MinSep(342, 6))
  >>> found = optimize_banded_inverse(problem, 4)
  >>> round(found.loss, 4), found.converged
  (129.7275, True)
  """
  rounds = problem.rounds
  start = strategies.BandedInverseSqrt(rounds, bands).inverse_coefficients[1:]
  minimum = solver.Minimum(start, np.nan, 0, True)
  if bands > 1:

    def build(free):
      inverse = np.concatenate([[1.0], free])
      column = series.reciprocal(inverse, rounds)

      def pullback(by_column, by_inverse):
        through = series.reciprocal_back(by_column, column, inverse)
        return (by_inverse + through)[1:]

      return column, inverse, pullback

    loss = series.Objective(build, problem)
    minimum = loss.minimize(start)
    if (
      minimum.evaluations < problem.max_evaluations and not minimum.interrupted
    ):
      # From the square root the search may stop where m of `series` has a kink.
      # If min_sep is small, independent noise is a better start.
      other = loss.minimize(
        np.zeros(bands - 1), evaluations=minimum.evaluations
      )
      minimum = dataclasses.replace(
        other if other.value < minimum.value else minimum,
        evaluations=other.evaluations,
        converged=minimum.converged and not other.interrupted,
      )
  inverse = np.concatenate([[1.0], minimum.x])
  return problem.evaluated(strategies.BandedInverse(rounds, inverse), minimum)
