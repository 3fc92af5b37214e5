"""The directory of a run: what is in it, and whose it is.

  run.json        the experiment, the claim, what is outside it, versions
  strategy.json   C
  vocabulary.txt  the words of the model, in the order of their ids
  ledger.sqlite   who took part in which round, as keyed hashes, and the digest
                  of what each round released
  metrics.csv     a row a round
  tensorboard/    the same numbers
  result.json     test accuracy; written last
  private/        mode 0700: the noise key, the ledger's key and the
                  checkpoints, whose state may hold noise; never publish it

One process at a time has the directory; the lock in private/ says which.
"""

from __future__ import annotations

import contextlib
import csv
import json
import os
import pathlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from simulations import checkpoints
from simulations import description as description_lib
from tff_bandmf import (
    errors,
    noise,
    participation,
    program,
    report,
    strategies,
)
from tff_bandmf.noise import private_files

_METRICS = (
    'round', 'seconds', 'clients', 'non_finite', 'accuracy',
    'accuracy_with_end', 'accuracy_with_end_and_unknown', 'loss')


@contextlib.contextmanager
def locked(directory: pathlib.Path) -> Iterator[None]:
  """Keeps other processes out of the run directory for a `with` block.

  PRIVACY: two processes would each run the rounds of one key. Guard:
  training_test.test_directory_has_one_process_at_a_time.

  Raises:
    ValueError: another process has it.
  """
  private = directory / 'private'
  private.mkdir(mode=0o700, parents=True, exist_ok=True)
  handle = private_files.lock(private)
  if handle is None:
    raise ValueError(
        errors.invalid(
            'output_dir', directory, 'is in use by another process',
            'wait for it to end, or choose another directory'))
  try:
    yield
  finally:
    os.close(handle)


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
    planned: participation.Participation,
) -> None:
  """Makes the run directory, or checks that it holds this very run.

  Raises:
    ValueError: it holds another run, or what is left of one.
  """
  path = directory / report.RUN_FILE
  if path.exists():
    description_lib.check_same(
        report.read_run(directory), description,
        (directory / report.RESULT_FILE).exists())
    return
  refuse_existing(directory)
  strategies.save(
      strategy, directory / report.STRATEGY_FILE, participation=planned)
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
    ledger.bind(
        run=key.identify(json.dumps(description, sort_keys=True).encode()),
        noise_key=key.identify(b''))
  return key


def check_checkpoint(
    directory: pathlib.Path, round_index: int, state: Any
) -> None:
  """Raises ValueError unless a state is what the ledger's rounds led to.

  PRIVACY: without the ledger of the rounds before, nobody knows who took part;
  with another state, their noise would meet other sums. Guard:
  training_test.test_checkpoint_that_contradicts_the_ledger_is_refused.

  Args:
    directory: of the run.
    round_index: that the state is of the beginning of, above 0.
    state: of the learning process.
  """
  with program.Ledger(directory / report.LEDGER_FILE) as ledger:
    attempts = ledger.attempts(round_index - 1)
  if not attempts or attempts[-1].result not in (
      None, checkpoints.digest(state)):
    raise ValueError(
        errors.invalid(
            'checkpoint', round_index,
            'is not what the rounds in the ledger led to',
            'restore the files of this run, all of one time'))


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
