"""Tests of the simulated availability."""

import numpy as np
import pytest

from simulations import availability

_CLIENTS = np.arange(20000)


def test_devices_are_there_at_night_only():
  # Midnight in zone 0 is round 0 of 24.
  there = [
    availability.Diurnal(1, zones=(0,)).available(t, _CLIENTS).mean()
    for t in range(48)
  ]
  # From 22:00 at the earliest to 10:00 at the latest.
  assert all(share == 0 for t, share in enumerate(there) if 10 <= t % 24 <= 22)
  # All that are charged are there at 1:00; a standard deviation is 0.003.
  assert there[1] == pytest.approx(0.8, abs=0.02)
  assert there[25] == pytest.approx(0.8, abs=0.02)
  assert 0 < there[9] < there[5] < there[1]


def test_zones_shift_the_night():
  here, there = (
    availability.Diurnal(1, zones=(0,)),
    availability.Diurnal(1, zones=(-5,)),
  )
  for t in range(5, 30):
    # The night of a client has the same hash in both.
    np.testing.assert_array_equal(
      there.available(t, _CLIENTS), here.available(t - 5, _CLIENTS)
    )


def test_zones_are_all_used():
  # At 1:00 somewhere else in every round.
  diurnal = availability.Diurnal(2, zones=tuple(range(24)), charging=1.0)
  shares = [diurnal.available(t, _CLIENTS).mean() for t in range(24)]
  # 6.5 hours of 24; a standard deviation is 0.003.
  assert shares == pytest.approx([6.5 / 24] * 24, abs=0.02)


def test_charging_is_drawn_every_night():
  diurnal = availability.Diurnal(3, zones=(0,), charging=0.5)
  first, second = (diurnal.available(t, _CLIENTS) for t in (1, 25))
  # Independent: a quarter in both nights; a standard deviation is 0.003.
  assert np.mean(first & second) == pytest.approx(0.25, abs=0.02)
  assert np.mean(
    availability.Diurnal(4, zones=(0,), charging=0.5).available(1, _CLIENTS)
    & first
  ) == pytest.approx(0.25, abs=0.02)


def test_night_is_one_stretch():
  diurnal = availability.Diurnal(5, rounds_per_day=96, zones=(0,))
  there = np.array(
    [diurnal.available(t, _CLIENTS[:500]) for t in range(48, 145)]
  )
  changes = np.abs(np.diff(there.astype(int), axis=0)).sum(0)
  assert set(changes.tolist()) == {0, 2}
  hours = there.sum(0)[there.any(0)] / 4
  assert 3.75 <= hours.min() and hours.max() <= 9.25


def test_answer_does_not_depend_on_who_else_is_asked_about():
  diurnal = availability.Diurnal(6)
  some = np.array([17, 3, 17, 19999])
  for t in (0, 1000):
    np.testing.assert_array_equal(
      diurnal.available(t, some), diurnal.available(t, _CLIENTS)[some]
    )
    np.testing.assert_array_equal(
      diurnal.drops_out(t, some), diurnal.drops_out(t, _CLIENTS)[some]
    )


def test_drop_out_has_its_share_and_changes_with_the_round():
  diurnal = availability.Diurnal(7, drop_out=0.2)
  first, second = diurnal.drops_out(0, _CLIENTS), diurnal.drops_out(1, _CLIENTS)
  assert first.mean() == pytest.approx(0.2, abs=0.02)
  assert np.mean(first & second) == pytest.approx(0.04, abs=0.01)
  assert not availability.Diurnal(7, drop_out=0).drops_out(0, _CLIENTS).any()


@pytest.mark.parametrize(
  'arguments, message',
  [
    (dict(rounds_per_day=0), 'rounds_per_day=0'),
    (dict(zones=()), 'zones'),
    (dict(charging=1.1), 'charging=1.1'),
    (dict(drop_out=-0.1), 'drop_out=-0.1'),
    (dict(drop_out=float('nan')), 'drop_out=nan'),
  ],
)
def test_value_out_of_range_is_refused(arguments, message):
  with pytest.raises(ValueError, match=message):
    availability.Diurnal(0, **arguments)
