"""Checks of an installed wheel; `requirements/test_wheel.sh` runs them."""

import subprocess
import sys

import pytest

import tff_bandmf


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


@pytest.mark.parametrize(
  'module', ['aggregator', 'program.runtime', 'program.data_source']
)
def test_one_line_says_how_to_get_tensorflow_federated(module):
  result = subprocess.run(
    [sys.executable, '-c', f'import tff_bandmf.{module}'],
    capture_output=True,
    text=True,
  )
  assert result.returncode == 1
  assert 'make env' in result.stderr.splitlines()[-1]
