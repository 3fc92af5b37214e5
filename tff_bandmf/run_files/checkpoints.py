"""Checkpoints of a run: files that hold the state before a round.

A checkpoint has three parts: a NumPy archive of the state; the head of the
ledger's chain, which is the last hash of the chain (32 bytes); and the SHA-256
of the first two parts (32 bytes). NumPy can still load the file, since readers
of ZIP archives ignore the bytes after the archive.
"""

from __future__ import annotations

import hashlib
import io
import pathlib
from typing import TypeVar

import numpy as np
import tree

from tff_bandmf import _files, errors

_State = TypeVar('_State')

_CHECKPOINTS = 2
_BYTES = 32


class Checkpoints:
  """The latest states of a run, in a private folder.

  The name of a checkpoint is the index of a round, and its content is the state
  before this round: model, optimiser, count of rounds, and noise state, which
  may be secret. A checkpoint gets its name when it is complete and on the disk.
  """

  def __init__(self, directory: pathlib.Path):
    self._directory = directory
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)

  def latest(self) -> int:
    """Returns the round of the latest checkpoint; 0 if there is none."""
    return max(self._rounds(), default=0)

  def save(self, state: object, round_index: int, head: str) -> None:
    """Writes the state before a round, and removes old checkpoints.

    The last two checkpoints stay.

    Args:
      state: state of the learning process, any structure of arrays.
      round_index: index t of the round.
      head: head of the ledger's chain after round t - 1, 64 hexadecimal digits.
    """
    content = io.BytesIO()
    np.savez(content, *arrays(state))
    archive, sealed = content.getbuffer(), bytes.fromhex(head)
    digest = hashlib.sha256(archive)
    digest.update(sealed)
    _files.write(
      self._path(round_index), archive, sealed, digest.digest(), mode=0o600
    )
    for old in map(self._path, sorted(self._rounds())[:-_CHECKPOINTS]):
      # `wipe` writes zeros over a file. The checkpoint is renamed first. If the
      # program is killed during `wipe`, a file `*.part` is left, and not a
      # checkpoint of zeros. `folder.locked` removes this file later.
      _files.wipe(old.rename(old.with_suffix(_files.PART)))

  def load(self, round_index: int, template: _State) -> tuple[_State, str]:
    """Returns the state before a round, and the head of the ledger's chain.

    Args:
      round_index: index of the round, a result of `latest`.
      template: any state of the same process; its numbers are not used.

    Raises:
      ValueError: the checkpoint is damaged, or belongs to another model,
        optimiser or placement of the noise.
    """
    path = self._path(round_index)
    archive, head = read(path)
    with np.load(io.BytesIO(archive), allow_pickle=False) as content:
      loaded = [content[name] for name in content.files]
    if [(array.dtype, array.shape) for array in loaded] != [
      (leaf.dtype, leaf.shape) for leaf in arrays(template)
    ]:
      raise errors.value_error(
        f'checkpoint={path}: belongs to another model, optimiser or noise '
        'placement; restore the files of this run'
      )
    return tree.unflatten_as(template, loaded), head

  def _rounds(self) -> list[int]:
    names = [path.stem for path in self._directory.glob('*.npz')]
    return [int(name) for name in names if name.isdecimal()]

  def _path(self, round_index: int) -> pathlib.Path:
    return self._directory / f'{round_index:08d}.npz'


def arrays(state: object) -> list[np.ndarray]:
  """Returns the leaves of a state as arrays.

  Raises:
    TypeError: a leaf is an object that no file can hold.
  """
  leaves = []
  for path, leaf in tree.flatten_with_path(state):
    leaves.append(np.asarray(leaf))
    if leaves[-1].dtype.hasobject:
      name = '.'.join(map(str, path)) or 'state'
      raise errors.type_error(
        f'state[{name}]={type(leaf).__name__}: must be an array of numbers, or '
        'no checkpoint can hold it; give arrays; in TFF, use '
        'runtime.local_runtime() without program=True, or run.train_model'
      )
  return leaves


def read(path: pathlib.Path) -> tuple[bytes, str]:
  """Returns the archive in a checkpoint, and the head of the ledger's chain.

  Raises:
    ValueError: the checkpoint is damaged. The message is one line, and names
      the file.
    OSError: the file cannot be read.
  """
  content = _files.read(path)
  archive, head = content[: -2 * _BYTES], content[-2 * _BYTES : -_BYTES]
  if (
    len(content) < 2 * _BYTES
    or hashlib.sha256(archive + head).digest() != content[-_BYTES:]
  ):
    raise errors.value_error(
      f'checkpoint={path}: is damaged; restore it, or remove it: the run then '
      'continues from the previous checkpoint'
    )
  return archive, head.hex()
