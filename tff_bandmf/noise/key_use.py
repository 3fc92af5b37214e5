"""The record of the noise made from a key file: its coordinates and folders.

The record FILE.use, mode 0600, is beside the key file FILE. Each of its lines
holds `tape ID, first coordinate, count, folder` of a server that had the key.
Its byte i is locked while a server makes coordinate i. The record holds no
secret.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pathlib
import struct
from collections.abc import Iterator

from tff_bandmf import errors

# Position past all coordinates; a process locks it to read or write the lines.
_LINES = 2**62


class KeyUse:
  """The right of one process to make some coordinates from a key.

  PRIVACY: Two tapes made from the same key hold the same noise, so the noise
  cancels in the difference of two releases. A process is refused if another
  one is making one of its coordinates, if the key has made noise of another
  tape ID, or if one of its coordinates was made in another folder. Guards:
  noise_server_test.test_second_server_of_a_key_is_refused,
  noise_server_test.test_key_of_another_folder_is_refused.

  **Formal guarantee.**
  Assumption: every process that uses the key reaches it by one path, on one
  host or on a file system whose locks all hosts respect, and nobody removes or
  edits the record. Statement: at any time at most one process makes a
  coordinate from the key, and all processes, one after another, make it for one
  tape ID (one C, size and deviation) and in one folder, whose marks then keep
  rounds apart. Source: the process holds a lock of the byte of each coordinate,
  and compares every line of the record.
  """

  def __init__(
    self,
    key_file: pathlib.Path,
    tape_id: int,
    coordinates: range,
    directory: pathlib.Path,
  ):
    """Takes the right; the process has it until `close` or until it ends.

    Args:
      key_file: path of the key file.
      tape_id: ID of the noise, 63 bits, from `stream.identify`.
      coordinates: the coordinates to be made, not empty, step 1.
      directory: folder of the tape.

    Raises:
      ValueError: another process makes some of the coordinates, or the key has
        made other noise, or has made some of the coordinates in another folder.
      OSError: the record cannot be made or read.
    """
    self._path = pathlib.Path(f'{key_file}.use')
    self._key_file = key_file
    self._tape_id = tape_id
    self._coordinates = coordinates
    self._directory = os.path.realpath(directory)
    self._handle = os.open(
      self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
    )
    try:
      try:
        self._lock(
          fcntl.F_OFD_SETLK, fcntl.F_WRLCK, coordinates.start, len(coordinates)
        )
      except (BlockingIOError, PermissionError):
        raise errors.value_error(
          f'key file={key_file}: another noise-server makes coordinates in '
          f'[{coordinates.start}, {coordinates.stop}) from it; stop that one, '
          'or give every run a key file of its own'
        ) from None
      with self._lines() as lines:
        self._check(lines)
    except BaseException:
      self.close()
      raise

  def record(self) -> None:
    """Adds this use of the key to the record, durably and for ever.

    Raises:
      ValueError: another process has recorded a different use meanwhile.
    """
    with self._lines() as lines:
      self._check(lines)
      own_line = (
        f'{self._tape_id} {self._coordinates.start} '
        f'{len(self._coordinates)} {self._directory}'
      )
      if own_line not in lines:
        os.lseek(self._handle, 0, os.SEEK_END)
        os.write(self._handle, os.fsencode(own_line) + b'\n')
        os.fsync(self._handle)

  def close(self) -> None:
    """Gives the right back; call it once."""
    os.close(self._handle)

  def _check(self, lines: list[str]) -> None:
    """Raises ValueError if a line records a different use of the key."""
    for line in lines:
      try:
        tape_id, first, count, directory = line.split(' ', 3)
        apart = (
          int(first) >= self._coordinates.stop
          or int(first) + int(count) <= self._coordinates.start
        )
        same = int(tape_id) == self._tape_id
      except ValueError:
        raise errors.value_error(
          f'file={self._path}: is damaged; start anew with a new key file'
        ) from None
      if not same or not apart and directory != self._directory:
        raise errors.value_error(
          f'key file={self._key_file}: has served '
          f'{"this" if same else "another"} noise in {directory}; a key serves '
          'one run in one folder: give that folder and what made it, or start '
          'anew with a new key file'
        )

  @contextlib.contextmanager
  def _lines(self) -> Iterator[list[str]]:
    """Yields the lines; no other process changes them in the `with` block."""
    self._lock(fcntl.F_OFD_SETLKW, fcntl.F_WRLCK, _LINES, 1)
    try:
      content = os.pread(self._handle, os.fstat(self._handle).st_size, 0)
      yield os.fsdecode(content).splitlines()
    finally:
      self._lock(fcntl.F_OFD_SETLK, fcntl.F_UNLCK, _LINES, 1)

  def _lock(self, command: int, kind: int, start: int, count: int) -> None:
    # `struct flock` of Linux. The lock belongs to the open file, not to the
    # process.
    fcntl.fcntl(
      self._handle,
      command,
      struct.pack('hhqqi4x', kind, os.SEEK_SET, start, count, 0),
    )
