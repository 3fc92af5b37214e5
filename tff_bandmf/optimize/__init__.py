"""The search for good strategies, in TensorFlow.

Names are imported when they are first used: closed-form families and scalar
sweeps do without TensorFlow, which takes long to import.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
  from tff_bandmf.optimize.banded import (
    optimize_banded,
    optimize_banded_toeplitz_scheduled,
  )
  from tff_bandmf.optimize.banded_inverse import optimize_banded_inverse
  from tff_bandmf.optimize.blt import optimize_blt
  from tff_bandmf.optimize.dense import optimize_dense
  from tff_bandmf.optimize.families import optimize, parameters_of
  from tff_bandmf.optimize.request import Request
  from tff_bandmf.optimize.solver import MAX, MEAN, Optimized
  from tff_bandmf.optimize.toeplitz import optimize_banded_toeplitz

_MODULES = {
  'MAX': 'solver',
  'MEAN': 'solver',
  'Optimized': 'solver',
  'Request': 'request',
  'optimize': 'families',
  'optimize_banded': 'banded',
  'optimize_banded_inverse': 'banded_inverse',
  'optimize_banded_toeplitz': 'toeplitz',
  'optimize_banded_toeplitz_scheduled': 'banded',
  'optimize_blt': 'blt',
  'optimize_dense': 'dense',
  'parameters_of': 'families',
}


def __getattr__(name: str) -> Any:
  if name not in _MODULES:
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
  return getattr(importlib.import_module(f'{__name__}.{_MODULES[name]}'), name)


def __dir__() -> list[str]:
  return sorted(_MODULES)
