"""The folder of a run: whose it is; `run_record` says what is in it.

One process at a time has the directory; the lock in private/ says which. A copy
is not taken for the original: the key of a copy is another file. Nobody
can tell which is the run of two whole copies on two hosts, if both are said to
have moved.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import socket
from collections.abc import Iterator
from typing import Any

from tff_bandmf import _files, errors, participation, strategies
from tff_bandmf.noise import key as key_lib
from tff_bandmf.program import ledger as ledger_lib
from tff_bandmf.program import run_record

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
  private = directory / run_record.PRIVATE
  umask = os.umask(_NOT_OTHERS)
  os.umask(umask | _NOT_OTHERS)
  try:
    private.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle = _files.lock(private / 'lock')
    if handle is None:
      raise errors.value_error(
        'output_dir',
        directory,
        'is in use by another process',
        'wait for it to end, or choose another directory',
      )
    try:
      for folder in directory, private, directory / run_record.CHECKPOINTS:
        for path in folder.glob(f'*{_files.PART}'):
          _files.wipe(path)
      yield
    finally:
      os.close(handle)
  finally:
    os.umask(umask)


def refuse_existing(directory: pathlib.Path) -> None:
  """Raises ValueError if the directory holds a run, or what is left of one."""
  for name in (
    run_record.RUN_FILE,
    run_record.LEDGER_FILE,
    run_record.NOISE_KEY,
    run_record.CHECKPOINTS,
  ):
    if (directory / name).exists():
      raise errors.value_error(
        'output_dir',
        directory,
        f'holds a run ({name})',
        'continue it with --resume, or choose another directory',
      )


def open_run(
  directory: pathlib.Path,
  record: run_record.RunRecord,
  strategy: strategies.Strategy,
  planned: participation.Participation,
  moved: bool = False,
) -> key_lib.Key:
  """Returns the noise key of a run, whose directory is made if it is new.

  PRIVACY: a key serves the run that it was drawn for, in the place where it was
  drawn. Guards: training_test.test_key_of_another_run_is_refused,
  folder_test.test_copy_without_its_ledger_is_refused,
  test_edited_copy_is_refused and test_copy_is_refused_until_it_is_said_to_move.

  Args:
    directory: of the run; this process has its lock.
    record: of the run, as the program that goes on says it.
    strategy: C.
    planned: the schema of participation.
    moved: whether the directory was moved or restored, and is the only one.

  Raises:
    ValueError: it holds another run, what is left of one, or a copy.
  """
  fresh = directory / run_record.NEW_NOISE_KEY
  if not (directory / run_record.RUN_FILE).exists():
    refuse_existing(directory)
    # A key that has served nothing yet, of a start that was killed, is as good.
    key = key_lib.Key.load_or_create(fresh)
    strategies.save(
      strategy, directory / run_record.STRATEGY_FILE, participation=planned
    )
    # With it the directory holds a run; from the next step on, its key serves.
    record.of_key(key).write(directory)
  check_record(directory, record)
  path = directory / run_record.NOISE_KEY
  place = directory / run_record.PLACE
  begins = fresh.exists() and not (path.exists() or place.exists())
  if not (begins or path.exists()):
    raise errors.value_error(
      'noise.key',
      path,
      'is gone, and the run was already started',
      'without its noise rounds cannot be replayed: restore it, or start '
      'a new run',
    )
  key = key_lib.Key.load_or_create(fresh if begins else path)
  bound = record.of_key(key).bound()
  if run_record.RunRecord.read(directory).bound() != bound:
    raise errors.value_error(
      'noise.key',
      path,
      f'is that of another run than {run_record.RUN_FILE} '
      'says, or that file was edited',
      'restore the files of this run, or start a new one',
    )
  # A key that serves is never without its ledger: what took part would be
  # forgotten.
  with ledger_lib.of_run(directory, create=begins) as ledger:
    begun = ledger.last_round() >= 0
    if not begins and ledger.bound() == (None, None):
      raise errors.value_error(
        'ledger',
        directory / run_record.LEDGER_FILE,
        'is not the one that the key was used with',
        'restore the files of this run, or start a new one',
      )
    ledger.bind(run=bound[0], noise_key=bound[1])
  if begins:
    os.rename(fresh, path)
  if moved or not (begun or place.exists()):
    _files.write_json(place, _place(path), mode=0o600)
  # PRIVACY: two directories with one key would each go on alone. Guard:
  # folder_test.test_copy_is_refused_until_it_is_said_to_move.
  elif not place.exists() or _files.read_json(place) != _place(path):
    raise errors.value_error(
      'output_dir',
      directory,
      'is a copy, or was moved: its key lies in another place',
      'go on in the original; if there is none any more, say so with '
      '--moved (moved=True)',
    )
  return key


def check_record(directory: pathlib.Path, record: run_record.RunRecord) -> None:
  """Raises ValueError unless a directory holds the run of the record."""
  ended = (directory / run_record.RESULT_FILE).exists()
  run_record.RunRecord.read(directory).check_same(record, ended)


def _place(path: pathlib.Path) -> dict[str, Any]:
  """Returns where a file is: a copy of it is somewhere else."""
  found = path.stat()
  host = _MACHINE.read_text().strip() if _MACHINE.exists() else ''
  return {
    'host': host or socket.gethostname(),
    'device': found.st_dev,
    'inode': found.st_ino,
  }
