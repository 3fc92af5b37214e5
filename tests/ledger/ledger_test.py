"""Tests of the ledger: what it keeps through a kill, and what it counts.

Every test runs on SQLite and, where PostgreSQL is installed, on a server of its
own. LEDGER_KILLS says how often a writer is killed.
"""

import json
import os
import pathlib
import random
import signal
import sqlite3
import subprocess
import sys
import time

import numpy as np
import pytest

from tff_bandmf import cohorts as cohorts_lib
from tff_bandmf import ledger as ledger_lib
from tff_bandmf import participation as participation_lib
from tff_bandmf import sensitivity
from tff_bandmf.ledger import chain

_ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture
def ledger(place):
  with ledger_lib.Ledger(**place) as ledger:
    yield ledger


def test_started_round_is_there_for_another_connection(ledger, place):
  ledger.start_round(0, np.array([5, 2, 9]))
  with ledger_lib.Ledger(**place, create=False) as other:
    assert other.cohort(0).tolist() == [2, 5, 9]
    assert other.cohort(1) is None


# Hardly more clients than the separation needs: one that is forgotten is soon
# selected again.
_KILLED = cohorts_lib.CohortSampler(
  100, 8, 10**6, participation_lib.MinSep(10), seed=3
)


def _write(place, pipe):
  """Writes rounds, and says each that was recorded, until it is killed."""
  with ledger_lib.Ledger(**place) as ledger:
    # The last one that was started may not have run: it is replayed.
    start = max(ledger.observed().last_round, 0)
    history = ledger.history(_KILLED.clients, start)
    for t in range(start, _KILLED.rounds):
      cohort = _KILLED.sample(t, history)
      ledger.start_round(t, cohort)
      os.write(pipe, (json.dumps([t, cohort.tolist()]) + '\n').encode())
      history.record(t, cohort)
      ledger.finish_round(t)


def _kill_writers(place, kills):
  """Prints what writers that were killed at random said they had recorded."""
  generator = random.Random(0)
  for kill in range(kills):
    source, sink = os.pipe()
    writer = os.fork()
    if not writer:
      os.close(source)
      _write(place, sink)
    os.close(sink)
    with open(source) as said:
      # Every other one dies at any moment of its start; the rest get on by two
      # rounds at least, however slow the machine is.
      lines = [said.readline() for _ in range(3)] if kill % 2 else []
      time.sleep(generator.uniform(0, 0.1))
      os.kill(writer, signal.SIGKILL)
      assert os.WIFSIGNALED(os.waitpid(writer, 0)[1])
      # No newline: it was killed in the middle of saying it.
      for line in [*lines, *said]:
        if line.endswith('\n'):
          print(line, end='')


@pytest.mark.slow
def test_killed_writers_lose_no_round_and_let_nobody_in_early(place):
  kills = int(os.environ.get('LEDGER_KILLS', 12))
  # In a process without TensorFlow's threads, which a fork does not survive.
  said = subprocess.run(
    [sys.executable, __file__, json.dumps(place, default=str), str(kills)],
    cwd=_ROOT,
    env={**os.environ, 'PYTHONPATH': f'{_ROOT}:{_ROOT / "tests/helpers"}'},
    check=True,
    stdout=subprocess.PIPE,
    text=True,
  ).stdout
  recorded = {}
  for line in said.splitlines():
    t, cohort = json.loads(line)
    assert recorded.setdefault(t, cohort) == cohort
  assert len(recorded) >= kills
  with ledger_lib.Ledger(**place, create=False) as ledger:
    observed = ledger.observed()
    # No gap, and at most the rounds whose writer could not say so any more.
    assert observed.rounds == observed.last_round + 1
    assert len(recorded) <= observed.rounds <= len(recorded) + kills
    for t, cohort in recorded.items():
      assert ledger.cohort(t).tolist() == cohort
    cohorts = {t: ledger.cohort(t).tolist() for t in range(observed.rounds)}
  assert _brute_force(cohorts)['log'].min_sep == observed.min_sep == 10


def test_every_start_is_synced_to_the_disk(ledger, place):
  # What a kill cannot show and a power cut would.
  def shown(name):
    with ledger._writer.connect() as connection:
      return connection.exec_driver_sql(name).scalar()

  if place['url'].startswith('postgresql'):
    # The server's own setting is off.
    assert shown('SHOW synchronous_commit') == 'on'
  else:
    assert shown('PRAGMA journal_mode') == 'wal'
    assert shown('PRAGMA synchronous') == 2  # FULL


def test_round_cannot_start_with_another_cohort(ledger):
  ledger.start_round(3, np.array([1, 2, 3]))
  for other in ([1, 2], [1, 2, 4], [1, 2, 3, 4], []):
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
  with pytest.raises(ValueError, match='a client twice'):
    ledger.start_round(0, np.array([1, 1]))
  assert ledger.cohort(0) is None
  ledger.start_round(0, np.array([1]))


def test_two_writers_cannot_start_one_round_apart(ledger, place):
  with ledger_lib.Ledger(**place) as other:
    ledger.start_round(0, np.array([1]))
    with pytest.raises(ValueError, match='another cohort'):
      other.start_round(0, np.array([2]))


def _brute_force(cohorts):
  rounds = {}
  for t, cohort in sorted(cohorts.items()):
    for client in cohort:
      rounds.setdefault(client, []).append(t)
  gaps = [
    b - a for taken in rounds.values() for a in taken for b in taken if b > a
  ]
  sizes = [len(cohort) for cohort in cohorts.values()]
  counts = [len(taken) for taken in rounds.values()]
  log = sensitivity.Observed(
    clients=len(rounds),
    participations=sum(counts),
    min_sep=min(gaps, default=None),
    max_participations=max(counts, default=0),
    histogram={count: counts.count(count) for count in sorted(set(counts))},
  )
  return dict(
    rounds=len(cohorts),
    log=log,
    min_cohort=min(sizes, default=0),
    max_cohort=max(sizes, default=0),
    last_round=max(cohorts, default=-1),
    last_client=max(rounds, default=-1),
  )


@pytest.mark.parametrize('seed', range(5))
@pytest.mark.parametrize('rounds', [0, 1, 2, 12])
def test_observed_agrees_with_a_count(ledger, seed, rounds):
  rng = np.random.default_rng(seed)
  cohorts = {
    int(t): rng.choice(20, rng.integers(0, 8), replace=False).tolist()
    for t in np.sort(rng.choice(100, rounds, replace=False))
  }
  for t, cohort in cohorts.items():
    ledger.start_round(t, np.array(cohort, np.int64))
  finished = list(cohorts)[::2]
  for t in finished:
    ledger.finish_round(t, np.float32(t + 0.5))
  expected = _brute_force(cohorts)
  observed = ledger.observed()
  assert observed == ledger_lib.Counts(
    finished=len(finished),
    burnt=0,
    open=tuple(list(cohorts)[1::2]),
    z_stddev=min(finished) + 0.5 if finished else None,
    cohort_sizes={t: len(cohort) for t, cohort in cohorts.items()},
    unchecked=tuple(finished),
    finished_twice=(),
    enforced=frozenset({None} if cohorts else ()),
    head=ledger.head(),
    **expected,
  )


def test_history_gives_the_cohorts_of_a_run_that_was_not_interrupted(ledger):
  sampler = cohorts_lib.CohortSampler(
    40, 5, 16, participation_lib.MinSep(4, max_participations=3), 7
  )
  history = cohorts_lib.History.empty(40)
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


def test_ledger_belongs_to_one_run(place):
  with ledger_lib.Ledger(**place) as ledger:
    assert ledger.bound() == (None, None)
    ledger.bind(run=2**62, noise_key=7)
  with ledger_lib.Ledger(**place) as ledger:
    ledger.bind(run=2**62, noise_key=7)
    for other in dict(run=2**62 + 1, noise_key=7), dict(run=2**62, noise_key=8):
      with pytest.raises(ValueError, match='another run'):
        ledger.bind(**other)
    assert ledger.bound() == (2**62, 7)


def test_ledger_with_rounds_is_not_bound_any_more(ledger):
  # They may be those of any run.
  ledger.start_round(0, [1])
  with pytest.raises(ValueError, match='ledger=noise_key, run: .*before'):
    ledger.bind(run=1, noise_key=2)
  assert ledger.bound() == (None, None)


def test_history_of_a_larger_population_is_refused(ledger):
  ledger.start_round(0, np.array([30]))
  with pytest.raises(ValueError, match='clients=30: 1 clients'):
    ledger.history(30, 1)


@pytest.mark.parametrize(
  'schema',
  [participation_lib.MinSep(2), participation_lib.Budget(2, 9)],
  ids=str,
)
@pytest.mark.parametrize('kind', ['all', 'gaps', 'strings', 'gone'])
def test_history_of_a_population_is_that_of_its_rounds(ledger, schema, kind):
  rng = np.random.default_rng(2)
  ids = np.arange(30) if kind != 'gaps' else np.arange(30) ** 3 + 5
  if kind == 'strings':
    ids = np.array([f'c{i:02d}' for i in range(30)])
  rounds = {i: [] for i in range(30)}
  for t in range(0, 40, 2):
    places = rng.choice(30, 7, replace=False)
    ledger.start_round(t, ids[places])
    for i in places if t < 31 else ():
      rounds[i].append(t)
  here = np.arange(30) if kind != 'gone' else np.arange(3, 22)
  history, missing = ledger.population(ids[here], 31, schema)
  assert missing == sum(
    bool(each) and i not in here for i, each in rounds.items()
  )
  assert history.count.tolist() == [len(rounds[i]) for i in here]
  past = history.for_clients(np.arange(len(here)))
  for row, i in enumerate(here):
    assert past.last_round[row] == (rounds[i][-1] if rounds[i] else -(2**30))
    if past.rounds is not None:
      all_rounds = past.rounds[row]
      assert all_rounds[all_rounds >= 0].tolist() == rounds[i][::-1]


def test_attempts_and_their_outcomes_are_recorded(ledger):
  ledger.start_round(0, [1, 2])
  ledger.start_round(0, [1, 2])
  ledger.fail_round(0)
  ledger.start_round(0, [2, 1])
  ledger.finish_round(0, 1.5)
  ledger.start_round(1, [3])
  ledger.abandon_round(1)
  outcomes = lambda t: [a.outcome for a in ledger.attempts(t)]  # noqa: E731
  assert outcomes(0) == ['failed', 'failed', 'finished']
  last = ledger.attempts(0)[-1]
  assert last == ledger_lib.Attempt('finished', 1.5, head=last.head)
  assert outcomes(1) == ['failed', 'abandoned']
  assert outcomes(2) == []
  observed = ledger.observed()
  # What was started counts.
  assert (observed.rounds, observed.finished, observed.clients) == (2, 1, 3)
  assert (observed.burnt, observed.open) == (1, ())
  assert list(ledger.contents().attempts) == [0, 1]
  assert ledger.contents().attempts[0] == ledger.attempts(0)


def test_round_cannot_finish_with_two_results(ledger):
  ledger.start_round(0, [1, 2])
  ledger.finish_round(0, 1.5, b'one')
  ledger.start_round(0, [1, 2])
  for other in b'other', b'', None:
    with pytest.raises(ValueError, match='round=0: was finished with another'):
      ledger.finish_round(0, 1.5, other)
  assert ledger.attempts(0)[-1].outcome == 'started'
  # The same is a replay.
  ledger.finish_round(0, 1.5, b'one')
  ledger.start_round(0, [1, 2])
  ledger.abandon_round(0)
  assert [a.sum_digest for a in ledger.attempts(0)] == [
    b'one',
    b'one',
    None,
    None,
  ]
  assert ledger.observed().finished_twice == ()


def test_round_of_another_number_than_the_aggregators_is_refused(ledger):
  for t in 0, 1:
    ledger.start_round(t, [t])
    for done in {0, 1, 2, 3} - {t + 1}:
      with pytest.raises(
        ValueError, match=f'round={t}: is not .* aggregator, {done - 1};'
      ):
        ledger.finish_round(t, rounds_done=np.int32(done))
    ledger.finish_round(t, rounds_done=np.int32(t + 1))


def test_next_round_is_where_the_ledger_ends(ledger):
  assert ledger.next_round() == 0
  ledger.start_round(0, [1])
  assert ledger.next_round() == 0
  ledger.fail_round(0)
  assert ledger.next_round() == 0
  ledger.start_round(0, [1])
  ledger.finish_round(0)
  assert ledger.next_round() == 1
  # A replay that did not end, of a round that did.
  ledger.start_round(0, [1])
  assert ledger.next_round() == 1
  ledger.start_round(4, [2])
  ledger.abandon_round(4)
  assert ledger.next_round() == 5


def test_round_finished_twice_without_results_is_told(ledger):
  for t, results in enumerate(
    [[None, None], [b'x', b'x'], [None, b'x'], [None], [b'x']]
  ):
    for result in results:
      ledger.start_round(t, [1, 2])
      ledger.finish_round(t, 1.5, result)
  assert ledger.observed().finished_twice == (0, 2)


def test_finish_without_a_start_is_refused_with_the_same_result_too(ledger):
  ledger.start_round(0, [1])
  ledger.finish_round(0, 1.5, b'x')
  with pytest.raises(ValueError, match='round=0: has no attempt'):
    ledger.finish_round(0, 1.5, b'x')


def test_noise_that_was_checked_in_one_round_is_unchecked(ledger):
  for t in range(6):
    ledger.start_round(t, [t])
    ledger.finish_round(t, 0.5 if t == 2 else None, noise_checked=t == 3)
  # A replay of the checked round that nobody checked.
  ledger.start_round(3, [3])
  ledger.finish_round(3, 0.5)
  observed = ledger.observed()
  assert observed.unchecked == tuple(range(6))
  # One round without a measurement is enough.
  assert observed.z_stddev is None


@pytest.mark.parametrize('z_stddev', [-1.0, float('nan'), float('inf')])
def test_noise_that_cannot_be_measured_is_refused(ledger, z_stddev):
  ledger.start_round(0, [1])
  with pytest.raises(ValueError, match='z_stddev='):
    ledger.finish_round(0, z_stddev)
  ledger.finish_round(0, -0.0)
  assert ledger.observed().z_stddev == 0.0


def test_round_below_a_started_one_cannot_start(ledger):
  ledger.start_round(4, [1])
  for t in 0, 3:
    with pytest.raises(ValueError, match=f'round={t}: was never .* round 4'):
      ledger.start_round(t, [2])
  # A replay can.
  ledger.start_round(6, [1])
  ledger.start_round(4, [1])
  for t in -1, -7, 2**30:
    with pytest.raises(ValueError, match=f'round={t}: must '):
      ledger.start_round(t, [2])
  assert list(ledger.observed().cohort_sizes) == [4, 6]


def test_abandoned_round_cannot_start_again(ledger):
  ledger.start_round(4, [1, 2])
  ledger.abandon_round(4)
  with pytest.raises(ValueError, match='round=4: was abandoned'):
    ledger.start_round(4, [1, 2])
  assert [a.outcome for a in ledger.attempts(4)] == ['failed', 'abandoned']


def test_round_that_was_not_started_has_no_outcome(ledger):
  ledger.start_round(0, [1])
  ledger.finish_round(0)
  for end in (ledger.finish_round, ledger.fail_round):
    for t in (0, 1):
      with pytest.raises(ValueError, match=f'round={t}: has no attempt'):
        end(t)
  with pytest.raises(ValueError, match='round=1: has no attempt'):
    ledger.abandon_round(1)
  assert ledger.attempts(1) == []


def test_clients_of_the_rounds_before_are_counted(tmp_path):
  """Each once, forwards and backwards, however its rounds are combined."""
  chance, seen = np.random.default_rng(0), [set()]
  with ledger_lib.Ledger(tmp_path / 'ledger.sqlite') as ledger:
    for t in range(12):
      cohort = chance.choice(30, chance.integers(9), replace=False)
      ledger.start_round(t, cohort)
      seen.append(seen[-1] | set(cohort.tolist()))
      past = ledger.past(range(30), t + 1)
      assert np.count_nonzero(past.count) == len(seen[-1])
    for t in 12, 5, 9, 0:
      assert np.count_nonzero(ledger.past(range(30), t).count) == len(seen[t])


def test_cohort_of_something_else_is_refused(ledger):
  for cohort in ([1.0], [True], [None], np.array([1.0])):
    with pytest.raises(TypeError, match='must be an integer; .* string'):
      ledger.start_round(0, cohort)
  with pytest.raises(ValueError, match='client=-1'):
    ledger.start_round(0, [-1])
  assert ledger.observed().rounds == 0


def test_missing_ledger_is_an_error_where_it_must_be_there(place, tmp_path):
  with pytest.raises(ValueError, match='does not exist'):
    ledger_lib.Ledger(**place, create=False)
  assert not list(tmp_path.iterdir())


def test_ledger_in_memory_is_refused():
  for url in ('sqlite://', 'sqlite:///:memory:'):
    with pytest.raises(ValueError, match='must be a file'):
      ledger_lib.Ledger(url)


def test_server_that_is_not_there_is_refused_without_its_password(tmp_path):
  pytest.importorskip('psycopg2')
  with pytest.raises(ValueError, match='cannot be used') as caught:
    ledger_lib.Ledger(f'postgresql+psycopg2://me:geheim@/x?host={tmp_path}')
  assert 'geheim' not in str(caught.value)


def test_file_that_is_no_ledger_is_refused_and_kept(tmp_path):
  path = tmp_path / 'ledger.sqlite'
  path.write_bytes(b'no database at all' * 100)
  with pytest.raises(ValueError, match='file is not a database'):
    ledger_lib.Ledger(path)
  assert path.read_bytes() == b'no database at all' * 100


def test_database_of_something_else_is_refused(tmp_path):
  path = tmp_path / 'ledger.sqlite'
  connection = sqlite3.connect(path)
  connection.execute('CREATE TABLE rounds (round INTEGER)')
  connection.close()
  for create in (True, False):
    with pytest.raises(ValueError, match='is not a participation ledger'):
      ledger_lib.Ledger(path, create=create)


def test_round_cannot_start_with_another_digest_than_the_last(ledger):
  """A plan or a strategy that was edited between two rounds."""
  ledger.start_round(0, [1], b'held')
  ledger.fail_round(0)
  for t in range(2):
    with pytest.raises(ValueError, match='run=round .*than the earlier rounds'):
      ledger.start_round(t, [1], b'other')
    ledger.start_round(t, [1], b'held')
    assert ledger.attempts(t)[-1].enforced == b'held'
    ledger.finish_round(t)
  assert ledger.observed().enforced == {b'held'}


def test_last_results_of_a_run_count(ledger):
  with pytest.raises(ValueError, match='has no attempt'):
    ledger.record_end({'x': 1.0})
  ledger.start_round(0, [1])
  ledger.finish_round(0)
  head = ledger.head()
  assert ledger.observed().ended is None is ledger.ended()
  with pytest.raises(ValueError, match='not JSON compliant'):
    ledger.record_end({'x': float('nan')})
  ledger.record_end({'x': 0.0})
  ledger.record_end({'x': 1.5, 'y': 2})
  ended = chain.End({'x': 1.5, 'y': 2}, ledger.head())
  assert ledger.observed().ended == ended == ledger.ended()
  assert ledger.head() != head == ledger.attempts(0)[-1].head


def test_verdict_is_of_all_rounds_or_none(ledger, place):
  with pytest.raises(ValueError, match='has no attempt'):
    ledger.record_drawn(True)
  for t in range(2):
    ledger.start_round(t, np.array([t, 7]))
    ledger.finish_round(t, sum_digest=b'r')
    head = ledger.head()
  assert ledger.observed().drawn is None
  assert ledger.same_cohort(1, np.array([7, 1]))
  assert not ledger.same_cohort(1, np.array([7, 2]))
  assert not ledger.same_cohort(2, np.array([7, 1]))
  ledger.record_drawn(True)
  assert ledger.observed().drawn is True
  # In the chain; the head that a checkpoint has is still that of the round.
  assert ledger.head() != head == ledger.attempts(1)[-1].head
  # What came after the verdict nobody has looked at.
  ledger.start_round(2, np.array([3]))
  with pytest.raises(ValueError, match='has no attempt'):
    ledger.record_drawn(True)
  ledger.finish_round(2)
  assert ledger.observed().drawn is None
  ledger.record_drawn(False)
  ledger.record_drawn(True)
  with ledger_lib.Ledger(**place, create=False) as other:
    assert other.observed().drawn is False


if __name__ == '__main__':
  _kill_writers(json.loads(sys.argv[1]), int(sys.argv[2]))
