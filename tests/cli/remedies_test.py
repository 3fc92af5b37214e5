"""Remedies name what their reader has: flags for a command, else arguments."""

import ast
import pathlib
import re

import attrs
import click
import numpy as np
import pytest

import tff_bandmf
from tff_bandmf import strategies
from tff_bandmf.cli import commands

_LIBRARY = pathlib.Path(tff_bandmf.__file__).parent
_FLAG = re.compile(r'(?<![\w-])--[a-z][a-z0-9-]*')
_COMMAND = re.compile(r'bandmf ([a-z-]+)')
# The driver of the simulations has these flags; it is another program.
_OF_THE_DRIVER = {'--moved', '--resume'}


def _options(command):
  found = commands.bandmf.get_command(click.Context(commands.bandmf), command)
  return {
    flag
    for each in found.params
    if isinstance(each, click.Option)
    for flag in (*each.opts, *each.secondary_opts)
  }


def _texts(path):
  """Yields the texts of a file, but not its docstrings."""
  tree = ast.parse(path.read_text())
  documentation = {
    id(node.body[0].value)
    for node in ast.walk(tree)
    if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))
    and isinstance(node.body[0], ast.Expr)
  }
  # Parts of an f-string would be visited once more, without their neighbours.
  parts = {
    id(part)
    for node in ast.walk(tree)
    if isinstance(node, ast.JoinedStr)
    for part in node.values
  }
  for node in ast.walk(tree):
    if id(node) in documentation | parts:
      continue
    if isinstance(node, ast.JoinedStr):
      yield ''.join(
        part.value if isinstance(part, ast.Constant) else 'X'
        for part in node.values
      )
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
      yield node.value


@pytest.mark.slow
def test_library_names_no_flag_but_with_its_command():
  """`Plan` spoke of --participation, which only its command has."""
  found = []
  for path in sorted(_LIBRARY.rglob('*.py')):
    if 'cli' in path.parts or path.name == 'verify.py':
      continue
    for text in _texts(path):
      for flag in _FLAG.finditer(text):
        named = _COMMAND.findall(text[: flag.start()])
        known = _options(named[-1]) if named else _OF_THE_DRIVER
        if 'pip install --no-deps' in text:
          continue
        if '; ' in text and flag[0] not in known:
          found.append(f'{path.relative_to(_LIBRARY)}: {flag[0]}: {text}')
  assert not found


_PLAN = (
  'plan --rounds 60 --clients-per-round 10 --min-sep 12 --epsilon 4 '
  '--delta 1e-6 --l2-norm-clip 0.5 --mechanism banded-sqrt'
)
_BAD = [
  f'{_PLAN} --epsilon 80',
  f'{_PLAN} --epsilon 101',
  f'{_PLAN} --delta 1e-40',
  f'{_PLAN} --delta 0.1',
  f'{_PLAN} --min-sep 61',
  f'{_PLAN} --population 30',
  f'{_PLAN} --participation budget --population 9',
  f'{_PLAN} --participation budget --horizon 9',
  f'{_PLAN} --participation single',
  f'{_PLAN} --noise-multiplier 1',
  f'{_PLAN} --clip-rate 1',
  f'{_PLAN} --momentum 0.9',
  f'{_PLAN} --workload momentum',
  f'{_PLAN} --workload momentum --momentum 0.9 --warmup 0.8 --cooldown 0.8',
  f'{_PLAN} --bands 61',
  f'{_PLAN} --bands 9 --memory-copies 3',
  f'{_PLAN} --largest-cohort 9',
  f'{_PLAN} --stands-for 9',
  f'{_PLAN} --clients-per-unit 0',
  f'{_PLAN} --amplification balls-in-bins --population 240',
  f'{_PLAN} --amplification b-min-sep',
  f'{_PLAN} --amplification b-min-sep --population 120',
  f'{_PLAN} --amplification balls-in-bins --population 120 --stands-for 20',
  f'{_PLAN} --amplification balls-in-bins --population 120 '
  '--clients-per-unit 2',
  f'{_PLAN} --amplification balls-in-bins --population 120 --apart 3',
  _PLAN.replace('--epsilon 4 ', ''),
  _PLAN.replace('--delta 1e-6 ', ''),
  _PLAN.replace('--min-sep 12 ', ''),
  _PLAN.replace('--min-sep 12 ', '--max-participations 3 '),
  _PLAN.replace('--min-sep 12', '--amplification cyclic-poisson'),
  _PLAN.replace('banded-sqrt', 'best') + ' --bands 3',
  _PLAN.replace('banded-sqrt', 'online-tree') + ' --memory-copies 0',
  _PLAN.replace('banded-sqrt', 'robust-toeplitz'),
  'account c.json --delta 1e-6',
  'account c.json --delta 1e-6 --noise-multiplier 0.01',
  'account c.json --delta 1e-6 --noise-multiplier 1 --min-sep 2 '
  '--amplification b-min-sep --sampling-prob 0.1',
  'account c.json --delta 1e-6 --noise-multiplier 1 --amplification '
  'cyclic-poisson',
  'calibrate c.json --epsilon 80 --delta 1e-6',
  'calibrate c.json --epsilon 4 --delta 1e-6 --sampling-prob 0.1',
  'calibrate c.npy --epsilon 4 --delta 1e-6',
  'choose --rounds 60 --min-sep 12 --epsilon 4 --delta 1e-6 --families blt '
  '--memory-copies 0',
  'choose --rounds 60 --epsilon 4 --delta 1e-6 --amplification cyclic-poisson',
  'optimize --family banded --rounds 60 --min-sep 12 --workload momentum',
  'optimize --family robust-toeplitz --rounds 60 --min-sep 12',
  'optimize --family banded --rounds 60 --participation single',
  'evaluate c.json --participation fixed-epoch',
  'report --note a=b',
  'observe none.csv c.json',
  'compose c.json --delta 1e-6',
  'audit c.json --epsilon 4 --noise-multiplier 1',
]


@pytest.mark.slow
@pytest.mark.parametrize('line', _BAD)
def test_remedy_of_a_command_names_its_flags(run, tmp_path, monkeypatch, line):
  monkeypatch.chdir(tmp_path)
  strategies.save(
    strategies.BandedSqrt(60, 6),
    'c.json',
    participation=tff_bandmf.MinSep(12),
  )
  np.save('c.npy', np.eye(3))
  status, out, error = run(*line.split())
  assert (status, out) == (2, '')
  remedy = error.splitlines()[-1].rpartition(';')[2]
  command = line.split()[0]
  other = _COMMAND.search(remedy)
  known = _options(other[1] if other else command)
  assert set(_FLAG.findall(remedy)) <= known, remedy
  # What is left under the name of an argument has no flag.
  assert not re.findall(r'\b[a-z]+_[a-z0-9_]+\b|\w+\(\w*\)', remedy), remedy
  for name in re.findall(r'(?<![\w-])([a-z]+)=', remedy):
    assert f'--{name}' not in known, remedy


def test_command_takes_all_that_a_plan_takes():
  options = {flag[2:].replace('-', '_') for flag in _options('plan')}
  cohorts = {
    *{'participation', 'min_sep', 'max_participations', 'apart', 'horizon'},
    *{'amplification', 'sampling_prob', 'population'},
  }
  fields = {each.name for each in attrs.fields(tff_bandmf.Plan) if each.init}
  assert fields - {'cohorts'} <= options and cohorts <= options
  # Lists and matrices are given in Python alone.
  arrays = {'_learning_rates', '_matrix'}
  workload = {each.name for each in attrs.fields(tff_bandmf.Workload)}
  assert workload - arrays <= options
  assert {
    f'clip_{name}'
    for name in tff_bandmf.AdaptiveClip.__dataclass_fields__
    if name != 'initial'
  } <= options


def test_values_of_a_command_reach_the_plan(run_json, tmp_path):
  out = tmp_path / 'plan.json'
  flags = '--l2-norm-clip 0.3,0.4 --zeroing-norm 3 --stands-for 20'.split()
  run_json(*_PLAN.split(), *flags, '--memory-copies', 11, '--out', out)
  plan = tff_bandmf.Plan.load(out)
  assert plan.l2_norm_clip == (0.3, 0.4) and plan.zeroing_norm == 3
  assert plan.stands_for == 20 and plan.memory_copies == 11


def test_noise_multiplier_with_delta_is_planned(run_json):
  flags = _PLAN.replace('--epsilon 4', '--noise-multiplier 1').split()
  record = run_json(*flags)
  plan = tff_bandmf.Plan(
    rounds=60,
    clients_per_round=10,
    cohorts=tff_bandmf.MinSep(12),
    noise_multiplier=1.0,
    delta=1e-6,
    l2_norm_clip=0.5,
    mechanism='banded-sqrt',
  )
  assert record['noise_multiplier'] == 1
  assert record['epsilon'] == plan.guarantee.epsilon(1e-6)


@pytest.mark.parametrize(
  'target', ['--epsilon 80', '--epsilon 60 --delta 1e-12', '--delta 1e-38']
)
def test_target_that_cannot_be_reached_names_one_that_can(run, target):
  flags = [*_PLAN.split(), *target.split()]
  status, _, error = run(*flags)
  name, value = re.search(r'use (--\w+)=(\S+) or ', error).groups()
  assert status == 2
  assert run(*flags, name, value)[0] == 0
  # The value is nearly the largest epsilon, or the least delta.
  worse = float(value) * 1.02 if name == '--epsilon' else float(value) ** 1.02
  assert run(*flags, name, worse)[0] == 2
