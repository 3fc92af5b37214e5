"""Tests of the report for everybody."""

import json
import re

import pytest
import written_run

from tff_bandmf import accounting, report

pytestmark = pytest.mark.slow

_SAID = {
  'owner': 'a team',
  'contact': 'team@example.org',
  'unit_of_privacy': 'one person',
}


def _run(folder, cohorts=written_run.KEPT, **changes):
  return written_run.make_run(
    folder,
    cohorts,
    key=folder.name.encode(),
    **{**_SAID, 'title': f'Run {folder.name}', **changes},
  )


def _texts(folder):
  return [
    (folder / name).read_text()
    for name in ('public.md', 'public.html', 'public.json')
  ]


def test_several_runs_and_their_composition(tmp_path, run_json):
  noises = {'first': 1.2, 'second': 0.9, 'third': 0.8}
  specs = [
    _run(tmp_path / name, noise_multiplier=noise)
    for name, noise in noises.items()
  ]
  folders = [tmp_path / name for name in noises]
  found = run_json(
    'report',
    *folders,
    '--public',
    *('--note', 'title=Three runs', '--out', tmp_path / 'out'),
  )
  exact = accounting.compose(specs).epsilon(1e-5)
  assert exact <= found['epsilon'] == found['together']['epsilon']
  assert found['epsilon'] <= exact * 1.01
  assert found['once_in'] == 100_000
  assert [row['name'] for row in found['runs']] == [
    'Run first',
    'Run second',
    'Run third',
  ]
  for row, spec in zip(found['runs'], specs):
    alone = spec.epsilon(1e-5)
    assert alone <= row['epsilon'] == row['planned_epsilon'] <= alone * 1.01
    assert row['noise_multiplier'] <= spec.noise_multiplier
  for text in _texts(tmp_path / 'out'):
    for fact in ('Three runs', 'a team', 'team@example.org', 'one person'):
      assert fact in text
    for row in found['runs']:
      assert row['name'] in text and str(row['epsilon']) in text
    assert str(found['epsilon']) in text
  assert json.loads(_texts(tmp_path / 'out')[2]) == found


def test_counts_of_clients_are_not_published(tmp_path, run_json):
  # 13 clients in cohorts of 2 to 7, of a population of 97; a burnt round.
  cohorts = [range(7), [7, 8], [9, 10], [0, 1], [11, 12], [2, 3]]
  _run(tmp_path / 'run', cohorts, population=97, burnt=[2])
  run_json('report', tmp_path / 'run', '--public')
  full = report.build(tmp_path / 'run').content
  assert full['observed']['clients'] == 13
  for text in _texts(tmp_path / 'run'):
    hidden = (
      r'(?s)<(style|script)>.*?</\1>|sha256-[\w+/=]*|'
      r'data:image[^"]*|[0-9a-f]{64}'
    )
    text = re.sub(hidden, '', text)
    assert 'Some rounds did not change the model' in text
    for count in ('97', '13', '7'):
      assert not re.search(rf'(?<![\d.-]){count}(?![\d.])', text), count
    assert full['ledger_head'] not in text
  assert 'ledger.sqlite' not in _texts(tmp_path / 'run')[2]


def test_what_the_run_enforced_is_shown_as_checked(tmp_path, run_json):
  _run(tmp_path / 'run', held=range(6), clipped_by='the run')
  found = run_json('report', tmp_path / 'run', '--public')
  (clip,) = [
    row for row in found['assumptions'] if 'clipped' in row['assumption']
  ]
  assert clip['enforced_by'] == 'the run'
  assert clip['checked'].startswith("the ledger's chain")


def test_plan_that_was_not_kept_leads(tmp_path, run):
  _run(tmp_path / 'run', [[0, 1], [2, 3], [0, 5], [4, 6], [8, 7], [9, 10]])
  status, out, error = run('report', tmp_path / 'run', '--public', '--json')
  assert status == 1 and 'violated=True' in error
  found = json.loads(out)
  assert 'more often, or closer together' in found['warnings'][0]
  (row,) = found['runs']
  assert not row['kept']
  assert row['epsilon'] >= row['observed_epsilon'] > row['planned_epsilon']


def test_exact_numbers_of_what_clients_did_are_not_public(tmp_path):
  """Clients broke the plan, and the claim follows from their rounds."""
  _run(tmp_path / 'run', [[0, 1], [2, 3], [0, 5], [4, 6], [8, 7], [9, 10]])
  source = report.of_run(tmp_path / 'run')
  assert report.publish([source]).content['check'] is None
  assert 'does not have the exact numbers' in report.publish([source]).html()
  (run,) = report.from_source(source).content['check']['runs']
  assert (run['min_sep'], run['max_participations']) == (2, 2)


def test_run_without_noise_has_no_guarantee(tmp_path, run_json):
  _run(tmp_path / 'run', noise_multiplier=0.0)
  _run(tmp_path / 'other')
  found = run_json('report', tmp_path / 'run', '--public')
  assert found['epsilon'] is None and found['factor'] is None
  assert 'guarantees nothing' in found['warnings'][0]
  both = run_json(
    *('report', tmp_path / 'run', tmp_path / 'other', '--public'),
    *('--out', tmp_path / 'out'),
  )
  assert both['epsilon'] is None and both['together'] is None
  for text in _texts(tmp_path / 'out')[:2]:
    assert 'Nothing is guaranteed.' in text


@pytest.mark.parametrize(
  'names, flags, message',
  [
    (('a', 'b'), (), 'is one too many'),
    (('a', 'a'), ('--public',), 'runs=.*: must be different'),
    (('a', 'c'), ('--public',), 'unit_of_privacy=one device and one person'),
    (
      ('a',),
      ('--public', '--note', 'data=x'),
      'data=x: is not a note of a public',
    ),
    ((), ('--what-if', 'min_sep=2', '--plan', 'p', '--log', 'l'), 'what_if='),
  ],
)
def test_bad_input_is_one_line(tmp_path, run, names, flags, message):
  for name in set(names):
    unit = 'one device' if name == 'c' else 'one person'
    _run(tmp_path / name, unit_of_privacy=unit)
  status, out, error = run(
    *('report', *(tmp_path / name for name in names), *flags),
    *('--out', tmp_path / 'out'),
  )
  assert (status, out, error.count('\n')) == (2, '', 1)
  assert re.search(message, error)
  assert not (tmp_path / 'out').exists()


def test_two_evaluations_are_told_apart(tmp_path):
  """The axis is that of the values, which stand beside their points."""
  from tff_bandmf import _figures

  figure = _figures.accuracy({'run': [(10, 0.2301), (20, 0.2405)]})
  (axes,) = figure.axes
  low, high = axes.get_ylim()
  assert 20 < low < 23.01 and 24.05 < high < 26
  assert [text.get_text() for text in axes.texts] == ['23.0', '24.1']
  assert all(float(tick).is_integer() for tick in axes.get_xticks())
