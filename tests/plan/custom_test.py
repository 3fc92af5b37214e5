"""A C of one's own in plans, rankings and files, as any other C."""

import numpy as np
import pytest

import tff_bandmf
from tff_bandmf import (
  choosing,
  participation,
  plan,
  sensitivity,
  strategies,
  verify,
  workloads,
)
from tff_bandmf.cli import main

_N = 24
_C = 0.6 ** np.arange(4)


def _strategies():
  columns = np.tile(_C, (_N, 1)) * np.linspace(1, 2, _N)[:, None]
  made = strategies.custom(columns=columns)
  return [
    strategies.custom(_N, coefficients=_C),
    strategies.custom(_N, inverse_coefficients=[1.0, -0.6]),
    made,
    strategies.custom(matrix=made.matrix()),
  ]


def _plan(mechanism, **more):
  return tff_bandmf.Plan(
    rounds=_N,
    clients_per_round=10,
    cohorts=participation.MinSep(6),
    epsilon=4.0,
    delta=1e-6,
    l2_norm_clip=1.0,
    mechanism=mechanism,
    **more,
  )


@pytest.mark.parametrize('strategy', _strategies(), ids=range(4))
@pytest.mark.parametrize('suffix', ['.json', '.npz'])
def test_file_of_a_custom_strategy_is_planned_and_loaded(
  tmp_path, strategy, suffix
):
  path = tmp_path / f'mine{suffix}'
  strategies.save(strategy, path)
  made = _plan(path)
  assert made.strategy.digest() == strategy.digest()
  made.save(tmp_path / 'plan.json')
  loaded = plan.Plan.load(tmp_path / 'plan.json')
  assert loaded.strategy.digest() == strategy.digest()
  assert loaded.z_stddev == made.z_stddev
  # Only the numbers count: the sensitivity is computed from them.
  same = strategies.Dense(strategy.matrix())
  bound = sensitivity.sensitivity(same, participation.MinSep(6)).value
  assert made.guarantee.sensitivity.value <= bound * (1 + 1e-12)


@pytest.mark.parametrize('strategy', _strategies(), ids=range(4))
def test_verifier_reads_the_numbers(strategy):
  document = strategies.to_document(strategy)
  np.testing.assert_allclose(verify.matrix(document), strategy.matrix())


def test_ranking_takes_strategies_and_files(tmp_path):
  path = tmp_path / 'mine.npz'
  strategies.save(_strategies()[0], path)
  ranking = choosing.choose(
    _N,
    participation.MinSep(6),
    choosing.Target(4.0, 1e-6),
    families=['identity', path, _strategies()[1]],
  )
  families = [each.strategy.family for each in ranking.choices]
  assert sorted(families) == ['custom', 'custom', 'identity']
  other = choosing.choose(
    _N + 1,
    participation.MinSep(6),
    choosing.Target(4.0, 1e-6),
    families=['identity', str(path)],
  )
  assert 'rounds=25' in other.left_out[str(path)]


def test_ranking_compares_no_custom_family_by_default():
  assert 'custom' in strategies.FAMILIES
  assert 'custom' not in strategies.SEARCHED


def test_commands_plan_and_rank_a_file(tmp_path, capsys, monkeypatch):
  monkeypatch.chdir(tmp_path)
  strategies.save(_strategies()[0], 'mine.npz')
  shared = f'--rounds {_N} --min-sep 6 --epsilon 4 --delta 1e-6 --json'
  status = main.main(
    f'plan {shared} --clients-per-round 10 --l2-norm-clip 1 '
    '--mechanism mine.npz --out plan.json'.split()
  )
  out, _ = capsys.readouterr()
  assert status == 0 and '"custom"' in out
  assert main.main(f'choose {shared} --families mine.npz,lti'.split()) == 0
  assert '"custom"' in capsys.readouterr().out
  name = '--family custom --rounds 9 --min-sep 3'
  assert main.main(f'optimize {name}'.split()) == 2
  assert 'family=custom' in capsys.readouterr().err


@pytest.mark.parametrize('objective', ['last', [0.0] * (_N - 1) + [2.0]])
def test_plan_keeps_its_objective_and_its_workload(tmp_path, objective):
  workload = workloads.Workload(
    0.5, weight_decay=0.1, learning_rates=np.linspace(1, 0, _N)
  )
  made = _plan('lti', objective=objective, workload=workload)
  made.save(tmp_path / 'plan.json')
  loaded = plan.Plan.load(tmp_path / 'plan.json')
  assert loaded.workload == workload
  assert loaded.objective == made.objective
  assert plan.Plan.load(tmp_path / 'plan.json').strategy.digest() == (
    made.strategy.digest()
  )


@pytest.mark.parametrize(
  'wrong, match',
  [
    ({'objective': 'least'}, 'objective=least'),
    ({'objective': [1.0, 2.0]}, 'objective=2 rounds'),
    ({'objective': [-1.0] * _N}, r'objective=.*: must be a list'),
    ({'objective': lambda e: e}, 'objective=a function'),
    ({'workload': workloads.Workload(matrix=np.tri(3))}, 'matrix=3 rounds'),
    (
      {'workload': workloads.Workload(learning_rates=[1.0])},
      'learning_rates=1 rounds',
    ),
  ],
)
def test_wrong_objective_or_workload_gets_one_line(wrong, match):
  with pytest.raises((TypeError, ValueError), match=match) as error:
    _plan('lti', **wrong)
  assert '\n' not in str(error.value)


@pytest.mark.slow
@pytest.mark.parametrize(
  'wrong, match',
  [
    ({'matrix': np.ones((2, 2))}, 'lower-triangular'),
    ({'matrix': np.zeros((2, 2))}, 'not 0'),
    ({'matrix': np.eye(5000)}, '4096'),
    ({'matrix': np.eye(2), 'momentum': 0.5}, 'whole workload'),
    ({'matrix': [['a']]}, 'matrix'),
    ({'learning_rates': [0.0]}, 'learning_rates'),
    ({'learning_rates': [1.0], 'warmup': 0.5}, 'learning_rates'),
    ({'learning_rates': [np.nan]}, 'learning_rates'),
    ({'learning_rates': [2.0], 'weight_decay': 0.6}, 'weight_decay=0.6'),
    ({'weight_decay': -1}, 'weight_decay=-1'),
  ],
)
def test_wrong_workload_gets_one_line(wrong, match):
  with pytest.raises((TypeError, ValueError), match=match) as error:
    workloads.Workload(**wrong)
  assert '\n' not in str(error.value)


@pytest.mark.parametrize(
  'wrong, match',
  [
    ({}, 'exactly one'),
    ({'matrix': [[1.0]], 'columns': [[1.0]]}, 'exactly one'),
    ({'coefficients': [1.0]}, 'rounds'),
    ({'rounds': 3, 'coefficients': [-1.0]}, 'diagonal'),
    ({'columns': [1.0]}, 'columns.shape'),
    ({'matrix': np.ones((2, 2))}, 'lower-triangular'),
  ],
)
def test_wrong_numbers_get_one_line(wrong, match):
  with pytest.raises((TypeError, ValueError), match=match) as error:
    strategies.custom(**wrong)
  assert '\n' not in str(error.value)
