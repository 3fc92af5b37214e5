"""A grid as a file has it, and the layers that its rows are made of.

A file with one experiment has the tables of `simulations/config.py`. A grid has
rows instead, all corpora x mechanisms x epsilons:

| key                      | says                                             |
|--------------------------|--------------------------------------------------|
| `base`                   | what all rows share: the tables of an experiment |
|                          | (`simulations/config.py`), or such a file's name |
| `epsilons`               | a list; a mechanism may have one of its own      |
| `seeds`                  | of a sweep, that test the chosen rates;          |
|                          | [1, 2, 3]; a mechanism may have its own          |
| `assumed`                | keys whose value the source does not give        |
| `rule`                   | optional; the server learning rate of all rows   |
|                          | without candidates, from their noise: `slope`,   |
|                          | and, to fit its constant, `row`, that row's      |
|                          | name, and `rate_exponents`, its candidates       |
| `corpora.NAME`           | optional; what changes with the corpus; `leaves` |
|                          | lists mechanisms it does without                 |
| `mechanisms.NAME`        | what changes with the mechanism, and             |
| `  .about`               | where its rows come from                         |
| `  .without`             | keys of the base, such as 'privacy.min_sep',     |
|                          | that it leaves out                               |
| `  .rate_exponents`      | i, or candidates [i, ...], of a server learning  |
|                          | rate of 1.7^i; a corpus may have its own         |

A mechanism that has the name of a strategy family is of that family; `none` has
one row, without an epsilon. A table with epsilons for keys (0.5 in quotes) has
one value an epsilon. Several candidates are to be tuned
(`simulations/sweep.py`); the row itself has the middle one, and a row by the
rule has the largest rate that the rule may give. Settings of --set come last.
"""

from __future__ import annotations

import dataclasses
import math
import os
import re
from collections.abc import Iterator
from typing import Any, Optional, TypeVar, Union

from simulations import config as config_lib
from simulations import config_keys, tables
from tff_bandmf import _checks, errors

_NUMBER = re.compile(r'\d+(\.\d+)?', re.ASCII)
_Kind = TypeVar('_Kind')
# Exponents beyond this overflow.
_LARGEST_EXPONENT = 100


@dataclasses.dataclass(frozen=True)
class Layer:
  """Values of an experiment, each perhaps a table by epsilon."""

  data: dict[str, Any] = dataclasses.field(default_factory=dict)
  model: dict[str, Any] = dataclasses.field(default_factory=dict)
  training: dict[str, Any] = dataclasses.field(default_factory=dict)
  privacy: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Corpus(Layer):
  """The settings that change with the corpus."""

  rate_exponents: Any = None
  leaves: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class Mechanism(Layer):
  """The settings that change with the mechanism."""

  about: str = ''
  epsilons: Optional[list[float]] = None
  seeds: Optional[list[int]] = None
  without: list[str] = dataclasses.field(default_factory=list)
  rate_exponents: Any = None


@dataclasses.dataclass(frozen=True)
class RuleTable:
  """A rule for learning rates; the row is a name."""

  slope: float
  row: str
  rate_exponents: list[int]


Layers = tuple[Layer, Corpus, Mechanism]


@dataclasses.dataclass(frozen=True)
class File:
  """A grid as written in a file; the module docstring has the keys."""

  mechanisms: dict[str, Any] = dataclasses.field(default_factory=dict)
  base: Union[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
  epsilons: list[float] = dataclasses.field(default_factory=list)
  seeds: list[int] = dataclasses.field(default_factory=lambda: [1, 2, 3])
  assumed: list[str] = dataclasses.field(default_factory=list)
  rule: Optional[dict[str, Any]] = None
  corpora: dict[str, Any] = dataclasses.field(default_factory=lambda: {'': {}})


def parts(file: File, folder: str) -> Iterator[tuple[str, str, float, Layers]]:
  """Yields the name, the series, the epsilon and the layers of each row.

  Args:
    file: the grid.
    folder: folder of the file.
  """
  tree = file.base
  if isinstance(tree, str):
    tree = tables.read(os.path.join(folder, tree))
    tree.pop('compare', None)
  base = parse(Layer, tree, 'base')
  for corpus, tree in file.corpora.items():
    of_corpus = parse(Corpus, tree, f'corpora.{corpus}')
    for mechanism, tree in file.mechanisms.items():
      own = parse(Mechanism, tree, f'mechanisms.{mechanism}')
      if mechanism in of_corpus.leaves:
        continue
      series = f'{corpus}_{mechanism}' if corpus else mechanism
      config_keys.check_plain_name('mechanisms', series)
      if mechanism in config_lib.FAMILIES:
        own = dataclasses.replace(
          own, privacy={'family': mechanism, **own.privacy}
        )
      if own.privacy.get('family') == config_lib.NO_NOISE:
        yield series, series, math.inf, (base, of_corpus, own)
        continue
      for epsilon in file.epsilons if own.epsilons is None else own.epsilons:
        _checks.positive('epsilons', epsilon, 'give a list of epsilons')
        name = f'{series}_epsilon{epsilon:g}'
        yield name, series, epsilon, (base, of_corpus, own)


def parse(kind: type[_Kind], table: Any, name: str) -> _Kind:
  """Returns a dataclass of a table; all its keys are checked."""
  if isinstance(table, dict):
    tables.check_keys(
      name, table, tables.names(kind), 'simulations/sweeps/grid_file.py'
    )
  return tables.parse(kind, table, name or 'grid')


def seeds(values: list[int]) -> tuple[int, ...]:
  """Returns the seeds that test a row; 0 is of the search for its rate."""
  if min(values, default=0) < 1 or len({*values}) < len(values):
    raise errors.value_error(
      f'seeds={values}: must be distinct and at least 1; give such as [1, 2]'
    )
  return tuple(values)


def exponents(value: Any) -> tuple[int, ...]:
  """Returns the exponents of a rate: none, one, or candidates."""
  if value is None:
    return ()
  values = value if isinstance(value, list) else [value]
  for each in values:
    if type(each) is not int or abs(each) > _LARGEST_EXPONENT:
      raise errors.value_error(
        f'rate_exponents={each}: must be a small integer; correct it in the '
        'grid'
      )
  return tuple(values)


def at_epsilon(value: Any, epsilon: float) -> Any:
  """Returns a nested value with its tables by epsilon looked up.

  Raises:
    ValueError: such a table lacks this epsilon.
  """
  if not isinstance(value, dict):
    return value
  if value and all(_NUMBER.fullmatch(key) for key in value):
    values = [each for key, each in value.items() if float(key) == epsilon]
    if not values:
      raise errors.value_error(
        f'epsilons={epsilon:g}: is not in the table {value}; add it there, or '
        'give the mechanism epsilons of its own'
      )
    return values[0]
  return {key: at_epsilon(each, epsilon) for key, each in value.items()}
