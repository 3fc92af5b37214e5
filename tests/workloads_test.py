"""Tests of the workload matrices against their definition."""

import families
import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from tff_bandmf import (
  optimize,
  participation,
  sensitivity,
  strategies,
  workloads,
)

_FRACTION = st.floats(0, 0.5)


def _from_bands(rows):
  """Returns the dense matrix of rows given by their bands."""
  n = len(rows)
  dense = np.zeros((n, n))
  for s in range(rows.shape[1]):
    t = np.arange(s, n)
    dense[t, t - s] = rows[t, s]
  return dense


@hypothesis.given(st.floats(0, 0.99), _FRACTION, _FRACTION, st.integers(1, 30))
def test_matrix_is_what_momentum_sgd_computes(beta, warmup, cooldown, n):
  workload = workloads.Workload(beta, warmup, cooldown)
  gradients = np.random.default_rng(n).normal(size=n)
  model = velocity = 0.0
  models = []
  for gradient, rate in zip(gradients, workload.learning_rates(n)):
    velocity = beta * velocity + gradient
    model += rate * velocity
    models.append(model)
  np.testing.assert_allclose(workload.matrix(n) @ gradients, models, atol=1e-9)


@hypothesis.given(st.floats(0, 0.99), _FRACTION, _FRACTION, st.integers(1, 30))
def test_inverse_rows_invert_the_matrix(beta, warmup, cooldown, n):
  workload = workloads.Workload(beta, warmup, cooldown)
  inverse = _from_bands(workload.inverse_rows(n))
  np.testing.assert_allclose(inverse @ workload.matrix(n), np.eye(n), atol=1e-9)


@hypothesis.given(st.floats(0, 0.99), st.integers(1, 40))
def test_polynomial_is_the_inverse_of_the_column(beta, n):
  workload = workloads.Workload(beta)
  product = np.convolve(workload.polynomial, workload.column(n))[:n]
  np.testing.assert_allclose(product, np.eye(n)[0], atol=1e-12)


class _TwoMomenta(workloads.Workload):
  """h(x) = (1 - beta x) (1 - x / 2): no momentum has such an M."""

  @property
  def polynomial(self):
    return np.convolve([1.0, -self.momentum], [1.0, -0.5])

  def column(self, terms):
    powers = np.arange(terms)
    return np.convolve(self.momentum**powers, 0.5**powers)[:terms]


@pytest.mark.parametrize('n', [1, 2, 3, 9])
def test_inverse_rows_of_another_polynomial(n):
  workload = _TwoMomenta(0.9, 0.2, 0.3)
  inverse = _from_bands(workload.inverse_rows(n))
  np.testing.assert_allclose(inverse @ workload.matrix(n), np.eye(n), atol=1e-9)


@pytest.mark.parametrize('schedule', [(0.0, 0.0), (0.1, 0.25)])
@pytest.mark.parametrize('family', sorted(families.EXAMPLES))
def test_errors_of_another_polynomial(family, schedule):
  """Nothing outside `workloads` knows that M is that of momentum."""
  strategy = families.EXAMPLES[family].make(24)
  workload = _TwoMomenta(0.9, *schedule)
  b = workload.matrix(24) @ np.linalg.inv(strategy.matrix())
  np.testing.assert_allclose(
    strategy.per_query_errors(workload), np.sum(b**2, axis=1), rtol=1e-9
  )
  mean, largest = strategy.errors(workload)
  assert mean == pytest.approx(np.mean(np.sum(b**2, axis=1)))
  assert largest == pytest.approx(np.max(np.sum(b**2, axis=1)))


@pytest.mark.slow
@pytest.mark.parametrize(
  'family, parameters',
  [
    ('banded-toeplitz', {'bands': 4}),
    ('blt', {'buffers': 2}),
    ('banded-inverse', {'bands': 3}),
  ],
)
@pytest.mark.parametrize('rounds', [40, 400])
def test_search_for_another_polynomial_gains(family, parameters, rounds):
  schema = participation.MinSep(8)
  workload = _TwoMomenta(0.5)

  def loss(strategy):
    squared = sensitivity.sensitivity(strategy, schema).value ** 2
    return strategy.errors(workload)[0] * squared

  found = optimize.optimize(
    family, rounds, schema, workload=workload, **parameters
  )
  other = optimize.optimize(family, rounds, schema, **parameters)
  assert found.converged and found.loss == pytest.approx(loss(found.strategy))
  assert found.loss < loss(other.strategy) < loss(strategies.Identity(rounds))


def test_learning_rate_climbs_and_falls_by_equal_steps():
  rates = workloads.Workload(warmup=0.2, cooldown=0.25).learning_rates(100)
  assert rates[0] == 0.05
  assert rates[-1] == pytest.approx(0.05)
  assert np.all(rates[20:75] == 1)
  np.testing.assert_allclose(np.diff(rates[:21]), 0.95 / 20)
  np.testing.assert_allclose(np.diff(rates[74:]), -0.95 / 25)


@pytest.mark.parametrize('n', [1, 2, 3])
def test_learning_rates_of_few_rounds_are_positive(n):
  rates = workloads.Workload(warmup=0.5, cooldown=0.5).learning_rates(n)
  assert rates.shape == (n,)
  assert np.all((rates > 0) & (rates <= 1))


def test_prefix_sums_are_tri():
  np.testing.assert_array_equal(workloads.PREFIX.matrix(6), np.tri(6))
  assert workloads.PREFIX.inverse_rows(6).shape == (6, 2)


@pytest.mark.parametrize(
  'workload',
  [
    workloads.PREFIX,
    workloads.Workload(0.9, 0.1, 0.25),
    workloads.Workload(0.5, weight_decay=0.1),
    workloads.Workload(0.5, weight_decay=0.1, learning_rates=[1.0, 0.0]),
    workloads.Workload(matrix=[[1.0, 0.0], [0.5, 0.0]]),
  ],
)
def test_json_object_reads_back(workload):
  record = workload.to_dict()
  assert workloads.from_dict(record) == workload
  with pytest.raises(TypeError, match='workload='):
    workloads.from_dict({'workload': record['workload']})


@pytest.mark.parametrize(
  'arguments, message',
  [
    ({'momentum': 1.0}, 'momentum=1.0: must be in [0, 1)'),
    ({'momentum': -0.1}, 'momentum=-0.1'),
    ({'warmup': 1.5}, 'warmup=1.5: must be in [0, 1]'),
    ({'warmup': 0.6, 'cooldown': 0.5}, 'cooldown=0.5'),
    ({'cooldown': float('nan')}, 'cooldown=nan'),
  ],
)
def test_value_out_of_range_is_refused(arguments, message):
  with pytest.raises(ValueError) as error:
    workloads.Workload(**arguments)
  assert str(error.value).startswith(message)


def test_value_of_another_kind_is_refused():
  with pytest.raises(TypeError, match='momentum=fast'):
    workloads.Workload(momentum='fast')


@pytest.mark.parametrize(
  'name, parameters, message',
  [
    ('cumulative', {}, 'workload=cumulative'),
    ('momentum', {'momentum': None, 'warmup': 0.1}, 'momentum=None'),
    ('prefix', {'momentum': 0.9}, 'momentum=0.9'),
    ('prefix', {'momentum': None, 'cooldown': 0.2}, 'cooldown=0.2'),
  ],
)
def test_name_that_does_not_fit_is_refused(name, parameters, message):
  with pytest.raises(ValueError) as error:
    workloads.from_name(name, **parameters)
  assert str(error.value).startswith(message)
