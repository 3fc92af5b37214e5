"""Optimal buffered linear Toeplitz strategies (BLTs).

| symbol      | meaning                                                     |
|-------------|-------------------------------------------------------------|
| d           | buffers                                                     |
| theta_i     | decays of C, exp(-lambda_i)                                 |
| omega_i     | output scales of C                                          |
| theta_hat_i | decays of C^-1, exp(-lambda_hat_i) but for the last         |
| l           | log lambda_1, log lambda_hat_1, .., log lambda_d, [2 d - 1] |
| x           | parameters: l_0, the gaps of l, theta_d - theta_hat_d       |

  c(x) = prod_j (1 - theta_hat_j x) / (1 - theta_j x)
  c_t = sum_i omega_i theta_i^(t-1),
  omega_i = prod_j (theta_i - theta_hat_j) / prod_{j!=i} (theta_i - theta_j)

and the same for C^-1 with the roles swapped. The parameters interlace:

  1 > theta_1 > theta_hat_1 > theta_2 > ... > theta_d > theta_hat_d
  theta_d > 0

which is what omega > 0 says. So c is positive and falls from c_1 on, which
makes the sensitivity exact, and no difference above is one of nearly equal
numbers. theta_hat_d < 0 is of use with momentum. Two neighbours that coincide
are a buffer that does nothing, wherever they are: d buffers are searched from
the best of d - 1 with such a pair opened at several places, and more buffers
are never worse. `series` has the loss. [BLT24] has BLTs, [UseBLTs24] their
optimisation for many participations; the interlacing parameters and the starts
are ours.
"""

from __future__ import annotations

import dataclasses
import math

import attrs
import numpy as np
import tensorflow as tf

from tff_bandmf import _checks, strategies
from tff_bandmf.optimize import series, solver

# Gaps of l. The least keeps slow decays distinct in float64.
_LEAST_GAP = 1e-3
_LARGEST_GAP = 30.0
_OPENED_GAP = 0.05
# theta_d - theta_hat_d; both are in (-1, 1).
_LEAST_LAST = 1e-6
_LARGEST_LAST = 2.0
# Decays exp(-n lambda_1) over the whole run up to this are told from 1.
_SLOWEST = 1e-6
_FASTEST = 10.0
# A closed buffer is so far below the next one, all of them below `_SLOWEST`.
_CLOSED_STEP = 0.01
# Relative gain by a buffer that is none.
NO_GAIN = 1e-10
# Places at which a buffer is opened.
_STARTS = 8


def _differences(rates: tf.Tensor, others: tf.Tensor) -> tf.Tensor:
  """Returns exp(-rates_i) - exp(-others_j), exact for near rates, [., .]."""
  gap = rates[:, None] - others
  nearer = tf.exp(-tf.minimum(rates[:, None], others))
  return tf.sign(gap) * nearer * tf.math.expm1(-tf.abs(gap))


def _scales(between: tf.Tensor, among: tf.Tensor) -> tf.Tensor:
  """Returns prod_j between_ij / prod_{j!=i} among_ij, [d] float64."""
  among = tf.linalg.set_diag(among, tf.ones(among.shape[0], among.dtype))
  return tf.reduce_prod(between, 1) / tf.reduce_prod(among, 1)


def _decays(x: tf.Tensor):
  """Returns what x says.

  Args:
    x: [2 d] float64.

  Returns:
    lambda, [d]; omega, [d]; lambda_hat but for the last, [d - 1];
    theta_hat_d, []; omega_hat, [d]; float64.
  """
  rates = tf.exp(tf.cumsum(x[:-1]))
  rates, others, gap = rates[::2], rates[1::2], x[-1]
  # Differences to theta_hat_d are sums of positive numbers.
  last = _differences(rates, rates[-1:]) + gap
  other_last = _differences(others, rates[-1:]) + gap
  between = tf.concat([_differences(rates, others), last], 1)
  among = tf.concat(
    [
      tf.concat([_differences(others, others), other_last], 1),
      tf.pad(-tf.transpose(other_last), [[0, 0], [0, 1]]),
    ],
    0,
  )
  return (
    rates,
    _scales(between, _differences(rates, rates)),
    others,
    tf.exp(-rates[-1]) - gap,
    _scales(-tf.transpose(between), among),
  )


def _powers(rates: tf.Tensor, scales: tf.Tensor, terms: int) -> tf.Tensor:
  """Returns sum_i scale_i exp(-rate_i t) for t < terms, [terms] float64.

  With t = B u + s the sum is a product of matrices of sqrt(n) columns.
  """
  block = math.isqrt(terms) + 1
  steps = tf.range(block, dtype=tf.float64)
  fine = tf.exp(-rates[:, None] * steps)
  coarse = scales[:, None] * tf.exp(-rates[:, None] * block * steps)
  return tf.reshape(tf.matmul(coarse, fine, transpose_a=True), [-1])[:terms]


def _columns(x: tf.Tensor, rounds: int) -> tuple[tf.Tensor, tf.Tensor]:
  """Returns the first columns of C and C^-1, [rounds] float64 each."""
  rates, omega, others, last, omega_hat = _decays(x)
  one = tf.ones([1], tf.float64)
  # theta_hat_d may be 0 or negative, and has no rate.
  ending = series.reciprocal(tf.stack([one[0], -last]), rounds - 1)
  inverse = _powers(others, omega_hat[:-1], rounds - 1) + omega_hat[-1] * ending
  return (
    tf.concat([one, _powers(rates, omega, rounds - 1)], 0),
    tf.concat([one, inverse], 0),
  )


def optimize_blt(
  problem: solver.Problem,
  buffers: int,
  worth: float = NO_GAIN,
) -> solver.Optimized[strategies.Blt]:
  """Returns the BLT strategy of least loss found.

    loss = error * sens^2

  Args:
    problem: what is minimised; `max_evaluations` are of each search.
    buffers: d, at most; as many copies of the model the noise needs. Fewer are
      used where more do not help.
    worth: relative gain below which one more buffer is not used, and ends the
      search.

  Raises:
    ValueError: a value out of range, or a learning rate schedule for many
      rounds.

  >>> from tff_bandmf import participation
  >>> problem = solver.Problem(2052, participation.MinSep(342, 6))
  >>> found = optimize_blt(problem, 2)
  >>> round(found.loss, 5), found.converged
  (84.32293, True)
  """
  _checks.count('buffers', buffers, 'give the number of buffers')
  rounds, is_toeplitz = problem.rounds, problem.workload.is_toeplitz
  if rounds == 1:  # Whatever the buffers, C is 1.
    return problem.evaluated(strategies.Blt(1, np.zeros(1), np.zeros(1)))

  # XLA stumbles over what is empty with a single one; one may stay closed.
  slots = max(buffers, 2)

  def compiled(problem):
    return series.Objective(
      lambda x: _columns(x, rounds), 2 * slots, problem, falls=True
    )

  # The maximum is slow with learning rates; the best mean is near it.
  easier = attrs.evolve(problem, objective=solver.MEAN)
  loss = compiled(problem if is_toeplitz else easier)
  best = _search(loss, rounds, buffers, slots, worth)
  strategy = _strategy(rounds, best.x)
  is_mean = problem.objective == solver.MEAN
  if not (is_toeplitz or is_mean or best.interrupted):
    found = compiled(problem).minimize(
      best.x, _bounds(rounds, strategy.buffers, slots)
    )
    strategy = _strategy(rounds, found.x)
    best = dataclasses.replace(
      found, evaluations=best.evaluations + found.evaluations
    )
  return problem.evaluated(strategy, best)


def _search(
  loss: series.Objective,
  rounds: int,
  buffers: int,
  slots: int,
  worth: float,
) -> solver.Minimum:
  """Returns the best of all starts, from one buffer to all of them.

  The loss is of `slots` buffers, at least d; those not yet opened, and those
  that exceed d, do nothing.
  """
  x, evaluations = np.empty(0), 0
  best = solver.Minimum(x, np.inf, 0, False)
  places = np.linspace(math.log(0.3 / rounds), math.log(2), _STARTS)
  for opened in range(1, buffers + 1):
    before = best
    for place in places:
      found = loss.minimize(
        _closed(_with_buffer(x, place), rounds, slots),
        _bounds(rounds, opened, slots),
      )
      evaluations += found.evaluations
      if found.value < best.value:
        best = found
      if found.interrupted:
        return dataclasses.replace(
          best, evaluations=evaluations, converged=False, interrupted=True
        )
    if best.value > before.value * (1 - worth):
      # All that one more buffer could do was tried.
      best = before
      break
    x = _opened(best.x, opened)
  return dataclasses.replace(best, evaluations=evaluations)


def _with_buffer(x: np.ndarray, place: float) -> np.ndarray:
  """Returns x, [2 d] or [0], of one more buffer, which does nearly nothing.

  `place` is l of the new neighbours.
  """
  l = list(place + _OPENED_GAP * np.array([-0.5, 0.5]))
  last = -np.inf
  if len(x):
    l += list(np.cumsum(x[:-1]))
    last = math.exp(-math.exp(l[-1])) - x[-1]
    l.append(math.log(-math.log(last)) if last > 0 else np.inf)
  *l, end = sorted(l)
  if np.isfinite(end):
    last = math.exp(-math.exp(end))
  gaps = np.clip(np.diff(l), _LEAST_GAP, _LARGEST_GAP)
  l = l[0] + np.cumsum(np.concatenate([[0], gaps]))
  return np.concatenate(
    [l[:1], gaps, [max(math.exp(-math.exp(l[-1])) - last, _LEAST_LAST)]]
  )


def _layout(rounds: int, closed: int) -> tuple[list[float], float, float]:
  """Returns x of closed buffers, the next l less its gap, and its least."""
  lowest = math.log(_SLOWEST / rounds)
  if not closed:
    return [], 0.0, lowest
  steps = [lowest - closed * _CLOSED_STEP] + [0.0, _CLOSED_STEP] * closed
  return steps[: 2 * closed], lowest - _CLOSED_STEP, lowest


def _closed(x: np.ndarray, rounds: int, buffers: int) -> np.ndarray:
  """Returns x with closed buffers before the open ones, [2 buffers]."""
  closed, base, lowest = _layout(rounds, buffers - len(x) // 2)
  return np.concatenate([closed, [max(x[0], lowest) - base], x[1:]])


def _opened(x: np.ndarray, count: int) -> np.ndarray:
  """Returns x of the last `count` buffers alone, [2 count]."""
  first = np.sum(x[: len(x) - 2 * count + 1])
  return np.concatenate([[first], x[len(x) - 2 * count + 1 :]])


def _bounds(
  rounds: int, opened: int, buffers: int
) -> list[tuple[float, float]]:
  """Returns the bounds of x where some buffers are open, the rest fixed."""
  closed, base, lowest = _layout(rounds, buffers - opened)
  return (
    [(value, value) for value in closed]
    + [(lowest - base, math.log(_FASTEST) - base)]
    + [(_LEAST_GAP, _LARGEST_GAP)] * (2 * opened - 2)
    + [(_LEAST_LAST, _LARGEST_LAST)]
  )


def _strategy(rounds: int, x: np.ndarray) -> strategies.Blt:
  """Returns the strategy, without closed buffers."""
  rates, omega, *_ = _decays(tf.constant(x, tf.float64))
  omega, theta = omega.numpy(), np.exp(-rates.numpy())
  used = omega > 0
  return strategies.Blt(rounds, omega[used], theta[used])
