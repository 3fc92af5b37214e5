"""Runs of an aggregation with canary clients, in TFF or in NumPy."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Callable

import numpy as np

from tff_bandmf import accounting, query
from tff_bandmf.audit import pattern as pattern_lib
from tff_bandmf.noise import placements

if TYPE_CHECKING:
  from tff_bandmf import aggregator

# Norm of a canary's update, in clipping norms. It is larger than 1, so that an
# audit can find an aggregation that does not clip.
_SIZE = 16.0
_CLIENTS_PER_ROUND = 10.0
_CLIP = 0.5

# (clients_per_round, l2_norm_clip, largest_cohort) -> factory.
MakeFactory = Callable[..., 'aggregator.CorrelatedNoiseFactory']
# (round, updates) -> (mean, clip of the next round).
Next = Callable[[int, Sequence[np.ndarray]], tuple[np.ndarray, float]]
# (dimension, largest number of clients of a round) -> one run.
OpenRun = Callable[[int, int], contextlib.AbstractContextManager[Next]]


@contextlib.contextmanager
def in_tff(
  make_factory: MakeFactory, dimension: int, largest_cohort: int
) -> Iterator[Next]:
  """Yields the function that runs a round of TFF's aggregation process.

  Args:
    make_factory: function that returns the factory, with the keywords
      `clients_per_round`, `l2_norm_clip` and `largest_cohort`. If the clip
      adapts, `l2_norm_clip` is the clip of the first round.
    dimension: d, number of coordinates of an update, >= 1.
    largest_cohort: largest number of clients of a round, >= 1.
  """
  from tff_bandmf.tff import names as tff

  with make_factory(
    clients_per_round=_CLIENTS_PER_ROUND,
    l2_norm_clip=_CLIP,
    largest_cohort=largest_cohort,
  ) as factory:
    process = factory.create(tff.TensorType(np.float32, [dimension]))
    state = process.initialize()

    def next_round(t, updates):
      del t
      nonlocal state
      output = process.next(state, list(updates))
      state = output.state
      released = output.measurements.get('released', {})
      return output.result, released.get('l2_norm_clip', _CLIP)

    yield next_round


@contextlib.contextmanager
def in_numpy(
  guarantee: accounting.Guarantee, dimension: int, largest_cohort: int
) -> Iterator[Next]:
  """Yields the function that runs a round of `query.NoisyMean`.

  Args:
    guarantee: strategy, participation and noise multiplier.
    dimension: d, number of coordinates of an update, >= 1.
    largest_cohort: largest number of clients of a round, >= 1.
  """
  mean = query.NoisyMean(
    guarantee,
    np.zeros(dimension, np.float32),
    (_CLIP, None, math.inf),
    _CLIENTS_PER_ROUND,
    largest_cohort=largest_cohort,
    placement=placements.Tape(),
  )
  with contextlib.closing(mean):
    yield lambda t, updates: (mean.release(t, updates).mean, _CLIP)


def released(
  open_run: OpenRun,
  rounds: int,
  pattern: pattern_lib.Pattern,
  canaries: int,
  generator: np.random.Generator,
  on_round: Callable[[], object],
) -> np.ndarray:
  """Returns the sums of a run, less known updates, in clipping norms.

  Each canary takes part in the rounds of the pattern, and has a coordinate of
  its own. Its update is zero in all other coordinates. In its coordinate, the
  update is 16 clipping norms, with the sign of the pattern for the round. One
  known client takes part in every round, and its update is subtracted from the
  sum. So each of the first `canaries` columns of the result is the contribution
  of one canary plus noise, and every other column is noise.

  Args:
    open_run: function of (dimension, largest number of clients of a round) that
      opens a run, such as `in_tff` with its `make_factory`.
    rounds: n, number of rounds, >= 1.
    pattern: rounds in which canaries take part, and signs of their updates.
    canaries: number of canaries; an update has twice as many coordinates.
    generator: generator of the canaries' coordinates and the known client's
      updates.
    on_round: function that is called after every round.

  Returns:
    [rounds, 2 * canaries] float64; the coordinates of canaries come first.
  """
  dimension = 2 * canaries
  coordinates = generator.permutation(dimension)
  updates = np.zeros((canaries, dimension), np.float32)
  updates[np.arange(canaries), coordinates[:canaries]] = _SIZE
  signs = dict(zip(pattern.rounds.tolist(), pattern.signs.tolist()))
  clip = np.float32(_CLIP)
  sums = np.zeros((rounds, dimension))
  with open_run(dimension, canaries + 1) as next_round:
    for t in range(rounds):
      known = generator.normal(size=dimension)
      known *= 0.5 * clip / np.linalg.norm(known)
      known = known.astype(np.float32)
      sent = list(clip * np.float32(signs[t]) * updates) if t in signs else []
      mean, next_clip = next_round(t, [known, *sent])
      sums[t] = _CLIENTS_PER_ROUND * mean.astype(np.float64) - known
      sums[t] /= clip
      # If the clip adapts, the round returns the clip of the next round.
      clip = np.float32(next_clip)
      on_round()
  return sums[:, coordinates]
