"""The columns of `metrics.csv` that experiments add, and TensorBoard."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping

import tensorflow as tf

# Columns that `metrics.csv` has in addition to the columns of `tff_bandmf.Run`.
COLUMNS = (
  'seconds',
  'non_finite',
  'accuracy',
  'accuracy_of_tff',
  'accuracy_with_end_and_unknown',
  'loss',
)


class TensorBoard:
  """Writes the metrics of each round to the folder `tensorboard` of a run."""

  def __init__(self, directory: pathlib.Path):
    self._writer = tf.summary.create_file_writer(str(directory / 'tensorboard'))

  def __enter__(self) -> TensorBoard:
    return self

  def __exit__(self, *exc_info) -> None:
    self._writer.close()

  def write(self, round_index: int, row: Mapping[str, float]) -> None:
    """Writes the metrics of a round, a map from name to number."""
    with self._writer.as_default(step=round_index):
      for name, value in row.items():
        tf.summary.scalar(name, value)
