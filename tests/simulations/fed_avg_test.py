"""Tests of federated averaging over groups, against TFF's own."""

import functools

import hypothesis
import numpy as np
import pytest
import small_training
import tensorflow as tf
import tensorflow_federated as tff
from hypothesis import strategies as st

from simulations import config as config_lib
from simulations import fed_avg, models
from tff_bandmf import aggregator, participation, query, strategies
from tff_bandmf.tff import remote_workers
from tff_bandmf.tff import runtime as runtime_lib

CLIENTS, MODEL, SPECS = (
  small_training.CLIENTS,
  small_training.MODEL,
  small_training.SPECS,
)
_LENGTH = small_training.LENGTH
_BATCH = 3
_CLIP = 0.2
_BITS = 20
_COHORT = np.array([8, 1, 5, 3, 0, 6])


def _optimizers(client_rate=0.5):
  return (
    tff.learning.optimizers.build_sgdm(client_rate),
    tff.learning.optimizers.build_sgdm(1.0, 0.9),
  )


def _aggregator(**kwargs):
  """Without noise."""
  return aggregator.dp_aggregator(
    0.0,
    len(_COHORT),
    l2_norm_clip=_CLIP,
    strategy=strategies.Identity(9),
    participation=participation.MinSep(1),
    **kwargs,
  )


def _process(workers=None, **clipping):
  return fed_avg.build(
    MODEL, _LENGTH, *_optimizers(), _aggregator(**clipping), _BATCH, workers
  )


def _train(process, groups, rounds=2):
  state = process.initialize()
  for t in range(rounds):
    output = process.next(
      state, fed_avg.group_datasets(CLIENTS, _COHORT, groups, 0, t)
    )
    state = output.state
  return state, output.metrics['client_work']


@hypothesis.given(
  st.lists(st.integers(0, 9), min_size=1, max_size=30), st.integers(1, 9)
)
def test_every_member_is_dealt_once(sizes, groups):
  dealt = fed_avg.deal(np.array(sizes), groups)
  assert sorted(np.concatenate(dealt).tolist()) == list(range(len(sizes)))
  assert len(dealt) == min(groups, len(sizes))
  assert all(len(members) for members in dealt)
  loads = [np.array(sizes)[members].sum() for members in dealt]
  assert max(loads) - min(loads) <= max(sizes)


@pytest.mark.parametrize(
  'config',
  [
    config_lib.Model(embedding_size=4, lstm_size=3),
    config_lib.Model(embedding_size=4, lstm_size=3, tied=True, skip=True),
    config_lib.Model(architecture='transformer', embedding_size=4, heads=2),
  ],
)
def test_loss_of_a_batch_cut_short_is_that_of_all_of_it(config):
  model = models.build(config, CLIENTS.vocabulary.num_ids, 1)
  x, y = CLIENTS.client_arrays(8)
  rows = np.argsort((y != 0).sum(1))[:4]
  x, y = x[rows], y[rows]
  longest = (y != 0).sum(1).max()
  assert longest < _LENGTH

  def loss_and_gradient(loss):
    weights = list(map(tf.constant, model.weights))
    with tf.GradientTape() as tape:
      tape.watch(weights)
      value = loss(weights)
    return [value, *map(tf.convert_to_tensor, tape.gradient(value, weights))]

  whole = loss_and_gradient(
    lambda weights: models.next_word_loss(model.logits(weights, x), y)
  )
  cut = loss_and_gradient(
    lambda weights: model.loss(weights, x[:, :longest], y[:, :longest])
  )
  for one, other in zip(cut, whole):
    np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
  assert float(model.loss(model.weights, x[:0], y[:0])) == 0.0


def test_groups_sum_to_what_tff_gives(runtime):
  plain = tff.learning.algorithms.build_unweighted_fed_avg(
    small_training.functional_model(MODEL, _LENGTH),
    *_optimizers(),
    model_aggregator=_aggregator(),
  )
  state = plain.initialize()
  for t in range(2):
    state = plain.next(
      state,
      [
        small_training.batches(CLIENTS, client, _BATCH, seed=0, round_index=t)
        for client in _COHORT
      ],
    ).state
  found, counts = _train(_process(), 4)
  for ours, theirs, start in zip(
    found.global_model_weights.trainable,
    state.global_model_weights.trainable,
    MODEL.weights,
  ):
    assert np.abs(theirs - start).max() > 1e-4
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=2e-6)
  assert counts['clipped_count'] > 0


def test_groups_of_any_size_give_the_same_bits(runtime):
  process = _process()
  digests = {
    small_training.digest(_train(process, groups)[0]) for groups in (1, 3, 3, 6)
  }
  assert len(digests) == 1


@functools.cache
def _group_work(rate):
  """What a group does, without TFF."""
  clipping = query.GraphClipping.from_clip(_CLIP, SPECS, _BITS)

  @tf.function(autograph=False, reduce_retracing=True)
  def work(group):
    return fed_avg._train_group(
      MODEL,
      _optimizers(rate)[0],
      _BATCH,
      clipping,
      (),
      tff.learning.models.ModelWeights(
        tuple(map(tf.constant, MODEL.weights)), ()
      ),
      group,
    )

  return work


def _group_sum(cohort, rate):
  """The record of one group."""
  (dataset,) = fed_avg.group_datasets(CLIENTS, np.array(cohort), 1, 0, 0)
  total, counts = _group_work(rate)(dataset.get_single_element())
  return total.numpy(), counts


@pytest.mark.parametrize('rate', [1e-3, 100.0])
@pytest.mark.deep(but=('100.0',))
def test_client_moves_the_sum_by_its_clip(rate):
  whole, _ = _group_sum(_COHORT, rate)
  for client in _COHORT:
    without, _ = _group_sum(_COHORT[_COHORT != client], rate)
    alone, _ = _group_sum([client], rate)
    moved = whole.astype(np.int64) - without
    assert moved @ moved <= 4**_BITS
    np.testing.assert_array_equal(moved, alone)
    if rate > 1 and client:  # Client 0 has no sentence.
      assert moved @ moved >= 4**_BITS * (1 - 1e-4)


def test_client_that_is_not_finite_leaves_the_others_as_they_are():
  # One step of this size is finite, the one after it is not.
  broken, counts = _group_sum([5], 1e38)
  assert not broken.any()
  assert counts['non_finite_count'] == 1
  fine, counts = _group_sum([1], 1e38)
  assert counts['non_finite_count'] == 0
  both, counts = _group_sum([1, 5], 1e38)
  np.testing.assert_array_equal(both, fine)
  assert counts['non_finite_count'] == 1


def test_zeroed_clients_count_as_zero(runtime):
  state, counts = _train(_process(zeroing_norm=1e-9), 2)
  assert counts['zeroed_count'] == len(_COHORT) - 1
  for found, start in zip(state.global_model_weights.trainable, MODEL.weights):
    np.testing.assert_array_equal(found, start)


def test_two_workers_give_the_bits_of_none(runtime):
  expected, expected_counts = _train(_process(), 5)
  with (
    runtime_lib.worker(1) as (first, _),
    runtime_lib.worker(1) as (second, _),
    remote_workers.connected(
      [f'localhost:{first}', f'localhost:{second}']
    ) as workers,
  ):
    found, counts = _train(_process(workers), 5)
  for ours, theirs in zip(
    found.global_model_weights.trainable,
    expected.global_model_weights.trainable,
  ):
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-7)
  assert small_training.digest(found) == small_training.digest(expected)
  assert dict(counts) == dict(expected_counts)


def test_worker_that_died_fails_the_round_and_the_others_do_it(runtime):
  expected, _ = _train(_process(), 5, rounds=1)
  with (
    runtime_lib.worker(1) as (first, _),
    runtime_lib.worker(1) as (second, victim),
    remote_workers.connected(
      [f'localhost:{first}', f'localhost:{second}']
    ) as workers,
  ):
    process = _process(workers)
    state = process.initialize()
    data = fed_avg.group_datasets(CLIENTS, _COHORT, 5, 0, 0)
    process.next(state, data)
    victim.kill()
    victim.wait()
    found = process.next(state, data).state
    assert small_training.digest(found) == small_training.digest(expected)
