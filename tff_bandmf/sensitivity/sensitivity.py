"""Sensitivity of C: exact where a theorem applies, else an upper bound.

With X = C^T C and P the patterns that a schema allows,

  sens^2 = max_{pi in P} max_{|u_i| <= 1} || sum_{i in pi} C[:, i] u_i^T ||^2

in units of the clipping norm, under zero-out adjacency: one client's
contributions become zero in every round. Contributions u_i are vectors, so a
negative X_ij does not help: only |X_ij| is ever used.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from tff_bandmf import errors, strategies
from tff_bandmf import participation as participation_lib
from tff_bandmf.sensitivity import patterns

EXACT = 'exact'
UPPER_BOUND = 'upper_bound'

# Rows of |X| whose heaviest patterns are found at once.
_ROWS = 256


@dataclasses.dataclass(frozen=True)
class Sensitivity:
  """A sensitivity, and how it was obtained.

  Attributes:
    value: in units of the clipping norm.
    method: `EXACT` or `UPPER_BOUND`.
    reason: the theorem or algorithm.
  """

  value: float
  method: str
  reason: str


def sensitivity(
    strategy: strategies.Strategy,
    participation: participation_lib.Participation,
) -> Sensitivity:
  """Returns the sensitivity of `strategy` under `participation`.

  Args:
    strategy: C.
    participation: which rounds one client can take part in; its guarantee is
      the assumption that every privacy claim rests on.

  Raises:
    TypeError: `participation` is no schema.

  >>> sensitivity(
  ...     strategies.Identity(rounds=2052), participation_lib.MinSep(342))
  Sensitivity(value=2.449489742783178, method='exact', reason='columns of \
one client do not overlap (bands <= min_sep)')
  """
  if not isinstance(participation, participation_lib.Participation):
    raise TypeError(
        errors.invalid(
            'participation', participation, 'must be a participation schema',
            'use tff_bandmf.participation.MinSep(min_sep)'))
  if isinstance(strategy, (strategies.Identity, strategies.BandedToeplitz)):
    return _toeplitz(
        strategy.coefficients, strategy.rounds, participation)
  return _general(strategy.matrix(), strategy.bands, participation)


def _toeplitz(
    coefficients: np.ndarray,
    rounds: int,
    participation: participation_lib.Participation,
) -> Sensitivity:
  """Returns the sensitivity of the Toeplitz C with this first column.

  Columns are the first one, shifted and cut at n, so column norms do not
  increase to the right. Whether or not columns overlap, the leftmost pattern
  0, b, 2b, ... is the worst if the coefficients are non-negative and
  non-increasing [BSR24, Thm 2]; if columns do not overlap it is the worst for
  any coefficients. The smallest non-increasing majorant of |c| bounds the rest.
  """
  k = participation.participations(rounds)
  if k == 1:
    return Sensitivity(
        float(np.linalg.norm(coefficients)), EXACT,
        'largest column norm (one participation)')
  min_sep = participation.min_sep
  if len(coefficients) <= min_sep:
    # Only the last column can be cut at n: it has n - (k-1) b rows left.
    squares = coefficients**2
    last = squares[:rounds - (k - 1) * min_sep]
    return Sensitivity(
        math.sqrt((k - 1) * squares.sum() + last.sum()), EXACT,
        'columns of one client do not overlap (bands <= min_sep)')
  if np.all(coefficients >= 0) and np.all(np.diff(coefficients) <= 0):
    return Sensitivity(
        _leftmost(coefficients, rounds, min_sep, k), EXACT,
        'non-negative non-increasing Toeplitz coefficients [BSR24, Thm 2]')
  majorant = np.maximum.accumulate(np.abs(coefficients)[::-1])[::-1]
  return Sensitivity(
      _leftmost(majorant, rounds, min_sep, k), UPPER_BOUND,
      'non-increasing majorant of the Toeplitz coefficients')


def _leftmost(
    coefficients: np.ndarray, rounds: int, min_sep: int, k: int
) -> float:
  """Returns || sum_{j<k} C[:, j b] || for Toeplitz C, in O(n)."""
  epochs = np.zeros((-(-rounds // min_sep), min_sep))
  flat = epochs.reshape(-1)
  flat[:len(coefficients)] = coefficients
  summed = patterns.window_sums(epochs, k).reshape(-1)[:rounds]
  return float(np.linalg.norm(summed))


def _general(
    matrix: np.ndarray,
    bands: int,
    participation: participation_lib.Participation,
) -> Sensitivity:
  """Returns the sensitivity of any lower-triangular C of shape [n, n]."""
  rounds = len(matrix)
  k = participation.participations(rounds)
  norms_squared = np.einsum('ij,ij->j', matrix, matrix)
  if k == 1:
    return Sensitivity(
        math.sqrt(norms_squared.max()), EXACT,
        'largest column norm (one participation)')
  min_sep = participation.min_sep
  fixed = isinstance(participation, participation_lib.FixedEpoch)
  if bands <= min_sep:
    squared = (
        patterns.heaviest_fixed(norms_squared, min_sep, k) if fixed
        else patterns.heaviest(norms_squared, min_sep, k))
    return Sensitivity(
        math.sqrt(squared), EXACT,
        'columns of one client do not overlap (bands <= min_sep)')
  gram = matrix.T @ matrix
  if fixed:
    exact = bool(np.all(gram >= 0))
    squared = max(
        _fixed_epoch_squared(np.abs(gram[i::min_sep, i::min_sep]), k)
        for i in range(min_sep))
    return Sensitivity(
        math.sqrt(squared), EXACT if exact else UPPER_BOUND,
        'sum of X over one epoch offset' if exact else
        'sum of |X| over one epoch offset')
  # PRIVACY: signs of X are dropped, and each row is maximised on its own.
  # Guard: sensitivity_test.test_bound_is_never_below_brute_force.
  rows = np.concatenate([
      patterns.heaviest(np.abs(gram[i:i + _ROWS]), min_sep, k)
      for i in range(0, rounds, _ROWS)
  ])
  return Sensitivity(
      math.sqrt(float(patterns.heaviest(rows, min_sep, k))), UPPER_BOUND,
      'rows of |X| maximised one by one [BandMF23, Alg 4]')


def _fixed_epoch_squared(gram: np.ndarray, k: int) -> float:
  """Returns the largest sum of a k x k window on the diagonal of `gram`."""
  table = np.pad(gram, ((1, 0), (1, 0))).cumsum(0).cumsum(1)
  k = min(k, len(gram))
  low, high = np.arange(len(gram) - k + 1), np.arange(k, len(gram) + 1)
  return float(np.max(
      table[high, high] - table[low, high] - table[high, low]
      + table[low, low]))
