"""Sensitivity of C: exact where a theorem applies, else an upper bound.

A participation pattern pi is the set of rounds of one client. With X = C^T C
and P the patterns that a schema allows,

  sens^2 = max_{pi in P} max_{|u_i| <= 1} || sum_{i in pi} C[:, i] u_i^T ||^2

in units of the clipping norm, under zero-out adjacency: one client's
contributions become zero in every round. The contributions u_i are vectors. If
X_ij is negative, the norm can be larger for u_i and u_j of opposite directions,
so all bounds use |X_ij|.
"""

from __future__ import annotations

from typing import Callable

import numpy as np

from tff_bandmf import participation as participation_lib
from tff_bandmf import strategies
from tff_bandmf.sensitivity import budget, gram, result, toeplitz, tree
from tff_bandmf.strategies import base, per_query, recursion


def sensitivity(
  strategy: strategies.Strategy, participation: participation_lib.Participation
) -> result.Sensitivity:
  """Returns the sensitivity of `strategy` under `participation`.

  Args:
    strategy: strategy matrix C.
    participation: schema of the rounds in which one client can take part; every
      privacy claim assumes that all clients keep it.

  Raises:
    TypeError: `strategy` is not a strategy, or `participation` not a schema.
    ValueError: the sensitivity overflows, or C has too many rounds for its
      family.

  >>> from tff_bandmf import participation
  >>> sensitivity(strategies.Identity(2052), participation.MinSep(342))
  Sensitivity(value=2.449489742783178, method='exact', reason='columns of \
one client do not overlap (bands <= min_sep)')
  """
  base.check_strategy(strategy)
  participation_lib.check(participation)
  # PRIVACY: A budget allows patterns that its reference schema (the schema that
  # defines it) does not allow, so a sensitivity under the reference schema
  # could be too small. The sensitivity is computed from the costs of the
  # budget.
  # Guard:
  # budget_test.test_adversary_does_not_exceed_the_budget_but_reaches_it.
  if isinstance(participation, participation_lib.Budget):
    return budget.bound(strategy, participation)
  # A value that overflows is refused after the computation.
  with np.errstate(over='ignore', invalid='ignore'):
    proved = _THEOREMS[strategy.structure](strategy, participation)
  per_query.check_finite(proved.value)
  return proved


def rounding(strategy: strategies.Strategy, participations: int) -> float:
  """Returns a bound of the relative error of a sensitivity in float64.

  Args:
    strategy: strategy matrix C.
    participations: k, largest number of rounds of a client.

  Raises:
    ValueError: rounding errors of C are too large for any bound.
  """
  # PRIVACY: Rounding errors of long sums could make a sensitivity too small.
  # The callers increase the sensitivity by this relative error. `terms` bounds
  # the rounding errors of the sums, in units of 2^-53.
  # Guard: sensitivity_test.test_sums_of_many_participations_are_rounded_up.
  overlaps = min(participations, strategy.bands)
  terms = 8 * overlaps * strategy.rounds + 1000 * participations
  error = strategy.column_error(participations)
  return error + (1 + error) * terms * recursion.UNIT


# Function for each `Strategy.structure`.
_THEOREMS: dict[str, Callable[..., result.Sensitivity]] = {
  base.ANY: gram.sensitivity,
  base.TOEPLITZ: toeplitz.sensitivity,
  base.NORMALIZED_TOEPLITZ: toeplitz.normalized_sensitivity,
  base.TREE: tree.sensitivity,
  base.DECODED_TREE: tree.decoded_sensitivity,
}
