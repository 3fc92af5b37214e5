"""Writes the numbers of the rounds of a run for TensorBoard.

The files have the format of TensorFlow's summaries. TensorBoard's own package
writes them, so TensorFlow is not needed.
"""

from __future__ import annotations

import os
import pathlib
import time
from collections.abc import Mapping

from tff_bandmf import errors


class Writer:
  """Appends events to a new file in a folder."""

  def __init__(self, directory: pathlib.Path):
    """Makes the folder and the file.

    Args:
      directory: folder to which each start of a program adds a file.

    Raises:
      ImportError: TensorBoard is not installed.
    """
    with errors.importing('run.tensorboard()'):
      from tensorboard.compat.proto import event_pb2
      from tensorboard.summary.writer import record_writer
    self._new_event = event_pb2.Event
    # PRIVACY: the metrics of a learning process have no noise, and the times of
    # events show the sizes of sampled cohorts. Only the owner can read the
    # files.
    # Guard: run_metrics_test.test_tensorboard_gets_the_numbers_of_each_round.
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = directory / f'events.out.tfevents.{time.time_ns()}.{os.getpid()}'
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    self._file = open(os.open(path, flags, 0o600), 'wb')
    self._records = record_writer.RecordWriter(self._file)
    self._write(file_version='brain.Event:2')

  def write(self, t: int, numbers: Mapping[str, float]) -> None:
    """Writes the numbers of round t, by name."""
    values = [
      {'tag': name, 'simple_value': value} for name, value in numbers.items()
    ]
    self._write(step=t, summary={'value': values})

  def _write(self, **fields: object) -> None:
    event = self._new_event(wall_time=time.time(), **fields)
    self._records.write(event.SerializeToString())
    self._records.flush()

  def close(self) -> None:
    self._file.close()
