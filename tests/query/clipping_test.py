"""Tests of clipping: each one runs in NumPy and in TensorFlow."""

import collections
import math

import hypothesis
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import strategies as st

import tff_bandmf
from tff_bandmf import query
from tff_bandmf.query import graph_clipping, summation

_DTYPES = (np.float16, tf.bfloat16.as_numpy_dtype, np.float32, np.float64)
_BITS = 20


@pytest.fixture(params=['NumPy', 'TensorFlow'])
def library(request):
  return request.param


def _clipping(library, record, clip=1.0, bits=_BITS, **zeroing):
  by_library = {'NumPy': query.Clipping, 'TensorFlow': query.GraphClipping}
  return by_library[library].from_clip(clip, record, bits, **zeroing)


def _clip(library, record, clip=1.0, bits=_BITS, scale=1.0, **zeroing):
  """Returns the clipped record, [dimensions] int32 array."""
  steps = np.asarray(
    _clipping(library, record, clip, bits, **zeroing).clip(record, scale)
  )
  assert steps.dtype == np.int32
  return steps


def _record(dtypes=_DTYPES, scale=1.0, seed=0):
  """Returns a record whose entries range over `scale` down to its 1e-4."""
  rng = np.random.default_rng(seed)

  def draw(dtype, shape):
    size = scale * 10 ** rng.uniform(-4, 0, shape) * rng.choice([-1, 1], shape)
    largest = float(tf.as_dtype(dtype).max)
    return np.asarray(np.clip(size, -largest, largest), dtype)

  return collections.OrderedDict(
    (np.dtype(dtype).name, (draw(dtype, (2, 3)), draw(dtype, ())))
    for dtype in dtypes
  )


def _flat(record):
  """Returns the entries of all leaves in float64."""
  leaves = tf.nest.flatten(record)
  return np.concatenate([np.ravel(np.float64(leaf)) for leaf in leaves])


def _squares(steps):
  """Returns the sum of squares of integers, exactly."""
  return sum(int(q) ** 2 for q in steps)


@pytest.mark.parametrize(
  'dtypes',
  [*((dtype,) for dtype in _DTYPES), _DTYPES],
  ids=lambda dtypes: '-'.join(np.dtype(dtype).name for dtype in dtypes),
)
@pytest.mark.parametrize('clip', [0.1, 3e4, 1e-12])
@pytest.mark.parametrize('bits', [14, 26])
def test_norm_is_at_most_the_clip(library, dtypes, clip, bits):
  for scale in (clip, 1e3 * clip, 1e30, 6e4):
    record = _record(dtypes, scale)
    steps = _clip(library, record, clip, bits)
    assert steps.shape == _flat(record).shape
    assert _squares(steps) <= 4**bits
    if np.linalg.norm(_flat(record)) > clip:
      assert _squares(steps) >= 4**bits * (1 - 2e-3)


@pytest.mark.slow
@hypothesis.settings(
  max_examples=100,
  suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture],
)
@hypothesis.given(
  values=st.lists(
    st.floats(width=16, allow_nan=False, allow_infinity=False),
    min_size=3,
    max_size=3,
  ),
  dtype=st.sampled_from(_DTYPES),
  bits=st.integers(2, 26),
  clip=st.floats(1e-30, 1e30),
)
def test_norm_is_at_most_the_clip_for_any_values(
  library, values, dtype, bits, clip
):
  assert _squares(_clip(library, np.array(values, dtype), clip, bits)) <= (
    4**bits
  )


def test_crafted_record_that_rounding_makes_longer_is_cut(library):
  """400 entries just above a half, and one that fills the norm."""
  record = np.full(401, 2.51)
  record[-1] = 35.9
  assert np.sum(np.rint(record) ** 2) > 64**2
  np.testing.assert_array_equal(
    _clip(library, record, 64.0, bits=6), np.trunc(record)
  )
  shorter = record * 0.9
  np.testing.assert_array_equal(
    _clip(library, shorter, 64.0, bits=6), np.rint(shorter)
  )


def test_norm_is_compared_exactly_in_a_graph():
  """A norm of 2^26 steps, and of the least that is more."""
  clipping = _clipping('TensorFlow', tf.TensorSpec([17]), bits=26)
  for place in (0, 16):
    for least, fits in [(0.0, True), (1.0, False)]:
      record = np.full(17, 2.0**24)
      record[place] = least
      assert bool(clipping._fits([tf.constant(record)])) == fits
  assert not clipping._fits([tf.fill([17], tf.constant(2.0**40, tf.float64))])
  # Every layer must fit.
  layers = _clipping('TensorFlow', [tf.TensorSpec([1])] * 2, [3.0, 4.0])
  none, large = (tf.constant([x], tf.float64) for x in (0.0, 2.0**_BITS))
  assert layers._fits([none, none])
  assert not layers._fits([none, large]) and not layers._fits([large, none])


def test_norm_is_compared_exactly_in_numpy():
  """4^26 + 1 differs from 4^26 in float64, and not in float32."""
  clipping = _clipping('NumPy', np.zeros(17), bits=26)
  record = np.zeros(17)
  record[0], record[1] = 1.0, 2.0**-26
  with pytest.MonkeyPatch.context() as patch:
    # It is neither too long nor to be scaled, as a wrong norm would have it.
    patch.setattr(summation, 'of_squares', lambda leaf: 0.0)
    assert not clipping.clip(record).any()
    assert _squares(clipping.clip(np.eye(17)[0])) == 4**26
    # Cut towards zero it fits.
    record[1] = 0.75 * 2.0**-26
    assert _squares(clipping.clip(record)) == 4**26
    # A record of any length is zero, whatever its norm was taken for.
    for large in (1.001, 3.0, 1e9, 1e300):
      assert not clipping.clip(large * np.eye(17)[0]).any()


def test_bounds_are_integers_of_float64(library):
  # 4^27 + 1 is no float64.
  with pytest.raises(ValueError, match='clip_bits=27'):
    _clipping(library, np.zeros(17), bits=27)


def test_norm_of_what_was_written_is_measured(monkeypatch):
  """A record becomes zero if a write to memory leaves a wrong integer."""
  clipping = _clipping('NumPy', np.zeros(8))
  copyto = np.copyto

  def damaged(out, values, **kwargs):
    copyto(out, values, **kwargs)
    if out.dtype == np.int32:
      out[3] = 2**21

  monkeypatch.setattr(np, 'copyto', damaged)
  assert not clipping.clip(np.full(8, 0.1)).any()


@hypothesis.given(
  st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=6), st.integers(20, 26)
)
def test_bounds_of_layers_add_up_to_at_most_the_clip(clips, bits):
  try:
    clipping = _clipping('NumPy', [np.zeros(1)] * len(clips), clips, bits)
  except ValueError:
    hypothesis.reject()
  bounds = clipping.squared_bounds
  assert 4**bits - len(clips) <= sum(bounds) <= 4**bits
  steps = np.array(clips) / clipping.step
  # Each is rounded down to an integer.
  np.testing.assert_allclose(bounds, steps**2, rtol=1e-9, atol=1)
  assert all(bounds <= steps**2 * (1 + 1e-9))


@pytest.mark.parametrize('dtype', _DTYPES, ids=lambda d: np.dtype(d).name)
def test_largest_values_of_a_dtype_are_clipped_not_lost(library, dtype):
  largest = min(float(tf.as_dtype(dtype).max), 1e150)
  record = np.array([largest, -largest], dtype)
  np.testing.assert_allclose(
    _clip(library, record),
    2**_BITS * np.array([0.5**0.5, -(0.5**0.5)]),
    rtol=3e-6,
  )


def test_record_within_the_clip_is_rounded_to_the_nearest_step(library):
  record = _record(scale=0.1)
  np.testing.assert_array_equal(
    _clip(library, record),
    np.rint(_flat(record) / _clipping(library, record).step),
  )


def test_direction_survives_clipping(library):
  record = _record([np.float32, np.float64], 50.0)
  flat = _flat(record)
  np.testing.assert_allclose(
    _clip(library, record),
    2**_BITS * flat / np.linalg.norm(flat),
    rtol=3e-6,
    atol=0.51,
  )


@pytest.mark.parametrize('dtype', _DTYPES, ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize('value', [np.nan, np.inf, -np.inf])
def test_record_that_is_not_finite_becomes_zero(library, dtype, value):
  record = _record(scale=0.1)
  assert _clip(library, record).any()
  record[np.dtype(dtype).name][0][1, 1] = value
  assert not _clip(library, record).any()


def test_record_whose_norm_overflows_becomes_zero(library):
  assert not _clip(library, np.array([1e200, 1.0])).any()


_LAYERS = collections.OrderedDict(
  z=(np.zeros([2, 3], np.float32), np.zeros([], _DTYPES[1])),
  a=[np.zeros([4], np.float64), np.zeros([0], np.float32)],
)


@pytest.mark.parametrize('adaptive', [False, True])
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
def test_norm_of_each_layer_is_at_most_its_clip(
  library, clips, layers, adaptive
):
  clip = tff_bandmf.AdaptiveClip(clips) if adaptive else clips
  clipping = _clipping(library, _LAYERS, clip)
  if not adaptive:
    assert clipping.l2_norm == pytest.approx(
      np.linalg.norm(tf.nest.flatten(clips)), rel=1e-14
    )

  def part(structure, path):
    for key in path:
      structure = structure[key]
    return structure

  rng = np.random.default_rng(0)
  ends = np.cumsum([leaf.size for leaf in tf.nest.flatten(_LAYERS)])
  for size in (0.1, 10.0, 1e30):
    for scale in (1e-7, 1.0, 3e5) if adaptive else (1.0,):
      record = tf.nest.map_structure(
        lambda leaf, size=size: np.asarray(
          size * rng.normal(size=leaf.shape), leaf.dtype
        ),
        _LAYERS,
      )
      steps = np.asarray(clipping.clip(record, scale))
      assert _squares(steps) <= 4**_BITS
      steps = tf.nest.pack_sequence_as(
        _LAYERS, np.split(steps, ends)[: len(ends)]
      )
      for path in layers:
        bound = float(part(clips, path)) / clipping.step
        squares = np.sum(_flat(part(steps, path)) ** 2)
        assert squares <= bound**2
        norm = np.linalg.norm(_flat(part(record, path))) / clipping.step
        # An entry below half a step is 0.
        np.testing.assert_allclose(
          np.sqrt(squares), min(norm / scale, bound), atol=6
        )


def test_layer_that_is_not_finite_makes_all_layers_zero(library):
  record = tf.nest.map_structure(np.ones_like, _LAYERS)
  assert _clip(library, record, {'a': 2.0, 'z': 0.5}).any()
  record['z'] = (record['z'][0], np.asarray(np.nan, _DTYPES[1]))
  assert not _clip(library, record, {'a': 2.0, 'z': 0.5}).any()


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
def test_clips_that_fit_no_layers_are_refused(library, clips):
  with pytest.raises(ValueError, match='l2_norm_clip=.*outer structure'):
    _clipping(library, _LAYERS, clips)


def test_clip_of_a_layer_that_is_not_positive_is_refused(library):
  with pytest.raises(ValueError, match='l2_norm_clip=0.0'):
    _clipping(library, _LAYERS, {'a': 1.0, 'z': 0.0})


def test_layer_that_rounding_would_empty_is_refused(library):
  record = {'a': np.zeros(100), 'b': np.zeros(100)}
  _clipping(library, record, {'a': 1.0, 'b': 1.0}, bits=8)
  with pytest.raises(
    ValueError, match='l2_norm_clip=0.05.*rounding would empty.*raise'
  ):
    _clipping(library, record, {'a': 1.0, 'b': 0.05}, bits=8)
  with pytest.raises(ValueError, match='rounding would empty'):
    _clipping(library, record['a'], bits=4)


@pytest.mark.parametrize('order, norm', [(2, 5.0), (np.inf, 4.0)])
@pytest.mark.parametrize('clip', [1.0, 100.0])
def test_record_above_the_zeroing_norm_becomes_zero(library, order, norm, clip):
  record = (np.float32([3.0, 0.0]), np.array([[-4.0]], _DTYPES[1]))

  def steps(zeroing_norm):
    return _clip(
      library, record, clip, zeroing_norm=zeroing_norm, zeroing_norm_order=order
    )

  # Clipped to less than the bound, but zeroed for what it was before.
  assert np.linalg.norm(np.float64(steps(norm))) * clip / 2**_BITS == (
    pytest.approx(min(5.0, clip), rel=1e-4)
  )
  assert not steps(norm * (1 - 1e-9)).any()


@pytest.mark.parametrize('kind', ['constant', 'adaptive'])
def test_record_that_becomes_zero_says_nothing(library, kind):
  adaptive = kind == 'adaptive'
  clipping = _clipping(
    library,
    np.zeros(5),
    tff_bandmf.AdaptiveClip(0.5) if adaptive else 0.5,
    zeroing_norm=9.0,
    zeroing_norm_order=2,
  )
  wrong = np.full(5, 0.1)
  for scale in (0.1, 1.0, 40.0):
    for wrong[2] in (9.5, 1e200, math.nan, math.inf, -math.inf):
      assert not np.any(clipping.clip(wrong, scale))
    wrong[2] = 8.5
    assert np.any(clipping.clip(wrong, scale))
  # A client that did not move the model is not one that is absent.
  assert np.any(clipping.clip(np.zeros(5))) == adaptive
  # The norm stays below the clip for a scale of NaN, infinity, 0 or -1.
  for scale in (math.nan, math.inf, 0.0, -1.0):
    assert _squares(clipping.clip(wrong, scale)) <= 4**_BITS


@pytest.mark.parametrize('weight', [0.28, 4.0])
@pytest.mark.parametrize('initial', [0.5, {'a': 0.3, 'b': 0.4}])
@pytest.mark.parametrize('scale', [1e-12, 1.0, 3e5])
def test_indicator_says_whether_a_record_was_clipped(
  library, weight, initial, scale
):
  def record(norm):
    return {
      'a': np.full((2, 2), 0.3 * norm, np.float32),
      'b': np.array([0.8 * norm]),
    }

  clipping = _clipping(
    library,
    record(0.0),
    tff_bandmf.AdaptiveClip(initial, fraction_weight=weight),
  )
  signs = set()
  for size in (0.0, 0.3, 0.49999, 0.5, 0.500001, 7.0, 1e20):
    steps = np.asarray(clipping.clip(record(size * scale), scale))
    assert _squares(steps) <= 4**_BITS
    if size > 0.5:
      assert _squares(steps) >= 4**_BITS * (1 - 1e-4)
    if size in (0.3, 7.0):
      assert np.sign(steps[-1]) == (1 if size < 0.5 else -1)
    assert abs(steps[-1]) == clipping.indicator_steps
    signs.add(int(np.sign(steps[-1])))
  assert signs == {1, -1}
  delta = math.sqrt(1 + weight**2 / 4)
  assert clipping.l2_norm == pytest.approx(delta * 0.5)
  assert clipping.indicator_steps * clipping.step == pytest.approx(
    weight / 2 * 0.5, rel=1e-4
  )


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
def test_bad_zeroing_is_refused(library, zeroing, error, match):
  with pytest.raises(error, match=match):
    _clipping(library, _LAYERS, **zeroing)


@pytest.mark.parametrize('size', [0, 1, 2, 9, 8192, 8193, 16_385, 100_003])
def test_sum_of_squares_has_one_order(size):
  """That of folding in two, which this does at once."""
  x = np.random.default_rng(size).normal(size=size).astype(np.float32)
  rows, width = summation.rows_of(size)
  squares = np.zeros(rows * width)
  squares[:size] = x.astype(np.float64) ** 2
  while len(squares) > width:
    squares = squares[: len(squares) // 2] + squares[len(squares) // 2 :]
  assert summation.of_squares(x) == summation.total(squares)
  assert rows * width - size < max(8 * rows, size)
  assert summation.of_squares(x) == pytest.approx(
    math.fsum(float(each) ** 2 for each in x), rel=1e-14
  )


@pytest.mark.slow
@pytest.mark.parametrize('layers', [False, True])
def test_many_leaves_are_clipped_to_the_same_bits(layers):
  """Leaves of all numbers of rows, in several orders and types, in a graph."""
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
    expected = query.Clipping.from_clip(*arguments).clip(record)
    clipped = tf.function(
      query.GraphClipping.from_clip(*arguments).clip, autograph=False
    )(list(map(tf.constant, record)))
    assert expected.any()
    np.testing.assert_array_equal(clipped, expected)
    np.testing.assert_array_equal(
      graph_clipping._sums_of_squares(list(map(tf.constant, record))),
      [summation.of_squares(leaf) for leaf in record],
    )


@pytest.mark.parametrize(
  'values, happened',
  [
    ([0.5, 0.5], None),
    ([3.0, 0.0], 'clipped_count'),
    ([65000.0, -65000.0], 'zeroed_count'),
    ([np.nan, 1.0], 'non_finite_count'),
    ([-np.inf, 1.0], 'non_finite_count'),
    ([1e200, 1.0], 'non_finite_count'),
  ],
)
def test_counts_say_what_happened_to_a_record(values, happened):
  """A record that is not finite counts as that, and not as zeroed."""
  record = tf.constant(values, tf.float64)
  counts = _clipping('TensorFlow', record, zeroing_norm=1e3).describe(record)
  assert {name for name, count in counts.items() if count} == (
    {happened} - {None}
  )
