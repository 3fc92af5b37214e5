"""A plan: what a run does, what it guarantees and what that costs.

  plan = Plan(
    rounds=1000, clients_per_round=100, cohorts=participation.MinSep(50),
    epsilon=4.0, delta=1e-6, l2_norm_clip=0.5)
  print(plan)   # claim, noise, mechanism, error

| symbol | name here           | meaning                                      |
|--------|---------------------|----------------------------------------------|
| n      | `rounds`            | rounds of the run                            |
| B      | `clients_per_round` | expected clients a round, divisor of a mean  |
| C      | `strategy`          | matrix whose noise is C^-1 Z                 |
| sigma  | `noise_multiplier`  | stddev(Z) / (clip * sensitivity of C)        |
|        | `z_stddev`          | stddev(Z) = sigma * sensitivity * clip       |

The attributes of a `Plan` hold what the user asked for; `Plan.found` holds the
result of the search. The file of a plan has both, see `plan_json`.
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
from tff_bandmf.cohorts import feasibility
from tff_bandmf.plan import mechanism as mechanism_lib
from tff_bandmf.plan import plan_json, plan_text, trade_off, what_if

# A claim with more than these protects nobody and is refused. A plan without a
# claim has noise_multiplier=0.
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
  """The rounds, cohorts, clip and claim of a run, and the noise found for them.

  The strategy is searched for when it is first needed, which takes seconds. A
  plan that was loaded from a file has its strategy.

  Attributes:
    rounds: n, number of rounds of the run, integer >= 1.
    clients_per_round: B, expected number of clients in a round and divisor of
      the mean, integer >= 1.
    cohorts: rule by which clients take part. `MinSep`, `FixedEpoch` and
      `Single` are enforced; `CyclicPoisson`, `BallsInBins` and `BMinSep` are
      sampled and amplify.
    l2_norm_clip: largest norm of a client's clipped update, > 0; or a tuple
      with one clip a layer; or an `AdaptiveClip`, which follows the updates.
    epsilon: target epsilon of the whole run, in (0, 100]. Give epsilon and
      delta, or `noise_multiplier`.
    delta: target delta of the whole run, in (0, 0.01].
    noise_multiplier: sigma, >= 0; 0 adds no noise and claims nothing.
    mechanism: 'best', the best family that fits in `memory_copies`; or the name
      of a family, a `Mechanism`, a strategy, or the path of a strategy file or
      of a `.npy` file of C.
    memory_copies: copies of the model that the noise may keep in memory, >= 1;
      None is any number.
    largest_cohort: largest number of clients of a round; None is
      `clients_per_round` or, for sampled cohorts, a size that no cohort exceeds
      but with negligible probability, see `most_clients`.
    zeroing_norm: float > 0; updates of larger norm become zero. None zeroes no
      finite update.
    workload: linear map from released sums to models: prefix sums or momentum.
    objective: 'mean' or 'max' of the error over rounds, by which strategies are
      optimised and ranked.
    dimension: number of coordinates of the model, >= 1. None covers all models
      of runs with at most 2^33 values of noise that the proof counts.
    clients_per_unit: largest number of clients of one unit of privacy, such as
      the devices of a person; each of them keeps to `cohorts`.
    stands_for: number of clients a round of a larger run that this run
      simulates; `epsilon` and `delta` are then claims of the larger run.

  Raises:
    TypeError: a value has a wrong type.
    ValueError: a value is out of range, or values contradict each other.

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
    missing = [
      name for name in ('epsilon', 'delta') if getattr(self, name) is None
    ]
    if self.noise_multiplier is None and len(missing) == 1:
      raise errors.value_error(
        *(missing[0], None, 'a claim is an epsilon at a delta'),
        f'give {missing[0]}',
      )
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
    # PRIVACY: a larger cohort is drawn with a larger probability, so that its
    # claim would take credit for too much amplification. It is refused.
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
        'say that they do: cohorts=Single(), or --participation single',
      )

  @functools.cached_property
  def found(self) -> mechanism_lib.Found:
    """The strategy and guarantee found for the plan; takes seconds."""
    return self.search(lambda told: None)

  def search(self, progress: Callable[[str], None]) -> mechanism_lib.Found:
    """Returns `found`, and calls `progress` after each step of the search."""
    return self.accept(mechanism_lib.find(self, progress))

  def accept(self, found: mechanism_lib.Found) -> mechanism_lib.Found:
    """Makes a result of a search, or of a file, the plan's, and returns it.

    Raises:
      ValueError: sampled cohorts will not have the sizes of the plan.
    """
    # PRIVACY: a file that was edited could hold sizes that a new plan refuses.
    # Results from files pass the same check as results of a search.
    # Guard: plan_test.test_loaded_plan_is_checked_as_a_new_one.
    self._check_sizes(accounting.sampled(found.guarantee.cohorts))
    self.__dict__['found'] = found
    return found

  @property
  def strategy(self) -> strategies.Strategy:
    """The strategy C."""
    return self.found.guarantee.strategy

  @functools.cached_property
  def guarantee(self) -> accounting.Guarantee:
    """The guarantee of the run itself, not of a larger run it simulates."""
    found = self.found.guarantee
    if self.stands_for is None:
      return found
    # PRIVACY: a simulation adds less noise than the larger run, by the ratio of
    # their clients. Its own guarantee is computed for the smaller noise.
    # Guard:
    # plan_test.test_plan_that_simulates_claims_what_its_own_noise_gives.
    share = self.clients_per_round / self.stands_for
    return attrs.evolve(found, noise_multiplier=found.noise_multiplier * share)

  @property
  def simulated(self) -> Optional[accounting.Guarantee]:
    """The guarantee of the larger run that this run simulates, or None."""
    return None if self.stands_for is None else self.found.guarantee

  @functools.cached_property
  def sampled(self) -> Optional[accounting.Sampled]:
    """The cohorts that a run draws; None if a schema is enforced."""
    if accounting.sampled(self.cohorts) is None:
      return None
    return accounting.sampled(self.guarantee.cohorts)

  @functools.cached_property
  def unamplified(self) -> Optional[accounting.Guarantee]:
    """The guarantee without amplification; None if a schema is enforced."""
    if self.sampled is None:
      return None
    return self.guarantee.under(self.sampled.always)

  @functools.cached_property
  def most_clients(self) -> int:
    """The largest number of clients of a round, for which the lattice has room.

    A round with a larger sampled cohort is burnt: it releases nothing.

    Raises:
      ValueError: cohorts are sampled, and the population is unknown.
    """
    if self.largest_cohort is not None:
      return self.largest_cohort
    if self.sampled is None:
      return self.clients_per_round
    return self.sampled.largest_cohort(self.rounds)

  def _check_sizes(self, cohorts: Optional[accounting.Sampled]) -> None:
    """Raises ValueError if sampled cohorts will not have the plan's sizes."""
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
    # PRIVACY: a burnt round shows how many clients were drawn. A smaller
    # largest_cohort would burn rounds more often than delta accounts for.
    # Guard: plan_test.test_largest_cohort_that_sampling_exceeds_is_refused.
    if self.largest_cohort is not None and self.largest_cohort < least:
      raise errors.value_error(
        'largest_cohort',
        self.largest_cohort,
        f'must be at least {least}, which sampled cohorts seldom exceed',
        'leave it out',
      )

  @property
  def clip(self) -> float:
    """The largest norm of one client's contribution to a round.

    The norm is over all layers. For an adaptive clip it is the norm of an
    update with its indicator, in the first round.
    """
    return clips.norm(self.l2_norm_clip)

  @property
  def z_stddev(self) -> float:
    """The standard deviation of Z, in the unit of the updates.

    For an adaptive clip it is the value of the first round; it moves with the
    clip.
    """
    return self.guarantee.z_stddev_per_clip * self.clip

  @property
  def unit(self) -> str:
    """The protected unit, as a text begins with it."""
    return 'one client' if self.clients_per_unit == 1 else 'one unit of privacy'

  @property
  def coordinates(self) -> Optional[int]:
    """The number of coordinates with noise; None if `dimension` is None."""
    # PRIVACY: every coordinate with noise costs slack; the indicator of an
    # adaptive clip is one more. It is counted here.
    # Guard: plan_test.test_adaptive_clip_is_a_coordinate_of_the_claim.
    return self.dimension and (
      self.dimension + clips.indicators(self.l2_norm_clip)
    )

  @functools.cached_property
  def rmse(self) -> float:
    """The root mean square error of a run, for a clip of 1."""
    mean, _ = self.strategy.errors(self.workload)
    return self.z_stddev_at_1 * math.sqrt(mean)

  @property
  def z_stddev_at_1(self) -> float:
    """The standard deviation of Z if the clip of an update is 1."""
    return self.guarantee.z_stddev_per_clip * clips.growth(self.l2_norm_clip)

  def noise_to_signal(self, dimension: Optional[int]) -> Optional[float]:
    """Returns the ratio of the noise to the largest possible signal.

      z_stddev max_t |(A C^-1)[t]|_2 dimension^(1/2) / (n B clip)

    The numerator is the expected norm of the noise in the sum of released
    means, in its worst round; A makes prefix sums. The denominator is the norm
    of the sum without noise if all updates have one direction and the norm of
    the clip. Above 1 no optimiser gets a model out of the releases. Real
    updates have many directions and need a ratio far below 1.

    Args:
      dimension: number of coordinates of the model; None returns None.
    """
    if dimension is None:
      return None
    _, largest = self.strategy.errors()
    return (
      self.z_stddev_at_1
      * math.sqrt(largest * dimension)
      / (self.rounds * self.clients_per_round)
    )

  def what_if(self) -> dict[str, Optional[float]]:
    """Returns epsilon at `delta` if cohorts turn out worse than planned.

    The noise is the planned noise. Keys name the difference: a min_sep that is
    10 % or 50 % smaller, or one more participation. A value is None if no
    epsilon is proved. The result is empty for sampled cohorts, for which
    another rule has no guarantee at all.
    """
    return what_if.epsilons(self)

  def spent(self, rounds: int) -> Optional[float]:
    """Returns an upper bound of epsilon at `delta` of the first rounds.

    For sampled cohorts it is the epsilon of the whole run. None if the plan
    claims no epsilon.

    Args:
      rounds: number of rounds that are done, >= 0.
    """
    if not rounds:
      return 0.0
    schema, found = self.cohorts.schema, self.guarantee
    if self.sampled is None and schema.min_sep is not None:
      # PRIVACY: too few participations would understate the epsilon spent so
      # far. In t rounds a client has at most ceil(t / b) of them.
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
    """A cache of guarantees by number of participations; each takes seconds."""
    return {}

  def sweep(
    self,
    *,
    clients_per_round: Sequence[int] = (),
    epsilon: Sequence[float] = (),
    population: Optional[int] = None,
  ) -> trade_off.TradeOff:
    """Returns the noise and error of other cohort sizes and epsilons.

    Print the result for a table; it also has `to_dict` and `plot`.

    Args:
      clients_per_round: cohort sizes to compare; empty takes the plan's.
      epsilon: epsilons to compare; empty takes the plan's.
      population: number of clients to draw from, by which the result marks
        cohorts that cannot be filled; None marks none.

    Raises:
      ValueError: the plan has no delta, or a value is out of range.
    """
    return trade_off.of(
      self, tuple(clients_per_round), tuple(epsilon), population
    )

  def check_population(self, clients: int) -> None:
    """Raises ValueError if a population cannot fill every round.

    The check holds for every way to draw cohorts, see `feasibility`. It passes
    sampled cohorts, whose size may be small by chance.

    Args:
      clients: number of clients in the population.
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
        f'cohorts are {plan_text.who(self)}',
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
      'noise_to_signal': self.noise_to_signal(self.dimension),
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
    """Writes the plan to a file, completely or not at all.

    Raises:
      ValueError: the file exists; a plan never changes under a run.
      OSError: the file cannot be written.
    """
    plan_json.save(self, path)

  @classmethod
  def load(cls, path: Union[str, os.PathLike]) -> Plan:
    """Returns the plan of a file, with the strategy in the file.

    Raises:
      ValueError: the file is not a plan, or claims more than its noise gives.
      OSError: the file cannot be read.
    """
    return plan_json.load(cls, path)

  @property
  def bound(self) -> Optional[dict[str, Any]]:
    """The claim and its parts as a JSON object; None for a plan without one."""
    if self.epsilon is None or self.delta is None:
      return None
    return dataclasses.asdict(self.found.guarantee.claim(self.delta))

  def __str__(self) -> str:
    return plan_text.text(self)
