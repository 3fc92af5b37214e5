"""A producer that writes y_t to files ahead of the rounds that read them.

TFF passes server state by value between processes every round; y of past
rounds does not belong there. The tape keeps it in the process that owns the
noise, and gives a round nothing but a file.

A tape is a folder, mode 0700:

  lock            held by the producer
  reached         decimal: the round that was read last; those below are gone
  failed          exists if the producer ended early; holds the exception type
  00000000.noise  one file a round

A noise file is little-endian: 8 int64 (`MAGIC`, `VERSION`, tape id, round,
count, checksum, 0, 0), then `count` float32, y_t for unit z. The checksum is
TensorFlow's `tf.strings.to_hash_bucket_fast` of the float32 bytes. A file
appears under its name when it is complete.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import pathlib
import threading
from typing import Union

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
_POLL_SECONDS = 0.02


class Tape:
  """A thread that stays a bounded number of rounds ahead of its reader.

  Every block of rounds is made by the same operations whatever round the tape
  starts at, so a tape that starts at round s gives what a tape from round 0
  gives there, to the bit on one machine.

  PRIVACY: a round that has been read can be read again (TFF evaluates the
  query once inside `initialize`, and retries calls) until the next round is
  read; then its file is overwritten and removed, and reading it is an error.
  Guard: tape_test.test_round_is_gone_after_the_next_one_was_read.

  Attributes:
    directory: where the files are.
    dimension: d, coordinates of y_t.
    tape_id: random 63-bit integer that every file of this tape carries.
  """

  def __init__(
      self,
      directory: Union[str, os.PathLike],
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
        left there is removed.
      plan: the recursion of C.
      dimension: d.
      rounds: n; nothing is made past it.
      key: of the noise.
      start_round: first round to write; those before it are made again to get
        there, and not written.
      ahead_bytes: bound on unread files. Two rounds are allowed whatever it is.

    Raises:
      ValueError: a value out of range, or the folder has a live producer.
    """
    self.directory = pathlib.Path(directory)
    self.dimension = errors.check_count(
        'dimension', dimension, 'the model has no parameters')
    self.tape_id = int.from_bytes(os.urandom(8), 'little') >> 1
    self._plan = plan
    self._rounds = errors.check_count('rounds', rounds, 'see the strategy')
    self._key = key
    self._start_round = start_round
    self._ahead = max(2, ahead_bytes // (4 * dimension))
    self._block_rounds = min(_BLOCK_ROUNDS, rounds)
    self._stop = threading.Event()
    self._removed = start_round
    self._prepare_directory()
    self._thread = threading.Thread(
        target=self._run, name='tff_bandmf tape', daemon=True)
    self._thread.start()
    atexit.register(self.close)

  def close(self) -> None:
    """Stops the producer and removes its files; may be called twice."""
    if self._stop.is_set():
      return
    self._stop.set()
    atexit.unregister(self.close)
    self._thread.join()
    for path in self.directory.glob('*.noise*'):
      _wipe(path)
    for name in ('reached', 'failed', 'lock'):
      (self.directory / name).unlink(missing_ok=True)
    os.close(self._lock)
    with contextlib.suppress(OSError):
      self.directory.rmdir()

  def _prepare_directory(self) -> None:
    self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    self.directory.chmod(0o700)
    self._lock = os.open(
        self.directory / 'lock', os.O_RDWR | os.O_CREAT, 0o600)
    try:
      fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
      os.close(self._lock)
      raise ValueError(
          errors.invalid(
              'tape directory', self.directory, 'has a live producer',
              'give every run a directory of its own')) from None
    for path in self.directory.glob('*.noise*'):
      _wipe(path)
    (self.directory / 'failed').unlink(missing_ok=True)
    (self.directory / 'reached').write_text(str(self._start_round))

  def _run(self) -> None:
    try:
      self._produce()
    except BaseException as error:  # pylint: disable=broad-except
      # The type alone: a message could hold anything.
      (self.directory / 'failed').write_text(type(error).__name__)
      raise

  def _produce(self) -> None:
    """Writes all rounds, waiting for the reader in between."""
    chunks = [
        (start, min(_CHUNK, self.dimension - start))
        for start in range(0, self.dimension, _CHUNK)
    ]
    past = [
        np.zeros((self._plan.memory, count), np.float32) for _, count in chunks
    ]
    words = tf.constant(self._key.words())
    scale, weights = self._plan.block(self._block_rounds)
    block = np.empty((self._block_rounds, self.dimension), np.float32)
    for first in range(0, self._rounds, self._block_rounds):
      for i, (start, count) in enumerate(chunks):
        if self._stop.is_set():
          return
        z = np.stack([
            normal.standard_normal(words, first + r, start, count).numpy()
            for r in range(self._block_rounds)
        ])
        y = scale @ z - weights @ past[i]
        block[:, start:start + count] = y
        past[i] = np.concatenate([y[::-1], past[i]])[:self._plan.memory]
      for r in range(min(self._block_rounds, self._rounds - first)):
        if first + r < self._start_round:
          continue
        if not self._wait_for_room(first + r):
          return
        self._write(first + r, block[r])
    while not self._stop.wait(_POLL_SECONDS):
      self._remove_read_rounds()

  def _wait_for_room(self, round_index: int) -> bool:
    """Returns True when the round may be written, False when closing."""
    while True:
      if round_index < self._remove_read_rounds() + self._ahead:
        return not self._stop.is_set()
      if self._stop.wait(_POLL_SECONDS):
        return False

  def _remove_read_rounds(self) -> int:
    """Removes the files below the round read last, and returns that round."""
    text = (self.directory / 'reached').read_text()
    # The reader does not write atomically: an empty file says nothing new.
    reached = int(text) if text.isdigit() else self._removed
    while self._removed < reached:
      path = self._path(self._removed)
      if path.exists():
        _wipe(path)
      self._removed += 1
    return self._removed

  def _path(self, round_index: int) -> pathlib.Path:
    return self.directory / f'{round_index:08d}.noise'

  def _write(self, round_index: int, values: np.ndarray) -> None:
    payload = values.tobytes()
    checksum = tf.strings.to_hash_bucket_fast(payload, HASH_BUCKETS).numpy()
    header = np.array(
        [MAGIC, VERSION, self.tape_id, round_index, self.dimension, checksum,
         0, 0], '<i8')
    path = self._path(round_index)
    temporary = path.with_suffix('.noise-part')
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT, 0o600), 'wb') as f:
      f.write(header.tobytes())
      f.write(payload)
    os.replace(temporary, path)


def _wipe(path: pathlib.Path) -> None:
  """Overwrites a file with zeros and removes it."""
  with open(path, 'r+b') as stream:
    size = stream.seek(0, os.SEEK_END)
    stream.seek(0)
    stream.write(bytes(size))
  path.unlink()


def read(
    directory: str,
    tape_id: tf.Tensor,
    round_index: tf.Tensor,
    dimension: int,
    timeout_seconds: float,
) -> tf.Tensor:
  """Returns y of a round from a tape, in a graph of any process.

  Waits for the producer if it is behind. Every check fails the round: noise is
  never silently zero, stale or used up.

  Args:
    directory: of the tape.
    tape_id: scalar int64, of the tape that the state belongs to.
    round_index: scalar int64.
    dimension: d.
    timeout_seconds: how long to wait for the producer.

  Returns:
    [dimension] float32, unit z.
  """
  name = tf.strings.as_string(round_index, width=8, fill='0')
  path = tf.strings.join([directory, '/', name, '.noise'])
  # File operations count as pure, so a constant path would be read once, when
  # the graph is optimised: every path depends on the round.
  folder = tf.strings.join([directory, tf.strings.substr(name, 0, 0), '/'])
  reached_path, failed_path = folder + 'reached', folder + 'failed'

  def check(condition, message):
    return tf.debugging.Assert(
        condition,
        [f'noise tape: {message}; round, path:', round_index, path])

  reached = tf.strings.to_number(tf.io.read_file(reached_path), tf.int64)
  unused = check(
      reached <= round_index,
      'the noise of this round was already used and removed; resume with a '
      'tape that starts at the round of the state')
  with tf.control_dependencies([unused]):
    deadline = tf.timestamp() + timeout_seconds

  def behind(_):
    exists = tf.size(tf.io.matching_files(path)) > 0
    failed = tf.size(tf.io.matching_files(failed_path)) > 0
    late = tf.timestamp() > deadline
    return ~(exists | failed | late)

  waited = tf.while_loop(behind, lambda n: n + 1, [tf.constant(0)])
  with tf.control_dependencies(tf.nest.flatten(waited)):
    there = check(
        tf.size(tf.io.matching_files(path)) > 0,
        'the producer ended or fell behind; is its process alive?')
  with tf.control_dependencies([there]):
    contents = tf.io.read_file(path)
  # tf.equal: TFF traces into a graph where == compares object identity.
  whole = check(
      tf.equal(tf.strings.length(contents), HEADER_BYTES + 4 * dimension),
      'the file has the wrong size')
  with tf.control_dependencies([whole]):
    header = tf.io.decode_raw(
        tf.strings.substr(contents, 0, HEADER_BYTES), tf.int64)
    payload = tf.strings.substr(contents, HEADER_BYTES, 4 * dimension)
  checksum = tf.strings.to_hash_bucket_fast(payload, HASH_BUCKETS)
  expected = tf.stack([
      tf.constant(MAGIC, tf.int64), tf.constant(VERSION, tf.int64), tape_id,
      round_index, tf.constant(dimension, tf.int64), checksum])
  genuine = check(
      tf.reduce_all(tf.equal(header[:6], expected)),
      'the file is damaged, or of another tape or round')
  with tf.control_dependencies([genuine]):
    done = tf.io.write_file(reached_path, tf.strings.as_string(round_index))
  with tf.control_dependencies([done]):
    return tf.ensure_shape(
        tf.io.decode_raw(payload, tf.float32), [dimension])
