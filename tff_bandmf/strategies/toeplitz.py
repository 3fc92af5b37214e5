"""Series of a lower-triangular Toeplitz matrix, exact for any n."""

from __future__ import annotations

import numpy as np
import scipy.signal

from tff_bandmf import errors

_FIRST_BLOCK = 4096
_CONVERGED = 1e-12
# Beyond this the weights have not converged and n is taken as too large.
_MAX_TERMS = 100_000_000


def prefix_weights(coefficients: np.ndarray, terms: int) -> np.ndarray:
  """Returns w = C^-1 1, the weights of noise z in a prefix sum.

  Row t of A C^-1 holds w_t, ..., w_0, so e_t = sum_{j<=t} w_j^2.

  Args:
    coefficients: [bands] float64, first column of C, coefficients[0] > 0.
    terms: how many of w to return.

  Returns:
    [terms] float64.
  """
  return scipy.signal.lfilter([1.0], coefficients, np.ones(terms))


def prefix_errors(coefficients: np.ndarray, rounds: int) -> tuple[float, float]:
  """Returns (mean, max) over t of e_t for the prefix-sum workload.

    n * mean = sum_j (n - j) w_j^2,   max = sum_{j<n} w_j^2

  w_j converges to 1 / sum(coefficients), geometrically where the series has
  no root in the closed unit disc; w is computed until `bands` terms in a row
  are within 1e-12 of the limit, and the rest of the sum has a closed form.
  Where w does not converge every term is computed.

  Args:
    coefficients: [bands] float64, first column of C, coefficients[0] > 0.
    rounds: n.

  Raises:
    ValueError: w does not converge and n is too large to add up every term,
      or the errors are not finite.
  """
  coefficients = np.asarray(coefficients, np.float64)
  state = np.zeros(len(coefficients) - 1)
  total = coefficients.sum()
  # Without a limit nothing is near it, and every term is added up.
  limit = 1 / total if total > 0 else np.nan
  weighted = squares = 0.0
  done, block = 0, _FIRST_BLOCK
  while done < rounds:
    if done >= _MAX_TERMS:
      raise ValueError(
          errors.invalid(
              'rounds', rounds,
              f'C^-1 has not converged after {_MAX_TERMS} rounds',
              'use coefficients that decay faster, or fewer rounds'))
    terms = min(max(block, len(coefficients)), rounds - done)
    w, state = scipy.signal.lfilter(
        [1.0], coefficients, np.ones(terms), zi=state)
    with np.errstate(over='ignore', invalid='ignore'):
      squared = w * w
      squares += squared.sum()
      weighted += squared @ (
          rounds - np.arange(done, done + terms, dtype=float))
    done += terms
    block *= 2
    if not np.isfinite(squares):
      break
    tail = w[-len(coefficients):]
    if np.all(np.abs(tail - limit) <= _CONVERGED * limit):
      left = float(rounds - done)
      squares += left * limit**2
      weighted += left * (left + 1) / 2 * limit**2
      break
  mean, largest = weighted / rounds, squares
  if not (np.isfinite(mean) and np.isfinite(largest)):
    raise ValueError(
        errors.invalid(
            'coefficients', f'{len(coefficients)} bands',
            'C^-1 grows without bound',
            'use coefficients whose series has no root in the unit disc'))
  return float(mean), float(largest)
