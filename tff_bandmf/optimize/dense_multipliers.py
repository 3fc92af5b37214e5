"""Dual variables of the sensitivity, by parameters that suit the search.

| symbol | meaning                                                           |
|--------|-------------------------------------------------------------------|
| b, k   | min_sep, and the largest number of participations of one client   |
| pair   | rounds i < j in which one client can take part                    |
| M      | dual variables, [n, n] symmetric; M_ij = 0 if i, j differ and do  |
|        | not form a pair                                                   |
| m, d   | diag(M), diag(C^T C)                                              |
| v      | weights >= 0 that m is made of: of patterns, or of a flow of them |
| V      | the largest m . d over the d that the schema allows               |
| T      | tr ((W^1/2 M W^1/2)^1/2), and dT = tr(X dM) / 2                   |
"""

from __future__ import annotations

import dataclasses
from typing import Callable, Optional, Union

import numpy as np
import scipy.sparse

from tff_bandmf import participation as participation_lib

# Weight of idle patterns relative to that of participating ones: at first, and
# in the scale of its parameters, where this was found to suit.
_IDLE_SCALE = 3.0
# Smallest ratio of a feasible d_i to the d_i that it replaces.
_SMALLEST_CHANGE = 1e-3
# Below this ratio of eigenvalues, the smallest of a product are rounding.
_ACCURATE = 1e-11

# Function from a matrix of [n, columns] to the product of A and the matrix.
Summed = Callable[[np.ndarray], np.ndarray]


@dataclasses.dataclass(frozen=True, eq=False)
class Diagonal:
  """m and V as linear functions of v, and the d that they are dual to.

  Attributes:
    spread: [n, weights] sparse, m = spread @ v.
    total: [weights] float64, V = total @ v.
    start: [weights] float64, v for M = diag(m).
    scale: [weights] float64, parameters are v / scale: the curvature of T
      along v_i is about 1 / v_i, so scale_i^2 should be about v_i.
    feasible: takes d, [n] positive float64; returns one near a multiple of it
      that the schema allows.
  """

  spread: scipy.sparse.csr_matrix
  total: np.ndarray
  start: np.ndarray
  scale: np.ndarray
  feasible: Callable[[np.ndarray], np.ndarray]


def equal_diagonal(guess: np.ndarray, count: int) -> Diagonal:
  """Returns the model with d_i = 1 / k, for which V = sum of m / k.

  `guess` is the first m, [n] positive float64.
  """
  n = len(guess)
  return Diagonal(
    scipy.sparse.identity(n, format='csr'),
    np.full(n, 1 / count),
    guess,
    np.sqrt(guess),
    lambda diagonal: np.full(n, 1 / count),
  )


def fixed_epoch_diagonal(
  guess: np.ndarray, min_sep: int, count: int
) -> Diagonal:
  """Returns the model with a sum of d over each pattern of at most 1.

  m_i is the sum of v over the patterns that contain round i. A pattern is the k
  rounds i, i + b, ..., or all such rounds if there are fewer than k.
  """
  n = len(guess)
  first = np.arange(n)
  first = first[(first < min_sep) | (first + (count - 1) * min_sep < n)]
  lag = np.subtract.outer(np.arange(n), first)
  spread = scipy.sparse.csr_matrix(
    (lag % min_sep == 0) & (lag >= 0) & (lag < count * min_sep), dtype=float
  )
  patterns_of_round = np.asarray(spread.sum(1)).ravel()
  rounds_of_pattern = np.asarray(spread.sum(0)).ravel()
  weights = spread.T @ (guess / patterns_of_round) / rounds_of_pattern

  def feasible(diagonal):
    heaviest = np.zeros(min_sep)
    np.maximum.at(heaviest, first % min_sep, spread.T @ diagonal)
    return diagonal / heaviest[np.arange(n) % min_sep]

  return Diagonal(
    spread, np.ones(len(first)), weights, np.sqrt(weights), feasible
  )


def min_sep_diagonal(guess: np.ndarray, min_sep: int) -> Diagonal:
  """Returns the model with a sum of d over rounds at least b apart <= 1.

  With F_i the heaviest pattern from round i on, d_i = F_i - F_{i+b} for an F
  that is 1 over the first b < n rounds and does not increase. Patterns are a
  flow: m_i of the weight V is in round i and back b rounds later, y_i >= 0
  idles.

    m_i = m_{i-b} + y_{i-1} - y_i,  V = m_0 + ... + m_{b-1} + y_{b-1}

  v is m_0, ..., m_{b-1}, y_{b-1}, ..., y_{n-1}.
  """
  n = len(guess)
  lag = np.subtract.outer(np.arange(n), np.arange(n))
  sums = scipy.sparse.csr_matrix((lag % min_sep == 0) & (lag >= 0), dtype=float)
  leaves = scipy.sparse.diags(
    (np.arange(n) >= min_sep).astype(float), 1, shape=(n, n + 1)
  )
  spread = sums @ (scipy.sparse.eye(n, n + 1) - leaves)
  offset = np.arange(n) % min_sep
  weights = np.zeros(n + 1)
  weights[:min_sep] = np.bincount(offset, guess) / np.bincount(offset)
  scale = np.full(n + 1, _IDLE_SCALE * np.sqrt(weights[:min_sep].mean()))
  scale[:min_sep] = np.sqrt(weights[:min_sep])

  def feasible(diagonal):
    heaviest = np.concatenate([diagonal, np.zeros(min_sep)])
    for i in range(n - min_sep - 1, -1, -1):
      heaviest[i] += heaviest[i + min_sep]
    heaviest /= heaviest[:min_sep].mean()
    heaviest[:min_sep] = 1
    falling = np.minimum.accumulate(heaviest)
    above = np.maximum.accumulate(heaviest[::-1])[::-1]
    heaviest = (falling + above) / 2
    return np.maximum(
      heaviest[:n] - heaviest[min_sep:], _SMALLEST_CHANGE * diagonal
    )

  return Diagonal(
    spread.tocsr(),
    (np.arange(n + 1) <= min_sep).astype(float),
    weights,
    scale,
    feasible,
  )


class FactoredMultipliers:
  """M = L L^T with the pairs as the pattern of L. Positive definite always.

  Row i of L is sqrt(m_i) (u_i, 1) / |(u_i, 1)|, u_i by pair; v is the square of
  its parameters. At the optimum the curvature of T along L is d, nearly
  constant, however ill-conditioned M. The pattern of L L^T is that of L for one
  participation and for fixed epochs.

  Attributes:
    start: parameters for M = diag(m).
    bounds: (low, high) of each parameter.
  """

  def __init__(self, diagonal: Diagonal, pairs: tuple[np.ndarray, np.ndarray]):
    self._diagonal = diagonal
    n = diagonal.spread.shape[0]
    self._columns = np.concatenate([pairs[0], np.arange(n)])
    self._rows = np.concatenate([pairs[1], np.arange(n)])
    self._weights = len(diagonal.start)
    self.start = np.concatenate(
      [np.sqrt(diagonal.start), np.zeros(len(pairs[0]))]
    )
    self.bounds = [(None, None)] * len(self.start)

  def total(self, parameters: np.ndarray) -> float:
    """Returns V."""
    return float(self._diagonal.total @ parameters[: self._weights] ** 2)

  def decomposed(
    self, parameters: np.ndarray, roots: np.ndarray, summed: Summed
  ) -> tuple[np.ndarray, np.ndarray]:
    """Returns eigenvalues, increasing, and eigenvectors of B M B^T.

    B = diag(roots) A, where `roots` is [n, 1] float64 and `summed` is by A.
    """
    half = roots * summed(self._factor_matrix(parameters))
    values, vectors = np.linalg.eigh(half @ half.T)
    if values[0] < _ACCURATE * values[-1]:
      return _of_squared(half)
    return values, vectors

  def gradients(
    self, parameters: np.ndarray, gram: np.ndarray
  ) -> tuple[np.ndarray, np.ndarray]:
    """Returns dV and dT, [parameters] float64, for X = `gram`."""
    weights = parameters[: self._weights]
    own, lengths, entries = self._factor(parameters)
    n = len(own)
    factor = scipy.sparse.csc_matrix(
      (entries, (self._rows, self._columns)), shape=(n, n)
    )
    # dT / dL = X L.
    slopes = (factor.T @ gram).T[self._rows, self._columns]
    along = np.bincount(self._rows, slopes * entries, n) / own
    across = (slopes - entries * along[self._rows]) * (np.sqrt(own) / lengths)[
      self._rows
    ]
    zeros = np.zeros(len(parameters) - len(weights))
    return (
      np.concatenate([2 * weights * self._diagonal.total, zeros]),
      np.concatenate(
        [weights * (self._diagonal.spread.T @ along), across[: len(zeros)]]
      ),
    )

  def matrix(self, parameters: np.ndarray) -> np.ndarray:
    """Returns M, [n, n] float64."""
    factor = self._factor_matrix(parameters)
    return factor @ factor.T

  def _factor_matrix(self, parameters):
    """Returns L."""
    own, _, entries = self._factor(parameters)
    factor = np.zeros((len(own), len(own)))
    factor[self._rows, self._columns] = entries
    return factor

  def _factor(self, parameters):
    """Returns m, the lengths of (u_i, 1), and the entries of L."""
    own = self._diagonal.spread @ parameters[: self._weights] ** 2
    raw = np.concatenate([parameters[self._weights :], np.ones(len(own))])
    lengths = np.sqrt(np.bincount(self._rows, raw**2))
    return own, lengths, raw * (np.sqrt(own) / lengths)[self._rows]


class DirectMultipliers:
  """M by v and its entries, scaled to even the curvature of T at the start.

  This class is for pairs for which L L^T is not 0 exactly where L is 0.

  Attributes:
    start: parameters for M as guessed.
    bounds: (low, high) of each parameter.
  """

  def __init__(
    self,
    diagonal: Diagonal,
    pairs: tuple[np.ndarray, np.ndarray],
    guess: np.ndarray,
  ):
    self._diagonal = diagonal
    self._pairs = pairs
    self._weights = len(diagonal.start)
    own = diagonal.spread @ diagonal.start
    self._scale = (own[pairs[0]] * own[pairs[1]]) ** 0.25
    self.start = np.concatenate(
      [diagonal.start / diagonal.scale, guess[pairs] / self._scale]
    )
    low: list[Optional[float]] = [0.0] * self._weights
    low += [None] * len(pairs[0])
    self.bounds = [(bound, None) for bound in low]

  def total(self, parameters: np.ndarray) -> float:
    """Returns V."""
    weights = parameters[: self._weights] * self._diagonal.scale
    return float(self._diagonal.total @ weights)

  def decomposed(
    self, parameters: np.ndarray, roots: np.ndarray, summed: Summed
  ) -> tuple[np.ndarray, np.ndarray]:
    """Returns eigenvalues and eigenvectors of B M B^T; M may be indefinite.

    `FactoredMultipliers.decomposed` describes arguments and result.
    """
    multipliers = self.matrix(parameters)
    values, vectors = np.linalg.eigh(
      roots * summed(summed(multipliers).T) * roots.T
    )
    if values[0] < _ACCURATE * values[-1]:
      try:
        return _of_squared(roots * summed(np.linalg.cholesky(multipliers)))
      except np.linalg.LinAlgError:
        # M is indefinite, even if rounding errors made all values positive. A
        # value of at most 0 tells the caller to take no lower bound from M.
        values[0] = min(values[0], 0.0)
    return values, vectors

  def gradients(
    self, parameters: np.ndarray, gram: np.ndarray
  ) -> tuple[np.ndarray, np.ndarray]:
    """Returns dV and dT, [parameters] float64, for X = `gram`."""
    own = self._diagonal.spread.T @ np.diagonal(gram) / 2
    return (
      np.concatenate(
        [
          self._diagonal.scale * self._diagonal.total,
          np.zeros(len(self._scale)),
        ]
      ),
      np.concatenate(
        [self._diagonal.scale * own, self._scale * gram[self._pairs]]
      ),
    )

  def matrix(self, parameters: np.ndarray) -> np.ndarray:
    """Returns M, [n, n] float64."""
    weights = parameters[: self._weights] * self._diagonal.scale
    multipliers = np.diag(self._diagonal.spread @ weights)
    multipliers[self._pairs] = multipliers.T[self._pairs] = (
      parameters[self._weights :] * self._scale
    )
    return multipliers


def _of_squared(half: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Returns eigenvalues, increasing, and eigenvectors of H H^T, H = `half`.

  The smallest eigenvalues are accurate; computed from the product H H^T, they
  would be rounding errors. This takes several times as long as `eigh`.
  """
  vectors, values, _ = np.linalg.svd(half)
  return values[::-1] ** 2, vectors[:, ::-1]


Multipliers = Union[FactoredMultipliers, DirectMultipliers]


def of_schema(
  rounds: int,
  participation: participation_lib.Participation,
  guess: np.ndarray,
) -> tuple[Diagonal, tuple[np.ndarray, np.ndarray], Multipliers]:
  """Returns the model of m and d, the pairs, and M.

  Args:
    rounds: n.
    participation: which rounds one client can take part in.
    guess: [n, n] float64, M to start from; its diagonal, if M is factored.

  Returns:
    The model; the rounds i < j that one client can both take part in, two int
    arrays; M.
  """
  own = np.diagonal(guess)
  count = participation.participations(rounds)
  if count == 1:
    diagonal = equal_diagonal(own, 1)
    none = np.zeros(0, int)
    return diagonal, (none, none), FactoredMultipliers(diagonal, (none, none))
  min_sep = participation.separation(rounds)
  first, second = np.triu_indices(rounds, 1)
  lag = second - first
  if participation.evenly_spaced:
    together = (lag % min_sep == 0) & (lag < count * min_sep)
    pairs = first[together], second[together]
    diagonal = fixed_epoch_diagonal(own, min_sep, count)
    return diagonal, pairs, FactoredMultipliers(diagonal, pairs)
  together = lag >= min_sep
  pairs = first[together], second[together]
  diagonal = (
    equal_diagonal(own, count)
    if count * min_sep < rounds
    else min_sep_diagonal(own, min_sep)
  )
  return diagonal, pairs, DirectMultipliers(diagonal, pairs, guess)
