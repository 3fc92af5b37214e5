"""The cells of a sweep: which can run now, and the results of the others."""

from __future__ import annotations

import math
import pathlib
from collections.abc import Mapping
from typing import Any, Optional

from simulations.sweeps import cell as sweep_cell
from simulations.sweeps import grid as grid_lib
from simulations.sweeps import summary as sweep_summary

# Cell name to result; None for a cell that failed.
Ended = Mapping[str, Optional[sweep_cell.Result]]


def choose_rate(
  row: grid_lib.Row, ended: Ended
) -> tuple[Optional[int], list[sweep_cell.Cell]]:
  """Returns the chosen exponent, and the tuning cells of a row.

  The exponent is None while one of the cells has not ended, if all failed, and
  for a row without candidates.

  Args:
    row: row of the grid.
    ended: cells of the sweep that have ended so far.
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
  """Returns the validation loss, or infinity for a failed cell."""
  if result is None or math.isnan(result.validation_loss):
    return math.inf
  return result.validation_loss


def _constant(rule: grid_lib.Rule, ended: Ended) -> Optional[float]:
  """Returns the constant of a rule, or None before it is fitted."""
  exponent, _ = choose_rate(rule.row, ended)
  if exponent is None:
    return None
  best = ended[sweep_cell.Cell(rule.row, exponent, sweep_cell.TUNING_SEED).name]
  # A chosen cell has ended without a failure.
  assert best is not None
  return rule.constant(exponent, best.noise)


def test_cells(row: grid_lib.Row, ended: Ended) -> list[sweep_cell.Cell]:
  """Returns the cells that test a row, or [] before its rate is chosen."""
  exponent, tuning = choose_rate(row, ended)
  constant = None if row.rule is None else _constant(row.rule, ended)
  if (tuning and exponent is None) or (row.rule and constant is None):
    return []
  return [sweep_cell.Cell(row, exponent, seed, constant) for seed in row.seeds]


def ready(
  grid: grid_lib.Grid, directory: pathlib.Path
) -> tuple[dict[str, sweep_cell.Cell], Ended]:
  """Returns the cells that could run now, by name, and the results of others.

  Args:
    grid: experiments of the sweep.
    directory: folder of the sweep.

  Raises:
    ValueError: a finished cell is of another grid.
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
  """Returns the cells that could start now, in the order of `all_cells`."""
  started = {*ended, *(cell.name for _, cell, _ in running.values())}
  return [
    cell
    for cell, chosen in all_cells(grid, ended)
    if chosen and cell.name not in started
  ]


def all_cells(
  grid: grid_lib.Grid, ended: Ended
) -> list[tuple[sweep_cell.Cell, bool]]:
  """Returns all cells, and whether their learning rates are chosen.

  Tuning cells come first, then the cells of one seed after another; within each
  of these, cells with less noise come first.
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
  """Returns the rows whose rates may be searched for, each once."""
  rules = {row.rule.row.name: row.rule.row for row in grid.rows if row.rule}
  return [*rules.values(), *grid.rows]


def outcome(grid: grid_lib.Grid, ended: Ended) -> list[sweep_summary.Outcome]:
  """Returns every cell of a sweep, with the result of each that has ended."""
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
