"""Benchmarks of the optimisers, for `simulations.bench`.

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
    x = np.tile((1.0 + np.arange(bands))**-0.5, rounds)
    peak = _reset_peak_memory()
    began = time.process_time()
    loss = make(rounds, bands)
    loss(x)
    first = time.process_time() - began
    seconds = [_cpu_seconds(loss, x) for _ in range(_REPETITIONS)]
    results.append({
        'family': family, 'rounds': rounds, 'bands': bands,
        'cpu_seconds': statistics.median(seconds),
        'first_cpu_seconds': first,
        'memory_before_bytes': peak, 'peak_memory_bytes': _peak_memory()})
  return results


def optimisations() -> list[dict[str, Any]]:
  """Returns what whole optimisations take, compilation included, and reach."""
  from tff_bandmf import optimize, participation

  single, min_sep = participation.Single(), participation.MinSep(342)
  cases = (
      ('mean', lambda: optimize.optimize_banded(1024, 32, single)),
      ('max', lambda: optimize.optimize_banded(
          1024, 32, single, objective='max')),
      ('mean', lambda: optimize.optimize_banded(2052, 342, min_sep)),
  )
  results = []
  for objective, case in cases:
    began = time.process_time()
    found = case()
    results.append({
        'family': found.strategy.family, 'rounds': found.strategy.rounds,
        'bands': found.strategy.bands, 'objective': objective,
        'cpu_seconds': time.process_time() - began, 'loss': found.loss,
        'evaluations': found.evaluations, 'converged': found.converged})
  return results


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
  return 1024 * int(re.search(r'VmHWM:\s+(\d+) kB', status).group(1))
