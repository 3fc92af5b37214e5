"""Tests of the optimiser of general banded C."""

import os
import signal

import numpy as np
import pytest
import scipy.optimize

from tff_bandmf import participation, sensitivity, workloads
from tff_bandmf.optimize import banded, covariance, solver

pytestmark = pytest.mark.slow

_PREFIX = workloads.PREFIX
_SCHEDULED = workloads.Workload(momentum=0.9, warmup=0.1, cooldown=0.3)
_SINGLE = participation.Single()

# Example B.1 of [BandMF24]: 9 rounds, 3 bands; total squared error 24.8809.
_EXAMPLE_B1 = """
  .740
  .500 .822
  .450 .492 .876
     0 .286 .395 .821
     0    0 .278 .462 .855
     0    0    0 .335 .442 .882
     0    0    0    0 .272 .403 .892
     0    0    0    0    0 .243 .409 .936
     0    0    0    0    0    0 .194 .353 1.00
"""


def _random_columns(rounds, bands, seed=0):
  """Returns columns of a well-conditioned banded C, [rounds, bands]."""
  rng = np.random.default_rng(seed)
  columns = 0.4 * rng.normal(size=(rounds, bands)) / bands
  columns[:, 0] = rng.uniform(0.7, 1.3, rounds)
  inside = np.add.outer(np.arange(rounds), np.arange(bands)) < rounds
  return np.where(inside, columns, 0.0)


def _dense(columns):
  """Returns the matrix with these columns by their bands."""
  n, bands = columns.shape
  matrix = np.zeros((n, n))
  for j in range(n):
    count = min(bands, n - j)
    matrix[j : j + count, j] = columns[j, :count]
  return matrix


def _dense_errors(matrix, workload):
  decoder = workload.matrix(len(matrix)) @ np.linalg.inv(matrix)
  return (decoder**2).sum(1)


def _errors(columns, workload):
  """Returns e and the gradient of e @ (1, 2, ..., n) by `covariance`."""
  inverse_rows = workload.inverse_rows(len(columns))
  e, pullback = covariance.per_query_errors(columns, inverse_rows)
  return e, pullback(np.arange(1.0, len(columns) + 1))


@pytest.mark.parametrize('workload', [_PREFIX, _SCHEDULED])
@pytest.mark.parametrize(
  ('rounds', 'bands'),
  [(1, 1), (5, 1), (5, 5), (16, 16), (17, 3), (50, 16), (64, 17), (75, 33)],
)
def test_errors_and_gradient_are_the_dense_ones(rounds, bands, workload):
  columns = _random_columns(rounds, bands)
  e, gradient = _errors(columns, workload)
  matrix = _dense(columns)
  np.testing.assert_allclose(e, _dense_errors(matrix, workload), rtol=1e-11)
  # d(sum_t w_t |row t of B|^2) = -2 tr(B^T W B dC C^-1), B = A C^-1
  inverse = np.linalg.inv(matrix)
  decoder = workload.matrix(rounds) @ inverse
  weighted = np.arange(1, rounds + 1)[:, None] * decoder
  dense_gradient = -2 * (inverse @ decoder.T @ weighted).T
  for j in range(rounds):
    for s in range(min(bands, rounds - j)):
      assert gradient[j, s] == pytest.approx(
        dense_gradient[j + s, j],
        rel=1e-9,
        abs=1e-10 * np.abs(dense_gradient).max(),
      )


@pytest.mark.parametrize('workload', [_PREFIX, _SCHEDULED])
def test_gradient_against_finite_differences(workload):
  # Four blocks of 19 rounds, the last of them cut.
  columns = _random_columns(70, 18)
  _, gradient = _errors(columns, workload)
  weights = np.arange(1, 71)
  rng = np.random.default_rng(1)
  for _ in range(5):
    direction = np.where(columns != 0, rng.normal(size=columns.shape), 0.0)
    step = 1e-5
    up, down = (
      weights
      @ _dense_errors(_dense(columns + sign * step * direction), workload)
      for sign in (1, -1)
    )
    assert np.sum(gradient * direction) == pytest.approx(
      (up - down) / (2 * step), rel=1e-6
    )


def test_singular_matrix_has_no_errors():
  columns = _random_columns(20, 3)
  columns[4, 0] = 0.0
  assert np.isnan(_errors(columns, _PREFIX)[0][4])


def test_optimum_is_the_published_matrix():
  best = banded.optimize_banded(solver.Problem(9, _SINGLE), 3)
  published = np.zeros((9, 9))
  for t, line in enumerate(_EXAMPLE_B1.split('\n')[1:-1]):
    published[t, : t + 1] = [float(entry) for entry in line.split()]
  assert best.converged
  assert 9 * best.loss == pytest.approx(24.8809, abs=6e-4)
  np.testing.assert_allclose(best.strategy.matrix(), published, atol=6e-4)


def test_optimum_is_the_known_one():
  # Found by other code than this, to 9 digits.
  best = banded.optimize_banded(solver.Problem(256, _SINGLE), 16)
  assert best.converged
  assert best.loss == pytest.approx(12.8663406, rel=1e-8)


@pytest.mark.parametrize(
  ('schema', 'equal_column_norms', 'workload', 'objective'),
  [
    (_SINGLE, True, _SCHEDULED, 'mean'),
    (participation.MinSep(4, 2), True, _SCHEDULED, 'max'),
    (participation.FixedEpoch(4, 2), True, _PREFIX, 'mean'),
    (participation.FixedEpoch(4), False, _PREFIX, 'max'),
    (participation.FixedEpoch(4), False, _SCHEDULED, 'mean'),
    (participation.FixedEpoch(4, 1), False, _PREFIX, 'mean'),
  ],
)
def test_loss_is_the_dense_one_and_a_minimum(
  schema, equal_column_norms, workload, objective
):
  best = banded.optimize_banded(
    solver.Problem(10, schema, workload, objective),
    3,
    equal_column_norms=equal_column_norms,
  )
  assert best.converged and best.strategy.bands == 3

  def loss(matrix):
    columns = (matrix**2).sum(0)
    if equal_column_norms or schema.participations(10) == 1:
      matrix = matrix / np.sqrt(columns)
      squared = schema.participations(10)
    else:
      squared = max(columns[r::4].sum() for r in range(4))
    e = _dense_errors(matrix, workload)
    return squared * (e.mean() if objective == 'mean' else e.max())

  matrix = best.strategy.matrix()
  assert best.loss == pytest.approx(loss(matrix), rel=1e-10)
  found_sensitivity = sensitivity.sensitivity(best.strategy, schema)
  assert found_sensitivity.method == sensitivity.EXACT
  e = best.strategy.errors(workload)[objective == 'max']
  assert best.loss == pytest.approx(e * found_sensitivity.value**2, rel=1e-12)
  # MAX stops at a gap of 1e-4.
  tolerance = 1e-9 if objective == 'mean' else 1.1e-4
  rng = np.random.default_rng(0)
  band = _dense(np.ones((10, 3)))
  for size in (1e-3, 1e-2, 0.1):
    for _ in range(10):
      moved = matrix * (1 + size * rng.normal(size=matrix.shape)) * band
      assert loss(moved) >= best.loss * (1 - tolerance)


@pytest.mark.parametrize(
  ('workload', 'objective'), [(_SCHEDULED, 'mean'), (_PREFIX, 'max')]
)
def test_unequal_column_norms_are_better(workload, objective):
  schema = participation.FixedEpoch(8)
  equal, unequal = (
    banded.optimize_banded(
      solver.Problem(33, schema, workload, objective),
      5,
      equal_column_norms=flag,
    )
    for flag in (True, False)
  )
  # Rounds differ in what they add to the error, and in how many share a norm.
  assert unequal.loss < 0.99 * equal.loss
  norms = np.linalg.norm(equal.strategy.matrix(), axis=0)
  np.testing.assert_allclose(norms, 1, rtol=1e-12)


def _lower_bound(matrix, bands, weights):
  """Returns a bound on weights @ e from below, over all C of unit columns.

  As a function of X = C^T C it is convex: it lies above its tangent, along
  which X moves off the diagonal only, and where no entry exceeds 1.
  """
  gram = matrix.T @ matrix
  rows = np.tri(len(matrix)) @ np.linalg.inv(gram)
  slope = -(rows.T * weights) @ rows
  lags = np.abs(np.subtract.outer(*[np.arange(len(matrix))] * 2))
  slope = np.where((lags > 0) & (lags < bands), slope, 0.0)
  value = weights @ _dense_errors(matrix, _PREFIX)
  return value - np.sum(np.abs(slope) + slope * gram)


def test_mean_error_is_the_least_possible_one():
  best = banded.optimize_banded(solver.Problem(128, _SINGLE), 8)
  bound = _lower_bound(best.strategy.matrix(), 8, np.full(128, 1 / 128))
  assert bound <= best.loss * (1 + 1e-12)
  assert best.loss <= bound * (1 + 2e-4)


def test_max_error_is_the_least_possible_one():
  mean = banded.optimize_banded(solver.Problem(128, _SINGLE), 8)
  best = banded.optimize_banded(
    solver.Problem(128, _SINGLE, objective='max'), 8
  )
  assert best.converged
  assert best.loss < 0.95 * mean.strategy.errors()[1]
  matrix = best.strategy.matrix()
  # Weights of the queries for which this C is as good as stationary.
  rows = np.tri(128) @ np.linalg.inv(matrix.T @ matrix)
  slopes = [
    np.concatenate([np.diagonal(np.outer(row, row), s) for s in range(1, 8)])
    for row in rows
  ]
  scale = np.max(np.abs(slopes))
  weights, _ = scipy.optimize.nnls(
    np.concatenate([np.transpose(slopes) / scale, np.ones((1, 128))]),
    np.append(np.zeros(len(slopes[0])), 1.0),
  )
  bound = _lower_bound(matrix, 8, weights / weights.sum())
  assert bound <= best.loss * (1 + 1e-12)
  assert best.loss <= bound * (1 + 1e-2)


@pytest.mark.parametrize('objective', ['mean', 'max'])
def test_scheduled_toeplitz_is_the_dense_minimum(objective):
  best = banded.optimize_toeplitz(
    solver.Problem(30, _SINGLE, _SCHEDULED, objective), 4
  )
  coefficients = best.strategy.coefficients
  assert best.converged and coefficients[0] == 1

  def loss(coefficients):
    matrix = sum(c * np.eye(30, k=-s) for s, c in enumerate(coefficients))
    e = _dense_errors(matrix, _SCHEDULED)
    error = e.mean() if objective == 'mean' else e.max()
    return error * np.sum(np.square(coefficients))

  assert best.loss == pytest.approx(loss(coefficients), rel=1e-10)
  tolerance = 1e-9 if objective == 'mean' else 1.1e-4
  rng = np.random.default_rng(0)
  for size in (1e-3, 1e-2, 0.1):
    for _ in range(10):
      moved = coefficients.copy()
      moved[1:] = np.clip(moved[1:] + size * rng.normal(size=3), 0, 1)
      assert loss(moved) >= best.loss * (1 - tolerance)


def test_scheduled_toeplitz_agrees_with_the_exact_one_for_prefix_sums():
  for rounds, bands, loss in ((1000, 16, 39.4153173), (7, 1, 4)):
    ones = workloads.Workload(learning_rates=np.ones(rounds))
    best = banded.optimize_toeplitz(
      solver.Problem(rounds, _SINGLE, ones), bands
    )
    assert best.loss == pytest.approx(loss, rel=5e-9)


@pytest.mark.parametrize('objective', ['mean', 'max'])
def test_search_that_is_cut_short_says_so(objective):
  losses = []
  best = banded.optimize_banded(
    solver.Problem(
      100,
      _SINGLE,
      objective=objective,
      callback=losses.append,
      max_evaluations=5,
    ),
    8,
  )
  assert not best.converged
  assert best.evaluations <= 8
  assert losses[-1] == pytest.approx(best.loss, rel=1e-9)
  np.testing.assert_array_less(np.diff(losses), 1e-12)


@pytest.mark.parametrize('objective', ['mean', 'max'])
def test_interrupted_search_returns_the_best_so_far(objective):
  losses = []

  def callback(loss):
    losses.append(loss)
    if len(losses) == 4:
      os.kill(os.getpid(), signal.SIGINT)

  # The shell may have this one ignored in the background.
  handler = signal.signal(signal.SIGINT, signal.default_int_handler)
  try:
    best = banded.optimize_banded(
      solver.Problem(100, _SINGLE, objective=objective, callback=callback), 8
    )
  finally:
    signal.signal(signal.SIGINT, handler)
  assert not best.converged
  assert best.loss <= losses[-1] * (1 + 1e-9)


@pytest.mark.parametrize(
  ('problem', 'others', 'error', 'message'),
  [
    ((10, _SINGLE), (11,), ValueError, 'bands=11: .*rounds=10'),
    ((0, _SINGLE), (1,), ValueError, 'rounds=0: .*least'),
    ((10, _SINGLE), (2.0,), TypeError, 'bands=2.0: .*integer'),
    ((10, _SINGLE, _PREFIX, 'sum'), (2,), ValueError, 'objective=sum: .*known'),
    (
      (10, participation.MinSep(3)),
      (4,),
      ValueError,
      'bands=4: .*min_sep=3',
    ),
    (
      (10, participation.FixedEpoch(3)),
      (4,),
      ValueError,
      'bands=4: .*min_sep=3',
    ),
    (
      (10, participation.MinSep(3)),
      (2, False),
      ValueError,
      'equal_column_norms=False: .*min-sep',
    ),
    (
      (10, participation.FixedEpoch(3, 2)),
      (2, False),
      ValueError,
      'equal_column_norms=False: .*fixed-epoch with 2',
    ),
  ],
)
def test_bad_input_is_refused(problem, others, error, message):
  with pytest.raises(error, match=message):
    banded.optimize_banded(solver.Problem(*problem), *others)


def test_largest_error_converges_in_few_evaluations():
  problem = solver.Problem(
    256, participation.Single(), objective=solver.MAX, max_evaluations=900
  )
  best = banded.optimize_banded(problem, 16)
  assert best.converged
  assert best.loss < 18.5525
