"""A data source of TFF whose every selection is admitted and recorded.

TFF's own data sources select without a memory. Here a selection is the cohort
of a round: drawn by a sampler that holds the participation schema, and in the
ledger before any of its data is handed out. The rounds go on where the ledger
ends, in whatever process.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Optional

import numpy as np

from tff_bandmf import accounting, errors
from tff_bandmf.program import cohorts
from tff_bandmf.program import ledger as ledger_lib

try:
  import tensorflow as tf
  import tensorflow_federated as tff
except ImportError as error:
  raise errors.needs_tff(__name__) from error


class CohortIterator(tff.program.FederatedDataSourceIterator):
  """The rounds of a `CohortDataSource` from one on.

  Its bytes hold a round and no data: they are read back by the class of an
  iterator of the same source, as TFF's program state managers do. A round after
  it that was started is replayed, with the cohort that the ledger has for it.

  Attributes:
    round_index: of the next selection.
    cohort: [m] int64, the last selection; those that dropped out are in it.
  """

  # Set by the source, in a subclass of its own.
  _source: CohortDataSource

  def __init__(self, round_index: int):
    self._source.check(round_index)
    self.round_index = round_index
    self.cohort: Optional[np.ndarray] = None
    sampler = self._source.sampler
    self._history = self._source.ledger.history(sampler.clients, round_index)

  @classmethod
  def from_bytes(cls, buffer: bytes) -> CohortIterator:
    return cls(json.loads(buffer)['round'])

  def to_bytes(self) -> bytes:
    return json.dumps({'round': self.round_index}).encode()

  @property
  def federated_type(self) -> tff.FederatedType:
    return self._source.federated_type

  def select(self, k: Optional[int] = None) -> list[tf.data.Dataset]:
    """Returns the data of the next round's cohort, less those that drop out.

    Args:
      k: clients to select, as many as the sampler's `cohort_size`; None is as
        many.

    Raises:
      cohorts.CohortError: too few clients may take part; nothing is recorded.
      ValueError: another `k`, no round is left, the round has ended, or the
        ledger has another cohort for it.
    """
    source = self._source
    sampler, round_index = source.sampler, self.round_index
    if k not in (None, sampler.cohort_size):
      raise errors.value_error(
        'k',
        k,
        f'must be the cohort_size={sampler.cohort_size}',
        'the sampler was made for it',
      )
    # Another iterator may have got on meanwhile.
    source.check(round_index)
    cohort = sampler.sample(round_index, self._history)
    # PRIVACY: durable before the data is used. Guard:
    # data_source_test.test_selection_is_recorded_before_it_is_used.
    source.ledger.start_round(round_index, cohort)
    self._history.record(round_index, cohort)
    self.round_index = round_index + 1
    self.cohort = cohort
    if sampler.availability is not None:
      cohort = cohort[~sampler.availability.drops_out(round_index, cohort)]
    return [source.dataset(client, round_index) for client in cohort.tolist()]


class CohortDataSource(tff.program.FederatedDataSource):
  """A `tff.program.FederatedDataSource` that holds a participation schema.

  Its iterators share the ledger. TFF calls each an independent pass over the
  data; here a second one replays the same rounds with the same cohorts, since
  a second pass would be more participation.

  Attributes:
    dataset, sampler, ledger, replay: as it was made with.
  """

  def __init__(
    self,
    dataset: Callable[[int, int], tf.data.Dataset],
    element_spec: object,
    sampler: cohorts.CohortSampler,
    ledger: ledger_lib.Ledger,
    start_round: Optional[int] = None,
    *,
    guarantee: Optional[accounting.Guarantee] = None,
    replay: bool = False,
  ):
    """Makes the source.

    Args:
      dataset: gives the `tf.data.Dataset` of (client, round).
      element_spec: of every such data set.
      sampler: of the cohorts.
      ledger: where they are recorded; the program says when a round finished.
      start_round: of the iterators: the round of the state that the program
        goes on from. None is where the ledger ends.
      guarantee: what the aggregator was made for (`factory.guarantee`), to be
        compared with the sampler.
      replay: whether rounds that finished may run again, for simulations that
        go on from a state of before. Clients must contribute the same again,
        to the bit: let `Ledger.finish_round` compare the results.

    Raises:
      ValueError: the round has ended, is below a started one or beyond where
        the ledger ends; or the guarantee is for another schema.
    """
    self.dataset = dataset
    self.sampler = sampler
    self.ledger = ledger
    self.replay = replay
    self._start_round = start_round
    if guarantee is not None:
      _check_plan(sampler, guarantee)
    if start_round is not None:
      self.check(start_round)
    self._federated_type = tff.FederatedType(
      tff.SequenceType(tff.types.tensorflow_to_type(element_spec)), tff.CLIENTS
    )
    self._iterator = type(
      'CohortIterator', (CohortIterator,), {'_source': self}
    )

  @property
  def federated_type(self) -> tff.FederatedType:
    return self._federated_type

  def iterator(self) -> CohortIterator:
    """Returns an iterator from `start_round`, or where the ledger ends, on."""
    return self._iterator(
      self.ledger.next_round()
      if self._start_round is None
      else self._start_round
    )

  def check(self, round_index: int) -> None:
    """Raises ValueError if the round is not one to go on from.

    Args:
      round_index: of the next selection.
    """
    first = self.ledger.next_round()
    last = self.ledger.last_round()
    # PRIVACY: a program that was resumed and begins at 0 again takes clients
    # that the schema keeps out, and the noise of rounds that were released.
    # Guards: data_source_test.test_loop_that_is_resumed_goes_on and
    # test_start_that_the_ledger_contradicts_is_refused.
    if not (0 if self.replay else first) <= round_index <= last + 1:
      raise errors.value_error(
        'round',
        round_index,
        f'is not where the ledger ends, round {first}',
        'go on from the state before that round; a simulation may replay '
        'finished rounds with replay=True',
      )


def _check_plan(
  sampler: cohorts.CohortSampler, guarantee: accounting.Guarantee
) -> None:
  # PRIVACY: cohorts of another schema than the noise is for. Guard:
  # data_source_test.test_sampler_of_another_plan_is_refused.
  if sampler.participation != guarantee.cohorts:
    raise errors.value_error(
      'sampler',
      sampler.participation,
      f'is not the participation of the guarantee, {guarantee.cohorts}',
      'make both with one schema',
    )
  if sampler.rounds > guarantee.strategy.rounds:
    raise errors.value_error(
      'sampler',
      f'{sampler.rounds} rounds',
      f'are more than the strategy has, {guarantee.strategy.rounds}',
      'make both for as many rounds',
    )
