"""Checkpoints of a run: the state before a round, whole or not there.

  content, 32 bytes: head of the ledger's chain, 32 bytes: SHA-256 of all before

The content is an archive of NumPy. What is behind it does not keep a reader of
ZIP archives from reading it.
"""

from __future__ import annotations

import hashlib
import io
import pathlib
from typing import Any

import numpy as np
import tree

from tff_bandmf import _files, errors

_KEPT = 2
_BYTES = 32


class Checkpoints:
  """The latest states of a run, in a private folder.

  A file is the state before the round in its name: model, optimiser, round and
  noise state, which may be secret. It appears when it is complete and on the
  disk.
  """

  def __init__(self, directory: pathlib.Path):
    self._directory = directory
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)

  def latest(self) -> int:
    """Returns the round of the latest checkpoint; 0 if there is none."""
    return max(self._rounds(), default=0)

  def save(self, state: Any, round_index: int, head: str) -> None:
    """Writes the state before a round and removes all but the last two.

    Args:
      state: of the learning process.
      round_index: that it is of the beginning of.
      head: of the ledger's chain, as it led to the state, in hexadecimal.
    """
    content = io.BytesIO()
    np.savez(content, *map(np.asarray, tree.flatten(state)))
    archive, sealed = content.getbuffer(), bytes.fromhex(head)
    if len(sealed) != _BYTES:
      raise errors.value_error(
        'head', head, f'must be {_BYTES} bytes', 'give Ledger.head()'
      )
    digest = hashlib.sha256(archive)
    digest.update(sealed)
    _files.write(
      self._path(round_index), archive, sealed, digest.digest(), mode=0o600
    )
    for old in map(self._path, sorted(self._rounds())[:-_KEPT]):
      # A kill leaves no checkpoint of zeros, but what `folder.locked` removes.
      _files.wipe(old.rename(old.with_suffix(_files.PART)))

  def load(self, round_index: int, template: Any) -> tuple[Any, str]:
    """Returns the state before a round, and the head that led to it.

    Args:
      round_index: as `latest` gives it.
      template: a state of the same process.

    Raises:
      ValueError: the file is damaged, or of another model or optimiser.
    """
    path = self._path(round_index)
    leaves = [np.asarray(leaf) for leaf in tree.flatten(template)]
    archive, head = read(path)
    with np.load(io.BytesIO(archive), allow_pickle=False) as content:
      found = [content[name] for name in content.files]
    if [(leaf.dtype, leaf.shape) for leaf in found] != [
      (leaf.dtype, leaf.shape) for leaf in leaves
    ]:
      raise errors.value_error(
        'checkpoint',
        path,
        'is of another model, optimiser or noise placement',
        'restore the files of this run',
      )
    return tree.unflatten_as(template, found), head

  def _rounds(self) -> list[int]:
    return [
      int(path.stem)
      for path in self._directory.glob('*.npz')
      if path.stem.isdecimal()
    ]

  def _path(self, round_index: int) -> pathlib.Path:
    return self._directory / f'{round_index:08d}.npz'


def read(path: pathlib.Path) -> tuple[bytes, str]:
  """Returns the content of a file, and the head of its ledger's chain.

  Raises:
    ValueError: it is damaged; one line that names it.
    OSError: it cannot be read.
  """
  found = _files.read(path)
  # Over the whole file: one bit that changed is seen, wherever it is.
  if (
    len(found) < 2 * _BYTES
    or hashlib.sha256(found[:-_BYTES]).digest() != found[-_BYTES:]
  ):
    raise errors.value_error(
      'checkpoint',
      path,
      'is damaged',
      'restore it, or remove it: the run goes on from the one before',
    )
  return found[: -2 * _BYTES], found[-2 * _BYTES : -_BYTES].hex()
