"""The rule by which a participation schema admits a client to a round.

`violations` applies the rule to clients. `admit` applies the rule to a cohort
of clients that checked in by themselves. The sensitivity of a strategy bounds
the effect of every pattern that the rule allows.

| symbol | name here     | meaning                                        |
|--------|---------------|------------------------------------------------|
| n      | `rounds`      | rounds of the run                              |
| t      | `round_index` | index of the round                             |
| l      | `last_round`  | last round of a client before t, if any        |
| c      | `count`       | number of rounds of a client before t          |
| b      |               | `min_sep` of the participation schema          |
| k      |               | largest allowed number of rounds of a client   |

A client may take part in round t if c < k and, for c > 0,

  min-sep      t - l >= b
  fixed-epoch  t - l is a multiple of b; if k < ceil(n / b), t - l = b
  budget       t - l >= `apart`; and, in place of c < k, the rounds of the
               client and round t together cost at most the budget, see `Costs`

An epoch is b rounds. With fixed epochs, a client may skip an epoch if k >=
ceil(n / b): the rounds of the client are then a subset of a pattern with one
round in every epoch, and the sensitivity of a pattern also bounds its subsets.
If k < ceil(n / b), a pattern of the schema has rounds in k consecutive epochs.
A client may stop after fewer rounds, which are a subset of such a pattern. The
rounds of a client that skips an epoch between two of its rounds need not be a
subset of such a pattern, so no client may do so.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from tff_bandmf import errors
from tff_bandmf import participation as participation_lib
from tff_bandmf.cohorts import history as history_lib


def violations(
  participation: participation_lib.Participation,
  rounds: int,
  round_index: int,
  history: history_lib.History,
) -> tuple[np.ndarray, np.ndarray]:
  """Returns which clients come too soon, and which clients come too often.

  **Formal guarantee.** Assumptions: `history` holds every earlier round of the
  clients, each client is in a round at most once, and every round of the run
  takes only clients for which both results are False. Statement: the rounds of
  every client are a pattern that `participation` allows or, for fixed epochs, a
  subset of such a pattern. Let C be the strategy matrix, and x the sums of the
  rounds. If all contributions of one client are zeroed, C x changes in L2 norm
  by at most `sensitivity.sensitivity` times the clip. Source: the schemas of
  `participation`, and the docstring of this module for subsets.

  Args:
    participation: the schema to enforce.
    rounds: n, number of rounds of the run.
    round_index: t, larger than every round of the history.
    history: rounds before t of m clients.

  Returns:
    Two [m] bool arrays: too soon, and too often.
  """
  if isinstance(participation, participation_lib.Budget):
    return _over_budget(participation, round_index, history)
  # PRIVACY: a client with more rounds, or closer rounds, than the schema allows
  # could change C x by more than the sensitivity times the clip. The comparison
  # with k here and the comparison with b below report such a client, and the
  # caller leaves the client out.
  # Guards: cohorts_test.test_schema_holds and
  # admission_test.test_rule_is_the_schema.
  too_often = history.count >= participation.participations(rounds)
  if participation.min_sep is None:
    return np.zeros_like(too_often), too_often
  # For a client without rounds, `last_round` is -2^30, and must not exceed the
  # difference below. So a min_sep above n is replaced by n, which allows the
  # same rounds.
  # PRIVACY: A client that comes back within b rounds can change C x by more
  # than the sensitivity times the clip. Its last round is compared with this
  # round.
  # Guard: admission_test.test_rule_is_the_schema.
  apart = min(participation.min_sep, rounds)
  too_soon = history.last_round > round_index - apart
  if participation.evenly_spaced:
    min_sep = participation.separation(rounds)
    # PRIVACY: Under fixed epochs a client comes back exactly b rounds later, or
    # a multiple of b if its rounds are not limited. Any other round is
    # reported.
    # Guards: cohorts_test.test_fixed_epochs_keep_each_client_to_its_class and
    # admission_test.test_rule_is_the_schema.
    off = round_index - history.last_round.astype(np.int64) - min_sep
    if participation.participations(rounds) >= -(-rounds // min_sep):
      off %= min_sep
    too_soon |= (history.count > 0) & (off != 0)
  return too_soon, too_often


def _over_budget(
  budget: participation_lib.Budget,
  round_index: int,
  history: history_lib.History,
) -> tuple[np.ndarray, np.ndarray]:
  """Returns which clients come too soon, and which exceed the budget."""
  costs = budget.known_costs
  if history.rounds is None:
    raise errors.value_error(
      'history=last rounds: lacks earlier rounds, which a budget needs; use '
      'sampler.history(), or Ledger.past(..., whole=True)'
    )
  # PRIVACY: if a client was admitted under a different C, its earlier rounds
  # can cost more than the budget under this C, and the claim would not cover
  # the client. A history with such a client is refused.
  # Guard: budget_test.test_client_of_another_matrix_is_refused.
  spent = costs.total(history.rounds)
  if np.any(spent > costs.limit):
    raise errors.value_error(
      f'history=cost {int(spent.max())}: exceeds the budget, {costs.limit}: a '
      'client was admitted under another C or schema; continue with the plan '
      'that the run began with'
    )
  this_round = np.full((len(history.rounds), 1), round_index, np.int64)
  # PRIVACY: a client whose rounds cost more than the budget could change C x by
  # more than the sensitivity times the clip. This comparison reports such a
  # client, and the caller leaves the client out.
  # Guard: budget_test.test_no_admitted_pattern_exceeds_the_budget.
  patterns = np.hstack([this_round, history.rounds])
  too_often = costs.total(patterns) > costs.limit
  too_soon = history.last_round > round_index - budget.apart
  return too_soon, too_often


@dataclasses.dataclass(frozen=True, eq=False)
class Admission:
  """The result of `admit`.

  Attributes:
    admitted: [number of entries of the cohort] bool, whether the client of each
      entry may take part.
    too_soon: number of entries that were left out because the last round of the
      client is too close or, with fixed epochs, not an allowed number of rounds
      ago. Repeated entries of a client count as too soon.
    too_often: number of entries that are not too soon and were left out because
      the client took part in k rounds already, or would exceed its budget.
  """

  admitted: np.ndarray
  too_soon: int
  too_often: int


def admit(
  cohort: np.ndarray,
  round_index: int,
  participation: participation_lib.Participation,
  rounds: int,
  history: history_lib.History,
) -> Admission:
  """Returns which clients of a cohort may take part in a round.

  Use this function for clients that checked in. Call it before you record the
  round or release a value of the round. Record only the admitted clients,
  `cohort[admitted]`.

  **Formal guarantee.** Assumption: every cohort of the run passes through
  `admit`, with the history of all earlier rounds, and only `cohort[admitted]`
  is recorded and contributes. Statement: the guarantee of `violations` holds,
  and no client is twice in one round. Source: `violations`.

  Args:
    cohort: [m] client indices or strings; repetitions are allowed.
    round_index: index of the round, in [0, rounds).
    participation: the schema to enforce.
    rounds: n, number of rounds of the run.
    history: earlier rounds of the clients, in the order of the m entries of the
      cohort; see `History.for_clients` and `Ledger.past`.

  Raises:
    ValueError: the round is after the last round, or `history` has another
      length than the cohort.

  >>> past = history_lib.History.empty(5)
  >>> past.record(3, np.array([0, 1]))
  >>> cohort = np.array([0, 2, 4, 2])
  >>> admission = admit(
  ...     cohort, 4, participation_lib.MinSep(2), 9, past.for_clients(cohort))
  >>> admitted = cohort[admission.admitted].tolist()
  >>> admitted, admission.too_soon, admission.too_often
  ([2, 4], 2, 0)
  """
  check_round(round_index, rounds)
  cohort = np.asarray(cohort)
  if len(history.count) != len(cohort):
    raise errors.value_error(
      f'history={len(history.count)} clients: must have the {len(cohort)} of '
      'the cohort; make it with History.for_clients or Ledger.past'
    )
  too_soon, too_often = violations(participation, rounds, round_index, history)
  # PRIVACY: a client that is twice in a cohort would contribute two clipped
  # updates to one sum, but the sensitivity counts one. Only the first entry of
  # a client can be admitted.
  # Guard: admission_test.test_client_that_is_there_twice_is_admitted_once.
  repeated = np.ones(len(cohort), bool)
  repeated[np.unique(cohort, return_index=True)[1]] = False
  # PRIVACY: If a client were twice in a cohort, a second update could enter the
  # sum. Each entry of the client after the first counts as too soon.
  # Guard: admission_test.test_client_that_is_there_twice_is_admitted_once.
  too_soon |= repeated
  # PRIVACY: The report states how many clients broke the rule. A number that is
  # too small would hide violations.
  # Guard: admission_test.test_violators_are_counted_by_reason.
  counts = int(too_soon.sum()), int((too_often & ~too_soon).sum())
  return Admission(~(too_soon | too_often), *counts)


def check_round(round_index: int, rounds: int) -> None:
  """Raises ValueError if the index is not in [0, rounds)."""
  if not 0 <= round_index < rounds:
    raise errors.value_error(
      f'round_index={round_index}: must be in [0, {rounds}); the run is over'
    )
