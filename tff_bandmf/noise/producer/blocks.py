"""Blocks of rounds: they compute noise Y from normals Z and earlier rounds.

  Y = RN(V),   V = noise_scale * Z + M

| symbol | meaning                                                           |
|--------|-------------------------------------------------------------------|
| m      | number of rounds of the block                                     |
| count  | number of coordinates of the chunk that is computed               |
| C      | strategy matrix of the mechanism                                  |
| Z      | unit normals of the block's rounds, [m, count]                    |
| Y      | [m, count] noise of the block in lattice steps; y is one row      |
| M      | [m, count] means: weighted sums of the memory and of earlier rows |
|        | of the block                                                      |
| S      | memory of the recursion before the block                          |
| RN     | rounding to the nearest integer                                   |
| e      | bound of the error of a row of V in float64                       |
| u      | unit roundoff of float64, 2^-53                                   |

V consists of real numbers, see `recursion.Ideal`, and a block computes V in
float64 with an error of at most e. A coordinate is in doubt if V is within e of
a half-integer, where RN jumps; `exact.Rounding` decides the coordinates in
doubt. So Y is RN of the real V, to the bit. docs/reference/arithmetic.md
derives the bounds; they hold for every order of the sums, and with fused
multiply-adds.

A window is a `recursion.Window`: V follows from the latest rows of y or of z.
Its memory is a ring: round u is in row u modulo the number of rows.
The memory of a `BufferBlock` consists of buffers: weighted sums of past y.
Noise is in steps of `noise.lattice`.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, Callable, NamedTuple

import numpy as np

from tff_bandmf.noise import exact
from tff_bandmf.noise import generator as generator_lib
from tff_bandmf.strategies import recursion as recursion_lib

# Number of rounds of a group. A block is computed group by group: one matrix
# product adds the weighted rows of all earlier groups to the rounds of a group.
_TOGETHER = 16
# Number of columns of a window that are converted to float64 at a time, so few
# that they stay in cache.
_PIECE = 512
# PRIVACY: If |y| exceeded this bound, y could wrap around in 32 bits, the noise
# would not be C^-1 z, and epsilon would not hold. A block with such a y fails.
# Guard: stream_test.test_noise_out_of_range_is_refused.
LARGEST = 2**31 - 1
# Integers up to this bound are exact in float64, and so are their sums.
EXACT = 2.0**52
# Factor that makes a bound cover the rounding errors of its own computation.
_MORE = 1 + 2.0**-20
# Number, or scalar of a library for devices.
_Scalar = Any
_Scalars = Sequence[_Scalar]


class Workspace:
  """Float64 arrays for intermediate results, used by one chunk at a time."""

  def __init__(self):
    self._arrays: dict[str, np.ndarray] = {}

  def array(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Returns an array with arbitrary content.

    Args:
      name: name of the array. A later call with the same name may return the
        same memory.
      shape: shape of the array.
    """
    size = int(np.prod(shape))
    if name not in self._arrays or len(self._arrays[name]) < size:
      self._arrays[name] = np.empty(size)
    return self._arrays[name][:size].reshape(shape)


class Chunk(NamedTuple):
  """A range of coordinates, with the data from which a block computes them.

  Attributes:
    coordinates: the coordinates, [count].
    memory: [memory rows, count], S; updated.
    bounds: float64, updated. For a window of y: [memory rows], a bound of the
      absolute values of each row of the memory. For buffers: [memory rows], a
      bound of the error of each row. Unused for a window of z.
    rounding: decides the coordinates in doubt.
    work: arrays for intermediate results.
  """

  coordinates: Sequence[int]
  memory: np.ndarray
  bounds: np.ndarray
  rounding: exact.Rounding
  work: Workspace

  def round(
    self,
    v: np.ndarray,
    y: np.ndarray,
    error: float,
    decide: Callable[[int, int], int],
    most: float = 0.0,
  ) -> float:
    """Rounds one row of V to y, exactly, and returns a bound of |y|.

    Args:
      v: [count] float64, a row of V; overwritten.
      y: [count] float64, overwritten.
      error: e without the part that depends on y; see `error_of_y`.
      decide: function from a column of the chunk and its coordinate to y.
      most: bound of |v| where v is not NaN; 0 means that no bound is known.

    Raises:
      OverflowError: a value of y may not fit in 32 bits.
    """
    np.rint(v, out=y)
    np.subtract(v, y, out=v)
    # An exact decision changes y by at most 1. If `most` does not fit in 32
    # bits, y may still fit, so the bound comes from y.
    largest = 1 + (most if 0 < most < LARGEST else _largest(y))
    # PRIVACY: If y were not the rounding of the ideal mechanism's v, releases
    # would not be a function of that mechanism, and epsilon would not hold.
    # Coordinates whose rounding the error of v could change are decided
    # exactly, before later rounds are computed from y. NaN is in doubt.
    # Guard: exact_noise_test.test_noise_is_the_rounding_of_the_ideal.
    limit = 0.5 - error - error_of_y(largest)
    if not max(v.max(initial=0.0), -v.min(initial=0.0)) < limit:
      for column in np.flatnonzero(~(np.abs(v) < limit)):
        y[column] = decide(int(column), self.coordinates[column])
      largest = max(largest, _largest(y))
    # A larger y would wrap around; see `LARGEST`.
    if not largest <= LARGEST:
      raise OverflowError('noise: a value left the range of 32 bits')
    return largest


def _largest(row: np.ndarray) -> float:
  """Returns the maximum of |row|; NaN counts as 0."""
  # `np.fmax` and `np.fmin` ignore NaN, and `np.max` does not.
  return float(
    max(np.fmax.reduce(row, initial=0.0), -np.fmin.reduce(row, initial=0.0))
  )


@dataclasses.dataclass(frozen=True)
class Block(abc.ABC):
  """Consecutive rounds whose noise is computed together.

  Attributes:
    first: first round of the block, >= 0.
    noise_scale: [earlier + m] float64. The caller of `advance` multiplies the
      rows of Z by these numbers, which are the standard deviations of the
      products in lattice steps. In a `PastZBlock`, which scales Z itself, the
      numbers are 1.
    row: row of a window's ring that the block writes first; 0 for buffers.
    earlier: number of rounds before `first` whose normals `advance` takes too.
  """

  first: int
  noise_scale: np.ndarray
  row: int
  earlier: int

  @property
  def rounds(self) -> int:
    """m, number of rounds of the block."""
    return len(self.noise_scale) - self.earlier

  @abc.abstractmethod
  def advance(self, z: np.ndarray, output: np.ndarray, chunk: Chunk) -> None:
    """Computes Y of the block and updates the memory.

    If the memory is a ring of past y, the caller must pass the m rows of the
    ring from `row` on as `output`: the method writes the ring in no other way.

    Args:
      z: [earlier + m, count] float64, noise_scale * Z; overwritten.
      output: [m, count] int32; overwritten with Y.
      chunk: the coordinates, and their memory.

    Raises:
      OverflowError: a value of y does not fit in 32 bits.
    """


def for_rounds(
  recursion: recursion_lib.Recursion,
  z_steps: float,
  rounds: range,
  ring_rows: int,
) -> Block:
  """Returns the block of consecutive rounds.

  Args:
    recursion: recursion of the strategy matrix C.
    z_steps: standard deviation of z in lattice steps, > 0.
    rounds: the rounds of the block.
    ring_rows: number of rows of a window's ring. If it is 0, past z is drawn
      again. If not, it is >= `recursion.memory`, and a multiple of the number
      of rounds of a full block. Round u is in row u % ring_rows.
  """
  first, m = rounds.start, len(rounds)
  if isinstance(recursion, recursion_lib.Buffers):
    steps = [recursion.step(int(recursion.phase(t))) for t in rounds]
    noise_scale = z_steps * np.array([step.scale for step in steps])
    return BufferBlock(first, noise_scale, 0, 0, steps, recursion.is_exact)
  assert isinstance(recursion, recursion_lib.Window)
  terms = recursion.memory
  scale, before, near = recursion.block(first, m)
  far, row = np.zeros((m, ring_rows)), first % max(ring_rows, 1)
  if ring_rows:
    far[:, (first - 1 - np.arange(terms)) % ring_rows] = before
  if recursion.keeps == recursion_lib.PAST_Y:
    return PastYBlock(first, z_steps * scale, row, 0, far, near, terms)
  # PRIVACY: Noise of a smaller standard deviation would make epsilon larger
  # than claimed. The diagonal entry of C^-1 scales the normals of the round
  # itself.
  # Guard: stream_test.test_noise_is_that_of_the_recursion.
  near = near + np.diag(scale)
  sizes = z_steps * (np.abs(before).sum(1) + np.abs(near).sum(1))
  sums = (terms + 5) * recursion_lib.UNIT * generator_lib.MOST_DEVIATIONS
  errors = _MORE * sizes * (generator_lib.ERROR + sums)
  most = sizes * (generator_lib.MOST_DEVIATIONS + 1)
  earlier = 0 if ring_rows else min(terms, first)
  near = np.hstack([before[:, :earlier][:, ::-1], near])
  scale, far, near = np.ones(earlier + m), z_steps * far, z_steps * near
  return PastZBlock(first, scale, row, earlier, far, near, errors, most)


def past_y_error(noise_scale: _Scalar, size: _Scalar, terms: int) -> _Scalar:
  """Returns e of a round of a `PastYBlock`, without the part `error_of_y`.

    e = ERROR noise_scale + u (b + 6) size

  Args:
    noise_scale: standard deviation of the fresh noise in lattice steps.
    size: bound of sum_s |w_ts| |y_s|, w_ts being the weight of round s.
    terms: b, number of rounds of the window.
  """
  sums = recursion_lib.UNIT * (terms + 6) * size
  return _MORE * (generator_lib.ERROR * noise_scale + sums)


def error_of_y(largest: _Scalar) -> _Scalar:
  """Returns the part of e that a y of |y| <= largest adds."""
  return recursion_lib.UNIT * _MORE * (6 * largest + 6)


@dataclasses.dataclass(frozen=True)
class PastYBlock(Block):
  """A block of a `recursion.Window` that keeps y.

    V = noise_scale * Z + far S + near Y

  S holds the rows of the ring. The block overwrites m of them with Y.

  Attributes:
    far: [m, rows of the ring] float64, weights of the rounds before the block.
      Column j is for row j of the ring.
    near: [m, m] float64, weights of the block's own rounds, strictly
      lower-triangular.
    terms: b, number of rounds of the window.
  """

  far: np.ndarray
  near: np.ndarray
  terms: int

  def advance(self, z: np.ndarray, output: np.ndarray, chunk: Chunk) -> None:
    mean = self._mean_of_past(chunk) if self.terms else z
    # PRIVACY: If y were written over z, later rounds would use a wrong z. y has
    # its own memory.
    # Guard: stream_test.test_noise_is_that_of_the_recursion.
    y = chunk.work.array('y', z.shape)
    # Bounds of sum_s |w_ts| |y_s|, over the ring and over the block.
    sizes = np.abs(self.far) @ chunk.bounds
    weights, largest = np.abs(self.near), np.zeros(self.rounds)
    # Without memory, v is a normal times a constant.
    deviations = 0.0 if self.terms else generator_lib.MOST_DEVIATIONS
    most = deviations * self.noise_scale
    for start in range(0, self.rounds, _TOGETHER):
      stop = min(start + _TOGETHER, self.rounds)
      if start and self.terms:
        mean[start:stop] += self.near[start:stop, :start] @ y[:start]
      for r in range(start, stop):
        if self.terms:
          if r > start:
            mean[r] += self.near[r, start:r] @ y[start:r]
          z[r] += mean[r]
          sizes[r] += weights[r, :r] @ largest[:r]
        error = past_y_error(self.noise_scale[r], sizes[r], self.terms)
        decide = functools.partial(self._decide, r, y, chunk)
        # PRIVACY: Released sums contain the rounded y. If later rounds were
        # computed from y before rounding, the noise would not be C^-1 z, and
        # epsilon would not hold. They are computed from the rounded y.
        # Guard: stream_test.test_noise_is_that_of_the_recursion.
        largest[r] = chunk.round(z[r], y[r], error, decide, most[r])
      output[start:stop] = y[start:stop]
    if len(chunk.bounds):
      chunk.bounds[self.row : self.row + self.rounds] = largest

  # PRIVACY: If a coordinate in doubt were rounded with the past of another
  # coordinate, y would not be the ideal y. It is rounded with its own past.
  # Guard: exact_noise_test.test_coarse_fast_path_gives_the_same_bits.
  def _decide(
    self, r: int, y: np.ndarray, chunk: Chunk, column: int, coordinate: int
  ) -> int:
    """Returns y of round r of the block for a column in doubt.

    Args:
      r: number of rounds of the block that are done.
      y: [m, count] y of the block's rounds.
      chunk: the coordinates, with y of earlier rounds.
      column: column in doubt.
      coordinate: coordinate of the column.
    """
    past = y[:r, column][::-1].tolist()
    earlier = min(self.terms, self.first + r) - r
    if earlier > 0:
      rows = (self.row - np.arange(1, earlier + 1)) % len(chunk.memory)
      past += chunk.memory[rows, column].tolist()
    past = list(map(int, past))
    return chunk.rounding.decide(self.first + r, coordinate, past)

  def _mean_of_past(self, chunk: Chunk) -> np.ndarray:
    """Returns far S, [m, count] float64."""
    ring, work = chunk.memory, chunk.work
    mean = work.array('mean', (self.rounds, ring.shape[1]))
    for start in range(0, ring.shape[1], _PIECE):
      piece = ring[:, start : start + _PIECE]
      past = work.array('past', piece.shape)
      np.copyto(past, piece)
      np.matmul(self.far, past, out=mean[:, start : start + _PIECE])
    return mean


@dataclasses.dataclass(frozen=True)
class PastZBlock(Block):
  """A block of a `recursion.Window` that keeps z, or makes z again.

    V = far S + near Z

  If the memory keeps z, S holds the rows of the ring, and the block overwrites
  m of them with Z. Else there is no ring, and Z begins with the rounds before
  the block.

  Attributes:
    far: [m, rows of the ring] float64, weights of the rounds before the block.
    near: [m, earlier + m] float64, weights of the rows of Z.
    errors: [m] float64, e of each round.
    most: [m] float64, bound of |v| of each round.
  """

  far: np.ndarray
  near: np.ndarray
  errors: np.ndarray
  most: np.ndarray

  def advance(self, z: np.ndarray, output: np.ndarray, chunk: Chunk) -> None:
    v = chunk.work.array('v', (self.rounds, z.shape[1]))
    np.matmul(self.near, z, out=v)
    if len(chunk.memory):
      v += self.far @ chunk.memory
      chunk.memory[self.row : self.row + self.rounds] = z
    y = chunk.work.array('y', v.shape)
    for r, (error, most) in enumerate(zip(self.errors, self.most)):

      def decide(_, coordinate, t=self.first + r):
        return chunk.rounding.decide(t, coordinate, ())

      chunk.round(v[r], y[r], error, decide, most)
    output[:] = y


@dataclasses.dataclass(frozen=True)
class BufferBlock(Block):
  """A block of the recursion `recursion.Buffers`, computed round by round.

  Attributes:
    steps: [m] the weights of each round.
    is_exact: whether the buffers hold integers.
  """

  steps: Sequence[recursion_lib.Step]
  is_exact: bool

  @functools.cached_property
  def _split_steps(self) -> list[_Step]:
    return list(map(_Step, self.steps))

  def advance(self, z: np.ndarray, output: np.ndarray, chunk: Chunk) -> None:
    memory, errors = chunk.memory, chunk.bounds.tolist()
    y = chunk.work.array('y', z.shape)
    # Bounds of the rows of the memory: computed once, and then updated.
    sizes = [_largest(row) for row in memory]
    for r, step in enumerate(self._split_steps):
      if len(step.readout):
        z[r] += step.readout @ memory[: len(step.readout)]

      def decide(column, coordinate, t=self.first + r, errors=errors):
        buffers = memory[:, column].tolist()
        return chunk.rounding.decide_of(t, coordinate, buffers, errors)

      error = buffer_error(self.noise_scale[r], step.weights, sizes, errors)
      largest = chunk.round(z[r], y[r], error, decide)
      mixed = step.mix @ memory
      memory[step.decayed] *= step.decay
      for buffer in step.fed:
        memory[buffer] += step.gain[buffer] * y[r]
      memory[step.mixed] += mixed
      sizes, errors = buffer_bounds(
        step.weights, sizes, errors, largest, self.is_exact
      )
      if self.is_exact and not max(sizes, default=0.0) < EXACT:
        raise OverflowError('noise: a value left the range of 52 bits')
    chunk.bounds[:] = errors
    output[:] = y


class Weights(NamedTuple):
  """Absolute values of the weights of a round of buffers.

  Attributes:
    readout: weights of the buffers in the mean.
    update: for each new buffer, pairs (j, weight of the old buffer j).
    gain: weights of y in the buffers.
  """

  readout: _Scalars
  update: Sequence[Sequence[tuple[int, _Scalar]]]
  gain: _Scalars


def buffer_error(
  noise_scale: _Scalar, weights: Weights, sizes: _Scalars, errors: _Scalars
) -> _Scalar:
  """Returns e of a round with d buffers, without the part `error_of_y`.

    e = ERROR noise_scale + sum_i w_i (E_i + u (d + 6) |S_i|)

  Args:
    noise_scale: standard deviation of the fresh noise in lattice steps.
    weights: weights of the round; w is `readout`.
    sizes: bounds of |S_i|.
    errors: bounds E_i of the errors of S_i.
  """
  unit = recursion_lib.UNIT * (len(sizes) + 6)
  sums = sum(
    weight * (error + unit * size)
    for weight, size, error in zip(weights.readout, sizes, errors)
  )
  return _MORE * (generator_lib.ERROR * noise_scale + sums)


def buffer_bounds(
  weights: Weights,
  sizes: _Scalars,
  errors: _Scalars,
  largest: _Scalar,
  is_exact: bool,
) -> tuple[list[_Scalar], _Scalars]:
  """Returns bounds of the buffers and of their errors after a round.

    |S_i|' = sum_j u_ij |S_j| + g_i |y|
    E_i'   = sum_j u_ij E_j + u (2 sum_j u_ij |S_j| + 2 g_i |y| + |S_i|')

  Args:
    weights: weights of the round; u_ij is `update`, and g is `gain`.
    sizes: bounds of |S_i| before the round.
    errors: bounds E_i of the errors of S_i before the round.
    largest: bound of |y|.
    is_exact: whether the buffers hold integers, without errors.
  """
  passed = [
    sum(weight * sizes[j] for j, weight in row) + 0.0 for row in weights.update
  ]
  after = [
    _MORE * (size + gain * largest) for size, gain in zip(passed, weights.gain)
  ]
  if is_exact:
    return after, errors
  unit = recursion_lib.UNIT
  return after, [
    _MORE * unit * (2 * size + 2 * gain * largest + new)
    + (1 + 8 * unit) * sum(weight * errors[j] for j, weight in row)
    for row, size, gain, new in zip(weights.update, passed, weights.gain, after)
  ]


class _Step:
  """A `recursion.Step` with its update matrix as a diagonal plus a remainder.

  Attributes:
    readout: float64, weights of the first buffers in the mean; all other
      buffers have the weight 0.
    decayed: slice with all buffers whose entry on the diagonal of the update
      matrix is not 1.
    decay: [decayed, 1] float64, these entries.
    mixed: [mixed] indices of the buffers that get sums of other buffers.
    mix: [mixed, memory] float64, rows `mixed` of the update matrix with zeros
      on its diagonal.
    fed: indices of the buffers that get a part of y.
    gain: [memory] float64, weights of y in the buffers.
    weights: absolute values of all weights.
  """

  def __init__(self, step: recursion_lib.Step):
    decay = np.diag(step.update)
    others = step.update - np.diag(decay)
    self.readout = np.trim_zeros(step.readout, 'b')
    (rows,) = np.nonzero(decay != 1)
    self.decayed = slice(rows.min(initial=len(decay)), rows.max(initial=0) + 1)
    self.decay = decay[self.decayed, np.newaxis]
    self.mixed = np.flatnonzero(others.any(1))
    self.mix = others[self.mixed]
    self.fed = np.flatnonzero(step.gain)
    self.gain = step.gain
    readout, update, gain = (np.abs(each).tolist() for each in step[1:])
    pairs = [[pair for pair in enumerate(row) if pair[1]] for row in update]
    self.weights = Weights(readout, pairs, gain)
