"""Strategy files.

A strategy file is JSON or, if its name ends in `.npz`, a NumPy archive with the
same content. JSON, version 2:

  {"format": "tff_bandmf.strategy", "version": 2,
   "family": "banded-toeplitz", "rounds": 2052,
   "parameters": {},
   "arrays": {"coefficients": [1.0, 0.5]},
   "participation": {"participation": "min-sep", "min_sep": 342,
                     "max_participations": null},
   "optimized": {"objective": "mean", "converged": true}}

| key             | content                                                   |
|-----------------|-----------------------------------------------------------|
| `parameters`    | `Strategy.parameters`; "column_normalize": true for C D^-1|
| `arrays`        | `Strategy.arrays`, with all digits of the float64 numbers |
| `participation` | schema of the strategy (`Participation.to_dict`), or null |
| `optimized`     | notes of the optimiser for readers; {} without optimiser  |

Commands use `participation` if no flag gives a schema. An `.npz` archive is
uncompressed and has one member for each array, and the member `header` with
all other keys as a JSON string. A `.npy` file holds the matrix C itself, and
has no schema.

Strategy files may come from an attacker: reading one takes memory in proportion
to its size, and never unpickles content.
"""

from __future__ import annotations

import contextlib
import io
import json
import keyword
import math
import os
import pathlib
import zipfile
from collections.abc import Mapping
from typing import IO, Any, Callable, Optional, Union

import attrs
import numpy as np

from tff_bandmf import _checks, _files, errors
from tff_bandmf import participation as participation_lib
from tff_bandmf.strategies import (
  base,
  column_normalized,
  dense,
  families,
  stamped,
)

_SUFFIXES = ('.json', '.npz')

FORMAT = 'tff_bandmf.strategy'
VERSION = 2

# Readers of .npy headers, by the format version; NumPy writes arrays of numbers
# in these two versions only.
_READ_HEADER = {
  (1, 0): np.lib.format.read_array_header_1_0,
  (2, 0): np.lib.format.read_array_header_2_0,
}


def save(
  strategy: base.Strategy,
  path: Union[str, os.PathLike],
  *,
  participation: Optional[participation_lib.Participation] = None,
  optimized: Optional[Mapping[str, _files.Json]] = None,
) -> None:
  """Writes a strategy file, which appears at `path` when it is complete.

  Args:
    strategy: strategy to write.
    path: path of the file, which ends in `.json` or `.npz`.
    participation: schema for which the strategy was made; None if the strategy
      was not made for a particular schema.
    optimized: JSON object with notes of the optimiser for readers.

  Raises:
    ValueError: `path` has neither ending.
    OSError: the folder does not exist or cannot be written.
  """
  path = check_path(path)
  if path.suffix == '.json':
    _files.write_json(path, to_document(strategy, participation, optimized))
    return
  header = _header(strategy, participation, optimized)
  text = np.array(json.dumps(header, allow_nan=False))
  with _files.naming(path, 'written'), _files.replacing(path) as part:
    with open(part, 'wb') as stream:
      np.savez(stream, header=text, **strategy.arrays())


def check_known(strategy: base.Strategy) -> None:
  """Raises ValueError unless a strategy file can hold the strategy."""
  inner = strategy
  if type(inner) is stamped.Stamped:
    inner = inner.block
  if type(inner) is column_normalized.ColumnNormalized:
    inner = inner.toeplitz
  declared = families.known().get(inner.family)
  # PRIVACY: A file names a family, and its reader builds the C of that family.
  # The C of another class under the same name may have a larger sensitivity, so
  # the noise of a run could be too small. Only classes of declared families
  # are written.
  # Guard: strategies_test.test_class_of_no_family_is_refused.
  if declared is None or type(inner) not in (declared.kind, *declared.forms):
    raise errors.value_error(
      f'strategy={type(inner).__name__}: is not the class of a family, so no '
      'file can hold it; use strategies.custom, or declare a family'
    )


def to_document(
  strategy: base.Strategy,
  participation: Optional[participation_lib.Participation] = None,
  optimized: Optional[Mapping[str, _files.Json]] = None,
) -> _files.JsonObject:
  """Returns the content of a JSON strategy file; `from_document` reads it.

  Args:
    strategy: see `save`.
    participation: see `save`.
    optimized: see `save`.
  """
  header = _header(strategy, participation, optimized)
  lists = {name: array.tolist() for name, array in strategy.arrays().items()}
  return {**header, 'arrays': lists}


def _header(
  strategy: base.Strategy,
  participation: Optional[participation_lib.Participation],
  optimized: Optional[Mapping[str, _files.Json]],
) -> _files.JsonObject:
  """Returns the content of a strategy file without its arrays."""
  check_known(strategy)
  return {
    'format': FORMAT,
    'version': VERSION,
    'family': strategy.family,
    'rounds': strategy.rounds,
    'parameters': strategy.parameters(),
    'participation': None if participation is None else participation.to_dict(),
    'optimized': dict(optimized or {}),
  }


def check_path(path: Union[str, os.PathLike]) -> pathlib.Path:
  """Returns `path` if a strategy file can have that name.

  Raises:
    ValueError: `path` ends in neither `.json` nor `.npz`.
  """
  path = pathlib.Path(path)
  if path.suffix not in _SUFFIXES:
    raise errors.value_error(
      f'out={path}: must end in .json or .npz; rename the file'
    )
  return path


def load(
  path: Union[str, os.PathLike],
) -> tuple[base.Strategy, Optional[participation_lib.Participation]]:
  """Reads a strategy file, or a `.npy` file with the matrix C.

  Returns:
    The strategy, and the schema for which the strategy was made. The schema is
    None if the file has none; a `.npy` file never has one.

  Raises:
    ValueError: the file is not a strategy file of version `VERSION`.
    OSError: the file cannot be read.
  """
  path = pathlib.Path(path)
  if path.suffix not in _PARSERS:
    raise errors.value_error(
      f'file={path}: must end in .json, .npz or .npy; give a strategy file'
    )
  content = _files.read(path)
  try:
    parsed = _PARSERS[path.suffix](content)
  except (json.JSONDecodeError, UnicodeDecodeError) as error:
    fault = _files.json_fault(content, error)
    raise ValueError(_not_a_strategy(path, f', {fault}')) from error
  # The readers of a damaged file may raise an exception of any type.
  except Exception as error:
    raise ValueError(_not_a_strategy(path)) from error
  if path.suffix != '.npy':
    return from_document(parsed, path)
  try:
    return dense.Dense(parsed), None
  except TypeError as error:
    raise ValueError(str(error)) from error


def _to_array(values: _files.Json) -> np.ndarray:
  """Returns a list of numbers, or a list of such lists, as an array."""
  if isinstance(values, np.ndarray):
    return values
  nested = bool(values) and isinstance(values[0], list)
  for row in values if nested else [values]:
    # NumPy pads all strings of a list to the longest, which could fill memory.
    if not isinstance(row, list) or not set(map(type, row)) <= {int, float}:
      raise TypeError('must be a list of numbers')
  try:
    return np.array(values)
  except ValueError as error:
    raise TypeError('must have rows of one length') from error


def _parse_npz(content: bytes) -> _files.JsonObject:
  """Returns the header of an archive, with the arrays under `arrays`."""
  with zipfile.ZipFile(io.BytesIO(content)) as archive:
    # Compressed or overlapping members could take more memory than the file.
    if sum(info.file_size for info in archive.infolist()) > len(content):
      raise ValueError('the members are larger than the file')
    members = {}
    for info in archive.infolist():
      with archive.open(info) as stream:
        array = _read_array(stream, info.file_size)
      members[info.filename[: -len('.npy')]] = array
  header = _files.parse_json(str(members.pop('header')[()]).encode())
  header['arrays'] = members
  return header


def _parse_npy(content: bytes) -> np.ndarray:
  return _read_array(io.BytesIO(content), len(content))


def _read_array(stream: IO[bytes], size: int) -> np.ndarray:
  """Returns the array of a .npy file of `size` bytes."""
  header = _READ_HEADER[np.lib.format.read_magic(stream)]
  shape, _, dtype = header(stream)
  # NumPy allocates the size that the header states, which could fill memory.
  if math.prod(shape) * dtype.itemsize != size - stream.tell():
    raise ValueError('the header states another size than the file has')
  stream.seek(0)
  return np.lib.format.read_array(stream, allow_pickle=False)


def from_document(
  header: _files.Json, path: Union[str, os.PathLike]
) -> tuple[base.Strategy, Optional[participation_lib.Participation]]:
  """Returns the strategy and the schema that a document describes.

  Args:
    header: result of `to_document`; values of `arrays` may be NumPy arrays.
    path: path of the file that holds the document, for messages.

  Raises:
    ValueError: `header` is not a strategy, or its version is not `VERSION`.
  """
  if not isinstance(header, dict) or header.get('format') != FORMAT:
    raise ValueError(_not_a_strategy(path))
  # PRIVACY: The C of a file of another version may have a larger sensitivity
  # than the C that is read here. Such a file is refused.
  # Guard: strategies_test.test_file_of_another_version_is_refused.
  if header.get('version') != VERSION:
    raise errors.value_error(
      f'version={header.get("version")}: {path} must have strategy file '
      f'version {VERSION}; write it again with this release of bandmf optimize'
    )
  family = header.get('family')
  if not isinstance(family, str) or family not in families.known():
    raise errors.value_error(
      f'family={family}: {path} has a family that this release lacks; upgrade, '
      'or optimise another family'
    )
  try:
    rounds = _checks.count(
      'rounds', header.get('rounds'), f'{path} is damaged: write it again'
    )
    # A file of a family without parameters may lack the key `parameters`.
    arrays = {name: _to_array(each) for name, each in header['arrays'].items()}
    strategy = _build(family, rounds, header.get('parameters', {}), arrays)
    # PRIVACY: If a file lost its schema, another schema could be used for the
    # accounting. The file must have the key of the schema, even if the value is
    # null.
    # Guard: strategies_test.test_file_with_another_schema_is_refused.
    participation = _participation(header['participation'])
  except (AttributeError, KeyError, OverflowError, TypeError) as error:
    raise ValueError(_not_a_strategy(path)) from error
  return strategy, participation


def _participation(
  content: _files.Json,
) -> Optional[participation_lib.Participation]:
  """Returns the schema of a file.

  PRIVACY: If a part of a schema were ignored, the schema that is read could
  allow fewer participations than the schema that was written, and the
  sensitivity would be too small. This function refuses a schema unless `save`
  would write it in the same way.
  Guard: strategies_test.test_file_with_another_schema_is_refused.
  """
  if content is None:
    return None
  fields, schema = {**content}, None
  with contextlib.suppress(ValueError):
    schema = participation_lib.from_name(fields.pop('participation'), **fields)
  if schema is None or schema.to_dict() != content:
    raise TypeError('the schema is not in the form that `save` writes')
  return schema


def _build(
  family: str,
  rounds: int,
  parameters: Mapping[str, _files.Json],
  arrays: Mapping[str, _files.Json],
) -> base.Strategy:
  """Returns the strategy that the parts of a file define.

  Args:
    family: name of a known family.
    rounds: n.
    parameters: `Strategy.parameters` of the strategy.
    arrays: `Strategy.arrays` of the strategy.

  Raises:
    KeyError, TypeError, ValueError: the parts do not define a strategy.
  """
  if family == stamped.Stamped.family:
    block = parameters['block']
    if block['family'] == family:
      raise TypeError('the block of a stamped strategy must not be stamped')
    parts = {name[len('block.') :]: array for name, array in arrays.items()}
    inner = _build(block['family'], block['rounds'], block['parameters'], parts)
    return stamped.Stamped(rounds, inner)
  if 'rounds' in parameters or any(name.endswith('_') for name in parameters):
    raise TypeError('there is an unknown parameter')
  # The field of the parameter `lambda`, a keyword of Python, is `lambda_`.
  fields = {
    name + '_' * keyword.iskeyword(name): value
    for name, value in parameters.items()
  }
  normalize = fields.pop('column_normalize', False)
  if not isinstance(normalize, bool):
    raise TypeError('column_normalize must be true or false')
  declared = families.known()[family]
  for kind in (*declared.forms, declared.kind):
    if arrays.keys() <= attrs.fields_dict(kind).keys():
      break
  if 'rounds' in attrs.fields_dict(kind):
    fields['rounds'] = rounds
  strategy = kind(**fields, **arrays)
  if strategy.rounds != rounds:
    raise TypeError('the arrays have another number of rounds')
  if normalize:
    return column_normalized.ColumnNormalized(strategy)
  return strategy


def _not_a_strategy(path: Union[str, os.PathLike], fault: str = '') -> str:
  return errors.invalid(
    f'file={path}: is not a whole strategy file{fault}; write it again, with '
    'bandmf optimize --out FILE or numpy.save'
  )


# Functions that parse the content of a file, by the ending of its name.
_PARSERS: dict[str, Callable[[bytes], Any]] = {
  '.json': _files.parse_json,
  '.npz': _parse_npz,
  '.npy': _parse_npy,
}
