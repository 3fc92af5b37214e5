"""Tests of the query, eagerly and without TFF."""

import collections

import dp_accounting
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_privacy as tfp

from tff_bandmf import (
  accounting,
  noise,
  participation,
  sensitivity,
  strategies,
)
from tff_bandmf import query as query_lib
from tff_bandmf.noise import generator, placements

_DTYPES = (tf.float16, tf.bfloat16, tf.float32, tf.float64)
_ROUNDS = 4
_STRATEGY = strategies.BandedToeplitz(_ROUNDS, [1.0, 0.5])
_KEY = noise.Key.from_seed(2)
_LARGEST_COHORT = 8
# The query that is open.
_queries = []
_BITS = 20


def _specs(*dtypes):
  return collections.OrderedDict(
    (dtype.name, (tf.TensorSpec([2, 3], dtype), tf.TensorSpec([], dtype)))
    for dtype in dtypes
  )


def _clipping(specs, l2_norm_clip=1.0):
  return query_lib.GraphClipping.from_clip(l2_norm_clip, specs, _BITS)


def _query(
  specs, l2_norm_clip=1.0, noise_per_clip=1.0, divisor=1.0, key=_KEY, **kwargs
):
  """A query whose noise is on a tape until the next query is made."""
  if _queries:
    _queries.pop().close()
  once = participation.Single()
  query = query_lib.CorrelatedNoiseQuery(
    accounting.Guarantee(
      _STRATEGY,
      once,
      noise_per_clip / sensitivity.sensitivity(_STRATEGY, once).value,
    ),
    specs,
    (l2_norm_clip, None, np.inf),
    divisor,
    largest_cohort=_LARGEST_COHORT,
    noise_from=placements.Tape(key=key),
    **kwargs,
  )
  _queries.append(query)
  return query


def _begun(query):
  return query.begin(query.initial_global_state())


@pytest.fixture(autouse=True)
def _close():
  yield
  while _queries:
    _queries.pop().close()


def _record(specs, scale, seed=0):
  """Returns a record whose entries range over `scale` down to its 1e-4."""
  rng = np.random.default_rng(seed)

  def draw(spec):
    size = (
      scale
      * 10 ** rng.uniform(-4, 0, spec.shape)
      * rng.choice([-1, 1], spec.shape)
    )
    largest = float(spec.dtype.max)
    return tf.cast(
      tf.constant(np.clip(size, -largest, largest), tf.float64), spec.dtype
    )

  return tf.nest.map_structure(draw, specs)


def _flat(record):
  """Returns the entries, in float64 of what the leaves hold."""
  return np.concatenate(
    [tf.cast(x, tf.float64).numpy().ravel() for x in tf.nest.flatten(record)]
  )


def test_leaf_that_is_no_float_is_refused_by_name():
  specs = {
    'layer': {
      'kernel': tf.TensorSpec([2], tf.float32),
      'step': tf.TensorSpec([], tf.int64),
    }
  }
  with pytest.raises(TypeError, match=r'update\[layer.step\].*int64'):
    query_lib.record_dimension(specs)


@pytest.mark.parametrize('dtype', [tf.bool, tf.string, tf.complex64, tf.uint8])
def test_dtype_that_is_no_float_is_refused(dtype):
  with pytest.raises(TypeError, match=dtype.name):
    query_lib.record_dimension(tf.TensorSpec([2], dtype))


@pytest.mark.parametrize(
  'specs, match',
  [
    (tf.TensorSpec([None], tf.float32), 'static'),
    (tf.TensorSpec(None, tf.float32), 'static'),
    ([], 'no coordinate'),
    (tf.TensorSpec([0], tf.float32), 'no coordinate'),
  ],
)
def test_record_without_a_known_size_is_refused(specs, match):
  with pytest.raises(ValueError, match=match):
    query_lib.record_dimension(specs)


@pytest.mark.parametrize('clip', [0, -1.0, np.nan, np.inf, 1e-100, 1e100])
def test_clip_out_of_range_is_refused(clip):
  with pytest.raises(ValueError, match='l2_norm_clip'):
    _query(_specs(tf.float32), clip)


def _sum(query, records, state):
  """Returns the clipped sum, as the factory makes it."""
  params = query.derive_sample_params(state)
  total = query.initial_sample_state(records[0] if records else None)
  for record in records:
    total = tf.nest.map_structure(
      tf.add, total, query.preprocess_record(params, record)
    )
  return total


def test_without_noise_the_result_is_the_mean_of_what_was_clipped():
  specs = _specs(tf.float32, tf.float64)
  query = _query(specs, l2_norm_clip=0.5, noise_per_clip=0.0, divisor=4.0)
  records = [_record(specs, 2.0, seed) for seed in range(3)]
  state = _begun(query)
  result, new_state, _ = query.get_noised_result(
    _sum(query, records, state), state
  )
  flat = map(_flat, records)
  expected = sum(x * min(1, 0.5 / np.linalg.norm(x)) for x in flat) / 4
  np.testing.assert_allclose(_flat(result), expected, rtol=0, atol=2e-6)
  assert new_state.round == 1


@pytest.mark.parametrize('container', ['tuple', 'list', 'dict', 'leaf'])
def test_noise_is_laid_out_like_the_record(container):
  leaves = [tf.TensorSpec([2], tf.float32), tf.TensorSpec([1, 3], tf.float64)]
  specs = {
    'tuple': tuple(leaves),
    'list': leaves,
    'dict': {'z': leaves[0], 'a': (leaves[1],)},
    'leaf': leaves[0],
  }[container]
  query = _query(specs, noise_per_clip=0.5, l2_norm_clip=3.0, divisor=2.0)
  state = _begun(query)
  dimension = query_lib.record_dimension(specs)
  y = []
  for _ in range(2):
    result, state, _ = query.get_noised_result(_sum(query, [], state), state)
    tf.nest.assert_same_structure(result, specs)
    for leaf, spec in zip(tf.nest.flatten(result), tf.nest.flatten(specs)):
      assert (leaf.shape, leaf.dtype) == (spec.shape, spec.dtype)
    y.append(_flat(result))
  z = generator.Generator(_KEY).rows(0, 2, 0, dimension)
  np.testing.assert_allclose(y[0], 0.75 * z[0], atol=1e-5)
  np.testing.assert_allclose(y[1], 0.75 * (z[1] - 0.5 * z[0]), atol=1e-5)


def test_release_is_a_whole_number_of_steps():
  """The sum and the noise are, so no low bit tells one from the other."""
  specs = tf.TensorSpec([1000], tf.float64)
  fine = np.random.default_rng(0).uniform(-1, 1, 1000) / 1000

  def released(records):
    query = _query(specs)
    state = _begun(query)
    mean = query.get_noised_result(_sum(query, records, state), state)[0]
    return mean.numpy() * query.lattice.clip_steps, query.lattice.clip_steps

  steps, clip = released([tf.constant(fine)])
  assert np.array_equal(steps, np.rint(steps))
  quiet, _ = released([])
  np.testing.assert_array_equal(steps - quiet, np.rint(fine * clip))


@pytest.mark.slow
def test_sums_are_exact_in_any_order():
  """Floats are not: here one client moves a float32 sum by more than a clip."""
  specs = tf.TensorSpec([1], tf.float32)
  query = _query(specs, noise_per_clip=0.0)
  records = [
    tf.constant([value]) for value in (0.99902, 1.0, 0.5, 1e-6, 3e-7, -0.3, 0.7)
  ]
  state, rng = _begun(query), np.random.default_rng(0)
  orders = [rng.permutation(len(records)) for _ in range(25)]
  sums = {
    int(_sum(query, [records[i] for i in order], state)[0]) for order in orders
  }
  assert len(sums) == 1
  without, *_ = _sum(query, records[1:], state)
  assert abs(sums.pop() - int(without)) <= query.lattice.clip_steps


def test_records_that_add_nothing_are_counted():
  """Updates that are all NaN would give a model of noise without a word."""
  query = _query(tf.TensorSpec([3]))
  records = [[1.0, 0.0, 0.0], [0.0] * 3, [np.nan, 1.0, 1.0], [0.0, 0.0, -2.0]]
  _, clients, zero = _sum(
    query, [tf.constant(record) for record in records], _begun(query)
  )
  assert (clients, zero) == (4, 2)


@pytest.mark.parametrize('sums', [False, True])
def test_round_of_more_than_the_largest_cohort_fails(sums):
  specs = _specs(tf.float32)
  query = _query(specs, sums=sums)
  state = _begun(query)
  zeros, clients, _ = query.initial_sample_state()
  most = tf.cast(_LARGEST_COHORT, clients.dtype)
  query.get_noised_result((zeros, most, 0 * most), state)
  for count in (most + 1, -tf.ones_like(most), most * 2**20):
    with pytest.raises(
      tf.errors.InvalidArgumentError, match='largest_cohort=8; give'
    ):
      query.get_noised_result((zeros, count, 0 * count), state)
  with pytest.raises(tf.errors.InvalidArgumentError, match='largest_cohort'):
    record = (tf.nest.map_structure(tf.zeros_like, zeros), tf.constant(3))
    query.get_noised_result(
      _sum(query, [record if sums else _record(specs, 1.0)] * 9, state), state
    )


@pytest.mark.slow
def test_groups_of_any_size_give_the_same_bits():
  specs = _specs(tf.float32, tf.float16)
  records = [_record(specs, 3.0, seed) for seed in range(6)]
  single = _query(specs)
  state = _begun(single)
  expected, _, _ = single.get_noised_result(_sum(single, records, state), state)
  for size in (1, 2, 4, 6):
    groups = []
    for first in range(0, 6, size):
      members = list(map(single.clip.clip, records[first : first + size]))
      groups.append((tf.add_n(members), tf.constant(len(members))))
    grouped = _query(specs, sums=True)
    state = _begun(grouped)
    found, _, _ = grouped.get_noised_result(_sum(grouped, groups, state), state)
    tf.nest.map_structure(np.testing.assert_array_equal, found, expected)


@pytest.mark.parametrize(
  'clients, clips, steps',
  [
    (-1, 0, 0),
    (_LARGEST_COHORT + 1, 0, 0),
    (2, 2, 1),
    (2, -2, -1),
    (0, 0, 1),
    (1, 0, -(2**31)),
  ],
)
def test_sum_of_other_clients_than_it_says_is_refused(clients, clips, steps):
  query = _query(tf.TensorSpec([3]), sums=True)
  entry = clips * query.lattice.clip_steps + steps
  good = query.lattice.clip_steps * tf.constant([0, 2, -2])
  query.preprocess_record((), (good, tf.constant(2)))
  with pytest.raises(tf.errors.InvalidArgumentError, match='sum of clipped'):
    query.preprocess_record(
      (), (tf.constant([0, entry, 0]), tf.constant(clients))
    )


@pytest.mark.parametrize('noise_per_clip', [0.0, 1.0])
def test_state_that_was_not_begun_releases_nothing(noise_per_clip):
  specs = _specs(tf.float32)
  query = _query(specs, noise_per_clip=noise_per_clip)
  state = query.initial_global_state()
  for seed in range(3):
    result, state, _ = query.get_noised_result(
      _sum(query, [_record(specs, 1.0, seed)], state), state
    )
    assert not _flat(result).any()
    assert state.round == -1
  assert query.begin(state).round == 0


def test_mean_has_the_dtypes_of_the_record():
  specs = _specs(*_DTYPES)
  query = _query(specs, divisor=5.0)
  state = _begun(query)
  mean, _, _ = query.get_noised_result(query.initial_sample_state(), state)
  for leaf, spec in zip(*map(tf.nest.flatten, (mean, specs))):
    assert (leaf.shape, leaf.dtype) == (spec.shape, spec.dtype)


def test_sum_too_large_for_its_type_has_a_mean():
  # 60,000 twice is infinity in float16.
  specs = tf.TensorSpec([1], tf.float16)
  query = _query(specs, 6e4, noise_per_clip=0.0, divisor=2.0)
  state = _begun(query)
  mean, _, _ = query.get_noised_result(
    _sum(query, [tf.constant([6e4], tf.float16)] * 2, state), state
  )
  assert float(mean[0]) == pytest.approx(6e4, rel=1e-3)


def test_same_state_twice_gives_the_same_result():
  query = _query(_specs(tf.float32))
  state = _begun(query)
  zero = query.initial_sample_state()
  for _ in range(_ROUNDS):
    first = query.get_noised_result(zero, state)[:2]
    second = query.get_noised_result(zero, state)[:2]
    for a, b in zip(tf.nest.flatten(first), tf.nest.flatten(second)):
      assert np.array_equal(a, b)
    state = first[1]


@pytest.mark.parametrize('noise_per_clip', [0.0, 1.0])
def test_round_past_the_last_raises(noise_per_clip):
  query = _query(_specs(tf.float32), noise_per_clip=noise_per_clip)
  state = _begun(query)
  zero = query.initial_sample_state()
  for _ in range(_ROUNDS):
    _, state, _ = query.get_noised_result(zero, state)
  with pytest.raises(tf.errors.InvalidArgumentError, match='all are done'):
    query.get_noised_result(zero, state)


def test_event_of_a_round_cannot_be_accounted():
  query = _query(_specs(tf.float32))
  event = query.get_noised_result(query.initial_sample_state(), _begun(query))[
    2
  ]
  assert isinstance(event, dp_accounting.UnsupportedDpEvent)
  accountant = dp_accounting.pld.PLDAccountant()
  assert not accountant.supports(event)


def test_metrics_are_round_and_noise():
  query = _query(_specs(tf.float32), l2_norm_clip=2.0, noise_per_clip=1.25)
  metrics = query.derive_metrics(_begun(query))
  values = {name: value.numpy() for name, value in metrics.items()}
  assert 0 <= values.pop('rounds_ahead') <= _ROUNDS
  assert values.pop('z_stddev') == pytest.approx(2.5, rel=1e-12)
  assert values == {
    'round': 0,
    'noise_placement': b'tape',
    'noise_checked': True,
  }


def test_query_is_a_sum_aggregation_query():
  assert isinstance(_query(_specs(tf.float32)), tfp.SumAggregationDPQuery)


@pytest.mark.slow
def test_graph_has_few_operations_for_a_leaf():
  """Each costs a millisecond, in Python and again in TFF's compiler."""

  def operations(count):
    query = _query([tf.TensorSpec([3, 50])] * count, noise_per_clip=0.0)
    state = _begun(query)

    @tf.function(autograph=False)
    def round_(record):
      total = query.preprocess_record(query.derive_sample_params(state), record)
      return query.get_noised_result(total, state)[0]

    graph = round_.get_concrete_function(
      query.record_specs
    ).graph.as_graph_def()
    return len(graph.node) + sum(
      len(function.node_def) for function in graph.library.function
    )

  assert operations(70) - operations(20) <= 50 * 10
