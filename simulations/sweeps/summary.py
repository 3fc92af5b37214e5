"""The summary of a sweep: tables for readers and programs.

A cell is one run: one experiment of the grid (a mechanism and an epsilon) with
one server learning rate and one seed. Each tuning cell tries one candidate for
the rate, and the candidate with the least validation loss is chosen. A test
cell runs with the final rate.
"""

from __future__ import annotations

import dataclasses
import json
import math
import pathlib
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Optional

import numpy as np
import tabulate

from simulations.sweeps import analysis
from simulations.sweeps import cell as sweep_cell
from simulations.sweeps import plots as sweep_plots
from tff_bandmf import _files

NOTE = (
  'Each run has only the guarantee of its own report, and the guarantees of '
  'runs on the same clients compose. The learning rates and other '
  'hyperparameters were chosen with other runs on the same clients, and with '
  'validation data without noise. No guarantee covers this choice.'
)
CLAIMS_MORE = (
  'If a row claims more than its epsilon, only the claimed epsilon is '
  'guaranteed. The epsilon of the row is for a larger cohort, which the run '
  'simulates.'
)
CLAIMS_NOTHING = (
  'If a row has an epsilon but claims none, nothing is guaranteed. The epsilon '
  'of the row is for a larger cohort, which the run simulates.'
)
_HEADERS = {
  'mechanism': 'mechanism',
  'epsilon': 'epsilon',
  'claimed_epsilon': 'claimed',
  'rate': 'rate',
  'noise': 'noise L',
  'seeds': 'seeds',
  'loss_mean': 'test loss',
  'loss_stdev': 'stdev',
  'perplexity': 'perplexity',
  'accuracy_mean': 'accuracy (%)',
}
_SEARCH_HEADERS = {
  'mechanism': 'mechanism',
  'epsilon': 'epsilon',
  'rate': 'rate',
  'validation_loss': 'validation loss',
  'taken': 'taken',
}
_PAIR_HEADERS = {
  'epsilon': 'epsilon',
  'first': 'mechanism',
  'second': 'and the next one',
  'seeds': 'seeds',
  'difference': 'difference in loss',
  'p_value': 'p',
  'shown': 'shown',
}
# Maximum number of points that a summary stores of a validation curve.
_CURVE_POINTS = 26


@dataclasses.dataclass(frozen=True)
class Outcome:
  """A cell of a sweep, and its result.

  Attributes:
    cell: cell of the sweep.
    result: result of the cell; None if the cell has not ended, or has failed.
    failed: whether the cell ended without a result.
    taken: whether the cell has the rate that the search chose; True for a test
      cell.
  """

  cell: sweep_cell.Cell
  result: Optional[sweep_cell.Result]
  failed: bool
  taken: bool


@dataclasses.dataclass(frozen=True)
class Summary:
  """The finished runs of a sweep, and the names of its other cells.

  Attributes:
    runs: JSON objects of the cells with a result, made by `_run`.
    missing: names of the cells that have not ended.
    failed: names of the cells that ended without a result.
  """

  runs: tuple[dict[str, Any], ...]
  missing: tuple[str, ...]
  failed: tuple[str, ...]

  @classmethod
  def from_outcomes(cls, outcomes: Sequence[Outcome]) -> Summary:
    """Returns the summary of a sweep."""
    return cls(
      tuple(
        _run(each.cell, each.result, each.taken)
        for each in outcomes
        if each.result is not None
      ),
      tuple(
        each.cell.name
        for each in outcomes
        if each.result is None and not each.failed
      ),
      tuple(each.cell.name for each in outcomes if each.failed),
    )

  @classmethod
  def read(cls, text: str) -> Summary:
    """Parses text that `Summary.json` returned."""
    content = json.loads(text)
    return cls(*(tuple(content[name]) for name in _fields()))

  def json(self) -> str:
    """Returns the summary as JSON, one line for each run."""
    parts = []
    for name in _fields():
      lines = [
        json.dumps(each, allow_nan=False) for each in getattr(self, name)
      ]
      parts.append(f'"{name}": [\n' + ',\n'.join(lines) + '\n]')
    return '{\n' + ',\n'.join(parts) + '\n}\n'

  @property
  def tests(self) -> list[dict[str, Any]]:
    """Returns the runs of test cells."""
    return [run for run in self.runs if not run['search']]

  @property
  def rows(self) -> list[dict[str, Any]]:
    """Returns the means over seeds for each mechanism and epsilon.

    Accuracies are in percent; a standard deviation is None for one seed.
    """
    groups: dict[Any, list[dict[str, Any]]] = {}
    for run in self.tests:
      groups.setdefault((run['mechanism'], run['epsilon']), []).append(run)
    return [_row(runs) for runs in groups.values()]

  @property
  def pairs(self) -> list[dict[str, Any]]:
    """Returns differences in test loss between mechanisms at one epsilon.

    For each epsilon, the mechanisms with several seeds are sorted by mean loss,
    and each mechanism is compared with the next one. Runs without noise are
    among the mechanisms of every epsilon.
    """
    comparisons = []
    rows = [
      row
      for row in self.rows
      if row['seeds'] > 1 and row['loss_mean'] < math.inf
    ]
    for epsilon in sorted({_infinite(row['epsilon']) for row in rows}):
      ordered = sorted(
        (
          row
          for row in rows
          if epsilon == _infinite(row['epsilon']) or row['epsilon'] is None
        ),
        key=lambda row: row['loss_mean'],
      )
      for first, second in zip(ordered, ordered[1:]):
        paired = analysis.paired(self._losses(first), self._losses(second))
        if paired is not None:
          comparisons.append(
            {
              'epsilon': epsilon,
              'first': first['mechanism'],
              'second': second['mechanism'],
              'seeds': paired.seeds,
              'difference': f'{paired.mean:+.4f} ± {paired.half_width:.4f}',
              'stdev': paired.stdev,
              'p_value': paired.p_value,
              'shown': 'yes' if paired.shown else 'no',
            }
          )
    return comparisons

  def against(self, mechanism: str) -> dict[Any, analysis.Paired]:
    """Returns the losses of all mechanisms minus the loss of one mechanism.

    Args:
      mechanism: mechanism whose loss is subtracted, at the same epsilon; if it
        has no noise, its loss is subtracted at every epsilon.

    Returns:
      Differences by (mechanism, epsilon).
    """
    rows = self.rows
    comparisons = {}
    for other in rows:
      for row in rows:
        if (
          other['mechanism'] == mechanism != row['mechanism']
          and other['epsilon'] in (row['epsilon'], None)
          and max(row['loss_mean'], other['loss_mean']) < math.inf
        ):
          paired = analysis.paired(self._losses(row), self._losses(other))
          if paired is not None:
            comparisons[row['mechanism'], row['epsilon']] = paired
    return comparisons

  def _losses(self, row: Mapping[str, Any]) -> dict[int, float]:
    """Returns {seed: test loss} for the runs of a row."""
    return {
      run['seed']: run['test_loss']
      for run in self.tests
      if (run['mechanism'], run['epsilon'])
      == (row['mechanism'], row['epsilon'])
    }

  @property
  def notes(self) -> list[str]:
    """Returns the notes for readers of the rows."""
    # PRIVACY: If a run simulates a larger cohort, the epsilon of its row is for
    # the larger cohort. The run guarantees only a larger epsilon, and a reader
    # could take the row's epsilon for the guarantee of the run. The notes then
    # say that only the claimed epsilon is guaranteed.
    # Guard: sweep_runs_test.test_row_that_claims_more_says_so.
    more = any(
      (row['claimed_epsilon'] or 0) > _infinite(row['epsilon'])
      for row in self.rows
    )
    # PRIVACY: A run that simulates a larger cohort may have no guarantee, and a
    # reader could take the row's epsilon for the guarantee of the run. The
    # notes then say that nothing is guaranteed.
    # Guard: sweep_runs_test.test_row_that_claims_nothing_says_so.
    nothing = any(
      row['epsilon'] and row['claimed_epsilon'] is None for row in self.rows
    )
    return [
      NOTE,
      *([CLAIMS_MORE] if more else []),
      *([CLAIMS_NOTHING] if nothing else []),
    ]

  def table(self) -> str:
    """Returns `rows` as a Markdown table."""
    return _table(self.rows, _HEADERS)

  def pairs_table(self) -> str:
    """Returns `pairs` as a Markdown table; '' if there are none."""
    return _table(self.pairs, _PAIR_HEADERS)

  def search_table(self) -> str:
    """Returns the tuning runs as a Markdown table; '' if there are none."""
    return _table([run for run in self.runs if run['search']], _SEARCH_HEADERS)

  def markdown(self) -> str:
    """Returns the tables, the notes and the unfinished cells as Markdown."""
    parts = [
      self.table(),
      *self.notes,
      self.pairs_table(),
      self.search_table(),
    ]
    if self.failed:
      parts.append('Failed: ' + ', '.join(self.failed) + '.')
    if self.missing:
      parts.append('Missing: ' + ', '.join(self.missing) + '.')
    return '\n\n'.join(part for part in parts if part) + '\n'

  def write(self, directory: pathlib.Path) -> None:
    """Writes `summary.md`, `summary.json` and the plots."""
    _files.write(directory / 'summary.md', self.markdown().encode())
    _files.write(directory / 'summary.json', self.json().encode())
    self.draw(directory, '')

  def draw(self, directory: pathlib.Path, prefix: str) -> None:
    """Writes PREFIXnoise.png and PREFIXconvergence.png.

    If a plot would be empty, its file is not written.

    Args:
      directory: folder of the plots.
      prefix: start of the names of the two files.
    """
    for name, figure in (
      ('noise', sweep_plots.noise(self.tests)),
      ('convergence', sweep_plots.convergence(self.tests)),
    ):
      if figure is not None:
        path = directory / f'{prefix}{name}.png'
        with _files.replacing(path) as part:
          figure.savefig(part, format='png', dpi=110, metadata={'Software': ''})


def _fields() -> list[str]:
  return [field.name for field in dataclasses.fields(Summary)]


def _infinite(epsilon: Optional[float]) -> float:
  return math.inf if epsilon is None else epsilon


def _run(
  cell: sweep_cell.Cell, result: sweep_cell.Result, taken: bool
) -> dict[str, Any]:
  """Returns the JSON object of a run.

  A tuning run has None as `test_loss` and `test_accuracy`, because the test
  split must not choose a rate.

  Args:
    cell: cell of the run.
    result: result of the run.
    taken: `Outcome.taken` of the cell.
  """
  config = cell.config()
  step = -(-len(result.validation) // _CURVE_POINTS)
  search = cell.seed == sweep_cell.TUNING_SEED
  return {
    'name': cell.name,
    'mechanism': cell.row.series,
    'family': config.privacy.family,
    'epsilon': None if cell.row.epsilon == math.inf else cell.row.epsilon,
    'claimed_epsilon': result.epsilon,
    'stands_for': config.privacy.simulated_clients_per_round,
    'seed': cell.seed,
    'search': search,
    'taken': taken,
    'rate': result.rate,
    'noise': result.noise,
    'momentum_noise': result.momentum_noise,
    'copies': result.copies,
    'validation_loss': _finite(result.validation_loss),
    'test_loss': None if search else _finite(result.test_loss),
    'test_accuracy': None if search else result.test_accuracy,
    'minutes': None if result.seconds is None else result.seconds / 60,
    # Every `step`-th point [rounds done, loss] is stored. Counting from the end
    # keeps the last point.
    'curve': [
      [done, _finite(round(loss, 4))]
      for done, loss, _ in result.validation[::-1][::step][::-1]
    ],
  }


def _finite(loss: float) -> Optional[float]:
  """Returns a loss; None if it is infinite or NaN, because JSON has neither."""
  return loss if math.isfinite(loss) else None


def _row(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
  """Returns the means over the runs of one mechanism and epsilon."""
  claims = [run['claimed_epsilon'] for run in runs]
  losses = [math.inf if (x := run['test_loss']) is None else x for run in runs]
  return {
    **{
      name: runs[0].get(name)
      for name in ('mechanism', 'epsilon', 'rate', 'noise', 'copies')
    },
    # If a run of the row claims nothing, the row claims nothing. Otherwise the
    # largest claimed epsilon holds for all runs.
    'claimed_epsilon': None if None in claims else max(claims),
    'seeds': len(runs),
    'loss_mean': statistics.fmean(losses),
    'loss_stdev': (
      statistics.stdev(losses)
      if len(runs) > 1 and math.inf not in losses
      else None
    ),
    'perplexity': float(np.exp(statistics.fmean(losses))),
    'accuracy_mean': 100
    * statistics.fmean(run['test_accuracy'] for run in runs),
  }


def _table(rows: Sequence[dict[str, Any]], headers: Mapping[str, str]) -> str:
  if not rows:
    return ''
  return tabulate.tabulate(
    [[row[key] for key in headers] for row in rows],
    list(headers.values()),
    'github',
    floatfmt='.4g',
  )
