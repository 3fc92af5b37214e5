"""Placements: values that choose where the noise of a run comes from.

`open_tape.open_tape` opens the tape of a placement.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Sequence
from typing import Optional, Union

from tff_bandmf import _checks, errors
from tff_bandmf.noise import key as key_lib
from tff_bandmf.noise import released_sums
from tff_bandmf.noise.tape import folder as tape_folder


class Placement:
  """The choice of where the noise of a run comes from.

  Attributes:
    start_round: round of the state from which a resumed run continues, >= 0; 0
      for a new run.
  """

  start_round: int = 0

  def __post_init__(self):
    _checks.count(
      'start_round', self.start_round, 'give the round of the state', least=0
    )


@dataclasses.dataclass(frozen=True)
class Tape(Placement):
  """A placement in which a thread of this process writes noise to files.

  The thread writes y_t, the noise of round t, to a file before round t. If the
  file is late, the round waits for it. TFF's server state holds the public ID
  of the noise and no secret. y_t is added to only one sum of one run. The file
  of y_t is removed after a later round was released.

  Attributes:
    directory: private folder of the files, on a file system that all processes
      that run rounds share. If None, a temporary folder is made, in memory if
      possible.
    key: secret key of the noise; the caller keeps it to resume a run. If None,
      the operating system draws a key. A key serves one run: the difference of
      the releases of two runs with the same key has no noise.
    start_round: round of the state from which a run resumes, >= 0; 0 for a new
      run. A resumed run needs the key of its earlier rounds, and `initialize`
      returns the state of this round.
    max_memory_bytes: maximum number of bytes of past noise in memory, > 0. If
      past noise has more bytes, all past noise goes to a file in the temporary
      folder (TMPDIR). None means no limit. The memory of `devices` has no limit
      in either case.
    backend: library that computes the noise, one of `stream.BACKENDS`.
    devices: names of the backend's devices, all of one kind; () means the
      devices that the backend prefers.
    memory_copies: maximum number of rows of past noise, each of the model's
      size, >= 0; None means no limit. If C^-1 has few bands and needs more
      rows, the producer keeps no past normals and computes them again. The bits
      of the noise stay the same.
    definition: path of the file that holds the numbers of the noise. A new run
      writes this file. With the file, the run can continue on another machine.
      None means no file.
    position: the open round of a run, in files. The tape gives the noise of the
      open round, even if TFF's state counts another round. If None, the tape
      gives the noise of the round that the state counts.
  """

  directory: Optional[Union[str, os.PathLike]] = None
  key: Optional[key_lib.Key] = None
  start_round: int = 0
  max_memory_bytes: Optional[int] = None
  backend: str = 'numpy'
  devices: Sequence[str] = ()
  memory_copies: Optional[int] = None
  definition: Optional[pathlib.Path] = None
  position: Optional[released_sums.Position] = None

  def __post_init__(self):
    super().__post_init__()
    if self.max_memory_bytes is not None:
      _checks.count(
        'max_memory_bytes', self.max_memory_bytes, 'give None: no limit'
      )
    if self.key is not None and not isinstance(self.key, key_lib.Key):
      # The message shows the type only, because the value may be a secret.
      raise errors.type_error(
        f'key={type(self.key).__name__}: must be a noise.Key; use '
        'Key.load_or_create(path), or Key.from_seed(seed) in simulations'
      )
    if self.start_round and self.key is None:
      raise errors.value_error(
        f'start_round={self.start_round}: needs the key of the run; noise from '
        'another key would not continue the noise of the earlier rounds'
      )


@dataclasses.dataclass(frozen=True)
class Served(Placement):
  """A placement in which one or several `bandmf noise-server`s write the noise.

  The servers have the key. They write the noise of each round to files before
  the round. If a file is late, the round waits for it. A shard is a range of
  coordinates, the share of one server.

  Attributes:
    folders: folder of the only server, or the folders of all shards in any
      order.
    start_round: round of the state from which a resumed run continues, >= 0.
    notice_seconds: number of seconds, > 0. If the noise of the next round is
      missing for this time, a line on standard error names the late server.
  """

  folders: Union[str, os.PathLike, Sequence[Union[str, os.PathLike]]]
  start_round: int = 0
  notice_seconds: float = 60.0

  @property
  def paths(self) -> list[pathlib.Path]:
    """The folders of all shards."""
    if isinstance(self.folders, (str, os.PathLike)):
      return [pathlib.Path(self.folders)]
    return list(map(pathlib.Path, self.folders))

  @property
  def definition(self) -> Optional[pathlib.Path]:
    """The file that a noise-server writes to its folder."""
    return self.paths[0] / tape_folder.DEFINITION

  def __post_init__(self):
    super().__post_init__()
    _checks.positive('notice_seconds', self.notice_seconds, 'give seconds')
