"""Plots of strategy matrices and of their errors."""

from __future__ import annotations

import math
import pathlib
from collections.abc import Iterator
from typing import Optional

import numpy as np

from tff_bandmf import accounting, errors, optimize, strategies
from tff_bandmf import participation as participation_lib
from tff_bandmf import sensitivity as sensitivity_lib

with errors.importing('a plot'):
  from tff_bandmf import _figures

# Rounds and min_sep of the drawn matrices, small enough to show single entries.
_PICTURE_ROUNDS, _PICTURE_MIN_SEP = 64, 16
# Families of the drawn matrices, and of the compared errors.
_PICTURED = 'banded banded-toeplitz blt banded-inverse dp-cgd tree'.split()
_COMPARED = (
  'identity banded-toeplitz banded-sqrt blt dp-cgd banded-inverse online-tree'
).split()
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
  pictures = _optimized(_PICTURE_ROUNDS, _PICTURE_MIN_SEP, _PICTURED)
  large = _optimized(_ROUNDS, _MIN_SEP, _COMPARED)
  figures = {
    'matrices': _matrices(pictures),
    'coefficients': _coefficients(large),
    'per_query_error': _per_query_error(large),
    'rmse_by_min_sep': _rmse_by_min_sep(),
    'rmse_by_epsilon': _rmse_by_epsilon(large),
  }
  for name, figure in figures.items():
    for axes in figure.axes:
      if axes.lines:
        axes.legend(frameon=False)
    path = folder / f'{name}.png'
    figure.savefig(path, dpi=120)
    yield path


def _optimized(rounds, min_sep, families) -> dict[str, strategies.Strategy]:
  schema = participation_lib.MinSep(min_sep)
  return {
    family: optimize.optimize(family, rounds, schema).strategy
    for family in families
  }


def _matrices(optimized) -> _figures.Figure:
  """Returns heat maps of C in the upper row and C^-1 in the lower row."""
  size = (2.4 * len(optimized), 5)
  figure = _figures.Figure(figsize=size, layout='constrained')
  columns = figure.subplots(2, len(optimized)).T
  for column, (family, strategy) in zip(columns, optimized.items()):
    matrix = strategy.matrix()
    images = {'C': matrix, 'C^-1': np.linalg.inv(matrix)}
    for axes, (label, values) in zip(column, images.items()):
      # Most entries are small, so colours show the square roots of entries.
      image = np.sign(values) * np.sqrt(np.abs(values))
      axes.imshow(image, cmap='RdBu', vmin=-1, vmax=1)
      axes.set_title(f'{family}: {label}', fontsize=8)
      axes.set(xticks=[], yticks=[])
  return figure


def _coefficients(optimized) -> _figures.Figure:
  figure, axes = _figures.empty('lag', 'first column of C')
  for family, strategy in optimized.items():
    column = strategy.first_column()
    if column is not None:
      axes.loglog(np.arange(1, len(column) + 1), column, label=family)
  return figure


def _per_query_error(optimized) -> _figures.Figure:
  name = 'sensitivity * sqrt(per-query error)'
  figure, axes = _figures.empty('round', name)
  for family, strategy in optimized.items():
    errors = np.sqrt(strategy.per_query_errors())
    axes.semilogy(_sensitivity(strategy) * errors, label=family)
  return figure


def _rmse_by_min_sep() -> _figures.Figure:
  """Returns a figure of rmse by the actual min_sep [BandMF24, App H].

  All strategies are optimised for one planned min_sep.
  """
  figure, axes = _figures.empty('true min_sep', 'rmse, sigma = 1')
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
    rmse = [root * _sensitivity(strategy, b, k) for b in min_seps]
    axes.plot(min_seps, rmse, label=family)
  return figure


def _rmse_by_epsilon(optimized) -> _figures.Figure:
  figure, axes = _figures.empty('epsilon', 'rmse')
  sigmas = [
    accounting.gaussian_noise_multiplier(epsilon, _DELTA)
    for epsilon in _EPSILONS
  ]
  for family, strategy in optimized.items():
    error = _sensitivity(strategy) * math.sqrt(strategy.errors()[0])
    axes.loglog(_EPSILONS, [sigma * error for sigma in sigmas], label=family)
  return figure


def _sensitivity(
  strategy: strategies.Strategy,
  min_sep: int = _MIN_SEP,
  most: Optional[int] = None,
) -> float:
  schema = participation_lib.MinSep(min_sep, most)
  return sensitivity_lib.sensitivity(strategy, schema).value
