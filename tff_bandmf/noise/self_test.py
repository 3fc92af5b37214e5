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
from typing import TYPE_CHECKING

import numpy as np
import scipy.optimize

from tff_bandmf import errors
from tff_bandmf.accounting.methods import stop_probability as stops
from tff_bandmf.strategies import recursion as recursion_lib

if TYPE_CHECKING:
  import tensorflow as tf

  from tff_bandmf.noise.tape import folder as tape_folder

# Number of coordinates whose squares are added up at once.
_PIECE = 1 << 13
_UNSOUND = (
  'noise: the sample deviation does not fit the strategy, so the round is not '
  'released; were strategy, noise or files changed? Start anew with a new key'
)


# PRIVACY: If the noise does not have the standard deviation that follows from
# C, epsilon is not the claimed epsilon. The sample deviation of the noise must
# be within its limits.
# Guards: self_test_test.test_noise_of_another_deviation_is_refused and
# self_test_test.test_noise_of_the_strategy_passes_unchanged.
def check(
  parts: Sequence[np.ndarray], tape: tape_folder.ReadableTape, round_index: int
) -> None:
  """Raises ValueError if the sample deviation of y_t is not within `limits`.

  Args:
    parts: the coordinates of y_t, vectors of int32, in lattice steps.
    tape: the tape that holds y_t.
    round_index: t, in [0, rounds).
  """
  squares = 0.0
  for part in parts:
    for start in range(0, len(part), _PIECE):
      piece = part[start : start + _PIECE].astype(np.float64)
      squares += float(piece @ piece)
  low, high = limits(tape, round_index)
  # PRIVACY: If the standard deviation of y_t were smaller than planned, the
  # stated epsilon would be too small. If the sample deviation does not fit, the
  # round fails. A person who knows the sample deviation could tell S_t from
  # other sums, so the message does not contain the sample deviation.
  # Guard: self_test_test.test_noise_of_another_deviation_is_refused.
  if not low <= math.sqrt(squares / tape.dimension) <= high:
    raise errors.value_error(_UNSOUND)


def graph_check(
  y: tf.Tensor, tape: tape_folder.ReadableTape, round_index: tf.Tensor
) -> tf.Tensor:
  """Returns y_t in TensorFlow's graph if y_t passes `check`.

  Args:
    y: [d] int32, y_t in lattice steps.
    tape: the tape that holds y_t.
    round_index: t, scalar int64.

  Raises:
    tf.errors.InvalidArgumentError: when the graph runs, if `check` would raise.
  """
  import tensorflow as tf

  of_rounds = limits(tape, np.arange(tape.recursion.rounds))
  with tf.control_dependencies([y]):
    low, high = tf.unstack(tf.gather(of_rounds, round_index, axis=1))
  rms = tf.sqrt(2.0 * tf.nn.l2_loss(tf.cast(y, tf.float64)) / tape.dimension)
  # PRIVACY: Noise that is too small means a larger epsilon, and noise that is
  # too large means a wrong tape. Both are refused.
  # Guard: self_test_test.test_noise_of_another_deviation_is_refused.
  sound = tf.debugging.Assert((low <= rms) & (rms <= high), [_UNSOUND])
  with tf.control_dependencies([sound]):
    return tf.identity(y)


def limits(
  tape: tape_folder.ReadableTape, t: recursion_lib.Index
) -> np.ndarray:
  """Returns limits on the sample deviation of y_t in lattice steps.

  The sample deviation is |y_t|_2 / sqrt(d), with d coordinates. With sigma =
  z_steps * row_norms[t], |y_t|^2 / sigma^2 has a chi-square distribution with d
  degrees of freedom, apart from rounding. A change of y_s by 1/2 has the effect
  of a change of z_s by C[s,s] / 2, which reaches y_t through row t of C^-1. So
  the roundings of all rounds move a coordinate of y_t by at most

    sum_{s<=t} |C^-1[t,s]| C[s,s] / 2
      <= sqrt(t + 1) row_norms[t] max_s C[s,s] / 2

  The lower limit is sigma sqrt(low) minus this bound, and the upper limit is
  sigma sqrt(high) plus this bound; `interval` returns (low, high).

  Args:
    tape: the tape that holds y_t.
    t: round, or [m] rounds.

  Returns:
    [2] or [2, m] float64, the smallest and the largest sample deviation. The
    probability of a false alarm in one round is at most `stops.SELF_TEST` /
    rounds.
  """
  recursion = tape.recursion
  low, high = np.sqrt(interval(tape.dimension, recursion.rounds))
  moved = 0.5 / np.min(recursion.scales) * np.sqrt(1.0 + t)
  # PRIVACY: If the limits were too wide, noise of another standard deviation
  # would pass. They are quantiles times the standard deviation of y_t.
  # Guard: self_test_test.test_noise_of_another_deviation_is_refused.
  return recursion.row_norms[t] * np.stack(
    [low * tape.z_steps - moved, high * tape.z_steps + moved]
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
