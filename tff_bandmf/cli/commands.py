"""The commands of `bandmf`; each returns its exit status."""

from __future__ import annotations

import click

import tff_bandmf
from tff_bandmf.cli import (
  audit,
  choose,
  compose,
  noise_server,
  observe,
  plan,
  privacy,
  report,
  reproduce,
  strategy,
  verify,
)


@click.group(no_args_is_help=False)
@click.version_option(tff_bandmf.__version__, prog_name='bandmf')
def bandmf():
  """Correlated-noise differential privacy: strategies and their privacy."""


for _command in (
  plan.plan,
  strategy.optimize,
  strategy.evaluate,
  privacy.account,
  privacy.calibrate,
  audit.audit,
  observe.observe,
  compose.compose,
  report.report,
  verify.verify,
  choose.choose,
  reproduce.reproduce,
  noise_server.noise_server,
):
  bandmf.add_command(_command)
