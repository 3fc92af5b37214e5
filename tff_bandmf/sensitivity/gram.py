"""Sensitivity from X = C^T C itself, for any lower-triangular C.

| symbol | meaning                                                    |
|--------|------------------------------------------------------------|
| B      | `bands` of C: X[i, j] = 0 where abs(i - j) >= B            |
| b, k   | `min_sep`, and the participations that fit                 |
| w_i    | the most that a pattern through i finds in row i of abs(X) |

  sens^2 <= max_pi sum_{i,j in pi} |X_ij| <= max_pi sum_{i in pi} w_i

Rows of X are made a few at a time, so nothing n x n is held where C has few
bands.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Callable, Optional

import numpy as np

from tff_bandmf import participation as participation_lib
from tff_bandmf import strategies
from tff_bandmf.sensitivity import patterns, result

# Matrix products need so many rows to be quick, and pay for more of them than
# a quarter of the bands.
_LEAST_ROWS = 64
# Entries of X so small next to its diagonal are zeros.
ROUNDING = 1e-13


def sensitivity(
  strategy: strategies.Strategy,
  participation: participation_lib.Participation,
) -> result.Sensitivity:
  """Returns the sensitivity of any C, in O(n B^2).

  Columns of one client that do not overlap (B <= b): the heaviest pattern of
  their squared norms. Columns that overlap only with the next one (B <= 2b):
  the heaviest chain of X_ii and 2 |X_ij|; contributions +1 and -1 can make all
  terms of a chain positive, so this is exact whatever the signs. Otherwise
  [BandMF23, Alg 4], with w_i over patterns through i only, which is all that
  its proof needs.
  """
  rounds, bands = strategy.rounds, strategy.bands
  k = participation.participations(rounds)
  if k == 1:
    return result.exact(
      float(_column_norms_squared(strategy).max()),
      'largest column norm (one participation)',
    )
  min_sep = participation.separation(rounds)
  fixed = participation.evenly_spaced
  # PRIVACY: bands of C, never those of C^-1.
  # Guard: families_test.test_stamped_banded_inverse_overlaps.
  if bands <= min_sep:
    norms = _column_norms_squared(strategy)
    squared = (
      patterns.heaviest_fixed([norms], rounds, min_sep, k)
      if fixed
      else float(patterns.heaviest(norms, min_sep, k))
    )
    return result.exact(
      squared, 'columns of one client do not overlap (bands <= min_sep)'
    )
  chained = bands <= 2 * min_sep
  if chained and not fixed and strategy.tiles() == [(strategy, 1)]:
    return result.exact(
      _heaviest_chain(strategy, min_sep, k),
      'heaviest chain of columns of which only neighbours overlap '
      '(bands <= 2 min_sep)',
    )
  lag_count = min((bands - 1) // min_sep, k - 1)
  weights, lags = np.split(
    _by_tile(
      strategy,
      lambda tile: _row_weights(tile, min_sep, 1 if fixed else k, lag_count),
    ),
    [1],
  )
  # Rounding of a zero has a sign; it is added up as positive all the same.
  signed = bool(np.any(lags < -ROUNDING * weights.max()))
  # PRIVACY: contributions are vectors, so signs of X do not help.
  # Guard: sensitivity_test.test_signs_of_the_gram_matrix_do_not_help.
  attained = patterns.heaviest_fixed(np.abs(lags), rounds, min_sep, k)
  if fixed and (chained or not signed):
    return result.exact(attained, 'sum of X over one epoch offset')
  if fixed:
    return result.bound(attained, 'sum of |X| over one epoch offset')
  # PRIVACY: each row of |X| is maximised on its own.
  # Guard: sensitivity_test.test_bound_is_never_below_brute_force.
  return result.bound(
    float(patterns.heaviest(weights[0], min_sep, k)),
    'rows of |X| maximised one by one [BandMF23, Alg 4]',
    0.0 if signed else attained,
  )


def _by_tile(
  strategy: strategies.Strategy,
  function: Callable[[strategies.Strategy], np.ndarray],
) -> np.ndarray:
  """Returns `function`, [..., columns], of tile after tile."""
  return np.concatenate(
    [np.tile(function(tile), copies) for tile, copies in strategy.tiles()], -1
  )


def _column_norms_squared(strategy: strategies.Strategy) -> np.ndarray:
  """Returns the diagonal of X, [n] float64."""
  return _by_tile(strategy, lambda tile: tile.column_norms_squared())


def _row_weights(
  strategy: strategies.Strategy, min_sep: int, k: int, lag_count: int
) -> np.ndarray:
  """Returns w, and X[i, i + e b] for e = 0 .. lag_count.

  It is [2 + lag_count, n] float64, w first; X is 0 past round n, and k = 1
  leaves w at X_ii.
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


def _heaviest_chain(
  strategy: strategies.Strategy, min_sep: int, k: int
) -> float:
  """Returns the largest sum of X_ii and 2 |X_ij| over i, and its next j.

  S[i, m] = X_ii + max_{j >= i + b} (2 |X_ij| + S[j, m - 1]),   B <= 2b
  """
  rounds = strategy.rounds
  # Where min_sep alone bounds the count, S needs no m.
  levels = k if k < -(-rounds // min_sep) else 1
  counted = int(levels > 1)
  # starting[m, i] is S, and best[m, i] the largest of it from i on.
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
      starting[m, i] = own + np.maximum(
        chained, best[before, min(j[-1] + 1, rounds)]
      )
      best[m, start:stop] = np.maximum(
        np.maximum.accumulate(starting[m, i[::-1]])[::-1], best[m, stop]
      )
  return float(best[-1, 0])


def _gram_rows(
  strategy: strategies.Strategy, backwards_by: Optional[int] = None
) -> Iterator[tuple[int, int, int, np.ndarray]]:
  """Yields X in blocks of rows: (start, stop, first, X[start:stop, first:]).

  Columns are those that can be non-zero. With `backwards_by`, blocks have at
  most so many rows, the last first.
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
