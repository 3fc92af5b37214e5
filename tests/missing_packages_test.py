"""A package that is missing is said in one line, with the README's words."""

import os
import pathlib
import re
import subprocess
import sys

import processes
import pytest

pytestmark = pytest.mark.slow

_ROOT = pathlib.Path(__file__).resolve().parent.parent
_PLAN = """
import tff_bandmf
plan = tff_bandmf.Plan(
  rounds=9, clients_per_round=3, cohorts=tff_bandmf.MinSep(3), epsilon=4.0,
  delta=1e-6, l2_norm_clip=1.0, mechanism='identity')
"""
_COMMAND = """
from tff_bandmf.cli import main
import sys
status = main.main({!r}.split())
sys.exit(status)
"""
_CHOOSE = (
  'choose --rounds 9 --min-sep 3 --epsilon 4 --delta 1e-6 --families identity '
  '--plot errors.png'
)
_DRIVER = f"""
from simulations import run_stackoverflow
sys.argv[1:] = ['--config={_ROOT}/configs/demo.toml', '--output_dir=run']
sys.exit(run_stackoverflow.main())
"""
_URL = 'postgresql+psycopg2://localhost/none'


def _run_without(package, program, folder):
  """Runs a program that imports the library anew, without a package."""
  processes.to_files(folder)
  os.chdir(folder)
  for name in [*sys.modules]:
    if name.split('.')[0] in ('simulations', 'tff_bandmf'):
      del sys.modules[name]
  sys.modules[package] = None
  exec(program, {'sys': sys})


@pytest.mark.parametrize(
  'package, extra, program',
  [
    ('tensorflow_federated', 'tff', 'import tff_bandmf.aggregator'),
    ('tensorflow_federated', 'tff', 'import tff_bandmf.tff.runtime'),
    ('tensorflow', 'tff', 'from tff_bandmf.query import GraphClipping'),
    (
      'tensorflow',
      'optimizer',
      'from tff_bandmf import optimize; optimize.minimize',
    ),
    (
      'tensorflow',
      'optimizer',
      'from tff_bandmf import optimize, participation, workloads\n'
      'optimize.optimize("banded", 2, participation.Single(), '
      'workloads.Workload(matrix=[[1, 0], [1, 1]]), bands=1)',
    ),
    (
      'tensorflow',
      'optimizer',
      'from tff_bandmf import optimize, participation\n'
      'optimize.optimize("dense", 3, participation.Single())',
    ),
    (
      'tensorflow',
      'optimizer',
      'from tff_bandmf import optimize, participation\n'
      'optimize.optimize("stamped", 4, participation.MinSep(2), '
      'block_family="dense")',
    ),
    ('tensorflow_privacy', 'tff', 'from tff_bandmf.query import GraphClipping'),
    ('matplotlib', 'plots', _PLAN + 'plan.sweep().plot()'),
    ('matplotlib', 'plots', _COMMAND.format(_CHOOSE)),
    ('psycopg2', 'postgresql', f'{_PLAN}tff_bandmf.Run("r", plan, ledger="X")'),
    ('flwr', 'flower', 'import tff_bandmf.flower'),
    ('pyarrow', 'logs', _COMMAND.format('observe log.csv c.json')),
    (
      'jax',
      'jax',
      'from tff_bandmf.noise.producer import stream; stream._module("jax")',
    ),
    ('tensorflow', 'tff', _DRIVER),
    ('tensorflow_federated', 'tff', _DRIVER),
    ('dacite', 'tff,simulations', 'import simulations.run_stackoverflow'),
    ('dacite', 'tff,simulations', 'import simulations.sweep'),
    ('matplotlib', 'plots', 'import simulations.sweep'),
    ('matplotlib', 'plots', 'import simulations.clip_paths'),
    ('tensorflow', 'tff', 'import simulations.import_data'),
  ],
)
def test_missing_package_is_said_with_the_words_of_the_readme(
  tmp_path, package, extra, program
):
  (tmp_path / 'log.csv').write_text('round,client\n0,1\n')
  make = 'bandmf optimize --family identity --rounds 9 --min-sep 3 --out c.json'
  program = program.replace('"X"', repr(_URL))
  code = f'{_COMMAND.format(make[7:]).replace("sys.exit(status)", "")}'
  if 'c.json' in program:
    program = code + program
  process = processes.start(_run_without, package, program, tmp_path)
  process.join(300)
  assert process.exitcode in (1, 2), (tmp_path / 'out').read_text()
  line = (tmp_path / 'err').read_text().splitlines()[-1]
  assert f'{package}=not installed: ' in line
  assert f"pip install '.[{extra}]'" in line
  readme = (_ROOT / 'README.md').read_text()
  for part in extra.split(','):
    assert re.search(rf'\b{part}\b', readme)
  for command in re.findall(r'pip install --no-deps [\w.= -]+', line):
    assert command.strip() in readme


def test_without_tensorflow_stamped_has_bands_and_rankings_leave_dense_out():
  program = """
import sys
sys.modules['tensorflow'] = None
from tff_bandmf import choosing, optimize, participation
schema = participation.MinSep(4)
stamped = optimize.optimize('stamped', 12, schema).strategy
print(stamped.block.family, stamped.block.bands, stamped.block.rounds)
ranking = choosing.choose(
  12, schema, choosing.Target(1.0, 1e-6), families=['dense', 'stamped'])
print([each.strategy.family for each in ranking.choices])
print(ranking.left_out['dense'])
"""
  result = subprocess.run(
    [sys.executable, '-c', program],
    cwd=_ROOT,
    env={**os.environ, 'BANDMF_CACHE': ''},
    capture_output=True,
    text=True,
    timeout=300,
  )
  assert not result.returncode, result.stderr
  block, ranked, reason = result.stdout.splitlines()
  assert block == 'banded 4 4'
  assert ranked == "['stamped']"
  assert reason.startswith('tensorflow=not installed: family dense')
  assert "pip install '.[optimizer]'" in reason


def test_extras_are_those_of_setup():
  from tff_bandmf import errors

  text = (_ROOT / 'setup.py').read_text()
  names = {
    each for _, extra in errors.EXTRAS.values() for each in extra.split(',')
  }
  assert all(f"    '{name}': _" in text for name in names)


def test_page_of_experiments_begins_with_their_installation():
  page = (_ROOT / 'docs' / 'guide' / 'experiments.md').read_text()
  first = page.partition('\n## ')[0]
  assert "pip install '.[tff,simulations]'" in first
  readme = (_ROOT / 'README.md').read_text()
  assert "'.[tff,simulations]'" in readme
  line = 'pip install --no-deps tensorflow-federated'
  assert first.count(line) == readme.count(line) == 1
