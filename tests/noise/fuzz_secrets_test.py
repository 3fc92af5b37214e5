"""Fuzzing of what is secret: tapes, and the files of keys.

A damaged one gives what was written or an error; never other noise, never
silence, and no error shows what the file holds.
"""

import ast
import contextlib
import os
import pathlib
import resource

import fuzzing
import hypothesis
import numpy as np
import pytest
import tapes
from hypothesis import strategies as st

from tff_bandmf import _files, errors, noise, strategies
from tff_bandmf.ledger import identifiers
from tff_bandmf.noise import key_use
from tff_bandmf.noise.tape import file as tape_file
from tff_bandmf.noise.tape import folder as tape_folder

pytestmark = pytest.mark.slow

_ROUNDS, _DIMENSION = 3, 5


@pytest.fixture(scope='module')
def tape(tmp_path_factory):
  """A tape whose folder is not there any more, a file of it, and its noise."""
  tape = tapes.make(
    tmp_path_factory.mktemp('fuzz') / 'tape',
    strategies.BandedToeplitz(_ROUNDS, [1.0, 0.5]),
    dimension=_DIMENSION,
  )
  rounds = [tapes.release(tape, t) for t in range(_ROUNDS)]
  content = tape_folder.noise_path(tape.directory, _ROUNDS - 1).read_bytes()
  tape.close()
  return tape, rounds[-1], content


def _secrets(content):
  """The forms in which an error could show noise."""
  return [content.hex(), *map(str, np.frombuffer(content, '<i4'))]


def test_damaged_tape_gives_its_noise_or_an_error(tape, each_reader):
  tape, expected, content = tape
  last = _ROUNDS - 1
  mark = st.sampled_from((
    '00000000.reached', '00000002.reached', '00000003.reached', 'x.reached',
    '-1.reached', '9' * 30 + '.reached', 'failed', 'lock', '\x1b.reached',
    f'00000002-{tapes.RUN}-0000000001-0000000002.reached',
    '00000001-8-0000000001-0000000002.reached',
    f'00000002-{tapes.RUN}.reached', '00000002-8-1-2.reached', '2--.reached',
  ))  # fmt: skip
  other_release = {
    f'00000002-{tapes.RUN}-0000000001-0000000002.reached',
    '00000002-8-1-2.reached',
  }

  @fuzzing.cases(150)
  @hypothesis.given(
    st.just(content) | fuzzing.flipped(content),
    st.lists(mark, max_size=2),
    st.sampled_from((last, last, last, 0, -1, 2**62)),
    st.sampled_from((tape.tape_id, tape.tape_id, 0, tape.tape_id ^ 1)),
  )
  def check(changed, marks, round_index, wanted):
    folder = tape.directory
    folder.mkdir(mode=0o700)
    try:
      tape_folder.noise_path(folder, last).write_bytes(changed)
      for name in marks:
        (folder / name).touch()
      try:
        found = tapes.release(tape, round_index, tape_id=wanted, timeout=0.01)
      except tapes.refusals() as error:
        for secret in _secrets(content[63:83]):
          assert len(secret) < 4 or secret not in str(error)
        return
      assert np.array_equal(found, expected)
      assert (round_index, wanted) == (last, tape.tape_id)
      assert changed == content
      assert not other_release & set(marks)
    finally:
      for path in folder.iterdir():
        path.unlink()
      folder.rmdir()

  check()


def test_damaged_noise_file_is_not_whole(tape, tmp_path):
  tape, _, content = tape
  path = tmp_path / f'{_ROUNDS - 1:08d}.noise'

  @fuzzing.cases(200)
  @hypothesis.given(fuzzing.flipped(content) | st.binary(max_size=200))
  def check(changed):
    path.write_bytes(changed)
    assert tape_file.is_whole(path, tape.tape_id, 0, _DIMENSION) == (
      changed == content
    )

  check()


def test_part_of_a_use_of_a_key_is_refused(tmp_path):
  """A full disk cut a line; the next one made a line of no folder of it."""
  path = tmp_path / 'key.use'

  def use(name):
    usage = key_use.KeyUse(tmp_path / 'key', 7, range(5), tmp_path / name)
    with contextlib.closing(usage):
      usage.record()

  soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (6, hard))
  try:
    with pytest.raises(OSError, match='No space left'):
      use('tape')
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
  assert path.read_bytes() == b''
  use('tape')
  with pytest.raises(ValueError, match='has served'):
    use('other')
  # A part that a power cut left is refused.
  path.write_bytes(path.read_bytes()[:-1])
  with pytest.raises(ValueError, match='is damaged'):
    use('tape')


def test_damaged_use_of_a_key_is_read_or_refused(tmp_path):
  path = tmp_path / 'key.use'

  def use():
    found = key_use.KeyUse(tmp_path / 'key', 7, range(5), tmp_path / 'tape')
    try:
      found.record()
    finally:
      found.close()

  use()
  content = path.read_bytes()

  @fuzzing.cases(60)
  @hypothesis.given(fuzzing.flipped(content) | st.binary(max_size=60))
  def check(changed):
    path.write_bytes(changed)
    try:
      use()
    except ValueError as error:
      fuzzing.check_message(str(error))

  check()


def test_damaged_description_of_a_tape_is_read_or_refused(tmp_path):
  description = tape_folder.Description(
    1, '00', _ROUNDS, _DIMENSION, 0, _DIMENSION, 9.5, True)  # fmt: skip
  description.write(tmp_path)
  path = tmp_path / tape_folder.DESCRIPTION
  document = _files.read_json(path)

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
      errors.invalid(f'tape={tmp_path}: {description.difference(found)}; x')
    )

  check()


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
  os.close(tape_folder.prepare(path))
  os.chown(path, 65534, 65534, follow_symlinks=False)
  with pytest.raises(ValueError, match='tape directory=.*: .*user'):
    tape_folder.prepare(path)


def test_private_files_do_not_follow_links(tmp_path):
  target, link = tmp_path / 'target', tmp_path / 'link'
  target.write_bytes(b'mine')
  link.symlink_to(target)
  with pytest.raises(OSError):
    _files.lock(link)
  with pytest.raises(OSError), _files.locked(link):
    pass
  _files.wipe(link)
  assert not link.is_symlink()
  link.symlink_to(target)
  _files.write(link, b'noise')
  assert not link.is_symlink()
  assert target.read_bytes() == b'mine'


_ROOT = pathlib.Path(__file__).resolve().parents[2]
_RUNS_WHAT_IT_READS = {
  'pickle', 'cPickle', 'dill', 'cloudpickle', 'joblib', 'shelve', 'marshal',
  'yaml', 'exec', 'eval',
}  # fmt: skip


@pytest.mark.parametrize('package', ['tff_bandmf', 'simulations'])
def test_no_reader_runs_what_it_reads(package):
  paths = list((_ROOT / package).rglob('*.py'))
  assert len(paths) > 10
  for path in paths:
    text = path.read_text()
    # PyYAML only writes there, and its safe dumper runs nothing.
    writes = path.name == 'registry_and_card.py' and 'load' not in text
    for node in ast.walk(ast.parse(text)):
      if isinstance(node, (ast.Import, ast.ImportFrom)):
        names = {alias.name for alias in node.names}
        names.add(getattr(node, 'module', None) or '')
        roots = {name.split('.')[0] for name in names}
        roots -= {'yaml'} if writes else set()
        assert not roots & _RUNS_WHAT_IT_READS, path
      elif isinstance(node, ast.Call):
        name = getattr(node.func, 'id', getattr(node.func, 'attr', None))
        assert getattr(node.func, 'id', '') not in _RUNS_WHAT_IT_READS, path
        given = {each.arg: each.value for each in node.keywords}
        if name in ('read_array', 'load') and ast.unparse(node.func).startswith(
          ('np.', 'numpy.')
        ):
          assert ast.unparse(given['allow_pickle']) == 'False', path
