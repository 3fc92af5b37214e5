"""Functions that find the best strategies; `Family.optimizer` names them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Callable

from tff_bandmf import _checks, errors, strategies
from tff_bandmf.optimize import banded as banded_lib
from tff_bandmf.optimize import banded_inverse as banded_inverse_lib
from tff_bandmf.optimize import blt as blt_lib
from tff_bandmf.optimize import request as request_lib
from tff_bandmf.optimize import solver

# Least relative decrease of the loss for which bands or buffers are added.
_WORTH = 1e-3
_MOST_BUFFERS = 10
_MOST_INVERSE_BANDS = 64

_Request = request_lib.Request


def banded(request: _Request) -> solver.Optimized:
  """Returns the best C with `request.bands` bands."""
  return banded_lib.optimize_banded(
    request, request.bands, equal_column_norms=request['column_normalize']
  )


def banded_toeplitz(request: _Request) -> solver.Optimized:
  """Returns the best Toeplitz C with `request.bands` bands."""
  min_sep = request.participation.min_sep
  optimized = banded_lib.optimize_toeplitz(
    request, solver.check_separated(request.bands, min_sep)
  )
  return request.evaluated(request.normalized(optimized.strategy), optimized)


def robust_toeplitz(request: _Request) -> solver.Optimized:
  """Finds the best Toeplitz C with `request.bands` bands, then tapers it."""
  b0, bands = request['b0'], request.bands
  _checks.at_most('b0', b0, bands, 'bands', 'min_sep lies in [b0, bands]')
  optimized = banded_lib.optimize_toeplitz(request, bands)
  coefficients = strategies.taper(optimized.strategy.coefficients, b0)
  strategy = strategies.RobustToeplitz(request.rounds, coefficients, b0)
  return request.evaluated(request.normalized(strategy), optimized)


def blt(request: _Request) -> solver.Optimized:
  """Returns the best BLT.

  If `buffers` is not given, buffers are added one by one as long as each
  decreases the loss by at least the fraction `_WORTH`.
  """
  most = _MOST_BUFFERS
  if request.memory_copies is not None:
    most = min(most, request.memory_copies)
  given = request['buffers']
  optimized = blt_lib.optimize_blt(
    request, given or most, worth=blt_lib.NO_GAIN if given else _WORTH
  )
  return request.evaluated(request.normalized(optimized.strategy), optimized)


def banded_inverse(request: _Request) -> solver.Optimized:
  """Returns the best banded C^-1.

  If `bands` is not given, the number of bands is doubled as long as this
  decreases the loss by at least the fraction `_WORTH`. For sampled cohorts,
  computing a loss takes longer, so the search uses only the largest number.
  """
  most = min(_MOST_INVERSE_BANDS, request.most_bands())
  sizes = (
    [most] if request.noise else [1 << i for i in range(most.bit_length())]
  )
  if 'bands' in request.parameters:
    sizes = [request.bands]
  optimized = _growing(
    sizes,
    lambda bands: banded_inverse_lib.optimize_banded_inverse(request, bands),
  )
  return request.evaluated(request.normalized(optimized.strategy), optimized)


def dense(request: _Request) -> solver.Optimized:
  """Returns the best lower-triangular C.

  Raises:
    ImportError: TensorFlow is not installed.
    ValueError: cohorts are sampled.
  """
  if request.noise:
    raise errors.value_error(
      'family=dense: its best C has entries below 0, for which the '
      'amplification is not proved; use banded'
    )
  with errors.importing('family dense', 'optimizer'):
    from tff_bandmf.optimize import dense as dense_lib

  return dense_lib.optimize_dense(request, gap=request['gap'])


def _growing(
  sizes: Sequence[int], find: Callable[[int], solver.Optimized]
) -> solver.Optimized:
  """Tries sizes until a larger one helps too little; returns the best strategy.

  The search stops if the next size decreases the loss by less than the fraction
  `_WORTH`, if an optimisation does not converge, or after the last size.

  Args:
    sizes: numbers of bands, ascending.
    find: function from a number of bands to the best strategy.
  """
  best = find(sizes[0])
  evaluations = best.evaluations
  for size in sizes[1:]:
    if not best.converged:
      break
    candidate = find(size)
    evaluations += candidate.evaluations
    if not candidate.converged:
      best = min(best, candidate, key=lambda each: each.loss)
      best = dataclasses.replace(best, converged=False)
    elif candidate.loss > best.loss * (1 - _WORTH):
      break
    else:
      best = candidate
  return dataclasses.replace(best, evaluations=evaluations)
