"""Samplers: cohorts drawn exactly as the accountants assume.

| symbol | name here    | meaning                                              |
|--------|--------------|------------------------------------------------------|
| m      | `population` | number of clients                                    |
| t      | `round_index` | index of the round                                  |
| w      | `words`      | independent uniform integers of 64 bits: a function  |
|        |              | of a secret key, a row and a coordinate              |

A cohort is a pure function of (key, t): any process with the key draws the same
cohorts, in any order of rounds. The key is fresh from the operating system and
has no other use. Against an adversary who knows the key, or sees the cohorts,
only the guarantee without amplification holds.

A client takes part with probability p if its word is below p 2^64. All
probabilities are multiples of 2^-64: `check_prob` rounds them down, and the
accountant uses the rounded values. So with uniform words each client takes part
with exactly the probability in the accounting.
"""

from __future__ import annotations

import abc
import math
from typing import Callable, Optional

import numpy as np

from tff_bandmf import _checks
from tff_bandmf.accounting.methods import stop_probability as stops

# words(row, first coordinate, count) -> [count] uint64.
Words = Callable[[int, int, int], np.ndarray]

# Number of values of a word.
# PRIVACY: A word is compared with a threshold that is a probability times this
# number. With another number, clients would be drawn with other probabilities
# than accounted.
# Guard: samplers_test.test_real_samplers_pass_and_wrong_ones_are_rejected.
_WORDS = 2**64
# Number of words computed at once; they fit into a processor's cache.
_PIECE = 2**17


def check_prob(value: float) -> float:
  """Returns a `sampling_prob`, rounded down to a multiple of 2^-64.

  All float64 numbers from 2^-12 to 1 are such multiples.

  Raises:
    TypeError: `value` is not a number.
    ValueError: `value` is below 2^-64 or above 1.
  """
  remedy = 'give the probability of a client that may take part'
  prob = _checks.between('sampling_prob', value, 1 / _WORDS, 1, remedy)
  return math.floor(prob * _WORDS) / _WORDS


class Sampler(abc.ABC):
  """Draws the cohorts of a run with one key."""

  def __init__(self, words: Words, population: int):
    """Initializes the sampler.

    Args:
      words: random words of the key; first coordinates must be multiples of
        8, the number of words in a block of the generator.
      population: m, number of clients.
    """
    self._words = words
    self._population = population

  @abc.abstractmethod
  def cohort(self, round_index: int) -> np.ndarray:
    """Returns the clients of a round, ascending int64 indices."""

  def _drawn(self, row: int, count: int, prob: float) -> np.ndarray:
    """Returns random indices: each index below `count` with probability `prob`.

    Args:
      row: row of the words to use.
      count: number of indices to draw from.
      prob: probability in (0, 1], a multiple of 2^-64.

    Returns:
      Ascending int64 indices.
    """
    # PRIVACY: If more than p 2^64 of the words drew a client, clients would
    # take part more often than the accountant assumes. A client is drawn by
    # exactly the words below p 2^64.
    # Guard: samplers_test.test_words_below_the_probability_take_part.
    most = np.uint64(int(prob * _WORDS) - 1)
    drawn = [np.empty(0, np.int64)]
    for start in range(0, count, _PIECE):
      words = self._words(row, start, min(_PIECE, count - start))
      drawn.append(np.flatnonzero(words <= most) + start)
    return np.concatenate(drawn)


class CyclicPoisson(Sampler):
  """Each client of group t mod g takes part in round t with probability q.

  There are g groups of floor(m / g) clients, which are consecutive parts of a
  random order of all clients. The remaining clients, fewer than g, never take
  part. The guarantee holds for every partition into groups that does not depend
  on data, but only for the q that the accountant uses.
  """

  def __init__(
    self, words: Words, population: int, groups: int, sampling_prob: float
  ):
    super().__init__(words, population)
    self._prob = sampling_prob
    size = population // groups
    order = np.argsort(words(0, 0, population), kind='stable')
    self._members = np.sort(order[: groups * size].reshape(groups, size))

  def cohort(self, round_index: int) -> np.ndarray:
    # PRIVACY: If a client could be drawn in another group's round, columns of C
    # for the client's rounds could have non-zero entries in the same row, and
    # the claimed epsilon would not be proved. Clients are drawn only from the
    # group of the round.
    # Guard: samplers_test.test_real_samplers_pass_and_wrong_ones_are_rejected.
    members = self._members[round_index % len(self._members)]
    # Row 0 drew the partition.
    return members[self._drawn(round_index + 1, len(members), self._prob)]


class BallsInBins(Sampler):
  """Each client draws one of b bins once; bin t mod b takes part in round t."""

  def __init__(self, words: Words, population: int, bins: int):
    super().__init__(words, population)
    row, drawn = 0, words(0, 0, population).copy()
    # PRIVACY: If the 2^64 mod b largest words were assigned to bins, the first
    # bins would be more likely than the accountant assumes. A client with one
    # of these words gets another word.
    # Guard: samplers_test.test_bins_are_equally_likely_to_the_last_word.
    most = np.uint64(_WORDS // bins * bins - 1)
    while len(again := np.flatnonzero(drawn > most)):
      row += 1
      drawn[again] = words(row, 0, population)[again]
    # Each client gets a uniform random integer below `bins`.
    drawn = (drawn % np.uint64(bins)).astype(np.int64)
    self._order = np.argsort(drawn, kind='stable')
    self._ends = np.cumsum(np.bincount(drawn, minlength=bins))

  def cohort(self, round_index: int) -> np.ndarray:
    bin_index = round_index % len(self._ends)
    first = self._ends[bin_index - 1] if bin_index else 0
    return self._order[first : self._ends[bin_index]]


class BMinSep(Sampler):
  """Each eligible client takes part with probability p.

  A client is eligible from a random first round on, except in the b - 1 rounds
  after each round in which it takes part. Each of the rounds 1, ..., b - 1 is
  the first round with probability `wait_prob`; otherwise it is round 0. The
  cohort of a round depends on earlier cohorts, which are drawn again if a run
  resumes.
  """

  def __init__(
    self,
    words: Words,
    population: int,
    min_sep: int,
    sampling_prob: float,
    wait_prob: Optional[float] = None,
  ):
    """Initializes the sampler.

    Args:
      words: random words of the key.
      population: m, number of clients.
      min_sep: b, least distance of two rounds of a client, integer >= 1.
      sampling_prob: p, in (0, 1), a multiple of 2^-64.
      wait_prob: probability of each of the rounds 1, ..., b - 1 as the first
        eligible round, a multiple of 2^-64, at most 1 / (b - 1). If None, all
        clients are eligible in round 0.
    """
    super().__init__(words, population)
    self._min_sep, self._prob = min_sep, sampling_prob
    self._wait_prob = wait_prob
    self._begin()

  def _begin(self) -> None:
    self._last, self._cohort = -1, np.empty(0, np.int64)
    # For each client, the next round in which the client is eligible.
    self._from = np.zeros(self._population, np.int64)
    if not self._wait_prob:
      return
    # PRIVACY: If first eligible rounds had other probabilities than the
    # accountant assumes, epsilon would be proved for other cohorts than were
    # drawn. Each of the rounds 1 to b - 1 comes from exactly `wait_prob` 2^64
    # words, and round 0 comes from all other words.
    # Guard: samplers_test.test_first_rounds_are_dealt_to_the_last_word.
    each = int(self._wait_prob * _WORDS)
    most = np.uint64((self._min_sep - 1) * each - 1)
    for start in range(0, self._population, _PIECE):
      part = slice(start, min(start + _PIECE, self._population))
      words = self._words(0, start, part.stop - start)
      dealt = words // np.uint64(each) + 1
      self._from[part] = np.where(words <= most, dealt, 0)

  def cohort(self, round_index: int) -> np.ndarray:
    if round_index < self._last:
      self._begin()
    while self._last < round_index:
      # PRIVACY: If a round used the random words of another round, clients
      # would be drawn with other probabilities than accounted. Each round has
      # its own row of words.
      # Guards:
      # samplers_test.test_real_samplers_pass_and_wrong_ones_are_rejected and
      # samplers_test.test_pattern_of_a_warm_client_has_its_probability.
      self._last += 1
      # With a `wait_prob`, row 0 drew the first eligible rounds.
      row = self._last + (self._wait_prob is not None)
      drawn = self._drawn(row, self._population, self._prob)
      # PRIVACY: If two rounds of a client were less than b apart, their columns
      # of C could have non-zero entries in the same row, and the claimed
      # epsilon would not be proved. A client that takes part is not eligible in
      # the next b - 1 rounds.
      # Guard:
      # samplers_test.test_real_samplers_pass_and_wrong_ones_are_rejected.
      self._cohort = drawn[self._from[drawn] <= self._last]
      # PRIVACY: If a client stayed eligible after this round, it could take
      # part twice within b rounds. Its next eligible round is b rounds later.
      # Guard:
      # samplers_test.test_real_samplers_pass_and_wrong_ones_are_rejected.
      self._from[self._cohort] = self._last + self._min_sep
    return self._cohort


def largest_cohort(clients: int, probs: np.ndarray) -> int:
  """Returns an L that cohorts of a run exceed with probability <= OVERSIZE.

  OVERSIZE is `stop_probability.OVERSIZE`.

  The number N_t of clients in round t is the sum of m independent draws, so

    P[N_t > L] <= e^(-m KL(x || p_t)),  x = (L + 1) / m       (Chernoff)

  and the sum of these bounds over all rounds is at most OVERSIZE.

  Args:
    clients: m, number of clients from which a round is drawn.
    probs: [n] float64, p_t, probability of each of these clients in round t.
  """
  most = -math.log(stops.OVERSIZE / len(probs))
  prob = float(np.max(probs))
  low, high = math.ceil(clients * prob), clients
  while low < high:
    size = (low + high) // 2
    # PRIVACY: If a round has no release because its cohort is too large, the
    # adversary learns something about the drawn clients. The probability of
    # such a round is at most `stops.OVERSIZE`, which is part of delta.
    # Guard: samplers_test.test_largest_cohort_is_exceeded_as_seldom_as_stated.
    if clients * _divergence((size + 1) / clients, prob) >= most:
      high = size
    else:
      low = size + 1
  return low


def _divergence(x: float, p: float) -> float:
  """Returns KL(Bernoulli(x) || Bernoulli(p)) in nats, for x > p."""
  if p >= 1:
    return math.inf
  rest = (1 - x) * math.log((1 - x) / (1 - p)) if x < 1 else 0.0
  return x * math.log(x / p) + rest
