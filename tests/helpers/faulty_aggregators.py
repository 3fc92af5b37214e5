"""A sound aggregator, and aggregators with one fault each, for the audit.

The noise has fixed seeds, so each run is one draw.
"""

import math

import numpy as np

from tff_bandmf import strategies

CLIENTS, CLIP, Z, ROUNDS = 100, 0.5, 1.2, 48
INDEPENDENT = np.eye(ROUNDS)
BANDED = strategies.BandedToeplitz(ROUNDS, [1.0, 0.6, 0.3]).matrix()
# Steps of the lattice of sums and noise.
STEP = CLIP * 2.0**-20


class Sound:
  """Clips, rounds to a lattice, adds lattice noise, divides by a constant.

  A state is the round, the noise of earlier rounds and the sum of a replay.
  """

  def __init__(self, like, noise, seed=1, matrix=INDEPENDENT):
    self._inverse = np.linalg.inv(matrix)
    self._noise = noise
    self._seed = seed
    self._sums = {}

  def initialize(self):
    return 0

  def clipped(self, update):
    vector = np.concatenate([each.ravel() for each in update])
    vector = vector.astype(np.float64)
    with np.errstate(over='ignore', invalid='ignore'):
      norm = np.sqrt(np.sum(vector**2))
    if not math.isfinite(norm):
      return np.zeros_like(vector)
    return vector * min(1.0, CLIP / max(norm, 1e-300))

  def summed(self, vectors, examples):
    return sum(np.trunc(each / STEP) for each in vectors) * STEP

  def divisor(self, updates):
    return CLIENTS

  def normals(self, t, size):
    return np.random.default_rng([self._seed, t]).normal(size=size)

  def noise(self, t, size):
    z = [self.normals(s, size) for s in range(t + 1) if self._inverse[t, s]]
    row = self._inverse[t][self._inverse[t] != 0]
    y = sum(each * z for each, z in zip(row, z))
    return np.rint(CLIP * Z * y / STEP) * STEP

  def check_replay(self, t, total):
    previous = self._sums.setdefault(t, total)
    if not np.array_equal(previous, total, equal_nan=True):
      raise ValueError('another sum')

  def next(self, state, updates, examples):
    total = self.summed([self.clipped(each) for each in updates], examples)
    if total.size < 1000:
      self.check_replay(state, total)
    if self._noise:
      total = total + self.noise(state, total.size)
    return state + 1, self.mean(total, updates)

  def mean(self, total, updates):
    return [(total / self.divisor(updates)).astype(np.float32)]


class Float32Sums(Sound):
  """The sum is not on the lattice of the noise, so last bits show it too."""

  def summed(self, vectors, examples):
    total = np.zeros(len(vectors[0]), np.float32)
    for each in vectors:
      total += each.astype(np.float32)
    return total


class TailsCut(Sound):
  def normals(self, t, size):
    z = super().normals(t, size)
    return np.where(np.abs(z) > 3.5, 1.0, z)


class FloatNoise(Sound):
  """Float32 records and noise are added without a lattice."""

  def summed(self, vectors, examples):
    return sum(each.astype(np.float32) for each in vectors)

  def noise(self, t, size):
    return np.float32(CLIP * Z) * self.normals(t, size).astype(np.float32)


class DataDependentDivisor(Sound):
  def divisor(self, updates):
    return len(updates)


class ZerosOfFewClients(Sound):
  """A round of fewer clients is not refused, and releases zeros."""

  def mean(self, total, updates):
    return super().mean(total * (len(updates) == CLIENTS), updates)


class WeightsByExamples(Sound):
  def summed(self, vectors, examples):
    weights = np.array(examples) * (len(examples) / sum(examples))
    return super().summed([w * v for w, v in zip(weights, vectors)], examples)


class LittleNoiseInOneCoordinate(Sound):
  def normals(self, t, size):
    z = super().normals(t, size)
    z[7] *= 0.3
    return z


class LittleNoiseInOneRound(Sound):
  def normals(self, t, size):
    return super().normals(t, size) * (0.5 if t == 9 else 1.0)


class NoNoise(Sound):
  def normals(self, t, size):
    return np.zeros(size)


class SameNoise(Sound):
  def normals(self, t, size):
    return super().normals(0, size)


class SameNoiseInTwoLayers(Sound):
  def normals(self, t, size):
    z = super().normals(t, size)
    z[24:48] = z[:24]
    return z


class NoClipOfNan(Sound):
  """A norm that is not a number is not above the clip."""

  def clipped(self, update):
    vector = np.concatenate([each.ravel() for each in update]).astype(float)
    norm = np.sqrt(np.sum(vector**2))
    factor = CLIP / norm if norm > CLIP else 1.0
    return np.nan_to_num(vector) * factor


class NanPasses(Sound):
  def clipped(self, update):
    vector = np.concatenate([each.ravel() for each in update]).astype(float)
    with np.errstate(invalid='ignore'):
      return vector * np.minimum(1.0, CLIP / np.sqrt(np.sum(vector**2)))


class ClipByLayer(Sound):
  def clipped(self, update):
    return np.concatenate(
      [super(ClipByLayer, self).clipped([x]) for x in update]
    )


class ClipOfAbsoluteValues(Sound):
  """The sum of absolute values is clipped, to ten clips."""

  def clipped(self, update):
    vector = np.concatenate([each.ravel() for each in update]).astype(float)
    total = np.abs(vector).sum()
    if not math.isfinite(total):
      return np.zeros_like(vector)
    return vector * min(1.0, 10 * CLIP / total)


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


class ClipOfTheSum(Sound):
  """The mean is clipped, not each update."""

  def clipped(self, update):
    vector = np.concatenate([each.ravel() for each in update]).astype(float)
    return np.nan_to_num(vector, posinf=0.0)

  def summed(self, vectors, examples):
    total = np.sum(vectors, 0)
    most = CLIP * CLIENTS
    with np.errstate(over='ignore'):
      total = total * min(1.0, most / max(np.linalg.norm(total), 1e-300))
    return np.trunc(total / STEP) * STEP


class SameNoiseForTwoSums(Sound):
  def check_replay(self, t, total):
    pass


class NewNoise(Sound):
  """A replay of a round, with whatever sum, draws again."""

  def __init__(self, *args, **kwargs):
    super().__init__(*args, **kwargs)
    self._random = np.random.default_rng(3)

  def check_replay(self, t, total):
    pass

  def normals(self, t, size):
    return self._random.normal(size=size)


class Banded(Sound):
  """Noise of a strategy with three bands."""

  def __init__(self, like, noise):
    super().__init__(like, noise, matrix=BANDED)
