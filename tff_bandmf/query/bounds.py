"""The bounds of a clipped update, its groups, and the clip of the next round.

| symbol  | name here    | meaning                                            |
|---------|--------------|----------------------------------------------------|
| x_g     |              | leaves of group g of a record                      |
| clip_g  | `clips`      | bound of |x_g|_2                                   |
| d_g     | `dimensions` | coordinates of group g                             |
| r_g     | `radii`      | norm to which x_g is scaled down before rounding   |
| h       | `step`       | unit of the integers                               |
| S_t     |              | adaptive clip of round t, see `clips`              |
| beta    |              | weight of the indicator of an adaptive clip        |
"""

from __future__ import annotations

import dataclasses
import fractions
import functools
import math
from typing import Any, Callable, Optional, TypeVar

import numpy as np
import tree

from tff_bandmf import _checks, errors
from tff_bandmf import clips as clips_lib
from tff_bandmf.noise import lattice

# Squares of numbers outside this range can underflow or overflow float64.
_LEAST_CLIP, _MOST_CLIP = 2.0**-300, 2.0**300
# An adaptive clip stays within this factor of its first value, so it is finite.
_MOST_SCALE = 2.0**64
# Past this exponent the clip is at an end of its range anyway.
_MOST_EXPONENT = 2 * math.log(_MOST_SCALE)
FLOATS = ('bfloat16', 'float16', 'float32', 'float64')
# Coefficients of the exponential series, and how often its sum is squared.
_SERIES = [1 / math.factorial(k) for k in range(16, -1, -1)]
_SQUARINGS = 8

# Nested structure of arrays or of tensors; or of `tf.TensorSpec`.
Record = Any
_Kind = TypeVar('_Kind', bound='Bounds')


def record_dimension(record_specs: Record) -> int:
  """Returns the number of coordinates of a record.

  Args:
    record_specs: nested structure of arrays or of `tf.TensorSpec`, with static
      shapes and float types.

  Raises:
    TypeError: a leaf is not a float; the message names it.
    ValueError: a leaf has no static shape, or the record has no coordinate.
  """
  dimension = 0
  for path, spec in tree.flatten_with_path(record_specs):
    name = '.'.join(map(str, path)) or 'record'
    if spec.dtype.name not in FLOATS:
      raise errors.type_error(
        f'update[{name}].dtype={spec.dtype.name}: must be a float type; noise '
        'cannot protect integers; leave the variable out of the update'
      )
    if None in _shape(spec):
      raise errors.value_error(
        f'update[{name}].shape={spec.shape}: must be static; give every '
        'dimension'
      )
    dimension += _size(spec)
  if not dimension:
    raise errors.value_error(
      f'update={record_specs}: holds no coordinate; aggregate the updates of a '
      'model'
    )
  return dimension


@dataclasses.dataclass(frozen=True)
class Bounds:
  """Bounds of a record that `clip` turns into int32 multiples of a step h.

  A record x becomes

    0                                        if x is not finite
    0                                        if its norm is above zeroing_norm
    round_h(x_g * min(1, r_g / |x_g|_2))     else, for every group of leaves g
    r_g = clip_g - d_g h^2 / (24 clip_g) - 2 h,   h = l2_norm / 2^clip_bits

  Rounding lengthens x_g by about d_g h^2 / (24 clip_g). The radius r_g leaves
  room for that. If a rounded record is too long all the same, its entries are
  truncated towards zero instead. Near the coarsest step that is allowed,
  clip_g = 2 d_g^(1/2) h, entries below h / 2 round to 0: a record that consists
  of many small entries of one size is lost.

  **Formal guarantee.** Assumption: `scale` in `clip` is 1, or a function of
  earlier releases alone. Then for every record, of any float type and with any
  values (NaN and infinity too), the integers q that `clip` returns satisfy

    sum_{i in g} q_i^2 <= (clip_g / h)^2   for every group g,
    sum_i q_i^2 <= 4^clip_bits             over all groups, the indicator too.

  So two cohorts that differ by the presence of one client have sums that differ
  by at most 2^clip_bits steps in L2 norm. The first line is tested at run time
  on the integers themselves, in exact arithmetic (`_fits`); the second follows
  from `squared_bounds`. No bound depends on another record, and a record is
  zeroed by a constant rule: zeroing costs no privacy and raises no sensitivity.
  Source: docs/reference/arithmetic.md takes this norm as its bound of a record.

  If the clip adapts, clip_g, r_g and h of a round are their values of the first
  round times the scale of the round. A record then has one more group, its
  indicator: one coordinate, whose clip is beta / 2 times the clip of all other
  groups. The indicator is plus its clip for a record below the clip, minus its
  clip for a record that was clipped, and 0 for a record that becomes zero.

  `clipping.Clipping` and `graph_clipping.GraphClipping` have `clip`. Make them
  with `of`.

  Attributes:
    clips: clip_g of every group, floats > 0 in the unit of the records; the
      indicator's is last.
    dimensions: d_g of every group, integers >= 0.
    groups: index of the group of every leaf, in the order of dm-tree.
    clip_bits: integer; the clip of all groups together is 2^clip_bits steps.
    zeroing_norm: float > 0 in the unit of the records; a record of larger norm
      becomes zero. None zeroes no finite record.
    zeroing_norm_order: order of the norm that `zeroing_norm` bounds, over all
      leaves: 2, or math.inf for the largest magnitude.
    adaptive: rule by which the clip moves; None for a constant clip.
  """

  clips: tuple[float, ...]
  dimensions: tuple[int, ...]
  groups: tuple[int, ...]
  clip_bits: int
  zeroing_norm: Optional[float] = None
  zeroing_norm_order: float = math.inf
  adaptive: Optional[clips_lib.AdaptiveClip] = None

  def __post_init__(self):
    # PRIVACY: with more bits float64 would round sums of squares, and a record
    # above the clip could pass. Such a lattice is refused.
    # Guard: query_test.test_norm_is_compared_exactly.
    if self.clip_bits > lattice.MOST_CLIP_BITS:
      raise errors.value_error(
        f'clip_bits={self.clip_bits}: must be at most '
        f'{lattice.MOST_CLIP_BITS}; give those of a noise.Lattice'
      )
    for clip, dimension, bound in zip(
      self.clips, self.dimensions, self.squared_bounds
    ):
      least = max(2 * math.sqrt(dimension), 4)
      # This check protects accuracy, not privacy: rounding would leave little
      # of such a group, and the group would get as much noise as any other.
      if dimension and bound < least**2:
        raise errors.value_error(
          f'l2_norm_clip={clip}: is {math.sqrt(bound):.3g} steps of the '
          f'lattice for {dimension} coordinates, which rounding would empty; '
          f'it must be {least:.3g}; raise the clip of that layer, or use one '
          'clip for all'
        )

  @classmethod
  def of(
    cls: type[_Kind],
    l2_norm_clip: clips_lib.Clip,
    record_specs: Record,
    clip_bits: int,
    zeroing_norm: Optional[float] = None,
    zeroing_norm_order: float = math.inf,
  ) -> _Kind:
    """Returns the clipping of records that have the given shapes and types.

    Args:
      l2_norm_clip: number > 0, which bounds the norm over all leaves; or a
        nested structure of such numbers that matches the outer containers of
        `record_specs`: each number bounds the norm over the leaves below it; or
        an `AdaptiveClip`.
      record_specs: nested structure of arrays or of `tf.TensorSpec`, of float
        types.
      clip_bits: integer; the clip is 2^clip_bits steps, see `noise.Lattice`.
      zeroing_norm: the attribute of this name.
      zeroing_norm_order: the attribute of this name.

    Raises:
      TypeError: a bound is not a number.
      ValueError: a bound is out of range, `l2_norm_clip` does not fit, or a
        group has so small a clip that rounding would empty it.
    """
    bounds = []
    layers = clips_lib.layers(l2_norm_clip)

    def group(clip, part):
      bounds.append(clip)
      return tree.map_structure(lambda _: len(bounds) - 1, part)

    try:
      groups = tree.flatten(
        tree.map_structure_up_to(layers, group, layers, record_specs)
      )
    except (TypeError, ValueError):
      groups = []
    specs = tree.flatten(record_specs)
    # PRIVACY: `tree` silently passes over leaves that have no clip, so they
    # would be released unbounded. Every leaf must have a group.
    # Guard: query_test.test_clips_that_fit_no_layers_are_refused.
    if len(groups) != len(specs):
      raise errors.value_error(
        f'l2_norm_clip={layers}: must be a number, or have the outer structure '
        'of the update; give one clip for all leaves, or one for each layer'
      )
    check_bounds(l2_norm_clip, zeroing_norm, zeroing_norm_order)
    dimensions = [0] * len(bounds)
    for spec, i in zip(specs, groups):
      dimensions[i] += _size(spec)
    adaptive = layers is not l2_norm_clip
    if adaptive:
      bounds.append(l2_norm_clip.indicator)
      dimensions.append(1)
    return cls(
      tuple(map(float, bounds)),
      tuple(dimensions),
      tuple(groups),
      clip_bits,
      zeroing_norm,
      zeroing_norm_order,
      l2_norm_clip if adaptive else None,
    )

  @property
  def l2_norm(self) -> float:
    """The largest L2 norm of a clipped record, in its unit, at scale 1."""
    return clips_lib.norm(self.clips)

  @property
  def step(self) -> float:
    """The step h, in the unit of the records, at scale 1."""
    return math.ldexp(self.l2_norm, -self.clip_bits)

  @functools.cached_property
  def squared_bounds(self) -> list[int]:
    """The largest sum of q^2 that each group may have, in squared steps.

    PRIVACY: bounds that were rounded up would let a record of several groups
    exceed the clip. Fractions rounded down add up to at most 4^clip_bits.
    Guard: query_test.test_bounds_of_layers_add_up_to_at_most_the_clip.
    """
    squares = [fractions.Fraction(clip) ** 2 for clip in self.clips]
    total = sum(squares)
    return [math.floor(each * 4**self.clip_bits / total) for each in squares]

  @property
  def indicator_steps(self) -> int:
    """Magnitude of the indicator of a record, in steps.

    PRIVACY: an indicator above its bound would raise the sensitivity beyond the
    clip. Rounded down, it stays within 2^clip_bits steps with the other groups.
    Guards:
    adaptive_clip_test.test_client_moves_all_rounds_by_at_most_the_sensitivity,
    adaptive_clip_test.test_audit_finds_noise_without_delta.
    """
    return math.isqrt(self.squared_bounds[-1])

  @property
  def radii(self) -> list[float]:
    """r_g of each group, in the unit of the records, at scale 1."""
    return [
      clip - dimension * self.step**2 / (24 * clip) - 2 * self.step
      for clip, dimension in zip(self.clips, self.dimensions)
    ]

  def inverse_step(self, scale: Any = 1.0) -> Any:
    """Returns 1 / h for a scale, which is a number or a scalar tensor.

    TensorFlow's optimiser turns a division by a constant into a product with
    its inverse. So this inverse is what NumPy multiplies by, too.
    """
    step = self.step * scale
    with np.errstate(divide='ignore'):
      return 1.0 / (np.float64(step) if isinstance(step, float) else step)

  @functools.cached_property
  def initial(self) -> float:
    """The adaptive clip of the first round, without its indicator."""
    return clips_lib.norm(self.clips[:-1])

  def fraction(self, released: Any, clients_per_round: float) -> Any:
    """Returns the share of updates below the clip, with the noise of a round.

    Args:
      released: float64, number or scalar tensor: the released sum of
        indicators, in steps.
      clients_per_round: divisor of the mean, > 0.
    """
    return 0.5 + (0.5 / (self.indicator_steps * clients_per_round)) * released

  def next_clip(
    self,
    last: Any,
    released: Any,
    clients_per_round: float,
    clip: Callable[..., Any] = np.clip,
  ) -> Any:
    """Returns S_{t+1}, the adaptive clip after a round.

    NumPy and TensorFlow round alike in all that this function does: products
    and sums of two numbers. Their exponentials differ in the last bits.

    Args:
      last: S_t, float64, number or scalar tensor.
      released: see `fraction`.
      clients_per_round: divisor of the mean, > 0.
      clip: function (value, least, most).
    """
    rule = self.adaptive
    assert rule is not None
    most = 2.0 * self.indicator_steps * clients_per_round
    exponent = rule.rate * (rule.quantile - 0.5) - (rule.rate / most) * released
    x = 2.0**-_SQUARINGS * clip(exponent, -_MOST_EXPONENT, _MOST_EXPONENT)
    factor = _SERIES[0] * x
    for coefficient in _SERIES[1:-1]:
      factor = (factor + coefficient) * x
    factor = factor + _SERIES[-1]
    for _ in range(_SQUARINGS):
      factor = factor * factor
    # PRIVACY: an infinite or NaN clip would turn records into integers that no
    # norm bounds. The clip stays within a finite factor of its first value.
    # Guard: adaptive_clip_test.test_scale_stays_finite.
    return clip(
      last * factor, self.initial / _MOST_SCALE, self.initial * _MOST_SCALE
    )

  def scale(self, l2_norm_clip: Any, maximum: Callable[..., Any] = max) -> Any:
    """Returns the scale of a round, S_t / S_0.

    Args:
      l2_norm_clip: S_t, float64, number or scalar tensor.
      maximum: function of two numbers. The product is compared with 0, which
        changes nothing, since TensorFlow's optimiser would otherwise multiply
        constants of two products first, and round otherwise.
    """
    return maximum(l2_norm_clip * (1.0 / self.initial), 0.0)


def _shape(spec: Any) -> tuple[Optional[int], ...]:
  """Returns the sizes of an array, or of a `tf.TensorSpec`."""
  # TensorFlow has shapes of unknown rank.
  return (None,) if getattr(spec.shape, 'rank', 0) is None else (*spec.shape,)


def _size(spec: Any) -> int:
  return math.prod(size or 0 for size in _shape(spec))


def check_bounds(
  l2_norm_clip: clips_lib.Clip,
  zeroing_norm: Optional[float],
  zeroing_norm_order: float = math.inf,
) -> None:
  """Raises if the bounds are invalid for every record; see `Bounds.of`.

  Raises:
    TypeError: a bound is not a number.
    ValueError: a bound is out of range.
  """
  for clip in tree.flatten(clips_lib.layers(l2_norm_clip)):
    _checks.positive(
      'l2_norm_clip',
      clip,
      'one that adapts is a tff_bandmf.AdaptiveClip',
    )
    if not _LEAST_CLIP <= float(clip) <= _MOST_CLIP:
      raise errors.value_error(
        f'l2_norm_clip={clip}: must be in [2^-300, 2^300]; change the unit of '
        'the updates'
      )
  if zeroing_norm is not None:
    _checks.positive(
      'zeroing_norm',
      zeroing_norm,
      'it is a constant: an adaptive one is a release that costs privacy '
      'of its own',
    )
  if zeroing_norm_order not in (2, math.inf):
    raise errors.value_error(
      f'zeroing_norm_order={zeroing_norm_order}: must be 2 or inf; inf '
      'compares the largest magnitude'
    )
