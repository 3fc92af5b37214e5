"""Tests of `bandmf noise-server` as a process: what it serves, and its ends.

The processes are forked from one that has imported TensorFlow, and run the
command itself.
"""

import contextlib
import json
import multiprocessing
import os
import pathlib
import signal
import stat
import time

import numpy as np
import pytest
import tensorflow as tf

from tff_bandmf import noise, strategies
from tff_bandmf.noise import (
    private_files,
    stream,
    tape_folder,
    tape_reader,
)

# Random points at which the server is killed; 100 took 3 minutes.
_KILLS = int(os.environ.get('BANDMF_KILLS', '10'))
_ROUNDS = 40 + 3 * _KILLS
_DIMENSION = 3000
_STRATEGY = strategies.BandedToeplitz(_ROUNDS, 0.9**np.arange(40))
_KEY = noise.Key.from_seed(29)
_PROCESSES = multiprocessing.get_context('forkserver')
_PROCESSES.set_forkserver_preload(['tff_bandmf.noise'])


def _serve(arguments, out, error):
  """Runs the command; its output goes to files."""
  from tff_bandmf.cli import main

  for path, number in ((out, 1), (error, 2)):
    os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
  raise SystemExit(main.main(arguments))


class _Server:
  """A server in a folder of its own; started again at will."""

  def __init__(self, folder, *arguments, index=1, shards=1):
    self._folder = folder
    self.directory = folder / f'noise-{index}'
    self._out = folder / f'out-{index}'
    self.error = folder / f'error-{index}'
    strategies.save(_STRATEGY, folder / 'strategy.json')
    private_files.write(folder / 'key', _KEY.secret)
    self.arguments = [
        'noise-server', str(folder / 'strategy.json'),
        f'--parameters={_DIMENSION}', f'--key-file={folder / "key"}',
        f'--directory={self.directory}', f'--shard={index}/{shards}',
        '--json', *arguments]
    self.process = None
    self.shards = [tape_folder.Shard(self.directory, 0, _DIMENSION)]

  def start(self):
    self._out.unlink(missing_ok=True)
    self.process = _PROCESSES.Process(
        target=_serve, args=(self.arguments, self._out, self.error))
    self.process.start()

  def printed(self):
    """Returns what it prints when it is ready."""
    _wait_until(lambda: self._out.exists() and self._out.read_text())
    return json.loads(self._out.read_text())

  def end(self, number):
    """Returns the exit code of the process that is sent a signal."""
    os.kill(self.process.pid, number)
    self.process.join(60)
    return self.process.exitcode

  def kill(self):
    if self.process is not None and self.process.is_alive():
      assert self.end(signal.SIGKILL) == -signal.SIGKILL


@pytest.fixture
def server(tmp_path):
  server = _Server(tmp_path)
  yield server
  server.kill()


def _wait_until(condition):
  deadline = time.monotonic() + 120
  while not condition():
    assert time.monotonic() < deadline, 'timed out'
    time.sleep(0.005)


def _expected():
  made = stream.Stream(noise.Plan.of(_STRATEGY), _DIMENSION, _KEY)
  return np.stack([y.copy() for y in made.rows() if y is not None])


@pytest.fixture(scope='module')
def expected():
  """The noise of a run that nothing disturbs."""
  return _expected()


@tf.function
def _read_graph(directory, tape_id, t, timeout):
  # One graph for all folders of a test.
  return tape_reader.read(
      [tape_folder.Shard(directory, 0, _DIMENSION)], tape_id, t, timeout)


def _read(server, t, timeout=120.0):
  tape_id = noise.Plan.of(_STRATEGY).identify(_KEY, _DIMENSION, noise.PHILOX)
  return _read_graph(
      str(server.directory), tf.constant(tape_id), tf.constant(t, tf.int64),
      tf.constant(timeout, tf.float64)).numpy()


def _names(directory):
  return sorted(path.name for path in directory.iterdir())


def test_server_serves_the_noise_and_says_what_it_is(server, expected):
  server.start()
  description = server.printed()
  assert description['directory'] == str(server.directory)
  assert {
      **description, 'format': 'tff_bandmf.tape', 'version': 2,
  } == {
      **json.loads((server.directory / 'tape.json').read_text()),
      'directory': str(server.directory), 'start_round': 0}
  assert description['strategy'] == _STRATEGY.digest()
  assert (description['rounds'], description['dimension']) == (
      _ROUNDS, _DIMENSION)
  assert (description['generator'], description['device']) == (
      'philox', 'GPU' if tf.config.list_logical_devices('GPU') else 'host')
  assert stat.S_IMODE(server.directory.stat().st_mode) == 0o700
  for t in range(5):
    assert np.array_equal(_read(server, t), expected[t])
  _wait_until(lambda: 'round 4 of' in server.error.read_text())
  halves = _KEY.secret[:8], _KEY.secret[8:]
  for path in [*server.directory.iterdir(), server.error]:
    content = path.read_bytes()
    assert not any(half in content for half in halves)
    assert not any(str(word).encode() in content for word in _KEY.words())
    if path.parent == server.directory:
      assert stat.S_IMODE(path.stat().st_mode) == 0o600 or (
          path.suffix == '.reached')


@pytest.mark.parametrize('number', [signal.SIGTERM, signal.SIGINT])
def test_server_that_was_stopped_continues(server, expected, number):
  server.start()
  server.printed()
  for t in range(6):
    _read(server, t)
  _wait_until((server.directory / '00000007.noise').exists)
  link = server.directory.parent / 'link'
  os.link(server.directory / '00000007.noise', link)
  assert server.end(number) == 0
  # No noise is left, and what says which was used.
  assert _names(server.directory) == ['00000005.reached', 'lock', 'tape.json']
  assert not any(link.read_bytes())
  assert 'Traceback' not in server.error.read_text()
  server.start()
  assert server.printed()['start_round'] == 5
  with pytest.raises(tf.errors.InvalidArgumentError, match='already used'):
    _read(server, 4)
  for t in (5, _ROUNDS - 1):
    assert np.array_equal(_read(server, t), expected[t])
  assert server.end(number) == 0
  # The run is over, but the key could start another one.
  assert _names(server.directory) == [
      f'{_ROUNDS - 1:08d}.reached', 'lock', 'tape.json']


def test_killed_server_continues_from_the_highest_mark(server, expected):
  server.start()
  server.printed()
  for t in range(6):
    _read(server, t)
  _wait_until((server.directory / f'{_ROUNDS - 1:08d}.noise').exists)
  server.kill()
  # As if it had been killed a moment earlier or later.
  directory = server.directory
  used = directory / '00000003.noise'
  used.write_bytes(b'used')
  damaged = directory / '00000006.noise'
  content = damaged.read_bytes()
  damaged.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
  short = directory / '00000007.noise'
  short.write_bytes(short.read_bytes()[:-1])
  (directory / '00000008.noise').unlink()
  (directory / '00000009.noise-part').write_bytes(b'part')
  (directory / 'failed').write_bytes(b'OSError')
  kept = directory / '00000010.noise'
  before = kept.stat().st_ino
  # A call that TFF repeats may come late and leave an old mark.
  (directory / '00000002.reached').touch()
  server.start()
  assert server.printed()['start_round'] == 5
  assert not used.exists() and not (directory / 'failed').exists()
  with pytest.raises(tf.errors.InvalidArgumentError, match='already used'):
    _read(server, 4)
  for t in range(5, 12):
    assert np.array_equal(_read(server, t), expected[t])
    if t == 9:
      # What is whole is not written again: a round may be reading it.
      assert kept.stat().st_ino == before
  assert not list(directory.glob('*-part'))


def test_start_round_counts_where_it_is_the_highest(tmp_path, expected):
  server = _Server(tmp_path, '--start-round=6')
  with contextlib.ExitStack() as stack:
    stack.callback(server.kill)
    server.start()
    assert server.printed()['start_round'] == 6
    assert np.array_equal(_read(server, 6), expected[6])
    _read(server, 8)
    server.kill()
    server.start()
    assert server.printed()['start_round'] == 8


def test_round_of_a_killed_server_fails_after_its_timeout(tmp_path):
  server = _Server(tmp_path, '--ahead-bytes=1')
  server.start()
  server.printed()
  _wait_until((server.directory / '00000001.noise').exists)
  server.kill()
  began = time.monotonic()
  with pytest.raises(
      tf.errors.InvalidArgumentError, match='is its process alive'):
    _read(server, 5, timeout=0.5)
  assert time.monotonic() - began >= 0.5


def test_server_killed_at_random_points_gives_the_same_noise(server, expected):
  random = np.random.default_rng()
  t = 0
  for _ in range(_KILLS):
    server.start()
    if random.random() < 0.3:
      # While it starts, or makes again what was there before.
      time.sleep(random.uniform(0, 1))
    else:
      # While it writes, waits, or removes what was read.
      _wait_until((server.directory / f'{t:08d}.noise').exists)
      if t and random.random() < 0.5:
        assert np.array_equal(_read(server, t - 1), expected[t - 1])
      for _ in range(random.integers(1, 4)):
        assert np.array_equal(_read(server, t), expected[t])
        t += 1
      time.sleep(random.exponential(0.01))
    server.kill()
    # Whatever has a name is whole.
    for path in server.directory.glob('*.noise'):
      if int(path.stem) >= t:
        assert tape_folder.is_whole(
            path, noise.Plan.of(_STRATEGY).identify(
                _KEY, _DIMENSION, noise.PHILOX), server.shards[0])
  server.start()
  assert server.printed()['start_round'] == max(0, t - 1)
  for u in range(max(0, t - 1), _ROUNDS):
    assert np.array_equal(_read(server, u), expected[u])
  assert server.end(signal.SIGTERM) == 0
  assert _names(server.directory) == [
      f'{_ROUNDS - 1:08d}.reached', 'lock', 'tape.json']


def _refused(run, server, *arguments):
  """Returns the line with which the command refuses to start."""
  status, out, error = run(*server.arguments, *arguments)
  assert (status, out) == (2, '')
  line, = error.splitlines()
  return line


def test_folder_of_another_tape_is_refused_in_one_line(server, run, tmp_path):
  server.start()
  server.printed()
  assert 'has a live producer' in _refused(run, server)
  server.kill()
  left = _names(server.directory)
  private_files.write(tmp_path / 'other-key', bytes(16))
  other = strategies.BandedToeplitz(_ROUNDS, [1.0, 0.5])
  strategies.save(other, tmp_path / 'other.json')
  for arguments, said in (
      ([f'--key-file={tmp_path / "other-key"}'], 'tape_id='),
      ([f'--parameters={_DIMENSION + 1}'], f'dimension={_DIMENSION}'),
      (['--secure-noise'], 'generator=philox'),
      (['--device=CPU:0'], 'device=')):
    line = _refused(run, server, *arguments)
    assert 'holds another tape' in line and said in line
  server.arguments[1] = str(tmp_path / 'other.json')
  assert f'strategy={_STRATEGY.digest()}' in _refused(run, server)
  assert _names(server.directory) == left


def test_tape_of_a_training_process_is_refused(server, run):
  tape = noise.Tape(
      server.directory, noise.Plan.of(_STRATEGY), _DIMENSION, _KEY)
  _wait_until((server.directory / '00000000.noise').exists)
  # As one leaves them that was killed.
  left = pathlib.Path(f'{server.directory}-left')
  os.mkdir(left)
  for name in ('00000000.noise', '00000000.reached'):
    (left / name).write_bytes((server.directory / name).read_bytes())
  tape.close()
  server.directory = left
  assert 'holds a tape of no noise-server' in _refused(
      run, server, f'--directory={left}')
  with pytest.raises(ValueError, match='of no noise-server'):
    noise.Tape(
        left, noise.Plan.of(_STRATEGY), _DIMENSION, _KEY, resume=True)


def test_training_does_not_remove_the_folder_of_a_server(server):
  server.start()
  server.printed()
  server.kill()
  with pytest.raises(ValueError, match='holds files of others'):
    noise.Tape(server.directory, noise.Plan.of(_STRATEGY), _DIMENSION, _KEY)
  assert (server.directory / 'tape.json').exists()


def test_server_ends_in_one_line_when_its_folder_goes(server):
  server.start()
  server.printed()
  moved = server.directory.rename(server.directory.with_name('moved'))
  server.process.join(60)
  assert server.process.exitcode == 2
  assert 'FileNotFoundError' in server.error.read_text()
  assert 'Traceback' not in server.error.read_text()
  assert (moved / 'tape.json').exists()


@pytest.mark.parametrize('arguments, said', [
    (['--shard=3/2'], 'shard=3/2'), (['--shard=0/2'], 'shard=0/2'),
    (['--shard=1'], 'shard=1'), (['--shard=1/2'], 'shards=2'),
    ([f'--start-round={_ROUNDS + 1}'], 'start_round='),
    (['--parameters=0'], 'parameters=0'),
    (['--device=GPU:9'], 'devices=GPU:9'),
    (['--max-memory-bytes=0'], 'max_memory_bytes=0')])
def test_bad_values_are_refused_and_nothing_is_made(
    server, run, arguments, said):
  assert said in _refused(run, server, *arguments)
  assert not server.directory.exists()


def test_key_is_made_once_and_private(tmp_path, run):
  server = _Server(tmp_path)
  key = tmp_path / 'new-key'
  for _ in range(2):
    # Ends before it starts, but has its key.
    _refused(
        run, server, f'--key-file={key}', f'--start-round={_ROUNDS + 1}')
    content = key.read_bytes()
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
  assert content == key.read_bytes() and content != _KEY.secret


def test_default_folder_is_in_memory_and_of_one_noise(server, tmp_path):
  # Others may run this test on this machine.
  key = noise.Key.from_entropy()
  (tmp_path / 'key').write_bytes(key.secret)
  server.arguments.remove(f'--directory={server.directory}')
  server.start()
  directory = pathlib.Path(server.printed()['directory'])
  try:
    tape_id = noise.Plan.of(_STRATEGY).identify(key, _DIMENSION, noise.PHILOX)
    assert directory.name == f'tff_bandmf-server-{tape_id}-1-1'
    memory = pathlib.Path('/dev/shm')
    assert directory.parent == memory or not memory.is_dir()
    _wait_until((directory / f'{_ROUNDS - 1:08d}.noise').exists)
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
  finally:
    server.kill()
    tape_folder.remove(directory)
