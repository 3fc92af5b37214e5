"""Slack: what the arithmetic of the noise adds to a claim about real numbers.

  exact run:     (epsilon, delta)
  computed run:  epsilon + 2 alpha,
                 e^alpha delta + beta (1 + e^(epsilon + alpha))

with alpha and beta of `arithmetic`, for the strategy of a run. A claim that is
made before the model is known covers N = 2^33 pairs (round, coordinate).
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Optional

from tff_bandmf import _checks, errors, strategies
from tff_bandmf import sensitivity as sensitivity_lib
from tff_bandmf.accounting.arithmetic import cells as cells_lib

# N of a claim that does not know the dimension of the model.
CELLS = 2**33
# A claim whose arithmetic costs more than this part of delta, or more than
# this epsilon, is refused unless it is asked for.
MAX_SLACK = 0.01

# The part of delta that goes to beta where so little proves an alpha.
_SHARE = 1e-4
# Several times the error of float64 in the factors of delta.
_ROUNDING = 1e-12


class Unproved(ValueError):
  """Nothing, or nothing useful, is proved about the arithmetic of a run."""


@dataclasses.dataclass(frozen=True)
class Slack:
  """The cost of arithmetic, added to a claim about real numbers.

  If the exact run is (epsilon, `exact_delta`) then the computed one is
  (epsilon + `epsilon`, exact_delta + `delta`).

  Attributes:
    epsilon: 2 alpha.
    delta: (e^alpha - 1) exact_delta + beta (1 + e^(epsilon + alpha)).
    exact_delta: part of delta for the run in real numbers.
    added: beta (1 + e^(epsilon + alpha)).
  """

  epsilon: float
  delta: float
  exact_delta: float
  added: float

  def total(self, exact_delta: float) -> float:
    """Returns the delta of the computed run for another one of the exact."""
    return min(1.0, math.exp(self.epsilon / 2) * exact_delta + self.added)

  def exact_epsilon(self, epsilon: float) -> float:
    """Returns the epsilon of the exact run, 0 for those below the slack."""
    return max(0.0, epsilon - self.epsilon)

  def below(self, epsilon: float) -> float:
    """Returns what delta gains at an epsilon below the slack."""
    # P <= e^slack P' + delta <= e^epsilon P' + (e^slack - e^epsilon) + delta.
    return max(0.0, math.exp(self.epsilon) - math.exp(epsilon))


@functools.lru_cache
def slack(
  arithmetics: tuple[cells_lib.Arithmetic, ...],
  epsilon: float,
  delta: float,
  largest: float = MAX_SLACK,
  moved: float = 0.0,
) -> Slack:
  """Returns the slack of a claim whose total delta is `delta`.

  Args:
    arithmetics: each one that the run may have; the worst is taken.
    epsilon: at least that of the exact run at `exact_delta`.
    delta: the total, in (0, 1).
    largest: slack in epsilon, and in parts of delta, that is not refused.
    moved: L2 distance between the means of the accounted run and of the exact
      one, in standard deviations of z.

  Raises:
    ValueError: a value out of range.
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
    # alpha is at most `guess` at the end.
    for guess in (2.0**-9, 2.0**-6, 2.0**-3, 1.0):
      beta = accidents + share * delta / (1 + math.exp(epsilon + guess))
      # The first of two steps has half of beta, the second a sixth, for
      # beta/2 + e beta/6 < beta.
      alpha = max(
        each.closeness(beta / 2 if moved else beta) for each in arithmetics
      )
      if moved:
        alpha += moved * (moved / 2 + math.sqrt(2 * math.log(6 / beta)))
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
    slacks: one slack for each run, at this epsilon.
    epsilon: at least that of all runs in real numbers at `exact_delta`.
    delta: the total of all runs.
    largest: largest slack of all runs together; see `slack`.

  Raises:
    Unproved: the slack exceeds `largest`.
  """
  alphas = [each.epsilon / 2 for each in slacks]
  # PRIVACY: the factors of one run after the other multiply. Guard:
  # composition_test.test_slacks_of_runs_add.
  beta = math.fsum(
    each.added / (1 + math.exp(epsilon + alpha))
    for each, alpha in zip(slacks, alphas)
  )
  return _slack(math.fsum(alphas), beta, epsilon, delta, largest)


def _slack(
  alpha: float, beta: float, epsilon: float, delta: float, largest: float
) -> Slack:
  """Returns the slack of proved alpha and beta.

  Raises:
    Unproved: it exceeds `largest`.
  """
  # PRIVACY: P~ <= e^a P + b <= e^a (e^eps (e^a P~' + b) + delta) + b.
  # Guard: slack_test.test_claim_is_tight_where_its_parts_are.
  added = beta * (1 + math.exp(epsilon + alpha)) * (1 + _ROUNDING)
  exact = math.exp(-alpha) * (delta - added) * (1 - _ROUNDING)
  cost = Slack(2 * alpha, delta - exact, exact, added)
  if cost.epsilon > largest or cost.delta > largest * delta:
    raise Unproved(
      errors.invalid(
        f'slack_epsilon={cost.epsilon:.4g}: the arithmetic of the noise adds '
        f'it to epsilon, and {cost.delta / delta:.2g} of delta is lost; more '
        f'than {largest:g} must be asked for; use a coarser lattice, fewer '
        'rounds or coordinates'
      )
    )
  return cost


@dataclasses.dataclass(frozen=True)
class Cost:
  """The cost of arithmetic in runs with one strategy.

  Attributes:
    arithmetics: those that a run may have.
    cut: bound of the L2 norm by which cut weights move a client's
      contributions through C, for clip = 1.
    rounding: bound of the relative error of a sensitivity in float64.
    largest_dimension: d of the largest model that is covered.
    max_slack: that is not refused.
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
    """Returns the cost of a strategy.

    Args:
      strategy: C.
      participations: k, the most rounds of a client.
      sampled: whether cohorts are, which compares all rounds.
      dimension: d of the model; None for all with at most `CELLS` cells.
      max_slack: slack in epsilon, and in parts of delta, that is not refused.

    Raises:
      ValueError: a value out of range.
    """
    if not 0 < max_slack < 1:
      raise errors.value_error(
        f'max_slack={max_slack}: must be in (0, 1); the default is {MAX_SLACK}'
      )
    recursion = strategy.recursion()
    # PRIVACY: windows of y forget what a client did not touch; all else, and
    # a mixture over cohorts, compares every round.
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
      _checks.count('dimension', dimension, 'give that of the model')
      coordinates, cells, largest = dimension, dimension * compared, dimension
    else:
      coordinates, cells = max(1, CELLS // compared), CELLS
      # More participations, or sampled cohorts, may be claimed for its noise.
      largest = cells // strategy.rounds
    arithmetics = [make(coordinates, cells)]
    # PRIVACY: smaller models are covered too, and few coordinates have no law
    # of large numbers. Guard: slack_test.test_claim_covers_smaller_models.
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
    """Returns how much more noise the C of the noise needs, as a factor.

    Its weights are cut, and the sensitivity of C is rounded.

    Args:
      sensitivity: sensitivity in float64, before it is rounded up.
    """
    # PRIVACY: its sensitivity is that of the noise which is really added.
    # Guard: slack_test.test_cut_weights_raise_epsilon.
    return (1 + self.cut / sensitivity) * (1 + self.rounding)

  def slack(self, epsilon: float, delta: float, moved: float = 0.0) -> Slack:
    """Returns the slack of a claim whose total delta is `delta`.

    Args:
      epsilon: at least that of the exact run at `exact_delta`.
      delta: the total.
      moved: shift by cut weights that `more_noise` does not cover; see `slack`.
    """
    return slack(self.arithmetics, epsilon, delta, self.max_slack, moved)

  def least_delta(self, delta: float) -> float:
    """Returns a delta that is below every `exact_delta` of this total."""
    return (1 - self.max_slack) * delta

  def check_dimension(self, dimension: int) -> None:
    """Raises ValueError if a model is larger than those that are covered.

    A claim that names no model counts all rounds, also those that it does not
    compare: another claim for the same noise, of cohorts that are sampled or of
    more participations, compares them, and cannot ask how large the model is.
    """
    # PRIVACY: more cells have more slack than fewer.
    # Guard: slack_test.test_larger_models_have_to_be_named.
    if dimension > self.largest_dimension:
      raise errors.value_error(
        f'dimension={dimension}: must be at most {self.largest_dimension}, '
        f'which the claim covers; give dimension={dimension} where the noise '
        'is calibrated'
      )


def less(epsilon: float, part: Slack) -> float:
  """Returns the epsilon that the exact run must have.

  Raises:
    ValueError: the slack alone exceeds `epsilon`.
  """
  if epsilon <= part.epsilon:
    raise errors.value_error(
      f'epsilon={epsilon}: must exceed what the arithmetic adds, '
      f'{part.epsilon:.3g}; ask for a larger epsilon'
    )
  return epsilon - part.epsilon
