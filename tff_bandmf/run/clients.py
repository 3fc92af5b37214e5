"""The population of a run, and the sampler that draws the run's cohorts.

The sampler is a `cohorts.CohortSampler` or a `SampledCohorts`, with the method

  sample(round_index, history) -> [m] int64 indices in the population, ascending

where m is the number of clients in the cohort, and `history` has the rounds
below `round_index` in which each client took part. N is the number of clients
in the population. The cohort is a function of the plan, the population, the
sampling key or the seed, and the arguments of `sample`. So a program that is
started again draws the same cohorts.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Iterable, Sequence
from concurrent import futures
from typing import Any, Callable, Optional, Protocol, SupportsIndex, Union

import numpy as np

from tff_bandmf import _checks, _files, cohorts, errors, participation
from tff_bandmf.cohorts import names as names_lib
from tff_bandmf.noise import generator
from tff_bandmf.noise import key as key_lib
from tff_bandmf.run import journal as journal_lib
from tff_bandmf.run import rounds as rounds_lib
from tff_bandmf.run_files import run_json

# Number of clients whose rounds `_cost_of` has in memory at a time.
_AT_A_TIME = 2**18


class HasClientIds(Protocol):
  """An object that lists its clients, such as TFF's `ClientData`."""

  @property
  def client_ids(self) -> Sequence[Union[int, str]]:
    """IDs of the clients, all different."""


# A number of clients, a list of indices or IDs, or an object with `client_ids`.
Clients = Union[int, Sequence[Union[int, str]], np.ndarray, HasClientIds]


class CohortSource(Protocol):
  """A sampler of a run's cohorts."""

  def sample(self, round_index: int, history: cohorts.AnyHistory) -> np.ndarray:
    """Returns the cohort of a round: [m] int64 indices, ascending."""


def population(clients: Clients) -> np.ndarray:
  """Returns the IDs of the population, [N] int64 or strings, ascending.

  Args:
    clients: number N of clients; or a list of different integers or strings; or
      an object whose `client_ids` is such a list.

  Raises:
    TypeError: `clients` has another type, or has both integers and strings.
    ValueError: an ID occurs twice.

  >>> population(3).tolist()
  [0, 1, 2]
  """
  ids: Any = getattr(clients, 'client_ids', clients)
  if _checks.is_number(ids, SupportsIndex):
    ids = range(operator.index(ids))
  if not isinstance(ids, range) and np.ndim(ids) != 1:
    raise errors.type_error(
      f'clients={type(clients).__name__}: must be a number of clients, or a '
      'list of indices or strings; give the number, the list, or a ClientData'
    )
  # PRIVACY: NumPy would convert a mixture of integers and strings to strings,
  # so 1 and '1' would be one client. `names` refuses a mixture.
  # Guards: run_rounds_test.test_names_keep_their_kind_in_any_container and
  # run_test.test_clients_in_another_order_are_drawn_as_before.
  names = np.asarray(names_lib.names(ids))
  # PRIVACY: samplers draw positions in the list of IDs. If the order of the IDs
  # differed after a restart, a replayed round could get a different cohort, and
  # thus a second sum with the same noise. This line sorts the list.
  # Guard: run_test.test_clients_in_another_order_are_drawn_as_before.
  ordered = np.unique(names)
  if len(ordered) < len(names):
    raise errors.value_error(
      f'clients={len(names)} ids: has only {len(ordered)} different IDs; name '
      'each client once'
    )
  return ordered


class SampledCohorts:
  """Samples the cohorts of a run with a secret key.

  PRIVACY: Amplification by sampling does not hold against a person who knows
  the sampled cohorts, and a person with the sampling key can compute all
  cohorts. The operating system generates this key for one run. The key is used
  for nothing else, and only the owner of the folder can read it, in
  `private/sampling.key`. When the run has ended, the key is destroyed unless
  `keep_key` is set.
  Guards:
  run_sampling_test.test_key_of_the_draws_is_fresh_and_goes_with_the_run,
  test_seed_has_no_part_in_sampled_cohorts, test_other_population_is_refused,
  test_client_in_the_place_of_another_is_refused and
  test_cohort_that_differs_voids_the_claim.

  The module `accounting.kinds.samplers` has the sampling algorithms.
  """

  def __init__(
    self, journal: journal_lib.Journal, key: key_lib.Key, ids: np.ndarray
  ):
    """Initializes the sampler.

    The first start of the run writes a fingerprint of all clients, made with
    the key. A later start compares the fingerprint with its own clients.

    Args:
      journal: journal of a run whose plan has a rule for sampling, such as
        `CyclicPoisson`.
      key: sampling key.
      ids: [N] IDs of the clients in the population, ascending.

    Raises:
      ValueError: N is not the size of the plan's population; the run began with
        other clients; or the last cohort in the ledger was not sampled.
    """
    rule = journal.plan.sampled
    assert rule is not None
    # PRIVACY: If the population has another size than in the plan, the sampled
    # cohorts do not have the distribution that the accounting assumes, and the
    # claim could be false. A population of another size is refused.
    # Guard: run_sampling_test.test_other_population_is_refused.
    if rule.population != len(ids):
      raise errors.value_error(
        f'clients={len(ids)}: are not the population={rule.population} of the '
        'plan; give those clients, or make another plan'
      )
    self._ledger, self._ids = journal.ledger, ids
    self._sampler = rule.sampler(generator.Generator(key).words)
    path = journal.directory / run_json.POPULATION
    fingerprint = key.identify(ids.dtype.str.encode() + ids.tobytes())
    if not self._ledger.attempts(0):
      _files.write_json(path, f'{fingerprint:016x}', mode=0o600)
    # PRIVACY: Cohorts are sampled positions in the list of clients. A position
    # that no cohort had yet is in a later cohort with a larger probability. In
    # balls in bins, the last bin certainly has this position. A client that got
    # the position after a restart would take part with a larger probability
    # than the accounting assumes, and delta would be too small. A list that
    # differs from the list of the first start is refused.
    # Guard: run_sampling_test.test_client_in_the_place_of_another_is_refused.
    elif not path.exists() or _files.read_json(path) != f'{fingerprint:016x}':
      raise errors.value_error(
        f'clients={len(ids)}: are not the clients of the first start; name all '
        'of those, even if they left: an update that does not come is zero'
      )
    last = journal.next - 1
    if last >= 0 and not self.as_drawn([last]):
      raise errors.value_error(
        f'round={last}: has another cohort in the ledger than the sampling key '
        'gives; resume with the files and the code that the run started with'
      )

  def sample(self, round_index: int, history: cohorts.AnyHistory) -> np.ndarray:
    """Returns the cohort of a round: int64 indices in `ids`, ascending.

    Args:
      round_index: t, >= 0.
      history: not used; `cohorts.CohortSampler` needs this argument.
    """
    del history
    return self._sampler.cohort(round_index)

  def as_drawn(self, rounds: Iterable[int]) -> bool:
    """Returns whether the ledger has the cohorts that the key gives."""
    # PRIVACY: The amplified guarantee does not hold if a cohort was chosen
    # instead of sampled. This method samples the cohorts again and compares
    # them with the ledger. If one differs, the report claims no amplification.
    # Guard: run_sampling_test.test_cohort_that_differs_voids_the_claim.
    return all(
      self._ledger.same_cohort(t, self._ids[self._sampler.cohort(t)])
      for t in rounds
    )


class Cohorts:
  """Draws the cohorts of a run, and prepares the data of each cohort.

  **Formal guarantee.** Assumptions: the ledger has round t - 1 when the cohort
  of round t is drawn, and only this run writes to the ledger. Statement: the
  history from which the cohort of round t is drawn has exactly the ledger's
  cohorts of all rounds below t. Reason: a ledger starts no round below its last
  round and changes no cohort, so the cohorts of the rounds below t are final.
  """

  def __init__(
    self,
    journal: journal_lib.Journal,
    source: CohortSource,
    ids: np.ndarray,
    rounds: int,
    prepare: Optional[Callable[[int, np.ndarray], futures.Future]],
  ):
    """Initializes the object without drawing a cohort.

    Args:
      journal: journal of the run.
      source: sampler of the cohorts.
      ids: [N] IDs of the population, ascending.
      rounds: number of rounds of the run.
      prepare: function of (index of a round, IDs of its cohort) that begins to
        prepare the data of the cohort. The function is called one round ahead.
        If None, no data is prepared.
    """
    self._journal, self._source, self._ids = journal, source, ids
    self._rounds, self._prepare = rounds, prepare
    # The rounds below `_next` in which each client took part.
    self._history = cohorts.empty_history(0, journal.plan.schema)
    self._next = -1
    # Total cost of the rounds of all clients, see `participation.Costs`; 0 if
    # the schema is not a `Budget`.
    self._cost = 0
    # The last round that was drawn; None if this round has started. `_indices`
    # has the indices of its clients in the population.
    self._round: Optional[rounds_lib.Round] = None
    self._indices = np.empty(0, np.int64)

  def start(self) -> rounds_lib.Round:
    """Starts the next round of the journal with its cohort, and returns it.

    If there is a function `prepare`, this method also draws the cohort of the
    following round.

    Raises:
      ValueError: a client of an earlier round is missing from the population,
        see `Journal.history`; or too few clients may take part to fill the
        cohort.
    """
    entry = self._draw(self._journal.next)
    self._journal.start(entry, self._rounds)
    self._cost -= self._cost_of(self._indices)
    # PRIVACY: A client of a burnt round may have been in a sum. The round
    # counts in the history as soon as it starts.
    # Guard: run_rounds_test.test_burnt_rounds_are_remembered.
    self._history.record(entry.index, self._indices)
    self._cost += self._cost_of(self._indices)
    self._next, self._round = entry.index + 1, None
    if self._prepare is not None and self._next < self._rounds:
      # If no cohort can be drawn, the next `start` raises the error.
      with contextlib.suppress(cohorts.CohortError):
        self._draw(self._next)
    return entry

  def _draw(self, t: int) -> rounds_lib.Round:
    """Returns round t with its cohort and its data."""
    # PRIVACY: If a round used the cohort of another round, the ledger would
    # have clients that did not take part. Each round draws its own cohort.
    # Guard: run_rounds_test.test_rounds_of_every_way_are_remembered.
    if self._round is not None and self._round.index == t:
      return self._round
    # PRIVACY: the history in memory may lack the rounds of earlier processes,
    # and rounds whose clients checked in (`Run.round`), since `start` adds only
    # the cohorts that this object drew. The clients of these rounds could be
    # drawn again earlier than the schema allows. If round t does not follow the
    # last round in memory, the history is read from the ledger.
    # Guards: run_rounds_test.test_burnt_rounds_are_remembered and
    # test_rounds_of_every_way_are_remembered.
    if t != self._next:
      self._history = self._journal.history(self._ids, t)
      self._next = t
      self._cost = self._cost_of(np.arange(len(self._ids)))
    self._indices = self._source.sample(t, self._history)
    ids = self._ids[self._indices]
    data = None if self._prepare is None else self._prepare(t, ids).result
    self._round = rounds_lib.Round(t, ids, self._journal, data=data)
    return self._round

  @property
  def budget_left(self) -> Optional[float]:
    """The share of all clients' budgets that is left; None without a `Budget`.

    The share is computed without noise, so only the operator may see it.
    """
    schema = self._journal.plan.schema
    if not isinstance(schema, participation.Budget):
      return None
    return 1 - self._cost / (schema.known_costs.limit * len(self._ids))

  def _cost_of(self, indices: np.ndarray) -> int:
    """Returns the total cost of the clients' rounds; 0 without a `Budget`.

    Args:
      indices: [m] indices of the clients in the population.
    """
    schema, total = self._journal.plan.schema, 0
    if not isinstance(schema, participation.Budget):
      return 0
    for start in range(0, len(indices), _AT_A_TIME):
      history = self._history.for_clients(indices[start : start + _AT_A_TIME])
      assert history.rounds is not None
      total += int(schema.known_costs.total(history.rounds).sum())
    return total
