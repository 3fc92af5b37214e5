"""Exact laws of whole runs on a coarse lattice, against the Gaussian claim.

Every release of a few rounds is enumerated, with data that adapt to releases:
by the probabilities of intervals, and by running the producer with all words of
a few bits.
"""

import fractions
import itertools
import math

import families
import numpy as np
import pytest
import scipy.special

from tff_bandmf import (
  accounting,
  noise,
  participation,
  sensitivity,
  strategies,
)
from tff_bandmf.noise import generator
from tff_bandmf.noise.producer import stream
from tff_bandmf.strategies import recursion as recursion_lib

_ndtr, _ndtri = scipy.special.ndtr, scipy.special.ndtri

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
  probability, past = np.ones(()), []
  # y of earlier rounds, the latest first.
  earlier = []
  for t in range(recursion.rounds):
    scale = float(recursion.ideal(_Z_STEPS, t, [0] * t).factors[0])
    mean = sum(
      (_mean_weight(recursion, t, s) * y for s, y in enumerate(earlier)),
      np.zeros(()),
    )
    y = grid - np.asarray(sums(t, past))[..., None]
    offset = y - np.asarray(mean)[..., None]
    probability = probability[..., None] * cells(
      (offset - 0.5) / scale, (offset + 0.5) / scale
    )
    shape = probability.shape
    earlier = [np.broadcast_to(each[..., None], shape) for each in earlier]
    earlier.insert(0, np.broadcast_to(y, shape))
    past = [np.broadcast_to(x[..., None], shape) for x in past]
    past.append(np.broadcast_to(grid, shape))
  return probability


def _mean_weight(recursion, t, s):
  """Returns the weight of y_{t-1-s} in m_t, from `ideal`, which is linear."""
  past = [int(each == s) for each in range(t)]
  return float(recursion.ideal(_Z_STEPS, t, past, 400).mean)


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
  bound = sensitivity.sensitivity(strategy, schema).value
  for epsilon in (0.0, 0.5, 1.0, 2.0, 4.0):
    claimed = accounting.gaussian_delta(_Z_STEPS / (_CLIP * bound), epsilon)
    for first, second in ((without, present), (present, without)):
      lost = 1 - first.sum()
      delta = np.maximum(0, first - math.exp(epsilon) * second).sum()
      assert lost < 1e-3 * max(claimed, 1e-9) or lost < 1e-6
      assert delta <= claimed + 1e-12


def _matrix(recursion, z_steps):
  """Returns C in fractions: without rounding, C y is z_steps z."""
  n = recursion.rounds
  rows = []
  for t in range(n):
    ideal = recursion.ideal(z_steps, t, [0] * t)
    if recursion.keeps == recursion_lib.PAST_Z:
      # Row t of R = C^-1, whose inverse follows row by row.
      r = [f / fractions.Fraction(z_steps) for f in ideal.factors[: t + 1]]
      row = [
        -sum(r[t - u] * rows[u][s] for u in range(max(s, t - len(r) + 1), t))
        / r[0]
        for s in range(t)
      ]
      rows.append([*row, 1 / r[0]])
      continue
    scale = ideal.factors[0] / fractions.Fraction(z_steps)
    means = [
      recursion.ideal(
        z_steps, t, [int(u == t - 1 - s) for u in range(t)], 600
      ).mean
      for s in range(t)
    ]
    rows.append([*(-mean / scale for mean in means), 1 / scale])
  return rows


@pytest.mark.parametrize('name', families.made(6))
@pytest.mark.parametrize('z_steps', [0.7, 2.5, 1000.3])
def test_releases_are_a_function_of_the_gaussian_mechanism(name, z_steps):
  """Sums that differ, with normals that make up for it, have equal releases.

  If C S + z_steps Z is the same for two paths of sums, all releases are, for
  data that adapt to releases in any way.
  """
  strategy = families.made(6)[name]
  recursion = strategy.recursion()
  c = _matrix(recursion, z_steps)
  np.testing.assert_allclose(
    [[float(x) for x in row] + [0.0] * (6 - len(row)) for row in c],
    strategy.matrix(),
    rtol=1e-9,
    atol=1e-9,
  )
  size = fractions.Fraction(z_steps)
  generator = np.random.default_rng(3)
  for _ in range(10):
    z = [fractions.Fraction(x) for x in generator.normal(size=6)]
    paths = [[], []]
    for path, adapts in zip(paths, (3, 5)):
      sums, moved, noise = [], [], []
      for t in range(6):
        last = path[-1] if path else 1
        sums.append(0 if adapts == 3 else (last * adapts) % 17 - 8)
        moved.append(z[t] - sum(c[t][s] * sums[s] for s in range(t + 1)) / size)
        ideal = recursion.ideal(z_steps, t, noise[::-1], 600)
        v = ideal.mean + sum(
          factor * moved[t - s] for s, factor in enumerate(ideal.factors)
        )
        noise.append(math.floor(v + fractions.Fraction(1, 2)))
        path.append(sums[t] + noise[t])
    assert paths[0] == paths[1]


class _ShortWords:
  """Words of a few bits, chosen for each coordinate.

  A word of b bits has a magnitude m below 2^(b - 1) and a sign, and V is
  (2 m + 1) / 2^(b + 1).
  """

  def __init__(self, monkeypatch, bits):
    self.bits, self.number = bits, 2**bits
    # [rounds, coordinates] numbers of words; the lowest bit is the sign.
    self.chosen = np.zeros((0, 1), np.int64)
    monkeypatch.setattr(generator.Generator, 'words', self._words)

  def _words(self, row, start, count, stream=generator.WORDS):
    words = np.zeros(count, np.uint64)
    if stream == generator.WORDS:
      chosen = self.chosen[row, start : start + count].astype(np.uint64)
      magnitude = (2 * (chosen >> 1) + 1) << (63 - self.bits)
      words[: len(chosen)] = magnitude << 1 | chosen & 1
    return words

  def normals(self):
    """Returns z of each word, [2^b]."""
    number = np.arange(self.number)
    z = _ndtri((2 * (number >> 1) + 1) / 2.0 ** (self.bits + 1))
    return np.where(number & 1, -z, z)


def _enumerated(words, strategy, merge):
  """Runs the producer with all words; returns {(y_0, ..., y_{n-1}): number}.

  Args:
    words: `_ShortWords`.
    strategy: C.
    merge: whether y is a function of past y and of the word of its round, so
      that one of the pasts with the same y stands for all.
  """
  chosen, numbers = np.zeros((0, 1), np.int64), np.ones(1, np.int64)
  for t in range(strategy.rounds):
    last = np.tile(np.arange(words.number), len(numbers))
    chosen = np.vstack([np.repeat(chosen, words.number, 1), last])
    numbers = np.repeat(numbers, words.number)
    words.chosen = chosen
    made = stream.Stream(
      strategy.recursion(), _Z_STEPS, chosen.shape[1], noise.Key.from_seed(1)
    )
    # Words of later rounds are not chosen yet, and y of them is not used.
    made.block_rounds = 1
    rows = (y.copy() for y in made.rows() if y is not None)
    y = np.stack(list(itertools.islice(rows, t + 1))).astype(np.int64)
    if merge or t == strategy.rounds - 1:
      first, numbers = _counted(y, numbers)
      y, chosen = y[:, first], chosen[:, first]
  return dict(zip(map(tuple, y.T.tolist()), numbers.tolist()))


def _counted(columns, numbers):
  """Returns the first of equal columns, and the sums of their numbers."""
  codes = sum((row + 2**9) << 10 * t for t, row in enumerate(columns))
  _, first, place = np.unique(codes, return_index=True, return_inverse=True)
  return first, np.bincount(place, numbers).astype(np.int64)


def _of_theorem(words, strategy, sums):
  """Returns {(x_0, ..., x_{n-1}): number of words} by the theorem.

  With r = C S + z_steps z and q = S + z_steps C^-1 z:
    feedback             x_t = RN((r_t - sum_s C[t,s] x_s) / C[t,t])
    few bands of C^-1    x_t = RN(q_t)
  """
  c, z = strategy.matrix(), words.normals()
  n, inverse = strategy.rounds, np.linalg.inv(c)
  runs = {(): ((), 1)}
  if strategy.inverse_bands is not None:
    grid = np.stack(np.meshgrid(*[z] * n, indexing='ij')).reshape(n, -1)
    x = []
    for t in range(n):
      q = sums(t, x) + _Z_STEPS * (inverse[t, : t + 1] @ grid[: t + 1])
      x.append(_nearest(q).astype(int))
    x = np.array(x)
    first, counts = _counted(x, np.ones(x.shape[1]))
    return dict(zip(map(tuple, x[:, first].T.tolist()), counts.tolist()))
  for t in range(n):
    longer = {}
    for x, (past, number) in runs.items():
      total = (*past, int(sums(t, x)))
      r = c[t, : t + 1] @ total + _Z_STEPS * z
      v = (r - c[t, :t] @ np.array(x)) / c[t, t]
      values, counts = np.unique(_nearest(v), return_counts=True)
      for value, count in zip(values.tolist(), counts.tolist()):
        longer[(*x, int(value))] = total, number * count
    runs = longer
  return {x: number for x, (_, number) in runs.items()}


def _nearest(v):
  """Returns RN(v), where float64 decides it."""
  assert np.abs(np.abs(v - np.rint(v)) - 0.5).min() > 1e-12
  return np.floor(v + 0.5)


@pytest.mark.slow
@pytest.mark.parametrize(
  'strategy, bits',
  [
    *((each, 14 if each.rounds == 2 else 10) for each in _STRATEGIES),
    # Nothing stands for other normals here, so words are fewer.
    (strategies.DpCgd(2, 0.7), 10),
    (strategies.BandedInverseSqrt(3, 3), 7),
  ],
  ids=lambda each: getattr(each, 'family', each),
)
def test_producer_has_the_law_of_the_theorem(monkeypatch, strategy, bits):
  words = _ShortWords(monkeypatch, bits)
  noise_law = _enumerated(words, strategy, strategy.inverse_bands is None)
  assert sum(noise_law.values()) == words.number**strategy.rounds
  for sums in (_fixed, _adaptive, _signs):
    law = {}
    for y, number in noise_law.items():
      x = ()
      for t, added in enumerate(y):
        x = (*x, int(sums(t, x)) + added)
      law[x] = number
    assert law == _of_theorem(words, strategy, sums), sums
