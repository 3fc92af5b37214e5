"""The layout of a tape on disk.

A tape is a folder, mode 0700, or one folder for every shard of coordinates:

  lock              held by the producer
  tape.json         what the noise is, see `Description`; no secret
  00000003.noise    y of round 3, see `tape_file`
  00000003.reached  rounds below 3 were used; the highest of these counts
  00000003-7-0123456789-0123456789.reached
                    the same, and round 3 is that of run 7, which released with
                    it what has this fingerprint, and nothing else
  failed            the producer ended early; holds the type of the exception

A noise file appears under its name when it is complete. The producer writes
noise, `tape_reader` writes `reached`: its name says all, so it is never
half-written. A run is 63 random bits that its state carries. A fingerprint is
64 bits of a release, which is public, in two numbers of 32.

The folder of a `bandmf noise-server` has one file more:

  reader            held by the one factory that reads

and keeps it, `tape.json` and the highest marks when its server ends, so that
the same key serves no round of another run. Nothing else outlives a producer
that is closed.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import os
import pathlib
import re
import shutil
import tempfile
from collections.abc import Sequence
from typing import Optional

from tff_bandmf import _files, errors
from tff_bandmf.noise.tape import file as tape_file
from tff_bandmf.strategies import recursion as recursion_lib

POLL_SECONDS = 0.02

DESCRIPTION = 'tape.json'
_FORMAT = 'tff_bandmf.tape'
_READER = 'reader'
_PREFIX = 'tff_bandmf-tape-'
_MEMORY = _files.MEMORY
_FILE = re.compile(
  r'lock|(failed|tape\.json|\d{8,}\.(noise|reached))(\.\w+\.part)?'
  r'|\d{8,}-\d+-\d+-\d+\.reached'
)
# What outlives the producer of a server.
_KEPT = re.compile(r'lock|tape\.json|.*\.reached')
# What `tf.io.matching_files` does not take literally.
_GLOB = frozenset('*?[]\\')


@dataclasses.dataclass(frozen=True)
class Shard:
  """Coordinates `first` to `first + count - 1` of y, and their folder."""

  directory: pathlib.Path
  first: int
  count: int


class ReadableTape(abc.ABC):
  """What a reader needs to know of a tape.

  Attributes:
    shards: the folders, in the order of their coordinates.
    dimension: d, coordinates of y_t.
    z_steps: standard deviation of z in steps of the lattice.
    recursion: of C.
    start_round: first round to be read.
    tape_id: 63 bits that name the noise: `Stream.identifier`, which every file
      carries and the reader asks for. A tape made again continues a run, and no
      other does.
  """

  shards: Sequence[Shard]
  dimension: int
  z_steps: float
  recursion: recursion_lib.Recursion
  start_round: int
  tape_id: int

  @abc.abstractmethod
  def close(self) -> None:
    """Ends it; may be called twice."""


@dataclasses.dataclass(frozen=True)
class Description:
  """What the noise of a folder is: the content of `tape.json`.

  A JSON object of these fields and of `format` and `version`, that of the noise
  files.

  Attributes:
    tape_id: that all files carry; one-way in the key.
    strategy: digest of C.
    rounds: n.
    dimension: d, of all shards together.
    first: coordinate of this folder.
    count: of its coordinates.
    z_steps: standard deviation of z in steps of the lattice.
    device: kind of what makes the noise; another kind rounds differently.
    served: whether a `bandmf noise-server` makes it.
  """

  tape_id: int
  strategy: str
  rounds: int
  dimension: int
  first: int
  count: int
  z_steps: float
  device: str
  served: bool

  @classmethod
  def read(cls, directory: pathlib.Path) -> Optional[Description]:
    """Returns what a folder says, or None if it says nothing.

    Raises:
      ValueError: it is of another release, or no such file.
    """
    path = directory / DESCRIPTION
    try:
      found = _files.read_json(path)
      if (found.pop('format'), found.pop('version')) != (
        _FORMAT,
        tape_file.VERSION,
      ):
        raise ValueError('of another release')
      description = cls(**found)
      description._check()
      return description
    except FileNotFoundError:
      return None
    except (AttributeError, KeyError, TypeError, ValueError) as error:
      raise errors.value_error(
        'file',
        path,
        f'is not {_FORMAT} of version {tape_file.VERSION}',
        'use one release for the server and for training, a new folder '
        'and a new key',
      ) from error

  def _check(self) -> None:
    """Raises TypeError if a field has another type."""
    for field in dataclasses.fields(self):
      if type(getattr(self, field.name)).__name__ != field.type:
        raise TypeError(field.name)

  def write(self, directory: pathlib.Path) -> None:
    """Makes the file, whole or not at all."""
    content = {
      'format': _FORMAT,
      'version': tape_file.VERSION,
      **dataclasses.asdict(self),
    }
    _files.write_json(directory / DESCRIPTION, content, mode=0o600)

  def difference(self, other: Description) -> str:
    """Returns what another one has and this has not; empty if equal."""
    own = dataclasses.asdict(self)
    return ' '.join(
      f'{name}={value}'
      for name, value in dataclasses.asdict(other).items()
      if own[name] != value
    )


def noise_path(directory: pathlib.Path, round_index: int) -> pathlib.Path:
  """Returns the file of y of a round."""
  return directory / f'{round_index:08d}.noise'


def marks(directory: pathlib.Path) -> list[int]:
  """Returns the rounds that the marks name."""
  return [
    _marked(name) for name in os.listdir(directory) if name.endswith('.reached')
  ]


def mark(directory: pathlib.Path, round_index: int) -> None:
  """Says that rounds below this one were used."""
  _files.write(directory / f'{round_index:08d}.reached', mode=0o600)


def remove_marks(directory: pathlib.Path, below: int) -> None:
  """Removes the marks below a round. The highest must stay."""
  for path in directory.glob('*.reached'):
    if _marked(path.name) < below:
      path.unlink(missing_ok=True)


def _marked(name: str) -> int:
  """Returns the round that a mark of this name, of a run or none, names."""
  return int(re.split('[-.]', name)[0])


def prepare(directory: pathlib.Path) -> int:
  """Makes a folder private, and returns the open file that locks it.

  Args:
    directory: made if missing.

  Raises:
    ValueError: it cannot be a tape, holds other files, or is locked.
    OSError: it cannot be made.
  """
  check_name(directory)
  directory.mkdir(mode=0o700, parents=True, exist_ok=True)
  # PRIVACY: an owner reads and replaces what root puts there. Guard:
  # fuzz_secrets_test.test_folder_of_another_user_is_refused.
  if {directory.stat().st_uid, directory.lstat().st_uid} != {os.getuid()}:
    raise _refused(directory, 'belongs to another user', 'choose another path')
  if not all(
    _FILE.fullmatch(path.name) or path.name == _READER
    for path in directory.iterdir()
  ):
    raise _refused(
      directory, 'holds files of others', 'give the tape a directory of its own'
    )
  directory.chmod(0o700)
  lock = _files.lock(directory / 'lock')
  if lock is None:
    raise _refused(
      directory, 'has a live producer', 'give every run a directory of its own'
    )
  return lock


def _refused(directory: pathlib.Path, rule: str, remedy: str) -> ValueError:
  return errors.value_error('tape directory', directory, rule, remedy)


def check_name(directory: pathlib.Path) -> None:
  """Raises ValueError if graphs cannot look into a folder of this name."""
  if _GLOB.intersection(str(directory)):
    raise _refused(
      directory,
      f'must not contain any of {"".join(sorted(_GLOB))}',
      'choose another path',
    )


def check_start(start_round: int, rounds: int) -> None:
  """Raises ValueError if a tape of n rounds cannot begin at a round."""
  if not 0 <= start_round <= rounds:
    raise errors.value_error(
      'start_round',
      start_round,
      f'must be in [0, rounds={rounds}]',
      'give the round of the state that the run continues from',
    )


def lock_reader(directory: pathlib.Path) -> int:
  """Returns an open file that keeps other readers off a server's folder.

  Raises:
    ValueError: there is another reader.
  """
  lock = _files.lock(directory / _READER)
  if lock is None:
    raise errors.value_error(
      'noise_server',
      directory,
      'is read by another run',
      'a tape serves one run: start a server for every run',
    )
  return lock


def wipe(directory: pathlib.Path, keep: bool = False) -> None:
  """Overwrites and removes the files of a tape but its lock.

  Its description and marks stay where `keep` says so.
  """
  for path in _tape_files(directory):
    if path.name != 'lock' and not (keep and _KEPT.fullmatch(path.name)):
      _files.wipe(path)


def remove(directory: pathlib.Path) -> None:
  """Removes all files of a tape, and the folder if nothing else is in it."""
  for path in [*_tape_files(directory), directory / _READER]:
    _files.wipe(path)
  with contextlib.suppress(OSError):
    directory.rmdir()


def temporary(size: int) -> str:
  """Returns a new private folder, in memory where `size` bytes fit there."""
  parent = pathlib.Path(tempfile.gettempdir())
  for place in {parent, _MEMORY}:
    for directory in place.glob(f'{_PREFIX}*'):
      _remove_abandoned(directory)
  with contextlib.suppress(OSError):
    # Half: others use it too.
    if shutil.disk_usage(_MEMORY).free > 2 * size:
      parent = _MEMORY
  return tempfile.mkdtemp(prefix=_PREFIX, dir=parent)


def _remove_abandoned(directory: pathlib.Path) -> None:
  """Removes a tape of this user whose producer is gone."""
  with contextlib.suppress(OSError):
    status = directory.lstat()
    # A mark is made under the lock: without one a producer may be starting.
    if status.st_uid == os.getuid() and any(directory.glob('*.reached')):
      lock = _files.lock(directory / 'lock')
      if lock is not None:
        remove(directory)
        os.close(lock)


def _tape_files(directory: pathlib.Path) -> list[pathlib.Path]:
  """Returns the files of the folder that are a tape's."""
  return [path for path in directory.iterdir() if _FILE.fullmatch(path.name)]
