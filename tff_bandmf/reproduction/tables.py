"""Tables of the literature that need no training, row by row.

`published.json` has the printed numbers and their sources; this module computes
the numbers again. Every table is a generator, so that a command can show the
finished rows of a slow table.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import importlib.resources
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Callable, Optional

import numpy as np

from tff_bandmf import _files, accounting, errors, optimize, strategies
from tff_bandmf import participation as participation_lib
from tff_bandmf import sensitivity as sensitivity_lib
from tff_bandmf.optimize import series, solver

_Table = Mapping[str, _files.Json]
# Name of a row, the published number, the number computed here, and sometimes
# other fields of `Row`.
_Figures = tuple[Any, ...]


@dataclasses.dataclass(frozen=True)
class Row:
  """A published number and the number computed here.

  Attributes:
    table: name of the table in `TABLES`.
    row: name of the number in the table.
    published: number in the publication, as printed.
    ours: number computed here.
    difference: ours - published, divided by |published| unless `absolute`.
    tolerance: largest absolute value of `difference` that passes.
    absolute: whether `difference` is absolute, in the unit of the number.
    bound: the number with a proved bound of the noise, if `ours` has an
      estimate of the noise; else None.
    samples: number of samples of the bound.
    seed: seed of these samples.
  """

  table: str
  row: str
  published: float
  ours: float
  tolerance: float
  absolute: bool = False
  bound: Optional[float] = None
  samples: Optional[int] = None
  seed: Optional[int] = None

  @property
  def difference(self) -> float:
    difference = self.ours - self.published
    return difference if self.absolute else difference / abs(self.published)

  @property
  def passed(self) -> bool:
    # A comparison with NaN is False, so NaN does not pass.
    return bool(abs(self.difference) <= self.tolerance)

  def to_dict(self) -> _files.JsonObject:
    """Returns the row as a JSON object; `pass` is `passed`."""
    values = dataclasses.asdict(self)
    del values['absolute']
    return {**values, 'difference': self.difference, 'pass': self.passed}


def reproduce(
  names: Optional[Sequence[str]] = None, slow: bool = False
) -> Iterator[Row]:
  """Returns an iterator over the rows of the named tables, or of all tables.

  Args:
    names: names of tables; None for all that are not in `SLOW`.
    slow: whether None stands for the tables in `SLOW` too.

  Raises:
    ValueError: no table has one of the names.

  >>> [row.passed for row in reproduce(['gboard_report'])]
  [True, True]
  """
  names = names or [name for name in TABLES if slow or name not in SLOW]
  for name in names:
    if name not in TABLES:
      raise errors.value_error(
        f'name={name}: is not a table; use one of {", ".join(TABLES)}'
      )
  return (row for name in names for row in _rows(name))


def _rows(name: str) -> Iterator[Row]:
  """Yields the rows of a table.

  If the table has `abs_tol`, differences are absolute, and otherwise relative.
  """
  table = _published()[name]
  absolute = 'abs_tol' in table
  tolerance = table['abs_tol' if absolute else 'tol']
  shared: dict[str, Any] = {'tolerance': tolerance, 'absolute': absolute}
  for row, published, ours, *own in TABLES[name](table):
    fields = collections.ChainMap(*own, shared)
    yield Row(name, row, published, ours, **fields)


@functools.cache
def _published() -> _files.JsonObject:
  folder = importlib.resources.files('tff_bandmf.reproduction')
  return json.loads(folder.joinpath('published.json').read_bytes())


def _example_b1(table) -> Iterator[_Figures]:
  rounds = table['rounds']
  optimized = _of_bands(strategies.Banded.family, rounds, table['bands'])
  total = rounds * optimized.loss
  yield 'total squared error', table['total_squared_error'], total
  ours = optimized.strategy.matrix()
  published = np.array(table['strategy_matrix'])
  for t, i in zip(*np.nonzero(published)):
    yield f'C[{t}, {i}]', published[t, i], float(ours[t, i])


def _gaussian_sigma(table) -> Iterator[_Figures]:
  for epsilon, published in table['rows']:
    ours = accounting.gaussian_noise_multiplier(epsilon, table['delta'])
    yield f'epsilon {epsilon}', published, ours


def _amplified_sigma(table) -> Iterator[_Figures]:
  rounds, k = table['rounds'], table['max_participations']
  rows = [(epsilon, 1, sigma) for epsilon, sigma in table['dp_sgd']]
  for epsilon, bands, published in rows + table['banded_rows']:
    ours = _cyclic_poisson_sigma(table, k, epsilon, bands) / math.sqrt(k)
    yield f'epsilon {epsilon}, {bands} bands', published, ours
    # The next row compares the epsilon of the printed sigma with the printed
    # epsilon.
    back = accounting.poisson_epsilon(
      published * math.sqrt(k),
      bands * k / rounds,
      -(-rounds // bands),
      table['delta'],
    )
    row = f'epsilon of sigma {published}, {bands} bands'
    yield row, epsilon, back, {'tolerance': table['epsilon_tol']}


def _tree_and_banded_rmse(table) -> Iterator[_Figures]:
  tree = strategies.Tree(table['rounds'])
  limits = table['min_sep'], table['max_participations']
  sensitivity = _sensitivity(tree, participation_lib.FixedEpoch(*limits))
  rmse = sensitivity * math.sqrt(tree.errors()[0])
  for name, published, ours, tolerance in (
    ('squared sensitivity', 'tree_sensitivity_squared', sensitivity**2, 1e-9),
    ('rmse', 'tree_rmse', rmse, 1e-5),
  ):
    own = {'tolerance': tolerance, 'absolute': False}
    yield f'tree, {name}', table[published], ours, own
  yield from _rmse(table)


def _rmse(table) -> Iterator[_Figures]:
  limits = table['min_sep'], table['max_participations']
  schema = participation_lib.FixedEpoch(*limits)
  others = {
    'sensitivity_min_sep': participation_lib.MinSep(*limits),
    'sensitivity_single': participation_lib.Single(),
  }
  for row in table['rows']:
    optimized = _optimized(row, table['rounds'], schema)
    ratio = math.sqrt(optimized.loss) / table['unit']
    # The table has the sensitivities of C, each divided by the sensitivity of C
    # for fixed epochs.
    unit = _sensitivity(optimized.strategy, schema)
    ours = {'ratio': ratio}
    for name, each in others.items():
      ours[name] = _sensitivity(optimized.strategy, each) / unit
    ours['min_sep_ratio'] = ratio * ours['sensitivity_min_sep']
    for name, value in ours.items():
      if name in row:
        yield _label(row) + f', {name}' * (name != 'ratio'), row[name], value


def _optimal_bands(table) -> Iterator[_Figures]:
  rounds = table['rounds']
  rmse = {
    bands: math.sqrt(_of_bands(strategies.Banded.family, rounds, bands).loss)
    for bands in (1 << i for i in range(rounds.bit_length()))
  }
  for epsilon, published in table['rows'].items():
    for epochs, bands in zip(table['epochs'], published):
      # If bands * epochs > rounds, a group is smaller than an expected cohort.
      total = {
        each: error * _cyclic_poisson_sigma(table, epochs, float(epsilon), each)
        for each, error in rmse.items()
        if each * epochs <= rounds
      }
      best = min(total, key=lambda each: total[each])
      if total[bands] <= total[best] * (1 + table.get('tie', 0)):
        best = bands
      yield f'epsilon {epsilon}, {epochs} epochs', bands, best


def _tail_at_its_limit(table) -> Iterator[_Figures]:
  """Yields the loss of a search that replaces the tail of w by its limit.

    max error = sum_{j<m} w_j^2 + (n - m) W^2,  W = 1 / sum c

  Here w is the first column of A C^-1, and W is the limit of its entries. The
  search replaces w_j by W for j >= m.
  """
  rounds, bands = table['rounds'], table['bands']

  def log_loss(free, terms):
    c = np.concatenate([[1.0], free])
    inverse = series.reciprocal(c, terms)
    w, limit, squared = np.cumsum(inverse), 1 / c.sum(), c @ c
    error = w @ w + (rounds - terms) * limit**2
    by_inverse = 2 * np.cumsum(w[::-1])[::-1]
    by_c = series.reciprocal_back(by_inverse, inverse, c)
    by_c -= 2 * (rounds - terms) * limit**3
    by_log = by_c / error + 2 * c / squared
    return math.log(error * squared), by_log[1:]

  def loss(c):
    return strategies.BandedToeplitz(rounds, c).errors()[1] * float(c @ c)

  exact = _of_bands(
    strategies.BandedToeplitz.family, rounds, bands, objective=optimize.MAX
  )
  start = strategies.BandedSqrt(rounds, bands).coefficients[1:]
  for terms, published in table['rows']:
    minimum = solver.minimize(
      functools.partial(log_loss, terms=terms),
      start,
      solver.Problem(terms, participation_lib.Single()),
      [(0, 1)] * len(start),
    )
    ratio = loss(np.concatenate([[1.0], minimum.x])) / exact.loss
    yield f'{terms} rounds', published, math.sqrt(ratio)


def _calibrated_rmse(table) -> Iterator[_Figures]:
  sigma = accounting.gaussian_noise_multiplier(table['epsilon'], table['delta'])
  limits = table['min_sep'], table['max_participations']
  schema = participation_lib.MinSep(*limits)
  for row in table['rows']:
    optimized = _optimized(row, table['rounds'], schema)
    yield _label(row), row['value'], sigma * math.sqrt(optimized.loss)


def _cyclic_poisson_rmse(table) -> Iterator[_Figures]:
  rounds, k = table['rounds'], table['max_participations']
  for epsilon, bands, published in table['rows']:
    sigma = _cyclic_poisson_sigma(table, k, epsilon, bands)
    optimized = _of_bands(strategies.BandedToeplitz.family, rounds, bands)
    ours = sigma * math.sqrt(optimized.loss)
    yield f'epsilon {epsilon}, {bands} bands', published, ours


def _sampled_rmse(table) -> Iterator[_Figures]:
  """Yields the rows of a table for balls in bins or b-min-sep sampling.

  Under b-min-sep, min_sep is the number of bands, and a client takes part in
  `max_participations` rounds on average. `bands_at` has a number of bands for
  each epsilon. With `any_bands`, the best of these numbers of bands counts.
  """
  rounds, claim = table['rounds'], {'delta': table['delta']}

  def with_bands(row, bands, epsilon):
    """Returns the cohorts and the best strategy with a number of bands."""
    cohorts = (
      accounting.BallsInBins(table['bins'])
      if 'bins' in table
      else accounting.BMinSep(bands, population=rounds).for_cohort_size(
        table['max_participations']
      )
    )
    noise = accounting.needed_noise(cohorts, rounds, epsilon, **claim)
    row = {**row, 'bands': bands}
    if not row.get('unamplified'):
      return cohorts, _optimized(row, rounds, cohorts.schema, noise=noise)
    # C has the least error without amplification, as in the publication.
    problem = optimize.Problem(rounds, cohorts.schema, noise=noise)
    strategy = _optimized(row, rounds, cohorts.schema).strategy
    return cohorts, problem.evaluated(strategy)

  for place, epsilon in enumerate(table['epsilons']):
    for row in table['rows']:
      if 'bands_at' in row:
        row = {**row, 'bands': row['bands_at'][place]}
      tried = row.get('any_bands', [row.get('bands')])
      results = [with_bands(row, bands, epsilon) for bands in tried]
      cohorts, best = min(results, key=lambda result: result[1].loss)
      guarantee = accounting.calibrate(
        best.strategy,
        cohorts,
        epsilon=epsilon,
        **claim,
        samples=accounting.Samples(table['samples'], seed=table['seed']),
      )
      bound = guarantee.z_stddev_per_clip * math.sqrt(best.strategy.errors()[0])
      yield (
        f'epsilon {epsilon}, {_label(row)}',
        row['values'][place],
        math.sqrt(best.loss),
        {'bound': bound, 'samples': table['samples'], 'seed': table['seed']},
      )


def _unknown_min_sep(table) -> Iterator[_Figures]:
  rounds, k = table['rounds'], table['max_participations']
  planned = participation_lib.MinSep(table['optimized_min_sep'], k)
  for row in table['rows']:
    strategy = _optimized(row, rounds, planned).strategy
    for min_sep, published in zip(table['min_sep'], row['value']):
      sensitivity = _sensitivity(strategy, participation_lib.MinSep(min_sep, k))
      ours = sensitivity * math.sqrt(strategy.errors()[0])
      yield f'{_label(row)}, min_sep {min_sep}', published, ours


def _gboard_report(table) -> Iterator[_Figures]:
  sigma = table['z_stddev_per_clip'] / math.sqrt(table['sensitivity_squared'])
  epsilon = accounting.gaussian_epsilon(sigma, table['delta'])
  yield 'rho', table['rho'], accounting.zcdp_rho(sigma)
  yield 'epsilon', table['epsilon'], epsilon


def _sensitivity(
  strategy: strategies.Strategy, schema: participation_lib.Participation
) -> float:
  return sensitivity_lib.sensitivity(strategy, schema).value


def _cyclic_poisson_sigma(
  table: _Table, epochs: float, epsilon: float, bands: int
) -> float:
  """Returns the noise multiplier under cyclic Poisson sampling.

  Args:
    table: a table with `rounds` and `delta`.
    epochs: expected number of rounds of a client, > 0.
    epsilon: epsilon of the whole run at the delta of the table.
    bands: number of bands of C, and number of groups of clients.
  """
  rounds = table['rounds']
  return accounting.poisson_noise_multiplier(
    epsilon, table['delta'], bands * epochs / rounds, -(-rounds // bands)
  )


def _of_bands(
  family: str, rounds: int, bands: int, **settings: Any
) -> optimize.Optimized:
  """Returns the best C of a family with bands, for one participation."""
  schema = participation_lib.Single()
  return optimize.optimize(family, rounds, schema, bands=bands, **settings)


# Parameters of families that the label of a published row has.
_PARAMETERS = ('bands', 'buffers', 'lambda', 'b0')


def _optimized(
  row: _Table,
  rounds: int,
  schema: participation_lib.Participation,
  **settings: Any,
) -> optimize.Optimized:
  """Returns C of the family and the parameters of a published row.

  Args:
    row: the row.
    rounds: number of rounds.
    schema: participation schema.
    **settings: other arguments of `optimize.optimize`.
  """
  names = (*_PARAMETERS, 'column_normalize', 'gap', 'objective')
  given = {name: row[name] for name in names if name in row}
  return optimize.optimize(row['family'], rounds, schema, **given, **settings)


def _label(row: _Table) -> str:
  """Returns the family and the parameters of a published row."""
  return ', '.join(
    [row['family']]
    + [f'{name} {row[name]}' for name in _PARAMETERS if name in row]
    + ['norms free'] * (not row.get('column_normalize', True))
    + ['optimised without amplification'] * row.get('unamplified', False)
  )


TABLES: dict[str, Callable[[_Table], Iterator[_Figures]]] = {
  'example_b1': _example_b1,
  'gaussian_sigma': _gaussian_sigma,
  'amplified_sigma': _amplified_sigma,
  'banded_rmse': _tree_and_banded_rmse,
  'dense_rmse': _rmse,
  'optimal_bands': _optimal_bands,
  'optimal_bands_more': _optimal_bands,
  'tail_at_its_limit': _tail_at_its_limit,
  'dp_cgd_table4_unamplified': _calibrated_rmse,
  'bifr_table6_unamplified': _calibrated_rmse,
  'dp_cgd_table4_amplified': _sampled_rmse,
  'dp_cgd_table4_poisson': _cyclic_poisson_rmse,
  'bifr_table6_amplified': _sampled_rmse,
  'bifr_table7_cyclic_poisson': _cyclic_poisson_rmse,
  'bifr_table7_b_min_sep': _sampled_rmse,
  'unknown_min_sep': _unknown_min_sep,
  'gboard_report': _gboard_report,
}

# Tables that take many minutes.
SLOW = (
  'dense_rmse',
  'optimal_bands_more',
  'dp_cgd_table4_amplified',
  'bifr_table6_amplified',
  'bifr_table7_b_min_sep',
)
