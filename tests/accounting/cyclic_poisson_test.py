"""Tests of amplification by cyclic Poisson sampling."""

import functools
import itertools
import math

import dp_accounting
import hypothesis
import numpy as np
import pytest
import true_deltas
from dp_accounting.pld import pld_privacy_accountant, privacy_loss_distribution
from hypothesis import strategies as st
from scipy import special

from tff_bandmf import accounting, strategies
from tff_bandmf.accounting.kinds import poisson

# [BandMF23, Table 5]: 2052 rounds, 6 epochs, delta = 1e-6. The matrices there
# have sensitivity 1 with 6 participations, so the noise of one column of norm 1
# is sqrt(6) times the printed one.
_PRINTED_DELTA = 1e-6
_PRINTED = [
  (1, 1, 0.37313),
  (4, 1, 0.25136),
  (16, 1, 0.16876),
  (1, 9, 0.79118),
  (2, 18, 0.64708),
  (4, 32, 0.52224),
  (8, 64, 0.43490),
]


def _closed_form(sigma, q, epsilon):
  """Returns delta of one Poisson-sampled Gaussian, the larger direction."""

  def gaussian(log_ratio):
    a = 0.5 / sigma
    return special.ndtr(a - log_ratio * sigma) - math.exp(
      log_ratio
    ) * special.ndtr(-a - log_ratio * sigma)

  remove = 1 - math.exp(epsilon)
  if math.exp(epsilon) > 1 - q:
    remove = q * gaussian(math.log((math.exp(epsilon) - 1 + q) / q))
  add = 0.0
  out = (1 - q) * math.exp(epsilon)
  if out < 1:
    add = (1 - out) * gaussian(epsilon + math.log(q) - math.log1p(-out))
  return max(remove, add)


@pytest.mark.slow
@pytest.mark.parametrize(('epsilon', 'bands', 'sigma'), _PRINTED)
def test_epsilon_is_the_published_one(epsilon, bands, sigma):
  q = accounting.CyclicPoisson.of_population(2052, 6, bands).sampling_prob
  found = accounting.poisson_epsilon(
    sigma * math.sqrt(6), q, -(-2052 // bands), _PRINTED_DELTA
  )
  assert found == pytest.approx(epsilon, rel=2e-3)


@pytest.mark.parametrize(
  ('epsilon', 'bands', 'sigma'), [row for row in _PRINTED if row[1] > 1]
)
def test_noise_multiplier_is_the_published_one(epsilon, bands, sigma):
  q = accounting.CyclicPoisson.of_population(2052, 6, bands).sampling_prob
  found = accounting.poisson_noise_multiplier(
    epsilon, _PRINTED_DELTA, q, -(-2052 // bands)
  )
  assert found / math.sqrt(6) == pytest.approx(sigma, rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize('sigma', [0.4, 1.0, 5.0])
@pytest.mark.parametrize('q', [1e-3, 0.1, 0.9])
@pytest.mark.parametrize('epsilon', [0.05, 0.5, 3.0])
@pytest.mark.deep(
  but=(
    '0.05-0.9-0.4',
    '0.5-0.1-1.0',
    '3.0-0.001-5.0',
    '0.05-0.001-0.4',
    '3.0-0.9-1.0',
    '0.5-0.9-5.0',
  )
)
def test_one_composition_is_the_closed_form(sigma, q, epsilon):
  found = accounting.poisson_delta(sigma, q, 1, epsilon)
  exact = _closed_form(sigma, q, epsilon)
  assert exact <= found <= exact * (1 + 1e-3) + 1e-8


@pytest.mark.slow
def test_the_worse_direction_counts():
  sigma, q, epsilon = 1.0, 0.1, 0.1
  losses = privacy_loss_distribution.from_gaussian_mechanism(
    sigma, sampling_prob=q, value_discretization_interval=1e-3
  )
  remove = losses._pmf_remove.get_delta_for_epsilon(epsilon)
  assert remove > 1.1 * losses._pmf_add.get_delta_for_epsilon(epsilon)
  found = accounting.poisson_delta(sigma, q, 1, epsilon)
  assert found == pytest.approx(remove, rel=2e-3)


@pytest.mark.slow
@pytest.mark.parametrize('epsilon', [0.1, 1.0])
def test_two_compositions_are_the_integral(epsilon):
  sigma, q = 0.8, 0.3
  patterns = np.array(list(itertools.product([0.0, 1.0], repeat=2)))
  weights = np.prod(np.where(patterns > 0, q, 1 - q), axis=1)
  exact = true_deltas.mixture(patterns, weights, sigma, epsilon, points=1001)
  found = accounting.poisson_delta(sigma, q, 2, epsilon)
  assert exact * (1 - 1e-4) <= found <= exact * (1 + 1e-3)


@pytest.mark.slow
@hypothesis.settings(max_examples=6)
@hypothesis.given(
  entries=st.lists(st.floats(-1, 1), min_size=3, max_size=3),
  q=st.floats(0.05, 0.95),
  sigma=st.floats(0.4, 2),
  epsilon=st.floats(0, 2),
)
def test_delta_covers_every_client_of_a_signed_strategy(
  entries, q, sigma, epsilon
):
  """Sums over what a client of each group can do, in both directions."""
  a, b, c = entries
  matrix = np.array([[1, 0, 0], [a, 1 + c, 0], [0, b, 1]], float)
  kappa = np.linalg.norm(matrix, axis=0).max()
  claimed = accounting.poisson_delta(sigma / kappa, q, 2, epsilon)
  for group in ([0, 2], [1]):
    patterns = np.array(list(itertools.product([0, 1], repeat=len(group))))
    weights = np.prod(np.where(patterns > 0, q, 1 - q), axis=1)
    # Gradients of a client may point either way.
    signs = itertools.product([1, -1], repeat=len(group) - 1)
    for sign in signs:
      means = (patterns * [1, *sign]) @ matrix[:, group].T
      exact = true_deltas.mixture(means, weights, sigma, epsilon)
      assert exact <= claimed + 5e-3 * exact + 1e-6


@pytest.mark.parametrize('compositions', [1, 7])
def test_certain_participation_is_the_gaussian(compositions):
  found = accounting.poisson_epsilon(3.0, 1.0, compositions, 1e-6)
  assert found == accounting.gaussian_epsilon(
    3.0 / math.sqrt(compositions), 1e-6
  )
  nearly = accounting.poisson_epsilon(3.0, 1 - 1e-9, compositions, 1e-6)
  assert nearly == pytest.approx(found, rel=3e-4)
  assert accounting.poisson_noise_multiplier(
    1.0, 1e-6, 1.0, compositions
  ) == pytest.approx(
    accounting.gaussian_noise_multiplier(1.0, 1e-6) * math.sqrt(compositions)
  )


@pytest.mark.slow
@pytest.mark.parametrize(
  ('sigma', 'q', 'compositions', 'delta'),
  [(1.0, 0.02, 100, 1e-6), (0.5, 0.2, 10, 1e-5), (20.0, 0.5, 1000, 1e-8)],
)
@pytest.mark.deep(but=('0.5-0.2', '20.0'))
def test_epsilon_is_an_accurate_upper_bound(sigma, q, compositions, delta):
  found = accounting.poisson_epsilon(sigma, q, compositions, delta)
  # An order of magnitude finer, and pessimistic itself.
  fine = (
    privacy_loss_distribution.from_gaussian_mechanism(
      sigma,
      sampling_prob=q,
      value_discretization_interval=1e-3 / math.sqrt(compositions),
    )
    .self_compose(compositions)
    .get_epsilon_for_delta(delta)
  )
  assert fine * (1 - 1e-5) <= found <= fine * (1 + 3e-4)
  assert accounting.poisson_delta(sigma, q, compositions, found) <= (
    delta * (1 + 2e-3)
  )


@pytest.mark.slow
def test_event_gives_the_same_epsilon():
  spec = accounting.Guarantee(
    strategies.BandedToeplitz(100, np.array([1.0, 0.5])),
    accounting.CyclicPoisson(0.02),
    1.0,
  )
  accountant = pld_privacy_accountant.PLDAccountant()
  accountant.compose(spec.dp_event())
  assert spec.epsilon(1e-6) == pytest.approx(
    accountant.get_epsilon(1e-6), rel=1e-3
  )
  assert isinstance(spec.dp_event(), dp_accounting.SelfComposedDpEvent)


@pytest.mark.slow
@pytest.mark.parametrize(
  ('epsilon', 'delta', 'q', 'compositions'),
  [
    (0.05, 1e-6, 1e-3, 50),
    (1.0, 1e-9, 0.3, 1),
    (4.0, 1e-6, 0.1, 33),
    (30.0, 1e-5, 0.5, 3),
  ],
)
@pytest.mark.deep(but=('1.0-1e-09', '30.0', '4.0'))
def test_calibration_rounds_up(epsilon, delta, q, compositions):
  found = accounting.poisson_noise_multiplier(epsilon, delta, q, compositions)
  reached = accounting.poisson_epsilon(found, q, compositions, delta)
  assert epsilon * (1 - 1e-4) <= reached <= epsilon
  less = accounting.poisson_epsilon(found * 0.999, q, compositions, delta)
  assert less > epsilon


@pytest.mark.parametrize('width', [1e-4, 0.3])
def test_search_returns_no_noise_that_gives_more(width):
  """Wherever it starts; a step that ends above the target goes on."""

  def epsilon_of(sigma):
    return 5 / sigma**1.7 + 0.1 / sigma**3

  for start in np.geomspace(0.5, 30, 200):
    sigma = poisson._solve(epsilon_of, 2.0, start, width)
    assert 2.0 * (1 - width) <= epsilon_of(sigma) <= 2.0


@pytest.mark.slow
def test_epsilon_grows_with_sampling_and_rounds():
  def epsilon(sigma=1.0, q=0.05, compositions=20):
    return accounting.poisson_epsilon(sigma, q, compositions, 1e-6)

  assert epsilon() < epsilon(q=0.06)
  assert epsilon() < epsilon(compositions=21)
  assert epsilon() > epsilon(sigma=1.1)
  assert epsilon() < accounting.gaussian_epsilon(1 / math.sqrt(20), 1e-6)


@pytest.mark.slow
def test_sampling_prob_is_that_within_the_group():
  strategy = strategies.BandedToeplitz(100, np.array([1.0, 0.5, 0.2]))
  cohorts = accounting.CyclicPoisson.of_population(3000, 10, groups=3)
  assert cohorts.sampling_prob == pytest.approx(3 * 10 / 3000)
  spec = accounting.Guarantee(strategy, cohorts, 1.5)
  assert spec.accountant.compositions == 34
  norm = math.sqrt(1 + 0.25 + 0.04)
  assert spec.sensitivity.value == pytest.approx(norm)
  assert spec.z_stddev_per_clip == pytest.approx(1.5 * norm)
  exact = accounting.poisson_epsilon(1.5, 0.01, 34, 1e-6)
  assert spec.epsilon(1e-6) == pytest.approx(exact, rel=1e-6)
  exact = accounting.poisson_delta(1.5, 0.01, 34, 0.5)
  assert exact < spec.delta(0.5) < 1.02 * exact
  assert spec.to_dict()['sampling_prob'] == cohorts.sampling_prob
  # As many groups as bands where nothing is said.
  same = accounting.Guarantee(strategy, accounting.CyclicPoisson(0.01), 1.5)
  assert same.epsilon(1e-6) == spec.epsilon(1e-6)
  more = accounting.Guarantee(
    strategy, accounting.CyclicPoisson(0.01, groups=5), 1.5
  )
  assert more.accountant.compositions == 20


def test_group_smaller_than_a_cohort_is_refused():
  with pytest.raises(ValueError, match='groups=9: .*clients_per_round=11'):
    accounting.CyclicPoisson.of_population(90, 11, 9)
  for make in (
    accounting.CyclicPoisson,
    lambda q: accounting.poisson_epsilon(1.0, q, 3, 1e-6),
  ):
    with pytest.raises(ValueError, match='sampling_prob=1.5: '):
      make(1.5)


@pytest.mark.parametrize('name', ['population', 'clients_per_round', 'groups'])
def test_population_without_its_numbers_is_refused(name):
  numbers = {'population': 100, 'clients_per_round': 5, 'groups': 4, name: None}
  with pytest.raises((TypeError, ValueError), match=f'{name}=None: '):
    accounting.CyclicPoisson.of_population(**numbers)


def test_more_bands_than_groups_are_refused():
  strategy = strategies.BandedToeplitz(10, np.array([1.0, 0.5, 0.2]))
  for groups, message in (
    (2, 'bands=3: .*groups=2'),
    (11, 'groups=11: .*rounds'),
  ):
    with pytest.raises(ValueError, match=message):
      accounting.Guarantee(strategy, accounting.CyclicPoisson(0.1, groups), 1.0)


def test_delta_below_rounding_is_refused():
  with pytest.raises(ValueError, match='delta=1e-14: '):
    accounting.poisson_epsilon(1.0, 0.1, 100, 1e-14)
  # What FFTs lose is counted at an epsilon that is never reached.
  assert accounting.poisson_delta(1.0, 0.1, 100, 50.0) >= 4e-14


@functools.cache
def _toeplitz_rmse(rounds, bands):
  """Returns the rmse of the optimal banded Toeplitz strategy at sigma = 1."""
  pytest.importorskip('tensorflow')
  from tff_bandmf import optimize, participation

  return math.sqrt(
    optimize.optimize(
      'banded-toeplitz', rounds, participation.Single(), bands=bands
    ).loss
  )


# [BIFR26, Table 7]: 2048 rounds, 8 epochs, delta = 1e-5.
@pytest.mark.slow
@pytest.mark.parametrize(
  ('epsilon', 'bands', 'rmse'),
  [(1, 8, 24.45), (2, 16, 14.61), (4, 32, 9.19), (8, 64, 5.95)],
)
@pytest.mark.deep(but=('2-16', '8-64'))
def test_amplified_rmse_is_the_published_one(epsilon, bands, rmse):
  found = _rmse(2048, 8, epsilon, bands, 1e-5)
  assert found == pytest.approx(rmse, rel=2e-3)


def _rmse(rounds, epochs, epsilon, bands, delta):
  q = accounting.CyclicPoisson.of_population(
    rounds, epochs, bands
  ).sampling_prob
  sigma = accounting.poisson_noise_multiplier(
    epsilon, delta, q, -(-rounds // bands)
  )
  return sigma * _toeplitz_rmse(rounds, bands)


# [BandMF23, Table 3]: 1024 rounds, delta = 1e-6.
@pytest.mark.slow
@pytest.mark.parametrize(
  ('epsilon', 'epochs', 'bands'),
  [(1, 32, 2), (1, 64, 1), (1, 128, 1), (4, 32, 4), (4, 64, 2), (4, 128, 2)],
)
@pytest.mark.deep(but=('4-32-4', '1-64-1'))
def test_best_bands_are_the_published_ones(epsilon, epochs, bands):
  rmse = {b: _rmse(1024, epochs, epsilon, b, 1e-6) for b in (1, 2, 4, 8)}
  assert min(rmse, key=rmse.get) == bands
