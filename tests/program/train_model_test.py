"""Tests of TFF's own training program with our aggregator and data source."""

import asyncio

import numpy as np
import pytest
import small_training
import tensorflow_federated as tff

from tff_bandmf import aggregator, noise, participation, program, strategies
from tff_bandmf.noise import placements
from tff_bandmf.program import data_source
from tff_bandmf.program import runtime as runtime_lib

_ROUNDS = 4
_KEY = noise.Key(bytes(range(32)))


class _Releases(tff.program.ReleaseManager):
  """Keeps what is released, and tells the ledger when a round is over."""

  def __init__(self, ledger=None):
    self.released = {}
    self._ledger = ledger

  async def release(self, value, key):
    self.released[key] = value
    if self._ledger is not None:
      self._ledger.finish_round(key - 1)


@pytest.fixture(scope='module')
def program_runtime(runtime):
  context = tff.framework.get_context_stack().current
  with runtime_lib.local_runtime(concurrency=2, program=True):
    yield
  tff.framework.set_default_context(context)


def _train(directory, rounds, discard=None):
  """Trains to a round, from where the folder is; returns states and ledger."""
  manager = tff.program.FileProgramStateManager(directory / 'states')
  versions = asyncio.run(manager.get_versions())
  schema = participation.MinSep(2)
  sampler = program.CohortSampler(9, 3, _ROUNDS, schema, 0)
  with (
    program.Ledger(directory / 'ledger.sqlite') as ledger,
    (
      aggregator.dp_aggregator(
        0.5,
        3,
        l2_norm_clip=0.2,
        strategy=strategies.BandedToeplitz(_ROUNDS, [1, 0.5]),
        participation=schema,
        noise=placements.Tape(key=_KEY, start_round=max(versions or [0])),
      )
    ) as factory,
  ):
    process = tff.learning.algorithms.build_unweighted_fed_avg(
      small_training.functional_model(
        small_training.MODEL, small_training.LENGTH
      ),
      tff.learning.optimizers.build_sgdm(0.5),
      tff.learning.optimizers.build_sgdm(1.0, 0.9),
      model_aggregator=factory,
    )
    clients = small_training.CLIENTS
    source = data_source.CohortDataSource(
      lambda client, t: small_training.batches(
        clients, client, 3, seed=0, round_index=t
      ),
      small_training.batches(clients, 0, 3).element_spec,
      sampler,
      ledger,
    )
    states = _Releases()
    asyncio.run(
      tff.learning.programs.train_model(
        train_process=process,
        train_data_source=source,
        train_per_round_clients=3,
        train_total_rounds=rounds,
        should_discard_round=discard,
        program_state_manager=manager,
        model_output_manager=states,
        train_metrics_manager=_Releases(ledger),
        evaluation_manager=None,
        evaluation_periodicity=1,
      )
    )
    cohorts = [ledger.cohort(t) for t in range(rounds)]
    return states.released, cohorts, ledger.observed()


def _weights(states, rounds):
  state = states[f'training_checkpoint_round_{rounds}']
  return state.global_model_weights.trainable


def test_resumed_training_is_the_undisturbed_one(program_runtime, tmp_path):
  whole, cohorts, observed = _train(tmp_path / 'whole', _ROUNDS)
  assert observed.finished == _ROUNDS
  assert observed.min_sep >= 2
  _train(tmp_path / 'cut', 2)
  resumed, again, _ = _train(tmp_path / 'cut', _ROUNDS)
  for one, other in zip(cohorts, again):
    np.testing.assert_array_equal(one, other)
  for one, other in zip(_weights(whole, _ROUNDS), _weights(resumed, _ROUNDS)):
    np.testing.assert_array_equal(one, other)


def test_discarded_round_comes_back_with_its_cohort(program_runtime, tmp_path):
  discards = iter([False, True, True])
  _, cohorts, observed = _train(
    tmp_path / 'run', _ROUNDS, discard=lambda _: next(discards, False)
  )
  _, expected, _ = _train(tmp_path / 'other', _ROUNDS)
  for one, other in zip(cohorts, expected):
    np.testing.assert_array_equal(one, other)
  assert observed.rounds == observed.finished == _ROUNDS


def test_what_is_released_holds_no_key(program_runtime, tmp_path):
  states, _, _ = _train(tmp_path / 'run', 1)
  noise_state = states[
    'training_checkpoint_round_1'
  ].aggregator.query_state.noise
  assert sorted(noise_state) == ['run', 'tape_id']
  words = np.frombuffer(_KEY.secret, np.int64)
  assert not np.isin(list(noise_state.values()), words).any()


def test_noise_in_the_state_is_refused_in_a_program(program_runtime):
  """TFF's program would give the key to its release manager."""
  with aggregator.dp_aggregator(
    0.5,
    3,
    l2_norm_clip=0.2,
    strategy=strategies.Identity(_ROUNDS),
    participation=participation.MinSep(2),
    noise=placements.InState(),
  ) as factory:
    for create in (factory.create, factory.create_for_sums):
      with pytest.raises(ValueError, match='noise=InState.*would be released'):
        create(tff.TensorType(np.float32, [3]))
