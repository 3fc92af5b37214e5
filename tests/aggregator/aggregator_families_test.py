"""Tests of the aggregator with a strategy of every kind of recursion."""

import numpy as np
import pytest
import tensorflow_federated as tff

from tff_bandmf import aggregator, noise, participation, strategies
from tff_bandmf.noise import generator, placements

_ROUNDS = 7
_DIMENSION = 9
_KEY = noise.Key.from_seed(5)

_STRATEGIES = {
  'past z': strategies.DpCgd(_ROUNDS, 0.8),
  'past z, scaled': strategies.ColumnNormalized(
    strategies.BandedInverseSqrt(_ROUNDS, 3)
  ),
  'buffers, scaled': strategies.ColumnNormalized(
    strategies.Blt(_ROUNDS, [0.3, 0.2], [0.9, 0.5])
  ),
  'past y, all of it': strategies.Tree(_ROUNDS),
}


@pytest.mark.parametrize('name', _STRATEGIES)
@pytest.mark.deep(but=('past z, scaled', 'past y'))
def test_sums_of_nothing_are_the_noise(runtime, name):
  strategy = _STRATEGIES[name]
  with aggregator.dp_aggregator(
    1.0,
    2,
    l2_norm_clip=1.0,
    strategy=strategy,
    participation=participation.MinSep(3),
    noise=placements.Tape(key=_KEY),
  ) as factory:
    process = factory.create(tff.TensorType(np.float32, [_DIMENSION]))
    state = process.initialize()
    sums = []
    for _ in range(_ROUNDS):
      output = process.next(state, [np.zeros(_DIMENSION, np.float32)] * 2)
      state = output.state
      sums.append(2 * output.result)
    with pytest.raises(Exception, match='all are done'):
      process.next(state, [np.zeros(_DIMENSION, np.float32)])
    stddev = factory.guarantee.z_stddev_per_clip
  z = generator.Generator(_KEY).rows(0, _ROUNDS, 0, _DIMENSION)
  np.testing.assert_allclose(
    sums,
    stddev * np.linalg.solve(strategy.matrix(), z),
    atol=20 / 2**factory.lattice.clip_bits,
  )
