"""Amplification by b-min-sep sampling, for non-negative banded strategies.

| symbol | name here       | meaning                                         |
|--------|-----------------|-------------------------------------------------|
| n      | `rounds`        | rounds of the strategy C                        |
| b      | `min_sep`       | least distance of two rounds of a client        |
| p      | `sampling_prob` | probability of an eligible client in a round    |
| c_i    |                 | column i of C                                   |
| s      | `z_stddev`      | standard deviation of z over clip               |
| S      |                 | random set of the rounds of a client            |

Every client is eligible in round 0. An eligible client takes part with
probability p, independently of everything else, and is then not eligible in
the next b - 1 rounds.

For C >= 0 with at most b bands and gradients that adapt to what was released,
the run is dominated by P = E_S N(C 1_S, s^2) against Q = N(0, s^2)
[BMinSep26]. Columns of a client's rounds share no row, so the likelihood ratio
is a product over S, and its mean over S is a recursion: L_n = 1 and

  L_i = (1 - p) L_{i+1} + p e^(l_i) L_{i+b},
  l_i = (2 <c_i, y> - |c_i|^2) / (2 s^2),

with L_i = 1 past the last round; dP/dQ is L_0. Importance sampling with one
copy of S (`importance`) uses the same recursion with a l_i, or with
a (a - 1) |c_i|^2 / (2 s^2), in place of l_i. `b_min_sep_pairs` has the
recursion for two copies.
"""

from __future__ import annotations

import math

import numpy as np
import scipy.sparse

from tff_bandmf.accounting.kinds import b_min_sep_pairs, columns
from tff_bandmf.accounting.methods import importance

# Largest rounds * min_sep for which the tables of pairs fit in memory.
_MOST_OF_PAIRS = 2**23
# Below this value float64 may lose digits.
_SMALLEST_RATIO = 1e-290


def participation(
  rounds: int, min_sep: int, sampling_prob: float
) -> np.ndarray:
  """Returns the probability of a client in each round, [n] float64."""
  eligible = np.ones(rounds)
  for i in range(1, rounds):
    back = eligible[i - min_sep] if i >= min_sep else 0.0
    eligible[i] = eligible[i - 1] * (1 - sampling_prob) + back * sampling_prob
  return sampling_prob * eligible


class BMinSepMixture(importance.Mixture):
  """The mixture P for a banded C and p < 1."""

  def __init__(
    self,
    strategy: columns.Columns,
    z_stddev: float,
    min_sep: int,
    sampling_prob: float,
  ):
    self._columns, self._stddev = strategy, z_stddev
    # In units of s, z is standard normal.
    self._squares = strategy.squares / z_stddev**2
    # A min_sep above n acts like n: one round at most.
    self._b = min(min_sep, len(self._squares))
    self._prob = sampling_prob
    self._log_in = np.log(sampling_prob)
    self._log_out = np.log1p(-sampling_prob)
    rates = participation(len(self._squares), self._b, sampling_prob)
    self._mean = strategy.matrix @ rates / z_stddev
    self.mean_square = float(rates @ self._squares)
    self.square_mean = float(self._mean @ self._mean)
    self.entries = 4 * len(self._squares)

  def _log_ratios(self, log_gains: np.ndarray) -> np.ndarray:
    """Returns ln L_i for gains e^(log_gains) of the rounds.

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
    """Returns ln L_0 for gains e^(log_gains) of the rounds, [count] float64.

    The recursion runs on L itself, which is faster than on its logarithm.
    Entries that leave the range of float64 are computed again in logarithms.

    Args:
      log_gains: [n, count] float64.
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
    # PRIVACY: an L near the least number of float64 has few bits, even if it
    # grows again, and terms of unlikely rounds vanish: delta would be wrong.
    # Such entries are computed again in logarithms.
    # Guard: b_min_sep_test.test_ratios_that_all_but_vanish_are_done_again.
    lost = ~np.isfinite(logs) | (ratios.min(0) < _SMALLEST_RATIO)
    lost |= self._b * self._log_out < -300
    if lost.any():
      logs[lost] = self._log_ratios(log_gains[:, lost])[0]
    return logs

  def _draw_rounds(self, rng, count, log_gains):
    """Draws S with probability proportional to P(S) prod_(i in S) e^(gain_i).

    For a client that is eligible from round i on, the next round is the first j
    at which the negative log of its survival exceeds an exponential variable.

    Returns:
      [n, count] float64 of 0 and 1, sparse; a column is one S.
    """
    rounds = len(log_gains)
    logs = self._log_ratios(log_gains)
    # ln(1 - prob), by the formula that keeps more digits.
    prob = np.exp(self._log_in + log_gains + logs[self._b :] - logs[:rounds])
    out = self._log_out + np.diff(logs[: rounds + 1])
    out = np.where(prob < 0.5, np.log1p(-np.minimum(prob, 0.5)), out)
    survived = np.concatenate([[0.0], np.cumsum(-np.minimum(out, 0.0))])
    who, when = np.arange(count), np.zeros(count, np.int64)
    pairs = []
    while len(who):
      until = survived[when] + rng.standard_exponential(len(who))
      taken = np.searchsorted(survived, until, side='right') - 1
      who, taken = who[taken < rounds], taken[taken < rounds]
      pairs.append((taken, who))
      who, when = who[taken + self._b < rounds], taken + self._b
      when = when[when < rounds]
    indices = np.concatenate(pairs, axis=1)
    return scipy.sparse.csr_matrix(
      (np.ones(indices.shape[1]), indices), shape=(rounds, count)
    )

  def _losses(self, y: np.ndarray) -> np.ndarray:
    losses = self._columns.products(y)
    losses /= self._stddev
    losses -= self._squares[:, None] / 2
    return losses

  def _pairs(self, factor: float) -> b_min_sep_pairs.Pairs:
    return b_min_sep_pairs.Pairs(
      self._columns.gram / self._stddev**2, self._b, self._prob, factor
    )

  def _log_tilts(self, tilt: importance.Tilt) -> np.ndarray:
    """Returns the tilt t of one copy, by rounds, [n] float64."""
    return tilt.factor * (tilt.factor - 1) / 2 * self._squares

  def log_normalizer(self, tilt):
    if tilt.copies == 1:
      return float(self._log_ratios(self._log_tilts(tilt))[0])
    if len(self._squares) * self._b > _MOST_OF_PAIRS:
      return math.inf
    return self._pairs(tilt.factor).log_normalizer

  def remove(self, tilt):
    a, log_tilts = tilt.factor, self._log_tilts(tilt)
    pairs = self._pairs(a) if tilt.copies == 2 else None

    def draw(rng, count):
      if pairs is None:
        taken = self._draw_rounds(rng, count, log_tilts)
      else:
        taken = pairs.draw(rng, count)
      y = rng.standard_normal(taken.shape)
      y += (self._columns.matrix @ (a / self._stddev * taken)).toarray()
      losses = self._losses(y)
      loss = self._log_mean(losses)
      return loss, loss if a == 1 else self._log_mean(a * losses)

    return draw

  def sample_add(self, rng, count, kappa):
    y = rng.standard_normal((len(self._squares), count))
    y -= kappa * self._mean[:, None]
    return self._log_mean(self._losses(y)), self._mean @ y
