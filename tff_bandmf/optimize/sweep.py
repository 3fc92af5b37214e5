"""Search for the best strategy of a family with one scalar parameter.

| symbol | meaning                                                     |
|--------|-------------------------------------------------------------|
| x      | the scalar, in [low, high]                                  |
| u      | log (x - low) / (high - x), the variable of the search      |

  minimise error(x) * sens(x)^2, or error(x) * s(x)^2 for sampled cohorts

The best x is often very near an end of the range: lambda of DP-CGD near 1, nu
of LTI near 0. Then the order of magnitude of the distance from the end matters.
Near an end, a change of u by a constant multiplies this distance by a constant.
The loss is first computed on a grid that includes the ends of the range; then
each local minimum of the grid is refined.

The noise s(x) for sampled cohorts is an estimate, and slow to compute. So for
sampled cohorts the loss is computed on a part of the grid, and then at the
points that are 2 steps and 1 step from the best point. Only the best point is
refined.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Callable, Optional

import numpy as np
import scipy.optimize

from tff_bandmf import errors, strategies
from tff_bandmf.optimize import solver

# Grid of u. At its ends, x is a billionth of the range from `low` or `high`.
_GRID = np.linspace(-20.75, 20.75, 31)
# Precision of u. The error of the loss is of the order of the square of this
# precision, because the derivative of the loss is 0 at a minimum.
_PRECISION = 1e-5
# Precision of u for sampled cohorts, whose loss is an estimate.
_SAMPLED_PRECISION = 0.1
# Indices of the points (low, the grid, high) at which a search for sampled
# cohorts begins, and distances of the next indices from the index of the best
# point.
_COARSE = (0, 8, 12, 14, 16, 18, 20, 24, 32)
_STEPS = (2, 1)
# Indices that are tried besides a given start, which may be a bad start.
_MIDDLE = (14, 16, 18)


def sweep(
  request: solver.Request,
  build: Callable[[float], strategies.Strategy],
  low: float,
  high: float,
  near: Optional[float] = None,
) -> solver.Optimized:
  """Returns the strategy of least loss among build(x), low <= x <= high.

  Ctrl-C ends the search; the result is then the best strategy so far, and has
  not converged.

  Args:
    request: error to minimise; its callback is called after every finite loss.
    build: function from x to a strategy.
    low: least x.
    high: largest x, > `low`.
    near: x near which a search for sampled cohorts begins; None for no such x.

  Raises:
    ValueError: no x has a finite loss.
  """
  best: Optional[solver.Optimized] = None
  evaluations, failure = 0, None

  def loss(x):
    nonlocal best, evaluations, failure
    evaluations += 1
    try:
      optimized = request.evaluated(build(float(x)))
    except ValueError as e:
      # C^-1 may overflow for some x and not for others.
      failure = failure or e
      return np.inf
    if not np.isfinite(optimized.loss):
      return np.inf
    if best is None or optimized.loss < best.loss:
      best = optimized
    if request.callback is not None:
      request.callback(best.loss)
    return optimized.loss

  def position(u):
    return low + (high - low) / (1 + np.exp(-u))

  grid = np.array([low, *position(_GRID), high])

  @functools.cache
  def at(i):
    return loss(grid[i])

  def best_of(places):
    return min((i for i in places if 0 <= i < len(grid)), key=at)

  converged = False
  try:
    if request.noise is None:
      precision = _PRECISION
      values = np.array([at(i) for i in range(len(grid))])
      left, middle, right = values[:-2], values[1:-1], values[2:]
      valleys = np.isfinite(middle) & (middle <= left) & (middle <= right)
      minima = np.flatnonzero(valleys).tolist()
    else:
      precision = _SAMPLED_PRECISION
      nearest = 0 if near is None else int(np.abs(grid - near).argmin())
      i = best_of(_COARSE if near is None else (nearest, *_MIDDLE))
      for distance in _STEPS:
        i = best_of((i, i - distance, i + distance))
      # The samples of the noise may have changed since this loss was computed.
      best = None
      loss(grid[i])
      is_inside = np.isfinite(at(i)) and 0 < i < len(grid) - 1
      minima = [i - 1] if is_inside else []
    step = _GRID[1] - _GRID[0]
    for i in minima:
      scipy.optimize.minimize_scalar(
        lambda u: loss(position(u)),
        method='bounded',
        bounds=(_GRID[i] - step, _GRID[i] + step),
        options={'xatol': precision},
      )
    converged = True
  except KeyboardInterrupt:
    if best is None:
      raise
  if best is None:
    raise failure or errors.value_error(
      f'low={low}: no x up to high={high} has a finite loss; use fewer rounds'
    )
  return dataclasses.replace(best, evaluations=evaluations, converged=converged)
