"""Strategy files.

A strategy file is JSON or, where its name ends in `.npz`, a NumPy archive with
the same content. JSON, version 1:

  {"format": "tff_bandmf.strategy", "version": 1,
   "family": "banded-toeplitz", "rounds": 2052,
   "arrays": {"coefficients": [1.0, 0.5]},
   "optimized": {"objective": "mean", "converged": true}}

`arrays` holds what the family's `Strategy.arrays` returns; numbers are written
so that float64 reads back bit for bit. `optimized` says how the file came to
be and is empty for a family without optimiser; nothing is computed from it.
An `.npz` archive has one member per array and one, `header`, with the rest as
a JSON string. A `.npy` file is read as the matrix C itself.
"""

from __future__ import annotations

import json
import os
import pathlib
import tempfile
import zipfile
from typing import Any, Mapping, Optional, Union

import numpy as np

from tff_bandmf import errors
from tff_bandmf.strategies import banded_toeplitz
from tff_bandmf.strategies import base
from tff_bandmf.strategies import dense
from tff_bandmf.strategies import identity

FORMAT = 'tff_bandmf.strategy'
VERSION = 1


def save(
    strategy: base.Strategy,
    path: Union[str, os.PathLike],
    optimized: Optional[Mapping[str, Any]] = None,
) -> None:
  """Writes a strategy file, complete or not at all.

  Args:
    strategy: what to write.
    path: ends in `.json` or `.npz`.
    optimized: JSON object that says how the strategy was found.

  Raises:
    ValueError: `path` has another ending.
    OSError: the folder does not exist or cannot be written.
  """
  path = pathlib.Path(path)
  header = {
      'format': FORMAT,
      'version': VERSION,
      'family': strategy.family,
      'rounds': strategy.rounds,
      'optimized': dict(optimized or {}),
  }
  if path.suffix not in ('.json', '.npz'):
    raise ValueError(
        errors.invalid(
            'out', path, 'must end in .json or .npz', 'rename the file'))
  handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name)
  try:
    with os.fdopen(handle, 'wb') as stream:
      if path.suffix == '.npz':
        np.savez(stream, header=np.array(json.dumps(header)),
                 **strategy.arrays())
      else:
        header['arrays'] = {
            name: array.tolist() for name, array in strategy.arrays().items()
        }
        stream.write(json.dumps(header, indent=1).encode() + b'\n')
      stream.flush()
      os.fsync(stream.fileno())
    os.replace(temporary, path)
  except BaseException:
    os.unlink(temporary)
    raise


def load(path: Union[str, os.PathLike]) -> base.Strategy:
  """Returns the strategy in a strategy file or in a `.npy` file of C.

  Raises:
    ValueError: the file is no strategy file, or of another version.
    OSError: it cannot be read.
  """
  path = pathlib.Path(path)
  try:
    if path.suffix == '.npy':
      return dense.Dense(np.load(path, allow_pickle=False))
    if path.suffix == '.npz':
      with np.load(path, allow_pickle=False) as archive:
        header = json.loads(str(archive['header'][()]))
        header['arrays'] = {
            name: archive[name] for name in archive.files if name != 'header'
        }
    else:
      header = json.loads(path.read_bytes())
  except (KeyError, EOFError, UnicodeDecodeError, json.JSONDecodeError,
          zipfile.BadZipFile) as error:
    raise ValueError(_not_a_strategy(path)) from error
  if not isinstance(header, dict) or header.get('format') != FORMAT:
    raise ValueError(_not_a_strategy(path))
  if header.get('version') != VERSION:
    raise ValueError(
        errors.invalid(
            'version', header.get('version'),
            f'{path} must have strategy file version {VERSION}',
            'write it again with this release of bandmf optimize'))
  return _from_header(path, header)


def _from_header(path: pathlib.Path, header: dict[str, Any]) -> base.Strategy:
  """Returns the strategy that a file's header and arrays describe."""
  family, arrays = header.get('family'), header.get('arrays')
  rounds = errors.check_count(
      'rounds', header.get('rounds'), f'{path} is damaged: write it again')
  try:
    if family == identity.Identity.family:
      return identity.Identity(rounds)
    if family == banded_toeplitz.BandedToeplitz.family:
      return banded_toeplitz.BandedToeplitz(rounds, arrays['coefficients'])
    if family == dense.Dense.family:
      return dense.Dense(arrays['values'])
  except (KeyError, TypeError) as error:
    raise ValueError(_not_a_strategy(path)) from error
  raise ValueError(
      errors.invalid(
          'family', family, f'{path} has a family that this release lacks',
          'upgrade, or optimise another family'))


def _not_a_strategy(path: pathlib.Path) -> str:
  return errors.invalid(
      'file', path, 'is not a whole strategy file',
      'write one with bandmf optimize --out FILE')
