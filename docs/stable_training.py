"""Writes the table and the figure of the page `stable_training.md`.

    python docs/stable_training.py

The page shows losses of training without noise. The program reads
`reference/stable_training.json`, a list of runs with their settings and curves,
and the runs without noise in `reference/evidence.json`. It writes the figure
beside these files and the table into the page.
"""

from __future__ import annotations

import json
import pathlib
import sys

import tabulate

_FOLDER = pathlib.Path(__file__).resolve().parent / 'reference'
_BEGIN, _END = '<!-- runs -->\n', '<!-- end of runs -->\n'


def main() -> None:
  sys.path.insert(0, str(_FOLDER.parent.parent))
  from simulations.sweeps import analysis, plots

  runs = json.loads((_FOLDER / 'stable_training.json').read_text())
  evidence = json.loads((_FOLDER / 'evidence.json').read_text())
  for run in evidence['runs']:
    if run['mechanism'] == 'none':
      run['gradient'] = 'right, driver'
      run['server_learning_rate'] = run['rate']
      runs.append(run)
  for run in runs:
    run['mechanism'] = (
      f'{run["gradient"]}, rate {run["server_learning_rate"]:g}, '
      f'seed {run["seed"]}'
    )
    run['epsilon'] = None
  figure = plots.convergence(runs)
  figure.set_size_inches(8, 4)
  figure.axes[0].set_ylim(4.2, 5.2)
  figure.savefig(_FOLDER / 'stable_training.png', dpi=80)
  rows = []
  for run in runs:
    losses = [loss for _, loss in run['curve']]
    rows.append(
      [
        run['gradient'],
        run['server_learning_rate'],
        run['seed'],
        f'{min(losses):.3f}',
        f'{losses[-1]:.3f}',
        run.get('train_loss', ''),
        f'{100 * analysis.drift(losses):.2f} %',
        run.get('largest_update', ''),
      ]
    )
  table = tabulate.tabulate(
    rows,
    [
      'gradient',
      'server rate',
      'seed',
      'least loss',
      'last',
      'last, train clients',
      'last tenth above the least',
      'largest update',
    ],
    'github',
    floatfmt='.4g',
  )
  page = _FOLDER / 'stable_training.md'
  before, begin, rest = page.read_text().partition(_BEGIN)
  _, end, after = rest.partition(_END)
  page.write_text(before + begin + table + '\n' + end + after)


if __name__ == '__main__':
  main()
