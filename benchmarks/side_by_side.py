"""Benchmark of tff_bandmf, jax_privacy and opake on the same tasks.

The three libraries cannot share an environment. Make an environment for
jax_privacy and one for opake, and give the paths of their Pythons:

    python3.11 -m venv .venv-jax && .venv-jax/bin/pip install \\
        git+https://github.com/google-deepmind/jax_privacy@8967688
    python3.13 -m venv .venv-opake && .venv-opake/bin/pip install \\
        'opake[dpftrl]==0.16.1'
    .venv/bin/python -m benchmarks.side_by_side --jax-privacy \\
        .venv-jax/bin/python --opake .venv-opake/bin/python

The output is one JSON line for each case. A side is one of the libraries. The
sides run one after the other, each in its own process, and their order is
reversed from one repetition to the next. `process_cpu_seconds` is the CPU time
of the whole process with its imports, `cpu_seconds` the CPU time of the task
alone. The losses of all matrices are computed by the same NumPy code in
float64.
"""

from __future__ import annotations

import json
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
from typing import Any, Optional

import click
import numpy as np
import scipy.signal

_FOLDER = pathlib.Path(__file__).resolve().parent
_OURS = 'tff_bandmf'
_SIDES = {_OURS: 'ours', 'jax_privacy': 'of_jax_privacy', 'opake': 'of_opake'}

# Number of parameters of the LSTM of the literature.
_DIMENSION = 4_050_748
_MATRIX_ROUNDS, _MATRIX_BANDS = 256, 32
# Largest relative difference of two losses that count as equal.
_LOSS_TOLERANCE = 1e-3
# Figures that the ratio of a case may compare: CPU seconds of the process, CPU
# seconds of the task, and standard deviation of z over the clip.
_PROCESS, _TASK, _NOISE = 'process_cpu_seconds', 'cpu_seconds', 'noise'


def _cases(dimension: int) -> dict[str, dict[str, Any]]:
  """Returns the task of each case, by the name of the case.

  `compared` is the figure whose ratio is computed. `goal` is the largest ratio
  that tff_bandmf should have to a side. `sides` are the other libraries that
  can do the task.

  Args:
    dimension: number of coordinates of a round's noise.
  """
  jax, both = ['jax_privacy'], ['jax_privacy', 'opake']
  six = {'min_sep': 342, 'max_participations': 6}
  b_min_sep = {
    'task': 'b_min_sep',
    'sides': ['opake'],
    'compared': _NOISE,
    'rounds': 2052,
    'bands': 342,
    'min_sep': 342,
    'epsilon': 4.0,
    'delta': 0.0446,
    # 1,000 clients a round of the 342,477 of StackOverflow.
    'rate': 1000 / 342_477,
    'sampling_prob': 1000 / (342_477 - 341 * 1000),
    # The standard deviation of z over the clip at which opake computes delta,
    # and the resolution of opake's Monte Carlo estimate.
    'noise': 1.0,
    'resolution': 1e-3,
    'start': 'warm',
  }
  return {
    **{
      f'BLT, 4 buffers, n 2052, {objective} error': {
        'task': 'optimize blt',
        'family': 'blt',
        'sides': both,
        'compared': _PROCESS,
        'goal': {'opake': 0.8},
        'rounds': 2052,
        'buffers': 4,
        'objective': objective,
        **six,
      }
      for objective in ('mean', 'max')
    },
    'banded, 1024 x 32': {
      'task': 'optimize banded',
      'family': 'banded',
      'sides': jax,
      'compared': _PROCESS,
      'rounds': 1024,
      'bands': 32,
      'objective': 'mean',
      'min_sep': 1024,
      'max_participations': 1,
    },
    **{
      f'Toeplitz, {rounds} x {bands}': {
        'task': 'optimize banded-toeplitz',
        'family': 'banded-toeplitz',
        'sides': sides,
        'compared': _PROCESS,
        'rounds': rounds,
        'bands': bands,
        'objective': 'mean',
        'min_sep': rounds,
        'max_participations': 1,
      }
      for rounds, bands, sides in ((2052, 342, both), (100_000, 64, jax))
    },
    'b-min-sep': {**b_min_sep, 'goal': {'opake': 0.97}},
    'independent normals, 10^6': {
      'task': 'noise',
      'sides': both,
      'compared': _TASK,
      'goal': {'opake': 1.3},
      'bands': 1,
      'dimension': 10**6,
      'rounds': 128,
    },
    **{
      f'noise of {bands} bands': {
        'task': 'noise',
        'sides': both,
        'compared': _TASK,
        'bands': bands,
        'dimension': dimension,
        'rounds': 128,
      }
      for bands in (64, 342)
    },
    **{
      f'sensitivity, bands {relation} min_sep': {
        'task': 'sensitivity',
        'sides': jax,
        'compared': _TASK,
        'min_sep': min_sep,
        'max_participations': 4,
      }
      for relation, min_sep in (('<=', _MATRIX_BANDS), ('>', 24))
    },
    'sensitivity, Toeplitz': {
      'task': 'toeplitz_sensitivity',
      'sides': jax,
      'compared': _TASK,
      'rounds': 100_000,
      'min_sep': 1000,
      'max_participations': 8,
    },
  }


@click.command()
@click.option(
  '--jax-privacy', help='Python of the environment with jax_privacy.'
)
@click.option('--opake', help='Python of the environment with opake.')
@click.option(
  '--repetitions',
  default=3,
  show_default=True,
  help='Number of runs of each side in a case.',
)
@click.option(
  '--dimension',
  default=_DIMENSION,
  show_default=True,
  help="Number of coordinates of a round's noise.",
)
@click.option(
  '--only', default='', help='Runs only cases whose name contains this text.'
)
def main(
  jax_privacy: Optional[str],
  opake: Optional[str],
  repetitions: int,
  dimension: int,
  only: str,
) -> None:
  """Runs the cases with the sides whose Python is given."""
  pythons = {_OURS: sys.executable, 'jax_privacy': jax_privacy, 'opake': opake}
  with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    np.save(folder / 'given.npy', _matrix())
    for case, task in _cases(dimension).items():
      python = {
        side: pythons[side] for side in (_OURS, *task['sides']) if pythons[side]
      }
      if only not in case or len(python) == 1:
        continue
      if task['task'] == 'b_min_sep':
        _run(python['opake'], 'opake', folder, {**task, 'task': 'coefficients'})
      results: dict[str, list[dict[str, Any]]] = {side: [] for side in python}
      for repetition in range(repetitions):
        sides = list(python)
        for side in sides if repetition % 2 == 0 else reversed(sides):
          results[side].append(_run(python[side], side, folder, task))
      _check(case, results)
      click.echo(json.dumps({'case': case, **task, **_summary(task, results)}))


def _matrix() -> np.ndarray:
  """Returns a random banded C, [256, 256] float64 with 32 bands."""
  generator = np.random.default_rng(0)
  t = np.arange(_MATRIX_ROUNDS)
  apart = t[:, None] - t
  values = generator.uniform(0.1, 1.0, (_MATRIX_ROUNDS, _MATRIX_ROUNDS))
  return np.where((apart >= 0) & (apart < _MATRIX_BANDS), values, 0.0)


def _run(
  python: Optional[str], side: str, folder: pathlib.Path, task: dict[str, Any]
) -> dict[str, Any]:
  """Returns the result of a task on one side, with the loss of its matrix.

  Args:
    python: path of the Python of the side.
    side: library that does the task.
    folder: folder of matrices that the processes exchange.
    task: entry of `_cases`.
  """
  before = _children_cpu_seconds()
  done = subprocess.run(
    [
      str(python),
      '-m',
      f'benchmarks.{_SIDES[side]}',
      json.dumps(task),
      str(folder),
    ],
    check=True,
    stdout=subprocess.PIPE,
    cwd=_FOLDER.parent,
  )
  answer = json.loads(done.stdout.splitlines()[-1])
  answer[_PROCESS] = _children_cpu_seconds() - before
  if task['task'].startswith('optimize'):
    answer['loss'] = _loss(np.load(folder / 'optimum.npy'), task)
  return answer


def _children_cpu_seconds() -> float:
  used = resource.getrusage(resource.RUSAGE_CHILDREN)
  return used.ru_utime + used.ru_stime


def _loss(c: np.ndarray, task: dict[str, Any]) -> float:
  """Returns sens^2(C) times the mean or largest squared error of a prefix sum.

  Args:
    c: C with at most `min_sep` bands, [rounds, rounds]; or the first
      coefficients of a Toeplitz C, [at most `rounds`], non-increasing.
    task: entry of `_cases`, with its schema and its objective.
  """
  n = task['rounds']
  if c.ndim == 2:
    decoder = np.linalg.solve(c.T, np.tri(n).T)
    errors = np.sum(decoder**2, 0)
    squared = task['max_participations'] * np.max(np.sum(c**2, 0))
  else:
    c = np.pad(c, (0, n - len(c)))
    last = np.max(np.nonzero(c)) + 1
    impulse = np.zeros(n)
    impulse[0] = 1.0
    # The squared error of prefix sum t is the sum of the squares of the
    # coefficients 0 to t of A C^-1.
    decoder = np.cumsum(scipy.signal.lfilter([1.0], c[:last], impulse))
    errors = np.cumsum(decoder**2)
    rows = np.zeros(n)
    for first in range(0, n, task['min_sep'])[: task['max_participations']]:
      rows[first:] += c[: n - first]
    squared = np.sum(rows**2)
  error = np.mean(errors) if task['objective'] == 'mean' else np.max(errors)
  return float(squared * error)


def _check(case: str, results: dict[str, list[dict[str, Any]]]) -> None:
  """Raises an exception if the sides solved different problems.

  The loss of tff_bandmf must be at most the loss of every other side, and the
  coefficients and sampling probabilities of all sides must be equal.
  """
  ours = results[_OURS][-1]
  for side, runs in results.items():
    theirs = runs[-1]
    if 'loss' in ours and ours['loss'] > theirs['loss'] * (1 + _LOSS_TOLERANCE):
      raise click.ClickException(
        f'{case}: the loss {ours["loss"]} exceeds {theirs["loss"]}, the loss '
        f'of {side}; their seconds must not be compared'
      )
    for name in 'coefficients', 'sampling_prob':
      if name in ours:
        np.testing.assert_allclose(
          theirs.pop(name) if side != _OURS else theirs[name],
          ours[name],
          rtol=1e-12,
          err_msg=f'{case}: {name} of {side}',
        )


def _summary(
  task: dict[str, Any], results: dict[str, list[dict[str, Any]]]
) -> dict[str, Any]:
  """Returns the medians of each side, and the ratios to the other sides."""
  return {
    'results': {
      side: {
        name: (
          value
          if isinstance(value, str)
          else statistics.median(run[name] for run in runs)
        )
        for name, value in runs[0].items()
        if name != 'coefficients'
      }
      for side, runs in results.items()
    },
    'ratio': {
      side: statistics.median(
        ours[task['compared']] / theirs[task['compared']]
        for ours, theirs in zip(results[_OURS], runs)
      )
      for side, runs in results.items()
      if side != _OURS
    },
  }


if __name__ == '__main__':
  main()
