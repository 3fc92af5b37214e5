"""Tests of two processes that write to one ledger at the same time.

LEDGER_RACES says how often each pair of calls meets; `make races` has 300.
"""

import contextlib
import multiprocessing
import os
import threading

import databases
import processes
import pytest

from tff_bandmf import ledger as ledger_lib

pytestmark = pytest.mark.slow

_TRIES = int(os.environ.get('LEDGER_RACES', 8))


def _abandon(ledger, t):
  ledger.abandon_round(t)


def _start(ledger, t):
  ledger.start_round(t, [1, 2])


def _start_other(ledger, t):
  ledger.start_round(t, [3])


def _finish(ledger, t):
  ledger.finish_round(t, sum_digest=b'one')


def _finish_other(ledger, t):
  ledger.finish_round(t, sum_digest=b'other')


def _asked(connection):
  """Yields the rounds that the test names, until it names no more."""
  connection.send('ready')
  with contextlib.suppress(EOFError):
    while True:
      yield connection.recv()


def _open(connection, places):
  """Opens ledgers that are not there yet."""
  for t in _asked(connection):
    try:
      with ledger_lib.Ledger(**places[t]) as ledger:
        assert ledger.attempts(0) == []
        connection.send('done')
    except ValueError as error:
      connection.send(str(error))


def _race(connection, place, call):
  """Reads rounds, makes the call in each at once, and says what came of it."""
  with ledger_lib.Ledger(**place, create=False) as ledger:
    for t in _asked(connection):
      try:
        call(ledger, t)
        connection.send('done')
      except ValueError as error:
        connection.send(str(error))


def _meet(target, *racers):
  """Yields, for every try, the round, and what each process said.

  Each of `racers` is the arguments of one process. The test prepares the round
  before it takes the next value.
  """
  started = []
  try:
    for arguments in racers:
      mine, its = multiprocessing.Pipe()
      with its:
        racer = processes.start(target, its, *arguments, daemon=True)
      started.append((mine, racer))
    connections = [mine for mine, _ in started]
    for connection in connections:
      assert connection.recv() == 'ready'
    for t in range(_TRIES):
      yield t, None
      # The first is as often the second.
      for connection in connections[:: 1 if t % 2 else -1]:
        connection.send(t)
      yield t, [connection.recv() for connection in connections]
  finally:
    for connection, _ in started:
      connection.close()
    for _, racer in started:
      racer.join(60)


@pytest.mark.parametrize('database', ['sqlite', 'postgresql'])
def test_new_ledger_is_opened_by_four_at_once(request, tmp_path, database):
  """In a server one of them made the tables, and others failed."""

  def place(t):
    if database == 'sqlite':
      return dict(url=str(tmp_path / f'{t}.sqlite'))
    url = request.getfixturevalue('postgresql')
    return databases.schema(url, tmp_path / f'{t}')

  places = [place(t) for t in range(_TRIES)]
  for _, said in _meet(_open, *[(places,)] * 4):
    assert said in (None, ['done'] * 4)


def test_abandoned_round_is_not_started_meanwhile(place):
  with ledger_lib.Ledger(**place) as ledger:
    for t, said in _meet(_race, (place, _abandon), (place, _start)):
      if said is None:
        ledger.start_round(t, [1, 2])
        continue
      assert said[0] == 'done'
      assert said[1] == 'done' or 'was abandoned' in said[1]
      outcomes = [attempt.outcome for attempt in ledger.attempts(t)]
      assert outcomes[-1] == 'abandoned', t
    # The chain is whole.
    assert ledger.observed().burnt == _TRIES


def test_one_of_two_cohorts_of_a_round_is_started(place):
  winners = set()
  with ledger_lib.Ledger(**place) as ledger:
    # With the key of the ledger made.
    ledger.start_round(0, [1, 2])
    ledger.fail_round(0)
    for t, said in _meet(_race, (place, _start), (place, _start_other)):
      if said is None or t == 0:
        continue
      assert sorted(told == 'done' for told in said) == [False, True]
      assert any('another cohort' in told for told in said)
      winners.add(said.index('done'))
      started = ledger.cohort(t).tolist()
      assert started == ([1, 2] if said[0] == 'done' else [3])
    ledger.observed()
  assert _TRIES < 100 or len(winners) == 2


def test_one_of_two_results_of_a_round_is_finished(place):
  with ledger_lib.Ledger(**place) as ledger:
    for t, said in _meet(_race, (place, _finish), (place, _finish_other)):
      if said is None:
        ledger.start_round(t, [1])
        continue
      assert sorted(told == 'done' for told in said) == [False, True]
      (attempt,) = ledger.attempts(t)
      assert attempt.sum_digest == (b'one' if said[0] == 'done' else b'other')
    assert ledger.observed().finished == _TRIES


def test_threads_of_one_process_start_rounds_one_after_the_other(ledger):
  """The engine is shared; the second waits for the first."""
  errors = []

  def start(cohort):
    try:
      ledger.start_round(0, cohort)
    except ValueError as error:
      errors.append(str(error))

  threads = [
    threading.Thread(target=start, args=([client],)) for client in range(4)
  ]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  assert len(errors) == 3
  assert len(ledger.attempts(0)) == 1


@pytest.fixture
def ledger(place):
  with ledger_lib.Ledger(**place) as ledger:
    yield ledger
