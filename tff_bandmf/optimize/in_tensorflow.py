"""The search for any C that a user can write down, in TensorFlow.

A program gives a function `build` from parameters to C, in one of four forms:

| form       | values                                | shape      |
|------------|---------------------------------------|------------|
| `Toeplitz` | first column of C                     | [bands]    |
| `Inverse`  | first column of C^-1                  | [bands]    |
| `Columns`  | columns of C: C[j + s, j] at [j, s]   | [n, bands] |
| `Gram`     | X = C^T C, positive definite          | [n, n]     |

The function `minimize` returns the C of the least

  loss = log error + log noise,   noise = sens^2, or `Problem.noise`^2

TensorFlow computes the loss and its gradient in float64, and SciPy's L-BFGS-B
minimises the loss. Every form computes its per-query errors, and a sensitivity
that is exact or an upper bound. The result has the error and the sensitivity
that the library computes from the numbers of C, without this module.

| symbol | meaning                                                          |
|--------|------------------------------------------------------------------|
| n      | number of rounds                                                 |
| A      | workload, [n, n]                                                 |
| c, r   | first columns of C and C^-1; as power series r(x) = 1 / c(x)     |
| w      | first column of A C^-1, if A is Toeplitz                         |
| L      | C A^-1, of few bands; A C^-1 = L^-1                              |
| e_t    | error of query t, the squared norm of row t of A C^-1            |
| b, k   | min_sep, and the largest number of rounds of one client          |

This module imports TensorFlow, so only searches import this module. It runs on
the device of TensorFlow that `with tf.device(...)` names.
"""

from __future__ import annotations

import abc
import functools
import math
import os
from typing import Callable, Optional

import attrs
import numpy as np

# TensorFlow would print a line for each X that is not positive definite. A
# search may try such an X.
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')
import tensorflow as tf  # noqa: E402

from tff_bandmf import _checks, errors, strategies
from tff_bandmf.optimize import covariance, series, solver

# Largest number of steps that are traced one by one. One iteration of a loop of
# TensorFlow takes as long as many operations on small matrices.
_UNROLLED = 128
# Least number of terms of a power series that are computed together.
_TERMS = 128
# The search ends if an iteration decreases the log loss by less than this.
_TOLERANCE = 1e-14


@attrs.frozen(eq=False)
class Form(abc.ABC):
  """C as a tensor.

  Attributes:
    values: float64 tensor of the shape in the module docstring.
  """

  values: tf.Tensor = attrs.field(
    converter=lambda values: tf.cast(values, tf.float64)
  )

  @abc.abstractmethod
  def errors(self, problem: solver.Problem) -> tf.Tensor:
    """Returns e, [n]."""

  @abc.abstractmethod
  def squared_noise(self, problem: solver.Problem) -> tf.Tensor:
    """Returns sens^2 or an upper bound of it, or s^2 for sampled cohorts."""

  @abc.abstractmethod
  def strategy(self, rounds: int) -> strategies.Strategy:
    """Returns the strategy of family `custom`; `values` must be eager."""

  def fits(self, rounds: int) -> bool:
    """Returns whether the shape of the values is right."""
    shape = self.values.shape
    return len(shape) == 1 and 1 <= shape[0] <= rounds


class Toeplitz(Form):
  """C of few bands, given by the start of the first column, [bands]."""

  def errors(self, problem):
    n, workload = problem.rounds, problem.workload
    if workload.is_toeplitz:
      steps = _convolved(self.values, workload.steps)
      return tf.cumsum(divide(steps, np.ones(1), n) ** 2)
    if workload.inverse_bands is None:
      return Inverse(divide(self.values, np.ones(1), n)).errors(problem)
    return Columns(tf.repeat(self.values[None], n, 0)).errors(problem)

  def squared_noise(self, problem):
    return _from_numpy(
      functools.partial(series.squared_noise, problem=problem), self.values
    )

  def strategy(self, rounds):
    return strategies.custom(rounds, coefficients=self.values.numpy())


class Inverse(Form):
  """C^-1 of few bands, given by the start of the first column, [bands]."""

  def errors(self, problem):
    n, workload = problem.rounds, problem.workload
    if workload.is_toeplitz:
      return tf.cumsum(divide(tf.constant(workload.steps), self.values, n) ** 2)
    inverse = Columns(tf.repeat(self.values[None], n, 0)).matrix()
    return tf.reduce_sum((tf.constant(workload.matrix(n)) @ inverse) ** 2, 1)

  def squared_noise(self, problem):
    column = divide(self.values, np.ones(1), problem.rounds)
    return Toeplitz(column).squared_noise(problem)

  def strategy(self, rounds):
    return strategies.custom(rounds, inverse_coefficients=self.values.numpy())


class Columns(Form):
  """C of few bands, given by its columns: C[j + s, j] at [j, s], [n, bands].

  Entries with j + s >= n do not count.
  """

  def fits(self, rounds):
    shape = self.values.shape
    return len(shape) == 2 and shape[0] == rounds and 1 <= shape[1] <= rounds

  @property
  def _inside(self) -> tf.Tensor:
    n, bands = self.values.shape
    rows = np.add.outer(np.arange(n), np.arange(bands))
    return tf.where(rows < n, self.values, 0.0)

  def matrix(self) -> tf.Tensor:
    """Returns C, [n, n]."""
    n, bands = self.values.shape
    lag = -np.subtract.outer(np.arange(n), np.arange(n)).T
    entries = tf.gather(self.values, np.clip(lag, 0, bands - 1).T, batch_dims=1)
    return tf.transpose(tf.where((lag.T >= 0) & (lag.T < bands), entries, 0.0))

  def errors(self, problem):
    n, workload = problem.rounds, problem.workload
    if workload.inverse_bands is None:
      solved = tf.linalg.triangular_solve(
        self.matrix(), workload.matrix(n).T, adjoint=True
      )
      return tf.reduce_sum(solved**2, 0)
    rows = workload.inverse_rows(n)
    columns, more = self._inside, min(rows.shape) - 1
    terms = [
      tf.pad(columns[p:] * rows[p:, p : p + 1], [[0, p], [p, more - p]])
      for p in range(more + 1)
    ]
    return banded_errors(tf.add_n(terms))

  def squared_noise(self, problem):
    schema, columns = problem.participation, self._inside
    if problem.noise:
      return _from_numpy(problem.noise.squared_of_columns, columns)
    if schema.participations(problem.rounds) > 1 and (
      columns.shape[1] > schema.separation(problem.rounds)
    ):
      c = self.matrix()
      return Gram(tf.matmul(c, c, transpose_a=True)).squared_noise(problem)
    return _heaviest(tf.reduce_sum(columns**2, 1), problem)

  def strategy(self, rounds):
    return strategies.custom(columns=self.values.numpy())


class Gram(Form):
  """C, given by X = C^T C, [n, n], symmetric and positive definite."""

  def fits(self, rounds):
    return tuple(self.values.shape) == (rounds, rounds)

  def errors(self, problem):
    return _gram_errors(
      self.values, tf.constant(problem.workload.matrix(problem.rounds).T)
    )

  def squared_noise(self, problem):
    """Returns the largest sum of w_i over a pattern, w_i = sum_j |X_ij|.

    The sum w_i is over i and all rounds j that a client of round i may have.
    """
    if problem.noise:
      raise errors.value_error(
        'build=Gram: does not show that C >= 0, and sampled cohorts need it; '
        'return Columns'
      )
    n = problem.rounds
    together = pairs(n, problem.participation) | np.eye(n, dtype=bool)
    weights = tf.reduce_sum(tf.where(together, tf.abs(self.values), 0.0), 1)
    return _heaviest(weights, problem)

  def strategy(self, rounds):
    return strategies.custom(
      matrix=strategies.lower_factor(self.values.numpy())
    )


def pairs(rounds: int, schema) -> np.ndarray:
  """Returns whether i != j can be rounds of one client, [n, n] bool."""
  k = schema.participations(rounds)
  b = schema.separation(rounds) if k > 1 else rounds
  lag = np.abs(np.subtract.outer(np.arange(rounds), np.arange(rounds)))
  if schema.evenly_spaced:
    return (lag % b == 0) & (lag > 0) & (lag < k * b)
  return lag >= b


def columns_of_rows(rows: tf.Tensor) -> tf.Tensor:
  """Returns columns[j, s] = rows[j + s, s], 0 where j + s >= n, [n, bands]."""
  n, bands = rows.shape
  # Each row of the transposed matrix gets one more entry. In rows of the old
  # length, the same numbers then move one column to the left from row to row.
  flat = tf.reshape(tf.transpose(rows), [-1])
  moved = tf.reshape(tf.pad(flat, [[0, bands]]), [bands, n + 1])[:, :n]
  inside = np.add.outer(np.arange(bands), np.arange(n)) < n
  return tf.transpose(tf.where(inside, moved, 0.0))


def _padded(series: tf.Tensor, terms: int) -> tf.Tensor:
  return tf.pad(series[:terms], [[0, max(terms - series.shape[0], 0)]])


def _convolved(a: tf.Tensor, b: np.ndarray) -> tf.Tensor:
  """Returns the product of two polynomials, the second of few terms."""
  return tf.add_n(
    [tf.pad(each * a, [[i, len(b) - 1 - i]]) for i, each in enumerate(b)]
  )


def _from_numpy(
  function: Callable[[np.ndarray], tuple[float, np.ndarray]], x: tf.Tensor
) -> tf.Tensor:
  """Returns the number function(x), whose gradient the function returns too."""

  @tf.custom_gradient
  def value(x):
    value, slopes = tf.numpy_function(
      # TensorFlow would convert a Python float to float32.
      lambda x: [np.asarray(each, np.float64) for each in function(x)],
      [x],
      [tf.float64] * 2,
    )
    slopes = tf.ensure_shape(slopes, x.shape)
    return tf.ensure_shape(value, []), lambda by: by * slopes

  return value(x)


def _heaviest(weights: tf.Tensor, problem: solver.Problem) -> tf.Tensor:
  """Returns the largest sum of weights over the rounds of one client.

  NumPy finds the rounds with the largest sum, and TensorFlow adds up their
  weights. So the gradient is the gradient of this sum.

  Args:
    weights: [n], >= 0.
    problem: rounds and schema.
  """
  n, schema = problem.rounds, problem.participation
  b, k = schema.separation(n), schema.participations(n)

  def rounds(weights):
    padded = np.pad(weights, (0, k * b))
    if schema.evenly_spaced:
      sums = np.sum([padded[a * b : a * b + n] for a in range(k)], 0)
      return np.arange(np.argmax(sums), n, b)[:k]
    if b == 1:
      return np.argsort(weights)[-k:]
    # Row m of `sums` has the largest sums of m + 1 rounds, one for each first
    # round.
    best, sums = np.zeros_like(padded), list[np.ndarray]()
    for _ in range(k):
      sums.append(weights + best[b : b + n])
      best[:n] = np.maximum.accumulate(sums[-1][::-1])[::-1]
    chosen = [-b]
    for each in sums[::-1]:
      if chosen[-1] + b < n:
        chosen.append(chosen[-1] + b + int(np.argmax(each[chosen[-1] + b :])))
    return np.array(chosen[1:])

  chosen = tf.numpy_function(rounds, [weights], tf.int64, stateful=False)
  return tf.reduce_sum(tf.gather(weights, tf.ensure_shape(chosen, [None])))


def divide(q: tf.Tensor, x: tf.Tensor, terms: int) -> tf.Tensor:
  """Returns the first terms of the power series x / q, [terms].

  With y = x / q and the Toeplitz matrix T of q, the gradient by x is u = T^-T
  by_y, the same division backwards in time, and the gradient by q_s is
  -sum_t u_t y_{t-s}.

  Args:
    q: [bands], bands <= terms, q_0 not 0.
    x: [any] coefficients.
    terms: number of terms.
  """

  @tf.custom_gradient
  def divided(q, x):
    y = _divide(q, x)

    def gradient(by_y):
      u = tf.reverse(_divide(q, tf.reverse(by_y, [0])), [0])
      size = 2 * terms
      spectra = [
        tf.signal.fft(tf.cast(_padded(each, size), tf.complex128))
        for each in (u, y)
      ]
      product = tf.signal.ifft(spectra[0] * tf.math.conj(spectra[1]))
      return -tf.math.real(product)[: q.shape[0]], u

    return y, gradient

  return divided(q[:terms], _padded(x, terms))


def _divide(q: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
  """Returns x / q, block by block, [terms]."""
  terms, bands = x.shape[0], q.shape[0]
  size = max(bands - 1, min(_TERMS, terms), 1)
  count = -(-terms // size)
  lag = np.subtract.outer(np.arange(size), np.arange(size))
  q = _padded(q, 2 * size + 1)
  block = tf.gather(q, np.where(lag >= 0, lag, 2 * size))
  parts = tf.reshape(_padded(x, count * size), [count, size, 1])
  parts = tf.linalg.triangular_solve(tf.repeat(block[None], count, 0), parts)
  step = tf.linalg.triangular_solve(block, tf.gather(q, lag + size))
  later = _scan(
    lambda before, part: part[0] - step @ before, parts[0], (parts[1:],)
  )
  return tf.reshape(later, [-1])[:terms]


def _scan(
  function: Callable, first: tf.Tensor, later: tuple[tf.Tensor, ...]
) -> tf.Tensor:
  """Returns S_0 = first and S_k = function(S_{k-1}, row k - 1 of `later`)."""
  if later[0].shape[0] > _UNROLLED:
    return tf.concat([first[None], tf.scan(function, later, first)], 0)
  states = [first]
  for each in zip(*map(tf.unstack, later)):
    states.append(function(states[-1], each))
  return tf.stack(states)


def _accumulate(terms: tf.Tensor, steps: tf.Tensor) -> tf.Tensor:
  """Returns S of S_0 = terms_0, S_k = N_k S_{k-1} N_k^T + terms_k."""

  def following(s, each):
    return each[1] @ tf.matmul(s, each[1], transpose_b=True) + each[0]

  return _scan(following, terms[0], (terms[1:], steps))


@tf.custom_gradient
def _block_errors(t: tf.Tensor, h: tf.Tensor) -> tf.Tensor:
  """Returns e of all blocks, [count, M], see the module `covariance`.

  Args:
    t: T_k, [count, M, M].
    h: H_k for k > 0, [count - 1, M, M].
  """
  count, size, _ = t.shape
  inverse = tf.linalg.triangular_solve(
    t, tf.eye(size, batch_shape=[count], dtype=tf.float64)
  )
  step = inverse[1:] @ h
  p = _accumulate(tf.matmul(inverse, inverse, transpose_b=True), step)

  def gradient(by_e):
    back = tf.transpose(step[::-1], [0, 2, 1])
    g = _accumulate(tf.linalg.diag(by_e)[::-1], back)[::-1]
    by_t = -2 * tf.matmul(inverse, g @ p, transpose_a=True)
    by_h = 2 * tf.matmul(inverse[1:], g[1:] @ (step @ p[:-1]), transpose_a=True)
    return by_t, by_h

  return tf.linalg.diag_part(p), gradient


def banded_errors(columns: tf.Tensor) -> tf.Tensor:
  """Returns the squared norms of the rows of L^-1, [n].

  The module `covariance` has the equations.

  Args:
    columns: [n, m + 1], L[j + s, j] at [j, s], 0 where j + s >= n.
  """
  n, bands = columns.shape
  size = max(bands - 1, min(covariance.SHORTEST_BLOCK, n))
  count = -(-n // size)
  rows = tf.pad(columns, [[0, count * size - n], [0, 2 * size + 1 - bands]])
  # Rows of the identity fill up the last block.
  rows += np.eye(1, 2 * size + 1) * (np.arange(count * size) >= n)[:, None]
  skewed = tf.reshape(rows, [count, -1])[:, : 2 * size * size]
  skewed = tf.reshape(skewed, [count, size, 2 * size])
  t, h = (tf.transpose(each, [0, 2, 1]) for each in tf.split(skewed, 2, 2))
  return tf.reshape(_block_errors(t, h[:-1]), [-1])[:n]


@tf.custom_gradient
def _gram_errors(x: tf.Tensor, a: tf.Tensor) -> tf.Tensor:
  """Returns e, [n], of X = C^T C, for the transpose of the workload A."""
  factor = tf.linalg.cholesky(x)
  half = tf.linalg.triangular_solve(factor, a)

  def gradient(by_e):
    whole = tf.linalg.triangular_solve(factor, half, adjoint=True)
    return -tf.matmul(whole * by_e, whole, transpose_b=True), None

  return tf.reduce_sum(half**2, 0), gradient


# Function from parameters, [parameters] float64, to C.
Build = Callable[[tf.Tensor], Form]


class Loss(solver.Loss):
  """The log loss and its gradient, as functions of the parameters."""

  def __init__(self, build: Build, problem: solver.Problem):
    """Makes the loss of the C that `build` makes; see `solver.Loss`."""
    super().__init__(problem)

    def value(x, log_weights, power):
      c = build(x)
      check(c, problem.rounds)
      e = c.errors(problem)
      if not isinstance(c, Gram):
        # If an entry of the diagonal is not positive, the loss is NaN.
        e = tf.where(tf.reduce_all(c.values[..., 0] > 0), e, np.nan)
      noise = tf.math.log(c.squared_noise(problem))
      if callable(problem.objective):
        error = tf.cast(problem.objective(e), tf.float64)
        return tf.math.log(error) + noise, tf.math.log(e) + noise
      # The quotient of e and `scale` is at most 1, so its powers do not
      # overflow.
      scale = tf.stop_gradient(tf.reduce_max(e))
      total = tf.reduce_sum(tf.exp(log_weights) * (e / scale) ** power)
      loss = tf.math.log(total) / power + tf.math.log(scale)
      return loss + noise, tf.math.log(e) + noise

    def gradient(x, log_weights, power):
      with tf.GradientTape() as tape:
        tape.watch(x)
        loss, log_e = value(x, log_weights, power)
      by_x = tape.gradient(loss, x)
      if by_x is None:
        raise _without_gradient()
      return loss, by_x, log_e

    self._gradient = tf.function(gradient, autograph=False)
    self._traced: Optional[Callable] = None

  def evaluate(self, x):
    arguments = [
      tf.constant(each, tf.float64)
      for each in (x, self.log_weights, self.power)
    ]
    if self._traced is None:
      try:
        self._traced = self._gradient.get_concrete_function(*arguments)
      except NotImplementedError as error:
        raise _without_gradient() from error
    loss, by_x, log_e = self._traced(*arguments)
    return float(loss), by_x.numpy(), log_e.numpy()

  def __call__(self, x):
    try:
      return super().__call__(x)
    except tf.errors.InvalidArgumentError as error:
      # TensorFlow raises this error if X is not positive definite.
      if 'Cholesky' not in error.message:
        raise
      return math.inf, np.zeros_like(x)


def _without_gradient() -> ValueError:
  return errors.value_error(
    'build=a function without gradient: C must depend on the parameters '
    'through operations of TensorFlow; use tf in place of NumPy'
  )


def check(c: object, rounds: int) -> None:
  """Raises an error unless `build` returns a form of C for n rounds."""
  if not isinstance(c, Form):
    raise errors.type_error(
      f'build={type(c).__name__}: must return a Toeplitz, Inverse, Columns or '
      'Gram of tff_bandmf.optimize; wrap the tensor in one of them'
    )
  if not c.fits(rounds):
    raise errors.value_error(
      f'build={type(c).__name__} of shape {tuple(c.values.shape)}: does not '
      f'fit rounds={rounds}; give [bands] to Toeplitz and Inverse, [rounds, '
      'bands] to Columns, [rounds, rounds] to Gram'
    )


def minimize(
  build: Build,
  start: object,
  problem: solver.Problem,
  *,
  bounds: Optional[solver.Bounds] = None,
) -> solver.Optimized[strategies.Strategy]:
  """Returns the C of least loss among all C that `build` returns.

  Args:
    build: function from a float64 tensor of parameters to a `Toeplitz`,
      `Inverse`, `Columns` or `Gram`, by operations of TensorFlow.
    start: [parameters], where the search starts; C must exist for it.
    problem: rounds, schema, workload and objective. The objective may be a
      function of TensorFlow from the errors of the rounds, [n], to a number. If
      cohorts are sampled, `noise` is `accounting.needed_noise`.
    bounds: (low, high) of each parameter, which contain the start; None means
      no bounds. C should have a gradient at its bounds too: `decay**lag` has
      none for the decay 0 and the lag 0.

  Returns:
    A strategy of the family `custom`. Its loss is computed from its numbers.

  Raises:
    TypeError: `build` does not return a form of C, or `start` is not an array.
    ValueError: C does not fit the rounds or has no gradient, the loss or its
      gradient is not finite at the start, the start is out of bounds, or no
      amplification is proved for C.

  >>> from tff_bandmf import participation
  >>> problem = solver.Problem(64, participation.MinSep(16))
  >>> best = minimize(lambda x: Toeplitz(1 / (1 + x * tf.range(
  ...   16, dtype=tf.float64))), [1.0], problem)
  >>> best.strategy.family, best.converged
  ('custom', True)
  """
  x = _checks.real_array('start', start).reshape(-1)
  if bounds is not None and len(bounds) != len(x):
    raise errors.value_error(
      f'bounds={len(bounds)} pairs: start has {len(x)} parameters; give one '
      '(low, high) for each parameter'
    )
  for value, (low, high) in zip(x, bounds or []):
    if not (low is None or low <= value) or not (high is None or value <= high):
      raise errors.value_error(
        f'start={value}: is out of its bounds ({low}, {high}); start inside'
      )
  if problem.noise:
    first = build(tf.constant(x))
    check(first, problem.rounds)
    problem.noise(first.strategy(problem.rounds))
  minimum = solver.search(
    Loss(build, problem), x, problem, bounds, tolerance=_TOLERANCE
  )
  strategy = build(tf.constant(minimum.x)).strategy(problem.rounds)
  return problem.evaluated(strategy, minimum)
