"""A run of the core, in the words of its guide, where TensorFlow is not."""

import json
import pathlib
import re
import signal
import subprocess
import sys

import pytest

from tff_bandmf import participation, strategies

pytestmark = pytest.mark.slow

_GUIDE = pathlib.Path(__file__).resolve().parent.parent / 'docs' / 'guide'
# As where nothing but the core is installed.
_WITHOUT = """
import sys
for name in 'tensorflow', 'tensorflow_federated', 'tensorflow_privacy', 'jax':
  sys.modules[name] = None
"""
_COMMAND = """
from tff_bandmf.cli import main
sys.exit(main.main(sys.argv[1:]))
"""
_ROUNDS = 20


def _words():
  """Returns the program of the guide, and the commands after it."""
  text = (_GUIDE / 'elsewhere.md').read_text(encoding='utf-8')
  text = text[text.index('save it as `train.py`') :]
  program = re.search(r'```python\n(.*?)```', text, re.DOTALL)[1]
  commands = re.search(r'```bash\n(.*?)```', text, re.DOTALL)[1]
  return program, [line.split() for line in commands.splitlines()]


def _bandmf(folder, *arguments, before=''):
  return subprocess.run(
    [sys.executable, '-c', _WITHOUT + before + _COMMAND, *map(str, arguments)],
    cwd=folder,
    capture_output=True,
    text=True,
  )


def test_audit_needs_no_tensorflow(tmp_path):
  strategies.save(
    strategies.BandedToeplitz(6, [1.0, 0.5]),
    tmp_path / 'strategy.json',
    participation=participation.MinSep(2),
  )
  # The tail takes a minute of its own.
  said = _bandmf(
    tmp_path,
    *('audit', 'strategy.json', '--noise-multiplier', 1, '--delta', 1e-5),
    *('--canaries', 200, '--confidence', 0.999, '--json'),
    before="""
from tff_bandmf.audit import arithmetic_attacks
arithmetic_attacks.beyond = lambda key, draws, threshold: 15
""",
  )
  assert said.returncode == 0, said.stderr
  record = json.loads(said.stdout)
  assert record['holds'] and record['aggregation'] == 'numpy'
  assert 0 < record['gaussian_bound'] < record['epsilon']
  attacked = {each['name']: each for each in record['arithmetic']}
  assert attacked.keys() == {'summing', 'tail', 'low_bits', 'inverse'}
  assert 0.999 < attacked['summing']['statistic'] <= 1


def _begun(folder):
  return subprocess.Popen(
    [sys.executable, 'train.py'],
    cwd=folder,
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )


def test_run_of_the_guide_is_killed_and_goes_on(tmp_path):
  program, commands = _words()
  train = tmp_path / 'train.py'
  # It waits for the kill, at the latest after 13 rounds.
  waits = 'flush=True)\n    if round.index == 12:\n      time.sleep(600)'
  waiting = program.replace('flush=True)', waits)
  assert waiting != program
  train.write_text(f'import time\n{_WITHOUT}{waiting}')
  killed = _begun(tmp_path)
  done = []
  for line in killed.stdout:
    done.append(line)
    if len(done) == 7:
      killed.send_signal(signal.SIGKILL)
  assert killed.wait() == -signal.SIGKILL
  assert done[0] == 'round 0 is done\n'
  (python, script), *rest = commands
  assert (python, script) == ('python', 'train.py')
  train.write_text(_WITHOUT + program)
  again = _begun(tmp_path)
  out, err = again.communicate()
  assert again.returncode == 0, err
  # The round after the last that was seen may be done, too.
  rounds = [int(line.split()[1]) for line in (*done, *out.splitlines())]
  assert sorted({*rounds, 7}) == list(range(_ROUNDS))
  assert len(rounds) in (_ROUNDS, _ROUNDS - 1)
  for name, *arguments in rest:
    assert name == 'bandmf'
    said = _bandmf(tmp_path, *arguments)
    assert said.returncode == 0, said.stderr
  report = json.loads((tmp_path / 'runs/numpy/report.json').read_text())
  assert report['observed']['rounds_finished'] == _ROUNDS
  assert report['epsilon'] == pytest.approx(8.0, rel=1e-3)
  assert report['epsilon'] <= 8.0
  (row,) = report['runs']
  assert row['results']['slope'] == pytest.approx(3.0, abs=1.0)
