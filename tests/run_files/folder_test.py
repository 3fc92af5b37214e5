"""Tests of whose a run directory is: copies, edits, leftovers, modes, limits.

Each copy here went on once, with the noise of the original for other sums.
"""

import contextlib
import errno
import json
import os
import pathlib
import re
import shutil
import stat
import subprocess
import sys
from unittest import mock

import attrs
import pytest

from simulations import config as config_lib
from simulations import description, kill_test, pretraining, training
from simulations.corpora import docstrings, vocabulary
from tff_bandmf import _files, report
from tff_bandmf import ledger as ledger_lib
from tff_bandmf.run import opening
from tff_bandmf.run_files import folder, metrics, run_json

_ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture(scope='module')
def small(tmp_path_factory):
  """An experiment of four rounds and its corpus."""
  path = tmp_path_factory.mktemp('corpus') / 'absl.sqlite'
  docstrings.write_clients(
    docstrings.read_clients(
      [p for p in docstrings.PACKAGES if p[0] == 'absl-py']
    ),
    str(path),
  )
  config = kill_test.experiment(path, 4)
  return config, training.load_corpus(config.data)


@pytest.fixture(scope='module')
def left(small, tmp_path_factory, runtime):
  """A run of which three rounds are done, made while the umask was 0."""
  directory = tmp_path_factory.mktemp('left') / 'run'
  umask = os.umask(0)
  try:
    assert training.run(*small, directory, stop_after=3) is None
    report.write(directory)
    assert os.umask(0) == 0
  finally:
    os.umask(umask)
  return directory


@pytest.fixture
def run_copy(left, tmp_path):
  return pathlib.Path(shutil.copytree(left, tmp_path / 'run'))


def _describe(config, corpus):
  """What a run says of itself, and its plan."""
  clients = corpus.train.num_clients
  plan = training.plan(config, training.find_strategy(config, clients), clients)
  said = description.describe(
    config, corpus, pretraining.start(config, corpus.train.vocabulary)
  )
  return attrs.evolve(opening.run_details(), **said), plan


@pytest.fixture(scope='module')
def described(small):
  return _describe(*small)


def _open(directory, described, moved=False):
  """What a run does before its first round."""
  record, plan = described
  with folder.locked(directory):
    keys = folder.keys(directory, draws=False)
    if not (directory / run_json.PLAN_FILE).exists():
      plan.save(directory / run_json.PLAN_FILE)
    folder.open_run(directory, record, keys, moved)
  return keys.noise


def test_copy_is_refused_until_it_is_said_to_move(small, described, run_copy):
  for call in (
    lambda: _open(run_copy, described),
    lambda: training.run(*small, run_copy, resume=True),
  ):
    with pytest.raises(
      ValueError, match='is a copy, or was moved.*--moved'
    ) as caught:
      call()
    assert '\n' not in str(caught.value)
  assert training.run(*small, run_copy, resume=True, moved=True)
  # It is the run from then on.
  assert training.run(*small, run_copy, resume=True)
  assert report.write(run_copy)['completed']


@pytest.mark.parametrize('changed', ['host', 'device', 'inode', 'folder'])
def test_key_in_another_place_is_refused(described, run_copy, changed):
  path = run_copy / 'private' / 'place.json'
  place = folder._place(run_copy, begun=True)
  path.write_text(json.dumps({**place, changed: 'another'}))
  with pytest.raises(ValueError, match='is a copy, or was moved'):
    _open(run_copy, described)
  path.unlink()
  with pytest.raises(ValueError, match='is a copy, or was moved'):
    _open(run_copy, described)
  path.write_text(json.dumps(place))
  _open(run_copy, described)


def _without_past(directory):
  """Removes what says that rounds were run."""
  (directory / run_json.LEDGER_FILE).unlink()
  shutil.rmtree(directory / 'private' / 'checkpoints')
  (directory / run_json.METRICS_FILE).unlink()


@pytest.mark.parametrize('ledger_key', [True, False])
def test_copy_without_its_ledger_is_refused(described, run_copy, ledger_key):
  _without_past(run_copy)
  if not ledger_key:
    (run_copy / 'private' / 'ledger.key').unlink()
  with pytest.raises(ValueError, match='is a copy, or was moved'):
    _open(run_copy, described)
  with pytest.raises(ValueError, match='ledger.sqlite: does not exist'):
    _open(run_copy, described, moved=True)
  # Nor is a new one taken for the one that is gone.
  with ledger_lib.Ledger(run_copy / run_json.LEDGER_FILE):
    pass
  with pytest.raises(
    ValueError, match='is not the ledger that the key was used'
  ):
    _open(run_copy, described, moved=True)


def test_edited_copy_is_refused(small, run_copy):
  """Other cohorts met the same key, in 8 of 8 rounds."""
  config, corpus = small
  _without_past(run_copy)
  path = run_copy / run_json.RUN_FILE
  run = json.loads(path.read_text())
  other = _describe(
    config_lib.with_seed(config, config.training.seed + 1), corpus
  )
  run['config'] = json.loads(json.dumps(other[0].config))
  path.write_text(json.dumps(run))
  for moved in (False, True):
    with pytest.raises(
      ValueError, match='is the key of another run, or run.json or plan'
    ):
      _open(run_copy, other, moved)


def test_plan_that_was_edited_before_the_first_round_is_refused(
  described, run_copy
):
  """No round has its digest, but the ID of the run has it."""
  _without_past(run_copy)
  path = run_copy / run_json.PLAN_FILE
  path.write_bytes(path.read_bytes() + b'\n')
  with pytest.raises(ValueError, match='run.json or plan.json was edited'):
    _open(run_copy, described, moved=True)


def test_key_that_was_used_is_not_taken_for_a_new_one(described, run_copy):
  _without_past(run_copy)
  private = run_copy / 'private'
  (private / 'noise.key').rename(private / 'noise.key.new')
  with pytest.raises(ValueError, match='noise.key: is gone'):
    _open(run_copy, described, moved=True)


def test_start_that_was_killed_begins_anew(described, tmp_path):
  class Killed(Exception):
    pass

  steps = [
    (_files, 'write'),
    (os, 'rename'),
    (os, 'link'),
    (ledger_lib.Ledger, 'bind'),
    (ledger_lib.Ledger, '_open'),
  ]
  for left in range(20):
    directory = tmp_path / f'run{left}'
    rest = iter(range(left))

    def killing(function, rest=rest):
      def step(*args, **kwargs):
        if next(rest, None) is None:
          raise Killed
        return function(*args, **kwargs)

      return step

    with contextlib.ExitStack() as stack:
      for owner, name in steps:
        stack.enter_context(
          mock.patch.object(owner, name, killing(getattr(owner, name)))
        )
      try:
        first = _open(directory, described)
      except Killed:
        first = None
    # Whatever was done of the first steps, the next start does the rest.
    again = _open(directory, described)
    assert _open(directory, described).secret == again.secret
    if first is not None:
      assert first.secret == again.secret
      assert left > 5
      return
  pytest.fail('the start has more steps than were tried')


def test_public_files_are_written_by_their_owner_alone(left):
  public = secret = 0
  for path in [left, *left.rglob('*')]:
    mode = stat.S_IMODE(path.stat().st_mode)
    if path.parent.name == 'released':
      # Two counts of clients, by a TFF worker in a folder of mode 0700.
      assert re.fullmatch(r'\d+ \d+', path.read_text())
    elif 'private' in path.relative_to(left).parts:
      assert mode & 0o077 == 0, path
      secret += 1
    else:
      assert mode & 0o022 == 0, path
      public += 1
  assert public > 8 and secret > 4


def test_what_a_killed_process_left_half_written_is_removed(
  described, run_copy
):
  parts = [
    run_copy / 'run.json.0a.part',
    run_copy / 'private' / 'place.json.1.part',
    run_copy / 'private' / 'checkpoints' / '00000003.npz.2b.part',
  ]
  for path in parts:
    path.write_bytes(b'half')
  _open(run_copy, described, moved=True)
  assert not list(run_copy.rglob('*.part'))


def test_metrics_of_a_run_that_goes_on_are_checked(run_copy):
  path = run_copy / run_json.METRICS_FILE
  lines = path.read_text().splitlines(keepends=True)
  columns = lines[0].strip().split(',')
  with ledger_lib.Ledger(run_copy / run_json.LEDGER_FILE) as ledger:
    attempts = ledger.contents().attempts
    others = lines[2].replace('1,4,', '1,5,', 1)
    path.write_text(''.join([*lines[:2], others, *lines[3:]]))
    with pytest.raises(
      ValueError, match='metrics.csv: differs from the ledger in line 3'
    ):
      metrics.Metrics(run_copy, attempts, columns, 3)
    metrics.Metrics(run_copy, attempts, columns, 1)
    assert path.read_text() == ''.join(lines[:2])
    # Without them the report has no curve; the claim is the ledger's.
    path.unlink()
    metrics.Metrics(run_copy, attempts, columns, 3)
  report.write(run_copy)


def test_damaged_checkpoint_is_named_and_the_one_before_is_used(
  small, run_copy
):
  path = run_copy / 'private' / 'checkpoints' / '00000003.npz'
  content = bytearray(path.read_bytes())
  content[len(content) // 2] ^= 4
  path.write_bytes(content)
  with pytest.raises(ValueError, match=f'checkpoint={path}: is damaged'):
    training.run(*small, run_copy, resume=True, moved=True)
  path.unlink()
  # Here that is the very first state.
  assert training.run(*small, run_copy, resume=True)
  written = report.write(run_copy)
  assert written['completed'] and not written['observed']['rounds_burnt']


@pytest.mark.parametrize('export', [True, False])
def test_ledger_that_was_rolled_back_is_refused(small, run_copy, export):
  """With the ledger and the checkpoints of an hour ago, and today's rows."""
  config, _ = small
  path = run_copy / run_json.LEDGER_FILE
  for end in '', '-wal', '-shm':
    path.with_name(path.name + end).unlink(missing_ok=True)
  rows = run_copy / run_json.PRIVATE / 'metrics'
  texts = [json.loads(file.read_text()) for file in sorted(rows.iterdir())]
  # The export or the rows are enough.
  if export:
    shutil.rmtree(rows)
  else:
    (run_copy / run_json.METRICS_FILE).unlink()
  with ledger_lib.Ledger(path) as ledger:
    for t in range(2):
      row = texts[t]['row']
      ledger.start_round(t, range(config.training.clients_per_round))
      ledger.finish_round(t, row=metrics.digest(row))
    for start in range(3):
      with pytest.raises(
        ValueError, match='ledger.sqlite: lacks round 2, which'
      ) as caught:
        metrics.Metrics(run_copy, ledger.contents().attempts, [*row], start)
      assert '\n' not in str(caught.value)


def test_full_disk_names_the_metrics_and_the_vocabulary(tmp_path):
  full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
  rows = metrics.Metrics(tmp_path, {}, ['round'], 0)
  (tmp_path / run_json.PRIVATE).mkdir()
  with mock.patch.object(os, 'fsync', side_effect=full):
    with pytest.raises(OSError, match='file=.*00000000.json: .*No space'):
      rows.write(rows.row({'round': 0}), {})
  with mock.patch.object(os, 'fsync', side_effect=full):
    with pytest.raises(OSError, match='file=.*vocabulary.txt: .*No space'):
      vocabulary.Vocabulary(('a', 'b')).write(str(tmp_path / 'vocabulary.txt'))
  assert not list(tmp_path.glob('vocabulary.txt*'))


def test_full_disk_names_the_file(described, run_copy):
  full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
  with mock.patch.object(os, 'fsync', side_effect=full):
    with pytest.raises(OSError, match=f'file={run_copy}.*No sp') as caught:
      _open(run_copy, described, moved=True)
  assert '\n' not in str(caught.value)
  _open(run_copy, described, moved=True)


def _command(tmp_path, directory, environment=(), limit=None):
  """Runs the command as a shell would, and returns what it says."""
  # The shell lowers the limit: what runs between fork and exec in a process
  # that serves gRPC prints lines of gRPC's own.
  lower = (
    [] if limit is None else ['sh', '-c', f'ulimit -n {limit}; exec "$@"', 'sh']
  )
  config = tmp_path / 'run.toml'
  config.write_text(
    f"[data]\ncorpus = '{tmp_path / 'corpus.sqlite'}'\n"
    '[privacy]\nfamily = "identity"\n'
  )
  done = subprocess.run(
    [
      *lower,
      sys.executable,
      '-m',
      'simulations.run_stackoverflow',
      f'--config={config}',
      f'--output-dir={directory}',
    ],
    cwd=_ROOT,
    capture_output=True,
    timeout=120,
    env={**os.environ, **dict(environment)},
  )
  return done.returncode, done.stderr


@pytest.mark.slow
def test_too_few_files_are_told_before_anything_is_written(tmp_path):
  status, error = _command(tmp_path, tmp_path / 'run', limit=24)
  assert status == 2
  assert error == (
    b'files=24: so few files may be open at once, but a run needs 64; '
    b'use ulimit -n 64.\n'
  )
  assert not (tmp_path / 'run').exists()


@pytest.mark.slow
def test_folder_that_the_locale_cannot_write_is_told(tmp_path):
  status, error = _command(
    tmp_path,
    tmp_path / 'm\xfcnchen',
    {'LC_ALL': 'C', 'PYTHONUTF8': '0', 'PYTHONCOERCECLOCALE': '0'},
  )
  assert status == 2
  assert error.startswith(b"output_dir='") and error.count(b'\n') == 1
  assert b'LC_ALL=C.UTF-8' in error
