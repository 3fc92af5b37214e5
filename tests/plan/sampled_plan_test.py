"""Tests of plans whose cohorts are sampled."""

import json

import pytest
import small_plan

import tff_bandmf
from tff_bandmf import accounting


@pytest.mark.slow
def test_sampled_cohorts_are_planned():
  plan = small_plan.make(
    cohorts=tff_bandmf.CyclicPoisson(0.1, groups=6),
    mechanism=tff_bandmf.Mechanism('banded-sqrt', bands=6),
  )
  assert plan.guarantee.epsilon(1e-6) <= 4
  assert plan.what_if() == {}
  assert 'cyclic-poisson' in str(plan)
  best = small_plan.make(cohorts=plan.cohorts, mechanism='best')
  assert best.guarantee.epsilon(1e-6) <= 4
  assert best.strategy.bands <= 6 and best.rmse <= plan.rmse
  assert 'blt' in best.result.left_out


_SAMPLED = [
  tff_bandmf.CyclicPoisson(population=500),
  tff_bandmf.BallsInBins(12, population=120),
  tff_bandmf.BMinSep(12, population=319),
  tff_bandmf.BMinSep(12, 0.05, population=319, start='cold'),
]


@pytest.mark.slow
@pytest.mark.parametrize('cohorts', _SAMPLED, ids=str)
@pytest.mark.deep(but=('BallsInBins', 'CyclicPoisson'))
def test_sampled_plan_with_less_noise_is_refused(tmp_path, cohorts):
  """And with its own it is what it was: samples come back with their seed."""
  plan = small_plan.make(cohorts=cohorts, mechanism='banded-sqrt')
  assert plan.guarantee.epsilon(1e-6) <= 4 < plan.unamplified.epsilon(1e-6)
  assert f'population={cohorts.population}' in str(plan)
  assert f'(at most {plan.most_clients})' in str(plan)
  assert plan.most_clients > 2 * plan.clients_per_round
  plan.save(tmp_path / 'plan.json')
  loaded = tff_bandmf.Plan.load(tmp_path / 'plan.json')
  found, claimed = (each.guarantee.claim(1e-6) for each in (loaded, plan))
  assert found.upper == pytest.approx(claimed.upper, rel=1e-9)
  assert loaded.guarantee.cohorts == plan.guarantee.cohorts
  assert str(loaded) == str(plan)
  content = json.loads((tmp_path / 'plan.json').read_text())
  content['noise_multiplier'] *= 0.99
  (tmp_path / 'edited.json').write_text(json.dumps(content))
  with pytest.raises(ValueError, match='does not prove its claim'):
    tff_bandmf.Plan.load(tmp_path / 'edited.json')
  content['noise_multiplier'] *= 1.1 / 0.99
  (tmp_path / 'edited.json').write_text(json.dumps(content))
  with pytest.raises(ValueError, match='asks for epsilon=4'):
    tff_bandmf.Plan.load(tmp_path / 'edited.json')


@pytest.mark.slow
def test_bands_and_sampling_are_chosen_together():
  plan = small_plan.make(cohorts=_SAMPLED[0], mechanism='banded-sqrt')
  cohorts = plan.guarantee.cohorts
  assert cohorts.groups == plan.strategy.bands
  # Not B / m: a group is open once in so many rounds.
  assert cohorts.sampling_prob == cohorts.groups * 10 / 500
  for bands in (1, 2, 4, 8, 16, 32):
    other = small_plan.make(
      cohorts=_SAMPLED[0],
      mechanism=tff_bandmf.Mechanism('banded-sqrt', bands=bands),
    )
    assert other.guarantee.cohorts.groups == bands
    assert other.rmse >= plan.rmse * (1 - 1e-9)


def test_largest_cohort_that_sampling_exceeds_is_refused():
  changes = dict(
    cohorts=tff_bandmf.CyclicPoisson(0.1, groups=6, population=600),
    mechanism=tff_bandmf.Mechanism('banded-sqrt', bands=6),
    noise_multiplier=1.0,
    epsilon=None,
  )
  least = small_plan.make(**changes).most_clients
  assert small_plan.make(**changes, largest_cohort=least).most_clients == least
  message = f'largest_cohort={least - 1}: must be at least {least}'
  with pytest.raises(ValueError, match=message):
    print(small_plan.make(**changes, largest_cohort=least - 1))
  with pytest.raises(ValueError, match='use clients_per_round=10'):
    print(small_plan.make(**changes, clients_per_round=12))


@pytest.mark.parametrize('name', ['largest_cohort', 'clients_per_round'])
def test_loaded_plan_is_checked_as_a_new_one(tmp_path, name):
  """A file that was edited is held to what the searched plan is held to."""
  plan = small_plan.make(
    cohorts=tff_bandmf.CyclicPoisson(0.1, groups=6, population=600),
    mechanism=tff_bandmf.Mechanism('banded-sqrt', bands=6),
    noise_multiplier=1.0,
    epsilon=None,
  )
  plan.save(tmp_path / 'plan.json')
  assert tff_bandmf.Plan.load(tmp_path / 'plan.json').sampled == plan.sampled
  content = json.loads((tmp_path / 'plan.json').read_text())
  content['request'][name] = 12
  (tmp_path / 'edited.json').write_text(json.dumps(content))
  with pytest.raises(ValueError, match=f'{name}=12'):
    tff_bandmf.Plan.load(tmp_path / 'edited.json')


def test_limit_of_an_unknown_population_is_refused():
  cohorts = accounting.BallsInBins(12)
  with pytest.raises(ValueError, match='largest_cohort=10: .*population'):
    _ = small_plan.make(cohorts=cohorts, largest_cohort=10).guarantee
