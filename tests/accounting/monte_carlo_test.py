"""Tests of the confidence of sampled bounds: what their failures may cost."""

import dataclasses
import math

import numpy as np
import pytest

from tff_bandmf import accounting, strategies
from tff_bandmf.accounting.kinds import balls_in_bins
from tff_bandmf.accounting.methods import importance, monte_carlo, search

_BETA = 1e-3
_GRAM = np.array([[2.0, 0.5], [0.5, 1.0]])


def _plan(bound):
  """Returns a direction whose values were all 0, as `plans` gives it."""
  # eta is as large as it may be: then the bound is as tight as one can be.
  direction = importance.Direction(
    lambda rng, count: np.zeros(count), bound, 1, (1 - 1e-12) / bound
  )
  return direction, 0.0, 0.0


@pytest.mark.parametrize('bound', [1.0, 0.25])
@pytest.mark.parametrize('samples', [1, 10, 1000])
@pytest.mark.parametrize('tries', [1, 3])
def test_bound_without_a_hit_is_the_exact_one(
  monkeypatch, bound, samples, tries
):
  """Values are 0 or B: a mean of p B gives N zeros with (1 - p)^N.

  A direction may fail with beta / 2, so the largest p that N zeros do not
  exclude has (1 - p)^N = beta / 2.
  """
  monkeypatch.setattr(monte_carlo, 'plans', lambda *_: [_plan(bound)] * 2)
  mixture = balls_in_bins.BallsInBinsMixture(_GRAM, 1.0)
  options = monte_carlo.Options(samples, tries * _BETA, 1, tries)
  result = monte_carlo.delta_bound(mixture, 1.0, options)
  p = result.upper / bound
  assert (1 - p) ** samples == pytest.approx(_BETA / 2, rel=1e-3)
  assert result.estimate == 0


@pytest.mark.parametrize('bounds', [(1.0, 0.25), (0.25, 1.0)])
def test_worse_direction_counts(monkeypatch, bounds):
  plans = [_plan(bound) for bound in bounds]
  mixture = balls_in_bins.BallsInBinsMixture(_GRAM, 1.0)

  def upper(plans):
    monkeypatch.setattr(monte_carlo, 'plans', lambda *_: plans)
    options = monte_carlo.Options(100, _BETA, seed=1)
    return monte_carlo.delta_bound(mixture, 1.0, options).upper

  assert upper(plans) == max(upper([plan]) for plan in plans) > 0


def test_sure_bound_of_a_direction_is_kept(monkeypatch):
  """It was not sampled, so that it has no eta, and it may be the larger one."""
  sampled, (direction, *_) = _plan(1e-3), _plan(0.5)
  sure = (dataclasses.replace(direction, eta=0.0), 0.0, 0.5)
  mixture = balls_in_bins.BallsInBinsMixture(_GRAM, 1.0)
  for plans in ([sampled, sure], [sure, sampled]):
    monkeypatch.setattr(monte_carlo, 'plans', lambda *_, plans=plans: plans)
    options = monte_carlo.Options(100, _BETA, seed=1)
    bound = monte_carlo.delta_bound(mixture, 1.0, options)
    assert bound.upper == 0.5


class _Recording(balls_in_bins.BallsInBinsMixture):
  """A mixture that keeps where the generator stood at each draw."""

  def __init__(self):
    super().__init__(_GRAM, 1.0)
    self.starts = []

  def _keep(self, rng):
    # Where two generators stand alike they give the same samples from there.
    self.starts.append(rng.bit_generator.state['state']['state'])

  def remove(self, tilt, epsilon):
    sample = super().remove(tilt, epsilon)

    def draw(rng, count):
      self._keep(rng)
      return sample(rng, count)

    return draw

  def sample_add(self, rng, count, kappa, epsilon):
    self._keep(rng)
    return super().sample_add(rng, count, kappa, epsilon)


def test_samples_of_the_bound_are_used_once():
  """Neither to choose gamma and eta, nor for both directions."""
  mixture = _Recording()
  options = monte_carlo.Options(1000, _BETA, seed=1)
  monte_carlo.delta_bound(mixture, 1.0, options)
  directions = 2
  # The best candidate has pilots of its own, and add has one candidate.
  pilots = len(importance.removes(mixture, 1.0)) + 1 + 1
  assert len(mixture.starts) == pilots + directions
  assert len(set(mixture.starts)) == len(mixture.starts)


def test_eta_is_below_one_over_the_largest_value():
  """The least margin has a larger eta if there are few samples."""
  mixture = balls_in_bins.BallsInBinsMixture(_GRAM, 1.0)
  for samples, capped in ((2, True), (10**8, False)):
    rng = np.random.default_rng(1)
    plans = monte_carlo.plans(mixture, 1.0, samples, 7.0, rng, 1000)
    direction, _, margin = plans[0]
    eta = direction.eta * direction.bound
    assert 0 < eta <= 0.95 * (1 + 1e-12)
    assert (eta > 0.94) == capped
    assert margin >= 7.0 / (direction.eta * samples)


@pytest.mark.parametrize('beta', [1e-3, 1e-6])
def test_attempts_share_the_failure_probability(monkeypatch, beta):
  """No attempt is confirmed: all of them together may fail with beta."""
  shares, seeds = [], []
  bound = monte_carlo.delta_bound

  def never_confirmed(mixture, epsilon, options):
    shares.append(options.share)
    seeds.append(options.seed)
    result = bound(mixture, epsilon, options)
    return dataclasses.replace(result, upper=0.011)

  monkeypatch.setattr(monte_carlo, 'delta_bound', never_confirmed)
  mixture = balls_in_bins.BallsInBinsMixture(_GRAM, 1.0)
  answer = search.least(
    lambda epsilon: (mixture, epsilon),
    50.0,
    0.01,
    monte_carlo.Options(1000, beta, seed=3),
  )
  assert answer is None
  assert len(shares) == monte_carlo.ATTEMPTS > 1
  assert math.fsum(shares) <= beta * (1 + 1e-12)
  assert len(set(seeds)) == len(seeds)


@pytest.mark.slow
@pytest.mark.parametrize('tries', [1, 7])
def test_searches_share_the_failure_probability(monkeypatch, tries):
  """No search has enough noise for its growth: all may fail with 1e-8."""
  shares = []
  bound, least = monte_carlo.delta_bound, search.least

  def sampled(mixture, epsilon, options):
    shares.append(options.share)
    return bound(mixture, epsilon, options)

  def never_enough(problem, start, delta, options, near):
    noise, claim = least(problem, 10.0, delta, options)
    return noise / 8 ** len(shares), claim

  strategy = strategies.BandedSqrt(8, 2)
  guarantee = accounting.Guarantee(strategy, accounting.BallsInBins(4), 1.0)
  samples = monte_carlo.Samples(2000, seed=1, tries=tries)
  monkeypatch.setattr(monte_carlo, 'delta_bound', sampled)
  monkeypatch.setattr(search, 'least', never_enough)
  with pytest.raises(ValueError, match='epsilon=1.0: is not reached'):
    guarantee.accountant.calibrate(1.0, 1e-2, samples)
  assert len(shares) > 1
  # So many searches, each of so many attempts, as one of so many tries.
  assert max(shares) * 4 * monte_carlo.ATTEMPTS * tries <= 1e-8 * (1 + 1e-12)


def test_bound_of_several_tries_is_confirmed_as_such():
  strategy = strategies.BandedSqrt(8, 2)
  guarantee = accounting.calibrate(
    strategy,
    accounting.BallsInBins(4),
    epsilon=2.0,
    delta=1e-3,
    samples=monte_carlo.Samples(20_000, seed=1, tries=5),
  )
  bound = guarantee.claim(1e-3)
  assert bound.tries == 4 * monte_carlo.ATTEMPTS * 5
  assert bound.failure_probability == 1e-8 and bound.total <= 1e-3
  again = accounting.Guarantee(
    strategy, accounting.BallsInBins(4), guarantee.noise_multiplier
  )
  again.confirm(bound, 1e-3)
  with pytest.raises(ValueError, match='tries=0'):
    dataclasses.replace(bound, tries=0)
