"""An audit that compares an aggregator with the specification of its author.

  make = aggregators.load('mine:aggregator')
  for answer in answers(make, Specification(0.5, 1.2, 100, np.eye(128))):
    print(answer)

| question      | compared with the specification                              |
|---------------|--------------------------------------------------------------|
| `influence`   | how far one client moves the sum, also by NaN or huge values |
| `sums`        | how much rounding of the sum adds to a client's influence    |
| `size`        | standard deviation of the noise, for each kind of update     |
| `correlation` | correlation of the noise over rounds, runs and coordinates   |
| `tails`       | number of large normals, and of normals in intervals         |
| `low_bits`    | last bits of releases with and without a client              |
| `divisor`     | change of a contribution by cohort size and by examples      |
| `replay`      | second release of a round, for the same and for other sums   |

Each question is a test. An aggregator is sound if it meets the specification.
It fails any test with at most a stated probability, the false alarm. If the
test could not have failed, the answer is 'cannot tell'. An answer names its
probes, the cohorts that were sent.

| symbol | meaning                                                            |
|--------|--------------------------------------------------------------------|
| B      | clients per round, the divisor of the mean                         |
| C      | strategy, [n, n]                                                   |
| z      | stated standard deviation of the normals Z, in clips               |
| R      | B times the released means, in clips, [rounds, d]; its noise is    |
|        | C^-1 Z                                                             |
| W      | C (R - sums of the updates) / z; for a sound aggregator, its       |
|        | entries are independent standard normals. For two runs with the    |
|        | same updates, W is C times the difference of R, / (2^(1/2) z)      |
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Sequence
from typing import Callable, Optional

import numpy as np
import scipy.stats

from tff_bandmf import errors
from tff_bandmf.audit import aggregators, arithmetic_attacks, probes, whitened
from tff_bandmf.audit import answers as answers_lib

PASS, FAIL = answers_lib.PASS, answers_lib.FAIL
CANNOT_TELL = answers_lib.CANNOT_TELL
Specification = probes.Specification

# Shares of the false alarm: of the lower limit at TAIL, of the other limits of
# `tails`, and of each other question. Half of the default false alarm is just
# enough for a lower limit of 1 at TAIL with TAIL_DRAWS normals. `sums` and
# `replay` never fail for a sound aggregator.
_TAIL_SHARE, _TAILS_SHARE, _SHARE = 0.5, 0.05, 0.09
# Largest number of releases of a probe with noise, in two runs together. Fewer
# are enough if the error of a contribution is at most `_ERROR`.
_RELEASES, _ERROR = 16, 0.06
# Relative excess over a clip that float32 rounding of one record explains.
_ROUNDING = 1e-5
# Largest relative change of a client's contribution that rounding explains.
_CHANGE = 1e-3
# Largest relative excess over a clip, and largest relative change of a client's
# contribution, with which an aggregator may still pass.
_HIDDEN_EXCESS, _HIDDEN_CHANGE = 0.1, 0.5
# Shapes of the layers of an update with many coordinates; largest number of
# rounds of a run with such updates; and number of these rounds whose
# correlation is measured.
_MANY_SHAPES = ((1 << 17,), (256, 512))
_MANY_ROUNDS, _MANY_CORRELATED = 64, 8
# Exponents p of the grids that `_on_grids` tests, the multiples of v 2^-p for a
# client's value v. Common lattices and float32 have p from 6 to 26, float64 53.
_DIGITS = np.array([*range(6, 27, 2), 53])
# Expected number of normals beyond the second threshold of `tails`, out of the
# least number of draws.
_EXPECTED = 60
# Scale of the records of `sums`. Several records of one update stay below the
# clip with this scale.
_SUMS_SCALE = 0.25


def answers(
  make: aggregators.Make,
  specification: Specification,
  draws: int = arithmetic_attacks.TAIL_DRAWS,
  false_alarm: float = arithmetic_attacks.FALSE_ALARM,
  seed: Optional[int] = None,
  on_round: Callable[[], object] = lambda: None,
  again: Optional[Callable[[], aggregators.Make]] = None,
) -> list[answers_lib.Answer]:
  """Returns the answers to all questions.

  Args:
    make: function that returns a new aggregator; see `aggregators`.
    specification: specification by the author of the aggregator.
    draws: least number of normals that `tails` examines, >= 1. At the default
      `false_alarm`, 2^30 are enough to tell whether normals exceed the largest
      normal of a float32 generator.
    false_alarm: largest probability with which a sound aggregator fails any
      question, in (0, 1).
    seed: seed of the clients' updates, >= 0; if None, it is drawn.
    on_round: function that is called after every round, also a refused round.
    again: function that imports the module of `make` anew and returns its
      `make`. It shows whether every start has the same noise.

  Raises:
    ValueError: the aggregator cannot be made, it refused a round of ordinary
      updates, or the mean and an update have different sizes.
  """
  subject = probes.Subject(make, specification, false_alarm, seed, on_round)
  runs = Runs(subject, again)
  many = many_coordinates(subject, draws)
  noises = Noises(runs, many.noise)
  return [
    influence(runs),
    sums(subject),
    size(noises),
    correlation(noises),
    tails(subject, many, noises),
    low_bits(subject, many),
    divisor(runs),
    replay(subject),
  ]


class Runs:
  """The runs in which an aggregator gets the probes.

  Attributes:
    subject: the aggregator.
    ordinary: pairs of runs with the ordinary probes.
    others: pairs of runs with all other probes.
    noisy: probes of `others`.
    cohorts: probes for the variant without noise.
    sums: releases without noise by probe, in clips, [d]; None if there is no
      variant without noise.
    again: the first release of a program that starts anew, in clips, [d]; None
      if this is not known.
  """

  def __init__(
    self,
    subject: probes.Subject,
    again: Optional[Callable[[], aggregators.Make]] = None,
  ):
    """Runs the aggregator; for Args see `answers`."""
    self.subject = subject
    specification = subject.specification
    clients = specification.clients_per_round
    sizes = probes.cohort_sizes(clients)
    usual = probes.ordinary(clients)
    # If all B clients send a contribution, error^2 releases reduce its error to
    # `_ERROR`. At most `_RELEASES` are made.
    error = self._reach() / clients / _ERROR
    repetitions = math.ceil(min(error**2, _RELEASES) / 2)
    self.ordinary = list(
      subject.pairs(usual, max(1, len(specification.matrix) // len(usual)))
    )
    finite = {**sizes, **probes.attacks(clients, True)}
    not_finite = probes.not_finite(clients, True)
    self.noisy = {**finite, **not_finite}
    self.others = [
      *subject.pairs(finite, repetitions),
      *subject.pairs(not_finite, 1),
    ]
    self.cohorts = {
      _FIRST: (probes.Group(clients),),
      **sizes,
      **probes.attacks(clients, False),
      **probes.not_finite(clients, False),
      _LAST: (probes.Group(clients),),
    }
    self.sums = subject.without_noise(self.cohorts)
    self.again = None
    if again is not None:
      with subject.opened(make=again()) as run:
        assert run is not None
        sent = subject.cohort(next(iter(usual.values())), run.like)
        self.again = specification.sum_per_mean * run.round(*sent)

  @property
  def refused(self) -> list[str]:
    """Names of the probes with noise that the aggregator refused."""
    pairs = *self.ordinary, *self.others
    return list(dict.fromkeys(name for pair in pairs for name in pair.refused))

  def _reach(self) -> float:
    """Returns a bound, in clips, on the norm of one normal per layer.

    A question has fewer than 256 intervals. Each is wrong with a probability of
    at most a 256th of the question's false alarm.
    """
    miss = self.subject.false_alarm * _SHARE / 256
    quantile = scipy.stats.chi2.isf(miss, len(probes.SHAPES))
    return self.subject.specification.z_stddev * math.sqrt(quantile)

  def contributions(self) -> dict[str, answers_lib.Interval]:
    """Returns bounds on the contribution of one measured client, with noise.

    The contribution of a client is measured in the directions of the layers of
    its update. If a release is not finite, both bounds are infinite. If fewer
    than half of B clients are measured, the upper bound is NaN, since the noise
    hides the contribution of so few clients.
    """
    specification = self.subject.specification
    clients = specification.clients_per_round
    intervals: dict[str, answers_lib.Interval] = {}
    for pair in self.others:
      sums, deviations = pair.mean_sums()
      for name, total in sums.items():
        i, group = next(
          (i, each) for i, each in enumerate(self.noisy[name]) if each.measured
        )
        by_layer = self.subject.direction(group, i)
        value = float(np.linalg.norm(by_layer @ total)) / group.clients
        error = self._reach() * deviations[name] / group.clients
        few = 2 * group.clients < clients
        most = math.nan if few else value + error
        intervals[name] = value - error, most
      if pair.not_finite:
        intervals[pair.not_finite] = math.inf, math.inf
    return intervals


# Names of the first and last probe without noise.
_FIRST, _LAST = 'all clients: tiny, first', 'all clients: tiny, last'


def influence(runs: Runs) -> answers_lib.Answer:
  """Returns the answer on the norm, in clips, by which a client moves a sum.

  Without noise, this is the distance of a sum to the first sum, which has no
  attackers, divided by the number of attackers. The last sum has no attackers
  either: its distance shows whether earlier updates are in later sums.
  """
  clients = runs.subject.specification.clients_per_round
  sizes = probes.cohort_sizes(clients)
  bounds = answers_lib.Bounds()
  for name, interval in runs.contributions().items():
    if name not in sizes:
      bounds.add(name, interval)
  sums = runs.sums or {}
  for name, total in sums.items():
    if name in sizes or _FIRST not in sums or name == _FIRST:
      continue
    attackers = sum(
      each.clients for each in runs.cohorts[name] if each.measured
    )
    with np.errstate(invalid='ignore'):
      # PRIVACY: A client may move a sum further than a clip by small changes of
      # many coordinates. A test of the largest coordinate would miss this, so
      # the norm is measured.
      # Guard: conformance_test.test_fault_of_the_sum_fails_its_question.
      moved = float(np.linalg.norm(total - sums[_FIRST])) / max(attackers, 1)
    moved = moved if math.isfinite(moved) else math.inf
    bounds.add(name, (moved, moved))
  return bounds.answer(
    'influence',
    (1 + _ROUNDING, 1 + _HIDDEN_EXCESS),
    'clips at {} moved by one client',
    runs.subject.false_alarm * _SHARE,
    runs.refused,
  )


def divisor(runs: Runs) -> answers_lib.Answer:
  """Returns the answer on changes of a client's contribution.

  The contribution must depend neither on the number of clients in the round nor
  on the numbers of examples that clients state. Changes are relative to the
  contribution in the cohort in which all clients send the same update.
  """
  clients = runs.subject.specification.clients_per_round
  sizes = probes.cohort_sizes(clients)
  reference, *others = sizes
  bounds = answers_lib.Bounds()
  intervals = runs.contributions()
  for name in others if clients > 1 else ():
    if name in intervals and reference in intervals:
      bounds.add(name, _change(intervals[name], intervals[reference]))
  sums = runs.sums or {}
  # The last coordinate is left out, since only the other clients send it.
  each = {
    name: sums[name][:-1] / sizes[name][0].clients
    for name in sizes
    if name in sums
  }
  if reference in each and clients > 1:
    norm = float(np.linalg.norm(each[reference]))
    for name in list(each)[1:]:
      off = float(np.linalg.norm(each[name] - each[reference]))
      if norm > 0:
        bounds.add(name, (off / norm, off / norm))
  return bounds.answer(
    'divisor',
    (_CHANGE, _HIDDEN_CHANGE),
    "relative change, at {}, of a client's contribution",
    runs.subject.false_alarm * _SHARE,
    [name for name in runs.refused if name in sizes],
  )


def _change(
  contribution: answers_lib.Interval, other: answers_lib.Interval
) -> answers_lib.Interval:
  """Returns bounds on |c / o - 1| for `contribution` c and `other` o.

  The upper bound is NaN if `contribution` has none.
  """
  if math.isinf(contribution[0]):  # A release was not finite.
    return math.inf, math.inf
  with np.errstate(divide='ignore', invalid='ignore'):
    least, most = np.divide(contribution, np.maximum(other, 0.0)[::-1]).tolist()
  least = 0.0 if math.isnan(least) else least  # 0 / 0 is unknown.
  if math.isnan(most):
    return max(least - 1, 0.0), math.nan
  return max(least - 1, 1 - most, 0.0), max(1 - least, most - 1)


def sums(subject: probes.Subject) -> answers_lib.Answer:
  """Returns the answer on the clips that rounding adds to one record.

  Without noise, the aggregator adds three cohorts: the cohort of
  `arithmetic_attacks.summing` with the victim's record, the same cohort without
  this record, and the victim's record among very small ones. The record is in
  each of the coordinates `probes.PLACES`. The statistic is the norm, over these
  coordinates, of the difference of the first two sums, less the third sum.
  """
  specification = subject.specification
  clients = specification.clients_per_round
  # Values of the cohort are exact in float32 for a unit that is a power of two.
  unit = 2.0 ** math.floor(math.log2(specification.l2_norm_clip))
  unit *= _SUMS_SCALE / specification.l2_norm_clip
  # PRIVACY: Sums could be inexact in some layers or coordinates only. A test of
  # one position would miss this, so each kind of position is tried.
  # Guard: conformance_test.test_sum_that_is_not_exact_fails.
  places = list(probes.PLACES)

  def add(values):
    with subject.opened(noise=False) as run:
      if run is None:
        return math.nan
      vectors = np.zeros((len(values), probes.DIMENSION))
      # Some aggregators refuse zeros; 2^-40 is too small to change a sum.
      vectors[:, places] = np.maximum(values, 2.0**-40)[:, np.newaxis]
      vectors *= unit * specification.l2_norm_clip
      updates = [aggregators.layers(each, run.like) for each in vectors]
      return specification.sum_per_mean * run.round(updates)[places] / unit

  def excess(add):
    if clients < 2:
      return np.full(len(places), math.nan)
    alone = np.zeros(clients, np.float32)
    alone[0] = arithmetic_attacks.VICTIM
    moved = arithmetic_attacks.summing(add, clients).statistic
    return (moved - np.abs(add(alone))) * unit

  measured = float(np.linalg.norm(excess(add)))
  # The excess of float32 sums that are inexact in only one coordinate.
  float32 = float(
    excess(lambda x: np.cumsum(x, dtype=np.float32)[-1].astype(float)).max()
  )
  # Rounding of the mean to float32 can change the statistic by this much.
  most = max(_ROUNDING, clients * 2.0**-23)
  decidable = math.isfinite(measured) and float32 > most
  return answers_lib.Answer(
    'sums',
    answers_lib.verdict(decidable and measured > most, decidable),
    measured,
    0.0,
    most,
    'clips that rounding adds to the influence of a record; in float32 '
    f'{float32:.2g}' + ('' if decidable else ', needs a variant without noise'),
    0.0,
    ('all clients: rising to a power of two in each layer',),
  )


class Noises:
  """Whitened noise of all runs.

  Attributes:
    runs: the runs of the probes.
    known: noise of both runs of each pair with ordinary probes, whose sums are
      known.
    firsts: noise of first rounds: of two runs, and of a program that starts
      anew; empty if there is no such program.
    differences: noise of the difference of each other pair of runs.
    many: noise of updates with many coordinates.
    after: noise of rounds past the last round, [d] each, divided by the
      smallest standard deviation that is allowed.
  """

  def __init__(self, runs: Runs, many: whitened.Noise):
    """Whitens the noise of the probes."""
    specification = runs.subject.specification
    self.runs, self.many = runs, many

    def noise(pair, rows):
      values = pair.matrix @ rows / specification.z_stddev
      return whitened.Noise(values, pair.names, probes.STARTS)

    self.known = [
      [noise(pair, each - pair.sums) for each in pair.releases]
      for pair in runs.ordinary
    ]
    # First rounds of two runs, and of a program that starts anew.
    self.firsts: list[whitened.Noise] = []
    if runs.again is not None:
      first = runs.ordinary[0]
      starts = *(each[:1] for each in first.releases), runs.again[np.newaxis]
      row = dataclasses.replace(
        first, names=first.names[:1], matrix=first.matrix[:1, :1]
      )
      self.firsts = [noise(row, each - first.sums[:1]) for each in starts]
    self.differences = [
      noise(pair, (pair.releases[0] - pair.releases[1]) / math.sqrt(2))
      for pair in runs.others
    ]
    # C has no row for a round past the last one. If C had a further row, with a
    # diagonal entry of at most twice the largest diagonal entry of C, the
    # standard deviation of the noise would be at least this number.
    least = specification.z_stddev / (
      2 * float(np.diag(specification.matrix).max())
    )
    self.after = [
      (pair.after[0] - pair.after[1]) / (math.sqrt(2) * least)
      for pair in runs.ordinary
      if pair.after is not None
    ]

  def merged(self) -> list[whitened.Noise]:
    """Returns noise of known sums, of differences, and of many coordinates."""
    return [
      whitened.Noise(
        np.concatenate([each.whitened for each in noises]),
        [name for each in noises for name in each.names],
        probes.STARTS,
      )
      for noises in (sum(self.known, []), self.differences)
    ] + [self.many]

  def answer(
    self, question: str, test: whitened.Test, unit: str
  ) -> answers_lib.Answer:
    """Returns the answer that follows from a test at all probes."""
    names = dict.fromkeys(name for each in self.merged() for name in each.names)
    return answers_lib.Answer(
      question,
      answers_lib.verdict(test.failed, True),
      *test[:3],
      unit,
      self.runs.subject.false_alarm * _SHARE,
      tuple(names),
      tuple(each for each in self.runs.refused if each not in names),
    )


def size(noises: Noises) -> answers_lib.Answer:
  """Returns the answer on the standard deviation of the noise.

  The answer has the ratio of measured to stated standard deviation that is
  nearest to failing.
  """
  false_alarm = noises.runs.subject.false_alarm * _SHARE
  test = whitened.sizes(noises.merged(), noises.after, false_alarm)
  past = 'has noise' if noises.after else 'was not released'
  return noises.answer(
    'size',
    test,
    f'times the stated standard deviation, in {test.name}; a round past the '
    f'last {past}',
  )


def correlation(noises: Noises) -> answers_lib.Answer:
  """Returns the answer on the largest correlation in W."""
  many = dataclasses.replace(
    noises.many, whitened=noises.many.whitened[:_MANY_CORRELATED]
  )
  groups = [
    *noises.known,
    # PRIVACY: An aggregator may have the same noise after each start. The first
    # rounds of all starts are compared.
    # Guard: conformance_test.test_same_noise_at_every_start_is_found.
    *([noises.firsts] if noises.firsts else []),
    *([each] for each in noises.differences),
    [many],
  ]
  false_alarm = noises.runs.subject.false_alarm * _SHARE
  test, tests = whitened.correlations(groups, false_alarm)
  return noises.answer(
    'correlation',
    test,
    f'standard deviations of a correlation of {test.name}, the largest of '
    f'{tests}',
  )


@dataclasses.dataclass(frozen=True)
class Many:
  """Noise and last bits of rounds of one client with many coordinates.

  The client sends the same power of two in about half of the coordinates, drawn
  at random, and a value too small to matter in all others.

  Attributes:
    noise: whitened noise of the first run.
    draws: number of normals that were examined.
    thresholds: `arithmetic_attacks.TAIL`, and the magnitude that 60 of the
      least number of draws are expected to exceed. If the least number of draws
      is below 120, half of the draws are expected to exceed this magnitude.
    beyond: number of normals beyond each threshold in magnitude.
    grids: numbers of small releases without and with the client's value, as
      `_on_grids` returns them, [2, 3, digits, 2].
  """

  noise: whitened.Noise
  draws: int
  thresholds: tuple[float, float]
  beyond: np.ndarray
  grids: np.ndarray


def many_coordinates(subject: probes.Subject, draws: int) -> Many:
  """Returns noise and last bits of at least `draws` coordinates."""
  specification = subject.specification
  lengths = list(map(math.prod, _MANY_SHAPES))
  dimension = sum(lengths)
  rounds = min(_MANY_ROUNDS, len(specification.matrix))
  matrix = specification.matrix[:rounds, :rounds] * specification.sum_per_mean
  value = 2.0 ** math.floor(math.log2(specification.l2_norm_clip))
  value /= 2.0 ** math.ceil(math.log2(dimension) / 2)
  thresholds = (
    arithmetic_attacks.TAIL,
    float(scipy.stats.norm.isf(min(0.25, _EXPECTED / 2 / draws))),
  )
  first = None
  beyond, examined = np.zeros(2), 0
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
          grids[i] += _on_grids(part, value, specification.clients_per_round)
        noise[t] = mean - sent / specification.clients_per_round
    noise = matrix @ noise
    if first is None:
      first = noise / specification.z_stddev
    # Only `size` tests the standard deviation, so `tails` divides by the
    # measured standard deviation.
    noise /= np.sqrt(np.mean(noise**2)) or 1.0
    np.abs(noise, out=noise)
    beyond += [np.sum(noise > each) for each in thresholds]
    examined += noise.size
  assert first is not None
  name = f'one client: an update of {dimension} coordinates'
  return Many(
    whitened.Noise(first, [name] * rounds, [0, *np.cumsum(lengths).tolist()]),
    examined,
    thresholds,
    beyond,
    grids,
  )


def counts_beyond(
  draws: int,
  thresholds: Sequence[float],
  beyond: Sequence[float],
  false_alarm: float,
) -> list[whitened.Test]:
  """Returns the tests of the numbers of normals beyond thresholds.

  Args:
    draws: number of normals.
    thresholds: the two magnitudes of `Many`.
    beyond: number of normals beyond each of them in magnitude.
    false_alarm: largest probability with which any question fails.
  """
  high = false_alarm * (_TAILS_SHARE / 5)
  lows = false_alarm * _TAIL_SHARE, high
  return [
    whitened.large_normals(count, draws, threshold, (low, high))
    for count, threshold, low in zip(beyond, thresholds, lows)
  ]


def tails(
  subject: probes.Subject, many: Many, noises: Noises
) -> answers_lib.Answer:
  """Returns the answer on the numbers of normals in tails and intervals.

  Updates with many coordinates give the counts of large normals, and all probes
  give the counts in intervals.
  """
  total = subject.false_alarm
  beyond = many.beyond.tolist()
  tests = counts_beyond(many.draws, many.thresholds, beyond, total)
  # A generator whose normals end before TAIL fails only if the lower limit at
  # TAIL is above 0.
  decidable = tests[0].least > 0
  tests = tests[not decidable :]
  names = 'ordinary probes', 'other probes', 'many coordinates'
  for where, noise in zip(names, noises.merged()):
    if noise.whitened.any():
      tests.append(whitened.shape(noise, where, total * _TAILS_SHARE / 15))
  test = max(tests, key=lambda test: test.failed)
  tells = test.failed or decidable
  return dataclasses.replace(
    noises.answer('tails', test, test.name),
    verdict=answers_lib.verdict(test.failed, decidable),
    unit=test.name + ('' if tells else '; 2^30 draws tell'),
    false_alarm=total * (_TAIL_SHARE + _TAILS_SHARE),
  )


def _on_grids(means: np.ndarray, value: float, clients: int) -> np.ndarray:
  """Returns numbers of small releases off and on grids, [3, digits, 2].

  If the release v + y of a float sum is much smaller than the client's value v,
  the release is a multiple of half a unit in the last place of v, as in
  `arithmetic_attacks.low_bits`. The noise may be added before or after the
  division by B, or the aggregator may leave a single client's sum undivided. So
  three grids are tested: the grid of v for B times the release, and the grids
  of v / B and of v for the release. A number counts as small if it is below a
  16th of v, or of v / B, in magnitude.

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
    # The division by B is not exact, so `steps` may be close to integers.
    on = np.sum(np.abs(steps - np.rint(steps)) < 0.125, 0)
    counts.append(np.stack([len(multiples) - on, on], 1))
  return np.array(counts)


def low_bits(subject: probes.Subject, many: Many) -> answers_lib.Answer:
  """Returns the answer on last bits: the least p-value of Fisher's exact tests.

  Each test compares, for one grid, the releases with and without a client.
  """
  fisher = scipy.stats.fisher_exact
  without, present = many.grids
  false_alarm = subject.false_alarm * _SHARE
  miss = false_alarm / (without.size / 2)
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
  return answers_lib.Answer(
    'low_bits',
    answers_lib.verdict(chance < miss, decidable),
    chance,
    miss,
    1.0,
    'probability by chance of such last bits: with a client '
    f'{100 * more:+.2g} % of the small releases are on a grid',
    false_alarm,
    many.noise.names[:1],
  )


def _other_sums(
  updates: list[aggregators.Update],
) -> dict[str, list[aggregators.Update]]:
  """Returns cohorts for second releases of a round, with different sums.

  Args:
    updates: one update of half a clip, and updates that are very small.
  """
  vector, rest = aggregators.flat(updates[0]), updates[1:]
  steps = np.eye(vector.size) * (np.abs(vector).max() / 2)
  # PRIVACY: A faulty aggregator could release a second sum if only one
  # coordinate of the sum changed. Some of these cohorts change one coordinate.
  # Guard: conformance_test.test_second_release_of_a_round_fails.
  others = {
    'the opposite': -vector,
    'other order of its coordinates': np.roll(vector, 1),
    'zeros': 0 * vector,
    **{
      f'coordinate {place} alone': vector + steps[place]
      for place in probes.PLACES
    },
    'by little': vector + 2.0**-10 * steps[0],
  }
  cohorts = {
    name: [aggregators.layers(each, updates[0]), *rest]
    for name, each in others.items()
  }
  cohorts['a client less'] = rest
  cohorts['a client more'] = [*updates, updates[0]]
  return {f'another sum: {name}': sent for name, sent in cohorts.items()}


def replay(subject: probes.Subject) -> answers_lib.Answer:
  """Returns the answer on second releases of a round.

  A sound aggregator refuses to release another sum, or releases the first mean
  again. It does one of these two for the same sum too. Suppose that an
  aggregator releases two sums. If both have the same noise, the difference of
  the releases is the difference of the sums, without noise. If the noise is
  new, the round costs its epsilon a second time. The statistic is the least
  standard deviation of the noise in the difference of the releases, divided by
  the standard deviation for independent noise.
  """
  specification = subject.specification
  unit = 'of the noise is left in a difference of releases; '
  cohort = probes.ordinary(specification.clients_per_round)
  with subject.opened() as run:
    assert run is not None
    if not run.has_state:
      unit += 'the state is inside the aggregator'
      return answers_lib.Answer(
        'replay', CANNOT_TELL, math.nan, 0.0, 0.0, unit, 0.0
      )
    updates, _ = subject.cohort(next(iter(cohort.values())), run.like)
    total = subject.total(updates)
    other_sums = _other_sums(updates)
    replays = {
      'the same sum: once more': updates,
      'the same sum: other order of clients': updates[::-1],
      **other_sums,
      'another sum: after refusals': other_sums['another sum: the opposite'],
    }
    # Names of replays: with a release, with a release of another mean, and
    # refused.
    answered, released, refused = [], [], []
    # Standard deviations of the noise in differences.
    left: list[float] = []
    firsts: list[tuple[object, np.ndarray]] = []

    def again(t, name, sent):
      state, first = firsts[t]
      run.state = copy.deepcopy(state)
      name += f' in round {t}'
      try:
        mean = run.round(sent)
      except aggregators.Refusal:
        refused.append(name)
        return
      answered.append(name)
      if np.array_equal(mean, first, equal_nan=True):
        return
      # PRIVACY: A second sum with new noise spends the privacy of the round a
      # second time, although no noise cancels. So any different release fails.
      # Guard: conformance_test.test_second_release_of_a_round_fails.
      released.append(name)
      noise = specification.sum_per_mean * (mean - first)
      noise -= subject.total(sent) - total
      stddev = (
        math.sqrt(2)
        * specification.z_stddev
        / float(specification.matrix[t, t])
      )
      left.append(np.sqrt(np.mean(noise**2)) / stddev)

    for t in range(min(3, len(specification.matrix))):
      state = copy.deepcopy(run.state)
      try:
        first = run.round(updates)
      except aggregators.Refusal as error:
        if t:
          break
        raise errors.value_error(
          'aggregator: refuses the first round from a copy of its state; let '
          'copy.deepcopy copy it'
        ) from error
      firsts.append((state, first))
      following = copy.deepcopy(run.state)
      for name, sent in replays.items() if t < 2 else ():
        again(t, name, sent)
      run.state = following
    for t in range(len(firsts)):
      again(t, 'another sum: later', other_sums['another sum: the opposite'])
  others = f'released too: {"; ".join(released)}'
  return answers_lib.Answer(
    'replay',
    answers_lib.verdict(bool(released), True),
    float(np.fmin.reduce(left, initial=math.nan)),
    0.0,
    0.0,
    unit + (others if released else 'no other release'),
    0.0,
    tuple(answered),
    tuple(refused),
  )
