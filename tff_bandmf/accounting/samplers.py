"""Cohorts drawn exactly as the accountants assume.

| symbol | name here    | meaning                                              |
|--------|--------------|------------------------------------------------------|
| m      | `population` | clients, by index                                    |
| t      | `round_index` | the round                                           |
| w      | `words`      | independent uniform integers of 64 bits: a function  |
|        |              | of a secret key, a row and a coordinate              |

A cohort is a pure function of (key, t): whoever has the key draws it again, in
any order of rounds, in any process. The key is fresh from the operating system
and serves nothing else; who knows it, or sees the cohorts, has the guarantee
without amplification.

A client takes part where its word is below p 2^64. Probabilities are multiples
of 2^-64 here (`check_prob` rounds down, and the accountant gets what it
returns), so that nothing is left to round: an ideal w gives exactly p.
"""

from __future__ import annotations

import abc
import math
from typing import Any, Callable

import numpy as np

from tff_bandmf import _checks, errors

# words(row, first coordinate, count) -> [count] uint64.
Words = Callable[[int, int, int], np.ndarray]

# Probability that a cohort of a run exceeds `largest_cohort`; part of delta.
OVERSIZE = 1e-24

_WORDS = 2**64
# Words made at once: they stay in cache.
_PIECE = 2**17


def check_prob(name: str, value: Any, remedy: str) -> float:
  """Returns a probability in (0, 1] as it is drawn, a multiple of 2^-64.

  Numbers from 2^-12 on are such multiples; smaller ones are rounded down.

  Raises:
    TypeError: `value` is not a number.
    ValueError: it is out of range.
  """
  drawn = math.floor(_checks.between(name, value, 0, 1, remedy) * _WORDS)
  if not drawn:
    raise errors.value_error(name, value, 'must be at least 2^-64', remedy)
  return drawn / _WORDS


class Sampler(abc.ABC):
  """Draws the cohorts of one key."""

  def __init__(self, words: Words, population: int):
    """Takes m, and words of the key: pieces begin at multiples of 8."""
    self._words = words
    self._population = population

  @abc.abstractmethod
  def cohort(self, round_index: int) -> np.ndarray:
    """Returns the clients of a round, [.] int64 indices, ascending."""

  def _drawn(self, row: int, count: int, prob: float) -> np.ndarray:
    """Returns each index below `count` with probability `prob`, ascending.

    They are drawn by a row of the words; `prob` is a multiple of 2^-64.
    """
    # PRIVACY: p 2^64 words are below p 2^64, and no more.
    # Guard: samplers_test.test_words_below_the_probability_take_part.
    most = np.uint64(int(prob * _WORDS) - 1)
    found = [np.empty(0, np.int64)]
    for start in range(0, count, _PIECE):
      words = self._words(row, start, min(_PIECE, count - start))
      found.append(np.flatnonzero(words <= most) + start)
    return np.concatenate(found)


class CyclicPoisson(Sampler):
  """Groups of floor(m / g) clients, one open a round, each drawn with q.

  The partition is a random order of all clients, cut. Clients beyond the last
  whole group, fewer than g, never take part. The guarantee holds for every
  partition that does not depend on data; q alone must be exact.
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
    # PRIVACY: a client of another group has no round before its turn. Guard:
    # samplers_test.test_real_samplers_pass_and_wrong_ones_are_rejected.
    members = self._members[round_index % len(self._members)]
    # Row 0 has the partition.
    return members[self._drawn(round_index + 1, len(members), self._prob)]


class BallsInBins(Sampler):
  """Each client draws one bin, once; round t is bin t mod b."""

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
    """Returns a number below `bins` for each client, all as likely, int64."""
    row, words = 0, self._words(0, 0, self._population).copy()
    # PRIVACY: the last words would give the first bins once more than others.
    # Guard: samplers_test.test_bins_are_equally_likely_to_the_last_word.
    most = np.uint64(_WORDS // bins * bins - 1)
    while len(again := np.flatnonzero(words > most)):
      row += 1
      words[again] = self._words(row, 0, self._population)[again]
    return (words % np.uint64(bins)).astype(np.int64)


class BMinSep(Sampler):
  """Who took part in none of the last b - 1 rounds joins with probability p.

  Everybody may take part in round 0, as `b_min_sep` assumes. What is drawn in a
  round depends on the rounds before, which are drawn again where a run goes on.
  """

  def __init__(
    self, words: Words, population: int, min_sep: int, sampling_prob: float
  ):
    super().__init__(words, population)
    self._min_sep, self._prob = min_sep, sampling_prob
    self._begin()

  def _begin(self) -> None:
    self._last, self._cohort = -1, np.empty(0, np.int64)
    # The first round that a client may take part in.
    self._from = np.zeros(self._population, np.int64)

  def cohort(self, round_index: int) -> np.ndarray:
    if round_index < self._last:
      self._begin()
    while self._last < round_index:
      self._last += 1
      drawn = self._drawn(self._last, self._population, self._prob)
      # PRIVACY: rounds of a client nearer than b share rows of C. Guard:
      # samplers_test.test_real_samplers_pass_and_wrong_ones_are_rejected.
      self._cohort = drawn[self._from[drawn] <= self._last]
      self._from[self._cohort] = self._last + self._min_sep
    return self._cohort


def largest_cohort(clients: int, probs: np.ndarray) -> int:
  """Returns a size that no cohort of a run exceeds, but with `OVERSIZE`.

    P[N_t > L] <= e^(-m KL(x || p_t)),  x = (L + 1) / m       (Chernoff)

  added up over rounds, for N_t the sum of m independent draws.

  Args:
    clients: m, who are drawn from in a round.
    probs: [n] p_t, of each of them in round t.
  """
  most = -math.log(OVERSIZE / len(probs))
  prob = float(np.max(probs))
  low, high = math.ceil(clients * prob), clients
  while low < high:
    size = (low + high) // 2
    # PRIVACY: a larger cohort burns its round, which shows who was drawn; with
    # this probability, which is part of delta.
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
