"""Corpus files: SQLite files with the tables of TFF's `SqlClientData`.

    examples(split_name, client_id, serialized_example_proto)
    client_metadata(client_id, split_name, num_examples)

Each row of `examples` holds a serialized `tf.train.Example`, whose feature
`tokens` is a sentence with single spaces between the words. TFF's StackOverflow
file, the other corpora of this folder and the files of
`simulations/import_data.py` have these tables.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import pathlib
import sqlite3
from collections.abc import Iterable, Iterator
from typing import Callable, Optional

import tqdm

from simulations.corpora import checksums
from tff_bandmf import _files, errors

with errors.importing('a corpus'):
  import tensorflow as tf

# TFF's names of the splits; 'heldout' is the validation split.
SPLIT_NAMES = ('train', 'heldout', 'test')

# Part of the names of cached files. Raise this number when their content
# changes.
_CACHE_VERSION = 1


@dataclasses.dataclass(frozen=True)
class Content:
  """A corpus file and its state at one moment.

  Attributes:
    path: path of the file.
    size: size of the file, in bytes.
    mtime_ns: time of the file's last change, in nanoseconds since the epoch.
    digest: SHA-256 of the file, in hexadecimal. If the file has a table
      `corpus` with the checksum of its clients, SHA-256 of that checksum.
  """

  path: str
  size: int
  mtime_ns: int
  digest: str

  @classmethod
  def from_file(
    cls,
    path: str,
    cache_directory: Optional[str] = None,
    progress: bool = True,
  ) -> Content:
    """Returns the content of a file; a large file is hashed only once.

    Args:
      path: path of the file.
      cache_directory: folder of the cached digest of a file without a table
        `corpus`; None for the default folder of `cache_path`.
      progress: whether to draw a progress bar on standard error.

    Raises:
      FileNotFoundError: `path` is not a file.
      ValueError: the file lacks one of the tables, or its checksum is not the
        checksum in PATH.sha256.
    """
    with _open(path) as connection:
      try:
        rows = connection.execute('SELECT checksum FROM corpus').fetchall()
      except sqlite3.OperationalError:
        rows = None
    stat = os.stat(path)
    if rows is not None:
      digest = hashlib.sha256(repr(rows).encode()).hexdigest()
      return cls(path, stat.st_size, stat.st_mtime_ns, digest)
    cached = cache_path(path, cache_directory, 'sha256.json')
    with contextlib.suppress(OSError, ValueError, TypeError):
      with open(cached) as file:
        content = cls(path=path, **json.load(file))
      if (content.size, content.mtime_ns) == (stat.st_size, stat.st_mtime_ns):
        checksums.require_published_sha256(path, content.digest)
        return content
    content = cls(
      path, stat.st_size, stat.st_mtime_ns, checksums.sha256(path, progress)
    )
    checksums.require_published_sha256(path, content.digest)
    content.remember(cache_directory)
    return content

  def remember(self, cache_directory: Optional[str] = None) -> None:
    """Caches the digest, so that an unchanged file is not hashed again.

    Args:
      cache_directory: folder of the cached digest; None for the default folder
        of `cache_path`.
    """
    record = dataclasses.asdict(self)
    del record['path']
    cached = cache_path(self.path, cache_directory, 'sha256.json')
    _files.write_json(pathlib.Path(cached), record)

  @contextlib.contextmanager
  def open(self) -> Iterator[sqlite3.Connection]:
    """Opens the file to read.

    Raises:
      ValueError: the content of the file was changed after `from_file`.
    """
    stat = os.stat(self.path)
    if (stat.st_size, stat.st_mtime_ns) != (self.size, self.mtime_ns) and (
      Content.from_file(self.path, progress=False).digest != self.digest
    ):
      raise errors.value_error(
        f'path={self.path}: was changed while it was in use; start again, and '
        'leave the file unchanged'
      )
    with _open(self.path) as connection:
      yield connection


@contextlib.contextmanager
def _open(path: str) -> Iterator[sqlite3.Connection]:
  """Opens a corpus file to read; raises errors with messages of one line."""
  if not os.path.isfile(path):
    raise FileNotFoundError(
      errors.invalid(
        f'path={path}: there is no such file; give data.corpus a file that '
        'simulations.import_data made'
      )
    )
  uri = pathlib.Path(path).absolute().as_uri() + '?mode=ro'
  with contextlib.closing(sqlite3.connect(uri, uri=True)) as connection:
    try:
      tables = {
        name for (name,) in connection.execute('SELECT name FROM sqlite_master')
      }
    except sqlite3.DatabaseError as error:
      raise errors.value_error(
        f'path={path}: must be a SQLite file; SQLite says: {error}'
      ) from error
    missing = {'examples', 'client_metadata'} - tables
    if missing:
      raise errors.value_error(
        f'path={path}: lacks the table {" and ".join(sorted(missing))}; give a '
        "file in the form of TFF's SqlClientData"
      )
    yield connection


def cache_path(path: str, cache_directory: Optional[str], name: str) -> str:
  """Returns the path of a cached file that is made from a corpus file.

  Args:
    path: path of the corpus file.
    cache_directory: folder of the cached file, made if missing. None for the
      folder of `path` or, if that folder is read-only, the user's cache folder.
    name: end of the cached file's name, unique among the files made from
      `path`.
  """
  directory = cache_directory or os.path.dirname(path) or '.'
  if cache_directory is None and not os.access(directory, os.W_OK):
    directory = str(_files.cache_directory())
  os.makedirs(directory, exist_ok=True)
  stem = os.path.splitext(os.path.basename(path))[0]
  return os.path.join(directory, f'{stem}-{_CACHE_VERSION}-{name}')


def require_split(connection: sqlite3.Connection, split_name: str) -> None:
  """Raises ValueError if the file has no client in this split."""
  names = [
    name
    for (name,) in connection.execute(
      'SELECT DISTINCT split_name FROM client_metadata ORDER BY split_name'
    )
  ]
  if split_name not in names:
    raise errors.value_error(
      f'split_name={split_name}: must be a split of the file, which has '
      f'{", ".join(names) or "none"}; give one of them, or another file'
    )


def client_sizes(
  connection: sqlite3.Connection, split_name: str
) -> tuple[tuple[str, ...], list[int]]:
  """Returns the sorted ids of a split's clients, and their sentence counts."""
  client_ids, sizes = [], []
  for client_id, size in connection.execute(
    'SELECT client_id, SUM(num_examples) FROM client_metadata '
    'WHERE split_name = ? GROUP BY client_id ORDER BY client_id',
    (split_name,),
  ):
    client_ids.append(client_id)
    sizes.append(size)
  return tuple(client_ids), sizes


def finds_clients(connection: sqlite3.Connection) -> bool:
  """Returns whether the table `examples` has an index by client."""
  for row in connection.execute('PRAGMA index_list(examples)').fetchall():
    columns = [
      name
      for _, _, name in connection.execute(
        'SELECT * FROM pragma_index_info(?)', (row[1],)
      )
    ]
    if columns[0] == 'client_id' or columns[:2] == ['split_name', 'client_id']:
      return True
  return False


def client_sentences(
  connection: sqlite3.Connection, split_name: str, client_id: str, limit: int
) -> list[str]:
  """Returns the first `limit` sentences of a client, in the file's order."""
  return [
    _sentence(serialized)
    for (serialized,) in connection.execute(
      'SELECT serialized_example_proto FROM examples '
      'WHERE client_id = ? AND split_name = ? ORDER BY rowid LIMIT ?',
      (client_id, split_name, limit),
    )
  ]


def sentences(
  connection: sqlite3.Connection,
  split_name: str,
  progress: bool,
  description: str,
) -> Iterator[tuple[str, str]]:
  """Yields (client id, sentence) of a split, in the order of the file.

  Args:
    connection: result of `Content.open`.
    split_name: name of the split.
    progress: whether to draw a progress bar on standard error.
    description: start of the progress bar's text.
  """
  (total,) = connection.execute(
    'SELECT SUM(num_examples) FROM client_metadata WHERE split_name = ?',
    (split_name,),
  ).fetchone()
  rows = connection.execute(
    'SELECT client_id, serialized_example_proto FROM examples '
    'WHERE split_name = ? ORDER BY rowid',
    (split_name,),
  )
  for client_id, serialized in tqdm.tqdm(
    rows,
    total=total,
    desc=f'{description} {split_name}',
    unit='sentence',
    disable=None if progress else True,
  ):
    yield client_id, _sentence(serialized)


def _sentence(serialized: bytes) -> str:
  example = tf.train.Example.FromString(serialized)
  (tokens,) = example.features.feature['tokens'].bytes_list.value
  return tokens.decode('utf-8', 'replace')


def write(
  path: str,
  rows: Iterable[tuple[str, str, str, str]],
  checksum: Callable[[], str],
) -> None:
  """Writes a corpus file.

  An example has the features of TFF's StackOverflow data; `creation_date`,
  `score`, `title` and `type` are constants. The file appears under its name
  when it is complete, and replaces an existing file. The memory use does not
  grow with the number of rows.

  Args:
    path: path of the file; its directory must exist.
    rows: tuples (split name, client id, tags, sentence) in the order in which
      they are written.
    checksum: function that is called after the last row. Its result is stored
      in the table `corpus`, which TFF ignores.
  """
  with _files.replacing(path) as temporary:
    with contextlib.closing(sqlite3.connect(temporary)) as connection:
      connection.executescript(
        """
        PRAGMA journal_mode = OFF;
        PRAGMA synchronous = OFF;
        CREATE TABLE examples (
          split_name TEXT NOT NULL,
          client_id TEXT NOT NULL,
          serialized_example_proto BLOB NOT NULL);
        CREATE TABLE client_metadata (
          client_id TEXT NOT NULL,
          split_name TEXT NOT NULL,
          num_examples INTEGER NOT NULL);
        CREATE TABLE corpus (checksum TEXT NOT NULL);
        """
      )
      connection.executemany(
        'INSERT INTO examples VALUES (?, ?, ?)', _serialized(rows)
      )
      connection.executescript(
        """
        CREATE INDEX examples_client ON examples (client_id, split_name);
        INSERT INTO client_metadata
          SELECT client_id, split_name, COUNT(*) FROM examples
          GROUP BY client_id, split_name;
        """
      )
      connection.execute('INSERT INTO corpus VALUES (?)', (checksum(),))
      connection.commit()


def _serialized(
  rows: Iterable[tuple[str, str, str, str]],
) -> Iterator[tuple[str, str, bytes]]:
  """Yields the rows of the table `examples`."""
  example = tf.train.Example()
  feature = example.features.feature
  feature['creation_date'].bytes_list.value.append(b'1970-01-01 00:00:00 UTC')
  feature['score'].int64_list.value.append(0)
  feature['title'].bytes_list.value.append(b'')
  feature['type'].bytes_list.value.append(b'answer')
  for split_name, client_id, tags, sentence in rows:
    feature['tags'].bytes_list.value[:] = [tags.encode()]
    feature['tokens'].bytes_list.value[:] = [sentence.encode()]
    yield split_name, client_id, example.SerializeToString()
