"""The rows of metrics of a run, and their export `metrics.csv`.

`private/metrics` has a file for each round: its row, and the numbers without
noise that are not in the row. The ledger has the digest of the row, and the
released values of an adaptive clip. `metrics.csv` is an export of the rows: it
is written anew, and no program of a run reads a value from it.
"""

from __future__ import annotations

import csv
import hashlib
import io
import math
import pathlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tff_bandmf import _checks, _files, errors
from tff_bandmf import ledger as ledger_lib
from tff_bandmf.ledger import counts
from tff_bandmf.run_files import run_json

# Columns of the noisy values that a round with an adaptive clip releases in
# addition to the model.
RELEASED = ('l2_norm_clip', 'fraction')
# Columns whose values follow from the plan and from releases.
PLANNED = ('epsilon', 'planned_epsilon', 'clip', 'noise_stddev')
# Columns that the size of a cohort changes.
BY_COHORT = ('seconds', 'memory_mib')
_OWN = frozenset(('round', 'clients', *RELEASED, *PLANNED, *BY_COHORT))
_REMEDY = 'restore the file, or remove it'

# A row: {name of the column: cell}; 'round' is the first column.
Row = dict[str, str]


class Metrics:
  """Writes the rows of a run, and exports them to `metrics.csv`."""

  def __init__(
    self,
    directory: pathlib.Path,
    attempts: ledger_lib.Attempts,
    columns: Sequence[str],
    start: int,
  ):
    """Exports the rows of the rounds below `start`.

    Args:
      directory: folder of the run.
      attempts: attempts at each round in the ledger.
      columns: names of the columns, 'round' first.
      start: index of the first round whose row this object will write.

    Raises:
      ValueError: a row differs from its digest in the ledger, or has other
        columns; or `metrics.csv` differs from the ledger.
      OSError: a file cannot be written. The message is one line, and names the
        file.
    """
    self._directory, self._columns = directory, columns
    check(directory, attempts, start)
    below = {t: tried for t, tried in attempts.items() if t < start}
    self._rows: dict[str, Row] = {}
    earlier = rows(directory, below)
    for row in earlier:
      if [*row] != [*columns]:
        raise errors.value_error(
          f'columns={", ".join(columns)}: are not the columns with which the '
          f'run began, {", ".join(row)}; give the same columns'
        )
    self.export(*earlier)

  def check_shown(self, shown: Mapping[str, Any]) -> None:
    """Raises an error unless all values are numbers in the program's columns.

    Raises:
      TypeError: a value is not a number.
      ValueError: a name is not a column that the program added.
    """
    check_names('shown', shown)
    for name, value in shown.items():
      if name not in self._columns:
        raise errors.value_error(
          f'shown={name}: is not a column of metrics.csv; give its name in '
          'RunOptions.columns, or give the number in metrics, which are private'
        )
      _checks.number(name, value, 'a column of metrics.csv has numbers')

  def row(self, cells: Mapping[str, Any]) -> Row:
    """Returns the row with these cells; other columns are empty."""
    row = {}
    for name in self._columns:
      value = cells.get(name, '')
      value = value.item() if hasattr(value, 'item') else value
      row[name] = repr(value) if isinstance(value, float) else str(value)
    return row

  def write(self, row: Row, measured: Mapping[str, str]) -> None:
    """Writes the row of a round, before the ledger gets the end of the round.

    Args:
      row: result of `row`.
      measured: {name: number, as text} of the numbers that the row lacks.
    """
    path = _path(self._directory, int(row['round']))
    path.parent.mkdir(mode=0o700, exist_ok=True)
    _files.write_json(path, {'row': row, 'measured': measured}, mode=0o600)

  def export(self, *new: Row) -> None:
    """Adds rows to `metrics.csv`, after the ledger has their digests.

    If a round finished, and was then burnt (given up), the new row replaces the
    row of the finished round.
    """
    self._rows.update({row['round']: row for row in new})
    text = _line(self._columns) + ''.join(
      _line(row.values()) for row in self._rows.values()
    )
    path = self._directory / run_json.METRICS_FILE
    _files.write(path, text.encode(), durable=False)


def check_names(argument: str, names: Iterable[str]) -> None:
  """Raises ValueError if a name is a column that the run itself writes.

  PRIVACY: The report names the numbers that the guarantee does not cover. It
  does not name the run's own columns, since they follow from the plan and from
  releases. A number of the program in such a column would not be named.
  Guard: run_metrics_test.test_column_of_the_run_is_refused_to_the_program.
  """
  for name in names:
    if name in _OWN:
      raise errors.value_error(
        f'{argument}={name}: is a column that the run itself writes; use '
        'another name'
      )


def digest(row: Row) -> bytes:
  """Returns the SHA-256 of a row and its header, for the ledger."""
  return _digest(_line(row), _line(row.values()))


def rows(directory: pathlib.Path, attempts: ledger_lib.Attempts) -> list[Row]:
  """Returns the rows of the rounds after the last missing row, ascending.

  Args and Raises: see `table`.
  """
  return [row for row, _ in _contents(directory, attempts)]


def table(
  directory: pathlib.Path, attempts: ledger_lib.Attempts
) -> list[dict[str, float]]:
  """Returns all numbers of each round; some of them have no noise.

  Args:
    directory: folder of the run.
    attempts: attempts at each round in the ledger.

  Raises:
    ValueError: a row differs from its digest in the ledger.
  """
  contents = _contents(directory, attempts)
  return [numbers({**row, **measured}) for row, measured in contents]


def numbers(row: Row) -> dict[str, float]:
  """Returns {name: number} of the cells of a row that have a number."""
  return {name: float(cell) for name, cell in row.items() if cell}


def export_table(
  directory: pathlib.Path, attempts: ledger_lib.Attempts
) -> None:
  """Writes `table` to `private/metrics.csv`; see `rows` for the arguments."""
  content = table(directory, attempts)
  columns = dict.fromkeys(name for row in content for name in row)
  lines = [_line(columns)] + [
    _line(f'{row[name]:.17g}' if name in row else '' for name in columns)
    for row in content
  ]
  path = directory / run_json.TABLE
  _files.write(path, ''.join(lines).encode(), mode=0o600, durable=False)


def _contents(
  directory: pathlib.Path, attempts: ledger_lib.Attempts
) -> list[tuple[Row, Row]]:
  """Returns the row of each round, and the other numbers of the round."""
  result: list[tuple[Row, Row]] = []
  for t, tried in attempts.items():
    if tried[-1].row is None:
      continue
    path = _path(directory, t)
    if not path.exists():
      result = []
      continue
    content = _files.read_json(path)
    row = content.get('row') if isinstance(content, dict) else None
    if not isinstance(row, dict) or digest(row) != tried[-1].row:
      raise errors.value_error(
        f'metrics={path}: has a row of round {t} that differs from its digest '
        f'in the ledger; {_REMEDY}'
      )
    result.append((row, content.get('measured') or {}))
  return result


def exported(directory: pathlib.Path) -> list[Row]:
  """Returns the rows of `metrics.csv`, for a table; [] without the file."""
  path = directory / run_json.METRICS_FILE
  if not path.exists():
    return []
  return list(csv.DictReader(path.read_text().splitlines()))


def accuracy(rows: Iterable[Row]) -> list[tuple[int, float]]:
  """Returns (round + 1, validation accuracy) of each row with an accuracy."""
  return [
    (int(row['round']) + 1, float(row['accuracy']))
    for row in rows
    if row.get('accuracy')
  ]


def clips(attempts: ledger_lib.Attempts) -> list[tuple[int, float]]:
  """Returns (round + 1, released clip) of each round that released a clip."""
  return [
    (t + 1, float(tried[-1].released[RELEASED[0]]))
    for t, tried in attempts.items()
    if RELEASED[0] in tried[-1].released
  ]


def check(
  directory: pathlib.Path,
  attempts: ledger_lib.Attempts,
  start: float = math.inf,
) -> None:
  """Raises ValueError if the ledger lacks a row, or `metrics.csv` differs.

  Args:
    directory: folder of the run. Without `metrics.csv`, no row is compared.
    attempts: attempts at each round in the ledger.
    start: index of the first round whose row is not compared, since the round
      may run again.
  """
  rounds = [
    int(path.stem) for path in _path(directory, 0).parent.glob('*.json')
  ]
  path = directory / run_json.METRICS_FILE
  text = _files.read(path).decode(errors='replace') if path.exists() else ''
  header, *lines = text.splitlines(keepends=True) or ['']
  numbers = [re.match('([0-9]{1,9})[,\n]', line) for line in lines]
  rounds += [int(number[1]) for number in numbers if number]
  for t in rounds:
    # PRIVACY: a round that the ledger has lost would run again, and could add
    # the same noise to a second, different sum. If the ledger lacks the round
    # of a row, the ledger was rolled back. This is an error.
    # Guards: folder_test.test_ledger_that_was_rolled_back_is_refused and
    # consistency_test.test_ledger_that_lacks_what_metrics_show_is_refused.
    if t not in attempts:
      raise errors.value_error(
        f'ledger={directory / run_json.LEDGER_FILE}: lacks round {t}, which '
        'has a row of metrics: the ledger is of an earlier moment; restore the '
        'latest files, all of the same moment'
      )
  last = None
  for i, (line, number) in enumerate(zip(lines, numbers), 2):
    t = int(number[1]) if number else -1
    if t >= start:
      break
    if (
      last not in (None, t - 1)
      or t < 0
      or attempts[t][-1].row != _digest(header, line)
    ):
      raise errors.value_error(
        f'metrics={path}: differs from the ledger in line {i}; {_REMEDY}'
      )
    last = t
  if last not in (None, max(attempts, default=None)) and counts.ended(attempts):
    raise errors.value_error(
      f'metrics={path}: ends with round {last}, and the run ended with round '
      f'{max(attempts)}; {_REMEDY}'
    )


def _path(directory: pathlib.Path, t: int) -> pathlib.Path:
  return directory / run_json.PRIVATE / 'metrics' / f'{t:08d}.json'


def _digest(header: str, line: str) -> bytes:
  return hashlib.sha256((header + line).encode()).digest()


def _line(cells: Iterable[str]) -> str:
  stream = io.StringIO()
  csv.writer(stream, lineterminator='\n').writerow(cells)
  return stream.getvalue()
