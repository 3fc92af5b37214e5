"""The cost of a client's rounds, and the sensitivity where it is enforced.

| symbol  | meaning                                                           |
|---------|-------------------------------------------------------------------|
| X       | C^T C                                                             |
| P       | a pattern: the rounds of one client                               |
| H       | `horizon`: the rounds up to which a run may go on                 |
| c       | first column of a Toeplitz C, its first H terms                   |
| g(l)    | sum_j c_j c_{j+l}                                                 |
| D       | sensitivity; D^2 is the budget of a client                        |

A client with rounds P moves C G by D^2 = |C_P u|^2 <= sum_{s,t in P} |X[s, t]|
at most, as contributions u are vectors of norm 1. So if every admitted P costs
at most D^2, then D bounds the sensitivity: of every pattern at once, of every
end of the run up to H, and of cohorts that depend on earlier releases.
docs/reference/budget.md has the statement and its proof.

For a Toeplitz C, let T be the matrix of H columns, each of which has c whole:
T[t, s] = c_{t-s}, t < 2 H. A run of n <= H rounds has the first n rows and
columns of T. Rows that are left out only shorten a vector, so that |C_P u| is
at most |T_P u|. And T^T T [s, t] = g(t - s), whatever n is and of whatever sign
c is.
"""

from __future__ import annotations

import math
from typing import Optional

import attrs
import numpy as np
import scipy.signal

from tff_bandmf import errors, strategies
from tff_bandmf import participation as participation_lib
from tff_bandmf.sensitivity import gram as gram_lib
from tff_bandmf.sensitivity import result
from tff_bandmf.strategies import base, recursion

# Cost of the round of largest norm.
_WHOLE = 2**30
# Costs of so many patterns, and of any client, fit in 64 bits.
_LARGEST = 2**62
# Entries of X that are held.
_ENTRIES = 2**24
# Rows of X that are computed at a time.
_ROWS = 512
# Longer columns are correlated by Fourier transforms.
_DIRECT = 2**15


def of_run(
  cohorts: participation_lib.Cohorts, strategy: strategies.Strategy
) -> tuple[strategies.Strategy, participation_lib.Cohorts]:
  """Returns C for all rounds that a run may have, and its cohorts with values.

  Args:
    cohorts: cohorts of the run.
    strategy: C, for the rounds that are planned.

  Raises:
    ValueError: C does not go with the cohorts.
  """
  if not isinstance(cohorts, participation_lib.Budget):
    return strategy, cohorts.for_bands(strategy.bands)
  longer = until(strategy, cohorts)
  return longer, completed(cohorts, longer, strategy.rounds)


def until(
  strategy: strategies.Strategy, budget: participation_lib.Budget
) -> strategies.Strategy:
  """Returns C for the horizon of a budget.

  Args:
    strategy: C, for the rounds n that are planned.
    budget: whose horizon is that of the result; None is 10 n or n.

  Raises:
    ValueError: the horizon is below n, or C does not go on to it.
  """
  rounds, horizon = strategy.rounds, budget.horizon
  if horizon is None:
    horizon = 10 * rounds if strategy.goes_on else rounds
  budget.check_horizon(rounds)
  if horizon > rounds and not strategy.goes_on:
    raise errors.value_error(
      f'horizon={horizon}: exceeds rounds={rounds}, and the C of '
      f'{strategy.family} is for these: it is not Toeplitz with few '
      'bands or buffers; leave it out, or use banded-toeplitz or blt'
    )
  return strategy.of_rounds(horizon)


def completed(
  budget: participation_lib.Budget,
  strategy: strategies.Strategy,
  rounds: Optional[int] = None,
) -> participation_lib.Budget:
  """Returns a budget with the costs of patterns under C.

    D^2 = k g(0) + 2 sum_{0<e<k} (k - e) max_{l >= e b} |g(l)|

  for a Toeplitz C, and the squared bound of `gram` under `typical` for others,
  so that no pattern of `typical` is turned away for its cost.

  **Formal guarantee.** Statement: every P with `costs.total` <= `costs.limit`
  has |C_P u|^2 <= `costs.limit` `costs.unit` for all u of vectors of norm 1,
  whatever number of rounds there is up to the horizon. Assumption: C is what
  `strategy` says; `rounding` and `cut_norm` have what float64 adds, as for
  every schema. Source: the docstring of this module. Each h is rounded up, and
  has 64 (B + 64) 2^-53 g(0) more, as float64 loses B 2^-53 g(0) at most in a
  sum of B products.

  Args:
    budget: b, k, and how far rounds are apart.
    strategy: C, for all rounds up to the horizon.
    rounds: n, from which k follows where the budget has none; None is those of
      C.

  Raises:
    ValueError: C has no costs that few numbers give, or another horizon.
  """
  digest = strategy.digest()
  if budget.costs is not None and budget.costs.strategy_sha256 == digest:
    return budget
  if budget.horizon not in (None, strategy.rounds):
    raise errors.value_error(
      f'horizon={budget.horizon}: is not the rounds={strategy.rounds} '
      'of C; give a C for all rounds up to the horizon, as a plan '
      'does'
    )
  k = budget.typical.participations(rounds or strategy.rounds)
  slack = 64 * (strategy.bands + 64) * recursion.UNIT
  if strategy.goes_on:
    table, largest = _toeplitz(strategy, slack)
    # Whatever the limit is, the sensitivity follows it.
    most = np.maximum.accumulate(table[0, ::-1])[::-1]
    lags = np.arange(1, k) * budget.min_sep
    lags = lags[lags < len(most)]
    weights = k - np.arange(1, len(lags) + 1)
    limit = k * _WHOLE + 2 * sum(
      int(weight) * int(cost) for weight, cost in zip(weights, most[lags])
    )
  else:
    table, largest = _banded(strategy, slack)
    typical = participation_lib.MinSep(budget.min_sep, k)
    value = gram_lib.sensitivity(strategy, typical).value
    # Each of k^2 entries is at most 2 more than X has.
    limit = math.ceil(value**2 / largest * _WHOLE) + 2 * k * k
  if limit > _LARGEST:
    raise errors.value_error(
      f'max_participations={k}: makes a budget that 64 bits do not '
      'hold; use a larger min_sep, or fewer participations'
    )
  table.setflags(write=False)
  return attrs.evolve(
    budget,
    max_participations=k,
    horizon=strategy.rounds,
    costs=participation_lib.Costs(table, limit, largest / _WHOLE, digest),
  )


def bound(
  strategy: strategies.Strategy, budget: participation_lib.Budget
) -> result.Sensitivity:
  """Returns the sensitivity of C where a budget is enforced, an upper bound."""
  budget = completed(budget, strategy)
  costs = budget.known_costs
  squared = costs.limit * costs.unit * (1 + 8 * recursion.UNIT)
  return result.bound(
    squared,
    'admission by budget: rounds of a client cost at most that of '
    f'{budget.max_participations} rounds that are {budget.min_sep} apart',
  )


def _toeplitz(
  strategy: strategies.Strategy, slack: float
) -> tuple[np.ndarray, float]:
  """Returns h, [1, lags], and at least g(0).

  Raises:
    ValueError: c overflows.
  """
  base.check_rounds(strategy.bands)
  with np.errstate(over='ignore', invalid='ignore'):
    column = strategy.first_column()
    assert column is not None  # As C is Toeplitz.
    if len(column) <= _DIRECT:
      gram = np.array(
        [column[: len(column) - l] @ column[l:] for l in range(len(column))]
      )
    else:
      gram = scipy.signal.correlate(column, column, method='fft')
      gram = gram[len(column) - 1 :]
  if not np.all(np.isfinite(gram)):
    raise errors.value_error(
      f'family={strategy.family}: entries of C overflow; use fewer '
      'rounds, or a C^-1 whose series has no root in the unit disc'
    )
  return _rounded_up(gram[np.newaxis], slack)


def _banded(
  strategy: strategies.Strategy, slack: float
) -> tuple[np.ndarray, float]:
  """Returns h, [n, bands], and at least max_s X[s, s].

  Raises:
    ValueError: C does not have few bands.
  """
  rounds, bands = strategy.rounds, strategy.bands
  few = strategy.inverse_bands is None and strategy.buffers is None
  if not (few and bands < rounds):
    raise errors.value_error(
      f'family={strategy.family}: has columns as long as the run, and '
      'what a round costs a client grows with its length: a budget '
      'needs few bands, or a Toeplitz C with few bands of C or C^-1, '
      'or buffers; use banded, banded-toeplitz, blt or banded-inverse'
    )
  if rounds * bands > _ENTRIES:
    raise errors.value_error(
      f'bands={bands}: and rounds={rounds} give more than {_ENTRIES} '
      'costs; use a Toeplitz C, such as banded-toeplitz, whose costs '
      'are few'
    )
  gram = np.zeros((rounds, bands))
  for start in range(0, rounds, _ROWS):
    first = np.arange(start, min(start + _ROWS, rounds))[:, np.newaxis]
    second = first + np.arange(bands)
    is_round = second < rounds
    pairs = np.broadcast_to(first, second.shape)[is_round], second[is_round]
    gram[start : start + len(first)][is_round] = strategy.gram_entries(*pairs)
  return _rounded_up(gram, slack)


def _rounded_up(gram: np.ndarray, slack: float) -> tuple[np.ndarray, float]:
  """Returns |X| as integers, and what `_WHOLE` of them are at least."""
  largest = float(gram[:, 0].max()) * (1 + 2 * slack)
  # PRIVACY: a cost below |X| would admit patterns that move a run by more than
  # the budget. It is rounded up, with more than float64 can lose.
  # Guard: budget_test.test_cost_bounds_the_shift_of_every_pattern.
  table = np.ceil((np.abs(gram) / largest + slack) * _WHOLE)
  return np.minimum(table, _WHOLE).astype(np.int64), largest
