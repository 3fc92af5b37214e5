"""What a ledger shows, counted from its cohorts alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Optional

import numpy as np

from tff_bandmf.program import chain

# Participations that are held in memory at a time: about 150 MB.
_AT_A_TIME = 2**22


@dataclasses.dataclass(frozen=True)
class Observed:
  """What the ledger shows.

  Attributes:
    rounds: rounds started; each is finished, burnt (or both) or open.
    finished: rounds finished.
    burnt: rounds abandoned, also after an attempt that finished.
    open: rounds that were started and neither finished nor abandoned.
    failed: attempts that failed.
    clients: different clients that took part.
    min_cohort: fewest clients in a round; 0 without rounds.
    max_cohort: most clients in a round; 0 without rounds.
    min_sep: least r2 - r1 of two rounds of one client; None if no client took
      part twice.
    max_participations: most rounds of one client; 0 without rounds.
    last_round: highest round; -1 without rounds.
    last_client: highest client index; -1 without rounds or indices.
    z_stddev: least noise measured in a round; None if it was not recorded.
    cohort_sizes: clients of each round, rounds ascending.
    unmeasured: rounds that finished without a measurement of the noise.
    unchecked: rounds that finished and whose noise nobody tested where it was
      added.
    finished_twice: rounds that finished more than once and for which the ledger
      does not show that one result was released.
  """

  rounds: int
  finished: int
  burnt: int
  open: tuple[int, ...]
  failed: int
  clients: int
  min_cohort: int
  max_cohort: int
  min_sep: Optional[int]
  max_participations: int
  last_round: int
  last_client: int
  z_stddev: Optional[float]
  cohort_sizes: dict[int, int]
  unmeasured: tuple[int, ...]
  unchecked: tuple[int, ...]
  finished_twice: tuple[int, ...]


def observed(
  sizes: dict[int, int],
  attempts: dict[int, list[chain.Attempt]],
  found: Patterns,
  last_client: int,
) -> Observed:
  """Returns what the parts of a ledger show.

  Args:
    sizes: clients of each round.
    attempts: at each round.
    found: the patterns of its cohorts.
    last_client: highest client index; -1 without one.
  """
  finishes = {
    t: [attempt for attempt in tried if attempt.outcome == chain.FINISHED]
    for t, tried in attempts.items()
  }
  burnt = {
    t
    for t, tried in attempts.items()
    if any(attempt.outcome == chain.ABANDONED for attempt in tried)
  }
  every = [attempt for done in finishes.values() for attempt in done]

  def rounds(condition) -> tuple[int, ...]:
    return tuple(t for t, done in finishes.items() if condition(t, done))

  return Observed(
    rounds=len(sizes),
    finished=len(rounds(lambda _, done: done)),
    burnt=len(burnt),
    open=rounds(lambda t, done: not done and t not in burnt),
    failed=sum(
      attempt.outcome == chain.FAILED
      for tried in attempts.values()
      for attempt in tried
    ),
    clients=found.clients,
    min_cohort=min(sizes.values(), default=0),
    max_cohort=max(sizes.values(), default=0),
    min_sep=found.min_sep,
    max_participations=found.max_participations,
    last_round=max(sizes, default=-1),
    last_client=last_client,
    z_stddev=min(
      (attempt.z_stddev for attempt in every if attempt.z_stddev is not None),
      default=None,
    ),
    cohort_sizes=sizes,
    # PRIVACY: the noise of every release counts, not of one. Guard:
    # ledger_test.test_noise_that_was_checked_in_one_round_is_unchecked.
    unmeasured=rounds(
      lambda _, done: any(attempt.z_stddev is None for attempt in done)
    ),
    unchecked=rounds(
      lambda _, done: any(not attempt.noise_checked for attempt in done)
    ),
    finished_twice=rounds(
      lambda _, done: (
        len(done) > 1
        and (
          done[0].result is None
          or len({attempt.result for attempt in done}) > 1
        )
      )
    ),
  )


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
  edges = [-(2**63) + part * 2**64 // max(parts, 1) for part in range(parts)]
  found = []
  for low, high in zip(edges, [*edges[1:], None]):
    rounds, identifiers = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for round_index, cohort in cohorts():
      start = np.searchsorted(cohort, low)
      stop = None if high is None else np.searchsorted(cohort, high)
      identifiers.append(cohort[start:stop].copy())
      rounds.append(np.full(len(identifiers[-1]), round_index))
    found.append(
      _patterns_of(np.concatenate(rounds), np.concatenate(identifiers))
    )
  gaps = [part.min_sep for part in found if part.min_sep is not None]
  return Patterns(
    sum(part.clients for part in found),
    min(gaps, default=None),
    max((part.max_participations for part in found), default=0),
  )


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
    len(firsts), int(gaps.min()) if len(gaps) else None, int(counts.max())
  )
