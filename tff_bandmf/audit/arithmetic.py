"""Runs the attacks of `attacks` on the query, noise and lattice of a claim."""

from __future__ import annotations

import contextlib
import functools
from typing import Any

import numpy as np
import tensorflow as tf

from tff_bandmf import accounting, noise, query, strategies
from tff_bandmf.audit import attacks
from tff_bandmf.noise import generator as generator_lib
from tff_bandmf.noise import placements
from tff_bandmf.noise import source as source_lib

_CLIENTS = 1000
# Coordinates of the noise that `attacks.inverse` examines.
_COMPARED = 64
# Claim of the round that `attacks.low_bits` examines.
_EPSILON, _DELTA = 2.0, 1e-6


def attack(guarantee: accounting.Guarantee) -> tuple[attacks.Attack, ...]:
  """Returns the measurements of all attacks on the arithmetic of a run.

  `summing` adds 1,000 records on the lattice of the claim, and `inverse`
  examines the noise of its C. `tail` and `low_bits` examine the generator and
  one round at (2, 1e-6), which are the same for every claim.

  Args:
    guarantee: the claim, with noise.

  Raises:
    ValueError: no lattice holds 1,000 clients of this claim.
  """
  lattice = noise.Lattice.of(
    guarantee.strategy.recursion(),
    guarantee.z_stddev_per_clip,
    largest_cohort=_CLIENTS,
    dimension=_COMPARED,
  )
  return (
    attacks.summing(functools.partial(summed, lattice), _CLIENTS),
    attacks.tail(
      functools.partial(attacks.beyond, noise.Key.from_entropy()),
      attacks.TAIL_DRAWS,
    ),
    _low_bits(),
    _inverse(guarantee.strategy, lattice.z_steps),
  )


def summed(lattice: noise.Lattice, values: np.ndarray) -> float:
  """Returns the query's sum of records of one coordinate, in clips.

  Args:
    lattice: lattice of the sum.
    values: [clients] float32, the records in clips.
  """
  adding = _query(lattice, 1, 1, source_lib.NoNoise(1))
  total, *_ = tf.function(
    lambda records: tf.foldl(
      lambda state, record: adding.accumulate_record((), state, record),
      records,
      adding.initial_sample_state(),
    ),
    autograph=False,
  )(values[:, np.newaxis])
  return float(total[0]) / lattice.clip_steps


def _query(
  lattice: noise.Lattice, dimension: int, rounds: int, source: Any
) -> query.CorrelatedNoiseQuery:
  """Returns a query whose clip and divisor are 1."""
  specs = tf.TensorSpec([dimension], tf.float32)
  clipping = query.Clipping.of(1.0, specs, lattice.clip_bits)
  return query.CorrelatedNoiseQuery(
    clipping, lattice, 1.0, specs, rounds, source
  )


def _low_bits() -> attacks.Attack:
  """Returns the measurement of `attacks.low_bits` on the query."""
  strategy = strategies.Identity(2 * attacks.LOW_BITS_TRIALS)
  noise_multiplier = accounting.gaussian_noise_multiplier(_EPSILON, _DELTA)
  dimension = attacks.LOW_BITS_DIMENSION
  lattice = noise.Lattice.of(
    strategy.recursion(),
    noise_multiplier,
    largest_cohort=1,
    dimension=dimension,
  )
  source = source_lib.of(
    placements.Tape(), strategy.recursion(), lattice.z_steps, dimension
  )
  released = _query(lattice, dimension, strategy.rounds, source)

  @functools.partial(tf.function, autograph=False)
  def release(state, record):
    total = released.accumulate_record(
      (), released.initial_sample_state(), record
    )
    return released.get_noised_result(total, state)[:2]

  state = released.begin(released.initial_global_state())

  def next_release(record):
    nonlocal state
    result, state = release(state, tf.constant(record))
    return result.numpy()

  with contextlib.closing(source):
    return attacks.low_bits(
      next_release, _EPSILON, _DELTA, attacks.LOW_BITS_TRIALS, dimension
    )


def _inverse(strategy: strategies.Strategy, z_steps: float) -> attacks.Attack:
  """Returns the measurement of `attacks.inverse` on the noise stream."""
  recursion = strategy.recursion()
  key = noise.Key.from_entropy()
  stream = noise.Stream(recursion, z_steps, _COMPARED, key)
  y = np.stack([row.copy() for row in stream.rows() if row is not None])
  z = generator_lib.Generator(key).rows(0, strategy.rounds, 0, _COMPARED)
  scales = recursion.scales[recursion.phase(np.arange(strategy.rounds))]
  return attacks.inverse(strategy, y / z_steps, z, 1 / (z_steps * scales))
