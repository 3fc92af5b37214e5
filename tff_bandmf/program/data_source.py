"""A data source of TFF whose every selection is admitted and recorded.

TFF's own data sources select without a memory. Here a selection is the cohort
of a round: drawn by a sampler that holds the participation schema, and in the
ledger before any of its data is handed out.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Optional

import numpy as np
import tensorflow as tf

from tff_bandmf import errors
from tff_bandmf.program import cohorts
from tff_bandmf.program import ledger as ledger_lib

try:
  import tensorflow_federated as tff
except ImportError as error:
  raise errors.needs_tff(__name__) from error


class CohortIterator(tff.program.FederatedDataSourceIterator):
  """The rounds of a `CohortDataSource` from one on.

  Its bytes hold a round and no data: they are read back by the class of an
  iterator of the same source, as TFF's program state managers do. Rounds after
  it are replayed, with the cohorts that the ledger has for them.

  Attributes:
    round_index: of the next selection.
    cohort: [m] int64, the last selection; those that dropped out are in it.
  """

  # Set by the source, in a subclass of its own.
  _source: CohortDataSource

  def __init__(self, round_index: int):
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
      ValueError: another `k`, no round is left, or the ledger has another
        cohort for this round.
    """
    source = self._source
    sampler, round_index = source.sampler, self.round_index
    if k not in (None, sampler.cohort_size):
      raise ValueError(
          errors.invalid(
              'k', k, f'must be the cohort_size={sampler.cohort_size}',
              'the sampler was made for it'))
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
    dataset: gives the `tf.data.Dataset` of (client, round).
    sampler: of the cohorts.
    ledger: where they are recorded; the program says when a round finished.
  """

  def __init__(
      self,
      dataset: Callable[[int, int], tf.data.Dataset],
      element_spec: object,
      sampler: cohorts.CohortSampler,
      ledger: ledger_lib.Ledger,
      start_round: int = 0,
  ):
    """Makes the source.

    Args:
      dataset: gives the `tf.data.Dataset` of (client, round).
      element_spec: of every such data set.
      sampler: of the cohorts.
      ledger: where they are recorded.
      start_round: of the iterators.
    """
    self.dataset = dataset
    self.sampler = sampler
    self.ledger = ledger
    self._start_round = start_round
    self._federated_type = tff.FederatedType(
        tff.SequenceType(tff.types.tensorflow_to_type(element_spec)),
        tff.CLIENTS)
    self._iterator = type(
        'CohortIterator', (CohortIterator,), {'_source': self})

  @property
  def federated_type(self) -> tff.FederatedType:
    return self._federated_type

  def iterator(self) -> CohortIterator:
    """Returns an iterator from `start_round` on."""
    return self._iterator(self._start_round)
