"""Clips one client's update and rounds it to integers of bounded norm.

An update ("record") is a nested structure of floats. `Clipping` turns it into
int32 multiples of a step h. The L2 norm of these integers is bounded by the
clip (the clipping norm) in exact arithmetic. Sums of such records do not depend
on their order, and one client changes a sum by at most the clip. This module
computes in NumPy. `graph_clipping` computes the same bits in TensorFlow's
graph.

  clipping = Clipping.from_clip(0.5, record_specs, clip_bits=20)
  steps = clipping.clip(update)  # int32; clipping.step is their unit

The squares of a leaf are added in the order of `summation`, so that norms have
the same bits in NumPy and in TensorFlow, with any number of threads.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Callable, Optional

import numpy as np
import tree

from tff_bandmf.query import clip_bounds, summation

# Number of coordinates that are rounded at once, so few that they stay in
# cache.
_PIECE = 1 << 13
_ROUNDINGS: tuple[Callable[..., np.ndarray], ...] = (np.rint, np.trunc)


@dataclasses.dataclass(frozen=True)
class Clipping(clip_bounds.Bounds):
  """Turns one record into int32 multiples of a step h, with a bounded norm.

  The module `clip_bounds` defines the symbols. Its class `Bounds` has the
  attributes, the formulas and the guarantee.
  """

  def clip(
    self,
    record: clip_bounds.Record,
    scale: float = 1.0,
    out: Optional[np.ndarray] = None,
  ) -> np.ndarray:
    """Returns the clipped and rounded record, or zeros.

    If a rounded record is longer than its clip, its entries are truncated
    towards zero instead. An entry of a truncated record is at most as large in
    magnitude as the entry of the scaled float64 record. In group g the norm of
    the scaled record is at most
    r_g (1 + d_g 2^-52) <= clip_g - 2 h (1 - d_g 2^(clip_bits - 53)), in
    whatever order its squares are added. The right side is below clip_g for d_g
    up to 2^22, so a truncated record is never too long. The code tests its norm
    nevertheless. A record that fails the test becomes zero.

    PRIVACY: If a record was longer than the clip, the noise would be too small.
    The norm of every record is computed after rounding. A record that is too
    long is truncated, and becomes zero if it is still too long.
    Guards: clipping_test.test_norm_is_at_most_the_clip,
    test_norm_is_compared_exactly_in_numpy and
    test_norm_of_what_was_written_is_measured.

    Args:
      record: nested structure of arrays of real numbers.
      scale: factor of the bounds and the step in this round, float64 > 0.
      out: [dimensions] int32, contiguous; overwritten with the result. If None,
        an array is made.

    Returns:
      [dimensions] int32, in steps: the leaves in the order of dm-tree, each in
      C order. If the clip adapts, the indicator is last.
    """
    leaves = [real(leaf).reshape(-1) for leaf in tree.flatten(record)]
    sizes = [leaf.size for leaf in leaves]
    if out is None:
      out = np.empty(sum(self.dimensions), np.int32)
    ends = itertools.accumulate(sizes)
    parts = [out[end - size : end] for size, end in zip(sizes, ends)]
    with np.errstate(all='ignore'):
      finite, above, scales = self._judge(leaves, scale)
      factors = scales * self.inverse_step(scale)
      is_kept = finite and not above
      for rounding in _ROUNDINGS if is_kept else ():
        squares = np.zeros(len(self.clips))
        for leaf, part, group in zip(leaves, parts, self.groups):
          squares[group] += _write(part, leaf, factors[group], rounding)
        # PRIVACY: If a sum of squares was rounded, a record with a norm above
        # the clip could pass the test. A float64 sum of squared integers is
        # rounded only if it exceeds 2^53, and all bounds are below 2^53. So a
        # sum that passes is exact.
        # Guard: clipping_test.test_norm_is_compared_exactly_in_numpy.
        if np.all(squares <= self.squared_bounds):
          break
      else:
        out[:] = 0
    if self.adaptive is not None:
      # PRIVACY: A record that is not finite, or is above `zeroing_norm`,
      # becomes the record of an absent client, which is zero in all
      # coordinates. An indicator other than 0 would still reveal something
      # about this client, so the indicator is 0.
      # Guard: clipping_test.test_record_that_becomes_zero_says_nothing.
      sign = -1 if np.any(scales < 1.0) else 1
      out[-1] = self.indicator_steps * sign * is_kept
    return out

  def _judge(
    self, leaves: Sequence[np.ndarray], scale: float
  ) -> tuple[bool, bool, np.ndarray]:
    """Returns (is finite, is above `zeroing_norm`, factors) for a record.

    A record whose sum of squares overflows float64 is not finite. The factors
    are min(1, r_g / |x_g|) of each group, float64.

    Args:
      leaves: the leaves of the record, as vectors.
      scale: factor of the bounds in this round.
    """
    squares = np.zeros(len(self.clips))
    for group in set(self.groups):
      sums = [
        summation.of_squares(leaf)
        for leaf, each in zip(leaves, self.groups)
        if each == group
      ]
      squares[group] = summation.total(np.array(sums))
    norms = np.sqrt(squares)
    # PRIVACY: A record with a value that is not finite would make the whole sum
    # not finite, and everybody would see that its client took part. Such a
    # record becomes zero.
    # Guard: clipping_test.test_record_that_becomes_zero_says_nothing.
    finite = bool(np.all(np.isfinite(norms)))
    above = False
    if self.zeroing_norm is not None and finite:
      if self.zeroing_norm_order == 2:
        norm = np.sqrt(summation.total(squares))
      else:
        norm = max(float(np.max(np.abs(each))) for each in leaves if each.size)
      above = bool(norm > self.zeroing_norm)
    radii = scale * np.array(self.radii)
    return finite, above, np.where(norms > radii, radii / norms, 1.0)


def real(leaf: np.typing.ArrayLike) -> np.ndarray:
  """Returns a leaf of an update as an array of floats or integers.

  Raises:
    TypeError: the leaf has other values; or it is a subclass of NumPy's arrays,
      which may hold more than numbers, such as a mask or a unit.
  """
  array = np.asarray(leaf)
  dtype = array.dtype
  # PRIVACY: A conversion to floats would drop an imaginary part or a mask, and
  # the run would release values that the client did not mean to send. Only
  # plain arrays of real numbers are taken.
  # Guard: noisy_mean_test.test_leaf_that_is_no_real_number_is_refused.
  is_plain = type(leaf) in (np.ndarray, np.memmap)
  if isinstance(leaf, np.ndarray) and not is_plain:
    raise TypeError(
      f'{type(leaf).__name__} of {dtype} says more than its numbers'
    )
  # PRIVACY: The clip bounds norms of real numbers only. Complex numbers and
  # booleans are refused.
  # Guard: noisy_mean_test.test_leaf_that_is_no_real_number_is_refused.
  if dtype.kind not in 'iuf' and dtype.name not in clip_bounds.FLOATS:
    raise TypeError(f'{type(leaf).__name__} of {dtype} has no real numbers')
  return array


def _write(
  out: np.ndarray,
  leaf: np.ndarray,
  factor: float,
  rounding: Callable[..., np.ndarray],
) -> float:
  """Writes leaf * factor, rounded, to `out`; returns the sum of its squares.

  The sum is computed from the integers in `out`, so it is correct even if
  another thread changes the leaf meanwhile.

  Args:
    out: [size] int32, overwritten.
    leaf: [size] real numbers.
    factor: float64.
    rounding: `np.rint` or `np.trunc`.
  """
  total = 0.0
  # PRIVACY: If a value were not written, or its square were not added, the
  # value would not count in the norm. Each piece is written, and its norm is
  # computed from the written values.
  # Guards: clipping_test.test_norm_is_at_most_the_clip and
  # clipping_test.test_norm_of_what_was_written_is_measured.
  for start in range(0, leaf.size, _PIECE):
    part = out[start : start + _PIECE]
    scaled = leaf[start : start + _PIECE].astype(np.float64)
    scaled *= factor
    rounding(scaled, out=scaled)
    np.copyto(part, scaled, casting='unsafe')
    np.copyto(scaled, part)
    total += float(scaled @ scaled)
  return total
