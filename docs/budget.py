"""Writes the figure and the tables of `reference/budget.md` on admission.

    python docs/budget.py
    python docs/budget.py --arrivals=FILE
    python docs/budget.py --runs=DIR ...

The figures come from `reference/budget.json`. --arrivals computes the numbers
of admissions again; FILE is chitchat_dataset/dataset.json of the package
chitchat-dataset 0.9.0. --runs reads the figures of runs of configs/budget.toml
again.

A simulated client checks in to each round with the same probability, the
inverse of its mean gap. Real clients are people. A round is a day, and a person
checks in to the days on which the person wrote a message. Every admitted client
takes part.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
from typing import Any

import numpy as np
import tabulate

_FOLDER = pathlib.Path(__file__).resolve().parent / 'reference'
# Mean numbers of rounds between two check-ins of a simulated client.
_GAPS = (25, 50, 100, 200, 400, 800, 1600)
_CLIENTS = 4000


def _rules(rounds: int, min_sep: int, most: int, apart: tuple[int, ...]) -> Any:
  """Returns a `MinSep` and budgets for an optimised banded Toeplitz C, by name.

  Args:
    rounds: number of rounds.
    min_sep: minimum separation of the `MinSep`, which also defines the budget.
    most: maximum number of participations of the `MinSep`.
    apart: minimum separation of each budget.
  """
  from tff_bandmf import optimize, participation, sensitivity

  typical = participation.MinSep(min_sep, most)
  strategy = optimize.optimize('banded-toeplitz', rounds, typical).strategy
  rules: dict[str, participation.Participation] = {'min_sep': typical}
  for least in apart:
    budget = participation.Budget(min_sep, most, apart=least)
    _, by_budget = sensitivity.budget.for_horizon(budget, strategy)
    rules[f'budget, apart {least}'] = by_budget.schema
  return rules


def _simulated() -> dict[str, list[float]]:
  """Returns the mean number of rounds of a simulated client.

  Returns:
    A list for each rule, with a number for each mean gap of `_GAPS`.
  """
  from tff_bandmf.cohorts import arrivals

  rounds, found = 2000, {}
  for name, rule in _rules(rounds, 400, 5, (1, 100, 200)).items():
    found[name] = []
    for gap in _GAPS:
      came = np.random.default_rng(0).random((rounds, _CLIENTS)) < 1 / gap
      taken = arrivals.admission_counts(
        *np.nonzero(came),
        rule,
        planned_rounds=rounds,
        cohort_size=_CLIENTS,
      )
      found[name].append(taken.participations / _CLIENTS)
  return found


def _real(path: str) -> dict[str, Any]:
  """Returns the numbers of admissions of real people, by rule.

  Args:
    path: path of `dataset.json`.
  """
  from tff_bandmf.cohorts import arrivals

  talks = json.loads(pathlib.Path(path).read_text()).values()
  wrote = sorted(
    {
      (message['timestamp'][:10], message['sender'])
      for talk in talks
      for turn in talk['messages']
      for message in turn
    }
  )
  _, days = np.unique([day for day, _ in wrote], return_inverse=True)
  _, people = np.unique([sender for _, sender in wrote], return_inverse=True)
  rounds = int(days.max()) + 1
  return {
    'rounds': rounds,
    'people': int(people.max()) + 1,
    'check_ins': len(wrote),
    'cohorts': 20,
    'taken': {
      name: {
        size: arrivals.admission_counts(
          days,
          people,
          rule,
          planned_rounds=rounds,
          cohort_size=limit,
        ).to_dict()
        for size, limit in (('all', len(people)), ('20', 20))
      }
      for name, rule in _rules(rounds, 20, 5, (1, 5, 10)).items()
    },
  }


def _run(directory: str) -> dict[str, Any]:
  """Returns the figures of a run's report for a row of the page."""
  report = json.loads(pathlib.Path(directory, 'report.json').read_text())
  (row,) = (each for each in report['runs'] if each['name'] == report['family'])
  return {
    'participation': report['participation'],
    'planned': report['planned']['rounds'],
    'rounds': report['observed']['rounds_finished'],
    'epsilon': report['epsilon'],
    'clients': report['observed']['clients'],
    'test_accuracy': row['test_accuracy'],
    'test_loss': row['test_loss'],
  }


def main() -> None:
  sys.path.insert(0, str(_FOLDER.parent.parent))
  parser = argparse.ArgumentParser()
  parser.add_argument(
    '--arrivals', metavar='FILE', help='dataset.json of chitchat-dataset'
  )
  parser.add_argument(
    '--runs', nargs='+', metavar='DIR', help='runs of configs/budget.toml'
  )
  given = parser.parse_args()
  file = _FOLDER / 'budget.json'
  counts = json.loads(file.read_text())
  if given.arrivals:
    counts.update(simulated=_simulated(), real=_real(given.arrivals))
  if given.runs:
    counts['runs'] = [_run(directory) for directory in given.runs]
  file.write_text(json.dumps(counts, indent=1) + '\n')
  from matplotlib import figure

  drawing = figure.Figure(figsize=(8, 4), layout='constrained')
  axes = drawing.subplots()
  for name, means in counts['simulated'].items():
    axes.plot(_GAPS, means, marker='o', label=name)
  axes.set_xscale('log')
  axes.set_xticks(_GAPS, [str(gap) for gap in _GAPS])
  axes.minorticks_off()
  axes.set_xlabel('mean gap of a client, rounds')
  axes.set_ylabel('rounds of a client, mean')
  axes.grid(alpha=0.3)
  axes.legend(frameon=False)
  drawing.savefig(_FOLDER / 'budget.png', dpi=80)
  simulated = tabulate.tabulate(
    [
      [gap, *(f'{means[i]:.2f}' for means in counts['simulated'].values())]
      for i, gap in enumerate(_GAPS)
    ],
    ['mean gap', *counts['simulated']],
    'pipe',
    disable_numparse=True,
  )
  real = tabulate.tabulate(
    [
      [
        name,
        found['all']['clients'],
        found['all']['participations'],
        found['20']['participations'],
        found['20']['short'],
      ]
      for name, found in counts['real']['taken'].items()
    ],
    [
      'rule',
      'people who took part',
      'participations',
      'in cohorts of 20',
      'cohorts not filled',
    ],
    'pipe',
  )
  runs = tabulate.tabulate(
    [
      [
        run['participation'],
        run['planned'],
        run['rounds'],
        f'{run["epsilon"]:.2f}',
        run['clients'],
        f'{100 * run["test_accuracy"]:.2f} %',
        f'{run["test_loss"]:.3f}',
      ]
      for run in counts['runs']
    ],
    [
      'rule',
      'planned rounds',
      'rounds',
      'epsilon',
      'clients that took part',
      'test accuracy',
      'test loss',
    ],
    'pipe',
    disable_numparse=True,
  )
  page = _FOLDER / 'budget.md'
  text = page.read_text()
  for name, table in (
    ('simulated', simulated),
    ('real', real),
    ('runs', runs),
  ):
    begin, end = f'<!-- {name} -->\n', f'<!-- end of {name} -->\n'
    before, rest = text.split(begin)
    text = f'{before}{begin}\n{table}\n\n{end}{rest.split(end)[1]}'
  page.write_text(text)


if __name__ == '__main__':
  main()
