"""Tests of servers that are frozen or silent: one clear error, and no hang."""

import signal
import socket
from unittest import mock

import databases
import pytest

from tff_bandmf import ledger as ledger_lib
from tff_bandmf.ledger import database, tables

pytestmark = pytest.mark.slow

pytest.importorskip('psycopg2')


class _Hang(BaseException):
  """Nothing that a program catches."""


@pytest.fixture(autouse=True)
def impatient():
  """Waits two seconds where a minute is usual, and fails on a hang."""

  def stop(*_):
    raise _Hang()

  handler = signal.signal(signal.SIGALRM, stop)
  signal.alarm(300)
  with mock.patch.object(database, '_SECONDS', 2):
    yield
  signal.alarm(0)
  signal.signal(signal.SIGALRM, handler)


def _backend(connection):
  return connection.exec_driver_sql('SELECT pg_backend_pid()').scalar()


def _one_line(caught):
  assert str(caught.value).isprintable()


def test_connection_has_the_time_limits_of_libpq(postgresql, tmp_path):
  with ledger_lib.Ledger(**databases.schema(postgresql, tmp_path)) as ledger:
    with database.transaction(ledger._writer) as connection:
      parameters = connection.connection.dbapi_connection.get_dsn_parameters()
      limit = connection.exec_driver_sql('SHOW statement_timeout').scalar()
  assert parameters['tcp_user_timeout'] == '2000'
  assert parameters['connect_timeout'] == '2'
  assert (parameters['keepalives_idle'], limit) == ('1', '2s')


def test_statement_that_takes_too_long_is_an_error(postgresql, tmp_path):
  with ledger_lib.Ledger(**databases.schema(postgresql, tmp_path)) as ledger:
    ledger.start_round(0, [1])
    with pytest.raises(ValueError, match='ledger=.*timeout') as caught:
      with ledger._write() as connection:
        connection.exec_driver_sql('SELECT pg_sleep(30)')
    _one_line(caught)
    ledger.finish_round(0)
    assert ledger.observed().finished == 1


def test_backend_that_ends_is_one_line(postgresql, tmp_path, caplog):
  """Among rows that are read: SQLAlchemy printed a traceback as well."""
  import psycopg2

  with ledger_lib.Ledger(**databases.schema(postgresql, tmp_path)) as ledger:
    for t in range(40):
      ledger.start_round(t, [t])
    with pytest.raises(ValueError, match='ledger=postgresql.*closed') as caught:
      with database.transaction(ledger._reader) as connection:
        backend = _backend(connection)
        with psycopg2.connect(postgresql.replace('+psycopg2', '')) as other:
          other.cursor().execute(f'SELECT pg_terminate_backend({backend})')
        list(tables.cohorts(connection))
    _one_line(caught)
    assert caplog.text == ''
    # The server goes on: so does the ledger.
    assert ledger.last_round() == 39


def test_schema_before_that_of_another_ledger_gets_its_own_tables(
  postgresql, tmp_path
):
  first = databases.schema(postgresql, tmp_path)
  with ledger_lib.Ledger(**first) as ledger:
    ledger.start_round(0, [1])
  second = databases.schema(postgresql, tmp_path)
  second['url'] += ',' + first['url'].rpartition('%3D')[2]
  with ledger_lib.Ledger(**second) as ledger:
    assert ledger.last_round() == -1
    ledger.start_round(5, [1])
  with ledger_lib.Ledger(**first) as ledger:
    assert ledger.last_round() == 0


def test_silent_server_is_an_error():
  with socket.create_server(('127.0.0.1', 0)) as server:
    port = server.getsockname()[1]
    with pytest.raises(ValueError, match='cannot be (opened|used)') as caught:
      ledger_lib.Ledger(f'postgresql+psycopg2://me:geheim@127.0.0.1:{port}/x')
  assert 'geheim' not in str(caught.value)
  _one_line(caught)


def test_lock_that_another_process_keeps_is_an_error(place):
  with (
    ledger_lib.Ledger(**place) as ledger,
    ledger_lib.Ledger(**place) as other,
  ):
    ledger.start_round(0, [1])
    other.attempts(0)
    with ledger._write():
      with pytest.raises(ValueError, match='timeout|locked') as caught:
        other.start_round(0, [1])
    _one_line(caught)
    other.start_round(0, [1])


def test_other_databases_are_refused():
  for url in 'mysql://me@x/y', 'postgresql+psycopg://me@x/y':
    with pytest.raises(
      ValueError, match='is not a database that can hold a ledger'
    ):
      ledger_lib.Ledger(url)
