"""Exact laws of whole runs on a coarse lattice, against the Gaussian claim.

Every release of a few rounds is enumerated, with data that adapt to releases.
"""

import math

import numpy as np
import pytest
import scipy.special
import small_sampler

from tff_bandmf import accounting, participation, sensitivity, strategies
from tff_bandmf.accounting.arithmetic import cells as cells_lib
from tff_bandmf.accounting.arithmetic import slack

_ndtr = scipy.special.ndtr

# Standard deviation of z and norm of a record, in steps.
_Z_STEPS, _CLIP = 2.5, 2


def _cells(left, right):
  flip = left > 0
  return np.where(
    flip, _ndtr(-left) - _ndtr(-right), _ndtr(right) - _ndtr(left)
  )


def _law(recursion, sums, cells=_cells, reach=22):
  """Returns the probability of every release, [., ...] one axis a round.

  Args:
    recursion: of the noise.
    sums: (t, past releases) -> sum of round t, in steps.
    cells: (left, right) -> probability of z between.
    reach: releases are within it.
  """
  grid = np.arange(-reach, reach + 1)
  table = recursion.table()
  memory = np.zeros((recursion.memory,))
  probability, past = np.ones(()), []
  for t in range(recursion.rounds):
    phase = recursion.phase(t)
    scale = table.scale[phase]
    mean = np.tensordot(table.readout[phase], memory, 1)
    y = grid - np.asarray(sums(t, past))[..., None]
    offset = y - mean[..., None]
    width = _Z_STEPS * scale
    probability = probability[..., None] * cells(
      (offset - 0.5) / width, (offset + 0.5) / width
    )
    memory = np.broadcast_to(memory[..., None], (*memory.shape, len(grid)))
    y = np.broadcast_to(y, probability.shape)
    if recursion.keeps == 'buffers':
      memory = np.tensordot(table.update[phase], memory, 1) + (
        np.multiply.outer(table.gain[phase], y)
      )
    elif recursion.memory:
      newest = y if recursion.keeps == 'y' else offset / scale
      newest = np.broadcast_to(newest, probability.shape)
      memory = np.concatenate([newest[None], memory[:-1]])
    past = [np.broadcast_to(x[..., None], probability.shape) for x in past]
    past.append(np.broadcast_to(grid, probability.shape))
  return probability


def _fixed(t, past):
  del past
  return (1, -1, 2)[t]


def _adaptive(t, past):
  """The sum of others follows releases."""
  return np.sign(past[0]) - past[-1] % 3 if t else 1


def _signs(t, past):
  """A client that sends what the last bit of the release before it says."""
  return _CLIP * (2 * (past[-1] % 2) - 1) if t else _CLIP


def _same(t, past):
  del t, past
  return _CLIP


def _opposite(t, past):
  del past
  return _CLIP * (-1) ** t


_STRATEGIES = [
  strategies.Identity(2),
  strategies.BandedToeplitz(2, [1.0, 0.5]),
  strategies.BandedToeplitz(3, [1.0, -0.6, 0.3]),
  strategies.Dense(np.array([[1.5, 0.0], [0.7, 0.8]])),
  strategies.BandedInverse(3, [1.0, -0.5]),
  strategies.Blt(2, [0.5], [0.3]),
  strategies.Blt(3, [0.4], [0.6]),
  strategies.OnlineTree(2),
  strategies.OnlineTree(3),
]


@pytest.mark.parametrize('others', [_fixed, _adaptive])
@pytest.mark.parametrize('client', [_signs, _same, _opposite])
@pytest.mark.parametrize('strategy', _STRATEGIES, ids=lambda each: each.family)
def test_rounded_runs_have_the_gaussian_guarantee(strategy, client, others):
  schema = participation.MinSep(1, strategy.rounds)
  recursion = strategy.recursion()
  without = _law(recursion, others)
  present = _law(recursion, lambda t, past: others(t, past) + client(t, past))
  bound = sensitivity.sensitivity(strategy, schema).value * (
    1 + 3 * recursion.cut_norm
  )
  for epsilon in (0.0, 0.5, 1.0, 2.0, 4.0):
    claimed = accounting.gaussian_delta(_Z_STEPS / (_CLIP * bound), epsilon)
    for first, second in ((without, present), (present, without)):
      lost = 1 - first.sum()
      delta = np.maximum(0, first - math.exp(epsilon) * second).sum()
      assert lost < 1e-3 * max(claimed, 1e-9) or lost < 1e-6
      assert delta <= claimed + 1e-12


@pytest.mark.slow
@pytest.mark.parametrize(
  'strategy',
  [strategies.BandedToeplitz(2, [1.0, 0.5]), strategies.OnlineTree(2)],
  ids=lambda each: each.family,
)
def test_claim_holds_for_small_generators(monkeypatch, strategy):
  """Words of 18 bits, extended by 13, and the slack of just these words."""
  monkeypatch.setattr(cells_lib, '_SELF_TEST', 0.0)
  sampler = small_sampler.Sampler(18, more=13, below=7)
  recursion = strategy.recursion()
  bound = sensitivity.sensitivity(strategy, participation.MinSep(1, 2)).value

  def cells(left, right):
    return sampler.beyond(left) - sampler.beyond(right)

  def laws(cells):
    return _law(recursion, _adaptive, cells), _law(
      recursion, lambda t, past: _adaptive(t, past) + _signs(t, past), cells
    )

  sums = cells_lib.Arithmetic(
    cells=2, rho=recursion.rho, shift=0.0, feedback=0.0, rounds=2,
    dimension=1, cell_width=1 / (recursion.max_scale * _Z_STEPS),
    words=sampler.words,
  )  # fmt: skip
  exact, computed = laws(_cells), laws(cells)
  noise = _Z_STEPS / (_CLIP * bound)
  for delta in (1e-1, 1e-2):
    # A tenth of delta is left for the exact run at least.
    most_epsilon = accounting.gaussian_epsilon(noise, delta / 10)
    cost = slack.slack((sums,), most_epsilon, delta, largest=0.9)
    exact_epsilon = accounting.gaussian_epsilon(noise, cost.exact_delta)
    assert exact_epsilon <= most_epsilon
    for pair, epsilon, most in (
      (exact, exact_epsilon, cost.exact_delta),
      (computed, exact_epsilon + cost.epsilon, delta),
    ):
      for first, second in (pair, pair[::-1]):
        assert np.maximum(0, first - math.exp(epsilon) * second).sum() <= most


def test_every_word_counts_once():
  sampler = small_sampler.Sampler(12, more=4, below=5)
  edges = np.array([-np.inf, -1.0, 0.0, 0.3, np.inf])
  found = sampler.beyond(edges[:-1]) - sampler.beyond(edges[1:])
  assert found.sum() == 1
  assert found == pytest.approx(_cells(edges[:-1], edges[1:]), abs=2.0**-11)
