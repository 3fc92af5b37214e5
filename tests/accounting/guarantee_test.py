"""Tests of guarantees of runs whose schema is enforced."""

import math

import attrs
import dp_accounting
import numpy as np
import pytest

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
  assert found.keeps(planned.cohorts, 4)
  shift = np.linalg.norm(matrix[:, rounds].sum(1))
  seen = planned.seen(found)
  assert seen.epsilon(1e-6) >= accounting.gaussian_epsilon(
    planned.z_stddev_per_clip / shift, 1e-6
  )
  assert seen.epsilon(1e-6) > 1.2 * planned.epsilon(1e-6)
  assert not found.keeps(participation.MinSep(4), 4)
  assert not found.keeps(participation.MinSep(2, 1), 4)
