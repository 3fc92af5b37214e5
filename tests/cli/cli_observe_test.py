"""Tests of `bandmf observe`."""

import numpy as np
import pytest

import tff_bandmf
from tff_bandmf import participation, sensitivity, strategies

pytest.importorskip('pyarrow')

_STRATEGY = strategies.BandedSqrt(20, 4)


@pytest.fixture
def plan(tmp_path):
  plan = tff_bandmf.Plan(
    rounds=20,
    clients_per_round=2,
    cohorts=participation.MinSep(5),
    epsilon=4.0,
    delta=1e-6,
    l2_norm_clip=0.5,
    mechanism=_STRATEGY,
  )
  plan.save(tmp_path / 'plan.json')
  return tmp_path / 'plan.json'


@pytest.fixture
def log(tmp_path):
  def write(*rows):
    path = tmp_path / 'log.csv'
    lines = [f'{t},{client}' for t, client in rows]
    path.write_text('\n'.join(['round,client', *lines]) + '\n')
    return path

  return write


def test_log_that_keeps_the_plan_shows_at_most_its_epsilon(run_json, plan, log):
  record = run_json(
    'observe', log((0, 'a'), (0, 'b'), (5, 'a'), (12, 'b')), plan
  )
  assert record['keeps_min_sep'] is True
  assert record['epsilon'] < record['planned_epsilon'] <= 4
  assert (record['clients'], record['min_sep']) == (2, 5)
  assert record['histogram'] == {'2': 2}


def test_log_that_breaks_the_plan_shows_more(run_json, plan, log):
  rows = [(t, 'a') for t in range(20)]
  record = run_json('observe', log(*rows), plan)
  assert record['keeps_min_sep'] is False
  assert record['epsilon'] > 4
  matrix = _STRATEGY.matrix()
  assert record['sensitivity'] == pytest.approx(np.linalg.norm(matrix.sum(1)))


def test_indicator_is_a_coordinate_of_the_claim(run_json, tmp_path, log):
  plan = tff_bandmf.Plan(
    rounds=20,
    clients_per_round=2,
    cohorts=participation.MinSep(5),
    epsilon=4.0,
    delta=1e-6,
    l2_norm_clip=tff_bandmf.AdaptiveClip(0.5),
    mechanism=_STRATEGY,
    dimension=1_000_000,
  )
  plan.save(tmp_path / 'plan.json')
  found = sensitivity.of_clients(
    [(np.array([0, 3]), np.array([5, 7]))], _STRATEGY
  )
  expected = plan.guarantee.seen(found).epsilon(1e-6)
  for flags in ([], ['--dimension', '1000000']):
    shown = run_json(
      'observe', log((0, 'b'), (3, 'a')), tmp_path / 'plan.json', *flags
    )
    assert shown['epsilon'] == expected


def test_strategy_alone_shows_a_sensitivity(run_json, run, tmp_path, log):
  np.save(tmp_path / 'c.npy', _STRATEGY.matrix())
  shown = run_json('observe', log((0, 'b'), (3, 'a')), tmp_path / 'c.npy')
  assert shown['epsilon'] is None and shown['max_participations'] == 1
  flags = ['--z-stddev', '2', '--clip', '0.5', '--delta', '1e-6']
  shown = run_json(
    'observe', log((0, 'b'), (3, 'a')), tmp_path / 'c.npy', *flags
  )
  assert shown['noise_multiplier'] == pytest.approx(4 / shown['sensitivity'])
  assert shown['epsilon'] > 0


@pytest.mark.parametrize(
  'rows, flags, message',
  [
    ([(0, 'b'), (20, 'a')], [], 'round=20: is not among the 20 rounds'),
    ([(0, 'a'), (0, 'a')], [], 'is twice in a round'),
    ([], [], 'shows no participation'),
    ([(0, 'a')], ['--z-stddev', '1'], 'z_stddev=1.0: the plan gives it'),
  ],
)
def test_bad_input_is_one_line(run, plan, log, rows, flags, message):
  status, out, error = run('observe', log(*rows), plan, *flags)
  assert (status, out, error.count('\n')) == (2, '', 1)
  assert message in error
