"""Who a run draws its cohorts from, and what draws them.

THE SEAM. `drawing` returns the one object that a run asks for cohorts:

  sample(round_index, history) -> [m] int64 indices in the population, ascending

`history` holds who took part before (`program.History`; the run records what
comes back in it and in the ledger). The cohort is a function of the plan, the
key, the seed and these two, so that a program that is begun again draws what
it drew. Another rule of sampling plugs in there and nowhere else: neither the
loop nor the ledger knows which rule it is.
"""

from __future__ import annotations

import concurrent.futures
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Callable, Optional, Protocol, Union

import numpy as np

from tff_bandmf import errors, program
from tff_bandmf.noise import key as key_lib
from tff_bandmf.program import plan as plan_lib
from tff_bandmf.run import sampling

# A count, ids, or what has `client_ids`, such as TFF's `ClientData`.
Clients = Union[int, Sequence[Union[int, str]], Any]


class Drawing(Protocol):
  """What draws the cohorts of a run."""

  def sample(self, round_index: int, history: program.History) -> np.ndarray:
    """Returns the cohort of a round, [m] int64 indices, ascending."""


def population(clients: Clients) -> np.ndarray:
  """Returns the ids of clients, ascending: int64, or strings.

  Args:
    clients: how many, or who: different indices or strings, or an object whose
      `client_ids` are those.

  Raises:
    TypeError: it is none of these.
    ValueError: an id is there twice.

  >>> population(3).tolist()
  [0, 1, 2]
  """
  ids = getattr(clients, 'client_ids', clients)
  found = np.arange(ids) if isinstance(ids, int) else np.array(ids)
  if found.ndim != 1 or found.dtype.kind not in 'iuU' or ids is True:
    raise errors.type_error(
      'clients',
      type(clients).__name__,
      'must be a count, or indices or strings in a list',
      'give how many there are, their ids, or a ClientData',
    )
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
  return program.CohortSampler(
    len(ids), plan.clients_per_round, plan.rounds, plan.cohorts.schema, seed
  )


def drawn(
  drawing: Drawing,
  ids: np.ndarray,
  rounds: Iterable[int],
  history: program.History,
) -> Iterator[tuple[int, np.ndarray]]:
  """Yields rounds and the ids of their cohorts, which `history` takes up."""
  for t in rounds:
    cohort = drawing.sample(t, history)
    history.record(t, cohort)
    yield t, ids[cohort]


def ahead(
  drawn: Iterable[tuple[int, np.ndarray]],
  prepare: Optional[Callable[[int, np.ndarray], Any]],
) -> Iterator[tuple[int, np.ndarray, Callable[[], Any]]]:
  """Yields rounds, cohorts and what gives their data, made one round ahead.

  Args:
    drawn: rounds and their cohorts.
    prepare: gives the data of (round, cohort), in another thread.
  """
  if prepare is None:
    for t, cohort in drawn:
      yield t, cohort, lambda: None
    return
  before: Optional[tuple[int, np.ndarray, Callable[[], Any]]] = None
  with concurrent.futures.ThreadPoolExecutor(1) as thread:
    for t, cohort in drawn:
      data = thread.submit(prepare, t, cohort)
      if before is not None:
        yield before
      before = t, cohort, data.result
    if before is not None:
      yield before
