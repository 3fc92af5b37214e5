"""Finds the strategy and the noise of a plan.

`find` searches for the strategy if the plan names a family or 'best', and
calibrates its noise to the claim of the plan.
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, Callable, Optional

import attrs

from tff_bandmf import accounting, choosing, errors, optimize, strategies

BEST = 'best'


@attrs.frozen(init=False)
class Mechanism:
  """A family of strategies and its parameters.

  Attributes:
    family: name of a family of `strategies.FAMILIES`.
    parameters: maps names of the family's parameters to values; parameters that
      are missing are optimised or swept.

  >>> Mechanism('banded', bands=64)
  Mechanism(family='banded', parameters={'bands': 64})
  """

  family: str
  parameters: Mapping[str, Any]

  def __init__(self, family: str, **parameters: Any):
    checked = strategies.families.get(family).checked(parameters)
    self.__attrs_init__(family, checked)


@attrs.frozen
class Found:
  """The result of the search for a plan.

  Attributes:
    guarantee: C and its noise; for a plan that simulates a larger run the
      guarantee of the larger run.
    runners_up: pairs (family, rmse) of other families that fit, least error
      first; the rmse is for a clip of 1.
    left_out: maps the name of a family that was not compared to the reason.
  """

  guarantee: accounting.Guarantee
  runners_up: Sequence[tuple[str, float]] = ()
  left_out: Mapping[str, str] = attrs.Factory(dict)


def find(plan: Any, progress: Callable[[str], None]) -> Found:
  """Returns the strategy and guarantee of a plan; this takes seconds.

  Args:
    plan: a `Plan`.
    progress: called after each step of the search, with the name of the family
      that was searched or the loss that was reached.
  """
  cohorts = accounting.expecting(plan.cohorts, plan.clients_per_round)
  families = _compared(plan, cohorts)
  if families == ():
    return Found(_calibrated(plan, _named(plan, progress), cohorts))
  # A plan without a claim gets any claim here: the ranking needs one.
  target = choosing.Target(
    1.0 if plan.epsilon is None else plan.epsilon,
    1e-6 if plan.delta is None else plan.delta,
    plan.coordinates,
  )
  ranking = choosing.choose(
    plan.rounds,
    cohorts,
    target,
    noise_copies=plan.memory_copies,
    objective=plan.objective,
    workload=plan.workload,
    families=families,
    progress=progress,
  )
  best, *others = ranking.choices
  return Found(
    _calibrated(plan, best.strategy, cohorts)
    if None in (plan.epsilon, plan.delta) or plan.clients_per_unit > 1
    else best.guarantee,
    tuple(
      (each.strategy.family, each.rmse * plan.clients_per_unit)
      for each in others
    ),
    ranking.left_out,
  )


def _compared(
  plan: Any, cohorts: accounting.Cohorts
) -> Optional[tuple[str, ...]]:
  """Returns the families to compare; None for all, () for no comparison."""
  mechanism = plan.mechanism
  if isinstance(mechanism, Mechanism) and not mechanism.parameters:
    mechanism = mechanism.family
  if mechanism == BEST:
    return None
  if (
    isinstance(mechanism, str)
    and not pathlib.Path(mechanism).suffix
    and accounting.bands_to_compare(cohorts, plan.rounds) is not None
  ):
    # The number of bands is compared: more bands have less error, but then more
    # groups amplify less.
    return (mechanism,)
  return ()


def _named(plan: Any, progress: Callable[[str], None]) -> strategies.Strategy:
  """Returns the strategy of a plan that compares no families."""
  mechanism = plan.mechanism
  if isinstance(mechanism, (str, os.PathLike)):
    if pathlib.Path(mechanism).suffix:
      if not os.path.isfile(mechanism):
        raise errors.value_error(
          'mechanism',
          mechanism,
          'is not a file',
          'write one with bandmf optimize --out FILE, or name a family',
        )
      mechanism = strategies.load(mechanism)[0]
    else:
      mechanism = Mechanism(os.fspath(mechanism))
  if isinstance(mechanism, Mechanism):
    return optimize.optimize(
      mechanism.family,
      plan.rounds,
      plan.cohorts.schema,
      plan.workload,
      plan.objective,
      callback=lambda loss: progress(f'loss {loss:.6g}'),
      **mechanism.parameters,
    ).strategy
  if mechanism.rounds != plan.rounds:
    raise errors.value_error(
      'mechanism',
      mechanism.family,
      f'is for {mechanism.rounds} rounds, not for rounds={plan.rounds}',
      'optimise it for the rounds of the plan',
    )
  return mechanism


def _calibrated(
  plan: Any, strategy: strategies.Strategy, cohorts: accounting.Cohorts
) -> accounting.Guarantee:
  """Returns the guarantee of a plan, or of the larger run that it simulates."""
  cohorts = accounting.completed(cohorts, strategy.bands)
  if plan.epsilon is None or plan.delta is None:
    return accounting.Guarantee(
      strategy,
      cohorts,
      float(plan.noise_multiplier or 0),
      dimension=plan.coordinates,
      clients_per_unit=plan.clients_per_unit,
    )
  return accounting.calibrate(
    strategy,
    cohorts,
    epsilon=plan.epsilon,
    delta=plan.delta,
    dimension=plan.coordinates,
    clients_per_unit=plan.clients_per_unit,
  )
