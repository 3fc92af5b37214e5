"""Tests of releases of other programs beside runs on the same clients."""

import math

import dp_accounting
import pytest
from dp_accounting.pld import common, privacy_loss_distribution

from tff_bandmf import accounting, participation, strategies

_RUN = accounting.Guarantee(
  strategies.BandedSqrt(8, 2), participation.MinSep(4), 1.5
)


def _epsilon(*releases, delta=1e-6):
  return accounting.compose([_RUN, *releases]).epsilon(delta)


def test_gaussian_query_composes_exactly():
  together = accounting.compose(
    [_RUN, accounting.Release(noise_multiplier=3.0)]
  )
  mu = math.hypot(1 / 1.5, 1 / 3)
  exact = accounting.gaussian_epsilon(1 / mu, 1e-6)
  assert together.method == 'exact'
  assert exact <= together.epsilon(1e-6) <= exact * (1 + 1e-9)
  assert together.rho == pytest.approx(mu**2 / 2)
  event = dp_accounting.SelfComposedDpEvent(
    dp_accounting.GaussianDpEvent(6.0), 4
  )
  assert _epsilon(accounting.Release(event=event)) == pytest.approx(exact)


def test_pair_is_composed_as_the_worst_mechanism():
  """One that tells everything with probability delta, else randomises a bit."""
  pair = accounting.Release(epsilon=0.7, delta=1e-7)
  together = accounting.compose([_RUN, pair])
  assert together.method == 'losses convolved, rounded up'
  assert together.rho is None
  epsilon = together.epsilon(1e-6)
  # Exact delta: both outcomes of the bit, each with the Gaussian.
  weight = 1 / (1 + math.exp(-0.7))
  noise = _RUN.exact_noise

  def delta(epsilon):
    total = 0.0
    for loss, prob in ((0.7, weight), (-0.7, 1 - weight)):
      left = epsilon - loss
      if left >= 0:
        total += prob * accounting.gaussian_delta(noise, left)
      else:
        # delta at a negative epsilon, by the symmetry of the profile.
        total += prob * (
          1
          - math.exp(left)
          + math.exp(left) * accounting.gaussian_delta(noise, -left)
        )
    return 1e-7 + (1 - 1e-7) * total

  assert delta(epsilon) <= 1e-6
  assert delta(epsilon * 0.99) > 1e-6
  # Less than epsilons that are added.
  assert epsilon < _RUN.epsilon(0.9e-6) + 0.7


@pytest.mark.slow
def test_laplace_noise_and_samples_are_convolved():
  laplace = dp_accounting.LaplaceDpEvent(2.0)
  sampled = dp_accounting.PoissonSampledDpEvent(
    0.1, dp_accounting.GaussianDpEvent(1.0)
  )
  event = dp_accounting.ComposedDpEvent(
    [dp_accounting.SelfComposedDpEvent(laplace, 3), sampled]
  )
  accountant = dp_accounting.pld.PLDAccountant()
  accountant.compose(dp_accounting.GaussianDpEvent(_RUN.exact_noise))
  accountant.compose(event)
  expected = accountant.get_epsilon(1e-6)
  epsilon = _epsilon(accounting.Release(event=event))
  assert epsilon == pytest.approx(expected, rel=1e-3)


def test_rho_is_an_upper_bound():
  together = accounting.compose([_RUN, accounting.Release(rho=0.05)])
  assert together.method == 'upper_bound'
  assert together.rho == pytest.approx(_RUN.rho + 0.05)
  # A Gaussian mechanism has such a rho.
  gaussian = accounting.Release(noise_multiplier=math.sqrt(10.0))
  assert together.epsilon(1e-6) > _epsilon(gaussian)
  claim = together.claim(1e-6)
  assert claim.total <= 1e-6 * (1 + 1e-9)
  two = accounting.compose(
    [_RUN, accounting.Release(rho=0.02), accounting.Release(rho=0.03)]
  )
  assert two.epsilon(1e-6) == pytest.approx(claim.epsilon)


@pytest.mark.slow
def test_releases_beside_sampled_runs_count_in_every_way():
  bins = accounting.Guarantee(
    strategies.Identity(16),
    accounting.BallsInBins(16),
    0.8,
    samples=accounting.Samples(2000, seed=1),
  )
  alone = accounting.compose([_RUN, bins]).epsilon(3e-2)
  for release in (
    accounting.Release(epsilon=0.5),
    accounting.Release(rho=0.1),
    accounting.Release(noise_multiplier=2.0),
  ):
    together = accounting.compose([_RUN, bins, release])
    assert together.epsilon(3e-2) > alone + 0.1
    assert together.claim(3e-2).total <= 3e-2 * (1 + 1e-9)
    again = accounting.compose([together, release])
    assert len(again.releases) == 2
    assert again.epsilon(3e-2) > together.epsilon(3e-2)


def test_release_counts_where_no_run_is_amplified():
  # One bin: the composition without chance is the smaller one.
  bin_runs = [
    accounting.Guarantee(
      strategies.Identity(4),
      accounting.BallsInBins(1),
      4.0,
      samples=accounting.Samples(2000, seed=1),
    )
    for _ in range(2)
  ]
  release = accounting.Release(noise_multiplier=2.0)
  together = accounting.compose([*bin_runs, release]).claim(1e-3)
  mu = math.hypot(1 / 4, 1 / 4, 1 / 2)
  exact = accounting.gaussian_epsilon(1 / mu, 1e-3)
  assert together.failure_probability == 0
  assert exact <= together.epsilon <= exact * (1 + 1e-6)
  # A release with a rho has a share of delta of its own.
  shared = accounting.compose([*bin_runs, accounting.Release(rho=0.1)])
  claim = shared.claim(1e-3)
  assert claim.failure_probability == 0
  assert claim.total <= 1e-3 * (1 + 1e-9)


def test_epsilon_of_nothing_is_that_of_the_run():
  nothing = accounting.Release(event=dp_accounting.NoOpDpEvent())
  assert _epsilon(nothing) == pytest.approx(_RUN.epsilon(1e-6), rel=1e-9)


def test_grid_of_a_pair_is_that_of_its_parts():
  (part,) = accounting.Release(epsilon=1.0, delta=1e-9).parts()
  expected = privacy_loss_distribution.from_privacy_parameters(
    common.DifferentialPrivacyParameters(1.0, 1e-9), 1e-3
  )
  losses = part.distribution(1e-3)
  for epsilon in (0.0, 0.5, 1.0):
    assert losses.get_delta_for_epsilon(
      epsilon
    ) == expected.get_delta_for_epsilon(epsilon)


@pytest.mark.parametrize(
  ('values', 'message'),
  [
    ({}, 'exactly one'),
    ({'epsilon': 1.0, 'rho': 1.0}, 'exactly one'),
    ({'epsilon': -1.0}, 'epsilon=-1'),
    ({'epsilon': math.nan}, 'epsilon=nan'),
    ({'epsilon': 1.0, 'delta': 1.0}, 'delta=1'),
    ({'rho': 1.0, 'delta': 1e-6}, 'delta=1e-06'),
    ({'noise_multiplier': 0.0}, 'noise_multiplier=0'),
    ({'event': dp_accounting.NonPrivateDpEvent()}, 'event=NonPrivateDpEvent'),
    ({'event': dp_accounting.GaussianDpEvent(0.0)}, 'event=GaussianDpEvent'),
    ({'event': dp_accounting.UnsupportedDpEvent()}, 'event=Unsupported'),
    ({'event': 3}, 'event=int'),
    (
      {
        'event': dp_accounting.PoissonSampledDpEvent(
          0.1, dp_accounting.LaplaceDpEvent(1.0)
        )
      },
      'event=PoissonSampled',
    ),
  ],
)
def test_release_without_a_guarantee_is_refused(values, message):
  with pytest.raises(ValueError, match=message):
    accounting.Release(**values)
