"""The norm to which updates are clipped: constant, or adapted to updates.

| symbol | name here         | meaning                                         |
|--------|-------------------|-------------------------------------------------|
| S_t    | `l2_norm_clip`    | the clip of round t; S_0 is `initial`           |
| gamma  | `quantile`        | share of updates that should be below S_t       |
| eta    | `rate`            | step size of log S_t in a round                 |
| beta   | `fraction_weight` | weight of b_i = [update i is below S_t]         |
| Delta  |                   | largest record norm / S_t: (1 + beta^2 / 4)^1/2 |
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Callable, Optional, Union

import tree

from tff_bandmf import _checks, _files, errors

# Default of beta, for which Delta is 1.0098.
_FRACTION_WEIGHT = 0.28
# An adaptive clip stays within this factor of its first value, so it is finite.
_MOST_SCALE = 2.0**64
# An exponent beyond +- this number moves every clip to an end of its range.
_MOST_EXPONENT = 2 * math.log(_MOST_SCALE)
# `next_clip` computes e^y as (e^x)^(2^_SQUARINGS) with x = y / 2^_SQUARINGS. It
# adds up the terms x^k / k!, whose coefficients are here, largest k first.
_SERIES = [1 / math.factorial(k) for k in range(16, -1, -1)]
_SQUARINGS = 8

# A norm > 0; or a norm > 0 for each layer, nested in tuples, lists and dicts
# like the layers of an update.
Norms = Any


@dataclasses.dataclass(frozen=True)
class AdaptiveClip:
  """A clip that follows a quantile of the norms of updates.

    record of client i:   (clip(x_i, S_t),  beta S_t (b_i - 1/2))
    fraction_t = 1/2 + (sum_i beta S_t (b_i - 1/2) + noise)
                       / (beta S_t clients_per_round)
    S_{t+1} = S_t exp(-rate (fraction_t - quantile))

  Here x_i is the update of client i. A record has one more coordinate than an
  update, the indicator. All coordinates of a record get the correlated noise of
  the run. The record of an absent client is zero. The norm of a record is at
  most Delta S_t, and S_t is a function of earlier releases. The Gaussian
  mechanism allows inputs that depend on earlier releases [SingleEpoch22, Thm
  2.1]. So if z has the standard deviation s S_t in round t, the run has the
  guarantee of a constant clip S with z of standard deviation s S / Delta.

  If n clients come instead of clients_per_round, the distance of fraction_t
  from 1/2 is multiplied by n / clients_per_round. An update that is zeroed or
  not finite counts as neither below nor above the clip.

  Attributes:
    initial: S_0, > 0: one norm, or a norm for each layer. In a round, the clips
      of all layers are multiplied by the same factor. An update counts as below
      the clip if no layer's norm exceeds the clip of that layer. A low S_0 is
      less likely to ruin the model; privacy is the same for all S_0. The noise
      is proportional to the clip. If too much noise ruins the model, updates
      become large, and the clip and the noise grow further.
    quantile: gamma, in [0, 1]; in TFF, `target_unclipped_quantile`.
    rate: eta, > 0; in TFF, `clip_learning_rate`.
    fraction_weight: beta, > 0. The standard deviation of the noise in
      fraction_t is the standard deviation of the noise in the sum of the round,
      divided by beta clients_per_round S_t. With beta = 0.28, the noise of the
      updates is 1 % larger than without the indicator.
    until: index of the last round whose clip is adapted; later rounds have the
      clip of this round. If None, the clip is adapted in every round.

  Raises:
    TypeError: a value is not a number.
    ValueError: a value is out of range.

  >>> norm(AdaptiveClip(0.1)) / norm(0.1) < 1.01
  True
  """

  initial: Norms
  quantile: float = 0.5
  rate: float = 0.2
  fraction_weight: float = _FRACTION_WEIGHT
  until: Optional[int] = None

  def __post_init__(self):
    for clip in tree.flatten(self.initial) or [self.initial]:
      _checks.positive('initial', clip, 'TFF begins at 0.1')
    _checks.between('quantile', self.quantile, 0, 1, '0.5 is the median')
    # Values above these limits can only be mistakes.
    for name, most in {'rate': 10, 'fraction_weight': 100}.items():
      value = _checks.positive(name, getattr(self, name), 'take the default')
      _checks.between(name, value, 0, most, 'take the default')
    if self.until is not None:
      _checks.count('until', self.until, 'give the rounds of a warm-up')

  @property
  def indicator(self) -> float:
    """Magnitude of a record's indicator in the first round: beta S_0 / 2."""
    return self.fraction_weight / 2 * norm(self.initial)

  def next_clip(
    self,
    last: Any,
    released: Any,
    most: float,
    first: float,
    clip: Callable[..., Any],
  ) -> Any:
    """Returns S_{t+1}, the clip of the round after round t.

    The exponential functions of NumPy and TensorFlow differ in their last bits,
    but both libraries round products and sums of two numbers in the same way.
    So this function computes an exponential series from products and sums.

    Args:
      last: S_t, float64, number or scalar tensor.
      released: float64, number or scalar tensor: the released sum of indicators
        of round t, so that fraction_t = 1/2 + released / most.
      most: number that divides `released` in fraction_t, > 0, in the unit of
        `released`.
      first: S_0, one norm for all layers.
      clip: function (value, lower bound, upper bound) of NumPy or TensorFlow.
    """
    exponent = self.rate * (self.quantile - 0.5) - (self.rate / most) * released
    x = 2.0**-_SQUARINGS * clip(exponent, -_MOST_EXPONENT, _MOST_EXPONENT)
    factor = _SERIES[0] * x
    for coefficient in _SERIES[1:-1]:
      factor = (factor + coefficient) * x
    factor = factor + _SERIES[-1]
    for _ in range(_SQUARINGS):
      factor = factor * factor
    # PRIVACY: With an infinite clip a record would have no bound, and the noise
    # could be too small. The next clip stays within a constant factor of S_0.
    # Guard: adaptive_clip_test.test_scale_stays_finite.
    return clip(last * factor, first / _MOST_SCALE, first * _MOST_SCALE)


Clip = Union[AdaptiveClip, Norms]


def layers(l2_norm_clip: Clip) -> Norms:
  """Returns the clip of the first round: a norm, or a norm for each layer."""
  if isinstance(l2_norm_clip, AdaptiveClip):
    return l2_norm_clip.initial
  return l2_norm_clip


def norm(l2_norm_clip: Clip) -> float:
  """Returns the largest norm of a client's record in the first round.

    (sum_g clip_g^2)^(1/2) for clips by layer, times Delta for an adaptive clip

  Here g is a layer. The standard deviation of the noise is proportional to this
  norm. For an adaptive clip, the norm and the standard deviation are
  proportional to S_t in later rounds.
  """
  clips = tree.flatten(layers(l2_norm_clip))
  # PRIVACY: If the clip adapts, a record has the indicator besides the update.
  # Noise for the norm of the update alone would be too small for the record.
  # The norm includes the update and the indicator.
  # Guard: adaptive_clip_test.test_noise_of_a_run_is_larger_by_delta.
  if isinstance(l2_norm_clip, AdaptiveClip):
    clips = [*clips, l2_norm_clip.indicator]
  return math.hypot(*map(float, clips))


def record_factor(l2_norm_clip: Clip) -> float:
  """Returns the ratio of the largest norms of a record and of an update.

  The result is 1 for a constant clip, and Delta for an adaptive clip.
  """
  return norm(l2_norm_clip) / norm(layers(l2_norm_clip))


def indicator_count(l2_norm_clip: Clip) -> int:
  """Returns the number of indicators in a record: 0 or 1."""
  return int(isinstance(l2_norm_clip, AdaptiveClip))


def from_options(
  initial: Norms, *, quantile: Optional[float] = None, **others: Any
) -> Clip:
  """Returns an `AdaptiveClip` if a quantile is given, else the constant clip.

  Args:
    initial: clip of the first round: one norm > 0, or a norm for each layer.
    quantile: share of updates that should be below the clip, in [0, 1]; None
      for a constant clip.
    **others: `rate`, `fraction_weight` and `until` of `AdaptiveClip`; None
      for the default.

  Raises:
    TypeError: a value is not a number.
    ValueError: a value is out of range, or one of `others` is given without a
      quantile.
  """
  options = {name: value for name, value in others.items() if value is not None}
  if quantile is not None:
    return AdaptiveClip(initial, quantile, **options)
  for name, value in options.items():
    raise errors.value_error(
      f'clip_{name}={value}: needs a clip that adapts; give clip_quantile'
    )
  return initial


def to_json(l2_norm_clip: Clip) -> _files.Json:
  """Returns a clip as JSON: a number, a list of numbers, or an object."""
  if isinstance(l2_norm_clip, AdaptiveClip):
    return {**vars(l2_norm_clip), 'initial': to_json(l2_norm_clip.initial)}
  return list(l2_norm_clip) if isinstance(l2_norm_clip, tuple) else l2_norm_clip


def from_json(value: _files.Json) -> Clip:
  """Returns the clip from the result of `to_json`."""
  if isinstance(value, dict):
    return AdaptiveClip(**{**value, 'initial': from_json(value['initial'])})
  return tuple(value) if isinstance(value, list) else value
