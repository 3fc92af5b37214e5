"""Fuzzing of strategy files: whatever is in one, an answer or one line."""

import io
import itertools
import json
import os
import zipfile

import families
import fuzzing
import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from tff_bandmf import participation, strategies

pytestmark = pytest.mark.slow

_SCHEMAS = (
  None,
  participation.Single(),
  participation.MinSep(3),
  participation.FixedEpoch(4, 2),
)


def _written(folder, suffix):
  """Returns the content of valid files, one a family."""
  path = folder / f'valid{suffix}'
  found = []
  for strategy, schema in zip(
    families.made(9).values(), itertools.cycle(_SCHEMAS)
  ):
    strategies.save(strategy, path, participation=schema)
    found.append(path.read_bytes())
  return found


@pytest.fixture(scope='module')
def documents(tmp_path_factory):
  folder = tmp_path_factory.mktemp('valid')
  return [json.loads(content) for content in _written(folder, '.json')]


@pytest.fixture(scope='module')
def archives(tmp_path_factory):
  return _written(tmp_path_factory.mktemp('valid'), '.npz')


def _check(run, path, content):
  """Loads a file and, where it is a small strategy, evaluates it."""
  path.write_bytes(content)
  try:
    with fuzzing.bounded(len(content)):
      strategy, schema = strategies.load(path)
  except ValueError as error:
    fuzzing.check_message(str(error))
    status, _ = fuzzing.check_cli(run, 'evaluate', path)
    assert status == 2
    return
  assert isinstance(strategy, strategies.Strategy)
  assert schema is None or isinstance(schema, participation.Participation)
  assert strategy.rounds >= 1
  assert len(strategy.digest()) == 64
  if strategy.rounds > 2000:
    return
  # Without flags the file says who takes part, or the command refuses.
  status, out = fuzzing.check_cli(run, 'evaluate', path, '--json')
  if schema is None:
    assert status == 2
    status, out = fuzzing.check_cli(
      run, 'evaluate', path, '--min-sep', 2, '--json'
    )
  if status == 0:
    found = json.loads(out)
    if schema is not None:
      assert found['participation'] == schema.name
      assert found['min_sep'] == schema.min_sep
    for name in ('sensitivity', 'mean_error', 'max_error'):
      assert 0 < found[name] < float('inf')


@pytest.fixture
def path(tmp_path):
  return tmp_path / 'strategy'


def test_damaged_json_is_read_or_refused(run, path, documents):
  @fuzzing.cases(400)
  @hypothesis.given(fuzzing.json_bytes(documents))
  def check(content):
    _check(run, path.with_suffix('.json'), content)

  check()


def test_damaged_archive_is_read_or_refused(run, path, archives):
  @fuzzing.cases(150)
  @hypothesis.given(st.data())
  def check(data):
    content = data.draw(fuzzing.flipped(data.draw(st.sampled_from(archives))))
    _check(run, path.with_suffix('.npz'), content)

  check()


@st.composite
def _npy(draw):
  """Draws a .npy file whose header need not fit what follows."""
  header = repr({
    'descr': draw(
      st.sampled_from(
        ('<f8', '<f4', '<i8', '|b1', '|O', '<U1', '<U100000000', '|V8', '<c16',
         [('a', '<f8')], '<f16', '|S9', '>f8', '<M8[D]', '', None, ('<f8', 9))
      )
    ),
    'fortran_order': draw(st.sampled_from((False, True, 0, 'x'))),
    'shape': draw(
      st.sampled_from(
        ((2, 2), (1, 1), (), (0,), (0, 0), (4,), (2,) * 40, (10**9, 10**9),
         (2**32, 2**32), (10**5, 10**5), (-1, -1), (2.0, 2), (True, True),
         (10**400,), 2, [2, 2], ('2', 2), (1, 4), (30_000, 30_000))
      )
    ),
  }).encode() + b'\n'  # fmt: skip
  header = draw(st.just(header) | fuzzing.flipped(header))
  version = draw(st.sampled_from(((1, 0), (2, 0), (3, 0), (9, 9))))
  width = 2 if version[0] == 1 else 4
  body = np.array([[1.0, 0.0], [0.5, 1.0]]).tobytes()
  return (
    b'\x93NUMPY' + bytes(version) + len(header).to_bytes(width, 'little')
    + header + draw(st.just(body) | st.binary(max_size=64))
  )  # fmt: skip


def test_damaged_matrix_is_read_or_refused(run, path):
  @fuzzing.cases(200)
  @hypothesis.given(_npy())
  def check(content):
    _check(run, path.with_suffix('.npy'), content)

  check()


def test_archive_of_damaged_arrays_is_read_or_refused(run, path, documents):
  @fuzzing.cases(100)
  @hypothesis.given(st.data())
  def check(data):
    header = data.draw(fuzzing.damaged(documents))
    arrays = header.pop('arrays', {})
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, 'w', zipfile.ZIP_DEFLATED) as archive:
      text = np.array(json.dumps(header))
      with archive.open('header.npy', 'w') as member:
        np.lib.format.write_array(member, text, allow_pickle=False)
      for name in arrays if isinstance(arrays, dict) else ():
        archive.writestr(f'{name[:100]}.npy', data.draw(_npy()))
    _check(run, path.with_suffix('.npz'), stream.getvalue())

  check()


@pytest.mark.parametrize('suffix', ['.json', '.npz', '.npy'])
def test_arbitrary_bytes_are_refused(run, path, suffix):
  @fuzzing.cases(20)
  @hypothesis.given(st.binary(max_size=200))
  def check(content):
    _check(run, path.with_suffix(suffix), content)

  check()


def _file_that_says(rounds, **changes):
  return json.dumps({
    'format': 'tff_bandmf.strategy', 'version': 2, 'family': 'lti',
    'rounds': rounds, 'parameters': {'nu': 0.5}, 'arrays': {},
    'participation': {'participation': 'single'}, **changes,
  }).encode()  # fmt: skip


@pytest.mark.parametrize(
  'rounds', [10**8, 10**18, 10**400], ids=['1e8', '1e18', '1e400']
)
@pytest.mark.parametrize(
  'changes',
  [
    {},
    {'parameters': {'nu': 0.5, 'column_normalize': True}},
    {'family': 'banded-sqrt', 'parameters': {'bands': 10**8}},
    {'family': 'tree', 'parameters': {'arity': 2}},
    {'family': 'online-tree', 'parameters': {}},
    {'family': 'identity', 'parameters': {}},
    {
      'family': 'stamped',
      'parameters': {
        'block': {'family': 'lti', 'rounds': 10**8, 'parameters': {'nu': 0}}
      },
    },
  ],
)
def test_many_rounds_allocate_nothing_at_load(run, path, rounds, changes):
  path = path.with_suffix('.json')
  content = _file_that_says(rounds, **changes)
  path.write_bytes(content)
  with fuzzing.bounded(len(content)):
    try:
      strategies.load(path)
    except ValueError as error:
      fuzzing.check_message(str(error))


@pytest.mark.parametrize(
  'old, new',
  [
    ('"rounds": 9', '"rounds": 90, "rounds": 9'),
    ('"single"', '"single", "participation": "min-sep"'),
    ('"nu": 0.5', '"nu": NaN'),
    ('"nu": 0.5', '"nu": ' + '[' * 20_000),
    ('"nu": 0.5', '"nu": 1e999'),
    ('"nu": 0.5', '"nu": ' + '9' * 400),
    ('"arrays": {}', '"arrays": {"nu": ["' + 'x' * 20_000 + '", "", ""]}'),
  ],
)
def test_file_that_misleads_readers_is_refused(path, old, new):
  path = path.with_suffix('.json')
  content = _file_that_says(9)
  path.write_bytes(content)
  assert strategies.load(path)[0].rounds == 9
  assert old.encode() in content
  path.write_bytes(content.replace(old.encode(), new.encode()))
  with fuzzing.bounded(path.stat().st_size):
    with pytest.raises(ValueError) as refused:
      strategies.load(path)
  fuzzing.check_message(str(refused.value))


def test_pipe_is_no_strategy(path):
  path = path.with_suffix('.json')
  os.mkfifo(path)
  with fuzzing.bounded():
    with pytest.raises(ValueError, match='file=.*regular'):
      strategies.load(path)


def test_archive_that_unpacks_to_gigabytes_is_refused(run, path):
  path = path.with_suffix('.npz')
  with zipfile.ZipFile(path, 'w', zipfile.ZIP_DEFLATED) as archive:
    with archive.open('header.npy', 'w') as member:
      np.lib.format.write_array(
        member,
        np.array(json.dumps(json.loads(_file_that_says(9)))),
        allow_pickle=False,
      )
    with archive.open('rows.npy', 'w', force_zip64=True) as member:
      np.lib.format.write_array_header_1_0(
        member, {'descr': '<f8', 'fortran_order': False, 'shape': (2**25,)}
      )
      for _ in range(256):
        member.write(bytes(2**20))
  with fuzzing.bounded(path.stat().st_size):
    with pytest.raises(ValueError, match='file=.*whole'):
      strategies.load(path)
