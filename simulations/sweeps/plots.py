"""The plots of a sweep. A plot is None if no run can be drawn in it."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Optional

import numpy as np

from simulations.sweeps import analysis
from tff_bandmf import errors

with errors.importing('a plot'):
  import matplotlib
  from matplotlib import figure as figure_lib

  from tff_bandmf import _figures

_PANEL = (5.6, 4.6)
_MARKERS = 'osD^vP'

Runs = Sequence[Mapping[str, Any]]


def noise(runs: Runs) -> Optional[figure_lib.Figure]:
  """Returns a figure of test loss against L, the predicted effect of the noise.

  In the left panel L is the error of prefix sums of updates, `Result.noise` of
  `sweeps/cell.py`. In the right panel L is the error of the models,
  `Result.momentum_noise`. Each point is a run. The solid line is
  `analysis.curve`, fitted to all points. The dashed line is the mean loss of
  the runs without noise.

  Args:
    runs: result of `Summary.tests`.
  """
  with_noise = [
    run for run in runs if run['noise'] > 0 and run['test_loss'] is not None
  ]
  if not with_noise:
    return None
  width, height = _PANEL
  drawing = figure_lib.Figure(figsize=(2 * width, height), layout='constrained')
  panels = drawing.subplots(1, 2, sharey=True)
  colors = _colors(runs)
  epsilons = _unique(run['epsilon'] for run in with_noise)
  silent = [run['test_loss'] for run in runs if run['noise'] == 0]
  for panel, key, of in zip(
    panels, ('noise', 'momentum_noise'), ('sums of updates', 'models')
  ):
    _figures.style(
      panel, f'L: predicted error of {of}', 'test loss (nats a word)'
    )
    panel.set_xscale('log')
    for run in with_noise:
      panel.plot(
        run[key],
        run['test_loss'],
        linestyle='',
        color=colors[run['mechanism']],
        marker=_MARKERS[epsilons.index(run['epsilon']) % len(_MARKERS)],
        fillstyle='full' if run['stands_for'] else 'none',
      )
    fitted = analysis.curve(
      [(run[key], run['test_loss']) for run in with_noise]
    )
    if fitted is not None:
      values = [run[key] for run in with_noise]
      x = np.geomspace(min(values), max(values))
      panel.plot(x, fitted(x), color='gray', linewidth=1, zorder=0)
    if silent:
      panel.axhline(np.mean(silent), color='gray', linestyle='--', zorder=0)
  for name in _unique(run['mechanism'] for run in with_noise):
    panels[1].plot([], [], 's', color=colors[name], label=name)
  for epsilon, marker in zip(epsilons, _MARKERS):
    panels[1].plot([], [], marker, color='gray', label=f'epsilon {epsilon:g}')
  _legend(drawing, panels[1])
  return drawing


def convergence(runs: Runs) -> Optional[figure_lib.Figure]:
  """Returns a figure of validation loss by round, one panel for each epsilon.

  A line is the mean over seeds. A band reaches one standard deviation to each
  side of its line. Runs without noise are in every panel.

  Args:
    runs: result of `Summary.tests`.
  """
  drawn = [
    run for run in runs if all(loss is not None for _, loss in run['curve'])
  ]
  if not drawn:
    return None
  epsilons = sorted({run['epsilon'] for run in drawn if run['epsilon']})
  width, height = _PANEL
  drawing = figure_lib.Figure(
    figsize=(width * max(1, len(epsilons)), height), layout='constrained'
  )
  panels = drawing.subplots(
    1, max(1, len(epsilons)), squeeze=False, sharey=True
  )
  colors = _colors(runs)
  for panel, epsilon in zip(panels[0], epsilons or [None]):
    _figures.style(panel, 'rounds', 'validation loss (nats a word)')
    panel.xaxis.get_major_locator().set_params(integer=True)
    if epsilon is not None:
      panel.set_title(f'epsilon {epsilon:g}')
    shown = [run for run in drawn if run['epsilon'] in (epsilon, None)]
    for name in _unique(run['mechanism'] for run in shown):
      curves = [run['curve'] for run in shown if run['mechanism'] == name]
      rounds, losses = np.array(curves[0])[:, 0], np.array(curves)[:, :, 1]
      mean, stdev = losses.mean(0), losses.std(0, ddof=int(len(losses) > 1))
      panel.plot(rounds, mean, color=colors[name], label=name)
      panel.fill_between(
        rounds,
        mean - stdev,
        mean + stdev,
        color=colors[name],
        alpha=0.15,
        linewidth=0,
      )
  _legend(drawing, panels[0][-1])
  return drawing


def _colors(runs: Runs) -> dict[str, Any]:
  """Returns the colour of each mechanism."""
  palettes = [matplotlib.colormaps[name] for name in ('tab20', 'Dark2')]
  palette = [each(i) for each in palettes for i in range(each.N)]
  names = _unique(run['mechanism'] for run in runs)
  return dict(zip(names, itertools.cycle(palette)))


def _legend(drawing: figure_lib.Figure, axes: Any) -> None:
  """Draws the legend of one panel below all panels.

  Args:
    drawing: figure to draw in.
    axes: panel whose legend is drawn.
  """
  drawing.legend(
    *axes.get_legend_handles_labels(),
    frameon=False,
    fontsize='small',
    loc='outside lower center',
    ncols=6,
  )


def _unique(names: Any) -> list[Any]:
  return list(dict.fromkeys(names))
