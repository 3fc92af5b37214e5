"""Tests of the noise that a round gets, and of its covariance."""

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf

from tff_bandmf import noise, strategies
from tff_bandmf.noise import graph_noise_source as source_lib
from tff_bandmf.noise import placements

_ROUNDS = 24
_KEY = noise.Key.from_seed(11)
_Z_STEPS = 5000.0
# Of the tests of covariance, for a key drawn at random; the key is fixed.
_FALSE_ALARM = 1e-6
_WIDE = 40_000

_STRATEGIES = {
  'identity': strategies.Identity(_ROUNDS),
  'narrow': strategies.BandedToeplitz(_ROUNDS, [1.0, 0.6, 0.3]),
  'wide': strategies.BandedToeplitz(
    _ROUNDS, 0.9 ** np.arange(20) / (1 + np.arange(20))
  ),
  'inverse': strategies.BandedInverseSqrt(_ROUNDS, 6),
  'blt': strategies.ColumnNormalized(
    strategies.Blt(_ROUNDS, [0.3, 0.2], [0.95, 0.6])
  ),
  'online-tree': strategies.OnlineTree(_ROUNDS),
}


def _source(strategy, dimension, directory):
  return source_lib.NoiseSource(
    placements.Tape(directory / 'tape', _KEY),
    strategy.recursion(),
    _Z_STEPS,
    dimension,
  )


def _rounds(source, rounds=_ROUNDS):
  """Returns y of all rounds, [rounds, d]."""
  step = tf.function(source.release, autograph=False)
  state = source.begin(source.initial_state())
  zeros = tf.zeros([source.dimension], tf.int32)
  ys = []
  for t in range(rounds):
    y, state = step(state, tf.constant(t, tf.int64), zeros)
    ys.append(y.numpy())
  return np.stack(ys)


@pytest.mark.slow
@pytest.mark.parametrize('name', _STRATEGIES)
@pytest.mark.deep(but=('inverse', 'online-tree', 'narrow'))
def test_rounds_are_those_of_the_stream(tmp_path, name):
  source = _source(_STRATEGIES[name], 500, tmp_path)
  y = _rounds(source)
  source.close()
  stream = noise.Stream(_STRATEGIES[name].recursion(), _Z_STEPS, 500, _KEY)
  rows = [row.copy() for row in stream.rows() if row is not None]
  assert y.dtype == np.int32 and np.array_equal(y, rows)


def test_noise_is_added_to_the_sum(tmp_path):
  stream = noise.Stream(_STRATEGIES['narrow'].recursion(), _Z_STEPS, 9, _KEY)
  rows = (row for row in stream.rows() if row is not None)
  source = _source(_STRATEGIES['narrow'], 9, tmp_path)
  assert (source.placement, source.dimension) == ('tape', 9)
  state = source.begin(source.initial_state())
  total = tf.range(9) * 10**7
  for t in range(2):
    released, state = source.release(state, tf.constant(t, tf.int64), total)
    np.testing.assert_array_equal(released, total + next(rows))
  source.close()


def test_no_noise_adds_nothing():
  source = source_lib.NoiseSource(
    placements.Served('folder', 5), _STRATEGIES['narrow'].recursion(), 0.0, 3
  )
  assert source.start_round == 5
  total = tf.constant([1, -2, 3])
  released, state = source.release(
    source.initial_state(), tf.constant(0, tf.int64), total
  )
  np.testing.assert_array_equal(released, total)
  assert state == ()
  metrics = source.metrics(tf.constant(0, tf.int64))
  assert {name: value.numpy() for name, value in metrics.items()} == {
    'noise_placement': b'none',
    'noise_checked': False,
  }


def test_placement_without_a_source_is_refused():
  class Elsewhere(placements.Placement):
    pass

  recursion = _STRATEGIES['narrow'].recursion()
  with pytest.raises(TypeError, match='noise=Elsewhere: .*source'):
    source_lib.NoiseSource(Elsewhere(), recursion, _Z_STEPS, 9)


def test_tape_state_names_the_tape_and_holds_no_noise(tmp_path):
  source = _source(_STRATEGIES['wide'], 50, tmp_path)
  state = source.initial_state()
  runs = [int(source.begin(state)['run']) for _ in range(2)]
  assert runs[0] != runs[1] and min(runs) > 0
  for each in (state, source.begin(state)):
    assert list(each) == ['tape_id', 'run']
    assert all(
      leaf.shape == [] and leaf.dtype == tf.int64 for leaf in each.values()
    )
  words = np.frombuffer(_KEY.secret, '<i8')
  assert int(state['tape_id']) not in words
  source.close()


@pytest.mark.parametrize(
  'kwargs, error, match',
  [
    ({'key': 'secret'}, TypeError, 'key=str: must be a noise.Key'),
    ({'key': 7}, TypeError, 'key=int'),
    ({'start_round': -1, 'key': _KEY}, ValueError, 'start_round=-1'),
    ({'start_round': 1.5, 'key': _KEY}, TypeError, 'start_round=1.5'),
    ({'start_round': 1}, ValueError, 'start_round=1: needs the key'),
  ],
)
def test_bad_placement_is_refused_and_shows_no_key(kwargs, error, match):
  with pytest.raises(error, match=match) as raised:
    placements.Tape(**kwargs)
  assert 'secret' not in str(raised.value)


def test_placement_shows_no_key():
  assert 'secret' in repr(placements.Tape(key=_KEY))
  assert str(_KEY.secret) not in repr(placements.Tape(key=_KEY))


def test_start_round_of_a_server_is_checked():
  with pytest.raises(ValueError, match='start_round=-1'):
    placements.Served('folder', -1)


def _p_value(y, matrix):
  """Returns the p-value of 'the columns of y are iid N(0, C^-1 C^-T)'.

  C y has iid standard normal entries then, so sqrt(d) times each off-diagonal
  entry of its sample covariance, and sqrt(d / 2) times each diagonal entry less
  one, is close to a standard normal, independent of the others.
  """
  whitened = matrix @ y
  n, d = whitened.shape
  covariance = whitened @ whitened.T / d
  off_diagonal = covariance[np.triu_indices(n, 1)]
  statistic = d * np.sum(off_diagonal**2) + d / 2 * np.sum(
    (np.diag(covariance) - 1) ** 2
  )
  return scipy.stats.chi2.sf(statistic, n * (n + 1) / 2)


@pytest.mark.slow
@pytest.mark.parametrize('name', _STRATEGIES)
@pytest.mark.deep(but=('blt', 'inverse', 'wide'))
def test_covariance_is_that_of_the_strategy(tmp_path, name):
  strategy = _STRATEGIES[name]
  source = _source(strategy, _WIDE, tmp_path)
  y = _rounds(source) / _Z_STEPS
  source.close()
  matrix = strategy.matrix()
  assert _p_value(y, matrix) > _FALSE_ALARM
  # What the test must be able to reject.
  assert _p_value(1.02 * y, matrix) < _FALSE_ALARM
  assert _p_value(y / 1.02, matrix) < _FALSE_ALARM
  if strategy.bands > 1:
    shifted = np.roll(y, -1, axis=0)
    assert _p_value(shifted, matrix) < _FALSE_ALARM
    assert _p_value(np.roll(y, 1, axis=0), matrix) < _FALSE_ALARM
    # Noise of the row before, from the second round on.
    late = np.concatenate([y[:1], y[:-1]])
    assert _p_value(late, matrix) < _FALSE_ALARM
    assert _p_value(np.linalg.solve(matrix, y), matrix) < _FALSE_ALARM
