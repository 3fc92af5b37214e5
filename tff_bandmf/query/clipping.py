"""Clips one client's update and rounds it to integers of bounded norm.

An update ("record") is a nested structure of floats. `Clipping` turns it into
int32 multiples of a step h, whose L2 norm is bounded in exact arithmetic. Sums
of such records do not depend on their order, and one client moves a sum by at
most the clip.

  clipping = Clipping.of(0.5, record_specs, clip_bits=20)
  steps = clipping.clip(update)  # int32; clipping.step is their unit

| symbol  | name here    | meaning                                            |
|---------|--------------|----------------------------------------------------|
| x_g     |              | leaves of group g of a record                      |
| clip_g  | `clips`      | bound of |x_g|_2                                   |
| d_g     | `dimensions` | coordinates of group g                             |
| r_g     | `radii`      | norm to which x_g is scaled down before rounding   |
| h       | `step`       | unit of the integers                               |
"""

from __future__ import annotations

import collections
import dataclasses
import fractions
import functools
import math
from typing import Any, Optional, Union

import numpy as np
import tensorflow as tf
import tree

from tff_bandmf import _checks, errors
from tff_bandmf import clips as clips_lib
from tff_bandmf.noise import lattice

# Squares of numbers outside this range can underflow or overflow float64.
_LEAST_CLIP, _MOST_CLIP = 2.0**-300, 2.0**300

# Nested structure of tensors, of arrays, or of `tf.TensorSpec`.
Tensors = Any
_Scalar = Union[float, tf.Tensor]


def record_dimension(record_specs: Tensors) -> int:
  """Returns the number of coordinates of a record.

  Args:
    record_specs: nested structure of `tf.TensorSpec` with static shapes and
      float types.

  Raises:
    TypeError: a leaf is not a float; the message names it.
    ValueError: a leaf has no static shape, or the record has no coordinate.
  """
  dimension = 0
  for path, spec in tree.flatten_with_path(record_specs):
    name = '.'.join(map(str, path)) or 'record'
    if not spec.dtype.is_floating:
      raise errors.type_error(
        f'update[{name}].dtype={spec.dtype.name}: must be a float type; noise '
        'cannot protect integers; leave the variable out of the update'
      )
    if not spec.shape.is_fully_defined():
      raise errors.value_error(
        f'update[{name}].shape={spec.shape}: must be static; give every '
        'dimension'
      )
    dimension += int(np.prod(spec.shape.as_list(), dtype=np.int64))
  if not dimension:
    raise errors.value_error(
      f'update={record_specs}: holds no coordinate; aggregate the updates of a '
      'model'
    )
  return dimension


@dataclasses.dataclass(frozen=True)
class Clipping:
  """Turns one record into int32 multiples of a step h, of bounded norm.

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
  from `_squared_bounds`. No bound depends on another record, and a record is
  zeroed by a constant rule: zeroing costs no privacy and raises no sensitivity.
  Source: docs/reference/arithmetic.md takes this norm as its bound of a record.

  If the clip adapts, clip_g, r_g and h of a round are their values of the first
  round times the scale of the round. A record then has one more group, its
  indicator: one coordinate, whose clip is beta / 2 times the clip of all other
  groups. The indicator is plus its clip for a record below the clip, minus its
  clip for a record that was clipped, and 0 for a record that becomes zero.

  Make a `Clipping` with `Clipping.of`.

  Attributes:
    clips: clip_g of every group, floats > 0 in the unit of the records; the
      indicator's is last.
    dimensions: d_g of every group, integers >= 0.
    groups: index of the group of every leaf, in `tf.nest.flatten`'s order.
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
      self.clips, self.dimensions, self._squared_bounds
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
    cls,
    l2_norm_clip: clips_lib.Clip,
    record_specs: Tensors,
    clip_bits: int,
    zeroing_norm: Optional[float] = None,
    zeroing_norm_order: float = math.inf,
  ) -> Clipping:
    """Returns the clipping of records that have the given shapes and types.

    Args:
      l2_norm_clip: number > 0, which bounds the norm over all leaves; or a
        nested structure of such numbers that matches the outer containers of
        `record_specs`: each number bounds the norm over the leaves below it; or
        an `AdaptiveClip`.
      record_specs: nested structure of `tf.TensorSpec` of float types.
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
      return tf.nest.map_structure(lambda _: len(bounds) - 1, part)

    try:
      groups = tf.nest.flatten(
        tree.map_structure_up_to(layers, group, layers, record_specs)
      )
    except (TypeError, ValueError):
      groups = []
    specs = tf.nest.flatten(record_specs)
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
      dimensions[i] += spec.shape.num_elements()
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
  def _squared_bounds(self) -> list[int]:
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
    return math.isqrt(self._squared_bounds[-1])

  def clip(self, record: Tensors, scale: _Scalar = 1.0) -> Tensors:
    """Returns the record clipped and rounded, or zero.

    A record that is too long after rounding is truncated towards zero instead.
    The magnitudes of a truncated record are at most those of the scaled float64
    record, whose norm is at most
    r_g (1 + d_g 2^-52) <= clip_g - 2 h (1 - d_g 2^(clip_bits - 53)). For
    d_g up to 2^22 that is below clip_g whatever the order of summation, so a
    truncated record fits. The code tests it all the same, and a record that
    fails the test becomes zero.

    PRIVACY: the noise is too small for a record longer than the clip. Every
    record is measured after rounding, and truncated or zeroed if too long.
    Guards: query_test.test_norm_is_at_most_the_clip_in_every_dtype,
    test_crafted_record_that_rounding_makes_longer_is_cut,
    test_record_that_is_not_finite_becomes_zero and
    test_norm_of_clips_by_layer_is_at_most_theirs.

    Args:
      record: nested structure of float tensors.
      scale: factor of the bounds and the step in this round, float64 > 0.

    Returns:
      The record as a structure of int32 tensors, in steps. For an adaptive clip
      a pair of the record and its indicator, a scalar int32 in steps.
    """
    finite, above, scales = self._judge(record, scale)
    factors = tf.unstack(
      tf.where(finite & ~above, scales / (self.step * scale), 0.0),
      len(self.clips),
    )
    # A factor of 0 makes NaN and infinity 0 too.
    scaled = [
      tf.math.multiply_no_nan(tf.cast(leaf, tf.float64), factors[group])
      for leaf, group in zip(tf.nest.flatten(record), self.groups)
    ]
    rounded = [tf.round(leaf) for leaf in scaled]

    def whole(leaves):
      return [tf.cast(leaf, tf.int32) for leaf in leaves]

    def cut():
      leaves = [tf.sign(leaf) * tf.floor(tf.abs(leaf)) for leaf in scaled]
      is_in_range = tf.cast(self._fits(leaves), tf.float64)
      return whole(
        [tf.math.multiply_no_nan(leaf, is_in_range) for leaf in leaves]
      )

    clipped = tf.nest.pack_sequence_as(
      record, tf.cond(self._fits(rounded), lambda: whole(rounded), cut)
    )
    if self.adaptive is None:
      return clipped
    # PRIVACY: the indicator of a zeroed record would tell that its client took
    # part. The indicator is 0 too, so that such a client adds nothing.
    # Guard: adaptive_clip_test.test_record_that_becomes_zero_says_nothing.
    sign = tf.where(tf.reduce_any(scales < 1.0), -1, 1)
    sign *= tf.cast(finite & ~above, tf.int32)
    return clipped, self.indicator_steps * sign

  def zeros(self, record_specs: Tensors) -> Tensors:
    """Returns zeros in the structure and types that `clip` returns."""
    zeros = tf.nest.map_structure(
      lambda spec: tf.zeros(spec.shape, tf.int32), record_specs
    )
    return zeros if self.adaptive is None else (zeros, tf.constant(0, tf.int32))

  def _fits(self, leaves: list[tf.Tensor]) -> tf.Tensor:
    """Returns whether every group of a record is within its bound.

    PRIVACY: a rounded sum of squares could hide a record above the clip. Here
    the squares are of integers, so that a computed sum of at most 2^53, such as
    the bound, is exact in every order of summation.
    Guard: query_test.test_norm_is_compared_exactly.

    Args:
      leaves: integers in float64, in steps.
    """
    return tf.reduce_all(
      self._squares(leaves) <= tf.constant(self._squared_bounds, tf.float64)
    )

  def _squares(self, leaves: list[tf.Tensor]) -> tf.Tensor:
    """Returns |x_g|^2 of every group, [groups] float64."""
    # `l2_loss` needs no array of squares; its factor 1 / 2 is exact.
    halves = [tf.nn.l2_loss(leaf) for leaf in leaves]
    return 2.0 * tf.math.unsorted_segment_sum(
      tf.stack(halves), self.groups, len(self.clips)
    )

  def describe(
    self, record: Tensors, scale: _Scalar = 1.0
  ) -> collections.OrderedDict[str, tf.Tensor]:
    """Returns how `clip` changed one record: int32 scalars, 0 or 1.

    At most one scalar is 1. The scalars have no noise, so the guarantee does
    not cover their release.
    """
    finite, above, scales = self._judge(record, scale)
    below = finite & ~above
    return collections.OrderedDict(
      (name, tf.cast(flag, tf.int32))
      for name, flag in [
        ('non_finite_count', ~finite),
        ('zeroed_count', finite & above),
        ('clipped_count', below & tf.reduce_any(scales < 1.0)),
      ]
    )

  def _judge(
    self, record: Tensors, scale: _Scalar
  ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns whether a record is finite, whether too large, and its factors.

    A record whose sum of squares overflows float64 counts as not finite.

    Returns:
      Scalar bool, whether the record is finite; scalar bool, whether its norm
      is above `zeroing_norm`; min(1, r_g / |x_g|) of each group, float64.
    """
    leaves = [tf.cast(leaf, tf.float64) for leaf in tf.nest.flatten(record)]
    squares = self._squares(leaves)
    norms = tf.sqrt(squares)
    finite = tf.reduce_all(tf.math.is_finite(norms))
    above = tf.constant(False)
    if self.zeroing_norm is not None:
      norm = (
        tf.sqrt(tf.reduce_sum(squares))
        if self.zeroing_norm_order == 2
        else tf.reduce_max(
          [
            tf.reduce_max(tf.abs(leaf))
            for leaf in leaves
            if leaf.shape.num_elements()
          ]
        )
      )
      above = norm > self.zeroing_norm
    radii = scale * tf.constant(
      [
        clip - dimension * self.step**2 / (24 * clip) - 2 * self.step
        for clip, dimension in zip(self.clips, self.dimensions)
      ],
      tf.float64,
    )
    return finite, above, tf.where(norms > radii, radii / norms, 1.0)


def check_bounds(
  l2_norm_clip: clips_lib.Clip,
  zeroing_norm: Optional[float],
  zeroing_norm_order: float = math.inf,
) -> None:
  """Raises if the bounds are invalid for every record; see `Clipping.of`.

  Raises:
    TypeError: a bound is not a number.
    ValueError: a bound is out of range.
  """
  for clip in tf.nest.flatten(clips_lib.layers(l2_norm_clip)):
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
