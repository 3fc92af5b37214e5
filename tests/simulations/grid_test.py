"""Tests of grids: their rows are experiments, and can be run."""

import dataclasses
import math
import pathlib
import signal

import pytest
from click import testing

from simulations import config as config_lib
from simulations import config_keys, run_stackoverflow
from simulations.sweeps import cell, grid
from tff_bandmf import accounting, optimize, participation, strategies
from tff_bandmf import cohorts as cohorts_lib
from tff_bandmf.plan import Mechanism, request, search

_CONFIGS = pathlib.Path(__file__).resolve().parents[2] / 'configs'
_BANDMF23 = grid.load(str(_CONFIGS / 'bandmf23.toml'))
_GRIDS = ('bandmf23', 'demo_seeds', 'evidence')
_CLIENTS = {'stackoverflow': 342_477, 'docstrings': 14_700}
_ROWS = [
  row
  for name in _GRIDS
  for row in grid.load(str(_CONFIGS / f'{name}.toml')).rows
]
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
    config.privacy.min_sep, config.privacy.max_participations
  )


@pytest.mark.parametrize('name', [*_GRIDS, 'demo'])
def test_printed_row_is_its_experiment(tmp_path, name):
  path = tmp_path / 'printed.toml'
  for row in grid.load(str(_CONFIGS / f'{name}.toml')).rows:
    path.write_text(row.toml())
    assert grid.one(str(path)).config() == row.config()


def test_printed_text_is_toml(tmp_path):
  setting = """data.corpus="it's \\"a\\" \\\\ file\\n\\u007f.sqlite" """
  row = grid.one(str(_CONFIGS / 'demo.toml'), (setting,))
  path = tmp_path / 'printed.toml'
  path.write_text(row.toml())
  assert row.config().data.corpus == 'it\'s "a" \\ file\n\x7f.sqlite'
  assert grid.one(str(path)).config() == row.config()
  assert 'Changed with --set: data.corpus.' in row.toml()


def test_row_of_a_strategy_file_takes_its_strategy(tmp_path):
  mine = strategies.custom(8, inverse_coefficients=[1.0, -0.4])
  strategies.save(mine, tmp_path / 'mine.npz')
  table = f"[mechanisms.mine]\nprivacy.family = '{tmp_path / 'mine.npz'}'\n"
  (row,) = [
    row
    for row in _load(tmp_path, _GRID + table).rows
    if row.epsilon == 2 and row.series == 'mine'
  ]
  config = cell.Cell(row, None, 1).config()
  cached = cell._cached_strategy(config, 100, tmp_path / 'sweep')
  assert cached.digest() == mine.digest()
  with pytest.raises(ValueError, match='privacy.bands=3'):
    _load(tmp_path, _GRID + table + 'privacy.bands = 3\n')


@pytest.mark.slow
@pytest.mark.parametrize('amplification', ['balls-in-bins', 'b-min-sep'])
def test_sampled_cohorts_are_searched_as_for_a_plan(tmp_path, amplification):
  """C was the best one without amplification, at every epsilon."""
  from simulations import training

  given = f"""[mechanisms.sampled]
privacy.family = 'banded-sqrt'
privacy.bands = 2
privacy.amplification = '{amplification}'
"""
  rows = [
    row
    for row in _load(tmp_path, _GRID + given).rows
    if row.series == 'sampled'
  ]
  for row in rows:
    config = cell.Cell(row, None, 1).config()
    planned = request.Request(
      rounds=8,
      clients_per_round=3,
      cohorts=config.cohorts(24),
      epsilon=row.epsilon,
      delta=1e-5,
      l2_norm_clip=0.5,
    )
    arguments = training.search_arguments(config, 24)
    assert arguments['noise'].to_dict()['epsilon'] == row.epsilon
    assert str(arguments) == str(
      search.search_arguments(planned, Mechanism('banded-sqrt', bands=2))
    )
    cell._cached_strategy(config, 24, tmp_path / 'sweep')
  assert len(list((tmp_path / 'sweep').glob('*.json'))) == len(rows) == 2


@pytest.fixture
def driver(monkeypatch):
  """Runs the driver; returns its status and what it prints."""
  # It sets how this process ends.
  monkeypatch.setattr(signal, 'signal', lambda *_: None)

  def run(*arguments):
    done = testing.CliRunner().invoke(run_stackoverflow.main, arguments)
    return done.exit_code, done.output

  return run


def test_driver_lists_and_prints_rows(driver):
  path = _CONFIGS / 'bandmf23.toml'
  status, listed = driver(f'--config={path}', '--list')
  assert status == 0
  lines = listed.splitlines()
  assert [line.split()[0] for line in lines] == [
    row.name for row in _BANDMF23.rows
  ]
  assert 'docstrings_bisr_epsilon2 epsilon 2.0 banded-inverse-sqrt' in {
    ' '.join(line.split()) for line in lines
  }

  name = 'docstrings_blt_epsilon2'
  status, printed = driver(
    f'--config={path}:{name}', '--print', '--set', 'training.rounds=30'
  )
  (row,) = [row for row in _BANDMF23.rows if row.name == name]
  assert status == 0
  assert 'rounds = 30' in printed
  assert '[UseBLTs24]' in printed
  assert printed.splitlines()[-2:] == row.toml().splitlines()[-2:]


def test_driver_lists_keys_with_what_they_say(driver):
  status, listed = driver('--list-keys')
  assert status == 0
  lines = listed.splitlines()
  assert (
    'training.rounds (to be given): number of rounds of the run, >= 1.' in lines
  )
  assert 'model.layers (2): number of layers of a transformer, >= 1.' in lines
  assert (
    'privacy.buffers (may be left out): Number of decaying powers that are '
    'added up.' in lines
  )
  assert len(lines) == len(strategies.PARAMETERS) - 1 + sum(
    len(dataclasses.fields(kind)) for kind in config_lib.GROUPS.values()
  )


@pytest.mark.parametrize(
  'source, more, named',
  [
    (
      'bandmf23.toml:docstrings_bisr_epsilon3',
      (),
      'row=docstrings_bisr_epsilon3: is not known; use docstrings_bisr_epsilon',
    ),
    ('bandmf23.toml:zzz', (), 'bandmf23.toml --list lists all'),
    ('bandmf23.toml', ('--print',), 'has 99 rows'),
    ('bandmf23.toml:docstrings_bisr_*', (), 'has 5 rows'),
    ('demo.toml:demi', (), 'row=demi: is not known; use demo;'),
    ('demo.toml', (), 'output_dir='),
    ('demo.toml', ('--set', 'epsilon=3'), 'use privacy.epsilon;'),
    ('absent.toml:demo', (), 'absent.toml'),
  ],
)
def test_driver_tells_in_one_line_what_it_cannot_compose(
  driver, source, more, named
):
  status, printed = driver(f'--config={_CONFIGS / source}', *more)
  assert status == 2
  assert named in printed
  assert printed.count('\n') == 1


def test_file_may_have_a_colon_in_its_name(tmp_path):
  path = tmp_path / 'a:b.toml'
  path.write_bytes((_CONFIGS / 'demo.toml').read_bytes())
  assert grid.one(str(path)).name == 'a:b'


def test_every_published_row_is_there():
  names = {row.name for row in _BANDMF23.rows}
  for epsilon in (1, 2, 4, 8, 16):
    for mechanism in (
      'dp-sgd',
      'tree',
      'banded',
      'online-tree',
      'blt',
      'bisr',
      'bifr-p4',
      'dp-cgd',
    ):
      for corpus in _CLIENTS:
        assert f'{corpus}_{mechanism}_epsilon{epsilon}' in names
    assert f'stackoverflow_dp-sgd-poisson_epsilon{epsilon}' in names
  for epsilon in (1, 2, 4, 8):
    assert f'stackoverflow_banded-poisson_epsilon{epsilon}' in names


@pytest.mark.parametrize(
  'mechanism, published',
  [
    ('dp-sgd', [0.0244, 0.0414, 0.0704, 0.1197, 0.346]),
    ('tree', [0.2035, 0.346, 0.5882, 1.0, 1.7]),
    ('banded', [0.2035, 0.5882, 1.0, 1.0, 1.7]),
  ],
)
def test_published_rates_stand_in_the_files(mechanism, published):
  rates = [
    row.config().training.server_learning_rate
    for row in _BANDMF23.rows
    if row.series == f'stackoverflow_{mechanism}'
  ]
  assert rates == pytest.approx(published, abs=5e-5)


def test_rows_have_the_settings_of_the_paper():
  """The file said that the paper states neither rate, clip nor warm-up."""
  assert 'do not state them: privacy.zeroing_norm.' in _BANDMF23.rows[0].toml()
  rows = {
    row.name: row.config()
    for row in _BANDMF23.rows
    if row.name.startswith('stackoverflow')
  }
  for config in rows.values():
    training = config.training
    assert training.client_learning_rate == config.privacy.l2_norm_clip == 1.0
    assert training.server_momentum == 0.95
    assert training.server_warmup_rounds == 309
    assert training.server_cooldown_rounds == 513
  for name, rates in {
    'mf-single-epoch': (0.1197, 0.2035, 0.346, 0.5882, 1.0),
    'mf-multi-epoch': (0.2035, 0.346, 0.5882, 1.0, 1.7),
  }.items():
    for epsilon, rate in zip((1, 2, 4, 8, 16), rates):
      config = rows[f'stackoverflow_{name}_epsilon{epsilon}']
      assert config.privacy.family == 'dense'
      found = config.training.server_learning_rate
      assert found == pytest.approx(rate, abs=5e-5)
  banded = rows['stackoverflow_banded_epsilon16']
  assert banded.training.server_learning_rate == pytest.approx(1.7)


def test_every_row_has_cohorts():
  seen = set()
  for row in _ROWS:
    config = row.config()
    training = config.training
    key = (
      config.data.corpus,
      training.rounds,
      training.clients_per_round,
      _schema(config),
    )
    if key in seen:
      continue
    seen.add(key)
    clients = _CLIENTS[config.data.corpus]
    if config.data.corpus == 'stackoverflow':
      # The sampler's rule, without its 2,052 rounds: who waits for min_sep
      # leaves a cohort, and nobody is ever barred for good.
      assert training.clients_per_round * config.privacy.min_sep <= clients
      assert config.privacy.max_participations == participation.MinSep(
        config.privacy.min_sep
      ).participations(training.rounds)
      continue
    sampler = cohorts_lib.CohortSampler(
      clients,
      training.clients_per_round,
      training.rounds,
      _schema(config),
      training.seed,
    )
    history = cohorts_lib.History.empty(clients)
    for t in range(training.rounds):
      history.record(t, sampler.sample(t, history))
  assert len(seen) >= 4


@pytest.mark.slow
def test_every_row_on_docstrings_is_calibrated_at_its_schema():
  found_for = {}
  for row in _ROWS:
    config = row.config()
    # Strategies of 1,032 rounds take minutes.
    if config.data.corpus != 'docstrings' or config.training.rounds > 120:
      continue
    privacy, rounds = config.privacy, config.training.rounds
    key = privacy.family, str(privacy.parameters), rounds, _schema(config)
    if key not in found_for:
      found = optimize.optimize(
        privacy.family, rounds, _schema(config), **privacy.parameters
      )
      assert found.converged, row.name
      found_for[key] = found.strategy
    spec = accounting.calibrate(
      found_for[key],
      _schema(config),
      epsilon=privacy.epsilon,
      delta=privacy.delta,
    )
    assert spec.epsilon(privacy.delta) <= privacy.epsilon == row.epsilon
    assert spec.z_stddev_per_clip > 0


def test_amplified_rows_are_drawn_as_they_claim():
  rows = [row for row in _BANDMF23.rows if 'poisson' in row.name]
  assert len(rows) == 9
  for row in rows:
    privacy = row.config().privacy
    assert privacy.amplification == 'cyclic-poisson'
    assert privacy.epsilon == row.epsilon
    # Table 5 prints it so.
    assert len(row.exponents) == 1
  plan = {row.name: row for row in rows}[
    'stackoverflow_banded-poisson_epsilon4'
  ].config()
  assert plan.privacy.parameters['bands'] == 32
  assert plan.training.server_learning_rate == 1.0


def test_speed_is_told_where_it_may_be():
  rows = [{'seconds': '1.0'}, {'seconds': '2.0'}, {'seconds': '4.0'}]
  assert run_stackoverflow.speed('x', rows) == ['x: 2.00 seconds a round']
  # It would tell how large a cohort is that chance drew.
  assert run_stackoverflow.speed('x', [{'seconds': ''}, {}]) == []


@pytest.mark.slow
@pytest.mark.parametrize(
  ('name', 'bands', 'published'),
  [
    ('dp-sgd-poisson_epsilon2', 1, 0.30481),
    ('banded-poisson_epsilon8', 64, 0.43490),
  ],
)
def test_amplified_rows_have_the_noise_of_table_5(name, bands, published):
  """Their matrices have sensitivity 1 in 6 rounds, and not below."""
  config = grid.one(f'{_CONFIGS}/bandmf23.toml:stackoverflow_{name}').config()
  cohorts = config.cohorts(342_477).for_cohort_size(
    config.training.clients_per_round
  )
  found = accounting.calibrate(
    strategies.BandedSqrt(config.training.rounds, bands),
    cohorts.for_bands(bands),
    epsilon=config.privacy.epsilon,
    delta=config.privacy.delta,
  )
  sigma = found.noise_multiplier / math.sqrt(6)
  # A cohort is 1000 of 342,477 here, and 6 of 2052 there.
  assert published * (1 - 2e-3) < sigma < published * (1 + 2e-3)


def test_values_are_looked_up_by_epsilon(tmp_path):
  rows = {row.name: row for row in _load(tmp_path).rows}
  assert list(rows) == [
    'dp-sgd_epsilon2',
    'dp-sgd_epsilon8',
    'banded_epsilon2',
    'banded_epsilon8',
  ]
  assert rows['banded_epsilon2'].config().privacy.parameters['bands'] == 3
  assert rows['banded_epsilon8'].config().privacy.parameters['bands'] == 4
  assert rows['dp-sgd_epsilon2'].exponents == (-1,)
  wide = rows['dp-sgd_epsilon8']
  assert wide.exponents == (1, 2, 3)
  assert wide.config().training.server_learning_rate == 2.89
  assert wide.config(0.5).training.server_learning_rate == 0.5


def test_settings_come_last(tmp_path):
  (tmp_path / 'grid.toml').write_text(_GRID)
  wide = grid.one(
    f'{tmp_path}/grid.toml:dp-sgd_epsilon8', ('training.rounds=5',)
  )
  assert wide.config(1.7).training.rounds == 5
  assert wide.exponents == (1, 2, 3)
  # A rate that is given is not tuned.
  for row in grid.load(
    f'{tmp_path}/grid.toml', ('training.server_learning_rate=0.5',)
  ).rows:
    assert row.exponents == ()
    assert row.config().training.server_learning_rate == 0.5


def test_mechanism_named_as_a_family_is_of_it(tmp_path):
  text = _GRID.replace("privacy.family = 'banded'\n", '')
  assert text != _GRID
  rows = {row.name: row for row in _load(tmp_path, text).rows}
  assert rows['banded_epsilon2'].config().privacy.family == 'banded'
  # But for one that says otherwise.
  text = _GRID.replace("family = 'banded'", "family = 'banded-toeplitz'")
  rows = {row.name: row for row in _load(tmp_path, text).rows}
  assert rows['banded_epsilon2'].config().privacy.family == 'banded-toeplitz'


def test_base_may_be_another_file(tmp_path):
  base = _CONFIGS / 'demo.toml'
  (tmp_path / 'demo.toml').write_text(base.read_text())
  (row,) = _load(
    tmp_path, ("base = 'demo.toml'\nepsilons = [8]\n[mechanisms.same]\n")
  ).rows
  demo = grid.one(str(base)).config()
  assert demo.compare
  assert row.config() == config_keys.changed(demo, {})
  assert row.exponents == ()


@pytest.mark.parametrize(
  'old, new, named',
  [
    (
      '[mechanisms.banded]',
      '[mechanism.banded]',
      'key=mechanism: is not known; use mechanisms;',
    ),
    ('[mechanisms.banded]', "[mechanisms.'../up']", 'mechanisms=../up'),
    ('2 = 3, "8.0" = 4', '2 = 3', 'epsilons=8'),
    ('privacy.bands', 'privacy.band', 'use privacy.bands'),
    (
      'rate_exponents',
      'rate_exponent',
      'mechanisms.dp-sgd.rate_exponent: is not known; use rate_exponents;',
    ),
    ('[1, 2, 3]', '[1, 2, 9999]', 'rate_exponents=9999'),
    ('[1, 2, 3]', '"x"', 'rate_exponents=x'),
    ('epsilons = [2, 8]', 'epsilons = [0]', 'epsilons=0'),
    ('epsilons = [2, 8]', 'epsilons = []', 'gives no row'),
    ('epsilons = [2, 8]', 'epsilons = 2', 'epsilons'),
    ('epsilons = [2, 8]', 'epsilons = [2, 2]', 'epsilon2: is there twice'),
    ('epsilons = [2, 8]', 'epsilons = [2, 8]\nseeds = [0]', 'seeds=[0]'),
    ('epsilons = [2, 8]', 'epsilons = [2, 8]\ncorpora = 3', 'corpora'),
    ('[base]', '[base]\ncompare = {}', 'key=base.compare'),
    (
      '[mechanisms.banded]',
      "[mechanisms.banded]\nwithout = ['privacy.buffers']",
      'without=privacy.buffers: is not a key of the base',
    ),
    (
      '[base]',
      "[rule]\nslope = 1\nrow = ''\nrate_exponents = []\n[base]",
      'rule.slope=1',
    ),
    (
      '[base]',
      "[rule]\nslope = -1\nrow = 'x_epsilon2'\nrate_exponents = [0]\n[base]",
      'rule.row=x_epsilon2: is not known',
    ),
    (
      '[base]',
      "[rule]\nslope = -1\nrow = 'banded_epsilon2'\nrate_exponents = [0]\n"
      '[base]',
      'rule=banded_epsilon2: must be a row with noise',
    ),
    ("'identity'", "'fourier'", 'privacy.family=fourier'),
  ],
)
def test_bad_grid_is_told_in_one_line(tmp_path, old, new, named):
  assert old in _GRID
  with pytest.raises(ValueError) as caught:
    _load(tmp_path, _GRID.replace(old, new))
  assert named in str(caught.value)
  assert '\n' not in str(caught.value)


_RULE = """
[rule]
slope = -0.95
row = 'banded_epsilon8'
rate_exponents = [-1, 0]
[mechanisms.none]
[mechanisms.alone]
privacy.family = 'identity'
seeds = [7]
without = ['privacy.zeroing_norm']
privacy.amplification = 'cyclic-poisson'
"""


def test_rule_gives_the_rates_that_are_not_given(tmp_path):
  text = _GRID.replace('min_sep = 4', 'min_sep = 4, zeroing_norm = 2.0')
  rows = {row.name: row for row in _load(tmp_path, text + _RULE).rows}
  assert {name for name, row in rows.items() if row.rule} == {
    'banded_epsilon2',
    'banded_epsilon8',
    'alone_epsilon2',
    'alone_epsilon8',
  }
  rule = rows['alone_epsilon8'].rule
  assert (rule.slope, rule.row.name) == (-0.95, 'banded_epsilon8')
  assert rule.row.exponents == (-1, 0) and rule.row.extensions == 0
  assert rows['none'].epsilon == math.inf
  assert rows['none'].config().privacy.family == 'none'
  assert rows['none'].seeds == (1, 2, 3)
  assert rows['alone_epsilon2'].seeds == (7,)
  assert rows['alone_epsilon2'].config().privacy.zeroing_norm is None
  assert rows['banded_epsilon2'].config().privacy.zeroing_norm == 2.0
  (row,) = grid.load(
    f'{tmp_path}/grid.toml',
    ('training.server_learning_rate=0.5',),
    ('alone_epsilon8',),
  ).rows
  assert row.rule is None


def test_evidence_is_what_the_protocol_says():
  rows = grid.load(str(_CONFIGS / 'evidence.toml')).rows
  rules = [row.rule for row in rows if row.rule]
  searched = len(rules[0].row.exponents)
  assert searched + sum(len(row.seeds) for row in rows) <= 55
  assert len({row.config().privacy.family for row in rows} - {'none'}) == 11
  for row in rows:
    config = row.config()
    own = row.name.startswith(('true-', 'poisson-'))
    assert (config.privacy.simulated_clients_per_round is None) == own
    # Nobody chose a rate for a mechanism.
    assert (row.rule is None) == (row.name == 'none')


def test_people_have_a_guarantee_of_their_own():
  rows = grid.load(str(_CONFIGS / 'people.toml')).rows
  assert {row.config().privacy.memory_copies for row in rows} == {None, 0}
  for row in rows:
    config = row.config()
    assert config.privacy.simulated_clients_per_round is None
    assert (config.data.corpus, config.data.unit) == ('chitchat', 'person')
    assert config.training.init == 'public'
    assert len(row.seeds) == 5
    # Nobody chose a rate for a mechanism.
    assert (row.rule is None) == (row.name == 'none')
