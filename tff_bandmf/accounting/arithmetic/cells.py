"""Bounds of the error of the noise's arithmetic, for `slack`.

The accountants bound a mechanism in real numbers. The server instead adds, in
each round and coordinate, the integer

  y = rint(c z + m)

to an integer sum. The module `slack` turns the bounds into additions to epsilon
and delta.

| symbol  | meaning                                                          |
|---------|------------------------------------------------------------------|
| z       | normal that float64 computes from a word, 64 or 128 random bits  |
| c       | standard deviation of c z, in lattice steps                      |
| m       | sum that float64 computes from the y of earlier rounds           |
| N       | pairs (round, coordinate) that one client can influence          |
| rho     | bound of the standard deviations of m and of y, in units of c    |
| cell    | interval of z in which y has one value, given earlier releases;  |
|         | its inner edge is the edge nearer to z = 0                       |
| h       | 1 / max c, width of the narrowest cell                           |
| p       | probability of a cell                                            |
| r(z)    | bound of the relative error of p, for a cell that contains z     |
| edge    | bound of the move of a cell's edge by rounding                   |
| shift   | bound of the error of m, in units of c                           |
| spacing | probability of one word                                          |

With exact z and m the release would be post-processing of the accounted
mechanism. The computed probability of a cell differs from the exact probability
by at most the factor 1 +- r(z). Up to small terms and a factor close to 1,

  r(z) = 2 edge / h + shift |z| + spacing / p

and `Arithmetic.cell_error` has all terms. The moments of the likelihood ratios
of N pairs multiply, so that for every event E

  computed(E) <= e^alpha exact(E) + beta
  exact(E) <= e^alpha computed(E) + beta

and (epsilon, delta) of the exact run gives

  (epsilon + 2 alpha,  e^alpha delta + beta (1 + e^(epsilon + alpha)))

for the computed run. docs/reference/arithmetic.md has the proof. Every number
that this module computes is an upper bound.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Optional, Union

import numpy as np
import scipy.optimize
import scipy.special

from tff_bandmf import _checks, errors
from tff_bandmf.accounting.kinds import samplers

# Least cell width h of a lattice.
CELL_WIDTH = 2.0**-17
# Largest errors of the inverse normal CDF, in units of 2^-53: the relative
# error, and the absolute error for z in [0.9, 1.5]; see `inverse_error`.
INVERSE_UNITS, INVERSE_MOST = 8.0, 12.0
# PRIVACY: A random word k is rounded to a float, and then k + 1/2 is rounded.
# Both errors move edges of cells. If r(z) did not cover them, epsilon would be
# too low. In units of 2^-53, this number bounds the move for all k.
# Guard: arithmetic_test.test_word_as_a_float_moves_no_edge_farther.
WORD_UNITS = 1.3

# Bound of the probability that a sound generator fails the noise's self-test in
# a run.
_SELF_TEST = 1e-24
# Bound of |m| and |y|, in standard deviations of m and y.
_RANGE = 12.0
# Bound of the mean of m^2 over the d coordinates of a round, in units of
# (rho c)^2. If d is at least `many_coordinates`, the bound holds in all rounds
# of a run except with probability `_MEAN_SQUARE_FAILS`.
_MEAN_SQUARE = 2.0
_MEAN_SQUARE_FAILS = 1e-24
# The mean of m^2 exceeds `_MEAN_SQUARE` in one round with probability less than
# e^(-0.15 d).
_MEAN_SQUARE_EXPONENT = 0.15
# Number of bins of |z| below the tail.
_BINS = 4096
# Relative allowance for rounding errors of this module, with ample margin.
_ROUNDING = 1e-9


def many_coordinates(rounds: int) -> int:
  """Returns the least d at which `_MEAN_SQUARE` bounds the mean of m^2.

  `Arithmetic.accidents` counts the probability that the mean of m^2 over d
  coordinates exceeds this bound in one of the rounds.
  """
  # P[chi-square with d degrees > 2 d] < e^(-0.153 d).
  return math.ceil(
    math.log(rounds / _MEAN_SQUARE_FAILS) / _MEAN_SQUARE_EXPONENT
  )


def inverse_error(z: Union[float, np.ndarray]) -> np.ndarray:
  """Returns a bound of the error of the inverse normal CDF, in units of 2^-53.

  Args:
    z: value of the inverse normal CDF, at least 0.
  """
  # PRIVACY: SciPy's and TensorFlow's inverse normal CDFs err by up to 10.3
  # units for z in [1.04, 1.11]. If the bound were 8 z there, as for other z, it
  # would be too low, and epsilon would be too small. Around this interval the
  # bound is larger than 8 z.
  # Guard: arithmetic_test.test_inverse_of_the_cdf_errs_less.
  return np.maximum(
    INVERSE_UNITS * z, np.minimum(7.2 + 54 * (z - 0.9), INVERSE_MOST)
  )


@dataclasses.dataclass(frozen=True)
class Words:
  """Parameters of the map from random words to normals.

  The defaults are the parameters of the library's generators. A word has a sign
  and a magnitude u in (0, 1/2), and z is the inverse normal CDF of u, with the
  sign. All words are equally likely. A word with a small u is extended by more
  random bits.

  Attributes:
    spacing: probability of each word.
    extended_spacing: probability of each extended word.
    extended_below: largest u of words that are extended.
    unit: largest relative error of one rounding, > 0.
  """

  spacing: float = 2.0**-64
  extended_spacing: float = 2.0**-128
  extended_below: float = 2.0**-25
  unit: float = 2.0**-53


@dataclasses.dataclass(frozen=True, eq=False)
class Moments:
  """Bounds of the likelihood ratio of one round and coordinate.

  Attributes:
    mass: [bins] float64, probability that |z| is in each bin.
    mean_square: [bins] float64, upper bound, for each bin, of the mean of r^2
      over the coordinates of a round.
    log_weight: [bins] float64, -log(1 - r) for the largest r in each bin.
    bad: bound of the probability of a z beyond the bins; it holds for the exact
      and for the computed distribution.
  """

  mass: np.ndarray
  mean_square: np.ndarray
  log_weight: np.ndarray
  bad: float

  def growth(self, order: float) -> float:
    """Returns `growth`, where 1 + growth bounds two moments.

      sum p (p~ / p)^(1 + L)  <=  1 + growth
      sum p (p / p~)^L        <=  1 + growth

    where p and p~ are the exact and the computed probability of a value of y,
    and the sums are over the values of y whose cells are in the bins.

    Args:
      order: L, at least 1.
    """
    # PRIVACY: A claim needs both inequalities of `Arithmetic.closeness`, and
    # each moment proves one of them. If `growth` bounded only one moment, alpha
    # would be too small. Both moments are expanded in e = p~ / p - 1. In both,
    # (1 + L) `bad` bounds the terms that are linear in e, and
    # L (1 + L) `second` / 2 bounds the rest.
    # Guard: arithmetic_test.test_moments_bound_small_samplers.
    with np.errstate(over='ignore'):
      weight = np.exp((order + 2) * self.log_weight)
    second = float(np.sum(self.mass * self.mean_square * weight))
    return (1 + order) * (order / 2 * second + self.bad)


@dataclasses.dataclass(frozen=True)
class Arithmetic:
  """The arithmetic of one run.

  Attributes:
    cells: N, number of pairs (round, coordinate) that one client can influence.
    rho: bound of the standard deviations of m and of y, in units of c.
    shift: bound of the float64 error of m, in units of c.
    feedback: f >= 0. In a cell of width w, rounding of earlier y changes |m| by
      at most f w / 2, in units of c.
    rounds: number of rounds, >= 1.
    dimension: d, number of coordinates of the model.
    cell_width: h = 1 / max c, width of the narrowest cell, in (0, 1].
    words: parameters of the map from random words to normals.
  """

  cells: float
  rho: float
  shift: float
  feedback: float
  rounds: int
  dimension: int
  cell_width: float = CELL_WIDTH
  words: Words = Words()

  def __post_init__(self):
    _checks.positive('cells', self.cells, 'it counts (round, coordinate) pairs')
    _checks.positive('rho', self.rho, 'it is at least 1')
    _checks.positive('cell_width', self.cell_width, 'it is 1 / max c')
    if self.cell_width > 1:
      raise errors.value_error(
        f'cell_width={self.cell_width}: must be at most 1; make the lattice '
        'finer'
      )
    for name in ('shift', 'feedback'):
      _checks.nonnegative(
        name, getattr(self, name), 'it is a bound of an error'
      )

  @property
  def accidents(self) -> float:
    """Bound of the probability of the events that the proof excludes.

    The events are: the self-test rejects sound noise; |y| or |m| exceeds
    `_RANGE`; the mean of m^2 over the coordinates of a round exceeds
    `_MEAN_SQUARE`; a sampled cohort is too large.
    """
    # PRIVACY: Each of these events stops a run, prevents the release of a round
    # or makes the bound of r false. A delta without their probability would be
    # too small. `closeness` subtracts this sum from beta, which is part of
    # delta.
    # Guard: slack_test.test_accidents_are_part_of_delta.
    return (1 + _ROUNDING) * (
      _SELF_TEST
      + samplers.OVERSIZE
      + 4 * self.cells * float(scipy.special.ndtr(-_RANGE))
      + (_MEAN_SQUARE_FAILS if self._many_coordinates else 0.0)
    )

  @property
  def _many_coordinates(self) -> bool:
    return self.dimension >= many_coordinates(self.rounds)

  def closeness(self, beta: float) -> float:
    """Returns alpha at `beta`; infinite if no alpha is proved.

    For every event E, computed(E) <= e^alpha exact(E) + beta and
    exact(E) <= e^alpha computed(E) + beta.

    Args:
      beta: additive term of these inequalities, > 0.
    """
    left = beta - self.accidents
    if left <= 0:
      return float('inf')
    # N `bad` may use a quarter of `left`; with this T it uses about an eighth.
    # Markov's inequality uses the other three quarters.
    tail = -float(scipy.special.ndtri(left / (16 * self.cells)))
    if not tail > 0:
      return float('inf')
    moments = self.moments(tail)
    if self.cells * moments.bad > left / 4 or not np.all(
      moments.log_weight < 1
    ):
      return float('inf')
    log_markov = math.log(4 / (3 * left))

    def log_alpha(log_order):
      order = math.exp(log_order)
      return math.log((self.cells * moments.growth(order) + log_markov) / order)

    # Every order L >= 1 proves an alpha; ln L above `longest` could overflow.
    longest = math.log(max(1.0, 500 / float(np.max(moments.log_weight)) - 2))
    minimum = scipy.optimize.minimize_scalar(
      log_alpha,
      bounds=(0.0, longest),
      method='bounded',
      options={'xatol': 1e-4},
    )
    return (1 + _ROUNDING) * math.exp(float(minimum.fun))

  def moments(self, tail: float) -> Moments:
    """Returns bounds of the likelihood ratio of one round and coordinate.

    Args:
      tail: T > 0. The bins are for cells whose inner edge is at most T in
        absolute value.
    """
    edges = np.union1d(
      np.linspace(0, tail, _BINS), np.clip([self._extended_from], 0, tail)
    )
    near, far = edges[:-1], edges[1:]
    mass = 2 * (scipy.special.ndtr(-near) - scipy.special.ndtr(-far))
    # The last bin is for z beyond T in cells whose inner edge is below T. Such
    # cells end below T + 1, since no cell is wider than 1.
    mass = np.append(mass, 2 * scipy.special.ndtr(-tail))
    beyond = np.append(np.zeros(len(far)), 1.0)
    near, far = np.append(near, near[-1]), np.append(far, tail)
    worst = _RANGE * self.rho
    typical = (
      math.sqrt(_MEAN_SQUARE) * self.rho if self._many_coordinates else worst
    )
    # r increases within a bin, so its value at the far end is a bound.
    mean_square = self.cell_error(near, far, beyond, typical, worst) ** 2
    largest = self.cell_error(near, far, 1.0, worst)
    log_weight = np.full(len(far), np.inf)
    log_weight[largest < 1] = -np.log1p(-largest[largest < 1])
    # PRIVACY: In cells whose inner edge is beyond T the likelihood ratio has no
    # bound. A beta without the probability of these cells would be too small.
    # `bad` bounds this probability: rounding moves the edge at T by at most
    # `move`, and a tail of probability q has at most 1 + q / spacing words.
    # Guard: arithmetic_test.test_moments_bound_small_samplers.
    move = float(self._edge(tail, worst)) + self.shift
    bad = 2 * float(scipy.special.ndtr(move - tail) + self._spacing(tail))
    return Moments(
      (1 + _ROUNDING) * mass, mean_square, log_weight, (1 + _ROUNDING) * bad
    )

  def _edge(self, z, mean):
    """Returns `edge`, for an edge at z and |m| = `mean` in units of c."""
    # The inverse CDF errs by `inverse_error`; c, c z and c z + m err by one
    # unit each; the word as a float errs by `WORD_UNITS`. One of the two |m|
    # covers the rounding of c z + m. The other |m| covers the change of m
    # because earlier y came from words in place of exact normals.
    return self.words.unit * (inverse_error(z) + 3 * z + WORD_UNITS + 2 * mean)

  def _spacing(self, z) -> np.ndarray:
    """Returns `spacing` of the words in a cell with inner edge z."""
    words = self.words
    return np.where(
      z > self._extended_from, words.extended_spacing, words.spacing
    )

  @property
  def _extended_from(self) -> float:
    """Returns a z beyond which all words of a cell are extended."""
    # One width covers the cell that has words of both kinds, and one width
    # covers the move of its edges by rounding.
    return 2 * self.cell_width - float(
      scipy.special.ndtri(self.words.extended_below)
    )

  def cell_error(
    self,
    near: Union[float, np.ndarray],
    far: Union[float, np.ndarray],
    beyond: Union[float, np.ndarray],
    mean: float,
    largest_mean: Optional[float] = None,
  ) -> np.ndarray:
    """Returns a bound of r for every cell whose inner edge is in [near, far].

    Args:
      near: least inner edge, at least 0.
      far: largest inner edge, at least `near`; r is computed at this edge.
      beyond: distance >= 0; the bound of r holds for every z up to `far` +
        `beyond`.
      mean: |m|, in units of c, for the terms of r that are linear in |m|; it
        may be a root mean square over coordinates.
      largest_mean: largest |m|, in units of c, for the terms of r that are not
        linear in |m|; None for `mean`.
    """
    width, unit = self.cell_width, self.words.unit
    edge = self._edge(far, mean)
    # PRIVACY: A root mean square in place of |m| bounds the mean of r^2 only if
    # r is linear in |m|. `growth` is not linear in |m|, so a root mean square
    # would make r too small. `growth` takes the largest |m|.
    # Guard: arithmetic_test.test_error_is_linear_in_the_mean.
    largest = mean if largest_mean is None else largest_mean
    move = self._edge(far, largest) + self.shift
    growth = np.exp((width + 2 * move) * (far + width + move))
    # PRIVACY: Rounding moves both edges of a cell, and moves the outer edge of
    # a wide cell more than the inner edge. A bound for one edge of the
    # narrowest cell would be too low. Both edges are counted, and 57 times
    # `unit` is added for wide cells.
    # Guard: arithmetic_test.test_error_bounds_cells_with_moved_edges.
    edges = 2 * edge / width + 57 * unit
    edges = edges + 2 * unit * self.feedback * (1.5 + far)
    reach = (far + beyond) * self.shift
    shift = np.maximum(np.expm1(reach), reach + self.shift**2 / 2)
    # PRIVACY: Words are discrete, so the number of words in a cell differs from
    # p / spacing by up to one, and a bound of r without this error would be too
    # low. `words` bounds the relative error, spacing / p.
    # Guard: arithmetic_test.test_error_bounds_every_cell_of_small_samplers.
    with np.errstate(over='ignore'):
      words = (
        self._spacing(near)
        / width
        * math.sqrt(2 * math.pi)
        * np.exp(far**2 / 2)
      )
    return (1 + _ROUNDING) * (growth * (edges + words) + shift)
