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
# Entries of C held at once.
_ENTRIES = 2**22
# Entries of X so small next to its diagonal are zeros.
_ROUNDING = 1e-13


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

  Args:
    strategy: C.
    participation: the schema.
  """
  rounds, bands = strategy.rounds, strategy.bands
  k = participation.participations(rounds)
  if k == 1:
    return result.exact(
      float(column_norms_squared(strategy).max()),
      'largest column norm (one participation)',
    )
  min_sep = participation.separation(rounds)
  fixed = isinstance(participation, participation_lib.FixedEpoch)
  # PRIVACY: bands of C, never those of C^-1.
  # Guard: families_test.test_stamped_banded_inverse_overlaps.
  if bands <= min_sep:
    norms = column_norms_squared(strategy)
    squared = (
      patterns.heaviest_fixed([norms], rounds, min_sep, k)
      if fixed
      else float(patterns.heaviest(norms, min_sep, k))
    )
    return result.exact(
      squared, 'columns of one client do not overlap (bands <= min_sep)'
    )
  chained = bands <= 2 * min_sep
  if chained and not fixed and not isinstance(strategy, strategies.Stamped):
    return result.exact(
      _heaviest_chain(strategy, min_sep, k),
      'heaviest chain of columns of which only neighbours overlap '
      '(bands <= 2 min_sep)',
    )
  lag_count = min((bands - 1) // min_sep, k - 1)
  weights, lags = np.split(
    _row_weights(strategy, min_sep, 1 if fixed else k, lag_count), [1]
  )
  # Rounding of a zero has a sign; it is added up as positive all the same.
  signed = bool(np.any(lags < -_ROUNDING * weights.max()))
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


def column_norms_squared(strategy: strategies.Strategy) -> np.ndarray:
  """Returns the diagonal of X, [n] float64."""
  if isinstance(strategy, strategies.ColumnNormalized):
    return np.ones(strategy.rounds)
  if isinstance(strategy, strategies.Stamped) and _is_tiled(strategy):
    return _tiled(strategy, column_norms_squared)
  rounds, bands = strategy.rounds, strategy.bands
  first = (
    strategy.block if isinstance(strategy, strategies.Stamped) else strategy
  )
  if isinstance(first, strategies.Toeplitz):
    return np.cumsum(first.column(rounds) ** 2)[::-1]
  norms = np.zeros(rounds)
  step = max(1, _ENTRIES // bands)
  for start in range(0, rounds, step):
    stop = min(start + step, rounds)
    squares = strategy.band_rows(start, stop) ** 2
    for s in range(min(bands, stop)):
      # C[t, t - s] is of column t - s; before column 0 there is none.
      skip = max(s - start, 0)
      norms[start + skip - s : stop - s] += squares[skip:, s]
  return norms


def _row_weights(
  strategy: strategies.Strategy, min_sep: int, k: int, lag_count: int
) -> np.ndarray:
  """Returns w, and X[i, i + e b] for e = 0 .. lag_count.

  Args:
    strategy: C.
    min_sep: b.
    k: participations; 1 leaves w at X_ii.
    lag_count: as above.

  Returns:
    [2 + lag_count, n] float64, w first; X is 0 past round n.
  """
  if isinstance(strategy, strategies.Stamped) and _is_tiled(strategy):
    return _tiled(
      strategy, lambda part: _row_weights(part, min_sep, k, lag_count)
    )
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

    S[i, m] = X_ii + max_{j >= i + b} (2 |X_ij| + S[j, m - 1])

  Args:
    strategy: C, B <= 2b.
    min_sep: b.
    k: participations.
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

  Columns are those that can be non-zero.

  Args:
    strategy: C.
    backwards_by: if given, blocks have at most so many rows, the last first.
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
    # Of C, rows start .. last and columns first .. last.
    if isinstance(strategy, strategies.Dense):
      below = strategy.values[start:last, first:last]
    else:
      below = _unskewed(strategy.band_rows(start, last))
      below = below[:, first - (start - bands + 1) :]
    yield start, stop, first, (below[:, start - first : stop - first].T @ below)


def _unskewed(rows: np.ndarray) -> np.ndarray:
  """Returns D with D[t, t + bands - 1 - s] = rows[t, s], 0 elsewhere.

  Args:
    rows: [count, bands] float64.

  Returns:
    [count, count + bands - 1] float64.
  """
  count, bands = rows.shape
  padded = np.zeros((count, count + bands))
  padded[:, :bands] = rows[:, ::-1]
  # Rows one shorter than they were move by one more each.
  return padded.reshape(-1)[:-count].reshape(count, count + bands - 1)


def _is_tiled(strategy: strategies.Stamped) -> bool:
  return strategy.rounds > strategy.block.rounds


def _tiled(
  strategy: strategies.Stamped,
  function: Callable[[strategies.Strategy], np.ndarray],
) -> np.ndarray:
  """Returns `function`, [..., columns], of block after block."""
  block = strategy.block
  copies, rest = divmod(strategy.rounds, block.rounds)
  parts = [function(block)] * copies
  if rest:
    # Stamped less than once, a block is cut.
    parts.append(function(strategies.Stamped(rest, block)))
  return np.concatenate(parts, axis=-1)
