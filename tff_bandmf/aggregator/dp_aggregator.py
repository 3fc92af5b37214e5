"""What takes the place of `tff.learning.dp_aggregator` in a program."""

from __future__ import annotations

import inspect
from typing import Any, Optional

import tensorflow as tf
import tensorflow_federated as tff

from tff_bandmf import accounting, errors, strategies
from tff_bandmf import participation as participation_lib
from tff_bandmf.aggregator import factory as factory_lib

# Where the bound of TFF's adaptive zeroing starts: 2 * 10 + 1.
_ZEROING_NORM = 21.0


class DpAggregatorFactory(tff.aggregators.UnweightedAggregationFactory):
  """A `CorrelatedNoiseFactory` that learns from TFF what an update is.

  It serves one learning process; make it with `dp_aggregator`.

  Attributes:
    spec: the claim of a run with this aggregator, in units of `l2_norm_clip`.
  """

  def __init__(
      self, spec: accounting.PrivacySpec, arguments: dict[str, Any]
  ):
    self.spec = spec
    self._arguments = arguments
    self._factory: Optional[factory_lib.CorrelatedNoiseFactory] = None

  def create(
      self, value_type: tff.Type
  ) -> tff.templates.AggregationProcess:
    """Returns the process for updates of `value_type`.

    Raises:
      TypeError: a leaf of an update is no float.
      ValueError: an argument is out of range, or a process was made before.
    """
    # PRIVACY: two runs with one key would get the same noise.
    # Guard: dp_aggregator_test.test_second_process_is_refused.
    if self._factory is not None:
      raise ValueError(
          errors.invalid(
              'create', 'called twice', 'an aggregator serves one run',
              'call dp_aggregator for every learning process'))
    self._factory = factory_lib.correlated_noise_aggregator(
        record_specs=tff.types.structure_from_tensor_type_tree(
            lambda leaf: tf.TensorSpec(leaf.shape, leaf.dtype), value_type),
        **self._arguments)
    return self._factory.create(value_type)

  def close(self) -> None:
    """Ends the noise producer, if there is one, and removes its files."""
    if self._factory is not None:
      self._factory.close()

  def __enter__(self) -> DpAggregatorFactory:
    return self

  def __exit__(self, *exc_info) -> None:
    self.close()


def dp_aggregator(
    noise_multiplier: float,
    clients_per_round: float,
    zeroing: bool = True,
    *,
    l2_norm_clip: Any = None,
    strategy: strategies.Strategy,
    participation: participation_lib.Participation,
    zeroing_norm: Optional[float] = None,
    **options: Any,
) -> DpAggregatorFactory:
  """Returns `correlated_noise_aggregator` with TFF's leading arguments.

    (sum_i clip(zero(x_i)) + z_stddev * (C^-1 Z)[t]) / clients_per_round
    z_stddev = l2_norm_clip * noise_multiplier * sens(C)

  The leading arguments are those of `tff.learning.dp_aggregator`. Three things
  differ, since noise that is correlated between rounds needs one scale, and
  its guarantee is that of the whole run:

  * `noise_multiplier` is that of the run, over clip times the sensitivity of
    C, what an accountant takes. TFF's is that of a round, over the clip: with
    `strategies.Identity`, TFF's is ours times sqrt(k).
  * The clip is a constant. TFF adapts it from round to round.
  * The bound of zeroing is a constant. TFF's follows the updates, and is
    estimated from them without noise.

  The guarantee, `factory.spec`, rests on `participation` being enforced, on
  one record a client and round, and on no round being released for two
  cohorts: what draws the cohorts of the program must be changed with it.

  Args:
    noise_multiplier: standard deviation of z over clip times sensitivity; see
      `accounting.calibrate`. 0 adds no noise and guarantees nothing.
    clients_per_round: the divisor, fixed whatever the cohort's size.
    zeroing: whether an update with an entry of larger magnitude than
      `zeroing_norm` counts as zero. One that is not finite always does.
    l2_norm_clip: clipping norm of an update; required.
    strategy: C; fixes the number of rounds.
    participation: schema under which the sensitivity of C is taken.
    zeroing_norm: None takes 21, where TFF's adaptive bound starts.
    **options: the other keywords of `correlated_noise_aggregator`.

  Returns:
    A factory; `close` it, or use it in a `with` statement, when training ends.

  Raises:
    TypeError: no clip or an adaptive one, or a keyword that is not known.
    ValueError: a value out of range.
  """
  if l2_norm_clip is None or isinstance(
      l2_norm_clip, tff.templates.EstimationProcess):
    raise TypeError(
        errors.invalid(
            'l2_norm_clip', 'None' if l2_norm_clip is None else 'adaptive',
            'must be a constant: noise correlated between rounds has one '
            'scale, TFF\'s dp_aggregator adapts it',
            'give a norm, such as a quantile of update norms on public data'))
  errors.check_positive(
      'clients_per_round', clients_per_round, 'it is the divisor of the mean')
  if zeroing:
    zeroing_norm = errors.check_positive(
        'zeroing_norm', _ZEROING_NORM if zeroing_norm is None else zeroing_norm,
        'it is a constant: an adaptive one is a release of its own')
  elif zeroing_norm is not None:
    raise ValueError(
        errors.invalid(
            'zeroing_norm', zeroing_norm, 'needs zeroing=True',
            'leave one of them out'))
  if not isinstance(strategy, strategies.Strategy):
    raise TypeError(
        errors.invalid(
            'strategy', strategy, 'must be a tff_bandmf.strategies.Strategy',
            'load or optimise one'))
  spec = accounting.PrivacySpec(strategy, participation, noise_multiplier)
  arguments = {
      'noise_multiplier': noise_multiplier,
      'clients_per_round': clients_per_round, 'l2_norm_clip': l2_norm_clip,
      'strategy': strategy, 'participation': participation,
      'zeroing_norm': zeroing_norm, **options}
  # Unknown keywords are refused here and not when a process is made.
  inspect.signature(factory_lib.correlated_noise_aggregator).bind(
      record_specs=None, **arguments)
  return DpAggregatorFactory(spec, arguments)
