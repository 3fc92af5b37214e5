"""L-BFGS-B for all searches of this package, and the types of their results."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Callable, Generic, Optional, Protocol, TypeVar, Union

import attrs
import numpy as np
import scipy.optimize

from tff_bandmf import (
  _checks,
  _files,
  errors,
  sensitivity,
  strategies,
  workloads,
)
from tff_bandmf import participation as participation_lib

MEAN = 'mean'
MAX = 'max'
MAX_EVALUATIONS = 2000
TOLERANCE = 1e-15

# Function that is called after every iteration with the best loss so far.
Callback = Callable[[float], None]


StrategyT = TypeVar('StrategyT', bound=strategies.Strategy)


@dataclasses.dataclass(frozen=True, eq=False)
class Optimized(Generic[StrategyT]):
  """An optimised strategy.

  Attributes:
    strategy: best strategy found.
    loss: error times squared sensitivity, or times the squared noise of
      `Problem.noise`; both are computed from the strategy.
    evaluations: number of evaluations of the loss, with or without gradient.
    converged: whether the search converged; if it stopped for another reason,
      such as an interrupt, the strategy is the best so far.
  """

  strategy: StrategyT
  loss: float
  evaluations: int
  converged: bool


@dataclasses.dataclass(frozen=True, eq=False)
class Minimum:
  """The point with the least value that `minimize` evaluated.

  Attributes:
    x: [parameters] float64.
    value: value of the function at x.
    evaluations: number of evaluations of the function.
    converged: whether the solver converged.
    interrupted: whether Ctrl-C ended the search, so that a caller skips its
      further searches.
  """

  x: np.ndarray
  value: float
  evaluations: int
  converged: bool
  interrupted: bool = False


class Noise(Protocol):
  """The noise s(C) that a run needs, as a function of C and with gradients.

  `accounting` has such functions for sampled cohorts. Both gradients are those
  of s(C)^2, which is infinite if no noise is known for C.
  """

  def __call__(self, strategy: strategies.Strategy) -> float:
    """Returns s(C); raises ValueError if none is known for C."""

  def squared_of_column(self, column: np.ndarray) -> tuple[float, np.ndarray]:
    """Returns s(C)^2 and its gradient by the first column of a Toeplitz C."""

  def squared_of_columns(self, columns: np.ndarray) -> tuple[float, np.ndarray]:
    """Returns s(C)^2 and its gradient by C[j + s, j], [n, bands]."""

  def to_dict(self) -> _files.JsonObject:
    """Returns the values that define the function, as JSON."""


@attrs.frozen
class Problem:
  """The error that a search minimises.

  Attributes:
    rounds: n, number of rounds.
    participation: schema under which the sensitivity is computed.
    workload: A, the workload under which the error is computed.
    objective: `MEAN` or `MAX` over the per-query errors.
    max_evaluations: largest number of evaluations of the loss, >= 1.
    callback: function that is called during the search with the best loss so
      far; None for no calls.
    noise: s(C), which replaces the sensitivity in the loss if cohorts are
      sampled; None for the sensitivity.

  Raises:
    TypeError: `rounds` is not an integer, or `participation` is not a schema.
    ValueError: `rounds` is below 1, or the objective is unknown.
  """

  rounds: int
  participation: participation_lib.Participation
  workload: workloads.Workload = workloads.PREFIX
  objective: str = MEAN
  max_evaluations: int = MAX_EVALUATIONS
  callback: Optional[Callback] = attrs.field(default=None, eq=False)
  noise: Optional[Noise] = attrs.field(default=None, eq=False)

  def __attrs_post_init__(self):
    _checks.count('rounds', self.rounds, 'give the number of rounds')
    participation_lib.check(self.participation)
    if self.objective not in (MEAN, MAX):
      raise errors.value_error(
        f'objective={self.objective}: is not known; use mean or max'
      )

  def error(self, strategy: strategies.Strategy) -> float:
    """Returns the mean or max error of a strategy."""
    return strategy.errors(self.workload)[self.objective == MAX]

  def evaluated(
    self,
    strategy: StrategyT,
    minimum: Union[Optimized, Minimum, None] = None,
  ) -> Optimized[StrategyT]:
    """Returns the result of a search that ended with `strategy`.

    Args:
      strategy: best strategy of the search.
      minimum: result of the solver; None if no solver was needed.
    """
    # PRIVACY: A search may assume a smaller sensitivity than the final C has.
    # The loss, error * sens^2, would then be below the squared error under the
    # noise that a given epsilon needs. So sens is computed from the final C.
    # Guard: optimize_dense_test.test_loss_counts_the_sensitivity.
    sens = (
      self.noise(strategy)
      if self.noise
      else sensitivity.sensitivity(strategy, self.participation).value
    )
    return Optimized(
      strategy,
      self.error(strategy) * sens**2,
      minimum.evaluations if minimum else 0,
      minimum.converged if minimum else True,
    )


def minimize(
  function: Callable[[np.ndarray], tuple[float, np.ndarray]],
  start: np.ndarray,
  bounds: Optional[Sequence[tuple[Optional[float], Optional[float]]]] = None,
  max_evaluations: int = MAX_EVALUATIONS,
  callback: Optional[Callback] = None,
  tolerance: float = TOLERANCE,
  corrections: int = 20,
) -> Minimum:
  """Returns the best point that L-BFGS-B evaluates while minimising `function`.

  Ctrl-C ends the search; the result is then the best point so far, and has not
  converged.

  Args:
    function: function from [parameters] float64 to its value and gradient. A
      value that is not finite counts as larger than all finite values.
    start: [parameters] float64, start of the search.
    bounds: (low, high) of each parameter; None means no bound.
    max_evaluations: largest number of evaluations of `function`, >= 1.
    callback: function that is called after every iteration with the least value
      so far.
    tolerance: the search has converged if an iteration decreases the value by
      less than this; relative if the value is above 1, else absolute.
    corrections: number of past gradients that L-BFGS stores; the search takes
      about 2 * `corrections` + 5 times the memory of `start`.

  Raises:
    ValueError: `function` is not finite at `start`.
  """
  best = Minimum(np.asarray(start, np.float64), np.inf, 0, False)
  evaluations = 0

  def watched(x):
    nonlocal best, evaluations
    value, gradient = function(x)
    evaluations += 1
    if value < best.value:
      best = Minimum(x.copy(), float(value), evaluations, False)
    if not np.isfinite(value):
      # The line search interpolates values, so it needs a finite value.
      return best.value + max(1.0, abs(best.value)), np.zeros_like(x)
    return value, np.asarray(gradient, np.float64)

  success = interrupted = False
  try:
    success = scipy.optimize.minimize(
      watched,
      best.x,
      method='L-BFGS-B',
      jac=True,
      bounds=bounds,
      callback=None if callback is None else lambda _: callback(best.value),
      options={
        'maxcor': corrections,
        'ftol': tolerance,
        'gtol': 1e-9,
        'maxfun': max_evaluations,
        'maxiter': max_evaluations,
      },
    ).success
  except KeyboardInterrupt:
    if not np.isfinite(best.value):
      raise
    interrupted = True
  if not np.isfinite(best.value):
    raise errors.value_error(
      f'start={len(best.x)} parameters: the loss is not finite where the '
      'search starts; use fewer rounds, or fewer bands'
    )
  return dataclasses.replace(
    best,
    evaluations=evaluations,
    converged=bool(success),
    interrupted=interrupted,
  )


def check_separated(bands: int, min_sep: Optional[int]) -> int:
  """Returns `bands`.

  Raises:
    ValueError: `bands` exceeds `min_sep`.
  """
  if min_sep is not None and bands > min_sep:
    raise errors.value_error(
      f'bands={bands}: must not exceed min_sep={min_sep}, or the columns of a '
      f"client's rounds overlap and sensitivity grows; use {min_sep} or fewer"
    )
  return bands
