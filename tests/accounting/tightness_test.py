"""How near claims are to the truth, where all that chance can do is counted.

Claimed over true delta is never below 1, but for the integration, and not far
above. `samplers_test` shows that samplers draw by the very odds used here.
"""

import itertools
import math

import numpy as np
import pytest
import scipy.special

from tff_bandmf import accounting, strategies

_SAMPLES = accounting.Samples(200_000, 1e-8, 5)
# What the integration below is off by.
_GRID = 2e-3


def _odds(cohorts, rounds):
  """Returns the rounds of one client, each with its probability, by groups.

  A client knows its group, so that every group is a law of its own.
  """
  everything = list(itertools.product([0, 1], repeat=rounds))
  if cohorts.name == 'balls-in-bins':
    bins = cohorts.bins
    yield [
      ([float(t % bins == j) for t in range(rounds)], 1 / bins)
      for j in range(bins)
    ]
  elif cohorts.name == 'cyclic-poisson':
    q, groups = cohorts.sampling_prob, cohorts.groups
    for group in range(groups):
      turns = [t % groups == group for t in range(rounds)]
      yield [
        (
          pattern,
          math.prod(
            (q if taken else 1 - q)
            for taken, turn in zip(pattern, turns)
            if turn
          ),
        )
        for pattern in everything
        if not any(taken and not turn for taken, turn in zip(pattern, turns))
      ]
  else:
    p, b = cohorts.sampling_prob, cohorts.min_sep
    wait = p / (1 + (b - 1) * p) if cohorts.start == 'warm' else 0.0
    found = []
    for pattern in everything:
      total = 0.0
      for free, prob in enumerate([1 - (b - 1) * wait] + [wait] * (b - 1)):
        for t, taken in enumerate(pattern):
          if t < free:
            prob *= not taken
          else:
            prob *= p if taken else 1 - p
            free = t + b if taken else free
        total += prob
      found.append((pattern, total))
    yield found


def _true_delta(strategy, cohorts, z_stddev, epsilon):
  """Returns delta of the worst group, integrated over what is released."""
  worst = 0.0
  for law in _odds(cohorts, strategy.rounds):
    patterns, odds = zip(*((taken, prob) for taken, prob in law if prob))
    assert sum(odds) == pytest.approx(1)
    means = np.array(patterns, float) @ strategy.matrix().T / z_stddev
    # Only inner products count: as many dimensions as means span.
    _, values, axes = np.linalg.svd(means, full_matrices=False)
    means = means @ axes[values > 1e-9].T
    worst = max(worst, _integrated(means, np.array(odds), epsilon))
  return worst


def _integrated(means, odds, epsilon):
  axes = [
    np.linspace(min(0, m.min()) - 7, max(0, m.max()) + 7, 101) for m in means.T
  ]
  volume = math.prod(axis[1] - axis[0] for axis in axes)
  y = np.stack(np.meshgrid(*axes, indexing='ij'), -1).reshape(-1, len(axes))
  logs = y @ means.T - (means**2).sum(1) / 2
  ratio = np.exp(scipy.special.logsumexp(logs, axis=1, b=odds))
  q = np.exp(-(y**2).sum(1) / 2) / (2 * math.pi) ** (len(axes) / 2)
  scale = math.exp(epsilon)
  return volume * max(
    (np.maximum(ratio - scale, 0) * q).sum(),
    (np.maximum(1 - scale * ratio, 0) * q).sum(),
  )


_CASES = [
  (accounting.CyclicPoisson(0.3, 1), strategies.Identity(3), 1.02),
  (
    accounting.CyclicPoisson(0.2, 2),
    strategies.BandedToeplitz(6, [1.0, 0.6]),
    1.02,
  ),
  (
    accounting.BallsInBins(3),
    strategies.BandedToeplitz(6, [1.0, 0.6, 0.3]),
    1.06,
  ),
  (accounting.BMinSep(2, 0.3), strategies.BandedToeplitz(3, [1.0, 0.6]), 1.06),
  (
    accounting.BMinSep(2, 0.3, start='cold'),
    strategies.BandedToeplitz(3, [1.0, 0.6]),
    1.06,
  ),
]


@pytest.mark.slow
@pytest.mark.parametrize(('cohorts', 'strategy', 'most'), _CASES, ids=str)
@pytest.mark.parametrize(
  ('noise_multiplier', 'epsilon'), [(0.5, 2.0), (1.0, 0.5), (2.0, 0.1)]
)
@pytest.mark.deep(but=('2.0-0.1', '0.5-2.0-BMinSep'))
def test_claim_is_the_truth_and_little_more(
  cohorts, strategy, most, noise_multiplier, epsilon
):
  guarantee = accounting.Guarantee(
    strategy, cohorts, noise_multiplier, samples=_SAMPLES
  )
  true = _true_delta(strategy, cohorts, guarantee.z_stddev_per_clip, epsilon)
  claimed = guarantee.claim_at(epsilon).total
  print(f'{cohorts.name}: {claimed / true:.4f} of {true:.3g}')
  assert true * (1 - _GRID) <= claimed <= most * true + 1e-6
