"""Tests of the noisy mean in NumPy."""

import contextlib
import math

import numpy as np
import pytest
from scipy import sparse

import tff_bandmf
from tff_bandmf import (
  accounting,
  noise,
  participation,
  query,
  strategies,
)
from tff_bandmf.noise import placements, released_sums

_KEY = noise.Key.from_seed(1703)
_ROUNDS = 4
_LIKE = {
  'a': np.zeros((3, 5), np.float32),
  'b': [np.zeros(9000, np.float64), np.zeros(0, np.float32)],
  'c': np.zeros((), np.float16),
}
_LAYERS = {'a': 0.3, 'b': 0.7, 'c': 0.1}
_STRATEGIES = {
  'identity': lambda: strategies.Identity(_ROUNDS),
  'banded': lambda: strategies.BandedToeplitz(_ROUNDS, [1.0, 0.5]),
  'blt': lambda: strategies.Blt(_ROUNDS, np.full(2, 0.1), np.array([0.9, 0.4])),
  'inverse': lambda: strategies.BandedInverseSqrt(_ROUNDS, 2),
  'tree': lambda: strategies.OnlineTree(_ROUNDS),
  'dense': lambda: strategies.Dense(
    np.tril(np.random.default_rng(0).uniform(0.1, 1, (_ROUNDS, _ROUNDS)))
    + np.eye(_ROUNDS)
  ),
}


def _updates(t, like=_LIKE):
  """Updates of all sizes, and some that are no numbers."""
  random = np.random.default_rng(t)

  def update(size, change=None):
    made = [
      np.asarray(size * random.normal(size=each.shape), each.dtype)
      for each in (like['a'], *like['b'], like['c'])
    ]
    if change is not None:
      made[1][random.integers(9000)] = change
    return {'a': made[0], 'b': made[1:3], 'c': made[3]}

  with np.errstate(over='ignore'):
    return [
      update(1e-3),
      update(1e-2),
      update(1.0),
      update(40.0),
      update(1e300),
      update(0.0),
      update(1.0, math.nan),
      update(1.0, -math.inf),
      update(1.0, 1e200),
      update(1.0, 1e150),
      update(1e-320),
    ]


def _mean(
  strategy=_STRATEGIES['banded'],
  clip=1.0,
  placement=None,
  like=_LIKE,
  noise_multiplier=0.4,
  zeroing=None,
  **guarantee,
):
  return contextlib.closing(
    query.NoisyMean(
      accounting.Guarantee(
        strategy(), participation.MinSep(2), noise_multiplier, **guarantee
      ),
      like,
      (clip, zeroing, math.inf),
      7.0,
      largest_cohort=12,
      placement=placement or placements.Tape(key=_KEY),
    )
  )


def _clip(kind):
  if kind == 'adaptive':
    return tff_bandmf.AdaptiveClip(0.5, rate=0.9, until=3)
  return {
    'one': 1.0,
    'layers': _LAYERS,
    'adaptive layers': tff_bandmf.AdaptiveClip(_LAYERS, rate=3.0),
  }[kind]


@pytest.mark.parametrize(
  'name, kind, zeroing',
  [
    *((name, 'one', None) for name in _STRATEGIES if name != 'banded'),
    ('blt', 'adaptive', None),
    # Zeroing does not depend on the noise.
    *(('banded', kind, 30.0) for kind in ('one', 'layers', 'adaptive layers')),
  ],
)
@pytest.mark.slow
@pytest.mark.deep(
  but=(
    'blt-adaptive',
    'banded-adaptive layers',
    'inverse-one',
    'banded-one',
    'tree-one',
  )
)
def test_bits_are_those_of_tensorflow(name, kind, zeroing, tmp_path):
  """Means, clips and marks of each round, in a graph with its optimiser."""
  import tensorflow as tf

  clip, strategy = _clip(kind), _STRATEGIES[name]
  found = []
  (tmp_path / 'numpy').mkdir()
  where = released_sums.Position(tmp_path / 'numpy', 1)
  tape = placements.Tape(tmp_path / 'tape', key=_KEY, position=where)
  with _mean(strategy, clip, tape, zeroing=zeroing) as mean:
    released = {}
    for t in range(_ROUNDS):
      where.open(t, 1, 11)
      done = mean.release(t, _updates(t), released.get('l2_norm_clip'))
      released = done.released
      found.append((done, where.released(t), where.updates(t)))

  (tmp_path / 'graph').mkdir()
  where = released_sums.Position(tmp_path / 'graph', 1)
  tape = placements.Tape(tmp_path / 'tape', key=_KEY, position=where)
  adding = query.CorrelatedNoiseQuery(
    accounting.Guarantee(strategy(), participation.MinSep(2), 0.4),
    tf.nest.map_structure(
      lambda leaf: tf.TensorSpec(leaf.shape, leaf.dtype), _LIKE
    ),
    (clip, zeroing, math.inf),
    7.0,
    largest_cohort=12,
    noise_from=tape,
  )

  @tf.function(autograph=False)
  def add(state, total, update):
    return adding.accumulate_record(
      adding.derive_sample_params(state), total, update
    )

  release = tf.function(
    lambda total, state: adding.get_noised_result(total, state)[:2],
    autograph=False,
  )
  with contextlib.closing(adding):
    state = adding.begin(adding.initial_global_state())
    for t in range(_ROUNDS):
      where.open(t, 1, 11)
      total = adding.initial_sample_state()
      for update in _updates(t):
        total = add(state, total, update)
      result, state = release(total, state)
      done, marks, counts = found[t]
      for mine, theirs in zip(
        tf.nest.flatten(done.mean), tf.nest.flatten(result)
      ):
        assert mine.dtype == theirs.dtype.as_numpy_dtype
        assert mine.tobytes() == theirs.numpy().tobytes()
      assert done.released == {
        key: float(value) for key, value in dict(state.clip).items()
      }
      assert where.released(t) == marks and len(marks) == 1
      assert where.updates(t) == counts and counts[1][0] == 11


def test_round_of_more_than_the_largest_cohort_fails():
  with _mean() as mean:
    mean.release(0, [_updates(0)[2]] * 12)
    with pytest.raises(ValueError, match='updates=13 or more'):
      mean.release(1, [_updates(0)[2]] * 13)


def test_round_past_the_last_raises():
  with _mean(noise_multiplier=0.0) as mean:
    for t in (_ROUNDS, -1):
      with pytest.raises(ValueError, match=f'round={t}: the strategy supports'):
        mean.release(t, [])


def test_leaf_that_is_no_float_is_refused_by_name():
  for wrong in (np.int32, np.longdouble):
    with pytest.raises(TypeError, match=r'update\[a\].dtype=.*to float64'):
      _mean(like={'a': np.zeros(3, wrong), 'b': np.zeros(3)})
  with pytest.raises(ValueError, match='holds no coordinate'):
    _mean(like=[np.zeros((3, 0))])


def test_updates_may_be_of_any_real_numbers():
  like = np.zeros(3, np.float32)
  with _mean(like=like, noise_multiplier=0.0, clip=9.0) as mean:
    for update in [1, 2, 3], np.array([1, 2, 3], np.int8), (1.0, 2, 3):
      np.testing.assert_allclose(
        7 * mean.release(0, [np.asarray(update)]).mean,
        np.asarray(update, float),
        atol=1e-3,
      )


@pytest.mark.parametrize(
  'leaf',
  [
    np.ones(3, np.complex64),
    np.ones(3, bool),
    np.array(['1', '2', '3']),
    np.array([b'1', b'2', b'3']),
    np.array([1.0, 2.0, None]),
    np.ones(3, 'timedelta64[s]'),
    np.array(['2020', '2021', '2022'], 'datetime64[Y]'),
    np.ones(3, [('a', float)]),
    np.ma.masked_array(np.ones(3), [False, True, False]),
    np.ma.masked_array(np.ones(3)),
    sparse.csr_matrix(np.ones([1, 3])),
  ],
  ids=lambda leaf: f'{type(leaf).__name__} of {leaf.dtype}',
)
def test_leaf_that_is_no_real_number_is_refused(leaf):
  """Its imaginary part or its mask was dropped without a word."""
  like = {'w': np.zeros(3, np.float32)}
  with _mean(like=like) as mean:
    updates = [{'w': np.ones(3)}, {'w': leaf}]
    with pytest.raises(TypeError, match=r'^updates\[1\]\[w\]=') as caught:
      mean.release(0, updates)
    assert '\n' not in str(caught.value)
  with pytest.raises(TypeError, match=r'^(like\[w\]=|update\[w\].dtype=)'):
    _mean(like={'w': leaf})


def test_update_of_another_form_is_refused_with_what_was_expected():
  like = {'w': np.zeros((3, 2)), 'b': [np.zeros(1)]}
  right = {'w': np.ones((3, 2)), 'b': [np.ones(1)]}
  with _mean(like=like) as mean:
    for wrong, told in (
      ({**right, 'w': np.ones(3)}, 'updates[1][w].shape=(3,): must be (3, 2)'),
      ({**right, 'b': [0.0]}, 'updates[1][b.0].shape=(): must be (1,)'),
      ({'w': right['w']}, 'updates[1]=w(3, 2): must be b.0(1,), w(3, 2)'),
    ):
      with pytest.raises(ValueError) as caught:
        mean.release(0, [right, wrong])
      assert str(caught.value).startswith(told)


def test_second_sum_of_a_round_is_refused_and_its_noise_is_not_used():
  with _mean() as mean:
    first = mean.release(2, _updates(0)).mean
    again = mean.release(2, _updates(0)[::-1]).mean
    np.testing.assert_array_equal(first['b'][0], again['b'][0])
    with pytest.raises(ValueError, match='released another sum'):
      mean.release(2, _updates(1))
    with pytest.raises(ValueError, match='already used'):
      mean.release(1, _updates(1))
