"""The tables of a ledger, and what is written to and read from them.

| table           | holds                                                      |
|-----------------|------------------------------------------------------------|
| bandmf_ledger   | one row: the run and the key that the ledger belongs to,   |
|                 | the highest client index                                   |
| bandmf_rounds   | round; cohort: its identifiers, keyed hashes of clients,   |
|                 | ascending, 8 bytes each, little-endian                     |
| bandmf_attempts | round, attempt, outcome, the noise measured                |

A cohort is one value: it is there whole or not at all, and thousands of clients
cost one write. Every function here works in the transaction of its caller.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Optional

import numpy as np
import sqlalchemy as sa

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
    sa.Column('z_stddev', sa.Float(53)))

TABLES = frozenset(_METADATA.tables)
# The columns that `claim` sets.
RUN = _LEDGER.c.run
KEY = _LEDGER.c.key


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
  return get(connection, column)


def last_client(connection: sa.engine.Connection) -> int:
  """Returns the highest client index; -1 without one."""
  return connection.execute(sa.select(_LEDGER.c.last_client)).scalar_one()


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
) -> bool:
  """Gives the started attempt its outcome; returns whether there was one."""
  changed = connection.execute(
      sa.update(_ATTEMPTS).where(
          _ATTEMPTS.c.round == round_index, _ATTEMPTS.c.outcome == STARTED
      ).values(outcome=outcome, z_stddev=z_stddev))
  return changed.rowcount > 0


def attempts(
    connection: sa.engine.Connection, round_index: int
) -> list[tuple[str, Optional[float]]]:
  """Returns the outcomes and the noise measured, in order."""
  rows = connection.execute(
      sa.select(_ATTEMPTS.c.outcome, _ATTEMPTS.c.z_stddev).where(
          _ATTEMPTS.c.round == round_index).order_by(_ATTEMPTS.c.attempt))
  return [tuple(row) for row in rows]


def finished(connection: sa.engine.Connection) -> tuple[int, Optional[float]]:
  """Returns how many rounds finished, and the least noise measured."""
  return tuple(connection.execute(
      sa.select(
          sa.func.count(sa.distinct(_ATTEMPTS.c.round)),
          sa.func.min(_ATTEMPTS.c.z_stddev)
      ).where(_ATTEMPTS.c.outcome == FINISHED)).one())


def cohort(
    connection: sa.engine.Connection, round_index: int
) -> Optional[np.ndarray]:
  """Returns the identifiers of a round, ascending; None if it is not there."""
  content = connection.execute(
      sa.select(_ROUNDS.c.cohort).where(_ROUNDS.c.round == round_index)
  ).scalar()
  return None if content is None else np.frombuffer(content, '<i8')


def cohorts(
    connection: sa.engine.Connection, before: Optional[int] = None
) -> Iterator[tuple[int, np.ndarray]]:
  """Yields rounds, ascending, and their identifiers; reads a few at a time."""
  query = sa.select(_ROUNDS.c.round, _ROUNDS.c.cohort).order_by(_ROUNDS.c.round)
  if before is not None:
    query = query.where(_ROUNDS.c.round < before)
  rows = connection.execute(query, execution_options={'stream_results': True})
  for round_index, content in rows.yield_per(_COHORTS_AT_A_TIME):
    yield round_index, np.frombuffer(content, '<i8')
