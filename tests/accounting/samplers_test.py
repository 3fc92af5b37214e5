"""Tests of the samplers: by enumeration, by statistics, against wrong ones.

Statistics raise a false alarm with a probability of 1e-6 each, about thirty of
them in all; their keys are fixed, so that a sound sampler never starts to fail.
The same statistics must reject samplers that are nearly right.
"""

import collections
import fractions
import functools
import itertools
import math

import numpy as np
import pytest
import scipy.stats

from tff_bandmf import accounting
from tff_bandmf.accounting.kinds import b_min_sep, samplers
from tff_bandmf.accounting.methods import stop_probability as stops
from tff_bandmf.noise import generator, key

_FALSE_ALARM = 1e-6
_CLIENTS, _ROUNDS = 6000, 60
_CYCLIC = accounting.CyclicPoisson(0.1, 3, population=_CLIENTS)
_BINS = accounting.BallsInBins(12, population=_CLIENTS)
_MIN_SEP = accounting.BMinSep(4, 0.1, population=_CLIENTS)
_COLD = accounting.BMinSep(4, 0.1, population=_CLIENTS, start='cold')
_KINDS = [_CYCLIC, _BINS, _MIN_SEP, _COLD]


def _words(seed=0):
  return generator.Generator(key.Key.from_seed(seed)).words


def _taken(sampler, rounds=_ROUNDS, clients=_CLIENTS):
  """Returns who took part, [rounds, clients] of bool."""
  taken = np.zeros((rounds, clients), bool)
  for t in range(rounds):
    cohort = sampler.cohort(t)
    assert cohort.dtype == np.int64
    assert (np.diff(cohort) > 0).all()
    taken[t, cohort] = True
  return taken


def _two_sided(distribution, value):
  return 2 * min(distribution.cdf(value), distribution.sf(value - 1e-9))


def _chi_squared(seen, expected):
  """Returns the probabilities of so large, and of so small, a deviation."""
  chi = scipy.stats.chi2(len(seen) - 1)
  statistic = (((seen - expected) ** 2) / expected).sum()
  return chi.sf(statistic), chi.cdf(statistic)


def _sizes(taken, clients, prob):
  """Returns p-values of the sizes of independent cohorts, spread included."""
  sizes = taken.sum(1)
  total = scipy.stats.binom(len(sizes) * clients, prob)
  spread = ((sizes - clients * prob) ** 2).sum() / (clients * prob * (1 - prob))
  chi = scipy.stats.chi2(len(sizes))
  return {
    'inclusion rate': _two_sided(total, sizes.sum()),
    'sizes vary too much': chi.sf(spread),
    'sizes vary too little': chi.cdf(spread),
  }


def _of_cyclic_poisson(taken, cohorts):
  groups, q = cohorts.groups, cohorts.sampling_prob
  size = _CLIENTS // groups
  found = _sizes(taken, size, q)
  in_group = [taken[group::groups].any(0) for group in range(groups)]
  found['one group each'] = float((np.sum(in_group, 0) <= 1).all())
  # A client may be in two rounds of its group that follow one another.
  again = (taken[:-groups] & taken[groups:]).sum()
  pairs = scipy.stats.binom((len(taken) - groups) * size, q * q)
  found['rounds of a client'] = _two_sided(pairs, again)
  # How often each client took part; 0 is also who is in no group.
  counts = taken.sum(0)
  often = scipy.stats.binom(len(taken) // groups, q)
  most = 5
  seen = np.array([*((counts == i).sum() for i in range(1, most)), 0.0])
  seen[-1] = (counts >= most).sum()
  expected = np.array([*often.pmf(np.arange(1, most)), often.sf(most - 1)])
  # Given their sum.
  found['participations'], _ = _chi_squared(
    seen, expected / expected.sum() * seen.sum()
  )
  return found


def _of_balls_in_bins(taken, cohorts):
  bins = cohorts.bins
  found = {
    'one bin each': float((taken[:bins].sum(0) == 1).all()),
    'the same in every epoch': float(
      (taken == np.tile(taken[:bins], (len(taken) // bins, 1))).all()
    ),
  }
  expected = np.full(bins, _CLIENTS / bins)
  found['bins'], found['sizes vary too little'] = _chi_squared(
    taken[:bins].sum(1), expected
  )
  # Of neighbours among clients, in the order in which words are made.
  drawn = taken[:bins].argmax(0)
  same = scipy.stats.binom(_CLIENTS - 1, 1 / bins)
  found['independence'] = _two_sided(same, (drawn[1:] == drawn[:-1]).sum())
  return found


def _of_b_min_sep(taken, cohorts):
  b, p = cohorts.min_sep, cohorts.sampling_prob
  gaps, before_end = collections.Counter(), len(taken) - _LONGEST
  firsts = collections.Counter()
  for client in range(_CLIENTS):
    mine = np.flatnonzero(taken[:, client])
    firsts[mine[0] if len(mine) else len(taken)] += 1
    # A gap whose end is not seen is one of the longest.
    gaps.update(
      (after - before)
      for before, after in zip(mine, [*mine[1:], 2 * len(taken)])
      if before < before_end
    )
  found = {'gaps of b and more': float(min(gaps) >= b)}
  found['gaps'], _ = _geometric(gaps, b, p)
  if cohorts.start == 'cold':
    found['start'], _ = _geometric(firsts, 0, p)
    law = b_min_sep.Law(b, p)
  else:
    found['start'], _ = _stationary_start(firsts, b, p)
    law = b_min_sep.Law(b, p, b_min_sep.wait_prob(b, p))
  rates = b_min_sep.participation(len(taken), law)
  sizes = taken.sum(1)
  spread = ((sizes - _CLIENTS * rates) ** 2 / (_CLIENTS * rates * (1 - rates)))[
    :b
  ]
  found['sizes vary too little'] = scipy.stats.chi2(b).cdf(spread.sum())
  return found


# Gaps that are so long are in one cell.
_LONGEST = 30


def _stationary_start(firsts, b, p):
  """Returns p-values of first rounds that follow an endless past.

  The wait until a renewal, from a random time on, is t or longer with
  probability proportional to the sum of P(gap > t).
  """
  most = 30
  survival = [1.0] * b + [(1 - p) ** i for i in range(1, most)]
  odds = np.array(survival[:most]) / (b - 1 + 1 / p)
  cells = np.array([firsts[i] for i in range(most)], float)
  rest = sum(n for i, n in firsts.items() if i >= most)
  return _chi_squared(
    np.append(cells, rest),
    np.append(odds, 1 - odds.sum()) * (cells.sum() + rest),
  )


def _geometric(seen, first, p):
  """Returns p-values of numbers that begin at `first` and go on with p."""
  most = first + 20
  cells = np.array(
    [seen[i] for i in range(first, most)]
    + [sum(n for i, n in seen.items() if i >= most)],
    float,
  )
  law = scipy.stats.geom(p, loc=first - 1)
  odds = np.array([*law.pmf(np.arange(first, most)), law.sf(most - 1)])
  odds[-1] = 1 - odds[:-1].sum()
  return _chi_squared(cells, odds * cells.sum())


_STATISTICS = {
  'cyclic-poisson': _of_cyclic_poisson,
  'balls-in-bins': _of_balls_in_bins,
  'b-min-sep': _of_b_min_sep,
}


def _alarms(taken, cohorts):
  found = _STATISTICS[cohorts.name](taken, cohorts)
  return {name for name, p in found.items() if p < _FALSE_ALARM}


class _FixedSizes(samplers.CyclicPoisson):
  """So many of the group, whatever the words say."""

  def _drawn(self, row, count, prob):
    words = self._words(row, 0, count)
    return np.sort(np.argsort(words)[: round(count * prob)])


class _SameWords(samplers.CyclicPoisson):
  """Forgets that a round has words of its own."""

  def cohort(self, round_index):
    members = self._members[round_index % len(self._members)]
    return members[self._drawn(1, len(members), self._prob)]


class _Balanced(samplers.BallsInBins):
  """Bins of equal size."""

  def __init__(self, words, population, bins):
    super().__init__(words, population, bins)
    order = np.argsort(words(0, 0, population)).reshape(bins, -1)
    self._order = np.sort(order).ravel()
    self._ends = np.cumsum([population // bins] * bins)


class _EvenlySpread(samplers.BMinSep):
  """Begins with as many clients that wait for one round as for another."""

  def _begin(self):
    super()._begin()
    self._from[:] = np.arange(self._population) % self._min_sep


def _wrong():
  words = _words()
  few = 0.1 / 3
  return [
    (
      _CYCLIC,
      samplers.CyclicPoisson(words, _CLIENTS, 3, few),
      'inclusion rate',
    ),
    (
      _CYCLIC,
      samplers.CyclicPoisson(words, _CLIENTS, 2, 0.1),
      'one group each',
    ),
    (_CYCLIC, _FixedSizes(words, _CLIENTS, 3, 0.1), 'sizes vary too little'),
    (_CYCLIC, _SameWords(words, _CLIENTS, 3, 0.1), 'rounds of a client'),
    (
      _BINS,
      samplers.BallsInBins(words, _CLIENTS, 11),
      'the same in every epoch',
    ),
    (_BINS, _Balanced(words, _CLIENTS, 12), 'sizes vary too little'),
    (_COLD, samplers.BMinSep(words, _CLIENTS, 3, 0.1), 'gaps of b and more'),
    (_COLD, samplers.BMinSep(words, _CLIENTS, 5, 0.1), 'gaps'),
    (_COLD, samplers.BMinSep(words, _CLIENTS, 4, 0.08), 'gaps'),
    (_COLD, _MIN_SEP.sampler(words), 'start'),
    (_COLD, _EvenlySpread(words, _CLIENTS, 4, 0.1), 'start'),
    (_MIN_SEP, _COLD.sampler(words), 'start'),
    (_MIN_SEP, _EvenlySpread(words, _CLIENTS, 4, 0.1, 0.0), 'start'),
  ]


@pytest.mark.slow
def test_real_samplers_pass_and_wrong_ones_are_rejected():
  for cohorts in _KINDS:
    assert not _alarms(_taken(cohorts.sampler(_words())), cohorts)
  for cohorts, sampler, statistic in _wrong():
    assert statistic in _alarms(_taken(sampler), cohorts), statistic


def _fixed(table):
  """Returns words that are the entries of [rows, coordinates]."""

  def words(row, start, count):
    return np.array(table[row][start : start + count], np.uint64)

  return words


def test_words_below_the_probability_take_part():
  for prob in (0.375, 2.0**-64, 0.1):
    below = int(prob * 2**64)
    table = [range(5), [0, below - 1, below, below + 1, 2**64 - 1]]
    sampler = accounting.CyclicPoisson(prob, 1, population=5).sampler(
      _fixed(table)
    )
    assert sampler.cohort(0).tolist() == [0, 1]
  everybody = accounting.CyclicPoisson(1.0, 1, population=5)
  assert len(everybody.sampler(_fixed(table)).cohort(0)) == 5


def test_probabilities_are_drawn_as_they_are_accounted_for():
  """What words cannot give is rounded before anybody accounts for it."""
  for prob in (0.1, 6 * 9 / 2052, 1e-5, 1e-15):
    kept = accounting.CyclicPoisson(prob).sampling_prob
    assert (kept * 2**64).is_integer()
    short = fractions.Fraction(prob) - fractions.Fraction(kept)
    assert 0 <= short < fractions.Fraction(1, 2**64)
    assert accounting.BMinSep(3, prob).sampling_prob == kept
    assert (kept == prob) == (prob >= 2**-12)
  for kind in (
    accounting.CyclicPoisson,
    functools.partial(accounting.BMinSep, 3),
  ):
    with pytest.raises(ValueError, match='sampling_prob=1e-20: must be in'):
      kind(1e-20)


def test_bins_are_equally_likely_to_the_last_word():
  """Words that are left over when all are dealt out are drawn again."""
  table = [[2**64 - 1, 5, 2**64 - 2, 2**64 - 1], [7, 9, 2**64 - 1, 0], [1] * 4]
  drawn = samplers.BallsInBins(_fixed(table), 4, 3)
  # 2^64 - 1 = 3 * k: one word too many.
  assert [drawn.cohort(t).tolist() for t in range(3)] == [[3], [0], [1, 2]]


def test_first_rounds_are_dealt_to_the_last_word():
  """As many words as the probability says, for each round a client waits."""
  each = 3 * 2**61
  table = [
    [0, each - 1, each, 2 * each - 1, 2 * each, 2**64 - 1],
    # Whoever may take part does: words of the rounds.
    *[[0] * 6] * 9,
  ]
  drawn = samplers.BMinSep(_fixed(table), 6, 3, 0.5, each / 2**64)
  cohorts = [drawn.cohort(t).tolist() for t in range(3)]
  assert cohorts == [[4, 5], [0, 1], [2, 3]]
  # A wait of 0 and one round apart: nobody waits, and round t has row t + 1.
  for drawn in (
    samplers.BMinSep(_fixed(table), 6, 3, 0.5, 0.0),
    samplers.BMinSep(_fixed(table), 6, 1, 0.5, 0.0),
  ):
    assert drawn.cohort(0).tolist() == list(range(6))
  # All of the words.
  all_wait = samplers.BMinSep(_fixed(table), 6, 3, 0.5, 0.5)
  assert [len(all_wait.cohort(t)) for t in range(3)] == [0, 3, 3]


def test_pattern_of_a_warm_client_has_its_probability():
  """All words of 3 bits of one client: the law of its rounds, exactly."""
  p, b, rounds, wait = 0.25, 3, 3, 0.125
  law = collections.Counter()
  for first, prob in enumerate([1 - 2 * wait, wait, wait]):
    for wants in itertools.product([False, True], repeat=rounds):
      likely, free, taken = prob, first, []
      for t, joins in enumerate(wants):
        likely *= p if joins else 1 - p
        if joins and t >= free:
          taken, free = [*taken, t], t + b
      law[tuple(taken)] += likely
  found = collections.Counter()
  eighths = [i << 61 for i in range(8)]
  for words in itertools.product(eighths, repeat=1 + rounds):
    sampler = samplers.BMinSep(
      _fixed([[word] for word in words]), 1, b, p, wait
    )
    taken = tuple(t for t in range(rounds) if len(sampler.cohort(t)))
    found[taken] += 8.0 ** -(1 + rounds)
  assert found == law


def _sets(sampler, rounds):
  """Returns the rounds of every client."""
  cohorts = [sampler.cohort(t).tolist() for t in range(rounds)]
  return tuple(
    tuple(t for t in range(rounds) if client in cohorts[t])
    for client in range(2)
  )


def test_two_clients_take_part_as_all_words_say():
  """Every key of a generator of 2 bits: the law of both clients together."""
  p, b, rounds = 0.25, 2, 3
  alone = collections.Counter()
  for pattern in itertools.product([False, True], repeat=rounds):
    prob, free = 1.0, 0
    for t, wants in enumerate(pattern):
      if t < free:
        prob *= not wants
      else:
        prob *= p if wants else 1 - p
        free = t + b if wants else free
    alone[tuple(t for t in range(rounds) if pattern[t])] += prob
  found = collections.Counter()
  cohorts = accounting.BMinSep(b, p, population=2, start='cold')
  quarters = [i << 62 for i in range(4)]
  for words in itertools.product(quarters, repeat=2 * rounds):
    table = [words[2 * t : 2 * t + 2] for t in range(rounds)]
    found[_sets(cohorts.sampler(_fixed(table)), rounds)] += 4.0 ** (-2 * rounds)
  assert sum(alone.values()) == pytest.approx(1)
  for mine, others in itertools.product(alone, repeat=2):
    assert found[mine, others] == alone[mine] * alone[others]


def test_two_clients_of_a_group_are_drawn_apart():
  cohorts = accounting.CyclicPoisson(0.25, 1, population=2)
  found = collections.Counter()
  quarters = [i << 62 for i in range(4)]
  for words in itertools.product(quarters, repeat=4):
    table = [[0, 1], words[:2], words[2:]]
    found[_sets(cohorts.sampler(_fixed(table)), 2)] += 1 / 256
  for mine, others in itertools.product([(), (0,), (1,), (0, 1)], repeat=2):
    prob = math.prod(
      0.25 if t in each else 0.75 for each in (mine, others) for t in (0, 1)
    )
    assert found[mine, others] == prob


@pytest.mark.parametrize('cohorts', _KINDS)
def test_cohort_is_a_function_of_key_and_round(cohorts):
  first = _taken(cohorts.sampler(_words()), 20)
  again = cohorts.sampler(_words())
  for t in (19, 19, 3, 7, 0):
    np.testing.assert_array_equal(
      again.cohort(t), np.flatnonzero(first[t]), str(t)
    )
  other = _taken(cohorts.sampler(_words(1)), 20)
  assert (first != other).any(1).all()


@pytest.mark.parametrize('cohorts', _KINDS)
def test_expected_cohort_is_the_mean(cohorts):
  sizes = _taken(cohorts.sampler(_words(2))).sum(1)
  expected = cohorts.expected_cohort(_ROUNDS)
  # 60 cohorts of about 200: 5 standard deviations of a Poisson's mean.
  assert abs(sizes.mean() - expected) < 5 * math.sqrt(expected / 12)
  assert sizes.max() <= cohorts.largest_cohort(_ROUNDS)


def test_largest_cohort_is_exceeded_as_seldom_as_stated():
  for cohorts, clients, prob in (
    (_CYCLIC, _CLIENTS // 3, 0.1),
    (_BINS, _CLIENTS, 1 / 12),
    (_COLD, _CLIENTS, 0.1),
    (_MIN_SEP, _CLIENTS, 1 / 13),
  ):
    most = cohorts.largest_cohort(_ROUNDS)
    beyond = _ROUNDS * scipy.stats.binom(clients, prob).sf(most)
    assert 1e-44 < beyond < stops.OVERSIZE
  # Nobody is drawn twice.
  assert accounting.CyclicPoisson(1.0, 2, population=9).largest_cohort(4) == 4
  assert accounting.CyclicPoisson(0.9, 1, population=9).largest_cohort(4) == 9


@pytest.mark.parametrize(
  ('cohorts', 'message'),
  [
    (accounting.BMinSep(2, 0.5), 'population=None: .*b-min-sep'),
    (accounting.BMinSep(2, population=9), 'sampling_prob=None: .*b-min-sep'),
    (accounting.CyclicPoisson(0.5, population=9), 'groups=None: .*bands'),
    (
      accounting.CyclicPoisson(groups=3, population=9),
      'sampling_prob=None: .*cyclic-poisson',
    ),
  ],
)
def test_cohorts_that_are_not_said_are_not_drawn(cohorts, message):
  with pytest.raises(ValueError, match=message):
    cohorts.sampler(_words())
