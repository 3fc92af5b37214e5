"""The object that adds the noise of a run, in TFF or without TFF."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Callable, Optional, TypeVar

from tff_bandmf import errors, query
from tff_bandmf.ledger import chain
from tff_bandmf.noise import placements
from tff_bandmf.plan import plan as plan_lib

if TYPE_CHECKING:
  from tff_bandmf.aggregator import factory
  from tff_bandmf.tff import names as tff

_Update = TypeVar('_Update')


class NoiseAdder:
  """Adds the noise of a plan in TFF's aggregator or in a query without TFF."""

  def __init__(self, plan: plan_lib.Plan, tape: Callable[[], placements.Tape]):
    """Initializes the noise adder.

    Args:
      plan: plan of the run.
      tape: function that returns the placement of the noise, see
        `noise.placements`.
    """
    self._plan = plan
    self._tape = tape
    self._factory: Optional[factory.CorrelatedNoiseFactory] = None
    self._mean: Optional[query.NoisyMean] = None
    # The round of the last call of `release`, and the clip values it released.
    self._released: tuple[int, dict[str, float]] = -1, {}
    self._process_was_checked = False

  @property
  def aggregator(self) -> factory.CorrelatedNoiseFactory:
    """The aggregation factory for the learning process of the run."""
    if self._factory is None:
      from tff_bandmf import aggregator

      plan = self._plan
      self._factory = aggregator.dp_aggregator(
        # PRIVACY: With another noise multiplier, clip or strategy than in the
        # plan, the noise could be too small for the claim. The factory gets all
        # three from the plan. The factory's noise is for one client, so the
        # multiplier is scaled by `clients_per_unit`, the clients of a unit.
        # Guards: run_test.test_noise_is_that_of_the_plan and
        # test_noise_of_units_of_several_is_that_of_the_plan.
        plan.guarantee.noise_multiplier * plan.clients_per_unit,
        plan.clients_per_round,
        l2_norm_clip=plan.l2_norm_clip,
        strategy=plan.strategy,
        participation=plan.schema,
        largest_cohort=plan.most_clients,
        zeroing_norm=plan.zeroing_norm,
        noise=self._tape(),
      )
    return self._factory

  def check(self, process: tff.templates.IterativeProcess) -> str:
    """Returns a sentence that names the values that bypass the aggregator.

    Args:
      process: learning process, or another process whose `next` takes (state,
        values of clients).

    Raises:
      ValueError: the next state depends on a value of clients that bypasses the
        aggregator.
    """
    from tff_bandmf import aggregator

    # PRIVACY: the guarantee does not cover values of clients that bypass the
    # aggregator. A process whose next state depends on such values is refused.
    # If such values reach only outputs other than the next state, the report
    # names them.
    # Guard: run_report_test.test_process_that_passes_the_aggregator_is_refused.
    past = ', '.join(aggregator.check_process(process)) or 'nothing'
    self._process_was_checked = True
    return (
      'the computations of a round were followed from the values of clients to '
      f'the outputs; values that bypass the aggregator: {past}'
    )

  def check_context(self) -> None:
    """Raises ValueError if TFF's context returns references, not values."""
    if self._factory is not None:
      from tff_bandmf.tff import runtime

      runtime.check_values()

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
      updates: at most one update of each client of the cohort.
      like: example of an update. The structure, shapes and dtypes of the
        example in the first call hold for all rounds.
      l2_norm_clip: clip that the previous round released; None if the clip is
        constant, or in the first round.
    """
    if self._mean is None:
      plan = self._plan
      # PRIVACY: with another clip or noise multiplier than in the plan, the
      # noise could be too small. `NoisyMean` gets both values from the plan.
      # Guard: run_test.test_release_is_that_of_the_aggregator.
      self._mean = query.NoisyMean(
        plan.guarantee,
        like,
        (plan.l2_norm_clip, plan.zeroing_norm, math.inf),
        plan.clients_per_round,
        largest_cohort=plan.most_clients,
        placement=self._tape(),
      )
    updates = _at_most(clients, updates)
    release = self._mean.release(t, updates, l2_norm_clip)
    self._released = t, release.released
    return release.mean

  def released(self, t: int) -> dict[str, float]:
    """Returns the values of the adaptive clip that `release` of round t gave.

    The keys are names in `metrics.RELEASED`. The result is {} if the clip is
    constant, or if TFF's aggregator ran round t.
    """
    last, values = self._released
    return values if last == t else {}

  @property
  def warning(self) -> Optional[str]:
    """The text of `Plan.warning` for the dimension of the model, or None.

    If the plan states the dimension, the value is always None. Otherwise, the
    value is None until the first round shows the dimension.
    """
    if self._plan.dimension is not None:
      return None
    if self._mean is not None:
      specs = self._mean.like
    elif self._factory is not None and self._factory.query is not None:
      specs = self._factory.query.record_specs
    else:
      return None
    return self._plan.warning(query.record_dimension(specs))

  def flags(self, t: int) -> list[str]:
    """Returns a list with the flag of round t: DIRECT or EXAMINED of `chain`.

    The flag is DIRECT if `release` ran the round, and EXAMINED if a checked
    learning process ran it. The list is empty if the process was unchecked.
    """
    # PRIVACY: a learning process may release a mean of updates that bypasses
    # the aggregator and its noise, and the claim does not cover this mean. The
    # ledger flags each round whose process was checked for such values. If a
    # round with a process lacks the flag, the report begins with a warning.
    # Guard: run_report_test.test_process_that_nobody_checked_leads_the_report.
    if self._released[0] == t:
      return [chain.DIRECT]
    # PRIVACY: An unchecked process may release updates without noise. Its round
    # gets no flag.
    # Guard: run_report_test.test_process_that_nobody_checked_leads_the_report.
    return [chain.EXAMINED] if self._process_was_checked else []

  @property
  def z_stddev(self) -> float:
    """Standard deviation of an entry of z, the noise before C^-1 multiplies it.

    The unit is the unit of the updates. If the clip is adaptive, the value is
    the deviation in the first round. The value is 0 for a plan without noise.
    """
    if not self._plan.guarantee.noise_multiplier > 0:
      return 0.0
    source = self._mean or self._factory
    # If there is neither a factory nor a query, the round released nothing, and
    # `run.journal` refuses to finish the round.
    return (source and source.z_stddev) or self._plan.z_stddev

  def close(self) -> None:
    """Ends the noise producers, and removes the files that they wrote."""
    for source in self._factory, self._mean:
      if source is not None:
        source.close()


def _at_most(clients: int, updates: Iterable[_Update]) -> Iterator[_Update]:
  """Yields the updates; raises ValueError if there are more than `clients`."""
  for i, update in enumerate(updates):
    # PRIVACY: the claim counts one update of each client in the ledger's
    # cohort. With more updates than clients, some update would not be counted,
    # and the true epsilon could exceed the claim. The release is refused.
    # Guard: run_test.test_more_updates_than_clients_are_refused.
    if i >= clients:
      raise errors.value_error(
        f'updates={i + 1} or more: must not exceed the {clients} clients of '
        'the round; give at most one update of each client of round.cohort'
      )
    yield update
