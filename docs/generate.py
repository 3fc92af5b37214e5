"""Writes the pages whose figures take minutes to compute.

    bandmf reproduce [TABLE ...] --json | python docs/generate.py reproduction
    make -s bench | python docs/generate.py benchmarks
    python -m benchmarks.side_by_side ... | python docs/generate.py side_by_side
    python -m simulations.sweep --config=configs/evidence.toml --out=DIR \
        --results | python docs/generate.py comparison
    python -m simulations.sweep --config=configs/people.toml --out=DIR \
        --results | python docs/generate.py people
    python -m simulations.attacks RUN_DIR ... | python docs/generate.py attacks
    python -m simulations.sweep --config=configs/amplified.toml --out=DIR \
        --results | python docs/generate.py amplified

The program reads JSON lines from standard input and writes
`docs/reference/PAGE.md`, which is committed. So the site shows figures of this
commit or of an earlier one, with the machine and the date where they were
measured. Benchmarks that are not in the input keep their sections, and
published figures that are not in the input keep their rows.

| page           | output                          | stored input         |
|----------------|---------------------------------|----------------------|
| `reproduction` | `reproduction.md`               | `reproduction.jsonl` |
| `side_by_side` | a section of `benchmarks.md`    | `side_by_side.jsonl` |
| `comparison`   | `comparison.md`, plots          | `evidence.json`      |
| `people`       | `people.md`, plots, a part of   | `people.json`        |
|                | README.md                       |                      |
| `attacks`      | `attacks.md`, a plot            | `attacks.jsonl`      |
| `amplified`    | a table in `guide/amplified.md` | `amplified.json`     |
"""

from __future__ import annotations

import datetime
import json
import os
import pathlib
import platform
import sys
from collections.abc import Iterable
from typing import Any

import tabulate

# Start of the name of a goal; the rest is the name of the figure.
_GOAL = 'goal_'
_FOLDER = pathlib.Path(__file__).resolve().parent / 'reference'


def write_reproduction(rows: list[dict[str, Any]]) -> None:
  """Writes the page of published figures beside ours, and stores the rows."""
  from tff_bandmf import reproduction

  rows = _stored('reproduction', rows, 'table', 'row')
  passed = sum(row['pass'] for row in rows)
  text = (
    '# Published figures\n\n'
    'This page has the tables of the literature that need no training, '
    f'computed again. {passed} of {len(rows)} rows are within their tolerance. '
    'The tolerance of a row limits the relative difference, or the absolute '
    'difference if the figure was printed with few digits. '
    '`tff_bandmf/reproduction/published.json` has the source of each figure.\n'
  )
  tables = {row['table'] for row in rows}
  for table in filter(tables.__contains__, reproduction.TABLES):
    bounds = [row for row in rows if row['table'] == table and row.get('bound')]
    text += f'\n## {table}\n\n'
    if bounds:
      text += (
        'The columns `published` and `ours` have estimates. The column '
        '`bound` follows from a proved upper bound of the noise, which uses '
        f'{bounds[0]["samples"]} samples with seed {bounds[0]["seed"]}. The '
        'column `ours` uses other samples, so its error may put `ours` above '
        '`bound`. The last column has the date when the row was computed.\n\n'
      )
    text += _table(
      ['row', 'published', 'ours', 'difference', 'tolerance', 'within']
      + ['bound', 'date'] * bool(bounds),
      [
        [
          row['row'],
          f'{row["published"]:.7g}',
          f'{row["ours"]:.7g}',
          f'{row["difference"]:+.1e}',
          f'{row["tolerance"]:.1e}',
          'yes' if row['pass'] else '**no**',
          *(
            [f'{row["bound"]:.7g}' if row['bound'] else '-', row['date']]
            if bounds
            else []
          ),
        ]
        for row in rows
        if row['table'] == table
      ],
    )
  text += (
    '\n---\n\nThis command writes the rows of a table again: '
    '`bandmf reproduce TABLE --json | python docs/generate.py reproduction`.\n'
  )
  (_FOLDER / 'reproduction.md').write_text(text)


def write_benchmarks(cases: list[dict[str, Any]]) -> None:
  """Writes the sections of the measured cases on the page of benchmarks."""
  sections = {}
  for name in dict.fromkeys(case['case'] for case in cases):
    results = [case for case in cases if case['case'] == name]
    keys = dict.fromkeys(key for result in results for key in result)
    about = results[0]['about'].partition(' ')[2]
    table = _table(
      ['quantity'] + ['value'] * len(results),
      [
        [key, *(_with_goal(result, key) for result in results)]
        for key in keys
        if key not in ('case', 'about') and not key.startswith(_GOAL)
      ],
    )
    sections[name] = (
      f'{about[0].upper()}{about[1:]}\n\n{table}\nMeasured on {_today()} with '
      f'{platform.machine()}, {os.cpu_count()} cores, Python '
      f'{platform.python_version()}.\n'
    )
  _write_sections(sections)


def write_side_by_side(measured: list[dict[str, Any]]) -> None:
  """Writes the table of other libraries, and stores its JSON lines."""
  cases = _stored('side_by_side', measured, 'case')
  peers = _SIDES[1:]
  table = _table(
    ['case', *_SIDES, *(f'over {peer}' for peer in peers), 'date'],
    [
      [
        case['case'],
        *(
          _result(case['results'].get(side, {}), case['compared'])
          for side in _SIDES
        ),
        *(
          _with_goal(
            {
              **case['ratio'],
              **{
                _GOAL + peer: goal
                for peer, goal in case.get('goal', {}).items()
              },
            },
            peer,
          )
          for peer in peers
        ),
        case['date'],
      ]
      for case in cases
    ],
  )
  versions = {
    side: result['version']
    for case in cases
    for side, result in case['results'].items()
  }
  sections = {
    'Side by side': _SIDE_BY_SIDE.format_map(
      {**dict.fromkeys(_SIDES, ''), **versions}
    )
    + '\n'
    + table,
  }
  _write_sections(sections)


def _stored(
  name: str, lines: list[dict[str, Any]], *keys: str
) -> list[dict[str, Any]]:
  """Returns the stored lines of a page, with new lines, and stores them.

  A new line takes the place of the stored line with the same keys, and gets the
  date of today.
  """
  path = _FOLDER / f'{name}.jsonl'
  stored = path.read_text().splitlines() if path.exists() else []
  dated = [{**line, 'date': _today()} for line in lines]
  merged = {
    tuple(line[key] for key in keys): line
    for line in [*map(json.loads, stored), *dated]
  }
  path.write_text(''.join(f'{json.dumps(each)}\n' for each in merged.values()))
  return list(merged.values())


_SIDES = ['tff_bandmf', 'jax_privacy', 'opake']
_SIDE_BY_SIDE = """\
tff_bandmf {tff_bandmf} beside jax_privacy {jax_privacy} (its newest commit
8967688, on 2026-11-22) and opake {opake} (PyTorch, CPU). Each library ran in
its own environment, in turns, pinned to one core of a busy machine, by
`python -m benchmarks.side_by_side`. Times are CPU seconds. For a search, the
time of the whole process with its imports comes first, and the time of the
search alone is in parentheses. For noise and sensitivities, a time is for one
round or one call in steady state. A ratio is our seconds over theirs: less is
better. An empty cell means that the library does not do the task.

- One function computes all losses from the returned matrices. The benchmark
  fails if our loss is more than 0.1 % above the loss of another library.
- In the row b-min-sep a ratio compares noise: the standard deviation of z
  over the clip, at epsilon 4 and delta 0.0446. The benchmark checks that C and
  the sampling probability p are the same. C is the optimum of opake for n =
  2,052 and 342 bands, with unit columns; p = 0.677 is for 1,000 of 342,477
  clients a round, with a warm start.
  The delta of opake is its bound at noise 1.0, with failure probability 1e-6
  and a resolution of 1e-3. Our delta is the bound at the noise of our
  calibration, with failure probability 1e-8; the claim of (4, 0.0446) also
  covers the integer arithmetic. Our seconds are for a whole calibration, and
  the seconds of opake for one evaluation. The goal cannot be reached: at
  the noise of the goal, an estimate of delta from 20,000 samples is above
  0.0446 (`estimate_at_goal` in side_by_side.jsonl).
- Our normals are float64 with their whole tail, rounded to a lattice, from
  ChaCha20. The normals of the others are float32. SciPy's inverse CDF takes
  more than half of our time and ChaCha20 a tenth, see the section normals.
  Without the inverse CDF, our time is still more than 1.3 times the time of
  opake, so no other inverse CDF would reach the goal.
"""


def _result(result: dict[str, Any], compared: str) -> str:
  """Returns the table cell of one library: its seconds and other figures."""
  if not result:
    return ''
  text = f'{result["cpu_seconds"]:.3g}'
  if compared == 'process_cpu_seconds':
    text = f'{result[compared]:.3g} ({text})'
  elif compared == 'noise':
    text = f'noise {result["noise"]:.4f}, {text}'
  for name in 'loss', 'value', 'delta':
    if name in result:
      text += f'; {name} {result[name]:.7g}'
  return text + (f', {result["method"]}' if 'method' in result else '')


def _today() -> str:
  return datetime.date.today().isoformat()


def _write_sections(sections: dict[str, str]) -> None:
  """Writes sections of the page of benchmarks, and keeps other sections."""
  path = _FOLDER / 'benchmarks.md'
  text = path.read_text() if path.exists() else ''
  _, *parts = text.split('\n## ')
  for part in parts:
    name, _, body = part.partition('\n\n')
    sections.setdefault(name, body.rstrip('\n') + '\n')
  path.write_text(
    _BENCHMARKS
    + ''.join(f'\n## {name}\n\n{sections[name]}' for name in sorted(sections))
  )


_BENCHMARKS = """\
# Benchmarks

Each figure comes from one run. Both values of a ratio were measured in the same
run. Seconds depend on the machine and its load. A goal is the largest
value that a figure should have. The docstring of a case's function in
`benchmarks/` describes the case.

Every section has the date of its run. This command writes a section again:
`python -m benchmarks.bench NAME | python docs/generate.py benchmarks`. Another
command writes the first section:
`python -m benchmarks.side_by_side ... | python docs/generate.py side_by_side`.

The section accelerator has JAX on a CPU; the next section has a GPU.

In many_rounds the memory of TFF's worker grows. With `MALLOC_ARENA_MAX=1` in
the environment, it grows by 2.5 KiB a round in `run.train` and by 2.7 KiB in
TFF alone (rounds 100 to 900). So the leak is TFF's alone.
Without this variable, the C library has arenas for the 18 threads, which hold
22 MiB more. This amount varies and hides the leak.
"""


def write_comparison(text: str) -> None:
  """Writes the page of the comparison and its plots, and stores the input."""
  _write_study('COMPARISON', text)


def write_people(text: str) -> None:
  """Writes the page of people, its plots and a part of README.md.

  The input is stored.
  """
  comparison, summary = _write_study('PEOPLE', text)
  import attacks

  lines = (_FOLDER / 'attacks.jsonl').read_text().splitlines()
  part = comparison.readme(summary, attacks.headline(map(json.loads, lines)))
  _put(_FOLDER.parent.parent / 'README.md', 'people', part)


def write_attacks(text: str) -> None:
  """Writes the page of attacks and its plot, and stores the input."""
  sys.path.insert(0, str(_FOLDER.parent))
  import attacks

  lines = [json.loads(line) for line in text.splitlines()]
  (_FOLDER / 'attacks.jsonl').write_text(text)
  (_FOLDER / 'attacks.md').write_text(attacks.page(lines))
  attacks.figure(lines).savefig(
    _FOLDER / 'attacks.png', dpi=90, metadata={'Software': ''}
  )


def _write_study(name: str, text: str) -> tuple[Any, Any]:
  """Writes a page of a study of the module `comparison`.

  Args:
    name: name of the study in `comparison`.
    text: JSON text of a `Summary`.

  Returns:
    The module `comparison` and the summary.
  """
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
  """Writes the table of sampled cohorts, and stores the input."""
  from simulations.sweeps import summary as summary_lib

  summary = summary_lib.Summary.read(text)
  (_FOLDER / 'amplified.json').write_text(summary.json())
  runs = [run for run in json.loads(text)['runs'] if not run['search']]
  epsilons = sorted({run['epsilon'] for run in runs})
  told = {
    (run['mechanism'], run['epsilon']): f'{run["test_loss"]:.3f}'
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
  """Replaces the text between the comments NAME and 'end of NAME' of a page."""
  before, begin, rest = path.read_text().partition(f'<!-- {name} -->\n')
  _, end, after = rest.partition(f'<!-- end of {name} -->\n')
  path.write_text(before + begin + text + end + after)


# Writers of pages whose input is a text, by the name of the page.
_SWEEPS = {
  'comparison': write_comparison,
  'people': write_people,
  'attacks': write_attacks,
  'amplified': write_amplified,
}
# Writers of pages whose input is a list of JSON objects, one a line.
_PAGES = {
  'reproduction': write_reproduction,
  'benchmarks': write_benchmarks,
  'side_by_side': write_side_by_side,
}


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


def main(arguments: list[str]) -> int:
  """Returns the exit status."""
  if len(arguments) != 1 or arguments[0] not in (*_PAGES, *_SWEEPS):
    print(__doc__, file=sys.stderr)
    return 2
  (page,) = arguments
  if page in _SWEEPS:
    # The writers import `simulations`, which is not installed.
    sys.path.insert(0, str(_FOLDER.parent.parent))
    _SWEEPS[page](sys.stdin.read())
    return 0
  rows = [json.loads(line) for line in sys.stdin if line.startswith('{')]
  if not rows:
    print(f'{page}: no JSON lines on standard input.', file=sys.stderr)
    return 2
  _PAGES[page](rows)
  return 0


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
