"""Attacks on the arithmetic of a run.

A claim is about released numbers, but accountants bound a mechanism in real
numbers. Tests show that each attack here succeeds on float32 sums, normals or
coefficients, even if the accounting in real numbers is right; it must fail on
the lattice. Each attack takes a function, so that tests can attack another
arithmetic.

| attack       | failure of an arithmetic that it finds                       |
|--------------|--------------------------------------------------------------|
| `summing`    | one client moves a sum by more than its clip                 |
| `tail`       | the largest normals are smaller than they should be          |
| `low_bits`   | the last bits of a release reveal the sum without noise      |
| `inverse`    | the noise is that of another C                               |
"""

from __future__ import annotations

import dataclasses
from typing import Callable, Union

import numpy as np
import scipy.special
import scipy.stats

from tff_bandmf import _files, strategies
from tff_bandmf.audit import bounds
from tff_bandmf.noise import generator as generator_lib
from tff_bandmf.noise import key as key_lib

# Probability with which `tail` or `low_bits` succeeds on a sound arithmetic;
# the other two attacks never succeed on it.
FALSE_ALARM = 1e-6
# Largest normal of a float32 generator: (-2 ln 1e-7)^(1/2).
TAIL = 5.678
# Number of draws: about 15 normals are beyond TAIL, and none with probability
# 4e-7.
TAIL_DRAWS = 2**30
# Size of `low_bits` with which it succeeds on float32 at (2, 1e-6).
LOW_BITS_DIMENSION = 20_000
LOW_BITS_TRIALS = 200
# Error of noise in standard deviations of z that costs nearly no privacy.
_OFF = 2.0**-10
# Contribution of the attacked client in `summing`, in clips.
VICTIM = 1 - 2.0**-10
# Random words examined in one step.
_WORDS = 1 << 16


@dataclasses.dataclass(frozen=True)
class Attack:
  """The measurement of an attack.

  Attributes:
    name: name of the attack.
    statistic: measured number.
    unit: unit of the statistic, in words.
    least: least statistic of a sound arithmetic.
    most: largest statistic of a sound arithmetic.
    false_alarm: probability that a sound arithmetic exceeds these limits.
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
    verdict = 'succeeds' if self.succeeded else 'fails'
    return (
      f'{self.name} {verdict}: {self.statistic:.6g} {self.unit}, sound is '
      f'{self.least:.6g} to {self.most:.6g}'
    )


def summing(add: Callable[[np.ndarray], float], clients: int = 1000) -> Attack:
  """Returns how far one client moves the sum of a worst-case cohort.

  Equal records bring a running float32 sum to one clip below a power of two,
  and the victim's record, one clip, brings it to that power. All later records
  are slightly above half a unit in the last place. With the victim each is
  rounded up to a whole unit, without the victim to half a unit.
  [Casacuberta et al., CCS 2022]

  Args:
    add: function from clipped values, [clients] float32 in clips, to their sum
      in clips; it is called with the whole cohort, and with zero in place of
      the victim's record.
    clients: number of records, at least 2.
  """
  plans = [_Cohort.of(2.0**i, clients) for i in range(clients.bit_length())]
  best = max(plans, key=lambda plan: plan.gain)
  moved = abs(
    add(best.records(clients, True)) - add(best.records(clients, False))
  )
  return Attack('summing', moved, 'clips moved by one client', 0.0, 1.0, 0.0)


@dataclasses.dataclass(frozen=True)
class _Cohort:
  """A cohort that brings a sum to a power of two.

  Attributes:
    power: power of two, in clips.
    before: number of equal records that come first.
    size: size of each of these records, in clips.
    gain: addition of rounding to the victim's contribution, in clips.
  """

  power: float
  before: int
  size: float
  gain: float

  @classmethod
  def of(cls, power: float, clients: int) -> _Cohort:
    """Returns the cohort with the largest gain for a power of two."""
    # Below the power of two, sums of multiples of half a unit are exact.
    half = power * 2.0**-24
    before = np.arange(1, 65) + int(power)
    size = np.ceil((power - VICTIM) / before / half) * half
    gain = np.minimum((clients - before - 1) * half, power - before * size)
    best = int(np.argmax(gain))
    return cls(power, int(before[best]), float(size[best]), float(gain[best]))

  def records(self, clients: int, with_victim: bool) -> np.ndarray:
    """Returns the values of all clients, [clients] float32 in clips."""
    records = np.full(
      clients, self.power * 2.0**-24 * (1 + 2.0**-10), np.float32
    )
    records[: self.before] = self.size
    records[self.before : self.before + 1] = VICTIM if with_victim else 0.0
    return records


def tail(
  beyond: Callable[[int, float], int], draws: int = TAIL_DRAWS
) -> Attack:
  """Returns the number of normals beyond the largest normal of float32.

  If normals never exceed a limit, a whitened release beyond it is impossible
  without the client. The probability of such a release with the client is then
  a delta that the accounting misses.

  Args:
    beyond: function (draws, threshold) -> number of draws of larger magnitude.
    draws: number of draws, >= 1.
  """
  rate = draws * 2 * float(scipy.special.ndtr(-TAIL))
  least = scipy.stats.poisson.ppf(FALSE_ALARM / 2, rate)
  most = scipy.stats.poisson.isf(FALSE_ALARM / 2, rate)
  return Attack(
    'tail',
    float(beyond(draws, TAIL)),
    f'of {draws} normals beyond {TAIL} standard deviations',
    float(least),
    float(most),
    FALSE_ALARM,
  )


def beyond(key: key_lib.Key, draws: int, threshold: float) -> int:
  """Returns the number of normals of a key beyond a threshold in magnitude.

  Only small random words can give such normals, so only these words are turned
  into normals.

  Args:
    key: key of the normals.
    draws: number of normals.
    threshold: least magnitude that counts, >= 1.
  """
  generator = generator_lib.Generator(key)
  # Twice the word of the threshold, so that no normal beyond it is missed.
  small = np.uint64(int(scipy.special.ndtr(-threshold) * 2.0**66))
  exceeding = 0
  for row in range(-(-draws // _WORDS)):
    count = min(_WORDS, draws - row * _WORDS)
    for i in np.flatnonzero(generator.words(row, 0, count) < small):
      start = int(i) // generator_lib.GROUP * generator_lib.GROUP
      z = generator.rows(row, 1, start, int(i) - start + 1)[0, -1]
      exceeding += abs(z) > threshold
  return exceeding


def low_bits(
  release: Callable[[np.ndarray], np.ndarray],
  epsilon: float,
  delta: float,
  trials: int = LOW_BITS_TRIALS,
  dimension: int = LOW_BITS_DIMENSION,
) -> Attack:
  """Returns a lower bound on epsilon from last bits of one round's releases.

  The victim's record is v = 1 / sqrt(d) in every coordinate. If a release
  x = v + y is much smaller than v, y is near -v, and so the float32 sum x is a
  multiple of half a unit in the last place of v. Without the victim x = y has
  more digits. The attacker counts the coordinates that no float32 sum v + y can
  give.

  Args:
    release: function from a sum, [d] float32 in clips, to its release, in
      clips, each time with new noise.
    epsilon: epsilon of the claim, >= 0.
    delta: delta of the claim, in (0, 1).
    trials: number of trials with the victim, and of trials without, >= 1.
    dimension: d, number of coordinates.
  """
  victim = np.full(dimension, dimension**-0.5, np.float32)
  unit = 0.5 * float(np.spacing(victim[0]))

  def score(sums):
    x = np.asarray(release(sums), np.float64)
    near = x[np.abs(x) < 0.5 * victim[0]]
    return float(-np.sum(near % unit != 0))

  inside, outside = (
    np.array([score(each) for _ in range(trials)])
    for each in (victim, np.zeros_like(victim))
  )
  shown = bounds.clopper_pearson(inside, outside, -0.5, delta, FALSE_ALARM)
  return Attack(
    'low_bits',
    shown,
    f'epsilon shown at delta={delta:g}',
    0.0,
    epsilon,
    FALSE_ALARM,
  )


def inverse(
  strategy: strategies.Strategy,
  y: np.ndarray,
  z: np.ndarray,
  cells: Union[np.ndarray, float],
) -> Attack:
  """Returns the distance of C y from the z from which y was computed.

  Noise of another C has another sensitivity, even if entries of both inverses
  are nearly equal.

  Args:
    strategy: C.
    y: noise of all rounds, [n, d] float64 in standard deviations of z.
    z: the normals, [n, d] float64.
    cells: width of a lattice step in each round, in units of z, [n] float64; 0
      for noise that is not rounded.
  """
  off = np.sqrt(np.mean((strategy.matrix() @ y - z) ** 2, 1))
  return Attack(
    'inverse',
    max(0.0, float(np.max(off - cells / 2))),
    'standard deviations of z between C y and z',
    0.0,
    _OFF,
    0.0,
  )
