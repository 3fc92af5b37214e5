"""The metrics of a run, a row a round: in `metrics.csv` and in TensorBoard."""

from __future__ import annotations

import pathlib
from typing import Any

import tensorflow as tf

from tff_bandmf import program
from tff_bandmf.program import metrics

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
  """Writes rows; see `program.metrics`."""

  def __init__(
    self,
    directory: pathlib.Path,
    ledger: program.Ledger,
    start: int,
    adaptive_clip: bool,
  ):
    self._columns = (*_COLUMNS, *(metrics.RELEASED if adaptive_clip else ()))
    self._rows = metrics.Metrics(directory, ledger, self._columns, start)
    self._tensorboard = tf.summary.create_file_writer(
      str(directory / 'tensorboard')
    )

  def __enter__(self) -> Metrics:
    return self

  def __exit__(self, *exc_info) -> None:
    self._tensorboard.close()

  def write(self, row: dict[str, Any]) -> None:
    """Writes the row of a round that ended; column to number."""
    self._rows.write(row)
    with self._tensorboard.as_default(step=row['round']):
      for name in self._columns[1:]:
        if name in row:
          tf.summary.scalar(name, row[name])
