"""Tests of `bandmf` on every family: optimize, choose, sampled, reproduce."""

import json
import math
import os

import families
import pytest

from tff_bandmf import reproduction, strategies
from tff_bandmf.optimize import solver

pytestmark = pytest.mark.slow

_MINIMIZE = solver.minimize


@pytest.fixture(autouse=True)
def _in_own_folder(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)


def _stopping_after(evaluations):
  """Returns `solver.minimize` that is interrupted at that evaluation."""

  def minimize(function, *args, **kwargs):
    calls = 0

    def counted(x):
      nonlocal calls
      calls += 1
      if calls > evaluations:
        raise KeyboardInterrupt
      return function(x)

    return _MINIMIZE(counted, *args, **kwargs)

  return minimize


@pytest.mark.parametrize('family', ['banded-toeplitz', 'dp-cgd'])
def test_search_that_is_interrupted_gives_the_best_so_far(
  run, monkeypatch, family
):
  if family == 'dp-cgd':
    errors, calls = strategies.DpCgd.errors, []

    def interrupted(*args):
      calls.append(args)
      if len(calls) == 9:
        raise KeyboardInterrupt
      return errors(*args)

    monkeypatch.setattr(strategies.DpCgd, 'errors', interrupted)
  else:
    monkeypatch.setattr(solver, 'minimize', _stopping_after(3))
  status, out, error = run(
    *f'optimize --family {family} --rounds 100 --min-sep 9'.split(),
    *'--out cut.json --json'.split(),
  )
  assert status == 1
  found = json.loads(out)
  assert found['converged'] is False
  identity = strategies.Identity(100).errors()[0] * found['participations']
  assert found['loss'] < identity
  assert json.load(open('cut.json'))['optimized']['converged'] is False
  assert error.startswith('converged=False: ') and error.count('\n') == 1
  assert 'cut.json is written' in error


@pytest.mark.parametrize('place', ['search', 'save', 'errors'])
def test_interrupt_is_one_line_and_leaves_nothing(
  run, monkeypatch, tmp_path, place
):
  def interrupt(*_, **__):
    raise KeyboardInterrupt

  if place == 'search':  # Before there is a best.
    monkeypatch.setattr(solver, 'minimize', _stopping_after(0))
  elif place == 'save':
    monkeypatch.setattr(os, 'fsync', interrupt)
  else:
    monkeypatch.setattr(strategies.BandedToeplitz, 'errors', interrupt)
  status, out, error = run(
    *'optimize --family banded-toeplitz --rounds 9 --bands 2'.split(),
    *'--participation single --out x.json'.split(),
  )
  assert (status, out) == (130, '')
  assert error.count('\n') == 1 and error.startswith('interrupted')
  assert not list(tmp_path.iterdir())


_BUILT = {
  name: example.flags
  for name, example in families.EXAMPLES.items()
  if example.flags
  or not (
    strategies.FAMILIES[name].optimizer or strategies.FAMILIES[name].forms
  )
}


@pytest.mark.parametrize(('family', 'flags'), _BUILT.items())
def test_family_is_built_as_given_and_evaluates_the_same(
  run_json, family, flags
):
  shared = '--min-sep 8 --workload momentum --momentum 0.9 --cooldown 0.25'
  built = run_json(
    *f'optimize --family {family} --rounds 24 {flags} {shared}'.split(),
    *('--out', 'x.json'),
  )
  assert (built['family'], built['rounds']) == (family, 24)
  if '--bands' in flags and family != 'stamped':
    assert built['bands'] == 4
  evaluated = run_json('evaluate', 'x.json', *shared.split())
  for key in set(evaluated) - {'seconds'}:
    assert evaluated[key] == built[key]
  assert built['loss'] == pytest.approx(built['rmse'] ** 2)


@pytest.mark.parametrize(
  ('family', 'parameter'),
  [
    (name, parameter.name)
    for name, family in strategies.FAMILIES.items()
    for parameter in family.parameters
    if parameter.sweep
  ],
)
def test_parameter_that_is_not_given_is_swept(run_json, family, parameter):
  bands = '--bands 4' if strategies.FAMILIES[family].takes('bands') else ''
  command = f'optimize --family {family} --rounds 60 --min-sep 8 {bands}'
  swept = run_json(*command.split())
  value = swept['parameters'][parameter]
  for other in (0.9 * value, 1.05 * value):
    given = run_json(*command.split(), f'--{parameter}', min(other, 1.0))
    assert given['loss'] >= swept['loss'] * (1 - 1e-9)


def test_bands_that_are_not_given_are_swept(run_json):
  command = 'optimize --family banded-sqrt --rounds 60 --min-sep 8'.split()
  swept = run_json(*command)
  for bands in (1, 2, 4, 8, 16):
    assert run_json(*command, '--bands', bands)['loss'] >= swept['loss']


@pytest.mark.parametrize(
  'family',
  [name for name, each in strategies.FAMILIES.items() if each.optimizer],
)
def test_optimised_family_is_written_and_read_again(run_json, family):
  command = f'optimize --family {family} --rounds 12 --min-sep 4 --out x.json'
  if strategies.FAMILIES[family].parameter('b0'):
    command += ' --b0 3'
  found = run_json(*command.split())
  assert found['converged'] is True
  evaluated = run_json('evaluate', 'x.json', '--min-sep', 4)
  for key in set(evaluated) - {'seconds'}:
    assert evaluated[key] == found[key]


@pytest.mark.parametrize('calls', [3, 15, 30])
@pytest.mark.parametrize('family', ['banded-sqrt', 'banded-fractional'])
def test_interrupt_between_bands_ends_the_search(
  run, monkeypatch, family, calls
):
  kind = strategies.FAMILIES[family].kind
  errors, count = kind.errors, 0

  def interrupted(*args):
    nonlocal count
    count += 1
    if count == calls:
      raise KeyboardInterrupt
    return errors(*args)

  monkeypatch.setattr(kind, 'errors', interrupted)
  status, out, _ = run(
    *f'optimize --family {family} --rounds 4096 --min-sep 512 --json'.split()
  )
  if count < calls:  # Nothing was left to interrupt.
    assert status == 0
  else:
    assert (status, json.loads(out)['converged']) == (1, False)
    assert count <= calls + 2  # The best is described once more.


def test_search_for_more_buffers_that_is_interrupted_is_not_converged(
  run, monkeypatch
):
  calls = 0

  def minimize(function, *args, **kwargs):
    def counted(x):
      nonlocal calls
      calls += 1
      if calls == 120:
        raise KeyboardInterrupt
      return function(x)

    return _MINIMIZE(counted, *args, **kwargs)

  monkeypatch.setattr(solver, 'minimize', minimize)
  status, out, _ = run(
    *'optimize --family blt --rounds 200 --min-sep 50 --json'.split()
  )
  assert calls >= 120
  assert (status, json.loads(out)['converged']) == (1, False)


def test_choose_prints_what_the_library_ranks(run, run_json):
  command = (
    'choose --rounds 96 --min-sep 24 --max-participations 3 --epsilon 2 '
    '--delta 1e-6 --memory-copies 4 --families identity,dp-cgd,banded-sqrt,lti'
  ).split()
  found = run_json(*command)
  families = [choice['family'] for choice in found['choices']]
  assert sorted(families) == ['banded-sqrt', 'dp-cgd', 'identity']
  assert list(found['left_out']) == ['lti']
  for choice in found['choices']:
    assert choice['memory_copies'] <= 4
    assert choice['epsilon'] == 2 and choice['z_stddev'] > 0
  rmse = [choice['rmse'] for choice in found['choices']]
  assert rmse == sorted(rmse)
  status, out, error = run(*command)
  assert (status, error) == (0, '')
  lines = out.splitlines()
  assert [line.split()[0] for line in lines[2:5]] == families
  assert lines[5].startswith('left out: lti: memory_copies=4')


def test_choose_with_cyclic_poisson(run_json):
  found = run_json(
    *'choose --rounds 64 --max-participations 4 --epsilon 2 --delta 1e-6'
    ' --amplification cyclic-poisson --families banded-sqrt'.split()
  )
  for choice in found['choices']:
    assert choice['sampling_prob'] == choice['bands'] * 4 / 64


_SAMPLED = [
  ('cyclic-poisson', '--sampling-prob 0.3', math.sqrt(1.25)),
  ('balls-in-bins', '--min-sep 2', math.sqrt(2.5)),
  ('b-min-sep', '--min-sep 2 --sampling-prob 0.3', math.sqrt(2.5)),
]


@pytest.mark.parametrize(('name', 'flags', 'sensitivity'), _SAMPLED)
def test_sampled_cohorts_need_less_noise(run_json, name, flags, sensitivity):
  run_json(
    *'optimize --family banded-sqrt --rounds 4 --bands 2 --min-sep 2'.split(),
    *('--out', 's.json'),
  )
  flags = f's.json --amplification {name} --delta 1e-4 {flags}'.split()
  enforced = run_json(*'calibrate s.json --delta 1e-4 --epsilon 3'.split())
  sampled = run_json('calibrate', *flags, '--epsilon', 3)
  assert sampled['z_stddev'] < enforced['z_stddev']
  assert sampled['sensitivity'] == pytest.approx(sensitivity)
  assert sampled['z_stddev'] == pytest.approx(
    sampled['sensitivity'] * sampled['noise_multiplier']
  )
  assert sampled['amplification'] == name
  again = run_json(
    'account', *flags, '--clip', 2, '--z-stddev', 2 * sampled['z_stddev']
  )
  assert again['noise_multiplier'] == pytest.approx(sampled['noise_multiplier'])
  # Of sampling, twice: the bounds are within a few percent of each other.
  assert again['epsilon'] == pytest.approx(3, rel=0.05)


@pytest.mark.parametrize('tolerance, expected', [(1e-5, 0), (0.0, 1)])
def test_reproduce_prints_rows_and_whether_they_pass(
  run, monkeypatch, tolerance, expected
):
  monkeypatch.setitem(
    reproduction.TABLES,
    'gboard_report',
    lambda table: iter(
      [
        ('rho', 2.0, 2.0, {'tolerance': tolerance}),
        ('epsilon', 3.0, 3.00001, {'tolerance': tolerance}),
      ]
    ),
  )
  status, out, error = run('reproduce', 'gboard_report', '--json')
  assert status == expected
  rows = [json.loads(line) for line in out.splitlines()]
  assert [row['row'] for row in rows] == ['rho', 'epsilon']
  assert [row['pass'] for row in rows] == [True, not expected]
  assert error.startswith('rows=1 of 2: ') if expected else not error
  assert 'JSON object for each row' in run('reproduce', '--help')[1]
  status, out, _ = run('reproduce', 'gboard_report')
  assert status == expected
  assert out.splitlines()[2].split()[-2:] == ['NO' if expected else 'yes', '-']


def test_ranking_is_drawn_into_a_file(run, tmp_path):
  flags = '--rounds 9 --min-sep 3 --epsilon 4 --delta 1e-6 --families identity'
  path = tmp_path / 'errors.svg'
  status, out, _ = run('choose', *flags.split(), '--plot', path)
  assert status == 0 and 'identity' in out
  assert 'identity' in path.read_text() and '</svg>' in path.read_text()
  wrong = tmp_path / 'errors.doc'
  status, out, error = run('choose', *flags.split(), '--plot', wrong)
  assert (status, out, error.count('\n')) == (2, '', 1)
  assert (
    error.startswith(f'plot={wrong}: must end in one of') and '.png' in error
  )
  assert not wrong.exists()
