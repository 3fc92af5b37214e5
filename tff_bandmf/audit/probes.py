"""Cohorts that an audit sends to an aggregator, and the rounds that it runs.

A probe is a cohort with a name. Names have the form 'kind: detail'.

| table         | probes                                                       |
|---------------|--------------------------------------------------------------|
| `ordinary`    | few, many and no clients, whose sum is known                 |
| `cohort_sizes`| clients with equal updates, in cohorts of several sizes      |
| `attacks`     | updates above the clip, and false numbers of examples        |
| `not_finite`  | NaN and infinity                                             |

`Subject.pairs` runs an aggregator twice, side by side, on the same cohorts. The
sums of both runs are equal, so the difference of their releases is noise alone,
whatever the aggregator does with the updates.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Callable, Optional

import numpy as np

from tff_bandmf import errors
from tff_bandmf.audit import aggregators

# Shapes of the layers of an update.
SHAPES: Sequence[tuple[int, ...]] = ((24,), (8, 24), (12, 24), (2, 1, 2, 3), ())
_SIZES = [math.prod(shape) for shape in SHAPES]
DIMENSION = sum(_SIZES)
_SCALAR = len(SHAPES) - 1
# First coordinate of each layer, and the number of coordinates.
STARTS = [0, *np.cumsum(_SIZES).tolist()]
# The first coordinate of each layer, and the last one of the largest layer.
PLACES = (*STARTS[:-1], STARTS[_SCALAR - 1] - 1)
# Number of orthogonal directions of updates.
_DIRECTIONS = 8
# Names of the two choices of clients that attack.
_BOTH = 'all clients', 'one client'
_ALL = _BOTH[:1]
# Norm, in clips, of the update of a client that does not attack. Some
# aggregators refuse updates of zero.
_TINY = 1e-9


@dataclasses.dataclass(frozen=True)
class Specification:
  """The specification of an aggregator by its author.

  Attributes:
    l2_norm_clip: largest norm of one client's contribution to the sum, > 0.
    z_stddev: z, standard deviation of Z, in clips, > 0.
    clients_per_round: B, number of clients and divisor of the mean, >= 1.
    matrix: C, [n, n] float64, lower-triangular; the identity for noise that is
      independent between rounds. Each run of an audit has at most n rounds, and
      one further round, which a sound aggregator refuses or releases with
      noise.
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
class Group:
  """Clients of one round that send the same update.

  Attributes:
    clients: number of these clients, >= 0.
    norm: norm of the update, in clips; its sign is the sign of the update.
    layer: index of the only layer that is not zero; None if each large layer
      has a norm proportional to the square root of its size.
    coordinate: index of the only coordinate of the layer that is not zero; None
      if all coordinates are random.
    value: value that replaces a coordinate, in the unit of updates, or None.
    place: index of this coordinate.
    examples: number of examples that each of these clients states.
    measured: whether the contribution of these clients is measured.
  """

  clients: int = 1
  norm: float = _TINY
  layer: Optional[int] = None
  coordinate: Optional[int] = None
  value: Optional[float] = None
  place: int = 0
  examples: float = 1
  measured: bool = False


Cohort = tuple[Group, ...]
Probes = Mapping[str, Cohort]


def ordinary(clients: int) -> Probes:
  """Returns cohorts whose sum is not changed by a sound aggregator.

  At most one client sends half a clip; the others send almost nothing. A sound
  aggregator accepts the first of these cohorts, and may refuse the others.

  Args:
    clients: B.
  """
  one, half = Group(norm=0.5), -(-clients // 2)
  return {
    'all clients: one of half a clip': (one, Group(clients - 1)),
    'all clients: zeros': (Group(clients, 0.0),),
    'all clients: denormal numbers': (Group(clients, 1e-40),),
    'all but one: one of half a clip': (one, Group(max(clients - 2, 0))),
    'half: one of half a clip': (Group(half - 1), one),
    'half: zeros': (Group(half, 0.0),),
    'one client: half a clip': (one,),
    'one client: tiny': (Group(1),),
    'one client: zeros': (Group(1, 0.0),),
    # PRIVACY: A faulty aggregator could leave out the noise if no client takes
    # part. One cohort is empty.
    # Guard: conformance_test.test_fault_of_the_noise_fails_its_question.
    'no client: no update': (),
    'more clients: one of half a clip': (one, Group(clients)),
  }


def cohort_sizes(clients: int) -> Probes:
  """Returns cohorts whose first clients send the same update of half a clip.

  The other clients, if any, send zeros in the coordinates of this update.

  Args:
    clients: B.
  """
  half = -(-clients // 2)

  def alike(count, examples=1):
    return Group(count, 0.5, examples=examples, measured=True)

  def others(norm, **keywords):
    rest = Group(clients - half, norm, _SCALAR, 0, **keywords)
    return alike(half), rest

  return {
    'all clients: alike': (alike(clients),),
    'all but one: alike': (alike(max(clients - 1, 1)),),
    'half: alike': (alike(half),),
    'two clients: alike': (alike(2),),
    'one client: alone': (alike(1),),
    'more clients: alike': (alike(clients + half),),
    'half: others send zeros': others(0.0),
    'half: others send huge updates': others(1e12),
    'half: others send NaN': others(1.0, value=math.nan, place=STARTS[_SCALAR]),
    'half: others state 100 examples': others(0.5, examples=100),
    'all clients: state 100 examples': (alike(clients, 100),),
  }


def attacks(clients: int, noise: bool) -> Probes:
  """Returns cohorts with updates above the clip, or false numbers of examples.

  Args:
    clients: B.
    noise: whether the aggregator adds noise. Noise would hide one attacker
      among other clients. So with noise, all clients, a quarter of them or a
      client alone attack. Without noise, further cohorts have one attacker
      among other clients.
  """
  norms = (1.0, 1.0001, 1.001, 1.01, 1.1, 1.5, 2, 10, 1e3, 1e6, 1e12, 1e19)
  groups = {
    f'norm in clips, {{}}: {norm:g}': Group(norm=norm)
    for norm in (*norms, 1e25, 1e30, 1e36)
  }
  for layer, size in enumerate(_SIZES):
    for norm in (1.01, 1e6) if size >= _DIRECTIONS else ():
      name = f'norm in one layer, {{}}: {norm:g} in {layer}'
      groups[name] = Group(norm=norm, layer=layer)
    for norm, at in ((1e6, 0), (-1.5, size - 1)):
      name = f'norm in one coordinate, {{}}: {norm:g} in {STARTS[layer] + at}'
      groups[name] = Group(norm=norm, layer=layer, coordinate=at)
  for count in (0, 1e6, -1, math.nan, math.inf):
    groups[f'examples, {{}}: {count:g}'] = Group(norm=2.0, examples=count)
  quarter = Group(-(-clients // 4), 1e6, measured=True)
  others = Group(clients - quarter.clients)
  alone = {
    f'norm in clips, alone: {norm:g}': (Group(1, norm, measured=True),)
    for norm in (1.5, 1e6, 1e30)
  }
  return {
    **_cohorts(groups, clients, _ALL if noise else _BOTH),
    **alone,
    'norm in clips, a quarter and no others: 1e+06': (quarter,),
    'norm in clips, a quarter of the clients: 1e+06': (quarter, others),
  }


def not_finite(clients: int, noise: bool) -> Probes:
  """Returns cohorts with NaN or infinity in updates.

  Args:
    clients: B.
    noise: whether the aggregator adds noise. Without noise, each kind of update
      comes once from all clients and once from one client. With noise, updates
      above the clip come from all clients, and updates below the clip from one
      client.
  """
  probes: dict[str, Cohort] = {}
  for norm, by in ((1e3, _ALL), (0.5, _BOTH[1:])):
    groups = {
      f'{value:g} and {norm:g} clips, {{}}: in {place}': Group(
        norm=norm, value=value, place=place
      )
      for value in (math.nan, math.inf, -math.inf)
      for place in PLACES
    }
    probes.update(_cohorts(groups, clients, by if noise else _BOTH))
  infinite = Group(1, 0.5, value=math.inf, measured=True)
  opposite = dataclasses.replace(infinite, value=-math.inf)
  rest = Group(max(clients - 2, 0))
  return {
    **probes,
    'inf and -inf: two clients': (infinite, opposite, rest),
    'inf: a client alone': (infinite,),
    'nan: a client alone': (dataclasses.replace(infinite, value=math.nan),),
  }


def _cohorts(
  groups: Mapping[str, Group], clients: int, by: Sequence[str]
) -> dict[str, Cohort]:
  """Returns cohorts in which one client, or all clients, belong to a group.

  The one client is in turn the first, the last or a middle client.

  Args:
    groups: {name: group}; `{}` in a name stands for the clients that attack.
    clients: B.
    by: members of `_BOTH`: the clients that attack.
  """
  probes: dict[str, Cohort] = {}
  for i, (name, group) in enumerate(groups.items()):
    group = dataclasses.replace(group, measured=True)
    before = (0, clients - 1, clients // 2)[i % 3]
    all_clients = (dataclasses.replace(group, clients=clients),)
    one = Group(before), group, Group(clients - 1 - before)
    cohorts = dict(zip(_BOTH, (all_clients, one)))
    probes.update({name.format(each): cohorts[each] for each in by})
  return probes


@dataclasses.dataclass(frozen=True)
class Pair:
  """Two runs of an aggregator, side by side, with the same cohorts.

  Attributes:
    names: name of the probe of each released round.
    releases: B times the released means, in clips, [2, rounds, d].
    sums: sums of the updates, in clips, [rounds, d]; they are of use only if
      nothing was clipped.
    matrix: C of the released rounds, [rounds, rounds].
    after: B times the means of a round past the last round, in clips, [2, d];
      None if it was refused or not tried.
    refused: names of probes that were refused.
    not_finite: name of the probe whose release was not finite, which ended the
      runs; None if all were finite. `releases` lacks this release.
  """

  names: list[str]
  releases: np.ndarray
  sums: np.ndarray
  matrix: np.ndarray
  after: Optional[np.ndarray]
  refused: list[str]
  not_finite: Optional[str]

  def mean_sums(self) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    """Returns the sum of each probe by least squares, and its error.

    The releases of a probe are its sum plus C^-1 Z. So C R is a linear function
    of the sums, plus Z.

    Returns:
      {name of a probe: its sum in clips, [d]}; and {name: standard error of
      each coordinate of this sum, in standard deviations of Z}.
    """
    probes = list(dict.fromkeys(self.names))
    indicators = np.array(self.names)[:, np.newaxis] == np.array(probes)
    design = self.matrix @ indicators
    inverse = np.linalg.inv(design.T @ design)
    sums = inverse @ design.T @ self.matrix @ self.releases.mean(0)
    deviations = np.sqrt(np.diag(inverse) / len(self.releases))
    return dict(zip(probes, sums)), dict(zip(probes, deviations.tolist()))


class Subject:
  """An aggregator, its specification, and the updates that the audit sends it.

  Attributes:
    specification: specification by the author.
    false_alarm: largest probability with which a sound aggregator fails any
      question.
    random: generator of random numbers for the updates.
  """

  def __init__(
    self,
    make: aggregators.Make,
    specification: Specification,
    false_alarm: float,
    seed: Optional[int],
    on_round: Callable[[], object],
  ):
    """Draws the directions of updates; for Args see `conformance.answers`."""
    self.specification = specification
    self.false_alarm = false_alarm
    self._make, self._on_round = make, on_round
    self.random = np.random.default_rng(seed)
    # [direction, layer, d]; small layers have no direction.
    self._directions = np.zeros((_DIRECTIONS, len(SHAPES), DIMENSION))
    for layer, (start, size) in enumerate(zip(STARTS, _SIZES)):
      if size >= _DIRECTIONS:
        basis = np.linalg.qr(self.random.normal(size=[size, _DIRECTIONS]))[0]
        self._directions[:, layer, start : start + size] = basis.T
    shares = [size if size >= _DIRECTIONS else 0 for size in _SIZES]
    self._shares = np.sqrt(np.divide(shares, sum(shares)))

  @contextlib.contextmanager
  def opened(
    self,
    shapes: Sequence[tuple[int, ...]] = SHAPES,
    noise: bool = True,
    make: Optional[aggregators.Make] = None,
  ) -> Iterator[Optional[aggregators.Run]]:
    """Yields a new run; None if there is no variant without noise.

    Args:
      shapes: shapes of the layers of an update.
      noise: whether the aggregator adds noise.
      make: function that returns the aggregator, in place of the subject's.

    Raises:
      ValueError: the aggregator's function raised an exception.
    """
    like = [np.zeros(shape, np.float32) for shape in shapes]
    try:
      aggregator = (make or self._make)(like, noise)
    except Exception as error:
      raise errors.value_error(
        f'aggregator={type(error).__name__}: cannot be made ({error}); give a '
        'function of (like, noise)'
      ) from error
    try:
      yield (
        aggregators.Run(aggregator, like, self._on_round)
        if noise or aggregator is not None
        else None
      )
    finally:
      getattr(aggregator, 'close', lambda: None)()

  def direction(self, group: Group, i: int) -> np.ndarray:
    """Returns direction i, [layer, d]: in each layer a unit vector or zero."""
    if group.coordinate is None:
      return self._directions[i]
    vectors = np.zeros((len(SHAPES), DIMENSION))
    assert group.layer is not None
    vectors[group.layer, STARTS[group.layer] + group.coordinate] = 1.0
    return vectors

  def cohort(
    self, groups: Cohort, like: aggregators.Update
  ) -> tuple[list[aggregators.Update], list[float]]:
    """Returns the updates and numbers of examples of the clients of a round.

    Args:
      groups: groups of clients; group i has direction i.
      like: an update of zeros.
    """
    updates: list[aggregators.Update] = []
    examples: list[float] = []
    for i, group in enumerate(groups):
      shares = self._shares
      if group.layer is not None:
        shares = np.eye(len(SHAPES))[group.layer]
      norm = self.specification.l2_norm_clip * group.norm
      vector = norm * (shares @ self.direction(group, i))
      if group.value is not None:
        vector[group.place] = group.value
      updates += [aggregators.layers(vector, like)] * group.clients
      examples += [group.examples] * group.clients
    return updates, examples

  def total(self, updates: Sequence[aggregators.Update]) -> np.ndarray:
    """Returns the sum of updates in clips, [d] float64."""
    sums = np.zeros(DIMENSION)
    # The clients of a group share an update.
    counts = collections.Counter(map(id, updates))
    by_id = {id(update): update for update in updates}
    with np.errstate(invalid='ignore'):
      for key, update in by_id.items():
        sums += counts[key] * aggregators.flat(update)
    return sums / self.specification.l2_norm_clip

  def without_noise(self, probes: Probes) -> Optional[dict[str, np.ndarray]]:
    """Returns B times the mean of each probe, in clips, [d], without noise.

    Refused probes are left out. Each probe is sent once, in as many runs as the
    number of rounds of C requires.

    Returns:
      None if there is no variant without noise.
    """
    names = list(probes)
    rounds = len(self.specification.matrix)
    means: dict[str, np.ndarray] = {}
    for start in range(0, len(names), rounds):
      with self.opened(noise=False) as run:
        if run is None:
          return None
        for name in names[start : start + rounds]:
          with contextlib.suppress(aggregators.Refusal):
            mean = run.round(*self.cohort(probes[name], run.like))
            means[name] = self.specification.sum_per_mean * mean
    return means

  def pairs(self, probes: Probes, repetitions: int) -> Iterator[Pair]:
    """Yields pairs of runs with noise, in which each probe is sent.

    Args:
      probes: names and cohorts.
      repetitions: number of rounds of each probe, if there are enough rounds.

    Raises:
      Refusal: the first of the ordinary probes was refused.
      ValueError: a probe was refused in one of the two runs.
    """
    names = list(probes)
    rounds = len(self.specification.matrix)
    size = max(1, rounds // repetitions)
    for start in range(0, len(names), size):
      some = names[start : start + size]
      yield self._pair(probes, (some * repetitions)[:rounds])

  def _pair(self, probes: Probes, schedule: Sequence[str]) -> Pair:
    """Returns the two runs in which probes are sent as scheduled.

    If the schedule has the first of the ordinary probes, the runs repeat this
    probe up to the last round and once more after it.
    """
    rounds = len(self.specification.matrix)
    needed, usual = next(
      iter(ordinary(self.specification.clients_per_round).items())
    )
    more = itertools.repeat(needed) if needed in schedule else ()
    names: list[str] = []
    releases: list[np.ndarray] = []
    sums: list[np.ndarray] = []
    refused: list[str] = []
    after = not_finite = None
    with self.opened() as one, self.opened() as other:
      assert one is not None and other is not None

      def released(cohort):
        sent = self.cohort(cohort, one.like)
        means = []
        refusals = []
        # Both runs execute the round at the same time, so that a seed from the
        # clock is the same in both.
        for run in (one, other):
          try:
            means.append(self.specification.sum_per_mean * run.round(*sent))
          except aggregators.Refusal as error:
            refusals.append(error)
        if means and refusals:
          raise refusals[0]
        return self.total(sent[0]), means, refusals

      for attempt, name in enumerate(itertools.chain(schedule, more)):
        # If the state is inside the aggregator, the aggregator may count a
        # refused round. Otherwise the next round gets the same state, so a
        # refused round does not count.
        if (len(names) if one.has_state else attempt) == rounds:
          # PRIVACY: A faulty aggregator could leave out the noise in a round
          # past the last round of C. Such a round is tried.
          # Guard: conformance_test.test_fault_of_the_noise_fails_its_question.
          after = released(usual)[1] or None
          break
        total, means, refusals = released(probes[name])
        if refusals:
          if name == needed:
            raise refusals[0]
          refused.append(name)
          continue
        if not np.isfinite(means).all():
          not_finite = name
          break
        names.append(name)
        releases.append(np.array(means))
        sums.append(total)
    return Pair(
      names,
      np.reshape(releases, (len(names), 2, DIMENSION)).transpose(1, 0, 2),
      np.reshape(sums, (len(names), DIMENSION)),
      self.specification.matrix[: len(names), : len(names)],
      None if after is None else np.array(after),
      refused,
      not_finite,
    )
