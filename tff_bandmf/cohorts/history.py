"""Participation of clients in earlier rounds, in memory.

`History` is for clients that are numbered 0, 1, ...; `Seen` is for clients with
identifiers of 64 bits. Most rules need the last round of a client and its
number of rounds; the rule of a budget needs all its rounds. A chain has all
rounds: each participation points to the client's previous participation.
`Patterns` is a `History` with a chain.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Optional, Union

import numpy as np

from tff_bandmf import errors
from tff_bandmf import participation as participation_lib

# Last round of a client without any. -2^30: subtracting any round from it fits
# in int32, and no run has 2^30 rounds.
_NEVER = -(2**30)
MAX_ROUNDS = 2**30
# Largest count that 16 bits hold.
_MOST = 2**16 - 1
# Participations that are indexed at once; each takes 50 bytes meanwhile.
_BLOCK = 2**24
# Identifiers that are sorted, or looked up, at once.
_RANGE = 2**19
# Largest number of entries in a chain, which int32 can index.
_MOST_ENTRIES = 2**31 - 1


@dataclasses.dataclass(frozen=True, eq=False)
class History:
  """Participation of each client before some round; 6 bytes a client.

  Attributes:
    last_round: [clients] int32, last round of each client; -2^30 if none.
    count: [clients] uint16, number of rounds of each client.
    rounds: [clients, K] int32, all rounds of each client, descending, then
      -2^30; None if they are not kept.
  """

  last_round: np.ndarray
  count: np.ndarray
  rounds: Optional[np.ndarray] = None

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
    _check_clients(clients, len(self.count))
    return self.part(clients)

  def part(self, clients: Union[np.ndarray, slice]) -> History:
    """Returns the history of clients by their index; a slice makes no copy."""
    return History(
      self.last_round[clients],
      self.count[clients],
      None if self.rounds is None else self.rounds[clients],
    )

  def record(self, round_index: int, cohort: np.ndarray) -> None:
    """Adds a round, in place; the clients of the cohort must be distinct."""
    self.add(cohort, History(np.array(round_index), np.array(1)))

  def add(self, clients: np.ndarray, later: History) -> None:
    """Adds later rounds of distinct clients, in place."""
    count = _counted(self.count[clients].astype(np.int64) + later.count)
    self.last_round[clients] = later.last_round
    self.count[clients] = count


class _Chain:
  """Participations by round; each points to the client's previous one.

  A participation takes 4 bytes.
  """

  def __init__(self):
    self._before = np.empty(0, np.int32)
    self._rounds: list[int] = []
    # The first entry of each of these rounds, and of the next one.
    self._starts = [0]

  @property
  def size(self) -> int:
    """The number of entries."""
    return self._starts[-1]

  def add(
    self, rounds: Sequence[int], sizes: Sequence[int], before: np.ndarray
  ) -> None:
    """Adds the participations of rounds, ascending.

    Args:
      rounds: indices, above all that were added.
      sizes: the number of participations in each.
      before: [sum of sizes] entry of the same client before each; -1 if none.
    """
    size = self.size
    if size + len(before) > _MOST_ENTRIES:
      raise errors.value_error(
        f'participations={size + len(before)}: must not exceed '
        f'{_MOST_ENTRIES}; use fewer rounds or smaller cohorts'
      )
    if size + len(before) > len(self._before):
      # Growth by an eighth wastes little memory. No other object has the array.
      self._before.resize((size + len(before)) * 9 // 8, refcheck=False)
    self._before[size : size + len(before)] = before
    for round_index, more in zip(rounds, sizes):
      self._rounds.append(round_index)
      self._starts.append(self._starts[-1] + more)

  def history(self, last: np.ndarray, count: np.ndarray) -> History:
    """Returns the history of clients.

    Args:
      last: [m] last entry of each, -1 if none.
      count: [m] uint16.
    """
    rounds = np.full((len(last), int(count.max(initial=0))), _NEVER, np.int32)
    of_entry = np.array([*self._rounds, _NEVER], np.int32)
    client = np.flatnonzero(last >= 0)
    entry = last[client]
    # PRIVACY: a history that lacked a round would understate the cost of its
    # client, who would be let in too often. A chain is followed to its end.
    # Guard: budget_test.test_history_has_every_round_of_a_client.
    for column in range(rounds.shape[1]):
      place = np.searchsorted(self._starts, entry, 'right') - 1
      rounds[client, column] = of_entry[place]
      entry = self._before[entry]
      client, entry = client[entry >= 0], entry[entry >= 0]
    newest = np.append(rounds, np.full((len(last), 1), _NEVER, np.int32), 1)
    return History(newest[:, 0], count, rounds)


class Patterns:
  """The rounds of each client before some round, as chains.

  A client takes 6 bytes, and a participation 4.

  Attributes:
    count: [clients] uint16, number of rounds of each client.
  """

  def __init__(self, count: np.ndarray, last: np.ndarray, chain: _Chain):
    """Takes the count of each client, its last entry or -1, and the chain."""
    self.count, self._last, self._chain = count, last, chain

  @classmethod
  def empty(cls, clients: int) -> Patterns:
    """Returns the patterns of a number of clients that never took part."""
    return cls(
      np.zeros(clients, np.uint16), np.full(clients, -1, np.int32), _Chain()
    )

  def of(self, clients: np.ndarray) -> History:
    """Returns what `History.of` returns, with all rounds of the clients."""
    _check_clients(clients, len(self.count))
    return self.part(clients)

  def part(self, clients: Union[np.ndarray, slice]) -> History:
    """Returns what `History.part` returns, with all rounds of the clients."""
    return self._chain.history(self._last[clients], self.count[clients])

  def record(self, round_index: int, cohort: np.ndarray) -> None:
    """Adds a round, in place; the clients of the cohort must be distinct."""
    count = _counted(self.count[cohort].astype(np.int64) + 1)
    first = self._chain.size
    self._chain.add([round_index], [len(cohort)], self._last[cohort])
    self._last[cohort] = first + np.arange(len(cohort))
    self.count[cohort] = count


def empty(
  clients: int, participation: Optional[participation_lib.Participation]
) -> Union[History, Patterns]:
  """Returns the history of clients that never took part, for a schema."""
  if isinstance(participation, participation_lib.Budget):
    return Patterns.empty(clients)
  return History.empty(clients)


def _check_clients(clients: np.ndarray, population: int) -> None:
  """Raises ValueError if an index is outside the population."""
  if len(clients) and not (0 <= clients.min() and clients.max() < population):
    raise errors.value_error(
      f'client={clients.min()}..{clients.max()}: is not among the '
      f'{population} clients; use the population that the run started '
      'with'
    )


class Seen:
  """Participation in the rounds of a ledger, by client identifier.

  The index is a list of sorted parts. New rounds are sorted into a part of
  their own. A part is merged with the next one unless it is at least twice as
  large. So adding a round takes time in proportion to its cohort, on average,
  and a look-up takes time in proportion to the clients asked for. A client
  takes 14 bytes and, where all rounds are kept, a participation takes 4.

  Attributes:
    next: index after the last round that was added; 0 if there is none.
    whole: whether all rounds of a client are kept.
  """

  def __init__(self, whole: bool = False):
    self.next = 0
    self.whole = whole
    # Sorted clients and their history. With a chain, `last_round` of the
    # history has the last entry of a client in place of its last round.
    self._parts: list[tuple[np.ndarray, History]] = []
    self._chain = _Chain()

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
    starts = np.cumsum([0, *sizes])
    # The round of each participation, in order of the rounds.
    round_of = np.repeat(np.array(indices, np.int32), sizes)
    before = np.empty(len(round_of) if self.whole else 0, np.int32)
    parts = []
    for slices in _ranges(cohorts):
      order, clients, ends = _grouped(cohorts, slices)
      lengths = [part.stop - part.start for part in slices]
      shifts = starts[:-1] + [part.start for part in slices]
      shifts -= np.cumsum([0, *lengths])[:-1]
      place = (np.arange(len(order)) + np.repeat(shifts, lengths))[order]
      last = round_of[place[ends]]
      if self.whole:
        before[place[1:]] = self._chain.size + place[:-1]
        first = np.append(0, ends + 1)[:-1]
        before[place[first]] = self._last(clients).last_round
        last = (self._chain.size + place[ends]).astype(np.int32)
      count = _counted(np.diff(ends, prepend=-1))
      parts.append((clients, History(last, count)))
    if self.whole:
      self._chain.add(indices, sizes, before)
    self._parts.append(_joined(parts))
    while len(self._parts) > 1 and len(self._parts[-2][0]) < 2 * len(
      self._parts[-1][0]
    ):
      self._combine(2)
    self.next = indices[-1] + 1

  def _combine(self, last: int) -> None:
    """Merges the last `last` parts into one."""
    known, histories = zip(*self._parts[-last:])
    parts = []
    for slices in _ranges(known):
      order, clients, ends = _grouped(known, slices)
      within = [each.part(part) for each, part in zip(histories, slices)]
      last_round = np.concatenate([each.last_round for each in within])
      count = np.concatenate([each.count for each in within])[order]
      total = np.cumsum(count, dtype=np.int64)[ends]
      count = _counted(np.diff(total, prepend=0))
      parts.append((clients, History(last_round[order[ends]], count)))
    self._parts[-last:] = [_joined(parts)]

  def clients(self) -> int:
    """Returns the number of distinct clients that took part."""
    if len(self._parts) > 1:
      self._combine(len(self._parts))
    return sum(len(identifiers) for identifiers, _ in self._parts)

  def of(self, clients: np.ndarray) -> History:
    """Returns the history of [m] int64 identifiers, in their order."""
    past = self._last(clients)
    if not self.whole:
      return past
    return self._chain.history(past.last_round, past.count)

  def patterns(self, clients: np.ndarray) -> Patterns:
    """Returns all rounds of [m] different int64 identifiers, in their order."""
    past = self._last(clients)
    return Patterns(past.count, past.last_round, copy.deepcopy(self._chain))

  def _last(self, clients: np.ndarray) -> History:
    """Returns the last round, or entry, and the count of each client."""
    past = History.empty(len(clients))
    if self.whole:
      past.last_round[:] = -1
    # Neighbours in this order lie next to each other in the parts too.
    order = np.argsort(clients)
    for start in range(0, len(order), _RANGE):
      asked = order[start : start + _RANGE]
      for known, history in self._parts:
        place = np.searchsorted(known, clients[asked])
        known_here = place < len(known)
        known_here[known_here] = (
          known[place[known_here]] == clients[asked[known_here]]
        )
        past.add(asked[known_here], history.part(place[known_here]))
    return past


def _ranges(known: Sequence[np.ndarray]) -> Iterator[list[slice]]:
  """Yields the slices of arrays that hold one range of identifiers each.

  The ranges are ascending. Identifiers are hashes, so that ranges of one length
  hold about as many; the arrays of one range fit in a cache.

  Args:
    known: arrays of identifiers, each ascending.
  """
  ranges = max(1, -(-sum(map(len, known)) // _RANGE))
  edges = np.linspace(-(2.0**63), 2.0**63, ranges + 1)[1:-1].astype(np.int64)
  cuts = [
    [0, *np.searchsorted(each, edges).tolist(), len(each)] for each in known
  ]
  for i in range(ranges):
    yield [slice(cut[i], cut[i + 1]) for cut in cuts]


def _grouped(
  known: Sequence[np.ndarray], slices: Sequence[slice]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Sorts entries by their identifiers.

  Args:
    known: arrays of identifiers; later arrays are of later rounds.
    slices: the entries of each array.

  Returns:
    The stable order that sorts the entries; the distinct clients, ascending;
    the place of the last entry of each client in that order.
  """
  together = np.concatenate([each[part] for each, part in zip(known, slices)])
  order = np.argsort(together, kind='stable')
  together = together[order]
  ends = np.flatnonzero(together[1:] != together[:-1])
  if len(order):
    ends = np.append(ends, len(order) - 1)
  return order, together[ends], ends


def _joined(
  parts: Sequence[tuple[np.ndarray, History]],
) -> tuple[np.ndarray, History]:
  """Returns the union of parts, which hold ascending ranges of clients."""
  clients, histories = zip(*parts)
  return np.concatenate(clients), History(
    np.concatenate([each.last_round for each in histories]),
    np.concatenate([each.count for each in histories]),
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
      f'participations={int(count.max())}: a client cannot have more '
      f'than {_MOST}; use a larger min_sep or fewer rounds'
    )
  return count.astype(np.uint16)
