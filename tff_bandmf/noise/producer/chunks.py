"""Arrays of one chunk of coordinates each, in memory or in a file."""

from __future__ import annotations

import math
import os
import pathlib
import tempfile
from collections.abc import Sequence
from typing import Any, Optional

import numpy as np

from tff_bandmf import errors


class Chunks:
  """[rows, coordinates of a chunk] arrays, zero at first.

  All are in memory, or in one file of which only the array in use is: what
  `chunks[i]` gives is mapped for as long as somebody holds it.

  PRIVACY: past noise is as secret as the key. The file has no name, so nobody
  opens it and a killed process leaves none; its place on the disk is not
  overwritten. Guard: chunks_test.test_file_has_no_name_and_goes_at_the_end.
  """

  def __init__(
    self,
    rows: int,
    sizes: Sequence[int],
    dtype: Any,
    max_memory_bytes: Optional[int] = None,
  ):
    """Makes the arrays.

    Args:
      rows: of every array.
      sizes: coordinates of each array.
      dtype: of the arrays.
      max_memory_bytes: arrays that are larger together go to a file in the
        folder for temporary files (TMPDIR). None keeps any in memory.

    Raises:
      OSError: the disk has no room.
      ValueError: the memory has none.
    """
    self._rows = rows
    self._sizes = sizes
    self._dtype = np.dtype(dtype)
    self._file = None
    self._arrays = []
    size = self._dtype.itemsize * rows * sum(sizes)
    if max_memory_bytes is None or size <= max_memory_bytes:
      # Zeros take none before they are written, many rounds later.
      if size > _available_bytes():
        raise errors.value_error(
          'memory',
          f'{_available_bytes() / 1e9:.1f} GB',
          f'is what there is, and past noise takes {size / 1e9:.1f} GB',
          'use a mechanism that keeps fewer copies, or max_memory_bytes',
        )
      self._arrays = [np.zeros((rows, count), dtype) for count in sizes]
      return
    self._file = tempfile.TemporaryFile(prefix='tff_bandmf-')
    try:
      # A disk that is full later on would kill the process.
      os.posix_fallocate(self._file.fileno(), 0, size)
    except BaseException:
      self._file.close()
      raise

  def __getitem__(self, i: int) -> np.ndarray:
    if self._file is None:
      return self._arrays[i]
    return np.memmap(
      self._file,
      self._dtype,
      'r+',
      self._dtype.itemsize * self._rows * sum(self._sizes[:i]),
      (self._rows, self._sizes[i]),
    )

  def close(self) -> None:
    """Gives the memory and the disk back."""
    self._arrays.clear()
    if self._file is not None:
      self._file.close()


def _available_bytes() -> float:
  """Returns how much memory is free; infinity where the system says nothing."""
  try:
    lines = pathlib.Path('/proc/meminfo').read_text().splitlines()
  except OSError:
    return math.inf
  found = dict(line.split(':') for line in lines)
  return 1024.0 * int(found['MemAvailable'].split()[0])
