"""Fuzzing of what is secret: tapes, and the files of keys.

A damaged one gives what was written or an error; never other noise, never
silence, and no error shows what the file holds.
"""

import ast
import os
import pathlib
import stat

import fuzzing
import hypothesis
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import strategies as st

from tff_bandmf import errors, noise, strategies
from tff_bandmf.noise import (
  key_file,
  private_files,
  tape_folder,
  tape_reader,
)
from tff_bandmf.program import identifiers

_KEY = noise.Key.from_seed(5)
_ROUNDS, _DIMENSION = 3, 5


@pytest.fixture(scope='module')
def tape(tmp_path_factory):
  """The shard, id and files of a tape that is not there any more."""
  tape = noise.Tape(
    tmp_path_factory.mktemp('fuzz') / 'tape',
    noise.Plan.of(strategies.BandedToeplitz(_ROUNDS, [1.0, 0.5])),
    _DIMENSION, _KEY)  # fmt: skip
  rounds = [_read(tape.shards, tape.tape_id, t) for t in range(_ROUNDS)]
  path = tape_folder.noise_path(tape.directory, _ROUNDS - 1)
  content = path.read_bytes()
  (shard,) = tape.shards
  tape.close()
  return shard, tape.tape_id, rounds[-1], content


def _read(shards, tape_id, round_index, timeout=60.0):
  return tape_reader.read(
    shards, tf.constant(tape_id, tf.int64),
    tf.constant(round_index, tf.int64), timeout).numpy()  # fmt: skip


def _secrets(content):
  """The forms in which an error could show bytes."""
  return [content.hex(), *map(str, np.frombuffer(content, '<i8'))]


def test_damaged_tape_gives_its_noise_or_an_error(tape):
  shard, tape_id, expected, content = tape
  last = _ROUNDS - 1
  mark = st.sampled_from((
    '00000000.reached', '00000002.reached', '00000003.reached', 'x.reached',
    '-1.reached', '9' * 30 + '.reached', 'failed', 'lock', '\x1b.reached',
  ))  # fmt: skip

  @fuzzing.cases(150)
  @hypothesis.given(
    st.just(content) | fuzzing.flipped(content),
    st.lists(mark, max_size=2),
    st.sampled_from((last, last, last, 0, -1, 2**62)),
    st.sampled_from((tape_id, tape_id, 0, tape_id ^ 1)),
  )
  def check(changed, marks, round_index, wanted):
    folder = shard.directory
    folder.mkdir(mode=0o700)
    try:
      tape_folder.noise_path(folder, last).write_bytes(changed)
      for name in marks:
        (folder / name).touch()
      try:
        found = _read([shard], wanted, round_index, 0.01)
      except tf.errors.OpError as error:
        for secret in _secrets(content[64:80]):
          assert secret not in str(error)
        return
      assert np.array_equal(found, expected)
      assert (round_index, wanted) == (last, tape_id)
      assert changed == content
    finally:
      for path in folder.iterdir():
        path.unlink()
      folder.rmdir()

  check()


def test_damaged_description_of_a_tape_is_read_or_refused(tmp_path):
  description = tape_folder.Description(
    1, '00', _ROUNDS, _DIMENSION, 0, _DIMENSION, 'philox', 'cpu')  # fmt: skip
  description.write(tmp_path)
  path = tmp_path / tape_folder.DESCRIPTION
  document = tape_folder.json.loads(path.read_bytes())

  @fuzzing.cases(100)
  @hypothesis.given(fuzzing.json_bytes([document]))
  def check(content):
    path.write_bytes(content)
    try:
      found = tape_folder.Description.read(tmp_path)
    except ValueError as error:
      fuzzing.check_message(str(error))
      return
    fuzzing.check_message(
      errors.invalid('tape', tmp_path, description.difference(found), 'x')
    )

  check()


def test_damaged_key_file_gives_its_key_or_an_error(tmp_path):
  with_key = key_file.KeyFile(_KEY, 7, tmp_path / 'keys')
  path = with_key.directory / '7.key'
  content = path.read_bytes()
  assert stat.S_IMODE(path.stat().st_mode) == 0o600
  assert stat.S_IMODE(with_key.directory.stat().st_mode) == 0o700

  @fuzzing.cases(60)
  @hypothesis.given(
    fuzzing.flipped(content) | st.binary(max_size=40) | st.just(bytes(24))
  )
  def check(changed):
    path.write_bytes(changed)
    try:
      found = key_file.read(str(with_key.directory), tf.constant(7, tf.int64))
    except tf.errors.OpError as error:
      for secret in _secrets(content[:16]):
        assert secret not in str(error)
      return
    assert changed == content
    assert np.array_equal(found, _KEY.words())

  check()
  with_key.close()
  assert not path.exists()


@pytest.mark.parametrize(
  'load, size',
  [(noise.Key.load_or_create, 32), (identifiers.Identifiers.load, 16)],
)
def test_damaged_secret_is_refused_without_showing_it(tmp_path, load, size):
  path = tmp_path / 'secret'

  @fuzzing.cases(30)
  @hypothesis.given(
    st.binary(max_size=40) | st.binary(min_size=size, max_size=size)
  )
  def check(content):
    path.write_bytes(content)
    path.chmod(0o600)
    try:
      found = load(path)
    except ValueError as error:
      assert len(content) != size
      text = str(error)
      fuzzing.check_message(text)
      if len(content) > 2:
        assert content.hex() not in text and repr(content)[2:-1] not in text
      return
    assert len(content) == size
    assert repr(found).endswith('(<secret>)')

  check()


def test_key_is_not_made_through_a_dangling_link(tmp_path):
  (tmp_path / 'key').symlink_to(tmp_path / 'elsewhere')
  with pytest.raises(ValueError, match='is a link'):
    noise.Key.load_or_create(tmp_path / 'key')
  assert not (tmp_path / 'elsewhere').exists()


@pytest.mark.skipif(os.getuid() != 0, reason='only root can give files away')
@pytest.mark.parametrize('given', ['folder', 'link'])
def test_folder_of_another_user_is_refused(tmp_path, given):
  (tmp_path / 'mine').mkdir()
  path = tmp_path / given
  if given == 'link':
    path.symlink_to(tmp_path / 'mine')
  else:
    path.mkdir()
  os.close(tape_folder.prepare(path, server=False))
  os.chown(path, 65534, 65534, follow_symlinks=False)
  with pytest.raises(ValueError, match='belongs to another user'):
    tape_folder.prepare(path, server=False)


def test_private_files_do_not_follow_links(tmp_path):
  target, link = tmp_path / 'target', tmp_path / 'link'
  target.write_bytes(b'mine')
  link.symlink_to(target)
  with pytest.raises(OSError):
    private_files.write(link, b'noise')
  with pytest.raises(OSError):
    private_files.lock(tmp_path, 'link')
  private_files.wipe(link)
  assert not link.is_symlink()
  assert target.read_bytes() == b'mine'


def test_key_folders_have_names_that_cannot_be_guessed(tmp_path):
  places = {key_file.KeyFile(_KEY, 7, tmp_path).directory for _ in range(3)}
  assert len(places) == 3
  for place in places:
    assert len(place.name) >= len('tff_bandmf-key-') + 8
    assert stat.S_IMODE(os.lstat(place).st_mode) == 0o700


_ROOT = pathlib.Path(__file__).resolve().parent.parent
_RUNS_WHAT_IT_READS = {
  'pickle', 'cPickle', 'dill', 'cloudpickle', 'joblib', 'shelve', 'marshal',
  'yaml', 'exec', 'eval',
}  # fmt: skip


@pytest.mark.parametrize('package', ['tff_bandmf', 'simulations'])
def test_no_reader_runs_what_it_reads(package):
  paths = list((_ROOT / package).rglob('*.py'))
  assert len(paths) > 10
  for path in paths:
    for node in ast.walk(ast.parse(path.read_text())):
      if isinstance(node, (ast.Import, ast.ImportFrom)):
        names = {alias.name for alias in node.names}
        names.add(getattr(node, 'module', None) or '')
        roots = {name.split('.')[0] for name in names}
        assert not roots & _RUNS_WHAT_IT_READS, path
      elif isinstance(node, ast.Call):
        name = getattr(node.func, 'id', getattr(node.func, 'attr', None))
        assert getattr(node.func, 'id', '') not in _RUNS_WHAT_IT_READS, path
        given = {each.arg: each.value for each in node.keywords}
        if name in ('read_array', 'load') and ast.unparse(
          node.func
        ).startswith(('np.', 'numpy.')):
          assert ast.unparse(given['allow_pickle']) == 'False', path
