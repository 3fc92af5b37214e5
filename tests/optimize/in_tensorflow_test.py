"""Tests of the search in TensorFlow, which is the oracle of other gradients."""

import attrs
import numpy as np
import pytest
import tensorflow as tf

from tff_bandmf import (
  accounting,
  optimize,
  participation,
  sensitivity,
  strategies,
  workloads,
)
from tff_bandmf.optimize import (
  banded,
  blt,
  in_tensorflow,
  series,
  solver,
  toeplitz,
)

pytestmark = pytest.mark.slow

_N = 24
_SCHEMAS = [
  participation.Single(),
  participation.MinSep(6),
  participation.MinSep(6, 2),
  participation.FixedEpoch(6),
  participation.FixedEpoch(5, 3),
  participation.MinSep(1),
]
_RATES = np.random.default_rng(3).uniform(0.2, 1, _N)
_WORKLOADS = [
  workloads.PREFIX,
  workloads.Workload(0.9),
  workloads.Workload(0.8, weight_decay=0.1),
  workloads.Workload(0.9, 0.2, 0.3),
  workloads.Workload(0.5, weight_decay=0.2, learning_rates=_RATES),
  workloads.Workload(learning_rates=np.r_[0.0, np.ones(_N - 1)]),
  workloads.Workload(
    matrix=np.tril(np.random.default_rng(4).normal(size=(_N, _N)))
  ),
]


def _forms():
  """Yields forms of C with few bands that fall, and the C of each."""
  c = 0.7 ** np.arange(5)
  yield in_tensorflow.Toeplitz(c), strategies.BandedToeplitz(_N, c)
  r = np.array([1.0, -0.6, -0.1])
  yield in_tensorflow.Inverse(r), strategies.BandedInverse(_N, r)
  columns = c * np.linspace(1, 2, _N)[:, None]
  banded_c = strategies.custom(columns=columns)
  yield in_tensorflow.Columns(columns), banded_c
  matrix = banded_c.matrix()
  yield in_tensorflow.Gram(matrix.T @ matrix), banded_c


@pytest.mark.parametrize('workload', _WORKLOADS, ids=range(len(_WORKLOADS)))
def test_errors_are_those_of_the_strategy(workload):
  problem = solver.Problem(_N, participation.Single(), workload)
  for form, strategy in _forms():
    np.testing.assert_allclose(
      form.errors(problem), strategy.per_query_errors(workload), rtol=1e-9
    )


@pytest.mark.parametrize('schema', _SCHEMAS, ids=repr)
def test_sensitivity_is_never_below_that_of_the_strategy(schema):
  problem = solver.Problem(_N, schema)
  for form, strategy in _forms():
    squared = float(form.squared_noise(problem))
    exact = sensitivity.sensitivity(strategy, schema)
    assert squared >= exact.value**2 * (1 - 1e-12), form
    if strategy.bands <= schema.separation(_N):
      assert squared == pytest.approx(exact.value**2, rel=1e-12)


@pytest.mark.parametrize('schema', _SCHEMAS, ids=repr)
def test_gradient_of_the_sensitivity_is_that_of_tensorflow(schema):
  c = tf.constant(np.random.default_rng(8).normal(size=_N))
  b, k = schema.separation(_N), schema.participations(_N)
  with tf.GradientTape() as tape:
    tape.watch(c)
    m = tf.abs(c)
    if k > 1 and not schema.evenly_spaced:
      later = [tf.reduce_max(m[t:]) for t in range(b, _N)]
      m = tf.concat([m[:b], later], 0)
    shifted = [tf.pad(m[: _N - j * b], [[j * b, 0]]) for j in range(k)]
    squared = tf.reduce_sum(tf.add_n(shifted) ** 2)
  problem = solver.Problem(_N, schema)
  value, gradient = series.squared_noise(c.numpy(), problem)
  assert value == pytest.approx(float(squared), rel=1e-12)
  np.testing.assert_allclose(gradient, tape.gradient(squared, c), rtol=1e-10)


def _agree(loss, build, problem, x):
  """Asserts value and gradient of a loss against TensorFlow, to 1e-10."""
  if problem.objective == 'max':
    # The errors of a Toeplitz A C^-1 do not fall.
    problem = attrs.evolve(problem, objective='last')
  oracle = in_tensorflow.Loss(build, problem)
  value, gradient = loss(x)
  expected, slopes = oracle(x)
  assert value == pytest.approx(expected, rel=1e-10)
  np.testing.assert_allclose(
    gradient, slopes, rtol=0, atol=1e-10 * np.abs(slopes).max()
  )


def _blt(x):
  """Returns C of the parameters of the module `blt`."""
  l = tf.cumsum(x[:-1])
  theta = tf.exp(-tf.exp(l[::2]))
  hats = tf.concat([tf.exp(-tf.exp(l[1::2])), theta[-1:] - x[-1:]], 0)
  ones = tf.ones(1, tf.float64)
  series_of = ones
  for one, hat in zip(tf.unstack(theta), tf.unstack(hats)):
    top = tf.stack([tf.constant(1.0, tf.float64), -hat])
    bottom = tf.stack([tf.constant(1.0, tf.float64), -one])
    quotient = in_tensorflow.divide(bottom, top, _N)
    columns = tf.repeat(quotient[None], _N, 0)
    matrix = in_tensorflow.Columns(columns).matrix()
    padded = tf.pad(series_of, [[0, _N - series_of.shape[0]]])
    series_of = tf.linalg.matvec(matrix, padded)
  return in_tensorflow.Toeplitz(series_of)


@pytest.mark.parametrize(
  'workload, objective',
  [(0, 'max'), (1, 'last'), (2, 'mean'), (3, 'mean'), (4, tuple(_RATES))]
  + [(5, 'last'), (6, 'mean')],
)
@pytest.mark.deep(but=('0-max', '4-objective4', '5-last'))
def test_gradients_of_series_are_those_of_tensorflow(workload, objective):
  workload = _WORKLOADS[workload]
  schema = participation.MinSep(*((6,) if objective == 'mean' else (4, 3)))
  problem = solver.Problem(_N, schema, workload, objective)
  free = np.array([0.8, 0.5, 0.45, 0.3])

  _agree(
    series.Objective(lambda x: series.from_few(x, _N), problem),
    lambda x: in_tensorflow.Toeplitz(tf.concat([[1.0], x], 0)),
    problem,
    free,
  )
  _agree(
    series.Objective(lambda x: blt._columns(x, _N), problem, falls=True),
    _blt,
    problem,
    np.array([-3.0, 1.1, 0.9, 0.2]),
  )


@pytest.mark.parametrize('objective', ['mean', 'max'])
@pytest.mark.parametrize('momentum', [0.0, 0.5])
def test_gradient_of_the_closed_form_is_that_of_tensorflow(momentum, objective):
  workload = workloads.Workload(momentum)
  problem = solver.Problem(400, participation.Single(), workload, objective)
  loss = next(toeplitz._losses(problem, 6))
  assert isinstance(loss, toeplitz._Settled)
  _agree(
    loss,
    lambda x: in_tensorflow.Toeplitz(tf.concat([[1.0], x], 0)),
    problem,
    np.array([0.5, 0.4, 0.3, 0.25, 0.2]),
  )


@pytest.mark.parametrize('workload', _WORKLOADS[:5], ids=range(5))
def test_gradient_of_banded_is_that_of_tensorflow(workload):
  problem = solver.Problem(
    _N, participation.Single(), workload, tuple(_RATES + 0.1)
  )
  rng = np.random.default_rng(5)
  x = rng.uniform(0.1, 0.4, (_N, 4)) + np.eye(1, 4)
  inside = np.add.outer(np.arange(_N), np.arange(4)) < _N

  loss = banded.Loss(
    lambda x: banded.scaled(x.reshape(_N, 4) * inside, _N),
    lambda columns: (1.0, 0.0),
    problem,
  )
  loss.power = 7.0

  def build(x):
    columns = tf.reshape(x, [_N, 4]) * inside
    return in_tensorflow.Columns(
      columns / tf.norm(columns, axis=1, keepdims=True)
    )

  oracle = in_tensorflow.Loss(build, problem)
  oracle.power = 7.0
  for got, expected in zip(loss(x.reshape(-1)), oracle(x.reshape(-1))):
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize('schema', _SCHEMAS, ids=repr)
@pytest.mark.deep(
  but=('min_sep=6, max_participations=2', 'Single', 'FixedEpoch(min_sep=5')
)
def test_gradients_are_those_of_differences(schema):
  problem = solver.Problem(_N, schema)
  at = np.tril_indices(_N, -1)

  def gram(x):
    low = tf.scatter_nd(np.transpose(at), x, [_N, _N])
    return in_tensorflow.Gram(low + tf.transpose(low) + 2 * np.eye(_N))

  rng = np.random.default_rng(6)
  for build, size in (
    (lambda x: in_tensorflow.Inverse(tf.concat([[1.0], -x], 0)), 3),
    (lambda x: in_tensorflow.Columns(tf.reshape(x, [_N, 3]) + [[2, 0, 0]]), 72),
    (gram, len(at[0])),
  ):
    x = rng.uniform(0.02, 0.05, size)
    loss = in_tensorflow.Loss(build, problem)
    _, gradient = loss(x)
    for i in rng.integers(0, size, 3):
      h = 1e-6 * np.eye(size)[i]
      difference = (loss(x + h)[0] - loss(x - h)[0]) / 2e-6
      assert gradient[i] == pytest.approx(difference, abs=1e-6)


def test_search_finds_what_the_search_in_numpy_finds():
  problem = solver.Problem(_N, participation.MinSep(6))
  own = optimize.minimize(
    lambda x: optimize.Toeplitz(tf.concat([[1.0], x], 0)),
    np.full(5, 0.3),
    problem,
    bounds=[(0, 1)] * 5,
  )
  of_family = optimize.optimize(
    'banded-toeplitz', _N, participation.MinSep(6), bands=6
  )
  assert own.converged and own.strategy.family == 'custom'
  assert own.loss <= of_family.loss * (1 + 1e-8)


@pytest.mark.parametrize('groups', [8, 24])
def test_largest_error_of_bands_is_no_worse_than_in_numpy(groups):
  schema = participation.FixedEpoch(8)
  problem = solver.Problem(24, schema, objective=solver.MAX)
  in_numpy = banded.optimize_banded(problem, 4, groups == 24)
  in_tensorflow = banded.optimize_in_tensorflow(problem, 4, groups)
  assert in_tensorflow.loss < in_numpy.loss * (1 + 1e-6)


def test_norms_of_columns_may_differ_for_any_workload():
  workload = workloads.Workload(matrix=np.tri(12) + np.eye(12))
  equal, free = (
    optimize.optimize(
      'banded', 12, participation.FixedEpoch(4), workload=workload, bands=3,
      column_normalize=column_normalize,
    )
    for column_normalize in (True, False)
  )  # fmt: skip
  assert free.loss < equal.loss * (1 - 1e-4)
  norms = free.strategy.column_norms_squared().reshape(3, 4)
  np.testing.assert_allclose(norms.sum(0), 1)


def test_function_of_the_errors_is_an_objective():
  problem = solver.Problem(
    _N,
    participation.MinSep(6),
    objective=lambda e: tf.reduce_mean(tf.sqrt(e)) ** 2,
  )
  best = optimize.minimize(
    lambda x: optimize.Inverse(tf.stack([1.0, -x[0]])), [0.5], problem
  )
  e = best.strategy.per_query_errors()
  squared = (
    sensitivity.sensitivity(best.strategy, participation.MinSep(6)).value ** 2
  )
  assert best.loss == pytest.approx(np.mean(np.sqrt(e)) ** 2 * squared)
  other = optimize.optimize('dp-cgd', _N, participation.MinSep(6)).strategy
  assert best.strategy.inverse_coefficients[1] != pytest.approx(
    other.inverse_column(2)[1], rel=1e-4
  )


@pytest.mark.parametrize(
  'build, start, match',
  [
    (lambda x: x, [0.5], 'build=.*Toeplitz'),
    (lambda x: optimize.Columns([x]), [0.5], r'shape \(1, 1\)'),
    (lambda x: optimize.Toeplitz([1.0, 0.5]), [0.5], 'without gradient'),
    (lambda x: optimize.Toeplitz(x), [np.nan], 'not finite'),
    (lambda x: optimize.Gram(x * np.ones([_N, _N])), [1.0], 'not finite'),
    (lambda x: optimize.Toeplitz(x), ['a'], 'start'),
    (lambda x: optimize.Toeplitz(np.exp(x)), [0.5], 'tf in place of NumPy'),
    # The derivative of sqrt(x) at 0 is infinite.
    (lambda x: optimize.Toeplitz(1 + tf.sqrt(x)), [0.0], 'another start'),
  ],
)
def test_wrong_function_gets_one_line(build, start, match):
  problem = solver.Problem(_N, participation.MinSep(6))
  with pytest.raises((TypeError, ValueError), match=match) as error:
    optimize.minimize(build, start, problem)
  assert '\n' not in str(error.value)


@pytest.mark.parametrize(
  'start, bounds, match',
  [
    ([0.5], [(0, 1), (0, 1)], 'bounds=2 pairs: start has 1'),
    ([2.0], [(0, 1)], r'start=2.0: .*\(0, 1\)'),
    ([-1.0], [(0, None)], r'start=-1.0: .*\(0, None\)'),
  ],
)
def test_start_and_bounds_that_do_not_fit_get_one_line(start, bounds, match):
  problem = solver.Problem(_N, participation.MinSep(6))
  with pytest.raises(ValueError, match=match):
    optimize.minimize(optimize.Toeplitz, start, problem, bounds=bounds)


def test_search_goes_on_where_the_gradient_is_not_finite():
  problem = solver.Problem(_N, participation.MinSep(6))
  lag = tf.range(6, dtype=tf.float64)

  def build(x):
    # At x = 0 the derivative of x^0 is NaN.
    return optimize.Inverse(tf.concat([[1.0], -x[1] * x[0] ** lag], 0))

  best = optimize.minimize(build, [0.5, 0.5], problem, bounds=[(0, 1)] * 2)
  assert best.converged and best.evaluations > 5
  narrow = [(0.01, 1)] * 2
  other = optimize.minimize(build, [0.5, 0.5], problem, bounds=narrow)
  assert best.loss <= other.loss * (1 + 1e-6)


def _sampled(cohorts):
  """Returns the problem of a search for sampled cohorts."""
  return solver.Problem(
    _N,
    cohorts.schema.reference_schema,
    noise=accounting.needed_noise(cohorts, _N, 1.0, 1e-5),
  )


_SAMPLED = [accounting.BallsInBins(6), accounting.BMinSep(6, 0.2)]


@pytest.mark.parametrize('cohorts', _SAMPLED, ids=repr)
@pytest.mark.deep(but=('BallsInBins',))
def test_noise_of_sampled_cohorts_is_minimised(cohorts):
  own = optimize.minimize(
    lambda x: optimize.Toeplitz(tf.concat([[1.0], x], 0)),
    np.full(3, 0.3),
    _sampled(cohorts),
    bounds=[(0, 1)] * 3,
  )
  family = ('banded-toeplitz', _N, cohorts.schema.reference_schema)
  problem = _sampled(cohorts)
  best = optimize.optimize(*family, bands=4, noise=problem.noise)
  assert own.converged
  assert own.loss == pytest.approx(best.loss, rel=2e-3)
  # The noise of the best C without amplification is larger.
  other = problem.evaluated(optimize.optimize(*family, bands=4).strategy)
  assert own.loss < other.loss * (1 - 1e-2)


@pytest.mark.parametrize('cohorts', _SAMPLED, ids=repr)
@pytest.mark.deep(but=('BMinSep',))
def test_gradient_of_the_noise_is_that_of_differences(cohorts):
  rng = np.random.default_rng(7)
  for build, size in (
    (lambda x: optimize.Toeplitz(tf.concat([[1.0], x], 0)), 3),
    (lambda x: optimize.Columns(tf.reshape(x, [_N, 3]) + [[1, 0, 0]]), 3 * _N),
  ):
    loss, x = in_tensorflow.Loss(build, _sampled(cohorts)), np.full(size, 0.3)
    direction = rng.uniform(-1, 1, size)
    gradient = loss(x)[1] @ direction
    ends = [loss(x + h * direction)[0] for h in (1e-3, -1e-3)]
    assert gradient == pytest.approx((ends[0] - ends[1]) / 2e-3, rel=1e-2)


@pytest.mark.parametrize(
  'build, match',
  [
    (lambda x: optimize.Toeplitz([1.0, -x[0]]), 'negative'),
    (lambda x: optimize.Gram(x * np.eye(_N)), 'Columns'),
    (lambda x: optimize.Toeplitz(tf.fill([7], x[0])), 'bands=7'),
  ],
)
def test_c_without_proved_amplification_gets_one_line(build, match):
  with pytest.raises(ValueError, match=match) as error:
    optimize.minimize(build, [0.5], _sampled(_SAMPLED[1]))
  assert '\n' not in str(error.value)
