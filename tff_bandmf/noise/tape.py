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
count, checksum, 0, 0), then `count` float32, y_t for unit z. The checksum is
TensorFlow's `tf.strings.to_hash_bucket_fast` of the float32 bytes. A file
appears under its name when it is complete. The producer writes noise,
`tape_reader` writes `reached`: its name says all, so it is never half-written.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import pathlib
import re
import shutil
import tempfile
import threading
from typing import Optional, Union

import numpy as np
import tensorflow as tf

from tff_bandmf import errors
from tff_bandmf.noise import key as key_lib
from tff_bandmf.noise import normal
from tff_bandmf.noise import plan as plan_lib

MAGIC = 0x7466665F6D66
VERSION = 1
HEADER_BYTES = 64
HASH_BUCKETS = 2**63 - 1

# Coordinates made at once: the block's GEMM stays in cache.
_CHUNK = 1 << 16
_BLOCK_ROUNDS = 16
_AHEAD_BYTES = 512 * 2**20
POLL_SECONDS = 0.02
_PREFIX = 'tff_bandmf-tape-'
_MEMORY = pathlib.Path('/dev/shm')
_FILE = re.compile(r'lock|failed|\d{8,}\.(noise|noise-part|reached)')
# What `tf.io.matching_files` does not take literally.
_GLOB = frozenset('*?[]\\')


class Tape:
  """A thread that stays a bounded number of rounds ahead of its reader.

  Every block of rounds is made by the same operations whatever round the tape
  starts at, so a tape that starts at round s gives what a tape from round 0
  gives there, to the bit on one machine.

  PRIVACY: a round that has been read can be read again (TFF evaluates the
  query once inside `initialize`, and retries calls) until a later round is
  read; from then on reading it is an error, and its file is overwritten and
  removed. Guard: tape_test.test_round_is_gone_after_the_next_one_was_read.

  Attributes:
    directory: where the files are.
    dimension: d, coordinates of y_t.
    start_round: first round to be read.
    tape_id: 63 bits that every file carries and the reader asks for; a one-way
      function of key, plan, dimension and rounds, so that a tape made again
      from them continues a run and no other does.
  """

  def __init__(
      self,
      directory: Optional[Union[str, os.PathLike]],
      plan: plan_lib.ToeplitzPlan,
      dimension: int,
      rounds: int,
      key: key_lib.Key,
      start_round: int = 0,
      ahead_bytes: int = _AHEAD_BYTES,
  ):
    """Starts the producer.

    Args:
      directory: made with mode 0700 if missing; a tape that an ended process
        left there is removed. None makes a temporary one, in memory if there
        is room, and removes those whose process was killed.
      plan: the recursion of C.
      dimension: d.
      rounds: n; nothing is made past it.
      key: of the noise.
      start_round: first round to write; those before it are made again to get
        there, and not written.
      ahead_bytes: bound on unread files. Two rounds are allowed whatever it is.

    Raises:
      ValueError: a value out of range, or the folder holds other files or has a
        live producer.
    """
    self.dimension = errors.check_count(
        'dimension', dimension, 'the model has no parameters')
    self.start_round = start_round
    self._plan = plan
    self._rounds = errors.check_count('rounds', rounds, 'see the strategy')
    if not 0 <= start_round <= rounds:
      raise ValueError(
          errors.invalid(
              'start_round', start_round, f'must be in [0, rounds={rounds}]',
              'give the round of the state that the run continues from'))
    self._key = key
    self.tape_id = key.identify(
        np.array([dimension, rounds], '<i8').tobytes()
        + plan.coefficients.astype('<f8').tobytes())
    self._ahead = max(2, ahead_bytes // (4 * dimension))
    self._block_rounds = min(_BLOCK_ROUNDS, rounds)
    self._stop = threading.Event()
    self._closed = False
    self._removed = start_round
    self.directory = pathlib.Path(
        directory or _temporary_directory(
            4 * dimension * min(self._ahead, rounds))).absolute()
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
    lock = _lock(self.directory)
    if lock is None:
      raise ValueError(
          errors.invalid(
              'tape directory', self.directory, 'has a live producer',
              'give every run a directory of its own'))
    self._lock = lock
    for path in _tape_files(self.directory):
      if path.name != 'lock':
        _wipe(path)
    _write_private(self._reached_path(self.start_round), b'')

  def _run(self) -> None:
    try:
      self._produce()
    except BaseException as error:  # pylint: disable=broad-except
      # The type alone: a message could hold anything.
      _write_private(
          self.directory / 'failed', type(error).__name__.encode())
      raise

  def _produce(self) -> None:
    """Writes all rounds, waiting for the reader in between."""
    m = self._block_rounds
    chunks = [
        (start, min(_CHUNK, self.dimension - start))
        for start in range(0, self.dimension, _CHUNK)
    ]
    words = tf.constant(self._key.words())
    scale, weights = self._plan.block(m)
    # The past is a ring: row u % len(ring) of each chunk holds round u.
    ring_rounds = -(-self._plan.memory // m) * m
    rings = [np.zeros((ring_rounds, count), np.float32) for _, count in chunks]
    block = np.empty((m, self.dimension), np.float32)
    for first in range(0, self._rounds, m):
      ring_weights = np.zeros((m, ring_rounds), np.float32)
      if ring_rounds:
        lags = np.arange(self._plan.memory)
        ring_weights[:, (first - 1 - lags) % ring_rounds] = weights
      for (start, count), ring in zip(chunks, rings):
        if self._stop.is_set():
          return
        z = np.stack([
            normal.standard_normal(words, first + r, start, count).numpy()
            for r in range(m)
        ])
        y = scale @ z
        if ring_rounds:
          y -= ring_weights @ ring
          row = first % ring_rounds
          ring[row:row + m] = y
        block[:, start:start + count] = y
      for r in range(min(m, self._rounds - first)):
        if first + r < self.start_round:
          continue
        if not self._wait_for_room(first + r):
          return
        self._write(first + r, block[r])
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
    marks = [int(path.stem) for path in self.directory.glob('*.reached')]
    reached = max(marks, default=self._removed)
    while self._removed < reached:
      _wipe(self._noise_path(self._removed))
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
    payload = values.tobytes()
    checksum = tf.strings.to_hash_bucket_fast(payload, HASH_BUCKETS).numpy()
    header = np.array(
        [MAGIC, VERSION, self.tape_id, round_index, self.dimension, checksum,
         0, 0], '<i8')
    path = self._noise_path(round_index)
    temporary = path.with_suffix('.noise-part')
    _write_private(temporary, header.tobytes(), payload)
    os.replace(temporary, path)


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
      lock = _lock(directory)
      if lock is not None:
        _remove_tape(directory)
        os.close(lock)


def _lock(directory: pathlib.Path) -> Optional[int]:
  """Returns an open file that locks the tape, or None if another has it."""
  lock = os.open(directory / 'lock', os.O_RDWR | os.O_CREAT, 0o600)
  try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError:
    os.close(lock)
    return None
  return lock


def _tape_files(directory: pathlib.Path) -> list[pathlib.Path]:
  """Returns the files of the folder that are a tape's."""
  return [path for path in directory.iterdir() if _FILE.fullmatch(path.name)]


def _remove_tape(directory: pathlib.Path) -> None:
  for path in _tape_files(directory):
    _wipe(path)
  with contextlib.suppress(OSError):
    directory.rmdir()


def _write_private(path: pathlib.Path, *contents: bytes) -> None:
  handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
  with open(handle, 'wb') as stream:
    for content in contents:
      stream.write(content)


def _wipe(path: pathlib.Path) -> None:
  """Overwrites a file with zeros and removes it, if it is there."""
  with contextlib.suppress(FileNotFoundError):
    with open(path, 'r+b') as stream:
      size = stream.seek(0, os.SEEK_END)
      stream.seek(0)
      stream.write(bytes(size))
    path.unlink()
