"""Tests of guarantees of runs whose schema is enforced."""

import math

import attrs
import brute_force
import dp_accounting
import numpy as np
import pytest
import random_structures

from tff_bandmf import accounting, participation, sensitivity, strategies


def _make(noise_multiplier):
  return accounting.Guarantee(
    strategies.BandedToeplitz(100, [1.0, 0.5]),
    participation.MinSep(10, 4),
    noise_multiplier,
  )


def test_guarantee_names_both_noise_multipliers():
  guarantee = _make(2.0)
  assert guarantee.sensitivity.value == pytest.approx(math.sqrt(4 * 1.25))
  assert guarantee.z_stddev_per_clip == pytest.approx(
    2 * math.sqrt(5), rel=1e-14
  )
  assert 1 / 8 <= guarantee.rho == pytest.approx(1 / 8, rel=1e-9)
  assert guarantee.epsilon(1e-6) == pytest.approx(
    accounting.gaussian_epsilon(2.0, 1e-6), rel=1e-3
  )
  assert guarantee.dp_event().noise_multiplier == pytest.approx(2.0, rel=1e-9)
  described = guarantee.to_dict()
  assert described['z_stddev_per_clip'] == guarantee.z_stddev_per_clip
  assert described['participations'] == 4
  assert described['adjacency'] == 'zero-out'


def test_guarantee_without_noise_guarantees_nothing():
  guarantee = _make(0)
  assert guarantee.z_stddev_per_clip == 0
  assert guarantee.rho is None
  assert guarantee.epsilon(1e-6) == math.inf
  assert guarantee.delta(1.0) == 1.0
  assert guarantee.dp_event() == dp_accounting.NonPrivateDpEvent()


@pytest.mark.parametrize('noise_multiplier', [-1, math.nan, math.inf])
def test_guarantee_refuses_noise_that_is_none(noise_multiplier):
  with pytest.raises(ValueError, match='noise_multiplier='):
    _make(noise_multiplier)


def test_guarantee_takes_no_sensitivity():
  guarantee = _make(1.0)
  with pytest.raises(TypeError):
    accounting.Guarantee(
      guarantee.strategy,
      guarantee.cohorts,
      1.0,
      sensitivity=guarantee.sensitivity,
    )
  replaced = attrs.evolve(guarantee, cohorts=participation.MinSep(1))
  assert replaced.sensitivity.value > guarantee.sensitivity.value


def test_calibrate_meets_epsilon_and_delta():
  guarantee = _make(1.0)
  for epsilon in (0.5, 8, 20):
    found = accounting.calibrate(
      guarantee.strategy, guarantee.cohorts, epsilon=epsilon, delta=1e-6
    )
    assert accounting.gaussian_delta(found.noise_multiplier, epsilon) <= 1e-6
    assert found.epsilon(1e-6) == pytest.approx(epsilon, rel=1e-7)
    assert found.sensitivity == guarantee.sensitivity


def test_log_of_uneven_epochs_is_not_what_was_planned():
  """Columns 0 and 3 overlap, and those that are 2 apart do not."""
  matrix = np.eye(4)
  matrix[3, 0] = 0.9
  planned = accounting.Guarantee(
    strategies.Dense(matrix), participation.FixedEpoch(2, 2), 1.0
  )
  rounds = np.array([0, 3])
  found = sensitivity.of_clients([(rounds, rounds * 0)], planned.strategy)
  assert found.satisfies(planned.cohorts, 4)
  shift = np.linalg.norm(matrix[:, rounds].sum(1))
  seen = planned.for_observed(found)
  assert seen.epsilon(1e-6) >= accounting.gaussian_epsilon(
    planned.z_stddev_per_clip / shift, 1e-6
  )
  assert seen.epsilon(1e-6) > 1.2 * planned.epsilon(1e-6)
  assert not found.satisfies(participation.MinSep(4), 4)
  assert not found.satisfies(participation.MinSep(2, 1), 4)


def test_random_logs_claim_what_their_clients_reached():
  """Clients that keep the schema, and clients of any rounds."""
  rng = np.random.default_rng(0)
  names = [
    name for name in random_structures.MATRICES if not name.endswith('tree')
  ]
  outcomes = []
  for i in range(60):
    rounds = int(rng.integers(2, 11))
    bands = int(rng.integers(1, rounds + 1))
    strategy = random_structures.MATRICES[names[i % len(names)]](
      rng, rounds, bands
    )
    min_sep = int(rng.integers(1, rounds + 1))
    kind = rng.choice([participation.MinSep, participation.FixedEpoch])
    most = int(rng.integers(1, 4)) if rng.random() < 0.5 else None
    planned = accounting.Guarantee(strategy, kind(min_sep, most), 8.0)
    sets = random_structures.separated(rounds, min_sep)[1:]
    allowed = sets[sets.sum(1) <= (most or rounds)]
    keeps = rng.random() < 0.5
    if not keeps:
      allowed = random_structures.separated(rounds, 1)[1:]
    pattern = allowed[rng.integers(len(allowed), size=3)]
    clients, indices = np.nonzero(pattern)
    found = sensitivity.of_clients([(indices, clients)], strategy)
    x = random_structures.gram(strategy)
    reached = math.sqrt(random_structures.sums(pattern, x).max())
    least = accounting.gaussian_epsilon(
      planned.z_stddev_per_clip / reached, 1e-6
    )
    epsilons = [
      each.epsilon(1e-6) for each in (planned, planned.for_observed(found))
    ]
    assert epsilons[1] >= least, (strategy, planned.cohorts, pattern)
    if keeps and kind is participation.MinSep:
      assert epsilons[1] <= epsilons[0] * (1 + 1e-9)
    outcomes.append(least > epsilons[0])
  # Some logs show more than was planned.
  assert 10 < sum(outcomes) < len(outcomes) - 10


def test_log_seen_with_another_strategy_is_refused():
  """Its sensitivity is not that of the C whose noise was added."""
  planned = accounting.Guarantee(
    strategies.SqrtToeplitz(20), participation.MinSep(5), 1.0
  )
  rounds = np.array([0, 5, 10, 15])
  client = [(rounds, rounds * 0)]
  found = sensitivity.of_clients(client, strategies.Identity(20))
  with pytest.raises(ValueError, match='strategy=.* log'):
    planned.for_observed(found)
  with pytest.raises(ValueError, match='strategy=.* log'):
    accounting.Guarantee(planned.strategy, accounting.Logged(found), 1.0)
  true = planned.for_observed(
    sensitivity.of_clients(client, strategies.SqrtToeplitz(20))
  )
  assert true.sensitivity.value > found.sensitivity.value


@pytest.mark.parametrize(
  'strategy, attained',
  [
    (strategies.BandedSqrt(6, 2), True),
    (strategies.SqrtToeplitz(6), True),
    (strategies.Dense(np.eye(6) - np.tril(np.full((6, 6), 0.4), -1)), False),
  ],
)
def test_clients_of_a_unit_move_a_run_by_their_sum(strategy, attained):
  """Each of three takes rounds of its own, and may point either way."""
  matrix = strategy.matrix()
  ways = brute_force.signed(6, participation.MinSep(2))
  moves = np.concatenate([ways, -ways]) @ matrix.T
  # The pair that is farthest; a third moves it on by one client at most.
  pairs = np.linalg.norm(moves[:, None] + moves, axis=-1).max()
  alone = np.linalg.norm(moves, axis=-1).max()
  schema = participation.MinSep(2)
  two, three = (
    accounting.Guarantee(strategy, schema, 1.0, clients_per_unit=count)
    for count in (2, 3)
  )
  assert pairs <= two.sensitivity.value
  assert pairs + alone <= three.sensitivity.value
  if attained:
    assert two.sensitivity.value == pytest.approx(pairs)
  one = accounting.Guarantee(strategy, schema, 1.0)
  assert two.z_stddev_per_clip >= 2 * one.z_stddev_per_clip
  # The same noise for one client: twice the noise multiplier.
  alike = attrs.evolve(two, clients_per_unit=1, noise_multiplier=2.0)
  assert alike.epsilon(1e-6) == pytest.approx(
    accounting.gaussian_epsilon(2.0, 1e-6), rel=1e-2
  )


def test_calibrated_units_of_several_get_the_noise_of_all():
  one, four = (
    accounting.calibrate(
      strategies.BandedSqrt(8, 2),
      participation.MinSep(4),
      epsilon=2.0,
      delta=1e-6,
      clients_per_unit=count,
    )
    for count in (1, 4)
  )
  assert four.epsilon(1e-6) <= 2
  assert four.z_stddev_per_clip == pytest.approx(
    4 * one.z_stddev_per_clip, rel=1e-3
  )
  assert four.to_dict()['clients_per_unit'] == 4
  with pytest.raises(ValueError, match='clients_per_unit=0'):
    attrs.evolve(one, clients_per_unit=0)
