"""Optimal buffered linear Toeplitz strategies (BLTs).

| symbol      | meaning                                                     |
|-------------|-------------------------------------------------------------|
| n           | number of rounds                                            |
| c           | first column of C, as a power series c(y) = sum_t c_t y^t   |
| d           | number of buffers                                           |
| theta_i     | decays of C, exp(-lambda_i)                                 |
| omega_i     | output scales of C                                          |
| theta_hat_i | decays of C^-1, exp(-lambda_hat_i) for i < d                |
| omega_hat_i | output scales of C^-1                                       |
| l           | log lambda_1, log lambda_hat_1, .., log lambda_d, [2 d - 1] |
| x           | parameters: l_0, differences of l, theta_d - theta_hat_d    |

  c(y) = prod_j (1 - theta_hat_j y) / (1 - theta_j y)
  c_t = sum_i omega_i theta_i^(t-1) for t > 0,
  omega_i = prod_j (theta_i - theta_hat_j) / prod_{j!=i} (theta_i - theta_j)

and the same formulas hold for C^-1 if theta and theta_hat are exchanged. The
decays interlace:

  1 > theta_1 > theta_hat_1 > theta_2 > ... > theta_d > theta_hat_d
  theta_d > 0

This order is equivalent to omega > 0. Then c is positive and decreases from c_1
on, so the sensitivity is exact. Differences of decays are computed without
cancellation. A negative theta_hat_d reduces the loss of workloads with
momentum. If two neighbouring decays are equal, their factors of c(y) cancel,
and their buffer has no effect. So the search for d buffers starts from the best
d - 1 buffers and one more pair of nearly equal decays. It tries several values
of the new pair, and the loss is never larger than with d - 1 buffers. The
module `series` computes the loss. BLTs are from [BLT24], and their optimisation
for many participations is from [UseBLTs24]; the interlacing parameters and the
starts are from this project.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Callable

import attrs
import numpy as np

from tff_bandmf import _checks, strategies
from tff_bandmf.optimize import series, solver

# Bounds of the differences of neighbouring entries of l, and the difference for
# a new pair of decays. The lower bound keeps slow decays distinct in float64.
_LEAST_GAP = 1e-3
_LARGEST_GAP = 30.0
_OPENED_GAP = 0.05
# Bounds of theta_d - theta_hat_d; both decays are in (-1, 1).
_LEAST_LAST = 1e-6
_LARGEST_LAST = 2.0
# Lower bound of n lambda_1, and upper bound of lambda_1.
_SLOWEST = 1e-6
_FASTEST = 10.0
# A relative decrease of the loss below this value counts as 0.
NO_GAIN = 1e-10
# Imaginary part that is added to a parameter to compute derivatives.
_STEP = 1e-30
# A search for sampled cohorts ends if the relative decrease of the log loss is
# below this number. A BLT has so few parameters that a number smaller than
# `solver.SAMPLED_TOLERANCE` does not fit C to the samples.
_SAMPLED_TOLERANCE = 1e-7
# Number of values that are tried for a new pair of decays.
_STARTS = 8


def _differences(rates: np.ndarray) -> np.ndarray:
  """Returns exp(-rates_i) - exp(-rates_j), also accurate for close rates."""
  these, others = rates[..., :, None], rates[..., None, :]
  faster = these.real > others.real
  sign = np.where(faster, 1.0, -1.0)
  nearer = np.exp(-np.where(faster, others, these))
  return sign * nearer * np.expm1(sign * (others - these))


def _decays(x: np.ndarray) -> list[np.ndarray]:
  """Returns omega, theta, omega_hat and theta_hat, [..., d] each.

  Args:
    x: [..., 2 d] float64 or complex128.
  """
  rates, gap = np.exp(np.cumsum(x[..., :-1], -1)), x[..., -1]
  decays = np.exp(-rates)
  # The order of all decays is theta_1, theta_hat_1, ..., theta_hat_d.
  number = x.shape[-1]
  differences = np.zeros((*x.shape, number), x.dtype)
  differences[..., :-1, :-1] = _differences(rates)
  # Differences to theta_hat_d are sums of positive numbers.
  differences[..., :-1, -1] = differences[..., :-1, -2] + gap[..., None]
  differences[..., -1, :-1] = -differences[..., :-1, -1]
  differences[..., np.arange(number), np.arange(number)] = 1.0
  ours, hats = differences[..., ::2, :], differences[..., 1::2, :]
  return [
    ours[..., 1::2].prod(-1) / ours[..., ::2].prod(-1),
    decays[..., ::2],
    hats[..., ::2].prod(-1) / hats[..., 1::2].prod(-1),
    np.concatenate([decays[..., 1::2], decays[..., -1:] - x[..., -1:]], -1),
  ]


def _terms(
  rounds: int, scales: np.ndarray, decays: np.ndarray
) -> tuple[np.ndarray, Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]]:
  """Returns c_0 = 1, c_t = sum_i scale_i theta_i^(t - 1), and its pullback.

  With t - 1 = B u + s for a block size B, each power theta^(t - 1) is the
  product theta^(B u) theta^s, so that the sum is a product of two matrices of
  about sqrt(n) columns.

  Args:
    rounds: n.
    scales: [d] float64.
    decays: theta, [d] float64.

  Returns:
    c, [n] float64, and the function from the gradient by c to the gradients by
    the scales and by the decays, [d] each.
  """
  block = math.isqrt(rounds - 1) + 1
  exponents, base = np.arange(block), decays[:, None]
  # Powers, and their derivatives by the decays.
  (fine, fine_slopes), (coarse, coarse_slopes) = (
    (base**each, each * base ** np.maximum(each - 1.0, 0.0))
    for each in (exponents * 1.0, exponents * float(block))
  )

  def back(by_terms):
    grid = np.zeros(block**2)
    grid[: rounds - 1] = by_terms[1:]
    grid = grid.reshape(block, block)
    by_fine = coarse @ grid
    by_powers = by_fine * fine_slopes + (coarse_slopes @ grid) * fine
    return np.sum(by_fine * fine, 1), scales * by_powers.sum(1)

  powers = ((scales[:, None] * coarse).T @ fine).reshape(-1)
  return np.concatenate([[1.0], powers[: rounds - 1]]), back


def _columns(
  x: np.ndarray, rounds: int
) -> tuple[np.ndarray, np.ndarray, series.Pullback]:
  """Returns the first columns of C and C^-1, [n] each, and their pullback.

  See `series.Build`.
  """
  # The imaginary parts are derivatives, without cancellation.
  moved = _decays(x + _STEP * 1j * np.eye(len(x)))
  slopes = np.concatenate(moved, -1).imag / _STEP
  scales, decays, other_scales, others = (each[0].real for each in moved)
  column, back = _terms(rounds, scales, decays)
  inverse, inverse_back = _terms(rounds, other_scales, others)

  def pullback(by_column, by_inverse):
    return slopes @ np.concatenate(
      [*back(by_column), *inverse_back(by_inverse)]
    )

  return column, inverse, pullback


def optimize_blt(
  problem: solver.Problem, buffers: int, worth: float = NO_GAIN
) -> solver.Optimized[strategies.Blt]:
  """Returns the best BLT strategy.

    loss = error * sens^2

  Args:
    problem: error to minimise; `max_evaluations` limits the search from each
      start.
    buffers: largest number of buffers, >= 1, each of the model's size. Fewer
      buffers are used if a further buffer does not reduce the loss.
    worth: least relative decrease of the loss for which a buffer is added.

  Raises:
    ValueError: a value is out of range, or the workload has a learning rate
      schedule and too many rounds.

  >>> from tff_bandmf import participation
  >>> problem = solver.Problem(2052, participation.MinSep(342, 6))
  >>> best = optimize_blt(problem, 2)
  >>> round(best.loss, 5), best.converged
  (84.32293, True)
  """
  _checks.count('buffers', buffers, 'give the number of buffers')
  rounds = problem.rounds
  if rounds == 1:  # Every BLT of one round is C = 1.
    return problem.evaluated(strategies.Blt(1, np.zeros(1), np.zeros(1)))

  def loss(problem):
    return series.Objective(lambda x: _columns(x, rounds), problem, falls=True)

  # With learning rates the search for the least maximal error is slow, so it
  # starts from the strategy of least mean error, which is close. The search for
  # sampled cohorts is slow too, and starts from the strategy of least loss for
  # the sensitivity.
  is_max = problem.objective == solver.MAX
  is_slow = is_max and not problem.workload.is_toeplitz
  objective = solver.MEAN if is_slow else problem.objective
  easier = attrs.evolve(problem, noise=None, objective=objective)
  best = _search(loss(easier), rounds, buffers, worth)
  if (is_slow or problem.noise) and not best.interrupted:
    minimum = loss(problem).minimize(
      best.x,
      _bounds(rounds, len(best.x) // 2),
      tolerance=_SAMPLED_TOLERANCE if problem.noise else None,
    )
    best = dataclasses.replace(
      minimum, evaluations=best.evaluations + minimum.evaluations
    )
  return problem.evaluated(_strategy(rounds, best.x), best)


def _search(
  loss: series.Objective, rounds: int, buffers: int, worth: float
) -> solver.Minimum:
  """Returns the best minimum for 1, 2, ... up to `buffers` buffers."""
  best, evaluations = solver.Minimum(np.empty(0), np.inf, 0, False), 0
  centres = np.linspace(math.log(0.3 / rounds), math.log(2), _STARTS)
  for opened in range(1, buffers + 1):
    before = best
    bounds = _bounds(rounds, opened)
    for centre in centres:
      minimum = loss.minimize(_with_buffer(before.x, centre), bounds)
      evaluations += minimum.evaluations
      if minimum.value < best.value:
        best = minimum
      if minimum.interrupted:
        return dataclasses.replace(
          best, evaluations=evaluations, converged=False, interrupted=True
        )
    if best.value > before.value + math.log1p(-worth):
      # One more buffer decreased the loss too little from every start.
      best = before
      break
  return dataclasses.replace(best, evaluations=evaluations)


def _with_buffer(x: np.ndarray, centre: float) -> np.ndarray:
  """Returns the parameters for one more buffer, which has nearly no effect.

  Args:
    x: parameters of d buffers, [2 d] float64; empty for d = 0.
    centre: mean of the two entries of l for the new pair of decays.
  """
  l = list(centre + _OPENED_GAP * np.array([-0.5, 0.5]))
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


def _bounds(rounds: int, buffers: int) -> list[tuple[float, float]]:
  """Returns the bounds of x."""
  return [
    (math.log(_SLOWEST / rounds), math.log(_FASTEST)),
    *[(_LEAST_GAP, _LARGEST_GAP)] * (2 * buffers - 2),
    (_LEAST_LAST, _LARGEST_LAST),
  ]


def _strategy(rounds: int, x: np.ndarray) -> strategies.Blt:
  """Returns the strategy with parameters x, without buffers of scale 0."""
  scales, decays, *_ = _decays(x)
  used = scales > 0
  return strategies.Blt(rounds, scales[used], decays[used])
