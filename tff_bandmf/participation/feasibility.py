"""Decides by counting whether the cohorts of every round can be filled.

| symbol   | name here     | meaning                                       |
|----------|---------------|-----------------------------------------------|
| N        | `clients`     | clients in the population                     |
| m        | `cohort_size` | clients in each round                         |
| n        | `rounds`      | rounds of the run                             |
| t        |               | index of a round, from 0 to n - 1             |
| b        |               | least allowed difference of two rounds of a   |
|          |               | client: `Participation.separation`            |
| k        |               | largest allowed number of rounds of a client  |
| N_r      |               | number of clients with index = r (mod b)      |
| n_r      |               | number of rounds with index = r (mod b)       |

**Necessary**, except for fixed epochs: n m <= N k and min(b, n) m <= N. The
rounds have n m participations, and N clients may have at most N k
participations. No client is in two of min(b, n) consecutive rounds.

**Sufficient for min-sep.** Let q = min(t, b - 1). The last q cohorts before
round t have q m different clients; these must not take part in round t. In the
t - q rounds before these cohorts, at most (t - q) m / k other clients took part
k times. All remaining clients may take part, and round t needs m of them. So
every cohort can be filled, for all cohorts that were drawn before, if

    min(b, n) m + floor(max(n - b, 0) m / k) <= N

since q m and (t - q) m / k are largest in the last round, t = n - 1. If k =
ceil(n / b), the separation alone limits a client to k rounds, so no client is
excluded by k. Then the second term is not needed, and the condition is also
necessary.

**Budget.** A client that never took part may take part, so n m <= N is enough.
If n m > N, the sampler draws the cohorts of all rounds once, to find out
whether they can be filled.

**Fixed epochs.** A client with index = r (mod b) takes part only in rounds with
index = r (mod b). If k >= ceil(n / b), each of these N_r clients may take part
in each of these n_r rounds, so m <= N_r for every r with n_r > 0 is enough.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import attrs

from tff_bandmf.participation import schemas


@dataclasses.dataclass(frozen=True)
class Demand:
  """The cohorts that a run needs from a population.

  Attributes:
    clients: N, number of clients in the population, >= 1.
    cohort_size: m, number of clients in each round, >= 1.
    rounds: n, number of rounds of the run, >= 1.
    participation: the participation schema of the run.
  """

  clients: int
  cohort_size: int
  rounds: int
  participation: schemas.Participation

  @property
  def _schema(self) -> tuple[int, int]:
    """Returns b and k."""
    return (
      self.participation.separation(self.rounds),
      self.participation.participations(self.rounds),
    )

  def certainly_feasible(self) -> bool:
    """Returns whether the cohorts of all rounds can certainly be filled.

    True means that each round can be filled, whatever cohorts were drawn
    before. False means that counting does not show this.
    """
    if isinstance(self.participation, schemas.Budget):
      # If this inequality holds, each round has enough clients that never took
      # part, and one round never exceeds the budget of a client.
      return self.rounds * self.cohort_size <= self.clients
    b, k = self._schema
    if not self.participation.evenly_spaced:
      return _uniform(self.clients, self.cohort_size, self.rounds, b, k)
    # With fixed epochs and k < ceil(n / b), a client that skips an epoch after
    # its first round is not allowed to take part again. The drawn cohorts
    # decide how many clients this excludes, so a count cannot answer.
    if k < -(-self.rounds // b):
      return False
    return all(
      _uniform(members, self.cohort_size, class_rounds, 1, k)
      for members, class_rounds in _classes(self.clients, self.rounds, b)
    )

  def certainly_infeasible(self) -> bool:
    """Returns whether the cohorts of all rounds certainly cannot be filled."""
    b, k = self._schema
    m, n = self.cohort_size, self.rounds
    if self.participation.evenly_spaced:
      return any(
        class_rounds * m > members * min(k, class_rounds)
        for members, class_rounds in _classes(self.clients, n, b)
      )
    return min(b, n) * m > self.clients or n * m > self.clients * k

  def largest(self) -> dict[str, int]:
    """Returns {name: feasible value} for min_sep, cohort_size and rounds.

    Each value is the largest one, up to the present value, for which
    `certainly_feasible` is true if the other two keep their present values. A
    name without such a value is missing.
    """
    schema = self.participation

    def fits(**changes: Any) -> bool:
      return dataclasses.replace(self, **changes).certainly_feasible()

    largest = {
      'cohort_size': most(self.cohort_size, lambda m: fits(cohort_size=m)),
      'rounds': most(self.rounds, lambda n: fits(rounds=n)),
    }
    if schema.min_sep is not None and not isinstance(schema, schemas.Budget):
      largest['min_sep'] = most(
        schema.min_sep,
        lambda b: fits(participation=attrs.evolve(schema, **{'min_sep': b})),
      )
    return {name: value for name, value in sorted(largest.items()) if value}


def _uniform(clients: int, m: int, rounds: int, b: int, k: int) -> bool:
  needed = min(b, rounds) * m
  if k < -(-rounds // b):
    needed += max(rounds - b, 0) * m // k
  return needed <= clients


def _classes(clients: int, rounds: int, b: int) -> set[tuple[int, int]]:
  """Returns the different pairs (N_r, n_r) with n_r > 0."""
  return {
    (-(-(clients - r) // b), -(-(rounds - r) // b))
    # As r grows, N_r falls by 1 only at r = N mod b, and n_r falls by 1 only at
    # r = n mod b.
    for r in {0, clients % b, rounds % b, min(b, rounds) - 1}
    if r < min(b, rounds)
  }


def most(limit: int, fits: Callable[..., bool]) -> int:
  """Returns the largest value up to `limit` that fits; 0 if no value fits.

  The search assumes that every value below a fitting value fits.
  """
  low, high = 0, limit
  while low < high:
    middle = (low + high + 1) // 2
    if fits(middle):
      low = middle
    else:
      high = middle - 1
  return low
