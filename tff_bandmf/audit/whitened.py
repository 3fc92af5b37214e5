"""Statistical tests of whitened noise W, [rounds, d].

If the noise has the stated distribution, the entries of W are independent
standard normals. A test is exact: its statistic has a known distribution for
every d and number of rounds.

| function      | tests                                                        |
|---------------|--------------------------------------------------------------|
| `sizes`       | sums of squares by probe, layer, round and coordinate        |
| `correlations`| products of rounds, runs, coordinates and parts of a vector  |
| `shape`       | numbers of normals in intervals                              |
| `large_normals` | numbers of large normals                                   |
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import scipy.special
import scipy.stats

# Further ends of the intervals of `shape`, in standard deviations; the other
# ends are quantiles.
_ENDS = (0.001, 0.01, 2.0, 2.5, 3.0, 3.5, 4.0)


@dataclasses.dataclass(frozen=True)
class Noise:
  """Whitened noise of a run, or of the difference of two runs.

  Attributes:
    whitened: W, [rounds, d].
    names: for each round, the name of its probe (the cohort that the audit sent
      in this round).
    starts: first coordinate of each layer, and d.
  """

  whitened: np.ndarray
  names: Sequence[str]
  starts: Sequence[int]


class Test(NamedTuple):
  """The result of one test.

  A function that makes several tests returns the test nearest to failing.

  Attributes:
    statistic: measured number.
    least: least statistic that passes.
    most: largest statistic that passes.
    name: text that says which normals were tested.
  """

  statistic: float
  least: float
  most: float
  name: str

  @property
  def failed(self) -> bool:
    """Whether the statistic is outside its limits, or not a number."""
    return not self.least <= self.statistic <= self.most


def large_normals(
  count: float, draws: int, threshold: float, misses: tuple[float, float]
) -> Test:
  """Returns the test of the number of normals beyond a threshold.

  Args:
    count: number of normals beyond the threshold in magnitude.
    draws: number of normals.
    threshold: magnitude, in standard deviations.
    misses: largest probabilities that the number is below its lower limit, and
      that it is above its upper limit.
  """
  poisson = scipy.stats.poisson(2 * draws * scipy.stats.norm.sf(threshold))
  return Test(
    float(count),
    float(poisson.ppf(misses[0])),
    float(poisson.isf(misses[1])),
    f'of {draws} normals beyond {threshold:.4g} standard deviations',
  )


def sizes(
  noises: Sequence[Noise], after: Sequence[np.ndarray], false_alarm: float
) -> Test:
  """Returns the least likely ratio of measured to stated standard deviation.

  The sum of squares of m independent standard normals is chi-square with m
  degrees of freedom.

  Args:
    noises: whitened noise.
    after: noise of rounds after the last round, [d] each, divided by the
      smallest standard deviation that is allowed. The true standard deviation
      may be larger.
    false_alarm: largest probability with which any ratio fails.
  """
  # (name, sums of squares, degrees of freedom, whether there is an upper limit)
  tests: list[tuple[str, np.ndarray, int, bool]] = []
  for noise in noises:
    squares = noise.whitened**2
    rounds, dimension = squares.shape
    if not rounds:
      continue
    tests += [
      ('a round', squares.sum(1), dimension, True),
      # PRIVACY: A test of the average over coordinates would miss one
      # coordinate without noise. The standard deviation of each coordinate is
      # tested.
      # Guard: conformance_test.test_fault_of_the_noise_fails_its_question.
      ('a coordinate', squares.sum(0), rounds, True),
    ]
    layers = np.add.reduceat(squares, noise.starts[:-1], 1)
    groups = {'all rounds': np.ones(rounds, bool)}
    for probe in dict.fromkeys(noise.names):
      groups[f'rounds of "{probe}"'] = np.array(noise.names) == probe
    for name, chosen in groups.items():
      count = int(chosen.sum())
      by_layer = layers[chosen].sum(0)
      tests.append((name, by_layer.sum()[np.newaxis], count * dimension, True))
      tests += [
        (f'layer {i}, {name}', each[np.newaxis], count * length, True)
        for i, (each, length) in enumerate(
          zip(by_layer, np.diff(noise.starts).tolist())
        )
      ]
  tests += [
    ('a round past the last', np.sum(each**2)[np.newaxis], each.size, False)
    for each in after
  ]
  miss = false_alarm / (2 * sum(len(test[1]) for test in tests))
  worst = 2.0, Test(math.nan, 0.0, math.inf, '')
  for name, sums, freedom, two_sided in tests:
    chances = scipy.special.chdtr(freedom, sums)
    if two_sided:
      chances = np.minimum(chances, scipy.special.chdtrc(freedom, sums))
    # A sum that is not a number does not pass.
    chances = np.where(np.isnan(chances), -1.0, chances)
    i = int(np.argmin(chances))
    if chances[i] < worst[0]:
      most = scipy.special.chdtri(freedom, miss) if two_sided else math.inf
      limits = scipy.stats.chi2.ppf(miss, freedom), most
      ratio, low, high = np.sqrt(np.divide((sums[i], *limits), freedom))
      worst = chances[i], Test(ratio, low, high, name)
  return worst[1]


def correlations(
  noises: Sequence[Sequence[Noise]], false_alarm: float
) -> tuple[Test, int]:
  """Returns the largest correlation, and the number of correlations.

  For independent vectors a and b of standard normals, <a, b> / |b| is a
  standard normal. This remains true if the coordinates of a are rotated by any
  number of places. The sum of <a, b> / |b| over m rounds, divided by m^(1/2),
  is also a standard normal if each a is independent of the earlier vectors. The
  vectors a and b are two rounds of one run or of two runs, two coordinates, or
  two parts of a round.

  Args:
    noises: whitened noise, in groups of runs that are independent of each
      other; all runs of a group have equally many rounds.
    false_alarm: largest probability with which any correlation fails.
  """
  largest: list[tuple[float, str]] = [(0.0, 'two rounds')]
  tests = 0

  def add(values, name):
    nonlocal tests
    values = np.abs(values)
    tests += values.size
    # All tests have the same limit, so only the largest number matters.
    largest.append((float(values.max(initial=0.0)), name))

  for group in noises:
    runs = [noise.whitened for noise in group]
    rounds, dimension = runs[0].shape
    rows = np.concatenate(runs)
    # A wrong standard deviation of the noise does not count as correlation.
    scale = float(np.sqrt(np.mean(rows**2))) if rows.size else 0.0
    if not 0 < scale < math.inf:
      continue
    rows = rows / scale
    if dimension <= 1 << 10:
      _add_rounds(rows, rounds, add)
      columns = _products(rows.T, rows.T)
      add(columns[np.tril_indices(dimension, -1)], 'two coordinates')
    half = dimension // 2
    shifts = _shifts(rows[:, :half], rows[:, -half:])
    _add_by_round(shifts, 'two parts', add)
    distances: Sequence[int] = range(1, dimension)
    if dimension > 1 << 10:
      distances = [1 << i for i in range(dimension.bit_length() - 1)]
    _add_by_round(
      np.stack([_at_distance(rows, each) for each in distances], 1),
      'coordinates at one distance',
      add,
    )
    if dimension > 1 << 10:
      add(_shifts(rows[1:], rows[:-1]), 'two consecutive rounds')
  most = float(scipy.stats.norm.isf(false_alarm / (2 * max(tests, 1))))
  statistic, name = max(largest)
  return Test(statistic, 0.0, most, name), tests


def _add_by_round(values, name, add):
  """Adds independent correlations of rounds, [rounds, m], and their sums."""
  add(values, f'{name} in a round')
  add(values.sum(0) / math.sqrt(len(values)), f'{name} in all rounds')


def _at_distance(rows: np.ndarray, distance: int) -> np.ndarray:
  """Returns <a, b> / |b| for each row, for two parts a and b of the row.

  Each coordinate of b is `distance` places after a coordinate of a. The vectors
  a and b have no coordinate in common: a has every other block of `distance`
  coordinates.
  """
  index = np.arange(rows.shape[1] - distance)
  index = index[index // distance % 2 == 0]
  a, b = rows[:, index], rows[:, index + distance]
  norms = np.linalg.norm(b, axis=1)
  return np.sum(a * b, 1) / np.where(norms > 0, norms, np.inf)


def _add_rounds(rows, rounds, add):
  """Adds the correlations of rounds of one run and of two runs.

  Args:
    rows: rounds of all runs, one run after the other, [runs * rounds, d].
    rounds: number of rounds of a run.
    add: function that takes correlations and their name.
  """
  products = _products(rows, rows)
  spectra, norms = np.fft.rfft(rows), np.linalg.norm(rows, axis=1)
  for later in range(1, len(rows)):
    # The later round is rotated by every number of places, also by 0.
    shifted = _shifted(spectra[later], spectra[:later], norms[:later], rows)
    split = later - later % rounds
    add(shifted[:split], 'rounds of two runs')
    add(shifted[split:], 'two rounds')
  for start in range(0, len(rows), rounds):
    for other in range(0, start + 1, rounds):
      block = products[start : start + rounds, other : other + rounds]
      # If both runs are the same, both halves of the block have the same
      # products <a, b>, so only the lower half is tested: a is the later round.
      distances = range(-rounds + 1, rounds if other < start else 0)
      name = 'all rounds of two runs' if other < start else 'all rounds'
      sums = [
        np.trace(block, distance) / math.sqrt(rounds - abs(distance))
        for distance in distances
      ]
      add(sums, f'{name} at one distance')


def _products(rows: np.ndarray, others: np.ndarray) -> np.ndarray:
  """Returns <row i, other j> / |other j| for all i and j; 0 if other j is 0."""
  norms = np.linalg.norm(others, axis=1)
  return rows @ others.T / np.where(norms > 0, norms, np.inf)


def _shifts(rows: np.ndarray, others: np.ndarray) -> np.ndarray:
  """Returns <row i rotated by s, other i> / |other i| for all i and s."""
  return _shifted(
    np.fft.rfft(rows), np.fft.rfft(others), np.linalg.norm(others, axis=1), rows
  )


def _shifted(spectra, others, norms, rows):
  """Returns the numbers of `_shifts`, from Fourier transforms and norms."""
  products = np.fft.irfft(spectra * np.conj(others), rows.shape[1])
  return products / np.where(norms > 0, norms, np.inf)[:, np.newaxis]


def shape(noise: Noise, where: str, false_alarm: float) -> Test:
  """Counts the normals in intervals; returns the count nearest to failing.

  The number of m normals that fall into an interval is binomial. The normals of
  a layer are divided by their root mean square, so their counts vary less.

  Args:
    noise: whitened noise; the standard deviation of a layer has no effect.
    where: text that says where the noise was measured.
    false_alarm: largest probability with which any count fails.
  """
  norm = scipy.stats.norm
  edges = np.concatenate([norm.ppf(np.arange(1, 16) / 16), _ENDS])
  edges = np.unique(np.concatenate([edges, -edges]).round(12))
  ends = np.concatenate([[-math.inf], edges, [math.inf]])
  # Intervals between neighbouring ends, and from each end to its opposite.
  place = np.arange(len(ends))
  inner = place[1 : len(ends) // 2]
  lows = np.append(place[:-1], inner)
  highs = np.append(place[1:], place[-1] - inner)
  chances = norm.cdf(ends[highs]) - norm.cdf(ends[lows])
  layers = []
  for start, end in zip(noise.starts, noise.starts[1:]):
    values = noise.whitened[:, start:end].ravel()
    values = values / (np.sqrt(np.mean(values**2)) or 1.0)
    bins = np.searchsorted(edges, values)
    layers.append(np.bincount(bins, minlength=len(edges) + 1))
  below = np.cumsum([sum(layers), *layers], 1)
  below = np.pad(below, [(0, 0), (1, 0)])
  counts, sizes = below[:, highs] - below[:, lows], below[:, -1:]
  miss = false_alarm / (2 * counts.size)
  binomial = scipy.stats.binom(sizes, chances)
  tails = np.minimum(binomial.cdf(counts), binomial.sf(counts - 1))
  group, i = np.unravel_index(np.argmin(tails), counts.shape)
  binomial = scipy.stats.binom(sizes[group, 0], chances[i])
  low, high = float(binomial.ppf(miss)), float(binomial.isf(miss))
  return Test(
    float(counts[group, i]),
    low,
    high,
    f'of {sizes[group, 0]} normals from {ends[lows[i]]:.3g} to '
    f'{ends[highs[i]]:.3g} standard deviations, {where}'
    + (f', layer {group - 1}' if group else ''),
  )
