"""Runs a grid of experiments in local processes, and compares their results.

  python -m simulations.sweep --config=FILE --out=DIR [--processes=2] [--resume]

`simulations/sweeps/grid_file.py` defines a grid. Each row of the grid runs

  1. with seed 0 and each candidate of the server learning rate, if there are
     several. The sweep chooses the rate with the smallest validation loss,
     averaged over the last fifth of the rounds. If this rate is the smallest or
     the largest candidate, the sweep also tries the next power of 1.7. A grid
     may have a rule for learning rates: a formula with a constant, a row, and
     candidates for this row. The sweep fits the constant to the best of these
     candidates, and tries no further powers of 1.7. The formula then gives the
     rate of each row that has noise and no candidates;
  2. with the chosen rate and the seeds 1, 2, .... The summary reports the test
     loss of the last model of each of these runs.

Each run is called a cell. It has its own process, TFF worker, run directory,
report and log, and its noise is calibrated for the settings of its row. A cell
that fails does not stop the other cells. --resume continues after any crash,
and runs failed cells again. The guarantee in a report is for one run only. All
runs of a row use the same clients, and no guarantee covers the chosen rate.

Cells may run on other machines that share DIR. --list prints all unfinished
cells, with their expected durations and whether they can run now. --cell=NAME
runs one cell if it is not finished. --results prints the results so far as
JSON.

DIR holds the run directories, `logs/`, `summary.md`, `summary.json` and plots.
"""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import multiprocessing.connection
import os
import pathlib
import statistics
import sys
from collections.abc import Iterator, Mapping
from typing import Any, Optional

import click
import tqdm

from simulations import run_stackoverflow
from simulations.sweeps import cell as sweep_cell
from simulations.sweeps import grid as grid_lib
from simulations.sweeps import schedule
from simulations.sweeps import summary as sweep_summary
from tff_bandmf import _files, errors

# Maximum duration of a cell's clean-up after SIGTERM, before SIGKILL.
_STOP_SECONDS = 30
# Assumed duration of a cell per client and round, in seconds. After a cell has
# finished, its measured duration is used instead.
_SECONDS_PER_CLIENT = 0.008


def run(
  grid: grid_lib.Grid, directory: pathlib.Path, processes: int
) -> schedule.Ended:
  """Runs the cells that have no result, and returns the results of all cells.

  Args:
    grid: experiments to run.
    directory: folder of the sweep.
    processes: number of cells that run at the same time; these cells share the
      cores equally.

  Raises:
    ValueError: a finished cell belongs to another grid.
  """
  context = multiprocessing.get_context('forkserver')
  # The fork server imports TFF once for all cells; one import takes 10 s.
  context.set_forkserver_preload(['simulations.training'])
  cores = sorted(os.sched_getaffinity(0))
  slots = [
    frozenset(cores[i::processes] or [cores[i % len(cores)]])
    for i in range(processes)
  ]
  # Without the pipe, running cells would continue if this process were killed.
  # The write end of the pipe closes with this process, and a cell ends when its
  # read end reports that.
  alive, _held = context.Pipe(duplex=False)
  ended: dict[str, Optional[sweep_cell.Result]] = {}
  running: dict[int, tuple[Any, sweep_cell.Cell, frozenset[int]]] = {}
  with _stopping(running), tqdm.tqdm(unit='cell') as progress:
    while True:
      waiting = schedule.startable(grid, ended, running)
      done = {
        cell.name: result
        for cell in waiting
        if (result := sweep_cell.read(cell, directory)) is not None
      }
      if done:
        ended.update(done)
        progress.update(len(done))
        continue
      while waiting and slots:
        cell, slot = waiting.pop(0), slots.pop(0)
        process = context.Process(
          target=sweep_cell.run, args=(cell, directory, slot, alive)
        )
        process.start()
        running[process.sentinel] = process, cell, slot
      progress.total = len(schedule.all_cells(grid, ended))
      progress.set_postfix_str(
        ', '.join(cell.name for _, cell, _ in running.values())
      )
      if not running:
        return ended
      finished = multiprocessing.connection.wait(list(running))
      for sentinel in set(running).intersection(finished):
        process, cell, slot = running.pop(sentinel)
        process.join()
        slots.append(slot)
        result = None
        if process.exitcode == 0:
          result = sweep_cell.read(cell, directory)
        if result is None:
          log = sweep_cell.log_file(cell, directory)
          tqdm.tqdm.write(
            f'{cell.name}: failed, exit status {process.exitcode}; see {log}',
            file=sys.stderr,
          )
        ended[cell.name] = result
        progress.update()


def run_cell(grid: grid_lib.Grid, directory: pathlib.Path, name: str) -> None:
  """Runs or resumes one cell in this process.

  Raises:
    ValueError: the sweep has no cell with this name, or the learning rate of
      the cell is not chosen yet.
  """
  waiting, ended = schedule.ready(grid, directory)
  if name in ended:
    return
  if name not in waiting:
    raise errors.value_error(
      f'cell={name}: is not a cell that can run now; give a cell that --list '
      'shows as ready'
    )
  sweep_cell.run(waiting[name], directory, frozenset(os.sched_getaffinity(0)))


def _listing(grid: grid_lib.Grid, ended: schedule.Ended) -> Iterator[str]:
  """Yields a line (name, minutes, state) for each unfinished cell."""
  seconds = _SECONDS_PER_CLIENT
  known = [
    result.seconds / (training.rounds * training.clients_per_round)
    for cell, _ in schedule.all_cells(grid, ended)
    for result, training in [(ended.get(cell.name), cell.config().training)]
    if result is not None and result.seconds is not None
  ]
  if known:
    seconds = statistics.median(known)
  for cell, chosen in schedule.all_cells(grid, ended):
    if cell.name not in ended:
      training = cell.config().training
      clients = training.rounds * training.clients_per_round
      yield (
        f'{cell.name}\t{clients * seconds / 60:.0f} min\t'
        f'{"ready" if chosen else "waits for its rate"}'
      )


@contextlib.contextmanager
def _stopping(running: Mapping[int, Any]) -> Iterator[None]:
  """Ends the cells that are still running when the `with` block ends."""
  try:
    yield
  finally:
    for process, _, _ in running.values():
      process.terminate()
    for process, _, _ in running.values():
      process.join(_STOP_SECONDS)
      process.kill()


@contextlib.contextmanager
def _only_sweep(directory: pathlib.Path, resume: bool) -> Iterator[None]:
  """Locks the directory, so that only one sweep runs in it."""
  lock = directory / 'sweep.lock'
  if lock.exists() and not resume:
    raise errors.value_error(
      f'out={directory}: holds a sweep; continue it with --resume, or choose '
      'another directory'
    )
  directory.mkdir(parents=True, exist_ok=True)
  handle = _files.lock(lock)
  if handle is None:
    raise errors.value_error(
      f'out={directory}: another sweep runs in this folder; wait for its end'
    )
  try:
    yield
  finally:
    os.close(handle)


@dataclasses.dataclass(frozen=True)
class _Flags:
  grid_path: str
  settings: tuple[str, ...]
  only: tuple[str, ...]
  seeds: Optional[int]
  processes: int
  out: str
  resume: bool
  list_: bool
  results: bool
  cell: Optional[str]


@click.command(help=__doc__.split('\n')[0])
@click.option(
  '--config',
  'grid_path',
  required=True,
  metavar='FILE',
  help='TOML file of the grid.',
)
@click.option(
  '--set',
  'settings',
  multiple=True,
  metavar='KEY=VALUE',
  help='Changes a setting of every run, for instance training.rounds=10.',
)
@click.option(
  '--only',
  multiple=True,
  metavar='PATTERN',
  help='Runs only rows whose name matches, for instance *_epsilon8.',
)
@click.option(
  '--seeds',
  type=click.IntRange(min=1),
  help='Maximum number of seeds that test a row; takes the first seeds of the '
  'grid.',
)
@click.option(
  '--processes',
  default=2,
  show_default=True,
  type=click.IntRange(min=1),
  help='Number of runs at the same time.',
)
@click.option(
  '--out', required=True, metavar='DIR', help='Folder of the sweep.'
)
@click.option('--resume', is_flag=True, help='Continues the sweep in DIR.')
@click.option(
  '--list',
  'list_',
  is_flag=True,
  help='Prints a line for each unfinished cell: its name ROW/seedN or, for the '
  'learning rate 1.7^I, ROW/seedN_rateI; minutes; state.',
)
@click.option(
  '--results', is_flag=True, help='Prints the finished runs as JSON.'
)
@click.option(
  '--cell', metavar='NAME', help='Runs only this cell, which --list shows.'
)
@run_stackoverflow.one_line_errors
def main(**given: Any) -> None:
  flags = _Flags(**given)
  grid = grid_lib.load(flags.grid_path, flags.settings, flags.only)
  if flags.seeds is not None:
    grid = grid_lib.Grid(
      tuple(
        dataclasses.replace(row, seeds=row.seeds[: flags.seeds])
        for row in grid.rows
      )
    )
  directory = pathlib.Path(flags.out)
  if flags.list_:
    for line in _listing(grid, schedule.ready(grid, directory)[1]):
      click.echo(line)
    return
  if flags.results:
    ended = schedule.ready(grid, directory)[1]
    click.echo(
      sweep_summary.Summary.from_outcomes(schedule.outcome(grid, ended)).json(),
      nl=False,
    )
    return
  if flags.cell is not None:
    run_cell(grid, directory, flags.cell)
    return
  with _only_sweep(directory, flags.resume):
    summary = sweep_summary.Summary.from_outcomes(
      schedule.outcome(grid, run(grid, directory, flags.processes))
    )
    summary.write(directory)
  click.echo(summary.markdown())
  sys.exit(1 if summary.failed else 0)


if __name__ == '__main__':
  main()
