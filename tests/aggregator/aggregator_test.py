"""Tests of the aggregator: types, then rounds through a TFF worker."""

import collections
import inspect
import threading
import time

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_bandmf import aggregator, noise, participation, strategies
from tff_bandmf.noise import generator, placements
from tff_bandmf.noise.producer import stream

_PLACEMENTS = ('state', 'tape')
_ROUNDS = 6
_STRATEGY = strategies.BandedToeplitz(_ROUNDS, [1.0, 0.5, 0.25])
_PARTICIPATION = participation.MinSep(3)
# Two disjoint columns of norm^2 1 + 1/4 + 1/16.
_SENSITIVITY = np.sqrt(2 * (1 + 1 / 4 + 1 / 16))
_MULTIPLIER, _CLIENTS, _CLIP = 0.7, 5.0, 2.5
_Z_STDDEV = _MULTIPLIER * _SENSITIVITY * _CLIP
_KEY = noise.Key.from_seed(9)

# Names out of alphabetical order, nested, all float types, a scalar.
_SPECS = collections.OrderedDict(
  kernel=tf.TensorSpec([3, 2], tf.float32),
  bias=(tf.TensorSpec([4], tf.float16), tf.TensorSpec([], tf.float64)),
  after=collections.OrderedDict(z=tf.TensorSpec([5], tf.bfloat16)),
)
_DIMENSION = 6 + 4 + 1 + 5
# The steps of the lattice, or a rounding of a result to its type.
_TOLERANCE = {
  'float16': 2e-3,
  'bfloat16': 1.6e-2,
  'float32': 3e-5,
  'float64': 3e-5,
}


def _type(specs):
  return tff.types.to_type(
    tf.nest.map_structure(
      lambda spec: tff.TensorType(
        spec.dtype.as_numpy_dtype, spec.shape.as_list()
      ),
      specs,
    )
  )


def _placement(name, **kwargs):
  if name == 'state':
    return placements.InState()
  return placements.Tape(**{'key': _KEY, **kwargs})


def _factory(placement, tape=None, **kwargs):
  arguments = {
    'noise_multiplier': _MULTIPLIER,
    'clients_per_round': _CLIENTS,
    'l2_norm_clip': _CLIP,
    'strategy': _STRATEGY,
    'participation': _PARTICIPATION,
    'noise': _placement(placement, **(tape or {})),
    **kwargs,
  }
  return aggregator.dp_aggregator(**arguments)


def _with_key(state, key=_KEY):
  """The state of a run with a key that the tests know, where it has one."""
  query_state = state.query_state
  if 'key' not in query_state.noise:
    return state
  known = collections.OrderedDict(
    query_state.noise, key=np.frombuffer(key.secret, np.int32)
  )
  return state._replace(query_state=query_state._replace(noise=known))


def _start(process):
  return _with_key(process.initialize())


def _updates(clients, seed, scale=1.0):
  rng = np.random.default_rng(seed)
  return [
    tf.nest.map_structure(
      lambda spec: np.asarray(
        scale * rng.normal(size=spec.shape), spec.dtype.as_numpy_dtype
      ),
      _SPECS,
    )
    for _ in range(clients)
  ]


def _flat(structure):
  return np.concatenate(
    [
      np.asarray(x).astype(np.float64).ravel()
      for x in tf.nest.flatten(structure)
    ]
  )


def _clipped_sum(updates):
  flat = [_flat(update) for update in updates]
  return sum(x * min(1, _CLIP / np.linalg.norm(x)) for x in flat)


def _dense_noise(dimension=_DIMENSION):
  """Returns C^-1 Z, [rounds, d], without the recursion."""
  z = generator.Generator(_KEY).rows(0, _ROUNDS, 0, dimension)
  return np.linalg.solve(_STRATEGY.matrix(), z)


def _assert_close(result, expected):
  tf.nest.assert_same_structure(result, _SPECS)
  sizes = [spec.shape.num_elements() for spec in tf.nest.flatten(_SPECS)]
  parts = np.split(expected, np.cumsum(sizes)[:-1])
  for leaf, part, spec in zip(
    tf.nest.flatten(result), parts, tf.nest.flatten(_SPECS)
  ):
    leaf = np.asarray(leaf)
    assert leaf.shape == tuple(spec.shape)
    assert tf.as_dtype(leaf.dtype) == spec.dtype
    tolerance = _TOLERANCE[spec.dtype.name]
    np.testing.assert_allclose(
      leaf.astype(np.float64).ravel(), part, rtol=tolerance, atol=tolerance
    )


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
  query_state = state.member['query_state']
  scalar = tff.TensorType(np.int64)
  assert query_state['round'] == scalar
  expected = (
    tff.StructType([('tape_id', scalar), ('run', scalar)])
    if placement == 'tape'
    else tff.StructType(
      [
        ('key', tff.TensorType(np.int32, [8])),
        ('past', tff.TensorType(np.int32, [2, _DIMENSION])),
      ]
    )
  )
  assert query_state['noise'].is_equivalent_to(expected)
  free = [
    ('round', scalar),
    ('z_stddev', tff.TensorType(np.float32)),
    ('noise_placement', tff.TensorType(np.str_)),
    ('noise_checked', tff.TensorType(np.bool_)),
  ]
  if placement == 'tape':
    free.append(('rounds_ahead', tff.TensorType(np.int32)))
  assert signature.result.measurements.member.is_equivalent_to(
    tff.StructType([('free', tff.StructType(free))])
  )


@pytest.mark.parametrize('placement', _PLACEMENTS)
def test_rounds_equal_clipped_mean_plus_dense_noise(runtime, placement):
  noise_rows = _Z_STDDEV * _dense_noise()
  with _factory(placement) as factory:
    process = factory.create(_type(_SPECS))
    state = _start(process)
    for t in range(_ROUNDS):
      # Some are clipped and some are not; the divisor stays.
      updates = _updates(3 + t % 2, seed=t, scale=10.0 ** (t % 3 - 1))
      output = process.next(state, updates)
      _assert_close(
        output.result, (_clipped_sum(updates) + noise_rows[t]) / _CLIENTS
      )
      metrics = output.measurements['free']
      assert metrics['round'] == t + 1
      assert metrics['z_stddev'] == pytest.approx(_Z_STDDEV)
      assert metrics['noise_placement'] == placement.encode()
      assert metrics['noise_checked']
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
      assert output.measurements['free']['noise_placement'] == b'none'
      assert not output.measurements['free']['noise_checked']
      state = output.state
    with pytest.raises(ValueError, match='all are done') as error:
      process.next(state, _updates(2, seed=0))
    # One line, without the graph that it comes from.
    assert str(error.value) == (
      f'the strategy supports {_ROUNDS} rounds and all are done; optimise one '
      f'for more rounds and account for both runs. round: {_ROUNDS}'
    )
    assert error.value.__suppress_context__


def test_client_with_nan_or_infinity_contributes_zero(runtime):
  with _factory('state') as factory:
    process = factory.create(_type(_SPECS))
    updates = _updates(5, seed=0)
    updates[1]['kernel'][2, 1] = np.nan
    updates[3]['bias'][0][0] = -np.inf
    updates[4]['after']['z'][1] = np.inf
    output = process.next(_start(process), updates)
  finite = [updates[0], updates[2]]
  _assert_close(
    output.result,
    (_clipped_sum(finite) + _Z_STDDEV * _dense_noise()[0]) / _CLIENTS,
  )


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
    whole, _ = _run(process, _start(process), 0, _ROUNDS)
  with _factory(placement) as factory:
    process = factory.create(_type(_SPECS))
    first, saved = _run(process, _start(process), 0, split)
    # A round that was started and lost is played again after the restart.
    _run(process, saved, split, split + 1)
  with _factory(placement, {'start_round': split}) as factory:
    process = factory.create(_type(_SPECS))
    fresh = process.initialize()
    tf.nest.assert_same_structure(fresh, saved)
    second, _ = _run(process, saved, split, _ROUNDS)
  assert np.array_equal(np.concatenate([first, second]), whole)


def test_finished_run_can_be_opened_again(runtime):
  with _factory('tape', {'start_round': _ROUNDS}) as factory:
    process = factory.create(_type(_SPECS))
    state = process.initialize()
    assert state.query_state.round == _ROUNDS
    with pytest.raises(Exception, match='all are done'):
      process.next(state, _updates(1, seed=0))


def test_tape_of_another_key_or_round_is_refused(runtime):
  with _factory('tape') as factory:
    process = factory.create(_type(_SPECS))
    _, saved = _run(process, process.initialize(), 0, 2)
  for tape, match in [
    ({'key': noise.Key.from_seed(10), 'start_round': 2}, 'another tape'),
    ({'key': None}, 'another tape'),
    ({'start_round': 3}, 'already used'),
  ]:
    with _factory('tape', tape) as factory:
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
  'ignore::pytest.PytestUnhandledThreadExceptionWarning'
)
def test_failed_producer_fails_the_round_at_once(runtime, monkeypatch):
  def fail(*args):
    raise MemoryError

  monkeypatch.setattr(stream.Stream, 'rows', fail)
  began = time.monotonic()
  with _factory('tape') as factory:
    process = factory.create(_type(_SPECS))
    with pytest.raises(Exception, match='producer ended'):
      process.next(process.initialize(), _updates(1, seed=0))
  assert time.monotonic() - began < 60


def test_round_of_a_tape_releases_one_sum(runtime):
  with _factory('tape') as factory:
    process = factory.create(_type(_SPECS))
    state = process.initialize()
    first = process.next(state, _updates(2, seed=0)).result
    # The same sum again is a repeated call.
    again = process.next(state, _updates(2, seed=0)).result
    np.testing.assert_array_equal(_flat(first), _flat(again))
    with pytest.raises(Exception, match='noise tape'):
      process.next(state, _updates(2, seed=7))


def test_used_noise_is_refused_to_a_second_run(runtime):
  with _factory('tape') as factory:
    process = factory.create(_type(_SPECS))
    state = process.initialize()
    _run(process, state, 0, 2)
    with pytest.raises(Exception, match='noise tape'):
      process.next(state, _updates(1, seed=7))
    with pytest.raises(Exception, match='noise tape'):
      process.next(process.initialize(), _updates(1, seed=7))


@pytest.mark.parametrize('placement', _PLACEMENTS)
@pytest.mark.parametrize('sums', [False, True])
def test_second_process_of_a_factory_is_refused(placement, sums):
  with _factory(placement) as factory:
    create = factory.create_for_sums if sums else factory.create
    create(_type(_SPECS))
    for again in (factory.create, factory.create_for_sums):
      with pytest.raises(ValueError, match='an aggregator serves one run'):
        again(_type(_SPECS))


@pytest.mark.parametrize('start_round', [0, 3])
@pytest.mark.parametrize('multiplier', [_MULTIPLIER, 2 * _MULTIPLIER])
def test_second_factory_with_a_key_is_refused(start_round, multiplier):
  """Another size or deviation has the same z, times another number."""
  with (
    _factory('tape') as first,
    _factory(
      'tape', {'start_round': start_round}, noise_multiplier=multiplier
    ) as second,
  ):
    first.create(_type(_SPECS))
    with pytest.raises(ValueError, match='serves another agg') as caught:
      second.create(_type(_SPECS))
    assert '\n' not in str(caught.value)
    first.close()
    # A run that goes on, and a close too many does not let a third one in.
    second.create(_type(_SPECS))
    first.close()
    with _factory('tape') as third, pytest.raises(ValueError, match='serves'):
      third.create(_type(_SPECS))


@pytest.mark.parametrize('start_round', [0, 3])
def test_second_run_on_a_tape_is_refused_its_first_round(runtime, start_round):
  with _factory('tape', {'start_round': start_round}) as factory:
    process = factory.create(_type(_SPECS))
    first, second = process.initialize(), process.initialize()
    process.next(first, _updates(2, seed=0))
    with pytest.raises(Exception, match='another run|another sum'):
      process.next(second, _updates(2, seed=0))
    # A replay is of the same run, and no other one keeps it off.
    process.initialize()
    process.next(first, _updates(2, seed=0))


def test_two_runs_in_the_state_share_no_noise(runtime):
  with _factory('state') as factory:
    process = factory.create(_type(_SPECS))
    states = [process.initialize() for _ in range(2)]
    runs = [_run(process, state, 0, 2)[0] for state in states]
  keys = [state.query_state.noise['key'] for state in states]
  assert not np.isin(*keys).any()
  assert np.mean(np.isclose(*runs, atol=0)) < 0.2


@pytest.mark.parametrize('placement', _PLACEMENTS)
def test_state_that_was_never_begun_releases_nothing(runtime, placement):
  with _factory(placement) as factory:
    process = factory.create(_type(_SPECS))
    state = process.initialize()
    state = state._replace(query_state=state.query_state._replace(round=-1))
    for seed in range(2):
      output = process.next(state, _updates(2, seed=seed))
      assert not _flat(output.result).any()
      state = output.state
      assert state.query_state.round == -1


def test_skipped_round_releases_nothing(runtime):
  with _factory('tape') as factory:
    process = factory.create(_type(_SPECS))
    state = process.initialize()
    expected, _ = _run(process, state, 0, 3)
  with _factory('tape') as factory:
    process = factory.create(_type(_SPECS))
    state = process.initialize()
    skipped = aggregator.skip_round(aggregator.skip_round(state))
    tf.nest.assert_same_structure(state, skipped)
    assert skipped.query_state.round == 2
    found, _ = _run(process, skipped, 2, 3)
    np.testing.assert_array_equal(found[0], expected[2])
    # It does not come back.
    with pytest.raises(Exception, match='noise tape'):
      process.next(state, _updates(2, seed=0))
  with _factory('state') as factory:
    process = factory.create(_type(_SPECS))
    with pytest.raises(ValueError, match='cannot leave a round out'):
      aggregator.skip_round(process.initialize())


@pytest.mark.parametrize('placement', _PLACEMENTS)
def test_key_is_in_the_state_of_the_state_placement_only(runtime, placement):
  with _factory(placement) as factory:
    process = factory.create(_type(_SPECS))
    state = _start(process)
    output = process.next(state, _updates(1, seed=0))
    late = output.state.query_state._replace(round=_ROUNDS)
    with pytest.raises(Exception, match='all are done') as error:
      process.next(output.state._replace(query_state=late), _updates(1, seed=0))
  words = [str(word) for word in np.frombuffer(_KEY.secret, np.int32)]
  seen = [
    repr(factory),
    repr(vars(factory)),
    str(error.value),
    repr(output.result),
    repr(output.measurements),
  ]
  assert not any(word in text for word in words for text in seen)
  assert all(word in repr(output.state) for word in words) == (
    placement == 'state'
  )
  graphs = [
    tff.framework.serialize_computation(graph).SerializeToString()
    for graph in (process.initialize, process.next)
  ]
  assert not any(_KEY.secret[:8] in graph for graph in graphs)


@pytest.mark.parametrize('sums', [False, True])
def test_round_of_too_many_clients_fails_and_says_what_to_do(runtime, sums):
  with _factory('state') as factory:
    assert factory.lattice is None
    if sums:
      clipping, _, process = factory.create_for_sums(_type(_SPECS))
      updates = [
        (clipping.clip(update), np.int32(1)) for update in _updates(6, seed=0)
      ]
    else:
      process = factory.create(_type(_SPECS))
      updates = _updates(6, seed=0)
    assert factory.lattice.largest_cohort == 5
    state = process.initialize()
    process.next(state, updates[:5])
    with pytest.raises(Exception, match='larger largest_cohort, it is 5'):
      process.next(state, updates)
  with _factory('state', largest_cohort=6) as factory:
    process = factory.create(_type(_SPECS))
    process.next(process.initialize(), _updates(6, seed=0))


def test_sums_of_groups_are_those_of_their_clients(runtime):
  updates = _updates(5, seed=3)
  with _factory('state') as factory:
    process = factory.create(_type(_SPECS))
    expected = process.next(_start(process), updates).result
  with _factory('state') as factory:
    clipping, _, process = factory.create_for_sums(_type(_SPECS))
    state = _start(process)
    clipped = list(map(clipping.clip, updates))
    for ends in ([1, 2, 3, 4, 5], [2, 5], [5]):
      groups = [
        (
          tf.nest.map_structure(
            lambda *x: tf.add_n(x).numpy(), *clipped[start:end]
          ),
          np.int32(end - start),
        )
        for start, end in zip([0, *ends], ends)
      ]
      found = process.next(state, groups).result
      np.testing.assert_array_equal(_flat(found), _flat(expected))
      tf.nest.assert_same_structure(found, _SPECS)


@pytest.mark.parametrize('option', ['secure_sum', 'measure_clients'])
def test_groups_are_not_hidden_or_measured(option):
  with _factory('state', **{option: True}) as factory:
    with pytest.raises(ValueError, match=f'{option}=True: is for updates of'):
      factory.create_for_sums(_type(_SPECS))


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
def test_containers_of_any_kind_get_their_noise(runtime, specs):
  with _factory('state') as factory:
    process = factory.create(_type(specs))
    value = tf.nest.map_structure(
      lambda s: np.zeros(s.shape, s.dtype.as_numpy_dtype), specs
    )
    result = process.next(_start(process), [value, value]).result
  dimension = sum(s.shape.num_elements() for s in tf.nest.flatten(specs))
  np.testing.assert_allclose(
    _flat(result),
    _Z_STDDEV * _dense_noise(dimension)[0] / _CLIENTS,
    rtol=1e-5,
    atol=1e-5,
  )


def test_noise_is_on_a_tape_unless_the_state_is_asked_for():
  with _factory('tape', noise=None) as factory:
    assert factory.noise == placements.Tape()


def test_spec_is_the_claim():
  with _factory('state') as factory:
    spec = factory.guarantee
  assert spec.noise_multiplier == _MULTIPLIER
  assert spec.sensitivity.value == pytest.approx(_SENSITIVITY)
  assert spec.cohorts == _PARTICIPATION


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


@pytest.mark.parametrize('placement', _PLACEMENTS)
@pytest.mark.parametrize('algorithm', ['fed_avg', 'fed_sgd'])
def test_learning_process_adds_the_noise_to_its_weights(
  runtime, client_data, placement, algorithm
):
  def train(noise_multiplier):
    with _factory(placement, noise_multiplier=noise_multiplier) as factory:
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
      state = process.initialize()
      if noise_multiplier:
        state = state._replace(aggregator=_with_key(state.aggregator))
      output = process.next(state, client_data)
      weights = process.get_model_weights(output.state)
      assert list(output.metrics['aggregator']) == ['free']
      return _flat(weights.trainable)

  plain, noised = train(0.0), train(_MULTIPLIER)
  assert np.any(plain)
  # The server subtracts the mean.
  np.testing.assert_allclose(
    plain - noised,
    _Z_STDDEV * _dense_noise(4)[0] / _CLIENTS,
    rtol=1e-4,
    atol=1e-5,
  )


def test_weighted_fed_avg_is_refused():
  with _factory('state') as factory:
    # The troubleshooting page has the remedy under these words of TFF.
    with pytest.raises(
      TypeError, match='Expected tensorflow_federated.*WeightedAggregation'
    ):
      tff.learning.algorithms.build_weighted_fed_avg(
        _linear_model(),
        tff.learning.optimizers.build_sgdm(0.1),
        model_aggregator=factory,
      )


def test_leading_arguments_are_those_of_tff():
  theirs = list(inspect.signature(tff.learning.dp_aggregator).parameters)
  ours = inspect.signature(aggregator.dp_aggregator).parameters
  assert [
    name
    for name, each in ours.items()
    if each.kind is each.POSITIONAL_OR_KEYWORD
  ] == theirs[:2]


def test_call_of_tff_names_the_clip():
  with pytest.raises(TypeError, match="'l2_norm_clip'"):
    aggregator.dp_aggregator(1.0, 3)
  # What stands third there is zeroing, not a clip.
  with pytest.raises(TypeError, match='positional'):
    aggregator.dp_aggregator(1.0, 3, True)


@pytest.mark.parametrize(
  'clip',
  [
    None,
    tff.aggregators.PrivateQuantileEstimationProcess.no_noise(
      initial_estimate=1.0, target_quantile=0.5, learning_rate=0.2
    ),
  ],
)
def test_adaptive_clip_is_refused(clip):
  with pytest.raises(
    TypeError, match='l2_norm_clip.*noise of the run; give a norm'
  ):
    _factory('state', l2_norm_clip=clip)


@pytest.mark.parametrize(
  'kwargs, error, match',
  [
    ({'noise': 'tape'}, TypeError, 'noise=str: is not a placement'),
    ({'noise': _KEY}, TypeError, 'noise=Key: is not a placement'),
    ({'l2_norm_clip': 0.0}, ValueError, 'l2_norm_clip=0.0'),
    ({'l2_norm_clip': -1.0}, ValueError, 'l2_norm_clip=-1.0'),
    ({'l2_norm_clip': True}, TypeError, 'l2_norm_clip=True'),
    ({'l2_norm_clip': {'kernel': True}}, TypeError, 'l2_norm_clip=True'),
    ({'clients_per_round': 0}, ValueError, 'clients_per_round=0'),
    ({'clients_per_round': True}, TypeError, 'clients_per_round=True'),
    ({'largest_cohort': 0}, ValueError, 'largest_cohort=0'),
    ({'largest_cohort': 4.5}, TypeError, 'largest_cohort=4.5'),
    ({'noise_multiplier': -0.1}, ValueError, 'noise_multiplier=-0.1'),
    ({'noise_multiplier': float('nan')}, ValueError, 'noise_multiplier=nan'),
    ({'noise_multiplier': True}, TypeError, 'noise_multiplier=True'),
    ({'strategy': np.eye(3)}, TypeError, 'strategy'),
    ({'participation': 3}, TypeError, 'participation'),
    (
      {'noise': placements.Tape(key=_KEY, start_round=_ROUNDS + 1)},
      ValueError,
      'start_round=7',
    ),
    ({'zeroing_norm': 0.0}, ValueError, 'zeroing_norm=0.0'),
    ({'clip': 1.0}, TypeError, 'clip'),
  ],
)
def test_bad_argument_is_refused(kwargs, error, match):
  threads = _tape_threads()
  with pytest.raises(error, match=match):
    _factory('tape', **kwargs)
  assert _tape_threads() == threads


@pytest.mark.parametrize(
  'kwargs, error, match',
  [
    (
      {'noise': placements.Tape(max_memory_bytes=0)},
      ValueError,
      'max_memory_bytes=0',
    ),
    ({'largest_cohort': 2**30}, ValueError, 'largest_cohort'),
    ({'l2_norm_clip': {'kernel': 1.0}}, ValueError, 'outer structure'),
  ],
)
def test_what_does_not_fit_is_refused_and_leaves_nothing(kwargs, error, match):
  threads = _tape_threads()
  with _factory('tape', **kwargs) as factory:
    with pytest.raises(error, match=match):
      factory.create(_type(_SPECS))
  assert _tape_threads() == threads


def test_update_of_integers_is_refused_by_name():
  with _factory('state') as factory:
    with pytest.raises(TypeError, match=r'update\[step\].*int32'):
      factory.create(
        tff.to_type(
          collections.OrderedDict(kernel=(np.float32, [2]), step=np.int32)
        )
      )


def _tape_threads():
  return [t for t in threading.enumerate() if t.name == 'tff_bandmf tape']


def test_producer_of_a_tape_ends_with_the_factory():
  before = _tape_threads()
  with _factory('tape') as factory:
    factory.create(_type(_SPECS))
    assert len(_tape_threads()) == len(before) + 1
  assert _tape_threads() == before
