"""Files that only their owner reads, and that leave nothing behind."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pathlib
import tempfile
from typing import Optional

_ZEROS = memoryview(bytes(2**20))
# A link that somebody else may have made is never followed.
_MAKE = os.O_CREAT | os.O_NOFOLLOW
# Folders that come and go with a process are made here where possible.
MEMORY = pathlib.Path('/dev/shm')


def memory() -> pathlib.Path:
  """Returns a folder in memory, else the folder for temporary files."""
  return MEMORY if MEMORY.is_dir() else pathlib.Path(tempfile.gettempdir())


def lock(directory: pathlib.Path, name: str = 'lock') -> Optional[int]:
  """Returns an open file that locks the folder, or None if another has it."""
  path = directory / name
  handle = os.open(path, os.O_RDWR | _MAKE, 0o600)
  try:
    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    # Who had it may have removed the file; a lock on that locks nothing.
    if os.path.samestat(os.fstat(handle), path.stat()):
      return handle
  except (BlockingIOError, FileNotFoundError):
    pass
  os.close(handle)
  return None


def write(path: pathlib.Path, *contents) -> None:
  """Makes the file, mode 0600, of the contents one after another."""
  handle = os.open(path, os.O_WRONLY | os.O_TRUNC | _MAKE, 0o600)
  with open(handle, 'wb') as file:
    for content in contents:
      file.write(content)


def wipe(path: pathlib.Path) -> None:
  """Overwrites a file with zeros and removes it, if it is there."""
  with contextlib.suppress(FileNotFoundError):
    if not path.is_symlink():
      with open(path, 'r+b') as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        for start in range(0, size, len(_ZEROS)):
          file.write(_ZEROS[: size - start])
    path.unlink()
