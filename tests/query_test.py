"""Tests of the query, eagerly and without TFF."""

import collections
import itertools

import dp_accounting
import hypothesis
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_privacy as tfp
from hypothesis import strategies as st

from tff_bandmf import noise, strategies
from tff_bandmf import query as query_lib

_DTYPES = (tf.float16, tf.bfloat16, tf.float32, tf.float64)
_MIXES = [
    mix for size in range(1, 5) for mix in itertools.combinations(_DTYPES, size)
]
_ROUNDS = 4
_STRATEGY = strategies.BandedToeplitz(_ROUNDS, [1.0, 0.5])
_KEY = noise.Key.from_seed(2)


def _specs(*dtypes):
  return collections.OrderedDict(
      (dtype.name, (tf.TensorSpec([2, 3], dtype), tf.TensorSpec([], dtype)))
      for dtype in dtypes)


def _query(specs, l2_norm_clip=1.0, z_stddev=1.0, **zeroing):
  source = noise.StateSource(
      noise.Plan.of(_STRATEGY), query_lib.record_dimension(specs), _KEY)
  return query_lib.CorrelatedNoiseSumQuery(
      query_lib.Clipping.of(l2_norm_clip, specs, **zeroing), z_stddev, specs,
      _ROUNDS, source)


def _record(specs, scale, seed=0):
  """Returns a record whose entries range over `scale` down to its 1e-4."""
  rng = np.random.default_rng(seed)

  def draw(spec):
    size = scale * 10**rng.uniform(-4, 0, spec.shape) * rng.choice(
        [-1, 1], spec.shape)
    largest = float(spec.dtype.max)
    return tf.cast(
        tf.constant(np.clip(size, -largest, largest), tf.float64), spec.dtype)

  return tf.nest.map_structure(draw, specs)


def _norm(record):
  """Returns the L2 norm, in float64 of what the leaves hold."""
  leaves = [tf.cast(x, tf.float64).numpy().ravel()
            for x in tf.nest.flatten(record)]
  return np.linalg.norm(np.concatenate(leaves))


def _clip(query, record):
  params = query.derive_sample_params(query.initial_global_state())
  return query.preprocess_record(params, record)


def _clip_alone(record, l2_norm_clip=1.0, **zeroing):
  """Returns the record clipped, and what happened to it."""
  specs = tf.nest.map_structure(tf.TensorSpec.from_tensor, record)
  clipping = query_lib.Clipping.of(l2_norm_clip, specs, **zeroing)
  happened = [
      name for name, count in clipping.describe(record).items() if count]
  assert len(happened) <= 1
  return clipping.clip(record), ''.join(happened)


@pytest.mark.parametrize(
    'mix', _MIXES, ids=lambda mix: '-'.join(dtype.name for dtype in mix))
@pytest.mark.parametrize('l2_norm_clip', [0.1, 1.0, 3e4, 1e-12])
def test_norm_is_at_most_the_clip_in_every_dtype(mix, l2_norm_clip):
  specs = _specs(*mix)
  query = _query(specs, l2_norm_clip)
  for scale in (l2_norm_clip, 1e3 * l2_norm_clip, 1e30, 6e4):
    record = _record(specs, scale)
    clipped = _clip(query, record)
    assert _norm(clipped) <= l2_norm_clip
    if _norm(record) > l2_norm_clip:
      assert _norm(clipped) >= l2_norm_clip * (1 - 1e-5)


@hypothesis.settings(max_examples=200, deadline=None, derandomize=True)
@hypothesis.given(
    values=st.lists(
        st.floats(width=16, allow_nan=False, allow_infinity=False),
        min_size=3, max_size=3),
    dtype=st.sampled_from(_DTYPES),
    l2_norm_clip=st.floats(1e-30, 1e30))
def test_norm_is_at_most_the_clip_for_any_values(values, dtype, l2_norm_clip):
  clipped, _ = _clip_alone(tf.constant(values, dtype), l2_norm_clip)
  assert _norm(clipped) <= l2_norm_clip


@pytest.mark.parametrize('dtype', _DTYPES, ids=lambda d: d.name)
def test_largest_values_of_a_dtype_are_clipped_not_lost(dtype):
  largest = float(dtype.max) if dtype != tf.float64 else 1e150
  record = tf.cast(tf.constant([largest, -largest], tf.float64), dtype)
  clipped, happened = _clip_alone(record)
  assert happened == 'clipped_count'
  np.testing.assert_allclose(clipped, [0.5**0.5, -0.5**0.5], rtol=3e-6)


def test_record_within_the_clip_stays_as_it_is():
  specs = _specs(*_DTYPES)
  record = _record(specs, 0.1)
  for before, after in zip(
      tf.nest.flatten(record), tf.nest.flatten(_clip(_query(specs), record))):
    assert np.array_equal(tf.cast(before, after.dtype), after)


def test_direction_survives_clipping():
  specs = _specs(tf.float32, tf.float64)
  record = _record(specs, 50.0)
  scale = 1 / _norm(record)
  for before, after in zip(
      tf.nest.flatten(record), tf.nest.flatten(_clip(_query(specs), record))):
    np.testing.assert_allclose(after, scale * before.numpy(), rtol=3e-6)


@pytest.mark.parametrize('dtype', _DTYPES, ids=lambda d: d.name)
@pytest.mark.parametrize('value', [np.nan, np.inf, -np.inf])
def test_record_that_is_not_finite_becomes_zero(dtype, value):
  specs = _specs(*_DTYPES)
  record = _record(specs, 0.1)
  assert not _clip_alone(record)[1]
  leaf = record[dtype.name][0].numpy()
  leaf[1, 1] = value
  record[dtype.name] = (tf.constant(leaf), record[dtype.name][1])
  assert _clip_alone(record)[1] == 'non_finite_count'
  clipped = _clip(_query(specs), record)
  assert _norm(clipped) == 0
  tf.nest.assert_same_structure(clipped, record)


def test_record_whose_norm_overflows_becomes_zero():
  record = tf.constant([1e200, 1.0], tf.float64)
  clipped, happened = _clip_alone(record)
  assert happened == 'non_finite_count'
  assert _norm(clipped) == 0


def test_leaf_that_is_no_float_is_refused_by_name():
  specs = {
      'layer': {'kernel': tf.TensorSpec([2], tf.float32),
                'step': tf.TensorSpec([], tf.int64)}}
  with pytest.raises(TypeError, match=r'record_specs\[layer.step\].*int64'):
    query_lib.record_dimension(specs)


@pytest.mark.parametrize('dtype', [tf.bool, tf.string, tf.complex64, tf.uint8])
def test_dtype_that_is_no_float_is_refused(dtype):
  with pytest.raises(TypeError, match=dtype.name):
    query_lib.record_dimension(tf.TensorSpec([2], dtype))


@pytest.mark.parametrize('specs, match', [
    (tf.TensorSpec([None], tf.float32), 'static'),
    (tf.TensorSpec(None, tf.float32), 'static'),
    ([], 'no coordinate'),
    (tf.TensorSpec([0], tf.float32), 'no coordinate'),
])
def test_record_without_a_known_size_is_refused(specs, match):
  with pytest.raises(ValueError, match=match):
    query_lib.record_dimension(specs)


@pytest.mark.parametrize('l2_norm_clip', [0, -1.0, np.nan, np.inf])
def test_clip_that_is_not_positive_is_refused(l2_norm_clip):
  with pytest.raises(ValueError, match='l2_norm_clip'):
    _query(_specs(tf.float32), l2_norm_clip)


@pytest.mark.parametrize('z_stddev', [1e-40, 1e39, -1.0, np.nan, np.inf])
def test_noise_that_float32_cannot_hold_is_refused(z_stddev):
  with pytest.raises(ValueError, match='z_stddev'):
    _query(_specs(tf.float32), z_stddev=z_stddev)


def test_source_of_another_size_is_refused():
  source = noise.StateSource(noise.Plan.of(_STRATEGY), 5, _KEY)
  with pytest.raises(ValueError, match='source.dimension=5'):
    query_lib.CorrelatedNoiseSumQuery(
        query_lib.Clipping.of(1.0, _specs(tf.float32)), 1.0,
        _specs(tf.float32), _ROUNDS, source)


def _sum(query, records, state):
  """Returns the clipped sum, as the factory makes it."""
  params = query.derive_sample_params(state)
  total = query.initial_sample_state(records[0])
  for record in records:
    total = tf.nest.map_structure(
        tf.add, total, query.preprocess_record(params, record))
  return total


def test_without_noise_the_result_is_the_clipped_sum():
  specs = _specs(tf.float32, tf.float64)
  query = _query(specs, l2_norm_clip=0.5, z_stddev=0.0)
  records = [_record(specs, 2.0, seed) for seed in range(3)]
  state = query.initial_global_state()
  result, new_state, _ = query.get_noised_result(
      _sum(query, records, state), state)
  flat = [np.concatenate([np.ravel(x) for x in tf.nest.flatten(record)])
          for record in records]
  expected = sum(x * min(1, 0.5 / np.linalg.norm(x)) for x in flat)
  np.testing.assert_allclose(
      np.concatenate([np.ravel(x) for x in tf.nest.flatten(result)]), expected,
      rtol=0, atol=3e-6)
  assert new_state.round == 1


@pytest.mark.parametrize('container', ['tuple', 'list', 'dict', 'leaf'])
def test_noise_is_laid_out_like_the_record(container):
  leaves = [tf.TensorSpec([2], tf.float32), tf.TensorSpec([1, 3], tf.float64)]
  specs = {
      'tuple': tuple(leaves), 'list': leaves,
      'dict': {'z': leaves[0], 'a': (leaves[1],)},
      'leaf': leaves[0]}[container]
  query = _query(specs, z_stddev=3.0)
  state = query.initial_global_state()
  dimension = query_lib.record_dimension(specs)
  y = []
  for _ in range(2):
    result, state, _ = query.get_noised_result(
        query.initial_sample_state(), state)
    tf.nest.assert_same_structure(result, specs)
    for leaf, spec in zip(tf.nest.flatten(result), tf.nest.flatten(specs)):
      assert (leaf.shape, leaf.dtype) == (spec.shape, spec.dtype)
    y.append(np.concatenate([np.ravel(x) for x in tf.nest.flatten(result)]))
  z = [noise.standard_normal(tf.constant(_KEY.words()), t, 0, dimension)
       for t in range(2)]
  np.testing.assert_allclose(y[0], 3 * z[0].numpy(), atol=1e-5)
  np.testing.assert_allclose(
      y[1], 3 * (z[1] - 0.5 * z[0]).numpy(), atol=1e-5)


def test_float64_sum_shows_no_bit_below_its_noise():
  specs = tf.TensorSpec([1000], tf.float64)
  query = _query(specs, z_stddev=1.0)
  state = query.initial_global_state()
  fine = tf.constant(
      np.random.default_rng(0).uniform(-1, 1, 1000), tf.float64)
  result, _, _ = query.get_noised_result(fine, state)
  assert result.dtype == tf.float64
  # Were the sum added in float64, its low bits would be those of the result.
  assert np.array_equal(result, tf.cast(result, tf.float32))


@pytest.mark.parametrize('z_stddev', [0.0, 1.0])
def test_mean_has_the_dtypes_of_the_record_and_the_sum_its_own(z_stddev):
  specs = _specs(*_DTYPES)
  query = _query(specs, z_stddev=z_stddev)
  zero = query.initial_sample_state()
  total, _, _ = query.get_noised_result(zero, query.initial_global_state())
  mean_query = query_lib.MeanQuery(query, 5.0, specs)
  mean, _, _ = mean_query.get_noised_result(
      zero, mean_query.initial_global_state())
  for sums, means, zeros, spec in zip(
      *map(tf.nest.flatten, (total, mean, zero, specs))):
    assert sums.shape == means.shape == spec.shape
    assert sums.dtype == zeros.dtype and sums.dtype.size >= 4
    assert means.dtype == spec.dtype
    np.testing.assert_allclose(
        tf.cast(means, tf.float64), tf.cast(sums / 5, tf.float64), rtol=4e-3)


def test_sum_too_large_for_its_type_has_a_mean():
  # 100,000 is infinity in float16, and 1001 is 1000 in bfloat16.
  specs = (tf.TensorSpec([1], tf.float16), tf.TensorSpec([1], tf.bfloat16))
  query = _query(specs, l2_norm_clip=1e4, z_stddev=0.0)
  mean_query = query_lib.MeanQuery(query, 1001.0, specs)
  mean, _, _ = mean_query.get_noised_result(
      (tf.constant([1e5]), tf.constant([1001.0])),
      mean_query.initial_global_state())
  assert float(mean[0][0]) == pytest.approx(1e5 / 1001, rel=1e-3)
  assert float(mean[1][0]) == 1.0


def test_same_state_twice_gives_the_same_result():
  specs = _specs(tf.float32)
  query = _query(specs)
  state = query.initial_global_state()
  zero = query.initial_sample_state()
  for _ in range(_ROUNDS):
    first = query.get_noised_result(zero, state)[:2]
    second = query.get_noised_result(zero, state)[:2]
    for a, b in zip(tf.nest.flatten(first), tf.nest.flatten(second)):
      assert np.array_equal(a, b)
    state = first[1]


@pytest.mark.parametrize('z_stddev', [0.0, 1.0])
def test_round_past_the_last_raises(z_stddev):
  query = _query(_specs(tf.float32), z_stddev=z_stddev)
  state = query.initial_global_state()
  zero = query.initial_sample_state()
  for _ in range(_ROUNDS):
    _, state, _ = query.get_noised_result(zero, state)
  with pytest.raises(tf.errors.InvalidArgumentError, match='all are done'):
    query.get_noised_result(zero, state)


def test_event_of_a_round_cannot_be_accounted():
  query = _query(_specs(tf.float32))
  event = query.get_noised_result(
      query.initial_sample_state(), query.initial_global_state())[2]
  assert isinstance(event, dp_accounting.UnsupportedDpEvent)
  accountant = dp_accounting.pld.PLDAccountant()
  assert not accountant.supports(event)


def test_metrics_are_round_and_noise():
  query = _query(_specs(tf.float32), z_stddev=2.5)
  metrics = query.derive_metrics(query.initial_global_state())
  assert {k: v.numpy() for k, v in metrics.items()} == {
      'round': 0, 'z_stddev': 2.5, 'noise_placement': b'state'}


def test_query_is_a_sum_aggregation_query():
  assert isinstance(_query(_specs(tf.float32)), tfp.SumAggregationDPQuery)


_LAYERS = collections.OrderedDict(
    z=(tf.TensorSpec([2, 3], tf.float32), tf.TensorSpec([], tf.bfloat16)),
    a=[tf.TensorSpec([4], tf.float64), tf.TensorSpec([0], tf.float32)])


@pytest.mark.parametrize('clips, layers', [
    (collections.OrderedDict(z=0.5, a=2.0), [('z',), ('a',)]),
    ({'a': 2.0, 'z': 0.5}, [('z',), ('a',)]),
    ({'a': [2.0, 3.0], 'z': (0.5, np.float32(0.25))},
     [('z', 0), ('z', 1), ('a', 0), ('a', 1)]),
    ({'a': 2, 'z': [0.5, 0.25]}, [('z', 0), ('z', 1), ('a',)]),
])
def test_norm_of_clips_by_layer_is_at_most_theirs(clips, layers):
  clipping = query_lib.Clipping.of(clips, _LAYERS)
  assert clipping.l2_norm == pytest.approx(
      np.linalg.norm(tf.nest.flatten(clips)), rel=1e-14)

  def part(structure, path):
    for key in path:
      structure = structure[key]
    return structure

  for scale in (0.1, 10.0, 1e30):
    record = _record(_LAYERS, scale)
    clipped = clipping.clip(record)
    tf.nest.assert_same_structure(clipped, record)
    assert _norm(clipped) <= clipping.l2_norm
    for path in layers:
      norm, clip = _norm(part(clipped, path)), float(part(clips, path))
      expected = min(_norm(part(record, path)), clip)
      assert norm <= clip
      np.testing.assert_allclose(norm, expected, rtol=1e-5)


def test_layer_that_is_not_finite_makes_all_layers_zero():
  record = _record(_LAYERS, 1.0)
  record['z'] = (record['z'][0], tf.constant(np.nan, tf.bfloat16))
  clipped, happened = _clip_alone(record, {'a': 2.0, 'z': 0.5})
  assert happened == 'non_finite_count'
  assert _norm(clipped) == 0


@pytest.mark.parametrize('clips', [
    {'a': 1.0}, {'a': 1.0, 'b': 1.0}, {'a': 1.0, 'z': (1.0,)}, (1.0, 1.0),
    {'a': 1.0, 'z': ((1.0, 1.0), 1.0)}])
def test_clips_that_fit_no_layers_are_refused(clips):
  with pytest.raises(ValueError, match='l2_norm_clip=.*outer structure'):
    query_lib.Clipping.of(clips, _LAYERS)


def test_clip_of_a_layer_that_is_not_positive_is_refused():
  with pytest.raises(ValueError, match='l2_norm_clip=0.0'):
    query_lib.Clipping.of({'a': 1.0, 'z': 0.0}, _LAYERS)


@pytest.mark.parametrize('order, norm', [(2, 5.0), (np.inf, 4.0)])
@pytest.mark.parametrize('l2_norm_clip', [1.0, 100.0])
def test_record_above_the_zeroing_norm_becomes_zero(order, norm, l2_norm_clip):
  record = (tf.constant([3.0, 0.0]), tf.constant([[-4.0]], tf.bfloat16))

  def clip(zeroing_norm):
    return _clip_alone(
        record, l2_norm_clip, zeroing_norm=zeroing_norm,
        zeroing_norm_order=order)

  below, happened = clip(norm)
  # Clipped to less than the bound, but zeroed for what it was before.
  assert _norm(below) == pytest.approx(min(5.0, l2_norm_clip), rel=1e-5)
  assert happened == ('clipped_count' if l2_norm_clip == 1.0 else '')
  above, happened = clip(norm * (1 - 1e-9))
  assert _norm(above) == 0
  assert happened == 'zeroed_count'


def test_record_that_is_not_finite_counts_as_that_and_not_as_zeroed():
  for value in (np.nan, np.inf):
    clipped, happened = _clip_alone(
        tf.constant([value, 1.0]), zeroing_norm=0.5)
    assert happened == 'non_finite_count'
    assert _norm(clipped) == 0


@pytest.mark.parametrize('zeroing, error, match', [
    ({'zeroing_norm': 0.0}, ValueError, 'zeroing_norm=0.0'),
    ({'zeroing_norm': np.nan}, ValueError, 'zeroing_norm=nan'),
    ({'zeroing_norm': 'auto'}, TypeError, 'zeroing_norm=auto'),
    ({'zeroing_norm': 1.0, 'zeroing_norm_order': 1}, ValueError,
     'zeroing_norm_order=1'),
])
def test_bad_zeroing_is_refused(zeroing, error, match):
  with pytest.raises(error, match=match):
    query_lib.Clipping.of(1.0, _LAYERS, **zeroing)


def test_clip_is_lowered_for_all_layers_together():
  clipping = query_lib.Clipping.of({'a': 4.0, 'z': 3.0}, _LAYERS)
  lowered = clipping.lowered_by(0.5)
  assert lowered.l2_norm == pytest.approx(4.5)
  assert lowered.clips == pytest.approx(tuple(0.9 * c for c in clipping.clips))
  for amount in (5.0, 6.0, np.inf, np.nan):
    with pytest.raises(ValueError, match='must exceed'):
      clipping.lowered_by(amount)
