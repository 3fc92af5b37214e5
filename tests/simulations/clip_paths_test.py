"""Tests of what is said of clips that moved."""

import numpy as np

from simulations import clip_paths
from tff_bandmf import strategies


def test_noise_that_no_longer_cancels_is_that_of_the_sum():
  strategy = strategies.BandedToeplitz(5, [1.0, 0.6, 0.3])
  path = np.array([3.0, 2.0, 2.5, 0.7, 0.7])
  found = clip_paths.noise_of_sums(strategy, path)
  inverse = np.linalg.inv(strategy.matrix())
  for t in range(5):
    sums = np.cumsum(inverse, 0)
    total = path[: t + 1] @ inverse[: t + 1]
    moving = (path[1 : t + 1] - path[:t]) @ sums[:t]
    np.testing.assert_allclose(total, path[t] * sums[t] - moving, atol=1e-12)
    for name, row in (
      ('total', total),
      ('constant', path[t] * sums[t]),
      ('moving', moving),
    ):
      np.testing.assert_allclose(found[name][t], np.linalg.norm(row))
  still = clip_paths.noise_of_sums(strategy, np.full(5, 2.0))
  np.testing.assert_allclose(still['moving'], 0, atol=1e-12)
