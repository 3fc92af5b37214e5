"""Base classes of the Toeplitz families: C[t, i] = c_{t - i}.

The power series c(x) = sum_j c_j x^j is a polynomial for a banded C, the
reciprocal of a polynomial for a banded C^-1, and a rational function for a BLT.

| symbol | name here        | meaning                                    |
|--------|------------------|--------------------------------------------|
| c      | `column`         | first column of C                          |
| r      | `inverse_column` | first column of C^-1, r(x) = 1 / c(x)      |
| h      | `polynomial`     | `Workload.polynomial`, 1 - beta x for      |
|        |                  | momentum beta                              |
| a      |                  | first column of A, 1 / ((1 - x) h(x))      |
| w      | `weights`        | first column of A C^-1, w(x) = a(x) / c(x) |

  e_t = sum_{j<=t} w_j^2,   n * mean = sum_j (n - j) w_j^2
"""

from __future__ import annotations

import abc
import functools
import math
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

import attrs
import numpy as np
import scipy  # scipy.signal is imported when it is first used.

from tff_bandmf import errors, workloads
from tff_bandmf.strategies import base, per_query
from tff_bandmf.strategies import recursion as recursion_lib

# Terms of the first block of a series; each next block is twice as long.
_FIRST_BLOCK = 4096
# Largest number of terms that NumPy filters in less time than the import of
# scipy.signal takes.
_FEW = 256
# Relative distance from the limit at which a series counts as converged.
_CONVERGED = 1e-12
# Size of the filter's state below which the rest of a series counts as 0.
_VANISHED = 1e-100
# Largest number of rounds for computations of O(n^2) time.
_MAX_QUADRATIC_ROUNDS = 200_000


@attrs.frozen(slots=False, eq=False)
class Toeplitz(base.Strategy):
  """A strategy with constant diagonals.

  Attributes:
    is_geometric: whether c_j = lambda^j for one number lambda.
    rounds: n.
  """

  structure: ClassVar[str] = base.TOEPLITZ
  is_geometric: ClassVar[bool] = False
  rounds: int = attrs.field(converter=base.count_rounds)

  def of_rounds(self, rounds: int) -> Toeplitz:
    return attrs.evolve(self, rounds=rounds)

  @abc.abstractmethod
  def column(self, terms: int) -> np.ndarray:
    """Returns c, [terms] float64."""

  @abc.abstractmethod
  def inverse_column(self, terms: int) -> np.ndarray:
    """Returns r, [terms] float64."""

  def first_column(self) -> np.ndarray:
    return self.column(self.bands)

  def column_norms_squared(self) -> np.ndarray:
    return np.cumsum(self.column(self.rounds) ** 2)[::-1]

  def _recursion(self) -> recursion_lib.Recursion:
    return self.buffered(self.rounds) or ToeplitzWindow(self)

  def weights(self, workload: workloads.Workload, terms: int) -> np.ndarray:
    """Returns w, [terms] float64, for a workload that is Toeplitz."""
    inverse = self.inverse_column(terms)
    return scipy.signal.lfilter([1.0], workload.steps, inverse)

  def band_rows(self, start: int, stop: int) -> np.ndarray:
    return _rows(self.column(self.bands), start, stop)

  def gram_entries(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Returns X[i, j] = sum_{l < n - j} c_l c_{l + j - i}, [m] float64."""
    base.check_rounds(self.rounds)
    column = self.column(self.bands)
    entries = np.zeros(len(first))
    lags = second - first
    order = np.argsort(lags, kind='stable')
    for pairs in np.split(order, np.flatnonzero(np.diff(lags[order])) + 1):
      lag = lags[pairs[0]] if len(pairs) else self.bands
      if lag >= self.bands:
        break
      sums = np.cumsum(column[: self.bands - lag] * column[lag:])
      terms = np.minimum(self.rounds - second[pairs], len(sums))
      entries[pairs] = sums[terms - 1]
    return entries

  def per_query_errors(
    self, workload: workloads.Workload = workloads.PREFIX
  ) -> np.ndarray:
    base.check_rounds(self.rounds)
    if workload.is_toeplitz:
      with np.errstate(over='ignore', invalid='ignore'):
        e = np.cumsum(self.weights(workload, self.rounds) ** 2)
      return per_query.check_finite(e)
    if self.has_few_bands or workload.inverse_bands is None:
      return super().per_query_errors(workload)
    return full_errors(self, np.ones(self.rounds), workload)

  def errors(
    self, workload: workloads.Workload = workloads.PREFIX
  ) -> tuple[float, float]:
    if not workload.is_toeplitz:
      return super().errors(workload)
    base.check_rounds(self.rounds)
    with np.errstate(over='ignore', invalid='ignore'):
      squares = self.weights(workload, self.rounds) ** 2
      largest = squares.sum()
      mean = squares @ np.arange(self.rounds, 0, -1, float) / self.rounds
    return per_query.check_finite((float(mean), float(largest)))


class ToeplitzWindow(recursion_lib.Window):
  """A window whose weights are the same in every round.

  In an early round t, the weights of lags s > t multiply zeros, because S is 0
  at the start.
  """

  def __init__(self, strategy: Toeplitz):
    """Makes the window of the strategy C."""
    super().__init__(strategy, 1)
    self._numbers = {'row': _first_entries(self, strategy)}

  def rows(self, start: int, stop: int) -> np.ndarray:
    row = self._numbers['row']
    return np.broadcast_to(row, (stop - start, len(row)))

  def _variances(self) -> np.ndarray:
    quotient = self._numbers['row'], np.ones(1)
    if self.keeps == recursion_lib.PAST_Y:
      quotient = quotient[::-1]
    return np.cumsum(_series(*quotient, self.rounds) ** 2)

  @functools.cached_property
  def rho(self) -> float:
    row = self._numbers['row']
    if self.keeps == recursion_lib.PAST_Z:
      return float(np.linalg.norm(row) / self.scales[0])
    return math.sqrt(_energy(row, self.rounds)) / float(self.scales[0])


def _first_entries(
  window: recursion_lib.Window, strategy: Toeplitz
) -> np.ndarray:
  """Returns the first entries of C, or of C^-1 if the window keeps z."""
  if window.keeps == recursion_lib.PAST_Y:
    return strategy.column(window.memory + 1)
  return strategy.inverse_column(window.memory + 1)


class NormalizedWindow(recursion_lib.Window):
  """A window of a Toeplitz C whose columns are divided by their norms."""

  def __init__(self, strategy: Any):
    """Makes the window of a strategy `ColumnNormalized`."""
    super().__init__(strategy, strategy.rounds)
    row = _first_entries(self, strategy.toeplitz)
    self._numbers = {'row': row, 'norms': strategy.column_norms}

  def rows(self, start: int, stop: int) -> np.ndarray:
    row, norms = self._numbers['row'], self._numbers['norms']
    t = np.arange(start, stop)[:, np.newaxis]
    rows = _rows(row, start, stop)
    if self.keeps == recursion_lib.PAST_Z:
      return norms[t] * rows
    return rows / norms[np.maximum(t - np.arange(len(row)), 0)]


class RationalToeplitz(Toeplitz):
  """C whose c(x), or whose r(x) = 1 / c(x), is a polynomial.

  The coefficients of the polynomial define C for every n.
  """

  goes_on: ClassVar[bool] = True

  @abc.abstractmethod
  def polynomials(self) -> tuple[np.ndarray, np.ndarray]:
    """Returns (P, Q) with c(x) = P(x) / Q(x); one of them is constant.

    Each is a 1-d float64 array of coefficients, lowest power first.
    """

  def column(self, terms: int) -> np.ndarray:
    return _series(*self.polynomials(), terms)

  def inverse_column(self, terms: int) -> np.ndarray:
    top, bottom = self.polynomials()
    return _series(bottom, top, terms)

  def weights(self, workload: workloads.Workload, terms: int) -> np.ndarray:
    ones = (1 - workload.weight_decay) ** np.arange(terms, dtype=float)
    return scipy.signal.lfilter(*self._quotient(workload), ones)

  def _quotient(
    self, workload: workloads.Workload
  ) -> tuple[np.ndarray, np.ndarray]:
    """Returns polynomials (T, B) with r(x) / h(x) = T(x) / B(x)."""
    top, bottom = self.polynomials()
    return bottom, np.convolve(top, workload.polynomial)

  def errors(
    self, workload: workloads.Workload = workloads.PREFIX
  ) -> tuple[float, float]:
    if not workload.is_toeplitz or workload.weight_decay:
      return super().errors(workload)
    return _errors_to_the_limit(*self._quotient(workload), self.rounds)


class BandedC(RationalToeplitz):
  """c(x) is a polynomial. Subclasses have `coefficients`.

  Attributes:
    coefficients: [bands] float64, first column of C; read-only.
  """

  if TYPE_CHECKING:  # See the comment in `base.Strategy`.

    @property
    def coefficients(self) -> np.ndarray: ...

  def series(self) -> dict[str, np.ndarray]:
    return {'coefficients': self.coefficients}

  def polynomials(self) -> tuple[np.ndarray, np.ndarray]:
    return self.coefficients, np.ones(1)


class BandedInverseC(RationalToeplitz):
  """r(x) is a polynomial. Subclasses have `inverse_coefficients`.

  Attributes:
    inverse_coefficients: [p] float64, first column of C^-1; read-only.
  """

  if TYPE_CHECKING:  # See the comment in `base.Strategy`.

    @property
    def inverse_bands(self) -> int: ...

    @property
    def inverse_coefficients(self) -> np.ndarray: ...

  @property
  def bands(self) -> int:
    return 1 if self.inverse_bands == 1 else self.rounds

  def series(self) -> dict[str, np.ndarray]:
    return {'inverse_coefficients': self.inverse_coefficients}

  def polynomials(self) -> tuple[np.ndarray, np.ndarray]:
    return np.ones(1), self.inverse_coefficients

  def inverse_band_rows(self, start: int, stop: int) -> np.ndarray:
    return _rows(self.inverse_column(self.inverse_bands), start, stop)

  def column_error(self, participations: int) -> float:
    # The bound holds for any number of participations.
    base.check_rounds(self.rounds)
    with np.errstate(over='ignore', invalid='ignore'):
      norms = np.sum(np.abs(self.column(self.rounds)))
      norms *= np.sum(np.abs(self.inverse_coefficients))
    # PRIVACY: The noise has the C whose first column is exactly 1 / r. The
    # computed c is 1 / r with rounding errors, so a sensitivity computed from c
    # could be too small. Let r c = 1 + f. `off` bounds |f|_1, so the relative
    # norm of the difference c - 1 / r is at most off / (1 - off). The
    # sensitivity is multiplied by 1 plus this bound. Another machine may have
    # computed r, with an error of 64 + 4 j units of 2^-53 in r_j; see
    # noise.definition.
    # Guard: sensitivity_test.test_sensitivity_of_an_inverse_is_rounded_up.
    off = recursion_lib.UNIT * (5 * self.inverse_bands + 72) * norms
    if not off <= 0.5:
      raise errors.value_error(
        f'inverse_coefficients={self.inverse_bands} bands: their inverse is '
        'inaccurate in float64; use fewer rounds, or a series of small inverse'
      )
    # PRIVACY: Coefficients of an inverse have rounding errors, which could make
    # the sensitivity too small. The result is a bound of these errors.
    # Guard: sensitivity_test.test_sensitivity_of_an_inverse_is_rounded_up.
    return float(off / (1 - off))


def full_errors(
  strategy: Toeplitz, scale: np.ndarray, workload: workloads.Workload
) -> np.ndarray:
  """Returns e for C D^-1, in O(n^2), if both C and C^-1 have many bands.

  The workload is A with rows A_t = d_t A_{t-1} + eta_t M_t, where eta_t is the
  learning rate of round t and M the Toeplitz matrix of momentum. So row t of
  A D C^-1 is d_t times its row t - 1 plus eta_t times row t of M D C^-1.

  Args:
    strategy: C.
    scale: [n] float64, the diagonal of D.
    workload: A.

  Returns:
    [n] float64.

  Raises:
    ValueError: n exceeds 200,000, or C^-1 overflows.
  """
  rounds = strategy.rounds
  if rounds > _MAX_QUADRATIC_ROUNDS:
    raise errors.value_error(
      f'rounds={rounds}: these errors of {strategy.family} are computed up to '
      f'{_MAX_QUADRATIC_ROUNDS}; use fewer rounds, or a family of few bands'
    )
  reversed_column = strategy.inverse_column(rounds)[::-1].copy()
  total, e = np.zeros(rounds), np.zeros(rounds)
  # Past rows of M D C^-1 that row t needs, the latest first.
  weights = -workload.polynomial[1:]
  earlier = [np.zeros(0) for _ in weights]
  decays = workload.decays(rounds)
  for t, rate in enumerate(workload.learning_rates(rounds)):
    row = np.zeros(t + 1)
    for weight, before in zip(weights, earlier):
      row[: len(before)] += weight * before
    row += scale[t] * reversed_column[rounds - 1 - t :]
    earlier = [row, *earlier[:-1]]
    past = total[: t + 1]
    past *= decays[t]
    past += rate * row
    e[t] = past @ past
  return per_query.check_finite(e)


def fractional_coefficients(alpha: float, terms: int) -> np.ndarray:
  """Returns the first coefficients of (1 - x)^-alpha.

    c_0 = 1,   c_j = c_{j-1} (j - 1 + alpha) / j

  Args:
    alpha: any real number; 1/2 gives the square root of the prefix sum and
      -1/2 its inverse.
    terms: number of coefficients.

  Returns:
    [terms] float64.

  >>> fractional_coefficients(0.5, 4).tolist()
  [1.0, 0.5, 0.375, 0.3125]
  """
  j = np.arange(1, terms)
  return np.concatenate([[1.0], np.cumprod((j - 1 + alpha) / j)])


def _rows(series: np.ndarray, start: int, stop: int) -> np.ndarray:
  """Returns rows of the Toeplitz matrix of a series by their bands."""
  t = np.arange(start, stop)[:, None]
  return np.where(t >= np.arange(len(series)), series, 0.0)


def _series(top: np.ndarray, bottom: np.ndarray, terms: int) -> np.ndarray:
  """Returns the first coefficients of top(x) / bottom(x), [terms]."""
  impulse = np.eye(1, terms)[0]
  if len(bottom) > 1:
    return scipy.signal.lfilter(top, bottom, impulse)
  impulse[: len(top)] = top[:terms] / bottom
  return impulse


def _filtered(
  top: np.ndarray, bottom: np.ndarray, signal: np.ndarray, state: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """Returns the bits of scipy.signal.lfilter(top, bottom, signal, zi=state).

  The import of scipy.signal, which also imports scipy.stats, takes longer than
  all the rest of a plan of few rounds.
  """
  few = len(signal) <= _FEW and len(bottom) > 1
  if not few or 'scipy.signal' in sys.modules:
    return scipy.signal.lfilter(top, bottom, signal, zi=state)
  b, a = np.zeros((2, len(state) + 1))
  b[: len(top)], a[: len(bottom)] = top / bottom[0], bottom / bottom[0]
  z, series = np.append(state, 0.0), np.empty(len(signal))
  with np.errstate(over='ignore', invalid='ignore'):
    for i, x in enumerate(signal):
      series[i] = z[0] + b[0] * x
      z[:-1] = z[1:] + b[1:] * x - a[1:] * series[i]
  return series, z[:-1]


def _blocks(
  top: np.ndarray, bottom: np.ndarray, rounds: int, later: float, least: int = 1
) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
  """Yields (j, terms of w from w_j on, state of the filter) for each block.

    w(x) = top(x) / bottom(x) (1 + later (x + x^2 + ...))

  Args:
    top: coefficients of a polynomial, lowest power first, float64.
    bottom: coefficients of a polynomial, lowest power first, float64.
    rounds: number of terms.
    later: 1 for prefix sums of top(x) / bottom(x), else 0.
    least: least number of terms of a block.

  Raises:
    ValueError: a term past `MAX_ROUNDS` is needed.
  """
  state = np.zeros(max(len(top), len(bottom)) - 1)
  done, block = 0, _FIRST_BLOCK
  while done < rounds:
    if done >= base.MAX_ROUNDS:
      raise errors.value_error(
        f'rounds={rounds}: C^-1 has not converged after {base.MAX_ROUNDS} '
        'rounds; use coefficients that decay faster, or fewer rounds'
      )
    signal = np.full(min(max(block, least), rounds - done), later)
    if not done:
      signal[0] = 1.0
    w, state = _filtered(top, bottom, signal, state)
    yield done, w, state
    done += len(w)
    block *= 2


def _energy(bottom: np.ndarray, rounds: int) -> float:
  """Returns the sum of the squares of the first coefficients of 1 / bottom.

  Args:
    bottom: coefficients of a polynomial, lowest power first, float64.
    rounds: number of coefficients to add up.

  Raises:
    ValueError: `rounds` exceeds `MAX_ROUNDS`, and the first `MAX_ROUNDS`
      coefficients do not vanish.
  """
  squares = 0.0
  for _, series, state in _blocks(np.ones(1), bottom, rounds, 0.0):
    with np.errstate(over='ignore', invalid='ignore'):
      squares += float(series @ series)
    if not np.any(np.abs(state) > _VANISHED):
      break
  return per_query.check_finite(squares)


def _errors_to_the_limit(
  top: np.ndarray, bottom: np.ndarray, rounds: int
) -> tuple[float, float]:
  """Returns (mean, max) of e for w(x) = top(x) / (bottom(x) (1 - x)).

  If `bottom` has no root in the closed unit disc, w_j converges geometrically
  to top(1) / bottom(1). Terms are computed until max(len(top), len(bottom))
  consecutive terms have a relative distance of at most 1e-12 from the limit;
  the sum of the remaining terms has a closed form. If w does not converge,
  every term is computed.

  Args:
    top: coefficients of a polynomial, lowest power first, float64.
    bottom: coefficients of a polynomial, lowest power first, float64;
      bottom[0] > 0.
    rounds: n.

  Raises:
    ValueError: w does not converge and n is too large to add up every term,
      or the errors are not finite.
  """
  memory = max(len(top), len(bottom))
  total = bottom.sum()
  # The limit is NaN if it does not exist; then no term counts as converged.
  limit = top.sum() / total if total > 0 else np.nan
  weighted = squares = 0.0
  for start, w, _ in _blocks(top, bottom, rounds, 1.0, memory):
    done = start + len(w)
    with np.errstate(over='ignore', invalid='ignore'):
      squared = w * w
      squares += squared.sum()
      weighted += squared @ (rounds - np.arange(start, done, dtype=float))
    if not np.isfinite(squares):
      break
    tail = w[-memory:]
    if np.all(np.abs(tail - limit) <= _CONVERGED * abs(limit)):
      remaining = float(rounds - done)
      squares += remaining * limit**2
      weighted += remaining * (remaining + 1) / 2 * limit**2
      break
  return per_query.check_finite((float(weighted / rounds), float(squares)))
