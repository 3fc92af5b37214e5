"""Tests of processes of one's own whose mean has the noise of a run."""

import numpy as np
import pytest
import small_run
import tensorflow as tf
import tensorflow_federated as tff

import tff_bandmf
from tff_bandmf import aggregator, run

_STATE = tff.TensorType(np.float64, [3])


def _process(mean):
  """A process whose state is the sum of the means."""

  @tff.tensorflow.computation(_STATE, small_run.TYPE)
  def add(state, update):
    return state + tf.cast(update, tf.float64)

  @tff.federated_computation
  def initialize():
    return tff.federated_value(np.zeros(3), tff.SERVER)

  @tff.federated_computation(
    tff.FederatedType(_STATE, tff.SERVER),
    tff.FederatedType(small_run.TYPE, tff.CLIENTS),
  )
  def next_round(state, updates):
    return (
      tff.federated_map(add, (state, mean(updates))),
      tff.federated_mean(updates),
    )

  return tff.templates.IterativeProcess(initialize, next_round)


def _train(directory, stop=None):
  """Runs the rounds; stops after the release of round `stop`, unfinished."""
  with run.Run(directory, small_run.small_plan(), keep_key=True) as mine:
    process = _process(mine.federated_mean)
    state = mine.restore(process)
    for current in mine.rounds(clients=8):
      data = [small_run.update_of(i, current.index) for i in current.cohort]
      state, metrics = process.next(state, data)
      if current.index == stop:
        raise small_run.Killed
      current.finish(state, {'mean': metrics[0]})
    return state, mine.report().content


@pytest.mark.slow
def test_mean_has_the_bits_of_the_aggregator_after_a_kill(whole, tmp_path):
  directory = small_run.with_key(tmp_path / 'run')
  for stop in 0, 1:
    with small_run.killed_at(-1):
      _train(directory, stop)
  state, content = _train(directory)
  np.testing.assert_array_equal(state, whole[1].sum)
  observed = content['observed']
  assert observed['rounds_finished'] == small_run.ROUNDS
  assert not observed['rounds_burnt']
  # The process was checked, and its metrics are named.
  assert not any('NOT CHECKED' in line for line in content['warnings'])
  assert 'mean' in str(content['not_covered'])


@pytest.mark.slow
def test_another_sum_of_a_round_is_burnt(tmp_path, runtime):
  directory = small_run.with_key(tmp_path / 'run')
  with small_run.killed_at(-1):
    _train(directory, 0)
  with run.Run(directory, small_run.small_plan(), keep_key=True) as mine:
    process = _process(mine.federated_mean)
    state = mine.restore(process)
    current = next(mine.rounds(clients=8))
    other = [np.full(3, 0.5, np.float32)]
    assert current.attempt(lambda: process.next(state, other)) is None
    assert current.index == 0 and current.burnt


@pytest.mark.slow
def test_process_past_the_noise_is_not_restored(tmp_path, runtime):
  with run.Run(tmp_path / 'run', small_run.small_plan()) as mine:
    with pytest.raises(ValueError, match='process=0 releases'):
      mine.restore(_process(tff.federated_mean))
    with pytest.raises(ValueError, match='process=.*bypass the noise'):
      mine.restore(_process(lambda x: _sum(mine.federated_mean(x), x)))
    with pytest.raises(TypeError, match='process=int: must be a process'):
      mine.restore(3)


def _sum(mean, updates):
  add = tff.tensorflow.computation(
    lambda a, b: a + b, (small_run.TYPE, small_run.TYPE)
  )
  return tff.federated_map(add, (mean, tff.federated_mean(updates)))


@pytest.mark.slow
def test_second_mean_of_a_round_is_refused(tmp_path, runtime):
  with run.Run(tmp_path / 'run', small_run.small_plan()) as mine:
    with pytest.raises(ValueError, match='federated_mean=called twice'):
      _process(lambda x: (mine.federated_mean([x, x]), mine.federated_mean(x)))


def test_weights_of_clients_are_refused(tmp_path, runtime):
  with run.Run(tmp_path / 'run', small_run.small_plan()) as mine:
    with pytest.raises(TypeError, match='weight=given: must be None'):
      mine.federated_mean(None, 1.0)


def test_clip_that_adapts_is_refused(tmp_path, runtime):
  plan = small_run.small_plan(l2_norm_clip=tff_bandmf.AdaptiveClip(0.1))
  with run.Run(tmp_path / 'run', plan) as mine:
    with pytest.raises(ValueError, match='l2_norm_clip=AdaptiveClip: has its'):
      _process(mine.federated_mean)


def test_mean_outside_of_a_run_is_refused():
  plan = small_run.small_plan()
  with aggregator.dp_aggregator(
    0.5, 2, l2_norm_clip=1.0, strategy=plan.strategy, participation=plan.schema
  ) as factory:
    with pytest.raises(ValueError, match='federated_mean=outside of a run'):
      _process(factory.federated_mean)
