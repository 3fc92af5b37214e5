"""Pictures of strategies, rankings, plans, runs and reports, with Matplotlib.

The functions take numbers and return figures. Another module imports this
module only when it draws, since Matplotlib is slow to import and may be
missing:

  with errors.importing('a plot'):
    from tff_bandmf import _figures
"""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from typing import Any, Optional

import matplotlib
import numpy as np
from matplotlib import colors, figure
from matplotlib.axes import Axes

_SIZE = (5.6, 3.6)
# Formats a number beside an axis. Matplotlib passes the position of the number
# as a second argument, which the format ignores.
_number = '{:g}'.format
_LABEL, _TICK = 13, 12
# If a curve has at most this many points, their values are written beside them.
_FEW = 3
_BLUE, _GREY = '#1f5fa8', '#777777'
# The colour scale of a matrix is linear up to this fraction of the largest
# entry, and logarithmic above.
_LINEAR = 0.01
# With the values None, matplotlib writes no date and no web address into an
# SVG.
_NO_METADATA = {'Date': None, 'Creator': None, 'Format': None, 'Type': None}


class Figure(figure.Figure):
  """A figure that notebooks show, also before pyplot is imported."""

  def _repr_png_(self) -> bytes:
    stream = io.BytesIO()
    self.savefig(stream, format='png')
    return stream.getvalue()


def epsilon(
  curve: list[dict[str, float]],
  stated: tuple[float, float],
  planned: Optional[list[dict[str, float]]] = None,
) -> Figure:
  """Returns a figure of epsilon against delta.

  Args:
    curve: points with `epsilon` and `delta`.
    stated: (epsilon, delta) of the claim, which the figure shows as a dot.
    planned: points of the planned curve; None if `curve` is the planned curve.
  """
  drawing, axes = empty(
    'delta: probability of an accident', 'epsilon: privacy loss'
  )
  label = f'the claim: ({stated[0]:.4g}, {stated[1]:.4g})'
  if planned is not None:
    _draw(axes, planned, color=_GREY, linestyle='--', label='planned')
  _draw(axes, curve, color=_BLUE, label='this run')
  axes.plot(stated[1], stated[0], 'o', color=_BLUE, label=label)
  axes.set_xscale('log')
  # The default labels, powers of ten, take most of the time of a figure.
  axes.xaxis.set_major_formatter(_number)
  axes.minorticks_off()
  axes.set_ylim(bottom=0)
  axes.legend(frameon=False, fontsize=_TICK)
  return drawing


def accuracy(curves: Mapping[str, Sequence[tuple[int, float]]]) -> Figure:
  """Returns a figure of validation accuracy by round.

  Args:
    curves: maps a label to pairs (rounds done, accuracy in [0, 1]). At least
      one label has a pair.
  """
  drawing, axes = empty('rounds', 'validation accuracy (%)')
  for label, points in curves.items():
    rounds = [round_ for round_, _ in points]
    percent = [100 * value for _, value in points]
    axes.plot(rounds, percent, marker='o', label=label)
    if len(points) <= _FEW:
      for place in zip(rounds, percent):
        axes.annotate(
          f'{place[1]:.1f}',
          place,
          textcoords='offset points',
          xytext=(0, 7),
          ha='center',
          fontsize=_TICK,
        )
  values = [100 * value for points in curves.values() for _, value in points]
  low, high = min(values), max(values)
  # If all values are near the largest value, an axis from 0 would hide their
  # differences.
  if high and low > high / 2:
    room = max(high - low, 0.02 * high)
    axes.set_ylim(low - 0.3 * room, high + 0.4 * room)
  else:
    axes.set_ylim(0, 1.1 * high or 1)
  axes.margins(x=0.08)
  axes.locator_params(axis='x', integer=True)
  axes.legend(frameon=False, fontsize=_TICK)
  return drawing


def clip(path: Sequence[tuple[int, float]]) -> Figure:
  """Returns a figure of an adaptive clip by round.

  Args:
    path: pairs (rounds done, clip).
  """
  drawing, axes = empty('rounds', 'clip')
  axes.plot(*zip(*path), color=_BLUE)
  axes.set_yscale('log')
  return drawing


def errors(
  families: Sequence[tuple[str, float]],
  memory: Sequence[tuple[int, float]],
  name: str,
) -> Figure:
  """Returns a figure of errors by family, and of errors by memory.

  Args:
    families: pairs (family, error); the first family was chosen.
    memory: pairs (copies of the model that the noise keeps, error); the pair of
      the chosen family comes first. For each number of copies, the line shows
      the least error with at most this number.
    name: name of the error.
  """
  # The bars need 0.25 inches each.
  height = max(_SIZE[1], 0.25 * len(families) + 1)
  drawing = Figure(figsize=(2 * _SIZE[0], height), layout='constrained')
  left, right = drawing.subplots(1, 2)
  style(left, name, '')
  style(right, 'copies of the model in memory', name)
  names, sizes = zip(*families)
  bars = left.barh(range(len(names)), sizes, color=_GREY)
  bars[0].set_facecolor(_BLUE)
  left.set_yticks(range(len(names)), names)
  left.invert_yaxis()
  copies, values = zip(*sorted(set(memory)))
  right.plot(copies, values, 'o', color=_GREY)
  right.step(copies, np.minimum.accumulate(values), where='post', color=_GREY)
  right.plot(*memory[0], 'o', color=_BLUE, label=names[0])
  right.locator_params(axis='x', integer=True)
  right.set_ylim(0, 1.1 * max(values) or 1)
  right.legend(frameon=False, fontsize=_TICK, loc='lower right')
  return drawing


def matrices(
  matrix: np.ndarray, inverse: np.ndarray, pattern: Sequence[int], title: str
) -> Figure:
  """Returns a figure of C, of C^-1, and of one client in the rows of C.

  Args:
    matrix: [m, m] first rows and columns of C.
    inverse: [m, m] first rows and columns of C^-1.
    pattern: rounds below m in which the client takes part.
    title: title of the figure.
  """
  drawing = Figure(figsize=(2.3 * _SIZE[0], _SIZE[1]), layout='constrained')
  panels = drawing.subplots(1, 3)
  drawing.suptitle(title, fontsize=_LABEL)
  for axes, name, entries in zip(panels, ('C', 'C^-1'), (matrix, inverse)):
    largest = np.abs(entries).max()
    image = axes.imshow(
      entries,
      cmap='RdBu_r',
      norm=colors.SymLogNorm(_LINEAR * largest, vmin=-largest, vmax=largest),
      interpolation='nearest',
    )
    axes.set_title(name)
    axes.set_xlabel('column', fontsize=_LABEL)
    axes.set_ylabel('round', fontsize=_LABEL)
    drawing.colorbar(image, ax=axes, format=_number)
  sums = matrix[:, list(pattern)].sum(axis=1)
  style(panels[2], 'round', 'sum of columns of C')
  panels[2].step(range(len(sums)), sums, where='mid', color=_BLUE)
  panels[2].plot(list(pattern), sums[list(pattern)], 'o', color=_GREY)
  panels[2].set_title(f'a client (dots): norm {np.linalg.norm(sums):.4g}')
  panels[2].set_ylim(bottom=min(0, 1.1 * sums.min()))
  return drawing


def by_round(curves: Mapping[str, Sequence[tuple[int, float]]]) -> Figure:
  """Returns a figure with one panel for each curve.

  Args:
    curves: maps the name of a number to pairs (round, number).
  """
  height = _SIZE[1] * len(curves) / 1.5
  drawing = Figure(figsize=(_SIZE[0], height), layout='constrained')
  panels = drawing.subplots(len(curves), sharex=True, squeeze=False)[:, 0]
  for axes, (name, points) in zip(panels, curves.items()):
    style(axes, '', name)
    axes.plot(*zip(*points), marker='.', color=_BLUE)
    axes.locator_params(axis='x', integer=True)
  panels[-1].set_xlabel('round', fontsize=_LABEL)
  return drawing


def png(drawing: figure.Figure) -> bytes:
  """Returns a figure as a PNG file."""
  return _saved(drawing, format='png', dpi=160)


def data_uri(drawing: figure.Figure) -> str:
  """Returns a figure as a data URI of SVG, which a page can embed."""
  # A fixed salt for IDs makes the same figure give the same bytes.
  with matplotlib.rc_context({'svg.hashsalt': 'tff_bandmf'}):
    image = _saved(
      drawing, format='svg', transparent=True, metadata=_NO_METADATA
    )
  encoded = base64.b64encode(image).decode()
  return f'data:image/svg+xml;base64,{encoded}'


def _saved(drawing: figure.Figure, **options: Any) -> bytes:
  """Returns a figure in a format of `savefig`."""
  # The layout is computed once. Saving the figure at another resolution would
  # otherwise move the axes.
  engine = drawing.get_layout_engine()
  if engine is not None:
    engine.execute(drawing)
    drawing.set_layout_engine('none')
  stream = io.BytesIO()
  drawing.savefig(stream, **options)
  return stream.getvalue()


def empty(x: str, y: str) -> tuple[Figure, Axes]:
  """Returns an empty figure, and its axes with their labels."""
  drawing = Figure(figsize=_SIZE, layout='constrained')
  axes = drawing.subplots()
  style(axes, x, y)
  return drawing, axes


def style(axes: Axes, x: str, y: str) -> None:
  """Labels axes, and gives them a grid and two spines."""
  axes.set_xlabel(x, fontsize=_LABEL)
  axes.set_ylabel(y, fontsize=_LABEL)
  axes.tick_params(labelsize=_TICK)
  axes.grid(alpha=0.3)
  axes.spines[['top', 'right']].set_visible(False)


def _draw(axes: Axes, curve: list[dict[str, float]], **style: Any) -> None:
  axes.plot([p['delta'] for p in curve], [p['epsilon'] for p in curve], **style)
