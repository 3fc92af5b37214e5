"""L-BFGS-B for all searches of this package, and the types of their results."""

from __future__ import annotations

import abc
import dataclasses
import functools
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Callable, Generic, Optional, Protocol, TypeVar, Union

import attrs
import numpy as np
import scipy.optimize
import scipy.special

from tff_bandmf import _checks, errors, sensitivity, strategies, workloads
from tff_bandmf import participation as participation_lib
from tff_bandmf.strategies import base

MEAN = workloads.MEAN
MAX = workloads.MAX
LAST = workloads.LAST
MAX_EVALUATIONS = 2000
TOLERANCE = 1e-15
# A search for sampled cohorts ends if an iteration decreases the log loss by
# less than this. More steps would fit C to the samples of the noise.
SAMPLED_TOLERANCE = 2e-5
# A decrease of the log loss below this value counts as 0.
_NO_GAIN = 1e-10
# A search for the largest error minimises the loss in stages, each with fixed
# weights w and a fixed power p. For the first stages, their powers and the
# largest number of evaluations; then both for all later stages.
_POWERS, _FEW_EVALUATIONS = (4.0, 16.0, 64.0), 60
_LAST_POWER, _STAGE_EVALUATIONS = 256.0, 200
# A weight of 0 could never grow again, so a fraction of the sum of all w_t is
# divided equally among the rounds. The fraction at the start; its largest value
# in later stages; and the factor by which each converged stage reduces it.
_LEAST_WEIGHT, _LATER_WEIGHT, _FALL = 1e-2, 1e-3, 0.1
# Largest log(max(e) / lower bound) at which a search for the largest error has
# converged, and the fraction of this gap at which the search ends.
_GAP, _MARGIN = 1e-4, 0.25

# A search may try this many bands of C^-1 under any memory limit. With so few
# bands, past normals need no memory, because they are drawn again from the key.
# For 4 rounds together, these are at most 7 past normals of a coordinate. So a
# round draws at most (4 + 7) / 4 = 2.75 normals of a coordinate.
_REDRAWN_BANDS = 8

# Function that is called after every iteration with the best loss so far.
Callback = Callable[[float], None]
# Function (parameters, weights) -> parameters of the same C that suit a search
# with these weights. Weights are [n] float64 with sum 1.
Restart = Callable[[np.ndarray, np.ndarray], np.ndarray]
# (low, high) of each parameter; None means no bound.
Bounds = Sequence[tuple[Optional[float], Optional[float]]]


StrategyT = TypeVar('StrategyT', bound=strategies.Strategy)


@dataclasses.dataclass(frozen=True, eq=False)
class Optimized(Generic[StrategyT]):
  """An optimised strategy.

  Attributes:
    strategy: best strategy of the search.
    loss: error times squared sensitivity, or times the squared noise of
      `Problem.noise`; both are computed from the strategy.
    evaluations: number of evaluations of the loss, with or without gradient.
    converged: whether the search converged; if it stopped for another reason,
      such as an interrupt, the strategy is the best so far.
    interrupted: whether Ctrl-C ended the search.
  """

  strategy: StrategyT
  loss: float
  evaluations: int
  converged: bool
  interrupted: bool = False


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

  `accounting` has such functions for sampled cohorts. s(C)^2 is infinite if no
  noise is known for C.
  """

  def __call__(self, strategy: strategies.Strategy) -> float:
    """Returns s(C); raises ValueError if no noise is known for C."""

  def squared_of_column(self, column: np.ndarray) -> tuple[float, np.ndarray]:
    """Returns s(C)^2 and its gradient by the first column of a Toeplitz C."""

  def squared_of_columns(self, columns: np.ndarray) -> tuple[float, np.ndarray]:
    """Returns s(C)^2 and its gradient by C[j + s, j], [n, bands]."""

  def to_dict(self) -> dict[str, Any]:
    """Returns the values that define the function, as JSON."""


@attrs.frozen
class Problem:
  """The error that a search minimises.

  Attributes:
    rounds: n, number of rounds.
    participation: schema under which the sensitivity is computed.
    workload: A, the workload under which the error is computed.
    objective: error of the rounds from their per-query errors: `MEAN`, `MAX`,
      `LAST`, or a tuple with a weight >= 0 of each round. For a search in
      TensorFlow, also a function from the errors, a tensor [n], to a tensor [].
    max_evaluations: largest number of evaluations of the loss, >= 1.
    callback: function that is called during the search with the best loss so
      far; None for no calls.
    noise: s(C), which replaces the sensitivity in the loss if cohorts are
      sampled. If None, the loss uses the sensitivity.

  Raises:
    TypeError: an argument has a wrong type.
    ValueError: `rounds` is below 1, or the objective is unknown or has wrong
      weights.
  """

  rounds: int = attrs.field(converter=base.count_rounds)
  participation: participation_lib.Participation
  workload: workloads.Workload = workloads.PREFIX
  objective: workloads.Objective = MEAN
  max_evaluations: int = MAX_EVALUATIONS
  callback: Optional[Callback] = attrs.field(default=None, eq=False)
  noise: Optional[Noise] = attrs.field(default=None, eq=False)

  def __attrs_post_init__(self):
    participation_lib.check(self.participation)
    _checks.instance(
      'workload', self.workload, workloads.Workload, 'use workloads.Workload'
    )
    if not callable(self.objective):
      workloads.check_objective(self.objective, self.rounds)

  @property
  def weights(self) -> np.ndarray:
    """The weight of each round in the error, [n] float64, of sum 1."""
    return workloads.weights(self.objective, self.rounds)

  def evaluated(
    self, strategy: StrategyT, minimum: Union[Optimized, Minimum, None] = None
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
      strategy.error(self.workload, self.objective) * sens**2,
      minimum.evaluations if minimum else 0,
      minimum.converged if minimum else True,
      minimum.interrupted if minimum else False,
    )


def _count_copies(copies: object) -> int:
  remedy = 'give the vectors that fit in memory'
  return _checks.count('memory_copies', copies, remedy, least=0)


@attrs.frozen
class Request(Problem):
  """The request of a search: a family, and the error to minimise.

  Attributes:
    family: declaration of the family of strategies.
    parameters: given parameters of the family, checked; the search chooses all
      other parameters.
    memory_copies: limit on the vectors of past noise in memory, each of the
      model's size, >= 0; None for no limit. If past normals can be drawn again,
      only `Strategy.least_copies` vectors must fit within the limit.
  """

  family: strategies.Family = attrs.field(kw_only=True)
  parameters: Mapping[str, object] = attrs.field(kw_only=True)
  memory_copies: Optional[int] = attrs.field(
    default=None, converter=attrs.converters.optional(_count_copies)
  )

  def __getitem__(self, name: str) -> Any:
    """Returns the given value of a parameter, else its default, else None."""
    default = getattr(self.family.parameter(name), 'default', None)
    return self.parameters.get(name, default)

  def needed(self, name: str, *otherwise: Any) -> Any:
    """Returns the first value that is not None.

    Args:
      name: name of a parameter, whose value comes first.
      *otherwise: further values.

    Raises:
      ValueError: all of these values are None.
    """
    for value in (self[name], *otherwise):
      if value is not None:
        return value
    remedy = f'give {name}' + ' or min_sep' * len(otherwise)
    raise errors.value_error(
      f'{name}=None: {self.family.name} needs it; {remedy}'
    )

  @property
  def bands(self) -> int:
    """The number of bands of the search.

    If `bands` is not given, the number is the family's default or, without a
    default, min_sep, but at most `most_bands`.

    As long as the bands do not exceed min_sep, more bands never increase the
    loss. With more than min_sep bands, columns of a client's rounds overlap,
    and the sensitivity grows.

    Raises:
      ValueError: neither `bands` nor min_sep is given, or the bands exceed the
        rounds.
    """
    if 'bands' in self.parameters:
      return base.check_few(self['bands'], self.rounds)
    bands = self.needed('bands', self.participation.min_sep)
    return min(bands, self.most_bands())

  def most_bands(self) -> int:
    """Returns the largest number of bands that a search tries.

    The noise of this many bands fits in `memory_copies`. If past normals can be
    drawn again from the key, a search tries up to `_REDRAWN_BANDS` bands under
    any limit. The number is at most `rounds` and, for sampled cohorts, at most
    min_sep.
    """
    limits = [self.rounds]
    if self.noise:
      limits.append(self.participation.min_sep or self.rounds)
    if self.memory_copies is not None:
      redrawn = 0 if self.family.memory.least(self.rounds) else _REDRAWN_BANDS
      limits.append(max(self.memory_copies + 1, redrawn))
    return min(limits)

  def normalized(self, strategy: strategies.Toeplitz) -> strategies.Strategy:
    """Returns the strategy, column-normalised if `column_normalize` is set."""
    if self['column_normalize']:
      return strategies.ColumnNormalized(strategy)
    return strategy


def minimize(
  function: Callable[[np.ndarray], tuple[float, np.ndarray]],
  start: np.ndarray,
  problem: Problem,
  bounds: Optional[Bounds] = None,
  *,
  evaluations: int = 0,
  tolerance: Optional[float] = None,
  corrections: int = 20,
) -> Minimum:
  """Returns the best point that L-BFGS-B evaluates while minimising `function`.

  L-BFGS-B may stop before a minimum, at a kink or because of rounding errors.
  So this function starts it again from the best point until it converges, or
  until it no longer decreases the value, which counts as convergence. Ctrl-C
  ends the search; the result is then the best point so far, and has not
  converged.

  Args:
    function: function from [parameters] float64 to a log loss and its gradient.
      A value counts as larger than all others if it or its gradient is not
      finite.
    start: [parameters] float64, start of the search. If it is empty, the result
      is `start`.
    problem: the largest number of evaluations, and the callback.
    bounds: (low, high) of each parameter; None means no bounds.
    evaluations: number of evaluations of earlier searches, which count too.
    tolerance: the search has converged if an iteration decreases the value by
      less than this; relative if the value is above 1, else absolute. If None,
      the tolerance is `SAMPLED_TOLERANCE` for sampled cohorts, and otherwise
      `TOLERANCE`.
    corrections: number of past gradients that L-BFGS stores; the search takes
      about 2 * `corrections` + 5 times the memory of `start`.

  Raises:
    ValueError: `function` is not finite at `start`.
  """
  best = Minimum(np.asarray(start, np.float64), np.inf, 0, False)
  callback = problem.callback
  if tolerance is None:
    tolerance = SAMPLED_TOLERANCE if problem.noise else TOLERANCE

  def watched(x):
    nonlocal best, evaluations
    value, gradient = function(x)
    evaluations += 1
    if not (np.isfinite(value) and np.all(np.isfinite(gradient))):
      # The line search interpolates values, so it needs a finite value.
      return best.value + max(1.0, abs(best.value)), np.zeros_like(x)
    if value < best.value:
      best = Minimum(x.copy(), float(value), evaluations, False)
    return value, np.asarray(gradient, np.float64)

  interrupted, converged = False, not len(best.x)
  try:
    if converged:
      watched(best.x)
    while not converged:
      before = best.value
      converged = scipy.optimize.minimize(
        watched,
        best.x,
        method='L-BFGS-B',
        jac=True,
        bounds=bounds,
        callback=callback and (lambda _: callback(math.exp(best.value))),
        options={
          'maxcor': corrections,
          'ftol': tolerance,
          'gtol': 1e-9,
          'maxfun': problem.max_evaluations - evaluations,
          'maxiter': problem.max_evaluations,
        },
      ).success
      if evaluations >= problem.max_evaluations:
        break
      converged = converged or before - best.value <= max(tolerance, _NO_GAIN)
  except KeyboardInterrupt:
    if not np.isfinite(best.value):
      raise
    interrupted, converged = True, False
  if not np.isfinite(best.value):
    raise errors.value_error(
      f'start={len(best.x)} parameters: the loss or its gradient is not finite '
      'where the search starts; use another start, fewer rounds, or fewer bands'
    )
  return Minimum(best.x, best.value, evaluations, bool(converged), interrupted)


class Loss(abc.ABC):
  """log (sum_t w_t e_t^p)^(1/p) of the errors e_t of C, scaled to sens(C) = 1.

  Attributes:
    log_weights: [n] float64, log w.
    power: p, >= 1.
    least: least log max(e) so far; infinity at the start.
    best: parameters with this log max(e); empty at the start.
  """

  def __init__(self, problem: Problem):
    """Makes the loss for the rounds and the objective of a problem."""
    with np.errstate(divide='ignore'):
      self.log_weights = np.log(problem.weights)
    self.power = 1.0
    self.least = np.inf
    self.best = np.empty(0)

  @abc.abstractmethod
  def evaluate(self, x: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
    """Returns the loss, its gradient at x, [parameters], and log e, [n]."""

  def __call__(self, x: np.ndarray) -> tuple[float, np.ndarray]:
    """Returns the loss and its gradient at x, [parameters]."""
    value, gradient, log_e = self.evaluate(x)
    most = np.max(log_e)
    if most < self.least:
      self.least, self.best = float(most), x.copy()
    return value, gradient


def search(
  loss: Loss,
  start: np.ndarray,
  problem: Problem,
  bounds: Optional[Bounds] = None,
  *,
  restart: Restart = lambda x, weights: x,
  tolerance: float,
  corrections: int = 20,
) -> Minimum:
  """Returns the parameters of the least log error for sensitivity 1.

  The largest error is minimised by the method of multipliers: the stages
  minimise `loss` with weights w and a power p, and then the weights

    v_t = w_t e_t^(p-1) / sum_s w_s e_s^(p-1)

  replace w, while p grows from 4 to 256, or to 64 for sampled cohorts. If C
  minimises the loss of w and p, it also minimises sum_t v_t e_t, because both
  gradients at C are parallel, e_t is convex in X = C^T C, and X ranges over a
  convex set. So

    sum_t v_t e_t <= least possible max(e) <= max(e)

  and the search ends when sum_t v_t e_t is nearly max(e). If the set of X is
  not convex, the first inequality is not proved; if the two numbers stay apart,
  the search reports that it has not converged.

  Args:
    loss: the loss; its weights and its power change during the search.
    start: see `minimize`.
    problem: the objective, and limits of the search.
    bounds: (low, high) of each parameter; None means no bounds.
    restart: function that returns the start of a stage, see `Restart`.
    tolerance: see `minimize`; sampled cohorts have `SAMPLED_TOLERANCE`.
    corrections: see `minimize`.
  """
  if problem.noise:
    tolerance = SAMPLED_TOLERANCE
  run = functools.partial(
    minimize, loss, bounds=bounds, tolerance=tolerance, corrections=corrections
  )
  if problem.objective != MAX or not len(start):
    return run(start, problem)
  callback, most = problem.callback, problem.max_evaluations
  stage = attrs.evolve(
    problem, callback=callback and (lambda _: callback(math.exp(loss.least)))
  )
  x, evaluations, least = start, 1, _LEAST_WEIGHT
  proved = interrupted = False
  try:
    log_e = loss.evaluate(x)[2]
    powers: Iterable[float] = _POWERS
    if not problem.noise:
      powers = itertools.chain(_POWERS, itertools.repeat(_LAST_POWER))
    for power in powers:
      loss.power, is_last = power, power == _LAST_POWER
      before = scipy.special.logsumexp(loss.log_weights + power * log_e) / power
      size = _STAGE_EVALUATIONS if is_last else _FEW_EVALUATIONS
      weights = scipy.special.softmax(loss.log_weights + (power - 1) * log_e)
      stage = attrs.evolve(stage, max_evaluations=min(size, most - evaluations))
      minimum = run(restart(x, weights), stage)
      x, interrupted = minimum.x, minimum.interrupted
      log_e = loss.evaluate(x)[2]
      evaluations += minimum.evaluations + 1
      weights = scipy.special.softmax(loss.log_weights + (power - 1) * log_e)
      lower_bound = np.log(weights @ np.exp(log_e))
      # The lower bound holds only at a minimum of the loss of this stage. So
      # the decrease of the loss in this stage is added to the gap.
      gap = loss.least - lower_bound + before - minimum.value
      proved = proved or bool(gap <= _GAP)
      if gap <= _MARGIN * _GAP or interrupted or evaluations >= most:
        break
      loss.log_weights = np.log((1 - least) * weights + least / len(weights))
      if is_last:
        least = min(least * (_FALL if minimum.converged else 1), _LATER_WEIGHT)
  except KeyboardInterrupt:
    if not np.isfinite(loss.least):
      raise
    interrupted = True
  return Minimum(
    loss.best, loss.least, evaluations, proved and not interrupted, interrupted
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
