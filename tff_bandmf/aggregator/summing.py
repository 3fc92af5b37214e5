"""What summing records may add to the norm that clipping gave them.

A record aggregation that rounds can raise the norm of what it adds up. The
records are clipped to that much less, so that sensitivity stays what the noise
was made for.
"""

from __future__ import annotations

import math
from typing import Optional

import numpy as np
import tensorflow_federated as tff

from tff_bandmf import errors

# TFF sums integers of so many bits.
_SECURE_STEPS = 2**32 - 1
# Of a step: bounds are rounded to float32, and products to float64.
_HALF_STEP = 0.5 * (1 + 1e-3)
_FLOAT = (float, np.floating)


def is_plain(
    factory: Optional[tff.aggregators.UnweightedAggregationFactory],
) -> bool:
  """Returns whether records are added up as they are, where the server can see
  them."""
  return factory is None or type(factory) is tff.aggregators.SumFactory


def norm_added(
    factory: Optional[tff.aggregators.UnweightedAggregationFactory],
    dimension: int,
    stated: Optional[float],
) -> float:
  """Returns the most by which the L2 norm of a record grows in the sum.

  `tff.aggregators.SecureSumFactory` rounds each coordinate to a multiple of
  (upper - lower) / (2^32 - 1), which is by half of that, and zero to zero. What
  is outside of its bounds moves towards zero, if they hold zero.

  Args:
    factory: the record aggregation; None adds up.
    dimension: d, coordinates of a record.
    stated: what the caller says of a factory that is not known here.

  Raises:
    TypeError: a value of the wrong kind.
    ValueError: the factory is not known, or is one whose bounds follow the
      records.
  """
  if stated is not None and stated != 0:
    return errors.check_positive(
        'record_norm_added', stated, 'give 0 for a sum that never rounds')
  if stated is not None or is_plain(factory):
    return 0.0
  if type(factory) is tff.aggregators.SecureSumFactory:
    return math.sqrt(dimension) * _HALF_STEP * _secure_step(factory)
  if not isinstance(factory, tff.aggregators.UnweightedAggregationFactory):
    raise TypeError(
        errors.invalid(
            'record_aggregation_factory', factory,
            'must be a tff.aggregators.UnweightedAggregationFactory',
            'leave it out to add records up'))
  raise ValueError(
      errors.invalid(
          'record_aggregation_factory', type(factory).__name__,
          'what it adds to the norm of a record is not known',
          'prove a bound and give it as record_norm_added'))


def _secure_step(factory: tff.aggregators.SecureSumFactory) -> float:
  """Returns (upper - lower) / (2^32 - 1)."""
  upper = getattr(factory, '_upper_bound_threshold', None)
  lower = getattr(factory, '_lower_bound_threshold', None)
  if lower is None and isinstance(upper, _FLOAT):
    lower = -upper
  if not (isinstance(upper, _FLOAT) and isinstance(lower, _FLOAT)):
    # PRIVACY: estimated bounds are a release of their own, without noise.
    # Guard: aggregator_options_test.test_secure_sum_that_adapts_is_refused.
    raise ValueError(
        errors.invalid(
            'record_aggregation_factory', type(factory).__name__,
            'its bounds must be constant floats; bounds that follow the '
            'updates release something about them',
            'use tff.aggregators.SecureSumFactory(clip, -clip)'))
  # PRIVACY: other bounds would move small coordinates away from zero.
  # Guard: aggregator_options_test.test_secure_sum_without_zero_is_refused.
  if not lower <= 0.0 <= upper:
    raise ValueError(
        errors.invalid(
            'record_aggregation_factory', type(factory).__name__,
            f'its bounds [{lower}, {upper}] must hold 0',
            'use tff.aggregators.SecureSumFactory(clip, -clip)'))
  return float(upper - lower) / _SECURE_STEPS
