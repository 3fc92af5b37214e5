"""`Clipping` in TensorFlow's graph, which clients run; see `clipping`."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any, Union

import tensorflow as tf

from tff_bandmf.query import clip_bounds, summation

# Nested structure of tensors, of arrays, or of `tf.TensorSpec`.
Tensors = Any
_Scalar = Union[float, tf.Tensor]


@dataclasses.dataclass(frozen=True)
class GraphClipping(clip_bounds.Bounds):
  """Clips tensors as `Clipping` clips arrays, with the same bits.

  PRIVACY: If this class tested norms less exactly than `Clipping`, the norm of
  a record could exceed the clip, and the noise would be too small. Both classes
  compare exact sums of squares with the same bounds, and return the same bits.
  Guard: noisy_mean_test.test_bits_are_those_of_tensorflow.
  """

  def clip(self, record: Tensors, scale: _Scalar = 1.0) -> Tensors:
    """Returns the clipped and rounded record, or zeros.

    Args:
      record: nested structure of float tensors.
      scale: bounds and step of this round divided by those of the first round,
        float64 > 0.

    Returns:
      The record as a structure of int32 tensors, in steps. For an adaptive
      clip, a pair of this structure and the indicator, a scalar int32 in steps.
    """
    finite, above, scales = self._judge(record, scale)
    factors = tf.unstack(
      tf.where(finite & ~above, scales * self.inverse_step(scale), 0.0),
      len(self.clips),
    )
    # With a factor of 0, `multiply_no_nan` makes NaN and infinity 0.
    scaled = [
      tf.math.multiply_no_nan(tf.cast(leaf, tf.float64), factors[group])
      for leaf, group in zip(tf.nest.flatten(record), self.groups)
    ]
    rounded = [tf.round(leaf) for leaf in scaled]

    def whole(leaves):
      return [tf.cast(leaf, tf.int32) for leaf in leaves]

    def truncated():
      leaves = [tf.sign(leaf) * tf.floor(tf.abs(leaf)) for leaf in scaled]
      is_in_range = tf.cast(self._fits(leaves), tf.float64)
      return whole(
        [tf.math.multiply_no_nan(leaf, is_in_range) for leaf in leaves]
      )

    clipped = tf.nest.pack_sequence_as(
      record, tf.cond(self._fits(rounded), lambda: whole(rounded), truncated)
    )
    if self.adaptive is None:
      return clipped
    # PRIVACY: A record that is not finite, or is above `zeroing_norm`, becomes
    # the record of an absent client, which is zero in all coordinates. An
    # indicator that is not 0 would still say something about this client. So
    # its indicator is 0.
    # Guard: adaptive_clip_test.test_record_that_becomes_zero_says_nothing.
    sign = tf.where(tf.reduce_any(scales < 1.0), -1, 1)
    sign *= tf.cast(finite & ~above, tf.int32)
    return clipped, self.indicator_steps * sign

  def zeros(self, record_specs: Tensors) -> Tensors:
    """Returns zeros with the structure and types of the result of `clip`."""
    zeros = tf.nest.map_structure(
      lambda spec: tf.zeros(spec.shape, tf.int32), record_specs
    )
    return zeros if self.adaptive is None else (zeros, tf.constant(0, tf.int32))

  def _fits(self, leaves: list[tf.Tensor]) -> tf.Tensor:
    """Returns whether every group of a record is within its bound.

    PRIVACY: If a sum of squares was rounded, a record with a norm above the
    clip could pass the test. A float64 sum of squared integers is rounded only
    if it exceeds 2^53, and all bounds are below 2^53. So a sum that passes is
    exact.
    Guard: query_test.test_norm_is_compared_exactly.

    Args:
      leaves: integers in float64, in steps.
    """
    return tf.reduce_all(
      self._squares(leaves) <= tf.constant(self.squared_bounds, tf.float64)
    )

  def _squares(self, leaves: list[tf.Tensor]) -> tf.Tensor:
    """Returns |q_g|^2 of every group g, [groups] float64, from integers q."""
    # `l2_loss` needs no array of squares. Its factor 1 / 2 is exact.
    halves = [tf.nn.l2_loss(leaf) for leaf in leaves]
    return 2.0 * tf.math.unsorted_segment_sum(
      tf.stack(halves), self.groups, len(self.clips)
    )

  def describe(
    self, record: Tensors, scale: _Scalar = 1.0
  ) -> collections.OrderedDict[str, tf.Tensor]:
    """Returns how `clip` changed one record: int32 scalars, each 0 or 1.

    At most one scalar is 1. The scalars have no noise, so the guarantee does
    not cover a release of them.
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
    """Returns (is finite, is above `zeroing_norm`, factors) for a record.

    A record whose sum of squares overflows float64 is not finite.

    Returns:
      Scalar bool, whether the record is finite; scalar bool, whether its norm
      is above `zeroing_norm`; [groups] float64, min(1, r_g / |x_g|) of each
      group.
    """
    leaves = [tf.cast(leaf, tf.float64) for leaf in tf.nest.flatten(record)]
    sums = [_sum_of_squares(leaf) for leaf in leaves]
    squares = tf.stack(
      [
        _total([each for each, i in zip(sums, self.groups) if i == group])
        for group in range(len(self.clips))
      ]
    )
    norms = tf.sqrt(squares)
    finite = tf.reduce_all(tf.math.is_finite(norms))
    above = tf.constant(False)
    if self.zeroing_norm is not None:
      norm = (
        tf.sqrt(_total(squares))
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
    radii = scale * tf.constant(self.radii, tf.float64)
    return finite, above, tf.where(norms > radii, radii / norms, 1.0)


def _sum_of_squares(leaf: tf.Tensor) -> tf.Tensor:
  """Returns |leaf|^2, with the bits of `summation.of_squares`.

  Args:
    leaf: float64, of any static shape.
  """
  size = leaf.shape.num_elements()
  rows, width = summation.rows_of(size)
  squares = _padded(tf.reshape(leaf * leaf, [-1]), rows * width - size)
  row = summation.fold(squares, width)
  return summation.fold(_padded(row, summation.padding(width)))[0]


def _total(sums: Union[list[tf.Tensor], tf.Tensor]) -> tf.Tensor:
  """Returns the sum of scalar tensors, with the bits of `summation.total`."""
  padding = summation.padding(len(sums))
  if not len(sums):
    return tf.zeros([], tf.float64)
  return summation.fold(_padded(tf.stack(sums), padding))[0]


def _padded(x: tf.Tensor, zeros: int) -> tf.Tensor:
  return tf.pad(x, [[0, zeros]]) if zeros else x
