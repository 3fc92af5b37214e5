"""Tests of amplification by b-min-sep sampling."""

import itertools
import math

import numpy as np
import pytest

from tff_bandmf import accounting, participation, sensitivity, strategies
from tff_bandmf.accounting.kinds import b_min_sep
from tff_bandmf.accounting.methods import importance

_SAMPLES = 40_000


def _patterns(rounds, min_sep, sampling_prob, start='cold'):
  """Returns all sets of rounds, [patterns, n] of 0 and 1, and their odds."""
  firsts = [1.0]
  if start == 'warm':
    wait = sampling_prob / (1 + (min_sep - 1) * sampling_prob)
    firsts = [1 - (min_sep - 1) * wait] + [wait] * (min_sep - 1)
  patterns, odds = [], []
  for pattern in itertools.product([0.0, 1.0], repeat=rounds):
    taken = [i for i in range(rounds) if pattern[i]]
    if any(b - a < min_sep for a, b in zip(taken, taken[1:])):
      continue
    total = 0.0
    for first, prob in enumerate(firsts):
      i = first
      if any(t < first for t in taken):
        continue
      while i < rounds:
        prob *= sampling_prob if pattern[i] else 1 - sampling_prob
        i += min_sep if pattern[i] else 1
      total += prob
    patterns.append(pattern)
    odds.append(total)
  assert sum(odds) == pytest.approx(1)
  return np.array(patterns), np.array(odds)


def _exact_delta(means, weights, z_stddev, epsilon, points=91):
  """Returns delta of a mixture, integrated on a grid."""
  means = means / z_stddev
  axes = [
    np.linspace(min(0, m.min()) - 7, max(0, m.max()) + 7, points)
    for m in means.T
  ]
  volume = math.prod(axis[1] - axis[0] for axis in axes)
  y = np.stack(np.meshgrid(*axes, indexing='ij'), -1).reshape(-1, len(axes))

  def density(mean):
    return np.exp(-((y - mean) ** 2).sum(-1) / 2) / (2 * math.pi) ** (
      len(axes) / 2
    )

  p = sum(w * density(mean) for w, mean in zip(weights, means))
  q = density(np.zeros(len(axes)))
  scale = math.exp(epsilon)
  return volume * max(
    np.maximum(p - scale * q, 0).sum(), np.maximum(q - scale * p, 0).sum()
  )


def _strategy(rounds=7):
  rows = np.array([[1.0, 0.0], [1.1, 0.6]] + [[0.9, 0.4]] * (rounds - 2))
  return strategies.Banded(rows)


def _spec(
  noise_multiplier=1.0,
  min_sep=3,
  sampling_prob=0.3,
  rounds=7,
  samples=None,
  start='warm',
):
  return accounting.Guarantee(
    _strategy(rounds),
    accounting.BMinSep(min_sep, sampling_prob, start=start),
    noise_multiplier,
    samples=samples or _samples(0),
  )


def _samples(seed, count=_SAMPLES, failure_probability=1e-6):
  return accounting.Samples(count, failure_probability, seed)


@pytest.mark.parametrize('vanishing', [2050, 2085, 2095])
def test_ratios_that_all_but_vanish_are_done_again(vanishing):
  """They grow again in earlier rounds, and what was lost would grow too."""
  mixture = b_min_sep.BMinSepMixture(
    b_min_sep.Columns(strategies.columns_of_rows(np.ones((3100, 1)))),
    1.0,
    b_min_sep.Law(1, 0.3),
  )
  gains = np.ones((3100, 1))
  gains[-vanishing:] = -800
  exact = vanishing * math.log(0.7)
  exact += (3100 - vanishing) * math.log(0.7 + 0.3 * math.e)
  assert mixture._log_mean(gains)[0] == pytest.approx(exact, abs=1e-9)


def test_long_gaps_do_not_lose_later_rounds():
  """(1 - p)^30 would be 0, but a round of a large gain is 32 rounds later."""
  mixture = b_min_sep.BMinSepMixture(
    b_min_sep.Columns(strategies.columns_of_rows(np.ones((900, 1)))),
    1.0,
    b_min_sep.Law(900, 1 - 1e-15),
  )
  gains = np.full((900, 1), -600.0)
  gains[32] = 690
  assert mixture._log_mean(gains)[0] == pytest.approx(
    mixture._log_mean_of(mixture._log_ratios(gains))[0], rel=1e-12
  )


@pytest.mark.parametrize('start', ['warm', 'cold'])
# 9 rounds: some clients never become eligible.
@pytest.mark.parametrize('min_sep', [2, 3, 7, 9])
def test_recursions_are_the_sums_over_patterns(min_sep, start):
  spec = _spec(0.7, min_sep, start=start)
  mixture = spec.accountant.mixture(0.7)
  patterns, odds = _patterns(7, min_sep, 0.3, start)
  means = patterns @ spec.strategy.matrix().T / spec.z_stddev_per_clip
  squares = (means**2).sum(1)
  assert mixture.mean_square == pytest.approx(odds @ squares)
  center = odds @ means
  assert mixture.square_mean == pytest.approx(center @ center)
  for gamma in (1.0, 1.7, 3.0):
    tilt = importance.Tilt(1, gamma - 1)
    assert mixture.log_normalizer(tilt) == pytest.approx(
      math.log(odds @ np.exp(gamma * (gamma - 1) / 2 * squares))
    )
  y = np.random.default_rng(0).standard_normal((7, 5))
  losses = means @ y - squares[:, None] / 2
  per_round = mixture._losses(y)
  for gamma in (1.0, 2.2):
    np.testing.assert_allclose(
      mixture._log_mean_of(mixture._log_ratios(gamma * per_round)),
      np.log(odds @ np.exp(gamma * losses)),
      rtol=1e-12,
    )
    np.testing.assert_allclose(
      mixture._log_mean(gamma * per_round),
      np.log(odds @ np.exp(gamma * losses)),
      rtol=1e-12,
    )


def test_warm_rounds_have_one_probability():
  """In particular it is that of the rounds of the patterns."""
  for rounds, min_sep, prob in ((7, 3, 0.3), (50, 9, 0.7), (4, 9, 0.2)):
    wait = b_min_sep.wait_prob(min_sep, prob)
    assert (wait * 2**64).is_integer()
    law = b_min_sep.Law(min_sep, prob, wait)
    rates = b_min_sep.participation(rounds, law)
    np.testing.assert_allclose(rates, prob / (1 + (min_sep - 1) * prob))
    if rounds < 9:
      patterns, odds = _patterns(rounds, min_sep, prob, 'warm')
      np.testing.assert_allclose(odds @ patterns, rates)
  # A warm start with no wait, or with a wait that words cannot give.
  assert b_min_sep.wait_prob(1, 0.3) == 0
  assert b_min_sep.wait_prob(3, 2.0**-64) == 2.0**-64
  law = b_min_sep.Law(3, 2.0**-70, 0.0)
  assert b_min_sep.starts(9, law).tolist() == [1, 0, 0]


@pytest.mark.parametrize('start', ['warm', 'cold'])
@pytest.mark.parametrize('sampling_prob', [0.3, 1 - 1e-15])
@pytest.mark.parametrize('gain', [900.0, 0.0, -900.0])
def test_recursions_hold_out_of_the_range_of_float64(
  gain, sampling_prob, start
):
  mixture = _spec(
    0.7, sampling_prob=sampling_prob, start=start
  ).accountant.mixture(0.7)
  gains = gain * np.linspace(0.5, 1.0, 7)[:, None]
  np.testing.assert_allclose(
    mixture._log_mean(gains),
    mixture._log_mean_of(mixture._log_ratios(gains)),
    rtol=1e-12,
    atol=1e-12,
  )


@pytest.mark.parametrize('start', ['warm', 'cold'])
@pytest.mark.parametrize('min_sep', [3, 9])
def test_rounds_are_drawn_with_the_tilted_odds(min_sep, start):
  """Chi-squared over all patterns; one false alarm in a million."""
  mixture = _spec(0.7, min_sep, start=start).accountant.mixture(0.7)
  gains = np.linspace(-0.5, 1.0, 7)
  patterns, odds = _patterns(7, min_sep, 0.3, start)
  tilted = odds * np.exp(patterns @ gains)
  tilted /= tilted.sum()
  taken = mixture._draw_rounds(
    np.random.default_rng(1), _SAMPLES, gains
  ).toarray()
  code = 2.0 ** np.arange(7)
  seen = np.array([(code @ taken == p @ code).sum() for p in patterns])
  assert seen.sum() == _SAMPLES
  statistic = ((seen - _SAMPLES * tilted) ** 2 / (_SAMPLES * tilted)).sum()
  degrees = len(patterns) - 1
  # Laurent and Massart's bound of the chi-squared tail.
  assert statistic <= degrees + 2 * math.sqrt(degrees * 14) + 28


@pytest.mark.slow
@pytest.mark.parametrize(
  ('noise_multiplier', 'epsilon'), [(0.5, 3.0), (1.0, 0.5), (2.0, 0.1)]
)
@pytest.mark.parametrize('sampling_prob', [0.1, 0.6])
@pytest.mark.parametrize('start', ['warm', 'cold'])
def test_bound_covers_the_true_delta(
  noise_multiplier, epsilon, sampling_prob, start
):
  spec = _spec(noise_multiplier, 2, sampling_prob, 3, _samples(2), start=start)
  patterns, odds = _patterns(3, 2, sampling_prob, start)
  means = patterns @ spec.strategy.matrix().T
  exact = _exact_delta(means, odds, spec.z_stddev_per_clip, epsilon)
  found = spec.claim_at(epsilon)
  assert exact * 0.999 <= found.upper <= 1.4 * exact + 1e-3
  assert found.estimate == pytest.approx(exact, rel=0.25, abs=5e-5)


@pytest.mark.slow
def test_separation_of_one_is_poisson_sampling():
  rounds, q = 20, 0.2
  spec = accounting.Guarantee(
    strategies.Identity(rounds),
    accounting.BMinSep(1, q),
    0.5,
    samples=_samples(3),
  )
  exact = accounting.poisson_delta(spec.z_stddev_per_clip, q, rounds, 1.0)
  found = spec.claim_at(1.0)
  assert exact * 0.99 <= found.upper <= 1.4 * exact
  assert found.estimate == pytest.approx(exact, rel=0.1)


def test_sensitivity_is_that_without_amplification():
  spec = _spec(2.0, samples=_samples(4, 2000, None))
  worst = sensitivity.sensitivity(spec.strategy, participation.MinSep(3))
  assert spec.sensitivity.value == worst.value
  assert worst.method == 'exact'
  assert spec.delta(1.0) <= accounting.gaussian_delta(2.0, 1.0)


@pytest.mark.slow
@pytest.mark.parametrize('start', ['warm', 'cold'])
def test_calibrated_noise_meets_the_true_delta(start):
  patterns, odds = _patterns(3, 2, 0.2, start)
  spec = accounting.calibrate(
    _strategy(3),
    accounting.BMinSep(2, 0.2, start=start),
    epsilon=1.0,
    delta=1e-2,
    samples=_samples(5),
  )
  assert spec.claim(1e-2).total <= 1e-2
  assert spec.epsilon(1e-2) == 1.0
  exact = _exact_delta(
    patterns @ spec.strategy.matrix().T, odds, spec.z_stddev_per_clip, 1.0
  )
  assert 0.5e-2 <= exact <= 1e-2
  assert spec.noise_multiplier < 0.9 * accounting.gaussian_noise_multiplier(
    1.0, 1e-2
  )


def test_more_bands_than_min_sep_are_refused():
  with pytest.raises(ValueError, match='bands=.*min_sep=1'):
    _spec(min_sep=1)


def test_negative_entries_are_refused():
  rows = np.array([[1.0, 0.0], [1.0, -0.5]])
  with pytest.raises(ValueError, match='strategy=entry -0.5: .*negative'):
    accounting.Guarantee(
      strategies.Banded(rows), accounting.BMinSep(2, 0.5), 1.0
    )


def test_certain_participation_is_refused():
  with pytest.raises(ValueError, match='sampling_prob=1.0: .*below'):
    _spec(sampling_prob=1)
