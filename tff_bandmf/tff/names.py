"""TFF's functions and types, for use with TFF 0.87 and with later releases.

  from tff_bandmf.tff import names as tff

In releases after 0.87, computations, types, placements and the base classes of
programs are in the package `federated_language`, where a few of them have other
names. Aggregators, templates, learning and the local runtime stay in TFF. No
other module of this library imports either package.
"""

from __future__ import annotations

import importlib
import operator
import pathlib
import types as types_lib
from typing import Any

from tff_bandmf import errors

# Names in TFF 0.87 that are different in later releases, and the later names.
_RENAMED = {
  'types.structure_from_tensor_type_tree': (
    'tensorflow.structure_from_tensor_type_tree'
  ),
  'types.to_type': 'to_type',
}


def _imported() -> tuple[types_lib.ModuleType, ...]:
  """Returns the installed packages that have TFF's names, TFF first.

  Raises:
    ImportError: neither TFF nor `federated_language` is installed.
  """
  packages = []
  for name in ('tensorflow_federated', 'federated_language'):
    try:
      packages.append(importlib.import_module(name))
    except ImportError as error:
      reason = error
    if packages and hasattr(packages[0], 'federated_computation'):
      break
  if not packages:
    raise errors.needs('tensorflow_federated', __name__) from reason
  return tuple(packages)


_PACKAGES = _imported()
_HAS_TFF = _PACKAGES[0].__name__ == 'tensorflow_federated'
_IS_OLD = _HAS_TFF and len(_PACKAGES) == 1


class _Names:
  """The names under one path in the installed packages.

  Args:
    path: path of the names, such as 'types.'; '' for names without a path.
    modules: modules that may have the names, in the order of the search.
  """

  def __init__(self, path: str, modules: tuple[Any, ...]):
    self._path = path
    self._modules = modules

  def __getattr__(self, name: str) -> Any:
    path = f'{self._path}{name}'
    if path in _RENAMED and not _IS_OLD:
      return operator.attrgetter(_RENAMED[path])(_ROOT)
    modules = (each for each in self._modules if hasattr(each, name))
    values = tuple(getattr(each, name) for each in modules)
    if not values and not _HAS_TFF:
      raise errors.needs('tensorflow_federated', f'tff.{path}')
    if not values:
      raise AttributeError(f'TFF has no name tff.{path}')
    if _IS_OLD or not isinstance(values[0], types_lib.ModuleType):
      return values[0]
    return _Names(f'{path}.', values)


_ROOT = _Names('', _PACKAGES)


def __getattr__(name: str) -> Any:
  # Python itself looks for names such as `__path__`, which this module lacks.
  if name.startswith('__'):
    raise AttributeError(name)
  return getattr(_ROOT, name)


def folder() -> pathlib.Path:
  """Returns the folder of the installed TFF."""
  path = _PACKAGES[0].__file__
  if not _HAS_TFF or path is None:
    raise errors.needs('tensorflow_federated', 'a worker')
  return pathlib.Path(path).parent


def elements(kind: Any) -> list[tuple[str, Any]]:
  """Returns the (name, type) pairs of a `StructType`.

  The index of an element replaces a missing name.
  """
  items = _ROOT.structure.iter_elements(kind) if _IS_OLD else kind.items()
  return [
    (str(i) if name is None else name, each)
    for i, (name, each) in enumerate(items)
  ]
