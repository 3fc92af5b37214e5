"""Tests of `bandmf plan`."""

import json
import subprocess
import sys

import attrs
import pytest

import tff_bandmf
from tff_bandmf import choosing, strategies
from tff_bandmf.optimize import cache

_FLAGS = (
  'plan --rounds 60 --clients-per-round 10 --min-sep 12 --epsilon 4 '
  '--delta 1e-6 --l2-norm-clip 0.5'
).split()


def test_plan_is_printed_and_written(run, run_json, tmp_path):
  out = tmp_path / 'plan.json'
  record = run_json(
    *_FLAGS, '--mechanism', 'banded-sqrt', '--bands', '7', '--out', out
  )
  assert record['mechanism'] == 'banded-sqrt' and record['bands'] == 7
  assert record['epsilon'] <= 4 and record['min_sep'] == 12
  plan = tff_bandmf.Plan.load(out)
  assert plan.z_stddev == record['z_stddev']
  strategies.save(plan.strategy, tmp_path / 'c.json')
  status, printed, _ = run(*_FLAGS, '--mechanism', tmp_path / 'c.json')
  assert status == 0 and printed.startswith('60 rounds of 10 clients, min-sep')


@pytest.mark.parametrize(
  ('flags', 'message'),
  [
    (
      '--amplification balls-in-bins --population 240',
      'use --clients-per-round=20',
    ),
    (
      '--amplification b-min-sep --population 120',
      'clients_per_round=10: must be below',
    ),
    (
      '--amplification b-min-sep --population 120 --sampling-prob 0.3',
      'use --clients-per-round=8',
    ),
    (
      '--amplification balls-in-bins --population 120 --largest-cohort 11',
      'largest_cohort=11: ',
    ),
    (
      '--amplification balls-in-bins --population 120 --arrivals log.csv',
      'arrivals=log.csv: needs a plan',
    ),
    ('--population 99', 'use --clients-per-round=8, or --min-sep=9'),
    (
      '--participation budget --apart 10 --population 99',
      'use --clients-per-round=9, or --apart=9',
    ),
  ],
)
def test_sizes_are_checked_before_the_search(run, monkeypatch, flags, message):
  def search(*args, **kwargs):
    raise AssertionError('a search')

  monkeypatch.setattr(choosing, 'choose', search)
  status, _, error = run(*_FLAGS, *flags.split())
  assert status == 2 and message in error


@pytest.mark.slow
def test_probability_of_a_client_follows_from_the_plan(run_json):
  """5 of 120 clients a round, and a client 12 rounds apart."""
  flags = '--amplification b-min-sep --population 120 --mechanism identity'
  record = run_json(*_FLAGS, '--clients-per-round', 5, *flags.split())
  rate = 5 / 120
  assert record['sampling_prob'] == pytest.approx(rate / (1 - 11 * rate))
  assert record['start'] == 'warm'
  assert record['epsilon'] <= 4 < record['epsilon_unamplified']


def test_clip_that_adapts_is_planned(run_json, tmp_path):
  out = tmp_path / 'plan.json'
  flags = '--mechanism identity --clip-quantile 0.8 --clip-until 20'.split()
  record = run_json(*_FLAGS, *flags, '--out', out)
  adaptive = tff_bandmf.AdaptiveClip(0.5, 0.8, until=20)
  assert tff_bandmf.Plan.load(out).l2_norm_clip == adaptive
  assert record['l2_norm_clip'] == {
    'initial': 0.5,
    'quantile': 0.8,
    'rate': 0.2,
    'fraction_weight': 0.28,
    'until': 20,
  }


@pytest.mark.parametrize(
  'flags, message',
  [
    (['--clip-rate', '1'], 'clip_rate=1.0: needs a clip that adapts'),
    (['--clip-quantile', '2'], 'quantile=2.0: must be in [0, 1]'),
    (['--bands', '7'], 'bands=7: is a parameter of a family'),
    (['--population', '99'], 'population=99: cannot fill 60 rounds of'),
    (['--noise-multiplier', '1'], 'noise_multiplier=1.0: is given in place'),
    (['--mechanism', 'bandet'], 'family=bandet: is not known'),
    (['--mechanism', 'none.json'], 'mechanism=none.json: is not a file'),
    (['--min-sep', '61'], 'use --participation single.'),
    (
      ['--amplification', 'cyclic-poisson', '--sampling-prob', '0.1'],
      'min_sep=12',
    ),
  ],
)
def test_bad_input_is_one_line(run, flags, message):
  if '--population' in flags:
    flags = [*flags, '--mechanism', 'identity']
  status, out, error = run(*_FLAGS, *flags)
  assert (status, out, error.count('\n')) == (2, '', 1)
  assert message in error


def test_file_that_is_there_is_told_before_the_search(
  run, tmp_path, monkeypatch
):
  monkeypatch.setattr(choosing, 'choose', None)
  (tmp_path / 'plan.json').touch()
  for name, told in (
    ('plan.json', 'is there already; name another file.\n'),
    ('none/plan.json', 'cannot be written; name a file in a wr'),
  ):
    status, out, error = run(*_FLAGS, '--out', tmp_path / name)
    assert (status, out, error.count('\n')) == (2, '', 1)
    assert told in error


_WITHOUT_TENSORFLOW = """
import sys
import threading
sys.modules['tensorflow'] = None
from tff_bandmf.cli import main, output
output.FIRST_LINE = threading.TIMEOUT_MAX
sys.exit(main.main())
"""


def _bandmf_without_tensorflow(*arguments):
  return subprocess.run(
    [sys.executable, '-c', _WITHOUT_TENSORFLOW, *arguments],
    capture_output=True,
    text=True,
    timeout=300,
  )


@pytest.mark.slow
def test_best_that_was_found_before_needs_no_tensorflow(
  run, tmp_path, monkeypatch
):
  monkeypatch.setenv(cache.VARIABLE, str(tmp_path))
  flags = [*_FLAGS, '--memory-copies', '3']
  status, cold, _ = run(*flags)
  assert status == 0
  for told in (
    'runners-up by rmse: ',
    'left out: dense: memory_copies=3: dense keeps 59 model copies',
  ):
    assert told in cold
  # It is compared only where its parameter is given: nobody asked for it.
  assert 'robust-toeplitz' not in cold
  done = _bandmf_without_tensorflow(*flags)
  assert (done.stdout, done.stderr, done.returncode) == (cold, '', 0)


@pytest.mark.slow
def test_without_tensorflow_all_families_are_compared():
  """A core install left out every family that is searched for."""
  done = _bandmf_without_tensorflow(*_FLAGS, '--json')
  assert (done.returncode, done.stderr) == (0, '')
  plan = json.loads(done.stdout)
  assert {'banded', 'banded-toeplitz', 'blt', 'banded-inverse'} <= {
    plan['mechanism'],
    *(each['mechanism'] for each in plan['runners_up']),
  }


@pytest.mark.parametrize('name', ['epsilon', 'delta'])
def test_half_of_a_target_names_the_other_half(run, name):
  """A missing --delta spoke of noise_multiplier."""
  flags = _FLAGS[: _FLAGS.index(f'--{name}')]
  flags += _FLAGS[_FLAGS.index(f'--{name}') + 2 :]
  status, out, error = run(*flags)
  assert (status, out) == (2, '')
  assert error.startswith(f'{name}=None: a claim is an epsilon at a delta')
  assert error.endswith(f'; give --{name}.\n')


_TOML = """
rounds = 40
clients_per_round = 10
epsilon = 8.0
delta = 1e-6
l2_norm_clip = 0.3
mechanism = "banded-sqrt"

[cohorts]
participation = "min-sep"
min_sep = 8
"""
_SAME_FLAGS = (
  *('--rounds', 40, '--clients-per-round', 10, '--epsilon', 8, '--delta', 1e-6),
  *('--l2-norm-clip', 0.3, '--mechanism', 'banded-sqrt', '--min-sep', 8),
)


def _toml(folder, text=_TOML):
  (folder / 'plan.toml').write_text(text)
  return folder / 'plan.toml'


def test_plan_of_a_toml_file_has_the_bytes_of_flags_and_of_python(
  run, tmp_path
):
  path = _toml(tmp_path)
  run('plan', '--from', path, '--out', tmp_path / 'toml.json')
  run('plan', *_SAME_FLAGS, '--out', tmp_path / 'flags.json')
  tff_bandmf.Plan.from_toml(path).save(tmp_path / 'python.json')
  content = (tmp_path / 'toml.json').read_bytes()
  assert content == (tmp_path / 'flags.json').read_bytes()
  assert content == (tmp_path / 'python.json').read_bytes()
  # And a plan that exists is printed in TOML.
  _, printed, _ = run('plan', '--from', tmp_path / 'toml.json', '--print-toml')
  again = _toml(tmp_path, printed)
  tff_bandmf.Plan.from_toml(again).save(tmp_path / 'again.json')
  assert content == (tmp_path / 'again.json').read_bytes()


@pytest.mark.parametrize(
  'flags',
  [
    ('--epsilon', 4),
    ('--min-sep', 4),
    ('--workload', 'momentum', '--momentum', 0.9),
    ('--clip-quantile', 0.5, '--l2-norm-clip', 0.1),
    ('--mechanism', 'banded', '--bands', 4),
    ('--amplification', 'balls-in-bins', '--min-sep', 8),
    ('--objective', 'max'),
  ],
  ids=str,
)
def test_flag_replaces_the_value_of_a_file(run, tmp_path, flags):
  path = _toml(tmp_path)
  _, by_file, _ = run('plan', '--from', path, *flags, '--print-toml')
  _, by_flags, _ = run('plan', *_SAME_FLAGS, *flags, '--print-toml')
  assert by_file == by_flags
  for name in ('rounds = 40', 'delta = 1e-06'):
    assert name in by_file


@pytest.mark.parametrize(
  'line, message',
  [
    ('rounds = 40', 'rounds=None: '),
    ('[cohorts]', 'cohorts=None: '),
  ],
)
def test_file_without_a_value_that_a_plan_needs_is_refused(
  run, tmp_path, line, message
):
  text = _TOML.partition(line)[0] + (
    '' if line == '[cohorts]' else _TOML.partition(line)[2]
  )
  status, _, error = run('plan', '--from', _toml(tmp_path, text))
  assert status == 2 and error.startswith(message)


@pytest.mark.parametrize(
  'text, message',
  [
    ('rounds = ', 'plan='),
    (_TOML.replace('epsilon', 'epsilom'), 'epsilom=8.0: is unknown to plans'),
    (_TOML.replace('min_sep', 'minsep'), "cohorts={'participation'"),
    (_TOML.replace('40', '"40"'), 'rounds=40: must be'),
  ],
  ids=str,
)
def test_file_that_is_wrong_is_one_line(run, tmp_path, text, message):
  status, _, error = run('plan', '--from', _toml(tmp_path, text))
  assert status == 2
  assert error.startswith(message) and error.count('\n') == 1


def test_strategy_in_no_file_has_no_toml(tmp_path):
  plan = tff_bandmf.Plan.from_toml(_toml(tmp_path))
  with pytest.raises(ValueError, match='mechanism=a strategy: '):
    attrs.evolve(plan, mechanism=plan.planned_strategy).to_toml()


def test_strategy_file_is_beside_the_toml_file(tmp_path):
  plan = tff_bandmf.Plan.from_toml(_toml(tmp_path))
  strategies.save(plan.planned_strategy, tmp_path / 'c.json')
  path = _toml(tmp_path, _TOML.replace('banded-sqrt', 'c.json'))
  again = tff_bandmf.Plan.from_toml(path)
  assert again.strategy.digest() == plan.strategy.digest()
  assert str(tmp_path / 'c.json') in again.to_toml()
