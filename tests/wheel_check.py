"""Checks of an installed wheel; `requirements/test_wheel.sh` runs them."""

import pathlib
import re
import subprocess
import sys

import pytest

import tff_bandmf

_README = pathlib.Path(__file__).resolve().parent.parent / 'README.md'


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


def test_command_works():
  result = subprocess.run(
    [
      'bandmf',
      'optimize',
      '--family',
      'dp-cgd',
      '--rounds',
      '9',
      '--min-sep',
      '3',
      '--json',
    ],
    capture_output=True,
    text=True,
  )
  assert result.returncode == 0, result.stderr
  assert '"family": "dp-cgd"' in result.stdout


@pytest.mark.parametrize('module', ['aggregator', 'tff.runtime'])
def test_one_line_says_how_to_get_tensorflow_federated(module):
  result = subprocess.run(
    [sys.executable, '-c', f'import tff_bandmf.{module}'],
    capture_output=True,
    text=True,
  )
  assert result.returncode == 1
  assert 'make env' in result.stderr.splitlines()[-1]


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
