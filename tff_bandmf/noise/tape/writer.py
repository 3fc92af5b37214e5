"""A producer that writes y_t to files ahead of the rounds that read them.

TFF passes server state by value between processes every round; y of past
rounds does not belong there. The tape keeps it in the process that owns the
noise, and gives a round nothing but a file; see `tape_folder`.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import os
import pathlib
import threading
from typing import Optional, Union

import numpy as np

from tff_bandmf import _files, errors
from tff_bandmf.noise.producer import stream
from tff_bandmf.noise.tape import file as tape_file
from tff_bandmf.noise.tape import folder as tape_folder

_AHEAD_BYTES = 512 * 2**20
# What a disk without room says; room may come.
_FULL = (errno.ENOSPC, errno.EDQUOT)


class Tape(tape_folder.ReadableTape):
  """A thread that stays a bounded number of rounds ahead of its reader.

  A tape that starts at round s makes the rounds before it too, so it gives what
  a tape from round 0 gives there, to the bit on one machine. So do shards of a
  tape, put together. A disk that is full makes the rounds wait.

  PRIVACY: a round that was released can be released again by the same run and
  with the same sum (TFF retries calls) until a later round is; from then on
  it is an error, and its file is overwritten and removed. Guard:
  tape_test.test_round_is_gone_after_the_next_one_was_released.

  A folder that a killed process left is gone on with if it has the same noise,
  and then never below the round that was released last.

  Attributes:
    directory: where the files of its one shard are.
    description: what the noise is.
    written: rounds below it were written.
    reached: rounds below it were used.
    is_full: whether the producer waits for room on the disk.
    error: what ended the producer; None while there is nothing wrong.
  """

  def __init__(
    self,
    directory: Optional[Union[str, os.PathLike]],
    made: stream.Stream,
    *,
    start_round: int = 0,
    ahead_bytes: int = _AHEAD_BYTES,
    resume: bool = False,
  ):
    """Starts the producer.

    Args:
      directory: made with mode 0700 if missing; another tape that an ended
        process left there is removed. None makes a temporary one, in memory if
        there is room, and removes those whose process was killed.
      made: the rows of y, all of them or those of a shard.
      start_round: first round to write; those before it are made again to get
        there, and not written.
      ahead_bytes: bound on unread files. Two rounds are allowed whatever it is.
      resume: go on with what an ended process left in `directory`, from the
        highest mark on or from `start_round`, whichever is later; leave the
        marks there in the end, for the next one; and refuse another tape.

    Raises:
      ValueError: a value out of range, or the folder holds other files, has a
        live producer, is to be resumed and holds another tape, or says that a
        later round than `start_round` was used.
    """
    self.dimension, self.z_steps = made.dimension, made.z_steps
    self.recursion, rounds = made.recursion, made.recursion.rounds
    tape_folder.check_start(start_round, rounds)
    self._stream = made
    first, count = made.coordinates.start, len(made.coordinates)
    if count > tape_file.LARGEST_COUNT:
      raise errors.value_error(
        'coordinates',
        count,
        f'a file holds {tape_file.LARGEST_COUNT} at most',
        'share them among noise-servers',
      )
    self.tape_id = made.identifier
    self.description = tape_folder.Description(
      self.tape_id,
      made.recursion.digest,
      rounds,
      self.dimension,
      first,
      count,
      self.z_steps,
      made.kind,
      resume,
    )
    self._ahead = max(2, ahead_bytes // (4 * count))
    self.directory = pathlib.Path(
      directory or tape_folder.temporary(4 * count * min(self._ahead, rounds))
    ).absolute()
    self.shards = [tape_folder.Shard(self.directory, first, count)]
    self._resume = resume
    self._stop = threading.Event()
    self._closed = False
    self.is_full = False
    self.error: Optional[BaseException] = None
    self._lock = tape_folder.prepare(self.directory)
    try:
      start_round = self._resumed(start_round)
      tape_folder.mark(self.directory, start_round)
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
    """Stops the producer and removes what the next one does not need.

    It may be called twice.
    """
    if self._closed:
      return
    self._stop.set()
    self._thread.join()
    if self.directory.is_dir() and self._resume:
      # PRIVACY: without the mark the same key would start from round 0, for
      # another run perhaps. Guard:
      # noise_server_test.test_server_that_was_stopped_continues.
      self._remove_read_rounds()
      tape_folder.wipe(self.directory, keep=True)
    elif self.directory.is_dir():
      tape_folder.remove(self.directory)
    os.close(self._lock)
    self._closed = True
    atexit.unregister(self.close)

  def _resumed(self, start_round: int) -> int:
    """Returns the first round to write; keeps files that are still good."""
    directory = self.directory
    found = tape_folder.Description.read(directory)
    if found is None and tape_folder.marks(directory):
      raise errors.value_error(
        'directory',
        directory,
        'holds a tape of another release',
        'remove it, and give the run a new key',
      )
    if found != self.description:
      if found is not None and (
        self._resume or found.served or found.tape_id == self.tape_id
      ):
        raise errors.value_error(
          'directory',
          directory,
          f'holds another tape, {self.description.difference(found)}',
          'give what made it, or another directory',
        )
      tape_folder.wipe(directory)
      self.description.write(directory)
    reached = max(tape_folder.marks(directory), default=0)
    # PRIVACY: rounds below the mark were used. Guard:
    # tape_test.test_start_below_a_released_round_is_refused.
    if start_round < reached and not self._resume:
      raise errors.value_error(
        'start_round',
        start_round,
        f'round {reached} was released with this noise',
        f'resume from the state of round {reached}, or start anew with a '
        'new key',
      )
    start = max(start_round, reached)
    # PRIVACY: rounds below the mark were used. Guard:
    # noise_server_test.test_killed_server_continues_from_the_highest_mark.
    shard = self.shards[0]
    for path in directory.glob('*.noise'):
      if int(path.stem) < start or not tape_file.is_whole(
        path, self.tape_id, shard.first, shard.count
      ):
        _files.wipe(path)
    for path in [*directory.glob('*.noise.*.part'), directory / 'failed']:
      _files.wipe(path)
    return start

  def _run(self) -> None:
    try:
      self._produce()
    except BaseException as error:  # pylint: disable=broad-except
      self.error = error
      with contextlib.suppress(OSError):
        # The type alone: a message could hold anything.
        _files.write(
          self.directory / 'failed', type(error).__name__.encode(), mode=0o600
        )
      if not self._resume:
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
        # A reader may skip rounds.
        if t >= self.reached:
          self._write(t, y)
      t += 1
    while not self._stop.wait(tape_folder.POLL_SECONDS):
      self._remove_read_rounds()

  def _wait_for_room(self, round_index: int) -> bool:
    """Returns True when the round may be written, False when closing."""
    while round_index >= self._remove_read_rounds() + self._ahead:
      if self._stop.wait(tape_folder.POLL_SECONDS):
        return False
    return not self._stop.is_set()

  def _remove_read_rounds(self) -> int:
    """Removes the files below the round read last, and returns that round."""
    reached = max(tape_folder.marks(self.directory), default=self.reached)
    while self.reached < reached:
      _files.wipe(tape_folder.noise_path(self.directory, self.reached))
      self.reached += 1
    tape_folder.remove_marks(self.directory, reached)
    return self.reached

  def _write(self, round_index: int, values: np.ndarray) -> None:
    """Writes y of a round that is not there yet, when the disk has room."""
    path = tape_folder.noise_path(self.directory, round_index)
    contents = tape_file.contents(
      self.tape_id, round_index, self.shards[0].first, values
    )
    there = path.exists()
    while not there:
      try:
        _files.write(path, *contents, mode=0o600)
        there = True
      except OSError as error:
        if error.errno not in _FULL:
          raise
        self.is_full = True
        if self._stop.wait(tape_folder.POLL_SECONDS):
          return
        self._remove_read_rounds()
    self.is_full = False
    self.written = round_index + 1
