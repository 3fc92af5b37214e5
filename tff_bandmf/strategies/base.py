"""The interface of every strategy matrix C."""

from __future__ import annotations

import abc
import hashlib
import json
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Optional

import attrs
import numpy as np
import scipy.linalg

from tff_bandmf import _checks, _files, errors, participation, workloads
from tff_bandmf.strategies import per_query
from tff_bandmf.strategies import recursion as recursion_lib

if TYPE_CHECKING:
  from matplotlib.figure import Figure

# Largest number of rounds for which an n x n matrix is allocated.
MAX_DENSE_ROUNDS = per_query.LONGEST_BLOCK
# Largest number of rounds for which an array of n numbers is allocated.
MAX_ROUNDS = 100_000_000
# PRIVACY: The sensitivity is computed from squares of entries of C. Squares of
# tiny entries underflow to 0, and the sensitivity and the noise could be 0.
# `check_entries` refuses a C with a diagonal entry below this limit.
# Guard: strategies_test.test_extreme_scale_is_refused.
_SMALLEST_DIAGONAL = 1e-30
# PRIVACY: Squares of huge entries overflow, and the sensitivity would be
# infinite or NaN. `check_entries` refuses a C with an entry above this limit.
# Guard: strategies_test.test_extreme_scale_is_refused.
_LARGEST_ENTRY = 1e30
# Least number of columns of a matrix product; fewer columns would be slow.
_LEAST_COLUMNS = 64


# Values of `Strategy.structure`.
ANY = 'any'
TOEPLITZ = 'toeplitz'
NORMALIZED_TOEPLITZ = 'normalized-toeplitz'
TREE = 'tree-nodes'
DECODED_TREE = 'decoded-tree-nodes'
# Largest number of rounds of C in a picture.
_ROUNDS_SHOWN = 1024
# Largest number of entries of C that `column_norms_squared` and `plot` hold.
_ENTRIES = 2**22


class Strategy(abc.ABC):
  """A lower-triangular n x n matrix C with a positive diagonal.

  Round t of a run adds `clip * sigma * (C^-1 Z)[t]` to the clipped sum. Z is
  iid standard normal; sigma is the noise multiplier times the sensitivity of C.

  | symbol | name here       | meaning                                       |
  |--------|-----------------|-----------------------------------------------|
  | n      | `rounds`        | number of rounds that the mechanism supports  |
  | b_hat  | `bands`         | number of diagonals of C up to the last one   |
  |        |                 | with a non-zero entry                         |
  | p      | `inverse_bands` | number of such diagonals of C^-1              |
  | d      | `buffers`       | number of buffers of a BLT                    |
  | A      | `workload`      | matrix that maps updates to models            |
  | e_t    |                 | squared L2 norm of row t of A C^-1            |

  Attributes:
    family: name on the command line and in strategy files.
    rounds: n.
    bands: b_hat, the main diagonal included.
    inverse_bands: p; None if the family does not limit p.
    buffers: d; None if the family is not a BLT.
    structure: property of C that theorems about the sensitivity use: one of the
      constants from `ANY` to `DECODED_TREE`.
    goes_on: whether a run may continue past round n. The family then defines a
      Toeplitz C of few bands or buffers for every number of rounds.
    rows_are_given: whether `arrays` has the entries of C. If not, the entries
      are computed.
  """

  if TYPE_CHECKING:
    # Each family defines these attributes as fields or as properties. They are
    # declared for the type checker only: at run time, attrs would use a
    # property of the base class as the default value of a field.
    @property
    def family(self) -> str: ...

    @property
    def rounds(self) -> int: ...

    @property
    def bands(self) -> int: ...

    @property
    def inverse_bands(self) -> Optional[int]: ...

    @property
    def buffers(self) -> Optional[int]: ...
  else:
    inverse_bands = None
    buffers = None

  structure: ClassVar[str] = ANY
  goes_on: ClassVar[bool] = False
  rows_are_given: ClassVar[bool] = False

  @abc.abstractmethod
  def band_rows(self, start: int, stop: int) -> np.ndarray:
    """Returns rows of C by their bands.

    Args:
      start: first round.
      stop: round after the last.

    Returns:
      [stop - start, bands] float64 R with R[t - start, s] = C[t, t - s], and
      0 where t < s.
    """

  def inverse_band_rows(self, start: int, stop: int) -> np.ndarray:
    """Returns rows of C^-1 by their bands.

    Args:
      start: first round.
      stop: round after the last.

    Returns:
      [stop - start, inverse_bands] float64 R with R[t - start, s] =
      C^-1[t, t - s], and 0 where t < s.

    Raises:
      ValueError: `inverse_bands` is None.
    """
    raise errors.value_error(
      f'family={self.family}: has no inverse of few bands; use band_rows'
    )

  def of_rounds(self, rounds: int) -> Strategy:
    """Returns C for n = `rounds` if C is Toeplitz, and C itself otherwise."""
    return self

  @property
  def memory_copies(self) -> int:
    """Number of rows of past noise, of the model's size, that a round needs."""
    if self.buffers is not None:
      return self.buffers
    return (self.inverse_bands or self.bands) - 1

  @property
  def least_copies(self) -> int:
    """Number of rows of past noise that every producer must keep.

    A producer computes the noise of a run. If C^-1 has few bands, it needs only
    past normals, and can compute these normals again from the key.
    """
    return self.memory_copies if self.inverse_bands is None else 0

  def copies(self, most: Optional[int]) -> int:
    """Returns the number of rows of past noise that a producer keeps.

    Args:
      most: limit on these rows, >= `least_copies`; None for no limit.
    """
    if most is None or self.memory_copies <= most:
      return self.memory_copies
    return self.least_copies

  def normals(self, most: Optional[int]) -> float:
    """Returns how many normals a producer draws for a coordinate and a round.

    The result is a mean over rounds: 1, or more if past normals are drawn
    again.

    Args:
      most: see `copies`.
    """
    again = self.memory_copies - self.copies(most)
    return 1 + again / recursion_lib.SHORT_BLOCK_ROUNDS

  @property
  def has_few_bands(self) -> bool:
    """Whether C or C^-1 has fewer bands than rounds."""
    return self.inverse_bands is not None or self.bands < self.rounds

  def recursion(self) -> recursion_lib.Recursion:
    """Returns the recursion that computes the noise of a run round by round."""
    recursion = self._recursion()
    recursion.strategy_digest = self.digest()
    return recursion

  def _recursion(self) -> recursion_lib.Recursion:
    return self.buffered(self.rounds) or recursion_lib.Window(self, self.rounds)

  def buffered(
    self, rounds: int, norms: Optional[np.ndarray] = None
  ) -> Optional[recursion_lib.Buffers]:
    """Returns a recursion with a few buffers; None if the family has none.

    Args:
      rounds: number of rounds of the run; the buffers are reset every n rounds.
      norms: [n] float64, divisors of the columns of C; None for no division.
    """
    return None

  def gram_entries(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Returns X[i, j] = <C_i, C_j>, [m] float64, where X = C^T C.

    Args:
      first: [m] integers, i.
      second: [m] integers, j >= i.
    """
    entries = np.zeros(len(first))
    overlap = np.flatnonzero(second - first < self.bands)
    overlap = overlap[np.argsort(first[overlap], kind='stable')]
    step = max(_LEAST_COLUMNS, self.bands // 4)
    for start in np.unique(first[overlap] // step) * step:
      low, high = np.searchsorted(first[overlap], [start, start + step])
      pairs = overlap[low:high]
      stop = min(start + step, self.rounds)
      last = min(stop + self.bands - 1, self.rounds)
      columns = self.part(start, last, start)
      gram = columns[:, : stop - start].T @ columns
      entries[pairs] = gram[first[pairs] - start, second[pairs] - start]
    return entries

  def column_error(self, participations: int) -> float:
    """Returns a bound e of the relative error of `band_rows` in float64.

      |C G| <= (1 + e) sens

    where C is the exact matrix, G has the contributions of one client, and sens
    is the sensitivity of the matrix that `band_rows` returns.

    Args:
      participations: k, largest number of rounds of a client.

    Raises:
      ValueError: rounding errors are so large that no bound is proved.
    """
    return 0.0

  def per_query_errors(
    self, workload: workloads.Workload = workloads.PREFIX
  ) -> np.ndarray:
    """Returns e_t of every round, [n] float64.

    Raises:
      ValueError: n is too large for this family and workload.
    """
    if workload.inverse_bands is None:
      return per_query.of_matrix(self.matrix(), workload.matrix(self.rounds))
    return per_query.of_few_bands(self, workload)

  def errors(
    self, workload: workloads.Workload = workloads.PREFIX
  ) -> tuple[float, float]:
    """Returns (mean, max) over t of e_t.

    Raises:
      ValueError: n is too large for this family and workload.
    """
    per_query_errors = self.per_query_errors(workload)
    return float(per_query_errors.mean()), float(per_query_errors.max())

  def error_numbers(
    self, stddev: float, workload: workloads.Workload = workloads.PREFIX
  ) -> _files.JsonObject:
    """Returns the errors of a run under their JSON keys.

    Args:
      stddev: standard deviation of the normals, for `rmse` and `max_rmse`.
      workload: A.
    """
    mean, largest = self.errors(workload)
    return {
      'mean_error': mean,
      'max_error': largest,
      'rmse': stddev * math.sqrt(mean),
      'max_rmse': stddev * math.sqrt(largest),
    }

  def error(
    self, workload: workloads.Workload, objective: workloads.Objective
  ) -> float:
    """Returns the error of a run from e_t of its rounds.

    Args:
      workload: A.
      objective: see `workloads.Objective`; or a function from e to the error.

    Raises:
      ValueError: n is too large for this family and workload.
    """
    if callable(objective):
      return float(objective(self.per_query_errors(workload)))
    if objective in (workloads.MEAN, workloads.MAX):
      return self.errors(workload)[objective == workloads.MAX]
    weights = workloads.weights(objective, self.rounds)
    return float(weights @ self.per_query_errors(workload))

  def first_column(self) -> Optional[np.ndarray]:
    """Returns the first column, [bands] float64, if it defines C; else None."""
    return None

  def tiles(self) -> list[tuple[Strategy, int]]:
    """Returns the blocks of a block-diagonal C as (block, repetitions)."""
    return [(self, 1)]

  def column_norms_squared(self) -> np.ndarray:
    """Returns the squared norms of the columns of C, [n] float64."""
    norms = np.zeros(self.rounds)
    step = max(1, _ENTRIES // self.bands)
    for start in range(0, self.rounds, step):
      stop = min(start + step, self.rounds)
      squares = self.band_rows(start, stop) ** 2
      for s in range(min(self.bands, stop)):
        # C[t, t - s] lies in column t - s, which exists for t >= s only.
        skip = max(s - start, 0)
        norms[start + skip - s : stop - s] += squares[skip:, s]
    return norms

  def part(self, start: int, stop: int, first: int) -> np.ndarray:
    """Returns C[start:stop, first:stop], float64, for first > start - bands."""
    entries = per_query.skewed(self.band_rows(start, stop))
    return entries[:, first - (start - self.bands + 1) :]

  def series(self) -> Optional[_files.JsonObject]:
    """Returns the numbers that define a Toeplitz C for every n, or None.

    The numbers are coefficients of C or of C^-1, or parameters of the family.
    A reader can build C from them without this library.
    """
    return None

  def parameters(self) -> _files.JsonObject:
    """Returns the values besides `rounds` and `arrays` that define C."""
    return {
      name.rstrip('_'): value
      for name, value in self._fields()
      if not isinstance(value, np.ndarray)
    }

  def arrays(self) -> dict[str, np.ndarray]:
    """Returns the float64 arrays that define C together with `parameters`."""
    return {
      name: value
      for name, value in self._fields()
      if isinstance(value, np.ndarray)
    }

  def _fields(self) -> Iterator[tuple[str, Any]]:
    """Yields (name, value) of the constructor's arguments except `rounds`."""
    kind: Any = type(self)
    for field in attrs.fields(kind):
      if field.init and field.name != 'rounds':
        yield field.name, getattr(self, field.name)

  def matrix(self) -> np.ndarray:
    """Returns C as a dense [n, n] float64 array.

    Raises:
      ValueError: n is so large that the matrix would not fit in memory.
    """
    check_dense(self.rounds)
    return self.part(0, self.rounds, 0)

  def noising_matrix(self) -> np.ndarray:
    """Returns C^-1 as a dense [n, n] float64 array.

    Row t has the weights of Z in the noise of round t.

    Raises:
      ValueError: n is so large that the matrix would not fit in memory.
    """
    identity = np.eye(self.rounds)
    return scipy.linalg.solve_triangular(self.matrix(), identity, lower=True)

  def decoder_matrix(
    self, workload: workloads.Workload = workloads.PREFIX
  ) -> np.ndarray:
    """Returns B = A C^-1 as a dense [n, n] float64 array.

    A = B C, and e_t is the squared L2 norm of row t of B.

    Args:
      workload: A.

    Raises:
      ValueError: n is so large that the matrix would not fit in memory.
    """
    return workload.matrix(self.rounds) @ self.noising_matrix()

  def plot(
    self, schema: Optional[participation.Participation] = None
  ) -> Figure:
    """Returns a Matplotlib figure: C, C^-1, and the pattern of a client.

    The client takes part as early and as often as a schema allows. The third
    panel has the sum of the columns of C for the rounds of the client, and the
    norm of this sum. If C has many rounds, all panels show the first rounds.

    Args:
      schema: participation schema of the client; None for `Single`.

    Raises:
      ImportError: Matplotlib is not installed.
    """
    with errors.importing('a plot'):
      from tff_bandmf import _figures

    schema = schema or participation.Single()
    rounds = min(self.rounds, _ROUNDS_SHOWN)
    first = self.of_rounds(rounds)
    rounds = min(rounds, max(1, _ENTRIES // first.bands))
    matrix = first.part(0, rounds, 0)
    step, most = schema.separation(rounds), schema.participations(rounds)
    inverse = scipy.linalg.solve_triangular(matrix, np.eye(rounds), lower=True)
    pattern = range(0, rounds, step)[:most]
    title = f'{self.family}, {rounds} of {self.rounds} rounds'
    return _figures.matrices(matrix, inverse, pattern, title)

  def digest(self) -> str:
    """Returns the SHA-256 of C's definition, 64 hexadecimal digits."""
    definition = [self.family, self.rounds, self.parameters()]
    sha = hashlib.sha256(json.dumps(definition).encode())
    for name, array in sorted(self.arrays().items()):
      sha.update(json.dumps([name, list(array.shape)]).encode())
      sha.update(np.ascontiguousarray(array, '<f8').tobytes())
    return sha.hexdigest()


def check_rounds(rounds: int) -> None:
  """Raises ValueError if an array of n numbers is too large."""
  _checks.at_most('rounds', rounds, MAX_ROUNDS, 'MAX_ROUNDS', 'use fewer')


def check_dense(rounds: int) -> None:
  """Raises ValueError if an n x n matrix would not fit in memory."""
  remedy = 'use fewer rounds, or a family of few bands or buffers'
  _checks.at_most('rounds', rounds, MAX_DENSE_ROUNDS, 'dense limit', remedy)


def check_entries(name: str, entries: np.ndarray, diagonal: np.ndarray) -> None:
  """Raises ValueError unless C is finite, invertible and not of extreme scale.

  Args:
    name: name of the entries, for messages.
    entries: entries of C, any shape, float64.
    diagonal: the entries on the main diagonal.
  """
  if not np.all(np.isfinite(entries)):
    raise errors.value_error(
      f'{name}=NaN or infinity: must be finite; correct the entries of C'
    )
  if not np.all(diagonal > 0):
    raise errors.value_error(
      f'{name}={np.min(diagonal)}: the diagonal of C must be positive; change C'
    )
  smallest, largest = np.min(diagonal), np.max(np.abs(entries))
  if smallest < _SMALLEST_DIAGONAL or largest > _LARGEST_ENTRY:
    entry = float(smallest if largest <= _LARGEST_ENTRY else largest)
    raise errors.value_error(
      f'{name}={entry}: the diagonal of C must be >= {_SMALLEST_DIAGONAL:g} '
      f'and entries <= {_LARGEST_ENTRY:g}; multiply C by a constant'
    )


def count_rounds(rounds: object) -> int:
  """Returns `rounds` if it is a count, and raises ValueError otherwise."""
  return _checks.count('rounds', rounds, 'give the number of rounds')


def check_strategy(strategy: object) -> None:
  """Raises TypeError unless the value is an instance of `Strategy`."""
  _checks.instance('strategy', strategy, Strategy, 'use tff_bandmf.strategies')


def count_bands(bands: object) -> int:
  """Returns `bands` if it is a count, and raises ValueError otherwise."""
  return _checks.count('bands', bands, '1 is the identity')


def series(name: str, values: object) -> np.ndarray:
  """Returns a read-only copy of the first entries of a first column.

  Args:
    name: name of the series, for messages.
    values: [terms], the first positive.

  Raises:
    TypeError: the values are not real numbers.
    ValueError: the values are not one-dimensional, not finite, or the first
      is not positive.
  """
  array = _checks.real_array(name, values)
  if array.ndim != 1 or not len(array):
    raise errors.value_error(
      f'{name}.shape={array.shape}: must be one-dimensional and not empty; '
      'give a first column'
    )
  check_entries(name, array, array[:1])
  return array


def check_fit(strategy: Strategy, _: attrs.Attribute, value: Any) -> None:
  """Raises ValueError if a number of bands, or a series' length, exceeds n."""
  bands = len(value) if isinstance(value, np.ndarray) else value
  check_few(bands, strategy.rounds)


def check_few(bands: int, rounds: int) -> int:
  """Returns a number of bands; raises ValueError if it exceeds n."""
  _checks.at_most('bands', bands, rounds, 'rounds', 'use fewer bands')
  return bands
