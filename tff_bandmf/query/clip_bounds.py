"""The bounds of the norm of a clipped update, by group of its leaves.

An update of a client is a record. Clipping bounds the L2 norm of each group of
the record, and then rounds the record to integers.

| symbol  | name here    | meaning                                            |
|---------|--------------|----------------------------------------------------|
| group   | `groups`     | leaves of a record that share one clip             |
| x_g     |              | the leaves of group g of a record, as a vector     |
| clip    |              | clipping norm of all groups together               |
| clip_g  | `clips`      | clipping norm of group g, a bound of |x_g|_2       |
| d_g     | `dimensions` | number of coordinates of group g                   |
| r_g     | `radii`      | norm to which x_g is scaled down before rounding   |
| h       | `step`       | unit of the integers; clip is 2^clip_bits h        |
| round_h |              | rounding to multiples of h                         |
| q       |              | the integers: clipped record divided by h          |
| S_t     |              | adaptive clip of round t, see `AdaptiveClip`       |
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

from tff_bandmf import _checks, clipping_norm, errors
from tff_bandmf.noise import lattice

# Squares of numbers outside this range can underflow or overflow float64.
_CLIPS = 2.0**-300, 2.0**300
FLOATS = ('bfloat16', 'float16', 'float32', 'float64')

# Nested structure of arrays, of tensors, or of `tf.TensorSpec`.
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
        f'update[{name}].dtype={spec.dtype.name}: must be a float type of at '
        'most 64 bits, since noise cannot protect other numbers; leave the '
        'variable out of the update, or cast longer floats to float64'
      )
    if None in _shape(spec):
      raise errors.value_error(
        f'update[{name}].shape={spec.shape}: must be static; give all sizes'
      )
    dimension += _size(spec)
  if not dimension:
    raise errors.value_error(
      f'update={record_specs}: holds no coordinate; give updates of a model'
    )
  return dimension


@dataclasses.dataclass(frozen=True)
class Bounds:
  """The bounds of a record.

  The method `clip` of the subclasses `clipping.Clipping` and
  `graph_clipping.GraphClipping` returns int32 multiples of the step h. A record
  x becomes

    0                                        if x is not finite
    0                                        if its norm is above zeroing_norm
    round_h(x_g * min(1, r_g / |x_g|_2))     else, for every group g

  with r_g = clip_g - d_g h^2 / (24 clip_g) - 2 h,   h = l2_norm / 2^clip_bits.

  Rounding lengthens x_g by about d_g h^2 / (24 clip_g), which the radius r_g
  takes into account. If a rounded record is too long nevertheless, its entries
  are truncated towards zero instead. Entries below h / 2 become 0. So with the
  largest step that is allowed, clip_g / (2 d_g^(1/2)), a group of equal entries
  becomes zero if its norm is below clip_g / 4.

  **Formal guarantee.** Assumption: the argument `scale` of `clip` is 1, or
  depends only on earlier releases. Then for every record, of any float type and
  with any values (also NaN and infinity), the integers q that `clip` returns
  satisfy

    sum_{i in g} q_i^2 <= (clip_g / h)^2   for every group g,
    sum_i q_i^2 <= 4^clip_bits             over all groups and the indicator.

  So two cohorts that differ by the presence of one client have sums that differ
  by at most 2^clip_bits steps in L2 norm. At run time `clip` compares the sums
  of the first line with `squared_bounds`, in exact arithmetic. The second line
  follows, since `squared_bounds` add up to at most 4^clip_bits. The bounds do
  not depend on other records. The rule that zeroes a record is constant, so
  zeroing costs no privacy and does not raise the sensitivity. Source:
  docs/reference/arithmetic.md, whose proof assumes this bound of the L2 norm.

  If the clip adapts, clip_g, r_g and h of a round are their values of the first
  round times the scale of the round. A record then has one more group, its
  indicator: one coordinate, whose clip is beta / 2 times the clip of all other
  groups together. The indicator is `indicator_steps` if no group of the record
  was scaled down, -`indicator_steps` if a group was scaled down, and 0 if the
  record is not finite or its norm is above zeroing_norm.

  The method `from_clip` creates instances of the subclasses.

  Attributes:
    clips: clip_g of every group, floats > 0 in the unit of the records. The
      clip of the indicator is last.
    dimensions: d_g of every group, integers >= 0.
    groups: index of the group of every leaf, in the order of dm-tree.
    clip_bits: integer; the clip of all groups together is 2^clip_bits steps.
    zeroing_norm: float > 0 in the unit of the records; a record whose norm
      exceeds this number becomes zero. None means no limit.
    zeroing_norm_order: order of the norm that `zeroing_norm` bounds, over all
      leaves: 2, or math.inf for the largest magnitude.
    adaptive: rule that changes the clip; None for a constant clip.
  """

  clips: tuple[float, ...]
  dimensions: tuple[int, ...]
  groups: tuple[int, ...]
  clip_bits: int
  zeroing_norm: Optional[float] = None
  zeroing_norm_order: float = math.inf
  adaptive: Optional[clipping_norm.AdaptiveClip] = None

  def __post_init__(self):
    # PRIVACY: If clip_bits was above `lattice.MOST_CLIP_BITS`, float64 would
    # round sums of squares, and a record with a norm above the clip could pass
    # the comparison with `squared_bounds`. A larger clip_bits is refused.
    # Guard: clipping_test.test_bounds_are_integers_of_float64.
    if self.clip_bits > lattice.MOST_CLIP_BITS:
      raise errors.value_error(
        f'clip_bits={self.clip_bits}: must be at most '
        f'{lattice.MOST_CLIP_BITS}; give clip_bits of a noise.Lattice'
      )
    groups = zip(self.clips, self.dimensions, self.squared_bounds)
    for clip, dimension, bound in groups:
      least = max(2 * math.sqrt(dimension), 4)
      # This check protects accuracy and not privacy: if the clip of a group had
      # fewer than `least` steps, rounding would make many entries zero.
      if dimension and bound < least**2:
        raise errors.value_error(
          f'l2_norm_clip={clip}: is {math.sqrt(bound):.3g} steps of the '
          f'lattice, and must be at least {least:.3g} for {dimension} '
          'coordinates, or rounding would empty the layer; raise the clip of '
          'the layer, or use one clip for all'
        )

  @classmethod
  def from_clip(
    cls: type[_Kind],
    l2_norm_clip: clipping_norm.Clip,
    record_specs: Record,
    clip_bits: int,
    zeroing_norm: Optional[float] = None,
    zeroing_norm_order: float = math.inf,
  ) -> _Kind:
    """Returns the bounds of records with the given shapes and types.

    Args:
      l2_norm_clip: number > 0, which bounds the norm over all leaves; or a
        nested structure of numbers > 0 that matches the outer containers of
        `record_specs`, where each number bounds the norm over the leaves below
        it; or an `AdaptiveClip`.
      record_specs: nested structure of arrays or of `tf.TensorSpec`, of float
        types.
      clip_bits: integer; the clip is 2^clip_bits steps, see `noise.Lattice`.
      zeroing_norm: float > 0; a record whose norm exceeds this number becomes
        zero. None means no limit.
      zeroing_norm_order: order of the norm that `zeroing_norm` bounds: 2, or
        math.inf for the largest magnitude.

    Raises:
      TypeError: a bound is not a number.
      ValueError: a bound is out of range, the structure of `l2_norm_clip` does
        not match, or the clip of a group is so small that rounding would make
        its entries zero.
    """
    bounds = []
    layers = clipping_norm.layers(l2_norm_clip)

    def group(clip, part):
      bounds.append(clip)
      return tree.map_structure(lambda _: len(bounds) - 1, part)

    try:
      grouped = tree.map_structure_up_to(layers, group, layers, record_specs)
      groups = tree.flatten(grouped)
    except (TypeError, ValueError):
      groups = []
    specs = tree.flatten(record_specs)
    # PRIVACY: `tree` silently skips leaves that have no clip. These leaves
    # would have no bound, and the noise could be too small. If a leaf has no
    # group, the clip is refused.
    # Guard: clipping_test.test_clips_that_fit_no_layers_are_refused.
    if len(groups) != len(specs):
      raise errors.value_error(
        f'l2_norm_clip={layers}: must be a number, or have the outer structure '
        'of the update; give one clip for all leaves, or one for each layer'
      )
    check_bounds(l2_norm_clip, zeroing_norm, zeroing_norm_order)
    dimensions = [0] * len(bounds)
    for spec, i in zip(specs, groups):
      dimensions[i] += _size(spec)
    adaptive = None if layers is l2_norm_clip else l2_norm_clip
    if adaptive is not None:
      bounds.append(adaptive.indicator)
      dimensions.append(1)
    parts = tuple(map(float, bounds)), tuple(dimensions), tuple(groups)
    return cls(*parts, clip_bits, zeroing_norm, zeroing_norm_order, adaptive)

  @property
  def l2_norm(self) -> float:
    """Largest L2 norm of a clipped record, in its unit, at scale 1."""
    return clipping_norm.norm(self.clips)

  @property
  def step(self) -> float:
    """h, the step in the unit of the records, at scale 1."""
    return math.ldexp(self.l2_norm, -self.clip_bits)

  @functools.cached_property
  def squared_bounds(self) -> list[int]:
    """Largest sum of q_i^2 of each group, in squared steps.

    PRIVACY: The noise is for records of a squared norm of at most 4^clip_bits.
    If these bounds were rounded up, their sum, and so a record, could exceed
    this limit. The exact bounds are fractions, and they are rounded down.
    Guard: clipping_test.test_bounds_of_layers_add_up_to_at_most_the_clip.
    """
    squares = [fractions.Fraction(clip) ** 2 for clip in self.clips]
    total = sum(squares)
    return [math.floor(each * 4**self.clip_bits / total) for each in squares]

  @property
  def indicator_steps(self) -> int:
    """Magnitude of the indicator of a record, in steps.

    PRIVACY: The noise is for records of a norm of at most 2^clip_bits steps,
    and the indicator is a part of the record. With an indicator above its
    bound, the record could exceed this limit. The magnitude is rounded down.
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
    """Returns 1 / h at a scale, a number or a scalar tensor.

    TensorFlow's optimiser multiplies by the inverse of a constant instead of
    dividing by the constant. NumPy does the same here, to get the same bits.
    """
    step = self.step * scale
    with np.errstate(divide='ignore'):
      return 1.0 / (np.float64(step) if isinstance(step, float) else step)

  @functools.cached_property
  def initial(self) -> float:
    """S_0, the adaptive clip of the first round, without the indicator."""
    return clipping_norm.norm(self.clips[:-1])

  def adapted(
    self,
    last: Any,
    released: Any,
    clients_per_round: float,
    t: Any,
    clip: Callable[..., Any] = np.clip,
    where: Callable[..., Any] = np.where,
  ) -> dict[str, Any]:
    """Returns the values of an adaptive clip that round t releases.

    Args:
      last: S_t, float64, number or scalar tensor.
      released: float64, number or scalar tensor: the released sum of indicators
        of round t, in steps.
      clients_per_round: divisor of the mean, > 0.
      t: index of the round, number or scalar tensor.
      clip: function (value, lower bound, upper bound) of NumPy or TensorFlow.
      where: function (condition, value, other value) of NumPy or TensorFlow.

    Returns:
      `l2_norm_clip`, S_{t+1}, see `clipping_norm.AdaptiveClip.next_clip`; and
      `fraction`, the share of updates below S_t, with noise.
    """
    adaptive = self.adaptive
    assert adaptive is not None
    most = 2.0 * self.indicator_steps * clients_per_round
    following = adaptive.next_clip(last, released, most, self.initial, clip)
    if adaptive.until is not None:
      following = where(t < adaptive.until, following, last)
    fraction = 0.5 + (1.0 / most) * released
    return {'l2_norm_clip': following, 'fraction': fraction}

  def scale(self, l2_norm_clip: Any, maximum: Callable[..., Any] = max) -> Any:
    """Returns the scale of a round, S_t / S_0.

    Args:
      l2_norm_clip: S_t, float64, number or scalar tensor.
      maximum: function that returns the larger of two numbers. The scale is the
        maximum of S_t (1 / S_0) and 0. The product is never negative, so the
        maximum is the product itself. Without the maximum, TensorFlow's
        optimiser could merge the constant 1 / S_0 with the constant of a later
        product, and TensorFlow and NumPy would round differently.
    """
    return maximum(l2_norm_clip * (1.0 / self.initial), 0.0)


def _shape(spec: Any) -> tuple[Optional[int], ...]:
  """Returns the sizes of an array or of a `tf.TensorSpec`."""
  # A shape in TensorFlow can have an unknown rank.
  return (None,) if getattr(spec.shape, 'rank', 0) is None else (*spec.shape,)


def _size(spec: Any) -> int:
  return math.prod(size or 0 for size in _shape(spec))


def check_bounds(
  l2_norm_clip: clipping_norm.Clip,
  zeroing_norm: Optional[float],
  zeroing_norm_order: float = math.inf,
) -> None:
  """Raises if a clipping or zeroing norm is invalid for all records.

  Args:
    l2_norm_clip: number > 0, nested structure of such numbers, or
      `AdaptiveClip`.
    zeroing_norm: float > 0, or None.
    zeroing_norm_order: 2 or math.inf.

  Raises:
    TypeError: a bound is not a number.
    ValueError: a bound is out of range.
  """
  for clip in tree.flatten(clipping_norm.layers(l2_norm_clip)):
    remedy = 'change the unit of updates; tff_bandmf.AdaptiveClip is a clip too'
    _checks.between('l2_norm_clip', clip, *_CLIPS, remedy)
  if zeroing_norm is not None:
    remedy = 'it is constant, since an adaptive zeroing norm would cost privacy'
    _checks.positive('zeroing_norm', zeroing_norm, remedy)
  if zeroing_norm_order not in (2, math.inf):
    raise errors.value_error(
      f'zeroing_norm_order={zeroing_norm_order}: must be 2 or inf; give one'
    )
