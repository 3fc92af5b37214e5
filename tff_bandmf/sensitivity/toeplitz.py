"""Sensitivity of Toeplitz C, and of Toeplitz C with normalised columns.

| symbol  | meaning                                                     |
|---------|-------------------------------------------------------------|
| c       | first column of C                                           |
| B       | `bands`: c_t = 0 from t = B on                              |
| b, k    | `min_sep`, and the most rounds of one client                |
| N_m     | norm of c_0, ..., c_{m-1}: column i of C has norm N_{n-i}   |
| p_e(m)  | sum_{t<m} c_t c_{t+eb}: X[i, i + eb] = p_e(n - i - eb)      |

Each column is the first column shifted down and cut at row n. So column norms
do not increase with i, and for a non-negative c neither do the scalar products
of columns at a fixed distance. The leftmost pattern is 0, b, 2b, ....
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np
import scipy

from tff_bandmf import errors, strategies
from tff_bandmf import participation as participation_lib
from tff_bandmf.sensitivity import gram, patterns, result
from tff_bandmf.strategies import base

# Most rounds * bands for which the Gram matrix is computed, in about 2 seconds.
_QUICK_GRAM = 10**7
# Most sums p_e(m) that are computed, in some seconds.
_QUICK_LAGS = 10**9


def sensitivity(
  strategy: strategies.Toeplitz,
  participation: participation_lib.Participation,
) -> result.Sensitivity:
  """Returns the sensitivity of a Toeplitz C.

  The leftmost pattern 0, b, 2b, ... attains the sensitivity
  - if columns do not overlap, for any c;
  - if c is non-negative and, from c_b on, non-increasing;
  - among patterns with all gaps equal to b, if c is non-negative.

  [BSR24, Thm 2] assumes that c is non-increasing everywhere, but from c_b on is
  enough. For two rounds i < j of a client X[i, j] = sum_{t<n-j} c_{t+j-i} c_t,
  where all t + j - i >= b. So the terms, and their number, are largest if j - i
  and j are least, and the leftmost pattern has the least j - i and j for all
  its pairs of rounds.

  For another c there are three upper bounds, and the least is returned:
  - the leftmost pattern for |c| before c_b and the smallest non-increasing
    majorant of |c| from c_b on;
  - the bound of `gram`, if n * B is small;
  - k times the heaviest row of |C|^T |C|, if n * B is large.

  Raises:
    ValueError: c overflows.
  """
  column = _finite_column(strategy)
  rounds = strategy.rounds
  k = participation.participations(rounds)
  if k == 1:
    return result.exact(
      float(column @ column), 'largest column norm (one participation)'
    )
  min_sep = participation.separation(rounds)
  leftmost = _leftmost_squared(np.abs(column), rounds, min_sep, k)
  if len(column) <= min_sep:
    return result.exact(
      leftmost, 'columns of one client do not overlap (bands <= min_sep)'
    )
  # PRIVACY: If c increases past c_b, another pattern can have a larger sum than
  # the leftmost one. The theorem is used only if c does not increase there.
  # Guard: sensitivity_test.test_sensitivity_against_brute_force.
  if column[:min_sep].min() >= 0 and _falls(column[min_sep:]):
    return result.exact(
      leftmost,
      'non-negative Toeplitz coefficients that do not increase '
      'from lag min_sep on [BSR24, Thm 2]',
    )
  fixed = participation.evenly_spaced
  if fixed and np.all(column >= 0):
    return result.exact(
      leftmost, 'non-negative Toeplitz coefficients, leftmost epoch offset'
    )
  majorant = np.abs(column)
  majorant[min_sep:] = np.maximum.accumulate(majorant[: min_sep - 1 : -1])[::-1]
  bound = result.bound(
    leftmost if fixed else _leftmost_squared(majorant, rounds, min_sep, k),
    'absolute Toeplitz coefficients'
    if fixed
    else 'majorant of the Toeplitz coefficients, not increasing from min_sep',
  )
  if rounds * strategy.bands <= _QUICK_GRAM:
    return result.better(bound, gram.sensitivity(strategy, participation))
  return result.better(
    bound,
    result.bound(
      k * _row_weight(np.abs(column), min_sep, k),
      'row of |C|^T |C| that nothing cuts, maximised [BandMF23, Alg 4]',
    ),
  )


def normalized_sensitivity(
  strategy: strategies.ColumnNormalized,
  participation: participation_lib.Participation,
) -> result.Sensitivity:
  """Returns the sensitivity of C D^-1, C Toeplitz and D its column norms.

  The leftmost pattern need not attain the sensitivity, because
  X[i, j] = <C_i, C_j> / (|C_i| |C_j|) can increase with i at a fixed distance.
  But if c is non-negative and non-increasing, then

    X[i, j] does not increase with j > i.                              (*)

  So a pattern i_0 < i_1 < ... has X[i_a, i_{a+e}] <= X[i_a, i_a + e b], and

    sens^2 <= F[0, k],   w_m(i) = X_ii + 2 sum_{0<e<m} X[i, i + e b],
    F[i, m] = max(w_m(i) + F[i + b, m - 1], F[i + 1, m]).

  F[0, k] is exact if a pattern with all gaps equal to b attains it, which is
  the usual case.

  Proof of (*). Let m = n - j and S(l) = c_0 + ... + c_{l-1}. From row j on, the
  scaled column j is c_0 / N_m, c_1 / N_m, ..., and the scaled column i does not
  increase from row i on. From j to j + 1 the partial sum S(l + 1) / N_m of
  column j becomes S(l) / N_{m-1}, which is not larger: c_l / S(l) does not
  increase with l, and c = c_{m-1}, S = S(m-1) <= N_{m-1}^2 / c give
  (1 + c / S)^2 >= 1 + 2 c / S >= 1 + c^2 / N_{m-1}^2 = (N_m / N_{m-1})^2.
  Summation by parts gives (*).

  For DP-CGD the leftmost pattern attains the sensitivity. With
  S_m = sum_{t<m} lambda^(2t), X[i, j] = lambda^(j-i) (S_{n-j} / S_{n-i})^(1/2)
  increases neither with i at a fixed distance nor with the distance, and the
  leftmost pattern has the least i and the least distance for each of its pairs
  of rounds. [DPCGD26]

  Raises:
    ValueError: c overflows.
  """
  toeplitz = strategy.toeplitz
  column = _finite_column(toeplitz)
  rounds = strategy.rounds
  k = participation.participations(rounds)
  if k == 1:
    return result.exact(1.0, 'largest column norm (one participation)')
  min_sep = participation.separation(rounds)
  if strategy.bands <= min_sep:
    return result.exact(
      float(k), 'columns of one client do not overlap (bands <= min_sep)'
    )
  # PRIVACY: For most families another pattern can have a larger sum than the
  # leftmost one. The theorem of DP-CGD is used for DP-CGD alone.
  # Guard: sensitivity_test.test_sensitivity_against_brute_force.
  if toeplitz.is_geometric:
    return result.exact(
      _leftmost_geometric_squared(strategy, min_sep, k),
      'column-normalised DP-CGD, leftmost pattern [DPCGD26]',
    )
  fixed = participation.evenly_spaced
  # Column norms are at least c_0, so |C D^-1| <= |C| / c_0 entry by entry.
  best = result.bound(
    min(float(k), sensitivity(toeplitz, participation).value / column[0]) ** 2,
    'sensitivity without column normalisation over the least column norm',
  )
  passes = k if k < -(-rounds // min_sep) else -(-strategy.bands // min_sep)
  if rounds * passes <= _QUICK_LAGS:
    lags = functools.partial(_lags, column, strategy.column_norms, min_sep, k)
    attained = patterns.heaviest_fixed(lags(), rounds, min_sep, k)
    if fixed and (np.all(column >= 0) or strategy.bands <= 2 * min_sep):
      return result.exact(attained, 'sum of X over one epoch offset')
    if fixed:
      return result.bound(attained, 'sum of |X| over one epoch offset')
    if _falls(column):
      best = result.better(
        best,
        result.bound(
          _nearest(lags(), rounds, min_sep, k),
          'columns of one client as near as min_sep allows',
          attained,
        ),
      )
  if best.method == result.EXACT or rounds * strategy.bands > _QUICK_GRAM:
    return best
  return result.better(best, gram.sensitivity(strategy, participation))


def _finite_column(strategy: strategies.Toeplitz) -> np.ndarray:
  """Returns c_0, ..., c_{B-1}, [bands] float64.

  Raises:
    ValueError: an entry is not finite.
  """
  # PRIVACY: If C^-1 has few bands, its coefficients define C, but C has n bands
  # and columns overlap more. The column of C itself is used, all of its bands.
  # Guard: families_test.test_sensitivity_is_safe.
  base.check_rounds(strategy.bands)
  column = strategy.column(strategy.bands)
  if not np.all(np.isfinite(column)):
    raise errors.value_error(
      f'family={strategy.family}: entries of C overflow; use fewer rounds, or '
      'a C^-1 whose series has no root in the unit disc'
    )
  return column


def _falls(column: np.ndarray) -> bool:
  """Returns whether a column is non-negative and non-increasing."""
  return bool(np.all(column >= 0) and np.all(np.diff(column) <= 0))


def _leftmost_squared(
  column: np.ndarray, rounds: int, min_sep: int, k: int
) -> float:
  """Returns || sum_{j<k} C[:, j b] ||^2, in O(B) for every n.

  An epoch is b rows. Epoch r of the sum of columns is the sum of the last k
  epochs of c up to epoch r. So all epochs from the last epoch of c to the last
  participation are equal, and only one of them is computed. c has at most n
  terms, and (k - 1) b < n.
  """
  if len(column) <= min_sep:
    # Only the last column can be cut: it has n - (k - 1) b rows.
    last = column[: rounds - (k - 1) * min_sep]
    return (k - 1) * float(column @ column) + float(last @ last)
  memory = -(-len(column) // min_sep)
  sums = np.zeros((memory, min_sep))
  sums.reshape(-1)[: len(column)] = column
  sums = np.cumsum(sums, axis=0)
  alike = max(k - memory, 0)
  squared = alike * float(sums[-1] @ sums[-1])
  k, rounds = k - alike, rounds - alike * min_sep
  # The sum of columns is 0 from `memory` epochs after the last participation.
  epochs = min(-(-rounds // min_sep), k + memory)
  r = np.arange(epochs)
  total = sums[np.minimum(r, memory - 1)]
  total[k:] -= sums[np.minimum(r[k:] - k, memory - 1)]
  rest = total.reshape(-1)[:rounds]
  return squared + float(rest @ rest)


def _row_weight(column: np.ndarray, min_sep: int, k: int) -> float:
  """Returns w_i of `gram` for a column c >= 0 that no row limit cuts."""
  row = np.maximum(scipy.signal.correlate(column, column), 0.0)
  middle = len(column) - 1
  own = row[middle]
  row[middle - min_sep + 1 : middle + min_sep] = 0.0
  return float(own + patterns.heaviest(row, min_sep, k - 1))


def _leftmost_geometric_squared(
  strategy: strategies.ColumnNormalized, min_sep: int, k: int
) -> float:
  """Returns || sum_{j<k} (C D^-1)[:, j b] ||^2 for c_j = lambda^j, in O(n)."""
  impulses = np.zeros(strategy.rounds)
  taken = np.arange(k) * min_sep
  impulses[taken] = 1 / strategy.column_norms[taken]
  inverse = strategy.toeplitz.inverse_column(2)
  summed = scipy.signal.lfilter([1.0], inverse, impulses)
  return float(summed @ summed)


def _lags(
  column: np.ndarray, norms: np.ndarray, min_sep: int, k: int
) -> Iterator[np.ndarray]:
  """Yields |X[i, i + e b]| for e = 0, 1, ..., k - 1 while eb < B.

  Args:
    column: c, [bands] float64.
    norms: column norms of C, [n] float64.
    min_sep: b.
    k: most rounds of one client.
  """
  n, bands = len(norms), len(column)
  for lag in range(0, min(k * min_sep, bands), min_sep):
    sums = np.cumsum(column[: bands - lag] * column[lag:])
    # p_e(m) is constant from m = B - eb on.
    sums = np.pad(sums, (0, n - bands), mode='edge')[::-1]
    yield np.abs(sums) / (norms[: n - lag] * norms[lag:])


def _nearest(
  lags: Iterator[np.ndarray], rounds: int, min_sep: int, k: int
) -> float:
  """Returns F[0, k] of `normalized_sensitivity`; lags are X[i, i + e b]."""
  weights, best = np.zeros((2, rounds))
  counted = k < -(-rounds // min_sep)
  for m in range(k):
    lag = next(lags, None)
    if lag is not None:
      weights[: len(lag)] += 2 * lag if m else lag
    elif not counted:
      break
    if counted:
      best = patterns.with_one_more(best, weights, min_sep)
  if counted:
    return float(best[0])
  # min_sep alone limits the rounds, so w_m(i) covers all X[i, i + e b].
  return float(patterns.heaviest(weights, min_sep, k))
