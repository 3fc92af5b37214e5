"""Tests of the recursions of all kinds of C against dense matrices."""

import fractions

import numpy as np
import pytest
import recursions

from tff_bandmf import strategies
from tff_bandmf.strategies import recursion as recursion_lib

_ROUNDS = 23


def _rows(rounds, bands, seed=0):
  rows = np.random.default_rng(seed).uniform(-0.3, 0.4, (rounds, bands))
  rows[:, 0] += 1.0
  return np.where(np.arange(rounds)[:, None] >= np.arange(bands), rows, 0.0)


def _lower(rounds):
  entries = np.random.default_rng(6).uniform(-0.1, 0.2, (rounds, rounds))
  return np.tril(entries, -1) + np.eye(rounds)


_BLT = strategies.Blt(_ROUNDS, [0.3, 0.1], [0.9, 0.5])
_BISR = strategies.BandedInverseSqrt(_ROUNDS, 4)
_KINDS = {
  'identity': strategies.Identity(_ROUNDS),
  'banded': strategies.Banded(_rows(_ROUNDS, 5)),
  'toeplitz': strategies.BandedToeplitz(_ROUNDS, [2.0, 0.7, 0.4, 0.1]),
  'dense': strategies.Dense(_lower(_ROUNDS)),
  'square root': strategies.SqrtToeplitz(_ROUNDS),
  'blt': _BLT,
  'bisr': _BISR,
  'dp-cgd': strategies.DpCgd(_ROUNDS, 0.8),
  'tree': strategies.OnlineTree(_ROUNDS),
  'normalized banded': strategies.ColumnNormalized(
    strategies.BandedToeplitz(_ROUNDS, [1.0, 0.7, 0.4])
  ),
  'normalized blt': strategies.ColumnNormalized(_BLT),
  'normalized bisr': strategies.ColumnNormalized(_BISR),
  'stamped banded': strategies.Stamped(_ROUNDS, strategies.Banded(_rows(6, 3))),
  'stamped blt': strategies.Stamped(
    _ROUNDS, strategies.Blt(6, [0.3, 0.1], [0.9, 0.5])
  ),
  'stamped bisr': strategies.Stamped(
    _ROUNDS, strategies.BandedInverseSqrt(6, 3)
  ),
  'stamped tree': strategies.Stamped(_ROUNDS, strategies.OnlineTree(6)),
  'stamped normalized blt': strategies.Stamped(
    _ROUNDS,
    strategies.ColumnNormalized(strategies.Blt(6, [0.3, 0.1], [0.9, 0.5])),
  ),
}


def _matrix(strategy):
  """Returns the square C whose noise this is, from definitions alone."""
  if isinstance(strategy, strategies.Stamped):
    block = _matrix(strategy.block)
    whole = np.kron(np.eye(-(-strategy.rounds // len(block))), block)
    return whole[: strategy.rounds, : strategy.rounds]
  return strategy.matrix()


@pytest.mark.parametrize('kind', _KINDS)
def test_noise_without_rounding_is_that_of_the_matrix(kind):
  found = _KINDS[kind].recursion()
  assert found.rounds == _ROUNDS
  assert found.strategy_digest == _KINDS[kind].digest()
  expected = np.linalg.inv(_matrix(_KINDS[kind]))
  np.testing.assert_allclose(
    recursions.unrounded(found), expected, rtol=0, atol=1e-12
  )


def _decoder(strategy):
  """Returns Honaker's sums as sums of nodes, in the order they finish in."""
  v = strategy.node_variances()
  nodes = iter(np.eye(2 * strategy.rounds))
  pending, rows = [], []
  for t in range(strategy.rounds):
    estimate, height = next(nodes), 0
    while (t >> height) & 1:
      # (own / 1 + children / (2 v)) v of the node.
      height += 1
      children = (estimate + pending.pop()) / (2 * v[height - 1])
      estimate = v[height] * (next(nodes) + children)
    pending.append(estimate)
    rows.append(sum(pending))
  return np.array(rows)


@pytest.mark.parametrize('rounds', [1, 2, 7, 23, 64])
def test_sums_of_tree_noise_have_the_covariance_of_the_decoder(rounds):
  strategy = strategies.OnlineTree(rounds)
  sums = np.cumsum(np.linalg.inv(strategy.matrix()), axis=0)
  decoder = _decoder(strategy)
  np.testing.assert_allclose(
    sums @ sums.T, decoder @ decoder.T, rtol=0, atol=1e-12
  )
  # What is released tells no more than the nodes do.
  gram = strategy.matrix().T @ strategy.matrix()
  assert np.linalg.eigvalsh(strategy.gram() - gram).min() > -1e-12


@pytest.mark.parametrize('kind', _KINDS)
def test_rounding_stays_in_its_round(kind):
  """C y is z but for the rounding of that very round: nothing adds up."""
  found = _KINDS[kind].recursion()
  z_steps = 1000.0
  z = np.random.default_rng(1).normal(size=(_ROUNDS, 400))
  y = recursions.run(found, z, z_steps)
  matrix = _matrix(_KINDS[kind])
  if found.keeps == recursion_lib.PAST_Z:
    # y is C^-1 z but for its own rounding.
    off = y - z_steps * np.linalg.solve(matrix, z)
  else:
    scale = found.scales[[found.phase(t) for t in range(_ROUNDS)]]
    off = scale[:, None] * (matrix @ y - z_steps * z)
  assert np.abs(off).max() <= 0.5 + 1e-9


@pytest.mark.parametrize('kind', _KINDS)
def test_memory_follows_from_y_alone(kind):
  """Given past y, round t is one fresh z times scale, plus a known mean."""
  found = _KINDS[kind].recursion()
  generator = np.random.default_rng(2)
  y = np.rint(1e4 * generator.normal(size=(_ROUNDS, 3)))
  if found.keeps == recursion_lib.PAST_Z:
    assert not any(found.reach(t) for t in range(_ROUNDS))
    return
  expected = _matrix(_KINDS[kind]) @ y
  replay = iter(y)
  means = []

  def given(v):
    means.append(v)
    return next(replay)

  recursions.run(found, np.zeros((_ROUNDS, 3)), 1.0, rounding=given)
  scale = found.scales[[found.phase(t) for t in range(_ROUNDS)]]
  np.testing.assert_allclose(
    scale[:, None] * expected, y - np.array(means), rtol=1e-9, atol=1e-6
  )


@pytest.mark.parametrize('kind', _KINDS)
def test_ideal_is_the_recursion_in_fractions(kind):
  found = _KINDS[kind].recursion()
  generator = np.random.default_rng(7)
  z, z_steps = generator.normal(size=(_ROUNDS, 1)), 777.125
  unrounded = []

  def rounding(v):
    unrounded.append(float(v[0]))
    return np.rint(v)

  y = recursions.run(found, z, z_steps, rounding)[:, 0]
  for t, v in enumerate(unrounded):
    past = [int(each) for each in y[:t][::-1]]
    assert found.reach(t) <= t
    # Numbers beyond its reach have no effect.
    ideal = found.ideal(z_steps, t, past[: found.reach(t)])
    assert ideal.radius < 2**-90
    exact = ideal.mean + sum(
      factor * fractions.Fraction(z[t - s, 0])
      for s, factor in enumerate(ideal.factors)
    )
    assert abs(float(exact) - v) < 1e-9


@pytest.mark.parametrize('kind', _KINDS)
def test_numbers_define_c_and_its_digest(kind):
  found, other = (_KINDS[kind].recursion() for _ in range(2))
  numbers = found.numbers()
  matrix = recursions.unrounded(found)
  other.use(numbers)
  assert np.array_equal(recursions.unrounded(other), matrix)
  assert other.digest == found.digest
  assert all(array.dtype == np.float64 for array in numbers.values())
  for name, array in numbers.items():
    moved = array.copy()
    place = np.unravel_index(np.argmax(np.abs(moved)), moved.shape)
    moved[place] = np.nextafter(moved[place], 9)
    other.use({**numbers, name: moved})
    assert other.digest != found.digest
    assert np.any(recursions.unrounded(other) != matrix)


@pytest.mark.parametrize('kind', _KINDS)
def test_norms_are_those_of_the_inverse(kind):
  found = _KINDS[kind].recursion()
  inverse = np.linalg.inv(_matrix(_KINDS[kind]))
  norms = np.linalg.norm(inverse, axis=1)
  np.testing.assert_allclose(found.row_norms, norms, rtol=1e-9)
  np.testing.assert_allclose(
    found.rho, np.max(norms / np.diag(inverse)), rtol=1e-9
  )
  assert found.max_scale == pytest.approx(np.max(np.diag(inverse)), rel=1e-12)


def test_column_of_a_blt_is_within_its_bound():
  # Two buffers that nearly cancel.
  strategy = strategies.Blt(60, omega=[1e4, -0.999e4], theta=[0.9, 0.89])
  omega, theta = (
    [fractions.Fraction(each) for each in values]
    for values in (strategy.omega, strategy.theta)
  )
  off = [
    fractions.Fraction(found)
    - sum(scale * decay ** (t - 1) for scale, decay in zip(omega, theta))
    for t, found in enumerate(strategy.column(60))
    if t
  ]
  squared = sum(each**2 for each in off)
  assert 0 < squared <= fractions.Fraction(strategy.column_error(1)) ** 2
  assert strategy.column_error(5) == 5 * strategy.column_error(1)


def test_window_in_blocks_is_the_window_round_by_round():
  for kind in ('banded', 'bisr', 'normalized banded', 'stamped banded'):
    found = _KINDS[kind].recursion()
    z = np.random.default_rng(5).normal(size=(_ROUNDS, 7))
    y = recursions.run(found, z, 1000.0)
    scale, far, near = found.block(9, 8)
    of_z = found.keeps == recursion_lib.PAST_Z
    window = (1000.0 * z if of_z else y)[8::-1][: found.memory]
    rows = 1000.0 * z[9:17] if of_z else np.zeros((8, 7))
    for r in range(8):
      mean = far[r, : len(window)] @ window + near[r, :r] @ rows[:r]
      row = np.rint(1000.0 * scale[r] * z[9 + r] + mean)
      assert np.array_equal(row, y[9 + r])
      if not of_z:
        rows[r] = row


@pytest.mark.parametrize('kind', _KINDS)
def test_bounds_of_weights_in_pieces_are_those_of_the_whole(kind, monkeypatch):
  """As for more rounds than are in memory at one time."""

  def bounds():
    made = _KINDS[kind].recursion()
    return made.rho, made.max_scale, made.row_norms

  whole = bounds()
  monkeypatch.setattr(recursion_lib, '_ROWS', 3)
  for one, other in zip(bounds(), whole):
    np.testing.assert_allclose(one, other, rtol=1e-13)
