"""Experiments from files: a file with one, and grids, which hold many.

  --config=FILE        the experiment of a file
  --config=FILE:ROW    that of a row of a grid, composed when it is loaded

A file with one experiment has the tables of `simulations/config.py`. A grid has
rows instead, all corpora x mechanisms x epsilons:

| key                      | says                                             |
|--------------------------|--------------------------------------------------|
| `base`                   | what all rows share: the tables of an experiment |
|                          | (`simulations/config.py`), or such a file's name |
| `epsilons`               | a list; a mechanism may have one of its own      |
| `seeds`                  | of a sweep, that test the chosen rates; 3        |
| `assumed`                | keys whose value the source does not give        |
| `corpora.NAME`           | optional; what changes with the corpus; `leaves` |
|                          | lists mechanisms it does without                 |
| `mechanisms.NAME`        | what changes with the mechanism, and             |
| `  .about`               | where its rows come from                         |
| `  .rate_exponents`      | i, or candidates [i, ...], of a server learning  |
|                          | rate of 1.7^i; a corpus may have its own         |

A mechanism that has the name of a strategy family is of that family. A table
with epsilons for keys (0.5 in quotes) has one value an epsilon. Several
candidates are to be tuned (`simulations/sweep.py`); the row itself has the
middle one. What --set gives comes last.
"""

from __future__ import annotations

import copy
import dataclasses
import fnmatch
import functools
import os
import pathlib
import re
import textwrap
from collections.abc import Iterator
from typing import Any, Callable, Optional, TypeVar, Union

from simulations import config as config_lib
from simulations import config_keys, tables
from tff_bandmf import _checks, errors

RATE_BASE = 1.7
_NUMBER = re.compile(r'\d+(\.\d+)?', re.ASCII)
_Kind = TypeVar('_Kind')
# Beyond lie rates that no number has.
_LARGEST_EXPONENT = 100


@dataclasses.dataclass(frozen=True)
class _Layer:
  """Values of an experiment, each perhaps a table by epsilon."""

  data: dict[str, Any] = dataclasses.field(default_factory=dict)
  model: dict[str, Any] = dataclasses.field(default_factory=dict)
  training: dict[str, Any] = dataclasses.field(default_factory=dict)
  privacy: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class _Corpus(_Layer):
  rate_exponents: Any = None
  leaves: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class _Mechanism(_Layer):
  about: str = ''
  epsilons: Optional[list[float]] = None
  rate_exponents: Any = None


_Layers = tuple[_Layer, _Corpus, _Mechanism]


@dataclasses.dataclass(frozen=True)
class _File:
  """A grid as it is written; the module says what the keys are."""

  mechanisms: dict[str, Any] = dataclasses.field(default_factory=dict)
  base: Union[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
  epsilons: list[float] = dataclasses.field(default_factory=list)
  seeds: int = 3
  assumed: list[str] = dataclasses.field(default_factory=list)
  corpora: dict[str, Any] = dataclasses.field(default_factory=lambda: {'': {}})


@dataclasses.dataclass(frozen=True)
class Row:
  """An experiment but for its seed, and for its learning rate if that is tuned.

  Attributes:
    name: unique in the grid; of a file or a folder.
    series: its corpus, if the grid has several, and its mechanism.
    epsilon: of the grid; that of `tree` where no sampling is relied on.
    exponents: candidates i of the server learning rate 1.7^i; none if the base
      or --set gives the rate.
    tree: the experiment, with the middle candidate.
    comments: what a reader of the experiment should know.
  """

  name: str
  series: str
  epsilon: float
  exponents: tuple[int, ...]
  tree: dict[str, Any]
  comments: tuple[str, ...]

  def config(self, exponent: Optional[int] = None) -> config_lib.Config:
    """Returns the checked experiment.

    Args:
      exponent: of the learning rate, in place of the middle candidate.

    Raises:
      ValueError: an unknown or missing key, or a value out of range.
    """
    tree = copy.deepcopy(self.tree)
    if exponent is not None:
      tree['training']['server_learning_rate'] = rate(exponent)
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
class Grid:
  """The rows of a file, and how many seeds test each in a sweep."""

  rows: tuple[Row, ...]
  seeds: int

  def listing(self) -> str:
    """Returns a line a row: name, the epsilon that it claims, family."""
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
    ValueError: no TOML, no such row, an unknown or missing key, or a value out
      of range.
    OSError: the file, or that of its base, cannot be read.
  """
  path, _, name = source.rpartition(':')
  if not path or os.path.exists(source):
    path, name = source, ''
  tree = tables.read(path)
  rows: dict[str, Callable[[], Row]] = {}
  seeds = _File.seeds
  if {field.name for field in dataclasses.fields(_File)} & {*tree}:
    file = _parse(_File, tree, '')
    seeds = _checks.count('seeds', file.seeds, 'how many test a row')
    for series, epsilon, layers in _parts(file, os.path.dirname(path)):
      row_name = f'{series}_epsilon{epsilon:g}'
      if row_name in rows:
        raise errors.value_error(
          'row', row_name, 'is there twice', 'leave out one epsilon'
        )
      rows[row_name] = functools.partial(
        _row, row_name, series, epsilon, layers, file.assumed, settings
      )
    if not rows:
      raise errors.value_error(
        'mechanisms', path, 'gives no row', 'add [mechanisms.NAME] and epsilons'
      )
  else:
    stem = pathlib.Path(path).stem
    rows[stem] = functools.partial(_plain_row, stem, tree, settings)
  patterns = (name,) if name else only or ('*',)
  chosen = tuple(
    row()
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
  return Grid(chosen, seeds)


def one(source: str, settings: tuple[str, ...] = ()) -> Row:
  """Returns the only row of FILE, or that of FILE:ROW; see `load`."""
  rows = load(source, settings).rows
  if len(rows) > 1:
    raise errors.value_error(
      'config',
      source,
      f'has {len(rows)} rows',
      f'name one, such as {rows[0].name}, after a colon; --list lists them',
    )
  return rows[0]


def _parse(kind: type[_Kind], table: Any, name: str) -> _Kind:
  """Returns a dataclass of a table; all its keys are checked."""
  if isinstance(table, dict):
    tables.check_keys(
      name, table, tables.names(kind), 'simulations/sweeps/grid.py'
    )
  return tables.parse(kind, table, name or 'grid')


def _parts(file: _File, folder: str) -> Iterator[tuple[str, float, _Layers]]:
  """Yields the series, the epsilon and the layers of each row.

  Args:
    file: the grid.
    folder: of the file.
  """
  tree = file.base
  if isinstance(tree, str):
    tree = tables.read(os.path.join(folder, tree))
    tree.pop('compare', None)
  base = _parse(_Layer, tree, 'base')
  for corpus, tree in file.corpora.items():
    of_corpus = _parse(_Corpus, tree, f'corpora.{corpus}')
    for mechanism, tree in file.mechanisms.items():
      own = _parse(_Mechanism, tree, f'mechanisms.{mechanism}')
      if mechanism in of_corpus.leaves:
        continue
      series = f'{corpus}_{mechanism}' if corpus else mechanism
      config_keys.check_plain_name('mechanisms', series)
      if mechanism in config_lib.FAMILIES:
        own = dataclasses.replace(
          own, privacy={'family': mechanism, **own.privacy}
        )
      for epsilon in file.epsilons if own.epsilons is None else own.epsilons:
        _checks.positive('epsilons', epsilon, 'give a list of epsilons')
        yield series, epsilon, (base, of_corpus, own)


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
  layers: _Layers,
  assumed: list[str],
  settings: tuple[str, ...],
) -> Row:
  """Returns a checked row of a grid."""
  _, of_corpus, own = layers
  tree: dict[str, Any] = {group: {} for group in config_lib.GROUPS}
  for layer in layers:
    for group, values in tree.items():
      values.update(_at(getattr(layer, group), epsilon))
  tree['privacy']['epsilon'] = epsilon
  comments = [own.about] if own.about else []
  exponents = _exponents(
    _at(
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
  if 'training.server_learning_rate' in changed:
    exponents = ()
  if len(exponents) > 1:
    comments.append(
      'Server learning rate: to be tuned among 1.7^i, '
      f'i = {", ".join(map(str, exponents))}; the middle one stands here.'
    )
  if assumed:
    comments.append('Not given by the source: ' + ', '.join(assumed) + '.')
  row = Row(
    name, series, epsilon, exponents, tree, (*comments, *_note(changed))
  )
  row.config()
  return row


def _note(changed: list[str]) -> tuple[str, ...]:
  if not changed:
    return ()
  return (f'Changed with --set: {", ".join(changed)}.',)


def _exponents(value: Any) -> tuple[int, ...]:
  """Returns the exponents of a rate: none, one, or candidates."""
  if value is None:
    return ()
  values = value if isinstance(value, list) else [value]
  for each in values:
    if type(each) is not int or abs(each) > _LARGEST_EXPONENT:
      raise errors.value_error(
        'rate_exponents',
        each,
        'must be a small integer',
        'correct it in the grid',
      )
  return tuple(values)


def _at(value: Any, epsilon: float) -> Any:
  """Returns a nested value with its tables by epsilon looked up.

  Raises:
    ValueError: such a table lacks this epsilon.
  """
  if not isinstance(value, dict):
    return value
  if value and all(_NUMBER.fullmatch(key) for key in value):
    found = [each for key, each in value.items() if float(key) == epsilon]
    if not found:
      raise errors.value_error(
        'epsilons',
        f'{epsilon:g}',
        f'is not in the table {value}',
        'add it there, or give the mechanism epsilons of its own',
      )
    return found[0]
  return {key: _at(each, epsilon) for key, each in value.items()}
