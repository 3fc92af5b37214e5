"""Tests of the ledger: what it keeps through a kill, and what it counts."""

import os
import pathlib
import signal
import sqlite3
import subprocess
import sys

import numpy as np
import pytest

from tff_bandmf import participation as participation_lib
from tff_bandmf import program

_ROOT = pathlib.Path(__file__).resolve().parent.parent


@pytest.fixture
def ledger(tmp_path):
  with program.Ledger(tmp_path / 'ledger.sqlite') as ledger:
    yield ledger


def test_started_round_is_there_for_another_connection(ledger, tmp_path):
  ledger.start_round(0, np.array([5, 2, 9]))
  with program.Ledger(tmp_path / 'ledger.sqlite', create=False) as other:
    assert other.cohort(0).tolist() == [2, 5, 9]
    assert other.cohort(1) is None


_WRITER = '''
import sys
import numpy as np
from tff_bandmf import program
ledger = program.Ledger(sys.argv[1])
for t in range(10**6):
  ledger.start_round(t, np.arange(t % 7, t % 7 + 50))
  print(t, flush=True)
  if t % 2:
    ledger.finish_round(t)
'''


def test_killed_writer_loses_no_started_round(tmp_path):
  path = tmp_path / 'ledger.sqlite'
  writer = subprocess.Popen(
      [sys.executable, '-c', _WRITER, str(path)], cwd=_ROOT,
      stdout=subprocess.PIPE, text=True)
  for _ in range(30):
    writer.stdout.readline()
  os.kill(writer.pid, signal.SIGKILL)
  told = 29 + len(writer.stdout.read().split('\n')) - 1
  assert writer.wait() == -signal.SIGKILL
  with program.Ledger(path, create=False) as ledger:
    # At most one more: started, but the writer could not say so any more.
    assert ledger.observed().rounds - told in (1, 2)
    for t in range(ledger.observed().rounds):
      assert ledger.cohort(t).tolist() == list(range(t % 7, t % 7 + 50))
    ledger.start_round(told + 5, np.array([1]))


def test_every_start_is_synced_to_the_disk(ledger):
  # What a kill cannot show and a power cut would: 2 is FULL.
  pragma = lambda name: ledger._connection.execute(  # noqa: E731
      f'PRAGMA {name}').fetchone()[0]
  assert (pragma('journal_mode'), pragma('synchronous')) == ('wal', 2)


def test_round_cannot_start_with_another_cohort(ledger):
  ledger.start_round(3, np.array([1, 2, 3]))
  for other in ([1, 2], [1, 2, 4], [1, 2, 3, 4], [], [1, 2, 3, 3]):
    with pytest.raises(ValueError, match='round=3: was already started'):
      ledger.start_round(3, np.array(other, np.int64))
  assert ledger.cohort(3).tolist() == [1, 2, 3]


def test_round_can_be_replayed_with_its_cohort(ledger):
  ledger.start_round(3, np.array([1, 2, 3]))
  ledger.finish_round(3)
  ledger.start_round(3, np.array([3, 1, 2]))
  observed = ledger.observed()
  assert (observed.rounds, observed.finished) == (1, 1)
  assert observed.max_participations == 1


def test_client_twice_in_a_cohort_is_refused_and_nothing_kept(ledger):
  with pytest.raises(sqlite3.IntegrityError):
    ledger.start_round(0, np.array([1, 1]))
  assert ledger.cohort(0) is None
  ledger.start_round(0, np.array([1]))


def test_two_writers_cannot_start_one_round_apart(ledger, tmp_path):
  with program.Ledger(tmp_path / 'ledger.sqlite') as other:
    ledger.start_round(0, np.array([1]))
    with pytest.raises(ValueError, match='another cohort'):
      other.start_round(0, np.array([2]))


def _brute_force(cohorts):
  rounds = {}
  for t, cohort in sorted(cohorts.items()):
    for client in cohort:
      rounds.setdefault(client, []).append(t)
  gaps = [b - a for taken in rounds.values() for a in taken for b in taken
          if b > a]
  sizes = [len(cohort) for cohort in cohorts.values()]
  return dict(
      rounds=len(cohorts), clients=len(rounds),
      min_cohort=min(sizes, default=0), max_cohort=max(sizes, default=0),
      min_sep=min(gaps, default=None),
      max_participations=max(map(len, rounds.values()), default=0),
      last_round=max(cohorts, default=-1),
      last_client=max(rounds, default=-1))


@pytest.mark.parametrize('seed', range(5))
@pytest.mark.parametrize('rounds', [0, 1, 2, 12])
def test_observed_agrees_with_a_count(ledger, seed, rounds):
  rng = np.random.default_rng(seed)
  cohorts = {
      int(t): rng.choice(20, rng.integers(0, 8), replace=False).tolist()
      for t in rng.choice(100, rounds, replace=False)}
  for t, cohort in cohorts.items():
    ledger.start_round(t, np.array(cohort, np.int64))
  finished = list(cohorts)[::2]
  for t in finished:
    ledger.finish_round(t, np.float32(t + 0.5))
  expected = _brute_force(cohorts)
  observed = ledger.observed()
  assert observed == program.Observed(
      finished=len(finished),
      z_stddev=min(finished) + 0.5 if finished else None, **expected)


def test_history_gives_the_cohorts_of_a_run_that_was_not_interrupted(ledger):
  sampler = program.CohortSampler(
      40, 5, 16, participation_lib.MinSep(4, max_participations=3), 7)
  history = program.History.empty(40)
  cohorts = []
  for t in range(16):
    cohort = sampler.sample(t, history)
    ledger.start_round(t, cohort)
    history.record(t, cohort)
    cohorts.append(cohort)
  for before in (0, 1, 7, 15):
    again = ledger.history(40, before)
    assert np.array_equal(sampler.sample(before, again), cohorts[before])
  final = ledger.history(40, 16)
  assert np.array_equal(final.count, history.count)
  assert np.array_equal(final.last_round, history.last_round)


def test_integers_of_numpy_are_integers(ledger):
  ledger.start_round(np.int64(2), np.array([1, 2]))
  ledger.start_round(np.int64(4), np.array([1]))
  ledger.finish_round(np.int32(2))
  assert ledger.cohort(np.int64(2)).tolist() == [1, 2]
  assert ledger.observed().finished == 1
  assert ledger.history(3, np.int64(4)).count.tolist() == [0, 1, 1]
  for round_index in (2.0, '2', None):
    with pytest.raises(TypeError):
      ledger.start_round(round_index, np.array([5]))


def test_ledger_belongs_to_one_run(tmp_path):
  with program.Ledger(tmp_path / 'ledger.sqlite') as ledger:
    ledger.bind(2**62)
  with program.Ledger(tmp_path / 'ledger.sqlite') as ledger:
    ledger.bind(2**62)
    with pytest.raises(ValueError, match='another run'):
      ledger.bind(2**62 + 1)


def test_history_of_a_larger_population_is_refused(ledger):
  ledger.start_round(0, np.array([30]))
  with pytest.raises(ValueError, match='client=30'):
    ledger.history(30, 1)


def test_missing_ledger_is_an_error_where_it_must_be_there(tmp_path):
  with pytest.raises(ValueError, match='does not exist'):
    program.Ledger(tmp_path / 'ledger.sqlite', create=False)
  assert not list(tmp_path.iterdir())


def test_file_that_is_no_ledger_is_refused_and_kept(tmp_path):
  path = tmp_path / 'ledger.sqlite'
  path.write_bytes(b'no database at all' * 100)
  with pytest.raises(ValueError, match='no participation ledger'):
    program.Ledger(path)
  assert path.read_bytes() == b'no database at all' * 100
