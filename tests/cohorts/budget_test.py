"""Tests of admission by budget: what is let in never moves a run by more."""

import fractions
import itertools

import numpy as np
import pytest
import random_structures

from tff_bandmf import accounting, sensitivity, strategies
from tff_bandmf import cohorts as cohorts_lib
from tff_bandmf import ledger as ledger_lib
from tff_bandmf import participation as participation_lib
from tff_bandmf.cohorts import history as history_lib

# Small C of every kind that has costs, with signs and without.
_ROUNDS = 12
_MATRICES = {
  'identity': strategies.Identity(_ROUNDS),
  'falling': strategies.BandedToeplitz(_ROUNDS, [1.0, 0.7, 0.4, 0.1]),
  'signed': strategies.BandedToeplitz(_ROUNDS, [1.0, -0.8, 0.5, -0.3, 0.6]),
  'late': strategies.BandedToeplitz(_ROUNDS, [1.0, 0.1, 0.0, 0.0, 0.9]),
  'dp-cgd': strategies.DpCgd(_ROUNDS, 0.9),
  'inverse': strategies.BandedInverse(_ROUNDS, [1.0, -0.6, 0.3]),
  'blt': strategies.Blt(_ROUNDS, [0.6, -0.2], [0.9, 0.4]),
  'banded': strategies.Banded(
    np.where(
      np.arange(_ROUNDS)[:, np.newaxis] >= np.arange(3),
      np.random.default_rng(0).normal(size=(_ROUNDS, 3)) * [0, 1, 1]
      + [1.5, 0, 0],
      0,
    )
  ),
  'normalized': strategies.ColumnNormalized(
    strategies.BandedToeplitz(_ROUNDS, [1.0, 0.7, 0.4])
  ),
}


def _budget(strategy, min_sep=3, most=2, **fields):
  return sensitivity.budget.completed(
    participation_lib.Budget(min_sep, most, **fields), strategy
  )


def _shift(matrix, pattern):
  """Returns the most that unit vectors in these rounds move C G, brute force.

  Scalar signs reach what is tested: vectors do no more than the sum of |X|.
  """
  columns = matrix[:, list(pattern)]
  signs = itertools.product((1, -1), repeat=len(pattern) - 1)
  return max(np.linalg.norm(columns @ np.array([1, *each])) for each in signs)


def _admitted(budget, histories, rounds):
  """Returns patterns that the rule lets in where clients come at these rounds.

  Args:
    budget: with costs.
    histories: [m, rounds] bool, when each client comes.
    rounds: of the run.
  """
  past = history_lib.empty(len(histories), budget)
  taken = np.zeros(histories.shape, bool)
  for t in range(rounds):
    came = np.flatnonzero(histories[:, t])
    admission = cohorts_lib.admit(
      came, t, budget, rounds, past.for_clients(came)
    )
    past.record(t, came[admission.admitted])
    taken[came[admission.admitted], t] = True
  return taken


@pytest.mark.parametrize('name', _MATRICES)
def test_no_admitted_pattern_exceeds_the_budget(name):
  strategy = _MATRICES[name]
  matrix = strategy.matrix()
  rng = np.random.default_rng(1)
  # 10^5 histories over the matrices, of clients that come seldom or often.
  often = rng.random((12_000, 1))
  came = rng.random((12_000, _ROUNDS)) < often
  for budget in (_budget(strategy), _budget(strategy, 4, 3, apart=2)):
    bound = accounting.Guarantee(strategy, budget, 1.0).sensitivity.value
    patterns = np.unique(_admitted(budget, came, _ROUNDS), axis=0)
    reached = 0.0
    for taken in patterns:
      rounds = np.flatnonzero(taken)
      if len(rounds) > 1:
        assert np.diff(rounds).min() >= budget.apart
      if len(rounds):
        reached = max(reached, _shift(matrix, rounds))
    assert reached <= bound * (1 + 1e-12)
    # Where rounds of one sign reach the cost, the budget is not given away.
    if name in ('identity', 'falling', 'banded', 'normalized'):
      assert reached > 0.85 * bound


@pytest.mark.parametrize('name', _MATRICES)
def test_adversary_does_not_exceed_the_budget_but_reaches_it(name):
  """All patterns of a small C, each with the worst contributions."""
  strategy = _MATRICES[name]
  matrix = strategy.matrix()
  budget = _budget(strategy)
  costs = budget.known_costs
  bound = sensitivity.sensitivity(strategy, budget).value
  reached = 0.0
  for size in range(1, 6):
    patterns = np.array(list(itertools.combinations(range(_ROUNDS), size)))
    admitted = costs.total(patterns[:, ::-1]) <= costs.limit
    for pattern in patterns[admitted]:
      reached = max(reached, _shift(matrix, pattern))
  assert reached <= bound * (1 + 1e-12)
  if name in ('dp-cgd', 'blt'):
    # Their columns are as long as the run, and the 12 rounds cut what the cost
    # counts: no pattern reaches more than these shares of the bound.
    assert reached / bound == pytest.approx(
      {'dp-cgd': 0.9885, 'blt': 0.9892}[name], abs=1e-4
    )
    # A run of 100 rounds cuts nothing of the first columns that counts.
    strategy = strategy.of_rounds(100)
    matrix = strategy.matrix()
    budget = _budget(strategy)
    bound = sensitivity.sensitivity(strategy, budget).value
    pairs = np.array([[lag, 0] for lag in range(1, 100)])
    costs = budget.known_costs
    admitted = pairs[costs.total(pairs) <= costs.limit]
    reached = max(_shift(matrix, pair) for pair in admitted)
    assert reached <= bound * (1 + 1e-12)
  assert reached >= 0.999 * bound


@pytest.mark.parametrize('name', _MATRICES)
def test_cost_bounds_the_shift_of_every_pattern(name):
  """Also of the first rounds of C, and as closely as integers do."""
  strategy = _MATRICES[name]
  costs = _budget(strategy).known_costs
  full = strategy.matrix()
  for size in (1, 2, 3):
    patterns = np.array(list(itertools.combinations(range(_ROUNDS), size)))
    cost = costs.total(patterns[:, ::-1]) * costs.unit
    for rounds in (_ROUNDS, 7):
      matrix = full[:rounds, :rounds]
      for pattern, most in zip(patterns, cost):
        if pattern[-1] < rounds:
          assert _shift(matrix, pattern) ** 2 <= most
    if name in ('falling', 'signed', 'late'):
      # Columns that nothing cuts cost what they are.
      wide = strategies.BandedToeplitz(40, strategy.coefficients).matrix()
      for pattern, most in zip(patterns, cost):
        columns = wide[:, pattern]
        assert np.abs(columns.T @ columns).sum() == pytest.approx(most, 1e-8)


@pytest.mark.parametrize(
  'name', ['banded', 'toeplitz', 'falling', 'normalized', 'normalized falling']
)
def test_random_budgets_bound_the_rounds_that_they_admit(name):
  """All patterns of random C: their sums of |X|, number and distances."""
  rng = np.random.default_rng(list(name.encode()))
  longest = 0
  for _ in range(30):
    rounds = int(rng.integers(2, 13))
    bands = int(rng.integers(1, rounds))
    strategy = random_structures.MATRICES[name](rng, rounds, bands)
    min_sep = int(rng.integers(1, rounds + 1))
    apart = int(rng.integers(1, min_sep + 1))
    most = int(rng.integers(1, 4)) if rng.random() < 0.7 else None
    budget = _budget(strategy, min_sep, most, apart=apart)
    sets = random_structures.separated(rounds, apart)
    indices = np.where(sets > 0, np.arange(rounds), -1)
    costs = budget.known_costs
    cost = costs.total(-np.sort(-indices, axis=1))
    admitted = sets[cost <= costs.limit]
    bound = sensitivity.sensitivity(strategy, budget).value
    assert fractions.Fraction(bound) ** 2 >= (
      costs.limit * fractions.Fraction(costs.unit)
    )
    x = random_structures.gram(strategy)
    assert random_structures.sums(admitted, x).max() <= bound**2
    size = admitted.sum(1).max()
    assert size <= budget.participations(rounds) <= rounds
    longest += size > budget.reference_schema.participations(rounds)
    assert budget.separation(rounds) == apart
    # Whoever keeps the typical schema is admitted.
    typical = random_structures.separated(rounds, min_sep)
    typical = typical[typical.sum(1) <= (most or rounds)]
    largest = random_structures.sums(typical, x).max()
    assert random_structures.sums(admitted, x).max() >= largest
  assert longest > 3 or name != 'banded'


@pytest.mark.parametrize('name', _MATRICES)
def test_typical_client_is_admitted(name):
  strategy = _MATRICES[name]
  for min_sep, most in ((1, 3), (3, 2), (4, None), (12, 1)):
    budget = _budget(strategy, min_sep, most)
    k = participation_lib.MinSep(min_sep, most).participations(_ROUNDS)
    for pattern in itertools.combinations(range(_ROUNDS), k):
      if k == 1 or np.diff(pattern).min() >= min_sep:
        cost = budget.costs.total(np.array([pattern[::-1]]))
        assert cost[0] <= budget.costs.limit
        assert budget.participations(_ROUNDS) >= k


def test_budget_is_that_of_the_typical_client():
  strategy = strategies.BandedToeplitz(2000, 0.99 ** np.arange(400))
  budget = _budget(strategy, 400, None)
  assert budget.costs.limit == 5 * 2**30
  typical = sensitivity.sensitivity(strategy, participation_lib.MinSep(400))
  by_budget = sensitivity.sensitivity(strategy, budget)
  assert by_budget.value == pytest.approx(typical.value, rel=1e-9)
  assert by_budget.value >= typical.value
  assert by_budget.method == sensitivity.UPPER_BOUND
  # Rounds that overlap cost more, and rounds that are far apart nothing more.
  total = (
    budget.costs.total(np.array([[1, 0], [399, 0], [400, 0], [1999, 0]]))
    / 2**30
  )
  assert total[0] > 3.9 and 2 < total[1] < 2.1
  assert total[2:].tolist() == [2.0, 2.0]


@pytest.mark.parametrize('entries', [2**19, 7])
def test_history_has_every_round_of_a_client(tmp_path, monkeypatch, entries):
  """In memory, and in a ledger whose clients are strings; forwards and back."""
  monkeypatch.setattr(history_lib, '_RANGE', entries)
  rng = np.random.default_rng(0)
  names = np.array([f'client {i}' for i in range(40)])
  rounds = {i: [] for i in range(40)}
  patterns = history_lib.Patterns.empty(40)
  budget = participation_lib.Budget(3, 2)
  seen = []

  def check(history, order):
    for i, row, last, count in zip(
      order, history.rounds, history.last_round, history.count
    ):
      assert row[row >= 0].tolist() == rounds[i][::-1]
      assert count == len(rounds[i])
      assert last == (rounds[i][-1] if rounds[i] else -(2**30))

  with ledger_lib.Ledger(tmp_path / 'ledger.sqlite') as ledger:
    for t in range(0, 60, 3):
      order = rng.permutation(40)
      check(patterns.for_clients(order), order)
      if t % 4:
        # Several rounds at once are taken up as one by one.
        check(ledger.past(names[order], t, whole=True), order)
        whole, _ = ledger.population(names[order], t, budget)
        check(whole.for_clients(np.arange(40)), order)
      cohort = rng.choice(40, rng.integers(0, 12), replace=False)
      ledger.start_round(t, names[cohort])
      patterns.record(t, cohort)
      for i in cohort:
        rounds[i].append(t)
      seen.append((t, ledger.past(names, t, whole=True).count.sum()))
    again = ledger.past(names, seen[5][0], whole=True)
    assert again.count.sum() == seen[5][1]
    # Who is not named is not looked for.
    few, missing = ledger.population(names[:7], 60, budget)
    check(few.for_clients(np.arange(7)), range(7))
    assert missing == sum(map(bool, list(rounds.values())[7:]))
  with pytest.raises(ValueError, match='client=0..40: is not among the 40'):
    patterns.for_clients(np.array([0, 40]))


def test_rounds_without_all_rounds_of_clients_are_refused():
  budget = _budget(_MATRICES['falling'])
  with pytest.raises(ValueError, match='history=last rounds: .* budget needs'):
    cohorts_lib.admit(np.array([0]), 0, budget, 9, cohorts_lib.History.empty(1))
  plain = participation_lib.Budget(3, 2)
  with pytest.raises(
    ValueError, match='participation=budget: the costs of rounds'
  ):
    cohorts_lib.admit(
      np.array([0]),
      0,
      plain,
      9,
      cohorts_lib.Patterns.empty(1).for_clients(np.array([0])),
    )


def test_client_of_another_matrix_is_refused():
  past = cohorts_lib.Patterns.empty(2)
  for t in range(4):
    past.record(t, np.array([1]))
  budget = _budget(_MATRICES['falling'])
  everybody = np.arange(2)
  with pytest.raises(ValueError, match='history=cost .* under another C'):
    cohorts_lib.admit(everybody, 5, budget, 9, past.for_clients(everybody))


def test_budget_of_another_matrix_is_computed_again():
  first, second = _MATRICES['falling'], _MATRICES['late']
  budget = _budget(first)
  guarantee = accounting.Guarantee(second, budget, 1.0)
  assert guarantee.cohorts.costs.strategy_sha256 == second.digest()
  assert guarantee.sensitivity == sensitivity.sensitivity(
    second, _budget(second)
  )


def test_patterns_of_too_many_rounds_are_refused():
  costs = _budget(strategies.Identity(2**17)).known_costs
  with pytest.raises(ValueError, match='participations=65537: .* 65536'):
    costs.total(np.zeros((1, 2**16 + 1), np.int64))


@pytest.mark.parametrize(
  'strategy, words',
  [
    (strategies.SqrtToeplitz(_ROUNDS), 'columns as long as the run'),
    (strategies.Dense(np.eye(3) + np.tri(3)), 'columns as long as the run'),
    (strategies.Tree(8), 'columns as long as the run'),
  ],
)
def test_matrix_of_long_columns_is_refused(strategy, words):
  with pytest.raises(ValueError, match=f'family={strategy.family}: .*{words}'):
    accounting.Guarantee(strategy, participation_lib.Budget(2, 2), 1.0)


def test_parameters_that_contradict_each_other_are_refused():
  with pytest.raises(ValueError, match='apart=4: must not exceed min_sep=3'):
    participation_lib.Budget(3, apart=4)
  with pytest.raises(ValueError, match='apart=2: .* min-sep does not take it'):
    participation_lib.from_name('min-sep', 3, apart=2)
  with pytest.raises(ValueError, match='horizon=9: is below rounds=12'):
    sensitivity.budget.until(
      _MATRICES['falling'], participation_lib.Budget(3, horizon=9)
    )
  with pytest.raises(ValueError, match='horizon=13: exceeds rounds=12'):
    sensitivity.budget.until(
      _MATRICES['banded'], participation_lib.Budget(3, horizon=13)
    )
  with pytest.raises(ValueError, match='horizon=13: must be rounds=12'):
    accounting.Guarantee(
      _MATRICES['falling'], participation_lib.Budget(3, horizon=13), 1.0
    )


def test_sampler_fills_cohorts_by_budget():
  strategy = strategies.BandedToeplitz(60, [1.0, 0.7, 0.4, 0.1])
  budget = _budget(strategy, 10, 3, apart=2)
  sampler = cohorts_lib.CohortSampler(60, 5, 30, budget, 0)
  past, cohorts = sampler.history(), []
  for t in range(30):
    cohorts.append(sampler.sample(t, past))
    past.record(t, cohorts[-1])
  matrix = strategy.matrix()
  bound = sensitivity.sensitivity(strategy, budget).value
  for client in range(60):
    rounds = [t for t, cohort in enumerate(cohorts) if client in cohort]
    if rounds:
      assert len(rounds) < 2 or np.diff(rounds).min() >= 2
      assert _shift(matrix, rounds) <= bound
  # More than min_sep lets in: 30 rounds of 5 need 3 each of 50 clients.
  with pytest.raises(cohorts_lib.CohortError, match='cohort_size=5: cannot'):
    cohorts_lib.CohortSampler(45, 5, 30, budget, 0)


def test_log_keeps_a_budget_by_its_costs():
  strategy = strategies.BandedToeplitz(30, [1.0, 0.7, 0.4, 0.1])
  budget = _budget(strategy, 10, 3, apart=2)
  planned = accounting.Guarantee(strategy, budget, 1.0)
  costs = budget.known_costs

  def observed(*rounds, strategy=strategy, **options):
    part = np.array(rounds), np.zeros(len(rounds), np.int64)
    return sensitivity.of_clients([part], strategy, **options)

  kept = observed(0, 2, costs=costs)
  assert kept.satisfies(budget, 30)
  assert kept.cost == costs.total(np.array([[2, 0]]))[0]
  assert planned.for_observed(kept).epsilon(1e-6) < planned.epsilon(1e-6)
  # Rounds that cost the budget to the last unit claim what was planned.
  assert planned.for_observed(observed(0, 10, 20, costs=costs)).epsilon(
    1e-6
  ) == (planned.epsilon(1e-6))
  assert not observed(0, 2).satisfies(budget, 30)
  assert not observed(0, 2, strategy=None, costs=costs).satisfies(budget, 30)
  assert not observed(0, 1, costs=costs).satisfies(budget, 30)
  over = observed(0, 10, 20, 29, costs=costs)
  assert not over.satisfies(budget, 30)
  assert planned.for_observed(over).epsilon(1e-6) > planned.epsilon(1e-6)
