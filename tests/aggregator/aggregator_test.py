"""Tests of the aggregator: types, then rounds through a TFF worker."""

import numpy as np
import pytest
import small_aggregator as small
import small_run
import tensorflow as tf
import tensorflow_federated as tff

from tff_bandmf import run


def test_types_are_those_of_a_dp_factory():
  with small.factory_of() as factory:
    process = factory.create(small.TYPE)
    plain = tff.aggregators.SumFactory().create(small.TYPE)
  assert isinstance(process, tff.templates.AggregationProcess)
  signature = process.next.type_signature
  assert signature.result.result == plain.next.type_signature.result.result
  assert signature.parameter[1] == tff.FederatedType(small.TYPE, tff.CLIENTS)
  state = process.initialize.type_signature.result
  assert signature.parameter[0] == signature.result.state == state
  query_state = state.member['query_state']
  scalar = tff.TensorType(np.int64)
  assert query_state['round'] == scalar
  expected = tff.StructType([('tape_id', scalar), ('run', scalar)])
  assert query_state['noise'].is_equivalent_to(expected)
  free = [
    ('round', scalar),
    ('z_stddev', tff.TensorType(np.float32)),
    ('noise_placement', tff.TensorType(np.str_)),
    ('noise_checked', tff.TensorType(np.bool_)),
    ('rounds_ahead', tff.TensorType(np.int32)),
  ]
  assert signature.result.measurements.member.is_equivalent_to(
    tff.StructType([('free', tff.StructType(free))])
  )


@pytest.mark.parametrize('by_run', [False, True])
def test_checks_of_the_graph_are_single_operations(by_run, tmp_path):
  # `tf.debugging.Assert` makes a branch of its own, which takes long to build
  # and to compile, unless it prints strings alone.
  if by_run:
    with run.Run(tmp_path / 'run', small_run.small_plan()) as mine:
      process = mine.aggregator.create(small.TYPE)
  else:
    with small.factory_of() as factory:
      process = factory.create(small.TYPE)
  for computation in (process.initialize, process.next):
    proto = tff.framework.ConcreteComputation.get_proto(computation)
    content = proto.SerializeToString()
    assert b'Assert' in content and b'AssertGuard' not in content


def test_rounds_equal_clipped_mean_plus_dense_noise(runtime):
  noise_rows = small.Z_STDDEV * small.dense_noise()
  with small.factory_of() as factory:
    process = factory.create(small.TYPE)
    state = process.initialize()
    for t in range(small.ROUNDS):
      # Some are clipped and some are not; the divisor stays.
      updates = small.updates_of(3 + t % 2, seed=t, scale=10.0 ** (t % 3 - 1))
      output = process.next(state, updates)
      small.assert_close(
        output.result,
        (small.clipped_sum(updates) + noise_rows[t]) / small.CLIENTS,
      )
      metrics = output.measurements['free']
      assert metrics['round'] == t + 1
      assert metrics['z_stddev'] == pytest.approx(small.Z_STDDEV)
      assert metrics['noise_placement'] == b'tape'
      assert metrics['noise_checked']
      state = output.state
    with pytest.raises(Exception, match='all are done'):
      process.next(state, small.updates_of(1, seed=0))


def test_round_past_the_last_raises(runtime):
  # Also without noise, where no noise source would object.
  with small.factory_of(noise_multiplier=0.0) as factory:
    process = factory.create(small.TYPE)
    state = process.initialize()
    for t in range(small.ROUNDS):
      updates = small.updates_of(2, seed=t)
      output = process.next(state, updates)
      small.assert_close(
        output.result, small.clipped_sum(updates) / small.CLIENTS
      )
      assert output.measurements['free']['noise_placement'] == b'none'
      assert not output.measurements['free']['noise_checked']
      state = output.state
    with pytest.raises(ValueError, match='all are done') as error:
      process.next(state, small.updates_of(2, seed=0))
    # One line, without the graph that it comes from.
    assert str(error.value) == (
      f'the strategy supports {small.ROUNDS} rounds and all are done; optimise '
      f'one for more rounds and account for both runs. round: {small.ROUNDS}'
    )
    assert error.value.__suppress_context__


def test_client_with_nan_or_infinity_contributes_zero(runtime):
  with small.factory_of() as factory:
    process = factory.create(small.TYPE)
    updates = small.updates_of(5, seed=0)
    updates[1]['kernel'][2, 1] = np.nan
    updates[3]['bias'][0][0] = -np.inf
    updates[4]['after']['z'][1] = np.inf
    output = process.next(process.initialize(), updates)
  finite = [updates[0], updates[2]]
  small.assert_close(
    output.result,
    (small.clipped_sum(finite) + small.Z_STDDEV * small.dense_noise()[0])
    / small.CLIENTS,
  )


@pytest.mark.parametrize('sums', [False, True])
@pytest.mark.deep(but=('True',))
def test_round_of_too_many_clients_fails_and_says_what_to_do(runtime, sums):
  with small.factory_of() as factory:
    assert factory.lattice is None
    if sums:
      clipping, _, process = factory.create_for_sums(small.TYPE)
      updates = [
        (clipping.clip(update), np.int32(1))
        for update in small.updates_of(6, seed=0)
      ]
    else:
      process = factory.create(small.TYPE)
      updates = small.updates_of(6, seed=0)
    assert factory.lattice.largest_cohort == 5
    state = process.initialize()
    process.next(state, updates[:5])
    with pytest.raises(Exception, match='largest_cohort=5; give'):
      process.next(state, updates)
  with small.factory_of(largest_cohort=6) as factory:
    process = factory.create(small.TYPE)
    process.next(process.initialize(), small.updates_of(6, seed=0))


def test_sums_of_groups_are_those_of_their_clients(runtime):
  updates = small.updates_of(5, seed=3)
  with small.factory_of() as factory:
    process = factory.create(small.TYPE)
    expected = process.next(process.initialize(), updates).result
  with small.factory_of() as factory:
    clipping, _, process = factory.create_for_sums(small.TYPE)
    state = process.initialize()
    clipped = list(map(clipping.clip, updates))
    for ends in ([1, 2, 3, 4, 5], [2, 5], [5]):
      groups = [
        (tf.add_n(clipped[start:end]).numpy(), np.int32(end - start))
        for start, end in zip([0, *ends], ends)
      ]
      found = process.next(state, groups).result
      np.testing.assert_array_equal(small.flat(found), small.flat(expected))
      tf.nest.assert_same_structure(found, small.SPECS)


@pytest.mark.parametrize(
  'specs',
  [
    tf.TensorSpec([2, 2], tf.float32),
    [tf.TensorSpec([2], tf.float32), tf.TensorSpec([], tf.float32)],
    (tf.TensorSpec([2], tf.float32), (tf.TensorSpec([1], tf.float64),)),
    {'b': tf.TensorSpec([2], tf.float32), 'a': tf.TensorSpec([], tf.float32)},
  ],
  ids=['leaf', 'list', 'tuple', 'dict'],
)
@pytest.mark.deep(but=('dict', 'leaf'))
def test_containers_of_any_kind_get_their_noise(runtime, specs):
  with small.factory_of() as factory:
    process = factory.create(small.type_of(specs))
    value = tf.nest.map_structure(
      lambda s: np.zeros(s.shape, s.dtype.as_numpy_dtype), specs
    )
    result = process.next(process.initialize(), [value, value]).result
  dimension = sum(s.shape.num_elements() for s in tf.nest.flatten(specs))
  np.testing.assert_allclose(
    small.flat(result),
    small.Z_STDDEV * small.dense_noise(dimension)[0] / small.CLIENTS,
    rtol=1e-5,
    atol=1e-5,
  )


_X, _Y = tf.TensorSpec([None, 3], tf.float32), tf.TensorSpec([None], tf.float32)


def _linear_model():
  @tf.function
  def predict(weights, x, training):
    del training
    kernel, bias = weights[0]
    return tf.linalg.matvec(x, kernel) + bias

  @tf.function
  def loss(output, label, sample_weight=None):
    del sample_weight
    return tf.reduce_mean((output - label) ** 2)

  return tff.learning.models.FunctionalModel(
    initial_weights=((np.zeros(3, np.float32), np.zeros([], np.float32)), ()),
    predict_on_batch_fn=predict,
    loss_fn=loss,
    input_spec=(_X, _Y),
  )


@pytest.fixture(scope='module')
def client_data():
  rng = np.random.default_rng(0)
  x = rng.normal(size=(2, 8, 3)).astype(np.float32)
  return [
    tf.data.Dataset.from_tensor_slices(
      (each, each @ np.array([1, 2, 3], np.float32))
    ).batch(4)
    for each in x
  ]


@pytest.mark.parametrize('algorithm', ['fed_avg', 'fed_sgd'])
@pytest.mark.deep(but=('fed_avg',))
def test_learning_process_adds_the_noise_to_its_weights(
  runtime, client_data, algorithm
):
  def train(noise_multiplier):
    with small.factory_of(noise_multiplier=noise_multiplier) as factory:
      server = tff.learning.optimizers.build_sgdm(1.0)
      if algorithm == 'fed_avg':
        process = tff.learning.algorithms.build_unweighted_fed_avg(
          _linear_model(),
          tff.learning.optimizers.build_sgdm(0.1),
          server,
          model_aggregator=factory,
        )
      else:
        process = tff.learning.algorithms.build_fed_sgd(
          _linear_model(),
          server,
          model_aggregator=tff.aggregators.as_weighted_aggregator(factory),
        )
      output = process.next(process.initialize(), client_data)
      weights = process.get_model_weights(output.state)
      assert list(output.metrics['aggregator']) == ['free']
      return small.flat(weights.trainable)

  plain, noised = train(0.0), train(small.MULTIPLIER)
  assert np.any(plain)
  # The server subtracts the mean.
  np.testing.assert_allclose(
    plain - noised,
    small.Z_STDDEV * small.dense_noise(4)[0] / small.CLIENTS,
    rtol=1e-4,
    atol=1e-5,
  )


def test_aggregator_that_fed_sgd_gives_weights_names_the_wrapper():
  with small.factory_of() as factory:
    with pytest.raises(
      TypeError, match=r'model_aggregator=.*\.as_weighted_aggregator\('
    ) as error:
      tff.learning.algorithms.build_fed_sgd(
        _linear_model(),
        tff.learning.optimizers.build_sgdm(1.0),
        model_aggregator=factory,
      )
  assert '\n' not in str(error.value)


@pytest.mark.parametrize(
  'data, line',
  [
    (
      lambda batches: tf.data.Dataset.from_generator(
        lambda: iter(batches), output_signature=(_X, _Y)
      ),
      r'operation=PyFunc: .*list\(dataset\)',
    ),
    (
      lambda batches: tf.data.Dataset.from_tensors(batches[0]).map(
        lambda x, y: (
          tf.ensure_shape(
            tf.numpy_function(lambda x: x, [x], tf.float32), [None, 3]
          ),
          y,
        )
      ),
      'operation=PyFunc: .*from_generator',
    ),
    (lambda batches: batches[0], 'data=tuple: .*a list of batches'),
  ],
  ids=['from_generator', 'numpy_function', 'batch'],
)
@pytest.mark.deep(but=('numpy_function',))
def test_data_that_a_worker_cannot_read_names_the_remedy(runtime, data, line):
  batches = [(np.ones((4, 3), np.float32), np.ones(4, np.float32))] * 2
  with small.factory_of() as factory:
    process = tff.learning.algorithms.build_unweighted_fed_avg(
      _linear_model(),
      tff.learning.optimizers.build_sgdm(0.1),
      tff.learning.optimizers.build_sgdm(1.0),
      model_aggregator=factory,
    )
    state = process.initialize()
    with pytest.raises(ValueError, match=line) as error:
      process.next(state, [data(batches)])
    assert '\n' not in str(error.value)
    process.next(state, [batches])


def test_weighted_fed_avg_is_refused():
  with small.factory_of() as factory:
    # The troubleshooting page has the remedy under these words of TFF.
    with pytest.raises(
      TypeError, match='Expected tensorflow_federated.*WeightedAggregation'
    ):
      tff.learning.algorithms.build_weighted_fed_avg(
        _linear_model(),
        tff.learning.optimizers.build_sgdm(0.1),
        model_aggregator=factory,
      )
