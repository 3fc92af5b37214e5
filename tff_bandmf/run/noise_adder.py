"""The noise of a run, added by TFF's aggregator or to a sum without TFF."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Callable, Optional, TypeVar, Union

import numpy as np
import tree

from tff_bandmf import errors
from tff_bandmf.ledger import chain
from tff_bandmf.noise import placements
from tff_bandmf.plan import plan as plan_lib

if TYPE_CHECKING:
  import tensorflow as tf
  import tensorflow_federated as tff

  from tff_bandmf import query
  from tff_bandmf.aggregator import factory
  from tff_bandmf.query import correlated_noise

_Update = TypeVar('_Update')


class NoiseAdder:
  """Adds the noise of a plan in TFF's aggregator or in a query without TFF."""

  def __init__(self, plan: plan_lib.Plan, tape: Callable[[], placements.Tape]):
    """Initializes the noise adder.

    Args:
      plan: plan of the run.
      tape: function that returns the placement of the noise.
    """
    self._plan = plan
    self._tape = tape
    self._factory: Optional[factory.CorrelatedNoiseFactory] = None
    self._query: Optional[query.CorrelatedNoiseQuery] = None
    self._state: Optional[correlated_noise.QueryState] = None
    # The round of the last `release`, and the clip values that it released.
    self._released: tuple[int, dict[str, tf.Tensor]] = -1, {}
    self._process_was_checked = False

  @property
  def aggregator(self) -> factory.CorrelatedNoiseFactory:
    """The aggregation factory for the one learning process of the run."""
    if self._factory is None:
      from tff_bandmf import aggregator

      plan = self._plan
      # PRIVACY: less noise than the plan's would void the claim. The factory
      # gets its multiplier, clip and strategy from the plan. Guards:
      # run_test.test_noise_is_that_of_the_plan and
      # test_noise_of_units_of_several_is_that_of_the_plan.
      self._factory = aggregator.dp_aggregator(
        # The factory multiplies by the sensitivity of one client.
        plan.guarantee.noise_multiplier * plan.clients_per_unit,
        plan.clients_per_round,
        l2_norm_clip=plan.l2_norm_clip,
        strategy=plan.strategy,
        participation=plan.schema,
        largest_cohort=plan.most_clients,
        dimension=plan.dimension,
        zeroing_norm=plan.zeroing_norm,
        noise=self._tape(),
      )
    return self._factory

  def check(self, process: tff.templates.IterativeProcess) -> str:
    """Returns a sentence that names the values that bypass the aggregator.

    Args:
      process: learning process, or another one with a `next` of (state, values
        of clients).

    Raises:
      ValueError: the next state depends on a value that bypasses the
        aggregator.
    """
    from tff_bandmf import aggregator

    # PRIVACY: the guarantee does not cover values of clients that bypass the
    # aggregator. A process whose state depends on such values is refused, and
    # the report names all other such values.
    # Guard: run_report_test.test_process_that_passes_the_aggregator_is_refused.
    past = ', '.join(aggregator.check_process(process)) or 'nothing'
    self._process_was_checked = True
    return (
      'computations followed from the clients to what a round gives; '
      f'past the aggregator: {past}'
    )

  def release(
    self,
    t: int,
    clients: int,
    updates: Iterable[_Update],
    like: _Update,
    l2_norm_clip: Optional[float],
  ) -> _Update:
    """Returns the mean of updates with noise.

    Args:
      t: index of the round.
      clients: number of clients in the cohort of the round.
      updates: updates, see `Round.release`.
      like: example of an update. Its structure, shapes and dtypes in the first
        call hold for all rounds.
      l2_norm_clip: clip that the previous round released; None if the clip is
        constant, or in the first round.
    """
    query, state = self._query_and_state(like)
    import tensorflow as tf

    state = state._replace(
      round=tf.constant(t, tf.int64), clip=query.initial_clip(l2_norm_clip)
    )
    params = query.derive_sample_params(state)
    total = query.initial_sample_state()
    for i, update in enumerate(updates):
      # PRIVACY: if there are more updates than recorded clients, one update is
      # from an unrecorded client. The release is refused.
      # Guard: run_test.test_more_updates_than_clients_are_refused.
      if i >= clients:
        raise errors.value_error(
          f'updates={i + 1} or more: are more than the {clients} clients of '
          'the round; give at most one update of each client of round.cohort'
        )
      record = _in_float64(update, query.record_specs)
      total = query.accumulate_record(params, total, record)
    try:
      mean, after, _ = query.get_noised_result(total, state)
    except tf.errors.InvalidArgumentError as error:
      refused = errors.refusal(error)
      if refused is None:
        raise
      raise refused from error
    self._released = t, dict(after.clip)
    return tree.map_structure(lambda leaf: leaf.numpy(), mean)

  def _query_and_state(
    self, like: object
  ) -> tuple[query.CorrelatedNoiseQuery, correlated_noise.QueryState]:
    """Returns the query for updates that look like `like`, and its state."""
    if self._query is None or self._state is None:
      # This import is first, since its error says in one line which package
      # has to be installed.
      from tff_bandmf import query  # isort: skip
      import tensorflow as tf

      plan = self._plan
      # PRIVACY: noise for another clip or multiplier than the plan's would void
      # the claim. The query takes both from the plan.
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
        noise_from=self._tape(),
      )
      self._state = self._query.begin(self._query.initial_global_state())
    return self._query, self._state

  def released(self, t: int) -> dict[str, float]:
    """Returns the clip values that `release` of round t gave beside the mean.

    The names are those in `metrics.RELEASED`. The result is {} if the clip is
    constant or the round released through the aggregator.
    """
    last, values = self._released
    if last != t:
      return {}
    return {name: float(value) for name, value in values.items()}

  @property
  def warning(self) -> Optional[str]:
    """`Plan.warning` for the size of the model, if the plan has no size."""
    query = self._query
    if query is None and self._factory is not None:
      query = self._factory.query
    if query is None or self._plan.dimension is not None:
      return None
    from tff_bandmf.query import clipping

    dimension = clipping.record_dimension(query.record_specs)
    return self._plan.warning(dimension)

  def flag(self, t: int) -> Optional[str]:
    """Returns the flag of `chain.FLAGS` for the source of the updates.

    The result is None if an unchecked process made the release.
    """
    # PRIVACY: a process may use a mean of raw updates that bypasses the
    # aggregator. The flag of each round in the ledger says whether the process
    # was checked.
    # Guard: run_report_test.test_process_that_nobody_checked_leads_the_report.
    if self._released[0] == t:
      return chain.DIRECT
    return chain.EXAMINED if self._process_was_checked else None

  @property
  def z_stddev(self) -> float:
    """Standard deviation of z in the unit of the sum; 0 without noise."""
    if not self._plan.guarantee.noise_multiplier > 0:
      return 0.0
    source = self._source()
    # Without a factory or a query, nothing was released, and the journal
    # refuses the round.
    return (source and source.z_stddev) or self._plan.z_stddev

  def close(self) -> None:
    """Ends the noise producers, and removes their files."""
    for source in self._factory, self._query:
      if source is not None:
        source.close()

  def _source(
    self,
  ) -> Optional[
    Union[query.CorrelatedNoiseQuery, factory.CorrelatedNoiseFactory]
  ]:
    return self._query or self._factory


def _in_float64(update: object, specs: object) -> object:
  """Returns an update in float64.

  Args:
    update: arrays, in the structure of `specs`.
    specs: structure of `tf.TensorSpec`.

  Raises:
    ValueError: the structure or a shape differs from `specs`.
  """

  def converted(spec: tf.TensorSpec, leaf: np.typing.ArrayLike) -> np.ndarray:
    leaf = np.asarray(leaf, np.float64)
    # PRIVACY: a sum would broadcast a smaller array, so that its client would
    # count more often than the clip allows. Another shape is refused.
    # Guard: run_test.test_update_of_another_shape_is_refused.
    if leaf.shape != tuple(spec.shape):
      raise ValueError(f'{leaf.shape} is not {spec.shape}')
    return leaf

  try:
    return tree.map_structure(converted, specs, update)
  except (TypeError, ValueError) as error:
    raise errors.value_error(
      f'update={type(update).__name__}: has other shapes than `like`; give '
      'float arrays in its structure'
    ) from error
