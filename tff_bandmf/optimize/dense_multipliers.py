"""Dual variables of the sensitivity, by parameters that suit the search.

| symbol | meaning                                                           |
|--------|-------------------------------------------------------------------|
| n      | number of rounds                                                  |
| b, k   | min_sep, and the largest number of participations of one client   |
| pair   | rounds i < j in which one client can take part                    |
| M      | dual variables, [n, n] symmetric; M_ij = 0 if i, j differ and do  |
|        | not form a pair                                                   |
| m, d   | diag(M), diag(X) for X = C^T C                                    |
| v      | parameters >= 0 of m, which is linear in v                        |
| V      | the largest m . d over the d that the schema allows               |
| A, w   | workload, and the weights of the errors of its queries            |
| W      | A^T diag(w) A                                                     |
| T      | tr ((W^1/2 M W^1/2)^1/2), and dT = tr(X dM) / 2                   |
"""

from __future__ import annotations

import dataclasses
from typing import Callable, Optional, Union

import numpy as np
import scipy.sparse

from tff_bandmf import participation as participation_lib

# Scale of y in `min_sep_diagonal` relative to the scale of m. The value was
# found by experiment.
_IDLE_SCALE = 3.0
# Smallest ratio of a feasible d_i to the given d_i.
_SMALLEST_CHANGE = 1e-3
# If the ratio of the smallest to the largest eigenvalue of a product H H^T is
# less than this, the smallest eigenvalues are mainly rounding errors.
_ACCURATE = 1e-11

# Function from an [n, columns] matrix to the product of A and this matrix.
Summed = Callable[[np.ndarray], np.ndarray]


@dataclasses.dataclass(frozen=True, eq=False)
class Diagonal:
  """m and V as linear functions of v, and the d that the schema allows.

  Attributes:
    spread: [n, weights] sparse, m = spread @ v.
    total: [weights] float64, V = total @ v.
    start: [weights] float64, v at the start, where M = diag(m).
    scale: [weights] float64; the parameters of the search are v / scale. The
      curvature of T along v_i is about 1 / v_i, so scale_i^2 is about v_i.
    feasible: function from d, [n] positive float64, to a d that the schema
      allows and that is nearly a multiple of the given d.
  """

  spread: scipy.sparse.csr_matrix
  total: np.ndarray
  start: np.ndarray
  scale: np.ndarray
  feasible: Callable[[np.ndarray], np.ndarray]


def equal_diagonal(guess: np.ndarray, count: int) -> Diagonal:
  """Returns the `Diagonal` for d_i = 1 / k, where V = sum_i m_i / k.

  Args:
    guess: [n] positive float64, m at the start.
    count: k.
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
  """Returns the `Diagonal` for d whose sum over each pattern is at most 1.

  A pattern is the k rounds i, i + b, ..., or all such rounds if there are fewer
  than k. There is one v for each pattern, and m_i is the sum of v over the
  patterns that contain round i.

  Args:
    guess: [n] positive float64, m at the start.
    min_sep: b.
    count: k.
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
  """Returns the `Diagonal` for d whose sum over each pattern is at most 1.

  A pattern is a set of rounds that are at least b apart. Let F_i be the largest
  sum of d over a pattern of rounds >= i. Then d_i = F_i - F_{i+b}, where F is 1
  in the first b < n rounds and does not increase. In the dual, patterns have
  weights with sum V. m_i is the weight of the patterns that contain round i,
  and y_i >= 0 is the weight of the patterns that could contain round i and do
  not.

    m_i = m_{i-b} + y_{i-1} - y_i,  V = m_0 + ... + m_{b-1} + y_{b-1}

  v is m_0, ..., m_{b-1}, y_{b-1}, ..., y_{n-1}.

  Args:
    guess: [n] positive float64, m at the start.
    min_sep: b.
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
  """M = L L^T, where L is lower-triangular; M is always positive definite.

  The off-diagonal entries of L are 0 except for pairs. Row i of L is
  sqrt(m_i) (u_i, 1) / |(u_i, 1)|, where u_i has one parameter for each pair of
  round i with an earlier round. The other parameters are the square roots of v.
  At the optimum the curvature of T along L is d, which is nearly constant, even
  if M is ill-conditioned. For one participation and for fixed epochs, M has
  zeros where L has zeros.

  Attributes:
    start: [parameters] float64, parameters for M = diag(m).
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

    B is diag(roots) A.

    Args:
      parameters: [parameters] float64.
      roots: [n, 1] float64, square roots of w.
      summed: function that multiplies a matrix by A.
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
    """Returns m, the norms |(u_i, 1)|, and the nonzero entries of L."""
    own = self._diagonal.spread @ parameters[: self._weights] ** 2
    raw = np.concatenate([parameters[self._weights :], np.ones(len(own))])
    lengths = np.sqrt(np.bincount(self._rows, raw**2))
    return own, lengths, raw * (np.sqrt(own) / lengths)[self._rows]


class DirectMultipliers:
  """M whose parameters are v and the entries M_ij of pairs.

  The parameters are scaled so that the curvature of T at the start is nearly
  the same for all of them. This class is for min-separation. There the M of
  `FactoredMultipliers` would have nonzero entries for rounds that form no pair.

  Attributes:
    start: [parameters] float64, parameters for the guess of M.
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
    """Returns eigenvalues, increasing, and eigenvectors of B M B^T.

    B is diag(roots) A. M may be indefinite.

    Args:
      parameters: [parameters] float64.
      roots: [n, 1] float64, square roots of w.
      summed: function that multiplies a matrix by A.
    """
    multipliers = self.matrix(parameters)
    values, vectors = np.linalg.eigh(
      roots * summed(summed(multipliers).T) * roots.T
    )
    if values[0] < _ACCURATE * values[-1]:
      try:
        return _of_squared(roots * summed(np.linalg.cholesky(multipliers)))
      except np.linalg.LinAlgError:
        # M is indefinite, even if all computed eigenvalues are positive. If an
        # eigenvalue is at most 0, the caller takes no lower bound from M.
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
  """Returns eigenvalues, increasing, and eigenvectors of H H^T.

  The smallest eigenvalues are accurate; `eigh` of the product H H^T would give
  mainly rounding errors. This function takes several times as long as `eigh`.

  Args:
    half: H, [n, n] float64.
  """
  vectors, values, _ = np.linalg.svd(half)
  return values[::-1] ** 2, vectors[:, ::-1]


Multipliers = Union[FactoredMultipliers, DirectMultipliers]


def of_schema(
  rounds: int,
  participation: participation_lib.Participation,
  guess: np.ndarray,
) -> tuple[Diagonal, tuple[np.ndarray, np.ndarray], Multipliers]:
  """Returns the dual variables of a schema.

  Args:
    rounds: n.
    participation: schema of a client's rounds.
    guess: [n, n] float64, M at the start; only its diagonal is used for one
      participation and for fixed epochs.

  Returns:
    (diagonal, pairs, multipliers): the `Diagonal`; the rounds i and j of all
    pairs, two integer arrays; and M as a function of parameters.
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
