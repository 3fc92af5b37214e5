"""Tests of `bandmf noise-server` as a process: what it serves, and its ends.

The processes are forked from one that has imported it, and run the command
itself.
"""

import contextlib
import json
import os
import pathlib
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from unittest import mock

import numpy as np
import processes
import psutil
import pytest
import tapes

from tff_bandmf import _files, noise, strategies
from tff_bandmf.cli import noise_server
from tff_bandmf.noise import key_use, placements
from tff_bandmf.noise.producer import stream
from tff_bandmf.noise.tape import file as tape_file
from tff_bandmf.noise.tape import folder as tape_folder
from tff_bandmf.noise.tape import noise_server_tape as served_tape
from tff_bandmf.noise.tape import writer as tape_lib

pytestmark = pytest.mark.slow

# Random points at which the server is killed; 100 took 3 minutes.
_KILLS = int(os.environ.get('BANDMF_KILLS', '10'))
# Seconds that a server may take for a step.
_PATIENCE = 300
_ROUNDS = 40 + 3 * _KILLS
_DIMENSION = 3000
_STRATEGY = strategies.BandedToeplitz(_ROUNDS, 0.9 ** np.arange(40))
_KEY = noise.Key.from_seed(29)
_Z_STDDEV, _LARGEST_COHORT = 2.5, 100
_RECURSION = _STRATEGY.recursion()
_Z_STEPS = noise.Lattice.from_noise(
  _RECURSION, _Z_STDDEV, largest_cohort=_LARGEST_COHORT, dimension=_DIMENSION
).z_steps
_TAPE_ID = stream.identify(_KEY, _RECURSION, _DIMENSION, _Z_STEPS)


def _serve(arguments, out, error):
  """Runs the command; its output goes to files."""
  from tff_bandmf.cli import main

  for path, number in ((out, 1), (error, 2)):
    os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
  raise SystemExit(main.main(arguments))


class _Server:
  """A server in a folder of its own; started again at will.

  It is a tape that can be read.
  """

  tape_id, z_steps, recursion = _TAPE_ID, _Z_STEPS, _RECURSION

  def __init__(self, folder, *arguments, index=1, shards=1):
    self._folder = folder
    self.directory = folder / f'noise-{index}'
    self._out = folder / f'out-{index}'
    self.error = folder / f'error-{index}'
    strategies.save(_STRATEGY, folder / 'strategy.json')
    _files.write(folder / 'key', _KEY.secret, mode=0o600)
    self.arguments = [
      'noise-server',
      str(folder / 'strategy.json'),
      f'--parameters={_DIMENSION}',
      f'--key-file={folder / "key"}',
      f'--z-stddev-per-clip={_Z_STDDEV}',
      f'--largest-cohort={_LARGEST_COHORT}',
      f'--directory={self.directory}',
      f'--shard={index}/{shards}',
      '--json',
      *arguments,
    ]
    self.process = None
    self.shards = [tape_folder.Shard(0, _DIMENSION, self.directory)]

  def start(self):
    self._out.unlink(missing_ok=True)
    self.process = processes.start(
      # It ends with the tests, also if one fails before it ends the server.
      _serve,
      self.arguments,
      self._out,
      self.error,
      daemon=True,
    )

  def printed(self):
    """Returns what it prints when it is ready."""
    _wait_until(lambda: self._out.exists() and self._out.read_text())
    return json.loads(self._out.read_text())

  def end(self, number):
    """Returns the exit code of the process that is sent a signal."""
    os.kill(self.process.pid, number)
    self.process.join(_PATIENCE)
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
  deadline = time.monotonic() + _PATIENCE
  while not condition():
    assert time.monotonic() < deadline, 'timed out'
    time.sleep(0.005)


@pytest.fixture(scope='module')
def expected():
  """The noise of a run that nothing disturbs."""
  made = stream.Stream(_RECURSION, _Z_STEPS, _DIMENSION, _KEY)
  return np.stack([y.copy() for y in made.rows() if y is not None])


def _names(directory):
  return sorted(path.name for path in directory.iterdir())


def test_server_serves_the_noise_and_says_what_it_is(server, expected):
  server.start()
  description = server.printed()
  assert description['directory'] == str(server.directory)
  assert {
    **description,
    'format': 'tff_bandmf.tape',
    'version': tape_file.VERSION,
  } == {
    **json.loads((server.directory / 'tape.json').read_text()),
    'directory': str(server.directory),
    'start_round': 0,
  }
  assert description['strategy'] == _STRATEGY.recursion().digest
  assert (description['rounds'], description['dimension']) == (
    _ROUNDS,
    _DIMENSION,
  )
  assert description['z_steps'] == _Z_STEPS
  assert stat.S_IMODE(server.directory.stat().st_mode) == 0o700
  for t in range(5):
    assert np.array_equal(tapes.release(server, t), expected[t])
  _wait_until(lambda: 'round 4 of' in server.error.read_text())
  parts = [_KEY.secret[i : i + 8] for i in range(0, 32, 8)]
  use = server.directory.parent / 'key.use'
  for path in [*server.directory.iterdir(), server.error, use]:
    content = path.read_bytes()
    assert not any(
      part in content or part.hex().encode() in content for part in parts
    )
    if path.parent == server.directory:
      assert stat.S_IMODE(path.stat().st_mode) == 0o600 or (
        path.suffix == '.reached'
      )


def test_server_with_jax_needs_no_tensorflow(server, expected):
  program = """
import sys
for name in ('tensorflow', 'tensorflow_federated', 'tensorflow_privacy'):
  sys.modules[name] = None
from tff_bandmf.cli import main
sys.exit(main.main(sys.argv[1:]))
"""
  command = [sys.executable, '-c', program, *server.arguments, '--backend=jax']
  error = server.error.open('wb')
  process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=error)
  try:
    assert tapes.noise_file(server, 0).exists()
    for t in range(3):
      assert np.array_equal(tapes.release(server, t), expected[t])
  finally:
    process.terminate()
    printed, _ = process.communicate(timeout=_PATIENCE)
  assert process.returncode == 0, server.error.read_text()
  assert json.loads(printed)['z_steps'] == _Z_STEPS
  # Another backend goes on with the same bits.
  tape = tape_lib.Tape(
    server.directory,
    stream.Stream(_RECURSION, _Z_STEPS, _DIMENSION, _KEY),
    resume=True,
  )
  assert np.array_equal(tapes.release(tape, 3), expected[3])
  tape.close()


@pytest.mark.parametrize('number', [signal.SIGTERM, signal.SIGINT])
def test_server_that_was_stopped_continues(server, expected, number):
  server.start()
  server.printed()
  for t in range(6):
    tapes.release(server, t)
  _wait_until((server.directory / '00000007.noise').exists)
  link = server.directory.parent / 'link'
  os.link(server.directory / '00000007.noise', link)
  assert server.end(number) == 0
  # No noise is left, and what says which was used.
  mark, *others = _names(server.directory)
  assert mark.startswith(f'00000005-{tapes.RUN}-')
  assert others == ['definition.npz', 'lock', 'tape.json']
  assert not any(link.read_bytes())
  assert 'Traceback' not in server.error.read_text()
  server.start()
  assert server.printed()['start_round'] == 5
  with tapes.refused('already used'):
    tapes.release(server, 4)
  # Its release is still the only one.
  with tapes.refused('released another sum'):
    tapes.release(server, 5, np.ones(_DIMENSION))
  for t in (5, _ROUNDS - 1):
    assert np.array_equal(tapes.release(server, t), expected[t])
  assert server.end(number) == 0
  # The run is over, but the key could start another one.
  mark, *others = _names(server.directory)
  assert mark.startswith(f'{_ROUNDS - 1:08d}-')
  assert others == ['definition.npz', 'lock', 'tape.json']


def test_killed_server_continues_from_the_highest_mark(server, expected):
  server.start()
  server.printed()
  for t in range(6):
    tapes.release(server, t)
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
  (directory / '00000009.noise.ab.part').write_bytes(b'part')
  (directory / 'failed').write_bytes(b'OSError')
  kept = directory / '00000010.noise'
  before = kept.stat().st_ino
  # A call that TFF repeats may come late and leave an old mark.
  (directory / '00000002.reached').touch()
  server.start()
  assert server.printed()['start_round'] == 5
  assert not used.exists() and not (directory / 'failed').exists()
  with tapes.refused('already used'):
    tapes.release(server, 4)
  for t in range(5, 12):
    assert np.array_equal(tapes.release(server, t), expected[t])
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
    assert np.array_equal(tapes.release(server, 6), expected[6])
    tapes.release(server, 8)
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
  with tapes.refused('is it alive'):
    tapes.release(server, 5, timeout=0.5)
  assert time.monotonic() - began >= 0.5


def test_frozen_server_is_named_while_a_round_waits(tmp_path, expected, capfd):
  """The round waited for ten minutes, and nothing said for whom."""
  server = _Server(tmp_path, '--ahead-bytes=1')
  with contextlib.ExitStack() as stack:
    stack.callback(server.kill)
    server.start()
    # A server that is late by itself would be named, too.
    _wait_until((server.directory / '00000001.noise').exists)
    served = stack.enter_context(
      contextlib.closing(
        served_tape.ServedTape(
          placements.Served(server.directory, notice_seconds=1.0),
          _RECURSION,
          _Z_STEPS,
          _DIMENSION,
        )
      )
    )
    tapes.release(served, 0)
    # Longer than what a late server is given: this one is in time.
    time.sleep(1.5)
    assert capfd.readouterr().err == ''
    process = psutil.Process(server.process.pid)
    process.suspend()
    _wait_until(lambda: process.status() == psutil.STATUS_STOPPED)
    tapes.release(served, 1)
    said = []

    def wake():
      _wait_until(
        lambda: said.append(capfd.readouterr().err) or 'No noise' in said[-1]
      )
      process.resume()

    thread = threading.Thread(target=wake)
    thread.start()
    assert np.array_equal(tapes.release(served, 2), expected[2])
    thread.join()
    (line,) = ''.join(said).splitlines()
    assert f'process {process.pid} on {socket.gethostname()}' in line
    assert str(server.directory) in line
    assert 'No noise of round 2 for 1 s' in line and 'kill -CONT' in line


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
        assert np.array_equal(tapes.release(server, t - 1), expected[t - 1])
      for _ in range(random.integers(1, 4)):
        assert np.array_equal(tapes.release(server, t), expected[t])
        t += 1
      time.sleep(random.exponential(0.01))
    server.kill()
    # Whatever has a name is whole.
    for path in server.directory.glob('*.noise'):
      if int(path.stem) >= t:
        assert tape_file.is_whole(path, _TAPE_ID, 0, _DIMENSION)
  server.start()
  assert server.printed()['start_round'] == max(0, t - 1)
  for u in range(max(0, t - 1), _ROUNDS):
    assert np.array_equal(tapes.release(server, u), expected[u])
  assert server.end(signal.SIGTERM) == 0
  assert [name[:9] for name in _names(server.directory)] == [
    f'{_ROUNDS - 1:08d}-',
    'definitio',
    'lock',
    'tape.json',
  ]


def _refused(run, server, *arguments):
  """Returns the line with which the command refuses to start."""
  # One that starts ends at once.
  with mock.patch.object(noise_server, '_wait', lambda *_: None):
    status, out, error = run(*server.arguments, *arguments)
  assert (status, out) == (2, '')
  (line,) = error.splitlines()
  return line


def test_folder_of_another_tape_is_refused_in_one_line(server, run, tmp_path):
  server.start()
  server.printed()
  assert 'another noise-server makes coordinates' in _refused(run, server)
  server.kill()
  left = _names(server.directory)
  _files.write(tmp_path / 'other-key', bytes(32), mode=0o600)
  other = f'--key-file={tmp_path / "other-key"}'
  for arguments, said in (
    ([], 'tape_id='),
    ([f'--parameters={_DIMENSION + 1}'], f'dimension={_DIMENSION}'),
    (['--largest-cohort=100000'], f'z_steps={_Z_STEPS}'),
    (['--z-stddev-per-clip=2.6'], f'z_steps={_Z_STEPS}'),
  ):
    line = _refused(run, server, other, *arguments)
    assert 'holds another tape' in line and said in line
  assert _names(server.directory) == left
  # A refusal is no use of a key.
  server.start()
  server.printed()


def test_second_server_of_a_key_is_refused(tmp_path, run, monkeypatch):
  monkeypatch.setattr(stream, '_GRID', 1 << 10)
  server = _Server(tmp_path)
  server.start()
  server.printed()
  for directory in ('noise-1', 'elsewhere'):
    for shard in ('1/1', '1/2', '2/2'):
      line = _refused(
        run, server, f'--directory={tmp_path / directory}', f'--shard={shard}'
      )
      assert 'another noise-server makes coordinates in' in line
      assert 'a key file of its own' in line
  assert not (tmp_path / 'elsewhere').exists()
  server.kill()


def test_key_is_recorded_before_noise_is_made(tmp_path, run, monkeypatch):
  server = _Server(tmp_path)

  def record(use):
    del use
    assert (server.directory / 'tape.json').exists()
    # No thread makes noise yet.
    names = {thread.name for thread in threading.enumerate()}
    assert 'tff_bandmf tape' not in names
    raise OSError('the disk is full')

  monkeypatch.setattr(key_use.KeyUse, 'record', record)
  monkeypatch.setattr(noise_server, '_wait', lambda *_: None)
  status, out, error = run(*server.arguments)
  assert (status, out) == (2, '')
  assert 'the disk is full' in error


@pytest.mark.parametrize(
  'arguments, said',
  [
    (['--directory=elsewhere'], 'has served this noise in '),
    (
      ['--directory=elsewhere', f'--parameters={_DIMENSION - 1}'],
      'has served another noise in ',
    ),
    (['--z-stddev-per-clip=2.6'], 'has served another noise in '),
  ],
)
def test_key_of_another_folder_is_refused(
  server, run, tmp_path, monkeypatch, arguments, said
):
  monkeypatch.chdir(tmp_path)
  server.start()
  server.printed()
  assert server.end(signal.SIGTERM) == 0
  line = _refused(run, server, *arguments)
  assert said + str(server.directory) in line
  assert not (tmp_path / 'elsewhere').exists()
  # The same folder by another name is the same.
  (tmp_path / 'link').symlink_to(tmp_path)
  server.arguments.append(f'--directory={tmp_path / "link" / "noise-1"}')
  server.start()
  assert server.printed()['start_round'] == 0


def test_tape_of_a_training_process_is_refused(server, run):
  own = tapes.make(
    server.directory,
    _STRATEGY,
    z_steps=_Z_STEPS,
    dimension=_DIMENSION,
    key=_KEY,
  )
  tapes.noise_file(own, 0)
  assert 'has a live producer' in _refused(run, server)
  # As one leaves them that was killed.
  left = pathlib.Path(f'{server.directory}-left')
  os.mkdir(left)
  for name in ('00000000.noise', '00000000.reached', 'tape.json'):
    (left / name).write_bytes((server.directory / name).read_bytes())
  own.close()
  line = _refused(run, server, f'--directory={left}')
  assert 'holds another tape, served=False' in line


def test_training_does_not_remove_the_folder_of_a_server(server):
  server.start()
  server.printed()
  server.kill()
  for key in (_KEY, tapes.KEY):
    with pytest.raises(ValueError, match='holds another tape.* served=True'):
      tapes.make(
        server.directory,
        _STRATEGY,
        z_steps=_Z_STEPS,
        dimension=_DIMENSION,
        key=key,
      )
  assert (server.directory / 'tape.json').exists()


def test_server_ends_in_one_line_when_its_folder_goes(server):
  server.start()
  server.printed()
  moved = server.directory.rename(server.directory.with_name('moved'))
  server.process.join(_PATIENCE)
  assert server.process.exitcode == 2
  assert 'FileNotFoundError' in server.error.read_text()
  assert 'Traceback' not in server.error.read_text()
  assert (moved / 'tape.json').exists()


@pytest.mark.parametrize(
  'arguments, said',
  [
    (['--shard=3/2'], 'shard=3/2'),
    (['--shard=0/2'], 'shard=0/2'),
    (['--shard=1'], 'shard=1'),
    (['--shard=1/2'], 'shards=2'),
    ([f'--start-round={_ROUNDS + 1}'], 'start_round='),
    (['--start-round=-1'], 'start_round=-1'),
    (['--parameters=0'], 'parameters=0'),
    (['--largest-cohort=0'], 'largest_cohort=0'),
    (['--largest-cohort=2000000000'], 'lattice='),
    (['--z-stddev-per-clip=0'], 'z_stddev_per_clip=0'),
    (['--device=GPU:9'], 'devices=GPU:9: need a backend'),
    (['--backend=jax', '--device=gpu:9'], 'devices=gpu:9'),
    (['--max-memory-bytes=0'], 'max_memory_bytes=0'),
  ],
)
def test_bad_values_are_refused_and_nothing_is_made(
  server, run, arguments, said
):
  assert said in _refused(run, server, *arguments)
  assert not server.directory.exists()


@pytest.mark.parametrize(
  'name',
  ['--parameters', '--z-stddev-per-clip', '--largest-cohort', '--key-file'],
)
def test_what_the_noise_depends_on_is_never_guessed(server, run, name):
  server.arguments = [
    each for each in server.arguments if not each.startswith(name)
  ]
  assert name in _refused(run, server)
  assert not server.directory.exists()


def test_lattice_is_that_of_a_secure_sum_where_told(tmp_path):
  cohort = 60_000
  server = _Server(tmp_path, f'--largest-cohort={cohort}', '--secure-sum')
  server.start()
  found = server.printed()['z_steps']
  server.kill()
  each = [
    noise.Lattice.from_noise(
      _RECURSION,
      _Z_STDDEV,
      largest_cohort=cohort,
      dimension=_DIMENSION,
      secure_sum=secure,
    ).z_steps
    for secure in (True, False)
  ]
  assert found == each[0] != each[1]


class _Trouble:
  """A tape that has what a server says something about."""

  def __init__(self, reached=3, written=5, is_full=False):
    self.reached, self.written, self.is_full = reached, written, is_full
    self.directory = 'noise/1'
    self.description = tape_folder.Description(1, '00', 9, 10, 0, 10, 2.0, True)


def test_server_tells_of_a_full_disk_and_of_a_silent_reader():
  def trouble(silent=0.0, **kwargs):
    return noise_server._warning(_Trouble(**kwargs), silent)

  assert trouble() is None and trouble(59.0) is None
  assert trouble(is_full=True) == (
    'no room in noise/1: rounds wait until there is'
  )
  assert 'no round was read for 60 s' in trouble(61.0)
  # Nothing is there to be read, or all was.
  assert trouble(61.0, written=3) is None
  assert trouble(61.0, reached=8, written=9) is None


def test_trouble_is_one_line_each_time_it_begins(monkeypatch, capsys):
  monkeypatch.setattr(noise_server, '_PROGRESS_SECONDS', 0.01)
  tape = _Trouble()
  tape.error = None
  states = iter([False, True, True, False, True, True])

  class Stop:
    def wait(self, seconds):
      tape.is_full = next(states, None)
      return tape.is_full is None

  noise_server._wait(tape, Stop())
  assert capsys.readouterr().err.count('no room in noise/1') == 2


def test_key_is_made_once_and_private(tmp_path, run):
  server = _Server(tmp_path)
  key = tmp_path / 'new-key'
  for _ in range(2):
    # Ends before it starts, but has its key.
    _refused(run, server, f'--key-file={key}', f'--start-round={_ROUNDS + 1}')
    content = key.read_bytes()
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
  assert content == key.read_bytes() and content != _KEY.secret


def test_default_folder_is_in_memory_and_of_one_noise(server, tmp_path):
  # Others may run this test on this machine.
  key = noise.Key.from_entropy()
  _files.write(tmp_path / 'key', key.secret, mode=0o600)
  server.arguments.remove(f'--directory={server.directory}')
  server.start()
  directory = pathlib.Path(server.printed()['directory'])
  try:
    tape_id = stream.identify(key, _RECURSION, _DIMENSION, _Z_STEPS)
    assert directory.name == f'tff_bandmf-server-{tape_id}-1-1'
    memory = pathlib.Path('/dev/shm')
    assert directory.parent == memory or not memory.is_dir()
    _wait_until((directory / f'{_ROUNDS - 1:08d}.noise').exists)
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
  finally:
    server.kill()
    tape_folder.remove(directory)
