"""Clients' sentences as arrays of token ids, from a SQLite file of TFF's form.

TFF tokenises strings in every round. Here a client is tokenised when it is
first used, and its ids are written to a file of all clients' ids next to the
SQLite file. Later rounds and runs map this file into memory. So a run starts at
once, and uses disk and memory only for its cohorts. Processes can share the
file at the same time, because all write the same bytes for a client.
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

_CLIENTS_AT_ONCE = 4096


@dataclasses.dataclass(frozen=True, eq=False)
class TokenizedClients:
  """The clients of one split.

  Attributes:
    split_name: name of the split in the SQLite file.
    client_ids: sorted IDs; a client's index is its position here.
    offsets: [num_clients + 1] int64; the rows of client `i` are `offsets[i]` to
      `offsets[i + 1]`.
    ids: [num_sentences, sequence_length + 1] int16 or int32, the rows of
      `Vocabulary.encode`; with a `source`, zero for clients not used yet.
    vocabulary: words of the ids.
    source: file of the sentences; None if `ids` is complete.
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
    """Tokenises the clients that were not used before.

    `client_arrays` and `arrays` call this method; for many clients one call is
    faster.

    Args:
      client_indices: positions in `client_ids`.
      progress: Whether to draw a progress bar on standard error.

    Raises:
      ValueError: A client has fewer sentences than the file says, or the file
        was changed since it was opened.
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
        # A client's first row marks it as complete: the row is written last,
        # after the others have reached the disk.
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
      seed: The order of the sentences is a function of (seed, round_index,
        client_index), non-negative integers; None keeps that of the file.
      round_index: The training round.

    Returns:
      x and y, each [num_sentences, sequence_length] int32: y is the word that
      follows x, and 0 where there is none.

    Raises:
      ValueError: There is no such client, or as for `prepare`.
    """
    if not 0 <= client_index < self.num_clients:
      raise errors.value_error(
        f'client_index={client_index}: must be from 0 to '
        f'{self.num_clients - 1}; the split {self.split_name} has no more '
        'clients'
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
    """Returns all clients' inputs and targets, for evaluation.

    Args:
      max_sentences: most sentences, taken at even distances; None for all.
      progress: Whether to draw a progress bar on standard error.

    Returns:
      x and y as from `client_arrays`, for all clients in order. They share
      memory, 4 bytes for each word.
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
    f'client_id={client_id}: has fewer examples in the file than '
    'client_metadata says; the file is damaged, make it again'
  )


def _flush(ids: np.ndarray) -> None:
  if isinstance(ids, np.memmap):
    ids.flush()


def _map(path: str, num_rows: int, row_length: int, dtype: type) -> np.ndarray:
  """Returns the file of ids as an array in shared memory; writes persist."""
  if not num_rows:
    return np.zeros((0, row_length), dtype)
  return np.memmap(path, dtype, 'r+', shape=(num_rows, row_length))


def _tokenize_all(
  connection: sqlite3.Connection, clients: TokenizedClients, progress: bool
) -> None:
  """Tokenises all clients in one pass over the file."""
  # Sentences of a client may be apart in the file, so the next free row of each
  # client is stored.
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

  If the file has no index by client, all clients are tokenised now, in one
  pass.

  Args:
    path: A SQLite file of TFF's form.
    split_name: 'train', 'heldout' (for validation) or 'test'.
    vocabulary: vocabulary of the train split, for every `split_name`.
    sequence_length: Words after this many are cut.
    max_sentences_per_client: A client's further sentences are left out.
    cache_directory: For the file of ids; None as for `corpus_file.cache_path`.
    progress: Whether to draw a progress bar on standard error.

  Raises:
    FileNotFoundError: There is no such file.
    ValueError: The file has another form or no such split, or a number is
      less than 1.
  """
  _checks.count('sequence_length', sequence_length, '20 is usual')
  _checks.count(
    'max_sentences_per_client', max_sentences_per_client, '256 is usual'
  )
  content = corpus_file.Content.of(path, cache_directory, progress)
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
        # A sparse file: it takes disk space only as it is filled.
        os.truncate(temporary, shape[0] * shape[1] * np.dtype(dtype).itemsize)
        if not corpus_file.finds_clients(connection):
          _tokenize_all(connection, clients(str(temporary)), progress)
    return clients(cached)
