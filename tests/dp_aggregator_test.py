"""Tests of what takes the place of `tff.learning.dp_aggregator`."""

import collections
import inspect
import math
import threading

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_bandmf import aggregator, participation, strategies

_SPECS = collections.OrderedDict(
    kernel=tf.TensorSpec([3, 2], tf.float32),
    bias=tf.TensorSpec([2], tf.float32))
_TYPE = tff.types.to_type(tf.nest.map_structure(
    lambda spec: tff.TensorType(spec.dtype.as_numpy_dtype, spec.shape), _SPECS))
_ARGUMENTS = {
    'l2_norm_clip': 1.5, 'strategy': strategies.BandedToeplitz(4, [1.0, 0.5]),
    'participation': participation.MinSep(2)}


def _updates(clients, scale=1.0):
  rng = np.random.default_rng(0)
  return [
      tf.nest.map_structure(
          lambda spec: (scale * rng.normal(size=spec.shape)).astype(np.float32),
          _SPECS) for _ in range(clients)]


def _model():
  """Returns a linear model of TFF, one input and one output."""
  return tff.learning.models.functional_model_from_keras(
      tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=[1])]),
      loss_fn=tf.keras.losses.MeanSquaredError(),
      input_spec=(tf.TensorSpec([None, 1]), tf.TensorSpec([None, 1])))


def test_leading_arguments_are_those_of_tff():
  theirs = inspect.signature(tff.learning.dp_aggregator).parameters
  ours = inspect.signature(aggregator.dp_aggregator).parameters
  assert [
      (name, each.default) for name, each in ours.items()
      if each.kind is each.POSITIONAL_OR_KEYWORD
  ] == [(name, each.default) for name, each in theirs.items()]


def test_rounds_are_those_of_the_correlated_aggregator(runtime):
  results = []
  dropped_in = aggregator.dp_aggregator(
      0.7, 3.0, zeroing=False, noise_seed=3, **_ARGUMENTS)
  direct = aggregator.correlated_noise_aggregator(
      0.7, 3.0, record_specs=_SPECS, noise_seed=3, **_ARGUMENTS)
  assert dropped_in.spec == direct.spec
  for factory in (dropped_in, direct):
    process = factory.create(_TYPE)
    state = process.initialize()
    rows = []
    for _ in range(2):
      output = process.next(state, _updates(3))
      state = output.state
      rows.append(output.result)
    results.append(rows)
  tf.nest.map_structure(np.testing.assert_array_equal, *results)


@pytest.mark.parametrize('zeroing', [True, False])
def test_entry_beyond_the_bound_zeroes_the_update(runtime, zeroing):
  factory = aggregator.dp_aggregator(0.0, 1.0, zeroing, **_ARGUMENTS)
  process = factory.create(_TYPE)
  update = _updates(1)[0]
  update['bias'][1] = -21.1
  result = process.next(process.initialize(), [update]).result
  norm = math.sqrt(sum(np.sum(np.square(x)) for x in result.values()))
  assert norm == pytest.approx(0.0 if zeroing else 1.5, rel=1e-5)


def test_bound_of_zeroing_is_where_that_of_tff_starts(runtime):
  process = tff.learning.dp_aggregator(0.0, 100.0).create(_TYPE)
  output = process.next(process.initialize(), _updates(1))
  theirs = output.measurements['zeroing_norm']
  for magnitude, kept in [(theirs * 0.999, True), (theirs * 1.001, False)]:
    update = tf.nest.map_structure(np.zeros_like, _updates(1)[0])
    update['bias'][0] = magnitude
    process = aggregator.dp_aggregator(0.0, 1.0, **_ARGUMENTS).create(_TYPE)
    result = process.next(process.initialize(), [update]).result
    assert bool(result['bias'].any()) == kept


def test_second_process_is_refused():
  factory = aggregator.dp_aggregator(0.7, 3.0, **_ARGUMENTS)
  factory.create(_TYPE)
  with pytest.raises(ValueError, match='an aggregator serves one run'):
    factory.create(_TYPE)


@pytest.mark.parametrize('clip', [
    None, tff.aggregators.PrivateQuantileEstimationProcess.no_noise(
        initial_estimate=1.0, target_quantile=0.5, learning_rate=0.2)])
def test_adaptive_clip_is_refused(clip):
  with pytest.raises(TypeError, match='one scale.*; give a norm'):
    aggregator.dp_aggregator(
        0.7, 3.0, **{**_ARGUMENTS, 'l2_norm_clip': clip})


@pytest.mark.parametrize('error, changed', [
    (ValueError, {'clients_per_round': 0}),
    (ValueError, {'zeroing_norm': 0.0}),
    (ValueError, {'zeroing': False, 'zeroing_norm': 3.0}),
    (ValueError, {'noise_multiplier': -1.0}),
    (TypeError, {'strategy': 'banded'}),
    (TypeError, {'participation': 2}),
    (TypeError, {'clip': 1.0}),
])
def test_bad_argument_is_refused_before_a_process_is_made(error, changed):
  with pytest.raises(error, match='|'.join(changed)):
    aggregator.dp_aggregator(**{
        'noise_multiplier': 0.7, 'clients_per_round': 3.0, **_ARGUMENTS,
        **changed})


def test_weighted_averaging_refuses_the_aggregator():
  arguments = {
      'model_fn': _model(),
      'client_optimizer_fn': tff.learning.optimizers.build_sgdm(0.1),
      'server_optimizer_fn': tff.learning.optimizers.build_sgdm(1.0)}
  for factory in (
      aggregator.dp_aggregator(0.7, 3.0, **_ARGUMENTS),
      aggregator.correlated_noise_aggregator(
          0.7, 3.0, record_specs=(tf.TensorSpec([1, 1]), tf.TensorSpec([1])),
          **_ARGUMENTS)):
    with pytest.raises(TypeError, match='WeightedAggregationFactory'):
      tff.learning.algorithms.build_weighted_fed_avg(
          **arguments, model_aggregator=factory)
    # The same aggregator is what the unweighted algorithm takes.
    process = tff.learning.algorithms.build_unweighted_fed_avg(
        **arguments, model_aggregator=factory)
    assert isinstance(process, tff.learning.templates.LearningProcess)


def test_producer_of_a_tape_ends_with_the_factory():
  before = threading.active_count()
  with aggregator.dp_aggregator(
      0.7, 3.0, noise_placement='tape', **_ARGUMENTS) as factory:
    factory.create(_TYPE)
    assert threading.active_count() > before
  assert threading.active_count() == before
