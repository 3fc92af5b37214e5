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
  say = steps.append if output.as_json() else click.echo
  try:
    result = verify_lib.verify(path, say)
  except AssertionError as error:
    failed = {'verified': False, 'reason': str(error), 'steps': steps}
    output.show(failed, f'DOES NOT HOLD: {error}')
    raise output.did_not_hold() from None
  verified = {'verified': True, **result, 'steps': steps}
  output.show(verified, verify_lib.verdict(result))
