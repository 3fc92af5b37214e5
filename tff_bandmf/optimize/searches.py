"""The best strategy of a family that is given by its name.

Parameters that are not given are chosen by the family's optimiser or by a sweep
over their values. `Family.optimizer` names the optimiser, a function in this
module. If the optimiser does not choose the number of bands, the search tries
the powers of two and min_sep as numbers of bands, and takes the best. The best
strategy has the least loss, error * sens^2.
"""

from __future__ import annotations

import dataclasses
import functools
import pkgutil
from typing import Any, Callable, Optional

from tff_bandmf import _checks, errors, strategies, workloads
from tff_bandmf import participation as participation_lib
from tff_bandmf.optimize import banded as banded_lib
from tff_bandmf.optimize import banded_inverse as banded_inverse_lib
from tff_bandmf.optimize import blt as blt_lib
from tff_bandmf.optimize import cache, solver, sweep
from tff_bandmf.strategies import families

# Least relative decrease of the loss for which bands or buffers are added.
_WORTH = 1e-3
_MOST_BUFFERS = 10
_MOST_INVERSE_BANDS = 64

_Request = solver.Request


def optimize(
  family: str,
  rounds: int,
  participation: participation_lib.Participation,
  workload: workloads.Workload = workloads.PREFIX,
  objective: workloads.Objective = solver.MEAN,
  *,
  memory_copies: Optional[int] = None,
  callback: Optional[solver.Callback] = None,
  noise: Optional[solver.Noise] = None,
  **parameters: object,
) -> solver.Optimized:
  """Returns the strategy of a family that has the least loss.

  Args:
    family: a name of `strategies.FAMILIES`.
    rounds: number of rounds.
    participation: schema under which the sensitivity is computed.
    workload: workload under which the error is computed.
    objective: `MEAN`, `MAX` or `LAST` of the per-query errors, or a weight for
      each round.
    memory_copies: limit on the vectors of past noise in memory, each of the
      model's size, >= 0; None for no limit.
    callback: function that is called during the search with the best loss so
      far; None for no calls.
    noise: function that gives the noise needed for C with sampled cohorts. It
      replaces the sensitivity in the loss. If None, the loss uses the
      sensitivity.
    **parameters: parameters of the family; None if the search is to choose.

  Raises:
    TypeError: a parameter has a wrong type.
    ValueError: the family is unknown, does not take a parameter, or needs a
      parameter that is not given.

  >>> from tff_bandmf import participation
  >>> best = optimize('dp-cgd', 3900, participation.MinSep(390, 10))
  >>> round(best.strategy.lambda_, 2)
  0.98
  """
  declared = families.get(family)
  if declared.forms:
    raise errors.value_error(
      f'family={family}: is given by numbers and not searched for by its name; '
      'give its file, strategies.custom, or a function to optimize.minimize'
    )
  if callable(objective):
    workloads.check_objective(objective)
  participation_lib.check(participation)
  # Under a budget, C is optimised for the schema that defines the budget.
  participation = participation.reference_schema
  request = _Request(
    rounds,
    participation,
    workload,
    objective,
    callback=callback,
    noise=noise,
    memory_copies=memory_copies,
    family=declared,
    parameters=declared.checked(parameters),
  )
  # A search may take minutes, so missing parameters are reported before it.
  for each in declared.parameters:
    if each.required:
      request.needed(each.name)
  _check_copies(request, declared.memory.least(rounds))
  if declared.optimizer:
    search = pkgutil.resolve_name(declared.optimizer)
    optimized = cache.load_or_search(request, search)
  else:
    optimized = _build(request)
  _check_copies(request, optimized.strategy.least_copies)
  return optimized


def _check_copies(request: _Request, needed: int) -> None:
  if request.memory_copies is not None and needed > request.memory_copies:
    raise errors.value_error(
      f'memory_copies={request.memory_copies}: {request.family.name} keeps '
      f'{needed} model copies; allow as many, or use another family'
    )


def _build(request: _Request) -> solver.Optimized:
  """Returns the best strategy of a family that has no optimiser.

  Raises:
    ValueError: a parameter is missing.
  """
  bands, fields, swept = None, {}, None
  for each in request.family.parameters:
    if each.name == families.BANDS.name:
      bands = each
    elif each.sweep is not None and each.name not in request.parameters:
      swept = each
    elif each.name != families.COLUMN_NORMALIZE.name:
      fields[each.field] = request.needed(each.name)

  def make(**more: Any) -> strategies.Strategy:
    return request.normalized(
      request.family.kind(rounds=request.rounds, **fields, **more)
    )

  near: Optional[float] = None

  def best(**more: Any) -> solver.Optimized:
    nonlocal near
    if swept is None or swept.sweep is None:
      return request.evaluated(make(**more))
    optimized = sweep.sweep(
      request,
      lambda value: make(**more, **{swept.field: value}),
      *swept.sweep,
      near,
    )
    near = optimized.strategy.parameters()[swept.name]
    return optimized

  if bands is None:
    return best()
  return _best_bands(request, lambda count: best(**{bands.field: count}))


def _best_bands(
  request: _Request, find: Callable[[int], solver.Optimized]
) -> solver.Optimized:
  """Returns the best strategy, with the given or the best number of bands.

  If the number is not given, the search tries the powers of two and min_sep as
  numbers of bands. For sampled cohorts, computing a loss takes longer. So the
  search starts at the middle number of bands and moves to a neighbour as long
  as the loss decreases.

  Args:
    request: request of the search.
    find: function from a number of bands to the best strategy.
  """
  if 'bands' in request.parameters:
    return find(request.bands)
  candidates = {1 << i for i in range(request.rounds.bit_length())}
  candidates.add(request.participation.min_sep or 1)
  ordered = sorted(each for each in candidates if each <= request.most_bands())
  results: dict[int, solver.Optimized] = {}

  def result(bands):
    if bands not in results:
      results[bands] = find(bands)
    return results[bands]

  whole = True
  try:
    if request.noise is None:
      # The search ends at the first result that has not converged.
      whole = all(result(bands).converged for bands in ordered)
    else:
      best, place = None, len(ordered) // 2
      while place != best:
        best = place
        around = range(max(0, place - 1), min(len(ordered), place + 2))
        place = min(around, key=lambda i: result(ordered[i]).loss)
  except KeyboardInterrupt:
    if not results:
      raise
    whole = False
  least = min(results.values(), key=lambda each: each.loss)
  return dataclasses.replace(least, converged=whole)


def banded(request: _Request) -> solver.Optimized:
  """Returns the best C with `Request.bands` bands."""
  return banded_lib.optimize_banded(
    request, request.bands, equal_column_norms=request['column_normalize']
  )


def banded_toeplitz(request: _Request) -> solver.Optimized:
  """Returns the best Toeplitz C with `Request.bands` bands."""
  min_sep = request.participation.min_sep
  optimized = banded_lib.optimize_toeplitz(
    request, solver.check_separated(request.bands, min_sep)
  )
  return request.evaluated(request.normalized(optimized.strategy), optimized)


def robust_toeplitz(request: _Request) -> solver.Optimized:
  """Finds the best Toeplitz C with `Request.bands` bands, then tapers it."""
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
  decreases the loss by at least the fraction `_WORTH`, and the optimisation
  converges. For sampled cohorts, computing a loss takes longer, so the search
  uses only the largest number.
  """
  most = min(_MOST_INVERSE_BANDS, request.most_bands())
  sizes = [1 << i for i in range(most.bit_length())]
  if 'bands' in request.parameters:
    sizes = [request.bands]
  elif request.noise:
    sizes = [most]
  best = banded_inverse_lib.optimize_banded_inverse(request, sizes[0])
  evaluations = best.evaluations
  for bands in sizes[1:]:
    if not best.converged:
      break
    wider = banded_inverse_lib.optimize_banded_inverse(request, bands)
    evaluations += wider.evaluations
    if wider.converged and wider.loss > best.loss * (1 - _WORTH):
      break
    best = dataclasses.replace(
      min(best, wider, key=lambda each: each.loss), converged=wider.converged
    )
  best = dataclasses.replace(best, evaluations=evaluations)
  return request.evaluated(request.normalized(best.strategy), best)


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


def stamped(request: _Request) -> solver.Optimized:
  """Returns the stamped strategy of the best block of `block_rounds` rounds.

  If the family of the block is not given, and cohorts are sampled or TensorFlow
  is not installed, the block is `banded` with as many bands as rounds. This
  search needs no TensorFlow and is faster, but it does not prove that the block
  is the best.
  """
  rounds = request.needed('block_rounds', request.participation.min_sep)
  rounds = min(rounds, request.rounds)
  parameters: dict[str, Any] = {
    name: value
    for name, value in request.parameters.items()
    if request.family.parameter(name) is None
  }
  # The block is optimised for one participation. If `block_rounds` is larger
  # than min_sep, a client may take part twice in a block, so another block may
  # be better. The reported loss is still right: `evaluated` computes it for the
  # requested schema.
  best = functools.partial(
    optimize,
    rounds=rounds,
    participation=participation_lib.Single(),
    objective=request.objective,
    memory_copies=request.memory_copies,
    callback=request.callback,
  )
  is_given = 'block_family' in request.parameters or bool(parameters)
  try:
    if request.noise and not is_given:
      optimized = best(strategies.Banded.family, bands=rounds)
    else:
      optimized = best(request['block_family'], **parameters)
  except ImportError:
    if is_given:
      raise
    optimized = best(strategies.Banded.family, bands=rounds)
  return request.evaluated(
    strategies.Stamped(request.rounds, optimized.strategy), optimized
  )
