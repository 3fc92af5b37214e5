"""Tests of the producer of a tape; tape_release_test has those of its reader.

They read eagerly; aggregator_test reads in TFF's worker.
"""

import concurrent.futures
import contextlib
import errno
import os
import pathlib
import shutil
import stat
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import tapes

from tff_bandmf import _files, noise
from tff_bandmf.noise import generator
from tff_bandmf.noise.producer import stream
from tff_bandmf.noise.tape import folder as tape_folder


@pytest.fixture
def tape(tmp_path):
  tape = tapes.make(tmp_path / 'tape')
  yield tape
  tape.close()


@pytest.mark.slow
@pytest.mark.parametrize(
  'bands, rounds', [(1, 5), (2, 33), (7, 40), (16, 40), (17, 40), (40, 40)]
)
def test_noise_is_that_of_the_strategy(tmp_path, bands, rounds):
  strategy = tapes.strategy(bands, rounds)
  tape = tapes.make(tmp_path / 'tape', strategy)
  y = np.stack([tapes.release(tape, t) for t in range(rounds)])
  tape.close()
  assert y.dtype == np.int32
  z = generator.Generator(tapes.KEY).rows(0, rounds, 0, tapes.DIMENSION)
  # What rounds y to integers, and cuts the weights of C.
  error = strategy.matrix() @ y - tapes.Z_STEPS * z
  assert np.max(np.abs(error)) <= np.max(strategy.matrix()) / 2 + 0.01


@pytest.mark.slow
@pytest.mark.parametrize('start_round', [1, 31, 32, 33, 39])
def test_start_round_gives_the_same_bits(tmp_path, start_round):
  whole, tail = (
    tapes.make(tmp_path / 'a'),
    tapes.make(tmp_path / 'b', start_round=start_round),
  )
  assert whole.tape_id == tail.tape_id
  for t in range(tapes.ROUNDS):
    y = tapes.release(whole, t)
    if t >= start_round:
      assert np.array_equal(tapes.release(tail, t), y)
  whole.close()
  tail.close()


def test_round_is_gone_after_the_next_one_was_released(tape):
  first = tapes.release(tape, 0)
  assert np.array_equal(tapes.release(tape, 0), first)
  path = tapes.noise_file(tape, 0)
  link = path.with_name('link')
  os.link(path, link)
  tapes.release(tape, 1)
  # At once, though the producer may not have removed it yet.
  with tapes.refused('already used'):
    tapes.release(tape, 0)
  tapes.wait_until(lambda: not path.exists())
  assert not any(link.read_bytes())
  link.unlink()
  with tapes.refused('already used'):
    tapes.release(tape, 0)
  assert np.any(tapes.release(tape, 1))


@pytest.fixture
def full_disk(monkeypatch):
  """An event: while it is set, no whole file of noise fits on the disk."""
  full = threading.Event()
  fill = _files._fill

  def fill_while_there_is_room(path, contents):
    if full.is_set() and '.noise.' in path.name:
      path.write_bytes(bytes(40))
      fill(pathlib.Path('/dev/full'), contents)
    fill(path, contents)

  monkeypatch.setattr(_files, '_fill', fill_while_there_is_room)
  return full


def test_full_disk_makes_the_round_wait_for_whole_noise(tmp_path, full_disk):
  tape = tapes.make(tmp_path / 'tape', ahead_bytes=0)
  tapes.noise_file(tape, 1)
  full_disk.set()
  tapes.release(tape, 0)
  tapes.release(tape, 1)
  tapes.wait_until(lambda: tape.is_full)
  with tapes.refused('room on its disk'):
    tapes.release(tape, 2, timeout=0.2)
  assert not (tape.directory / '00000002.noise').exists()
  full_disk.clear()
  assert np.array_equal(tapes.release(tape, 2), tapes.expected()[2])
  tapes.wait_until(lambda: not tape.is_full)
  assert tape.error is None
  # A round is being written, then none is.
  tapes.wait_until(lambda: not list(tape.directory.glob('*.part')))
  tape.close()


def test_tape_closes_while_the_disk_is_full(tmp_path, full_disk):
  tape = tapes.make(tmp_path / 'tape', ahead_bytes=0)
  tapes.noise_file(tape, 1)
  full_disk.set()
  tapes.release(tape, 1)
  tapes.wait_until(lambda: tape.is_full)
  tape.close()
  assert not list(tmp_path.iterdir())


@pytest.mark.filterwarnings(
  'ignore::pytest.PytestUnhandledThreadExceptionWarning'
)
def test_failed_producer_fails_the_round_at_once(tmp_path, monkeypatch):
  rows = stream.Stream.rows

  def fail(self):
    for t, y in enumerate(y for y in rows(self) if y is not None):
      if t == 16:
        raise MemoryError('with a secret')
      yield y

  monkeypatch.setattr(stream.Stream, 'rows', fail)
  tape = tapes.make(tmp_path / 'tape')
  for t in range(16):
    tapes.release(tape, t)
  # After the timeout, the reader would say that the producer fell behind.
  with tapes.refused('producer ended') as error:
    tapes.release(tape, 16)
  assert 'secret' not in str(error.value)
  assert (tape.directory / 'failed').read_text() == 'MemoryError'
  tape.close()


@pytest.mark.filterwarnings(
  'ignore::pytest.PytestUnhandledThreadExceptionWarning'
)
def test_failed_write_frees_past_noise(tmp_path, monkeypatch):
  rows, fill = stream.Stream.rows, _files._fill
  freed = threading.Event()

  def watched_rows(self):
    with contextlib.ExitStack() as stack:
      stack.callback(freed.set)
      yield from rows(self)

  def fail_in_round_3(path, contents):
    if path.name.startswith('00000003.noise'):
      raise OSError(errno.EIO, 'a broken disk')
    fill(path, contents)

  monkeypatch.setattr(stream.Stream, 'rows', watched_rows)
  monkeypatch.setattr(_files, '_fill', fail_in_round_3)
  tape = tapes.make(tmp_path / 'tape')
  assert freed.wait(20)
  tapes.wait_until((tape.directory / 'failed').exists)
  assert isinstance(tape.error, OSError)
  tape.close()


def test_only_the_owner_can_read(tmp_path):
  directory = tmp_path / 'open'
  directory.mkdir()
  directory.chmod(0o777)
  umask = os.umask(0)
  try:
    tape = tapes.make(directory)
    tapes.noise_file(tape, tapes.ROUNDS - 1)
  finally:
    os.umask(umask)
  assert stat.S_IMODE(directory.stat().st_mode) == 0o700
  paths = list(directory.iterdir())
  assert len(paths) >= 4
  for path in paths:
    assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
  tape.close()


def test_missing_folder_is_made_private(tmp_path):
  umask = os.umask(0)
  try:
    tape = tapes.make(tmp_path / 'new')
  finally:
    os.umask(umask)
  assert stat.S_IMODE(tape.directory.stat().st_mode) == 0o700
  tape.close()


@pytest.mark.slow
@pytest.mark.parametrize('ahead_rounds, bound', [(0, 2), (5, 5)])
def test_unread_files_stay_within_the_bound(tmp_path, ahead_rounds, bound):
  tape = tapes.make(
    tmp_path / 'tape', ahead_bytes=ahead_rounds * 4 * tapes.DIMENSION
  )
  for t in range(tapes.ROUNDS):
    tapes.release(tape, t)
    for _ in range(5):
      # A list of a folder may have both names of a file that is renamed.
      numbers = {int(p.name[:8]) for p in tape.directory.glob('*.noise*')}
      # Those below t wait for their removal.
      assert len({n for n in numbers if n >= t}) <= bound
      time.sleep(0.005)
  tape.close()


def test_producer_stops_at_the_bound_until_rounds_are_released(tmp_path):
  tape = tapes.make(tmp_path / 'tape', ahead_bytes=3 * 4 * tapes.DIMENSION)
  tapes.noise_file(tape, 2)
  time.sleep(0.2)
  assert not (tape.directory / '00000003.noise').exists()
  tapes.release(tape, 1)
  tapes.noise_file(tape, 3)
  tape.close()


def test_close_removes_everything_and_ends_the_thread(tmp_path):
  before = threading.active_count()
  tape = tapes.make(tmp_path / 'tape')
  tapes.release(tape, 0)
  tape.close()
  tape.close()
  assert not list(tmp_path.iterdir())
  assert threading.active_count() <= before
  with tapes.refused('the tape is not there'):
    tapes.release(tape, 1)


def test_second_producer_in_the_folder_is_refused(tape):
  with pytest.raises(ValueError, match='tape directory=.*: .*producer'):
    tapes.make(tape.directory)
  assert np.any(tapes.release(tape, 0))


def test_folder_with_other_files_is_refused_and_left_alone(tmp_path):
  tmp_path.chmod(0o755)
  (tmp_path / 'thesis.tex').write_text('mine')
  with pytest.raises(ValueError, match='tape directory=.*: .*files'):
    tapes.make(tmp_path)
  assert (tmp_path / 'thesis.tex').read_text() == 'mine'
  assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755


def test_folder_whose_name_is_a_pattern_is_refused(tmp_path):
  with pytest.raises(ValueError, match='tape directory=.*: .*contain'):
    tapes.make(tmp_path / 'a[b]')
  assert not list(tmp_path.iterdir())


@pytest.mark.parametrize('name, value', [
  ('start_round', -1), ('start_round', tapes.ROUNDS + 1), ('z_steps', 0.0),
  ('z_steps', float('nan')), ('dimension', 0), ('dimension', 2**29),
])  # fmt: skip
def test_value_out_of_range_is_refused(tmp_path, name, value):
  said = f'{"coordinates" if value == 2**29 else name}={value}: '
  with pytest.raises(ValueError, match=said):
    tapes.make(tmp_path / 'tape', **{name: value})
  assert not list(tmp_path.iterdir())


def _abandon(tape, directory):
  """Leaves the files of a tape as a killed process does: nobody locks them."""
  tapes.release(tape, 2)
  # Everything is written, and what the producer still removes is gone.
  tapes.noise_file(tape, tapes.ROUNDS - 1)
  tapes.wait_until(lambda: len(tapes.marks(tape)) == 1)
  shutil.copytree(tape.directory, directory)
  return [path.name for path in directory.glob('*.noise')]


def test_files_of_a_killed_producer_of_other_noise_are_replaced(tape, tmp_path):
  directory = tmp_path / 'abandoned'
  left = _abandon(tape, directory)
  assert '00000004.noise' in left
  new = tapes.make(directory, key=noise.Key.from_seed(6), ahead_bytes=0)
  # The marks of the ended run are gone too.
  assert np.any(tapes.release(new, 0))
  assert not (directory / '00000004.noise').exists()
  new.close()
  assert not directory.exists()


def test_release_of_a_killed_process_is_still_the_only_one(tape, tmp_path):
  directory = tmp_path / 'abandoned'
  _abandon(tape, directory)
  new = tapes.make(directory, start_round=2)
  with tapes.refused('released another sum'):
    tapes.release(new, 2, np.ones(tapes.DIMENSION))
  with tapes.refused('used by another run'):
    tapes.release(new, 2, run=8)
  for t in (2, 3):
    assert np.array_equal(tapes.release(new, t), tapes.expected()[t])
  new.close()


@pytest.mark.parametrize('start_round', [0, 1])
def test_start_below_a_released_round_is_refused(tape, tmp_path, start_round):
  directory = tmp_path / 'abandoned'
  _abandon(tape, directory)
  with pytest.raises(ValueError, match=f'start_round={start_round}: .*round 2'):
    tapes.make(directory, start_round=start_round)
  # The next one is refused too.
  with pytest.raises(ValueError, match='start_round=.*: rounds below 2'):
    tapes.make(directory, start_round=start_round)


def test_folder_of_an_old_release_is_refused(tmp_path):
  directory = tmp_path / 'tape'
  directory.mkdir()
  (directory / '00000003.noise').write_bytes(bytes(100))
  (directory / '00000003.reached').touch()
  with pytest.raises(ValueError, match='directory=.*: .*another version'):
    tapes.make(directory)


@pytest.fixture
def temporary(tmp_path, monkeypatch):
  """Both places for temporary tapes: the disk's and the memory's."""
  disk, memory = tmp_path / 'disk', tmp_path / 'memory'
  disk.mkdir()
  memory.mkdir()
  monkeypatch.setattr(_files, 'MEMORY', memory)
  monkeypatch.setattr(tape_folder.tempfile, 'tempdir', str(disk))
  return disk, memory


def test_temporary_tapes_of_killed_processes_are_removed(temporary):
  disk, memory = temporary
  live = tapes.make(None)
  assert live.directory.parent == memory
  for place in temporary:
    _abandon(live, place / 'tff_bandmf-tape-killed')
    # Before its first mark, or even its lock.
    (place / 'tff_bandmf-tape-killed-at-once').mkdir()
    (place / 'others').mkdir()
  second = tapes.make(None)
  assert np.any(tapes.release(live, 2))
  for place in temporary:
    assert not (place / 'tff_bandmf-tape-killed').exists()
    assert not (place / 'tff_bandmf-tape-killed-at-once').exists()
    assert (place / 'others').exists()
  live.close()
  second.close()
  assert not [*memory.glob('tff_*'), *disk.glob('tff_*')]


# Kills a start at its first line, its second one, and so on. It prints the
# files that each left behind, and fails if the next start leaves them there.
_KILLED_STARTS = """
import itertools, os, pathlib, signal, sys, tempfile
import numpy as np
from tff_bandmf import _files, noise, strategies
from tff_bandmf.noise.producer import stream
from tff_bandmf.noise.tape import writer

_files.MEMORY = memory = pathlib.Path(sys.argv[1])
tempfile.tempdir = sys.argv[2]
recursion = strategies.BandedToeplitz(4, np.ones(1)).recursion()

files = ('tape/folder.py', 'tape/writer.py', '_files.py')

def start():
  key = noise.Key.from_seed(1)
  return writer.Tape(None, stream.Stream(recursion, 1000.0, 10, key))

def die_at(line):
  lines = itertools.count(1)
  def trace(frame, event, argument):
    if not frame.f_code.co_filename.endswith(files):
      return None
    if event == 'line' and next(lines) == line:
      os.kill(os.getpid(), signal.SIGKILL)
    return trace
  return trace

start().close()
assert not any(memory.iterdir())
for line in itertools.count(1):
  child = os.fork()
  if not child:
    sys.settrace(die_at(line))
    start()
    sys.settrace(None)
    os._exit(0)
  _, status = os.waitpid(child, 0)
  left = sorted(path.name for path in memory.glob('*/*'))
  tape = start()
  folders = len(list(memory.iterdir()))
  tape.close()
  if not os.WIFSIGNALED(status):
    break
  if folders > 1 or any(memory.iterdir()):
    sys.exit(f'{left} stayed')
  print(*left, flush=True)
"""


@pytest.mark.slow
def test_start_killed_anywhere_leaves_nothing_for_ever(tmp_path):
  """A folder without a mark stayed in memory until a restart of the machine."""
  disk, memory = tmp_path / 'disk', tmp_path / 'memory'
  disk.mkdir()
  memory.mkdir()
  result = subprocess.run(
    [sys.executable, '-c', _KILLED_STARTS, memory, disk],
    capture_output=True,
    text=True,
    timeout=600,
  )
  assert result.returncode == 0, result.stderr
  left = set(result.stdout.splitlines())
  # Nothing, an empty folder's lock, the description, the first mark.
  for names in (
    '',
    'lock',
    'lock tape.json',
    '00000000.reached lock tape.json',
  ):
    assert names in left
  assert any(names.endswith('.part') for names in left)


@pytest.mark.slow
def test_starts_at_once_do_not_take_each_other_for_killed(temporary):
  def start(_):
    directory, lock = tape_folder.temporary(1000)
    mine = (directory / 'lock').stat().st_ino == os.fstat(lock).st_ino
    tape_folder.remove(directory)
    os.close(lock)
    return mine

  with concurrent.futures.ThreadPoolExecutor(8) as pool:
    assert all(pool.map(start, range(500)))
  for place in temporary:
    tapes.make(None).close()
    assert not list(place.glob('tff_*'))


def test_temporary_tape_is_on_disk_where_memory_is_short(
  temporary, monkeypatch
):
  disk, memory = temporary
  usage = shutil.disk_usage(memory)._replace(
    free=tapes.ROUNDS * 4 * tapes.DIMENSION
  )
  monkeypatch.setattr(tape_folder.shutil, 'disk_usage', lambda _: usage)
  tape = tapes.make(None)
  assert tape.directory.parent == disk
  assert stat.S_IMODE(tape.directory.stat().st_mode) == 0o700
  tape.close()


def test_tape_id_names_key_strategy_dimension_and_deviation(tmp_path):
  variants = [
    {}, {'key': noise.Key.from_seed(6)}, {'dimension': tapes.DIMENSION + 1},
    {'c': tapes.strategy(rounds=tapes.ROUNDS + 1)},
    {'c': tapes.strategy(bands=6)},
    {'z_steps': np.nextafter(tapes.Z_STEPS, 0)},
  ]  # fmt: skip
  made = [
    tapes.make(tmp_path / str(i), **variant)
    for i, variant in enumerate(variants)
  ]
  again = tapes.make(tmp_path / 'again')
  for each in [*made, again]:
    each.close()
  assert len({each.tape_id for each in made}) == len(made)
  assert again.tape_id == made[0].tape_id


def test_key_is_in_no_file_and_no_text(tape):
  tapes.noise_file(tape, tapes.ROUNDS - 1)
  secret = tapes.KEY.secret
  parts = [secret[i : i + 8] for i in range(0, len(secret), 8)]
  for path in tape.directory.iterdir():
    content = path.read_bytes()
    for part in parts:
      assert part not in content and part.hex().encode() not in content, path
  with pytest.raises(ValueError) as error:
    tapes.make(tape.directory)
  for text in (str(error.value), repr(tape), str(tape.tape_id)):
    for part in parts:
      assert part.hex() not in text
      assert str(int.from_bytes(part, 'little')) not in text
