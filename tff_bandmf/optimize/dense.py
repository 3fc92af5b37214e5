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
another algorithm. The parameters of M, the weights w for the max error, and the
gap of a feasible C are from this project. For one participation M is diagonal,
and the fixed point of [SingleEpoch22] is
m = diag((diag(m)^1/2 W diag(m)^1/2)^1/2).

**Parameters of M.** Two rounds i != j are a pair if one client can take part in
both. If i != j are not a pair, M_ij = 0. m is linear in v >= 0, and so is V.
For one participation and for fixed epochs, M = L L^T, and L_ij = 0 where M_ij =
0. Row i of L is sqrt(m_i) (u_i, 1) / |(u_i, 1)|. The parameters are u and the
square roots of v: at the optimum the curvature of T along L is d, which is
nearly constant, even if M is ill-conditioned. For min-separation, such an L
would give an M with M_ij != 0 for rounds that are not a pair. So for
min-separation the parameters are v and the M_ij of pairs, scaled so that the
curvature of T at the start is nearly the same for all parameters.

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
- Min-separation: strategies with at most min_sep bands. If max_participations
  limits a client to fewer rounds than min_sep alone, only such strategies with
  columns of equal norms.

In two cases the search may end without convergence. For the max error, weights
w of rounds that hardly matter converge slowly. With momentum, the best M is
nearly singular if max_participations limits a client to fewer rounds than
min_sep alone. In both cases the C of min_sep bands of the module `banded` is a
candidate, so the result is never worse than this C. For the max error the
result is also never worse than the optimum for the mean error.

Nearly all of the time goes into one symmetric eigenvalue problem for each
evaluation. TensorFlow solves it, on the device of `with tf.device(...)`.
"""

from __future__ import annotations

from typing import Callable, Optional

import attrs
import numpy as np
import scipy.optimize

from tff_bandmf import errors, strategies
from tff_bandmf import participation as participation_lib
from tff_bandmf.optimize import banded, in_tensorflow, solver
from tff_bandmf.optimize.in_tensorflow import tf
from tff_bandmf.strategies import base

# Relative distance of a loss from its lower bound that counts as converged.
GAP = strategies.PARAMETERS['gap'].default

# The same distance for a search whose result is only the start of another
# search.
_START_GAP = 1e-3
# One of `_CHECK_EVERY` evaluations computes the strategy of X(M). After its
# result is proved, a search ends if `_PATIENCE` evaluations decreased the loss
# by less than the fraction `_WORTH` of the gap.
_CHECK_EVERY, _PATIENCE, _WORTH = 10, 10, 1e-3
# For small n, this number divided by n replaces `_PATIENCE`. A search for L
# needs few evaluations, so its patience is doubled.
_PATIENCE_OF_SMALL = 1200
# Steps of Newton's method after a search that ends without proof, the largest
# entry of the gradient at which they end, and most evaluations of a step.
_NEWTON_STEPS, _NEWTON_TOLERANCE, _NEWTON_EVALUATIONS = 8, 1e-13, 40
# Fraction of all evaluations that the search for few bands may take.
_FEW_BANDS = 0.25
# Largest number of mixtures of two X that are tried for the max error.
_MIXTURES = 8
# Below this fraction of the smallest eigenvalue at the start, the square root
# of an eigenvalue in T is replaced by its tangent. So V - 2 T is finite for an
# indefinite M, and its gradient leads to a positive definite M.
_FLOOR = 1e-8
# If the ratio of the smallest to the largest eigenvalue of a product H H^T is
# less than this, the smallest eigenvalues are mainly rounding errors.
_ACCURATE = 1e-11
# Least ratio of an eigenvalue of W to the largest one. In the first guess of M,
# eigenvalues with a smaller ratio are raised to it.
_SMALLEST_EIGENVALUE = 1e-14
# Scale of y in `_min_sep_diagonal` relative to the scale of m. The value was
# found by experiment.
_IDLE_SCALE = 3.0
# Smallest ratio of a feasible d_i to the given d_i.
_SMALLEST_CHANGE = 1e-3
# Factors of the off-diagonal entries of X. They are tried in this order until X
# is positive definite.
_OFF_DIAGONAL = (1.0, 1 - 1e-6, 1 - 1e-4, 0.99, 0.9, 0.5)


class _ProvenError(Exception):
  """Ends the search: the loss is within the gap of its lower bound."""


@attrs.frozen(eq=False)
class _Diagonal:
  """m and V as linear functions of v, and the d that the schema allows.

  Attributes:
    spread: [n, weights] float64, m = spread @ v.
    total: [weights] float64, V = total @ v.
    start: [weights] float64, v at the start, where M = diag(m).
    feasible: function from d, [n] positive float64, to a d that the schema
      allows and that is nearly a multiple of the given d.
    scale: [weights] float64. For min-separation, the parameters are v / scale.
      The curvature of T along v_i is about 1 / v_i, so scale_i^2 is about v_i.
  """

  spread: np.ndarray
  total: np.ndarray
  start: np.ndarray
  feasible: Callable[[np.ndarray], np.ndarray]
  scale: np.ndarray = attrs.field()

  @scale.default
  def _default(self) -> np.ndarray:
    return np.sqrt(self.start)


def _equal_diagonal(m: np.ndarray, k: int) -> _Diagonal:
  """Returns the `_Diagonal` for d_i = 1 / k, where V = sum_i m_i / k.

  Args:
    m: [n] positive float64, m at the start.
    k: largest number of rounds of one client.
  """
  d = np.full(len(m), 1 / k)
  return _Diagonal(np.eye(len(m)), d, m, lambda _: d)


def _fixed_epoch_diagonal(m: np.ndarray, b: int, k: int) -> _Diagonal:
  """Returns the `_Diagonal` for d whose sum over each pattern is at most 1.

  A pattern is the k rounds i, i + b, ..., or all such rounds if there are fewer
  than k. There is one v for each pattern, and m_i is the sum of v over the
  patterns that contain round i.
  """
  i = np.arange(len(m))
  first = i[(i < b) | (i + (k - 1) * b < len(m))]
  lag = np.subtract.outer(i, first)
  spread = ((lag % b == 0) & (lag >= 0) & (lag < k * b)).astype(float)

  def feasible(d):
    heaviest = np.zeros(b)
    np.maximum.at(heaviest, first % b, spread.T @ d)
    return d / heaviest[i % b]

  start = spread.T @ (m / spread.sum(1)) / spread.sum(0)
  return _Diagonal(spread, np.ones(len(first)), start, feasible)


def _min_sep_diagonal(m: np.ndarray, b: int) -> _Diagonal:
  """Returns the `_Diagonal` for d whose sum over each pattern is at most 1.

  A pattern is a set of rounds that are at least b apart. Let F_i be the largest
  sum of d over a pattern of rounds >= i. Then d_i = F_i - F_{i+b}, where F does
  not increase, and is 1 in the first b < n rounds. In the dual, patterns have
  weights with sum V. m_i is the weight of the patterns that contain round i,
  and y_i >= 0 is the weight of the patterns that could contain round i and do
  not.

    m_i = m_{i-b} + y_{i-1} - y_i,  V = m_0 + ... + m_{b-1} + y_{b-1}

  v is m_0, ..., m_{b-1}, y_{b-1}, ..., y_{n-1}.
  """
  n, i = len(m), np.arange(len(m))
  lag = np.subtract.outer(i, i)
  steps = np.eye(n, n + 1)
  steps[i[b:], i[b:] + 1] = -1
  start = np.zeros(n + 1)
  start[:b] = np.bincount(i % b, m) / np.bincount(i % b)
  scale = np.full(n + 1, _IDLE_SCALE * np.sqrt(start[:b].mean()))
  scale[:b] = np.sqrt(start[:b])

  def feasible(d):
    heaviest = np.append(d, np.zeros(b))
    for i in range(n - b - 1, -1, -1):
      heaviest[i] += heaviest[i + b]
    heaviest /= heaviest[:b].mean()
    heaviest[:b] = 1
    falling = np.minimum.accumulate(heaviest)
    above = np.maximum.accumulate(heaviest[::-1])[::-1]
    heaviest = (falling + above) / 2
    return np.maximum(heaviest[:n] - heaviest[b:], _SMALLEST_CHANGE * d)

  spread = ((lag % b == 0) & (lag >= 0)) @ steps
  total = (np.arange(n + 1) <= b).astype(float)
  return _Diagonal(spread, total, start, feasible, scale)


class _Dual:
  """V / V_0 - 2 T / T_0 with its gradient, and the best strategy so far.

  V_0 and T_0 are the values at the start. For the max error, multiples of
  sqrt(w_t) follow the parameters of M.

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
    n, schema = problem.rounds, problem.participation
    b, k = schema.separation(n), schema.participations(n)
    self._problem, self._gap = problem, gap
    self._workload = tf.constant(problem.workload.matrix(n))
    self._roots = np.sqrt(problem.weights)
    half = self._roots[:, None] * self._workload.numpy()
    if guess is None:
      # diag(W^1/2) is the fixed-point iterate that follows M = identity.
      values, vectors = np.linalg.eigh(half @ half.T)
      values = np.maximum(values, _SMALLEST_EIGENVALUE * values[-1])
      guess = np.diag(np.sum((half.T @ (vectors * values**-0.25)) ** 2, 1))
    self._pairs = in_tensorflow.pairs(n, schema)
    self._at = np.argwhere(np.tril(self._pairs))
    self.is_factored = k == 1 or schema.evenly_spaced
    m = np.diagonal(guess)
    if k == 1 or not (schema.evenly_spaced or k * b >= n):
      self._diagonal = _equal_diagonal(m, k)
    elif schema.evenly_spaced:
      self._diagonal = _fixed_epoch_diagonal(m, b, k)
    else:
      self._diagonal = _min_sep_diagonal(m, b)
    self._is_max = problem.objective == solver.MAX
    self._sizes = len(self._diagonal.start), len(self._at), self._is_max * n
    root = (self._diagonal.spread @ self._diagonal.start) ** 0.25
    self._scale = np.outer(root, root)
    entries = np.zeros((n, n)) if self.is_factored else guess / self._scale
    self.start = np.concatenate(
      [
        self._diagonal.start / self._diagonal.scale,
        entries[tuple(self._at.T)],
        self._roots[: self._sizes[2]],
      ]
    )
    least = None if self.is_factored else 0.0
    self.bounds = [(least, None)] * self._sizes[0]
    self.bounds += [(None, None)] * sum(self._sizes[1:])
    total, m, factor, roots = self._variables(tf.constant(self.start))
    values, *_ = self._spectrum(m, factor, roots)
    self._floor = _FLOOR * values[0]
    self._first = total, tf.reduce_sum(tf.sqrt(values))
    self._traced = tf.function(
      self._evaluated,
      [tf.TensorSpec(self.start.shape, tf.float64)],
      autograph=False,
    )
    self.evaluations, self.lower_bound, self._since = 0, 0.0, 0
    patience = max(_PATIENCE, _PATIENCE_OF_SMALL // n) * (gap <= GAP)
    self._patience = patience * (1 + self.is_factored)
    self.parameters = self.start
    # The first strategy is independent noise, with d_i proportional to W_ii^1/2
    # as far as the schema allows. The result is never worse than this strategy.
    own = np.linalg.norm(half, axis=0)
    self.strategy = strategies.Dense(
      np.diag(np.sqrt(self._diagonal.feasible(own)))
    )
    self.loss = self._before = problem.evaluated(self.strategy).loss

  def _variables(self, x: tf.Tensor) -> tuple:
    """Returns V, M, L, and the square roots of w, [n, 1].

    L is None if M has other parameters.
    """
    weights, entries, roots = tf.split(x, self._sizes)
    roots = roots / tf.norm(roots) if self._is_max else self._roots
    low = tf.scatter_nd(self._at, entries, self._scale.shape)
    if self.is_factored:
      weights, factor = weights**2, low + np.eye(len(self._scale))
    else:
      weights, factor = weights * self._diagonal.scale, None
    own = tf.linalg.matvec(self._diagonal.spread, weights)
    if factor is None:
      m = self._scale * (low + tf.transpose(low)) + tf.linalg.diag(own)
    else:
      factor *= (tf.sqrt(own) / tf.norm(factor, axis=1))[:, None]
      m = tf.matmul(factor, factor, transpose_b=True)
    total = tf.reduce_sum(self._diagonal.total * weights)
    return total, m, factor, tf.reshape(roots, [-1, 1])

  def _spectrum(
    self, m: tf.Tensor, factor: Optional[tf.Tensor], roots: tf.Tensor
  ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns eigenvalues and eigenvectors of B M B^T, and B.

    B is diag(roots) A. If M is indefinite, there is an eigenvalue <= 0.
    """
    half = roots * self._workload
    if factor is None:
      product = half @ tf.matmul(m, half, transpose_b=True)
    else:
      product = half @ factor
      product = tf.matmul(product, product, transpose_b=True)
    values, vectors = tf.linalg.eigh(product)

    def accurate():
      squares, root = [1.0], factor
      if factor is None:
        squares, root = tf.linalg.eigh(m)
        root *= tf.sqrt(tf.maximum(squares, 0.0))
      roots, left, _ = tf.linalg.svd(half @ root)
      indefinite = tf.concat([tf.minimum(values[:1], 0.0), values[1:]], 0)
      return (
        tf.where(squares[0] > 0, roots[::-1] ** 2, indefinite),
        tf.where(squares[0] > 0, left[:, ::-1], vectors),
      )

    values, vectors = tf.cond(
      values[0] >= _ACCURATE * values[-1], lambda: (values, vectors), accurate
    )
    return values, vectors, half

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
    value, gradient, bound, gram = self._traced(parameters)
    self.lower_bound = max(self.lower_bound, float(bound))
    if check:
      self._check(gram.numpy())
    return float(value), gradient.numpy()

  def _evaluated(self, x: tf.Tensor) -> tuple[tf.Tensor, ...]:
    """Returns value and gradient, the lower bound of the loss, and X(M)."""
    with tf.GradientTape() as tape:
      tape.watch(x)
      total, m, factor, roots = self._variables(x)
      with tape.stop_recording():
        values, vectors, half = self._spectrum(m, factor, roots)
        capped = tf.maximum(values, self._floor)
        slope = 0.5 / tf.sqrt(capped)
        trace = tf.reduce_sum(tf.sqrt(capped) + slope * (values - capped))
        decoder = tf.matmul(
          vectors * tf.sqrt(2 * slope), half, transpose_a=True
        )
        gram = tf.matmul(decoder, decoder, transpose_a=True)
        by_roots = 2 * tf.linalg.matvec(vectors**2, slope * values)[:, None]
      # The added terms are 0. Their gradients are the gradients of T by M,
      # which is X(M) / 2, and by the roots of w.
      along = tf.reduce_sum(gram * m) / 2
      along += tf.reduce_sum(by_roots / tf.stop_gradient(roots) * roots)
      trace += along - tf.stop_gradient(along)
      value = total / self._first[0] - 2 * trace / self._first[1]
    # If M is indefinite, T is undefined and there is no lower bound.
    bound = tf.reduce_sum(tf.sqrt(values)) ** 2 / total
    bound = tf.where(values[0] > 0, bound, 0.0)
    return value, tape.gradient(value, x), bound, gram

  def multipliers(self) -> np.ndarray:
    """Returns M, [n, n] float64, of the parameters of the last evaluation."""
    return self._variables(tf.constant(self.parameters))[1].numpy()

  def _check(self, gram: np.ndarray) -> None:
    """Offers the C of X(M), changed to meet the constraints."""
    gram = np.where(self._pairs, 0.0, gram)
    diagonal = np.diagonal(gram)
    change = np.sqrt(self._diagonal.feasible(diagonal) / diagonal)
    self.offer(gram * change * change[:, None])
    if self.gained(self._before):
      self._before, self._since = self.loss, self.evaluations
    if self.proven and self.evaluations >= self._since + self._patience:
      raise _ProvenError

  def gained(self, before: float) -> bool:
    """Returns whether the loss is noticeably smaller than `before`."""
    return self.loss < before * (1 - _WORTH * self._gap)

  def offer(self, gram: np.ndarray) -> None:
    """Keeps the C of X, [n, n] float64, if it is the best so far.

    For the max error, mixtures of X with the best X so far are tried too: they
    meet the constraints, and errors are convex in X.
    """
    best = self.strategy.matrix()
    best = best.T @ best

    def loss(share):
      mixture = share * gram + (1 - share) * best
      strategy = strategies.Dense(_positive_definite_factor(mixture))
      value = self._problem.evaluated(strategy).loss
      if value < self.loss:
        self.strategy, self.loss = strategy, value
      return value

    loss(1.0)
    if self._is_max:
      scipy.optimize.minimize_scalar(
        loss, bounds=(0, 1), method='bounded', options={'maxiter': _MIXTURES}
      )

  @property
  def proven(self) -> bool:
    """Whether `loss` is within the gap of `lower_bound`."""
    return self.loss <= (1 + self._gap) * self.lower_bound


def _positive_definite_factor(gram: np.ndarray) -> np.ndarray:
  """Returns C with C^T C = X.

  If X is not positive definite, its off-diagonal entries are reduced first.
  """
  diagonal = np.diag(np.diagonal(gram))
  for share in _OFF_DIAGONAL:
    try:
      return strategies.lower_factor(share * gram + (1 - share) * diagonal)
    except np.linalg.LinAlgError:
      continue
  return np.sqrt(diagonal)


def optimize_dense(
  problem: solver.Problem, gap: float = GAP
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
    The strategy. The search has converged if the loss is proved to be at most
    1 + `gap` times the loss of every strategy in "Optimality".

  Raises:
    ValueError: there are so many rounds that a matrix would not fit in memory.

  >>> best = optimize_dense(solver.Problem(9, participation_lib.Single()))
  >>> round(best.loss, 4), best.converged
  (2.3313, True)
  """
  base.check_dense(problem.rounds)
  if not np.all(problem.weights):
    raise errors.value_error(
      'objective=weights of 0: the best dense C would be singular; give each '
      'round a weight above 0, or use a family of few bands'
    )
  n, schema, callback = problem.rounds, problem.participation, problem.callback
  b, k = schema.separation(n), schema.participations(n)
  is_max = problem.objective == solver.MAX
  left, interrupted, guess = problem.max_evaluations, False, None
  candidates = []

  def search(dual):
    nonlocal left, interrupted
    before, most = np.inf, left
    # `dual` has the best strategy, even if the search ends by an exception.
    try:
      while left > 0 and not interrupted and dual.gained(before):
        before = dual.loss
        watched = attrs.evolve(
          problem,
          max_evaluations=left,
          callback=callback and (lambda _: callback(dual.loss)),
        )
        minimum = solver.minimize(dual, dual.parameters, watched, dual.bounds)
        interrupted = minimum.interrupted
        dual.evaluate(minimum.x, check=True)
        left = most - dual.evaluations
      is_smooth = dual.is_factored and not interrupted
      if is_smooth and left > _NEWTON_EVALUATIONS * _NEWTON_STEPS:
        scipy.optimize.root(
          lambda x: dual.evaluate(x, check=False)[1],
          dual.parameters,
          method='krylov',
          callback=lambda x, _: dual.evaluate(x, check=True),
          options={'maxiter': _NEWTON_STEPS, 'fatol': _NEWTON_TOLERANCE},
        )
    except KeyboardInterrupt:
      interrupted = True
    except _ProvenError:
      pass
    left = most - dual.evaluations
    return dual

  if is_max or not schema.evenly_spaced and 1 < k and k * b < n:
    few = attrs.evolve(problem, max_evaluations=1 + int(_FEW_BANDS * left))
    optimized = banded.optimize_banded(few, min(b, n))
    interrupted = optimized.interrupted
    left -= optimized.evaluations
    # A pattern has at most k columns of norm 1, so X / k has sensitivity <= 1.
    matrix = optimized.strategy.matrix()
    candidates.append(matrix.T @ matrix / k)
  of_mean = attrs.evolve(problem, objective=solver.MEAN) if is_max else problem
  if not schema.evenly_spaced and k > 1:
    # Fixed epochs have fewer patterns than min-separation. An M for fixed
    # epochs is also an M for min-separation, and a better start than a diagonal
    # M, from which the search with momentum may end 20 % above the best loss.
    fixed = participation_lib.FixedEpoch(b, k)
    start = attrs.evolve(of_mean, participation=fixed)
    guess = search(_Dual(start, _START_GAP)).multipliers()
  dual = _Dual(of_mean, gap, guess)
  if is_max:
    # The search starts from the optimum for the mean error, and its result is
    # never worse than that optimum.
    mean, dual = search(dual), _Dual(problem, gap, guess)
    dual.parameters[: len(mean.start)] = mean.parameters
    matrix = mean.strategy.matrix()
    candidates.append(matrix.T @ matrix)
  for each in candidates:
    dual.offer(each)
  search(dual)
  return solver.Optimized(
    dual.strategy, dual.loss, problem.max_evaluations - left, bool(dual.proven)
  )
