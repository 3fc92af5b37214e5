"""Tests of participation logs of training that ran elsewhere."""

import csv
import functools
import pathlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tff_bandmf import sensitivity, strategies
from tff_bandmf.report import participation_log

pa = pytest.importorskip('pyarrow')
parquet = pytest.importorskip('pyarrow.parquet')

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
    with open(path, 'w', newline='') as file:
      csv.writer(file, quoting=csv.QUOTE_NONE).writerows(
        [table.column_names, *zip(*table.to_pydict().values())]
      )
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
  size=st.integers(1, 80),
)
def test_parts_are_the_log(tmp_path_factory, rows, suffix, size):
  if suffix == '.csv':  # A CSV file tells no empty string from none.
    names = [client.encode().hex() for _, client in rows]
    rows = [(t, f'c{name}') for (t, _), name in zip(rows, names)]
  if min(rows)[0]:
    rows.insert(0, (0, 'first'))
  path = tmp_path_factory.mktemp('logs') / f'log{suffix}'
  found = _seen(_written(path, rows), size=size)
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


@pytest.mark.slow
def test_hashes_are_uniform_and_do_not_meet(tmp_path):
  names = [f'client-{i:07d}' for i in range(200_000)]
  log = _written(tmp_path / 'log.csv', [(0, name) for name in names])
  sizes = [len(rounds) for rounds, _ in log.parts(size=12_500)]
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
    ('round,client\n0,a\n\n1,a\n', 'are missing in some rows'),
    ('round,client\n0,a\n1,"a"\n', 'nothing is quoted in a log'),
    ('round,client\n0,a\n1,a\x00\n', 'nothing is quoted in a log'),
    ('round,client\n0,a\n1,a', 'may be cut'),
    ('round,client\n0,a\n1,a\r\n', 'may be cut'),
  ],
)
def test_malformed_csv_is_refused_in_one_line(tmp_path, text, message):
  path = tmp_path / 'log.csv'
  path.write_text(text)
  with pytest.raises(ValueError, match=message) as caught:
    _seen(participation_log.ParticipationLog(path))
  assert '\n' not in str(caught.value)


# Client a comes in every third round, the others once.
_TEXT = 'device,round,client\n' + ''.join(
  f'x,{t},{"a1" if t % 3 == 0 else f"b{t}"}\n' for t in range(30)
)


@functools.cache
def _shown(path, content):
  """Returns the sensitivity that a log with this content shows."""
  path.write_bytes(content)
  log = participation_log.ParticipationLog(path)
  strategy = strategies.BandedSqrt(40, 6)
  return sensitivity.of_clients(log.parts(), strategy).sensitivity.value


def _claims_less(path, content):
  """Returns whether a changed `_TEXT` is taken, and shows less than it does."""
  true = _shown(path, _TEXT.encode())
  try:
    return _shown(path, content) < true
  except ValueError as error:
    assert '\n' not in str(error)
    return False


@pytest.mark.parametrize('last', ['', ',device'])
def test_quote_never_makes_a_claim_smaller(tmp_path, last):
  content = _TEXT.replace('\n', f'{last}\n').replace('device', 'd', 1).encode()
  cells = [0] + [i + 1 for i, byte in enumerate(content) if byte in b',\n']
  for i in cells[:-1]:
    for changed in (b'"' + content[i:], b'"' + content[i + 1 :]):
      changed = content[:i] + changed
      assert not _claims_less(tmp_path / 'log.csv', changed), changed


@pytest.mark.parametrize('byte', [b'\0', b'\r', b'\n', b',', b'"', b'\xef'])
def test_byte_never_makes_a_claim_smaller(tmp_path, byte):
  # Of the first rows and the last ones.
  content = _TEXT.encode()
  for i in [*range(60), *range(len(content) - 20, len(content))]:
    for rest in (content[i:], content[i + 1 :]):
      changed = content[:i] + byte + rest
      assert not _claims_less(tmp_path / 'log.csv', changed), changed


def test_blank_never_makes_a_claim_smaller(tmp_path):
  for name in (' a1', 'a1 ', '\ta1'):
    changed = _TEXT.replace('27,a1', f'27,{name}').encode()
    assert not _claims_less(tmp_path / 'log.csv', changed)


def test_log_that_was_cut_shows_whole_rows_alone(tmp_path):
  content = _TEXT.encode()
  for length in range(len(content) - 30, len(content)):
    path = tmp_path / 'log.csv'
    path.write_bytes(content[:length])
    if content[length - 1 : length] == b'\n':
      participation_log.ParticipationLog(path)
      continue
    with pytest.raises(ValueError, match='may be cut'):
      participation_log.ParticipationLog(path)


@pytest.mark.parametrize('suffix', ['.csv', '.parquet'])
def test_rounds_from_1_are_refused(tmp_path, suffix):
  rows = [(t + 1, client) for t, client in _ROWS]
  with pytest.raises(ValueError, match='begin at 1; .* from 0'):
    _written(tmp_path / f'log{suffix}', rows)


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
