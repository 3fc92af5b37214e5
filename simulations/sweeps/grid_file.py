"""The TOML format of a grid, a file that describes many experiments.

A file with a single experiment has the tables of `simulations/config.py`. A
grid has one row, which is one experiment, for each combination of a corpus, a
mechanism and an epsilon. Its keys are:

| key                 | value                                                 |
|---------------------|-------------------------------------------------------|
| `base`              | settings of all rows: tables of an experiment, or the |
|                     | name of a file with a single experiment               |
| `epsilons`          | list of target epsilons, each > 0                     |
| `seeds`             | seeds of the test runs of each row in a sweep, each   |
|                     | >= 1; [1, 2, 3] by default                            |
| `assumed`           | list of settings, such as 'privacy.zeroing_norm',     |
|                     | whose values the cited papers do not state            |
| `rule`              | table, optional: see the last paragraph               |
| `corpora.NAME`      | table, optional: settings of the rows of a corpus     |
| `mechanisms.NAME`   | table: settings of the rows of a mechanism            |

A table `corpora.NAME` or `mechanisms.NAME` holds tables of an experiment and:

| key                 | table     | value                                     |
|---------------------|-----------|-------------------------------------------|
| `leaves`            | corpus    | list of mechanisms without a row on this  |
|                     |           | corpus                                    |
| `about`             | mechanism | source of the rows, as text for readers   |
| `without`           | mechanism | list of settings of `base` or the corpus  |
|                     |           | to remove, such as 'privacy.min_sep'      |
| `epsilons`, `seeds` | mechanism | lists in place of the lists of the grid   |
| `rate_exponents`    | both      | integer i for the server learning rate    |
|                     |           | 1.7^i, or a list of candidates [i, ...];  |
|                     |           | a corpus overrides a mechanism            |

If a setting is given several times, --set overrides the mechanism, which
overrides the corpus, which overrides `base`. A table whose keys are epsilons,
such as '0.5', is replaced by its value for the epsilon of the row. A mechanism
with the name of a strategy family has that family, unless it sets
`privacy.family`. A mechanism without noise, such as `none`, has one row, and
the row has no epsilon. If a row has several candidates, its experiment has the
middle candidate, and a sweep (`simulations/sweep.py`) searches for the best.

**The rule for server learning rates.** `rule` computes the learning rate of
each row that has noise and no `rate_exponents`:

    log(rate) = slope log(L) + constant,    rate <= the rate set for the row

L is the error that the noise causes, `Result.noise` of `sweeps/cell.py`. The
keys of `rule` are `slope`, < 0; `row`, the name of a row; and `rate_exponents`,
at least two candidates for this row. A sweep fits the constant to the best
candidate.
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
from tff_bandmf import _checks, _files, errors

_NUMBER = re.compile(r'\d+(\.\d+)?', re.ASCII)
_Kind = TypeVar('_Kind')
# Largest absolute value of a rate exponent; 1.7^i stays a finite float.
_LARGEST_EXPONENT = 100


@dataclasses.dataclass(frozen=True)
class Layer:
  """Settings of an experiment; a value may be a table by epsilon.

  Attributes:
    data: settings of the table [data], by key.
    model: settings of the table [model], by key.
    training: settings of the table [training], by key.
    privacy: settings of the table [privacy], by key.
  """

  data: dict[str, Any] = dataclasses.field(default_factory=dict)
  model: dict[str, Any] = dataclasses.field(default_factory=dict)
  training: dict[str, Any] = dataclasses.field(default_factory=dict)
  privacy: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Corpus(Layer):
  """The table `corpora.NAME`; the module docstring lists its keys."""

  rate_exponents: Any = None
  leaves: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class Mechanism(Layer):
  """The table `mechanisms.NAME`; the module docstring lists its keys."""

  about: str = ''
  epsilons: Optional[list[float]] = None
  seeds: Optional[list[int]] = None
  without: list[str] = dataclasses.field(default_factory=list)
  rate_exponents: Any = None


@dataclasses.dataclass(frozen=True)
class RuleTable:
  """The table `rule`; the module docstring describes it.

  Attributes:
    slope: change of log(rate) by log(L), < 0.
    row: name of the row that the constant is fitted to.
    rate_exponents: candidates of that row, at least two.
  """

  slope: float
  row: str
  rate_exponents: list[int]


Layers = tuple[Layer, Corpus, Mechanism]


@dataclasses.dataclass(frozen=True)
class File:
  """The tables of a grid; the module docstring lists the keys."""

  mechanisms: dict[str, Any] = dataclasses.field(default_factory=dict)
  base: Union[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
  epsilons: list[float] = dataclasses.field(default_factory=list)
  seeds: list[int] = dataclasses.field(default_factory=lambda: [1, 2, 3])
  assumed: list[str] = dataclasses.field(default_factory=list)
  rule: Optional[dict[str, Any]] = None
  corpora: dict[str, Any] = dataclasses.field(default_factory=lambda: {'': {}})


def parts(file: File, folder: str) -> Iterator[tuple[str, str, float, Layers]]:
  """Yields the name, the series, the epsilon and the layers of each row.

  The series is the name of the row without its epsilon. The layers are the
  settings of the base, the corpus and the mechanism.

  Args:
    file: tables of the grid.
    folder: folder that a file name in `base` is relative to.

  Raises:
    ValueError: a key is unknown, a name cannot be a part of a folder's name, or
      an epsilon is not positive.
  """
  tree = file.base
  if isinstance(tree, str):
    tree = _files.read_toml(os.path.join(folder, tree), 'config')
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
  """Returns a table as a dataclass, after a check of its keys.

  Args:
    kind: class of the result.
    table: parsed TOML.
    name: name of the table for error messages; '' for the whole grid.

  Raises:
    ValueError: a key is unknown or missing, or a value has a wrong type.
  """
  if isinstance(table, dict):
    tables.check_keys(
      name, table, tables.names(kind), 'simulations/sweeps/grid_file.py'
    )
  return tables.parse(kind, table, name or 'grid')


def seeds(values: list[int]) -> tuple[int, ...]:
  """Returns the seeds of test runs, after checks; tuning runs have seed 0."""
  if min(values, default=0) < 1 or len({*values}) < len(values):
    raise errors.value_error(
      f'seeds={values}: must be distinct and at least 1; give seeds like [1, 2]'
    )
  return tuple(values)


def exponents(value: Any) -> tuple[int, ...]:
  """Returns the value of `rate_exponents` as a tuple; () for None.

  Raises:
    ValueError: an exponent is not an integer in [-100, 100].
  """
  if value is None:
    return ()
  values = value if isinstance(value, list) else [value]
  for each in values:
    if type(each) is not int or abs(each) > _LARGEST_EXPONENT:
      raise errors.value_error(
        f'rate_exponents={each}: must be an integer from '
        f'{-_LARGEST_EXPONENT} to {_LARGEST_EXPONENT}; correct it in the grid'
      )
  return tuple(values)


def at_epsilon(value: Any, epsilon: float) -> Any:
  """Returns a value with one entry in place of each table by epsilon.

  Args:
    value: setting, or nested tables of settings; a table whose keys are all
      numbers is a table by epsilon.
    epsilon: epsilon of the row.

  Raises:
    ValueError: a table by epsilon lacks this epsilon.
  """
  if not isinstance(value, dict):
    return value
  if value and all(_NUMBER.fullmatch(key) for key in value):
    values = [each for key, each in value.items() if float(key) == epsilon]
    if not values:
      raise errors.value_error(
        f'epsilons={epsilon:g}: is not in the table {value}; add it there, or '
        'give the mechanism its own list of epsilons'
      )
    return values[0]
  return {key: at_epsilon(each, epsilon) for key, each in value.items()}
