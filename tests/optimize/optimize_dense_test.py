"""Tests of the dense optimum: against direct search, bounds and brute force."""

import itertools

import attrs
import brute_force
import numpy as np
import pytest
import scipy.optimize

from tff_bandmf import (
  optimize,
  participation,
  sensitivity,
  strategies,
  workloads,
)
from tff_bandmf.optimize import banded, dense, solver

pytestmark = pytest.mark.slow

_SCHEMAS = [
  participation.Single(),
  participation.FixedEpoch(3),
  participation.FixedEpoch(3, 2),
  participation.MinSep(3),
  participation.MinSep(3, 2),
]
_PREFIX = workloads.PREFIX
_MOMENTUM = workloads.Workload(momentum=0.9, warmup=0.1, cooldown=0.25)


def _errors(matrix, workload):
  decoder = workload.matrix(len(matrix)) @ np.linalg.inv(matrix)
  return (decoder**2).sum(1)


def _searched(rounds, objective, free, forms):
  """Returns the least error that SLSQP finds over C with sensitivity <= 1.

  Args:
    rounds: n.
    objective: 'mean' or 'max'.
    free: [rounds, rounds] bool, entries of C that need not be 0.
    forms: vectors u with || C u || <= 1.
  """
  rows, columns = np.nonzero(free)
  forms = np.array(forms, float)

  def factor(x):
    matrix = np.zeros((rounds, rounds))
    matrix[rows, columns] = x[:-1]
    return matrix

  def room(x):
    norms = 1 - ((factor(x) @ forms.T) ** 2).sum(0)
    if objective == 'mean':
      return norms
    return np.concatenate([norms, x[-1] - _errors(factor(x), _PREFIX)])

  def error(x):
    return _errors(factor(x), _PREFIX).mean() if objective == 'mean' else x[-1]

  best = np.inf
  rng = np.random.default_rng(0)
  for _ in range(6):
    start = np.where(rows == columns, 0.5, 0.1) * rng.uniform(0.5, 1, len(rows))
    found = scipy.optimize.minimize(
      error,
      np.append(start, 10.0),
      method='SLSQP',
      constraints={'type': 'ineq', 'fun': room},
      options={'ftol': 1e-12, 'maxiter': 500},
    )
    if np.min(room(found.x)) > -1e-8:
      best = min(best, found.fun)
  return best


# Losses of a dual search in NumPy, proved to a gap of 1e-6, of the mean error.
_PROVED = [
  (_SCHEMAS[0], 2.50535508, 31.50633876),
  (_SCHEMAS[1], 11.15576324, 113.14471016),
  (_SCHEMAS[2], 5.84876497, 80.16789663),
  (_SCHEMAS[3], 11.26389402, 113.25251574),
  (_SCHEMAS[4], 6.30454156, 88.01114093),
]


@pytest.mark.parametrize('schema, prefix, momentum', _PROVED)
@pytest.mark.deep(but=('schema0', 'schema3'))
def test_loss_is_no_worse_than_that_of_another_search(schema, prefix, momentum):
  strong = workloads.Workload(momentum=0.95, cooldown=0.25)
  for workload, loss in ((_PREFIX, prefix), (strong, momentum)):
    optimized = dense.optimize_dense(solver.Problem(11, schema, workload))
    assert optimized.converged
    assert loss * (1 - 2e-6) < optimized.loss < loss * (1 + 1e-8)


@pytest.mark.parametrize('schema', _SCHEMAS)
@pytest.mark.deep(but=('schema2', 'schema3'))
def test_max_error_is_no_worse_than_that_of_few_bands(schema):
  problem = solver.Problem(11, schema, objective=solver.MAX)
  few = banded.optimize_banded(attrs.evolve(problem, max_evaluations=50), 3)
  problem = attrs.evolve(problem, max_evaluations=199)
  assert dense.optimize_dense(problem).loss < few.loss * (1 + 1e-12)


@pytest.mark.parametrize('objective', ['mean', 'max'])
@pytest.mark.parametrize('rounds', [2, 3, 4])
@pytest.mark.deep(but=('2-', '4-'))
def test_single_participation_against_direct_search(rounds, objective):
  best = dense.optimize_dense(
    solver.Problem(rounds, participation.Single(), objective=objective)
  )
  searched = _searched(
    rounds, objective, np.tri(rounds, dtype=bool), np.eye(rounds)
  )
  assert best.converged
  assert best.loss == pytest.approx(searched, rel=2e-6)


@pytest.mark.parametrize(
  'rounds, min_sep', [(2, 1), (3, 1), (3, 2), (4, 2), (5, 2)]
)
@pytest.mark.deep(but=('3-1', '4-2'))
def test_fixed_epochs_against_direct_search_of_overlapping_columns(
  rounds, min_sep
):
  # Signs alone: a search over vector contributions could only find more.
  forms = []
  for i in range(min_sep):
    own = np.zeros(rounds)
    own[i::min_sep] = 1
    for signs in itertools.product([1, -1], repeat=rounds):
      forms.append(own * signs)
  forms = np.unique(forms, axis=0)
  best = dense.optimize_dense(
    solver.Problem(rounds, participation.FixedEpoch(min_sep))
  )
  searched = _searched(rounds, 'mean', np.tri(rounds, dtype=bool), forms)
  assert best.converged
  assert best.loss == pytest.approx(searched, rel=2e-6)


def test_search_ends_at_the_gap_asked_for():
  near, nearest = (
    optimize.optimize('dense', 20, participation.MinSep(4), **given)
    for given in ({'gap': 0.01}, {})
  )
  assert near.converged and nearest.converged
  assert near.evaluations < nearest.evaluations
  assert nearest.loss < near.loss < 1.01 * nearest.loss


@pytest.mark.parametrize('rounds, min_sep', [(3, 2), (4, 2), (5, 2), (5, 3)])
@pytest.mark.deep(but=('4-2',))
def test_min_sep_against_direct_search_of_bands(rounds, min_sep):
  schema = participation.MinSep(min_sep)
  best = dense.optimize_dense(solver.Problem(rounds, schema))
  assert best.converged
  assert best.strategy.bands <= min_sep
  # Columns do not overlap: all signs of a pattern reach the same.
  searched = _searched(
    rounds,
    'mean',
    np.tri(rounds, dtype=bool) & ~np.tri(rounds, k=-min_sep, dtype=bool),
    brute_force.patterns(rounds, schema),
  )
  assert best.loss == pytest.approx(searched, rel=2e-6)


@pytest.mark.parametrize(
  'schema', [participation.MinSep(1), participation.FixedEpoch(1)]
)
@pytest.mark.parametrize('workload', [_PREFIX, _MOMENTUM])
@pytest.mark.deep(but=('workload0-schema0', 'workload1-schema1'))
def test_one_client_in_every_round_is_the_closed_form(schema, workload):
  # X is diagonal then: sum W_ii / d_i under sum d_i = 1.
  matrix = workload.matrix(20)
  closed = np.sqrt((matrix**2).mean(0)).sum() ** 2
  best = dense.optimize_dense(
    solver.Problem(20, schema, workload, max_evaluations=600)
  )
  assert best.loss == pytest.approx(closed, rel=1e-12)
  assert best.converged or workload != _PREFIX


@pytest.mark.parametrize('workload', [_PREFIX, _MOMENTUM])
@pytest.mark.parametrize('schema', _SCHEMAS)
@pytest.mark.deep(
  but=('schema0-workload0', 'schema2-workload1', 'schema4-workload1')
)
def test_loss_is_that_of_brute_force(schema, workload):
  best = dense.optimize_dense(
    solver.Problem(11, schema, workload, max_evaluations=400)
  )
  # Whether the last digits converge with momentum depends on the processor.
  assert best.converged or workload != _PREFIX
  matrix = best.strategy.matrix()
  assert np.array_equal(matrix, np.tril(matrix))
  squared = brute_force.checked(best.strategy, schema).value ** 2
  # Columns of one client do not overlap: no more than the heaviest pattern.
  chosen = brute_force.patterns(11, schema)
  norms = (matrix**2).sum(0)
  assert squared == pytest.approx((chosen @ norms).max(), rel=1e-9)
  assert best.loss == pytest.approx(
    _errors(matrix, workload).mean() * squared, rel=1e-9
  )


def test_factor_is_that_of_columns():
  # diag(X) = 1 is of columns. A plain Cholesky factor of X has rows of norm 1,
  # and columns of up to 15% more.
  matrix = dense.optimize_dense(
    solver.Problem(24, participation.Single())
  ).strategy.matrix()
  np.testing.assert_allclose((matrix**2).sum(0), 1, rtol=1e-12)
  wrong = np.linalg.cholesky(matrix.T @ matrix)
  assert np.sqrt((wrong**2).sum(0).max()) > 1.07


@pytest.mark.parametrize('schema', _SCHEMAS)
def test_loss_counts_the_sensitivity(schema):
  """A C scaled up is no better: as the error falls, the sensitivity grows."""
  dual = dense._Dual(solver.Problem(12, schema, _PREFIX, solver.MEAN))
  before = dual.loss
  matrix = dual.strategy.matrix()
  dual.offer(9 * matrix.T @ matrix)
  assert dual.loss == pytest.approx(before, rel=1e-9)
  assert before == pytest.approx(
    dual.strategy.errors()[0]
    * sensitivity.sensitivity(dual.strategy, schema).value ** 2,
    rel=1e-9,
  )


@pytest.mark.parametrize('schema', _SCHEMAS)
@pytest.mark.deep(but=('schema2', 'schema4'))
def test_sensitivity_is_one(schema):
  strategy = dense.optimize_dense(solver.Problem(24, schema)).strategy
  value = sensitivity.sensitivity(strategy, schema).value
  assert value == pytest.approx(1, rel=1e-9)


@pytest.mark.parametrize('objective', ['mean', 'max'])
@pytest.mark.parametrize('schema', _SCHEMAS)
@pytest.mark.deep(but=('schema1-mean', 'schema2-max', 'schema4-mean'))
def test_no_strategy_is_below_the_lower_bound(schema, objective):
  # Overlapping columns too, where the optimum is that of all strategies.
  rng = np.random.default_rng(2)
  rounds = 9
  dual = dense._Dual(solver.Problem(rounds, schema, _PREFIX, objective))
  start = dual.start
  for _ in range(10):
    noise = rng.uniform(0.7, 1.3, len(start))
    dual.evaluate(start * noise + 0.02 * rng.uniform(size=len(start)), False)
  best = dense.optimize_dense(
    solver.Problem(rounds, schema, objective=objective, max_evaluations=300)
  )
  assert 0.5 * best.loss < dual.lower_bound < best.loss
  overlaps = schema in (participation.Single(), participation.FixedEpoch(3))
  for _ in range(20):
    matrix = np.tril(rng.normal(0, 0.3, (rounds, rounds)), -1)
    matrix += best.strategy.matrix() + np.diag(rng.uniform(0, 0.1, rounds))
    if not overlaps:
      matrix *= np.tri(rounds) - np.tri(rounds, k=-3)
    e = _errors(matrix, _PREFIX)
    error = e.mean() if objective == 'mean' else e.max()
    squared = brute_force.attained(matrix, schema) ** 2
    if isinstance(schema, participation.MinSep) and schema.max_participations:
      # The optimum of equal column norms: compare with those.
      squared = 2 * (matrix**2).sum(0).max()
    assert error * squared >= best.loss * (1 - 2e-6)


@pytest.mark.parametrize('objective', ['mean', 'max'])
@pytest.mark.parametrize('schema', _SCHEMAS)
@pytest.mark.deep(but=('schema0-max', 'schema2-mean', 'schema4-max'))
def test_gradient_against_finite_differences(schema, objective):
  dual = dense._Dual(solver.Problem(11, schema, _MOMENTUM, objective))
  rng = np.random.default_rng(3)
  x = dual.start * rng.uniform(0.9, 1.1, len(dual.start))
  x += 0.01 * np.abs(dual.start).mean() * rng.uniform(size=len(x))
  _, gradient = dual.evaluate(x, False)
  differences = [
    (dual.evaluate(x + h, False)[0] - dual.evaluate(x - h, False)[0]) / 2e-6
    for h in 1e-6 * np.eye(len(x))
  ]
  np.testing.assert_allclose(gradient, differences, atol=1e-6)


@pytest.mark.parametrize('workload', [_PREFIX, _MOMENTUM])
@pytest.mark.parametrize(
  'schema',
  [
    participation.Single(),
    participation.FixedEpoch(10),
    participation.FixedEpoch(10, 2),
    participation.MinSep(10),
    participation.MinSep(10, 2),
  ],
)
@pytest.mark.deep(but=('schema0-workload0', 'schema4-workload1'))
def test_other_strategies_are_no_better(schema, workload):
  rounds = 40
  best = dense.optimize_dense(
    solver.Problem(rounds, schema, workload, max_evaluations=200)
  )
  others = [
    strategies.Identity(rounds),
    strategies.BandedSqrt(rounds, 10),
    strategies.DpCgd(rounds, 0.9),
    strategies.SqrtToeplitz(rounds),
  ]
  for other in others:
    squared = sensitivity.sensitivity(other, schema).value ** 2
    assert best.loss < other.errors(workload)[0] * squared


def test_max_error_of_one_participation_is_equal_everywhere():
  best = dense.optimize_dense(
    solver.Problem(96, participation.Single(), objective=solver.MAX)
  )
  e = best.strategy.per_query_errors()
  assert best.converged
  assert e.min() > 0.9999 * e.max()
  # The optimum of C with 16 bands is 8.374.
  mean = dense.optimize_dense(solver.Problem(96, participation.Single()))
  assert mean.loss < best.loss < 8.374
  assert best.loss < mean.strategy.errors()[1]


@pytest.mark.parametrize('schema', _SCHEMAS[1:])
@pytest.mark.deep(but=('schema1',))
def test_max_error_is_no_worse_than_that_of_the_mean(schema):
  mean = dense.optimize_dense(solver.Problem(12, schema))
  best = dense.optimize_dense(
    solver.Problem(12, schema, objective=solver.MAX, max_evaluations=400)
  )
  _, largest = mean.strategy.errors()
  squared = sensitivity.sensitivity(mean.strategy, schema).value ** 2
  assert best.loss <= largest * squared * (1 + 1e-12)
  # A line search, of up to 20 evaluations, is not cut short.
  assert best.evaluations <= 400 + 20


@pytest.mark.parametrize(
  'schema', [participation.FixedEpoch(32), participation.MinSep(32)]
)
@pytest.mark.deep(but=('schema1',))
def test_ill_conditioned_workload_converges(schema):
  # Eigenvalues of the dual span 17 orders of magnitude here.
  workload = workloads.Workload(momentum=0.95, cooldown=0.25)
  best = dense.optimize_dense(solver.Problem(96, schema, workload))
  assert best.converged


@pytest.mark.parametrize('objective', ['mean', 'max'])
@pytest.mark.parametrize('schema', _SCHEMAS)
@pytest.mark.deep(but=('schema1-max', 'schema4-mean'))
def test_few_evaluations_give_a_valid_strategy(schema, objective):
  best = dense.optimize_dense(
    solver.Problem(30, schema, objective=objective, max_evaluations=2)
  )
  assert not best.converged
  squared = sensitivity.sensitivity(best.strategy, schema).value ** 2
  error = best.strategy.errors()[objective == 'max']
  assert best.loss == pytest.approx(error * squared, rel=1e-12)
  assert best.evaluations <= 7


@pytest.mark.parametrize('objective', ['mean', 'max'])
@pytest.mark.parametrize('schema', _SCHEMAS)
@pytest.mark.deep(but=('schema0-mean', 'schema3-max'))
def test_interrupt_returns_the_best_so_far(schema, objective, monkeypatch):
  evaluate, calls = dense._Dual.evaluate, itertools.count()

  def interrupted(self, parameters, check):
    if next(calls) == 5:
      raise KeyboardInterrupt
    return evaluate(self, parameters, check)

  monkeypatch.setattr(dense._Dual, 'evaluate', interrupted)
  best = dense.optimize_dense(solver.Problem(40, schema, objective=objective))
  assert not best.converged
  assert best.strategy.rounds == 40
  assert next(calls) <= 7


def test_callback_gets_losses_that_fall():
  losses = []
  best = dense.optimize_dense(
    solver.Problem(40, participation.FixedEpoch(10), callback=losses.append)
  )
  assert len(losses) > 5
  assert losses == sorted(losses, reverse=True)
  assert best.loss <= losses[-1]


@pytest.mark.parametrize(
  'rounds, schema',
  [
    (1, participation.Single()),
    (1, participation.MinSep(1)),
    (2, participation.FixedEpoch(1)),
    (5, participation.MinSep(5)),
    (5, participation.MinSep(9)),
    (7, participation.FixedEpoch(3)),
  ],
)
def test_smallest_cases_converge(rounds, schema):
  assert dense.optimize_dense(solver.Problem(rounds, schema)).converged


def test_bad_input_is_refused():
  with pytest.raises(ValueError, match='rounds=0: .*least'):
    dense.optimize_dense(solver.Problem(0, participation.Single()))
  with pytest.raises(
    TypeError, match='participation=3: must be a Participation'
  ):
    dense.optimize_dense(solver.Problem(3, 3))
  with pytest.raises(ValueError, match='objective=least: .*known'):
    dense.optimize_dense(
      solver.Problem(3, participation.Single(), objective='least')
    )
  with pytest.raises(ValueError, match='rounds=1000000'):
    dense.optimize_dense(solver.Problem(10**6, participation.Single()))
