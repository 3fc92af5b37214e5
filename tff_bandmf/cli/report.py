"""`bandmf report`: the privacy report of a run, and what it might have been."""

from __future__ import annotations

import pathlib
from typing import Optional

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


@click.command()
@click.argument('run_dir')
@click.option(
  '--what-if',
  type=_WhatIf(),
  help='Only print which epsilon the noise of the run gives if min_sep had '
  'been B (r2 - r1) and no client had taken part in more than K rounds; what '
  'is left out is as planned.',
)
@options.as_json
def report(run_dir: str, what_if: Optional[dict[str, int]], as_json: bool):
  """Writes the privacy report of a run into its directory.

  Exit status 1: clients took part more often, or closer together, than was
  planned; the report claims what holds for the run as it was.
  """
  # Draws a plot: the other commands do without what that imports.
  from tff_bandmf import report as report_lib

  if what_if is not None:
    found = report_lib.what_if(run_dir, **what_if)
    if as_json:
      output.show(found, as_json)
    else:
      click.echo(found['summary'])
    return output.DONE
  written = report_lib.write(run_dir)
  if as_json:
    output.show(written, as_json)
  else:
    click.echo(written['summary'])
    click.echo(str(pathlib.Path(run_dir) / report_lib.MARKDOWN_FILE))
  if written['violated']:
    click.echo(
      errors.invalid(
        'violated',
        True,
        'the ledger shows more or closer rounds of a client than were planned',
        'the report claims what holds for the run as it was',
      ),
      err=True,
    )
    return output.DID_NOT_HOLD
  return output.DONE
