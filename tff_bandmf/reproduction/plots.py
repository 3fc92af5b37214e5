"""Plots of strategy matrices and of their errors."""

from __future__ import annotations

import math
import pathlib
from collections.abc import Iterator

import numpy as np

from tff_bandmf import accounting, errors, optimize, strategies
from tff_bandmf import participation as participation_lib
from tff_bandmf import sensitivity as sensitivity_lib

with errors.importing('a plot'):
  import matplotlib.figure

# Rounds and min_sep of the drawn matrices; so few that single entries are seen.
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
  for name, figure in (
    ('matrices', _matrices(pictures)),
    ('coefficients', _coefficients(large)),
    ('per_query_error', _per_query_error(large)),
    ('rmse_by_min_sep', _rmse_by_min_sep()),
    ('rmse_by_epsilon', _rmse_by_epsilon(large)),
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


def _matrices(optimized) -> matplotlib.figure.Figure:
  """Returns heat maps of C in the upper row and C^-1 in the lower row."""
  figure = matplotlib.figure.Figure(
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


def _coefficients(optimized) -> matplotlib.figure.Figure:
  figure, axes = _axes('lag', 'first column of C')
  for family, strategy in optimized.items():
    column = strategy.first_column()
    if column is not None:
      axes.loglog(np.arange(1, len(column) + 1), column, label=family)
  return _with_legend(figure, axes)


def _per_query_error(optimized) -> matplotlib.figure.Figure:
  figure, axes = _axes('round', 'sensitivity * sqrt(per-query error)')
  schema = participation_lib.MinSep(_MIN_SEP)
  for family, strategy in optimized.items():
    sensitivity = sensitivity_lib.sensitivity(strategy, schema).value
    axes.semilogy(
      sensitivity * np.sqrt(strategy.per_query_errors()), label=family
    )
  return _with_legend(figure, axes)


def _rmse_by_min_sep() -> matplotlib.figure.Figure:
  """Returns a plot of rmse by the actual min_sep [BandMF24, App H].

  All strategies are optimised for one planned min_sep.
  """
  figure, axes = _axes('true min_sep', 'rmse, sigma = 1')
  rounds, k = _UNKNOWN['rounds'], _UNKNOWN['participations']
  planned = participation_lib.MinSep(_UNKNOWN['bands'], k)
  min_seps = np.arange(100, 501, 25)
  for family, b0 in (
    (strategies.BandedToeplitz.family, None),
    (strategies.RobustToeplitz.family, _UNKNOWN['b0']),
    (strategies.Blt.family, None),
  ):
    strategy = optimize.optimize(family, rounds, planned, b0=b0).strategy
    root = math.sqrt(strategy.errors()[0])
    axes.plot(
      min_seps,
      [
        root
        * sensitivity_lib.sensitivity(
          strategy, participation_lib.MinSep(int(b), k)
        ).value
        for b in min_seps
      ],
      label=family,
    )
  return _with_legend(figure, axes)


def _rmse_by_epsilon(optimized) -> matplotlib.figure.Figure:
  figure, axes = _axes('epsilon', 'rmse')
  schema = participation_lib.MinSep(_MIN_SEP)
  sigmas = np.array(
    [
      accounting.gaussian_noise_multiplier(epsilon, _DELTA)
      for epsilon in _EPSILONS
    ]
  )
  for family, strategy in optimized.items():
    sensitivity = sensitivity_lib.sensitivity(strategy, schema).value
    axes.loglog(
      _EPSILONS,
      sigmas * sensitivity * math.sqrt(strategy.errors()[0]),
      marker='o',
      label=family,
    )
  return _with_legend(figure, axes)


def _axes(x: str, y: str):
  figure = matplotlib.figure.Figure(figsize=(7, 4.5), layout='constrained')
  axes = figure.subplots()
  axes.set_xlabel(x)
  axes.set_ylabel(y)
  axes.grid(alpha=0.3)
  return figure, axes


def _with_legend(figure, axes) -> matplotlib.figure.Figure:
  axes.legend(fontsize=8)
  return figure
