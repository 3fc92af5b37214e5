"""Records: nested structures of float tensors, and their clipping."""

from __future__ import annotations

import collections
import dataclasses
import math
from typing import Any, Optional

import numpy as np
import tensorflow as tf
import tree

from tff_bandmf import errors

# Rounding of the norm and of the scaled entries may add a few units in the
# last place; the scale gives them back.
_ROUNDING_MARGIN = 1e-6


def record_dimension(record_specs: Any) -> int:
  """Returns the number of coordinates of a record.

  Args:
    record_specs: nested structure of `tf.TensorSpec`, static shapes, floats.

  Raises:
    TypeError: a leaf is no float; the message names it.
    ValueError: a leaf has no static shape, or there is no coordinate.
  """
  dimension = 0
  for path, spec in tree.flatten_with_path(record_specs):
    name = '.'.join(map(str, path)) or 'record'
    if not spec.dtype.is_floating:
      raise TypeError(
          errors.invalid(
              f'record_specs[{name}].dtype', spec.dtype.name,
              'must be a float type',
              'noise cannot protect integers; leave the variable out of the '
              'update'))
    if not spec.shape.is_fully_defined():
      raise ValueError(
          errors.invalid(
              f'record_specs[{name}].shape', spec.shape, 'must be static',
              'give every dimension'))
    dimension += int(np.prod(spec.shape.as_list(), dtype=np.int64))
  if not dimension:
    raise ValueError(
        errors.invalid(
            'record_specs', record_specs, 'holds no coordinate',
            'give the specs of the model update'))
  return dimension


def sum_dtype(dtype: tf.DType) -> tf.DType:
  """Returns the type in which leaves of `dtype` are clipped and summed.

  PRIVACY: rounding to 16 bits after clipping could push a norm over the clip,
  so such leaves are clipped and summed in float32. Guard:
  query_test.test_norm_is_at_most_the_clip_in_every_dtype.
  """
  return tf.float64 if dtype == tf.float64 else tf.float32


@dataclasses.dataclass(frozen=True)
class Clipping:
  """What a record becomes before it is summed: of bounded norm, or zero.

    0                                        if the record is not finite
    0                                        if its norm is above zeroing_norm
    (x_g * min(1, clip_g / |x_g|_2) for g)   else, over groups of leaves g

  so its L2 norm is at most (sum_g clip_g^2)^(1/2). Every bound is a constant:
  no record says anything about another one's bound, and zeroing, which comes
  first, costs no privacy and raises no sensitivity. Make it with `of`.

  Attributes:
    clips: clip_g of every group.
    groups: the group of every leaf, in the order of `tf.nest.flatten`.
    zeroing_norm: records above it become zero; None for no such bound.
    zeroing_norm_order: of that norm, over all leaves: 2, or math.inf for the
      largest magnitude.
  """

  clips: tuple[float, ...]
  groups: tuple[int, ...]
  zeroing_norm: Optional[float] = None
  zeroing_norm_order: float = math.inf

  @classmethod
  def of(
      cls,
      l2_norm_clip: Any,
      record_specs: Any,
      zeroing_norm: Optional[float] = None,
      zeroing_norm_order: float = math.inf,
  ) -> Clipping:
    """Returns the clipping of records of this kind.

    Args:
      l2_norm_clip: a positive number, for the norm over all leaves; or a
        nested structure of them whose containers are the outer ones of
        `record_specs`: each is for the norm over what is in its place there.
      record_specs: nested structure of `tf.TensorSpec`, floats.
      zeroing_norm: as above.
      zeroing_norm_order: as above.

    Raises:
      TypeError: a bound is no number, as an adaptive one is none.
      ValueError: a bound is not positive, or `l2_norm_clip` does not fit.
    """
    clips = []

    def group(clip, part):
      clips.append(clip)
      return tf.nest.map_structure(lambda _: len(clips) - 1, part)

    try:
      groups = tf.nest.flatten(tree.map_structure_up_to(
          l2_norm_clip, group, l2_norm_clip, record_specs))
    except (TypeError, ValueError):
      groups = []
    # PRIVACY: `tree` passes over leaves that the clips do not name.
    # Guard: query_test.test_clips_that_fit_no_layers_are_refused.
    if len(groups) != len(tf.nest.flatten(record_specs)):
      raise ValueError(
          errors.invalid(
              'l2_norm_clip', l2_norm_clip,
              'must be a number, or have the outer structure of record_specs',
              'give one clip for all leaves, or one for each layer'))
    clips = [
        errors.check_positive(
            'l2_norm_clip', clip,
            'clips are constants: an adaptive one is a release that costs '
            'privacy of its own') for clip in clips]
    if zeroing_norm is not None:
      zeroing_norm = errors.check_positive(
          'zeroing_norm', zeroing_norm,
          'it is a constant: an adaptive one is a release that costs privacy '
          'of its own')
    if zeroing_norm_order not in (2, math.inf):
      raise ValueError(
          errors.invalid(
              'zeroing_norm_order', zeroing_norm_order, 'must be 2 or inf',
              'inf compares the largest magnitude'))
    return cls(
        tuple(clips), tuple(groups), zeroing_norm,
        zeroing_norm_order)

  @property
  def l2_norm(self) -> float:
    """The most that the L2 norm of a clipped record can be."""
    return math.hypot(*self.clips)

  def lowered_by(self, amount: float) -> Clipping:
    """Returns the clipping whose `l2_norm` is lower by `amount`.

    Raises:
      ValueError: nothing would be left.
    """
    left = 1 - amount / self.l2_norm
    if not left > 0:
      raise ValueError(
          errors.invalid(
              'l2_norm_clip', self.l2_norm,
              f'must exceed the {amount:.3g} that summing may add to the norm '
              'of a record', 'raise it, or sum in finer steps'))
    return dataclasses.replace(
        self, clips=tuple(left * clip for clip in self.clips))

  def clip(self, record: Any) -> Any:
    """Returns the record clipped, or zero.

    PRIVACY: guards are query_test.test_norm_is_at_most_the_clip_in_every_dtype,
    test_record_that_is_not_finite_becomes_zero and
    test_norm_of_clips_by_layer_is_at_most_theirs.

    Args:
      record: nested structure of float tensors.

    Returns:
      The same structure; leaves float64 where they were, else float32.
    """
    finite, above, scales = self._judge(record)
    # Multiplied twice: the scale itself may be below float32's range.
    roots = tf.unstack(
        tf.where(finite & ~above, tf.sqrt(scales), 0.0), len(self.clips))

    def scaled(leaf, group):
      leaf = tf.cast(leaf, sum_dtype(leaf.dtype))
      factor = tf.cast(roots[group], leaf.dtype)
      # Zero wins over NaN and infinity.
      return tf.math.multiply_no_nan(leaf, factor) * factor

    return tf.nest.pack_sequence_as(
        record, list(map(scaled, tf.nest.flatten(record), self.groups)))

  def describe(self, record: Any) -> collections.OrderedDict[str, tf.Tensor]:
    """Returns what `clip` does to a record, scalars int32, 0 or 1.

    At most one is 1. Nothing of it is private.
    """
    finite, above, scales = self._judge(record)
    below = finite & ~above
    return collections.OrderedDict(
        (name, tf.cast(flag, tf.int32)) for name, flag in [
            ('non_finite_count', ~finite),
            ('zeroed_count', finite & above),
            ('clipped_count', below & tf.reduce_any(scales < 1.0))])

  def _judge(self, record: Any) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns (is finite, is above the zeroing norm, scale of every group).

    A record is also not finite if the sum of its squares overflows float64.
    """
    leaves = [tf.cast(leaf, tf.float64) for leaf in tf.nest.flatten(record)]
    squares = tf.stack([tf.reduce_sum(tf.square(leaf)) for leaf in leaves])
    norms = tf.sqrt(tf.math.unsorted_segment_sum(
        squares, self.groups, len(self.clips)))
    finite = tf.reduce_all(tf.math.is_finite(norms))
    above = tf.constant(False)
    if self.zeroing_norm is not None:
      norm = (
          tf.sqrt(tf.reduce_sum(squares)) if self.zeroing_norm_order == 2
          else tf.reduce_max([
              tf.reduce_max(tf.abs(leaf)) for leaf in leaves
              if leaf.shape.num_elements()]))
      above = norm > self.zeroing_norm
    bounds = tf.constant(self.clips, tf.float64) * (1 - _ROUNDING_MARGIN)
    return finite, above, tf.where(norms > bounds, bounds / norms, 1.0)
