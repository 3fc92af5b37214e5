"""The tape of `bandmf noise-server`s, as the side sees it that reads."""

from __future__ import annotations

import itertools
import os
import pathlib
from collections.abc import Sequence
from typing import Union

from tff_bandmf import errors
from tff_bandmf.noise.tape import folder as tape_folder
from tff_bandmf.strategies import recursion as recursion_lib


class ServedTape(tape_folder.ReadableTape):
  """Folders that `bandmf noise-server`s write.

  It has no key. Closing it leaves the folders to their servers.

  PRIVACY: as with a `Tape`, only the round released last can be released
  again, by the same run; a second reader, which could be another one, is
  refused. Guard: served_tape_test.test_second_reader_is_refused.
  """

  def __init__(
    self,
    directories: Sequence[Union[str, os.PathLike]],
    recursion: recursion_lib.Recursion,
    z_steps: float,
    dimension: int,
    start_round: int = 0,
  ):
    """Opens the folders, and tells the servers to start at `start_round`.

    Args:
      directories: of all shards, in any order.
      recursion: of C.
      others: as the attributes.

    Raises:
      ValueError: a folder is not that of a server, has another reader, holds
        another noise or noise past `start_round`; or shards are missing.
    """
    tape_folder.check_start(start_round, recursion.rounds)
    self.dimension = dimension
    self.z_steps = z_steps
    self.start_round = start_round
    self.recursion = recursion
    found = {}
    for directory in directories:
      path = pathlib.Path(directory).absolute()
      tape_folder.check_name(path)
      description = tape_folder.Description.read(path)
      if description is None or not description.served:
        raise errors.value_error(
          'noise_server',
          path,
          'is not the folder of a noise-server',
          'start bandmf noise-server with this --directory first',
        )
      found[path] = description
    for path, description in found.items():
      _check(path, description, recursion, z_steps, dimension)
    self.shards = sorted(
      (
        tape_folder.Shard(path, each.first, each.count)
        for path, each in found.items()
      ),
      key=lambda shard: shard.first,
    )
    _check_together(self.shards, list(found.values()), dimension)
    self.tape_id = next(iter(found.values())).tape_id
    self._locks: list[int] = []
    try:
      for shard in self.shards:
        self._locks.append(tape_folder.lock_reader(shard.directory))
      for shard in self.shards:
        tape_folder.mark(shard.directory, start_round)
      # PRIVACY: a view of the folder from before it was marked may be old.
      # Guard: late_folder_test.test_reader_does_not_open_with_an_old_view.
      for shard in self.shards:
        reached = max(tape_folder.marks(shard.directory))
        if reached > start_round:
          raise errors.value_error(
            'start_round',
            start_round,
            f'rounds below {reached} were used in {shard.directory}',
            f'resume from the state of round {reached}',
          )
    except BaseException:
      self.close()
      raise

  def close(self) -> None:
    """Lets another reader in; may be called twice."""
    while self._locks:
      os.close(self._locks.pop())


def _check(
  path: pathlib.Path,
  description: tape_folder.Description,
  recursion: recursion_lib.Recursion,
  z_steps: float,
  dimension: int,
) -> None:
  """Raises ValueError if the noise of a folder is not that of these values."""
  for name, expected, found in (
    ('strategy', recursion.digest, description.strategy),
    ('rounds', recursion.rounds, description.rounds),
    ('parameters', dimension, description.dimension),
    ('z_steps', z_steps, description.z_steps),
  ):
    if found != expected:
      raise errors.value_error(
        name,
        expected,
        f'the noise in {path} has {found}',
        'start the server and the training with the same values',
      )


def _check_together(
  shards: Sequence[tape_folder.Shard],
  descriptions: Sequence[tape_folder.Description],
  dimension: int,
) -> None:
  """Raises ValueError if the folders are not the shards of one tape."""
  # PRIVACY: of another key, noise would be of another run; of another device,
  # shards could not be made again together. Guard:
  # served_tape_test.test_shards_of_two_tapes_are_refused.
  if len({(each.tape_id, each.device) for each in descriptions}) > 1:
    raise errors.value_error(
      'noise_server',
      [str(shard.directory) for shard in shards],
      'hold noise of several keys or kinds of device',
      'start all shards with one key file, on devices of one kind',
    )
  ends = itertools.accumulate((each.count for each in shards), initial=0)
  if [*(each.first for each in shards), dimension] != list(ends):
    raise errors.value_error(
      'noise_server',
      [f'{each.directory}: {each.first}+{each.count}' for each in shards],
      f'must be shards of {dimension} coordinates, each once',
      'give the folders of all shards',
    )
