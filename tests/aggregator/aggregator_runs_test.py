"""Tests that the noise of an aggregator serves one run and one sum a round."""

import numpy as np
import pytest
import small_aggregator as small
import tensorflow as tf
import tensorflow_federated as tff

from tff_bandmf import aggregator, noise
from tff_bandmf.noise.producer import stream


@pytest.fixture(scope='module')
def whole(runtime):
  """The results of an undisturbed run."""
  with small.factory_of() as factory:
    process = factory.create(small.TYPE)
    results, _ = small.run(process, process.initialize(), 0, small.ROUNDS)
  return results


@pytest.mark.parametrize('split', [1, 4])
@pytest.mark.deep(but=('[1]',))
def test_run_split_in_two_equals_one_run(whole, split):
  with small.factory_of() as factory:
    process = factory.create(small.TYPE)
    first, saved = small.run(process, process.initialize(), 0, split)
    # A round that was started and lost is played again after the restart.
    small.run(process, saved, split, split + 1)
  with small.factory_of({'start_round': split}) as factory:
    process = factory.create(small.TYPE)
    fresh = process.initialize()
    tf.nest.assert_same_structure(fresh, saved)
    second, _ = small.run(process, saved, split, small.ROUNDS)
  assert np.array_equal(np.concatenate([first, second]), whole)


def test_finished_run_can_be_opened_again(runtime):
  with small.factory_of({'start_round': small.ROUNDS}) as factory:
    process = factory.create(small.TYPE)
    state = process.initialize()
    assert state.query_state.round == small.ROUNDS
    with pytest.raises(Exception, match='all are done'):
      process.next(state, small.updates_of(1, seed=0))


def test_tape_of_another_key_or_round_is_refused(runtime):
  with small.factory_of() as factory:
    process = factory.create(small.TYPE)
    _, saved = small.run(process, process.initialize(), 0, 2)
  for tape, match in [
    ({'key': noise.Key.from_seed(10), 'start_round': 2}, 'another tape'),
    ({'key': None}, 'another tape'),
    ({'start_round': 3}, 'already used'),
  ]:
    with small.factory_of(tape) as factory:
      process = factory.create(small.TYPE)
      with pytest.raises(Exception, match=match):
        process.next(saved, small.updates_of(1, seed=2))


def test_round_after_close_fails_at_once(runtime):
  with small.factory_of() as factory:
    process = factory.create(small.TYPE)
    state = process.initialize()
  with pytest.raises(Exception, match='the tape is not there'):
    process.next(state, small.updates_of(1, seed=0))


@pytest.mark.filterwarnings(
  'ignore::pytest.PytestUnhandledThreadExceptionWarning'
)
def test_failed_producer_fails_the_round_at_once(runtime, monkeypatch):
  def fail(*args):
    raise MemoryError

  monkeypatch.setattr(stream.Stream, 'rows', fail)
  # After the timeout, the reader would say that the producer fell behind.
  with small.factory_of() as factory:
    process = factory.create(small.TYPE)
    with pytest.raises(Exception, match='producer ended'):
      process.next(process.initialize(), small.updates_of(1, seed=0))


def test_round_of_a_tape_releases_one_sum(runtime):
  with small.factory_of() as factory:
    process = factory.create(small.TYPE)
    state = process.initialize()
    first = process.next(state, small.updates_of(2, seed=0)).result
    # The same sum again is a repeated call.
    again = process.next(state, small.updates_of(2, seed=0)).result
    np.testing.assert_array_equal(small.flat(first), small.flat(again))
    with pytest.raises(Exception, match='noise tape'):
      process.next(state, small.updates_of(2, seed=7))


def test_used_noise_is_refused_to_a_second_run(runtime):
  with small.factory_of() as factory:
    process = factory.create(small.TYPE)
    state = process.initialize()
    small.run(process, state, 0, 2)
    with pytest.raises(Exception, match='noise tape'):
      process.next(state, small.updates_of(1, seed=7))
    with pytest.raises(Exception, match='noise tape'):
      process.next(process.initialize(), small.updates_of(1, seed=7))


@pytest.mark.parametrize('sums', [False, True])
def test_second_process_of_a_factory_is_refused(sums):
  with small.factory_of() as factory:
    create = factory.create_for_sums if sums else factory.create
    create(small.TYPE)
    for again in (factory.create, factory.create_for_sums):
      with pytest.raises(ValueError, match='an aggregator serves one run'):
        again(small.TYPE)


@pytest.mark.parametrize('start_round', [0, 3])
@pytest.mark.parametrize('multiplier', [small.MULTIPLIER, 2 * small.MULTIPLIER])
@pytest.mark.deep(but=('1.4-3', '0.7-0'))
def test_second_factory_with_a_key_is_refused(start_round, multiplier):
  """Another size or deviation has the same z, times another number."""
  with (
    small.factory_of() as first,
    small.factory_of(
      {'start_round': start_round}, noise_multiplier=multiplier
    ) as second,
  ):
    first.create(small.TYPE)
    with pytest.raises(ValueError, match='serves another agg') as caught:
      second.create(small.TYPE)
    assert '\n' not in str(caught.value)
    first.close()
    # A run that goes on, and a close too many does not let a third one in.
    second.create(small.TYPE)
    first.close()
    with (
      small.factory_of() as third,
      pytest.raises(ValueError, match='serves'),
    ):
      third.create(small.TYPE)


@pytest.mark.parametrize('start_round', [0, 3])
@pytest.mark.deep(but=('[3]',))
def test_second_run_on_a_tape_is_refused_its_first_round(runtime, start_round):
  with small.factory_of({'start_round': start_round}) as factory:
    process = factory.create(small.TYPE)
    first, second = process.initialize(), process.initialize()
    process.next(first, small.updates_of(2, seed=0))
    with pytest.raises(Exception, match='another run|another sum'):
      process.next(second, small.updates_of(2, seed=0))
    # A replay is of the same run, and no other one keeps it off.
    process.initialize()
    process.next(first, small.updates_of(2, seed=0))


def test_state_that_was_never_begun_releases_nothing(runtime):
  with small.factory_of() as factory:
    process = factory.create(small.TYPE)
    state = process.initialize()
    state = state._replace(query_state=state.query_state._replace(round=-1))
    for seed in range(2):
      output = process.next(state, small.updates_of(2, seed=seed))
      assert not small.flat(output.result).any()
      state = output.state
      assert state.query_state.round == -1


def test_skipped_round_releases_nothing(runtime):
  with small.factory_of() as factory:
    process = factory.create(small.TYPE)
    state = process.initialize()
    expected, _ = small.run(process, state, 0, 3)
  with small.factory_of() as factory:
    process = factory.create(small.TYPE)
    state = process.initialize()
    skipped = aggregator.skip_round(aggregator.skip_round(state))
    tf.nest.assert_same_structure(state, skipped)
    assert skipped.query_state.round == 2
    found, _ = small.run(process, skipped, 2, 3)
    np.testing.assert_array_equal(found[0], expected[2])
    # It does not come back.
    with pytest.raises(Exception, match='noise tape'):
      process.next(state, small.updates_of(2, seed=0))


def test_key_is_in_no_state_and_no_graph(runtime):
  with small.factory_of() as factory:
    process = factory.create(small.TYPE)
    state = process.initialize()
    output = process.next(state, small.updates_of(1, seed=0))
    late = output.state.query_state._replace(round=small.ROUNDS)
    with pytest.raises(Exception, match='all are done') as error:
      process.next(
        output.state._replace(query_state=late), small.updates_of(1, seed=0)
      )
  words = [str(word) for word in np.frombuffer(small.KEY.secret, np.int32)]
  seen = [
    repr(factory),
    repr(vars(factory)),
    str(error.value),
    repr(output.result),
    repr(output.measurements),
  ]
  seen.append(repr(output.state))
  assert not any(word in text for word in words for text in seen)
  graphs = [
    tff.framework.serialize_computation(graph).SerializeToString()
    for graph in (process.initialize, process.next)
  ]
  assert not any(small.KEY.secret[:8] in graph for graph in graphs)
