"""Tests of the search over one scalar."""

import subprocess
import sys

import numpy as np
import pytest

from tff_bandmf import participation, sensitivity, strategies, workloads
from tff_bandmf.optimize import solver, sweep

_SCHEMA = participation.MinSep(256, 8)


def _loss(strategy, schema, workload=workloads.PREFIX, objective='mean'):
  error = strategy.errors(workload)[objective == 'max']
  return error * sensitivity.sensitivity(strategy, schema).value ** 2


def _sweep(
  build,
  low,
  high,
  schema,
  workload=workloads.PREFIX,
  objective='mean',
  callback=None,
):
  family = strategies.FAMILIES['lti']  # It does not matter.
  return sweep.sweep(
    solver.Request(
      2048,
      schema,
      workload,
      objective,
      callback=callback,
      family=family,
      parameters={},
    ),
    build,
    low,
    high,
  )


_FAMILIES = {
  'dp-cgd': (lambda x: strategies.DpCgd(2048, x), 1),
  'lti': (lambda x: strategies.Lti(2048, x), 1),
  'banded-fractional': (lambda x: strategies.BandedFractional(2048, 9, x), 1),
  'banded-inverse-fractional': (
    lambda x: strategies.BandedInverseFractional(2048, 9, x),
    1,
  ),
  'inverse-plus-constant': (
    lambda x: strategies.InversePlusConstant(2048, 2, x),
    100,
  ),
}


@pytest.mark.parametrize('objective', ['mean', 'max'])
@pytest.mark.parametrize('family', _FAMILIES)
def test_optimum_is_that_of_a_fine_grid(family, objective):
  build, high = _FAMILIES[family]
  found = _sweep(build, 0, high, _SCHEMA, objective=objective)
  assert found.converged
  assert found.loss == pytest.approx(
    _loss(found.strategy, _SCHEMA, objective=objective), rel=1e-12
  )
  near_an_end = np.geomspace(1e-6, 0.5, 60)
  for part in np.concatenate([[0], near_an_end, 1 - near_an_end, [1]]):
    try:
      loss = _loss(build(high * part), _SCHEMA, objective=objective)
    except ValueError:  # C^-1 may grow without bound.
      continue
    assert found.loss <= loss * (1 + 1e-9)


# rmse in [DPCGD26, Table 4] and [BIFR26, Table 6], which include the same
# sigma: ratios to the identity and to the unbanded LTI.
def test_ratios_of_published_errors():
  dp_cgd, lti = (
    _sweep(_FAMILIES[family][0], 0, 1, _SCHEMA).loss
    for family in ('dp-cgd', 'lti')
  )
  assert np.sqrt(dp_cgd / lti) == pytest.approx(9.68 / 6.90, rel=2e-3)


def test_the_constant_may_pass_one():
  found = _sweep(_FAMILIES['inverse-plus-constant'][0], 0, 100, _SCHEMA)
  assert found.strategy.constant > 1


def test_an_end_of_the_range_may_be_the_best():
  # One client, one round in all: no correlation is of use.
  found = _sweep(lambda x: strategies.DpCgd(1, x), 0, 1, participation.Single())
  assert found.loss == pytest.approx(1)
  found = _sweep(_FAMILIES['lti'][0], 0.5, 1, _SCHEMA)
  assert found.strategy.nu == 0.5


def test_the_deeper_of_two_valleys_is_found():
  # The loss of a scaled identity does not depend on x; that of what is built
  # here is the best near 0.001 and has another valley near 0.9.
  def build(x):
    distance = min(abs(np.log(x + 1e-12) - np.log(0.001)), 0.1 + abs(x - 0.9))
    return strategies.BandedToeplitz(50, [1.0, 0.6 * np.exp(-distance)])

  found = _sweep(build, 0, 1, participation.Single())
  assert found.strategy.coefficients[1] == pytest.approx(0.6, abs=1e-4)


def test_workload_counts():
  workload = workloads.Workload(momentum=0.9)
  build = _FAMILIES['lti'][0]
  found = _sweep(build, 0, 1, _SCHEMA, workload)
  prefix = _sweep(build, 0, 1, _SCHEMA).strategy
  assert found.loss < _loss(prefix, _SCHEMA, workload) * (1 - 1e-3)


def test_values_without_a_finite_loss_are_passed_over():
  def build(x):
    if x > 0.3:
      raise ValueError('no such strategy')
    return strategies.DpCgd(100, x)

  found = _sweep(build, 0, 1, participation.Single())
  assert 0.2 < found.strategy.lambda_ <= 0.3


def test_nothing_finite_raises_what_was_raised():
  def build(x):
    raise ValueError('no such strategy')

  with pytest.raises(ValueError, match='strategy'):
    _sweep(build, 0, 1, participation.Single())


def test_interrupted_search_returns_the_best_so_far():
  losses = []

  def callback(loss):
    losses.append(loss)
    if len(losses) == 20:
      raise KeyboardInterrupt

  found = _sweep(_FAMILIES['dp-cgd'][0], 0, 1, _SCHEMA, callback=callback)
  assert not found.converged and found.evaluations == 20
  assert found.loss == min(losses)


@pytest.mark.slow
def test_tensorflow_is_not_imported():
  code = (
    'import sys; from tff_bandmf import optimize; '
    'optimize.optimize("identity", 3, '
    '__import__("tff_bandmf.participation").participation.Single()); '
    'sys.exit("tensorflow" in sys.modules)'
  )
  subprocess.run([sys.executable, '-c', code], check=True, timeout=300)
