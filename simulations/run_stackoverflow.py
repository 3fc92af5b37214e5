"""Federated next-word prediction with differential privacy.

  python -m simulations.run_stackoverflow --config=F --output_dir=D

Trains the run of the configuration and those it is compared with, each in a
directory of its own, and writes the privacy report of each. Ctrl-C loses
nothing: continue with --resume.
"""

from __future__ import annotations

import os
import pathlib
import sys

import click

from simulations import config as config_lib


@click.command(help=__doc__.split('\n')[0])
@click.option('--config', 'config_path', required=True, metavar='FILE',
              help='TOML file of the experiment.')
@click.option('--set', 'settings', multiple=True, metavar='KEY=VALUE',
              help='Changes a value, for instance training.rounds=10.')
@click.option('--output_dir', required=True, metavar='DIR',
              help='Where the run goes.')
@click.option('--resume', is_flag=True, help='Continue the run in DIR.')
def main(
    config_path: str, settings: tuple[str, ...], output_dir: str, resume: bool
) -> None:
  os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
  try:
    config = config_lib.load(config_path, settings)
    _run_all(config, pathlib.Path(output_dir), resume)
  except (ValueError, TypeError, OSError) as error:
    if '\n' in str(error):
      raise
    click.echo(str(error), err=True)
    sys.exit(2)
  except KeyboardInterrupt:
    click.echo('Interrupted; continue with --resume.', err=True)
    sys.exit(130)


def _run_all(
    config: config_lib.Config, directory: pathlib.Path, resume: bool
) -> None:
  """Trains the main run and its comparisons, and writes the reports."""
  # TensorFlow Federated takes 10 s to import: bad input is told before.
  from simulations import training
  from tff_bandmf import report
  from tff_bandmf.program import runtime

  runs = {config.privacy.family: (config, directory)}
  for name, changes in config.compare.items():
    runs[name] = (
        config_lib.changed(config, changes),
        directory / report.COMPARE_DIRECTORY / name)
  corpus = training.load_corpus(config.data)
  with runtime.local_runtime():
    for name, (run_config, run_directory) in runs.items():
      training.run(run_config, corpus, run_directory, resume, name)
      if run_directory != directory:
        report.write(run_directory)
  written = report.write(directory)
  click.echo(written['summary'])
  click.echo(f'Report: {directory / report.MARKDOWN_FILE}')


if __name__ == '__main__':
  main()
