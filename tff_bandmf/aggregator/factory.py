"""The aggregator: clip, integer sum, correlated noise, fixed divisor."""

from __future__ import annotations

import collections
import dataclasses
import math
from typing import Any, Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_bandmf import _checks, accounting, clips, errors, noise, strategies
from tff_bandmf import participation as participation_lib
from tff_bandmf import query as query_lib
from tff_bandmf.noise import placements


@dataclasses.dataclass(frozen=True)
class Sums:
  """How the records of a round are added up and what is said about them.

  Attributes:
    largest_cohort: most clients of a round.
    secure: whether the server sees sums alone.
    measured: whether what happened to updates is counted, without noise.
  """

  largest_cohort: int
  secure: bool = False
  measured: bool = False


class CorrelatedNoiseFactory(tff.aggregators.UnweightedAggregationFactory):
  """Means of clipped updates with correlated noise, for one learning process.

  Make it with `dp_aggregator`. What it creates keeps the state of
  `tff.aggregators.DifferentiallyPrivateFactory` and measures

  * `free`, which is the same whatever the updates are and costs no privacy:
    `round`, rounds done; `z_stddev`, the standard deviation of z in the unit
    of the sum; `noise_placement`: 'state', 'tape' or, without noise, 'none';
    `noise_checked`, whether the process that added the noise found its
    deviation to be that of the strategy; with a tape `rounds_ahead`, the rounds
    whose noise is ready, which follows the time that rounds take;
  * `released`, only of an adaptive clip, with noise and covered by the
    guarantee: `l2_norm_clip`, the clip of the next round, and `fraction`, the
    share of updates that were below this round's;
  * `not_private`, only with `measure_clients`: `non_finite_count`,
    `zeroed_count` and `clipped_count`, clients of the round whose update held
    NaN or infinity and counted as zero, was zeroed for its norm, was clipped.
    Counts without noise: they are outside the guarantee, and who sees them
    learns something about single clients. TFF's own client work
    (`build_unweighted_fed_avg`) makes updates that are not finite zero before
    they get here.

  Attributes:
    guarantee: that of a run with this aggregator, for a clip of 1.
    l2_norm_clip: the norm that bounds one client's contribution to a round;
      of clips by layer, (sum_g clip_g^2)^(1/2); of an adaptive clip, that of
      the first round, its indicator included.
    noise: the placement of the noise.
    lattice: the range of sums and noise; None before a process is created.
    z_stddev: standard deviation of z in the unit of the sum, on the
      lattice; of an adaptive clip, in the first round, and it moves with the
      clip. None before a process is created.
  """

  def __init__(
    self,
    guarantee: accounting.Guarantee,
    clients_per_round: float,
    l2_norm_clip: Any,
    zeroing: tuple[Optional[float], float],
    placement: placements.Placement,
    sums: Sums,
  ):
    """Takes values that `dp_aggregator` checked; `zeroing` is (norm, order)."""
    self.guarantee = guarantee
    self.l2_norm_clip = clips.norm(l2_norm_clip)
    self.noise = placement
    self.lattice: Optional[noise.Lattice] = None
    self.z_stddev: Optional[float] = None
    self._bounds = l2_norm_clip, *zeroing
    self._clients_per_round = clients_per_round
    self._sums = sums
    self._query: Optional[query_lib.CorrelatedNoiseQuery] = None

  def close(self) -> None:
    """Ends the noise producer, if there is one, and removes its files."""
    if self._query is not None:
      self._query.close()

  def __enter__(self) -> CorrelatedNoiseFactory:
    return self

  def __exit__(self, *exc_info) -> None:
    self.close()

  def create(self, value_type: tff.Type) -> tff.templates.AggregationProcess:
    """Returns the process for updates of `value_type`, float leaves.

    Raises:
      TypeError: a leaf of an update is not a float.
      ValueError: a process was made before, or updates, cohort and noise do
        not fit together; the message says how.
    """
    return self._create(value_type, sums=False)[2]

  def create_for_sums(
    self, value_type: tff.Type
  ) -> tuple[
    query_lib.Clipping, tff.Computation, tff.templates.AggregationProcess
  ]:
    """Returns the clipping, its scales, and a process for sums over clients.

    For a program that clips updates itself and adds them up in groups. A value
    of the process is (the sum of what `Clipping.clip` gave, int32; how many
    clients are in it, int32); the result is of `value_type`. As long as all
    clients are in some sum, the groups do not matter: sums are exact. The
    computation gives what `Clipping.clip` takes beside an update, as a tuple,
    from the state of the process.

    PRIVACY: the noise is for sums of records that were clipped one by one.
    Guards: fed_avg_test.test_client_moves_the_sum_by_its_clip,
    aggregator_test.test_sums_of_groups_are_those_of_their_clients.

    Args:
      value_type: of an update of one client, float leaves.

    Raises:
      TypeError: as in `create`.
      ValueError: as in `create`; or sums are to be hidden or measured, which is
        for updates of single clients.
    """
    if self._sums.secure or self._sums.measured:
      raise errors.value_error(
        'secure_sum' if self._sums.secure else 'measure_clients',
        True,
        'is for updates of single clients',
        'leave it out for sums over groups',
      )
    return self._create(value_type, sums=True)

  def _create(
    self, value_type: tff.Type, sums: bool
  ) -> tuple[
    query_lib.Clipping, tff.Computation, tff.templates.AggregationProcess
  ]:
    specs = tff.types.structure_from_tensor_type_tree(
      lambda leaf: tf.TensorSpec(leaf.shape, leaf.dtype), value_type
    )
    self._refuse_release_of_key()
    # PRIVACY: two runs with one key would get the same noise.
    # Guard: aggregator_runs_test.test_second_process_of_a_factory_is_refused.
    if self._query is not None:
      raise errors.value_error(
        'create',
        'called twice',
        'an aggregator serves one run',
        'call dp_aggregator for every learning process',
      )
    self._query = query = query_lib.CorrelatedNoiseQuery.of(
      self.guarantee,
      specs,
      self._bounds,
      self._clients_per_round,
      largest_cohort=self._sums.largest_cohort,
      noise_from=self.noise,
      secure_sum=self._sums.secure,
      sums=sums,
    )
    self.lattice = query.lattice
    self.z_stddev = query.z_stddev
    record_type = value_type
    if sums:
      record_type = tff.tensorflow.computation(
        lambda: (query.initial_sample_state()[0], tf.constant(0, tf.int32))
      ).type_signature.result
    return query.clip, *_process(query, record_type, self._sums)

  def _refuse_release_of_key(self) -> None:
    # PRIVACY: `train_model` releases the whole state. Guard:
    # train_model_test.test_noise_in_the_state_is_refused_in_a_program.
    if self.noise.key_in_state and isinstance(
      tff.framework.get_context_stack().current, tff.program.FederatedContext
    ):
      raise errors.value_error(
        'noise',
        type(self.noise).__name__,
        'its key would be released: programs such as train_model give '
        'the whole training state to a release manager',
        'use Tape()',
      )


def skip_round(state: Any) -> Any:
  """Returns the aggregator's state after a round that is not released.

  Where a round must not run, since its noise met another sum before: a tape
  gives the noise of the rounds after it, and none of this one.

  PRIVACY: y_t alone, which a round of nobody would release, takes the noise off
  what was seen of the round before. Guard:
  aggregator_runs_test.test_skipped_round_releases_nothing.

  Args:
    state: of what `CorrelatedNoiseFactory.create` made, before the round.

  Raises:
    ValueError: the noise is in the state, which cannot be skipped.
  """
  query_state = state.query_state
  if 'key' in query_state.noise:
    raise errors.value_error(
      'noise',
      'InState()',
      'cannot leave a round out',
      'use Tape(), or start anew',
    )
  return state._replace(
    query_state=query_state._replace(round=query_state.round + np.int64(1))
  )


def _process(
  query: query_lib.CorrelatedNoiseQuery,
  record_type: tff.Type,
  sums: Sums,
) -> tuple[tff.Computation, tff.templates.AggregationProcess]:
  """Returns the scales of clips, and TFF's process of runs that are begun."""
  summed: tff.aggregators.UnweightedAggregationFactory
  summed = tff.aggregators.SumFactory()
  if sums.secure:
    # Integers within these bounds pass as they are: none is clipped.
    summed = tff.aggregators.SecureSumFactory(
      query.lattice.clip_steps, -query.lattice.clip_steps
    )
  process = tff.aggregators.DifferentiallyPrivateFactory(query, summed).create(
    record_type
  )
  server_type = process.initialize.type_signature.result
  state_type = server_type.member

  # PRIVACY: runs are told apart, but not before `initialize` has evaluated a
  # round, which would then be another run's. Guard:
  # aggregator_runs_test.test_second_run_on_a_tape_is_refused_its_first_round.
  @tff.tensorflow.computation(state_type)
  def begin(state):
    return state._replace(query_state=query.begin(state.query_state))

  @tff.tensorflow.computation(state_type)
  def scales(state):
    return query.derive_sample_params(state.query_state)

  @tff.tensorflow.computation(state_type)
  def released(state):
    return state.query_state.clip

  @tff.federated_computation
  def init_fn():
    return tff.federated_map(begin, process.initialize())

  @tff.federated_computation(
    server_type, tff.FederatedType(record_type, tff.CLIENTS)
  )
  def next_fn(state, value):
    output = process.next(state, value)
    # What the sum itself measures is not passed on: it is not private.
    measurements = collections.OrderedDict(
      free=output.measurements['dp_query_metrics']
    )
    # PRIVACY: what depends on updates and has no noise is asked for by name.
    # Guard: aggregator_options_test.test_only_what_is_free_is_measured.
    if sums.measured:
      describe = tff.tensorflow.computation(
        lambda scale, update: query.clip.describe(update, *scale),
        (scales.type_signature.result, record_type),
      )
      bounds = tff.federated_broadcast(tff.federated_map(scales, state))
      measurements['not_private'] = tff.federated_sum(
        tff.federated_map(describe, (bounds, value))
      )
    if query.clip.adaptive is not None:
      measurements['released'] = tff.federated_map(released, output.state)
    return tff.templates.MeasuredProcessOutput(
      output.state, output.result, tff.federated_zip(measurements)
    )

  return scales, tff.templates.AggregationProcess(init_fn, next_fn)


def dp_aggregator(
  noise_multiplier: float,
  clients_per_round: float,
  *,
  l2_norm_clip: Any,
  strategy: strategies.Strategy,
  participation: participation_lib.Participation,
  dimension: Optional[int] = None,
  noise: Optional[placements.Placement] = None,
  largest_cohort: Optional[int] = None,
  zeroing_norm: Optional[float] = None,
  zeroing_norm_order: float = math.inf,
  secure_sum: bool = False,
  measure_clients: bool = False,
) -> CorrelatedNoiseFactory:
  """Returns an aggregation factory with matrix-factorization noise.

    (sum_i clip(zero(x_i)) + z_stddev * (C^-1 Z)[t]) / clients_per_round
    z_stddev = l2_norm_clip * noise_multiplier * sens(C)

  It takes the place of `tff.learning.dp_aggregator`, whose first two arguments
  it has. Three things differ, since noise that is correlated between rounds
  needs one scale, and its guarantee is that of the whole run:

  * `noise_multiplier` is that of the run, over clip times the sensitivity of
    C, what an accountant takes. TFF's is that of a round, over the clip: with
    `strategies.Identity`, TFF's is ours times sqrt(k).
  * The clip is what it is given. TFF's adapts by itself; `AdaptiveClip(0.1)`
    does the same here, under the guarantee of the run.
  * The bound of zeroing is a constant. TFF's follows the updates, starts at
    21, and is estimated from them without noise.

  The guarantee, `factory.guarantee`, rests on `participation` being enforced,
  on one record a client and round, and on no round being released for two
  cohorts: what draws the cohorts of the program must be changed with it. Look
  at the process with `check_process`: some of TFF's algorithms send what
  clients computed past their aggregator.

  Args:
    noise_multiplier: standard deviation of z over clip times sensitivity, what
      an accountant takes; see `accounting.calibrate`. 0 adds no noise and
      guarantees nothing.
    clients_per_round: the divisor, fixed whatever the cohort's size: a round
      that clients dropped out of, and one without any, is divided by it too.
    l2_norm_clip: clipping norm over all leaves of an update; or, by layer, a
      nested structure of norms whose containers are the outer ones of an
      update. All of an update then has norm (sum_g clip_g^2)^(1/2) at most,
      which takes the place of l2_norm_clip above. Or an `AdaptiveClip`, which
      also needs noise for one more coordinate.
    strategy: C; fixes the number of rounds.
    participation: schema under which the sensitivity of C is taken.
    dimension: coordinates of an update that the claim was made for, as
      `accounting.calibrate` takes it; None covers `accounting.CELLS` values of
      noise, and a larger model is refused.
    noise: where it comes from, a value of `noise.placements`; None is `Tape()`.
    largest_cohort: most clients of any round; None is clients_per_round,
      rounded up. Sums of so many have room; a round of more fails.
    zeroing_norm: updates of a larger norm count as zero, before clipping: what
      is far too large is broken. A constant bound costs no privacy and leaves
      the sensitivity as it is. None zeroes no finite update.
    zeroing_norm_order: of that norm: 2, or inf for the largest magnitude, as
      `tff.aggregators.zeroing_factory` takes it.
    secure_sum: whether clipped updates are summed by secure aggregation, as
      integers and so exactly. TFF's local runtime cannot run it.
    measure_clients: whether to measure `not_private`: what happened to the
      updates of each round, without noise and outside the guarantee. Not with
      `secure_sum`, whose server learns sums alone.

  Returns:
    A factory for one learning process; `close` it, or use it in a `with`
    statement, when training ends.

  Raises:
    TypeError: TFF's adaptive clip, or another argument of a wrong kind.
    ValueError: a value out of range.
  """
  _checks.positive(
    'clients_per_round', clients_per_round, 'it is the divisor of the mean'
  )
  _checks.number(
    'noise_multiplier',
    noise_multiplier,
    'give what accounting.calibrate returns',
  )
  if l2_norm_clip is None or isinstance(
    l2_norm_clip, tff.templates.EstimationProcess
  ):
    raise errors.type_error(
      'l2_norm_clip',
      'None' if l2_norm_clip is None else 'an EstimationProcess',
      'must be a norm or adapt under the noise of the run',
      'give a norm, or tff_bandmf.AdaptiveClip(0.1)',
    )
  query_lib.check_bounds(l2_norm_clip, zeroing_norm, zeroing_norm_order)
  if not isinstance(strategy, strategies.Strategy):
    raise errors.type_error(
      'strategy',
      strategy,
      'must be a tff_bandmf.strategies.Strategy',
      'load or optimise one',
    )
  if largest_cohort is None:
    largest_cohort = math.ceil(clients_per_round)
  _checks.count(
    'largest_cohort', largest_cohort, 'give the most clients of any round'
  )
  placement = placements.Tape() if noise is None else noise
  if not isinstance(placement, placements.Placement):
    raise errors.type_error(
      'noise',
      type(placement).__name__,
      'is not a placement',
      'use Tape(), Served(folders) or InState() of noise.placements',
    )
  if not placement.start_round <= strategy.rounds:
    raise errors.value_error(
      'start_round',
      placement.start_round,
      f'must be in [0, rounds={strategy.rounds}]',
      'give the round of the state that the run goes on from',
    )
  if secure_sum and measure_clients:
    raise errors.value_error(
      'measure_clients',
      measure_clients,
      'would tell the server about each client, past the secure sum',
      'leave one of them out',
    )
  return CorrelatedNoiseFactory(
    accounting.Guarantee(
      strategy,
      participation,
      noise_multiplier,
      # PRIVACY: the arithmetic of each coordinate costs slack. Guard:
      # aggregator_adaptive_test.test_claim_is_that_of_a_constant_clip.
      dimension=dimension and dimension + clips.indicators(l2_norm_clip),
    ),
    clients_per_round,
    l2_norm_clip,
    (zeroing_norm, zeroing_norm_order),
    placement,
    Sums(largest_cohort, secure_sum, measure_clients),
  )
