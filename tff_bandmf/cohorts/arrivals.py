"""Counts of the clients that a schema admits from a log of check-ins.

A log of check-ins has the clients that came in each round. In each round, the
clients come in a random order, and the cohort takes every client that the
schema admits, until the cohort is full.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from tff_bandmf import participation as participation_lib
from tff_bandmf.cohorts import admission
from tff_bandmf.cohorts import history as history_lib


@dataclasses.dataclass(frozen=True)
class AdmissionCounts:
  """Counts of the clients that a schema admits from a log of check-ins.

  Attributes:
    clients: number of different clients that took part.
    participations: number of pairs (client, round) such that the client took
      part in the round.
    rounds: number of planned rounds.
    short: number of rounds whose cohort could not be filled.
    turned_away: number of check-ins that the schema did not admit.
  """

  clients: int
  participations: int
  rounds: int
  short: int
  turned_away: int


def admission_counts(
  rounds: np.ndarray,
  clients: np.ndarray,
  participation: participation_lib.Participation,
  *,
  planned_rounds: int,
  cohort_size: int,
  seed: int = 0,
) -> AdmissionCounts:
  """Returns counts of the clients that a schema admits from check-ins.

  Args:
    rounds: [number of check-ins] integers in [0, planned_rounds), the round of
      each check-in.
    clients: [number of check-ins] integers, the client of each check-in.
    participation: the schema. A `Budget` must have `costs`.
    planned_rounds: number of rounds.
    cohort_size: largest number of clients of a round.
    seed: seed of the random order of the clients of each round, integer >= 0.
  """
  names, index = np.unique(clients, return_inverse=True)
  past = history_lib.empty(len(names), participation)
  order = np.argsort(rounds, kind='stable')
  rounds, index = rounds[order], index[order]
  generator = np.random.default_rng(seed)
  participations = short = turned_away = 0
  edges = np.searchsorted(rounds, np.arange(planned_rounds + 1))
  for t in range(planned_rounds):
    arrivals = generator.permutation(np.unique(index[edges[t] : edges[t + 1]]))
    admitted = admission.admit(
      arrivals, t, participation, planned_rounds, past.for_clients(arrivals)
    ).admitted
    cohort = arrivals[admitted][:cohort_size]
    past.record(t, cohort)
    participations += len(cohort)
    short += len(cohort) < cohort_size
    turned_away += len(arrivals) - int(admitted.sum())
  took_part = int(np.count_nonzero(past.count))
  return AdmissionCounts(
    took_part, participations, planned_rounds, short, turned_away
  )
