"""The metrics of a run, a row a round: in `metrics.csv` and in TensorBoard."""

from __future__ import annotations

import csv
import io
import os
import pathlib
from typing import Any

import tensorflow as tf

from tff_bandmf import _files, errors, program, report
from tff_bandmf.report import files

_COLUMNS = (
  'round',
  'seconds',
  'clients',
  'non_finite',
  'accuracy',
  'accuracy_with_end',
  'accuracy_with_end_and_unknown',
  'loss',
)


class Metrics:
  """Writes rows whose digests the ledger has; continues a file at a round."""

  def __init__(
    self, directory: pathlib.Path, ledger: program.Ledger, start: int
  ):
    """Opens the file, without the rows from a round on.

    Args:
      directory: of the run.
      ledger: of the run, which gets the digest of every row.
      start: the first round to write.

    Raises:
      ValueError: a row before that is not the one that was written, or the
        ledger lacks the round of a row.
      OSError: the file cannot be written; one line that names it.
    """
    self._path = directory / report.METRICS_FILE
    self._ledger = ledger
    self._header = _line(_COLUMNS)
    kept = [self._header]
    for t, line in files.metrics_lines(directory).items():
      attempts = ledger.attempts(t)
      # PRIVACY: rounds that ran and are forgotten would run with other sums.
      # Guard: run_directory_test.test_ledger_that_was_rolled_back_is_refused.
      if not attempts:
        raise ValueError(
          errors.invalid(
            'ledger',
            directory / report.LEDGER_FILE,
            f'lacks round {t}, which {report.METRICS_FILE} has',
            'it is that of an earlier moment: restore all files of one '
            'time, the latest',
          )
        )
      if t < start:
        if attempts[-1].row != files.row_digest(self._header, line):
          raise ValueError(
            errors.invalid(
              'metrics',
              self._path,
              f'has another row of round {t} than the ledger',
              'restore the file, or remove it',
            )
          )
        kept.append(line)
    _files.write(self._path, *(line.encode() for line in kept))
    self._stream = open(self._path, 'a', newline='')
    self._tensorboard = tf.summary.create_file_writer(
      str(directory / 'tensorboard')
    )

  def __enter__(self) -> Metrics:
    return self

  def __exit__(self, *exc_info) -> None:
    try:
      # What is left of a row that could not be written fails here again.
      with _files.naming(self._path, 'written'):
        self._stream.close()
    finally:
      self._tensorboard.close()

  def write(self, row: dict[str, Any]) -> None:
    """Writes the row of a round that ended; column to number."""
    line = _line([row.get(name, '') for name in _COLUMNS])
    # PRIVACY: before the row, so that the ledger lacks nothing that the file
    # shows. Guard: evidence_test.test_flipped_bit_of_metrics_is_refused.
    self._ledger.record_row(row['round'], files.row_digest(self._header, line))
    with _files.naming(self._path, 'written'):
      self._stream.write(line)
      self._stream.flush()
      os.fsync(self._stream.fileno())
    with self._tensorboard.as_default(step=row['round']):
      for name in _COLUMNS[1:]:
        if name in row:
          tf.summary.scalar(name, row[name])


def _line(cells) -> str:
  stream = io.StringIO()
  csv.writer(stream, lineterminator='\n').writerow(cells)
  return stream.getvalue()
