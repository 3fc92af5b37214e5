"""Reads experiments from files: single experiments, and grids of many rows.

  --config=FILE        the experiment of a file with a single experiment
  --config=FILE:ROW    the experiment of one row of a grid

`simulations/sweeps/grid_file.py` lists the keys of a grid.
"""

from __future__ import annotations

import copy
import dataclasses
import fnmatch
import functools
import math
import os
import pathlib
import textwrap
from typing import Any, Callable, Optional

from simulations import config as config_lib
from simulations import config_keys, tables
from simulations.sweeps import grid_file
from tff_bandmf import _files, errors

RATE_BASE = 1.7
_RATE = 'training.server_learning_rate'


@dataclasses.dataclass(frozen=True)
class Row:
  """One experiment of a file. A sweep runs it with several seeds and rates.

  A file with a single experiment has one row.

  Attributes:
    name: name of the row and of its folder, unique in the grid.
    series: name of the corpus, if the grid has corpora, and of the mechanism,
      joined by '_'.
    epsilon: target epsilon, > 0; infinity for a grid's row without noise.
    exponents: candidates i of the server learning rate 1.7^i; () if the rate is
      a value in the file or in --set, or if the rule gives it.
    tree: the experiment as nested tables. If the server learning rate has
      candidates, `tree` has the middle one. If the rule gives the rate, `tree`
      has the largest rate that is allowed.
    comments: lines of comment that `toml` writes above the experiment.
    seeds: seeds, each >= 1, of the test runs of the row in a sweep.
    rule: rule for the server learning rate; None if no rule gives the rate.
    extensions: maximum number of rates, >= 0, that a search adds at the ends of
      `exponents`.
  """

  name: str
  series: str
  epsilon: float
  exponents: tuple[int, ...]
  tree: dict[str, Any]
  comments: tuple[str, ...]
  seeds: tuple[int, ...] = (1, 2, 3)
  rule: Optional[Rule] = None
  extensions: int = 4

  def config(self, rate: Optional[float] = None) -> config_lib.Config:
    """Returns the checked experiment.

    Args:
      rate: server learning rate, > 0; if None, the rate of `tree`.

    Raises:
      ValueError: a key is unknown or missing, or a value is out of range.
    """
    tree = copy.deepcopy(self.tree)
    if rate is not None:
      tree['training']['server_learning_rate'] = rate
    return config_keys.from_tree(tree)

  def toml(self) -> str:
    """Returns the text of a file with this single experiment."""
    lines = [
      f'# {line}'
      for comment in self.comments
      for line in textwrap.wrap(comment, 78, break_on_hyphens=False)
    ]
    return '\n'.join([*lines, *_files.toml_lines(self.tree)]).strip() + '\n'


@dataclasses.dataclass(frozen=True)
class Rule:
  """The rule that computes server learning rates from L [BandMF23, App I].

    log(rate) = slope log(L) + constant,    rate <= the rate in `Row.tree`

  L is the error that the noise causes, `Result.noise` of `sweeps/cell.py`. The
  constant is fitted to the best candidate of a single row.

  Attributes:
    slope: change of log(rate) by log(L), < 0.
    row: row that the constant is fitted to, with its candidates.
  """

  slope: float
  row: Row

  def constant(self, exponent: int, noise: float) -> float:
    """Returns the constant for which the rule gives `row` its best rate.

    Args:
      exponent: exponent of the best rate of `row`.
      noise: L of `row`, > 0.
    """
    return math.log(rate(exponent)) - self.slope * math.log(noise)

  def rate(self, constant: float, noise: float, largest: float) -> float:
    """Returns the learning rate of a row, to six digits.

    Args:
      constant: result of `constant`.
      noise: L of the row, >= 0; if it is 0, the result is `largest`.
      largest: upper limit of the rate, > 0.
    """
    if noise == 0:
      return largest
    given = math.exp(self.slope * math.log(noise) + constant)
    return float(f'{min(given, largest):.6g}')


@dataclasses.dataclass(frozen=True)
class Grid:
  """The rows of a file, at least one."""

  rows: tuple[Row, ...]

  def listing(self) -> str:
    """Returns a line (name, target epsilon, family) for each row."""
    width = max(len(row.name) for row in self.rows)
    privacies = [row.config().privacy for row in self.rows]
    return '\n'.join(
      f'{row.name:{width}}  epsilon {privacy.epsilon!s:<10}  {privacy.family}'
      for row, privacy in zip(self.rows, privacies)
    )


def rate(exponent: int) -> float:
  """Returns the learning rate 1.7^exponent, to six digits.

  >>> rate(-3), rate(2)
  (0.203542, 2.89)
  """
  return float(f'{RATE_BASE**exponent:.6g}')


def load(
  source: str,
  settings: tuple[str, ...] = (),
  only: tuple[str, ...] = (),
) -> Grid:
  """Returns the rows of a file, after checks.

  Args:
    source: FILE, or FILE:ROW for one row. The row of a file with a single
      experiment has the name of the file without its suffix.
    settings: changes 'group.key=value', with values in TOML's syntax; a bare
      word is a string.
    only: shell patterns; a row is returned if its name matches one of them. ()
      returns all rows. FILE:ROW ignores the patterns.

  Raises:
    ValueError: the file is not TOML, has no such row, has an unknown or missing
      key, or a value is out of range.
    OSError: the file, or a file that its key `base` names, cannot be read.
  """
  path, _, name = source.rpartition(':')
  if not path or os.path.exists(source):
    path, name = source, ''
  tree = _files.read_toml(path, 'config')
  rows: dict[str, Callable[[], Row]] = {}
  rule = None
  if {field.name for field in dataclasses.fields(grid_file.File)} & {*tree}:
    file = grid_file.parse(grid_file.File, tree, '')
    for row_name, series, epsilon, layers in grid_file.parts(
      file, os.path.dirname(path)
    ):
      if row_name in rows:
        raise errors.value_error(
          f'row={row_name}: is there twice; list each epsilon once, and rename '
          'a corpus or a mechanism if two rows differ in them'
        )
      rows[row_name] = functools.partial(
        _row, row_name, series, epsilon, layers, file, settings
      )
    if not rows:
      raise errors.value_error(
        f'mechanisms={path}: gives no row; add [mechanisms.NAME] and epsilons'
      )
    # A rate from --set replaces the rule in all rows.
    if not any(each.split('=')[0].strip() == _RATE for each in settings):
      rule = _rule(file, rows)
  else:
    stem = pathlib.Path(path).stem
    rows[stem] = functools.partial(_plain_row, stem, tree, settings)
  patterns = (name,) if name else only or ('*',)
  chosen = tuple(
    _with_rule(row(), rule)
    for each, row in rows.items()
    if any(fnmatch.fnmatchcase(each, pattern) for pattern in patterns)
  )
  if not chosen:
    raise tables.unknown(
      'row',
      ' '.join(patterns),
      {each: each for each in rows},
      f'python -m simulations.run_stackoverflow --config={path} --list',
    )
  return Grid(chosen)


def one(source: str, settings: tuple[str, ...] = ()) -> Row:
  """Returns the only row that `load` finds.

  Raises:
    ValueError: several rows match, or `load` refuses the file.
  """
  rows = load(source, settings).rows
  if len(rows) > 1:
    raise errors.value_error(
      f'config={source}: has {len(rows)} rows; name one, such as '
      f'{rows[0].name}, after a colon; --list lists them'
    )
  return rows[0]


def _rule(
  file: grid_file.File, rows: dict[str, Callable[[], Row]]
) -> Optional[Rule]:
  """Returns the rule of a grid; None if the grid has none."""
  if file.rule is None:
    return None
  table = grid_file.parse(grid_file.RuleTable, file.rule, 'rule')
  if not -math.inf < table.slope < 0:
    raise errors.value_error(
      f'rule.slope={table.slope}: must be below 0; the literature has -0.95'
    )
  if table.row not in rows:
    raise tables.unknown(
      'rule.row',
      table.row,
      {each: each for each in rows},
      'simulations/sweeps/grid_file.py',
    )
  candidates = grid_file.exponents(table.rate_exponents)
  row = rows[table.row]()
  if len(candidates) < 2 or row.epsilon == math.inf:
    raise errors.value_error(
      f'rule={table.row}: must be a row with noise, and have at least two '
      'rate_exponents; correct it in the grid'
    )
  return Rule(
    table.slope,
    dataclasses.replace(row, exponents=candidates, extensions=0),
  )


def _with_rule(row: Row, rule: Optional[Rule]) -> Row:
  """Returns the row; a row with noise and without candidates gets the rule."""
  if rule is None or row.exponents or row.epsilon == math.inf:
    return row
  return dataclasses.replace(
    row,
    rule=rule,
    comments=(
      *row.comments,
      'Server learning rate: a sweep computes it by the rule of the grid; the '
      'rate below is the largest that the rule may give.',
    ),
  )


def _plain_row(
  name: str, tree: dict[str, Any], settings: tuple[str, ...]
) -> Row:
  """Returns the row of a file with a single experiment, after checks."""
  changed = tables.apply(tree, settings)
  epsilon = config_keys.from_tree(tree).privacy.epsilon
  return Row(name, name, epsilon, (), tree, _note(changed))


def _row(
  name: str,
  series: str,
  epsilon: float,
  layers: grid_file.Layers,
  file: grid_file.File,
  settings: tuple[str, ...],
) -> Row:
  """Returns a row of a grid, after checks."""
  _, of_corpus, own = layers
  tree: dict[str, Any] = {group: {} for group in config_lib.GROUPS}
  for layer in layers:
    for group, values in tree.items():
      values.update(grid_file.at_epsilon(getattr(layer, group), epsilon))
  for key in own.without:
    group, _, value = key.partition('.')
    if tree.get(group, {}).pop(value, None) is None:
      raise errors.value_error(
        f'without={key}: is not a key of the base, the corpus or the mechanism '
        f'of {name}; take it out of the list'
      )
  # The key privacy.epsilon is required, but a run without noise ignores it.
  tree['privacy']['epsilon'] = 1.0 if epsilon == math.inf else epsilon
  comments = [own.about] if own.about else []
  exponents = grid_file.exponents(
    grid_file.at_epsilon(
      own.rate_exponents
      if of_corpus.rate_exponents is None
      else of_corpus.rate_exponents,
      epsilon,
    )
  )
  if exponents:
    tree['training']['server_learning_rate'] = rate(
      exponents[len(exponents) // 2]
    )
  changed = tables.apply(tree, settings)
  if _RATE in changed:
    exponents = ()
  if len(exponents) > 1:
    comments.append(
      'Server learning rate: a sweep searches among 1.7^i, '
      f'i = {", ".join(map(str, exponents))}; the rate below is the middle one.'
    )
  if file.assumed:
    comments.append(
      'Assumed, because the papers do not state them: '
      + ', '.join(file.assumed)
      + '.'
    )
  row = Row(
    name,
    series,
    epsilon,
    exponents,
    tree,
    (*comments, *_note(changed)),
    grid_file.seeds(file.seeds if own.seeds is None else own.seeds),
  )
  row.config()
  return row


def _note(changed: list[str]) -> tuple[str, ...]:
  if not changed:
    return ()
  return (f'Changed with --set: {", ".join(changed)}.',)
