"""Who took part when, for a whole population in memory."""

from __future__ import annotations

import dataclasses

import numpy as np

from tff_bandmf import errors

# Twice as far below 0 does not overflow, and no round is as high.
_NEVER = -(2**30)
MAX_ROUNDS = 2**30


@dataclasses.dataclass(frozen=True, eq=False)
class History:
  """Who took part in the rounds before one round; 6 bytes a client.

  Attributes:
    last_round: [clients] int32, the last round of each; far below 0 if none.
    count: [clients] uint16, rounds that each took part in.
  """

  last_round: np.ndarray
  count: np.ndarray

  @classmethod
  def empty(cls, clients: int) -> History:
    """Returns the history of `clients` clients that never took part."""
    return cls(np.full(clients, _NEVER, np.int32), np.zeros(clients, np.uint16))

  def of(self, clients: np.ndarray) -> History:
    """Returns the history of some clients, in their order.

    Args:
      clients: [m] integers, indices; one may be there more than once.

    Raises:
      ValueError: an index is outside the population.
    """
    if len(clients) and not (
      0 <= clients.min() and clients.max() < len(self.count)
    ):
      raise errors.value_error(
        'client',
        f'{clients.min()}..{clients.max()}',
        f'is not among the {len(self.count)} clients',
        'use the population that the run started with',
      )
    return History(self.last_round[clients], self.count[clients])

  def record(self, round_index: int, cohort: np.ndarray) -> None:
    """Adds a round, in place; no client may be twice in the cohort."""
    count = self.count[cohort]
    # PRIVACY: a count that wraps to 0 lets a client in again. Guard:
    # cohorts_test.test_count_that_would_wrap_is_refused.
    if len(count) and count.max() == np.iinfo(count.dtype).max:
      raise errors.value_error(
        'participations',
        int(count.max()),
        'a client cannot have more',
        'use a larger min_sep or fewer rounds',
      )
    self.last_round[cohort] = round_index
    self.count[cohort] = count + 1


class Seen:
  """Who took part in the rounds of a ledger, by identifier.

  A round is added in the time of its cohort, on average, and clients are found
  in theirs: who is new makes a part, and parts that are not twice as large as
  the next one are merged with it. 14 bytes a client.

  Attributes:
    next: the round after the last one that was added.
  """

  def __init__(self):
    self.next = 0
    self._parts: list[tuple[np.ndarray, History]] = []

  def record(self, round_index: int, cohort: np.ndarray) -> None:
    """Adds a round above those that were added.

    Args:
      round_index: the round.
      cohort: [m] int64 identifiers, ascending.
    """
    for known, history in self._parts:
      there, place = _places(known, cohort)
      history.record(round_index, place)
      cohort = cohort[~there]
    new = History.empty(len(cohort))
    new.record(round_index, np.arange(len(cohort)))
    self._parts.append((cohort, new))
    while len(self._parts) > 1 and len(self._parts[-2][0]) < 2 * len(
      self._parts[-1][0]
    ):
      last = self._parts.pop()
      self._parts[-1] = _merged(self._parts[-1], last)
    self.next = round_index + 1

  def of(self, clients: np.ndarray) -> History:
    """Returns the history of clients, [m] int64 identifiers, in their order."""
    found = History.empty(len(clients))
    for known, history in self._parts:
      there, place = _places(known, clients)
      found.last_round[there] = history.last_round[place]
      found.count[there] = history.count[place]
    return found


def _places(
  known: np.ndarray, clients: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """Returns which clients are known, [m] bool, and where those stand."""
  place = np.searchsorted(known, clients)
  there = place < len(known)
  there[there] = known[place[there]] == clients[there]
  return there, place[there]


def _merged(
  one: tuple[np.ndarray, History], other: tuple[np.ndarray, History]
) -> tuple[np.ndarray, History]:
  """Returns two parts, without a client in common, as one."""
  known = np.concatenate([one[0], other[0]])
  order = np.argsort(known, kind='stable')
  return known[order], History(
    np.concatenate([one[1].last_round, other[1].last_round])[order],
    np.concatenate([one[1].count, other[1].count])[order],
  )
