"""Tests of the aggregator with the noise of servers, in TFF's worker."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_bandmf import aggregator, noise, participation, strategies
from tff_bandmf.noise import stream

_ROUNDS = 12
_SIZE = 40
_KEY = noise.Key.from_seed(37)
_STRATEGY = strategies.BandedToeplitz(_ROUNDS, 0.8**np.arange(4))
_SPECS = tf.TensorSpec([_SIZE], tf.float32)


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch):
  monkeypatch.setattr(stream, '_CHUNK', 16)


@pytest.fixture
def servers(tmp_path):
  """What two servers run, each a shard."""
  tapes = [
      noise.Tape(
          tmp_path / f'server-{i}', noise.Plan.of(_STRATEGY), _SIZE, _KEY,
          coordinates=stream.shard(_SIZE, i, 2), resume=True)
      for i in range(2)]
  yield [tape.directory for tape in tapes]
  for tape in tapes:
    tape.close()


def _factory(**kwargs):
  return aggregator.correlated_noise_aggregator(
      1.0, 2.0, 1.0, _SPECS, strategy=_STRATEGY,
      participation=participation.MinSep(4), **kwargs)


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


def test_training_gets_the_noise_that_it_would_make(runtime, servers):
  with _factory(noise_seed=_KEY, noise_placement='tape') as factory:
    process = _process(factory)
    expected, _ = _results(process, process.initialize(), 5)
  assert np.all(expected.std(axis=1) > 0.1)
  with _factory(noise_server=servers) as factory:
    assert factory.noise_placement == 'tape'
    process = _process(factory)
    results, states = _results(process, process.initialize(), 3)
    assert np.array_equal(results, expected[:3])
  # Another process goes on; its state starts at round 2.
  with pytest.raises(ValueError, match='rounds below 2 were used'):
    _factory(noise_server=servers, start_round=1)
  with _factory(noise_server=servers, start_round=2) as factory:
    process = _process(factory)
    with pytest.raises(Exception, match='used by another run'):
      _results(process, process.initialize(), 1)
    results, _ = _results(process, states[2], 3)
    assert np.array_equal(results, expected[2:])


@pytest.mark.parametrize('name, value, said', [
    ('noise_seed', 5, 'noise_seed=int'),
    ('noise_seed', _KEY, 'noise_seed=Key'),
    ('tape_directory', 'elsewhere', 'tape_directory=str'),
    ('max_memory_bytes', 10**6, 'max_memory_bytes=int'),
    ('noise_placement', 'state', 'noise_placement=state'),
    ('secure_noise', True, 'generator=aes-ctr: the noise in .* has philox')])
def test_what_is_the_servers_to_say_is_refused(servers, name, value, said):
  with pytest.raises(ValueError, match=said) as error:
    _factory(noise_server=servers, **{name: value})
  assert not any(str(word) in str(error.value) for word in _KEY.words())
  # Nobody is kept off.
  _factory(noise_server=servers).close()


def test_one_folder_may_be_given_alone(servers):
  with pytest.raises(ValueError, match='must be shards of 40 coordinates'):
    _factory(noise_server=str(servers[0]))
