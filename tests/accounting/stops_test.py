"""Tests of the part of delta for runs that stop."""

import math

import numpy as np
import pytest
import scipy.special

from tff_bandmf import accounting, participation, strategies
from tff_bandmf.accounting.methods import stop_probability as stops

_STRATEGY = strategies.BandedToeplitz(2052, [1.0, 1 / 3, 1 / 7])
_SCHEMA = participation.MinSep(342)
_SMALL = strategies.BandedToeplitz(12, [1.0, 1 / 3])
_BINS = accounting.BallsInBins(3)
_ndtr = scipy.special.ndtr


def _stopped_delta(deviations, mu, epsilon):
  """Returns delta of S + z with S in {0, mu}, which stops if |z| is large."""
  edges = np.linspace(-deviations - mu, deviations + mu, 200_001)

  def law(shift):
    inside = np.clip(edges, shift - deviations, shift + deviations)
    return np.diff(_ndtr(inside - shift))

  stop = 2 * _ndtr(-deviations)
  first, second = (np.append(law(shift), stop) for shift in (0.0, mu))
  return np.maximum(0, first - math.exp(epsilon) * second).sum()


@pytest.mark.parametrize('deviations', [2.0, 3.0, 4.0])
@pytest.mark.parametrize('mu', [0.5, 1.0, 2.0])
@pytest.mark.parametrize('epsilon', [0.0, 1.0, 5.0])
def test_delta_of_a_mechanism_that_stops_is_covered(
  monkeypatch, deviations, mu, epsilon
):
  monkeypatch.setattr(stops, 'TAU', 2 * float(_ndtr(-deviations)))
  ideal = accounting.gaussian_delta(1 / mu, epsilon)
  true = _stopped_delta(deviations, mu, epsilon)
  assert true <= ideal + stops.delta(epsilon)
  if (deviations, mu, epsilon) == (3.0, 1.0, 5.0):
    # The sum of delta and tau, without the factor, would be too small.
    assert true == pytest.approx(0.0214, abs=1e-4)
    assert true > 7 * (ideal + stops.TAU)


def test_tau_counts_every_event():
  tails = 2 * 2 * 2.0**60 * float(_ndtr(-16.0))  # Of y and of its mean.
  assert stops.PAIRS == 2**60 and stops.DEVIATIONS == 16
  assert stops.SELF_TEST == stops.OVERSIZE == 1e-40
  events = tails + 2e-40 + float(_ndtr(-14.0))
  assert events < stops.TAU < 1.001 * events < 4e-39
  assert stops.delta(3.0, 2) == 2 * (1 + math.exp(3)) * stops.TAU
  assert stops.delta(1e4) == 1.0


@pytest.mark.parametrize('delta', [1e-3, 1e-6, 1e-12, 1e-30])
@pytest.mark.parametrize('noise_multiplier', [0.125, 0.15, 0.3, 1.0, 30.0])
def test_delta_of_a_claim_covers_the_stops(noise_multiplier, delta):
  guarantee = accounting.Guarantee(_STRATEGY, _SCHEMA, noise_multiplier)
  claim = guarantee.claim(delta)
  ideal = accounting.gaussian_epsilon(guarantee.exact_noise, delta)
  if math.isinf(claim.epsilon):
    assert ideal > stops.largest_epsilon(delta) * 0.95
    assert guarantee.proved_epsilon(delta) is None
    return
  assert ideal <= claim.epsilon <= ideal * 1.003
  assert claim.total == delta
  total = accounting.gaussian_delta(guarantee.exact_noise, claim.epsilon)
  assert total + stops.delta(claim.epsilon) <= delta
  assert guarantee.delta(claim.epsilon) <= delta


def test_delta_at_an_epsilon_includes_the_stops(monkeypatch):
  guarantee = accounting.Guarantee(_STRATEGY, _SCHEMA, 1.0)
  before = guarantee.delta(2.0)
  monkeypatch.setattr(stops, 'TAU', 1e-6)
  more = 1e-6 * (1 + math.exp(2))
  assert guarantee.delta(2.0) == pytest.approx(before + more, rel=1e-9)


def test_epsilon_beyond_every_share_is_infinite():
  guarantee = accounting.Guarantee(_STRATEGY, _SCHEMA, 0.05)
  assert guarantee.epsilon(1e-6) == math.inf
  assert guarantee.claim(1e-6).to_dict() == {'epsilon': None}
  assert guarantee.delta(300.0) == 1.0
  for noise in (5e-4, 1e-12):
    for cohorts in (_SCHEMA, accounting.CyclicPoisson(0.01), _BINS):
      little = accounting.Guarantee(_SMALL, cohorts, noise)
      assert little.epsilon(1e-6) == math.inf
      assert little.proved_epsilon(1e-6) is None
      if cohorts is not _BINS:
        together = accounting.compose([guarantee, little])
        assert together.epsilon(1e-6) == math.inf
  bins = accounting.Guarantee(
    _SMALL, _BINS, 1.0, samples=accounting.Samples(2000, 1e-6, seed=1)
  )
  assert bins.delta(800.0) == 1.0


@pytest.mark.parametrize('epsilon', [1e-4, 0.1, 1.0, 8.0, 45.0, 65.0, 70.0])
def test_calibrate_meets_epsilon(epsilon):
  guarantee = accounting.calibrate(
    _STRATEGY, _SCHEMA, epsilon=epsilon, delta=1e-6
  )
  assert epsilon * (1 - 1e-6) <= guarantee.epsilon(1e-6) <= epsilon
  again = accounting.Guarantee(_STRATEGY, _SCHEMA, guarantee.noise_multiplier)
  assert again.epsilon(1e-6) <= epsilon
  assert guarantee.noise_multiplier >= accounting.gaussian_noise_multiplier(
    epsilon, 1e-6
  )


@pytest.mark.parametrize(
  ('epsilon', 'delta', 'remedy'),
  [(70.5, 1e-6, 'epsilon=70.23'), (2.0, 1e-38, 'delta=')],
)
def test_target_that_stops_make_impossible_is_refused(epsilon, delta, remedy):
  with pytest.raises(ValueError, match=f'epsilon={epsilon:g}: .*{remedy}'):
    accounting.calibrate(_STRATEGY, _SCHEMA, epsilon=epsilon, delta=delta)


@pytest.mark.slow
def test_amplified_delta_covers_the_stops(monkeypatch):
  cohorts = accounting.CyclicPoisson(0.01)
  poisson = accounting.Guarantee(_STRATEGY, cohorts, 0.8)
  exact = accounting.poisson_epsilon(0.8, 0.01, 684, 1e-6)
  assert exact <= poisson.epsilon(1e-6) < exact + 1e-6
  bins = accounting.Guarantee(
    strategies.BandedToeplitz(12, [1.0, 1 / 3]),
    accounting.BallsInBins(3),
    1.0,
    samples=accounting.Samples(20_000, 1e-6, seed=1),
  )
  before = bins.accountant.claim_at(1.0, 2.0, bins.samples)
  monkeypatch.setattr(stops, 'TAU', 1e-6)
  after = bins.accountant.claim_at(1.0, 2.0, bins.samples)
  more = 1e-6 * (1 + math.exp(2))
  assert after.total - before.total == pytest.approx(more, rel=1e-6)
