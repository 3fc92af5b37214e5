"""Sensitivity of tree aggregation.

| symbol | meaning                                                           |
|--------|-------------------------------------------------------------------|
| n      | number of rounds, the leaves of the tree                          |
| C      | C[node, i] = 1 if leaf i is below the node, else 0                |
| X      | C^T C; X[i, j] is the number of nodes above both leaf i and j     |
| b, k   | min_sep, and the largest number of participations of one client   |
| pi     | pattern: the rounds in which one client takes part                |

  sens^2 = max_pi sum_nodes (number of rounds of pi below the node)^2

The tree has only complete nodes: a node with fewer leaves below it than its
level prescribes, because the rounds end, is left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Optional

import numpy as np

from tff_bandmf import participation as participation_lib
from tff_bandmf.sensitivity import patterns, result
from tff_bandmf.strategies import tree

# Largest number of entries of X that is computed; it takes some seconds.
_QUICK_LAGS = 10**9
# Limits of the join of two tables, each of which takes about a second: entries
# of the joined table before equal keys are merged, and pairs of keys.
_QUICK_TABLE = 10**8
_QUICK_PAIRS = 20_000

# Maps (number of rounds of a client, sum of squared counts) to the least end
# for each beginning. `_heaviest` defines beginnings and ends.
_Table = dict[tuple[int, int], np.ndarray]


def sensitivity(
  strategy: tree.OnlineTree, participation: participation_lib.Participation
) -> result.Sensitivity:
  """Returns the sensitivity of a tree whose noisy nodes are released.

  The result is exact unless n and k are large. Then it is an upper bound. A
  client has at most q = min(k, ceil(size / b)) rounds below a node of `size`
  leaves, and at most k rounds below all nodes of a level together. A level
  contributes most if as many nodes as possible have q rounds and one more node
  has the rest: q^2 for each of these nodes, plus the square of the rest.
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

  The waiting time of a client before a round is the number of rounds, 0 to
  b - 1, until the client may take part. The beginning of a node is the waiting
  time before the first round below the node. The end of a node is the waiting
  time after the last round below the node. The key of a table is a number of
  rounds of the client below a node and a sum of squared counts, over the node
  and the nodes below it. The value of the key has the least possible end for
  each beginning. The number b stands for "no pattern has this key".
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
  """Returns the table of two adjacent nodes, or None if it takes too long."""
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
  """Returns a table without the keys that cannot give the largest sum.

  No pattern has the key, or another key has no more rounds, no smaller sum and
  no later end for any beginning.
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
  """Returns an upper bound of sens^2: the sum of a bound for each level."""
  squared = 0
  for size in sizes:
    # PRIVACY: size / min_sep rounded down would not count all rounds that a
    # client can have below a node (of 4 rounds, two are 3 apart), and the
    # sensitivity would be too small. The quotient is rounded up.
    # Guard: families_test.test_sensitivity_is_safe_where_rounds_are_many.
    full = min(k, -(-size // min_sep))
    nodes, rest = divmod(min(k, full * (rounds // size)), full)
    squared += nodes * full**2 + rest**2
  return float(squared)


def _lags(
  rounds: int, sizes: list[int], min_sep: int, k: int
) -> Iterator[np.ndarray]:
  """Yields X[i, i + e b], [n], for e = 0, 1, ... until all entries are 0."""
  for lag in range(0, min(k * min_sep, sizes[-1]), min_sep):
    common = np.zeros(rounds)
    for size in sizes:
      if size > lag:
        # Counts the node above round i if round i + lag is below it, too.
        nodes = common[: rounds // size * size].reshape(-1, size)
        nodes[:, : size - lag] += 1
    yield common
