"""Tests of the noise that a round gets, and of its covariance."""

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf

from tff_bandmf import noise, strategies

_ROUNDS = 24
_KEY = noise.Key.from_seed(11)
# Of the tests of covariance, for a key drawn at random; the key is fixed.
_FALSE_ALARM = 1e-6
_WIDE = 40_000

_STRATEGIES = {
    'identity': strategies.Identity(_ROUNDS),
    'narrow': strategies.BandedToeplitz(_ROUNDS, [1.0, 0.6, 0.3]),
    'wide': strategies.BandedToeplitz(
        _ROUNDS, 0.9**np.arange(20) / (1 + np.arange(20))),
}


def _source(placement, strategy, dimension, directory, key=_KEY):
  plan = noise.ToeplitzPlan.of(strategy)
  if placement == 'state':
    return noise.StateSource(plan, dimension, key)
  return noise.TapeSource(
      noise.Tape(directory / 'tape', plan, dimension, strategy.rounds, key))


def _rounds(source, rounds=_ROUNDS, state=None):
  """Returns y of all rounds, [rounds, d], and the last state."""
  step = tf.function(source.next, autograph=False)
  state = source.initial_state() if state is None else state
  ys = []
  for t in range(rounds):
    y, state = step(state, tf.constant(t, tf.int64))
    ys.append(y.numpy())
  return np.stack(ys), state


@pytest.mark.parametrize('name', _STRATEGIES)
def test_state_and_tape_give_the_same_noise(tmp_path, name):
  noises = {}
  for placement in ('state', 'tape'):
    source = _source(placement, _STRATEGIES[name], 50, tmp_path)
    assert source.placement == placement
    noises[placement], _ = _rounds(source)
    source.close()
  np.testing.assert_allclose(
      noises['state'], noises['tape'], rtol=0, atol=3e-6)


def test_state_stays_of_one_form(tmp_path):
  for strategy in _STRATEGIES.values():
    source = _source('state', strategy, 9, tmp_path)
    before = source.initial_state()
    _, after = source.next(before, tf.constant(0, tf.int64))
    tf.nest.assert_same_structure(before, after)
    for a, b in zip(tf.nest.flatten(before), tf.nest.flatten(after)):
      assert (a.shape, a.dtype) == (b.shape, b.dtype)
    past = sum(t.shape.num_elements() for t in tf.nest.flatten(after)) - 2
    assert past == (strategy.bands - 1) * 9


def test_next_is_pure_in_its_state(tmp_path):
  source = _source('state', _STRATEGIES['narrow'], 9, tmp_path)
  _, state = _rounds(source, 2)
  first = source.next(state, tf.constant(2, tf.int64))
  second = source.next(state, tf.constant(2, tf.int64))
  for a, b in zip(tf.nest.flatten(first), tf.nest.flatten(second)):
    assert np.array_equal(a, b)


def test_state_without_key_starts_elsewhere_every_time(tmp_path):
  source = _source('state', _STRATEGIES['narrow'], 50, tmp_path, key=None)
  # As TFF does it: one traced computation, run twice.
  initialize = tf.function(source.initial_state)
  states = [initialize(), initialize()]
  assert not np.array_equal(states[0]['key'], states[1]['key'])
  noises = [_rounds(source, 5, state)[0] for state in states]
  assert not np.isin(*noises).any()


def test_state_with_key_repeats(tmp_path):
  source = _source('state', _STRATEGIES['narrow'], 50, tmp_path)
  assert np.array_equal(_rounds(source, 5)[0], _rounds(source, 5)[0])


def test_tape_state_names_the_tape_and_holds_no_noise(tmp_path):
  source = _source('tape', _STRATEGIES['wide'], 50, tmp_path)
  state = source.initial_state()
  assert list(state) == ['tape_id']
  assert state['tape_id'].shape == [] and state['tape_id'].dtype == tf.int64
  assert int(state['tape_id']) not in _KEY.words()
  source.close()


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
  statistic = (
      d * np.sum(off_diagonal**2)
      + d / 2 * np.sum((np.diag(covariance) - 1)**2))
  return scipy.stats.chi2.sf(statistic, n * (n + 1) / 2)


@pytest.mark.parametrize('placement', ['state', 'tape'])
@pytest.mark.parametrize('name', _STRATEGIES)
def test_covariance_is_that_of_the_strategy(tmp_path, placement, name):
  strategy = _STRATEGIES[name]
  source = _source(placement, strategy, _WIDE, tmp_path)
  y = _rounds(source)[0].astype(np.float64)
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
