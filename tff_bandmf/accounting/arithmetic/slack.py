"""Slack: the additions to epsilon and delta for the arithmetic of the noise.

  exact run:     (epsilon, delta)
  computed run:  epsilon + 2 alpha,
                 e^alpha delta + beta (1 + e^(epsilon + alpha))

The exact run has noise in real numbers, and (epsilon, delta) is its claim. The
computed run has the noise of the program. The module `cells` defines alpha and
beta. A claim that is made before the size of the model is known covers N = 2^33
pairs (round, coordinate) that one client can influence.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Optional

from tff_bandmf import _checks, errors, strategies
from tff_bandmf import sensitivity as sensitivity_lib
from tff_bandmf.accounting.arithmetic import cells as cells_lib

# N of a claim that is made before the size of the model is known.
CELLS = 2**33
# Default limit of the slack, in epsilon and as a fraction of delta.
MAX_SLACK = 0.01

# The least fraction of delta that is tried for beta. If it proves no alpha,
# larger fractions are tried.
_SHARE = 1e-4
# Relative allowance for rounding errors in delta, with ample margin.
_ROUNDING = 1e-12
# Steps of the search for the largest epsilon that is proved, and the fraction
# of it that a message names.
_HALVINGS = 20
_BELOW_LARGEST = 0.995


class Unproved(ValueError):
  """No slack within the limit is proved for the arithmetic of a run."""


@dataclasses.dataclass(frozen=True)
class Slack:
  """The additions to epsilon and delta of an exact run.

  If the exact run is (E, `exact_delta`)-DP, then the computed run is
  (E + `epsilon`, `exact_delta` + `delta`)-DP.

  Attributes:
    epsilon: addition to epsilon, 2 alpha >= 0.
    delta: addition to delta, (e^alpha - 1) exact_delta + added, >= 0.
    exact_delta: delta of the exact run.
    added: beta (1 + e^(E + alpha)), >= 0.
  """

  epsilon: float
  delta: float
  exact_delta: float
  added: float

  def total(self, exact_delta: float) -> float:
    """Returns the delta of the computed run for a delta of the exact run."""
    return min(1.0, math.exp(self.epsilon / 2) * exact_delta + self.added)

  def exact_epsilon(self, epsilon: float) -> float:
    """Returns `epsilon` minus the slack: epsilon of the exact run, >= 0."""
    return max(0.0, epsilon - self.epsilon)

  def extra_delta(self, epsilon: float) -> float:
    """Returns the addition to delta if `epsilon` is below the slack, else 0.

    Args:
      epsilon: epsilon of the claim, >= 0.
    """
    # P <= e^slack P' + delta <= e^epsilon P' + (e^slack - e^epsilon) + delta.
    return max(0.0, math.exp(self.epsilon) - math.exp(epsilon))


@functools.lru_cache
def slack(
  arithmetics: tuple[cells_lib.Arithmetic, ...],
  epsilon: float,
  delta: float,
  largest: float = MAX_SLACK,
  mean_shift: float = 0.0,
) -> Slack:
  """Returns the slack of a claim about a computed run.

  Args:
    arithmetics: parameters of each arithmetic that the run may have; the slack
      covers each of them.
    epsilon: upper bound of the exact run's epsilon at `Slack.exact_delta`.
    delta: delta of the computed run, in (0, 1).
    largest: limit of the slack, in epsilon and as a fraction of delta.
    mean_shift: L2 norm by which cut weights (see `Cost`) move the means of the
      exact run, in standard deviations of z.

  Raises:
    ValueError: a value is out of range.
    Unproved: the slack exceeds `largest`.
  """
  _checks.nonnegative('epsilon', epsilon, 'typical values are 0.1 to 20')
  _checks.positive('delta', delta, 'use less than 1 / population')
  accidents = max(each.accidents for each in arithmetics)
  weight = math.exp(min(epsilon + 1, 300.0)) + 1
  if accidents * weight >= largest / 2 * delta:
    raise Unproved(
      errors.invalid(
        f'delta={delta}: the arithmetic of the noise proves no '
        f'epsilon={epsilon:.4g} at so small a delta; use a larger delta, or '
        'more noise'
      )
    )
  for share in (_SHARE, 10 * _SHARE, largest / 2):
    # If alpha <= `guess`, the part `beta` - `accidents` of beta adds at most
    # `share` times delta to delta.
    for guess in (2.0**-9, 2.0**-6, 2.0**-3, 1.0):
      beta = accidents + share * delta / (1 + math.exp(epsilon + guess))
      # If cut weights shift the means, beta / 2 is for the arithmetic and
      # beta / 6 for the shift. Together they need at most
      # beta / 2 + e^alpha beta / 6 < beta, since alpha <= 1.
      alpha = max(
        each.closeness(beta / 2 if mean_shift else beta) for each in arithmetics
      )
      if mean_shift:
        alpha += mean_shift * (
          mean_shift / 2 + math.sqrt(2 * math.log(6 / beta))
        )
      if alpha <= guess:
        return _slack(alpha, beta, epsilon, delta, largest)
  raise Unproved(
    errors.invalid(
      'slack_epsilon=infinite: the arithmetic of the noise proves no epsilon; '
      'use a coarser lattice, or fewer rounds or coordinates'
    )
  )


def together(
  slacks: Sequence[Slack], epsilon: float, delta: float, largest: float
) -> Slack:
  """Returns the slack of several runs on the same clients.

  Args:
    slacks: one slack for each run, computed at `epsilon`.
    epsilon: upper bound of the epsilon of all exact runs together, at
      `Slack.exact_delta`.
    delta: delta of all computed runs together.
    largest: limit of the slack of all runs together, in epsilon and as a
      fraction of delta.

  Raises:
    Unproved: the slack exceeds `largest`.
  """
  alphas = [each.epsilon / 2 for each in slacks]
  # PRIVACY: The factors e^alpha of the runs multiply, and their betas add up,
  # so the slack of one run would be too small for all runs together. The alphas
  # and the betas of all runs are added.
  # Guard: composition_test.test_slacks_of_runs_add.
  beta = math.fsum(
    each.added / (1 + math.exp(epsilon + alpha))
    for each, alpha in zip(slacks, alphas)
  )
  return _slack(math.fsum(alphas), beta, epsilon, delta, largest)


def _slack(
  alpha: float, beta: float, epsilon: float, delta: float, largest: float
) -> Slack:
  """Returns the slack that follows from alpha and beta.

  Raises:
    Unproved: the slack exceeds `largest`.
  """
  # PRIVACY: The claim compares the computed runs P~ and P~' of two neighbouring
  # data sets, and both differ from the exact runs P and P'. A slack for only
  # one difference would be too small. Alpha and beta count twice: if a = alpha
  # and b = beta, P~ <= e^a P + b <= e^a (e^eps (e^a P~' + b) + delta) + b.
  # Guard: slack_test.test_claim_is_tight_where_its_parts_are.
  added = beta * (1 + math.exp(epsilon + alpha)) * (1 + _ROUNDING)
  exact = math.exp(-alpha) * (delta - added) * (1 - _ROUNDING)
  cost = Slack(2 * alpha, delta - exact, exact, added)
  if cost.epsilon > largest or cost.delta > largest * delta:
    raise Unproved(
      errors.invalid(
        f'slack_epsilon={cost.epsilon:.4g}: the arithmetic of the noise adds '
        f'it to epsilon, and {cost.delta / delta:.2g} of delta to delta; both '
        f'must be at most {largest:g}; use more noise, or fewer rounds or '
        'coordinates'
      )
    )
  return cost


@dataclasses.dataclass(frozen=True)
class Cost:
  """The bounds from which the slack of runs with one strategy follows.

  The recursion of the noise has weights. They are cut to multiples of a power
  of two. The noise is therefore C'^-1 Z for a matrix C' that differs slightly
  from the strategy's C.

  Attributes:
    arithmetics: parameters of the run's arithmetic: for the largest model, and
      for models with few coordinates if the largest model has many.
    cut: bound of |(C' - C) G|, where G has the contributions of one client; L2
      norm, for clip = 1.
    rounding: bound of the relative error of the sensitivity in float64.
    largest_dimension: number of coordinates of the largest model covered.
    max_slack: limit of the slack, in epsilon and as a fraction of delta.
  """

  arithmetics: tuple[cells_lib.Arithmetic, ...]
  cut: float
  rounding: float
  largest_dimension: int
  max_slack: float

  @staticmethod
  def of(
    strategy: strategies.Strategy,
    participations: int,
    *,
    sampled: bool,
    dimension: Optional[int] = None,
    max_slack: float = MAX_SLACK,
  ) -> Cost:
    """Returns the bounds for a strategy.

    Args:
      strategy: strategy matrix C.
      participations: k, largest number of rounds of a client.
      sampled: whether cohorts are drawn at random. If True, a client can
        influence all rounds.
      dimension: d, number of coordinates of the model; None for all models with
        at most `CELLS` pairs (round, coordinate) that a client can influence.
      max_slack: limit of the slack, in epsilon and as a fraction of delta.

    Raises:
      ValueError: a value is out of range.
    """
    if not 0 < max_slack < 1:
      raise errors.value_error(
        f'max_slack={max_slack}: must be in (0, 1); the default is {MAX_SLACK}'
      )
    recursion = strategy.recursion()
    # PRIVACY: Slack for fewer rounds than a client can influence would be too
    # small. If cohorts are sampled, all rounds count. If they are not,
    # `recursion.cells` counts fewer rounds only if C is banded and a round's
    # noise is computed from y of the rounds just before it.
    # Guard: slack_test.test_cells_are_the_compared_ones.
    compared = strategy.rounds if sampled else recursion.cells(participations)
    scales = recursion.scales
    feedback = (
      math.sqrt(strategy.rounds)
      * recursion.rho
      * float(max(scales) / min(scales))
    )

    def make(coordinates, cells):
      return cells_lib.Arithmetic(
        cells=cells,
        rho=recursion.rho,
        shift=recursion.shift,
        feedback=feedback,
        rounds=strategy.rounds,
        dimension=coordinates,
      )

    if dimension is not None:
      _checks.count('dimension', dimension, 'the coordinates of the model')
      coordinates, cells, largest = dimension, dimension * compared, dimension
    else:
      coordinates, cells = max(1, CELLS // compared), CELLS
      # A later claim about the same noise may be for a larger k or for sampled
      # cohorts, and may then count all rounds.
      largest = cells // strategy.rounds
    arithmetics = [make(coordinates, cells)]
    # PRIVACY: The claim covers models with few coordinates as well. With few
    # coordinates the mean of m^2 may be far above its expectation, so the slack
    # of the largest model would be too small for them. Their arithmetic is
    # added, and `slack` takes the larger alpha.
    # Guard: slack_test.test_claim_covers_smaller_models.
    few = cells_lib.many_coordinates(strategy.rounds) - 1
    if few < coordinates:
      arithmetics.append(make(few, few * compared))
    return Cost(
      tuple(arithmetics),
      participations * recursion.cut_norm,
      sensitivity_lib.rounding(strategy, participations),
      largest,
      max_slack,
    )

  def more_noise(self, sensitivity: float) -> float:
    """Returns a factor >= 1 for the noise, which covers cut weights.

    Args:
      sensitivity: sensitivity of C in float64, before it is rounded up.
    """
    # PRIVACY: The matrix with cut weights may have a larger sensitivity than C,
    # and noise for the sensitivity of C would be too small. The factor bounds
    # the ratio of the two sensitivities, and covers the rounding error of
    # `sensitivity`.
    # Guard: slack_test.test_cut_weights_raise_epsilon.
    return (1 + self.cut / sensitivity) * (1 + self.rounding)

  def slack(
    self, epsilon: float, delta: float, mean_shift: float = 0.0
  ) -> Slack:
    """Returns the slack of a claim about a computed run.

    Args:
      epsilon: upper bound of the exact run's epsilon at `Slack.exact_delta`.
      delta: delta of the computed run.
      mean_shift: L2 norm by which cut weights move the means, in standard
        deviations of z; 0 for a claim whose noise includes the factor
        `more_noise`.

    Raises:
      ValueError: a value is out of range.
      Unproved: the slack exceeds `max_slack`. If it does not for a smaller
        epsilon or a larger delta, the message names the value.
    """

    def part(epsilon: float, delta: float) -> Slack:
      return slack(self.arithmetics, epsilon, delta, self.max_slack, mean_shift)

    try:
      return part(epsilon, delta)
    except Unproved as error:
      best = _largest(lambda each: part(each, delta), epsilon)
      text = f'epsilon={best:.3g}'
      if not best:
        digits = _largest(lambda x: part(epsilon, 10**-x), -math.log10(delta))
        if not digits:
          raise
        text = f'delta={10**-digits:.3g}'
      more = 'less' if best else 'more'
      raise Unproved(
        errors.invalid(
          f'epsilon={epsilon:.4g}: the arithmetic of the noise does not prove '
          f'it at delta={delta:g}; use {text} or {more}, or more noise'
        )
      ) from error

  def least_delta(self, delta: float) -> float:
    """Returns a lower bound of `Slack.exact_delta`.

    Args:
      delta: delta of the computed run.
    """
    return (1 - self.max_slack) * delta

  def check_dimension(self, dimension: int) -> None:
    """Raises ValueError if a model has more coordinates than are covered."""
    # PRIVACY: The slack and epsilon of the claim could be too small for a model
    # with more coordinates than the claim covers. Such a model is refused.
    # Guard: slack_test.test_larger_models_have_to_be_named.
    if dimension > self.largest_dimension:
      raise errors.value_error(
        f'dimension={dimension}: must be at most {self.largest_dimension}, '
        f'which the claim covers; give dimension={dimension} where the noise '
        'is calibrated'
      )


def _largest(part: Callable[[float], Slack], high: float) -> float:
  """Returns nearly the largest value below `high` that has a slack, else 0.

  Args:
    part: function from a value > 0 to a slack; it raises `Unproved` for every
      value above the largest.
    high: a value for which `part` raises.
  """
  low = 0.0
  for _ in range(_HALVINGS):
    middle = (low + high) / 2
    try:
      part(middle)
      low = middle
    except Unproved:
      high = middle
  # The claim of a target epsilon looks at a slightly larger epsilon, so the
  # result is a bit smaller, and its three digits are rounded down.
  digits = 2 - math.floor(math.log10(low)) if low else 0
  return math.floor(_BELOW_LARGEST * low * 10**digits) / 10**digits


def less(epsilon: float, part: Slack) -> float:
  """Returns the target epsilon of the exact run: `epsilon` minus the slack.

  Args:
    epsilon: target epsilon of the computed run.
    part: slack of the computed run.

  Raises:
    ValueError: the slack alone exceeds `epsilon`.
  """
  if epsilon <= part.epsilon:
    raise errors.value_error(
      f'epsilon={epsilon}: must exceed slack_epsilon={part.epsilon:.3g}, '
      'which the arithmetic of the noise adds; use a larger epsilon'
    )
  return epsilon - part.epsilon
