"""Questions about the clients of a round: their influence and the divisor.

| symbol | meaning                                                         |
|--------|-----------------------------------------------------------------|
| B      | clients per round, the divisor of the mean                      |
| C      | strategy, [n, n]                                                |
| R      | B times the released means, in clips, [rounds, d]               |
| W      | C R; its noise is independent and has the standard deviation of z |
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Optional

import numpy as np
import scipy.stats

from tff_bandmf.audit import aggregators, arithmetic_attacks
from tff_bandmf.audit.statement import CANNOT_TELL, FAIL, PASS, Answer, Subject

# Shapes of the layers of an update.
SHAPES = ((24,), (8, 24), (12, 24))
DIMENSION = sum(map(math.prod, SHAPES))
# Number of directions of updates, without that of the clients that only fill a
# round. Some aggregators refuse updates of zero, so these are small.
DIRECTIONS = 7
_FILLING_NORM = 1e-9
# Relative excess over a clip that float32 rounding of one record explains.
_ROUNDING = 1e-5
# Largest excess over a clip, and change of a divisor, that a pass may hide.
_HIDDEN_EXCESS, _HIDDEN_CHANGE = 0.1, 0.5
# Relative change of a divisor that rounding does not explain.
_CHANGE = 1e-3
# Examples of a client, in general and in the test of weights.
_FEW, _MANY = 1, 100
# Rounds of each cohort, where there is noise.
_REPETITIONS = 16


@dataclasses.dataclass(frozen=True)
class Group:
  """Clients of one round that send the same update.

  Attributes:
    clients: number of these clients.
    norm: norm of the update without `broken`, in clips.
    direction: index of the direction of the update.
    layer: index of the only layer that is not zero; None if all layers have
      equal norms.
    broken: value of the first coordinate; None leaves it as it is.
    examples: number of examples that each client claims.
  """

  clients: int
  norm: float
  direction: int = 0
  layer: Optional[int] = None
  broken: Optional[float] = None
  examples: int = _FEW


# The groups of a round.
Cohort = Sequence[Group]


def filling(clients: int) -> Group:
  """Returns clients that only fill a round."""
  return Group(clients, _FILLING_NORM, DIRECTIONS)


# Least and largest contribution of a client of a group, in clips.
_Interval = tuple[float, float]
_UNKNOWN, _NOTHING = (0.0, math.inf), (0.0, 0.0)


class Clients:
  """Runs with cohorts of clients that send chosen updates."""

  def __init__(self, subject: Subject, random: np.random.Generator):
    """Draws the directions of updates."""
    self._subject = subject
    self._clients = subject.statement.clients_per_round
    # Orthonormal columns for each layer, [size, DIRECTIONS + 1].
    self._directions = [
      np.linalg.qr(random.normal(size=[math.prod(shape), DIRECTIONS + 1]))[0]
      for shape in SHAPES
    ]

  def influence(self) -> Answer:
    """Returns how far one client moves the sum, in clips."""
    everybody = self._clients
    low: dict[str, float] = {}
    high: dict[str, float] = {}

    def attack(attacks: dict[str, Group], noise: bool) -> None:
      cohorts = [
        (group, filling(everybody - group.clients))
        for each in attacks.values()
        for group in (each, dataclasses.replace(each, clients=everybody))
      ]
      intervals = self._contributions(cohorts, noise)
      for i, name in enumerate(attacks):
        (low_one, high_one), (low_all, high_all) = intervals[2 * i : 2 * i + 2]
        low[name] = max(low.get(name, 0.0), low_one, low_all)
        # Where a mean is clipped as a whole, a round in which everybody sends
        # the update hides the influence of one.
        high[name] = min(high.get(name, math.inf), max(high_one, high_all))
        if noise:
          high[name] = min(high[name], max(high_all, low_one))

    for noise in (False, True):
      attack(
        {
          'a small excess': Group(1, 1.5, 0),
          'all layers': Group(1, 1e3, 1),
          'one layer': Group(1, 1e6, 2, 2),
        },
        noise,
      )
      # A value that is not finite may stay in the state of the aggregator, so
      # each of these attacks has a run of its own.
      attack({'a huge norm': Group(1, 1e30)}, noise)
      attack({'NaN': Group(1, 1e3, broken=math.nan)}, noise)
      attack({'infinity': Group(1, 1e3, broken=math.inf)}, noise)
    failed = max(low.values()) > 1 + _ROUNDING
    vague = max(high.values()) > 1 + _HIDDEN_EXCESS
    bounds = low if failed else high
    worst = max(bounds, key=bounds.__getitem__)
    return self._subject.answer(
      'influence',
      FAIL if failed else CANNOT_TELL if vague else PASS,
      bounds[worst],
      (0.0, 1 + (_ROUNDING if failed else _HIDDEN_EXCESS)),
      f'clips at {"least" if failed else "most"} moved by one client, by '
      f'{worst}',
    )

  def divisor(self) -> Answer:
    """Returns the change of a client's contribution with data of others."""
    half = -(-self._clients // 2)
    cohorts = {
      'all clients': [Group(self._clients, 0.5, 0)],
      'half of the clients': [Group(half, 0.5, 1)],
      'one client': [Group(1, 0.5, 2)],
      'examples': [
        Group(half, 0.5, 3),
        Group(self._clients - half, 0.5, 4, examples=_MANY),
      ],
    }
    names = [name for name, cohort in cohorts.items() for _ in cohort]
    low, high = dict.fromkeys(names, 0.0), dict.fromkeys(names, math.inf)
    for noise in (False, True) if self._clients > 1 else ():
      intervals = self._contributions(list(cohorts.values()), noise)
      largest = dict.fromkeys(names, 0.0)
      for name, interval in zip(names, intervals):
        if interval == _NOTHING:  # The aggregator refuses such rounds.
          continue
        least, most = (2 * each - 1 for each in interval)
        low[name] = max(low[name], least, -most)
        largest[name] = max(largest[name], -least, most)
      for name, each in largest.items():
        high[name] = min(high[name], each)
    failed = max(low.values()) > _CHANGE
    # Noise hides the contribution of a single client.
    del high['one client']
    vague = max(high.values()) > _HIDDEN_CHANGE
    bounds = low if failed else high
    worst = max(bounds, key=bounds.__getitem__)
    return self._subject.answer(
      'divisor',
      FAIL if failed else CANNOT_TELL if vague else PASS,
      bounds[worst],
      (0.0, _CHANGE if failed else _HIDDEN_CHANGE),
      f'relative change, at {"least" if failed else "most"}, of a '
      f"client's contribution, by {worst}",
    )

  def _contributions(
    self, cohorts: Sequence[Cohort], noise: bool
  ) -> list[_Interval]:
    """Returns an interval for each group that does not fill, cohort by cohort.

    The cohorts take turns. A group of m clients that contribute c each adds
    c m C i to W, where i is 1 in its rounds and 0 elsewhere; c follows by least
    squares. A refused round contributes nothing.
    """
    statement = self._subject.statement
    groups = [
      (i, each) for i, cohort in enumerate(cohorts) for each in cohort
      if each.direction < DIRECTIONS
    ]  # fmt: skip
    rows: list[np.ndarray] = []
    turns: list[int] = []
    with self._subject.opened(SHAPES, noise) as run:
      if run is None:
        return [_UNKNOWN] * len(groups)
      rounds = len(cohorts)
      if noise:
        rounds = min(len(statement.matrix), rounds * _REPETITIONS)
      for t in range(rounds):
        turn = t % len(cohorts)
        try:
          mean = run.round(*self.sent(cohorts[turn], run))
        except aggregators.Refusal:
          continue
        if not np.isfinite(mean).all():
          return [(math.inf, math.inf)] * len(groups)
        rows.append(self._clients * mean / statement.l2_norm_clip)
        turns.append(turn)
    count = len(rows)
    whitener = statement.matrix[:count, :count] if noise else np.eye(count)
    released = whitener @ np.reshape(rows, [count, DIMENSION])
    ends = np.cumsum([len(each) for each in self._directions])[:-1]
    parts = np.split(released, ends, axis=1)
    # The norm of a normal vector of one number per layer, in z.
    reach = math.sqrt(
      scipy.stats.chi2.isf(self._subject.false_alarm / 64, len(SHAPES))
    )
    intervals = []
    for i, group in groups:
      if i not in turns:
        intervals.append(_NOTHING)
        continue
      same = [
        (j, each) for j, each in groups
        if j in turns and each.direction == group.direction
      ]  # fmt: skip
      marks = [each.clients * (np.array(turns) == j) for j, each in same]
      weights = np.linalg.pinv(whitener @ np.stack(marks, 1))[
        same.index((i, group))
      ]
      value = math.hypot(
        *(
          float(weights @ part @ directions[:, group.direction])
          for part, directions in zip(parts, self._directions)
        )
      )
      error = reach * statement.z_stddev * float(np.linalg.norm(weights))
      error *= noise
      intervals.append((value - error, value + error))
    return intervals

  def sent(
    self, cohort: Cohort, run: aggregators.Run
  ) -> tuple[list[aggregators.Update], list[int]]:
    """Returns the updates and numbers of examples of the clients of a round."""
    updates, examples = [], []
    for group in cohort:
      shares = np.full(len(SHAPES), len(SHAPES) ** -0.5)
      if group.layer is not None:
        shares = np.eye(len(SHAPES))[group.layer]
      vector = np.concatenate(
        [
          share * directions[:, group.direction]
          for share, directions in zip(shares, self._directions)
        ]
      )
      vector *= self._subject.statement.l2_norm_clip * group.norm
      if group.broken is not None:
        vector[0] = group.broken
      updates += [aggregators.layers(vector, run.like)] * group.clients
      examples += [group.examples] * group.clients
    return updates, examples


def sums(subject: Subject) -> Answer:
  """Returns how much rounding of a sum adds to the influence of one record.

  The cohort is that of `arithmetic_attacks.summing`. An aggregator without
  noise adds the same record once with this cohort and once with zeros.
  """
  clients = subject.statement.clients_per_round
  # Values of the cohort are exact in float32 for a unit that is a power of two.
  unit = 2.0 ** math.floor(math.log2(subject.statement.l2_norm_clip))

  def add(values):
    with subject.opened(SHAPES, noise=False) as run:
      if run is None:
        return math.nan
      updates = []
      for value in values:
        vector = np.zeros(DIMENSION)
        # Too small for a sum to notice, and not zero.
        vector[0] = max(value, 2.0**-40) * unit
        updates.append(aggregators.layers(vector, run.like))
      return float(clients * run.round(updates)[0] / unit)

  def excess(add):
    if clients < 2:
      return math.nan
    alone = np.zeros(clients, np.float32)
    alone[0] = arithmetic_attacks.VICTIM
    moved = arithmetic_attacks.summing(add, clients).statistic
    return (moved - abs(add(alone))) * unit / subject.statement.l2_norm_clip

  measured = excess(add)
  float32 = excess(lambda x: float(np.cumsum(x, dtype=np.float32)[-1]))
  # Rounding of the mean itself to float32.
  most = max(_ROUNDING, clients * 2.0**-23)
  decidable = math.isfinite(measured) and float32 > most
  return subject.answer(
    'sums',
    CANNOT_TELL if not decidable else PASS if abs(measured) <= most else FAIL,
    measured,
    (-most, most),
    'clips that rounding adds to the influence of a record; in float32 '
    f'{float32:.2g}' + ('' if decidable else ', needs a variant without noise'),
  )
