"""Any family by its name: built, swept or optimised.

| family                    | given or else                                   |
|---------------------------|-------------------------------------------------|
| identity, sqrt-toeplitz   | nothing to choose                               |
| banded, banded-toeplitz   | bands or min_sep; the rest optimised            |
| robust-toeplitz           | bands or min_sep, and b0; the rest optimised    |
| banded-sqrt               | bands or powers of two                          |
| banded-fractional         | bands or powers of two; alpha or swept          |
| inverse-plus-constant     | bands or powers of two; constant or swept       |
| lti                       | nu or swept                                     |
| dp-cgd                    | lambda or swept                                 |
| blt                       | buffers, or more while they help; optimised     |
| banded-inverse            | bands p, or more while they help; optimised     |
| banded-inverse-sqrt       | bands p or powers of two                        |
| banded-inverse-fractional | bands p or powers of two; alpha or swept        |
| dense                     | optimised                                       |
| tree                      | arity, 2 where not given                        |
| online-tree               | nothing to choose                               |
| stamped                   | block_rounds or min_sep, block_family; the block |
|                           | as its family, for one participation            |

`bands` counts the diagonals of C^-1 in the banded-inverse families. All are
compared by the loss, error * sens^2.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Callable, Optional

from tff_bandmf import _checks, errors, strategies, workloads
from tff_bandmf import participation as participation_lib
from tff_bandmf.optimize import request as request_lib
from tff_bandmf.optimize import solver, sweep

# More bands or buffers must lower the loss by this much to be worth it.
_WORTH = 1e-3
_MOST_BUFFERS = 10
_MOST_INVERSE_BANDS = 64
# From there on inverse-plus-constant is all constant.
_LARGEST_CONSTANT = 100.0

_Request = request_lib.Request
_Build = Callable[[float], strategies.Toeplitz]
_Find = Callable[[_Request], solver.Optimized]


def optimize(request: _Request) -> solver.Optimized:
  """Returns the strategy of least loss that `request` allows.

  Raises:
    ValueError: an unknown family, a parameter that the family does not take,
      or one that it needs and that nothing else gives.

  >>> from tff_bandmf import participation
  >>> found = optimize(
  ...     request_lib.Request('dp-cgd', 3900, participation.MinSep(390, 10)))
  >>> round(found.strategy.lambda_, 2)
  0.98
  """
  takes = parameters_of(request.family)
  _, least_copies, find = _FAMILIES[request.family]
  for name in _PARAMETERS:
    if getattr(request, name) is not None and name not in takes:
      raise ValueError(
        errors.invalid(
          name.rstrip('_'),
          getattr(request, name),
          f'{request.family} has no such parameter',
          'leave it out',
        )
      )
  _checks.count('rounds', request.rounds, 'give the number of rounds')
  solver.check_objective(request.objective)
  # Before a search that may take minutes, and after it.
  _check_copies(request, least_copies(request))
  found = find(request)
  _check_copies(request, found.strategy.noise_copies)
  return found


def parameters_of(family: str) -> tuple[str, ...]:
  """Returns the fields of `Request` that are parameters of a family.

  Raises:
    ValueError: an unknown family.
  """
  if family not in _FAMILIES:
    raise ValueError(
      errors.invalid(
        'family', family, 'is not known', f'use one of {", ".join(_FAMILIES)}'
      )
    )
  return _FAMILIES[family][0]


def _check_copies(request: _Request, needed: int) -> None:
  if request.noise_copies is not None and needed > request.noise_copies:
    raise ValueError(
      errors.invalid(
        'noise_copies',
        request.noise_copies,
        f'{request.family} keeps {needed} model copies',
        'allow more, or use another family',
      )
    )


def _fixed(build: Callable[[_Request], strategies.Strategy]):
  """Returns the finder of a family with nothing to choose."""
  return lambda request: request_lib.evaluated(build(request), request)


def _normalized(
  strategy: strategies.Toeplitz, request: _Request
) -> strategies.Strategy:
  if request.column_normalize:
    return strategies.ColumnNormalized(strategy)
  return strategy


def _swept(
  request: _Request,
  value: Optional[float],
  build: _Build,
  low: float,
  high: float,
) -> solver.Optimized:
  """Returns the strategy of a family with one scalar, given or swept."""
  if value is not None:
    return request_lib.evaluated(_normalized(build(value), request), request)
  return sweep.sweep(
    lambda scalar: _normalized(build(scalar), request),
    low,
    high,
    request.participation,
    request.workload,
    request.objective,
    callback=request.callback,
  )


def _best_bands(
  request: _Request, find: Callable[[int], solver.Optimized]
) -> solver.Optimized:
  """Returns the best of the given bands, or of powers of two and min_sep."""
  if request.bands is not None:
    return find(_bands(request))
  candidates = {1 << i for i in range(request.rounds.bit_length())}
  min_sep, copies = request.participation.min_sep, request.noise_copies
  if min_sep is not None:
    candidates.add(min(min_sep, request.rounds))
  if copies is not None:
    candidates = {each for each in candidates if each <= copies + 1}
  found: list[solver.Optimized] = []
  whole = True
  for bands in sorted(candidates):
    try:
      found.append(find(bands))
      whole = found[-1].converged
    except KeyboardInterrupt:
      if not found:
        raise
      whole = False
    if not whole:
      break
  best = min(found, key=lambda each: each.loss)
  return dataclasses.replace(best, converged=whole)


def _growing(
  sizes: Iterable[int], find: Callable[[int], solver.Optimized]
) -> solver.Optimized:
  """Returns the first of growing strategies that the next hardly improves."""
  sizes = iter(sizes)
  best = find(next(sizes))
  evaluations = best.evaluations
  for size in sizes:
    if not best.converged:
      break
    found = find(size)
    evaluations += found.evaluations
    if not found.converged:
      best = min(best, found, key=lambda each: each.loss)
      best = dataclasses.replace(best, converged=False)
    elif found.loss > best.loss * (1 - _WORTH):
      break
    else:
      best = found
  return dataclasses.replace(best, evaluations=evaluations)


def _bands(request: _Request) -> int:
  """Returns the bands asked for, or else min_sep.

  With more, columns of one client overlap and its sensitivity grows; up to
  there more bands never cost error.

  Raises:
    ValueError: neither is given, or bands exceed the rounds.
  """
  bands, min_sep = request.bands, request.participation.min_sep
  if bands is None:
    if min_sep is None:
      raise ValueError(
        errors.invalid(
          'bands',
          None,
          f'{request.family} needs it where min_sep does not give it',
          'give bands or min_sep',
        )
      )
    most = request.rounds
    if request.noise_copies is not None:
      most = min(most, request.noise_copies + 1)
    return min(min_sep, most)
  if bands > request.rounds:
    raise ValueError(
      errors.invalid(
        'bands',
        bands,
        f'must not exceed rounds={request.rounds}',
        f'use {request.rounds} or fewer',
      )
    )
  return bands


def _separated_bands(request: _Request) -> int:
  """Returns `_bands` for an optimiser that takes columns not to overlap."""
  bands, min_sep = _bands(request), request.participation.min_sep
  if min_sep is not None and bands > min_sep:
    raise ValueError(
      errors.invalid(
        'bands',
        bands,
        f'must not exceed min_sep={min_sep}, or columns of one client '
        'overlap and sensitivity grows',
        f'use {min_sep} or fewer',
      )
    )
  return bands


def _banded(request: _Request) -> solver.Optimized:
  # Optimisers with TensorFlow, which takes ten seconds to import, are imported
  # where they are needed.
  from tff_bandmf.optimize import banded

  return banded.optimize_banded(
    request.rounds,
    _separated_bands(request),
    request.participation,
    request.workload,
    request.objective,
    equal_column_norms=request.column_normalize is not False,
    max_evaluations=request.max_evaluations,
    callback=request.callback,
  )


def _toeplitz(
  request: _Request, bands: int
) -> solver.Optimized[strategies.BandedToeplitz]:
  """Returns an optimised banded Toeplitz strategy."""
  if request.workload.is_toeplitz:
    from tff_bandmf.optimize import toeplitz

    return toeplitz.optimize_banded_toeplitz(
      request.rounds,
      bands,
      request.objective,
      request.workload,
      max_evaluations=request.max_evaluations,
      callback=request.callback,
    )
  from tff_bandmf.optimize import banded

  return banded.optimize_banded_toeplitz_scheduled(
    request.rounds,
    bands,
    request.objective,
    request.workload,
    max_evaluations=request.max_evaluations,
    callback=request.callback,
  )


def _banded_toeplitz(request: _Request) -> solver.Optimized:
  found = _toeplitz(request, _separated_bands(request))
  return _again(_normalized(found.strategy, request), request, found)


def _robust_toeplitz(request: _Request) -> solver.Optimized:
  if request.b0 is None:
    raise ValueError(
      errors.invalid(
        'b0',
        None,
        'robust-toeplitz needs it',
        'give the least min_sep that is expected',
      )
    )
  bands = _bands(request)
  if request.b0 > bands:
    raise ValueError(
      errors.invalid(
        'b0',
        request.b0,
        f'must not exceed bands={bands}',
        'min_sep is expected in [b0, bands]',
      )
    )
  found = _toeplitz(request, bands)
  strategy = strategies.RobustToeplitz(
    request.rounds,
    strategies.taper(found.strategy.coefficients, request.b0),
    request.b0,
  )
  return _again(_normalized(strategy, request), request, found)


def _again(
  strategy: strategies.Strategy, request: _Request, found: solver.Optimized
) -> solver.Optimized:
  """Returns a strategy made from an optimised one, with its own loss."""
  return request_lib.evaluated(
    strategy, request, found.evaluations, found.converged
  )


def _blt(request: _Request) -> solver.Optimized:
  from tff_bandmf.optimize import blt

  def find(buffers):
    return blt.optimize_blt(
      request.rounds,
      buffers,
      request.participation,
      request.workload,
      request.objective,
      max_evaluations=request.max_evaluations,
      callback=request.callback,
    )

  most = _MOST_BUFFERS
  if request.noise_copies is not None:
    most = min(most, request.noise_copies)
  found = (
    _growing(range(1, most + 1), find)
    if request.buffers is None
    else find(request.buffers)
  )
  return _again(_normalized(found.strategy, request), request, found)


def _banded_inverse(request: _Request) -> solver.Optimized:
  from tff_bandmf.optimize import banded_inverse

  def find(bands):
    return banded_inverse.optimize_banded_inverse(
      request.rounds,
      bands,
      request.participation,
      request.workload,
      request.objective,
      max_evaluations=request.max_evaluations,
      callback=request.callback,
    )

  most = min(_MOST_INVERSE_BANDS, request.rounds)
  if request.noise_copies is not None:
    most = min(most, request.noise_copies + 1)
  found = (
    _growing((1 << i for i in range(most.bit_length())), find)
    if request.bands is None
    else find(_bands(request))
  )
  return _again(_normalized(found.strategy, request), request, found)


def _dense(request: _Request) -> solver.Optimized:
  from tff_bandmf.optimize import dense

  return dense.optimize_dense(
    request.rounds,
    request.participation,
    request.workload,
    request.objective,
    max_evaluations=request.max_evaluations,
    callback=request.callback,
  )


def _stamped(request: _Request) -> solver.Optimized:
  block_rounds = request.block_rounds or request.participation.min_sep
  if block_rounds is None:
    raise ValueError(
      errors.invalid(
        'block_rounds',
        None,
        'stamped needs it where min_sep does not give it',
        'give block_rounds or min_sep',
      )
    )
  # Within a block of min_sep rounds a client takes part once.
  found = optimize(
    dataclasses.replace(
      request,
      family=request.block_family or strategies.Dense.family,
      rounds=min(block_rounds, request.rounds),
      block_rounds=None,
      block_family=None,
      workload=workloads.PREFIX,
      participation=participation_lib.Single(),
    )
  )
  return _again(
    strategies.Stamped(request.rounds, found.strategy), request, found
  )


_PARAMETERS = (
  'bands',
  'buffers',
  'alpha',
  'lambda_',
  'nu',
  'constant',
  'b0',
  'arity',
  'block_rounds',
  'block_family',
  'column_normalize',
)
_BANDED = ('bands', 'column_normalize')


def _by_bands(kind: Callable) -> _Find:
  """Returns the finder of a family of `kind`(rounds, bands)."""
  return lambda request: _best_bands(
    request,
    lambda bands: request_lib.evaluated(
      _normalized(kind(request.rounds, bands), request), request
    ),
  )


def _by_bands_and(scalar: str, kind: Callable, high: float) -> _Find:
  """Returns the finder of a family of `kind`(rounds, bands, scalar)."""
  return lambda request: _best_bands(
    request,
    lambda bands: _swept(
      request,
      getattr(request, scalar),
      lambda value: kind(request.rounds, bands, value),
      0.0,
      high,
    ),
  )


def _by(scalar: str, kind: Callable) -> _Find:
  """Returns the finder of a family of `kind`(rounds, scalar)."""
  return lambda request: _swept(
    request,
    getattr(request, scalar),
    lambda value: kind(request.rounds, value),
    0.0,
    1.0,
  )


def _no_copies(request: _Request) -> int:
  return 0


def _one_copy(request: _Request) -> int:
  return 1


def _all_copies(request: _Request) -> int:
  return request.rounds - 1


# What a family takes, the fewest model copies its noise keeps, how it is found.
_FAMILIES = {
  'identity': ((), _no_copies, _fixed(lambda r: strategies.Identity(r.rounds))),
  'banded': (_BANDED, _one_copy, _banded),
  'banded-toeplitz': (_BANDED, _one_copy, _banded_toeplitz),
  'robust-toeplitz': (_BANDED + ('b0',), _one_copy, _robust_toeplitz),
  'banded-sqrt': (_BANDED, _one_copy, _by_bands(strategies.BandedSqrt)),
  'banded-fractional': (
    _BANDED + ('alpha',),
    _one_copy,
    _by_bands_and('alpha', strategies.BandedFractional, 1.0),
  ),
  'inverse-plus-constant': (
    _BANDED + ('constant',),
    _one_copy,
    _by_bands_and(
      'constant', strategies.InversePlusConstant, _LARGEST_CONSTANT
    ),
  ),
  'sqrt-toeplitz': (
    ('column_normalize',),
    _all_copies,
    _fixed(lambda r: _normalized(strategies.SqrtToeplitz(r.rounds), r)),
  ),
  'lti': (('nu', 'column_normalize'), _all_copies, _by('nu', strategies.Lti)),
  'blt': (('buffers', 'column_normalize'), _one_copy, _blt),
  'dp-cgd': (
    ('lambda_', 'column_normalize'),
    _one_copy,
    _by('lambda_', strategies.DpCgd),
  ),
  'banded-inverse': (_BANDED, _one_copy, _banded_inverse),
  'banded-inverse-sqrt': (
    _BANDED,
    _one_copy,
    _by_bands(strategies.BandedInverseSqrt),
  ),
  'banded-inverse-fractional': (
    _BANDED + ('alpha',),
    _one_copy,
    _by_bands_and('alpha', strategies.BandedInverseFractional, 1.0),
  ),
  'dense': ((), _all_copies, _dense),
  'tree': (
    ('arity',),
    _all_copies,
    _fixed(lambda r: strategies.Tree(r.rounds, r.arity or 2)),
  ),
  'online-tree': (
    (),
    lambda r: r.rounds.bit_length(),
    _fixed(lambda r: strategies.OnlineTree(r.rounds)),
  ),
  # Those of the block are checked when it is found.
  'stamped': (_PARAMETERS, _no_copies, _stamped),
}
