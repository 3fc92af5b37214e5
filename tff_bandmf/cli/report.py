"""`bandmf report`: the privacy report of a run, and what it might have been."""

from __future__ import annotations

import pathlib
from typing import Any, Optional

import click

from tff_bandmf import _checks, errors
from tff_bandmf.cli import options, output


class _WhatIf(click.ParamType):
  """`min_sep=B,max_participations=K`, or one of the two."""

  name = 'schema'

  def get_metavar(self, param, ctx=None):
    return 'min_sep=B,max_participations=K'

  def convert(self, value, param, ctx):
    found: dict[str, int] = {}
    for part in value.split(','):
      name, _, number = part.partition('=')
      name = name.strip().replace('-', '_')
      if name not in ('min_sep', 'max_participations') or name in found:
        raise ValueError(
          errors.invalid(
            'what_if',
            value,
            'takes min_sep and max_participations, each once',
            'give --what-if min_sep=B,max_participations=K',
          )
        )
      found[name] = _count(name, number)
    return found


def _count(name: str, text: str) -> int:
  remedy = 'give --what-if min_sep=B,max_participations=K'
  try:
    number = int(text)
  except ValueError:
    raise ValueError(
      errors.invalid(name, text, 'must be an integer', remedy)
    ) from None
  return _checks.count(name, number, remedy)


class _Note(click.ParamType):
  """`NAME=TEXT`."""

  name = 'note'

  def get_metavar(self, param, ctx=None):
    return 'NAME=TEXT'

  def convert(self, value, param, ctx):
    name, found, text = value.partition('=')
    if not found:
      raise ValueError(
        errors.invalid('note', value, 'is NAME=TEXT', 'give --note title=TEXT')
      )
    return name, text


@click.command()
@click.argument('run_dir', required=False)
@click.option(
  '--what-if',
  type=_WhatIf(),
  help='Only print which epsilon the noise of the run gives if min_sep had '
  'been B (r2 - r1) and no client had taken part in more than K rounds; what '
  'is left out is as planned.',
)
@click.option(
  '--plan', type=click.Path(), help='Plan of training that ran elsewhere.'
)
@click.option(
  '--log',
  type=click.Path(),
  help='Who took part in it: CSV or Parquet with the columns round and client.',
)
@click.option(
  '--note',
  'notes',
  type=_Note(),
  multiple=True,
  help='With --plan: a statement of the report, such as title, owner, contact, '
  'date, model or unit_of_privacy; may be repeated.',
)
@click.option(
  '--out',
  type=click.Path(),
  help='Folder to write to.  [default: that of the run; with --plan, here]',
)
@options.as_json
def report(run_dir, what_if, plan, log, notes, out, as_json):
  """Writes the privacy report of a run into its directory.

  With --plan and --log, that of training that ran elsewhere. Exit status 1:
  clients took part more often, or closer together, than was planned; the report
  claims what holds for the run as it was.
  """
  # Draws a plot: the other commands do without what that imports.
  from tff_bandmf import report as report_lib

  elsewhere = {'plan': plan, 'log': log, 'note': notes or None}
  _check(run_dir, elsewhere)
  if what_if is not None:
    found = report_lib.what_if(run_dir, **what_if)
    if as_json:
      output.show(found, as_json)
    else:
      click.echo(found['summary'])
    return output.DONE
  if run_dir is None:
    source = report_lib.of_log(plan, log, dict(notes))
  else:
    source = report_lib.of_run(run_dir)
  folder = pathlib.Path(out or run_dir or '.')
  written = report_lib.of(source).write(folder)
  if as_json:
    output.show(written, as_json)
  else:
    click.echo(written['summary'])
    click.echo(str(folder / report_lib.MARKDOWN_FILE))
  if written['violated']:
    click.echo(
      errors.invalid(
        'violated',
        True,
        'clients took part more often, or closer together, than was planned',
        'the report claims what holds for the run as it was',
      ),
      err=True,
    )
    return output.DID_NOT_HOLD
  return output.DONE


def _check(run_dir: Optional[str], elsewhere: dict[str, Any]) -> None:
  """Raises ValueError unless a run is named, or a plan and a log."""
  if run_dir is None:
    for name in ('plan', 'log'):
      if elsewhere[name] is None:
        raise ValueError(
          errors.invalid(
            name,
            None,
            'a report is of a run, or of a plan and a log',
            'give RUN_DIR, or --plan FILE --log FILE',
          )
        )
    return
  for name, value in elsewhere.items():
    if value is not None:
      raise ValueError(
        errors.invalid(
          name,
          value,
          'is for training that ran elsewhere, and RUN_DIR is a run',
          'leave it out; a run notes statements by run.note',
        )
      )
