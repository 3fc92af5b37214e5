"""Sensitivity of tree aggregation.

A contribution of norm 1 in round i changes every node above leaf i by a vector
of norm 1. So, with a maximum over the patterns pi of a client's rounds,

  sens^2 = max_pi sum_nodes (number of rounds of pi below the node)^2,

and the Gram matrix has X[i, j] >= 0, the number of nodes above both i and j.
Only complete nodes exist: all rounds below a node are less than n.

| symbol | meaning                                                        |
|--------|----------------------------------------------------------------|
| n      | number of rounds                                               |
| b, k   | `min_sep`, and the largest number of rounds of one client      |
| size   | number of rounds below a node, the same for a level of the tree |
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Optional

import numpy as np

from tff_bandmf import participation as participation_lib
from tff_bandmf.sensitivity import patterns, result
from tff_bandmf.strategies import tree

# Largest number of entries of X that are computed, in some seconds.
_QUICK_LAGS = 10**9
# Largest numbers of entries and of pairs of keys for which two tables are
# joined, in about a second.
_QUICK_TABLE = 10**8
_QUICK_PAIRS = 20_000

# A table of `_heaviest`. It maps (count, sum of squared counts) to an array of
# integers: the least waiting time at the end, for each waiting time at the
# start.
_Table = dict[tuple[int, int], np.ndarray]


def sensitivity(
  strategy: tree.OnlineTree, participation: participation_lib.Participation
) -> result.Sensitivity:
  """Returns the sensitivity of a tree whose noisy nodes are released.

  The result is exact unless n and k are large. If they are, it is an upper
  bound: at most q = min(k, ceil(size / b)) rounds of a client are below a node
  of a level, and at most k rounds are below all nodes of the level. So the sum
  of squares over a level is at most q^2 for each node with q rounds, plus the
  square of the number of remaining rounds.
  """
  rounds, sizes = strategy.rounds, strategy.sizes
  k = participation.participations(rounds)
  if k == 1:
    return result.exact(
      float(len(sizes)), 'levels of the tree (one participation)'
    )
  min_sep = participation.separation(rounds)
  fixed = participation.evenly_spaced
  if not fixed:
    heaviest = _heaviest(rounds, sizes, min_sep, k)
    if heaviest is not None:
      return result.exact(
        heaviest, 'heaviest pattern, from the leaves of the tree up'
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
  """Returns a bound for releases of decoded sums of noisy nodes.

  The sums are computed from the noisy nodes, so the sensitivity of the nodes is
  an upper bound.
  """
  nodes = sensitivity(strategy, participation)
  return result.Sensitivity(
    nodes.value,
    result.UPPER_BOUND,
    f'{nodes.method} for the nodes that the release is made from: '
    f'{nodes.reason}',
  )


def _heaviest(
  rounds: int, sizes: list[int], min_sep: int, k: int
) -> Optional[float]:
  """Returns the largest sum of squared counts, or None if it takes too long.

  The count of a node is the number of a client's rounds below it. The waiting
  time at a round is the number of rounds, 0 to b - 1, before the client may
  take part again. A table is for one node. Its keys are pairs: the count of the
  node, and the sum of squared counts of this node and all nodes below it. The
  value of a key is an array: for each waiting time at the start of the node,
  the least waiting time at its end, or b if the key is impossible.
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
      joined = _joined(children, tables[-1], k)
      if joined is None:
        return None
      children = joined
    tables.append(
      {
        (count, squared + count**2): end
        for (count, squared), end in children.items()
      }
    )
  forest: _Table = {(0, 0): beginning[:1]}
  for size, table in zip(reversed(sizes), reversed(tables)):
    for _ in range(rounds // size):
      joined = _joined(forest, table, k)
      if joined is None:
        return None
      forest = joined
    rounds %= size
  return float(max(squared for _, squared in forest))


def _joined(first: _Table, second: _Table, k: int) -> Optional[_Table]:
  """Returns the table of two adjacent nodes, or None if it takes too long.

  Args:
    first: table of the node with the earlier rounds.
    second: table of the node with the later rounds.
    k: largest number of rounds of one client.
  """
  ends = len(next(iter(second.values())))
  pairs = len(first) * len(second)
  if pairs > _QUICK_PAIRS or pairs * ends > _QUICK_TABLE:
    return None
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


def _undominated(table: _Table, never: int) -> _Table:
  """Returns a table without impossible keys and dominated keys.

  A key is dominated if another key has no larger count, no smaller sum of
  squares and no longer waiting times.

  Args:
    table: table of a node.
    never: value of impossible waiting times.
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
  """Returns the upper bound in `sensitivity` of the squared sensitivity."""
  squared = 0
  for size in sizes:
    # PRIVACY: With the floor of size / min_sep the sensitivity would be too
    # small: 4 successive rounds have two rounds that are 3 apart, and not one.
    # The quotient is rounded up.
    # Guard: families_test.test_sensitivity_is_safe_where_rounds_are_many.
    full = min(k, -(-size // min_sep))
    nodes, rest = divmod(min(k, full * (rounds // size)), full)
    squared += nodes * full**2 + rest**2
  return float(squared)


def _lags(
  rounds: int, sizes: list[int], min_sep: int, k: int
) -> Iterator[np.ndarray]:
  """Yields the arrays X[i, i + e b] for e = 0, 1, ..., until X is 0."""
  for lag in range(0, min(k * min_sep, sizes[-1]), min_sep):
    common = np.zeros(rounds)
    for size in sizes:
      if size > lag:
        # Adds 1 for each i with a node above both i and i + lag.
        nodes = common[: rounds // size * size].reshape(-1, size)
        nodes[:, : size - lag] += 1
    yield common
