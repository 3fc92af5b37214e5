"""Tests of what the arithmetic of the noise costs."""

import dataclasses
import fractions
import math
import random

import inverse_cdf
import numpy as np
import pytest
import scipy.signal
import scipy.special
import small_sampler

from tff_bandmf.accounting.arithmetic import cells as cells_lib

_ndtr = scipy.special.ndtr


def _cells(width, offset, reach):
  """Returns the edges of cells from -reach to reach, one at `offset`."""
  count = math.ceil(reach / width)
  return (np.arange(-count, count + 1) + offset) * width


def _ideal(edges):
  """Returns the probability of each cell, digits kept in both tails."""
  left, right = edges[:-1], edges[1:]
  flip = left > 0
  return np.where(
    flip, _ndtr(-left) - _ndtr(-right), _ndtr(right) - _ndtr(left)
  )


def _inner(edges):
  left, right = edges[:-1], edges[1:]
  return np.where(left * right < 0, 0, np.minimum(abs(left), abs(right)))


def _error(sums, inner, mean=0.0):
  return sums.cell_error(inner, inner, sums.cell_width, mean)


class _NoSpacing(cells_lib.Arithmetic):
  def _spacing(self, z):
    return 0 * z


class _ExtendedEverywhere(cells_lib.Arithmetic):
  def _spacing(self, z):
    return 0 * z + self.words.extended_spacing


class _HalfEdge(cells_lib.Arithmetic):
  def _edge(self, z, mean):
    return super()._edge(z, mean) / 2


_SAMPLERS = [
  small_sampler.Sampler(8),
  small_sampler.Sampler(10, more=4, below=5),
  small_sampler.Sampler(14),
  small_sampler.Sampler(12, more=4, below=6),
  small_sampler.Sampler(16, more=6, below=8),
]


def _largest_ratio(kind, sampler, width, shift=0.0, move=0.0):
  """Returns max |p~ / p - 1| / r over cells of a sampler.

  Args:
    kind: of the arithmetic whose r it is.
    sampler: of z.
    width: of the cells.
    shift: of the mean.
    move: edges are where they hurt, so many times as far as they may be.
  """
  sums = kind(
    cells=1,
    rho=1.0,
    shift=abs(shift),
    cell_width=width,
    feedback=0.0,
    rounds=1,
    dimension=1,
    words=dataclasses.replace(
      sampler.words, unit=sampler.words.unit or (2.0**-20 if move else 0.0)
    ),
  )
  largest = 0.0
  for offset in np.linspace(0, 1, 23, endpoint=False):
    edges = _cells(width, offset, 5.0)
    p, inner = _ideal(edges), _inner(edges)
    r = _error(sums, inner)
    moved = move * kind.__mro__[-2]._edge(sums, np.abs(edges), 0.0)
    for sign in (-1, 1):
      beyond_left = sampler.beyond(edges[:-1] + shift - sign * moved[:-1])
      beyond_right = sampler.beyond(edges[1:] + shift + sign * moved[1:])
      found = np.abs((beyond_left - beyond_right) / p - 1)
      good = r < 1
      with np.errstate(divide='ignore'):
        largest = max(largest, np.max(found[good] / r[good], initial=0))
  return largest


@pytest.mark.parametrize('width', [1 / 2, 1 / 8, 1 / 64])
@pytest.mark.parametrize('sampler', _SAMPLERS)
def test_error_bounds_every_cell_of_small_samplers(sampler, width):
  assert _largest_ratio(cells_lib.Arithmetic, sampler, width) <= 1
  for shift in (2.0**-6, -(2.0**-9)):
    assert _largest_ratio(cells_lib.Arithmetic, sampler, width, shift) <= 1


# Words so fine that only the edges, or the shift, count.
_FINE = small_sampler.Sampler(22, more=4, below=12)


@pytest.mark.parametrize('width', [1 / 4, 1 / 64])
def test_error_bounds_cells_with_moved_edges(width):
  assert 0.5 < _largest_ratio(cells_lib.Arithmetic, _FINE, width, move=1.0) <= 1


def test_error_bounds_random_cells_of_any_width():
  """Roundings of earlier noise move a mean, and more so in wide cells."""
  rng = np.random.default_rng(0)
  largest = []
  for feedback in (0.0, 1.0, 30.0, 1000.0):
    narrowest = 2.0 ** -rng.integers(1, 12)
    sums = _NoSpacing(
      cells=1,
      rho=1.0,
      shift=0.0,
      cell_width=narrowest,
      feedback=feedback,
      rounds=1,
      dimension=1,
      words=dataclasses.replace(_FINE.words, unit=2.0**-34),
    )
    near = rng.uniform(0, 6, 20_000)
    width = np.exp(rng.uniform(np.log(narrowest), 0, 20_000))
    mean = rng.uniform(0, 5, 20_000)
    far, moved_mean = near + width, mean + feedback * width / 2
    move_near, move_far = (sums._edge(z, moved_mean) for z in (near, far))
    p = _ndtr(-near) - _ndtr(-far)
    found = np.maximum(
      _ndtr(move_near - near) - _ndtr(-move_far - far) - p,
      p - _ndtr(-move_near - near) + _ndtr(move_far - far),
    )
    r = _error(sums, near, mean)
    largest.append(np.max(found / p / r))
  assert max(largest) <= 1 and min(largest) > 0.3, largest


def test_inverse_of_the_cdf_errs_less():
  u = inverse_cdf.points()
  largest = inverse_cdf.largest_error(u, scipy.special.ndtri(u))
  assert 0.8 < largest < 1


@pytest.mark.slow
def test_every_term_is_needed():
  plain = cells_lib.Arithmetic
  # Spacing; that of the extension; an edge on either side; the shift.
  assert _largest_ratio(plain, small_sampler.Sampler(12), 1 / 8) > 0.5
  assert (
    _largest_ratio(_NoSpacing, small_sampler.Sampler(12), 1 / 8) == math.inf
  )
  sampler = small_sampler.Sampler(12, more=4, below=5)
  assert _largest_ratio(plain, sampler, 1 / 8) <= 1
  assert _largest_ratio(_ExtendedEverywhere, sampler, 1 / 8) > 1
  fine = small_sampler.Sampler(22, more=4, below=12)
  assert _largest_ratio(_HalfEdge, fine, 1 / 64, move=1.0) > 1
  for shift in (2.0**-6, -(2.0**-6)):
    assert 0.5 < _largest_ratio(plain, fine, 1 / 4, shift) <= 1


def _computed(sampler, edges):
  """Returns the probability that a sampler gives each cell."""
  return sampler.beyond(edges[:-1]) - sampler.beyond(edges[1:])


def _arithmetic(sampler, width, cells=1):
  return cells_lib.Arithmetic(
    cells=cells,
    rho=1e-9,
    shift=0.0,
    feedback=0.0,
    rounds=1,
    dimension=1,
    cell_width=width,
    words=sampler.words,
  )


@pytest.mark.parametrize('width', [1 / 2, 1 / 8])
@pytest.mark.parametrize(
  'sampler', [*_SAMPLERS, small_sampler.Sampler(14, more=6, below=8, digits=9)]
)
def test_moments_bound_small_samplers(sampler, width):
  tail = 2.0
  moments = _arithmetic(sampler, width).moments(tail)
  orders = [1, 2, 5, 20, 100]
  bounds = [moments.growth(order) for order in orders]
  for offset in np.linspace(0, 1, 7, endpoint=False):
    edges = _cells(width, offset, 9.0)
    p, computed = _ideal(edges), _computed(sampler, edges)
    good = _inner(edges) <= tail
    assert max(p[~good].sum(), computed[~good].sum()) <= moments.bad
    if not np.all(np.isfinite(moments.log_weight)):
      continue
    error = computed[good] / p[good] - 1
    r = _error(_arithmetic(sampler, width), _inner(edges)[good], 12e-9)
    assert np.sum(p[good] * r**2) <= np.sum(moments.mass * moments.mean_square)
    for order, bound in zip(orders, bounds):
      assert np.sum(p[good] * (1 + error) ** (1 + order)) <= 1 + bound
      assert np.sum(p[good] * (1 + error) ** -order) <= 1 + bound


@pytest.mark.parametrize('order', [1.0, 4.0, 50.0])
def test_moments_count_what_is_beyond_the_tail(order):
  # The computed law is the ideal one given that nothing bad happens.
  bad = 1e-4
  error = bad / (1 - bad)
  moment = (1 - bad) * (1 + error) ** (1 + order)
  moments = cells_lib.Moments(
    np.ones(1), np.array([error**2]), -np.log1p(-np.array([error])), bad
  )
  assert moment <= 1 + moments.growth(order)
  assert moment > 1 + dataclasses.replace(moments, bad=0.0).growth(order)
  assert moments.bad > 0 == dataclasses.replace(moments, bad=0.0).bad


def test_second_moment_is_nearly_reached():
  # Errors of +-r in halves: bounds are above by little, and not with half.
  r, order = 1e-3, 100.0
  moments = cells_lib.Moments(
    np.ones(1), np.array([r**2]), -np.log1p(-np.array([r])), 0.0
  )
  for power in (1 + order, -order):
    moment = ((1 + r) ** power + (1 - r) ** power) / 2 - 1
    assert moment <= moments.growth(order) < 1.2 * moment


# Log ratios are rounded up to multiples of it: delta is bounded above.
_GRID = 1e-4
_LARGEST_LOG = 2.0


def _log_ratios(numerator, denominator, cells):
  """Returns (log ratios, rounded up, and mass of them, and at infinity)."""
  with np.errstate(divide='ignore', invalid='ignore'):
    ratios = np.log(numerator) - np.log(denominator)
  finite = (numerator > 0) & (ratios < _LARGEST_LOG)
  steps = np.ceil(np.maximum(ratios[finite], -_LARGEST_LOG) / _GRID)
  low = int(steps.min())
  mass = np.bincount((steps - low).astype(int), numerator[finite])
  lost = numerator.sum() - mass.sum()
  total, offset = np.ones(1), 0
  for _ in range(cells):
    total, offset = scipy.signal.fftconvolve(total, mass), offset + low
  at = (offset + np.arange(len(total))) * _GRID
  return at, total, 1 - (1 - lost) ** cells


def _hockey_stick(numerator, denominator, cells, alpha):
  at, mass, lost = _log_ratios(numerator, denominator, cells)
  return lost + np.sum(mass * np.maximum(0, 1 - np.exp(alpha - at)))


@pytest.mark.parametrize('cells', [1, 2, 16])
@pytest.mark.parametrize(
  'sampler',
  [
    small_sampler.Sampler(16, more=8, below=8),
    small_sampler.Sampler(18, more=8, below=9),
  ],
)
def test_closeness_holds_for_whole_runs(monkeypatch, sampler, cells):
  # As many cells as this have no accidents worth a word.
  monkeypatch.setattr(cells_lib, '_SELF_TEST', 0.0)
  width, beta = 1 / 2, 1e-3
  alpha = _arithmetic(sampler, width, cells).closeness(beta)
  assert alpha < 2
  edges = _cells(width, 0.3, 9.0)
  p, computed = _ideal(edges), _computed(sampler, edges)
  assert _hockey_stick(computed, p, cells, alpha) <= beta
  assert _hockey_stick(p, computed, cells, alpha) <= beta


class _Coin(cells_lib.Arithmetic):
  """Cells of two values, whose probabilities are off by +-1 % of them."""

  def moments(self, tail):
    del tail
    r = np.array([0.01])
    return cells_lib.Moments(np.ones(1), r**2, -np.log1p(-r), 1e-20)


@pytest.mark.parametrize(('cells', 'beta'), [(256, 1e-9)])
def test_closeness_of_a_run_is_nearly_reached(cells, beta):
  alpha = _Coin(
    cells=cells, rho=1.0, shift=0.0, feedback=0.0, rounds=1, dimension=1
  ).closeness(beta)
  computed, p = np.array([1.01, 0.99]) / 2, np.array([0.5, 0.5])
  for pair in ((computed, p), (p, computed)):
    assert _hockey_stick(*pair, cells, alpha) <= beta
    assert _hockey_stick(*pair, cells, alpha / 1.5) > beta


_BASE = cells_lib.Arithmetic(
  cells=2**30,
  rho=2.0,
  shift=2.0**-36,
  feedback=100.0,
  rounds=1000,
  dimension=2**20,
)


@pytest.mark.parametrize(
  ('name', 'value'),
  [
    ('cells', 0), ('rho', math.nan), ('shift', -1.0), ('cell_width', 2.0),
    ('cell_width', 0.0), ('shift', math.inf),
  ],
)  # fmt: skip
def test_bad_arithmetic_is_refused(name, value):
  with pytest.raises(ValueError, match=f'^{name}='):
    dataclasses.replace(_BASE, **{name: value})


def test_word_as_a_float_moves_no_edge_farther():
  """It is rounded twice, and errs by 1.5 units near 2^53."""
  words = {2**j + more for j in range(39, 64) for more in range(-9, 10)}
  words |= {random.Random(i).randrange(2**39, 2**63) for i in range(2000)}
  worst = 0.0
  for k in words:
    if not 2**39 <= k < 2**63:
      continue
    exact = fractions.Fraction(2 * k + 1, 2)
    error = abs(fractions.Fraction(float(k) + 0.5) - exact) / exact * 2**53
    worst = max(worst, error)
    u = float(exact) * 2.0**-64
    z = scipy.special.ndtri(u)
    mills = u / math.exp(-(z**2) / 2) * math.sqrt(2 * math.pi)
    assert error * mills <= cells_lib.WORD_UNITS
  assert 1.4 < worst <= 1.5


def test_error_is_linear_in_the_mean():
  """Few coordinates may have the whole mean of m^2, each of them 12 rho."""
  coarse = cells_lib.Arithmetic(
    cells=1,
    rho=8.0,
    shift=0.0,
    feedback=0.0,
    rounds=1,
    dimension=10**6,
    cell_width=2.0**-2,
    words=cells_lib.Words(unit=2.0**-9),
  )
  tail = 2.0
  far = np.append(np.linspace(0, tail, cells_lib._BINS)[1:], tail)
  worst = 12 * coarse.rho
  share = 2 * coarse.rho**2 / worst**2
  mixed = share * coarse.cell_error(0.0, far, 0.0, worst) ** 2
  mixed += (1 - share) * coarse.cell_error(0.0, far, 0.0, 0.0) ** 2
  assert np.all(mixed <= coarse.moments(tail).mean_square)
