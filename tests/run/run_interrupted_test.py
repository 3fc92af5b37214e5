"""Tests of runs that are killed in the first, a middle or the last round."""

import collections
import itertools
from unittest import mock

import numpy as np
import pytest
import small_run

from tff_bandmf import ledger as ledger_lib
from tff_bandmf import report, run, verify
from tff_bandmf.run_files import checkpoints, metrics, run_json

_CHANCE = np.random.default_rng(0)


def _step(opened, total, releases):
  updates = [np.full(3, 0.1, np.float32)] * len(opened.cohort)
  mean = opened.release(updates, np.zeros(3, np.float32))
  releases.append((opened.index, mean.tobytes()))
  return opened.finish(total + mean)


def _rounds(mine, releases):
  """Runs what is left, with cohorts that the run draws."""
  total = mine.restore(lambda: np.zeros(3))
  for opened in mine.rounds(clients=8):
    total = _step(opened, total, releases)


def _round(mine, releases):
  """Runs what is left, with clients that check in: others at every start."""
  total = mine.restore(lambda: np.zeros(3))
  while mine.rounds_left:
    with mine.round(cohort=_CHANCE.permutation(8)[:4]) as opened:
      total = _step(opened, total, releases)


_WAYS = {'rounds': _rounds, 'round': _round}


def _program(directory, way, releases):
  """The program of a user, which is started again until it ends."""
  with run.Run(directory, small_run.small_plan()) as mine:
    _WAYS[way](mine, releases)
    mine.record(accuracy=0.5)


def _writes(directory, way):
  """Returns {moment: number of durable writes before it} of a whole run.

  The moments are the rounds after their sums were released, and 'end'.
  """
  counted, writes = itertools.count(), {}

  class _Releases(list):
    def append(self, release):
      # Each look at the count takes a number.
      writes[release[0]] = next(counted) - len(writes)

  with small_run.counting(counted):
    _program(directory, way, _Releases())
  writes['end'] = next(counted) - len(writes)
  return writes


@pytest.fixture(scope='module')
def writes(tmp_path_factory):
  return {
    way: _writes(tmp_path_factory.mktemp('whole') / way, way) for way in _WAYS
  }


def _is_interrupted(directory):
  """Whether the ledger has a round that no checkpoint follows."""
  try:
    ledger = ledger_lib.Ledger(directory / run_json.LEDGER_FILE, create=False)
  except ValueError:
    return False
  with ledger:
    done = checkpoints.Checkpoints(directory / run_json.CHECKPOINTS).latest()
    return ledger.last_round() >= done


def _check(directory, releases):
  """Checks that a run ended, and that no noise met two sums."""
  content = report.build(directory).content
  assert content['completed'] and not content['violated']
  verify.verify(directory)
  assert not (directory / run_json.NOISE_KEY).exists()
  by_round = collections.defaultdict(set)
  for t, mean in releases:
    by_round[t].add(mean)
  assert all(len(means) == 1 for means in by_round.values())
  with ledger_lib.Ledger(directory / run_json.LEDGER_FILE) as ledger:
    for t, attempts in ledger.contents().attempts.items():
      assert len({each.sum_digest for each in attempts} - {None}) <= 1, t
  return content['observed']['rounds_burnt']


@pytest.mark.slow
@pytest.mark.parametrize('way', _WAYS)
@pytest.mark.parametrize('then', _WAYS)
@pytest.mark.deep(but=('round-rounds',))
def test_run_that_is_killed_in_any_round_ends(
  writes, tmp_path, way, then, every_write
):
  """Before the sum, and before the checkpoint, of each round; at the end."""
  *sums, end = writes[way].values()
  moments = [sum_ + after for sum_ in sums for after in (-1, 2)]
  for moment in range(end) if every_write else [*moments, end - 2]:
    directory, releases = tmp_path / str(moment), []
    with small_run.killed_at(moment):
      _program(directory, way, releases)
    interrupted = _is_interrupted(directory)
    try:
      _program(directory, then, releases)
    except ValueError as error:
      # The last round was one that only `run.rounds` could have replayed.
      assert (way, then) == ('rounds', 'round')
      assert 'end the run with run.record' in str(error)
      _program(directory, then, releases)
    burnt = _check(directory, releases)
    assert burnt == (interrupted and (way, then) != ('rounds', 'rounds'))


def _killed_after_the_sum(directory, writes, t, way):
  releases = []
  with small_run.killed_at(writes[way][t]):
    _program(directory, way, releases)
  assert releases[-1][0] == t
  return releases


@pytest.mark.parametrize('t', [0, 1, small_run.ROUNDS - 1])
@pytest.mark.parametrize('then', _WAYS)
def test_undrawn_round_is_burnt_by_every_way(writes, tmp_path, t, then):
  releases = _killed_after_the_sum(tmp_path / 'run', writes, t, 'round')
  with run.Run(tmp_path / 'run', small_run.small_plan()) as mine:
    # No way can run it again.
    assert mine.rounds_left == small_run.ROUNDS - t - 1
    attempts = mine._journal.ledger.attempts(t)
    assert attempts[-1].outcome == 'abandoned'
  _program(tmp_path / 'run', then, releases)
  assert _check(tmp_path / 'run', releases) == 1


def test_undrawn_round_is_not_taken_for_a_drawn_one(tmp_path):
  """The round before it was drawn, and stated a population."""
  with small_run.killed_at(-1):
    with run.Run(tmp_path, small_run.small_plan()) as mine:
      total = mine.restore(lambda: np.zeros(3))
      _step(next(mine.rounds(clients=8)), total, [])
      # A kill runs no `finally`, so the round stays referenced.
      came = mine.round(cohort=range(8))
      came.__enter__().release([], np.zeros(3, np.float32))
      raise small_run.Killed
  with run.Run(tmp_path, small_run.small_plan()) as mine:
    assert mine._journal.next == 2
    mine.restore(lambda: np.zeros(3))
    assert next(mine.rounds(clients=8)).index == 2


def test_drawn_round_is_burnt_by_clients_that_come(tmp_path):
  """The very clients that were drawn would send other updates."""
  with run.Run(tmp_path, small_run.small_plan()) as mine:
    drawn = next(mine.rounds(clients=8))
    drawn.release([], np.zeros(3, np.float32))
    with mine.round(cohort=drawn.cohort) as came:
      # They took part in the round before.
      assert came.index == 1 and not len(came.cohort)
      with pytest.raises(ValueError, match='round=0: is not open'):
        drawn.finish(np.ones(3))
      came.finish(came.release([], np.zeros(3, np.float32)))
    assert mine._journal.ledger.observed().burnt == 1


def test_round_that_was_drawn_is_replayed(writes, tmp_path):
  """Opening a run burns no round that `run.rounds` can replay."""
  last = small_run.ROUNDS - 1
  releases = _killed_after_the_sum(tmp_path / 'run', writes, last, 'rounds')
  with run.Run(tmp_path / 'run', small_run.small_plan()) as mine:
    assert mine.rounds_left == 1
  _program(tmp_path / 'run', 'rounds', releases)
  assert [t for t, _ in releases].count(last) == 2
  assert _check(tmp_path / 'run', releases) == 0


def test_ended_run_is_as_it_was_after_every_call(writes, tmp_path):
  """Its last round was burnt, so no checkpoint tells of that round."""
  releases = _killed_after_the_sum(tmp_path, writes, 2, 'round')
  _program(tmp_path, 'round', releases)
  files = 'metrics.csv', 'run.json', 'result.json', 'plan.json'

  def contents():
    with ledger_lib.Ledger(tmp_path / run_json.LEDGER_FILE) as ledger:
      return [(tmp_path / name).read_bytes() for name in files], ledger.head()

  before = contents()
  with run.Run(tmp_path, small_run.small_plan()) as mine:
    assert mine.rounds_left == 0
    mine.restore(lambda: np.zeros(3))
    assert not list(mine.rounds(clients=9))
    with pytest.raises(ValueError, match='round=3: comes after the end'):
      mine.round(cohort=[1]).__enter__()
    mine.record(accuracy=0.5)
  assert contents() == before
  _check(tmp_path, releases)


def test_rows_of_a_run_are_compared_in_one_read(tmp_path):
  """A query for each row took seconds where a run had 2,000 rounds."""
  with run.Run(tmp_path, small_run.small_plan()) as mine:
    _rounds(mine, [])
  with mock.patch.object(
    ledger_lib.Ledger, 'attempts', side_effect=AssertionError
  ):
    with ledger_lib.Ledger(tmp_path / run_json.LEDGER_FILE) as ledger:
      attempts = ledger.contents().attempts
    rows = metrics.exported(tmp_path)
    metrics.Metrics(tmp_path, attempts, [*rows[0]], small_run.ROUNDS)
  assert len(rows) == small_run.ROUNDS
