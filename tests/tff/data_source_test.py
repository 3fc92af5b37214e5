"""Tests of the data source: what it hands out was admitted and recorded."""

import asyncio

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from simulations import availability as availability_lib
from tff_bandmf import accounting, strategies
from tff_bandmf import cohorts as cohorts_lib
from tff_bandmf import ledger as ledger_lib
from tff_bandmf import participation as participation_lib
from tff_bandmf.tff import data_source

_SPEC = tf.TensorSpec([None], tf.int64)


def _dataset(client, round_index):
  return tf.data.Dataset.from_tensor_slices(
    np.array([client, round_index])
  ).batch(2)


def _source(ledger, drop_out=None, **arguments):
  availability = None
  if drop_out is not None:
    availability = availability_lib.Diurnal(
      0, rounds_per_day=1, zones=(1,), charging=1.0, drop_out=drop_out
    )
  sampler = cohorts_lib.CohortSampler(
    40, 5, 12, participation_lib.MinSep(4), 7, availability=availability
  )
  return data_source.CohortDataSource(
    _dataset, _SPEC, sampler, ledger, **arguments
  )


def _contents(datasets):
  return [next(iter(dataset)).numpy().tolist() for dataset in datasets]


@pytest.fixture
def ledger(tmp_path):
  with ledger_lib.Ledger(tmp_path / 'ledger.sqlite') as ledger:
    yield ledger


def test_selection_is_the_recorded_cohort_with_the_schema_held(ledger):
  source = _source(ledger)
  iterator = source.iterator()
  assert (
    source.federated_type
    == iterator.federated_type
    == tff.FederatedType(
      tff.SequenceType(tff.TensorType(np.int64, [None])), tff.CLIENTS
    )
  )
  for t in range(12):
    selected = _contents(iterator.select(5))
    assert selected == [[client, t] for client in ledger.cohort(t).tolist()]
    np.testing.assert_array_equal(iterator.cohort, ledger.cohort(t))
  assert ledger.observed().rounds == 12
  assert ledger.observed().min_sep >= 4
  with pytest.raises(ValueError, match='round_index=12'):
    iterator.select()


def test_selection_is_recorded_before_it_is_used(ledger):
  seen = []

  def dataset(client, round_index):
    seen.append(client in ledger.cohort(round_index).tolist())
    return _dataset(client, round_index)

  source = _source(ledger)
  data_source.CohortDataSource(
    dataset, _SPEC, source.sampler, ledger
  ).iterator().select()
  assert seen == [True] * 5


def test_selection_feeds_a_computation(ledger, runtime):
  source = _source(ledger)

  @tff.tensorflow.computation(
    tff.SequenceType(source.federated_type.member.element)
  )
  def first(dataset):
    return dataset.reduce(np.int64(0), lambda total, batch: total + batch[0])

  @tff.federated_computation(source.federated_type)
  def total(datasets):
    return tff.federated_sum(tff.federated_map(first, datasets))

  assert total(source.iterator().select()) == ledger.cohort(0).sum()


def test_second_iterator_replays_and_takes_nobody_else(ledger):
  source = _source(ledger)
  first, second = source.iterator(), source.iterator()
  for _ in range(4):
    assert _contents(first.select()) == _contents(second.select())
  assert ledger.observed().max_participations == 1


def test_iterator_continues_from_a_checkpoint(ledger, tmp_path):
  whole = _source(ledger).iterator()
  expected = [_contents(whole.select()) for _ in range(12)]
  with ledger_lib.Ledger(tmp_path / 'other.sqlite') as other:
    manager = tff.program.FileProgramStateManager(tmp_path / 'checkpoints')
    iterator = _source(other).iterator()
    for _ in range(5):
      iterator.select()
    asyncio.run(manager.save(iterator, 1))
    iterator.select()  # Is replayed.
    resumed = asyncio.run(manager.load(1, _source(other).iterator()))
    assert resumed.round_index == 5
    assert [_contents(resumed.select()) for _ in range(7)] == expected[5:]
    later = _source(other, start_round=5, replay=True).iterator()
    assert _contents(later.select()) == expected[5]


def test_client_that_drops_out_counts_and_gives_no_data(ledger):
  iterator = _source(ledger, drop_out=0.5).iterator()
  given = sum(len(iterator.select()) for _ in range(8))
  assert 0 < given < 40
  assert sum(len(ledger.cohort(t)) for t in range(8)) == 40
  assert _source(ledger, drop_out=1.0).iterator().select() == []


def test_number_that_is_not_the_cohort_size_is_refused(ledger):
  with pytest.raises(ValueError, match='k=4: must be the cohort_size=5'):
    _source(ledger).iterator().select(4)
  assert ledger.observed().rounds == 0


def test_round_that_cannot_be_filled_is_not_recorded(ledger):
  # Somebody else's cohort, larger than the sampler's.
  ledger.start_round(0, range(37))
  ledger.finish_round(0)
  with pytest.raises(cohorts_lib.CohortError, match='in round 1'):
    _source(ledger).iterator().select()
  assert ledger.observed().rounds == 1


def test_loop_that_is_resumed_goes_on(ledger):
  """A loop as in docs/tutorials/port.md, killed and run again as it is."""
  for stop in 3, 6, 12:
    cohorts = _source(ledger).iterator()
    while cohorts.round_index < stop:
      t = cohorts.round_index
      cohorts.select()
      ledger.finish_round(t)
  observed = ledger.observed()
  assert (observed.rounds, observed.finished) == (12, 12)
  assert (observed.min_sep, observed.max_participations) == (4, 3)
  with pytest.raises(ValueError, match='round_index=12'):
    _source(ledger).iterator().select()


def test_round_that_was_started_is_replayed(ledger):
  first = _source(ledger).iterator()
  first.select()
  ledger.finish_round(0)
  second = _contents(first.select())
  # Killed here, and in the middle of the replay too.
  for _ in range(2):
    assert _contents(_source(ledger).iterator().select()) == second
  # A state that was saved before the ledger was told goes on after it.
  assert _source(ledger, start_round=2).iterator().select()


@pytest.mark.parametrize('start_round', [-1, 0, 1, 3, 4, 6, 12])
def test_start_that_the_ledger_contradicts_is_refused(ledger, start_round):
  iterator = _source(ledger).iterator()
  for t in range(5):
    iterator.select()
    if t != 3:
      ledger.finish_round(t)
  with pytest.raises(ValueError, match=f'round={start_round}: is not .* 5;'):
    _source(ledger, start_round=start_round)
  # As a checkpoint of it would.
  state = f'{{"round": {start_round}}}'.encode()
  with pytest.raises(ValueError, match=f'round={start_round}: is not'):
    type(iterator).from_bytes(state)
  if 0 <= start_round < 5:
    _source(ledger, start_round=start_round, replay=True).iterator().select()


def test_abandoned_round_is_not_selected(ledger):
  _source(ledger).iterator().select()
  ledger.abandon_round(0)
  assert _source(ledger).iterator().round_index == 1
  with pytest.raises(ValueError, match='round=0: was abandoned'):
    _source(ledger, start_round=0, replay=True).iterator().select()


def test_iterator_that_another_has_overtaken_is_refused(ledger):
  behind, ahead = _source(ledger).iterator(), _source(ledger).iterator()
  ahead.select()
  ledger.finish_round(0)
  with pytest.raises(ValueError, match='round=0: is not where'):
    behind.select()


def test_sampler_of_another_plan_is_refused(ledger):
  spec = lambda rounds, schema: accounting.Guarantee(  # noqa: E731
    strategies.Identity(rounds), schema, 1.0
  )
  for plan, match in (
    (spec(12, participation_lib.MinSep(5)), 'is not the participation'),
    (spec(12, participation_lib.MinSep(4, 2)), 'is not the participation'),
    (spec(11, participation_lib.MinSep(4)), '12 rounds: are more than'),
  ):
    with pytest.raises(ValueError, match=match):
      _source(ledger, guarantee=plan)
  _source(ledger, guarantee=spec(12, participation_lib.MinSep(4)))
