"""JSON files that may come from anybody.

What a reader could take for something else than a checker did is refused: keys
that are there twice, NaN and infinities, which JSON does not have.
"""

from __future__ import annotations

import json
import os
import pathlib
from typing import Any, Union

from tff_bandmf import errors


def read(path: Union[str, os.PathLike]) -> Any:
  """Returns what a JSON file says.

  Args:
    path: of the file, UTF-8.

  Raises:
    ValueError: it is no such JSON, or no file but a pipe or a device.
    OSError: it cannot be read.
  """
  return parse(content(pathlib.Path(path)))


def content(path: pathlib.Path) -> bytes:
  """Returns the bytes of a file; of a pipe or a device there is no end.

  Raises:
    ValueError: the path is there, and is no regular file.
    OSError: it cannot be read.
  """
  if path.exists() and not path.is_file():
    raise ValueError(
      errors.invalid('file', path, 'is no regular file', 'give a file')
    )
  return path.read_bytes()


def parse(text: bytes) -> Any:
  """Returns what JSON says.

  Args:
    text: UTF-8.

  Raises:
    ValueError: it is no JSON, has a key twice or a NaN, or is nested as no
      document is.

  >>> parse(b'{"rounds": 3, "bands": [1]}')
  {'rounds': 3, 'bands': [1]}
  """
  try:
    return json.loads(
      text.decode(),
      object_pairs_hook=_without_repetition,
      parse_constant=_refuse,
    )
  except RecursionError as error:
    raise ValueError('JSON nested too deeply') from error


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
  found = dict(pairs)
  if len(found) < len(pairs):
    raise ValueError('a key of a JSON object twice')
  return found


def _refuse(constant: str) -> None:
  raise ValueError(f'{constant} is no JSON')
