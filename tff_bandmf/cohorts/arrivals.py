"""Admission of clients that come by themselves, under a rule.

A log of check-ins says which clients came in which round. Every client that a
rule lets in is taken, in a random order, until the cohort is full.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from tff_bandmf import participation as participation_lib
from tff_bandmf.cohorts import admission
from tff_bandmf.cohorts import history as history_lib


@dataclasses.dataclass(frozen=True)
class Taken:
  """Counts of the clients that a rule took from a log of check-ins.

  Attributes:
    clients: number of different clients that took part.
    participations: number of pairs (client, round) that took part.
    rounds: number of rounds of the log.
    short: number of rounds whose cohort could not be filled.
    turned_away: number of check-ins that the rule did not let in.
  """

  clients: int
  participations: int
  rounds: int
  short: int
  turned_away: int

  def to_dict(self) -> dict[str, Any]:
    """Returns the counts as a JSON object."""
    return dataclasses.asdict(self)


def taken(
  rounds: np.ndarray,
  clients: np.ndarray,
  participation: participation_lib.Participation,
  *,
  planned_rounds: int,
  cohort_size: int,
  seed: int = 0,
) -> Taken:
  """Returns counts of the clients that a rule takes from check-ins.

  Args:
    rounds: [m] integers in [0, planned_rounds), the round of each check-in.
    clients: [m] integers, the client of each check-in.
    participation: the rule; a budget must have its costs.
    planned_rounds: n, number of rounds.
    cohort_size: largest number of clients of a round.
    seed: seed of the order in which the clients of a round are taken, >= 0.
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
      arrivals, t, participation, planned_rounds, past.of(arrivals)
    ).admitted
    cohort = arrivals[admitted][:cohort_size]
    past.record(t, cohort)
    participations += len(cohort)
    short += len(cohort) < cohort_size
    turned_away += len(arrivals) - int(admitted.sum())
  return Taken(
    int(np.count_nonzero(past.count)),
    participations,
    planned_rounds,
    short,
    turned_away,
  )
