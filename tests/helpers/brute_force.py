"""Brute force over all that one client can do in few rounds."""

import functools
import itertools
import math

import numpy as np

from tff_bandmf import participation, sensitivity

_CLOSE = 1 + 1e-11


@functools.cache
def patterns(rounds, schema):
  """Returns all sets of rounds of a client, [patterns, rounds] of 0 and 1."""
  most, gaps = rounds, {schema.min_sep}
  if isinstance(schema, participation.Single):
    most = 1
  elif schema.max_participations is not None:
    most = schema.max_participations
  if isinstance(schema, participation.MinSep):
    gaps = range(schema.min_sep, rounds)

  def longer(rows):
    yield rows
    if len(rows) < most:
      for row in range(rows[-1] + 1, rounds):
        if row - rows[-1] in gaps:
          yield from longer((*rows, row))

  every = [rows for first in range(rounds) for rows in longer((first,))]
  ways = np.zeros((len(every), rounds))
  for way, rows in zip(ways, every):
    way[list(rows)] = 1
  return ways


@functools.cache
def signed(rounds, schema):
  """Returns the sets with contributions +1 and -1, of each pair one."""
  ways = []
  for pattern in patterns(rounds, schema):
    taken = np.flatnonzero(pattern)
    for signs in itertools.product((1, -1), repeat=len(taken) - 1):
      ways.append(np.zeros(rounds))
      ways[-1][taken] = (1, *signs)
  return np.array(ways)


def largest(gram, ways):
  """Returns the square root of the largest v^T X v over rows v."""
  return math.sqrt(np.einsum('pi,pi->p', ways @ gram, ways).max())


def alike(matrix, schema):
  """Returns the largest sum of X, where all contributions are alike."""
  return largest(matrix.T @ matrix, patterns(len(matrix), schema))


def bound(matrix, schema):
  """Returns the largest sum of |X|, which bounds all vector contributions."""
  return largest(np.abs(matrix.T @ matrix), patterns(len(matrix), schema))


def attained(matrix, schema):
  """Returns the largest sum of X that contributions of +1 and -1 attain."""
  return largest(matrix.T @ matrix, signed(len(matrix), schema))


def checked(strategy, schema):
  """Returns the sensitivity, which is not below brute force.

  An exact one is not above brute force either.
  """
  value = sensitivity.sensitivity(strategy, schema)
  matrix = strategy.matrix()
  case = strategy, schema, value
  assert value.value * _CLOSE >= bound(matrix, schema), case
  if value.method == sensitivity.EXACT:
    assert value.value <= attained(matrix, schema) * _CLOSE, case
  else:
    assert value.method == sensitivity.UPPER_BOUND, case
  return value
