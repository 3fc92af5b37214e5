"""Tests of the accounting of one Gaussian release."""

import math

import dp_accounting
import hypothesis
import numpy as np
import pytest
import true_deltas
from hypothesis import strategies as st

from tff_bandmf import accounting

# [BandMF23, Table 4] (zero-out, sensitivity 1): epsilon and sigma at
# delta = 1e-6.
_SIGMA_DELTA = 1e-6
_SIGMA = [
  (1, 4.22468),
  (2, 2.23048),
  (4, 1.19352),
  (8, 0.65294),
  (16, 0.36861),
]

_DELTAS = [1e-50, 1e-20, 1e-10, 1e-6, 1e-3, 0.5, 1 - 1e-9]


@pytest.mark.parametrize(('epsilon', 'sigma'), _SIGMA)
def test_noise_multiplier_is_the_published_one(epsilon, sigma):
  found = accounting.gaussian_noise_multiplier(epsilon, _SIGMA_DELTA)
  assert found == pytest.approx(sigma, rel=1e-5)


@pytest.mark.parametrize(('epsilon', 'sigma'), _SIGMA)
def test_epsilon_is_the_published_one(epsilon, sigma):
  found = accounting.gaussian_epsilon(sigma, _SIGMA_DELTA)
  assert found == pytest.approx(epsilon, rel=2e-5)


def test_published_accounting_of_a_launched_model():
  # A launched Gboard model: Spanish (Spain), z_stddev / clip
  # 1.411, squared sensitivity 0.6 as released.
  noise_multiplier = 1.411 / math.sqrt(0.6)
  assert accounting.zcdp_rho(noise_multiplier) == pytest.approx(
    0.150684, rel=1e-5
  )
  assert accounting.gaussian_epsilon(noise_multiplier, 1e-10) == pytest.approx(
    3.424007, rel=1e-5
  )


@pytest.mark.parametrize('noise_multiplier', [3e-3, 0.1, 1, 30, 1e4, 1e6, 1e9])
def test_epsilon_rounds_up(noise_multiplier):
  for delta in _DELTAS:
    epsilon = accounting.gaussian_epsilon(noise_multiplier, delta)
    assert true_deltas.gaussian(noise_multiplier, epsilon) <= delta
    if noise_multiplier <= 100 and epsilon > 0 and delta < 0.9:
      # And by next to nothing.
      assert (
        true_deltas.gaussian(noise_multiplier, epsilon * (1 - 1e-9)) > delta
      )


@pytest.mark.parametrize('epsilon', [1e-9, 1e-4, 0.1, 1, 20, 1e3, 1e6])
def test_noise_multiplier_rounds_up(epsilon):
  for delta in _DELTAS:
    found = accounting.gaussian_noise_multiplier(epsilon, delta)
    assert true_deltas.gaussian(found, epsilon) <= delta
    if epsilon >= 0.1 and delta < 0.9:
      assert true_deltas.gaussian(found * (1 - 1e-9), epsilon) > delta


def test_delta_rounds_up():
  rng = np.random.default_rng(2)
  for _ in range(300):
    noise_multiplier = 10 ** rng.uniform(-3, 9)
    # Where delta is between about 1e-60 and 1.
    x = rng.uniform(-3, 16)
    epsilon = max(0.0, x / noise_multiplier + 0.5 / noise_multiplier**2)
    found = accounting.gaussian_delta(noise_multiplier, epsilon)
    true = true_deltas.gaussian(noise_multiplier, epsilon)
    assert true <= found <= 1
    if noise_multiplier < 10:
      assert found <= true * (1 + 1e-9)


def test_epsilon_of_enough_noise_is_zero():
  # delta(0) = erf(1 / (2 sqrt(2) noise_multiplier)).
  delta = math.erf(1 / (2 * math.sqrt(2) * 50))
  assert accounting.gaussian_epsilon(50, delta * (1 + 1e-9)) == 0
  assert accounting.gaussian_epsilon(50, delta * (1 - 1e-9)) > 0


def test_epsilon_falls_with_noise_and_with_delta():
  multipliers = np.geomspace(0.05, 50, 12)
  epsilons = np.array(
    [
      [
        accounting.gaussian_epsilon(each, delta)
        for delta in (1e-10, 1e-6, 1e-2)
      ]
      for each in multipliers
    ]
  )
  assert np.all(np.diff(epsilons, axis=0) < 0)
  assert np.all(np.diff(epsilons, axis=1) < 0)


def test_noise_falls_with_epsilon_and_with_delta():
  noise = np.array(
    [
      [accounting.gaussian_noise_multiplier(e, d) for d in (1e-10, 1e-6, 1e-2)]
      for e in np.geomspace(0.01, 100, 9)
    ]
  )
  assert np.all(np.diff(noise, axis=0) < 0)
  assert np.all(np.diff(noise, axis=1) < 0)


def test_epsilon_is_below_what_zcdp_gives():
  rho = accounting.zcdp_rho(2)
  loose = rho + 2 * math.sqrt(rho * math.log(1e6))
  assert accounting.gaussian_epsilon(2, 1e-6) < 0.96 * loose


def test_epsilon_agrees_with_the_pld_accountant():
  accountant = dp_accounting.pld.PLDAccountant(
    value_discretization_interval=1e-3
  )
  accountant.compose(dp_accounting.GaussianDpEvent(1.5))
  assert accounting.gaussian_epsilon(1.5, 1e-6) == pytest.approx(
    accountant.get_epsilon(1e-6), rel=1e-3
  )


@pytest.mark.parametrize('delta', [0, 1, 2, -1e-6, math.nan, math.inf, 1e-60])
def test_delta_out_of_range_is_refused(delta):
  with pytest.raises(ValueError, match='delta='):
    accounting.gaussian_epsilon(1.0, delta)
  with pytest.raises(ValueError, match='delta='):
    accounting.gaussian_noise_multiplier(1.0, delta)


@pytest.mark.parametrize('epsilon', [0, -1, math.nan, math.inf, 1.1e6])
def test_epsilon_out_of_range_is_refused(epsilon):
  with pytest.raises(ValueError, match='epsilon='):
    accounting.gaussian_noise_multiplier(epsilon, 1e-6)


@pytest.mark.parametrize('epsilon', [-1, math.nan, math.inf])
def test_delta_at_a_bad_epsilon_is_refused(epsilon):
  with pytest.raises(ValueError, match='epsilon='):
    accounting.gaussian_delta(1.0, epsilon)


@pytest.mark.parametrize('noise_multiplier', [0, -1, math.nan, math.inf])
def test_noise_multiplier_out_of_range_is_refused(noise_multiplier):
  for call in (
    accounting.zcdp_rho,
    lambda it: accounting.gaussian_epsilon(it, 1e-6),
    lambda it: accounting.gaussian_delta(it, 1.0),
  ):
    with pytest.raises(ValueError, match='noise_multiplier='):
      call(noise_multiplier)


@pytest.mark.parametrize('value', ['1', None, True])
def test_what_is_no_number_is_refused(value):
  with pytest.raises(TypeError, match='noise_multiplier=.*number'):
    accounting.gaussian_epsilon(value, 1e-6)
  with pytest.raises(TypeError, match='delta=.*number'):
    accounting.gaussian_epsilon(1.0, value)
  with pytest.raises(TypeError, match='epsilon=.*number'):
    accounting.gaussian_noise_multiplier(value, 1e-6)


def test_too_little_noise_has_an_infinite_epsilon():
  assert accounting.gaussian_epsilon(1e-4, 1e-6) == math.inf


@pytest.mark.slow
@hypothesis.given(
  epsilon=st.floats(1e-3, 1e3), delta_exponent=st.floats(-20, -0.01)
)
@hypothesis.settings(max_examples=100)
def test_calibrated_noise_reports_no_more_than_was_asked(
  epsilon, delta_exponent
):
  delta = 10**delta_exponent
  multiplier = accounting.gaussian_noise_multiplier(epsilon, delta)
  assert accounting.gaussian_epsilon(multiplier, delta) <= epsilon
