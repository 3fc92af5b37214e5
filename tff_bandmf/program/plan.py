"""A plan: what a run will do, what it will guarantee and what that costs.

| symbol | name here           | meaning                                      |
|--------|---------------------|----------------------------------------------|
| n      | `rounds`            | rounds of the run                            |
| B      | `clients_per_round` | expected clients, what the mean divides by   |
| C      | `strategy`          | its noise is C^-1 Z                          |
| sigma  | `noise_multiplier`  | stddev(Z) over clip * sensitivity of C       |
|        | `z_stddev`          | stddev(Z): sigma * sensitivity * clip        |

What the user wrote and what was found for it are two things. A stored plan
keeps both: whoever goes on with a run is compared by what was written, and the
run goes on with the strategy that was found at first, digit for digit.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, Optional, Union

import attrs

from tff_bandmf import (
  _checks,
  _files,
  accounting,
  choosing,
  clips,
  errors,
  optimize,
  sensitivity,
  strategies,
  workloads,
)
from tff_bandmf import participation as participation_lib
from tff_bandmf.program import feasibility, trade_off

BEST = 'best'
FORMAT = 'tff_bandmf.plan'
VERSION = 2

# A claim beyond these protects nobody; training without one is
# noise_multiplier=0.
_MOST_EPSILON = 100.0
_MOST_DELTA = 1e-2
# Shares of min_sep that `Plan.what_if` looks at.
_SHARES = (0.9, 0.5)


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


def _cohorts(value: Any) -> accounting.Cohorts:
  if not hasattr(value, 'schema'):
    raise TypeError(
      errors.invalid(
        'cohorts',
        value,
        'must say who takes part',
        'use tff_bandmf.MinSep(min_sep)',
      )
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


def _epsilon(value: Any) -> Optional[float]:
  if value is None:
    return None
  positive = _checks.positive('epsilon', value, 'usual values are 1 to 10')
  return _checks.between(
    'epsilon', positive, 0, _MOST_EPSILON, 'noise_multiplier=0 claims nothing'
  )


def _delta(value: Any) -> Optional[float]:
  if value is None:
    return None
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
  epsilon: Optional[float] = attrs.field(default=None, converter=_epsilon)
  delta: Optional[float] = attrs.field(default=None, converter=_delta)
  noise_multiplier: Optional[float] = None
  mechanism: Union[str, os.PathLike, Mechanism, strategies.Strategy] = BEST
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
    for name, least in (
      ('largest_cohort', self.clients_per_round),
      ('stands_for', self.clients_per_round),
    ):
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
    self._check_schema()

  def _check_schema(self) -> None:
    """Raises ValueError for a separation that no run of n rounds can show."""
    min_sep = self.cohorts.schema.min_sep
    if min_sep is not None and min_sep > self.rounds:
      raise errors.value_error(
        'min_sep',
        min_sep,
        f'exceeds rounds={self.rounds}, so that clients take part once',
        'use tff_bandmf.Single()',
      )

  @functools.cached_property
  def found(self) -> Found:
    """What was found for the plan; the search takes seconds."""
    found = self._found()
    self._check_sizes(accounting.sampled(found.guarantee.cohorts))
    return found

  def _found(self) -> Found:
    cohorts = accounting.expecting(self.cohorts, self.clients_per_round)
    families = self._compared(cohorts)
    if families == ():
      return Found(self._calibrated(self._named(), cohorts))
    # Without a claim any serves: the order does not depend on it.
    target = choosing.Target(
      1.0 if self.epsilon is None else self.epsilon,
      1e-6 if self.delta is None else self.delta,
      self.coordinates,
    )
    ranking = choosing.choose(
      self.rounds,
      cohorts,
      target,
      noise_copies=self.memory_copies,
      objective=self.objective,
      workload=self.workload,
      families=families,
    )
    best, *others = ranking.choices
    return Found(
      self._calibrated(best.strategy, cohorts)
      if None in (self.epsilon, self.delta) or self.clients_per_unit > 1
      else best.guarantee,
      tuple(
        (each.strategy.family, each.rmse * self.clients_per_unit)
        for each in others
      ),
      ranking.left_out,
    )

  def _compared(self, cohorts: accounting.Cohorts) -> Optional[tuple[str, ...]]:
    """Returns the families to compare: None all, () none."""
    mechanism = self.mechanism
    if isinstance(mechanism, Mechanism) and not mechanism.parameters:
      mechanism = mechanism.family
    if mechanism == BEST:
      return None
    if (
      isinstance(mechanism, str)
      and not pathlib.Path(mechanism).suffix
      and accounting.bands_to_compare(cohorts, self.rounds) is not None
    ):
      # As many bands as groups: more of both have less error and less chance.
      return (mechanism,)
    return ()

  def _named(self) -> strategies.Strategy:
    """Returns the strategy that is not searched for among families."""
    mechanism = self.mechanism
    if isinstance(mechanism, (str, os.PathLike)):
      if pathlib.Path(mechanism).suffix:
        mechanism = strategies.load(mechanism)[0]
      else:
        mechanism = Mechanism(os.fspath(mechanism))
    if isinstance(mechanism, Mechanism):
      return optimize.optimize(
        mechanism.family,
        self.rounds,
        self.cohorts.schema,
        self.workload,
        self.objective,
        **mechanism.parameters,
      ).strategy
    if mechanism.rounds != self.rounds:
      raise errors.value_error(
        'mechanism',
        mechanism.family,
        f'is for {mechanism.rounds} rounds, not for rounds={self.rounds}',
        'optimise it for the rounds of the plan',
      )
    return mechanism

  def _calibrated(
    self, strategy: strategies.Strategy, cohorts: accounting.Cohorts
  ) -> accounting.Guarantee:
    """Returns the guarantee of the cohort that the plan stands for."""
    cohorts = accounting.completed(cohorts, strategy.bands)
    if self.epsilon is None or self.delta is None:
      return accounting.Guarantee(
        strategy,
        cohorts,
        float(self.noise_multiplier or 0),
        dimension=self.coordinates,
        clients_per_unit=self.clients_per_unit,
      )
    return accounting.calibrate(
      strategy,
      cohorts,
      epsilon=self.epsilon,
      delta=self.delta,
      dimension=self.coordinates,
      clients_per_unit=self.clients_per_unit,
    )

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
    return self._z_stddev_at_1 * math.sqrt(mean)

  @property
  def _z_stddev_at_1(self) -> float:
    """Standard deviation of Z where the clip of an update is 1."""
    return self.guarantee.z_stddev_per_clip * clips.growth(self.l2_norm_clip)

  def what_if(self) -> dict[str, Optional[float]]:
    """Returns epsilon at `delta` if cohorts turn out worse than planned.

    The noise stays. Keys say what is different: min_sep 10 % and 50 % less,
    and one participation more. An epsilon that is not proved is None. Empty
    where cohorts are sampled: another rule has no guarantee at all.
    """
    if self.delta is None or not self.guarantee.noise_multiplier:
      return {}
    return {
      text: proved_epsilon(self.guarantee.under(schema), self.delta)
      for text, schema in self._worse()
    }

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
    return proved_epsilon(found, self.delta)

  @functools.cached_property
  def _shorter(self) -> dict[int, accounting.Guarantee]:
    """Guarantees by participations, which take seconds."""
    return {}

  def _worse(self) -> list[tuple[str, participation_lib.Participation]]:
    """Returns schemas that are worse than the plan's, each with its words."""
    schema = self.cohorts.schema
    if accounting.sampled(self.cohorts):
      return []
    k = schema.participations(self.rounds)
    found: list[tuple[str, participation_lib.Participation]] = []
    if schema.min_sep is not None:
      shares = {math.floor(share * schema.min_sep) for share in _SHARES} - {0}
      most = schema.max_participations
      found += [
        (f'min_sep {least}', participation_lib.MinSep(least, most))
        for least in sorted(shares, reverse=True)
      ]
    if k < self.rounds:
      # The k + 1 rounds of one client have k gaps.
      least = min(schema.separation(self.rounds), (self.rounds - 1) // k)
      found.append(
        (f'{k + 1} participations', participation_lib.MinSep(least, k + 1))
      )
    return found

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
    if self.sampled is None and feasibility.never(
      'uniform', clients, self.clients_per_round, self.rounds, schema
    ):
      fitting = feasibility.largest(
        'uniform', clients, self.clients_per_round, self.rounds, schema
      )
      remedy = ', or '.join(
        f'{"clients_per_round" if name == "cohort_size" else name}={value}'
        for name, value in fitting.items()
      )
      raise errors.value_error(
        'clients',
        clients,
        f'cannot fill {self.rounds} rounds of {self.clients_per_round} where '
        f'cohorts are {_who(self)}',
        f'use {remedy}' if remedy else 'use more clients',
      )

  def request(self) -> dict[str, Any]:
    """Returns what the user wrote, as a JSON object."""
    mechanism: Any = self.mechanism
    if isinstance(mechanism, (str, os.PathLike)):
      mechanism = os.fspath(mechanism)
      if pathlib.Path(mechanism).suffix:
        mechanism = strategies.load(mechanism)[0]
    if isinstance(mechanism, Mechanism):
      mechanism = {'family': mechanism.family, **mechanism.parameters}
    elif isinstance(mechanism, strategies.Strategy):
      mechanism = {'digest': mechanism.digest()}
    return {
      **{
        field.name: getattr(self, field.name)
        for field in attrs.fields(type(self))
      },
      'cohorts': self.cohorts.to_dict(),
      'workload': self.workload.to_dict(),
      'mechanism': mechanism,
      'l2_norm_clip': clips.to_json(self.l2_norm_clip),
    }

  def to_dict(self) -> dict[str, Any]:
    """Returns the numbers of the plan under their JSON keys."""
    schema = self.cohorts.schema
    mean, largest = self.strategy.errors(self.workload)
    scale = self._z_stddev_at_1
    return {
      **self.guarantee.to_dict(),
      'mechanism': self.strategy.family,
      'parameters': self.strategy.parameters(),
      'buffers': self.strategy.buffers,
      'noise_copies': self.strategy.noise_copies,
      'clients_per_round': self.clients_per_round,
      'l2_norm_clip': self.request()['l2_norm_clip'],
      'min_sep': schema.min_sep,
      'max_participations': schema.participations(self.rounds),
      'mean_error': mean,
      'max_error': largest,
      'rmse': scale * math.sqrt(mean),
      'max_rmse': scale * math.sqrt(largest),
      'z_stddev': self.z_stddev,
      'rho': self.guarantee.rho,
      'epsilon': proved_epsilon(self.guarantee, self.delta),
      'delta': self.delta,
      'runners_up': [
        {'mechanism': family, 'rmse': rmse}
        for family, rmse in self.found.runners_up
      ],
      'left_out': dict(self.found.left_out),
      'what_if': self.what_if(),
      'epsilon_unamplified': proved_epsilon(self.unamplified, self.delta),
      'stands_for': self.stands_for,
    }

  def save(self, path: Union[str, os.PathLike]) -> None:
    """Writes the plan, complete or not at all.

    Raises:
      ValueError: there is such a file; a plan never changes under a run.
      OSError: it cannot be written.
    """
    path = pathlib.Path(path)
    if path.exists():
      raise errors.value_error(
        'plan', path, 'is there already', 'choose another name'
      )
    _files.write_json(
      path,
      {
        'format': FORMAT,
        'version': VERSION,
        'request': self.request(),
        'noise_multiplier': self.found.guarantee.noise_multiplier,
        'bound': self.bound,
        'strategy': strategies.to_document(self.strategy),
        'runners_up': self.found.runners_up,
        'left_out': dict(self.found.left_out),
      },
    )

  @property
  def bound(self) -> Optional[dict[str, Any]]:
    """Returns the claim and what it is made of; None where none is claimed."""
    if self.epsilon is None or self.delta is None:
      return None
    return dataclasses.asdict(self.found.guarantee.claim(self.delta))

  @classmethod
  def load(cls, path: Union[str, os.PathLike]) -> Plan:
    """Returns the plan of a file, with the strategy that it holds.

    Raises:
      ValueError: it is not a plan, or claims more than its noise gives.
      OSError: it cannot be read.
    """
    path = pathlib.Path(path)
    content = _files.read_json(path)
    if not isinstance(content, dict) or content.get('format') != FORMAT:
      raise errors.value_error(
        'plan', path, 'is not a plan', 'write one with bandmf plan --out FILE'
      )
    if content.get('version') != VERSION:
      raise errors.value_error(
        'version',
        content.get('version'),
        f'{path} must have version {VERSION}',
        'make the plan again with this release',
      )
    try:
      request = dict(content['request'])
      strategy = strategies.from_document(content['strategy'], path)
      written = request.pop('mechanism')
      plan = cls(
        **{
          **request,
          'cohorts': accounting.from_dict(request['cohorts']),
          'l2_norm_clip': clips.from_json(request['l2_norm_clip']),
          'workload': workloads.from_dict(request['workload']),
          'mechanism': _mechanism(written, strategy),
        }
      )
      cohorts = accounting.expecting(plan.cohorts, plan.clients_per_round)
      found = Found(
        accounting.Guarantee(
          strategy,
          accounting.completed(cohorts, strategy.bands),
          float(content['noise_multiplier']),
          dimension=plan.coordinates,
          clients_per_unit=plan.clients_per_unit,
        ),
        tuple((family, rmse) for family, rmse in content['runners_up']),
        content['left_out'],
      )
    except (KeyError, TypeError, AttributeError) as error:
      raise errors.value_error(
        'plan', path, 'is damaged', 'write it again with bandmf plan'
      ) from error
    plan.__dict__['found'] = found
    plan._check_found(path, content.get('bound'))
    return plan

  def _check_found(
    self, path: pathlib.Path, bound: Optional[dict[str, Any]]
  ) -> None:
    """Raises ValueError where the noise of a file does not give its claim."""
    # PRIVACY: a file that was edited claims nothing. Guards:
    # plan_test.test_plan_with_less_noise_than_its_claim_needs_is_refused and
    # test_sampled_plan_with_less_noise_is_refused.
    guarantee = self.found.guarantee
    holds = self.strategy.rounds == self.rounds
    if self.epsilon is None or self.delta is None:
      holds &= guarantee.noise_multiplier == self.noise_multiplier
    else:
      try:
        found = accounting.Bound(**(bound or {}))
        holds &= found.epsilon <= self.epsilon
        guarantee.confirm(found, self.delta)
      except (TypeError, ValueError):
        holds = False
    if not holds:
      raise errors.value_error(
        'plan',
        path,
        'its noise does not give what it claims',
        'it was changed: make the plan again',
      )

  def __str__(self) -> str:
    return '\n'.join(_lines(self))


def proved_epsilon(
  guarantee: Optional[accounting.Guarantee], delta: Optional[float]
) -> Optional[float]:
  """Returns epsilon at `delta`; None where none is claimed or proved."""
  if delta is None or guarantee is None or not guarantee.noise_multiplier:
    return None
  try:
    return guarantee.epsilon(delta)
  except accounting.Unproved:
    return None


def _mechanism(written: Any, strategy: strategies.Strategy) -> Any:
  """Returns the mechanism of a request, where `strategy` was found for it."""
  if isinstance(written, str):
    return written
  if 'digest' in written:
    if written['digest'] != strategy.digest():
      raise TypeError('another strategy')
    return strategy
  return Mechanism(**written)


def _lines(plan: Plan) -> list[str]:
  """Returns what `print(plan)` shows."""
  guarantee = plan.guarantee
  lines = [
    f'{plan.rounds} rounds of {plan.clients_per_round} clients{_most(plan)}, '
    f'{_who(plan)}',
    f'claim: {_claim(guarantee, plan.delta)}',
  ]
  if plan.simulated is not None:
    lines.append(
      f'stands for {plan.stands_for} clients a round, which would have: '
      f'{_claim(plan.simulated, plan.delta)}'
    )
  if plan.unamplified is not None:
    lines.append(
      'without amplification: '
      f'{_claim(plan.unamplified, plan.delta)}; sampling amplifies where the '
      'run draws cohorts in secret, and nobody else can tell who takes part'
    )
  exact = guarantee.sensitivity.method.replace('_', ' ')
  lines += [
    f'noise: z_stddev {rounded_up(plan.z_stddev)} = noise multiplier '
    f'{rounded_up(guarantee.noise_multiplier)} * sensitivity '
    f'{rounded_up(guarantee.sensitivity.value)} ({exact}) * clip'
    f'{_delta_words(plan)}',
    f'mechanism: {_mechanism_words(plan.strategy)}; its noise keeps '
    f'{plan.strategy.noise_copies} copies of the model',
  ]
  if isinstance(plan.l2_norm_clip, clips.AdaptiveClip):
    lines.append(f'clip: {_clip_words(plan, plan.l2_norm_clip)}')
  if guarantee.noise_multiplier:
    lines.append(f'error: {_errors(plan)}')
  if plan.found.runners_up:
    others = ', '.join(
      f'{family} {rounded_up(rmse)}' for family, rmse in plan.found.runners_up
    )
    lines.append(f'runners-up by rmse: {others}')
  lines += [
    f'left out: {family}: {reason}'
    for family, reason in plan.found.left_out.items()
  ]
  worse = '; '.join(
    f'{case}: {"not proved" if epsilon is None else rounded_up(epsilon)}'
    for case, epsilon in plan.what_if().items()
  )
  if worse:
    lines.append(f'epsilon if cohorts turn out otherwise: {worse}')
  return lines


def _most(plan: Plan) -> str:
  unknown = plan.sampled is not None and plan.sampled.population is None
  if unknown or plan.most_clients == plan.clients_per_round:
    return ''
  return f' (at most {plan.most_clients})'


def _who(plan: Plan) -> str:
  (_, kind), *values = plan.guarantee.cohorts.to_dict().items()
  text = ' '.join(
    [kind, *(f'{name}={value}' for name, value in values if value is not None)]
  )
  if plan.sampled is not None:
    return text
  k = plan.cohorts.schema.participations(plan.rounds)
  most = f'{text}: a client is in at most {k} round{"s" * (k > 1)}'
  if plan.clients_per_unit == 1:
    return most
  return (
    f'{most}, a unit of privacy has at most {plan.clients_per_unit} clients'
  )


def _claim(guarantee: accounting.Guarantee, delta: Optional[float]) -> str:
  if not guarantee.noise_multiplier:
    return 'none, there is no noise'
  rho = '' if guarantee.rho is None else f', rho {rounded_up(guarantee.rho)}'
  if delta is None:
    return f'{guarantee.cohorts.adjacency}{rho}; no delta was given'
  epsilon = proved_epsilon(guarantee, delta)
  if epsilon is None:
    return f'none: so little noise proves no epsilon at delta {delta:g}'
  return (
    f'({rounded_up(epsilon)}, {delta:g})-DP, {guarantee.cohorts.adjacency}{rho}'
  )


def _errors(plan: Plan) -> str:
  """Returns the error next to that of independent noise."""
  schema = plan.cohorts.schema
  identity = strategies.Identity(plan.rounds)
  mean, _ = identity.errors(plan.workload)
  # Where a schema is enforced, every C has the same noise multiplier.
  other = (
    plan.guarantee.noise_multiplier
    * plan.clients_per_unit
    * sensitivity.sensitivity(identity, schema).value
    * clips.growth(plan.l2_norm_clip)
    * math.sqrt(mean)
  )
  text = f'rmse {rounded_up(plan.rmse)} at clip 1'
  if plan.sampled is None:
    text += (
      f'; independent noise (DP-FedAvg) has {rounded_up(other)}, '
      f'{other / plan.rmse:.2f} times as much'
    )
  return text


def _delta_words(plan: Plan) -> str:
  growth = clips.growth(plan.l2_norm_clip)
  return f' * {rounded_up(growth)}, for the indicator' * (growth > 1)


def _clip_words(plan: Plan, adaptive: clips.AdaptiveClip) -> str:
  """Returns how the clip moves, and how well what moves it is known."""
  until = '' if adaptive.until is None else f' until round {adaptive.until}'
  noise = (
    plan._z_stddev_at_1
    * float(plan.strategy.recursion().row_norms.max())
    / (adaptive.fraction_weight * plan.clients_per_round)
  )
  return (
    f'begins at {clips.to_json(adaptive.initial)} and follows the '
    f'{adaptive.quantile:g}-quantile of the norms{until}; the noise of a '
    f"round's fraction has at most stddev {rounded_up(noise)}"
  )


def _mechanism_words(strategy: strategies.Strategy) -> str:
  size = (
    f'{strategy.buffers} buffers'
    if strategy.buffers
    else f'{strategy.inverse_bands or strategy.bands} bands'
  )
  return f'{strategy.family}, {size}'


def rounded_up(value: float) -> str:
  """Returns a number rounded up to four digits."""
  if not value or not math.isfinite(value):
    return f'{value:g}'
  unit = 10.0 ** (math.floor(math.log10(abs(value))) - 3)
  return f'{math.ceil(value / unit - 1e-9) * unit:.4g}'
