"""Tests of the chain of a ledger: what is changed in its file is refused."""

import contextlib
import itertools
import re
import shutil
import sqlite3

import doctored
import numpy as np
import pytest

from tff_bandmf import ledger as ledger_lib
from tff_bandmf.ledger import chain

_COHORTS = ([3, 1, 2], [5, 4], [1, 6, 7], [2, 8], [3, 5, 4], [9, 6])
_BURNT = 4


@pytest.fixture
def path(tmp_path):
  """Gives the file of a ledger of six rounds."""
  path = tmp_path / 'ledger.sqlite'
  with ledger_lib.Ledger(path) as ledger:
    ledger.bind(run=5, noise_key=6)
    for t, cohort in enumerate(_COHORTS):
      _run(ledger, t, cohort)
  return path


def _run(ledger, t, cohort):
  ledger.start_round(t, cohort)
  row = b'row %d' % t
  if t == _BURNT:
    ledger.abandon_round(t, row)
  else:
    ledger.finish_round(
      t,
      0.5,
      b'release %d' % t,
      noise_checked=True,
      row=row,
      released={'clip': t + 0.5},
    )


def _execute(path, *statement):
  with contextlib.closing(sqlite3.connect(path)) as connection:
    with connection:
      return connection.execute(*statement).fetchall()


def _refused(path, match):
  for create in True, False:
    with pytest.raises(ValueError, match=match) as caught:
      ledger_lib.Ledger(path, create=create)
    assert '\n' not in str(caught.value)


def test_head_is_a_new_one_after_every_event(path):
  with ledger_lib.Ledger(path) as ledger:
    heads = [ledger.attempts(t)[-1].head for t in range(6)]
    assert heads[-1] == ledger.head()
    ledger.start_round(6, [1])
    heads.append(ledger.head())
    ledger.fail_round(6)
    heads.append(ledger.head())
    ledger.start_round(6, [1])
    heads.append(ledger.head())
    assert len(set(heads)) == len(heads)
    assert all(len(bytes.fromhex(head)) == 32 for head in heads)
    # What a checkpoint kept is still there.
    assert [ledger.attempts(t)[-1].head for t in range(6)] == heads[:6]
    attempts = ledger.attempts(2)
  assert attempts == [
    ledger_lib.Attempt(
      'finished', 0.5, b'release 2', True, b'row 2', {'clip': 2.5}, heads[2]
    )
  ]
  with ledger_lib.Ledger(path) as ledger:
    assert ledger.head() == heads[-1]


def test_head_is_the_hash_of_what_happened(path):
  """The equation, with the order of the events by hand."""
  with ledger_lib.Ledger(path) as ledger:
    run, noise_key = ledger.bound()
    key = _execute(path, 'SELECT key FROM bandmf_ledger')[0][0]
    head = chain.genesis(run, noise_key, key)
    place = itertools.count()
    for t, cohort in enumerate(_COHORTS):
      recorded = np.frombuffer(
        _execute(path, 'SELECT cohort FROM bandmf_rounds WHERE round = ?', [t])[
          0
        ][0]
      )
      events = [
        chain.Event(
          t,
          'started',
          chain.cohort_digest(recorded.view(np.int64), max(cohort)),
        )
      ]
      if t == _BURNT:
        events.append(chain.Event(t, 'abandoned'))
        # The attempt ended with the round.
        events.insert(1, chain.Event(t, 'failed'))
      else:
        events.append(chain.Event(t, 'finished', b'release %d' % t, 0.5, True))
      payload = None if t == _BURNT else f'{{"clip": {t + 0.5}}}'
      events.append(chain.Event(t, 'row', b'row %d' % t, payload=payload))
      for event in events:
        head = chain.link(head, next(place), event)
      assert ledger.attempts(t)[-1].head == head.hex()


# Events of a round, a letter each: attempts that began and maybe ended, and
# abandoned rounds. Only the last attempt may be open.
_LETTERS = {
  's': chain.STARTED,
  'F': chain.FINISHED,
  'L': chain.FAILED,
  'a': chain.ABANDONED,
  'r': chain.ROW,
  'e': chain.ENFORCED,
  'z': chain.ENDED,
  'd': chain.DRAWN,
  'n': chain.NOT_DRAWN,
  'N': chain.NOTED,
  **dict(zip('012', chain.FLAGS)),
}
_ATTEMPT = r's[e012N]*[FL][rdnz012N]*|a[rdnz012N]*'
_ROUND = re.compile(rf'(?=s)({_ATTEMPT})*(s[e012N]*)?')


def _parts(letters):
  """Returns where attempts begin and end, or None if no round is like this."""
  if not _ROUND.fullmatch(letters):
    return None
  starts = [i for i, letter in enumerate(letters) if letter in 'sa']
  parts = list(zip(starts, [*starts[1:], len(letters)]))
  for start, stop in parts:
    if any(letters[start:stop].count(flag) > 1 for flag in '012'):
      return None
  return parts


def test_random_events_are_attempts_or_are_refused():
  rng = np.random.default_rng(0)
  refused = 0
  for _ in range(300):
    letters = 's'
    for _ in range(rng.integers(12)):
      letter = rng.choice(list(_LETTERS))
      # Few sequences at random are possible ones.
      if _parts(letters + letter) or rng.random() < 0.05:
        letters += letter
    events = [
      (
        chain.Event(
          3,
          _LETTERS[x],
          b'digest %d' % i,
          float(i),
          bool(rng.random() < 0.5),
          f'{{"x": {i}}}',
        ),
        b'head %d' % i,
      )
      for i, x in enumerate(letters)
    ]
    parts = _parts(letters)
    if parts is None:
      refused += 1
      with pytest.raises(ValueError, match='attempt'):
        chain.attempts(events)
      continue
    expected = []
    for start, stop in parts:
      last = {x: events[i] for i, x in enumerate(letters) if start <= i < stop}
      digest = {x: event.digest for x, (event, _) in last.items()}
      numbers = {x: event.numbers for x, (event, _) in last.items()}
      closed = last.get('F') or last.get('L')
      heads = [
        head
        for x, (_, head) in zip(letters[start:stop], events[start:stop])
        if x not in 'dnzN'
      ]
      outcome = 's' if letters[start] == 's' else 'a'
      expected.append(
        chain.Attempt(
          _LETTERS[outcome] if not closed else closed[0].kind,
          z_stddev=closed[0].z_stddev if closed else None,
          sum_digest=closed[0].digest if closed else None,
          noise_checked=closed[0].noise_checked if closed else False,
          row=digest.get('r'),
          released=numbers.get('r', {}),
          head=heads[-1].hex(),
          enforced=digest.get('e'),
          drawn='n' not in last if {'d', 'n'} & set(last) else None,
          flags=frozenset(_LETTERS[x] for x in last if x in '012'),
          ended=last.get('z')
          and chain.End(last['z'][0].numbers, last['z'][1].hex()),
        )
      )
    assert chain.attempts(events) == expected, letters
  assert 20 < refused < 150


def test_two_runs_have_no_head_in_common(tmp_path):
  heads = []
  for name, bound in enumerate([(1, 2), (1, 3), (2, 2)]):
    with ledger_lib.Ledger(
      tmp_path / f'{name}.sqlite', key_file=tmp_path / 'a.key'
    ) as ledger:
      ledger.bind(run=bound[0], noise_key=bound[1])
      heads.append(ledger.head())
      ledger.start_round(0, [1])
      heads.append(ledger.head())
  assert len(set(heads)) == 6


def test_client_cut_out_of_two_cohorts_is_refused(path):
  # Client 3 took part in rounds 0 and 4.
  with ledger_lib.Ledger(path) as ledger:
    hashed = ledger._hash().hashes([3]).tobytes()
  for t in (4, 0):
    (cohort,) = _execute(
      path, 'SELECT cohort FROM bandmf_rounds WHERE round = ?', [t]
    )[0]
    assert hashed in cohort
    _execute(
      path,
      'UPDATE bandmf_rounds SET cohort = ? WHERE round = ?',
      [cohort.replace(hashed, b''), t],
    )
    _refused(path, f'ledger=round {t}: contradicts the chain')


@pytest.mark.parametrize('t', range(6))
def test_round_whose_cohort_is_gone_is_refused(path, t):
  _execute(path, 'DELETE FROM bandmf_rounds WHERE round = ?', [t])
  _refused(path, f'ledger=round {t}: contradicts')


def test_cohort_without_events_is_refused(path):
  _execute(
    path,
    "INSERT INTO bandmf_rounds (round, highest, cohort) VALUES (6, -1, x'')",
  )
  _refused(path, 'ledger=round 6: contradicts')


_VALUES = {
  'format': (1, 2, None),
  'run': (6, None),
  'noise_key': (5, None),
  'key': (5, None),
  'events': (0, 17, 20),
  'highest': (-1, 4, 2**40),
  'kind': ('started', 'finished', 'failed', 'abandoned', 'row', 'x'),
  'z_stddev': (0.25, None, 7.0),
  'noise_checked': (0, 1, 2),
  'digest': (b'other', None, b''),
  'payload': ('{}', '{"clip": 9.5}', 'x', None),
  'head': (bytes(32), b'', None),
  'round': (0, 3, 9),
  'place': (-1, 30),
  'cohort': (b'', bytes(8)),
}


@pytest.mark.slow
@pytest.mark.parametrize('table', ['ledger', 'rounds', 'events'])
def test_any_change_of_a_row_is_refused(path, tmp_path, table):
  columns = [
    row[1] for row in _execute(path, f'PRAGMA table_info(bandmf_{table})')
  ]
  rows = _execute(path, f'SELECT * FROM bandmf_{table} ORDER BY 1')
  changed = 0
  other = tmp_path / 'other.sqlite'
  for row in rows:
    for column, before in zip(columns, row):
      if (table, column) == ('ledger', 'place'):
        continue
      for value in _VALUES[column]:
        if value == before:
          continue
        shutil.copy(path, other)
        try:
          _execute(
            other,
            f'UPDATE bandmf_{table} SET {column} = ? WHERE {columns[0]} = ?',
            [value, row[0]],
          )
        except sqlite3.IntegrityError:
          continue
        with pytest.raises(
          ValueError, match='ledger=.*: (is|cannot|contradicts)'
        ):
          ledger_lib.Ledger(other)
        changed += 1
    shutil.copy(path, other)
    _execute(
      other, f'DELETE FROM bandmf_{table} WHERE {columns[0]} = ?', [row[0]]
    )
    with pytest.raises(ValueError, match='ledger=.*: (is not|contradicts)'):
      ledger_lib.Ledger(other)
  assert changed > 10


def test_events_gone_from_the_end_are_refused(path):
  _execute(path, 'DELETE FROM bandmf_events WHERE place > 12')
  _refused(path, 'ledger=round [34]: contradicts the chain')
  # Their number with them: the head is then another one.
  _execute(path, 'UPDATE bandmf_ledger SET events = 13')
  _refused(path, 'ledger=round [34]: contradicts the chain')


def test_ledger_of_another_run_is_refused(path, tmp_path):
  other = tmp_path / 'other' / 'ledger.sqlite'
  other.parent.mkdir()
  with ledger_lib.Ledger(other) as ledger:
    ledger.bind(run=50, noise_key=60)
    for t, cohort in enumerate(_COHORTS):
      _run(ledger, t, cohort)
    head = ledger.head()
  shutil.copy(other, path)
  with ledger_lib.Ledger(path) as ledger:
    assert ledger.bound() == (50, 60)
    assert ledger.head() == head
    with pytest.raises(ValueError, match='another run'):
      ledger.bind(run=5, noise_key=6)
    with pytest.raises(ValueError, match='ledger key=.* not the key of this'):
      ledger.start_round(6, [1])


def test_older_part_of_a_ledger_has_another_head(path, tmp_path):
  """A ledger of before is whole; only a head from elsewhere tells."""
  with ledger_lib.Ledger(path) as ledger:
    shutil.copy(path, tmp_path / 'before.sqlite')
    before = ledger.head()
    _run(ledger, 6, [1])
    after = ledger.head()
  with ledger_lib.Ledger(
    tmp_path / 'before.sqlite', key_file=tmp_path / 'private' / 'ledger.key'
  ) as ledger:
    assert ledger.head() == before != after
    # Another round 6 does not lead to the head of the first.
    _run(ledger, 6, [2])
    assert ledger.head() != after


def test_ledger_changed_while_it_is_open_is_refused_when_counted(path):
  with ledger_lib.Ledger(path) as ledger:
    _execute(path, 'UPDATE bandmf_events SET noise_checked = 0')
    for call in ledger.observed, ledger.contents:
      with pytest.raises(ValueError, match='ledger=round 0: contradicts'):
        call()


def test_last_row_of_a_burnt_round_counts(path):
  with ledger_lib.Ledger(path) as ledger:
    with pytest.raises(ValueError, match='round=6: has no attempt'):
      ledger.abandon_round(6, b'row')
    ledger.start_round(6, [1])
    ledger.abandon_round(6, b'row')
    ledger.abandon_round(6, b'other')
    ledger.abandon_round(6)
    (_, attempt) = ledger.attempts(6)
    assert (attempt.outcome, attempt.row) == ('abandoned', b'other')


def test_chain_made_anew_has_other_heads(path):
  """Only a head from elsewhere tells: result.json and checkpoints have it."""
  with ledger_lib.Ledger(path) as ledger:
    before = [ledger.attempts(t)[-1].head for t in range(6)]
    hashed = ledger._hash().hashes([3])
  doctored.rewrite(
    path, cohorts=lambda t, cohort: cohort[~np.isin(cohort, hashed)]
  )
  with ledger_lib.Ledger(path) as ledger:
    assert ledger.observed().cohort_sizes[4] == len(_COHORTS[4]) - 1
    assert not set(before) & {ledger.attempts(t)[-1].head for t in range(6)}


def test_ledger_whose_rounds_began_without_a_digest_is_refused(path):
  """Format 2 had clip, noise and divisor beside the end of a round."""
  _execute(path, 'UPDATE bandmf_ledger SET format = 2')
  _refused(path, 'ledger=format 2: .* with the version that began it')


def test_ledger_of_the_first_version_is_refused(tmp_path):
  path = tmp_path / 'ledger.sqlite'
  for table in 'ledger', 'rounds', 'attempts':
    _execute(path, f'CREATE TABLE bandmf_{table} (round INTEGER)')
  _refused(path, 'ledger=format 1: .* with the version that began it')
