"""Tests of the aggregator: types, then rounds through a TFF worker."""

import collections
import threading
import time

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_bandmf import aggregator, noise, participation, strategies
from tff_bandmf.noise import generators, stream

_PLACEMENTS = ('state', 'tape')
_ROUNDS = 6
_STRATEGY = strategies.BandedToeplitz(_ROUNDS, [1.0, 0.5, 0.25])
_PARTICIPATION = participation.MinSep(3)
# Two disjoint columns of norm^2 1 + 1/4 + 1/16.
_SENSITIVITY = np.sqrt(2 * (1 + 1 / 4 + 1 / 16))
_MULTIPLIER, _CLIENTS, _CLIP, _SEED = 0.7, 5.0, 2.5, 9
_Z_STDDEV = _MULTIPLIER * _SENSITIVITY * _CLIP

# Names out of alphabetical order, nested, all float types, a scalar.
_SPECS = collections.OrderedDict(
    kernel=tf.TensorSpec([3, 2], tf.float32),
    bias=(tf.TensorSpec([4], tf.float16), tf.TensorSpec([], tf.float64)),
    after=collections.OrderedDict(z=tf.TensorSpec([5], tf.bfloat16)))
_DIMENSION = 6 + 4 + 1 + 5
# The margin of clipping, or a few roundings of a result to its type.
_TOLERANCE = {
    'float16': 2e-3, 'bfloat16': 1.6e-2, 'float32': 3e-6, 'float64': 3e-6}


def _type(specs):
  return tff.types.to_type(tf.nest.map_structure(
      lambda spec: tff.TensorType(
          spec.dtype.as_numpy_dtype, spec.shape.as_list()), specs))


def _factory(placement, **kwargs):
  arguments = {
      'noise_multiplier': _MULTIPLIER, 'clients_per_round': _CLIENTS,
      'l2_norm_clip': _CLIP, 'record_specs': _SPECS, 'noise_seed': _SEED,
      'strategy': _STRATEGY, 'participation': _PARTICIPATION,
      'noise_placement': placement, **kwargs}
  return aggregator.correlated_noise_aggregator(**arguments)


def _updates(clients, seed, scale=1.0):
  rng = np.random.default_rng(seed)
  return [
      tf.nest.map_structure(
          lambda spec: np.asarray(
              scale * rng.normal(size=spec.shape), spec.dtype.as_numpy_dtype),
          _SPECS) for _ in range(clients)
  ]


def _flat(structure):
  return np.concatenate([
      np.asarray(x).astype(np.float64).ravel()
      for x in tf.nest.flatten(structure)])


def _clipped_sum(updates):
  flat = [_flat(update) for update in updates]
  return sum(x * min(1, _CLIP / np.linalg.norm(x)) for x in flat)


def _dense_noise(dimension=_DIMENSION, seed=_SEED):
  """Returns C^-1 Z, [rounds, d], without the plan."""
  words = tf.constant(noise.Key.from_seed(seed).words())
  z = [noise.standard_normal(words, t, 0, dimension) for t in range(_ROUNDS)]
  return np.linalg.solve(_STRATEGY.matrix(), np.stack(z).astype(np.float64))


def _assert_close(result, expected):
  tf.nest.assert_same_structure(result, _SPECS)
  sizes = [spec.shape.num_elements() for spec in tf.nest.flatten(_SPECS)]
  parts = np.split(expected, np.cumsum(sizes)[:-1])
  for leaf, part, spec in zip(
      tf.nest.flatten(result), parts, tf.nest.flatten(_SPECS)):
    leaf = np.asarray(leaf)
    assert leaf.shape == tuple(spec.shape)
    assert tf.as_dtype(leaf.dtype) == spec.dtype
    tolerance = _TOLERANCE[spec.dtype.name]
    np.testing.assert_allclose(
        leaf.astype(np.float64).ravel(), part, rtol=tolerance, atol=tolerance)


@pytest.fixture(scope='module')
def processes(runtime):
  """A factory and its process for each placement, seeded."""
  made = {}
  for placement in _PLACEMENTS:
    factory = _factory(placement)
    made[placement] = factory, factory.create(_type(_SPECS))
  yield made
  for factory, _ in made.values():
    factory.close()


@pytest.mark.parametrize('placement', _PLACEMENTS)
def test_types_are_those_of_a_dp_factory(placement):
  with _factory(placement) as factory:
    process = factory.create(_type(_SPECS))
    plain = tff.aggregators.SumFactory().create(_type(_SPECS))
  assert isinstance(process, tff.templates.AggregationProcess)
  signature = process.next.type_signature
  assert signature.result.result == plain.next.type_signature.result.result
  assert signature.parameter[1] == tff.FederatedType(_type(_SPECS), tff.CLIENTS)
  state = process.initialize.type_signature.result
  assert signature.parameter[0] == signature.result.state == state
  query_state = state.member['query_state']['numerator_state']
  scalar = tff.TensorType(np.int64)
  assert query_state['round'] == scalar
  expected = (
      tff.StructType([('tape_id', scalar), ('run', scalar)])
      if placement == 'tape' else
      tff.StructType([
          ('key', tff.TensorType(np.int64, [2])),
          ('past', tff.TensorType(np.float32, [2, _DIMENSION]))]))
  assert query_state['noise'].is_equivalent_to(expected)
  free = [
      ('round', scalar), ('z_stddev', tff.TensorType(np.float32)),
      ('noise_placement', tff.TensorType(np.str_))]
  if placement == 'tape':
    free.append(('rounds_ahead', tff.TensorType(np.int32)))
  assert signature.result.measurements.member.is_equivalent_to(
      tff.StructType([('free', tff.StructType(free))]))


@pytest.mark.parametrize('placement', _PLACEMENTS)
def test_rounds_equal_clipped_mean_plus_dense_noise(processes, placement):
  _, process = processes[placement]
  noise_rows = _Z_STDDEV * _dense_noise()
  state = process.initialize()
  for t in range(_ROUNDS):
    # Some are clipped and some are not; the divisor stays.
    updates = _updates(3 + t % 2, seed=t, scale=10.0**(t % 3 - 1))
    output = process.next(state, updates)
    _assert_close(
        output.result, (_clipped_sum(updates) + noise_rows[t]) / _CLIENTS)
    metrics = output.measurements['free']
    assert metrics['round'] == t + 1
    assert metrics['z_stddev'] == pytest.approx(_Z_STDDEV)
    assert metrics['noise_placement'] == placement.encode()
    state = output.state
  with pytest.raises(Exception, match='all are done'):
    process.next(state, _updates(1, seed=0))


def test_round_past_the_last_raises(runtime):
  # Also without noise, where no noise source would object.
  with _factory('state', noise_multiplier=0.0) as factory:
    process = factory.create(_type(_SPECS))
    state = process.initialize()
    for t in range(_ROUNDS):
      updates = _updates(2, seed=t)
      output = process.next(state, updates)
      _assert_close(output.result, _clipped_sum(updates) / _CLIENTS)
      state = output.state
    with pytest.raises(Exception, match='all are done'):
      process.next(state, _updates(2, seed=0))


def test_client_with_nan_or_infinity_contributes_zero(processes):
  _, process = processes['state']
  updates = _updates(5, seed=0)
  updates[1]['kernel'][2, 1] = np.nan
  updates[3]['bias'][0][0] = -np.inf
  updates[4]['after']['z'][1] = np.inf
  output = process.next(process.initialize(), updates)
  finite = [updates[0], updates[2]]
  _assert_close(
      output.result,
      (_clipped_sum(finite) + _Z_STDDEV * _dense_noise()[0]) / _CLIENTS)


def _run(process, state, start, stop):
  """Returns (results of the rounds, last state)."""
  results = []
  for t in range(start, stop):
    output = process.next(state, _updates(2, seed=t))
    state = output.state
    results.append(_flat(output.result))
  return np.stack(results), state


@pytest.mark.parametrize('placement', _PLACEMENTS)
@pytest.mark.parametrize('split', [1, 4])
def test_run_split_in_two_equals_one_run(runtime, placement, split):
  with _factory(placement) as factory:
    process = factory.create(_type(_SPECS))
    whole, _ = _run(process, process.initialize(), 0, _ROUNDS)
  with _factory(placement) as factory:
    process = factory.create(_type(_SPECS))
    first, saved = _run(process, process.initialize(), 0, split)
    # A round that was started and lost is played again after the restart.
    _run(process, saved, split, split + 1)
  with _factory(placement, start_round=split) as factory:
    process = factory.create(_type(_SPECS))
    fresh = process.initialize()
    tf.nest.assert_same_structure(fresh, saved)
    second, _ = _run(process, saved, split, _ROUNDS)
  assert np.array_equal(np.concatenate([first, second]), whole)


def test_finished_run_can_be_opened_again(runtime):
  with _factory('tape', start_round=_ROUNDS) as factory:
    process = factory.create(_type(_SPECS))
    state = process.initialize()
    assert state.query_state.numerator_state.round == _ROUNDS
    with pytest.raises(Exception, match='all are done'):
      process.next(state, _updates(1, seed=0))


def test_tape_of_another_key_or_round_is_refused(runtime):
  with _factory('tape') as factory:
    process = factory.create(_type(_SPECS))
    _, saved = _run(process, process.initialize(), 0, 2)
  for kwargs, match in [
      ({'noise_seed': _SEED + 1, 'start_round': 2}, 'another tape'),
      ({'noise_seed': None}, 'another tape'),
      ({'start_round': 3}, 'already used'),
  ]:
    with _factory('tape', **kwargs) as factory:
      process = factory.create(_type(_SPECS))
      with pytest.raises(Exception, match=match):
        process.next(saved, _updates(1, seed=2))


def test_round_after_close_fails_at_once(runtime):
  with _factory('tape') as factory:
    process = factory.create(_type(_SPECS))
    state = process.initialize()
  with pytest.raises(Exception, match='the tape is not there'):
    process.next(state, _updates(1, seed=0))


@pytest.mark.filterwarnings(
    'ignore::pytest.PytestUnhandledThreadExceptionWarning')
def test_failed_producer_fails_the_round_at_once(runtime, monkeypatch):
  def fail(*args):
    raise MemoryError

  monkeypatch.setattr(stream.Stream, 'rows', fail)
  began = time.monotonic()
  with _factory('tape') as factory:
    with pytest.raises(Exception, match='producer ended'):
      factory.create(_type(_SPECS)).initialize()
  assert time.monotonic() - began < 60


def test_used_noise_is_refused_to_a_second_run(runtime):
  with _factory('tape') as factory:
    process = factory.create(_type(_SPECS))
    state = process.initialize()
    _run(process, state, 0, 2)
    with pytest.raises(Exception, match='already used'):
      process.next(state, _updates(1, seed=7))
    with pytest.raises(Exception, match='already used'):
      process.initialize()


def test_second_process_on_a_tape_is_refused():
  with _factory('tape') as factory:
    with pytest.raises(ValueError, match='differs from record_specs'):
      factory.create(tff.TensorType(np.float32, [3]))
    factory.create(_type(_SPECS))
    with pytest.raises(ValueError, match='one run'):
      factory.create(_type(_SPECS))


@pytest.mark.parametrize('start_round', [0, 3])
def test_second_run_on_a_tape_is_refused_its_first_round(
    runtime, start_round):
  with _factory('tape', start_round=start_round) as factory:
    process = factory.create(_type(_SPECS))
    first, second = process.initialize(), process.initialize()
    process.next(first, _updates(2, seed=0))
    with pytest.raises(Exception, match='used by another run'):
      process.next(second, _updates(2, seed=1))
    # A replay is of the same run, and no other one keeps it off.
    process.initialize()
    process.next(first, _updates(2, seed=0))


def test_runs_without_seed_share_no_noise(runtime):
  with _factory('state', noise_seed=None) as factory:
    process = factory.create(_type(_SPECS))
    runs = [_run(process, process.initialize(), 0, 2)[0] for _ in range(2)]
  assert not np.isclose(*runs, atol=0).all(axis=1).any()
  assert np.mean(np.isclose(*runs, atol=0)) < 0.2


@pytest.mark.parametrize('placement', _PLACEMENTS)
def test_key_is_in_the_state_of_the_state_placement_only(runtime, placement):
  words = [str(word) for word in noise.Key.from_seed(_SEED).words()]
  with _factory(placement) as factory:
    process = factory.create(_type(_SPECS))
    output = process.next(process.initialize(), _updates(1, seed=0))
    late = output.state.query_state.numerator_state._replace(round=_ROUNDS)
    with pytest.raises(Exception, match='all are done') as error:
      process.next(
          output.state._replace(
              query_state=output.state.query_state._replace(
                  numerator_state=late)), _updates(1, seed=0))
  seen = [repr(factory), repr(vars(factory)), str(error.value),
          repr(output.result), repr(output.measurements)]
  assert not any(word in text for word in words for text in seen)
  assert all(word in repr(output.state) for word in words) == (
      placement == 'state')
  graphs = [
      tff.framework.serialize_computation(graph).SerializeToString()
      for graph in (process.initialize, process.next)]
  secret = noise.Key.from_seed(_SEED).secret
  assert any(secret in graph for graph in graphs) == (placement == 'state')


@pytest.mark.parametrize('specs', [
    tf.TensorSpec([2, 2], tf.float32),
    [tf.TensorSpec([2], tf.float32), tf.TensorSpec([], tf.float32)],
    (tf.TensorSpec([2], tf.float32), (tf.TensorSpec([1], tf.float64),)),
    {'b': tf.TensorSpec([2], tf.float32), 'a': tf.TensorSpec([], tf.float32)},
], ids=['leaf', 'list', 'tuple', 'dict'])
def test_containers_of_any_kind_get_their_noise(runtime, specs):
  with _factory('state', record_specs=specs) as factory:
    process = factory.create(_type(specs))
    value = tf.nest.map_structure(
        lambda s: np.zeros(s.shape, s.dtype.as_numpy_dtype), specs)
    result = process.next(process.initialize(), [value, value]).result
  dimension = sum(s.shape.num_elements() for s in tf.nest.flatten(specs))
  np.testing.assert_allclose(
      _flat(result), _Z_STDDEV * _dense_noise(dimension)[0] / _CLIENTS,
      rtol=1e-6, atol=1e-6)


def test_placement_follows_the_size_of_the_state():
  kernel = [tf.TensorSpec([2**22], tf.float32)]
  for specs, placement in [(_SPECS, 'state'), (kernel * 2, 'tape')]:
    with _factory(None, record_specs=specs) as factory:
      assert factory.noise_placement == placement


@pytest.mark.parametrize('placement', ['state', 'regenerate'])
def test_secure_noise_needs_a_tape(placement):
  with pytest.raises(
      ValueError, match=f'noise_placement={placement}: cannot make secure'):
    _factory(placement, secure_noise=True)


def test_secure_noise_is_that_of_aes(runtime):
  z = generators.AesCtr(noise.Key.from_seed(_SEED)).rows(
      0, _ROUNDS, 0, _DIMENSION).numpy()
  rows = _Z_STDDEV * np.linalg.solve(
      _STRATEGY.matrix(), z.astype(np.float64))
  with _factory(None, secure_noise=True) as factory:
    assert factory.noise_placement == 'tape'
    process = factory.create(_type(_SPECS))
    state = process.initialize()
    for t in range(_ROUNDS):
      updates = _updates(2, seed=t)
      output = process.next(state, updates)
      _assert_close(
          output.result, (_clipped_sum(updates) + rows[t]) / _CLIENTS)
      state = output.state


def test_state_that_cannot_pass_is_refused():
  huge = [tf.TensorSpec([230_000_000], tf.float32)]
  with pytest.raises(ValueError, match='1.8 GB of noise cannot pass.*use tape'):
    _factory('state', record_specs=huge)


def test_spec_is_the_claim():
  with _factory('state') as factory:
    spec = factory.spec
  assert spec.noise_multiplier == _MULTIPLIER
  assert spec.sensitivity.value == pytest.approx(_SENSITIVITY)
  assert spec.participation == _PARTICIPATION


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
    return tf.reduce_mean((output - label)**2)

  return tff.learning.models.FunctionalModel(
      initial_weights=(
          (np.zeros(3, np.float32), np.zeros([], np.float32)), ()),
      predict_on_batch_fn=predict, loss_fn=loss, input_spec=(_X, _Y))


@pytest.fixture(scope='module')
def client_data():
  rng = np.random.default_rng(0)
  x = rng.normal(size=(2, 8, 3)).astype(np.float32)
  return [
      tf.data.Dataset.from_tensor_slices(
          (each, each @ np.array([1, 2, 3], np.float32))).batch(4)
      for each in x]


_MODEL_SPECS = (tf.TensorSpec([3], tf.float32), tf.TensorSpec([], tf.float32))


@pytest.mark.parametrize('placement', _PLACEMENTS)
@pytest.mark.parametrize('algorithm', ['fed_avg', 'fed_sgd'])
def test_learning_process_adds_the_noise_to_its_weights(
    runtime, client_data, placement, algorithm):
  def train(noise_multiplier):
    with _factory(placement, record_specs=_MODEL_SPECS,
                  noise_multiplier=noise_multiplier) as factory:
      server = tff.learning.optimizers.build_sgdm(1.0)
      if algorithm == 'fed_avg':
        process = tff.learning.algorithms.build_unweighted_fed_avg(
            _linear_model(), tff.learning.optimizers.build_sgdm(0.1), server,
            model_aggregator=factory)
      else:
        process = tff.learning.algorithms.build_fed_sgd(
            _linear_model(), server,
            model_aggregator=tff.aggregators.as_weighted_aggregator(factory))
      output = process.next(process.initialize(), client_data)
      weights = process.get_model_weights(output.state)
      assert list(output.metrics['aggregator']) == ['free']
      return _flat(weights.trainable)

  plain, noised = train(0.0), train(_MULTIPLIER)
  assert np.any(plain)
  # The server subtracts the mean.
  np.testing.assert_allclose(
      plain - noised, _Z_STDDEV * _dense_noise(4)[0] / _CLIENTS,
      rtol=1e-4, atol=1e-6)


def test_weighted_fed_avg_is_refused():
  with _factory('state', record_specs=_MODEL_SPECS) as factory:
    with pytest.raises(TypeError, match='Weighted'):
      tff.learning.algorithms.build_weighted_fed_avg(
          _linear_model(), tff.learning.optimizers.build_sgdm(0.1),
          model_aggregator=factory)


@pytest.mark.parametrize('kwargs, error, match', [
    ({'noise_placement': 'cloud'}, ValueError, 'noise_placement=cloud'),
    ({'l2_norm_clip': 0.0}, ValueError, 'l2_norm_clip=0.0'),
    ({'l2_norm_clip': -1.0}, ValueError, 'l2_norm_clip=-1.0'),
    ({'clients_per_round': 0}, ValueError, 'clients_per_round=0'),
    ({'noise_multiplier': -0.1}, ValueError, 'noise_multiplier=-0.1'),
    ({'noise_multiplier': float('nan')}, ValueError, 'noise_multiplier=nan'),
    ({'noise_seed': 'secret'}, TypeError, 'noise_seed=str'),
    ({'strategy': np.eye(3)}, TypeError, 'strategy'),
    ({'participation': 3}, TypeError, 'participation'),
    ({'start_round': -1}, ValueError, 'start_round=-1'),
    ({'start_round': _ROUNDS + 1}, ValueError, 'start_round=7'),
    ({'start_round': 1, 'noise_seed': None}, ValueError, 'noise_seed'),
    ({'record_specs': [tf.TensorSpec([2], tf.int32)]}, TypeError, 'int32'),
    ({'noise_placement': 'tape', 'max_memory_bytes': 0}, ValueError,
     'max_memory_bytes=0'),
    ({'record_aggregation_factory': 3}, TypeError, 'AggregationFactory'),
])
@pytest.mark.parametrize('placement', _PLACEMENTS)
def test_bad_argument_is_refused_and_leaves_nothing(
    tmp_path, placement, kwargs, error, match):
  threads = _tape_threads()
  with pytest.raises(error, match=match) as raised:
    _factory(placement, **{'tape_directory': tmp_path / 'tape', **kwargs})
  assert 'secret' not in str(raised.value)
  assert not list(tmp_path.iterdir())
  assert _tape_threads() == threads


def _tape_threads():
  return [t for t in threading.enumerate() if t.name == 'tff_bandmf tape']


def test_updates_of_another_type_are_refused():
  with _factory('state') as factory:
    for value_type in (
        tff.TensorType(np.float32, [_DIMENSION]),
        _type(collections.OrderedDict(reversed(_SPECS.items()))),
        _type({**_SPECS, 'kernel': tf.TensorSpec([2, 3], tf.float32)}),
        _type({**_SPECS, 'kernel': tf.TensorSpec([3, 2], tf.float64)})):
      with pytest.raises(ValueError, match='differs from record_specs'):
        factory.create(value_type)
