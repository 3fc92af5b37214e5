"""A tape that is open for one run: written by this process, or by servers."""

from __future__ import annotations

import os
import threading
from typing import Optional, Union

from tff_bandmf import errors
from tff_bandmf.noise import key as key_lib
from tff_bandmf.noise import placements, released_sums
from tff_bandmf.noise.producer import stream
from tff_bandmf.noise.tape import folder as tape_folder
from tff_bandmf.noise.tape import served as served_tape
from tff_bandmf.noise.tape import writer
from tff_bandmf.strategies import recursion as recursion_lib

# Seconds that a round waits for its file before it fails.
TIMEOUT_SECONDS = 600.0

# Fingerprints of the keys whose noise is on a tape of this process.
_held: set[Optional[int]] = set()
_holding = threading.Lock()


class OpenTape:
  """A tape, and the right of this process to the key of its noise.

  Attributes:
    tape: the tape from which rounds read y_t.
    position: reports the open round; None takes the round of the caller.
  """

  tape: tape_folder.ReadableTape

  def __init__(
    self,
    placement: Union[placements.Tape, placements.Served],
    recursion: recursion_lib.Recursion,
    z_steps: float,
    dimension: int,
  ):
    """Starts the producer of a tape, or opens the folders of servers.

    Args:
      placement: the choice of where y comes from.
      recursion: the recursion by which y follows from z, for the strategy C.
      z_steps: standard deviation of z in lattice steps, > 0.
      dimension: d, number of coordinates of y_t, > 0.

    Raises:
      ValueError: another tape of this process has the key, or a server's folder
        does not fit this run or has another reader.
      OSError: there is no room for the folder of a tape.
    """
    self.position: Optional[released_sums.Position] = None
    self._held: Optional[int] = None
    if isinstance(placement, placements.Served):
      folders = placement.folders
      if isinstance(folders, (str, os.PathLike)):
        folders = [folders]
      self.tape = served_tape.ServedTape(
        folders,
        recursion,
        z_steps,
        dimension,
        placement.start_round,
        placement.notice_seconds,
      )
      return
    self.position = placement.position
    key = placement.key or key_lib.Key.from_entropy()
    self._held = _hold(key)
    try:
      self.tape = writer.Tape(
        placement.directory,
        stream.Stream(
          recursion,
          z_steps,
          dimension,
          key,
          placement.max_memory_bytes,
          devices=placement.devices,
          backend=placement.backend,
        ),
        start_round=placement.start_round,
      )
    except BaseException:
      _held.discard(self._held)
      raise

  def close(self) -> None:
    """Closes the tape, and frees the key for another run."""
    self.tape.close()
    _held.discard(self._held)
    # After a second `close`, another tape may hold this key: do not release it
    # twice.
    self._held = None


def _hold(key: key_lib.Key) -> int:
  """Reserves a key for one tape of this process; returns its fingerprint.

  **Formal guarantee.**
  Assumption: every tape that this process makes comes from `OpenTape`.
  Statement: at any time at most one open tape of this process has the noise of
  the key. Two processes can hold the same key; `key_use.KeyUse` and the lock of
  a run's folder keep them apart.

  Raises:
    ValueError: a tape that is still open has this key.
  """
  name = key.identify(b'held')
  with _holding:
    # PRIVACY: Two runs with one key have the same noise, so the difference of
    # their releases has no noise. A key that an open tape of this process has
    # is refused.
    # Guard: aggregator_runs_test.test_second_factory_with_a_key_is_refused.
    if name in _held:
      raise errors.value_error(
        'key=Key(<secret>): serves another aggregator; close that one first, '
        'and go on from its state; a new run takes a new key'
      )
    _held.add(name)
  return name
