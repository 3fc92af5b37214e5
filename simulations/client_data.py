"""Clients' sentences as arrays of token ids, from a SQLite file of TFF's form.

Reads the docstring corpus (`simulations/docstrings.py`) and TFF's StackOverflow
file alike: tables `examples` and `client_metadata`, each example a serialized
`tf.train.Example` whose feature `tokens` is a sentence with spaces between the
words. TFF tokenises strings in every round; here each split is tokenised once,
to a file next to the SQLite file, and a client's data set is a slice of it.

PRIVACY: the vocabulary is the exact list of the most frequent words of the
train split. As in the field, no guarantee of a training run covers this choice.
"""

import collections
import contextlib
import dataclasses
import functools
import hashlib
import itertools
import os
import pathlib
import sqlite3
import tempfile
from collections.abc import Iterator
from typing import BinaryIO, Callable, Optional

import numpy as np
import tensorflow as tf
import tqdm

from tff_bandmf import errors

_CACHE_VERSION = 1  # Raise it when what is cached changes.
_WORDS_CACHED = 200_000


@dataclasses.dataclass(frozen=True)
class Vocabulary:
  """Words and their ids, in the order of TFF's StackOverflow task.

  0 pads, 1 to V are the words, then come out-of-vocabulary, beginning and end
  of sentence. A model has `num_ids` = V + 4 rows of embeddings and of logits.

  Attributes:
    words: V distinct words; word `i` has id `i + 1`.

  >>> Vocabulary(('the', 'of')).encode('the heart of the matter', 6)
  [4, 1, 3, 2, 1, 3, 5]
  """

  words: tuple[str, ...]

  def __post_init__(self):
    if not self.words or len(set(self.words)) != len(self.words):
      raise ValueError(
        errors.invalid(
          'len(words)',
          len(self.words),
          'must be at least 1, and no word twice',
          f'{len(set(self.words))} of them differ',
        )
      )

  @property
  def size(self) -> int:
    return len(self.words)

  @property
  def pad_id(self) -> int:
    return 0

  @property
  def out_of_vocabulary_id(self) -> int:
    return self.size + 1

  @property
  def beginning_id(self) -> int:
    return self.size + 2

  @property
  def end_id(self) -> int:
    return self.size + 3

  @property
  def num_ids(self) -> int:
    return self.size + 4

  @functools.cached_property
  def _ids(self) -> dict[str, int]:
    return {word: index + 1 for index, word in enumerate(self.words)}

  def encode(self, sentence: str, sequence_length: int) -> list[int]:
    """Returns `sequence_length + 1` ids: beginning, words, end, padding.

    The end is left out where `sequence_length` words or more leave no room for
    it, as in TFF.

    Args:
      sentence: Words with single spaces between them.
      sequence_length: Words after this many are cut.
    """
    words = sentence.split(' ', sequence_length)[:sequence_length]
    unknown = self.out_of_vocabulary_id
    ids = [self.beginning_id]
    ids += [self._ids.get(word, unknown) for word in words]
    if len(words) < sequence_length:
      ids += [self.end_id] + [0] * (sequence_length - 1 - len(words))
    return ids

  def fingerprint(self) -> str:
    """Returns a SHA-256 over the words in order."""
    return hashlib.sha256('\n'.join(self.words).encode('utf-8')).hexdigest()


@dataclasses.dataclass(frozen=True, eq=False)
class TokenizedClients:
  """The clients of one split.

  Attributes:
    split_name: Of the SQLite file.
    client_ids: Sorted; a client's index is its place here.
    offsets: [num_clients + 1] int64; the rows of client `i` are `offsets[i]` to
      `offsets[i + 1]`.
    ids: [num_sentences, sequence_length + 1] int16 or int32, the rows of
      `Vocabulary.encode`.
    vocabulary: What the ids mean.
  """

  split_name: str
  client_ids: tuple[str, ...]
  offsets: np.ndarray
  ids: np.ndarray
  vocabulary: Vocabulary

  @property
  def num_clients(self) -> int:
    return len(self.client_ids)

  @property
  def sequence_length(self) -> int:
    return self.ids.shape[1] - 1

  @property
  def element_spec(self) -> tuple[tf.TensorSpec, tf.TensorSpec]:
    """Returns the spec of a batch of `client_dataset`, for a TFF model."""
    spec = tf.TensorSpec([None, self.sequence_length], tf.int32)
    return spec, spec

  def digest(self) -> str:
    """Returns the SHA-256 of clients, sentences and vocabulary."""
    sha = hashlib.sha256(self.vocabulary.fingerprint().encode())
    sha.update('\n'.join(self.client_ids).encode())
    sha.update(self.offsets.tobytes())
    sha.update(self.ids.tobytes())
    return sha.hexdigest()

  def client_arrays(
    self,
    client_index: int,
    *,
    seed: Optional[int] = None,
    round_index: int = 0,
  ) -> tuple[np.ndarray, np.ndarray]:
    """Returns the inputs and the targets of a client.

    Args:
      client_index: Place in `client_ids`.
      seed: The order of the sentences is a function of (seed, round_index,
        client_index), non-negative integers; None keeps that of the file.
      round_index: Of the training round.

    Returns:
      x and y, each [num_sentences, sequence_length] int32: y is the word that
      follows x, and 0 where there is none.

    Raises:
      ValueError: There is no such client.
    """
    if not 0 <= client_index < self.num_clients:
      raise ValueError(
        errors.invalid(
          'client_index',
          client_index,
          f'must be from 0 to {self.num_clients - 1}',
          f'the split {self.split_name} has no more clients',
        )
      )
    first, last = self.offsets[client_index : client_index + 2]
    rows = self.ids[first:last].astype(np.int32)
    if seed is not None:
      generator = np.random.default_rng([seed, round_index, client_index])
      rows = rows[generator.permutation(len(rows))]
    return rows[:, :-1], rows[:, 1:]

  def client_dataset(
    self,
    client_index: int,
    batch_size: int,
    *,
    seed: Optional[int] = None,
    round_index: int = 0,
  ) -> tf.data.Dataset:
    """Returns one epoch of a client in batches; the last may be smaller.

    The arguments and the contents are those of `client_arrays`. TFF serialises
    the data set with the arrays in it.
    """
    x, y = self.client_arrays(client_index, seed=seed, round_index=round_index)
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(batch_size)

  def arrays(
    self, max_sentences: Optional[int] = None
  ) -> tuple[np.ndarray, np.ndarray]:
    """Returns all clients' inputs and targets, for evaluation.

    Args:
      max_sentences: With more than these, as many rows at even distances are
        taken.

    Returns:
      x and y as `client_arrays` does, clients in order.
    """
    rows = self.ids
    if max_sentences is not None and len(rows) > max_sentences:
      chosen = np.linspace(0, len(rows), max_sentences, endpoint=False)
      rows = rows[chosen.astype(np.int64)]
    rows = rows.astype(np.int32)
    return rows[:, :-1], rows[:, 1:]


@contextlib.contextmanager
def _open(path: str) -> Iterator[sqlite3.Connection]:
  """Opens the file to read, or raises one clear line."""
  if not os.path.isfile(path):
    raise FileNotFoundError(
      errors.invalid(
        'path',
        path,
        'there is no such file',
        'build the corpus with simulations.docstrings.cached_corpus or give '
        "the path of TFF's stackoverflow.sqlite",
      )
    )
  uri = pathlib.Path(path).absolute().as_uri() + '?mode=ro'
  with contextlib.closing(sqlite3.connect(uri, uri=True)) as connection:
    try:
      tables = {
        name for (name,) in connection.execute('SELECT name FROM sqlite_master')
      }
    except sqlite3.DatabaseError as error:
      raise ValueError(
        errors.invalid(
          'path', path, 'must be a SQLite file', f'SQLite says: {error}'
        )
      ) from error
    missing = {'examples', 'client_metadata'} - tables
    if missing:
      raise ValueError(
        errors.invalid(
          'path',
          path,
          f'lacks the table {" and ".join(sorted(missing))}',
          "give a file in the form of TFF's SqlClientData",
        )
      )
    yield connection


def _require_split(connection: sqlite3.Connection, split_name: str) -> None:
  names = [
    name
    for (name,) in connection.execute(
      'SELECT DISTINCT split_name FROM client_metadata ORDER BY split_name'
    )
  ]
  if split_name not in names:
    raise ValueError(
      errors.invalid(
        'split_name',
        split_name,
        'must be a split of the file',
        f'these are {", ".join(names)}',
      )
    )


def _fingerprint(connection: sqlite3.Connection, path: str) -> str:
  """Returns a name for the content of the file, at little cost."""
  try:
    content = connection.execute('SELECT checksum FROM corpus').fetchall()
  except sqlite3.OperationalError:  # Not ours, and may be 25 GB long.
    stat = os.stat(path)
    content = (stat.st_size, stat.st_mtime_ns)
  return hashlib.sha256(repr(content).encode()).hexdigest()[:12]


def _examples(
  connection: sqlite3.Connection,
  split_name: str,
  progress: bool,
  description: str,
) -> Iterator[tuple[str, bytes]]:
  """Yields (client id, serialized example) in the order of the file."""
  (total,) = connection.execute(
    'SELECT SUM(num_examples) FROM client_metadata WHERE split_name = ?',
    (split_name,),
  ).fetchone()
  rows = connection.execute(
    'SELECT client_id, serialized_example_proto FROM examples '
    'WHERE split_name = ? ORDER BY rowid',
    (split_name,),
  )
  yield from tqdm.tqdm(
    rows,
    total=total,
    desc=f'{description} {split_name}',
    unit='sentence',
    disable=None if progress else True,
  )


def _sentence(serialized: bytes) -> str:
  example = tf.train.Example.FromString(serialized)
  (tokens,) = example.features.feature['tokens'].bytes_list.value
  return tokens.decode('utf-8', 'replace')


def _cache_path(path: str, cache_directory: Optional[str], name: str) -> str:
  directory = cache_directory or os.path.dirname(path) or '.'
  os.makedirs(directory, exist_ok=True)
  stem = os.path.splitext(os.path.basename(path))[0]
  return os.path.join(directory, f'{stem}-{_CACHE_VERSION}-{name}')


def _write_atomically(path: str, write: Callable[[BinaryIO], None]) -> None:
  """Writes the file whole or not at all."""
  handle, temporary = tempfile.mkstemp(dir=os.path.dirname(path))
  try:
    with os.fdopen(handle, 'wb') as file:
      write(file)
    os.chmod(temporary, 0o644)
    os.replace(temporary, path)
  except BaseException:
    os.unlink(temporary)
    raise


def build_vocabulary(
  path: str,
  size: int,
  *,
  cache_directory: Optional[str] = None,
  progress: bool = True,
) -> Vocabulary:
  """Returns the most frequent words of the train split.

  Words of the same count are in the order of their code points. The counts are
  cached as lines 'word count' in `<file>-<content>-words.txt`.

  Args:
    path: A SQLite file of TFF's form.
    size: Number of words.
    cache_directory: For the counts; None for the directory of `path`.
    progress: Whether to draw a progress bar on standard error while counting.

  Raises:
    FileNotFoundError: There is no such file.
    ValueError: The file has another form, or fewer than `size` words, or
      `size` < 1.
  """
  errors.check_count('vocabulary_size', size, '10000 is usual')
  with _open(path) as connection:
    _require_split(connection, 'train')
    name = f'{_fingerprint(connection, path)}-words.txt'
    cached = _cache_path(path, cache_directory, name)
    if not os.path.exists(cached):
      counts = collections.Counter()
      for _, row in _examples(connection, 'train', progress, 'counting words'):
        counts.update(_sentence(row).split())
      ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
      lines = (f'{word} {n}\n'.encode() for word, n in ranked[:_WORDS_CACHED])
      _write_atomically(cached, lambda file: file.writelines(lines))
  with open(cached, encoding='utf-8') as file:
    lines = itertools.islice(file, size)
    words = tuple(line.rpartition(' ')[0] for line in lines)
  if len(words) < size:
    raise ValueError(
      errors.invalid(
        'vocabulary_size',
        size,
        f'must be at most {len(words)}, the words of the train split',
        'take fewer',
      )
    )
  return Vocabulary(words)


def _tokenize(
  connection: sqlite3.Connection,
  split_name: str,
  vocabulary: Vocabulary,
  sequence_length: int,
  max_sentences_per_client: int,
  progress: bool,
) -> dict[str, np.ndarray]:
  """Returns the arrays of the cached file; reads the split once."""
  metadata = connection.execute(
    'SELECT client_id, SUM(num_examples) FROM client_metadata '
    'WHERE split_name = ? GROUP BY client_id ORDER BY client_id',
    (split_name,),
  ).fetchall()
  client_ids = [client_id for client_id, _ in metadata]
  counts = [min(n, max_sentences_per_client) for _, n in metadata]
  offsets = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
  dtype = np.int16 if vocabulary.num_ids <= 2**15 else np.int32
  ids = np.zeros((offsets[-1], sequence_length + 1), dtype)

  # Clients need not lie together in the file, so each has its next free row.
  next_rows = dict(zip(client_ids, offsets[:-1].tolist()))
  last_rows = dict(zip(client_ids, offsets[1:].tolist()))
  for client_id, row in _examples(
    connection, split_name, progress, 'tokenizing'
  ):
    index = next_rows.get(client_id)
    if index is not None and index < last_rows[client_id]:
      ids[index] = vocabulary.encode(_sentence(row), sequence_length)
      next_rows[client_id] = index + 1
  short = [c for c in client_ids if next_rows[c] < last_rows[c]]
  if short:
    raise ValueError(
      errors.invalid(
        'client_id',
        short[0],
        'has fewer examples in the file than client_metadata says',
        'the file is damaged, make it again',
      )
    )
  names = '\n'.join(client_ids).encode('utf-8')
  return {
    'client_ids': np.frombuffer(names, np.uint8),
    'offsets': offsets,
    'ids': ids,
  }


def load_clients(
  path: str,
  split_name: str,
  vocabulary: Vocabulary,
  *,
  sequence_length: int = 20,
  max_sentences_per_client: int = 256,
  cache_directory: Optional[str] = None,
  progress: bool = True,
) -> TokenizedClients:
  """Returns the clients of a split, tokenised once and cached.

  Args:
    path: A SQLite file of TFF's form.
    split_name: 'train', 'heldout' (for validation) or 'test'.
    vocabulary: Of the train split, whatever `split_name`.
    sequence_length: Words after this many are cut.
    max_sentences_per_client: A client's further sentences are left out.
    cache_directory: For the `.npz` of ids; None for the directory of `path`.
    progress: Whether to draw a progress bar on standard error while tokenising.

  Raises:
    FileNotFoundError: There is no such file.
    ValueError: The file has another form or no such split, or a number is
      less than 1.
  """
  errors.check_count('sequence_length', sequence_length, '20 is usual')
  errors.check_count(
    'max_sentences_per_client', max_sentences_per_client, '256 is usual'
  )
  with _open(path) as connection:
    _require_split(connection, split_name)
    name = '-'.join(
      [
        _fingerprint(connection, path),
        split_name,
        vocabulary.fingerprint()[:12],
        f'{sequence_length}x{max_sentences_per_client}.npz',
      ]
    )
    cached = _cache_path(path, cache_directory, name)
    if not os.path.exists(cached):
      arrays = _tokenize(
        connection,
        split_name,
        vocabulary,
        sequence_length,
        max_sentences_per_client,
        progress,
      )
      _write_atomically(cached, lambda file: np.savez(file, **arrays))
  with np.load(cached) as arrays:
    names = arrays['client_ids'].tobytes().decode('utf-8')
    return TokenizedClients(
      split_name=split_name,
      client_ids=tuple(names.split('\n')),
      offsets=arrays['offsets'],
      ids=arrays['ids'],
      vocabulary=vocabulary,
    )
