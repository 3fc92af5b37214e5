"""A federated text corpus from the docstrings of installed packages.

The corpus is real English text that needs no download and is the same on every
machine: every lock file pins the packages to one version. Their sources are
parsed, never imported. One client is one top-level class, with the docstrings
of its methods, or one top-level function.
`cached_corpus` returns a SQLite file in the form of TFF's `SqlClientData` with
the columns of TFF's StackOverflow data, so one reader serves both.
`CHECKSUM` is over the logical content: split, client, sentences. Clients with
the same text as an earlier client (generated copies in TensorFlow and
TensorFlow Probability) are dropped. Sentences still repeat: 43% of the test
sentences, such as 'a name for the operation optional', are also in the train
split, so accuracies are higher than on StackOverflow.
"""

import ast
import contextlib
import dataclasses
import gc
import hashlib
import importlib.metadata
import json
import os
import pathlib
import sqlite3
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Optional, Union

import tqdm

from simulations.corpora import corpus_file, docstring_text, registry
from tff_bandmf import _files, errors

# Distribution and version. Each is pinned in every lock under requirements/,
# and its wheels for Python 3.9, 3.10 and 3.11 hold the same sources.
PACKAGES = (
  ('absl-py', '1.4.0'),
  ('dp-accounting', '0.4.3'),
  ('google-vizier', '0.1.11'),
  ('jax', '0.4.30'),
  ('jinja2', '3.1.6'),
  ('keras', '2.14.0'),
  ('matplotlib', '3.9.4'),
  ('numpy', '1.25.2'),
  ('pygments', '2.21.0'),
  ('scikit-learn', '1.6.1'),
  ('scipy', '1.9.3'),
  ('sqlalchemy', '1.4.54'),
  ('tensorboard', '2.14.1'),
  ('tensorflow', '2.14.1'),
  ('tensorflow-estimator', '2.14.0'),
  ('tensorflow-federated', '0.87.0'),
  ('tensorflow-model-optimization', '0.7.5'),
  ('tensorflow-privacy', '0.9.0'),
  ('tensorflow-probability', '0.22.1'),
)

# Part of the file's name: raise it when the rules below change.
VERSION = 1
CHECKSUM = 'bf6095cb430e2c8de525f413fd70e1fd48982af37e538a397c386ac213ed69af'

# Files that are written when a wheel is built differ between machines.
_GENERATED_FILES = frozenset(
  ['__config__.py', '_version.py', 'build_info.py', 'version.py']
)
# Files with `match` statements, which Python 3.9 cannot parse.
_NEWER_SYNTAX_FILES = frozenset(
  [
    'jax/experimental/mosaic/gpu/fragmented_array.py',
    'vizier/_src/pyglove/backend.py',
  ]
)

_DEFINITIONS = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_Definition = Union[ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef]


@dataclasses.dataclass(frozen=True)
class Client:
  """One class or function.

  Attributes:
    client_id: `'path/in/site-packages.py:name'`, unique.
    package: Name of its distribution.
    sentences: At least two distinct ones, each 3 to 20 lower-case words (ASCII
      letters, digits, inner apostrophes) with single spaces between them, in
      the order of the source.
  """

  client_id: str
  package: str
  sentences: tuple[str, ...]

  @property
  def split_name(self) -> str:
    """Returns the split, by SHA-256 of the id: 80, 10 and 10 per cent."""
    digest = hashlib.sha256(self.client_id.encode('utf-8')).digest()
    bucket = int.from_bytes(digest[:8], 'big') % 10
    return corpus_file.SPLIT_NAMES[max(0, bucket - 7)]


def _docstrings(definition: _Definition) -> Iterator[str]:
  """Yields the docstring of a function, or of a class and what it defines."""
  docstring = ast.get_docstring(definition, clean=False)
  if docstring:
    yield docstring
  if isinstance(definition, ast.ClassDef):
    for node in definition.body:
      if isinstance(node, _DEFINITIONS):
        yield from _docstrings(node)


def _clients_of_file(
  path: str, package: str, source: bytes
) -> Iterator[Client]:
  """Yields the clients of one source file, in its order."""
  with warnings.catch_warnings():
    warnings.simplefilter('ignore')  # Invalid escapes, mostly.
    module = ast.parse(source, path)
  # Overloads and platform variants of one name are one client.
  sentences_by_name: dict[str, dict[str, None]] = {}
  for node in module.body:
    if isinstance(node, _DEFINITIONS):
      sentences = sentences_by_name.setdefault(node.name, {})
      for docstring in _docstrings(node):
        sentences.update(
          dict.fromkeys(docstring_text.extract_sentences(docstring))
        )
  for name, sentences in sentences_by_name.items():
    if len(sentences) >= 2:
      yield Client(f'{path}:{name}', package, tuple(sentences))


def _source_files(package: str, version: str) -> Iterator[tuple[str, str]]:
  """Yields the path below site-packages and the whole path, sorted."""
  try:
    distribution = importlib.metadata.distribution(package)
    installed = distribution.version
  except importlib.metadata.PackageNotFoundError:
    installed = 'none'
  if installed != version:
    raise errors.value_error(
      f'{package}={installed}: the docstring corpus is built from {package} '
      f"{version}; install the lock of this Python with 'make env'"
    )
  paths = sorted(
    file.as_posix()
    for file in distribution.files or ()
    if file.suffix == '.py'
    and '..' not in file.parts
    and file.name not in _GENERATED_FILES
  )
  for path in paths:
    if path not in _NEWER_SYNTAX_FILES:
      yield path, str(distribution.locate_file(path))


@contextlib.contextmanager
def _garbage_collection_paused() -> Iterator[None]:
  """Pauses garbage collection while sources are parsed, which halves the time.

  Syntax trees have no cycles but many objects, and so trigger collections, each
  of which also visits all objects of TensorFlow.
  """
  was_enabled = gc.isenabled()
  gc.disable()
  try:
    yield
  finally:
    if was_enabled:
      gc.enable()


def read_clients(
  packages: Sequence[tuple[str, str]] = PACKAGES, progress: bool = False
) -> list[Client]:
  """Returns the clients of the installed packages.

  Args:
    packages: Pairs of a distribution's name and its required version. If
      several clients have the same text, only the first one is returned.
    progress: Whether to draw a progress bar on standard error.

  Raises:
    ValueError: A package is missing or has another version.
  """
  files = [
    (package, *paths)
    for package, version in packages
    for paths in _source_files(package, version)
  ]
  bar = tqdm.tqdm(
    files,
    desc='reading docstrings',
    unit='file',
    disable=None if progress else True,
  )
  clients: dict[tuple[str, ...], Client] = {}
  with _garbage_collection_paused():
    for package, path, location in bar:
      try:
        source = pathlib.Path(location).read_bytes()
      except FileNotFoundError as error:
        raise errors.value_error(
          f'{package}={path}: this file of the installed package is not there; '
          "rebuild the environment with 'rm -rf .venv; make env'"
        ) from error
      for client in _clients_of_file(path, package, source):
        clients.setdefault(client.sentences, client)
  return list(clients.values())


def checksum(clients: Iterable[Client]) -> str:
  """Returns the SHA-256 of split, id and sentences, sorted by id."""
  digest = hashlib.sha256()
  for client in sorted(clients, key=lambda c: c.client_id):
    row = [client.split_name, client.client_id, *client.sentences]
    digest.update(json.dumps(row).encode('ascii') + b'\n')
  return digest.hexdigest()


def write_clients(
  clients: Sequence[Client], path: str, progress: bool = False
) -> None:
  """Writes a SQLite file that TFF's `SqlClientData` reads.

  See `corpus_file.write`; the table `corpus` holds the `checksum` of the
  clients, and `tags` the name of the package.

  Args:
    clients: Written in this order.
    path: The file; its directory must exist.
    progress: Whether to draw a progress bar on standard error.
  """
  bar = tqdm.tqdm(
    clients,
    desc='writing the corpus',
    unit='client',
    disable=None if progress else True,
  )
  rows = (
    (client.split_name, client.client_id, client.package, sentence)
    for client in bar
    for sentence in client.sentences
  )
  corpus_file.write(path, rows, lambda: checksum(clients))


def _has_checksum(path: str, expected: str) -> bool:
  if not os.path.exists(path):
    return False
  try:
    with contextlib.closing(sqlite3.connect(path)) as connection:
      return connection.execute('SELECT checksum FROM corpus').fetchall() == [
        (expected,)
      ]
  except sqlite3.DatabaseError:
    return False


def cached_corpus(
  directory: Optional[str] = None,
  packages: Sequence[tuple[str, str]] = PACKAGES,
  expected_checksum: str = CHECKSUM,
  progress: bool = True,
) -> str:
  """Returns the path of the corpus, built if it is not there.

  Args:
    directory: Where `docstrings-<VERSION>.sqlite` is or will be; None for
      the cache of the user. Made if missing.
    packages: See `read_clients`. Another choice needs another directory.
    expected_checksum: result of `checksum` for `packages`.
    progress: Whether to draw progress bars on standard error while building.

  Raises:
    ValueError: A package is missing or has another version, or the text is not
      the expected one. No file is written then.
  """
  if directory is None:
    directory = str(_files.cache_directory())
  path = os.path.join(directory, f'docstrings-{VERSION}.sqlite')
  if _has_checksum(path, expected_checksum):
    return path
  clients = read_clients(packages, progress)
  actual = checksum(clients)
  if actual != expected_checksum:
    raise errors.value_error(
      f'checksum={actual[:16]}: that of the docstring corpus must be '
      f'{expected_checksum[:16]}, so the sources of an installed package '
      "differ from its release; rebuild the environment with 'rm -rf .venv; "
      "make env'"
    )
  os.makedirs(directory, exist_ok=True)
  write_clients(clients, path, progress)
  return path


CORPUS = registry.Corpus('docstrings', lambda data_dir: cached_corpus())
