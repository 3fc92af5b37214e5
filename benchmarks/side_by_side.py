"""tff_bandmf and jax_privacy on the same tasks: one JSON line a case.

The two cannot share an environment. Make one for jax_privacy, and give its
Python:

    python3.11 -m venv .venv-jax && .venv-jax/bin/pip install \\
        git+https://github.com/google-deepmind/jax_privacy@8967688
    .venv/bin/python -m benchmarks.side_by_side --other .venv-jax/bin/python

Each side runs in its own process, one after the other, and the order is
reversed in every repetition. The matrices of both sides are evaluated by the
same computation in NumPy, dense and float64.
"""

from __future__ import annotations

import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
from typing import Any

import click
import numpy as np

_FOLDER = pathlib.Path(__file__).resolve().parent
_SIDES = {'tff_bandmf': 'ours', 'jax_privacy': 'theirs'}

# Parameters of the LSTM of the literature.
_DIMENSION = 4_050_748
_MATRIX_ROUNDS, _MATRIX_BANDS = 256, 32


def _cases(dimension: int) -> dict[str, dict[str, Any]]:
  """Returns the task of each case, by the name of the case."""
  return {
    'optimize banded': {'task': 'optimize', 'rounds': 1024, 'bands': 32},
    **{
      f'noise of {bands} bands': {
        'task': 'noise',
        'bands': bands,
        'dimension': dimension,
        'rounds': 128,
      }
      for bands in (64, 342)
    },
    'sensitivity, bands <= min_sep': {
      'task': 'sensitivity',
      'min_sep': _MATRIX_BANDS,
      'max_participations': 4,
    },
    'sensitivity, bands > min_sep': {
      'task': 'sensitivity',
      'min_sep': 24,
      'max_participations': 4,
    },
    'sensitivity, Toeplitz': {
      'task': 'toeplitz_sensitivity',
      'rounds': 100_000,
      'min_sep': 1000,
      'max_participations': 8,
    },
  }


@click.command()
@click.option('--other', required=True, help='Python that has jax_privacy.')
@click.option('--repetitions', default=3, show_default=True)
@click.option(
  '--dimension',
  default=_DIMENSION,
  show_default=True,
  help='Floats of the noise of a round.',
)
@click.option('--only', default='', help='Cases whose name contains this.')
def main(other: str, repetitions: int, dimension: int, only: str) -> None:
  """Runs the cases."""
  python = {'tff_bandmf': sys.executable, 'jax_privacy': other}
  with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    np.save(folder / 'given.npy', _matrix())
    for case, task in _cases(dimension).items():
      if only not in case:
        continue
      results: dict[str, list[dict[str, Any]]] = {side: [] for side in _SIDES}
      for repetition in range(repetitions):
        sides = list(_SIDES)
        for side in sides if repetition % 2 == 0 else reversed(sides):
          results[side].append(_run(python[side], side, folder, task))
      summary = {side: _summary(runs) for side, runs in results.items()}
      click.echo(
        json.dumps(
          {
            'case': case,
            **task,
            **summary,
            **{
              f'{name}_ratio': statistics.median(
                theirs[name] / ours[name]
                for ours, theirs in zip(
                  results['tff_bandmf'], results['jax_privacy']
                )
              )
              for name in ('seconds', 'cpu_seconds')
            },
          }
        )
      )


def _matrix() -> np.ndarray:
  """Returns a banded C whose columns have several norms."""
  generator = np.random.default_rng(0)
  t = np.arange(_MATRIX_ROUNDS)
  apart = t[:, None] - t
  values = generator.uniform(0.1, 1.0, (_MATRIX_ROUNDS, _MATRIX_ROUNDS))
  return np.where((apart >= 0) & (apart < _MATRIX_BANDS), values, 0.0)


def _run(
  python: str, side: str, folder: pathlib.Path, task: dict[str, Any]
) -> dict[str, Any]:
  """Returns the result of one side, with its matrix evaluated."""
  done = subprocess.run(
    [python, '-m', f'benchmarks.{_SIDES[side]}', json.dumps(task), str(folder)],
    check=True,
    stdout=subprocess.PIPE,
    cwd=_FOLDER.parent,
  )
  answer = json.loads(done.stdout.splitlines()[-1])
  if task['task'] == 'optimize':
    # Equal column norms and bands <= min_sep: sens^2 is theirs, for any k.
    matrix = np.load(folder / 'found.npy')
    decoder = np.linalg.solve(matrix.T, np.tri(len(matrix)).T)
    answer['loss'] = float(
      np.mean(np.sum(decoder**2, 0)) * np.max(np.sum(matrix**2, 0))
    )
  return answer


def _summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
  """Returns the medians of the results over repetitions."""
  return {
    name: (
      value
      if isinstance(value, str)
      else statistics.median(run[name] for run in runs)
    )
    for name, value in runs[0].items()
  }


if __name__ == '__main__':
  main()
