"""Tests of folders of runs: lost commits, restored files, words for faults."""

import os
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest

import tff_bandmf
from tff_bandmf import participation, report, run, strategies, verify
from tff_bandmf.run_files import run_json

_ROUNDS = 5
_LIKE = np.zeros(3, np.float32)


def _plan(**changes):
  return tff_bandmf.Plan(
    **{
      'rounds': _ROUNDS,
      'clients_per_round': 2,
      'cohorts': participation.MinSep(2),
      'delta': 1e-5,
      'l2_norm_clip': 1.0,
      'noise_multiplier': 1.0,
      'mechanism': strategies.BandedToeplitz(_ROUNDS, [1.0, 0.5]),
      **changes,
    }
  )


def _train(mine, rounds, seed=0):
  """Runs some of the rounds that are left; returns their cohorts."""
  mine.restore(lambda: _LIKE)
  cohorts = {}
  for opened in mine.rounds(clients=8, seed=seed):
    cohorts[opened.index] = opened.cohort.tolist()
    updates = [_LIKE + client for client in opened.cohort]
    opened.finish(opened.release(updates, _LIKE))
    if len(cohorts) == rounds:
      break
  return cohorts


def _commits(log):
  """Returns where each commit in the bytes of a write-ahead log ends."""
  frame = 24 + int.from_bytes(log[8:12], 'big')
  return [
    start + frame
    for start in range(32, len(log) - frame + 1, frame)
    if log[start + 8 : start + 16] == log[16:24]
    and log[start + 4 : start + 8] != bytes(4)
  ]


def _killed(mine, path):
  """Copies a folder as a kill would leave it now."""
  shutil.copytree(mine.directory, path)
  (path / f'{run_json.LEDGER_FILE}-shm').unlink()
  return path


@pytest.mark.slow
def test_ledger_that_lost_its_last_commits_is_refused(tmp_path):
  """SQLite drops the end of its log; another cohort then met the noise."""
  plan, killed = _plan(), {}
  with run.Run(tmp_path / 'run', plan) as mine:
    cohorts = _train(mine, 2)
    left = mine.rounds(clients=8)
    opened = next(left)
    cohorts[opened.index] = opened.cohort.tolist()
    mean = opened.release([_LIKE], _LIKE)
    killed['released'] = _killed(mine, tmp_path / 'released')
    opened.finish(mean)
    killed['finished'] = _killed(mine, tmp_path / 'finished')
    next(left)
    killed['started'] = _killed(mine, tmp_path / 'started')
  refused = opened_again = 0
  for moment, source in killed.items():
    log = (source / f'{run_json.LEDGER_FILE}-wal').read_bytes()
    for end in [0, *_commits(log)]:
      directory = tmp_path / f'{moment}-{end}'
      shutil.copytree(source, directory)
      with open(directory / f'{run_json.LEDGER_FILE}-wal', 'r+b') as file:
        file.truncate(end)
      try:
        report.build(directory)
        with run.Run(directory, plan, moved=True) as mine:
          mine.restore(lambda: _LIKE)
          # What was released still counts for the clients who were in it.
          with tff_bandmf.ledger.Ledger(
            directory / run_json.LEDGER_FILE
          ) as ledger:
            for t, cohort in cohorts.items():
              assert ledger.cohort(t).tolist() == sorted(cohort), (moment, end)
        opened_again += 1
      except ValueError as error:
        assert '\n' not in str(error)
        refused += 1
        with pytest.raises(ValueError):
          with run.Run(directory, plan, moved=True) as mine:
            mine.restore(lambda: _LIKE)
      shutil.rmtree(directory)
  assert refused > 10 and opened_again >= 3


def test_release_that_the_ledger_does_not_know_is_refused(tmp_path):
  with run.Run(tmp_path, _plan()) as mine:
    _train(mine, 1)
  marks = tmp_path / run_json.RELEASED
  for name, text in (
    ('00000001-1-0000000000-0000000001', 'lacks attempt 1 at round 1'),
    ('00000000-2-0000000000-0000000001', 'lacks attempt 2 at round 0'),
  ):
    (marks / name).touch()
    for call in (
      lambda: run.Run(tmp_path, _plan()),
      lambda: report.build(tmp_path),
    ):
      with pytest.raises(ValueError, match=text) as caught:
        call()
      assert '\n' not in str(caught.value)
    (marks / name).unlink()
  report.build(tmp_path)


def _restore(directory, backup):
  """Puts the files of a backup into a folder, each into the very file."""
  for path in sorted(directory.rglob('*')):
    if path.is_file():
      before = backup / path.relative_to(directory)
      if before.exists():
        path.write_bytes(before.read_bytes())
      else:
        path.unlink()
  for path in backup.rglob('*'):
    if path.is_file() and not (directory / path.relative_to(backup)).exists():
      shutil.copy2(path, directory / path.relative_to(backup))


@pytest.mark.slow
def test_folder_that_was_restored_lacks_the_noted_head(tmp_path):
  """Nothing in a folder that was restored in place says that it was."""
  plan, directory = _plan(), tmp_path / 'run'
  with run.Run(directory, plan) as mine:
    genesis = mine.ledger_head
    _train(mine, 2)
  shutil.copytree(directory, tmp_path / 'backup')
  with run.Run(directory, plan) as mine:
    early = mine.ledger_head
    _train(mine, 1)
    late = mine.ledger_head
  for head in genesis, early, late:
    with run.Run(directory, plan, ledger_head=head):
      pass
  _restore(directory, tmp_path / 'backup')
  with run.Run(directory, plan):
    pass
  for head in genesis, early:
    with run.Run(directory, plan, ledger_head=head):
      pass
  for head in late, early.upper(), 'late', '', int('1' * 64):
    with pytest.raises(
      ValueError, match='is not a head that this ledger has had'
    ) as caught:
      run.Run(directory, plan, ledger_head=head)
    assert '\n' not in str(caught.value)


@pytest.mark.slow
def test_report_of_an_open_run_has_the_head_of_its_ledger(tmp_path):
  """The bytes of the file were equal for two runs, and changed when closed."""
  heads = []
  for name in 'one', 'two':
    with run.Run(tmp_path / name, _plan()) as mine:
      _train(mine, 1)
      content = mine.report().content
      assert content['ledger_head'] == mine.ledger_head
      assert 'ledger.sqlite' not in content['files_sha256']
    assert report.build(tmp_path / name).content == content
    heads.append(content['ledger_head'])
  assert heads[0] != heads[1]
  for text in 'report.md', 'report.html':
    assert heads[1] in (tmp_path / 'two' / text).read_text()


@pytest.mark.slow
def test_run_that_was_not_closed_is_named_in_its_own_process(tmp_path):
  first = run.Run(tmp_path, _plan())
  with pytest.raises(ValueError, match='is open in this process.*close()'):
    run.Run(tmp_path, _plan())
  done = subprocess.run(
    [
      sys.executable,
      '-c',
      'import pathlib, sys; from tff_bandmf.run_files import folder\n'
      'with folder.locked(pathlib.Path(sys.argv[1])): pass',
      tmp_path,
    ],
    capture_output=True,
  )
  assert b'is in use by another process' in done.stderr
  first.close()
  with run.Run(tmp_path, _plan()):
    pass


@pytest.mark.slow
def test_folder_that_the_locale_cannot_write_is_refused_in_one_line(tmp_path):
  """TensorFlow's own error was the first to come, after a round began."""
  script = (
    'import tff_bandmf\n'
    'plan = tff_bandmf.Plan(rounds=2, clients_per_round=1, '
    'cohorts=tff_bandmf.Single(), noise_multiplier=1.0, l2_norm_clip=1.0, '
    "mechanism='identity')\n"
    "tff_bandmf.Run('m\\xfcnchen', plan)"
  )
  done = subprocess.run(
    [sys.executable, '-c', script],
    cwd=tmp_path,
    capture_output=True,
    env={
      **os.environ,
      'LC_ALL': 'C',
      'PYTHONUTF8': '0',
      'PYTHONCOERCECLOCALE': '0',
    },
  )
  last = done.stderr.strip().split(b'\n')[-1]
  assert b"output_dir='m\\xfcnchen': cannot be written as UTF-8" in last
  assert not list(tmp_path.iterdir())


_READ_ONLY = (
  'mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" && shift && "$@"'
)


def _on_read_only(directory, *command):
  """Runs a command while a folder is mounted read-only; skips if it cannot."""
  outside = ['unshare', '--mount', 'sh', '-c', _READ_ONLY, 'sh', directory]
  if subprocess.run([*outside, 'true'], capture_output=True).returncode:
    pytest.skip('this user may not mount')
  return subprocess.run(
    [*outside, sys.executable, *command], capture_output=True, text=True
  )


@pytest.mark.slow
def test_read_only_folder_is_named_as_such(tmp_path):
  """The lines spoke of space, or were a number of the system's."""
  with run.Run(tmp_path / 'run', _plan()) as mine:
    _train(mine, 1)
  done = _on_read_only(
    tmp_path / 'run',
    *('-m', 'tff_bandmf.cli.main', 'report', tmp_path / 'run'),
    *('--out', tmp_path),
  )
  assert done.returncode == 2 and done.stderr.count('\n') == 1
  assert 'folder that cannot be written' in done.stderr
  assert 'space' not in done.stderr
  done = _on_read_only(
    tmp_path / 'run',
    '-c',
    'import pathlib, sys; from tff_bandmf.run_files import folder\n'
    'with folder.locked(pathlib.Path(sys.argv[1])): pass',
    tmp_path / 'run',
  )
  last = done.stderr.strip().split('\n')[-1]
  assert 'cannot be written (Read-only file system)' in last
  assert 'private/lock' in last


def test_error_that_names_its_file_is_shown_as_it_is(tmp_path, capfd):
  """It was 'file=None: cannot be used (None)'."""
  from tff_bandmf.cli import main

  out = tmp_path / 'none' / 'c.json'
  assert main.main(
    [
      *'optimize --family identity --rounds 4 --min-sep 2'.split(),
      f'--out={out}',
    ]
  )
  error = capfd.readouterr().err
  assert 'None' not in error and str(out.parent) in error


@pytest.mark.slow
@pytest.mark.parametrize('ended', [False, True])
def test_exports_are_no_state(tmp_path, ended):
  """A run goes on, and is reported, without them; then they are the same."""
  with run.Run(tmp_path, _plan()) as mine:
    _train(mine, _ROUNDS if ended else 1)
    if ended:
      mine.record(accuracy=0.5)
  names = {run_json.STRATEGY_FILE, run_json.METRICS_FILE}
  names |= {run_json.RESULT_FILE} if ended else set()
  before = {name: (tmp_path / name).read_bytes() for name in names}
  content = report.build(tmp_path).content
  for name in names:
    (tmp_path / name).unlink()
  assert report.build(tmp_path).content == content
  report.write(tmp_path)
  assert verify.verify(tmp_path)['epsilon'] > 0
  with run.Run(tmp_path, _plan()) as mine:
    # The run writes the rows of metrics when it goes on.
    again = {*names} - ({run_json.METRICS_FILE} if ended else set())
    for name in again:
      assert (tmp_path / name).read_bytes() == before[name]
    if not ended:
      _train(mine, _ROUNDS)
      mine.record(accuracy=0.5)
  assert report.build(tmp_path).content['completed']


@pytest.mark.slow
@pytest.mark.parametrize(
  'name', [run_json.STRATEGY_FILE, run_json.METRICS_FILE, run_json.RESULT_FILE]
)
def test_export_that_differs_is_refused(tmp_path, name):
  with run.Run(tmp_path, _plan()) as mine:
    _train(mine, _ROUNDS)
    mine.record(accuracy=0.5)
  path = tmp_path / name
  whole = path.read_bytes()
  # An empty table has no row that differs.
  empty = [b''] * (name != run_json.METRICS_FILE)
  other = re.sub(b'[1-8]', lambda digit: b'9', whole, count=1)
  for content in *empty, b'{"format": 1}\n1', other:
    path.write_bytes(content)
    for read in report.build, lambda folder: run.Run(folder, _plan()):
      with pytest.raises(ValueError, match=f'{name}: .*, or remove') as caught:
        read(tmp_path)
      assert '\n' not in str(caught.value)
  path.write_bytes(whole)
  report.build(tmp_path)


def test_row_of_metrics_that_differs_is_refused(tmp_path):
  with run.Run(tmp_path, _plan()) as mine:
    _train(mine, 2)
  path = tmp_path / run_json.PRIVATE / 'metrics' / '00000000.json'
  text = path.read_text()
  path.write_text(text.replace('"clients": "2"', '"clients": "1"'))
  assert path.read_text() != text
  for read in report.build, lambda folder: run.Run(folder, _plan()):
    with pytest.raises(ValueError, match='has a row of round 0 that differs'):
      read(tmp_path)
  path.unlink()
  report.build(tmp_path)
