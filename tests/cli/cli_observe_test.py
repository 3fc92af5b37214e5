"""Tests of `bandmf observe`."""

import json

import numpy as np
import pytest

import tff_bandmf
from tff_bandmf import errors, participation, strategies

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


@pytest.fixture(scope='module')
def largest_plan(tmp_path_factory):
  """A plan of epsilon 8.00 for the client in rounds 0, 20, 40, 60, 80."""
  path = tmp_path_factory.mktemp('plans') / 'plan.json'
  tff_bandmf.Plan(
    rounds=100,
    clients_per_round=50,
    cohorts=participation.MinSep(20),
    epsilon=8.0,
    delta=1e-6,
    l2_norm_clip=1.0,
    mechanism=tff_bandmf.Mechanism('banded-sqrt', bands=20),
  ).save(path)
  return path


_FIVE = range(0, 100, 20)


def test_client_of_all_its_rounds_has_the_planned_epsilon(
  run_json, largest_plan, log
):
  shown = run_json('observe', log(*((t, '7') for t in _FIVE)), largest_plan)
  assert shown['epsilon'] == pytest.approx(8.0, rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize('other', ['7.0', '07', '\uff17', "'7'"])
@pytest.mark.parametrize('command', ['observe', 'report'])
def test_names_alike_are_a_warning_with_both(
  run, largest_plan, log, tmp_path, command, other
):
  """They count as two clients, with an epsilon of 5.94."""
  path = log(*((t, '7' if t < 60 else other) for t in _FIVE))
  files = [path, largest_plan]
  if command == 'report':
    files = ['--plan', largest_plan, '--log', path, '--out', tmp_path]
  status, out, error = run(command, *files)
  assert status == 0 and error.count('\n') == 1
  assert error.startswith('warning: client=')
  assert "'7'" in error and errors.invalid(repr(other))[:-1] in error
  if command == 'report':
    content = json.loads((tmp_path / 'report.json').read_text())
    (sentence,) = content['not_covered']
    assert 'differ from others only in case' in sentence
    # Nobody publishes the name of a client.
    assert other not in (tmp_path / 'report.md').read_text().split()


def test_columns_are_named_by_options(run_json, run, largest_plan, log):
  path = log(*((t, '7') for t in _FIVE))
  path.write_text(path.read_text().replace('round,client', 'step,user'))
  flags = ['--round-column', 'step', '--client-column', 'user']
  shown = run_json('observe', path, largest_plan, *flags)
  assert shown['max_participations'] == 5
  out = ['--out', path.parent]
  report = ['report', '--plan', largest_plan, '--log', path]
  assert run(*report, *flags, *out)[0] == 0
  status, _, error = run(*report, *out)
  assert status == 2 and '--round-column' in error


@pytest.mark.parametrize('command', ['observe', 'report', 'evaluate'])
@pytest.mark.parametrize(
  'damage, found',
  [
    (lambda text: b'\xef\xbb\xbf' + text, 'begins with a byte order mark'),
    (lambda text: text.decode().encode('utf-16'), 'order mark of UTF-16'),
    (lambda text: text[:-9], 'in line'),
  ],
)
def test_damaged_plan_is_named(
  run, largest_plan, log, tmp_path, command, damage, found
):
  path = tmp_path / 'plan.json'
  path.write_bytes(damage(largest_plan.read_bytes()))
  flags = {
    'observe': [log((0, 'a')), path],
    'report': ['--plan', path, '--out', tmp_path],
    'evaluate': [path],
  }
  status, out, error = run(command, *flags[command])
  assert (status, out, error.count('\n')) == (2, '', 1)
  assert str(path) in error and found in error
