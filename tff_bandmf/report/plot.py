"""The plot of a report."""

from __future__ import annotations

import pathlib


def accuracy(
    curves: dict[str, list[tuple[int, float]]], path: pathlib.Path
) -> bool:
  """Draws validation accuracy by round; False without matplotlib or data.

  Args:
    curves: label to (rounds done, accuracy in [0, 1]).
    path: of the PNG file.
  """
  try:
    from matplotlib import figure
  except ImportError:
    return False
  if not any(curves.values()):
    return False
  drawing = figure.Figure(figsize=(7, 4), layout='constrained')
  axes = drawing.subplots()
  for label, points in curves.items():
    axes.plot(
        [round_ for round_, _ in points],
        [100 * value for _, value in points], marker='.', label=label)
  axes.set_xlabel('rounds')
  axes.set_ylabel('validation accuracy (%)')
  axes.set_ylim(bottom=0)
  axes.grid(alpha=0.3)
  axes.legend()
  drawing.savefig(path, dpi=120)
  return True
