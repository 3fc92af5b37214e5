"""Tests of the noise that a round gets, and of its covariance."""

import itertools
import stat

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf

from tff_bandmf import noise, strategies
from tff_bandmf.noise import key_file

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
    'inverse': strategies.BandedInverseSqrt(_ROUNDS, 6),
    'blt': strategies.ColumnNormalized(
        strategies.Blt(_ROUNDS, [0.3, 0.2], [0.95, 0.6])),
    'online-tree': strategies.OnlineTree(_ROUNDS),
}
# Rows of the model's size in the state.
_MEMORY = {
    'identity': 0, 'narrow': 2, 'wide': 19, 'inverse': 5, 'blt': 2,
    'online-tree': 4}


def _source(placement, strategy, dimension, directory, key=_KEY):
  plan = noise.Plan.of(strategy)
  if placement == 'state':
    return noise.StateSource(plan, dimension, key)
  if placement == 'regenerate':
    return noise.RegenerateSource(plan, dimension, key, directory / 'key')
  return noise.TapeSource(
      noise.Tape(directory / 'tape', plan, dimension, key))


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
def test_all_placements_give_the_same_noise(tmp_path, name):
  strategy = _STRATEGIES[name]
  noises = {}
  for placement in ('state', 'tape', 'regenerate'):
    if placement == 'regenerate' and strategy.inverse_bands is None:
      continue
    source = _source(placement, strategy, 50, tmp_path)
    assert source.placement == placement
    noises[placement], _ = _rounds(source)
    source.close()
  for each in noises.values():
    np.testing.assert_allclose(each, noises['state'], rtol=0, atol=3e-6)


def test_state_stays_of_one_form(tmp_path):
  for name, strategy in _STRATEGIES.items():
    source = _source('state', strategy, 9, tmp_path)
    before = source.initial_state()
    _, after = source.next(before, tf.constant(0, tf.int64))
    tf.nest.assert_same_structure(before, after)
    for a, b in zip(tf.nest.flatten(before), tf.nest.flatten(after)):
      assert (a.shape, a.dtype) == (b.shape, b.dtype)
    past = sum(t.shape.num_elements() for t in tf.nest.flatten(after)) - 2
    assert past == _MEMORY[name] * 9


@pytest.mark.parametrize('name, placement', [
    ('narrow', 'state'), ('online-tree', 'state'), ('inverse', 'regenerate')])
def test_next_is_pure_in_its_state(tmp_path, name, placement):
  source = _source(placement, _STRATEGIES[name], 9, tmp_path)
  _, state = _rounds(source, 2)
  first = source.next(state, tf.constant(2, tf.int64))
  second = source.next(state, tf.constant(2, tf.int64))
  for a, b in zip(tf.nest.flatten(first), tf.nest.flatten(second)):
    assert np.array_equal(a, b)
  source.close()


@pytest.mark.parametrize('placement, word', [
    ('state', 'key'), ('regenerate', 'offset')])
def test_source_without_key_starts_elsewhere_every_time(
    tmp_path, placement, word):
  source = _source(placement, _STRATEGIES['inverse'], 50, tmp_path, key=None)
  # As TFF does it: one traced computation, run twice.
  initialize = tf.function(source.initial_state)
  states = [initialize(), initialize()]
  assert not np.array_equal(states[0][word], states[1][word])
  noises = [_rounds(source, 5, state)[0] for state in states]
  source.close()
  assert not np.isin(*noises).any()


@pytest.mark.parametrize('placement', ['state', 'regenerate'])
def test_source_with_key_repeats(tmp_path, placement):
  source = _source(placement, _STRATEGIES['inverse'], 50, tmp_path)
  assert np.array_equal(_rounds(source, 5)[0], _rounds(source, 5)[0])
  source.close()


def test_bytes_passed_are_those_of_the_state_and_of_the_table():
  def size(strategy):
    return noise.StateSource.bytes_passed(noise.Plan.of(strategy), 9)

  assert size(_STRATEGIES['narrow']) == 4 * (2 * 9 + 3)
  rows = np.tri(_ROUNDS)[:, :3]
  assert size(strategies.Banded(rows)) == 4 * (2 * 9 + 3 * _ROUNDS)


def test_dense_inverse_is_not_regenerated(tmp_path):
  for name in ('narrow', 'blt', 'online-tree'):
    with pytest.raises(ValueError, match='noise_placement=regenerate'):
      _source('regenerate', _STRATEGIES[name], 9, tmp_path)
  assert not list(tmp_path.iterdir())


def _key_path(tmp_path):
  path, = tmp_path.glob('key/*/*.key')
  return path


def test_key_is_in_its_file_only_and_goes_with_the_source(tmp_path):
  source = _source('regenerate', _STRATEGIES['inverse'], 9, tmp_path)
  path = _key_path(tmp_path)
  assert stat.S_IMODE(path.stat().st_mode) == 0o600
  assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
  assert path.read_bytes()[:16] == _KEY.secret
  state = source.initial_state()
  _, after = source.next(state, tf.constant(0, tf.int64))
  graph = tf.function(source.next).get_concrete_function(
      state, tf.constant(0, tf.int64)).graph.as_graph_def()
  initialize = tf.function(
      source.initial_state).get_concrete_function().graph.as_graph_def()
  halves = _KEY.secret[:8], _KEY.secret[8:]
  for text in (repr(state), repr(after), repr(graph), repr(initialize)):
    assert not any(str(word) in text for word in _KEY.words())
  for content in (graph.SerializeToString(), initialize.SerializeToString()):
    assert not any(half in content for half in halves)
  assert not any(half in path.name.encode() for half in halves)
  source.close()
  source.close()
  assert not list(tmp_path.iterdir())
  with pytest.raises(tf.errors.NotFoundError):
    source.next(state, tf.constant(1, tf.int64))


@pytest.mark.parametrize('content', [
    b'', bytes(24), bytes(8) + _KEY.secret[8:] + bytes(8), bytes(25),
    bytes(16), _KEY.secret])
def test_damaged_key_file_is_refused(tmp_path, content):
  source = _source('regenerate', _STRATEGIES['inverse'], 9, tmp_path)
  state = source.initial_state()
  _key_path(tmp_path).write_bytes(content)
  with pytest.raises(
      tf.errors.InvalidArgumentError, match='damaged|wrong size') as error:
    source.next(state, tf.constant(0, tf.int64))
  assert not any(str(word) in str(error.value) for word in _KEY.words())
  source.close()


def test_key_file_serves_the_state_of_its_own_run_only(tmp_path):
  source = _source('regenerate', _STRATEGIES['inverse'], 9, tmp_path)
  whole, _ = _rounds(source)
  _, state = _rounds(source, 7)
  source.close()
  again = _source('regenerate', _STRATEGIES['inverse'], 9, tmp_path)
  y, _ = again.next(state, tf.constant(7, tf.int64))
  np.testing.assert_array_equal(y, whole[7])
  again.close()
  for strategy, dimension, seed in [
      ('inverse', 9, 12), ('inverse', 10, 11), ('other', 9, 11)]:
    other = noise.RegenerateSource(
        noise.Plan.of(
            _STRATEGIES.get(strategy) or strategies.DpCgd(_ROUNDS, 0.5)),
        dimension, noise.Key.from_seed(seed), tmp_path / 'key')
    with pytest.raises(tf.errors.NotFoundError):
      other.next(state, tf.constant(7, tf.int64))
    other.close()


def test_key_files_of_killed_processes_are_removed(tmp_path):
  parent = tmp_path / 'key'
  for name in ('tff_bandmf-key-killed', 'tff_bandmf-key-starting', 'others'):
    (parent / name).mkdir(parents=True)
  (parent / 'tff_bandmf-key-killed' / '5.key').write_bytes(b'secret')
  (parent / 'others' / '5.key').touch()
  first = _source('regenerate', _STRATEGIES['inverse'], 9, tmp_path)
  second = _source('regenerate', _STRATEGIES['inverse'], 9, tmp_path)
  left = {path.name for path in parent.iterdir()}
  assert 'tff_bandmf-key-killed' not in left
  assert {'tff_bandmf-key-starting', 'others'} < left and len(left) == 4
  # The first one is in use.
  first.next(first.initial_state(), tf.constant(0, tf.int64))
  first.close()
  second.close()
  assert len(list(parent.iterdir())) == 2


def test_key_file_is_in_memory_where_there_is_no_folder(tmp_path, monkeypatch):
  for place in (tmp_path / 'memory', tmp_path / 'disk'):
    place.mkdir()
  monkeypatch.setattr(
      key_file.private_files, 'MEMORY', tmp_path / 'memory')
  monkeypatch.setattr(key_file.tempfile, 'tempdir', str(tmp_path / 'disk'))
  plan = noise.Plan.of(_STRATEGIES['inverse'])
  source = noise.RegenerateSource(plan, 9)
  assert list(tmp_path.glob('memory/*/*.key'))
  source.close()
  (tmp_path / 'memory').rmdir()
  source = noise.RegenerateSource(plan, 9)
  assert list(tmp_path.glob('disk/*/*.key'))
  source.close()


def test_tape_state_names_the_tape_and_holds_no_noise(tmp_path):
  source = _source('tape', _STRATEGIES['wide'], 50, tmp_path)
  state = source.initial_state()
  runs = [int(source.begin(state)['run']) for _ in range(2)]
  assert runs[0] != runs[1] and min(runs) > 0
  for each in (state, source.begin(state)):
    assert list(each) == ['tape_id', 'run']
    assert all(
        leaf.shape == [] and leaf.dtype == tf.int64 for leaf in each.values())
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


@pytest.mark.parametrize('name, placement', [
    *itertools.product(_STRATEGIES, ['state', 'tape']),
    ('inverse', 'regenerate')])
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
