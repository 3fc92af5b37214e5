"""Experiments from files: a file with one, and grids, which hold many.

  --config=FILE        the experiment of a file
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
from tff_bandmf import errors

RATE_BASE = 1.7
_RATE = 'training.server_learning_rate'


@dataclasses.dataclass(frozen=True)
class Row:
  """An experiment whose seed, and perhaps learning rate, are still open.

  Attributes:
    name: name of its folder, unique in the grid.
    series: its corpus, if the grid has several, and its mechanism.
    epsilon: epsilon of the grid, > 0; infinity without noise.
    exponents: candidates i of the server learning rate 1.7^i; none if the base,
      the rule or --set gives the rate.
    tree: the experiment, with the middle candidate.
    comments: lines for readers of the experiment.
    seeds: seeds of its tests in a sweep.
    rule: rule for its learning rate, if it has one.
    extensions: most rates, >= 0, that a search tries beyond its candidates.
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
      rate: learning rate of the server, in place of the one in `tree`.

    Raises:
      ValueError: an unknown or missing key, or a value out of range.
    """
    tree = copy.deepcopy(self.tree)
    if rate is not None:
      tree['training']['server_learning_rate'] = rate
    return config_keys.from_tree(tree)

  def toml(self) -> str:
    """Returns the experiment as a file with nothing else."""
    lines = [
      f'# {line}'
      for comment in self.comments
      for line in textwrap.wrap(comment, 78, break_on_hyphens=False)
    ]
    return '\n'.join([*lines, *tables.lines(self.tree)]).strip() + '\n'


@dataclasses.dataclass(frozen=True)
class Rule:
  """How the server learning rates of rows follow from their noise L.

    log(rate) = slope log(L) + constant

  [BandMF23, App I], and at most the rate in the row's tree. The constant is
  fitted to the best candidate of one row.

  Attributes:
    slope: change of log(rate) by log(L), < 0.
    row: name of the row with the candidates.
  """

  slope: float
  row: Row

  def constant(self, exponent: int, noise: float) -> float:
    """Returns the constant, from the best candidate of `row` and its L."""
    return math.log(rate(exponent)) - self.slope * math.log(noise)

  def rate(self, constant: float, noise: float, largest: float) -> float:
    """Returns a learning rate, to six digits.

    Args:
      constant: constant of the rule.
      noise: L, >= 0; for 0 the result is `largest`.
      largest: upper limit of the rate.
    """
    if noise == 0:
      return largest
    given = math.exp(self.slope * math.log(noise) + constant)
    return float(f'{min(given, largest):.6g}')


@dataclasses.dataclass(frozen=True)
class Grid:
  """The rows of a file."""

  rows: tuple[Row, ...]

  def listing(self) -> str:
    """Returns a line (name, claimed epsilon, family) for each row."""
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
  """Returns the rows of a file, each checked.

  Args:
    source: FILE or FILE:ROW. A file with one experiment has one row, which has
      the name of the file.
    settings: 'group.key=value' changes, values in TOML's syntax; a bare word
      is a string.
    only: patterns, one of which the name of a row has to match; all by default.

  Raises:
    ValueError: the file is not TOML, has no such row, has an unknown or missing
      key, or a value is out of range.
    OSError: the file, or the file of its base, cannot be read.
  """
  path, _, name = source.rpartition(':')
  if not path or os.path.exists(source):
    path, name = source, ''
  tree = tables.read(path)
  rows: dict[str, Callable[[], Row]] = {}
  rule = None
  if {field.name for field in dataclasses.fields(grid_file.File)} & {*tree}:
    file = grid_file.parse(grid_file.File, tree, '')
    for row_name, series, epsilon, layers in grid_file.parts(
      file, os.path.dirname(path)
    ):
      if row_name in rows:
        raise errors.value_error(
          f'row={row_name}: is there twice; leave out one epsilon'
        )
      rows[row_name] = functools.partial(
        _row, row_name, series, epsilon, layers, file, settings
      )
    if not rows:
      raise errors.value_error(
        f'mechanisms={path}: gives no row; add [mechanisms.NAME] and epsilons'
      )
    # A rate from --set holds for all rows.
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
  """Returns the only row of FILE, or the row of FILE:ROW; see `load`."""
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
  """Returns the rule of a grid, if it has one."""
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
  """Returns the row, with the rule if the rule gives its rate."""
  if rule is None or row.exponents or row.epsilon == math.inf:
    return row
  return dataclasses.replace(
    row,
    rule=rule,
    comments=(
      *row.comments,
      'Server learning rate: by the rule of the grid; its largest stands here.',
    ),
  )


def _plain_row(
  name: str, tree: dict[str, Any], settings: tuple[str, ...]
) -> Row:
  """Returns the checked row of a file with one experiment."""
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
  """Returns a checked row of a grid."""
  _, of_corpus, own = layers
  tree: dict[str, Any] = {group: {} for group in config_lib.GROUPS}
  for layer in layers:
    for group, values in tree.items():
      values.update(grid_file.at_epsilon(getattr(layer, group), epsilon))
  for key in own.without:
    group, _, value = key.partition('.')
    if tree.get(group, {}).pop(value, None) is None:
      raise errors.value_error(
        f'without={key}: is not a key of the base; leave it out of {name}'
      )
  # A row without noise has no epsilon to check.
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
      'Server learning rate: to be tuned among 1.7^i, '
      f'i = {", ".join(map(str, exponents))}; the middle one stands here.'
    )
  if file.assumed:
    comments.append('Not given by the source: ' + ', '.join(file.assumed) + '.')
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
