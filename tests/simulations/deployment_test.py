"""Tests of the simulated deployment."""

import json
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from simulations import deployment

pytestmark = pytest.mark.slow

_ROOT = pathlib.Path(__file__).resolve().parents[2]


def _run(*options):
  return subprocess.run(
    [sys.executable, '-m', 'simulations.deployment', *options],
    cwd=_ROOT,
    capture_output=True,
    text=True,
    check=False,
  )


def test_small_deployment_agrees_with_its_raw_log(tmp_path):
  done = _run(
    '--rounds=200',
    '--clients=5000',
    '--cohort-size=60',
    '--min-sep=20',
    f'--out={tmp_path}',
  )
  assert done.returncode == 0, done.stderr
  result = json.loads(done.stdout)
  assert result['rounds'] == 200
  assert result['planned'] == {'min_sep': 20, 'max_participations': 10}
  assert result['observed'] == result['counted']
  assert result['counted']['min_sep'] == 20
  assert result['dropped_share'] == pytest.approx(0.2, abs=0.02)
  # Once more by hand, from the log.
  numbers = np.fromfile(tmp_path / 'raw.log', np.int64).reshape(200, 62)
  assert numbers[:, 0].tolist() == list(range(200))
  times = np.bincount(numbers[:, 2:].ravel())
  assert times.max() == result['counted']['max_participations']
  assert np.count_nonzero(times) == result['counted']['clients']
  assert not deployment.agrees(
    {**result, 'planned': {'min_sep': 21, 'max_participations': 10}}
  )
  assert not deployment.agrees(
    {**result, 'planned': {'min_sep': 20, 'max_participations': 1}}
  )


def test_deployment_without_enough_devices_is_told_in_one_line():
  done = _run('--rounds=9', '--clients=100', '--cohort-size=60', '--min-sep=3')
  assert done.returncode == 2
  assert done.stdout == ''
  assert 'cannot be filled from 100 clients' in done.stderr
  assert done.stderr.count('\n') == 1
  assert done.stderr.count('\n') == 1
