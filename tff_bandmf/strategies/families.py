"""A family of strategies and its parameters, declared once.

A file of this package declares its families as `FAMILIES`, next to their
classes, and `known` finds them there. Strategy files, the search for the best
parameters, the ranking, command-line flags, keys of configurations and the
tables of the documentation are made from these declarations.
"""

from __future__ import annotations

import functools
import importlib
import keyword
import pkgutil
import sys
from collections.abc import Mapping
from typing import Any, Callable, Optional, Union

import attrs

from tff_bandmf import _checks, errors

_PACKAGE = __name__.rpartition('.')[0]

# A value of a parameter.
Value = Union[bool, int, float, str]


@attrs.frozen
class Parameter:
  """A parameter of one family or of several.

  Attributes:
    name: name in JSON and in configurations; its flag has dashes for
      underscores.
    kind: int, at least 1; float, at most high; bool; or `Family`, a name.
    about: description, for --help.
    low: least number.
    high: largest number.
    sweep: between what it is searched for where it is not given; None where it
      is not.
    default: where it is neither given nor swept; None where the optimiser of
      the family knows, or else it has to be given.
    required: whether a search needs it to be given, too.
    field: field of the family's class; by default the name, and an underscore
      behind a word of Python.
  """

  name: str
  kind: type
  about: str
  low: float = 0.0
  high: float = 1.0
  sweep: Optional[tuple[float, float]] = None
  default: Any = None
  required: bool = False
  field: str = attrs.field()

  @field.default
  def _field(self) -> str:
    return self.name + '_' * keyword.iskeyword(self.name)

  def check(self, value: object) -> Value:
    """Returns `value` as the parameter takes it.

    Raises:
      TypeError: it is of another kind.
      ValueError: it is out of range.
    """
    about = self.about.split('  ')[0].rstrip('.')
    remedy = f'it is {about[0].lower()}{about[1:]}'
    if self.kind is Family:
      return get(value).name
    if self.kind is int:
      count = _checks.count(self.name, value, remedy)
      if count < self.low:
        raise errors.value_error(
          f'{self.name}={value}: must be at least {self.low:g}; {remedy}'
        )
      return count
    if self.kind is float:
      return _checks.between(self.name, value, self.low, self.high, remedy)
    if not isinstance(value, bool):
      raise errors.type_error(
        f'{self.name}={value}: must be true or false; {remedy}'
      )
    return value


@attrs.frozen
class Memory:
  """The memory of a family's noise: in words, and from n to the fewest
  copies."""

  about: str
  least: Callable[[int], int]


NOTHING = Memory('0', lambda rounds: 0)
SOME_BANDS = Memory('bands - 1', lambda rounds: 1)
ALL_ROUNDS = Memory('rounds - 1', lambda rounds: rounds - 1)


@attrs.frozen
class Family:
  """A family of strategies.

  Attributes:
    kind: class of its strategies, whose `family` is the name.
    about: C, or C^-1, in a few words.
    source: keys of the literature.
    parameters: that it takes; at most one of them is swept.
    memory: model copies that its noise keeps.
    optimizer: 'module:function' that finds the best strategy for a
      `tff_bandmf.optimize.request.Request`; '' where the parameters say it all.
      It is imported when it is called, as TensorFlow takes long to import.
    passes_on: whether it takes all other parameters, for a family within.
  """

  kind: type[Any]
  about: str
  source: str = ''
  parameters: tuple[Parameter, ...] = ()
  memory: Memory = SOME_BANDS
  optimizer: str = ''
  passes_on: bool = False

  @property
  def name(self) -> str:
    """Name on the command line and in strategy files."""
    return self.kind.family

  def parameter(self, name: str) -> Optional[Parameter]:
    """Returns the parameter of that name, or None."""
    return next((each for each in self.parameters if each.name == name), None)

  def takes(self, name: str) -> bool:
    """Returns whether the family has a parameter of that name."""
    return self.passes_on or self.parameter(name) is not None

  @property
  def few_bands(self) -> bool:
    """Whether the columns of C are as short as one asks, or always short."""
    return BANDS in self.parameters or getattr(self.kind, 'bands', 0) == 1

  def checked(self, given: Mapping[str, object]) -> dict[str, Value]:
    """Returns the parameters that are not None, checked, by their names.

    Raises:
      TypeError: a value of another kind.
      ValueError: a parameter that the family does not take, or a value out of
        range.
    """
    values = {}
    for field, value in given.items():
      name = field.rstrip('_')
      own = parameters().get(name) if self.takes(name) else None
      if value is None:
        continue
      if own is None:
        raise errors.value_error(
          f'{name}={value}: {self.name} has no such parameter; leave it out'
        )
      values[name] = own.check(value)
    return values


# Parameters of families in several files.
BANDS = Parameter(
  'bands',
  int,
  'Non-zero diagonals of C, or of its inverse for the banded-inverse families.',
)
COLUMN_NORMALIZE = Parameter(
  'column_normalize',
  bool,
  'Columns of unit norm.  [default: only for banded]',
  default=False,
)
BANDED = (BANDS, COLUMN_NORMALIZE)
BANDED_INVERSE = (attrs.evolve(BANDS, field='inverse_bands'), COLUMN_NORMALIZE)


@functools.cache
def known() -> Mapping[str, Family]:
  """Returns all families by their names."""
  families = {}
  for module in pkgutil.iter_modules(sys.modules[_PACKAGE].__path__):
    file = importlib.import_module(f'{_PACKAGE}.{module.name}')
    families.update({each.name: each for each in getattr(file, 'FAMILIES', ())})
  return families


@functools.cache
def parameters() -> Mapping[str, Parameter]:
  """Returns the parameters of all families by their names."""
  return {
    each.name: each for family in known().values() for each in family.parameters
  }


def get(name: object) -> Family:
  """Returns the family of that name.

  Raises:
    ValueError: there is none.
  """
  if not isinstance(name, str) or name not in known():
    raise errors.value_error(
      f'family={name}: is not known; use one of {", ".join(known())}'
    )
  return known()[name]
