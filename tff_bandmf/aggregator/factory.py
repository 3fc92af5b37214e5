"""The aggregator: clip, sum, correlated noise, fixed divisor."""

from __future__ import annotations

import collections
import functools
import math
import os
from collections.abc import Sequence
from typing import Any, Callable, Optional, Union

import tensorflow as tf
import tensorflow_federated as tff

from tff_bandmf import accounting, errors, noise, strategies
from tff_bandmf import participation as participation_lib
from tff_bandmf import query as query_lib
from tff_bandmf.aggregator import summing

STATE = noise.StateSource.placement
REGENERATE = noise.RegenerateSource.placement
TAPE = noise.TapeSource.placement

# Making z again costs as much as making it, once a band.
_MOST_REGENERATED = 8
# State passes between processes by value every round, 20 to 40 ms a MB; past
# 1.9 GB TFF's local runtime refuses it or retries for ever.
_GOOD_STATE_BYTES = 32 * 2**20
_MAX_STATE_BYTES = 1_800_000_000


class CorrelatedNoiseFactory(tff.aggregators.UnweightedAggregationFactory):
  """Means of clipped updates with correlated noise.

  Make it with `correlated_noise_aggregator`. What it creates keeps the state of
  `tff.aggregators.DifferentiallyPrivateFactory` and measures

  * `free`, which is the same whatever the updates are and costs no privacy:
    `round`, rounds done; `z_stddev`, the standard deviation of z in the unit
    of the sum; `noise_placement`; with a tape `rounds_ahead`, the rounds whose
    noise is ready, which follows the time that rounds take;
  * `not_private`, only with `measure_clients`: `non_finite_count`,
    `zeroed_count` and `clipped_count`, clients of the round whose update held
    NaN or infinity and counted as zero, was zeroed for its norm, was clipped.
    Counts without noise: they are outside the guarantee, and who sees them
    learns something about single clients. TFF's own client work
    (`build_unweighted_fed_avg`) makes updates that are not finite zero before
    they get here.

  What the record aggregation measures is not passed on: it is not private.

  Attributes:
    spec: the claim of a run with this aggregator, in units of `l2_norm_clip`.
    l2_norm_clip: the norm that bounds one client's contribution to a round;
      of clips by layer, (sum_g clip_g^2)^(1/2).
    noise_placement: 'state', 'regenerate' or 'tape'.
  """

  def __init__(
      self,
      spec: accounting.PrivacySpec,
      clipping: query_lib.Clipping,
      l2_norm_clip: float,
      record_specs: Any,
      source: noise.NoiseSource,
      dp_factory: tff.aggregators.DifferentiallyPrivateFactory,
      begin: Callable[[Any], Any],
      measure_clients: bool,
  ):
    self.spec = spec
    self.l2_norm_clip = l2_norm_clip
    self.noise_placement = source.placement
    self._clipping = clipping
    self._record_specs = record_specs
    self._source = source
    self._dp_factory = dp_factory
    self._begin = begin
    self._measure_clients = measure_clients
    self._created = False

  def close(self) -> None:
    """Ends the noise producer, if there is one, and removes its files."""
    self._source.close()

  def __enter__(self) -> CorrelatedNoiseFactory:
    return self

  def __exit__(self, *exc_info) -> None:
    self.close()

  def create(
      self, value_type: tff.Type
  ) -> tff.templates.AggregationProcess:
    """Returns the process for updates of `value_type`.

    Raises:
      ValueError: `value_type` is not what `record_specs` said, or the factory
        has a tape and made a process before.
    """
    expected = tff.types.to_type(
        tf.nest.map_structure(_type_of, self._record_specs))
    if not expected.is_equivalent_to(value_type):
      raise ValueError(
          errors.invalid(
              'value_type', value_type.compact_representation(),
              'differs from record_specs='
              f'{expected.compact_representation()}',
              'give the specs of the trainable variables'))
    # PRIVACY: two runs on one tape would get the same noise.
    # Guard: aggregator_test.test_second_process_on_a_tape_is_refused.
    if self._created and self.noise_placement == TAPE:
      raise ValueError(
          errors.invalid(
              'noise_placement', TAPE, 'a tape serves one run',
              'make a factory for every learning process'))
    process = self._dp_factory.create(value_type)
    self._created = True

    # PRIVACY: runs are told apart, but not before `initialize` has evaluated a
    # round, which would then be another run's. Guard:
    # aggregator_test.test_second_run_on_a_tape_is_refused_its_first_round.
    @tff.tensorflow.computation(process.initialize.type_signature.result.member)
    def begin(state):
      return state._replace(query_state=self._begin(state.query_state))

    @tff.federated_computation
    def init_fn():
      return tff.federated_map(begin, process.initialize())

    @tff.tensorflow.computation(value_type)
    def describe(record):
      return self._clipping.describe(record)

    @tff.federated_computation(
        process.initialize.type_signature.result,
        tff.FederatedType(value_type, tff.CLIENTS))
    def next_fn(state, value):
      output = process.next(state, value)
      measurements = collections.OrderedDict(
          free=output.measurements['dp_query_metrics'])
      # PRIVACY: what depends on updates and has no noise is asked for by name.
      # Guard: aggregator_options_test.test_only_what_is_free_is_measured.
      if self._measure_clients:
        measurements['not_private'] = tff.federated_sum(
            tff.federated_map(describe, value))
      return tff.templates.MeasuredProcessOutput(
          output.state, output.result, tff.federated_zip(measurements))

    return tff.templates.AggregationProcess(init_fn, next_fn)


def _type_of(spec: tf.TensorSpec) -> tff.TensorType:
  return tff.TensorType(spec.dtype.as_numpy_dtype, spec.shape.as_list())


def correlated_noise_aggregator(
    noise_multiplier: float,
    clients_per_round: float,
    l2_norm_clip: Any,
    record_specs: Any,
    noise_seed: Optional[Union[int, noise.Key]] = None,
    record_aggregation_factory: Optional[
        tff.aggregators.UnweightedAggregationFactory
    ] = None,
    *,
    strategy: strategies.Strategy,
    participation: participation_lib.Participation,
    zeroing_norm: Optional[float] = None,
    zeroing_norm_order: float = math.inf,
    record_norm_added: Optional[float] = None,
    measure_clients: bool = False,
    noise_placement: Optional[str] = None,
    tape_directory: Optional[Union[str, os.PathLike]] = None,
    start_round: int = 0,
    secure_noise: bool = False,
    max_memory_bytes: Optional[int] = None,
    noise_server: Optional[
        Union[str, os.PathLike, Sequence[Union[str, os.PathLike]]]
    ] = None,
) -> CorrelatedNoiseFactory:
  """Returns an aggregation factory with matrix-factorization noise.

    (sum_i clip(zero(x_i)) + z_stddev * (C^-1 Z)[t]) / clients_per_round
    z_stddev = l2_norm_clip * noise_multiplier * sens(C)

  The leading parameters are those of TFF's `tree_aggregation`. The guarantee,
  `factory.spec`, rests on `participation` being enforced, on one record a
  client and round, and on no round being released for two cohorts.

  Args:
    noise_multiplier: standard deviation of z over clip times sensitivity, what
      an accountant takes; see `accounting.calibrate`. (TFF's tree aggregation
      takes z over clip.) 0 adds no noise and guarantees nothing.
    clients_per_round: the divisor, fixed whatever the cohort's size: a round
      that clients dropped out of, and one without any, is divided by it too.
    l2_norm_clip: clipping norm over all leaves of an update; or, by layer, a
      nested structure of norms whose containers are the outer ones of
      `record_specs`. All of an update then has norm (sum_g clip_g^2)^(1/2) at
      most, which takes the place of l2_norm_clip above. Adaptive clips are
      refused: their estimate is a release with a cost of its own, and noise
      that is correlated between rounds has one scale.
    record_specs: nested structure of `tf.TensorSpec` of an update: float
      leaves of any width.
    noise_seed: a key, kept by the caller to resume a run; an integer, for
      repeatable noise in simulations; None draws a key from the operating
      system. With a key or an integer two runs get the same noise: their
      difference has none. Use it for one run.
    record_aggregation_factory: how clipped records are summed, as in
      `tff.aggregators.DifferentiallyPrivateFactory`. It may not raise the norm
      of a record. `tff.aggregators.SecureSumFactory(clip, -clip)` rounds: with
      it updates are clipped to as much less as that may add. TFF's local
      runtime cannot run secure sums.
    strategy: C; fixes the number of rounds.
    participation: schema under which the sensitivity of C is taken.
    zeroing_norm: updates of a larger norm count as zero, before clipping: what
      is far too large is broken. A constant bound costs no privacy and leaves
      the sensitivity as it is. None zeroes no finite update.
    zeroing_norm_order: of that norm: 2, or inf for the largest magnitude, as
      `tff.aggregators.zeroing_factory` takes it.
    record_norm_added: for another `record_aggregation_factory`, the most by
      which the L2 norm of a client's contribution grows in it, zero staying
      zero; 0 if it adds up exactly. Updates are clipped to that much less.
    measure_clients: whether to measure `not_private`: what happened to the
      updates of each round, without noise and outside the guarantee.
    noise_placement: 'state', 'regenerate', 'tape', or None to choose. With
      'state' the key is in the server state: keep every copy of that secret,
      and do not give it to `tff.learning.programs.train_model`, which releases
      it. 'regenerate' is for a C^-1 of few bands, and up to 8 the default: a
      file holds the key, and nothing else is kept, but z is made once a band.
      Else the size of the state chooses. A tape gives a round's noise to one
      run only, and never again after a later round; with the others that is up
      to who runs the rounds.
    tape_directory: folder for the tape or the key's file, private and seen by
      the process that runs the rounds; None makes a temporary one, in memory
      where possible.
    start_round: round of the state that a resumed run continues from. Only a
      tape needs it, together with the `noise_seed` of the run or with its
      `noise_server`; `initialize` then gives a state of that round, with no
      trace of those before it, for a run of its own: a server refuses it a
      round that the resumed state has read.
    secure_noise: z comes from AES in counter mode instead of Philox, which is
      not cryptographic; needs a tape, and takes it.
    max_memory_bytes: what a tape remembers of past rounds goes to a file in
      the folder for temporary files (TMPDIR) if it is larger: 4 bytes a
      coordinate and band, bands rounded up to blocks of 32 to 64 rounds. None
      keeps any in memory.
    noise_server: folder of a running `bandmf noise-server`, or those of all
      its shards: the tape is theirs, and so is the key. `noise_seed`,
      `tape_directory` and `max_memory_bytes` are the server's to say then.

  Returns:
    A factory; `close` it, or use it in a `with` statement, when training ends.

  Raises:
    TypeError: a leaf of the record is no float, or a wrong kind of argument.
    ValueError: a value out of range.
  """
  errors.check_positive(
      'clients_per_round', clients_per_round, 'it is the divisor of the mean')
  if noise_placement not in (None, STATE, REGENERATE, TAPE):
    raise ValueError(
        errors.invalid(
            'noise_placement', noise_placement, 'is not known',
            f'use {STATE}, {REGENERATE} or {TAPE}'))
  if not isinstance(strategy, strategies.Strategy):
    raise TypeError(
        errors.invalid(
            'strategy', strategy, 'must be a tff_bandmf.strategies.Strategy',
            'load or optimise one'))
  if not 0 <= start_round <= strategy.rounds:
    raise ValueError(
        errors.invalid(
            'start_round', start_round,
            f'must be in [0, rounds={strategy.rounds}]',
            'give the round of the state that the run continues from'))
  if noise_server is not None:
    _check_serves(
        noise_placement, noise_seed=noise_seed, tape_directory=tape_directory,
        max_memory_bytes=max_memory_bytes)
    noise_placement = TAPE
  elif start_round and noise_seed is None:
    raise ValueError(
        errors.invalid(
            'start_round', start_round, 'needs the noise_seed of the run',
            'noise of another key would not go on with the noise of its past'))
  # PRIVACY: noise in TFF's graphs is Philox. Guard:
  # aggregator_test.test_secure_noise_needs_a_tape.
  if secure_noise and noise_placement not in (None, TAPE):
    raise ValueError(
        errors.invalid(
            'noise_placement', noise_placement,
            'cannot make secure noise, TensorFlow graphs have no AES',
            f'use {TAPE}, or secure_noise=False'))
  spec = accounting.PrivacySpec(strategy, participation, noise_multiplier)
  dimension = query_lib.record_dimension(record_specs)
  clipping = query_lib.Clipping.of(
      l2_norm_clip, record_specs, zeroing_norm, zeroing_norm_order)
  l2_norm_clip = clipping.l2_norm
  # PRIVACY: what is summed has at most the norm that the noise is made for.
  # Guard: aggregator_options_test.test_secure_sum_keeps_the_norm.
  clipping = clipping.lowered_by(summing.norm_added(
      record_aggregation_factory, dimension, record_norm_added))
  if measure_clients and not summing.is_plain(record_aggregation_factory):
    raise ValueError(
        errors.invalid(
            'measure_clients', measure_clients,
            'would tell the server about each client, past the '
            'record_aggregation_factory', 'leave one of them out'))
  plan = noise.Plan.of(strategy)
  state_bytes = noise.StateSource.bytes_passed(plan, dimension)
  if noise_placement is None and secure_noise:
    noise_placement = TAPE
  if noise_placement is None:
    if (strategy.inverse_bands is not None
        and strategy.inverse_bands <= _MOST_REGENERATED):
      noise_placement = REGENERATE
    else:
      noise_placement = TAPE if state_bytes > _GOOD_STATE_BYTES else STATE
  if noise_placement == STATE and state_bytes > _MAX_STATE_BYTES:
    raise ValueError(
        errors.invalid(
            'noise_placement', STATE,
            f'{state_bytes / 1e9:.1f} GB of noise cannot pass between TFF '
            f'processes, {_MAX_STATE_BYTES / 1e9:.1f} GB can', f'use {TAPE}'))
  key = noise_seed
  if key is not None and not isinstance(key, noise.Key):
    key = noise.Key.from_seed(key)
  source: noise.NoiseSource
  if not noise_multiplier:
    source = noise.StateSource(
        noise.Plan.of(strategies.Identity(strategy.rounds)), dimension, key)
  elif noise_placement == STATE:
    source = noise.StateSource(plan, dimension, key)
  elif noise_placement == REGENERATE:
    source = noise.RegenerateSource(plan, dimension, key, tape_directory)
  else:
    # A run that is over still needs a round for `initialize` to evaluate.
    first_read = min(start_round, strategy.rounds - 1)
    generator = noise.AES_CTR if secure_noise else noise.PHILOX
    if noise_server is not None:
      if isinstance(noise_server, (str, os.PathLike)):
        noise_server = [noise_server]
      source = noise.TapeSource(
          noise.ServedTape(
              noise_server, plan, dimension, generator, first_read))
    else:
      source = noise.TapeSource(
          noise.Tape(
              tape_directory, plan, dimension, key or noise.Key.from_entropy(),
              first_read, generator=generator,
              max_memory_bytes=max_memory_bytes))
  try:
    query = query_lib.MeanQuery(
        query_lib.CorrelatedNoiseSumQuery(
            clipping, spec.z_stddev * l2_norm_clip, record_specs,
            strategy.rounds, source),
        float(clients_per_round), record_specs)
    begins = start_round if source.placement == TAPE else source.start_round
    return CorrelatedNoiseFactory(
        spec, clipping, l2_norm_clip, record_specs, source,
        tff.aggregators.DifferentiallyPrivateFactory(
            query, record_aggregation_factory),
        functools.partial(query.begin, round_index=begins), measure_clients)
  except BaseException:
    source.close()
    raise


def _check_serves(noise_placement: Optional[str], **of_the_server: Any) -> None:
  """Raises ValueError if an argument does not go with `noise_server`."""
  if noise_placement not in (None, TAPE):
    raise ValueError(
        errors.invalid(
            'noise_placement', noise_placement,
            'does not go with noise_server', f'use {TAPE}, or leave it out'))
  for name, value in of_the_server.items():
    if value is not None:
      # Not the value: it may be a key.
      raise ValueError(
          errors.invalid(
              name, type(value).__name__, 'does not go with noise_server',
              'give it to bandmf noise-server'))
