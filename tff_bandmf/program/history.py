"""Who took part when, for a whole population in memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np

from tff_bandmf import errors

# Twice as far below 0 does not overflow, and no round is as high.
_NEVER = -(2**30)
MAX_ROUNDS = 2**30
# That a count of 16 bits holds.
_MOST = 2**16 - 1
# Participations that are sorted together: 60 bytes each for a moment.
_BLOCK = 2**24


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
    self.add(cohort, History(np.array(round_index), np.array(1)))

  def add(self, clients: np.ndarray, later: History) -> None:
    """Adds later rounds of different clients, in place."""
    count = _counted(self.count[clients].astype(np.int64) + later.count)
    self.last_round[clients] = later.last_round
    self.count[clients] = count


class Seen:
  """Who took part in the rounds of a ledger, by identifier.

  Rounds are sorted together and make a part; one that is not twice as large as
  the next is combined with it. So a round is added in the time of its cohort,
  on average, and clients are found in theirs. 14 bytes a client.

  Attributes:
    next: the round after the last one that was added.
  """

  def __init__(self):
    self.next = 0
    self._parts: list[tuple[np.ndarray, History]] = []

  def record(self, rounds: Iterable[tuple[int, np.ndarray]]) -> None:
    """Adds rounds above those that were added, ascending.

    Args:
      rounds: each with its cohort, [m] int64 identifiers, all different.
    """
    block: list[tuple[int, np.ndarray]] = []
    size = 0
    for each in rounds:
      block.append(each)
      size += len(each[1])
      if size >= _BLOCK:
        self._add(block)
        block, size = [], 0
    if block:
      self._add(block)

  def _add(self, rounds: list[tuple[int, np.ndarray]]) -> None:
    indices, cohorts = zip(*rounds)
    sizes = [len(cohort) for cohort in cohorts]
    last = np.repeat(np.array(indices, np.int32), sizes)
    once = np.ones(len(last), np.uint16)
    self._parts.append(_combined(cohorts, History(last, once)))
    while len(self._parts) > 1 and len(self._parts[-2][0]) < 2 * len(
      self._parts[-1][0]
    ):
      known, parts = zip(*self._parts[-2:])
      self._parts[-2:] = [
        _combined(
          known,
          History(
            np.concatenate([each.last_round for each in parts]),
            np.concatenate([each.count for each in parts]),
          ),
        )
      ]
    self.next = indices[-1] + 1

  def of(self, clients: np.ndarray) -> History:
    """Returns the history of clients, [m] int64 identifiers, in their order."""
    found = History.empty(len(clients))
    for known, history in self._parts:
      place = np.searchsorted(known, clients)
      there = place < len(known)
      there[there] = known[place[there]] == clients[there]
      found.add(np.flatnonzero(there), history.of(place[there]))
    return found


def _combined(
  clients: Sequence[np.ndarray], history: History
) -> tuple[np.ndarray, History]:
  """Returns clients, ascending, each once, and the history of each.

  Args:
    clients: arrays of identifiers; a later one is of later rounds.
    history: of all of them together.
  """
  together = np.concatenate(clients)
  order = np.argsort(together, kind='stable')
  together = together[order]
  changes = np.flatnonzero(together[1:] != together[:-1])
  first = np.append(np.zeros(min(len(order), 1), np.int64), changes + 1)
  last = np.append(first[1:], len(order))[: len(first)] - 1
  count = np.add.reduceat(history.count[order], first, dtype=np.int64)
  return together[first], History(
    history.last_round[order[last]], _counted(count)
  )


def _counted(count: np.ndarray) -> np.ndarray:
  """Returns numbers of rounds in 16 bits.

  Raises:
    ValueError: one has no room.
  """
  # PRIVACY: a count that wraps to 0 lets a client in again. Guard:
  # cohorts_test.test_count_that_would_wrap_is_refused.
  if len(count) and count.max() > _MOST:
    raise errors.value_error(
      'participations',
      int(count.max()),
      f'a client cannot have more than {_MOST}',
      'use a larger min_sep or fewer rounds',
    )
  return count.astype(np.uint16)
