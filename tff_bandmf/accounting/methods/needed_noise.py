"""Estimates of the noise that a target needs if sampling amplifies privacy.

A search for C minimises error * s(C)^2, where s(C) is the standard deviation of
z / clip at which the run meets a target (epsilon, delta). A search estimates
s(C) for every C from the same samples, so the difference of two estimates is
more precise than each estimate. An estimate claims nothing: the noise of a run
is calibrated with a bound of `monte_carlo` from other samples.

With the symbols of the module `importance`, in units of s, y is drawn from

  R = sum_S w_S N(a m_S + kappa m, 1)

with fixed weights w_S, a >= 0 and kappa. For each direction

  remove: delta = E_R (1 - e^(epsilon - L))_+ P / R
  add:    delta = E_R (1 - e^(epsilon + L))_+ Q / R

where y = a m_S + kappa m + z for fixed draws of S and z. Delta is then a smooth
function of C and s, nearly everywhere. The gradient of s follows from the
implicit function theorem. If H is the gradient of delta by C / s, then

  d log s / dC = -(d delta / dC) / (d delta / d log s) = H / <H, C>

The variable of a kind of cohorts may be another matrix than C, such as the Gram
matrix G of bins. G grows with the square of C, and
d log s / dG = H / (2 <H, G>).
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import math
from typing import Any, Callable, ClassVar, Optional

import numpy as np
import scipy.optimize

from tff_bandmf import _blas, _files, strategies
from tff_bandmf.accounting.methods import gaussian

# Number of float64 values for all samples of one direction, and the limits of
# the number of samples.
_ENTRIES = 2**20
_FEWEST, _MOST = 2**11, 2**15
# Number of samples for the choice of a and kappa.
_PILOTS = 2**8
# Values of a for the direction remove.
_FACTORS = (1.0, 3.0, 5.0)
# A proposal is the distribution R of one direction. If the fraction of its
# samples with a value above 0 is outside this range, kappa is chosen again.
_FRACTIONS = (0.15, 0.9)
# Small steps of a search for log s leave out a direction whose log delta is
# below the larger log delta by more than this number.
_FAR = 0.5
# Proposals are chosen again until the estimated log delta is this close to the
# target.
_CLOSE = 0.3
_LARGEST_SHIFT = 1e4
# A proposal is not used if another proposal has more than this many times its
# delta.
_MISSED = 4
# A search for log s ends after a step of less than `_ROUGH` with few samples,
# and of less than `_PRECISION` with all samples. `_STEP` is its largest step,
# and `_MOST_STEPS` its largest number of steps.
_ROUGH, _PRECISION, _STEP, _MOST_STEPS = 1e-2, 1e-4, 0.4, 50
# Largest distance of a search for log s from its start.
_FARTHEST = 1.5
# The slope of log delta as a function of log s, with which a first search
# starts; the range of this slope for later searches; and the least step that
# gives such a slope.
_SLOPE, _SLOPES, _SLOPE_STEP = -20.0, (-200.0, -2.0), 1e-3
_TINY = 1e-100
# Larger weights occur only if s is far too small.
_LARGEST_LOG_WEIGHT = 100.0


# Maps the gradient by the variable of a kind to the gradient by entries of C.
Pullback = Callable[[np.ndarray], np.ndarray]


@dataclasses.dataclass(frozen=True)
class Proposal:
  """The distribution R of one direction.

  Attributes:
    sign: 1 for the direction remove, -1 for add.
    factor: a.
    shift: kappa.
    law: weights w_S and the draws of S, as the kind of cohorts defines them.
  """

  sign: int
  factor: float
  shift: float
  law: Any = None


@dataclasses.dataclass(frozen=True)
class Estimate:
  """An estimate of delta.

  Attributes:
    delta: mean of the values of the samples.
    fraction: fraction of the samples whose value is above 0.
    margin: median of L - epsilon (remove) or -L - epsilon (add).
    noise: mean square of the values, divided by the square of their mean.
    gradient: gradient of delta by the variable; None if it was not requested.
  """

  delta: float
  fraction: float
  margin: float
  noise: float
  gradient: Optional[np.ndarray] = None


class Model(abc.ABC):
  """Estimates of delta for one C."""

  @abc.abstractmethod
  def with_law(
    self, log_noise: float, proposal: Proposal, count: int
  ) -> Proposal:
    """Returns the proposal with a law that suits C / s, and draws of S.

    Args:
      log_noise: log s.
      proposal: the proposal; its law is ignored.
      count: number of draws.
    """

  def estimate(
    self,
    log_noise: float,
    proposal: Proposal,
    count: int,
    gradient: bool = False,
  ) -> Estimate:
    """Returns the estimate of delta from the first `count` samples.

    Args:
      log_noise: log s.
      proposal: distribution of the samples.
      count: number of samples.
      gradient: whether the gradient by the variable is needed.
    """
    with _blas.one_thread():
      return self._sampled(log_noise, proposal, count, gradient)

  @abc.abstractmethod
  def _sampled(
    self, log_noise: float, proposal: Proposal, count: int, gradient: bool
  ) -> Estimate:
    """Returns the result of `estimate`, computed in one thread."""


class NeededNoise(abc.ABC):
  """The noise s(C) that (epsilon, delta) needs, and its gradient.

  An instance serves one search at a time: each call starts from the result of
  the call before it.

  Attributes:
    degree: exponent with which the variable of the kind grows with C.
    seed: seed of the samples, which only the search uses.
  """

  degree: ClassVar[int]
  seed: ClassVar[int] = 0

  def __init__(self, rounds: int, epsilon: float, delta: float, width: int):
    """Makes the function.

    Args:
      rounds: n, number of rounds.
      epsilon: target epsilon of the whole run.
      delta: target delta of the whole run.
      width: number of float64 values of one sample.
    """
    self.rounds = rounds
    self.epsilon, self.delta = epsilon, delta
    self._count = min(_MOST, max(_FEWEST, _ENTRIES // width))
    # Proposals of remove and add; empty before the first call.
    self._pair: list[Proposal] = []
    self._slope = _SLOPE
    # log s - log |C| of the last call; before the first call, this difference
    # without amplification. At a much smaller s the proposals would be bad.
    noise = gaussian.gaussian_noise_multiplier(epsilon, delta)
    self._log_ratio = math.log(noise)

  @abc.abstractmethod
  def _of_strategy(self, strategy: strategies.Strategy) -> np.ndarray:
    """Returns the variable of the kind for C.

    Raises:
      ValueError: the amplification is not proved for C.
    """

  @abc.abstractmethod
  def _log_scale(self, variable: np.ndarray) -> float:
    """Returns log |C|, a bound of the sensitivity of C."""

  @abc.abstractmethod
  def _of_column(self, column: np.ndarray) -> tuple[np.ndarray, Pullback]:
    """Returns the variable for a Toeplitz C with this first column, [terms]."""

  @abc.abstractmethod
  def _of_columns(self, columns: np.ndarray) -> tuple[np.ndarray, Pullback]:
    """Returns the variable for C[j + s, j] = columns[j, s], [n, bands]."""

  @abc.abstractmethod
  def _model(self, variable: np.ndarray) -> Model:
    """Returns the estimates of delta for C."""

  def to_dict(self) -> _files.JsonObject:
    """Returns the target as JSON, for the cache of searches."""
    return {'epsilon': self.epsilon, 'delta': self.delta, 'seed': self.seed}

  def __repr__(self) -> str:
    return f'{type(self).__name__}({self.to_dict()})'

  def __call__(self, strategy: strategies.Strategy) -> float:
    """Returns s(C).

    Raises:
      ValueError: the amplification is not proved for C.
    """
    variable = self._of_strategy(strategy)
    return math.exp(self._solve(self._model(variable), variable)[0])

  def squared_of_column(self, column: np.ndarray) -> tuple[float, np.ndarray]:
    """Returns s(C)^2 for a Toeplitz C, and its gradient by the first column.

    The result is infinite if C has a negative entry.

    Args:
      column: [terms] float64, first column of C; further terms are 0.
    """
    return self._squared(column, self._of_column)

  def squared_of_columns(self, columns: np.ndarray) -> tuple[float, np.ndarray]:
    """Returns s(C)^2 for C[j + s, j] = columns[j, s], and its gradient.

    The result is infinite if C has a negative entry.

    Args:
      columns: [n, bands] float64.
    """
    return self._squared(columns, self._of_columns)

  def _squared(
    self,
    entries: np.ndarray,
    to_variable: Callable[[np.ndarray], tuple[np.ndarray, Pullback]],
  ) -> tuple[float, np.ndarray]:
    """Returns s^2 and its gradient by entries of C."""
    if not np.min(entries) >= 0:
      return math.inf, np.zeros_like(entries)
    variable, pullback = to_variable(entries)
    model = self._model(variable)
    log_noise, proposal = self._solve(model, variable)
    largest = model.estimate(log_noise, proposal, self._count, gradient=True)
    assert largest.gradient is not None
    # d delta / d log s
    slope = -self.degree * float(np.vdot(largest.gradient, variable))
    if not slope < 0:
      return math.inf, np.zeros_like(entries)
    # A last Newton step, since the slope of log delta is now known.
    log_noise -= self._log_excess(largest) * largest.delta / slope
    squared = math.exp(2 * log_noise)
    return squared, pullback((-2 * squared / slope) * largest.gradient)

  def _log_excess(self, estimate: Estimate) -> float:
    return math.log(max(estimate.delta, _TINY) / self.delta)

  def _solve(
    self, model: Model, variable: np.ndarray
  ) -> tuple[float, Proposal]:
    """Returns log s, at which the larger of both deltas is the target.

    Args:
      model: estimates of delta for C.
      variable: variable of the kind for C.

    Returns:
      log s, and the proposal of the direction with the larger delta.
    """
    log_scale = self._log_scale(variable)
    start = log_scale + self._log_ratio
    fraction = 0.0
    if self._pair:
      log_noise, _ = self._root(model, start, _PILOTS)
      fraction = model.estimate(log_noise, self._pair[0], _PILOTS).fraction
    if not _FRACTIONS[0] <= fraction <= _FRACTIONS[1]:
      # The proposals do not suit C, so `log_noise` is wrong too.
      log_noise = self._begin(model, start)
      log_noise, _ = self._root(model, log_noise, _PILOTS)
    log_noise, largest = self._root(model, log_noise, self._count)
    self._log_ratio = log_noise - log_scale
    return log_noise, largest

  def _begin(self, model: Model, log_noise: float) -> float:
    """Makes the proposals for C, and returns a log s near the result.

    Args:
      model: estimates of delta for C.
      log_noise: start of the search for log s.
    """
    add = Proposal(-1, 0.0, 0.0)
    low, high = -math.inf, math.inf
    slope = _SLOPE
    before: Optional[tuple[float, float]] = None
    for _ in range(_MOST_STEPS):
      removes = []
      for factor in _FACTORS:
        removes.append(_tuned(model, log_noise, Proposal(1, factor, 0.0)))
        if factor > 1 and not removes[-1].shift:
          break
      add = _tuned(model, log_noise, add)
      estimates = [
        model.estimate(log_noise, each, _PILOTS) for each in (*removes, add)
      ]
      # If a proposal draws too few samples with a large loss, its delta is too
      # small. So the largest delta is compared with the target.
      excess = max(self._log_excess(each) for each in estimates)
      if abs(excess) < _CLOSE:
        break
      low, high = (log_noise, high) if excess > 0 else (low, log_noise)
      if before is not None:
        change = (excess - before[1]) / (log_noise - before[0])
        slope = float(np.clip(change, *_SLOPES))
      before = log_noise, excess
      log_noise -= max(-_STEP, min(_STEP, excess / slope))
      if not low < log_noise < high:
        log_noise = (low + high) / 2
    least = max(each.delta for each in estimates[:-1]) / _MISSED
    remove, _ = min(
      zip(removes, estimates),
      key=lambda pair: pair[1].noise if pair[1].delta >= least else math.inf,
    )
    self._pair = [
      model.with_law(log_noise, each, self._count) for each in (remove, add)
    ]
    return log_noise

  def _root(
    self, model: Model, start: float, count: int
  ) -> tuple[float, Proposal]:
    """Returns log s at which the largest delta of the proposals is the target.

    At a log s far from the start, the proposals draw too few samples with a
    large loss. The search ends before its distance from the start exceeds
    `_FARTHEST`.

    Args:
      model: estimates of delta for C.
      start: start of the search for log s.
      count: number of samples.

    Returns:
      log s, and the proposal with the largest delta.
    """

    def excesses(log_noise):
      estimates = (model.estimate(log_noise, each, count) for each in near)
      return [self._log_excess(each) for each in estimates]

    near = self._pair
    log_noise, slope = start, self._slope
    values = excesses(start)
    precision = _ROUGH if count == _PILOTS else _PRECISION
    for _ in range(_MOST_STEPS):
      value = max(values)
      step = max(-_STEP, min(_STEP, -value / slope))
      if abs(log_noise + step - start) > _FARTHEST:
        break
      log_noise += step
      if abs(step) < precision:
        break
      if abs(step) < _ROUGH:
        near = [x for x, y in zip(near, values) if y > value - _FAR]
      values = excesses(log_noise)
      if (max(values) - value) * step < 0:
        slope = (max(values) - value) / step
        if abs(step) > _SLOPE_STEP:
          self._slope = float(np.clip(slope, *_SLOPES))
    return log_noise, near[int(np.argmax(values))]


def estimate(
  loss: np.ndarray, log_ratio: np.ndarray, sign: int, margins: np.ndarray
) -> tuple[Estimate, np.ndarray, np.ndarray]:
  """Returns the estimate of delta, without its gradient, from samples.

  Args:
    loss: L of the samples with a margin above 0.
    log_ratio: ln(R / Q) of these samples.
    sign: 1 for the direction remove, -1 for add.
    margins: [count] float64, L - epsilon or -L - epsilon of all samples.

  Returns:
    The estimate, the weighted values above 0, and their derivatives by L.
  """
  log_weights = loss - log_ratio if sign > 0 else -log_ratio
  weights = np.exp(np.minimum(log_weights, _LARGEST_LOG_WEIGHT))
  rest = weights * np.exp(-margins[margins > 0])
  values, count = weights - rest, len(margins)
  delta = float(values.sum()) / count
  square = float(values @ values) / count
  noise = square / delta**2 if delta > _TINY else math.inf
  return (
    Estimate(delta, len(values) / count, float(np.median(margins)), noise),
    values,
    weights if sign > 0 else -rest,
  )


def _tuned(model: Model, log_noise: float, proposal: Proposal) -> Proposal:
  """Returns the proposal with a kappa for which half of the values exceed 0.

  If more than half exceed 0 at kappa = 0, kappa is 0, and a is decreased until
  half of the values exceed 0, but not below 1.
  """

  def at(factor, shift):
    signed = proposal.sign * shift
    proposed = dataclasses.replace(proposal, factor=factor, shift=signed)
    return model.with_law(log_noise, proposed, _PILOTS)

  @functools.cache
  def margin(factor, shift):
    return model.estimate(log_noise, at(factor, shift), _PILOTS).margin

  def root(function, low, high):
    return scipy.optimize.brentq(function, low, high, xtol=0.01, rtol=0.03)

  factor = proposal.factor
  if margin(factor, 0.0) >= 0:
    if factor > 1 and margin(1.0, 0.0) < 0:
      return at(root(lambda a: margin(a, 0.0), 1.0, factor), 0.0)
    return at(min(factor, 1.0), 0.0)
  high = max(4.0, 1.5 * abs(proposal.shift))
  while margin(factor, high) < 0:
    high *= 3
    if high > _LARGEST_SHIFT:
      return at(factor, 0.0)
  return at(factor, root(lambda shift: margin(factor, shift), 0.0, high))
