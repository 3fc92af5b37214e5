"""The site builds without a warning and its notebooks run; so do doctests."""

import difflib
import doctest
import html
import importlib
import json
import os
import pathlib
import pkgutil
import re
import shutil
import subprocess
import sys

import nbclient
import nbformat
import processes
import pytest

import tff_bandmf
from simulations.sweeps import grid

pytestmark = pytest.mark.slow
_ROOT = pathlib.Path(__file__).resolve().parent.parent
_DOCS = _ROOT / 'docs'
_MODULES = sorted(
  module.name
  for module in pkgutil.walk_packages(tff_bandmf.__path__, 'tff_bandmf.')
)


# Pages that are notebooks.
_NOTEBOOKS = [
  path
  for path in sorted(_DOCS.glob('[gt]*/*.md'))
  if 'file_format: mystnb' in path.read_text()
]


def _build(folder, left_out):
  """Builds the site as `make docs` does, without running some notebooks."""
  from sphinx import application
  from sphinx.util import docutils

  processes.to_files(folder)
  os.chdir(_ROOT)
  with docutils.patch_docutils(_DOCS), docutils.docutils_namespace():
    site = application.Sphinx(
      _DOCS, _DOCS, folder / 'docs', folder / 'docs' / '.doctrees', 'html',
      {'nb_execution_excludepatterns': left_out},
      warningiserror=True, keep_going=True,
    )  # fmt: skip
    # A notebook that did not run does not say which language it has.
    site.config.suppress_warnings += ['myst-nb.lexer'] * bool(left_out)
    site.build()
  raise SystemExit(site.statuscode)


@pytest.fixture(scope='module')
def site(request, tmp_path_factory):
  """Returns the folder of the site, which is built without a warning.

  The quick start alone runs; in `make deep` all notebooks do.
  """
  folder = tmp_path_factory.mktemp('site')
  left_out = [
    path.relative_to(_DOCS).as_posix()
    for path in _NOTEBOOKS
    if path.stem != 'quick_start' and not request.config.getoption('--deep')
  ]
  process = processes.start(_build, folder, left_out)
  process.join(1800)
  assert process.exitcode == 0, (folder / 'err').read_text()[-10_000:]
  return folder / 'docs'


_MEASURE = """<script>addEventListener('load', () => {
const luminance = text => {
  const [r, g, b, a = 1] = text.match(/[\\d.]+/g).map(Number);
  const part = x => (x /= 255) < 0.04 ? x / 12.9 : ((x + 0.055) / 1.055) ** 2.4;
  return [0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b), a];
};
const behind = node => {
  for (; node; node = node.parentElement) {
    const [value, a] = luminance(getComputedStyle(node).backgroundColor);
    if (a) return value;
  }
  return 1;
};
const faint = [...document.querySelectorAll('body *')].filter(node => {
  if (![...node.childNodes].some(x => x.nodeType == 3 && x.data.trim()))
    return false;
  if (!node.getClientRects().length || node.matches('.headerlink'))
    return false;
  const pair = [luminance(getComputedStyle(node).color)[0], behind(node)].sort(
    (a, b) => a - b);
  return (pair[1] + 0.05) / (pair[0] + 0.05) < 3;
});
const top = name => document.querySelector(name).getBoundingClientRect().top;
document.title = 'measured ' + JSON.stringify({
  text: top('div.body'), menu: top('div.sphinxsidebar'),
  dark: matchMedia('(prefers-color-scheme: dark)').matches,
  faint: faint.map(node => node.outerHTML.slice(0, 80)),
  wide: document.documentElement.scrollWidth - innerWidth,
});
});</script>"""


@pytest.mark.skipif(
  not shutil.which('chromium'), reason='chromium is not installed'
)
@pytest.mark.parametrize('scheme', ['dark', 'light'])
@pytest.mark.parametrize('page', ['guide/mechanism', 'reference/api/plan'])
@pytest.mark.deep(but=('mechanism-dark', 'plan-light'))
def test_narrow_page_has_its_text_first_and_can_be_read(site, page, scheme):
  """The menu came first, and cells of notebooks were dark on dark."""
  path = site / f'{page}.narrow.html'
  path.write_text((site / f'{page}.html').read_text() + _MEASURE)
  dumped = subprocess.run(
    [
      *('chromium', '--headless', '--no-sandbox', '--disable-gpu'),
      '--window-size=390,900',
      f'--blink-settings=preferredColorScheme={int(scheme == "light")}',
      *('--virtual-time-budget=5000', '--dump-dom', path.as_uri()),
    ],
    capture_output=True,
    text=True,
    timeout=120,
  ).stdout
  path.unlink()
  title = re.search(r'<title>measured (.*?)</title>', dumped, re.DOTALL)[1]
  measured = json.loads(html.unescape(title))
  assert measured['dark'] == (scheme == 'dark')
  assert measured['text'] < 100 < measured['menu']
  assert not measured['faint'] and measured['wide'] <= 0


def test_signature_of_a_plan_has_types_and_defaults(site):
  """It had no types, and expressions of a program as defaults."""
  text = (site / 'reference' / 'api' / 'plan.html').read_text()
  text = html.unescape(re.sub('<[^>]+>', '', text))
  signature = re.search(r'class tff_bandmf.plan.Plan\((.*?)\)¶', text)[1]
  for part in (
    'rounds: int, clients_per_round: int',
    'l2_norm_clip: float | Sequence[float] | clipping_norm.AdaptiveClip',
    'epsilon: float | None = None',
    " = 'best', memory_copies: int | None = None",
    "objective: workloads.Objective = 'mean'",
    'clients_per_unit: int = 1',
  ):
    assert part in signature


def test_pages_need_nothing_from_elsewhere(site):
  pages = list(site.rglob('*.html'))
  assert len(pages) > 10
  for page in pages:
    text = page.read_text()
    # Of a default, or of a file that is shown.
    assert str(_ROOT) not in text, page
    assert not re.findall(
      r'<(?:script|link|img|iframe)[^>]*(?:src|href)="(?:https?:)?//[^>]*>',
      text,
    ), page
  for sheet in site.rglob('*.css'):
    assert not re.search(r'(@import|url\()[^;]*//', sheet.read_text()), sheet


def test_quick_start_shows_what_it_printed(site):
  text = (site / 'guide' / 'quick_start.html').read_text()
  assert 'with epsilon = 7.999' in text and 'delta = 1e-05' in text


@pytest.mark.deep
def test_notebooks_show_what_they_printed(site):
  for name in ('guide/mechanism', 'tutorials/first_training'):
    assert '<img' in (site / f'{name}.html').read_text()
  for page in site.rglob('*.html'):
    assert 'Traceback (most recent' not in page.read_text(), page


def test_pages_that_are_notebooks_can_be_downloaded(site):
  for page in _NOTEBOOKS:
    notebook = _downloaded(site, page.relative_to(_DOCS).with_suffix(''))
    code = ''.join(
      each.source for each in notebook.cells if each.cell_type == 'code'
    )
    # A reader of the site has no checkout.
    assert not re.search(r'(?:from|import) (?:examples|simulations)', code)


def _downloaded(site, page):
  """Returns the notebook to which a page of the site links."""
  text = (site / page.with_suffix('.html')).read_text()
  (link,) = re.findall(r'href="([^"]+\.ipynb)">', text)
  assert link.endswith(f'/{page.name}.ipynb')
  return nbformat.read((site / page).parent / link, as_version=4)


@pytest.mark.deep
def test_downloaded_notebook_runs(site, tmp_path, monkeypatch):
  notebook = _downloaded(site, pathlib.PurePath('tutorials/inspect'))
  # As in an environment that is activated.
  path = f'{pathlib.Path(sys.executable).parent}:{os.environ["PATH"]}'
  monkeypatch.setenv('PATH', path)
  nbclient.NotebookClient(
    notebook, timeout=600, resources={'metadata': {'path': str(tmp_path)}}
  ).execute()
  assert (tmp_path / 'chosen.json').exists()


def test_every_public_name_has_its_place(site):
  pages = sorted((_DOCS / 'reference' / 'api').glob('*.md'))
  text = ''.join(
    (site / 'reference' / 'api' / f'{page.stem}.html').read_text()
    for page in pages
  )
  packages = [
    package
    for page in pages
    for package in re.findall(r'automodule:: (\S+)', page.read_text())
  ]
  assert {
    f'tff_bandmf.{path.parent.name}'
    for path in (_ROOT / 'tff_bandmf').glob('*/__init__.py')
  } - {'tff_bandmf.cli'} <= set(packages)
  for package in packages:
    module = importlib.import_module(package)
    for name in dir(module):
      value = getattr(module, name)
      if (
        not name.startswith('_')
        and callable(value)
        and getattr(value, '__module__', '').startswith('tff_bandmf')
      ):
        assert f'id="{package}.{name}"' in text, f'{package}.{name}'


def test_index_says_what_each_page_is_for():
  index = (_DOCS / 'index.md').read_text()
  pages = {
    str(path.relative_to(_DOCS).with_suffix(''))
    for path in _DOCS.rglob('*.md')
    if path.parent.name != 'api'
  } - {'index'}
  rows = dict(re.findall(r'^\| \[.*?\]\((.*?)\) \| (.+) \|$', index, re.M))
  assert set(rows) == pages and len(set(rows.values())) == len(rows)


def test_page_says_how_rows_are_named():
  """A reader of `--list` had to guess which part of a name is what."""
  rows = grid.load(str(_ROOT / 'configs' / 'bandmf23.toml')).rows
  for row in rows:
    assert re.fullmatch(r'[a-z]+_.*?(_epsilon[\d.]+)?', row.name), row.name
  page = (_DOCS / 'guide' / 'experiments.md').read_text()
  assert '`CORPUS_MECHANISM_epsilonE`' in page and '`ROW/seedN`' in page


def _cell(page, tag):
  return (
    re.search(
      rf'```{{code-cell}}\n:tags: \[{tag}\]\n\n(.*?)```', page, re.DOTALL
    )
    .group(1)
    .splitlines()
  )


def test_lines_of_a_port_are_counted_as_a_reader_would():
  """The page said two, and left out what they rest on."""
  page = (_DOCS / 'tutorials' / 'port.md').read_text()
  changed = [
    line
    for line in difflib.ndiff(_cell(page, 'original'), _cell(page, 'ported'))
    if line[0] in '+-'
  ]
  assert [line[0] for line in changed] == ['-', '+', '-', '+']
  assert 'tff.learning.dp_aggregator(' in changed[0]
  # Two that change, one for the runtime, and the cell of what is promised.
  (cell,) = re.findall(
    r'```{code-cell}\n(from tff_bandmf import .*?)```', page, re.DOTALL
  )
  count = len(list(filter(None, cell.splitlines()))) + 3
  assert f'noise alone: {count} lines' in page
  # What the page shows as the difference is the difference.
  shown = re.search('```diff\n(.*?)```', page, re.DOTALL).group(1)
  assert [line for line in shown.splitlines() if line != '...'] == [
    line[0] + line[2:] for line in changed
  ]


@pytest.mark.parametrize('name', _MODULES)
def test_examples_in_docstrings_hold(name):
  if name == 'tff_bandmf.flower':
    pytest.importorskip('flwr')
  failed, _ = doctest.testmod(
    importlib.import_module(name), raise_on_error=False
  )
  assert not failed


def test_docstrings_become_markup(monkeypatch):
  monkeypatch.syspath_prepend(_DOCS)
  assert not doctest.testmod(importlib.import_module('docstrings')).failed
