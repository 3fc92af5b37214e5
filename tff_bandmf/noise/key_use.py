"""The use of a key by one tape of this process, and of a key file by servers.

`reserve` gives a key to one tape of this process. `KeyUse` gives coordinates of
the noise of a key file to one process. For a key file FILE, the list of uses is
the file FILE.use with mode 0600 in the same folder. Each line says which noise
a `bandmf noise-server` made from the key: a tape ID, the first coordinate, the
number of coordinates and the folder of the tape, with one space between them.
`tape.folder` defines tapes. While a noise-server computes coordinate i from the
key, it holds a lock on byte i of this file. The file holds no secret.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import pathlib
import struct
import threading
from collections.abc import Iterator

from tff_bandmf import errors
from tff_bandmf.noise import key as key_lib

# A byte beyond all coordinates. A process locks this byte before it reads or
# writes the lines.
_LINES = range(2**62, 2**62 + 1)

# Fingerprints of the keys whose noise is on an open tape of this process.
_reserved: set[int] = set()
_reserving = threading.Lock()


def reserve(key: key_lib.Key) -> int:
  """Reserves a key for one tape of this process; returns the key's fingerprint.

  **Formal guarantee.**
  Assumption: every tape that this process writes comes from
  `tape.open_tape`.
  Statement: at any time at most one open tape of this process has the noise of
  the key. The statement does not cover a tape of another process with the same
  key; `KeyUse` and the lock of a run's folder exclude such a process if they
  are used.

  Raises:
    ValueError: another open tape of this process has the key.
  """
  fingerprint = key.identify(b'held')
  with _reserving:
    # PRIVACY: Two runs with the same key have the same noise, so the difference
    # of their releases has no noise. If an open tape of this process has the
    # key, the key is refused.
    # Guard: aggregator_runs_test.test_second_factory_with_a_key_is_refused.
    if fingerprint in _reserved:
      raise errors.value_error(
        'key=Key(<secret>): serves another aggregator; close that aggregator '
        'and resume from its state, or give a new run a new key'
      )
    _reserved.add(fingerprint)
  return fingerprint


def free(fingerprint: int) -> None:
  """Lets another tape use the key that has this fingerprint."""
  _reserved.discard(fingerprint)


class KeyUse:
  """The right of one process to compute some coordinates from a key.

  PRIVACY: Two tapes from one key come from the same normals. If two runs used
  the two tapes, an attacker could combine their releases so that the noise
  cancels. A process that asks for coordinates is refused in three cases:
  another process is computing some of them; the key has made noise with another
  tape ID; or noise of some of them was made in another folder.
  Guards:
  noise_server_test.test_second_server_of_a_key_is_refused,
  noise_server_test.test_key_of_another_folder_is_refused,
  key_use_test.test_coordinates_serve_one_tape_in_one_folder.

  **Formal guarantee.** Assumption: every process that uses the key reaches the
  key file by the same path, on one host or on a file system whose locks all
  hosts respect, and calls `record` before a round uses its noise. Nobody
  removes or edits the list of uses. Statement: at any time at most one process
  computes a given coordinate from the key. All rounds that ever use noise of
  this coordinate use it with the same tape ID (so with the same C, dimension
  and standard deviation) and from the same folder, whose marks prevent a second
  use of a round. Source: a process locks the byte of each of its coordinates,
  and compares its use with every line of the list.
  """

  def __init__(
    self,
    key_file: pathlib.Path,
    tape_id: int,
    coordinates: range,
    directory: pathlib.Path,
  ):
    """Takes the right, which lasts until `close` is called or the process ends.

    Args:
      key_file: path of the key file.
      tape_id: 63-bit ID of the noise, from `stream.identify`.
      coordinates: coordinates to compute, not empty, with step 1.
      directory: folder of the tape.

    Raises:
      ValueError: another process computes some of the coordinates; a line of
        the list has another tape ID; a line has some of the coordinates and
        another folder; or the list is damaged.
      OSError: the list cannot be read or written.
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
        self._lock(fcntl.F_OFD_SETLK, fcntl.F_WRLCK, coordinates)
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
    """Adds a line for this use of the key; the line is on disk on return.

    Raises:
      ValueError: since `__init__`, another process has recorded a use that
        excludes this use, or the list was damaged.
      OSError: the disk is full.
    """
    with self._lines() as lines:
      self._check(lines)
      own = self._coordinates
      own_line = f'{self._tape_id} {own.start} {len(own)} {self._directory}'
      if own_line not in lines:
        end = os.lseek(self._handle, 0, os.SEEK_END)
        content = os.fsencode(own_line) + b'\n'
        # PRIVACY: On a full disk `write` may write only a part of the line. The
        # next line would continue this part, so the list would lack this use,
        # and a server in another folder could use the key for the same
        # coordinates. The part is removed, and the call fails.
        # Guard: fuzz_secrets_test.test_part_of_a_use_of_a_key_is_refused.
        if os.write(self._handle, content) < len(content):
          os.ftruncate(self._handle, end)
          raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._path)
        os.fsync(self._handle)

  def close(self) -> None:
    """Gives up the right; `close` must not be called twice."""
    os.close(self._handle)

  def _check(self, lines: list[str]) -> None:
    """Raises ValueError if a line is damaged or excludes this use of the key.

    A line excludes this use if it has another tape ID, or some of the
    coordinates in another folder.
    """
    for line in lines:
      try:
        tape_id, first, count, directory = line.split(' ', 3)
        start, own = int(first), self._coordinates
        apart = start >= own.stop or start + int(count) <= own.start
        same = int(tape_id) == self._tape_id
      except ValueError:
        raise errors.value_error(
          f'file={self._path}: is damaged; start anew with a new key file'
        ) from None
      if not same or not apart and directory != self._directory:
        raise errors.value_error(
          f'key file={self._key_file}: has served '
          f'{"this" if same else "another"} noise in {directory}; a key serves '
          'one run in one folder: give that folder and the options of that '
          'run, or start anew with a new key file'
        )

  @contextlib.contextmanager
  def _lines(self) -> Iterator[list[str]]:
    """Yields the lines; no other process can write them in the `with` block."""
    self._lock(fcntl.F_OFD_SETLKW, fcntl.F_WRLCK, _LINES)
    try:
      content = os.pread(self._handle, os.fstat(self._handle).st_size, 0)
      lines = os.fsdecode(content).splitlines()
      if content and not content.endswith(b'\n'):
        # A part of the last line is missing: `_check` refuses an empty line.
        lines.append('')
      yield lines
    finally:
      self._lock(fcntl.F_OFD_SETLK, fcntl.F_UNLCK, _LINES)

  def _lock(self, command: int, kind: int, places: range) -> None:
    # Linux's `struct flock`. The lock belongs to the open file instead of the
    # process.
    where = os.SEEK_SET, places.start, len(places)
    lock = struct.pack('hhqqi4x', kind, *where, 0)
    fcntl.fcntl(self._handle, command, lock)
