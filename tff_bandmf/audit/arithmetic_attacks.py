"""Attacks on the arithmetic of a run.

A claim is about released numbers, but accountants bound a mechanism in real
numbers. Tests show that each attack here succeeds on float32 sums, normals or
coefficients, even if the accounting in real numbers is right. Each attack must
fail on sound arithmetic, such as the integer arithmetic of `noise.lattice`.
Each attack takes the arithmetic as an argument, a function or an array, so that
tests can attack float32. `attack` runs the attacks on the parts of
`query.NoisyMean`, and tests show that TFF's aggregation releases the same bits.

| attack       | failure of the arithmetic that the attack finds              |
|--------------|--------------------------------------------------------------|
| `summing`    | one client moves a sum by more than its clip                 |
| `tail`       | very large normals are too rare or too frequent              |
| `low_bits`   | the last bits of a release show whether a client took part   |
| `inverse`    | the noise is D^-1 z for another matrix D than C              |

C is the strategy, z is the matrix of standard normals, and y = C^-1 z is the
noise of the releases R, in standard deviations of z.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import math
from typing import Callable, Union

import numpy as np
import scipy.special

from tff_bandmf import (
  _files,
  accounting,
  noise,
  participation,
  query,
  strategies,
)
from tff_bandmf.audit import epsilon_bounds, whitened
from tff_bandmf.noise import generator as generator_lib
from tff_bandmf.noise import placements
from tff_bandmf.strategies import per_query

# Largest probability with which `tail`, or `low_bits`, succeeds on sound
# arithmetic. `summing` and `inverse` never succeed on sound arithmetic.
FALSE_ALARM = 1e-6
# Largest normal of a float32 generator by Box-Muller whose uniform numbers are
# at least 1e-7: (-2 ln 1e-7)^(1/2).
TAIL = 5.678
# Number of normals that `tail` examines. About 15 of them are beyond TAIL, and
# with probability 4e-7 none is.
TAIL_DRAWS = 2**30
# Claimed epsilon and delta of each round that `low_bits` examines.
EPSILON, DELTA = 2.0, 1e-6
# Coordinates and trials with which `low_bits` succeeds on float32 for this
# epsilon and delta.
LOW_BITS_DIMENSION = 20_000
_LOW_BITS_TRIALS = 200
# Largest distance at which `inverse` finds no fault, in the unit of the attack.
# An error of this size costs nearly no privacy.
_OFF = 2.0**-10
# Contribution of the attacked client in `summing`, in clips.
VICTIM = 1 - 2.0**-10
# Random words examined in one step.
_WORDS = 1 << 16
# In `attack`: number of clients of `summing`, and number of coordinates of
# noise that `inverse` examines.
_CLIENTS, _COMPARED = 1000, 64


@dataclasses.dataclass(frozen=True)
class Attack:
  """The measurement of an attack.

  Attributes:
    name: name of the attack.
    statistic: measured number.
    unit: unit of the statistic, in words.
    least: least statistic of a sound arithmetic.
    most: largest statistic of a sound arithmetic.
    false_alarm: largest probability that the statistic of a sound arithmetic
      is not in [least, most].
  """

  name: str
  statistic: float
  unit: str
  least: float
  most: float
  false_alarm: float

  @property
  def succeeded(self) -> bool:
    """Whether the statistic is outside the limits of a sound arithmetic."""
    return not self.least <= self.statistic <= self.most

  def to_dict(self) -> _files.JsonObject:
    """Returns the attributes and `succeeded` as JSON values."""
    return {**dataclasses.asdict(self), 'succeeded': self.succeeded}

  def __str__(self) -> str:
    verdicts = 'pass, the attack finds no fault', 'fail, the attack succeeds'
    return (
      f'{self.name}: {verdicts[self.succeeded]}: {self.statistic:.6g} '
      f'{self.unit}, sound is {self.least:.6g} to {self.most:.6g}'
    )


def summing(add: Callable[[np.ndarray], float], clients: int = 1000) -> Attack:
  """Returns how far one client moves the sum of a worst-case cohort.

  Equal records bring a running float32 sum to about one clip below a power of
  two. Then the victim's record, just below one clip, brings the sum to at least
  this power. Let u be the unit in the last place of this power. All later
  records are slightly above u / 2. With the victim, each of them adds u to the
  rounded sum. Without the victim, each adds u / 2 until the sum also reaches
  the power. [Casacuberta et al., CCS 2022]

  Args:
    add: function from clipped values, [clients] float32 in clips, to their sum
      in clips; it is called with the whole cohort, and with zero in place of
      the victim's record.
    clients: number of records, at least 2.
  """
  _, cohort, before = max(
    (_worst_cohort(2.0**i, clients) for i in range(clients.bit_length())),
    key=lambda choice: choice[0],
  )
  without = cohort.copy()
  without[before : before + 1] = 0.0
  moved = abs(add(cohort) - add(without))
  return Attack('summing', moved, 'clips moved by one client', 0.0, 1.0, 0.0)


def _worst_cohort(power: float, clients: int) -> tuple[float, np.ndarray, int]:
  """Returns the worst cohort that brings a sum to a power of two.

  Returns:
    The number of clips that rounding adds to the victim's contribution; the
    values of all clients, [clients] float32 in clips; the victim's place.
  """
  # Half a unit in the last place of the power of two. Below this power, sums
  # of multiples of `half` are exact.
  half = power * 2.0**-24
  before = np.arange(1, 65) + int(power)
  size = np.ceil((power - VICTIM) / before / half) * half
  gain = np.minimum((clients - before - 1) * half, power - before * size)
  best = int(np.argmax(gain))
  place = int(before[best])
  records = np.full(clients, half * (1 + 2.0**-10), np.float32)
  records[:place] = size[best]
  records[place : place + 1] = VICTIM
  return float(gain[best]), records, place


def tail(beyond: Callable[[int, float], int]) -> Attack:
  """Returns the number of normals that exceed `TAIL` in magnitude.

  Let R be the releases if all records but those of one client are zero. Without
  the client, C R is z. If no normal exceeds a limit, entries of C R beyond this
  limit occur only with the client, and their probability is a delta that the
  accounting misses.

  Args:
    beyond: function (draws, threshold) -> number of normals, out of `draws`,
      with a magnitude above the threshold.
  """
  count, miss = beyond(TAIL_DRAWS, TAIL), FALSE_ALARM / 2
  test = whitened.large_normals(count, TAIL_DRAWS, TAIL, (miss, miss))
  return Attack(
    'tail', test.statistic, test.name, test.least, test.most, FALSE_ALARM
  )


def beyond(key: noise.Key, draws: int, threshold: float) -> int:
  """Returns the number of normals of a key beyond a threshold in magnitude.

  A larger random word gives a normal of smaller magnitude; the last bit of the
  word is the sign. So only small words are turned into normals.

  Args:
    key: key of the normals.
    draws: number of normals to examine, >= 1.
    threshold: magnitude above which a normal counts, >= 1.
  """
  generator = generator_lib.Generator(key)
  # Twice the word that gives the threshold, so that no normal is missed.
  small = np.uint64(int(scipy.special.ndtr(-threshold) * 2.0**66))
  exceeding = 0
  for row in range(-(-draws // _WORDS)):
    count = min(_WORDS, draws - row * _WORDS)
    for i in np.flatnonzero(generator.words(row, 0, count) < small):
      start = int(i) // generator_lib.GROUP * generator_lib.GROUP
      z = generator.rows(row, 1, start, int(i) - start + 1)[0, -1]
      exceeding += abs(z) > threshold
  return exceeding


def low_bits(release: Callable[[np.ndarray], np.ndarray]) -> Attack:
  """Returns a lower bound on epsilon from last bits of one round's releases.

  The victim's record is v = 1 / sqrt(d) in every coordinate, and the release is
  x = v + y. If |x| is much smaller than v, y is near -v, and so the float32 sum
  x is a multiple of u, half a unit in the last place of v. Without the victim,
  x = y has more digits. Let m be the number of coordinates of x that are below
  v / 2 in magnitude and are not multiples of u. The score is -m.

  Args:
    release: function from a sum, [d] float32 in clips, to its release, [d] in
      clips; every call adds new noise, and the claim of one release is
      (EPSILON, DELTA).
  """
  d = LOW_BITS_DIMENSION
  victim = np.full(d, d**-0.5, np.float32)
  unit = 0.5 * float(np.spacing(victim[0]))

  def score(sums):
    x = np.asarray(release(sums), np.float64)
    near = x[np.abs(x) < 0.5 * victim[0]]
    return float(-np.sum(near % unit != 0))

  inside, outside = (
    np.array([score(each) for _ in range(_LOW_BITS_TRIALS)])
    for each in (victim, np.zeros_like(victim))
  )
  shown = epsilon_bounds.clopper_pearson(
    inside, outside, -0.5, DELTA, FALSE_ALARM
  )
  shown_at = f'epsilon shown at delta={DELTA:g}'
  return Attack('low_bits', shown, shown_at, 0.0, EPSILON, FALSE_ALARM)


def inverse(
  strategy: strategies.Strategy,
  y: np.ndarray,
  z: np.ndarray,
  steps: Union[np.ndarray, float],
) -> Attack:
  """Returns the distance of C y and z, where y was computed from z.

  If C^-1 has few bands, y is C^-1 z, rounded once. The product C y would spread
  the rounding over later rounds. So the distance is the largest difference of y
  and C^-1 z, in lattice steps, minus half a step.

  Otherwise, the distance of a round is the root mean square of C y - z in the
  round, minus half a lattice step. The result is the largest of these
  distances, or 0 if all are negative. If y is D^-1 z for a matrix D that is not
  C, y has the guarantee of D. The sensitivities of D and C can be far apart
  even if D^-1 and C^-1 are nearly equal.

  Args:
    strategy: C.
    y: noise of all rounds, [n, d] float64 in standard deviations of z.
    z: the normals, [n, d] float64.
    steps: width of a lattice step in each round, in standard deviations of z,
      [n] float64; 0 for noise that is not rounded.
  """
  if strategy.inverse_bands is not None and np.all(steps):
    rows = strategy.inverse_band_rows(0, strategy.rounds)
    band = per_query.skewed(rows)[:, rows.shape[1] - 1 :]
    largest = np.max(np.abs(y - band @ z), 1)
    distance = np.max(largest / (steps * rows[:, 0])) - 0.5
    unit = 'lattice steps between y and C^-1 z'
  else:
    off = np.sqrt(np.mean((strategy.matrix() @ y - z) ** 2, 1))
    distance = np.max(off - steps / 2)
    unit = 'standard deviations of z between C y and z'
  return Attack('inverse', max(0.0, float(distance)), unit, 0.0, _OFF, 0.0)


def attack(guarantee: accounting.Guarantee) -> tuple[Attack, ...]:
  """Returns the measurements of all attacks on the arithmetic of a claim.

  `summing` adds 1,000 records on the lattice of the claim, and `inverse`
  examines noise of the claim's C. `tail` examines the generator of normals. For
  every claim, `low_bits` examines single rounds at epsilon 2 and delta 1e-6.

  Args:
    guarantee: the claim; its noise multiplier is > 0.

  Raises:
    ValueError: no lattice has room for the sum of 1,000 clients.
  """
  lattice = noise.Lattice.from_noise(
    guarantee.strategy.recursion(),
    guarantee.z_stddev_per_clip,
    largest_cohort=_CLIENTS,
    dimension=_COMPARED,
  )
  return (
    summing(functools.partial(summed, lattice), _CLIENTS),
    tail(functools.partial(beyond, noise.Key.from_entropy())),
    _low_bits_of_rounds(),
    _inverse_of_claim(guarantee.strategy, lattice.z_steps),
  )


def summed(lattice: noise.Lattice, values: np.ndarray) -> float:
  """Returns the sum of records of one coordinate after clipping, in clips.

  Args:
    lattice: lattice of the sum.
    values: [clients] float32, the records in clips.
  """
  clipping = query.Clipping.from_clip(
    1.0, np.zeros(1, np.float32), lattice.clip_bits
  )
  total = np.zeros(1, np.int32)
  for value in values:
    total += clipping.clip(value[np.newaxis])
  return float(total[0]) / lattice.clip_steps


def _low_bits_of_rounds() -> Attack:
  """Returns the measurement of `low_bits`."""
  mean = query.NoisyMean(
    accounting.Guarantee(
      strategies.Identity(2 * _LOW_BITS_TRIALS),
      participation.Single(),
      accounting.gaussian_noise_multiplier(EPSILON, DELTA),
    ),
    np.zeros(LOW_BITS_DIMENSION, np.float32),
    (1.0, None, math.inf),
    1.0,
    largest_cohort=1,
    placement=placements.Tape(),
  )
  rounds = itertools.count()
  with contextlib.closing(mean):
    return low_bits(lambda record: mean.release(next(rounds), [record]).mean)


def _inverse_of_claim(strategy: strategies.Strategy, z_steps: float) -> Attack:
  """Returns the measurement of `inverse` on new noise.

  Args:
    strategy: C.
    z_steps: standard deviation of z, in lattice steps.
  """
  recursion = strategy.recursion()
  key = noise.Key.from_entropy()
  stream = noise.Stream(recursion, z_steps, _COMPARED, key)
  y = np.stack([row.copy() for row in stream.rows() if row is not None])
  z = generator_lib.Generator(key).rows(0, strategy.rounds, 0, _COMPARED)
  scales = recursion.scales[recursion.phase(np.arange(strategy.rounds))]
  return inverse(strategy, y / z_steps, z, 1 / (z_steps * scales))
