"""Draws the pictures of the pages: factorization, noise, and one round.

    python docs/pictures.py

The program writes each picture beside the page that shows it. The same code
gives the same bytes, which a test compares with the committed files.
"""

from __future__ import annotations

import io
import pathlib
import sys

import matplotlib
import numpy as np
from matplotlib import figure as figure_lib
from matplotlib import patches

_FOLDER = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(_FOLDER.parent))

from tff_bandmf import (  # noqa: E402
  participation,
  sensitivity,
  strategies,
  workloads,
)

_STEP, _FILE, _SECRET, _EDGE, _GREY = (
  '#f4f6f8',
  '#fdf3d8',
  '#f9dede',
  '#333333',
  '#8a8f94',
)
_CLIENT = '#c1440e'


def factorization() -> figure_lib.Figure:
  """Returns heat maps of A = B C, with patterns of one client below C."""
  rounds, min_sep = 12, 4
  strategy = strategies.BandedSqrt(rounds, bands=min_sep)
  schema = participation.MinSep(min_sep)
  c = strategy.matrix()
  a = workloads.PREFIX.matrix(rounds)
  b = a @ np.linalg.inv(c)
  worst = sensitivity.sensitivity(strategy, schema).value
  # MinSep(4) allows all of these patterns. The first pattern attains the
  # sensitivity.
  patterns = [(0, 4, 8), (1, 5, 9), (0, 5, 11), (3, 9)]
  drawing = figure_lib.Figure(figsize=(10, 5.4), layout='constrained')
  grid = drawing.add_gridspec(2, 3, height_ratios=(3.1, 1))
  # The matrices have no negative entries.
  limit = max(matrix.max() for matrix in (a, b, c))
  titles = (
    'A: from updates to models\n(prefix sums)',
    '=   B: noise left in the models\n(B = A C$^{-1}$)',
    '×   C: what is protected\n(4 bands, released as C G + Z)',
  )
  for column, (matrix, title) in enumerate(zip((a, b, c), titles)):
    panel = drawing.add_subplot(grid[0, column])
    mesh = panel.pcolormesh(matrix, cmap='Blues', vmin=0, vmax=limit)
    panel.set_title(title, fontsize=11)
    panel.invert_yaxis()
    panel.set_aspect('equal')
    panel.set_xticks(np.arange(0, rounds, 4) + 0.5, range(0, rounds, 4))
    panel.set_yticks(np.arange(0, rounds, 4) + 0.5, range(0, rounds, 4))
    if column == 0:
      panel.set_ylabel('row t')
    if column == 2:
      for r in patterns[0]:
        panel.add_patch(
          patches.Rectangle(
            (r, r), 1, min(min_sep, rounds - r), fill=False, ec=_CLIENT, lw=2
          )
        )
  drawing.colorbar(mesh, ax=drawing.axes, shrink=0.5, label='entry')
  below = drawing.add_subplot(grid[1, 2], sharex=panel)
  for row, pattern in enumerate(patterns):
    for r in range(rounds):
      below.add_patch(
        patches.Rectangle(
          (r, row),
          1,
          0.8,
          fc=_CLIENT if r in pattern else _STEP,
          ec=_GREY,
          lw=0.5,
          clip_on=False,
        )
      )
    norm = np.linalg.norm(c[:, list(pattern)].sum(axis=1))
    below.text(rounds + 0.3, row + 0.45, f'{norm:.3f}', va='center')
  below.set(xlim=(0, rounds), ylim=(len(patterns), -0.1), xlabel='round')
  below.set_yticks([])
  below.spines[:].set_visible(False)
  drawing.text(
    0.04,
    0.2,
    'Four of the patterns of one client that MinSep(4) allows. Beside each:\n'
    'the norm of the sum of its columns of C. The columns do not overlap,\n'
    'because they have at most 4 entries and are at least 4 apart.\n'
    f'The largest norm of any pattern is the sensitivity: {worst:.3f}.',
    va='center',
    fontsize=11,
  )
  return drawing


def _canvas(width: float, height: float) -> tuple[figure_lib.Figure, object]:
  """Returns an empty figure and its axes.

  Args:
    width: width of the figure, in hundredths of an inch.
    height: height of the figure, in hundredths of an inch; y = 0 is the top.
  """
  drawing = figure_lib.Figure(figsize=(width / 100, height / 100))
  axes = drawing.add_axes((0, 0, 1, 1))
  axes.set(xlim=(0, width), ylim=(height, 0))
  axes.axis('off')
  return drawing, axes


def _box(axes, x, y, width, height, title, lines=(), colour=_STEP) -> None:
  """Draws a box with a title, and smaller lines below it."""
  axes.add_patch(
    patches.FancyBboxPatch(
      (x, y),
      width,
      height,
      boxstyle='round,pad=0,rounding_size=5',
      fc=colour,
      ec=_EDGE,
      lw=1,
    )
  )
  axes.text(x + width / 2, y + 20, title, ha='center', va='center', fontsize=11)
  for row, line in enumerate(lines):
    axes.text(
      x + width / 2,
      y + 42 + 17 * row,
      line,
      ha='center',
      va='center',
      fontsize=8.5,
      color='#444444',
    )


def _arrow(axes, start, end, text='', colour=_EDGE) -> None:
  """Draws an arrow with text above it."""
  axes.annotate(
    '',
    end,
    start,
    arrowprops={'arrowstyle': '-|>', 'color': colour, 'lw': 1.2},
  )
  axes.text(
    (start[0] + end[0]) / 2,
    (start[1] + end[1]) / 2 - 9,
    text,
    ha='center',
    va='center',
    fontsize=9,
    color=colour,
  )


def noise() -> figure_lib.Figure:
  """Returns a diagram of the noise, from the key to the sum of a round."""
  drawing, axes = _canvas(960, 310)
  boxes = (
    ('key', ('256 secret bits,', 'one key a run'), _SECRET),
    ('normals', ('z[t, i] of words', 'ChaCha20(key, t, i)'), _SECRET),
    (
      'blocks',
      ('y = C$^{-1}$ z, from z', 'and past y; 4 to 64', 'rounds at once'),
      _SECRET,
    ),
    (
      'tape',
      ('a file of y$_t$', 'for each round,', 'ahead of training'),
      _SECRET,
    ),
    ('round', ('S$_t$ + y$_t$; each y$_t$', 'meets one sum'), _STEP),
    ('release', ('a mark with its', 'fingerprint, then', 'the model'), _FILE),
  )
  y, width, gap = 90, 130, 28
  for column, (title, lines, colour) in enumerate(boxes):
    x = 14 + column * (width + gap)
    _box(axes, x, y, width, 100, title, lines, colour)
    if column:
      _arrow(axes, (x - gap + 2, y + 50), (x - 2, y + 50))
  ends = (14, 14 + 3 * (width + gap) - gap, 14 + 4 * (width + gap))
  for x, title, line in (
    (
      ends[0],
      'the producer: a thread, or bandmf noise-server',
      'has the key, sees no update',
    ),
    (ends[2], "TFF's worker", 'sees updates, has no key'),
  ):
    axes.text(x, 40, title, fontsize=11)
    axes.text(x, 60, line, fontsize=9, color='#444444')
  for left, right in ((ends[0], ends[1]), (ends[2], 934)):
    axes.plot([left, right], [74, 74], color=_GREY, lw=1)
  x = 14 + 4 * (width + gap)
  axes.text(
    x + width / 2,
    258,
    'S$_t$: clipped updates, added up as integers',
    ha='center',
    fontsize=9,
  )
  _arrow(axes, (x + width / 2, 244), (x + width / 2, y + 102))
  axes.text(
    14,
    285,
    'Red: secret, since the noise follows from it. S$_t$ and y$_t$ are whole '
    'multiples of one step, so their sum is exact.',
    fontsize=9,
    color='#444444',
  )
  return drawing


def sequence() -> figure_lib.Figure:
  """Returns a sequence diagram of a round of `Run`, from cohort to metrics."""
  drawing, axes = _canvas(960, 620)
  names = ('program', 'Run', 'ledger', 'clients', 'aggregator', 'tape', 'files')
  xs = [70 + 137 * column for column in range(len(names))]
  for x, name in zip(xs, names):
    _box(axes, x - 52, 14, 104, 40, name)
    axes.plot([x, x], [54, 600], color=_GREY, lw=0.8, linestyle=(0, (4, 3)))
  program, run, ledger, clients, aggregator, tape, files = xs
  steps = (
    (program, run, 'next round', _EDGE),
    (ledger, run, 'past cohorts', _EDGE),
    (run, ledger, 'start t: cohort', _CLIENT),
    (run, clients, 'model', _EDGE),
    (clients, aggregator, 'updates', _EDGE),
    (tape, aggregator, 'y$_t$', _EDGE),
    (aggregator, tape, 'mark of t', _CLIENT),
    (aggregator, run, 'S$_t$ + y$_t$, and the next model', _EDGE),
    (run, files, 'row of metrics', _CLIENT),
    (run, ledger, 'end t: digests', _CLIENT),
    (run, files, 'checkpoint', _CLIENT),
    (run, program, 'metrics, weights', _EDGE),
  )
  y = 92
  for start, end, text, colour in steps:
    _arrow(axes, (start, y), (end, y), text, colour)
    y += 42
  axes.text(
    18,
    y + 10,
    'Red: written before the next arrow, so a kill loses nothing of it. '
    'Ledger, row and checkpoint are also synced to the disk.',
    fontsize=9,
    color='#444444',
  )
  return drawing


# Function of each picture, by the path of its file below this folder.
PICTURES = {
  'guide/factorization.svg': factorization,
  'guide/noise.svg': noise,
  'round.svg': sequence,
}


def svg(figure: figure_lib.Figure) -> bytes:
  """Returns a figure as an SVG file; the same figure gives the same bytes."""
  stream = io.BytesIO()
  with matplotlib.rc_context({'svg.hashsalt': 'tff_bandmf'}):
    figure.savefig(
      stream,
      format='svg',
      metadata=dict.fromkeys(('Date', 'Creator', 'Format', 'Type')),
    )
  return stream.getvalue()


def main() -> None:
  for name, draw in PICTURES.items():
    (_FOLDER / name).write_bytes(svg(draw()))


if __name__ == '__main__':
  main()
