"""The best of a family with one scalar, without TensorFlow.

| symbol | meaning                                                     |
|--------|-------------------------------------------------------------|
| x      | the scalar, in [low, high]                                  |
| u      | log (x - low) / (high - x), what is searched                |

  minimise error(x) * sens(x)^2

The scalars of the field matter near the ends of their range (1 - lambda of
DP-CGD and nu of LTI by orders of magnitude), hence u. A grid finds the valleys,
the ends of the range included, and the bottom of each is then searched.
"""

from __future__ import annotations

import dataclasses
from typing import Callable, Optional

import numpy as np
import scipy.optimize

from tff_bandmf import errors, strategies, workloads
from tff_bandmf import participation as participation_lib
from tff_bandmf import sensitivity as sensitivity_lib
from tff_bandmf.optimize import solver

# u of the grid: of x from a billionth of the range to a billionth less than it.
_GRID = np.linspace(-20.75, 20.75, 31)
# In u; the loss is flat at the bottom, so its own precision is the square.
_PRECISION = 1e-5


def sweep(
  build: Callable[[float], strategies.Strategy],
  low: float,
  high: float,
  participation: participation_lib.Participation,
  workload: workloads.Workload = workloads.PREFIX,
  objective: str = solver.MEAN,
  callback: Optional[solver.Callback] = None,
) -> solver.Optimized:
  """Returns the strategy of least loss among build(x), low <= x <= high.

    loss = error * sens^2

  Ctrl-C ends the search and returns the best so far, not converged.

  Args:
    build: takes x.
    low: least x.
    high: largest x.
    participation: of one client.
    workload: A.
    objective: `MEAN` or `MAX`, over the errors of the n rounds.
    callback: called after every loss with the least so far.

  Raises:
    ValueError: the range is empty, or no x has a finite loss.

  >>> found = sweep(
  ...     lambda x: strategies.DpCgd(3900, x), 0, 1,
  ...     participation_lib.MinSep(390, 10))
  >>> round(found.strategy.lambda_, 4), found.converged
  (0.9776, True)
  """
  solver.check_objective(objective)
  if not low < high:
    raise ValueError(
      errors.invalid('low', low, f'must be below high={high}', 'give a range')
    )
  best: Optional[solver.Optimized] = None
  evaluations, failure = 0, None

  def loss(x):
    nonlocal best, evaluations, failure
    evaluations += 1
    try:
      strategy = build(float(x))
      error = strategy.errors(workload)[objective == solver.MAX]
      value = (
        error * sensitivity_lib.sensitivity(strategy, participation).value ** 2
      )
    except ValueError as e:
      # C^-1 may grow without bound at one x, and not at another.
      failure = failure or e
      return np.inf
    if not np.isfinite(value):
      return np.inf
    if best is None or value < best.loss:
      best = solver.Optimized(strategy, value, evaluations, False)
    if callback is not None:
      callback(best.loss)
    return value

  def position(u):
    return low + (high - low) / (1 + np.exp(-u))

  converged = False
  try:
    values = np.array(
      [loss(low)] + [loss(position(u)) for u in _GRID] + [loss(high)]
    )
    left, middle, right = values[:-2], values[1:-1], values[2:]
    step = _GRID[1] - _GRID[0]
    for i in np.flatnonzero(
      np.isfinite(middle) & (middle <= left) & (middle <= right)
    ):
      scipy.optimize.minimize_scalar(
        lambda u: loss(position(u)),
        method='bounded',
        bounds=(_GRID[i] - step, _GRID[i] + step),
        options={'xatol': _PRECISION},
      )
    converged = True
  except KeyboardInterrupt:
    if best is None:
      raise
  if best is None:
    raise failure or ValueError(
      errors.invalid(
        'low',
        low,
        f'no x up to high={high} has a finite loss',
        'use fewer rounds',
      )
    )
  return dataclasses.replace(best, evaluations=evaluations, converged=converged)
