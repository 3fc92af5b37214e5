"""Tests of runs: noise, updates, clients, plans and the loop."""

import itertools
import math
import re

import databases
import numpy as np
import pytest
import small_run
import tensorflow_federated as tff

from tff_bandmf import ledger as ledger_lib
from tff_bandmf import (
  report,
  run,
  strategies,
  verify,
)
from tff_bandmf.audit import arithmetic_attacks
from tff_bandmf.cli import main
from tff_bandmf.noise.producer import stream
from tff_bandmf.run import clients
from tff_bandmf.run_files import run_json


def test_release_is_that_of_the_aggregator(whole, tmp_path):
  directory = small_run.with_key(tmp_path / 'run')
  np.testing.assert_array_equal(
    small_run.train_without_tff(directory), whole[1].sum
  )
  with ledger_lib.Ledger(directory / run_json.LEDGER_FILE) as ledger:
    observed = ledger.observed()
  assert observed.finished == small_run.ROUNDS and not observed.unchecked
  assert observed.z_stddev == pytest.approx(
    small_run.small_plan().guarantee.z_stddev_per_clip, rel=1e-6
  )


def test_clients_keep_the_kind_of_their_names(tmp_path):
  with run.Run(tmp_path, small_run.small_plan()) as mine:
    with mine.round(cohort=[1, 2]) as opened:
      opened.finish(opened.release([], np.zeros(3)))
    with pytest.raises(ValueError, match='clients=strings: differ in kind'):
      with mine.round(cohort=['1', 'a']):
        pass
    with pytest.raises(ValueError, match='clients=8 ids: lack 2 of the 2 c'):
      next(mine.rounds(clients=list('12345678')))


@pytest.mark.slow
def test_c_of_ones_own_is_trained_reported_verified_and_audited(
  tmp_path, capfd, monkeypatch
):
  # As many as 2^30 normals have, which arithmetic_attacks_test draws.
  monkeypatch.setattr(arithmetic_attacks, 'beyond', lambda *_: 15)
  mine = strategies.custom(columns=[[1.0, 0.4], [1.2, 0.3], [0.9, 0.0]])
  path = tmp_path / 'mine.npz'
  strategies.save(mine, path)
  directory = tmp_path / 'run'
  small_run.train(directory, small_run.small_plan(mechanism=path))
  written = report.write(directory)
  assert written['family'] == 'custom' and written['completed']
  verified = verify.verify(directory)
  assert verified['epsilon'] == pytest.approx(written['epsilon'], rel=1e-6)
  trained, _ = strategies.load(directory / run_json.STRATEGY_FILE)
  assert trained.digest() == mine.digest()
  flags = '--min-sep 2 --noise-multiplier 0.5 --delta 1e-5 --canaries 100'
  assert main.main(f'audit {path} {flags} --json'.split()) == 0
  assert '"custom"' in capfd.readouterr().out


def _release(directory, plan, after=()):
  """A round of one client without TFF, and the report."""
  with run.Run(directory, plan, after=after) as mine:
    with mine.round(cohort=['a']) as opened:
      opened.finish(opened.release([], np.zeros(3)))
    return mine.report()


def test_run_that_ended_gives_its_state_and_no_round(whole):
  directory, expected = whole
  state = small_run.train(directory, seen=(seen := []))
  np.testing.assert_array_equal(state.sum, expected.sum)
  assert not seen


def test_noise_is_that_of_the_plan(whole):
  directory, _ = whole
  with ledger_lib.Ledger(directory / run_json.LEDGER_FILE) as ledger:
    observed = ledger.observed()
  assert observed.z_stddev == pytest.approx(
    small_run.small_plan().guarantee.z_stddev_per_clip, rel=1e-6
  )
  assert not observed.unchecked
  assert all(tried[-1].z_stddev for tried in observed.attempts.values())


def test_noise_keeps_the_copies_of_the_plan(tmp_path, runtime, monkeypatch):
  """A run without past noise has the bits of a run with it."""
  kept, checked = [], stream._checked_copies

  def spy(recursion, most):
    kept.append(checked(recursion, most))
    return kept[-1]

  monkeypatch.setattr(stream, '_checked_copies', spy)
  totals = []
  for copies in None, 0:
    plan = small_run.small_plan(
      mechanism=strategies.DpCgd(small_run.ROUNDS, 0.5), memory_copies=copies
    )
    folders = [
      small_run.with_key(tmp_path / f'{how} {copies}') for how in ('tff', 'np')
    ]
    totals.append(small_run.train(folders[0], plan).sum)
    totals.append(small_run.train_without_tff(folders[1], plan=plan))
  assert kept == [1, 1, 0, 0]
  for total in totals[1:]:
    np.testing.assert_array_equal(total, totals[0])


def test_noise_of_units_of_several_is_that_of_the_plan(tmp_path):
  plan = small_run.small_plan(clients_per_unit=3)
  with run.Run(tmp_path / 'run', plan) as mine:
    mine.aggregator.create(small_run.TYPE)
    # As near as the lattice is to the clip.
    assert mine.aggregator.z_stddev == pytest.approx(plan.z_stddev, rel=1e-6)
  found = _release(tmp_path / 'other', plan)
  assert found.content['clients_per_unit'] == 3
  assert 'one unit of privacy, with at most 3 clients' in found.markdown()
  assert found.content['measured_z_stddev'] == pytest.approx(plan.z_stddev)


def test_plan_that_cannot_be_filled_starts_no_round(tmp_path):
  with run.Run(tmp_path / 'run', small_run.small_plan()) as mine:
    with pytest.raises(ValueError, match='clients=3: cannot fill 3 rounds of'):
      next(mine.rounds(clients=3))
    assert mine.report().content['observed']['rounds'] == 0


def test_clients_in_another_order_are_drawn_as_before(tmp_path, runtime):
  ids = [f'client {i}' for i in range(8)]
  cohorts = []
  for order in ids, ids[::-1]:
    with run.Run(tmp_path / 'run', small_run.small_plan()) as mine:
      for opened in mine.rounds(clients=order):
        cohorts.append(opened.cohort.tolist())
        break
  assert cohorts[0] == cohorts[1] and cohorts[0][0].startswith('client')


def test_round_past_the_aggregator_is_not_finished(tmp_path, runtime):
  with run.Run(tmp_path / 'run', small_run.small_plan()) as mine:
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
    with run.Run(
      mine, small_run.small_plan(), ledger=url, keep_key=True
    ) as started:
      started.restore(lambda: np.zeros(3))
      with started.round(cohort=[f'{round_index}']) as opened:
        opened.finish(opened.release([], np.zeros(3)))
  # It is remembered, as a secret, and the report reads it.
  with run.Run(mine, small_run.small_plan(), keep_key=True) as again:
    assert again.report().content['observed']['rounds_finished'] == 2
  assert not (mine / run_json.LEDGER_FILE).exists()
  assert not (elsewhere / 'private').exists()
  assert (mine / run_json.LEDGER_KEY).exists()
  assert (mine / run_json.LEDGER_URL).stat().st_mode & 0o777 == 0o600
  # Another ledger is not taken for it, and what was said stays.
  with run.Run(tmp_path / 'other', small_run.small_plan()):
    other = tmp_path / 'other' / run_json.LEDGER_FILE
  with pytest.raises(ValueError, match='bound to another run'):
    run.Run(mine, small_run.small_plan(), ledger=other)
  assert (mine / run_json.LEDGER_URL).read_text() == str(url)


@pytest.mark.slow
def test_ledger_is_in_a_server(postgresql, tmp_path):
  url = databases.schema(postgresql, tmp_path)['url']
  with run.Run(
    tmp_path / 'run', small_run.small_plan(), ledger=url, keep_key=True
  ) as mine:
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
  with run.Run(directory, small_run.small_plan(), keep_key=True) as mine:
    with pytest.raises(ValueError, match=f'round=3: comes after the end.*{on}'):
      with mine.round(cohort=['a']):
        pass
    assert not list(mine.rounds(clients=8))
  more = small_run.small_plan(
    rounds=4, mechanism=strategies.BandedToeplitz(4, [1.0, 0.5])
  )
  with pytest.raises(ValueError, match=f'rounds=4: is not what.*{on}'):
    run.Run(directory, more)


def test_more_updates_than_clients_are_refused(opened):
  """Whether they add something to the sum or not."""
  for values in itertools.product((0.0, 1.0, math.nan), repeat=2):
    with pytest.raises(
      ValueError, match='must not exceed the 1 clients of the round'
    ):
      opened.release([np.full(3, value) for value in values], np.zeros(3))
    assert not opened._journal.position.released(0)


def test_more_updates_than_clients_are_refused_with_tff(tmp_path, runtime):
  """A second update would be of a client that the ledger lacks."""
  with run.Run(tmp_path / 'run', small_run.small_plan(), keep_key=True) as mine:
    process = small_run.Process(mine.aggregator)
    state = mine.restore(process.initialize)
    with mine.round(cohort=['a']) as opened:
      with pytest.raises(Exception, match='more updates than the round has'):
        process.next(state, [small_run.update_of(0, 0)] * 2)
      assert not mine._journal.position.released(0)
      # Nothing was released, so the right sum may be.
      opened.finish(process.next(state, [small_run.update_of(0, 0)]))
      assert (opened.updates, opened.without_effect) == (1, 1)


def test_update_of_another_shape_is_refused(opened):
  for update in np.ones(1), np.float64(1.0), [1.0] * 3, {'a': np.ones(3)}:
    with pytest.raises(ValueError, match=r'^updates.* must be .*\(3,\)'):
      opened.release([update], np.zeros(3))
  # The first `like` is that of the run.
  with pytest.raises(ValueError, match=r'^updates.* must be \(3,\)'):
    opened.release([np.ones(1)], np.zeros(1))


def test_round_that_is_over_releases_nothing(opened):
  mean = opened.release([], {'w': np.zeros((2, 1), np.float32)})
  # Nobody's update came: it is noise.
  assert mean['w'].shape == (2, 1) and mean['w'].dtype == np.float32
  assert mean['w'].any()
  opened.finish(mean)
  with pytest.raises(ValueError, match='round=0: is not open'):
    opened.release([], mean)


def test_round_that_ends_among_its_updates_releases_nothing(tmp_path):
  """The end of the next round removes the mark of the first sum."""
  with run.Run(tmp_path, small_run.small_plan()) as mine:
    with mine.round(cohort=['a']) as first:
      mean = first.release([np.ones(3)], np.zeros(3))

      def updates():
        first.finish(mean)
        with mine.round(cohort=['b']) as second:
          second.finish(second.release([], mean))
        assert not mine._journal.position.released(0)
        yield np.zeros(3)

      with pytest.raises(ValueError, match='no round of this run is open'):
        first.release(updates(), mean)


def test_round_that_was_not_finished_stops_the_loop(tmp_path, runtime):
  with run.Run(tmp_path / 'run', small_run.small_plan()) as mine:
    with pytest.raises(ValueError, match='round=0: was not finished'):
      for _ in mine.rounds(clients=8):
        pass
  with run.Run(tmp_path / 'run', small_run.small_plan()) as mine:
    assert [each.outcome for each in mine._journal.ledger.attempts(0)] == [
      'failed'
    ]


def test_aggregator_outside_of_a_round_releases_nothing(tmp_path, runtime):
  with run.Run(tmp_path / 'run', small_run.small_plan()) as mine:
    process = small_run.Process(mine.aggregator)
    state = mine.restore(process.initialize)
    with pytest.raises(Exception, match='no round of this run is open'):
      process.next(state, [np.zeros(3, np.float32)])


def test_clients_that_come_are_admitted_by_the_plan(tmp_path, runtime):
  with run.Run(tmp_path / 'run', small_run.small_plan()) as mine:
    process = small_run.Process(mine.aggregator)
    state = mine.restore(process.initialize)
    first, state = small_run.came(mine, process, state, ['a', 'b', 'c', 'a'])
    second, state = small_run.came(mine, process, state, ['a', 'd'])
  assert (first.cohort.tolist(), first.refused) == (['a', 'b'], 2)
  assert (second.cohort.tolist(), second.refused) == (['d'], 1)


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
  for stop in 2, small_run.ROUNDS:
    with run.Run(tmp_path / 'run', small_run.small_plan()) as mine:
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
  spent = small_run.small_plan().spent(3)
  assert float(f'{spent:.4g}') < spent <= epsilons[-1] < 1.001 * spent
  with run.Run(tmp_path / 'run', small_run.small_plan()) as mine:
    assumptions = mine.report().content['assumptions']
    assert mine.report().content['process_checked'] is True
  (row,) = [each for each in assumptions if 'passes' in each['assumption']]
  assert row['checked'].endswith('bypass the aggregator: nothing')


def test_refusal_is_one_line(opened):
  opened.release([np.ones(3)], np.zeros(3))
  with pytest.raises(ValueError, match='has released another sum') as refused:
    opened.release([], np.zeros(3))
  assert '\n' not in str(refused.value)


def test_other_plan_is_refused(whole):
  with pytest.raises(ValueError, match='noise_multiplier=0.4: is not what'):
    run.Run(whole[0], small_run.small_plan(noise_multiplier=0.4))
