"""Tests of what all kinds of cohorts have in common."""

import dataclasses
import importlib
import json
import math
import pathlib
import re
import types

import attrs
import dp_accounting
import numpy as np
import pytest

import tff_bandmf
from tff_bandmf import accounting, participation, sensitivity, strategies
from tff_bandmf.accounting.kinds import known_kinds, sampled_cohorts
from tff_bandmf.accounting.methods import search

_STRATEGY = strategies.BandedToeplitz(12, [1.0, 0.5, 0.25])
_SAMPLED = [
  accounting.CyclicPoisson(0.2),
  accounting.CyclicPoisson.of_population(1000, 10, groups=4),
  accounting.BallsInBins(4, population=100),
  accounting.BMinSep(4, 0.3, adjacency='add-remove'),
]
_ENFORCED = [
  participation.Single(),
  participation.MinSep(4),
  participation.FixedEpoch(4, 2),
]
_SAMPLES = accounting.Samples(20_000, seed=1)


def _make(cohorts, noise_multiplier=1.0):
  return accounting.Guarantee(
    _STRATEGY, cohorts, noise_multiplier, samples=_SAMPLES
  )


def test_every_kind_is_in_the_examples():
  assert {each.name for each in _SAMPLED} == set(accounting.KINDS)


@pytest.mark.parametrize('cohorts', _SAMPLED + _ENFORCED)
def test_json_is_read_back(cohorts):
  record = json.loads(json.dumps(cohorts.to_dict()))
  assert accounting.from_dict(record) == cohorts
  guarantee = _make(cohorts, 2.0)
  claim = json.loads(json.dumps(guarantee.to_dict()))
  assert claim.items() >= record.items()
  assert claim['adjacency'] == cohorts.adjacency
  assert claim['z_stddev_per_clip'] == 2.0 * claim['sensitivity']


@pytest.mark.slow
@pytest.mark.parametrize('cohorts', _SAMPLED + _ENFORCED)
def test_claim_never_exceeds_the_worst_case(cohorts):
  """The schema that noise multipliers are relative to, without chance."""
  guarantee = _make(cohorts)
  rounds = _STRATEGY.rounds
  # A schema of one round is met ceil(n / groups) times.
  times = (
    guarantee.accountant.compositions if cohorts.name == 'cyclic-poisson' else 1
  )
  worst = accounting.gaussian_epsilon(1 / math.sqrt(times), 1e-3)
  assert 0 < guarantee.epsilon(1e-3) <= worst + 2e-3
  assert cohorts.schema.participations(rounds) >= 1
  assert guarantee.delta(0.5) >= guarantee.delta(1.0) > 0


@pytest.mark.slow
@pytest.mark.parametrize('cohorts', _SAMPLED + _ENFORCED)
def test_calibrated_noise_meets_what_was_asked(cohorts):
  found = accounting.calibrate(
    _STRATEGY, cohorts, epsilon=1.5, delta=1e-3, samples=_SAMPLES
  )
  assert 1.5 * (1 - 1e-2) <= found.epsilon(1e-3) <= 1.5
  assert found.claim(1e-3).total <= 1e-3 * (1 + 1e-12)
  # Sampled again, at the same noise, it is nearly the same.
  assert _make(cohorts, found.noise_multiplier).epsilon(1e-3) == pytest.approx(
    1.5, rel=0.03
  )


@pytest.mark.parametrize('cohorts', _SAMPLED)
def test_chance_gives_no_rho(cohorts):
  assert _make(cohorts).rho is None
  assert _make(cohorts, 0.0).epsilon(1e-3) == math.inf
  assert _make(cohorts, 0.0).dp_event() == dp_accounting.NonPrivateDpEvent()


@pytest.mark.slow
@pytest.mark.parametrize(
  'cohorts', [participation.MinSep(3), *_SAMPLED[1:]], ids=lambda x: x.name
)
def test_claim_without_its_noise_is_refused(cohorts):
  """A claim of a file that was edited, or of a run with more noise."""
  guarantee = _make(cohorts, 1.3)
  bound = guarantee.claim(1e-3)
  guarantee.confirm(bound, 1e-3)
  less = dataclasses.replace(bound, epsilon=0.9 * bound.epsilon)
  for other, claim, delta in (
    (guarantee, less, 1e-3),
    (guarantee, bound, 0.5e-3),
    (_make(cohorts, 1.2), bound, 1e-3),
  ):
    with pytest.raises(ValueError, match='epsilon=.*the noise gives'):
      other.confirm(claim, delta)


def test_event_of_a_mixture_is_refused_by_accountants():
  accountant = dp_accounting.rdp.RdpAccountant()
  with pytest.raises(dp_accounting.UnsupportedEventError):
    accountant.compose(_make(_SAMPLED[2]).dp_event())


@pytest.mark.parametrize('noise_multiplier', [-1, math.nan, math.inf])
@pytest.mark.parametrize('cohorts', _SAMPLED)
def test_noise_multiplier_out_of_range_is_refused(cohorts, noise_multiplier):
  with pytest.raises(ValueError, match='noise_multiplier='):
    _make(cohorts, noise_multiplier)


@pytest.mark.parametrize(
  'cohorts',
  [
    types.SimpleNamespace(schema=participation.MinSep(4)),
    'shuffled',
    'b-min-sep',
    None,
    accounting.BMinSep,
  ],
)
def test_other_randomness_is_refused(cohorts):
  with pytest.raises(TypeError, match='cohorts='):
    _make(cohorts)


@pytest.mark.parametrize('kind', accounting.KINDS.values())
def test_replace_one_is_refused(kind):
  fields = {'sampling_prob': 0.1, 'min_sep': 3, 'bins': 3}
  given = {name: fields[name] for name in kind.flags.values()}
  with pytest.raises(ValueError, match='adjacency=replace-one'):
    kind(**given, adjacency='replace-one')


@pytest.mark.parametrize(
  ('record', 'message'),
  [
    ({'amplification': 'shuffled'}, 'amplification=shuffled: .*known'),
    ({}, 'amplification=None: .*known'),
    (
      {'amplification': 'balls-in-bins', 'bins': 3, 'min_sep': 2},
      'min_sep=2: .*balls-in-bins',
    ),
  ],
)
def test_unknown_json_is_refused(record, message):
  with pytest.raises(ValueError, match=message):
    accounting.from_dict(record)


@pytest.mark.parametrize('name', ['secret-santa', 'b-min-sep'])
def test_kind_of_another_package_is_unknown(name):
  """It has no proof here, also if it takes the name of a kind with one."""
  kind = type('Kind', (sampled_cohorts.Sampled,), {'name': name})
  assert kind in sampled_cohorts.Sampled.__subclasses__()
  kinds = importlib.reload(known_kinds).KINDS
  assert kinds == accounting.KINDS
  assert list(kinds) == ['b-min-sep', 'balls-in-bins', 'cyclic-poisson']


def test_file_without_a_start_is_cold():
  """Runs from before there was a warm start have files without one."""
  cold = {
    'amplification': 'b-min-sep',
    'min_sep': 3,
    'sampling_prob': 0.25,
    'population': 9,
    'adjacency': 'zero-out',
  }
  warm = {**cold, 'start': 'warm'}
  read = accounting.from_dict
  assert read(cold).start == 'cold' != read(warm).start
  assert read(cold) == read({**cold, 'start': 'cold'}) != read(warm)
  # Files of old runs go on as they are.
  assert read(cold).to_dict() == cold
  assert read(warm).to_dict() == warm
  assert accounting.BMinSep(3, 0.25).start == 'warm'
  with pytest.raises(ValueError, match='start=hot: .*warm'):
    accounting.BMinSep(3, 0.25, start='hot')


def test_probability_follows_from_the_clients_a_round():
  cohorts = accounting.BMinSep(4, population=1000).for_cohort_size(100)
  assert cohorts.expected_cohort(50) == pytest.approx(100)
  assert cohorts.sampling_prob == pytest.approx(0.1 / 0.7)
  assert cohorts.for_cohort_size(7) == cohorts
  for wrong, message in (
    (accounting.BMinSep(4, population=400), 'clients_per_round=100: .*below'),
    (accounting.BMinSep(4), 'sampling_prob=None: .*needs'),
    (
      accounting.BMinSep(4, population=1000, start='cold'),
      'sampling_prob=None: .*warm',
    ),
  ):
    with pytest.raises(ValueError, match=message):
      wrong.for_cohort_size(100)


def test_kinds_are_told_apart_by_what_they_say():
  """No `isinstance` on a kind of cohorts outside their own modules."""
  package = pathlib.Path(tff_bandmf.__file__).parent
  kinds = '|'.join(
    ['Participation', 'Sampled']
    + [type(each).__name__ for each in _SAMPLED + _ENFORCED]
  )
  found = re.compile(rf'isinstance\([^()]*\b({kinds})\b')
  paths = [
    path
    for folder in (package, package.parent / 'simulations')
    for path in folder.rglob('*.py')
    if not {'accounting', 'participation'}
    & {*path.relative_to(package.parent).parts}
  ]
  assert len(paths) > 100
  offending = [str(path) for path in paths if found.search(path.read_text())]
  assert not offending


def test_log_claims_what_its_clients_did():
  """One client came back after 2 rounds of a run whose bands are 4."""
  strategy = strategies.BandedSqrt(12, 4)
  cohort = np.array([5])
  found = sensitivity.observed(
    lambda: [(t, cohort) for t in (0, 2, 9)], 3, strategy
  )
  matrix = strategy.matrix()
  worst = np.linalg.norm(matrix[:, [0, 2, 9]].sum(1))
  logged = accounting.Guarantee(strategy, accounting.Logged(found), 1.0)
  assert logged.sensitivity.value == pytest.approx(worst, rel=1e-12)
  assert logged.cohorts.schema == participation.MinSep(2, 3)
  planned = accounting.Guarantee(strategy, participation.MinSep(4, 3), 1.0)
  # The same noise is less of a noise multiplier for the log.
  same = accounting.Guarantee(
    strategy,
    accounting.Logged(found),
    planned.z_stddev_per_clip / logged.sensitivity.value,
  )
  assert same.epsilon(1e-6) > planned.epsilon(1e-6)
  # By hand: one Gaussian of this shift.
  assert same.epsilon(1e-6) >= accounting.gaussian_epsilon(
    planned.z_stddev_per_clip / worst, 1e-6
  )


def test_log_in_which_nobody_came_twice_is_single():
  strategy = strategies.SqrtToeplitz(6)
  found = sensitivity.observed(lambda: [(3, np.array([1, 2]))], 2, strategy)
  logged = accounting.Logged(found)
  assert logged.schema == participation.Single()
  assert logged.to_dict()['min_sep'] is None


def test_log_without_a_sensitivity_is_rounded_up():
  strategy = strategies.BandedSqrt(60, 6)
  rounds = np.array([0, 10, 20])
  found = sensitivity.of_clients([(rounds, rounds * 0)])
  assert found.sensitivity is None
  logged = accounting.Guarantee(strategy, accounting.Logged(found), 1.0)
  planned = accounting.Guarantee(strategy, participation.MinSep(10, 3), 1.0)
  assert planned.exact_noise < 1.0
  assert logged.exact_noise <= planned.exact_noise


def test_rounding_errors_raise_epsilon(monkeypatch):
  blt = strategies.Blt(2052, [0.3, 0.1], [0.9, 0.5])
  schema = participation.MinSep(342)
  planned = accounting.Guarantee(blt, schema, 2.0)
  assert planned.accountant.error >= 6 * blt.column_error(1) > 0
  monkeypatch.setattr(strategies.Blt, 'column_error', lambda self, k: 0.01 * k)
  other = accounting.Guarantee(blt, schema, 2.0)
  assert other.exact_noise == pytest.approx(2.0 / 1.06)
  assert other.epsilon(1e-8) > 1.05 * planned.epsilon(1e-8)
  assert other.rho >= 1.06**2 / 8 and other.dp_event().noise_multiplier < 1.9
  calibrated = accounting.calibrate(blt, schema, epsilon=2.0, delta=1e-8)
  assert 2.0 * (1 - 1e-6) <= calibrated.epsilon(1e-8) <= 2.0


_MOVED = strategies.BandedToeplitz(12, [1.0, 1 / 3])
_FEW_SAMPLES = accounting.Samples(20_000, 1e-6, seed=1)


def _moved(monkeypatch, error):
  monkeypatch.setattr(
    strategies.BandedToeplitz, 'column_error', lambda self, k: error
  )
  cohorts = accounting.BallsInBins(3)
  return accounting.Guarantee(_MOVED, cohorts, 1.0, samples=_FEW_SAMPLES)


@pytest.mark.slow
def test_moved_means_raise_an_amplified_epsilon(monkeypatch):
  exact = _moved(monkeypatch, 0.0)
  moved = _moved(monkeypatch, 1e-4)
  # 14 deviations of the log ratio, whose slope is the move.
  growth = 1e-4 * (14 + 1e-4 / 2)
  epsilon = exact.epsilon(1e-3)
  assert moved.epsilon(1e-3) >= epsilon + 0.99 * growth
  assert moved.delta(epsilon + growth) == pytest.approx(
    exact.delta(epsilon) * math.exp(growth), rel=1e-5
  )
  # Below the growth itself, the rest of it is delta.
  assert moved.delta(0.0) - exact.delta(0.0) > 0.99 * growth
  assert moved.claim(1e-3).total <= 1e-3
  moved.confirm(moved.claim(1e-3), 1e-3)


def test_calibrated_noise_has_its_own_growth(monkeypatch):
  guarantee = _moved(monkeypatch, 1e-4)

  def calibrate():
    return accounting.calibrate(
      guarantee.strategy,
      guarantee.cohorts,
      epsilon=2.0,
      delta=1e-3,
      samples=_FEW_SAMPLES,
    )

  calibrated = calibrate()
  bound = calibrated.claim(1e-3)
  assert bound.epsilon == 2.0 and bound.total <= 1e-3
  calibrated.confirm(bound, 1e-3)
  # Amplification may need far less noise than the growth was computed for.
  little = calibrated.noise_multiplier / 50
  targets = []

  def least(problem, *args):
    targets.append(problem(1.0)[1])
    return little, bound

  monkeypatch.setattr(search, 'least', least)
  calibrate()
  growth = calibrated.accountant._growth(little)
  assert len(targets) == 2 and targets[1] <= 2.0 - growth


@pytest.mark.parametrize('cohorts', _SAMPLED, ids=lambda each: each.name)
def test_sampled_units_of_several_are_refused(cohorts):
  guarantee = _make(cohorts)
  with pytest.raises(ValueError, match='clients_per_unit=2: .*proved'):
    attrs.evolve(guarantee, clients_per_unit=2)


def test_log_of_units_of_several_counts_each_client():
  strategy = strategies.BandedSqrt(12, 4)
  rounds = np.array([0, 6])
  found = sensitivity.of_clients([(rounds, rounds * 0)], strategy)
  one, three = (
    accounting.Guarantee(
      strategy, participation.MinSep(4), 1.0, clients_per_unit=count
    ).for_observed(found)
    for count in (1, 3)
  )
  assert three.sensitivity.value == pytest.approx(3 * one.sensitivity.value)
  assert three.noise_multiplier == pytest.approx(one.noise_multiplier)
