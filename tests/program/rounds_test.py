"""Tests of the rounds' rule: replayed to the bit, or burnt."""

import itertools

import numpy as np
import pytest
import small_training
import tensorflow as tf
import tensorflow_federated as tff

from simulations import fed_avg
from tff_bandmf import (
  aggregator,
  noise,
  participation,
  program,
  strategies,
)
from tff_bandmf.noise import placements
from tff_bandmf.program import checkpoints, rounds

_ROUNDS = 5
_SCHEMA = participation.MinSep(2)


@pytest.fixture
def ledger(tmp_path):
  with program.Ledger(tmp_path / 'ledger.sqlite') as ledger:
    yield ledger


class Run:
  """A learning process with the noise of one key, and its ledger."""

  def __init__(self, ledger, start=0):
    self.ledger = ledger
    self.factory = aggregator.dp_aggregator(
      0.5,
      3,
      l2_norm_clip=0.2,
      strategy=strategies.BandedToeplitz(_ROUNDS, [1, 0.5]),
      participation=_SCHEMA,
      noise=placements.Tape(key=noise.Key.from_seed(7), start_round=start),
    )
    self.process = fed_avg.build(
      small_training.MODEL,
      small_training.LENGTH,
      tff.learning.optimizers.build_sgdm(0.5),
      tff.learning.optimizers.build_sgdm(1.0, 0.9),
      self.factory,
      3,
    )
    self.initial = self.process.initialize()

  def __enter__(self):
    return self

  def __exit__(self, *exc_info):
    self.factory.close()

  def rounds(self, state, count, start=0, process=None):
    """Yields what `count` rounds from one on do."""
    sampler = program.CohortSampler(9, 3, _ROUNDS, _SCHEMA, 0)

    def datasets(t, cohort):
      return fed_avg.group_datasets(small_training.CLIENTS, cohort, 2, 0, t)

    with rounds.Rounds(
      process or self.process, sampler, datasets, self.ledger, start
    ) as runner:
      for _ in range(count):
        done = runner.run(state)
        state = done.state
        yield done


def _disturbed(state):
  """A state with other weights."""
  weights = state.global_model_weights
  return state._replace(
    global_model_weights=type(weights)(
      tuple(w + np.float32(1e-3) for w in weights.trainable), ()
    )
  )


def _outcomes(ledger, t):
  return [attempt.outcome for attempt in ledger.attempts(t)]


def test_replay_is_the_same_to_the_bit(runtime, ledger):
  with Run(ledger) as run:
    first = list(run.rounds(run.initial, _ROUNDS))
  with Run(ledger) as run:
    again = list(run.rounds(run.initial, _ROUNDS))
  for t, (one, other) in enumerate(zip(first, again)):
    np.testing.assert_array_equal(one.cohort, other.cohort)
    assert checkpoints.digest(one.state) == checkpoints.digest(other.state)
    attempts = ledger.attempts(t)
    assert _outcomes(ledger, t) == ['finished', 'finished']
    assert {attempt.result for attempt in attempts} == {
      checkpoints.digest(one.state)
    }
  assert len({checkpoints.digest(done.state) for done in first}) == _ROUNDS


def test_replay_that_differs_burns_the_round(runtime, ledger):
  with Run(ledger) as run:
    list(run.rounds(run.initial, 2))
  with Run(ledger) as run:
    start = _disturbed(run.initial)
    done = list(run.rounds(start, 3))
    # What was released is not released again with another sum: the model stays.
    for t in range(2):
      assert done[t].metrics is None
      assert _outcomes(ledger, t) == ['finished', 'failed', 'abandoned']
      assert checkpoints.digest(done[t].state) == checkpoints.digest(start)
      assert _query_round(done[t].state) == t + 1
    # The next round is a new one, with noise of its own.
    assert done[2].metrics is not None
    assert _outcomes(ledger, 2) == ['finished']
  with Run(ledger) as run:
    # Once burnt, for ever, even if the old release could be made again.
    again = list(run.rounds(_disturbed(run.initial), 3))
    assert [each.metrics is None for each in again] == [True, True, False]
    assert checkpoints.digest(again[2].state) == checkpoints.digest(
      done[2].state
    )
    tf.nest.map_structure(
      np.testing.assert_array_equal,
      *map(_noise, (again[2].state, done[2].state)),
    )


def _query_round(state):
  return int(state.aggregator.query_state.round)


def _noise(state):
  """The round and its noise, without the number of the run that a tape serves,
  another one after every `initialize`."""
  query_state = state.aggregator.query_state
  return {**query_state.noise, 'round': query_state.round, 'run': None}


class Failing:
  """A process that fails where it is told to, and else is the given one."""

  def __init__(self, process, ledger, failures):
    self._process = process
    self._ledger = ledger
    self._failures = iter(failures)
    self.seen = []

  def next(self, state, data):
    self.seen.append([_outcomes(self._ledger, t) for t in range(2)])
    if next(self._failures):
      raise RuntimeError('no worker')
    return self._process.next(state, data)


def test_round_is_in_the_ledger_before_it_runs(runtime, ledger):
  with Run(ledger) as run:
    process = Failing(run.process, ledger, itertools.repeat(False))
    list(run.rounds(run.initial, 2, process=process))
    assert process.seen == [[['started'], []], [['finished'], ['started']]]


def test_failed_attempt_is_tried_again_with_its_cohort(runtime, ledger):
  with Run(ledger) as run:
    (done,) = run.rounds(
      run.initial, 1, process=Failing(run.process, ledger, [True, True, False])
    )
    assert _outcomes(ledger, 0) == ['failed', 'failed', 'finished']
    np.testing.assert_array_equal(ledger.cohort(0), done.cohort)
  with Run(ledger) as run:
    (undisturbed,) = run.rounds(run.initial, 1)
    assert checkpoints.digest(undisturbed.state) == checkpoints.digest(
      done.state
    )


def test_round_that_keeps_failing_ends_the_run(runtime, ledger):
  with Run(ledger) as run:
    with pytest.raises(RuntimeError, match='no worker'):
      list(
        run.rounds(
          run.initial,
          1,
          process=Failing(run.process, ledger, itertools.repeat(True)),
        )
      )
  assert _outcomes(ledger, 0) == ['failed'] * 3
  assert ledger.observed().rounds == 1
