"""Checkpoints of a run: the state before a round, whole or not there.

Each is an archive of NumPy, sealed with the head of the ledger's chain; see
`report.sealed`.
"""

from __future__ import annotations

import hashlib
import io
import pathlib
from typing import Any

import numpy as np
import tensorflow as tf

from tff_bandmf import _files, errors
from tff_bandmf.report import sealed

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

  def save(self, state: Any, round_index: int, head: str) -> None:
    """Writes the state before a round and removes all but the last two.

    Args:
      state: of the learning process.
      round_index: that it is of the beginning of.
      head: of the ledger's chain, as it led to the state.
    """
    content = io.BytesIO()
    np.savez(content, *map(np.asarray, tf.nest.flatten(state)))
    archive = content.getbuffer()
    _files.write(
      self._path(round_index), archive, sealed.seal(archive, head), mode=0o600
    )
    for old in sorted(self._rounds())[:-_KEPT]:
      _files.wipe(self._path(old))

  def load(self, round_index: int, template: Any) -> tuple[Any, str]:
    """Returns the state before a round, and the head that led to it.

    Args:
      round_index: as `latest` gives it.
      template: a state of the same process.

    Raises:
      ValueError: the file is damaged, or of another model or optimiser.
    """
    path = self._path(round_index)
    leaves = [np.asarray(leaf) for leaf in tf.nest.flatten(template)]
    archive, head = sealed.read(path)
    with np.load(io.BytesIO(archive), allow_pickle=False) as content:
      found = [content[name] for name in content.files]
    if [(leaf.dtype, leaf.shape) for leaf in found] != [
      (leaf.dtype, leaf.shape) for leaf in leaves
    ]:
      raise ValueError(
        errors.invalid(
          'checkpoint',
          path,
          'is of another model, optimiser or noise placement',
          'restore the files of this run',
        )
      )
    return tf.nest.pack_sequence_as(template, found), head

  def _rounds(self) -> list[int]:
    return [
      int(path.stem)
      for path in self._directory.glob('*.npz')
      if path.stem.isdecimal()
    ]

  def _path(self, round_index: int) -> pathlib.Path:
    return self._directory / f'{round_index:08d}.npz'
