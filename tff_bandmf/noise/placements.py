"""Placements: values that choose where the noise of a run comes from.

`noise.source.of` makes the `NoiseSource` of a placement.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Optional, Union

from tff_bandmf import _checks, errors
from tff_bandmf.noise import key as key_lib

if TYPE_CHECKING:
  from tff_bandmf.noise import released_sums


class Placement:
  """The choice of where the noise of a run comes from.

  Attributes:
    key_in_state: bool, whether TFF's state holds the key; if it does, anybody
      who has a state can subtract the noise.
    start_round: round of the state from which a resumed run goes on, >= 0; 0
      for a new run.
  """

  key_in_state: ClassVar[bool] = False
  start_round: int = 0


@dataclasses.dataclass(frozen=True)
class InState(Placement):
  """A placement that keeps the key and the memory of the noise in TFF's state.

  It suits small models, since the state passes between processes by value every
  round (20 to 40 ms for each MB), and runtimes whose workers share no file
  system with this process. Every `initialize` draws a new key in the process
  that runs it. Each copy of the state is as secret as the key, since anybody
  who has a copy can subtract the noise. This placement is refused where
  `tff.learning.programs.train_model` would release the state.
  """

  key_in_state: ClassVar[bool] = True


@dataclasses.dataclass(frozen=True)
class Tape(Placement):
  """A placement in which a thread of this process writes y ahead of the rounds.

  TFF's state names the tape and holds no secret. The noise of a round is added
  to one sum of one run; its file is removed when a later round has read its
  own.

  Attributes:
    directory: folder for the tape, private, on a file system that the processes
      that run the rounds share; None makes a temporary folder, in memory where
      possible.
    key: secret key of the noise, kept by the caller to resume a run; None draws
      one from the operating system. One key serves one run: the difference of
      two runs with one key has no noise.
    start_round: round of the state from which a resumed run goes on, with the
      key of that run, >= 0. `initialize` then begins at that round.
    max_memory_bytes: most bytes of memory for the producer's past noise, > 0; a
      larger past goes to a file in the folder for temporary files (TMPDIR).
      None keeps it in memory.
    backend: library that makes the noise, one of `stream.BACKENDS`.
    devices: names of the backend's devices, all of one kind; () takes the
      devices that the backend prefers.
    position: reports the open round, whatever the state says; None takes the
      round of the state.
  """

  directory: Optional[Union[str, os.PathLike]] = None
  key: Optional[key_lib.Key] = None
  start_round: int = 0
  max_memory_bytes: Optional[int] = None
  backend: str = 'numpy'
  devices: Sequence[str] = ()
  position: Optional[released_sums.Position] = None

  def __post_init__(self):
    _check_start(self.start_round)
    if self.key is not None and not isinstance(self.key, key_lib.Key):
      # The message shows the type only: the value may be a secret.
      raise errors.type_error(
        f'key={type(self.key).__name__}: must be a noise.Key; use '
        'Key.load_or_create(path), or Key.from_seed(seed) in simulations'
      )
    if self.start_round and self.key is None:
      raise errors.value_error(
        f'start_round={self.start_round}: needs the key of the run; noise of '
        'another key would not go on with the noise of its past'
      )


@dataclasses.dataclass(frozen=True)
class Served(Placement):
  """A placement in which `bandmf noise-server`s write y and have the key.

  Attributes:
    folders: folder of one server, or the folders of all shards in any order.
    start_round: round of the state from which a resumed run goes on, >= 0.
    notice_seconds: seconds, > 0; a line on standard error names a server for
      which a round waits longer.
  """

  folders: Union[str, os.PathLike, Sequence[Union[str, os.PathLike]]]
  start_round: int = 0
  notice_seconds: float = 60.0

  def __post_init__(self):
    _check_start(self.start_round)
    _checks.positive(
      'notice_seconds',
      self.notice_seconds,
      'give the seconds after which a late server is named',
    )


def _check_start(start_round: int) -> None:
  if start_round != 0:
    _checks.count(
      'start_round',
      start_round,
      'give the round of the state that the run goes on from',
    )
