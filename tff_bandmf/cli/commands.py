"""The commands of `bandmf`; each is imported when it is used."""

from __future__ import annotations

import importlib
import time
from collections.abc import Collection
from typing import Optional

import click

import tff_bandmf
from tff_bandmf import errors

# Keys of click's context for the time at which the command began, and for the
# value of --json.
BEGAN, AS_JSON = f'{__name__}.began', f'{__name__}.as_json'
# Maps a command to the first sentence of its help.
COMMANDS = {
  'account': 'Shows rho and epsilon of a run with given noise.',
  'audit': 'Shows lower bounds on epsilon from runs with canaries.',
  'calibrate': 'Shows the least noise that meets (epsilon, delta) for a run.',
  'choose': 'Ranks the families that fit in memory by their error at epsilon.',
  'compose': 'Shows the joint guarantee of several runs on the same clients.',
  'evaluate': 'Shows the errors and the sensitivity of a strategy.',
  'noise-server': 'Writes the noise of a run to files, ahead of its rounds.',
  'observe': 'Shows the sensitivity and the epsilon of the rounds in a log.',
  'optimize': 'Optimises (or builds) a strategy.',
  'plan': 'Plans a run: its mechanism, noise, guarantee and error.',
  'report': 'Writes the privacy report of a run into its directory.',
  'reproduce': 'Compares published numbers with our own; NAMES chooses tables.',
  'verify': 'Checks the claims of a run, or the figures of a public.json.',
}
# Commands in the module `strategy`; every other command has its own module.
_STRATEGY = {'account', 'calibrate', 'evaluate', 'optimize'}


def missing(context: click.Context, names: Collection[Optional[str]]) -> str:
  """Returns the error message for parameters that a command line lacks."""
  flags = {
    str(each.name): each.opts[0]
    if isinstance(each, click.Option)
    else str(each.name).upper()
    for each in context.command.params
    if each.name in names
  }
  return errors.invalid(
    f'{", ".join(flags)}=None: {context.command_path} needs '
    f'{"it" if len(flags) == 1 else "each of them"}; give '
    f'{", ".join(flags.values())}'
  )


class _Commands(click.Group):
  """A group that imports the module of a command when it is used."""

  def list_commands(self, ctx):
    return list(COMMANDS)

  def get_command(self, ctx, cmd_name) -> Optional[click.Command]:
    if cmd_name not in COMMANDS:
      return None
    name = cmd_name.replace('-', '_')
    module = 'strategy' if name in _STRATEGY else name
    return getattr(importlib.import_module(f'tff_bandmf.cli.{module}'), name)

  def format_commands(self, ctx, formatter):
    with formatter.section('Commands'):
      formatter.write_dl(list(COMMANDS.items()))


@click.group(
  cls=_Commands, no_args_is_help=False, context_settings={'show_default': True}
)
@click.version_option(tff_bandmf.__version__, prog_name='bandmf')
def bandmf():
  """Correlated-noise differential privacy: strategies and their privacy."""
  click.get_current_context().meta[BEGAN] = time.perf_counter()
