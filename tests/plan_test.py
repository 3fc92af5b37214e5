"""Tests of the recursions y = C^-1 z against dense algebra."""

import numpy as np
import pytest

from tff_bandmf import noise, strategies
from tff_bandmf.noise import plan as plan_lib

_ROUNDS = 40


def _strategy(bands):
  coefficients = 0.9**np.arange(bands) / np.sqrt(1 + np.arange(bands))
  return strategies.BandedToeplitz(_ROUNDS, 2 * coefficients)


def _rows_of_many_sizes():
  """A banded C that is different in every round."""
  rng = np.random.default_rng(3)
  rows = rng.uniform(-0.4, 0.4, size=(_ROUNDS, 5))
  rows[:, 0] = rng.uniform(0.5, 2, _ROUNDS)
  return strategies.Banded(np.tril(np.ones((_ROUNDS, 5))) * rows)


_BLT = strategies.Blt(_ROUNDS, [0.3, 0.2], [0.95, 0.5])
_TREE = strategies.OnlineTree(_ROUNDS)
_FAMILIES = {
    'banded': (_rows_of_many_sizes(), plan_lib.PAST_Y, 4),
    'blt': (_BLT, plan_lib.BUFFERS, 2),
    'blt normalised': (
        strategies.ColumnNormalized(_BLT), plan_lib.BUFFERS, 2),
    'dp-cgd': (strategies.DpCgd(_ROUNDS, 0.8), plan_lib.PAST_Z, 1),
    'banded-inverse normalised': (
        strategies.ColumnNormalized(
            strategies.BandedInverse(_ROUNDS, [1.0, -0.5, -0.2])),
        plan_lib.PAST_Z, 2),
    'tree': (strategies.Tree(_ROUNDS), plan_lib.PAST_Y, 31),
    'online-tree': (_TREE, plan_lib.BUFFERS, 5),
    'stamped blt': (
        strategies.Stamped(_ROUNDS, strategies.Blt(7, [0.3], [0.9])),
        plan_lib.BUFFERS, 1),
    'stamped online-tree': (
        strategies.Stamped(_ROUNDS, strategies.OnlineTree(12)),
        plan_lib.BUFFERS, 3),
}


@pytest.mark.parametrize('bands', [1, 2, 3, 8, 17, 40])
@pytest.mark.parametrize('m', [1, 2, 3, 7, 16, 40])
def test_blocks_of_any_size_give_the_dense_noise(bands, m):
  strategy = _strategy(bands)
  plan = noise.Plan.of(strategy)
  z = np.random.default_rng(0).normal(size=(_ROUNDS, 5))
  y = np.zeros((0, 5))
  while len(y) < _ROUNDS:
    rounds = min(m, _ROUNDS - len(y))
    scale, weights = plan.block(len(y), rounds)
    assert scale.shape == (rounds, rounds)
    assert weights.shape == (rounds, bands - 1)
    assert scale.dtype == weights.dtype == np.float32
    past = np.zeros((bands - 1, 5))
    latest_first = y[::-1][:bands - 1]
    past[:len(latest_first)] = latest_first
    y = np.concatenate(
        [y, scale @ z[len(y):len(y) + rounds] + weights @ past])
  dense = np.linalg.solve(strategy.matrix(), z)
  np.testing.assert_allclose(y, dense, rtol=0, atol=3e-6)


@pytest.mark.parametrize('name', _FAMILIES)
def test_plan_keeps_as_little_as_the_family_needs(name):
  strategy, keeps, memory = _FAMILIES[name]
  plan = noise.Plan.of(strategy)
  assert (plan.keeps, plan.memory) == (keeps, memory)
  assert plan.rounds == _ROUNDS


@pytest.mark.parametrize('name', _FAMILIES)
def test_table_holds_the_blocks_of_one_round(name):
  plan = noise.Plan.of(_FAMILIES[name][0])
  scales, weights = plan.table()
  assert len(scales) == len(weights) == plan.phases
  assert scales.nbytes + weights.nbytes == plan.table_bytes
  start = 10 if 'blt' in name else 0  # A BLT's round 0 is any stamp's.
  for t in range(start, _ROUNDS):
    scale, weight = plan.block(t, 1)
    draws = plan.first_draw(t + 1) - plan.first_draw(t)
    phase = plan.phase(t)
    np.testing.assert_array_equal(scales[phase][:, :draws], scale)
    assert not np.any(scales[phase][:, draws:])
    np.testing.assert_array_equal(weights[phase], weight)


@pytest.mark.parametrize('name', _FAMILIES)
def test_rounds_draw_every_z_once(name):
  plan = noise.Plan.of(_FAMILIES[name][0])
  first = [plan.first_draw(t) for t in range(_ROUNDS + 1)]
  counts = np.diff(first)
  assert first[0] == 0 and counts.min() >= 1
  assert counts.max() <= plan.draws


@pytest.mark.parametrize('rounds', [1, 2, 3, 8, 40])
def test_online_tree_draws_the_nodes_of_its_decoder(rounds):
  tree = strategies.OnlineTree(rounds)
  plan = noise.Plan.of(tree)
  decoder = tree.prefix_decoder()
  assert plan.first_draw(rounds) == decoder.shape[1]
  for t in range(rounds):
    # A node has no weight before the round that finishes it.
    assert not np.any(decoder[t, plan.first_draw(t + 1):])
    assert np.all(decoder[t, plan.first_draw(t):plan.first_draw(t + 1)])


def test_toeplitz_table_does_not_grow_with_the_rounds():
  for rounds in (40, 10**9):
    plan = noise.Plan.of(strategies.BandedToeplitz(rounds, [1.0, 0.5, 0.2]))
    assert plan.table_bytes == 12
    assert plan.block(rounds - 16, 16)[1].shape == (16, 2)


def test_identity_passes_z_through():
  plan = noise.Plan.of(strategies.Identity(_ROUNDS))
  assert plan.memory == 0
  scale, weights = plan.block(0, 3)
  assert np.array_equal(scale, np.eye(3)) and weights.shape == (3, 0)


def test_name_of_the_noise_differs_with_all_it_is_made_of():
  keys = [noise.Key.from_seed(seed) for seed in (1, 2)]
  names = {
      noise.Plan.of(_strategy(bands)).identify(key, dimension, generator)
      for bands in (3, 4) for key in keys for dimension in (5, 6)
      for generator in (noise.PHILOX, noise.AES_CTR)}
  assert len(names) == 16
  assert noise.Plan.of(_strategy(3)).identify(
      keys[0], 5, noise.PHILOX) in names
