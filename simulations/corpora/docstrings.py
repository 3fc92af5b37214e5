"""A federated text corpus from the docstrings of installed packages.

The corpus is real English text that needs no download. It is the same on every
machine, because every lock file pins the packages to one version. The sources
of the packages are parsed, never imported. One client is one top-level class
with the docstrings of its methods, or one top-level function. Its text is the
set of the distinct sentences in these docstrings.

A client with the same text as an earlier client is dropped; TensorFlow and
TensorFlow Probability have generated copies of files. Different clients share
sentences: 43% of the test sentences, such as 'a name for the operation
optional', are also in the train split. So accuracies are higher than on
StackOverflow.

`cached_corpus` writes the corpus to a file as `corpus_file` describes it.
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

# Name and version of each distribution. Every lock file under requirements/
# pins these versions, and the wheels of one version for Python 3.9, 3.10 and
# 3.11 hold the same sources.
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

# Part of the file's name. Raise this number when a rule of this module or of
# `docstring_text` changes the corpus.
VERSION = 1
# Result of `checksum` for the clients of `PACKAGES`.
CHECKSUM = 'bf6095cb430e2c8de525f413fd70e1fd48982af37e538a397c386ac213ed69af'

# Files that the build of a wheel writes; they differ between machines.
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
  """One top-level class or function of an installed package.

  Attributes:
    client_id: 'path/below/site-packages.py:name', unique.
    package: name of the distribution.
    sentences: at least two distinct sentences in the order of the source, each
      of 3 to 20 lower-case words (ASCII letters, digits, inner apostrophes)
      with single spaces between them.
  """

  client_id: str
  package: str
  sentences: tuple[str, ...]

  @property
  def split_name(self) -> str:
    """Returns the split of the client, which SHA-256 of its id determines.

    About 80 % of the clients are in 'train', 10 % in 'heldout' and 10 % in
    'test'.
    """
    digest = hashlib.sha256(self.client_id.encode('utf-8')).digest()
    bucket = int.from_bytes(digest[:8], 'big') % 10
    return corpus_file.SPLIT_NAMES[max(0, bucket - 7)]


def _docstrings(definition: _Definition) -> Iterator[str]:
  """Yields the docstring of a function, or of a class and all its members."""
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
  """Yields the clients of one source file, in the order of the file."""
  with warnings.catch_warnings():
    # Most of the warnings are about invalid escapes in string literals.
    warnings.simplefilter('ignore')
    module = ast.parse(source, path)
  # Several definitions of one name, such as overloads, are one client.
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
  """Yields (path below site-packages, absolute path), sorted."""
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
  """Pauses garbage collection, which halves the time to parse the sources.

  The many objects of syntax trees trigger collections. A collection visits all
  objects of TensorFlow, too, and finds nothing, because syntax trees have no
  cycles.
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
    packages: pairs of the name and the required version of a distribution.
    progress: whether to draw a progress bar on standard error.

  Returns:
    Clients with different texts. If several clients have the same text, the
    first one is returned.

  Raises:
    ValueError: a package is missing, lacks a file or has a wrong version.
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
          f'{package}={path}: the installed package lacks this file; '
          "rebuild the environment with 'rm -rf .venv; make env'"
        ) from error
      for client in _clients_of_file(path, package, source):
        clients.setdefault(client.sentences, client)
  return list(clients.values())


def checksum(clients: Iterable[Client]) -> str:
  """Returns the SHA-256, in hexadecimal, of the content of a corpus.

  The content is the split, the id and the sentences of each client, in the
  order of the ids.
  """
  digest = hashlib.sha256()
  for client in sorted(clients, key=lambda c: c.client_id):
    row = [client.split_name, client.client_id, *client.sentences]
    digest.update(json.dumps(row).encode('ascii') + b'\n')
  return digest.hexdigest()


def write_clients(
  clients: Sequence[Client], path: str, progress: bool = False
) -> None:
  """Writes clients to a SQLite file with `corpus_file.write`.

  The table `corpus` holds the `checksum` of the clients. The feature `tags` of
  an example is the name of the package.

  Args:
    clients: clients in the order in which they are written.
    path: path of the file; its directory must exist.
    progress: whether to draw a progress bar on standard error.
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
  """Returns the path of the corpus; builds the file if it is missing.

  Args:
    directory: folder of the file `docstrings-<VERSION>.sqlite`, made if
      missing; None for the user's cache folder.
    packages: argument of `read_clients`. Different packages need different
      directories.
    expected_checksum: result of `checksum` for the clients of `packages`.
    progress: whether to draw progress bars on standard error while building.

  Raises:
    ValueError: a package is missing, lacks a file or has a wrong version, or
      the clients do not have the expected checksum. In these cases no file is
      written.
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
      f'checksum={actual[:16]}: the checksum of the docstring corpus must be '
      f'{expected_checksum[:16]}; the sources of an installed package differ '
      "from its release: rebuild the environment with 'rm -rf .venv; make env'"
    )
  os.makedirs(directory, exist_ok=True)
  write_clients(clients, path, progress)
  return path


CORPUS = registry.Corpus('docstrings', lambda data_dir: cached_corpus())
