"""Questions about the noise of an aggregator.

| symbol | meaning                                                            |
|--------|--------------------------------------------------------------------|
| B      | clients per round, the divisor of the mean                         |
| C      | strategy, [n, n]                                                   |
| R      | B times the released means, less known sums, in clips, [rounds, d] |
| W      | C R / z_stddev: independent standard normals if all is as stated   |
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import scipy.special
import scipy.stats

from tff_bandmf import errors
from tff_bandmf.audit import aggregators, arithmetic_attacks, client_questions
from tff_bandmf.audit.statement import CANNOT_TELL, FAIL, PASS, Answer, Subject

# Shapes of the layers of an update with many coordinates; rounds of its runs.
_SHAPES = ((1 << 17,), (256, 512))
_DIMENSION = sum(map(math.prod, _SHAPES))
_ROUNDS = 64
# Binary digits of grids, relative to a client's value: those of lattices, of
# float32 and of float64.
_DIGITS = (*range(6, 27, 2), 53)
# Expected normals beyond the threshold that few draws reach.
_EXPECTED = 60


def size_and_correlation(
  subject: Subject, random: np.random.Generator
) -> tuple[Answer, Answer]:
  """Returns the answers on standard deviation and correlation of the noise."""
  statement = subject.statement
  clients = client_questions.Clients(subject, random)
  released = np.empty((len(statement.matrix), client_questions.DIMENSION))
  with subject.opened(client_questions.SHAPES) as run:
    assert run is not None
    for t in range(len(released)):
      updates, examples = clients.sent(
        _one(t, statement.clients_per_round), run
      )
      released[t] = statement.clients_per_round * run.round(updates, examples)
      released[t] -= sum(map(aggregators.flat, updates))
  whitened = statement.matrix @ released
  whitened /= statement.l2_norm_clip * statement.z_stddev
  return _size(subject, whitened), _correlation(subject, whitened)


def _one(t: int, clients: int) -> client_questions.Cohort:
  """Returns a cohort of which one client sends an update that is not small."""
  direction = t % client_questions.DIRECTIONS
  return (
    client_questions.Group(1, 0.5, direction),
    client_questions.filling(clients - 1),
  )


def _size(subject: Subject, whitened: np.ndarray) -> Answer:
  """Returns the ratio of a measured and the stated size that is furthest off.

  The sum of squares of m independent standard normals is chi-square with m
  degrees of freedom. The m numbers are all numbers, those of a round, or those
  of a coordinate.
  """
  measured = []
  for name, axis in (('all rounds', None), ('a round', 1), ('a coordinate', 0)):
    sums = np.atleast_1d(np.sum(whitened**2, axis))
    freedom = whitened.size / len(sums)
    miss = subject.false_alarm / (6 * len(sums))
    quantiles = (
      scipy.stats.chi2.ppf(miss, freedom),
      scipy.stats.chi2.isf(miss, freedom),
    )
    least, most = np.sqrt(np.divide(quantiles, freedom))
    for ratio in np.sqrt(sums / freedom):
      # 1 at both limits.
      off = max((ratio - 1) / (most - 1), (1 - ratio) / (1 - least))
      measured.append((off, ratio, (least, most), name))
  # A ratio that is not a number does not pass.
  off, ratio, limits, name = max(
    measured, key=lambda each: (math.isnan(each[0]), each[0])
  )
  return subject.answer(
    'size',
    PASS if off <= 1 else FAIL,
    ratio,
    limits,
    f'times the stated standard deviation, in {name}',
  )


def _correlation(subject: Subject, whitened: np.ndarray) -> Answer:
  """Returns the largest correlation in W, in standard deviations.

  For the numbers a of a round and b of an earlier round, sum_i a_i b_i / |b| is
  a standard normal. So is the sum of these products for all pairs of rounds at
  one distance, divided by the square root of the number of pairs. For two
  coordinates the first statement holds too.
  """
  rounds, dimension = whitened.shape
  # Noise of another size does not count as correlation.
  scale = float(np.sqrt(np.mean(whitened**2)))
  correlations = {'two rounds': np.zeros(0)}
  if rounds > 1 and 0 < scale < math.inf:
    by_round, by_coordinate = map(
      _products, (whitened / scale, whitened.T / scale)
    )
    correlations = {
      'two rounds': by_round[np.tril_indices(rounds, -1)],
      'all rounds at one distance': np.array(
        [
          np.trace(by_round, -distance) / math.sqrt(rounds - distance)
          for distance in range(1, rounds)
        ]
      ),
      'two coordinates': by_coordinate[np.tril_indices(dimension, -1)],
    }
  tests = sum(map(len, correlations.values()))
  most = -scipy.special.ndtri(subject.false_alarm / (2 * max(tests, 1)))
  largest = {
    name: np.abs(each).max(initial=0.0) for name, each in correlations.items()
  }
  name = max(largest, key=largest.__getitem__)
  return subject.answer(
    'correlation',
    CANNOT_TELL if not tests else PASS if largest[name] <= most else FAIL,
    largest[name] if tests else math.nan,
    (0.0, most),
    f'standard deviations of a correlation of {name}, the largest of {tests}',
  )


def _products(rows: np.ndarray) -> np.ndarray:
  """Returns <row i, row j> / |row j| for all i and j; 0 for a row of zeros."""
  gram = rows @ rows.T
  norms = np.sqrt(np.diag(gram))
  return gram / np.where(norms > 0, norms, np.inf)


def tails_and_low_bits(subject: Subject, draws: int) -> tuple[Answer, Answer]:
  """Returns the answers on large normals and on last bits of releases.

  A round has one client. In every other round the client sends the same power
  of two in each coordinate, else a value that is too small to matter.

  Args:
    subject: the aggregator.
    draws: least number of normals to examine, >= 1.
  """
  statement = subject.statement
  rounds = min(_ROUNDS, len(statement.matrix))
  value = 2.0 ** math.floor(math.log2(statement.l2_norm_clip))
  value /= math.sqrt(_DIMENSION)
  low_bits = _LowBits(value, statement.clients_per_round)
  thresholds = (
    arithmetic_attacks.TAIL,
    -scipy.special.ndtri(min(0.25, _EXPECTED / 2 / draws)),
  )
  beyond, examined = np.zeros(2), 0
  while examined < draws:
    released = np.empty((rounds, _DIMENSION))
    with subject.opened(_SHAPES) as run:
      assert run is not None
      for t in range(rounds):
        sent = np.full(_DIMENSION, value * (1.0 if t % 2 else 2.0**-30))
        released[t] = run.round([aggregators.layers(sent, run.like)])
        if examined < _ROUNDS * _DIMENSION:
          low_bits.add(released[t], t % 2)
        released[t] -= sent / statement.clients_per_round
    whitened = np.abs(statement.matrix[:rounds, :rounds] @ released)
    # Noise of another size may have sound tails.
    whitened /= np.sqrt(np.mean(whitened**2)) or 1.0
    beyond += [np.sum(whitened > each) for each in thresholds]
    examined += whitened.size
  return (
    _tails(subject, examined, thresholds, beyond),
    low_bits.answer(subject),
  )


def _tails(
  subject: Subject,
  draws: int,
  thresholds: tuple[float, float],
  beyond: np.ndarray,
) -> Answer:
  """Returns the number of normals beyond the threshold that tells the most."""
  counts = []
  for threshold, count in zip(thresholds, beyond):
    rate = 2 * draws * float(scipy.special.ndtr(-threshold))
    miss = subject.false_alarm / 4
    least = scipy.stats.poisson.ppf(miss, rate)
    most = scipy.stats.poisson.isf(miss, rate)
    counts.append((threshold, count, (least, most)))
  (_, _, (least, _)) = counts[0]
  # A generator that ends before TAIL fails only if normals have to exceed it.
  decidable = least > 0
  failed = [each for each in counts if not each[2][0] <= each[1] <= each[2][1]]
  threshold, count, limits = (failed or counts[not decidable :])[0]
  return subject.answer(
    'tails',
    FAIL if failed else PASS if decidable else CANNOT_TELL,
    count,
    limits,
    f'of {draws} normals beyond {threshold:.4g} standard deviations'
    + ('' if failed or decidable else '; 2^30 draws tell'),
  )


class _LowBits:
  """Small releases of rounds with and without a client, on grids.

  If the release v + y of a float sum is much smaller than the client's value v,
  it is a multiple of half a unit in the last place of v, as in
  `arithmetic_attacks.low_bits`. The noise may be added before or after the
  division by B, and the mean of one client may not be divided. So a release is
  multiplied by one of two factors, and compared with one of three values.
  """

  def __init__(self, value: float, clients: int):
    """Initializes the counts.

    Args:
      value: value of each coordinate of the client's update.
      clients: B.
    """
    self._scales = (
      (float(clients), value),
      (1.0, float(np.float32(value / clients))),
      (1.0, value),
    )
    # Numbers of small releases off and on a grid, without and with the client.
    self._counts = np.zeros((len(self._scales), len(_DIGITS), 2, 2), int)

  def add(self, released: np.ndarray, present: int) -> None:
    """Counts the releases of a round.

    Args:
      released: the mean, [d] float64.
      present: 1 if the client took part, else 0.
    """
    for i, (factor, value) in enumerate(self._scales):
      multiples = factor / value * released
      multiples = multiples[np.abs(multiples) < 1 / 16]
      for j, digits in enumerate(_DIGITS):
        steps = multiples * 2.0**digits
        # The division by B is not exact.
        on = int(np.sum(np.abs(steps - np.rint(steps)) < 0.125))
        self._counts[i, j, present] += len(steps) - on, on

  def answer(self, subject: Subject) -> Answer:
    """Returns how much more often releases with the client are on a grid."""
    miss = subject.false_alarm / math.prod(self._counts.shape[:2])
    could_fail, tests = False, [(1.0, 0.0)]
    for without, present in self._tables():
      tests.append(
        (
          scipy.stats.fisher_exact((without, present))[1],
          without[1] / sum(without) - present[1] / sum(present),
        )
      )
      # If all releases with the client were on the grid.
      extreme = without, (0, sum(present))
      could_fail |= scipy.stats.fisher_exact(extreme)[1] < miss
    least, less = min(tests)
    return subject.answer(
      'low_bits',
      FAIL if least < miss else PASS if could_fail else CANNOT_TELL,
      least,
      (miss, 1.0),
      'probability by chance of such last bits: with a client '
      f'{-100 * less:+.2g} % of the small releases are on a grid',
    )

  def _tables(self) -> Iterator[Sequence[Sequence[int]]]:
    """Yields a table of counts for each scale and grid with small releases."""
    for table in self._counts.reshape(-1, 2, 2).tolist():
      if all(map(sum, table)):
        yield table


def replay(subject: Subject, random: np.random.Generator) -> Answer:
  """Returns how much noise the difference of two releases of one round has.

  The second release is of another sum. If both have the same noise, their
  difference is the difference of the sums, without noise. If the noise is new,
  the client's privacy is spent a second time.
  """
  statement = subject.statement
  clients = client_questions.Clients(subject, random)
  limits, unit = (0.0, 0.0), 'of the noise is left in a difference of releases'
  with subject.opened(client_questions.SHAPES) as run:
    assert run is not None
    if not run.has_state:
      unit += '; the state is inside the aggregator'
      return subject.answer('replay', CANNOT_TELL, math.nan, limits, unit)
    (updates, _), (others, _) = (
      clients.sent(_one(t, statement.clients_per_round), run) for t in range(2)
    )
    state = run.state
    first, again, second = (
      run.replayed(state, each) for each in (updates, updates, others)
    )
  if first is None:
    raise errors.value_error(
      'aggregator: refuses the first round from a copy of its state; let '
      'copy.deepcopy copy it'
    )
  same = again is None or np.array_equal(first, again)
  unit += '; the same sum gives ' + (
    'no other release' if same else 'new noise'
  )
  if second is None:
    verdict, left = PASS if same else FAIL, math.nan
    unit += ', another sum is refused'
  else:
    known = aggregators.flat(others[0]) - aggregators.flat(updates[0])
    noise = statement.clients_per_round * (second - first) - known
    stddev = math.sqrt(2) * statement.z_stddev / float(statement.matrix[0, 0])
    verdict = FAIL
    left = float(np.sqrt(np.mean(noise**2))) / statement.l2_norm_clip / stddev
    unit += ', another sum is released too'
  return subject.answer('replay', verdict, left, limits, unit)
