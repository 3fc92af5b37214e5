"""Tests of files that are there whole or not at all, and of secret ones."""

import errno
import multiprocessing
import os
import stat
from unittest import mock

import pytest

from tff_bandmf import _files


@pytest.fixture
def umask():
  """Lets a process make files that everybody may use, as some services do."""
  before = os.umask(0)
  yield
  os.umask(before)


def _mode(path):
  return stat.S_IMODE(path.stat().st_mode)


def test_written_file_replaces_the_one_before_and_nobody_else_writes_it(
  tmp_path, umask
):
  path = tmp_path / 'run.json'
  for content in b'one', b'other':
    _files.write(path, content[:1], content[1:])
    assert path.read_bytes() == content
  assert _mode(path) == 0o644
  _files.write(path, b'x', mode=0o600)
  assert _mode(path) == 0o600
  assert list(tmp_path.iterdir()) == [path]


def test_name_appears_after_the_content_is_on_the_disk(tmp_path):
  path = tmp_path / 'run.json'
  done = []

  def synced(handle):
    folder = stat.S_ISDIR(os.fstat(handle).st_mode)
    done.append('folder' if folder else 'file')
    assert path.exists() == folder
    return None

  with mock.patch.object(os, 'fsync', synced):
    _files.write(path, b'content')
    assert done == ['file', 'folder']
    path.unlink()
    _files.load_or_create_secret(path, 8, 'key')
    assert done == ['file', 'folder'] * 2


@pytest.mark.parametrize(
  'call',
  [
    lambda path: _files.write(path, b'content'),
    lambda path: _files.load_or_create_secret(path, 16, 'key'),
  ],
)
def test_full_disk_names_the_file_and_leaves_nothing(tmp_path, call):
  path = tmp_path / 'some.file'
  full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
  with mock.patch.object(os, 'fsync', side_effect=full):
    with pytest.raises(OSError, match=f'^file={path}: .*No space') as caught:
      call(path)
  assert caught.value.errno == errno.ENOSPC
  assert '\n' not in str(caught.value)
  assert not list(tmp_path.iterdir())


def test_full_disk_leaves_the_file_before(tmp_path):
  path = tmp_path / 'some.file'
  _files.write(path, b'before')
  with mock.patch.object(os, 'fsync', side_effect=OSError(errno.EIO, 'I/O')):
    with pytest.raises(OSError, match='cannot be written'):
      _files.write(path, b'after')
  assert path.read_bytes() == b'before'


def test_secret_is_its_owners_alone_and_stays(tmp_path, umask):
  path = tmp_path / 'deep' / 'private' / 'a.key'
  first = _files.load_or_create_secret(path, 32, 'key')
  assert len(first) == 32 and first != bytes(32)
  assert _mode(path) == 0o600
  assert _mode(path.parent) == _mode(path.parent.parent) == 0o700
  assert _files.load_or_create_secret(path, 32, 'key') == first
  assert _files.load_secret(path, 32, 'key') == first
  assert list(path.parent.iterdir()) == [path]


def _make(path, barrier, found):
  barrier.wait()
  found.put(_files.load_or_create_secret(path, 16, 'key'))


@pytest.mark.slow
def test_first_of_two_that_make_a_secret_wins(tmp_path):
  path = tmp_path / 'a.key'

  def overtaken(size):
    with open(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600), 'wb') as file:
      file.write(b'1' * size)
    return b'2' * size

  assert (
    _files.load_or_create_secret(path, 16, 'key', make=overtaken) == b'1' * 16
  )
  # Processes without TensorFlow's threads.
  context = multiprocessing.get_context('spawn')
  barrier, found = context.Barrier(2), context.Queue()
  makers = [
    context.Process(target=_make, args=(tmp_path / 'b.key', barrier, found))
    for _ in range(2)
  ]
  for maker in makers:
    maker.start()
  assert found.get(timeout=300) == found.get(timeout=300)
  for maker in makers:
    maker.join()
    assert maker.exitcode == 0


@pytest.mark.parametrize('mode', [0o644, 0o640, 0o606, 0o610])
def test_secret_that_others_can_use_is_refused(tmp_path, mode):
  path = tmp_path / 'a.key'
  _files.load_or_create_secret(path, 16, 'key')
  path.chmod(mode)
  for load in _files.load_secret, _files.load_or_create_secret:
    with pytest.raises(ValueError, match=f'key={path}: has mode {mode:04o}'):
      load(path, 16, 'key')


@pytest.mark.parametrize('size', [0, 15, 17, 1000])
def test_secret_of_another_size_is_refused(tmp_path, size):
  path = tmp_path / 'a.key'
  _files.write(path, bytes(size), mode=0o600)
  with pytest.raises(ValueError, match=f'must be 16 bytes, and is {size}'):
    _files.load_or_create_secret(path, 16, 'key')


def test_secret_behind_a_link_or_a_pipe_is_refused(tmp_path):
  real = tmp_path / 'real.key'
  _files.load_or_create_secret(real, 16, 'key')
  link, dangling, pipe = (tmp_path / name for name in ('l', 'd', 'p'))
  link.symlink_to(real)
  dangling.symlink_to(tmp_path / 'nowhere')
  os.mkfifo(pipe, 0o600)
  for path in (link, dangling, pipe, tmp_path):
    for load in _files.load_secret, _files.load_or_create_secret:
      with pytest.raises(ValueError, match='is a link or no file'):
        load(path, 16, 'key')
  assert not (tmp_path / 'nowhere').exists()


def test_secret_that_is_gone_is_an_error_where_it_must_be_there(tmp_path):
  with pytest.raises(FileNotFoundError, match='cannot be read'):
    _files.load_secret(tmp_path / 'a.key', 16, 'key')
  assert not list(tmp_path.iterdir())


def test_cache_follows_xdg(monkeypatch, tmp_path):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
  assert _files.cache_directory() == tmp_path / 'tff_bandmf'
  monkeypatch.delenv('XDG_CACHE_HOME')
  monkeypatch.setenv('HOME', str(tmp_path))
  assert _files.cache_directory() == tmp_path / '.cache' / 'tff_bandmf'


def test_secret_outlives_the_other_name_that_a_kill_left(tmp_path):
  """Of a process that was killed before its file had one name alone.

  The other name was overwritten with zeros, and so the key became zeros.
  """
  path = tmp_path / 'a.key'
  first = _files.load_or_create_secret(path, 32, 'key')
  part = tmp_path / f'a.key.0{_files.PART}'
  os.link(path, part)
  _files.discard(part)
  assert list(tmp_path.iterdir()) == [path]
  assert _files.load_secret(path, 32, 'key') == first != bytes(32)
  # The last name goes with its content.
  with open(path, 'rb') as file:
    _files.discard(path)
    assert file.read() == bytes(32)
  _files.discard(path)


def test_secret_is_whole_where_its_maker_was_interrupted(tmp_path):
  path = tmp_path / 'a.key'

  def interrupted(part, name):
    os.link(part, name)
    raise KeyboardInterrupt

  with mock.patch.object(_files, '_link', interrupted):
    with pytest.raises(KeyboardInterrupt):
      _files.load_or_create_secret(path, 32, 'key')
  assert _files.load_secret(path, 32, 'key') != bytes(32)


@pytest.mark.parametrize(
  'content, message',
  [
    (b'', 'is empty'),
    (b'{"a": 1,\n "b": }', 'is not JSON: Expecting value in line 2'),
    (b'\xef\xbb\xbf{}', 'begins with a byte order mark, which JSON'),
    ('{}'.encode('utf-16'), 'begins with a byte order mark of UTF-16'),
    (b'{\n"a": "\xff"}', 'line 2 is not UTF-8'),
    (b'\x1f\x8b\x08', 'begins with the signature of gzip'),
    (b'{"a": 1, "a": 2}', 'a JSON object has a key twice'),
    (b'{"a": NaN}', 'NaN is not JSON'),
  ],
)
def test_damaged_json_is_refused_with_its_file_and_line(
  tmp_path, content, message
):
  path = tmp_path / 'plan.json'
  path.write_bytes(content)
  with pytest.raises(ValueError, match=message) as caught:
    _files.read_json(path)
  assert str(caught.value).startswith(f'file={path}: ')
  assert '\n' not in str(caught.value)
