"""The families that fit in memory, ranked by their error at (epsilon, delta).

  rmse = noise_multiplier * sensitivity * sqrt(mean error)

and `max_rmse` likewise: the root mean square error that noise adds to a
coordinate of the model, in units of the clipping norm and the learning rate.
Families are optimised side by side, in threads.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import math
import os
import threading
from collections.abc import Iterable
from typing import Any, Callable, Optional

from tff_bandmf import accounting, errors, optimize, strategies, workloads


@dataclasses.dataclass(frozen=True)
class Target:
  """What is to be claimed of a whole run.

  Attributes:
    epsilon: positive.
    delta: in (0, 1).
    dimension: d of the model; None as in `accounting.Guarantee`.

  Raises:
    ValueError: a value out of range.
  """

  epsilon: float
  delta: float
  dimension: Optional[int] = None

  def __post_init__(self):
    accounting.gaussian_noise_multiplier(self.epsilon, self.delta)


@dataclasses.dataclass(frozen=True, eq=False)
class Choice:
  """A strategy, and what it costs.

  Attributes:
    guarantee: at (epsilon, delta).
    rmse: of the mean error, noise included.
    max_rmse: of the max error, noise included.
    converged: whether the optimiser of the strategy did.
  """

  guarantee: accounting.Guarantee
  rmse: float
  max_rmse: float
  converged: bool

  @property
  def strategy(self) -> strategies.Strategy:
    """Returns C."""
    return self.guarantee.strategy


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
  cohorts: accounting.Cohorts,
  target: Target,
  *,
  noise_copies: Optional[int] = None,
  objective: str = optimize.MEAN,
  workload: workloads.Workload = workloads.PREFIX,
  families: Optional[Iterable[str]] = None,
  progress: Callable[[str], None] = lambda family: None,
) -> Ranking:
  """Returns the families that fit, ranked, for the claim of a whole run.

  Each is optimised for what a client can do at worst, `cohorts.schema`. Under
  cyclic Poisson sampling it has as many bands as there are groups; without
  `groups` powers of two are compared: more bands have less error at the same
  noise and leave less to sample from [BandMF23, Sec 4 and Table 3].

  Args:
    rounds: n.
    cohorts: who takes part.
    target: epsilon and delta.
    noise_copies: model copies that the noise may keep; None is any number.
    objective: `MEAN` or `MAX`, what is minimised and ranked by.
    workload: A.
    families: to compare; None is all.
    progress: called with the name of every family that is done.

  Raises:
    TypeError: `cohorts` are of no kind.
    ValueError: a value out of range, or no family fits.

  >>> from tff_bandmf import participation
  >>> ranking = choose(
  ...     100, participation.MinSep(10), Target(1.0, 1e-6),
  ...     noise_copies=1, families=['identity', 'dp-cgd'])
  >>> [choice.strategy.family for choice in ranking.choices]
  ['dp-cgd', 'identity']
  """
  accounting.check(cohorts)
  declared = [
    strategies.families.get(family)
    for family in families or strategies.FAMILIES
  ]
  stopped = threading.Event()

  def stop(loss):
    # A search takes this for Ctrl-C, which only the main thread gets.
    if stopped.is_set():
      raise KeyboardInterrupt

  def optimized(family: strategies.Family) -> list[Choice]:
    choices = []
    for parameters in _parameters(family, rounds, cohorts, noise_copies):
      best = optimize.optimize(
        family.name,
        rounds,
        cohorts.schema,
        workload,
        objective,
        noise_copies=noise_copies,
        callback=stop,
        **parameters,
      )
      guarantee = accounting.calibrate(
        best.strategy,
        accounting.completed(cohorts, best.strategy.bands),
        epsilon=target.epsilon,
        delta=target.delta,
        dimension=target.dimension,
      )
      rmse, max_rmse = (
        guarantee.z_stddev_per_clip * math.sqrt(error)
        for error in best.strategy.errors(workload)
      )
      choices.append(Choice(guarantee, rmse, max_rmse, best.converged))
    return choices

  found: dict[str, list[Choice]] = {}
  reasons: dict[str, str] = {}
  threads = len(os.sched_getaffinity(0))
  with concurrent.futures.ThreadPoolExecutor(threads) as pool:
    # What is searched for in TensorFlow takes longest.
    running = {
      pool.submit(optimized, family): family.name
      for family in sorted(declared, key=lambda family: not family.optimizer)
    }
    try:
      for done in concurrent.futures.as_completed(running):
        name = running[done]
        try:
          found[name] = done.result()
        except (ImportError, ValueError) as error:
          reasons[name] = str(error)
        progress(name)
    except BaseException:
      stopped.set()
      pool.shutdown(cancel_futures=True)
      raise
  names = [family.name for family in declared]
  left_out = {name: reasons[name] for name in names if name in reasons}
  choices = [each for name in names for each in found.get(name, [])]
  if not choices:
    raise errors.value_error(
      'families',
      ', '.join(left_out),
      'none fits',
      next(iter(left_out.values()), 'name one').rstrip('.'),
    )
  key = 'rmse' if objective == optimize.MEAN else 'max_rmse'
  choices.sort(key=lambda choice: getattr(choice, key))
  return Ranking(tuple(choices), left_out)


def _parameters(
  family: strategies.Family,
  rounds: int,
  cohorts: accounting.Cohorts,
  noise_copies: Optional[int],
) -> list[dict[str, Any]]:
  """Returns the bands to compare.

  Raises:
    ValueError: few are needed, and the family has more.
  """
  bands = accounting.bands_to_compare(cohorts, rounds)
  if bands is None:
    return [{}]
  if not family.few_bands:
    raise errors.value_error(
      'family',
      family.name,
      'has no few bands, which cyclic Poisson needs',
      'compare it without amplification',
    )
  if not family.parameter('bands'):
    return [{}]
  most = rounds
  if noise_copies is not None:
    most = min(most, noise_copies + 1)
  if len(bands) == 1:
    return [{'bands': min(*bands, most)}]
  return [{'bands': each} for each in bands if each <= most]
