"""`bandmf verify`: checks a run without the code that made the run."""

from __future__ import annotations

import click

from tff_bandmf import verify as verify_lib
from tff_bandmf.cli import options, output


@click.command()
@click.argument('path', metavar='RUN_DIR-OR-REPORT')
@options.as_json
def verify(path):
  """Checks the claims of a run, or the figures of a public.json.

  The command does the same as `python tff_bandmf/verify.py`, a file that needs
  NumPy and no other part of the library. Exit status 1: a claim does not hold.
  """
  steps: list[str] = []
  as_json = output.as_json()
  say = steps.append if as_json else click.echo
  try:
    result = verify_lib.verify(path, say)
  except AssertionError as error:
    if as_json:
      output.show({'verified': False, 'reason': str(error), 'steps': steps})
    else:
      click.echo(f'DOES NOT HOLD: {error}')
    raise output.did_not_hold() from None
  if as_json:
    output.show({'verified': True, **result, 'steps': steps})
  else:
    click.echo(verify_lib.verdict(result))
