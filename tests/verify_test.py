"""The verifier verifies runs, refuses forgeries, and runs alone."""

import json
import math
import os
import pathlib
import pwd
import shutil
import sqlite3
import subprocess
import sys
import tempfile

import doctored_runs
import numpy as np
import pytest

import tff_bandmf
from tff_bandmf import report
from tff_bandmf import verify as verify_lib
from tff_bandmf.cli import main

pytestmark = pytest.mark.slow

_FILE = pathlib.Path(verify_lib.__file__)
_FRESH = bool(os.environ.get('BANDMF_FRESH_CASES'))
_DELTA = 1e-5


# A run of each kind.


@pytest.fixture(scope='session')
def runs(tmp_path_factory):
  folder = tmp_path_factory.mktemp('runs')
  min_sep = tff_bandmf.MinSep(4)
  doctored_runs.train(folder / 'first', min_sep, rounds=12)
  doctored_runs.train(
    folder / 'after', min_sep, [folder / 'first'], clients_per_unit=1
  )
  doctored_runs.train(
    folder / 'units', tff_bandmf.MinSep(3, 2), clients_per_unit=2
  )
  clip = tff_bandmf.AdaptiveClip(0.1, until=5)
  doctored_runs.train(
    folder / 'adaptive', min_sep, l2_norm_clip=clip, mechanism='dp-cgd'
  )
  doctored_runs.train(folder / 'single', tff_bandmf.Single(), mechanism='blt')
  doctored_runs.train(folder / 'open', min_sep, stop=7)
  poisson = tff_bandmf.CyclicPoisson(population=120)
  doctored_runs.train(folder / 'poisson', poisson, epsilon=4.0)
  doctored_runs.train(folder / 'budget', tff_bandmf.Budget(4, 2, apart=2))
  doctored_runs.train(folder / 'fixed', tff_bandmf.FixedEpoch(4))
  doctored_runs.train(
    folder / 'tree', tff_bandmf.MinSep(3, 2), mechanism='tree'
  )
  bins = tff_bandmf.BallsInBins(12, population=72)
  doctored_runs.train(folder / 'bins', bins, rounds=12, epsilon=4.0)
  b_min_sep = tff_bandmf.BMinSep(4, 0.05, population=120)
  doctored_runs.train(
    folder / 'b-min-sep', b_min_sep, epsilon=4.0, clients_per_round=5
  )
  # Its plan has no bound of delta.
  of_noise = {'epsilon': None, 'noise_multiplier': 1.0}
  doctored_runs.train(
    folder / 'noise', b_min_sep, clients_per_round=5, **of_noise
  )
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
    'budget',
    'fixed',
    'tree',
    'poisson',
    'bins',
    'b-min-sep',
    'noise',
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
  assert result['epsilon'] == pytest.approx(claimed, rel=2e-6)


def _sql(path, statement):
  with sqlite3.connect(path) as database:
    database.execute(statement)
  database.close()


_FORGERIES = {
  'more noise': ('plan.json', {'noise_multiplier': 0.9}),
  'another clip': ('plan.json', {'request__l2_norm_clip': 0.5}),
  'another divisor': ('plan.json', {'request__clients_per_round': 60}),
  'a bound on participations': (
    'plan.json',
    {'request__cohorts__max_participations': 1},
  ),
  'more clients in a unit': ('plan.json', {'request__clients_per_unit': 2}),
  'another run': ('run.json', {'run_id': '0000000000000001'}),
  'another key': ('run.json', {'noise_key_id': '0000000000000001'}),
  'another delta': ('plan.json', {'request__delta': 0.1}),
  # The ledger's digest of the file alone shows this.
  'another version': ('run.json', {'versions__numpy': '0'}),
  'another strategy': ('strategy.json', {'parameters__bands': 2}),
  'another family': ('strategy.json', {'family': 'sqrt-toeplitz'}),
  'another plan': ('plan.json', {'noise_multiplier': 5.0}),
  'other planned cohorts': ('plan.json', {'request__cohorts__min_sep': 12}),
  'a smaller bound in the plan': ('plan.json', {'bound__epsilon': 7.99}),
  'another C': ('plan.json', {'strategy__parameters__bands': 2}),
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
  doctored_runs.edit(tmp_path / 'run' / file, **changes)
  if file != 'report.json':  # It has the digests of the others.
    (tmp_path / 'run' / 'report.json').unlink()
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
  path.write_text(path.read_text().replace('\n3,6', '\n3,7'))
  with pytest.raises(AssertionError, match='row 3'):
    verify_lib.verify(tmp_path / 'run')


@pytest.mark.parametrize('pattern', [[0, 3], [0, 4, 7], [0, 4, 8, 12]], ids=str)
def test_client_that_came_too_soon_or_too_often_is_found(pattern):
  cohorts = [np.array([1] * (t in pattern) + [2] * (t == 1)) for t in range(13)]
  with pytest.raises(AssertionError, match='of a client'):
    verify_lib.check_cohorts(cohorts, np.eye(13), 'min-sep', 4, 3)


def test_client_above_the_budget_is_found(runs, tmp_path):
  """The report states two rounds of a client, and the budget is of one."""
  shutil.copytree(runs / 'budget', tmp_path / 'run')
  plan = tmp_path / 'run' / 'plan.json'
  noise = json.loads(plan.read_text())['noise_multiplier'] * math.sqrt(2)
  doctored_runs.edit(
    plan,
    request__cohorts__max_participations=1,
    noise_multiplier=noise,
    bound=None,
    request__epsilon=None,
    request__noise_multiplier=noise,
  )
  doctored_runs.rechained(tmp_path / 'run')
  with pytest.raises(AssertionError, match='^budget=1.2.*below 1.7'):
    verify_lib.verify(tmp_path / 'run')


def test_separation_that_is_no_count_is_refused(runs, tmp_path):
  shutil.copytree(runs / 'first', tmp_path / 'run')
  for min_sep in (0, -1, 2.5, True):
    doctored_runs.edit(
      tmp_path / 'run' / 'plan.json', request__cohorts__min_sep=min_sep
    )
    with pytest.raises(ValueError, match=f'min_sep={min_sep}: must be an int'):
      verify_lib.verify(tmp_path / 'run')


def test_plan_with_a_second_schema_does_not_hold(runs, tmp_path):
  shutil.copytree(runs / 'first', tmp_path / 'run')
  doctored_runs.edit(
    tmp_path / 'run' / 'plan.json', strategy__participation='single'
  )
  doctored_runs.rechained(tmp_path / 'run')
  with pytest.raises(AssertionError, match='single.*a plan has None'):
    verify_lib.verify(tmp_path / 'run')


def test_run_before_that_is_another_one_does_not_hold(runs, tmp_path):
  shutil.copytree(runs / 'after', tmp_path / 'after')
  shutil.copytree(runs / 'units', tmp_path / 'first')
  with pytest.raises(AssertionError, match='after'):
    verify_lib.verify(tmp_path / 'after')


_SAMPLED = tff_bandmf.CyclicPoisson(population=120)
_BY_NOISE = {'epsilon': None, 'noise_multiplier': 1.0}


@pytest.mark.parametrize(
  'cohorts, options',
  [
    (_SAMPLED, {'stop': 2}),
    (_SAMPLED, {'stop': 2, **_BY_NOISE}),
    (_SAMPLED, {'mechanism': 'identity', 'noise_multiplier': 0.3}),
    (tff_bandmf.MinSep(4), {'stands_for': 9, **_BY_NOISE}),
    (tff_bandmf.FixedEpoch(2), {'stop': 3, 'mechanism': 'sqrt-toeplitz'}),
    (tff_bandmf.MinSep(3), {'rounds': 40, 'mechanism': 'online-tree'}),
    (
      tff_bandmf.Single(),
      {'l2_norm_clip': tff_bandmf.AdaptiveClip(0.1, until=5), 'delta': 1e-8},
    ),
  ],
  ids=str,
)
@pytest.mark.deep(but=('Single', 'FixedEpoch', 'identity'))
def test_honest_run_and_its_pages_hold(cohorts, options, runs, tmp_path):
  """Alone, and after runs of which one is amplified."""
  if 'noise_multiplier' in options:
    options = {**options, 'epsilon': None}
  shutil.copytree(runs / 'poisson', tmp_path / 'poisson')
  for name, after in ('alone', []), ('after', [tmp_path / 'poisson']):
    folder = tmp_path / name
    doctored_runs.train(folder, cohorts, after, **options)
    verify_lib.verify(folder)
    page = report.publish([report.of_run(folder)])
    page.write(folder)
    if page.content['epsilon'] and page.content['runs'][0]['epsilon']:
      verify_lib.verify(folder / 'public.json')


def test_unfinished_run_counts_as_planned_in_a_composition(tmp_path):
  min_sep = tff_bandmf.MinSep(4)
  doctored_runs.train(tmp_path / 'open', min_sep, stop=2)
  doctored_runs.train(tmp_path / 'after', min_sep, [tmp_path / 'open'])
  found = verify_lib.verify(tmp_path / 'after')['epsilon']
  planned = report.of_run(tmp_path / 'after').guarantee.epsilon(1e-3)
  alone = verify_lib.verify(tmp_path / 'open')['epsilon']
  assert found == pytest.approx(planned, rel=2e-6)
  assert alone == pytest.approx(8, rel=1e-3) and planned > 12


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
    {'attack__true_positive_rate': 0.02},
    {'runs__0__epsilon': None},
    {'delta': 1e-12},
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
  doctored_runs.write_signed(path, content)
  with pytest.raises(AssertionError):
    verify_lib.verify(path)


@pytest.mark.parametrize(
  'name, changes',
  [
    ('poisson', {'delta': 1e-12}),
    # It names the first run, whose figures are not among its own.
    ('after', {'epsilon': 8.0, 'together__epsilon': 8.0}),
  ],
)
def test_public_report_of_one_run_that_was_edited(
  name, changes, runs, tmp_path
):
  path = _public(runs, tmp_path, name)
  verify_lib.verify(path)
  doctored_runs.edit(path, **changes)
  with pytest.raises(AssertionError):
    verify_lib.verify(path)


@pytest.mark.parametrize(
  'release, exact',
  [
    ('x:noise_multiplier=3', True),
    ('x:epsilon=0.5,delta=1e-5', False),
    ('x:rho=0.01', False),
  ],
)
def test_other_releases_are_composed_or_named(
  release, exact, runs, tmp_path, run
):
  for name in 'first', 'after':
    shutil.copytree(runs / name, tmp_path / name)
  folder, path = tmp_path / 'after', tmp_path / 'after' / 'report.json'
  assert run('report', folder, '--release', release)[0] == 0
  claimed = json.loads(path.read_text())['together']['epsilon']
  for each in folder, path:
    found = verify_lib.verify(each)
    assert found['epsilon'] >= claimed * (1 - 1e-5)
    if exact:
      assert found['epsilon'] <= claimed * (1 + 1e-5)
    left = found['not_checked']['report.json']
    # The run shows its own noise to the last bit, and its report does not.
    assert ('together.epsilon' in left) == (each == path or not exact)
    assert 'other_releases.name' in left
  run('report', folder, '--public', '--release', release)
  found = verify_lib.verify(folder / 'public.json')
  assert claimed * 0.99 < found['epsilon'] < claimed * 1.1
  for file, name in ('report', 'together__epsilon'), ('public', 'epsilon'):
    edited = folder / f'{file}.json'
    doctored_runs.edit(edited, **{name: 0.5 * claimed})
    with pytest.raises(AssertionError, match='epsilon|together'):
      verify_lib.verify(edited)


# Bad input: one line, exit status 2.


def _bad_inputs(runs, folder):
  for name in ('later', 'cut', 'large', 'damaged', 'family', 'server'):
    shutil.copytree(runs / 'first', folder / name)
  yield folder / 'nothing'
  yield folder
  doctored_runs.edit(folder / 'later' / 'run.json', version=5)
  yield folder / 'later'
  (folder / 'server' / 'ledger.sqlite').unlink()
  yield folder / 'server'
  ledger = folder / 'cut' / 'ledger.sqlite'
  ledger.write_bytes(ledger.read_bytes()[:5000])
  yield folder / 'cut'
  doctored_runs.edit(
    folder / 'large' / 'plan.json',
    request__rounds=10**6,
    strategy__family='online-tree',
    strategy__rounds=10**6,
    strategy__parameters={},
  )
  yield folder / 'large'
  (folder / 'damaged' / 'strategy.json').write_text('{"format": NaN')
  yield folder / 'damaged'
  doctored_runs.edit(
    folder / 'family' / 'plan.json', strategy__family='unknown'
  )
  yield folder / 'family'
  report = folder / 'report.json'
  shutil.copy(runs / 'first' / 'report.json', report)
  doctored_runs.edit(report, version=9)
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


def test_ledger_on_a_database_server_is_said_not_to_be_read(runs, tmp_path):
  shutil.copytree(runs / 'first', tmp_path / 'run')
  ledger = tmp_path / 'run' / 'ledger.sqlite'
  ledger.unlink()
  with pytest.raises(ValueError, match='only SQLite is read'):
    verify_lib.verify(tmp_path / 'run')
  # A file of SQLite that cannot be read is another failure.
  ledger.write_bytes((runs / 'first' / 'ledger.sqlite').read_bytes()[:5000])
  with pytest.raises(ValueError, match='Error') as raised:
    verify_lib.verify(tmp_path / 'run')
  assert 'only SQLite' not in str(raised.value)


# The folder of a run, which a check does not change.


@pytest.mark.parametrize('log', [None, b''])
def test_check_leaves_no_file_behind(log, runs, tmp_path):
  shutil.copytree(runs / 'first', tmp_path / 'run')
  if log is not None:
    (tmp_path / 'run' / 'ledger.sqlite-wal').write_bytes(log)
  before = sorted(tmp_path.rglob('*'))
  verify_lib.verify(tmp_path / 'run')
  assert sorted(tmp_path.rglob('*')) == before


def test_folder_that_cannot_be_written_is_checked(runs):
  with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder)
    shutil.copytree(runs / 'first', path / 'run')
    for each in (path, path / 'run'):
      each.chmod(0o555)
    root = os.geteuid() == 0
    if root:  # Permissions do not bind root.
      os.seteuid(pwd.getpwnam('nobody').pw_uid)
    try:
      assert not os.access(path / 'run', os.W_OK, effective_ids=True)
      verify_lib.verify(path / 'run')
    finally:
      if root:
        os.seteuid(0)
      for each in (path, path / 'run'):
        each.chmod(0o755)


def test_events_that_are_only_in_the_write_ahead_log_are_read(runs, tmp_path):
  """SQLite would pass over them if it took the file for immutable."""
  folder = tmp_path / 'run'
  shutil.copytree(runs / 'first', folder)
  database = sqlite3.connect(folder / 'ledger.sqlite')
  database.execute('pragma journal_mode = wal')
  last = 'from bandmf_events where round = 11'
  rows = database.execute(f'select * {last}').fetchall()
  database.execute(f'delete {last}')
  database.commit()
  database.execute('pragma wal_checkpoint(truncate)')
  marks = ', '.join('?' * len(rows[0]))
  database.executemany(f'insert into bandmf_events values ({marks})', rows)
  database.commit()
  before = sorted(folder.iterdir())
  assert folder / 'ledger.sqlite-wal' in before
  verify_lib.verify(folder)
  assert sorted(folder.iterdir()) == before
  shutil.copytree(folder, tmp_path / 'cut')
  database.close()
  (tmp_path / 'cut' / 'ledger.sqlite-wal').unlink()
  with pytest.raises(AssertionError, match='lacks its last events'):
    verify_lib.verify(tmp_path / 'cut')


# Runs of which there is nothing to verify, or not yet.


@pytest.mark.parametrize('options', [{}, {'delta': None}], ids=str)
def test_run_without_noise_has_no_claim_to_check(options, tmp_path, capsys):
  folder = tmp_path / 'run'
  silent = {'epsilon': None, 'noise_multiplier': 0.0, 'mechanism': 'identity'}
  doctored_runs.train(folder, tff_bandmf.MinSep(4), **silent, **options)
  assert main.main(['verify', str(folder)]) == 1
  out, _ = capsys.readouterr()
  assert 'added no noise: there is no claim to check' in out
  assert 'VERIFIED' not in out


def test_report_of_earlier_rounds_is_to_be_written_again(tmp_path):
  folder, path = tmp_path / 'run', tmp_path / 'run' / 'report.json'
  doctored_runs.train(folder, tff_bandmf.MinSep(4), stop=3)
  early = path.read_text()
  doctored_runs.train(folder, tff_bandmf.MinSep(4))
  verify_lib.verify(folder)
  path.write_text(early)
  with pytest.raises(AssertionError, match='=.*: .*run bandmf report again'):
    verify_lib.verify(folder)


def test_command_prints_one_json_object(runs, tmp_path, capsys):
  assert main.main(['verify', str(runs / 'first'), '--json']) == 0
  shown = json.loads(capsys.readouterr().out)
  assert shown['verified'] and shown['epsilon'] == pytest.approx(8, rel=1e-6)
  shutil.copytree(runs / 'first', tmp_path / 'run')
  doctored_runs.edit(
    tmp_path / 'run' / 'plan.json', request__clients_per_round=60
  )
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


def test_file_and_command_work_without_docstrings(runs):
  command = pathlib.Path(sys.executable).with_name('bandmf')
  for start in ([str(_FILE)], [str(command), 'verify']):
    result = subprocess.run(
      [sys.executable, '-OO', *start, str(runs / 'first')],
      capture_output=True,
      text=True,
    )
    assert result.returncode == 0, result.stderr
    assert 'Whoever writes all of these files anew' in result.stdout
    assert result.stdout.splitlines()[-1].startswith('VERIFIED')


@pytest.mark.skipif(sys.version_info < (3, 10), reason='names of the library')
@pytest.mark.parametrize('edited', [False, True])
def test_copied_file_runs_alone(edited, runs, tmp_path):
  copy = tmp_path / 'copied.py'
  shutil.copy(_FILE, copy)
  shutil.copytree(runs / 'first', tmp_path / 'run')
  if edited:
    doctored_runs.edit(
      tmp_path / 'run' / 'plan.json', request__l2_norm_clip=0.5
    )
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


def test_file_is_one_and_of_limited_length():
  """Somebody who doubts a report reads it in a day."""
  assert len(_FILE.read_text().splitlines()) <= 1450


# An attacker who computes every hash anew.


@pytest.mark.parametrize('name', ['first', 'poisson', 'bins', 'budget'])
def test_chain_that_was_written_again_is_the_attack_that_is_meant(
  name, runs, tmp_path
):
  """With nothing edited it holds, so what follows is refused for its field."""
  shutil.copytree(runs / name, tmp_path / 'run')
  doctored_runs.rechained(tmp_path / 'run')
  found = verify_lib.verify(tmp_path / 'run')
  assert found == verify_lib.verify(runs / name)


@pytest.mark.parametrize(
  'changes',
  [
    {'clients_per_unit': 0},
    {'clients_per_unit': 0.001},
    {'clients_per_unit': -1},
    {'clients_per_unit': True},
    {'dimension': -(10**12)},
    {'dimension': 0.5},
    {'delta': 2.0},
    {'delta': 0},
    {'min_sep': 12},
    {'min_sep': -4},
    {'min_sep': 0.5},
    {'max_participations': 1},
    {'max_participations': -1},
    {'apart': 12},
    {'groups': 12},
    {'participation': 'budget', 'participations': 12, 'sensitivity': 0.1},
    {'participation': 'budget', 'participations': -9},
    {'amplification': 'cyclic-poisson', 'sampling_prob': 0.01},
    {'noise_multiplier': 9.0, 'z_stddev_per_clip': 1e999},
    {'noise_multiplier': 9.0},
    {'sensitivity': 1e-3, 'z_stddev_per_clip': 1e-3},
    {'min_sep': None},
    {'participation': 'single', 'min_sep': None},
    {'bins': 12},
  ],
  ids=str,
)
def test_attacker_with_every_hash_gets_no_smaller_epsilon(
  changes, runs, tmp_path
):
  shutil.copytree(runs / 'first', tmp_path / 'run')
  (tmp_path / 'run' / 'report.json').unlink()
  plan = tmp_path / 'run' / 'plan.json'
  content = json.loads(plan.read_text())
  request = content['request']
  # A plan by its noise has no bound, with which the changes could not agree.
  asked = {'epsilon': None, 'noise_multiplier': content['noise_multiplier']}
  asked.update({name: changes[name] for name in changes if name in request})
  rest = {name: changes[name] for name in {*changes} - {*request}}
  doctored_runs.edit(
    plan,
    bound=None,
    noise_multiplier=asked['noise_multiplier'],
    **{f'request__{name}': value for name, value in asked.items()},
    **{f'request__cohorts__{name}': value for name, value in rest.items()},
  )
  (tmp_path / 'run' / 'strategy.json').unlink()
  doctored_runs.rechained(tmp_path / 'run')
  try:
    found = verify_lib.verify(tmp_path / 'run')
  except (AssertionError, ValueError) as error:
    assert '\n' not in str(error)
  else:
    assert found['epsilon'] >= 7.99 and 0 < found['delta'] <= 1e-3


# Name of the run; what is edited of a plan p, by file; what is wrong then.
_CONSISTENT = {
  'a smaller clip, and so more noise': (
    'first',
    lambda p: {
      'plan.json': {
        'noise_multiplier': 10 * p['noise_multiplier'],
        'request__l2_norm_clip': 0.1,
      },
    },
    'epsilon',
  ),
  'a budget below what was typical': (
    'budget',
    lambda p: {'plan.json': {'noise_multiplier': 2 * p['noise_multiplier']}},
    'sensitivity',
  ),
  'a smaller sampling probability': (
    'poisson',
    lambda p: {
      'plan.json': {'request__cohorts__sampling_prob': 0.02},
      'report.json': {'epsilon': 0.4},
    },
    'sampling_prob|epsilon',
  ),
  'sampling of everybody': (
    'poisson',
    lambda p: {
      'plan.json': {'request__cohorts__sampling_prob': 1.0},
      'report.json': {'epsilon': 0.4},
    },
    'sampling_prob|epsilon',
  ),
  'more bands than groups': (
    'poisson',
    lambda p: {'plan.json': {'strategy__parameters__bands': 8}},
    'groups',
  ),
  'an amplified epsilon of bins': (
    'bins',
    lambda p: {'report.json': {'epsilon': 0.4}},
    'epsilon',
  ),
  'the same, and the bound that it rests on': (
    'bins',
    lambda p: {
      'plan.json': {'bound__epsilon': 0.4},
      'report.json': {'epsilon': 0.4},
    },
    'bound',
  ),
  'an amplified epsilon of b-min-sep': (
    'b-min-sep',
    lambda p: {
      'plan.json': {'bound__epsilon': 0.4},
      'report.json': {'epsilon': 0.4},
    },
    'bound',
  ),
  'a smaller rho in the report': (
    'first',
    lambda p: {'report.json': {'rho': 0.01}},
    'rho',
  ),
  'an attacker who finds less': (
    'first',
    lambda p: {'report.json': {'attack__true_positive_rate': 0.02}},
    'true_positive_rate',
  ),
  'no runs before': (
    'after',
    lambda p: {'report.json': {'together': None, 'check': None}},
    'together',
  ),
}


@pytest.mark.parametrize('name', _CONSISTENT)
def test_files_that_contradict_each_other_do_not_hold(name, runs, tmp_path):
  """The attacker computes every hash again, that of the report too."""
  run, edits, wrong = _CONSISTENT[name]
  folder = tmp_path / run
  for each in {run, 'first'}:
    shutil.copytree(runs / each, tmp_path / each)
  plan = json.loads((folder / 'plan.json').read_text())
  changed = edits(plan)
  for file, changes in changed.items():
    doctored_runs.edit(folder / file, **changes)
  (folder / 'strategy.json').unlink()
  if name.startswith('more bands'):
    before = verify_lib.matrix(plan['strategy'])
    after = {**plan['strategy'], 'parameters': {'bands': 8}}
    most, least = (
      np.linalg.norm(each, axis=0).max()
      for each in (verify_lib.matrix(after), before)
    )
    doctored_runs.edit(
      folder / 'plan.json',
      noise_multiplier=plan['noise_multiplier'] * least / most,
      request__cohorts__groups=4,
    )
    (folder / 'report.json').unlink()
  doctored_runs.rechained(folder)
  with pytest.raises(AssertionError, match=wrong):
    verify_lib.verify(folder)
  if {*changed} != {'report.json'}:
    with pytest.raises(ValueError):
      report.of_run(folder)


@pytest.mark.parametrize('name', ['first', 'poisson'])
def test_run_that_ended_early_has_no_smaller_epsilon(name, runs, tmp_path):
  """Fewer rounds have a smaller epsilon: 6.1 for 8 of a run of six."""
  folder = tmp_path / 'run'
  whole = verify_lib.verify(runs / name)['epsilon']
  shutil.copytree(runs / name, folder)
  (folder / 'report.json').unlink()
  for statement in (
    "delete from bandmf_events where round >= 4 and kind <> 'ended'",
    'delete from bandmf_rounds where round >= 4',
    "update bandmf_events set round = 3 where kind = 'ended'",
    'update bandmf_events set place = (select count(*) - 1 from bandmf_events) '
    "where kind = 'ended'",
    'update bandmf_ledger set events = (select count(*) from bandmf_events)',
  ):
    _sql(folder / 'ledger.sqlite', statement)
  lines = (folder / 'metrics.csv').read_text().splitlines(keepends=True)
  (folder / 'metrics.csv').write_text(''.join(lines[:5]))
  doctored_runs.rechained(folder)
  assert verify_lib.verify(folder)['epsilon'] == whole


@pytest.mark.parametrize(
  'kinds',
  [
    {'finished': ('Finished', 0.01)},
    {'finished': ('finished', 0.01)},
    {'finished': ('finished', None)},
  ],
  ids=str,
)
def test_round_of_little_noise_is_not_hidden(kinds, runs, tmp_path):
  shutil.copytree(runs / 'first', tmp_path / 'run')
  (tmp_path / 'run' / 'report.json').unlink()
  doctored_runs.rechained(tmp_path / 'run', kinds)
  with pytest.raises((AssertionError, ValueError)):
    verify_lib.verify(tmp_path / 'run')


def _without_report(runs, folder, *statements):
  """Copies a run, changes its ledger, and computes the chain again."""
  shutil.copytree(runs / 'first', folder)
  (folder / 'report.json').unlink()
  for statement in statements:
    _sql(folder / 'ledger.sqlite', f'update bandmf_events set {statement}')
  doctored_runs.rechained(folder)


@pytest.mark.parametrize('digests', [("x'01'", 'digest'), ('null', 'null')])
def test_round_with_two_results_does_not_hold(digests, runs, tmp_path):
  """Two sums with the same noise show their difference."""
  first, second = digests
  noise = '(select max(z_stddev) from bandmf_events)'
  _without_report(
    runs,
    tmp_path / 'run',
    f"digest = {second} where round = 5 and kind = 'finished'",
    f"kind = 'finished', digest = {first}, z_stddev = {noise}, "
    "noise_checked = 1 where round = 5 and kind = 'direct'",
  )
  with pytest.raises(AssertionError, match='round 5: was released twice'):
    verify_lib.verify(tmp_path / 'run')


def test_row_of_metrics_without_an_event_does_not_hold(runs, tmp_path):
  changed = "kind = 'direct', digest = null where round = 5 and kind = 'row'"
  _without_report(runs, tmp_path / 'run', changed)
  with pytest.raises(AssertionError, match='row 5'):
    verify_lib.verify(tmp_path / 'run')


def test_other_cohort_size_than_in_the_ledger_does_not_hold(runs, tmp_path):
  _without_report(runs, tmp_path / 'run')
  path = tmp_path / 'run' / 'metrics.csv'
  path.write_text(path.read_text().replace('\n3,6', '\n3,7'))
  doctored_runs.rechained(tmp_path / 'run')
  with pytest.raises(AssertionError, match='clients'):
    verify_lib.verify(tmp_path / 'run')


@pytest.mark.parametrize('kind', ['bins', 'b-min-sep'])
def test_sampled_claim_of_a_small_delta_is_compared_relatively(kind, tmp_path):
  """An epsilon that is too small by a tenth has twice the delta, 1e-6."""
  cohorts = {
    'bins': tff_bandmf.BallsInBins(8, population=48),
    'b-min-sep': tff_bandmf.BMinSep(4, 0.05, population=120),
  }[kind]
  folder = tmp_path / 'run'
  clients = 6 if kind == 'bins' else 5
  doctored_runs.train(folder, cohorts, delta=1e-6, clients_per_round=clients)
  found = verify_lib.verify(folder)['delta_with_chance_estimated']
  bound = json.loads((folder / 'plan.json').read_text())['bound']
  assert found == pytest.approx(bound['estimate'], rel=0.5)
  less = 0.9 * bound['epsilon']
  (folder / 'report.json').unlink()
  doctored_runs.edit(folder / 'plan.json', bound__epsilon=less)
  doctored_runs.rechained(folder)
  with pytest.raises(AssertionError, match='bound'):
    verify_lib.verify(folder)


def test_cut_cohorts_are_not_amplified(runs, tmp_path):
  """Rounds in which fewer updates than clients arrived say so in the chain."""
  shutil.copytree(runs / 'poisson', tmp_path / 'run')
  report_of_run = (tmp_path / 'run' / 'report.json').read_text()
  (tmp_path / 'run' / 'report.json').unlink()
  doctored_runs.rechained(tmp_path / 'run', {'direct': ('incomplete', None)})
  assert 'with_chance' not in verify_lib.verify(tmp_path / 'run')
  content = json.loads(report_of_run)
  assert content['amplification'] == 'cyclic-poisson'
  content.update(files_sha256={}, ledger_head=None)
  doctored_runs.write_signed(tmp_path / 'run' / 'report.json', content)
  with pytest.raises(AssertionError, match='cut'):
    verify_lib.verify(tmp_path / 'run')


def test_amplified_epsilon_that_is_too_small_does_not_hold(runs, tmp_path):
  shutil.copytree(runs / 'poisson', tmp_path / 'run')
  found = verify_lib.verify(tmp_path / 'run')
  path = tmp_path / 'run' / 'report.json'
  claimed = json.loads(path.read_text())['epsilon']
  assert claimed * 0.999 < found['with_chance'] < claimed * 1.01
  doctored_runs.edit(path, epsilon=0.97 * claimed)
  with pytest.raises(AssertionError, match='epsilon'):
    verify_lib.verify(tmp_path / 'run')


def test_random_bytes_are_never_verified_with_a_smaller_epsilon(runs, tmp_path):
  """Nor do they give a traceback."""
  shutil.copytree(runs / 'first', tmp_path / 'run')
  public = _public(runs, tmp_path, 'first')
  rng = np.random.default_rng(None if _FRESH else sum(b'bytes'))
  files = ('run.json', 'plan.json', 'ledger.sqlite', '../public.json')
  truth = {'run': 7.99, 'public': verify_lib.verify(public)['epsilon']}
  for _ in range(2000 if _FRESH else 160):
    path = tmp_path / 'run' / files[rng.integers(len(files))]
    before = path.read_bytes()
    place = int(rng.integers(len(before)))
    byte = bytes([rng.integers(256)])
    edits = [byte, byte + before[place : place + 1], b'']
    path.write_bytes(
      before[:place] + edits[rng.integers(3)] + before[place + 1 :]
    )
    is_public = path.name == 'public.json'
    try:
      found = verify_lib.verify(path if is_public else path.parent)
    except (AssertionError, ValueError) as error:
      assert '\n' not in str(error)
    else:
      assert found['epsilon'] >= truth['public' if is_public else 'run']
    path.write_bytes(before)
