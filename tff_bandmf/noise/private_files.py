"""Files that only their owner reads, and that leave nothing behind."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pathlib
from typing import Optional

_ZEROS = memoryview(bytes(2**20))
# Folders that come and go with a process are made here where possible.
MEMORY = pathlib.Path('/dev/shm')


def lock(directory: pathlib.Path) -> Optional[int]:
  """Returns an open file that locks the folder, or None if another has it."""
  handle = os.open(directory / 'lock', os.O_RDWR | os.O_CREAT, 0o600)
  try:
    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError:
    os.close(handle)
    return None
  return handle


def write(path: pathlib.Path, *contents) -> None:
  """Makes the file, mode 0600, of the contents one after another."""
  handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
  with open(handle, 'wb') as file:
    for content in contents:
      file.write(content)


def wipe(path: pathlib.Path) -> None:
  """Overwrites a file with zeros and removes it, if it is there."""
  with contextlib.suppress(FileNotFoundError):
    with open(path, 'r+b') as file:
      size = file.seek(0, os.SEEK_END)
      file.seek(0)
      for start in range(0, size, len(_ZEROS)):
        file.write(_ZEROS[:size - start])
    path.unlink()
