"""`Clipping` in TensorFlow's graph, which clients run; see `clipping`."""

from __future__ import annotations

import collections
import dataclasses
import itertools
from typing import Any, Union

import numpy as np
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
  Guards: noisy_mean_test.test_bits_are_those_of_tensorflow,
  clipping_test.test_norm_is_at_most_the_clip,
  test_crafted_record_that_rounding_makes_longer_is_cut,
  test_record_that_is_not_finite_becomes_zero and
  test_norm_of_each_layer_is_at_most_its_clip.
  """

  def clip(self, record: Tensors, scale: _Scalar = 1.0) -> tf.Tensor:
    """Returns the clipped and rounded record, or zeros.

    Args:
      record: nested structure of float tensors.
      scale: factor of the bounds and the step in this round, float64 > 0.

    Returns:
      [dimensions] int32, in steps: the leaves in the order of dm-tree, each in
      C order. If the clip adapts, the indicator is last.
    """
    leaves, vectors = self._vectors(record)
    finite, above, scales = self._judge(leaves, vectors, scale)
    factors = tf.where(finite & ~above, scales * self.inverse_step(scale), 0.0)
    factors = tf.unstack(factors, len(self.clips))
    # With a factor of 0, `multiply_no_nan` makes NaN and infinity 0.
    scaled = [
      tf.math.multiply_no_nan(vector, factors[group])
      for group, vector in vectors
    ]
    rounded = [tf.round(vector) for vector in scaled]

    def whole(vectors):
      return tf.concat([tf.cast(each, tf.int32) for each in vectors], 0)

    def truncated():
      vectors = [tf.sign(each) * tf.floor(tf.abs(each)) for each in scaled]
      is_in_range = tf.cast(self._fits(vectors), tf.float64)
      vectors = [tf.math.multiply_no_nan(each, is_in_range) for each in vectors]
      return whole(vectors)

    clipped = tf.cond(self._fits(rounded), lambda: whole(rounded), truncated)
    if self.adaptive is None:
      return clipped
    # PRIVACY: A record that is not finite, or is above `zeroing_norm`, becomes
    # the record of an absent client, which is zero in all coordinates. An
    # indicator other than 0 would still reveal something about this client, so
    # the indicator is 0.
    # Guard: clipping_test.test_record_that_becomes_zero_says_nothing.
    sign = tf.where(tf.reduce_any(scales < 1.0), -1, 1)
    sign *= tf.cast(finite & ~above, tf.int32)
    return tf.concat([clipped, [self.indicator_steps * sign]], 0)

  def _vectors(
    self, record: Tensors
  ) -> tuple[list[tf.Tensor], list[tuple[int, tf.Tensor]]]:
    """Returns the leaves of a record, and the record as few long vectors.

    An operation takes a millisecond to build and to compile, so a graph with
    operations for each of some hundred leaves takes minutes.

    Returns:
      [size] float, the leaves as vectors; and (group, float64 vector) for
      successive leaves of one group.
    """
    shape = tf.constant([-1])
    leaves = [tf.reshape(leaf, shape) for leaf in tf.nest.flatten(record)]
    runs = itertools.groupby(zip(self.groups, leaves), lambda pair: pair[0])
    return leaves, [
      (group, _joined([leaf for _, leaf in pairs], 0)) for group, pairs in runs
    ]

  def _fits(self, vectors: list[tf.Tensor]) -> tf.Tensor:
    """Returns whether every group of a record is within its bound.

    PRIVACY: If a sum of squares was rounded, a record with a norm above the
    clip could pass the test. A float64 sum of squared integers is rounded only
    if it exceeds 2^53, and all bounds are below 2^53. So a sum that passes is
    exact.
    Guard: clipping_test.test_norm_is_compared_exactly_in_a_graph.

    Args:
      vectors: integers in float64, in steps, a vector for each series of
        leaves.
    """
    # `l2_loss` needs no array of squares. Its factor 1 / 2 is exact.
    halves = tf.stack([tf.nn.l2_loss(vector) for vector in vectors])
    groups = [group for group, _ in itertools.groupby(self.groups)]
    sums = tf.math.unsorted_segment_sum(halves, groups, len(self.clips))
    bounds = tf.constant(self.squared_bounds, tf.float64)
    return tf.reduce_all(2.0 * sums <= bounds)

  def describe(
    self, record: Tensors, scale: _Scalar = 1.0
  ) -> collections.OrderedDict[str, tf.Tensor]:
    """Returns how `clip` changed one record: int32 scalars, each 0 or 1.

    At most one scalar is 1. The scalars have no noise, so the guarantee does
    not cover a release of them.
    """
    finite, above, scales = self._judge(*self._vectors(record), scale)
    clipped = finite & ~above & tf.reduce_any(scales < 1.0)
    return collections.OrderedDict(
      non_finite_count=tf.cast(~finite, tf.int32),
      zeroed_count=tf.cast(finite & above, tf.int32),
      clipped_count=tf.cast(clipped, tf.int32),
    )

  def _judge(
    self,
    leaves: list[tf.Tensor],
    vectors: list[tuple[int, tf.Tensor]],
    scale: _Scalar,
  ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns (is finite, is above `zeroing_norm`, factors) for a record.

    A record whose sum of squares overflows float64 is not finite.

    Args:
      leaves: the first result of `_vectors`.
      vectors: the second result of `_vectors`.
      scale: factor of the bounds in this round.

    Returns:
      Scalar bool, whether the record is finite; scalar bool, whether its norm
      is above `zeroing_norm`; [groups] float64, min(1, r_g / |x_g|) of each
      group.
    """
    squares = self._by_group(_sums_of_squares(leaves))
    norms = tf.sqrt(squares)
    finite = tf.reduce_all(tf.math.is_finite(norms))
    above = tf.constant(False)
    if self.zeroing_norm is not None:
      if self.zeroing_norm_order == 2:
        norm = tf.sqrt(_folded(squares[tf.newaxis])[0])
      else:
        filled = [each for _, each in vectors if each.shape.num_elements()]
        norm = tf.reduce_max([tf.reduce_max(tf.abs(each)) for each in filled])
      above = norm > self.zeroing_norm
    radii = scale * tf.constant(self.radii, tf.float64)
    return finite, above, tf.where(norms > radii, radii / norms, 1.0)

  def _by_group(self, sums: tf.Tensor) -> tf.Tensor:
    """Returns the sum of each group, with the bits of `summation.total`.

    Args:
      sums: [leaves] float64, not negative.

    Returns:
      [groups] float64.
    """
    # Row g has the indices of the leaves of group g, padded with the index of a
    # zero.
    members: list[list[int]] = [[] for _ in self.clips]
    for leaf, group in enumerate(self.groups):
      members[group].append(leaf)
    most = max(map(len, members))
    rows = [row + [len(self.groups)] * (most - len(row)) for row in members]
    return _folded(tf.gather(tf.pad(sums, [[0, 1]]), rows))


def _sums_of_squares(leaves: list[tf.Tensor]) -> tf.Tensor:
  """Returns |x|^2 of each leaf x, with the bits of `summation.of_squares`.

  Leaves with equally many rows are put side by side and are added up to one row
  for each leaf. Then the entries of each row are added up.

  Args:
    leaves: [size] float vectors, of static sizes.

  Returns:
    [leaves] float64.
  """
  shapes = [summation.rows_of(leaf.shape[0]) for leaf in leaves]
  width = max(width for _, width in shapes)
  members: dict[int, list[int]] = {}
  for i, (rows, _) in enumerate(shapes):
    members.setdefault(rows, []).append(i)
  parts = [
    _last_rows([leaves[i] for i in some], rows, width)
    for rows, some in members.items()
  ]
  sums = _folded(tf.concat(parts, 0))
  return tf.gather(sums, np.argsort(sum(members.values(), [])))


def _last_rows(leaves: list[tf.Tensor], rows: int, width: int) -> tf.Tensor:
  """Returns the sum of the rows of squares of each leaf, padded with zeros.

  Args:
    leaves: [size] float vectors that `summation.rows_of` divides into `rows`.
    rows: number of rows of each leaf, a power of two.
    width: number of entries of a row of the result.

  Returns:
    [leaves, width] float64.
  """
  lengths = [
    leaf.shape[0] if rows == 1 else summation.rows_of(leaf.shape[0])[1]
    for leaf in leaves
  ]
  if rows > 1:
    leaves = [
      tf.reshape(
        tf.pad(leaf, [[0, rows * length - leaf.shape[0]]]), [rows, length]
      )
      for leaf, length in zip(leaves, lengths)
    ]
  values = _joined(leaves, -1)
  squares = tf.reshape(values * values, [rows, sum(lengths)])
  while squares.shape[0] > 1:
    squares = _halved(squares, 0)
  return tf.raw_ops.RaggedTensorToTensor(
    shape=[len(leaves), width],
    values=squares[0],
    default_value=tf.constant(0.0, tf.float64),
    row_partition_tensors=[np.cumsum([0, *lengths])],
    row_partition_types=['ROW_SPLITS'],
  )


def _joined(tensors: list[tf.Tensor], axis: int) -> tf.Tensor:
  """Returns tensors of float types, joined to one in float64."""
  if len({each.dtype for each in tensors}) > 1:
    tensors = [tf.cast(each, tf.float64) for each in tensors]
  return tf.cast(tf.concat(tensors, axis), tf.float64)


def _halved(x: tf.Tensor, axis: Union[int, tf.Tensor]) -> tf.Tensor:
  """Returns the first half of a tensor plus its second half."""
  first, second = tf.split(x, 2, axis)
  return first + second


def _folded(x: tf.Tensor) -> tf.Tensor:
  """Returns [rows], the sum of each row, with the bits of `summation.total`.

  Zeros that pad a row do not change the bits of its sum, however many they are.

  Args:
    x: [rows, width] float64, not negative.
  """
  x = tf.pad(x, [[0, 0], [0, summation.padding(x.shape[1])]])
  last = tf.constant(1)
  while x.shape[1] > 1:
    x = _halved(x, last)
  return x[:, 0]
