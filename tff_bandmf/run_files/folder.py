"""The folder of a run: whose it is; `run_record` says what is in it.

One process at a time has the directory; the lock in private/ says which. A copy
is not taken for the original: the folder and the keys of a copy are other
files. Nobody can tell which is the run of two whole copies on two hosts, if
both are said to have moved.

The order of a start, each step durable before the next one: the new keys; their
place; run.json; the ledger; the names of keys that serve; the place again, of a
run that has begun. A start that ended before run.json leaves keys that serve
the next start in this very place alone; in a copy new ones are drawn.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import socket
from collections.abc import Iterator, Sequence
from typing import Any, Callable, Optional

from tff_bandmf import _files, errors, participation, strategies
from tff_bandmf.noise import key as key_lib
from tff_bandmf.run_files import run_json, run_ledger

_NOT_OTHERS = 0o022
_MACHINE = pathlib.Path('/etc/machine-id')
# What is lost with a key.
_LOST = {
  run_json.NOISE_KEY: 'without its noise rounds cannot be replayed',
  run_json.SAMPLING_KEY: 'without it nobody can draw its cohorts',
}


@dataclasses.dataclass(frozen=True)
class Keys:
  """The keys of a run.

  Attributes:
    noise: key of the noise.
    sampling: key of the draws; None where chance draws no cohorts.
  """

  noise: key_lib.Key
  sampling: Optional[key_lib.Key] = None


@contextlib.contextmanager
def locked(directory: pathlib.Path) -> Iterator[None]:
  """Keeps other processes out of the run directory for a `with` block.

  What is made in the block nobody but its owner can write, and what a killed
  process left half written is gone.

  PRIVACY: two processes would each run the rounds of one key. Guard:
  training_test.test_directory_has_one_process_at_a_time.

  Raises:
    ValueError: another process has it, or this one has not closed it; or its
      name cannot be written.
    OSError: it cannot be written; one line that names it.
  """
  check_name(directory)
  private = directory / run_json.PRIVATE
  umask = os.umask(_NOT_OTHERS)
  os.umask(umask | _NOT_OTHERS)
  try:
    with _files.naming(private / 'lock', 'written'):
      private.mkdir(mode=0o700, parents=True, exist_ok=True)
      handle = _files.lock(private / 'lock')
    if handle is None:
      raise _in_use(directory)
    try:
      os.ftruncate(handle, 0)
      os.pwrite(handle, str(os.getpid()).encode(), 0)
      for folder in directory, private, directory / run_json.CHECKPOINTS:
        for path in folder.glob(f'*{_files.PART}'):
          _files.discard(path)
      yield
    finally:
      os.close(handle)
  finally:
    os.umask(umask)


def check_name(directory: pathlib.Path) -> None:
  """Raises ValueError where the locale cannot write the name of a directory."""
  try:
    path = os.path.abspath(directory)
    # TensorFlow writes it as UTF-8, the system in the encoding of the locale.
    path.encode()
    os.fsencode(path)
  except UnicodeEncodeError:
    raise errors.value_error(
      'output_dir',
      ascii(str(directory)),
      'cannot be written as UTF-8 under this locale',
      'set LC_ALL=C.UTF-8, or name an ASCII folder',
    ) from None


def _in_use(directory: pathlib.Path) -> ValueError:
  """Returns what to raise for a directory whose lock is taken."""
  holder = (directory / run_json.PRIVATE / 'lock').read_text()
  if holder == str(os.getpid()):
    return errors.value_error(
      'output_dir',
      directory,
      'is open in this process: a Run was made and not closed',
      'call close() of that Run, or make it in a with statement; in a '
      'notebook, restart the kernel if its name is lost',
    )
  return errors.value_error(
    'output_dir',
    directory,
    'is in use by another process',
    'wait for it to end, or choose another directory',
  )


def refuse_existing(directory: pathlib.Path) -> None:
  """Raises ValueError if the directory holds a run, or what is left of one."""
  # PRIVACY: a key of draws that outlived its run would draw the same cohorts
  # for the next one, so a key that served is never a new run's. Guard:
  # starts_test.test_key_of_draws_that_outlived_its_run_is_refused.
  for name in (
    run_json.RUN_FILE,
    run_json.LEDGER_FILE,
    *_LOST,
    run_json.CHECKPOINTS,
  ):
    if (directory / name).exists():
      raise errors.value_error(
        'output_dir',
        directory,
        f'holds a run ({name})',
        'continue it with --resume, or choose another directory',
      )


def keys(directory: pathlib.Path, draws: bool) -> Keys:
  """Returns the keys of a run; those of a new one are drawn, and bound here.

  Args:
    directory: of the run; this process has its lock.
    draws: whether chance draws the cohorts.

  Raises:
    ValueError: the directory holds what is left of a run, or a key is gone.
    OSError: a key cannot be read or made.
  """
  names = [run_json.NOISE_KEY, *[run_json.SAMPLING_KEY] * draws]
  if not (directory / run_json.RUN_FILE).exists():
    refuse_existing(directory)
    # PRIVACY: two copies of a folder whose start failed would both begin with
    # its key. So only the very place that a key was drawn in goes on with it.
    # Guard: starts_test.test_start_that_ended_anywhere_gives_no_copy_its_keys.
    if _read_place(directory) != _place(directory, begun=False) or not all(
      _path(directory, name).exists() for name in names
    ):
      for name in _LOST:
        _files.discard(_new(directory, name))
      for name in names:
        key_lib.Key.load_or_create(_new(directory, name))
      bind(directory, begun=False)
  return Keys(*(_load(directory, name) for name in names))


def open_run(
  directory: pathlib.Path,
  record: run_json.RunRecord,
  strategy: strategies.Strategy,
  planned: participation.Participation,
  drawn: Keys,
  moved: bool = False,
) -> None:
  """Makes the files of a new run, or checks that a directory is that run's.

  PRIVACY: a key serves the run that it was drawn for, in the place where it was
  drawn. Guards: training_test.test_key_of_another_run_is_refused,
  folder_test.test_copy_without_its_ledger_is_refused,
  test_edited_copy_is_refused and test_copy_is_refused_until_it_is_said_to_move.

  Args:
    directory: of the run; this process has its lock.
    record: of the run, as the program that goes on says it.
    strategy: C.
    planned: the schema of participation.
    drawn: what `keys` gave.
    moved: whether the directory was moved or restored, and is the only one.

  Raises:
    ValueError: it holds another run, what is left of one, or a copy.
  """
  if not (directory / run_json.RUN_FILE).exists():
    strategies.save(
      strategy, directory / run_json.STRATEGY_FILE, participation=planned
    )
    # With it the directory holds a run; from the next step on, its keys serve.
    record.of_key(drawn.noise).write(directory)
  check_record(directory, record)
  bound = record.of_key(drawn.noise).bound()
  if run_json.RunRecord.read(directory).bound() != bound:
    raise errors.value_error(
      'noise.key',
      directory / run_json.NOISE_KEY,
      f'is that of another run than {run_json.RUN_FILE} '
      'says, or that file was edited',
      'restore the files of this run, or start a new one',
    )
  begun = _has_begun(directory)
  _check_place(directory, begun, moved)
  # A key that serves is never without its ledger: what took part would be
  # forgotten.
  with run_ledger.open_ledger(directory, create=not begun) as ledger:
    if begun and ledger.bound() == (None, None):
      raise errors.value_error(
        'ledger',
        directory / run_json.LEDGER_FILE,
        'is not the one that the key was used with',
        'restore the files of this run, or start a new one',
      )
    ledger.bind(run=bound[0], noise_key=bound[1])
  if not begun:
    for name in _LOST:
      if _new(directory, name).exists():
        os.rename(_new(directory, name), directory / name)
  if moved or not begun:
    bind(directory)


def check_record(directory: pathlib.Path, record: run_json.RunRecord) -> None:
  """Raises ValueError unless a directory holds the run of the record."""
  ended = (directory / run_json.RESULT_FILE).exists()
  run_json.RunRecord.read(directory).check_same(record, ended)


def check_releases(
  directory: pathlib.Path, attempts: Callable[[int], Sequence[Any]]
) -> None:
  """Raises ValueError if a round released what the ledger does not know of.

  Args:
    directory: of the run.
    attempts: gives the attempts at a round that the ledger has.
  """
  for path in (directory / run_json.RELEASED).glob('*-*-*-*'):
    t, attempt = map(int, path.name.split('-')[:2])
    # PRIVACY: SQLite drops the end of a damaged write-ahead log without a word,
    # and another cohort would be recorded for what was released. A release has
    # a mark, so the ledger must know its attempt. Guard:
    # run_folder_test.test_ledger_that_lost_its_last_commits_is_refused.
    if attempt > len(attempts(t)):
      raise errors.value_error(
        'ledger',
        directory / run_json.LEDGER_FILE,
        f'lacks attempt {attempt} at round {t}, which released a sum',
        'its last commits are lost: restore all files of one time, or start a '
        'new run and count this one in full',
      )


def bind(directory: pathlib.Path, begun: bool = True) -> None:
  """Writes down that the keys of a run belong into this directory.

  Args:
    directory: of the run.
    begun: whether the keys serve a run; if not, they are new.
  """
  _files.write_json(
    directory / run_json.PLACE, _place(directory, begun), mode=0o600
  )


def _check_place(directory: pathlib.Path, begun: bool, moved: bool) -> None:
  """Raises ValueError if the directory is a copy, and is not said to move."""
  for name in _LOST:
    path = _path(directory, name)
    # PRIVACY: a copy that is made of hard links has the very files of the
    # original, and could go on with them beside it. Guard:
    # starts_test.test_copy_made_of_hard_links_is_refused.
    if path.exists() and (links := path.stat().st_nlink) > 1:
      raise errors.value_error(
        path.name,
        path,
        f'has {links} names (hard links), as in a copy made with cp -al',
        'remove the copy; copy the folder of a run without links',
      )
  # PRIVACY: two directories with one key would each go on alone. Guards:
  # folder_test.test_copy_is_refused_until_it_is_said_to_move and
  # test_key_in_another_place_is_refused.
  if not moved and _read_place(directory) != _place(directory, begun):
    raise errors.value_error(
      'output_dir',
      directory,
      'is a copy, or was moved: its key lies in another place',
      'go on in the original; if there is none any more, say so with '
      '--moved (moved=True)',
    )


def _has_begun(directory: pathlib.Path) -> bool:
  """Returns whether the keys serve; where nothing says so, they may."""
  return _read_place(directory).get('begun') is not False


def _read_place(directory: pathlib.Path) -> dict[str, Any]:
  """Returns what `bind` wrote; {} if that is not there, or is damaged."""
  try:
    place = _files.read_json(directory / run_json.PLACE)
  except (FileNotFoundError, ValueError):
    return {}
  return place if isinstance(place, dict) else {}


def _place(directory: pathlib.Path, begun: bool) -> dict[str, Any]:
  """Returns where the folder and its keys are: copies are somewhere else."""
  host = _MACHINE.read_text().strip() if _MACHINE.exists() else ''
  noise, sampling = (_identity(_path(directory, name)) for name in _LOST)
  return {
    'host': host or socket.gethostname(),
    'device': noise and noise[0],
    'inode': noise and noise[1],
    'sampling': sampling,
    'folder': _identity(directory),
    'begun': begun,
  }


def _identity(path: pathlib.Path) -> Optional[list[int]]:
  """Returns the device and the inode of a file; None if it is not there."""
  if not path.exists():
    return None
  status = path.stat()
  return [status.st_dev, status.st_ino]


def _new(directory: pathlib.Path, name: str) -> pathlib.Path:
  """Returns where a key is before the run is there."""
  return directory / f'{name}{run_json.NEW_KEY}'


def _path(directory: pathlib.Path, name: str) -> pathlib.Path:
  """Returns where a key is: under its name, else under that of a new one."""
  path, fresh = directory / name, _new(directory, name)
  return fresh if not path.exists() and fresh.exists() else path


def _load(directory: pathlib.Path, name: str) -> key_lib.Key:
  path = directory / name
  if not _has_begun(directory):
    path = _path(directory, name)
  if not path.exists():
    raise errors.value_error(
      path.name,
      path,
      'is gone, and the run was already started',
      f'{_LOST[name]}: restore it, or start a new run',
    )
  return key_lib.Key.load_or_create(path)
