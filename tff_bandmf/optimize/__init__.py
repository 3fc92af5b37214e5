"""The search for good strategies.

SciPy minimises the loss, and NumPy computes the loss and its gradient. Three
searches compute them with TensorFlow, and import it: for a user's own C, for
the family `dense`, and for the family `banded` if A^-1 has many bands.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tff_bandmf import errors
from tff_bandmf.optimize.searches import optimize
from tff_bandmf.optimize.solver import Noise, Optimized, Problem
from tff_bandmf.workloads import LAST, MAX, MEAN

if TYPE_CHECKING:
  from tff_bandmf.optimize.in_tensorflow import (
    Columns,
    Gram,
    Inverse,
    Toeplitz,
    minimize,
  )

_IN_TENSORFLOW = ('Columns', 'Gram', 'Inverse', 'Toeplitz', 'minimize')


def __getattr__(name: str) -> Any:
  if name not in _IN_TENSORFLOW:
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
  with errors.importing(f'optimize.{name}', 'optimizer'):
    return getattr(importlib.import_module(f'{__name__}.in_tensorflow'), name)
