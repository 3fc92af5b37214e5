"""Adds the noise y_t of a tape to the sum S_t of round t, in NumPy.

`graph_reader` does the same in TensorFlow's graph; both modules write the same
marks. `tape.folder` defines marks. S_t and y_t are in steps of `noise.lattice`.
"""

from __future__ import annotations

import math
import time

import numpy as np

from tff_bandmf import errors
from tff_bandmf.noise import fingerprint, self_test
from tff_bandmf.noise.tape import file as tape_file
from tff_bandmf.noise.tape import folder as tape_folder


def release(
  tape: tape_folder.ReadableTape,
  total: np.ndarray,
  *,
  round_index: int,
  run: int,
  timeout_seconds: float = tape_folder.TIMEOUT_SECONDS,
) -> str:
  """Adds y_t to the sum S_t in place; returns the fingerprint of S_t + y_t.

  The call waits for the producers if the noise is not on the tape yet. If a
  check fails, the call raises, so noise is never silently zero, stale, damaged
  or used twice. The caller must discard `total` after an exception.

  **Formal guarantee.** This function has the guarantee of
  `graph_reader.release`: of two different sums with the same y_t at most one is
  released, unless the 64-bit fingerprints of the releases agree. The docstring
  of `graph_reader.release` states the assumptions and the source.

  Args:
    tape: the tape that holds y_t.
    total: [coordinates of all shards] int32, S_t, in lattice steps;
      overwritten with S_t + y_t.
    round_index: t, >= 0.
    run: ID of the run, >= 0; after this call has returned, no other run can
      read the round.
    timeout_seconds: seconds to wait for the producers, > 0. Only the pauses
      between two polls of the folder count.

  Returns:
    The upper and the lower 32 bits of the fingerprint of S_t + y_t, as text.

  Raises:
    ValueError: a check fails.
  """
  folders = [_Folder(shard, round_index, str(run)) for shard in tape.shards]
  parts = [folder.y(tape.tape_id, timeout_seconds) for folder in folders]
  self_test.check(parts, tape, round_index)
  ends = np.cumsum([len(part) for part in parts])
  for piece, part in zip(np.split(total, ends[:-1]), parts):
    piece += part
  # PRIVACY: The difference of two releases with the same y_t has no noise. The
  # function writes the mark of its sum before it returns, and raises if another
  # sum of the round has a mark. If two readers write marks at the same time, at
  # least one of them sees both marks, even on two hosts: a host that has
  # created a file in a folder sees all files that were created there earlier.
  # Guards: tape_release_test.test_round_releases_one_sum,
  # late_folder_test.test_sum_of_a_round_that_is_over_elsewhere_is_refused.
  high, low = fingerprint.fingerprint(total)
  released_sum = f'{high:010d}-{low:010d}'
  owner = f'{run}-{released_sum}'
  for folder in folders:
    folder.check_unused(owner)
  for folder in folders:
    # PRIVACY: A host with an old list of the folder could release a round that
    # another host has finished. All folders are checked again after the marks
    # are written.
    # Guard:
    # late_folder_test.test_sum_of_a_round_that_is_over_elsewhere_is_refused.
    folder.mark(owner)
  for folder in folders:
    folder.check_unused(owner)
  return released_sum


class _Folder:
  """One folder of a tape, as one round uses it."""

  def __init__(self, shard: tape_folder.Shard, round_index: int, run: str):
    self._first, self._count, self._directory = shard
    self._round = round_index
    self._run = run

  def y(self, tape_id: int, timeout_seconds: float) -> np.ndarray:
    """Waits until y_t of this folder is on disk; returns it, [count] int32.

    Args:
      tape_id: ID of the noise.
      timeout_seconds: seconds to wait for the file, > 0.
    """
    self.check_unused()
    path = tape_folder.noise_path(self._directory, self._round)
    # Count polls instead of seconds, because the host's clock can be set.
    for _ in range(math.ceil(timeout_seconds / tape_folder.POLL_SECONDS)):
      if path.exists() or (self._directory / 'failed').exists():
        break
      time.sleep(tape_folder.POLL_SECONDS)
    try:
      return tape_file.unpack(
        path.read_bytes(), tape_id, self._round, self._first, self._count
      )
    except FileNotFoundError:
      raise self._refused(tape_folder.BEHIND) from None
    except ValueError as error:
      raise self._refused(str(error)) from None

  def check_unused(self, owner: str = '') -> None:
    """Raises ValueError unless this run may still release the round.

    Args:
      owner: run ID and fingerprint of the sum to release. If given, the call
        also raises if another sum of the round has a mark.
    """
    try:
      marks = tape_folder.marks(self._directory)
    except FileNotFoundError:
      marks = []
    if not marks:
      raise self._refused(tape_folder.NOT_THERE)
    # PRIVACY: A round before the highest mark may have released a sum, and no
    # second sum may get its noise. The round is refused.
    # Guard: tape_release_test.test_highest_mark_counts_whatever_the_order.
    if max(marks)[0] > self._round:
      raise self._refused(tape_folder.REMOVED)
    here = [(run, other) for t, other, run in marks if t == self._round and run]
    # PRIVACY: If two runs read the same y_t, the difference of their releases
    # has no noise. A round that another run has marked is refused to this run.
    # Guard: tape_release_test.test_round_of_one_run_is_refused_to_another.
    if any(run != self._run for run, _ in here):
      raise self._refused(tape_folder.OTHER_RUN)
    # PRIVACY: If two sums got the same noise, the difference of the releases
    # would have none. A mark of another sum is refused.
    # Guard: tape_release_test.test_round_releases_one_sum.
    if owner and any(other != owner for _, other in here):
      raise self._refused(tape_folder.OTHER_SUM)

  def mark(self, owner: str) -> None:
    """Writes the mark of a sum; from then on, earlier rounds are refused."""
    name = f'{self._round:08d}-{owner}.reached'
    (self._directory / name).touch(mode=0o600)

  def _refused(self, message: str) -> ValueError:
    path = tape_folder.noise_path(self._directory, self._round)
    return errors.value_error(f'noise={path}: {message}')
