"""Differences between finished runs, with confidence intervals."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Optional

import numpy as np
from scipy import stats

_CONFIDENCE = 0.95


@dataclasses.dataclass(frozen=True)
class Paired:
  """The difference between two mechanisms, over their common seeds.

  Attributes:
    seeds: number of seeds, >= 2.
    mean: mean of the differences, first minus second.
    stdev: standard deviation of the differences.
    half_width: half the width of the 95 % confidence interval of the mean.
    p_value: p-value of the paired t-test, in [0, 1].
  """

  seeds: int
  mean: float
  stdev: float
  half_width: float
  p_value: float

  @property
  def shown(self) -> bool:
    """Whether the confidence interval excludes zero."""
    return abs(self.mean) > self.half_width


def paired(
  first: Mapping[int, float], second: Mapping[int, float]
) -> Optional[Paired]:
  """Returns the difference, or None with fewer than two common seeds.

  The interval assumes normal differences and a single comparison.

  Args:
    first: values of the first mechanism by seed.
    second: values of the second mechanism by seed.

  >>> found = paired({1: 5.0, 2: 5.1, 3: 5.2}, {1: 4.9, 2: 4.9, 3: 5.1, 4: 9.0})
  >>> found.seeds, round(found.mean, 6), round(found.half_width, 6), found.shown
  (3, 0.133333, 0.143422, False)
  """
  seeds = sorted({*first} & {*second})
  if len(seeds) < 2:
    return None
  differences = np.array([first[seed] - second[seed] for seed in seeds])
  stdev = float(np.std(differences, ddof=1))
  if stdev == 0:
    return Paired(len(seeds), float(differences[0]), 0.0, 0.0, math.nan)
  return Paired(
    len(seeds),
    float(np.mean(differences)),
    stdev,
    least_difference(stdev, len(seeds)),
    float(stats.ttest_1samp(differences, 0.0).pvalue),
  )


def least_difference(stdev: float, seeds: int) -> float:
  """Returns the least mean difference whose interval excludes zero.

  Args:
    stdev: standard deviation of the differences between two mechanisms on one
      seed.
    seeds: number of seeds, >= 2.
  """
  quantile = stats.t.ppf((1 + _CONFIDENCE) / 2, seeds - 1)
  return float(quantile * stdev / math.sqrt(seeds))


def pooled(stdevs: Sequence[float]) -> float:
  """Returns the pooled standard deviation of samples of equal size."""
  return math.sqrt(np.mean(np.square(stdevs)))


@dataclasses.dataclass(frozen=True)
class Curve:
  """loss = a + b log(L) + c log(L)^2, by least squares.

  Attributes:
    coefficients: [3] a, b, c.
    residuals: [m] losses minus curve, at the fitted points.
  """

  coefficients: np.ndarray
  residuals: np.ndarray

  @property
  def stdev(self) -> float:
    """Returns the standard deviation of points around the curve."""
    return math.sqrt(np.sum(self.residuals**2) / (len(self.residuals) - 3))

  def __call__(self, noise: np.ndarray) -> np.ndarray:
    """Returns the losses at L, [m]."""
    return np.vander(np.log(noise), 3, increasing=True) @ self.coefficients


def curve(points: Sequence[tuple[float, float]]) -> Optional[Curve]:
  """Returns the curve through (L, loss); None for fewer than 5 values of L."""
  if len({noise for noise, _ in points}) < 5:
    return None
  noise, losses = np.array(points).T
  basis = np.vander(np.log(noise), 3, increasing=True)
  coefficients = np.linalg.lstsq(basis, losses, rcond=None)[0]
  return Curve(coefficients, losses - basis @ coefficients)


def drift(losses: Sequence[float]) -> float:
  """Returns the mean of the last tenth over the least loss, minus 1.

  >>> drift([3.0] * 8 + [2.0, 2.5])
  0.25
  """
  last = losses[-max(1, len(losses) // 10) :]
  return float(np.mean(last) / min(losses)) - 1.0
