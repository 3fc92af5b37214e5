"""Sound aggregators, and tables of aggregators with one fault each.

The noise of each run has a fresh seed.
"""

import itertools
import math
import secrets
import time

import numpy as np

from tff_bandmf import strategies

CLIENTS, CLIP, Z, ROUNDS = 100, 0.5, 1.2, 48
INDEPENDENT = np.eye(ROUNDS)
BANDED = strategies.BandedToeplitz(ROUNDS, [1.0, 0.6, 0.3]).matrix()
# Steps of the lattice of sums and noise.
STEP = CLIP * 2.0**-20


def _flat(update):
  return np.concatenate([each.ravel() for each in update]).astype(np.float64)


def _norm(vector):
  with np.errstate(over='ignore', invalid='ignore'):
    return np.sqrt(np.sum(vector**2))


class Sound:
  """Clips, rounds to a lattice, adds lattice noise, divides by a constant.

  A state is the round, the noise of earlier rounds and the sum of a replay.
  """

  def __init__(self, like, noise, seed=None, matrix=INDEPENDENT):
    self._inverse = np.linalg.inv(matrix)
    self._noise = noise
    self._seed = secrets.randbits(64) if seed is None else seed
    self._sums = {}
    self.shapes = [each.shape for each in like]
    self.size = sum(each.size for each in like)

  def initialize(self):
    return 0

  def clipped(self, update):
    vector = _flat(update)
    norm = _norm(vector)
    if not math.isfinite(norm):
      return np.zeros_like(vector)
    return vector * min(1.0, CLIP / max(norm, 1e-300))

  def clipped_cohort(self, updates):
    # Clients of an audit share an array, which is clipped once.
    clipped = {id(each): each for each in updates}
    clipped = {key: self.clipped(each) for key, each in clipped.items()}
    return [clipped[id(each)] for each in updates]

  def summed(self, vectors, examples):
    steps = {id(each): each for each in vectors}
    steps = {key: np.trunc(each / STEP) for key, each in steps.items()}
    total = np.zeros(self.size)
    for each in vectors:
      total += steps[id(each)]
    return total * STEP

  def divisor(self, updates):
    return CLIENTS

  def normals(self, t, size):
    return np.random.default_rng([self._seed, t]).normal(size=size)

  def noise(self, t, size):
    z = [self.normals(s, size) for s in range(t + 1) if self._inverse[t, s]]
    row = self._inverse[t][self._inverse[t] != 0]
    y = sum(each * z for each, z in zip(row, z))
    return np.rint(CLIP * Z * y / STEP) * STEP

  def factor(self, t, updates, total):
    """Factor of the noise of a round; it is 1 unless there is a fault."""
    return 1.0

  def check_replay(self, t, total):
    previous = self._sums.setdefault(t, total)
    if not np.array_equal(previous, total, equal_nan=True):
      raise ValueError('another sum')

  def next(self, state, updates, examples):
    total = self.summed(self.clipped_cohort(updates), examples)
    if total.size < 1000:
      self.check_replay(state, total)
    if self._noise:
      factor = self.factor(state, updates, total)
      total = total + factor * self.noise(state, total.size)
    return state + 1, self.mean(total, updates)

  def mean(self, total, updates):
    return [(total / self.divisor(updates)).astype(np.float32)]


class ClipsOfLayers(Sound):
  """Each layer has a clip; their squares add up to the square of the clip."""

  def clipped(self, update):
    size = sum(each.size for each in update)
    return np.concatenate(
      [
        math.sqrt(each.size / size)
        * super(ClipsOfLayers, self).clipped(
          [each / np.float32(math.sqrt(each.size / size))]
        )
        for each in update
      ]
    )


class ClipsOfCoordinates(Sound):
  """Each coordinate has a clip of the same size."""

  def clipped(self, update):
    vector = _flat(update)
    most = CLIP / math.sqrt(vector.size)
    finite = np.isfinite(vector).all()
    return np.clip(vector, -most, most) if finite else np.zeros_like(vector)


class RepeatsItsRelease(Sound):
  """A replay of a round, with whatever sum, gets the release of the round."""

  def __init__(self, *args, **kwargs):
    super().__init__(*args, **kwargs)
    self._released = {}

  def check_replay(self, t, total):
    pass

  def next(self, state, updates, examples):
    if state not in self._released:
      self._released[state] = super().next(state, updates, examples)
    return self._released[state]


class UsualCohortsAlone(Sound):
  """Refuses a few clients, or many more, and updates of zero or NaN."""

  def clipped_cohort(self, updates):
    if len(updates) not in (1, CLIENTS):
      raise ValueError('another number of clients')
    vectors = list(map(_flat, updates))
    if not all(np.isfinite(each).all() and each.any() for each in vectors):
      raise ValueError('an update of zero, or not finite')
    return super().clipped_cohort(updates)


SOUND = [
  Sound, ClipsOfLayers, ClipsOfCoordinates, RepeatsItsRelease, UsualCohortsAlone
]  # fmt: skip


class Banded(Sound):
  """Noise of a strategy with three bands."""

  def __init__(self, like, noise):
    super().__init__(like, noise, matrix=BANDED)


class VeryNoisy(Sound):
  """Two clients a round, and a standard deviation of 50 clips."""

  def normals(self, t, size):
    return super().normals(t, size) * (50.0 / Z)

  def divisor(self, updates):
    return 2


def function(aggregator, like, noise):
  """A function that keeps the state of an aggregator to itself."""
  if not noise:
    return None
  inner = aggregator(like, noise)
  rounds = itertools.count()

  def mean(updates, examples):
    return inner.next(next(rounds), updates, examples)[1]

  return mean


def _made(name, **methods):
  return type(name, (Sound,), methods)


# The noise has the wrong size: factor(t, updates, total).


def _norms(updates):
  return [_norm(_flat(each)) for each in updates] or [0.0]


def _ones(total, place, value=0.0):
  factor = np.ones(total.size)
  factor[place] = value
  return factor


_FACTORS = {
  'NoneWithoutClients': lambda t, u, total: float(bool(u)),
  'NoneForOneClient': lambda t, u, total: float(len(u) != 1),
  'HalfForPartOfTheClients': lambda t, u, total: (
    0.5 if 1 < len(u) < CLIENTS else 1.0
  ),
  'LessForOneMissingClient': lambda t, u, total: (
    0.7 if len(u) == CLIENTS - 1 else 1.0
  ),
  'ByNumberOfClients': lambda t, u, total: len(u) / CLIENTS,
  'ByRootOfNumberOfClients': lambda t, u, total: math.sqrt(len(u) / CLIENTS),
  'NoneIfAllAreZero': lambda t, u, total: float(total.any()),
  'NoneWhereTheSumIsZero': lambda t, u, total: (total != 0) * 1.0,
  'NoneIfTheSumIsSmall': lambda t, u, total: float(_norm(total) > 1e-3),
  'LessIfTheSumIsBelowTheClip': lambda t, u, total: min(
    1.0, 0.5 + _norm(total) / CLIP
  ),
  'LessIfTheSumIsLarge': lambda t, u, total: (
    0.8 if _norm(total) > 20 * CLIP else 1.0
  ),
  'ByLargestNorm': lambda t, u, total: min(1.0, max(_norms(u)) / CLIP),
  'LessForHugeNorms': lambda t, u, total: (
    0.7 if max(_norms(u)) > 1e3 * CLIP else 1.0
  ),
  'LessForNormsAboveTheClip': lambda t, u, total: (
    0.7 if max(_norms(u)) > 1.001 * CLIP else 1.0
  ),
  'NoneForTinyNorms': lambda t, u, total: float(
    not 0 < max(_norms(u)) < 1e-6 * CLIP
  ),
  'LessForAZeroUpdate': lambda t, u, total: 0.8 if 0.0 in _norms(u) else 1.0,
  'NoneIfAnUpdateIsNotFinite': lambda t, u, total: float(
    np.isfinite(_norms(u)).all()
  ),
  'NoneInALayerOfPartOfTheClients': lambda t, u, total: (
    _ones(total, slice(0, 24)) if len(u) < CLIENTS else 1.0
  ),
  'LittleInOneCoordinate': lambda t, u, total: _ones(total, 7, 0.3),
  'LittleInTheLastCoordinate': lambda t, u, total: _ones(total, -1, 0.3),
  'LessInTheFirstLayer': lambda t, u, total: _ones(total, slice(0, 24), 0.8),
  'NonePastManyCoordinates': lambda t, u, total: (
    _ones(total, slice(10_000, None))
  ),
  'LittleInOneRound': lambda t, u, total: 0.5 if t == 9 else 1.0,
  'LittleInTheFirstRound': lambda t, u, total: 0.5 if t == 0 else 1.0,
  'LessInEveryOtherRound': lambda t, u, total: 0.9 if t % 2 else 1.0,
  'NoneInLaterRounds': lambda t, u, total: float(t < 40),
  'NoneInTheLastRound': lambda t, u, total: float(t < ROUNDS - 1),
  'LessInOddCoordinatesOfLaterRounds': lambda t, u, total: (
    _ones(total, slice(1, None, 2), 0.7) if t > 24 else 1.0
  ),
  'NoneAtAll': lambda t, u, total: 0.0,
}  # fmt: skip


def _of(function):
  return lambda self, *args: function(*args)


class NoneInScalars(Sound):
  def noise(self, t, size):
    parts = np.split(
      super().noise(t, size),
      np.cumsum([math.prod(each) for each in self.shapes])[:-1],
    )
    return np.concatenate(
      [part * bool(shape) for part, shape in zip(parts, self.shapes)]
    )


class NoneInConvolutions(Sound):
  def noise(self, t, size):
    parts = np.split(
      super().noise(t, size),
      np.cumsum([math.prod(each) for each in self.shapes])[:-1],
    )
    return np.concatenate(
      [part * (len(shape) < 3) for part, shape in zip(parts, self.shapes)]
    )


class NoneAfterTheLastRound(Sound):
  def noise(self, t, size):
    return super().noise(t, size) if t < ROUNDS else np.zeros(size)


# The noise is not independent of other noise, or not normal: normals(t, size).


def _fresh(self, *names):
  return np.random.default_rng([self._seed, *names])


def _same_in_two_layers(self, t, size):
  z = Sound.normals(self, t, size)
  z[24:48] = z[:24]
  return z


def _reversed_in_two_layers(self, t, size):
  z = Sound.normals(self, t, size)
  z[24:48] = -z[:24][::-1]
  return z


def _tiled(self, t, size):
  return np.resize(Sound.normals(self, t, 100), size)


def _shifted_by_one_each_round(self, t, size):
  return _fresh(self).normal(size=size + ROUNDS)[t : t + size]


def _tied_to_last_round(self, t, size):
  last = Sound.normals(self, t - 1, size) if t else np.zeros(size)
  return math.sqrt(0.96) * Sound.normals(self, t, size) + 0.2 * last


def _pairs_of_opposite_rounds(self, t, size):
  return Sound.normals(self, t // 2, size) * (-1) ** t


def _partly_the_same_in_all_runs(self, t, size):
  shared = np.random.default_rng(t).normal(size=size)
  return math.sqrt(0.7) * Sound.normals(self, t, size) + (
    math.sqrt(0.3) * shared
  )


def _same_layer_in_all_runs(self, t, size):
  z = Sound.normals(self, t, size)
  z[24:216] = np.random.default_rng(t).normal(size=192)
  return z


def _tail_cut(self, t, size):
  z = Sound.normals(self, t, size)
  return np.where(np.abs(z) > 3.5, 1.0, z)


def _laplace_first_layer(self, t, size):
  z = Sound.normals(self, t, size)
  z[:24] = _fresh(self, t).laplace(size=24) / math.sqrt(2)
  return z


_RUNS = itertools.count()


class NextRunOneRoundLater(Sound):
  """The noise of run i in round t is that of run 0 in round t + i."""

  def __init__(self, *args, **kwargs):
    super().__init__(*args, seed=next(_RUNS), **kwargs)

  def normals(self, t, size):
    return np.random.default_rng(t + self._seed).normal(size=size)


def _seed(function):
  return lambda self, t, size: np.random.default_rng(
    [function(self), t, size]
  ).normal(size=size)


_NORMALS = {
  'FixedSeed': _seed(lambda self: 1),
  'SeedOfTheClock': _seed(lambda self: int(time.time()) // 100),
  'SameInAllRounds': lambda self, t, size: Sound.normals(self, 0, size),
  'SameEverySixteenRounds': lambda self, t, size: Sound.normals(
    self, t % 16, size
  ),
  'SameInTwoLayers': _same_in_two_layers,
  'ReversedInTwoLayers': _reversed_in_two_layers,
  'Tiled': _tiled,
  'ShiftedByOneEachRound': _shifted_by_one_each_round,
  'TiedToTheLastRound': _tied_to_last_round,
  'PairsOfOppositeRounds': _pairs_of_opposite_rounds,
  'PartlyTheSameInAllRuns': _partly_the_same_in_all_runs,
  'SameLayerInAllRuns': _same_layer_in_all_runs,
}
_SHAPES = {
  'TailCut': _tail_cut,
  'Laplace': lambda self, t, size: (
    _fresh(self, t).laplace(size=size) / math.sqrt(2)
  ),
  'LaplaceFirstLayer': _laplace_first_layer,
  'Uniform': lambda self, t, size: _fresh(self, t).uniform(
    -math.sqrt(3), math.sqrt(3), size
  ),
  'StudentT': lambda self, t, size: (
    _fresh(self, t).standard_t(8, size) * math.sqrt(6 / 8)
  ),
  'TwoValues': lambda self, t, size: _fresh(self, t).choice([-1.0, 1.0], size),
  'Coarse': lambda self, t, size: (
    np.rint(Sound.normals(self, t, size)) / math.sqrt(13 / 12)
  ),
}


class SeedOfTheSum(Sound):
  """The noise is a function of the sum and the round."""

  def check_replay(self, t, total):
    super().check_replay(t, total)
    self._seed = int(np.abs(total / STEP).sum())


# A clip does not bound what a client adds: clipped(update).


def _scaled(vector, norm):
  with np.errstate(all='ignore'):
    return vector * np.minimum(1.0, CLIP / norm)


def _finite(vector):
  return vector if np.isfinite(vector).all() else np.zeros_like(vector)


def _unless(condition):
  """Sound clip, but for updates for which a condition holds."""

  def clipped(self, update):
    vector = _flat(update)
    with np.errstate(all='ignore'):
      return vector if condition(vector) else Sound.clipped(self, update)

  return clipped


def _layers_apart(self, update):
  return np.concatenate([Sound.clipped(self, [each]) for each in update])


def _without_layer(layer):
  def clipped(self, update):
    rest = [each for i, each in enumerate(update) if i != layer % len(update)]
    return _finite(_scaled(_flat(update), _norm(_flat(rest))))

  return clipped


def _nan_kept(self, update):
  vector = _flat(update)
  return _scaled(vector, _norm(vector))


def _nan_skips_the_clip(self, update):
  vector = _flat(update)
  norm = _norm(vector)
  return np.nan_to_num(vector) * (CLIP / norm if norm > CLIP else 1.0)


def _replaced_after_the_clip(value, by, place=slice(None)):
  """Sound clip of all other coordinates, and `by` in place of one value."""

  def clipped(self, update):
    vector = _flat(update)
    mask = np.zeros(vector.size, bool)
    mask[place] = True
    bad = mask & (np.isnan(vector) if math.isnan(value) else (vector == value))
    result = Sound.clipped(self, [np.where(bad, 0.0, vector)])
    result[bad] = by
    return result

  return clipped


def _float32_norm(self, update):
  """The square of the norm overflows float32, and inf / inf is NaN."""
  vector = _flat(update).astype(np.float32)
  with np.errstate(all='ignore'):
    norm = np.float32(np.sqrt(np.sum(vector**2)))
    unit = vector / max(norm, np.float32(1e-30))
    unit = np.where(np.isinf(norm), vector / CLIP, unit)
    return _finite(np.where(norm > CLIP, CLIP * unit, vector).astype(float))


_CLIPS = {
  'UnclippedJustAbove': _unless(lambda v: CLIP < _norm(v) < 1.05 * CLIP),
  'UnclippedToTwice': _unless(lambda v: 1.6 * CLIP < _norm(v) < 2.5 * CLIP),
  'UnclippedIfHuge': _unless(lambda v: 1e10 < _norm(v) < 1e200),
  'UnclippedIfSparse': _unless(
    lambda v: np.sum(v != 0) == 1 and np.isfinite(v).all()
  ),
  'UnclippedIfNegative': _unless(
    lambda v: np.isfinite(v).all() and (v <= 0).all()
  ),
  'ByLayer': _layers_apart,
  'FirstLayerLeftOut': _without_layer(0),
  'LastLayerLeftOut': _without_layer(-1),
  'ScalarsLeftOut': _without_layer(4),
  'ByCoordinate': lambda self, update: np.clip(
    _finite(_flat(update)), -CLIP, CLIP
  ),
  'ByLargestCoordinate': lambda self, update: _finite(
    _scaled(_flat(update), np.abs(_flat(update)).max())
  ),
  'ByAbsoluteValues': lambda self, update: _finite(
    _scaled(_flat(update), np.abs(_flat(update)).sum() / 10)
  ),
  'Float32Norm': _float32_norm,
  'NanKept': _nan_kept,
  'NanSkipsTheClip': _nan_skips_the_clip,
  'NanKeptInTheLastCoordinate': _replaced_after_the_clip(
    math.nan, math.nan, -1
  ),
  'NanKeptInTheSecondLayer': _replaced_after_the_clip(
    math.nan, math.nan, slice(24, 216)
  ),
  'InfinityKept': _replaced_after_the_clip(math.inf, math.inf),
  'MinusInfinityKept': _replaced_after_the_clip(-math.inf, -math.inf),
  'MinusInfinityIsLarge': _replaced_after_the_clip(-math.inf, -3e38),
  'NanIsOne': _replaced_after_the_clip(math.nan, 1.0),
}


def _first_client_unclipped(self, updates):
  return [_finite(_flat(each)) for each in updates[:1]] + [
    self.clipped(each) for each in updates[1:]
  ]


def _late_clients_unclipped(self, updates):
  return [
    self.clipped(each) if i < 64 else _finite(_flat(each))
    for i, each in enumerate(updates)
  ]


def _single_clients_unclipped(self, updates):
  if len(updates) == 1:
    return [_finite(_flat(updates[0]))]
  return [self.clipped(each) for each in updates]


def _nan_of_two_clients_kept(self, updates):
  vectors = list(map(_flat, updates))
  if sum(not np.isfinite(each).all() for each in vectors) > 1:
    return vectors
  return [self.clipped(each) for each in updates]


_COHORT_CLIPS = {
  'FirstClientUnclipped': _first_client_unclipped,
  'LateClientsUnclipped': _late_clients_unclipped,
  'SingleClientsUnclipped': _single_clients_unclipped,
  'NanOfTwoClientsKept': _nan_of_two_clients_kept,
}


class ClipOfTheSum(Sound):
  """The mean is clipped, not each update."""

  def clipped(self, update):
    return np.nan_to_num(_flat(update), posinf=0.0, neginf=0.0)

  def summed(self, vectors, examples):
    total = np.sum([np.zeros(self.size), *vectors], 0)
    most = CLIP * CLIENTS
    with np.errstate(over='ignore'):
      total = total * min(1.0, most / max(np.linalg.norm(total), 1e-300))
    return np.trunc(total / STEP) * STEP


class SumRemembered(Sound):
  """A half of the last sum comes again."""

  def summed(self, vectors, examples):
    total = super().summed(vectors, examples)
    again = np.rint(getattr(self, '_last', 0.0) / 2 / STEP) * STEP
    self._last = total
    return total + again


# What a client adds depends on others, or on what it states.


def _nonzero(updates):
  return sum(bool(_flat(each).any()) for each in updates)


_DIVISORS = {
  'ByNumberOfAllClients': lambda self, updates: max(len(updates), 1),
  'ByNumberOfClientsNotZero': lambda self, updates: (
    _nonzero(updates) + CLIENTS - len(updates) or 1
  ),
  'ByNumberOfClientsAboveHalf': lambda self, updates: (
    len(updates) if CLIENTS // 2 < len(updates) < CLIENTS else CLIENTS
  ),
  'ByNumberOfFewClients': lambda self, updates: (
    max(len(updates), 1) if len(updates) < 4 else CLIENTS
  ),
  'ByNumberOfMoreClients': lambda self, updates: max(len(updates), CLIENTS),
}


class ZerosOfFewClients(Sound):
  """A round of fewer clients is not refused, and releases zeros."""

  def mean(self, total, updates):
    return super().mean(total * (len(updates) == CLIENTS), updates)


class WeightsByExamples(Sound):
  def summed(self, vectors, examples):
    weights = np.array(examples) * (len(examples) / max(sum(examples), 1))
    return super().summed([w * v for w, v in zip(weights, vectors)], examples)


class WeightsUpToTen(Sound):
  """A client that states many examples counts up to ten times."""

  def summed(self, vectors, examples):
    return super().summed(
      [v * (10.0 if w > 1000 else 1.0) for w, v in zip(examples, vectors)],
      examples,
    )


class WeightNan(Sound):
  """A weight that is not a number is multiplied."""

  def summed(self, vectors, examples):
    with np.errstate(all='ignore'):
      return super().summed(
        [v * min(1.0, max(w, 1.0)) for w, v in zip(examples, vectors)],
        examples,
      ) * (1.0 if np.isfinite(examples).all() else np.nan)


class FirstClientTwice(Sound):
  def summed(self, vectors, examples):
    return super().summed([*vectors[:1], *vectors], examples)


# The last bits.


class Float32Sums(Sound):
  """The sum is not on the lattice of the noise, so last bits show it too."""

  def summed(self, vectors, examples):
    total = np.zeros(self.size, np.float32)
    for each in vectors:
      total += each.astype(np.float32)
    return total


class Float32SumsOfTheLastLayer(Sound):
  def summed(self, vectors, examples):
    total = super().summed(vectors, examples)
    last = np.zeros(12, np.float32)
    for each in vectors:
      last += each[-13:-1].astype(np.float32)
    total[-13:-1] = last
    return total


class FloatNoise(Sound):
  """Float32 records and noise are added without a lattice."""

  def summed(self, vectors, examples):
    total = np.zeros(self.size, np.float32)
    for each in vectors:
      total = total + each.astype(np.float32)
    return total

  def noise(self, t, size):
    return np.float32(CLIP * Z) * self.normals(t, size).astype(np.float32)


# A round is released twice: check_replay(t, total).


class NewNoise(Sound):
  """A replay of a round, with whatever sum, draws again."""

  def check_replay(self, t, total):
    pass

  def normals(self, t, size):
    return np.random.default_rng().normal(size=size)


class NewNoiseForAnotherSum(Sound):
  """The same sum has the same noise; another sum draws again."""

  _other = 0

  def check_replay(self, t, total):
    self._other = int(np.abs(total / STEP).sum())

  def normals(self, t, size):
    return _fresh(self, t, self._other).normal(size=size)


class NewNoiseForAnotherOrder(Sound):
  """The order of the clients, not the sum, names the noise of a replay."""

  def clipped_cohort(self, updates):
    vectors = super().clipped_cohort(updates)
    self._order = [int(abs(v / STEP).sum()) for v in vectors[:3]]
    return vectors

  def normals(self, t, size):
    return _fresh(self, t, *self._order).normal(size=size)


def _checked(mark):
  """Only a mark of the sum is compared."""

  def check_replay(self, t, total):
    Sound.check_replay(self, t, np.asarray(mark(total)))

  return check_replay


class LastRoundChecked(Sound):
  """Only the last round that was released is compared."""

  def check_replay(self, t, total):
    self._sums = {t: self._sums[t]} if t in self._sums else {}
    super().check_replay(t, total)


class OneRefusal(Sound):
  """After it was refused once, another sum is released."""

  def check_replay(self, t, total):
    try:
      super().check_replay(t, total)
    except ValueError:
      self._sums[t] = total
      raise


class FirstRoundChecked(Sound):
  def check_replay(self, t, total):
    if t == 0:
      super().check_replay(t, total)


_REPLAYS = {
  'SameNoiseForTwoSums': lambda self, t, total: None,
  'MarkOfTheFirstCoordinate': _checked(lambda total: total[0]),
  'MarkOfTheLastCoordinate': _checked(lambda total: total[-1]),
  'MarkOfTheFirstLayer': _checked(lambda total: total[:24]),
  'MarkOfTheNorm': _checked(lambda total: round(_norm(total), 6)),
  'MarkOfTheTotal': _checked(lambda total: round(float(total.sum()), 6)),
  'MarkOfSortedValues': _checked(np.sort),
  'MarkOfRoundedValues': _checked(lambda total: np.round(total, 2)),
  'MarkOfAbsoluteValues': _checked(np.abs),
  'ZerosUnchecked': lambda self, t, total: (
    Sound.check_replay(self, t, total) if total.any() else None
  ),
}


def _table(method, functions, question):
  return {
    name: (_made(name, **{method: each}), question)
    for name, each in functions.items()
  }


# Maps the name of a fault to the aggregator and a question that must fail.
FAULTS = {
  **_table('factor', {k: _of(v) for k, v in _FACTORS.items()}, 'size'),
  **_table('normals', _NORMALS, 'correlation'),
  **_table('normals', _SHAPES, 'tails'),
  **_table('clipped', _CLIPS, 'influence'),
  **_table('clipped_cohort', _COHORT_CLIPS, 'influence'),
  **_table('divisor', _DIVISORS, 'divisor'),
  **_table('check_replay', _REPLAYS, 'replay'),
  **{
    each.__name__: (each, question)
    for question, classes in {
      'size': [NoneInScalars, NoneInConvolutions, NoneAfterTheLastRound],
      'correlation': [SeedOfTheSum, NextRunOneRoundLater],
      'influence': [
        ClipOfTheSum, SumRemembered, WeightsUpToTen, WeightNan,
        FirstClientTwice,
      ],
      'divisor': [ZerosOfFewClients, WeightsByExamples],
      'sums': [Float32Sums, Float32SumsOfTheLastLayer, FloatNoise],
      'low_bits': [Float32Sums, FloatNoise],
      'replay': [
        NewNoise, NewNoiseForAnotherSum, NewNoiseForAnotherOrder,
        LastRoundChecked, OneRefusal, FirstRoundChecked,
      ],
    }.items()
    for each in classes
  },
}  # fmt: skip
