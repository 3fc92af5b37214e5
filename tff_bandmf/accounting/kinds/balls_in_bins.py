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
import scipy.special
from scipy.linalg import blas

from tff_bandmf import _checks, strategies
from tff_bandmf.accounting.methods import accountants, importance

# Number of float64 values in one block of rows of C.
_BLOCK_ENTRIES = 2**22


class BallsInBinsMixture(importance.Mixture):
  """The mixture P for a Gram matrix G, [b, b] float64, positive definite."""

  def __init__(self, gram: np.ndarray, z_stddev: float):
    self._gram = gram / z_stddev**2
    self._factor = np.asfortranarray(np.linalg.cholesky(self._gram))
    self._squares = np.diag(self._gram)
    self.mean_square = float(self._squares.mean())
    self.square_mean = float(self._gram.mean())
    self.entries = 4 * len(gram)

  def _log_tilts(self, tilt: importance.Tilt) -> np.ndarray:
    """Returns the log weight t of each bin, or of each pair for two copies.

    The docstring of the module `importance` defines t.
    """
    a = tilt.factor
    tilts = a * (a - 1) / 2 * self._squares
    if tilt.copies == 1:
      return tilts
    return tilts[:, None] + tilts + a**2 * self._gram

  def _noise(self, rng, count):
    """Returns <m_j, s w> / s^2 for normal vectors w, [count, b] float64."""
    z = rng.standard_normal((count, len(self._gram)))
    return blas.dtrmm(1.0, self._factor, z.T, lower=1, overwrite_b=1).T

  def _log_mean(self, scaled: np.ndarray) -> np.ndarray:
    """Returns ln of the mean of e^scaled over bins, [count]."""
    top = scaled.max(axis=1)
    return top + np.log(np.exp(scaled - top[:, None]).mean(axis=1))

  def log_normalizer(self, tilt):
    return float(
      scipy.special.logsumexp(self._log_tilts(tilt))
      - tilt.copies * math.log(len(self._gram))
    )

  def remove(self, tilt, epsilon):
    a, tilts = tilt.factor, self._log_tilts(tilt)
    prior = scipy.special.softmax(tilts.ravel())

    def draw(rng, count):
      drawn = rng.choice(len(prior), size=count, p=prior)
      losses = self._noise(rng, count)
      for bins in np.unravel_index(drawn, tilts.shape):
        losses += a * self._gram[bins]
      losses -= self._squares / 2
      loss = self._log_mean(losses)
      tilted = loss.copy()
      if a > 1:
        above = loss > epsilon
        tilted[above] = self._log_mean(a * losses[above])
      return loss, tilted

    return draw

  def sample_add(self, rng, count, kappa):
    products = self._noise(rng, count)
    products -= kappa * self._gram.mean(axis=0)
    return (self._log_mean(products - self._squares / 2), products.mean(axis=1))


def bin_gram(strategy: strategies.Strategy, bins: int) -> np.ndarray:
  """Returns G, the inner products of the contributions of the bins.

    G_ij = <m_i, m_j>,  m_j = sum_e C[:, j + e b]

  Args:
    strategy: C, without negative entries.
    bins: b, number of bins, from 1 to the rounds of C.

  Returns:
    [b, b] float64.

  Raises:
    ValueError: `bins` is out of range, or C has a negative entry.
  """
  _checks.count('bins', bins, 'rounds of an epoch')
  rounds, bands = strategy.rounds, strategy.bands
  _checks.at_most(
    'bins', bins, rounds, 'rounds', 'a bin without a round never takes part'
  )
  gram = np.zeros((bins, bins))
  block = max(1, _BLOCK_ENTRIES // max(bands, bins))
  for start in range(0, rounds, block):
    rows = strategy.band_rows(start, min(start + block, rounds))
    accountants.check_nonnegative(np.min(rows))
    # row[d] is C[t, t - d]. Column t - d is a round of bin (t - d) mod b. For
    # d > t there is no such column, and row[d] is 0.
    sums = np.stack(
      [
        np.bincount((t - np.arange(bands)) % bins, weights=row, minlength=bins)
        for t, row in enumerate(rows, start)
      ]
    )
    gram += sums.T @ sums
  return gram
