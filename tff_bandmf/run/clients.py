"""Who a run draws its cohorts from, and what draws them.

THE SEAM. `drawing` returns the one object that a run asks for cohorts:

  sample(round_index, history) -> [m] int64 indices in the population, ascending

`history` holds who took part before (`cohorts.History`; the run records what
comes back in it and in the ledger). The cohort is a function of the plan, the
key, the seed and these two, so that a program that is begun again draws what
it drew. Another rule of sampling plugs in there and nowhere else: neither the
loop nor the ledger knows which rule it is.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
from collections.abc import Sequence
from typing import Any, Callable, Optional, Protocol, Union

import numpy as np

from tff_bandmf import cohorts, errors
from tff_bandmf.ledger import identifiers
from tff_bandmf.noise import key as key_lib
from tff_bandmf.plan import plan as plan_lib
from tff_bandmf.run import journal as journal_lib
from tff_bandmf.run import sampling

# A count, ids, or what has `client_ids`, such as TFF's `ClientData`.
Clients = Union[int, Sequence[Union[int, str]], Any]


@dataclasses.dataclass(frozen=True)
class _Drawn:
  """A cohort that was drawn.

  Attributes:
    round: t.
    indices: [m] int64, ascending, in the population.
    cohort: [m] ids of these.
    data: gives the data of the cohort.
  """

  round: int
  indices: np.ndarray
  cohort: np.ndarray
  data: Callable[[], Any]


class Drawing(Protocol):
  """What draws the cohorts of a run."""

  def sample(self, round_index: int, history: cohorts.History) -> np.ndarray:
    """Returns the cohort of a round, [m] int64 indices, ascending."""


def population(clients: Clients) -> np.ndarray:
  """Returns the ids of clients, ascending: int64, or strings.

  Args:
    clients: how many, or who: different indices or strings, or an object whose
      `client_ids` are those.

  Raises:
    TypeError: it is none of these, or has both indices and strings.
    ValueError: an id is there twice.

  >>> population(3).tolist()
  [0, 1, 2]
  """
  ids: Any = getattr(clients, 'client_ids', clients)
  if isinstance(ids, int) and not isinstance(ids, bool):
    ids = range(ids)
  if not isinstance(ids, range) and np.ndim(ids) != 1:
    raise errors.type_error(
      'clients',
      type(clients).__name__,
      'must be a count, or indices or strings in a list',
      'give how many there are, their ids, or a ClientData',
    )
  found = np.asarray(identifiers.names(ids))
  # PRIVACY: whatever their order is now, clients are drawn as before. Guard:
  # run_test.test_clients_in_another_order_are_drawn_as_before.
  ordered = np.unique(found)
  if len(ordered) < len(found):
    raise errors.value_error(
      'clients',
      f'{len(found)} ids',
      f'has only {len(ordered)} different ones',
      'name a client once',
    )
  return ordered


def drawing(
  plan: plan_lib.Plan, key: Optional[key_lib.Key], ids: np.ndarray, seed: int
) -> Drawing:
  """Returns what draws the cohorts of a plan.

  Args:
    plan: of the run.
    key: of draws that nobody may guess; None where a schema is enforced.
    ids: of the population, in order.
    seed: of the draws on which no guarantee rests.

  Raises:
    ValueError: the cohorts of a round cannot be filled.
  """
  if key is not None and plan.sampled is not None:
    return sampling.Drawing(plan.sampled, key, ids)
  plan.check_population(len(ids))
  schema = plan.cohorts.schema
  # PRIVACY: rounds of a client that are not a multiple of min_sep apart void a
  # claim for fixed epochs. Residue classes of clients hold them there. Guard:
  # run_rounds_test.test_fixed_epochs_are_run_and_reported.
  sampler = cohorts.CohortSampler
  return sampler(
    len(ids),
    plan.clients_per_round,
    plan.rounds,
    schema,
    seed,
    sampler.MULTIPLES if schema.evenly_spaced else sampler.UNIFORM,
  )


class Cohorts:
  """The cohorts of a run and their data, drawn from the rounds before each.

  **Formal guarantee.** The cohort of round t is drawn from the cohorts that the
  ledger has of all rounds below t, and from no others. Assumptions: the ledger
  has round t - 1 when round t is drawn, and no process writes to it beside the
  run. A ledger starts no round below its last one and changes no cohort, so
  these rounds are final.
  """

  def __init__(
    self,
    journal: journal_lib.Journal,
    drawing: Drawing,
    ids: np.ndarray,
    rounds: int,
    prepare: Optional[Callable[[int, np.ndarray], Any]],
  ):
    """Draws nothing yet.

    Args:
      journal: of the run.
      drawing: draws from the population.
      ids: [N] of the population, ascending.
      rounds: of the run.
      prepare: gives the data of (round, cohort), in another thread, one round
        ahead.
    """
    self._journal, self._drawing, self._ids = journal, drawing, ids
    self._rounds, self._prepare = rounds, prepare
    self._thread = concurrent.futures.ThreadPoolExecutor(1)
    self._past = cohorts.History.empty(0)
    # The round that `_past` ends before.
    self._next = -1
    self._drawn: Optional[_Drawn] = None

  def __enter__(self) -> Cohorts:
    return self

  def __exit__(self, *exc_info) -> None:
    self._thread.shutdown()

  def draw(self, t: int) -> tuple[np.ndarray, Callable[[], Any]]:
    """Returns the ids of the cohort of the round that comes next, and its data.

    Raises:
      ValueError: as `Journal.past`; the cohort cannot be filled.
    """
    if self._drawn is None or self._drawn.round != t:
      self._drawn = self._draw(t)
    return self._drawn.cohort, self._drawn.data

  def _draw(self, t: int) -> _Drawn:
    # PRIVACY: the ledger's cohort of a burnt round, or of one that clients came
    # to by themselves, is not the one drawn here. Its clients would be drawn
    # again too early, so the ledger is read after each such round. Guards:
    # run_rounds_test.test_burnt_rounds_are_remembered and
    # test_rounds_of_every_way_are_remembered.
    if t != self._next:
      self._past, self._next = self._journal.past(self._ids, t), t
    indices = self._drawing.sample(t, self._past)
    cohort = self._ids[indices]
    if self._prepare is None:
      return _Drawn(t, indices, cohort, lambda: None)
    data = self._thread.submit(self._prepare, t, cohort).result
    return _Drawn(t, indices, cohort, data)

  def started(self) -> None:
    """Takes up the cohort that was drawn last: the ledger has its round now."""
    drawn = self._drawn
    assert drawn is not None
    self._past.record(drawn.round, drawn.indices)
    self._next, self._drawn = drawn.round + 1, None
    if self._prepare is not None and self._next < self._rounds:
      # It is raised in its turn.
      with contextlib.suppress(cohorts.CohortError):
        self._drawn = self._draw(self._next)
