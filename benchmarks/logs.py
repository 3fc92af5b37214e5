"""Benchmark of the statistics of a participation log."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import pathlib
import resource
import tempfile
from typing import Any

import numpy as np

from benchmarks import memory

# _TIMES is the number of rounds of a client.
_ROUNDS, _MIN_SEP, _TIMES = 2000, 300, 6
_GOALS = {'goal_cpu_seconds': 60.0, 'goal_peak_memory_bytes': 4e9}


def observe(
  clients: int = 10**7, patterns: int = 10**5
) -> list[dict[str, Any]]:
  """Returns the CPU seconds and the peak memory of `bandmf observe`.

  Each client takes part 6 times in 2,000 rounds. The log `equal_gaps` has
  clients whose rounds are exactly 300 apart. The log `patterns` has a tenth as
  many clients, with different patterns of rounds. Each log is read in its own
  process, and the figures include the imports.

  Args:
    clients: number of clients in the log `equal_gaps`.
    patterns: number of different patterns in the log `patterns`.
  """
  generator = np.random.default_rng(0)
  steps = np.arange(_TIMES)
  results = []
  with tempfile.TemporaryDirectory() as directory:
    folder = pathlib.Path(directory)
    for name, count in (('equal_gaps', clients), ('patterns', clients // 10)):
      first = generator.integers(0, _MIN_SEP, (count, 1)) + _MIN_SEP * steps
      if name == 'patterns':
        gaps = generator.integers(0, 30, (patterns, _TIMES)).cumsum(1)
        # Each pattern occurs at least once.
        first = gaps[np.arange(count) % patterns] + _MIN_SEP * steps
      _write(folder / f'{name}.parquet', first)
      with concurrent.futures.ProcessPoolExecutor(
        1, multiprocessing.get_context('spawn')
      ) as process:
        measured = process.submit(_measure, folder / f'{name}.parquet').result()
      results.append({'log': name, 'clients': count, **measured, **_GOALS})
  return results


def _write(path: pathlib.Path, rounds: np.ndarray) -> None:
  """Writes a participation log.

  Args:
    path: path of the Parquet file.
    rounds: [clients, 6] int64, rounds of each client.
  """
  import pyarrow as pa
  from pyarrow import parquet

  flat = rounds.astype(np.int32).ravel()
  order = np.argsort(flat, kind='stable')
  ids = np.repeat(np.arange(len(rounds)), rounds.shape[1])
  table = pa.table({'round': flat[order], 'client': ids[order]})
  parquet.write_table(table, path)


def _measure(path: pathlib.Path) -> dict[str, Any]:
  from tff_bandmf import sensitivity, strategies
  from tff_bandmf.report import participation_log

  shown = sensitivity.of_clients(
    participation_log.ParticipationLog(path).parts(),
    strategies.BandedSqrt(_ROUNDS, _MIN_SEP),
  )
  assert shown.sensitivity is not None
  used = resource.getrusage(resource.RUSAGE_SELF)
  return {
    'participations': shown.participations,
    'sensitivity': shown.sensitivity.value,
    'cpu_seconds': used.ru_utime + used.ru_stime,
    'peak_memory_bytes': memory.peak_bytes(),
  }
