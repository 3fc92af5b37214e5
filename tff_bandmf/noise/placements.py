"""Placements: where the noise of a run comes from, as values.

`noise.source.of` makes the source that a placement stands for.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Optional, Union

from tff_bandmf import _checks, errors
from tff_bandmf.noise import key as key_lib

if TYPE_CHECKING:
  from tff_bandmf.noise import position as position_lib


class Placement:
  """Where the noise of a run comes from.

  Attributes:
    key_in_state: whether TFF's state holds the key, so that whoever has a state
      can take the noise off.
    start_round: round of the state that a resumed run goes on from.
  """

  key_in_state: ClassVar[bool] = False
  start_round: int = 0


@dataclasses.dataclass(frozen=True)
class InState(Placement):
  """The key and what the noise remembers are in TFF's state.

  For small models (state passes between processes by value every round, 20 to
  40 ms a MB) and for runtimes whose workers share no file system with this
  process. Every `initialize` draws a key of its own, in the process that runs
  it. Each copy of the state is as secret as the key: who has one takes the
  noise off. So it is refused where `tff.learning.programs.train_model` would
  release it.
  """

  key_in_state: ClassVar[bool] = True


@dataclasses.dataclass(frozen=True)
class Tape(Placement):
  """A thread of this process writes y ahead of the rounds that read it.

  The state of TFF names the tape and holds no secret. A round's noise meets one
  release of one run, and is gone when a later round has read its own.

  Attributes:
    directory: folder for the tape, private and seen by the process that runs
      the rounds; None makes a temporary one, in memory where possible.
    key: of the noise, kept by the caller to resume a run; None draws one from
      the operating system. One key serves one run: the difference of two runs
      with one key has no noise.
    start_round: round of the state that a resumed run goes on from, with the
      key of the run. `initialize` then begins at that round.
    max_memory_bytes: what is remembered of past rounds goes to a file in the
      folder for temporary files (TMPDIR) if it is larger. None keeps it in
      memory.
    backend: what makes the noise, one of `stream.BACKENDS`.
    devices: of the backend, all of one kind; () takes those that it prefers.
    position: says which round is open, whatever the state says; None takes the
      round of the state.
  """

  directory: Optional[Union[str, os.PathLike]] = None
  key: Optional[key_lib.Key] = None
  start_round: int = 0
  max_memory_bytes: Optional[int] = None
  backend: str = 'numpy'
  devices: Sequence[str] = ()
  position: Optional[position_lib.Position] = None

  def __post_init__(self):
    _check_start(self.start_round)
    if self.key is not None and not isinstance(self.key, key_lib.Key):
      # Not the value: it may be a secret.
      raise errors.type_error(
        'key',
        type(self.key).__name__,
        'must be a noise.Key',
        'use Key.load_or_create(path), or Key.from_seed(seed) in simulations',
      )
    if self.start_round and self.key is None:
      raise errors.value_error(
        'start_round',
        self.start_round,
        'needs the key of the run',
        'noise of another key would not go on with the noise of its past',
      )


@dataclasses.dataclass(frozen=True)
class Served(Placement):
  """y comes from running `bandmf noise-server`s, which have the key.

  Attributes:
    folders: of one server, or of all shards, in any order.
    start_round: round of the state that a resumed run goes on from.
  """

  folders: Union[str, os.PathLike, Sequence[Union[str, os.PathLike]]]
  start_round: int = 0

  def __post_init__(self):
    _check_start(self.start_round)


def _check_start(start_round: int) -> None:
  if start_round != 0:
    _checks.count(
      'start_round',
      start_round,
      'give the round of the state that the run goes on from',
    )
