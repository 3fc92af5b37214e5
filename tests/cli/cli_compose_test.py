"""Tests of `bandmf compose`."""

import math

import pytest

import tff_bandmf
from tff_bandmf import accounting, participation


@pytest.fixture
def plans(tmp_path):
  paths = []
  for epsilon in (1.0, 2.0):
    plan = tff_bandmf.Plan(
      rounds=20,
      clients_per_round=2,
      cohorts=participation.MinSep(5),
      epsilon=epsilon,
      delta=1e-6,
      l2_norm_clip=0.5,
      mechanism='identity',
    )
    paths.append(tmp_path / f'plan_{epsilon}.json')
    plan.save(paths[-1])
  return paths


def test_plans_compose(run_json, run, plans):
  found = run_json('compose', *plans, '--delta', '1e-6')
  assert found['composition'] == 'exact'
  assert found['adjacency'] == 'zero-out'
  mu = math.hypot(*(1 / each['noise_multiplier'] for each in found['runs']))
  exact = accounting.gaussian_epsilon(1 / mu, 1e-6)
  assert exact < found['epsilon'] < exact + 5e-3
  assert 2 < found['epsilon'] < 3
  status, out, error = run('compose', *plans, '--delta', '1e-6')
  assert (status, error) == (0, '')
  assert str(plans[0]) in out and 'composition' in out


@pytest.mark.parametrize(
  'arguments, message',
  [
    (['nowhere', '--delta', '1e-6'], 'run=nowhere: has no run.json'),
    (['--delta', '1e-6'], 'runs=None: bandmf compose needs it'),
  ],
)
def test_bad_input_is_one_line(run, arguments, message):
  status, out, error = run('compose', *arguments)
  assert (status, out, error.count('\n')) == (2, '', 1)
  assert message in error


def test_releases_of_other_programs_are_composed(run_json, run, plans):
  flags = ['--delta', '1e-6', '--release', 'counts: noise_multiplier = 3']
  alone = run_json('compose', *plans, '--delta', '1e-6')
  together = run_json('compose', *plans, *flags)
  assert together['composition'] == alone['composition']
  assert together['rho'] == pytest.approx(alone['rho'] + 1 / 18)
  assert together['runs'][-1]['run'] == 'counts'
  pair = run_json(
    'compose', *plans, *flags, '--release', 'histogram:epsilon=0.1,delta=1e-9'
  )
  assert pair['epsilon'] > together['epsilon'] and pair['rho'] is None
  for wrong in (
    'counts',
    'x:epsilon=a',
    'x:sigma=3',
    'x:rho=1,rho=2',
    ':rho=1',
  ):
    status, _, error = run('compose', *plans, *flags[:2], '--release', wrong)
    assert status == 2 and f'release={wrong}' in error
