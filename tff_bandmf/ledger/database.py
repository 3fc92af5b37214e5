"""Where a ledger is: engines of SQLAlchemy for a file or a database server.

SQLite has a write-ahead log and syncs it at every commit. A server that gives
no answer is an error after a minute, and so is a lock that another process
keeps: nothing here waits for ever.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import sqlite3
import time
from collections.abc import Iterator
from typing import Optional, Union

import sqlalchemy as sa

from tff_bandmf import errors

# To wait for a lock, a connection or an answer.
_SECONDS = 60
# Attempts to make a write-ahead log.
_SWITCHES = 5
# Any number that no other program takes: 'bandmf' in hexadecimal digits.
_TABLES_LOCK = 0x62616E646D66


def url_of(url: Union[str, os.PathLike]) -> sa.engine.URL:
  """Returns the URL of a database: `url`, or that of SQLite in this file."""
  if isinstance(url, str) and '://' in url:
    return sa.engine.make_url(url)
  return sa.engine.URL.create('sqlite', database=os.fspath(url))


def sqlite_path(url: sa.engine.URL) -> Optional[pathlib.Path]:
  """Returns the file of a SQLite database; None for a database server.

  Raises:
    ValueError: the database is in memory.
  """
  if url.get_backend_name() != 'sqlite':
    return None
  if url.database in (None, '', ':memory:'):
    raise errors.value_error(
      'ledger',
      url,
      'must be a file, since memory survives no crash',
      'give a path',
    )
  return pathlib.Path(url.database)


def engines(url: sa.engine.URL) -> tuple[sa.engine.Engine, sa.engine.Engine]:
  """Returns an engine to write and one to read; the first disposes of both.

  What was written is on the disk when a transaction ends. To a transaction that
  reads the database stands still.
  """
  if url.get_backend_name() == 'sqlite':
    writer = sa.create_engine(
      url,
      future=True,
      poolclass=sa.pool.QueuePool,
      connect_args={'check_same_thread': False, 'timeout': _SECONDS},
    )
    sa.event.listen(writer, 'connect', _make_sqlite_durable)
    sa.event.listen(writer, 'begin', _begin_sqlite)
    return writer, writer.execution_options(reads=True)
  if url.drivername not in ('postgresql', 'postgresql+psycopg2'):
    raise errors.value_error(
      'ledger',
      url.drivername,
      'is not a database that a ledger can be in',
      'use a SQLite file or postgresql+psycopg2://',
    )
  from tff_bandmf.ledger import postgresql

  writer = sa.create_engine(
    url,
    future=True,
    pool_pre_ping=True,
    isolation_level='READ COMMITTED',
    connect_args=postgresql.connect_args(
      str(url.query.get('options', '')), _SECONDS
    ),
  )
  return writer, writer.execution_options(isolation_level='REPEATABLE READ')


def wait_to_create(connection: sa.engine.Connection) -> None:
  """Returns when no other process makes tables, until the transaction ends.

  Two processes that create a table `if not exists` in PostgreSQL both try, and
  one fails. SQLite waits by itself when a transaction that writes begins.
  """
  if connection.dialect.name == 'postgresql':
    connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_TABLES_LOCK)))


@contextlib.contextmanager
def transaction(engine: sa.engine.Engine) -> Iterator[sa.engine.Connection]:
  """Yields a connection; what is written is kept if nothing raises.

  Raises:
    ValueError: the database is damaged, locked or gone.
  """
  try:
    with engine.begin() as connection:
      yield connection
  except (sa.exc.SQLAlchemyError, engine.dialect.dbapi.Error) as error:
    raise unusable(
      engine.url.render_as_string(hide_password=True), error
    ) from None


def unusable(url: object, error: Exception) -> ValueError:
  """Returns what to raise for an error of the database at this URL."""
  if isinstance(url, pathlib.Path) and not os.access(url.parent, os.W_OK):
    return errors.value_error(
      'ledger',
      url,
      'lies in a folder that cannot be written, and SQLite writes beside a '
      'file even to read it',
      'make the folder writable, or copy it and give the copy',
    )
  # Never the statement, whose parameters are identifiers of clients.
  return errors.value_error(
    'ledger',
    url,
    f'cannot be used ({getattr(error, "orig", None) or error})',
    'look at the space and the permissions of its disk, or the address '
    'of its server; do not touch the files of a run',
  )


def _make_sqlite_durable(connection, _) -> None:
  # Without it the driver begins transactions on its own, and not all.
  connection.isolation_level = None
  # PRIVACY: on the disk before the round runs. Guard:
  # ledger_test.test_every_start_is_synced_to_the_disk.
  for left in reversed(range(_SWITCHES)):
    try:
      connection.execute('PRAGMA journal_mode = WAL')
      break
    except sqlite3.OperationalError:
      # SQLite fails some processes at once that open a new file together.
      if not left:
        raise
      time.sleep(0.1)
  connection.execute('PRAGMA synchronous = FULL')


def _begin_sqlite(connection: sa.engine.Connection) -> None:
  # A transaction that only comes to write later could find itself outrun.
  reads = connection.get_execution_options().get('reads')
  connection.exec_driver_sql('BEGIN' if reads else 'BEGIN IMMEDIATE')
