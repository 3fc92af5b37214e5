"""Tests of the banded Toeplitz optimiser."""

import numpy as np
import pytest

from tff_bandmf import optimize, participation, sensitivity, strategies
from tff_bandmf.optimize import toeplitz

# Squared loss, error times squared sensitivity, single participation; found by
# other code than this, to 9 digits.
_GOLDEN = [
  (1_000, 16, 'mean', 39.4153173),
  (1_000, 64, 'mean', 16.2801585),
  (10_000, 64, 'mean', 97.0749616),
  (100_000, 256, 'mean', 234.766424),
  (1_000, 64, 'max', 26.2772744),
  (100_000, 64, 'max', 1619.77740),
]


def _loss(coefficients, rounds, objective):
  """Returns error times squared norm, by a dense inverse."""
  matrix = sum(c * np.eye(rounds, k=-s) for s, c in enumerate(coefficients))
  decoder = np.tri(rounds) @ np.linalg.inv(matrix)
  errors = (decoder**2).sum(1)
  error = errors.mean() if objective == 'mean' else errors.max()
  return error * np.sum(np.square(coefficients))


@pytest.mark.parametrize(('rounds', 'bands', 'objective', 'golden'), _GOLDEN)
def test_optimum_is_the_published_one(rounds, bands, objective, golden):
  found = optimize.optimize_banded_toeplitz(rounds, bands, objective)
  assert found.converged
  # Not above it; and below it only by its rounding, or it is another loss.
  assert golden * (1 - 5e-9) <= found.loss <= golden * (1 + 5e-9)


def test_published_setting():
  found = optimize.optimize_banded_toeplitz(2052, 342)
  schema = participation.MinSep(342)
  norm = sensitivity.sensitivity(found.strategy, schema)
  assert norm.method == sensitivity.EXACT
  mean, _ = found.strategy.prefix_errors()
  assert norm.value * np.sqrt(mean) <= 8.81
  identity = strategies.Identity(2052)
  norm = sensitivity.sensitivity(identity, schema)
  mean, _ = identity.prefix_errors()
  assert norm.value * np.sqrt(mean) == pytest.approx(78.479, abs=5e-4)


def test_bands_past_the_separation_need_more_sensitivity():
  # Optimised for 400, columns normalised, separation 385 observed: sqrt(6) is
  # what ignoring the overlap would give.
  found = optimize.optimize_banded_toeplitz(2000, 400)
  matrix = found.strategy.matrix()
  strategy = strategies.Dense(matrix / np.linalg.norm(matrix, axis=0))
  for min_sep, expected in ((400, np.sqrt(5)), (385, 2.5408)):
    value = sensitivity.sensitivity(
      strategy, participation.MinSep(min_sep)
    ).value
    assert value == pytest.approx(expected, abs=5e-5)


@pytest.mark.parametrize('objective', ['mean', 'max'])
@pytest.mark.parametrize(
  ('rounds', 'bands'), [(2, 2), (9, 3), (9, 9), (40, 7), (40, 40)]
)
def test_loss_is_the_dense_one_and_a_minimum(rounds, bands, objective):
  found = optimize.optimize_banded_toeplitz(rounds, bands, objective)
  coefficients = found.strategy.coefficients
  assert found.converged and found.strategy.rounds == rounds
  assert len(coefficients) == bands and coefficients[0] == 1
  assert found.loss == pytest.approx(
    _loss(coefficients, rounds, objective), rel=1e-12
  )
  rng = np.random.default_rng(0)
  for size in (1e-3, 1e-2, 0.1):
    for _ in range(10):
      moved = coefficients.copy()
      moved[1:] += size * rng.normal(size=bands - 1)
      assert _loss(moved, rounds, objective) >= found.loss * (1 - 1e-9)


@pytest.mark.parametrize('objective', ['mean', 'max'])
@pytest.mark.parametrize(
  ('rounds', 'bands'),
  [(1, 1), (3, 2), (100, 1), (100, 100), (5_000, 4), (20_000, 32)],
)
def test_loss_is_never_above_that_of_the_square_root(rounds, bands, objective):
  found = optimize.optimize_banded_toeplitz(rounds, bands, objective)
  root = toeplitz.square_root_coefficients(bands)
  errors = strategies.BandedToeplitz(rounds, root).prefix_errors()
  error = errors[objective == 'max']
  assert found.loss <= error * (root @ root) * (1 + 1e-12)


def test_square_root_coefficients_square_to_the_prefix_sum():
  root = toeplitz.square_root_coefficients(30)
  np.testing.assert_allclose(np.convolve(root, root)[:30], 1, rtol=1e-13)


@pytest.mark.parametrize('objective', ['mean', 'max'])
@pytest.mark.parametrize('rounds', [300, 30_000])
def test_gradient_against_finite_differences(rounds, objective):
  # 300: every term; 30,000: the tail in closed form.
  loss = toeplitz._Objective(rounds, 5, objective)
  free = np.array([0.45, 0.4, 0.25, 0.1])
  _, gradient = loss(free)
  assert loss.exact
  step = 1e-6
  for i, unit in enumerate(np.eye(4)):
    difference = loss(free + step * unit)[0] - loss(free - step * unit)[0]
    assert gradient[i] == pytest.approx(difference / (2 * step), rel=1e-6)


@pytest.mark.parametrize('objective', ['mean', 'max'])
def test_loss_adds_terms_until_they_converge(objective):
  # The root 1 / 0.999 is near the unit circle: 1024 terms are far too few.
  loss = toeplitz._Objective(10**6, 2, objective)
  value, _ = loss(np.array([0.999]))
  assert loss.exact
  strategy = strategies.BandedToeplitz(10**6, [1.0, 0.999])
  error = strategy.prefix_errors()[objective == 'max']
  assert value == pytest.approx(np.log(error * (1 + 0.999**2)), abs=1e-7)


def test_optimum_at_a_million_rounds():
  found = optimize.optimize_banded_toeplitz(10**6, 16)
  assert found.converged
  assert found.loss == pytest.approx(31334, abs=1)


def test_optimiser_that_is_cut_short_says_so():
  calls = []
  found = optimize.optimize_banded_toeplitz(
    1000, 16, max_evaluations=2, callback=lambda: calls.append(1)
  )
  assert not found.converged
  assert found.loss > 39.4153173
  assert calls


@pytest.mark.parametrize(
  ('arguments', 'error', 'message'),
  [
    ((10, 11), ValueError, 'bands=11: must not exceed rounds=10'),
    ((0, 1), ValueError, 'rounds=0: must be at least 1'),
    ((10, 0), ValueError, 'bands=0: must be at least 1'),
    ((10, 2, 'median'), ValueError, 'objective=median: is not known'),
    ((10.0, 2), TypeError, 'rounds=10.0: must be an integer'),
  ],
)
def test_bad_input_is_refused(arguments, error, message):
  with pytest.raises(error, match=message):
    optimize.optimize_banded_toeplitz(*arguments)
