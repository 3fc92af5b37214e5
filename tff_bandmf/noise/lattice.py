"""The lattice on which records, sums, noise and releases are integers.

| symbol  | name here        | meaning                                        |
|---------|------------------|------------------------------------------------|
| h       | step             | the clipping norm is 2^k steps                 |
| k       | `clip_bits`      | bits of the clipping norm in steps             |
| B       | `largest_cohort` | most clients whose records are added up        |
| s / h   | `z_steps`        | standard deviation of z, in steps              |

All sums are of 32-bit integers, so they are exact in any order, if nothing
leaves the range:

  B 2^k + 12 rho_y s/h + |row of C^-1 D|_1 / 2 + 1 < 2^31

Here D = diag(C[t, t]); C^-1 D carries the rounding of y into later y. A cell is
the step of one row, in units of z's standard deviation.
`accounting.arithmetic.cells` bounds the cost of finite arithmetic, on the
condition that every cell has a width in

  2^-17 <= h C[t, t] / s <= 1
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from tff_bandmf import _checks, errors
from tff_bandmf.accounting.arithmetic import cells
from tff_bandmf.strategies import recursion as recursion_lib

# PRIVACY: A cell narrower than this has a larger slack than claims include, so
# that epsilon would be too small. A lattice with narrower cells is not made.
# Guard: lattice_test.test_cells_are_as_wide_as_claims_say.
_CELL_WIDTH = cells.CELL_WIDTH
# Largest k: a float64 holds the square of 2^26 steps exactly.
MOST_CLIP_BITS = 26
_RANGE = 2**31 - 1


@dataclasses.dataclass(frozen=True)
class Lattice:
  """The lattice of one run; `Lattice.of` makes it.

  Attributes:
    clip_bits: k, in [0, 26]: the clipping norm is 2^k steps.
    largest_cohort: B, most clients of a round, >= 1.
    z_steps: standard deviation of z in steps, >= 0; 0 for a run without noise.
  """

  clip_bits: int
  largest_cohort: int
  z_steps: float

  @classmethod
  def of(
    cls,
    recursion: recursion_lib.Recursion,
    z_stddev_per_clip: float,
    *,
    largest_cohort: int,
    dimension: int,
    secure_sum: bool = False,
  ) -> Lattice:
    """Returns the finest lattice that holds a run.

    **Formal guarantee.**
    Assumption: each record has a norm of at most 2^k steps, a round has at most
    B of them, and no |y| is beyond 12 of its deviations (the probability of the
    opposite is in slack_delta). Statement: no sum leaves 32 bits, and every
    cell has a width in [2^-17, 1] in units of z, for which `slack_epsilon` and
    `slack_delta` hold. Source: docs/reference/arithmetic.md, Theorem 2.

    Args:
      recursion: the recursion by which y follows from z, for the strategy C.
      z_stddev_per_clip: standard deviation of z for a clipping norm of 1, >= 0;
        0 for no noise.
      largest_cohort: B, most clients of a round, >= 1.
      dimension: d, number of coordinates of a record, > 0.
      secure_sum: whether sums are shifted by B clips before they are added.

    Raises:
      ValueError: no lattice is fine enough for the records and coarse enough
        for the sums and the noise.
    """
    largest_cohort = _checks.count(
      'largest_cohort', largest_cohort, 'it is the most clients of a round'
    )
    min_scale = float(np.min(recursion.scales))
    # In the range condition 2^k is multiplied with `sums + deviations`;
    # `constant` does not grow with it.
    norm = recursion.rho * recursion.max_scale if z_stddev_per_clip else 0.0
    deviations = 12 * z_stddev_per_clip * norm
    sums = largest_cohort * (2 if secure_sum else 1)
    # |row D|_1 <= sqrt(n) |row|_2 max C[t, t].
    constant = 1 + math.sqrt(recursion.rounds) * norm / (2 * min_scale)
    most = min(MOST_CLIP_BITS, _bits((_RANGE - constant) / (sums + deviations)))
    if z_stddev_per_clip:
      most = min(
        most, _bits(1 / (_CELL_WIDTH * recursion.max_scale * z_stddev_per_clip))
      )
    least = math.ceil(math.log2(2 * math.sqrt(dimension)))
    if z_stddev_per_clip:
      # PRIVACY: The proof of the slack does not cover a cell wider than a
      # deviation. A lattice with wider cells is refused.
      # Guard: lattice_test.test_cells_wider_than_a_deviation_are_refused.
      least = max(least, math.ceil(-math.log2(min_scale * z_stddev_per_clip)))
    if most < least:
      raise errors.value_error(
        f'lattice=2^{most} steps a clip: {dimension} coordinates with '
        f'z_stddev={z_stddev_per_clip:.6g} clips need 2^{least}, and '
        f'{largest_cohort} clients and a C^-1 of row norm {norm:.6g} leave no '
        'more; use a better conditioned C, another noise_multiplier, a smaller '
        'largest_cohort, or fewer parameters'
      )
    return cls(most, largest_cohort, z_stddev_per_clip * 2.0**most)

  @property
  def clip_steps(self) -> int:
    """The clipping norm in steps, 2^k."""
    return 2**self.clip_bits


def _bits(value: float) -> int:
  """Returns floor(log2(value)); -1 below 1."""
  return math.floor(math.log2(value)) if value >= 1 else -1
