"""Tests of clips that follow a quantile, eagerly and without TFF."""

import itertools
import math

import numpy as np
import pytest
import tensorflow as tf

import tff_bandmf
from tff_bandmf import (
  accounting,
  clipping_norm,
  noise,
  participation,
  strategies,
)
from tff_bandmf import query as query_lib
from tff_bandmf.audit import epsilon_bounds
from tff_bandmf.noise import generator, placements

_BITS = 20
_KEY = noise.Key.from_seed(5)
# The queries of a test, which are open.
_queries = []
_SPECS = {
  'a': tf.TensorSpec([2, 2], tf.float32),
  'b': tf.TensorSpec([1], tf.float64),
}
_LAYERS = {'a': 0.3, 'b': 0.4}


def _record(norm):
  """Returns a record of this norm, three fifths of it in `a`."""
  return {
    'a': tf.constant(np.full((2, 2), 0.3 * norm), tf.float32),
    'b': tf.constant([0.8 * norm], tf.float64),
  }


def _squares(clipped):
  return sum(int(q) ** 2 for q in clipped.numpy())


def _query(
  adaptive,
  noise_multiplier,
  strategy=None,
  schema=None,
  specs=_SPECS,
  clients_per_round=4.0,
  key=None,
):
  query = query_lib.CorrelatedNoiseQuery(
    accounting.Guarantee(
      strategy or strategies.BandedToeplitz(6, [1.0, 0.5]),
      schema or participation.MinSep(2),
      noise_multiplier,
    ),
    specs,
    (adaptive, None, math.inf),
    clients_per_round,
    largest_cohort=8,
    noise_from=placements.Tape(key=key),
  )
  _queries.append(query)
  return query


@pytest.fixture(autouse=True)
def _close():
  yield
  while _queries:
    _queries.pop().close()


def _round(query, state, records):
  """Returns (mean, next state) of a round."""
  total = query.initial_sample_state()
  for record in records:
    total = query.accumulate_record(
      query.derive_sample_params(state), total, record
    )
  return query.get_noised_result(total, state)[:2]


def test_client_moves_all_rounds_by_at_most_the_sensitivity():
  """Every pattern, clips that move, every record: both ways, to the step."""
  strategy = strategies.BandedToeplitz(5, [1.0, 0.6, 0.3])
  schema = participation.MinSep(2, 2)
  gram = strategy.matrix().T @ strategy.matrix()
  adaptive = tff_bandmf.AdaptiveClip(0.5, fraction_weight=2.0)
  clipping = query_lib.GraphClipping.from_clip(adaptive, _SPECS, _BITS)
  records = []
  for scale in (0.01, 1.0, 20.0):
    for size in (0.0, 0.2, 0.5 - 1e-5, 0.5 + 1e-5, 30.0, -30.0, math.nan):
      records.append(clipping.clip(_record(size * scale), scale))
  records = np.array(records, np.int64)
  products = (records @ records.T).astype(object)
  absent = np.zeros_like(records)
  # With the client and without it; and the other way round.
  assert np.array_equal(
    (records - absent) @ (records - absent).T,
    (absent - records) @ (absent - records).T,
  )
  patterns = [
    pattern
    for size in (1, 2)
    for pattern in itertools.combinations(range(5), size)
    if size == 1 or pattern[1] - pattern[0] >= 2
  ]
  moved = 0.0
  for pattern in patterns:
    for chosen in itertools.product(range(len(records)), repeat=len(pattern)):
      moved = max(
        moved,
        sum(
          gram[s, t] * products[i, j]
          for s, i in zip(pattern, chosen)
          for t, j in zip(pattern, chosen)
        ),
      )
  bound = accounting.Guarantee(strategy, schema, 1.0).sensitivity.value
  assert moved <= (bound * 2**_BITS) ** 2 * (1 + 1e-12)
  assert moved >= (bound * 2**_BITS) ** 2 * 0.999


@pytest.mark.slow
def test_clip_follows_what_is_released():
  """Noise of one more coordinate, the same C, in the unit of the round."""
  adaptive = tff_bandmf.AdaptiveClip(
    0.5, quantile=0.7, rate=0.5, fraction_weight=1.0, until=4
  )
  query = _query(adaptive, 0.3, key=_KEY)
  state = query.begin(query.initial_global_state())
  z = generator.Generator(_KEY).rows(0, 6, 0, 6)
  y = np.linalg.solve(
    strategies.BandedToeplitz(6, [1.0, 0.5]).matrix(), query.z_stddev * z
  )
  scale = 1.0
  for t in range(6):
    clip = float(state.clip['l2_norm_clip'])
    assert clip == pytest.approx(0.5 * scale, rel=1e-5)
    records = [_record(size) for size in (0.1, 0.4, 0.8)]
    below = sum(size < 0.5 * scale for size in (0.1, 0.4, 0.8))
    mean, state = _round(query, state, records)
    fraction = 0.5 + ((below - 1.5) + y[t, 5] / 0.5) / 4
    assert float(state.clip['fraction']) == pytest.approx(fraction, abs=1e-5)
    clipped = sum(min(size, 0.5 * scale) for size in (0.1, 0.4, 0.8))
    np.testing.assert_allclose(
      4 * mean['b'], 0.8 * clipped + scale * y[t, 4], atol=2e-5
    )
    if t < 4:
      scale *= math.exp(-0.5 * (fraction - 0.7))


@pytest.mark.slow
@pytest.mark.parametrize('start', [0.05, 5.0])
def test_clip_comes_to_the_quantile_from_far_away(start):
  adaptive = tff_bandmf.AdaptiveClip(start, quantile=0.75)
  query = _query(
    adaptive,
    0.0,
    strategies.Identity(80),
    participation.MinSep(1),
    clients_per_round=4,
  )
  state = query.begin(query.initial_global_state())
  play = tf.function(
    lambda state: _round(query, state, map(_record, (0.1, 0.2, 0.6, 0.9))),
    autograph=False,
  )
  for _ in range(80):
    _, state = play(state)
  # Between the third and the fourth, or on its way over one of them.
  assert 0.5 < state.clip['l2_norm_clip'] < 1.0


def test_scale_stays_finite():
  adaptive = tff_bandmf.AdaptiveClip(0.5, rate=10.0, fraction_weight=1e-3)
  query = _query(adaptive, 0.0, clients_per_round=1e-3)
  state = query.begin(query.initial_global_state())
  for released in (2**31 - 1, -(2**31)):
    clip = state.clip
    for _ in range(3):
      clip = query.clip.adapted(
        clip['l2_norm_clip'],
        tf.constant(released, tf.float64),
        1e-3,
        0,
        tf.clip_by_value,
      )
      scale = clip['l2_norm_clip'] / 0.5
      assert 2.0**-64 <= scale <= 2.0**64
      for size in (0.0, 1.0, 1e30):
        assert _squares(query.clip.clip(_record(size), scale)) <= 4**26
  assert scale == 2.0**64
  # Not even a damaged state lets a record be longer.
  for wrong in (math.nan, math.inf, 0.0, -1.0):
    assert _squares(query.clip.clip(_record(1.0), wrong)) <= 4**26


def test_noise_of_a_run_is_larger_by_delta():
  adaptive = tff_bandmf.AdaptiveClip(0.5)
  constant, query = _query(0.5, 0.7), _query(adaptive, 0.7)
  assert query.lattice.z_steps == constant.lattice.z_steps
  assert clipping_norm.norm(adaptive) == pytest.approx(
    query.clip.l2_norm, rel=1e-12
  )
  growth = query.z_stddev / constant.z_stddev
  assert growth == pytest.approx(math.sqrt(1 + 0.28**2 / 4), rel=1e-9)
  assert growth < 1.01


@pytest.mark.slow
@pytest.mark.parametrize('enough', [True, False])
@pytest.mark.deep(but=('[True]',))
def test_audit_finds_noise_without_delta(enough):
  """Rounds of identity noise, each with a client of its own or without one."""
  rounds, weight, delta = 120, 8.0, 1e-5
  strategy, schema = strategies.Identity(rounds), participation.Single()
  claim = accounting.Guarantee(strategy, schema, 1.0)
  # What clips of the same norm would do without the indicator.
  less = 1.0 if enough else math.sqrt(1 + weight**2 / 4)
  query = _query(
    tff_bandmf.AdaptiveClip(0.5, fraction_weight=weight, until=20),
    1.0 / less,
    strategy,
    schema,
    tf.TensorSpec([1]),
    1.0,
  )
  client = tf.constant([1e9])
  play = tf.function(
    lambda state, present: _round(query, state, [client] * present),
    autograph=False,
  )
  state = query.begin(query.initial_global_state())
  scores = ([], [])
  for t in range(rounds):
    unit = float(state.clip['l2_norm_clip'])
    present = t % 2 == 0
    mean, state = play(state, present)
    # The client is above the clip.
    scores[not present].append(
      float(mean[0]) / unit
      - weight / 2 * weight * float(state.clip['fraction'] - 0.5)
    )
  bound = epsilon_bounds.gaussian(*map(np.array, scores), delta, 1e-6)
  assert (bound <= claim.epsilon(delta)) == enough


@pytest.mark.parametrize(
  'values, error',
  [
    ({'initial': 0.0}, ValueError),
    ({'initial': 'auto'}, TypeError),
    ({'initial': (0.1, -1.0)}, ValueError),
    ({'quantile': 1.5}, ValueError),
    ({'rate': 0.0}, ValueError),
    ({'rate': math.inf}, ValueError),
    ({'fraction_weight': 0.0}, ValueError),
    ({'fraction_weight': True}, TypeError),
    ({'until': 0}, ValueError),
    ({'until': 1.5}, TypeError),
  ],
)
def test_value_out_of_range_is_refused(values, error):
  (name,) = values
  with pytest.raises(error, match=name):
    tff_bandmf.AdaptiveClip(**{'initial': 0.1, **values})
