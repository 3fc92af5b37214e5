"""Nothing edited passes: every field of every file of a run, one at a time.

Each leaf becomes its neighbour, nothing, and another value of its kind. Whoever
reads such a file, the report or the verifier, refuses the run.
"""

import collections
import contextlib
import csv
import functools
import io
import json
import math
import os
import pathlib
import re
import shutil
import sqlite3
import subprocess
import sys

import numpy as np
import pytest

import tff_bandmf
from tff_bandmf import report, verify
from tff_bandmf.accounting.kinds import poisson
from tff_bandmf.run_files import run_ledger

pytestmark = pytest.mark.slow

# A database refuses such a value by itself.
_NOT_SQL = sqlite3.IntegrityError, OverflowError
_FILES = ('run.json', 'plan.json', 'strategy.json', 'result.json')
_LEDGER = 'ledger.sqlite'
_KINDS = {
  'min-sep': (tff_bandmf.MinSep(4), 8.0),
  'cyclic-poisson': (tff_bandmf.CyclicPoisson(population=120), 4.0),
}


@pytest.fixture(scope='module')
def counts():
  """Gives how many forgeries each test has tried."""
  return {}


@pytest.fixture(scope='module', autouse=True)
def one_accountant():
  """Keeps epsilons: most forgeries ask for that of the same numbers again."""
  with pytest.MonkeyPatch.context() as patch:
    cached = functools.lru_cache(maxsize=None)(poisson.composed_epsilon)
    patch.setattr(poisson, 'composed_epsilon', cached)
    yield


@pytest.fixture(scope='module', params=['min-sep', 'cyclic-poisson'])
def folder(request, tmp_path_factory):
  """Gives a run that ended, with its report and its public report."""
  cohorts, epsilon = _KINDS[request.param]
  plan = tff_bandmf.Plan(
    rounds=6,
    clients_per_round=6,
    cohorts=cohorts,
    epsilon=epsilon,
    delta=1e-3,
    l2_norm_clip=1.0,
    mechanism='banded-sqrt',
  )
  folder = tmp_path_factory.mktemp('run')
  with tff_bandmf.Run(folder, plan) as run:
    weights = np.zeros(3)
    clients = 80 if plan.sampled is None else plan.sampled.population
    for opened in run.rounds(clients=clients):
      updates = [np.full(3, 0.1) for _ in opened.cohort]
      weights = opened.finish(weights + opened.release(updates, weights))
    run.note(title='A model', not_covered=['nothing'])
    run.record(test_accuracy=0.24, test_loss=3.5)
    run.report()
  report.publish([report.of_run(folder)]).write(folder)
  report.of_run(folder)
  verify.verify(folder)
  return folder


def _values(value):
  """Yields other values of a leaf: a small step, nothing, another valid one."""
  if isinstance(value, bool):
    others = [not value, 0, None]
  elif isinstance(value, int):
    others = [value + 1, 0, 2 * value, None]
  elif isinstance(value, float):
    others = [math.nextafter(value, 0), 0.0, 2 * value, None]
  elif isinstance(value, str):
    others = [_stepped(value), '', 'another', None]
  elif value is None:
    others = [0, '', 'another']
  else:
    others = [[0], {'another': 0}]
  for other in others:
    if (type(other), other) != (type(value), value):
      yield other


def _stepped(text):
  """Returns a text that differs in its last character, where it has one."""
  return text[:-1] + ('1' if text[-1:] == '0' else '0')


def _edits(content, place=()):
  """Yields (place, other value) for every leaf of a JSON value."""
  if isinstance(content, (dict, list)) and content:
    parts = content.items() if isinstance(content, dict) else enumerate(content)
    for name, part in parts:
      yield from _edits(part, (*place, name))
  else:
    for other in _values(content):
      yield place, other


def _edited(content, place, other):
  """Returns the JSON value with another leaf."""
  if not place:
    return other
  changed = content.copy()
  changed[place[0]] = _edited(content[place[0]], place[1:], other)
  return changed


def _forged_json(path):
  """Yields (what was forged, bytes) of a JSON file."""
  content = json.loads(path.read_bytes())
  for place, other in _edits(content):
    text = json.dumps(_edited(content, place, other))
    yield (path.name, *place, other), text.encode()
  for name in content:
    rest = {key: value for key, value in content.items() if key != name}
    yield (path.name, name, 'removed'), json.dumps(rest).encode()
  added = {**content, 'another': 0}
  yield (path.name, 'another', 'added'), json.dumps(added).encode()


def _forged_metrics(path):
  """Yields (what was forged, bytes) of every cell of metrics.csv."""
  rows = list(csv.reader(io.StringIO(path.read_text())))
  for i, row in enumerate(rows):
    for j, cell in enumerate(row):
      for other in (_stepped(cell), '', str(len(rows) + 7)):
        stream = io.StringIO()
        csv.writer(stream, lineterminator='\n').writerows(
          [*rows[:i], [*row[:j], other, *row[j + 1 :]], *rows[i + 1 :]]
        )
        if other != cell:
          yield (path.name, i, j, other), stream.getvalue().encode()
  lines = path.read_bytes().splitlines(keepends=True)
  yield (path.name, 'cut'), b''.join(lines[:-1])


def _forged_ledger(path, scratch):
  """Yields (what was forged, bytes) of every column of every table."""
  with contextlib.closing(sqlite3.connect(path)) as database:
    tables = [
      (table, [column[1] for column in database.execute(f'PRAGMA {info}')])
      for table in ('ledger', 'rounds', 'events')
      for info in [f'table_info(bandmf_{table})']
    ]
    rows = {
      table: database.execute(f'SELECT * FROM bandmf_{table}').fetchall()
      for table, _ in tables
    }
  for table, columns in tables:
    # One row of each kind of event, else the first and the last one.
    chosen = {row[2]: row for row in rows[table]}.values()
    if table != 'events':
      chosen = {rows[table][0], rows[table][-1]}
    for row in chosen:
      for name, value in zip(columns, row):
        others = list(_values(value)) if not isinstance(value, bytes) else []
        if isinstance(value, bytes):
          # An empty value becomes one byte.
          stepped = bytes([*value[:-1], (value or b'\0')[-1] ^ 1])
          others = [stepped, b'', bytes(32), value[8:], None]
        for other in others:
          if _same_in_sql(value, other):
            continue
          shutil.copy(path, scratch)
          with contextlib.closing(sqlite3.connect(scratch)) as database:
            with contextlib.suppress(*_NOT_SQL), database:
              database.execute(
                f'UPDATE bandmf_{table} SET {name} = ? WHERE {columns[0]} = ?',
                [other, row[0]],
              )
          if scratch.read_bytes() != path.read_bytes():
            yield (path.name, table, row[0], name, other), scratch.read_bytes()


def _same_in_sql(value, other):
  return value == other and None not in (value, other)


def _passes(check, *arguments):
  """Returns whether a check of a run lets it pass; else it says one line."""
  try:
    check(*arguments)
  except (AssertionError, TypeError, ValueError) as error:
    assert str(error) and '\n' not in str(error)
    return False
  return True


@pytest.fixture
def forged(folder, tmp_path, monkeypatch):
  """Gives a function of (file, content) that forges a file of a copied run.

  While another file is forged, the ledger is opened and its chain read once.
  """
  copy = tmp_path / 'run'
  shutil.copytree(folder, copy)
  for name in ('ledger.sqlite-wal', 'ledger.sqlite-shm'):
    (copy / name).unlink(missing_ok=True)

  @contextlib.contextmanager
  def forge(name, content):
    before = (copy / name).read_bytes()
    (copy / name).write_bytes(content)
    yield copy
    (copy / name).write_bytes(before)
    for end in ('-wal', '-shm'):
      (copy / (name + end)).unlink(missing_ok=True)

  opened, whole = run_ledger.open_ledger, (folder / _LEDGER).read_bytes()
  with opened(folder) as ledger:
    observed, kept = ledger.observed, {}

    def observed_once(strategy, costs):
      # No kind of cohorts here has costs.
      assert costs is None
      key = strategy.digest()
      if key not in kept:
        kept[key] = observed(strategy)
      return kept[key]

    monkeypatch.setattr(ledger, 'observed', observed_once)
    for name in ('bound', 'last_round'):
      once = functools.lru_cache(maxsize=None)(getattr(ledger, name))
      monkeypatch.setattr(ledger, name, once)
    monkeypatch.setattr(
      run_ledger,
      'open_ledger',
      lambda directory: (
        contextlib.nullcontext(ledger)
        if (directory / _LEDGER).read_bytes() == whole
        else opened(directory)
      ),
    )
    yield forge


def _forgeries(folder, scratch):
  for name in _FILES:
    yield from _forged_json(folder / name)
  yield from _forged_metrics(folder / 'metrics.csv')
  yield from _forged_ledger(folder / _LEDGER, scratch)


@pytest.mark.deep(but=('min-sep',))
def test_forged_run_is_refused_by_report_and_verifier(
  folder, forged, tmp_path, counts
):
  """One number in run.json once made 'epsilon 0.06' of epsilon 4."""
  passed, count = collections.defaultdict(list), collections.Counter()
  for what, content in _forgeries(folder, tmp_path / 'scratch'):
    count[what[0]] += 1
    with forged(what[0], content) as copy:
      if _passes(report.of_run, copy):
        passed['report'].append(what)
      if _passes(verify.verify, copy):
        passed['verifier'].append(what)
  counts[folder] = sum(count.values())
  assert min(count[name] for name in (*_FILES, _LEDGER)) > 5
  assert not passed


@pytest.mark.parametrize('name', ['report.json', 'public.json'])
def test_forged_report_is_refused(name, folder, tmp_path, counts):
  path, count = tmp_path / name, 0
  for what, content in _forged_json(folder / name):
    path.write_bytes(content)
    assert not _passes(verify.verify, path), what
    count += 1
  counts[folder, name] = count
  assert count > 100


@pytest.mark.parametrize('name', ['run.json', 'report.json'])
def test_command_refuses_a_forged_file(name, folder, forged):
  """The exit status is all that a script sees."""
  (_, content), *_ = _forged_json(folder / name)
  with forged(name, content) as copy:
    result = subprocess.run(
      [sys.executable, verify.__file__, str(copy)],
      capture_output=True,
      text=True,
      env={**os.environ, 'PYTHONPATH': ''},
    )
  assert result.returncode in (1, 2)
  assert 'VERIFIED' not in result.stdout


def test_page_states_how_many_forgeries_were_refused(counts):
  if len(counts) < 3 * len(_KINDS):
    pytest.skip('not all of them were tried')
  root = pathlib.Path(__file__).resolve().parent.parent
  page = (root / 'docs' / 'reference' / 'threat_model.md').read_text()
  (stated,) = re.findall(r'more than ([\d,]+) forgeries of two runs', page)
  least = int(stated.replace(',', ''))
  assert least <= sum(counts.values()) < least + 100
