"""The directory of a run: what is in it, and whose it is.

  run.json        the experiment, the claim, what is outside it, versions
  strategy.json   C
  ledger.sqlite   who took part in which round, as keyed hashes
  metrics.csv     a row a round
  tensorboard/    the same numbers
  result.json     test accuracy; written last
  private/        mode 0700: the noise key, the ledger's key and the
                  checkpoints, whose state may hold noise; never publish it
"""

from __future__ import annotations

import csv
import json
import os
import pathlib
from typing import Any

import tensorflow as tf

from tff_bandmf import errors, noise, program, report, strategies

_METRICS = ('round', 'seconds', 'clients', 'non_finite', 'accuracy', 'loss')


def refuse_existing(directory: pathlib.Path) -> None:
  """Raises ValueError if the directory holds a run, or what is left of one."""
  remains = [
      path for path in (
          directory / report.RUN_FILE, directory / report.LEDGER_FILE,
          directory / 'private' / 'noise.key',
          directory / 'private' / 'checkpoints')
      if path.exists()]
  if remains:
    raise ValueError(
        errors.invalid(
            'output_dir', directory, f'holds a run ({remains[0].name})',
            'continue it with --resume, or choose another directory'))


def open_directory(
    directory: pathlib.Path,
    description: dict[str, Any],
    strategy: strategies.Strategy,
) -> None:
  """Makes the run directory, or checks that it holds this very run."""
  path = directory / report.RUN_FILE
  if path.exists():
    if report.read_run(directory) != json.loads(json.dumps(description)):
      raise ValueError(
          errors.invalid(
              'output_dir', directory,
              'holds a run with another configuration, corpus or version',
              'resume with what run.json says, or choose another directory'))
    return
  refuse_existing(directory)
  (directory / 'private').mkdir(mode=0o700, parents=True, exist_ok=True)
  strategies.save(strategy, directory / report.STRATEGY_FILE)
  # Last: with it the directory holds a run.
  write_json(path, description)


def noise_key(
    directory: pathlib.Path, description: dict[str, Any]
) -> noise.Key:
  """Returns the noise key of the run, bound to the run by its ledger.

  PRIVACY: rounds that were started can only be replayed with the key, and for
  the run, that they were started with. Guard:
  training_test.test_key_of_another_run_is_refused.
  """
  path = directory / 'private' / 'noise.key'
  with program.Ledger(directory / report.LEDGER_FILE) as ledger:
    if ledger.observed().rounds and not path.exists():
      raise ValueError(
          errors.invalid(
              'noise.key', path, 'is gone, and rounds were already started',
              'without their noise they cannot be replayed: start a new run'))
    key = noise.Key.load_or_create(path)
    ledger.bind(key.identify(json.dumps(description, sort_keys=True).encode()))
  return key


def write_json(path: pathlib.Path, content: Any) -> None:
  """Writes a JSON file, complete or not at all."""
  temporary = path.with_suffix('.part')
  with open(temporary, 'w') as stream:
    json.dump(content, stream, indent=1)
    stream.write('\n')
    stream.flush()
    os.fsync(stream.fileno())
  os.replace(temporary, path)


class Metrics:
  """Rows for `metrics.csv` and TensorBoard; continues a file at a round."""

  def __init__(self, directory: pathlib.Path, start: int):
    path = directory / report.METRICS_FILE
    kept = []
    if path.exists():
      with open(path, newline='') as stream:
        kept = [row for row in csv.DictReader(stream)
                if int(row['round']) < start]
    temporary = path.with_suffix('.part')
    self._stream = open(temporary, 'w', newline='')
    self._csv = csv.DictWriter(self._stream, _METRICS)
    self._csv.writeheader()
    self._csv.writerows(kept)
    self._stream.flush()
    os.replace(temporary, path)
    self._tensorboard = tf.summary.create_file_writer(
        str(directory / 'tensorboard'))

  def __enter__(self) -> Metrics:
    return self

  def __exit__(self, *exc_info) -> None:
    self._stream.close()
    self._tensorboard.close()

  def write(self, row: dict[str, Any]) -> None:
    self._csv.writerow(row)
    self._stream.flush()
    with self._tensorboard.as_default(step=row['round']):
      for name in _METRICS[1:]:
        if name in row:
          tf.summary.scalar(name, row[name])
