"""The folder of a run: the lock, the keys, and the refusal of copies.

One process at a time holds the lock of the folder, the file private/lock. A
copy of the folder is recognised, since the folder and the keys of the copy do
not have the inodes of the originals. If two complete copies on two hosts are
both opened with `moved`, nothing shows that both continue the same run.

The start of a run has six steps, each durable before the next: write the new
keys; write place.json, which names the host and the inodes of the folder and
the keys; write run.json; make the ledger; give the keys their final names;
write place.json again, which now says that the run has begun. If a start ends
before it writes run.json, the next start in the same folder uses the same keys,
and a start in a copy of the folder draws new keys.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import socket
from collections.abc import Iterator
from typing import NamedTuple, Optional

from tff_bandmf import _files, errors
from tff_bandmf import ledger as ledger_lib
from tff_bandmf.noise import key as key_lib
from tff_bandmf.run_files import run_json, run_ledger

# Umask by which only the owner of a new file can write to it.
_UMASK = 0o022
_MACHINE = pathlib.Path('/etc/machine-id')
_KEYS = (run_json.NOISE_KEY, run_json.SAMPLING_KEY)


class Keys(NamedTuple):
  """The keys of a run.

  Attributes:
    noise: noise key.
    sampling: key by which cohorts are sampled; None if they are not sampled.
  """

  noise: key_lib.Key
  sampling: Optional[key_lib.Key] = None


@contextlib.contextmanager
def locked(directory: pathlib.Path) -> Iterator[None]:
  """Holds the lock of a run's folder during a `with` block.

  Only the owner can write to files that the block makes. This function removes
  partly written files that a killed process left.

  Args:
    directory: folder of the run. A missing folder is made.

  Raises:
    ValueError: another process or this process holds the lock already; or the
      name of the folder cannot be encoded.
    OSError: the folder cannot be written. The message is one line, and names
      the folder.
  """
  check_name(directory)
  private = directory / run_json.PRIVATE
  with contextlib.ExitStack() as stack:
    umask = os.umask(_UMASK)
    stack.callback(os.umask, umask)
    os.umask(umask | _UMASK)
    with _files.naming(private / 'lock', 'written'):
      private.mkdir(mode=0o700, parents=True, exist_ok=True)
      handle = _files.lock(private / 'lock')
    # PRIVACY: two processes that run rounds with the same noise key could add
    # the same noise to different sums. Only one process at a time gets the
    # lock.
    # Guard: resume_test.test_directory_has_one_process_at_a_time.
    if handle is None:
      raise _in_use(directory)
    stack.callback(os.close, handle)
    os.ftruncate(handle, 0)
    os.pwrite(handle, str(os.getpid()).encode(), 0)
    for folder in directory, private, directory / run_json.CHECKPOINTS:
      for path in folder.glob(f'*{_files.PART}'):
        _files.discard(path)
    yield


def check_name(directory: pathlib.Path) -> None:
  """Raises ValueError if UTF-8 or the locale cannot encode a folder's name."""
  try:
    path = os.path.abspath(directory)
    # TensorFlow encodes names in UTF-8, and the system encodes them by the
    # locale.
    path.encode()
    os.fsencode(path)
  except UnicodeEncodeError:
    raise errors.value_error(
      f'output_dir={ascii(str(directory))}: cannot be written as UTF-8 under '
      'this locale; set LC_ALL=C.UTF-8, or name an ASCII folder'
    ) from None


def _in_use(directory: pathlib.Path) -> ValueError:
  """Returns the error for a folder whose lock a process holds."""
  holder = (directory / run_json.PRIVATE / 'lock').read_text()
  if holder == str(os.getpid()):
    return errors.value_error(
      f'output_dir={directory}: is open in this process; call close() of its '
      'Run, or make the Run in a with statement; in a notebook, restart the '
      'kernel if no name refers to the Run'
    )
  return errors.value_error(
    f'output_dir={directory}: is in use by another process; wait for it to '
    'end, or choose another directory'
  )


def refuse_existing(directory: pathlib.Path) -> None:
  """Raises ValueError if the folder holds a run, or remains of a run."""
  # PRIVACY: with the noise key of an earlier run, a new run would add the same
  # noise to different sums. With the sampling key of an earlier run, a person
  # who knows the earlier cohorts could predict the new ones, and amplification
  # would not hold. A folder with a key of an earlier run is refused.
  # Guard: starts_test.test_key_of_draws_that_outlived_its_run_is_refused.
  names = run_json.RUN_FILE, run_json.LEDGER_FILE, run_json.CHECKPOINTS
  for name in (*names, *_KEYS):
    if (directory / name).exists():
      raise errors.value_error(
        f'output_dir={directory}: holds a run ({name}); continue it with '
        '--resume, or choose another directory'
      )


def keys(directory: pathlib.Path, draws: bool) -> Keys:
  """Returns the keys of a run; a new run gets new random keys.

  Args:
    directory: folder of the run; this process has its lock.
    draws: whether cohorts are sampled; the run then has a second key.

  Raises:
    ValueError: the folder holds remains of a run, or a key is missing.
    OSError: a key cannot be read or written.
  """
  names = [run_json.NOISE_KEY, *[run_json.SAMPLING_KEY] * draws]
  if not (directory / run_json.RUN_FILE).exists():
    refuse_existing(directory)
    # PRIVACY: if a start failed and its folder was copied, both folders would
    # begin a run with the same keys, and add the same noise to different sums.
    # Only the folder in which the keys were drawn uses these keys.
    # Guard: starts_test.test_start_that_ended_anywhere_gives_no_copy_its_keys.
    if _read_place(directory) != _place(directory, begun=False) or not all(
      _path(directory, name).exists() for name in names
    ):
      for name in _KEYS:
        _files.discard(_new(directory, name))
      for name in names:
        key_lib.Key.load_or_create(_new(directory, name))
      bind(directory, begun=False)
  return Keys(*(_load(directory, name) for name in names))


def open_run(
  directory: pathlib.Path,
  details: run_json.RunDetails,
  run_keys: Keys,
  moved: bool = False,
) -> run_json.RunDetails:
  """Makes the files of a new run, or checks that the folder holds this run.

  PRIVACY: if two runs, or two copies of one run, use the same noise key, they
  add the same noise to different sums. A key is accepted only for its own run
  and, unless `moved` is set, only in the folder in which it was drawn.
  Guards: resume_test.test_key_of_another_run_is_refused,
  folder_test.test_copy_without_its_ledger_is_refused,
  test_edited_copy_is_refused and test_copy_is_refused_until_it_is_said_to_move.

  Args:
    directory: folder of the run; this process has its lock.
    details: details that this program gives the run, without the IDs of run and
      key.
    run_keys: result of `keys`.
    moved: whether the folder was moved or restored, and the original folder is
      gone.

  Returns:
    The details with the IDs.

  Raises:
    ValueError: the folder holds another run or remains of a run, or is a copy.
  """
  if not (directory / run_json.RUN_FILE).exists():
    # From this write on, the folder holds a run.
    details.with_key(run_keys.noise, directory).write(directory)
  stored = run_json.RunDetails.read(directory)
  stored.check_same(details, ended=False)
  details = details.with_key(run_keys.noise, directory)
  bound = details.bound()
  if stored.bound() != bound:
    raise errors.value_error(
      f'noise.key={directory / run_json.NOISE_KEY}: is the key of another run, '
      'or run.json or plan.json was edited; restore the files of this run, or '
      'start a new run'
    )
  begun = has_begun(directory)
  _check_place(directory, begun, moved)
  # A run that has begun needs its own ledger, since a new ledger would lack the
  # clients that took part.
  with run_ledger.open_ledger(directory, not begun, check=False) as ledger:
    if begun and ledger.bound() == (None, None):
      raise errors.value_error(
        f'ledger={directory / run_json.LEDGER_FILE}: is not the ledger that '
        'the key was used with; restore the files of this run, or start a new '
        'run'
      )
    ledger.bind(run=bound[0], noise_key=bound[1])
  if not begun:
    for name in _KEYS:
      if _new(directory, name).exists():
        os.rename(_new(directory, name), directory / name)
  if moved or not begun:
    bind(directory)
  return details


def check_releases(
  directory: pathlib.Path, attempts: ledger_lib.Attempts
) -> None:
  """Raises ValueError if the ledger lacks an attempt that released a sum.

  Args:
    directory: folder of the run.
    attempts: attempts at each round in the ledger.
  """
  for path in (directory / run_json.RELEASED).glob('*-*-*-*'):
    t, attempt = map(int, path.name.split('-')[:2])
    # PRIVACY: SQLite drops the end of a damaged write-ahead log silently. A
    # round that the ledger has lost could start again with a different cohort,
    # and add the same noise to a second sum. Every release of a sum leaves a
    # file in private/released. The ledger must have the attempt of each file.
    # Guard: run_folder_test.test_ledger_that_lost_its_last_commits_is_refused.
    if attempt > len(attempts.get(t, ())):
      raise errors.value_error(
        f'ledger={directory / run_json.LEDGER_FILE}: lacks attempt {attempt} '
        f'at round {t}, which released a sum; restore all files of the same '
        'moment, or start a new run and count all rounds of this run'
      )


def bind(directory: pathlib.Path, begun: bool = True) -> None:
  """Writes place.json, which names the folder to which the keys belong.

  Args:
    directory: folder of the run.
    begun: whether the run has begun; False while its keys have the suffix of
      new keys.
  """
  _files.write_json(
    directory / run_json.PLACE, _place(directory, begun), mode=0o600
  )


def _check_place(directory: pathlib.Path, begun: bool, moved: bool) -> None:
  """Raises ValueError if the folder is a copy and `moved` is False."""
  for name in _KEYS:
    path = _path(directory, name)
    # PRIVACY: if a key file has several hard links, the original folder may
    # still have this file, even if the user states with `moved` that the folder
    # is gone. Both folders could add the same noise to different sums. Such a
    # key file is refused.
    # Guard: starts_test.test_copy_made_of_hard_links_is_refused.
    if path.exists() and (links := path.stat().st_nlink) > 1:
      raise errors.value_error(
        f'{path.name}={path}: has {links} names (hard links), as after cp -al; '
        'remove the copy; copy the folder of a run without links'
      )
  # PRIVACY: a folder and its copy would each continue the run with the same
  # key, and add the same noise to different sums. Only the folder in which the
  # key was drawn, or a folder that was once opened with `moved`, may continue.
  # Guards: folder_test.test_copy_is_refused_until_it_is_said_to_move and
  # test_key_in_another_place_is_refused.
  if not moved and _read_place(directory) != _place(directory, begun):
    raise errors.value_error(
      f'output_dir={directory}: is a copy, or was moved: its key was drawn in '
      'another folder; continue in the original folder; if the original is '
      'gone, give --moved (moved=True)'
    )


def has_begun(directory: pathlib.Path) -> bool:
  """Returns whether the folder holds a run that has begun.

  A run has begun unless place.json says that it has not.
  """
  begun = _read_place(directory).get('begun') is not False
  return begun and (directory / run_json.RUN_FILE).exists()


def _read_place(directory: pathlib.Path) -> _files.JsonObject:
  """Returns the content of place.json; {} if it is missing or damaged."""
  try:
    place = _files.read_json(directory / run_json.PLACE)
  except (FileNotFoundError, ValueError):
    return {}
  return place if isinstance(place, dict) else {}


def _place(directory: pathlib.Path, begun: bool) -> _files.JsonObject:
  """Returns the content of place.json for this folder."""
  host = _MACHINE.read_text().strip() if _MACHINE.exists() else ''
  noise, sampling = (_identity(_path(directory, name)) for name in _KEYS)
  return {
    'host': host or socket.gethostname(),
    'device': noise and noise[0],
    'inode': noise and noise[1],
    'sampling': sampling,
    # PRIVACY: A copy of a run would release other sums with the same noise. The
    # identity of the folder differs in a copy.
    # Guard: starts_test.test_copy_made_of_hard_links_is_refused.
    'folder': _identity(directory),
    'begun': begun,
  }


def _identity(path: pathlib.Path) -> Optional[list[int]]:
  """Returns the device and the inode of a file; None if there is no file."""
  if not path.exists():
    return None
  status = path.stat()
  return [status.st_dev, status.st_ino]


def _new(directory: pathlib.Path, name: str) -> pathlib.Path:
  """Returns the path of a key before the run has begun."""
  return directory / f'{name}{run_json.NEW_KEY}'


def _path(directory: pathlib.Path, name: str) -> pathlib.Path:
  """Returns the path of a key file, under its new or its final name."""
  path, fresh = directory / name, _new(directory, name)
  return fresh if not path.exists() and fresh.exists() else path


# PRIVACY: If others could compute the sampling key, they would know the
# cohorts, and amplification would not hold. The key is random and stays in its
# file.
# Guards:
# run_sampling_test.test_key_of_the_draws_is_fresh_and_goes_with_the_run,
# test_seed_has_no_part_in_sampled_cohorts and
# test_key_that_is_gone_or_another_is_refused.
def _load(directory: pathlib.Path, name: str) -> key_lib.Key:
  path = directory / name
  if not has_begun(directory):
    path = _path(directory, name)
  if not path.exists():
    raise errors.value_error(
      f'{path.name}={path}: is gone, and the run needs its keys until its end; '
      'restore it, or start a new run'
    )
  return key_lib.Key.load_or_create(path)
