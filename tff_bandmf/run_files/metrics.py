"""The file `metrics.csv` of a run, with one row for each round."""

from __future__ import annotations

import csv
import hashlib
import io
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Optional, Union

from tff_bandmf import _files, errors
from tff_bandmf.run_files import run_json

if TYPE_CHECKING:
  from tff_bandmf import ledger as ledger_lib

# Columns of the noisy values that a round with an adaptive clip releases in
# addition to the model.
RELEASED = ('l2_norm_clip', 'fraction')
_REMEDY = (
  'restore the file; if the clip of the run is constant, you can instead '
  'remove the file and continue'
)


# A row: {name of the column: cell}.
_Row = Mapping[str, Union[float, str]]


class Metrics:
  """Writes `metrics.csv`; the ledger has the digest of every row."""

  def __init__(
    self,
    directory: pathlib.Path,
    ledger: ledger_lib.Ledger,
    columns: Sequence[str],
    start: Optional[int],
  ):
    """Rewrites the file with only the rows of the rounds below `start`.

    Args:
      directory: folder of the run.
      ledger: ledger of the run.
      columns: names of the columns, 'round' first.
      start: index of the first round whose row this object will write; None if
        the run has ended, and the file stays as it is.

    Raises:
      ValueError: a row differs from its digest in the ledger, or the ledger
        lacks the round of a row.
      OSError: the file cannot be written. The message is one line, and names
        the file.
    """
    self._path = directory / run_json.METRICS_FILE
    self._columns = columns
    self._lines = [_line(columns)]
    self._round = -1
    _, lines, _ = _read(directory)
    # One read of the ledger is as fast as a query for each of a few rows.
    all_attempts = ledger.all_attempts() if lines else {}
    for t, line in lines.items():
      attempts = all_attempts.get(t)
      # PRIVACY: a round that the ledger has lost would run again, and could add
      # the same noise to a second, different sum. If the ledger lacks the round
      # of a row, the ledger was rolled back. This is an error.
      # Guard: folder_test.test_ledger_that_was_rolled_back_is_refused.
      if not attempts:
        raise errors.value_error(
          f'ledger={directory / run_json.LEDGER_FILE}: lacks round {t}, which '
          f'{run_json.METRICS_FILE} has: the ledger is of an earlier moment; '
          'restore the latest files, all of the same moment'
        )
      if start is None or t < start:
        if attempts[-1].row != row_digest(self._lines[0], line):
          raise errors.value_error(
            f'metrics={self._path}: has a row of round {t} that differs from '
            f'its digest in the ledger; {_REMEDY}'
          )
        self._lines.append(line)
    if start is not None:
      self._write()

  def rows(self) -> list[dict[str, str]]:
    """Returns each row as {column: text}, without reading the file."""
    return list(csv.DictReader(self._lines))

  def digest(self, row: _Row) -> bytes:
    """Returns the SHA-256 of a row; see `row_digest`."""
    return row_digest(self._lines[0], self._line(row))

  def write(self, row: _Row) -> None:
    """Writes the row of a round that ended; the ledger has the row's digest."""
    t = int(row['round'])
    if self._round == t:
      # The round finished and got a row, and was then burnt (given up). The new
      # row replaces the old row.
      self._lines.pop()
    self._round = t
    self._lines.append(self._line(row))
    self._write()

  def _line(self, row: _Row) -> str:
    return _line([row.get(name, '') for name in self._columns])

  def _write(self) -> None:
    _files.write(self._path, ''.join(self._lines).encode())


def _line(cells: Iterable[Union[float, str]]) -> str:
  stream = io.StringIO()
  csv.writer(stream, lineterminator='\n').writerow(cells)
  return stream.getvalue()


def rows(directory: pathlib.Path) -> list[dict[str, str]]:
  """Returns each row of `metrics.csv` as {column: text}; [] without the file.

  Raises:
    ValueError: a row has no round, the round of another row, or another number
      of cells than the header.
  """
  _, _, rows = _read(directory)
  return rows


def accuracy(rows: list[dict[str, str]]) -> list[tuple[int, float]]:
  """Returns (round + 1, validation accuracy) of each row with an accuracy."""
  return _column(rows, 'accuracy')


def clips(rows: list[dict[str, str]]) -> list[tuple[int, float]]:
  """Returns (round + 1, released clip) of each row with a clip."""
  return _column(rows, RELEASED[0])


def _column(rows: list[dict[str, str]], name: str) -> list[tuple[int, float]]:
  return [
    (int(row['round']) + 1, float(row[name])) for row in rows if row.get(name)
  ]


def digests(directory: pathlib.Path) -> dict[int, bytes]:
  """Returns {round: SHA-256 of its row} for the rows of `metrics.csv`.

  Raises:
    ValueError: a row has no round, the round of another row, or another number
      of cells than the header.
  """
  header, lines, _ = _read(directory)
  return {t: row_digest(header, line) for t, line in lines.items()}


def row_digest(header: str, line: str) -> bytes:
  """Returns the SHA-256 of the header and a row, which the ledger records.

  Args:
    header: first line of the file, with the newline.
    line: line of the row, with the newline.
  """
  return hashlib.sha256((header + line).encode()).digest()


def _read(
  directory: pathlib.Path,
) -> tuple[str, dict[int, str], list[dict[str, str]]]:
  """Returns the first line, {round: line}, and the result of `rows`."""
  path = directory / run_json.METRICS_FILE
  if not path.exists():
    return '', {}, []
  try:
    all_lines = _files.read(path).decode().splitlines(keepends=True)
    header, row_lines = ''.join(all_lines[:1]), all_lines[1:]
    rows = list(csv.DictReader(all_lines, strict=True))
    for row in rows:
      int(row['round']), int(row.get('clients') or 0)
      for name in ('accuracy', *RELEASED):
        float(row.get(name) or 0)
      if None in row or None in row.values():
        raise ValueError('a row of another length')
    if len(rows) != len(row_lines):
      raise ValueError('a row of more than a line')
    lines = {int(row['round']): line for row, line in zip(rows, row_lines)}
    if len(lines) < len(rows):
      raise ValueError('a round twice')
  except (ValueError, TypeError, KeyError, csv.Error) as error:
    raise _damaged(directory) from error
  return header, lines, rows


def _damaged(directory: pathlib.Path) -> ValueError:
  return errors.value_error(
    f'metrics={directory / run_json.METRICS_FILE}: is damaged; {_REMEDY}'
  )
