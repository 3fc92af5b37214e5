"""The mechanism of a plan: what was asked for, and what was found for it."""

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
    family: a name of `strategies.FAMILIES`.
    parameters: of the family; those that are not given are optimised or swept.

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
  """The guarantee of a plan, and what it was compared with.

  Attributes:
    guarantee: of the cohort that the plan stands for: C and its noise.
    runners_up: (family, rmse) of the others that fit, least error first.
    left_out: family to the reason why it was not compared.
  """

  guarantee: accounting.Guarantee
  runners_up: Sequence[tuple[str, float]] = ()
  left_out: Mapping[str, str] = attrs.Factory(dict)


def find(plan: Any, progress: Callable[[str], None]) -> Found:
  """Returns the mechanism of a `Plan` and its guarantee; this takes seconds.

  Args:
    plan: a `Plan`.
    progress: called with a family that was searched, or the loss reached.
  """
  cohorts = accounting.expecting(plan.cohorts, plan.clients_per_round)
  families = _compared(plan, cohorts)
  if families == ():
    return Found(_calibrated(plan, _named(plan, progress), cohorts))
  # Without a claim any serves: the order does not depend on it.
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
  """Returns the families to compare: None all, () none."""
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
    # As many bands as groups: more of both have less error and less chance.
    return (mechanism,)
  return ()


def _named(plan: Any, progress: Callable[[str], None]) -> strategies.Strategy:
  """Returns the strategy that is not searched for among families."""
  mechanism = plan.mechanism
  if isinstance(mechanism, (str, os.PathLike)):
    if pathlib.Path(mechanism).suffix:
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
  """Returns the guarantee of the cohort that the plan stands for."""
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
