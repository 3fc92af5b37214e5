"""The numbers that define the noise of a run, to the last bit.

Processors and libraries differ in the last digits that they compute for C and
for the standard deviation of z. The first process of a run writes the numbers
to a file, and every later process reads the numbers from this file. So a run
can continue on another machine with the same noise.
"""

from __future__ import annotations

import dataclasses
import io
import pathlib
import zipfile
from collections.abc import Iterable
from typing import Any, NamedTuple, Optional

import numpy as np

from tff_bandmf import _files, errors
from tff_bandmf.noise import exact, placements
from tff_bandmf.noise import generator as generator_lib
from tff_bandmf.noise import key as key_lib
from tff_bandmf.noise import lattice as lattice_lib
from tff_bandmf.strategies import recursion as recursion_lib

_FORMAT = 'tff_bandmf.noise 1'
# PRIVACY: The claim is computed from C and the deviation of z on this machine.
# Noise from other numbers could have another epsilon. Each number of the file
# must agree with the number of this machine, up to rounding errors that
# `sensitivity.rounding` covers. The limit is 64 + 4 j relative units of 2^-53
# for a coefficient of lag j, and 250 units for other numbers.
# Guards: definition_test.test_numbers_that_differ_are_refused and
# test_sensitivity_covers_numbers_that_are_accepted.
_TOLERANCE, _OF_LAG_0, _BY_LAG = 250, 64, 4


class Definition(NamedTuple):
  """The definition of the noise of a run, apart from key and dimension.

  Attributes:
    recursion: recursion that computes y from z, with the exact numbers of C.
    lattice: range of sums and noise, with the standard deviation of z.
  """

  recursion: recursion_lib.Recursion
  lattice: lattice_lib.Lattice

  def in_file(self, path: Optional[pathlib.Path], make: bool) -> Definition:
    """Returns the definition with the numbers of a file.

    Args:
      path: path of the file; None for no file.
      make: whether to write a file that is missing. If False, this method
        ignores a file of another noise, and the caller must check the noise.

    Raises:
      ValueError: the file is damaged, or it defines another noise and `make` is
        set.
    """
    if path is None or not (make or path.exists()):
      return self
    z_steps = np.array(self.lattice.z_steps)
    numbers = {'z_steps': z_steps, **self.recursion.numbers()}
    bits = str(self.lattice.clip_bits)
    definition = [_FORMAT, self.recursion.strategy_digest, bits]
    if not path.exists():
      content = io.BytesIO()
      np.savez(content, definition=definition, **numbers)
      _files.write(path, content.getvalue(), mode=0o600)
      return self
    try:
      with np.load(io.BytesIO(_files.read(path)), allow_pickle=False) as stored:
        held = dict(stored)
      same = held.pop('definition').tolist() == definition
      same &= held.keys() == numbers.keys()
    except (EOFError, KeyError, ValueError, zipfile.BadZipFile) as error:
      raise errors.value_error(
        f'file={path}: is not {_FORMAT}; restore it, or start a new run with a '
        'new key'
      ) from error
    # PRIVACY: If the numbers in the file were not the numbers of the claim, y
    # would be the noise of another C. The numbers must agree.
    # Guard: definition_test.test_numbers_that_differ_are_refused.
    same = same and all(
      _is_close(name, held[name], numbers[name]) for name in numbers
    )
    if not same and not make:
      return self
    if not same:
      raise errors.value_error(
        f'file={path}: defines another noise; give the plan with which the run '
        'began, or start a new run with a new key'
      )
    z_steps = held.pop('z_steps')
    self.recursion.use(held)
    lattice = dataclasses.replace(self.lattice, z_steps=float(z_steps))
    return self._replace(lattice=lattice)

  def noise(
    self, key: key_lib.Key, coordinates: Iterable[int], rounds: int
  ) -> np.ndarray:
    """Returns y of single coordinates, computed exactly from the key.

    This is the noise that a tape with this definition and key must have.

    Args:
      key: the secret key of z.
      coordinates: coordinates of y, each >= 0.
      rounds: number of rounds from round 0 on, in [0, n].

    Returns:
      [rounds, len(coordinates)] int64, in lattice steps.
    """
    generator = generator_lib.Generator(key)
    rounding = exact.Rounding(self.recursion, self.lattice.z_steps, generator)
    return np.array([rounding.column(i, rounds) for i in coordinates]).T


def of_run(
  recursion: recursion_lib.Recursion,
  placement: placements.Placement,
  z_stddev_per_clip: float,
  **options: Any,
) -> Definition:
  """Returns the definition of the noise of a run, from its file if it has one.

  Args:
    recursion: recursion that computes y from z, for the strategy matrix C.
    placement: the user's choice of where noise comes from.
    z_stddev_per_clip: standard deviation of z divided by the clipping norm.
    **options: other arguments of `Lattice.from_noise`.
  """
  lattice = lattice_lib.Lattice.from_noise(
    recursion, z_stddev_per_clip, **options
  )
  computed = Definition(recursion, lattice)
  if not lattice.z_steps:
    return computed
  # For `Served`, the noise-server writes the file.
  assert isinstance(placement, (placements.Tape, placements.Served))
  make = isinstance(placement, placements.Tape)
  return computed.in_file(placement.definition, make)


def _is_close(name: str, held: np.ndarray, computed: np.ndarray) -> bool:
  """Returns whether the numbers agree up to rounding errors."""
  if held.dtype != np.float64 or held.shape != computed.shape:
    return False
  units: Any = _TOLERANCE
  if name in ('row', 'rows'):
    units = _OF_LAG_0 + _BY_LAG * np.arange(computed.shape[-1])
  most = recursion_lib.UNIT * units * np.abs(computed)
  return bool(np.all(np.abs(held - computed) <= most))
