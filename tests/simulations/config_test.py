"""Tests of experiment files: bad input is told in one line."""

import pathlib

import families
import pytest

from simulations import config_keys, training
from simulations.sweeps import grid
from tff_bandmf import workloads

_DEMO = str(
  pathlib.Path(__file__).resolve().parents[2] / 'configs' / 'demo.toml'
)


def _load(path, settings=()):
  return grid.one(path, settings).config()


def test_demo_configuration_loads():
  demo = _load(_DEMO)
  assert demo.privacy.family == 'banded-toeplitz'
  assert {'identity', 'none'} <= set(demo.compare)


def test_compared_runs_share_the_guarantee():
  demo = _load(_DEMO)
  identity = config_keys.changed(demo, demo.compare['identity'])
  for name in ('epsilon', 'delta', 'min_sep', 'max_participations'):
    assert getattr(identity.privacy, name) == getattr(demo.privacy, name)
  assert identity.training.rounds == demo.training.rounds
  assert identity.training.clients_per_round == demo.training.clients_per_round


def test_set_takes_toml_values_and_bare_words():
  changed = _load(
    _DEMO,
    ('training.rounds=200', 'privacy.family=identity', 'privacy.epsilon=2'),
  )
  assert changed.training.rounds == 200
  assert changed.privacy.family == 'identity'
  assert changed.privacy.epsilon == 2.0


@pytest.mark.parametrize(
  'setting, named',
  [
    ('training.round=3', 'training.round: is not known; use training.rounds'),
    ('training.momentum=0', 'use training.server_momentum'),
    ('privacy.rounds=3', 'privacy.rounds: is not known; use training.rounds'),
    ('epsilon=3', 'key=epsilon: is not known; use privacy.epsilon'),
    ('trainig.rounds=3', 'key=trainig: is not known; use training;'),
    ('training.zzz=3', '--list-keys lists all'),
    ('training.rounds', 'KEY=VALUE'),
    ('training.rounds=many', 'training.rounds'),
    ('training.rounds=0', 'training.rounds=0'),
    ('training.server_momentum=1.0', 'training.server_momentum'),
    ('training.server_beta_2=1', 'training.server_beta_2'),
    ('training.server_cooldown_end=1', 'server_cooldown_end: is not known'),
    ('training.server_optimizer=lamb', 'training.server_optimizer=lamb'),
    ('training.client_groups=0', 'training.client_groups'),
    ('privacy.zeroing_norm=0', 'privacy.zeroing_norm'),
    ('privacy.max_memory_bytes=0', 'privacy.max_memory_bytes'),
    ('privacy.simulated_clients_per_round=160', 'must exceed'),
    ('privacy.clip_quantile=1.5', 'quantile=1.5'),
    ('privacy.clip_until=9', 'clip_until=9: needs a clip that adapts'),
    ('privacy.epsilon=0', 'privacy.epsilon'),
    ('privacy.epsilon=-1', 'privacy.epsilon'),
    ('privacy.epsilon=nan', 'privacy.epsilon'),
    ('privacy.min_sep=0', 'privacy.min_sep'),
    ('privacy.bands=10000', 'privacy.bands'),
    ('privacy.family=fourier', 'privacy.family'),
    ('privacy.alpha=0.5', 'privacy.alpha=0.5: banded-toeplitz has no such'),
    ('privacy.bands=1.5', 'privacy.bands=1.5: must be an integer'),
    ('privacy.column_normalize=1', 'privacy.column_normalize=1: must be true'),
    ('privacy.parameters={bands=3}', 'privacy.parameters: is not known'),
    ('privacy.workload=sums', 'privacy.workload=sums'),
    # What earlier releases had.
    ('privacy.noise_placement=tape', 'noise_placement'),
    ('privacy.secure_noise=true', 'secure_noise'),
    ('privacy.objective=median', 'privacy.objective'),
    ('privacy.objective=[1, 2]', 'privacy.objective=2 rounds'),
    ('privacy.objective=[]', 'privacy.objective=[]: must be a list'),
    ('training.server_learning_rates=[1]', 'server_learning_rates: do not go'),
    ('training.server_weight_decay=2', 'training.server_weight_decay=2'),
    ('privacy.delta=2', 'privacy.delta'),
    ('privacy.epsilon=true', 'privacy.epsilon'),
    ('training.seed=-1', 'at least 0'),
    ('data.vocabulary_size=-5', 'data.vocabulary_size'),
    ('training.rounds.deeper=1', 'training.rounds.deeper'),
    ('compare.none={"data.corpus" = "x"}', 'data.corpus'),
    ('compare.none={"privacy.epsilon" = 0}', 'privacy.epsilon'),
    ('compare.none={"privacy.famly" = "none"}', 'use privacy.family'),
    ('training=3', 'training'),
  ],
)
def test_bad_setting_is_named_in_one_line(setting, named):
  with pytest.raises(ValueError) as caught:
    _load(_DEMO, (setting,))
  assert named in str(caught.value)
  assert '\n' not in str(caught.value)


# The family `custom` is given by a file.
@pytest.mark.parametrize('name', sorted({*families.EXAMPLES} - {'custom'}))
def test_every_parameter_is_a_key(name):
  words = (
    families.EXAMPLES[name].flags.replace('--column-normalize', '').split()
  )
  values = {
    flag[2:].replace('-', '_'): value
    for flag, value in zip(words[::2], words[1::2])
  }
  settings = [f'privacy.{key}={value}' for key, value in values.items()]
  found = _load(_DEMO, (f'privacy.family={name}', *settings))
  assert {
    key: str(value) for key, value in found.privacy.parameters.items()
  } == values
  assert config_keys.from_tree(config_keys.to_tree(found)) == found
  # What it is compared with takes none of them.
  identity = config_keys.changed(found, {'privacy.family': 'identity'})
  assert not identity.privacy.parameters


def test_momentum_is_that_of_the_run():
  found = _load(_DEMO, ('privacy.workload=momentum',))
  schedule = found.training.server_schedule
  assert schedule.momentum == found.training.server_momentum == 0.9
  falling = found.training.server_cooldown_rounds
  rates = schedule.learning_rates(found.training.rounds)
  assert (rates < 1).sum() == falling == 40
  with pytest.raises(ValueError, match='privacy.workload=momentum'):
    config_keys.changed(found, {'training.server_optimizer': 'adam'})


def test_workload_by_numbers_reaches_the_search():
  rates, weights = [2.0, 0, 1], [1, 0.5, 2]
  loaded = _load(
    _DEMO,
    (
      'training.rounds=3',
      'privacy.bands=2',
      'training.server_cooldown_rounds=0',
      f'training.server_learning_rates={rates}',
      'training.server_weight_decay=0.25',
      'privacy.workload=momentum',
      f'privacy.objective={weights}',
    ),
  )
  assert config_keys.from_tree(config_keys.to_tree(loaded)) == loaded
  request = training.search_arguments(loaded, 100)
  assert request['objective'] == tuple(weights)
  assert request['workload'] == workloads.Workload(
    momentum=0.9, weight_decay=0.25, learning_rates=rates
  )
  changes = {'training.rounds': 4, 'privacy.objective': 'last'}
  with pytest.raises(ValueError, match='server_learning_rates=3 rounds'):
    config_keys.changed(loaded, changes)


def test_file_that_is_no_toml_is_named(tmp_path):
  path = tmp_path / 'broken.toml'
  path.write_text('[training\n')
  with pytest.raises(ValueError, match='broken.toml'):
    _load(str(path))


def test_participation_by_budget_is_that_of_its_keys():
  page = _load(_DEMO.replace('demo.toml', 'budget.toml'))
  assert page.cohorts(100).name == 'min-sep'
  compared = config_keys.changed(page, page.compare['budget']).cohorts(100)
  assert compared.to_dict() == {
    'participation': 'budget',
    'min_sep': 60,
    'max_participations': 2,
    'apart': 20,
    'horizon': None,
  }
  for settings, line in (
    (['privacy.apart=2'], 'apart=2: participation min-sep does not take it'),
    (['privacy.participation=single'], 'privacy.participation=single'),
    (
      ['privacy.participation=budget', 'privacy.amplification=b-min-sep'],
      'privacy.participation=budget',
    ),
  ):
    with pytest.raises(ValueError, match=line):
      _load(_DEMO, settings)
