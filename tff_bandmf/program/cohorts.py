"""Cohorts that cannot break the participation schema."""

from __future__ import annotations

import dataclasses

import numpy as np

from tff_bandmf import errors
from tff_bandmf import participation as participation_lib

# A last round that separates from every round.
_NEVER = np.iinfo(np.int64).min // 2


class CohortError(ValueError):
  """There are not enough clients that may take part."""


@dataclasses.dataclass(frozen=True, eq=False)
class History:
  """Who took part in the rounds before one round.

  Attributes:
    last_round: [clients] int64, the last round of each; far below 0 if none.
    count: [clients] int64, rounds that each took part in.
  """

  last_round: np.ndarray
  count: np.ndarray

  @classmethod
  def empty(cls, clients: int) -> History:
    """Returns the history of `clients` clients that never took part."""
    return cls(np.full(clients, _NEVER, np.int64), np.zeros(clients, np.int64))

  def record(self, round_index: int, cohort: np.ndarray) -> None:
    """Adds a round, in place."""
    self.last_round[cohort] = round_index
    self.count[cohort] += 1


@dataclasses.dataclass(frozen=True)
class CohortSampler:
  """Uniform cohorts among the clients that `participation` lets in.

  Sampling is no part of the guarantee: the accounting is unamplified, so the
  draws need not be secret and a seed is enough.

  Attributes:
    clients: population size.
    cohort_size: clients a round, exactly.
    rounds: n; a schema bounds participations by it.
    participation: schema to enforce, `Single` or `MinSep`.
    seed: of the draws.
  """

  clients: int
  cohort_size: int
  rounds: int
  participation: participation_lib.Participation
  seed: int

  def __post_init__(self):
    for name in ('clients', 'cohort_size', 'rounds'):
      errors.check_count(name, getattr(self, name), 'see the configuration')
    if not isinstance(
        self.participation,
        (participation_lib.Single, participation_lib.MinSep)):
      raise TypeError(
          errors.invalid(
              'participation', self.participation,
              'cannot be held by uniform cohorts', 'use min-sep or single'))
    if self.cohort_size > self.clients:
      raise CohortError(
          errors.invalid(
              'cohort_size', self.cohort_size,
              f'must not exceed the clients={self.clients}',
              'use fewer clients a round'))

  def eligible(self, round_index: int, history: History) -> np.ndarray:
    """Returns the indices of the clients that may take part, [m] int64."""
    k = self.participation.participations(self.rounds)
    allowed = history.count < k
    if self.participation.min_sep is not None:
      # PRIVACY: r2 - r1 >= b. Guard: cohorts_test.test_schema_holds.
      allowed &= (
          round_index - history.last_round >= self.participation.min_sep)
    return np.flatnonzero(allowed)

  def sample(self, round_index: int, history: History) -> np.ndarray:
    """Returns the cohort of a round, a function of (seed, round, history).

    Args:
      round_index: the round, below `rounds`.
      history: of the rounds before it.

    Returns:
      [cohort_size] int64 client indices, ascending.

    Raises:
      CohortError: fewer clients may take part than the cohort needs.
      ValueError: the round is past the last.
    """
    if not 0 <= round_index < self.rounds:
      raise ValueError(
          errors.invalid(
              'round_index', round_index, f'must be in [0, {self.rounds})',
              'the run is over'))
    if len(history.count) != self.clients:
      raise ValueError(
          errors.invalid(
              'history', f'{len(history.count)} clients',
              f'must be of the clients={self.clients}',
              'resume with the data that the run started with'))
    eligible = self.eligible(round_index, history)
    if len(eligible) < self.cohort_size:
      raise CohortError(
          errors.invalid(
              'cohort_size', self.cohort_size,
              f'only {len(eligible)} of {self.clients} clients may take part '
              f'in round {round_index}',
              'use smaller cohorts, fewer rounds, a smaller min_sep or more '
              'participations'))
    generator = np.random.Generator(
        np.random.Philox(np.random.SeedSequence([self.seed, round_index])))
    return np.sort(
        generator.choice(eligible, self.cohort_size, replace=False))
