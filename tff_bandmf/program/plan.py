"""A plan: what a run will do, what it will guarantee and what that costs.

| symbol | name here           | meaning                                      |
|--------|---------------------|----------------------------------------------|
| n      | `rounds`            | rounds of the run                            |
| B      | `clients_per_round` | expected clients, what the mean divides by   |
| C      | `strategy`          | its noise is C^-1 Z                          |
| sigma  | `noise_multiplier`  | stddev(Z) over clip * sensitivity of C       |
|        | `z_stddev`          | stddev(Z): sigma * sensitivity * clip        |

What the user wrote and what was found for it are two things; `plan_file` stores
both.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import os
from collections.abc import Sequence
from typing import Any, Callable, Optional, Union

import attrs

from tff_bandmf import _checks, accounting, clips, errors, strategies, workloads
from tff_bandmf import participation as participation_lib
from tff_bandmf.program import (
  feasibility,
  plan_file,
  plan_words,
  trade_off,
  what_if,
)
from tff_bandmf.program import mechanism as mechanism_lib

# A claim beyond these protects nobody; training without one is
# noise_multiplier=0.
_MOST_EPSILON = 100.0
_MOST_DELTA = 1e-2


def _cohorts(value: Any) -> accounting.Cohorts:
  if not hasattr(value, 'schema'):
    raise errors.type_error(
      'cohorts',
      value,
      'must say who takes part',
      'use tff_bandmf.MinSep(min_sep)',
    )
  return value


def _clips(value: Any) -> Any:
  if isinstance(value, clips.AdaptiveClip):
    _clips(value.initial)
    return value
  if isinstance(value, (tuple, list)):
    return tuple(
      _checks.positive('l2_norm_clip', clip, 'one clip a layer')
      for clip in value
    )
  return _checks.positive(
    'l2_norm_clip', value, 'the largest norm of a clipped update'
  )


def _epsilon(value: Any) -> float:
  positive = _checks.positive('epsilon', value, 'usual values are 1 to 10')
  return _checks.between(
    'epsilon', positive, 0, _MOST_EPSILON, 'noise_multiplier=0 claims nothing'
  )


def _delta(value: Any) -> float:
  remedy = 'take one far below one over the population'
  positive = _checks.positive('delta', value, remedy)
  return _checks.between('delta', positive, 0, _MOST_DELTA, remedy)


@attrs.frozen(kw_only=True, slots=False, eq=False)
class Plan:
  """What a run will do, for whom it holds and what it costs.

  The strategy is searched for when it is first needed, which takes seconds; a
  plan that was loaded has it.

  Attributes:
    rounds: n.
    clients_per_round: B; the mean of a round divides by it.
    cohorts: who takes part: `MinSep`, `FixedEpoch` and `Single` are enforced,
      `CyclicPoisson`, `BallsInBins` and `BMinSep` are sampled and amplify.
    l2_norm_clip: largest norm of a client's clipped update, or one a layer; or
      an `AdaptiveClip`, which follows the updates.
    epsilon: of the whole run; with `delta`, in place of `noise_multiplier`.
    delta: of the whole run.
    noise_multiplier: sigma; 0 adds no noise and claims nothing.
    mechanism: 'best' of the families that fit in `memory_copies`, the name of
      a family, a `Mechanism`, a strategy, or the path of a strategy file or of
      a `.npy` file of C.
    memory_copies: model copies that the noise may keep; None is any number.
    largest_cohort: most clients of a round; by default `clients_per_round` or,
      where cohorts are sampled, what none exceeds, see `most_clients`.
    zeroing_norm: updates beyond it contribute zero; None keeps them.
    workload: what is made of the noised sums: prefix sums, or momentum.
    objective: 'mean' or 'max' over the errors of the rounds, to rank by.
    dimension: d of the model; None for all whose runs have at most 2^33
      values that are compared.
    clients_per_unit: clients that a unit of privacy has at most, such as the
      devices of a person; each keeps to `cohorts`.
    stands_for: clients a round of a larger run that this one simulates;
      `epsilon` and `delta` are then those of the larger run.

  Raises:
    TypeError: a value of another type.
    ValueError: a value out of range, or values that do not go together.

  >>> from tff_bandmf import participation
  >>> plan = Plan(
  ...     rounds=100, clients_per_round=50, cohorts=participation.MinSep(20),
  ...     epsilon=4.0, delta=1e-6, l2_norm_clip=0.5, mechanism='banded-sqrt')
  >>> plan.strategy.bands, round(plan.z_stddev, 3)
  (20, 1.895)
  """

  rounds: int = attrs.field(
    converter=lambda value: _checks.count('rounds', value, 'rounds of the run')
  )
  clients_per_round: int = attrs.field(
    converter=lambda value: _checks.count(
      'clients_per_round', value, 'the expected number of clients'
    )
  )
  cohorts: accounting.Cohorts = attrs.field(converter=_cohorts)
  l2_norm_clip: Union[float, tuple[float, ...], clips.AdaptiveClip] = (
    attrs.field(converter=_clips)
  )
  epsilon: Optional[float] = attrs.field(
    default=None, converter=attrs.converters.optional(_epsilon)
  )
  delta: Optional[float] = attrs.field(
    default=None, converter=attrs.converters.optional(_delta)
  )
  noise_multiplier: Optional[float] = None
  mechanism: Union[
    str, os.PathLike, mechanism_lib.Mechanism, strategies.Strategy
  ] = mechanism_lib.BEST
  memory_copies: Optional[int] = 8
  largest_cohort: Optional[int] = None
  zeroing_norm: Optional[float] = None
  workload: workloads.Workload = workloads.PREFIX
  objective: str = 'mean'
  dimension: Optional[int] = None
  clients_per_unit: int = 1
  stands_for: Optional[int] = None

  def __attrs_post_init__(self):
    claimed = self.epsilon is not None and self.delta is not None
    if claimed == (self.noise_multiplier is not None):
      raise errors.value_error(
        'noise_multiplier',
        self.noise_multiplier,
        'is given in place of epsilon and delta',
        'give epsilon and delta, or noise_multiplier (0 claims nothing)',
      )
    least = self.clients_per_round
    for name in ('largest_cohort', 'stands_for'):
      value = getattr(self, name)
      if value is not None and _checks.count(name, value, 'clients') < least:
        raise errors.value_error(
          name,
          value,
          f'must be at least clients_per_round={least}',
          'leave it out',
        )
    # PRIVACY: q is that of these clients, and of a larger cohort another one.
    # Guard: plan_test.test_values_that_do_not_go_together_are_refused.
    if self.stands_for is not None and accounting.sampled(self.cohorts):
      raise errors.value_error(
        'stands_for',
        self.stands_for,
        'a larger cohort is drawn with another probability, and amplifies less',
        'leave it out, or enforce a schema: MinSep',
      )
    min_sep = self.cohorts.schema.min_sep
    if min_sep is not None and min_sep > self.rounds:
      raise errors.value_error(
        'min_sep',
        min_sep,
        f'exceeds rounds={self.rounds}, so that clients take part once',
        'use tff_bandmf.Single()',
      )

  @functools.cached_property
  def found(self) -> mechanism_lib.Found:
    """What was found for the plan; the search takes seconds."""
    return self.search(lambda told: None)

  def search(self, progress: Callable[[str], None]) -> mechanism_lib.Found:
    """Returns `found`, and tells a function of every step of the search."""
    found = mechanism_lib.find(self, progress)
    self._check_sizes(accounting.sampled(found.guarantee.cohorts))
    self.__dict__['found'] = found
    return found

  @property
  def strategy(self) -> strategies.Strategy:
    """Returns C."""
    return self.found.guarantee.strategy

  @functools.cached_property
  def guarantee(self) -> accounting.Guarantee:
    """Returns the guarantee of the run itself."""
    found = self.found.guarantee
    if self.stands_for is None:
      return found
    # PRIVACY: the noise that is added is that of fewer clients. Guard:
    # plan_test.test_plan_that_simulates_claims_what_its_own_noise_gives.
    share = self.clients_per_round / self.stands_for
    return attrs.evolve(found, noise_multiplier=found.noise_multiplier * share)

  @property
  def simulated(self) -> Optional[accounting.Guarantee]:
    """Returns the guarantee of the larger run that this one stands for."""
    return None if self.stands_for is None else self.found.guarantee

  @functools.cached_property
  def sampled(self) -> Optional[accounting.Sampled]:
    """Returns the cohorts that a run draws; None where they are enforced."""
    if accounting.sampled(self.cohorts) is None:
      return None
    return accounting.sampled(self.guarantee.cohorts)

  @functools.cached_property
  def unamplified(self) -> Optional[accounting.Guarantee]:
    """Returns what holds without chance; None where cohorts are enforced."""
    if self.sampled is None:
      return None
    return self.guarantee.under(self.sampled.always)

  @functools.cached_property
  def most_clients(self) -> int:
    """Returns the most clients of a round, which the lattice has room for.

    A larger cohort that was drawn burns its round.

    Raises:
      ValueError: cohorts are sampled, and the population is not known.
    """
    if self.largest_cohort is not None:
      return self.largest_cohort
    if self.sampled is None:
      return self.clients_per_round
    return self.sampled.largest_cohort(self.rounds)

  def _check_sizes(self, cohorts: Optional[accounting.Sampled]) -> None:
    """Raises ValueError for sizes that sampled cohorts will not have."""
    if cohorts is None or cohorts.population is None:
      return
    expected = cohorts.expected_cohort(self.rounds)
    if abs(expected - self.clients_per_round) > 1:
      raise errors.value_error(
        'clients_per_round',
        self.clients_per_round,
        f'is what the mean divides by, and cohorts have {expected:g} '
        'clients on average',
        f'use clients_per_round={round(expected)}',
      )
    least = cohorts.largest_cohort(self.rounds)
    # PRIVACY: smaller ones burn rounds more often than delta counts. Guard:
    # plan_test.test_largest_cohort_that_sampling_exceeds_is_refused.
    if self.largest_cohort is not None and self.largest_cohort < least:
      raise errors.value_error(
        'largest_cohort',
        self.largest_cohort,
        f'must be at least {least}, which sampled cohorts seldom exceed',
        'leave it out',
      )

  @property
  def clip(self) -> float:
    """Returns the largest norm of what a client contributes.

    That of a clipped update, all layers together; of an adaptive clip that of a
    record with its indicator, in the first round.
    """
    return clips.norm(self.l2_norm_clip)

  @property
  def z_stddev(self) -> float:
    """Returns the standard deviation of Z, the clip included.

    If the clip adapts, it is that of the first round, and moves with the clip.
    """
    return self.guarantee.z_stddev_per_clip * self.clip

  @property
  def unit(self) -> str:
    """Returns whom the run protects, in its first words."""
    return 'one client' if self.clients_per_unit == 1 else 'one unit of privacy'

  @property
  def coordinates(self) -> Optional[int]:
    """Returns how many numbers get noise, where `dimension` says it."""
    # PRIVACY: the arithmetic of each costs slack. Guard:
    # plan_test.test_adaptive_clip_is_a_coordinate_of_the_claim.
    return self.dimension and (
      self.dimension + clips.indicators(self.l2_norm_clip)
    )

  @functools.cached_property
  def rmse(self) -> float:
    """Returns the root mean square error for clip = 1, noise included."""
    mean, _ = self.strategy.errors(self.workload)
    return self.z_stddev_at_1 * math.sqrt(mean)

  @property
  def z_stddev_at_1(self) -> float:
    """Standard deviation of Z where the clip of an update is 1."""
    return self.guarantee.z_stddev_per_clip * clips.growth(self.l2_norm_clip)

  def what_if(self) -> dict[str, Optional[float]]:
    """Returns epsilon at `delta` if cohorts turn out worse than planned.

    The noise stays. Keys say what is different: min_sep 10 % and 50 % less,
    and one participation more. An epsilon that is not proved is None. Empty
    where cohorts are sampled: another rule has no guarantee at all.
    """
    return what_if.epsilons(self)

  def spent(self, rounds: int) -> Optional[float]:
    """Returns a bound of epsilon at `delta` of the first rounds alone.

    None where none is claimed; of sampled cohorts that of the whole run.
    """
    if not rounds:
      return 0.0
    schema, found = self.cohorts.schema, self.guarantee
    if self.sampled is None and schema.min_sep is not None:
      # PRIVACY: in t rounds a client has ceil(t / b) participations at most.
      # Guard: plan_test.test_spent_is_at_least_that_of_a_run_so_short.
      most = schema.participations(min(rounds, self.rounds))
      if most < schema.participations(self.rounds):
        if most not in self._shorter:
          self._shorter[most] = found.under(
            participation_lib.MinSep(schema.min_sep, most)
          )
        found = self._shorter[most]
    return found.proved_epsilon(self.delta)

  @functools.cached_property
  def _shorter(self) -> dict[int, accounting.Guarantee]:
    """Guarantees by participations, which take seconds."""
    return {}

  def sweep(
    self,
    *,
    clients_per_round: Sequence[int] = (),
    epsilon: Sequence[float] = (),
    population: Optional[int] = None,
  ) -> trade_off.TradeOff:
    """Returns what other cohorts and other epsilons would cost.

    Print it for a table; `to_dict` is for programs and `plot` for eyes.

    Args:
      clients_per_round: to compare; empty for that of the plan.
      epsilon: to compare; empty for that of the plan.
      population: clients to draw from, which may be too few for a cohort.

    Raises:
      ValueError: the plan states no delta, or a value is out of range.
    """
    return trade_off.of(
      self, tuple(clients_per_round), tuple(epsilon), population
    )

  def check_population(self, clients: int) -> None:
    """Raises ValueError if so many clients cannot fill every round.

    However cohorts are drawn: see `feasibility`. Sampled cohorts may be small.
    """
    schema = self.cohorts.schema
    wanted = feasibility.Wanted(
      'uniform', clients, self.clients_per_round, self.rounds, schema
    )
    if self.sampled is None and wanted.never():
      remedy = ', or '.join(
        f'{"clients_per_round" if name == "cohort_size" else name}={value}'
        for name, value in wanted.largest().items()
      )
      raise errors.value_error(
        'clients',
        clients,
        f'cannot fill {self.rounds} rounds of {self.clients_per_round} where '
        f'cohorts are {plan_words.who(self)}',
        f'use {remedy}' if remedy else 'use more clients',
      )

  def to_dict(self) -> dict[str, Any]:
    """Returns the numbers of the plan under their JSON keys."""
    schema = self.cohorts.schema
    mean, largest = self.strategy.errors(self.workload)
    scale = self.z_stddev_at_1
    return {
      **self.guarantee.to_dict(),
      'mechanism': self.strategy.family,
      'parameters': self.strategy.parameters(),
      'buffers': self.strategy.buffers,
      'noise_copies': self.strategy.noise_copies,
      'clients_per_round': self.clients_per_round,
      'l2_norm_clip': clips.to_json(self.l2_norm_clip),
      'min_sep': schema.min_sep,
      'max_participations': schema.participations(self.rounds),
      'mean_error': mean,
      'max_error': largest,
      'rmse': scale * math.sqrt(mean),
      'max_rmse': scale * math.sqrt(largest),
      'z_stddev': self.z_stddev,
      'rho': self.guarantee.rho,
      'epsilon': self.guarantee.proved_epsilon(self.delta),
      'delta': self.delta,
      'runners_up': [
        {'mechanism': family, 'rmse': rmse}
        for family, rmse in self.found.runners_up
      ],
      'left_out': dict(self.found.left_out),
      'what_if': self.what_if(),
      'epsilon_unamplified': self.unamplified
      and self.unamplified.proved_epsilon(self.delta),
      'stands_for': self.stands_for,
    }

  def save(self, path: Union[str, os.PathLike]) -> None:
    """Writes the plan, complete or not at all.

    Raises:
      ValueError: there is such a file; a plan never changes under a run.
      OSError: it cannot be written.
    """
    plan_file.save(self, path)

  @classmethod
  def load(cls, path: Union[str, os.PathLike]) -> Plan:
    """Returns the plan of a file, with the strategy that it holds.

    Raises:
      ValueError: it is not a plan, or claims more than its noise gives.
      OSError: it cannot be read.
    """
    return plan_file.load(cls, path)

  @property
  def bound(self) -> Optional[dict[str, Any]]:
    """Returns the claim and what it is made of; None where none is claimed."""
    if self.epsilon is None or self.delta is None:
      return None
    return dataclasses.asdict(self.found.guarantee.claim(self.delta))

  def __str__(self) -> str:
    return plan_words.text(self)
