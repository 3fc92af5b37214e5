"""Attacks on the arithmetic of a run: the claim is of the numbers that leave.

Accountants speak of real numbers. Each attack here succeeds on a sound account
whose sums, normals or coefficients are of float32, as tests show, and must fail
on the lattice. An attack takes a function, so that tests can give another
arithmetic.

| attack       | what an arithmetic must not do                               |
|--------------|--------------------------------------------------------------|
| `summing`    | let one client move a sum by more than its clip              |
| `tail`       | end before the normal distribution does                      |
| `low_bits`   | tell in the last bits of a release which sum is below it     |
| `inverse`    | add the noise of another C                                   |
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

# With which `tail` and `low_bits` succeed on a sound arithmetic; the other two
# never do.
FALSE_ALARM = 1e-6
# Where float32 normals end: (-2 ln 1e-7)^(1/2).
TAIL = 5.678
# About 15 of them are beyond TAIL; none are with probability 4e-7.
TAIL_DRAWS = 2**30
# One round that is told apart at (2, 1e-6) by its last bits.
LOW_BITS_DIMENSION = 20_000
LOW_BITS_TRIALS = 200
# Off by so much, in standard deviations of z, noise costs next to nothing.
_OFF = 2.0**-10
# Clips of the victim of `summing`.
_VICTIM = 1 - 2.0**-10
# Words looked at together.
_WORDS = 1 << 16


@dataclasses.dataclass(frozen=True)
class Attack:
  """The measurement of an attack.

  Attributes:
    name: name of the attack.
    statistic: measured number.
    unit: unit of the statistic, in words.
    least: least number of a sound arithmetic.
    most: largest number of a sound arithmetic.
    false_alarm: probability that a sound arithmetic gives something else.
  """

  name: str
  statistic: float
  unit: str
  least: float
  most: float
  false_alarm: float

  @property
  def succeeded(self) -> bool:
    """Whether no sound arithmetic, but for a false alarm, does this."""
    return not self.least <= self.statistic <= self.most

  def to_dict(self) -> _files.JsonObject:
    """Returns the fields and `succeeded`, JSON values."""
    return {**dataclasses.asdict(self), 'succeeded': self.succeeded}

  def __str__(self) -> str:
    verdict = 'succeeds' if self.succeeded else 'fails'
    return (
      f'{self.name} {verdict}: {self.statistic:.6g} {self.unit}, sound is '
      f'{self.least:.6g} to {self.most:.6g}'
    )


def summing(add: Callable[[np.ndarray], float], clients: int = 1000) -> Attack:
  """Returns how far one client moves the sum of a cohort that is made for it.

  Equal records bring the running sum of float32 to a clip below a power of two,
  where the victim lifts it to. The others are just over half a unit in the last
  place there: with the victim each is rounded up to a whole unit, and without
  to half of one. [Casacuberta et al., CCS 2022]

  Args:
    add: function from clipped values, [clients] float32 in clips, to the sum in
      clips; it is given the whole cohort, and the cohort with a zero for the
      victim.
    clients: how many records there are, at least 2.
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
    before: records of the same size, first.
    size: size of each of them, in clips.
    gain: clips that rounding adds to the victim's part.
  """

  power: float
  before: int
  size: float
  gain: float

  @classmethod
  def of(cls, power: float, clients: int) -> _Cohort:
    """Returns the best one of several for a power of two."""
    # Below the power sums of multiples of half a unit are exact.
    half = power * 2.0**-24
    before = np.arange(1, 65) + int(power)
    size = np.ceil((power - _VICTIM) / before / half) * half
    gain = np.minimum((clients - before - 1) * half, power - before * size)
    best = int(np.argmax(gain))
    return cls(power, int(before[best]), float(size[best]), float(gain[best]))

  def records(self, clients: int, with_victim: bool) -> np.ndarray:
    """Returns the values of all clients, [clients] float32 in clips."""
    records = np.full(
      clients, self.power * 2.0**-24 * (1 + 2.0**-10), np.float32
    )
    records[: self.before] = self.size
    records[self.before : self.before + 1] = _VICTIM if with_victim else 0.0
    return records


def tail(
  beyond: Callable[[int, float], int], draws: int = TAIL_DRAWS
) -> Attack:
  """Returns how many normals are where those of float32 end.

  A whitened release beyond is impossible without the client, so its
  probability is a delta that no account knows of.

  Args:
    beyond: (draws, threshold) -> how many of them are larger in magnitude.
    draws: how many are drawn.
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
  """Returns how many normals of a key are larger in magnitude.

  Words are cheap, and only the small ones can belong to such a normal; those
  are made into normals.

  Args:
    key: key of the normals.
    draws: how many are looked at.
    threshold: from 1.
  """
  generator = generator_lib.Generator(key)
  # Twice the magnitude of the threshold itself: every candidate is looked at.
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
  """Returns the epsilon that last bits of one round's releases show.

  The victim's record is v = 1 / sqrt(d) in every coordinate. Where a release x
  is far below v, a float32 sum v + y = x has y near -v, so x is a multiple of
  half a unit in the last place of v; y alone has more digits. The attacker
  counts the coordinates that no v + y of floats can give.

  Args:
    release: function from a sum, [d] float32 in clips, to its release, in
      clips, each time with new noise.
    epsilon: claimed, at `delta`.
    delta: delta of the claim, in (0, 1).
    trials: number of trials of either kind, >= 1.
    dimension: d.
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
  """Returns how far C y is from the z that y was made of.

  Noise of another C has another sensitivity, however near the entries of the
  inverses are.

  Args:
    strategy: C.
    y: noise of all rounds, [n, d] float64 in standard deviations of z.
    z: the normals, [n, d] float64.
    cells: width of a step of the lattice in units of z, [n]; what a release is
      rounded to in its own round. 0 for noise that is not rounded.
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
