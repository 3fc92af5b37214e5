"""Tests of the streamed noise of every family against its definition."""

import functools
import sys

import families
import numpy as np
import pytest
import recursions
import scipy.stats
import threadpoolctl

from tff_bandmf import noise, strategies
from tff_bandmf.noise import generator
from tff_bandmf.noise.producer import (
  block_makers,
  blocks,
  past_noise,
  stream,
)

_ROUNDS = 40
_DIMENSION = 52
_Z_STEPS = 3000.0
_KEY = noise.Key.from_seed(17)
_RNG = np.random.default_rng(5)
# For each test of covariance, with a key drawn at random; the key is fixed.
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


_COEFFICIENTS = 1.3 * 0.9 ** np.arange(7) / np.sqrt(1 + np.arange(7))
_TOEPLITZ = {
  'banded-toeplitz': strategies.BandedToeplitz(_ROUNDS, _COEFFICIENTS),
  'wide': strategies.BandedToeplitz(_ROUNDS, 1 / np.arange(1.0, _ROUNDS + 1)),
  'banded-sqrt': strategies.BandedSqrt(_ROUNDS, 6),
  'sqrt-toeplitz': strategies.SqrtToeplitz(_ROUNDS),
  'blt': strategies.Blt(_ROUNDS, [0.2, 0.25, 0.1], [0.99, 0.8, 0.3]),
  'dp-cgd': strategies.DpCgd(_ROUNDS, 0.9),
  'banded-inverse': strategies.BandedInverse(_ROUNDS, [0.8, -0.4, 0.1, -0.1]),
}
_FAMILIES = {
  **families.made(_ROUNDS),
  **_TOEPLITZ,
  **{
    f'{name} normalised': strategies.ColumnNormalized(strategy)
    for name, strategy in _TOEPLITZ.items()
  },
  'banded': strategies.Banded(_rows(9)),
  'dense': strategies.Dense(_dense()),
  'ternary tree': strategies.Tree(_ROUNDS, arity=3),
  **{
    f'stamped {block.family} of {block.rounds}': strategies.Stamped(
      _ROUNDS, block
    )
    for block in (
      strategies.Identity(7),
      strategies.BandedToeplitz(13, _COEFFICIENTS),
      strategies.Blt(7, [0.3, 0.2], [0.9, 0.4]),
      strategies.Blt(1, [0.3], [0.9]),
      strategies.DpCgd(7, 0.8),
      strategies.OnlineTree(6),
      strategies.OnlineTree(1),
      strategies.OnlineTree(64),
      strategies.Tree(8),
    )
  },
  **{
    f'stamped normalised {block.family}': strategies.Stamped(
      _ROUNDS, strategies.ColumnNormalized(block)
    )
    for block in (
      strategies.BandedToeplitz(13, _COEFFICIENTS),
      strategies.Blt(7, [0.3, 0.2], [0.9, 0.4]),
      strategies.BandedInverse(11, [1.0, -0.6, -0.1]),
    )
  },
}


def _streamed(strategy, dimension=_DIMENSION, z_steps=_Z_STEPS, **kwargs):
  made = noise.Stream(strategy.recursion(), z_steps, dimension, _KEY, **kwargs)
  return np.stack([y.copy() for y in made.rows() if y is not None])


@functools.cache
def _z():
  return generator.Generator(_KEY).rows(0, _ROUNDS, 0, _DIMENSION)


@pytest.mark.parametrize('name', _FAMILIES)
def test_noise_is_that_of_the_recursion(name):
  """y is v and the rounding of that very round, given the past y."""
  y = _streamed(_FAMILIES[name])
  assert y.dtype == np.int32 and y.shape == (_ROUNDS, _DIMENSION)
  replay = iter(y.astype(float))

  def given(v):
    latest = next(replay)
    assert np.abs(latest - v).max() <= 0.5 + 1e-9
    return latest

  recursions.run(_FAMILIES[name].recursion(), _z(), _Z_STEPS, given)


@pytest.mark.slow
@pytest.mark.parametrize('name', _FAMILIES)
@pytest.mark.parametrize('block_rounds', [1, 3, 16])
@pytest.mark.deep(but=('[3-',))
def test_blocks_and_chunks_change_no_bit(monkeypatch, name, block_rounds):
  expected = _streamed(_FAMILIES[name])
  monkeypatch.setattr(stream, '_block_rounds', lambda memory: block_rounds)
  monkeypatch.setattr(block_makers, '_CHUNK', 16)
  assert np.array_equal(_streamed(_FAMILIES[name]), expected)


@pytest.mark.slow
@pytest.mark.parametrize('name', _FAMILIES)
@pytest.mark.parametrize('shards', [2, 4])
@pytest.mark.deep(but=('[2-',))
def test_any_sharding_gives_the_same_bits(monkeypatch, name, shards):
  monkeypatch.setattr(block_makers, '_CHUNK', 8)
  monkeypatch.setattr(stream, '_GRID', 16)
  whole = _streamed(_FAMILIES[name])
  parts = [
    _streamed(_FAMILIES[name], coordinates=stream.shard(_DIMENSION, i, shards))
    for i in range(shards)
  ]
  assert np.array_equal(np.concatenate(parts, axis=1), whole)


@pytest.mark.parametrize(
  'name', ['banded', 'blt', 'banded-inverse', 'identity']
)
def test_past_on_disk_gives_the_same_bits(monkeypatch, tmp_path, name):
  monkeypatch.setattr(past_noise.tempfile, 'tempdir', str(tmp_path))
  monkeypatch.setattr(block_makers, '_CHUNK', 16)
  strategy = _FAMILIES[name]
  assert np.array_equal(
    _streamed(strategy, memory=stream.Memory(max_bytes=1)), _streamed(strategy)
  )


def test_noise_out_of_range_is_refused():
  with pytest.raises(OverflowError, match='32 bits'):
    _streamed(strategies.Identity(3), z_steps=2.0**31)
  # A C whose inverse grows without bound.
  with pytest.raises(OverflowError, match='32 bits'):
    _streamed(
      strategies.BandedToeplitz(200, [1.0, 1.2]), dimension=8, z_steps=2.0**16
    )


def test_largest_noise_fits_in_32_bits(monkeypatch):
  def fill(self, z, first, start):
    z[:] = 1.0
    z[:, 1::2] = -1.0

  monkeypatch.setattr(generator.Generator, 'fill', fill)
  # Without memory, and with a memory of y and of z.
  for strategy in (
    strategies.BandedToeplitz(1, [1.0]),
    strategies.BandedToeplitz(2, [1.0, 1e-20]),
    strategies.DpCgd(2, 1e-20),
  ):
    y = _streamed(strategy, z_steps=2.0**31 - 2)
    assert y.min() == -y.max() == -(2**31 - 2)
    with pytest.raises(OverflowError, match='32 bits'):
      _streamed(strategy, z_steps=2.0**31)


def test_inverse_that_float32_would_change_is_made_exactly():
  """y is C^-1 z to the last step where float32 coefficients would lose it."""
  inverse = np.poly([0.99] * 3)
  strategy = strategies.BandedInverse(600, inverse)
  y = _streamed(strategy, dimension=8, z_steps=2.0**22)
  z = generator.Generator(_KEY).rows(0, 600, 0, 8)
  ideal = recursions.run(strategy.recursion(), z, 2.0**22, rounding=lambda v: v)
  assert np.abs(y - ideal).max() <= 0.5 + 1e-3
  # Coefficients in float32 are the inverse of another C.
  rounded = strategies.BandedInverse(
    600, inverse.astype(np.float32).astype(np.float64)
  )
  other = recursions.run(rounded.recursion(), z, 2.0**22, rounding=lambda v: v)
  assert np.abs(y - other).max() > 0.6


def _p_value(covariance, matrix):
  """Returns the p-value of 'd = _WIDE columns are iid N(0, C^-1 C^-T)'.

  C y has iid standard normal entries then, so sqrt(d) times each off-diagonal
  entry of its sample covariance, and sqrt(d / 2) times each diagonal entry
  less one, is close to a standard normal, independent of the others.

  Args:
    covariance: of the sample y, [n, n].
    matrix: C.
  """
  n, d = len(matrix), _WIDE
  whitened = matrix @ covariance @ matrix.T
  statistic = d * np.sum(whitened[np.triu_indices(n, 1)] ** 2) + d / 2 * np.sum(
    (np.diag(whitened) - 1) ** 2
  )
  return scipy.stats.chi2.sf(statistic, n * (n + 1) / 2)


@pytest.mark.slow
@pytest.mark.parametrize('family', families.made(_ROUNDS))
@pytest.mark.deep(
  but=(
    '[banded-toeplitz',
    '[banded-inverse]',
    'blt',
    'dp-cgd',
    'tree]',
    'dense',
    'custom',
    'normalised',
  )
)
def test_covariance_over_100000_coordinates_is_that_of_the_family(family):
  strategy = families.made(_ROUNDS)[family]
  y, matrix = _streamed(strategy, _WIDE), strategy.matrix()
  covariance = np.zeros_like(matrix)
  # Part by part: an array of 32 MB is new memory every time.
  for part in np.array_split(y, 8, axis=1):
    part = part / _Z_STEPS
    covariance += part @ part.T / _WIDE
  assert _p_value(covariance, matrix) > _FALSE_ALARM
  # What the test must be able to reject: noise that is 2% too large or too
  # small, and that of the next round, or of the round before.
  assert _p_value(1.02**2 * covariance, matrix) < _FALSE_ALARM
  assert _p_value(covariance / 1.02**2, matrix) < _FALSE_ALARM
  if strategy.bands > 1:  # Else all rounds are alike.
    for shift in (1, -1):
      shifted = np.roll(covariance, (shift, shift), axis=(0, 1))
      assert _p_value(shifted, matrix) < _FALSE_ALARM


@pytest.mark.parametrize('dimension', [1, 15, 16, 17, 100, 160])
def test_shards_are_all_coordinates_once_in_whole_pieces(
  monkeypatch, dimension
):
  monkeypatch.setattr(stream, '_GRID', 16)
  pieces = -(-dimension // 16)
  for shards in range(1, pieces + 1):
    parts = [stream.shard(dimension, i, shards) for i in range(shards)]
    assert [c for part in parts for c in part] == list(range(dimension))
    assert all(part.start % 16 == 0 for part in parts)
    sizes = [-(-len(part) // 16) for part in parts]
    assert max(sizes) - min(sizes) <= 1
  with pytest.raises(ValueError, match=f'shards={pieces + 1}: .*most'):
    stream.shard(dimension, 0, pieces + 1)


@pytest.mark.parametrize('index, shards', [(-1, 2), (2, 2), (0, 0)])
def test_shard_that_is_none_is_refused(index, shards):
  with pytest.raises(ValueError, match='shards?='):
    stream.shard(_DIMENSION, index, shards)


@pytest.mark.parametrize('shards', [True, 2.0])
def test_number_of_shards_that_is_no_integer_is_refused(shards):
  with pytest.raises(TypeError, match='shards='):
    stream.shard(_DIMENSION, 0, shards)


@pytest.mark.parametrize(
  'coordinates',
  [
    range(8, 32),
    range(0, 24),
    range(0),
    range(0, 128),
    range(-16, 16),
    range(0, 32, 2),
  ],
)
def test_coordinates_off_the_pieces_are_refused(monkeypatch, coordinates):
  monkeypatch.setattr(stream, '_GRID', 16)
  with pytest.raises(ValueError, match='whole pieces of 16'):
    _streamed(_FAMILIES['banded'], coordinates=coordinates)


def test_noise_of_no_size_is_refused():
  with pytest.raises(ValueError, match='z_steps=0'):
    _streamed(_FAMILIES['banded'], z_steps=0.0)


def test_backend_that_is_not_there_is_refused(monkeypatch):
  with pytest.raises(ValueError, match='backend=torch.*numpy, jax'):
    _streamed(_FAMILIES['banded'], backend='torch')
  name = 'tff_bandmf.noise.producer.jax_devices'
  monkeypatch.delitem(sys.modules, name, raising=False)
  monkeypatch.delattr('tff_bandmf.noise.producer.jax_devices', raising=False)
  monkeypatch.setitem(sys.modules, 'jax', None)
  with pytest.raises(ImportError, match='jax=not installed: .*JAX'):
    _streamed(_FAMILIES['banded'], backend='jax')


def test_blas_has_one_thread_while_noise_is_made(monkeypatch):
  seen = []
  advance = blocks.PastYBlock.advance

  def spy(self, *args):
    seen.extend(
      each['num_threads']
      for each in threadpoolctl.threadpool_info()
      if each['user_api'] == 'blas'
    )
    return advance(self, *args)

  monkeypatch.setattr(blocks.PastYBlock, 'advance', spy)
  with threadpoolctl.threadpool_limits(2, 'blas'):
    _streamed(_FAMILIES['banded'])
  assert set(seen) == {1}
