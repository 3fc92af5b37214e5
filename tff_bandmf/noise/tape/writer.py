"""The producer of a tape: it writes y_t to a file ahead of round t.

y_t is row t of the noise y = C^-1 z for a strategy matrix C and normals z. TFF
passes the server state between processes by value in every round, and the past
noise of a large model is too large to be passed. So past noise stays in the
process that has the key, and a round reads one file of each shard. If a file is
late, the round waits for it. `tape.folder` describes the files, the marks and
the shards.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import itertools
import os
import pathlib
import threading
from collections.abc import Callable
from typing import Optional, Union

import numpy as np

from tff_bandmf import _files, errors
from tff_bandmf.noise.producer import stream
from tff_bandmf.noise.tape import file as tape_file
from tff_bandmf.noise.tape import folder as tape_folder

# Errors of a full disk. The producer waits, since space may become free.
_FULL = (errno.ENOSPC, errno.EDQUOT)


class Tape(tape_folder.ReadableTape):
  """A thread that writes y_t a bounded number of rounds ahead of the reader.

  A tape that starts at round s also computes the rounds before s, and gives the
  same bits as a tape that starts at round 0. The shards of a tape together give
  the same y_t as a single folder. While the disk is full, the producer waits,
  and rounds wait for it.

  PRIVACY: A program that resumes from an old server state could repeat a round
  with a second sum, and the difference of the two releases would have no noise.
  Until a later round is released, only the same sum may be released again.
  After that the round is refused, and its noise is overwritten and removed.
  Guard: tape_test.test_round_is_gone_after_the_next_one_was_released.

  If a killed process left a folder with the same noise, the tape continues in
  this folder, and writes no round below the highest mark.

  Attributes:
    directory: folder of the tape's one shard.
    description: the content of `tape.json`.
    written: the round after the last written round; at first `start_round`.
    reached: highest round of a mark that the producer has seen in the folder,
      >= 0; rounds below it are refused.
    is_full: whether the producer waits for space on the disk.
    error: the exception that ended the producer, or None.
  """

  def __init__(
    self,
    directory: Optional[Union[str, os.PathLike]],
    noise_stream: stream.Stream,
    *,
    start_round: int = 0,
    ahead_bytes: int = 512 * 2**20,
    resume: bool = False,
    before_noise: Callable[[], None] = lambda: None,
    after_close: Callable[[], None] = lambda: None,
  ):
    """Prepares the folder and starts the producer.

    Args:
      directory: folder of the tape, made if it is missing. If None, a temporary
        folder is made, in memory if there is space, and abandoned temporary
        tapes are removed. If an ended process left a tape with a different ID
        in the folder, that tape is removed. If `resume` is set or a
        noise-server wrote that tape, the folder is refused instead.
      noise_stream: rows y_t of all coordinates or of one shard.
      start_round: first round to write, in [0, number of rounds]. The tape
        computes earlier rounds but does not write them.
      ahead_bytes: maximum number of bytes of files that no round has read, > 0.
        Two rounds are always allowed.
      resume: whether to continue the tape that an ended process left in
        `directory`. The tape then starts at the highest mark or at
        `start_round`, whichever is later. When the tape is closed, the highest
        marks stay in the folder for the next process. If the folder holds a
        tape with a different `description`, the folder is refused.
      before_noise: function that is called once, when the folder is accepted
        and before the producer writes noise. If it raises an error, no noise is
        written, and the error is passed on.
      after_close: function that is called once, when the tape is closed.

    Raises:
      ValueError: a value is out of range; or the folder holds files that belong
        to no tape, has a live producer, belongs to another user, holds another
        tape that must not be removed, or has a mark above `start_round`
        although `resume` is not set.
      OSError: a folder or a file cannot be made.
    """
    self._stream, self.recursion = noise_stream, noise_stream.recursion
    digest, rounds = self.recursion.digest, self.recursion.rounds
    tape_folder.check_start(start_round, rounds)
    dimension = self.dimension = noise_stream.dimension
    z_steps = self.z_steps = noise_stream.z_steps
    first, count = noise_stream.coordinates.start, len(noise_stream.coordinates)
    if count > tape_file.LARGEST_COUNT:
      raise errors.value_error(
        f'coordinates={count}: a file holds {tape_file.LARGEST_COUNT} at most; '
        'share them among noise-servers'
      )
    self.tape_id = noise_stream.identifier
    self.description = tape_folder.Description(
      self.tape_id, digest, rounds, dimension, first, count, z_steps, resume
    )
    self._ahead = max(2, ahead_bytes // (4 * count))
    if directory:
      self.directory = pathlib.Path(directory).absolute()
      self._lock = tape_folder.prepare(self.directory)
    else:
      size = 4 * count * min(self._ahead, rounds)
      self.directory, self._lock = tape_folder.temporary(size)
    self.shards = [tape_folder.Shard(first, count, self.directory)]
    self._after_close = after_close
    self._stop = threading.Event()
    self._closed = False
    self.is_full = False
    self.error: Optional[BaseException] = None
    try:
      start_round = self._resumed(start_round)
      tape_folder.mark(self.directory, start_round)
      before_noise()
    except BaseException:
      os.close(self._lock)
      raise
    self.start_round = self.written = self.reached = start_round
    self._thread = threading.Thread(
      target=self._run, name='tff_bandmf tape', daemon=True
    )
    self._thread.start()
    atexit.register(self.close)

  def close(self) -> None:
    """Stops the producer and removes the files that no later producer needs.

    A second call does nothing.
    """
    if self._closed:
      return
    self._stop.set()
    self._thread.join()
    if self.directory.is_dir() and self.description.served:
      # PRIVACY: If no mark stayed, a noise-server with the same key could start
      # again at round 0 in this folder, and two sums could get the same noise.
      # The description and the highest mark stay in the folder.
      # Guard: noise_server_test.test_server_that_was_stopped_continues.
      self._remove_read_rounds()
      tape_folder.wipe(self.directory, tape_folder.KEPT)
    elif self.directory.is_dir():
      tape_folder.remove(self.directory)
    os.close(self._lock)
    self._closed = True
    self._after_close()
    atexit.unregister(self.close)

  def _resumed(self, start_round: int) -> int:
    """Returns the first round to write; keeps the files that are still valid.

    **Formal guarantee.**
    Assumption: the marks of the folder are on its disk. Statement: if the
    folder holds this tape, the tape writes no round below the highest mark. If
    the folder holds a tape with another key, C, number d of coordinates or
    standard deviation z_steps, either this call raises, or the files and marks
    of the other tape are removed first. Source: `tape_id` is computed from the
    key, C, d and z_steps (`stream.identify`).

    Args:
      start_round: first round that the caller asks for, >= 0.

    Raises:
      ValueError: the folder holds another tape that must not be removed, or has
        a mark above `start_round` although `resume` is not set.
    """
    directory, resume = self.directory, self.description.served
    description = tape_folder.Description.read(directory)
    if description is None and tape_folder.marks(directory):
      raise errors.value_error(
        f'directory={directory}: holds a tape of another version of '
        'tff_bandmf; remove the tape, and give the run a new key'
      )
    if description != self.description:
      if description is not None and (
        resume or description.served or description.tape_id == self.tape_id
      ):
        raise errors.value_error(
          f'directory={directory}: holds another tape, '
          f'{self.description.difference(description)}; give the options of '
          'that tape, or another directory'
        )
      tape_folder.wipe(directory)
      self.description.write(directory)
    reached = tape_folder.highest_mark(directory)
    # PRIVACY: Rounds below the highest mark may have been released. If the tape
    # wrote the noise of such a round again, a second sum could get this noise.
    # A start below the mark is refused; with `resume`, the tape starts at the
    # mark.
    # Guard: tape_test.test_start_below_a_released_round_is_refused.
    if start_round < reached and not resume:
      raise errors.value_error(
        f'start_round={start_round}: rounds below {reached} were used in '
        f'{directory}; resume from the state of round {reached}, or start anew '
        'with a new key'
      )
    start = max(start_round, reached)
    # PRIVACY: A killed producer can leave the noise files of released rounds. A
    # person who reads such a file can subtract the noise from the release. The
    # files of rounds below the highest mark are overwritten and removed.
    # Guard:
    # noise_server_test.test_killed_server_continues_from_the_highest_mark.
    first, count, _ = self.shards[0]
    for path in directory.glob('*.noise'):
      is_whole = tape_file.is_whole(path, self.tape_id, first, count)
      if int(path.stem) < start or not is_whole:
        _files.wipe(path)
    for path in [*directory.glob('*.noise.*.part'), directory / 'failed']:
      _files.wipe(path)
    return start

  def _run(self) -> None:
    """Writes the rounds from `start_round` on, and waits for the reader.

    After the last round, the method removes files of read rounds until the tape
    is closed.
    """
    try:
      # The traceback of an error refers to this frame. If `rows` stayed open in
      # the frame, past noise would not be freed.
      with contextlib.closing(self._stream.rows()) as rows:
        parts = itertools.takewhile(lambda _: not self._stop.is_set(), rows)
        for t, y in enumerate(y for y in parts if y is not None):
          if t >= self.start_round:
            self._write(t, y)
      while not self._stop.wait(tape_folder.POLL_SECONDS):
        self._remove_read_rounds()
    except BaseException as error:  # pylint: disable=broad-except
      self.error = error
      with contextlib.suppress(OSError):
        # Write only the type of the exception: its message could hold a secret.
        content = type(error).__name__.encode()
        _files.write(self.directory / 'failed', content, mode=0o600)
      if not self.description.served:
        raise

  def _remove_read_rounds(self) -> int:
    """Returns the highest marked round; removes all files of earlier rounds."""
    reached = tape_folder.highest_mark(self.directory, self.reached)
    while self.reached < reached:
      _files.wipe(tape_folder.noise_path(self.directory, self.reached))
      self.reached += 1
    tape_folder.remove_marks(self.directory, reached)
    return self.reached

  def _write(self, t: int, y: np.ndarray) -> None:
    """Writes y_t if its file is missing.

    The method waits while too many rounds are unread or the disk is full. If
    the tape is closed during this time, y_t is not written.
    """
    while t >= self._remove_read_rounds() + self._ahead:
      if self._stop.wait(tape_folder.POLL_SECONDS):
        return
    # The reader may skip rounds; a skipped round is not written.
    if t < self.reached:
      return
    path = tape_folder.noise_path(self.directory, t)
    contents = tape_file.contents(self.tape_id, t, self.shards[0].first, y)
    while not path.exists():
      try:
        _files.write(path, *contents, mode=0o600)
        # If the file disappears, it is not written again.
        break
      except OSError as error:
        if error.errno not in _FULL:
          raise
        self.is_full = True
        if self._stop.wait(tape_folder.POLL_SECONDS):
          return
        self._remove_read_rounds()
    self.is_full = False
    self.written = t + 1
