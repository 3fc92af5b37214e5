"""Tests of grids: the files in configs/ are theirs, and can be run."""

import pathlib

import pytest

from simulations import config as config_lib
from simulations import grid
from tff_bandmf import accounting, optimize, participation, program

_CONFIGS = pathlib.Path(__file__).resolve().parent.parent / 'configs'
_BANDMF23 = grid.load(str(_CONFIGS / 'bandmf23.toml'))
_GRIDS = ('bandmf23', 'docstrings_comparison', 'demo_seeds')
_CLIENTS = {'stackoverflow': 342_477, 'docstrings': 14_700}
_ROWS = [
    row for name in _GRIDS
    for row in grid.load(str(_CONFIGS / f'{name}.toml')).rows]
_GRID = """
epsilons = [2, 8]
[base]
data = {}
model = {}
training = {rounds = 8, clients_per_round = 3}
privacy = {min_sep = 4, delta = 1e-5, l2_norm_clip = 0.5}
[mechanisms.dp-sgd]
privacy.family = 'identity'
rate_exponents = {2 = -1, 8 = [1, 2, 3]}
[mechanisms.banded]
privacy.family = 'banded'
privacy.bands = {2 = 3, "8.0" = 4}
"""


def _load(folder, text=_GRID):
  path = folder / 'grid.toml'
  path.write_text(text)
  return grid.load(str(path))


def _schema(config):
  return participation.MinSep(
      config.privacy.min_sep, config.privacy.max_participations)


def test_committed_files_are_what_the_grid_writes():
  written = {
      f'{row.name}.toml': grid.to_toml(row, 'bandmf23.toml')
      for row in _BANDMF23.rows}
  assert len(written) == len(_BANDMF23.rows)
  others = {'demo.toml', *(f'{name}.toml' for name in _GRIDS)}
  assert {
      path.name: path.read_text() for path in _CONFIGS.glob('*.toml')
      if path.name not in others} == written


@pytest.mark.parametrize('row', _BANDMF23.rows, ids=lambda row: row.name)
def test_file_of_a_row_is_its_experiment(row):
  assert config_lib.load(
      str(_CONFIGS / f'{row.name}.toml')) == row.config()


def test_every_published_row_is_there():
  names = {row.name for row in _BANDMF23.rows}
  for epsilon in (1, 2, 4, 8, 16):
    for mechanism in (
        'dp-sgd', 'tree', 'banded', 'online-tree', 'blt', 'bisr', 'bifr-p4',
        'dp-cgd'):
      for corpus in _CLIENTS:
        assert f'{corpus}_{mechanism}_epsilon{epsilon}' in names
    assert f'stackoverflow_dp-sgd-poisson_epsilon{epsilon}' in names
  for epsilon in (1, 2, 4, 8):
    assert f'stackoverflow_banded-poisson_epsilon{epsilon}' in names


@pytest.mark.parametrize('mechanism, published', [
    ('dp-sgd', [0.0244, 0.0414, 0.0704, 0.1197, 0.346]),
    ('tree', [0.2035, 0.346, 0.5882, 1.0, 1.7]),
    ('banded', [0.2035, 0.5882, 1.0, 1.0, 1.7])])
def test_published_rates_stand_in_the_files(mechanism, published):
  rates = [
      row.config().training.server_learning_rate for row in _BANDMF23.rows
      if row.series == f'stackoverflow_{mechanism}']
  assert rates == pytest.approx(published, abs=5e-5)


def test_every_row_has_cohorts():
  seen = set()
  for row in _ROWS:
    config = row.config()
    training = config.training
    key = (config.data.corpus, training.rounds, training.clients_per_round,
           _schema(config))
    if key in seen:
      continue
    seen.add(key)
    clients = _CLIENTS[config.data.corpus]
    if config.data.corpus == 'stackoverflow':
      # The sampler's rule, without its 2,052 rounds: who waits for min_sep
      # leaves a cohort, and nobody is ever barred for good.
      assert training.clients_per_round * config.privacy.min_sep <= clients
      assert config.privacy.max_participations == participation.MinSep(
          config.privacy.min_sep).participations(training.rounds)
      continue
    sampler = program.CohortSampler(
        clients, training.clients_per_round, training.rounds,
        _schema(config), training.seed)
    history = program.History.empty(clients)
    for t in range(training.rounds):
      history.record(t, sampler.sample(t, history))
  assert len(seen) >= 4


def test_every_row_on_docstrings_is_calibrated_at_its_schema():
  strategies = {}
  for row in _ROWS:
    config = row.config()
    if config.data.corpus != 'docstrings':
      continue
    privacy, rounds = config.privacy, config.training.rounds
    key = privacy.family, privacy.bands, rounds, _schema(config)
    if key not in strategies:
      found = optimize.optimize(optimize.Request(
          privacy.family, rounds, _schema(config), bands=privacy.bands,
          buffers=privacy.buffers))
      assert found.converged, row.name
      strategies[key] = found.strategy
    spec = accounting.calibrate(
        strategies[key], _schema(config), privacy.epsilon, privacy.delta)
    assert spec.epsilon(privacy.delta) <= privacy.epsilon == row.epsilon
    assert spec.z_stddev > 0


def test_amplified_rows_claim_what_holds_without_sampling():
  rows = [row for row in _BANDMF23.rows if 'poisson' in row.name]
  assert len(rows) == 9
  for row in rows:
    privacy = row.config().privacy
    assert privacy.epsilon > 1.5 * row.epsilon
  rows = {row.name: row for row in rows}
  row = rows['stackoverflow_banded-poisson_epsilon4']
  privacy = row.config().privacy
  # The noise of the published row.
  assert accounting.gaussian_noise_multiplier(
      privacy.epsilon, privacy.delta) == pytest.approx(0.52224, rel=1e-6)
  assert 'holds without' in ' '.join(row.comments)


def test_values_are_looked_up_by_epsilon(tmp_path):
  rows = {row.name: row for row in _load(tmp_path).rows}
  assert list(rows) == [
      'dp-sgd_epsilon2', 'dp-sgd_epsilon8', 'banded_epsilon2',
      'banded_epsilon8']
  assert rows['banded_epsilon2'].config().privacy.bands == 3
  assert rows['banded_epsilon8'].config().privacy.bands == 4
  assert rows['dp-sgd_epsilon2'].exponents == (-1,)
  wide = rows['dp-sgd_epsilon8']
  assert wide.exponents == (1, 2, 3)
  assert wide.config().training.server_learning_rate == 2.89
  assert wide.config(1).training.server_learning_rate == 1.7
  assert wide.config(1, ('training.rounds=5',)).training.rounds == 5
  assert wide.config().training.rounds == 8


def test_base_may_be_another_file(tmp_path):
  base = _CONFIGS / 'demo.toml'
  (tmp_path / 'demo.toml').write_text(base.read_text())
  (row,) = _load(tmp_path, (
      "base = 'demo.toml'\nepsilons = [8]\n[mechanisms.same]\n")).rows
  demo = config_lib.load(str(base))
  assert demo.compare
  assert row.config() == config_lib.changed(demo, {})
  assert row.exponents == ()


@pytest.mark.parametrize('old, new, named', [
    ('[mechanisms.banded]', '[mechanism.banded]', 'grid=mechanism'),
    ('2 = 3, "8.0" = 4', '2 = 3', 'epsilons=8'),
    ('privacy.bands', 'privacy.band', 'band'),
    ('rate_exponents', 'rates', 'mechanisms.dp-sgd=rates'),
    ('epsilons = [2, 8]', 'epsilons = [0]', 'epsilons=0'),
    ('epsilons = [2, 8]', 'epsilons = []', 'gives no row'),
    ('epsilons = [2, 8]', 'epsilons = [2, 8]\nseeds = 0', 'seeds=0'),
    ('[base]', '[base]\ncompare = {}', 'base=compare'),
    ("'identity'", "'fourier'", 'privacy.family=fourier'),
])
def test_bad_grid_is_told_in_one_line(tmp_path, old, new, named):
  assert old in _GRID
  with pytest.raises(ValueError) as caught:
    _load(tmp_path, _GRID.replace(old, new))
  assert named in str(caught.value)
  assert '\n' not in str(caught.value)
