"""Optimal Toeplitz C^-1 of few bands.

| symbol | meaning                                     |
|--------|---------------------------------------------|
| r      | first column of C^-1, r_0 = 1, p terms      |
| c      | first column of C, c(x) = 1 / r(x), n terms |

The module `series` computes the loss. Two rounds of a client are at least
min_sep apart, so the best c may increase at lags t < min_sep. If c >= 0 and c
does not increase from lag min_sep on, the sensitivity that `series` computes is
exact; for any other c it may be an upper bound. [DPCGD26] and [BIFR26] have
closed forms of C^-1 with few bands; here all p - 1 coefficients r_1, ...,
r_(p - 1) are free.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from tff_bandmf import strategies
from tff_bandmf.optimize import series, solver


def optimize_banded_inverse(
  problem: solver.Problem, bands: int
) -> solver.Optimized[strategies.BandedInverse]:
  """Returns the best strategy that a search finds with `bands` bands of C^-1.

    loss = error * sens^2

  If the sensitivity sens is not known exactly, an upper bound replaces it in
  the loss of the search.

  Args:
    problem: number of rounds, participation schema, workload and objective of
      the loss, and limits of the search.
    bands: p, number of bands of C^-1, in [1, n].

  Raises:
    ValueError: a value is out of range, or the workload has a learning rate
      schedule and the number of rounds is too large for it.

  >>> from tff_bandmf import participation
  >>> problem = solver.Problem(2052, participation.MinSep(342, 6))
  >>> best = optimize_banded_inverse(problem, 4)
  >>> round(best.loss, 4), best.converged
  (129.7275, True)
  """
  rounds = problem.rounds
  start = strategies.BandedInverseSqrt(rounds, bands).inverse_coefficients[1:]

  def build(free):
    inverse, column, pullback = series.from_few(free, rounds)
    return column, inverse, lambda by_c, by_r: pullback(by_r, by_c)

  loss = series.Objective(build, problem)
  minimum = loss.minimize(start)
  if not problem.noise and (
    minimum.evaluations < problem.max_evaluations and not minimum.interrupted
  ):
    # The first search starts at `BandedInverseSqrt`. It may stop at a kink of
    # the loss, because the sensitivity of `series` contains maxima over entries
    # of c. If min_sep is small, C^-1 = I (independent noise) is a better start,
    # so a second search starts there.
    other = loss.minimize(np.zeros(bands - 1), evaluations=minimum.evaluations)
    minimum = dataclasses.replace(
      min(minimum, other, key=lambda each: each.value),
      evaluations=other.evaluations,
      converged=minimum.converged and not other.interrupted,
    )
  inverse = np.concatenate([[1.0], minimum.x])
  return problem.evaluated(strategies.BandedInverse(rounds, inverse), minimum)
