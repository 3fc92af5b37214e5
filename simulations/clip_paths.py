"""Draws the clips of adaptive runs, and the noise of their prefix sums.

  python -m simulations.clip_paths RUNS --out=DIR

RUNS is a folder that `run_stackoverflow` wrote. The program writes
`adaptive_clipping.json` and `adaptive_clipping.png` to DIR.

C is the strategy matrix, and the entries of Z are independent standard normals.
Let y_t be row t of C^-1 Z, Xi_t = y_0 + ... + y_t, and S_t the clip of round t.
Up to a constant factor, the noise of round t is S_t y_t. By Abel's summation
the noise of the sum of rounds 0 to t is

  sum_{s<=t} S_s y_s = S_t Xi_t - sum_{s<t} (S_{s+1} - S_s) Xi_s

The first term is the noise of a constant clip S_t. The second term is 0 if the
clip is constant.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Sequence
from typing import Any

import click
import numpy as np

from tff_bandmf import _files, clipping_norm, errors, strategies
from tff_bandmf.run_files import metrics, run_json, run_ledger

with errors.importing('a plot'):
  from matplotlib import figure as figure_lib

_NAME = 'adaptive_clipping'


def noise_of_sums(
  strategy: strategies.Strategy, path: Sequence[float]
) -> dict[str, np.ndarray]:
  """Returns standard deviations of the noise of prefix sums and of its terms.

  Args:
    strategy: C.
    path: [rounds] clips S_0, S_1, ....

  Returns:
    [rounds] float64 arrays: `constant` for the term S_t Xi_t, `moving` for the
    term sum_{s<t} (S_{s+1} - S_s) Xi_s, and `total` for the noise of the sum.
  """
  scales = np.asarray(path, np.float64)
  inverse = np.linalg.inv(strategy.matrix())
  total = np.cumsum(scales[:, np.newaxis] * inverse, 0)
  constant = scales[:, np.newaxis] * np.cumsum(inverse, 0)
  return {
    name: np.linalg.norm(rows, axis=1)
    for name, rows in (
      ('total', total),
      ('constant', constant),
      ('moving', total - constant),
    )
  }


def read(directory: pathlib.Path) -> dict[str, Any]:
  """Returns the mechanism, the clips, the result and the noise of a run.

  Args:
    directory: folder of the finished run.
  """
  config = run_json.RunDetails.read(directory).config or {}
  privacy, training = config['privacy'], config['training']
  strategy = run_json.read_plan(directory).strategy
  first = clipping_norm.norm(privacy['l2_norm_clip'])
  with run_ledger.open_ledger(directory) as ledger:
    attempts = ledger.contents().attempts
  result = run_ledger.results(directory)
  released = [clip for _, clip in metrics.clips(attempts)]
  path = [first, *released[:-1]] if released else [first] * strategy.rounds
  return {
    'name': directory.name,
    'family': privacy['family'],
    'adaptive': privacy['clip_quantile'] is not None,
    'l2_norm_clip': first,
    'until': privacy['clip_until'],
    'seed': training['seed'],
    **(result or {}),
    'path': path,
    'noise': {
      name: values.tolist()
      for name, values in noise_of_sums(strategy, path).items()
    },
  }


def draw(runs: Sequence[dict[str, Any]]) -> figure_lib.Figure:
  """Returns a figure with a column for each mechanism.

  A column shows the adaptive runs with seed 0. The upper panel shows the clip
  of each round. The lower panel shows the standard deviation of the noise in
  the sum of rounds 0 to t, divided by the clip of round t.
  """
  families = list(dict.fromkeys(run['family'] for run in runs))
  drawing = figure_lib.Figure(
    figsize=(4.2 * len(families), 6.0), layout='constrained'
  )
  panels = drawing.subplots(2, len(families), squeeze=False, sharey='row')
  for family, (above, below) in zip(families, panels.T):
    above.set_title(family)
    for run in runs:
      if run['family'] != family or not run['adaptive'] or run['seed']:
        continue
      style = '-' if run['until'] is None else '--'
      rounds = np.arange(1, len(run['path']) + 1)
      (line,) = above.plot(rounds, run['path'], style, label=run['name'])
      below.plot(
        rounds,
        np.divide(run['noise']['total'], run['path']),
        style,
        color=line.get_color(),
      )
      constant = np.divide(run['noise']['constant'], run['path'])
    below.plot(rounds, constant, ':', color='black', label='a constant clip')
    above.set_yscale('log')
    # The limit keeps small clips readable if the clip of one run diverges.
    above.set_ylim(top=4 * max(run['l2_norm_clip'] for run in runs))
    below.set_yscale('log')
    below.set_xlabel('rounds')
    above.legend(frameon=False)
    below.legend(frameon=False)
  panels[0, 0].set_ylabel('clip')
  panels[1, 0].set_ylabel('noise of the sum over the clip, unit z')
  return drawing


@click.command(help=__doc__.split('\n')[0])
@click.argument('runs', type=click.Path(path_type=pathlib.Path))
@click.option('--out', required=True, type=click.Path(path_type=pathlib.Path))
def main(runs: pathlib.Path, out: pathlib.Path) -> None:
  """Draws clips of adaptive runs; writes a JSON file of all finished runs."""
  clip_paths = [
    read(directory)
    for directory in (runs, *sorted((runs / 'compare').glob('*')))
    if (directory / run_json.RESULT_FILE).exists()
  ]
  draw(clip_paths).savefig(out / f'{_NAME}.png', dpi=110)
  # The JSON file has only the noise of the sum of all rounds.
  for run in clip_paths:
    run['noise'] = {name: values[-1] for name, values in run['noise'].items()}
    if not run['adaptive']:
      del run['path']
  short = json.loads(
    json.dumps(clip_paths), parse_float=lambda text: float(f'{float(text):.4g}')
  )
  _files.write(
    out / f'{_NAME}.json',
    ('[\n' + ',\n'.join(map(json.dumps, short)) + '\n]\n').encode(),
  )


if __name__ == '__main__':
  main()
