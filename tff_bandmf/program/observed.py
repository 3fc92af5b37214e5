"""What a ledger shows, counted from its cohorts alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Optional

import numpy as np

# Participations that are held in memory at a time: about 150 MB.
_AT_A_TIME = 2**22


@dataclasses.dataclass(frozen=True)
class Observed:
  """What the ledger shows.

  Attributes:
    rounds: rounds started.
    finished: rounds finished.
    burnt: rounds abandoned, also after an attempt that finished.
    clients: different clients that took part.
    min_cohort: fewest clients in a round; 0 without rounds.
    max_cohort: most clients in a round; 0 without rounds.
    min_sep: least r2 - r1 of two rounds of one client; None if no client took
      part twice.
    max_participations: most rounds of one client; 0 without rounds.
    last_round: highest round; -1 without rounds.
    last_client: highest client index; -1 without rounds or indices.
    z_stddev: least noise measured in a round; None if it was not recorded.
  """

  rounds: int
  finished: int
  burnt: int
  clients: int
  min_cohort: int
  max_cohort: int
  min_sep: Optional[int]
  max_participations: int
  last_round: int
  last_client: int
  z_stddev: Optional[float]


@dataclasses.dataclass(frozen=True)
class Patterns:
  """How often and how close together the clients of some cohorts took part.

  Attributes:
    clients: different clients.
    min_sep: as in `Observed`.
    max_participations: as in `Observed`.
  """

  clients: int
  min_sep: Optional[int]
  max_participations: int


def patterns(
    cohorts: Callable[[], Iterable[tuple[int, np.ndarray]]],
    participations: int,
    at_a_time: int = _AT_A_TIME,
) -> Patterns:
  """Returns the patterns of cohorts that together need not fit in memory.

  Identifiers are hashes, so a part of their range holds as large a part of the
  participations: the cohorts are gone through once for every part.

  Args:
    cohorts: gives (round, [m] int64 identifiers ascending), rounds ascending;
      the same at every call.
    participations: the sum of m.
    at_a_time: participations to hold in memory, about.
  """
  parts = -(-participations // at_a_time)
  edges = [-2**63 + part * 2**64 // max(parts, 1) for part in range(parts)]
  found = []
  for low, high in zip(edges, [*edges[1:], None]):
    rounds, identifiers = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for round_index, cohort in cohorts():
      start = np.searchsorted(cohort, low)
      stop = None if high is None else np.searchsorted(cohort, high)
      identifiers.append(cohort[start:stop].copy())
      rounds.append(np.full(len(identifiers[-1]), round_index))
    found.append(_patterns_of(
        np.concatenate(rounds), np.concatenate(identifiers)))
  gaps = [part.min_sep for part in found if part.min_sep is not None]
  return Patterns(
      sum(part.clients for part in found), min(gaps, default=None),
      max((part.max_participations for part in found), default=0))


def _patterns_of(rounds: np.ndarray, identifiers: np.ndarray) -> Patterns:
  """Returns the patterns of participations in the order of their rounds."""
  # Stable: the rounds of one client stay in order.
  order = np.argsort(identifiers, kind='stable')
  rounds, identifiers = rounds[order], identifiers[order]
  same = identifiers[1:] == identifiers[:-1]
  gaps = np.diff(rounds)[same]
  firsts = np.flatnonzero(np.concatenate([[True], ~same]))
  counts = np.diff(firsts, append=len(identifiers))
  if not len(identifiers):
    return Patterns(0, None, 0)
  return Patterns(
      len(firsts), int(gaps.min()) if len(gaps) else None, int(counts.max()))
