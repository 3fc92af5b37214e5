"""Tests of runs that come after others on the same clients."""

import dataclasses
import json
import os
import shutil

import dp_accounting
import pytest
import written_run

import tff_bandmf
from tff_bandmf import accounting, report
from tff_bandmf.run_files import run_json

pytestmark = pytest.mark.slow
_BOTH = ['first', 'second']


def _run(folder, after=(), key=None, cohorts=written_run.KEPT, **changes):
  """Makes a run that names others; each has its own noise."""
  named = [
    {
      'run': os.path.relpath(other, folder),
      'run_id': json.loads((other / run_json.RUN_FILE).read_text())['run_id'],
    }
    for other in after
  ]
  return written_run.make_run(
    folder,
    cohorts,
    key=key or folder.name.encode(),
    **({'after': named} if named else {}),
    **changes,
  )


def test_other_releases_are_composed_and_listed(tmp_path, run_json):
  first = _run(tmp_path / 'first', noise_multiplier=1.0)
  second = _run(tmp_path / 'second', [tmp_path / 'first'])
  flags = ['--release', 'counts:noise_multiplier=3', '--release', 'x:rho=0.01']
  releases = [
    accounting.Release(noise_multiplier=3.0),
    accounting.Release(rho=0.01),
  ]
  written = run_json('report', tmp_path / 'second', *flags)
  expected = accounting.compose([first, second, *releases]).claim(1e-5)
  assert written['together']['epsilon'] == expected.epsilon
  assert written['together']['composition'] == 'upper_bound'
  listed = [(x['name'], x['rho']) for x in written['other_releases']]
  assert listed == [('counts', None), ('x', 0.01)]
  assert written['summary'].startswith(
    'Together with 1 earlier run and 2 other releases'
  )
  for name in 'report.md', 'report.html':
    text = (tmp_path / 'second' / name).read_text()
    assert 'noise multiplier 3.0' in text and 'rho 0.01' in text
  # The page recomputes the runs alone.
  claims = written['check']['claims']
  assert [claim['runs'] for claim in claims] == [[0], [0, 1]]
  public = run_json('report', tmp_path / 'second', '--public', *flags)
  assert public['epsilon'] >= expected.epsilon > public['runs'][0]['epsilon']
  assert public['other_releases'] == written['other_releases']
  assert public['check'] is None
  assert 'counts' in (tmp_path / 'second' / 'public.md').read_text()
  event = dataclasses.replace(
    report.of_run(tmp_path / 'second'),
    releases=[accounting.Release(event=dp_accounting.GaussianDpEvent(1.0))],
  )
  with pytest.raises(ValueError, match='release=.*event'):
    report.from_source(event)


def test_report_claims_the_composition(tmp_path, run_json):
  first = _run(tmp_path / 'first', noise_multiplier=1.0)
  second = _run(tmp_path / 'second', [tmp_path / 'first'])
  # Both are named, and the first by both: it counts once.
  third = _run(tmp_path / 'third', [tmp_path / 'second', tmp_path / 'first'])
  written = report.write(tmp_path / 'third')
  expected = accounting.compose([first, second, third]).claim(1e-5)
  assert written['together']['epsilon'] == pytest.approx(expected.epsilon)
  assert written['together']['runs'] == ['third', '../second', '../first']
  assert written['together']['composition'] == 'exact'
  assert written['epsilon'] < written['together']['epsilon']
  assert [
    (claim['runs'], claim['epsilon']) for claim in written['check']['claims']
  ] == [([0], written['epsilon']), ([0, 1, 2], written['together']['epsilon'])]
  assert 'these rounds too' not in str(written['warnings'])
  said = str(written['assumptions'])
  assert 'did not depend on releases of earlier runs' in said
  assert 'did not depend on released values' not in said
  assert written['summary'].startswith('Together with 2 earlier runs')
  for name in ('report.md', 'report.html'):
    text = (tmp_path / 'third' / name).read_text()
    assert 'together with earlier runs' in text and '../first' in text
  folders = [tmp_path / name for name in ('first', 'second', 'third')]
  shown = run_json('report', folders[-1], '--public')
  assert shown['named_before'] == ['first', 'second']
  names = [run['name'] for run in shown['check']['runs']]
  assert names == [
    'third',
    'second',
    'first',
  ]
  assert expected.epsilon <= shown['epsilon'] <= 1.01 * expected.epsilon
  shown = run_json(
    *('report', *folders[1:], '--public', '--out', tmp_path / 'out')
  )
  assert shown['named_before'] == ['first']
  assert expected.epsilon <= shown['epsilon'] <= 1.01 * expected.epsilon
  found = run_json('compose', *folders, '--delta', '1e-5')
  assert found['epsilon'] == pytest.approx(expected.epsilon)


def test_broken_claim_of_a_simulation_comes_before_earlier_runs(tmp_path):
  _run(tmp_path / 'first')
  early = [[0, 1], [2, 3], [0, 5], *written_run.KEPT[3:]]
  _run(tmp_path / 'second', [tmp_path / 'first'], cohorts=early, stands_for=4)
  written = report.write(tmp_path / 'second')
  assert written['violated']
  assert written['summary'].startswith(
    f'SIMULATED, no claim for a deployment: {report.BROKEN}'
    'Together with 1 earlier run on the same clients: ('
  )


def test_guarantee_of_a_run_has_those_before_it(tmp_path):
  specs = [
    _run(tmp_path / 'first', noise_multiplier=1.0),
    _run(tmp_path / 'second', [tmp_path / 'first']),
  ]
  expected = accounting.compose(specs).epsilon(1e-5)
  first, second = (
    report.of_run(tmp_path / name) for name in ('first', 'second')
  )
  for runs in ([second], [second.guarantee], [first, second], [second, first]):
    assert accounting.compose(runs).epsilon(1e-5) >= expected * (1 - 1e-9)
  # It names the first one, which does not count twice.
  twice = accounting.compose([first, second]).epsilon(1e-5)
  assert twice == pytest.approx(expected)


def test_predecessors_of_one_name_all_count(tmp_path):
  old, new = tmp_path / '1' / 'tune', tmp_path / '2' / 'tune'
  specs = [
    _run(old, key=b'old'),
    _run(new, key=b'new'),
    _run(tmp_path / '1' / 'main', [old], key=b'first'),
    _run(tmp_path / '2' / 'main', [new, tmp_path / '1' / 'main']),
  ]
  written = report.write(tmp_path / '2' / 'main')
  expected = accounting.compose(specs).claim(1e-5)
  assert written['together']['epsilon'] == pytest.approx(expected.epsilon)
  assert written['together']['runs'] == [
    'main',
    *('../tune', '../../1/main', '../../1/tune'),
  ]


@pytest.mark.parametrize('unfinished', [['first'], ['second'], _BOTH], ids=str)
def test_rounds_to_come_count_in_every_composition(
  tmp_path, run, run_json, unfinished
):
  """Of the run and of those before it, for all readers of the files."""
  specs, folders = [], [tmp_path / name for name in _BOTH]
  for folder, before in zip(folders, ([], folders[:1])):
    stops = folder.name in unfinished
    cohorts = written_run.KEPT[: 3 if stops else None]
    stated = {'held': range(6), 'stated': 3} if stops else {}
    specs.append(
      _run(folder, before, cohorts=cohorts, ended=not stops, **stated)
    )
  expected = pytest.approx(accounting.compose(specs).epsilon(1e-5), rel=1e-9)
  sources = [report.of_run(folder) for folder in folders]
  for runs in (sources, sources[1:]):
    assert accounting.compose(runs).epsilon(1e-5) == expected
  _, out, _ = run('compose', *folders, '--delta', '1e-5', '--json')
  assert json.loads(out)['epsilon'] == expected
  written = report.write(folders[1])
  alone, together = written['check']['claims']
  assert written['together']['epsilon'] == together['epsilon'] == expected
  assert alone['epsilon'] == written['epsilon'] < together['epsilon']
  (text,) = [each for each in written['warnings'] if 'counts all' in each]
  shown = run_json('report', folders[1], '--public')
  assert text in shown['warnings'] and shown['epsilon'] >= expected.expected
  all_runs, last = shown['check']['claims']
  assert (all_runs['epsilon'], last['epsilon']) == (
    shown['epsilon'],
    shown['runs'][0]['epsilon'],
  )


def test_run_after_one_without_noise_claims_nothing_together(tmp_path):
  _run(tmp_path / 'first', noise_multiplier=0.0)
  _run(tmp_path / 'second', [tmp_path / 'first'])
  written = report.write(tmp_path / 'second')
  assert written['together'] is None
  assert written['summary'].endswith('1 earlier run: no guarantee.')


@pytest.mark.parametrize('named', ['first', {'run': 'first'}, {'run_id': 1}])
def test_damaged_name_of_a_predecessor_is_refused(tmp_path, named):
  _run(tmp_path / 'run')
  record = json.loads((tmp_path / 'run' / run_json.RUN_FILE).read_text())
  record['after'] = [named]
  (tmp_path / 'run' / run_json.RUN_FILE).write_text(json.dumps(record))
  with pytest.raises(ValueError, match='lacks after'):
    report.write(tmp_path / 'run')


def test_other_run_in_the_place_of_a_predecessor_is_refused(tmp_path):
  _run(tmp_path / 'first')
  _run(tmp_path / 'second', [tmp_path / 'first'])
  (tmp_path / 'first').rename(tmp_path / 'moved')
  with pytest.raises(ValueError, match='has no run.json'):
    report.write(tmp_path / 'second')
  _run(tmp_path / 'other')
  (tmp_path / 'other').rename(tmp_path / 'first')
  with pytest.raises(ValueError, match='after=.*first: is not the run'):
    report.write(tmp_path / 'second')


def test_runs_before_those_that_are_listed_are_asked_for(tmp_path, run):
  _run(tmp_path / 'first')
  _run(tmp_path / 'second', [tmp_path / 'first'])
  status, out, error = run('compose', tmp_path / 'second', '--delta', '1e-5')
  assert (status, out, error.count('\n')) == (2, '', 1)
  assert 'runs=../first: is before one of these runs' in error


def test_plan_that_is_named_twice_counts_twice(tmp_path, run):
  tff_bandmf.Plan(
    rounds=6,
    clients_per_round=2,
    cohorts=tff_bandmf.MinSep(3),
    epsilon=1.0,
    delta=1e-5,
    l2_norm_clip=1.0,
    mechanism='identity',
  ).save(tmp_path / 'plan.json')
  (tmp_path / 'link.json').symlink_to(tmp_path / 'plan.json')
  plans = tmp_path / 'plan.json', tmp_path / 'link.json'
  _, out, error = run('compose', *plans, '--delta', '1e-5', '--json')
  assert json.loads(out)['epsilon'] > 1.4
  assert 'link.json: this plan is named twice, and counts twice' in error


@pytest.mark.parametrize('again', ['same', 'path', 'link', 'copy'])
def test_run_that_is_named_twice_is_refused(tmp_path, run, again):
  first = tmp_path / 'first'
  _run(first)
  paths = {'same': first, 'path': tmp_path / 'first' / '..' / 'first'}
  paths.update(link=tmp_path / 'link', copy=tmp_path / 'copy')
  (tmp_path / 'link').symlink_to(first)
  shutil.copytree(first, tmp_path / 'copy')
  status, out, error = run('compose', first, paths[again], '--delta', '1e-5')
  assert (status, out, error.count('\n')) == (2, '', 1)
  assert f'runs={paths[again]}: is named twice: it is the run {first}' in error


def test_unfinished_run_counts_as_planned(run, tmp_path):
  """It may go on, and then it claims what was planned."""
  planned = written_run.make_run(
    tmp_path / 'run',
    written_run.KEPT[:3],
    ended=False,
    held=range(6),
    stated=3,
  ).epsilon(1e-5)
  _, out, error = run('compose', tmp_path / 'run', '--delta', '1e-5', '--json')
  found = json.loads(out)
  assert 'rounds_started=3: ' in error and error.count('\n') == 1
  assert found['epsilon'] >= planned * (1 - 1e-9)
  (row,) = found['runs']
  assert row['epsilon'] == found['epsilon'] > row['epsilon_so_far']
  assert row['rounds_started'] == 3 < row['rounds']
