"""z: iid standard normals as a pure function of (key, round, coordinate)."""

from __future__ import annotations

from typing import Union

import tensorflow as tf

_PHILOX = 1
# Coordinates that come from one step of the Philox counter.
GROUP = 4


def standard_normal(
    key: tf.Tensor,
    round_index: tf.Tensor,
    start: Union[int, tf.Tensor],
    count: int,
) -> tf.Tensor:
  """Returns z[round, start : start + count], independent of how it is cut.

  Philox 4x32-10 with its 64-bit key = key[0] and its 128-bit counter =
  (key[1] + round) * 2^64 + coordinate // 4, four coordinates a step. So the
  streams of two rounds, or of two coordinates, never meet under one key, and
  any range of coordinates can be made on its own.

  Philox is no cryptographic generator, and float32 Box-Muller never exceeds
  5.7 standard deviations.

  Args:
    key: [2] int64, secret; see `Key.words`.
    round_index: scalar integer tensor, the round, 0 or more.
    start: first coordinate, a multiple of 4; not checked in a tensor.
    count: how many coordinates.

  Returns:
    [count] float32, unit standard deviation.
  """
  if not tf.is_tensor(start) and start % GROUP:
    raise ValueError(f'start={start}: must be a multiple of {GROUP}')
  words = tf.bitcast(key, tf.uint64)
  high = words[1] + tf.cast(round_index, tf.uint64)
  low = tf.cast(
      tf.convert_to_tensor(start, tf.int64) // GROUP, tf.uint64)
  return tf.raw_ops.StatelessRandomNormalV2(
      shape=[count], key=words[:1], counter=tf.stack([low, high]),
      alg=_PHILOX, dtype=tf.float32)
