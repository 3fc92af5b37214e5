"""Tests of where samples come from: their law, their mean and their bound."""

import functools
import itertools
import math

import numpy as np
import pytest

from tff_bandmf import strategies
from tff_bandmf.accounting.kinds import b_min_sep, balls_in_bins
from tff_bandmf.accounting.methods import importance

_STDDEV = 1.4
_EPSILON = 1.2


def _patterns(rounds, min_sep, prob, firsts):
  """Returns the rounds that one client may take, and how likely they are."""
  patterns, odds = [], []
  for pattern in itertools.product([0, 1], repeat=rounds):
    total = 0.0
    for free, likely in enumerate(firsts):
      for t, taken in enumerate(pattern):
        if t < free:
          likely *= not taken
        else:
          likely *= prob if taken else 1 - prob
          free = t + min_sep if taken else free
      total += likely
    if total:
      patterns.append(pattern)
      odds.append(total)
  assert sum(odds) == pytest.approx(1)
  return np.array(patterns, float), np.array(odds)


def _b_min_sep(rounds, min_sep, bands, prob=0.3, warm=True):
  """Returns a mixture, and [patterns, n] means over s with their odds."""
  coefficients = np.array([1.0, 0.7, 0.4])[:bands]
  strategy = strategies.BandedToeplitz(rounds, coefficients)
  wait = prob / (1 + (min_sep - 1) * prob) if min_sep > 1 else 0.0
  firsts = [1 - (min_sep - 1) * wait] + [wait] * (min_sep - 1)
  patterns, odds = _patterns(rounds, min_sep, prob, firsts if warm else [1.0])
  return (
    b_min_sep.BMinSepMixture(
      b_min_sep.Columns(
        strategies.columns_of_rows(strategy.band_rows(0, rounds))
      ),
      _STDDEV,
      b_min_sep.Law(min_sep, prob, wait if warm else None),
    ),
    patterns @ strategy.matrix().T / _STDDEV,
    odds,
    patterns,
  )


def _balls_in_bins():
  means = np.array([[1.5, 0.4, 0.0], [0.3, 1.2, 0.5], [0.0, 0.2, 1.1]])
  mixture = balls_in_bins.BallsInBinsMixture(means @ means.T, _STDDEV)
  return mixture, means / _STDDEV, np.full(3, 1 / 3)


def _tilted_odds(means, odds, tilt):
  """Returns the odds of the patterns of copies, times e^t, [odds, ...]."""
  a, logs, products = tilt.factor, 0.0, means @ means.T
  for j in range(tilt.copies):
    axis = [1] * tilt.copies
    axis[j] = -1
    own = np.log(odds) + a * (a - 1) / 2 * np.diag(products)
    logs = logs + own.reshape(axis)
    for k in range(j):
      logs = logs + a**2 * products.reshape(
        [len(odds) if i in (j, k) else 1 for i in range(tilt.copies)]
      )
  return np.exp(logs)


_TILTS = [
  importance.Tilt(1, 0.6),
  importance.Tilt(2, 1.0),
  importance.Tilt(2, 2.1),
  importance.Tilt(3, 2.6),
  importance.Tilt(4, 3.0),
]


@pytest.mark.parametrize('tilt', _TILTS, ids=str)
@pytest.mark.parametrize(
  ('rounds', 'min_sep', 'bands'),
  [(5, 1, 1), (5, 2, 2), (6, 3, 3), (7, 4, 2), (3, 7, 3), (1, 1, 1)],
)
@pytest.mark.parametrize('warm', [True, False])
def test_normalizer_is_the_mean_over_all_rounds(
  rounds, min_sep, bands, tilt, warm
):
  mixture, means, odds, _ = _b_min_sep(
    rounds, min_sep, min(bands, rounds), warm=warm
  )
  assert mixture.log_normalizer(tilt) == pytest.approx(
    math.log(_tilted_odds(means, odds, tilt).sum()), rel=1e-12
  )


def test_normalizer_of_bins_is_at_least_each_product():
  mixture, means, odds = _balls_in_bins()
  one = importance.Tilt(1, 0.6)
  assert mixture.log_normalizer(one) == pytest.approx(
    math.log(_tilted_odds(means, odds, one).sum()), rel=1e-12
  )
  for copies in (2, 3):
    for factor in (1.0, 1.4):
      products = []
      for bins in itertools.product(range(3), repeat=copies):
        product, earlier = 1.0, np.zeros(3)
        for j in bins:
          exponents = factor * (factor - 1) / 2 * (means**2).sum(1)
          exponents += factor**2 * means @ earlier
          product *= odds @ np.exp(exponents)
          earlier += means[j]
        products.append(math.log(product))
      tilt = importance.Tilt(copies, copies * factor - 1)
      assert (
        mixture.log_normalizer(tilt) >= max(products) - 1e-12 > min(products)
      )


def test_weights_beyond_the_range_of_float64_are_not_used():
  mixture = balls_in_bins.BallsInBinsMixture(np.diag([900.0, 1.0]), 1.0)
  assert mixture.log_normalizer(importance.Tilt(2, 1.0)) == math.inf


@pytest.mark.parametrize('tilt', [_TILTS[1], *_TILTS[3:]], ids=str)
@pytest.mark.parametrize(('min_sep', 'bands'), [(1, 1), (2, 2), (3, 2), (7, 2)])
@pytest.mark.parametrize('warm', [True, False])
def test_copies_of_rounds_are_drawn_with_the_tilted_odds(
  min_sep, bands, warm, tilt
):
  """Chi-squared over the sums of copies; one false alarm in 10^6."""
  count = 40_000
  mixture, means, odds, patterns = _b_min_sep(4, min_sep, bands, warm=warm)
  drawn = mixture._copies(tilt).draw(np.random.default_rng(1), count)
  code = 5.0 ** np.arange(4)
  sums = functools.reduce(np.add.outer, [patterns @ code] * tilt.copies).ravel()
  tilted = _tilted_odds(means, odds, tilt).ravel()
  codes, cells = np.unique(sums, return_inverse=True)
  expected = count * np.bincount(cells, tilted) / tilted.sum()
  assert set(seen := code @ drawn.toarray()) <= set(codes)
  observed = np.bincount(np.searchsorted(codes, seen), minlength=len(codes))
  statistic = ((observed - expected) ** 2 / expected).sum()
  degrees = len(codes) - 1
  # Laurent and Massart's bound of the chi-squared tail.
  assert statistic <= degrees + 2 * math.sqrt(degrees * 14) + 28


def _exact(means, odds):
  """Returns delta with the client removed, integrated on a grid."""
  axes = [np.linspace(-6, m.max() + 7, 101) for m in means.T]
  volume = math.prod(axis[1] - axis[0] for axis in axes)
  y = np.stack(np.meshgrid(*axes, indexing='ij'), -1).reshape(-1, len(axes))
  ratio = np.exp(y @ means.T - (means**2).sum(1) / 2) @ odds
  density = np.exp(-(y**2).sum(1) / 2) / (2 * math.pi) ** (len(axes) / 2)
  return volume * (np.maximum(ratio - math.exp(_EPSILON), 0) * density).sum()


@pytest.mark.parametrize(
  ('kind', 'tilt'),
  [('b-min-sep', tilt) for tilt in _TILTS]
  + [
    ('balls-in-bins', tilt)
    for tilt in (
      *_TILTS,
      importance.Tilt(3, 2.0),
      importance.Tilt(3, 2.9),
      importance.Tilt(5, 4.0),
    )
  ],
  ids=str,
)
def test_values_respect_their_bound_and_average_to_delta(kind, tilt):
  if kind == 'b-min-sep':
    mixture, means, odds, _ = _b_min_sep(3, 2, 2)
  else:
    mixture, means, odds = _balls_in_bins()
  exact = _exact(means, odds)
  direction = importance.remove(
    mixture, _EPSILON, tilt, mixture.log_normalizer(tilt)
  )
  x = direction.draw(np.random.default_rng(2), 100_000)
  assert 0 <= x.min() <= x.max() <= direction.bound
  # 5 standard deviations: one false alarm in a million.
  assert abs(x.mean() - exact) <= 5 * x.std() / math.sqrt(len(x)) + 1e-6


def test_many_copies_bound_what_many_bins_hide():
  """With few bands and many bins, each value of one or two copies is large."""
  strategy = strategies.BandedSqrt(512, 4)
  mixture = balls_in_bins.BallsInBinsMixture(
    balls_in_bins.bin_gram(strategy, 256), 3.5
  )
  bounds = [
    importance.remove(mixture, 0.5, tilt, mixture.log_normalizer(tilt)).bound
    for tilt in (importance.Tilt(copies, copies - 1.0) for copies in (2, 8))
  ]
  assert bounds[1] < bounds[0] / 10
  assert importance.removes(mixture, 0.5)[0].bound <= bounds[1]


def test_two_copies_bound_what_chance_hides():
  """Hidden among 300 rounds: without samples, one copy bounds nothing."""
  rounds = 300
  strategy = strategies.BandedToeplitz(rounds, [1.0, 0.5])
  mixture = b_min_sep.BMinSepMixture(
    b_min_sep.Columns(
      strategies.columns_of_rows(strategy.band_rows(0, rounds))
    ),
    0.6,
    b_min_sep.Law(100, 1 / 300),
  )
  bounds = {
    copies: min(
      importance.remove(mixture, 4.0, tilt, mixture.log_normalizer(tilt)).bound
      for tilt in (importance.Tilt(copies, k) for k in (1.0, 1.4, 2.0))
    )
    for copies in (1, 2)
  }
  assert bounds[2] < bounds[1] / 10
  assert importance.removes(mixture, 4.0)[0].bound < bounds[1] / 10


def test_several_copies_bound_what_few_bands_hide():
  """A client takes part in 8 of 512 rounds on average."""
  strategy = strategies.BandedSqrt(512, 4)
  mixture = b_min_sep.BMinSepMixture(
    b_min_sep.Columns(strategies.columns_of_rows(strategy.band_rows(0, 512))),
    2.5,
    b_min_sep.Law(4, 1 / 61),
  )
  bounds = [
    importance.remove(mixture, 1.0, tilt, mixture.log_normalizer(tilt)).bound
    for tilt in (importance.Tilt(copies, copies - 1.0) for copies in (2, 5))
  ]
  assert bounds[1] < bounds[0] / 10
  assert importance.removes(mixture, 1.0)[0].bound <= bounds[1]


@pytest.mark.parametrize('wait', [None, 0.0, 0.3])
def test_pairs_beyond_the_range_of_float64_are_not_used(wait):
  mixture = b_min_sep.BMinSepMixture(
    b_min_sep.Columns(strategies.columns_of_rows(np.ones((3000, 1)))),
    0.05,
    b_min_sep.Law(2, 0.5, wait),
  )
  assert mixture.log_normalizer(importance.Tilt(2, 1.0)) == math.inf


def test_tilts_that_bound_nothing_are_refused():
  with pytest.raises(ValueError, match='excess=0.5: .*least'):
    importance.Tilt(2, 0.5)
