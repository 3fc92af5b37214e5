"""Participation of clients in earlier rounds, in memory.

`History` is for clients that are numbered 0, 1, ...; `IdentifierIndex` is for
clients with 64-bit identifiers. The rule of a `Budget` needs all rounds of a
client. The rules of other schemas need only the last round and the number of
rounds of a client. A chain (`_Chain`) has all rounds: its entries are
participations, and each entry points to the previous entry of the same client.
`Patterns` holds a chain, and can replace a `History` of a population.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Optional, Union

import numpy as np

from tff_bandmf import _checks, errors
from tff_bandmf import participation as participation_lib

# Value in place of the last round of a client without rounds. Runs have at most
# 2^30 rounds, so the difference of this number and any round fits in int32.
_NEVER = -(2**30)
MAX_ROUNDS = 2**30
# Largest count that 16 bits hold.
_MOST = 2**16 - 1
# Number of participations that are indexed at a time, at 50 bytes each.
_BLOCK = 2**24
# Number of identifiers that are sorted, or looked up, at a time.
_RANGE = 2**19
# Largest number of entries in a chain, so that int32 can index them.
_MOST_ENTRIES = 2**31 - 1


@dataclasses.dataclass(frozen=True, eq=False)
class History:
  """Participation of each client before some round, in 6 bytes a client.

  Attributes:
    last_round: [clients] int32, last round of each client; -2^30 for a client
      without rounds.
    count: [clients] uint16, number of rounds of each client.
    rounds: [clients, largest number of rounds] int32, all rounds of each
      client, descending, then -2^30; None if the history has only the last
      rounds.
  """

  last_round: np.ndarray
  count: np.ndarray
  rounds: Optional[np.ndarray] = None

  @classmethod
  def empty(cls, clients: int, never: int = _NEVER) -> History:
    """Returns the history of clients that never took part.

    Args:
      clients: number of clients.
      never: value of `last_round` for every client.
    """
    return cls(np.full(clients, never, np.int32), np.zeros(clients, np.uint16))

  def for_clients(self, clients: Union[np.ndarray, slice]) -> History:
    """Returns the history of clients, in the same order.

    Args:
      clients: integer array of client indices, which may repeat; or a slice,
        for which the arrays of the result are views.

    Raises:
      ValueError: an index is outside the population.
    """
    population = len(self.count)
    if not isinstance(clients, slice) and len(clients):
      low, high = clients.min(), clients.max()
      if not 0 <= low <= high < population:
        raise errors.value_error(
          f'client={low}..{high}: is not among the {population} clients; use '
          'the population that the run started with'
        )
    return History(
      self.last_round[clients],
      self.count[clients],
      None if self.rounds is None else self.rounds[clients],
    )

  def record(self, round_index: int, cohort: np.ndarray) -> None:
    """Adds a round, in place; the clients of the cohort must be distinct."""
    self.add(cohort, History(np.array(round_index), np.array(1)))

  def add(self, clients: np.ndarray, later: History) -> None:
    """Adds rounds of distinct clients, in place.

    Args:
      clients: indices of the clients, all different.
      later: rounds of these clients, all after their rounds in this history.
    """
    count = _counted(self.count[clients].astype(np.int64) + later.count)
    self.last_round[clients] = later.last_round
    self.count[clients] = count


class _Chain:
  """Participations in order of the rounds, with a linked list of each client.

  An entry is a participation, and points to the previous entry of the same
  client. An entry takes 4 bytes.
  """

  def __init__(self):
    self._before = np.empty(0, np.int32)
    self._rounds: list[int] = []
    # Index of the first entry of each round in `_rounds`, and at the end the
    # number of entries.
    self._starts = [0]

  @property
  def size(self) -> int:
    """Number of entries."""
    return self._starts[-1]

  # PRIVACY: If a participation were overwritten, its client could take part too
  # soon or too often. Each entry points to the previous entry of its client.
  # Guard: arrivals_test.test_devices_decide_as_the_server_does.
  def add(
    self, rounds: Sequence[int], sizes: Sequence[int], before: np.ndarray
  ) -> None:
    """Adds the participations of rounds, ascending.

    Args:
      rounds: indices of the rounds, larger than all rounds in the chain.
      sizes: number of participations in each round.
      before: [sum of sizes] int32, index of the previous entry of the same
        client, for each new entry; -1 for the client's first entry.
    """
    size, count = self.size, self.size + len(before)
    remedy = 'use fewer rounds or smaller cohorts'
    _checks.at_most('participations', count, _MOST_ENTRIES, 'the limit', remedy)
    if count > len(self._before):
      # The array grows by an eighth, so that it grows rarely and wastes little
      # memory. No other object refers to the array, so it can be resized.
      self._before.resize(count * 9 // 8, refcheck=False)
    self._before[size:count] = before
    self._rounds.extend(rounds)
    self._starts.extend((size + np.cumsum(sizes)).tolist())

  def history(self, entries: History) -> History:
    """Returns the history of clients, with all rounds.

    Args:
      entries: history of the clients, where `last_round` has the index of the
        last entry of each client; -1 for a client without entries.
    """
    last, count = entries.last_round, entries.count
    # PRIVACY: If the array had no room for a round of a client, the cost of the
    # client would be too small. The number of columns is the largest number of
    # rounds of a client, and one more for `last_round`.
    # Guard: arrivals_test.test_devices_decide_as_the_server_does.
    most = int(count.max(initial=0))
    rounds = np.full((len(last), most + 1), _NEVER, np.int32)
    of_entry = np.array([*self._rounds, _NEVER], np.int32)
    client = np.flatnonzero(last >= 0)
    entry = last[client]
    # PRIVACY: if the history lacked a round, it would understate the cost of a
    # client, and the client could take part too often. The loop follows the
    # entries of each client to the first entry.
    # Guard: budget_test.test_history_has_every_round_of_a_client.
    for column in range(most):
      place = np.searchsorted(self._starts, entry, 'right') - 1
      rounds[client, column] = of_entry[place]
      entry = self._before[entry]
      client, entry = client[entry >= 0], entry[entry >= 0]
    return History(rounds[:, 0], count, rounds[:, :most])


class Patterns:
  """All rounds of each client before some round.

  A client takes 6 bytes, and a participation takes 4 bytes.

  Attributes:
    count: [clients] uint16, number of rounds of each client.
  """

  def __init__(self, entries: History, chain: _Chain):
    """Initializes the patterns.

    Args:
      entries: history where `last_round` has the last entry of each client in
        the chain; -1 without entries.
      chain: chain of the entries.
    """
    self.count, self._entries, self._chain = entries.count, entries, chain

  @classmethod
  def empty(cls, clients: int) -> Patterns:
    """Returns the patterns of `clients` clients that never took part."""
    return cls(History.empty(clients, -1), _Chain())

  def for_clients(self, clients: Union[np.ndarray, slice]) -> History:
    """Returns the history of clients, in the same order, with all rounds."""
    return self._chain.history(self._entries.for_clients(clients))

  def record(self, round_index: int, cohort: np.ndarray) -> None:
    """Adds a round, in place; the clients of the cohort must be distinct."""
    entries = self._chain.size + np.arange(len(cohort))
    before = self._entries.last_round[cohort]
    self._entries.add(cohort, History(entries, np.array(1)))
    self._chain.add([round_index], [len(cohort)], before)


# The history of a population, for any schema.
AnyHistory = Union[History, Patterns]


def empty(
  clients: int, participation: Optional[participation_lib.Participation]
) -> AnyHistory:
  """Returns the history of clients that never took part, for a schema."""
  if isinstance(participation, participation_lib.Budget):
    return Patterns.empty(clients)
  return History.empty(clients)


class IdentifierIndex:
  """An index of the rounds of a ledger by client identifier.

  The index is a list of parts, each sorted by identifier. New rounds become a
  new part. If a part has fewer than twice as many clients as the next part, the
  two are merged. So the average time to add a round is about proportional to
  the size of its cohort, and the time to look up clients is about proportional
  to their number. A client takes 14 bytes and, if `whole` is set, a
  participation takes 4 bytes.

  Attributes:
    next: 1 + the last round that was added, integer; 0 before the first round.
    whole: whether the index has all rounds of a client, in a chain.
  """

  def __init__(self, whole: bool = False):
    self.next = 0
    self.whole = whole
    # Parts: sorted identifiers of clients, and their history. If `whole` is
    # set, `last_round` of the history has the last entry of a client in the
    # chain instead of the last round.
    self._parts: list[tuple[np.ndarray, History]] = []
    self._chain = _Chain()

  def record(self, rounds: Iterable[tuple[int, np.ndarray]]) -> None:
    """Adds rounds, ascending and larger than all earlier rounds.

    Args:
      rounds: pairs of the index of a round and its cohort, an array of distinct
        int64 identifiers.
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

  # PRIVACY: If a participation were lost while parts are joined, its client
  # could take part too soon or too often. Tests compare with a plain list.
  # Guard: admission_test.test_past_is_that_of_every_round_before.
  def _add(self, rounds: list[tuple[int, np.ndarray]]) -> None:
    indices, cohorts = zip(*rounds)
    sizes = [len(cohort) for cohort in cohorts]
    starts = np.cumsum([0, *sizes])
    # The round of each participation; participations are in order of the
    # rounds.
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
    known = self._parts
    while len(known) > 1 and len(known[-2][0]) < 2 * len(known[-1][0]):
      self._combine(2)
    self.next = indices[-1] + 1

  def _combine(self, number: int) -> None:
    """Merges the newest parts, `number` of them, into one part."""
    known, histories = zip(*self._parts[-number:])
    parts = []
    for slices in _ranges(known):
      order, clients, ends = _grouped(known, slices)
      within = [each.for_clients(part) for each, part in zip(histories, slices)]
      last_round = np.concatenate([each.last_round for each in within])
      count = np.concatenate([each.count for each in within])[order]
      total = np.cumsum(count, dtype=np.int64)[ends]
      count = _counted(np.diff(total, prepend=0))
      parts.append((clients, History(last_round[order[ends]], count)))
    self._parts[-number:] = [_joined(parts)]

  def clients(self) -> int:
    """Returns the number of distinct clients that took part."""
    if len(self._parts) > 1:
      self._combine(len(self._parts))
    return sum(len(identifiers) for identifiers, _ in self._parts)

  def for_clients(self, clients: np.ndarray) -> History:
    """Returns the history of clients by int64 identifier, in the same order."""
    past = self._last(clients)
    return self._chain.history(past) if self.whole else past

  def patterns(self, clients: np.ndarray) -> Patterns:
    """Returns all rounds of clients, in the same order.

    Args:
      clients: [m] int64, distinct identifiers.
    """
    return Patterns(self._last(clients), copy.deepcopy(self._chain))

  # PRIVACY: If the rounds of a client were not in the result, the client could
  # take part too soon. Parts with rounds of the client are added in the order
  # of rounds.
  # Guards: admission_test.test_past_is_that_of_every_round_before and
  # budget_test.test_history_has_every_round_of_a_client.
  def _last(self, clients: np.ndarray) -> History:
    """Returns the history of clients, given their identifiers, in this order.

    If `whole` is set, `last_round` has the last entry of each client in the
    chain instead of the last round.
    """
    past = History.empty(len(clients), -1 if self.whole else _NEVER)
    # In this order, successive look-ups in a part are close to each other, so
    # the memory that they read is in a cache.
    order = np.argsort(clients)
    for start in range(0, len(order), _RANGE):
      asked = order[start : start + _RANGE]
      for known, history in self._parts:
        place = np.searchsorted(known, clients[asked])
        known_here = place < len(known)
        known_here[known_here] = (
          known[place[known_here]] == clients[asked[known_here]]
        )
        past.add(asked[known_here], history.for_clients(place[known_here]))
    return past


# PRIVACY: A client between two ranges would have no history, and could take
# part too soon. The ranges cover all identifiers.
# Guard: admission_test.test_past_is_that_of_every_round_before.
def _ranges(known: Sequence[np.ndarray]) -> Iterator[list[slice]]:
  """Yields, for each range of identifiers, its slice of each array.

  The ranges are ascending and have the same length. Identifiers are hashes, so
  all ranges have about the same number of identifiers. The slices of one range
  fit in a cache.

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
  """Returns the order that sorts slices of identifiers, and its groups.

  Args:
    known: arrays of identifiers. The rounds of each array are later than the
      rounds of the previous array.
    slices: slice of each array that is sorted.

  Returns:
    The stable order that sorts the concatenated slices; the distinct
    identifiers, ascending; the position of the last occurrence of each
    identifier in the sorted order.
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
  """Returns the concatenation of parts with ascending identifiers."""
  clients, histories = zip(*parts)
  return np.concatenate(clients), History(
    np.concatenate([each.last_round for each in histories]),
    np.concatenate([each.count for each in histories]),
  )


def _counted(count: np.ndarray) -> np.ndarray:
  """Returns numbers of rounds as uint16.

  Raises:
    ValueError: a number is larger than 2^16 - 1.
  """
  # PRIVACY: if the number of rounds of a client wrapped to 0, the client could
  # take part again after its last allowed round. A number that does not fit in
  # 16 bits is refused.
  # Guard: cohorts_test.test_count_that_would_wrap_is_refused.
  most, remedy = int(count.max(initial=0)), 'use a larger min_sep'
  _checks.at_most('participations', most, _MOST, 'the limit', remedy)
  return count.astype(np.uint16)
