"""Recursions that compute the noise y = C^-1 z round by round.

  y_t = RN(v_t),   v_t = z_steps sum_j f_tj z_{t-j} + m_t

in units of lattice steps, where RN rounds to the nearest integer, exactly:

| symbol  | meaning                                                      |
|---------|--------------------------------------------------------------|
| y_t     | integer noise, added to the integer sum of round t           |
| z_t     | row t of unit normals                                        |
| z_steps | standard deviation of z, in lattice steps                    |
| m_t     | weighted sum of past y                                       |
| S_t     | memory: `memory` rows from which v_t is computed             |

| C                  | S                                | z in v_t     | m_t  |
|--------------------|----------------------------------|--------------|------|
| of few bands, dense| `PAST_Y`: the last y             | z_t          | of y |
| C^-1 of few bands  | `PAST_Z`: the last z             | the last z   | 0    |
| BLT                | `BUFFERS`: decayed sums of y     | z_t          | of S |
| online tree        | `BUFFERS`: the noise of nodes    | z_t          | of S |

The weights are float64 numbers, and C is defined by exactly these numbers.
`Recursion.ideal` returns v_t in exact fractions. A producer computes v_t in
float64 and bounds its error. If the rounding of v_t is uncertain within this
bound, the module `noise.exact` decides it from `Recursion.ideal`.

PRIVACY: Releases are a function of the Gaussian mechanism of C only if m_t
depends on past y alone, and if the noise has the C whose sensitivity is
computed. Otherwise the claimed epsilon could be too small. Every recursion here
computes m_t from y alone, and tests compare its noise with C^-1 z.
Guards: recursion_test.test_memory_follows_from_y_alone and
test_noise_without_rounding_is_that_of_the_matrix.
"""

from __future__ import annotations

import abc
import collections
import fractions
import functools
import hashlib
from collections.abc import Generator, Sequence
from typing import Any, NamedTuple, Union

import numpy as np

from tff_bandmf.strategies import per_query

PAST_Y = 'y'
PAST_Z = 'z'
BUFFERS = 'buffers'

# Largest relative error of one float64 operation.
UNIT = 2.0**-53
# Number of consecutive rounds that a producer computes together if it keeps few
# or no rows of past noise.
SHORT_BLOCK_ROUNDS = 4
# Rows of weights in memory at one time.
_ROWS = 4096

Fraction = fractions.Fraction

# A round t: an integer, or an int64 array.
Index = Any


class Ideal(NamedTuple):
  """The real number v_t that is rounded to y_t.

    |v_t - sum_j factors[j] z_{t-j} - mean| <= radius

  Attributes:
    factors: factors of z_t, z_{t-1}, ..., each multiplied by z_steps.
    mean: m_t.
    radius: bound of the error of `mean`, >= 0; 0 if `mean` is exact.
  """

  factors: Sequence[Fraction]
  mean: Fraction
  radius: Fraction = Fraction(0)


class Recursion(abc.ABC):
  """The recursion of one strategy; `Strategy.recursion` returns it.

  Attributes:
    rounds: n.
    keeps: content of S: `PAST_Y`, `PAST_Z` or `BUFFERS`.
    memory: number of rows of S, which are zero at the start. In a `Window` the
      latest row is first.
    phases: number of phases; all rounds of one phase have the same weights.
    strategy_digest: result of `Strategy.digest` for C.
  """

  rounds: int
  keeps: str
  memory: int
  phases: int
  strategy_digest: str = ''
  _numbers: dict[str, np.ndarray]

  @property
  def digest(self) -> str:
    """SHA-256 of all numbers that define C exactly, 64 hexadecimal digits."""
    sha = hashlib.sha256(self.strategy_digest.encode())
    for name, array in sorted(self.numbers().items()):
      sha.update(f'{name} {array.shape}'.encode())
      sha.update(np.asarray(array, '<f8').tobytes())
    return sha.hexdigest()

  @abc.abstractmethod
  def phase(self, t: Index) -> Index:
    """Returns the phase of round t, in [0, phases)."""

  @property
  @abc.abstractmethod
  def scales(self) -> np.ndarray:
    """scale_t = 1 / C[t, t] of each phase, [phases] float64."""

  def numbers(self) -> dict[str, np.ndarray]:
    """Returns the float64 numbers that a family computed and that define C.

    Other machines and libraries may compute other last digits of these numbers.
    Numbers of `Strategy.arrays` are left out.
    """
    return self._numbers

  def use(self, numbers: dict[str, np.ndarray]) -> None:
    """Replaces the numbers that `numbers` returns, before the first round."""
    self._numbers = numbers

  @abc.abstractmethod
  def reach(self, t: int) -> int:
    """Returns the number of past y that m_t depends on, at most t."""

  @abc.abstractmethod
  def ideal(
    self, z_steps: float, t: int, past: Sequence[int], bits: int = 128
  ) -> Ideal:
    """Returns v_t in exact fractions, or within a stated radius.

    Args:
      z_steps: standard deviation of z in lattice steps, > 0.
      t: round, in [0, n).
      past: y_{t-1}, y_{t-2}, ..., at least `reach(t)` of them.
      bits: number of bits of fractions that would otherwise grow with t.
    """

  @abc.abstractmethod
  def ideals(
    self, z_steps: float, bits: int = 128, first: int = 0
  ) -> Generator[Ideal, int, None]:
    """Yields the result of `ideal` for all rounds from `first` on.

    The caller sends y_t of each round.

    Args:
      z_steps: standard deviation of z in lattice steps, > 0.
      bits: see `ideal`.
      first: round, >= 0, whose `reach` is 0.
    """

  @abc.abstractmethod
  def _variances(self) -> np.ndarray:
    """Returns the variance of y_t for unit z and no rounding, [n]."""

  @functools.cached_property
  def row_norms(self) -> np.ndarray:
    """|row t of C^-1|_2: standard deviation of y_t for unit z, [n] float64."""
    return np.sqrt(self._variances())

  @property
  def max_scale(self) -> float:
    """max_t scale_t; 1 / min_t C[t, t]."""
    return float(np.max(self.scales))

  @functools.cached_property
  def rho(self) -> float:
    """max_t |row t of C^-1|_2 / scale_t, at least 1."""
    scales = self.scales[self.phase(np.arange(self.rounds))]
    return float(np.max(self.row_norms / scales))


class Window(Recursion):
  """Weighted sums of the rows of a window, the last `memory` rounds.

    C of few bands:
      v_t = (z_steps z_t - sum_{s>=1} C[t, t-s] y_{t-s}) / C[t, t]
    C^-1 of few bands:
      v_t = z_steps sum_{s>=0} C^-1[t, t-s] z_{t-s}

  The weights may differ from round to round.
  """

  def __init__(self, strategy: Any, period: int):
    """Makes a window.

    Args:
      strategy: C, a `Strategy`.
      period: number of rounds after which the weights repeat, >= 1.
    """
    few = strategy.inverse_bands
    self.rounds = strategy.rounds
    self.keeps = PAST_Y if few is None else PAST_Z
    self.memory = (strategy.bands if few is None else few) - 1
    self.phases = min(period, self.rounds)
    self._strategy, self._numbers = strategy, {}

  def phase(self, t: Index) -> Index:
    return t % self.phases

  def numbers(self):
    if self._numbers or self._strategy.rows_are_given:
      return self._numbers
    return {'rows': self.rows(0, self.phases)}

  def rows(self, start: int, stop: int) -> np.ndarray:
    """Returns rows of C or of C^-1, [stop - start, bands] float64."""
    if 'rows' in self._numbers:
      return self._numbers['rows'][self.phase(np.arange(start, stop))]
    if self.keeps == PAST_Z:
      return self._strategy.inverse_band_rows(start, stop)
    return self._strategy.band_rows(start, stop)

  def reach(self, t: int) -> int:
    return min(self.memory, t) if self.keeps == PAST_Y else 0

  def ideal(self, z_steps, t, past, bits=128):
    # All sums here are exact, so `bits` has no effect.
    row, size = self.rows(t, t + 1)[0, : t + 1].tolist(), Fraction(z_steps)
    if self.keeps == PAST_Z:
      return Ideal([size * Fraction(weight) for weight in row], Fraction(0))
    # Denominators are powers of two. Integers are faster than fractions.
    ratios = [weight.as_integer_ratio() for weight in row[1:]]
    unit = max((each for _, each in ratios), default=1)
    total = sum(
      w * (unit // each) * int(y) for (w, each), y in zip(ratios, past)
    )
    first = Fraction(row[0])
    return Ideal([size / first], Fraction(-total, unit) / first)

  def ideals(self, z_steps, bits=128, first=0):
    past: collections.deque[int] = collections.deque(maxlen=self.memory)
    for t in range(first, self.rounds):
      past.appendleft((yield self.ideal(z_steps, t, past, bits)))

  def weights(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the weights of rounds start, ..., stop - 1 in float64.

    Returns:
      scale, [stop - start], factor of z_steps z_t; and readout, [stop - start,
      memory], factors of the rows of S, the latest row first. For `PAST_Z` they
      are factors of z_steps S.
    """
    rows = self.rows(start, stop)
    if self.keeps == PAST_Z:
      return rows[:, 0], rows[:, 1:]
    return 1.0 / rows[:, 0], -rows[:, 1:] / rows[:, :1]

  @functools.cached_property
  def scales(self) -> np.ndarray:
    return np.concatenate([scale for scale, _ in self._pieces()])

  def _pieces(self):
    for start in range(0, self.phases, _ROWS):
      yield self.weights(start, min(start + _ROWS, self.phases))

  def block(
    self, first: int, rounds: int
  ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns (scale, far, near) of V = z_steps scale * Z + far S + near U.

    Row r of V is the noise of round first + r before rounding. U has the y or z
    of the block's rounds, and S has the rows of the window before the block.
    For `PAST_Z`, V = z_steps (scale * Z + far S + near U).

    Returns:
      [m], [m, memory] and [m, m] float64 for m = `rounds`; `near` is strictly
      lower-triangular.
    """
    scale, readout = self.weights(first, first + rounds)
    entries = per_query.skewed(np.pad(readout, ((0, 0), (1, 0))))
    before, near = np.split(entries, [self.memory], 1)
    return scale, before[:, ::-1], near

  def _variances(self) -> np.ndarray:
    if self.keeps == PAST_Z:
      variances = np.concatenate(
        [scale**2 + np.sum(readout**2, 1) for scale, readout in self._pieces()]
      )
    else:
      # All periods have the same weights, and their noise is independent.
      variances = per_query.of_noise(
        self.phases,
        min(self.memory + 1, self.phases),
        lambda start, stop: self.rows(start, stop)[:, : self.phases],
      )
    return variances[self.phase(np.arange(self.rounds))]


class Step(NamedTuple):
  """Weights of one round of `Buffers`, float64.

    m_t = readout . S_t,   S_{t+1} = update S_t + gain y_t

  Attributes:
    scale: factor of z_steps z_t.
    readout: [memory].
    update: [memory, memory].
    gain: [memory].
  """

  scale: float
  readout: np.ndarray
  update: np.ndarray
  gain: np.ndarray


class Buffers(Recursion):
  """Memory of a few sums of past y, which decay or are reset.

  Attributes:
    is_exact: whether S holds integers, which float64 adds without error.
  """

  keeps = BUFFERS
  is_exact: bool = False

  @abc.abstractmethod
  def step(self, phase: int) -> Step:
    """Returns the weights of a phase."""

  @abc.abstractmethod
  def exact_weights(self, t: int) -> tuple[Fraction, Sequence[Fraction]]:
    """Returns the factor of z_steps z_t, and the factors of S_t in m_t."""

  @abc.abstractmethod
  def exact_update(
    self, buffers: Sequence[int], t: int, y: int, bits: int
  ) -> list[int]:
    """Returns S_{t+1} in multiples of 2^-bits.

    The error of a buffer grows by at most two multiples.

    Args:
      buffers: S_t in multiples of 2^-bits.
      t: round.
      y: y_t.
      bits: number of bits of the fractions.
    """

  def ideal_of(
    self,
    z_steps: float,
    t: int,
    buffers: Sequence[Union[float, Fraction]],
    errors: Sequence[Union[float, Fraction]],
  ) -> Ideal:
    """Returns v_t, given S_t and bounds of its errors.

    Args:
      z_steps: standard deviation of z in lattice steps, > 0.
      t: round, in [0, n).
      buffers: S_t.
      errors: bounds of the absolute values of the errors of S_t.
    """
    scale, weights = self.exact_weights(t)
    mean = radius = Fraction(0)
    if self.reach(t):  # Else S_t is zero.
      mean = sum((w * Fraction(s) for w, s in zip(weights, buffers)), mean)
      # PRIVACY: Buffers in float64 have errors. If such buffers decided a
      # rounding that their errors could change, y would not be the rounding of
      # the ideal mechanism's v, and epsilon would not hold. The radius includes
      # these errors.
      # Guard: exact_noise_test.test_buffers_with_errors_decide_nothing_wrong.
      bounds = (abs(w) * Fraction(e) for w, e in zip(weights, errors))
      radius = sum(bounds, radius)
    return Ideal([Fraction(z_steps) * scale], mean, radius)

  def ideal(self, z_steps, t, past, bits=128):
    ideals = self.ideals(z_steps, bits, t - self.reach(t))
    ideal = next(ideals)
    for s in reversed(range(self.reach(t))):
      ideal = ideals.send(int(past[s]))
    return ideal

  def ideals(self, z_steps, bits=128, first=0):
    for t in range(first, self.rounds):
      reach = self.reach(t)
      if not reach:
        buffers = [0] * self.memory
      error = Fraction(0 if self.is_exact else 2 * reach, 2**bits)
      exact = [Fraction(buffer, 2**bits) for buffer in buffers]
      y = yield self.ideal_of(z_steps, t, exact, [error] * self.memory)
      buffers = self.exact_update(buffers, t, y, bits)
