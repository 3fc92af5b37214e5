"""Repeats an experiment over seeds and compares the means.

  python -m simulations.seeds --config=F --output_dir=D

A seed changes the initial weights, the cohorts and the order of sentences; the
noise is fresh every time. Runs without noise are left out: nothing is claimed
for them. Finished runs in D are kept, unfinished ones continue.
"""

from __future__ import annotations

import json
import os
import pathlib
import statistics

import click
import tabulate

from simulations import config as config_lib
from simulations import run_stackoverflow


@click.command(help=__doc__.split('\n')[0])
@run_stackoverflow.experiment_options
@click.option('--seeds', default=3, show_default=True,
              type=click.IntRange(min=2), help='How many.')
@run_stackoverflow.one_line_errors
def main(
    config_path: str, settings: tuple[str, ...], output_dir: str, seeds: int
) -> None:
  config = config_lib.load(config_path, settings)
  directory = pathlib.Path(output_dir)
  accuracies: dict[str, list[float]] = {}
  for seed in range(seeds):
    runs = run_stackoverflow.planned_runs(
        config_lib.with_seed(config, seed), directory / f'seed{seed}')
    kept = {
        name: run for name, run in runs.items()
        if run[0].privacy.family != config_lib.NO_NOISE}
    results = run_stackoverflow.train_all(kept, resume=True)
    for name, result in results.items():
      accuracies.setdefault(name, []).append(100 * result['test_accuracy'])
  rows = [
      {'run': name, 'seeds': seeds,
       'test accuracy (%)': round(statistics.mean(values), 2),
       'standard deviation': round(statistics.stdev(values), 2),
       'least': round(min(values), 2), 'most': round(max(values), 2)}
      for name, values in accuracies.items()]
  temporary = directory / 'seeds.part'
  temporary.write_text(json.dumps(rows, indent=1) + '\n')
  os.replace(temporary, directory / 'seeds.json')
  click.echo(tabulate.tabulate(rows, headers='keys', tablefmt='github'))


if __name__ == '__main__':
  main()
