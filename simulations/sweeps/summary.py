"""What a sweep found: tables for readers and programs."""

from __future__ import annotations

import csv
import dataclasses
import io
import pathlib
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Optional

import tabulate

from simulations.sweeps import cell as sweep_cell
from simulations.sweeps import grid as grid_lib
from simulations.sweeps import plots as sweep_plots
from tff_bandmf import _files

NOTE = (
  'Each run has the guarantee of its own report and no more: runs compose, '
  'and neither the choice of learning rates nor that of other '
  'hyperparameters, made with other runs on the same clients and on '
  'validation data without noise, is covered by any of them.'
)
CLAIMS_MORE = (
  'Where a row claims more than its epsilon, it guarantees what it claims '
  'and no less: epsilon is then that of a larger cohort, which the run only '
  'stands for.'
)
_HEADERS = {
  'mechanism': 'mechanism',
  'epsilon': 'epsilon',
  'claimed_epsilon': 'claimed',
  'server_learning_rate': 'rate',
  'seeds': 'seeds',
  'accuracy_mean': 'test accuracy (%)',
  'accuracy_stdev': 'stdev',
  'accuracy_least': 'least',
  'accuracy_most': 'most',
  'rmse': 'noise (rmse)',
}
_TUNING_HEADERS = {
  'mechanism': 'mechanism',
  'epsilon': 'epsilon',
  'server_learning_rate': 'rate',
  'validation_accuracy': 'validation accuracy (%)',
  'taken': 'taken',
}

Ended = Mapping[str, Optional[sweep_cell.Result]]
# A row, the exponent taken, its tuning cells and its test cells.
Planned = tuple[
  grid_lib.Row, Optional[int], list[sweep_cell.Cell], list[sweep_cell.Cell]
]


@dataclasses.dataclass(frozen=True)
class Summary:
  """The tables of a sweep.

  Attributes:
    rows: one an experiment of the grid with a finished test; accuracies in
      percent, their standard deviation over seeds None for a single one.
    tuning: one a candidate of a learning rate.
    failed: cells that did not finish, and rows that could not be tested.
    curves: (series, epsilon) to the validation curves of the test seeds.
  """

  rows: tuple[dict[str, Any], ...]
  tuning: tuple[dict[str, Any], ...]
  failed: tuple[str, ...]
  curves: dict[tuple[str, float], list[tuple[tuple[int, float], ...]]]

  @classmethod
  def of(cls, planned: Sequence[Planned], ended: Ended) -> Summary:
    """Returns the summary of what has ended."""
    rows, tuning, failed, curves = [], [], [], {}
    for row, taken, tuning_cells, test_cells in planned:
      for cell in tuning_cells:
        tuning.append(_tuning_row(cell, ended[cell.name], taken))
      outcomes = [ended[cell.name] for cell in test_cells]
      results = [result for result in outcomes if result is not None]
      failed += [
        cell.name
        for cell in (*tuning_cells, *test_cells)
        if ended[cell.name] is None
      ]
      if results:
        rows.append(_row(test_cells[0], results))
        curves[row.series, row.epsilon] = [
          result.validation for result in results
        ]
      elif not test_cells:
        failed.append(f'{row.name}: no learning rate worked')
    return cls(tuple(rows), tuple(tuning), tuple(failed), curves)

  @property
  def notes(self) -> list[str]:
    """Returns what a reader of the rows has to know."""
    # PRIVACY: an epsilon that no run has is not taken for its guarantee.
    # Guard: sweep_runs_test.test_row_that_claims_more_says_so.
    more = any(
      (row['claimed_epsilon'] or 0) > row['epsilon'] for row in self.rows
    )
    return [NOTE, CLAIMS_MORE] if more else [NOTE]

  def markdown(self) -> str:
    parts = [_table(self.rows, _HEADERS, 'github'), *self.notes]
    if self.tuning:
      parts.append(_table(self.tuning, _TUNING_HEADERS, 'github'))
    if self.failed:
      parts.append('Failed: ' + ', '.join(self.failed) + '.')
    return '\n\n'.join(part for part in parts if part) + '\n'

  def write(self, directory: pathlib.Path) -> None:
    """Writes `summary.md`, `summary.json`, `summary.csv` and the plots."""
    _files.write(directory / 'summary.md', self.markdown().encode())
    content = {
      'rows': self.rows,
      'tuning': self.tuning,
      'failed': self.failed,
      'note': ' '.join(self.notes),
    }
    _files.write_json(directory / 'summary.json', content)
    table = io.StringIO(newline='')
    writer = csv.DictWriter(table, list(_HEADERS))
    writer.writeheader()
    writer.writerows(self.rows)
    _files.write(directory / 'summary.csv', table.getvalue().encode())
    for name, figure in (
      ('accuracy', sweep_plots.accuracy(self.rows)),
      ('convergence', sweep_plots.convergence(self.curves)),
    ):
      if figure is not None:
        with _files.replacing(directory / f'{name}.png') as part:
          figure.savefig(part, format='png', dpi=160)


def _row(
  cell: sweep_cell.Cell, results: list[sweep_cell.Result]
) -> dict[str, Any]:
  accuracies = [100 * result.test_accuracy for result in results]
  claims = [result.epsilon for result in results if result.epsilon is not None]
  return {
    'mechanism': cell.row.series,
    'epsilon': cell.row.epsilon,
    # A run without noise claims nothing.
    'claimed_epsilon': (max(claims) if len(claims) == len(results) else None),
    'server_learning_rate': cell.config.training.server_learning_rate,
    'seeds': len(results),
    'accuracy_mean': statistics.mean(accuracies),
    'accuracy_stdev': (
      statistics.stdev(accuracies) if len(accuracies) > 1 else None
    ),
    'accuracy_least': min(accuracies),
    'accuracy_most': max(accuracies),
    'rmse': results[0].rmse,
  }


def _tuning_row(
  cell: sweep_cell.Cell,
  result: Optional[sweep_cell.Result],
  taken: Optional[int],
) -> dict[str, Any]:
  return {
    'mechanism': cell.row.series,
    'epsilon': cell.row.epsilon,
    'server_learning_rate': cell.config.training.server_learning_rate,
    'validation_accuracy': (
      None if result is None else 100 * result.validation[-1][1]
    ),
    'taken': cell.exponent == taken,
  }


def _table(
  rows: Sequence[dict[str, Any]], headers: Mapping[str, str], form: str
) -> str:
  return tabulate.tabulate(
    [[row[key] for key in headers] for row in rows],
    list(headers.values()),
    form,
    floatfmt='.4g',
  )
