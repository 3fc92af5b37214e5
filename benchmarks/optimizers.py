"""Benchmarks of the optimisers, for `benchmarks.bench`.

Unless a function says otherwise, seconds are CPU time of all threads of this
process. The first call includes compilation, and has its own figure.
"""

from __future__ import annotations

import importlib
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any, Callable

from benchmarks import memory

_REPETITIONS = 10


def losses() -> list[dict[str, Any]]:
  """Returns the CPU time and memory of a loss with its gradient.

  `first_cpu_seconds` is the first call, `cpu_seconds` the median of the later
  calls.
  """
  import numpy as np

  from tff_bandmf import participation
  from tff_bandmf.optimize import banded, solver

  results = []
  for rounds, bands in ((1024, 32), (100_000, 16), (2052, 342)):
    x = np.tile((1.0 + np.arange(bands)) ** -0.5, (rounds, 1))
    x[np.add.outer(np.arange(rounds), np.arange(bands)) >= rounds] = 0.0
    peak = memory.reset()
    began = time.process_time()
    loss = banded.Loss(
      lambda columns: banded.scaled(columns, len(columns)),
      lambda columns: (1.0, 0.0),
      solver.Problem(rounds, participation.Single()),
    )
    loss(x)
    first = time.process_time() - began
    seconds = [_cpu_seconds(loss, x) for _ in range(_REPETITIONS)]
    results.append(
      {
        'family': 'banded',
        'rounds': rounds,
        'bands': bands,
        'cpu_seconds': statistics.median(seconds),
        'first_cpu_seconds': first,
        'memory_before_bytes': peak,
        'peak_memory_bytes': memory.peak_bytes(),
      }
    )
  return results


def optimisations() -> list[dict[str, Any]]:
  """Returns the time and the loss of whole optimisations.

  Each optimisation runs twice in this process. So `cpu_seconds`, the time of
  the second run, excludes functions that a process compiles once. It includes
  the compilation of the loss, which every optimisation needs.
  """
  from tff_bandmf import participation

  single = participation.Single()
  six, five = participation.MinSep(342, 6), participation.MinSep(400, 5)
  return [
    _twice(*each)
    for each in (
      _case('banded', 1024, single, bands=32),
      _case('banded', 1024, single, bands=32, objective='max'),
      *(
        _case('banded-toeplitz', rounds, single, bands=64, objective=objective)
        for rounds in (10**3, 10**5, 10**7, 10**9)
        for objective in ('mean', 'max')
      ),
      _case('banded-toeplitz', 10**6, single, bands=16),
      _case('blt', 2052, six, buffers=4),
      _case('blt', 2052, six, buffers=4, objective='max'),
      _case('blt', 2000, five, buffers=4, objective='max'),
      *(
        _case('banded-inverse', 2052, six, bands=bands) for bands in (4, 16, 64)
      ),
      _case('dense', 128, participation.MinSep(32)),
      _case('dense', 256, participation.MinSep(64)),
      _case('lti', 10**5, six),
      _case('dp-cgd', 10**5, six),
    )
  ]


def large_optimisation() -> dict[str, Any]:
  """Returns the time and the loss of one search with many bands."""
  from tff_bandmf import participation

  case = _case('banded', 2052, participation.MinSep(342), bands=342)
  return {**_once(*case), 'goal_cpu_seconds': 20.0}


def long_optimisation() -> dict[str, Any]:
  """Returns the time and the loss of one search for 10^6 rounds."""
  from tff_bandmf import participation

  return _once(*_case('banded', 10**6, participation.Single(), bands=16))


def in_tensorflow() -> Iterator[dict[str, Any]]:
  """Yields the CPU time of `banded` searches in TensorFlow and in NumPy.

  The time excludes the import of TensorFlow and includes its compilation.
  """
  from tff_bandmf import participation
  from tff_bandmf.optimize import banded, solver

  importlib.import_module('tensorflow')
  for rounds, bands, goal in ((1024, 32, 3.0), (2052, 342, 30.0)):
    problem = solver.Problem(rounds, participation.Single())
    began = time.process_time()
    ours = banded.optimize_banded(problem, bands)
    numpy_seconds = time.process_time() - began
    began = time.process_time()
    optimized = banded.optimize_in_tensorflow(problem, bands, rounds)
    seconds = time.process_time() - began
    yield {
      'rounds': rounds,
      'bands': bands,
      'cpu_seconds': seconds,
      'goal_cpu_seconds': goal,
      'numpy_cpu_seconds': numpy_seconds,
      'ratio': seconds / numpy_seconds,
      'loss': optimized.loss,
      'numpy_loss': ours.loss,
      'evaluations': optimized.evaluations,
      'converged': optimized.converged,
    }


def largest_error() -> dict[str, Any]:
  """Returns the time and the loss of a search for the least largest error."""
  from tff_bandmf import participation

  case = _case(
    'banded', 4096, participation.Single(), bands=16, objective='max'
  )
  return {**_once(*case), 'goal_cpu_seconds': 60.0}


def choices() -> Iterator[dict[str, Any]]:
  """Yields the time of two commands that compare all families.

  The commands `choose` and `plan` compare the families that fit in 8 model
  copies of memory. Each command is a new process without bytecode and without
  cached optimisations, and the time includes its imports.
  """
  for command in (
    ['choose'],
    ['plan', '--clients-per-round=100', '--l2-norm-clip=0.3'],
  ):
    given = '--rounds=2000 --min-sep=400 --epsilon=8 --delta=1e-8'.split()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as empty:
      subprocess.run(
        [sys.executable, '-m', 'tff_bandmf', *command, *given]
        + ['--memory-copies=8', '--json'],
        check=True,
        stdout=subprocess.DEVNULL,
        env={
          **os.environ,
          'BANDMF_CACHE': '',
          'PYTHONDONTWRITEBYTECODE': '1',
          'PYTHONPYCACHEPREFIX': empty,
        },
      )
    seconds = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    yield {
      'command': command[0],
      'seconds': seconds,
      'goal_seconds': 10.0,
      'cpu_seconds': after.ru_utime
      + after.ru_stime
      - used.ru_utime
      - used.ru_stime,
    }


def _case(
  family: str,
  rounds: int,
  schema: Any,
  **options: Any,
) -> tuple[str, int, Any, dict[str, Any]]:
  """Returns the arguments of `_once`."""
  return family, rounds, schema, options


def _twice(*case: Any) -> dict[str, Any]:
  first = _once(*case)
  return {**_once(*case), 'first_cpu_seconds': first['cpu_seconds']}


def _once(
  family: str, rounds: int, schema: Any, options: dict[str, Any]
) -> dict[str, Any]:
  from tff_bandmf import optimize

  began = time.process_time()
  optimized = optimize.optimize(family, rounds, schema, **options)
  return {
    'family': family,
    'rounds': rounds,
    'bands': options.get('bands'),
    'buffers': options.get('buffers'),
    'objective': options.get('objective', optimize.MEAN),
    'cpu_seconds': time.process_time() - began,
    'loss': optimized.loss,
    'evaluations': optimized.evaluations,
    'converged': optimized.converged,
  }


def _cpu_seconds(function: Callable[..., Any], *arguments: Any) -> float:
  began = time.process_time()
  function(*arguments)
  return time.process_time() - began
