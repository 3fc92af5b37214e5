"""Tests of two processes that write to one ledger at the same time.

LEDGER_RACES says how often each pair of calls meets; `make races` has 300.
"""

import json
import os
import pathlib
import subprocess
import sys
import threading

import databases
import pytest

from tff_bandmf import ledger as ledger_lib

pytestmark = pytest.mark.slow

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_TRIES = int(os.environ.get('LEDGER_RACES', 8))


def _abandon(ledger, t):
  ledger.abandon_round(t)


def _start(ledger, t):
  ledger.start_round(t, [1, 2])


def _start_other(ledger, t):
  ledger.start_round(t, [3])


def _finish(ledger, t):
  ledger.finish_round(t, result=b'one')


def _finish_other(ledger, t):
  ledger.finish_round(t, result=b'other')


_CALLS = {
  call.__name__: call
  for call in (_abandon, _start, _start_other, _finish, _finish_other)
}


def _open(places):
  """Opens ledgers that are not there yet."""
  print('ready', flush=True)
  for line in sys.stdin:
    try:
      with ledger_lib.Ledger(**places[int(line)]) as ledger:
        assert ledger.attempts(0) == []
        print('done', flush=True)
    except ValueError as error:
      print(error, flush=True)


def _race(place, call):
  """Reads rounds, makes the call in each at once, and says what came of it."""
  with ledger_lib.Ledger(**place, create=False) as ledger:
    print('ready', flush=True)
    for line in sys.stdin:
      try:
        _CALLS[call](ledger, int(line))
        print('done', flush=True)
      except ValueError as error:
        print(error, flush=True)


def _meet(place, *calls):
  """Yields, for every try, the round, and what each process said.

  The test prepares the round before it takes the next value.
  """
  racers = [
    subprocess.Popen(
      [sys.executable, __file__, json.dumps(place, default=str), call],
      cwd=_ROOT,
      env={**os.environ, 'PYTHONPATH': f'{_ROOT}:{_ROOT / "tests/helpers"}'},
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      text=True,
      bufsize=1,
    )
    for call in calls
  ]
  try:
    for racer in racers:
      assert racer.stdout.readline() == 'ready\n'
    for t in range(_TRIES):
      yield t, None
      # The first is as often the second.
      for racer in racers[:: 1 if t % 2 else -1]:
        racer.stdin.write(f'{t}\n')
      yield t, [racer.stdout.readline().strip() for racer in racers]
  finally:
    for racer in racers:
      racer.stdin.close()
    for racer in racers:
      racer.wait(60)
      racer.stdout.close()


@pytest.mark.parametrize('database', ['sqlite', 'postgresql'])
def test_new_ledger_is_opened_by_four_at_once(request, tmp_path, database):
  """In a server one of them made the tables, and others failed."""

  def place(t):
    if database == 'sqlite':
      return dict(url=str(tmp_path / f'{t}.sqlite'))
    url = request.getfixturevalue('postgresql')
    return databases.schema(url, tmp_path / f'{t}')

  places = [place(t) for t in range(_TRIES)]
  for _, said in _meet(places, *[_open.__name__] * 4):
    assert said in (None, ['done'] * 4)


def test_abandoned_round_is_not_started_meanwhile(place):
  with ledger_lib.Ledger(**place) as ledger:
    for t, said in _meet(place, '_abandon', '_start'):
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
    for t, said in _meet(place, '_start', '_start_other'):
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
    for t, said in _meet(place, '_finish', '_finish_other'):
      if said is None:
        ledger.start_round(t, [1])
        continue
      assert sorted(told == 'done' for told in said) == [False, True]
      (attempt,) = ledger.attempts(t)
      assert attempt.result == (b'one' if said[0] == 'done' else b'other')
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


if __name__ == '__main__':
  if sys.argv[2] == _open.__name__:
    _open(json.loads(sys.argv[1]))
  else:
    _race(json.loads(sys.argv[1]), sys.argv[2])
