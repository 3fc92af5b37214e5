"""A family of strategies and its parameters, declared once.

Each module of this package declares its families as `FAMILIES`, next to their
classes, and `known` collects them. These declarations define strategy files,
the search for the best parameters, the ranking of families, command-line
flags, keys of configurations and tables of the documentation.
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

# Type of a parameter's value.
Value = Union[bool, int, float, str]


@attrs.frozen
class Parameter:
  """A parameter of one family or of several.

  Attributes:
    name: name in JSON and in configurations; its flag has dashes for
      underscores.
    kind: type of the value: int, at least 1; float; bool; or `Family`, for the
      name of a family.
    about: description, for --help.
    low: least value of an int or a float.
    high: largest value of a float.
    sweep: (low, high), the range of the search for the best value if the user
      gives no value; None if the parameter is not searched for.
    default: value that is used if the user gives no value and `sweep` is None.
      If `sweep` and `default` are None, the family's optimiser chooses the
      value. A family without an optimiser then needs a value from the user.
    required: whether the user must give a value even if the family has an
      optimiser.
    field: name of the field of the family's class; by default `name`, with an
      underscore appended if `name` is a keyword of Python.
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
    """Returns `value` converted to the parameter's type.

    Raises:
      TypeError: `value` cannot be converted to this type.
      ValueError: `value` is out of range.
    """
    about = self.about.split('  ')[0].rstrip('.')
    remedy = f'it is {about[0].lower()}{about[1:]}'
    if self.kind is Family:
      return get(value).name
    if self.kind is int:
      return _checks.count(self.name, value, remedy, max(1, int(self.low)))
    if self.kind is float:
      return _checks.between(self.name, value, self.low, self.high, remedy)
    if not isinstance(value, bool):
      raise errors.type_error(
        f'{self.name}={value}: must be true or false; {remedy}'
      )
    return value


@attrs.frozen
class Memory:
  """The memory that a family's noise needs.

  Attributes:
    about: number of vectors of past noise, each of the model's size, as a
      formula in the parameters.
    least: function from the number of rounds to the smallest number of vectors
      that any values of the parameters allow.
  """

  about: str
  least: Callable[[int], int]


NOTHING = Memory('0', lambda rounds: 0)
SOME_BANDS = Memory('bands - 1', lambda rounds: 1)
# If C^-1 has few bands, the noise needs only a few past normals, which can be
# drawn again from the key.
FEW_NORMALS = Memory('bands - 1, or 0', lambda rounds: 0)
ALL_ROUNDS = Memory('rounds - 1', lambda rounds: rounds - 1)


@attrs.frozen
class Family:
  """A family of strategies.

  Attributes:
    kind: class of its strategies; its attribute `family` is the name.
    about: description of C or C^-1 in a few words.
    source: keys of the literature, such as 'BandMF23'; '' for no source.
    parameters: parameters of the family; at most one of them has a `sweep`.
    memory: memory that the family's noise needs.
    optimizer: 'module:function', the function that finds the best strategy for
      a `tff_bandmf.optimize.solver.Request`; '' if the parameters define C.
      That module is imported when a search begins, because it imports this
      module.
    passes_on: whether the family takes all parameters of other families and
      passes them to the family of its blocks, as `Stamped` does.
    forms: classes of the family's strategies if it has several; `kind` is one
      of them. Their arrays have different names. The user gives the entries of
      C or of C^-1 for such a family; a search never returns it.
  """

  kind: type[Any]
  about: str
  source: str = ''
  parameters: tuple[Parameter, ...] = ()
  memory: Memory = SOME_BANDS
  optimizer: str = ''
  passes_on: bool = False
  forms: tuple[type[Any], ...] = ()

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
    """True if the user can choose the bands of C, or C always has one band."""
    return BANDS in self.parameters or getattr(self.kind, 'bands', 0) == 1

  def checked(self, given: Mapping[str, object]) -> dict[str, Value]:
    """Returns {name: checked value} for the given values that are not None.

    Args:
      given: values by the name of the parameter or of its field.

    Raises:
      TypeError: a value has a wrong type.
      ValueError: the family does not take a parameter, or a value is out of
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


# Parameters that families in several modules share.
BANDS = Parameter(
  'bands',
  int,
  'Number of non-zero diagonals of C; of C^-1 for the banded-inverse families.',
)
COLUMN_NORMALIZE = Parameter(
  'column_normalize',
  bool,
  'Whether columns are scaled to unit norm.  [default: only for banded]',
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
    ValueError: no family has that name.
  """
  if not isinstance(name, str) or name not in known():
    raise errors.value_error(
      f'family={name}: is not known; use one of {", ".join(known())}'
    )
  return known()[name]
