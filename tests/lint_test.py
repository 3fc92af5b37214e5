"""The tree is clean by what `make lint` runs, and plain by rules of words."""

import ast
import collections
import functools
import pathlib
import re
import subprocess
import sys
import tokenize

import pytest

_ROOT = pathlib.Path(__file__).resolve().parent.parent


@pytest.mark.parametrize(
  'command',
  [
    ('ruff', 'format', '--check', '.'),
    ('ruff', 'check', '.'),
    pytest.param(('mypy',), marks=pytest.mark.slow),
  ],
  ids=' '.join,
)
def test_tree_is_clean(command):
  result = subprocess.run(
    [sys.executable, '-m', *command],
    cwd=_ROOT,
    capture_output=True,
    text=True,
    timeout=900,
  )
  assert result.returncode == 0, result.stdout + result.stderr


_LIBRARY = sorted(
  path
  for folder in ('tff_bandmf', 'simulations', 'benchmarks')
  for path in (_ROOT / folder).rglob('*.py')
)
# 'There is no' says what there is not; 'is no longer' is one word.
_IS_NO = re.compile(
  r'(?<!there )\b(?:is|are|was|were|be) no\b'
  r'(?! (?:better|farther|larger|less|longer|more|other|smaller|worse)\b)',
  re.IGNORECASE,
)
_BEGINS_WITH_OF = re.compile(r'\bOf\b')


@functools.cache
def _nodes(path):
  return list(ast.walk(ast.parse(path.read_text())))


@functools.cache
def _tokens(path):
  with open(path, encoding='utf-8') as stream:
    return list(tokenize.generate_tokens(stream.readline))


def _words(path, strings=True):
  """Yields (line, words) of each comment, and of each string if asked to."""
  comment, first = [], 0
  for token in _tokens(path):
    if token.type == tokenize.COMMENT:
      first = first if comment else token.start[0]
      comment.append(token.string.lstrip('#'))
    elif token.type != tokenize.NL:
      if comment:
        yield first, ' '.join(' '.join(comment).split())
        comment = []
      if strings and token.type == tokenize.STRING:
        yield token.start[0], ' '.join(token.string.split())


@pytest.mark.slow
def test_sentences_are_plain():
  found = [
    f'{path.relative_to(_ROOT)}:{line}: {match.group()}'
    for path in _LIBRARY
    for line, words in _words(path)
    for rule in (_IS_NO, _BEGINS_WITH_OF)
    for match in rule.finditer(words)
  ]
  assert not found


def _arguments(function):
  arguments = function.args
  names = [
    each.arg
    for each in arguments.posonlyargs + arguments.args + arguments.kwonlyargs
  ]
  return [name for name in names if name not in ('self', 'cls')]


@pytest.mark.slow
def test_functions_have_at_most_eight_arguments():
  """But for the two-line port of TFF's own function."""
  found = {
    f'{path.relative_to(_ROOT)}:{node.name}'
    for path in _LIBRARY
    for node in _nodes(path)
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    and len(_arguments(node)) > 8
  }
  assert found == {'tff_bandmf/aggregator/factory.py:dp_aggregator'}


# A sentence has a noun as its subject, and says what it means on its own.
_RIDDLES = re.compile(
  r'\b(?:[Ll]ikewise|as above|[Hh]e|[Hh]im|[Hh]imself)\b'
  r'|(?:^|(?<=[.!?] ))(?:What|Who|Whoever|That of|Those of|Those that)\b'
)
_FIRST_WORDS = {'As', 'It', 'Of', 'See', 'That', 'Those', 'What', 'Who'}
# 'epsilon: of the run' says neither type nor range.
_ENTRY = re.compile(
  r'^ +[*\w]+: (?:as|of|that of|those of|what|who)\b', re.IGNORECASE
)
_NAMES_OF_NOTHING = {'found', 'kept', 'made', 'noised', 'said', 'there', 'told'}
_DOTTED = re.compile(r'`([A-Za-z_]\w*(?:\.\w+)+)(?:\(.*?\))?`')
_FILE_NAMES = re.compile(
  r'\.(?:cfg|csv|db|html|j2|js|json|jsonl|key|lock|lzma|md|npy|npz|noise|png|py'
  r'|reached|sha256|sqlite|svg|toml|txt|use|word_count|yaml|NAME)$'
)
# TFF has the name of a room.
_OF_TFF = re.compile(
  r'tff\.(?:aggregators|analytics|backends|learning|program|simulation)\b'
)


@functools.cache
def _docstrings(path):
  """Returns [(line, docstring)] of a file and of what it defines."""
  docstrings = []
  for node in _nodes(path):
    if isinstance(
      node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    ):
      text = ast.get_docstring(node)
      if text:
        docstrings.append((node.body[0].lineno, text))
  return docstrings


def _riddles(path):
  """Yields 'line: words' where a docstring or a comment is a riddle."""
  for line, words in _words(path, strings=False):
    for match in _RIDDLES.finditer(words):
      yield f'{line}: {match.group()}'
  for line, text in _docstrings(path):
    if text.split()[0] in _FIRST_WORDS:
      yield f'{line}: begins with {text.split()[0]}'
    for match in _RIDDLES.finditer(' '.join(text.split())):
      yield f'{line}: {match.group()}'
    for entry in text.splitlines():
      if _ENTRY.match(entry):
        yield f'{line}: {entry.strip()}'


def _assigned(path):
  """Yields 'line: name' where a name that says nothing is assigned."""
  for node in _nodes(path):
    name = (
      node.id
      if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
      else node.arg
      if isinstance(node, ast.arg)
      else None
    )
    if name in _NAMES_OF_NOTHING:
      yield f'{node.lineno}: {name} ='


def _defined(path):
  """Returns the names that a file defines or binds at any depth."""
  names = set()
  for node in _nodes(path):
    if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
      names.add(node.name)
    elif isinstance(node, (ast.Name, ast.Attribute)):
      names.add(node.id if isinstance(node, ast.Name) else node.attr)
    elif isinstance(node, ast.arg):
      names.add(node.arg)
    elif isinstance(node, (ast.Import, ast.ImportFrom)):
      names.update(
        part
        for each in node.names
        for part in (each.asname or each.name).split('.')
      )
  return names


@functools.cache
def _modules():
  """Returns the files of modules and packages by the last part of the name."""
  modules = collections.defaultdict(set)
  for path in _LIBRARY:
    parent = path.parent.name
    modules[parent].add(path)
    if path.stem != '__init__':
      modules[path.stem].add(path)
  return modules


@functools.cache
def _classes():
  """Returns the files that define a class, by its name."""
  classes = collections.defaultdict(set)
  for path in _LIBRARY:
    for node in _nodes(path):
      if isinstance(node, ast.ClassDef):
        classes[node.name].add(path)
  return classes


@functools.cache
def _names(path):
  return frozenset(_defined(path))


def _unresolved(path):
  """Yields 'line: name' where a dotted name in backticks leads nowhere."""
  places = {**_classes(), **_modules()}
  # Keys of an experiment, such as `data.corpus`.
  for group in ('data', 'model', 'privacy', 'training'):
    places[group] = places[group.capitalize()]
  for line, text in _docstrings(path):
    for name in _DOTTED.findall(text):
      first, *rest = name.split('.')
      if _FILE_NAMES.search(name) or _OF_TFF.match(name):
        continue
      if first not in places:
        # An object of the file, or a library that it imports.
        if first not in _names(path) and not any(
          first in _names(each) for each in path.parent.glob('*.py')
        ):
          yield f'{line}: {name}'
        continue
      for part in rest:
        known = set().union(*(_names(each) for each in places[first]))
        if part in places:
          first = part
        elif part not in known:
          yield f'{line}: {name}'
          break


@pytest.mark.slow
def test_words_are_plain():
  assert not [
    f'{path.relative_to(_ROOT)}:{problem}'
    for path in _LIBRARY
    for rule in (_riddles, _assigned, _unresolved)
    for problem in rule(path)
    # The fields of this file are JSON keys, which stay as they are.
    if rule is not _assigned or path.name != 'document.py'
  ]
