"""Tests of runs that are killed: a round is replayed, or burnt."""

import contextlib
import errno
import itertools
import os
import pathlib
import shutil
from unittest import mock

import numpy as np
import pytest
import small_run

from tff_bandmf import ledger as ledger_lib
from tff_bandmf import run
from tff_bandmf.noise import exact, generator, released_sums
from tff_bandmf.run import journal
from tff_bandmf.run_files import checkpoints, metrics, run_json

# Fingerprints of two released sums.
_SUMS = '0000000001-0000000002', '0000000001-0000000003'


def test_killed_run_ends_as_an_undisturbed_one(
  monkeypatch, tmp_path, every_write
):
  """Killed at durable writes: three of them, or each for `make kills`.

  In the killed runs alone, most roundings of the noise are in doubt.
  """
  whole = small_run.with_key(tmp_path / 'whole')
  counted = itertools.count()
  with small_run.counting(counted):
    expected = small_run.train_without_tff(whole)
  writes = next(counted)
  assert writes > 5 * small_run.ROUNDS
  decide, decided = exact.Rounding.decide, []
  monkeypatch.setattr(
    exact.Rounding, 'decide', lambda *args: decided.append(1) or decide(*args)
  )
  monkeypatch.setattr(generator, 'ERROR', 2.0**-18)
  for write in range(writes) if every_write else (7, writes // 2, writes - 2):
    directory = small_run.with_key(tmp_path / f'run{write}')
    with small_run.killed_at(write):
      small_run.train_without_tff(directory)
    np.testing.assert_array_equal(
      small_run.train_without_tff(directory), expected
    )
    assert _outcomes(directory) == _outcomes(whole)
  assert len(decided) > 3 * small_run.ROUNDS


def _outcomes(directory):
  """What every round released, and who took part."""
  with ledger_lib.Ledger(directory / run_json.LEDGER_FILE) as ledger:
    return [
      (ledger.attempts(t)[-1].sum_digest, ledger.cohort(t).tolist())
      for t in range(small_run.ROUNDS)
    ]


@pytest.mark.parametrize('moved', [0.0, 0.1])
def test_release_after_a_crash_is_the_same_or_burnt(whole, tmp_path, moved):
  directory = small_run.with_key(tmp_path / 'run')
  with small_run.killed_at(-1):
    with run.Run(directory, small_run.small_plan()) as mine:
      for opened in mine.rounds(clients=8):
        values = [small_run.update_of(client, 0) for client in opened.cohort]
        opened.release(values, values[0])
        raise small_run.Killed

  def data(client, t):
    return small_run.update_of(client, t) + np.float32(moved)

  if moved:
    with pytest.raises(Exception, match='released another sum'):
      small_run.train_without_tff(directory, data)
  total = small_run.train_without_tff(directory, data)
  with ledger_lib.Ledger(directory / run_json.LEDGER_FILE) as ledger:
    assert ledger.observed().burnt == (1 if moved else 0)
  assert moved or (total == whole[1].sum).all()


def test_round_that_met_two_sums_is_not_finished(tmp_path):
  """A program that catches the refusal cannot go on as if it had none."""
  directory = small_run.with_key(tmp_path / 'run')
  with small_run.killed_at(-1):
    with run.Run(directory, small_run.small_plan()) as mine:
      for opened in mine.rounds(clients=8):
        values = [small_run.update_of(client, 0) for client in opened.cohort]
        opened.release(values, values[0])
        raise small_run.Killed
  with run.Run(directory, small_run.small_plan()) as mine:
    opened = next(mine.rounds(clients=8))
    with pytest.raises(Exception, match='released another sum'):
      opened.release([value + 1 for value in values], values[0])
    with pytest.raises(ValueError, match='round=0: had two different sums'):
      opened.finish(0)
  with run.Run(directory, small_run.small_plan()) as mine:
    assert next(mine.rounds(clients=8)).index == 1


def _released_once(directory):
  """Runs round 0 of a program that hands out what it gets at once."""
  with run.Run(directory, small_run.small_plan()) as mine:
    opened = next(mine.rounds(clients=8))
    opened.release([np.ones(3)], np.zeros(3))
    opened.finish(0)


def test_sum_that_only_the_ledger_knows_keeps_others_out(tmp_path):
  """As after a power cut that took the marks and the checkpoint."""
  _released_once(tmp_path)
  for name in 'released', 'checkpoints':
    shutil.rmtree(tmp_path / 'private' / name)
  with run.Run(tmp_path, small_run.small_plan()) as mine:
    opened = next(mine.rounds(clients=8))
    assert opened.index == 0
    with pytest.raises(Exception, match='released another sum'):
      opened.release([np.zeros(3)], np.zeros(3))
  with run.Run(tmp_path, small_run.small_plan()) as mine:
    assert next(mine.rounds(clients=8)).index == 1


def test_mark_of_another_sum_than_the_ledgers_burns_a_round(tmp_path):
  """As where the mark of the first sum was lost."""
  _released_once(tmp_path)
  marks = tmp_path / 'private' / 'released'
  with run.Run(tmp_path, small_run.small_plan()) as mine:
    shutil.rmtree(marks)
    attempts = mine._journal.ledger.attempts(0)
    position = mine._journal.position
    assert not journal._is_burnt(attempts, position.released(0))
    marks.mkdir()
    (marks / '00000000-2-0000000000-0000000001').touch()
    assert journal._is_burnt(attempts, position.released(0))


def test_mark_is_on_the_disk_before_the_mean(tmp_path):
  marks, synced = tmp_path / 'private' / 'released', []

  def sync(handle):
    path = pathlib.Path(os.readlink(f'/proc/self/fd/{handle}'))
    synced.append((path, [each.name for each in marks.glob('*')]))

  with run.Run(tmp_path, small_run.small_plan()) as mine:
    opened = next(mine.rounds(clients=8))
    with mock.patch.object(os, 'fsync', sync):
      opened.release([np.ones(3)], np.zeros(3))
    path, names = synced[-1]
    assert path == marks.resolve()
    assert [name[:11] for name in names] == ['00000000-1-']


def test_full_disk_in_finish_is_what_is_told(tmp_path):
  directory = tmp_path / 'run'
  full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
  with pytest.raises(OSError, match='No space'):
    with run.Run(directory, small_run.small_plan()) as mine:
      opened = next(mine.rounds(clients=8))
      mean = opened.release([np.ones(3)], np.zeros(3))
      with mock.patch.object(metrics.Metrics, 'write', side_effect=full):
        opened.finish(mean)
  with run.Run(directory, small_run.small_plan()) as mine:
    opened = next(mine.rounds(clients=8))
    assert (opened.release([np.ones(3)], np.zeros(3)) == mean).all()
    opened.finish(mean)


@pytest.mark.parametrize(
  'owner, name, error',
  [
    (checkpoints.Checkpoints, 'save', OSError),
    (released_sums.Position, 'forget', KeyboardInterrupt),
  ],
)
def test_round_that_ends_half_way_leaves_a_run_that_goes_on(
  tmp_path, owner, name, error
):
  """Before its checkpoint it is burnt; after it nothing is left to do."""
  with (
    contextlib.suppress(error),
    run.Run(tmp_path, small_run.small_plan()) as mine,
  ):
    with mine.round(cohort=[1, 2]) as opened:
      mean = opened.release([], np.zeros(3))
      with mock.patch.object(owner, name, side_effect=error):
        opened.finish(mean)
  with run.Run(tmp_path, small_run.small_plan(), keep_key=True) as mine:
    state = mine.restore(lambda: np.zeros(3))
    burnt = error is OSError
    assert (state == (0 if burnt else mean)).all()
    with mine.round(cohort=[3]) as opened:
      assert opened.index == 1
      opened.finish(opened.release([], np.zeros(3)))
    observed = mine.report().content['observed']
  assert observed['rounds_burnt'] == burnt


def test_run_without_noise_is_reported_after_a_crash(tmp_path):
  """It claims nothing, and may finish a round with any sum."""
  plan = small_run.small_plan(noise_multiplier=0, delta=None)
  for error in OSError, None:
    with contextlib.suppress(OSError), run.Run(tmp_path, plan) as mine:
      opened = next(mine.rounds(clients=8))
      mean = opened.release([], np.zeros(3))
      with contextlib.ExitStack() as stack:
        if error is not None:
          save = mock.patch.object(
            checkpoints.Checkpoints, 'save', side_effect=error
          )
          stack.enter_context(save)
        opened.finish(mean)
  with run.Run(tmp_path, plan) as mine:
    content = mine.report().content
  assert content['epsilon'] is None
  assert content['observed']['rounds_finished'] == 1


def test_round_is_in_the_ledger_before_it_runs(tmp_path, runtime):
  seen = []
  with run.Run(tmp_path / 'run', small_run.small_plan()) as mine:
    for opened in mine.rounds(clients=8):
      seen.append(mine._journal.ledger.attempts(opened.index)[-1].outcome)
      break
    cohort = mine._journal.ledger.cohort(0).tolist()
  assert seen == ['started'] and cohort == opened.cohort.tolist()


def test_round_whose_replay_differs_is_burnt(tmp_path, runtime):
  directory = tmp_path / 'run'
  small_run.left_after_release(directory)
  # What was seen meets no second sum.
  with pytest.raises(Exception, match='released another sum'):
    small_run.train(
      directory, data=lambda client, t: small_run.update_of(client, t) + 0.1
    )
  seen = []
  small_run.train(
    directory,
    data=lambda client, t: small_run.update_of(client, t) + 0.1,
    seen=seen,
  )
  assert [t for t, _ in seen] == [1, 2]
  with ledger_lib.Ledger(directory / run_json.LEDGER_FILE) as ledger:
    assert ledger.observed().burnt == 1
  with run.Run(directory, small_run.small_plan(), keep_key=True) as mine:
    assert '1 of 3 rounds was burnt' in ''.join(
      mine.report().content['warnings']
    )


def test_round_whose_replay_is_the_same_is_released(whole, tmp_path):
  directory = small_run.with_key(tmp_path / 'run')
  small_run.left_after_release(directory)
  np.testing.assert_array_equal(small_run.train(directory).sum, whole[1].sum)


def test_round_that_a_kill_left_open_is_closed(tmp_path, runtime):
  """Its noise would meet clients that nobody recorded."""
  with small_run.killed_at(-1):
    with run.Run(tmp_path / 'run', small_run.small_plan()) as mine:
      for _ in mine.rounds(clients=8):
        raise small_run.Killed
  with run.Run(tmp_path / 'run', small_run.small_plan()) as mine:
    process = small_run.Process(mine.aggregator)
    state = mine.restore(process.initialize)
    with pytest.raises(Exception, match='no round of this run is open'):
      process.next(state, [np.zeros(3, np.float32)])


def test_round_of_clients_that_came_is_burnt_after_a_crash(tmp_path, runtime):
  directory = tmp_path / 'run'
  with small_run.killed_at(-1):
    with run.Run(directory, small_run.small_plan()) as mine:
      process = small_run.Process(mine.aggregator)
      mine.restore(process.initialize)
      opened = mine.round(cohort=['a', 'b'])
      opened.__enter__()
      raise small_run.Killed
  with run.Run(directory, small_run.small_plan()) as mine:
    process = small_run.Process(mine.aggregator)
    state = mine.restore(process.initialize)
    done, state = small_run.came(mine, process, state, ['a', 'c', 'd'])
    # 'a' took part in the round that is burnt.
    assert (done.index, done.cohort.tolist()) == (1, ['c', 'd'])
    with pytest.raises(RuntimeError, match='mine'):
      with mine.round(cohort=['a']):
        raise RuntimeError('mine')
    assert mine._journal.ledger.observed().burnt == 2


def test_position_of_another_run_is_refused(tmp_path):
  mine, other = (released_sums.Position(tmp_path, run) for run in (1, 2))
  other.open(3, 1, 5)
  with pytest.raises(ValueError, match='no round of this run is open'):
    mine.check(3, 0)
  mine.open(3, 1, 5)
  mine.check(3, 5)
  with pytest.raises(ValueError, match='more updates than the round has'):
    mine.check(3, 6)
  for t in 2, 4, -1:
    with pytest.raises(ValueError, match='no round of this run is open'):
      mine.check(t, 0)
  mine.close()
  for t in 3, -1:
    with pytest.raises(ValueError, match='no round of this run is open'):
      mine.check(t, 0)


def test_position_of_another_run_is_refused_in_a_graph(tmp_path):
  import tensorflow as tf

  from tff_bandmf.noise import graph_released_sums

  mine, other = (released_sums.Position(tmp_path, run) for run in (1, 2))
  other.open(3, 1, 5)
  with pytest.raises(tf.errors.InvalidArgumentError, match='no round of this'):
    graph_released_sums.open_round(mine, tf.constant(0, tf.int64))
  mine.open(3, 1, 5)
  assert (
    graph_released_sums.open_round(mine, tf.constant(0, tf.int64)).numpy() == 3
  )
  assert (
    graph_released_sums.open_round(mine, tf.constant(-1, tf.int64)).numpy()
    == -1
  )


def test_second_sum_of_a_round_is_refused(tmp_path):
  mine = released_sums.Position(pathlib.Path(tmp_path), 1)
  for attempt in 1, 2:
    mine.open(3, attempt, 5)
    mine.mark(_SUMS[0], (4, 1), 3)
  with pytest.raises(ValueError, match='another sum'):
    mine.mark(_SUMS[1], (4, 1), 3)
  _has_met_two_sums(mine)


def test_second_sum_of_a_round_is_refused_in_a_graph(tmp_path):
  """The marks are those of NumPy, and either sees the other's."""
  import tensorflow as tf

  from tff_bandmf.noise import graph_released_sums

  mine = released_sums.Position(pathlib.Path(tmp_path), 1)
  now = tf.constant(3, tf.int64)
  counts = tf.constant([4, 1])
  mine.open(3, 1, 5)
  mine.mark(_SUMS[0], (4, 1), 3)
  mine.open(3, 2, 5)
  released = tf.constant([1, 2], tf.int32)
  passed = graph_released_sums.mark(mine, released, _SUMS[0], counts, now)
  np.testing.assert_array_equal(passed, released)
  with pytest.raises(tf.errors.InvalidArgumentError, match='another sum'):
    graph_released_sums.mark(mine, released + 1, _SUMS[1], counts, now)
  _has_met_two_sums(mine)


def _has_met_two_sums(mine):
  # Two attempts with one sum, and the second one with another.
  assert sorted(attempt for attempt, _ in mine.released(3)) == [1, 2, 2]
  assert len({sum_ for _, sum_ in mine.released(3)}) == 2
  assert mine.updates(3) == {1: (4, 1), 2: (4, 1)}
  mine.forget(4)
  assert not mine.released(3)
