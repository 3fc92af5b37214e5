"""Tests of the tape: its noise, its files, and how it fails.

They read eagerly or in a graph of this process; aggregator_test reads in
TFF's worker.
"""

import os
import pathlib
import shutil
import stat
import threading
import time

import numpy as np
import pytest
import tensorflow as tf

from tff_bandmf import noise, strategies
from tff_bandmf.noise import (
    generators,
    normal,
    private_files,
    stream,
    tape_folder,
    tape_reader,
)

_DIMENSION = 30
_ROUNDS = 40
_KEY = noise.Key.from_seed(5)


def _strategy(bands=7, rounds=_ROUNDS):
  return strategies.BandedToeplitz(
      rounds, 0.8**np.arange(bands) / (1 + np.arange(bands)))


def _tape(directory, strategy=None, **kwargs):
  strategy = strategy or _strategy()
  arguments = {
      'plan': noise.Plan.of(strategy), 'dimension': _DIMENSION, 'key': _KEY,
      **kwargs}
  return noise.Tape(directory, **arguments)


def _read(tape, t, tape_id=None, timeout=60.0, run=tape_reader.NOBODY):
  return tape_reader.read(
      tape.shards,
      tf.constant(tape.tape_id if tape_id is None else tape_id, tf.int64),
      tf.constant(t, tf.int64), timeout, run).numpy()


def _dense(strategy):
  z = np.stack([
      normal.standard_normal(
          tf.constant(_KEY.words()), tf.constant(t), 0, _DIMENSION)
      for t in range(strategy.rounds)
  ])
  return np.linalg.solve(strategy.matrix(), z.astype(np.float64))


def _wait_until(condition):
  deadline = time.monotonic() + 30
  while not condition():
    assert time.monotonic() < deadline, 'timed out'
    time.sleep(0.01)


def _noise_file(tape, t):
  path = tape.directory / f'{t:08d}.noise'
  _wait_until(path.exists)
  return path


def _refused(match):
  return pytest.raises(tf.errors.InvalidArgumentError, match=match)


@pytest.fixture
def tape(tmp_path):
  tape = _tape(tmp_path / 'tape')
  yield tape
  tape.close()


@pytest.mark.parametrize(
    'bands, rounds', [(1, 5), (2, 33), (7, 40), (16, 40), (17, 40), (40, 40)])
def test_streamed_noise_equals_dense(tmp_path, monkeypatch, bands, rounds):
  monkeypatch.setattr(stream, '_CHUNK', 8)
  strategy = _strategy(bands, rounds)
  tape = _tape(tmp_path / 'tape', strategy)
  streamed = np.stack([_read(tape, t) for t in range(rounds)])
  tape.close()
  assert streamed.dtype == np.float32
  np.testing.assert_allclose(streamed, _dense(strategy), rtol=0, atol=3e-6)


@pytest.mark.parametrize('start_round', [1, 31, 32, 33, 39])
def test_start_round_gives_the_same_bits(tmp_path, start_round):
  whole, tail = _tape(tmp_path / 'a'), _tape(
      tmp_path / 'b', start_round=start_round)
  assert whole.tape_id == tail.tape_id
  for t in range(_ROUNDS):
    y = _read(whole, t)
    if t >= start_round:
      assert np.array_equal(_read(tail, t), y)
  whole.close()
  tail.close()


def test_rounds_before_the_start_are_not_there(tmp_path):
  tape = _tape(tmp_path / 'tape', start_round=3)
  with _refused('already used'):
    _read(tape, 2)
  assert np.any(_read(tape, 3))
  tape.close()


def test_round_is_gone_after_the_next_one_was_read(tape):
  first = _read(tape, 0)
  assert np.array_equal(_read(tape, 0), first)
  path = _noise_file(tape, 0)
  link = path.with_name('link')
  os.link(path, link)
  _read(tape, 1)
  # At once, though the producer may not have removed it yet.
  with _refused('already used'):
    _read(tape, 0)
  _wait_until(lambda: not path.exists())
  assert not any(link.read_bytes())
  link.unlink()
  with _refused('already used'):
    _read(tape, 0)
  assert np.any(_read(tape, 1))


def test_highest_mark_counts_whatever_the_order(tape):
  for t in (0, 1, 2):
    _read(tape, t)
  # A call that TFF repeats may come late and leave an old mark.
  (tape.directory / '00000001.reached').touch()
  with _refused('already used'):
    _read(tape, 1)
  assert np.any(_read(tape, 2))
  _wait_until(lambda: not (tape.directory / '00000001.reached').exists())
  assert (tape.directory / '00000002.reached').exists()


def test_round_of_one_run_is_refused_to_another(tape):
  first = _read(tape, 0, run=7)
  for run in (8, 77, 2**62):
    with _refused('used by another run'):
      _read(tape, 0, run=run)
  for run in (7, tape_reader.NOBODY, 7):
    assert np.array_equal(_read(tape, 0, run=run), first)
  # What another run takes is not there for the first.
  _read(tape, 1, run=2**63 - 1)
  with _refused('used by another run'):
    _read(tape, 1, run=7)
  with _refused('already used'):
    _read(tape, 0, run=7)
  _wait_until(lambda: sorted(
      path.name for path in tape.directory.glob('*.reached')) == [
          f'00000001-{2**63 - 1}.reached'])


def test_round_may_be_skipped(tape):
  _read(tape, 0)
  assert np.any(_read(tape, 5))
  with _refused('already used'):
    _read(tape, 4)


@pytest.mark.parametrize(
    'offset', [0, 8, 16, 24, 32, 40, 48, 56, 63, 64, 100, 183])
def test_damaged_file_is_refused(tape, offset):
  path = _noise_file(tape, 0)
  content = bytearray(path.read_bytes())
  content[offset] ^= 1
  path.write_bytes(content)
  with _refused('damaged'):
    _read(tape, 0)


@pytest.mark.parametrize('size', [0, 63, 64, 64 + 4 * _DIMENSION - 1])
def test_truncated_file_is_refused(tape, size):
  path = _noise_file(tape, 0)
  path.write_bytes(path.read_bytes()[:size])
  with _refused('wrong size'):
    _read(tape, 0)


def test_longer_file_is_refused(tape):
  path = _noise_file(tape, 0)
  path.write_bytes(path.read_bytes() + bytes(4))
  with _refused('wrong size'):
    _read(tape, 0)


def test_wiped_file_is_refused_not_read_as_zero_noise(tape):
  path = _noise_file(tape, 0)
  path.write_bytes(bytes(len(path.read_bytes())))
  with _refused('damaged'):
    _read(tape, 0)


@pytest.mark.parametrize('wiped', [1, 64, 100, 180])
def test_file_that_is_being_wiped_is_refused(tape, wiped):
  path = _noise_file(tape, 0)
  content = path.read_bytes()
  path.write_bytes(bytes(wiped) + content[wiped:])
  with _refused('damaged'):
    _read(tape, 0)


def test_file_of_another_round_is_refused(tape):
  shutil.copy(_noise_file(tape, 1), _noise_file(tape, 0))
  with _refused('another tape, shard or round'):
    _read(tape, 0)


def test_file_of_another_tape_is_refused(tape):
  with _refused('another tape, shard or round'):
    _read(tape, 0, tape_id=tape.tape_id ^ 1)


def test_file_of_another_run_is_refused(tape, tmp_path):
  other = _tape(tmp_path / 'other', key=noise.Key.from_seed(6))
  shutil.copy(_noise_file(other, 0), _noise_file(tape, 0))
  other.close()
  with _refused('another tape, shard or round'):
    _read(tape, 0)


def test_round_renamed_to_another_is_refused(tape):
  _noise_file(tape, 0)
  _noise_file(tape, 7).rename(tape.directory / '00000000.noise')
  with _refused('another tape, shard or round'):
    _read(tape, 0)
  # Read again from the start, as a round that was used would be.
  _read(tape, 5)
  shutil.copy(_noise_file(tape, 5), tape.directory / '00000006.noise')
  with _refused('another tape, shard or round'):
    _read(tape, 6)


@pytest.fixture
def full_disk(monkeypatch):
  """An event: while it is set, the disk has no room for a whole file of noise.
  """
  full = threading.Event()
  write = private_files.write

  def write_while_there_is_room(path, *contents):
    if full.is_set() and path.suffix == '.noise-part':
      write(path, bytes(40))
      write(pathlib.Path('/dev/full'), *contents)
    write(path, *contents)

  monkeypatch.setattr(private_files, 'write', write_while_there_is_room)
  return full


def test_full_disk_makes_the_round_wait_for_whole_noise(tmp_path, full_disk):
  tape = _tape(tmp_path / 'tape', ahead_bytes=0)
  _noise_file(tape, 1)
  full_disk.set()
  _read(tape, 0)
  _read(tape, 1)
  _wait_until(lambda: tape.is_full)
  with _refused('room on its disk'):
    _read(tape, 2, timeout=0.2)
  assert not (tape.directory / '00000002.noise').exists()
  full_disk.clear()
  np.testing.assert_allclose(
      _read(tape, 2), _dense(_strategy())[2], rtol=0, atol=3e-6)
  _wait_until(lambda: not tape.is_full)
  assert tape.error is None
  assert not list(tape.directory.glob('*.noise-part'))
  tape.close()


def test_tape_closes_while_the_disk_is_full(tmp_path, full_disk):
  tape = _tape(tmp_path / 'tape', ahead_bytes=0)
  _noise_file(tape, 1)
  full_disk.set()
  _read(tape, 1)
  _wait_until(lambda: tape.is_full)
  tape.close()
  assert not list(tmp_path.iterdir())


def test_refused_round_is_not_marked_as_read(tape):
  with _refused('another tape, shard or round'):
    _read(tape, 3, tape_id=1)
  assert np.any(_read(tape, 0))


def test_missing_file_fails_after_the_timeout(tape):
  _noise_file(tape, 0).unlink()
  began = time.monotonic()
  with _refused('fell behind'):
    _read(tape, 0, timeout=0.3)
  assert 0.3 <= time.monotonic() - began < 10


def test_round_past_the_last_fails(tape):
  with _refused('fell behind'):
    _read(tape, _ROUNDS, timeout=0.1)


def test_reader_waits_for_a_producer_that_is_behind(tape):
  path = _noise_file(tape, 0)
  away = path.with_name('away')
  path.rename(away)
  threading.Timer(0.5, away.rename, [path]).start()
  assert np.any(_read(tape, 0))


@pytest.mark.filterwarnings(
    'ignore::pytest.PytestUnhandledThreadExceptionWarning')
def test_failed_producer_fails_the_round_at_once(tmp_path, monkeypatch):
  rows = generators.Philox.rows

  def fail(self, first, *args):
    if first >= 32:
      raise MemoryError('with a secret')
    return rows(self, first, *args)

  monkeypatch.setattr(generators.Philox, 'rows', fail)
  tape = _tape(tmp_path / 'tape')
  began = time.monotonic()
  for t in range(32):
    _read(tape, t)
  with _refused('producer ended') as error:
    _read(tape, 32)
  assert time.monotonic() - began < 30
  assert 'secret' not in str(error.value)
  assert (tape.directory / 'failed').read_text() == 'MemoryError'
  tape.close()


def test_only_the_owner_can_read(tmp_path):
  directory = tmp_path / 'open'
  directory.mkdir()
  directory.chmod(0o777)
  umask = os.umask(0)
  try:
    tape = _tape(directory)
    _noise_file(tape, _ROUNDS - 1)
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
    tape = _tape(tmp_path / 'new')
  finally:
    os.umask(umask)
  assert stat.S_IMODE(tape.directory.stat().st_mode) == 0o700
  tape.close()


@pytest.mark.parametrize('ahead_rounds, bound', [(0, 2), (5, 5)])
def test_unread_files_stay_within_the_bound(tmp_path, ahead_rounds, bound):
  tape = _tape(tmp_path / 'tape', ahead_bytes=ahead_rounds * 4 * _DIMENSION)
  for t in range(_ROUNDS):
    _read(tape, t)
    for _ in range(5):
      numbers = [int(p.stem) for p in tape.directory.glob('*.noise*')]
      # Those below t wait for their removal.
      assert len([n for n in numbers if n >= t]) <= bound
      time.sleep(0.005)
  tape.close()


def test_producer_stops_at_the_bound_until_rounds_are_read(tmp_path):
  tape = _tape(tmp_path / 'tape', ahead_bytes=3 * 4 * _DIMENSION)
  _noise_file(tape, 2)
  time.sleep(0.2)
  assert not (tape.directory / '00000003.noise').exists()
  _read(tape, 1)
  _noise_file(tape, 3)
  tape.close()


def test_close_removes_everything_and_ends_the_thread(tmp_path):
  before = threading.active_count()
  tape = _tape(tmp_path / 'tape')
  _read(tape, 0)
  tape.close()
  tape.close()
  assert not list(tmp_path.iterdir())
  assert threading.active_count() <= before
  with _refused('the tape is not there'):
    _read(tape, 1)


def test_second_producer_in_the_folder_is_refused(tape):
  with pytest.raises(ValueError, match='live producer'):
    _tape(tape.directory)
  assert np.any(_read(tape, 0))


def test_folder_with_other_files_is_refused_and_left_alone(tmp_path):
  tmp_path.chmod(0o755)
  (tmp_path / 'thesis.tex').write_text('mine')
  with pytest.raises(ValueError, match='files of others'):
    _tape(tmp_path)
  assert (tmp_path / 'thesis.tex').read_text() == 'mine'
  assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755


def test_folder_whose_name_is_a_pattern_is_refused(tmp_path):
  with pytest.raises(ValueError, match='must not contain'):
    _tape(tmp_path / 'a[b]')
  assert not list(tmp_path.iterdir())


@pytest.mark.parametrize('start_round', [-1, _ROUNDS + 1])
def test_start_round_out_of_range_is_refused(tmp_path, start_round):
  with pytest.raises(ValueError, match=f'start_round={start_round}'):
    _tape(tmp_path / 'tape', start_round=start_round)
  assert not list(tmp_path.iterdir())


def _abandon(tape, directory):
  """Leaves the files of a tape as a killed process does: nobody locks them."""
  _read(tape, 2)
  _noise_file(tape, 4)
  # Everything that the producer still removes is gone.
  _wait_until(lambda: len(list(tape.directory.glob('*.reached'))) == 1)
  shutil.copytree(tape.directory, directory)
  return [path.name for path in directory.glob('*.noise')]


def test_files_of_a_killed_producer_are_replaced(tape, tmp_path):
  directory = tmp_path / 'abandoned'
  left = _abandon(tape, directory)
  assert '00000004.noise' in left
  new = _tape(directory, key=noise.Key.from_seed(6), ahead_bytes=0)
  # The marks of the ended run are gone too.
  assert np.any(_read(new, 0))
  assert not (directory / '00000004.noise').exists()
  new.close()
  assert not directory.exists()


@pytest.fixture
def temporary(tmp_path, monkeypatch):
  """Both places for temporary tapes: the disk's and the memory's."""
  disk, memory = tmp_path / 'disk', tmp_path / 'memory'
  disk.mkdir()
  memory.mkdir()
  monkeypatch.setattr(tape_folder, '_MEMORY', memory)
  monkeypatch.setattr(tape_folder.tempfile, 'tempdir', str(disk))
  return disk, memory


def test_temporary_tapes_of_killed_processes_are_removed(temporary):
  disk, memory = temporary
  live = _tape(None)
  assert live.directory.parent == memory
  for place in temporary:
    _abandon(live, place / 'tff_bandmf-tape-killed')
    (place / 'tff_bandmf-tape-starting').mkdir()
    (place / 'others').mkdir()
  second = _tape(None)
  assert np.any(_read(live, 2))
  for place in temporary:
    assert not (place / 'tff_bandmf-tape-killed').exists()
    assert (place / 'tff_bandmf-tape-starting').exists()
    assert (place / 'others').exists()
  live.close()
  second.close()
  assert len(list(memory.iterdir())) == len(list(disk.iterdir())) == 2


def test_temporary_tape_is_on_disk_where_memory_is_short(
    temporary, monkeypatch):
  disk, memory = temporary
  usage = shutil.disk_usage(memory)._replace(free=_ROUNDS * 4 * _DIMENSION)
  monkeypatch.setattr(tape_folder.shutil, 'disk_usage', lambda _: usage)
  tape = _tape(None)
  assert tape.directory.parent == disk
  assert stat.S_IMODE(tape.directory.stat().st_mode) == 0o700
  tape.close()


def test_tape_id_names_key_strategy_dimension_and_generator(tmp_path):
  variants = [
      {}, {'key': noise.Key.from_seed(6)}, {'dimension': _DIMENSION + 1},
      {'strategy': _strategy(rounds=_ROUNDS + 1)},
      {'strategy': _strategy(bands=6)}, {'generator': noise.AES_CTR},
  ]
  tapes = [
      _tape(tmp_path / str(i), **variant) for i, variant in enumerate(variants)]
  again = _tape(tmp_path / 'again')
  for each in [*tapes, again]:
    each.close()
  assert len({each.tape_id for each in tapes}) == len(tapes)
  assert again.tape_id == tapes[0].tape_id


def test_key_is_in_no_file_and_no_text(tape):
  _noise_file(tape, _ROUNDS - 1)
  halves = (_KEY.secret[:8], _KEY.secret[8:])
  for path in tape.directory.iterdir():
    content = path.read_bytes()
    assert not any(half in content for half in halves), path
  with pytest.raises(ValueError) as error:
    _tape(tape.directory)
  for text in (str(error.value), repr(tape), str(tape.tape_id)):
    assert not any(str(word) in text for word in _KEY.words())


def test_graph_reads_every_round_anew(tape):
  # Constant paths would be folded: one graph, several rounds.
  @tf.function
  def read(t):
    return tape_reader.read(
        tape.shards, tf.constant(tape.tape_id, tf.int64), t, 60.0)

  rounds = [read(tf.constant(t, tf.int64)).numpy() for t in range(5)]
  np.testing.assert_allclose(
      rounds, _dense(_strategy())[:5], rtol=0, atol=3e-6)
  _noise_file(tape, 5).unlink()
  threading.Timer(
      0.3, lambda: (tape.directory / 'failed').write_text('OSError')).start()
  with _refused('producer ended'):
    read(tf.constant(5, tf.int64))
