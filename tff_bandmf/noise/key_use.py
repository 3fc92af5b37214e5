"""Which coordinates the noise of a key file is made of, and in which folder.

Beside the file of a key lies FILE.use, mode 0600. Its lines say `tape id, first
coordinate, count, folder`, of all servers that the key had; its byte i is
locked while a server makes coordinate i. It holds no secret.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pathlib
import struct
from collections.abc import Iterator

from tff_bandmf import errors

# Behind all coordinates: held while the lines are read and written.
_LINES = 2**62


class KeyUse:
  """The right of one process to make some coordinates from a key.

  PRIVACY: two tapes of one key have the same noise, and the difference of two
  releases with it has none. Guards:
  noise_server_test.test_second_server_of_a_key_is_refused,
  noise_server_test.test_key_of_another_folder_is_refused.
  """

  def __init__(
    self,
    key_file: pathlib.Path,
    tape_id: int,
    coordinates: range,
    directory: pathlib.Path,
  ):
    """Takes the right, until `close` or the end of the process.

    The tape of the noise that `tape_id` names is in `directory`.

    Raises:
      ValueError: another process has the right to some of the coordinates, or
        the key made other noise, or them in another folder.
      OSError: the file cannot be made or read.
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
          'key file',
          key_file,
          f'another noise-server makes coordinates in '
          f'[{coordinates.start}, {coordinates.stop}) from it',
          'stop that one, or give every run a key file of its own',
        ) from None
      with self._lines() as lines:
        self._check(lines)
    except BaseException:
      self.close()
      raise

  def record(self) -> None:
    """Says for ever what the key is used for.

    Raises:
      ValueError: another process said otherwise meanwhile.
    """
    with self._lines() as lines:
      self._check(lines)
      own = (
        f'{self._tape_id} {self._coordinates.start} '
        f'{len(self._coordinates)} {self._directory}'
      )
      if own not in lines:
        os.lseek(self._handle, 0, os.SEEK_END)
        os.write(self._handle, os.fsencode(own) + b'\n')
        os.fsync(self._handle)

  def close(self) -> None:
    """Gives the right back; may be called once."""
    os.close(self._handle)

  def _check(self, lines: list[str]) -> None:
    """Raises ValueError if the lines are of another use of the key."""
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
          'file', self._path, 'is damaged', 'start anew with a new key file'
        ) from None
      if not same or not apart and directory != self._directory:
        raise errors.value_error(
          'key file',
          self._key_file,
          f'has served {"this" if same else "another"} noise in {directory}',
          'a key serves one run in one folder: give that folder and '
          'what made it, or start anew with a new key file',
        )

  @contextlib.contextmanager
  def _lines(self) -> Iterator[list[str]]:
    """Gives the lines, which nobody changes meanwhile."""
    self._lock(fcntl.F_OFD_SETLKW, fcntl.F_WRLCK, _LINES, 1)
    try:
      content = os.pread(self._handle, os.fstat(self._handle).st_size, 0)
      yield os.fsdecode(content).splitlines()
    finally:
      self._lock(fcntl.F_OFD_SETLK, fcntl.F_UNLCK, _LINES, 1)

  def _lock(self, command: int, kind: int, start: int, count: int) -> None:
    # struct flock of Linux. It belongs to the open file, not to the process.
    fcntl.fcntl(
      self._handle,
      command,
      struct.pack('hhqqi4x', kind, os.SEEK_SET, start, count, 0),
    )
