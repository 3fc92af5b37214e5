"""Cohorts that a run samples with a secret key, and a check of the ledger.

PRIVACY: Amplification by sampling does not hold against a person who can
predict or learn the sampled cohorts. The sampling key comes fresh from the
operating system, is stored in `private/sampling.key`, and is used for nothing
else. When the run has ended, the key is destroyed unless `keep_key` is set.
Guards:
run_sampling_test.test_key_of_the_draws_is_fresh_and_goes_with_the_run and
test_seed_has_no_part_in_sampled_cohorts.
"""

from __future__ import annotations

import pathlib
from typing import Union

import numpy as np

from tff_bandmf import _files, accounting, errors
from tff_bandmf import cohorts as cohorts_lib
from tff_bandmf import ledger as ledger_lib
from tff_bandmf.noise import generator
from tff_bandmf.noise import key as key_lib


class SampledCohorts:
  """Samples the cohorts of a run with a secret key.

  The module `accounting.kinds.samplers` has the sampling algorithms.
  """

  def __init__(
    self, cohorts: accounting.Sampled, key: key_lib.Key, ids: np.ndarray
  ):
    """Initializes the sampler.

    Args:
      cohorts: the plan's rule for sampling, with its parameters, such as
        `CyclicPoisson`.
      key: sampling key.
      ids: [N] IDs of the clients in the population, ascending.

    Raises:
      ValueError: the plan is for a population of another size.
    """
    # PRIVACY: If the population has another size than in the plan, the sampled
    # cohorts do not have the distribution that the accounting assumes. A
    # population of another size is refused.
    # Guard: run_sampling_test.test_other_population_is_refused.
    if cohorts.population != len(ids):
      raise errors.value_error(
        f'clients={len(ids)}: are not the population={cohorts.population} of '
        'the plan, from which cohorts are drawn; give those clients, or make '
        'another plan'
      )
    self._cohorts, self._key, self._ids = cohorts, key, ids
    self._sampler = self._new_sampler()

  def _new_sampler(self) -> accounting.Sampler:
    return self._cohorts.sampler(generator.Generator(self._key).words)

  def sample(
    self,
    round_index: int,
    history: Union[cohorts_lib.History, cohorts_lib.Patterns],
  ) -> np.ndarray:
    """Returns the cohort of a round: int64 indices in `ids`, ascending.

    Args:
      round_index: t, >= 0.
      history: earlier rounds of each client, which do not change the cohort;
        samplers of enforced cohorts have the same argument.
    """
    del history
    return self._sampler.cohort(round_index)

  def check_population(self, path: pathlib.Path, first_start: bool) -> None:
    """Raises ValueError unless the clients are those of the first start.

    Args:
      path: file with a fingerprint of all clients, made with the sampling key.
      first_start: whether no round has started yet; the file is then written.
    """
    ids = self._ids.dtype.str.encode() + self._ids.tobytes()
    fingerprint = f'{self._key.identify(ids):016x}'
    if first_start:
      _files.write_json(path, fingerprint, mode=0o600)
    # PRIVACY: Cohorts are sampled positions in the list of clients. A position
    # that was in no cohort yet is sampled with a larger probability in the
    # rounds that are left: in balls in bins, with certainty in the last bin. A
    # client that got this position after a restart would take part more
    # probably than the accounting assumes, and delta would be too small. A list
    # that differs in any client from the list of the first start is refused.
    # Guard: run_sampling_test.test_client_in_the_place_of_another_is_refused.
    elif not path.exists() or _files.read_json(path) != fingerprint:
      raise errors.value_error(
        f'clients={len(self._ids)}: are not the clients from whom the run '
        'draws its cohorts; resume with the clients that the run started with. '
        'Name clients that left, too: an update that does not come is zero'
      )

  def check_last(self, ledger: ledger_lib.Ledger, rounds: int) -> None:
    """Raises ValueError if a cohort in the ledger is not the sampled cohort.

    Args:
      ledger: ledger of the run.
      rounds: number of rounds that are over, >= 0. The cohort of the last of
        these rounds is sampled again and compared.
    """
    last = rounds - 1
    if rounds and not ledger.same_cohort(
      last, self._ids[self._sampler.cohort(last)]
    ):
      raise errors.value_error(
        f'round={last}: has another cohort in the ledger than the sampling key '
        'gives; resume with the files and the code that the run started with'
      )

  def as_drawn(self, ledger: ledger_lib.Ledger, rounds: int) -> bool:
    """Returns whether the ledger has exactly the cohorts that the key gives."""
    sampler = self._new_sampler()
    # PRIVACY: The amplified guarantee does not hold if a cohort was chosen
    # instead of sampled. This method samples all cohorts again and compares
    # them with the ledger.
    # Guard: run_sampling_test.test_cohort_that_differs_voids_the_claim.
    return all(
      ledger.same_cohort(t, self._ids[sampler.cohort(t)]) for t in range(rounds)
    )
