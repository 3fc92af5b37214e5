"""The programs in examples/ print what they say; ports go on after a kill."""

import contextlib
import csv
import difflib
import json
import os
import pathlib
import re
import runpy
import signal
import subprocess
import sys
import textwrap
import time
import traceback

import databases
import processes
import psutil
import pytest

from tff_bandmf.cli import main
from tff_bandmf.run import rounds

pytestmark = pytest.mark.slow
_EXAMPLES = pathlib.Path(__file__).resolve().parent.parent / 'examples'
_PORTS = sorted(path.stem[:-6] for path in _EXAMPLES.glob('*_after.py'))
# Lines that a port adds or changes, beside the command for its plan.
_LINES = {'fed_avg': 11, 'images': 12, 'program': 12}
# Seconds that a program may hang.
_PATIENCE = 600


def _promised(name):
  """Returns what the docstring of a program says that it prints."""
  docstring = (_EXAMPLES / f'{name}.py').read_text().split('"""')[1]
  return textwrap.dedent(docstring.split('prints\n\n')[1])


def test_accounting_needs_no_tensorflow():
  # In a process of its own, which has not imported TensorFlow.
  done = subprocess.run(
    [sys.executable, str(_EXAMPLES / 'account.py')],
    capture_output=True,
    text=True,
    timeout=300,
  )
  assert done.returncode == 0, done.stderr
  assert done.stdout == _promised('account')


def _without_tff(folder):
  """Runs the program for NumPy where TFF cannot be imported."""
  for name in list(sys.modules):
    package = name.partition('.')[0]
    if package == 'tensorflow_federated':
      sys.modules[name] = None
    elif package in ('simulations', 'tff_bandmf'):
      # Imported anew, without it.
      del sys.modules[name]
  sys.argv = ['without_tff', str(folder / 'run')]
  processes.to_files(folder)
  runpy.run_path(str(_EXAMPLES / 'without_tff.py'), run_name='__main__')


def test_killed_run_without_tff_goes_on(tmp_path):
  out = tmp_path / 'out'
  with _started(tmp_path, target=_without_tff) as killed:
    while not out.exists() or out.read_text().count('\n') < 2:
      assert killed.is_alive(), (tmp_path / 'err').read_text()
      time.sleep(0.001)
  lines = out.read_text().splitlines(keepends=True)
  out.unlink()
  with _started(tmp_path, target=_without_tff) as process:
    process.join(_PATIENCE)
    assert process.exitcode == 0, (tmp_path / 'err').read_text()
  # Each round is done once; the program may have gone on before it was killed.
  *promised, slope, report = _promised('without_tff').splitlines(keepends=True)
  *rounds, found, claimed = out.read_text().splitlines(keepends=True)
  assert lines[:2] == promised[:2] and rounds == promised[-len(rounds) :]
  assert len(rounds) <= 2 and (found, claimed) == (slope, report)


def _main(name, folder, *arguments):
  """Runs a program in a folder, where what it prints goes too."""
  from tff_bandmf.tff import runtime

  os.chdir(folder)
  sys.argv = [name, *arguments]
  processes.to_files(folder)
  # TFF's default context was made before the fork.
  with runtime.local_runtime(concurrency=2):
    try:
      runpy.run_path(str(_EXAMPLES / f'{name}.py'), run_name='__main__')
      status = 0
    except BaseException:
      traceback.print_exc()
      status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    # A context of TFF waits for its worker, which may be deaf to SIGINT.
    for worker in psutil.Process().children(recursive=True):
      worker.kill()
    os._exit(status)


def _waits(name, folder, *arguments):
  """Runs a program that waits after five rounds, so that it can be killed."""
  finish = rounds.Round.finish

  def wait(self, *args, **kwargs):
    state = finish(self, *args, **kwargs)
    if self.index == 4:
      time.sleep(_PATIENCE)
    return state

  rounds.Round.finish = wait
  _main(name, folder, *arguments)


@pytest.mark.parametrize(
  'name', ['own_loop', *(f'{name}_before' for name in _PORTS)]
)
def test_example_prints_what_it_says(name, tmp_path):
  with _started(name, tmp_path) as process:
    process.join(_PATIENCE)
    assert process.exitcode == 0, (tmp_path / 'err').read_text()
  assert (tmp_path / 'out').read_text() == _promised(name)


def _finished(folder):
  """Returns the rounds of a run that are over."""
  path = folder / 'run' / 'metrics.csv'
  if not path.exists():
    return 0
  with open(path, newline='') as rows:
    return sum(1 for _ in csv.DictReader(rows))


@contextlib.contextmanager
def _started(*arguments, target=_main):
  """Gives a process of the target, which is killed at the end."""
  process = processes.start(target, *arguments)
  try:
    yield process
  finally:
    process.kill()
    process.join()


def _report_of_killed(name, folder, *arguments):
  """Returns what a program prints and reports that was killed on the way."""
  with _started(name, folder, *arguments, target=_waits) as killed:
    deadline = time.monotonic() + _PATIENCE
    while _finished(folder) < 3 and killed.is_alive():
      assert time.monotonic() < deadline, (folder / 'err').read_text()
      time.sleep(0.01)
  at_kill = _finished(folder)
  assert killed.exitcode == -signal.SIGKILL
  with _started(name, folder, *arguments) as process:
    process.join(_PATIENCE)
    assert process.exitcode == 0, (folder / 'err').read_text()
  report = json.loads((folder / 'run' / 'report.json').read_text())
  assert 3 <= at_kill < report['rounds'] == report['observed']['rounds']
  printed = (folder / 'out').read_text()
  assert printed.endswith(f'{report["formal_statement"]}\n')
  return printed, report


def _make_plan(name):
  """Runs the command for the plan that a program's docstring has."""
  text = (_EXAMPLES / f'{name}.py').read_text()
  command = text.partition('  bandmf ')[2].partition('"""')[0]
  assert main.main(command.split()) == 0


@pytest.mark.parametrize('name', _PORTS)
def test_port_is_killed_goes_on_and_reports(name, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  _make_plan(f'{name}_after')
  printed, report = _report_of_killed(f'{name}_after', tmp_path)
  assert report['observed']['rounds_finished'] == report['rounds']
  assert printed.startswith(_promised(f'{name}_before'))


def test_arrivals_of_a_killed_round_are_burnt(tmp_path, postgresql):
  url = databases.schema(postgresql, tmp_path)['url']
  printed, report = _report_of_killed('arrivals', tmp_path, url)
  assert ' went home' in printed and not report['violated']
  observed = report['observed']
  burnt = observed['rounds_burnt']
  assert burnt <= 1
  # A kill before the checkpoint burns a round that the ledger says is over.
  finished = observed['rounds_finished']
  assert report['rounds'] - burnt <= finished <= report['rounds']
  assert not (tmp_path / 'run' / 'ledger.sqlite').exists()


def _code(name):
  """Returns the lines of a program after its docstring that are not blank."""
  text = (_EXAMPLES / f'{name}.py').read_text().split('"""', 2)[2]
  return [line for line in text.splitlines() if line.strip()]


@pytest.mark.parametrize('name', _PORTS)
def test_port_adds_few_lines(name):
  changed = difflib.ndiff(_code(f'{name}_before'), _code(f'{name}_after'))
  added = [line for line in changed if line.startswith('+ ')]
  assert len(added) == _LINES[name], '\n'.join(added)
  # A line is counted as a formatter leaves it.
  assert 'fmt: skip' not in ''.join(added)


def test_pages_say_how_many_lines_a_port_takes():
  """README and port.md said two and fourteen."""
  root = _EXAMPLES.parent
  for page, name in (
    ('README.md', 'images'),
    ('docs/tutorials/port.md', 'images'),
    ('docs/tutorials/port.md', 'fed_avg'),
  ):
    lines = rf'command and\s+\[?{_LINES[name]}\s+lines'
    assert re.search(lines, (root / page).read_text())
  assert (
    f'at most {max(_LINES.values())} lines'
    in (root / 'docs' / 'tutorials' / 'examples.md').read_text()
  )
