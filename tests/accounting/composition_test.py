"""Tests of the guarantee of several runs on the same clients."""

import itertools
import math

import hypothesis
import numpy as np
import pytest
import true_deltas
from hypothesis import strategies as st

from tff_bandmf import accounting, participation, strategies
from tff_bandmf.accounting.methods import monte_carlo
from tff_bandmf.accounting.methods import stop_probability as stops

_SCHEMA = participation.MinSep(4)
_SAMPLES = monte_carlo.Samples(2000)


def _run(noise_multiplier, strategy=None, cohorts=_SCHEMA, **options):
  return accounting.Guarantee(
    strategy or strategies.BandedSqrt(8, 2),
    cohorts,
    noise_multiplier,
    **options,
  )


def _poisson(noise_multiplier, q, rounds=1, **options):
  cohorts = accounting.CyclicPoisson(q, 1, **options)
  return _run(noise_multiplier, strategies.Identity(rounds), cohorts)


@pytest.mark.slow
@hypothesis.settings(max_examples=20)
@hypothesis.given(
  noises=st.lists(st.floats(0.5, 20), min_size=1, max_size=5),
  log_delta=st.integers(-10, -3),
)
def test_gaussian_runs_compose_exactly(noises, log_delta):
  delta = 10.0**log_delta
  composed = accounting.compose(map(_run, noises))
  claim = composed.claim(delta)
  mu = math.hypot(*(1 / noise for noise in noises))
  assert true_deltas.gaussian(1 / mu, claim.epsilon) <= delta
  exact = accounting.gaussian_epsilon(1 / mu, delta)
  assert exact <= claim.epsilon <= exact * (1 + 1e-9) + 1e-9
  assert composed.method == 'exact'
  assert composed.rho == pytest.approx(mu**2 / 2)
  assert composed.rho >= mu**2 / 2
  assert claim.total <= delta * (1 + 1e-9)


def test_one_run_is_what_it_claims_alone():
  for run in (_run(1.0), _poisson(1.0, 0.1, 4)):
    assert accounting.compose([run]).claim(1e-6) == run.claim(1e-6)


def test_order_does_not_matter_and_every_run_counts():
  runs = [_run(2.0), _run(0.9), _poisson(1.0, 0.2)]
  found = [
    accounting.compose(order).epsilon(1e-6)
    for order in itertools.permutations(runs)
  ]
  assert found == pytest.approx([found[0]] * 6, rel=1e-6)
  for part in itertools.combinations(runs, 2):
    assert accounting.compose(part).epsilon(1e-6) < found[0]


@pytest.mark.slow
@hypothesis.settings(max_examples=8)
@hypothesis.given(
  q=st.floats(0.05, 0.95),
  other=st.floats(0.05, 1.0),
  noise=st.floats(0.6, 2),
  second=st.floats(0.6, 2),
)
def test_sampled_runs_are_never_below_the_integral(q, other, noise, second):
  runs = [_poisson(noise, q)]
  runs.append(_poisson(second, other) if other < 0.7 else _run(second))
  composed = accounting.compose(runs)
  assert composed.method == 'losses convolved, rounded up'
  delta = 1e-3
  epsilon = composed.epsilon(delta)
  patterns = np.array(list(itertools.product([0.0, 1.0], repeat=2)))
  qs = np.array([q, other if other < 0.7 else 1.0])
  weights = np.prod(np.where(patterns > 0, qs, 1 - qs), axis=1)
  scaled = patterns / [noise, second]

  def exact(epsilon):
    return true_deltas.mixture(scaled, weights, 1.0, epsilon, 1001)

  assert exact(epsilon) <= delta * (1 + 1e-4)
  assert exact(0.98 * epsilon - 0.01) > delta


def test_runs_of_any_sampling_get_the_sum_of_their_shares():
  bins = _run(
    0.8,
    strategies.Identity(16),
    accounting.BallsInBins(16),
    samples=_SAMPLES,
  )
  delta = 3e-2
  composed = accounting.compose([_run(1.0), bins, _run(2.0)])
  assert composed.method == 'upper_bound'
  assert accounting.compose([bins]).method == 'upper_bound'
  assert composed.rho is None
  claim = composed.claim(delta)
  assert claim.total <= delta * (1 + 1e-9)
  gaussians = accounting.compose([_run(1.0), _run(2.0)])
  assert claim.epsilon == pytest.approx(
    gaussians.epsilon(delta / 2) + bins.epsilon(delta / 2)
  )
  assert claim.failure_probability > 0


@pytest.mark.slow
def test_claims_of_random_compositions_add_up():
  """Two sampled runs or more, each of which can fail."""
  rng = np.random.default_rng(0)
  for count in (2, 3):
    bins = [
      _run(
        rng.uniform(0.7, 1.2),
        strategies.Identity(16),
        accounting.BallsInBins(16),
        samples=monte_carlo.Samples(int(rng.integers(1000, 2000))),
      )
      for _ in range(count)
    ]
    gaussians = [_run(rng.uniform(1, 4)) for _ in range(3 - count)]
    composed = accounting.compose([*gaussians, *bins])
    delta = rng.uniform(1e-2, 5e-2)
    claim = composed.claim(delta)
    assert claim.total <= delta * (1 + 1e-9)
    share = delta / (len(bins) + bool(gaussians))
    parts = [run.claim(share) for run in bins]
    if gaussians:
      parts.append(accounting.compose(gaussians).claim(share))
    for field in ('epsilon', 'estimate', 'upper', 'failure_probability'):
      values = [getattr(part, field) for part in parts]
      assert getattr(claim, field) == pytest.approx(sum(values), rel=1e-9)
      assert getattr(claim, field) >= sum(values) * (1 - 1e-15)
      # No part is lost in another.
      assert len([value for value in values if value > 0]) > 1, field
    assert claim.samples == max(part.samples for part in parts)


def test_runs_whose_chance_gives_little_are_composed_without_it():
  # One bin: nothing is left to chance.
  runs = [
    _run(
      noise,
      strategies.Identity(4),
      accounting.BallsInBins(1),
      samples=_SAMPLES,
    )
    for noise in (4.0, 4.0, 5.0)
  ]
  composed = accounting.compose(runs)
  assert composed.method == 'upper_bound'
  claim = composed.claim(1e-3)
  mu = math.hypot(*(1 / run.noise_multiplier for run in runs))
  exact = accounting.gaussian_epsilon(1 / mu, 1e-3)
  assert exact <= claim.epsilon <= exact * 1.02
  assert claim.epsilon < sum(run.epsilon(1e-3 / 3) for run in runs)
  assert claim.failure_probability == 0


def test_stops_of_all_runs_are_counted(monkeypatch):
  runs = [_run(1.0), _run(2.0), _poisson(3.0, 0.5)]
  monkeypatch.setattr(stops, 'TAU', 1e-10)
  delta = 1e-4
  epsilon = accounting.compose(runs).epsilon(delta)
  ideal = 1 / math.hypot(1, 1 / 2)
  assert epsilon > accounting.gaussian_epsilon(ideal, delta)
  gaussian = accounting.compose(runs[:2]).epsilon(delta)
  total = accounting.gaussian_delta(ideal, gaussian)
  assert total + 2 * stops.TAU * (1 + math.exp(gaussian)) <= delta
  # Three runs need a larger share of delta than one.
  monkeypatch.setattr(stops, 'SHARES', (1e-3,))
  monkeypatch.setattr(
    stops, 'TAU', 0.4 * 1e-3 * delta / 2 / (1 + math.exp(gaussian))
  )
  assert accounting.compose(runs[:2]).epsilon(delta) < math.inf
  several = accounting.compose([_run(1.0), _run(2.0), *[_run(1e3)] * 3])
  assert several.epsilon(delta) == math.inf


def test_run_of_another_strategy_or_unit_is_another_run():
  one = accounting.Composition((_run(5.0),), ('r',))
  other = _run(5.0, strategies.Identity(8))
  for guarantees in ([other], [_run(5.0, clients_per_unit=2)]):
    two = accounting.Composition(tuple(guarantees), ('r',))
    try:
      together = accounting.compose([one, two])
    except ValueError as error:
      assert 'clients_per_unit' in str(error)
    else:
      assert len(together.guarantees) == 2


def test_plans_are_composed_by_their_guarantees():
  class Plan:
    guarantee = _run(1.0)

  assert accounting.compose([Plan, Plan]).epsilon(1e-6) == (
    accounting.compose([Plan.guarantee] * 2).epsilon(1e-6)
  )


def test_run_without_noise_is_refused():
  with pytest.raises(ValueError, match='noise_multiplier=0: .*guarantee'):
    accounting.compose([_run(1.0), _run(0.0)])


def test_mixed_adjacencies_are_refused():
  runs = [_run(1.0), _poisson(1.0, 0.1, adjacency='add-remove')]
  with pytest.raises(ValueError, match='adjacency=add-remove and zero-out'):
    accounting.compose(runs)


def test_mixed_units_are_refused():
  runs = [_run(1.0), _run(1.0, clients_per_unit=3)]
  with pytest.raises(ValueError, match='clients_per_unit=1 and 3: .*same'):
    accounting.compose(runs)
  assert accounting.compose([runs[1]] * 2).epsilon(1e-6) > (
    runs[1].epsilon(1e-6)
  )


def test_nothing_is_refused():
  with pytest.raises(ValueError, match='runs=none'):
    accounting.compose([])


def test_named_run_counts_once_and_others_each_time():
  """Two runs of one plan have equal guarantees, and both released."""
  one, other = _run(1.0), _run(2.0)
  after = accounting.Composition((one, other), ('one', 'other'))
  before = accounting.Composition((other,), ('other',))
  named = accounting.compose([after, before])
  assert named.run_ids == ('one', 'other')
  expected = accounting.compose([one, other]).epsilon(1e-6)
  assert named.epsilon(1e-6) == expected
  assert len(accounting.compose([one, one]).guarantees) == 2
  third = accounting.Composition((other,), ('third',))
  less = accounting.Composition((_run(1.9),), ('other',))
  for more in (other, third, less):
    found = accounting.compose([after, more])
    assert len(found.guarantees) == 3 and found.epsilon(1e-6) > expected
