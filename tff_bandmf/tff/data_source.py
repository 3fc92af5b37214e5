"""A data source of TFF that keeps to a participation schema.

TFF's own data sources forget earlier selections. `CohortDataSource` draws each
selection by a sampler that keeps to the schema, and records it in the ledger
before it returns any data. Rounds continue where the ledger ends, in any
process.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Optional

import numpy as np

from tff_bandmf import accounting, errors
from tff_bandmf.cohorts import cohort_sampler
from tff_bandmf.ledger import ledger as ledger_lib

try:
  import tensorflow as tf
  import tensorflow_federated as tff
except ImportError as error:
  raise errors.needs_tff(__name__) from error


class CohortIterator(tff.program.FederatedDataSourceIterator):
  """Iterates over the rounds of a `CohortDataSource`.

  The bytes of an iterator hold its round and no data. TFF's program state
  managers read them back with the class of an iterator of the same source. A
  round that was started before is replayed with its cohort in the ledger.

  Attributes:
    round_index: index of the round of the next selection, integer >= 0.
    cohort: [m] int64, client indices of the last selection, with clients that
      dropped out; None before the first selection.
  """

  # The source sets it in a subclass of its own.
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
    """Returns the data of the next cohort, without clients that drop out.

    Args:
      k: number of clients to select, which must be the sampler's
        `cohort_size`; None is this number.

    Raises:
      cohorts.CohortError: too few clients may take part; nothing is recorded.
      ValueError: `k` differs from the cohort size, no round is left, the round
        has ended, or the ledger has another cohort for it.
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
    # Another iterator of the source may have started this round already.
    source.check(round_index)
    cohort = sampler.sample(round_index, self._history)
    # PRIVACY: a crash after the data was used would forget a participation that
    # counts. The cohort is durable in the ledger before any data is returned.
    # Guard: data_source_test.test_selection_is_recorded_before_it_is_used.
    source.ledger.start_round(round_index, cohort)
    self._history.record(round_index, cohort)
    self.round_index = round_index + 1
    self.cohort = cohort
    if sampler.availability is not None:
      cohort = cohort[~sampler.availability.drops_out(round_index, cohort)]
    return [source.dataset(client, round_index) for client in cohort.tolist()]


class CohortDataSource(tff.program.FederatedDataSource):
  """A `tff.program.FederatedDataSource` that keeps to a participation schema.

  All iterators of a source share its ledger. In TFF each iterator is an
  independent pass over the data. Here a second iterator replays the same rounds
  with the same cohorts, since a second pass would be more participation.

  Attributes:
    dataset: function from (client, round) to the client's `tf.data.Dataset`.
    sampler: sampler of the cohorts.
    ledger: ledger that records the cohorts.
    replay: whether rounds that finished may run again.
  """

  def __init__(
    self,
    dataset: Callable[[int, int], tf.data.Dataset],
    element_spec: object,
    sampler: cohort_sampler.CohortSampler,
    ledger: ledger_lib.Ledger,
    start_round: Optional[int] = None,
    *,
    guarantee: Optional[accounting.Guarantee] = None,
    replay: bool = False,
  ):
    """Initializes the source.

    Args:
      dataset: function from (client, round) to the client's `tf.data.Dataset`.
      element_spec: element spec of every such data set.
      sampler: sampler of the cohorts.
      ledger: ledger that records the cohorts; the program records the end of
        each round.
      start_round: first round of an iterator, the round of the state from which
        the program resumes. None is the round at which the ledger ends.
      guarantee: guarantee of the aggregator (`factory.guarantee`), whose schema
        and rounds are compared with the sampler's.
      replay: whether rounds that finished may run again, for simulations that
        resume from an earlier state. Clients must contribute the same values
        again, to the bit: let `Ledger.finish_round` compare the results.

    Raises:
      ValueError: `start_round` has ended, is below a round that was started, or
        is beyond the end of the ledger; or the guarantee is for another schema.
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
    """Returns an iterator from `start_round`, or the end of the ledger, on."""
    return self._iterator(
      self.ledger.next_round()
      if self._start_round is None
      else self._start_round
    )

  def check(self, round_index: int) -> None:
    """Raises ValueError if the program must not continue at a round.

    Args:
      round_index: index of the round of the next selection.
    """
    first = self.ledger.next_round()
    last = self.ledger.last_round()
    # PRIVACY: a resumed program that begins at round 0 again would draw clients
    # against the schema and reuse noise of released rounds. It must continue
    # where the ledger ends.
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
  sampler: cohort_sampler.CohortSampler, guarantee: accounting.Guarantee
) -> None:
  # PRIVACY: cohorts of a weaker schema than the guarantee's can have a larger
  # sensitivity than the noise covers. The two must be equal.
  # Guard: data_source_test.test_sampler_of_another_plan_is_refused.
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
