"""Connections to the database of a ledger, in SQLite or PostgreSQL.

SQLite writes to a write-ahead log, and syncs this log to the disk at every
commit. A call raises an error after a minute if another process holds a lock,
if a query of PostgreSQL has no result, or if a server cannot be reached.
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

# Time limit in seconds for a lock, a connection or a query.
_SECONDS = 60
# Number of attempts to switch a SQLite file to a write-ahead log.
_SWITCHES = 5
# Number of an advisory lock of PostgreSQL: the ASCII codes of 'bandmf'.
_TABLES_LOCK = 0x62616E646D66


def url_of(url: Union[str, os.PathLike]) -> sa.engine.URL:
  """Returns a database's URL, given this URL or the path of a SQLite file."""
  if isinstance(url, str) and '://' in url:
    return sa.engine.make_url(url)
  return sa.engine.URL.create('sqlite', database=os.fspath(url))


def sqlite_path(url: sa.engine.URL) -> Optional[pathlib.Path]:
  """Returns the path of a SQLite database; None for a database server.

  Raises:
    ValueError: the database is in memory.
  """
  if url.get_backend_name() != 'sqlite':
    return None
  if url.database in (None, '', ':memory:'):
    raise errors.value_error(
      f'ledger={url}: must be a file: memory survives no crash; give a path'
    )
  return pathlib.Path(url.database)


def engines(url: sa.engine.URL) -> tuple[sa.engine.Engine, sa.engine.Engine]:
  """Returns (writer, reader), two engines for one database.

  A transaction of the writer is on the disk when it ends. A transaction of the
  reader sees the database as it was at one moment. `dispose` of the writer
  closes both engines.
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
      f'ledger={url.drivername}: is not a database that can hold a ledger; use '
      'a SQLite file or postgresql+psycopg2://'
    )
  with errors.importing('a ledger in PostgreSQL'):
    writer = sa.create_engine(
      url,
      future=True,
      pool_pre_ping=True,
      isolation_level='READ COMMITTED',
      connect_args=_postgresql_arguments(str(url.query.get('options', ''))),
    )
  return writer, writer.execution_options(isolation_level='REPEATABLE READ')


def wait_to_create(connection: sa.engine.Connection) -> None:
  """Locks the creation of tables until the transaction ends.

  If two processes create a table `if not exists` in PostgreSQL at the same
  time, one process fails. SQLite needs no such lock: a transaction that writes
  waits for earlier transactions when it begins.
  """
  if connection.dialect.name == 'postgresql':
    connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_TABLES_LOCK)))


@contextlib.contextmanager
def transaction(engine: sa.engine.Engine) -> Iterator[sa.engine.Connection]:
  """Yields a connection, and commits if the `with` block does not raise.

  Raises:
    ValueError: the database is damaged, locked or missing.
  """
  try:
    with engine.begin() as connection:
      yield connection
  except (sa.exc.SQLAlchemyError, engine.dialect.dbapi.Error) as error:
    url = engine.url.render_as_string(hide_password=True)
    raise unusable(url, error) from None


def unusable(url: object, error: Exception) -> ValueError:
  """Returns the error for a failure of the database at a URL or a path."""
  if isinstance(url, pathlib.Path) and not os.access(url.parent, os.W_OK):
    return errors.value_error(
      f'ledger={url}: lies in a folder that cannot be written, where SQLite '
      'writes files even to read; make the folder writable, or copy the folder'
    )
  # The message omits the query, since its parameters identify clients.
  return errors.value_error(
    f'ledger={url}: cannot be used ({getattr(error, "orig", None) or error}); '
    'check the free space and the permissions of its disk, or the address of '
    'its server; do not change the files of a run'
  )


def _make_sqlite_durable(connection, _) -> None:
  # With an isolation level, the driver would begin some transactions by itself.
  connection.isolation_level = None
  # PRIVACY: if a power cut erased the ledger's entry for a round that ran, the
  # claim would not count the clients of this round. With the two settings
  # below, SQLite syncs every commit to the disk before the call returns.
  # Guard: ledger_test.test_every_start_is_synced_to_the_disk.
  for left in reversed(range(_SWITCHES)):
    try:
      connection.execute('PRAGMA journal_mode = WAL')
      break
    except sqlite3.OperationalError:
      # If several processes open a new file together, SQLite raises this error
      # in some processes without waiting.
      if not left:
        raise
      time.sleep(0.1)
  connection.execute('PRAGMA synchronous = FULL')


def _postgresql_arguments(options: str) -> dict[str, Union[str, int]]:
  """Returns the arguments with which psycopg2 connects.

  Args:
    options: value of `options` in the URL, which goes to the server.
  """
  milliseconds = 1000 * _SECONDS
  settings = {
    # PRIVACY: if a server had this setting off, a power cut could lose the
    # start of a round that ran, and the claim would not count the clients of
    # the round. The setting is on here, so every commit waits for the disk.
    # Guard: ledger_test.test_every_start_is_synced_to_the_disk.
    'synchronous_commit': 'on',
    'statement_timeout': milliseconds,
    'lock_timeout': milliseconds,
    # After this time, the server takes the lock from a process that was stopped
    # in a transaction.
    'idle_in_transaction_session_timeout': 10 * milliseconds,
  }
  return {
    'options': ' '.join(
      [options, *(f'-c {name}={value}' for name, value in settings.items())]
    ).strip(),
    # Limits of libpq for a server that cannot be reached. If the process of the
    # server is stopped, the limits do not apply: the connection stays open, and
    # the program waits.
    'connect_timeout': _SECONDS,
    'tcp_user_timeout': milliseconds,
    'keepalives_idle': _SECONDS // 2,
    'keepalives_interval': max(1, _SECONDS // 10),
    'keepalives_count': 5,
  }


def _begin_sqlite(connection: sa.engine.Connection) -> None:
  # A transaction that writes takes the lock when it begins. A transaction that
  # took the lock later could fail, because another transaction could write
  # first.
  reads = connection.get_execution_options().get('reads')
  connection.exec_driver_sql('BEGIN' if reads else 'BEGIN IMMEDIATE')
