"""Search for the best strategy of a family with one scalar parameter.

| symbol | meaning                                                     |
|--------|-------------------------------------------------------------|
| x      | the scalar, in [low, high]                                  |
| u      | log (x - low) / (high - x), the variable of the search      |

  minimise error(x) * sens(x)^2

The best x is often near an end of the range, where orders of magnitude of the
distance matter (1 - lambda of DP-CGD, nu of LTI); u resolves them. A grid that
includes the ends of the range finds local minima, and each is then refined.
"""

from __future__ import annotations

import dataclasses
from typing import Callable, Optional

import numpy as np
import scipy.optimize

from tff_bandmf import errors, strategies
from tff_bandmf.optimize import request as request_lib
from tff_bandmf.optimize import solver

# Grid of u. Its ends are x at a billionth of the range from low and from high.
_GRID = np.linspace(-20.75, 20.75, 31)
# Precision in u; the loss is flat at a minimum, so its error is of the square.
_PRECISION = 1e-5


def sweep(
  request: request_lib.Request,
  build: Callable[[float], strategies.Strategy],
  low: float,
  high: float,
) -> solver.Optimized:
  """Returns the strategy of least loss among build(x), low <= x <= high.

  Ctrl-C ends the search and returns the best so far, not converged.

  Args:
    request: error to minimise; its callback is called after every loss.
    build: function from x to a strategy.
    low: least x.
    high: largest x, > `low`.

  Raises:
    ValueError: the range is empty, or no x has a finite loss.
  """
  if not low < high:
    raise errors.value_error(
      f'low={low}: must be below high={high}; give a range'
    )
  best: Optional[solver.Optimized] = None
  evaluations, failure = 0, None

  def loss(x):
    nonlocal best, evaluations, failure
    evaluations += 1
    try:
      optimized = request.evaluated(build(float(x)))
    except ValueError as e:
      # C^-1 may overflow at some x only.
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
    raise failure or errors.value_error(
      f'low={low}: no x up to high={high} has a finite loss; use fewer rounds'
    )
  return dataclasses.replace(best, evaluations=evaluations, converged=converged)
