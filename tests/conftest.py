"""Fixtures of all tests: a quiet TensorFlow, one TFF runtime, `bandmf`.

`--quick` leaves out files and tests that import TensorFlow Federated or are
marked slow. Tests and cases that are marked deep repeat others: `--deep` alone
runs them. `deep(but=('dense', 'blt'))` leaves cases whose name has one of these
words to every run.
"""

import collections
import gc
import importlib.abc
import json
import os
import sys
import threading
from unittest import mock

# Before anything imports NumPy or TensorFlow. Tests run side by side, and
# matrices are small: threads that wait for one another cost more than they win.
os.environ.setdefault('OPENBLAS_NUM_THREADS', '1')
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
# Searches are tested, and not what others found.
os.environ['BANDMF_CACHE'] = ''

import databases
import hypothesis
import pytest

# TensorFlow and TFF make a million objects that stay: to look through them for
# garbage takes as long as the rest of collecting the tests.
gc.disable()

# The same cases every time: what fails here failed where it was changed.
# BANDMF_FRESH_CASES=1 draws others.
hypothesis.settings.register_profile(
  'same', derandomize='BANDMF_FRESH_CASES' not in os.environ, deadline=None
)
hypothesis.settings.load_profile('same')

_NOT_QUICK = (
  '\npytestmark = pytest.mark.slow\n',
  '\nimport tensorflow_federated as tff\n',
)


class _Without(importlib.abc.MetaPathFinder):
  """Skips whatever imports a package or a module."""

  def __init__(self, name, reason):
    self._name = name
    self._reason = reason

  def find_spec(self, name, path, target=None):
    if name == self._name:
      pytest.skip(self._reason, allow_module_level=True)
    return None


def pytest_addoption(parser):
  parser.addoption(
    '--quick', action='store_true', help='leaves out TFF and what is slow'
  )
  parser.addoption(
    '--deep', action='store_true', help='runs tests that repeat others, too'
  )
  parser.addoption(
    '--every-write', action='store_true', help='kills runs at each write'
  )


def pytest_configure(config):
  config.addinivalue_line('markers', 'slow: takes seconds; not for --quick')
  config.addinivalue_line('markers', 'deep(but): repeats others; for --deep')
  if config.getoption('--quick'):
    # It takes 10 s to import.
    sys.meta_path.insert(
      0, _Without('tensorflow_federated', '--quick leaves out what imports TFF')
    )
  # The last finder is asked for what no other one has found.
  # Beside a wheel, the folder of its tests is a namespace `simulations`.
  for name in (
    'tensorflow',
    'tensorflow_federated',
    'tensorflow_privacy',
    'simulations.config',
  ):
    sys.meta_path.append(_Without(name, f'{name} is not installed'))


def pytest_ignore_collect(collection_path, config):
  """Leaves files out that need not be imported to know it."""
  if not config.getoption('--quick') or collection_path.suffix != '.py':
    return None
  text = collection_path.read_text()
  return any(line in text for line in _NOT_QUICK) or None


def _is_deep(item):
  words = [mark.kwargs.get('but', ()) for mark in item.iter_markers('deep')]
  return any(not any(word in item.name for word in each) for each in words)


def _words_without_cases(items):
  """Returns the words of `but` that are in the name of no case."""
  names, words = collections.defaultdict(list), {}
  for item in items:
    key = item.nodeid.split('[')[0]
    names[key].append(item.name)
    words[key] = [
      word
      for mark in item.iter_markers('deep')
      for word in mark.kwargs.get('but', ())
    ]
  return [
    f'{key}: {word}'
    for key, each in words.items()
    for word in each
    if not any(word in name for name in names[key])
  ]


def pytest_collection_modifyitems(config, items):
  if not any('::' in argument for argument in config.args):
    assert not _words_without_cases(items)
  parts = {True: [], False: []}
  for item in items:
    left = not config.getoption('--deep') and _is_deep(item)
    if config.getoption('--quick'):
      left = left or item.get_closest_marker('slow') is not None
    parts[left].append(item)
  items[:] = parts[False]
  config.hook.pytest_deselected(items=parts[True])
  if not config.getoption('--quick'):
    # Files that are slow as a whole begin first: none is left alone at the end.
    items.sort(key=lambda item: not hasattr(item.module, 'pytestmark'))


def pytest_collection_finish():
  gc.freeze()
  # By default every 700 new objects are looked through.
  gc.set_threshold(50_000, 20, 20)
  gc.enable()


@pytest.fixture(scope='session')
def runtime():
  """TFF's execution context with a worker that ends with the session."""
  from tff_bandmf.tff import runtime as runtime_lib

  with runtime_lib.local_runtime(concurrency=2):
    yield


@pytest.fixture(scope='session', autouse=True)
def _bare_plots():
  """Hides the axes of plots, which take nine tenths of a report's time."""
  from tff_bandmf.report import pages

  images = pages.Pages._images

  def bare(self, form):
    for figure in self.figures.values():
      for axes in figure.axes:
        axes.set_visible(False)
    return images(self, form)

  with mock.patch.object(pages.Pages, '_images', bare):
    yield images


@pytest.fixture
def drawn(_bare_plots, monkeypatch):
  """Draws the plots of reports, for tests that look at them."""
  from tff_bandmf.report import pages

  monkeypatch.setattr(pages.Pages, '_images', _bare_plots)


@pytest.fixture
def every_write(request):
  """Whether runs are killed at each of their durable writes."""
  return request.config.getoption('--every-write')


@pytest.fixture
def run(capsys, monkeypatch):
  """Runs `bandmf`; returns (exit status, standard output, standard error).

  Standard error is without the lines of progress, which depend on the machine.
  """
  from tff_bandmf.cli import main as main_lib
  from tff_bandmf.cli import output

  monkeypatch.setattr(output, 'FIRST_LINE', threading.TIMEOUT_MAX)

  def call(*arguments):
    status = main_lib.main([str(each) for each in arguments])
    captured = capsys.readouterr()
    return status, captured.out, captured.err

  return call


@pytest.fixture
def run_json(run):
  """Runs `bandmf --json`; returns the object, and checks that it is one."""

  def refuse(constant):
    raise AssertionError(f'{constant} is no JSON')

  def call(*arguments):
    status, out, error = run(*arguments, '--json')
    assert (status, error) == (0, '')
    return json.loads(out, parse_constant=refuse)

  return call


@pytest.fixture(scope='session')
def postgresql():
  """Gives the URL of a PostgreSQL server."""
  programs = databases.binaries()
  if programs is None:
    pytest.skip('PostgreSQL is not installed (Debian: postgresql)')
  with databases.server(programs) as (url, _):
    yield url


@pytest.fixture(params=['sqlite', 'postgresql'])
def place(request, tmp_path):
  """Gives the arguments of an empty ledger."""
  if request.param == 'sqlite':
    return dict(url=str(tmp_path / 'ledger.sqlite'))
  return databases.schema(request.getfixturevalue('postgresql'), tmp_path)
