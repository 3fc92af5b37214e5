"""Tests of participation logs of training that ran elsewhere."""

import csv
import functools
import gzip
import hashlib
import pathlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tff_bandmf import sensitivity, strategies
from tff_bandmf.report import participation_log

pa = pytest.importorskip('pyarrow')
parquet = pytest.importorskip('pyarrow.parquet')

_STRATEGY = strategies.BandedSqrt(40, 6)
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
  # Names with characters that no name may have are for client_names_test.
  names = [client.encode('utf-16', 'surrogatepass').hex() for _, client in rows]
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
    ('round,client\n0,a\n0,a\n', "'a', in .*line 2 and in .*line 3"),
    ('round,client\n-1,a\n', 'rounds are counted from 0'),
    ('round,client\n0,a\n3000000000,b\n', 'line 3: round=3000000000'),
    ('round,client\n0,a\nb,c\n', "line 3 has round='b'"),
    ('round,client\n0.5,a\n', "line 2 has round='0.5'"),
    ('round,client\n,a\n', 'line 2: the value of round is missing'),
    ('round,client\n0,\n', "line 2: client='' is empty"),
    ('time,client\n0,a\n', "line 1 has the columns .*none of which is 'round'"),
    ('', 'cannot be read'),
    ('round,client\n0,a,7\n', 'line 2 has 3 cells, not 2'),
    ('round,client\n0,a\n\n1,a\n', 'line 3: the value of round is missing'),
    ('round,client\n0,a\n1,"a"\n', 'line 3: .* a quote; .* bare name'),
    ('round,client\n0,a\n1,a\x00\n', r'line 3: .* has U\+0000'),
    ('round,client\n0,a\n1,a', 'may be cut'),
    ('round,client\n0,a\n1,a\r\n', 'may be cut'),
  ],
)
def test_malformed_csv_is_refused_in_one_line(tmp_path, text, message):
  path = tmp_path / 'log.csv'
  path.write_text(text)
  with pytest.raises(ValueError, match=message) as caught:
    participation_log.ParticipationLog(path).observed(_STRATEGY)
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
  return sensitivity.of_clients(log.parts(), _STRATEGY).sensitivity.value


def _claims_less(path, content):
  """Returns whether a changed `_TEXT` is taken, and shows less than it does."""
  true = _shown(path, _TEXT.encode())
  try:
    return _shown(path, content) < true
  except ValueError as error:
    assert '\n' not in str(error)
    return False


@pytest.mark.slow
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


def _csv(path, header, rows=_ROWS):
  lines = [','.join(header), *(f'{t},{client},x' for t, client in rows)]
  path.write_text('\n'.join(lines) + '\n')


@pytest.mark.parametrize(
  'other',
  ['client', 'Client', 'client.1', ' client', 'round', 'ROUND', '"round"'],
)
def test_column_that_occurs_twice_is_refused(tmp_path, other):
  """The first one counted: with the true one behind it, 3.19 for 8.00."""
  _csv(tmp_path / 'log.csv', ['round', 'client', other])
  path = tmp_path / 'log.parquet'
  columns = ['round', 'client', other.strip('"')]
  arrays = [pa.array([0]), pa.array(['a']), pa.array(['b'])]
  parquet.write_table(pa.Table.from_arrays(arrays, columns), path)
  for each in tmp_path / 'log.csv', path:
    with pytest.raises(ValueError, match=f'{each.name}.* twice') as caught:
      participation_log.ParticipationLog(each)
    assert '\n' not in str(caught.value)


def test_columns_may_have_other_names(tmp_path):
  _csv(tmp_path / 'log.csv', ['step', 'user id', '"device"'])
  log = participation_log.ParticipationLog(
    tmp_path / 'log.csv', round_column='step', client_column='user id'
  )
  assert _seen(log) == sensitivity.Observed(2, 5, 4, 3, {2: 1, 3: 1})
  with pytest.raises(ValueError, match='--round-column'):
    participation_log.ParticipationLog(tmp_path / 'log.csv')
  with pytest.raises(ValueError, match='client_column=step: is the column of'):
    participation_log.ParticipationLog(tmp_path / 'log.csv', 'step', 'step')


_TABLE = b'round,client\n0,a\n1,a\n'


@pytest.mark.parametrize(
  'content, message',
  [
    (_TABLE.replace(b',', b';'), 'line 1 has semicolons .*write commas'),
    (_TABLE.replace(b',', b'\t'), 'line 1 has tabs .*write commas'),
    (_TABLE.replace(b',', b'|'), 'line 1 has bars .*write commas'),
    (b'client; round\n', 'line 1 has semicolons .*write commas'),
    (_TABLE.decode().encode('utf-16'), 'is UTF-16; save it as UTF-8'),
    (_TABLE.decode().encode('utf-16-le'), 'is UTF-16 or UTF-32'),
    (_TABLE.decode().encode('utf-32'), 'is UTF-16'),
    (b'PAR1' + bytes(20), 'is a Parquet file; let its name end in .parquet'),
    (gzip.compress(_TABLE, mtime=0), r'is compressed with gzip; .*\.csv\.gz'),
    (b'PK\x03\x04' + bytes(20), 'is a zip archive or a workbook'),
    (b'GIF89a\x10' + bytes(2) + b'\n' + bytes(20), 'is binary'),
    (b'\x80\x81round,client\n', 'is not UTF-8'),
    (b'0,a\n1,b\n', r"line 1 has the columns \['0', 'a'\], none of which"),
    (b'Round,client\n0,a\n', "line 1 has 'Round', not 'round'"),
    (b'round, client\n0,a\n', "line 1 has ' client', not 'client'"),
    (_TABLE + b'2,\xff\n', "line 4 is not UTF-8: '2,"),
    (_TABLE + b'2,None\n', "line 4: client='None' stands for a missing name"),
    (_TABLE + b'2,NA\n', "line 4: client='NA' stands for a missing name"),
    (_TABLE + b'2,a \n', "line 4: client='a ' ends with a blank"),
    (_TABLE + b'1,a\n', "'a', in .*line 3 and in .*line 4; give each"),
    (_TABLE + b'99,a\n', 'round=99: is not among the 40 rounds .*line 4'),
    (_TABLE + b'2\n', "line 4 has 1 cells, not 2: '2'"),
    (_TABLE + b'x2,a\n', "line 4 has round='x2', which must be an integer"),
    (b'\xef\xbb\xbf' + _TABLE + b'x2,a\n', "line 4 has round='x2', which"),
    (_TABLE + b'2,a', 'line 4, the last one, has no line end'),
  ],
)
def test_other_table_is_refused_with_its_file_and_row(
  tmp_path, content, message
):
  path = tmp_path / 'log.csv'
  path.write_bytes(content)
  with pytest.raises(ValueError, match=message) as caught:
    participation_log.ParticipationLog(path).observed(_STRATEGY)
  assert '\n' not in str(caught.value) and str(path) in str(caught.value)


def test_byte_order_mark_is_no_part_of_a_column(tmp_path):
  (tmp_path / 'log.csv').write_bytes(b'\xef\xbb\xbf' + _TABLE)
  assert participation_log.ParticipationLog(tmp_path / 'log.csv').rounds == 2


def test_line_of_a_compressed_file_is_named_whatever_the_case(tmp_path):
  path = tmp_path / 'LOG.CSV.GZ'
  path.write_bytes(gzip.compress(_TABLE + b'x2,a\n'))
  with pytest.raises(ValueError, match="line 4 has round='x2'"):
    participation_log.ParticipationLog(path)


def test_compressed_log_is_read(tmp_path):
  path = tmp_path / 'log.csv.gz'
  path.write_bytes(gzip.compress(_TABLE))
  log = participation_log.ParticipationLog(path)
  assert _seen(log) == sensitivity.Observed(1, 2, 1, 2, {2: 1})
  assert log.sha256() == hashlib.sha256(path.read_bytes()).hexdigest()
  for damaged in (path.read_bytes()[:-9], path.read_bytes()[:-12] + bytes(12)):
    path.write_bytes(damaged)
    with pytest.raises(ValueError, match=r'log\.csv\.gz: cannot be read'):
      participation_log.ParticipationLog(path)


def test_folder_of_parquet_files_is_one_log(tmp_path):
  folder = tmp_path / 'log'
  folder.mkdir()

  def part(i, rows):
    columns = dict(zip(('round', 'client'), zip(*rows)))
    parquet.write_table(pa.table(columns), folder / f'part-{i}.parquet')

  for i in range(3):
    part(i, _ROWS[2 * i : 2 * i + 2])
  (folder / '_SUCCESS').touch()
  log = participation_log.ParticipationLog(folder)
  assert _seen(log) == sensitivity.Observed(2, 5, 4, 3, {2: 1, 3: 1})
  lines = ''.join(
    f'{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n'
    for path in sorted(folder.glob('*.parquet'))
  )
  assert log.sha256() == hashlib.sha256(lines.encode()).hexdigest()
  # A repetition is found across files.
  part(3, _ROWS[:1])
  with pytest.raises(ValueError, match=r'part-0.*row 1 and in .*part-3.*row 1'):
    participation_log.ParticipationLog(folder).observed(_STRATEGY)
  part(3, [(0, 7)])
  with pytest.raises(ValueError, match='part-3.* are integers, and strings in'):
    participation_log.ParticipationLog(folder)


@pytest.mark.parametrize(
  'name', ['part-1.csv', 'more/', 'part.parquet.gz', '_temporary/', None]
)
def test_folder_with_other_files_is_refused(tmp_path, name):
  if name is not None:
    _written(tmp_path / 'part-0.parquet', _ROWS)
    path = tmp_path / name
    path.mkdir() if name.endswith('/') else path.touch()
  with pytest.raises(ValueError, match=f'log={tmp_path}: has '):
    participation_log.ParticipationLog(tmp_path)


@pytest.mark.parametrize('suffix', ['.csv', '.parquet'])
def test_names_alike_are_a_warning(tmp_path, suffix):
  rows = [(0, '7'), (1, '7'), (2, '7.0'), (2, 'a'), (3, '7.0')]
  log = _written(tmp_path / f'log{suffix}', rows)
  assert "'7'" in log.alike and "'7.0'" in log.alike
  assert log.observed(_STRATEGY).clients == 3
  assert _written(tmp_path / f'log{suffix}', _ROWS).alike is None
