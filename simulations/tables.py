"""Changes and checks the tables of TOML files."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping, Sequence
from typing import Any, Optional, TypeVar

from tff_bandmf import _files, errors

with errors.importing('an experiment'):
  import dacite

_Kind = TypeVar('_Kind')


def parse(kind: type[_Kind], table: Any, name: str) -> _Kind:
  """Returns a table as an instance of a dataclass; ignores unknown keys.

  Args:
    kind: the dataclass.
    table: table of a TOML file.
    name: name of the table, for messages.

  Raises:
    ValueError: `table` is not a table, lacks a key, or has a value of the wrong
      type.
  """
  if not isinstance(table, dict):
    raise errors.value_error(f'{name}={table}: must be a table; correct it')
  try:
    return dacite.from_dict(
      kind, table, dacite.Config(type_hooks={float: _to_float})
    )
  except dacite.DaciteFieldError as error:
    raise errors.value_error(
      f'{name}={error.field_path}: {str(error)}; correct it'
    ) from error
  except OverflowError as error:
    raise errors.value_error(
      f'{name}=an integer: must be below 1e308; correct it'
    ) from error


def _to_float(value: Any) -> Any:
  """Returns an integer as a float, and any other value unchanged."""
  return float(value) if type(value) is int else value


def check_keys(
  name: str,
  table: Mapping[str, Any],
  known: Sequence[str],
  listing: str,
  offers: Optional[Mapping[str, str]] = None,
) -> None:
  """Raises ValueError if a table has a key that is not known.

  Args:
    name: name of the table, for messages; '' for the whole file.
    table: table of a TOML file.
    known: known keys.
    listing: command or file that lists the keys, for messages.
    offers: argument `offers` of `unknown`; by default each known key is its own
      suggestion.
  """
  offers = offers or {key: key for key in known}
  for key in table:
    if key not in known:
      raise unknown('key', key, offers, listing, f'{name}.' if name else '')


def names(kind: Any) -> list[str]:
  """Returns the names of the fields of a dataclass."""
  return [field.name for field in dataclasses.fields(kind)]


def unknown(
  name: str,
  word: str,
  offers: Mapping[str, str],
  listing: str,
  prefix: str = '',
) -> ValueError:
  """Returns the error for a word that is not known.

  Args:
    name: kind of the word, such as 'key' or 'row', for the message.
    word: the unknown word.
    offers: map from known words to suggestions. The message contains the
      suggestion of the known word that is most similar to `word`.
    listing: command or file that lists the known words.
    prefix: text before the word in the message, such as 'privacy.'.
  """
  close = difflib.get_close_matches(word[:100], offers, 1)
  offer = f'use {offers[close[0]]}; ' if close else ''
  return errors.value_error(
    f'{name}={prefix}{word}: is not known; {offer}{listing} lists all'
  )


def assign(tree: dict[str, Any], key: str, value: Any) -> None:
  """Sets the value of a dotted key, such as 'a.b', in nested tables.

  Args:
    tree: nested tables, changed in place; missing tables are made.
    key: names of the tables and of the value, separated by dots.
    value: the value.

  Raises:
    ValueError: a name before the last one is the name of a value.
  """
  *groups, name = key.split('.')
  for group in groups:
    tree = tree.setdefault(group, {})
    if not isinstance(tree, dict):
      raise errors.value_error(
        f'{key}={value}: is not a key; leave out .{name}'
      )
  tree[name] = value


def apply(tree: dict[str, Any], settings: tuple[str, ...]) -> list[str]:
  """Changes nested tables by settings, and returns the changed keys.

  Args:
    tree: nested tables, changed in place.
    settings: texts 'group.key=value'. A value that is not valid TOML is a
      string.

  Raises:
    ValueError: a text has no '=', or a name before the last one of its key is
      the name of a value.
  """
  for setting in settings:
    key, equals, text = setting.partition('=')
    if not equals:
      raise errors.value_error(
        f'set={setting}: must be KEY=VALUE; for instance --set training.seed=1'
      )
    assign(tree, key, _files.toml_value(text))
  return [setting.partition('=')[0] for setting in settings]
