"""The layout of a tape on disk.

A tape holds the noise y_t of each round t of a run. The tape is one folder with
mode 0700, or several such folders, one for each shard. A shard is a range of
the coordinates of y_t. The noise is y = C^-1 z for a strategy matrix C and
normals z, in steps of `noise.lattice`. A folder holds these files:

  lock              locked by the producer; names its host and process
  definition.npz    of a noise-server: see `noise.definition`
  tape.json         a `Description` of the noise, without a secret
  00000003.noise    y_3, the noise of round 3; see `tape.file`
  00000003.reached  a mark: rounds below 3 are refused
  00000003-7-0123456789-0123456789.reached
                    a mark: rounds below 3 are refused, and round 3 may release
                    only the sum of run 7 with this 64-bit fingerprint
  failed            the producer ended early; holds the type of the exception

The producer (`tape.writer`) writes the noise files. The readers (`tape.reader`
and `tape.graph_reader`) write the mark of a sum before they release the sum. A
mark without a run shows where a tape begins: `tape.writer` and
`tape.noise_server_tape` write it. A noise file gets its name when it is
complete. A mark is an empty file whose name holds all the information, so a
mark is never half-written. If a folder has several marks, rounds below the
highest round are refused. A run ID is a number below 2^63; TFF's server state
holds it. A fingerprint is computed from S_t + y_t, where S_t is the sum of the
clipped records of round t; it has 64 bits, written as two numbers of 32 bits.

The folder of a `bandmf noise-server` also holds this file:

  reader            locked by the only process that may read the folder

When a noise-server stops, its folder keeps `lock`, `reader`, `tape.json`,
`definition.npz` and the highest marks, so that no later run gets noise that was
used. When a tape that no noise-server wrote is closed, all files of the tape
are removed.
"""

from __future__ import annotations

import abc
import contextlib
import os
import pathlib
import re
import shutil
import socket
import stat
import tempfile
from collections.abc import Sequence
from typing import NamedTuple, Optional

import msgspec

from tff_bandmf import _files, errors
from tff_bandmf.noise import released_sums
from tff_bandmf.noise.tape import file as tape_file
from tff_bandmf.strategies import recursion as recursion_lib

# Seconds for which a round waits for its noise.
TIMEOUT_SECONDS = 600.0
# Seconds between two polls of a folder.
POLL_SECONDS = 0.02

DESCRIPTION = 'tape.json'
DEFINITION = 'definition.npz'
# First entries of `tape.json`.
_HEADER = {'version': tape_file.VERSION, 'format': 'tff_bandmf.tape'}
_PREFIX = 'tff_bandmf-tape-'
_FILE = re.compile(
  r'lock|reader|(failed|tape\.json|definition\.npz|\d{8,}\.(noise|reached))'
  r'(\.\w+\.part)?'
  r'|\d{8,}-\d+-\d+-\d+\.reached'
)
# Name of a mark: its round, its owner and its run ID; see `marks`.
MARK = r'(\d+)(?:-((\d+)-\d+-\d+))?\.reached'
# Files that stay in the folder when a noise-server ends.
KEPT = r'lock|reader|tape\.json|definition\.npz|.*\.reached'
# The reasons for which a reader refuses a round.
BEHIND = (
  'the producer ended or fell behind; is it alive, with room on its disk?'
)
NOT_THERE = (
  'the tape is not there; was the aggregator closed, or can the process that '
  'runs the round not see the folder?'
)
REMOVED = (
  'the noise of this round was already used and removed; resume with a tape '
  'that starts at the round of the state'
)
OTHER_RUN = (
  'the noise of this round was used by another run; resume that run from its '
  'own state, or start a new run with a new key'
)
OTHER_SUM = (
  'this round has released another sum, and its noise serves one sum; repeat '
  'it with the same cohort and model, or continue with the next round'
)
# Characters that `tf.io.matching_files` interprets as a pattern.
_GLOB = '*?[]\\'


class Shard(NamedTuple):
  """A range of the coordinates of y_t, and the folder of its files.

  Attributes:
    first: first coordinate, >= 0.
    size: number of coordinates, > 0.
    directory: folder of the shard.
  """

  first: int
  size: int
  directory: pathlib.Path


class ReadableTape(abc.ABC):
  """A tape as its readers use it.

  Attributes:
    shards: the shards, in the order of their coordinates.
    dimension: d, number of coordinates of y_t, > 0.
    z_steps: standard deviation of z in lattice steps, > 0.
    recursion: recursion that computes y from z, for the strategy matrix C.
    start_round: first round to be read, >= 0.
    tape_id: 63-bit ID of the noise, equal to `Stream.identifier`. Every noise
      file holds the ID and every reader compares it, so only a tape with the
      same noise can continue a run.
    position: the open round of a run, in files; None if the round comes from
      TFF's state or from the caller.
  """

  shards: Sequence[Shard]
  dimension: int
  z_steps: float
  recursion: recursion_lib.Recursion
  start_round: int
  tape_id: int
  position: Optional[released_sums.Position] = None

  @abc.abstractmethod
  def close(self) -> None:
    """Closes the tape; a second call does nothing."""


class Description(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
  """The content of `tape.json`: which noise a folder holds.

  The file is a JSON object with these fields, a `format`, and the `version` of
  the noise files.

  Attributes:
    tape_id: 63-bit ID of the noise, a one-way function of the key.
    strategy: digest of the numbers of C, `Recursion.digest`.
    rounds: number of rounds of the run, > 0.
    dimension: d, number of coordinates of y_t in all shards together, > 0.
    first: first coordinate of this folder, >= 0.
    count: number of coordinates of this folder, > 0.
    z_steps: standard deviation of z in lattice steps, > 0.
    served: whether a `bandmf noise-server` makes the noise.
  """

  tape_id: int
  strategy: str
  rounds: int
  dimension: int
  first: int
  count: int
  z_steps: float
  served: bool

  @classmethod
  def read(cls, directory: pathlib.Path) -> Optional[Description]:
    """Returns the description of a folder, or None if it has none.

    Raises:
      ValueError: another version of tff_bandmf wrote the file, or the file is
        not a description.
    """
    path = directory / DESCRIPTION
    try:
      content = {**_files.read_json(path)}
      if {name: content.pop(name, None) for name in _HEADER} != _HEADER:
        raise ValueError('another version')
      return msgspec.convert(content, cls)
    except FileNotFoundError:
      return None
    except (TypeError, ValueError, msgspec.ValidationError) as error:
      raise errors.value_error(
        f'file={path}: is not tff_bandmf.tape of version {tape_file.VERSION}; '
        'use one version of tff_bandmf for the server and for training, a new '
        'folder and a new key'
      ) from error

  def write(self, directory: pathlib.Path) -> None:
    """Writes the file, whole or not at all."""
    content = {**_HEADER, **msgspec.to_builtins(self)}
    _files.write_json(directory / DESCRIPTION, content, mode=0o600)

  def difference(self, other: Description) -> str:
    """Returns 'field=value' of each field in which `other` differs from self.

    The text is empty if the descriptions are equal.
    """
    return ' '.join(
      f'{name}={value}'
      for name, value in msgspec.structs.asdict(other).items()
      if getattr(self, name) != value
    )


def noise_path(directory: pathlib.Path, round_index: int) -> pathlib.Path:
  """Returns the path of the noise file of a round."""
  return directory / f'{round_index:08d}.noise'


def marks(directory: pathlib.Path) -> list[tuple[int, str, str]]:
  """Returns (round, owner, run ID) of all marks in a folder.

  The owner consists of the run ID and the fingerprint of the marked release. If
  a mark names no run, its owner and its run ID are ''.
  """
  names = [re.fullmatch(MARK, name) for name in os.listdir(directory)]
  return [
    (int(name[1]), name[2] or '', name[3] or '') for name in names if name
  ]


def highest_mark(directory: pathlib.Path, default: int = 0) -> int:
  """Returns the highest round of the marks; `default` if there are no marks."""
  return max((t for t, _, _ in marks(directory)), default=default)


def next_round(directory: pathlib.Path) -> int:
  """Returns the first round that no mark refuses or gives to a run.

  Raises:
    ValueError: the folder has no mark.
  """
  # A mark with a run ID gives the mark's own round to that run. A mark without
  # a run ID concerns only earlier rounds.
  return max(t + bool(run) for t, _, run in marks(directory))


def mark(directory: pathlib.Path, round_index: int) -> None:
  """Writes a mark without a run: rounds below `round_index` are refused."""
  _files.write(directory / f'{round_index:08d}.reached', mode=0o600)


def remove_marks(directory: pathlib.Path, below: int) -> None:
  """Removes the marks of rounds before `below`, but never the highest mark.

  Args:
    directory: folder of the tape.
    below: round in [0, highest mark].
  """
  for path in directory.glob('*.reached'):
    if int(re.split('[-.]', path.name)[0]) < below:
      path.unlink(missing_ok=True)


def prepare(directory: pathlib.Path) -> int:
  """Makes a folder private, locks it, and returns the descriptor of its lock.

  Args:
    directory: folder of the tape; it is made if it is missing.

  Raises:
    ValueError: TensorFlow cannot list a folder with this name, or the folder
      belongs to another user, holds files that belong to no tape, or is locked.
    OSError: the folder cannot be made or changed.
  """
  check_name(directory)
  directory.mkdir(mode=0o700, parents=True, exist_ok=True)
  # PRIVACY: If another user owns the folder, that user can read and replace the
  # noise, even if root writes the noise. Another user's folder is refused.
  # Guard: fuzz_secrets_test.test_folder_of_another_user_is_refused.
  if {directory.stat().st_uid, directory.lstat().st_uid} != {os.getuid()}:
    raise _refused(directory, 'belongs to another user')
  if not all(map(_FILE.fullmatch, os.listdir(directory))):
    raise _refused(directory, 'holds files that belong to no tape')
  directory.chmod(0o700)
  lock = _files.lock(directory / 'lock')
  if lock is None:
    raise _refused(directory, 'has a live producer')
  _sign(lock)
  return lock


def _sign(lock: int) -> None:
  """Writes host and process into the file of a lock, if the disk has room."""
  with contextlib.suppress(OSError):
    os.truncate(lock, 0)
    os.pwrite(lock, f'{socket.gethostname()} {os.getpid()}'.encode(), 0)


def producer(directory: pathlib.Path) -> str:
  """Returns a text that names the last process that took a folder's lock."""
  try:
    host, process = _files.read(directory / 'lock').decode().split()
    return f'process {int(process)} on {host}'
  except (OSError, ValueError):
    return 'a process that left no name'


def _refused(directory: pathlib.Path, rule: str) -> ValueError:
  return errors.value_error(
    f'tape directory={directory}: {rule}; give the tape another directory'
  )


def check_name(directory: pathlib.Path) -> None:
  """Raises ValueError if TensorFlow cannot list a folder with this name."""
  if set(_GLOB).intersection(str(directory)):
    raise _refused(directory, f'must not contain any of {_GLOB}')


def check_start(start_round: int, rounds: int) -> None:
  """Raises ValueError unless a tape can begin at `start_round`."""
  if not 0 <= start_round <= rounds:
    raise errors.value_error(
      f'start_round={start_round}: must be in [0, rounds={rounds}]; give the '
      'round of the state that the run continues from'
    )


def wipe(directory: pathlib.Path, except_for: str = 'lock|reader') -> None:
  """Overwrites and removes files of a tape.

  Args:
    directory: folder of the tape.
    except_for: pattern for the names of the files that stay.
  """
  for name in os.listdir(directory):
    if _FILE.fullmatch(name) and not re.fullmatch(except_for, name):
      _files.wipe(directory / name)


def remove(directory: pathlib.Path) -> None:
  """Removes all files of a tape, and the folder if nothing else is in it."""
  wipe(directory, except_for='')
  with contextlib.suppress(OSError):
    directory.rmdir()


def temporary(size: int) -> tuple[pathlib.Path, int]:
  """Returns (a new private folder, the descriptor of its lock).

  The folder is in shared memory if more than twice `size` bytes are free there.
  Abandoned temporary tapes of this user, whose producers ended, are removed.

  Args:
    size: bytes that the tape needs, > 0.
  """
  parent = pathlib.Path(tempfile.gettempdir())
  for folder in {parent, _files.MEMORY}:
    for directory in folder.glob(f'{_PREFIX}*'):
      _remove_abandoned(directory)
  with contextlib.suppress(OSError):
    # Use at most half of the free shared memory; other processes need some.
    if shutil.disk_usage(_files.MEMORY).free > 2 * size:
      parent = _files.MEMORY
  check_name(parent)
  while True:
    directory = pathlib.Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
    # Another process may remove the folder as abandoned before it is locked. In
    # this case try again.
    with contextlib.suppress(FileNotFoundError):
      lock = _files.lock(directory / 'lock')
      if lock is not None:
        _sign(lock)
        return directory, lock


def _remove_abandoned(directory: pathlib.Path) -> None:
  """Removes a tape of this user if no producer holds its lock."""
  with contextlib.suppress(OSError):
    status = directory.lstat()
    if status.st_uid == os.getuid() and stat.S_ISDIR(status.st_mode):
      lock = _files.lock(directory / 'lock')
      if lock is not None:
        try:
          remove(directory)
        finally:
          os.close(lock)
