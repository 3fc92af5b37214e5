"""Benchmarks of the optimisers, for `benchmarks.bench`.

Seconds are of CPU time of this process, all threads; the first calls compile,
which is reported next to the rest.
"""

from __future__ import annotations

import pathlib
import re
import statistics
import time
from typing import Any, Callable

_REPETITIONS = 10


def losses() -> list[dict[str, Any]]:
  """Returns the cost of a loss and its gradient, steady state."""
  import numpy as np

  from tff_bandmf.optimize import banded

  results = []
  for family, rounds, bands, make in (
    ('banded', 1024, 32, banded.unit_column_loss),
    ('banded', 100_000, 16, banded.unit_column_loss),
    ('banded', 2052, 342, banded.unit_column_loss),
  ):
    x = np.tile((1.0 + np.arange(bands)) ** -0.5, rounds)
    peak = _reset_peak_memory()
    began = time.process_time()
    loss = make(rounds, bands)
    loss(x)
    first = time.process_time() - began
    seconds = [_cpu_seconds(loss, x) for _ in range(_REPETITIONS)]
    results.append(
      {
        'family': family,
        'rounds': rounds,
        'bands': bands,
        'cpu_seconds': statistics.median(seconds),
        'first_cpu_seconds': first,
        'memory_before_bytes': peak,
        'peak_memory_bytes': _peak_memory(),
      }
    )
  return results


def optimisations() -> list[dict[str, Any]]:
  """Returns what whole optimisations take and reach.

  Each runs twice in this process, so that `cpu_seconds` is without what is
  compiled once a process; every optimisation still compiles its own loss.
  """
  from tff_bandmf import optimize, participation

  single = participation.Single()
  six, five = participation.MinSep(342, 6), participation.MinSep(400, 5)
  request = optimize.Request
  return [
    _twice(each)
    for each in (
      request('banded', 1024, single, bands=32),
      request('banded', 1024, single, bands=32, objective='max'),
      *(
        request(
          'banded-toeplitz', rounds, single, bands=64, objective=objective
        )
        for rounds in (10**3, 10**5, 10**7, 10**9)
        for objective in ('mean', 'max')
      ),
      request('banded-toeplitz', 10**6, single, bands=16),
      request('blt', 2052, six, buffers=4),
      request('blt', 2052, six, buffers=4, objective='max'),
      request('blt', 2000, five, buffers=4, objective='max'),
      *(
        request('banded-inverse', 2052, six, bands=bands)
        for bands in (4, 16, 64)
      ),
      request('lti', 10**5, six),
      request('dp-cgd', 10**5, six),
    )
  ]


def large_optimisations() -> list[dict[str, Any]]:
  """Returns the same of optimisations that take minutes, run once."""
  from tff_bandmf import optimize, participation

  return [
    _once(each)
    for each in (
      optimize.Request('banded', 2052, participation.MinSep(342), bands=342),
      optimize.Request('banded', 10**6, participation.Single(), bands=16),
    )
  ]


def _twice(request: Any) -> dict[str, Any]:
  first = _once(request)
  return {**_once(request), 'first_cpu_seconds': first['cpu_seconds']}


def _once(request: Any) -> dict[str, Any]:
  from tff_bandmf import optimize

  began = time.process_time()
  found = optimize.optimize(request)
  return {
    'family': request.family,
    'rounds': request.rounds,
    'bands': request.bands,
    'buffers': request.buffers,
    'objective': request.objective,
    'cpu_seconds': time.process_time() - began,
    'loss': found.loss,
    'evaluations': found.evaluations,
    'converged': found.converged,
  }


def _cpu_seconds(function: Callable[..., Any], *arguments: Any) -> float:
  began = time.process_time()
  function(*arguments)
  return time.process_time() - began


def _reset_peak_memory() -> int:
  """Forgets the peak and returns bytes in memory now."""
  pathlib.Path('/proc/self/clear_refs').write_text('5')
  return _peak_memory()


def _peak_memory() -> int:
  """Returns the most bytes in memory since `_reset_peak_memory`."""
  status = pathlib.Path('/proc/self/status').read_text()
  return 1024 * int(re.findall(r'VmHWM:\s+(\d+) kB', status)[0])
