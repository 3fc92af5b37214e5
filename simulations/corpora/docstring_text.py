"""Extracts the English sentences of docstrings.

Code blocks, doctests, formulas, headings, tables, the type lines of parameter
lists, and sentences about licences are left out.
"""

import inspect
import re
from collections.abc import Iterator
from typing import Optional

# Maximum number of words of a sentence, as in TFF's StackOverflow task. Further
# words are dropped.
MAX_WORDS = 20
_MIN_WORDS = 3
# Smallest share of letters in a sentence without its spaces. A sentence with a
# smaller share is left out: it is probably code or a table.
_MIN_LETTER_SHARE = 0.7

_PROSE_DIRECTIVES = (
  'deprecated|important|note|seealso|tip|versionadded|versionchanged|warning'
)
_DIRECTIVE = re.compile(rf'\.\. (?:{_PROSE_DIRECTIVES})::\s*[\d.]*\s*')
_RULE = re.compile(r'[-=~^*#+|_.:`\s]+', re.ASCII)
_TYPED_PARAMETER = re.compile(r'[\w*`, .]+ : ', re.ASCII)  # 'axis : int'
_ITEM = re.compile(
  r':\w+[^:`]*:\s+'  # ':param x: ...'
  r'|[*`]*\w+[*`]*(?: \([^)]*\))?:\s+'  # 'x (int): ...'
  r'|(?:[-*+]|\d+[.)])\s+',  # '1. ...'
  re.ASCII,
)
_MARKUP = re.compile(
  r'https?://\S+|\S+@\S+\.\S+|:math:`[^`]*`|\$[^$]*\$|:\w+:(?=`)|%\(\w+\)s',
  re.ASCII,
)
_SENTENCE_END = re.compile(r'(?<=[.!?])[)\'"]*\s+(?=[^a-z])', re.ASCII)
_WORD = re.compile(r"[a-z0-9]+(?:'[a-z]+)*")
_LETTER = re.compile(r'[A-Za-z]')
_LICENCE = re.compile(r'licen[sc]e|copyright|warranties|all rights reserved')


def _prose_lines(docstring: str) -> Iterator[str]:
  """Yields the stripped lines of prose, and '' in place of all other lines."""
  # Indentation of the line that begins the current literal block. The lines of
  # the block are indented more. None outside of literal blocks.
  block_indent: Optional[int] = None
  in_fence = in_doctest = False
  for line in inspect.cleandoc(docstring).split('\n'):
    text = line.strip()
    indent = len(line) - len(line.lstrip())
    if text.startswith('```'):
      in_fence = not in_fence
      text = ''
    elif not text:
      in_doctest = False
    elif block_indent is not None and indent <= block_indent:
      block_indent = None
    in_doctest = in_doctest or text.startswith('>>>')
    if in_fence or in_doctest or block_indent is not None:
      yield ''
      continue
    text = _DIRECTIVE.sub('', text)
    if text.endswith('::') or text.startswith('..'):
      block_indent = indent
    yield '' if text.startswith('..') else text


def _paragraphs(docstring: str) -> Iterator[str]:
  """Yields the paragraphs and list items of the prose, each as one line."""
  lines: list[str] = []
  for text in _prose_lines(docstring):
    item = _ITEM.match(text)
    if _RULE.fullmatch(text):
      del lines[-1:]  # The line above a rule is a heading.
      text = ''
    elif _TYPED_PARAMETER.match(text):
      text = ''
    if item or not text:
      if lines:
        yield ' '.join(lines)
      lines = []
    if text:
      lines.append(text[item.end() :] if item else text)
  if lines:
    yield ' '.join(lines)


def extract_sentences(docstring: str) -> list[str]:
  """Returns the distinct sentences of a docstring, in order.

  Args:
    docstring: docstring as in the source, with its indentation.

  Returns:
    Sentences of 3 to 20 lower-case words with single spaces between them.

  >>> extract_sentences('Adds x.  See https://a.b for the rest, or ask me.')
  ['see for the rest or ask me']
  """
  sentences: dict[str, None] = {}
  for paragraph in _paragraphs(docstring):
    for sentence in _SENTENCE_END.split(_MARKUP.sub(' ', paragraph)):
      words = _WORD.findall(sentence.lower())[:MAX_WORDS]
      letters = len(_LETTER.findall(sentence))
      solid = len(sentence) - sentence.count(' ')
      if len(words) < _MIN_WORDS or letters < _MIN_LETTER_SHARE * solid:
        continue
      text = ' '.join(words)
      if not _LICENCE.search(text):
        sentences[text] = None
  return list(sentences)
