"""The tree is clean by what `make lint` runs."""

import pathlib
import subprocess
import sys

import pytest

_ROOT = pathlib.Path(__file__).resolve().parent.parent


@pytest.mark.parametrize(
  'command',
  [
    ('ruff', 'format', '--check', '.'),
    ('ruff', 'check', '.'),
    pytest.param(('mypy',), marks=pytest.mark.slow),
  ],
  ids=' '.join,
)
def test_tree_is_clean(command):
  result = subprocess.run(
    [sys.executable, '-m', *command],
    cwd=_ROOT,
    capture_output=True,
    text=True,
    timeout=900,
  )
  assert result.returncode == 0, result.stdout + result.stderr
