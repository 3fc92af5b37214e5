"""The best lower-triangular C of a class, with a lower bound of the loss.

| symbol | meaning                                                            |
|--------|--------------------------------------------------------------------|
| n      | number of rounds                                                   |
| A      | workload, [n, n]                                                   |
| X      | C^T C                                                              |
| e_t    | error of round t, the squared L2 norm of row t of A C^-1           |
| w_t    | weight of e_t, with sum 1; for the largest error, a variable       |
| W      | A^T diag(w) A                                                      |
| M      | dual variables of the sensitivity, [n, n], positive definite       |
| m, d   | diag(M), diag(X)                                                   |
| v      | parameters >= 0 of m, which is linear in v                         |
| V      | largest m . d that the schema allows                               |
| T      | tr ((W^1/2 M W^1/2)^1/2)                                           |

For any X of sensitivity at most 1, and any M with tr(M X) <= V for all such X,

  sum_t w_t e_t = tr(W X^-1) >= 2 T - tr(M X),  hence  error * sens^2 >= T^2 / V

with equality in the first bound iff X is

  X(M) = M^-1/2 (M^1/2 W M^1/2)^1/2 M^-1/2.

The search minimises V - 2 T, which is convex in M; the gradient of 2 T is X(M).
X(M) is then changed to meet the constraints exactly. The least loss is between
T^2 / V and the loss of the C of this X. A result has converged only if the two
numbers agree up to a relative gap. [MultiEpoch23] maximises the same dual with
another algorithm. The parameters of M (`dense_multipliers`), the weights w for
the max error, and the gap of a feasible C are from this project. For one
participation M is diagonal, and the fixed point of [SingleEpoch22] is
m = diag((diag(m)^1/2 W diag(m)^1/2)^1/2).

**Optimality.** The search has X_ij = 0 for any two rounds i, j in which one
client can take part: columns i and j of C are orthogonal. So sens^2 is exactly
the largest sum of d over a pattern, the rounds of one client. The result is the
optimum of the following strategies:

- One participation: all strategies.
- Fixed epochs with every client in every epoch: all strategies. M has one block
  for each pattern, and is 0 outside of the blocks. All diagonal entries of a
  block have the same value u, so the block is u times a matrix of inner
  products of unit vectors. A client can contribute these vectors, so
  tr(M X) <= V for all X, and columns that are not orthogonal cannot reduce the
  loss.
- Fixed epochs with fewer participations than epochs: strategies whose columns
  for the rounds of one client are orthogonal.
- Min-separation: strategies with at most min_sep bands or, if
  max_participations allows fewer rounds than min_sep does, strategies with at
  most min_sep bands and columns of equal norms.

In two cases the search may end without convergence. One is the max error with
many participations or with momentum: weights w of rounds that hardly matter
converge slowly. This search starts at the optimum for the mean, and its result
is never worse than that optimum. The other case is momentum if
max_participations allows fewer rounds than min_sep does: the best M is nearly
singular.

Nearly all of the time goes into one symmetric eigenvalue problem for each
evaluation. LAPACK's divide and conquer, through NumPy, takes 1.3 s for n = 2052
on one core.
"""

from __future__ import annotations

from typing import Optional

import attrs
import numpy as np
import scipy

from tff_bandmf import errors, strategies
from tff_bandmf import participation as participation_lib
from tff_bandmf.optimize import dense_multipliers, solver
from tff_bandmf.strategies import base

# Relative distance of a loss from its lower bound that counts as converged.
GAP = strategies.PARAMETERS['gap'].default

# The same distance for a search whose result is only the start of another
# search.
_START_GAP = 1e-3
# Number of evaluations after which the strategy of X(M) is computed again.
_CHECK_EVERY = 10
# Below this fraction of the smallest eigenvalue at the start, the square root
# of an eigenvalue in T is replaced by its tangent. So V - 2 T is finite for an
# indefinite M, and its gradient leads to a positive definite M.
_FLOOR = 1e-8
# Least ratio of an eigenvalue of W to the largest one. In the first guess of M,
# eigenvalues with a smaller ratio are raised to it.
_SMALLEST_EIGENVALUE = 1e-14
# Factors of the off-diagonal entries of X. They are tried in this order until X
# is positive definite.
_KEPT = (1.0, 1 - 1e-6, 1 - 1e-4, 0.99, 0.9, 0.5)


class _ProvenError(Exception):
  """Ends the search: the loss is within the gap of its lower bound."""


class _Dual:
  """V / V_0 - 2 T / T_0 with its gradient, and the best strategy so far.

  V_0 and T_0 are the values at the start. The parameters are the parameters of
  M followed, for the max error, by multiples of sqrt(w_t).

  Attributes:
    start: [parameters] float64, start of the search.
    bounds: (low, high) of each parameter.
    evaluations: number of evaluations so far.
    strategy: strategy of the smallest loss so far.
    loss: loss of `strategy`.
    lower_bound: largest lower bound so far on the loss of the strategies in
      "Optimality".
    parameters: [parameters] float64, the point evaluated last.
  """

  def __init__(
    self,
    problem: solver.Problem,
    gap: float = GAP,
    guess: Optional[np.ndarray] = None,
  ):
    self._problem = problem
    self._gap = gap
    rounds = problem.rounds
    workload = problem.workload
    # Products with a matrix take O(n^3), as long as one evaluation.
    self._workload: Optional[np.ndarray] = None
    if workload.inverse_bands is None or workload.weight_decay:
      self._workload = workload.matrix(rounds)
    else:
      self._rates = workload.learning_rates(rounds)[:, None]
    self._is_max = problem.objective == solver.MAX
    self._roots = np.sqrt(problem.weights)[:, None]
    half = self._roots * self._summed(np.eye(rounds))
    if guess is None:
      # diag(W^1/2) is the fixed-point iterate that follows M = identity.
      values, vectors = np.linalg.eigh(half @ half.T)
      values = np.maximum(values, _SMALLEST_EIGENVALUE * values[-1])
      decoder = self._transposed(self._roots * vectors) * values**-0.25
      guess = np.diag(np.einsum('ij,ij->i', decoder, decoder))
    self._model, self._pairs, self._multipliers = dense_multipliers.of_schema(
      rounds, problem.participation, guess
    )
    start, self.bounds = self._multipliers.start, self._multipliers.bounds
    self._weights = len(start)
    values, _ = self._multipliers.decomposed(start, self._roots, self._summed)
    self._floor = _FLOOR * values[0]
    self._first_total = self._multipliers.total(start)
    self._first_trace = np.sum(np.sqrt(values))
    if self._is_max:
      start = np.concatenate([start, self._roots[:, 0]])
      self.bounds = self.bounds + [(None, None)] * rounds
    self.start = start
    self.evaluations = 0
    self.lower_bound = 0.0
    self.parameters = start
    # The first strategy is independent noise, with d_i proportional to W_ii^1/2
    # as far as the schema allows. The result is never worse than this strategy.
    own = np.linalg.norm(half, axis=0)
    self.strategy, self.loss = (
      strategies.Dense(np.diag(np.sqrt(self._model.feasible(own)))),
      np.inf,
    )
    self.offer(self.strategy)

  def __call__(self, parameters: np.ndarray) -> tuple[float, np.ndarray]:
    """Returns value and gradient at parameters, [parameters] float64.

    One of `_CHECK_EVERY` calls also computes the strategy of X(M).
    """
    return self.evaluate(parameters, self.evaluations % _CHECK_EVERY == 0)

  def evaluate(
    self, parameters: np.ndarray, check: bool
  ) -> tuple[float, np.ndarray]:
    """Returns value and gradient, [parameters] float64.

    Args:
      parameters: [parameters] float64.
      check: whether to compute the strategy of X(M).

    Raises:
      _ProvenError: the best strategy is within the gap of a lower bound.
    """
    self.evaluations += 1
    self.parameters = parameters
    own, lengths = np.split(parameters, [self._weights])
    roots = self._roots
    if self._is_max:
      norm = np.linalg.norm(lengths)
      roots = (lengths / norm)[:, None]
    total = self._multipliers.total(own)
    values, vectors = self._multipliers.decomposed(own, roots, self._summed)
    capped = np.maximum(values, self._floor)
    slope = 0.5 / np.sqrt(capped)
    trace = np.sum(np.sqrt(capped) + slope * (values - capped))
    decoder = self._transposed(roots * vectors) * np.sqrt(2 * slope)
    gram = decoder @ decoder.T
    total_slope, trace_slope = self._multipliers.gradients(own, gram)
    if self._is_max:
      along = 2 * np.square(vectors) @ (slope * values) / roots[:, 0]
      # w does not change with the norm of its parameters.
      along -= roots[:, 0] * (roots[:, 0] @ along)
      total_slope = np.concatenate([total_slope, np.zeros(len(lengths))])
      trace_slope = np.concatenate([trace_slope, along / norm])
    # If M is indefinite, T is undefined and there is no lower bound.
    if values[0] > 0:
      self.lower_bound = max(
        self.lower_bound, np.sum(np.sqrt(values)) ** 2 / total
      )
    if check:
      self._check(gram)
    value = total / self._first_total - 2 * trace / self._first_trace
    gradient = (
      total_slope / self._first_total - 2 * trace_slope / self._first_trace
    )
    return float(value), gradient

  def multipliers(self) -> np.ndarray:
    """Returns M, [n, n] float64, of the parameters of the last evaluation."""
    return self._multipliers.matrix(self.parameters[: self._weights])

  def _check(self, gram: np.ndarray) -> None:
    """Offers the C of X(M), changed to meet the constraints."""
    gram[self._pairs] = gram.T[self._pairs] = 0.0
    diagonal = np.diagonal(gram)
    change = np.sqrt(self._model.feasible(diagonal) / diagonal)
    self.offer(
      strategies.Dense(
        _positive_definite_factor(gram * change * change[:, None])
      )
    )
    if self.proven:
      raise _ProvenError

  def offer(self, strategy: strategies.Dense) -> None:
    """Keeps `strategy` if it is the best so far."""
    loss = self._problem.evaluated(strategy).loss
    if loss < self.loss:
      self.strategy, self.loss = strategy, loss

  @property
  def proven(self) -> bool:
    """Whether `loss` is within the gap of `lower_bound`."""
    return self.loss <= (1 + self._gap) * self.lower_bound

  def _summed(self, rows):
    """Returns A @ rows, in O(n^2) if A has few parameters."""
    if self._workload is not None:
      return self._workload @ rows
    h = self._problem.workload.polynomial
    return np.cumsum(
      self._rates * scipy.signal.lfilter([1.0], h, rows, axis=0), axis=0
    )

  def _transposed(self, rows):
    """Returns A^T @ rows, in O(n^2) if A has few parameters."""
    if self._workload is not None:
      return self._workload.T @ rows
    h = self._problem.workload.polynomial
    later = self._rates[::-1] * np.cumsum(rows[::-1], axis=0)
    return scipy.signal.lfilter([1.0], h, later, axis=0)[::-1]


def _positive_definite_factor(gram: np.ndarray) -> np.ndarray:
  """Returns C with C^T C = X.

  If X is not positive definite, its off-diagonal entries are reduced first.
  """
  diagonal = np.diag(np.diagonal(gram))
  for share in _KEPT:
    try:
      return strategies.lower_factor(share * gram + (1 - share) * diagonal)
    except np.linalg.LinAlgError:
      continue
  return np.sqrt(diagonal)


def optimize_dense(
  problem: solver.Problem,
  gap: float = GAP,
) -> solver.Optimized[strategies.Dense]:
  """Returns the strategy of least loss, and whether this is proved.

    loss = error * sens^2 >= T^2 / V for every M

  The paragraph "Optimality" of the module docstring says among which strategies
  the result is the best. Each evaluation takes O(n^3) time. The memory is a few
  n x n matrices and, under min-separation, about 40 (n - min_sep)^2 / 2 more
  numbers.

  Args:
    problem: error to minimise; `max_evaluations` limits the evaluations of the
      dual. The callback gets the best loss so far of the current search. There
      may be several searches: under min-separation, a search for fixed epochs
      gives the start, and a search for the mean error precedes a search for the
      max error.
    gap: relative distance of the loss from its lower bound at which the search
      ends, at least 0.

  Returns:
    The strategy. It has converged if its loss is proved to be at most 1 + `gap`
    times the loss of every strategy in "Optimality".

  Raises:
    ValueError: there are so many rounds that a matrix would not fit in memory.

  >>> found = optimize_dense(solver.Problem(9, participation_lib.Single()))
  >>> round(found.loss, 4), found.converged
  (2.3313, True)
  """
  of_mean = problem
  if problem.objective == solver.MAX:
    of_mean = attrs.evolve(problem, objective=solver.MEAN)
  base.check_dense(problem.rounds)
  if not np.all(problem.weights):
    raise errors.value_error(
      'objective=weights of 0: the best dense C would be singular; give each '
      'round a weight above 0, or use a family of few bands'
    )
  left, callback = problem.max_evaluations, problem.callback
  interrupted = False

  def search(dual):
    nonlocal left, interrupted
    point = dual.start
    # `dual` holds its best strategy, in whichever way the search ends.
    try:
      if left > 0 and not interrupted:
        minimum = solver.minimize(
          dual,
          dual.start,
          dual.bounds,
          left,
          None if callback is None else lambda _: callback(dual.loss),
        )
        point, interrupted = minimum.x, minimum.interrupted
      dual.evaluate(point, check=True)
    except KeyboardInterrupt:
      interrupted = True
    except _ProvenError:
      pass
    left -= dual.evaluations
    return dual

  guess = None
  schema = problem.participation
  count = schema.participations(problem.rounds)
  if not schema.evenly_spaced and count > 1:
    # Fixed epochs have fewer patterns than min-separation. An M for them is
    # also an M for min-separation, and a better start than a diagonal M, from
    # which the search with momentum may end 20 % above the best loss.
    fixed = participation_lib.FixedEpoch(
      schema.separation(problem.rounds), count
    )
    start = attrs.evolve(of_mean, participation=fixed)
    guess = search(_Dual(start, _START_GAP)).multipliers()
  dual = search(_Dual(of_mean, gap, guess))
  if problem.objective == solver.MAX:
    # The search starts from the optimum for the mean error, and its result is
    # never worse than that optimum.
    mean, dual = dual, _Dual(problem, gap, guess)
    dual.start[: len(mean.start)] = mean.parameters
    dual.offer(mean.strategy)
    search(dual)
  return solver.Optimized(
    dual.strategy, dual.loss, problem.max_evaluations - left, bool(dual.proven)
  )
