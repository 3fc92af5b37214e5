"""Tests of the lattice of a run: its range, its step, its refusals."""

import numpy as np
import pytest

from tff_bandmf import strategies
from tff_bandmf.accounting.methods import stop_probability as stops
from tff_bandmf.noise import lattice

_BANDED = strategies.BandedToeplitz(200, [1.0, 0.6, 0.4]).recursion()


def _of(recursion=_BANDED, z=2.0, cohort=100, dimension=1000, **kwargs):
  return lattice.Lattice.from_noise(
    recursion, z, largest_cohort=cohort, dimension=dimension, **kwargs
  )


@pytest.mark.parametrize('z', [0.01, 0.4, 2.0, 37.0])
@pytest.mark.parametrize('scale', [0.3, 1.0, 5.0])
def test_step_is_the_least_that_costs_little(z, scale):
  recursion = strategies.BandedToeplitz(50, [scale, 0.2 * scale]).recursion()
  found = _of(recursion, z, cohort=10, dimension=4)
  width = scale / found.z_steps  # h C[t, t] / s
  assert width >= lattice._LEAST_STEP
  # And no wider than they need to be.
  assert found.clip_bits == 26 or width < 2 * lattice._LEAST_STEP


@pytest.mark.parametrize('cohort', [1, 100, 10**4, 10**6])
@pytest.mark.parametrize('z', [2e-3, 0.1])
@pytest.mark.parametrize('secure_sum', [False, True])
def test_sums_and_noise_stay_in_32_bits(cohort, z, secure_sum):
  for strategy in (
    strategies.BandedToeplitz(300, [1.0, 0.9]),
    strategies.Blt(300, [0.3], [0.99]),
    strategies.BandedInverseSqrt(300, 5),
  ):
    recursion = strategy.recursion()
    found = _of(recursion, z, cohort, secure_sum=secure_sum)
    inverse = np.linalg.inv(strategy.matrix())
    rounding = np.abs(inverse * np.diag(strategy.matrix())).sum(1).max() / 2
    largest = (
      (2 if secure_sum else 1) * cohort * found.clip_steps
      + 16 * np.linalg.norm(inverse, axis=1).max() * found.z_steps
      + rounding
      + 1
    )
    assert largest < 2**31
    assert found.z_steps == z * found.clip_steps


def test_random_lattices_hold_sums_and_noise():
  """The noise decides where C is nearly singular, and sums where it is not."""
  rng = np.random.default_rng(0)
  widths, shares = [], []
  for _ in range(250):
    series = rng.uniform(0.2, 2) * np.array([1, -rng.uniform(0, 1.8)])
    rows = np.tile(series, (25, 1)) * rng.uniform(0.7, 1.4, (25, 1))
    rows[0, 1] = 0
    strategy = strategies.Banded(rows)
    z, cohort = np.exp(rng.uniform(-9, 4)), int(np.exp(rng.uniform(0, 14)))
    secure_sum = bool(rng.random() < 0.5)
    dimension = int(np.exp(rng.choice([0, 1]) * rng.uniform(0, 14)))
    try:
      found = _of(
        strategy.recursion(), z, cohort, dimension, secure_sum=secure_sum
      )
    except ValueError:
      continue
    assert found.clip_steps >= 2 * np.sqrt(dimension)
    inverse = np.linalg.inv(strategy.matrix())
    noise = 16 * np.linalg.norm(inverse, axis=1).max() * found.z_steps
    sums = (2 if secure_sum else 1) * cohort * found.clip_steps
    rounding = np.abs(inverse * rows[:, 0]).sum(1).max() / 2 + 1
    assert sums + noise + rounding < 2**31
    shares.append(noise / 2**31)
    widths += [
      rows[:, 0].min() / found.z_steps,
      rows[:, 0].max() / found.z_steps,
    ]
  assert lattice._LEAST_STEP <= min(widths)
  # Every limit decides for some.
  assert max(shares) > 0.7 and np.quantile(shares, 0.3) < 0.1
  assert min(widths) < 1.5 * lattice._LEAST_STEP


def test_nearly_singular_matrix_is_refused():
  """Roundings of past noise add to a range that noise alone does not leave."""
  rounds = 300
  diagonal = np.exp(np.linspace(0, -11, rounds))
  z = diagonal.max() / 2

  def singular(ratio):
    below = -ratio * np.append(0, diagonal[1:])
    return strategies.Banded(np.stack([diagonal, below], 1))

  low, high = 1.0, 1.2
  for _ in range(20):
    middle = (low + high) / 2
    try:
      _of(singular(middle).recursion(), z, cohort=1, dimension=1)
      low = middle
    except ValueError:
      high = middle
  found = _of(singular(low).recursion(), z, cohort=1, dimension=1)
  inverse = np.linalg.inv(singular(low).matrix())
  noise = 16 * np.linalg.norm(inverse, axis=1).max() * found.z_steps
  rounding = np.abs(inverse * diagonal).sum(1).max() / 2 + 1
  assert found.clip_steps + noise + rounding < 2**31
  # A limit for noise alone would have let more pass.
  assert noise > 0.5 * 2**31 and rounding > 0.1 * noise


def test_more_coordinates_than_claims_count_are_refused(monkeypatch):
  monkeypatch.setattr(stops, 'PAIRS', 200_000)
  _of()
  with pytest.raises(ValueError, match='rounds=200: .* 1001 coordinates'):
    _of(dimension=1001)


def test_run_without_noise_has_a_lattice():
  found = _of(z=0.0, cohort=1000)
  assert found.z_steps == 0 and found.clip_bits == 21
  assert 1000 * found.clip_steps < 2**31


@pytest.mark.parametrize(
  'kwargs',
  [
    {'cohort': 2**31},
    {'dimension': 10**12},
    {'z': 1e6},
    {'recursion': strategies.BandedToeplitz(160, [1.0, 1.2]).recursion()},
  ],
)
def test_what_no_lattice_holds_is_refused(kwargs):
  with pytest.raises(ValueError, match='lattice=2.*steps a clip'):
    _of(**kwargs)


def test_cohort_of_nobody_is_refused():
  with pytest.raises(ValueError, match='largest_cohort=0'):
    _of(cohort=0)
