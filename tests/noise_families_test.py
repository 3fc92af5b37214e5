"""Tests of the streamed noise of every family against dense algebra.

z is the same to the bit everywhere, and so is y of a stream or tape whatever
its shards, devices of one kind, place of its past, start and interruptions.
State, regeneration and blocks of other sizes add up in another order: their y
differs by a few units in the last place of the largest y of the round.
"""

import functools

import numpy as np
import pytest
import scipy.signal
import scipy.stats
import tensorflow as tf

from tff_bandmf import noise, strategies
from tff_bandmf.noise import stream

_ROUNDS = 40
_DIMENSION = 12
_LONG = 10_000
_KEY = noise.Key.from_seed(17)
_RNG = np.random.default_rng(5)
# Between the placements, of float32; 4 were seen in 40 rounds.
_ULPS = 8
# Of each test of covariance, for a key drawn at random; the key is fixed.
_FALSE_ALARM = 1e-6
_WIDE = 100_000


def _rows(bands):
  rows = _RNG.uniform(-0.3, 0.3, size=(_ROUNDS, bands))
  rows[:, 0] = _RNG.uniform(0.5, 2, _ROUNDS)
  return np.tril(np.ones((_ROUNDS, bands))) * rows


def _dense():
  c = np.tril(_RNG.uniform(-0.2, 0.4, size=(_ROUNDS, _ROUNDS)))
  c[np.diag_indices(_ROUNDS)] = _RNG.uniform(0.7, 1.5, _ROUNDS)
  return c


_COEFFICIENTS = 1.3 * 0.9**np.arange(7) / np.sqrt(1 + np.arange(7))
_BLT = strategies.Blt(_ROUNDS, [0.2, 0.25, 0.1], [0.99, 0.8, 0.3])
_TOEPLITZ = {
    'banded-toeplitz': strategies.BandedToeplitz(_ROUNDS, _COEFFICIENTS),
    'wide': strategies.BandedToeplitz(
        _ROUNDS, 1 / np.arange(1.0, _ROUNDS + 1)),
    'banded-sqrt': strategies.BandedSqrt(_ROUNDS, 6),
    'sqrt-toeplitz': strategies.SqrtToeplitz(_ROUNDS),
    'blt': _BLT,
    'dp-cgd': strategies.DpCgd(_ROUNDS, 0.9),
    'banded-inverse': strategies.BandedInverse(
        _ROUNDS, [0.8, -0.4, 0.1, -0.1]),
}
_FAMILIES = {
    'identity': strategies.Identity(_ROUNDS),
    **_TOEPLITZ,
    **{f'{name} normalised': strategies.ColumnNormalized(strategy)
       for name, strategy in _TOEPLITZ.items()},
    'robust-toeplitz': strategies.RobustToeplitz(
        _ROUNDS, strategies.taper(_COEFFICIENTS, 4), 4),
    'banded-fractional': strategies.BandedFractional(_ROUNDS, 5, 0.3),
    'inverse-plus-constant': strategies.InversePlusConstant(_ROUNDS, 8, 0.1),
    'lti': strategies.Lti(_ROUNDS, 0.05),
    'banded-inverse-sqrt': strategies.BandedInverseSqrt(_ROUNDS, 9),
    'banded-inverse-fractional': strategies.BandedInverseFractional(
        _ROUNDS, 20, 0.7),
    'banded': strategies.Banded(_rows(9)),
    'dense': strategies.Dense(_dense()),
    'tree': strategies.Tree(_ROUNDS),
    'ternary tree': strategies.Tree(_ROUNDS, arity=3),
    'online-tree': strategies.OnlineTree(_ROUNDS),
    **{f'stamped {block.family} of {block.rounds}':
       strategies.Stamped(_ROUNDS, block) for block in (
           strategies.Identity(7),
           strategies.BandedToeplitz(13, _COEFFICIENTS),
           strategies.Blt(7, [0.3, 0.2], [0.9, 0.4]),
           strategies.Blt(1, [0.3], [0.9]),
           strategies.DpCgd(7, 0.8),
           strategies.OnlineTree(6),
           strategies.OnlineTree(1),
           strategies.OnlineTree(64),
           strategies.Tree(8))},
    **{f'stamped normalised {block.family}': strategies.Stamped(
        _ROUNDS, strategies.ColumnNormalized(block)) for block in (
            strategies.BandedToeplitz(13, _COEFFICIENTS),
            strategies.Blt(7, [0.3, 0.2], [0.9, 0.4]),
            strategies.BandedInverse(11, [1.0, -0.6, -0.1]))},
}
_FEW_INVERSE_BANDS = [
    name for name, strategy in _FAMILIES.items()
    if strategy.inverse_bands is not None]


def _normals(first, count):
  words = tf.constant(_KEY.words())
  return np.stack([
      noise.standard_normal(words, tf.constant(i), 0, _DIMENSION)
      for i in range(first, first + count)]).astype(np.float64)


def _tree_noise(tree, rounds, first_node):
  """Returns the differences of the noisy prefix sums, node by node."""
  decoder = np.diff(tree.prefix_decoder(), axis=0, prepend=0.0)[:rounds]
  return decoder @ _normals(first_node, decoder.shape[1]), decoder.shape[1]


@functools.cache
def _expected(name):
  """Returns C^-1 Z in float64, [n, d], without the plan."""
  strategy = _FAMILIES[name]
  block = getattr(strategy, 'block', strategy)
  if isinstance(block, strategies.OnlineTree):
    noises, node = [], 0
    for start in range(0, _ROUNDS, block.rounds):
      y, nodes = _tree_noise(block, min(block.rounds, _ROUNDS - start), node)
      noises.append(y)
      node += nodes
    return np.concatenate(noises)
  return np.linalg.solve(strategy.matrix(), _normals(0, _ROUNDS))


def _streamed(strategy, dimension=_DIMENSION):
  made = stream.Stream(noise.Plan.of(strategy), dimension, _KEY)
  return np.stack([y.copy() for y in made.rows() if y is not None])


@functools.cache
def _stream_of(name):
  """Returns the noise of a family as production makes it."""
  return _streamed(_FAMILIES[name])


def _assert_rounding_only(y, name):
  """Asserts that y is the streamed noise up to a few units in the last place.
  """
  expected = _stream_of(name)
  ulp = np.spacing(np.abs(expected).max(axis=1, keepdims=True))
  assert np.max(np.abs(y - expected) / ulp) <= _ULPS


def _rounds(source, start=0, stop=_ROUNDS, state=None):
  """Returns (y of the rounds, state after them)."""
  @tf.function(autograph=False)
  def run(state):
    _, state, ys = tf.while_loop(
        lambda t, *_: t < stop, step,
        [tf.constant(start, tf.int64), state,
         tf.TensorArray(tf.float32, stop - start)])
    return ys.stack(), state

  def step(t, state, ys):
    y, state = source.next(state, t)
    return t + 1, state, ys.write(tf.cast(t - start, tf.int32), y)

  ys, state = run(source.initial_state() if state is None else state)
  return ys.numpy(), state


@pytest.mark.parametrize('block_rounds', [1, 3, 16])
@pytest.mark.parametrize('name', _FAMILIES)
def test_streamed_noise_is_that_of_the_matrix(monkeypatch, name, block_rounds):
  _stream_of(name)  # In blocks of the usual size.
  for name_of_bound in ('_BLOCK_ROUNDS', '_MOST_BLOCK_ROUNDS'):
    monkeypatch.setattr(stream, name_of_bound, block_rounds)
  monkeypatch.setattr(stream, '_CHUNK', 8)
  y = _streamed(_FAMILIES[name])
  assert y.dtype == np.float32 and y.shape == (_ROUNDS, _DIMENSION)
  np.testing.assert_allclose(y, _expected(name), rtol=0, atol=1e-5)
  _assert_rounding_only(y, name)


@pytest.mark.parametrize('name', _FAMILIES)
def test_noise_in_the_state_is_that_of_the_matrix(name):
  source = noise.StateSource(
      noise.Plan.of(_FAMILIES[name]), _DIMENSION, _KEY)
  whole, _ = _rounds(source)
  np.testing.assert_allclose(whole, _expected(name), rtol=0, atol=1e-5)
  _assert_rounding_only(whole, name)


@pytest.mark.parametrize('name', _FEW_INVERSE_BANDS)
def test_regenerated_noise_is_that_of_the_matrix(name):
  source = noise.RegenerateSource(
      noise.Plan.of(_FAMILIES[name]), _DIMENSION, _KEY)
  whole, _ = _rounds(source)
  source.close()
  np.testing.assert_allclose(whole, _expected(name), rtol=0, atol=1e-5)
  _assert_rounding_only(whole, name)


@pytest.mark.parametrize('name', [
    'banded', 'blt', 'blt normalised', 'dp-cgd normalised', 'online-tree',
    'stamped blt of 7'])
def test_run_split_in_two_equals_one_run(name):
  plan = noise.Plan.of(_FAMILIES[name])
  whole, _ = _rounds(noise.StateSource(plan, _DIMENSION, _KEY))
  first, state = _rounds(noise.StateSource(plan, _DIMENSION, _KEY), 0, 17)
  second, _ = _rounds(
      noise.StateSource(plan, _DIMENSION, _KEY), 17, _ROUNDS, state)
  assert np.array_equal(np.concatenate([first, second]), whole)


@pytest.mark.parametrize('name', [
    'banded', 'blt normalised', 'dp-cgd', 'online-tree'])
def test_tape_of_a_run_split_in_two_gives_the_same_bits(tmp_path, name):
  plan = noise.Plan.of(_FAMILIES[name])
  noises = []
  for start in (0, 17):
    source = noise.TapeSource(noise.Tape(
        tmp_path / str(start), plan, _DIMENSION, _KEY, start_round=start))
    noises.append(_rounds(source, start)[0])
    source.close()
  np.testing.assert_allclose(noises[0], _expected(name), rtol=0, atol=1e-5)
  assert np.array_equal(noises[0], _stream_of(name))
  assert np.array_equal(noises[0][17:], noises[1])


def _p_value(covariance, matrix):
  """Returns the p-value of 'd = _WIDE columns are iid N(0, C^-1 C^-T)'.

  C y has iid standard normal entries then, so sqrt(d) times each off-diagonal
  entry of its sample covariance, and sqrt(d / 2) times each diagonal entry less
  one, is close to a standard normal, independent of the others.

  Args:
    covariance: of the sample y, [n, n].
    matrix: C.
  """
  n, d = len(matrix), _WIDE
  whitened = matrix @ covariance @ matrix.T
  statistic = (
      d * np.sum(whitened[np.triu_indices(n, 1)]**2)
      + d / 2 * np.sum((np.diag(whitened) - 1)**2))
  return scipy.stats.chi2.sf(statistic, n * (n + 1) / 2)


# One of every family, and columns that are scaled.
_EVERY_FAMILY = {
    **{strategy.family: name for name, strategy in reversed(_FAMILIES.items())
       if not isinstance(strategy, strategies.ColumnNormalized)},
    'normalised': 'blt normalised'}


def test_every_family_is_tested():
  assert set(_EVERY_FAMILY) == {*strategies.FAMILIES, 'normalised'}


@pytest.mark.parametrize('family', _EVERY_FAMILY)
def test_covariance_over_100000_coordinates_is_that_of_the_family(family):
  strategy = _FAMILIES[_EVERY_FAMILY[family]]
  y = _streamed(strategy, _WIDE).astype(np.float64)
  covariance, matrix = y @ y.T / _WIDE, strategy.matrix()
  assert _p_value(covariance, matrix) > _FALSE_ALARM
  # What the test must be able to reject: noise that is 2% too large or too
  # small, and that of the next round, or of the round before.
  assert _p_value(1.02**2 * covariance, matrix) < _FALSE_ALARM
  assert _p_value(covariance / 1.02**2, matrix) < _FALSE_ALARM
  if strategy.bands > 1:  # Else all rounds are alike.
    for shift in (1, -1):
      shifted = np.roll(covariance, (shift, shift), axis=(0, 1))
      assert _p_value(shifted, matrix) < _FALSE_ALARM


@pytest.mark.parametrize('name', ['online-tree', 'stamped online-tree of 6'])
def test_tree_noise_has_the_covariance_of_its_matrix(name):
  """The plan's noise as a matrix of node noises, without sampling."""
  strategy = _FAMILIES[name]
  plan = noise.Plan.of(strategy)
  scale, _ = plan.block(0, _ROUNDS)
  nodes = scale[:_ROUNDS].astype(np.float64)
  inverse = np.linalg.inv(strategy.matrix())
  np.testing.assert_allclose(nodes @ nodes.T, inverse @ inverse.T, atol=2e-6)


def _long_run(source, strategy):
  if source == 'stream':
    return _streamed(strategy, 4)
  return _rounds(
      noise.StateSource(noise.Plan.of(strategy), 4, _KEY), 0, _LONG)[0]


@functools.cache
def _long_normals():
  words = tf.constant(_KEY.words())
  draw = tf.function(lambda: tf.map_fn(
      lambda t: noise.standard_normal(words, t, 0, 4),
      tf.range(_LONG), fn_output_signature=tf.float32))
  return draw().numpy().astype(np.float64)


@pytest.mark.parametrize('source', ['stream', 'state'])
def test_error_of_a_slow_blt_stays_small(source):
  blt = strategies.Blt(_LONG, [0.05, 0.3], [0.99995, 0.9])
  z = _long_normals()
  expected = np.empty_like(z)
  buffers = np.zeros((2, 4))
  for t in range(_LONG):
    expected[t] = z[t] - blt.omega @ buffers
    buffers = blt.theta[:, None] * buffers + expected[t]
  assert np.abs(_long_run(source, blt) - expected).max() < 2e-6


@pytest.mark.parametrize('source', ['stream', 'state'])
def test_error_of_many_bands_stays_small(source):
  strategy = strategies.BandedToeplitz(
      _LONG, strategies.SqrtToeplitz(_LONG).column(64))
  expected = scipy.signal.lfilter(
      [1.0], strategy.coefficients, _long_normals(), axis=0)
  assert np.abs(_long_run(source, strategy) - expected).max() < 5e-6
