"""Tests of the noise that a search for sampled cohorts minimises."""

import functools
import math

import numpy as np
import pytest
import scipy.optimize

from tests.helpers import true_deltas
from tff_bandmf import accounting, optimize, strategies
from tff_bandmf.accounting.kinds import b_min_sep
from tff_bandmf.optimize import solver

_EPSILON, _DELTA = 1.0, 1e-3
_BINS = accounting.BallsInBins(2)
_SEPARATED = accounting.BMinSep(2, 0.3)
_POISSON = accounting.CyclicPoisson(0.3, 2)


def _patterns(cohorts, rounds):
  """Returns [(rounds of a client, probability)] of balls in bins, b-min-sep."""
  if isinstance(cohorts, accounting.BallsInBins):
    bins = cohorts.bins
    return [(range(j, rounds, bins), 1 / bins) for j in range(bins)]
  prob, min_sep = cohorts.sampling_prob, cohorts.min_sep
  wait = b_min_sep.wait_prob(min_sep, prob) if cohorts.start == 'warm' else 0.0
  patterns = {}

  def go(i, taken, weight):
    if i >= rounds:
      patterns[taken] = patterns.get(taken, 0) + weight
      return
    go(i + 1, taken, weight * (1 - prob))
    go(i + min_sep, (*taken, i), weight * prob)

  go(0, (), 1 - (min_sep - 1) * wait)
  for first in range(1, min_sep):
    go(first, (), wait)
  return list(patterns.items())


def _noise(cohorts, matrix, epsilon=_EPSILON, goal=_DELTA):
  """Returns s(C) from enumerated patterns, and an integral over y.

  The integral is on a grid; in more than 3 dimensions it is from samples.
  """
  if isinstance(cohorts, accounting.CyclicPoisson):
    norm = np.sqrt((matrix**2).sum(0).max())
    compositions = -(-len(matrix) // cohorts.groups)
    return norm * _poisson_multiplier(
      epsilon, goal, cohorts.sampling_prob, compositions
    )
  patterns, probs = zip(*_patterns(cohorts, len(matrix)))
  means = np.stack([matrix[:, list(taken)].sum(1) for taken in patterns])
  # Only inner products matter, so the means have as few dimensions as possible.
  _, values, axes = np.linalg.svd(means, full_matrices=False)
  means = means @ axes[values > 1e-9 * values[0]].T
  points = {1: 2001, 2: 121, 3: 41}.get(means.shape[1])

  def excess(log_noise):
    arguments = means, np.array(probs), math.exp(log_noise), epsilon
    delta = (
      true_deltas.mixture(*arguments, points)
      if points
      else true_deltas.sampled_mixture(*arguments)
    )
    return math.log(max(delta, 1e-30) / goal)

  largest = math.log(np.linalg.norm(means, axis=1).max())
  return math.exp(
    scipy.optimize.brentq(excess, largest - 2, largest + 2, xtol=1e-4)
  )


@functools.cache
def _poisson_multiplier(*arguments):
  return accounting.poisson_noise_multiplier(*arguments)


def _loss(cohorts, strategy, *target):
  noise = _noise(cohorts, strategy.matrix(), *target)
  return strategy.errors()[0] * noise**2


def _optimized(
  cohorts, family, rounds, epsilon=_EPSILON, delta=_DELTA, **parameters
):
  return optimize.optimize(
    family,
    rounds,
    cohorts.schema,
    noise=accounting.needed_noise(cohorts, rounds, epsilon, delta),
    **parameters,
  ).strategy


@pytest.mark.slow
@pytest.mark.parametrize(
  ('cohorts', 'rounds'), [(_BINS, 7), (_BINS, 12), (_SEPARATED, 3)]
)
def test_estimate_is_the_noise_of_enumerated_patterns(cohorts, rounds):
  needed = accounting.needed_noise(cohorts, rounds, _EPSILON, _DELTA)
  for strategy in (
    strategies.BandedToeplitz(rounds, [1.0, 0.4]),
    strategies.Banded(np.array([[1.0, 0.0]] + [[0.9, 0.7]] * (rounds - 1))),
    strategies.Identity(rounds),
  ):
    exact = _noise(cohorts, strategy.matrix())
    assert needed(strategy) == pytest.approx(exact, rel=5e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
  'cohorts', [accounting.BallsInBins(5), accounting.BMinSep(5, 0.07)]
)
@pytest.mark.parametrize('epsilon', [0.5, 2.0, 8.0])
@pytest.mark.deep(but=('2.0-cohorts0', '8.0-cohorts1'))
def test_gradient_is_that_of_the_estimate(cohorts, epsilon):
  rounds, rng = 17, np.random.default_rng(0)
  needed = accounting.needed_noise(cohorts, rounds, epsilon, 1e-5)
  column = 1 / np.arange(1.0, 5.0)
  inside = np.add.outer(np.arange(rounds), np.arange(4)) < rounds
  columns = inside * column * rng.uniform(0.8, 1.2, inside.shape)
  for squared_of, x in (
    (needed.squared_of_column, column),
    (needed.squared_of_columns, columns),
  ):
    value, gradient = squared_of(x)
    for _ in range(3):
      way = rng.uniform(-1e-3, 1e-3, x.shape) * (x > 0)
      difference = squared_of(x + way)[0] - squared_of(x - way)[0]
      slope = 2 * np.vdot(gradient, way)
      assert difference == pytest.approx(
        slope, rel=2e-2, abs=6e-2 * np.linalg.norm(gradient * way)
      )
    # s grows in proportion to C.
    assert np.vdot(gradient, x) == pytest.approx(2 * value, rel=1e-9)


@pytest.mark.parametrize(('epsilon', 'delta'), [(4.0, 1e-12), (8.0, 1e-9)])
def test_estimate_at_a_small_delta_does_not_lose_its_samples(epsilon, delta):
  needed = accounting.needed_noise(_BINS, 8, epsilon, delta)
  exact = _noise(_BINS, np.eye(8), epsilon, delta)
  assert needed(strategies.Identity(8)) == pytest.approx(exact, rel=1e-2)


@pytest.mark.slow
def test_columns_and_a_first_column_need_the_same_noise():
  column = np.array([1.0, 0.5, 0.3])
  columns = np.where(np.add.outer(np.arange(8), np.arange(3)) < 8, column, 0)
  for cohorts in (accounting.BallsInBins(3), accounting.BMinSep(3, 0.1)):
    needed = accounting.needed_noise(cohorts, 8, 1.0, 1e-5)
    squared, _ = needed.squared_of_column(column)
    assert needed.squared_of_columns(columns)[0] == pytest.approx(squared)
    for strategy in (
      strategies.BandedToeplitz(8, column),
      strategies.Dense(strategies.BandedToeplitz(8, column).matrix()),
    ):
      if (
        strategy.bands <= cohorts.schema.min_sep or cohorts.name != 'b-min-sep'
      ):
        assert needed(strategy) ** 2 == pytest.approx(squared, rel=1e-4)


def test_negative_entries_have_no_noise():
  for cohorts in (accounting.BallsInBins(3), accounting.BMinSep(3, 0.1)):
    needed = accounting.needed_noise(cohorts, 8, 1.0, 1e-5)
    assert needed.squared_of_column(np.array([1.0, -0.1]))[0] == math.inf
    with pytest.raises(ValueError, match='entry -0.1'):
      needed(strategies.BandedToeplitz(8, [1.0, -0.1]))


def test_noise_in_proportion_to_the_sensitivity_needs_no_search():
  assert accounting.needed_noise(_POISSON, 8, 1.0, 1e-5) is None


@pytest.mark.slow
@pytest.mark.parametrize(
  ('cohorts', 'family', 'rounds', 'build'),
  [
    (_BINS, 'dp-cgd', 12, lambda n, x: strategies.DpCgd(n, x)),
    (_BINS, 'dp-cgd', 7, lambda n, x: strategies.DpCgd(n, x)),
    (_BINS, 'lti', 9, lambda n, x: strategies.Lti(n, x)),
    (
      _BINS,
      'banded-toeplitz',
      11,
      lambda n, x: strategies.BandedToeplitz(n, [1.0, x]),
    ),
    (
      _SEPARATED,
      'banded-toeplitz',
      3,
      lambda n, x: strategies.BandedToeplitz(n, [1.0, x]),
    ),
    (
      _SEPARATED,
      'banded-fractional',
      3,
      lambda n, x: strategies.BandedFractional(n, 2, x),
    ),
    (
      _POISSON,
      'banded-toeplitz',
      12,
      lambda n, x: strategies.BandedToeplitz(n, [1.0, x]),
    ),
  ],
)
@pytest.mark.deep(but=('cohorts1-', 'cohorts3-', 'cohorts6-'))
def test_sweep_reaches_the_best_of_all_values(cohorts, family, rounds, build):
  parameters = {} if family in ('dp-cgd', 'lti') else {'bands': 2}
  loss = _loss(cohorts, _optimized(cohorts, family, rounds, **parameters))
  best = min(
    _loss(cohorts, build(rounds, x)) for x in np.linspace(0.0, 1.0, 21)
  )
  assert loss <= 1.005 * best


def _random_case(kind, rng):
  """Returns random cohorts, rounds, and a target."""
  prob, target = (
    rng.uniform(0.1, 0.4),
    (rng.uniform(0.5, 3), 10 ** -rng.uniform(2, 5)),
  )
  if kind == 'balls in bins':
    return (
      accounting.BallsInBins(int(rng.integers(2, 4))),
      rng.integers(6, 13),
      target,
    )
  if kind == 'b-min-sep':
    start = str(rng.choice(['warm', 'cold']))
    return accounting.BMinSep(2, prob, start=start), rng.integers(5, 9), target
  groups = 1 if kind == 'poisson' else 2
  return accounting.CyclicPoisson(prob, groups), rng.integers(6, 13), target


@pytest.mark.slow
@pytest.mark.parametrize('seed', [0, 1])
@pytest.mark.parametrize(
  'kind', ['balls in bins', 'b-min-sep', 'poisson', 'cyclic poisson']
)
@pytest.mark.deep(but=('-0',))
def test_random_cases_reach_the_best_of_all_values(kind, seed):
  """Under Poisson sampling C is diagonal: a random one is never better."""
  rng = np.random.default_rng(seed)
  cohorts, rounds, target = _random_case(kind, rng)
  rounds = int(rounds)
  if kind == 'poisson':
    optimized = _optimized(cohorts, 'banded', rounds, *target, bands=1)
    others = [
      strategies.Banded(rng.uniform(0.3, 1, (rounds, 1))) for _ in range(50)
    ]
  else:
    optimized = _optimized(cohorts, 'banded-toeplitz', rounds, *target, bands=2)
    others = [
      strategies.BandedToeplitz(rounds, [1.0, x]) for x in np.linspace(0, 1, 16)
    ]
  best = min(_loss(cohorts, other, *target) for other in others)
  assert _loss(cohorts, optimized, *target) <= 1.005 * best


@pytest.mark.slow
@pytest.mark.parametrize(
  'kind', ['balls in bins', 'b-min-sep', 'poisson', 'cyclic poisson']
)
@pytest.mark.deep(but=('[b-min-sep', '[poisson'))
def test_c_of_ones_own_reaches_the_best_of_all_values(kind):
  import tensorflow as tf

  cohorts, rounds, target = _random_case(kind, np.random.default_rng(2))
  rounds = int(rounds)
  steps = np.arange(rounds)

  def build(x):
    if kind == 'poisson':
      return optimize.Columns(tf.exp(-x * steps[:, None] / rounds))
    if kind == 'balls in bins':
      return optimize.Toeplitz(tf.exp(-x * np.log1p(steps)))
    return optimize.Toeplitz(tf.stack([1.0, x[0]]))

  own = optimize.minimize(
    build,
    [0.7],
    optimize.Problem(
      rounds,
      cohorts.schema,
      noise=accounting.needed_noise(cohorts, rounds, *target),
    ),
    bounds=[(0, 2)],
  )
  best = min(
    _loss(cohorts, build(tf.constant([x])).strategy(rounds), *target)
    for x in np.linspace(0.0, 2.0, 11)
  )
  assert own.strategy.family == 'custom'
  assert _loss(cohorts, own.strategy, *target) <= 1.005 * best


@pytest.mark.slow
@pytest.mark.parametrize(
  'family', ['banded-fractional', 'banded-sqrt', 'banded-inverse-fractional']
)
@pytest.mark.deep(but=('sqrt', 'inverse-fractional'))
def test_bands_and_exponent_are_chosen_together(family):
  """A sweep with one band, where C = I, gave the next sweep a bad start."""
  cohorts = accounting.BMinSep(4, 0.05, start='cold')
  build = strategies.BandedFractional
  if family == 'banded-inverse-fractional':
    cohorts = accounting.BallsInBins(4)
    build = strategies.BandedInverseFractional
  needed = accounting.needed_noise(cohorts, 16, 2.0, 1e-6)
  optimized = optimize.optimize(family, 16, cohorts.schema, noise=needed)
  for bands in (1, 2, 4):
    for alpha in (0.5,) if family == 'banded-sqrt' else (0.3, 0.4, 0.5):
      strategy = build(16, bands, alpha)
      loss = strategy.errors()[0] * needed(strategy) ** 2
      assert optimized.loss <= 1.01 * loss


@pytest.mark.slow
@pytest.mark.parametrize(
  ('cohorts', 'rounds', 'most'), [(_BINS, 4, 150), (_SEPARATED, 3, 30)]
)
@pytest.mark.deep(but=('cohorts1-',))
def test_banded_reaches_the_best_columns(cohorts, rounds, most):
  optimized = _optimized(cohorts, 'banded', rounds, bands=2)

  def loss(x):
    rows = np.zeros((rounds, 2))
    rows[1:, 0] = np.abs(x[: rounds - 1]) + 1e-9
    rows[1:, 1] = np.abs(x[rounds - 1 :])
    rows[0, 0] = 1.0
    return math.log(_loss(cohorts, strategies.Banded(rows)))

  starts = [np.full(2 * rounds - 2, 0.5)] if cohorts == _BINS else []
  rows = optimized.band_rows(0, rounds)[1:] / optimized.band_rows(0, 1)[0, 0]
  starts.append(rows.T.reshape(-1))
  best = min(
    scipy.optimize.minimize(
      loss,
      start,
      method='Nelder-Mead',
      options={'xatol': 1e-3, 'fatol': 1e-5, 'maxfev': most},
    ).fun
    for start in starts
  )
  assert math.log(_loss(cohorts, optimized)) <= best + 5e-3


def test_search_for_sampled_cohorts_counts_their_noise():
  needed = accounting.needed_noise(_BINS, 12, _EPSILON, _DELTA)
  problem = solver.Problem(12, _BINS.schema, noise=needed)
  strategy = strategies.DpCgd(12, 0.5)
  loss = problem.evaluated(strategy).loss
  assert loss == pytest.approx(_loss(_BINS, strategy), rel=1e-2)
