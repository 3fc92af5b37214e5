"""A clipped sum with correlated Gaussian noise, round after round."""

from __future__ import annotations

import collections
from typing import Any, NamedTuple

import dp_accounting
import numpy as np
import tensorflow as tf
import tensorflow_privacy as tfp

from tff_bandmf import errors, noise
from tff_bandmf.query import clipping

_FLOAT32 = np.finfo(np.float32)


class QueryState(NamedTuple):
  """State between rounds.

  Attributes:
    round: scalar int64, rounds done, the index of the next one.
    noise: state of the noise source. Secret for noise in the state.
  """

  round: Any
  noise: Any


class CorrelatedNoiseSumQuery(tfp.SumAggregationDPQuery):
  """Returns sum_i clip(x_i) + z_stddev * (C^-1 Z)[t] in round t.

  The guarantee is that of a `PrivacySpec` with
  z_stddev = norm * noise_multiplier * sensitivity, where norm is the most that
  a record has after clipping, `Clipping.l2_norm`. It rests on one
  client contributing at most one record a round, in rounds that the spec's
  participation schema allows, and on each round of one state being released
  with one cohort only.

  The query is pure: all that changes is in its state. Past round n it raises.
  The event of a single round is unsupported: correlated rounds do not compose
  one by one. Account with `PrivacySpec.dp_event`, one event for the run.
  """

  def __init__(
      self,
      clip: clipping.Clipping,
      z_stddev: float,
      record_specs: Any,
      rounds: int,
      source: noise.NoiseSource,
  ):
    """Initializes the query.

    Args:
      clip: of one record.
      z_stddev: standard deviation of z in the units of the sum, clip included.
      record_specs: nested structure of `tf.TensorSpec`, floats.
      rounds: n.
      source: of y = C^-1 z for unit z.

    Raises:
      TypeError: a leaf of the record is no float.
      ValueError: a value out of range.
    """
    self._clip = clip
    # PRIVACY: noise is float32; there it must neither vanish nor overflow.
    # Guard: query_test.test_noise_that_float32_cannot_hold_is_refused.
    if z_stddev and not _FLOAT32.tiny <= z_stddev <= _FLOAT32.max / 10:
      raise ValueError(
          errors.invalid(
              'z_stddev', z_stddev,
              f'must be 0 or in [{_FLOAT32.tiny:.2g}, {_FLOAT32.max / 10:.2g}]',
              'change the unit of the updates'))
    self._z_stddev = z_stddev
    self._record_specs = record_specs
    self._rounds = rounds
    self._source = source
    if clipping.record_dimension(record_specs) != source.dimension:
      raise ValueError(
          errors.invalid(
              'source.dimension', source.dimension,
              f'must be {clipping.record_dimension(record_specs)}, the '
              'coordinates of record_specs', 'make the source for this record'))

  def initial_global_state(self) -> QueryState:
    return QueryState(
        tf.constant(self._source.start_round, tf.int64),
        self._source.initial_state())

  def begin(self, global_state: QueryState, round_index: int) -> QueryState:
    """Returns the state of a new run at a round, from an initial one."""
    return QueryState(
        tf.constant(round_index, tf.int64),
        self._source.begin(global_state.noise))

  def derive_sample_params(self, global_state: QueryState) -> tuple[()]:
    """Returns nothing: the bounds of a record are constants."""
    del global_state
    return ()

  def preprocess_record(self, params: tuple[()], record: Any) -> Any:
    """Returns the record clipped, or zero."""
    del params
    return self._clip.clip(record)

  def initial_sample_state(self, template: Any = None) -> Any:
    """Returns zeros in the types in which records are summed."""
    del template
    return tf.nest.map_structure(
        lambda spec: tf.zeros(spec.shape, clipping.sum_dtype(spec.dtype)),
        self._record_specs)

  def get_noised_result(
      self, sample_state: Any, global_state: QueryState
  ) -> tuple[Any, QueryState, dp_accounting.DpEvent]:
    """Returns (noised sum, in the types it was summed in, next state, event).

    Raises:
      tf.errors.InvalidArgumentError: when run, past round n.
    """
    t = global_state.round
    # PRIVACY: C has no row n; repeating noise would cancel it. Guard:
    # aggregator_test.test_round_past_the_last_raises.
    in_range = tf.debugging.Assert(
        t < self._rounds,
        ['the strategy supports', self._rounds, 'rounds and all are done; '
         'optimise one for more rounds and account for both runs. round:', t])
    with tf.control_dependencies([in_range]):
      t = tf.identity(t)
    if self._z_stddev:
      y, noise_state = self._source.next(global_state.noise, t)
      sizes = [spec.shape.num_elements()
               for spec in tf.nest.flatten(self._record_specs)]
      parts = tf.split(y * tf.constant(self._z_stddev, tf.float32), sizes)

      def noised(spec, total, part):
        # PRIVACY: a float64 sum has bits below the last one of float32 noise,
        # which would come out as they are; so it loses them before.
        # Guard: query_test.test_float64_sum_shows_no_bit_below_its_noise.
        noised_total = (
            tf.cast(total, tf.float32) + tf.reshape(part, spec.shape))
        return tf.cast(noised_total, total.dtype)

      result = tf.nest.map_structure(
          noised, self._record_specs, sample_state,
          tf.nest.pack_sequence_as(self._record_specs, parts))
    else:
      noise_state = global_state.noise
      with tf.control_dependencies([t]):
        result = tf.nest.map_structure(tf.identity, sample_state)
    return (
        result,
        QueryState(t + 1, noise_state),
        dp_accounting.UnsupportedDpEvent(),
    )

  def derive_metrics(self, global_state: QueryState) -> Any:
    """Returns what costs no privacy: nothing of it depends on a record."""
    return collections.OrderedDict(
        round=global_state.round,
        z_stddev=tf.constant(self._z_stddev, tf.float32),
        **self._source.metrics(global_state.round))


class MeanQuery(tfp.NormalizedQuery):
  """Returns the sum of another query over a fixed number of records.

  The mean is rounded to the types of the record after the division: a sum may
  be too large for 16 bits where its mean is not.
  """

  def __init__(
      self,
      numerator_query: CorrelatedNoiseSumQuery,
      denominator: float,
      record_specs: Any,
  ):
    """Initializes the query.

    Args:
      numerator_query: the sum.
      denominator: records of a round, fixed whatever their number is.
      record_specs: nested structure of `tf.TensorSpec`, floats.
    """
    super().__init__(numerator_query, denominator)
    self._record_specs = record_specs

  def begin(self, global_state: Any, round_index: int) -> Any:
    """Returns the state of a new run at a round, from an initial one."""
    return global_state._replace(
        numerator_state=self._numerator.begin(
            global_state.numerator_state, round_index))

  def get_noised_result(
      self, sample_state: Any, global_state: Any
  ) -> tuple[Any, Any, dp_accounting.DpEvent]:
    """Returns (noised mean in the record's types, next state, event)."""
    mean, new_state, event = super().get_noised_result(
        sample_state, global_state)
    rounded = tf.nest.map_structure(
        lambda spec, leaf: tf.cast(leaf, spec.dtype), self._record_specs, mean)
    return rounded, new_state, event
