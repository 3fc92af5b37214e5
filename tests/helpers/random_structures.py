"""Random C and all the rounds that a client can have, for brute force.

Columns of these C differ by orders of magnitude, with any signs. So the
heaviest pattern of a client is not the first one, nor one of near rounds, as it
is where columns have nearly the same norm.
"""

import functools

import numpy as np

from tff_bandmf import strategies


def _rows(rng, rounds, bands):
  rows = rng.normal(size=(rounds, bands)) * rng.random(bands) ** 2
  rows[:, 0] = 0.1 + np.abs(rows[:, 0])
  norms = np.exp(2 * rng.normal(size=rounds))
  column = np.arange(rounds)[:, np.newaxis] - np.arange(bands)
  return np.where(column >= 0, rows * norms[np.maximum(column, 0)], 0.0)


def _banded(rng, rounds, bands):
  return strategies.Banded(_rows(rng, rounds, bands))


def _toeplitz(rng, rounds, bands):
  series = rng.normal(size=bands) * rng.random(bands) ** 2
  series[0] = 0.1 + abs(series[0])
  if rng.random() < 0.5:
    series = np.abs(series)
  return strategies.BandedToeplitz(rounds, series)


def _falling(rng, rounds, bands):
  series = np.sort(np.exp(2 * rng.normal(size=bands)))[::-1]
  return strategies.BandedToeplitz(rounds, series)


def _stamped(rng, rounds, bands):
  block = int(rng.integers(bands, rounds + 1))
  return strategies.Stamped(rounds, _banded(rng, block, bands))


# Functions from a generator, a number of rounds and one of bands to a strategy.
MATRICES = {
  'banded': _banded,
  'dense': lambda *sizes: strategies.Dense(_banded(*sizes).matrix()),
  'stamped': _stamped,
  'toeplitz': _toeplitz,
  'falling': _falling,
  'normalized': lambda *sizes: strategies.ColumnNormalized(_toeplitz(*sizes)),
  'normalized falling': lambda *sizes: strategies.ColumnNormalized(
    _falling(*sizes)
  ),
  'tree': lambda rng, rounds, _: strategies.Tree(
    rounds, int(rng.integers(2, 5))
  ),
  'online-tree': lambda rng, rounds, _: strategies.OnlineTree(rounds),
}


@functools.cache
def separated(rounds, min_sep):
  """Returns all sets of rounds that are min_sep apart, [sets, rounds]."""
  if rounds < 1:
    return np.zeros((1, 0))
  without = separated(rounds - 1, min_sep)
  after = separated(rounds - min_sep, min_sep)
  first = np.zeros((len(after), rounds - after.shape[1]))
  first[:, 0] = 1
  return np.vstack(
    [np.pad(without, ((0, 0), (1, 0))), np.hstack([first, after])]
  )


def evenly_spaced(rounds, min_sep):
  """Returns all sets of rounds exactly min_sep apart, [sets, rounds]."""
  r = np.arange(rounds)
  sets = [
    (r >= first) & (r < stop) & ((r - first) % min_sep == 0)
    for first in range(rounds)
    for stop in range(first + 1, rounds + 1)
  ]
  return np.array(sets, float)


def gram(strategy):
  """Returns |X|, [rounds, rounds]; of the nodes, where a tree releases them."""
  if isinstance(strategy, strategies.OnlineTree):
    return strategy.gram()
  matrix = strategy.matrix()
  return np.abs(matrix.T @ matrix)


def sums(sets, gram):
  """Returns the sum of |X| over each set of rounds, [sets]."""
  return ((sets @ gram) * sets).sum(1)
