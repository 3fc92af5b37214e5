"""Runs of the aggregator itself with canary clients (needs TFF)."""

from __future__ import annotations

from typing import Callable

import numpy as np
import tensorflow_federated as tff

from tff_bandmf import aggregator
from tff_bandmf.audit import pattern as pattern_lib

# Norm of a canary's update, in clipping norms, so large that the audit shows a
# missing clip.
_SIZE = 16.0
_CLIENTS_PER_ROUND = 10.0
_CLIP = 0.5

# (clients_per_round, l2_norm_clip, largest_cohort) -> factory.
MakeFactory = Callable[..., aggregator.CorrelatedNoiseFactory]


def released(
  make_factory: MakeFactory,
  rounds: int,
  pattern: pattern_lib.Pattern,
  canaries: int,
  dimension: int,
  generator: np.random.Generator,
  on_round: Callable[[], object],
) -> np.ndarray:
  """Returns the releases of a run, less a known client, in clipping norms.

  Each canary takes part in the rounds of the pattern with an update far above
  the clipping norm, along one coordinate of its own. One more client takes part
  in every round; its updates are known, and are subtracted from the releases.
  So each of the first columns of the result is the contribution of one canary
  plus noise, and every other column is noise.

  Args:
    make_factory: function that returns the aggregator, with the keywords
      `clients_per_round`, `l2_norm_clip`, the first clip if it adapts, and
      `largest_cohort`.
    rounds: n.
    pattern: rounds in which canaries take part, and their signs.
    canaries: number of canaries.
    dimension: d, coordinates of an update.
    generator: generator of the canaries' coordinates and the known client's
      updates.
    on_round: function that is called after every round.

  Returns:
    [rounds, dimension] float64, coordinates of canaries first.
  """
  places = generator.permutation(dimension)
  updates = {
    sign: [_along(i, sign, dimension) for i in places[:canaries]]
    for sign in (-1.0, 1.0)
  }
  signs = dict(zip(pattern.rounds.tolist(), pattern.signs.tolist()))
  clip = np.float32(_CLIP)
  sums = np.zeros((rounds, dimension))
  with make_factory(
    clients_per_round=_CLIENTS_PER_ROUND,
    l2_norm_clip=_CLIP,
    largest_cohort=canaries + 1,
  ) as factory:
    process = factory.create(tff.TensorType(np.float32, [dimension]))
    state = process.initialize()
    for t in range(rounds):
      known = generator.normal(size=dimension)
      known *= 0.5 * clip / np.linalg.norm(known)
      known = known.astype(np.float32)
      sent = [clip * each for each in updates[signs[t]]] if t in signs else []
      output = process.next(state, [known, *sent])
      state = output.state
      sums[t] = _CLIENTS_PER_ROUND * output.result.astype(np.float64) - known
      sums[t] /= clip
      # An adaptive clip is released with the round before.
      released = output.measurements.get('released', {})
      clip = np.float32(released.get('l2_norm_clip', clip))
      on_round()
  return sums[:, places]


def _along(i: int, sign: float, dimension: int) -> np.ndarray:
  """Returns an update along one coordinate, [dimension] float32, in clips."""
  update = np.zeros(dimension, np.float32)
  update[i] = sign * _SIZE
  return update
