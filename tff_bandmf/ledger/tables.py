"""The tables of a ledger, and the functions that write and read them.

| table         | holds                                                        |
|---------------|--------------------------------------------------------------|
| bandmf_ledger | one row: the format; the IDs of the ledger's run and keys;   |
|               | the number of events; the head of the chain                  |
| bandmf_rounds | one row a round: its index; its cohort, as identifiers       |
|               | (keyed hashes of clients), ascending, 8 bytes each,          |
|               | little-endian; the highest client index in the cohort        |
| bandmf_events | one row an event: its index (column `place`), the event, the |
|               | head after it; see `chain`                                   |

A cohort is one value, so a write stores all of its clients or none. Rows are
added and never changed, except for the only row of bandmf_ledger. Every
function works in the transaction of its caller.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterator
from typing import Any, Optional

import numpy as np
import sqlalchemy as sa
from sqlalchemy import engine

from tff_bandmf import errors
from tff_bandmf.ledger import chain, counts

_COHORTS_AT_A_TIME = 16
_EVENTS_AT_A_TIME = 4096

_METADATA = sa.MetaData()
_LEDGER = sa.Table(
  'bandmf_ledger',
  _METADATA,
  sa.Column('place', sa.Integer, primary_key=True, autoincrement=False),
  sa.Column('format', sa.Integer, nullable=False),
  sa.Column('run', sa.BigInteger),
  sa.Column('noise_key', sa.BigInteger),
  sa.Column('key', sa.BigInteger),
  sa.Column('events', sa.BigInteger, nullable=False),
  sa.Column('head', sa.LargeBinary),
)
_ROUNDS = sa.Table(
  'bandmf_rounds',
  _METADATA,
  sa.Column('round', sa.BigInteger, primary_key=True, autoincrement=False),
  # This column is before the column `cohort`, so that a query for the highest
  # index does not read the cohort.
  sa.Column('highest', sa.BigInteger, nullable=False),
  sa.Column('cohort', sa.LargeBinary, nullable=False),
)
_EVENTS = sa.Table(
  'bandmf_events',
  _METADATA,
  sa.Column('place', sa.BigInteger, primary_key=True, autoincrement=False),
  sa.Column('round', sa.BigInteger, nullable=False, index=True),
  sa.Column('kind', sa.String(16), nullable=False),
  sa.Column('digest', sa.LargeBinary),
  sa.Column('z_stddev', sa.Float(53)),
  sa.Column('noise_checked', sa.Integer, nullable=False),
  sa.Column('payload', sa.Text),
  sa.Column('head', sa.LargeBinary, nullable=False),
)

TABLES = frozenset(_METADATA.tables)


def _raw(column: sa.Column) -> sa.sql.ColumnElement:
  # Returns a column whose values SQLAlchemy does not convert. SQLite stores any
  # type in any column, and SQLAlchemy's LargeBinary would turn an integer i
  # into i bytes.
  return sa.type_coerce(column, sa.types.NullType())


@dataclasses.dataclass(frozen=True)
class Row:
  """The row of the table bandmf_ledger.

  Attributes:
    run: ID of the run to which the ledger is bound; None before the ledger is
      bound.
    noise_key: fingerprint of the noise key; None before the ledger is bound.
    key: fingerprint of the key by which clients are hashed; None before the
      first round.
    events: number of events in the chain.
    head: head of the chain, 32 bytes.
  """

  run: Optional[int]
  noise_key: Optional[int]
  key: Optional[int]
  events: int
  head: bytes


def create(connection: engine.Connection) -> None:
  """Makes the missing tables, and the row of bandmf_ledger."""
  # `create_all` would make no table if another schema of the search path had a
  # table of the same name.
  for table in _METADATA.sorted_tables:
    connection.execute(sa.schema.CreateTable(table, if_not_exists=True))
    for index in table.indexes:
      connection.execute(sa.schema.CreateIndex(index, if_not_exists=True))
  if connection.execute(sa.select(_LEDGER.c.place)).first() is None:
    values = {'place': 0, 'format': chain.FORMAT, 'events': 0}
    connection.execute(sa.insert(_LEDGER).values(values))


def row(connection: engine.Connection, lock: bool = False) -> Row:
  """Returns the row of bandmf_ledger.

  Args:
    connection: connection to read, or to write.
    lock: whether to lock the row until the transaction ends. SQLite needs no
      such lock, since it locks the database when a transaction begins.

  Raises:
    ValueError: the row is damaged, or has another format.
  """
  query = sa.select(*map(_raw, _LEDGER.c))
  # PRIVACY: suppose that another process abandons a round between a read and a
  # write of this process. This process could start the abandoned round again,
  # and add the noise of this round to a second sum. The lock keeps all other
  # processes from writing until the transaction ends.
  # Guard: ledger_races_test.test_abandoned_round_is_not_started_meanwhile.
  if lock:
    query = query.with_for_update()
  rows = connection.execute(query).all()
  _require(len(rows) == 1, 'row')
  place, version, run, noise_key, key, events, head = rows[0]
  ids = run, noise_key, key
  if version != chain.FORMAT:
    raise other_format(version)
  _require(place == 0, 'row')
  _require(all(isinstance(each, (int, type(None))) for each in ids), 'row')
  _require(isinstance(events, int) and events >= 0, 'row')
  _require((head is None) == (events == 0), 'row')
  head = chain.genesis(*ids) if head is None else _content(head, 'head')
  return Row(*ids, events, head)


def has_head(connection: engine.Connection, head: bytes) -> bool:
  """Returns whether `head` is or was the head of the chain."""
  ledger = row(connection)
  # The head before the first event depends on the fingerprint of the key by
  # which clients are hashed. This fingerprint is None at first.
  bound = ledger.run, ledger.noise_key
  firsts = chain.genesis(*bound, None), chain.genesis(*bound, ledger.key)
  if head in (ledger.head, *firsts):
    return True
  query = sa.select(_EVENTS.c.place).where(_EVENTS.c.head == head)
  return connection.execute(query).first() is not None


def set_once(connection: engine.Connection, **values: int) -> Row:
  """Sets `run`, `noise_key` and `key` where they are None; returns the row.

  Raises:
    ValueError: a value is None, and the ledger has events already. The three
      values can be set only before the first event.
  """
  ledger = row(connection, lock=True)
  missing = [name for name in sorted(values) if getattr(ledger, name) is None]
  if missing and ledger.events:
    raise errors.value_error(
      f'ledger={", ".join(missing)}: must be set before the first round '
      'starts; bind a new ledger, and start its rounds then'
    )
  for name in missing:
    connection.execute(sa.update(_LEDGER).values({name: values[name]}))
  return row(connection)


def last_round(connection: engine.Connection) -> int:
  """Returns the highest round that was started; -1 without rounds."""
  query = sa.select(sa.func.max(_raw(_ROUNDS.c.round)))
  last = connection.execute(query).scalar_one()
  _require(isinstance(last, (int, type(None))), 'round')
  return -1 if last is None else last


def by_index(connection: engine.Connection) -> Optional[bool]:
  """Returns whether clients are indices; None if the ledger has no clients."""
  # The query does not read the cohort, which may be large.
  query = (
    sa.select(_raw(_ROUNDS.c.highest))
    .where(sa.func.length(_ROUNDS.c.cohort) > 0)
    .order_by(_ROUNDS.c.round)
    .limit(1)
  )
  highest = connection.execute(query).scalar_one_or_none()
  _require(isinstance(highest, (int, type(None))), 'highest')
  return None if highest is None else highest >= 0


def add_round(
  connection: engine.Connection, t: int, cohort: np.ndarray, highest: int
) -> None:
  """Adds a row to bandmf_rounds.

  Args:
    connection: connection to write.
    t: index of the round, which has no row yet.
    cohort: [number of clients] int64 identifiers, ascending.
    highest: the highest client index in the cohort; -1 without an index.
  """
  packed = cohort.astype('<i8').tobytes()
  values = {'round': t, 'cohort': packed, 'highest': highest}
  connection.execute(sa.insert(_ROUNDS).values(values))


def append(connection: engine.Connection, *events: chain.Event) -> bytes:
  """Adds events to the chain, and returns the new head."""
  ledger = row(connection, lock=True)
  head, count = ledger.head, ledger.events + len(events)
  for place, event in enumerate(events, ledger.events):
    head = chain.link(head, place, event)
    values = {**vars(event), 'noise_checked': int(event.noise_checked)}
    values.update(place=place, head=head)
    connection.execute(sa.insert(_EVENTS).values(values))
  connection.execute(sa.update(_LEDGER).values(events=count, head=head))
  return head


def attempts(connection: engine.Connection, t: int) -> list[chain.Attempt]:
  """Returns the attempts at a round, in order."""
  return _attempts(t, [each[1:] for each in _events(connection, t)])


def last_attempts(
  connection: engine.Connection,
) -> tuple[int, list[chain.Attempt]]:
  """Returns (highest round that was started, the attempts at it)."""
  last = last_round(connection)
  return last, attempts(connection, last)


def _attempts(t: int, events) -> list[chain.Attempt]:
  try:
    return chain.attempts(events)
  except ValueError:
    raise _broken(t) from None


def _events(
  connection: engine.Connection, t: Optional[int] = None
) -> Iterator[tuple[int, chain.Event, bytes]]:
  """Yields (index of an event, the event, the head after it), in order.

  Args:
    connection: connection to read.
    t: round of the events; None for all rounds.
  """
  query = sa.select(*map(_raw, _EVENTS.c)).order_by(_EVENTS.c.place)
  if t is not None:
    query = query.where(_EVENTS.c.round == t)
  rows = connection.execute(query, execution_options={'stream_results': True})
  for values in rows.yield_per(_EVENTS_AT_A_TIME):
    place, number, kind, digest, z_stddev, checked, payload, head = values
    _require(isinstance(place, int) and checked in (0, 1), 'event')
    if digest is not None:
      digest = _content(digest, 'event')
    event = chain.Event(number, kind, digest, z_stddev, bool(checked), payload)
    _require(event.is_possible(), 'event')
    yield place, event, _content(head, 'event')


def verify(connection: engine.Connection) -> counts.Contents:
  """Checks the chain of the ledger, and returns the contents of the ledger.

  **Formal guarantee.** Assumption: nobody can find collisions of SHA-256.
  Statement: if this function returns, and a reader knows that the chain had its
  present head at an earlier time, then no event and no cohort was changed,
  added or removed since then.

  Raises:
    ValueError: the ledger was changed or is damaged. The message names the
      round.
  """
  ledger = row(connection)
  sizes, digests, last_client = {}, {}, -1
  for t, cohort, highest in _rounds(connection):
    sizes[t] = len(cohort)
    digests[t] = chain.cohort_digest(cohort, highest)
    last_client = max(last_client, highest)
  events = collections.defaultdict(list)
  notes: dict[str, Any] = {}
  count = last_event = 0
  head = chain.genesis(ledger.run, ledger.noise_key, ledger.key)
  for place, event, recorded in _events(connection):
    head = chain.link(head, count, event)
    # PRIVACY: if somebody removed a client, a cohort or an event from the
    # ledger, the ledger would understate the participation. A removal changes a
    # hash of the chain or the digest of a cohort, and this condition refuses a
    # ledger with such a change.
    # Guards: chain_test.test_any_change_of_a_row_is_refused and
    # test_client_cut_out_of_two_cohorts_is_refused.
    is_start = event.kind == chain.STARTED
    has_cohort = not is_start or digests.get(event.round) == event.digest
    if place != count or recorded != head or not has_cohort:
      raise _broken(event.round)
    if event.kind == chain.NOTED:
      try:
        # PRIVACY: Notes on a run, for example its population, limit its claim.
        # All notes are read from the chain.
        # Guard: run_rounds_test.test_run_of_any_ids_is_reported.
        notes.update(event.content)
      except ValueError:
        raise _broken(event.round) from None
    else:
      events[event.round].append((event, head))
    count, last_event = count + 1, event.round
  # PRIVACY: if somebody removed the last events, the ledger would understate
  # the participation. The number of events and the last head must be equal to
  # the values in the row of bandmf_ledger.
  # Guard: chain_test.test_events_gone_from_the_end_are_refused.
  if count != ledger.events or head != ledger.head:
    raise _broken(last_event)
  attempts = {t: _attempts(t, each) for t, each in sorted(events.items())}
  unmatched = sizes.keys() ^ attempts.keys()
  if unmatched:
    raise _broken(min(unmatched))
  return counts.Contents(sizes, attempts, notes, last_client, head.hex())


def cohort(
  connection: engine.Connection, t: int
) -> Optional[tuple[np.ndarray, int]]:
  """Returns the cohort of a round; None for a round not started.

  The result is (identifiers, ascending; highest client index in the cohort).
  """
  rounds = list(_rounds(connection, t + 1, t))
  return rounds[0][1:] if rounds else None


def cohorts(
  connection: engine.Connection, before: Optional[int] = None, start: int = 0
) -> Iterator[tuple[int, np.ndarray]]:
  """Yields (index of a round, identifiers of its cohort), rounds ascending.

  A few cohorts are in memory at a time.
  """
  return ((t, cohort) for t, cohort, _ in _rounds(connection, before, start))


def _rounds(
  connection: engine.Connection, before: Optional[int] = None, start: int = 0
) -> Iterator[tuple[int, np.ndarray, int]]:
  query = sa.select(*map(_raw, _ROUNDS.c)).order_by(_ROUNDS.c.round)
  if start:
    query = query.where(_ROUNDS.c.round >= start)
  if before is not None:
    query = query.where(_ROUNDS.c.round < before)
  rows = connection.execute(query, execution_options={'stream_results': True})
  last = -1
  for t, highest, content in rows.yield_per(_COHORTS_AT_A_TIME):
    _require(isinstance(t, int) and t > last, 'round')
    _require(isinstance(highest, int) and highest >= -1, 'highest')
    packed = _content(content, 'cohort')
    _require(len(packed) % 8 == 0, 'cohort')
    identifiers = np.frombuffer(packed, '<i8')
    # PRIVACY: participation is counted for identifiers that are different and
    # ascending. For other identifiers, the counts could be too small. A cohort
    # whose identifiers do not increase is refused.
    # Guard: fuzz_ledgers_test.test_cohort_out_of_order_is_refused.
    _require(bool(np.all(identifiers[1:] > identifiers[:-1])), 'cohort')
    last = t
    yield t, identifiers, highest


def _content(value: Any, name: str) -> bytes:
  _require(isinstance(value, (bytes, memoryview)), name)
  return bytes(value)


def other_format(version: object) -> ValueError:
  """Returns the error for a ledger that another version has written."""
  return errors.value_error(
    f'ledger=format {version}: cannot be read: this version has format '
    f'{chain.FORMAT}; end the run with the version that began it'
  )


def _broken(t: int) -> ValueError:
  return errors.value_error(
    f'ledger=round {t}: contradicts the chain of hashes: the ledger '
    'was changed or is damaged; restore the file'
  )


def _require(holds: bool, name: str) -> None:
  if not holds:
    raise errors.value_error(
      f'ledger={name}: is not a value that a ledger writes: the ledger was '
      'changed or is damaged; restore the file'
    )
