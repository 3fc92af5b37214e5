"""Opens the tape of a placement; this process or noise-servers write it."""

from __future__ import annotations

import functools
from typing import Optional

from tff_bandmf import errors
from tff_bandmf.noise import key as key_lib
from tff_bandmf.noise import key_use, placements
from tff_bandmf.noise.producer import stream
from tff_bandmf.noise.tape import folder as tape_folder
from tff_bandmf.noise.tape import noise_server_tape, writer
from tff_bandmf.strategies import recursion as recursion_lib


def open_tape(
  placement: placements.Placement,
  recursion: recursion_lib.Recursion,
  z_steps: float,
  dimension: int,
) -> Optional[tape_folder.ReadableTape]:
  """Starts the producer of a tape, or opens the folders of noise-servers.

  If this process writes the tape, the key is reserved until the tape is closed.
  The noise is y = C^-1 z for a strategy matrix C and normals z, and row t of y
  is y_t, the noise of round t.

  Args:
    placement: the user's choice of where y_t comes from.
    recursion: recursion that computes y from z, for the strategy matrix C.
    z_steps: standard deviation of z in lattice steps, >= 0; 0 means no noise.
    dimension: d, number of coordinates of y_t, > 0.

  Raises:
    TypeError: `placement` is of an unknown kind.
    ValueError: a value is out of range; another open tape of this process has
      the key; the folder of a tape cannot be used, see `writer.Tape`; or the
      folder of a noise-server has another reader or does not hold this noise.
    ImportError: the backend of a tape is not installed.
    OSError: a folder or a file of a tape cannot be made.
  """
  if not z_steps:
    return None
  if isinstance(placement, placements.Served):
    return noise_server_tape.ServedTape(
      placement, recursion, z_steps, dimension
    )
  if not isinstance(placement, placements.Tape):
    raise errors.type_error(
      f'noise={type(placement).__name__}: has no source; use a placement of '
      'noise.placements'
    )
  key = placement.key or key_lib.Key.from_entropy()
  memory = stream.Memory(placement.max_memory_bytes, placement.memory_copies)
  devices, backend = placement.devices, placement.backend
  rows = stream.Stream(
    recursion, z_steps, dimension, key, memory, None, devices, backend
  )
  start = placement.start_round
  free = functools.partial(key_use.free, key_use.reserve(key))
  try:
    tape = writer.Tape(
      placement.directory, rows, start_round=start, after_close=free
    )
  except BaseException:
    free()
    raise
  tape.position = placement.position
  return tape
