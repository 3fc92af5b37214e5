"""Tests of plans: what holds, what is chosen, what is refused."""

import json
import pathlib
import subprocess
import sys

import attrs
import numpy as np
import pytest
import small_plan

import tff_bandmf
from tff_bandmf import accounting, participation, strategies
from tff_bandmf.plan import plan as plan_lib
from tff_bandmf.plan import plan_json
from tff_bandmf.plan import search as search_lib

_REFERENCE = pathlib.Path(__file__).parents[2] / 'docs' / 'reference'


def test_noise_of_a_plan_gives_what_was_asked_for():
  plan = small_plan.make()
  assert plan.strategy.bands == 12
  assert 3.99 < plan.guarantee.epsilon(1e-6) <= 4
  assert plan.z_stddev == pytest.approx(
    0.5 * plan.guarantee.sensitivity.value * plan.guarantee.noise_multiplier
  )


def test_noise_that_drowns_the_updates_is_told():
  """6 clients and 200,000 parameters: the loss went from 4.0 to 219."""
  few = small_plan.make(clients_per_round=6, dimension=200_000)
  ratio = few.to_dict()['noise_to_signal']
  # The sum of all rounds by its definition.
  errors = few.strategy.per_query_errors(tff_bandmf.workloads.PREFIX)
  noise = few.z_stddev * (errors.mean() * 200_000) ** 0.5 / 6
  assert ratio == pytest.approx(noise / (60 * few.clip)) and ratio > 3
  assert 'WARNING: the noise drowns the updates' in str(few)
  many = small_plan.make(clients_per_round=600, dimension=20_000)
  assert 0 < many.to_dict()['noise_to_signal'] < 0.1
  assert 'noise to signal' in str(many) and 'WARNING' not in str(many)
  assert small_plan.make().to_dict()['noise_to_signal'] is None
  assert 'noise to signal' not in str(small_plan.make())
  # Both move with the clip.
  adaptive = tff_bandmf.AdaptiveClip(0.1, fraction_weight=1e-6)
  adaptive = small_plan.make(
    clients_per_round=6, dimension=200_000, l2_norm_clip=adaptive
  )
  assert adaptive.noise_to_signal(200_000) == pytest.approx(ratio, rel=1e-3)


@pytest.mark.parametrize(
  'file, coordinates, rounds',
  [('people', 84_276, 240), ('evidence', 148_404, 1032)],
)
def test_no_run_that_learned_was_drowned(file, coordinates, rounds):
  """The published runs all learned, except where a rate was tried."""
  runs = json.loads((_REFERENCE / f'{file}.json').read_text())['runs']
  ratios = []
  for each in runs:
    if not each['search']:
      assert each['curve'][-1][1] < each['curve'][0][1]
      ratios.append(each['noise'] * coordinates**0.5 / rounds)
  assert len(ratios) >= 40
  assert max(ratios) < 0.75 * plan_lib._DROWNED


@pytest.mark.parametrize('clients, drowned', [(6, True), (60, False)])
def test_ratio_of_a_plan_is_that_of_the_published_runs(clients, drowned):
  """The noise of a run is its L: the error of sums, over clip and clients."""
  plan = small_plan.make(clients_per_round=clients, dimension=200_000)
  noise = plan.rmse / clients
  ratio = noise * 200_000**0.5 / plan.rounds
  assert plan.noise_to_signal(200_000) == pytest.approx(ratio)
  assert (plan.warning(200_000) is not None) == drowned


def test_clips_of_layers_are_one_norm():
  assert (
    small_plan.make(l2_norm_clip=(0.3, 0.4)).z_stddev
    == small_plan.make().z_stddev
  )


def test_adaptive_clip_costs_delta_and_is_stored(tmp_path):
  adaptive = tff_bandmf.AdaptiveClip((0.3, 0.4), fraction_weight=1.5, until=9)
  plan, constant = small_plan.make(l2_norm_clip=adaptive), small_plan.make()
  assert plan.guarantee.epsilon(1e-6) == constant.guarantee.epsilon(1e-6)
  delta = (1 + 1.5**2 / 4) ** 0.5
  assert plan.z_stddev == pytest.approx(delta * constant.z_stddev)
  assert plan.rmse == pytest.approx(delta * constant.rmse)
  plan.save(tmp_path / 'plan.json')
  loaded = tff_bandmf.Plan.load(tmp_path / 'plan.json')
  assert loaded.l2_norm_clip == adaptive
  assert plan_json.to_document(loaded) == plan_json.to_document(plan)
  assert loaded.z_stddev == plan.z_stddev
  assert 'begins at [0.3, 0.4] and follows the 0.5-quantile' in str(plan)
  assert '* clip * 1.25, for the indicator' in str(plan)
  assert 'indicator' not in str(constant)
  with pytest.raises(TypeError, match='l2_norm_clip'):
    small_plan.make(l2_norm_clip=tff_bandmf.AdaptiveClip({'kernel': 1.0}))


def test_noise_multiplier_is_taken_as_given():
  plan = small_plan.make(epsilon=None, delta=None, noise_multiplier=2.0)
  assert plan.guarantee.noise_multiplier == 2
  assert 'no delta was given' in str(plan)


def test_plan_without_noise_claims_nothing():
  plan = small_plan.make(epsilon=None, delta=None, noise_multiplier=0)
  assert plan.z_stddev == 0
  assert 'claim: none, there is no noise' in str(plan)
  assert plan.to_dict()['epsilon'] is None


@pytest.mark.parametrize(
  'mechanism',
  [
    tff_bandmf.Mechanism('banded-sqrt', bands=5),
    strategies.BandedSqrt(60, 5),
    'file.json',
    'matrix.npy',
  ],
  ids=str,
)
def test_mechanism_may_be_named_given_or_read(tmp_path, monkeypatch, mechanism):
  monkeypatch.chdir(tmp_path)
  strategy = strategies.BandedSqrt(60, 5)
  strategies.save(strategy, 'file.json')
  np.save('matrix.npy', strategy.matrix())
  plan = small_plan.make(mechanism=mechanism)
  assert plan.strategy.matrix().tolist() == strategy.matrix().tolist()


@pytest.mark.slow
def test_best_is_of_the_families_that_fit():
  plan, families = small_plan.make(mechanism='best', memory_copies=1), []
  assert plan.search(families.append) is plan.result
  assert sorted(families) == sorted({*strategies.FAMILIES} - {'custom'})
  assert plan.copies <= 1
  rmses = [plan.rmse, *(rmse for _, rmse in plan.result.runners_up)]
  assert rmses == sorted(rmses)
  assert 'identity' in dict(plan.result.runners_up)
  assert 'memory_copies=1' in plan.result.left_out['dense']
  text = str(plan)
  for family in (*dict(plan.result.runners_up), *plan.result.left_out):
    # Nobody gave the parameter that this family requires.
    assert (family in text) == (family != 'robust-toeplitz'), family


@pytest.mark.parametrize(
  'mechanism, copies',
  [
    ('online-tree', 5),
    (tff_bandmf.Mechanism('banded-sqrt', bands=7), 6),
    (strategies.BandedSqrt(60, 7), 6),
    ('c.json', 6),
    ('c.npy', 6),
  ],
  ids=str,
)
def test_memory_that_a_mechanism_exceeds_is_refused(
  tmp_path, monkeypatch, mechanism, copies
):
  monkeypatch.chdir(tmp_path)
  strategies.save(strategies.BandedSqrt(60, 7), 'c.json')
  np.save('c.npy', strategies.BandedSqrt(60, 7).matrix())
  for given in (None, copies):
    plan = small_plan.make(mechanism=mechanism, memory_copies=given)
    assert plan.strategy.memory_copies == copies
  with pytest.raises(ValueError, match=f'copies={copies - 1}: .* {copies} '):
    _ = small_plan.make(mechanism=mechanism, memory_copies=copies - 1).strategy


@pytest.mark.parametrize(
  'mechanism, bands',
  [
    ('dp-cgd', 2),
    (tff_bandmf.Mechanism('dp-cgd', column_normalize=True), 2),
    (tff_bandmf.Mechanism('banded-inverse-sqrt', bands=20), 20),
    (strategies.Stamped(60, strategies.BandedInverseSqrt(20, 5)), 5),
    ('c.json', 7),
  ],
  ids=str,
)
def test_few_bands_of_the_inverse_need_no_memory(
  tmp_path, monkeypatch, mechanism, bands
):
  """`Plan(mechanism='dp-cgd', memory_copies=0)` was refused."""
  monkeypatch.chdir(tmp_path)
  strategies.save(strategies.BandedInverseSqrt(60, 7), 'c.json')
  for limit in (None, bands - 1, bands - 2, 0):
    plan = small_plan.make(mechanism=mechanism, memory_copies=limit)
    again = limit is not None and limit < bands - 1
    assert plan.copies == plan.to_dict()['memory_copies']
    assert plan.copies == (0 if again else bands - 1)
    normals = 1 + (bands - 1) / 4 * again
    assert plan.to_dict()['normals'] == normals
    text = f'keeps {plan.copies} copies of the model'
    text += f', and draws {normals:g} normals a round\n' if again else '\n'
    assert text in str(plan)
  plan.save('plan.json')
  assert tff_bandmf.Plan.load('plan.json').copies == 0


def test_family_uses_the_memory_that_it_is_given():
  assert small_plan.make(memory_copies=3).strategy.memory_copies == 3


def test_strategy_that_files_cannot_hold_is_no_mechanism():
  """`Run` was the first to refuse it, after the search."""

  class Other(strategies.BandedSqrt):
    pass

  with pytest.raises(ValueError, match='strategy=Other: is not the class'):
    small_plan.make(mechanism=Other(60, 7))
  with pytest.raises(TypeError, match='mechanism=3: must be best, a family'):
    small_plan.make(mechanism=3)


def test_changed_plan_does_not_keep_the_noise_of_the_other():
  plan = small_plan.make()
  changed = attrs.evolve(plan, epsilon=plan.guarantee.epsilon(1e-6) / 2)
  assert changed.guarantee.epsilon(1e-6) <= changed.epsilon


def test_search_of_one_family_tells_its_losses():
  told = []
  small_plan.make(mechanism='dp-cgd').search(told.append)
  assert told and all(step.startswith('loss ') for step in told)


def test_plan_that_simulates_claims_what_its_own_noise_gives():
  small, large = small_plan.make(), small_plan.make(stands_for=20)
  # The noise is a half: that of 20 clients, for the sum of 10.
  assert large.z_stddev == pytest.approx(small.z_stddev / 2)
  assert large.guarantee.epsilon(1e-6) > small.guarantee.epsilon(1e-6)
  assert large.simulated.epsilon(1e-6) == small.guarantee.epsilon(1e-6)
  assert small.simulated is None
  assert 'stands for 20 clients a round' in str(large)


def test_worse_cohorts_cost_what_their_schemas_say():
  plan = small_plan.make()
  assert list(plan.what_if()) == ['min_sep 10', 'min_sep 6', '6 participations']
  ten = accounting.Guarantee(
    plan.strategy,
    tff_bandmf.MinSep(10),
    plan.guarantee.noise_multiplier
    * plan.guarantee.sensitivity.value
    / accounting.Guarantee(
      plan.strategy, tff_bandmf.MinSep(10), 1.0
    ).sensitivity.value,
  )
  assert plan.what_if()['min_sep 10'] == pytest.approx(ten.epsilon(1e-6))
  assert all(epsilon > 4 for epsilon in plan.what_if().values())


@pytest.mark.parametrize(
  'cohorts',
  [
    tff_bandmf.Single(),
    tff_bandmf.FixedEpoch(12),
    tff_bandmf.MinSep(12, 3),
    tff_bandmf.MinSep(1),
  ],
  ids=str,
)
def test_worse_cohorts_are_worse_whatever_the_schema(cohorts):
  plan = small_plan.make(cohorts=cohorts, mechanism='identity')
  for epsilon in plan.what_if().values():
    assert epsilon is None or epsilon >= 4 - 1e-6
  assert bool(plan.what_if()) == (cohorts != tff_bandmf.MinSep(1))


@pytest.mark.parametrize(
  'changes, message',
  [
    (dict(epsilon=None), 'epsilon=None: a claim is an epsilon at a delta'),
    (dict(delta=None), 'delta=None: a claim is an epsilon at a delta'),
    (
      dict(epsilon=None, delta=None),
      'epsilon=None: a claim is an epsilon at a delta',
    ),
    (dict(noise_multiplier=1.0), 'noise_multiplier=1.0: is given in place of'),
    (
      dict(noise_multiplier=1.0, delta=None),
      'noise_multiplier=1.0: is given in place of',
    ),
    (
      dict(noise_multiplier=-1.0, epsilon=None),
      'noise_multiplier=-1.0: must be at least 0',
    ),
    (dict(memory_copies=-1), 'memory_copies=-1: must be at least 0'),
    (dict(mechanism='bandet'), 'family=bandet: is not known'),
    (dict(epsilon=1000), 'epsilon=1000'),
    (dict(delta=0.5), 'delta=0.5'),
    (dict(rounds=0), 'rounds=0'),
    (dict(l2_norm_clip=0), 'l2_norm_clip=0'),
    (dict(largest_cohort=9), 'largest_cohort=9: must be at least'),
    (dict(stands_for=9), 'stands_for=9: must be at least'),
    (
      dict(cohorts=tff_bandmf.CyclicPoisson(population=500), stands_for=30),
      'stands_for=30: larger sampled cohorts amplify less',
    ),
    (dict(cohorts=tff_bandmf.MinSep(61)), 'min_sep=61: exceeds rounds=60'),
  ],
)
def test_values_that_do_not_go_together_are_refused(changes, message):
  with pytest.raises(ValueError, match=message):
    small_plan.make(**changes)


def test_cohorts_must_say_who_takes_part():
  with pytest.raises(TypeError, match='cohorts=12: must be a Cohorts'):
    small_plan.make(cohorts=12)


def test_strategy_of_other_rounds_is_refused():
  with pytest.raises(ValueError, match='is for 50 rounds, not for rounds=60'):
    _ = small_plan.make(mechanism=strategies.Identity(50)).strategy


def test_population_that_cannot_fill_the_rounds_is_told_before_them():
  plan = small_plan.make(
    rounds=8, clients_per_round=3, cohorts=tff_bandmf.MinSep(4)
  )
  plan.check_population(12)
  with pytest.raises(ValueError, match='clients=10: cannot fill 8 rounds of 3'):
    plan.check_population(10)


def test_numbers_are_printed_rounded_up():
  assert plan_lib.rounded_up(1.00001) == '1.001'
  assert plan_lib.rounded_up(0.5) == '0.5'
  assert float(plan_lib.rounded_up(123456.1)) >= 123456.1


@pytest.mark.slow
def test_importing_the_face_imports_no_tensorflow():
  program = (
    'import sys, tff_bandmf; tff_bandmf.Plan; tff_bandmf.MinSep; '
    "assert not {'tensorflow', 'tensorflow_federated'} & set(sys.modules)"
  )
  subprocess.run([sys.executable, '-c', program], check=True, timeout=120)


def test_unit_of_several_clients_gets_the_noise_of_all(tmp_path, monkeypatch):
  one, three = small_plan.make(), small_plan.make(clients_per_unit=3)
  assert three.z_stddev == pytest.approx(3 * one.z_stddev, rel=1e-3)
  assert three.guarantee.epsilon(three.delta) <= three.epsilon
  three.save(tmp_path / 'plan.json')
  loaded = tff_bandmf.Plan.load(tmp_path / 'plan.json')
  assert loaded.guarantee == three.guarantee
  assert loaded.to_dict()['clients_per_unit'] == 3
  assert 'a unit of privacy has at most 3 clients' in str(loaded)
  assert 'unit' not in str(one)
  # Of worse cohorts too.
  assert three.what_if() == pytest.approx(one.what_if(), rel=1e-2)
  families = ('identity', 'dp-cgd')
  monkeypatch.setattr(search_lib, 'compared', lambda *_: families)
  best = small_plan.make(clients_per_unit=3, mechanism='best')
  assert best.guarantee.clients_per_unit == 3
  assert best.rmse <= min(rmse for _, rmse in best.result.runners_up) * 1.01


def test_sweep_gives_what_each_plan_would():
  plan = small_plan.make()
  found = plan.sweep(clients_per_round=[50, 100], epsilon=[2, 4, 8])
  assert len(found.points) == 6
  for point in found.points:
    alone = small_plan.make(
      clients_per_round=point.clients_per_round,
      epsilon=point.epsilon,
      mechanism=plan.strategy,
    )
    assert point.z_stddev == alone.z_stddev
    assert point.noise_multiplier == alone.guarantee.noise_multiplier
    error = alone.rmse * alone.clip / point.clients_per_round
    assert point.error == pytest.approx(error)
    assert point.feasible is None
  moving = small_plan.make(
    l2_norm_clip=tff_bandmf.AdaptiveClip(plan.clip, fraction_weight=4.0)
  )
  (point,) = moving.sweep().points
  mean, _ = plan.strategy.errors()
  assert point.error == pytest.approx(
    point.z_stddev * np.sqrt(mean) / point.clients_per_round
  )
  text = str(found)
  assert text.count('\n') == 4 and '*' not in text
  assert 'epsilon 2' in text and f'{found.points[0].error:.3g}' in text
  assert json.loads(json.dumps(found.to_dict()))['delta'] == plan.delta
  pytest.importorskip('matplotlib')
  (axes,) = found.plot().axes
  lines = axes.get_lines()
  assert [len(line.get_xdata()) for line in lines] == [3, 3]
  assert lines[0].get_ydata()[0] == pytest.approx(found.points[0].error)


def test_sweep_marks_cohorts_that_cannot_be_filled():
  plan = small_plan.make()
  least = plan.cohorts.min_sep * plan.clients_per_round
  found = plan.sweep(
    clients_per_round=[plan.clients_per_round, 10 * plan.clients_per_round],
    population=least,
  )
  assert [point.feasible for point in found.points] == [True, False]
  assert f'{found.points[1].error:.3g}*' in str(found)
  assert found.points[0].epsilon == plan.epsilon


def test_sweep_needs_a_delta():
  plan = small_plan.make(epsilon=None, delta=None, noise_multiplier=1.0)
  with pytest.raises(ValueError, match='delta=None'):
    plan.sweep(epsilon=[1])
  plan = small_plan.make(epsilon=None, noise_multiplier=1.0)
  with pytest.raises(ValueError, match='epsilon=None'):
    plan.sweep(clients_per_round=[10])


def test_spent_is_at_least_that_of_a_run_so_short():
  coefficients = np.array([1.0, 0.7, 0.4])
  schema = participation.MinSep(3)
  plan = plan_lib.Plan(
    rounds=12,
    clients_per_round=5,
    cohorts=schema,
    noise_multiplier=1.0,
    delta=1e-6,
    l2_norm_clip=1.0,
    mechanism=strategies.BandedToeplitz(12, coefficients),
  )
  spent = [plan.spent(t) for t in range(13)]
  assert spent[0] == 0.0 and spent == sorted(spent)
  assert spent[3] < spent[4] and spent[12] == plan.guarantee.epsilon(1e-6)
  for t in range(3, 13):
    short = accounting.Guarantee(
      strategies.BandedToeplitz(t, coefficients), schema, 1.0
    )
    same = 1.0 * plan.guarantee.z_stddev_per_clip / short.z_stddev_per_clip
    assert attrs.evolve(short, noise_multiplier=same).epsilon(1e-6) <= spent[t]


def test_simulation_with_too_little_noise_claims_nothing():
  for epsilon, delta in ((8.0, 1e-6), (60.0, 1e-6)):
    plan = small_plan.make(epsilon=epsilon, delta=delta, stands_for=100_000)
    assert plan.to_dict()['epsilon'] is None
    assert 'epsilon' in str(plan)
