"""Tests of `bandmf plan`."""

import json
import subprocess
import sys

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
