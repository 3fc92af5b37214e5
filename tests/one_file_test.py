"""A family in one new file is found everywhere; no list elsewhere names one."""

import ast
import os
import pathlib
import shutil
import subprocess
import sys

import attrs
import pytest

from tff_bandmf import strategies

_ROOT = pathlib.Path(__file__).resolve().parent.parent

_FILE = """
from typing import ClassVar

import attrs
import numpy as np

from tff_bandmf.strategies import families, toeplitz


@attrs.frozen(slots=False)
class Example(toeplitz.BandedC):
  family: ClassVar[str] = 'example'
  bands: ClassVar[int] = 2
  own_part: float

  @property
  def coefficients(self) -> np.ndarray:
    return np.array([1.0, self.own_part])


FAMILIES = (
  families.Family(
    Example,
    'two bands',
    parameters=(
      families.Parameter(
        'own_part', float, 'Part of its own.', sweep=(0.0, 1.0)
      ),
      families.COLUMN_NORMALIZE,
    ),
  ),
)
"""

_USE = """
import contextlib, io, json, pathlib

import tff_bandmf, written_run
from simulations import config_keys
from tff_bandmf import audit, report, strategies
from tff_bandmf.audit import arithmetic_attacks, auditing
from tff_bandmf.cli import main

def bandmf(command):
  out = io.StringIO()
  with contextlib.redirect_stdout(out):
    assert main.main(command.split()) == 0, command
  return out.getvalue()

shown = bandmf('optimize --help')
assert '|example|' in shown and 'For example: part' in shown
assert '--own-part' in shown

schema = '--rounds 6 --min-sep 2 --json'
swept = json.loads(bandmf(f'optimize --family example {schema}'))
given = json.loads(
  bandmf(f'optimize --family example --own-part 0.3 {schema} --out x.json'))
assert swept['parameters']['own_part'] not in (0.0, 0.3, 1.0)
assert swept['loss'] < given['loss']
assert json.loads(bandmf('evaluate x.json --json'))['parameters'] == {
  'own_part': 0.3}

ranked = json.loads(bandmf(
  f'choose {schema} --epsilon 2 --delta 1e-6 --families example,identity'))
assert {each['family'] for each in ranked['choices']} == {'example', 'identity'}

tree = {
  'data': {}, 'model': {}, 'training': {'rounds': 6, 'clients_per_round': 2},
  'privacy': {'family': 'example', 'own_part': 0.3, 'min_sep': 2,
              'epsilon': 2.0, 'delta': 1e-6, 'l2_norm_clip': 1.0}}
config = config_keys.from_tree(tree)
assert config_keys.to_tree(config)['privacy']['own_part'] == 0.3
assert 'privacy.own_part (may be left out): Part of' in config_keys.list_keys()
strategy = tff_bandmf.Plan(
  rounds=6, clients_per_round=2, cohorts=config.cohorts(100), epsilon=2.0,
  delta=1e-6, l2_norm_clip=1.0, mechanism=tff_bandmf.Mechanism(
    config.privacy.family, **config.privacy.parameters)).strategy
assert strategy == strategies.load('x.json')[0]

written_run.make_run(pathlib.Path('run'), written_run.KEPT, strategy=strategy)
report.write('run')
assert 'example' in pathlib.Path('run', report.MARKDOWN_FILE).read_text()

# TensorFlow Federated takes seconds to import, and 2^30 normals to draw.
audit.has_tff = auditing.has_tff = lambda: False
arithmetic_attacks.TAIL_DRAWS = 2**20
audited = json.loads(bandmf(
  'audit x.json --noise-multiplier 1 --delta 1e-5 --canaries 20 --json'))
assert audited['family'] == 'example' and audited['holds']
"""


@pytest.mark.slow
def test_family_in_one_new_file_is_found_everywhere(tmp_path):
  shutil.copytree(_ROOT / 'tff_bandmf', tmp_path / 'tff_bandmf')
  (tmp_path / 'tff_bandmf/strategies/example.py').write_text(_FILE)
  folders = (tmp_path, _ROOT, _ROOT / 'tests/helpers')
  done = subprocess.run(
    [sys.executable, '-c', _USE],
    cwd=tmp_path,
    env={**os.environ, 'PYTHONPATH': os.pathsep.join(map(str, folders))},
    capture_output=True,
    text=True,
    timeout=300,
  )
  assert done.returncode == 0, done.stderr[-3000:]


def _nodes(*words):
  """Yields (file, node) of files outside of `strategies` with one of words."""
  for package in ('tff_bandmf', 'simulations'):
    for path in sorted((_ROOT / package).rglob('*.py')):
      text = path.read_text()
      # The verifier shares nothing with the library, its families included.
      if (
        _ROOT / 'tff_bandmf/strategies' not in path.parents
        and path != _ROOT / 'tff_bandmf/verify.py'
        and any(word in text for word in words)
      ):
        for node in ast.walk(ast.parse(text)):
          yield path.relative_to(_ROOT), node


def test_no_name_of_a_family_stands_elsewhere():
  found = [
    f'{path}:{node.lineno} {node.value}'
    for path, node in _nodes(*map(repr, strategies.FAMILIES))
    if isinstance(node, ast.Constant) and node.value in strategies.FAMILIES
  ]
  assert not found


@pytest.mark.slow
def test_no_kind_of_strategy_is_asked_for_elsewhere():
  kinds = {
    name
    for name, each in vars(strategies).items()
    if isinstance(each, type)
    and issubclass(each, strategies.Strategy)
    and each is not strategies.Strategy
  }
  found = [
    f'{path}:{node.lineno}'
    for path, node in _nodes(*kinds)
    if isinstance(node, ast.Call)
    and isinstance(node.func, ast.Name)
    and node.func.id in ('isinstance', 'issubclass', 'type')
    and {
      each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)
    }
    & kinds
  ]
  assert not found


@pytest.mark.parametrize('name', strategies.FAMILIES)
def test_declaration_is_whole(name):
  family = strategies.FAMILIES[name]
  fields = {field.rstrip('_') for field in attrs.fields_dict(family.kind)}
  assert family.about and family.memory.about
  assert sum(each.sweep is not None for each in family.parameters) <= 1
  for each in family.parameters:
    assert strategies.PARAMETERS[each.name].kind is each.kind
    if not family.optimizer and each.kind is not bool:
      assert each.field.rstrip('_') in fields
    for value in (each.default, *(each.sweep or ())):
      assert value is None or each.check(value) == value
