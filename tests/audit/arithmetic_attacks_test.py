"""Attacks on arithmetic: on float32, where they succeed, and on the lattice.

The float32 arithmetic is what it was before sums and noise were integers, and
here alone. A key drawn at random would raise false alarms at
`arithmetic_attacks.FALSE_ALARM`; keys are fixed.
"""

import functools
import itertools
import json

import numpy as np
import pytest
import scipy.special
import scipy.stats
import tensorflow as tf

from tff_bandmf import accounting, noise, participation, query, strategies
from tff_bandmf.audit import arithmetic_attacks
from tff_bandmf.noise import generator

_EPSILON, _DELTA = arithmetic_attacks.EPSILON, arithmetic_attacks.DELTA
_NOISE_MULTIPLIER = accounting.gaussian_noise_multiplier(_EPSILON, _DELTA)


# Float32.


def _float32_sum(values):
  return float(np.cumsum(values, dtype=np.float32)[-1])


def _float32_normals(random, count):
  """Returns normals of 23 bits by Box and Muller, as TensorFlow's Philox."""
  u, v = random.integers(0, 2**23, (2, count)).astype(np.float32) * np.float32(
    2**-23
  )
  radius = np.sqrt(np.float32(-2) * np.log(np.maximum(u, np.float32(1e-7))))
  return radius * np.sin(np.float32(2 * np.pi) * v)


def _float32_release(random, sums):
  return sums + np.float32(_NOISE_MULTIPLIER) * _float32_normals(
    random, len(sums)
  )


def _float32_inverse(strategy, z):
  """Returns C^-1 z with coefficients, z and sums of float32."""
  y = np.zeros(z.shape, np.float32)
  z = z.astype(np.float32)
  for i, each in enumerate(strategy.inverse_coefficients.astype(np.float32)):
    y[i:] += each * z[: len(z) - i]
  return y.astype(np.float64)


# The lattice.


@functools.cache
def _lattice():
  return noise.Lattice.from_noise(
    strategies.Identity(1).recursion(),
    _NOISE_MULTIPLIER,
    largest_cohort=1,
    dimension=arithmetic_attacks.LOW_BITS_DIMENSION,
  )


def _streamed(recursion, z_steps, dimension, seed):
  made = noise.Stream(recursion, z_steps, dimension, noise.Key.from_seed(seed))
  return np.stack([y.copy() for y in made.rows() if y is not None])


def _steps(sums):
  """Returns sums in whole steps, a clip less three steps being the most."""
  return np.rint(sums * (_lattice().clip_steps - 3.0)).astype(np.int32)


def _integer_release(seeds, sums):
  lattice = _lattice()
  (y,) = _streamed(
    strategies.Identity(1).recursion(), lattice.z_steps, len(sums), next(seeds)
  )
  released = _steps(sums) + y
  return (released / lattice.clip_steps).astype(np.float32)


# How far one client moves a sum.


@pytest.mark.parametrize(
  'clients, expected', [(1000, 1.0138), (6500, 1.57), (10_000, 1.96)]
)
def test_client_moves_float32_sums_by_more_than_its_clip(clients, expected):
  """The attack needs no luck: its power is 1."""
  outcome = arithmetic_attacks.summing(_float32_sum, clients)
  assert outcome.succeeded
  assert outcome.statistic == pytest.approx(expected, abs=0.01)
  # Records are clipped, and another order of the same numbers is not moved.
  records = []
  arithmetic_attacks.summing(
    lambda values: records.append(values) or 0.0, clients
  )
  assert all(0 <= each.min() and each.max() <= 1 for each in records)
  assert np.sum(records[0] != records[1]) == 1
  assert not arithmetic_attacks.summing(
    lambda values: float(np.sum(values, dtype=np.float64)), clients
  ).succeeded


@pytest.mark.parametrize(
  'clients',
  [
    1000,
    pytest.param(6500, marks=pytest.mark.slow),
    pytest.param(10_000, marks=pytest.mark.slow),
  ],
)
def test_client_moves_integer_sums_by_at_most_its_clip(clients):
  """The query's own records and sums; whatever the order, they are exact."""
  lattice = noise.Lattice(20, clients, 0.0)
  outcome = arithmetic_attacks.summing(
    functools.partial(arithmetic_attacks.summed, lattice), clients
  )
  assert not outcome.succeeded
  assert 0.999 < outcome.statistic <= 1


def _crafted(random):
  """Returns entries just above a half, and one that fills the norm; clip."""
  bits, dimension = random.integers(6, 10), random.integers(100, 400)
  radius = 2.0**bits - dimension / (24 * 2.0**bits) - 2
  entry = np.floor(0.9 * radius / np.sqrt(dimension)) + 0.501
  while (dimension - 1) * entry**2 > radius**2:
    entry -= 1
  record = np.full(dimension, entry)
  record[0] = np.sqrt(radius**2 - np.sum(record[1:] ** 2)) - 1e-9
  signs = random.choice([-1.0, 1.0], dimension)
  return random.permutation(record) * signs, int(bits)


@pytest.mark.slow
def test_crafted_records_have_at_most_the_norm_of_their_clip():
  """300 records that rounding makes longer; norms are of Python's integers."""
  random = np.random.default_rng(8)
  longer = 0
  for _ in range(300):
    record, bits = _crafted(random)
    clip = query.GraphClipping.from_clip(
      2.0**bits, tf.TensorSpec(record.shape, tf.float64), bits
    )
    clipped = clip.clip(tf.constant(record)).numpy()
    assert sum(int(each) ** 2 for each in clipped) <= 4**bits
    # What is lost is little.
    assert np.abs(clipped - record).max() < 1
    longer += np.sum(np.rint(record) ** 2) > 4**bits
  assert longer > 150


# Draws beyond the end of float32 normals.


class _LastWords:
  """Words of the largest normal that Box and Muller make."""

  def integers(self, low, high, shape):
    return np.full(shape, [[low], [high // 4]])


@pytest.mark.slow
def test_float32_normals_end():
  """None of any number of draws is beyond: the power is 1."""
  (end,) = _float32_normals(_LastWords(), 1)
  z = _float32_normals(np.random.default_rng(0), 1 << 22)
  assert 5 < np.abs(z).max() <= end < arithmetic_attacks.TAIL
  outcome = arithmetic_attacks.tail(
    lambda draws, threshold: draws * int(end > threshold)
  )
  assert outcome.succeeded and outcome.statistic == 0
  assert outcome.false_alarm <= 1e-6


@pytest.mark.slow
def test_tail_of_the_generator_is_that_of_normals():
  """2^30 draws, of which those with small words are made."""
  key = noise.Key.from_seed(3)
  outcome = arithmetic_attacks.tail(
    functools.partial(arithmetic_attacks.beyond, key)
  )
  assert not outcome.succeeded
  assert 1 <= outcome.statistic <= 40


@pytest.mark.slow
@pytest.mark.parametrize('threshold', [2.0, 4.0])
def test_normals_beyond_are_counted(threshold):
  key = noise.Key.from_seed(4)
  draws = 3 * 65536 + 1001
  rows = [
    generator.Generator(key).rows(row, 1, 0, min(65536, draws - 65536 * row))
    for row in range(4)
  ]
  expected = sum(int(np.sum(np.abs(row) > threshold)) for row in rows)
  assert arithmetic_attacks.beyond(key, draws, threshold) == expected > 0


# Last bits of a release.


def test_last_bits_of_float32_releases_tell_sums_apart():
  """In a release about 12 coordinates give it away, so that none does with
  probability e^-12: the power is above 0.99 for 400 releases together.
  """
  random = np.random.default_rng(1)
  outcome = arithmetic_attacks.low_bits(
    functools.partial(_float32_release, random)
  )
  assert outcome.succeeded and outcome.statistic > _EPSILON
  assert outcome.false_alarm <= 1e-6


@pytest.mark.slow
def test_last_bits_of_integer_releases_tell_nothing():
  outcome = arithmetic_attacks.low_bits(
    functools.partial(_integer_release, itertools.count())
  )
  assert not outcome.succeeded and outcome.statistic == 0


@pytest.mark.parametrize('bits', [1, 4, 8])
@pytest.mark.parametrize('with_victim', [False, True])
def test_last_bits_of_integers_are_uniform(bits, with_victim):
  """Chi-square; fails for one random key in a million."""
  d = arithmetic_attacks.LOW_BITS_DIMENSION
  sums = np.full(d, float(with_victim) * d**-0.5)
  recursion = strategies.Identity(50).recursion()
  y = _streamed(recursion, _lattice().z_steps, d, seed=5)
  last = (_steps(sums) + y) % 2**bits
  counts = np.bincount(last.ravel(), minlength=2**bits)
  assert scipy.stats.chisquare(counts).pvalue > arithmetic_attacks.FALSE_ALARM
  # Every other number alone would be told apart.
  even = np.bincount(last.ravel() & ~1, minlength=2**bits)
  assert scipy.stats.chisquare(even).pvalue < arithmetic_attacks.FALSE_ALARM


# The noise of another C.


def _inverse(power):
  return strategies.BandedInverse(600, np.poly([0.99] * power))


def _attacked(strategy, float32=False, dimension=32, z_steps=2.0**16):
  key = noise.Key.from_seed(6)
  z = generator.Generator(key).rows(0, strategy.rounds, 0, dimension)
  if float32:
    return arithmetic_attacks.inverse(
      strategy, _float32_inverse(strategy, z), z, 0.0
    )
  recursion = strategy.recursion()
  y = _streamed(recursion, z_steps, dimension, seed=6) / z_steps
  scales = recursion.scales[recursion.phase(np.arange(strategy.rounds))]
  return arithmetic_attacks.inverse(strategy, y, z, 1 / (z_steps * scales))


@pytest.mark.parametrize('power', [3, 4])
def test_coefficients_of_float32_are_of_another_inverse(power):
  """Not by chance: neither verdict depends on the key."""
  float32 = _attacked(_inverse(power), float32=True)
  assert float32.succeeded and float32.statistic > 5e-3
  outcome = _attacked(_inverse(power))
  assert not outcome.succeeded and outcome.statistic < 2.0**-16


def test_claim_of_8_was_one_of_83():
  strategy = _inverse(4)
  other = strategies.BandedInverse(
    600, strategy.inverse_coefficients.astype(np.float32).astype(np.float64)
  )
  claimed, true = (
    np.linalg.norm(each.matrix(), axis=0).max() for each in (strategy, other)
  )
  noise_multiplier = accounting.gaussian_noise_multiplier(8.0, _DELTA)
  epsilon = accounting.gaussian_epsilon(
    noise_multiplier * claimed / true, _DELTA
  )
  assert 80 < epsilon < 90
  # No lattice is fine enough for records of 1,000 coordinates, and says so.
  with pytest.raises(ValueError, match='lattice=2.*steps a clip'):
    noise.Lattice.from_noise(
      strategy.recursion(),
      noise_multiplier * claimed,
      largest_cohort=100,
      dimension=1000,
    )


@pytest.mark.parametrize(
  'strategy',
  [
    strategies.BandedToeplitz(100, 1 / np.sqrt(np.arange(1.0, 31))),
    strategies.BandedToeplitz(100, [1.0, 1.0]),
    strategies.Blt(100, [0.2, 0.25, 0.1], [0.99, 0.8, 0.3]),
    strategies.BandedInverseSqrt(100, 4),
    strategies.OnlineTree(100),
    strategies.ColumnNormalized(strategies.BandedSqrt(100, 8)),
  ],
  ids=lambda strategy: strategy.family,
)
def test_noise_is_that_of_its_own_c(strategy):
  assert not _attacked(strategy).succeeded


# All of them, as an audit makes them.


_SPEC = accounting.Guarantee(
  strategies.BandedToeplitz(30, [1.0, 0.5]), participation.MinSep(5), 1.0
)


@pytest.mark.slow
def test_attacks_of_an_audit_fail(monkeypatch):
  # As many as 2^30 normals have, which another test draws.
  monkeypatch.setattr(arithmetic_attacks, 'beyond', lambda *_: 15)
  outcomes = arithmetic_attacks.attack(_SPEC)
  assert [each.name for each in outcomes] == [
    'summing', 'tail', 'low_bits', 'inverse'
  ]  # fmt: skip
  assert not any(each.succeeded for each in outcomes)
  assert sum(each.false_alarm for each in outcomes) <= 2e-6
  json.dumps([each.to_dict() for each in outcomes], allow_nan=False)
  assert all(
    str(each).startswith(f'{each.name}: pass, the attack finds no fault: ')
    for each in outcomes
  )


@pytest.mark.slow
def test_attack_of_an_audit_that_succeeds_is_told(monkeypatch):
  monkeypatch.setattr(arithmetic_attacks, 'TAIL', 4.5)
  monkeypatch.setattr(arithmetic_attacks, 'TAIL_DRAWS', 2**24)
  words = generator.Generator.words
  # No magnitude is small.
  monkeypatch.setattr(
    generator.Generator,
    'words',
    lambda *args: words(*args) | np.uint64(2**47),
  )
  outcomes = {each.name: each for each in arithmetic_attacks.attack(_SPEC)}
  assert outcomes['tail'].succeeded
  assert 'tail: fail, the attack succeeds: 0 of ' in str(outcomes['tail'])
  assert not outcomes['summing'].succeeded
