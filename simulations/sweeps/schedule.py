"""The order of the cells of a sweep, and the choice of learning rates.

A row of a grid is one experiment. A cell is one run of a row with one server
learning rate and one seed. Each tuning cell tries one candidate for the rate of
its row. A test cell runs the row with the final rate.
"""

from __future__ import annotations

import math
import pathlib
from collections.abc import Mapping
from typing import Any, Optional

from simulations.sweeps import cell as sweep_cell
from simulations.sweeps import grid as grid_lib
from simulations.sweeps import summary as sweep_summary

# Maps the name of each cell that ended to its result; None if the cell failed.
Ended = Mapping[str, Optional[sweep_cell.Result]]


def choose_rate(
  row: grid_lib.Row, ended: Ended
) -> tuple[Optional[int], list[sweep_cell.Cell]]:
  """Returns the chosen exponent of the server learning rate, and tuning cells.

  A candidate is an exponent. The chosen candidate has the least validation
  loss. If it is the first or the last in ascending order, the search adds the
  next integer at that end, at most `row.extensions` times. The exponent is None
  if the row has no candidates, if a tuning cell has not ended, or if all tuning
  cells failed or diverged.

  Args:
    row: row of the grid.
    ended: results of the cells that ended.
  """
  exponents = sorted(row.exponents)
  if len(exponents) < 2:
    return (exponents[0] if exponents else None), []
  most = len(exponents) + row.extensions
  while True:
    cells = [sweep_cell.Cell(row, i, sweep_cell.TUNING_SEED) for i in exponents]
    if not all(cell.name in ended for cell in cells):
      return None, cells
    losses = [_validation(ended[cell.name]) for cell in cells]
    best = losses.index(min(losses))
    if losses[best] == math.inf:
      return None, cells
    if len(exponents) < most and best == 0:
      exponents.insert(0, exponents[0] - 1)
    elif len(exponents) < most and best == len(exponents) - 1:
      exponents.append(exponents[-1] + 1)
    else:
      return exponents[best], cells


def _validation(result: Optional[sweep_cell.Result]) -> float:
  """Returns the validation loss; infinity if the cell failed or diverged."""
  if result is None or math.isnan(result.validation_loss):
    return math.inf
  return result.validation_loss


def _constant(rule: grid_lib.Rule, ended: Ended) -> Optional[float]:
  """Returns the constant of a rule for learning rates, see `grid.Rule`.

  The value is None if the constant cannot be fitted yet.
  """
  exponent, _ = choose_rate(rule.row, ended)
  if exponent is None:
    return None
  best = ended[sweep_cell.Cell(rule.row, exponent, sweep_cell.TUNING_SEED).name]
  # `choose_rate` never chooses a failed cell, whose loss is infinite.
  assert best is not None
  return rule.constant(exponent, best.noise)


def test_cells(row: grid_lib.Row, ended: Ended) -> list[sweep_cell.Cell]:
  """Returns the test cells of a row; [] if its rate is not chosen yet."""
  exponent, tuning = choose_rate(row, ended)
  constant = None if row.rule is None else _constant(row.rule, ended)
  if (tuning and exponent is None) or (row.rule and constant is None):
    return []
  return [sweep_cell.Cell(row, exponent, seed, constant) for seed in row.seeds]


def ready(
  grid: grid_lib.Grid, directory: pathlib.Path
) -> tuple[dict[str, sweep_cell.Cell], Ended]:
  """Returns the unfinished cells whose rate is known, and the results so far.

  Args:
    grid: experiments of the sweep.
    directory: folder of the sweep.

  Returns:
    The unfinished cells, by name, and the results of the finished cells.

  Raises:
    ValueError: a finished cell belongs to another grid.
  """
  ended: dict[str, Optional[sweep_cell.Result]] = {}
  while True:
    waiting = startable(grid, ended, {})
    done = {
      cell.name: result
      for cell in waiting
      if (result := sweep_cell.read(cell, directory)) is not None
    }
    if not done:
      return {cell.name: cell for cell in waiting}, ended
    ended.update(done)


def startable(
  grid: grid_lib.Grid, ended: Ended, running: Mapping[int, Any]
) -> list[sweep_cell.Cell]:
  """Returns the cells that could start now, in the order of `all_cells`.

  Args:
    grid: experiments of the sweep.
    ended: results of the cells that ended; they do not start again.
    running: maps any key to the (process, cell, cores) of a running cell.
  """
  started = {*ended, *(cell.name for _, cell, _ in running.values())}
  return [
    cell
    for cell, chosen in all_cells(grid, ended)
    if chosen and cell.name not in started
  ]


def all_cells(
  grid: grid_lib.Grid, ended: Ended
) -> list[tuple[sweep_cell.Cell, bool]]:
  """Returns all cells, each with whether its server learning rate is known.

  Tuning cells come first. Test cells follow in the order of their seeds; among
  test cells of one seed, a larger epsilon comes first.
  """
  cells = [
    (cell, True) for row in _tuned(grid) for cell in choose_rate(row, ended)[1]
  ]
  tests = [
    (cell, bool(chosen))
    for row in grid.rows
    for chosen in [test_cells(row, ended)]
    for cell in chosen
    or [sweep_cell.Cell(row, None, seed) for seed in row.seeds]
  ]
  return cells + sorted(
    tests, key=lambda test: (test[0].seed, -test[0].row.epsilon)
  )


def _tuned(grid: grid_lib.Grid) -> list[grid_lib.Row]:
  """Returns the rows that may have tuning cells.

  The rows to which the constants of rules are fitted come first.
  """
  rules = {row.rule.row.name: row.rule.row for row in grid.rows if row.rule}
  return [*rules.values(), *grid.rows]


def outcome(grid: grid_lib.Grid, ended: Ended) -> list[sweep_summary.Outcome]:
  """Returns all cells of a sweep, with the results of the cells that ended."""
  taken = {row.name: choose_rate(row, ended)[0] for row in _tuned(grid)[::-1]}
  return [
    sweep_summary.Outcome(
      cell,
      ended.get(cell.name),
      failed=cell.name in ended and ended[cell.name] is None,
      taken=cell.seed != sweep_cell.TUNING_SEED
      or taken[cell.row.name] == cell.exponent,
    )
    for cell, _ in all_cells(grid, ended)
  ]
