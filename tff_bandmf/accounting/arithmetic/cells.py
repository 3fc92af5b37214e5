"""The cost of the arithmetic of the noise: (slack_epsilon, slack_delta).

The accountants speak of real numbers. The server adds integers

  y = rint(c z + m),  c = steps * scale

to sums that are integers too. m is a function of earlier releases and of the
data, z a normal made from 64 random bits in float64. With exact normals and
exact m the release is post-processing of the mechanism that is accounted for.
It remains to bound how far the computed probability of a cell (a value of y
given the past) is from the exact one: by at most the factor 1 +- r(z),

  r(z) = (2 edge / h + shift |z|) e^(...) + spacing / p,

where h is the width of a cell in units of z and p its probability. The moments
of the likelihood ratio of N cells multiply, so that for every event E

  computed(E) <= e^alpha exact(E) + beta
  exact(E) <= e^alpha computed(E) + beta

and (epsilon, delta) of the exact run gives

  (epsilon + 2 alpha,  e^alpha delta + beta (1 + e^(epsilon + alpha)))

to the computed one. docs/reference/arithmetic.md has the proof. Every number
here is an upper bound.
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

# The narrowest cells of a lattice.
CELL_WIDTH = 2.0**-17
# How much an inverse of the normal CDF may err, in units of 2^-53: relatively,
# and absolutely between 0.9 and 1.5, see `inverse_error`.
INVERSE_UNITS, INVERSE_MOST = 8.0, 12.0
# PRIVACY: a word k is rounded twice, k and then k + 1/2, and errs by 1.5 units
# near 2^53. So many units cover what that moves z, at every k. Guard:
# arithmetic_test.test_word_as_a_float_moves_no_edge_farther.
WORD_UNITS = 1.3

# The noise tests itself; a sound generator fails with this probability a run.
_SELF_TEST = 1e-24
# |m| and |y| stay within so many of their standard deviations.
_RANGE = 12.0
# Mean of m^2 over the coordinates of every round, over rho^2, and the
# probability that it is exceeded where there are enough coordinates.
_MEAN_SQUARE = 2.0
_MEAN_SQUARE_EXPONENT = 0.15
_MEAN_SQUARE_FAILS = 1e-24
_BINS = 4096
# Several times what the float64 arithmetic of this module loses.
_ROUNDING = 1e-9


def many_coordinates(rounds: int) -> int:
  """Returns d from which the mean of m^2 over coordinates is 2 rho^2 at most.

  In every round of n, but for a probability that `accidents` counts.
  """
  # A chi-square of d degrees exceeds 2 d with less than e^(-0.153 d).
  return math.ceil(
    math.log(rounds / _MEAN_SQUARE_FAILS) / _MEAN_SQUARE_EXPONENT
  )


def inverse_error(z: Union[float, np.ndarray]) -> np.ndarray:
  """Returns how much an inverse of the normal CDF may err, in units of 2^-53.

  Args:
    z: its value, at least 0.
  """
  # PRIVACY: SciPy's and TensorFlow's err by up to 10.3 units of z between 1.04
  # and 1.11. Guard: arithmetic_test.test_inverse_of_the_cdf_errs_less.
  return np.maximum(
    INVERSE_UNITS * z, np.minimum(7.2 + 54 * (z - 0.9), INVERSE_MOST)
  )


@dataclasses.dataclass(frozen=True)
class Words:
  """How normals are made; the defaults are those of the library.

  A word is a sign and a magnitude u in (0, 1/2), all equally likely. Words of
  small magnitude are followed by more bits.

  Attributes:
    spacing: probability of a word.
    extended_spacing: probability of a word with its extension.
    extended_below: magnitudes below it are extended.
    unit: relative error of one rounding, > 0.
  """

  spacing: float = 2.0**-64
  extended_spacing: float = 2.0**-128
  extended_below: float = 2.0**-25
  unit: float = 2.0**-53


@dataclasses.dataclass(frozen=True, eq=False)
class Moments:
  """Bounds of a cell's moments, over bins of |z|.

  Attributes:
    mass: [bins] float64, probability of z in each bin.
    mean_square: [bins] float64, upper bound of the mean of r^2 in each bin.
    log_weight: -log(1 - r) of the largest r in it.
    bad: mass of a cell's values beyond the bins, in either law.
  """

  mass: np.ndarray
  mean_square: np.ndarray
  log_weight: np.ndarray
  bad: float

  def growth(self, order: float) -> float:
    """Returns a bound of both moments of order L of a cell, minus 1.

      sum p (p~ / p)^(1 + L),  sum p (p / p~)^L  <=  1 + growth

    over values that are not bad.

    Args:
      order: L, at least 1.
    """
    # PRIVACY: (1 - r)^-(L + 2) is at least (1 + r)^(L - 1), and the first
    # moment of p~ / p - 1 over what is not bad has a factor of up to 1 + L.
    # Guard: arithmetic_test.test_moments_bound_small_samplers.
    with np.errstate(over='ignore'):
      weight = np.exp((order + 2) * self.log_weight)
    second = float(np.sum(self.mass * self.mean_square * weight))
    return (1 + order) * (order / 2 * second + self.bad)


@dataclasses.dataclass(frozen=True)
class Arithmetic:
  """The arithmetic of one run.

  Attributes:
    cells: N, the pairs (round, coordinate) that are compared.
    rho: largest standard deviation of m, and of y, in units of c.
    shift: bound of the float64 error of m, in units of c.
    feedback: bound of 2 / h times what rounding y adds to |m|, in units of c.
    rounds: n.
    dimension: coordinates.
    cell_width: h, of the narrowest cell, 1 / max c. None is wider than 1.
    words: how normals are made.
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
    _checks.positive('cells', self.cells, 'it is a number of cells')
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
    """Probability of what the proof excludes whatever beta is.

    The self-test of the noise fails; a y or an m is out of range; the mean of
    m^2 over the coordinates of a round is; a sampled cohort is too large.
    """
    # PRIVACY: these events are of the noise or of the draws alone, stop a run,
    # burn a round or end the proof; they are part of delta.
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

    computed(E) <= e^alpha exact(E) + beta and the same the other way round.

    Args:
      beta: positive.
    """
    left = beta - self.accidents
    if left <= 0:
      return float('inf')
    # A quarter for the cells beyond T, the rest for Markov's inequality.
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

    # Every order from 1 proves an alpha, the best or not; none overflows.
    longest = math.log(max(1.0, 500 / float(np.max(moments.log_weight)) - 2))
    minimum = scipy.optimize.minimize_scalar(
      log_alpha,
      bounds=(0.0, longest),
      method='bounded',
      options={'xatol': 1e-4},
    )
    return (1 + _ROUNDING) * math.exp(float(minimum.fun))

  def moments(self, tail: float) -> Moments:
    """Returns what bounds the moments of one cell's likelihood ratio.

    Cells that begin beyond the tail, T, are bad.
    """
    edges = np.union1d(
      np.linspace(0, tail, _BINS), np.clip([self._extended_from], 0, tail)
    )
    near, far = edges[:-1], edges[1:]
    mass = 2 * (scipy.special.ndtr(-near) - scipy.special.ndtr(-far))
    # Cells that begin before the tail and end behind it.
    mass = np.append(mass, 2 * scipy.special.ndtr(-tail))
    behind = np.append(np.zeros(len(far)), 1.0)
    near, far = np.append(near, near[-1]), np.append(far, tail)
    worst = _RANGE * self.rho
    typical = (
      math.sqrt(_MEAN_SQUARE) * self.rho if self._many_coordinates else worst
    )
    # r rises within a bin, so that its value at the far end bounds it.
    mean_square = self.cell_error(near, far, behind, typical, worst) ** 2
    largest = self.cell_error(near, far, 1.0, worst)
    log_weight = np.full(len(far), np.inf)
    log_weight[largest < 1] = -np.log1p(-largest[largest < 1])
    # Computed values too, which the edges and the last word may move.
    # PRIVACY: what is beyond T has no bound of its ratio: it is in beta.
    # Guard: arithmetic_test.test_moments_bound_small_samplers.
    moved = float(self._edge(tail, worst)) + self.shift
    bad = 2 * float(scipy.special.ndtr(moved - tail) + self._spacing(tail))
    return Moments(
      (1 + _ROUNDING) * mass, mean_square, log_weight, (1 + _ROUNDING) * bad
    )

  def _edge(self, z, mean):
    """Returns how far the rounding of floats moves the edge of a cell at z."""
    # One unit each of c, c z and c z + m; the word as a float.
    return self.words.unit * (inverse_error(z) + 3 * z + WORD_UNITS + 2 * mean)

  def _spacing(self, z) -> np.ndarray:
    """Returns the largest probability of a word in a cell from z outwards."""
    words = self.words
    return np.where(
      z > self._extended_from, words.extended_spacing, words.spacing
    )

  @property
  def _extended_from(self) -> float:
    """Returns a z from which on every cell is of extended words alone."""
    # One width for the cell around the boundary, one for its edges.
    return 2 * self.cell_width - float(
      scipy.special.ndtri(self.words.extended_below)
    )

  def cell_error(
    self,
    near: Union[float, np.ndarray],
    far: Union[float, np.ndarray],
    wider: Union[float, np.ndarray],
    mean: float,
    largest_mean: Optional[float] = None,
  ) -> np.ndarray:
    """Returns a bound of r for every cell whose inner edge is in [near, far].

    Args:
      near: at least 0.
      far: at least `near`; r is that of a cell that begins here.
      wider: z of the shift is up to this beyond `far`.
      mean: |m|, in units of c, in what r is linear in.
      largest_mean: |m| where r is not linear in it; None is `mean`.
    """
    width, unit = self.cell_width, self.words.unit
    edge = self._edge(far, mean)
    # PRIVACY: a root mean square stands for |m| where r is linear in |m| and
    # nowhere else, so that this factor takes the largest. Guard:
    # arithmetic_test.test_error_is_linear_in_the_mean.
    largest = mean if largest_mean is None else largest_mean
    moved = self._edge(far, largest) + self.shift
    growth = np.exp((width + 2 * moved) * (far + width + moved))
    # PRIVACY: two edges a cell; cells wider than `width` have 57 units more.
    # Guard: arithmetic_test.test_error_bounds_cells_with_moved_edges.
    edges = 2 * edge / width + 57 * unit
    edges = edges + 2 * unit * self.feedback * (1.5 + far)
    reach = (far + wider) * self.shift
    shift = np.maximum(np.expm1(reach), reach + self.shift**2 / 2)
    # PRIVACY: an interval of probability p has p / spacing +- 1 words.
    # Guard: arithmetic_test.test_error_bounds_every_cell_of_small_samplers.
    with np.errstate(over='ignore'):
      words = (
        self._spacing(near)
        / width
        * math.sqrt(2 * math.pi)
        * np.exp(far**2 / 2)
      )
    return (1 + _ROUNDING) * (growth * (edges + words) + shift)
