"""Tests of runs: killed anywhere, begun again, with a report at the end."""

import collections
import contextlib
import errno
import itertools
import os
import pathlib
import re
import shutil
import sys
import threading
from unittest import mock

import databases
import jsonschema
import numpy as np
import pytest
import tensorflow_federated as tff

import tff_bandmf
from tff_bandmf import (
  _files,
  accounting,
  participation,
  report,
  run,
  strategies,
)
from tff_bandmf import ledger as ledger_lib
from tff_bandmf.noise import position
from tff_bandmf.run import clients
from tff_bandmf.run_files import checkpoints, folder, metrics, run_json

_ROUNDS = 3
_TYPE = tff.to_type((np.float32, (3,)))
_SECRET = bytes(range(32))


def _plan(**changes):
  return tff_bandmf.Plan(
    **{
      'rounds': _ROUNDS,
      'clients_per_round': 2,
      'cohorts': participation.MinSep(2),
      'delta': 1e-5,
      'l2_norm_clip': 1.0,
      'noise_multiplier': 0.5,
      'mechanism': strategies.BandedToeplitz(_ROUNDS, [1.0, 0.5]),
      **changes,
    }
  )


def _data(client, t):
  """What a client gives; the same whenever it is asked."""
  return np.full(3, 0.1 * client + 0.01 * t, np.float32)


State = collections.namedtuple('State', ['sum', 'aggregator'])


class _Process:
  """A process of nobody's making: its state is the sum of all releases."""

  def __init__(self, factory):
    self._process = factory.create(_TYPE)

  def initialize(self):
    return State(np.zeros(3), self._process.initialize())

  def next(self, state, data):
    output = self._process.next(state.aggregator, data)
    return State(state.sum + output.result, output.state)


def _train(directory, plan=None, data=_data, seen=None):
  """An own loop; returns the last state."""
  with run.Run(directory, plan or _plan(), keep_key=True) as mine:
    process = _Process(mine.aggregator)
    state = mine.restore(process.initialize)
    for opened in mine.rounds(clients=8):
      values = [data(client, opened.index) for client in opened.cohort]
      state = process.next(state, values)
      if seen is not None:
        seen.append((opened.index, state.sum))
      state = opened.finish(state)
    mine.record(total=float(state.sum.sum()))
  return state


def _train_without_tff(directory, data=_data, plan=None):
  with run.Run(directory, plan or _plan(), keep_key=True) as mine:
    total = mine.restore(lambda: np.zeros(3))
    for opened in mine.rounds(clients=8):
      updates = (data(client, opened.index) for client in opened.cohort)
      total = total + opened.release(updates, np.zeros(3, np.float32))
      opened.finish(total)
  return total


def _with_key(directory):
  """Gives a run the same key in every test, for comparison alone."""
  directory.mkdir()
  _files.load_or_create_secret(
    directory / f'{run_json.NOISE_KEY}{run_json.NEW_KEY}',
    32,
    'key',
    lambda _: _SECRET,
  )
  folder.bind(directory, begun=False)
  return directory


@pytest.fixture(scope='module')
def whole(tmp_path_factory, runtime):
  """The folder of an undisturbed run and its last state."""
  directory = _with_key(tmp_path_factory.mktemp('whole') / 'run')
  return directory, _train(directory)


class _Killed(BaseException):
  pass


@contextlib.contextmanager
def _counting(left, end=-1):
  """Counts durable writes, and ends the program at one."""

  def counting(function):
    @contextlib.contextmanager
    def step(*args, **kwargs):
      # The tape's thread is not that of the program.
      mine = threading.current_thread() is threading.main_thread()
      if mine and next(left) == end:
        raise _Killed
      with function(*args, **kwargs) as made:
        yield made

    return step

  with contextlib.ExitStack() as stack:
    for owner, name in (_files, 'replacing'), (ledger_lib.Ledger, '_write'):
      stack.enter_context(
        mock.patch.object(owner, name, counting(getattr(owner, name)))
      )
    yield


@contextlib.contextmanager
def _killed_at(write):
  """Ends the program at a durable write, as kill -9 would: nothing is closed
  but what the system closes."""

  def die(self):
    self._noise_adder.close()
    self._stack.close()

  with contextlib.ExitStack() as stack:
    stack.enter_context(_counting(itertools.count(), write))
    stack.enter_context(mock.patch.object(run.Run, 'close', die))
    stack.enter_context(pytest.raises(_Killed))
    yield
    # It ended before.
    raise _Killed


def test_killed_run_ends_as_an_undisturbed_one(tmp_path, every_write):
  """Killed at durable writes: three of them, or each for `make kills`."""
  whole = _with_key(tmp_path / 'whole')
  counted = itertools.count()
  with _counting(counted):
    expected = _train_without_tff(whole)
  writes = next(counted)
  assert writes > 5 * _ROUNDS
  for write in range(writes) if every_write else (7, writes // 2, writes - 2):
    directory = _with_key(tmp_path / f'run{write}')
    with _killed_at(write):
      _train_without_tff(directory)
    np.testing.assert_array_equal(_train_without_tff(directory), expected)
    assert _outcomes(directory) == _outcomes(whole)


def _outcomes(directory):
  """What every round released, and who took part."""
  with ledger_lib.Ledger(directory / run_json.LEDGER_FILE) as ledger:
    return [
      (ledger.attempts(t)[-1].result, ledger.cohort(t).tolist())
      for t in range(_ROUNDS)
    ]


def test_release_is_that_of_the_aggregator(whole, tmp_path):
  directory = _with_key(tmp_path / 'run')
  np.testing.assert_array_equal(_train_without_tff(directory), whole[1].sum)
  with ledger_lib.Ledger(directory / run_json.LEDGER_FILE) as ledger:
    observed = ledger.observed()
  assert observed.finished == _ROUNDS and not observed.unchecked
  assert observed.z_stddev == pytest.approx(
    _plan().guarantee.z_stddev_per_clip, rel=1e-6
  )


@pytest.mark.slow
def test_adaptive_clip_goes_on_after_a_kill(runtime, tmp_path):
  """Its replays clip as the rounds did, with TFF and without."""
  plan = _plan(l2_norm_clip=tff_bandmf.AdaptiveClip(0.3, rate=2.0))
  expected = _train(_with_key(tmp_path / 'whole'), plan).sum
  rows = []
  for write in range(5, 35, 4):
    directory = _with_key(tmp_path / f'run{write}')
    with _killed_at(write):
      _train_without_tff(directory, plan=plan)
    total = _train_without_tff(directory, plan=plan)
    np.testing.assert_array_equal(total, expected)
    rows.append(metrics.rows(directory))
    assert rows[-1] == rows[0]
  clips = [clip for _, clip in metrics.clips(rows[0])]
  assert len(set(clips)) == _ROUNDS
  directory = _with_key(tmp_path / 'killed')
  with _killed_at(20):
    _train(directory, plan)
  np.testing.assert_array_equal(_train(directory, plan).sum, expected)


def test_adaptive_clip_without_its_metrics_is_refused(tmp_path):
  """The first clip again would be another one than the next round's."""
  plan = _plan(
    rounds=5,
    l2_norm_clip=tff_bandmf.AdaptiveClip(0.3, rate=2.0),
    mechanism='identity',
  )
  path = tmp_path / 'run' / run_json.METRICS_FILE
  like = np.zeros(3, np.float32)
  with run.Run(tmp_path / 'run', plan) as mine:
    for opened in itertools.islice(mine.rounds(clients=8), 2):
      opened.finish(opened.release([], like))
    # Where the program that wrote it goes on nothing is lost.
    rows = path.read_text()
    path.unlink()
    for opened in itertools.islice(mine.rounds(clients=8), 1):
      opened.finish(opened.release([], like))
  assert path.read_text().startswith(rows)
  rows = path.read_text()
  path.unlink()
  with run.Run(tmp_path / 'run', plan) as mine:
    mine.restore(lambda: like)
    opened = next(mine.rounds(clients=8))
    with pytest.raises(ValueError, match='metrics.csv: lacks the clip that r'):
      opened.release([], like)
  path.write_text(rows)
  with run.Run(tmp_path / 'run', plan) as mine:
    mine.restore(lambda: like)
    opened = next(mine.rounds(clients=8))
    opened.finish(opened.release([], like))


def test_adaptive_clip_of_a_process_is_told(runtime, tmp_path):
  plan = _plan(l2_norm_clip=tff_bandmf.AdaptiveClip(0.3), rounds=_ROUNDS)
  with run.Run(tmp_path / 'run', plan) as mine:
    process = mine.aggregator.create(_TYPE)
    state = mine.restore(process.initialize)
    for opened in mine.rounds(clients=8):
      data = [_data(client, opened.index) for client in opened.cohort]
      output = process.next(state, data)
      state = opened.finish(
        output.state,
        {'aggregator': output.measurements, 'released': {'fraction': 0.1}},
      )
    content = mine.report().content
  told = content['adaptive_clip']
  assert told['last_l2_norm_clip'] == state.query_state.clip['l2_norm_clip']
  assert [point['rounds'] for point in told['path']] == [0, 1, 2, 3]
  assert told['path'][0]['l2_norm_clip'] == told['initial'] == 0.3
  assert 'clip.png' in content['plots']
  assert content['l2_norm_clip'] == pytest.approx(0.3 * (1 + 0.14**2) ** 0.5)
  assert content['measured_z_stddev'] == pytest.approx(plan.z_stddev, rel=1e-6)
  # What has noise is not listed among what has none.
  (listed,) = [each for each in content['not_covered'] if 'metrics' in each]
  assert 'released/fraction' in listed
  assert 'aggregator/released' not in listed
  sides = [row['where'] for row in content['side_releases']]
  assert 'metrics.csv, clients' in sides
  assert 'metrics.csv, fraction' not in sides
  assert 'share of updates below the clip' in content['covered']


@pytest.mark.parametrize('moved', [0.0, 0.1])
def test_release_after_a_crash_is_the_same_or_burnt(whole, tmp_path, moved):
  directory = _with_key(tmp_path / 'run')
  with _killed_at(-1):
    with run.Run(directory, _plan()) as mine:
      for opened in mine.rounds(clients=8):
        values = [_data(client, 0) for client in opened.cohort]
        opened.release(values, values[0])
        raise _Killed

  def data(client, t):
    return _data(client, t) + np.float32(moved)

  if moved:
    with pytest.raises(Exception, match='released another sum'):
      _train_without_tff(directory, data)
  total = _train_without_tff(directory, data)
  with ledger_lib.Ledger(directory / run_json.LEDGER_FILE) as ledger:
    assert ledger.observed().burnt == (1 if moved else 0)
  assert moved or (total == whole[1].sum).all()


def test_round_that_met_two_sums_is_not_finished(tmp_path):
  """A program that catches the refusal cannot go on as if it had none."""
  directory = _with_key(tmp_path / 'run')
  with _killed_at(-1):
    with run.Run(directory, _plan()) as mine:
      for opened in mine.rounds(clients=8):
        values = [_data(client, 0) for client in opened.cohort]
        opened.release(values, values[0])
        raise _Killed
  with run.Run(directory, _plan()) as mine:
    opened = next(mine.rounds(clients=8))
    with pytest.raises(Exception, match='released another sum'):
      opened.release([value + 1 for value in values], values[0])
    with pytest.raises(ValueError, match='round=0: met two sums'):
      opened.finish(0)
  with run.Run(directory, _plan()) as mine:
    assert next(mine.rounds(clients=8)).index == 1


def _released_once(directory):
  """Runs round 0 of a program that hands out what it gets at once."""
  with run.Run(directory, _plan()) as mine:
    opened = next(mine.rounds(clients=8))
    opened.release([np.ones(3)], np.zeros(3))
    opened.finish(0)


def test_sum_that_only_the_ledger_knows_keeps_others_out(tmp_path):
  """As after a power cut that took the marks and the checkpoint."""
  _released_once(tmp_path)
  for name in 'released', 'checkpoints':
    shutil.rmtree(tmp_path / 'private' / name)
  with run.Run(tmp_path, _plan()) as mine:
    opened = next(mine.rounds(clients=8))
    assert opened.index == 0
    with pytest.raises(Exception, match='released another sum'):
      opened.release([np.zeros(3)], np.zeros(3))
  with run.Run(tmp_path, _plan()) as mine:
    assert next(mine.rounds(clients=8)).index == 1


def test_mark_of_another_sum_than_the_ledgers_burns_a_round(tmp_path):
  """As where the mark of the first sum was lost."""
  _released_once(tmp_path)
  marks = tmp_path / 'private' / 'released'
  with run.Run(tmp_path, _plan()) as mine:
    shutil.rmtree(marks)
    assert not mine._journal.is_burnt(0)
    marks.mkdir()
    (marks / '00000000-2-0000000000-0000000001').touch()
    assert mine._journal.is_burnt(0)


def test_mark_is_on_the_disk_before_the_mean(tmp_path):
  marks, synced = tmp_path / 'private' / 'released', []

  def sync(handle):
    path = pathlib.Path(os.readlink(f'/proc/self/fd/{handle}'))
    synced.append((path, [each.name for each in marks.glob('*')]))

  with run.Run(tmp_path, _plan()) as mine:
    opened = next(mine.rounds(clients=8))
    with mock.patch.object(os, 'fsync', sync):
      opened.release([np.ones(3)], np.zeros(3))
    path, names = synced[-1]
    assert path == marks.resolve()
    assert [name[:11] for name in names] == ['00000000-1-']


def test_clients_keep_the_kind_of_their_names(tmp_path):
  with run.Run(tmp_path, _plan()) as mine:
    with mine.round(cohort=[1, 2]) as opened:
      opened.finish(opened.release([], np.zeros(3)))
    with pytest.raises(ValueError, match='clients=strings: are not what'):
      with mine.round(cohort=['1', 'a']):
        pass
    with pytest.raises(ValueError, match='clients=8 ids: lack 2 of the 2 c'):
      next(mine.rounds(clients=list('12345678')))


def test_full_disk_in_finish_is_what_is_told(tmp_path):
  directory = tmp_path / 'run'
  full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
  with pytest.raises(OSError, match='No space'):
    with run.Run(directory, _plan()) as mine:
      opened = next(mine.rounds(clients=8))
      mean = opened.release([np.ones(3)], np.zeros(3))
      with mock.patch.object(metrics.Metrics, 'write', side_effect=full):
        opened.finish(mean)
  with run.Run(directory, _plan()) as mine:
    opened = next(mine.rounds(clients=8))
    assert (opened.release([np.ones(3)], np.zeros(3)) == mean).all()
    opened.finish(mean)


@pytest.mark.parametrize(
  'owner, name, error',
  [
    (checkpoints.Checkpoints, 'save', OSError),
    (position.Position, 'forget', KeyboardInterrupt),
  ],
)
def test_round_that_ends_half_way_leaves_a_run_that_goes_on(
  tmp_path, owner, name, error
):
  """Before its checkpoint it is burnt; after it nothing is left to do."""
  with contextlib.suppress(error), run.Run(tmp_path, _plan()) as mine:
    with mine.round(cohort=[1, 2]) as opened:
      mean = opened.release([], np.zeros(3))
      with mock.patch.object(owner, name, side_effect=error):
        opened.finish(mean)
  with run.Run(tmp_path, _plan(), keep_key=True) as mine:
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
  plan = _plan(noise_multiplier=0, delta=None)
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


def test_report_of_a_run_claims_its_plan(whole):
  directory, state = whole
  with run.Run(directory, _plan()) as mine:
    mine.note(tuning='none', data='numbers')
    found = mine.report()
  assert found.content['completed'] and not found.content['violated']
  assert found.content['observed']['rounds_finished'] == _ROUNDS
  assert found.content['data_accesses']['tuning'] == 'none'
  assert found.content['epsilon'] == _plan().guarantee.epsilon(1e-5)
  assert 'epsilon = ' in found.statement
  assert found.content['population'] == 8


def _release(directory, plan, after=()):
  """A round of one client without TFF, and the report."""
  with run.Run(directory, plan, after=after) as mine:
    with mine.round(cohort=['a']) as opened:
      opened.finish(opened.release([], np.zeros(3)))
    return mine.report()


def test_run_claims_what_it_and_those_before_it_guarantee(tmp_path):
  first = _release(tmp_path / 'first', _plan())
  assert first.content['together'] is None
  second = _release(tmp_path / 'second', _plan(), [tmp_path / 'first'])
  together = second.content['together']
  assert together['runs'] == ['second', '../first']
  assert together['epsilon'] > 1.2 * second.content['epsilon']
  with run.Run(
    tmp_path / 'second', _plan(), after=[tmp_path / 'first']
  ) as mine:
    found = accounting.compose([mine, _plan()])
    # Of the first run too, which this one comes after.
    assert mine.guarantee.epsilon(1e-5) == together['epsilon']
  assert found.guarantees[0].epsilon(1e-5) == second.content['epsilon']
  assert len(found.guarantees) == 3
  # One round each: its chain says what the run held to.
  assert 'in whose chain' in second.content['assumptions'][0]['checked']
  for after, message in (
    ([], 'after=None'),
    ([tmp_path / 'second'], 'is the run itself'),
    ([tmp_path / 'none'], 'has no run.json'),
  ):
    with pytest.raises(ValueError, match=message):
      run.Run(tmp_path / 'second', _plan(), after=after)
  with pytest.raises(ValueError, match='clients_per_unit=2: is 1 in .*first'):
    run.Run(
      tmp_path / 'third',
      _plan(clients_per_unit=2),
      after=[tmp_path / 'first'],
    )


def test_simulated_run_says_that_it_is_one(tmp_path):
  plan = _plan(noise_multiplier=50.0, stands_for=20)
  found = _release(tmp_path / 'run', plan)
  for text in found.markdown().split('\n')[0], found.content['warnings'][0]:
    assert 'SIMULATED' in text
  for text in found.statement, found.content['summary']:
    assert text.startswith('SIMULATED')
  # What is claimed is what one round of two clients gets.
  mine = plan.guarantee
  assert found.content['z_stddev'] == pytest.approx(mine.z_stddev_per_clip)
  assert found.content['epsilon'] <= mine.epsilon(1e-5)
  assert plan.simulated.epsilon(1e-5) < found.content['epsilon'] / 4
  assert found.content['setting'].startswith('SIMULATED: 2 clients a round')


def _key_row(found):
  rows = found.content['assumptions']
  (row,) = [row for row in rows if 'its key is secret' in row['assumption']]
  return row['checked']


@pytest.mark.parametrize('keep_key', [False, True])
def test_key_ends_with_the_run_and_the_report_says_so(tmp_path, keep_key):
  plan = _plan(rounds=1, cohorts=participation.Single(), mechanism='identity')
  directory = tmp_path / 'run'
  with run.Run(directory, plan, keep_key=keep_key) as mine:
    with mine.round(cohort=['a']) as opened:
      opened.finish(opened.release([], np.zeros(3)))
    assert _key_row(mine.report()) == 'not checked here'
    mine.record()
    told = 'kept' if keep_key else 'destroyed'
    assert _key_row(mine.report()).startswith(told)
    assert (directory / run_json.NOISE_KEY).exists() == keep_key
    for wanted in 'ledger.key', 'lock':
      assert (directory / 'private' / wanted).exists()


def test_identifiers_can_be_erased(tmp_path):
  plan = _plan(rounds=1, cohorts=participation.Single(), mechanism='identity')
  directory = tmp_path / 'run'
  with run.Run(directory, plan) as mine:
    with mine.round(cohort=['a', 'b']) as opened:
      opened.finish(opened.release([], np.zeros(3)))
    with pytest.raises(ValueError, match='erase_identifiers=round 1: comes'):
      mine.erase_identifiers()
    mine.record(test_accuracy=0.5)
    mine.erase_identifiers()
  with run.Run(directory, plan) as mine:
    found = mine.report().content
    assert not list(mine.rounds(clients=['a', 'b']))
  assert not (directory / run_json.LEDGER_KEY).exists()
  assert found['observed']['clients'] == 2 and found['completed']
  assert 'hashes of clients, under a key that is gone' in [
    row['what'] for row in found['side_releases']
  ]


def test_process_that_passes_the_aggregator_is_refused(tmp_path):
  process = tff.aggregators.SumFactory().create(_TYPE)
  with run.Run(tmp_path / 'run', _plan()) as mine:
    with pytest.raises(ValueError, match='0 releases of a dp_aggregator'):
      next(mine.train(process, None, clients=8))


def test_process_that_nobody_checked_leads_the_report(whole):
  """An own loop may let the model take a mean of raw updates."""
  directory, _ = whole
  made = report.build(directory)
  assert made.content['process_checked'] is False
  assert made.content['warnings'][0].startswith('NOT CHECKED: the process of')
  assert made.statement.startswith('Not checked: what the process lets past')
  assert made.content['summary'].startswith('Not checked: ')
  public = report.publish([report.source.of_run(directory)])
  assert public.content['warnings'][0].startswith('NOT CHECKED: the process of')
  jsonschema.validate(made.content, report.json_schema())


def test_releases_without_a_process_need_no_check(tmp_path):
  _train_without_tff(tmp_path / 'run')
  made = report.build(tmp_path / 'run')
  assert made.content['process_checked'] is None
  assert not any('CHECKED' in each for each in made.content['warnings'])
  assert made.statement.startswith('Let M')
  (row,) = [
    each
    for each in made.content['assumptions']
    if 'passes' in each['assumption']
  ]
  assert row['checked'].startswith('no process: the program gave each update')


def test_one_round_of_an_unchecked_process_is_enough(tmp_path, runtime):
  """Two rounds are checked, one is not: nobody knows what that one did."""
  for check in True, False:
    with run.Run(tmp_path / 'run', _plan(), keep_key=True) as mine:
      process = mine.aggregator.create(_TYPE)
      if check:
        mine.check(process)
      state = mine.restore(process.initialize)
      for opened in itertools.islice(mine.rounds(clients=8), 2 if check else 9):
        data = [_data(client, opened.index) for client in opened.cohort]
        state = opened.finish(process.next(state, data).state)
      content = mine.report().content
    assert content['process_checked'] is check


def test_run_that_ended_gives_its_state_and_no_round(whole):
  directory, expected = whole
  state = _train(directory, seen=(seen := []))
  np.testing.assert_array_equal(state.sum, expected.sum)
  assert not seen


def test_noise_is_that_of_the_plan(whole):
  directory, _ = whole
  with ledger_lib.Ledger(directory / run_json.LEDGER_FILE) as ledger:
    observed = ledger.observed()
  assert observed.z_stddev == pytest.approx(
    _plan().guarantee.z_stddev_per_clip, rel=1e-6
  )
  assert not observed.unchecked and not observed.unmeasured


def test_noise_of_units_of_several_is_that_of_the_plan(tmp_path):
  plan = _plan(clients_per_unit=3)
  with run.Run(tmp_path / 'run', plan) as mine:
    mine.aggregator.create(_TYPE)
    # As near as the lattice is to the clip.
    assert mine.aggregator.z_stddev == pytest.approx(plan.z_stddev, rel=1e-6)
  found = _release(tmp_path / 'other', plan)
  assert found.content['clients_per_unit'] == 3
  assert 'one unit of privacy, with at most 3 clients' in found.markdown()
  assert found.content['measured_z_stddev'] == pytest.approx(plan.z_stddev)


def test_plan_that_cannot_be_filled_starts_no_round(tmp_path):
  with run.Run(tmp_path / 'run', _plan()) as mine:
    with pytest.raises(ValueError, match='clients=3: cannot fill 3 rounds of'):
      next(mine.rounds(clients=3))
    assert mine.report().content['observed']['rounds'] == 0


def test_round_is_in_the_ledger_before_it_runs(tmp_path, runtime):
  seen = []
  with run.Run(tmp_path / 'run', _plan()) as mine:
    for opened in mine.rounds(clients=8):
      seen.append(mine._journal.ledger.attempts(opened.index)[-1].outcome)
      break
    cohort = mine._journal.ledger.cohort(0).tolist()
  assert seen == ['started'] and cohort == opened.cohort.tolist()


def _left_after_release(directory, data=_data):
  """A program that dies when it has seen the sum of round 0."""
  with _killed_at(-1):
    with run.Run(directory, _plan()) as mine:
      process = _Process(mine.aggregator)
      state = mine.restore(process.initialize)
      for opened in mine.rounds(clients=8):
        process.next(state, [data(client, 0) for client in opened.cohort])
        raise _Killed


def test_round_whose_replay_differs_is_burnt(tmp_path, runtime):
  directory = tmp_path / 'run'
  _left_after_release(directory)
  # What was seen meets no second sum.
  with pytest.raises(Exception, match='released another sum'):
    _train(directory, data=lambda client, t: _data(client, t) + 0.1)
  seen = []
  _train(directory, data=lambda client, t: _data(client, t) + 0.1, seen=seen)
  assert [t for t, _ in seen] == [1, 2]
  with ledger_lib.Ledger(directory / run_json.LEDGER_FILE) as ledger:
    assert ledger.observed().burnt == 1
  with run.Run(directory, _plan(), keep_key=True) as mine:
    assert '1 of 3 rounds was burnt' in ''.join(
      mine.report().content['warnings']
    )


def test_round_whose_replay_is_the_same_is_released(whole, tmp_path):
  directory = _with_key(tmp_path / 'run')
  _left_after_release(directory)
  np.testing.assert_array_equal(_train(directory).sum, whole[1].sum)


def test_clients_in_another_order_are_drawn_as_before(tmp_path, runtime):
  ids = [f'client {i}' for i in range(8)]
  cohorts = []
  for order in ids, ids[::-1]:
    with run.Run(tmp_path / 'run', _plan()) as mine:
      for opened in mine.rounds(clients=order):
        cohorts.append(opened.cohort.tolist())
        break
  assert cohorts[0] == cohorts[1] and cohorts[0][0].startswith('client')


def test_round_past_the_aggregator_is_not_finished(tmp_path, runtime):
  with run.Run(tmp_path / 'run', _plan()) as mine:
    for opened in mine.rounds(clients=8):
      with pytest.raises(ValueError, match='released nothing through'):
        opened.finish(np.zeros(3))
      break
    assert mine._journal.ledger.observed().finished == 0


def test_ledger_is_where_it_is_said_to_be(tmp_path):
  elsewhere, mine = tmp_path / 'elsewhere', tmp_path / 'run'
  elsewhere.mkdir()
  url = elsewhere / 'who.sqlite'
  for round_index in range(2):
    with run.Run(mine, _plan(), ledger=url, keep_key=True) as started:
      started.restore(lambda: np.zeros(3))
      with started.round(cohort=[f'{round_index}']) as opened:
        opened.finish(opened.release([], np.zeros(3)))
  # It is remembered, as a secret, and the report reads it.
  with run.Run(mine, _plan(), keep_key=True) as again:
    assert again.report().content['observed']['rounds_finished'] == 2
  assert not (mine / run_json.LEDGER_FILE).exists()
  assert not (elsewhere / 'private').exists()
  assert (mine / run_json.LEDGER_KEY).exists()
  assert (mine / run_json.LEDGER_URL).stat().st_mode & 0o777 == 0o600
  # Another ledger is not taken for it, and what was said stays.
  with run.Run(tmp_path / 'other', _plan()):
    other = tmp_path / 'other' / run_json.LEDGER_FILE
  with pytest.raises(ValueError, match='that of another run'):
    run.Run(mine, _plan(), ledger=other)
  assert (mine / run_json.LEDGER_URL).read_text() == str(url)


@pytest.mark.slow
def test_ledger_is_in_a_server(postgresql, tmp_path):
  url = databases.schema(postgresql, tmp_path)['url']
  with run.Run(tmp_path / 'run', _plan(), ledger=url, keep_key=True) as mine:
    with mine.round(cohort=['a', 'b']) as opened:
      opened.finish(opened.release([], np.zeros(3)))
    observed = mine.report().content['observed']
  assert (observed['clients'], observed['rounds_finished']) == (2, 1)


class _ClientData:
  client_ids = ['b', 'a', 'c']


def test_population_is_a_count_or_ids():
  assert clients.population(2).tolist() == [0, 1]
  assert clients.population(_ClientData()).tolist() == ['a', 'b', 'c']
  with pytest.raises(ValueError, match='only 2 different'):
    clients.population(['a', 'b', 'a'])
  for wrong in True, 2.5, [0.5], {'a': 1}:
    with pytest.raises(TypeError, match='clients?='):
      clients.population(wrong)


def test_past_the_last_round_the_way_on_is_told(whole):
  directory, _ = whole
  on = 'make a new plan and run it in another folder.*bandmf compose'
  with run.Run(directory, _plan(), keep_key=True) as mine:
    with pytest.raises(ValueError, match=f'round=3: is past the last.*{on}'):
      with mine.round(cohort=['a']):
        pass
    assert not list(mine.rounds(clients=8))
  more = _plan(rounds=4, mechanism=strategies.BandedToeplitz(4, [1.0, 0.5]))
  with pytest.raises(ValueError, match=f'rounds=4: is not what.*{on}'):
    run.Run(directory, more)


@pytest.fixture
def opened(tmp_path):
  with run.Run(tmp_path / 'run', _plan(), keep_key=True) as mine:
    with mine.round(cohort=['a']) as opened:
      yield opened


def test_more_updates_than_clients_are_refused(opened):
  with pytest.raises(ValueError, match='more than the 1 clients of the round'):
    opened.release([np.zeros(3)] * 2, np.zeros(3))
  assert not opened._journal._position.released(0)


def test_more_updates_than_clients_are_refused_with_tff(tmp_path, runtime):
  """A second update would be of a client that the ledger lacks."""
  with run.Run(tmp_path / 'run', _plan(), keep_key=True) as mine:
    process = _Process(mine.aggregator)
    state = mine.restore(process.initialize)
    with mine.round(cohort=['a']) as opened:
      with pytest.raises(Exception, match='more updates than the round has'):
        process.next(state, [_data(0, 0)] * 2)
      assert not mine._journal._position.released(0)
      # Nothing was released, so the right sum may be.
      opened.finish(process.next(state, [_data(0, 0)]))
      assert (opened.updates, opened.without_effect) == (1, 1)


def test_update_of_another_shape_is_refused(opened):
  for update in np.ones(1), np.float64(1.0), [1.0] * 3, {'a': np.ones(3)}:
    with pytest.raises(ValueError, match='has other shapes than `like`'):
      opened.release([update], np.zeros(3))
  # The first `like` is that of the run.
  with pytest.raises(ValueError, match='has other shapes than `like`'):
    opened.release([np.ones(1)], np.zeros(1))


def test_round_that_is_over_releases_nothing(opened):
  mean = opened.release([], {'w': np.zeros((2, 1), np.float32)})
  # Nobody's update came: it is noise.
  assert mean['w'].shape == (2, 1) and mean['w'].dtype == np.float32
  assert mean['w'].any()
  opened.finish(mean)
  with pytest.raises(ValueError, match='round=0: is not open'):
    opened.release([], mean)


def test_round_that_was_not_finished_stops_the_loop(tmp_path, runtime):
  with run.Run(tmp_path / 'run', _plan()) as mine:
    with pytest.raises(ValueError, match='round=0: was not finished'):
      for _ in mine.rounds(clients=8):
        pass
  with run.Run(tmp_path / 'run', _plan()) as mine:
    assert [each.outcome for each in mine._journal.ledger.attempts(0)] == [
      'failed'
    ]


def test_aggregator_outside_of_a_round_releases_nothing(tmp_path, runtime):
  with run.Run(tmp_path / 'run', _plan()) as mine:
    process = _Process(mine.aggregator)
    state = mine.restore(process.initialize)
    with pytest.raises(Exception, match='no round of this run is open'):
      process.next(state, [np.zeros(3, np.float32)])


def test_round_that_a_kill_left_open_is_closed(tmp_path, runtime):
  """Its noise would meet clients that nobody recorded."""
  with _killed_at(-1):
    with run.Run(tmp_path / 'run', _plan()) as mine:
      for _ in mine.rounds(clients=8):
        raise _Killed
  with run.Run(tmp_path / 'run', _plan()) as mine:
    process = _Process(mine.aggregator)
    state = mine.restore(process.initialize)
    with pytest.raises(Exception, match='no round of this run is open'):
      process.next(state, [np.zeros(3, np.float32)])


def _came(mine, process, state, ids):
  with mine.round(cohort=ids) as opened:
    values = [np.ones(3, np.float32)] * len(opened.cohort)
    return opened, opened.finish(process.next(state, values))


def test_clients_that_come_are_admitted_by_the_plan(tmp_path, runtime):
  with run.Run(tmp_path / 'run', _plan()) as mine:
    process = _Process(mine.aggregator)
    state = mine.restore(process.initialize)
    first, state = _came(mine, process, state, ['a', 'b', 'c', 'a'])
    second, state = _came(mine, process, state, ['a', 'd'])
  assert (first.cohort.tolist(), first.refused) == (['a', 'b'], 2)
  assert (second.cohort.tolist(), second.refused) == (['d'], 1)


def test_round_of_clients_that_came_is_burnt_after_a_crash(tmp_path, runtime):
  directory = tmp_path / 'run'
  with _killed_at(-1):
    with run.Run(directory, _plan()) as mine:
      process = _Process(mine.aggregator)
      mine.restore(process.initialize)
      opened = mine.round(cohort=['a', 'b'])
      opened.__enter__()
      raise _Killed
  with run.Run(directory, _plan()) as mine:
    process = _Process(mine.aggregator)
    state = mine.restore(process.initialize)
    done, state = _came(mine, process, state, ['a', 'c', 'd'])
    # 'a' took part in the round that is burnt.
    assert (done.index, done.cohort.tolist()) == (1, ['c', 'd'])
    with pytest.raises(RuntimeError, match='mine'):
      with mine.round(cohort=['a']):
        raise RuntimeError('mine')
    assert mine._journal.ledger.observed().burnt == 2


def test_learning_process_is_trained_by_the_run(tmp_path, runtime, capsys):
  def dataset(client, t):
    import tensorflow as tf

    x = np.full([4, 1], 0.1 * client, np.float32)
    return tf.data.Dataset.from_tensor_slices((x, 3 * x)).batch(2)

  def model():
    import tensorflow as tf

    return tff.learning.models.functional_model_from_keras(
      tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=[1])]),
      tf.keras.losses.MeanSquaredError(),
      dataset(0, 0).element_spec,
    )

  indices = []
  for stop in 2, _ROUNDS:
    with run.Run(tmp_path / 'run', _plan()) as mine:
      process = tff.learning.algorithms.build_unweighted_fed_avg(
        model(),
        tff.learning.optimizers.build_sgdm(0.1),
        tff.learning.optimizers.build_sgdm(1.0),
        model_aggregator=mine.aggregator,
      )
      for done in mine.train(process, dataset, clients=8):
        indices.append(done.round)
        assert done.metrics['aggregator']['free']['noise_checked']
        if done.round + 1 == stop:
          break
  assert indices == [0, 1, 2]
  shown = capsys.readouterr().err
  epsilons = [float(each) for each in re.findall('epsilon ([0-9.]+)', shown)]
  assert '3/3' in shown
  # Rounded up: the nearest of four digits is below the bound of three rounds.
  spent = _plan().spent(3)
  assert float(f'{spent:.4g}') < spent <= epsilons[-1] < 1.001 * spent
  with run.Run(tmp_path / 'run', _plan()) as mine:
    assumptions = mine.report().content['assumptions']
    assert mine.report().content['process_checked'] is True
  (row,) = [each for each in assumptions if 'passes' in each['assumption']]
  assert row['checked'].endswith('past the aggregator: nothing')


def test_updates_that_add_nothing_are_named(tmp_path, runtime, capsys):
  """All updates are NaN: TFF makes them zero, and the model is noise."""
  import tensorflow as tf

  def dataset(client, t):
    x = np.full([4, 1], np.nan if t < 2 else client + 1, np.float32)
    return tf.data.Dataset.from_tensor_slices((x, x)).batch(2)

  model = tff.learning.models.functional_model_from_keras(
    tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=[1])]),
    tf.keras.losses.MeanSquaredError(),
    dataset(0, 0).element_spec,
  )
  with run.Run(tmp_path / 'run', _plan(noise_multiplier=99.0)) as mine:
    process = tff.learning.algorithms.build_unweighted_fed_avg(
      model,
      tff.learning.optimizers.build_sgdm(0.1),
      tff.learning.optimizers.build_sgdm(1e-9),
      model_aggregator=mine.aggregator,
    )
    for _ in mine.train(process, dataset, clients=8):
      pass
    mine.record(accuracy=0.25)
    made = mine.report()
  shown = capsys.readouterr().err
  assert shown.count('WARNING: all updates of round 0 were zero or not') == 1
  # The size of the model is known as soon as the process is there.
  assert shown.count('WARNING: the noise drowns the updates') == 1
  assert run_json.ALL_ZERO in made.content['not_covered']
  assert any(
    'released noise alone' in each for each in made.content['warnings']
  )
  # A recorded result is shown, whatever its name.
  (row,) = made.content['runs']
  assert row['results'] == {'accuracy': 0.25}
  assert 'accuracy 0.25' in made.markdown() and 'accuracy 0.25' in made.html()


def test_refusal_is_one_line(opened):
  opened.release([np.ones(3)], np.zeros(3))
  with pytest.raises(ValueError, match='has released another sum') as refused:
    opened.release([], np.zeros(3))
  assert '\n' not in str(refused.value)


def test_release_names_what_is_not_installed(opened, monkeypatch):
  for name in list(sys.modules):
    if name.startswith('tff_bandmf.query'):
      monkeypatch.delitem(sys.modules, name)
  monkeypatch.delattr('tff_bandmf.query')
  monkeypatch.setitem(sys.modules, 'tensorflow_privacy', None)
  with pytest.raises(
    ImportError, match=r"=not installed: .*release.*'.\[tff\]'"
  ):
    opened.release([np.ones(3)], np.zeros(3))


def test_metrics_stay_private_and_are_named(tmp_path, runtime):
  directory = tmp_path / 'run'
  with run.Run(directory, _plan()) as mine:
    process = _Process(mine.aggregator)
    state = mine.restore(process.initialize)
    for opened in mine.rounds(clients=8):
      state = process.next(state, [_data(client, 0) for client in (1, 2)])
      metrics = {
        'train': {'loss': np.float32(0.25)},
        'aggregator': {'free': {'clip': 0.5}},
      }
      opened.finish(state, metrics=metrics)
      break
    found = mine.report().content
  # What is the same whatever the updates are is no access to data.
  assert not any('free' in item for item in found['not_covered'])
  assert 'metrics of rounds, without noise: train/loss' in found['not_covered']
  assert '0.25' in (directory / 'private/metrics/00000000.json').read_text()
  public = [path for path in directory.iterdir() if path.is_file()]
  assert not any(b'0.25' in path.read_bytes() for path in public)


def test_position_of_another_run_is_refused(tmp_path):
  import tensorflow as tf

  mine, other = (position.Position(tmp_path, run) for run in (1, 2))
  other.open(3, 1, 5)
  with pytest.raises(tf.errors.InvalidArgumentError, match='no round of this'):
    mine.round_index(tf.constant(0, tf.int64))
  mine.open(3, 1, 5)
  assert mine.round_index(tf.constant(0, tf.int64)).numpy() == 3
  assert mine.round_index(tf.constant(-1, tf.int64)).numpy() == -1


def test_second_sum_of_a_round_is_refused(tmp_path):
  import tensorflow as tf

  mine = position.Position(pathlib.Path(tmp_path), 1)
  now = tf.constant(3, tf.int64)
  mine.open(3, 1, 5)
  counts = tf.constant([4, 1])
  released = tf.constant([1, 2], tf.int32)
  for attempt in 1, 2:
    mine.open(3, attempt, 5)
    np.testing.assert_array_equal(mine.mark(released, counts, now), released)
  with pytest.raises(tf.errors.InvalidArgumentError, match='another sum'):
    mine.mark(released + 1, counts, now)
  # Two attempts with one sum, and the second one with another.
  assert sorted(attempt for attempt, _ in mine.released(3)) == [1, 2, 2]
  assert len({sum_ for _, sum_ in mine.released(3)}) == 2
  assert mine.updates(3) == {1: (4, 1), 2: (4, 1)}
  mine.forget(4)
  assert not mine.released(3)


def test_other_plan_is_refused(whole):
  with pytest.raises(ValueError, match='noise_multiplier=0.4: is not what'):
    run.Run(whole[0], _plan(noise_multiplier=0.4))
