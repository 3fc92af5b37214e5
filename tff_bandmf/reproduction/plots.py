"""Plots of strategy matrices and of their errors."""

from __future__ import annotations

import math
import pathlib
from collections.abc import Iterable, Iterator
from typing import Any, Optional

import numpy as np

from tff_bandmf import accounting, errors, optimize, strategies
from tff_bandmf import participation as participation_lib
from tff_bandmf import sensitivity as sensitivity_lib

with errors.importing('a plot'):
  from tff_bandmf import _figures

# Label, x values and y values of a line.
_Line = tuple[str, Any, Any]
# Rounds and min_sep of the drawn matrices, small enough to show single entries.
_PICTURE_ROUNDS, _PICTURE_MIN_SEP = 64, 16
# Setting of [BandMF23, Table 2].
_ROUNDS, _MIN_SEP, _DELTA = 2052, 342, 1e-6
_EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
# Setting of [BandMF24, App H].
_UNKNOWN = {'rounds': 2000, 'bands': 400, 'b0': 200, 'participations': 5}


def draw(folder: pathlib.Path) -> Iterator[pathlib.Path]:
  """Draws all plots as PNG files and yields their paths.

  Args:
    folder: folder of the files, created if it does not exist.
  """
  folder.mkdir(parents=True, exist_ok=True)
  pictures = _optimized(
    _PICTURE_ROUNDS,
    _PICTURE_MIN_SEP,
    (
      strategies.Banded,
      strategies.BandedToeplitz,
      strategies.Blt,
      strategies.BandedInverse,
      strategies.DpCgd,
      strategies.Tree,
    ),
  )
  large = _optimized(
    _ROUNDS,
    _MIN_SEP,
    (
      strategies.Identity,
      strategies.BandedToeplitz,
      strategies.BandedSqrt,
      strategies.Blt,
      strategies.DpCgd,
      strategies.BandedInverse,
      strategies.OnlineTree,
    ),
  )
  per_query = 'sensitivity * sqrt(per-query error)'
  for name, figure in (
    ('matrices', _matrices(pictures)),
    (
      'coefficients',
      _lines('lag', 'first column of C', 'loglog', _coefficients(large)),
    ),
    (
      'per_query_error',
      _lines('round', per_query, 'semilogy', _per_query_error(large)),
    ),
    (
      'rmse_by_min_sep',
      _lines('true min_sep', 'rmse, sigma = 1', 'plot', _rmse_by_min_sep()),
    ),
    (
      'rmse_by_epsilon',
      _lines('epsilon', 'rmse', 'loglog', _rmse_by_epsilon(large)),
    ),
  ):
    path = folder / f'{name}.png'
    figure.savefig(path, dpi=120)
    yield path


def _optimized(rounds, min_sep, kinds) -> dict[str, strategies.Strategy]:
  schema = participation_lib.MinSep(min_sep)
  return {
    kind.family: optimize.optimize(kind.family, rounds, schema).strategy
    for kind in kinds
  }


def _matrices(optimized) -> _figures.Figure:
  """Returns heat maps of C in the upper row and C^-1 in the lower row."""
  figure = _figures.Figure(
    figsize=(2.4 * len(optimized), 5), layout='constrained'
  )
  axes = figure.subplots(2, len(optimized))
  for column, (family, strategy) in enumerate(optimized.items()):
    matrix = strategy.matrix()
    for row, (label, values) in enumerate(
      (('C', matrix), ('C^-1', np.linalg.inv(matrix)))
    ):
      # Most entries are small, so colours show the square roots of entries.
      image = np.sign(values) * np.sqrt(np.abs(values))
      axes[row, column].imshow(image, cmap='RdBu', vmin=-1, vmax=1)
      axes[row, column].set_title(f'{family}: {label}', fontsize=8)
      axes[row, column].set_xticks([])
      axes[row, column].set_yticks([])
  return figure


def _lines(
  x: str, y: str, method: str, lines: Iterable[_Line]
) -> _figures.Figure:
  """Returns a figure of lines.

  Args:
    x: label of the horizontal axis.
    y: label of the vertical axis.
    method: method of Matplotlib's axes that draws a line.
    lines: label, x values and y values of each line.
  """
  figure, axes = _figures.empty(x, y)
  for label, places, values in lines:
    getattr(axes, method)(places, values, label=label)
  axes.legend(frameon=False)
  return figure


def _coefficients(optimized) -> Iterator[_Line]:
  for family, strategy in optimized.items():
    column = strategy.first_column()
    if column is not None:
      yield family, np.arange(1, len(column) + 1), column


def _per_query_error(optimized) -> Iterator[_Line]:
  for family, strategy in optimized.items():
    errors = np.sqrt(strategy.per_query_errors())
    yield family, np.arange(_ROUNDS), _sensitivity(strategy) * errors


def _rmse_by_min_sep() -> Iterator[_Line]:
  """Yields rmse by the actual min_sep [BandMF24, App H].

  All strategies are optimised for one planned min_sep.
  """
  rounds, k = _UNKNOWN['rounds'], _UNKNOWN['participations']
  planned = participation_lib.MinSep(_UNKNOWN['bands'], k)
  min_seps = range(100, 501, 25)
  for family, b0 in (
    (strategies.BandedToeplitz.family, None),
    (strategies.RobustToeplitz.family, _UNKNOWN['b0']),
    (strategies.Blt.family, None),
  ):
    strategy = optimize.optimize(family, rounds, planned, b0=b0).strategy
    root = math.sqrt(strategy.errors()[0])
    yield (
      family,
      min_seps,
      [root * _sensitivity(strategy, b, k) for b in min_seps],
    )


def _rmse_by_epsilon(optimized) -> Iterator[_Line]:
  sigmas = [
    accounting.gaussian_noise_multiplier(epsilon, _DELTA)
    for epsilon in _EPSILONS
  ]
  for family, strategy in optimized.items():
    error = _sensitivity(strategy) * math.sqrt(strategy.errors()[0])
    yield family, _EPSILONS, [sigma * error for sigma in sigmas]


def _sensitivity(
  strategy: strategies.Strategy,
  min_sep: int = _MIN_SEP,
  most: Optional[int] = None,
) -> float:
  schema = participation_lib.MinSep(min_sep, most)
  return sensitivity_lib.sensitivity(strategy, schema).value
