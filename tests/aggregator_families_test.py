"""Tests of the aggregator with a strategy of every kind of noise plan."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_bandmf import aggregator, noise, participation, strategies

_ROUNDS = 7
_DIMENSION = 9
_SEED = 5
_SPEC = tf.TensorSpec([_DIMENSION], tf.float32)

# Strategy, and where its noise can be.
_CASES = {
  'past z': (
    strategies.DpCgd(_ROUNDS, 0.8),
    ('state', 'regenerate', 'tape'),
  ),
  'past z, scaled': (
    strategies.ColumnNormalized(strategies.BandedInverseSqrt(_ROUNDS, 3)),
    ('regenerate', 'tape'),
  ),
  'buffers, scaled': (
    strategies.ColumnNormalized(
      strategies.Blt(_ROUNDS, [0.3, 0.2], [0.9, 0.5])
    ),
    ('state', 'tape'),
  ),
  'tree of estimates': (strategies.OnlineTree(_ROUNDS), ('state', 'tape')),
  'past y, all of it': (strategies.Tree(_ROUNDS), ('tape',)),
}


def _make(strategy, placement, seed=_SEED):
  return aggregator.correlated_noise_aggregator(
    1.0,
    1.0,
    1.0,
    _SPEC,
    seed,
    strategy=strategy,
    participation=participation.MinSep(3),
    noise_placement=placement,
  )


def _expected(strategy):
  """Returns the noise of all rounds for z of unit standard deviation."""
  words = tf.constant(noise.Key.from_seed(_SEED).words())
  online = isinstance(strategy, strategies.OnlineTree)
  count = _ROUNDS
  if online:
    decoder = np.diff(strategy.prefix_decoder(), axis=0, prepend=0.0)
    count = decoder.shape[1]
  z = np.stack([
    noise.standard_normal(words, t, 0, _DIMENSION).numpy().astype(float)
    for t in range(count)
  ])
  return decoder @ z if online else np.linalg.solve(strategy.matrix(), z)


@pytest.mark.parametrize(
  ('case', 'placement'),
  [(case, each) for case, (_, places) in _CASES.items() for each in places],
)
def test_sums_of_nothing_are_the_noise(runtime, case, placement):
  strategy, _ = _CASES[case]
  sums = []
  with _make(strategy, placement) as factory:
    process = factory.create(tff.TensorType(np.float32, [_DIMENSION]))
    state = process.initialize()
    for _ in range(_ROUNDS):
      output = process.next(state, [np.zeros(_DIMENSION, np.float32)] * 2)
      state = output.state
      sums.append(output.result)
    with pytest.raises(Exception, match='all are done'):
      process.next(state, [np.zeros(_DIMENSION, np.float32)])
    stddev = factory.spec.z_stddev
    if placement != 'state':
      secret = noise.Key.from_seed(_SEED)
      assert str(secret.words()[0]) not in repr(state)
      for computation in (process.initialize, process.next):
        proto = tff.framework.serialize_computation(computation)
        assert secret.secret[:8] not in proto.SerializeToString()
  np.testing.assert_allclose(sums, stddev * _expected(strategy), atol=1e-5)


@pytest.mark.parametrize(
  ('strategy', 'placement'),
  [
    (strategies.DpCgd(40, 0.8), 'regenerate'),
    (strategies.BandedInverseSqrt(40, 8), 'regenerate'),
    (strategies.BandedInverseSqrt(40, 9), 'state'),
    (strategies.Blt(40, [0.3], [0.9]), 'state'),
  ],
)
def test_noise_is_made_again_where_that_is_cheap(strategy, placement):
  with _make(strategy, None) as factory:
    assert factory.noise_placement == placement


def test_noise_of_many_bands_is_not_made_again():
  strategy, _ = _CASES['buffers, scaled']
  with pytest.raises(ValueError, match='regenerate'):
    _make(strategy, 'regenerate')
