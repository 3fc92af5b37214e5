"""Tests of the audit: its parts, then real runs, honest and sabotaged.

Bounds of an honest run are above its claim with the stated probability; noise
of the runs here has fixed keys, so each of them is one draw.
"""

import functools
import json
import math

import brute_force
import families
import numpy as np
import pytest
import scipy.stats
import tensorflow as tf

from tff_bandmf import (
  accounting,
  aggregator,
  audit,
  noise,
  participation,
  query,
  strategies,
)
from tff_bandmf.audit import arithmetic_attacks, epsilon_bounds, pattern
from tff_bandmf.noise import generator, placements, self_test

_ROUNDS = 12
_MIN_SEP = 4
_SCHEMA = participation.MinSep(_MIN_SEP)
_DELTA = 1e-5
_BANDED = strategies.BandedToeplitz(_ROUNDS, [1.0, 0.5, 0.375])


@pytest.mark.parametrize(
  'schema, min_sep',
  [
    (participation.Single(), 1),
    (participation.MinSep(2), 2),
    (participation.MinSep(3, 2), 3),
    (participation.FixedEpoch(2), 2),
    (participation.FixedEpoch(3, 2), 3),
    (participation.MinSep(9), 9),
  ],
)
@pytest.mark.parametrize('seed', range(4))
def test_pattern_is_allowed_and_nearly_the_worst(schema, min_sep, seed):
  rng = np.random.default_rng(seed)
  matrix = np.tril(rng.normal(size=(7, 7)))
  if seed % 2:
    matrix = np.abs(matrix)
  found = pattern.worst(matrix, schema)
  gaps = np.diff(found.rounds)
  assert len(found.rounds) <= schema.participations(7)
  assert (gaps >= min_sep).all() and found.rounds[-1] < 7
  if isinstance(schema, participation.FixedEpoch):
    assert (gaps == min_sep).all()
  assert found.sensitivity == pytest.approx(
    np.linalg.norm(matrix[:, found.rounds] @ found.signs)
  )
  largest = brute_force.attained(matrix, schema)
  assert 0.9 * largest <= found.sensitivity <= largest * (1 + 1e-12)


def test_signs_alternate_where_columns_do_not_overlap():
  found = pattern.worst(np.eye(8), participation.MinSep(2))
  assert found.rounds.tolist() == [0, 2, 4, 6]
  assert found.signs.tolist() == [1, -1, 1, -1]


_MISS = 0.05


@pytest.mark.parametrize('mu', [0.5, 1.0, 3.0, 10.0])
def test_bounds_miss_as_seldom_as_they_say_and_are_near(mu):
  """400 draws; more than 36 misses have probability 2e-4 at 5%."""
  rng = np.random.default_rng(int(10 * mu))
  epsilon = accounting.gaussian_epsilon(1 / mu, _DELTA)
  gaussian, assumed_nothing = [], []
  for _ in range(400):
    inside, outside = rng.normal(size=(2, 1000)) * 7 + 3
    inside += 7 * mu
    gaussian.append(epsilon_bounds.least_mu(inside, outside, _MISS))
    assumed_nothing.append(
      epsilon_bounds.clopper_pearson(
        inside, outside, 3 + 7 * (mu + 1), _DELTA, _MISS
      )
    )
  assert np.sum(np.array(gaussian) > mu) <= 36
  assert np.sum(np.array(assumed_nothing) > epsilon) <= 36
  assert np.median(gaussian) > 0.7 * mu
  assert 0 < np.median(assumed_nothing)
  assert epsilon_bounds.gaussian(inside, outside, _DELTA, _MISS) == (
    accounting.gaussian_epsilon(1 / gaussian[-1], _DELTA)
  )


def test_bound_that_assumes_nothing_is_that_of_exact_intervals():
  inside, outside = np.arange(100) >= 40, np.arange(200) >= 190
  rate = scipy.stats.binomtest(60, 100).proportion_ci(1 - _MISS / 2).low
  false = scipy.stats.binomtest(10, 200).proportion_ci(1 - _MISS / 2).high
  assert epsilon_bounds.clopper_pearson(
    inside * 1.0, outside * 1.0, 0.5, 0.01, _MISS
  ) == pytest.approx(math.log((rate - 0.01) / false))


def test_bound_that_assumes_nothing_sees_both_tails():
  rng = np.random.default_rng(0)
  # Mixed up, the client is told only by its absence.
  outside = np.where(rng.random(4000) < 0.5, -5.0, rng.normal(size=4000))
  inside = rng.normal(size=4000)
  threshold = epsilon_bounds.best_threshold(inside, outside, _DELTA, _MISS)
  assert epsilon_bounds.clopper_pearson(
    inside, outside, threshold, _DELTA, _MISS
  ) > math.log(200)


@pytest.mark.parametrize('difference', [0.0, -1.0])
def test_scores_that_do_not_tell_give_zero(difference):
  scores = np.random.default_rng(0).normal(size=(2, 500))
  scores -= scores.mean(1, keepdims=True)
  inside, outside = scores + [[difference], [0.0]]
  assert epsilon_bounds.gaussian(inside, outside, _DELTA, _MISS) == 0
  assert (
    epsilon_bounds.clopper_pearson(inside, outside, 0.0, _DELTA, _MISS) == 0
  )


def test_scores_without_noise_give_a_bound_that_no_claim_reaches():
  zeros = np.zeros(50)
  assert epsilon_bounds.gaussian(zeros + 1, zeros, _DELTA, _MISS) > 1e5


def _make(spec, noise_multiplier=None, schema=None, seed=1):
  """Returns what makes the aggregator of a claim, or a sabotaged one."""
  return functools.partial(
    aggregator.dp_aggregator,
    noise_multiplier or spec.noise_multiplier,
    noise=placements.Tape(key=noise.Key.from_seed(seed)),
    strategy=spec.strategy,
    participation=schema or spec.cohorts,
  )


def _audit(spec, make_factory, canaries, confidence=0.999):
  # A fixed key is good for one run.
  return audit.audit(
    spec,
    _DELTA,
    canaries,
    runs=1,
    confidence=confidence,
    seed=0,
    make_factory=make_factory,
  )


@pytest.mark.parametrize(
  'strategy',
  [
    strategies.Identity(_ROUNDS),
    _BANDED,
    strategies.Blt(_ROUNDS, [0.3, 0.2], [0.9, 0.5]),
  ],
  ids=lambda strategy: strategy.family,
)
@pytest.mark.deep(but=('banded-toeplitz',))
def test_most_of_epsilon_is_shown_and_no_more(runtime, strategy):
  """False alarms: 5% for each family, if keys were not fixed."""
  spec = accounting.calibrate(strategy, _SCHEMA, epsilon=4.0, delta=_DELTA)
  found = _audit(spec, _make(spec), 1200, confidence=0.95)
  assert found.holds
  assert found.claimed_epsilon == pytest.approx(4.0)
  assert 0.6 * 4.0 < found.gaussian_bound < 4.0
  assert 0.1 * 4.0 < found.clopper_pearson_bound < found.gaussian_bound
  assert found.pattern == (0, 4, 8)
  assert found.attained_sensitivity == pytest.approx(spec.sensitivity.value)


# Little noise makes few canaries enough.
_SHARP = 0.25


@pytest.mark.parametrize('name', families.made(_ROUNDS))
@pytest.mark.deep(
  but=(
    '[banded-toeplitz]',
    '[banded-inverse]',
    '[blt]',
    '[dp-cgd]',
    '[tree]',
    '[custom]',
  )
)
def test_bound_is_below_the_claim_for_every_family(runtime, name):
  """False alarms: 0.1% for each family, if keys were not fixed."""
  strategy = families.made(_ROUNDS)[name]
  spec = accounting.Guarantee(strategy, _SCHEMA, _SHARP)
  found = _audit(spec, _make(spec), canaries=200)
  assert found.holds
  assert found.gaussian_bound > 0.4 * found.claimed_epsilon
  assert found.attained_sensitivity <= spec.sensitivity.value * (1 + 1e-9)


def _without_self_test(monkeypatch):
  """The noise does not test itself, so that the audit has to find it."""
  monkeypatch.setattr(self_test, 'graph_check', lambda y, *_: y)


def _sabotage(spec, name, monkeypatch):
  """Returns the maker of an aggregator whose noise is not what `spec` says."""
  _without_self_test(monkeypatch)
  if name == 'scale':
    return _make(spec, noise_multiplier=0.8 * spec.noise_multiplier)
  if name == 'one participation':
    return _make(spec, schema=participation.Single())
  fill = generator.Generator._fill
  if name == 'reuse':
    # Two rounds in a row have the same z.
    monkeypatch.setattr(
      generator.Generator,
      '_fill',
      lambda source, z, row, start: fill(source, z, row // 2 * 2, start),
    )
  elif name == 'constant':
    monkeypatch.setattr(
      generator.Generator,
      '_fill',
      lambda source, z, row, start: fill(source, z, 0, start),
    )
  return _make(spec)


@pytest.mark.parametrize(
  'name', ['scale', 'one participation', 'reuse', 'constant']
)
@pytest.mark.parametrize(
  'strategy',
  [strategies.Identity(_ROUNDS), _BANDED],
  ids=lambda strategy: strategy.family,
)
@pytest.mark.deep(but=('banded-toeplitz',))
def test_sabotaged_noise_is_caught(runtime, monkeypatch, strategy, name):
  """At 99.9% confidence, so one of 1000 honest runs would look like these."""
  spec = accounting.Guarantee(strategy, _SCHEMA, _SHARP)
  found = _audit(
    spec, _sabotage(spec, name, monkeypatch), 1200 if name == 'scale' else 200
  )
  assert not found.holds
  assert found.gaussian_bound > found.claimed_epsilon


def test_update_that_is_not_clipped_is_caught(runtime, monkeypatch):
  spec = accounting.Guarantee(_BANDED, _SCHEMA, _SHARP)
  monkeypatch.setattr(
    query.GraphClipping,
    'clip',
    lambda clipping, record: tf.concat(
      [
        tf.reshape(tf.cast(leaf / clipping.step, tf.int32), [-1])
        for leaf in tf.nest.flatten(record)
      ],
      0,
    ),
  )
  assert not _audit(spec, _make(spec), canaries=100).holds


def test_noise_shared_by_coordinates_is_caught(runtime, monkeypatch):
  fill = generator.Generator._fill

  def shared(source, z, row, start):
    fill(source, z, row, start)
    # All of one magnitude.
    z[:] = np.sign(z[0])

  _without_self_test(monkeypatch)
  monkeypatch.setattr(generator.Generator, '_fill', shared)
  spec = accounting.Guarantee(_BANDED, _SCHEMA, 1.0)
  assert not _audit(spec, _make(spec), canaries=100).holds


def test_runs_have_noise_of_their_own_and_add_up(runtime):
  spec = accounting.Guarantee(_BANDED, _SCHEMA, 1.0)
  rounds = []
  found = audit.audit(
    spec,
    _DELTA,
    canaries=20,
    runs=3,
    confidence=0.999,
    on_round=lambda: rounds.append(1),
  )
  assert len(rounds) == 3 * _ROUNDS
  assert (found.trials_inside, found.trials_outside) == (30, 30)
  assert found.holds
  json.dumps(found.to_dict(), allow_nan=False)


@pytest.mark.parametrize(
  'kwargs, error, match',
  [
    ({'canaries': 19}, ValueError, 'canaries=19'),
    ({'canaries': 20.5}, TypeError, 'canaries=20.5'),
    ({'runs': 0}, ValueError, 'runs=0'),
    ({'confidence': 1.0}, ValueError, 'confidence=1.0'),
    ({'confidence': 0.0}, ValueError, 'confidence=0.0'),
  ],
)
def test_bad_argument_is_refused(kwargs, error, match):
  spec = accounting.Guarantee(_BANDED, _SCHEMA, 1.0)
  with pytest.raises(error, match=match):
    audit.audit(spec, _DELTA, **kwargs)


def test_claim_of_nothing_is_refused():
  spec = accounting.Guarantee(_BANDED, _SCHEMA, 0.0)
  with pytest.raises(ValueError, match='nothing to audit'):
    audit.audit(spec, _DELTA)


def test_command_says_whether_the_claim_holds(tmp_path, run, monkeypatch):
  path = tmp_path / 'strategy.npz'
  strategies.save(_BANDED, path, participation=_SCHEMA)
  arguments = (
    'audit',
    path,
    '--delta',
    _DELTA,
    '--canaries',
    100,
    '--confidence',
    0.999,
    '--json',
  )
  # As many as the 2^30 normals of arithmetic_attacks_test have.
  monkeypatch.setattr(
    arithmetic_attacks, 'beyond', lambda key, draws, threshold: 15
  )
  status, out, _ = run(*arguments, '--noise-multiplier', 1.0)
  record = json.loads(out)
  assert status == 0 and record['holds']
  assert record['epsilon'] == pytest.approx(
    accounting.gaussian_epsilon(1.0, _DELTA), rel=1e-3
  )
  assert record['family'] == 'banded-toeplitz'
  assert (record['participation'], record['min_sep']) == ('min-sep', _MIN_SEP)
  assert record['max_participations'] is None
  assert record['gaussian_bound'] < record['epsilon']
  assert [each['name'] for each in record['arithmetic']] == [
    'summing',
    'tail',
    'low_bits',
    'inverse',
  ]
  assert not any(each['succeeded'] for each in record['arithmetic'])
  make = aggregator.dp_aggregator
  monkeypatch.setattr(
    aggregator,
    'dp_aggregator',
    lambda noise_multiplier, **kwargs: make(noise_multiplier / 10, **kwargs),
  )
  # Enough for an attack that finds nothing.
  monkeypatch.setattr(arithmetic_attacks, '_LOW_BITS_TRIALS', 20)
  status, out, _ = run(*arguments, '--epsilon', 4.0)
  assert status == 1 and not json.loads(out)['holds']


def test_command_fails_where_an_attack_succeeds(tmp_path, run, monkeypatch):
  path = tmp_path / 'strategy.npz'
  strategies.save(_BANDED, path)
  monkeypatch.setattr(
    arithmetic_attacks, 'beyond', lambda key, draws, threshold: 0
  )
  monkeypatch.setattr(arithmetic_attacks, '_LOW_BITS_TRIALS', 20)
  status, out, _ = run(
    'audit',
    path,
    '--min-sep',
    _MIN_SEP,
    '--delta',
    _DELTA,
    '--canaries',
    20,
    '--confidence',
    0.999,
    '--noise-multiplier',
    1.0,
  )
  assert status == 1
  assert 'tail: fail, the attack succeeds: 0 of 1073741824 normals' in out
  assert 'summing: pass, the attack finds no fault: 0.999' in out


@pytest.mark.parametrize(
  'flags', [(), ('--epsilon', 4.0, '--noise-multiplier', 1.0)]
)
def test_command_needs_one_claim(tmp_path, run, flags):
  path = tmp_path / 'strategy.npz'
  strategies.save(_BANDED, path)
  status, out, error = run(
    'audit', path, '--min-sep', 4, '--delta', _DELTA, *flags
  )
  assert (status, out) == (2, '')
  assert 'exactly one of epsilon and noise_multiplier' in error
