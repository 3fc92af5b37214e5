"""Pairs of sets of a client's rounds, drawn for importance sampling.

S and S' are two independent draws of the set of rounds that b-min-sep sampling
gives a client; each is called a copy. The joint law of S and S' is weighted by
e^t, so that pairs whose columns overlap are drawn more often; the module
`importance` says why. Let c_i be column i of C over the standard deviation s of
z, and a the factor of the weight. Rounds of one copy are at least b apart, so
their columns share no row, and

  t = sum a (a - 1) |c_i|^2 / 2, over i in S and in S',
      + sum a^2 <c_i, c_k>, over i in S and k in S',

In the second sum, columns of rounds that are b or more apart contribute 0. For
each round of one copy, at most one earlier round of the other copy is less than
b rounds before. So the mean of e^t follows from a recursion over the remaining
rounds. A copy is eligible in a round if it may take part in the round; it then
takes part with probability p. Let E_i be the mean of the factor of e^t from
rounds i and later, if both copies are eligible from round i on. Let F_(i, u),
0 <= u < b, be the mean of the factor of e^t from rounds after i, under two
conditions: one copy took part in round i, and the other copy is eligible from
round k = i + b - u on. With w_i = e^(a (a - 1) |c_i|^2 / 2) and
g_ik = e^(a^2 <c_i, c_k>),

  F_(i, 0) = E_(i + b)
  F_(i, u) = (1 - p) F_(i, u - 1) + p w_k g_ik F_(k, k - i)
  E_i = (1 - p)^2 E_(i + 1) + 2 p (1 - p) w_i F_(i, b - 1)
        + p^2 w_i^2 g_ii F_(i, 0)

Every E and F whose round is past the last round is 1. If both copies are
eligible from round 0 on, the normalizer is A = E_0. Otherwise the copies are
eligible from random rounds r and k on, with probabilities P(r) and P(k). The
state before round 0 is then the state of F_(i, u) with i = max(r, k) - b and
u = |r - k|, as if the later copy had taken part in round i, whose column is 0.
Rounds before round 0 have g = w = 1, and

  A = sum over r and k of P(r) P(k) F_(max(r, k) - b, |r - k|)
"""

from __future__ import annotations

import math

import numpy as np
import scipy
import scipy.sparse


class Pairs:
  """The joint law of two copies of a client's rounds, weighted by e^t.

  Args:
    gram: [n, bands] float64, <c_i, c_(i + d)> / s^2, >= 0.
    min_sep: b, integer, at least the bands and at most n.
    sampling_prob: p, in (0, 1).
    factor: a, float >= 1.
    starts: [.] float64, P(r) for each r < b; with one entry, both copies are
      eligible from round 0 on.

  Attributes:
    log_normalizer: ln A; infinity if A leaves the range of float64.
  """

  def __init__(
    self,
    gram: np.ndarray,
    min_sep: int,
    sampling_prob: float,
    factor: float,
    starts: np.ndarray,
  ):
    b, p = min_sep, sampling_prob
    # Number of rounds before round 0 in the tables.
    self._before = b if len(starts) > 1 else 0
    gram = np.concatenate([np.zeros((self._before, gram.shape[1])), gram])
    rounds, bands = gram.shape
    both, one = np.ones(rounds + b), np.ones((rounds + b, b))
    # both[i] is E_i, and one[i, u] is F_(i, u). The values one[i + d, d] for
    # d = 1, 2, ... are diagonals[i * b :: b + 1].
    diagonals = one.reshape(-1)[b + 1 :]
    weights = np.ones(rounds + b)
    with np.errstate(over='ignore', invalid='ignore'):
      weights[:rounds] = np.exp(factor * (factor - 1) / 2 * gram[:, 0])
      gains = np.exp(factor**2 * gram)
      single, twice = np.empty(rounds), np.empty(rounds)
      for i in range(rounds - 1, -1, -1):
        joins = np.empty(b)
        np.multiply(
          weights[i + 1 : i + b],
          diagonals[i * b :: b + 1][: b - 1],
          out=joins[:0:-1],
        )
        joins[: b - bands : -1] *= gains[i, 1:]
        joins *= p
        joins[0] = both[i + b]
        one[i] = scipy.signal.lfilter([1.0], [1.0, p - 1], joins)
        single[i] = 2 * p * (1 - p) * weights[i] * one[i, -1]
        twice[i] = (p * weights[i]) ** 2 * gains[i, 0] * one[i, 0]
        both[i] = (1 - p) ** 2 * both[i + 1] + single[i] + twice[i]
      r = np.arange(len(starts))
      later, ahead = np.maximum.outer(r, r), np.abs(np.subtract.outer(r, r))
      tilted = np.outer(starts, starts)
      # Without rounds before round 0, both copies are eligible in round 0.
      tilted *= one[later, ahead] if self._before else both[0]
      total = tilted.sum()
      self.log_normalizer = math.log(total) if total < math.inf else math.inf
      self._shape = tilted.shape
      # Sums of the odds of the pairs of starts, up to each pair.
      self._cumulative = np.cumsum(tilted.ravel() / total)
      self._cumulative /= self._cumulative[-1]
      self._twice = twice / (single + twice)
      # Logarithms, up to sign and constants, of two probabilities: that neither
      # copy takes part before round i, if both are eligible from round 0 on;
      # and, after one copy took part in round i, that the other copy does not
      # take part before round i + b - u.
      log_out = math.log1p(-p)
      self._survived = -np.log(both[: rounds + 1])
      self._survived -= 2 * log_out * np.arange(rounds + 1)
      self._left = np.log(one[:rounds]) - log_out * np.arange(b)

  def draw(
    self, rng: np.random.Generator, count: int
  ) -> scipy.sparse.csr_matrix:
    """Returns 1_S + 1_S' of `count` pairs, [n, count] float64, sparse."""
    rounds, b = self._left.shape
    who = np.arange(count)
    # In state (-b, 0) both copies are eligible from round 0 on.
    at, age = np.full(count, -b), np.zeros(count, np.int64)
    if self._before:
      drawn = np.searchsorted(self._cumulative, rng.random(count), 'right')
      first, second = np.unravel_index(drawn, self._shape)
      at, age = np.maximum(first, second), np.abs(first - second)
    pairs = []
    while len(who):
      until = self._left[at, age] - rng.standard_exponential(len(who))
      left = self._first(at, age, until)
      taken, free = at + b - left, left == 0
      start = np.minimum(taken[free], rounds)
      until = self._survived[start] + rng.standard_exponential(len(start))
      taken[free] = np.searchsorted(self._survived, until, side='right') - 1
      here = taken < rounds
      who, free, taken = who[here], free[here], taken[here]
      again = free.copy()
      again[free] = rng.random(free.sum()) < self._twice[taken[free]]
      pairs += [(taken, who), (taken[again], who[again])]
      age = np.where(free, np.where(again, 0, b - 1), taken - at[here])
      at = taken
    indices = np.concatenate(pairs, axis=1)
    return scipy.sparse.csr_matrix(
      (np.ones(indices.shape[1]), indices), shape=(rounds, count)
    )[self._before :]

  def _first(self, at, age, until):
    """Returns the least u <= age with left[at, u] >= until, by bisection."""
    low, high = np.zeros_like(age), age.copy()
    while (low < high).any():
      middle = (low + high) // 2
      enough = self._left[at, middle] >= until
      high = np.where(enough, middle, high)
      low = np.where(enough, low, np.minimum(middle + 1, high))
    return low
