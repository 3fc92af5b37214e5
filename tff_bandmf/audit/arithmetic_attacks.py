"""Attacks on the arithmetic of a run.

A claim is about released numbers, but accountants bound a mechanism in real
numbers. Tests show that each attack here succeeds on float32 sums, normals or
coefficients, even if the accounting in real numbers is right. Each attack must
fail on sound arithmetic, such as the integer arithmetic of `noise.lattice`.
Each attack takes the arithmetic as an argument, a function or an array, so that
tests can attack float32.

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

import dataclasses
from typing import Callable, Union

import numpy as np
import scipy.special
import scipy.stats

from tff_bandmf import _files, strategies
from tff_bandmf.audit import epsilon_bounds
from tff_bandmf.noise import generator as generator_lib
from tff_bandmf.noise import key as key_lib
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
# Coordinates and trials with which `low_bits` succeeds on float32 at epsilon 2
# and delta 1e-6.
LOW_BITS_DIMENSION = 20_000
LOW_BITS_TRIALS = 200
# Largest distance, in standard deviations of z, at which `inverse` fails. An
# error of this size costs nearly no privacy.
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
    verdict = (
      'fail, the attack succeeds'
      if self.succeeded
      else 'pass, the attack finds no fault'
    )
    return (
      f'{self.name}: {verdict}: {self.statistic:.6g} {self.unit}, sound is '
      f'{self.least:.6g} to {self.most:.6g}'
    )


def summing(add: Callable[[np.ndarray], float], clients: int = 1000) -> Attack:
  """Returns how far one client moves the sum of a worst-case cohort.

  Equal records bring a running float32 sum to about one clip below a power of
  two, and the victim's record, just below one clip, brings the sum to at least
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
  plans = [
    _Cohort.with_largest_gain(2.0**i, clients)
    for i in range(clients.bit_length())
  ]
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
    size: value of each of these records, in clips.
    gain: number of clips that rounding adds to the victim's contribution.
  """

  power: float
  before: int
  size: float
  gain: float

  @classmethod
  def with_largest_gain(cls, power: float, clients: int) -> _Cohort:
    """Returns the cohort with the largest gain for a power of two."""
    # Half a unit in the last place of the power of two. Below this power, sums
    # of multiples of `half` are exact.
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
  """Returns the number of normals that exceed `TAIL` in magnitude.

  Let R be the releases if all records but those of one client are zero. Without
  the client, C R is z. If no normal exceeds a limit, entries of C R beyond it
  occur only with the client, and their probability is a delta that the
  accounting misses.

  Args:
    beyond: function (draws, threshold) -> number of normals, out of `draws`,
      with a magnitude above the threshold.
    draws: number of normals to draw, >= 1.
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


def low_bits(
  release: Callable[[np.ndarray], np.ndarray],
  epsilon: float,
  delta: float,
  trials: int = LOW_BITS_TRIALS,
  dimension: int = LOW_BITS_DIMENSION,
) -> Attack:
  """Returns a lower bound on epsilon from last bits of one round's releases.

  The victim's record is v = 1 / sqrt(d) in every coordinate, and the release is
  x = v + y. If |x| is much smaller than v, y is near -v, and so the float32 sum
  x is a multiple of u, half a unit in the last place of v. Without the victim,
  x = y has more digits. Let m be the number of coordinates of x that are below
  v / 2 in magnitude and are not multiples of u. The score is -m.

  Args:
    release: function from a sum, [d] float32 in clips, to its release, [d] in
      clips; every call adds new noise.
    epsilon: claimed epsilon of one release, >= 0.
    delta: claimed delta of one release, in (0, 1).
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
  shown = epsilon_bounds.clopper_pearson(
    inside, outside, -0.5, delta, FALSE_ALARM
  )
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
  steps: Union[np.ndarray, float],
) -> Attack:
  """Returns the distance of C y and z, where y was computed from z.

  If C^-1 has few bands R, y is R z but for one rounding, which C would spread
  over later rounds. Then the distance is that of y and R z, in lattice steps,
  minus half a step.

  Otherwise, from the root mean square of C y - z in each round, half a lattice
  step of the round is subtracted. The distance is the largest difference, or 0
  if all are negative. If y is D^-1 z for a matrix D that is not C, y has the
  guarantee of D. The sensitivities of D and C can be far apart even if D^-1 and
  C^-1 are nearly equal.

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
