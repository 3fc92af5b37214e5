"""Pairs of sets of a client's rounds, drawn for importance sampling.

S and S' are two independent draws of the set of rounds that b-min-sep sampling
gives a client; each is called a copy. The joint law of S and S' is weighted by
e^t, so that pairs whose columns overlap are drawn more often; the module
`importance` says why. Let c_i be column i of C divided by the standard
deviation s of z, and let a >= 1 be the parameter of the weight,
`importance.Tilt.factor`. Rounds of one copy are at least b apart, and C has at
most b bands, so the columns of these rounds do not overlap, and

  t = sum a (a - 1) |c_i|^2 / 2, over i in S and in S',
      + sum a^2 <c_i, c_k>, over i in S and k in S'.

In the second sum, columns of rounds that are b or more apart contribute 0. For
each round i of one copy, at most one round of the other copy is in [i - b + 1,
i]. So the mean of e^t follows from a recursion over the remaining rounds. A
copy is eligible in a round if it may take part in the round; it then takes part
with probability p.

A term of t belongs to the later of its rounds; t_i is the sum of the terms that
belong to round i. Let E_i be the mean of e^(t_i + t_(i + 1) + ...) if both
copies are eligible from round i on. Let F_(i, u), 0 <= u < b, be the mean of
e^(t_(i + 1) + t_(i + 2) + ...) in the state (i, u): one copy took part in round
i, and the other copy is eligible from round k = i + b - u on. With
w_i = e^(a (a - 1) |c_i|^2 / 2) and g_ik = e^(a^2 <c_i, c_k>),

  F_(i, 0) = E_(i + b)
  F_(i, u) = (1 - p) F_(i, u - 1) + p w_k g_ik F_(k, k - i)
  E_i = (1 - p)^2 E_(i + 1) + 2 p (1 - p) w_i F_(i, b - 1)
        + p^2 w_i^2 g_ii F_(i, 0)

E_i and F_(i, u) are 1 if i is past the last round. If both copies are eligible
from round 0 on, the normalizer is A = E_0. Otherwise the copies are eligible
from random rounds r and r' on, with probabilities P(r) and P(r'). This is the
state (i, u) with i = max(r, r') - b and u = |r - r'|: the copy that is eligible
later counts as having taken part in round i < 0. Columns of rounds before round
0 are 0, so these rounds have g = w = 1, and

  A = sum over r and r' of P(r) P(r') F_(max(r, r') - b, |r - r'|)
"""

from __future__ import annotations

import functools
import math

import numpy as np
import scipy
import scipy.sparse


class Pairs:
  """The joint law of two copies of a client's rounds, weighted by e^t.

  Args:
    gram: [n, bands] float64, <c_i, c_(i + d)> >= 0 in row i and column d; the
      columns c of this module are divided by s.
    min_sep: b, integer, at least the number of bands and at most n.
    sampling_prob: p, in (0, 1).
    factor: a, float >= 1.
    starts: [b] float64, P(r) for each r < b; or [1], if both copies are
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
    # Number of rounds before round 0 in the tables `both`, `one` and `weights`.
    # From here on, i counts rows of these tables: i = `_before` is round 0.
    self._before = b if len(starts) > 1 else 0
    gram = np.concatenate([np.zeros((self._before, gram.shape[1])), gram])
    rounds, bands = gram.shape
    both, one = np.ones(rounds + b), np.ones((rounds + b, b))
    # both[i] is E, and one[i, u] is F, of the round in row i. The values
    # one[i + d, d] for d = 1, 2, ... are diagonals[i * b :: b + 1].
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
      # If the tables begin at round 0, both copies are eligible in round 0.
      tilted *= one[later, ahead] if self._before else both[0]
      total = tilted.sum()
      self.log_normalizer = math.log(total) if total < math.inf else math.inf
      self._shape = tilted.shape
      # Cumulative probabilities of the pairs (r, r') under the weighted law.
      self._cumulative = np.cumsum(tilted.ravel() / total)
      self._cumulative /= self._cumulative[-1]
      self._twice = twice / (single + twice)
      # If both copies are eligible from the first row on, neither takes part
      # before row i with probability e^(survived[0] - survived[i]).
      self._log_out = math.log1p(-p)
      self._survived = -np.log(both[: rounds + 1])
      self._survived -= 2 * self._log_out * np.arange(rounds + 1)
      self._one = one[:rounds]

  @functools.cached_property
  def _left(self) -> np.ndarray:
    """Log survival of one copy, [rows, b] float64, computed when first needed.

    If one copy took part in row i, and the other is eligible from row i + b - v
    on, the other does not take part before row i + b - u with probability
    e^(left[i, u] - left[i, v]), for u <= v.
    """
    return np.log(self._one) - self._log_out * np.arange(self._one.shape[1])

  def draw(
    self, rng: np.random.Generator, count: int
  ) -> scipy.sparse.csr_matrix:
    """Returns 1_S + 1_S' of `count` pairs, [n, count] float64, sparse."""
    rounds, b = self._left.shape
    who = np.arange(count)
    # In the state (-b, 0) both copies are eligible from round 0 on.
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
    """Returns the least u <= age with left[at, u] >= until; else age.

    left[at, u] increases with u, so this is the largest u <= age with
    left[at, u - 1] < until. Its bits are found one by one.
    """
    left, start = self._left.ravel(), at * self._left.shape[1] - 1
    least = np.zeros_like(age)
    for bit in reversed(range(int(age.max(initial=0)).bit_length())):
      u = least + (1 << bit)
      below = left.take(start + u, mode='clip') < until
      least = np.where(below & (u <= age), u, least)
    return least
