"""The release of a round without TFF: NumPy arrays in, NumPy arrays out."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Optional

import numpy as np
import tree

from tff_bandmf import errors
from tff_bandmf.noise import placements
from tff_bandmf.program import plan as plan_lib
from tff_bandmf.run import rounds


class Releasing:
  """Clips, sums and adds the noise of a plan.

  Attributes:
    z_stddev: standard deviation of z in the unit of the sum.
  """

  def __init__(
    self, plan: plan_lib.Plan, placement: placements.Placement, like: Any
  ):
    """Makes the noise for updates that are like `like`."""
    import tensorflow as tf

    from tff_bandmf import query

    # PRIVACY: the noise is that of the claim, for the clip of the claim.
    # Guard: run_test.test_release_is_that_of_the_aggregator.
    self._query = query.CorrelatedNoiseQuery.of(
      plan.guarantee,
      tree.map_structure(
        lambda leaf: tf.TensorSpec(np.shape(leaf), np.asarray(leaf).dtype),
        like,
      ),
      (plan.l2_norm_clip, plan.zeroing_norm, math.inf),
      plan.clients_per_round,
      largest_cohort=plan.most_clients,
      noise_from=placement,
    )
    self.z_stddev = self._query.z_stddev
    self._state = self._query.begin(self._query.initial_global_state())
    self._released: tuple[int, dict[str, Any]] = -1, {}

  def close(self) -> None:
    """Ends the noise producer and removes its files."""
    self._query.close()

  def release(
    self,
    opened: rounds.Round,
    updates: Iterable[Any],
    l2_norm_clip: Optional[float],
  ) -> Any:
    """Returns the mean with noise.

    Args:
      opened: the round.
      updates: as `Round.release` takes them.
      l2_norm_clip: what the last round released for this one, if the clip
        adapts; None is the first clip.
    """
    import tensorflow as tf

    state = self._state._replace(
      round=tf.constant(opened.index, tf.int64),
      clip=self._query.initial_clip(l2_norm_clip),
    )
    params = self._query.derive_sample_params(state)
    total = self._query.initial_sample_state()
    for i, update in enumerate(updates):
      # PRIVACY: a client has one update; more are of nobody who was recorded.
      # Guard: run_test.test_more_updates_than_clients_are_refused.
      if i >= len(opened.cohort):
        raise errors.value_error(
          'updates',
          f'{i + 1} or more',
          f'are more than the {len(opened.cohort)} clients of the round',
          'give one of each client of round.cohort, at most',
        )
      record = _checked(update, self._query.record_specs)
      total = self._query.accumulate_record(params, total, record)
    mean, after, _ = self._query.get_noised_result(total, state)
    self._released = opened.index, dict(after.clip)
    return tree.map_structure(lambda leaf: leaf.numpy(), mean)

  def released(self, done: rounds.Round) -> dict[str, float]:
    """Returns what a round released beside the mean."""
    index, values = self._released
    if index != done.index:
      return {}
    return {name: float(value) for name, value in values.items()}


def _checked(update: Any, specs: Any) -> Any:
  """Returns an update in float64, which has the shapes of the specs."""

  def leaf_of(spec, leaf):
    leaf = np.asarray(leaf, np.float64)
    # PRIVACY: a sum would repeat a smaller array, which was clipped as it is.
    # Guard: run_test.test_update_of_another_shape_is_refused.
    if leaf.shape != tuple(spec.shape):
      raise ValueError(f'{leaf.shape} is not {spec.shape}')
    return leaf

  try:
    return tree.map_structure(leaf_of, specs, update)
  except (TypeError, ValueError) as error:
    raise errors.value_error(
      'update',
      type(update).__name__,
      'has other shapes than `like`',
      'give float arrays in its structure',
    ) from error
