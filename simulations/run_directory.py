"""The directory of a run: what is in it, and whose it is.

  run.json        the experiment, the claim, what is outside it, versions, and
                  which run and which noise key it is of
  strategy.json   C
  vocabulary.txt  the words of the model, in the order of their ids
  ledger.sqlite   who took part in which round, as keyed hashes, and the digests
                  of what each round released and of its row of metrics
  metrics.csv     a row a round
  tensorboard/    the same numbers
  result.json     test accuracy, and the head of the ledger's chain; written
                  last
  private/        mode 0700, never publish it:
    noise.key       the key of the noise
    place.json      which host and file system the key was made on
    ledger.key      the key of the hashes
    checkpoints/    states, which may hold noise

One process at a time has the directory; the lock in private/ says which. A copy
is not taken for the original: the key of a copy is another file. Of two whole
copies on two hosts that are both said to have moved, nobody can tell which is
the run.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import socket
from collections.abc import Iterator
from typing import Any

from simulations import checkpoints
from simulations import description as description_lib
from tff_bandmf import (
  _files,
  errors,
  noise,
  participation,
  program,
  report,
  strategies,
)

_NOT_OTHERS = 0o022
_MACHINE = pathlib.Path('/etc/machine-id')


@contextlib.contextmanager
def locked(directory: pathlib.Path) -> Iterator[None]:
  """Keeps other processes out of the run directory for a `with` block.

  What is made in the block nobody but its owner can write, and what a killed
  process left half written is gone.

  PRIVACY: two processes would each run the rounds of one key. Guard:
  training_test.test_directory_has_one_process_at_a_time.

  Raises:
    ValueError: another process has it.
  """
  private = directory / 'private'
  umask = os.umask(_NOT_OTHERS)
  os.umask(umask | _NOT_OTHERS)
  try:
    private.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle = _files.lock(private / 'lock')
    if handle is None:
      raise ValueError(
        errors.invalid(
          'output_dir',
          directory,
          'is in use by another process',
          'wait for it to end, or choose another directory',
        )
      )
    try:
      for folder in directory, private, private / 'checkpoints':
        for path in folder.glob(f'*{_files.PART}'):
          _files.wipe(path)
      yield
    finally:
      os.close(handle)
  finally:
    os.umask(umask)


def refuse_existing(directory: pathlib.Path) -> None:
  """Raises ValueError if the directory holds a run, or what is left of one."""
  remains = [
    path
    for path in (
      directory / report.RUN_FILE,
      directory / report.LEDGER_FILE,
      _key_path(directory),
      directory / 'private' / 'checkpoints',
    )
    if path.exists()
  ]
  if remains:
    raise ValueError(
      errors.invalid(
        'output_dir',
        directory,
        f'holds a run ({remains[0].name})',
        'continue it with --resume, or choose another directory',
      )
    )


def open_directory(
  directory: pathlib.Path,
  description: dict[str, Any],
  strategy: strategies.Strategy,
  planned: participation.Participation,
  moved: bool = False,
) -> noise.Key:
  """Returns the noise key of a run, whose directory is made if it is new.

  PRIVACY: a key serves the run that it was drawn for, in the place where it was
  drawn. Guards: training_test.test_key_of_another_run_is_refused,
  run_directory_test.test_copy_without_its_ledger_is_refused,
  test_edited_copy_is_refused and test_copy_is_refused_until_it_is_said_to_move.

  Args:
    directory: of the run; this process has its lock.
    description: of the run; see `description.describe`.
    strategy: C.
    planned: the schema of participation.
    moved: whether the directory was moved or restored, and is the only one.

  Raises:
    ValueError: it holds another run, what is left of one, or a copy.
  """
  if not (directory / report.RUN_FILE).exists():
    refuse_existing(directory)
    # A key that has served nothing yet, of a start that was killed, is as good.
    key = noise.Key.load_or_create(new_key_path(directory))
    strategies.save(
      strategy, directory / report.STRATEGY_FILE, participation=planned
    )
    # With it the directory holds a run; from the next step on, its key serves.
    _files.write_json(
      directory / report.RUN_FILE,
      {**description, **_identity(key, description)},
    )
  check_description(directory, description)
  return _key(directory, description, moved)


def check_description(
  directory: pathlib.Path, description: dict[str, Any]
) -> None:
  """Raises ValueError unless a directory holds the run that is described."""
  there = report.read_run(directory)
  description_lib.check_same(
    {
      name: value
      for name, value in there.items()
      if name not in report.IDENTITY_KEYS
    },
    description,
    (directory / report.RESULT_FILE).exists(),
  )


def _key(
  directory: pathlib.Path, description: dict[str, Any], moved: bool
) -> noise.Key:
  """Returns the key of the run that is in the directory."""
  path, fresh = _key_path(directory), new_key_path(directory)
  place = directory / 'private' / 'place.json'
  begins = fresh.exists() and not (path.exists() or place.exists())
  if not (begins or path.exists()):
    raise ValueError(
      errors.invalid(
        'noise.key',
        path,
        'is gone, and the run was already started',
        'without its noise rounds cannot be replayed: restore it, or start '
        'a new run',
      )
    )
  key = noise.Key.load_or_create(fresh if begins else path)
  identity = _identity(key, description)
  run = report.read_run(directory)
  if any(run[name] != value for name, value in identity.items()):
    raise ValueError(
      errors.invalid(
        'noise.key',
        path,
        f'is that of another run than {report.RUN_FILE} '
        'says, or that file was edited',
        'restore the files of this run, or start a new one',
      )
    )
  # A key that serves is never without its ledger: what took part would be
  # forgotten.
  with program.Ledger(directory / report.LEDGER_FILE, create=begins) as ledger:
    rounds = ledger.all_attempts()
    if not begins and ledger.bound() == (None, None):
      raise ValueError(
        errors.invalid(
          'ledger',
          directory / report.LEDGER_FILE,
          'is not the one that the key was used with',
          'restore the files of this run, or start a new one',
        )
      )
    ledger.bind(
      run=int(identity[report.RUN_ID], 16),
      noise_key=int(identity[report.NOISE_KEY_ID], 16),
    )
  if begins:
    os.rename(fresh, path)
  if moved or (not rounds and not place.exists()):
    _files.write_json(place, _place(path), mode=0o600)
  # PRIVACY: two directories with one key would each go on alone. Guard:
  # run_directory_test.test_copy_is_refused_until_it_is_said_to_move.
  elif not place.exists() or _files.read_json(place) != _place(path):
    raise ValueError(
      errors.invalid(
        'output_dir',
        directory,
        'is a copy, or was moved: its key lies in another place',
        'go on in the original; if there is none any more, say so with '
        '--moved (moved=True)',
      )
    )
  return key


def _identity(key: noise.Key, description: dict[str, Any]) -> dict[str, str]:
  """Returns what names the run and its key in `run.json`; one-way."""
  content = json.dumps(description, sort_keys=True).encode()
  return {
    # PRIVACY: whoever edits the file cannot make the one that belongs to it.
    # Guard: run_directory_test.test_edited_copy_is_refused.
    report.RUN_ID: f'{key.identify(content):016x}',
    report.NOISE_KEY_ID: f'{key.identify(b""):016x}',
  }


def _place(path: pathlib.Path) -> dict[str, Any]:
  """Returns where a file is: a copy of it is somewhere else."""
  found = path.stat()
  host = _MACHINE.read_text().strip() if _MACHINE.exists() else ''
  return {
    'host': host or socket.gethostname(),
    'device': found.st_dev,
    'inode': found.st_ino,
  }


def _key_path(directory: pathlib.Path) -> pathlib.Path:
  return directory / 'private' / 'noise.key'


def new_key_path(directory: pathlib.Path) -> pathlib.Path:
  """Returns where the key of a run is before the run is there."""
  return directory / 'private' / 'noise.key.new'


def check_checkpoint(
  directory: pathlib.Path, round_index: int, state: Any, head: str
) -> None:
  """Raises ValueError unless a state is what the ledger's rounds led to.

  PRIVACY: without the ledger of the rounds before, nobody knows who took part;
  with another state, their noise would meet other sums. Guard:
  training_test.test_checkpoint_that_contradicts_the_ledger_is_refused.

  Args:
    directory: of the run.
    round_index: that the state is of the beginning of, above 0.
    state: of the learning process.
    head: of the ledger's chain, as the checkpoint has it.
  """
  with program.Ledger(directory / report.LEDGER_FILE) as ledger:
    attempts = ledger.attempts(round_index - 1)
  if (
    not attempts
    or attempts[-1].head != head
    or attempts[-1].result not in (None, checkpoints.digest(state))
  ):
    raise ValueError(
      errors.invalid(
        'checkpoint',
        round_index,
        'is not what the rounds in the ledger led to',
        'restore the files of this run, all of one time',
      )
    )
