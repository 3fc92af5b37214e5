"""The attacks of `arithmetic_attacks` on the arithmetic of a claim.

The attacks run on the parts of `query.NoisyMean`. Tests show that TFF's
aggregation releases the same bits.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math

import numpy as np

from tff_bandmf import accounting, noise, participation, query, strategies
from tff_bandmf.audit import arithmetic_attacks
from tff_bandmf.noise import generator as generator_lib
from tff_bandmf.noise import placements

_CLIENTS = 1000
# Number of coordinates of noise that `arithmetic_attacks.inverse` examines.
_COMPARED = 64
# Claimed epsilon and delta of each round that `arithmetic_attacks.low_bits`
# examines.
_EPSILON, _DELTA = 2.0, 1e-6


def attack(
  guarantee: accounting.Guarantee,
) -> tuple[arithmetic_attacks.Attack, ...]:
  """Returns the measurements of all attacks on the arithmetic of a claim.

  `summing` adds 1,000 records on the lattice of the claim, and `inverse`
  examines noise of the claim's C. `tail` examines the generator of normals, and
  `low_bits` single rounds at epsilon 2 and delta 1e-6, whatever the claim is.

  Args:
    guarantee: the claim; its noise multiplier is > 0.

  Raises:
    ValueError: no lattice has room for the sum of 1,000 clients.
  """
  lattice = noise.Lattice.from_noise(
    guarantee.strategy.recursion(),
    guarantee.z_stddev_per_clip,
    largest_cohort=_CLIENTS,
    dimension=_COMPARED,
  )
  return (
    arithmetic_attacks.summing(functools.partial(summed, lattice), _CLIENTS),
    arithmetic_attacks.tail(
      functools.partial(arithmetic_attacks.beyond, noise.Key.from_entropy()),
      arithmetic_attacks.TAIL_DRAWS,
    ),
    _low_bits(),
    _inverse(guarantee.strategy, lattice.z_steps),
  )


def summed(lattice: noise.Lattice, values: np.ndarray) -> float:
  """Returns the sum of records of one coordinate after clipping, in clips.

  Args:
    lattice: lattice of the sum.
    values: [clients] float32, the records in clips.
  """
  clipping = query.Clipping.from_clip(
    1.0, np.zeros(1, np.float32), lattice.clip_bits
  )
  total = np.zeros(1, np.int32)
  for value in values:
    total += clipping.clip(value[np.newaxis])
  return float(total[0]) / lattice.clip_steps


def _low_bits() -> arithmetic_attacks.Attack:
  """Returns the measurement of `arithmetic_attacks.low_bits`."""
  dimension = arithmetic_attacks.LOW_BITS_DIMENSION
  mean = query.NoisyMean(
    accounting.Guarantee(
      strategies.Identity(2 * arithmetic_attacks.LOW_BITS_TRIALS),
      participation.Single(),
      accounting.gaussian_noise_multiplier(_EPSILON, _DELTA),
    ),
    np.zeros(dimension, np.float32),
    (1.0, None, math.inf),
    1.0,
    largest_cohort=1,
    placement=placements.Tape(),
  )
  rounds = itertools.count()
  with contextlib.closing(mean):
    return arithmetic_attacks.low_bits(
      lambda record: mean.release(next(rounds), [record]).mean,
      _EPSILON,
      _DELTA,
      arithmetic_attacks.LOW_BITS_TRIALS,
      dimension,
    )


def _inverse(
  strategy: strategies.Strategy, z_steps: float
) -> arithmetic_attacks.Attack:
  """Returns the measurement of `arithmetic_attacks.inverse` on new noise.

  Args:
    strategy: C.
    z_steps: standard deviation of z, in lattice steps.
  """
  recursion = strategy.recursion()
  key = noise.Key.from_entropy()
  stream = noise.Stream(recursion, z_steps, _COMPARED, key)
  y = np.stack([row.copy() for row in stream.rows() if row is not None])
  z = generator_lib.Generator(key).rows(0, strategy.rounds, 0, _COMPARED)
  scales = recursion.scales[recursion.phase(np.arange(strategy.rounds))]
  return arithmetic_attacks.inverse(
    strategy, y / z_steps, z, 1 / (z_steps * scales)
  )
