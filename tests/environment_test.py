"""Tests of the locks, of setup.py and of the script that builds .venv."""

import itertools
import json
import os
import pathlib
import re
import runpy
import shutil
import subprocess
import sys
from unittest import mock

import pytest
import setuptools

_ROOT = pathlib.Path(__file__).resolve().parent.parent
_LOCKS = [
  _ROOT / 'requirements' / f'{name}.lock' for name in ('py39', 'py310', 'py311')
]
_REQUIREMENT = r'([a-z0-9-]+)==(\S+)(?: \\\n    --hash=sha256:[0-9a-f]{64})+\n'


def _versions(lock):
  return dict(re.findall(_REQUIREMENT, lock.read_text()))


def _setup_arguments():
  with mock.patch.object(setuptools, 'setup') as setup:
    runpy.run_path(str(_ROOT / 'setup.py'))
  return setup.call_args.kwargs


@pytest.mark.parametrize('lock', _LOCKS, ids=lambda lock: lock.stem)
def test_lock_holds_only_pins_with_hashes(lock):
  # No room for a URL, an index option or an unhashed pin.
  assert re.fullmatch(f'(?:{_REQUIREMENT})+', lock.read_text())


@pytest.mark.parametrize('lock', _LOCKS, ids=lambda lock: lock.stem)
def test_lock_holds_the_overridden_pins(lock):
  versions = _versions(lock)
  assert versions['tensorflow-federated'] == '0.87.0'
  overrides = (_ROOT / 'requirements' / 'overrides.txt').read_text()
  pins = re.findall(r'^([a-z]+)==(\S+)$', overrides, re.MULTILINE)
  assert {'jax', 'jaxlib'} <= {name for name, _ in pins}
  assert set(pins) <= set(versions.items())


@pytest.mark.parametrize('lock', _LOCKS, ids=lambda lock: lock.stem)
def test_lock_pins_the_packages_of_the_corpus(lock):
  from simulations.corpora import docstrings

  assert set(docstrings.PACKAGES) <= set(_versions(lock).items())


def test_setup_requires_no_tensorflow_federated():
  arguments = _setup_arguments()
  requirements = itertools.chain(
    arguments['install_requires'], *arguments['extras_require'].values()
  )
  names = {re.match('[a-z0-9-]+', each).group() for each in requirements}
  assert 'tensorflow' in names
  assert not {name for name in names if 'federated' in name}


def test_locks_satisfy_setup_extras():
  arguments = _setup_arguments()
  wanted = arguments['install_requires'] + arguments['extras_require']['dev']
  for each in wanted:
    name = re.match('[a-z0-9-]+', each).group()
    locks = _LOCKS[:2] if 'python_version < "3.11"' in each else _LOCKS
    assert all(name in _versions(lock) for lock in locks), name


def test_make_env_refuses_a_python_that_does_not_run(tmp_path):
  shim = tmp_path / 'python3.11'
  shim.write_text('#!/bin/sh\nexit 127\n')
  shim.chmod(0o755)
  result = subprocess.run(
    [_ROOT / 'requirements' / 'make_env.sh'],
    env={**os.environ, 'PYTHON': str(shim)},
    capture_output=True,
    text=True,
  )
  assert result.returncode == 1
  assert f'PYTHON={shim}' in result.stderr
  assert 'Python 3.9, 3.10 or 3.11' in result.stderr


def test_python_of_the_wheels_tests_is_not_that_of_the_environment(tmp_path):
  shutil.copy(_ROOT / 'Makefile', tmp_path)
  log = tmp_path / 'log'
  for name in (
    '.venv/bin/python',
    'requirements/make_env.sh',
    'requirements/test_wheel.sh',
  ):
    tool = tmp_path / name
    tool.parent.mkdir(parents=True, exist_ok=True)
    tool.write_text(f'#!/bin/sh\necho "{tool.name} $PYTHON" >>{log}\n')
    tool.chmod(0o755)
  (tmp_path / 'dist').mkdir()
  subprocess.run(
    ['make', 'test-names', 'PYTHON=python3.13'], cwd=tmp_path, check=True
  )
  assert log.read_text().splitlines() == [
    'make_env.sh ', 'python ', 'python ', 'test_wheel.sh python3.13',
  ]  # fmt: skip


def test_tests_of_the_wheel_import_what_is_beside_it():
  script = (_ROOT / 'requirements' / 'test_wheel.sh').read_text()
  names = re.search(r'set -- (.*?)\nfi', script, re.DOTALL)[1].split()
  roots = [_ROOT / 'tests' / name for name in names if name != '\\']
  paths = [
    path
    for root in roots
    for path in ([root] if root.suffix else sorted(root.rglob('*_test.py')))
  ]
  assert len(paths) > 50
  # conftest leaves out a file that imports simulations.config.
  imports = {
    path.name: re.findall(
      r'^from (?:simulations|benchmarks) import (\w+)', path.read_text(), re.M
    )
    for path in paths
  }
  assert {
    name for name, found in imports.items() if found and 'config' not in found
  } == set()


_RECORD = """
import json, sys
with open({log!r}, 'a') as log:
  log.write(json.dumps([{name!r}, *sys.argv[1:]]) + '\\n')
"""


@pytest.mark.slow
@pytest.mark.parametrize('program', ['uv', 'pip'])
@pytest.mark.deep(but=('[pip]',))
def test_uv_and_pip_install_the_same(tmp_path, program):
  tree, tools = tmp_path / 'tree', tmp_path / 'tools'
  shutil.copytree(_ROOT / 'requirements', tree / 'requirements')
  shutil.copy(_ROOT / 'setup.py', tree)
  tools.mkdir()
  for name in ('bash', 'cat', 'dirname', 'flock', 'rm', 'sha256sum', 'uname'):
    (tools / name).symlink_to(shutil.which(name))
  log = tmp_path / 'log'
  record = _RECORD.format(log=str(log), name=program)
  if program == 'uv':
    (tools / 'uv').write_text(f'#!{sys.executable}\n{record}')
    (tools / 'uv').chmod(0o755)
  else:
    # What `python -m pip` finds first.
    (tmp_path / 'modules').mkdir()
    (tmp_path / 'modules' / 'pip.py').write_text(record)
  for _ in range(2):
    # The second time, there is nothing to do.
    subprocess.run(
      [tree / 'requirements' / 'make_env.sh'],
      env={
        'PATH': str(tools),
        'PYTHON': sys.executable,
        'PYTHONPATH': str(tmp_path / 'modules'),
      },
      check=True,
      capture_output=True,
    )
  version = f'py{sys.version_info[0]}{sys.version_info[1]}'
  calls = [json.loads(line) for line in log.read_text().splitlines()]
  how = {
    'uv': ['uv', 'pip', 'install', '--python', '.venv/bin/python'],
    'pip': ['pip', 'install', '--disable-pip-version-check', '--no-compile'],
  }[program]
  what = [
    f'--no-deps --only-binary :all: --require-hashes -r '
    f'requirements/{version}.lock',
    '--no-deps --no-build-isolation -e .',
  ]
  # No index is named: it is that of whoever runs it.
  assert calls == [[*how, *each.split()] for each in what]
