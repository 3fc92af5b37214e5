"""The aggregation factory of a run: it clips, sums, adds noise and averages.

aggregator = dp_aggregator(
  noise_multiplier, 100, l2_norm_clip=0.5, strategy=strategy,
  participation=participation.MinSep(20))
process = tff.learning.algorithms.build_unweighted_fed_avg(
  ..., model_aggregator=aggregator)
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import math
from typing import Any, Callable, NamedTuple, Optional

import numpy as np
import tensorflow as tf

from tff_bandmf import _checks, accounting, clipping_norm, errors, strategies
from tff_bandmf import participation as participation_lib
from tff_bandmf import query as query_lib
from tff_bandmf.noise import lattice as lattice_lib
from tff_bandmf.noise import placements
from tff_bandmf.tff import names as tff


class ProcessForSums(NamedTuple):
  """A process for sums over groups of clients, and its clipping.

  Attributes:
    clip: clipping, whose method `clip` has the arguments (update, *scales).
    scales: TFF computation from the state of the process to the tuple of
      scales.
    process: process of the sums.
  """

  clip: query_lib.GraphClipping
  scales: Any
  process: tff.templates.AggregationProcess


@dataclasses.dataclass(eq=False, repr=False)
class CorrelatedNoiseFactory(tff.aggregators.UnweightedAggregationFactory):
  """Creates the process that releases means of clipped updates with noise.

  `dp_aggregator` checks its arguments and returns a factory. A factory serves
  one learning process. The state of the process is the state of
  `tff.aggregators.DifferentiallyPrivateFactory`. A round has measurements of
  three kinds:

  * `free`: values that do not depend on updates and cost no privacy. `round`:
    number of finished rounds. `z_stddev`: standard deviation of z in the unit
    of the sum, where z is the noise before C^-1. `noise_placement`: 'tape' or,
    without noise, 'none'. `noise_checked`: whether the process that added the
    noise tested the deviation of the noise. `rounds_ahead`, only with a tape:
    number of rounds whose noise is ready; this number depends on how long
    rounds take.
  * `released`, only for an adaptive clip: values with noise, which the
    guarantee covers. `l2_norm_clip`: clip of the next round. `fraction`: share
    of updates below the clip of this round.
  * `not_private`, only with `measure_clients`: counts of clients without noise.
    The guarantee does not cover them, since they can reveal single clients.
    `non_finite_count`: updates with NaN or infinity, which became zero.
    `zeroed_count`: updates that became zero because of their norm.
    `clipped_count`: updates that were clipped. TFF's own client work
    (`build_unweighted_fed_avg`) zeroes non-finite updates before they reach
    this process.

  Attributes:
    make_query: function that returns the query of the run, with the keywords
      `record_specs` and `sums`.
    guarantee: guarantee of a run with this aggregator, with its noise in units
      of the clip.
    clip: largest L2 norm of a clipped update, > 0; or a tuple with one norm for
      each layer; or an `AdaptiveClip`.
    noise: placement, the user's choice of where noise comes from.
    secure_sum: whether secure aggregation computes the sum of a round, so that
      the server does not see single updates.
    measure_clients: whether the factory counts zeroed, clipped and non-finite
      updates and releases the counts without noise.
    lattice: integers of sums and noise; None before a process is created.
    z_stddev: standard deviation of z in the unit of the sum, on the lattice;
      None before a process is created. For an adaptive clip it is the value of
      the first round, and it changes in proportion to the clip.
    query: query of the process; None before a process is created.
  """

  make_query: Callable[..., query_lib.CorrelatedNoiseQuery]
  guarantee: accounting.Guarantee
  clip: clipping_norm.Clip
  noise: placements.Placement
  secure_sum: bool
  measure_clients: bool
  lattice: Optional[lattice_lib.Lattice] = None
  z_stddev: Optional[float] = None
  query: Optional[query_lib.CorrelatedNoiseQuery] = None

  @property
  def l2_norm_clip(self) -> float:
    """Bound of the L2 norm of one client's contribution to a round, > 0.

    For clips by layer it is (sum_g clip_g^2)^(1/2), where clip_g is the clip of
    layer g. For an adaptive clip it bounds the update and its indicator (see
    `query.clip_bounds`) together, in the first round.
    """
    return clipping_norm.norm(self.clip)

  def close(self) -> None:
    """Stops the producer of noise, if there is one, and removes its files."""
    if self.query is not None:
      self.query.close()

  def __enter__(self) -> CorrelatedNoiseFactory:
    return self

  def __exit__(self, *exc_info) -> None:
    self.close()

  def create(
    self, value_type: tff.Type, weight_type: Optional[tff.Type] = None
  ) -> tff.templates.AggregationProcess:
    """Returns the process for updates of type `value_type`, with float leaves.

    Args:
      value_type: type of one client's update.
      weight_type: must be None. TFF's weighted algorithms give a type.

    Raises:
      TypeError: a leaf of an update is not a float, or updates have weights.
      ValueError: this factory has created a process before; or the sizes of
        updates, cohort and noise are incompatible, as the message explains.
    """
    if weight_type is not None:
      raise errors.type_error(
        f'model_aggregator={type(self).__name__}: takes no weights of clients, '
        'which the clip does not bound; give '
        'tff.aggregators.as_weighted_aggregator(aggregator)'
      )
    return self._create(value_type, sums=False).process

  def federated_mean(
    self, value: tff.Value, weight: Optional[tff.Value] = None
  ) -> tff.Value:
    """Returns the mean of clients' updates with the noise of the open round.

    In a TFF computation, this method replaces TFF's `federated_mean`. The
    computation needs no state of the aggregator, because the files of the run
    name the open round.

    Args:
      value: updates at clients, with float leaves, or a structure of such
        updates.
      weight: must be None. TFF's `federated_mean` has this argument.

    Raises:
      TypeError: updates have weights, or a leaf of an update is not a float.
      ValueError: the aggregator does not belong to a `Run`, its clip adapts, or
        it has a process already.
    """
    if weight is not None:
      raise errors.type_error(
        'weight=given: must be None, since the clip does not bound weights of '
        'clients; average the updates without weights'
      )
    # PRIVACY: Without a state, TFF does not count the rounds, and each round
    # would add the noise of the first round. The noise would cancel in the
    # difference of two releases. The method needs the file in which a run names
    # its open round.
    # Guard: federated_mean_test.test_mean_outside_of_a_run_is_refused.
    if getattr(self.noise, 'position', None) is None:
      raise errors.value_error(
        'federated_mean=outside of a run: needs the record of the open round; '
        'use federated_mean of tff_bandmf.Run, or create(value_type)'
      )
    # PRIVACY: The clip of a round follows from the state after the round
    # before. Without a state, each round would be clipped to the first clip,
    # and the ledger would lack the releases of clips. Adaptive clips are
    # refused.
    # Guard: federated_mean_test.test_clip_that_adapts_is_refused.
    if isinstance(self.clip, clipping_norm.AdaptiveClip):
      raise errors.value_error(
        'l2_norm_clip=AdaptiveClip: has its clip in the state of an aggregator '
        'process; use run.aggregator.create(value_type), or a constant clip'
      )
    if self.lattice is not None:
      raise errors.value_error(
        'federated_mean=called twice: one mean of a round has the noise of the '
        'run; put all updates into one structure, average metrics with '
        'tff.federated_mean'
      )
    kind = getattr(value, 'type_signature', None)
    if not isinstance(kind, tff.FederatedType):
      value = tff.federated_zip(value)
    process = self.create(value.type_signature.member)
    query = self.query
    assert query is not None
    first = query.begin(query.initial_global_state())
    begun = tf.nest.map_structure(np.asarray, first)

    @tff.tensorflow.computation
    def first_state():
      state = tff.types.structure_from_tensor_type_tree(
        lambda leaf: tf.zeros(leaf.shape, leaf.dtype),
        process.initialize.type_signature.result.member,
      )
      query_state = tf.nest.map_structure(tf.constant, begun)
      return state._replace(query_state=query_state)

    state = tff.federated_eval(first_state, tff.SERVER)
    return process.next(state, value).result

  def create_for_sums(self, value_type: tff.Type) -> ProcessForSums:
    """Returns a process for sums over clients, with its clipping.

    This method is for programs that clip updates themselves and add them up in
    groups. The process takes pairs: the sum of the clipped updates of a group
    of clients, int32, and the number of these clients, int32. Sums are exact,
    so the grouping does not change the result, which has the type `value_type`.

    PRIVACY: If only the sum of a group was clipped, one client could change the
    sum by more than the clip of one update. The program must apply the returned
    clipping to each update before it adds the updates.
    Guards: fed_avg_test.test_client_moves_the_sum_by_its_clip,
    aggregator_test.test_sums_of_groups_are_those_of_their_clients,
    aggregator_arguments_test.test_groups_are_not_hidden_or_measured.

    Args:
      value_type: type of one client's update, with float leaves.

    Raises:
      TypeError: a leaf of an update is not a float.
      ValueError: this factory has created a process before; the sizes of
        updates, cohort and noise are incompatible; or the factory has
        `secure_sum` or `measure_clients`, which need single updates.
    """
    if self.secure_sum or self.measure_clients:
      name = 'secure_sum' if self.secure_sum else 'measure_clients'
      raise errors.value_error(
        f'{name}=True: is for updates of single clients; leave it out for sums '
        'over groups'
      )
    return self._create(value_type, sums=True)

  def _create(self, value_type: tff.Type, sums: bool) -> ProcessForSums:
    specs = tff.types.structure_from_tensor_type_tree(
      lambda leaf: tf.TensorSpec(leaf.shape, leaf.dtype), value_type
    )
    # PRIVACY: Two processes of one factory would have the same key and the same
    # noise, which would cancel in the difference of their releases. A second
    # process is refused.
    # Guard: aggregator_runs_test.test_second_process_of_a_factory_is_refused.
    if self.query is not None:
      raise errors.value_error(
        'create=called twice: an aggregator serves one run; call dp_aggregator '
        'for every learning process'
      )
    self.query = query = self.make_query(record_specs=specs, sums=sums)
    self.lattice, self.z_stddev = query.lattice, query.z_stddev
    record_type = value_type
    if sums:
      record_type = tff.tensorflow.computation(
        lambda: (query.initial_sample_state()[0], tf.constant(0, tf.int32))
      ).type_signature.result
    return self._process(query, record_type)

  def _process(
    self, query: query_lib.CorrelatedNoiseQuery, record_type: tff.Type
  ) -> ProcessForSums:
    """Returns the process of a query.

    Args:
      query: query of the run.
      record_type: type of a record: an update, or (sum, number of clients).
    """
    summed: tff.aggregators.UnweightedAggregationFactory
    summed = tff.aggregators.SumFactory()
    if self.secure_sum:
      # No entry of a clipped record exceeds this bound, so secure aggregation
      # does not change the record.
      bound = query.lattice.clip_steps
      summed = tff.aggregators.SecureSumFactory(bound, -bound)
    factory = tff.aggregators.DifferentiallyPrivateFactory(query, summed)
    summing = factory.create(record_type)
    server_type = summing.initialize.type_signature.result
    clients_type = tff.FederatedType(record_type, tff.CLIENTS)
    state_type = server_type.member

    # PRIVACY: Two runs on one tape would get the same noise, which would cancel
    # in the difference of their releases. `begin` gives each run an ID, by
    # which the tape refuses a second run. TFF's `initialize` evaluates a round
    # that belongs to no run, so `begin` is called after `initialize`.
    # Guard:
    # aggregator_runs_test.test_second_run_on_a_tape_is_refused_its_first_round.
    @tff.tensorflow.computation(state_type)
    def begin(state):
      return state._replace(query_state=query.begin(state.query_state))

    @tff.tensorflow.computation(state_type)
    def scales(state):
      return query.derive_sample_params(state.query_state)

    @tff.federated_computation
    def init_fn():
      return tff.federated_map(begin, summing.initialize())

    @tff.federated_computation(server_type, clients_type)
    def next_fn(state, value):
      output = summing.next(state, value)
      # Other measurements of `summing`, such as the measurements of the sum,
      # have no noise and are left out.
      free = output.measurements['dp_query_metrics']
      measurements = collections.OrderedDict(free=free)
      # PRIVACY: Counts of clients have no noise and could reveal single
      # clients. They are computed only if the caller asks for them
      # (`measure_clients`).
      # Guards: aggregator_options_test.test_only_what_is_free_is_measured and
      # test_update_above_the_zeroing_norm_counts_as_zero.
      if self.measure_clients:
        describe = tff.tensorflow.computation(
          lambda scale, update: query.clip.describe(update, *scale),
          (scales.type_signature.result, record_type),
        )
        bounds = tff.federated_broadcast(tff.federated_map(scales, state))
        counts = tff.federated_map(describe, (bounds, value))
        measurements['not_private'] = tff.federated_sum(counts)
      if query.clip.adaptive is not None:
        released = tff.tensorflow.computation(
          lambda state: state.query_state.clip, state_type
        )
        measurements['released'] = tff.federated_map(released, output.state)
      return tff.templates.MeasuredProcessOutput(
        output.state, output.result, tff.federated_zip(measurements)
      )

    process = tff.templates.AggregationProcess(init_fn, next_fn)
    return ProcessForSums(query.clip, scales, process)


def skip_round(
  state: tff.learning.templates.LearningAlgorithmState,
) -> tff.learning.templates.LearningAlgorithmState:
  """Returns the aggregator's state after a round that is not released.

  Use this function for a round that must not run because its noise was added to
  another sum before. The next round gets the next noise of the tape.

  PRIVACY: If the round was run without clients, it would release its noise y_t
  alone. With y_t, an adversary can compute the sum to which y_t was added
  before. This function releases nothing.
  Guard: aggregator_runs_test.test_skipped_round_releases_nothing.

  Args:
    state: state before the round, from the process that
      `CorrelatedNoiseFactory.create` returned.
  """
  following = state.query_state.round + np.int64(1)
  query_state = state.query_state._replace(round=following)
  return state._replace(query_state=query_state)


def dp_aggregator(
  noise_multiplier: float,
  clients_per_round: float,
  *,
  l2_norm_clip: clipping_norm.Clip,
  strategy: strategies.Strategy,
  participation: participation_lib.Participation,
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

  Here x_i is the update of client i in round t, and Z has unit normals. The
  function zero replaces an update beyond `zeroing_norm` by 0, and clip scales
  an update down to `l2_norm_clip`. C is the matrix of `strategy`, and sens(C)
  is its sensitivity for `participation`.

  This function replaces `tff.learning.dp_aggregator` and has the same first two
  arguments. It differs in three ways, because correlated noise needs the same
  scale in all rounds and its guarantee is about the whole run:

  * `noise_multiplier` is relative to the clip times sens(C), as accountants
    define it. TFF's noise multiplier is relative to the clip, for one round.
    With `strategies.Identity` and at most k participations of a client, TFF's
    noise multiplier is `noise_multiplier` times sqrt(k).
  * The clip is constant unless it is an `AdaptiveClip`. TFF's clip adapts by
    default; here `AdaptiveClip(0.1)` adapts under the guarantee of the run.
  * The zeroing norm is a constant. TFF's zeroing norm starts at 21 and follows
    the updates, from which it is estimated without noise.

  **Formal guarantee.** Assumptions: the program enforces `participation`, with
  at most one update per client and round; no round is released for two cohorts;
  `check_process` accepts the learning process (in some algorithms of TFF,
  clients' values bypass the aggregator). Then the releases of the run have the
  (epsilon, delta) of `factory.guarantee.claim(delta)`, where `factory` is the
  result. Source: `CorrelatedNoiseQuery.get_noised_result`. A program written
  for TFF's aggregator must change how it selects cohorts.

  Args:
    noise_multiplier: standard deviation of z divided by clip times sensitivity,
      >= 0; see `accounting.calibrate`. 0 adds no noise and guarantees nothing.
    clients_per_round: divisor of the mean, > 0. It is constant, even if rounds
      have different numbers of clients.
    l2_norm_clip: number > 0, norm to which all leaves of an update together are
      clipped. For clips by layer, a nested structure of numbers that matches
      the outer containers of an update; `l2_norm_clip` in the formula above is
      then (sum_g clip_g^2)^(1/2), where clip_g is the number of layer g. Or an
      `AdaptiveClip`, which needs noise for one more coordinate.
    strategy: strategy matrix C, which also determines the number of rounds.
    participation: schema for which the sensitivity of C is computed.
    noise: choice of where noise comes from, a value of `noise.placements`; None
      means `Tape()`.
    largest_cohort: largest number of clients of any round, >= 1. A round with
      more clients fails. None means clients_per_round, rounded up.
    zeroing_norm: float > 0. An update whose norm exceeds this number counts as
      broken, and becomes zero instead of being clipped. This constant bound
      costs no privacy and does not change the sensitivity. None means no limit.
    zeroing_norm_order: order of the norm that `zeroing_norm` bounds: 2, or inf
      for the largest magnitude, as in `tff.aggregators.zeroing_factory`.
    secure_sum: whether secure aggregation sums the clipped updates. The sum is
      exact because clipped updates are integers. TFF's local runtime cannot run
      secure aggregation.
    measure_clients: whether to measure `not_private`: counts of zeroed and
      clipped updates, without noise and outside the guarantee. This option
      excludes `secure_sum`, because the server would see each client's counts.

  Returns:
    A factory for one learning process. Call its `close` when training ends, or
    use it in a `with` block.

  Raises:
    TypeError: an argument has a wrong type, such as TFF's adaptive clip.
    ValueError: a value is out of range.
  """
  _checks.positive('clients_per_round', clients_per_round, 'it divides the sum')
  estimates = isinstance(l2_norm_clip, tff.templates.EstimationProcess)
  if l2_norm_clip is None or estimates:
    kind = 'None' if l2_norm_clip is None else 'an EstimationProcess'
    raise errors.type_error(
      f'l2_norm_clip={kind}: must be a norm or adapt under the noise of the '
      'run; give a norm, or tff_bandmf.AdaptiveClip(0.1)'
    )
  query_lib.check_bounds(l2_norm_clip, zeroing_norm, zeroing_norm_order)
  # PRIVACY: The factory cannot know whether cohorts are drawn at random. If
  # they are not, an amplified epsilon would be too small. Only schemas of
  # enforced cohorts are accepted.
  # Guard: aggregator_options_test.test_sampled_cohorts_are_no_schema.
  participation_lib.check(participation)
  guarantee = accounting.Guarantee(strategy, participation, noise_multiplier)
  if largest_cohort is None:
    largest_cohort = math.ceil(clients_per_round)
  _checks.count('largest_cohort', largest_cohort, 'give the most clients')
  placement = placements.Tape() if noise is None else noise
  if not isinstance(placement, placements.Placement):
    raise errors.type_error(
      f'noise={type(placement).__name__}: is not a placement; use Tape() '
      'or Served(folders) of noise.placements'
    )
  start, remedy = placement.start_round, 'give the round of the resumed state'
  _checks.at_most('start_round', start, strategy.rounds, 'rounds', remedy)
  if secure_sum and measure_clients:
    raise errors.value_error(
      f'measure_clients={measure_clients}: would reveal each client to the '
      'server, in spite of secure_sum; leave one of them out'
    )
  make_query = functools.partial(
    query_lib.CorrelatedNoiseQuery,
    guarantee,
    bounds=(l2_norm_clip, zeroing_norm, zeroing_norm_order),
    clients_per_round=clients_per_round,
    largest_cohort=largest_cohort,
    noise_from=placement,
    secure_sum=secure_sum,
  )
  return CorrelatedNoiseFactory(
    make_query, guarantee, l2_norm_clip, placement, secure_sum, measure_clients
  )
