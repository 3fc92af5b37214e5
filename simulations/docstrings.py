"""A federated text corpus from the docstrings of installed packages.

Real English text, no download, the same on every machine: the sources of
packages that every lock pins to one version are parsed, never imported. One
client is one top-level class (with the docstrings of its methods) or function.
`cached_corpus` returns a SQLite file in the form of TFF's `SqlClientData` with
the columns of TFF's StackOverflow data, so what reads the one reads the other:

    examples(split_name, client_id, serialized_example_proto)
    client_metadata(client_id, split_name, num_examples)

`CHECKSUM` is over the logical content: split, client, sentences. Text that
would be noise to a next-word model is left out: code blocks, doctests,
formulas, tables, the type lines of parameter lists, licences. Clients whose
whole text repeats an earlier one (the generated copies in TensorFlow and
TensorFlow Probability) are dropped. The corpus is formulaic all the same: 43%
of the test sentences, such as 'a name for the operation optional', also stand
in the train split, so accuracies on it are higher than on StackOverflow.
"""

import ast
import contextlib
import dataclasses
import gc
import hashlib
import importlib.metadata
import inspect
import json
import os
import pathlib
import re
import sqlite3
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Optional

import tqdm

from tff_bandmf import errors

# TFF's names; 'heldout' is the validation split.
SPLIT_NAMES = ('train', 'heldout', 'test')

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

MAX_WORDS = 20  # A sentence is cut here, as TFF cuts StackOverflow's.
_MIN_WORDS = 3
_MIN_LETTER_SHARE = 0.7  # Of what is not space; less is code or a table.

# Written when a wheel is built: these differ between machines.
_GENERATED_FILES = frozenset(
  ['__config__.py', '_version.py', 'build_info.py', 'version.py']
)
# `match` statements: no syntax of Python 3.9.
_NEWER_SYNTAX_FILES = frozenset(
  [
    'jax/experimental/mosaic/gpu/fragmented_array.py',
    'vizier/_src/pyglove/backend.py',
  ]
)

_PROSE_DIRECTIVES = (
  'deprecated|important|note|seealso|tip|versionadded|versionchanged|warning'
)
_DIRECTIVE = re.compile(rf'\.\. (?:{_PROSE_DIRECTIVES})::\s*[\d.]*\s*')
_RULE = re.compile(r'[-=~^*#+|_.:`\s]+', re.ASCII)
_TYPED_PARAMETER = re.compile(r'[\w*`, .]+ : ', re.ASCII)  # 'axis : int'
_ITEM = re.compile(
  r':\w+[^:`]*:\s+'  # ':param x: ...'
  r'|[*`]*\w+[*`]*(?: \([^)]*\))?:\s+'  # 'x (int): ...'
  r'|(?:[-*+]|\d+[.)])\s+',  # '1. ...'
  re.ASCII,
)
_MARKUP = re.compile(
  r'https?://\S+|\S+@\S+\.\S+|:math:`[^`]*`|\$[^$]*\$|:\w+:(?=`)|%\(\w+\)s',
  re.ASCII,
)
_SENTENCE_END = re.compile(r'(?<=[.!?])[)\'"]*\s+(?=[^a-z])', re.ASCII)
_WORD = re.compile(r"[a-z0-9]+(?:'[a-z]+)*")
_LETTER = re.compile(r'[A-Za-z]')
_LICENCE = re.compile(r'licen[sc]e|copyright|warranties|all rights reserved')

_DEFINITIONS = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


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
    return SPLIT_NAMES[max(0, bucket - 7)]


def _prose_lines(docstring: str) -> Iterator[str]:
  """Yields the stripped lines outside code, and '' for the others."""
  block_indent: Optional[int] = None  # A literal block is deeper than this.
  in_fence = in_doctest = False
  for line in inspect.cleandoc(docstring).split('\n'):
    text = line.strip()
    indent = len(line) - len(line.lstrip())
    if text.startswith('```'):
      in_fence = not in_fence
      text = ''
    elif not text:
      in_doctest = False
    elif block_indent is not None and indent <= block_indent:
      block_indent = None
    in_doctest = in_doctest or text.startswith('>>>')
    if in_fence or in_doctest or block_indent is not None:
      yield ''
      continue
    text = _DIRECTIVE.sub('', text)
    if text.endswith('::') or text.startswith('..'):
      block_indent = indent
    yield '' if text.startswith('..') else text


def _paragraphs(docstring: str) -> Iterator[str]:
  """Yields the runs of prose lines, each joined by spaces."""
  lines: list[str] = []
  for text in _prose_lines(docstring):
    item = _ITEM.match(text)
    if _RULE.fullmatch(text):
      del lines[-1:]  # What is underlined is a heading or a row of a table.
      text = ''
    elif _TYPED_PARAMETER.match(text):
      text = ''
    if item or not text:
      if lines:
        yield ' '.join(lines)
      lines = []
    if text:
      lines.append(text[item.end() :] if item else text)
  if lines:
    yield ' '.join(lines)


def extract_sentences(docstring: str) -> list[str]:
  """Returns the distinct sentences of a docstring, in order.

  Args:
    docstring: As in the source, indented.

  Returns:
    Sentences of 3 to 20 lower-case words with single spaces between them.

  >>> extract_sentences('Adds x.  See https://a.b for the rest, or ask me.')
  ['see for the rest or ask me']
  """
  sentences = {}
  for paragraph in _paragraphs(docstring):
    for sentence in _SENTENCE_END.split(_MARKUP.sub(' ', paragraph)):
      words = _WORD.findall(sentence.lower())[:MAX_WORDS]
      letters = len(_LETTER.findall(sentence))
      solid = len(sentence) - sentence.count(' ')
      if len(words) < _MIN_WORDS or letters < _MIN_LETTER_SHARE * solid:
        continue
      text = ' '.join(words)
      if not _LICENCE.search(text):
        sentences[text] = None
  return list(sentences)


def _docstrings(definition: ast.AST) -> Iterator[str]:
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
        sentences.update(dict.fromkeys(extract_sentences(docstring)))
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
    raise ValueError(
      errors.invalid(
        package,
        installed,
        f'the docstring corpus is built from {package} {version}',
        "install the lock of this Python with 'make env'",
      )
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
  """Halves the time of parsing after TensorFlow is imported.

  Syntax trees have no cycles, but are many objects: each collection that they
  trigger also visits all of TensorFlow's.
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
    packages: Pairs of a distribution's name and the version it must have. Of
      clients with the same text, the first in this order stays.
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
  clients = {}
  with _garbage_collection_paused():
    for package, path, location in bar:
      try:
        source = pathlib.Path(location).read_bytes()
      except FileNotFoundError as error:
        raise ValueError(
          errors.invalid(
            package,
            path,
            'this file of the installed package is not there',
            "rebuild the environment with 'rm -rf .venv; make env'",
          )
        ) from error
      for client in _clients_of_file(path, package, source):
        clients.setdefault(client.sentences, client)
  return list(clients.values())


def checksum(clients: Iterable[Client]) -> str:
  """Returns the SHA-256 of split, id and sentences, whatever the order."""
  digest = hashlib.sha256()
  for client in sorted(clients, key=lambda c: c.client_id):
    row = [client.split_name, client.client_id, *client.sentences]
    digest.update(json.dumps(row).encode('ascii') + b'\n')
  return digest.hexdigest()


def _serialized_examples(clients: Sequence[Client], progress: bool):
  """Yields the rows of the table `examples`."""
  import tensorflow as tf  # Here: `read_clients` needs no TensorFlow.

  example = tf.train.Example()
  feature = example.features.feature
  feature['creation_date'].bytes_list.value.append(b'1970-01-01 00:00:00 UTC')
  feature['score'].int64_list.value.append(0)
  feature['title'].bytes_list.value.append(b'')
  feature['type'].bytes_list.value.append(b'answer')
  for client in tqdm.tqdm(
    clients,
    desc='writing the corpus',
    unit='client',
    disable=None if progress else True,
  ):
    feature['tags'].bytes_list.value[:] = [client.package.encode()]
    for sentence in client.sentences:
      feature['tokens'].bytes_list.value[:] = [sentence.encode()]
      row = example.SerializeToString()
      yield client.split_name, client.client_id, row


def write_clients(
  clients: Sequence[Client], path: str, progress: bool = False
) -> None:
  """Writes a SQLite file that TFF's `SqlClientData` reads.

  The file appears under its name when it is complete, and replaces one that is
  there. Its table `corpus` holds the `checksum` of the clients; TFF ignores it.
  `creation_date`, `score`, `title` and `type` are constants; `tags` is the name
  of the package.

  Args:
    clients: Written in this order.
    path: The file; its directory must exist.
    progress: Whether to draw a progress bar on standard error.
  """
  handle, temporary = tempfile.mkstemp(
    prefix=os.path.basename(path) + '.', dir=os.path.dirname(path) or '.'
  )
  os.close(handle)
  try:
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
        'INSERT INTO examples VALUES (?, ?, ?)',
        _serialized_examples(clients, progress),
      )
      connection.executemany(
        'INSERT INTO client_metadata VALUES (?, ?, ?)',
        ((c.client_id, c.split_name, len(c.sentences)) for c in clients),
      )
      connection.execute('INSERT INTO corpus VALUES (?)', (checksum(clients),))
      connection.execute(
        'CREATE INDEX examples_client_id ON examples (client_id)'
      )
      connection.commit()
    os.chmod(temporary, 0o644)
    os.replace(temporary, path)
  except BaseException:
    os.unlink(temporary)
    raise


def default_directory() -> str:
  """Returns `$XDG_CACHE_HOME/tff_bandmf`, by default below `~/.cache`."""
  cache = os.environ.get('XDG_CACHE_HOME') or os.path.expanduser('~/.cache')
  return os.path.join(cache, 'tff_bandmf')


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
      `default_directory()`. Made if missing.
    packages: See `read_clients`. Another choice needs another directory.
    expected_checksum: What `checksum` gives for `packages`.
    progress: Whether to draw progress bars on standard error while building.

  Raises:
    ValueError: A package is missing or has another version, or the text is not
      the expected one. No file is written then.
  """
  directory = default_directory() if directory is None else directory
  path = os.path.join(directory, f'docstrings-{VERSION}.sqlite')
  if _has_checksum(path, expected_checksum):
    return path
  clients = read_clients(packages, progress)
  found = checksum(clients)
  if found != expected_checksum:
    raise ValueError(
      errors.invalid(
        'checksum',
        found[:16],
        f'that of the docstring corpus must be {expected_checksum[:16]}, so '
        'the sources of an installed package differ from its release',
        "rebuild the environment with 'rm -rf .venv; make env'",
      )
    )
  os.makedirs(directory, exist_ok=True)
  write_clients(clients, path, progress)
  return path
