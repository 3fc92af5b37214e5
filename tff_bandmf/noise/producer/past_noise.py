"""Arrays of past noise, one for each chunk, in memory or in a file.

A chunk is a range of the coordinates of the noise.
"""

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
  """Arrays [rows, coordinates of a chunk] that are zero at first.

  All arrays are in memory, or all are in one file. If they are in a file,
  `chunks[i]` maps array i into memory as long as the caller holds it.

  PRIVACY: Past noise is as secret as the key, and other users could read past
  noise from a file. The file has no name, so other users cannot open it. The
  system removes the file at `close` or when the process ends, but does not
  overwrite the bytes on the disk.
  Guard: past_noise_test.test_file_has_no_name_and_goes_at_the_end.
  """

  def __init__(
    self, rows: int, sizes: Sequence[int], dtype: Any, limit: Optional[int]
  ):
    """Makes the arrays.

    Args:
      rows: number of rows of every array, >= 0.
      sizes: number of coordinates of each array, > 0.
      dtype: type of the arrays' elements.
      limit: maximum number of bytes in memory, > 0. If the arrays need more,
        all go to a file in the folder for temporary files (TMPDIR). If None,
        the arrays are in memory.

    Raises:
      OSError: the disk has too little space for the file.
      ValueError: the arrays would be in memory, and the free memory is too
        small for them.
    """
    self._rows = rows
    self._sizes = sizes
    self._dtype = np.dtype(dtype)
    self._file = None
    self._arrays = []
    size = self._dtype.itemsize * rows * sum(sizes)
    if limit is None or size <= limit:
      # Zeros take up memory only when they are overwritten, many rounds later,
      # so the space is checked here.
      if size > _available_bytes():
        raise errors.value_error(
          f'memory={_available_bytes() / 1e9:.1f} GB: is free, but past noise '
          f'takes {size / 1e9:.1f} GB; use a mechanism that keeps fewer copies '
          'of the model, or max_memory_bytes'
        )
      self._arrays = [np.zeros((rows, count), dtype) for count in sizes]
      return
    self._file = tempfile.TemporaryFile(prefix='tff_bandmf-')
    try:
      # Reserve the space now: if the disk is full later, a write to the mapped
      # file kills the process.
      os.posix_fallocate(self._file.fileno(), 0, size)
    except BaseException:
      self._file.close()
      raise

  def __getitem__(self, i: int) -> np.ndarray:
    if self._file is None:
      return self._arrays[i]
    offset = self._dtype.itemsize * self._rows * sum(self._sizes[:i])
    shape = self._rows, self._sizes[i]
    return np.memmap(self._file, self._dtype, 'r+', offset, shape)

  def close(self) -> None:
    """Frees the memory and the file."""
    self._arrays.clear()
    if self._file is not None:
      self._file.close()


def _available_bytes() -> float:
  """Returns the bytes of free memory, or infinity if they are not known."""
  try:
    lines = pathlib.Path('/proc/meminfo').read_text().splitlines()
  except OSError:
    return math.inf
  fields = dict(line.split(':') for line in lines)
  return 1024.0 * int(fields['MemAvailable'].split()[0])
