"""A clipped mean with correlated Gaussian noise, round after round."""

from __future__ import annotations

import collections
import functools
from typing import Any, NamedTuple, Optional

import dp_accounting
import tensorflow as tf
import tensorflow_privacy as tfp

from tff_bandmf import accounting, clips, errors, noise
from tff_bandmf.noise import placements
from tff_bandmf.noise.producer import source as source_lib
from tff_bandmf.query import clipping

# The round of a state that no run has begun.
NOT_BEGUN = -1
# An adaptive clip stays within a factor of this, and finite.
_MOST_SCALE = 2.0**64
# What the operations of a release are called in a graph.
RELEASE_NAME = 'tff_bandmf_release'


class QueryState(NamedTuple):
  """State between rounds.

  Attributes:
    round: scalar int64, rounds done, the index of the next one; `NOT_BEGUN` in
      what `initial_global_state` returns.
    noise: state of the noise source. Secret for noise in the state.
    clip: for an adaptive clip `l2_norm_clip`, that of the next round, and
      `fraction`, the last round's noised share of updates below theirs; both
      scalar float64, and released. Empty for a constant clip.
  """

  round: Any
  noise: Any
  clip: Any = ()


class CorrelatedNoiseQuery(tfp.SumAggregationDPQuery):
  """Returns (sum_i clip(x_i) + y_t) / clients_per_round in round t.

    y_t = round_h(z_stddev * (C^-1 Z)[t]), the rounded y entering the recursion

  Records, sums and noise are int32 multiples of the step h: sums are exact in
  any order, the release is one integer addition, and what comes after it is
  float64, then the types of the record. An adaptive clip makes h a function of
  earlier releases, and releases the share of records below it too, which gets
  the noise of one more coordinate. A record is (what `Clipping.clip` gives,
  number of clients); a round of more than `largest_cohort` clients fails before
  its release, so that no sum ever wraps.

  The guarantee is that of a `Guarantee` whose z_stddev is z in units of
  `Clipping.l2_norm`. It rests on one client contributing at most one record a
  round, in rounds that the spec's participation schema allows, and on each
  round of one state being released with one cohort only.

  The query is pure: all that changes is in its state, and in the files of a
  tape. A state must be begun. Past round n it raises. The event of a single
  round is unsupported: correlated rounds do not compose one by one. Account
  with `Guarantee.dp_event`, one event for the run.

  Attributes:
    clip, lattice, record_specs: as it was given them.
  """

  def __init__(
    self,
    clip: clipping.Clipping,
    lattice: noise.Lattice,
    clients_per_round: float,
    record_specs: Any,
    rounds: int,
    source: source_lib.NoiseSource,
    sums: bool = False,
  ):
    """Initializes the query.

    Args:
      clip: of one record, on `lattice`.
      lattice: the range of sums and noise.
      clients_per_round: the divisor, fixed whatever the number of records is.
      record_specs: nested structure of `tf.TensorSpec`, floats: of the mean.
      rounds: n.
      source: of y_t, in steps of the lattice.
      sums: whether records are (sum of clipped records, int32 steps; number of
        clients in it, int32), and not what is to be clipped.

    Raises:
      TypeError: a leaf of the record is not a float.
      ValueError: a value out of range.
    """
    self.clip = clip
    self.lattice = lattice
    self._clients_per_round = clients_per_round
    self.record_specs = record_specs
    self._rounds = rounds
    self._source = source
    self._sums = sums
    self._sizes = [
      spec.shape.num_elements() for spec in tf.nest.flatten(record_specs)
    ]
    dimension = clipping.record_dimension(record_specs)
    dimension += clips.indicators(clip.adaptive)
    if dimension != source.dimension:
      raise errors.value_error(
        'source.dimension',
        source.dimension,
        f'must be {dimension}, the coordinates of a record',
        'make the source for this record',
      )

  @classmethod
  def of(
    cls,
    guarantee: accounting.Guarantee,
    record_specs: Any,
    bounds: tuple[Any, Optional[float], float],
    clients_per_round: float,
    *,
    largest_cohort: int,
    noise_from: placements.Placement,
    secure_sum: bool = False,
    sums: bool = False,
  ) -> CorrelatedNoiseQuery:
    """Returns the query of a run; `close` it when the run ends.

    Args:
      guarantee: of the run, for a clip of 1.
      record_specs: as above.
      bounds: l2_norm_clip, zeroing_norm and its order, as `Clipping.of` takes
        them.
      clients_per_round: as above.
      largest_cohort: most clients of a round.
      noise_from: where the noise comes from.
      secure_sum: whether sums are made by secure aggregation.
      sums: as above.

    Raises:
      TypeError: a leaf of the record is not a float.
      ValueError: records, cohort and noise do not fit together.
    """
    l2_norm_clip, zeroing_norm, order = bounds
    dimension = clipping.record_dimension(record_specs)
    dimension += clips.indicators(l2_norm_clip)
    # PRIVACY: more coordinates have more slack than fewer. Guard:
    # aggregator_options_test.test_model_larger_than_the_claim_is_refused.
    if guarantee.noise_multiplier:
      guarantee.cost.check_dimension(dimension)
    recursion = guarantee.strategy.recursion()
    lattice = noise.Lattice.of(
      recursion,
      guarantee.z_stddev_per_clip,
      largest_cohort=largest_cohort,
      dimension=dimension,
      secure_sum=secure_sum,
    )
    return cls(
      clipping.Clipping.of(
        l2_norm_clip, record_specs, lattice.clip_bits, zeroing_norm, order
      ),
      lattice,
      clients_per_round,
      record_specs,
      guarantee.strategy.rounds,
      source_lib.of(noise_from, recursion, lattice.z_steps, dimension),
      sums,
    )

  def close(self) -> None:
    """Ends what makes noise in the background."""
    self._source.close()

  @property
  def z_stddev(self) -> float:
    """Standard deviation of z on the lattice, in the unit of the first sum."""
    return self.lattice.z_steps * self.clip.step

  def initial_global_state(self) -> QueryState:
    """Returns a state that nothing is ever released from; see `begin`.

    TFF evaluates a round on it inside `initialize`: that gives zeros, and
    reads no noise.
    """
    return QueryState(
      tf.constant(NOT_BEGUN, tf.int64),
      self._source.initial_state(),
      self.initial_clip(),
    )

  def initial_clip(self, l2_norm_clip: Optional[float] = None) -> Any:
    """Returns the clip of a state that goes on at some clip, or at the first.

    A constant clip has nothing to go on at.
    """
    if self.clip.adaptive is None:
      return ()
    return collections.OrderedDict(
      l2_norm_clip=tf.constant(l2_norm_clip or self._first, tf.float64),
      fraction=tf.constant(0.5, tf.float64),
    )

  @functools.cached_property
  def _first(self) -> float:
    """The clip of the first round."""
    return clips.norm(self.clip.clips[:-1])

  def begin(self, global_state: QueryState) -> QueryState:
    """Returns the state of a new run, from an initial one."""
    return QueryState(
      tf.constant(self._source.start_round, tf.int64),
      self._source.begin(global_state.noise),
      global_state.clip,
    )

  def derive_sample_params(self, global_state: QueryState) -> tuple[Any, ...]:
    """Returns what `Clipping.clip` takes beside a record: a scale, if any."""
    if self.clip.adaptive is None:
      return ()
    return (global_state.clip['l2_norm_clip'] / self._first,)

  def preprocess_record(
    self, params: tuple[Any, ...], record: Any
  ) -> tuple[Any, tf.Tensor]:
    """Returns (the record clipped, int32 steps, or zero; clients in it).

    Raises:
      tf.errors.InvalidArgumentError: when run, if a sum that was clipped before
        has more clients than a round, or entries that so few cannot have.
    """
    if not self._sums:
      return self.clip.clip(record, *params), tf.constant(1, tf.int32)
    leaves, clients = record
    # PRIVACY: a sum that says too few clients could make the round's wrap.
    # Guard: query_test.test_sum_of_other_clients_than_it_says_is_refused.
    bound = tf.cast(clients, tf.int64) * self.lattice.clip_steps
    holds = tf.reduce_all(
      [
        (clients >= 0) & (clients <= self.lattice.largest_cohort),
        *(
          tf.reduce_all(tf.abs(tf.cast(leaf, tf.int64)) <= bound)
          for leaf in tf.nest.flatten(leaves)
        ),
      ]
    )
    checked = tf.debugging.Assert(
      holds,
      [
        'a sum of clipped updates has more clients than a round or an '
        'entry above its clients times the clip; clients:',
        clients,
      ],
    )
    with tf.control_dependencies([checked]):
      # So many sums that their clients overflow 32 bits are too many too.
      return (
        tf.nest.map_structure(tf.identity, leaves),
        tf.cast(clients, tf.int64),
      )

  def initial_sample_state(self, template: Any = None) -> tuple[Any, tf.Tensor]:
    """Returns zeros in the types in which records are summed."""
    del template
    return (
      self.clip.zeros(self.record_specs),
      tf.zeros([], tf.int64 if self._sums else tf.int32),
    )

  def get_noised_result(
    self, sample_state: Any, global_state: QueryState
  ) -> tuple[Any, QueryState, dp_accounting.DpEvent]:
    """Returns (noised mean in the record's types, next state, event).

    Raises:
      tf.errors.InvalidArgumentError: when run, past round n, or with more
        clients than `largest_cohort`.
    """
    leaves, clients = sample_state
    t = self._source.round_index(global_state.round)
    # PRIVACY: C has no row n; repeating noise would cancel it. Guard:
    # aggregator_test.test_round_past_the_last_raises.
    in_range = tf.debugging.Assert(
      t < self._rounds,
      [
        'the strategy supports',
        self._rounds,
        'rounds and all are done; '
        'optimise one for more rounds and account for both runs. round:',
        t,
      ],
    )
    # PRIVACY: checked before the release: a larger sum could wrap. Guard:
    # query_test.test_round_of_more_than_the_largest_cohort_fails.
    most = self.lattice.largest_cohort
    in_size = tf.debugging.Assert(
      (clients >= 0) & (clients <= most),
      [
        'a round has more clients than its sums have room for; give the '
        f'aggregator a larger largest_cohort, it is {most}, or admit fewer '
        'clients. clients:',
        clients,
      ],
    )
    with tf.control_dependencies([in_range, in_size]):
      t = tf.identity(t)
      total = tf.concat(
        [tf.reshape(leaf, [-1]) for leaf in tf.nest.flatten(leaves)], 0
      )

    # PRIVACY: a state that was never begun has no noise of its own. Guard:
    # query_test.test_state_that_was_not_begun_releases_nothing.
    released, new_state = tf.cond(
      t >= 0,
      lambda: self._release(total, t, global_state),
      lambda: (tf.zeros_like(total), global_state._replace(round=t)),
    )
    unit = tf.constant(self.clip.step / self._clients_per_round, tf.float64)
    for scale in self.derive_sample_params(global_state):
      unit *= scale
    parts = [
      tf.cast(
        unit * tf.cast(tf.reshape(part, spec.shape), tf.float64), spec.dtype
      )
      for part, spec in zip(
        tf.split(released[: sum(self._sizes)], self._sizes),
        tf.nest.flatten(self.record_specs),
      )
    ]
    result = tf.nest.pack_sequence_as(self.record_specs, parts)
    return result, new_state, dp_accounting.UnsupportedDpEvent()

  def _release(
    self, total: tf.Tensor, t: tf.Tensor, global_state: QueryState
  ) -> tuple[tf.Tensor, QueryState]:
    # PRIVACY: the one place where what clients sent leaves as a release;
    # `aggregator.check_process` finds it by this name. Guard:
    # check_process_test.test_unweighted_fed_avg_releases_its_metrics_alone.
    with tf.name_scope(RELEASE_NAME):
      released, noise_state = self._source.release(global_state.noise, t, total)
      released = tf.identity(released)
      # PRIVACY: the clip of a round is a function of earlier releases. Guard:
      # adaptive_clip_test.test_clip_follows_what_is_released.
      clip = self._adapted(global_state.clip, released[-1], t)
      return released, QueryState(t + 1, noise_state, clip)

  def _adapted(self, clip: Any, released: tf.Tensor, t: tf.Tensor) -> Any:
    """Returns the clip after a round that released this of its indicator."""
    adaptive = self.clip.adaptive
    if adaptive is None:
      return clip
    most = 2.0 * self.clip.indicator_steps * self._clients_per_round
    fraction = 0.5 + tf.cast(released, tf.float64) / most
    # PRIVACY: a record times NaN has any bits. Guard:
    # adaptive_clip_test.test_scale_stays_finite.
    last = clip['l2_norm_clip']
    moved = tf.clip_by_value(
      last * tf.exp(adaptive.rate * (adaptive.quantile - fraction)),
      self._first / _MOST_SCALE,
      self._first * _MOST_SCALE,
    )
    if adaptive.until is not None:
      moved = tf.where(t < adaptive.until, moved, last)
    return collections.OrderedDict(l2_norm_clip=moved, fraction=fraction)

  def derive_metrics(self, global_state: QueryState) -> Any:
    """Returns what costs no privacy: nothing of it depends on a record."""
    return collections.OrderedDict(
      round=global_state.round,
      z_stddev=tf.constant(self.z_stddev, tf.float32),
      **self._source.metrics(global_state.noise, global_state.round),
    )
