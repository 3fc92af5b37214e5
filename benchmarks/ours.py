"""The tasks of `side_by_side`, done with tff_bandmf."""

from __future__ import annotations

import json
import os
import pathlib
import sys
from typing import Any

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
# The cache is off, because a cached optimisation takes no time.
os.environ['BANDMF_CACHE'] = ''

import numpy as np

import tff_bandmf
from benchmarks import clock
from tff_bandmf import participation, sensitivity, strategies

# Rounds before the clock starts, a multiple of the rounds that the stream makes
# at a time.
_WARM = 64
# Standard deviation of z in lattice steps.
_Z_STEPS = 2.0**16
# Number of samples of the estimate, which claims nothing.
_GOAL_SAMPLES = 20_000


def _optimize(task: dict[str, Any], folder: pathlib.Path) -> dict[str, Any]:
  watch = clock.Clock()
  # A user waits for the import, too.
  from tff_bandmf import optimize

  optimized = optimize.optimize(
    task['family'],
    task['rounds'],
    participation.MinSep(task['min_sep'], task['max_participations']),
    bands=task.get('bands'),
    buffers=task.get('buffers'),
    objective=task['objective'],
  )
  measured = watch.read()
  strategy = optimized.strategy
  if task['family'] == strategies.Banded.family:
    matrix = strategy.matrix()
  else:
    matrix = strategy.column(task['rounds'])
  np.save(folder / 'optimum.npy', matrix)
  return measured


def _b_min_sep(task: dict[str, Any], folder: pathlib.Path) -> dict[str, Any]:
  coefficients = np.load(folder / 'coefficients.npy')
  watch = clock.Clock()
  from tff_bandmf import accounting

  cohorts = accounting.BMinSep(
    task['min_sep'], task['sampling_prob'], start=task['start']
  )
  strategy = strategies.BandedToeplitz(task['rounds'], coefficients)
  guarantee = accounting.calibrate(
    strategy,
    cohorts,
    epsilon=task['epsilon'],
    delta=task['delta'],
  )
  bound = guarantee.claim(task['delta'])
  measured = watch.read()
  # If delta at the noise of the goal exceeds the task's delta, no library can
  # meet the goal.
  at_goal = accounting.Guarantee(
    strategy,
    cohorts,
    task['goal']['opake'] * task['noise'] / guarantee.sensitivity.value,
    samples=accounting.Samples(_GOAL_SAMPLES),
  ).claim_at(task['epsilon'])
  return {
    **measured,
    'estimate_at_goal': at_goal.estimate,
    'noise': guarantee.z_stddev_per_clip,
    'delta': bound.upper,
    'estimate': bound.estimate,
    'failure_probability': bound.failure_probability,
    'sampling_prob': task['sampling_prob'],
    'coefficients': strategy.coefficients.tolist(),
  }


def _noise(task: dict[str, Any], folder: pathlib.Path) -> dict[str, Any]:
  del folder  # This task reads and writes no file.
  from tff_bandmf import noise
  from tff_bandmf.noise.producer import stream

  rounds, bands = task['rounds'] + _WARM, task['bands']
  strategy = (
    strategies.Identity(rounds)
    if bands == 1
    else strategies.BandedToeplitz(
      max(rounds, bands), strategies.BandedSqrt(bands, bands).coefficients
    )
  )
  rows = (
    row
    for row in stream.Stream(
      strategy.recursion(),
      _Z_STEPS,
      task['dimension'],
      noise.Key.from_seed(0),
    ).rows()
    if row is not None
  )
  total = 0.0
  for t in range(rounds):
    if t == _WARM:
      watch = clock.Clock()
    # As in the other libraries, the row is an array in memory.
    total += float(next(rows)[0])
  return watch.read(task['rounds'])


def _sensitivity(task: dict[str, Any], folder: pathlib.Path) -> dict[str, Any]:
  strategy = strategies.Dense(np.load(folder / 'given.npy'))
  return _timed(strategy, task)


def _toeplitz_sensitivity(
  task: dict[str, Any], folder: pathlib.Path
) -> dict[str, Any]:
  del folder  # This task reads and writes no file.
  return _timed(strategies.SqrtToeplitz(task['rounds']), task)


def _timed(
  strategy: strategies.Strategy, task: dict[str, Any]
) -> dict[str, Any]:
  schema = participation.MinSep(task['min_sep'], task['max_participations'])
  sensitivity.sensitivity(strategy, schema)
  watch = clock.Clock()
  result = sensitivity.sensitivity(strategy, schema)
  return {**watch.read(), 'value': result.value, 'method': result.method}


_TASKS = {
  'b_min_sep': _b_min_sep,
  'optimize banded': _optimize,
  'optimize banded-toeplitz': _optimize,
  'optimize blt': _optimize,
  'noise': _noise,
  'sensitivity': _sensitivity,
  'toeplitz_sensitivity': _toeplitz_sensitivity,
}

if __name__ == '__main__':
  given = json.loads(sys.argv[1])
  answer = _TASKS[given['task']](given, pathlib.Path(sys.argv[2]))
  print(json.dumps({**answer, 'version': tff_bandmf.__version__}))
