"""Pages that programs write show the runs and figures that they are given."""

import importlib
import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

from tff_bandmf import reproduction

pytestmark = pytest.mark.slow
_ROOT = pathlib.Path(__file__).resolve().parent.parent
_DOCS = _ROOT / 'docs'
_BENCHMARK = {
  'case': 'loss',
  'about': 'Returns the cost of a loss.',
  'rounds': 1024,
  'ratio': 0.123456789,
  'goal_ratio': 1.1,
  'methods': {'ours|theirs': 1.5, 'goal_ours|theirs': 2.0},
  'seconds': [0.5, 2.0],
}


_SIDE_BY_SIDE = {
  'case': 'search',
  'compared': 'process_cpu_seconds',
  'goal': {'opake': 0.8},
  'results': {
    'tff_bandmf': {
      'process_cpu_seconds': 1.5,
      'cpu_seconds': 0.5,
      'loss': 2.0,
      'version': '1',
    },
    'opake': {
      'process_cpu_seconds': 3.0,
      'cpu_seconds': 1.0,
      'loss': 2.5,
      'version': '2',
    },
  },
  'ratio': {'opake': 0.5},
}


_ROW = {
  'table': 'gboard_report',
  'row': 'rho',
  'published': 0.150684,
  'ours': 0.15068403,
  'difference': 2.0012e-07,
  'tolerance': 1e-05,
  'pass': True,
  'seconds': 0.002,
}


def test_reproduction_page_has_the_published_tables():
  page = (_DOCS / 'reference' / 'reproduction.md').read_text()
  published = json.loads(
    (_ROOT / 'tff_bandmf' / 'reproduction' / 'published.json').read_text()
  )
  tables = re.findall('^## (.*)$', page, re.MULTILINE)
  assert tables == list(reproduction.TABLES)
  assert set(tables) == set(published)
  rows, of = map(
    int, re.search(r'(\d+) of (\d+) rows are within', page).groups()
  )
  # A row a line, without the heads of the tables.
  lines = len(re.findall(r'^\|.*\|$', page, re.MULTILINE))
  assert of == lines - 2 * len(tables)
  assert rows == of


def _generate(page, lines, folder):
  """Runs a copy of the program; returns the page."""
  (folder / 'reference').mkdir(exist_ok=True)
  program = folder / 'generate.py'
  program.write_text((_DOCS / 'generate.py').read_text())
  done = subprocess.run(
    [sys.executable, str(program), page],
    input='\n'.join(lines),
    text=True,
    capture_output=True,
    env={**os.environ, 'PYTHONPATH': str(_ROOT)},
  )
  return done, folder / 'reference' / f'{page}.md'


@pytest.mark.parametrize(
  'page, row, expected',
  [
    (
      'benchmarks',
      _BENCHMARK,
      [
        '## loss\n\nThe cost of a loss.\n',
        '0.1235 (goal 1.1)',
        'theirs: 1.5 (goal 2)',
        '0.5, 2',
      ],
    ),
    ('reproduction', _ROW, ['## gboard_report', '1 of 1 rows', '+2.0e-07']),
  ],
)
def test_page_of_figures_shows_them(tmp_path, page, row, expected):
  done, path = _generate(page, ['noise', json.dumps(row)], tmp_path)
  assert done.returncode == 0, done.stderr
  text = path.read_text()
  assert all(each in text for each in expected)


def test_cases_that_were_not_measured_keep_their_figures(tmp_path):
  for page, line in (
    ('benchmarks', _BENCHMARK),
    ('benchmarks', {**_BENCHMARK, 'case': 'tail', 'ratio': 0.5}),
    ('side_by_side', _SIDE_BY_SIDE),
    ('side_by_side', {**_SIDE_BY_SIDE, 'case': 'other'}),
  ):
    done, _ = _generate(page, [json.dumps(line)], tmp_path)
    assert done.returncode == 0, done.stderr
  text = (tmp_path / 'reference' / 'benchmarks.md').read_text()
  assert re.findall('^## (.*)$', text, re.MULTILINE) == [
    'Side by side',
    'loss',
    'tail',
  ]
  assert '0.1235 (goal 1.1)' in text and '0.5 (goal 1.1)' in text
  rows = [
    [cell.strip() for cell in line.split('|')[1:-2]]
    for line in text.splitlines()
    if line.startswith(('| search ', '| other '))
  ]
  cells = ['1.5 (0.5); loss 2', '', '3 (1); loss 2.5', '', '0.5 (goal 0.8)']
  assert rows == [['search', *cells], ['other', *cells]]


def test_rows_that_were_not_computed_keep_their_figures(tmp_path):
  for line in (_ROW, {**_ROW, 'row': 'mine'}, {**_ROW, 'ours': 0.125}):
    _, path = _generate('reproduction', [json.dumps(line)], tmp_path)
  lines = re.findall(r'^\|.*', path.read_text(), re.MULTILINE)
  assert len(lines) == 4 and '| 0.125 ' in lines[2] and '| mine ' in lines[3]


def test_page_of_no_figures_is_not_written(tmp_path):
  done, path = _generate('benchmarks', ['make: error'], tmp_path)
  assert done.returncode == 2 and not path.exists()


def _runs(seeds):
  """Yields runs such as a sweep prints; correlated noise gains 0.2."""
  for seed in seeds:
    for name, noise, loss in (
      ('none', 0.0, 4.7),
      ('identity', 0.04, 5.0),
      ('banded', 0.005, 4.8),
      ('tree', 0.008, 4.8 - 0.01 * (-1) ** seed),
    ):
      yield {
        'name': f'{name}/seed{seed}',
        'mechanism': name,
        'epsilon': 8.0 if noise else None,
        'claimed_epsilon': 90.0 if noise else None,
        'stands_for': 850,
        'seed': seed,
        'search': False,
        'taken': True,
        'rate': 0.3,
        'noise': noise,
        'momentum_noise': 9 * noise,
        'copies': {'banded': 15, 'tree': 7}.get(name, 0),
        'validation_loss': loss,
        'test_loss': loss + 0.001 * seed**2,
        'test_accuracy': 0.1,
        'curve': [[20, 6.0], [1032, loss]],
      }


@pytest.mark.parametrize(
  'study, data', [('comparison', 'evidence'), ('people', 'people')]
)
def test_study_claims_what_its_runs_show(tmp_path, study, data):
  docs = tmp_path / 'docs'
  (docs / 'reference').mkdir(parents=True)
  readme = tmp_path / 'README.md'
  readme.write_text('a\n<!-- people -->\noutdated\n<!-- end of people -->\nb\n')
  for name in ('generate.py', 'comparison.py', 'attacks.py'):
    (docs / name).write_text((_DOCS / name).read_text())
  lines = (_DOCS / 'reference' / 'attacks.jsonl').read_text()
  (docs / 'reference' / 'attacks.jsonl').write_text(lines)
  given = json.dumps(
    {'runs': list(_runs((1, 2, 3))), 'missing': ['x'], 'failed': []}
  )
  subprocess.run(
    [sys.executable, str(docs / 'generate.py'), study],
    input=given,
    text=True,
    check=True,
    env={**os.environ, 'PYTHONPATH': str(_ROOT)},
  )
  reference = docs / 'reference'
  page = (reference / f'{study}.md').read_text()
  assert '**12 of 13 runs have ended**, 1 are missing' in page
  assert '| banded      |         8 |       3 | -0.200 ± 0.000 |' in page
  assert 'Not shown: the order of banded and tree at epsilon 8.' in page
  assert 'In 2 of the 2 differences that are shown, the smaller loss' in page
  assert re.search(
    r'copies .*\n.*\n.* 0 .* identity .*\n.* 7 .* tree .*\n.* 15 .* banded ',
    page,
  )
  first, _ = re.findall(r'!\[[^]]*\]\((.*?)\)', page)
  for plot in re.findall(r'!\[[^]]*\]\((.*?)\)', page):
    assert (reference / plot).exists()
  assert first == f'{study}_noise.png'
  assert page.index(first) < page.index('## What was expected')
  # Once more, from what stays beside the page.
  assert json.loads((reference / f'{data}.json').read_text()) == json.loads(
    given
  )
  text = readme.read_text()
  if study == 'comparison':
    assert 'outdated' in text
    return
  assert text.startswith('a\n<!-- people -->\n## What it gains\n')
  assert text.endswith('<!-- end of people -->\nb\n') and 'outdated' not in text
  assert '| `banded`' in text and '-0.200 ± 0.000' in text


def _program(name):
  """Returns a module of the folder of the pages."""
  sys.path.insert(0, str(_DOCS))
  try:
    return importlib.import_module(name)
  finally:
    sys.path.remove(str(_DOCS))


def test_comparison_shows_what_c_for_momentum_changes():
  comparison = _program('comparison')
  runs = list(_runs((1, 2)))
  plain = next(run for run in runs if run['mechanism'] == 'banded')
  changed = {
    **plain,
    'mechanism': 'banded-momentum',
    'noise': 2 * plain['noise'],
    'momentum_noise': 0.8 * plain['momentum_noise'],
    'test_loss': plain['test_loss'] - 0.25,
  }
  page = comparison.page(
    comparison.summary_lib.Summary((*runs, changed), (), ())
  )
  row = next(line for line in page.splitlines() if '-0.250' in line)
  assert [x.strip() for x in row.strip('|').split('|')] == [
    'banded',
    '1',
    '2.00',
    '0.80',
    '-0.250',
  ]


@pytest.mark.parametrize('name', ['COMPARISON', 'PEOPLE'])
def test_comparison_without_runs_says_so(name):
  comparison = _program('comparison')
  summary = comparison.summary_lib.Summary((), ('x',), ())
  page = comparison.page(summary, getattr(comparison, name))
  assert '**0 of 1 runs have ended**' in page and '![' not in page
  assert comparison.readme(summary, '') == ''


@pytest.mark.parametrize('name', ['COMPARISON', 'PEOPLE'])
def test_study_is_made_of_the_runs_beside_it(name):
  comparison = _program('comparison')
  study = getattr(comparison, name)
  data = (_DOCS / 'reference' / f'{study.data}.json').read_text()
  summary = comparison.summary_lib.Summary.read(data)
  page = (_DOCS / 'reference' / f'{study.name}.md').read_text()
  assert page == comparison.page(summary, study)
  lines = (_DOCS / 'reference' / 'attacks.jsonl').read_text().splitlines()
  part = comparison.readme(
    summary, _program('attacks').headline(map(json.loads, lines))
  )
  assert (part in (_ROOT / 'README.md').read_text()) == (name == 'PEOPLE')


def test_page_of_attacks_is_made_of_the_lines_beside_it():
  reference = _DOCS / 'reference'
  lines = [
    json.loads(line)
    for line in (reference / 'attacks.jsonl').read_text().splitlines()
  ]
  page = (reference / 'attacks.md').read_text()
  assert page == _program('attacks').page(lines)


def test_page_of_attacks_says_what_is_not_shown():
  attacks = _program('attacks')

  def line(noise, rate, low, high, bound):
    rates = [
      {
        'alpha': 0.05,
        'false_positive_rate': 0.05,
        'true_positive_rate': rate,
        'low': low,
        'high': high,
        'bound': bound,
        'refuted': low > bound,
        'above_chance': low > 0.08,
      }
    ]
    return {
      'run': f'{"banded" if noise else "none"}/seed1',
      'seed': 1,
      'noise_multiplier': noise,
      'members': 800,
      'others': 300,
      'area': 0.5,
      'membership': rates,
    }

  silent = line(0.0, 0.06, 0.04, 0.07, 1.0)
  page = attacks.page([line(0.6, 0.06, 0.04, 0.07, 0.5), silent])
  assert '1 of 1 intervals lie below the bounds' in page
  assert '0 intervals refute' in page
  assert 'Without noise, 0 of 1 rates are shown to be above chance.' in page
  least = float(re.search(r'would show .*?: (.*?) % at 5 %', page).group(1))
  # More than chance, and what 800 members can show.
  assert 8 < least < 15
  page = attacks.page([line(0.6, 0.6, 0.55, 0.65, 0.5), silent])
  assert '0 of 1 intervals lie below the bounds' in page
  assert '1 intervals refute' in page
