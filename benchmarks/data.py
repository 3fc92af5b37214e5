"""Benchmark of opening a corpus with as many clients as StackOverflow."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import os
import tempfile
import time
from collections.abc import Iterator
from typing import Any

from benchmarks import memory

# Number of clients in the train split of TFF's StackOverflow data.
_CLIENTS = 342_477


def client_ids(
  clients: int = _CLIENTS, sentences: int = 2, cohort: int = 100
) -> list[dict[str, Any]]:
  """Returns the cost of reading all clients' ids, and of reading a cohort.

  `load_clients` and TFF's `SqlClientData` are measured, each in its own
  process. `seconds` is the time to read the ids, `cohort_seconds` the time to
  read the sentences of the cohort, and `megabytes` the growth of the process's
  peak memory by both.

  Args:
    clients: number of clients in the file.
    sentences: number of sentences of a client.
    cohort: number of clients in the cohort.
  """
  from simulations.corpora import corpus_file

  with tempfile.TemporaryDirectory() as directory:
    path = os.path.join(directory, 'clients.sqlite')
    corpus_file.write(path, _rows(clients, sentences), lambda: 'benchmark')
    results = []
    for name, measure in (('load_clients', _ours), ('SqlClientData', _tffs)):
      with concurrent.futures.ProcessPoolExecutor(
        1, multiprocessing.get_context('spawn')
      ) as process:
        results.append(
          {
            'name': name,
            'clients': clients,
            'cohort': cohort,
            **process.submit(measure, path, cohort).result(),
          }
        )
  return results


def _rows(clients: int, sentences: int) -> Iterator[tuple[str, str, str, str]]:
  for client in range(clients):
    for sentence in range(sentences):
      yield 'train', f'{client:08d}', '', f'sentence {sentence} of {client}'


def _ours(path: str, cohort: int) -> dict[str, float]:
  from simulations.corpora import client_data, vocabulary

  words = vocabulary.Vocabulary(('sentence', 'of'))
  before, began = memory.reset(), time.perf_counter()
  clients = client_data.load_clients(path, 'train', words, progress=False)
  loaded = time.perf_counter()
  clients.prepare(range(0, clients.num_clients, clients.num_clients // cohort))
  return {
    'seconds': loaded - began,
    'megabytes': (memory.peak_bytes() - before) / 1e6,
    'cohort_seconds': time.perf_counter() - loaded,
  }


def _tffs(path: str, cohort: int) -> dict[str, float]:
  import tensorflow_federated as tff

  before, began = memory.reset(), time.perf_counter()
  clients = tff.simulation.datasets.SqlClientData(path, 'train')
  loaded = time.perf_counter()
  ids = clients.client_ids
  for client_id in ids[:: len(ids) // cohort]:
    list(clients.create_tf_dataset_for_client(client_id))
  return {
    'seconds': loaded - began,
    'megabytes': (memory.peak_bytes() - before) / 1e6,
    'cohort_seconds': time.perf_counter() - loaded,
  }
