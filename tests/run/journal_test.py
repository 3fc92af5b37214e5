"""Tests of the journal: each fact in one file, few transactions a round."""

import collections
import csv
import functools
import json
import sqlite3

import numpy as np
import sqlalchemy as sa

import tff_bandmf
from tff_bandmf import report, run, strategies
from tff_bandmf.ledger import tables
from tff_bandmf.noise import fingerprint
from tff_bandmf.run import journal
from tff_bandmf.run_files import run_json

_EXPORTS = {
  run_json.STRATEGY_FILE,
  run_json.METRICS_FILE,
  run_json.RESULT_FILE,
}
# Facts that two files have, each with its reason.
_REASONS = {
  'run': 'the ledger and the marks must be those of run.json',
  'noise_key': 'the ledger must be that of the key',
  'clients': 'no sum has more updates; a row shows a ledger that was cut',
  'sum': 'the mark of a release comes before the end in the ledger',
  'released': 'a row of metrics is whole beside its digest',
}
_ROUNDS, _COHORT, _CLIP = 3, 7, 0.3125


def _plan():
  return tff_bandmf.Plan(
    rounds=_ROUNDS,
    clients_per_round=_COHORT,
    cohorts=tff_bandmf.MinSep(2),
    delta=1.25e-5,
    l2_norm_clip=tff_bandmf.AdaptiveClip(_CLIP),
    noise_multiplier=1.0625,
    mechanism=strategies.BandedToeplitz(_ROUNDS, [1.0, 0.4375]),
  )


def _leaves(value, name=''):
  """Yields (name of the key, scalar) of a JSON value."""
  if isinstance(value, dict):
    for key, part in value.items():
      yield from _leaves(part, key)
  elif isinstance(value, list):
    for part in value:
      yield from _leaves(part, name)
  else:
    yield name, value


def _values(name, value):
  """Yields the number or the text that a scalar stands for, in one spelling."""
  if isinstance(value, bytes):
    value = value.decode('ascii', 'replace')
  if name.endswith('_id'):
    yield int(value, 16)
  elif isinstance(value, str):
    yield value
    try:
      yield float(value)
    except ValueError:
      pass
  else:
    yield value


def _stored(directory):
  """Returns {file: {value: names}} of what the files of a run hold."""
  stored = collections.defaultdict(lambda: collections.defaultdict(set))

  def add(file, name, value):
    for each in _values(name, value):
      stored[file][each].add(name)

  for path in directory.rglob('*'):
    name = str(path.relative_to(directory))
    if name in _EXPORTS or not path.is_file():
      continue
    if path.suffix == '.json':
      file = 'rows' if path.parent.name == 'metrics' else name
      for leaf, value in _leaves(json.loads(path.read_text())):
        if leaf not in ('format', 'version'):
          add(file, leaf, value)
    elif path.name == 'position':
      for leaf, value in zip(
        ('run', 'round', 'attempt', 'clients'), (path.read_text().split())
      ):
        add(name, leaf, int(value))
    elif path.parent.name == 'released':
      add('marks', 'sum', path.name.split('-', 2)[2])
      for leaf, value in zip(('updates', 'zero'), path.read_text().split()):
        add('marks', leaf, int(value))
  with sqlite3.connect(directory / run_json.LEDGER_FILE) as database:
    database.row_factory = sqlite3.Row
    for row in database.execute('SELECT * FROM bandmf_ledger'):
      for leaf in 'run', 'noise_key':
        add('ledger', leaf, row[leaf])
    for row in database.execute('SELECT * FROM bandmf_rounds'):
      add('ledger', 'clients', len(row['cohort']) // 8)
    for row in database.execute('SELECT * FROM bandmf_events'):
      if row['kind'] == 'finished':
        add('ledger', 'sum', row['digest'])
        add('ledger', 'z_stddev', row['z_stddev'])
      for leaf, value in json.loads(row['payload'] or '{}').items():
        add('ledger', leaf, value)
  database.close()
  return stored


def _meaning(name):
  """Returns the fact that a name stands for."""
  return {
    'run_id': 'run',
    'noise_key_id': 'noise_key',
    'l2_norm_clip': 'released',
    'fraction': 'released',
  }.get(name, name)


def _facts(stored):
  """Returns the facts that two files have, with the names of the files.

  Two equal values are one fact if they have one meaning, or if the value is
  long: two facts hardly have equal long values by chance.
  """
  facts = collections.defaultdict(set)
  files = sorted(stored)
  for i, first in enumerate(files):
    for second in files[i + 1 :]:
      for value in {*stored[first]} & {*stored[second]}:
        names, others = (
          {*map(_meaning, stored[file][value])} for file in (first, second)
        )
        long = len(repr(value)) > 5
        for name in names & others or (names if long else ()):
          facts[name] |= {first, second}
  return facts


def test_a_fact_stands_in_one_file(tmp_path):
  with run.Run(tmp_path, _plan(), keep_key=True) as mine:
    like = np.zeros(3, np.float32)
    for opened in mine.rounds(clients=40):
      opened.finish(opened.release([like + 0.1] * _COHORT, like))
      stored = _stored(tmp_path)
    mine.record(test_accuracy=0.2734375)
  for file, values in _stored(tmp_path).items():
    stored[file].update(values)
  assert {'plan.json', 'run.json', 'ledger', 'rows', 'marks'} <= {*stored}
  assert 0.2734375 in stored['ledger'] and _CLIP in stored['plan.json']
  facts = _facts(stored)
  assert {*facts} <= {*_REASONS}, facts
  assert len(_REASONS) <= 5


def _counted(monkeypatch, module, name):
  """Returns a list that gets an entry at each call of a function."""
  calls, function = [], getattr(module, name)

  def counted(*arguments):
    calls.append(1)
    return function(*arguments)

  monkeypatch.setattr(module, name, counted)
  return calls


def test_chain_is_verified_once_when_a_run_is_opened(tmp_path, monkeypatch):
  like = np.zeros(3, np.float32)
  with run.Run(tmp_path, _plan()) as mine:
    opened = next(mine.rounds(clients=40))
    opened.finish(opened.release([like] * _COHORT, like))
  verified = _counted(monkeypatch, tables, 'verify')
  with run.Run(tmp_path, _plan()):
    assert len(verified) == 1
  report.build(tmp_path)
  assert len(verified) == 2


def test_notes_are_in_the_ledger_alone(tmp_path):
  with run.Run(tmp_path, _plan()) as mine:
    before = (tmp_path / run_json.RUN_FILE).read_bytes()
    mine.note(title='A model', owner='Somebody')
    mine.note(owner=None)
  with run.Run(tmp_path, _plan()) as mine:
    mine.note_side_release('a picture')
    assert (tmp_path / run_json.RUN_FILE).read_bytes() == before
    noted = mine._journal.ledger.contents().notes
  assert noted == {
    'title': 'A model',
    'owner': None,
    'side_releases': ['a picture'],
  }


def test_round_has_few_transactions(tmp_path, monkeypatch):
  like, begun = np.zeros(3, np.float32), []
  burnt = _counted(monkeypatch, journal, '_is_burnt')
  hashed = _counted(monkeypatch, fingerprint, 'fingerprint')
  counts = []
  with run.Run(tmp_path, _plan()) as mine:
    sa.event.listen(
      mine._journal.ledger._writer, 'begin', lambda _: begun.append(1)
    )
    for opened in mine.rounds(clients=40):
      release = functools.partial(opened.release, [like] * _COHORT, like)
      opened.finish(opened.attempt(release))
      counts.append(len(begun))
    mine.record(test_accuracy=0.5)
  # Before the first round, the history of the clients is read.
  assert max(np.diff(counts)) <= 5, counts
  assert len(burnt) == len(hashed) == _ROUNDS
  with open(tmp_path / run_json.METRICS_FILE) as file:
    assert len(list(csv.DictReader(file))) == _ROUNDS
