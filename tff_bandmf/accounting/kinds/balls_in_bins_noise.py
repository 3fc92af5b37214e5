"""The noise that balls in bins need, from fixed samples; see `needed_noise`.

The variable of the search is G, the Gram matrix of the bins; the module
`balls_in_bins` defines G and m_j. K is G / s^2. A sample of y enters only
through the products

  x = <m_j, y> = V chol(K)^T + a K[J] + kappa mean(K)

for a fixed bin J and a fixed row of normals V. These products and their
exponentials are float32, since no claim is computed from them.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import scipy.linalg
import scipy.sparse
import scipy.special
from scipy.linalg import blas

from tff_bandmf.accounting.kinds import balls_in_bins
from tff_bandmf.accounting.methods import accountants, needed_noise


class BallsInBinsNoise(needed_noise.NeededNoise):
  """The noise that a target needs under balls in bins; see `NeededNoise`."""

  degree = 2

  def __init__(self, rounds: int, epsilon: float, delta: float, bins: int):
    super().__init__(rounds, epsilon, delta, width=bins)
    self._bins = bins
    rng = np.random.default_rng(self.seed)
    self.normals = rng.standard_normal((self._count, bins), np.float32)
    # The permutation makes the first samples cover all bins.
    self.uniforms = rng.permutation(np.arange(self._count) + 0.5)
    self.uniforms /= self._count

  def to_dict(self):
    return {**super().to_dict(), 'bins': self._bins}

  def _of_strategy(self, strategy):
    column = strategy.first_column()
    if column is not None:
      accountants.check_nonnegative(np.min(column))
      return self._of_column(column)[0]
    return balls_in_bins.bin_gram(strategy, self._bins)

  def _log_scale(self, variable):
    return math.log(np.diag(variable).max()) / 2

  def _of_column(self, column):
    bins, rounds = self._bins, self.rounds
    sums = np.zeros(-(-rounds // bins) * bins)
    sums[: len(column)] = column
    sums = np.cumsum(sums.reshape(-1, bins), axis=0).reshape(-1)[:rounds]
    padded = np.concatenate([np.zeros(bins - 1), sums])
    windows = np.lib.stride_tricks.sliding_window_view(padded, bins)
    # [n, b]; column j is m_j of a Toeplitz C, so entry [t, j] is
    # sum_e c_(t - j - e b).
    folded = np.ascontiguousarray(windows[:, ::-1])

    def pullback(by):
      by_sums = np.zeros(-(-rounds // bins) * bins)
      for j, row in enumerate(2 * by.T @ folded.T):
        by_sums[: rounds - j] += row[j:]
      by_sums = np.cumsum(by_sums.reshape(-1, bins)[::-1], axis=0)[::-1]
      return by_sums.reshape(-1)[: len(column)]

    return folded.T @ folded, pullback

  def _of_columns(self, columns):
    (rounds, bands), bins = columns.shape, self._bins
    lags = [(s, np.arange(rounds - s)) for s in range(bands)]
    # m_j for the columns of C.
    sums = np.zeros((rounds, bins))
    for s, j in lags:
      # Two columns j of this slice never have the same row j + s and the same
      # bin, so no entry is added twice.
      sums[j + s, j % bins] += columns[: rounds - s, s]

    def pullback(by):
      by_sums = 2 * sums @ by
      by_columns = np.zeros_like(columns)
      for s, j in lags:
        by_columns[: rounds - s, s] = by_sums[j + s, j % bins]
      return by_columns

    return sums.T @ sums, pullback

  def _model(self, variable):
    return _Gram(self, variable)


class _Gram(needed_noise.Model):
  """Estimates of delta for one G."""

  def __init__(self, search: BallsInBinsNoise, gram: np.ndarray):
    self._search, self._gram = search, gram
    self._factor = np.linalg.cholesky(gram)
    self._factor32 = np.asfortranarray(self._factor, np.float32)

  def with_law(self, log_noise, proposal, count):
    a, scale = proposal.factor, math.exp(-2 * log_noise)
    gains = a * (a - 1) / 2 * np.diag(self._gram)
    gains = gains + a * proposal.shift * self._gram.mean(axis=0)
    # One half of the weight is uniform over bins, so that the samples also suit
    # a changed C.
    weights = 1 / len(gains) + scipy.special.softmax(scale * gains)
    ends = np.cumsum(weights)
    drawn = np.searchsorted(ends / ends[-1], self._search.uniforms[:count])
    return dataclasses.replace(proposal, law=(weights / 2, drawn))

  def _sampled(self, log_noise, proposal, count, gradient):
    a, kappa, sign = proposal.factor, proposal.shift, proposal.sign
    weights, drawn = proposal.law
    normals, drawn = self._search.normals[:count], drawn[:count]
    scale = math.exp(-log_noise)
    scaled = scale**2 * self._gram
    bins = len(scaled)
    squares, mean = np.diag(scaled), scaled.mean(axis=0)
    x = blas.strmm(scale, self._factor32, normals.T, lower=1).T
    x += (kappa * mean).astype(np.float32)
    if a:
      x += (a * scaled).astype(np.float32)[drawn]
    loss, posterior = _log_mean(x - np.float32(squares / 2), 1 / bins)
    margins = sign * loss - self._search.epsilon
    above = np.flatnonzero(margins > 0)
    x, loss = x[above], loss[above]
    # ln R / Q is `log_ratio`.
    log_ratio = kappa * x.mean(axis=1, dtype=np.float64)
    log_ratio -= kappa**2 * mean.mean() / 2
    if a:
      moved = np.float32(a * a / 2 * squares + a * kappa * mean)
      tilted, tilted_posterior = _log_mean(np.float32(a) * x - moved, weights)
      log_ratio += tilted
    estimate, values, by_loss = needed_noise.estimate(
      loss, log_ratio, sign, margins
    )
    if not gradient:
      return estimate
    by_losses = by_loss[:, None] * posterior()[above]
    by_x = by_losses - (kappa / bins) * values[:, None]
    by_diagonal = -by_losses.sum(axis=0) / 2
    by_mean = np.zeros(bins)
    by = np.zeros_like(scaled)
    if a:
      by_tilted = -values[:, None] * tilted_posterior()
      by_x += a * by_tilted
      total = by_tilted.sum(axis=0)
      by_diagonal -= a * a / 2 * total
      by_mean -= a * kappa * total
      rows = scipy.sparse.csr_matrix(
        (np.ones(len(above)), (drawn[above], np.arange(len(above)))),
        shape=(bins, len(above)),
      )
      by += a * (rows @ by_x)
    by_mean += kappa * by_x.sum(axis=0)
    by_mean += kappa**2 / 2 * values.sum() / bins
    by += by_mean / bins
    by[np.diag_indices_from(by)] += by_diagonal
    by = scale**2 * (by + by.T) / 2
    by += _cholesky_back(self._factor, scale * (by_x.T @ normals[above]))
    return dataclasses.replace(estimate, gradient=by / count)


def _log_mean(x, weights):
  """Returns ln sum_j weights_j e^(x_j), [count], and its gradient by x.

  Args:
    x: [count, b] float32.
    weights: [b] float64, or one number for all bins.

  Returns:
    The logarithms, float64, and a function that returns their gradients,
    [count, b] float32.
  """
  top = x.max(axis=1)
  terms = np.exp(x - top[:, None])
  terms *= np.float32(weights)
  sums = terms.sum(axis=1)
  logs = top + np.log(sums.astype(np.float64))
  return logs, lambda: terms / sums[:, None]


def _cholesky_back(factor, by_factor):
  """Returns the gradient by K from the gradient by chol(K), [b, b]."""
  inner = np.tril(factor.T @ np.tril(by_factor))
  inner[np.diag_indices_from(inner)] /= 2
  inner = (inner + inner.T) / 2
  half = scipy.linalg.solve_triangular(factor, inner, lower=True, trans='T')
  return scipy.linalg.solve_triangular(factor, half.T, lower=True, trans='T').T
