"""A boolean, a text or an array is never taken for a number, anywhere."""

import numpy as np
import pytest

import tff_bandmf
from tff_bandmf import (
  _checks,
  accounting,
  choosing,
  cohorts,
  noise,
  optimize,
  query,
  run,
  sensitivity,
  strategies,
  workloads,
)
from tff_bandmf import ledger as ledger_lib
from tff_bandmf.noise import placements

_NO_NUMBERS = (
  True,
  np.True_,
  np.array(True),
  '1',
  np.str_('1'),
  np.complex128(1),
  np.array([1]),
  np.timedelta64(1),
)
_ROUNDS = 4
_PLAN = {
  'rounds': _ROUNDS,
  'clients_per_round': 2,
  'cohorts': tff_bandmf.MinSep(2),
  'delta': 1e-5,
  'l2_norm_clip': 1.0,
  'noise_multiplier': 0.5,
  'mechanism': 'banded-sqrt',
}


_GUARANTEE = accounting.Guarantee(
  strategies.Identity(_ROUNDS), tff_bandmf.MinSep(2), 1.0
)


def _plan(**changes):
  return tff_bandmf.Plan(**{**_PLAN, **changes})


_NUMBERS = {
  **{
    f'Plan.{name}': lambda value, name=name: _plan(**{name: value})
    for name in (
      'rounds clients_per_round delta l2_norm_clip noise_multiplier '
      'memory_copies clients_per_unit largest_cohort dimension stands_for '
      'zeroing_norm'
    ).split()
  },
  'MinSep': tff_bandmf.MinSep,
  'Budget': lambda value: tff_bandmf.Budget(4, value),
  'BallsInBins': lambda value: tff_bandmf.BallsInBins(
    bins=value, population=100
  ),
  'Identity': strategies.Identity,
  'Workload': lambda value: workloads.Workload(momentum=value),
  'AdaptiveClip': lambda value: tff_bandmf.AdaptiveClip(initial=value),
  'CohortSampler': lambda value: cohorts.CohortSampler(
    8, 2, 4, tff_bandmf.MinSep(1), value
  ),
  'Key': noise.Key.from_seed,
  'Tape': lambda value: placements.Tape(max_memory_bytes=value),
  'NoisyMean': lambda value: query.NoisyMean(
    _GUARANTEE,
    np.zeros(2),
    (1.0, None, 2.0),
    value,
    largest_cohort=2,
    placement=placements.Tape(),
  ),
}


_C, _SCHEMA = strategies.BandedSqrt(_ROUNDS, 2), tff_bandmf.MinSep(2)
_TARGET = choosing.Target(1.0, 1e-5)
_OBJECTS = {
  'Plan.workload': lambda value: _plan(workload=value),
  'Plan.cohorts': lambda value: _plan(cohorts=value),
  'sensitivity.strategy': lambda value: sensitivity.sensitivity(value, _SCHEMA),
  'sensitivity.schema': lambda value: sensitivity.sensitivity(_C, value),
  'Guarantee': lambda value: accounting.Guarantee(value, _SCHEMA, 1.0),
  'Guarantee.budget': lambda value: accounting.Guarantee(
    value, tff_bandmf.Budget(2, 1), 1.0
  ),
  'calibrate': lambda value: accounting.calibrate(
    value, _SCHEMA, epsilon=1.0, delta=1e-5
  ),
  'compose': lambda value: accounting.compose([value]),
  'optimize': lambda value: optimize.optimize('dp-cgd', _ROUNDS, value),
  'Problem.workload': lambda value: optimize.Problem(_ROUNDS, _SCHEMA, value),
  'choose.cohorts': lambda value: choosing.choose(_ROUNDS, value, _TARGET),
  'NoisyMean': lambda value: query.NoisyMean(
    value,
    np.zeros(2),
    (1.0, None, 2.0),
    2,
    largest_cohort=2,
    placement=placements.Tape(),
  ),
  'choose.target': lambda value: choosing.choose(_ROUNDS, _SCHEMA, value),
}


@pytest.mark.parametrize('value', _NO_NUMBERS, ids=repr)
@pytest.mark.parametrize('name', _NUMBERS)
def test_no_argument_takes_what_is_no_number(name, value):
  with pytest.raises(TypeError, match='^[a-z0-9_]+=.*; ') as caught:
    _NUMBERS[name](value)
  assert '\n' not in str(caught.value)


@pytest.mark.parametrize('value', [None, 'x', 3, (), {}, _checks], ids=repr)
@pytest.mark.parametrize('name', _OBJECTS)
def test_no_argument_takes_an_object_of_another_type(name, value):
  with pytest.raises(TypeError, match='^[a-z_]+=.*: must be a .*; ') as caught:
    _OBJECTS[name](value)
  assert '\n' not in str(caught.value)


@pytest.mark.parametrize(
  'wrong, match',
  [
    ({'plan': 'plan.json'}, 'plan=plan.json: must be a Plan'),
    ({'options': ['loss']}, 'options=.*: must be a RunOptions'),
    ({'after': 'runs/first'}, 'after=runs/first: must be a list'),
    ({'ledger_head': 5}, 'ledger_head=5: is not a head'),
  ],
)
def test_run_takes_no_object_of_another_type(tmp_path, wrong, match):
  with pytest.raises((TypeError, ValueError), match=match):
    run.Run(tmp_path, **{'plan': _plan(), **wrong})


def test_rounds_that_no_ledger_has_are_refused():
  with pytest.raises(ValueError, match='rounds=10{30}: must not exceed'):
    _plan(rounds=10**30)


def test_counts_may_be_numbers_of_numpy():
  rounds, copies = np.int64(_ROUNDS), np.int64(3)
  best = optimize.optimize('dp-cgd', rounds, _SCHEMA, memory_copies=copies)
  assert best.strategy.rounds == _ROUNDS
  ranking = choosing.choose(
    rounds, _SCHEMA, _TARGET, memory_copies=copies, families=['banded-sqrt']
  )
  assert ranking.choices[0].strategy.rounds == _ROUNDS


@pytest.mark.parametrize('value', [(), []], ids=repr)
def test_clip_has_a_norm(value):
  for clip in value, tff_bandmf.AdaptiveClip:
    with pytest.raises(TypeError, match='must be a number'):
      _plan(l2_norm_clip=clip(value) if callable(clip) else clip)


@pytest.mark.slow
@pytest.mark.parametrize('value', _NO_NUMBERS, ids=repr)
def test_no_run_takes_what_is_no_number(tmp_path, value):
  plan = _plan(noise_multiplier=0.0, delta=None)
  with run.Run(tmp_path, plan) as mine:
    for arguments in {'clients': value}, {'clients': 8, 'rounds': value}:
      if arguments == {'clients': [1]}:
        continue  # A population of one client.
      with pytest.raises(TypeError, match='^(clients|rounds|client)='):
        next(mine.rounds(**arguments))
    # A result may be an array of one number; its rounds are not done.
    wrong = 'record=' if isinstance(value, np.ndarray) else '^record=accuracy='
    with pytest.raises(ValueError, match=wrong):
      mine.record(accuracy=value)
    with pytest.raises(ValueError, match='population'):
      mine.note(population=value)
  with ledger_lib.Ledger(tmp_path / 'other.sqlite') as ledger:
    for call in ledger.attempts, ledger.fail_round, ledger.abandon_round:
      with pytest.raises(TypeError, match='^round='):
        call(value)


@pytest.mark.parametrize('value', [np.array(3.0), np.float64(3), 3.0], ids=repr)
def test_count_takes_no_float(value):
  with pytest.raises(TypeError, match='^n=3.0: must be an integer; '):
    _checks.count('n', value, '')


@pytest.mark.parametrize('value', [True, np.True_, '1', 1j], ids=repr)
def test_no_coefficient_is_what_is_no_number(value):
  with pytest.raises(TypeError, match=r'\.dtype=.*must be real numbers'):
    strategies.BandedToeplitz(3, [1.0, value])


def test_arrays_of_masks_or_ragged_rows_are_refused_by_name():
  masked = np.ma.masked_array([1.0, 0.5], [False, True])
  with pytest.raises(TypeError, match=r'^coefficients\.dtype='):
    _checks.real_array('coefficients', masked)
  with pytest.raises(ValueError, match='^rows=list: must have rows of one'):
    _checks.real_array('rows', [[1.0], [1.0, 0.5]])


@pytest.mark.parametrize(
  'value', [np.int8(3), np.array(3), 3, np.uint64(3)], ids=repr
)
def test_numbers_of_every_kind_are_taken(value):
  assert _checks.count('n', value, '') == 3
  assert _checks.number('x', value, '') == _checks.number('x', 3.0, '')
