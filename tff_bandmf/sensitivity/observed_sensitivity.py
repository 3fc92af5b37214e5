"""Sensitivity for the rounds of the clients in one participation log.

A client with the rounds pi in the log has, for X = C^T C,

  sens^2 = max_{|u_i| <= 1} || sum_{i in pi} C[:, i] u_i^T ||^2
         <= sum_{i, j in pi} |X_ij|,

with equality if none of these X_ij is negative. The contributions u_i of the
client are vectors. The largest sum of any client bounds the squared sensitivity
of the log, without a participation schema. The bound holds for this log alone,
and assumes that participation did not depend on private data.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Optional

import numpy as np

from tff_bandmf import errors, strategies
from tff_bandmf import participation as participation_lib
from tff_bandmf.sensitivity import gram as gram_lib
from tff_bandmf.sensitivity import result
from tff_bandmf.sensitivity import sensitivity as sensitivity_lib
from tff_bandmf.strategies import per_query, recursion

# Largest number of participations in memory at one time, about 150 MB.
_AT_A_TIME = 2**22
# Largest number of rounds for which all of X is in memory, 128 MB.
_WHOLE_GRAM = 4096
# Largest number of pairs of rounds whose entries of X are read at one time.
_PAIRS = 2**22

# Function from index arrays i <= j of one shape to X[i, j].
_Gram = Callable[[np.ndarray, np.ndarray], np.ndarray]


@dataclasses.dataclass(frozen=True)
class Observed:
  """Statistics of the rounds in a log.

  Attributes:
    clients: number of clients.
    participations: number of pairs (client, round).
    min_sep: least r2 - r1 of two rounds of one client; None if no client took
      part twice.
    max_participations: largest number of rounds of one client; 0 if the log has
      no clients.
    histogram: maps each number of rounds to the number of clients with so many
      rounds; keys ascend.
    sensitivity: sensitivity of the log for the C of the noise, rounded up; None
      if no strategy was given.
    pattern: rounds of the client that gives `sensitivity`, ascending; empty if
      no strategy was given.
    strategy_sha256: digest of C; None if no strategy was given.
    cost: largest cost of a client's rounds, for a `Budget`; None if no costs or
      no strategy was given.
  """

  clients: int
  participations: int
  min_sep: Optional[int]
  max_participations: int
  histogram: dict[int, int]
  sensitivity: Optional[result.Sensitivity] = None
  pattern: tuple[int, ...] = ()
  strategy_sha256: Optional[str] = None
  cost: Optional[int] = None

  def satisfies(
    self, schema: participation_lib.Participation, rounds: int
  ) -> bool:
    """Returns whether the log satisfies a schema.

    For a schema with evenly spaced rounds, this function checks the number and
    the least distance of a client's rounds, not that all distances are equal.

    Args:
      schema: participation schema.
      rounds: number of rounds of the run.
    """
    if self.min_sep is not None and self.min_sep < schema.separation(rounds):
      return False
    if isinstance(schema, participation_lib.Budget):
      # PRIVACY: If the costs of a log were not computed, a client may have
      # exceeded the budget unnoticed, and a claim for the budget could be
      # false. The result is False for such a log.
      # Guard: budget_test.test_log_keeps_a_budget_by_its_costs.
      return self.cost is not None and self.cost <= schema.known_costs.limit
    return self.max_participations <= schema.participations(rounds)


def observed(
  cohorts: Callable[[], Iterable[tuple[int, np.ndarray]]],
  participations: int,
  strategy: Optional[strategies.Strategy] = None,
  at_a_time: int = _AT_A_TIME,
  costs: Optional[participation_lib.Costs] = None,
) -> Observed:
  """Returns the statistics of cohorts that may be too large for memory.

  The range of identifiers is divided into equal parts, and the cohorts are read
  once for each part. Identifiers are hashes, so all parts have about the same
  number of participations.

  Args:
    cohorts: function whose every call returns the same cohorts as pairs (round,
      [m] int64 identifiers). Rounds ascend, and so do identifiers in a cohort.
    participations: number of pairs (client, round), the sum of all m.
    strategy: C; None if no sensitivity is needed.
    at_a_time: approximate number of participations in memory at one time.
    costs: costs of patterns under this C, if the schema is a `Budget`, else
      None.

  Raises:
    ValueError: a round is not a round of C, a client is twice in a round, or
      the sensitivity overflows.
  """
  count = -(-participations // at_a_time)
  edges = [-(2**63) + part * 2**64 // count for part in range(count)]
  parts = (_part(cohorts(), *ends) for ends in zip(edges, [*edges[1:], None]))
  return of_clients(parts, strategy, costs)


def of_clients(
  parts: Iterable[tuple[np.ndarray, np.ndarray]],
  strategy: Optional[strategies.Strategy] = None,
  costs: Optional[participation_lib.Costs] = None,
) -> Observed:
  """Returns the statistics of participations that are given in parts.

  Args:
    parts: pairs ([m] rounds, ascending, [m] identifiers); all participations of
      one client are in one part.
    strategy: C; None if no sensitivity is needed.
    costs: costs of patterns under this C, if the schema is a `Budget`, else
      None.

  Raises:
    ValueError: a round is past the last round of C, a client is twice in a
      round, or the sensitivity overflows.
  """
  gram = None if strategy is None or costs is not None else _gram(strategy)
  gaps: list[int] = []
  histogram: collections.Counter[int] = collections.Counter()
  heaviest = _Heaviest()
  for part in parts:
    rounds, starts = _by_client(*part)
    gaps += _least_gap(rounds, starts)
    counts, clients = np.unique(np.diff(starts), return_counts=True)
    histogram.update(dict(zip(counts.tolist(), clients.tolist())))
    if strategy is None or not len(rounds):
      continue
    if not (0 <= rounds.min() and rounds.max() < strategy.rounds):
      raise errors.value_error(
        f'round={rounds.max()}: is not among the {strategy.rounds} rounds of '
        'the strategy; give the strategy that the run used'
      )
    for rows in _equally_many(rounds, starts):
      candidate = _heaviest(gram, costs, rows)
      # PRIVACY: If the client with the largest sum were lost, the sensitivity
      # of the log would be too small. The maximum includes the clients of all
      # parts.
      # Guard: budget_test.test_log_keeps_a_budget_by_its_costs.
      heaviest = max(heaviest, candidate, key=lambda h: h.squared)
  most = max(histogram, default=0)
  return Observed(
    sum(histogram.values()),
    sum(count * clients for count, clients in histogram.items()),
    min(gaps, default=None),
    most,
    dict(sorted(histogram.items())),
    None if strategy is None else heaviest.sensitivity(strategy, most, costs),
    heaviest.pattern,
    None if strategy is None else strategy.digest(),
    # PRIVACY: Without the table of costs of this C, a cost would be wrong. The
    # result has a cost only if the table is given.
    # Guard: budget_test.test_log_keeps_a_budget_by_its_costs.
    None if strategy is None or costs is None else int(heaviest.squared),
  )


def _part(
  cohorts: Iterable[tuple[int, np.ndarray]], low: int, high: Optional[int]
) -> tuple[np.ndarray, np.ndarray]:
  """Returns the participations of clients with identifiers in [low, high)."""
  rounds, identifiers = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
  for round_index, cohort in cohorts:
    start = np.searchsorted(cohort, low)
    stop = None if high is None else np.searchsorted(cohort, high)
    identifiers.append(cohort[start:stop].copy())
    rounds.append(np.full(len(identifiers[-1]), round_index))
  return np.concatenate(rounds), np.concatenate(identifiers)


def _by_client(
  rounds: np.ndarray, identifiers: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """Sorts participations by client.

  Returns:
    [m] integers, the rounds client by client, ascending for each client; and
    [clients + 1] integers, the index of each client's first round in that
    array, followed by m.
  """
  # A stable sort keeps the rounds of one client in order.
  order = np.argsort(identifiers, kind='stable')
  rounds, identifiers = rounds[order], identifiers[order]
  changes = identifiers[1:] != identifiers[:-1]
  firsts = np.flatnonzero(np.concatenate([[True], changes]))
  return rounds, np.append(firsts[: len(rounds)], len(rounds))


def _least_gap(rounds: np.ndarray, starts: np.ndarray) -> list[int]:
  """Returns the least distance of two rounds of a client, in a list.

  The list is empty if no client has two rounds.

  Args:
    rounds: [m] integers, the rounds of all clients, client by client.
    starts: [clients + 1] integers, index of each client's first round, then m.

  Raises:
    ValueError: a round has a client twice.
  """
  between = starts[1:-1] - 1
  gaps = np.delete(np.diff(rounds), between)
  if np.any(gaps < 1):
    twice = np.delete(rounds[1:], between)[gaps < 1]
    raise errors.value_error(
      f'round={twice[0]}: a client is twice in a round; give the client once'
    )
  return [int(gaps.min())] if len(gaps) else []


@dataclasses.dataclass(frozen=True)
class _Heaviest:
  """The client whose rounds have the largest sum of |X|, or the largest cost.

  Attributes:
    squared: the sum of |X[i, j]| over the client's rounds i and j, or the cost
      of its rounds.
    signed: whether one of these X[i, j] is negative.
    pattern: the rounds of the client, ascending.
  """

  squared: float = 0.0
  signed: bool = False
  pattern: tuple[int, ...] = ()

  def sensitivity(
    self,
    strategy: strategies.Strategy,
    most: int,
    costs: Optional[participation_lib.Costs],
  ) -> result.Sensitivity:
    squared = per_query.check_finite(self.squared)
    if costs is not None:
      squared = squared * costs.unit * (1 + 8 * recursion.UNIT)
      proved = result.bound(squared, 'cost of the rounds of a client')
    # PRIVACY: If X_ij is negative, opposite contributions of a client in rounds
    # i and j increase the squared sensitivity, and a sum of X would be too
    # small. `squared` is a sum of |X|, which is exact if no X_ij is negative.
    # Guard:
    # observed_sensitivity_test.test_signs_of_the_gram_matrix_do_not_help.
    elif self.signed:
      proved = result.bound(squared, 'sum of |X| over the rounds of a client')
    else:
      proved = result.exact(squared, 'sum of X over the rounds of a client')
    # PRIVACY: C and `squared` have rounding errors, so the root of `squared`
    # may be smaller than the sensitivity. A bound of the errors increases it.
    # Guard: observed_sensitivity_test.test_observed_is_rounded_up.
    more = 1 + sensitivity_lib.rounding(strategy, most)
    return dataclasses.replace(proved, value=proved.value * more)


def _gram(strategy: strategies.Strategy) -> _Gram:
  """Returns the function that reads entries of X.

  For at most `_WHOLE_GRAM` rounds, this call computes all entries.
  """
  rounds = strategy.rounds
  if rounds <= _WHOLE_GRAM:
    upper = np.triu_indices(rounds)
    whole = np.zeros((rounds, rounds))
    whole[upper] = strategy.gram_entries(*upper)
    return lambda first, second: whole[first, second]

  def gram(first, second):
    keys = first.ravel() * rounds + second.ravel()
    pairs, where = np.unique(keys, return_inverse=True)
    entries = strategy.gram_entries(*np.divmod(pairs, rounds))
    return entries[where].reshape(first.shape)

  return gram


def _equally_many(
  rounds: np.ndarray, starts: np.ndarray
) -> Iterator[np.ndarray]:
  """Yields the rounds of clients with k rounds each, [clients, k] integers.

  Args:
    rounds: [m] integers, the rounds of all clients, client by client.
    starts: [clients + 1] integers, index of each client's first round, then m.
  """
  counts = np.diff(starts)
  for count in np.unique(counts):
    firsts = starts[:-1][counts == count]
    # The rounds of one client always fit in memory.
    step = max(1, _PAIRS // int(count))
    for low in range(0, len(firsts), step):
      yield rounds[firsts[low : low + step, None] + np.arange(count)]


def _heaviest(
  gram: Optional[_Gram],
  costs: Optional[participation_lib.Costs],
  rounds: np.ndarray,
) -> _Heaviest:
  """Returns the client whose rounds have the largest cost or sum of |X|.

  Args:
    gram: result of `_gram`; None if there are costs.
    costs: costs of patterns; None for sums of |X|.
    rounds: [clients, k] integers, the k rounds of each client, ascending.
  """
  total, least = np.zeros((2, len(rounds)))
  if costs is not None:
    total = costs.total(rounds[:, ::-1])
  elif gram is not None:
    for j in range(rounds.shape[1]):
      later = rounds[:, j:]
      # PRIVACY: X[i, j] and X[j, i] are both terms of the sum. With only one of
      # them the sensitivity would be too small. Each entry with j > i is
      # doubled.
      # Guard: observed_sensitivity_test.test_observed_is_brute_force.
      entries = gram(np.broadcast_to(later[:, :1], later.shape), later)
      total += 2 * np.abs(entries[:, 1:]).sum(1) + entries[:, 0]
      least = np.minimum(least, entries.min(1))
  worst = int(np.argmax(total))
  signed = bool(least[worst] < -gram_lib.ROUNDING * total[worst])
  return _Heaviest(total[worst].item(), signed, tuple(rounds[worst].tolist()))
