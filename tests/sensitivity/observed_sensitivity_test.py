"""Tests of the sensitivity that real participations show."""

import fractions
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tff_bandmf import accounting, participation, sensitivity, strategies
from tff_bandmf.sensitivity import observed_sensitivity

_ROUNDS = 24


def _signed():
  rng = np.random.default_rng(3)
  below = np.tril(rng.normal(size=(_ROUNDS, _ROUNDS)), -1)
  return strategies.Dense(below + 3 * np.eye(_ROUNDS))


_STRATEGIES = {
  'banded': strategies.BandedSqrt(_ROUNDS, 5),
  'toeplitz': strategies.SqrtToeplitz(_ROUNDS),
  'blt': strategies.Blt(_ROUNDS, np.array([0.2, 0.1]), np.array([0.9, 0.5])),
  'dense': strategies.Dense(strategies.SqrtToeplitz(_ROUNDS).matrix() ** 2),
  'column-normalised': strategies.ColumnNormalized(
    strategies.BandedSqrt(_ROUNDS, 9)
  ),
  'inverse': strategies.BandedInverseSqrt(_ROUNDS, 3),
  'stamped': strategies.Stamped(_ROUNDS, strategies.SqrtToeplitz(7)),
  'tree': strategies.Tree(_ROUNDS, 3),
  'online-tree': strategies.OnlineTree(_ROUNDS),
  'signed': _signed(),
}
_PATTERNS = st.lists(
  st.sets(st.integers(0, _ROUNDS - 1), min_size=1, max_size=7).map(sorted),
  min_size=1,
  max_size=12,
)


def _gram(strategy):
  if isinstance(strategy, strategies.OnlineTree):
    return strategy.gram()
  matrix = strategy.matrix()
  return matrix.T @ matrix


def _cohorts(patterns):
  """Returns the cohorts, of random identifiers, that show the patterns."""
  names = np.random.default_rng(5).integers(
    -(2**63), 2**63 - 1, len(patterns), endpoint=True
  )
  return {
    t: np.sort(names[[t in pattern for pattern in patterns]])
    for t in range(_ROUNDS)
  }


def _observed(patterns, strategy=None, **options):
  return sensitivity.observed(
    _cohorts(patterns).items, sum(map(len, patterns)), strategy, **options
  )


@pytest.mark.parametrize('whole', [True, False])
@pytest.mark.parametrize('name', _STRATEGIES)
@settings(max_examples=20)
@given(patterns=_PATTERNS)
def test_observed_is_brute_force(name, whole, patterns):
  strategy = _STRATEGIES[name]
  gram = np.abs(_gram(strategy))
  squares = [gram[np.ix_(each, each)].sum() for each in patterns]
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(observed_sensitivity, '_WHOLE_GRAM', _ROUNDS if whole else 1)
    found = _observed(patterns, strategy)
  np.testing.assert_allclose(
    found.sensitivity.value, np.sqrt(max(squares)), rtol=1e-11
  )
  worst = gram[np.ix_(found.pattern, found.pattern)].sum()
  np.testing.assert_allclose(worst, max(squares), rtol=1e-12)


@settings(max_examples=30)
@given(patterns=_PATTERNS, at_a_time=st.integers(1, 60))
def test_parts_show_what_the_whole_shows(patterns, at_a_time):
  counts = [len(each) for each in patterns]
  gaps = [b - a for each in patterns for a, b in zip(each, each[1:])]
  strategy = _STRATEGIES['banded']
  found = _observed(patterns, strategy, at_a_time=at_a_time)
  assert found.clients == len(patterns)
  assert found.participations == sum(counts)
  assert found.min_sep == min(gaps, default=None)
  assert found.max_participations == max(counts)
  assert found.histogram == {
    count: counts.count(count) for count in sorted(set(counts))
  }
  whole = _observed(patterns, strategy)
  assert found.sensitivity.value == pytest.approx(
    whole.sensitivity.value, rel=1e-12
  )


@pytest.mark.parametrize('name', _STRATEGIES)
@settings(max_examples=20)
@given(
  starts=st.lists(st.integers(0, 8), min_size=1, max_size=5),
  gaps=st.lists(st.integers(5, 9), min_size=4, max_size=4),
)
def test_log_that_keeps_a_schema_shows_at_most_what_was_planned(
  name, starts, gaps
):
  steps = [0, *itertools.accumulate(gaps)]
  patterns = [
    [start + step for step in steps if start + step < _ROUNDS]
    for start in starts
  ]
  planned = accounting.Guarantee(
    _STRATEGIES[name], participation.MinSep(5), 1.0
  )
  found = _observed(patterns, _STRATEGIES[name])
  claimed = 1 + planned.accountant.error
  assert found.sensitivity.value <= planned.sensitivity.value * claimed * (
    1 + 1e-12
  )
  # Not by a rounding error either.
  assert planned.for_observed(found).epsilon(1e-6) <= planned.epsilon(1e-6)


def _of_noise(strategy):
  """Returns the C of the noise, [n][n] fractions."""
  window, rounds = strategy.recursion(), strategy.rounds
  matrix = [[fractions.Fraction(0)] * rounds for _ in range(rounds)]
  for t, (scale, readout) in enumerate(zip(*window.weights(0, rounds))):
    for s, weight in enumerate([-1.0, *readout][: t + 1]):
      matrix[t][t - s] = -fractions.Fraction(weight) / fractions.Fraction(scale)
  return matrix


_LOST = np.full((50, 1), 1.05e-8)
_LOST[0] = 1.0


@pytest.mark.parametrize(
  'strategy',
  [
    # Squares that are lost one by one beside a 1.
    strategies.Banded(_LOST),
    *(_STRATEGIES[name] for name in ('toeplitz', 'dense', 'signed', 'tree')),
  ],
)
def test_observed_is_rounded_up(strategy):
  matrix, every = _of_noise(strategy), np.arange(strategy.rounds)
  found = sensitivity.of_clients([(every, np.zeros_like(every))], strategy)
  columns = list(zip(*matrix))
  exact = sum(
    abs(sum(a * b for a, b in zip(first, second) if a and b))
    for first in columns
    for second in columns
  )
  assert exact <= found.sensitivity.value**2 <= exact * (1 + 1e-3)


def test_signs_of_the_gram_matrix_do_not_help():
  """X_01 < 0: contributions of opposite directions reach what |X| says."""
  strategy = strategies.Dense(np.array([[1.0, 0.0], [-0.5, 1.0]]))
  found = _observed_two(strategy)
  # Contributions +1 and -1: || C (1, -1)^T ||^2 = 1 + 1.5^2.
  assert found.value**2 == pytest.approx(3.25)
  assert found.method == sensitivity.UPPER_BOUND
  positive = _observed_two(strategies.Dense(np.array([[1.0, 0], [0.5, 1]])))
  assert positive.method == sensitivity.EXACT


def _observed_two(strategy):
  cohort = np.array([7])
  return sensitivity.observed(
    lambda: [(0, cohort), (1, cohort)], 2, strategy
  ).sensitivity


def test_client_that_is_twice_in_a_round_is_refused():
  with pytest.raises(ValueError, match='round=3: .*twice'):
    sensitivity.of_clients([(np.array([3, 3]), np.array([5, 5]))])


def test_round_past_the_strategy_is_refused():
  with pytest.raises(ValueError, match='round=24: .*24 rounds'):
    sensitivity.of_clients(
      [(np.array([_ROUNDS]), np.array([5]))], _STRATEGIES['banded']
    )


def test_nobody_shows_nothing():
  found = sensitivity.observed(list, 0, _STRATEGIES['banded'])
  assert (found.clients, found.min_sep, found.histogram) == (0, None, {})
  assert found.sensitivity.value == 0
