"""Pages say what the code says: links, messages, recipes, the citation."""

import ast
import difflib
import importlib.util
import pathlib
import re

import pytest

from tff_bandmf import report
from tff_bandmf.ledger import chain
from tff_bandmf.noise.tape import file as tape_file
from tff_bandmf.run_files import run_json
from tff_bandmf.strategies import files

_ROOT = pathlib.Path(__file__).resolve().parent.parent
_PAGES = sorted(
  path.relative_to(_ROOT)
  for pattern in ('*.md', 'docs/**/*.md')
  for path in _ROOT.glob(pattern)
)
# What TFF, Python or pip say, and not this project.
_OF_OTHERS = (
  'TypeError: Expected tensorflow_federated',
  'ValueError: clipped_count_stddev',
  '\\| tail',
  'pytest -s',
  'worker_binary',
  'Exception ignored in',
  "'NoneType' object has no attribute",
  'event loop is already running',
  'No matching distribution found',
)


def _links(page):
  return re.findall(r'\]\(([^)\s]+)\)', (_ROOT / page).read_text())


@pytest.mark.parametrize('page', _PAGES, ids=str)
def test_links_lead_somewhere(page):
  for link in _links(page):
    if re.match('[a-z]+:', link):
      continue
    target = (_ROOT / page).parent / link.split('#')[0]
    assert target.exists() or target.with_suffix('.md').exists(), link


@pytest.mark.slow
def test_pictures_are_those_that_their_script_draws():
  spec = importlib.util.spec_from_file_location(
    'pictures', _ROOT / 'docs' / 'pictures.py'
  )
  pictures = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(pictures)
  shown = ''.join((_ROOT / page).read_text() for page in _PAGES)
  for name, draw in pictures.PICTURES.items():
    path = _ROOT / 'docs' / name
    assert path.read_bytes() == pictures.svg(draw()), name
    assert shown.count(f'({path.name})') == 1, name


def test_lines_for_flower_are_the_difference_of_the_examples():
  names = [f'examples/flower_{name}.py' for name in ('quickstart', 'private')]
  lines = [(_ROOT / name).read_text().splitlines() for name in names]
  difference = difflib.unified_diff(*lines, *names, lineterm='')
  page = (_ROOT / 'docs' / 'guide' / 'flower.md').read_text()
  (block,) = re.findall('```diff\n(.*?)\n```', page, re.DOTALL)
  assert block.splitlines() == [line.rstrip() for line in difference]


def _texts():
  """Returns what strings in the code say, and the fixed parts of f-strings."""
  return '\n'.join(
    re.sub(r'\s+', ' ', node.value)
    for package in ('tff_bandmf', 'simulations')
    for path in sorted((_ROOT / package).rglob('*.py'))
    for node in ast.walk(ast.parse(path.read_text()))
    if isinstance(node, ast.Constant) and isinstance(node.value, str)
  )


@pytest.mark.slow
def test_messages_that_are_explained_are_those_of_the_code():
  page = (_ROOT / 'docs' / 'troubleshooting.md').read_text()
  rows = re.findall(r'^\| ((?:[^|\\]|\\.)*) \|', page, re.MULTILINE)
  messages = [
    message
    for row in rows
    for message in re.findall('`([^`]*)`', row)
    if not message.startswith(_OF_OTHERS) and not message.endswith('=')
  ]
  assert len(messages) > 50
  texts = _texts()
  # A number in a message stands for any.
  assert not [
    message
    for message in messages
    if not all(part in texts for part in re.split(r'-?\b\d+\b', message))
  ]


def test_citation_is_the_same_in_both_places():
  block = re.search(
    '```bibtex\n(.*?)```', (_ROOT / 'README.md').read_text(), re.DOTALL
  ).group(1)
  cited = dict(re.findall(r'(\w+) += \{+(.*?)\}+,', block))
  stated = (_ROOT / 'CITATION.cff').read_text()
  assert set(cited) == {'author', 'title', 'version', 'license'}
  for key, value in cited.items():
    name = {'author': 'name'}.get(key, key)
    assert re.search(f"^[ -]*{name}: '?{re.escape(value)}'?$", stated, re.M)


def test_versions_of_files_are_those_of_the_code():
  layout = (_ROOT / 'docs' / 'guide' / 'noise_server.md').read_text()
  assert f'the\nversion {tape_file.VERSION}, tape id' in layout
  assert f'`version` ({tape_file.VERSION})' in layout
  page = (_ROOT / 'docs' / 'reference' / 'versioning.md').read_text()
  page = page.split('## Files')[1].split('| key files')[0]
  stated = re.findall(r'^\| .*? \| (?:`([\w. ]+)` |)(\d+)', page, re.M)
  assert stated == [
    ('tff_bandmf.strategy', str(files.VERSION)),
    (run_json.RUN_FORMAT, str(run_json.RUN_VERSION)),
    ('', str(chain.FORMAT)),
    ('tff_bandmf.tape', str(tape_file.VERSION)),
    *(
      tuple(
        str(value)
        for name in ('format', 'version')
        for value in report.json_schema(kind)['properties'][name]['enum']
      )
      for kind in ('report', 'public')
    ),
  ]


def _recipes():
  """Returns the recipes of CONTRIBUTING, numbered items by title."""
  text = (_ROOT / 'CONTRIBUTING.md').read_text()
  section = re.search('^## Recipes$(.*?)(?=^## |\\Z)', text, re.M | re.S)[1]
  return {
    title: re.findall(r'^\d+\. .*(?:\n(?!\d+\. |\S).*)*', body, re.M)
    for title, body in re.findall(
      r'^### (.*)$\n((?:(?!^### ).*\n?)*)', section, re.M
    )
  }


def test_recipes_name_few_files_and_these_exist():
  recipes = _recipes()
  most_files = {
    'A schedule of learning rates': 2,
    'A model': 2,
    'A corpus': 2,
  }
  assert set(most_files) < set(recipes)
  for title, items in recipes.items():
    most = most_files.get(title, 4)
    assert 1 <= len(items) <= most
    names = [
      name
      for item in items
      for name in re.findall(r'`([\w./]+\.(?:py|json)|[\w./]+\.md)`', item)
    ]
    assert 1 <= len({*names}) <= most, title
    for name in names:
      # A new file is in a folder that is there.
      path = _ROOT / name
      assert (path.parent if 'NAME' in path.stem else path).exists(), name
