"""Tests of participation logs of training that ran elsewhere."""

import pathlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tff_bandmf import sensitivity
from tff_bandmf.program import participation_log

pa = pytest.importorskip('pyarrow')
parquet = pytest.importorskip('pyarrow.parquet')
csv = pytest.importorskip('pyarrow.csv')

_ROWS = [(0, 'ann'), (0, 'bob'), (4, 'ann'), (7, 'bob'), (9, 'ann')]


def _written(path, rows, clients=None):
  """Writes a log of (round, client) to a file of either kind."""
  table = pa.table(
    {
      'device': pa.array(['x'] * len(rows)),
      'client': pa.array([client for _, client in rows], clients),
      'round': pa.array([t for t, _ in rows], pa.int64()),
    }
  )
  if path.suffix == '.csv':
    csv.write_csv(table, path)
  else:
    parquet.write_table(table, path, row_group_size=2)
  return participation_log.ParticipationLog(path)


def _seen(log, **options):
  return sensitivity.of_clients(log.parts(**options))


@pytest.mark.parametrize('suffix', ['.csv', '.parquet'])
@pytest.mark.parametrize('order', [1, -1])
def test_log_shows_its_rows(tmp_path, suffix, order):
  log = _written(tmp_path / f'log{suffix}', _ROWS[::order])
  assert (log.participations, log.rounds) == (5, 10)
  assert _seen(log) == sensitivity.Observed(2, 5, 4, 3, {2: 1, 3: 1})


@settings(max_examples=12)
@given(
  rows=st.sets(
    st.tuples(st.integers(0, 30), st.text(max_size=9)), min_size=1, max_size=60
  ).map(sorted),
  suffix=st.sampled_from(['.csv', '.parquet']),
  at_a_time=st.integers(1, 80),
)
def test_parts_are_the_log(tmp_path_factory, rows, suffix, at_a_time):
  if suffix == '.csv':  # A CSV file tells no empty string from none.
    rows = [(t, f'c{client!r}') for t, client in rows]
  path = tmp_path_factory.mktemp('logs') / f'log{suffix}'
  found = _seen(_written(path, rows), at_a_time=at_a_time)
  taken = {}
  for t, client in sorted(rows):
    taken.setdefault(client, []).append(t)
  gaps = [b - a for each in taken.values() for a, b in zip(each, each[1:])]
  counts = [len(each) for each in taken.values()]
  assert found == sensitivity.Observed(
    len(taken),
    len(rows),
    min(gaps, default=None),
    max(counts),
    {count: counts.count(count) for count in sorted(set(counts))},
  )


@pytest.mark.parametrize(
  'clients',
  [pa.int32(), pa.uint64(), pa.int64()],
  ids=str,
)
def test_clients_may_be_numbers(tmp_path, clients):
  rows = [(0, 7), (3, 7), (1, 2 ** (clients.bit_width - 1) - 1)]
  log = _written(tmp_path / 'log.parquet', rows, clients)
  assert _seen(log) == sensitivity.Observed(2, 3, 3, 2, {1: 1, 2: 1})


@pytest.mark.parametrize(
  'clients',
  [pa.large_string(), pa.binary(), pa.dictionary(pa.int8(), pa.string())],
  ids=str,
)
def test_clients_may_be_text_of_any_type(tmp_path, clients):
  table = pa.table(
    {
      'round': [t for t, _ in _ROWS],
      'client': pa.array([client for _, client in _ROWS]).cast(clients)
      if clients != pa.dictionary(pa.int8(), pa.string())
      else pa.array([client for _, client in _ROWS]).dictionary_encode(),
    }
  )
  parquet.write_table(table, tmp_path / 'log.parquet')
  log = participation_log.ParticipationLog(tmp_path / 'log.parquet')
  assert _seen(log) == sensitivity.Observed(2, 5, 4, 3, {2: 1, 3: 1})


def test_hashes_are_uniform_and_do_not_meet(tmp_path):
  names = [f'client-{i:07d}' for i in range(200_000)]
  log = _written(tmp_path / 'log.csv', [(0, name) for name in names])
  sizes = [len(rounds) for rounds, _ in log.parts(at_a_time=12_500)]
  assert sum(sizes) == len(names) and len(sizes) == 16
  # 6.3 standard deviations of a part: 16 parts all keep to it but once in 10^8.
  assert max(abs(size - 12_500) for size in sizes) < 6.3 * 12_500**0.5
  assert _seen(log).clients == len(names)


@pytest.mark.parametrize(
  'text, message',
  [
    ('round,client\n0,a\n0,a\n', 'is twice in a round'),
    ('round,client\n-1,a\n', 'rounds are counted from 0'),
    ('round,client\n0,a\n3000000000,b\n', 'rounds are counted from 0'),
    ('round,client\n0,a\nb,c\n', 'cannot be read'),
    ('round,client\n0.5,a\n', 'cannot be read'),
    ('round,client\n,a\n', 'are missing in some rows'),
    ('round,client\n0,\n', 'are missing in some rows'),
    ('time,client\n0,a\n', "Column 'round'"),
    ('', 'cannot be read'),
    ('round,client\n0,a,7\n', 'cannot be read'),
  ],
)
def test_malformed_csv_is_refused_in_one_line(tmp_path, text, message):
  path = tmp_path / 'log.csv'
  path.write_text(text)
  with pytest.raises(ValueError, match=message) as caught:
    _seen(participation_log.ParticipationLog(path))
  assert '\n' not in str(caught.value)


def _no_columns(path):
  parquet.write_table(pa.table({'round': [1]}), path)


def _truncated(path):
  _written(path, _ROWS)
  path.write_bytes(path.read_bytes()[:-40])


def _fractions(path):
  parquet.write_table(pa.table({'round': [0.5], 'client': ['a']}), path)


def _lists(path):
  parquet.write_table(pa.table({'round': [1], 'client': [['a']]}), path)


@pytest.mark.parametrize('write', [_no_columns, _truncated, _fractions, _lists])
def test_malformed_parquet_is_refused_in_one_line(tmp_path, write):
  path = pathlib.Path(tmp_path, 'log.parquet')
  write(path)
  with pytest.raises(ValueError, match='log.parquet') as caught:
    participation_log.ParticipationLog(path)
  assert '\n' not in str(caught.value)


def test_other_files_are_refused(tmp_path):
  with pytest.raises(ValueError, match='must end in one of'):
    participation_log.ParticipationLog(tmp_path / 'log.json')
  with pytest.raises(FileNotFoundError, match='there is no such file'):
    participation_log.ParticipationLog(tmp_path / 'log.csv')


def test_log_without_rows_shows_nobody(tmp_path):
  path = tmp_path / 'log.csv'
  path.write_text('round,client\n')
  log = participation_log.ParticipationLog(path)
  assert (log.participations, log.rounds) == (0, 0)
  assert _seen(log).clients == 0
  np.testing.assert_equal(list(log.parts())[0][0], [])
