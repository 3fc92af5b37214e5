"""The noise that b-min-sep sampling needs, from fixed samples.

The module `needed_noise` defines P, Q, R, a and kappa. The variable of the
search is C, as an array of its columns: [n, bands], where entry [j, s] is
C[j + s, j]. B is C / s, with the columns b_i. With m_S = B 1_S and the mean
m = B r, where r_i is the probability that S contains round i, a sample is

  y = z + a B 1_S + kappa m

for fixed z and a fixed S. S is drawn with probability w_S = P(S) e^(sum_S g_i)
/ A; `with_law` chooses the gains g_i, and A is the normalizer. The recursion of
`b_min_sep` sums over S in P / Q and R / Q, with l_i replaced by

  <b_i, y> - |b_i|^2 / 2                                              P / Q
  g_i + a <b_i, y> - a^2 |b_i|^2 / 2 - a kappa <b_i, m>               R / Q
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from tff_bandmf import _checks
from tff_bandmf.accounting.kinds import b_min_sep
from tff_bandmf.accounting.methods import needed_noise

# Number of columns in one block of products.
_BLOCK = 64
_LARGEST = 1e300


class BMinSepNoise(needed_noise.NeededNoise):
  """The noise that a target needs under b-min-sep; see `NeededNoise`."""

  degree = 1

  def __init__(
    self, rounds: int, epsilon: float, delta: float, law: b_min_sep.Law
  ):
    super().__init__(rounds, epsilon, delta, width=rounds)
    self.law = law
    self._starts = b_min_sep.starts(rounds, law)
    self.rates = b_min_sep.participation(rounds, law)
    rng = np.random.default_rng(self.seed)
    self.normals = rng.standard_normal((self._count, rounds)).T.copy()

  def to_dict(self):
    return {**super().to_dict(), **self.law._asdict()}

  def _of_strategy(self, strategy):
    return b_min_sep.nonnegative_columns(strategy, self.law.min_sep)

  def _log_scale(self, variable):
    largest = np.einsum('ij,ij->i', variable, variable).max()
    return math.log(largest * -(-self.rounds // self.law.min_sep)) / 2

  def _of_column(self, column):
    most = self.law.min_sep
    _checks.at_most('bands', len(column), most, 'min_sep', 'use fewer')
    inside = np.add.outer(np.arange(self.rounds), np.arange(len(column)))
    columns = np.where(inside < self.rounds, column, 0.0)
    return columns, lambda by: by.sum(axis=0)

  def _of_columns(self, columns):
    return columns, lambda by: by

  def log_mean(self, log_gains):
    """Returns ln of the mean over S of e^(sum of gains), and its gradient.

    Args:
      log_gains: [n, count] float64.

    Returns:
      The logarithms, [count], and a function from indices of samples to their
      gradients, [n, indices].
    """
    rounds = len(log_gains)
    min_sep, prob, _ = self.law
    # With b > n a client takes part at most once, so b is reduced to n + 1.
    b, stay = min(min_sep, rounds + 1), 1 - prob
    with np.errstate(over='ignore', invalid='ignore'):
      terms = prob * np.exp(log_gains)
      later = np.ones((rounds + b, log_gains.shape[1]))
      for i in range(rounds - 1, -1, -1):
        later[i] = stay * later[i + 1] + terms[i] * later[i + b]
      first = len(self._starts)
      # A mean overflows only if s is far too small.
      means = np.nan_to_num(self._starts @ later[:first], nan=_LARGEST)
      means = np.minimum(means, _LARGEST)

    def gradient(indices):
      gains, after = terms[:, indices], later[:, indices]
      # reached[i] is the derivative of the mean by later[i].
      reached = np.zeros((rounds, gains.shape[1]))
      reached[:first] = self._starts[: min(first, rounds), None]
      for i in range(rounds):
        if i:
          reached[i] += stay * reached[i - 1]
        if i >= b:
          reached[i] += gains[i - b] * reached[i - b]
      return reached * gains * after[b : rounds + b] / means[indices]

    return np.log(means), gradient

  def _model(self, variable):
    return _Columns(self, variable)


class _Columns(needed_noise.Model):
  """Estimates of delta for the columns of one C."""

  def __init__(self, search: BMinSepNoise, variable: np.ndarray):
    self._search, self._variable = search, variable
    self._columns = b_min_sep.Columns(variable)

  def with_law(self, log_noise, proposal, count):
    a, search = proposal.factor, self._search
    if not a:
      return proposal
    matrix, scale = self._columns.matrix, math.exp(-2 * log_noise)
    gains = a * (a - 1) / 2 * self._columns.squares
    gains += a * proposal.shift * (matrix.T @ (matrix @ search.rates))
    rng = np.random.default_rng(search.seed + 1)
    mixture = b_min_sep.BMinSepMixture(self._columns, 1.0, search.law)
    law = scale * gains, *mixture.tilted_rounds(rng, count, scale * gains)
    return dataclasses.replace(proposal, law=law)

  def _sampled(self, log_noise, proposal, count, gradient):
    a, kappa, sign = proposal.factor, proposal.shift, proposal.sign
    search, scale = self._search, math.exp(-log_noise)
    epsilon, rates = search.epsilon, search.rates
    matrix = scale * self._columns.matrix
    squares, mean = scale**2 * self._columns.squares, matrix @ rates
    y = search.normals[:, :count] + kappa * mean[:, None]
    if a:
      gains, log_weight, taken = proposal.law
      taken = a * taken[:, :count]
      y += (matrix @ taken).toarray()
    products = scale * self._columns.products(y)
    loss, posterior = search.log_mean(products - squares[:, None] / 2)
    margins = sign * loss - epsilon
    above = np.flatnonzero(margins > 0)
    loss, y = loss[above], y[:, above]
    # ln R / Q is `log_ratio`.
    log_ratio = kappa * (mean @ y) - kappa**2 * (mean @ mean) / 2
    if a:
      shift = gains - a * a / 2 * squares - a * kappa * (matrix.T @ mean)
      tilts = a * products[:, above] + shift[:, None]
      tilted, tilted_posterior = search.log_mean(tilts)
      log_ratio += tilted - log_weight
    estimate, values, by_loss = needed_noise.estimate(
      loss, log_ratio, sign, margins
    )
    if not gradient:
      return estimate
    bands = self._columns.bands
    by_losses = by_loss * posterior(above)
    by_products = by_losses.copy()
    by_squares = -by_losses.sum(axis=1) / 2
    by_mean = kappa**2 * values.sum() * mean - kappa * (y @ values)
    by = np.zeros_like(self._variable)
    if a:
      by_tilted = -values * tilted_posterior(slice(None))
      by_products += a * by_tilted
      total = by_tilted.sum(axis=1)
      by_squares -= a * a / 2 * total
      by_mean -= a * kappa * (matrix @ total)
      by -= a * kappa * _outer(mean[:, None], total[:, None], bands)
    by_y = matrix @ by_products - kappa * np.outer(mean, values)
    by_mean += kappa * by_y.sum(axis=1)
    by += _outer(y, by_products, bands)
    if a:
      by += _outer(by_y, taken[:, above].toarray(), bands)
    by += _outer(by_mean[:, None], rates[:, None], bands)
    by += 2 * scale * by_squares[:, None] * self._variable
    return dataclasses.replace(estimate, gradient=scale / count * by)


def _outer(left, right, bands):
  """Returns sum_k left[j + s, k] right[j, k] at [j, s], [n, bands].

  Args:
    left: [n, count] float64.
    right: [n, count] float64.
    bands: number of columns of the result.
  """
  rounds = len(right)
  result = np.zeros((rounds, bands))
  for start in range(0, rounds, _BLOCK):
    part = right[start : start + _BLOCK]
    product = part @ left[start : start + _BLOCK + bands - 1].T
    for i, row in enumerate(product):
      row = row[i : i + bands]
      result[start + i, : len(row)] = row
  return result
