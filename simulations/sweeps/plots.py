"""The plots of a sweep; None where there is nothing to draw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Optional

import numpy as np
from matplotlib import figure as figure_lib

_PANEL = (5.0, 3.6)

Curves = Mapping[tuple[str, float], Sequence[Sequence[tuple[int, float]]]]


def accuracy(rows: Sequence[Mapping[str, Any]]) -> Optional[figure_lib.Figure]:
  """Returns a figure of test accuracy against epsilon.

  Bars are one standard deviation over seeds to each side. A row that claims
  more than the epsilon of the grid stands at what it claims.

  Args:
    rows: of `sweep_summary.Summary`.
  """
  if not rows:
    return None
  drawing = figure_lib.Figure(figsize=_PANEL, layout='constrained')
  axes = _style(drawing.subplots(), 'epsilon', 'test accuracy (%)')
  for series in _unique(row['mechanism'] for row in rows):
    points = sorted(
      (_epsilon(row), row['accuracy_mean'], row['accuracy_stdev'] or 0.0)
      for row in rows
      if row['mechanism'] == series
    )
    epsilons, means, stdevs = zip(*points)
    axes.errorbar(epsilons, means, stdevs, marker='.', capsize=3, label=series)
  ticks = sorted({_epsilon(row) for row in rows})
  axes.set_xscale('log')
  axes.set_xticks(ticks, [f'{epsilon:.3g}' for epsilon in ticks])
  axes.minorticks_off()
  axes.legend(frameon=False)
  return drawing


def convergence(curves: Curves) -> Optional[figure_lib.Figure]:
  """Returns a figure of validation accuracy by round, a panel an epsilon.

  Lines are means over seeds, bands one standard deviation to each side.

  Args:
    curves: (series, epsilon) to curves of (rounds done, accuracy in [0, 1]).
  """
  epsilons = sorted({epsilon for _, epsilon in curves})
  if not epsilons:
    return None
  width, height = _PANEL
  drawing = figure_lib.Figure(
    figsize=(width * len(epsilons), height), layout='constrained'
  )
  panels = drawing.subplots(1, len(epsilons), squeeze=False, sharey=True)[0]
  for panel, epsilon in zip(panels, epsilons):
    _style(panel, 'rounds', 'validation accuracy (%)')
    panel.set_title(f'epsilon {epsilon:g}')
    panel.xaxis.get_major_locator().set_params(integer=True)
    for (series, of_epsilon), runs in curves.items():
      if of_epsilon != epsilon:
        continue
      rounds = [round_ for round_, _ in runs[0]]
      values = 100 * np.array([[value for _, value in run] for run in runs])
      mean, stdev = values.mean(0), values.std(0, ddof=int(len(runs) > 1))
      (line,) = panel.plot(rounds, mean, label=series)
      panel.fill_between(
        rounds,
        mean - stdev,
        mean + stdev,
        color=line.get_color(),
        alpha=0.15,
        linewidth=0,
      )
  panels[0].legend(frameon=False)
  return drawing


def _epsilon(row: Mapping[str, Any]) -> float:
  return max(row['epsilon'], row['claimed_epsilon'] or 0.0)


def _style(axes: Any, x: str, y: str) -> Any:
  axes.set_xlabel(x)
  axes.set_ylabel(y)
  axes.grid(alpha=0.3)
  axes.spines[['top', 'right']].set_visible(False)
  return axes


def _unique(names: Any) -> list[str]:
  return list(dict.fromkeys(names))
