"""The families that fit in memory, ranked by their error at (epsilon, delta).

  rmse = noise_multiplier * sensitivity * sqrt(mean error)

and `max_rmse` likewise: the root mean square error that noise adds to a
coordinate of the model, in units of the clipping norm and the learning rate.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Any, Optional

from tff_bandmf import (
  accounting,
  errors,
  optimize,
  strategies,
  workloads,
)
from tff_bandmf import participation as participation_lib
from tff_bandmf import sensitivity as sensitivity_lib


@dataclasses.dataclass(frozen=True, eq=False)
class Choice:
  """A strategy, and what it costs.

  Attributes:
    strategy: C.
    noise_copies: model copies that its noise keeps from round to round.
    sensitivity: of C, clip = 1.
    noise_multiplier: sigma at (epsilon, delta), over clip * sensitivity.
    rmse: of the mean error, sigma included.
    max_rmse: of the max error, sigma included.
    converged: whether the optimiser of the strategy did.
    sampling_prob: q of a client in a round of its group; None if no
      amplification is claimed.
  """

  strategy: strategies.Strategy
  noise_copies: int
  sensitivity: sensitivity_lib.Sensitivity
  noise_multiplier: float
  rmse: float
  max_rmse: float
  converged: bool
  sampling_prob: Optional[float] = None


@dataclasses.dataclass(frozen=True, eq=False)
class Ranking:
  """Choices, least error first, and why other families are not among them.

  Attributes:
    choices: at least one.
    left_out: family to reason.
  """

  choices: tuple[Choice, ...]
  left_out: dict[str, str]


def choose(
  rounds: int,
  participation: participation_lib.Participation,
  epsilon: float,
  delta: float,
  noise_copies: Optional[int] = None,
  objective: str = optimize.MEAN,
  workload: workloads.Workload = workloads.PREFIX,
  families: Optional[Iterable[str]] = None,
) -> Ranking:
  """Returns the families that fit, ranked, for the claim of a whole run.

  Args:
    rounds: n.
    participation: the schema that will be enforced.
    epsilon: positive.
    delta: in (0, 1).
    noise_copies: model copies that the noise may keep; None is any number.
    objective: `MEAN` or `MAX`, what is minimised and ranked by.
    workload: A.
    families: to compare; None is all.

  Raises:
    ValueError: a value out of range, or no family fits.

  >>> ranking = choose(
  ...     100, participation_lib.MinSep(10), 1.0, 1e-6, noise_copies=1,
  ...     families=['identity', 'dp-cgd'])
  >>> [choice.strategy.family for choice in ranking.choices]
  ['dp-cgd', 'identity']
  """
  # Checks what is given before a search.
  accounting.gaussian_noise_multiplier(epsilon, delta)
  choices, left_out = [], {}
  for family in families or strategies.FAMILIES:
    try:
      found = optimize.optimize(
        family,
        rounds,
        participation,
        workload,
        objective,
        noise_copies=noise_copies,
      )
      guarantee = accounting.calibrate(
        found.strategy, participation, epsilon=epsilon, delta=delta
      )
    except ValueError as error:
      left_out[family] = str(error)
      continue
    choices.append(
      _choice(found, participation, workload, guarantee.noise_multiplier)
    )
  return _ranked(choices, left_out, objective)


def choose_cyclic_poisson(
  rounds: int,
  max_participations: int,
  epsilon: float,
  delta: float,
  noise_copies: Optional[int] = None,
  objective: str = optimize.MEAN,
  workload: workloads.Workload = workloads.PREFIX,
  families: Optional[Iterable[str]] = None,
) -> Ranking:
  """Returns families and bands, ranked, under cyclic Poisson sampling.

  The bands are powers of two; with b of them a client is in one of b groups
  and is sampled with probability q = b * k / n in every b-th round, so that it
  is expected in k rounds whatever b. More bands have less error at the same
  sigma and leave less to sample from. [BandMF23, Sec 4 and Table 3]

  Args:
    rounds: n.
    max_participations: k, the rounds that a client is expected in (epochs).
    families: to compare; None is all. Those without few bands are left out.
    others: as for `choose`.

  Raises:
    ValueError: a value out of range, or no family fits.
  """
  if max_participations > rounds:
    raise ValueError(
      errors.invalid(
        'max_participations',
        max_participations,
        f'must not exceed rounds={rounds}',
        'use fewer epochs',
      )
    )
  participation = participation_lib.Single()
  choices, left_out = [], {}
  for family in families or strategies.FAMILIES:
    if not strategies.families.get(family).few_bands:
      left_out[family] = errors.invalid(
        'family',
        family,
        'has no few bands, which cyclic Poisson needs',
        'compare it without amplification',
      )
      continue
    try:
      found = [
        optimize.optimize(
          family, rounds, participation, workload, objective, **bands
        )
        for bands in _bands(family, rounds // max_participations, noise_copies)
      ]
    except ValueError as error:
      left_out[family] = str(error)
      continue
    for each in found:
      cohorts = accounting.CyclicPoisson.of_population(
        rounds, max_participations, each.strategy.bands
      )
      guarantee = accounting.calibrate(
        each.strategy, cohorts, epsilon=epsilon, delta=delta
      )
      choices.append(
        dataclasses.replace(
          _choice(each, participation, workload, guarantee.noise_multiplier),
          sampling_prob=cohorts.sampling_prob,
        )
      )
  return _ranked(choices, left_out, objective)


def _bands(
  family: str, most: int, noise_copies: Optional[int]
) -> list[dict[str, Any]]:
  """Returns 1, 2, 4, ... bands; everyone together is `most` cohorts."""
  if not strategies.families.get(family).parameter('bands'):
    return [{}]
  if noise_copies is not None:
    most = min(most, noise_copies + 1)
  return [{'bands': 1 << i} for i in range(most.bit_length())]


def _choice(
  found: optimize.Optimized,
  participation: participation_lib.Participation,
  workload: workloads.Workload,
  sigma: float,
) -> Choice:
  """Returns the choice of an optimised strategy at a noise multiplier."""
  strategy = found.strategy
  mean, largest = strategy.errors(workload)
  sensitivity = sensitivity_lib.sensitivity(strategy, participation)
  scale = sigma * sensitivity.value
  return Choice(
    strategy,
    strategy.noise_copies,
    sensitivity,
    sigma,
    scale * math.sqrt(mean),
    scale * math.sqrt(largest),
    found.converged,
  )


def _ranked(
  choices: Sequence[Choice], left_out: dict[str, str], objective: str
) -> Ranking:
  """Returns the ranking by what is minimised.

  Raises:
    ValueError: there is nothing to rank.
  """
  if not choices:
    raise ValueError(
      errors.invalid(
        'families',
        ', '.join(left_out),
        'none fits',
        next(iter(left_out.values()), 'name one').rstrip('.'),
      )
    )
  key = 'rmse' if objective == optimize.MEAN else 'max_rmse'
  return Ranking(
    tuple(sorted(choices, key=lambda choice: getattr(choice, key))), left_out
  )
