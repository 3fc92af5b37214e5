"""Tests of the noise that a round gets, and of its covariance."""

import collections
import itertools

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf

from tff_bandmf import noise, strategies
from tff_bandmf.noise import generator, graph_generator, placements
from tff_bandmf.noise import source as source_lib
from tff_bandmf.strategies import recursion as recursion_lib

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
# Rows of the model's size in the state.
_MEMORY = {
  'identity': 0,
  'narrow': 2,
  'wide': 19,
  'inverse': 5,
  'blt': 2,
  'online-tree': 4,
}


def _source(placement, strategy, dimension, directory):
  placed = (
    placements.InState()
    if placement == 'state'
    else placements.Tape(directory / 'tape', _KEY)
  )
  return source_lib.of(placed, strategy.recursion(), _Z_STEPS, dimension)


def _begun(source):
  """The state of a run, with the key that the tests know."""
  state = source.begin(source.initial_state())
  if 'key' not in state:
    return state
  words = tf.io.decode_raw(_KEY.secret, tf.int32)
  return collections.OrderedDict(state, key=words)


def _rounds(source, rounds=_ROUNDS, state=None):
  """Returns y of all rounds, [rounds, d], and the last state."""
  step = tf.function(source.release, autograph=False)
  state = _begun(source) if state is None else state
  zeros = tf.zeros([source.dimension], tf.int32)
  ys = []
  for t in range(rounds):
    y, state = step(state, tf.constant(t, tf.int64), zeros)
    ys.append(y.numpy())
  return np.stack(ys), state


def _reference(strategy, dimension):
  """Returns y of all rounds, by the definition of a recursion, in NumPy."""
  recursion = strategy.recursion()
  table = recursion.table()
  memory = np.zeros((recursion.memory, dimension))
  z = generator.Generator(_KEY)
  ys = []
  for t in range(strategy.rounds):
    phase = recursion.phase(t)
    scale = table.scale[phase]
    m = table.readout[phase] @ memory
    y = np.rint(_Z_STEPS * scale * z.rows(t, 1, 0, dimension)[0] + m)
    ys.append(y)
    if recursion.keeps == recursion_lib.BUFFERS:
      memory = table.update[phase] @ memory + table.gain[phase][:, None] * y
    else:
      latest = y if recursion.keeps == recursion_lib.PAST_Y else (y - m) / scale
      memory = np.concatenate([[latest], memory])[: recursion.memory]
  return np.stack(ys)


@pytest.mark.slow
@pytest.mark.parametrize(
  'name, placement', itertools.product(_STRATEGIES, ['state', 'tape'])
)
def test_rounds_are_those_of_the_recursion(tmp_path, placement, name):
  source = _source(placement, _STRATEGIES[name], 500, tmp_path)
  found, _ = _rounds(source)
  source.close()
  assert found.dtype == np.int32
  # A unit in the last place of z or m may move a rounding: 1 in 10^9 does.
  np.testing.assert_allclose(
    found, _reference(_STRATEGIES[name], 500), rtol=0, atol=1
  )


@pytest.mark.parametrize('placement', ['state', 'tape'])
def test_noise_is_added_to_the_sum(tmp_path, placement):
  ys, _ = _rounds(_source('state', _STRATEGIES['narrow'], 9, tmp_path), 2)
  source = _source(placement, _STRATEGIES['narrow'], 9, tmp_path)
  assert (source.placement, source.dimension) == (placement, 9)
  state = _begun(source)
  total = tf.range(9) * 10**7
  for t, y in enumerate(ys):
    released, state = source.release(state, tf.constant(t, tf.int64), total)
    np.testing.assert_array_equal(released, total + y)
  source.close()


def test_no_noise_adds_nothing():
  source = source_lib.NoNoise(3, 5)
  assert source.start_round == 5
  total = tf.constant([1, -2, 3])
  released, state = source.release(
    source.initial_state(), tf.constant(0, tf.int64), total
  )
  np.testing.assert_array_equal(released, total)
  assert state == ()
  metrics = source.metrics(state, tf.constant(0, tf.int64))
  assert {name: value.numpy() for name, value in metrics.items()} == {
    'noise_placement': b'none',
    'noise_checked': False,
  }


@pytest.mark.parametrize('name', _STRATEGIES)
def test_state_stays_of_one_form(tmp_path, name):
  source = _source('state', _STRATEGIES[name], 9, tmp_path)
  before = _begun(source)
  tf.nest.assert_same_structure(source.initial_state(), before)
  _, after = source.release(
    before, tf.constant(0, tf.int64), tf.zeros([9], tf.int32)
  )
  tf.nest.assert_same_structure(before, after)
  for a, b in zip(tf.nest.flatten(before), tf.nest.flatten(after)):
    assert (a.shape, a.dtype) == (b.shape, b.dtype)
  past = sum(t.shape.num_elements() for t in tf.nest.flatten(after)) - 8
  assert past == _MEMORY[name] * 9


@pytest.mark.parametrize('name', ['narrow', 'inverse', 'online-tree'])
def test_release_is_pure_in_its_state(tmp_path, name):
  source = _source('state', _STRATEGIES[name], 9, tmp_path)
  _, state = _rounds(source, 2)
  arguments = state, tf.constant(2, tf.int64), tf.zeros([9], tf.int32)
  first, second = source.release(*arguments), source.release(*arguments)
  for a, b in zip(tf.nest.flatten(first), tf.nest.flatten(second)):
    assert np.array_equal(a, b)


@pytest.mark.slow
def test_every_run_in_the_state_has_a_key_of_its_own(tmp_path):
  source = _source('state', _STRATEGIES['inverse'], 50, tmp_path)
  # As TFF does it: one traced computation, run twice.
  begin = tf.function(lambda: source.begin(source.initial_state()))
  states = [begin(), begin()]
  assert not np.isin(states[0]['key'], states[1]['key']).any()
  noises = [_rounds(source, 5, state)[0] for state in states]
  assert np.mean(noises[0] == noises[1]) < 0.05


def test_noise_beyond_32_bits_fails_the_round(tmp_path):
  recursion = _STRATEGIES['narrow'].recursion()
  source = source_lib.StateSource(recursion, 2.0**33, 50)
  with pytest.raises(
    tf.errors.InvalidArgumentError, match='noise beyond 32 bits'
  ):
    _rounds(source, 1)


@pytest.mark.parametrize('factor', [0.9, 1.1])
def test_noise_of_another_deviation_fails_the_round(
  tmp_path, monkeypatch, factor
):
  normals = graph_generator.normals
  monkeypatch.setattr(
    graph_generator, 'normals', lambda *args: factor * normals(*args)
  )
  source = _source('state', _STRATEGIES['narrow'], _WIDE, tmp_path)
  with pytest.raises(tf.errors.InvalidArgumentError, match='the sample dev'):
    _rounds(source, 1)


def test_bytes_passed_are_those_of_the_state_and_of_the_table():
  def size(strategy):
    return source_lib.StateSource.bytes_passed(strategy.recursion(), 9)

  norms = 8 * _ROUNDS
  assert size(_STRATEGIES['narrow']) == 4 * 2 * 9 + 8 * 3 + norms
  rows = np.tri(_ROUNDS)[:, :3]
  assert size(strategies.Banded(rows)) == 4 * 2 * 9 + 8 * 3 * _ROUNDS + norms
  assert size(_STRATEGIES['inverse']) == 8 * 5 * 9 + 8 * 6 + norms


def test_state_that_cannot_pass_is_refused():
  with pytest.raises(ValueError, match='1.8 GB of noise cannot pass.*use Tape'):
    source_lib.of(
      placements.InState(),
      _STRATEGIES['narrow'].recursion(),
      _Z_STEPS,
      230_000_000,
    )


def test_placement_without_a_source_is_refused():
  """Not taken for one whose key is in the state."""

  class Elsewhere(placements.Placement):
    pass

  recursion = _STRATEGIES['narrow'].recursion()
  with pytest.raises(TypeError, match='noise=Elsewhere: .*source'):
    source_lib.of(Elsewhere(), recursion, _Z_STEPS, 9)


def test_tape_state_names_the_tape_and_holds_no_noise(tmp_path):
  source = _source('tape', _STRATEGIES['wide'], 50, tmp_path)
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
@pytest.mark.parametrize(
  'name, placement', itertools.product(_STRATEGIES, ['state', 'tape'])
)
def test_covariance_is_that_of_the_strategy(tmp_path, placement, name):
  strategy = _STRATEGIES[name]
  source = _source(placement, strategy, _WIDE, tmp_path)
  y = _rounds(source)[0] / _Z_STEPS
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
