"""Draws random cohorts that follow a participation schema.

| symbol | name here     | meaning                                       |
|--------|---------------|-----------------------------------------------|
| N      | `clients`     | number of clients in the population           |
| m      | `cohort_size` | number of clients in each round               |
| t      | `round_index` | index of the round                            |
| b      |               | `min_sep` of the participation schema         |

A cohort is drawn uniformly from the available clients that the rule of
`admission` admits to the round. For fixed epochs, only clients i with i = t
(mod b) are drawn, so that the difference of any two rounds of a client is a
multiple of b.

If the cohort of some round cannot be filled, the constructor of `CohortSampler`
raises. If counting (see `feasibility`) does not decide whether every cohort can
be filled, the constructor draws the cohorts of all rounds once to find out.
"""

from __future__ import annotations

import dataclasses
from typing import Optional, Protocol

import numpy as np

from tff_bandmf import _checks, errors
from tff_bandmf import participation as participation_lib
from tff_bandmf.cohorts import admission
from tff_bandmf.cohorts import history as history_lib
from tff_bandmf.participation import feasibility

# If a round may draw from at most this many clients, `sample` checks them all.
_LARGE = 2**17
_MAX_BATCH = 2**18
# Largest number of draws as a share of the clients from which a round may draw.
# With more draws, it would be faster to check every client.
_DRAWN_SHARE = 1 / 32


class CohortError(ValueError):
  """The error if too few clients may take part in a round."""


class Availability(Protocol):
  """A rule that says which clients of a population can be reached in a round.

  Both methods take the index of a round and an int64 array of client indices,
  and return a bool array of the same length.
  """

  def available(self, round_index: int, clients: np.ndarray) -> np.ndarray:
    """Returns which clients can be selected for a round."""

  def drops_out(self, round_index: int, cohort: np.ndarray) -> np.ndarray:
    """Returns which clients of a recorded cohort send no update."""


def _error(message: str) -> CohortError:
  return CohortError(errors.invalid(message))


@dataclasses.dataclass(frozen=True)
class CohortSampler:
  """Draws random cohorts of clients that `participation` admits.

  The guarantee does not depend on the randomness of these cohorts, since the
  accounting for an enforced schema claims no amplification. So the cohorts need
  not be secret, and a seed instead of a secret key is enough.

  Attributes:
    clients: number of clients in the population, >= 1.
    cohort_size: exact number of clients in each round, >= 1.
    rounds: number of rounds of the run, >= 1.
    participation: schema to enforce.
    seed: seed by which cohorts are drawn, integer >= 0.
    availability: rule that says which clients are available in a round; None if
      all clients are available in every round.
  """

  clients: int
  cohort_size: int
  rounds: int
  participation: participation_lib.Participation
  seed: int
  availability: Optional[Availability] = None

  def __post_init__(self):
    for name in ('clients', 'cohort_size', 'rounds'):
      _checks.count(name, getattr(self, name), 'see the configuration')
    _checks.count('seed', self.seed, 'give an integer', least=0)
    most = history_lib.MAX_ROUNDS
    _checks.at_most('rounds', self.rounds, most, 'MAX_ROUNDS', 'use fewer')
    participation_lib.check(self.participation)
    choice, rule = self.clients, f'clients={self.clients}'
    if self.participation.evenly_spaced:
      # A round draws from the clients of one residue class modulo b. The size
      # of the smallest class is `choice`.
      choice = self.clients // self.participation.separation(self.rounds)
      rule += f' // min_sep={self.participation.min_sep}'
    if self.cohort_size > choice:
      raise _error(
        f'cohort_size={self.cohort_size}: must not exceed the {rule}; use '
        'fewer clients a round'
      )
    if self._demand.certainly_infeasible():
      raise self._not_filled('')
    if self.availability is not None or not self._demand.certainly_feasible():
      self._fill()

  @property
  def _demand(self) -> feasibility.Demand:
    return feasibility.Demand(
      self.clients, self.cohort_size, self.rounds, self.participation
    )

  def history(self) -> history_lib.AnyHistory:
    """Returns the history of the population before the first round."""
    return history_lib.empty(self.clients, self.participation)

  def _fill(self) -> None:
    """Draws the cohorts of all rounds once; raises CohortError if one fails."""
    history = self.history()
    for round_index in range(self.rounds):
      try:
        history.record(round_index, self.sample(round_index, history))
      except CohortError:
        where = f' in round {round_index}, with this seed,'
        raise self._not_filled(where) from None

  def _not_filled(self, where: str) -> CohortError:
    largest = self._demand.largest().items()
    fitting = ', or '.join(f'{name} {value}' for name, value in largest)
    fitting = fitting or 'nothing'
    if self.availability is not None:
      fitting += ', and less if clients are not available'
    min_sep = self.participation.min_sep
    apart = '' if min_sep is None else f'min_sep {min_sep} and '
    return _error(
      f'cohort_size={self.cohort_size}: cannot be filled{where} from '
      f'{self.clients} clients in {self.rounds} rounds with {apart}'
      f'{self.participation.participations(self.rounds)} participations a '
      f'client; possible, each change alone: {fitting}'
    )

  def eligible(
    self, round_index: int, history: history_lib.AnyHistory
  ) -> np.ndarray:
    """Returns the int64 indices of clients that may take part, ascending.

    Args:
      round_index: index of the round, in [0, rounds).
      history: earlier rounds of the whole population.

    Raises:
      ValueError: the round is after the last round, or `history` has another
        number of clients than the population.
    """
    self._check(round_index, history)
    candidates = self._candidates(round_index)
    step = _MAX_BATCH * candidates.step
    starts = range(candidates.start, self.clients, step)
    parts = [slice(start, start + step, candidates.step) for start in starts]
    allowed = [
      self._allowed(round_index, history.for_clients(part)) for part in parts
    ]
    places = np.flatnonzero(np.concatenate(allowed))
    return places * candidates.step + candidates.start

  def sample(
    self, round_index: int, history: history_lib.AnyHistory
  ) -> np.ndarray:
    """Returns the cohort of a round.

    The cohort is a function of the seed, the round and the history.

    Args:
      round_index: index of the round, in [0, rounds).
      history: earlier rounds of the whole population.

    Returns:
      [cohort_size] int64 client indices, ascending.

    Raises:
      CohortError: fewer clients may take part than the cohort needs.
      ValueError: the round is after the last round, or `history` has another
        number of clients than the population.
    """
    # PRIVACY: The accounting does not cover rounds after the last round. A
    # cohort for such a round is refused.
    # Guard: cohorts_test.test_round_out_of_range_is_refused.
    self._check(round_index, history)
    seed = np.random.SeedSequence([self.seed, round_index])
    generator = np.random.Generator(np.random.Philox(seed))
    if len(self._candidates(round_index)) > _LARGE:
      cohort = self._draw(generator, round_index, history)
      if cohort is not None:
        return np.sort(cohort)
    eligible = self.eligible(round_index, history)
    available = eligible[self._available(round_index, eligible)]
    if len(available) < self.cohort_size:
      raise _error(
        f'cohort_size={self.cohort_size}: only {len(eligible)} of '
        f'{self.clients} clients may take part in round {round_index}, and '
        f'{len(available)} of them are available; use smaller cohorts, fewer '
        'rounds, a smaller min_sep or more participations'
      )
    return np.sort(generator.choice(available, self.cohort_size, replace=False))

  def _check(self, round_index: int, history: history_lib.AnyHistory) -> None:
    admission.check_round(round_index, self.rounds)
    if len(history.count) != self.clients:
      raise errors.value_error(
        f'history={len(history.count)} clients: must have {self.clients}; '
        'resume with the data that the run started with'
      )

  # PRIVACY: Under fixed epochs a client may take part only in rounds of its own
  # class. Clients of other classes would break the schema, so they are not
  # drawn.
  # Guard: cohorts_test.test_fixed_epochs_keep_each_client_to_its_class.
  def _candidates(self, round_index: int) -> range:
    """Returns the indices of clients from which a round may draw."""
    if not self.participation.evenly_spaced:
      return range(self.clients)
    min_sep = self.participation.separation(self.rounds)
    return range(round_index % min_sep, self.clients, min_sep)

  def _allowed(
    self, round_index: int, history: history_lib.History
  ) -> np.ndarray:
    """Returns which clients may take part in a round, given their history."""
    too_soon, too_often = admission.violations(
      self.participation, self.rounds, round_index, history
    )
    return ~np.logical_or(too_soon, too_often, out=too_soon)

  def _available(self, round_index: int, clients: np.ndarray) -> np.ndarray:
    available, rule = np.ones(len(clients), bool), self.availability
    if rule is not None:
      for start in range(0, len(clients), _MAX_BATCH):
        part = slice(start, start + _MAX_BATCH)
        available[part] = rule.available(round_index, clients[part])
    return available

  def _draw(
    self,
    generator: np.random.Generator,
    round_index: int,
    history: history_lib.AnyHistory,
  ) -> Optional[np.ndarray]:
    """Draws clients at random until the cohort is full; returns the cohort.

    Clients that may not take part, and repeated clients, are dropped. The
    cohort is uniform, because every draw is uniform over all candidates. If
    many clients may take part, few draws are enough. The result is None if the
    allowed number of draws did not fill the cohort.
    """
    candidates = self._candidates(round_index)
    fitting = np.empty(0, np.int64)
    left = int(_DRAWN_SHARE * len(candidates))
    batch = min(2 * self.cohort_size, left)
    while left > 0:
      drawn = generator.integers(len(candidates), size=batch)
      drawn = drawn * candidates.step + candidates.start
      drawn = drawn[self._allowed(round_index, history.for_clients(drawn))]
      drawn = drawn[self._available(round_index, drawn)]
      fitting = np.concatenate([fitting, drawn])
      first = np.sort(np.unique(fitting, return_index=True)[1])
      fitting = fitting[first]
      if len(fitting) >= self.cohort_size:
        return fitting[: self.cohort_size]
      left -= batch
      batch = min(2 * batch, _MAX_BATCH, left)
    return None
