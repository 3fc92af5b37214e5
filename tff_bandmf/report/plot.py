"""The plots of a report; without matplotlib, a report has no plots."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Optional

if TYPE_CHECKING:
  from matplotlib.axes import Axes
  from matplotlib.figure import Figure

_SIZE = (5.6, 3.6)
_LABEL, _TICK = 13, 12
# If a curve has at most this many points, their values are written beside them.
_FEW = 3
_BLUE, _GREY = '#1f5fa8', '#777777'
# With the values None, matplotlib writes no date and web address into an SVG.
_NO_METADATA = {'Date': None, 'Creator': None, 'Format': None, 'Type': None}


def epsilon(
  curve: list[dict[str, float]],
  stated: tuple[float, float],
  planned: Optional[list[dict[str, float]]] = None,
) -> Optional[Figure]:
  """Returns a figure of epsilon against delta; None without matplotlib.

  Args:
    curve: points with `epsilon` and `delta`.
    stated: (epsilon, delta) of the claim, which the figure marks.
    planned: points of the planned curve; None if `curve` is the planned curve.
  """
  empty = _axes('delta: probability of an accident', 'epsilon: privacy loss')
  if empty is None:
    return None
  figure, axes = empty
  label = f'the claim: ({stated[0]:.4g}, {stated[1]:.4g})'
  if planned is not None:
    _draw(axes, planned, color=_GREY, linestyle='--', label='planned')
  _draw(axes, curve, color=_BLUE, label='this run')
  axes.plot(stated[1], stated[0], 'o', color=_BLUE, label=label)
  axes.set_xscale('log')
  axes.minorticks_off()
  axes.set_ylim(bottom=0)
  axes.legend(frameon=False, fontsize=_TICK)
  return figure


def accuracy(
  curves: Mapping[str, Sequence[tuple[int, float]]],
) -> Optional[Figure]:
  """Returns a figure of validation accuracy by round.

  The result is None without data or without matplotlib.

  Args:
    curves: maps a label to pairs (rounds done, accuracy in [0, 1]).
  """
  if not any(curves.values()):
    return None
  empty = _axes('rounds', 'validation accuracy (%)')
  if empty is None:
    return None
  figure, axes = empty
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
  # The axis begins at 0, unless the curve would then be flat along the top.
  if high and low > high / 2:
    room = max(high - low, 0.02 * high)
    axes.set_ylim(low - 0.3 * room, high + 0.4 * room)
  else:
    axes.set_ylim(0, 1.1 * high or 1)
  axes.margins(x=0.08)
  axes.locator_params(axis='x', integer=True)
  axes.legend(frameon=False, fontsize=_TICK)
  return figure


def clip(path: list[tuple[int, float]]) -> Optional[Figure]:
  """Returns a figure of an adaptive clip by round.

  The result is None for an empty path or without matplotlib.

  Args:
    path: pairs (rounds done, clip).
  """
  empty = _axes('rounds', 'clip') if path else None
  if empty is None:
    return None
  figure, axes = empty
  axes.plot(*zip(*path), color=_BLUE)
  axes.set_yscale('log')
  return figure


def png(figure: Figure) -> bytes:
  """Returns a figure as a PNG file."""
  return _saved(figure, format='png', dpi=160)


def data_uri(figure: Figure) -> str:
  """Returns a figure as a data URI of SVG, which a page can embed."""
  import matplotlib

  # A fixed salt for IDs makes the same figure give the same bytes.
  with matplotlib.rc_context({'svg.hashsalt': 'tff_bandmf'}):
    image = _saved(
      figure, format='svg', transparent=True, metadata=_NO_METADATA
    )
  encoded = base64.b64encode(image).decode()
  return f'data:image/svg+xml;base64,{encoded}'


def _saved(figure: Figure, **options: Any) -> bytes:
  """Returns a figure in a format of `savefig`."""
  # The layout is computed once. Saving the figure at another resolution would
  # otherwise move the axes.
  figure.draw_without_rendering()
  figure.set_layout_engine('none')
  stream = io.BytesIO()
  figure.savefig(stream, **options)
  return stream.getvalue()


def _axes(x: str, y: str) -> Optional[tuple[Figure, Axes]]:
  """Returns an empty figure and its axes; None without matplotlib."""
  try:
    from matplotlib import figure
  except ImportError:
    return None
  drawing = figure.Figure(figsize=_SIZE, layout='constrained')
  axes = drawing.subplots()
  axes.set_xlabel(x, fontsize=_LABEL)
  axes.set_ylabel(y, fontsize=_LABEL)
  axes.tick_params(labelsize=_TICK)
  axes.grid(alpha=0.3)
  axes.spines[['top', 'right']].set_visible(False)
  return drawing, axes


def _draw(axes: Axes, curve: list[dict[str, float]], **style: Any) -> None:
  axes.plot(
    [point['delta'] for point in curve],
    [point['epsilon'] for point in curve],
    **style,
  )
