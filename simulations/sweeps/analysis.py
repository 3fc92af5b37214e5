"""Statistics of finished runs: differences of mechanisms, and fitted curves."""

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
  """The difference between two mechanisms, paired by their common seeds.

  Attributes:
    seeds: number of common seeds, >= 2.
    mean: mean of the differences, first mechanism minus second.
    stdev: standard deviation of the differences, >= 0.
    half_width: half the width of the 95 % confidence interval of the mean.
    p_value: p-value of the paired t-test, in [0, 1]; NaN if stdev is 0.
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
  """Returns the difference; None if there are fewer than two common seeds.

  The confidence interval assumes normal differences and a single comparison.

  Args:
    first: losses of the first mechanism, by seed.
    second: losses of the second mechanism, by seed.

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
  """Returns half the width of the 95 % confidence interval of a mean.

  The interval excludes zero if |mean| exceeds the returned number.

  Args:
    stdev: standard deviation of the differences between two mechanisms.
    seeds: number of seeds, >= 2.
  """
  quantile = stats.t.ppf((1 + _CONFIDENCE) / 2, seeds - 1)
  return float(quantile * stdev / math.sqrt(seeds))


def pooled(stdevs: Sequence[float]) -> float:
  """Returns the pooled standard deviation of samples of equal size."""
  return math.sqrt(np.mean(np.square(stdevs)))


@dataclasses.dataclass(frozen=True)
class Curve:
  """A curve fitted by least squares: loss = a + b log(L) + c log(L)^2.

  L is the error that the noise causes, `Result.noise` of `sweeps/cell.py`.

  Attributes:
    coefficients: [3] a, b, c.
    residuals: [m] differences losses minus curve, at the m fitted points.
  """

  coefficients: np.ndarray
  residuals: np.ndarray

  @property
  def stdev(self) -> float:
    """Returns the standard deviation of points around the curve."""
    return math.sqrt(np.sum(self.residuals**2) / (len(self.residuals) - 3))

  def __call__(self, noise: np.ndarray) -> np.ndarray:
    """Returns the losses of the curve.

    Args:
      noise: [m] values of L, > 0.
    """
    return np.vander(np.log(noise), 3, increasing=True) @ self.coefficients


def curve(points: Sequence[tuple[float, float]]) -> Optional[Curve]:
  """Returns the fitted curve; None if there are fewer than 5 values of L.

  Args:
    points: pairs (L, loss), L > 0.
  """
  if len({noise for noise, _ in points}) < 5:
    return None
  noise, losses = np.array(points).T
  basis = np.vander(np.log(noise), 3, increasing=True)
  coefficients = np.linalg.lstsq(basis, losses, rcond=None)[0]
  return Curve(coefficients, losses - basis @ coefficients)


def drift(losses: Sequence[float]) -> float:
  """Returns r - 1, where r is (mean of the last tenth of losses) / least loss.

  Args:
    losses: losses > 0 in the order of the rounds.

  >>> drift([3.0] * 8 + [2.0, 2.5])
  0.25
  """
  last = losses[-max(1, len(losses) // 10) :]
  return float(np.mean(last) / min(losses)) - 1.0
