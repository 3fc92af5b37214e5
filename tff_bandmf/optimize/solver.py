"""L-BFGS-B for all searches of this package, and the types of their results."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Callable, Generic, Optional, TypeVar, Union

import attrs
import numpy as np
import scipy.optimize

from tff_bandmf import _checks, errors, sensitivity, strategies, workloads
from tff_bandmf import participation as participation_lib

MEAN = 'mean'
MAX = 'max'
MAX_EVALUATIONS = 2000

# Called after every iteration with the loss reached.
Callback = Callable[[float], None]


StrategyT = TypeVar('StrategyT', bound=strategies.Strategy)


@dataclasses.dataclass(frozen=True, eq=False)
class Optimized(Generic[StrategyT]):
  """An optimised strategy.

  Attributes:
    strategy: best strategy found.
    loss: error times squared sensitivity of the strategy, both computed again
      without TensorFlow.
    evaluations: number of losses computed, with or without gradient.
    converged: False if the optimiser stopped for another reason, an interrupt
      for instance; the strategy is then the best so far.
  """

  strategy: StrategyT
  loss: float
  evaluations: int
  converged: bool


@dataclasses.dataclass(frozen=True, eq=False)
class Minimum:
  """The best point that `minimize` saw.

  Attributes:
    x: [parameters] float64.
    value: value of the function at x.
    evaluations: number of evaluations of the function.
    converged: whether the solver converged.
    interrupted: whether Ctrl-C ended the search; a caller with further searches
      skips them.
  """

  x: np.ndarray
  value: float
  evaluations: int
  converged: bool
  interrupted: bool = False


@attrs.frozen
class Problem:
  """The error that a search minimises.

  Attributes:
    rounds: n.
    participation: the schema whose sensitivity counts.
    workload: A.
    objective: `MEAN` or `MAX` over the per-query errors.
    max_evaluations: most evaluations of the loss and its gradient, >= 1.
    callback: function that is called with the loss reached during the search;
      None for no calls.

  Raises:
    TypeError: `rounds` is not an integer, or `participation` not a schema.
    ValueError: `rounds` is below 1, or the objective is another.
  """

  rounds: int
  participation: participation_lib.Participation
  workload: workloads.Workload = workloads.PREFIX
  objective: str = MEAN
  max_evaluations: int = MAX_EVALUATIONS
  callback: Optional[Callback] = attrs.field(default=None, eq=False)

  def __attrs_post_init__(self):
    _checks.count('rounds', self.rounds, 'give the number of rounds')
    participation_lib.check(self.participation)
    if self.objective not in (MEAN, MAX):
      raise errors.value_error(
        f'objective={self.objective}: is not known; use mean or max'
      )

  def error(self, strategy: strategies.Strategy) -> float:
    """Returns the error of a strategy, computed without TensorFlow."""
    return strategy.errors(self.workload)[self.objective == MAX]

  def evaluated(
    self,
    strategy: StrategyT,
    minimum: Union[Optimized, Minimum, None] = None,
  ) -> Optimized[StrategyT]:
    """Returns `strategy` with its loss, and the counts of its search."""
    # PRIVACY: A search may assume another sensitivity than the final C has, and
    # its loss would then be too small. The sensitivity is computed from the
    # final C.
    # Guard: optimize_dense_test.test_loss_counts_the_sensitivity.
    sens = sensitivity.sensitivity(strategy, self.participation).value
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
  tolerance: float = 1e-15,
  corrections: int = 20,
) -> Minimum:
  """Returns the best point that L-BFGS-B evaluates while minimising `function`.

  Ctrl-C ends the search and returns the best point so far, not converged.

  Args:
    function: takes [parameters] float64, returns value and gradient. A value
      that is not finite counts as worse than any other.
    start: [parameters] float64.
    bounds: (low, high) of each parameter, None for none.
    max_evaluations: most evaluations of `function`, >= 1.
    callback: called after every iteration with the value reached.
    tolerance: least decrease of the value by an iteration, relative if the
      value is above 1, else absolute; below it the search has converged.
    corrections: number of past gradients that L-BFGS stores; its memory is
      about 2 corrections + 5 times that of `start`.

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
      # The line search interpolates, and so needs a finite value.
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
  """Returns `bands`; raises ValueError if they exceed min_sep."""
  if min_sep is not None and bands > min_sep:
    raise errors.value_error(
      f'bands={bands}: must not exceed min_sep={min_sep}, or columns of one '
      f'client overlap and sensitivity grows; use {min_sep} or fewer'
    )
  return bands
