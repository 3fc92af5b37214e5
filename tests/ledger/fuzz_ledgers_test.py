"""Fuzzing of ledgers: a damaged one is refused in one line.

What is not refused is not damaged where it counts: it shows what was written.
"""

import contextlib
import os
import sqlite3

import fuzzing
import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from tff_bandmf import ledger as ledger_lib

_COHORTS = ([3, 1, 2], [5, 4], [], [1, 6, 7])


def _valid(path):
  with ledger_lib.Ledger(path) as ledger:
    ledger.bind(run=5, noise_key=6)
    for t, cohort in enumerate(_COHORTS):
      ledger.start_round(t, cohort)
      ledger.finish_round(t, 0.5)


@pytest.fixture(scope='module')
def valid(tmp_path_factory):
  """The file of a ledger."""
  path = tmp_path_factory.mktemp('ledger') / 'ledger.sqlite'
  _valid(path)
  return path


@pytest.fixture(scope='module')
def content(valid):
  """The bytes of a ledger without its key."""
  return valid.read_bytes()


@pytest.fixture(scope='module')
def expected(valid):
  """What the ledger shows."""
  with ledger_lib.Ledger(valid, create=False) as ledger:
    return ledger.observed()


def _replace(path, content):
  for name in ('', '-wal', '-shm'):
    path.with_name(path.name + name).unlink(missing_ok=True)
  path.write_bytes(content)


def _check(path, key, expected):
  """Reads all that there is, and adds to it."""
  calls = (
    lambda ledger: ledger.observed(),
    lambda ledger: [ledger.attempts(t) for t in range(5)],
    lambda ledger: ledger.cohort(0),
    lambda ledger: ledger.history(10, 9),
    lambda ledger: ledger.start_round(4, [8]),
    lambda ledger: ledger.finish_round(4),
    lambda ledger: ledger.abandon_round(1),
    lambda ledger: ledger.bind(run=5, noise_key=6),
  )
  with fuzzing.bounded():
    try:
      ledger = ledger_lib.Ledger(path, create=False, key_file=key)
    except ValueError as error:
      fuzzing.check_message(str(error))
      return
    with ledger:
      for call in calls:
        try:
          found = call(ledger)
        except ValueError as error:
          fuzzing.check_message(str(error), [key.read_bytes().hex()])
          continue
        if isinstance(found, ledger_lib.Counts):
          assert found == expected


@pytest.fixture
def path(tmp_path):
  return tmp_path / 'ledger.sqlite'


@pytest.fixture
def key(tmp_path):
  _valid(tmp_path / 'other.sqlite')
  return tmp_path / 'private' / 'ledger.key'


@pytest.mark.slow
def test_bytes_changed_are_refused(path, key, content, expected):
  @fuzzing.cases(120)
  @hypothesis.given(fuzzing.flipped(content))
  def check(changed):
    _replace(path, changed)
    _check(path, key, expected)

  check()


_LITERALS = (
  'NULL', '-1', '0', '1', '3', '9223372036854775807', '-9223372036854775808',
  '1e999', '-0.5', "'x'", "''", "'1'", 'zeroblob(8)', 'zeroblob(7)', "x'00'",
  'zeroblob(24)', '4000000000', 'randomblob(16)', "CAST(x'ff' AS TEXT)",
  "'\x1b[2J'",
)  # fmt: skip
_COLUMNS = {
  'bandmf_ledger': (
    'place',
    'format',
    'run',
    'noise_key',
    'key',
    'events',
    'head',
  ),
  'bandmf_rounds': ('round', 'highest', 'cohort'),
  'bandmf_events': (
    'place',
    'round',
    'kind',
    'digest',
    'z_stddev',
    'noise_checked',
    'head',
  ),
}


@st.composite
def _statement(draw):
  table = draw(st.sampled_from(sorted(_COLUMNS)))
  column = draw(st.sampled_from(_COLUMNS[table]))
  literal = st.sampled_from(_LITERALS)
  return draw(
    st.sampled_from(
      (
        f'UPDATE {table} SET {column} = {draw(literal)}',
        f'UPDATE {table} SET {column} = {draw(literal)} WHERE rowid = 2',
        f'UPDATE {table} SET {column} = -{column}',
        f'DELETE FROM {table}',
        f'DELETE FROM {table} WHERE rowid > 1',
        f'INSERT INTO {table} SELECT {", ".join(draw(literal) for _ in _COLUMNS[table])}',  # noqa: E501
        f'ALTER TABLE {table} RENAME COLUMN {column} TO other',
        f'ALTER TABLE {table} ADD COLUMN other',
        f'DROP TABLE {table}',
        f'CREATE TABLE copy AS SELECT * FROM {table}; DROP TABLE {table}; '
        f'ALTER TABLE copy RENAME TO {table}; '
        f'INSERT INTO {table} SELECT * FROM {table}; '
        f'UPDATE {table} SET {column} = {draw(literal)}',
        f'ALTER TABLE {table} RENAME TO copy; '
        f'CREATE VIEW {table} AS SELECT * FROM copy',
        f'CREATE TRIGGER t BEFORE INSERT ON {table} BEGIN '
        f"SELECT RAISE(ABORT, 'a\nb'); END",
      )
    )
  )


@pytest.mark.slow
def test_rows_and_tables_changed_are_refused(path, key, content, expected):
  @fuzzing.cases(180)
  @hypothesis.given(st.lists(_statement(), min_size=1, max_size=2))
  def check(statements):
    _replace(path, content)
    with contextlib.closing(sqlite3.connect(path)) as connection:
      for statement in statements:
        with contextlib.suppress(sqlite3.Error):
          connection.executescript(statement)
    _check(path, key, expected)

  check()


def _refused(path, content, script, match):
  _replace(path, content)
  with contextlib.closing(sqlite3.connect(path)) as connection:
    connection.executescript(script)
  with pytest.raises(ValueError, match=match):
    ledger_lib.Ledger(path, create=False)


def test_cohort_out_of_order_is_refused(path, content):
  cohort = np.array([3, 1], '<i8').tobytes().hex()
  _refused(
    path,
    content,
    f"UPDATE bandmf_rounds SET cohort = x'{cohort}'",
    'ledger=cohort',
  )


def test_integer_for_a_cohort_makes_no_gigabytes(path, content):
  # bytes(n) are n zeros.
  with fuzzing.bounded(len(content)):
    _refused(
      path,
      content,
      'UPDATE bandmf_rounds SET cohort = 4000000000',
      'ledger=cohort',
    )


def test_computed_cohort_is_refused(path, content):
  _refused(
    path,
    content,
    'DROP TABLE bandmf_rounds; CREATE TABLE bandmf_rounds (round BIGINT, '
    'highest BIGINT, cohort BLOB AS (zeroblob(999999992))); '
    'INSERT INTO bandmf_rounds (round) VALUES (0)',
    'is not a participation ledger',
  )


def test_pipe_is_no_ledger(tmp_path):
  os.mkfifo(tmp_path / 'ledger.sqlite')
  with fuzzing.bounded(0):
    with pytest.raises(ValueError, match='does not exist'):
      ledger_lib.Ledger(tmp_path / 'ledger.sqlite', create=False)
