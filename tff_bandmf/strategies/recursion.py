"""Recursions that compute the noise y = C^-1 z round by round.

  y_t = round(z_steps scale_t z_t + m_t),   m_t = readout_t . S_t
  S_{t+1} = a function of (S_t, y_t)

in units of lattice steps:

| symbol  | meaning                                                      |
|---------|--------------------------------------------------------------|
| y_t     | integer noise, added to the integer sum of round t           |
| z_t     | fresh row of unit normals                                    |
| z_steps | standard deviation of z, in lattice steps                    |
| S_t     | memory: `memory` rows of past noise                          |
| u_t     | (y_t - m_t) / scale_t: z_steps z_t plus a rounding error     |

| C                  | S                                | S_{t+1}             |
|--------------------|----------------------------------|---------------------|
| of few bands, dense| `PAST_Y`: the last y             | y_t, then S_t       |
| C^-1 of few bands  | `PAST_U`: the last u             | u_t, then S_t       |
| BLT                | `BUFFERS`: a decayed sum of y    | theta * S_t + y_t   |
| online tree        | `BUFFERS`: the noise of a node   | sums of S_t and y_t |

S is a function of the rounded past y. So rounded releases are post-processing
of the Gaussian mechanism of C: given past releases and a guess of the data, the
release of round t is a rounding of z_t plus row t of C times the data.

PRIVACY: This proof assumes that S depends on past y only, and that the noise
has the C whose sensitivity is computed. Otherwise the claimed epsilon could be
too small. Every recursion here computes S from y alone, and tests compare its
noise with C^-1 z.
Guards: recursion_test.test_memory_follows_from_y_alone and
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

# Bits of the fraction of a float64, and of |y|.
_MANTISSA_BITS, _Y_BITS = 52, 31
# Bound of |z| plus a rounding error, in standard deviations of z: the words of
# `noise.generator` give |z| <= 13.11, and the error is at most 0.5. A weighted
# sum of independent z exceeds 14 of its standard deviations with probability
# below 2e-44 in one coordinate of a round. `accounting.arithmetic.cells` does
# not add this to delta: for the same coordinate it adds 7e-33, which is larger.
MOST_DEVIATIONS = 14.0
# Largest relative error of one float64 operation.
UNIT = 2.0**-53
# Most rounds in one matrix product; see `noise.producer.stream`.
_BLOCK = 64
# Rows of weights in memory at one time.
_ROWS = 4096


# A round t: an integer, or an int64 array or tensor.
Index = Any


class Step(NamedTuple):
  """Weights of one round, float64.

  A `Step` of all phases has arrays with a first dimension [phases].

  Attributes:
    scale: scalar, factor of z_steps z_t.
    readout: [memory], weights of S in m_t.
    update: [memory, memory], weights of S_t in S_{t+1}; empty for a `Window`.
    gain: [memory], weights of y_t in S_{t+1}; empty for a `Window`.
  """

  scale: Union[float, np.ndarray]
  readout: np.ndarray
  update: np.ndarray = np.empty(0)
  gain: np.ndarray = np.empty(0)


class Recursion(abc.ABC):
  """The recursion of one strategy; `Strategy.recursion` returns it.

  Attributes:
    rounds: n.
    keeps: content of S: `PAST_Y`, `PAST_U` or `BUFFERS`.
    memory: number of rows of S, which are zero at the start. In a `Window` the
      latest row is first.
    phases: number of distinct `Step` values; all rounds of a phase have the
      same `Step`.
    digest: result of `Strategy.digest` for C.
  """

  rounds: int
  keeps: str
  memory: int
  phases: int
  digest: str = ''

  @abc.abstractmethod
  def phase(self, t: Index) -> Index:
    """Returns the phase of round t, its index in `table`."""

  @abc.abstractmethod
  def table(self) -> Step:
    """Returns the weights of all phases, [phases, ...]."""

  @property
  @abc.abstractmethod
  def table_bytes(self) -> int:
    """Size of `table` in bytes, computed without building the table."""

  @property
  @abc.abstractmethod
  def scales(self) -> np.ndarray:
    """scale_t = 1 / C[t, t] of each phase, [phases] float64."""

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
    """Bound of |rounding error of m_t in float64| / (z_steps scale_t)."""

  @property
  @abc.abstractmethod
  def cut_norm(self) -> float:
    """Bound of the L2 norm of every column of C' - C.

    C is the strategy matrix. C' is the matrix of the computed noise, whose
    weights are rounded by `cut` or by float64.
    """

  @abc.abstractmethod
  def cells(self, participations: int) -> int:
    """Returns the maximum number of rounds whose release a client influences.

    Args:
      participations: k, maximum number of rounds in which a client takes part.
    """


def cut(weights: np.ndarray, most: float) -> np.ndarray:
  """Returns weights rounded to multiples of 2^-q.

    q = 52 - 31 - ceil(log2(max_t sum_s |w_ts|))

  A sum of 32-bit integers times such weights has at most 53 bits, so float64
  computes it exactly, in any order, on any device.

  Args:
    weights: w, [rounds, memory] float64.
    most: max_t sum_s |w_ts|.

  Returns:
    [rounds, memory] float64.
  """
  q = _MANTISSA_BITS - _Y_BITS - math.ceil(math.log2(max(most, 1.0)))
  return np.ldexp(np.rint(np.ldexp(weights, q)), -q)


class Window(Recursion):
  """Weighted sums over a window of rounds.

    C of few bands:      y_t = (z_t - sum_{s>=1} C[t, t-s] y_{t-s}) / C[t, t]
    C^-1 of few bands:   y_t = C^-1[t, t] z_t + sum_{s>=1} C^-1[t, t-s] u_{t-s}

  where u_t is z_t + (rounding error of y_t) / scale_t. The weights may differ
  from round to round.
  """

  def __init__(self, strategy: Any, period: int):
    """Makes a window.

    Args:
      strategy: C, a `Strategy`.
      period: number of rounds after which the weights repeat, >= 1.
    """
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
    """Returns (scale, readout) of rounds, before `cut` rounds the weights."""
    rows = self._rows(start, stop)
    if self.keeps == PAST_U:
      return rows[:, 0], rows[:, 1:]
    return 1.0 / rows[:, 0], -rows[:, 1:] / rows[:, :1]

  def weights(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the weights of rounds start, ..., stop - 1, float64.

    Returns:
      scale, [stop - start], and readout, [stop - start, memory].
    """
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

    Row r of V is the noise of round first + r before rounding. U holds the y or
    u of the block's rounds, and S the window before the block.

    Returns:
      [m], [m, memory] and [m, m] float64 for m = `rounds`; `near` is strictly
      lower-triangular.
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
      # All periods have the same weights, and their noise is independent.
      variances = per_query.of_noise(
        self.phases,
        min(self.memory + 1, self.phases),
        lambda start, stop: self._kept_rows(start, stop)[:, : self.phases],
      )
    return variances[self.phase(np.arange(self.rounds))]

  def _kept_rows(self, start: int, stop: int) -> np.ndarray:
    """Returns rows of C', defined in `cut_norm`, for `PAST_Y`."""
    # PRIVACY: The integer range of the noise and the limits of its self-test
    # follow from `row_norms`. The noise has the matrix C'. If C is nearly
    # singular, rows of C^-1 and of C'^-1 have very different norms. With the
    # norms for C, noise could overflow the range, and the self-test could
    # accept wrong noise. So the norms are computed from C'.
    # Guard: recursion_test.test_row_norms_are_those_of_cut_weights.
    scale, readout = self.weights(start, stop)
    ones = np.ones((stop - start, 1))
    return np.hstack([ones, -readout]) / scale[:, np.newaxis]

  @functools.cached_property
  def shift(self) -> float:
    # Sums of past y with weights of `cut` are exact.
    if self.keeps == PAST_Y or not self.memory:
      return 0.0
    # The error of u_t comes from a sum of `memory` terms and one division. C
    # carries the errors of past u into later rounds.
    most = max(
      float(np.max(np.abs(readout).sum(1) / scale))
      for scale, readout in self._pieces()
    )
    # `MOST_DEVIATIONS` bounds u_t, z_t plus a rounding error, in units of z.
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
    """Returns C'[t, t-s] - C[t, t-s], where C' is defined in `cut_norm`.

    Returns:
      [stop - start, memory] float64, for s = 1, ..., memory.
    """
    scale, readout = self._uncut(start, stop)
    return (cut(readout, self._most) - readout) / scale[:, np.newaxis]

  def cells(self, participations: int) -> int:
    if self.keeps == PAST_U:
      return self.rounds
    return min(self.rounds, participations * self._strategy.bands)


class Buffers(Recursion):
  """Memory of a few sums of past y, which decay or are reset.

    m_t = readout . S,   S <- update S + gain y

  Noise is computed one round at a time, since `block` is for windows only.
  """

  keeps = BUFFERS

  @abc.abstractmethod
  def step(self, phase: int) -> Step:
    """Returns the weights of a phase."""

  def table(self) -> Step:
    steps = [self.step(phase) for phase in range(self.phases)]
    return Step(*map(np.stack, zip(*steps)))

  @property
  def table_bytes(self) -> int:
    return 8 * self.phases * (1 + self.memory * (2 + self.memory))

  def cells(self, participations: int) -> int:
    del participations
    return self.rounds
