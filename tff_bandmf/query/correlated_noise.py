"""The query of a run: a clipped mean with correlated noise in every round.

TFF's `DifferentiallyPrivateFactory` calls `preprocess_record` at clients and
`get_noised_result` at the server.

| symbol  | name here      | meaning                                      |
|---------|----------------|----------------------------------------------|
| t       | `round`        | index of the round, from 0                   |
| n       | `rounds`       | number of rounds of the run                  |
| x_i     | `record`       | update of client i                           |
| clip    | `l2_norm_clip` | clipping norm; clip(x) has at most this norm |
| y_t     |                | noise of round t, row t of y                 |
| C       |                | strategy matrix                              |
| Z       |                | unit normals, one row for each round         |
| z       |                | z_stddev Z, the noise before C^-1            |
| h       | `clip.step`    | records, sums and noise are multiples of h   |
| round_h |                | rounding to multiples of h                   |
"""

from __future__ import annotations

import collections
from typing import NamedTuple, Optional

import dp_accounting
import tensorflow as tf
import tensorflow_privacy as tfp

from tff_bandmf import accounting, clipping_norm
from tff_bandmf.noise import definition, placements
from tff_bandmf.noise import graph_noise_source as source_lib
from tff_bandmf.query import clip_bounds, graph_clipping

# Round index of a state for which `begin` was not called.
NOT_BEGUN = -1
# Name scope of the operations that release a round, in TensorFlow's graph.
RELEASE_NAME = 'tff_bandmf_release'


class QueryState(NamedTuple):
  """The state of a run between two rounds.

  Attributes:
    round: scalar int64, number of finished rounds, which is the index of the
      next round; `NOT_BEGUN` in the state that `initial_global_state` returns.
    noise: state of the noise source, without secrets.
    clip: empty for a constant clip. For an adaptive clip, two released float64
      scalars: `l2_norm_clip`, the clip of the next round, and `fraction`, the
      share of updates below the clip of the last round, with noise.
  """

  round: tf.Tensor
  noise: source_lib.State
  clip: graph_clipping.Tensors = ()


class CorrelatedNoiseQuery(tfp.SumAggregationDPQuery):
  """Releases (sum_i clip(x_i) + y_t) / clients_per_round in round t.

    y_t = round_h(z_stddev * (C^-1 Z)[t])

  Row t of y is computed from row t of Z and from the rounded earlier rows y_0
  .. y_{t-1}, by solving C y = z row by row. If C^-1 has few bands, row t
  is computed from the rows of Z alone.

  Records, sums and noise are int32 multiples of the step h. So sums are exact
  in any order, and the release is one integer addition. Its result is scaled in
  float64 and cast to the types of the record. If the clip adapts, h depends on
  earlier releases. A round then also releases the share of records below the
  clip, in one more coordinate, which gets noise like the other coordinates. A
  round of more than `largest_cohort` clients fails before its release, so that
  no sum wraps around.

  The run has the guarantee from which the query is created, on the assumptions
  of `get_noised_result`.

  The query is pure: everything that changes is in its state and in the files
  with its noise (`placements.Tape`). Call `begin` on an initial state before
  the first round. A round past the last one raises. The `DpEvent` of one round
  is unsupported, because correlated rounds do not compose one by one. Account
  for the run with its single event `Guarantee.dp_event`.

  Attributes:
    clip: clipping of one record, in steps of `lattice`.
    lattice: range of sums and noise, which are integers.
    record_specs: nested structure of `tf.TensorSpec` of one update.
  """

  def __init__(
    self,
    guarantee: accounting.Guarantee,
    record_specs: graph_clipping.Tensors,
    bounds: tuple[clipping_norm.Clip, Optional[float], float],
    clients_per_round: float,
    *,
    largest_cohort: int,
    noise_from: placements.Placement,
    secure_sum: bool = False,
    sums: bool = False,
  ):
    """Opens the source of noise; call `close` when the run ends.

    Args:
      guarantee: guarantee of the run, with its noise in units of the clip.
      record_specs: nested structure of `tf.TensorSpec` of float types, of one
        update and of the mean.
      bounds: l2_norm_clip, zeroing_norm and zeroing_norm_order of
        `Bounds.from_clip`, in this order.
      clients_per_round: divisor of the mean, > 0; constant, even if rounds have
        different numbers of clients.
      largest_cohort: largest number of clients of any round, >= 1.
      noise_from: the user's choice of where noise comes from.
      secure_sum: whether secure aggregation computes the sums.
      sums: whether a record is a pair (sum, number) of several clipped updates.
        The sum is int32 in steps, and the number is int32. If False, a record
        is one update, and the query clips it.

    Raises:
      TypeError: a leaf of the record is not a float.
      ValueError: the sizes of records, cohort and noise are incompatible.
    """
    l2_norm_clip, zeroing_norm, order = bounds
    dimension = clip_bounds.record_dimension(record_specs)
    dimension += clipping_norm.indicator_count(l2_norm_clip)
    recursion, self.lattice = definition.of_run(
      guarantee.strategy.recursion(),
      noise_from,
      guarantee.z_stddev_per_clip,
      largest_cohort=largest_cohort,
      dimension=dimension,
      secure_sum=secure_sum,
    )
    self.clip = graph_clipping.GraphClipping.from_clip(
      l2_norm_clip, record_specs, self.lattice.clip_bits, zeroing_norm, order
    )
    self.record_specs = record_specs
    specs = tf.nest.flatten(record_specs)
    self._sizes = [spec.shape.num_elements() for spec in specs]
    self._clients_per_round = clients_per_round
    self._rounds = guarantee.strategy.rounds
    self._source = source_lib.NoiseSource(
      noise_from, recursion, self.lattice.z_steps, dimension
    )
    self._sums = sums

  def close(self) -> None:
    """Stops the thread that computes noise, if there is one."""
    self._source.close()

  # PRIVACY: If this metric stated more noise than the run has, a reader would
  # compute too small an epsilon. The metric is the deviation of z itself.
  # Guard: query_test.test_metrics_are_round_and_noise.
  @property
  def z_stddev(self) -> float:
    """Standard deviation of z in the unit of updates, in the first round."""
    return self.lattice.z_steps * self.clip.step

  def initial_global_state(self) -> QueryState:
    """Returns a state that releases no sum; `begin` makes a run's first state.

    Inside `initialize`, TFF evaluates a round with this state. This round
    returns zeros and reads no noise.
    """
    clip: graph_clipping.Tensors = ()
    if self.clip.adaptive is not None:
      clip = collections.OrderedDict(
        l2_norm_clip=tf.constant(self.clip.initial, tf.float64),
        fraction=tf.constant(0.5, tf.float64),
      )
    t = tf.constant(NOT_BEGUN, tf.int64)
    return QueryState(t, self._source.initial_state(), clip)

  def begin(self, global_state: QueryState) -> QueryState:
    """Returns the first state of a new run, given the initial state."""
    t = tf.constant(self._source.start_round, tf.int64)
    noise = self._source.begin(global_state.noise)
    return QueryState(t, noise, global_state.clip)

  def derive_sample_params(
    self, global_state: QueryState
  ) -> tuple[graph_clipping.Tensors, ...]:
    """Returns the arguments of `GraphClipping.clip` that follow the record.

    If the clip adapts, the result is a tuple with the scale of the round, else
    an empty tuple.
    """
    if self.clip.adaptive is None:
      return ()
    return (self.clip.scale(global_state.clip['l2_norm_clip'], tf.maximum),)

  def preprocess_record(
    self,
    params: tuple[graph_clipping.Tensors, ...],
    record: graph_clipping.Tensors,
  ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns the clipped record and the numbers of clients and zero updates.

    Returns:
      The clipped record, [coordinates] int32 in steps; its number of clients;
      and 1 if the clipped update is zero (as for an update that is not finite),
      else 0. If a record is a sum over clients, the last number is unknown and
      0 is returned.

    Raises:
      tf.errors.InvalidArgumentError: at run time, if a sum over clients has
        more clients than `largest_cohort`, or an entry above its number of
        clients times the clip.
    """
    if not self._sums:
      clipped = self.clip.clip(record, *params)
      moves = tf.reduce_any(tf.not_equal(clipped[: sum(self._sizes)], 0))
      return clipped, tf.constant(1, tf.int32), tf.cast(~moves, tf.int32)
    total, clients = record
    # PRIVACY: The guarantee assumes that the sum of the round does not wrap
    # around in int32. If a record contained more clients than it states, this
    # sum could wrap around. A record with an entry above its stated number of
    # clients times the clip is refused.
    # Guard: query_test.test_sum_of_other_clients_than_it_says_is_refused.
    bound = tf.cast(clients, tf.int64) * self.lattice.clip_steps
    checked = _require(
      (clients >= 0)
      & (clients <= self.lattice.largest_cohort)
      & tf.reduce_all(tf.abs(tf.cast(total, tf.int64)) <= bound),
      'a sum of clipped updates has more clients than largest_cohort, or an '
      'entry above its number of clients times the clip; clients:',
      clients,
    )
    with tf.control_dependencies([checked]):
      # Count in int64: with many partial sums the client count could overflow
      # int32 and pass the check of the cohort's size.
      clients = tf.cast(clients, tf.int64)
      return tf.identity(total), clients, tf.constant(0, tf.int64)

  def initial_sample_state(
    self, template: graph_clipping.Tensors = None
  ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns an empty sum: zeros in the types in which records are summed."""
    del template
    zero = tf.zeros([], tf.int64 if self._sums else tf.int32)
    return tf.zeros([sum(self.clip.dimensions)], tf.int32), zero, zero

  def get_noised_result(
    self,
    sample_state: tuple[tf.Tensor, tf.Tensor, tf.Tensor],
    global_state: QueryState,
  ) -> tuple[graph_clipping.Tensors, QueryState, dp_accounting.DpEvent]:
    """Returns (mean with noise in the record's types, next state, event).

    **Formal guarantee.** Assumptions: every client contributes at most one
    record to a round, and only in rounds and cohorts that `participation` of
    the `Guarantee` allows; records are clipped by `Clipping`; each round of a
    run is released for one sum only; the key of the noise is secret and used
    once; and nobody can distinguish the words of ChaCha20 from random ones. If
    the cohorts amplify privacy, they are drawn by the sampler of their kind and
    stay secret.

    Statement: consider an adversary who knows the program, sees every release
    to the bit, and chooses later data after earlier releases. Against this
    adversary the releases of all rounds together have the (epsilon, delta) of
    `Guarantee.claim` for the presence of one client. Unless the run stops, the
    releases are a function of the adaptive Gaussian mechanism C S + z_steps Z,
    where row t of S is the integer sum of round t. Delta of the claim includes
    stops.

    Source: docs/reference/arithmetic.md.

    Raises:
      tf.errors.InvalidArgumentError: at run time, if the round is past the last
        one or has more clients than `largest_cohort`.
    """
    total, clients, without_effect = sample_state
    t = self._source.round_index(global_state.round)
    # PRIVACY: C has no row for a round past the last one, so the run has no
    # noise for such a round. If the round used the noise of an earlier round,
    # the difference of the two releases would have no noise. The round fails.
    # Guard: aggregator_test.test_round_past_the_last_raises.
    in_range = _require(
      t < self._rounds,
      f'the strategy supports {self._rounds} rounds and all are done; '
      'optimise one for more rounds and account for both runs. round:',
      t,
    )
    # PRIVACY: The guarantee assumes that no sum of clipped updates wraps around
    # in int32. A sum over too many clients could wrap around. A round with more
    # clients than `largest_cohort` fails before its release.
    # Guard: query_test.test_round_of_more_than_the_largest_cohort_fails.
    most = self.lattice.largest_cohort
    in_size = _require(
      (clients >= 0) & (clients <= most),
      f'a round has more clients than largest_cohort={most}; give the '
      'aggregator a larger largest_cohort, or admit fewer clients. clients:',
      clients,
    )
    with tf.control_dependencies([in_range, in_size]):
      t = tf.identity(t)
      total = tf.identity(total)

    # PRIVACY: Before `begin`, the noise of a state is not reserved for one run,
    # so two runs could add the same noise to two sums. The noise would cancel
    # in the difference of their releases. Before `begin`, the release is zeros
    # instead of a sum.
    # Guard: query_test.test_state_that_was_not_begun_releases_nothing.
    released, new_state = tf.cond(
      t >= 0,
      lambda: self._release(
        total, tf.stack([clients, without_effect]), t, global_state
      ),
      lambda: (tf.zeros_like(total), global_state._replace(round=t)),
    )
    unit = tf.constant(self.clip.step / self._clients_per_round, tf.float64)
    for scale in self.derive_sample_params(global_state):
      unit *= scale
    specs = tf.nest.flatten(self.record_specs)
    mean = unit * tf.cast(released[: sum(self._sizes)], tf.float64)
    if len({spec.dtype for spec in specs}) == 1:
      mean = tf.cast(mean, specs[0].dtype)
    parts = [
      tf.cast(tf.reshape(part, spec.shape), spec.dtype)
      for part, spec in zip(tf.split(mean, self._sizes), specs)
    ]
    result = tf.nest.pack_sequence_as(self.record_specs, parts)
    return result, new_state, dp_accounting.UnsupportedDpEvent()

  def _release(
    self,
    total: tf.Tensor,
    counts: tf.Tensor,
    t: tf.Tensor,
    global_state: QueryState,
  ) -> tuple[tf.Tensor, QueryState]:
    # PRIVACY: If clients' values bypassed this method, the learning process
    # could release them without noise, and the guarantee would not hold. The
    # name scope identifies the operations that add the noise. By this name
    # `aggregator.check_process` finds clients' values that bypass these
    # operations.
    # Guard:
    # check_process_test.test_unweighted_fed_avg_releases_its_metrics_alone.
    with tf.name_scope(RELEASE_NAME):
      released, noise_state = self._source.release(
        global_state.noise, t, total, counts
      )
      released = tf.identity(released)
      # PRIVACY: The next clip is released. If this clip came from sums without
      # noise, it would reveal updates. It comes from the released sum of
      # indicators, which has noise.
      # Guard: adaptive_clip_test.test_clip_follows_what_is_released.
      clip = global_state.clip
      if self.clip.adaptive is not None:
        steps = tf.cast(released[-1], tf.float64)
        values = clip['l2_norm_clip'], steps, self._clients_per_round, t
        adapted = self.clip.adapted(*values, tf.clip_by_value, tf.where)
        clip = collections.OrderedDict(adapted)
      return released, QueryState(t + 1, noise_state, clip)

  def derive_metrics(self, global_state: QueryState) -> graph_clipping.Tensors:
    """Returns metrics that depend on no record, so they cost no privacy."""
    return collections.OrderedDict(
      round=global_state.round,
      z_stddev=tf.constant(self.z_stddev, tf.float32),
      **self._source.metrics(global_state.round),
    )


def _require(holds: tf.Tensor, rule: str, number: tf.Tensor) -> tf.Operation:
  """Returns an operation that fails if a rule about a number does not hold."""
  return tf.debugging.Assert(holds, [rule, tf.strings.as_string(number)])
