"""Amplification by b-min-sep sampling, for non-negative banded strategies.

| symbol | name here       | meaning                                         |
|--------|-----------------|-------------------------------------------------|
| n      | `rounds`        | rounds of the strategy C                        |
| b      | `min_sep`       | least distance of two rounds of a client        |
| p      | `sampling_prob` | probability to take part in a round, if eligible |
| c_i    |                 | column i of C                                   |
| s      | `z_stddev`      | standard deviation of z over clip               |
| S      |                 | the rounds of a client, random                  |

Every client is eligible in round 0. An eligible client takes part with
probability p, independently of everything else, and is then not eligible in
the next b - 1 rounds.

For C >= 0 with at most b bands and gradients that adapt to what was released,
the run is dominated by P = E_S N(C 1_S, s^2) against Q = N(0, s^2)
[BMinSep26]. Columns of a client's rounds share no row, so the likelihood ratio
is a product over S, and its mean over S is a recursion: L_n = 1 and

  L_i = (1 - p) L_{i+1} + p e^(l_i) L_{i+b},
  l_i = (2 <c_i, y> - |c_i|^2) / (2 s^2),

with L_i = 1 past the last round; dP/dQ is L_0. The same recursion with
gamma l_i, or with gamma (gamma - 1) |c_i|^2 / (2 s^2), gives all that sampling
needs (`monte_carlo`).
"""

from __future__ import annotations

import numpy as np
import scipy.sparse

from tff_bandmf import errors, strategies
from tff_bandmf import participation as participation_lib
from tff_bandmf.accounting import accountants, monte_carlo

_SMALLEST_BLOCK = 32
# From here down float64 loses digits.
_SMALLEST_RATIO = 1e-290


def participation(
  rounds: int, min_sep: int, sampling_prob: float
) -> np.ndarray:
  """Returns the probability to take part in each round, [n] float64.

  Args:
    rounds: n.
    min_sep: b.
    sampling_prob: p.
  """
  eligible = np.ones(rounds)
  for i in range(1, rounds):
    back = eligible[i - min_sep] if i >= min_sep else 0.0
    eligible[i] = eligible[i - 1] * (1 - sampling_prob) + back * sampling_prob
  return sampling_prob * eligible


class BMinSepMixture(monte_carlo.Mixture):
  """P for a banded C.

  Args:
    rows: [n, bands] float64, rows[t, s] = C[t, t - s], 0 where t < s.
    z_stddev: s.
    min_sep: b.
    sampling_prob: p, less than 1.
  """

  def __init__(
    self,
    rows: np.ndarray,
    z_stddev: float,
    min_sep: int,
    sampling_prob: float,
  ):
    # In units of s, z is standard normal.
    rows = rows / z_stddev
    self._blocks = _blocks(rows)
    self._matrix = _sparse(rows)
    self._squares = self._matrix.power(2).sum(axis=0).A1
    # One round at most, however much further apart they must be.
    self._b = min(min_sep, len(self._squares))
    self._log_in = np.log(sampling_prob)
    self._log_out = np.log1p(-sampling_prob)
    self._rates = participation(len(rows), self._b, sampling_prob)
    self._mean = self._matrix @ self._rates
    self.mean_square = float(self._rates @ self._squares)
    self.square_mean = float(self._mean @ self._mean)
    self.entries = 6 * len(self._squares)

  def _log_ratios(self, log_gains: np.ndarray) -> np.ndarray:
    """Returns ln L_i for gains e^(log_gains) a round.

    Args:
      log_gains: [n, ...] float64.

    Returns:
      [n + b, ...] float64, 0 from row n on.
    """
    rounds = len(log_gains)
    logs = np.zeros((rounds + self._b, *log_gains.shape[1:]))
    gains = log_gains + self._log_in
    for i in range(rounds - 1, -1, -1):
      logs[i] = np.logaddexp(
        self._log_out + logs[i + 1], gains[i] + logs[i + self._b]
      )
    return logs

  def _log_mean(self, log_gains: np.ndarray) -> np.ndarray:
    """Returns ln L_0 for gains e^(log_gains) a round, [n, count] float64.

    By L itself, not by its logarithm: that is faster, and what leaves the range
    of float64 is done again.
    """
    with np.errstate(over='ignore', invalid='ignore', divide='ignore'):
      terms = np.exp(log_gains + self._log_in)
      rounds, stay = len(terms), np.exp(self._log_out)
      ratios = np.empty((rounds + self._b, terms.shape[1]))
      ratios[rounds:] = 1.0
      for stop in range(rounds, 0, -self._b):
        start = max(0, stop - self._b)
        terms[start:stop] *= ratios[start + self._b : stop + self._b]
        for i in range(stop - 1, start - 1, -1):
          np.multiply(ratios[i + 1], stay, out=ratios[i])
          ratios[i] += terms[i]
      logs = np.log(ratios[0])
    # PRIVACY: few are eligible after b rounds: terms may be lost; and an L near
    # the least number of float64 has few bits, also if it grows again. Guard:
    # b_min_sep_test.test_ratios_that_all_but_vanish_are_done_again.
    lost = ~np.isfinite(logs) | (ratios.min(0) < _SMALLEST_RATIO)
    lost |= self._b * self._log_out < -300
    if lost.any():
      logs[lost] = self._log_ratios(log_gains[:, lost])[0]
    return logs

  def _draw_rounds(self, rng, count, log_gains):
    """Returns S of probability proportional to P(S) prod e^(log_gains).

    The next round of who is eligible in round i is the first j whose log
    survival from i on is below that of an exponential variable.

    Returns:
      [n, count] float64 of 0 and 1, sparse.
    """
    rounds = len(log_gains)
    logs = self._log_ratios(log_gains)
    # ln(1 - prob), by what float64 has more digits of.
    prob = np.exp(self._log_in + log_gains + logs[self._b :] - logs[:rounds])
    out = self._log_out + np.diff(logs[: rounds + 1])
    out = np.where(prob < 0.5, np.log1p(-np.minimum(prob, 0.5)), out)
    survived = np.concatenate([[0.0], np.cumsum(-np.minimum(out, 0.0))])
    who, when = np.arange(count), np.zeros(count, np.int64)
    found = []
    while len(who):
      until = survived[when] + rng.standard_exponential(len(who))
      taken = np.searchsorted(survived, until, side='right') - 1
      who, taken = who[taken < rounds], taken[taken < rounds]
      found.append((taken, who))
      who, when = who[taken + self._b < rounds], taken + self._b
      when = when[when < rounds]
    indices = np.concatenate(found, axis=1)
    return scipy.sparse.csr_matrix(
      (np.ones(indices.shape[1]), indices), shape=(rounds, count)
    )

  def _losses(self, y: np.ndarray) -> np.ndarray:
    products = np.empty_like(y)
    products[:] = -self._squares[:, None] / 2
    for rows, columns, block in self._blocks:
      products[columns] += block.T @ y[rows]
    return products

  def log_normalizer(self, gamma: float) -> float:
    return float(self._log_ratios(gamma * (gamma - 1) / 2 * self._squares)[0])

  def sample_remove(self, rng, count, gamma):
    taken = self._draw_rounds(
      rng, count, gamma * (gamma - 1) / 2 * self._squares
    )
    y = rng.standard_normal(taken.shape)
    y += (self._matrix @ (gamma * taken)).toarray()
    losses = self._losses(y)
    return self._log_mean(losses), self._log_mean(gamma * losses)

  def sample_add(self, rng, count, kappa):
    y = rng.standard_normal((len(self._squares), count))
    y -= kappa * self._mean[:, None]
    return self._log_mean(self._losses(y)), self._mean @ y


class BMinSep(accountants.Sampled):
  """Patterns that are at least b apart, of a strategy.

  Attributes:
    rows: [n, bands] float64, rows[t, s] = C[t, t - s].
  """

  default_samples = 300_000

  def __init__(
    self,
    strategy: strategies.Strategy,
    schema: participation_lib.Participation,
    min_sep: int,
    sampling_prob: float,
  ):
    # PRIVACY: where columns of a client's rounds share rows, the likelihood
    # ratio does not factor into rounds.
    # Guard: b_min_sep_test.test_more_bands_than_min_sep_are_refused.
    if strategy.bands > min_sep:
      raise errors.value_error(
        'min_sep',
        min_sep,
        f'must be at least the bands={strategy.bands} of C',
        'use a strategy with fewer bands',
      )
    self.rows = strategy.band_rows(0, strategy.rounds)
    accountants.check_nonnegative(np.min(self.rows))
    super().__init__(strategy, schema)
    self._min_sep, self._sampling_prob = min_sep, sampling_prob

  def mixture(self, noise_multiplier: float) -> BMinSepMixture:
    return BMinSepMixture(
      self.rows,
      noise_multiplier * self.sensitivity.value,
      self._min_sep,
      self._sampling_prob,
    )


def _sparse(rows: np.ndarray) -> scipy.sparse.csr_matrix:
  """Returns C as a sparse matrix.

  Args:
    rows: [n, bands] float64, rows[t, s] = C[t, t - s].
  """
  rounds, bands = rows.shape
  diagonals = np.zeros((bands, rounds))
  for s in range(bands):
    diagonals[s, : rounds - s] = rows[s:, s]
  return scipy.sparse.dia_matrix(
    (diagonals, -np.arange(bands)), shape=(rounds, rounds)
  ).tocsr()


def _blocks(rows: np.ndarray) -> list[tuple[slice, slice, np.ndarray]]:
  """Returns C in dense blocks of rows, with the columns that they reach.

  Args:
    rows: [n, bands] float64, rows[t, s] = C[t, t - s].

  Returns:
    (rows, columns, [rows, columns] float64) each.
  """
  rounds, bands = rows.shape
  # Smaller ones have fewer zeros, larger ones faster products.
  size = max(bands // 8, _SMALLEST_BLOCK)
  blocks = []
  for start in range(0, rounds, size):
    stop, first = min(start + size, rounds), max(0, start - bands + 1)
    block = np.zeros((stop - start, stop - first))
    for s in range(bands):
      t = np.arange(max(start, s), stop)
      block[t - start, t - s - first] = rows[t, s]
    blocks.append((slice(start, stop), slice(first, stop), block))
  return blocks
