"""A producer that writes y_t to files ahead of the rounds that read them.

TFF passes server state by value between processes every round; y of past
rounds does not belong there. The tape keeps it in the process that owns the
noise, and gives a round nothing but a file.

A tape is a folder, mode 0700:

  lock              held by the producer
  00000003.noise    y of round 3
  00000003.reached  rounds below 3 were used; the highest of these counts
  failed            the producer ended early; holds the type of the exception

A noise file is little-endian: 8 int64 (`MAGIC`, `VERSION`, tape id, round,
count, checksum, 0, 0), then `count` float32, y_t for unit z, and one zero more
if `count` is odd. The checksum is the sum, modulo 2^64, of what follows the
header taken as int64. A file appears under its name when it is complete. The
producer writes noise, `tape_reader` writes `reached`: its name says all, so it
is never half-written.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import pathlib
import re
import shutil
import tempfile
import threading
from typing import Optional, Union

import numpy as np

from tff_bandmf import errors
from tff_bandmf.noise import generators, private_files, stream
from tff_bandmf.noise import key as key_lib
from tff_bandmf.noise import plan as plan_lib

MAGIC = 0x7466665F6D66
VERSION = 1
HEADER_WORDS = 8

_AHEAD_BYTES = 512 * 2**20
POLL_SECONDS = 0.02
_PREFIX = 'tff_bandmf-tape-'
_MEMORY = private_files.MEMORY
_FILE = re.compile(r'lock|failed|\d{8,}\.(noise|noise-part|reached)')
# What `tf.io.matching_files` does not take literally.
_GLOB = frozenset('*?[]\\')


class Tape:
  """A thread that stays a bounded number of rounds ahead of its reader.

  A tape that starts at round s makes the rounds before it too, so it gives what
  a tape from round 0 gives there, to the bit on one machine.

  PRIVACY: a round that has been read can be read again (TFF evaluates the
  query once inside `initialize`, and retries calls) until a later round is
  read; from then on reading it is an error, and its file is overwritten and
  removed. Guard: tape_test.test_round_is_gone_after_the_next_one_was_read.

  Attributes:
    directory: where the files are.
    dimension: d, coordinates of y_t.
    start_round: first round to be read.
    tape_id: 63 bits that every file carries and the reader asks for; a one-way
      function of key, strategy, dimension and generator, so that a tape made
      again from them continues a run and no other does.
  """

  def __init__(
      self,
      directory: Optional[Union[str, os.PathLike]],
      plan: plan_lib.Plan,
      dimension: int,
      key: key_lib.Key,
      start_round: int = 0,
      ahead_bytes: int = _AHEAD_BYTES,
      generator: str = generators.PHILOX,
      max_memory_bytes: Optional[int] = None,
  ):
    """Starts the producer.

    Args:
      directory: made with mode 0700 if missing; a tape that an ended process
        left there is removed. None makes a temporary one, in memory if there
        is room, and removes those whose process was killed.
      plan: the recursion of C; nothing is made past its last round.
      dimension: d.
      key: of the noise.
      start_round: first round to write; those before it are made again to get
        there, and not written.
      ahead_bytes: bound on unread files. Two rounds are allowed whatever it is.
      generator: of z; see `generators`.
      max_memory_bytes: of past rounds; see `stream.Stream`.

    Raises:
      ValueError: a value out of range, or the folder holds other files or has a
        live producer.
    """
    self.dimension = errors.check_count(
        'dimension', dimension, 'the model has no parameters')
    self.start_round = start_round
    if not 0 <= start_round <= plan.rounds:
      raise ValueError(
          errors.invalid(
              'start_round', start_round,
              f'must be in [0, rounds={plan.rounds}]',
              'give the round of the state that the run continues from'))
    self._stream = stream.Stream(
        plan, dimension, key, generator, max_memory_bytes)
    self.tape_id = plan.identify(key, dimension, generator)
    self._ahead = max(2, ahead_bytes // (4 * dimension))
    self._payload = np.zeros(2 * payload_words(dimension), '<f4')
    self._stop = threading.Event()
    self._closed = False
    self._removed = start_round
    self.directory = pathlib.Path(
        directory or _temporary_directory(
            4 * dimension * min(self._ahead, plan.rounds))).absolute()
    self._prepare_directory()
    self._thread = threading.Thread(
        target=self._run, name='tff_bandmf tape', daemon=True)
    self._thread.start()
    atexit.register(self.close)

  def close(self) -> None:
    """Stops the producer and removes its files; may be called twice."""
    if self._closed:
      return
    self._stop.set()
    self._thread.join()
    _remove_tape(self.directory)
    os.close(self._lock)
    self._closed = True
    atexit.unregister(self.close)

  def _prepare_directory(self) -> None:
    if _GLOB.intersection(str(self.directory)):
      raise ValueError(
          errors.invalid(
              'tape directory', self.directory,
              f'must not contain any of {"".join(sorted(_GLOB))}',
              'choose another path'))
    self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not all(
        _FILE.fullmatch(path.name) for path in self.directory.iterdir()):
      raise ValueError(
          errors.invalid(
              'tape directory', self.directory, 'holds files of others',
              'give the tape a directory of its own'))
    self.directory.chmod(0o700)
    lock = private_files.lock(self.directory)
    if lock is None:
      raise ValueError(
          errors.invalid(
              'tape directory', self.directory, 'has a live producer',
              'give every run a directory of its own'))
    self._lock = lock
    for path in _tape_files(self.directory):
      if path.name != 'lock':
        private_files.wipe(path)
    private_files.write(self._reached_path(self.start_round), b'')

  def _run(self) -> None:
    try:
      self._produce()
    except BaseException as error:  # pylint: disable=broad-except
      # The type alone: a message could hold anything.
      private_files.write(
          self.directory / 'failed', type(error).__name__.encode())
      raise

  def _produce(self) -> None:
    """Writes all rounds, waiting for the reader in between."""
    t = 0
    for y in self._stream.rows():
      if self._stop.is_set():
        return
      if y is None:
        continue
      if t >= self.start_round:
        if not self._wait_for_room(t):
          return
        self._write(t, y)
      t += 1
    while not self._stop.wait(POLL_SECONDS):
      self._remove_read_rounds()

  def _wait_for_room(self, round_index: int) -> bool:
    """Returns True when the round may be written, False when closing."""
    while round_index >= self._remove_read_rounds() + self._ahead:
      if self._stop.wait(POLL_SECONDS):
        return False
    return not self._stop.is_set()

  def _remove_read_rounds(self) -> int:
    """Removes the files below the round read last, and returns that round."""
    marks = [
        int(name[:-len('.reached')]) for name in os.listdir(self.directory)
        if name.endswith('.reached')]
    reached = max(marks, default=self._removed)
    while self._removed < reached:
      private_files.wipe(self._noise_path(self._removed))
      self._removed += 1
    # The highest mark stays until there is a higher one.
    for mark in marks:
      if mark < reached:
        self._reached_path(mark).unlink(missing_ok=True)
    return self._removed

  def _noise_path(self, round_index: int) -> pathlib.Path:
    return self.directory / f'{round_index:08d}.noise'

  def _reached_path(self, round_index: int) -> pathlib.Path:
    return self.directory / f'{round_index:08d}.reached'

  def _write(self, round_index: int, values: np.ndarray) -> None:
    payload = self._payload
    payload[:self.dimension] = values
    checksum = payload.view(np.int64).sum()
    header = np.array(
        [MAGIC, VERSION, self.tape_id, round_index, self.dimension, checksum,
         0, 0], '<i8')
    path = self._noise_path(round_index)
    temporary = path.with_suffix('.noise-part')
    private_files.write(temporary, header, payload)
    os.replace(temporary, path)


def payload_words(dimension: int) -> int:
  """Returns how many int64 follow the header of a file."""
  return -(-dimension // 2)


def _temporary_directory(size: int) -> str:
  """Returns a new private folder, in memory if there is room for `size` bytes.
  """
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
      lock = private_files.lock(directory)
      if lock is not None:
        _remove_tape(directory)
        os.close(lock)


def _tape_files(directory: pathlib.Path) -> list[pathlib.Path]:
  """Returns the files of the folder that are a tape's."""
  return [path for path in directory.iterdir() if _FILE.fullmatch(path.name)]


def _remove_tape(directory: pathlib.Path) -> None:
  for path in _tape_files(directory):
    private_files.wipe(path)
  with contextlib.suppress(OSError):
    directory.rmdir()
