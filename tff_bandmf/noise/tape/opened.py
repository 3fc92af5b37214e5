"""A tape that is open for one run; this process or noise-servers write it."""

from __future__ import annotations

import os
from typing import Optional, Union

from tff_bandmf.noise import key as key_lib
from tff_bandmf.noise import key_use, placements, released_sums
from tff_bandmf.noise.producer import stream
from tff_bandmf.noise.tape import folder as tape_folder
from tff_bandmf.noise.tape import served as served_tape
from tff_bandmf.noise.tape import writer
from tff_bandmf.strategies import recursion as recursion_lib

# Seconds that a round waits for the file of a shard before it fails.
TIMEOUT_SECONDS = 600.0


class OpenTape:
  """An open tape. If this process writes it, the key is reserved for this tape.

  The noise is y = C^-1 z for a strategy matrix C and normals z, and row t of y
  is y_t, the noise of round t.

  Attributes:
    tape: the tape from which the rounds read y_t.
    position: record of the open round of a run, or None if the round comes from
      TFF's state or from the caller.
  """

  tape: tape_folder.ReadableTape

  def __init__(
    self,
    placement: Union[placements.Tape, placements.Served],
    recursion: recursion_lib.Recursion,
    z_steps: float,
    dimension: int,
  ):
    """Starts the producer of a tape, or opens the folders of noise-servers.

    Args:
      placement: the user's choice of where y_t comes from.
      recursion: recursion that computes y from z, for the strategy matrix C.
      z_steps: standard deviation of z in lattice steps, > 0.
      dimension: d, number of coordinates of y_t, > 0.

    Raises:
      ValueError: a value is out of range; another open tape of this process has
        the key; the folder of a tape cannot be used, see `writer.Tape`; or the
        folder of a noise-server has another reader or does not hold this noise.
      ImportError: the backend of a tape is not installed.
      OSError: a folder or a file of a tape cannot be made.
    """
    self.position: Optional[released_sums.Position] = None
    self._reserved: Optional[int] = None
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
    self._reserved = key_use.reserve(key)
    try:
      self.tape = writer.Tape(
        placement.directory,
        stream.Stream(
          recursion,
          z_steps,
          dimension,
          key,
          stream.Memory(placement.max_memory_bytes, placement.memory_copies),
          devices=placement.devices,
          backend=placement.backend,
        ),
        start_round=placement.start_round,
      )
    except BaseException:
      key_use.free(self._reserved)
      raise

  def close(self) -> None:
    """Closes the tape, and frees the key for another tape."""
    self.tape.close()
    key_use.free(self._reserved)
    # A second call of `close` must not free the key again, since another tape
    # may have reserved the key in between.
    self._reserved = None
