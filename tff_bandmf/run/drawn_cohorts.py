"""Cohorts that a run samples with a secret key, and comparisons with them.

PRIVACY: Amplification by sampling does not hold against a person who knows the
sampled cohorts, and a person with the sampling key can compute all cohorts. The
operating system generates this key for one run. The key is used for nothing
else, and only the owner of the folder can read it, in `private/sampling.key`.
When the run has ended, the key is destroyed unless `keep_key` is set.
Guards:
run_sampling_test.test_key_of_the_draws_is_fresh_and_goes_with_the_run and
test_seed_has_no_part_in_sampled_cohorts.
"""

from __future__ import annotations

import pathlib

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
      ValueError: N is not the size of the plan's population.
    """
    # PRIVACY: If the population has another size than in the plan, the sampled
    # cohorts do not have the distribution that the accounting assumes, and the
    # claim could be false. A population of another size is refused.
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
    self, round_index: int, history: cohorts_lib.AnyHistory
  ) -> np.ndarray:
    """Returns the cohort of a round: int64 indices in `ids`, ascending.

    Args:
      round_index: t, >= 0.
      history: earlier rounds of each client. They are not used here;
        `cohorts.CohortSampler` needs this argument.
    """
    del history
    return self._sampler.cohort(round_index)

  def check_population(self, path: pathlib.Path, first_start: bool) -> None:
    """Raises ValueError unless the run began with the same clients.

    Args:
      path: file with a fingerprint of all clients, made with the sampling key.
      first_start: whether no round has started yet. If True, the file is
        written, and nothing is compared.
    """
    ids = self._ids.dtype.str.encode() + self._ids.tobytes()
    fingerprint = f'{self._key.identify(ids):016x}'
    if first_start:
      _files.write_json(path, fingerprint, mode=0o600)
    # PRIVACY: Cohorts are sampled positions in the list of clients. If a
    # position was in no cohort yet, the remaining rounds can have it with a
    # larger probability: in balls in bins, the last bin certainly has it. A
    # client that got this position after a restart would take part with a
    # larger probability than the accounting assumes, and delta would be too
    # small. A list that differs from the list of the first start is refused.
    # Guard: run_sampling_test.test_client_in_the_place_of_another_is_refused.
    elif not path.exists() or _files.read_json(path) != fingerprint:
      raise errors.value_error(
        f'clients={len(self._ids)}: are not the clients from whom the run '
        'draws its cohorts; resume with the clients that the run started with. '
        'Name clients that left, too: an update that does not come is zero'
      )

  def check_last(self, ledger: ledger_lib.Ledger, rounds: int) -> None:
    """Raises ValueError if the last cohort in the ledger was not sampled.

    Args:
      ledger: ledger of the run.
      rounds: number of rounds that are over, >= 0. The cohort of the last of
        these rounds is sampled again and compared with the ledger.
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
    # them with the ledger. If one differs, the report claims no amplification.
    # Guard: run_sampling_test.test_cohort_that_differs_voids_the_claim.
    return all(
      ledger.same_cohort(t, self._ids[sampler.cohort(t)]) for t in range(rounds)
    )
