"""An audit of an aggregator that others wrote, against their statement.

  make = aggregators.load('mine:aggregator')
  for answer in answers(make, Statement(0.5, 1.2, 100, np.eye(128))):
    print(answer)

| question      | compared with the statement                                  |
|---------------|--------------------------------------------------------------|
| `influence`   | how far one client moves the sum, also by NaN or huge values |
| `sums`        | how much rounding of the sum adds to a client's influence    |
| `size`        | standard deviation of the noise, by coordinate and by round  |
| `correlation` | correlation of the noise over rounds and coordinates         |
| `tails`       | number of large normals                                      |
| `low_bits`    | last bits of releases with and without a client              |
| `divisor`     | change of a contribution by cohort size and by examples      |
| `replay`      | second release of a round, for the same and for another sum  |

Each question is a test. A sound aggregator, for which the statement is true,
fails the test with at most a stated probability, the false alarm. An aggregator
passes only if the test could have failed; else the answer is 'cannot tell'.

| symbol | meaning                                                            |
|--------|--------------------------------------------------------------------|
| B      | clients per round, the divisor of the mean                         |
| C      | strategy, [n, n]                                                   |
| z      | stated standard deviation of the normals Z, in clips               |
| R      | B times the released means, in clips, [rounds, d]; its noise is    |
|        | C^-1 Z                                                             |
| W      | C (R - sums of the updates) / z; if the statement is true, its     |
|        | entries are independent standard normals                           |
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Callable, Optional

import numpy as np
import scipy.linalg
import scipy.stats

from tff_bandmf import _files, errors
from tff_bandmf.audit import aggregators, arithmetic_attacks

PASS, FAIL, CANNOT_TELL = 'pass', 'fail', 'cannot tell'

# Shapes of the layers of an update.
_SHAPES = ((24,), (8, 24), (12, 24))
_DIMENSION = sum(map(math.prod, _SHAPES))
# Number of orthogonal directions of updates; no run has more groups of clients.
_DIRECTIONS = 8
# Largest number of rounds of each cohort if the aggregator adds noise.
_REPETITIONS = 16
# Relative excess over a clip that float32 rounding of one record explains.
_ROUNDING = 1e-5
# Largest relative change of a client's contribution that rounding explains.
_CHANGE = 1e-3
# Largest relative excess over a clip, and largest relative change of a client's
# contribution, with which an aggregator may still pass.
_HIDDEN_EXCESS, _HIDDEN_CHANGE = 0.1, 0.5
# Shapes of the layers of an update with many coordinates, and largest number of
# rounds of its runs.
_MANY_SHAPES = ((1 << 17,), (256, 512))
_MANY_ROUNDS = 64
# Exponents p of the grids that `_on_grids` tests, the multiples of v 2^-p for a
# client's value v. Common lattices and float32 have p from 6 to 26, float64 53.
_DIGITS = np.array([*range(6, 27, 2), 53])
# Expected number of normals beyond the second threshold of `tails`, out of the
# least number of draws.
_EXPECTED = 60


@dataclasses.dataclass(frozen=True)
class Statement:
  """A statement of the author of an aggregator.

  Attributes:
    l2_norm_clip: largest norm of one client's contribution to the sum, > 0.
    z_stddev: z, standard deviation of Z, in clips, > 0.
    clients_per_round: B, number of clients and divisor of the mean, >= 1.
    matrix: C, [n, n] float64, lower-triangular; the identity for noise that is
      independent between rounds. Each run of an audit has at most n rounds.
  """

  l2_norm_clip: float
  z_stddev: float
  clients_per_round: int
  matrix: np.ndarray

  @property
  def sum_per_mean(self) -> float:
    """Factor from a released mean to a sum in clips."""
    return self.clients_per_round / self.l2_norm_clip


@dataclasses.dataclass(frozen=True)
class Answer:
  """The answer to one question.

  Attributes:
    question: name of the question.
    verdict: 'pass', 'fail' or 'cannot tell'.
    statistic: measured number, or a bound on it; NaN or infinite if nothing was
      measured or a released mean is not finite.
    least: least statistic that passes.
    most: largest statistic that passes. If an upper bound is above `most`, the
      verdict is 'cannot tell'. If the statistic is a lower bound, the verdict
      is 'fail', and `most` is the limit that the bound exceeds.
    unit: unit of the statistic, in words.
    false_alarm: largest probability with which a sound aggregator fails, in
      (0, 1).
  """

  question: str
  verdict: str
  statistic: float
  least: float
  most: float
  unit: str
  false_alarm: float

  def to_dict(self) -> _files.JsonObject:
    """Returns the attributes; a statistic that is not finite becomes None."""
    finite = math.isfinite(self.statistic)
    return {
      **dataclasses.asdict(self),
      'statistic': self.statistic if finite else None,
    }

  def __str__(self) -> str:
    number = f'{self.statistic:.6g}' if math.isfinite(self.statistic) else '-'
    return (
      f'{self.verdict:12}{self.question:12}{number} {self.unit}; sound is '
      f'{self.least:.6g} to {self.most:.6g}, false alarm {self.false_alarm:g}'
    )


@dataclasses.dataclass(frozen=True)
class _Group:
  """Clients of one round that send the same update.

  Attributes:
    clients: number of these clients, >= 0.
    norm: norm of the update, in clips. Some aggregators refuse updates of zero,
      so clients that only fill a round send a very small one.
    layer: index of the only layer that is not zero; None if all layers have
      norms in proportion to the square roots of their sizes.
    sparse: whether each layer has at most one coordinate that is not zero.
    first: value that replaces the first coordinate, in the unit of updates; if
      None, the coordinate is not replaced.
    examples: number of examples that each of these clients states.
  """

  clients: int
  norm: float = 1e-9
  layer: Optional[int] = None
  sparse: bool = False
  first: Optional[float] = None
  examples: int = 1


# Lower and upper bound on the norm of the contribution of one client of a
# group, in clips.
_Interval = tuple[float, float]
# Interval of a group that was in no released round. Compare it by `is`: a group
# that contributed exactly 0 has an equal interval.
_ABSENT = (0.0, 0.0)


class Subject:
  """An aggregator, its statement, and the updates that the audit sends it.

  Attributes:
    statement: statement of the author.
    false_alarm: largest probability with which a sound aggregator fails a
      question.
    random: generator of random numbers for the updates.
  """

  def __init__(
    self,
    make: aggregators.Make,
    statement: Statement,
    false_alarm: float,
    seed: Optional[int],
    on_round: Callable[[], object],
  ):
    """Draws the directions of updates; for Args see `answers`."""
    self.statement = statement
    self.false_alarm = false_alarm
    self._make, self._on_round = make, on_round
    self.random = np.random.default_rng(seed)
    sizes = [math.prod(shape) for shape in _SHAPES]
    self._directions = _by_layer(
      [
        np.linalg.qr(self.random.normal(size=[size, _DIRECTIONS]))[0]
        for size in sizes
      ]
    )
    self._coordinates = _by_layer([np.eye(size, _DIRECTIONS) for size in sizes])
    self._shares = np.sqrt(np.divide(sizes, _DIMENSION))

  @contextlib.contextmanager
  def opened(
    self, shapes: Sequence[tuple[int, ...]] = _SHAPES, noise: bool = True
  ) -> Iterator[Optional[aggregators.Run]]:
    """Yields a new run; None if there is no variant without noise.

    Raises:
      ValueError: the aggregator's function raised an exception.
    """
    like = [np.zeros(shape, np.float32) for shape in shapes]
    try:
      aggregator = self._make(like, noise)
    except Exception as error:
      raise errors.value_error(
        f'aggregator={type(error).__name__}: cannot be made ({error}); give a '
        'function of (like, noise)'
      ) from error
    if aggregator is None and not noise:
      yield None
      return
    try:
      yield aggregators.Run(aggregator, like, self._on_round)
    finally:
      getattr(aggregator, 'close', lambda: None)()

  def cohort(
    self, groups: Sequence[_Group], direction: int, like: aggregators.Update
  ) -> tuple[list[aggregators.Update], list[int]]:
    """Returns the updates and numbers of examples of the clients of a round.

    Args:
      groups: groups of clients.
      direction: index of the direction of the updates of the first group; each
        further group has the next direction.
      like: an update of zeros.
    """
    updates: list[aggregators.Update] = []
    examples: list[int] = []
    for i, group in enumerate(groups, direction):
      shares = self._shares
      if group.layer is not None:
        shares = np.eye(len(like))[group.layer]
      by_layer = self._direction(i, group)
      vector = self.statement.l2_norm_clip * group.norm * (shares @ by_layer)
      if group.first is not None:
        vector[0] = group.first
      updates += [aggregators.layers(vector, like)] * group.clients
      examples += [group.examples] * group.clients
    return updates, examples

  def _direction(self, i: int, group: _Group) -> np.ndarray:
    """Returns direction i, [layer, d]: a unit vector in each layer."""
    return (self._coordinates if group.sparse else self._directions)[i]

  def one_client(
    self, t: int, like: aggregators.Update
  ) -> tuple[list[aggregators.Update], np.ndarray]:
    """Returns updates for round t, and their sum in clips, [d] float64.

    One client has an update of half a clip; the other updates are very small.
    """
    groups = _Group(1, 0.5), _Group(self.statement.clients_per_round - 1)
    updates, _ = self.cohort(groups, t % (_DIRECTIONS - 1), like)
    total = np.sum([aggregators.flat(each) for each in updates], 0)
    return updates, total / self.statement.l2_norm_clip

  def contributions(
    self, cohorts: Sequence[Sequence[_Group]], noise: bool
  ) -> list[_Interval]:
    """Returns an interval for each group, cohort by cohort.

    The cohorts take turns. A group of m clients that contribute c each adds
    c m C i to C R along the direction of the group, where i is 1 in the rounds
    of the group and 0 elsewhere; c follows by least squares. Without noise,
    each cohort has one round and C is the identity. Refused rounds are left out
    of R and i.

    Args:
      cohorts: groups of each cohort.
      noise: whether the aggregator adds noise.

    Returns:
      Bounds on |c| for each group. All are (0, infinity) if `noise` is False
      and there is no variant without noise. All are (infinity, infinity) if a
      released mean is not finite.
    """
    groups = [(i, group) for i, each in enumerate(cohorts) for group in each]
    first = [0, *itertools.accumulate(map(len, cohorts))]
    matrix, rounds = np.eye(len(cohorts)), len(cohorts)
    if noise:
      matrix = self.statement.matrix
      rounds = min(len(matrix), rounds * _REPETITIONS)
    rows: list[np.ndarray] = []
    turns: list[int] = []
    with self.opened(noise=noise) as run:
      if run is None:
        return [(0.0, math.inf)] * len(groups)
      for t in range(rounds):
        turn = t % len(cohorts)
        sent = self.cohort(cohorts[turn], first[turn], run.like)
        try:
          mean = run.round(*sent)
        except aggregators.Refusal:
          continue
        if not np.isfinite(mean).all():
          return [(math.inf, math.inf)] * len(groups)
        rows.append(self.statement.sum_per_mean * mean)
        turns.append(turn)
    matrix = matrix[: len(rows), : len(rows)]
    whitened = matrix @ np.reshape(rows, [len(rows), _DIMENSION])
    # Bound on the norm of a vector of one normal per layer. A question has
    # fewer than 64 intervals, and each is wrong with at most a 64th of the
    # false alarm.
    reach = self.statement.z_stddev * math.sqrt(
      scipy.stats.chi2.isf(self.false_alarm / 64, len(_SHAPES))
    )
    intervals = []
    for direction, (cohort, group) in enumerate(groups):
      if not group.clients or cohort not in turns:
        intervals.append(_ABSENT)
        continue
      by_layer = self._direction(direction, group)
      column = group.clients * matrix @ (np.array(turns) == cohort)
      weights = column / (column @ column)
      value = float(np.linalg.norm(by_layer @ (weights @ whitened)))
      error = noise * reach * float(np.linalg.norm(weights))
      intervals.append((value - error, value + error))
    return intervals

  def answer(
    self,
    question: str,
    failed: bool,
    decidable: bool,
    statistic: float,
    limits: tuple[float, float],
    unit: str,
  ) -> Answer:
    """Returns an answer; `decidable` is whether the test could have failed."""
    verdict = FAIL if failed else PASS if decidable else CANNOT_TELL
    return Answer(question, verdict, statistic, *limits, unit, self.false_alarm)

  def bounded(
    self,
    question: str,
    bounds: Sequence[dict[str, float]],
    limits: tuple[float, float],
    unit: str,
  ) -> Answer:
    """Returns the answer that follows from bounds on a number.

    Args:
      question: name of the question.
      bounds: lower bounds and upper bounds on the number, two dicts; their keys
        name the behaviour of the clients.
      limits: the answer is 'fail' if a lower bound exceeds the first limit, and
        else 'pass' if no upper bound exceeds the second.
      unit: unit of the number, in words, with braces for 'least' or 'most'.
    """
    worst = [max(each, key=each.__getitem__) for each in bounds]
    low, high = (each[name] for each, name in zip(bounds, worst))
    failed = low > limits[0]
    name = worst[not failed]
    return self.answer(
      question,
      failed,
      high <= limits[1],
      low if failed else high,
      (0.0, limits[not failed]),
      f'{unit.format("least" if failed else "most")}, by {name}',
    )


def _by_layer(bases: Sequence[np.ndarray]) -> np.ndarray:
  """Returns directions of updates, [direction, layer, d].

  Args:
    bases: orthonormal directions of each layer, [size, direction].
  """
  return (
    scipy.linalg.block_diag(*bases)
    .reshape(_DIMENSION, len(bases), _DIRECTIONS)
    .transpose(2, 1, 0)
  )


def answers(
  make: aggregators.Make,
  statement: Statement,
  draws: int = arithmetic_attacks.TAIL_DRAWS,
  false_alarm: float = arithmetic_attacks.FALSE_ALARM,
  seed: Optional[int] = None,
  on_round: Callable[[], object] = lambda: None,
) -> list[Answer]:
  """Returns the answers to all questions.

  Args:
    make: function that returns a new aggregator; see `aggregators`.
    statement: statement of its author.
    draws: least number of normals that `tails` examines, >= 1. At the default
      `false_alarm`, 2^30 are enough to tell whether normals exceed the largest
      normal of a float32 generator.
    false_alarm: largest probability with which a sound aggregator fails a
      question, in (0, 1).
    seed: seed of the clients' updates, >= 0; if None, it is drawn.
    on_round: function that is called after every round, also a refused round.

  Raises:
    ValueError: the aggregator cannot be made, it refused a round of ordinary
      updates, or the mean and an update have different sizes.
  """
  subject = Subject(make, statement, false_alarm, seed, on_round)
  return [
    influence(subject),
    sums(subject),
    *size_and_correlation(subject),
    *tails_and_low_bits(subject, draws),
    divisor(subject),
    replay(subject),
  ]


def influence(subject: Subject) -> Answer:
  """Returns the answer on the norm, in clips, by which a client moves a sum."""
  clients = subject.statement.clients_per_round
  attacks = {
    'a small excess': _Group(1, 1.5),
    'all layers': _Group(1, 1e3),
    'one layer': _Group(1, 1e6, layer=2),
    'one coordinate': _Group(1, 1e6, layer=2, sparse=True),
    'a huge norm': _Group(1, 1e30),
    'NaN': _Group(1, 1e3, first=math.nan),
    'infinity': _Group(1, 1e3, first=math.inf),
  }
  low = dict.fromkeys(attacks, 0.0)
  high = dict.fromkeys(attacks, math.inf)
  for noise, (name, group) in itertools.product((False, True), attacks.items()):
    cohorts = (
      (group, _Group(clients - 1)),
      (dataclasses.replace(group, clients=clients),),
    )
    # A value that is not finite may stay in the state of the aggregator, so
    # each attack has a run of its own.
    one, _, everybody = subject.contributions(cohorts, noise)
    low[name] = max(low[name], one[0], everybody[0])
    # With noise, the upper bound for one attacker is too large to be of use,
    # and the upper bound for a round in which all clients attack replaces it.
    # In that round, an aggregator that clips only the mean as a whole could
    # pass, so the lower bound for one attacker counts too.
    high[name] = min(high[name], max(everybody[1], one[0 if noise else 1]))
  return subject.bounded(
    'influence',
    (low, high),
    (1 + _ROUNDING, 1 + _HIDDEN_EXCESS),
    'clips at {} moved by one client',
  )


def divisor(subject: Subject) -> Answer:
  """Returns the answer on changes of a client's contribution.

  The contribution must depend neither on the number of clients in the round nor
  on the numbers of examples that clients state.
  """
  clients = subject.statement.clients_per_round
  half = -(-clients // 2)
  cohorts = {
    'all clients': [_Group(clients, 0.5)],
    'half of the clients': [_Group(half, 0.5)],
    'one client': [_Group(1, 0.5)],
    'examples': [
      _Group(half, 0.5),
      _Group(clients - half, 0.5, examples=100),
    ],
  }
  names = [name for name, cohort in cohorts.items() for _ in cohort]
  low, high = dict.fromkeys(names, 0.0), dict.fromkeys(names, math.inf)
  for noise in (False, True) if clients > 1 else ():
    intervals = subject.contributions(list(cohorts.values()), noise)
    largest = dict.fromkeys(names, 0.0)
    for name, interval in zip(names, intervals):
      if interval is _ABSENT:  # All such rounds were refused.
        continue
      least, most = _change(interval, intervals[0])
      low[name] = max(low[name], least)
      largest[name] = max(largest[name], most)
    high = {name: min(high[name], largest[name]) for name in names}
  # Changes are relative to the contribution in 'all clients', which has none
  # itself. Noise hides the contribution of a single client, so the upper bound
  # on its change would be too large to be of use.
  del low['all clients'], high['all clients'], high['one client']
  return subject.bounded(
    'divisor',
    (low, high),
    (_CHANGE, _HIDDEN_CHANGE),
    "relative change, at {}, of a client's contribution",
  )


def _change(contribution: _Interval, other: _Interval) -> _Interval:
  """Returns bounds on |c / o - 1| for `contribution` c and `other` o."""
  if math.isinf(contribution[0]):  # A release was not finite.
    return math.inf, math.inf
  with np.errstate(divide='ignore', invalid='ignore'):
    least, most = np.divide(contribution, np.maximum(other, 0.0)[::-1]).tolist()
  # Nothing is known of 0 / 0.
  least, most = (
    value if not math.isnan(value) else unknown
    for value, unknown in ((least, 0.0), (most, math.inf))
  )
  return max(least - 1, 1 - most), max(1 - least, most - 1)


def sums(subject: Subject) -> Answer:
  """Returns the answer on the clips that rounding adds to one record.

  Without noise, the aggregator adds three cohorts: the cohort of
  `arithmetic_attacks.summing` with the victim's record, the same cohort without
  it, and the victim's record among very small ones. The statistic is the
  difference of the first two sums, less the third sum.
  """
  statement = subject.statement
  clients = statement.clients_per_round
  # Values of the cohort are exact in float32 for a unit that is a power of two.
  unit = 2.0 ** math.floor(math.log2(statement.l2_norm_clip))
  unit /= statement.l2_norm_clip

  def add(values):
    with subject.opened(noise=False) as run:
      if run is None:
        return math.nan
      vectors = np.zeros((len(values), _DIMENSION))
      # Some aggregators refuse zeros; 2^-40 is too small to change a sum.
      vectors[:, 0] = np.maximum(values, 2.0**-40)
      vectors *= unit * statement.l2_norm_clip
      updates = [aggregators.layers(each, run.like) for each in vectors]
      return float(statement.sum_per_mean * run.round(updates)[0] / unit)

  def excess(add):
    if clients < 2:
      return math.nan
    alone = np.zeros(clients, np.float32)
    alone[0] = arithmetic_attacks.VICTIM
    moved = arithmetic_attacks.summing(add, clients).statistic
    return (moved - abs(add(alone))) * unit

  measured = excess(add)
  float32 = excess(lambda x: float(np.cumsum(x, dtype=np.float32)[-1]))
  # Rounding of the mean to float32 can change the statistic by this much.
  most = max(_ROUNDING, clients * 2.0**-23)
  decidable = math.isfinite(measured) and float32 > most
  return subject.answer(
    'sums',
    decidable and abs(measured) > most,
    decidable,
    measured,
    (-most, most),
    'clips that rounding adds to the influence of a record; in float32 '
    f'{float32:.2g}' + ('' if decidable else ', needs a variant without noise'),
  )


def size_and_correlation(subject: Subject) -> tuple[Answer, Answer]:
  """Returns the answers on standard deviation and correlation of the noise."""
  statement = subject.statement
  noise = np.empty((len(statement.matrix), _DIMENSION))
  with subject.opened() as run:
    assert run is not None
    for t in range(len(noise)):
      updates, total = subject.one_client(t, run.like)
      noise[t] = statement.sum_per_mean * run.round(updates) - total
  whitened = statement.matrix @ noise / statement.z_stddev
  return _size(subject, whitened), _correlation(subject, whitened)


def _size(subject: Subject, whitened: np.ndarray) -> Answer:
  """Returns the answer on the size: the ratio that is nearest to failing.

  A ratio is the measured standard deviation over the stated one.

  The sum of squares of m independent standard normals is chi-square with m
  degrees of freedom. The m normals are all of W, a row or a column.
  """
  tests = []
  for name, axis in (('all rounds', None), ('a round', 1), ('a coordinate', 0)):
    squares = np.atleast_1d(np.sum(whitened**2, axis))
    freedom = whitened.size / len(squares)
    chi2 = scipy.stats.chi2(freedom)
    miss = subject.false_alarm / (6 * len(squares))
    least, most = np.sqrt(np.divide((chi2.ppf(miss), chi2.isf(miss)), freedom))
    for ratio in np.sqrt(squares / freedom):
      # This is 1 if the ratio is at one of its limits.
      off = max((ratio - 1) / (most - 1), (1 - ratio) / (1 - least))
      tests.append((off, ratio, least, most, name))
  # A ratio that is not a number does not pass.
  off, ratio, least, most, name = max(
    tests, key=lambda test: (math.isnan(test[0]), test[0])
  )
  return subject.answer(
    'size',
    not off <= 1,
    True,
    ratio,
    (least, most),
    f'times the stated standard deviation, in {name}',
  )


def _correlation(subject: Subject, whitened: np.ndarray) -> Answer:
  """Returns the answer on the largest correlation in W.

  For rows a and b of W, b of an earlier round, <a, b> / |b| is a standard
  normal. The sum of this number over all m pairs of rows at one distance,
  divided by m^(1/2), is a standard normal too. For two columns a and b of W,
  <a, b> / |b| is also a standard normal.
  """
  rounds = len(whitened)
  # A wrong standard deviation of the noise does not count as correlation.
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
      'two coordinates': by_coordinate[np.tril_indices(len(by_coordinate), -1)],
    }
  tests = sum(map(len, correlations.values()))
  most = scipy.stats.norm.isf(subject.false_alarm / (2 * max(tests, 1)))
  largest, name = max(
    (np.abs(each).max(initial=0.0), name) for name, each in correlations.items()
  )
  return subject.answer(
    'correlation',
    largest > most,
    tests > 0,
    largest if tests else math.nan,
    (0.0, most),
    f'standard deviations of a correlation of {name}, the largest of {tests}',
  )


def _products(rows: np.ndarray) -> np.ndarray:
  """Returns <row i, row j> / |row j| for all i and j; 0 if row j is 0."""
  gram = rows @ rows.T
  norms = np.sqrt(np.diag(gram))
  return gram / np.where(norms > 0, norms, np.inf)


def tails_and_low_bits(subject: Subject, draws: int) -> tuple[Answer, Answer]:
  """Returns the answers on large normals and on last bits of releases.

  A round has one client. It sends the same power of two in about half of the
  coordinates, drawn at random, and a value too small to matter in all others.

  Args:
    subject: the aggregator.
    draws: least number of normals to examine, >= 1.
  """
  statement = subject.statement
  dimension = sum(map(math.prod, _MANY_SHAPES))
  rounds = min(_MANY_ROUNDS, len(statement.matrix))
  value = 2.0 ** math.floor(math.log2(statement.l2_norm_clip))
  value /= 2.0 ** math.ceil(math.log2(dimension) / 2)
  thresholds = (
    arithmetic_attacks.TAIL,
    scipy.stats.norm.isf(min(0.25, _EXPECTED / 2 / draws)),
  )
  beyond, examined = np.zeros(2), 0
  # Numbers of small releases without and with the client's value, as
  # `_on_grids` returns them.
  grids = np.zeros((2, 3, len(_DIGITS), 2), int)
  while examined < draws:
    noise = np.empty((rounds, dimension))
    with subject.opened(_MANY_SHAPES) as run:
      assert run is not None
      for t in range(rounds):
        present = subject.random.random(dimension) < 0.5
        sent = value * np.where(present, 1.0, 2.0**-30)
        mean = run.round([aggregators.layers(sent, run.like)])
        for i, part in enumerate((mean[~present], mean[present])):
          grids[i] += _on_grids(part, value, statement.clients_per_round)
        noise[t] = mean - sent / statement.clients_per_round
    whitened = np.abs(statement.matrix[:rounds, :rounds] @ noise)
    # Only `size` tests the standard deviation, so `tails` divides by the
    # measured one.
    whitened /= np.sqrt(np.mean(whitened**2)) or 1.0
    beyond += [np.sum(whitened > each) for each in thresholds]
    examined += whitened.size
  return (
    _tails(subject, examined, thresholds, beyond),
    _low_bits(subject, *grids),
  )


def _tails(
  subject: Subject,
  draws: int,
  thresholds: tuple[float, float],
  beyond: np.ndarray,
) -> Answer:
  """Returns the answer on the number of large normals.

  Args:
    subject: the aggregator.
    draws: number of normals.
    thresholds: `arithmetic_attacks.TAIL`, and the magnitude that 60 of the
      least number of draws are expected to exceed. If this number is below 120,
      half of the draws are expected to exceed it.
    beyond: number of normals beyond each threshold in magnitude.
  """
  # Half of the default false alarm is just enough for a lower limit of 1 at
  # TAIL with TAIL_DRAWS normals.
  shares = ((1 / 2, 1 / 6), (1 / 6, 1 / 6))
  tests = []
  for threshold, count, share in zip(thresholds, beyond, shares):
    poisson = scipy.stats.poisson(2 * draws * scipy.stats.norm.sf(threshold))
    least = poisson.ppf(subject.false_alarm * share[0])
    most = poisson.isf(subject.false_alarm * share[1])
    tests.append((not least <= count <= most, count, least, most, threshold))
  # A generator whose normals end before TAIL fails only if the lower limit at
  # TAIL is above 0.
  decidable = tests[0][2] > 0
  failed, count, least, most, threshold = max(
    tests[not decidable :], key=lambda test: test[0]
  )
  return subject.answer(
    'tails',
    failed,
    decidable,
    count,
    (least, most),
    f'of {draws} normals beyond {threshold:.4g} standard deviations'
    + ('' if failed or decidable else '; 2^30 draws tell'),
  )


def _on_grids(means: np.ndarray, value: float, clients: int) -> np.ndarray:
  """Returns numbers of small releases off and on grids, [3, digits, 2].

  If the release v + y of a float sum is much smaller than the client's value v,
  it is a multiple of half a unit in the last place of v, as in
  `arithmetic_attacks.low_bits`. The noise may be added before or after the
  division by B, or the aggregator may not divide the sum of a single client. So
  three grids are tested: the grid of v for B times the release, the grid of
  v / B for the release, and the grid of v for the release. A number counts as
  small if it is below a 16th of v, or of v / B, in magnitude.

  Args:
    means: released means of coordinates, [m] float64.
    value: v, the value that the client sends in about half of all coordinates;
      it need not be in these coordinates.
    clients: B.
  """
  counts = []
  scales = (clients / value, 1 / float(np.float32(value / clients)), 1 / value)
  for scale in scales:
    multiples = scale * means
    multiples = multiples[np.abs(multiples) < 1 / 16]
    steps = multiples[:, np.newaxis] * 2.0**_DIGITS
    # The division by B is not exact.
    on = np.sum(np.abs(steps - np.rint(steps)) < 0.125, 0)
    counts.append(np.stack([len(multiples) - on, on], 1))
  return np.array(counts)


def _low_bits(
  subject: Subject, without: np.ndarray, present: np.ndarray
) -> Answer:
  """Returns the answer on last bits: the least p-value of Fisher's exact tests.

  Each test compares, for one grid, the releases with and without a client.

  Args:
    subject: the aggregator.
    without: numbers of small releases without the client's value, as
      `_on_grids` returns them.
    present: the same numbers with the client's value.
  """
  fisher = scipy.stats.fisher_exact
  miss = subject.false_alarm / (without.size / 2)
  decidable, tests = False, [(1.0, 0.0)]
  for table in np.stack([without, present], 2).reshape(-1, 2, 2):
    sizes = table.sum(1)
    if not sizes.all():
      continue
    shares = table[:, 1] / sizes
    tests.append((fisher(table)[1], shares[1] - shares[0]))
    # The most extreme table has all releases with the client on the grid.
    decidable = decidable or fisher([table[0], [0, sizes[1]]])[1] < miss
  chance, more = min(tests, key=lambda test: (test[0], -abs(test[1])))
  return subject.answer(
    'low_bits',
    chance < miss,
    decidable,
    chance,
    (miss, 1.0),
    'probability by chance of such last bits: with a client '
    f'{100 * more:+.2g} % of the small releases are on a grid',
  )


def replay(subject: Subject) -> Answer:
  """Returns the answer on second releases of one round.

  A sound aggregator refuses to release another sum. For the same sum it refuses
  too, or repeats its release. Suppose that an aggregator releases two sums. If
  both have the same noise, the difference of the releases is the difference of
  the sums, without noise. If the noise is new, the round costs its epsilon a
  second time. The statistic is the standard deviation of the noise in the
  difference of the releases, over the standard deviation for independent noise.
  """
  statement = subject.statement
  left, limits = math.nan, (0.0, 0.0)
  unit = 'of the noise is left in a difference of releases; '
  with subject.opened() as run:
    assert run is not None
    if not run.has_state:
      unit += 'the state is inside the aggregator'
      return subject.answer('replay', False, False, left, limits, unit)
    state = run.state

    def released(updates):
      run.state = copy.deepcopy(state)
      try:
        return statement.sum_per_mean * run.round(updates)
      except aggregators.Refusal:
        return None

    updates, total = subject.one_client(0, run.like)
    others, other_total = subject.one_client(1, run.like)
    first, again = released(updates), released(updates)
    second = released(others)
  if first is None:
    raise errors.value_error(
      'aggregator: refuses the first round from a copy of its state; let '
      'copy.deepcopy copy it'
    )
  same = again is None or np.array_equal(first, again)
  unit += f'the same sum gives {"no other release" if same else "new noise"}, '
  unit += 'another sum is ' + ('refused' if second is None else 'released too')
  if second is not None:
    noise = (second - other_total) - (first - total)
    stddev = math.sqrt(2) * statement.z_stddev / float(statement.matrix[0, 0])
    left = float(np.sqrt(np.mean(noise**2))) / stddev
  failed = not same or second is not None
  return subject.answer('replay', failed, True, left, limits, unit)
