"""The verifier agrees with the library, refuses forgeries, and runs alone."""

import hashlib
import json
import math
import os
import pathlib
import shutil
import sqlite3
import subprocess
import sys

import families
import numpy as np
import pytest

import tff_bandmf
from tff_bandmf import (
  accounting,
  participation,
  report,
  sensitivity,
  strategies,
)
from tff_bandmf import verify as verify_lib
from tff_bandmf.cli import main

_FILE = pathlib.Path(verify_lib.__file__)
_FRESH = bool(os.environ.get('BANDMF_FRESH_CASES'))
_CASES = 300 if _FRESH else 12
_DELTA = 1e-5


def _rng(name):
  return np.random.default_rng(None if _FRESH else sum(name.encode()))


def _written(strategy, path):
  strategies.save(strategy, path)
  return json.loads(path.read_text())


def _rule(schema, n):
  """Returns gap, most rounds of a client, and whether rounds are gap apart."""
  if isinstance(schema, participation.Single):
    return n, 1, False
  gap = schema.min_sep
  most = min(schema.max_participations or n, -(-n // gap))
  return gap, most, isinstance(schema, participation.FixedEpoch)


def _random_schema(rng, n):
  gap = int(rng.integers(1, n + 1))
  most = int(rng.integers(1, n + 1)) if rng.random() < 0.5 else None
  return [
    participation.Single(),
    participation.FixedEpoch(gap, most),
    participation.MinSep(gap, most),
  ][rng.integers(3)]


def _worst(c, schema):
  """Returns the largest |C u| over all patterns, all updates alike."""
  n = len(c)
  gap, most, fixed = _rule(schema, n)

  def largest(total, last, count):
    cost = total @ total
    ends = [last + gap] if fixed and count else range(last + gap, n)
    for t in ends if count < most else ():
      if t < n:
        cost = max(cost, largest(total + c[:, t], t, count + 1))
    return cost

  return math.sqrt(largest(np.zeros(n), -gap, 0))


@pytest.mark.parametrize('name', sorted(families.made(7)))
def test_sensitivity_agrees_and_is_not_below_brute_force(name, tmp_path):
  rng = _rng(name)
  for _ in range(_CASES):
    n = int(rng.integers(6, 13))
    strategy = families.made(n)[name]
    c = verify_lib.matrix(_written(strategy, tmp_path / 'c.json'))
    schema = _random_schema(rng, n)
    lower, upper = verify_lib.sensitivity(c, *_rule(schema, n))
    theirs = sensitivity.sensitivity(strategy, schema)
    worst = _worst(c, schema)
    assert upper >= worst * (1 - 1e-12)
    assert lower <= upper and lower <= theirs.value * (1 + 1e-9)
    if name in ('tree', 'online-tree'):
      continue  # Its bound for trees is another one.
    # What the library claims is confirmed.
    assert upper <= theirs.value * (1 + 1e-9)
    if theirs.method == 'exact':
      assert upper == pytest.approx(theirs.value, rel=1e-9)


@pytest.mark.parametrize('name', sorted(families.made(7)))
def test_c_is_that_of_the_library(name, tmp_path):
  strategy = families.made(23)[name]
  c = verify_lib.matrix(_written(strategy, tmp_path / 'c.json'))
  np.testing.assert_allclose(c, strategy.matrix(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize('name', sorted(families.made(7)))
def test_epsilon_agrees_to_the_printed_digit(name, tmp_path):
  rng = _rng(name)
  for _ in range(_CASES // 6):
    n = int(rng.integers(6, 40))
    strategy = families.made(n)[name]
    schema = _random_schema(rng, n)
    units, z = int(rng.integers(1, 4)), float(rng.uniform(1.5, 9))
    dimension = [None, 50, 3000, 10**6][rng.integers(4)]
    theirs = sensitivity.sensitivity(strategy, schema)
    guarantee = accounting.Guarantee(
      strategy,
      schema,
      z / (units * theirs.value),
      clients_per_unit=units,
      dimension=dimension,
    )
    c = verify_lib.matrix(_written(strategy, tmp_path / 'c.json'))
    _, most, _ = _rule(schema, n)
    claim = {
      'clients_per_unit': units,
      'dimension': dimension,
      'z_stddev_per_clip': z,
    }
    # Both from one sensitivity: trees have two bounds.
    run = verify_lib.mechanism(c, theirs.value, most, claim)
    with np.errstate(all='ignore'):
      mine = verify_lib.guarantee([run], _DELTA)
    claimed = guarantee.proved_epsilon(_DELTA)
    if claimed is None:
      continue
    assert mine == pytest.approx(claimed, rel=1e-5)


@pytest.mark.parametrize('mu', [0.05, 0.7, 3.0, 30.0])
def test_gaussian_delta_is_rounded_up_by_little(mu):
  from scipy import special

  for epsilon in np.linspace(0.0, mu * mu / 2 + 6 * mu, 13):
    a, b = epsilon / mu - mu / 2, epsilon / mu + mu / 2
    log_ratio = epsilon + special.log_ndtr(-b) - special.log_ndtr(-a)
    true = special.ndtr(-a) * -np.expm1(log_ratio)
    mine = verify_lib.gaussian_delta(epsilon, mu)
    assert true * (1 - 1e-9) <= mine
    assert mine <= true * (1 + 1e-6) + 3e-12 * special.ndtr(-a)


def test_bound_of_poisson_sampling_is_above_the_claim():
  plan = tff_bandmf.Plan(
    rounds=24,
    clients_per_round=4,
    cohorts=tff_bandmf.CyclicPoisson(population=120),
    epsilon=4.0,
    delta=1e-4,
    l2_norm_clip=1.0,
    mechanism='banded-sqrt',
  )
  q, groups = plan.sampled.sampling_prob, plan.strategy.bands
  sigma = plan.guarantee.noise_multiplier
  profile = verify_lib.poisson_profile(sigma, q, -(-24 // groups))
  assert 1e-4 <= profile(3.999) < 2e-2
  assert profile(60.0) < 1e-10


# A run of each kind.


def _train(folder, cohorts, after=(), stop=None, **options):
  """Trains in a folder until round `stop`, and writes what `verify` reads."""
  plan = tff_bandmf.Plan(
    **{
      'rounds': 8,
      'clients_per_round': 6,
      'cohorts': cohorts,
      'epsilon': 8.0,
      'delta': 1e-3,
      'l2_norm_clip': 1.0,
      'mechanism': 'banded-sqrt',
      **options,
    }
  )
  with tff_bandmf.Run(folder, plan, after=after) as run:
    weights = np.zeros(3)
    clients = plan.sampled.population if plan.sampled else 80
    for round in run.rounds(clients=clients):
      if round.index == stop:
        break
      updates = [np.full(3, 0.1) for _ in round.cohort]
      weights = round.finish(weights + round.release(updates, weights))
    else:
      run.record(test_accuracy=0.24)
  text = report.build(folder).json()
  (folder / 'report.json').write_text(text)


@pytest.fixture(scope='module')
def runs(tmp_path_factory):
  folder = tmp_path_factory.mktemp('runs')
  min_sep = tff_bandmf.MinSep(4)
  _train(folder / 'first', min_sep, rounds=12)
  _train(folder / 'after', min_sep, [folder / 'first'], clients_per_unit=1)
  _train(folder / 'units', tff_bandmf.MinSep(3, 2), clients_per_unit=2)
  clip = tff_bandmf.AdaptiveClip(0.1, until=5)
  _train(folder / 'adaptive', min_sep, l2_norm_clip=clip, mechanism='dp-cgd')
  _train(folder / 'single', tff_bandmf.Single(), mechanism='blt')
  _train(folder / 'open', min_sep, stop=7)
  poisson = tff_bandmf.CyclicPoisson(population=120)
  _train(folder / 'poisson', poisson, epsilon=4.0)
  bins = tff_bandmf.BallsInBins(12, population=72)
  _train(folder / 'bins', bins, rounds=12, epsilon=4.0)
  b_min_sep = tff_bandmf.BMinSep(4, 0.05, population=120)
  _train(folder / 'b-min-sep', b_min_sep, epsilon=4.0, clients_per_round=5)
  return folder


@pytest.mark.parametrize(
  'name',
  [
    'first',
    'after',
    'units',
    'adaptive',
    'single',
    'open',
    'poisson',
    'bins',
    'b-min-sep',
  ],
)
def test_run_is_verified_with_the_epsilon_of_its_report(name, runs):
  result = verify_lib.verify(runs / name)
  report = json.loads((runs / name / 'report.json').read_text())
  claimed = report['epsilon']
  if report['sampling']:
    claimed = report['sampling']['epsilon_unamplified']
  if report['together']:
    claimed = report['together']['epsilon']
  assert result['epsilon'] == pytest.approx(claimed, rel=1e-6)


def _edit(path, **changes):
  """Changes values of a JSON file by dotted names."""
  content = json.loads(path.read_text())
  for name, value in changes.items():
    *parents, last = name.split('__')
    place = content
    for parent in parents:
      place = place[parent]
    place[last] = value
  _write_signed(path, content)


def _write_signed(path, content):
  """Writes JSON; a report gets the digest that its figures have now."""
  if content.pop('content_sha256', None):
    text = json.dumps(content, sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()
    content['content_sha256'] = digest
  path.write_text(json.dumps(content))


def _sql(path, statement):
  with sqlite3.connect(path) as database:
    database.execute(statement)
  database.close()


_FORGERIES = {
  'less noise in run.json': (
    'run.json',
    {'claim__noise_multiplier': 0.9, 'claim__z_stddev_per_clip': 1.9},
  ),
  'a smaller sensitivity': ('run.json', {'claim__sensitivity': 1.0}),
  'another clip': ('run.json', {'claim__l2_norm_clip': 0.5}),
  'another divisor': ('run.json', {'claim__clients_per_round': 60}),
  'another schema': ('run.json', {'claim__min_sep': 12}),
  'a bound on participations': ('run.json', {'claim__max_participations': 1}),
  'more clients in a unit': ('run.json', {'claim__clients_per_unit': 2}),
  'another run': ('run.json', {'run_id': '0000000000000001'}),
  'another key': ('run.json', {'noise_key_id': '0000000000000001'}),
  'another delta': ('run.json', {'claim__delta': 0.1}),
  'a small model': ('run.json', {'claim__dimension': 1}),
  'other enforcement': ('run.json', {'enforced__min_sep': 12}),
  'another strategy': ('strategy.json', {'parameters__bands': 2}),
  'another family': ('strategy.json', {'family': 'sqrt-toeplitz'}),
  'another plan': ('plan.json', {'noise_multiplier': 5.0}),
  'other planned cohorts': ('plan.json', {'request__cohorts__min_sep': 12}),
  'a smaller bound in the plan': ('plan.json', {'bound__epsilon': 7.99}),
  'another head': ('result.json', {'ledger_head': '0' * 64}),
  'a smaller epsilon in the report': ('report.json', {'epsilon': 7.99}),
  'a smaller planned epsilon': ('report.json', {'planned__epsilon': 1.0}),
  'a smaller observed epsilon': ('report.json', {'observed__epsilon': 1.0}),
  'more noise in the report': ('report.json', {'noise_multiplier': 9.0}),
}


@pytest.mark.parametrize('name', _FORGERIES)
def test_forged_file_does_not_hold(name, runs, tmp_path):
  shutil.copytree(runs / 'first', tmp_path / 'run')
  file, changes = _FORGERIES[name]
  _edit(tmp_path / 'run' / file, **changes)
  with pytest.raises(AssertionError):
    verify_lib.verify(tmp_path / 'run')


@pytest.mark.parametrize(
  'statement',
  [
    "update bandmf_events set z_stddev = 9.0 where kind = 'finished'",
    'update bandmf_events set noise_checked = 0',
    "update bandmf_events set kind = 'failed' where place = 2",
    'update bandmf_events set round = 1 where place = 0',
    "update bandmf_events set digest = x'00' where place = 0",
    'update bandmf_rounds set highest = 3 where round = 0',
    'update bandmf_rounds set cohort = substr(cohort, 9) where round = 0',
    'delete from bandmf_rounds where round = 11',
    'delete from bandmf_events where round = 11',
    'update bandmf_ledger set run = 1',
    'update bandmf_ledger set events = 3',
    'update bandmf_ledger set key = 3',
  ],
)
def test_changed_ledger_does_not_hold(statement, runs, tmp_path):
  shutil.copytree(runs / 'first', tmp_path / 'run')
  _sql(tmp_path / 'run' / 'ledger.sqlite', statement)
  with pytest.raises(AssertionError, match=r'ledger|round'):
    verify_lib.verify(tmp_path / 'run')


def test_ledger_of_an_earlier_moment_does_not_hold(runs, tmp_path):
  shutil.copytree(runs / 'first', tmp_path / 'run')
  shutil.copy(runs / 'open' / 'ledger.sqlite', tmp_path / 'run')
  with pytest.raises(AssertionError, match='another run'):
    verify_lib.verify(tmp_path / 'run')


def test_row_of_metrics_that_was_changed_does_not_hold(runs, tmp_path):
  shutil.copytree(runs / 'first', tmp_path / 'run')
  path = tmp_path / 'run' / 'metrics.csv'
  path.write_text(path.read_text().replace('3,6', '3,7'))
  with pytest.raises(AssertionError, match='row 3'):
    verify_lib.verify(tmp_path / 'run')


@pytest.mark.parametrize('pattern', [[0, 3], [0, 4, 7], [0, 4, 8, 12]], ids=str)
def test_client_that_came_too_soon_or_too_often_is_found(pattern):
  cohorts = [np.array([1] * (t in pattern) + [2] * (t == 1)) for t in range(13)]
  with pytest.raises(AssertionError, match='of a client'):
    verify_lib.check_cohorts(cohorts, np.eye(13), 'min-sep', 4, 3)


def test_run_before_that_is_another_one_does_not_hold(runs, tmp_path):
  shutil.copytree(runs / 'after', tmp_path / 'after')
  shutil.copytree(runs / 'units', tmp_path / 'first')
  with pytest.raises(AssertionError, match='after'):
    verify_lib.verify(tmp_path / 'after')


def _public(runs, tmp_path, *names):
  folders = [str(runs / name) for name in names]
  assert (
    main.main(['report', *folders, '--public', '--out', str(tmp_path)]) == 0
  )
  return tmp_path / 'public.json'


@pytest.mark.parametrize('names', [['first'], ['first', 'after'], ['poisson']])
def test_public_report_holds(names, runs, tmp_path):
  path = _public(runs, tmp_path, *names)
  assert verify_lib.verify(path)['epsilon'] > 7


@pytest.mark.parametrize(
  'changes',
  [
    {'epsilon': 9.0},
    {'together__epsilon': 8.0},
    {'runs__0__epsilon': 1.0},
    {'runs__0__rho': 1.0},
    {'runs__1__noise_multiplier': 0.2},
  ],
  ids=str,
)
def test_public_report_that_was_edited_does_not_hold(changes, runs, tmp_path):
  path = _public(runs, tmp_path, 'first', 'after')
  content = json.loads(path.read_text())
  for name, value in changes.items():
    *parents, last = name.split('__')
    place = content
    for parent in parents:
      place = place[int(parent) if parent.isdigit() else parent]
    place[last] = value
  _write_signed(path, content)
  with pytest.raises(AssertionError):
    verify_lib.verify(path)


# Bad input: one line, exit status 2.


def _bad_inputs(runs, folder):
  for name in ('later', 'cut', 'large', 'damaged', 'family'):
    shutil.copytree(runs / 'first', folder / name)
  yield folder / 'nothing'
  yield folder
  _edit(folder / 'later' / 'run.json', version=3)
  yield folder / 'later'
  ledger = folder / 'cut' / 'ledger.sqlite'
  ledger.write_bytes(ledger.read_bytes()[:5000])
  yield folder / 'cut'
  for file in ('strategy.json', 'plan.json'):
    content = json.loads((folder / 'large' / file).read_text())
    (content if file[0] == 's' else content['strategy'])['rounds'] = 10**6
    (folder / 'large' / file).write_text(json.dumps(content))
  yield folder / 'large'
  (folder / 'damaged' / 'strategy.json').write_text('{"format": NaN')
  yield folder / 'damaged'
  for file, place in (
    ('strategy.json', 'family'),
    ('plan.json', 'strategy__family'),
  ):
    _edit(folder / 'family' / file, **{place: 'unknown'})
  yield folder / 'family'
  report = folder / 'report.json'
  shutil.copy(runs / 'first' / 'report.json', report)
  _edit(report, version=9)
  yield report
  for text in ('', '[]', '1', '{}', '[' * 100000, '\x00'):
    report.write_text(text)
    yield report


def test_bad_input_gives_one_line_and_status_2(runs, tmp_path, capsys):
  for path in _bad_inputs(runs, tmp_path):
    for arguments in (['verify', str(path)], ['verify', str(path), '--json']):
      assert main.main(arguments) == 2
      out, err = capsys.readouterr()
      assert 'VERIFIED' not in out
      assert len(err.splitlines()) == 1 and 'Traceback' not in err


def test_command_prints_one_json_object(runs, tmp_path, capsys):
  assert main.main(['verify', str(runs / 'first'), '--json']) == 0
  shown = json.loads(capsys.readouterr().out)
  assert shown['verified'] and shown['epsilon'] == pytest.approx(8, rel=1e-6)
  shutil.copytree(runs / 'first', tmp_path / 'run')
  _edit(tmp_path / 'run' / 'run.json', claim__clients_per_round=60)
  assert main.main(['verify', str(tmp_path / 'run'), '--json']) == 1
  assert json.loads(capsys.readouterr().out)['verified'] is False


_ALONE = """
import runpy, sys

class Blocked:
  def find_spec(self, name, path=None, target=None):
    top = name.partition('.')[0]
    if top not in sys.stdlib_module_names and top not in ('numpy', 'mkl'):
      raise ImportError(name + ' is not there')

sys.meta_path.insert(0, Blocked())
sys.argv = ['verify.py', sys.argv[2]]
runpy.run_path({path!r}, run_name='__main__')
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.version_info < (3, 10), reason='names of the library')
@pytest.mark.parametrize('edited', [False, True])
def test_copied_file_runs_alone(edited, runs, tmp_path):
  copy = tmp_path / 'copied.py'
  shutil.copy(_FILE, copy)
  shutil.copytree(runs / 'first', tmp_path / 'run')
  if edited:
    _edit(tmp_path / 'run' / 'run.json', claim__l2_norm_clip=0.5)
  result = subprocess.run(
    [
      sys.executable,
      '-I',
      '-c',
      _ALONE.format(path=str(copy)),
      '',
      str(tmp_path / 'run'),
    ],
    capture_output=True,
    text=True,
    cwd=tmp_path,
  )
  assert result.returncode == (1 if edited else 0), result.stderr
  word = 'DOES NOT HOLD' if edited else 'VERIFIED'
  assert word in result.stdout and not result.stderr


def test_file_is_one_and_short():
  """Somebody who doubts a report reads it in one sitting."""
  assert len(_FILE.read_text().splitlines()) <= 500
