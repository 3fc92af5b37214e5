"""A small aggregator with its updates and its noise, for tests."""

import collections

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_bandmf import aggregator, noise, participation, strategies
from tff_bandmf.noise import generator, placements

ROUNDS = 6
STRATEGY = strategies.BandedToeplitz(ROUNDS, [1.0, 0.5, 0.25])
PARTICIPATION = participation.MinSep(3)
# A client has two disjoint columns, whose squared norms are 1 + 1/4 + 1/16.
SENSITIVITY = np.sqrt(2 * (1 + 1 / 4 + 1 / 16))
MULTIPLIER, CLIENTS, CLIP = 0.7, 5.0, 2.5
Z_STDDEV = MULTIPLIER * SENSITIVITY * CLIP
KEY = noise.Key.from_seed(9)

# The structure is nested, its names are not in alphabetical order, and it has
# all float types and a scalar.
SPECS = collections.OrderedDict(
  kernel=tf.TensorSpec([3, 2], tf.float32),
  bias=(tf.TensorSpec([4], tf.float16), tf.TensorSpec([], tf.float64)),
  after=collections.OrderedDict(z=tf.TensorSpec([5], tf.bfloat16)),
)
DIMENSION = 6 + 4 + 1 + 5
# Largest error of a result: a few steps of the lattice, or the rounding to a
# float type.
_TOLERANCE = {
  'float16': 2e-3,
  'bfloat16': 1.6e-2,
  'float32': 3e-5,
  'float64': 3e-5,
}


def type_of(specs):
  return tff.types.to_type(
    tf.nest.map_structure(
      lambda spec: tff.TensorType(
        spec.dtype.as_numpy_dtype, spec.shape.as_list()
      ),
      specs,
    )
  )


TYPE = type_of(SPECS)


def factory_of(tape=None, **kwargs):
  arguments = {
    'noise_multiplier': MULTIPLIER,
    'clients_per_round': CLIENTS,
    'l2_norm_clip': CLIP,
    'strategy': STRATEGY,
    'participation': PARTICIPATION,
    'noise': placements.Tape(**{'key': KEY, **(tape or {})}),
    **kwargs,
  }
  return aggregator.dp_aggregator(**arguments)


def updates_of(clients, seed, scale=1.0):
  rng = np.random.default_rng(seed)
  return [
    tf.nest.map_structure(
      lambda spec: np.asarray(
        scale * rng.normal(size=spec.shape), spec.dtype.as_numpy_dtype
      ),
      SPECS,
    )
    for _ in range(clients)
  ]


def flat(structure):
  return np.concatenate(
    [
      np.asarray(x).astype(np.float64).ravel()
      for x in tf.nest.flatten(structure)
    ]
  )


def clipped_sum(updates):
  return sum(x * min(1, CLIP / np.linalg.norm(x)) for x in map(flat, updates))


def dense_noise(dimension=DIMENSION):
  """Returns C^-1 Z, [rounds, dimension], computed without the recursion."""
  z = generator.Generator(KEY).rows(0, ROUNDS, 0, dimension)
  return np.linalg.solve(STRATEGY.matrix(), z)


def assert_close(result, expected):
  tf.nest.assert_same_structure(result, SPECS)
  sizes = [spec.shape.num_elements() for spec in tf.nest.flatten(SPECS)]
  parts = np.split(expected, np.cumsum(sizes)[:-1])
  for leaf, part, spec in zip(
    tf.nest.flatten(result), parts, tf.nest.flatten(SPECS)
  ):
    leaf = np.asarray(leaf)
    assert leaf.shape == tuple(spec.shape)
    assert tf.as_dtype(leaf.dtype) == spec.dtype
    tolerance = _TOLERANCE[spec.dtype.name]
    np.testing.assert_allclose(
      leaf.astype(np.float64).ravel(), part, rtol=tolerance, atol=tolerance
    )


def run(process, state, start, stop):
  """Returns the results of rounds start to stop - 1, and the last state."""
  results = []
  for t in range(start, stop):
    output = process.next(state, updates_of(2, seed=t))
    state = output.state
    results.append(flat(output.result))
  return np.stack(results), state
