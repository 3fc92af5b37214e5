"""Sensitivity of any lower-triangular C from its Gram matrix X = C^T C.

| symbol | meaning                                                        |
|--------|----------------------------------------------------------------|
| pi     | participation pattern: the rounds of one client                |
| B      | `bands` of C: X[i, j] = 0 where abs(i - j) >= B                |
| b, k   | `min_sep`, and the largest number of rounds of one client      |
| w_i    | max over patterns pi that contain i of sum_{j in pi} abs(X_ij) |

  sens^2 <= max_pi sum_{i,j in pi} |X_ij| <= max_pi sum_{i in pi} w_i

X is computed in blocks of rows, so that memory holds no n x n matrix if C has
few bands.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Callable, Optional

import numpy as np

from tff_bandmf import participation as participation_lib
from tff_bandmf import strategies
from tff_bandmf.sensitivity import patterns, result

# Least number of rows of X in one block; smaller matrix products are slow.
_LEAST_ROWS = 64
# A negative entry of X counts as 0 if its absolute value is below this fraction
# of the largest w_i (in `observed_sensitivity`, of the largest sum of |X|).
ROUNDING = 1e-13


# PRIVACY: If one pattern had a larger norm than the sensitivity, epsilon would
# be too small. Tests compare the sensitivity with the norms of many patterns.
# Guards: families_test.test_stamped_banded_inverse_overlaps,
# sensitivity_test.test_sensitivity_against_brute_force,
# sensitivity_test.test_chain_of_overlapping_columns_against_all_patterns,
# sensitivity_test.test_signs_of_the_gram_matrix_do_not_help,
# sensitivity_test.test_bound_is_never_below_brute_force and
# admission_test.test_patterns_let_in_never_exceed_the_sensitivity.
def sensitivity(
  strategy: strategies.Strategy, participation: participation_lib.Participation
) -> result.Sensitivity:
  """Returns the sensitivity of any C, in O(n B^2).

  Two columns overlap if they have non-zero entries in the same row.

  - B <= b: the columns of a client's rounds do not overlap. sens^2 is the
    largest sum of squared column norms over patterns.
  - B <= 2b: each column of a client's rounds overlaps only with the columns of
    the previous and the next round. sens^2 is the largest sum, over a pattern,
    of X_ii for each round i and 2 |X_ij| for successive rounds i and j. This
    sum is exact for all signs of X, because contributions +1 and -1 can make
    every term positive. If C has several diagonal blocks, and rounds are not
    evenly spaced, the result is the bound for B > 2b instead.
  - B > 2b: the bound of [BandMF23, Alg 4]. Here w_i is a maximum only over
    patterns that contain i, which suffices for the proof of the bound. If
    rounds are evenly spaced, the bound is the largest sum of |X_ij| over
    patterns instead; it is exact if none of these X_ij is negative.
  """
  rounds, bands = strategy.rounds, strategy.bands
  k = participation.participations(rounds)
  if k == 1:
    return result.exact(_column_norms_squared(strategy).max(), result.ONE_ROUND)
  min_sep = participation.separation(rounds)
  fixed = participation.evenly_spaced
  # PRIVACY: If C^-1 has few bands, C has many bands, and columns of a client's
  # rounds overlap. If the bands of C^-1 were compared with `min_sep`, the
  # overlap would be ignored, and the sensitivity would be too small. The bands
  # of C are compared.
  # Guards: families_test.test_stamped_banded_inverse_overlaps,
  # sensitivity_test.test_sensitivity_against_brute_force.
  if bands <= min_sep:
    norms = _column_norms_squared(strategy)
    if fixed:
      squared = patterns.heaviest_fixed([norms], rounds, min_sep, k)
    else:
      squared = float(patterns.heaviest(norms, min_sep, k))
    return result.exact(squared, result.NO_OVERLAP)
  chained = bands <= 2 * min_sep
  if chained and not fixed and strategy.tiles() == [(strategy, 1)]:
    return result.exact(
      _heaviest_chain(strategy, min_sep, k),
      'heaviest chain of columns of which only neighbours overlap '
      '(bands <= 2 min_sep)',
    )
  lag_count = min((bands - 1) // min_sep, k - 1)
  most = 1 if fixed else k
  rows = _by_tile(
    strategy, lambda tile: _row_weights(tile, min_sep, most, lag_count)
  )
  weights, lags = rows[0], rows[1:]
  # An entry that is 0 up to rounding errors does not count as negative.
  signed = bool(np.any(lags < -ROUNDING * weights.max()))
  # PRIVACY: If X_ij is negative, opposite contributions of a client in rounds i
  # and j increase the squared sensitivity, and a sum of X would be too small.
  # The absolute values of X are added.
  # Guard: sensitivity_test.test_signs_of_the_gram_matrix_do_not_help.
  attained = patterns.heaviest_fixed(np.abs(lags), rounds, min_sep, k)
  if fixed and (chained or not signed):
    return result.exact(attained, 'sum of X over one epoch offset')
  if fixed:
    return result.bound(attained, 'sum of |X| over one epoch offset')
  # PRIVACY: A pattern with the largest sum over one row of |X| need not have
  # the largest sum over another row. If one pattern were used for all rows,
  # some w_i, and so the bound, would be too small. Each w_i is a maximum over
  # all patterns that contain i.
  # Guard: sensitivity_test.test_bound_is_never_below_brute_force.
  return result.bound(
    float(patterns.heaviest(weights, min_sep, k)),
    'rows of |X| maximised one by one [BandMF23, Alg 4]',
    0.0 if signed else attained,
  )


def _by_tile(
  strategy: strategies.Strategy,
  function: Callable[[strategies.Strategy], np.ndarray],
) -> np.ndarray:
  """Returns the arrays function(tile) of all tiles of C, concatenated.

  A tile is a block on the diagonal of C; a C without such blocks is one tile.

  Args:
    strategy: strategy matrix C.
    function: function from a tile to [..., columns of the tile] float64.
  """
  return np.concatenate(
    [np.tile(function(tile), copies) for tile, copies in strategy.tiles()], -1
  )


def _column_norms_squared(strategy: strategies.Strategy) -> np.ndarray:
  """Returns the diagonal of X, [n] float64."""
  return _by_tile(strategy, lambda tile: tile.column_norms_squared())


# PRIVACY: If a weight missed an entry of X, the bound could be below the
# sensitivity. The weight of a row is the sum over its heaviest pattern.
# Guards: sensitivity_test.test_bound_is_never_below_brute_force,
# sensitivity_test.test_sensitivity_against_brute_force,
# admission_test.test_patterns_let_in_never_exceed_the_sensitivity and
# families_test.test_sensitivity_is_safe_where_rounds_are_many.
def _row_weights(
  strategy: strategies.Strategy, min_sep: int, k: int, lag_count: int
) -> np.ndarray:
  """Returns w, and X[i, i + e b] for e = 0, ..., lag_count.

  Returns:
    [2 + lag_count, n] float64, with w in row 0 and X[i, i + e b] in row 1 + e,
    which is 0 if i + e b >= n. For k = 1, w_i is X_ii.
  """
  rows = np.zeros((2 + lag_count, strategy.rounds))
  for start, stop, first, gram in _gram_rows(strategy):
    i = np.arange(start, stop)
    last = first + gram.shape[1]
    for e in range(lag_count + 1):
      inside = i[i + e * min_sep < last]
      rows[1 + e, inside] = gram[inside - start, inside + e * min_sep - first]
    rows[0, start:stop] = rows[1, start:stop]
    if k > 1:
      distance = np.abs(i[:, None] - np.arange(first, last))
      others = np.where(distance < min_sep, 0.0, np.abs(gram))
      rows[0, start:stop] += patterns.heaviest(others, min_sep, k - 1)
  return rows


# PRIVACY: If a heavier chain were overlooked, the sensitivity would be too
# small. Each step takes the maximum over all next rounds.
# Guards:
# sensitivity_test.test_chain_of_overlapping_columns_against_all_patterns,
# random_structures_test.test_random_patterns_never_exceed_the_sensitivity,
# admission_test.test_patterns_let_in_never_exceed_the_sensitivity and
# sensitivity_test.test_sensitivity_against_brute_force.
def _heaviest_chain(
  strategy: strategies.Strategy, min_sep: int, k: int
) -> float:
  """Returns the largest sum of X_ii and 2 |X_ij| over chains, for B <= 2b.

  A chain has at most k rounds, each at least b after the previous round. The
  sum has X_ii for each round i of the chain, and 2 |X_ij| if j is the round
  after i. The largest sum of a chain of m rounds that begins at i is

    S[i, m] = X_ii + max_{j >= i + b} (2 |X_ij| + S[j, m - 1])
  """
  rounds = strategy.rounds
  # If `min_sep` alone limits chains to k rounds, the index m of S is dropped.
  levels = k if k < -(-rounds // min_sep) else 1
  counted = int(levels > 1)
  # starting[m, i] is S[i, m], and best[m, i] = max_{j >= i} S[j, m].
  best = np.zeros((levels + counted, rounds + 1))
  starting = np.zeros_like(best)
  if counted:
    starting[0] = -np.inf
  for start, stop, first, gram in _gram_rows(strategy, backwards_by=min_sep):
    i = np.arange(start, stop)
    j = np.arange(start, first + gram.shape[1])
    pairs = 2 * np.abs(gram[:, start - first :])
    pairs[j < i[:, None] + min_sep] = -np.inf
    own = gram[i - start, i - first]
    for m in range(counted, levels + counted):
      before = m - counted
      chained = (pairs + starting[before, j]).max(1)
      later = best[before, min(j[-1] + 1, rounds)]
      starting[m, i] = own + np.maximum(chained, later)
      best[m, start:stop] = np.maximum(
        np.maximum.accumulate(starting[m, i[::-1]])[::-1], best[m, stop]
      )
  return float(best[-1, 0])


# PRIVACY: If a block missed an entry of X, the sensitivity would be too small.
# A block includes every column of X in which its rows can be non-zero.
# Guards: admission_test.test_patterns_let_in_never_exceed_the_sensitivity and
# sensitivity_test.test_sensitivity_against_brute_force.
def _gram_rows(
  strategy: strategies.Strategy, backwards_by: Optional[int] = None
) -> Iterator[tuple[int, int, int, np.ndarray]]:
  """Yields X in blocks: (start, stop, first, X[start:stop, first:last]).

  Columns of X outside [first, last) are 0 in these rows.

  Args:
    strategy: strategy matrix C.
    backwards_by: largest number of rows of a block; the block of the last rows
      then comes first. If None, the block of the first rows comes first.
  """
  rounds, bands = strategy.rounds, strategy.bands
  step = max(_LEAST_ROWS, bands // 4)
  starts: Iterable[int] = range(0, rounds, step)
  if backwards_by is not None:
    step = min(step, backwards_by)
    starts = reversed(range(0, rounds, step))
  for start in starts:
    stop = min(start + step, rounds)
    first, last = max(start - bands + 1, 0), min(stop + bands - 1, rounds)
    below = strategy.part(start, last, first)
    yield start, stop, first, (below[:, start - first : stop - first].T @ below)
