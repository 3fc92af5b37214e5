"""Sensitivity of tree aggregation.

A contribution of norm 1 in round i changes every node above leaf i by a vector
of norm 1. Here a leaf is also above and below itself. With a maximum over the
patterns pi of a client's rounds,

  sens^2 = max_pi sum_nodes (number of rounds of pi below the node)^2.

The entry X[i, j] of the Gram matrix is the number of nodes above both i and j.
The rounds are 0 to n - 1, and a node exists if all rounds below it are less
than n.

| symbol | meaning                                                        |
|--------|----------------------------------------------------------------|
| n      | number of rounds                                               |
| b, k   | `min_sep`, and the largest number of rounds of one client      |
| size   | number of rounds below each node of a level of the tree        |
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np

from tff_bandmf import participation as participation_lib
from tff_bandmf.sensitivity import patterns, result
from tff_bandmf.strategies import tree

# Largest number of computed entries of X; at this limit they take some seconds.
_QUICK_LAGS = 10**9
# Limits of the function `_joined`: the largest number of array entries, and the
# largest number of pairs of keys. At either limit, a call takes about a second.
_QUICK_TABLE = 10**8
_QUICK_PAIRS = 20_000

# A table of one node, or of adjacent nodes. It maps (count, sum of squared
# counts) to an array of integers. Entry w of the array is the least waiting
# time at the end of the nodes, for the waiting time w at their start. The
# docstring of `_heaviest` defines these terms.
_Table = dict[tuple[int, int], np.ndarray]


class _TooLongError(Exception):
  """The tables of a tree have too many entries."""


def sensitivity(
  strategy: tree.OnlineTree, participation: participation_lib.Participation
) -> result.Sensitivity:
  """Returns the sensitivity of a tree whose noisy nodes are released.

  If n and k are too large for the exact computation, the result is an upper
  bound. At most q = min(k, ceil(size / b)) rounds of a client are below one
  node of a level, and at most k rounds are below all nodes of the level
  together. The sum of squares over a level is largest if as many nodes as
  possible have q rounds, and one more node has the remaining rounds. The
  squared bound is the sum of these largest values over all levels.
  """
  rounds, sizes = strategy.rounds, strategy.sizes
  k = participation.participations(rounds)
  if k == 1:
    return result.exact(len(sizes), 'levels of the tree (one participation)')
  min_sep = participation.separation(rounds)
  fixed = participation.evenly_spaced
  if not fixed:
    with contextlib.suppress(_TooLongError):
      return result.exact(
        _heaviest(rounds, sizes, min_sep, k),
        'heaviest pattern, from the leaves of the tree up',
      )
  attained = 0.0
  if rounds * k <= _QUICK_LAGS:
    lags = _lags(rounds, sizes, min_sep, k)
    attained = patterns.heaviest_fixed(lags, rounds, min_sep, k)
    if fixed:
      return result.exact(attained, 'nodes of the tree over one epoch offset')
  return result.bound(
    _levels_squared(rounds, sizes, min_sep, k),
    'most rounds that each level of the tree can hold',
    attained,
  )


def decoded_sensitivity(
  strategy: tree.OnlineTree, participation: participation_lib.Participation
) -> result.Sensitivity:
  """Returns an upper bound of the sensitivity of sums of noisy nodes.

  The decoder computes the released sums from the noisy nodes alone, so the
  sensitivity of the nodes is an upper bound.
  """
  nodes = sensitivity(strategy, participation)
  source = f'the nodes that the release is made from: {nodes.reason}'
  reason = f'{nodes.method} for {source}'
  return result.Sensitivity(nodes.value, result.UPPER_BOUND, reason)


# PRIVACY: If the tables lacked a pattern, the sensitivity would be too small.
# The waiting times exclude only patterns that the schema forbids.
# Guards: families_test.test_sensitivity_is_safe and
# random_structures_test.test_random_patterns_never_exceed_the_sensitivity.
def _heaviest(rounds: int, sizes: list[int], min_sep: int, k: int) -> float:
  """Returns the largest sum of squared counts.

  The count of a node is the number of a client's rounds below it. The waiting
  time at a round is the number of rounds, 0 to b - 1, before the client may
  take part again. A table is for one node. Its keys are pairs: the count of the
  node, and the sum of squared counts of this node and all nodes below it. The
  value of a key is an array: for each waiting time at the start of the node,
  the least waiting time at its end, or b if the key is impossible.

  Raises:
    _TooLongError: the tables have too many entries.
  """
  beginning = np.arange(min_sep + 1)
  never = np.full_like(beginning, min_sep)
  after = never.copy()
  after[0] = min_sep - 1
  waiting = np.maximum(beginning - 1, 0)
  waiting[-1] = min_sep
  tables: list[_Table] = [{(0, 0): waiting, (1, 1): after}]
  for size, parent in zip(sizes, sizes[1:]):
    children = tables[-1]
    for _ in range(parent // size - 1):
      children = _joined(children, tables[-1], k)
    tables.append({})
    for (count, squared), end in children.items():
      tables[-1][count, squared + count**2] = end
  forest: _Table = {(0, 0): beginning[:1]}
  for size, table in zip(reversed(sizes), reversed(tables)):
    for _ in range(rounds // size):
      forest = _joined(forest, table, k)
    rounds %= size
  return float(max(squared for _, squared in forest))


# PRIVACY: If a pattern of k rounds were left out, the sensitivity would be too
# small. Only patterns of more than k rounds are left out.
# Guard: families_test.test_sensitivity_is_safe.
def _joined(first: _Table, second: _Table, k: int) -> _Table:
  """Returns the table of two adjacent nodes.

  Args:
    first: table of the node with the earlier rounds.
    second: table of the node with the later rounds.
    k: largest number of rounds of one client.
  """
  ends = len(next(iter(second.values())))
  pairs = len(first) * len(second)
  if pairs > _QUICK_PAIRS or pairs * ends > _QUICK_TABLE:
    raise _TooLongError
  table: _Table = {}
  for (count, squared), middle in first.items():
    for (count_after, squared_after), end in second.items():
      if count + count_after > k:
        continue
      key = count + count_after, squared + squared_after
      value = end[middle]
      if key in table:
        value = np.minimum(value, table[key])
      table[key] = value
  return _undominated(table, ends - 1)


# PRIVACY: If a key were removed that no other key dominates, the heaviest
# pattern could be lost. Every waiting time of the two keys is compared.
# Guards:
# random_structures_test.test_random_patterns_never_exceed_the_sensitivity and
# families_test.test_tree_of_many_rounds_needs_no_matrix.
def _undominated(table: _Table, never: int) -> _Table:
  """Returns a table without impossible keys and dominated keys.

  A key is dominated if another key has no larger count, no smaller sum of
  squares and no longer waiting times.

  Args:
    table: table of a node.
    never: b, the array entry for a waiting time that is impossible.
  """
  remaining: _Table = {}
  for key, end in sorted(
    table.items(), key=lambda item: item[0][::-1], reverse=True
  ):
    if end.min() < never and not any(
      count <= key[0] and np.all(other <= end)
      for (count, _), other in remaining.items()
    ):
      remaining[key] = end
  return remaining


def _levels_squared(
  rounds: int, sizes: list[int], min_sep: int, k: int
) -> float:
  """Returns the square of the upper bound that `sensitivity` describes."""
  squared = 0
  for size in sizes:
    # PRIVACY: With size 4 and min_sep 3, a client can take part in the first
    # and in the last of 4 rounds. If size / min_sep were rounded down, the
    # sensitivity would be too small. This line rounds the quotient up.
    # Guard: families_test.test_sensitivity_is_safe_where_rounds_are_many.
    full = min(k, -(-size // min_sep))
    nodes, rest = divmod(min(k, full * (rounds // size)), full)
    squared += nodes * full**2 + rest**2
  return float(squared)


# PRIVACY: If a lag were left out, the sum of X would be too small. All lags
# below k b and within the tree are included.
# Guard: families_test.test_sensitivity_is_safe.
def _lags(
  rounds: int, sizes: list[int], min_sep: int, k: int
) -> Iterator[np.ndarray]:
  """Yields X[i, i + e b] as an array over i, for e = 0, 1, ..., k - 1.

  The arrays are [n] float64; entries for i + e b >= n are 0. Arrays of zeros at
  the end are left out.
  """
  for lag in range(0, min(k * min_sep, sizes[-1]), min_sep):
    common = np.zeros(rounds)
    for size in sizes:
      if size > lag:
        # Adds 1 for each i with a node above both i and i + lag.
        nodes = common[: rounds // size * size].reshape(-1, size)
        nodes[:, : size - lag] += 1
    yield common
