"""A test of the noise y_t in the process that adds it to the sum S_t.

y_t is row t of C^-1 z for a strategy matrix C and normals z, in steps of
`lattice`. The process outputs only whether the test passed. The measured
deviation is secret: a person who knows |y_t| and the release S_t + y_t can tell
S_t from most other sums.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.optimize

from tff_bandmf import errors
from tff_bandmf.accounting.methods import stops

if TYPE_CHECKING:
  import tensorflow as tf

# Number of coordinates whose squares are added up at once.
_PIECE = 1 << 13
_UNSOUND = (
  'noise: the sample deviation does not fit the strategy, so the round is not '
  'released; were strategy, noise or files changed? Start anew with a new key'
)
# A number, or a scalar tensor.
_Number = Any


def check(
  parts: Sequence[np.ndarray],
  *,
  z_steps: float,
  row_norms: np.ndarray,
  round_index: int,
  diagonal: float = 1.0,
) -> None:
  """Raises ValueError if the sample deviation of y_t does not fit round t.

  The sample deviation is |y_t|_2 / sqrt(d), with d coordinates. With sigma =
  z_steps * row_norms[t], |y_t|^2 / sigma^2 has a chi-square distribution with d
  degrees of freedom, apart from rounding. Rounding of y_s by at most 1/2 is
  rounding of z_s by C[s,s] / 2, which reaches y_t through row t of C^-1. So the
  roundings of all rounds move a coordinate of y_t by at most

    sum_{s<=t} |C^-1[t,s]| C[s,s] / 2 <= sqrt(t + 1) row_norms[t] diagonal / 2

  Args:
    parts: the coordinates of y_t, vectors of int32, in lattice steps.
    z_steps: standard deviation of z in lattice steps, > 0.
    row_norms: [rounds] float64, |row t of C^-1|_2 of every round t. Each round
      may have a false alarm with probability `stops.SELF_TEST` / rounds.
    round_index: t, in [0, rounds).
    diagonal: largest C[s,s].

  Raises:
    ValueError: the sample deviation is outside of [sigma sqrt(low), sigma
      sqrt(high)] by more than this bound; `interval` returns (low, high).
  """
  dimension = sum(map(len, parts))
  squares = 0.0
  for part in parts:
    for start in range(0, len(part), _PIECE):
      piece = part[start : start + _PIECE].astype(np.float64)
      squares += float(piece @ piece)
  # PRIVACY: If the standard deviation of y_t were smaller than planned, the
  # stated epsilon would be too small. If the sample deviation does not fit, the
  # round fails. A person who knows the sample deviation could tell S_t from
  # other sums, so the message does not contain the sample deviation.
  # Guard: self_test_test.test_noise_of_another_deviation_is_refused.
  if not _is_sound(
    math.sqrt(squares / dimension),
    z_steps,
    float(row_norms[round_index]),
    0.5 * diagonal * math.sqrt(round_index + 1),
    interval(dimension, len(row_norms)),
  ):
    raise errors.value_error(_UNSOUND)


def graph_check(
  y: tf.Tensor,
  *,
  z_steps: float,
  row_norms: np.ndarray,
  round_index: tf.Tensor,
  diagonal: float = 1.0,
) -> tf.Tensor:
  """Returns y_t in TensorFlow's graph if y_t passes `check`.

  Args:
    y: [d] int32, y_t in lattice steps; the number d is static.
    z_steps: standard deviation of z in lattice steps, > 0.
    row_norms: [rounds] float64, |row t of C^-1|_2 of every round t.
    round_index: t, scalar int64.
    diagonal: largest C[s,s].

  Raises:
    tf.errors.InvalidArgumentError: when the graph runs, if `check` would raise.
  """
  import tensorflow as tf

  d = y.shape.num_elements()
  with tf.control_dependencies([y]):
    row_norm = tf.gather(tf.constant(row_norms, tf.float64), round_index)
  rms = tf.sqrt(2.0 * tf.nn.l2_loss(tf.cast(y, tf.float64)) / d)
  sound = tf.debugging.Assert(
    _is_sound(
      rms,
      z_steps,
      row_norm,
      0.5 * diagonal * tf.sqrt(tf.cast(round_index + 1, tf.float64)),
      interval(d, len(row_norms)),
    ),
    [_UNSOUND],
  )
  with tf.control_dependencies([sound]):
    return tf.identity(y)


def _is_sound(
  rms: _Number,
  z_steps: float,
  row_norm: _Number,
  rounding: _Number,
  bounds: tuple[float, float],
) -> _Number:
  """Returns whether a sample deviation fits its round, as a bool or a tensor.

  Args:
    rms: sample deviation of y_t in lattice steps.
    z_steps: standard deviation of z in lattice steps, > 0.
    row_norm: |row t of C^-1|_2.
    rounding: bound of the effect of roundings, in units of `row_norm`.
    bounds: (low, high), bounds on the mean square of y_t / sigma.
  """
  low, high = bounds
  sigma = z_steps * row_norm
  allowed = rounding * row_norm
  return (rms >= math.sqrt(low) * sigma - allowed) & (
    rms <= math.sqrt(high) * sigma + allowed
  )


@functools.cache
def interval(dimension: int, rounds: int) -> tuple[float, float]:
  """Returns (low, high) bounds on the mean of d squared standard normals.

  By Chernoff's bound, exp(-d/2 (a - 1 - ln a)) bounds the probability that the
  mean exceeds a > 1, and the probability that the mean is below a < 1. At a =
  low and at a = high this bound is `stops.SELF_TEST` / (2 rounds).

  >>> [round(bound, 4) for bound in interval(4_000_000, 2000)]
  [0.99, 1.0101]

  Args:
    dimension: d, number of normals, > 0.
    rounds: number of rounds of the run, > 0.
  """
  target = 2.0 / dimension * math.log(2.0 * rounds / stops.SELF_TEST)

  def excess(log_a):
    return math.expm1(log_a) - log_a - target

  most = math.log1p(2.0 * target + 2.0 * math.sqrt(target))
  return (
    math.exp(scipy.optimize.brentq(excess, -target - 2.0, 0.0)),
    math.exp(scipy.optimize.brentq(excess, 0.0, most)),
  )
