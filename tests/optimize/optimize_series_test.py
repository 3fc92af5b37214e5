"""Tests of the losses that Toeplitz optimisers share, against dense ones."""

import brute_force
import numpy as np
import pytest

from tff_bandmf import participation, workloads
from tff_bandmf.optimize import series, solver

_WORKLOADS = [
  workloads.PREFIX,
  workloads.Workload(momentum=0.9),
  workloads.Workload(warmup=0.3, cooldown=0.4),
  workloads.Workload(momentum=0.5, warmup=0.2, cooldown=0.5),
]


def _toeplitz(column):
  lags = np.subtract.outer(np.arange(len(column)), np.arange(len(column)))
  return np.where(lags >= 0, np.asarray(column)[lags], 0.0)


def _brute_force_squared(column, schema):
  """Returns the largest sum of |X| over all patterns of the schema."""
  return brute_force.bound(_toeplitz(column), schema) ** 2


def _squared(column, schema):
  problem = solver.Problem(len(column), schema)
  return series.squared_noise(column, problem)[0]


def _cases(count):
  rng = np.random.default_rng(0)
  for _ in range(count):
    min_sep, most = (int(i) for i in rng.integers(1, 5, size=2))
    kind = rng.choice([participation.MinSep, participation.FixedEpoch])
    yield rng.normal(size=rng.integers(2, 9)), kind(min_sep, most)


def test_sensitivity_is_never_below_brute_force():
  for column, schema in _cases(150):
    brute_force = _brute_force_squared(column, schema)
    assert _squared(column, schema) >= brute_force * (1 - 1e-12)


def test_sensitivity_is_exact_where_c_falls_from_min_sep_on():
  risen = 0
  for column, schema in _cases(150):
    c = np.abs(column)
    c[schema.min_sep :] = np.sort(c[schema.min_sep :])[::-1]
    risen += bool(np.any(np.diff(c) > 0))
    assert _squared(c, schema) == pytest.approx(
      _brute_force_squared(c, schema), rel=1e-12
    )
  assert risen > 50


def test_a_late_rise_costs_sensitivity():
  # Columns 0 and 3 overlap more than columns 0 and 2.
  c = np.array([1.0, 0.5, 0.0, 0.5, 0.0, 0.0])
  schema = participation.MinSep(2, 2)
  leftmost = np.sum(_toeplitz(c)[:, [0, 2]].sum(1) ** 2)
  assert leftmost < _brute_force_squared(c, schema) - 0.1
  assert _squared(c, schema) >= _brute_force_squared(c, schema)


def _build(rounds):
  """Returns c and r of the free coefficients of r."""

  def build(free):
    inverse, column, pullback = series.from_few(free, rounds)
    return column, inverse, lambda by_c, by_r: pullback(by_r, by_c)

  return build


def test_gradient_of_the_sensitivity_is_that_of_differences():
  step = 1e-6
  for column, schema in _cases(40):
    problem = solver.Problem(len(column), schema)
    _, gradient = series.squared_noise(column, problem)
    for i, unit in enumerate(np.eye(len(column))):
      difference = _squared(column + step * unit, schema) - _squared(
        column - step * unit, schema
      )
      assert gradient[i] == pytest.approx(difference / (2 * step), abs=1e-6)


@pytest.mark.parametrize('workload', _WORKLOADS, ids=str)
@pytest.mark.parametrize('objective', ['mean', 'max'])
def test_loss_and_gradient_against_dense(workload, objective):
  n, schema = 24, participation.MinSep(7, 3)

  loss = series.Objective(
    _build(n), solver.Problem(n, schema, workload, objective)
  )
  free = np.array([-0.4, -0.15, -0.05])

  def dense(free):
    inverse = _toeplitz(np.concatenate([[1.0], free, np.zeros(n - 4)]))
    errors = ((workload.matrix(n) @ inverse) ** 2).sum(1)
    error = errors.mean() if objective == 'mean' else errors.max()
    column = np.linalg.inv(inverse)[:, 0]
    assert np.all(np.diff(column) < 0)
    return np.log(error * _leftmost_squared(column, 7, 3))

  value, gradient = loss(free)
  # A norm stands for the maximum of errors with learning rates.
  smoothed = objective == 'max' and not workload.is_toeplitz
  low = 0.0 if not smoothed else -np.log(n) / 1e4
  assert low - 1e-11 <= dense(free) - value <= 1e-11
  step = 1e-6
  for i, unit in enumerate(np.eye(3)):
    difference = loss(free + step * unit)[0] - loss(free - step * unit)[0]
    assert gradient[i] == pytest.approx(difference / (2 * step), rel=1e-5)


def _leftmost_squared(column, min_sep, count):
  columns = _toeplitz(column)[:, : min_sep * count : min_sep]
  return np.sum(columns.sum(1) ** 2)


def test_loss_is_not_finite_where_it_overflows():
  loss = series.Objective(
    _build(500),
    solver.Problem(500, participation.Single(), workloads.PREFIX, 'mean'),
  )
  value, _ = loss(np.array([-1e3]))
  assert not np.isfinite(value)


def test_division_and_its_gradient_against_dense():
  rng = np.random.default_rng(0)
  numerator, upstream = rng.normal(size=(2, 9))
  coefficients = np.array([2.0, 0.3, -0.7])
  inverse = np.linalg.inv(_toeplitz(np.concatenate([coefficients, [0] * 6])))
  np.testing.assert_allclose(
    series.divide(numerator, coefficients), inverse @ numerator, atol=1e-13
  )
  np.testing.assert_allclose(
    series.divide_back(upstream, coefficients),
    inverse.T @ upstream,
    atol=1e-13,
  )
  quotient = series.reciprocal(coefficients, 9)
  np.testing.assert_allclose(quotient, inverse[:, 0], atol=1e-13)
  expected = [
    -upstream @ inverse @ np.eye(9, k=-i) @ quotient for i in range(3)
  ]
  np.testing.assert_allclose(
    series.reciprocal_back(upstream, quotient, coefficients),
    expected,
    atol=1e-12,
  )


def test_minimum_at_a_kink_has_converged():
  kink = np.array([0.3, -0.2])

  def function(x):
    return float(np.abs(x - kink).sum()), np.sign(x - kink)

  problem = solver.Problem(2, participation.Single())
  best = solver.minimize(function, np.zeros(2), problem)
  assert best.converged
  assert best.value == pytest.approx(0, abs=1e-6)
