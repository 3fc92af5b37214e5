"""Benchmarks of noise: CPU time on one core, memory, and the normal tail."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import os
import statistics
import time
from typing import Any, Callable
from unittest import mock

import numpy as np
import psutil
import scipy.special

from benchmarks import accelerator
from benchmarks import memory as memory_lib
from tff_bandmf import noise
from tff_bandmf.audit import arithmetic_attacks
from tff_bandmf.noise import generator as generator_lib

_MEASURED_ROUNDS = 128
# Number of coordinates in one call of `Generator.fill`, as in `noise.Stream`.
_CHUNK = 1 << 13
_GENERATOR_REPETITIONS = 200

# Largest CPU time that a round's noise should need, in units of the CPU time of
# as many iid normals.
_GOALS = {
  'identity': 1.1,
  'bands_64': 1.7,
  'bands_342': 2.6,
  'blt_4': 1.4,
  'inverse_4': 4.0,
}


def producer(parameters: int = 1_000_000) -> dict[str, Any]:
  """Returns the cost of a round's noise relative to as many iid normals.

  The normals come from the same generator. Times are CPU seconds on one core,
  measured once the memory of past noise is full. `ratio` is the median over
  blocks of rounds of the time of the noise divided by the time of the normals.
  `memory_bytes` is the growth of the process by the memory of past noise.

  Args:
    parameters: number of coordinates of the noise.
  """
  result: dict[str, Any] = {'parameters': parameters}
  for name in _GOALS:
    result[name] = _on_one_core(_streamed, name, parameters)
  return result


def _on_one_core(function: Callable[..., Any], *arguments: Any) -> Any:
  # The function runs in its own process, because threads stay on the cores on
  # which they started, and because memory of earlier cases must not count. BLAS
  # gets one thread, because several threads on one core would waste CPU time
  # waiting for each other.
  with mock.patch.dict(os.environ, OPENBLAS_NUM_THREADS='1'):
    with concurrent.futures.ProcessPoolExecutor(
      1, multiprocessing.get_context('spawn'), _use_one_core
    ) as process:
      return process.submit(function, *arguments).result()


def _use_one_core() -> None:
  os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def regeneration(parameters: int = 10**8, rounds: int = 8) -> dict[str, Any]:
  """Returns the cost of DP-CGD noise without past noise, relative to iid noise.

  Each noise has a process of its own. `seconds_ratio` is the `ratio` of DP-CGD
  noise divided by the `ratio` of iid noise; `producer` explains `ratio`.

  Args:
    parameters: number of coordinates of the noise.
    rounds: number of rounds that are measured, a multiple of 4.
  """
  iid, again = (
    _on_one_core(_streamed, name, parameters, rounds)
    for name in ('identity', accelerator.AGAIN)
  )
  return {
    'parameters': parameters,
    'identity': iid,
    accelerator.AGAIN: again,
    'seconds_ratio': again['ratio'] / iid['ratio'],
    'goal_seconds_ratio': 2.2,
    'peak_ratio': again['peak_memory_bytes'] / iid['peak_memory_bytes'],
    'goal_peak_ratio': 1.1,
  }


def _streamed(
  name: str, parameters: int, rounds: int = _MEASURED_ROUNDS
) -> dict[str, Any]:
  """Returns the result of `producer` for one strategy."""
  key = noise.Key.from_entropy()
  normals = generator_lib.Generator(key)
  before = psutil.Process().memory_info().rss
  stream = accelerator.producer(name, parameters, key)
  m = stream.block_rounds
  z = np.zeros((m, _CHUNK))
  seconds: list[float] = []
  iid_seconds: list[float] = []
  t = memory = 0
  began = time.process_time()
  for y in stream.rows():
    if y is None:
      continue
    t += 1
    if t % m:
      continue
    elapsed = time.process_time() - began
    if t > stream.recursion.memory + m:
      memory = psutil.Process().memory_info().rss - before
      seconds.append(elapsed / m)
      began = time.process_time()
      for start in range(0, parameters, _CHUNK):
        normals.fill(z[:, : min(_CHUNK, parameters - start)], t, start)
      iid_seconds.append((time.process_time() - began) / m)
      if len(seconds) * m >= rounds:
        break
    began = time.process_time()
  return {
    'rounds': len(seconds) * m,
    'cpu_seconds': statistics.median(seconds),
    'iid_cpu_seconds': statistics.median(iid_seconds),
    'ratio': statistics.median(
      each / iid for each, iid in zip(seconds, iid_seconds)
    ),
    **({'goal_ratio': _GOALS[name]} if name in _GOALS else {}),
    'memory_bytes': memory,
    'peak_memory_bytes': memory_lib.peak_bytes(),
  }


def normals() -> dict[str, Any]:
  """Returns the CPU seconds of 10^6 normals, and of two parts of the work.

  The parts are the words of ChaCha20 (`words_cpu_seconds`) and the inverse
  normal CDF (`inverse_cpu_seconds`).
  """
  return _on_one_core(_normals)


def _normals() -> dict[str, Any]:
  generator = generator_lib.Generator(noise.Key.from_entropy())
  z = np.empty((1, _CHUNK))
  u = ((generator.words(0, 0, _CHUNK) >> np.uint64(1)) + 0.5) * 2.0**-64
  parts = {
    '': lambda start: generator.fill(z, 0, start),
    'words_': lambda start: generator.words(0, start, _CHUNK),
    'inverse_': lambda start: scipy.special.ndtri(u, out=z[0]),
  }
  seconds: dict[str, list[float]] = {name: [] for name in parts}
  for _ in range(_GENERATOR_REPETITIONS):
    for name, part in parts.items():
      began = time.process_time()
      for start in range(0, 16 * _CHUNK, _CHUNK):
        part(start)
      elapsed = time.process_time() - began
      seconds[name].append(elapsed * 10**6 / (16 * _CHUNK))
  return {
    **{
      f'{name}cpu_seconds': statistics.median(each)
      for name, each in seconds.items()
    },
    'ratio': statistics.median(
      each / inverse for each, inverse in zip(seconds[''], seconds['inverse_'])
    ),
    'goal_ratio': 1.5,
  }


def tail() -> dict[str, Any]:
  """Returns the result of the audit's attack on the tail of the normals.

  All 2^30 normals are computed, while the audit computes only normals that can
  be beyond the threshold.
  """
  generator = generator_lib.Generator(noise.Key.from_entropy())

  def beyond(draws, threshold):
    return sum(
      int(np.sum(np.abs(generator.rows(row, 1, 0, _CHUNK)) > threshold))
      for row in range(draws // _CHUNK)
    )

  began = time.process_time()
  attack = arithmetic_attacks.tail(beyond)
  return {**attack.to_dict(), 'cpu_seconds': time.process_time() - began}
