"""Tests of what TFF's learning processes let past our aggregator."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import tff_bandmf
from tff_bandmf import aggregator, participation, strategies
from tff_bandmf.noise import placements

_ALGORITHMS = tff.learning.algorithms
_SGD = tff.learning.optimizers.build_sgdm


def _factory(**kwargs):
  return aggregator.dp_aggregator(
    **{
      'noise_multiplier': 0.7,
      'clients_per_round': 3,
      'l2_norm_clip': 1.0,
      'strategy': strategies.BandedToeplitz(4, [1.0, 0.5]),
      'participation': participation.MinSep(2),
      'noise': placements.Tape(),
      **kwargs,
    }
  )


def _model(keras=False):
  if keras:
    return lambda: tff.learning.models.from_keras_model(
      tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=[3])]),
      loss=tf.keras.losses.MeanSquaredError(),
      input_spec=(tf.TensorSpec([None, 3]), tf.TensorSpec([None, 1])),
    )

  @tf.function
  def predict(weights, x, training):
    del training
    return tf.linalg.matvec(x, weights[0][0])

  @tf.function
  def loss(output, label, sample_weight=None):
    del sample_weight
    return tf.reduce_mean((output - label) ** 2)

  return tff.learning.models.FunctionalModel(
    initial_weights=((np.zeros(3, np.float32),), ()),
    predict_on_batch_fn=predict,
    loss_fn=loss,
    input_spec=(tf.TensorSpec([None, 3]), tf.TensorSpec([None])),
  )


@pytest.mark.parametrize(
  'keras, clip',
  [(False, 1.0), (True, 1.0), (False, tff_bandmf.AdaptiveClip(1.0))],
)
@pytest.mark.deep(but=('True-1.0', 'False-clip2'))
def test_unweighted_fed_avg_releases_its_metrics_alone(keras, clip):
  process = _ALGORITHMS.build_unweighted_fed_avg(
    _model(keras),
    _SGD(0.1),
    _SGD(1.0),
    model_aggregator=_factory(l2_norm_clip=clip),
  )
  names = aggregator.check_process(process)
  # TFF's functional models measure nothing unless told to.
  assert bool(names) == keras
  assert all(name.startswith('metrics.client_work.train') for name in names)
  assert any('.loss' in name for name in names) == keras
  assert any('.num_examples' in name for name in names) == keras


@pytest.mark.parametrize('secure', [False, True])
def test_our_own_process_releases_nothing_else(secure):
  process = _factory(secure_sum=secure).create(tff.TensorType(np.float32, [3]))
  assert aggregator.check_process(process) == []


def test_counts_of_clients_are_named():
  process = _factory(measure_clients=True).create(
    tff.TensorType(np.float32, [3])
  )
  # An aggregation process returns (state, result, measurements).
  assert aggregator.check_process(process) == [
    f'measurements.not_private.{name}'
    for name in ('non_finite_count', 'zeroed_count', 'clipped_count')
  ]


@pytest.mark.parametrize(
  'build',
  [
    lambda factory: _ALGORITHMS.build_unweighted_mime_lite(
      _model(), _SGD(0.1, 0.9), model_aggregator=factory
    ),
    lambda factory: _ALGORITHMS.build_mime_lite_with_optimizer_schedule(
      _model(),
      lambda t: 0.1,
      _SGD(0.1, 0.9),
      model_aggregator=tff.aggregators.as_weighted_aggregator(factory),
    ),
  ],
  ids=['unweighted', 'weighted'],
)
def test_mime_sends_gradients_past_the_aggregator(build):
  with pytest.raises(ValueError, match='process=state.*bypass the noise'):
    aggregator.check_process(build(_factory()))


def test_mime_with_two_of_our_aggregators_is_refused():
  process = _ALGORITHMS.build_unweighted_mime_lite(
    _model(),
    _SGD(0.1, 0.9),
    model_aggregator=_factory(),
    full_gradient_aggregator=_factory(),
  )
  with pytest.raises(ValueError, match='process=2 releases'):
    aggregator.check_process(process)


def test_weighted_process_with_our_aggregator_passes():
  process = _ALGORITHMS.build_fed_sgd(
    _model(),
    _SGD(1.0),
    model_aggregator=tff.aggregators.as_weighted_aggregator(_factory()),
  )
  names = aggregator.check_process(process)
  assert all(name.startswith('metrics.client_work.train') for name in names)


def test_process_without_our_aggregator_is_refused():
  for process in (
    _ALGORITHMS.build_weighted_fed_avg(_model(), _SGD(0.1), _SGD(1.0)),
    _ALGORITHMS.build_unweighted_fed_avg(
      _model(),
      _SGD(0.1),
      _SGD(1.0),
      model_aggregator=(
        tff.aggregators.DifferentiallyPrivateFactory.gaussian_fixed(
          1.0, 3.0, 1.0
        )
      ),
    ),
  ):
    with pytest.raises(ValueError, match='process=0 releases'):
      aggregator.check_process(process)


def test_state_that_remembers_a_sum_of_clients_is_refused():
  """Only one number of it, and by way of a mapped lambda."""
  inner = _factory().create(tff.TensorType(np.float32, [3]))

  @tff.tensorflow.computation
  def zero():
    return np.float32(0)

  @tff.tensorflow.computation(tff.TensorType(np.float32, [3]))
  def first_of(value):
    return value[0]

  @tff.federated_computation
  def initialize():
    return tff.federated_zip(
      (inner.initialize(), tff.federated_eval(zero, tff.SERVER))
    )

  @tff.federated_computation(
    initialize.type_signature.result,
    tff.FederatedType(tff.TensorType(np.float32, [3]), tff.CLIENTS),
  )
  def next_fn(state, value):
    output = inner.next(state[0], value)
    first = tff.federated_map(first_of, value)
    both = tff.federated_zip((output.state, tff.federated_sum(first)))
    return tff.templates.MeasuredProcessOutput(
      both, output.result, output.measurements
    )

  process = tff.templates.AggregationProcess(initialize, next_fn)
  with pytest.raises(
    ValueError, match=r'process=state\.1: these values of the next'
  ):
    aggregator.check_process(process)
