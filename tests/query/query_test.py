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
from tff_bandmf.noise import generator, placements
from tff_bandmf.noise import source as source_lib
from tff_bandmf.query import graph_clipping, summation

_DTYPES = (tf.float16, tf.bfloat16, tf.float32, tf.float64)
_MIXES = [
  mix for size in range(1, 5) for mix in itertools.combinations(_DTYPES, size)
]
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


def _clipping(specs, l2_norm_clip=1.0, clip_bits=_BITS, **zeroing):
  return query_lib.GraphClipping.from_clip(
    l2_norm_clip, specs, clip_bits, **zeroing
  )


def _query(
  specs, l2_norm_clip=1.0, noise_per_clip=1.0, divisor=1.0, key=_KEY, **kwargs
):
  """A query whose noise is on a tape until the next query is made."""
  if _queries:
    _queries.pop().close()
  lattice = noise.Lattice(
    clip_bits=_BITS,
    largest_cohort=_LARGEST_COHORT,
    z_steps=noise_per_clip * 2**_BITS,
  )
  clipping = _clipping(specs, l2_norm_clip)
  dimension = query_lib.record_dimension(specs)
  source = source_lib.from_placement(
    placements.Tape(key=key), _STRATEGY.recursion(), lattice.z_steps, dimension
  )
  query = query_lib.CorrelatedNoiseQuery(
    clipping,
    lattice,
    divisor,
    specs,
    _ROUNDS,
    source,
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


def _squares(rounded):
  """Returns the sum of squares of whole numbers, exactly."""
  assert rounded.dtype == tf.int32
  return sum(int(q) ** 2 for q in rounded.numpy())


def _clip_alone(record, l2_norm_clip=1.0, **kwargs):
  """Returns the record clipped, and what happened to it."""
  specs = tf.nest.map_structure(tf.TensorSpec.from_tensor, record)
  clipping = _clipping(specs, l2_norm_clip, **kwargs)
  happened = [
    name for name, count in clipping.describe(record).items() if count
  ]
  assert len(happened) <= 1
  return clipping.clip(record), ''.join(happened)


@pytest.mark.parametrize(
  'mix', _MIXES, ids=lambda mix: '-'.join(dtype.name for dtype in mix)
)
@pytest.mark.parametrize('l2_norm_clip', [0.1, 1.0, 3e4, 1e-12])
def test_norm_is_at_most_the_clip_in_every_dtype(mix, l2_norm_clip):
  specs = _specs(*mix)
  clipping = _clipping(specs, l2_norm_clip)
  for scale in (l2_norm_clip, 1e3 * l2_norm_clip, 1e30, 6e4):
    record = _record(specs, scale)
    clipped = clipping.clip(record)
    assert clipped.shape == _flat(record).shape
    squares = _squares(clipped)
    assert squares <= 4**_BITS
    if np.linalg.norm(_flat(record)) > l2_norm_clip:
      assert squares >= 4**_BITS * (1 - 1e-5)


@pytest.mark.slow
@hypothesis.settings(max_examples=200)
@hypothesis.given(
  values=st.lists(
    st.floats(width=16, allow_nan=False, allow_infinity=False),
    min_size=3,
    max_size=3,
  ),
  dtype=st.sampled_from(_DTYPES),
  clip_bits=st.integers(2, 26),
  l2_norm_clip=st.floats(1e-30, 1e30),
)
def test_norm_is_at_most_the_clip_for_any_values(
  values, dtype, clip_bits, l2_norm_clip
):
  clipped, _ = _clip_alone(
    tf.constant(values, dtype), l2_norm_clip, clip_bits=clip_bits
  )
  assert _squares(clipped) <= 4**clip_bits


def test_crafted_record_that_rounding_makes_longer_is_cut():
  """400 entries just above a half, and one that fills the norm."""
  record = np.full(401, 2.51)
  record[-1] = 35.9
  clipped, happened = _clip_alone(tf.constant(record), 64.0, clip_bits=6)
  assert happened == ''
  assert np.sum(np.rint(record) ** 2) > 64**2
  np.testing.assert_array_equal(clipped, np.trunc(record))
  shorter = record * 0.9
  clipped, _ = _clip_alone(tf.constant(shorter), 64.0, clip_bits=6)
  np.testing.assert_array_equal(clipped, np.rint(shorter))


def test_norm_is_compared_exactly():
  """A norm of 2^26 steps, and of the least that is more."""
  clipping = _clipping(tf.TensorSpec([17]), clip_bits=26)
  for place in (0, 16):
    for least, fits in [(0.0, True), (1.0, False)]:
      record = np.full(17, 2.0**24)
      record[place] = least
      assert bool(clipping._fits([tf.constant(record)])) == fits
  assert not clipping._fits([tf.fill([17], tf.constant(2.0**40, tf.float64))])
  # 4^27 + 1 is no float64.
  with pytest.raises(ValueError, match='clip_bits=27'):
    _clipping(tf.TensorSpec([17]), clip_bits=27)


@hypothesis.given(
  st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=6), st.integers(20, 26)
)
def test_bounds_of_layers_add_up_to_at_most_the_clip(clips, clip_bits):
  specs = [tf.TensorSpec([1])] * len(clips)
  try:
    clipping = _clipping(specs, clips, clip_bits)
  except ValueError:
    hypothesis.reject()
  bounds = clipping.squared_bounds
  assert 4**clip_bits - len(clips) <= sum(bounds) <= 4**clip_bits
  steps = np.array(clips) / clipping.step
  # Each is rounded down to an integer.
  np.testing.assert_allclose(bounds, steps**2, rtol=1e-9, atol=1)
  assert all(bounds <= steps**2 * (1 + 1e-9))


@pytest.mark.parametrize('dtype', _DTYPES, ids=lambda d: d.name)
def test_largest_values_of_a_dtype_are_clipped_not_lost(dtype):
  largest = float(dtype.max) if dtype != tf.float64 else 1e150
  record = tf.cast(tf.constant([largest, -largest], tf.float64), dtype)
  clipped, happened = _clip_alone(record)
  assert happened == 'clipped_count'
  np.testing.assert_allclose(
    clipped, 2**_BITS * np.array([0.5**0.5, -(0.5**0.5)]), rtol=3e-6
  )


def test_record_within_the_clip_is_rounded_to_the_nearest_step():
  specs = _specs(*_DTYPES)
  clipping = _clipping(specs)
  record = _record(specs, 0.1)
  np.testing.assert_array_equal(
    _flat(clipping.clip(record)), np.rint(_flat(record) / clipping.step)
  )


def test_direction_survives_clipping():
  specs = _specs(tf.float32, tf.float64)
  record = _flat(_record(specs, 50.0))
  np.testing.assert_allclose(
    _flat(_clipping(specs).clip(_record(specs, 50.0))),
    2**_BITS * record / np.linalg.norm(record),
    rtol=3e-6,
    atol=0.51,
  )


@pytest.mark.parametrize('dtype', _DTYPES, ids=lambda d: d.name)
@pytest.mark.parametrize('value', [np.nan, np.inf, -np.inf])
def test_record_that_is_not_finite_becomes_zero(dtype, value):
  record = _record(_specs(*_DTYPES), 0.1)
  assert not _clip_alone(record)[1]
  leaf = record[dtype.name][0].numpy()
  leaf[1, 1] = value
  record[dtype.name] = (tf.constant(leaf), record[dtype.name][1])
  clipped, happened = _clip_alone(record)
  assert happened == 'non_finite_count'
  assert _squares(clipped) == 0


def test_record_whose_norm_overflows_becomes_zero():
  record = tf.constant([1e200, 1.0], tf.float64)
  clipped, happened = _clip_alone(record)
  assert happened == 'non_finite_count'
  assert _squares(clipped) == 0


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


def test_source_of_another_size_is_refused():
  specs = _specs(tf.float32)
  with pytest.raises(ValueError, match='source.dimension=5'):
    query_lib.CorrelatedNoiseQuery(
      _clipping(specs),
      noise.Lattice(_BITS, 1, 0.0),
      1.0,
      specs,
      _ROUNDS,
      source_lib.NoiseSource(5),
    )


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
    return query.get_noised_result(_sum(query, records, state), state)[0]

  steps = released([tf.constant(fine)]).numpy() * 2.0**_BITS
  assert np.array_equal(steps, np.rint(steps))
  quiet = released([])
  np.testing.assert_array_equal(
    steps - quiet.numpy() * 2.0**_BITS, np.rint(fine * 2.0**_BITS)
  )


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
  assert abs(sums.pop() - int(without)) <= 2**_BITS


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
  clipping = _clipping(specs)
  for size in (1, 2, 4, 6):
    groups = []
    for first in range(0, 6, size):
      members = list(map(clipping.clip, records[first : first + size]))
      groups.append((tf.add_n(members), tf.constant(len(members))))
    grouped = _query(specs, sums=True)
    state = _begun(grouped)
    found, _, _ = grouped.get_noised_result(_sum(grouped, groups, state), state)
    tf.nest.map_structure(np.testing.assert_array_equal, found, expected)


@pytest.mark.parametrize(
  'clients, entry',
  [
    (-1, 0),
    (_LARGEST_COHORT + 1, 0),
    (2, 2 * 2**_BITS + 1),
    (2, -2 * 2**_BITS - 1),
    (0, 1),
    (1, -(2**31)),
  ],
)
def test_sum_of_other_clients_than_it_says_is_refused(clients, entry):
  query = _query(tf.TensorSpec([3]), sums=True)
  good = tf.constant([0, 2 * 2**_BITS, -2 * 2**_BITS])
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
  assert values == {
    'round': 0,
    'z_stddev': 2.5,
    'noise_placement': b'tape',
    'noise_checked': True,
  }


def test_query_is_a_sum_aggregation_query():
  assert isinstance(_query(_specs(tf.float32)), tfp.SumAggregationDPQuery)


_LAYERS = collections.OrderedDict(
  z=(tf.TensorSpec([2, 3], tf.float32), tf.TensorSpec([], tf.bfloat16)),
  a=[tf.TensorSpec([4], tf.float64), tf.TensorSpec([0], tf.float32)],
)


@pytest.mark.parametrize(
  'clips, layers',
  [
    (collections.OrderedDict(z=0.5, a=2.0), [('z',), ('a',)]),
    ({'a': 2.0, 'z': 0.5}, [('z',), ('a',)]),
    (
      {'a': [2.0, 3.0], 'z': (0.5, np.float32(0.25))},
      [('z', 0), ('z', 1), ('a', 0), ('a', 1)],
    ),
    ({'a': 2, 'z': [0.5, 0.25]}, [('z', 0), ('z', 1), ('a',)]),
  ],
)
def test_norm_of_clips_by_layer_is_at_most_theirs(clips, layers):
  clipping = _clipping(_LAYERS, clips)
  assert clipping.l2_norm == pytest.approx(
    np.linalg.norm(tf.nest.flatten(clips)), rel=1e-14
  )

  def part(structure, path):
    for key in path:
      structure = structure[key]
    return structure

  for scale in (0.1, 10.0, 1e30):
    record = _record(_LAYERS, scale)
    clipped = clipping.clip(record)
    assert _squares(clipped) <= 4**_BITS
    sizes = [spec.shape.num_elements() for spec in tf.nest.flatten(_LAYERS)]
    clipped = tf.nest.pack_sequence_as(_LAYERS, tf.split(clipped, sizes))
    for path in layers:
      norm = np.linalg.norm(_flat(part(record, path)))
      clip = float(part(clips, path))
      squares = np.sum(_flat(part(clipped, path)) ** 2)
      assert squares <= (clip / clipping.step) ** 2
      np.testing.assert_allclose(
        np.sqrt(squares) * clipping.step, min(norm, clip), atol=1e-5
      )


def test_layer_that_is_not_finite_makes_all_layers_zero():
  record = _record(_LAYERS, 1.0)
  record['z'] = (record['z'][0], tf.constant(np.nan, tf.bfloat16))
  clipped, happened = _clip_alone(record, {'a': 2.0, 'z': 0.5})
  assert happened == 'non_finite_count'
  assert _squares(clipped) == 0


@pytest.mark.parametrize(
  'clips',
  [
    {'a': 1.0},
    {'a': 1.0, 'b': 1.0},
    {'a': 1.0, 'z': (1.0,)},
    (1.0, 1.0),
    {'a': 1.0, 'z': ((1.0, 1.0), 1.0)},
  ],
)
def test_clips_that_fit_no_layers_are_refused(clips):
  with pytest.raises(ValueError, match='l2_norm_clip=.*outer structure'):
    _clipping(_LAYERS, clips)


def test_clip_of_a_layer_that_is_not_positive_is_refused():
  with pytest.raises(ValueError, match='l2_norm_clip=0.0'):
    _clipping(_LAYERS, {'a': 1.0, 'z': 0.0})


def test_layer_that_rounding_would_empty_is_refused():
  specs = {'a': tf.TensorSpec([100]), 'b': tf.TensorSpec([100])}
  _clipping(specs, {'a': 1.0, 'b': 1.0}, clip_bits=8)
  with pytest.raises(
    ValueError, match='l2_norm_clip=0.05.*rounding would empty.*raise'
  ):
    _clipping(specs, {'a': 1.0, 'b': 0.05}, clip_bits=8)
  with pytest.raises(ValueError, match='rounding would empty'):
    _clipping(specs['a'], 1.0, clip_bits=4)


@pytest.mark.parametrize('order, norm', [(2, 5.0), (np.inf, 4.0)])
@pytest.mark.parametrize('l2_norm_clip', [1.0, 100.0])
def test_record_above_the_zeroing_norm_becomes_zero(order, norm, l2_norm_clip):
  record = (tf.constant([3.0, 0.0]), tf.constant([[-4.0]], tf.bfloat16))

  def clip(zeroing_norm):
    return _clip_alone(
      record, l2_norm_clip, zeroing_norm=zeroing_norm, zeroing_norm_order=order
    )

  below, happened = clip(norm)
  # Clipped to less than the bound, but zeroed for what it was before.
  assert np.linalg.norm(_flat(below)) * l2_norm_clip / 2**_BITS == (
    pytest.approx(min(5.0, l2_norm_clip), rel=1e-4)
  )
  assert happened == ('clipped_count' if l2_norm_clip == 1.0 else '')
  above, happened = clip(norm * (1 - 1e-9))
  assert _squares(above) == 0
  assert happened == 'zeroed_count'


def test_zeroing_by_the_l2_norm_works_in_a_graph():
  clip = tf.function(
    _clipping(
      tf.TensorSpec([2]), 100.0, zeroing_norm=5.0, zeroing_norm_order=2
    ).clip,
    autograph=False,
  )
  assert _squares(clip(tf.constant([3.0, 4.0])))
  assert not _squares(clip(tf.constant([3.0, 4.001])))


@pytest.mark.slow
@pytest.mark.parametrize('layers', [False, True])
def test_many_leaves_are_clipped_to_the_bits_of_numpy(layers):
  """Leaves of all numbers of rows, in several orders and types."""
  sizes = [0, 1, 2, 3, 129, 8191, 8192, 8193, 16_385, 16_500, 40_000, 70_001]
  for seed in range(3):
    random = np.random.default_rng(seed)
    record = [
      random.normal(size=size).astype([np.float32, np.float64][seed % 2])
      for size in random.permutation(sizes * 2)
    ]
    if seed == 2:
      record[::2] = [leaf.astype(np.float16) for leaf in record[::2]]
    clip = [1.0 + i for i in range(len(record))] if layers else 1.0
    arguments = (clip, record, 26, 1e3, 2)
    expected = query_lib.Clipping.from_clip(*arguments).clip(record)
    clipped = tf.function(
      query_lib.GraphClipping.from_clip(*arguments).clip, autograph=False
    )(list(map(tf.constant, record)))
    assert expected.any()
    np.testing.assert_array_equal(clipped, expected)
    np.testing.assert_array_equal(
      graph_clipping._sums_of_squares(list(map(tf.constant, record))),
      [summation.of_squares(leaf) for leaf in record],
    )


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


def test_record_that_is_not_finite_counts_as_that_and_not_as_zeroed():
  for value in (np.nan, np.inf):
    clipped, happened = _clip_alone(tf.constant([value, 1.0]), zeroing_norm=0.5)
    assert happened == 'non_finite_count'
    assert _squares(clipped) == 0


@pytest.mark.parametrize(
  'zeroing, error, match',
  [
    ({'zeroing_norm': 0.0}, ValueError, 'zeroing_norm=0.0'),
    ({'zeroing_norm': np.nan}, ValueError, 'zeroing_norm=nan'),
    ({'zeroing_norm': 'auto'}, TypeError, 'zeroing_norm=auto'),
    (
      {'zeroing_norm': 1.0, 'zeroing_norm_order': 1},
      ValueError,
      'zeroing_norm_order=1',
    ),
  ],
)
def test_bad_zeroing_is_refused(zeroing, error, match):
  with pytest.raises(error, match=match):
    _clipping(_LAYERS, **zeroing)
