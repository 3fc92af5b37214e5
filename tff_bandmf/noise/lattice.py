"""The lattice on which records, sums, noise and releases are integers.

| symbol | name here        | meaning                                          |
|--------|------------------|--------------------------------------------------|
| h      |                  | lattice step: the clipping norm is 2^k steps     |
| k      | `clip_bits`      | log2 of the clipping norm in steps               |
| B      | `largest_cohort` | maximum number of clients of a round             |
| z, s   |                  | normals, and their standard deviation            |
| s / h  | `z_steps`        | standard deviation of z in steps                 |
| C, n   |                  | strategy matrix, and its number of rounds        |
| y      |                  | noise C^-1 z, rounded to integers                |
| rho_y  |                  | bound on the norms of the rows of C^-1           |
| D      |                  | diag(C[t, t])                                    |

Sums are 32-bit integers. They are exact in any order if no value leaves the
range of 32 bits. No value leaves it if y is within 16 of its standard
deviations and, for every row of C^-1 D,

  B 2^k + 16 rho_y s/h + |row of C^-1 D|_1 / 2 + 1 < 2^31

With secure aggregation the first term is 2 B 2^k. The third term bounds the
effect of rounding errors on y. Privacy is the same on every lattice. With a
step below 2^-17 s / C[t, t], a larger share of the coordinates of y would need
more digits than float64 has, which costs time.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from tff_bandmf import _checks, errors
from tff_bandmf.accounting.methods import stop_probability as stops
from tff_bandmf.strategies import recursion as recursion_lib

# Least step of the lattice in standard deviations of z / C[t, t].
_LEAST_STEP = 2.0**-17
# Largest k: float64 holds all integers up to 4^k, the squared clip, exactly.
MOST_CLIP_BITS = 26
# PRIVACY: A value outside of int32 wraps around, and the accounting does not
# cover such a sum. No value may exceed this number.
# Guard: lattice_test.test_sums_and_noise_stay_in_32_bits.
_RANGE = 2**31 - 1


@dataclasses.dataclass(frozen=True)
class Lattice:
  """The lattice of one run; `Lattice.from_noise` makes it.

  Attributes:
    clip_bits: k, in [0, 26]: the clipping norm is 2^k steps.
    largest_cohort: B, maximum number of clients of a round, >= 1.
    z_steps: standard deviation of z in steps, >= 0; 0 for a run without noise.
  """

  clip_bits: int
  largest_cohort: int
  z_steps: float

  @classmethod
  def from_noise(
    cls,
    recursion: recursion_lib.Recursion,
    z_stddev_per_clip: float,
    *,
    largest_cohort: int,
    dimension: int,
    secure_sum: bool = False,
  ) -> Lattice:
    """Returns the finest lattice that fits a run.

    A lattice fits if no value of the run is out of range, and 2^k is between
    twice the square root of `dimension` and 2^26. With noise, a step must also
    be at least 2^-17 of the standard deviation of z / C[t, t].

    **Formal guarantee.**
    Assumption: each record has a norm of at most 2^k steps, a round has at most
    B records, and no coordinate of y exceeds 16 of its standard deviations
    (delta includes the probability that one exceeds them). Statement: no sum
    leaves 32 bits. Source: docs/reference/arithmetic.md.

    Args:
      recursion: recursion that computes y from z, for the strategy matrix C.
      z_stddev_per_clip: standard deviation of z divided by the clipping norm,
        >= 0; 0 means no noise.
      largest_cohort: B, maximum number of clients of a round, >= 1.
      dimension: number of coordinates of a record, > 0.
      secure_sum: whether secure aggregation adds up the records, which doubles
        the range that the sum of the records needs.

    Raises:
      ValueError: no lattice is fine enough for the records and coarse enough
        for the sums and the noise, or the run has more than 2^60 pairs of a
        round and a coordinate.
    """
    largest_cohort = _checks.count(
      'largest_cohort', largest_cohort, 'it is the maximum number of clients'
    )
    # PRIVACY: Delta includes the probability that a coordinate of y leaves its
    # range, for 2^60 pairs of a round and a coordinate. With more pairs, delta
    # could be too small. A run with more pairs is refused.
    # Guard: lattice_test.test_more_coordinates_than_claims_count_are_refused.
    if dimension * recursion.rounds > stops.PAIRS:
      raise errors.value_error(
        f'rounds={recursion.rounds}: times {dimension} coordinates must be at '
        'most 2^60; use fewer rounds or parameters'
      )
    min_scale = float(np.min(recursion.scales))
    # The range condition is 2^k (sums + deviations) + constant <= 2^31 - 1.
    norm = recursion.rho * recursion.max_scale if z_stddev_per_clip else 0.0
    # PRIVACY: A coordinate of y that leaves int32 wraps around. The range
    # includes y up to 16 of its standard deviations, and delta includes the
    # probability that y exceeds them.
    # Guard: lattice_test.test_random_lattices_hold_sums_and_noise.
    deviations = stops.DEVIATIONS * z_stddev_per_clip * norm
    # PRIVACY: Secure aggregation doubles the range that the sum needs. Without
    # the factor 2, sums would wrap around.
    # Guard: lattice_test.test_sums_and_noise_stay_in_32_bits.
    sums = largest_cohort * (2 if secure_sum else 1)
    # |row of C^-1 D|_1 <= sqrt(n) |row of C^-1|_2 max_t C[t, t].
    # PRIVACY: C^-1 amplifies the rounding errors of earlier rounds, and large
    # errors would make sums wrap around. The range includes their bound, so a
    # nearly singular C is refused.
    # Guard: lattice_test.test_nearly_singular_matrix_is_refused.
    constant = 1 + math.sqrt(recursion.rounds) * norm / (2 * min_scale)
    # PRIVACY: Sums and noise outside of int32 wrap around. The clip has so few
    # steps that they stay in range.
    # Guard: lattice_test.test_sums_and_noise_stay_in_32_bits.
    most = min(MOST_CLIP_BITS, _bits((_RANGE - constant) / (sums + deviations)))
    if z_stddev_per_clip:
      least_step = _LEAST_STEP * recursion.max_scale * z_stddev_per_clip
      most = min(most, _bits(1 / least_step))
    least = math.ceil(math.log2(2 * math.sqrt(dimension)))
    if most < least:
      raise errors.value_error(
        f'lattice=2^{most} steps a clip: {largest_cohort} clients and a C^-1 '
        f'of row norm {norm:.6g} leave no more, but {dimension} coordinates '
        f'with z_stddev={z_stddev_per_clip:.6g} clips need 2^{least}; use a '
        'better conditioned C, another noise_multiplier, a smaller '
        'largest_cohort, or fewer parameters'
      )
    # PRIVACY: If noise and updates had different steps, the noise would not
    # have the standard deviation of the claim. z is scaled by the number of
    # steps of the clip.
    # Guard: lattice_test.test_step_is_the_least_that_costs_little.
    return cls(most, largest_cohort, z_stddev_per_clip * 2.0**most)

  # PRIVACY: If the clip had more than 2^k steps, a client could move the sum
  # further than the claim assumes.
  # Guard: lattice_test.test_sums_and_noise_stay_in_32_bits.
  @property
  def clip_steps(self) -> int:
    """The clipping norm in lattice steps, 2^k."""
    return 2**self.clip_bits


def _bits(value: float) -> int:
  """Returns floor(log2(value)), or -1 if value < 1."""
  return math.floor(math.log2(value)) if value >= 1 else -1
