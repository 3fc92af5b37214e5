"""Fuzzing of experiment files: an experiment, or one line."""

import json
import math
import os
import pathlib

import fuzzing
import hypothesis
import pytest
from hypothesis import strategies as st

from simulations.sweeps import grid
from tff_bandmf import _files

pytestmark = pytest.mark.slow

_DEMO = pathlib.Path(__file__).resolve().parents[2] / 'configs' / 'demo.toml'


def _toml(value):
  """Returns a value as TOML writes it; None has no form there."""
  if isinstance(value, dict):
    pairs = (f'{json.dumps(key)} = {_toml(value[key])}' for key in value)
    return '{' + ', '.join(pairs) + '}'
  if isinstance(value, list):
    return '[' + ', '.join(map(_toml, value)) + ']'
  if isinstance(value, float) and not math.isfinite(value):
    return str(value)
  return json.dumps(value)


def _file(tree):
  if not isinstance(tree, dict):
    return _toml(tree)
  return '\n'.join(
    f'{json.dumps(key)} = {_toml(value)}' for key, value in tree.items()
  )


def _check(path, content, settings=()):
  path.write_bytes(content)
  try:
    with fuzzing.bounded(len(content)):
      experiment = grid.one(str(path), settings).config()
  except ValueError as error:
    fuzzing.check_message(str(error))
    return
  assert isinstance(experiment.training.rounds, int)
  assert experiment.training.rounds >= 1
  assert 0 < experiment.privacy.epsilon < math.inf
  assert 0 < experiment.privacy.delta < 1
  assert experiment.privacy.min_sep >= 1


@pytest.fixture
def path(tmp_path):
  return tmp_path / 'experiment.toml'


def test_damaged_experiment_is_loaded_or_refused(path):
  tree = _files.read_toml(_DEMO, 'config')
  _check(path, _file(tree).encode())

  @fuzzing.cases(150)
  @hypothesis.given(fuzzing.damaged([tree]))
  def check(changed):
    _check(path, _file(changed).encode('utf-8', 'surrogatepass'))

  check()


def test_damaged_grid_is_loaded_or_refused(path):
  (path.parent / 'demo.toml').write_bytes(_DEMO.read_bytes())
  trees = [
    _files.read_toml(_DEMO.with_name('demo_seeds.toml'), 'config'),
    {
      'epsilons': [2, 8.5],
      'base': _files.read_toml(_DEMO, 'config'),
      'assumed': ['training.rounds'],
      'corpora': {'x': {'data': {'vocabulary_size': {'2': 9, '8.5': 8}}}},
      'mechanisms': {
        'blt': {'rate_exponents': {'2': [-1, 0, 1], '8.5': 1}},
        'far': {'epsilons': [2], 'rate_exponents': {'2': 1}},
      },
    },
  ]
  del trees[1]['base']['compare']
  for tree, rows in zip(trees, (2, 3)):
    path.write_text(_file(tree))
    assert len(grid.load(str(path)).rows) == rows

  @fuzzing.cases(100)
  @hypothesis.given(fuzzing.damaged(trees))
  def check(changed):
    content = _file(changed).encode('utf-8', 'surrogatepass')
    path.write_bytes(content)
    try:
      with fuzzing.bounded():
        rows = grid.load(str(path)).rows
    except (TypeError, ValueError, OSError) as error:
      fuzzing.check_message(str(error))
      return
    assert all(0 < row.config().privacy.epsilon < math.inf for row in rows)

  check()


def test_damaged_text_is_loaded_or_refused(path):
  content = _DEMO.read_bytes()

  @fuzzing.cases(70)
  @hypothesis.example(b'x = ' + b'[' * 50_000)
  @hypothesis.example(b'x = ' + b'{a=' * 50_000)
  @hypothesis.example(b'training.rounds = ' + b'9' * 5000)
  @hypothesis.example(b'\xff\xfe' + content)
  @hypothesis.example(content + content)
  @hypothesis.given(fuzzing.flipped(content) | st.binary(max_size=200))
  def check(changed):
    _check(path, changed)

  check()


def test_odd_settings_are_taken_or_refused(path):
  keys = st.sampled_from((
    'training.rounds', 'privacy.epsilon', 'privacy.family', 'training', '',
    'compare', 'compare.x', 'compare.x.y', '.', 'privacy.min_sep.x', 'a' * 3000,
    'model.tied', 'data.corpus', '\x1b[2J.x',
  ))  # fmt: skip
  values = st.sampled_from((
    '', '3', '-1', '1e999', 'nan', '9' * 400, '9' * 5000, '[' * 20_000, '{}',
    '{x = 1}', '"\\ud800"', 'true', '1979-05-27', '1\nother = 2', '\x00', 'x',
  ))  # fmt: skip
  content = _DEMO.read_bytes()

  @fuzzing.cases(60)
  @hypothesis.example('training.rounds', '9' * 400, '=')
  @hypothesis.example('privacy.epsilon', '9' * 400, '=')
  @hypothesis.given(keys, values, st.sampled_from(('=', '', '==')))
  def check(key, value, equals):
    _check(path, content, (f'{key}{equals}{value}',))

  check()


def test_pipe_is_no_experiment(tmp_path):
  os.mkfifo(tmp_path / 'pipe')
  with fuzzing.bounded():
    with pytest.raises(ValueError, match='regular file'):
      grid.one(str(tmp_path / 'pipe'))
