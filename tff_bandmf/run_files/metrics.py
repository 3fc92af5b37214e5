"""The metrics of a run, a row a round, in `metrics.csv`."""

from __future__ import annotations

import csv
import hashlib
import io
import pathlib
from collections.abc import Sequence
from typing import Any

from tff_bandmf import _files, errors
from tff_bandmf.ledger import ledger as ledger_lib
from tff_bandmf.run_files import run_json

# What a round of an adaptive clip releases beside the model, with noise.
RELEASED = ('l2_norm_clip', 'fraction')
_REMEDY = (
  'restore the file; only a run whose clip is constant can do without it, and '
  'goes on when it is removed'
)


class Metrics:
  """Writes rows whose digests the ledger has; continues a file at a round."""

  def __init__(
    self,
    directory: pathlib.Path,
    ledger: ledger_lib.Ledger,
    columns: Sequence[str],
    start: int,
  ):
    """Writes the file anew, without the rows from a round on.

    Args:
      directory: of the run.
      ledger: of the run.
      columns: names; the first is 'round'.
      start: the first round to write.

    Raises:
      ValueError: a row before that is not the one that was written, or the
        ledger lacks the round of a row.
      OSError: the file cannot be written; one line that names it.
    """
    self._path = directory / run_json.METRICS_FILE
    self._columns = columns
    self._lines = [_line(columns)]
    self._round = -1
    _, lines, _ = _read(directory)
    for t, line in lines.items():
      attempts = ledger.attempts(t)
      # PRIVACY: rounds that ran and are forgotten would run with other sums.
      # Guard: folder_test.test_ledger_that_was_rolled_back_is_refused.
      if not attempts:
        raise errors.value_error(
          'ledger',
          directory / run_json.LEDGER_FILE,
          f'lacks round {t}, which {run_json.METRICS_FILE} has',
          'it is that of an earlier moment: restore all files of one '
          'time, the latest',
        )
      if t < start:
        if attempts[-1].row != row_digest(self._lines[0], line):
          raise errors.value_error(
            'metrics',
            self._path,
            f'has another row of round {t} than the ledger',
            _REMEDY,
          )
        self._lines.append(line)
    self._write()

  def rows(self) -> list[dict[str, str]]:
    """Returns the rows, column to text, whatever became of the file."""
    return list(csv.DictReader(self._lines))

  def digest(self, row: dict[str, Any]) -> bytes:
    """Returns what the ledger has of a row; see `row_digest`."""
    return row_digest(self._lines[0], self._line(row))

  def write(self, row: dict[str, Any]) -> None:
    """Writes the row of a round that ended; the ledger has its digest."""
    if self._round == row['round']:
      # It was about to be finished, and is burnt.
      self._lines.pop()
    self._round = row['round']
    self._lines.append(self._line(row))
    self._write()

  def _line(self, row: dict[str, Any]) -> str:
    return _line([row.get(name, '') for name in self._columns])

  def _write(self) -> None:
    _files.write(self._path, ''.join(self._lines).encode())


def _line(cells) -> str:
  stream = io.StringIO()
  csv.writer(stream, lineterminator='\n').writerow(cells)
  return stream.getvalue()


def rows(directory: pathlib.Path) -> list[dict[str, str]]:
  """Returns the rows of `metrics.csv`, column to text; [] without the file.

  Raises:
    ValueError: a row has no round, one that is there twice, or other columns
      than the first.
  """
  _, _, found = _read(directory)
  return found


def accuracy(rows: list[dict[str, str]]) -> list[tuple[int, float]]:
  """Returns (rounds done, validation accuracy) wherever it was measured."""
  return _column(rows, 'accuracy')


def clips(rows: list[dict[str, str]]) -> list[tuple[int, float]]:
  """Returns (rounds done, the clip then) wherever one was released."""
  return _column(rows, RELEASED[0])


def _column(rows: list[dict[str, str]], name: str) -> list[tuple[int, float]]:
  return [
    (int(row['round']) + 1, float(row[name])) for row in rows if row.get(name)
  ]


def digests(directory: pathlib.Path) -> dict[int, bytes]:
  """Returns the digest of every row of `metrics.csv`: round to SHA-256.

  Raises:
    ValueError: as `rows`.
  """
  header, lines, _ = _read(directory)
  return {t: row_digest(header, line) for t, line in lines.items()}


def row_digest(header: str, line: str) -> bytes:
  """Returns what the ledger keeps of a row of metrics.

  Args:
    header: first line of the file.
    line: of the row, with its end.
  """
  return hashlib.sha256((header + line).encode()).digest()


def _read(
  directory: pathlib.Path,
) -> tuple[str, dict[int, str], list[dict[str, str]]]:
  """Returns the first line, and of the others lines by round and rows."""
  path = directory / run_json.METRICS_FILE
  if not path.exists():
    return '', {}, []
  try:
    every = _files.read(path).decode().splitlines(keepends=True)
    header, others = ''.join(every[:1]), every[1:]
    rows = list(csv.DictReader(every, strict=True))
    for row in rows:
      int(row['round']), int(row.get('clients') or 0)
      for name in ('accuracy', *RELEASED):
        float(row.get(name) or 0)
      if None in row or None in row.values():
        raise ValueError('a row of another length')
    if len(rows) != len(others):
      raise ValueError('a row of more than a line')
    lines = {int(row['round']): line for row, line in zip(rows, others)}
    if len(lines) < len(rows):
      raise ValueError('a round twice')
  except (ValueError, TypeError, KeyError, csv.Error) as error:
    raise _damaged(directory) from error
  return header, lines, rows


def _damaged(directory: pathlib.Path) -> ValueError:
  return errors.value_error(
    'metrics',
    directory / run_json.METRICS_FILE,
    'is damaged',
    _REMEDY,
  )
