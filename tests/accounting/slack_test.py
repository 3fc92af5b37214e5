"""Tests of what the arithmetic adds to the claims of runs."""

import dataclasses
import fractions
import math

import attrs
import numpy as np
import pytest
import scipy.special

from tff_bandmf import accounting, participation, strategies
from tff_bandmf.accounting.arithmetic import cells, slack
from tff_bandmf.accounting.kinds import samplers
from tff_bandmf.accounting.methods import accountants

_ndtr = scipy.special.ndtr

_BASE = cells.Arithmetic(
  cells=2**30,
  rho=2.0,
  shift=2.0**-36,
  feedback=100.0,
  rounds=1000,
  dimension=2**20,
)


# lattice width, rho, epsilon, delta: slack_epsilon, two digits.
_NUMBERS = [
  (16, 2, 8, 1e-6, 3.8e-4),
  (16, 2, 8, 1e-12, 4.5e-4),
  (16, 2, 1, 1e-12, 4.2e-4),
  (16, 10, 8, 1e-12, 1.02e-3),
  (17, 2, 8, 1e-6, 7.6e-4),
  (17, 2, 8, 1e-12, 9.1e-4),
  (17, 2, 1, 1e-12, 8.4e-4),
  (17, 10, 8, 1e-12, 2.0e-3),
  (20, 2, 8, 1e-6, 6.1e-3),
  (20, 2, 8, 1e-12, 7.3e-3),
  (20, 2, 1, 1e-12, 6.7e-3),
  (20, 10, 8, 1e-12, 1.6e-2),
]


@pytest.mark.parametrize(('power', 'rho', 'epsilon', 'delta', 'cost'), _NUMBERS)
def test_slack_of_runs(power, rho, epsilon, delta, cost):
  sums = cells.Arithmetic(
    cells=2**33,
    rho=rho,
    cell_width=2.0**-power,
    shift=0.0,
    feedback=100.0,
    rounds=2048,
    dimension=2**22,
  )
  found = slack.slack((sums,), epsilon, delta, largest=0.1)
  assert 0.95 * cost < found.epsilon < 1.02 * cost
  if found.epsilon <= 1.8e-3:
    assert found.delta < 1e-3 * delta


def test_claim_is_tight_where_its_parts_are():
  # Two values; each of the three inequalities of the proof is an equality.
  alpha, beta, epsilon, delta = 0.004, 1e-6, 0.7, 1e-3
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(cells.Arithmetic, 'closeness', lambda *_: alpha)
    patch.setattr(cells.Arithmetic, 'accidents', beta)
    sums = dataclasses.replace(_BASE, cells=1)
    found = slack.slack((sums,), epsilon, delta, largest=0.5)
  guess = 2.0**-6
  weight = 1 + math.exp(epsilon + guess)
  beta = beta + 1e-4 * delta / weight
  ideal_far = 0.1
  far = math.exp(-alpha) * (ideal_far - beta)
  ideal_near = math.exp(epsilon) * ideal_far + found.exact_delta
  near = math.exp(alpha) * ideal_near + beta
  claimed = math.exp(epsilon + found.epsilon) * far + (
    found.exact_delta + found.delta
  )
  assert near <= claimed * (1 + 1e-12)
  # Nothing that it adds is idle.
  assert claimed - near < 1e-3 * beta


def test_accidents_are_part_of_delta():
  sums = dataclasses.replace(_BASE, cells=2**33, rho=1.0)
  # |y| and |m| beyond 12 in 2^33 cells, a self-test that fails, a cohort
  # beyond the largest.
  tails = 2 * 2 * 2.0**33 * float(_ndtr(-12.0))
  assert sums.accidents > tails + 1e-24 + samplers.OVERSIZE
  few = dataclasses.replace(_BASE, cells=1, dimension=1)
  assert few.accidents > 1e-24 + samplers.OVERSIZE
  assert sums.closeness(sums.accidents) == math.inf
  assert sums.closeness(2 * sums.accidents) < math.inf
  # Their cost is that of every event: e^epsilon.
  assert slack.slack((sums,), 1.0, 1e-16).delta > tails * (1 + math.e)
  with pytest.raises(ValueError, match='delta=1e-19: .*epsilon=8'):
    slack.slack((sums,), 8.0, 1e-19)
  with pytest.raises(ValueError, match='delta=1e-21: .*epsilon=1'):
    slack.slack((sums,), 1.0, 1e-21)


@pytest.mark.parametrize(
  'worse',
  [
    {'cells': 2**31},
    {'rho': 3.0},
    {'shift': 2.0**-33},
    {'cell_width': 2.0**-18},
    {'dimension': 10},
    {'feedback': 1e9},
    {'words': cells.Words(spacing=2.0**-48)},
    {'words': cells.Words(extended_spacing=2.0**-100)},
    {'words': cells.Words(unit=2.0**-52)},
  ],
)
def test_slack_grows_with(worse):
  base = slack.slack((_BASE,), 4.0, 1e-8)
  other = dataclasses.replace(_BASE, **worse)
  found = slack.slack((other,), 4.0, 1e-8, largest=0.9)
  assert found.epsilon > base.epsilon
  both = slack.slack((_BASE, other), 4.0, 1e-8, largest=0.9)
  assert both.epsilon == pytest.approx(found.epsilon, rel=1e-9)


def test_slack_grows_with_epsilon_and_falls_with_delta():
  base = slack.slack((_BASE,), 4.0, 1e-8)
  assert slack.slack((_BASE,), 5.0, 1e-8).epsilon > base.epsilon
  smaller = slack.slack((_BASE,), 4.0, 1e-9)
  assert smaller.epsilon > base.epsilon
  assert smaller.exact_delta < base.exact_delta
  moved = slack.slack((_BASE,), 4.0, 1e-8, mean_shift=1e-5)
  assert moved.epsilon > base.epsilon + 2e-5


def test_words_without_extension_prove_nothing():
  words = cells.Words(extended_spacing=2.0**-64)
  bare = dataclasses.replace(_BASE, words=words)
  with pytest.raises(ValueError, match='slack_epsilon=infinite: .*epsilon'):
    slack.slack((bare,), 4.0, 1e-8, largest=0.9)


def test_large_slack_has_to_be_asked_for():
  wide = dataclasses.replace(_BASE, cell_width=2.0**-26)
  with pytest.raises(ValueError, match='slack_epsilon=.*0.01'):
    slack.slack((wide,), 4.0, 1e-8)
  assert slack.slack((wide,), 4.0, 1e-8, largest=0.9).epsilon > 0.01


_STRATEGY = strategies.BandedToeplitz(2052, [1.0, 1 / 3, 1 / 7])
_SCHEMA = participation.MinSep(342)


def test_epsilon_includes_the_arithmetic():
  spec = accounting.Guarantee(_STRATEGY, _SCHEMA, 0.8)
  exact = accounting.gaussian_epsilon(0.8, 1e-10)
  cost = spec.claim(1e-10)
  assert 5e-4 < cost.slack_epsilon < 1e-3
  assert 0 < cost.slack_delta < 1e-13
  assert spec.epsilon(1e-10) >= exact + cost.slack_epsilon
  assert spec.epsilon(1e-10) == pytest.approx(
    exact + cost.slack_epsilon, abs=2e-4
  )
  delta = spec.delta(spec.epsilon(1e-10))
  assert delta == pytest.approx(1e-10, rel=1e-3)
  assert spec.delta(0.0) > accounting.gaussian_delta(0.8, 0.0)


@pytest.mark.parametrize('dimension', [None, 10, 4_000_000])
@pytest.mark.parametrize('epsilon', [0.1, 1.0, 8.0, 16.0])
def test_calibrate_meets_epsilon(epsilon, dimension):
  spec = accounting.calibrate(
    _STRATEGY, _SCHEMA, epsilon=epsilon, delta=1e-8, dimension=dimension
  )
  assert epsilon * (1 - 1e-6) <= spec.epsilon(1e-8) <= epsilon
  assert spec.dimension == dimension
  assert spec.noise_multiplier > accounting.gaussian_noise_multiplier(
    epsilon, 1e-8
  )


def test_calibrate_needs_more_than_the_slack():
  with pytest.raises(ValueError, match='epsilon=0.0001: .*arithmetic'):
    accounting.calibrate(_STRATEGY, _SCHEMA, epsilon=1e-4, delta=1e-8)


def test_cells_are_the_compared_ones():
  # 6 rounds of a client, each seen in 3; a mixture has all of them.
  spec = accounting.Guarantee(_STRATEGY, _SCHEMA, 1.0, dimension=1000)
  assert spec.cost.arithmetics[0].cells == 1000 * 18
  sampled = accounting.Guarantee(
    _STRATEGY, accounting.CyclicPoisson(0.01), 1.0, dimension=1000
  )
  assert sampled.cost.arithmetics[0].cells == 1000 * 2052
  inverse = accounting.Guarantee(
    strategies.BandedInverse(100, [1.0, -0.5]),
    participation.Single(),
    1.0,
    dimension=1000,
  )
  assert inverse.cost.arithmetics[0].cells == 1000 * 100


def test_larger_models_have_to_be_named():
  spec = accounting.Guarantee(_STRATEGY, _SCHEMA, 1.0)
  # All rounds count: this noise may be claimed for sampled cohorts too.
  most = accounting.CELLS // _STRATEGY.rounds
  spec.cost.check_dimension(most)
  with pytest.raises(
    ValueError, match=f'^dimension={most + 1}: must be at most {most}, '
  ):
    spec.cost.check_dimension(most + 1)
  for cost in (
    attrs.evolve(spec, cohorts=participation.MinSep(1)).cost,
    slack.Cost.of(_STRATEGY, 1, sampled=True),
  ):
    cost.check_dimension(most)
  named = attrs.evolve(spec, dimension=4 * most)
  named.cost.check_dimension(4 * most)
  with pytest.raises(ValueError, match='^dimension='):
    named.cost.check_dimension(4 * most + 1)
  large = attrs.evolve(spec, dimension=accounting.CELLS)
  assert large.claim(1e-8).slack_epsilon > spec.claim(1e-8).slack_epsilon


@pytest.mark.parametrize('dimension', [1, 100, 418, 419, 10**4, 10**8])
@pytest.mark.parametrize(
  'strategy', [_STRATEGY, strategies.OnlineTree(64)],
  ids=lambda each: each.family,
)  # fmt: skip
def test_unknown_models_have_the_largest_slack(strategy, dimension):
  spec = accounting.Guarantee(strategy, participation.Single(), 1.0)
  known = attrs.evolve(spec, dimension=dimension)
  assert known.claim(1e-10).slack_epsilon <= (
    spec.claim(1e-10).slack_epsilon * (1 + 1e-6)
  )


# float64 moves the columns of a BLT.
_BLT = strategies.Blt(2052, [0.3, 0.1], [0.9, 0.5])


def test_cut_weights_raise_epsilon(monkeypatch):
  cut = _BLT.recursion().cut_norm
  assert cut > 0
  spec = accounting.Guarantee(_BLT, _SCHEMA, 1.0)
  assert spec.cost.cut == 6 * cut
  more = 1 + 6 * cut / spec.sensitivity.value
  assert spec.cost.more_noise(spec.sensitivity.value) >= more
  # Columns that move more.
  recursion = _BLT.recursion()
  monkeypatch.setattr(type(recursion), 'cut_norm', property(lambda self: 0.01))
  other = accounting.Guarantee(_BLT, _SCHEMA, 1.0)
  assert other.epsilon(1e-8) > 1.005 * spec.epsilon(1e-8)
  calibrated = accounting.calibrate(_BLT, _SCHEMA, epsilon=2.0, delta=1e-8)
  assert 2.0 * (1 - 1e-6) <= calibrated.epsilon(1e-8) <= 2.0
  sampled = accounting.Guarantee(
    _BLT, accounting.BallsInBins(342), 1.0, max_slack=0.9
  )
  # C is in the mixture, so its means are moved instead.
  assert sampled.accountant.mean_shift(sampled.cost, 2.0) == pytest.approx(
    0.01 * 6 / sampled.sensitivity.value / 2.0
  )


def test_rho_is_that_of_the_cut_weights(monkeypatch):
  recursion = _BLT.recursion()
  monkeypatch.setattr(type(recursion), 'cut_norm', property(lambda self: 1e-5))
  spec = accounting.Guarantee(_BLT, _SCHEMA, 2.0)
  more = 1 + 6 * 1e-5 / spec.sensitivity.value
  assert (1 + 1e-9) / 8 < more**2 / 8 <= spec.rho < 1.001 / 8
  assert spec.dp_event().noise_multiplier * more <= 2.0


@pytest.mark.parametrize('strategy', [_STRATEGY, strategies.OnlineTree(64)])
def test_claim_covers_smaller_models(strategy):
  few = cells.many_coordinates(strategy.rounds) - 1
  costs = [
    slack.Cost.of(strategy, 6, sampled=False, dimension=dimension)
    for dimension in (few, few + 1)
  ]
  costs[1].check_dimension(few)
  fewer, more = (cost.slack(4.0, 1e-8).epsilon for cost in costs)
  assert fewer <= more * (1 + 1e-6)


def _claimed(strategy, schema):
  """Returns the sensitivity that claims of a strategy rest on, exactly."""
  found = accounting.Guarantee(strategy, schema, 1.0)
  value = found.sensitivity.value
  return fractions.Fraction(value) * fractions.Fraction(
    found.cost.more_noise(value)
  )


def test_sums_of_many_participations_are_rounded_up():
  # Squares that are lost one by one beside a 1.
  rows = np.full((10_000, 1), 1.05e-8)
  rows[-1] = 1.0
  exact = 1 + 4999 * fractions.Fraction(1.05e-8) ** 2
  claimed = _claimed(strategies.Banded(rows), participation.MinSep(2))
  assert exact <= claimed**2 <= exact * (1 + fractions.Fraction(1, 10**7))


def _ill_conditioned(rounds, degree, decay):
  coefficients = np.ones(1)
  for _ in range(degree):
    coefficients = np.convolve(coefficients, [1.0, -decay])
  return strategies.BandedInverse(rounds, coefficients)


@pytest.mark.parametrize(
  ('rounds', 'degree', 'decay', 'min_sep'),
  [(38, 4, 0.99636978, 35), (60, 6, 0.999, 59), (150, 5, 0.999, 149)],
)
def test_sensitivity_of_an_inverse_is_rounded_up(
  rounds, degree, decay, min_sep
):
  """The noise follows C^-1, and float64 gives another C."""
  strategy = _ill_conditioned(rounds, degree, decay)
  schema = participation.MinSep(min_sep)
  inverse = [fractions.Fraction(r) for r in strategy.inverse_coefficients]
  column = []
  for t in range(rounds):
    past = sum(r * c for r, c in zip(inverse[1:], column[::-1]))
    column.append((int(t == 0) - past) / inverse[0])
  moved = column[:min_sep] + [
    c + earlier for c, earlier in zip(column[min_sep:], column)
  ]
  exact = sum(entry**2 for entry in moved)
  assert exact <= _claimed(strategy, schema) ** 2 <= exact * (1 + 1e-4)
  plain = accounting.Guarantee(strategy, schema, 1.0).cost.rounding
  for other in (
    strategies.ColumnNormalized(strategy),
    strategies.Stamped(2 * rounds, strategy),
  ):
    assert slack.Cost.of(other, 2, sampled=False).rounding >= plain


def test_inverse_that_float64_does_not_give_is_refused():
  strategy = _ill_conditioned(2000, 8, 1.0)
  spec = accounting.Guarantee(strategy, participation.Single(), 1.0)
  with pytest.raises(ValueError, match='inverse_coefficients=.*float64'):
    spec.epsilon(1e-6)


_SAMPLED = strategies.BandedToeplitz(12, [1.0, 1 / 3])
_BINS = accounting.BallsInBins(3)
_SAMPLES = accounting.Samples(20_000, 1e-6, seed=1)


def _sampled(**options):
  return accounting.Guarantee(_SAMPLED, _BINS, 1.0, samples=_SAMPLES, **options)


def _calibrate_sampled():
  return accounting.calibrate(
    _SAMPLED, _BINS, epsilon=2.0, delta=1e-3, max_slack=0.5, samples=_SAMPLES
  )


@pytest.mark.slow
def test_amplified_epsilon_includes_the_arithmetic():
  spec = accounting.Guarantee(_STRATEGY, accounting.CyclicPoisson(0.01), 0.8)
  exact = accounting.poisson_epsilon(0.8, 0.01, 684, 1e-6)
  cost = spec.claim(1e-6)
  assert exact + cost.slack_epsilon <= spec.epsilon(1e-6) < exact + 2e-3
  exact = accounting.poisson_delta(0.8, 0.01, 684, 3.0)
  assert exact < spec.delta(3.0)
  calibrated = accounting.calibrate(
    _STRATEGY, accounting.CyclicPoisson(0.01), epsilon=2.0, delta=1e-6
  )
  assert 2.0 * (1 - 1e-3) < calibrated.epsilon(1e-6) <= 2.0

  found = _sampled().claim(1e-3)
  assert found.total <= 1e-3
  assert 0 < found.slack_epsilon < 1e-3
  assert 0 < found.slack_delta < 1e-5
  # As much less for the exact run.
  bare = _sampled(max_slack=0.5).cost.slack(found.epsilon, 1e-3)
  assert found.slack_epsilon == pytest.approx(bare.epsilon, rel=0.05)
  at = _sampled().claim_at(found.epsilon)
  assert at.epsilon == found.epsilon
  assert at.slack_delta > 0
  assert at.total == pytest.approx(found.total, rel=0.1)


def test_calibration_is_not_refused_for_the_slack_of_less_noise(monkeypatch):
  """A quarter of the noise, a safe guess, would have too large a slack."""
  monkeypatch.setattr(
    type(_SAMPLED.recursion()), 'cut_norm', property(lambda self: 3e-4)
  )
  wide = _calibrate_sampled()
  spec = accounting.calibrate(
    wide.strategy, wide.cohorts, epsilon=2.0, delta=1e-3, samples=wide.samples
  )
  assert spec.claim(1e-3).epsilon == 2.0
  moved = spec.accountant.mean_shift(spec.cost, spec.noise_multiplier / 4)
  assert wide.cost.slack(2.0, 1e-3, moved).epsilon > spec.max_slack
  with pytest.raises(ValueError, match='slack_epsilon=.*at most 0.01'):
    spec.cost.slack(2.0, 1e-3, moved)


def test_calibrated_noise_covers_its_own_slack(monkeypatch):
  monkeypatch.setattr(
    type(_SAMPLED.recursion()), 'cut_norm', property(lambda self: 1e-4)
  )

  def own(spec):
    moved = spec.accountant.mean_shift(spec.cost, spec.noise_multiplier)
    return spec.cost.slack(2.0, 1e-3, moved).epsilon

  spec = _calibrate_sampled()
  bound = spec.claim(1e-3)
  assert bound.epsilon == 2.0
  assert bound.total <= 1e-3
  assert own(spec) <= bound.slack_epsilon * (1 + 1e-9)
  # Amplification may need far less noise than the slack was taken for.
  little = spec.noise_multiplier / 50
  monkeypatch.setattr(
    accountants.Sampled, '_least_noise', lambda *_: (little, bound)
  )
  spec = _calibrate_sampled()
  assert own(spec) <= spec.claim(1e-3).slack_epsilon * (1 + 1e-9)
