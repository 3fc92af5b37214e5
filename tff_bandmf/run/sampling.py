"""The cohorts that a run draws from a key of its own, and a second look.

PRIVACY: the guarantee of sampled cohorts holds for secret draws. Their key is
fresh from the operating system, lies in `private/sampling.key`, serves nothing
else, and is gone when the run has ended. Guards:
run_sampling_test.test_key_of_the_draws_is_fresh_and_goes_with_the_run and
test_seed_has_no_part_in_sampled_cohorts.
"""

from __future__ import annotations

import numpy as np

from tff_bandmf import accounting, errors
from tff_bandmf import cohorts as cohorts_lib
from tff_bandmf import ledger as ledger_lib
from tff_bandmf.noise import generator
from tff_bandmf.noise import key as key_lib


class Drawing:
  """Draws the cohorts of a run by secret chance; see `kinds.samplers`."""

  def __init__(
    self, cohorts: accounting.Sampled, key: key_lib.Key, ids: np.ndarray
  ):
    """Takes who is drawn, and from which ids, in the order of a population.

    Raises:
      ValueError: the plan is for another population.
    """
    # PRIVACY: of fewer clients each is drawn as often, but sizes are others.
    # Guard: run_sampling_test.test_other_population_is_refused.
    if cohorts.population != len(ids):
      raise errors.value_error(
        'clients',
        len(ids),
        f'are not the population={cohorts.population} of the plan, from '
        'which cohorts are drawn',
        'give those clients, or make another plan',
      )
    self._cohorts, self._key, self._ids = cohorts, key, ids
    self._sampler = self._fresh()

  def _fresh(self) -> accounting.Sampler:
    return self._cohorts.sampler(generator.Generator(self._key).words)

  def sample(
    self, round_index: int, history: cohorts_lib.History
  ) -> np.ndarray:
    """Returns the cohort of a round, [.] int64 indices, ascending."""
    del history
    return self._sampler.cohort(round_index)

  def check_last(self, ledger: ledger_lib.Ledger, rounds: int) -> None:
    """Raises ValueError if the last of these rounds was another cohort's."""
    last = rounds - 1
    if rounds and not ledger.same_cohort(
      last, self._ids[self._sampler.cohort(last)]
    ):
      raise errors.value_error(
        'clients',
        len(self._ids),
        f'are not those from whom the cohort of round {last} was drawn',
        'resume with the clients that the run started with',
      )

  def as_drawn(self, ledger: ledger_lib.Ledger, rounds: int) -> bool:
    """Returns whether all cohorts are what the key gives, drawn again."""
    again = self._fresh()
    # PRIVACY: a cohort that chance did not draw has no amplified guarantee.
    # Guard: run_sampling_test.test_cohort_that_differs_voids_the_claim.
    return all(
      ledger.same_cohort(t, self._ids[again.cohort(t)]) for t in range(rounds)
    )
