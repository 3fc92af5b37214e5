"""Input and output of commands: strategy files, JSON objects and tables."""

from __future__ import annotations

import contextlib
import decimal
import json
import logging
import os
import pathlib
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Callable, Optional

import click
import tabulate
import tqdm

from tff_bandmf import _files, errors, strategies, workloads
from tff_bandmf import participation as participation_lib
from tff_bandmf import sensitivity as sensitivity_lib
from tff_bandmf.cli import commands

# Seconds until the first line of progress outside a terminal, and between the
# following lines.
FIRST_LINE = 2.0
_NEXT_LINES = 10.0

# A claim with an epsilon or a delta above these limits gets a warning.
_LARGEST_EPSILON = 20.0
_LARGEST_DELTA = 1e-3

# Names of the JSON fields about the noise. `describe` sets these fields to
# None; a command that chooses the noise fills them.
_NOISE = ('clip', 'noise_multiplier', 'z_stddev', 'rho', 'epsilon', 'delta')

# PRIVACY: If a printed epsilon were smaller than the computed epsilon, it would
# claim too much privacy. This context rounds the numbers of a table up.
# Guard: cli_test.test_table_rounds_up.
_ROUND_UP = decimal.Context(prec=8, rounding=decimal.ROUND_CEILING)


@contextlib.contextmanager
def progress(
  phase: str, total: Optional[int] = None
) -> Iterator[Callable[[str], None]]:
  """Yields a function to call with the name of each finished step.

  Standard error shows the progress: a terminal gets one line per phase, which
  is redrawn; a pipe or a file gets a new line after two seconds, and then every
  ten seconds.

  Args:
    phase: name of the phase, such as 'comparing families'.
    total: number of steps; None if it is unknown.
  """
  steps: list[str] = []
  ended = threading.Event()

  def print_lines():
    wait, began = FIRST_LINE, time.monotonic()
    while not ended.wait(wait):
      count = f'{len(steps)} of {total}' if total else f'{len(steps)}'
      latest = f', {steps[-1]}' if steps else ''
      seconds = time.monotonic() - began
      errors.notice(
        f'{phase}: {count} steps, {seconds:.0f} s{latest}', logging.INFO
      )
      wait = _NEXT_LINES

  with tqdm.tqdm(
    desc=phase, total=total, unit=' steps', disable=None, file=sys.stderr
  ) as bar:

    def step(name):
      steps.append(name)
      bar.set_postfix_str(name, refresh=False)
      bar.update()

    lines = threading.Thread(target=print_lines, daemon=True)
    if bar.disable:
      lines.start()
    try:
      yield step
    finally:
      ended.set()
      if bar.disable:
        lines.join()


def check_out(path: str, force: Optional[bool] = None) -> None:
  """Checks that a file can be written, before a search that takes minutes.

  Args:
    path: path of the file to write.
    force: whether to overwrite an existing file; None for a command without the
      flag --force.

  Raises:
    ValueError: the file cannot be written, or it exists and `force` is not set.
  """
  out = pathlib.Path(path)
  if out.is_dir() or not os.access(out.parent, os.W_OK):
    raise errors.value_error(
      f'out={path}: cannot be written; name a file in a writable folder'
    )
  if out.exists() and not force:
    remedy = 'name another file' + ', or give --force' * (force is not None)
    raise errors.value_error(f'out={path}: is there already; {remedy}')


def describe(
  strategy: strategies.Strategy,
  participation: participation_lib.Participation,
  coefficients: bool = False,
  workload: workloads.Workload = workloads.PREFIX,
  sensitivity: Optional[sensitivity_lib.Sensitivity] = None,
) -> _files.JsonObject:
  """Returns the numbers of a strategy by name; None if there is no number.

  `mean_error` and `max_error` are the mean and the largest squared error of the
  rounds, for noise C^-1 z with z of standard deviation 1. `rmse` and `max_rmse`
  are their square roots times `sensitivity`, which is the standard deviation of
  z if the clip and the noise multiplier are both 1.
  """
  if sensitivity is None:
    sensitivity = sensitivity_lib.sensitivity(strategy, participation)
  if isinstance(participation, participation_lib.Budget):
    participation = sensitivity_lib.budget.completed(participation, strategy)
  parameters = strategy.parameters()
  values = {
    'family': strategy.family,
    'rounds': strategy.rounds,
    # In families named after C^-1, 'bands' counts the bands of C^-1.
    'bands': parameters.pop('inverse_bands', parameters.pop('bands', None))
    or strategy.inverse_bands
    or strategy.bands,
    'buffers': strategy.buffers,
    'parameters': parameters,
    **workload.to_dict(),
    'participation': participation.name,
    'min_sep': participation.min_sep,
    'max_participations': participation.to_dict().get('max_participations'),
    'participations': participation.participations(strategy.rounds),
    'sensitivity': sensitivity.value,
    'sensitivity_method': sensitivity.method,
    'sensitivity_reason': sensitivity.reason,
    **strategy.error_numbers(sensitivity.value, workload),
    **dict.fromkeys(_NOISE),
    'adjacency': participation.adjacency,
  }
  if coefficients:
    column = strategy.first_column()
    values['coefficients'] = None if column is None else column.tolist()
  return values


def as_json() -> bool:
  """Returns whether the command line has the flag --json."""
  return click.get_current_context().meta[commands.AS_JSON]


def show_result(values: _files.JsonObject) -> None:
  """Prints values, and the number of seconds since the command began."""
  began = click.get_current_context().meta[commands.BEGAN]
  show({**values, 'seconds': time.perf_counter() - began})


def show(values: _files.JsonObject, summary: Optional[str] = None) -> None:
  """Prints values as JSON, or a text on them, on standard output.

  Args:
    values: values by name.
    summary: the text; None for a table, which leaves out values that are None
      or empty dictionaries.
  """
  if as_json():
    summary = json.dumps(values, allow_nan=False)
  elif summary is None:
    rows = [
      (name, text(value))
      for name, value in values.items()
      if value is not None and value != {}
    ]
    summary = tabulate.tabulate(rows, tablefmt='plain', disable_numparse=True)
  click.echo(summary)


def table(rows: Sequence[_files.JsonObject]) -> str:
  """Returns a table with one line for each row; all rows have the same keys."""
  return tabulate.tabulate(
    [list(map(_cell, values.values())) for values in rows],
    headers=list(rows[0]),
    disable_numparse=True,
  )


def _cell(value: object) -> str:
  if value is None:
    return ''
  if isinstance(value, dict):
    return ' '.join(f'{name}={text(each)}' for name, each in value.items())
  return text(value)


def warn_of_weak(epsilon: Optional[float], delta: float) -> None:
  """Warns on standard error if a claim promises hardly any privacy.

  Args:
    epsilon: epsilon of the claim; None if there is no claim.
    delta: delta of the claim.
  """
  if epsilon is not None and epsilon > _LARGEST_EPSILON:
    warn(
      f'epsilon={epsilon}: a release may be e^{epsilon:.4g} times as likely '
      'with a client as without the client, which is hardly a guarantee; '
      'typical values are 0.1 to 20'
    )
  if delta > _LARGEST_DELTA:
    warn(
      f'delta={delta}: publishing all data of this share of the clients would '
      'satisfy such a delta; use a delta well below 1 / number of clients'
    )


def warn(message: Optional[str]) -> None:
  """Prints a warning, shortened by `errors.invalid`, unless it is None."""
  if message is not None:
    click.echo(f'warning: {errors.invalid(message)}', err=True)


def did_not_hold(message: str = '') -> click.exceptions.Exit:
  """Returns the exception that ends a command with exit status 1.

  Args:
    message: text about the claim, comparison or search that failed; it is
      printed to standard error.
  """
  if message:
    click.echo(errors.invalid(message), err=True)
  return click.exceptions.Exit(1)


def text(value: object) -> str:
  """Returns the text of a value in a table.

  Floats are rounded upwards, to 8 significant digits. Before that, floats are
  rounded to the nearest number of 14 significant digits. So a float may be
  above its text, but by at most half a unit of the 14th digit.
  """
  if isinstance(value, float):
    # This first rounding drops the error of float64: 0.1 stays 0.1.
    return f'{float(_ROUND_UP.create_decimal(format(value, ".14g"))):.8g}'
  if isinstance(value, list):
    return '\n'.join(map(text, value))
  return str(value)


def load(
  file: str,
) -> tuple[strategies.Strategy, Optional[participation_lib.Participation]]:
  """Returns the strategy in a file, and the file's schema or None.

  Raises:
    ValueError: the path is not a file, or the file is not a strategy.
  """
  if not os.path.isfile(file):
    raise errors.value_error(
      f'file={file}: is not a file; write one with bandmf optimize --out FILE'
    )
  return strategies.load(file)
