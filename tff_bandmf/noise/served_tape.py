"""The tape of `bandmf noise-server`s, as the side sees it that reads."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Sequence
from typing import Union

from tff_bandmf import errors
from tff_bandmf.noise import plan as plan_lib
from tff_bandmf.noise import tape_folder


class ServedTape:
  """Folders that `bandmf noise-server`s write; has the attributes of a `Tape`.

  It has no key. Closing it leaves the folders to their servers.

  PRIVACY: as with a `Tape`, only the round read last can be read again, by the
  same run; a second reader, which could be another one, is refused. Guard:
  served_tape_test.test_second_reader_is_refused.

  Attributes:
    shards: the folders, in the order of their coordinates.
    dimension: d, coordinates of y_t.
    start_round: first round to be read.
    tape_id: 63 bits that name the noise.
  """

  def __init__(
      self,
      directories: Sequence[Union[str, os.PathLike]],
      plan: plan_lib.Plan,
      dimension: int,
      generator: str,
      start_round: int = 0,
  ):
    """Opens the folders, and tells the servers to start at `start_round`.

    Args:
      directories: of all shards, in any order.
      plan: the recursion of C.
      dimension: d.
      generator: of z.
      start_round: first round to read.

    Raises:
      ValueError: a folder is not that of a server, has another reader, holds
        another noise or noise past `start_round`; or shards are missing.
    """
    self.dimension = dimension
    self.start_round = start_round
    found = {}
    for directory in directories:
      path = pathlib.Path(directory).absolute()
      tape_folder.check_name(path)
      description = tape_folder.Description.read(path)
      if description is None:
        raise ValueError(
            errors.invalid(
                'noise_server', path, 'is no folder of a noise-server',
                'start bandmf noise-server with this --directory first'))
      found[path] = description
    for path, description in found.items():
      _check(path, description, plan, dimension, generator)
    self.shards = sorted(
        (tape_folder.Shard(path, each.first, each.count)
         for path, each in found.items()),
        key=lambda shard: shard.first)
    _check_together(self.shards, list(found.values()), dimension)
    self.tape_id = next(iter(found.values())).tape_id
    self._locks: list[int] = []
    try:
      for shard in self.shards:
        self._locks.append(tape_folder.lock_reader(shard.directory))
      for shard in self.shards:
        reached = max(tape_folder.marks(shard.directory), default=0)
        if reached > start_round:
          raise ValueError(
              errors.invalid(
                  'start_round', start_round,
                  f'rounds below {reached} were used in {shard.directory}',
                  f'resume from the state of round {reached}'))
      for shard in self.shards:
        tape_folder.mark(shard.directory, start_round)
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
    plan: plan_lib.Plan,
    dimension: int,
    generator: str,
) -> None:
  """Raises ValueError if the noise of a folder is not that of these values."""
  for name, expected, found in (
      ('strategy', plan.digest, description.strategy),
      ('rounds', plan.rounds, description.rounds),
      ('parameters', dimension, description.dimension),
      ('generator', generator, description.generator)):
    if found != expected:
      raise ValueError(
          errors.invalid(
              name, expected, f'the noise in {path} has {found}',
              'start the server and the training with the same values'))


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
    raise ValueError(
        errors.invalid(
            'noise_server', [str(shard.directory) for shard in shards],
            'hold noise of several keys or kinds of device',
            'start all shards with one key file, on devices of one kind'))
  end = 0
  for shard in shards:
    if shard.first != end:
      break
    end += shard.count
  if end != dimension or sum(each.count for each in shards) != dimension:
    raise ValueError(
        errors.invalid(
            'noise_server',
            [f'{each.directory}: {each.first}+{each.count}'
             for each in shards],
            f'must be shards of {dimension} coordinates, each once',
            'give the folders of all shards'))
