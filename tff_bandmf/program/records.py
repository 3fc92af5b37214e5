"""The tables of a ledger, and what is written to and read from them.

| table           | holds                                                      |
|-----------------|------------------------------------------------------------|
| bandmf_ledger   | one row: the run and the key that the ledger belongs to,   |
|                 | the highest client index                                   |
| bandmf_rounds   | round; cohort: its identifiers, keyed hashes of clients,   |
|                 | ascending, 8 bytes each, little-endian                     |
| bandmf_attempts | round, attempt, outcome, the noise measured, a digest of   |
|                 | what was released                                          |

A cohort is one value: it is there whole or not at all, and thousands of clients
cost one write. Every function here works in the transaction of its caller.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Optional

import numpy as np
import sqlalchemy as sa

from tff_bandmf import errors

STARTED = 'started'
FINISHED = 'finished'
FAILED = 'failed'
ABANDONED = 'abandoned'

_COHORTS_AT_A_TIME = 16

_METADATA = sa.MetaData()
_LEDGER = sa.Table(
    'bandmf_ledger', _METADATA,
    sa.Column('place', sa.Integer, primary_key=True, autoincrement=False),
    sa.Column('run', sa.BigInteger),
    sa.Column('key', sa.BigInteger),
    sa.Column('last_client', sa.BigInteger, nullable=False))
_ROUNDS = sa.Table(
    'bandmf_rounds', _METADATA,
    sa.Column('round', sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column('cohort', sa.LargeBinary, nullable=False))
_ATTEMPTS = sa.Table(
    'bandmf_attempts', _METADATA,
    sa.Column('round', sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column('attempt', sa.Integer, primary_key=True, autoincrement=False),
    sa.Column('outcome', sa.String(16), nullable=False),
    sa.Column('z_stddev', sa.Float(53)),
    sa.Column('result', sa.LargeBinary))

TABLES = frozenset(_METADATA.tables)
# The columns that `claim` sets.
RUN = _LEDGER.c.run
KEY = _LEDGER.c.key
# As the driver gives it: SQLite keeps what it likes in any column, and of an
# integer the type would make as many bytes.
_COHORT = sa.type_coerce(_ROUNDS.c.cohort, sa.types.NullType())


def create(connection: sa.engine.Connection) -> None:
  """Makes the tables that are not there, and the row of the ledger."""
  for table in _METADATA.sorted_tables:
    connection.execute(sa.schema.CreateTable(table, if_not_exists=True))
  if connection.execute(sa.select(_LEDGER.c.place)).first() is None:
    connection.execute(sa.insert(_LEDGER).values(place=0, last_client=-1))


def get(connection: sa.engine.Connection, column: sa.Column) -> Optional[int]:
  """Returns `RUN` or `KEY`; None if it was not claimed."""
  return connection.execute(sa.select(column)).scalar_one()


def claim(
    connection: sa.engine.Connection, column: sa.Column, value: int
) -> int:
  """Sets `RUN` or `KEY` if it has no value, and returns the value it has."""
  connection.execute(
      sa.update(_LEDGER).where(column.is_(None)).values({column.name: value}))
  return connection.execute(sa.select(column)).scalar_one()


def last_client(connection: sa.engine.Connection) -> int:
  """Returns the highest client index; -1 without one."""
  found = connection.execute(sa.select(_LEDGER.c.last_client)).scalar_one()
  _require(isinstance(found, int), 'last client')
  return found


def add_round(
    connection: sa.engine.Connection,
    round_index: int,
    cohort: np.ndarray,
    highest: int,
) -> None:
  """Adds a round.

  Args:
    connection: to write.
    round_index: the round.
    cohort: [m] int64 identifiers, ascending.
    highest: the highest index in the cohort; -1 without one.

  Raises:
    sqlalchemy.exc.IntegrityError: the round is there.
  """
  connection.execute(
      sa.insert(_ROUNDS).values(
          round=round_index, cohort=cohort.astype('<i8').tobytes()))
  connection.execute(
      sa.update(_LEDGER).where(_LEDGER.c.last_client < highest).values(
          last_client=highest))


def add_attempt(
    connection: sa.engine.Connection, round_index: int, outcome: str
) -> int:
  """Adds an attempt at a round; returns how many there were before.

  An attempt before it that has no outcome yet has failed.
  """
  end_attempt(connection, round_index, FAILED)
  number = len(attempts(connection, round_index))
  connection.execute(
      sa.insert(_ATTEMPTS).values(
          round=round_index, attempt=number, outcome=outcome))
  return number


def end_attempt(
    connection: sa.engine.Connection,
    round_index: int,
    outcome: str,
    z_stddev: Optional[float] = None,
    result: Optional[bytes] = None,
) -> bool:
  """Gives the started attempt its outcome; returns whether there was one."""
  changed = connection.execute(
      sa.update(_ATTEMPTS).where(
          _ATTEMPTS.c.round == round_index, _ATTEMPTS.c.outcome == STARTED
      ).values(outcome=outcome, z_stddev=z_stddev, result=result))
  return changed.rowcount > 0


def attempts(
    connection: sa.engine.Connection, round_index: int
) -> list[tuple[str, Optional[float], Optional[bytes]]]:
  """Returns the outcomes, the noise measured and the results, in order."""
  rows = connection.execute(
      sa.select(
          _ATTEMPTS.c.outcome, _ATTEMPTS.c.z_stddev, _ATTEMPTS.c.result).where(
          _ATTEMPTS.c.round == round_index).order_by(_ATTEMPTS.c.attempt))
  return [tuple(row) for row in rows]


def finished(connection: sa.engine.Connection) -> tuple[int, Optional[float]]:
  """Returns how many rounds finished, and the least noise measured."""
  count, z_stddev = connection.execute(
      sa.select(
          sa.func.count(sa.distinct(_ATTEMPTS.c.round)),
          sa.func.min(_ATTEMPTS.c.z_stddev)
      ).where(_ATTEMPTS.c.outcome == FINISHED)).one()
  _require(z_stddev is None or isinstance(z_stddev, (int, float)), 'z_stddev')
  return count, z_stddev


def burnt(connection: sa.engine.Connection) -> int:
  """Returns how many rounds were abandoned."""
  return connection.execute(
      sa.select(sa.func.count(sa.distinct(_ATTEMPTS.c.round))).where(
          _ATTEMPTS.c.outcome == ABANDONED)).scalar_one()


def cohort(
    connection: sa.engine.Connection, round_index: int
) -> Optional[np.ndarray]:
  """Returns the identifiers of a round, ascending; None if it is not there."""
  content = connection.execute(
      sa.select(_COHORT).where(_ROUNDS.c.round == round_index)).first()
  return None if content is None else _identifiers(content[0])


def cohorts(
    connection: sa.engine.Connection, before: Optional[int] = None
) -> Iterator[tuple[int, np.ndarray]]:
  """Yields rounds, ascending, and their identifiers; reads a few at a time."""
  query = sa.select(_ROUNDS.c.round, _COHORT).order_by(_ROUNDS.c.round)
  if before is not None:
    query = query.where(_ROUNDS.c.round < before)
  rows = connection.execute(query, execution_options={'stream_results': True})
  last = -1
  for round_index, content in rows.yield_per(_COHORTS_AT_A_TIME):
    _require(isinstance(round_index, int) and round_index > last, 'round')
    last = round_index
    yield round_index, _identifiers(content)


def _identifiers(content: Any) -> np.ndarray:
  """Returns the identifiers in a cohort, [m] int64 ascending."""
  _require(
      isinstance(content, (bytes, memoryview)) and len(content) % 8 == 0,
      'cohort')
  found = np.frombuffer(content, '<i8')
  # PRIVACY: who counts participations relies on the order. Guard:
  # fuzz_ledgers_test.test_cohort_out_of_order_is_refused.
  _require(bool(np.all(found[1:] > found[:-1])), 'cohort')
  return found


def _require(holds: bool, name: str) -> None:
  if not holds:
    raise ValueError(
        errors.invalid(
            'ledger', name, 'is not what a ledger writes',
            'it was changed or is damaged: restore the file'))
