"""Participation of clients in earlier rounds, in memory.

`History` is for clients that are numbered 0, 1, ...; `Seen` is for clients with
identifiers of 64 bits.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np

from tff_bandmf import errors

# Last round of a client without any. -2^30: subtracting any round from it fits
# in int32, and no run has 2^30 rounds.
_NEVER = -(2**30)
MAX_ROUNDS = 2**30
# Largest count that 16 bits hold.
_MOST = 2**16 - 1
# Participations that are sorted at once; each takes 60 bytes meanwhile.
_BLOCK = 2**24


@dataclasses.dataclass(frozen=True, eq=False)
class History:
  """Participation of each client before some round; 6 bytes a client.

  Attributes:
    last_round: [clients] int32, last round of each client; -2^30 if none.
    count: [clients] uint16, number of rounds of each client.
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
      clients: [m] integers, client indices; repetitions are allowed.

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
    """Adds a round, in place; the clients of the cohort must be distinct."""
    self.add(cohort, History(np.array(round_index), np.array(1)))

  def add(self, clients: np.ndarray, later: History) -> None:
    """Adds later rounds of distinct clients, in place."""
    count = _counted(self.count[clients].astype(np.int64) + later.count)
    self.last_round[clients] = later.last_round
    self.count[clients] = count


class Seen:
  """Participation in the rounds of a ledger, by client identifier.

  The index is a list of sorted parts. New rounds are sorted into a part of
  their own. A part is merged with the next one unless it is at least twice as
  large. So adding a round takes time in proportion to its cohort, on average,
  and a look-up takes time in proportion to the clients asked for. 14 bytes a
  client.

  Attributes:
    next: index after the last round that was added; 0 if there is none.
  """

  def __init__(self):
    self.next = 0
    self._parts: list[tuple[np.ndarray, History]] = []

  def record(self, rounds: Iterable[tuple[int, np.ndarray]]) -> None:
    """Adds rounds, ascending and above all rounds added before.

    Args:
      rounds: pairs of a round index and its cohort, [m] int64 identifiers,
        all distinct.
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
      self._combine(2)
    self.next = indices[-1] + 1

  def _combine(self, last: int) -> None:
    """Merges the last parts, `last` of them, into one."""
    known, parts = zip(*self._parts[-last:])
    self._parts[-last:] = [
      _combined(
        known,
        History(
          np.concatenate([each.last_round for each in parts]),
          np.concatenate([each.count for each in parts]),
        ),
      )
    ]

  def clients(self) -> int:
    """Returns the number of distinct clients that took part."""
    if len(self._parts) > 1:
      self._combine(len(self._parts))
    return sum(len(known) for known, _ in self._parts)

  def of(self, clients: np.ndarray) -> History:
    """Returns the history of [m] int64 identifiers, in their order."""
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
  """Returns the distinct clients, ascending, and the history of each.

  Args:
    clients: arrays of identifiers; later arrays are of later rounds.
    history: history of all entries of `clients`, concatenated.
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
  """Returns numbers of rounds as uint16.

  Raises:
    ValueError: a number exceeds 16 bits.
  """
  # PRIVACY: a count that wraps to 0 would let a client in again beyond its k
  # rounds. A count that does not fit is refused.
  # Guard: cohorts_test.test_count_that_would_wrap_is_refused.
  if len(count) and count.max() > _MOST:
    raise errors.value_error(
      'participations',
      int(count.max()),
      f'a client cannot have more than {_MOST}',
      'use a larger min_sep or fewer rounds',
    )
  return count.astype(np.uint16)
