"""Records: nested structures of floats, clipped and put on the lattice."""

from __future__ import annotations

import collections
import dataclasses
import fractions
import functools
import math
from typing import Any, Optional

import numpy as np
import tensorflow as tf
import tree

from tff_bandmf import _checks, errors
from tff_bandmf import clips as clips_lib
from tff_bandmf.noise import lattice

# Squares of what is clipped to less would leave float64.
_LEAST_CLIP, _MOST_CLIP = 2.0**-300, 2.0**300


def record_dimension(record_specs: Any) -> int:
  """Returns the number of coordinates of a record.

  Args:
    record_specs: nested structure of `tf.TensorSpec`, static shapes, floats.

  Raises:
    TypeError: a leaf is not a float; the message names it.
    ValueError: a leaf has no static shape, or there is no coordinate.
  """
  dimension = 0
  for path, spec in tree.flatten_with_path(record_specs):
    name = '.'.join(map(str, path)) or 'record'
    if not spec.dtype.is_floating:
      raise errors.type_error(
        f'update[{name}].dtype',
        spec.dtype.name,
        'must be a float type',
        'noise cannot protect integers; leave the variable out of the update',
      )
    if not spec.shape.is_fully_defined():
      raise errors.value_error(
        f'update[{name}].shape',
        spec.shape,
        'must be static',
        'give every dimension',
      )
    dimension += int(np.prod(spec.shape.as_list(), dtype=np.int64))
  if not dimension:
    raise errors.value_error(
      'update',
      record_specs,
      'holds no coordinate',
      'aggregate the updates of a model',
    )
  return dimension


@dataclasses.dataclass(frozen=True)
class Clipping:
  """What a record becomes before it is summed: whole steps of bounded norm.

    0                                        if the record is not finite
    0                                        if its norm is above zeroing_norm
    round_h(x_g * min(1, r_g / |x_g|_2))     else, over groups of leaves g
    r_g = clip_g - d_g h^2 / (24 clip_g) - 2 h,   h = l2_norm / 2^clip_bits

  in int32 multiples of the step h. The sum of their squares over a group is at
  most (clip_g / h)^2, tested in exact arithmetic, so the L2 norm of a record is
  at most (sum_g clip_g^2)^(1/2) = 2^clip_bits steps exactly. Rounding makes a
  record longer, by about d_g h^2 / (24 clip_g); r_g leaves room for that, and
  where it is not enough the record is cut towards zero instead. Near the
  coarsest step that is allowed, clip_g = 2 d_g^(1/2) h, entries below h / 2
  vanish: a record of many small entries of one size is lost.

  Every bound is a constant, or known from earlier releases: no record says
  anything about another one's bound, and zeroing, which comes first, costs no
  privacy and raises no sensitivity.

  Where the clip adapts, clip_g, r_g and h are those of the first round, times
  the scale of a round, and a record has one group more, its indicator, of clip
  beta / 2 times that of all others: it is as much or as little, or 0 where the
  record becomes zero. Make it with `of`.

  Attributes:
    clips: clip_g of every group, the indicator's last.
    dimensions: d_g of every group.
    groups: the group of every leaf, in the order of `tf.nest.flatten`.
    clip_bits: of the clip of all groups together, in steps.
    zeroing_norm: records above it become zero; None for no such bound.
    zeroing_norm_order: of that norm, over all leaves: 2, or math.inf for the
      largest magnitude.
    adaptive: how the clip moves; None for a constant one.
  """

  clips: tuple[float, ...]
  dimensions: tuple[int, ...]
  groups: tuple[int, ...]
  clip_bits: int
  zeroing_norm: Optional[float] = None
  zeroing_norm_order: float = math.inf
  adaptive: Optional[clips_lib.AdaptiveClip] = None

  def __post_init__(self):
    # PRIVACY: above it sums of squares are rounded. Guard:
    # query_test.test_norm_is_compared_exactly.
    if self.clip_bits > lattice.MOST_CLIP_BITS:
      raise errors.value_error(
        'clip_bits',
        self.clip_bits,
        f'must be at most {lattice.MOST_CLIP_BITS}',
        'give those of a noise.Lattice',
      )
    for clip, dimension, bound in zip(
      self.clips, self.dimensions, self._squared_bounds
    ):
      least = max(2 * math.sqrt(dimension), 4)
      # No privacy is lost here, but updates: rounding would leave little of
      # such a group, and its noise would be that of a full one.
      if dimension and bound < least**2:
        raise errors.value_error(
          'l2_norm_clip',
          clip,
          f'is {math.sqrt(bound):.3g} steps of the lattice for '
          f'{dimension} coordinates, which rounding would empty; it must '
          f'be {least:.3g}',
          'raise the clip of that layer, or use one clip for all',
        )

  @classmethod
  def of(
    cls,
    l2_norm_clip: Any,
    record_specs: Any,
    clip_bits: int,
    zeroing_norm: Optional[float] = None,
    zeroing_norm_order: float = math.inf,
  ) -> Clipping:
    """Returns the clipping of records of this kind.

    Args:
      l2_norm_clip: a positive number, for the norm over all leaves; or a
        nested structure of them whose containers are the outer ones of
        `record_specs`: each is for the norm over what is in its place there;
        or an `AdaptiveClip`.
      record_specs: nested structure of `tf.TensorSpec`, floats.
      clip_bits: the clip is so many bits of steps; see `noise.Lattice`.
      zeroing_norm: as above.
      zeroing_norm_order: as above.

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
    # PRIVACY: `tree` passes over leaves that the clips do not name.
    # Guard: query_test.test_clips_that_fit_no_layers_are_refused.
    if len(groups) != len(specs):
      raise errors.value_error(
        'l2_norm_clip',
        layers,
        'must be a number, or have the outer structure of the update',
        'give one clip for all leaves, or one for each layer',
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
    """The most that the L2 norm of a clipped record can be, at scale 1."""
    return clips_lib.norm(self.clips)

  @property
  def step(self) -> float:
    """h, in the unit of the records, at scale 1."""
    return math.ldexp(self.l2_norm, -self.clip_bits)

  @functools.cached_property
  def _squared_bounds(self) -> list[int]:
    """The most that sum q^2 may be in every group.

    PRIVACY: they add up to at most 4^clip_bits, in exact arithmetic. Guard:
    query_test.test_bounds_of_layers_add_up_to_at_most_the_clip.
    """
    squares = [fractions.Fraction(clip) ** 2 for clip in self.clips]
    total = sum(squares)
    return [math.floor(each * 4**self.clip_bits / total) for each in squares]

  @property
  def indicator_steps(self) -> int:
    """Magnitude of the indicator of a record, in steps.

    PRIVACY: with the other groups it stays within 2^clip_bits steps. Guards:
    adaptive_clip_test.test_client_moves_all_rounds_by_at_most_the_sensitivity,
    adaptive_clip_test.test_audit_finds_noise_without_delta.
    """
    return math.isqrt(self._squared_bounds[-1])

  def clip(self, record: Any, scale: Any = 1.0) -> Any:
    """Returns the record clipped and rounded, or zero.

    The second try, cutting towards zero, passes: its entries are at most those
    of the float64 record in magnitude, whose norm is at most
    r_g (1 + d_g 2^-52) <= clip_g - 2 h (1 - d_g 2^(clip_bits - 53)), and for
    d_g up to 2^22 that is below clip_g whatever the order of summation. The
    test is made all the same, and a record that fails it counts as zero.

    PRIVACY: guards are query_test.test_norm_is_at_most_the_clip_in_every_dtype,
    test_crafted_record_that_rounding_makes_longer_is_cut,
    test_record_that_is_not_finite_becomes_zero and
    test_norm_of_clips_by_layer_is_at_most_theirs.

    Args:
      record: nested structure of float tensors.
      scale: of the bounds and the step, positive float64.

    Returns:
      The same structure, int32, in steps; for an adaptive clip (that, the
      indicator).
    """
    finite, above, scales = self._judge(record, scale)
    factors = tf.unstack(
      tf.where(finite & ~above, scales / (self.step * scale), 0.0),
      len(self.clips),
    )
    # Zero wins over NaN and infinity.
    scaled = [
      tf.math.multiply_no_nan(tf.cast(leaf, tf.float64), factors[group])
      for leaf, group in zip(tf.nest.flatten(record), self.groups)
    ]
    rounded = [tf.round(leaf) for leaf in scaled]

    def whole(leaves):
      return [tf.cast(leaf, tf.int32) for leaf in leaves]

    def cut():
      leaves = [tf.sign(leaf) * tf.floor(tf.abs(leaf)) for leaf in scaled]
      kept = tf.cast(self._fits(leaves), tf.float64)
      return whole([tf.math.multiply_no_nan(leaf, kept) for leaf in leaves])

    clipped = tf.nest.pack_sequence_as(
      record, tf.cond(self._fits(rounded), lambda: whole(rounded), cut)
    )
    if self.adaptive is None:
      return clipped
    # PRIVACY: a record that becomes zero is the absent client's, all of it.
    # Guard: adaptive_clip_test.test_record_that_becomes_zero_says_nothing.
    sign = tf.where(tf.reduce_any(scales < 1.0), -1, 1)
    sign *= tf.cast(finite & ~above, tf.int32)
    return clipped, self.indicator_steps * sign

  def zeros(self, record_specs: Any) -> Any:
    """Returns what `clip` gives of no record."""
    zeros = tf.nest.map_structure(
      lambda spec: tf.zeros(spec.shape, tf.int32), record_specs
    )
    return zeros if self.adaptive is None else (zeros, tf.constant(0, tf.int32))

  def _fits(self, leaves: list[tf.Tensor]) -> tf.Tensor:
    """Returns whether whole numbers in float64 have at most the norm of groups.

    PRIVACY: a sum of squares, all 0 or more, that is computed as 2^53 or less
    is exact: no partial sum exceeds it, and all are integers. Guard:
    query_test.test_norm_is_compared_exactly.
    """
    return tf.reduce_all(
      self._squares(leaves) <= tf.constant(self._squared_bounds, tf.float64)
    )

  def _squares(self, leaves: list[tf.Tensor]) -> tf.Tensor:
    """Returns |x_g|^2 of every group."""
    # One pass, without an array of the squares; halves are exact.
    halves = [tf.nn.l2_loss(leaf) for leaf in leaves]
    return 2.0 * tf.math.unsorted_segment_sum(
      tf.stack(halves), self.groups, len(self.clips)
    )

  def describe(
    self, record: Any, scale: Any = 1.0
  ) -> collections.OrderedDict[str, tf.Tensor]:
    """Returns what `clip` does to a record, scalars int32, 0 or 1.

    At most one is 1. Nothing of it is private.
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
    self, record: Any, scale: Any
  ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns (is finite, is above the zeroing norm, scale of every group).

    A record is also not finite if the sum of its squares overflows float64.
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
  l2_norm_clip: Any,
  zeroing_norm: Optional[float],
  zeroing_norm_order: float = math.inf,
) -> None:
  """Raises if a bound of `Clipping.of` could not serve any record.

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
        'l2_norm_clip',
        clip,
        'must be in [2^-300, 2^300]',
        'change the unit of the updates',
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
      'zeroing_norm_order',
      zeroing_norm_order,
      'must be 2 or inf',
      'inf compares the largest magnitude',
    )
