"""Sensitivity of Toeplitz C, and of Toeplitz C with normalised columns.

| symbol  | meaning                                                     |
|---------|-------------------------------------------------------------|
| c       | first column of C                                           |
| B       | `bands`: c_t = 0 from t = B on                              |
| b, k    | `min_sep`, and the participations that fit                  |
| N_m     | norm of the first m of c: column i of C has norm N_{n-i}    |
| p_e(m)  | sum_{t<m} c_t c_{t+eb}: X[i, i + eb] = p_e(n - i - eb)      |

Columns are the first one, shifted and cut at n, so their norms and, if c is
non-negative, their scalar products at a fixed distance do not increase to the
right.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np
import scipy.signal

from tff_bandmf import errors, strategies
from tff_bandmf import participation as participation_lib
from tff_bandmf.sensitivity import gram, patterns, result
from tff_bandmf.strategies import base

# Up to this much of rounds * bands the Gram matrix takes a second or two.
_QUICK_GRAM = 10**7
# Up to this many sums p_e(m) take some seconds.
_QUICK_LAGS = 10**9


def sensitivity(
  strategy: strategies.Toeplitz,
  participation: participation_lib.Participation,
) -> result.Sensitivity:
  """Returns the sensitivity of a Toeplitz C.

  The leftmost pattern 0, b, 2b, ... is the worst

  - if columns do not overlap, for any c;
  - if c is non-negative and, from c_b on, non-increasing;
  - of the patterns with all gaps b, if c is non-negative.

  [BSR24, Thm 2] asks for a c that never increases. That it does not from c_b
  on is enough: for i < j, X[i, j] = sum_{t<n-j} c_{t+j-i} c_t with all the
  t + j - i >= b, so every term, and the number of terms, is largest where
  both j - i and j are least, and that the leftmost pattern is for all its
  pairs at once.

  For other c, |c| before c_b and from there its smallest non-increasing
  majorant is a bound, and so are `gram` and, where n is large, k times one row
  of |C|^T |C|; the best is returned.

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
  # PRIVACY: an increase past c_b can make another pattern worse.
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

  The leftmost pattern need not be the worst: X[i, j] = <C_i, C_j> / (N N') can
  increase to the right. But if c is non-negative and non-increasing, then

    X[i, j] does not increase with j > i,                              (*)

  so that a pattern i_0 < i_1 < ... has X[i_a, i_{a+e}] <= X[i_a, i_a + e b] and

    sens^2 <= F[0, k],   w_m(i) = X_ii + 2 sum_{0<e<m} X[i, i + e b],
    F[i, m] = max(w_m(i) + F[i + b, m - 1], F[i + 1, m]).

  It is exact if a pattern with all gaps b attains it, as it mostly does.

  Proof of (*). With m = n - j and S(l) the sum of the first l of c, column j
  cut and scaled is c_0 / N_m, c_1 / N_m, ... from row j on, and column i does
  not increase from row i on. Going from j to j + 1, every partial sum
  S(l + 1) / N_m becomes S(l) / N_{m-1}, which is no more: c_l / S(l) does not
  increase with l, and c = c_{m-1}, S = S(m-1) <= N_{m-1}^2 / c give
  (1 + c / S)^2 >= 1 + 2 c / S >= 1 + c^2 / N_{m-1}^2 = (N_m / N_{m-1})^2.
  Summation by parts does the rest.

  DP-CGD needs no such search. With S_m the sum of the first m of lambda^(2t),
  X[i, j] = lambda^(j-i) (S_{n-j} / S_{n-i})^(1/2), which increases neither with
  i at a fixed distance nor with the distance; the leftmost pattern has the
  least i and the least distances, pair by pair. [DPCGD26]

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
  # PRIVACY: of DP-CGD alone the leftmost pattern is known to be the worst.
  # Guard: sensitivity_test.test_sensitivity_against_brute_force.
  if toeplitz.is_geometric:
    return result.exact(
      _leftmost_geometric_squared(strategy, min_sep, k),
      'column-normalised DP-CGD, leftmost pattern [DPCGD26]',
    )
  fixed = participation.evenly_spaced
  # Entries of C D^-1 are at most those of C over its diagonal.
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
  """Returns c, [bands] float64; the rest of it is 0.

  Raises:
    ValueError: it is not finite.
  """
  # PRIVACY: all of the column, and not what defines it: where C^-1 has few
  # bands, C has n. Guard: families_test.test_sensitivity_is_safe.
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
  """Returns || sum_{j<k} C[:, j b] ||^2, in O(B) whatever n is.

  Rows are taken b at a time. Epoch r of the sum is that of the last k epochs
  of c up to r; from the last epoch of c on and until the last participation
  all are alike. c has at most n terms, and (k - 1) b < n.
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
  # All is over `memory` epochs after the last participation.
  epochs = min(-(-rounds // min_sep), k + memory)
  r = np.arange(epochs)
  total = sums[np.minimum(r, memory - 1)]
  total[k:] -= sums[np.minimum(r[k:] - k, memory - 1)]
  rest = total.reshape(-1)[:rounds]
  return squared + float(rest @ rest)


def _row_weight(column: np.ndarray, min_sep: int, k: int) -> float:
  """Returns the most that a pattern through i finds in row i of X, c >= 0."""
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

  `norms` are those of the columns, [n] float64.
  """
  n, bands = len(norms), len(column)
  for lag in range(0, min(k * min_sep, bands), min_sep):
    sums = np.cumsum(column[: bands - lag] * column[lag:])
    # p_e(m) has all of its terms from m = B - eb on.
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
  # As many as fit, so w_m reaches all of X that there is to the right.
  return float(patterns.heaviest(weights, min_sep, k))
