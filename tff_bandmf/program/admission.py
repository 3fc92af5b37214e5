"""The rule that lets a client into a round, and cohorts from outside.

| symbol | name here     | meaning                                        |
|--------|---------------|------------------------------------------------|
| t      | `round_index` | the round                                      |
| l      | `last_round`  | the last round of a client before t, if any    |
| c      | `count`       | rounds of a client before t                    |
| b, k   |               | of the participation schema                    |

A client may take part if c < k and, if it ever did,

  min-sep      t - l >= b
  fixed-epoch  t - l is a multiple of b; with a k below ceil(n / b) it is b

Fixed epochs let a client sit out: what is left is part of a pattern with one
round in every epoch, which weighs at least as much. A k that cuts patterns
short has no such pattern, and there no epoch may be skipped.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from tff_bandmf import errors
from tff_bandmf import participation as participation_lib
from tff_bandmf.program import history as history_lib


def violations(
  participation: participation_lib.Participation,
  rounds: int,
  round_index: int,
  history: history_lib.History,
) -> tuple[np.ndarray, np.ndarray]:
  """Returns who may not take part: too soon, and too often, both [m] bool.

  Args:
    participation: the schema to enforce.
    rounds: n.
    round_index: t, not below any round of the history.
    history: of the clients in question, before t.
  """
  # PRIVACY: c < k and t - l >= b; nothing else enforces them. Guards:
  # cohorts_test.test_schema_holds and admission_test.test_rule_is_the_schema.
  too_often = history.count >= participation.participations(rounds)
  if participation.min_sep is None:
    return np.zeros_like(too_often), too_often
  # More than n rounds apart means once, and l of a client without any must
  # remain far enough away.
  too_soon = history.last_round > round_index - min(
    participation.min_sep, rounds
  )
  if participation.evenly_spaced:
    too_soon |= (history.count > 0) & _off_epoch(
      participation, rounds, round_index - history.last_round.astype(np.int64)
    )
  return too_soon, too_often


def _off_epoch(
  participation: participation_lib.Participation,
  rounds: int,
  gaps: np.ndarray,
) -> np.ndarray:
  min_sep = participation.separation(rounds)
  if participation.participations(rounds) < -(-rounds // min_sep):
    return gaps != min_sep
  return gaps % min_sep != 0


@dataclasses.dataclass(frozen=True, eq=False)
class Admission:
  """A cohort from outside, after the check.

  Attributes:
    admitted: [m] bool, which of its clients may take part.
    too_soon: clients left out since their last round is too close or, with
      fixed epochs, not a whole number of epochs ago; a client that is there
      twice is left out once.
    too_often: other clients left out, which took part as often as they may.
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

  For cohorts that come from outside, where nobody controls who shows up. Call
  it before anything of the round is recorded or released, and record what it
  lets in, `cohort[admitted]`.

  Args:
    cohort: [m] indices or strings.
    round_index: the round, below `rounds`.
    participation: the schema to enforce.
    rounds: n.
    history: of the clients of the cohort in their order, [m]; see `History.of`
      and `Ledger.past`.

  Raises:
    ValueError: the round is past the last, or the history is of others.

  >>> past = history_lib.History.empty(5)
  >>> past.record(3, np.array([0, 1]))
  >>> cohort = np.array([0, 2, 4, 2])
  >>> found = admit(
  ...     cohort, 4, participation_lib.MinSep(2), 9, past.of(cohort))
  >>> cohort[found.admitted].tolist(), found.too_soon, found.too_often
  ([2, 4], 2, 0)
  """
  check_round(round_index, rounds)
  cohort = np.asarray(cohort)
  if len(history.count) != len(cohort):
    raise errors.value_error(
      'history',
      f'{len(history.count)} clients',
      f'must be of the {len(cohort)} clients of the cohort',
      'take it with History.of or Ledger.past',
    )
  too_soon, too_often = violations(participation, rounds, round_index, history)
  # PRIVACY: 0 rounds apart is too soon. Guard:
  # admission_test.test_client_that_is_there_twice_is_admitted_once.
  again = np.ones(len(cohort), bool)
  again[np.unique(cohort, return_index=True)[1]] = False
  too_soon |= again
  return Admission(
    ~(too_soon | too_often),
    int(too_soon.sum()),
    int((too_often & ~too_soon).sum()),
  )


def check_round(round_index: int, rounds: int) -> None:
  """Raises ValueError if the round is not one of `rounds`."""
  if not 0 <= round_index < rounds:
    raise errors.value_error(
      'round_index', round_index, f'must be in [0, {rounds})', 'the run is over'
    )
