"""Optimal buffered linear Toeplitz strategies (BLTs).

| symbol      | meaning                                                    |
|-------------|------------------------------------------------------------|
| d           | buffers                                                    |
| theta_i     | decays of C, exp(-lambda_i)                                |
| omega_i     | output scales of C                                         |
| theta_hat_i | decays of C^-1, exp(-lambda_hat_i)                         |
| l           | log lambda_1, log lambda_hat_1, log lambda_2, ..., [2 d]   |
| x           | parameters: l_0 and the 2 d - 1 gaps of l                  |

  c(x) = prod_j (1 - theta_hat_j x) / (1 - theta_j x)
  c_t = sum_i omega_i theta_i^(t-1),
  omega_i = prod_j (theta_i - theta_hat_j) / prod_{j!=i} (theta_i - theta_j)

and the same for C^-1 with the roles swapped. The parameters interlace:

  1 > theta_1 > theta_hat_1 > theta_2 > theta_hat_2 > ... > 0

which is what omega > 0 and sum_i omega_i / theta_i < 1 say. So c is positive
and decreasing, the Toeplitz theorem gives the sensitivity exactly, and sums of
C^-1 do not cancel. Two neighbours of l that coincide are a buffer that does
nothing, wherever they are: d buffers are searched from the best of d - 1 with
such a pair opened at several places, and more buffers are never worse.
`series` has the loss. [BLT24] has BLTs, [UseBLTs24] their optimisation for many
participations; the interlacing parameters and the starts are ours.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Optional

import numpy as np
import tensorflow as tf

from tff_bandmf import errors, strategies, workloads
from tff_bandmf import participation as participation_lib
from tff_bandmf.optimize import series, solver

# Gaps of l. The least keeps slow decays distinct in float64.
_LEAST_GAP = 1e-3
_LARGEST_GAP = 30.0
_OPENED_GAP = 0.05
# A closed buffer is so far above the last one, and its own gap is 0.
_CLOSED_STEP = 0.01
# Decays exp(-n lambda_1) over the whole run up to this are told from 1.
_SLOWEST = 1e-6
_FASTEST = 10.0
# Relative gain by a buffer that ends the search for more.
_NO_GAIN = 1e-10
# Places at which a buffer is opened.
_STARTS = 8


def _powers(rates: tf.Tensor, scales: tf.Tensor, terms: int) -> tf.Tensor:
  """Returns 1 and then sum_i scale_i exp(-rate_i t), t = 0 .. terms - 2.

  With t = B u + s the sum is a product of matrices of sqrt(n) columns.
  """
  block = math.isqrt(terms) + 1
  steps = tf.range(block, dtype=tf.float64)
  fine = tf.exp(-rates[:, None] * steps)
  coarse = scales[:, None] * tf.exp(-rates[:, None] * block * steps)
  sums = tf.reshape(tf.matmul(coarse, fine, transpose_a=True), [-1])
  return tf.concat([tf.ones([1], tf.float64), sums[:terms - 1]], 0)


def _scales(rates: tf.Tensor, others: tf.Tensor) -> tf.Tensor:
  """Returns prod_j (t_i - o_j) / prod_{j!=i} (t_i - t_j), t = exp(-rates).

  Args:
    rates: [d] float64, of t.
    others: [d] float64, of o.
  """
  # t_i - o_j = t_i (1 - exp(rate_i - rate of o_j)), exact for near rates; the
  # powers of t_i cancel but for one.
  above = -tf.math.expm1(rates[:, None] - others)
  below = -tf.math.expm1(rates[:, None] - rates)
  below = tf.linalg.set_diag(below, tf.ones_like(rates))
  return tf.exp(-rates) * tf.reduce_prod(above / below, 1)


def _rates(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
  """Returns lambda and lambda_hat, [d] float64 each."""
  rates = tf.exp(tf.cumsum(x))
  return rates[::2], rates[1::2]


def optimize_blt(
    rounds: int,
    buffers: int,
    participation: participation_lib.Participation,
    workload: workloads.Workload = workloads.PREFIX,
    objective: str = solver.MEAN,
    max_evaluations: int = solver.MAX_EVALUATIONS,
    callback: Optional[solver.Callback] = None,
) -> solver.Optimized:
  """Returns the BLT strategy of least loss found.

    loss = error * sens^2

  Args:
    rounds: n.
    buffers: d, at most; as many copies of the model the noise needs. Fewer are
      used where more do not help.
    participation: of one client.
    workload: A.
    objective: `MEAN` or `MAX`, over the errors of the n rounds.
    max_evaluations: of the loss and its gradient, in each of the searches.
    callback: called after every iteration with the loss reached.

  Raises:
    ValueError: a value out of range, or a learning rate schedule for many
      rounds.

  >>> found = optimize_blt(2052, 2, participation_lib.MinSep(342, 6))
  >>> round(found.loss, 5), found.converged
  (84.32293, True)
  """
  errors.check_count('rounds', rounds, 'give the number of rounds')
  errors.check_count('buffers', buffers, 'give the number of buffers')
  solver.check_objective(objective)

  def compiled(objective):
    def build(x):
      rates, others = _rates(x)
      return (
          _powers(rates, _scales(rates, others), rounds),
          _powers(others, _scales(others, rates), rounds))

    return series.Objective(
        build, 2 * buffers, rounds, participation, workload, objective)

  # The maximum is slow with learning rates; the best mean is near it.
  loss = compiled(objective if workload.is_toeplitz else solver.MEAN)
  best = _search(loss, rounds, buffers, max_evaluations, callback)
  if not (workload.is_toeplitz or objective == solver.MEAN or best.interrupted):
    found = compiled(objective).minimize(
        best.x, _bounds(rounds, buffers, buffers), max_evaluations, callback)
    best = dataclasses.replace(
        found, evaluations=best.evaluations + found.evaluations)
  return series.optimized(
      _strategy(rounds, best.x), best, participation, workload, objective)


def _search(
    loss: series.Objective,
    rounds: int,
    buffers: int,
    max_evaluations: int,
    callback: Optional[solver.Callback],
) -> solver.Minimum:
  """Returns the best of all starts, from one buffer to all of them.

  Args:
    loss: of `buffers` buffers, of which those not yet opened do nothing.
    rounds: n.
    buffers: d.
    max_evaluations: of each search.
    callback: called with the loss reached.
  """
  best, logs, evaluations = None, np.empty(0), 0
  places = np.linspace(math.log(0.3 / rounds), math.log(2), _STARTS)
  for opened in range(1, buffers + 1):
    before = best
    for place in places:
      start = np.concatenate(
          [logs, place + _OPENED_GAP * np.array([-0.5, 0.5])])
      found = loss.minimize(
          _parameters(start, rounds, buffers),
          _bounds(rounds, opened, buffers), max_evaluations, callback)
      evaluations += found.evaluations
      if best is None or found.value < best.value:
        best = found
      if found.interrupted:
        return dataclasses.replace(
            best, evaluations=evaluations, converged=False, interrupted=True)
    if before is not None and best.value > before.value * (1 - _NO_GAIN):
      # All that one more buffer could do was tried.
      break
    logs = np.cumsum(best.x)[:2 * opened]
  return dataclasses.replace(best, evaluations=evaluations)


def _parameters(logs: np.ndarray, rounds: int, buffers: int) -> np.ndarray:
  """Returns x of the entries of l, in any order, and of closed buffers."""
  logs = np.sort(logs)
  logs[0] = max(logs[0], math.log(_SLOWEST / rounds))
  closed = np.tile([_CLOSED_STEP, 0.0], buffers - len(logs) // 2)
  gaps = np.clip(np.diff(logs), _LEAST_GAP, _LARGEST_GAP)
  return np.concatenate([logs[:1], gaps, closed])


def _bounds(
    rounds: int, opened: int, buffers: int
) -> list[tuple[float, float]]:
  """Returns the bounds of x where some buffers are open, the rest fixed."""
  free = [(math.log(_SLOWEST / rounds), math.log(_FASTEST))]
  free += [(_LEAST_GAP, _LARGEST_GAP)] * (2 * opened - 1)
  return free + [(_CLOSED_STEP,) * 2, (0.0, 0.0)] * (buffers - opened)


def _strategy(rounds: int, x: np.ndarray) -> strategies.Blt:
  """Returns the strategy, without closed buffers."""
  rates, others = _rates(tf.constant(x, tf.float64))
  omega, theta = _scales(rates, others).numpy(), np.exp(-rates.numpy())
  used = omega > 0
  return strategies.Blt(rounds, omega[used], theta[used])
