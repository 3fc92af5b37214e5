"""Draws cohorts exactly as the accountants assume.

| symbol | name here    | meaning                                              |
|--------|--------------|------------------------------------------------------|
| m      | `population` | number of clients                                    |
| t      | `round_index` | index of the round                                  |
| w      | `words`      | independent uniform integers of 64 bits: a function  |
|        |              | of a secret key, a row and a coordinate              |

A cohort is a pure function of (key, t): any process with the key draws it
again, in any order of rounds. The key is fresh from the operating system and
has no other use. Against an adversary who knows the key, or sees the cohorts,
the guarantee holds without amplification only.

A client takes part if its word is below p 2^64. Probabilities are multiples of
2^-64: `check_prob` rounds down, and the accountant gets the rounded value. So
an ideal w draws each client with exactly the probability that is accounted for.
"""

from __future__ import annotations

import abc
import math
from typing import Callable, Optional

import numpy as np

from tff_bandmf import _checks, errors

# words(row, first coordinate, count) -> [count] uint64.
Words = Callable[[int, int, int], np.ndarray]

# Probability that a cohort of a run exceeds `largest_cohort`; part of delta.
OVERSIZE = 1e-24

_WORDS = 2**64
# Words made at once, few enough to stay in a processor's cache.
_PIECE = 2**17


def check_prob(name: str, value: object, remedy: str) -> float:
  """Returns a probability, rounded down to a multiple of 2^-64.

  Floats from 2^-12 on are such multiples; smaller ones are rounded down.

  Raises:
    TypeError: `value` is not a number.
    ValueError: `value` is below 2^-64 or above 1.
  """
  drawn = math.floor(_checks.between(name, value, 0, 1, remedy) * _WORDS)
  if not drawn:
    raise errors.value_error(
      f'{name}={value}: must be at least 2^-64; {remedy}'
    )
  return drawn / _WORDS


class Sampler(abc.ABC):
  """Draws the cohorts of one key."""

  def __init__(self, words: Words, population: int):
    """Initializes the sampler.

    Args:
      words: random words of the key; the sampler asks for coordinates from
        multiples of 8 on.
      population: m, number of clients.
    """
    self._words = words
    self._population = population

  @abc.abstractmethod
  def cohort(self, round_index: int) -> np.ndarray:
    """Returns the clients of a round, [.] int64 indices, ascending."""

  def _drawn(self, row: int, count: int, prob: float) -> np.ndarray:
    """Returns each index below `count` with probability `prob`, ascending.

    Args:
      row: row of the words to use.
      count: number of indices.
      prob: probability in (0, 1], a multiple of 2^-64.
    """
    # PRIVACY: one word too many that passes would draw clients more often than
    # the accountant assumes. Exactly the p 2^64 words below p 2^64 pass.
    # Guard: samplers_test.test_words_below_the_probability_take_part.
    most = np.uint64(int(prob * _WORDS) - 1)
    drawn = [np.empty(0, np.int64)]
    for start in range(0, count, _PIECE):
      words = self._words(row, start, min(_PIECE, count - start))
      drawn.append(np.flatnonzero(words <= most) + start)
    return np.concatenate(drawn)


class CyclicPoisson(Sampler):
  """Groups of floor(m / g) clients, one open a round, each drawn with q.

  The groups are consecutive parts of a random order of all clients. Clients
  beyond the last whole group, fewer than g, never take part. The guarantee
  holds for every partition that does not depend on data; only q must be exact.
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
    # PRIVACY: a client drawn outside its group's turn would have rounds whose
    # columns overlap. Only the group of the round is drawn from.
    # Guard: samplers_test.test_real_samplers_pass_and_wrong_ones_are_rejected.
    members = self._members[round_index % len(self._members)]
    # Row 0 drew the partition.
    return members[self._drawn(round_index + 1, len(members), self._prob)]


class BallsInBins(Sampler):
  """Each client draws one bin, once; round t takes bin t mod b."""

  def __init__(self, words: Words, population: int, bins: int):
    super().__init__(words, population)
    drawn = self._uniform(bins)
    self._order = np.argsort(drawn, kind='stable')
    self._ends = np.cumsum(np.bincount(drawn, minlength=bins))

  def cohort(self, round_index: int) -> np.ndarray:
    place = round_index % len(self._ends)
    first = self._ends[place - 1] if place else 0
    return self._order[first : self._ends[place]]

  def _uniform(self, bins: int) -> np.ndarray:
    """Returns a uniform number below `bins` for each client, [m] int64."""
    row, words = 0, self._words(0, 0, self._population).copy()
    # PRIVACY: the last 2^64 mod b words would make the first bins likelier than
    # the accountant assumes. Such words are drawn again.
    # Guard: samplers_test.test_bins_are_equally_likely_to_the_last_word.
    most = np.uint64(_WORDS // bins * bins - 1)
    while len(again := np.flatnonzero(words > most)):
      row += 1
      words[again] = self._words(row, 0, self._population)[again]
    return (words % np.uint64(bins)).astype(np.int64)


class BMinSep(Sampler):
  """Draws each client without a round in the last b - 1 with probability p.

  The first round in which a client is eligible is r with probability
  `wait_prob` each for r = 1, ..., b - 1, and else 0; without a `wait_prob` it
  is 0 for all clients. The cohort of a round depends on the rounds before,
  which are drawn again if a run resumes.
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
      words: the argument of `Sampler`.
      population: m, number of clients.
      min_sep: b, least distance of two rounds of a client, integer >= 1.
      sampling_prob: p, in (0, 1), a multiple of 2^-64.
      wait_prob: a multiple of 2^-64, at most 1 / (b - 1); None if all clients
        are eligible in round 0.
    """
    super().__init__(words, population)
    self._min_sep, self._prob = min_sep, sampling_prob
    self._wait_prob = wait_prob
    self._begin()

  def _begin(self) -> None:
    self._last, self._cohort = -1, np.empty(0, np.int64)
    # The first round that a client may take part in.
    self._from = np.zeros(self._population, np.int64)
    if not self._wait_prob:
      return
    # PRIVACY: a client that waits with another probability than the accountant
    # assumes has rounds of another law. Exactly w words give each of the rounds
    # 1 to b - 1, and all others round 0.
    # Guard: samplers_test.test_first_rounds_are_dealt_to_the_last_word.
    each = int(self._wait_prob * _WORDS)
    most = np.uint64((self._min_sep - 1) * each - 1)
    for start in range(0, self._population, _PIECE):
      part = slice(start, min(start + _PIECE, self._population))
      words = self._words(0, start, part.stop - start)
      self._from[part] = np.where(
        words <= most, words // np.uint64(each) + 1, 0
      )

  def cohort(self, round_index: int) -> np.ndarray:
    if round_index < self._last:
      self._begin()
    while self._last < round_index:
      self._last += 1
      # Row 0 drew the first rounds, where clients wait.
      row = self._last + (self._wait_prob is not None)
      drawn = self._drawn(row, self._population, self._prob)
      # PRIVACY: rounds of a client less than b apart share rows of C, which the
      # proof excludes. A client is not drawn again before b rounds have passed.
      # Guard:
      # samplers_test.test_real_samplers_pass_and_wrong_ones_are_rejected.
      self._cohort = drawn[self._from[drawn] <= self._last]
      self._from[self._cohort] = self._last + self._min_sep
    return self._cohort


def largest_cohort(clients: int, probs: np.ndarray) -> int:
  """Returns a size that some cohort exceeds with probability <= `OVERSIZE`.

    P[N_t > L] <= e^(-m KL(x || p_t)),  x = (L + 1) / m       (Chernoff)

  added up over rounds, for N_t the sum of m independent draws.

  Args:
    clients: m, number of clients from which a round is drawn.
    probs: [n] float64, p_t, probability of each of these clients in round t.
  """
  most = -math.log(OVERSIZE / len(probs))
  prob = float(np.max(probs))
  low, high = math.ceil(clients * prob), clients
  while low < high:
    size = (low + high) // 2
    # PRIVACY: a larger cohort burns its round, which tells about the clients
    # drawn. Its probability is at most `OVERSIZE`, which is part of delta.
    # Guard: samplers_test.test_largest_cohort_is_exceeded_as_seldom_as_stated.
    if clients * _divergence((size + 1) / clients, prob) >= most:
      high = size
    else:
      low = size + 1
  return low


def _divergence(x: float, p: float) -> float:
  """Returns KL of Bernoulli(x) from Bernoulli(p), in nats, for x > p."""
  if p >= 1:
    return math.inf
  rest = (1 - x) * math.log((1 - x) / (1 - p)) if x < 1 else 0.0
  return x * math.log(x / p) + rest
