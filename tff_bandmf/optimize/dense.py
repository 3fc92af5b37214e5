"""The least error of any lower-triangular C, with a proof of how near it is.

| symbol | meaning                                                            |
|--------|--------------------------------------------------------------------|
| A      | workload, [n, n]                                                   |
| X      | C^T C                                                              |
| e_t    | error of round t, the squared L2 norm of row t of A C^-1           |
| w_t    | weight of e_t, with sum 1: 1 / n (mean), or searched for (max)     |
| W      | A^T diag(w) A                                                      |
| M      | dual variables of the sensitivity, [n, n], positive definite       |
| m, d   | diag(M), diag(X)                                                   |
| v, V   | weights that m is made of; largest m . d that the schema allows    |
| T      | tr (W^1/2 M W^1/2)^1/2                                             |

For any X of sensitivity at most 1, and any M with tr(M X) <= V for all such X,

  sum_t w_t e_t = tr(W X^-1) >= 2 T - tr(M X),  hence  error * sens^2 >= T^2 / V

with equality iff X = X(M) = M^-1/2 (M^1/2 W M^1/2)^1/2 M^-1/2. The search goes
down V - 2 T, convex in M, whose gradient is X(M) itself. X(M) is then made to
meet the constraints exactly: the loss of that C and T^2 / V enclose the least.
A result is called converged only where they agree to a gap. [MultiEpoch23]
climbs the same dual by other steps; the parameters of M (dense_multipliers.py),
the weights w of the max error, and the gap of an exactly feasible C are ours.
For one participation M is diagonal, and the fixed point of [SingleEpoch22] is
m = diag((diag(m)^1/2 W diag(m)^1/2)^1/2).

Optimality. The search keeps X_ij = 0 for any two rounds i, j of one client:
columns i and j of C are orthogonal. So sens^2 is exactly the largest sum of d
over the rounds of a pattern.

- One participation: the optimum of all strategies.
- Fixed epochs, every client in every epoch: the optimum of all strategies. M is
  0 between rounds of different clients, and a block of M of equal diagonal v is
  v times a matrix of scalar products of unit vectors, which are contributions
  a client can make. So tr(M X) <= V for all X: overlap cannot help.
- Fixed epochs with fewer participations than epochs: the optimum of strategies
  whose columns for the rounds of one client are orthogonal.
- Min-separation: the optimum of strategies with at most min_sep bands. If
  max_participations allows fewer rounds than min_sep does, the optimum of those
  strategies whose columns also have equal norms.

Two cases are hard, and the result may say that it has not converged: the max
error of many participations or of momentum, where weights w of rounds that
hardly matter converge slowly (it is never above that of the optimum for the
mean, where its search starts); and momentum with max_participations binding
before min_sep, where the best M is nearly singular.

One symmetric eigenvalue problem a step is nearly all of the work. LAPACK's
divide and conquer, through NumPy, takes 1.3 s for n = 2052 on one core; nothing
is left around it that TensorFlow could fuse.
"""

from __future__ import annotations

from typing import Optional

import attrs
import numpy as np
import scipy

from tff_bandmf import participation as participation_lib
from tff_bandmf import strategies
from tff_bandmf.optimize import dense_multipliers, solver
from tff_bandmf.strategies import base

# Relative distance of a loss from its lower bound that counts as converged.
GAP = strategies.PARAMETERS['gap'].default

# Gap of an optimum that is only the start of the next search.
_START_GAP = 1e-3
# Evaluations of the dual between two primal solutions.
_CHECK_EVERY = 10
# T goes on linearly below this fraction of the smallest eigenvalue at the
# start, so that a step out of the cone has a finite value and a way back.
_FLOOR = 1e-8
# Least ratio of eigenvalues of W in the first guess of M.
_SMALLEST_EIGENVALUE = 1e-14
# Factors of the off-diagonal of X, tried until X is positive definite.
_KEPT = (1.0, 1 - 1e-6, 1 - 1e-4, 0.99, 0.9, 0.5)


class _ProvenError(Exception):
  """Ends the search: the loss is within the gap of its lower bound."""


class _Dual:
  """V / V_0 - 2 T / T_0 and its gradient, and the best strategy on the way.

  Parameters are those of M, then, for the max error, multiples of sqrt(w_t).

  Attributes:
    start: [parameters] float64, start of the search.
    bounds: (low, high) of each parameter.
    evaluations: number of evaluations so far.
    strategy: strategy of the smallest loss so far.
    loss: loss of `strategy`.
    lower_bound: largest lower bound so far on the loss of any strategy.
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
    self._rates = problem.workload.learning_rates(rounds)[:, None]
    self._is_max = problem.objective == solver.MAX
    self._roots = np.full((rounds, 1), rounds**-0.5)
    half = self._roots * self._summed(np.eye(rounds))
    if guess is None:
      # diag(W^1/2): one step of the fixed point from M = identity.
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
    # No worse than independent noise of the best variances, W_ii^1/2 / d_i.
    own = np.linalg.norm(half, axis=0)
    self.strategy, self.loss = (
      strategies.Dense(np.diag(np.sqrt(self._model.feasible(own)))),
      np.inf,
    )
    self.offer(self.strategy)

  def __call__(self, parameters: np.ndarray) -> tuple[float, np.ndarray]:
    """Returns value and gradient; makes a strategy of X(M) now and then."""
    return self.evaluate(parameters, self.evaluations % _CHECK_EVERY == 0)

  def evaluate(
    self, parameters: np.ndarray, check: bool
  ) -> tuple[float, np.ndarray]:
    """Returns value and gradient, [parameters] float64.

    Args:
      parameters: [parameters] float64.
      check: whether to make a strategy of X(M).

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
      # w has sum 1 whatever the length of its parameters.
      along -= roots[:, 0] * (roots[:, 0] @ along)
      total_slope = np.concatenate([total_slope, np.zeros(len(lengths))])
      trace_slope = np.concatenate([trace_slope, along / norm])
    # If M is indefinite, T is not defined and gives no lower bound.
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
    """Returns M of the parameters last evaluated, [n, n] float64."""
    return self._multipliers.matrix(self.parameters[: self._weights])

  def _check(self, gram: np.ndarray) -> None:
    """Makes X(M) meet the constraints, and offers its C."""
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
    """Whether `loss` is within the gap of the least possible."""
    return self.loss <= (1 + self._gap) * self.lower_bound

  def _summed(self, rows):
    """Returns A @ rows, in O(n^2)."""
    h = self._problem.workload.polynomial
    return np.cumsum(
      self._rates * scipy.signal.lfilter([1.0], h, rows, axis=0), axis=0
    )

  def _transposed(self, rows):
    """Returns A^T @ rows, in O(n^2)."""
    h = self._problem.workload.polynomial
    later = self._rates[::-1] * np.cumsum(rows[::-1], axis=0)
    return scipy.signal.lfilter([1.0], h, later, axis=0)[::-1]


def _positive_definite_factor(gram: np.ndarray) -> np.ndarray:
  """Returns C with C^T C = X, the off-diagonal of X shrunk as far as needed."""
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
  """Returns the strategy of least loss, and whether that is proved.

    loss = error * sens^2 >= T^2 / V for every M

  "Optimality" in the docstring of this module says among which strategies the
  result is best. Each evaluation
  is O(n^3), and memory a few n x n matrices; under min-separation it is about
  40 (n - min_sep)^2 / 2 numbers more.

  Args:
    problem: error to minimise; evaluations are counted of the dual. The
      callback gets the best loss so far of the search at hand: min-separation
      starts from the optimum for fixed epochs, and the max error from that for
      the mean.
    gap: relative distance of the loss from its lower bound at which the search
      ends, at least 0.

  Returns:
    The strategy; `converged` if no strategy of the class has a loss smaller by
    more than `gap`, relative.

  Raises:
    ValueError: there are so many rounds that a matrix would not fit in memory.

  >>> found = optimize_dense(solver.Problem(9, participation_lib.Single()))
  >>> round(found.loss, 4), found.converged
  (2.3313, True)
  """
  of_mean = attrs.evolve(problem, objective=solver.MEAN)
  base.check_dense(problem.rounds)
  left, callback = problem.max_evaluations, problem.callback
  interrupted = False

  def search(dual):
    nonlocal left, interrupted
    point = dual.start
    # Whatever ends the search, `dual` has a strategy.
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
    # Fewer patterns: its M is one of min-separation too, and a better start.
    fixed = participation_lib.FixedEpoch(
      schema.separation(problem.rounds), count
    )
    start = attrs.evolve(of_mean, participation=fixed)
    guess = search(_Dual(start, _START_GAP)).multipliers()
  dual = search(_Dual(of_mean, gap, guess))
  if problem.objective == solver.MAX:
    # The search starts from the optimum for the mean error, so its result is at
    # least as good.
    mean, dual = dual, _Dual(problem, gap, guess)
    dual.start[: len(mean.start)] = mean.parameters
    dual.offer(mean.strategy)
    search(dual)
  return solver.Optimized(
    dual.strategy, dual.loss, problem.max_evaluations - left, bool(dual.proven)
  )
