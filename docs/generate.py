"""Writes the pages of figures that take minutes to compute.

    bandmf reproduce --json | python docs/generate.py reproduction
    make -s bench | python docs/generate.py benchmarks
    python -m simulations.sweep --config=configs/evidence.toml --out=DIR \
        --results | python docs/generate.py comparison
    python -m simulations.sweep --config=configs/people.toml --out=DIR \
        --results | python docs/generate.py people
    python -m simulations.attacks RUN_DIR ... | python docs/generate.py attacks
    python -m simulations.sweep --config=configs/amplified.toml --out=DIR \
        --results | python docs/generate.py amplified

Reads JSON lines from standard input and writes `docs/reference/<page>.md`,
which is committed: what the site shows was computed by the code of that commit
or of an earlier one, on the machine that the page names. The pages of the
comparison, people and attacks, and the table in `docs/guide/amplified.md`, are
made of `evidence.json`, `people.json`, `attacks.jsonl` and `amplified.json`,
which stay beside them. People and attacks have a part of README.md.
"""

from __future__ import annotations

import json
import os
import pathlib
import platform
import sys
from collections.abc import Iterable
from typing import Any

import tabulate

# Before the name of the figure that it is for.
_GOAL = 'goal_'
_FOLDER = pathlib.Path(__file__).resolve().parent / 'reference'


def reproduction(rows: list[dict[str, Any]]) -> str:
  """Returns the page of the published tables and ours."""
  passed = sum(row['pass'] for row in rows)
  text = (
    '# Published figures\n\n'
    'Tables of the literature that need no training, computed again. '
    f'{passed} of {len(rows)} rows are within their tolerance: of the '
    'relative difference or, where a figure was printed with few digits, of '
    'the absolute one. Where each was printed stands in '
    '`tff_bandmf/reproduction/published.json`.\n'
  )
  for table in dict.fromkeys(row['table'] for row in rows):
    text += f'\n## {table}\n\n' + _table(
      ['row', 'published', 'ours', 'difference', 'tolerance', 'within'],
      [
        [
          row['row'],
          f'{row["published"]:.7g}',
          f'{row["ours"]:.7g}',
          f'{row["difference"]:+.1e}',
          f'{row["tolerance"]:.1e}',
          'yes' if row['pass'] else '**no**',
        ]
        for row in rows
        if row['table'] == table
      ],
    )
  return text + _command('reproduction', 'bandmf reproduce --json')


def benchmarks(cases: list[dict[str, Any]]) -> str:
  """Returns the page of the benchmarks."""
  text = (
    '# Benchmarks\n\n'
    'One run of each. Ratios compare what was measured in the '
    'same run; seconds depend on the machine, and on what else it did. A goal '
    'is the most that a figure is to be. More on a case stands in '
    '`benchmarks/`, in the function of its name.\n\n'
    f'Machine: {platform.machine()}, {os.cpu_count()} cores, Python '
    f'{platform.python_version()}.\n'
  )
  names = dict.fromkeys(case['case'] for case in cases)
  for name in names:
    results = [case for case in cases if case['case'] == name]
    keys = dict.fromkeys(key for result in results for key in result)
    about = results[0]['about'].partition(' ')[2]
    text += f'\n## {name}\n\n{about[0].upper()}{about[1:]}\n\n' + _table(
      ['quantity'] + ['value'] * len(results),
      [
        [key, *(_with_goal(result, key) for result in results)]
        for key in keys
        if key not in ('case', 'about') and not key.startswith(_GOAL)
      ],
    )
  return text + _command(
    'benchmarks', f'python -m benchmarks.bench {" ".join(names)}'
  )


def write_comparison(text: str) -> None:
  """Writes the page of the comparison, its plots and what it is made of."""
  _write_study('COMPARISON', text)


def write_people(text: str) -> None:
  """Writes the page, its plots, what it is made of and README's part."""
  comparison, summary = _write_study('PEOPLE', text)
  import attacks

  lines = (_FOLDER / 'attacks.jsonl').read_text().splitlines()
  part = comparison.readme(summary, attacks.headline(map(json.loads, lines)))
  _put(_FOLDER.parent.parent / 'README.md', 'people', part)


def write_attacks(text: str) -> None:
  """Writes the page of attacks, its plot and what it is made of."""
  sys.path.insert(0, str(_FOLDER.parent))
  import attacks

  lines = [json.loads(line) for line in text.splitlines()]
  (_FOLDER / 'attacks.jsonl').write_text(text)
  (_FOLDER / 'attacks.md').write_text(attacks.page(lines))
  attacks.figure(lines).savefig(
    _FOLDER / 'attacks.png', dpi=90, metadata={'Software': ''}
  )


def _write_study(name: str, text: str) -> tuple[Any, Any]:
  """Writes a page of the module `comparison`; returns it and the summary."""
  sys.path.insert(0, str(_FOLDER.parent))
  import comparison

  from simulations.sweeps import summary as summary_lib

  study = getattr(comparison, name)
  summary = summary_lib.Summary.read(text)
  (_FOLDER / f'{study.data}.json').write_text(summary.json())
  (_FOLDER / f'{study.name}.md').write_text(comparison.page(summary, study))
  summary.draw(_FOLDER, f'{study.name}_')
  return comparison, summary


def write_amplified(text: str) -> None:
  """Writes the table of sampled cohorts, and what it is made of."""
  from simulations.sweeps import summary as summary_lib

  summary = summary_lib.Summary.read(text)
  (_FOLDER / 'amplified.json').write_text(summary.json())
  runs = [run for run in json.loads(text)['runs'] if not run['search']]
  epsilons = sorted({run['epsilon'] for run in runs})
  told = {
    (run['mechanism'], run['epsilon']): (
      f'{run["test_loss"]:.3f} ({100 * run["test_accuracy"]:.1f})'
    )
    for run in runs
  }
  losses = {
    mechanism: min(
      run['test_loss'] for run in runs if run['mechanism'] == mechanism
    )
    for mechanism in {run['mechanism'] for run in runs}
  }
  table = _table(
    ['row', *(f'epsilon {epsilon:g}' for epsilon in epsilons)],
    [
      [name, *(told.get((name, epsilon), '') for epsilon in epsilons)]
      for name in sorted(losses, key=losses.__getitem__)
    ],
  )
  _put(_FOLDER.parent / 'guide' / 'amplified.md', 'amplified', table)


def _put(path: pathlib.Path, name: str, text: str) -> None:
  """Puts text in place of what stands between the marks of this name."""
  before, begin, rest = path.read_text().partition(f'<!-- {name} -->\n')
  _, end, after = rest.partition(f'<!-- end of {name} -->\n')
  path.write_text(before + begin + text + end + after)


# Made of one object each.
_SWEEPS = {
  'comparison': write_comparison,
  'people': write_people,
  'attacks': write_attacks,
  'amplified': write_amplified,
}
_PAGES = {'reproduction': reproduction, 'benchmarks': benchmarks}


def _with_goal(result: dict[str, Any], key: str) -> str:
  goal = result.get(_GOAL + key)
  text = _cell(result.get(key, ''))
  return text if goal is None else f'{text} (goal {_cell(goal)})'


def _cell(value: Any) -> str:
  if isinstance(value, float):
    return f'{value:.4g}'
  if isinstance(value, dict):
    return ', '.join(
      f'{key}: {_with_goal(value, key)}'
      for key in value
      if not key.startswith(_GOAL)
    )
  if isinstance(value, list):
    return ', '.join(map(_cell, value))
  return str(value)


def _table(headers: list[str], rows: Iterable[list[str]]) -> str:
  return (
    tabulate.tabulate(
      [[str(cell).replace('|', '\\|') for cell in row] for row in rows],
      headers,
      tablefmt='github',
      disable_numparse=True,
    )
    + '\n'
  )


def _command(page: str, source: str) -> str:
  return (
    '\n---\n\nThis page was written by '
    f'`{source} | python docs/generate.py {page}`.\n'
  )


def main(arguments: list[str]) -> int:
  """Returns the exit status."""
  if len(arguments) != 1 or arguments[0] not in (*_PAGES, *_SWEEPS):
    print(__doc__, file=sys.stderr)
    return 2
  (page,) = arguments
  if page in _SWEEPS:
    # For `simulations`, which is not installed.
    sys.path.insert(0, str(_FOLDER.parent.parent))
    _SWEEPS[page](sys.stdin.read())
    return 0
  rows = [json.loads(line) for line in sys.stdin if line.startswith('{')]
  if not rows:
    print(f'{page}: no JSON lines on standard input.', file=sys.stderr)
    return 2
  (_FOLDER / f'{page}.md').write_text(_PAGES[page](rows))
  return 0


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
