"""Tests of the aggregator with the noise of servers, in TFF's worker."""

import numpy as np
import pytest
import tensorflow_federated as tff

from tff_bandmf import aggregator, noise, participation, strategies
from tff_bandmf.noise import placements
from tff_bandmf.noise.producer import block_makers, stream
from tff_bandmf.noise.tape import writer as tape_lib

_ROUNDS = 12
_SIZE = 40
_KEY = noise.Key.from_seed(37)
_STRATEGY = strategies.BandedToeplitz(_ROUNDS, 0.8 ** np.arange(4))


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch):
  monkeypatch.setattr(block_makers, '_CHUNK', 16)
  monkeypatch.setattr(stream, '_GRID', 16)


@pytest.fixture(params=['numpy', 'jax'])
def servers(tmp_path, request):
  """What two servers run, each a shard."""
  recursion = _STRATEGY.recursion()
  spec = _factory(placements.Tape()).guarantee
  z_steps = noise.Lattice.from_noise(
    recursion, spec.z_stddev_per_clip, largest_cohort=2, dimension=_SIZE
  ).z_steps
  tapes = [
    tape_lib.Tape(
      tmp_path / f'server-{i}',
      stream.Stream(
        recursion,
        z_steps,
        _SIZE,
        _KEY,
        coordinates=stream.shard(_SIZE, i, 2),
        backend=request.param,
      ),
      resume=True,
    )
    for i in range(2)
  ]
  yield [tape.directory for tape in tapes]
  for tape in tapes:
    tape.close()


def _factory(placement):
  return aggregator.dp_aggregator(
    1.0,
    2,
    l2_norm_clip=1.0,
    strategy=_STRATEGY,
    participation=participation.MinSep(4),
    noise=placement,
  )


def _process(factory):
  return factory.create(tff.TensorType(np.float32, [_SIZE]))


def _results(process, state, rounds):
  """Returns what the rounds release, nobody contributes, and the states."""
  results, states = [], [state]
  for _ in range(rounds):
    output = process.next(state, [np.zeros(_SIZE, np.float32)] * 2)
    state = output.state
    results.append(output.result)
    states.append(state)
  return np.stack(results), states


@pytest.mark.deep(but=('numpy',))
def test_training_gets_the_noise_that_it_would_make(runtime, servers):
  with _factory(placements.Tape(key=_KEY)) as factory:
    process = _process(factory)
    expected, _ = _results(process, process.initialize(), 5)
  assert np.all(expected.std(axis=1) > 0.1)
  with _factory(placements.Served(servers)) as factory:
    process = _process(factory)
    results, states = _results(process, process.initialize(), 3)
    assert np.array_equal(results, expected[:3])
  # Another process goes on; its state starts at round 2.
  with _factory(placements.Served(servers, start_round=1)) as factory:
    with pytest.raises(ValueError, match='rounds below 2 were used'):
      _process(factory)
  with _factory(placements.Served(servers, start_round=2)) as factory:
    process = _process(factory)
    with pytest.raises(Exception, match='another run|another sum'):
      _results(process, process.initialize(), 1)
    results, _ = _results(process, states[2], 3)
    assert np.array_equal(results, expected[2:])


@pytest.mark.parametrize('servers', ['numpy'], indirect=True)
def test_one_folder_may_be_given_alone(servers):
  with _factory(placements.Served(str(servers[0]))) as factory:
    with pytest.raises(ValueError, match='must be shards of 40 coordinates'):
      _process(factory)
