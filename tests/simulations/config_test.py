"""Tests of experiment files: bad input is told in one line."""

import pathlib

import pytest

from simulations import config
from simulations.sweeps import grid

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
  identity = config.changed(demo, demo.compare['identity'])
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
    ('training.server_cooldown_end=1.5', 'training.server_cooldown_end'),
    ('training.server_optimizer=lamb', 'training.server_optimizer=lamb'),
    ('training.client_groups=0', 'training.client_groups'),
    ('privacy.zeroing_norm=0', 'privacy.zeroing_norm'),
    ('privacy.max_memory_bytes=0', 'privacy.max_memory_bytes'),
    ('privacy.simulated_clients_per_round=160', 'must exceed'),
    ('privacy.epsilon=0', 'privacy.epsilon'),
    ('privacy.epsilon=-1', 'privacy.epsilon'),
    ('privacy.epsilon=nan', 'privacy.epsilon'),
    ('privacy.min_sep=0', 'privacy.min_sep'),
    ('privacy.bands=10000', 'privacy.bands'),
    ('privacy.family=fourier', 'privacy.family'),
    # What earlier releases had.
    ('privacy.noise_placement=tape', 'noise_placement'),
    ('privacy.secure_noise=true', 'secure_noise'),
    ('privacy.objective=median', 'privacy.objective'),
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


def test_file_that_is_no_toml_is_named(tmp_path):
  path = tmp_path / 'broken.toml'
  path.write_text('[training\n')
  with pytest.raises(ValueError, match='broken.toml'):
    _load(str(path))
