"""Who took part when, for a whole population in memory."""

from __future__ import annotations

import dataclasses

import numpy as np

from tff_bandmf import errors

# Twice as far below 0 does not overflow, and no round is as high.
_NEVER = -(2**30)
MAX_ROUNDS = 2**30


@dataclasses.dataclass(frozen=True, eq=False)
class History:
  """Who took part in the rounds before one round; 6 bytes a client.

  Attributes:
    last_round: [clients] int32, the last round of each; far below 0 if none.
    count: [clients] uint16, rounds that each took part in.
  """

  last_round: np.ndarray
  count: np.ndarray

  @classmethod
  def empty(cls, clients: int) -> History:
    """Returns the history of `clients` clients that never took part."""
    return cls(np.full(clients, _NEVER, np.int32), np.zeros(clients, np.uint16))

  def of(self, clients: np.ndarray) -> History:
    """Returns the history of some clients, in their order.

    Args:
      clients: [m] integers, indices; one may be there more than once.

    Raises:
      ValueError: an index is outside the population.
    """
    if len(clients) and not (
      0 <= clients.min() and clients.max() < len(self.count)
    ):
      raise ValueError(
        errors.invalid(
          'client',
          f'{clients.min()}..{clients.max()}',
          f'is not among the {len(self.count)} clients',
          'use the population that the run started with',
        )
      )
    return History(self.last_round[clients], self.count[clients])

  def record(self, round_index: int, cohort: np.ndarray) -> None:
    """Adds a round, in place; no client may be twice in the cohort."""
    count = self.count[cohort]
    # PRIVACY: a count that wraps to 0 lets a client in again. Guard:
    # cohorts_test.test_count_that_would_wrap_is_refused.
    if len(count) and count.max() == np.iinfo(count.dtype).max:
      raise ValueError(
        errors.invalid(
          'participations',
          int(count.max()),
          'a client cannot have more',
          'use a larger min_sep or fewer rounds',
        )
      )
    self.last_round[cohort] = round_index
    self.count[cohort] = count + 1
