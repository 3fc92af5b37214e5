"""Tests of the recursions of all kinds of C against dense matrices."""

import fractions

import numpy as np
import pytest
import scipy.signal

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


def _run(found, z, z_steps, rounding=np.rint):
  """Returns y [n, d] from the table, one round after the other."""
  table = found.table()
  memory = np.zeros((found.memory, z.shape[1]))
  y = np.empty(z.shape)
  for t in range(found.rounds):
    p = found.phase(t)
    scale = z_steps * table.scale[p]
    mean = table.readout[p] @ memory
    y[t] = rounding(scale * z[t] + mean)
    if found.keeps == recursion_lib.BUFFERS:
      memory = table.update[p] @ memory + table.gain[p][:, None] * y[t]
    elif found.memory:
      fed = y[t]
      if found.keeps == recursion_lib.PAST_U:
        fed = (y[t] - mean) / table.scale[p]
      memory = np.concatenate([fed[None], memory[:-1]])
  return y


@pytest.mark.parametrize('kind', _KINDS)
def test_noise_without_rounding_is_that_of_the_matrix(kind):
  found = _KINDS[kind].recursion()
  assert found.rounds == _ROUNDS and found.digest == _KINDS[kind].digest()
  y = _run(found, np.eye(_ROUNDS), 1.0, rounding=lambda v: v)
  expected = np.linalg.inv(_matrix(_KINDS[kind]))
  np.testing.assert_allclose(y, expected, rtol=0, atol=2e-5)
  if found.cut_norm < 1e-13:
    np.testing.assert_allclose(y, expected, rtol=0, atol=1e-12)


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
  y = _run(found, z, z_steps)
  # The C that the noise has: its weights may be cut.
  noise = _run(found, np.eye(_ROUNDS), 1.0, rounding=lambda v: v)
  whitened = np.linalg.solve(noise, y)
  scale = found.scales[[found.phase(t) for t in range(_ROUNDS)]]
  off = scale[:, None] * (whitened - z_steps * z)
  assert np.abs(off).max() <= 0.5 + 1e-6


@pytest.mark.parametrize('kind', _KINDS)
def test_memory_follows_from_y_alone(kind):
  """Given past y, round t is one fresh z times scale, plus a known mean."""
  found = _KINDS[kind].recursion()
  generator = np.random.default_rng(2)
  y = np.rint(1e4 * generator.normal(size=(_ROUNDS, 3)))
  noise = _run(found, np.eye(_ROUNDS), 1.0, rounding=lambda v: v)
  expected = np.linalg.solve(noise, y)
  replay = iter(y)
  means = []

  def given(v):
    means.append(v)
    return next(replay)

  _run(found, np.zeros((_ROUNDS, 3)), 1.0, rounding=given)
  scale = found.scales[[found.phase(t) for t in range(_ROUNDS)]]
  np.testing.assert_allclose(
    scale[:, None] * expected, y - np.array(means), rtol=1e-9, atol=1e-6
  )


@pytest.mark.parametrize('kind', _KINDS)
def test_norms_are_those_of_the_inverse(kind):
  found = _KINDS[kind].recursion()
  inverse = np.linalg.inv(_matrix(_KINDS[kind]))
  norms = np.linalg.norm(inverse, axis=1)
  # But for cut weights.
  np.testing.assert_allclose(found.row_norms, norms, rtol=1e-5)
  np.testing.assert_allclose(
    found.rho, np.max(norms / np.diag(inverse)), rtol=1e-5
  )
  assert found.max_scale == pytest.approx(np.max(np.diag(inverse)), rel=1e-12)


@pytest.mark.parametrize('kind', _KINDS)
def test_cutting_changes_columns_by_at_most_its_bound(kind):
  found = _KINDS[kind].recursion()
  noise = _run(found, np.eye(_ROUNDS), 1.0, rounding=lambda v: v)
  change = np.linalg.inv(noise) - _matrix(_KINDS[kind])
  moved = np.linalg.norm(change, axis=0).max()
  assert moved <= found.cut_norm * (1 + 1e-6) + 1e-12
  assert found.cut_norm < 1e-5


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
  assert 0 < squared <= fractions.Fraction(strategy.recursion().cut_norm) ** 2


def test_sums_with_cut_weights_are_exact_in_any_order():
  generator = np.random.default_rng(3)
  weights = recursion_lib.cut(generator.normal(size=(1, 500)), 450.0)[0]
  assert np.abs(weights).sum() <= 450
  y = generator.integers(-(2**31), 2**31, 500)
  exact = sum(int(w * 2**40) * int(v) for w, v in zip(weights, y)) / 2**40
  for _ in range(20):
    order = generator.permutation(500)
    assert float(np.cumsum(weights[order] * y[order])[-1]) == exact


@pytest.mark.parametrize('kind', ['blt', 'bisr', 'normalized bisr'])
def test_float64_moves_means_by_less_than_the_bound(kind):
  """Against the same recursion in rational arithmetic."""
  found = _KINDS[kind].recursion()
  table = found.table()
  z_steps = 2.0**16
  z = np.random.default_rng(4).normal(size=(_ROUNDS, 5))
  for column in z.T:
    memory = np.zeros(found.memory)
    exact = [fractions.Fraction(0)] * found.memory
    for t in range(_ROUNDS):
      p = found.phase(t)
      mean = float(table.readout[p] @ memory)
      true = sum(
        fractions.Fraction(w) * s for w, s in zip(table.readout[p], exact)
      )
      scale = table.scale[p]
      assert abs(mean - float(true)) <= found.shift * z_steps * scale
      y = np.rint(z_steps * scale * column[t] + mean)
      if found.keeps == recursion_lib.BUFFERS:
        memory = table.update[p] @ memory + table.gain[p] * y
        exact = [
          sum(fractions.Fraction(w) * s for w, s in zip(row, exact))
          + fractions.Fraction(g) * int(y)
          for row, g in zip(table.update[p], table.gain[p])
        ]
      else:
        memory = np.append((y - mean) / scale, memory[:-1])
        exact = [(int(y) - true) / fractions.Fraction(scale)] + exact[:-1]
  assert found.shift < 2.0**-35


@pytest.mark.parametrize(
  'strategy',
  [
    strategies.BandedToeplitz(600, np.poly([0.97] * 4)),
    strategies.Stamped(
      900, strategies.BandedToeplitz(600, np.poly([0.97] * 4))
    ),
  ],
  ids=lambda each: each.family,
)
def test_row_norms_are_those_of_cut_weights(strategy):
  found = strategy.recursion()
  noise = _run(found, np.eye(found.rounds), 1.0, rounding=lambda v: v)
  norms = np.linalg.norm(noise, axis=1)
  np.testing.assert_allclose(found.row_norms, norms, rtol=1e-5)
  assert found.rho == pytest.approx(max(norms), rel=1e-5)
  uncut = np.linalg.norm(np.linalg.inv(strategy.matrix()), axis=1)
  assert max(norms) > 1.001 * max(uncut) or max(norms) < 0.999 * max(uncut)


def test_shift_bounds_the_error_of_coarse_cells():
  """Roundings of y alone, all upwards, fill the buffer."""
  found = strategies.Blt(2000, [1e-3], [0.9999]).recursion()
  zeros = np.zeros((found.rounds, 1))
  y = _run(found, zeros, 1.0, rounding=lambda v: v + 0.5)[:, 0]
  largest = np.abs(scipy.signal.lfilter([1.0], [1.0, -0.9999], y)).max()
  assert largest > 14 * y.max()
  # Each round rounds the product and the sum.
  assert found.shift >= 2.0**-53 * 1e-3 * 2000 * 2 * largest


def test_shift_of_a_badly_conditioned_inverse_is_large():
  inverse = np.poly([0.99] * 4)
  found = strategies.BandedInverse(600, inverse).recursion()
  assert found.shift > 2.0**-25


def test_window_in_blocks_is_the_window_round_by_round():
  for kind in ('banded', 'bisr', 'normalized banded', 'stamped banded'):
    found = _KINDS[kind].recursion()
    z = np.random.default_rng(5).normal(size=(_ROUNDS, 7))
    y = _run(found, z, 1000.0)
    scale, far, near = found.block(9, 8)
    if found.keeps == recursion_lib.PAST_U:
      continue
    window = y[8::-1][: found.memory]
    made = np.zeros((8, 7))
    for r in range(8):
      mean = far[r, : len(window)] @ window + near[r] @ made
      made[r] = np.rint(1000.0 * scale[r] * z[9 + r] + mean)
    assert np.array_equal(made, y[9:17])


@pytest.mark.parametrize('kind', _KINDS)
def test_rounds_that_a_client_moves_are_counted(kind):
  """The slack of a run is for so many rounds; random rounds of a client."""
  rng = np.random.default_rng(0)
  moved = np.abs(_matrix(_KINDS[kind])) > 1e-12
  recursion = _KINDS[kind].recursion()
  for count in range(1, 6):
    for _ in range(20):
      rounds = rng.choice(_ROUNDS, count, replace=False)
      most = recursion.cells(count)
      assert moved[:, rounds].any(1).sum() <= most <= _ROUNDS


@pytest.mark.parametrize('kind', _KINDS)
def test_bounds_of_weights_in_pieces_are_those_of_the_whole(kind, monkeypatch):
  """As for more rounds than are in memory at one time."""

  def bounds():
    made = _KINDS[kind].recursion()
    return made.shift, made.cut_norm, made.rho, made.max_scale, *made.table()

  whole = bounds()
  monkeypatch.setattr(recursion_lib, '_ROWS', 3)
  for one, other in zip(bounds(), whole):
    np.testing.assert_allclose(one, other, rtol=1e-13)
