"""Sets of a client's rounds, drawn several at once for importance sampling.

Copies S_1, ..., S_r are independent draws of the set of rounds that b-min-sep
sampling gives one client. The joint law of r copies is weighted by e^t, so that
copies whose columns overlap are drawn more often; the module `importance` says
why. Let c_i be column i of C divided by the standard deviation s of z, and let
a >= 1 be the parameter of the weight, `importance.Tilt.factor`. The columns of
the rounds of one copy do not overlap, since C has at most b bands, and

  t = sum a (a - 1) |c_i|^2 / 2, over the rounds i of all copies,
      + sum a^2 <c_i, c_k>, over the rounds i and k of each pair of copies.

The wait of a copy is the number of rounds until the copy is eligible: 0 if it
is eligible, and b - d if it took part d < b rounds ago. A term of t belongs to
the later of its rounds. A state x is the multiset of the r waits before a round
i. Let V_i(x) be the mean of e^(sum of the terms of the rounds from i on), given
x. Only copies that took part less than b rounds ago have a column that overlaps
c_i, and x has their waits. Let u copies of x be eligible. If m of them take
part in round i, x changes to x_m, and

  V_i(x) = sum_(m <= u) binomial(u, m) p^m (1 - p)^(u - m)
           e^(m h_i(x) + m (m - 1) / 2 a^2 |c_i|^2) V_(i + 1)(x_m)
  h_i(x) = a (a - 1) |c_i|^2 / 2 + sum a^2 <c_(i - d), c_i>.

The sum in h_i is over the copies that took part d rounds ago, for 0 < d < b.
V_i is 1 if i is past the last round. No copy takes part before the least wait l
of x has passed, and columns before round 0 are 0, so V_i(x) = V_(i + l)(x - l).
So a table has only the states in which some copy is eligible. There are
binomial(b + r - 2, r - 1) such states. The normalizer A is the mean of V_0 over
the first waits, which are independent.
"""

from __future__ import annotations

import functools
import itertools
import math

import numpy as np
import scipy.sparse
import scipy.special


def state_count(min_sep: int, copies: int) -> int:
  """Returns the number of states of each round."""
  return math.comb(min_sep + copies - 2, copies - 1)


# PRIVACY: Delta is a sum over the states of the copies. With a wrong number of
# orders or a wrong next state, this sum would be the delta of another sampler.
# Guard: importance_test.test_normalizer_is_the_mean_over_all_rounds.
@functools.lru_cache(maxsize=8)
def _states(min_sep: int, copies: int) -> tuple[np.ndarray, ...]:
  """Returns the states of r copies in which at least one copy is eligible.

  A state consists of r waits, and the least wait is 0.

  Returns:
    waits: [states, r - 1] int64, sorted, without the least one.
    eligible: [states], number of eligible copies.
    orders: [states], number of distinct assignments of the waits to the r
      copies.
    after: [r + 1, states]. `after[m]` says which state follows if m copies take
      part. It is an offset into the flattened table of V, counted from the row
      of the present round.
  """
  waits = np.array(
    list(itertools.combinations_with_replacement(range(min_sep), copies - 1)),
    np.int64,
  )
  all_waits = np.pad(waits, ((0, 0), (1, 0)))
  eligible = (all_waits == 0).sum(axis=1)
  orders = np.full(len(waits), math.factorial(copies), float)
  run = np.ones(len(waits))
  for before, wait in zip(all_waits.T, waits.T):
    run = np.where(wait == before, run + 1, 1)
    orders /= run
  # A state is coded as one integer, whose digits in base b are the sorted
  # waits. `places` has the place values of the digits.
  places = min_sep ** np.arange(copies - 2, -1, -1)
  codes, order = waits @ places, np.arange(copies)
  after = []
  for joined in range(copies + 1):
    # The waits are sorted, so eligible copies come first. The last `joined` of
    # the eligible copies take part.
    joins = (order < eligible[:, None]) & (order >= eligible[:, None] - joined)
    later = np.where(joins, min_sep - 1, np.maximum(all_waits - 1, 0))
    later.sort(axis=1)
    passed = later[:, :1]
    state = np.searchsorted(codes, (later - passed)[:, 1:] @ places)
    after.append(state + (1 + passed[:, 0]) * len(waits))
  return waits, eligible, orders, np.stack(after)


class Copies:
  """The joint law of r copies of a client's rounds, weighted by e^t.

  Args:
    gram: [n, bands] float64, <c_i, c_(i + d)> >= 0 in row i and column d; the
      columns c of this module are divided by s.
    min_sep: b, integer, at least the number of bands and at most n + 1.
    sampling_prob: p, in (0, 1).
    copies: r, at least 2.
    factor: a, float >= 1.
    starts: [b] float64, probability of each first wait; or [1], if all copies
      are eligible from round 0 on.

  Attributes:
    log_normalizer: ln A; infinity if A leaves the range of float64.
  """

  # PRIVACY: The weight of a sample assumes that the copies are drawn with these
  # odds. With other odds, the average of the samples would not be delta.
  # Guards: importance_test.test_copies_of_rounds_are_drawn_with_the_tilted_odds
  # and importance_test.test_normalizer_is_the_mean_over_all_rounds.
  def __init__(
    self,
    gram: np.ndarray,
    min_sep: int,
    sampling_prob: float,
    copies: int,
    factor: float,
    starts: np.ndarray,
  ):
    self._rounds, bands = gram.shape
    self._log_out = math.log1p(-sampling_prob)
    waits, eligible, orders, self._after = _states(min_sep, copies)
    joined = np.arange(copies + 1)[:, None]
    self._joined, self._pairs = joined, joined * (joined - 1) / 2
    self._eligible = eligible
    self._probs = (
      scipy.special.comb(eligible, joined)
      * sampling_prob**joined
      * np.exp(self._log_out * np.maximum(eligible - joined, 0))
    )
    # PRIVACY: If inner products of columns were left out of t, A would be too
    # small, and so would each weighted value and the bound of delta. Row i of
    # `products` has, for each wait, the product of c_i with the column of the
    # round that gives this wait. The product is 0 if that round is before round
    # 0, or if its distance from i is at least the number of bands of C.
    # Guard: importance_test.test_normalizer_is_the_mean_over_all_rounds.
    products = np.zeros((self._rounds, min_sep + 1))
    for d in range(1, min(bands, self._rounds)):
      products[d:, min_sep - d] = gram[: self._rounds - d, d]
    products = factor**2 * products[:, :min_sep]
    products[:, 0] = 0.0
    # h, [n, states], and a^2 |c|^2, [n].
    self._gains = (factor * (factor - 1) / 2 * gram[:, :1]) + sum(
      products[:, wait] for wait in waits.T
    )
    self._twice = factor**2 * gram[:, 0]
    values = np.ones((self._rounds + min_sep, len(waits)))
    with np.errstate(over='ignore', invalid='ignore'):
      for i in range(self._rounds - 1, -1, -1):
        values[i] = self._joins(values, i, slice(None)).sum(axis=0)
      # The first waits are the waits of a state, each increased by `first`.
      first = np.arange(len(starts))
      padded = np.concatenate([starts, np.zeros(min_sep)])
      law = np.tile(starts, (len(waits), 1))
      for wait in waits.T:
        law *= padded[first + wait[:, None]]
      law *= orders[:, None]
      law *= values[: len(starts)].T
      total = law.sum()
      self.log_normalizer = math.log(total) if total < math.inf else math.inf
      # Cumulative probabilities of (state, first) under the weighted law.
      self._first = np.cumsum(law / total)
      self._first /= self._first[-1]
    self._starts = len(starts)
    self._values = values

  def _joins(self, values, rounds, at) -> np.ndarray:
    """Returns the terms of V_i(x), [r + 1, states].

    Args:
      values: table of V, of which rows after i are read.
      rounds: i, one round or a round for each state.
      at: the states x.
    """
    exponents = self._joined * self._gains[rounds, at]
    exponents += self._pairs * self._twice[rounds]
    offsets = rounds * values.shape[1] + self._after[:, at]
    terms = self._probs[:, at] * np.exp(exponents)
    terms *= values.ravel().take(offsets, mode='clip')
    return terms

  @functools.cached_property
  def _logs(self) -> np.ndarray:
    return np.log(self._values)

  @functools.cached_property
  def _skips(self) -> list[tuple[np.ndarray, np.ndarray]]:
    """For each k, the result of 2^k rounds in which no copy takes part.

    The result is the state after these rounds, [states], and the sum of the
    numbers of eligible copies of these rounds, [states].
    """
    eligible = self._eligible
    after = self._after[0] - len(eligible)
    skips = [(after, eligible)]
    while len(skips) < self._rounds.bit_length():
      eligible = eligible + eligible[after]
      after = after[after]
      skips.append((after, eligible))
    return skips

  def draw(
    self, rng: np.random.Generator, count: int
  ) -> scipy.sparse.csr_matrix:
    """Returns the sum of 1_S over the copies, [n, count] float64, sparse."""
    drawn = np.searchsorted(self._first, rng.random(count), side='right')
    state, at = np.divmod(drawn, self._starts)
    who = np.arange(count)
    size = len(self._eligible)
    entries = [np.zeros((3, 0), np.int64)]
    while True:
      inside = at < self._rounds
      who, at, state = who[inside], at[inside], state[inside]
      if not len(who):
        break
      # The probability that no copy takes part in the next k rounds is
      # (1 - p)^E V_(i + k)(x_k) / V_i(x). E is the number of eligible copies,
      # summed over these rounds, and x_k is the state after them.
      least = self._logs[at, state] - rng.standard_exponential(len(who))
      for k, (after, eligible) in reversed(list(enumerate(self._skips))):
        later = at + (1 << k)
        following = after[state]
        reached = self._logs.take(later * size + following, mode='clip')
        stay = self._log_out * eligible[state]
        skips = (later <= self._rounds) & (reached + stay >= least)
        least = np.where(skips, least - stay, least)
        at = np.where(skips, later, at)
        state = np.where(skips, following, state)
      inside = at < self._rounds
      who, at, state = who[inside], at[inside], state[inside]
      ends = np.cumsum(self._joins(self._values, at, state)[1:], axis=0)
      joined = 1 + (ends <= rng.random(len(who)) * ends[-1]).sum(axis=0)
      entries.append(np.stack([joined, at, who]))
      passed, state = np.divmod(self._after[joined, state], size)
      at = at + passed
    joined, rows, who = np.concatenate(entries, axis=1)
    return scipy.sparse.csr_matrix(
      (joined.astype(float), (rows, who)), shape=(self._rounds, count)
    )
