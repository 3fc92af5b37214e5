"""Records: nested structures of float tensors, and their clipping."""

from __future__ import annotations

from typing import Any

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


def _global_norm(record: Any) -> tf.Tensor:
  """Returns the L2 norm over all leaves, scalar float64."""
  return tf.sqrt(tf.add_n([
      tf.reduce_sum(tf.square(tf.cast(leaf, tf.float64)))
      for leaf in tf.nest.flatten(record)
  ]))


def is_finite_record(record: Any) -> tf.Tensor:
  """Returns whether the norm of a record is finite, scalar bool.

  False also for finite entries whose sum of squares overflows float64.
  """
  leaves = tf.nest.flatten(record)
  if all(leaf.dtype.size < 8 for leaf in leaves):
    # Squares of such entries cannot overflow float64.
    return tf.reduce_all([
        tf.reduce_all(tf.math.is_finite(leaf)) for leaf in leaves])
  return tf.math.is_finite(_global_norm(record))


def clip_record(record: Any, l2_norm_clip: tf.Tensor) -> Any:
  """Returns the record scaled to a global L2 norm of at most the clip.

    record * min(1, clip / norm)

  PRIVACY: a record with NaN, infinity or an overflowing norm becomes zero.
  Guards: query_test.test_record_that_is_not_finite_becomes_zero and
  test_norm_is_at_most_the_clip_in_every_dtype.

  Args:
    record: nested structure of float tensors.
    l2_norm_clip: scalar float.

  Returns:
    The same structure; leaves float64 where they were, else float32.
  """
  norm = _global_norm(record)
  clip = tf.cast(l2_norm_clip, tf.float64)
  bound = clip * (1 - _ROUNDING_MARGIN)
  scale = tf.where(norm > bound, bound / norm, 1.0)
  # Multiplied twice: the scale itself may be below float32's range.
  root = tf.where(tf.math.is_finite(norm), tf.sqrt(scale), 0.0)

  def clip_leaf(leaf):
    leaf = tf.cast(leaf, sum_dtype(leaf.dtype))
    factor = tf.cast(root, leaf.dtype)
    # Zero wins over NaN and infinity.
    return tf.math.multiply_no_nan(leaf, factor) * factor

  return tf.nest.map_structure(clip_leaf, record)
