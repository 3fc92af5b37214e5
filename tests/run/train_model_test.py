"""Tests of TFF's own training program in a run."""

import asyncio

import numpy as np
import pytest
import small_training
import tensorflow as tf
import tensorflow_federated as tff

from tff_bandmf import accounting, run
from tff_bandmf import ledger as ledger_lib
from tff_bandmf.accounting.kinds import samplers
from tff_bandmf.run_files import run_json
from tff_bandmf.tff import runtime as runtime_lib

_ROUNDS = 4


class _Killed(BaseException):
  """What no program catches."""


class _Manager(tff.program.ReleaseManager):
  """Keeps what is released, with what the ledger says at that moment."""

  def __init__(self, mine, fails=None):
    self.released = {}
    self.finished = []
    self._ledger = mine._journal.ledger
    self._fails = fails

  async def release(self, value, key):
    if self._fails is not None:
      raise self._fails
    self.finished.append(self._ledger.observed().finished)
    self.released[key] = value


@pytest.fixture(scope='module')
def program_runtime(runtime):
  context = tff.framework.get_context_stack().current
  with runtime_lib.local_runtime(concurrency=2, program=True):
    yield
  tff.framework.set_default_context(context)


def _open(directory, **changes):
  return run.Run(
    directory, small_training.plan(_ROUNDS, **changes), keep_key=True
  )


def _process(mine):
  return tff.learning.algorithms.build_unweighted_fed_avg(
    small_training.word_pairs(),
    tff.learning.optimizers.build_sgdm(0.5),
    tff.learning.optimizers.build_sgdm(1.0, 0.9),
    model_aggregator=mine.aggregator,
  )


def _train(mine, dataset=None, **managers):
  mine.train_model(_process(mine), dataset or _dataset, clients=9, **managers)


def _dataset(client, t):
  return small_training.batches(
    small_training.CLIENTS, client, 3, seed=0, round_index=t
  )


@pytest.fixture(scope='module')
def whole(tmp_path_factory, program_runtime):
  """The folder of an undisturbed run, its outputs and its metrics."""
  directory = tmp_path_factory.mktemp('whole') / 'run'
  with _open(directory) as mine:
    outputs, metrics = _Manager(mine), _Manager(mine)
    _train(mine, model_output_manager=outputs, train_metrics_manager=metrics)
    mine.record()
    report = mine.report().content
  return directory, outputs, metrics, report


def test_round_is_durable_before_it_is_released(whole):
  _, outputs, metrics, report = whole
  assert list(metrics.released) == metrics.finished == [1, 2, 3, 4]
  assert outputs.finished == [_ROUNDS]
  assert report['completed'] and report['observed']['rounds_finished'] == 4
  assert report['measured_z_stddev'] == pytest.approx(report['z_stddev'])


def test_weights_alone_are_released(whole):
  _, outputs, _, _ = whole
  ((key, weights),) = outputs.released.items()
  assert key == f'training_checkpoint_round_{_ROUNDS}'
  assert isinstance(weights, tff.learning.models.ModelWeights)
  words = small_training.CLIENTS.vocabulary.num_ids
  assert [weight.shape for weight in weights.trainable] == [(words, words)]


def test_what_managers_get_is_named(whole):
  _, _, _, report = whole
  told = [row['what'] for row in report['side_releases']]
  assert 'metrics of training rounds, without noise' in told
  assert not any('evaluations' in what for what in told)


def test_program_that_is_begun_again_goes_on(whole, tmp_path):
  directory, outputs, _, _ = whole

  def dataset(client, t):
    if t == 2:
      raise _Killed
    return _dataset(client, t)

  with pytest.raises(_Killed), _open(tmp_path / 'run') as mine:
    _train(mine, dataset)
  with _open(tmp_path / 'run') as mine:
    metrics = _Manager(mine)
    _train(mine, train_metrics_manager=metrics)
    assert list(metrics.released) == [3, 4]
    again = [mine._journal.ledger.cohort(t) for t in range(_ROUNDS)]
  with ledger_lib.Ledger(directory / run_json.LEDGER_FILE) as ledger:
    for t, cohort in enumerate(again):
      np.testing.assert_array_equal(cohort, ledger.cohort(t))
  # What was not released before a crash is released when it is begun again.
  with _open(directory) as mine:
    last = _Manager(mine)
    _train(mine, model_output_manager=last)
  tf.nest.map_structure(
    np.testing.assert_array_equal, last.released, outputs.released
  )


def test_program_runs_beside_a_loop_and_leaves_it(program_runtime, tmp_path):
  """In a script, and where a loop is running: a notebook, a coroutine."""
  loop = asyncio.new_event_loop()
  asyncio.set_event_loop(loop)

  async def notebook():
    with _open(tmp_path / 'notebook') as mine:
      process = _process(mine)
      # Other ways need a context that gives values, and say so.
      with pytest.raises(TypeError, match=r'state\[.*run\.train_model'):
        mine.restore(process.initialize)
      with pytest.raises(ValueError, match='context=Native.*local_runtime'):
        next(mine.train(process, _dataset, clients=9))
      mine.train_model(process, _dataset, clients=9)
      return mine.rounds_left

  with _open(tmp_path / 'script') as mine:
    process = _process(mine)
    with pytest.raises(ValueError, match='context=Native.*local_runtime'):
      mine.restore(process.initialize)
    mine.train_model(process, _dataset, clients=9)
  assert asyncio.get_event_loop_policy().get_event_loop() is loop
  assert loop.run_until_complete(notebook()) == 0
  assert asyncio.get_event_loop_policy().get_event_loop() is loop


@pytest.mark.parametrize('differs', [False, True])
@pytest.mark.deep(but=('True',))
def test_sampled_run_that_is_begun_again_has_its_verdict(
  program_runtime, tmp_path, monkeypatch, differs
):
  cohorts = accounting.CyclicPoisson(0.99, 2, population=9)
  cohort = samplers.CyclicPoisson.cohort

  def one_less(self, t):
    return cohort(self, t)[t == 0 :]

  def dataset(client, t):
    if t == 2:
      raise _Killed
    return _dataset(client, t)

  with monkeypatch.context() as patch:
    if differs:
      patch.setattr(samplers.CyclicPoisson, 'cohort', one_less)
    with pytest.raises(_Killed), _open(tmp_path, cohorts=cohorts) as mine:
      _train(mine, dataset)
  with _open(tmp_path, cohorts=cohorts) as mine:
    _train(mine)
    mine.record()
    assert mine._journal.ledger.observed().drawn is not differs
    content = mine.report().content
  amplified = 'none' if differs else 'cyclic-poisson'
  assert content['amplification'] == amplified
  assert content['observed']['rounds_finished'] == _ROUNDS


def test_round_that_met_two_sums_is_burnt(program_runtime, tmp_path):
  directory = tmp_path / 'run'
  with pytest.raises(_Killed), _open(directory) as mine:
    finish = mine._journal.finish

    def dies(done, *arguments):
      if done.index == 1:
        raise _Killed
      finish(done, *arguments)

    mine._journal.finish = dies
    _train(mine)
  with _open(directory) as mine:
    # Other data than those that the first sum of round 1 was of.
    _train(mine, lambda client, t: _dataset((client + 1) % 9, t))
    observed = mine._journal.ledger.observed()
  assert (observed.burnt, observed.finished) == (1, _ROUNDS - 1)


def test_round_cannot_be_discarded_and_release_that_fails_is_told(
  program_runtime, tmp_path
):
  with _open(tmp_path / 'run') as mine:
    process = _process(mine)

    def train(**program):
      mine.train_model(process, _dataset, clients=9, **program)

    with pytest.raises(TypeError, match='should_discard_round'):
      train(should_discard_round=lambda _: False)
    assert mine._journal.ledger.last_round() == -1
    with pytest.raises(OSError, match='disk'):
      train(model_output_manager=_Manager(mine, OSError('disk')))
