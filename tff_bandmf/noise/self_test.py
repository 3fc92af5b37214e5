"""A test of the noise by the process that adds it; only the verdict leaves.

The measured deviation is secret: |y_t| together with the release S_t + y_t
tells S_t from any other sum.
"""

from __future__ import annotations

import functools
import math

import numpy as np
import scipy.optimize
import tensorflow as tf

# Probability that a sound run fails the test in some round; part of
# slack_delta.
FALSE_ALARM = 1e-24


def check(
  y: tf.Tensor, *, z_steps: float, row_norms: np.ndarray, round_index: tf.Tensor
) -> tf.Tensor:
  """Returns y, if its sample deviation fits the noise of its round.

  With sigma = z_steps * row_norms[t] and d coordinates, |y|^2 / sigma^2 is
  chi-square of d degrees of freedom, apart from rounding. The rounding of this
  round moves a coordinate by about 1/2. The rounding of earlier rounds, through
  C^-1, moves it by less than row_norms[t].

  Args:
    y: [d] int32, in lattice steps; d is static.
    z_steps: standard deviation of z in lattice steps, > 0.
    row_norms: [n] float64, |row t of C^-1|_2; `FALSE_ALARM` is spread over the
      n rounds.
    round_index: t, scalar int64.

  Raises:
    tf.errors.InvalidArgumentError: when the graph runs, if the deviation is out
    of `interval`.
  """
  d = y.shape.num_elements()
  low, high = interval(d, len(row_norms))
  with tf.control_dependencies([y]):
    row_norm = tf.gather(tf.constant(row_norms, tf.float64), round_index)
  rms = tf.sqrt(2.0 * tf.nn.l2_loss(tf.cast(y, tf.float64)) / d)
  sigma = z_steps * row_norm
  rounding = row_norm + 0.5
  # PRIVACY: Noise of another deviation has another epsilon, so its round fails.
  # The measured deviation would reveal the sum, so the message leaves it out.
  # Guard: self_test_test.test_noise_of_another_deviation_is_refused.
  sound = tf.debugging.Assert(
    (rms >= math.sqrt(low) * sigma - rounding)
    & (rms <= math.sqrt(high) * sigma + rounding),
    [
      'noise: its sample deviation is not that of the strategy, so the round '
      'is not released; were strategy, noise or files changed? Start anew '
      'with a new key'
    ],
  )
  with tf.control_dependencies([sound]):
    return tf.identity(y)


@functools.cache
def interval(dimension: int, rounds: int) -> tuple[float, float]:
  """Returns (low, high) bounds on the mean of d squared standard normals.

  Chernoff's bound: the mean is above a > 1 with a probability of at most
  exp(-d/2 (a - 1 - ln a)), and below a < 1 with a probability of at most the
  same expression. Each side gets half of `FALSE_ALARM` / rounds.

  >>> [round(bound, 4) for bound in interval(4_000_000, 2000)]
  [0.992, 1.008]

  Args:
    dimension: d, > 0.
    rounds: n, > 0.
  """
  target = 2.0 / dimension * math.log(2.0 * rounds / FALSE_ALARM)

  def excess(log_a):
    return math.expm1(log_a) - log_a - target

  most = math.log1p(2.0 * target + 2.0 * math.sqrt(target))
  return (
    math.exp(scipy.optimize.brentq(excess, -target - 2.0, 0.0)),
    math.exp(scipy.optimize.brentq(excess, 0.0, most)),
  )
