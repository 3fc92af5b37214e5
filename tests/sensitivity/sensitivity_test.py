"""Tests of sensitivity against brute force over all participation patterns."""

import fractions
import itertools
import math

import brute_force
import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from tff_bandmf import participation, sensitivity, strategies
from tff_bandmf.sensitivity import patterns


def _square_root(bands):
  j = np.arange(1, bands)
  return np.concatenate([[1.0], np.cumprod((j - 0.5) / j)])


def _column_normalised(matrix):
  return matrix / np.linalg.norm(matrix, axis=0)


def _strategies_of(kind, rounds, min_sep, rng):
  """Yields strategies of a kind for so many rounds."""

  def dense(low):
    below = np.tril(rng.uniform(low, 1, (rounds, rounds)), -1)
    return below + np.diag(rng.uniform(0.5, 1.5, rounds))

  if kind == 'identity':
    yield strategies.Identity(rounds)
  elif kind == 'dense non-negative':
    yield strategies.Dense(dense(0))
  elif kind == 'dense signed':
    yield strategies.Dense(dense(-1))
  elif kind == 'dense signed, bands at most min_sep':
    band = np.tri(rounds) - np.tri(rounds, k=-min(min_sep, rounds))
    yield strategies.Dense(dense(-1) * band)
  else:
    for bands in sorted({1, min(2, rounds), (rounds + 1) // 2, rounds}):
      falling = np.sort(rng.uniform(0, 1, bands))[::-1] + 1e-3
      if kind == 'Toeplitz falling':
        yield strategies.BandedToeplitz(rounds, falling)
      elif kind == 'Toeplitz falling to 0':
        falling[bands // 2 + 1 :] = 0
        yield strategies.BandedToeplitz(rounds, falling)
      elif kind == 'Toeplitz not falling':
        yield strategies.BandedToeplitz(rounds, rng.permutation(falling))
      elif kind == 'Toeplitz not falling, columns normalised':
        toeplitz = strategies.BandedToeplitz(rounds, rng.permutation(falling))
        yield strategies.ColumnNormalized(toeplitz)
      elif kind.startswith('Toeplitz signed'):
        signs = np.sign(rng.normal(size=bands))
        signs[0] = 1
        toeplitz = strategies.BandedToeplitz(rounds, falling * signs)
        if kind.endswith('columns normalised'):
          toeplitz = strategies.ColumnNormalized(toeplitz)
        yield toeplitz
      elif kind == 'Toeplitz, columns normalised':
        matrix = strategies.BandedToeplitz(rounds, falling).matrix()
        yield strategies.Dense(_column_normalised(matrix))


_KINDS = [
  'identity',
  'Toeplitz falling',
  'Toeplitz falling to 0',
  'Toeplitz not falling',
  'Toeplitz signed',
  'Toeplitz, columns normalised',
  'Toeplitz not falling, columns normalised',
  'Toeplitz signed, columns normalised',
  'dense non-negative',
  'dense signed',
  'dense signed, bands at most min_sep',
]


# Kinds to which a theorem applies however columns of one client overlap.
_EXACT = {
  participation.MinSep: [
    'identity',
    'Toeplitz falling',
    'Toeplitz falling to 0',
  ],
  participation.FixedEpoch: [
    'identity',
    'Toeplitz falling',
    'Toeplitz falling to 0',
    'Toeplitz not falling',
    'Toeplitz, columns normalised',
    'Toeplitz not falling, columns normalised',
    'dense non-negative',
  ],
}


@pytest.mark.slow
@pytest.mark.parametrize('kind', _KINDS)
@pytest.mark.parametrize(
  'make', [participation.MinSep, participation.FixedEpoch]
)
@pytest.mark.deep(
  but=('MinSep-Toeplitz', 'dense', 'FixedEpoch-Toeplitz signed')
)
def test_sensitivity_against_brute_force(kind, make):
  rng = np.random.default_rng(7)
  exact_count = bound_count = 0
  for rounds, min_sep in itertools.product(range(1, 11), range(1, 6)):
    for strategy in _strategies_of(kind, rounds, min_sep, rng):
      for most in (None, 1, 2, 3):
        schema = make(min_sep, most)
        bound = brute_force.checked(strategy, schema)
        case = (rounds, min_sep, most, strategy.bands, bound)
        if (
          kind in _EXACT[make]
          # Columns overlap with the next one of the client at most.
          or strategy.bands <= 2 * min_sep
          or schema.participations(rounds) == 1
        ):
          assert bound.method == sensitivity.EXACT, case
        exact_count += bound.method == sensitivity.EXACT
        bound_count += bound.method == sensitivity.UPPER_BOUND
  assert exact_count
  overlaps = 'at most min_sep' not in kind
  assert bool(bound_count) == (overlaps and kind not in _EXACT[make])


def test_bound_is_never_below_brute_force():
  # Alg 4 alone, on matrices whose signs work against it, at n = 12.
  rng = np.random.default_rng(9)
  for _ in range(20):
    matrix = np.tril(rng.normal(size=(12, 12)), -1)
    matrix += np.diag(rng.uniform(0.5, 1.5, 12))
    bound = brute_force.checked(
      strategies.Dense(matrix), participation.MinSep(2, 4)
    )
    assert bound.method == sensitivity.UPPER_BOUND


@pytest.mark.parametrize(
  'schema', [participation.MinSep(1), participation.FixedEpoch(1)]
)
def test_signs_of_the_gram_matrix_do_not_help(schema):
  # u_1 = -u_0 reaches 1.81 + 1 + 2 * 0.9; u_1 = u_0 only 1.81 + 1 - 2 * 0.9.
  strategy = strategies.Dense([[1.0, 0], [-0.9, 1]])
  found = sensitivity.sensitivity(strategy, schema)
  assert found.value**2 == pytest.approx(1.81 + 1 + 2 * 0.9, rel=1e-12)


@pytest.mark.parametrize('bands', [41, 60])
def test_bound_is_near_what_patterns_attain(bands):
  # Columns that overlap with many others, over all 4368 patterns.
  rng = np.random.default_rng(11)
  band = np.tri(60) - np.tri(60, k=-bands)
  matrix = rng.uniform(size=(60, 60)) * band
  gram = matrix.T @ matrix
  columns = np.array(list(itertools.combinations(range(60 - 4 * 11), 5)))
  columns += 11 * np.arange(5)
  true = gram[columns[:, :, None], columns[:, None]].sum((1, 2)).max()
  found = sensitivity.sensitivity(
    strategies.Dense(matrix), participation.MinSep(12, 5)
  )
  assert found.method == sensitivity.UPPER_BOUND
  assert true < found.value**2 < 1.1 * true


@pytest.mark.parametrize('most', [None, 5])
def test_chain_of_overlapping_columns_against_all_patterns(most):
  # Signed, more rows than one block, and more participations than a chain of
  # few needs.
  rng = np.random.default_rng(12)
  rows = rng.normal(size=(150, 58))
  rows[:, 0] = 1 + np.abs(rows[:, 0])
  strategy = strategies.Banded(
    np.where(np.arange(150)[:, None] >= np.arange(58), rows, 0)
  )
  found = sensitivity.sensitivity(strategy, participation.MinSep(29, most))
  gram = np.abs(strategy.matrix().T @ strategy.matrix())
  # The heaviest chain that starts at i and has at most m columns.
  heaviest = np.zeros((7, 150))
  for m in range(1, 7):
    for i in range(149, -1, -1):
      after = 2 * gram[i, i + 29 :] + heaviest[m - 1, i + 29 :]
      heaviest[m, i] = gram[i, i]
      if m > 1:
        heaviest[m, i] += after.max(initial=0)
  expected = heaviest[most or 6].max()
  assert (found.value**2, found.method) == (pytest.approx(expected), 'exact')


def test_toeplitz_sensitivity_in_the_published_setting():
  strategy = strategies.BandedToeplitz(2052, _square_root(342))
  found = sensitivity.sensitivity(strategy, participation.MinSep(342))
  assert found.method == sensitivity.EXACT
  assert found.value**2 == pytest.approx(
    6 * np.sum(_square_root(342) ** 2), rel=1e-13
  )


def test_toeplitz_counts_rounds_not_coefficients():
  # 2 bands, 3 participations; the last column is cut at n.
  strategy = strategies.BandedToeplitz(7, [1.0, 0.5])
  found = sensitivity.sensitivity(strategy, participation.MinSep(3))
  assert found.value**2 == pytest.approx(1.25 + 1.25 + 1, rel=1e-14)


@pytest.mark.parametrize('min_sep', [10, 11, 10**30])
def test_min_sep_past_the_rounds_is_one_participation(min_sep):
  strategy = strategies.BandedToeplitz(10, _square_root(10))
  found = sensitivity.sensitivity(strategy, participation.MinSep(min_sep))
  assert found.value == np.linalg.norm(_square_root(10))
  dense = strategies.Dense(strategy.matrix())
  found = sensitivity.sensitivity(dense, participation.MinSep(min_sep))
  assert found.value == pytest.approx(np.linalg.norm(_square_root(10)))


def test_consecutive_rounds_sum_all_columns():
  strategy = strategies.BandedToeplitz(10, _square_root(10))
  every = np.linalg.norm(strategy.matrix().sum(1))
  found = sensitivity.sensitivity(strategy, participation.MinSep(1))
  assert (found.value, found.method) == (pytest.approx(every), 'exact')
  dense = strategies.Dense(strategy.matrix())
  found = sensitivity.sensitivity(dense, participation.MinSep(1))
  assert (found.value, found.method) == (pytest.approx(every), 'exact')


def test_huge_rounds_cost_nothing():
  identity = strategies.Identity(10**30)
  found = sensitivity.sensitivity(identity, participation.MinSep(10**20))
  assert found.value == pytest.approx(1e5, rel=1e-12)
  toeplitz = strategies.BandedToeplitz(10**6, _square_root(5000))
  found = sensitivity.sensitivity(toeplitz, participation.MinSep(342))
  dense = toeplitz.coefficients
  # The overlapping sum, block of 342 rows after block of 342 rows.
  padded = np.concatenate([dense, np.zeros(342 * 15 - 5000)]).reshape(15, 342)
  summed = padded.cumsum(0)
  rest = 10**6 - 15 * 342
  squared = (summed**2).sum()
  squared += (summed[-1] ** 2).sum() * (rest // 342)
  squared += (summed[-1, : rest % 342] ** 2).sum()
  assert found.value == pytest.approx(math.sqrt(squared), rel=1e-11)


@pytest.mark.parametrize('scale', [1e-25, 1e-3, 7.0, 1e25])
@pytest.mark.parametrize(
  'schema',
  [
    participation.Single(),
    participation.MinSep(2),
    participation.MinSep(5),
    participation.FixedEpoch(2),
  ],
)
def test_sensitivity_is_homogeneous(scale, schema):
  rng = np.random.default_rng(3)
  matrix = np.tril(rng.normal(size=(8, 8)), -1) + np.eye(8)
  for make in (
    lambda c: strategies.Dense(c * matrix),
    lambda c: strategies.BandedToeplitz(8, c * np.array([1, 0.5, 0.7])),
  ):
    once = sensitivity.sensitivity(make(1.0), schema).value
    scaled = sensitivity.sensitivity(make(scale), schema).value
    assert scaled == pytest.approx(scale * once, rel=1e-12)


def test_what_is_no_schema_is_refused():
  with pytest.raises(TypeError, match='participation=3: .*Participation'):
    sensitivity.sensitivity(strategies.Identity(3), 3)


@pytest.mark.slow
@hypothesis.settings(max_examples=150)
@hypothesis.given(
  weights=st.lists(st.floats(0, 10), min_size=1, max_size=9),
  min_sep=st.integers(1, 10),
  count=st.integers(1, 10),
)
def test_heaviest_pattern_against_enumeration(weights, min_sep, count):
  weights = np.array(weights)
  n = len(weights)
  for make in (participation.MinSep, participation.FixedEpoch):
    chosen = brute_force.patterns(n, make(min_sep, count))
    expected = (chosen @ weights).max()
    # `count` as callers give it: no more than fit.
    k = make(min_sep, count).participations(n)
    if make is participation.MinSep:
      found = patterns.heaviest(weights, min_sep, k)
    else:
      found = patterns.heaviest_fixed([weights], n, min_sep, k)
    assert found == pytest.approx(expected)


@pytest.mark.parametrize(
  ('min_sep', 'count'),
  [(2, 2), (2, 3), (2, 4), (2, 5), (3, 2), (3, 3), (4, 2), (4, 3)],
)
def test_heaviest_pattern_of_random_weights(min_sep, count):
  weights = np.random.default_rng(6).random((200, 9))
  chosen = brute_force.patterns(9, participation.MinSep(min_sep, count))
  np.testing.assert_allclose(
    patterns.heaviest(weights, min_sep, count),
    (weights @ chosen.T).max(1),
    rtol=1e-12,
  )


def test_heaviest_pattern_of_many_rows_and_consecutive_rounds():
  weights = np.random.default_rng(5).random((64, 1500))
  for count in (1, 10, 1499, 1500):
    np.testing.assert_allclose(
      patterns.heaviest(weights, 1, count),
      np.sort(weights, axis=1)[:, -count:].sum(1),
      rtol=1e-12,
    )


def _claimed(strategy, schema):
  """Returns the sensitivity that claims of a strategy rest on, exactly."""
  value = sensitivity.sensitivity(strategy, schema).value
  k = schema.participations(strategy.rounds)
  error = fractions.Fraction(sensitivity.rounding(strategy, k))
  return fractions.Fraction(value) * (1 + error)


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
  assert exact <= _claimed(strategy, schema) ** 2 <= exact * (1 + 1e-3)
  plain = sensitivity.rounding(strategy, 2)
  for other in (
    strategies.ColumnNormalized(strategy),
    strategies.Stamped(2 * rounds, strategy),
  ):
    assert sensitivity.rounding(other, 2) >= plain


def test_inverse_that_float64_does_not_give_is_refused():
  strategy = _ill_conditioned(2000, 8, 1.0)
  with pytest.raises(ValueError, match='inverse_coefficients=.*float64'):
    sensitivity.rounding(strategy, 1)
