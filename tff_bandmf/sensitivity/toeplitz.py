"""Sensitivity of Toeplitz C, and of Toeplitz C with normalised columns.

| symbol  | meaning                                                     |
|---------|-------------------------------------------------------------|
| n       | number of rounds                                            |
| c       | first column of C                                           |
| B       | `bands`: c_t = 0 from t = B on                              |
| b, k    | `min_sep`, and the largest number of rounds of one client   |
| X       | C^T C                                                       |
| N_m     | norm of c_0, ..., c_{m-1}: column i of C has norm N_{n-i}   |
| p_e(m)  | sum_{t<m} c_t c_{t+eb}: X[i, i + eb] = p_e(n - i - eb)      |

Column i is the first column shifted down by i rows and cut off at row n. So
column norms do not increase with i. For a non-negative c and a fixed l, the
inner product of columns i and i + l does not increase with i either. The
leftmost pattern of a client is the rounds 0, b, 2b, ....
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np
import scipy

from tff_bandmf import participation as participation_lib
from tff_bandmf import strategies
from tff_bandmf.sensitivity import gram, patterns, result
from tff_bandmf.strategies import base, per_query

# Largest rounds * bands for which the Gram matrix is computed; at this limit it
# takes about 2 seconds.
_QUICK_GRAM = 10**7
# Largest number of sums p_e(m); at this limit they take some seconds.
_QUICK_LAGS = 10**9


def sensitivity(
  strategy: strategies.Toeplitz, participation: participation_lib.Participation
) -> result.Sensitivity:
  """Returns the sensitivity of a Toeplitz C.

  The leftmost pattern 0, b, 2b, ... attains the sensitivity
  - if B <= b, so that columns of a client do not overlap, for any c;
  - if c is non-negative and, from c_b on, non-increasing;
  - among patterns with all distances equal to b, if c is non-negative.

  [BSR24, Thm 2] assumes that all of c is non-increasing, but this assumption is
  needed only from c_b on. For two rounds i < j of a client,
  X[i, j] = sum_{t<n-j} c_{t+j-i} c_t, where all t + j - i >= b. So the terms,
  and their number, are largest if j - i and j are least. The leftmost pattern
  has the least j - i and the least j for each of its pairs of rounds.

  For any other c, the smallest of these upper bounds is returned:
  - the value of the leftmost pattern for another column: |c| before c_b, and
    the smallest non-increasing majorant of |c| from c_b on (|c| throughout if
    all distances equal b);
  - the result of the module `gram`, if n * B is small; if it is exact, it is
    returned in any case;
  - k times the heaviest row of |C|^T |C|, if n * B is large.

  Raises:
    ValueError: c overflows.
  """
  column = _finite_column(strategy)
  rounds = strategy.rounds
  k = participation.participations(rounds)
  # PRIVACY: If a client takes part more than once, the norm of one column is
  # too small a sensitivity. This norm is returned only for k = 1.
  # Guard:
  # random_structures_test.test_random_patterns_never_exceed_the_sensitivity.
  if k == 1:
    return result.exact(column @ column, result.ONE_ROUND)
  min_sep = participation.separation(rounds)
  # PRIVACY: If c has negative entries, opposite contributions can have a larger
  # norm than equal contributions. So absolute values are summed.
  # Guards: sensitivity_test.test_sensitivity_against_brute_force and
  # families_test.test_sensitivity_is_safe.
  leftmost = _leftmost_squared(np.abs(column), rounds, min_sep, k)
  if len(column) <= min_sep:
    return result.exact(leftmost, result.NO_OVERLAP)
  # PRIVACY: If c has a negative entry or increases after c_b, another pattern
  # can have a larger sum than the leftmost pattern, and the sensitivity would
  # be too small. The theorem is used only if c is non-negative and does not
  # increase from c_b on.
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
    # PRIVACY: If c increases, another pattern can be heavier than the leftmost
    # pattern. The smallest non-increasing majorant of c gives a bound.
    # Guards: sensitivity_test.test_sensitivity_against_brute_force and
    # sensitivity_test.test_bound_is_never_below_brute_force.
    leftmost if fixed else _leftmost_squared(majorant, rounds, min_sep, k),
    'absolute Toeplitz coefficients'
    if fixed
    else 'majorant of the Toeplitz coefficients, not increasing from min_sep',
  )
  if rounds * strategy.bands <= _QUICK_GRAM:
    return result.better(bound, gram.sensitivity(strategy, participation))
  heaviest_row = result.bound(
    k * _row_weight(np.abs(column), min_sep, k),
    'largest row of |C|^T |C| for columns that are not cut off '
    '[BandMF23, Alg 4]',
  )
  return result.better(bound, heaviest_row)


def normalized_sensitivity(
  strategy: strategies.ColumnNormalized,
  participation: participation_lib.Participation,
) -> result.Sensitivity:
  """Returns the sensitivity of C D^-1, D = diag(column norms of C).

  C is Toeplitz, and X is the Gram matrix of C D^-1. The leftmost pattern need
  not attain the sensitivity, because X[i, j] = <C_i, C_j> / (|C_i| |C_j|) can
  increase with i at a fixed distance. But if c is non-negative and
  non-increasing, then

    X[i, j] does not increase with j > i.                              (*)

  So a pattern i_0 < i_1 < ... has X[i_a, i_{a+e}] <= X[i_a, i_a + e b], and

    sens^2 <= F[0, k],   w_m(i) = X_ii + 2 sum_{0<e<m} X[i, i + e b],
    F[i, m] = max(w_m(i) + F[i + b, m - 1], F[i + 1, m]).

  The bound F[0, k] is exact if a pattern with all distances equal to b attains
  it, which is the usual case.

  Proof of (*). Let m = n - j and S(l) = c_0 + ... + c_{l-1}. From row j on,
  column j of C D^-1 is c_0 / N_m, c_1 / N_m, ..., and column i does not
  increase. If j becomes j + 1, the sum of column j up to a given row changes
  from S(l + 1) / N_m to S(l) / N_{m-1}. It does not become larger, since
  S(l + 1) / S(l) >= N_m / N_{m-1}. To prove this, let c = c_{m-1} and
  S = S(m - 1). The left side is at least 1 + c / S, because c_l / S(l) does not
  increase with l. And S <= N_{m-1}^2 / c gives
  (1 + c / S)^2 >= 1 + 2 c / S >= 1 + c^2 / N_{m-1}^2 = (N_m / N_{m-1})^2.
  Summation by parts gives (*).

  For DP-CGD, where c_t = lambda^t, the leftmost pattern attains the
  sensitivity [DPCGD26]. With S_m = sum_{t<m} lambda^(2t),
  X[i, j] = lambda^(j-i) (S_{n-j} / S_{n-i})^(1/2) does not increase with i at a
  fixed distance j - i, and does not increase with the distance. The leftmost
  pattern has the least i and the least distance for each of its pairs of
  rounds.

  Raises:
    ValueError: c overflows.
  """
  toeplitz = strategy.toeplitz
  column = _finite_column(toeplitz)
  rounds = strategy.rounds
  k = participation.participations(rounds)
  if k == 1:
    return result.exact(1.0, result.ONE_ROUND)
  min_sep = participation.separation(rounds)
  if strategy.bands <= min_sep:
    return result.exact(k, result.NO_OVERLAP)
  # PRIVACY: In most families with normalised columns, another pattern can have
  # a larger sum than the leftmost pattern, and the sensitivity would be too
  # small. The theorem of DP-CGD is used only for DP-CGD.
  # Guards: sensitivity_test.test_sensitivity_against_brute_force,
  # families_test.test_sensitivity_is_safe.
  if toeplitz.is_geometric:
    return result.exact(
      _leftmost_geometric_squared(strategy, min_sep, k),
      'column-normalised DP-CGD, leftmost pattern [DPCGD26]',
    )
  fixed = participation.evenly_spaced
  # Column norms are at least c_0. So contributions u of norm at most 1 give
  # C D^-1 u = C v, where the contributions v have norm at most 1 / c_0.
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
    # PRIVACY: The sum over one offset is a bound for fixed epochs alone. Other
    # schemas allow heavier patterns.
    # Guard:
    # random_structures_test.test_random_patterns_never_exceed_the_sensitivity.
    if fixed:
      return result.bound(attained, 'sum of |X| over one epoch offset')
    if _falls(column):
      nearest = _nearest(lags(), rounds, min_sep, k)
      reason = 'columns of one client as near as min_sep allows'
      best = result.better(best, result.bound(nearest, reason, attained))
  if best.method == result.EXACT or rounds * strategy.bands > _QUICK_GRAM:
    return best
  return result.better(best, gram.sensitivity(strategy, participation))


def _finite_column(strategy: strategies.Toeplitz) -> np.ndarray:
  """Returns c_0, ..., c_{B-1}, [bands] float64.

  Raises:
    ValueError: an entry is not finite.
  """
  base.check_rounds(strategy.bands)
  # PRIVACY: If C^-1 has few bands, C has n bands, and columns of C overlap in
  # more rows than columns of C^-1. A sensitivity from the coefficients of C^-1
  # could be too small. All bands of C itself are used.
  # Guard: families_test.test_sensitivity_is_safe.
  column = strategy.column(strategy.bands)
  return per_query.check_finite(column)


def _falls(column: np.ndarray) -> bool:
  """Returns whether a column is non-negative and non-increasing."""
  return bool(np.all(column >= 0) and np.all(np.diff(column) <= 0))


def _leftmost_squared(
  column: np.ndarray, rounds: int, min_sep: int, k: int
) -> float:
  """Returns || sum_{j<k} C[:, j b] ||^2, in O(B) for every n.

  The rows of this sum, and the terms of c, are split into epochs of length b.
  Epoch r of the sum is the sum of epochs r - k + 1, ..., r of c. So all epochs
  of the sum from the last epoch of c to the last participation are equal, and
  only one of them is computed. c has at most n terms, and (k - 1) b < n.
  """
  if len(column) <= min_sep:
    # Only the last column can be cut off at row n: n - (k - 1) b rows are left.
    last = column[: rounds - (k - 1) * min_sep]
    return (k - 1) * float(column @ column) + float(last @ last)
  memory = -(-len(column) // min_sep)
  sums = np.zeros((memory, min_sep))
  sums.reshape(-1)[: len(column)] = column
  sums = np.cumsum(sums, axis=0)
  # PRIVACY: If the number of equal epochs were negative, the sum would be too
  # small. This number is at least 0.
  # Guard:
  # random_structures_test.test_random_patterns_never_exceed_the_sensitivity.
  alike = max(k - memory, 0)
  squared = alike * float(sums[-1] @ sums[-1])
  k, rounds = k - alike, rounds - alike * min_sep
  # The sum is 0 in all rounds at least `memory` epochs after the last
  # participation.
  epochs = min(-(-rounds // min_sep), k + memory)
  r = np.arange(epochs)
  total = sums[np.minimum(r, memory - 1)]
  total[k:] -= sums[np.minimum(r[k:] - k, memory - 1)]
  rest = total.reshape(-1)[:rounds]
  return squared + float(rest @ rest)


def _row_weight(column: np.ndarray, min_sep: int, k: int) -> float:
  """Returns w_i of the module `gram` for columns that row n does not cut off.

  The result bounds every w_i of C.

  Args:
    column: c, [bands] float64, non-negative.
    min_sep: b.
    k: largest number of rounds of one client.
  """
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
    k: largest number of rounds of one client.
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
  """Returns F[0, k] of `normalized_sensitivity`.

  Args:
    lags: the arrays X[i, i + e b] for e = 0, 1, ....
    rounds: n.
    min_sep: b.
    k: largest number of rounds of one client.
  """
  weights, best = np.zeros((2, rounds))
  counted = k < -(-rounds // min_sep)
  for m in range(k):
    lag = next(lags, None)
    if lag is not None:
      # PRIVACY: Each pair of rounds is two terms of the squared norm. With one
      # term, the sensitivity would be too small.
      # Guards: families_test.test_sensitivity_is_safe and
      # families_test.test_normalised_columns_against_many_patterns.
      weights[: len(lag)] += 2 * lag if m else lag
    elif not counted:
      break
    if counted:
      best = patterns.with_one_more(best, weights, min_sep)
  if counted:
    return float(best[0])
  # Here k >= ceil(n / b), so no pattern has more than k rounds, and `weights`
  # has the terms X[i, i + e b] of all e.
  return float(patterns.heaviest(weights, min_sep, k))
