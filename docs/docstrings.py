"""Converts docstrings of the code to reStructuredText.

Docstrings are written for readers of the source: formulas are indented, tables
have bars, and names are between single backticks. This module makes literal
blocks of formulas and tables, and escapes the markup of reStructuredText.
"""

from __future__ import annotations

import re

import attrs

_DEFAULT = re.compile(r"attr_dict\['(\w+)'\]\.default")
_LONGER_NAME = re.compile(r'\b\w+_lib\.')
_SECTION = re.compile(r'(Args|Attributes|Returns|Yields|Raises):$')
_VARIADIC = re.compile(r'( *\*+)(\w+:.*)')
_CODE = re.compile(r'(``[^`]+``|`[^`]+`)')


def process(app, what, name, obj, options, lines: list[str]) -> None:
  """Rewrites the lines of a docstring; called before napoleon's extension."""
  del app, what, name, obj, options
  lines[:] = converted(lines)


def with_defaults(
  app, what, name, obj, options, signature: str, returns: str
) -> tuple[str, str]:
  """Returns a signature with its defaults; called for each object.

  The package attrs generates the constructor of a class, and its source has an
  expression in the place of each default.
  """
  del app, what, name, options
  if signature and attrs.has(obj):
    fields = attrs.fields_dict(obj)
    signature = _DEFAULT.sub(
      lambda match: repr(fields[match[1]].default), signature
    ).replace('= NOTHING', '= ...')
  # Modules that are imported under a longer name, such as `mechanism_lib`.
  return signature and _LONGER_NAME.sub('', signature), returns


def converted(lines: list[str]) -> list[str]:
  """Returns the lines of a docstring as reStructuredText.

  >>> converted(['Returns x.', '', '  x = |a_| * b', '', 'Of *args.'])
  ['Returns x.', '', '::', '', '    x = |a_| * b', '', 'Of \\\\*args.', '']
  >>> converted(['Args:', '  *args: of x_ and `y`.'])
  ['Args:', '  *args: of x\\\\_ and ``y``.', '']
  """
  found: list[str] = []
  in_section = False
  for paragraph in _paragraphs(lines):
    in_section = (
      bool(_SECTION.match(paragraph[0]))
      or in_section
      and paragraph[0].startswith(' ')
    )
    if paragraph[0].lstrip().startswith('>>>'):
      found += paragraph
    elif in_section:
      found += _entries(paragraph)
    elif paragraph[0].startswith((' ', '|')):
      found += ['::', '', *('  ' + line for line in paragraph)]
    else:
      found += _text(paragraph)
    found.append('')
  return found


def _paragraphs(lines: list[str]) -> list[list[str]]:
  """Returns the paragraphs: runs of lines between empty lines."""
  paragraphs: list[list[str]] = [[]]
  for line in lines:
    if line.strip():
      paragraphs[-1].append(line)
    elif paragraphs[-1]:
      paragraphs.append([])
  return [paragraph for paragraph in paragraphs if paragraph]


def _text(paragraph: list[str]) -> list[str]:
  """Returns an escaped paragraph; its indented lines are formulas.

  The lines of a list may be indented, too, and are not formulas.
  """
  if any(line.startswith(' ') for line in paragraph) and not (
    paragraph[0].startswith(('* ', '- '))
  ):
    at = next(i for i, line in enumerate(paragraph) if line.startswith(' '))
    return [
      *map(_escaped, paragraph[:at]),
      '',
      '::',
      '',
      *('  ' + line for line in paragraph[at:]),
    ]
  return [
    line[:2] + _escaped(line[2:])
    if line.startswith(('* ', '- '))
    else _escaped(line)
    for line in paragraph
  ]


def _entries(paragraph: list[str]) -> list[str]:
  """Returns the escaped lines of a section such as Args."""
  entries = []
  for line in paragraph:
    # Napoleon escapes the stars of *args itself.
    variadic = _VARIADIC.match(line)
    stars, rest = variadic.groups() if variadic else ('', line)
    entries.append(stars + _escaped(rest))
  return entries


def _escaped(line: str) -> str:
  """Returns a line; its text outside of backticks is escaped."""
  parts = _CODE.split(line)
  parts[::2] = [
    re.sub(r'[*|]|(?<=\w)_(?!\w)', r'\\\g<0>', part) for part in parts[::2]
  ]
  parts[1::2] = [
    part if part.startswith('``') else f'`{part}`' for part in parts[1::2]
  ]
  return ''.join(parts)
