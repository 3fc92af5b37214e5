"""The reader's side of a tape that one or several `bandmf noise-server`s write.

A tape is the stored noise of a run. A noise-server is a process that has the
key and writes the noise of some coordinates to a folder. The noise is y = C^-1
z for a strategy matrix C and normals z, and row t of y is y_t, the noise of
round t. `tape.folder` defines the files of the folder, such as marks.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import threading
from collections.abc import Iterator

from tff_bandmf import _files, errors
from tff_bandmf.noise import placements
from tff_bandmf.noise.tape import folder as tape_folder
from tff_bandmf.strategies import recursion as recursion_lib

# A server is reported as late if a check finds the noise of a round missing,
# and this number of further checks in a row find it missing too.
_LOOKS = 5


class ServedTape(tape_folder.ReadableTape):
  """The folders of one or several noise-servers as one tape to read.

  The tape has no key. Only one reader at a time can lock a folder. A later
  reader can repeat only the round that was released last, and only as the same
  run and with the same sum. `close` unlocks the folders, and removes no file.
  """

  def __init__(
    self,
    placement: placements.Served,
    recursion: recursion_lib.Recursion,
    z_steps: float,
    dimension: int,
  ):
    """Locks the folders and marks `start_round`: earlier rounds are refused.

    Args:
      placement: the folders, and the first round to be read, in [0, number of
        rounds].
      recursion: recursion that computes y from z, for the strategy matrix C.
      z_steps: standard deviation of z in lattice steps, > 0.
      dimension: d, number of coordinates of y_t, > 0.

    Raises:
      ValueError: `start_round` is out of range; a folder does not belong to a
        noise-server, has another reader, holds noise of another strategy,
        `dimension` or `z_steps`, or has a mark of a round after `start_round`;
        a shard is missing; or the folders hold noise of several keys.
    """
    start_round = self.start_round = placement.start_round
    tape_folder.check_start(start_round, recursion.rounds)
    self.dimension, self.z_steps = dimension, z_steps
    self.recursion = recursion
    descriptions = dict(map(self._described, placement.paths))
    self.shards = sorted(
      tape_folder.Shard(each.first, each.count, path)
      for path, each in descriptions.items()
    )
    tape_ids = {each.tape_id for each in descriptions.values()}
    self._check_shards(tape_ids)
    self.tape_id = tape_ids.pop()
    self._locks: list[int] = []
    self._closed = threading.Event()
    self._notice_seconds = placement.notice_seconds
    self._thread = threading.Thread(
      target=self._watch, name='tff_bandmf late servers', daemon=True
    )
    try:
      for shard in self.shards:
        # PRIVACY: If two runs read one folder, they would add the same noise,
        # and the difference of their releases would have no noise. Only one
        # reader at a time can lock a folder.
        # Guard: served_tape_test.test_second_reader_is_refused.
        lock = _files.lock(shard.directory / 'reader')
        if lock is None:
          raise errors.value_error(
            f'noise_server={shard.directory}: is read by another run; a tape '
            'serves one run: start a server for every run'
          )
        self._locks.append(lock)
      for shard in self.shards:
        tape_folder.mark(shard.directory, start_round)
        # PRIVACY: On a network file system, a host's list of a folder can lack
        # the newest marks of another host, so used noise could get into a
        # second sum. A host that has created a file in a folder sees all
        # earlier files. So the folder is listed after this process has written
        # its mark.
        # Guard: late_folder_test.test_reader_does_not_open_with_an_old_view.
        reached = tape_folder.highest_mark(shard.directory)
        if reached > start_round:
          raise errors.value_error(
            f'start_round={start_round}: rounds below {reached} were used in '
            f'{shard.directory}; resume from the state of round {reached}'
          )
    except BaseException:
      self.close()
      raise
    self._thread.start()

  def _described(
    self, folder: pathlib.Path
  ) -> tuple[pathlib.Path, tape_folder.Description]:
    """Returns the absolute path and the description of a folder of noise."""
    path = folder.absolute()
    tape_folder.check_name(path)
    content = tape_folder.Description.read(path)
    if content is None or not content.served:
      raise errors.value_error(
        f'noise_server={path}: is not the folder of a noise-server; start '
        'bandmf noise-server with this --directory first'
      )
    for name, expected, actual in (
      ('strategy', self.recursion.digest, content.strategy),
      ('rounds', self.recursion.rounds, content.rounds),
      ('parameters', self.dimension, content.dimension),
      ('z_steps', self.z_steps, content.z_steps),
    ):
      if actual != expected:
        raise errors.value_error(
          f'{name}={expected}: the noise in {path} has {actual}; start the '
          'server and the training with the same values'
        )
    return path, content

  def _check_shards(self, tape_ids: set[int]) -> None:
    """Raises ValueError if the folders are not all shards of one noise."""
    # PRIVACY: All shards of a run have one key. A shard with a different key
    # may belong to a second run, and the difference of the two runs' releases
    # would have no noise in this shard. Shards of two keys are refused.
    # Guard: served_tape_test.test_shards_of_two_tapes_are_refused.
    if len(tape_ids) > 1:
      folders = [str(shard.directory) for shard in self.shards]
      raise errors.value_error(
        f'noise_server={folders}: hold noise of several keys; start all shards '
        'with one key file'
      )
    ends = [first + count for first, count, _ in self.shards]
    if [*(first for first, _, _ in self.shards), self.dimension] != [0, *ends]:
      texts = [f'{path}: {first}+{count}' for first, count, path in self.shards]
      raise errors.value_error(
        f'noise_server={texts}: must be shards of {self.dimension} '
        'coordinates, each once; give the folders of all shards'
      )

  def close(self) -> None:
    """Frees the folders for another reader; a second call does nothing."""
    self._closed.set()
    if self._thread.is_alive():
      self._thread.join()
    while self._locks:
      os.close(self._locks.pop())

  def _watch(self) -> None:
    """Prints a line for each server that is late with the next round."""
    # Number of consecutive checks, after the first check, in which the same
    # noise was missing.
    looks: dict[tuple[pathlib.Path, int], int] = {}
    while not self._closed.wait(self._notice_seconds / _LOOKS):
      looks = {each: looks.get(each, -1) + 1 for each in self._missing()}
      for (directory, t), count in looks.items():
        if count == _LOOKS:
          errors.notice(
            f'No noise of round {t} for {self._notice_seconds:.0f} s: '
            f'noise-server of {directory} ({tape_folder.producer(directory)}) '
            'is late, stopped or gone; see whether the server runs, continue '
            'it (kill -CONT) or give its command again.'
          )

  def _missing(self) -> Iterator[tuple[pathlib.Path, int]]:
    """Yields (folder, next round) of each shard without noise of that round.

    A folder is passed over if no round is left, or if it cannot be read.
    """
    for _, _, directory in self.shards:
      # If the folder cannot be read, the next release fails with a message that
      # the tape is missing.
      with contextlib.suppress(OSError, ValueError):
        t = tape_folder.next_round(directory)
        is_there = tape_folder.noise_path(directory, t).exists()
        if t < self.recursion.rounds and not is_there:
          yield directory, t
