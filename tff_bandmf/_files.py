"""Atomic writes, locks, secret files, and JSON from untrusted sources.

A file is written under a temporary name and synced to the disk. Then the file
gets its own name, and its folder is synced. If a power cut may lose the file,
both syncs are left out. A process that is killed during a write leaves a file
`*.part`, which nothing reads.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import hashlib
import json
import os
import pathlib
import re
import secrets
import stat
import sys
import tempfile
from collections.abc import Iterator
from typing import Any, Callable, Optional, Union

from tff_bandmf import errors

if sys.version_info >= (3, 11):
  import tomllib
else:
  import tomli as tomllib

_BARE_KEY = re.compile(r'[A-Za-z0-9_-]+')
# With these flags, `open` follows no link and never waits for a pipe.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_MAKE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_LOCK = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
_ZEROS = memoryview(bytes(2**20))
PART = '.part'
# First bytes of files in other formats than JSON.
_SIGNATURES = (
  (b'\xef\xbb\xbf', 'a byte order mark'),
  (b'\xff\xfe', 'a byte order mark of UTF-16'),
  (b'\xfe\xff', 'a byte order mark of UTF-16'),
  (b'\x1f\x8b', 'the signature of gzip'),
)
_PACKAGE = pathlib.Path(__file__).resolve().parent
_CODE = ('.py', '.j2', '.json')
# Folder in memory for temporary folders; not every system has it.
MEMORY = pathlib.Path('/dev/shm')

# A value of JSON: None, bool, int, float, str, a list of values, or a dict from
# str to values.
Json = Any
JsonObject = dict[str, Json]


def write(
  path: pathlib.Path, *contents, mode: int = 0o644, durable: bool = True
) -> None:
  """Writes or replaces a file, completely or not at all.

  Args:
    path: path of the file, in a folder that exists.
    *contents: parts of the content, bytes, in their order.
    mode: permission bits of the file; the umask removes some.
    durable: whether the file is on the disk when this function returns. If not,
      a power cut may lose the file or empty it.

  Raises:
    OSError: the file cannot be written. The message names the file.
  """
  replaced = replacing(path, mode, durable=durable)
  with naming(path, 'written'), replaced as part:
    _fill(part, contents)


def write_json(path: pathlib.Path, content: Json, mode: int = 0o644) -> None:
  """Writes a JSON file as `write` does; NaN and infinities are refused."""
  text = json.dumps(content, indent=1, allow_nan=False) + '\n'
  write(path, text.encode(), mode=mode)


def json_digest(content: Json) -> bytes:
  """Returns the SHA-256 of a JSON value; the order of keys has no effect."""
  text = json.dumps(content, sort_keys=True, allow_nan=False)
  return hashlib.sha256(text.encode()).digest()


def sha256(path: pathlib.Path) -> str:
  """Returns the SHA-256 of the bytes of a file, in hexadecimal."""
  return hashlib.sha256(path.read_bytes()).hexdigest()


@contextlib.contextmanager
def replacing(
  path: Union[str, os.PathLike],
  mode: int = 0o644,
  take: Callable[[pathlib.Path, pathlib.Path], None] = os.replace,
  durable: bool = True,
) -> Iterator[pathlib.Path]:
  """Yields the path of an empty file that becomes `path` when the block ends.

  Until then `path` keeps its old content, also if the process is killed. On an
  exception the new file is removed.

  Args:
    path: path of the file to make or replace, in a folder that exists.
    mode: permission bits of the file; the umask removes some.
    take: function (path of the new file, `path`) that gives the new file its
      name.
    durable: whether the file is on the disk when the block has ended. If not, a
      power cut may lose the file or empty it.
  """
  path = pathlib.Path(path)
  part = path.with_name(f'{path.name}.{secrets.token_hex(4)}{PART}')
  os.close(os.open(part, _MAKE, mode))
  try:
    yield part
    # PRIVACY: A ledger stores keyed hashes of clients. If a power cut lost the
    # key but not the ledger, all clients would look new under the next key, and
    # could take part too often. If `durable` is set, the file is on the disk
    # before it gets its name, and the name is on the disk when the `with` block
    # has ended.
    # Guard: files_test.test_name_appears_after_the_content_is_on_the_disk.
    if durable:
      sync(part)
    take(part, path)
  except BaseException:
    if not mode & 0o077:
      discard(part)
    raise
  finally:
    part.unlink(missing_ok=True)
  if durable:
    sync(path.parent)


def load_or_create_secret(
  path: pathlib.Path,
  size: int,
  name: str,
  make: Callable[[int], bytes] = secrets.token_bytes,
) -> bytes:
  """Returns the secret in a file, and first makes the file if it is missing.

  A new file has mode 0600, and a new folder for it has mode 0700. Both are on
  the disk when this function returns. If two processes make the file at once,
  both return the secret of the process that gave the file its name first.

  Args:
    path: path of the file.
    size: number of bytes of the secret.
    name: name of the secret in error messages.
    make: function that returns a new secret of `size` bytes.

  Raises:
    ValueError: the file is not `size` bytes long, is a link or not a regular
      file, or users other than its owner can use it.
    OSError: the file cannot be made or read. The message names the file.
  """
  with naming(path, 'written'):
    if not os.path.lexists(path):
      _make_folder(path.parent)
      # PRIVACY: If two processes made the file at once, the second could
      # replace a key that the first already uses. Clients that a ledger stores
      # under the first key would look new, and could take part too often. The
      # file gets the name `path` only if no file has this name.
      # Guard: files_test.test_first_of_two_that_make_a_secret_wins.
      with replacing(path, 0o600, take=_link) as part:
        _fill(part, [make(size)])
  return load_secret(path, size, name)


def load_secret(path: pathlib.Path, size: int, name: str) -> bytes:
  """Returns the secret in a file.

  Args:
    path: path of the file.
    size: number of bytes of the secret.
    name: name of the secret in error messages.

  Raises:
    FileNotFoundError: the file does not exist.
    ValueError: the file is not `size` bytes long, is a link or not a regular
      file, or users other than its owner can use it.
    OSError: the file cannot be read. The message names the file.
  """
  with naming(path, 'read'), contextlib.ExitStack() as stack:
    try:
      handle = os.open(path, _READ)
    except OSError as error:
      if error.errno != errno.ELOOP:
        raise
      raise _not_a_file(path, name) from None
    stack.callback(os.close, handle)
    status = os.fstat(handle)
    if not stat.S_ISREG(status.st_mode):
      raise _not_a_file(path, name)
    # PRIVACY: A user who reads the key of a run can subtract the noise, or find
    # clients in the ledger. A secret file to which users other than its owner
    # have access is refused.
    # Guard: files_test.test_secret_that_others_can_use_is_refused.
    mode = stat.S_IMODE(status.st_mode)
    if mode & 0o077:
      raise errors.value_error(
        f'{name}={path}: has mode {mode:04o}, so others can use it; chmod 600 '
        'the file if nobody else read it, or start a new run'
      )
    content = os.read(handle, size + 1)
  if len(content) != size:
    raise errors.value_error(
      f'{name}={path}: must be {size} bytes, and is {status.st_size}; restore '
      'the file that the run was started with'
    )
  return content


def lock(path: pathlib.Path) -> Optional[int]:
  """Locks a file and returns its descriptor; None if the lock is taken."""
  handle = os.open(path, _LOCK, 0o600)
  with contextlib.suppress(BlockingIOError, FileNotFoundError):
    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    # If the last holder of the lock removed the file, another process can lock
    # a new file of the same name, so this lock would exclude nobody.
    if os.path.samestat(os.fstat(handle), path.stat()):
      return handle
  os.close(handle)
  return None


def sync(path: pathlib.Path) -> None:
  """Waits until a file, or the names in a folder, are on the disk."""
  handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
  try:
    os.fsync(handle)
  finally:
    os.close(handle)


@contextlib.contextmanager
def locked(path: pathlib.Path) -> Iterator[None]:
  """Waits for the lock of a file, and holds the lock until the block ends.

  The file must never be removed, or two processes could lock different files.
  """
  with open(os.open(path, _LOCK, 0o600), 'wb') as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    yield


def memory() -> pathlib.Path:
  """Returns a folder in memory if there is one, else the temporary folder."""
  return MEMORY if MEMORY.is_dir() else pathlib.Path(tempfile.gettempdir())


def wipe(path: pathlib.Path) -> None:
  """Removes a link or a file, if it exists; first fills a file with zeros."""
  with contextlib.suppress(FileNotFoundError):
    if not path.is_symlink():
      with open(path, 'r+b') as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        for start in range(0, size, len(_ZEROS)):
          file.write(_ZEROS[: size - start])
    path.unlink()


def discard(path: pathlib.Path) -> None:
  """Removes a name of a file; wipes the file if it has no other name."""
  # PRIVACY: A process that is killed while it names a new key file leaves one
  # file with two names. If `discard` overwrote this file, the key under the
  # other name would be zeros, which everybody can guess. If a file has two
  # names, only the name `path` is removed.
  # Guard: files_test.test_secret_outlives_the_other_name_that_a_kill_left.
  if os.path.lexists(path) and path.lstat().st_nlink > 1:
    path.unlink()
  else:
    wipe(path)


def read(path: pathlib.Path) -> bytes:
  """Returns the bytes of a regular file, and refuses pipes and devices.

  Raises:
    ValueError: the path exists, and is not a regular file.
    OSError: the file cannot be read.
  """
  if path.exists() and not path.is_file():
    raise errors.value_error(f'file={path}: is not a regular file; give a file')
  return path.read_bytes()


def read_json(path: pathlib.Path) -> Json:
  """Returns the value in a JSON file; see `read` and `parse_json`.

  Raises:
    ValueError: the file is not JSON; the message names the file.
    OSError: the file cannot be read.
  """
  content = read(path)
  try:
    return parse_json(content)
  except ValueError as error:
    raise errors.value_error(
      f'file={path}: {json_fault(content, error)}; restore the file, or write '
      'it again as UTF-8'
    ) from error


def read_toml(path: Union[str, pathlib.Path], name: str) -> JsonObject:
  """Returns the content of a TOML file.

  Args:
    path: the file.
    name: kind of the file, for messages.

  Raises:
    ValueError: the file is not TOML.
    OSError: the file cannot be read.
  """
  try:
    return tomllib.loads(read(pathlib.Path(path)).decode())
  # Bytes that are not UTF-8 raise ValueError; deeply nested tables raise
  # RecursionError.
  except (RecursionError, ValueError) as error:
    raise errors.value_error(
      f'{name}={path}: is not TOML: {error}; correct it'
    ) from error


def toml_value(text: str) -> Json:
  """Returns the value of a TOML text, or the text itself if it is not TOML.

  >>> toml_value('[1, 2]'), toml_value('two words')
  ([1, 2], 'two words')
  """
  try:
    return tomllib.loads(f'value = {text}')['value']
  except (RecursionError, ValueError):
    return text


def toml_lines(table: JsonObject, name: str = '') -> Iterator[str]:
  """Yields the lines of a table in TOML.

  Args:
    table: the table; entries that are None are left out.
    name: dotted name of the table; '' for the whole file.
  """
  tables = {}
  for key, value in table.items():
    key = key if _BARE_KEY.fullmatch(key) else _toml(key)
    if isinstance(value, dict):
      tables[f'{name}.{key}' if name else key] = value
    elif value is not None:
      yield f'{key} = {_toml(value)}'
  for key, value in tables.items():
    yield from ('', f'[{key}]', *toml_lines(value, key))


def _toml(value: Json) -> str:
  """Returns a text, a number, a truth value or a list in the syntax of TOML."""
  return json.dumps(value, ensure_ascii=False).replace('\x7f', r'\u007f')


def json_fault(content: bytes, error: Exception) -> str:
  """Returns the fault of a text that `parse_json` refused.

  >>> json_fault(b'\\xef\\xbb\\xbf{}', ValueError())
  'begins with a byte order mark, which JSON does not allow'
  """
  for signature, fault in _SIGNATURES:
    if content.startswith(signature):
      return f'begins with {fault}, which JSON does not allow'
  if not content.strip():
    return 'is empty'
  if isinstance(error, json.JSONDecodeError):
    return f'is not JSON: {error.msg} in line {error.lineno}'
  if isinstance(error, UnicodeDecodeError):
    line = content.count(b'\n', 0, error.start) + 1
    return f'is not JSON: line {line} is not UTF-8'
  return f'is not JSON: {error}'


def parse_json(text: bytes) -> Json:
  """Returns the value of a JSON text from an untrusted source.

  A text that two programs could read in different ways is refused.

  Args:
    text: JSON in UTF-8.

  Raises:
    ValueError: the text is not JSON, has a key twice, has a NaN or an infinity,
      which JSON does not allow, or is nested too deeply.

  >>> parse_json(b'{"rounds": 3, "bands": [1]}')
  {'rounds': 3, 'bands': [1]}
  """
  try:
    return json.loads(
      text.decode(),
      object_pairs_hook=_without_repetition,
      parse_constant=_refuse,
    )
  except RecursionError as error:
    raise ValueError('JSON nested too deeply') from error


@contextlib.contextmanager
def naming(path: pathlib.Path, done: str) -> Iterator[None]:
  """Turns an OSError in the `with` block into an error with a one-line message.

  Args:
    path: path of the file, for the message.
    done: participle of the action that failed, such as 'read'.

  Raises:
    OSError: an error of the same class and number, with the new message.
  """
  try:
    yield
  except OSError as error:
    named_error = type(error)(
      errors.invalid(
        f'file={path}: cannot be {done} '
        f'({error.strerror or type(error).__name__}); look at the space, the '
        'permissions and the health of the disk'
      )
    )
    named_error.errno = error.errno
    raise named_error from None


def cache_directory() -> pathlib.Path:
  """Returns `$XDG_CACHE_HOME/tff_bandmf`, by default below `~/.cache`."""
  cache = os.environ.get('XDG_CACHE_HOME') or os.path.expanduser('~/.cache')
  return pathlib.Path(cache) / 'tff_bandmf'


@functools.cache
def code_digest(root: pathlib.Path = _PACKAGE) -> str:
  """Returns the SHA-256 of a package's code, for `run.json`.

  The digest covers the paths and the bytes of Python files, templates and JSON
  files in the package, in the order of the paths. The same code has the same
  digest, wherever it is installed. A process reads the files once: a package
  that is installed later does not change the code that the process runs.

  Args:
    root: folder of the package.
  """
  digest = hashlib.sha256()
  paths = (path for path in root.rglob('*') if path.suffix in _CODE)
  for name, path in sorted(
    (path.relative_to(root).as_posix(), path) for path in paths
  ):
    # Without lengths, the bytes hashed for different packages could be equal.
    for part in (name.encode(), path.read_bytes()):
      digest.update(len(part).to_bytes(8, 'big') + part)
  return digest.hexdigest()


def _fill(path: pathlib.Path, contents) -> None:
  with open(path, 'wb') as file:
    file.writelines(contents)


# PRIVACY: If a second process replaced the secret of a first process, noise of
# two keys would go into one run. A link fails if the file exists.
# Guard: files_test.test_first_of_two_that_make_a_secret_wins.
def _link(part: pathlib.Path, path: pathlib.Path) -> None:
  with contextlib.suppress(FileExistsError):
    os.link(part, path)


def _make_folder(path: pathlib.Path) -> None:
  """Makes a folder, and missing folders above it, with mode 0700."""
  if path.is_dir():
    return
  _make_folder(path.parent)
  path.mkdir(mode=0o700, exist_ok=True)
  sync(path.parent)


def _not_a_file(path: pathlib.Path, name: str) -> ValueError:
  return errors.value_error(f'{name}={path}: is a link or no file; give a file')


def _without_repetition(pairs: list[tuple[str, Json]]) -> JsonObject:
  table = dict(pairs)
  if len(table) < len(pairs):
    raise ValueError('a JSON object has a key twice')
  return table


def _refuse(constant: str) -> None:
  raise ValueError(f'{constant} is not JSON')
