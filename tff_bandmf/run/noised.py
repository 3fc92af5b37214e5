"""The noise of a run: through TFF's aggregator, or by releases without TFF."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Callable, Optional

from tff_bandmf.noise import placements
from tff_bandmf.program import plan as plan_lib
from tff_bandmf.run import releasing, rounds


class Noised:
  """Makes the noise of a plan in one of the two ways, when it is asked for."""

  def __init__(self, plan: plan_lib.Plan, tape: Callable[[], placements.Tape]):
    self._plan = plan
    self._tape = tape
    self._factory: Any = None
    self._releasing: Optional[releasing.Releasing] = None

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
    """Returns the mean with noise; see `Releasing`."""
    if self._releasing is None:
      self._releasing = releasing.Releasing(self._plan, self._tape(), like)
    return self._releasing.release(opened, updates, l2_norm_clip)

  def released(self, done: rounds.Round) -> dict[str, float]:
    """Returns what a release told beside the mean."""
    return self._releasing.released(done) if self._releasing else {}

  @property
  def z_stddev(self) -> float:
    """Standard deviation of z in the unit of the sum; 0 without noise."""
    if not self._plan.guarantee.noise_multiplier > 0:
      return 0.0
    made = self._releasing or self._factory
    # Where nothing was made nothing was released, and the journal says so.
    return (made and made.z_stddev) or self._plan.z_stddev

  def close(self) -> None:
    """Ends the producers of the noise."""
    for made in self._factory, self._releasing:
      if made is not None:
        made.close()
