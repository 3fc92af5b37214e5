"""Checks of an installed wheel; `requirements/test_wheel.sh` runs them."""

import importlib.metadata
import pathlib
import re
import subprocess
import sys

import pytest

import tff_bandmf

_ROOT = pathlib.Path(__file__).resolve().parent.parent
_README = _ROOT / 'README.md'
_INSTALLED = {
  each.metadata['Name'].lower().replace('_', '-')
  for each in importlib.metadata.distributions()
}


def _with(package):
  """Marks a test that needs a package, which an extra installs."""
  return pytest.mark.skipif(
    package not in _INSTALLED, reason=f'without {package}'
  )


def _without(package):
  """Marks a test of an installation without a package."""
  return pytest.mark.skipif(package in _INSTALLED, reason=f'with {package}')


def first_example():
  """Returns the first program of the README, and what it is to print."""
  return re.search(
    r'```python\n(.*?)```\n\nprints\n\n```\n(.*?)```',
    _README.read_text(encoding='utf-8'),
    re.DOTALL,
  ).groups()


def test_first_example_of_the_readme_needs_no_more():
  """It ended in an ImportError after `pip install .`."""
  code, printed = first_example()
  result = subprocess.run(
    [sys.executable, '-c', code], capture_output=True, text=True
  )
  assert (result.stderr, result.stdout) == ('', printed)


def test_package_is_the_installed_one():
  assert 'site-packages' in tff_bandmf.__file__


def _printed(*command, folder=None):
  """Returns what a command prints that ends without an error."""
  result = subprocess.run(command, capture_output=True, text=True, cwd=folder)
  assert result.returncode == 0, result.stderr
  return result.stdout


@pytest.mark.parametrize(
  'family',
  ['dp-cgd', pytest.param('dense', marks=_with('tensorflow'))],
)
def test_command_works(family):
  """The extra `optimizer` has the TensorFlow that `dense` needs."""
  schema = '--rounds', '9', '--min-sep', '3'
  printed = _printed(
    'bandmf', 'optimize', '--family', family, *schema, '--json'
  )
  assert f'"family": "{family}"' in printed


@_with('tensorflow-federated')
def test_aggregation_runs_in_tff():
  printed = _printed(sys.executable, _ROOT / 'examples' / 'own_loop.py')
  assert 'went on with round 3' in printed


@_with('dacite')
@_with('tensorflow-federated')
def test_checkout_has_the_simulations(tmp_path):
  module = '-m', 'simulations.run_stackoverflow', '--config=configs/demo.toml'
  few = {
    'training.rounds': 4,
    'training.clients_per_round': 2,
    'training.server_cooldown_rounds': 0,
    'training.evaluation_sentences': 10,
    'privacy.min_sep': 2,
    'compare': {},
  }
  keys = [f'--set={key}={value}' for key, value in few.items()]
  _printed(
    sys.executable, *module, *keys, f'--output_dir={tmp_path}', folder=_ROOT
  )
  assert (tmp_path / 'report.md').exists()


@_with('flwr')
def test_strategy_for_flower_is_one_of_flowers():
  code = (
    'from flwr.serverapp import strategy; from tff_bandmf import flower; '
    'print(issubclass(flower.CorrelatedNoise, strategy.Strategy))'
  )
  assert _printed(sys.executable, '-c', code) == 'True\n'


@_without('tensorflow-federated')
@pytest.mark.parametrize('module', ['aggregator', 'tff.runtime'])
def test_one_line_says_how_to_get_tensorflow_federated(module):
  result = subprocess.run(
    [sys.executable, '-c', f'import tff_bandmf.{module}'],
    capture_output=True,
    text=True,
  )
  assert result.returncode == 1
  assert 'make env' in result.stderr.splitlines()[-1]


@_without('tensorflow')
def test_one_line_says_what_the_query_of_a_graph_needs():
  result = subprocess.run(
    [sys.executable, '-c', 'from tff_bandmf.query import GraphClipping'],
    capture_output=True,
    text=True,
  )
  assert result.returncode == 1
  line = result.stderr.splitlines()[-1]
  assert 'GraphClipping needs TensorFlow' in line
  assert "pip install '.[tff]'" in line
