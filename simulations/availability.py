"""Simulates the availability of devices: time zones, charging, drop-out.

| symbol | name here        | meaning                                         |
|--------|------------------|-------------------------------------------------|
| t      | `round_index`    | index of the round                              |
| R      | `rounds_per_day` | number of rounds in 24 hours, evenly spaced     |
| z      | `zone`           | time zone of a client, one of `zones`, in hours |
| H      |                  | local time 24 t / R + z, in hours since day 0   |
| u', u''|                  | random numbers of (client, night) in [0, 1)     |

A night lasts from noon to noon and has the number (H - 12) // 24. In each night
a device is charged with probability `charging`. The charging begins 3 u' hours
after 22:00 and lasts 4 + 5 u'' hours. A device is available while it is
charged. A selected client drops out with probability `drop_out`.

Every random number is a hash of the seed, the client, and the night or the
round, so results do not depend on earlier calls.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from tff_bandmf import _checks, errors

# Time zones of the Americas (-8 to -3), of Europe and Africa (0 to 3) and of
# Asia (5 to 9).
_INHABITED = (-8, -7, -6, -5, -4, -3, 0, 1, 2, 3, 5, 6, 7, 8, 9)
_ZONE, _NIGHT, _DROP_OUT = range(3)
# Number of bits of one random number; a hash of 64 bits gives three numbers.
_BITS = 21


@dataclasses.dataclass(frozen=True)
class Diurnal:
  """Devices that are available while they are charged at night.

  Attributes:
    seed: seed of all random numbers, integer >= 0.
    rounds_per_day: R, number of rounds in 24 hours, integer >= 1.
    zones: time zones in hours ahead of UTC, all equally likely.
    charging: probability that a device is charged in a night, in [0, 1].
    drop_out: probability that a selected client drops out, in [0, 1].
  """

  seed: int
  rounds_per_day: int = 24
  zones: tuple[int, ...] = _INHABITED
  charging: float = 0.8
  drop_out: float = 0.2

  def __post_init__(self):
    _checks.count(
      'rounds_per_day', self.rounds_per_day, '24 is a round an hour'
    )
    if not self.zones:
      raise errors.value_error(
        f'zones={self.zones}: must not be empty; give at least one, in hours '
        'ahead of UTC'
      )
    for name in ('charging', 'drop_out'):
      _checks.between(name, getattr(self, name), 0, 1, 'it is a probability')

  def available(self, round_index: int, clients: np.ndarray) -> np.ndarray:
    """Returns whether each client can be selected for a round, [m] bool.

    Args:
      round_index: index of the round.
      clients: [m] int64 indices of clients.
    """
    zones = np.array(self.zones)
    zone = zones[self._bits(_ZONE, 0, clients) % np.uint64(len(zones))]
    noon = 24 * round_index / self.rounds_per_day + zone - 12
    night = np.floor(noon / 24).astype(np.int64)
    bits = self._bits(_NIGHT, night, clients)
    start, length, charged = (
      _uniform(bits >> np.uint64(place * _BITS)) for place in range(3)
    )
    since = noon - 24 * night - (10 + 3 * start)
    return (charged < self.charging) & (0 <= since) & (since < 4 + 5 * length)

  def drops_out(self, round_index: int, cohort: np.ndarray) -> np.ndarray:
    """Returns whether each client of a cohort drops out, [m] bool.

    The ledger counts the participation of a client that drops out, because the
    cohort is recorded before the round starts.

    Args:
      round_index: index of the round.
      cohort: [m] int64 indices of the cohort's clients.
    """
    bits = self._bits(_DROP_OUT, round_index, cohort)
    return _uniform(bits) < self.drop_out

  def _bits(self, purpose: int, time, clients: np.ndarray) -> np.ndarray:
    """Returns 64 pseudo-random bits for each client, [m] uint64.

    Args:
      purpose: `_ZONE`, `_NIGHT` or `_DROP_OUT`; different purposes have
        independent bits.
      time: index of the night or of the round, an integer or [m] int64.
      clients: [m] int64 indices of clients.
    """
    (key,) = np.random.SeedSequence([self.seed, purpose]).generate_state(
      1, np.uint64
    )
    mixed = _mix(clients.astype(np.uint64) + key)
    return _mix(mixed + np.asarray(time, np.int64).astype(np.uint64))


def _uniform(bits: np.ndarray) -> np.ndarray:
  """Returns the lowest `_BITS` bits as numbers in [0, 1), [m] float64."""
  return (bits & np.uint64(2**_BITS - 1)) / float(2**_BITS)


def _mix(values: np.ndarray) -> np.ndarray:
  """Returns the values after one step of SplitMix64, a bijection of 64 bits."""
  values = values + np.uint64(0x9E3779B97F4A7C15)
  values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
  values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
  return values ^ (values >> np.uint64(31))
