"""The sentences of clients as arrays of token ids, from a corpus file.

The module `corpus_file` describes corpus files. TFF tokenises their sentences
in every round. This module tokenises a client when it is first used, and writes
its token ids to a second file, the file of ids. Later rounds and runs map this
file into memory. So a run starts at once, and uses disk and memory only for the
clients of its cohorts. Several processes can share the file of ids, because all
of them write the same bytes for a client.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import sqlite3
from collections.abc import Iterable
from typing import Optional

import numpy as np
import tqdm

from simulations.corpora import corpus_file
from simulations.corpora import vocabulary as vocabulary_lib
from tff_bandmf import _checks, _files, errors

# Number of clients that are tokenised between two writes to the disk.
_CLIENTS_AT_ONCE = 4096


@dataclasses.dataclass(frozen=True, eq=False)
class TokenizedClients:
  """The clients of one split.

  Attributes:
    split_name: name of the split in the corpus file.
    client_ids: sorted names of the clients; the index of a client is the
      position of its name.
    offsets: [num_clients + 1] int64; client i has the rows offsets[i] to
      offsets[i + 1] - 1 of `ids`.
    ids: [num_sentences, sequence_length + 1] int16 or int32 token ids; a row is
      a result of `Vocabulary.encode`. If `source` is not None, the rows of a
      client are zero until the client is tokenised.
    vocabulary: words of the token ids.
    source: corpus file with the sentences; None if all clients are tokenised.
  """

  split_name: str
  client_ids: tuple[str, ...]
  offsets: np.ndarray
  ids: np.ndarray
  vocabulary: vocabulary_lib.Vocabulary
  source: Optional[corpus_file.Content] = None

  @property
  def num_clients(self) -> int:
    return len(self.client_ids)

  @property
  def sequence_length(self) -> int:
    return self.ids.shape[1] - 1

  def digest(self) -> str:
    """Returns the SHA-256 of clients, sentences and vocabulary."""
    sha = hashlib.sha256(self.vocabulary.fingerprint().encode())
    sha.update(f'{self.split_name} {self.ids.shape}'.encode())
    sha.update('\n'.join(self.client_ids).encode())
    sha.update(self.offsets.tobytes())
    sha.update(
      self.source.digest.encode() if self.source else self.ids.tobytes()
    )
    return sha.hexdigest()

  def prepare(
    self, client_indices: Iterable[int], progress: bool = False
  ) -> None:
    """Tokenises the clients that are not tokenised yet.

    `client_arrays` and `arrays` call this method. For many clients a single
    call is faster than one call for each.

    Args:
      client_indices: positions in `client_ids`.
      progress: whether to draw a progress bar on standard error.

    Raises:
      ValueError: a client has fewer sentences than the corpus file states, or
        the corpus file was changed after `load_clients`.
    """
    if self.source is None:
      return
    missing = [
      index
      for index in client_indices
      if self.offsets[index] < self.offsets[index + 1]
      and not self.ids[self.offsets[index], 0]
    ]
    if not missing:
      return
    with (
      self.source.open() as connection,
      tqdm.tqdm(
        total=len(missing),
        desc=f'tokenizing {self.split_name}',
        unit='client',
        disable=None if progress else True,
      ) as bar,
    ):
      for start in range(0, len(missing), _CLIENTS_AT_ONCE):
        indices = missing[start : start + _CLIENTS_AT_ONCE]
        first_rows = []
        for index in indices:
          rows = self._encode(connection, index)
          first, last = self.offsets[index : index + 2]
          self.ids[first + 1 : last] = rows[1:]
          first_rows.append(rows[0])
          bar.update()
        # A client counts as tokenised if its first row is not zero. So the
        # first row is written after the other rows have reached the disk.
        _flush(self.ids)
        self.ids[self.offsets[indices]] = first_rows

  def _encode(
    self, connection: sqlite3.Connection, client_index: int
  ) -> np.ndarray:
    first, last = self.offsets[client_index : client_index + 2].tolist()
    client_id = self.client_ids[client_index]
    sentences = corpus_file.client_sentences(
      connection, self.split_name, client_id, last - first
    )
    if len(sentences) < last - first:
      raise _short_client(client_id)
    rows = [
      self.vocabulary.encode(sentence, self.sequence_length)
      for sentence in sentences
    ]
    return np.array(rows, self.ids.dtype)

  def client_arrays(
    self,
    client_index: int,
    *,
    seed: Optional[int] = None,
    round_index: int = 0,
  ) -> tuple[np.ndarray, np.ndarray]:
    """Returns the inputs and the targets of a client.

    Args:
      client_index: position in `client_ids`.
      seed: integer >= 0. The order of the sentences is a function of (seed,
        round_index, client_index). If None, it is the order of the file.
      round_index: index of the training round.

    Returns:
      x and y, each [num_sentences, sequence_length] int32 token ids. The word
      after x[s, i] is y[s, i], which is 0 (padding) after the end of a
      sentence.

    Raises:
      ValueError: no client has this index, or `prepare` raises an error.
    """
    if not 0 <= client_index < self.num_clients:
      raise errors.value_error(
        f'client_index={client_index}: must be from 0 to '
        f'{self.num_clients - 1}; the split {self.split_name} has '
        f'{self.num_clients} clients'
      )
    self.prepare([client_index])
    first, last = self.offsets[client_index : client_index + 2]
    rows = self.ids[first:last].astype(np.int32)
    if seed is not None:
      generator = np.random.default_rng([seed, round_index, client_index])
      rows = rows[generator.permutation(len(rows))]
    return rows[:, :-1], rows[:, 1:]

  def arrays(
    self, max_sentences: Optional[int] = None, progress: bool = False
  ) -> tuple[np.ndarray, np.ndarray]:
    """Returns the inputs and the targets of all clients, for evaluation.

    Args:
      max_sentences: maximum number of sentences. If the split has more, the
        returned sentences are spaced evenly. If None, all are returned.
      progress: whether to draw a progress bar on standard error.

    Returns:
      x and y, each [sentences, sequence_length] int32 token ids, the results of
      `client_arrays` for all clients in order. The two arrays share memory, 4
      bytes for each word.
    """
    num_sentences = len(self.ids)
    if max_sentences is None or num_sentences <= max_sentences:
      self.prepare(range(self.num_clients), progress)
      rows = self.ids
    else:
      chosen = np.linspace(0, num_sentences, max_sentences, endpoint=False)
      chosen = chosen.astype(np.int64)
      clients = np.searchsorted(self.offsets, chosen, side='right') - 1
      self.prepare(np.unique(clients).tolist(), progress)
      rows = self.ids[chosen]
    rows = rows.astype(np.int32)
    return rows[:, :-1], rows[:, 1:]


def _short_client(client_id: str) -> ValueError:
  return errors.value_error(
    f'client_id={client_id}: has fewer rows in the table examples than '
    'client_metadata states; the file is damaged, make it again'
  )


def _flush(ids: np.ndarray) -> None:
  if isinstance(ids, np.memmap):
    ids.flush()


def _map(path: str, num_rows: int, row_length: int, dtype: type) -> np.ndarray:
  """Maps the file of ids to an array; changes of the array go to the file."""
  if not num_rows:
    return np.zeros((0, row_length), dtype)
  return np.memmap(path, dtype, 'r+', shape=(num_rows, row_length))


def _tokenize_all(
  connection: sqlite3.Connection, clients: TokenizedClients, progress: bool
) -> None:
  """Tokenises all clients in one pass over the corpus file."""
  # The sentences of a client need not follow each other in the file. So the
  # next free row of every client is stored.
  next_rows = dict(zip(clients.client_ids, clients.offsets[:-1].tolist()))
  last_rows = dict(zip(clients.client_ids, clients.offsets[1:].tolist()))
  for client_id, sentence in corpus_file.sentences(
    connection, clients.split_name, progress, 'tokenizing'
  ):
    row = next_rows.get(client_id)
    if row is not None and row < last_rows[client_id]:
      clients.ids[row] = clients.vocabulary.encode(
        sentence, clients.sequence_length
      )
      next_rows[client_id] = row + 1
  for client_id in clients.client_ids:
    if next_rows[client_id] < last_rows[client_id]:
      raise _short_client(client_id)
  _flush(clients.ids)


def load_clients(
  path: str,
  split_name: str,
  vocabulary: vocabulary_lib.Vocabulary,
  *,
  sequence_length: int = 20,
  max_sentences_per_client: int = 256,
  cache_directory: Optional[str] = None,
  progress: bool = True,
) -> TokenizedClients:
  """Returns the clients of a split, each tokenised when it is first used.

  If the corpus file has no index by client, this call tokenises all clients in
  one pass.

  Args:
    path: path of the corpus file.
    split_name: 'train', 'heldout' (for validation) or 'test'.
    vocabulary: words of the model, the same for all splits.
    sequence_length: maximum number of words of a sentence, >= 1; further words
      are dropped.
    max_sentences_per_client: maximum number of sentences of a client, >= 1;
      further sentences are left out.
    cache_directory: folder of the file of ids; None for the default folder of
      `corpus_file.cache_path`.
    progress: whether to draw a progress bar on standard error.

  Raises:
    FileNotFoundError: `path` is not a file.
    ValueError: the file is not a corpus file or lacks the split, or a number is
      less than 1.
  """
  _checks.count('sequence_length', sequence_length, '20 is usual')
  _checks.count(
    'max_sentences_per_client', max_sentences_per_client, '256 is usual'
  )
  content = corpus_file.Content.from_file(path, cache_directory, progress)
  name = (
    f'{content.digest[:12]}-{split_name}-{vocabulary.fingerprint()[:12]}-'
    f'{sequence_length}x{max_sentences_per_client}.ids'
  )
  with content.open() as connection:
    corpus_file.require_split(connection, split_name)
    client_ids, sizes = corpus_file.client_sizes(connection, split_name)
    offsets = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(np.minimum(sizes, max_sentences_per_client), out=offsets[1:])
    dtype = np.int16 if vocabulary.num_ids <= 2**15 else np.int32
    shape = (int(offsets[-1]), sequence_length + 1)

    def clients(ids_path: str) -> TokenizedClients:
      ids = _map(ids_path, *shape, dtype)
      return TokenizedClients(
        split_name, client_ids, offsets, ids, vocabulary, content
      )

    cached = corpus_file.cache_path(path, cache_directory, name)
    if not os.path.exists(cached):
      with _files.replacing(cached) as temporary:
        # The file is sparse: a block takes disk space only after a write to it.
        os.truncate(temporary, shape[0] * shape[1] * np.dtype(dtype).itemsize)
        if not corpus_file.finds_clients(connection):
          _tokenize_all(connection, clients(str(temporary)), progress)
    return clients(cached)
