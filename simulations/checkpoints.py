"""Checkpoints of a run: the state before a round, whole or not there."""

from __future__ import annotations

import hashlib
import io
import os
import pathlib
import zipfile
from typing import Any

import numpy as np
import tensorflow as tf

from tff_bandmf import errors
from tff_bandmf.noise import private_files

_KEPT = 2


def digest(state: Any) -> bytes:
  """Returns the SHA-256 of the model and optimiser of a learning process.

  What a round released can be computed from them, and they from it: rounds
  with the same digest are one release. Noise and its key are not in it.

  Args:
    state: `tff.learning.templates.LearningAlgorithmState`.
  """
  sha = hashlib.sha256()
  for leaf in tf.nest.flatten((state.global_model_weights, state.finalizer)):
    leaf = np.asarray(leaf)
    sha.update(f'{leaf.dtype} {leaf.shape}\n'.encode())
    sha.update(leaf.tobytes())
  return sha.digest()


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

  def save(self, state: Any, round_index: int) -> None:
    """Writes the state before a round and removes all but the last two."""
    content = io.BytesIO()
    np.savez(content, *map(np.asarray, tf.nest.flatten(state)))
    path = self._path(round_index)
    temporary = path.with_suffix('.part')
    private_files.write(temporary, content.getbuffer())
    _sync(temporary)
    os.replace(temporary, path)
    _sync(self._directory)
    for old in sorted(self._rounds())[:-_KEPT]:
      private_files.wipe(self._path(old))

  def load(self, round_index: int, template: Any) -> Any:
    """Returns the state before a round.

    Args:
      round_index: as `latest` gives it.
      template: a state of the same process.

    Raises:
      ValueError: the file is damaged, or of another model or optimiser.
    """
    path = self._path(round_index)
    leaves = [np.asarray(leaf) for leaf in tf.nest.flatten(template)]
    try:
      # The archive has checksums; they are checked as it is read.
      with np.load(path, allow_pickle=False) as content:
        found = [content[name] for name in content.files]
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
      raise _unusable(path, 'is damaged') from error
    if [(leaf.dtype, leaf.shape) for leaf in found] != [
        (leaf.dtype, leaf.shape) for leaf in leaves]:
      raise _unusable(path, 'is of another model, optimiser or noise placement')
    return tf.nest.pack_sequence_as(template, found)

  def _rounds(self) -> list[int]:
    return [int(path.stem) for path in self._directory.glob('*.npz')]

  def _path(self, round_index: int) -> pathlib.Path:
    return self._directory / f'{round_index:08d}.npz'


def _sync(path: pathlib.Path) -> None:
  handle = os.open(path, os.O_RDONLY)
  try:
    os.fsync(handle)
  finally:
    os.close(handle)


def _unusable(path: pathlib.Path, rule: str) -> ValueError:
  return ValueError(
      errors.invalid(
          'checkpoint', path, rule, 'restore the files of this run'))
