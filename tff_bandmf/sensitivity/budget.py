"""Costs of a client's rounds, and the sensitivity under a budget of cost.

| symbol  | meaning                                                           |
|---------|-------------------------------------------------------------------|
| X       | C^T C                                                             |
| P       | a pattern: the rounds of one client                               |
| C_P     | columns of C for the rounds of P                                  |
| b, k    | `min_sep` and `max_participations` of a `Budget`                  |
| B       | number of bands of C                                              |
| H       | `horizon`: the largest number of rounds that a run may have       |
| c       | first column of a Toeplitz C, its first H terms                   |
| g(l)    | sum_j c_j c_{j+l}                                                 |
| D       | sensitivity; D^2 is the budget of a client                        |

A client with rounds P contributes a vector of norm at most 1 to each of these
rounds. With these vectors as the rows of u, the client changes C times the sums
of the rounds by C_P u, and |C_P u|^2 <= sum_{s,t in P} |X[s, t]|. This sum is
the cost of P. If every admitted P costs at most D^2, then D bounds the
sensitivity, for every number of rounds up to H and for cohorts that depend on
earlier releases. docs/reference/budget.md has the statement and its proof.

For a Toeplitz C, let T[t, s] = c_{t-s} for t < 2 H and s < H, so that every
column of T contains all of c. The C of a run of n <= H rounds is the first n
rows and columns of T. Fewer rows do not increase the norm of a vector, so
|C_P u| <= |T_P u|, and (T^T T)[s, t] = g(t - s) for every n and all signs of c.
"""

from __future__ import annotations

import math
from typing import Optional

import attrs
import numpy as np
import scipy

from tff_bandmf import errors, strategies
from tff_bandmf import participation as participation_lib
from tff_bandmf.sensitivity import gram as gram_lib
from tff_bandmf.sensitivity import result
from tff_bandmf.strategies import base, per_query, recursion

# Integer cost of one round whose column has the largest norm.
_WHOLE = 2**30
# Largest limit of costs, so that sums of costs fit in 64 bits.
_LARGEST = 2**62
# Largest number of entries of X that are stored as costs.
_ENTRIES = 2**24
# Rows of X in one block.
_ROWS = 512
# Longest column whose g is computed without a Fourier transform.
_DIRECT = 2**15


def for_horizon(
  cohorts: participation_lib.Cohorts, strategy: strategies.Strategy
) -> tuple[strategies.Strategy, participation_lib.Cohorts]:
  """Returns C for all rounds that a run may have, and the completed cohorts.

  The completed cohorts have the attributes that follow from C.

  Args:
    cohorts: cohorts of the run.
    strategy: C for the planned rounds.

  Raises:
    ValueError: C cannot be used with the cohorts.
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
    strategy: C for the n planned rounds.
    budget: budget, whose horizon is the number of rounds of the result. A
      horizon of None means 10 n if C is defined for more than n rounds, else n.

  Raises:
    ValueError: the horizon is below n, or C is not defined for so many rounds.
  """
  rounds, horizon = strategy.rounds, budget.horizon
  if horizon is None:
    horizon = 10 * rounds if strategy.goes_on else rounds
  budget.check_horizon(rounds)
  if horizon > rounds and not strategy.goes_on:
    raise errors.value_error(
      f'horizon={horizon}: exceeds rounds={rounds}, and {strategy.family} is '
      'defined for no more; leave it out, or use banded-toeplitz or blt'
    )
  return strategy.of_rounds(horizon)


def completed(
  budget: participation_lib.Budget,
  strategy: strategies.Strategy,
  rounds: Optional[int] = None,
) -> participation_lib.Budget:
  """Returns a budget with the costs of patterns under C.

    D^2 = k g(0) + 2 sum_{0<e<k} (k - e) max_{l >= e b} |g(l)|

  for a Toeplitz C. For other C, D^2 is the square of the bound that the module
  `gram` computes for `budget.reference_schema`, the `MinSep` schema with b and
  k, rounded up. So the cost of a pattern of that schema never exceeds D^2.

  **Formal guarantee.** Assumption: C is the matrix of `strategy`; as under all
  schemas, the accountant covers rounding errors of C.
  Statement: if `costs.total` of P is at most `costs.limit`, then
  |C_P u|^2 <= `costs.limit` `costs.unit` for all u whose rows have norm at most
  1, and for every number of rounds up to the horizon. Source: the docstring of
  this module. Each cost is rounded up and gets an allowance of 64 (B + 64)
  2^-53 g(0), since float64 loses at most B 2^-53 g(0) in a sum of B products.

  Args:
    budget: budget with b and, optionally, k and the horizon.
    strategy: C for all rounds up to the horizon.
    rounds: n, from which k follows if the budget has no k; None for the number
      of rounds of C.

  Raises:
    ValueError: C needs too many costs, the budget does not fit into 64 bits, or
      the horizon of `budget` is not the number of rounds of C.
  """
  digest = strategy.digest()
  if budget.costs is not None and budget.costs.strategy_sha256 == digest:
    return budget
  if budget.horizon not in (None, strategy.rounds):
    raise errors.value_error(
      f'horizon={budget.horizon}: must be rounds={strategy.rounds}; omit it'
    )
  k = budget.reference_schema.participations(rounds or strategy.rounds)
  # PRIVACY: Rounding errors of the costs could admit a pattern above the
  # budget. Each cost includes an allowance for these errors.
  # Guard: budget_test.test_cost_bounds_the_shift_of_every_pattern.
  error = 64 * (strategy.bands + 64) * recursion.UNIT
  # PRIVACY: If a C that is not Toeplitz had one cost for each lag l, costs
  # would be wrong. Only a Toeplitz C is defined for any number of rounds
  # (`goes_on`), and only such a C gets one cost for each lag.
  # Guard: arrivals_test.test_devices_decide_as_the_server_does.
  if strategy.goes_on:
    table, largest = _toeplitz(strategy, error)
    # Any limit is valid, because the sensitivity is computed from the limit.
    most = np.maximum.accumulate(table[0, ::-1])[::-1]
    lags = np.arange(1, k) * budget.min_sep
    lags = lags[lags < len(most)]
    weights = k - np.arange(1, len(lags) + 1)
    limit = k * _WHOLE + 2 * sum(
      int(weight) * int(cost) for weight, cost in zip(weights, most[lags])
    )
  else:
    table, largest = _banded(strategy, error)
    typical = participation_lib.MinSep(budget.min_sep, k)
    value = gram_lib.sensitivity(strategy, typical).value
    # A pattern of k rounds adds up k^2 integer costs. Each is at most 2 above
    # the exact cost.
    limit = math.ceil(value**2 / largest * _WHOLE) + 2 * k * k
  if limit > _LARGEST:
    raise errors.value_error(
      f'max_participations={k}: the budget exceeds 64 bits; increase min_sep'
    )
  table.setflags(write=False)
  return attrs.evolve(
    budget,
    max_participations=k,
    horizon=strategy.rounds,
    costs=participation_lib.Costs(table, limit, largest / _WHOLE, digest),
  )


# PRIVACY: If the sensitivity were below the root of the budget, it would not
# cover all admitted patterns. The result is this root, rounded up.
# Guard: budget_test.test_random_budgets_bound_the_rounds_that_they_admit.
def bound(
  strategy: strategies.Strategy, budget: participation_lib.Budget
) -> result.Sensitivity:
  """Returns an upper bound of the sensitivity of C under a budget."""
  budget = completed(budget, strategy)
  costs = budget.known_costs
  squared = costs.limit * costs.unit * (1 + 8 * recursion.UNIT)
  return result.bound(
    squared,
    'admission by budget: rounds of a client cost at most as much as '
    f'{budget.max_participations} rounds that are {budget.min_sep} apart',
  )


def _toeplitz(
  strategy: strategies.Strategy, error: float
) -> tuple[np.ndarray, float]:
  """Returns integer costs of |g(l)|, [1, bands], and an upper bound of g(0).

  Raises:
    ValueError: c overflows.
  """
  base.check_rounds(strategy.bands)
  with np.errstate(over='ignore', invalid='ignore'):
    column = strategy.first_column()
    assert column is not None  # C is Toeplitz.
    if len(column) <= _DIRECT:
      gram = np.array(
        [column[: len(column) - l] @ column[l:] for l in range(len(column))]
      )
    else:
      gram = scipy.signal.correlate(column, column, method='fft')
      gram = gram[len(column) - 1 :]
  return _rounded_up(per_query.check_finite(gram)[np.newaxis], error)


def _banded(
  strategy: strategies.Strategy, error: float
) -> tuple[np.ndarray, float]:
  """Returns integer costs of |X[s, s + l]|, [n, bands], and a bound of X[s, s].

  Raises:
    ValueError: C does not have few bands.
  """
  rounds, bands = strategy.rounds, strategy.bands
  # PRIVACY: If the table lacked the costs of some rounds, these rounds would
  # cost nothing. A C with too many costs is refused.
  # Guards: arrivals_test.test_device_rule_needs_costs_of_all_rounds and
  # budget_test.test_matrix_of_long_columns_is_refused.
  few = strategy.inverse_bands is None and strategy.buffers is None
  if not (few and bands < rounds):
    raise errors.value_error(
      f'family={strategy.family}: has columns as long as the run; use banded, '
      'banded-toeplitz, blt or banded-inverse'
    )
  if rounds * bands > _ENTRIES:
    raise errors.value_error(
      f'bands={bands}: need more than {_ENTRIES} costs; use banded-toeplitz'
    )
  gram = np.zeros((rounds, bands))
  for start in range(0, rounds, _ROWS):
    first = np.arange(start, min(start + _ROWS, rounds))[:, np.newaxis]
    # PRIVACY: If a pair of rounds were not in the table, it would cost nothing.
    # The table has all pairs within the bands.
    # Guard: arrivals_test.test_device_rule_needs_costs_of_all_rounds.
    second = first + np.arange(bands)
    is_round = second < rounds
    pairs = np.broadcast_to(first, second.shape)[is_round], second[is_round]
    gram[start : start + len(first)][is_round] = strategy.gram_entries(*pairs)
  return _rounded_up(gram, error)


def _rounded_up(gram: np.ndarray, error: float) -> tuple[np.ndarray, float]:
  """Returns integer costs, and the value of |X| for which `_WHOLE` stands.

  Args:
    gram: [rows, lags] float64, entries of X or values of g.
    error: bound of the error of `gram`, relative to its largest entry.
  """
  largest = float(gram[:, 0].max()) * (1 + 2 * error)
  # PRIVACY: Entries of X have float64 errors. If costs were below |X|, patterns
  # would be admitted for which |C_P u|^2 exceeds the budget. A bound of the
  # errors is added to each cost, and each cost is rounded up.
  # Guard: budget_test.test_cost_bounds_the_shift_of_every_pattern.
  table = np.ceil((np.abs(gram) / largest + error) * _WHOLE)
  return np.minimum(table, _WHOLE).astype(np.int64), largest
