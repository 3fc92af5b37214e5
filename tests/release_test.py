"""What a release holds: the wheel, the source archive, their descriptions."""

import ast
import email
import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile

import pytest

pytestmark = pytest.mark.slow
_ROOT = pathlib.Path(__file__).resolve().parent.parent
_FOLDERS = (
  'benchmarks',
  'configs',
  'docs',
  'examples',
  'requirements',
  'simulations',
  'tests',
  'tff_bandmf',
)
# What extras bring, and the driver of a database that is the user's choice.
_OPTIONAL = {
  'flwr',
  'jax',
  'matplotlib',
  'psycopg2',
  'pyarrow',
  'tensorboard',
  'tensorflow',
  'tensorflow_privacy',
}
# Those that are not called as they are imported.
_DISTRIBUTIONS = {'tree': 'dm-tree', 'yaml': 'pyyaml'}
# The tests of the core in `make deep`; `make test-wheel` runs all, and
# `make test` the last of them.
_CORE_TESTS = (
  'accounting/accounting_cohorts_test.py',
  'accounting/guarantee_test.py',
  'cli/cli_observe_test.py',
  'cli/cli_plan_test.py',
  'noise/generator_test.py',
  'participation_test.py',
  'ledger/ledger_test.py',
  'plan',
  'report/report_test.py',
  'sensitivity/sensitivity_test.py',
  'strategies/strategies_test.py',
  'accounting/gaussian_test.py',
  'wheel_check.py',
)
_NO_SOURCE = shutil.ignore_patterns('__pycache__', '_build')


@pytest.fixture(scope='module')
def source(tmp_path_factory):
  """A copy of the tree, as building writes into it."""
  copy = tmp_path_factory.mktemp('source')
  for path in _ROOT.iterdir():
    if path.name in _FOLDERS:
      shutil.copytree(path, copy / path.name, ignore=_NO_SOURCE)
    elif path.is_file() and path.name != '.gitignore':
      shutil.copy(path, copy)
  return copy


@pytest.fixture(scope='module')
def files(source):
  return {
    str(path.relative_to(source))
    for path in source.rglob('*')
    if path.is_file()
  }


@pytest.fixture(scope='module')
def built(source, files, tmp_path_factory):
  """The source archive, and the wheel that is built from it."""
  folder = tmp_path_factory.mktemp('dist')
  subprocess.run(
    [
      sys.executable,
      '-m',
      'build',
      '--no-isolation',
      '--outdir',
      folder,
      source,
    ],
    check=True,
    capture_output=True,
    timeout=900,
  )
  (archive,), (wheel,) = folder.glob('*.tar.gz'), folder.glob('*.whl')
  return archive, wheel


def _metadata(built):
  with zipfile.ZipFile(built[1]) as wheel:
    (name,) = (name for name in wheel.namelist() if name.endswith('/METADATA'))
    return email.message_from_bytes(wheel.read(name))


def _imported_packages(path):
  """Returns the packages of other projects that a file imports."""
  found = set()
  for node in ast.walk(ast.parse(path.read_text())):
    if isinstance(node, ast.Import):
      found |= {alias.name.split('.')[0] for alias in node.names}
    elif isinstance(node, ast.ImportFrom):
      found.add(node.module.split('.')[0])
  specs = {name: importlib.util.find_spec(name) for name in found}
  return {
    name
    for name, spec in specs.items()
    # Flower is not installed beside TensorFlow.
    if spec is None or 'site-packages' in (spec.origin or '')
  }


def _newest_python():
  """Returns the newest Python that is found and has a lock of the core."""
  found = {}
  folders = os.environ['PATH'].split(':') + [
    str(path) for path in pathlib.Path.home().glob('.pyenv/versions/*/bin')
  ]
  for folder in folders:
    for lock in (_ROOT / 'requirements').glob('core*.lock'):
      major, minor = lock.stem[4], lock.stem[5:]
      python = pathlib.Path(folder, f'python{major}.{minor}')
      # A name on PATH may be a broken shim.
      if python.exists() and not subprocess.call(
        [python, '-c', 'import venv'], stderr=subprocess.DEVNULL
      ):
        found[int(major), int(minor)] = str(python)
  return found[max(found)] if found else None


@pytest.mark.parametrize(
  'tests, least',
  [
    pytest.param(_CORE_TESTS[-2:], 50, id='few'),
    pytest.param(_CORE_TESTS, 500, id='core', marks=pytest.mark.deep),
  ],
)
def test_wheel_passes_on_the_newest_python_without_tensorflow(
  built, tests, least
):
  python = _newest_python()
  if python is None:
    pytest.skip('no Python newer than those of TensorFlow Federated is found')
  result = subprocess.run(
    [_ROOT / 'requirements' / 'test_wheel.sh', *tests],
    env={**os.environ, 'PYTHON': python, 'WHEEL': str(built[1])},
    capture_output=True,
    text=True,
    timeout=900,
  )
  assert result.returncode == 0, result.stdout[-5000:] + result.stderr[-5000:]
  (passed,) = re.findall(r'(\d+) passed', result.stdout)
  assert int(passed) >= least, result.stdout[-500:]


def test_source_archive_holds_all_files(built, files):
  with tarfile.open(built[0]) as archive:
    held = {
      member.name.split('/', 1)[1]
      for member in archive.getmembers()
      if member.isfile()
    }
  # The description that setuptools adds.
  added = {name for name in held if name.startswith('tff_bandmf.egg-info/')}
  assert held - added - {'PKG-INFO', 'setup.cfg'} == files


def test_wheel_holds_the_library_alone(built, files):
  with zipfile.ZipFile(built[1]) as wheel:
    held = {name for name in wheel.namelist() if '.dist-info/' not in name}
  assert held == {name for name in files if name.split('/')[0] == 'tff_bandmf'}
  assert {
    'tff_bandmf/py.typed',
    'tff_bandmf/report/report.j2',
    'tff_bandmf/reproduction/published.json',
  } <= held


def test_wheel_requires_what_its_modules_import(built):
  imported = set()
  for path in (_ROOT / 'tff_bandmf').rglob('*.py'):
    found = _imported_packages(path)
    # With TFF comes what these modules need.
    if not re.search(
      r'import tensorflow_federated|tff import names', path.read_text()
    ):
      imported |= found
  required = {
    re.match('[a-z0-9-]+', line).group()
    for line in _metadata(built).get_all('Requires-Dist')
    if 'extra ==' not in line
  }
  assert required == {
    _DISTRIBUTIONS.get(name, name.replace('_', '-'))
    for name in imported - _OPTIONAL
  }


def test_descriptions_render(built):
  result = subprocess.run(
    [sys.executable, '-m', 'twine', 'check', '--strict', *built],
    capture_output=True,
    text=True,
    timeout=600,
  )
  assert result.returncode == 0, result.stdout
  assert result.stdout.count('PASSED') == 2


def test_version_is_the_same_everywhere(built):
  version = _metadata(built)['Version']
  citation = (_ROOT / 'CITATION.cff').read_text()
  assert re.search(r'^version: (\S+)$', citation, re.MULTILINE)[1] == version
  # A release has its own section; what comes next is above it.
  sections = re.findall(
    r'^## (\S+)', (_ROOT / 'CHANGELOG.md').read_text(), re.MULTILINE
  )
  assert sections[0] == 'Unreleased'
  assert sections[1:2] in ([], [version])
