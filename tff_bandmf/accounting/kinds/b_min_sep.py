"""Amplification by b-min-sep sampling, for non-negative banded strategies.

| symbol | name here       | meaning                                         |
|--------|-----------------|-------------------------------------------------|
| n      | `rounds`        | rounds of the strategy C                        |
| b      | `min_sep`       | least distance of two rounds of a client        |
| p      | `sampling_prob` | probability with which an eligible client joins |
| c_i    |                 | column i of C                                   |
| s      | `z_stddev`      | standard deviation of z / clip                  |
| F      | `starts`        | first round in which a client is eligible       |
| S      |                 | random set of the rounds of a client            |
| w      | `wait`          | probability of each F = 1, ..., b - 1           |

From round F on, an eligible client takes part with probability p, independently
of everything else. A client that takes part is not eligible in the next b - 1
rounds. With a cold start F = 0. With a warm start the rounds of a client have
the law of a run that started long before round 0. The mean distance between
successive rounds of a client is b - 1 + 1 / p, and a client takes part in any
given round with probability w, where

  w = p / (1 + (b - 1) p),  P(F = r) = w for r = 1, ..., b - 1,
  P(F = 0) = 1 - (b - 1) w = w / p.

`wait_prob` rounds w down to a multiple of 2^-64. Delta may increase or decrease
with w, so w could not be rounded to the safe side. Instead the sampler and the
accountant use the same rounded w, and the formulas below are exact for every
law of F.

**Formal guarantee.** Assumptions: C >= 0 is lower-triangular with at most b
bands, S is independent of all data, and round t adds a vector g_t, |g_t| <= 1,
that may depend on earlier releases. Statement: the run is dominated by the pair
P = E_S N(C 1_S, s^2) against Q = N(0, s^2). The run attains this pair if all
g_t are equal. That is, for convex f, no choice of g has a larger E_Q f(dP/dQ);
both directions of delta have this form. Source: [BMinSep26]. For every law of
S, the statement follows from Kahane's inequality [Kahane85]. Take all numbers
in units of s, let a_t(S) = sum_(i in S) C_ti g_i, and let z_t be the release of
round t under Q. The likelihood ratio is

  E_S prod_t e^(<a_t(S), z_t> - |a_t(S)|^2 / 2).

Let K_t(S, S') be the sum of (C 1_S)_i (C 1_S')_i over i >= t. Let X_t be
Gaussian with covariance K_t, and v_S the probability of S times the factors of
the rounds before t. Then, by induction from the last round to the first, given
the releases before round t,

  E f(ratio) <= E f(sum_S v_S e^(X_t(S) - K_t(S, S) / 2)).

In the induction step, <a_t(S), z_t> + X_(t+1)(S) has the covariance
<a_t(S), a_t(S')> + K_(t+1)(S, S'). This covariance is at most K_t(S, S') for
all S and S', since C >= 0 and <g_i, g_k> <= 1. The mean of f grows with the
covariance of the Gaussian [Kahane85].

The columns of a client's rounds do not overlap, so the likelihood ratio given S
is a product over S. Let L_i be the mean of this ratio over S given F = i. Then
L_i = 1 for i past the last round, and for other i

  L_i = (1 - p) L_{i+1} + p e^(l_i) L_{i+b},
  l_i = (2 <c_i, y> - |c_i|^2) / (2 s^2).

dP/dQ is sum_r P(F = r) L_r. Importance sampling with one copy of S (see the
module `importance`) uses the same recursion with a l_i, or with
a (a - 1) |c_i|^2 / (2 s^2), in place of l_i. Here a is
`importance.Tilt.factor`. The module `b_min_sep_joint_draws` has the recursion
for several copies.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple, Optional

import numpy as np
import scipy.sparse
import scipy.special

from tff_bandmf import _checks, strategies
from tff_bandmf.accounting.kinds import b_min_sep_joint_draws
from tff_bandmf.accounting.methods import accountants, importance

_WORDS = 2**64
# Largest number of entries of a table of `b_min_sep_joint_draws`: for two
# copies, and for three or more copies, whose entries take more time. Largest
# number of states for three or more copies.
_MOST_OF_TWO, _MOST_OF_SEVERAL, _MOST_STATES = 2**23, 2**21, 2**10
# Number of `Copies` that a mixture stores. `importance.removes` uses the four
# latest again.
_MOST_STORED = 4
# Values of L below this value are computed in logarithms.
_SMALLEST_RATIO = 1e-290
# Number of columns in a dense block. Smaller blocks have fewer zeros, and
# larger blocks have faster products.
_BLOCK = 64


class Law(NamedTuple):
  """The parameters of the law (distribution) of a client's rounds.

  Attributes:
    min_sep: b, integer >= 1.
    sampling_prob: p, in (0, 1).
    wait: w, a multiple of 2^-64; None for a cold start.
  """

  min_sep: int
  sampling_prob: float
  wait: Optional[float] = None


# PRIVACY: If sampler and accountant had different probabilities w, delta would
# be the delta of another sampler. Both get w from this function.
# Guard: b_min_sep_test.test_warm_rounds_have_one_probability.
def wait_prob(min_sep: int, sampling_prob: float) -> float:
  """Returns w, rounded down to a multiple of 2^-64; 0 for b = 1."""
  if min_sep == 1:
    return 0.0
  wait = sampling_prob / (1 + (min_sep - 1) * sampling_prob)
  return min(int(wait * _WORDS), _WORDS // (min_sep - 1)) / _WORDS


# PRIVACY: If the law of the first eligible round did not sum to 1, delta would
# miss a part. Entry n has the probability of all first rounds after the run.
# Guard: b_min_sep_test.test_recursions_are_the_sums_over_patterns.
def starts(rounds: int, law: Law) -> np.ndarray:
  """Returns the probabilities of F, the first eligible round.

  Args:
    rounds: n, number of rounds of the strategy.
    law: parameters of the law of a client's rounds.

  Returns:
    [min(b, n + 1)] float64, P(F = r); [1] for a cold start. Entry n, if there
    is one, is P(F >= n).
  """
  b, _, wait = law
  if wait is None:
    return np.ones(1)
  probs = np.full(min(b, rounds + 1), wait)
  # The sum is in integers, since float64 would round 1 - (b - 1) w.
  each = int(wait * _WORDS)
  probs[0] = (_WORDS - (b - 1) * each) / _WORDS
  if b > rounds:
    probs[rounds] = (b - rounds) * each / _WORDS
  return probs


# PRIVACY: `Sampled.largest_cohort` is computed from these probabilities. If
# they were too small, cohorts would exceed this size with a larger probability
# than delta includes.
# Guard: b_min_sep_test.test_recursions_are_the_sums_over_patterns.
def participation(rounds: int, law: Law) -> np.ndarray:
  """Returns the probability that a client takes part, by round, [n] float64.

  Args:
    rounds: n, number of rounds of the strategy.
    law: parameters of the law of a client's rounds.
  """
  b, p, _ = law
  first, eligible = starts(rounds, law), np.zeros(rounds)
  eligible[: len(first)] = first[:rounds]
  for i in range(1, rounds):
    back = eligible[i - b] if i >= b else 0.0
    eligible[i] += eligible[i - 1] * (1 - p) + back * p
  return p * eligible


class Columns:
  """The columns c_i of C.

  Args:
    entries: [n, bands] float64, entries[j, s] = C[j + s, j].

  Attributes:
    matrix: C, [n, n] float64, sparse.
    bands: number of bands of C.
    squares: [n] float64, |c_i|^2.
  """

  def __init__(self, entries: np.ndarray):
    rounds, self.bands = entries.shape
    # Diagonal -s of `dia_matrix` has C[j + s, j] in its column j.
    self.matrix = scipy.sparse.dia_matrix(
      (entries.T, -np.arange(self.bands)), shape=(rounds, rounds)
    ).tocsr()
    self.squares = self.matrix.power(2).sum(axis=0).A1

  # PRIVACY: Privacy losses are computed from these products. If a product were
  # missing, these losses and delta would be too small.
  # Guard: b_min_sep_test.test_separation_of_one_is_poisson_sampling.
  @functools.cached_property
  def gram(self) -> np.ndarray:
    """Returns <c_i, c_(i + d)>, [n, bands] float64, 0 past the last column."""
    rounds = len(self.squares)
    gram = np.zeros((rounds, self.bands))
    size = max(_BLOCK, self.bands)
    for start in range(0, rounds, size):
      part = slice(start, start + size + self.bands - 1)
      dense = self.matrix[part, part].toarray()
      products = dense[:, :size].T @ dense
      for i, row in enumerate(products):
        row = row[i : i + self.bands]
        gram[start + i, : len(row)] = row
    return gram

  # PRIVACY: Privacy losses are computed from these columns. If a column were
  # missing, its round would add no privacy loss.
  # Guard: b_min_sep_test.test_recursions_are_the_sums_over_patterns.
  @functools.cached_property
  def _blocks(self) -> list[tuple[slice, slice, np.ndarray]]:
    """Blocks of C: (columns, their nonzero rows, [columns, rows] float64)."""
    blocks = []
    for start in range(0, len(self.squares), _BLOCK):
      columns = slice(start, start + _BLOCK)
      rows = slice(start, start + _BLOCK + self.bands - 1)
      blocks.append((columns, rows, self.matrix[rows, columns].T.toarray()))
    return blocks

  def products(self, y: np.ndarray) -> np.ndarray:
    """Returns <c_i, y> for each column y of an [n, count] array.

    The result is [n, count] float64; row i has the products with c_i.
    """
    products = np.empty_like(y)
    for columns, rows, block in self._blocks:
      np.matmul(block, y[rows], out=products[columns])
    return products


def nonnegative_columns(strategy: strategies.Strategy, b: int) -> np.ndarray:
  """Returns the entries of the columns of a C >= 0, [n, bands] float64.

  Raises:
    ValueError: C has more than b bands, or a negative entry.
  """
  # PRIVACY: If C had more than b bands, columns of a client's rounds could have
  # non-zero entries in the same row. The likelihood ratio would not be a
  # product over rounds, and delta could be too low. Such a C is refused.
  # Guard: b_min_sep_test.test_more_bands_than_min_sep_are_refused.
  _checks.at_most('bands', strategy.bands, b, 'min_sep', 'use fewer')
  rows = strategy.band_rows(0, strategy.rounds)
  accountants.check_nonnegative(np.min(rows))
  return strategies.columns_of_rows(rows)


class BMinSepMixture(importance.Mixture):
  """The mixture P of a banded C and p < 1; see `importance.Mixture`."""

  def __init__(self, columns: Columns, z_stddev: float, law: Law):
    self._columns, self._stddev = columns, z_stddev
    # Squared norms of columns in units of s.
    self._squares = columns.squares / z_stddev**2
    rounds = len(self._squares)
    self._starts = starts(rounds, law)
    # Every b >= n allows a client at most one round, so b is reduced to n. With
    # a warm start b is reduced to n + 1, because F may be n or more. A client
    # with F >= n never becomes eligible.
    self._b = min(law.min_sep, rounds + (law.wait is not None))
    self._prob = law.sampling_prob
    self._log_in = np.log(law.sampling_prob)
    self._log_out = np.log1p(-law.sampling_prob)
    rates = participation(rounds, law)
    self._mean = columns.matrix @ rates / z_stddev
    self.mean_square = float(rates @ self._squares)
    self.square_mean = float(self._mean @ self._mean)
    self.entries = 4 * rounds
    self._stored: dict[importance.Tilt, b_min_sep_joint_draws.Copies] = {}

  def _log_ratios(self, log_gains: np.ndarray) -> np.ndarray:
    """Returns ln L_i, [n + b, ...] float64, which is 0 from row n on.

    Args:
      log_gains: [n, ...] float64, the values used in place of l_i.
    """
    rounds = len(log_gains)
    logs = np.zeros((rounds + self._b, *log_gains.shape[1:]))
    gains = log_gains + self._log_in
    for i in range(rounds - 1, -1, -1):
      out = self._log_out + logs[i + 1]
      logs[i] = np.logaddexp(out, gains[i] + logs[i + self._b])
    return logs

  def _log_mean_of(self, logs: np.ndarray) -> np.ndarray:
    """Returns ln sum_r P(F = r) L_r, [...] float64.

    Args:
      logs: [n + b, ...] float64, ln L_i.
    """
    logs = logs[: len(self._starts)]
    with np.errstate(divide='ignore'):
      log_starts = np.log(self._starts)
    log_starts = log_starts.reshape(-1, *[1] * (logs.ndim - 1))
    return scipy.special.logsumexp(logs + log_starts, axis=0)

  def _log_mean(self, log_gains: np.ndarray) -> np.ndarray:
    """Returns ln sum_r P(F = r) L_r, [count] float64.

    The recursion computes L itself, which is faster than ln L. If an L of a
    result leaves the range of float64, the result is computed again in
    logarithms.

    Args:
      log_gains: [n, count] float64, the values used in place of l_i.
    """
    with np.errstate(over='ignore', invalid='ignore', divide='ignore'):
      terms = log_gains + self._log_in
      np.exp(terms, out=terms)
      rounds = len(terms)
      ratios = np.empty((rounds + self._b, terms.shape[1]))
      ratios[rounds:] = 1.0
      for stop in range(rounds, 0, -self._b):
        start = max(0, stop - self._b)
        part = ratios[start:stop]
        later = ratios[start + self._b : stop + self._b]
        np.multiply(terms[start:stop], later, out=part)
        self._accumulate(part, ratios[stop])
      # PRIVACY: An L_i near the least positive float64 has few correct bits,
      # and its error carries over to L_j for j < i, so delta would be wrong. A
      # result with such an L is computed again in logarithms. In all other
      # results a term that underflows is smaller than a rounding error.
      # Guards: b_min_sep_test.test_ratios_that_all_but_vanish_are_done_again
      # and b_min_sep_test.test_recursions_are_the_sums_over_patterns.
      logs = np.log(self._starts @ ratios[: len(self._starts)])
    lost = ~np.isfinite(logs) | (ratios.min(0) < _SMALLEST_RATIO)
    if lost.any():
      logs[lost] = self._log_mean_of(self._log_ratios(log_gains[:, lost]))
    return logs

  # PRIVACY: L is a sum over all sets S of rounds. If the term of a set were
  # missing, delta would be too small.
  # Guards: b_min_sep_test.test_long_gaps_do_not_lose_later_rounds and
  # b_min_sep_test.test_ratios_that_all_but_vanish_are_done_again.
  def _accumulate(self, terms: np.ndarray, last: np.ndarray) -> None:
    """Replaces terms_i by L_i = terms_i + (1 - p) L_{i+1}, in place.

    The rounds are split into groups. Each group is first summed as if L were 0
    after its last round. Then (1 - p)^d L is added to each round, where L is
    the first L of the next group, d rounds later.

    Args:
      terms: [rounds, count] float64.
      last: [count] float64, L after the last of these rounds.
    """
    # PRIVACY: If a power of 1 - p underflowed, the term of L with this power
    # would be lost. It may be the largest term, so delta would be wrong. Groups
    # are so short that no power of 1 - p is below `_SMALLEST_RATIO`.
    # Guard: b_min_sep_test.test_long_gaps_do_not_lose_later_rounds.
    longest = int(math.log(_SMALLEST_RATIO) / self._log_out)
    size = min(math.isqrt(len(terms)), longest)
    count, rest = divmod(len(terms), size)
    groups = terms[rest:].reshape(count, size, terms.shape[1])
    stay = math.exp(self._log_out)
    for i in range(size - 2, -1, -1):
      groups[:, i] += stay * groups[:, i + 1]
    powers = stay ** np.arange(size, 0, -1)[:, None]
    for group in groups[::-1]:
      group += powers * last
      last = group[0]
    for i in range(rest - 1, -1, -1):
      terms[i] += stay * terms[i + 1]

  # PRIVACY: The weight of a sample assumes that S is drawn with these odds.
  # With other odds, the average of the weighted samples would not be delta.
  # Guard: b_min_sep_test.test_rounds_are_drawn_with_the_tilted_odds.
  def _draw_rounds(self, rng, count, log_gains):
    """Draws S with probability proportional to P(S) e^(sum of gains over S).

    Let P' be this law of S. If a client is eligible from round i on, its next
    round is the first j for which -ln P'(no round in i, ..., j) exceeds a
    standard exponential variable.

    Args:
      rng: random generator.
      count: number of draws.
      log_gains: [n] float64, gain of each round.

    Returns:
      [n, count] float64 of 0 and 1, sparse; each column is one S.
    """
    rounds = len(log_gains)
    logs = self._log_ratios(log_gains)
    # `out` is ln(1 - prob), by the more precise of two formulas.
    prob = np.exp(self._log_in + log_gains + logs[self._b :] - logs[:rounds])
    out = self._log_out + np.diff(logs[: rounds + 1])
    out = np.where(prob < 0.5, np.log1p(-np.minimum(prob, 0.5)), out)
    survived = np.concatenate([[0.0], np.cumsum(-np.minimum(out, 0.0))])
    who, when = np.arange(count), np.zeros(count, np.int64)
    if len(self._starts) > 1:
      ratios = logs[: len(self._starts)] - self._log_mean_of(logs)
      first = self._starts * np.exp(ratios)
      when = rng.choice(len(first), size=count, p=first / first.sum())
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

  def tilted_rounds(self, rng, count, log_gains):
    """Returns ln A and draws of S with probability P(S) e^(sum of gains) / A.

    The draws are the result of `_draw_rounds`.
    """
    logs = self._log_mean_of(self._log_ratios(log_gains))
    return float(logs), self._draw_rounds(rng, count, log_gains).tocsc()

  def _losses(self, y: np.ndarray) -> np.ndarray:
    losses = self._columns.products(y)
    losses /= self._stddev
    losses -= self._squares[:, None] / 2
    return losses

  def _copies(self, tilt: importance.Tilt) -> b_min_sep_joint_draws.Copies:
    """Returns the law of several copies; stores recent laws."""
    if tilt not in self._stored:
      if len(self._stored) == _MOST_STORED:
        del self._stored[next(iter(self._stored))]
      gram = self._columns.gram / self._stddev**2
      self._stored[tilt] = b_min_sep_joint_draws.Copies(
        gram, self._b, self._prob, tilt.copies, tilt.factor, self._starts
      )
    return self._stored[tilt]

  def _log_tilts(self, tilt: importance.Tilt) -> np.ndarray:
    """Returns terms of t (see `b_min_sep_joint_draws`) for one copy, [n]."""
    return tilt.factor * (tilt.factor - 1) / 2 * self._squares

  def log_normalizer(self, tilt):
    if tilt.copies == 1:
      return float(self._log_mean_of(self._log_ratios(self._log_tilts(tilt))))
    states = b_min_sep_joint_draws.state_count(self._b, tilt.copies)
    most, entries = _MOST_OF_TWO, len(self._squares) * states
    if tilt.copies > 2:
      most = _MOST_OF_SEVERAL if states <= _MOST_STATES else 0
    if entries > most:
      return math.inf
    return self._copies(tilt).log_normalizer

  def remove(self, tilt, epsilon):
    a, log_tilts = tilt.factor, self._log_tilts(tilt)
    log_normalizer = self.log_normalizer(tilt)
    copies = self._copies(tilt) if tilt.copies > 1 else None

    def draw(rng, count):
      if copies is None:
        taken = self._draw_rounds(rng, count, log_tilts)
      else:
        taken = copies.draw(rng, count)
      y = rng.standard_normal(taken.shape)
      y += (self._columns.matrix @ (a / self._stddev * taken)).toarray()
      losses = self._losses(y)
      loss = self._log_mean(losses)
      tilted = loss.copy()
      if a > 1:
        above = loss > epsilon
        tilted[above] = self._log_mean(a * losses[:, above])
      return loss, tilted, log_normalizer

    return draw

  def sample_add(self, rng, count, kappa, epsilon):
    y = rng.standard_normal((len(self._squares), count))
    y -= kappa * self._mean[:, None]
    return self._log_mean(self._losses(y)), self._mean @ y
