"""Files that are there whole or not at all, and secrets among them.

A file is written under another name, synced to the disk and then given its own
name; the folder is synced too. A process that is killed meanwhile leaves a file
`*.part`, which nothing reads.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pathlib
import secrets
import stat
from collections.abc import Iterator
from typing import Callable

from tff_bandmf import errors

# A link or a pipe that somebody else may have made is never followed.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_MAKE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
PART = '.part'


def write(path: pathlib.Path, *contents, mode: int = 0o644) -> None:
  """Writes a file, or replaces it, whole or not at all.

  Args:
    path: of the file, in a folder that is there.
    *contents: bytes, one after another.
    mode: of the file, less what the umask takes.

  Raises:
    OSError: it cannot be written; one line that names the file.
  """
  with named(path, 'written'), _written(path, contents, mode) as temporary:
    os.replace(temporary, path)


def load_or_create_secret(
  path: pathlib.Path,
  size: int,
  name: str,
  make: Callable[[int], bytes] = secrets.token_bytes,
) -> bytes:
  """Returns what is in a file of a secret, which is made if it is missing.

  It is made with mode 0600, in a folder of mode 0700 if that has to be made
  too, and is on the disk when this returns. The first of two processes that
  make it at once wins, and both return what it made.

  Args:
    path: of the file.
    size: bytes in it.
    name: what to call it in an error.
    make: gives the secret, given `size`.

  Raises:
    ValueError: as `load_secret`.
    OSError: it cannot be made or read; one line that names the file.
  """
  with named(path, 'written'):
    if not os.path.lexists(path):
      _make_folder(path.parent)
      # PRIVACY: never less than all of it. Guard:
      # durable_test.test_first_of_two_that_make_a_secret_wins.
      with _written(path, [make(size)], 0o600) as temporary:
        with contextlib.suppress(FileExistsError):
          os.link(temporary, path)
  return load_secret(path, size, name)


def load_secret(path: pathlib.Path, size: int, name: str) -> bytes:
  """Returns what is in a file of a secret.

  Args:
    path: of the file.
    size: bytes in it.
    name: what to call it in an error.

  Raises:
    FileNotFoundError: it is not there.
    ValueError: it is not `size` bytes long, is a link or no file at all, or
      others than its owner can use it.
    OSError: it cannot be read; one line that names the file.
  """
  with named(path, 'read'):
    try:
      handle = os.open(path, _READ)
    except OSError as error:
      if error.errno != errno.ELOOP:
        raise
      raise _not_a_file(path, name) from None
    try:
      found = os.fstat(handle)
      if not stat.S_ISREG(found.st_mode):
        raise _not_a_file(path, name)
      # PRIVACY: who reads it can take the noise off, or name the clients.
      # Guard: durable_test.test_secret_that_others_can_use_is_refused.
      mode = stat.S_IMODE(found.st_mode)
      if mode & 0o077:
        raise ValueError(
          errors.invalid(
            name,
            path,
            f'has mode {mode:04o}, so others can use it',
            'chmod 600 it if nobody has, or start anew with another',
          )
        )
      content = os.read(handle, size + 1)
    finally:
      os.close(handle)
  if len(content) != size:
    raise ValueError(
      errors.invalid(
        name,
        path,
        f'must be {size} bytes, and is {found.st_size}',
        'restore the file that the run was started with',
      )
    )
  return content


def _not_a_file(path: pathlib.Path, name: str) -> ValueError:
  return ValueError(
    errors.invalid(name, path, 'is a link or no file', 'give the file itself')
  )


@contextlib.contextmanager
def named(path: pathlib.Path, done: str) -> Iterator[None]:
  """Raises an error of the system in the `with` block as one line.

  Args:
    path: of the file, which the line names.
    done: what could not be done to it, a participle.

  Raises:
    OSError: the error, of the same class and number.
  """
  try:
    yield
  except OSError as error:
    found = type(error)(
      errors.invalid(
        'file',
        path,
        f'cannot be {done} ({error.strerror or type(error).__name__})',
        'look at the space, the permissions and the health of the disk',
      )
    )
    found.errno = error.errno
    raise found from None


@contextlib.contextmanager
def _written(path: pathlib.Path, contents, mode: int) -> Iterator[pathlib.Path]:
  """Yields a file next to `path` that is on the disk; its name goes after."""
  temporary = path.with_name(f'{path.name}.{secrets.token_hex(4)}{PART}')
  try:
    with open(os.open(temporary, _MAKE, mode), 'wb') as file:
      for content in contents:
        file.write(content)
      file.flush()
      # PRIVACY: rounds that outlive their key could not be told from those of
      # new clients. Guard:
      # durable_test.test_name_appears_after_the_content_is_on_the_disk.
      os.fsync(file.fileno())
    yield temporary
  finally:
    with contextlib.suppress(FileNotFoundError):
      temporary.unlink()
  _sync_folder(path.parent)


def _make_folder(path: pathlib.Path) -> None:
  """Makes a folder, and those above it that are missing, with mode 0700."""
  if path.is_dir():
    return
  _make_folder(path.parent)
  path.mkdir(mode=0o700, exist_ok=True)
  _sync_folder(path.parent)


def _sync_folder(path: pathlib.Path) -> None:
  handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
  try:
    os.fsync(handle)
  finally:
    os.close(handle)
