"""Connections to PostgreSQL that give up on a server that is silent.

What the server limits by itself (statements, locks) it does not limit when it
is frozen, or behind a network that is gone. Here every wait for an answer ends:
after the limit the socket is shut down, and the call that waits raises.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from typing import Any

import psycopg2
from psycopg2 import extensions


def connect_args(options: str, seconds: int) -> dict[str, Any]:
  """Returns what `psycopg2.connect` takes.

  Args:
    options: of the server, as they stand in the URL.
    seconds: to wait for a connection, for a lock, and for each answer.
  """
  # The server tells before it is taken for silent.
  milliseconds = 750 * seconds
  settings = {
    # PRIVACY: on the disk before the round runs; the server's own setting may
    # be off. Guard: ledger_test.test_every_start_is_synced_to_the_disk.
    'synchronous_commit': 'on',
    'statement_timeout': milliseconds,
    'lock_timeout': milliseconds,
    # A process that is frozen does not keep the lock for ever.
    'idle_in_transaction_session_timeout': 10 * milliseconds,
  }

  class Connection(_Connection):
    limit = seconds

  return {
    'options': ' '.join(
      [options, *(f'-c {name}={value}' for name, value in settings.items())]
    ).strip(),
    'connect_timeout': seconds,
    'connection_factory': Connection,
    'cursor_factory': _Cursor,
  }


class _Connection(extensions.connection):
  """Attributes:
  limit: seconds to wait for an answer.
  """

  limit: float

  def commit(self):
    with _answered(self):
      return super().commit()

  def rollback(self):
    with _answered(self):
      return super().rollback()


class _Cursor(extensions.cursor):
  def execute(self, *args, **kwargs):
    with _answered(self.connection):
      return super().execute(*args, **kwargs)

  def close(self):
    try:
      with _answered(self.connection):
        super().close()
    except psycopg2.Error:
      # SQLAlchemy would print a traceback beside the error that its caller
      # gets. No cursor is left in a connection that is gone.
      if not self.connection.closed:
        raise

  def fetchone(self):
    with _answered(self.connection):
      return super().fetchone()

  def fetchmany(self, *args, **kwargs):
    with _answered(self.connection):
      return super().fetchmany(*args, **kwargs)

  def fetchall(self):
    with _answered(self.connection):
      return super().fetchall()


@contextlib.contextmanager
def _answered(connection: _Connection) -> Iterator[None]:
  """Cuts the connection if the server is silent for too long."""
  if connection.closed:
    yield
    return
  # A number of its own, which stays that of this connection.
  with socket.socket(fileno=os.dup(connection.fileno())) as line:
    silent = threading.Event()

    def cut():
      silent.set()
      # The peer may be gone just now.
      with contextlib.suppress(OSError):
        line.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(connection.limit, cut)
    timer.daemon = True
    timer.start()
    try:
      yield
    except psycopg2.Error:
      if silent.is_set():
        raise psycopg2.OperationalError(
          f'no answer within {connection.limit} seconds'
        ) from None
      raise
    finally:
      timer.cancel()
