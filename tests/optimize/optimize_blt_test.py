"""Tests of the BLT optimiser."""

import numpy as np
import pytest

from tff_bandmf import participation, sensitivity, workloads
from tff_bandmf.optimize import blt, solver

pytestmark = pytest.mark.slow

_SCHEMA = participation.MinSep(342, 6)


def _dense_loss(strategy, schema, workload, objective):
  """Returns error times squared norm of the leftmost pattern.

  It is the sensitivity for any c that is positive and falls from c_1 on.
  """
  n = strategy.rounds
  matrix = strategy.matrix()
  decoder = workload.matrix(n) @ np.linalg.inv(matrix)
  errors = (decoder**2).sum(1)
  error = errors.mean() if objective == 'mean' else errors.max()
  k = schema.participations(n)
  step = schema.min_sep or n
  leftmost = matrix[:, : step * k : step].sum(1)
  return error * np.sum(leftmost**2)


@pytest.mark.parametrize(
  ('buffers', 'objective', 'golden'),
  [
    (2, 'mean', 84.322932),
    (5, 'mean', 84.112794),
    (4, 'max', 115.220632),
  ],
)
def test_optimum_is_the_best_known(buffers, objective, golden):
  best = blt.optimize_blt(
    solver.Problem(2052, _SCHEMA, objective=objective), buffers
  )
  assert best.converged and best.strategy.buffers <= buffers
  assert golden * (1 - 1e-6) <= best.loss <= golden + 1e-6


def test_loss_falls_with_more_buffers_at_another_setting():
  schema = participation.MinSep(40)
  losses = [
    blt.optimize_blt(solver.Problem(200, schema, objective='max'), buffers).loss
    for buffers in (1, 2)
  ]
  assert losses[1] < losses[0]


@pytest.mark.parametrize(
  ('workload', 'objective'),
  [
    (workloads.PREFIX, 'mean'),
    (workloads.Workload(momentum=0.9), 'max'),
    (workloads.Workload(momentum=0.9, warmup=0.1, cooldown=0.3), 'mean'),
    (workloads.Workload(momentum=0.9, warmup=0.1, cooldown=0.3), 'max'),
  ],
  ids=str,
)
def test_optimum_is_below_its_neighbours(workload, objective):
  n, schema = 60, participation.MinSep(15, 3)
  best = blt.optimize_blt(solver.Problem(n, schema, workload, objective), 2)
  assert best.converged
  norm = sensitivity.sensitivity(best.strategy, schema).value
  error = best.strategy.errors(workload)[objective == 'max']
  assert best.loss == pytest.approx(error * norm**2, rel=1e-12)
  dense = _dense_loss(best.strategy, schema, workload, objective)
  assert dense <= best.loss * (1 + 1e-9)
  rng = np.random.default_rng(0)
  # A norm stands for the maximum of errors with learning rates.
  tolerance = 1e-9 if workload.is_toeplitz or objective == 'mean' else 1e-4
  for size in (1e-3, 1e-2):
    for _ in range(5):
      omega = best.strategy.omega * np.exp(size * rng.normal(size=2))
      theta = best.strategy.theta ** np.exp(size * rng.normal(size=2))
      moved = type(best.strategy)(n, omega, theta)
      loss = _dense_loss(moved, schema, workload, objective)
      assert loss >= dense * (1 - tolerance)


@pytest.mark.parametrize('last', [0.1, 0.9])
def test_parameters_give_c_and_its_inverse(last):
  # The last decay of C^-1 is positive, or negative.
  x = np.array([-4.0, 1.0, 0.5, 1.2, 0.7, last])
  column, inverse, _ = blt._columns(x, 50)
  np.testing.assert_allclose(
    np.convolve(column, inverse)[:50], np.eye(50)[0], atol=1e-14
  )
  assert np.all(np.diff(column[1:]) < 0) and np.all(column > 0)
  np.testing.assert_allclose(blt._strategy(50, x).column(50), column)


@pytest.mark.parametrize(
  'x',
  [
    [-2.0, 0.5],
    [-4.0, 1.0, 0.5, 1.2, 0.7, 0.1],
    [-4.0, 1.0, 0.5, 1.2, 0.7, 0.9],
    # Decays that nearly coincide, and a last one of C^-1 that is 0.
    [-9.0, 1e-3, 2e-3, 1.2, 1e-3, np.exp(-np.exp(-9 + 1.204))],
  ],
  ids=str,
)
def test_gradient_of_the_columns_is_that_of_differences(x):
  x, rng = np.array(x), np.random.default_rng(0)
  weights = rng.normal(size=(2, 50))

  def value(x):
    column, inverse, _ = blt._columns(x, 50)
    return weights[0] @ column + weights[1] @ inverse

  gradient = blt._columns(x, 50)[2](*weights)
  for i, unit in enumerate(np.eye(len(x))):
    step = 1e-5 * abs(x[i])
    difference = (value(x + step * unit) - value(x - step * unit)) / (2 * step)
    assert gradient[i] == pytest.approx(difference, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize('last', [0.05, 0.8])
@pytest.mark.parametrize('place', [-3.0, -1.2, 0.0, 1.5])
def test_a_new_buffer_does_nearly_nothing(place, last):
  x = np.array([-2.0, 0.5, 1.0, last])
  before, after = (
    blt._strategy(50, y).column(50) for y in (x, blt._with_buffer(x, place))
  )
  np.testing.assert_allclose(after, before, atol=0.03)


def test_search_that_is_interrupted_returns_the_best_so_far():
  losses = []

  def callback(loss):
    losses.append(loss)
    if len(losses) == 5:
      raise KeyboardInterrupt

  best = blt.optimize_blt(
    solver.Problem(500, participation.Single(), callback=callback), 3
  )
  assert len(losses) == 5 and not best.converged
  assert best.loss == pytest.approx(min(losses), rel=1e-6)


def test_search_that_is_cut_short_says_so():
  best = blt.optimize_blt(
    solver.Problem(500, participation.Single(), max_evaluations=3), 1
  )
  assert not best.converged


@pytest.mark.parametrize(
  ('arguments', 'message'),
  [
    ((0, 1, _SCHEMA), 'rounds=0: .*least'),
    ((10, 0, _SCHEMA), 'buffers=0: .*least'),
    (
      (10, 1, _SCHEMA, workloads.PREFIX, 'median'),
      'objective=median: .*known',
    ),
    (
      (10_000, 1, _SCHEMA, workloads.Workload(warmup=0.1)),
      'rounds=10000: .*4096',
    ),
  ],
)
def test_bad_input_is_refused(arguments, message):
  with pytest.raises(ValueError, match=message):
    rounds, buffers, *others = arguments
    blt.optimize_blt(solver.Problem(rounds, *others), buffers)


def test_single_round_is_the_identity():
  best = blt.optimize_blt(solver.Problem(1, participation.Single()), 3)
  assert (best.loss, best.converged) == (1.0, True)
