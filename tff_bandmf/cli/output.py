"""What a command reads and prints: a strategy; a JSON object or a table."""

from __future__ import annotations

import contextlib
import decimal
import json
import math
import os
import pathlib
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, Callable, Optional

import click
import tabulate
import tqdm

from tff_bandmf import errors, strategies, workloads
from tff_bandmf import participation as participation_lib
from tff_bandmf import sensitivity as sensitivity_lib

# Exit statuses.
DONE = 0
DID_NOT_HOLD = 1

# Seconds until a command that is not in a terminal says what it does, and then
# between its lines.
FIRST_LINE = 2.0
_NEXT_LINES = 10.0

# Above these a command warns.
_LARGEST_EPSILON = 20.0
_LARGEST_DELTA = 1e-3

# What a strategy without noise has no value for.
_OF_NOISE = ('clip', 'noise_multiplier', 'z_stddev', 'rho', 'epsilon', 'delta')

# PRIVACY: numbers of the table are rounded up, so that no epsilon and no noise
# is printed below the one computed.
# Guard: cli_test.test_table_rounds_up.
_ROUND_UP = decimal.Context(prec=8, rounding=decimal.ROUND_CEILING)


@contextlib.contextmanager
def progress(
  phase: str, total: Optional[int] = None
) -> Iterator[Callable[[str], None]]:
  """Yields what to call with every step.

  Standard error shows them: a terminal in one line a phase, a pipe or a file in
  a line now and then, from a few seconds on.

  Args:
    phase: what takes its time.
    total: steps, if it is known how many.
  """
  with tqdm.tqdm(
    desc=phase, total=total, unit=' steps', disable=None, file=sys.stderr
  ) as bar:
    steps: list[str] = []

    def step(name):
      steps.append(name)
      bar.set_postfix_str(name, refresh=False)
      bar.update()

    ended = threading.Event()
    lines = threading.Thread(
      target=_say, args=(phase, total, steps, ended), daemon=True
    )
    if bar.disable:
      lines.start()
    try:
      yield step
    finally:
      ended.set()
      if bar.disable:
        lines.join()


def _say(
  phase: str, total: Optional[int], steps: list[str], ended: threading.Event
) -> None:
  """Says now and then how far a phase is, until it has ended."""
  wait, began = FIRST_LINE, time.monotonic()
  while not ended.wait(wait):
    count = f'{len(steps)} of {total}' if total else f'{len(steps)}'
    latest = f', {steps[-1]}' if steps else ''
    seconds = time.monotonic() - began
    errors.notice(f'{phase}: {count} steps, {seconds:.0f} s{latest}')
    wait = _NEXT_LINES


def check_out(path: str, force: Optional[bool] = None) -> None:
  """Raises now what would stop a command when it writes what took minutes.

  Args:
    path: of the file to write.
    force: whether to overwrite one that is there; None if nobody can ask.

  Raises:
    ValueError: the file cannot be written, or it is there without `force`.
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
  sensitivity: sensitivity_lib.Sensitivity,
  with_coefficients: bool,
  workload: workloads.Workload = workloads.PREFIX,
) -> dict[str, Any]:
  """Returns the record of a strategy: every key, null where it has no value.

  Errors are those of unit noise; rmse and max_rmse those of sigma = 1.
  """
  mean_error, max_error = strategy.errors(workload)
  parameters = strategy.parameters()
  record = {
    'family': strategy.family,
    'rounds': strategy.rounds,
    # Those of C^-1 for the families that are named after it.
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
    'mean_error': mean_error,
    'max_error': max_error,
    'rmse': sensitivity.value * math.sqrt(mean_error),
    'max_rmse': sensitivity.value * math.sqrt(max_error),
    **dict.fromkeys(_OF_NOISE),
    'adjacency': participation.adjacency,
  }
  if with_coefficients:
    column = strategy.first_column()
    record['coefficients'] = None if column is None else column.tolist()
  return record


def show(record: dict[str, Any], as_json: bool) -> None:
  """Prints a record on standard output."""
  if as_json:
    click.echo(json.dumps(record, allow_nan=False))
    return
  rows = [
    (name, text(value))
    for name, value in record.items()
    if value is not None and value != {}
  ]
  click.echo(tabulate.tabulate(rows, tablefmt='plain', disable_numparse=True))


def table(records: Sequence[dict[str, Any]]) -> str:
  """Returns records as a table, a line each; all have the same keys."""
  return tabulate.tabulate(
    [list(map(_cell, record.values())) for record in records],
    headers=list(records[0]),
    disable_numparse=True,
  )


def _cell(value: Any) -> str:
  if value is None:
    return ''
  if isinstance(value, dict):
    return ' '.join(f'{name}={text(each)}' for name, each in value.items())
  return text(value)


def warn_of_weak(epsilon: Optional[float], delta: float) -> None:
  """Says on standard error where (epsilon, delta) promises hardly anything.

  Args:
    epsilon: None where none is claimed.
    delta: of the claim.
  """
  if epsilon is not None and epsilon > _LARGEST_EPSILON:
    warn(
      'epsilon',
      epsilon,
      f'a release may be e^{epsilon:.4g} times as likely with a client as '
      'without, which is hardly a guarantee',
      'typical values are 0.1 to 20',
    )
  if delta > _LARGEST_DELTA:
    warn(
      'delta',
      delta,
      'publishing all data of one client in so many meets it',
      'it should be well below 1 / clients',
    )


def warn(name: str, value: object, rule: str, remedy: str) -> None:
  """Says on standard error what a value means, in one line."""
  line = errors.invalid(f'{name}={value}: {rule}; {remedy}')
  click.echo(f'warning: {line}', err=True)


def did_not_hold(name: str, value: object, rule: str, remedy: str) -> int:
  """Says on standard error what did not hold; returns the exit status."""
  click.echo(errors.invalid(f'{name}={value}: {rule}; {remedy}'), err=True)
  return DID_NOT_HOLD


def text(value: Any) -> str:
  """Returns a value as the table shows it."""
  if isinstance(value, float):
    # The digits that float64 is sure of, so that 0.1 stays 0.1.
    return f'{float(_ROUND_UP.create_decimal(format(value, ".14g"))):.8g}'
  if isinstance(value, list):
    return '\n'.join(map(text, value))
  return str(value)


def load(
  file: str,
) -> tuple[strategies.Strategy, Optional[participation_lib.Participation]]:
  """Returns the strategy in a file, and the schema that the file keeps.

  Raises:
    ValueError: there is none.
  """
  if not os.path.isfile(file):
    raise errors.value_error(
      f'file={file}: is not a file; write one with bandmf optimize --out FILE'
    )
  return strategies.load(file)
