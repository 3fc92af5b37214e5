"""Amplification by balls-in-bins sampling, for non-negative strategies.

| symbol | name here | meaning                                              |
|--------|-----------|------------------------------------------------------|
| n      | `rounds`  | rounds of the strategy C                             |
| b      | `bins`    | number of bins; an epoch has one round for each bin  |
| J      |           | bin of a client, uniform, drawn once for the run     |
| m_j    |           | sum_e C[:, j + e b], contribution of a client of bin j |
| G      | `gram`    | [b, b], <m_i, m_j>                                   |
| s      | `z_stddev` | standard deviation of the noise z, for a clip of 1  |

A client of bin J takes part in rounds J, J + b, J + 2 b, ... and in no others.
For a lower-triangular C >= 0 and gradients that may depend on earlier releases,
the run is dominated by the pair [BnB24, Sec 3]

  P = (1/b) sum_j N(m_j, s^2)   against   Q = N(0, s^2),

whose privacy loss at y is

  L = logsumexp_j((2 <m_j, y> - |m_j|^2) / (2 s^2)) - ln b.

L depends on y only through the b products <m_j, y>. For y = a m_J + s w, with a
number a and a standard normal vector w, these products have the distribution of

  a G[:, J] + s chol(G) v,

where v is a standard normal vector of b entries. The module `importance` draws
random values whose mean is delta, and `monte_carlo` computes an upper bound of
delta from them. Delta never exceeds the delta of the run without amplification,
whose sensitivity is max_j |m_j|.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.linalg import blas

from tff_bandmf import _checks, strategies
from tff_bandmf.accounting.methods import accountants, importance

# Number of float64 values in one block of rows of C.
_BLOCK_ENTRIES = 2**22
# Bound of the float32 error of a privacy loss near epsilon.
_ROUGH = 1e-2
# `BallsInBinsMixture.remove` draws a bin for each copy, see `importance`. This
# is the largest logarithm of a weight of a bin, if the largest weight for the
# first copy is 1.
_LARGEST_LOG = 300.0


class BallsInBinsMixture(importance.Mixture):
  """The mixture P for a Gram matrix G, [b, b] float64, positive definite."""

  def __init__(self, gram: np.ndarray, z_stddev: float):
    self._gram = gram / z_stddev**2
    self._factor = np.asfortranarray(np.linalg.cholesky(self._gram))
    self._squares = np.diag(self._gram)
    self.mean_square = float(self._squares.mean())
    self.square_mean = float(self._gram.mean())
    self.entries = 6 * len(gram)

  def _noise(self, rng, count):
    """Returns <m_j, s w> / s^2 for normal vectors w, [count, b] float64."""
    z = rng.standard_normal((count, len(self._gram)))
    return blas.dtrmm(1.0, self._factor, z.T, lower=1, overwrite_b=1).T

  def _log_mean(self, scaled: np.ndarray) -> np.ndarray:
    """Returns ln of the mean of e^scaled over bins, [count]."""
    top = scaled.max(axis=1)
    return top + np.log(np.exp(scaled - top[:, None]).mean(axis=1))

  def _losses(
    self, losses: np.ndarray, epsilon: float, sign: int
  ) -> tuple[np.ndarray, np.ndarray]:
    """Returns L, [count], and the rows whose value may be above 0.

    The value of a row is its term in the mean that gives delta.

    Args:
      losses: [count, b] float64, privacy loss of each bin at y.
      epsilon: the epsilon at which delta is computed.
      sign: 1 if values are above 0 for L > epsilon, -1 for -L > epsilon.
    """
    # PRIVACY: L in float32 has an error, and a value above 0 that counts as 0
    # would make delta too small. A draw counts as 0 only if its L in float32 is
    # below the threshold by at least `_ROUGH`, which exceeds this error. All
    # other draws get L in float64.
    # Guard: balls_in_bins_test.test_rough_losses_drop_no_value_above_0.
    loss = self._log_mean(losses.astype(np.float32)).astype(np.float64)
    above = np.flatnonzero(sign * loss > epsilon - _ROUGH)
    loss[above] = self._log_mean(losses[above])
    return loss, above

  def log_normalizer(self, tilt):
    a = tilt.factor
    logs = np.broadcast_to(a * (a - 1) / 2 * self._squares, self._gram.shape)
    total = 0.0
    # PRIVACY: The module `importance` defines Z_j, A and the bound B. If a
    # product Z_1 ... Z_r exceeded A, a value could exceed B, and the bound of
    # delta could be too low. Each factor of A is the largest Z_j over bins, if
    # all earlier copies are in the same bin.
    # Guard: importance_test.test_normalizer_of_bins_is_at_least_each_product.
    for _ in range(tilt.copies):
      top = logs.max()
      total += top + math.log(np.exp(logs - top).mean(axis=1).max())
      logs = logs + a**2 * self._gram
    first = a * (a - 1) / 2 * self._squares.max()
    return total if top - first < _LARGEST_LOG else math.inf

  def remove(self, tilt, epsilon):
    a, bins = tilt.factor, len(self._gram)
    # The first draw chooses a group of bins by the sum of its weights.
    size = math.isqrt(bins - 1) + 1
    groups = -(-bins // size)
    padding = groups * size - bins
    exponents = a * (a - 1) / 2 * self._squares
    top = exponents.max()
    first = np.pad(np.exp(exponents - top), (0, padding))
    with np.errstate(over='ignore'):
      # With one copy, no later draw uses the gains, so they may overflow.
      gains = np.exp(a**2 * np.pad(self._gram, ((0, 0), (0, padding))))
    in_group = np.kron(np.eye(groups), np.ones((size, 1)))

    def drawn_bins(rng, weights):
      """Returns a bin for each row of weights, and the sums of the weights."""
      rows = np.arange(len(weights))
      ends = np.cumsum(weights @ in_group, axis=1)
      rest = rng.random((len(rows), 1)) * ends[:, -1:]
      group = np.minimum((ends <= rest).sum(axis=1), groups - 1)
      rest -= np.pad(ends, ((0, 0), (1, 0)))[rows, group][:, None]
      inside = np.cumsum(weights.reshape(-1, groups, size)[rows, group], axis=1)
      drawn = group * size + (inside <= rest).sum(axis=1)
      return np.minimum(drawn, bins - 1), ends[:, -1]

    # PRIVACY: The weight of a sample is a product over all copies. If a factor
    # were missing, the average could be below delta.
    # Guard:
    # importance_test.test_values_respect_their_bound_and_average_to_delta.
    def draw(rng, count):
      rows, taken = np.arange(count), np.zeros((count, bins))
      weights = np.tile(first, (count, 1))
      log_product = np.full(count, tilt.copies * (top - math.log(bins)))
      for _ in range(tilt.copies):
        drawn, sums = drawn_bins(rng, weights)
        with np.errstate(over='ignore', invalid='ignore'):
          weights *= gains[drawn]
        taken[rows, drawn] += a
        log_product += np.log(sums)
      losses = self._noise(rng, count)
      losses += taken @ self._gram
      losses -= self._squares / 2
      loss, above = self._losses(losses, epsilon, 1)
      tilted = loss.copy()
      if a > 1:
        tilted[above] = self._log_mean(a * losses[above])
      return loss, tilted, log_product

    return draw

  def sample_add(self, rng, count, kappa, epsilon):
    products = self._noise(rng, count)
    products -= kappa * self._gram.mean(axis=0)
    loss, _ = self._losses(products - self._squares / 2, epsilon, -1)
    return loss, products.mean(axis=1)


# PRIVACY: If an inner product of two bins were too small, privacy losses would
# be too small. G has the inner products of the sums of columns of each bin.
# Guard: balls_in_bins_test.test_gram_is_that_of_the_bins.
def bin_gram(strategy: strategies.Strategy, bins: int) -> np.ndarray:
  """Returns G, the inner products of the contributions of the bins.

    G_ij = <m_i, m_j>,  m_j = sum_e C[:, j + e b]

  Args:
    strategy: C, without negative entries.
    bins: b, number of bins, from 1 to the rounds of C.

  Returns:
    [b, b] float64.

  Raises:
    ValueError: `bins` exceeds the number of rounds, or C has a negative entry.
  """
  rounds, bands = strategy.rounds, strategy.bands
  _checks.at_most('bins', bins, rounds, 'rounds', 'use fewer')
  gram = np.zeros((bins, bins))
  block = max(1, _BLOCK_ENTRIES // max(bands, bins))
  for start in range(0, rounds, block):
    rows = strategy.band_rows(start, min(start + block, rounds))
    accountants.check_nonnegative(np.min(rows))
    # row[d] is C[t, t - d], and column t - d belongs to bin (t - d) mod b. For
    # d > t there is no such column, and row[d] is 0.
    sums = np.stack(
      [
        np.bincount((t - np.arange(bands)) % bins, weights=row, minlength=bins)
        for t, row in enumerate(rows, start)
      ]
    )
    gram += sums.T @ sums
  return gram
