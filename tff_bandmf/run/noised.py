"""The noise of a run: through TFF's aggregator, or by releases without TFF."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Callable, Optional

import numpy as np
import tree

from tff_bandmf import errors
from tff_bandmf.ledger import chain
from tff_bandmf.noise import placements
from tff_bandmf.plan import plan as plan_lib
from tff_bandmf.run import rounds


class Noised:
  """Makes the noise of a plan in one of the two ways, when it is asked for."""

  def __init__(self, plan: plan_lib.Plan, tape: Callable[[], placements.Tape]):
    self._plan = plan
    self._tape = tape
    self._factory: Any = None
    self._query: Any = None
    self._state: Any = None
    self._released: tuple[int, dict[str, Any]] = -1, {}
    self._examined = False

  @property
  def aggregator(self) -> Any:
    """The aggregation factory for the one learning process of the run."""
    if self._factory is None:
      from tff_bandmf import aggregator

      plan = self._plan
      # PRIVACY: the noise is that of the claim. Guards:
      # run_test.test_noise_is_that_of_the_plan and
      # test_noise_of_units_of_several_is_that_of_the_plan.
      self._factory = aggregator.dp_aggregator(
        # The factory takes the sensitivity of one client.
        plan.guarantee.noise_multiplier * plan.clients_per_unit,
        plan.clients_per_round,
        l2_norm_clip=plan.l2_norm_clip,
        strategy=plan.strategy,
        participation=plan.cohorts.schema,
        largest_cohort=plan.most_clients,
        dimension=plan.dimension,
        zeroing_norm=plan.zeroing_norm,
        noise=self._tape(),
      )
    return self._factory

  def check(self, process: Any) -> str:
    """Returns a sentence on what a process lets past the aggregator.

    Raises:
      ValueError: the next state depends on it.
    """
    from tff_bandmf import aggregator

    # PRIVACY: the guarantee does not cover what passes the aggregator. Guard:
    # run_test.test_process_that_passes_the_aggregator_is_refused.
    past = ', '.join(aggregator.check_process(process)) or 'nothing'
    self._examined = True
    return (
      'computations followed from the clients to what a round gives; '
      f'past the aggregator: {past}'
    )

  def release(
    self,
    opened: rounds.Round,
    updates: Iterable[Any],
    like: Any,
    l2_norm_clip: Optional[float],
  ) -> Any:
    """Returns the mean with noise.

    Args:
      opened: the round.
      updates: as `Round.release` takes them.
      like: likewise; the first one counts.
      l2_norm_clip: what the last round released for this one, if the clip
        adapts; None is the first clip.
    """
    if self._query is None:
      self._begin(like)
    import tensorflow as tf

    query: Any = self._query
    state = self._state._replace(
      round=tf.constant(opened.index, tf.int64),
      clip=query.initial_clip(l2_norm_clip),
    )
    params = query.derive_sample_params(state)
    total = query.initial_sample_state()
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
      record = _checked(update, query.record_specs)
      total = query.accumulate_record(params, total, record)
    try:
      mean, after, _ = query.get_noised_result(total, state)
    except tf.errors.InvalidArgumentError as error:
      refused = errors.refusal(error)
      if refused is None:
        raise
      raise refused from error
    self._released = opened.index, dict(after.clip)
    return tree.map_structure(lambda leaf: leaf.numpy(), mean)

  def _begin(self, like: Any) -> None:
    """Makes the noise for updates that are like `like`."""
    # First: it says in one line what has to be installed.
    from tff_bandmf import query  # isort: skip
    import tensorflow as tf

    plan = self._plan
    # PRIVACY: the noise is that of the claim, for the clip of the claim.
    # Guard: run_test.test_release_is_that_of_the_aggregator.
    made = query.CorrelatedNoiseQuery.of(
      plan.guarantee,
      tree.map_structure(
        lambda leaf: tf.TensorSpec(np.shape(leaf), np.asarray(leaf).dtype),
        like,
      ),
      (plan.l2_norm_clip, plan.zeroing_norm, math.inf),
      plan.clients_per_round,
      largest_cohort=plan.most_clients,
      noise_from=self._tape(),
    )
    self._state = made.begin(made.initial_global_state())
    self._query = made

  def released(self, done: rounds.Round) -> dict[str, float]:
    """Returns what a release told beside the mean."""
    index, values = self._released
    if index != done.index:
      return {}
    return {name: float(value) for name, value in values.items()}

  @property
  def warning(self) -> Optional[str]:
    """A line where the noise drowns the updates, once their size is known."""
    query = self._query or getattr(self._factory, 'query', None)
    if query is None or self._plan.dimension is not None:
      return None
    from tff_bandmf.query import clipping

    dimension = clipping.record_dimension(query.record_specs)
    return self._plan.warning(dimension)

  def flag(self, done: rounds.Round) -> Optional[str]:
    """Returns what the ledger says of the way from clients to a release.

    None where a process made the release and nobody looked at the process.
    """
    # PRIVACY: a process may take a mean of raw updates beside the aggregator,
    # so the ledger says of each round whether the process was checked. Guard:
    # run_test.test_process_that_nobody_checked_leads_the_report.
    if self._released[0] == done.index:
      return chain.DIRECT
    return chain.EXAMINED if self._examined else None

  @property
  def z_stddev(self) -> float:
    """Standard deviation of z in the unit of the sum; 0 without noise."""
    if not self._plan.guarantee.noise_multiplier > 0:
      return 0.0
    made = self._query or self._factory
    # Where nothing was made nothing was released, and the journal says so.
    return (made and made.z_stddev) or self._plan.z_stddev

  def close(self) -> None:
    """Ends the producers of the noise, and removes their files."""
    for made in self._factory, self._query:
      if made is not None:
        made.close()


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
