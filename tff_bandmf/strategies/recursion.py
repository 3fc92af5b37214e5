"""How the noise y = C^-1 z follows, round by round, from what was added before.

  y_t = round(z_steps scale_t z_t + m_t),   m_t = readout_t . S_t
  S_{t+1} = a function of (S_t, y_t)

in units of lattice steps: y_t is what is added to the integer sum of round t,
z_t is one fresh row of unit normals, and S is what is remembered.

| C                  | S                                | S_{t+1}             |
|--------------------|----------------------------------|---------------------|
| of few bands, dense| `PAST_Y`: the last y             | y_t, then S_t       |
| C^-1 of few bands  | `PAST_U`: the last u             | u_t, then S_t       |
| BLT                | `BUFFERS`: a decayed sum of y    | theta * S_t + y_t   |
| online tree        | `BUFFERS`: the noise of a node   | sums of S_t and y_t |

with u_t = (y_t - m_t) / scale_t. The rounded y feeds back everywhere, so S is
known to whoever knows past y. That is what makes a run of rounded releases
post-processing of the Gaussian mechanism of C: given past releases and a guess
of the data, round t rounds z_t plus C times the data, and nothing else.

PRIVACY: the proof needs S to follow from y alone, and C to be that of the
claim. Guards: recursion_test.test_memory_follows_from_y_alone and
test_noise_without_rounding_is_that_of_the_matrix.
"""

from __future__ import annotations

import abc
import functools
import math
from typing import Any, NamedTuple, Union

import numpy as np

from tff_bandmf.strategies import per_query

PAST_Y = 'y'
PAST_U = 'u'
BUFFERS = 'buffers'

# Float64 holds integers of so many bits; y has 31 and a sign.
_MANTISSA_BITS, _Y_BITS = 52, 31
# More standard deviations than any coordinate of a run is away from its mean,
# but for a probability that `accounting.arithmetic.cells` counts.
MOST_DEVIATIONS = 14.0
UNIT = 2.0**-53
# Most rounds that are added up at once; see `noise.producer.stream`.
_BLOCK = 64
# Rows of weights looked at together.
_ROWS = 4096


# A round t: an integer, or an int64 array or tensor.
Index = Any


class Step(NamedTuple):
  """A single round, float64; or those of all phases, [phases] in front.

  Attributes:
    scale: scalar.
    readout: [memory].
    update: [memory, memory]; empty for a window.
    gain: [memory], what y is multiplied with; empty for a window.
  """

  scale: Union[float, np.ndarray]
  readout: np.ndarray
  update: np.ndarray = np.empty(0)
  gain: np.ndarray = np.empty(0)


class Recursion(abc.ABC):
  """The recursion of one strategy; `Strategy.recursion` gives it.

  Attributes:
    rounds: n.
    keeps: content of S: `PAST_Y`, `PAST_U` or `BUFFERS`.
    memory: rows of S, zero at the start. A window has the latest first.
    phases: how many different single rounds there are.
    digest: digest of C; see `Strategy.digest`.
  """

  rounds: int
  keeps: str
  memory: int
  phases: int
  digest: str = ''

  @abc.abstractmethod
  def phase(self, t: Index) -> Index:
    """Returns where `table` holds round t, an integer or int64 tensor."""

  @abc.abstractmethod
  def table(self) -> Step:
    """Returns the single rounds of all phases."""

  @property
  @abc.abstractmethod
  def table_bytes(self) -> int:
    """Size of `table`, which is not made for it."""

  @property
  @abc.abstractmethod
  def scales(self) -> np.ndarray:
    """[phases] float64; 1 / C[t, t] where C is square."""

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
    return float(
      np.max(self.row_norms / self.scales[self.phase(np.arange(self.rounds))])
    )

  @property
  @abc.abstractmethod
  def shift(self) -> float:
    """Bound of |error of m_t in float64| over z_steps scale_t."""

  @property
  @abc.abstractmethod
  def cut_norm(self) -> float:
    """Bound of the L2 norm by which C differs from the strategy's, a column.

    Its weights are cut, or what float64 adds up to a column is rounded.
    """

  @abc.abstractmethod
  def cells(self, participations: int) -> int:
    """Returns the rounds whose noise can tell neighbours apart.

    Args:
      participations: k, the most rounds that one client takes part in.
    """


def cut(weights: np.ndarray, most: float) -> np.ndarray:
  """Returns weights as multiples of 2^-q, so that sums of y are exact.

    q = 52 - 31 - ceil(log2(max_t sum_s |w_ts|))

  A sum of 32-bit integers times such weights has at most 53 bits, however it
  is ordered, in blocks or not, on any device.

  Args:
    weights: [., memory] float64.
    most: max_t sum_s |w_ts|.
  """
  q = _MANTISSA_BITS - _Y_BITS - math.ceil(math.log2(max(most, 1.0)))
  return np.ldexp(np.rint(np.ldexp(weights, q)), -q)


class Window(Recursion):
  """Weighted sums over a window of rounds.

    C of few bands:      y_t = (z_t - sum_{s>=1} C[t, t-s] y_{t-s}) / C[t, t]
    C^-1 of few bands:   y_t = C^-1[t, t] z_t + sum_{s>=1} C^-1[t, t-s] u_{t-s}

  where u is z with the roundings of y in it. Rows may differ in every round.
  """

  def __init__(self, strategy: Any, period: int):
    """Takes C, a `Strategy`, and the rounds after which its rows repeat."""
    few = strategy.inverse_bands
    self.rounds = strategy.rounds
    self.keeps = PAST_Y if few is None else PAST_U
    self.memory = (strategy.bands if few is None else few) - 1
    self.phases = min(period, self.rounds)
    self._strategy = strategy

  def phase(self, t: Index) -> Index:
    return t % self.phases

  def _rows(self, start: int, stop: int) -> np.ndarray:
    """Returns rows of C or of C^-1, [stop - start, bands]."""
    if self.keeps == PAST_U:
      return self._strategy.inverse_band_rows(start, stop)
    return self._strategy.band_rows(start, stop)

  def _uncut(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns (scale, readout) of some rounds."""
    rows = self._rows(start, stop)
    if self.keeps == PAST_U:
      return rows[:, 0], rows[:, 1:]
    return 1.0 / rows[:, 0], -rows[:, 1:] / rows[:, :1]

  def weights(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns (scale [.], readout [., memory]) of some rounds, float64."""
    scale, readout = self._uncut(start, stop)
    if self.keeps == PAST_Y and self.memory:
      readout = cut(readout, self._most)
    return scale, readout

  def _pieces(self):
    for start in range(0, self.phases, _ROWS):
      yield self._uncut(start, min(start + _ROWS, self.phases))

  @functools.cached_property
  def _most(self) -> float:
    """max_t sum_s |w_ts|."""
    return max(
      float(np.max(np.abs(readout).sum(1))) for _, readout in self._pieces()
    )

  @functools.cached_property
  def scales(self) -> np.ndarray:
    return np.concatenate([scale for scale, _ in self._pieces()])

  def table(self) -> Step:
    return Step(*self.weights(0, self.phases))

  @property
  def table_bytes(self) -> int:
    return 8 * self.phases * (1 + self.memory)

  def block(
    self, first: int, rounds: int
  ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns (scale, far, near) of V = scale * Z + far S + near U.

    Row r of V is that of round first + r before it is rounded, U the y or u of
    the block itself, S the window before it.

    Returns:
      [m], [m, memory] and [m, m] strictly lower-triangular, float64.
    """
    scale, readout = self.weights(first, first + rounds)
    entries = per_query.skewed(np.pad(readout, ((0, 0), (1, 0))))
    before, near = np.split(entries, [self.memory], 1)
    return scale, before[:, ::-1], near

  def _variances(self) -> np.ndarray:
    if self.keeps == PAST_U:
      variances = np.concatenate(
        [scale**2 + np.sum(readout**2, 1) for scale, readout in self._pieces()]
      )
    else:
      # Periods are alike, and forget one another.
      variances = per_query.of_noise(
        self.phases,
        min(self.memory + 1, self.phases),
        lambda start, stop: self._kept_rows(start, stop)[:, : self.phases],
      )
    return variances[self.phase(np.arange(self.rounds))]

  def _kept_rows(self, start: int, stop: int) -> np.ndarray:
    """Returns rows of the C of cut weights, for `PAST_Y`."""
    # PRIVACY: a C that is near singular turns cuts into other noise, whose
    # range and self-test these norms are. Guard:
    # recursion_test.test_row_norms_are_those_of_cut_weights.
    scale, readout = self.weights(start, stop)
    ones = np.ones((stop - start, 1))
    return np.hstack([ones, -readout]) / scale[:, np.newaxis]

  @functools.cached_property
  def shift(self) -> float:
    # Integers of 31 bits times weights of 21: exact.
    if self.keeps == PAST_Y or not self.memory:
      return 0.0
    # u_t has the error of a sum of `memory` terms and of one division; so has
    # m_t, and C carries those of past u on.
    most = max(
      float(np.max(np.abs(readout).sum(1) / scale))
      for scale, readout in self._pieces()
    )
    # u is z and the rounding of one y, at most half a deviation of z.
    error = MOST_DEVIATIONS * UNIT * ((self.memory + _BLOCK) * most + 3)
    return error * (1 + most * self._strategy.column_sum())

  @functools.cached_property
  def cut_norm(self) -> float:
    if self.keeps == PAST_U or not self.memory:
      return 0.0
    squares = np.zeros(self.phases)
    for start in range(0, self.phases, _ROWS):
      stop = min(start + _ROWS, self.phases)
      change = self._change(start, stop)
      for s in range(1, self.memory + 1):
        column = np.arange(start, stop) - s
        squares[column[column >= 0]] += change[column >= 0, s - 1] ** 2
    return float(np.sqrt(np.max(squares)))

  def _change(self, start: int, stop: int) -> np.ndarray:
    """Returns what cutting adds to C[t, t-s], [., memory]."""
    scale, readout = self._uncut(start, stop)
    return (cut(readout, self._most) - readout) / scale[:, np.newaxis]

  def cells(self, participations: int) -> int:
    if self.keeps == PAST_U:
      return self.rounds
    return min(self.rounds, participations * self._strategy.bands)


class Buffers(Recursion):
  """Buffers that decay or are added up; single rounds only.

  m_t = readout . S,   S <- update S + gain y
  """

  keeps = BUFFERS

  @abc.abstractmethod
  def step(self, phase: int) -> Step:
    """Returns the single rounds of a phase."""

  def table(self) -> Step:
    steps = [self.step(phase) for phase in range(self.phases)]
    return Step(*map(np.stack, zip(*steps)))

  @property
  def table_bytes(self) -> int:
    return 8 * self.phases * (1 + self.memory * (2 + self.memory))

  def cells(self, participations: int) -> int:
    del participations
    return self.rounds
