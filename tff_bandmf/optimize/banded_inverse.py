"""Optimal C^-1 of few bands, whose noise needs no memory of past rounds.

| symbol | meaning                                     |
|--------|---------------------------------------------|
| r      | first column of C^-1, r_0 = 1, p terms      |
| c      | first column of C, c(x) = 1 / r(x), n terms |

`series` has the loss. c may rise at first, c_1 > c_0, where columns of one
client do not overlap, which is why the sensitivity there asks nothing of c_t
for t < b. [DPCGD26] and [BIFR26] have closed forms with few bands of C^-1; here
all p - 1 coefficients are free.
"""

from __future__ import annotations

import dataclasses
from typing import Optional

import numpy as np
import tensorflow as tf

from tff_bandmf import strategies
from tff_bandmf.optimize import series, solver


def compiled(problem: solver.Problem, bands: int) -> series.Objective:
  """Returns the loss of the coefficients r_1 .. r_{p-1}, p > 1 bands."""

  def build(free):
    inverse = tf.concat([tf.ones([1], tf.float64), free], 0)
    return series.reciprocal(inverse, problem.rounds), inverse

  return series.Objective(build, bands - 1, problem)


def optimize_banded_inverse(
  problem: solver.Problem,
  bands: int,
  loss: Optional[series.Objective] = None,
) -> solver.Optimized[strategies.BandedInverse]:
  """Returns the strategy of least loss found whose C^-1 has `bands` bands.

    loss = error * sens^2, with a bound for sens where it is not known exactly

  Args:
    problem: what is minimised.
    bands: p, of C^-1, at most n.
    loss: of as many bands or more, `compiled`; None compiles one.

  Raises:
    ValueError: a value out of range, or a learning rate schedule for many
      rounds.

  >>> from tff_bandmf import participation
  >>> problem = solver.Problem(2052, participation.MinSep(342, 6))
  >>> found = optimize_banded_inverse(problem, 4)
  >>> round(found.loss, 4), found.converged
  (129.7275, True)
  """
  rounds = problem.rounds
  start = strategies.BandedInverseSqrt(rounds, bands).inverse_coefficients[1:]
  found = solver.Minimum(start, np.nan, 0, True)
  if bands > 1:
    if loss is None:
      loss = compiled(problem, bands)
    # Coefficients past the last band stay 0.
    closed = loss.size - len(start)
    bounds = [(None, None)] * len(start) + [(0.0, 0.0)] * closed
    found = loss.minimize(np.pad(start, (0, closed)), bounds)
    if found.evaluations < problem.max_evaluations and not found.interrupted:
      # The majorant has kinks, at which the square root may stick where little
      # separation makes independent noise the best.
      other = loss.minimize(np.zeros(loss.size), bounds, found.evaluations)
      found = dataclasses.replace(
        other if other.value < found.value else found,
        evaluations=other.evaluations,
        converged=found.converged and not other.interrupted,
      )
  inverse = np.concatenate([[1.0], found.x[: bands - 1]])
  return problem.evaluated(strategies.BandedInverse(rounds, inverse), found)
