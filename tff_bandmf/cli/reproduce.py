"""`bandmf reproduce`: compares published tables with our own numbers."""

from __future__ import annotations

import pathlib
import time

import click

from tff_bandmf import reproduction
from tff_bandmf.cli import options, output

_FORMAT = '{:<28} {:<44} {:>12} {:>12} {:>11} {:<4} {}'
_HEAD = ('table', 'row', 'published', 'ours', 'difference', 'pass', 'bound')


@click.command()
@click.argument('names', nargs=-1)
@options.paths(plot='Folder for plots of matrices, coefficients and errors.')
@options.switches(
  slow='Also the tables of amplified numbers, which take half an hour.'
)
@options.as_json_rows
def reproduce(names, plot, slow):
  """Compares published numbers with our own; NAMES chooses tables.

  Amplified numbers are estimates from samples with a fixed seed, as in the
  publications. The column bound has the same number, computed with the proved
  bound of the noise instead of the estimate.

  Exit status 1: a row differs from its published number by more than the
  tolerance of the row.
  """
  rows = reproduction.reproduce(names or None, slow)
  if not output.as_json():
    click.echo(_FORMAT.format(*_HEAD))
  count = failed = 0
  started = time.perf_counter()
  for row in rows:
    count += 1
    failed += not row.passed
    line = _FORMAT.format(
      row.table,
      row.row,
      f'{row.published:.7g}',
      f'{row.ours:.7g}',
      f'{row.difference:+.1e}',
      'yes' if row.passed else 'NO',
      '-' if row.bound is None else f'{row.bound:.7g}',
    )
    seconds = time.perf_counter() - started
    output.show({**row.to_dict(), 'seconds': seconds}, line)
    started = time.perf_counter()
  if plot is not None:
    # `plots` imports matplotlib, which is slow: import it only when needed.
    from tff_bandmf.reproduction import plots

    for path in plots.draw(pathlib.Path(plot)):
      click.echo(str(path), err=True)
  if failed:
    raise output.did_not_hold(
      f'rows={failed} of {count}: differ from the published numbers by more '
      'than the tolerance; see the column pass'
    )
