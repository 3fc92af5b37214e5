"""The tree is clean by what `make lint` runs, and by two rules of style."""

import ast
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


def _words(path):
  """Yields (line, words) of each string, and of comments that follow."""
  comment, first = [], 0
  with open(path, encoding='utf-8') as stream:
    for token in tokenize.generate_tokens(stream.readline):
      if token.type == tokenize.COMMENT:
        first = first if comment else token.start[0]
        comment.append(token.string.lstrip('#'))
      elif token.type != tokenize.NL:
        if comment:
          yield first, ' '.join(' '.join(comment).split())
          comment = []
        if token.type == tokenize.STRING:
          yield token.start[0], ' '.join(token.string.split())


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


def test_functions_have_at_most_eight_arguments():
  """But for the two-line port of TFF's own function."""
  found = {
    f'{path.relative_to(_ROOT)}:{node.name}'
    for path in _LIBRARY
    for node in ast.walk(ast.parse(path.read_text()))
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    and len(_arguments(node)) > 8
  }
  assert found == {'tff_bandmf/aggregator/factory.py:dp_aggregator'}
