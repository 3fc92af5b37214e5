"""The search for the strategy and the noise of a plan."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any, Callable, Optional

import attrs

from tff_bandmf import (
  accounting,
  choosing,
  errors,
  optimize,
  participation,
  sensitivity,
  strategies,
)
from tff_bandmf.plan import mechanism as mechanism_lib
from tff_bandmf.plan import request as request_lib

# Largest number of copies of the model that noise keeps, if a search compares
# families or numbers of bands and the request names no limit.
_MEMORY_COPIES = 8


@attrs.frozen
class Result:
  """The strategy and noise of a plan, from a search or from a file.

  Attributes:
    request: the request of the plan.
    guarantee: the guarantee, with the strategy C and the noise multiplier. If
      the request has `stands_for`, this is the guarantee of the larger run that
      the plan simulates.
    runners_up: pairs (family, root mean square error for a clip of 1) of the
      ranked strategies that were not chosen, best first by the `objective` of
      the request. A family has several pairs if the search compared several
      numbers of bands.
    left_out: maps the name of a family that was not compared to the reason.
    for_sampling: whether C was optimised for the noise that its sampled cohorts
      need. False if C was given, and for a plan from a file.

  Raises:
    ValueError: the cohorts are sampled, and `clients_per_round` of the request
      is not near their expected size, or `largest_cohort` of the request is too
      small for them.
  """

  request: request_lib.Request
  guarantee: accounting.Guarantee
  runners_up: Sequence[tuple[str, float]] = ()
  left_out: Mapping[str, str] = attrs.Factory(dict)
  for_sampling: bool = False

  def __attrs_post_init__(self):
    # PRIVACY: An edited file could have cohort sizes for which the claimed
    # delta is too small. This line checks the sizes of every result, whether it
    # is from a file or from a search.
    # Guard: sampled_plan_test.test_loaded_plan_is_checked_as_a_new_one.
    _check_sizes(self.request, self.guarantee.cohorts)


def search(
  request: request_lib.Request, progress: Callable[[str], None]
) -> Result:
  """Returns the strategy and noise for a request; this may take minutes.

  If the mechanism is 'best', the search compares families. If it is the name of
  a family, and the kind of sampling needs a C of few bands, the search compares
  numbers of bands. The noise is calibrated to the claim of the request; without
  a claim, it has the noise multiplier of the request.

  Args:
    request: the request of a plan.
    progress: function that is called after each step of the search, with a
      text: the family that was searched, or the loss that was reached.
  """
  cohorts = request.cohorts.for_cohort_size(request.clients_per_round)
  bands = cohorts.candidate_bands(request.rounds)
  if bands is None or len(bands) == 1:
    # The sizes of the cohorts are known before the search, which may take
    # minutes.
    _check_sizes(request, cohorts.for_bands(bands[0]) if bands else cohorts)
  families = compared(request)
  if not families:
    strategy, for_sampling = _strategy(request, progress)
    guarantee = _calibrated(request, strategy, cohorts)
    return Result(request, guarantee, for_sampling=for_sampling)
  ranking = choosing.choose(
    request.rounds,
    cohorts,
    _target(request),
    memory_copies=memory_copies(request),
    objective=request.objective,
    workload=request.workload,
    families=families,
    progress=progress,
  )
  best, *others = ranking.choices
  guarantee = best.guarantee
  if None in (request.epsilon, request.delta) or request.clients_per_unit > 1:
    guarantee = _calibrated(request, best.strategy, cohorts)
  runners_up = tuple(
    (each.strategy.family, each.rmse * request.clients_per_unit)
    for each in others
  )
  for_sampling = _noise(request) is not None
  return Result(request, guarantee, runners_up, ranking.left_out, for_sampling)


def _target(request: request_lib.Request) -> choosing.Target:
  """Returns the claim of a request; typical values replace missing ones."""
  return choosing.Target(request.epsilon or 1.0, request.delta or 1e-6)


def _noise(request: request_lib.Request) -> Optional[optimize.Noise]:
  """Returns `accounting.needed_noise` for the target of a request."""
  cohorts = request.cohorts.for_cohort_size(request.clients_per_round)
  claim = dataclasses.asdict(_target(request))
  return accounting.needed_noise(cohorts, request.rounds, **claim)


def search_arguments(
  request: request_lib.Request, mechanism: mechanism_lib.Mechanism
) -> dict[str, Any]:
  """Returns the arguments with which `optimize.optimize` finds C.

  Args:
    request: the request of a plan; its mechanism is ignored.
    mechanism: the family of C, and its parameters.
  """
  return {
    'family': mechanism.family,
    'rounds': request.rounds,
    'participation': request.cohorts.schema.reference_schema,
    'workload': request.workload,
    'objective': request.objective,
    'memory_copies': request.memory_copies,
    'noise': _noise(request),
    **mechanism.parameters,
  }


def _check_sizes(
  request: request_lib.Request, cohorts: participation.Cohorts
) -> None:
  """Raises ValueError if the sizes of a request do not fit sampled cohorts."""
  sampled = accounting.sampled(cohorts)
  if sampled is None:
    return
  if sampled.population is None:
    # PRIVACY: Delta includes the probability of a cohort above
    # `largest_cohort`. This probability is unknown without a population, so a
    # limit without a population is refused.
    # Guard: sampled_plan_test.test_limit_of_an_unknown_population_is_refused.
    if request.largest_cohort is not None:
      raise errors.value_error(
        f'largest_cohort={request.largest_cohort}: needs the population from '
        'which cohorts are drawn; give population, or leave it out'
      )
    return
  expected = sampled.expected_cohort(request.rounds)
  if abs(expected - request.clients_per_round) > 1:
    raise errors.value_error(
      f'clients_per_round={request.clients_per_round}: must be near the '
      f'expected size of the sampled cohorts, {expected:g}; use '
      f'clients_per_round={round(expected)}'
    )
  least = sampled.largest_cohort(request.rounds)
  # PRIVACY: A round with more clients than `largest_cohort` has no release, and
  # this tells an observer something about the drawn clients. The claimed delta
  # includes the probability of such rounds only if `largest_cohort` is at least
  # `least`. A smaller value is refused.
  # Guard:
  # sampled_plan_test.test_largest_cohort_that_sampling_exceeds_is_refused.
  if request.largest_cohort is not None and request.largest_cohort < least:
    raise errors.value_error(
      f'largest_cohort={request.largest_cohort}: must be at least {least}, '
      'which sampled cohorts exceed with negligible probability; leave it out'
    )


def compared(request: request_lib.Request) -> tuple[str, ...]:
  """Returns the families that a search compares; () for no comparison."""
  mechanism = request.mechanism
  if (
    isinstance(mechanism, mechanism_lib.Mechanism) and not mechanism.parameters
  ):
    mechanism = mechanism.family
  if mechanism == mechanism_lib.BEST:
    return strategies.SEARCHED
  cohorts = request.cohorts.for_cohort_size(request.clients_per_round)
  few = cohorts.candidate_bands(request.rounds) is not None
  if few and isinstance(mechanism, str) and not request.file:
    # The family is given, but not the number of bands, so the search compares
    # strategies with several numbers of bands. At the same noise multiplier, a
    # strategy with more bands has less error. But it needs more groups of
    # clients, and sampling from smaller groups amplifies less.
    return (mechanism,)
  return ()


def memory_copies(request: request_lib.Request) -> Optional[int]:
  """Returns the limit of copies of the model for noise; None for no limit."""
  if request.memory_copies is None and compared(request):
    return _MEMORY_COPIES
  return request.memory_copies


def _strategy(
  request: request_lib.Request, progress: Callable[[str], None]
) -> tuple[strategies.Strategy, bool]:
  """Returns the strategy of a request that compares no families.

  Args:
    request: the request of a plan.
    progress: function that is called after each step of the search.

  Returns:
    C, and whether C was optimised for the noise of sampled cohorts.
  """
  mechanism: Any = request.mechanism
  if request.file:
    if not os.path.isfile(request.file):
      raise errors.value_error(
        f'mechanism={mechanism}: is not a file; write one with bandmf '
        'optimize --out FILE, or name a family'
      )
    mechanism = strategies.load(request.file)[0]
  elif isinstance(mechanism, str):
    mechanism = mechanism_lib.Mechanism(mechanism)
  if isinstance(mechanism, mechanism_lib.Mechanism):
    arguments = search_arguments(request, mechanism)
    optimized = optimize.optimize(
      **arguments, callback=lambda loss: progress(f'loss {loss:.6g}')
    )
    return optimized.strategy, arguments['noise'] is not None
  choosing.check_given(
    'mechanism', mechanism, request.rounds, memory_copies(request)
  )
  return mechanism, False


def _calibrated(
  request: request_lib.Request,
  strategy: strategies.Strategy,
  cohorts: participation.Cohorts,
) -> accounting.Guarantee:
  """Returns the guarantee of the run, or of the larger run that it simulates.

  Args:
    request: the request of a plan.
    strategy: strategy matrix C.
    cohorts: `request.cohorts`, as `for_cohort_size` returns them for
      `request.clients_per_round`.
  """
  if isinstance(cohorts, participation.Budget):
    # `choosing` returns C for all rounds to which the run may be extended
    # (`Budget.horizon`). `for_horizon` needs C for the planned rounds.
    strategy = strategy.of_rounds(request.rounds)
  strategy, cohorts = sensitivity.budget.for_horizon(cohorts, strategy)
  noise, most = request.noise_multiplier or 0.0, request.clients_per_unit
  if request.epsilon is None or request.delta is None:
    return accounting.Guarantee(strategy, cohorts, noise, clients_per_unit=most)
  claim = dataclasses.asdict(_target(request))
  return accounting.calibrate(strategy, cohorts, **claim, clients_per_unit=most)
