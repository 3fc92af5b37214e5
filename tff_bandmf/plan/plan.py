"""The plan of a run: its strategy, its noise, its guarantee and its error.

  plan = Plan(
    rounds=1000, clients_per_round=100, cohorts=participation.MinSep(50),
    epsilon=4.0, delta=1e-6, l2_norm_clip=0.5)
  print(plan)   # claim, noise, mechanism, error

| symbol | name here           | meaning                                      |
|--------|---------------------|----------------------------------------------|
| n      | `rounds`            | rounds of the run                            |
| B      | `clients_per_round` | expected number of clients in a round; the   |
|        |                     | sum of a round is divided by it to get the   |
|        |                     | mean                                         |
| C      | `strategy`          | matrix whose noise is C^-1 Z                 |
| sigma  | `noise_multiplier`  | stddev(Z) / (clip * sensitivity of C)        |
|        | `z_stddev`          | stddev(Z) = sigma * sensitivity * clip       |

A `Plan` is a `Request`, which has the user's values. It gets a `Result` from a
search or from a file. The file of a plan has the request and the result, see
`plan_json`.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Optional, Union

import attrs

from tff_bandmf import (
  _checks,
  _files,
  accounting,
  clipping_norm,
  errors,
  sensitivity,
  strategies,
)
from tff_bandmf import participation as participation_lib
from tff_bandmf.participation import feasibility
from tff_bandmf.plan import plan_json, plan_toml, trade_off
from tff_bandmf.plan import request as request_lib
from tff_bandmf.plan import search as search_lib

if TYPE_CHECKING:
  from matplotlib.figure import Figure

# Ratio of noise to signal above which a plan warns. All runs of
# docs/reference/comparison.md and docs/reference/people.md learned, with ratios
# up to 2.1. With 6 clients, 200,000 coordinates and a ratio of 8, a loss grew
# from 4 to 219.
_DROWNED = 3.0
# Fractions of the planned min_sep for which epsilon is computed.
_SHARES = (0.9, 0.5)


@attrs.frozen(kw_only=True, slots=False, eq=False)
class Plan(request_lib.Request):
  """The rounds, cohorts, clip and claim of a run, and the noise for them.

  The first access to the strategy or the noise starts a search, which takes
  seconds or minutes. A plan that was loaded from a file has its strategy, and
  does not search.

  Attributes:
    The attributes of `Request`, which are keyword arguments.

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

  # `attrs.evolve` does not copy this field, since a plan with other values
  # needs other noise.
  _result: Optional[search_lib.Result] = attrs.field(
    default=None, init=False, repr=False
  )

  @property
  def result(self) -> search_lib.Result:
    """The strategy and noise of the plan; the first access may take minutes."""
    return self._result or self.search(lambda step: None)

  def search(self, progress: Callable[[str], None]) -> search_lib.Result:
    """Returns `result`, and calls `progress` after each step of a search.

    Raises:
      ValueError: no strategy or noise meets the request; or `largest_cohort` or
        `clients_per_round` does not fit the sampled cohorts.
    """
    if self._result is None:
      # The class is frozen, so only `object.__setattr__` can set the field.
      object.__setattr__(self, '_result', search_lib.search(self, progress))
    return self.result

  @property
  def strategy(self) -> strategies.Strategy:
    """The strategy matrix C of the run."""
    return self.result.guarantee.strategy

  @property
  def planned_strategy(self) -> strategies.Strategy:
    """The strategy matrix C for the planned rounds; errors are for this C.

    A run with a `Budget` may be extended up to `horizon` rounds. Then
    `strategy` is C for `horizon` rounds.
    """
    if isinstance(self.cohorts, participation_lib.Budget):
      return self.strategy.of_rounds(self.rounds)
    return self.strategy

  @property
  def schema(self) -> participation_lib.Participation:
    """The schema that bounds the rounds of each client.

    The `Budget` in `cohorts` lacks the costs of rounds under C. So a `Budget`
    comes from the result, which has them.
    """
    if isinstance(self.cohorts, participation_lib.Budget):
      return self.result.guarantee.cohorts.schema
    return self.cohorts.schema

  @functools.cached_property
  def guarantee(self) -> accounting.Guarantee:
    """The guarantee of this run, not of a larger run that it simulates."""
    planned = self.result.guarantee
    if self.stands_for is None:
      return planned
    # PRIVACY: This run has fewer clients than the larger run that it simulates,
    # and its sums have less noise by the same ratio. The epsilon of the larger
    # run would be too small. The noise multiplier is reduced by the ratio.
    # Guard: plan_test.test_plan_that_simulates_claims_what_its_own_noise_gives.
    share = self.clients_per_round / self.stands_for
    return attrs.evolve(
      planned, noise_multiplier=planned.noise_multiplier * share
    )

  @property
  def simulated(self) -> Optional[accounting.Guarantee]:
    """The guarantee of the larger run that this run simulates, or None."""
    return None if self.stands_for is None else self.result.guarantee

  @functools.cached_property
  def sampled(self) -> Optional[accounting.Sampled]:
    """The kind of sampled cohorts; None if a schema is enforced."""
    if self.cohorts.is_enforced:
      return None
    return accounting.sampled(self.guarantee.cohorts)

  @functools.cached_property
  def unamplified(self) -> Optional[accounting.Guarantee]:
    """The guarantee without amplification; None if a schema is enforced."""
    if self.sampled is None:
      return None
    return self.guarantee.for_cohorts(self.sampled.worst_case_schema)

  @functools.cached_property
  def most_clients(self) -> int:
    """The largest number of clients of a round.

    The lattice of the noise has room for the sum of this many clients. A round
    with a larger sampled cohort is burnt: it releases nothing.

    Raises:
      ValueError: cohorts are sampled, the population is unknown, and
        `largest_cohort` is None.
    """
    if self.largest_cohort is not None:
      return self.largest_cohort
    if self.sampled is None:
      return self.clients_per_round
    return self.sampled.largest_cohort(self.rounds)

  @property
  def copies(self) -> int:
    """The number of model-sized vectors that the noise generator keeps, >= 0.

    The noise generator keeps at most `memory_copies` vectors. If C^-1 has few
    bands and the limit is smaller than the number of past normals that a round
    needs, the generator keeps no past normals. It draws them again in each
    round.
    """
    return self.strategy.copies(search_lib.memory_copies(self))

  @property
  def z_stddev(self) -> float:
    """The standard deviation of Z, in the unit of the updates.

    For an adaptive clip, this value is for the first round. In later rounds the
    standard deviation is proportional to the clip.
    """
    return self.guarantee.z_stddev_per_clip * self.clip

  @functools.cached_property
  def rmse(self) -> float:
    """The root mean square error of a coordinate over all rounds, for clip 1.

    A coordinate is an entry of A C^-1 Z; A is the matrix of the workload. The
    error has the unit of a sum of updates.
    """
    mean, _ = self.planned_strategy.errors(self.workload)
    return self.z_stddev_at_1 * math.sqrt(mean)

  @property
  def z_stddev_at_1(self) -> float:
    """The standard deviation of Z for a clip of 1."""
    return self.guarantee.z_stddev_per_clip * clipping_norm.record_factor(
      self.l2_norm_clip
    )

  @functools.cached_property
  def _prefix_error(self) -> float:
    """Mean over t of |(A C^-1)[t]|_2^2, where A gives prefix sums."""
    mean, _ = self.planned_strategy.errors()
    return mean

  def noise_to_signal(self, dimension: Optional[int]) -> Optional[float]:
    """Returns the ratio of the noise to the largest possible signal.

      z_stddev (mean_t |(A C^-1)[t]|_2^2 dimension)^(1/2) / (n B clip)

    The numerator is the root mean square norm of the noise in the prefix sums
    of the releases, over all rounds, where A is the matrix of prefix sums. The
    noise of a single round says little, since later rounds cancel a part of it.
    The denominator is the norm that the sum of all updates would have without
    noise if all updates had one direction and the norm of the clip.

    Args:
      dimension: number of coordinates of the model. If None, the result is
        None.
    """
    if dimension is None:
      return None
    return (
      self.z_stddev_at_1
      * math.sqrt(self._prefix_error * dimension)
      / (self.rounds * self.clients_per_round)
    )

  def what_if(self) -> dict[str, Optional[float]]:
    """Returns epsilon at `delta` for cohorts that are worse than planned.

    The noise is the planned noise. A key names the difference from the plan: a
    min_sep that is 10 % or 50 % smaller, rounded down, or one more
    participation. A value is None if no epsilon is proved. The result is empty
    if cohorts are sampled or a `Budget`, or if the plan has no noise or delta.
    """
    schema, delta, rounds = self.schema, self.delta, self.strategy.rounds
    # A `Budget` fixes neither a min_sep nor a number of rounds, so there is no
    # value to make worse.
    if (
      delta is None
      or not self.guarantee.noise_multiplier
      or not self.cohorts.is_enforced
      or isinstance(schema, participation_lib.Budget)
    ):
      return {}
    worse = {}
    if schema.min_sep is not None:
      shares = {math.floor(share * schema.min_sep) for share in _SHARES} - {0}
      most = schema.max_participations
      for least in sorted(shares, reverse=True):
        worse[f'min_sep {least}'] = participation_lib.MinSep(least, most)
    k = schema.participations(rounds)
    if k < rounds:
      # The k gaps between k + 1 rounds of a client sum to at most `rounds` - 1.
      least = min(schema.separation(rounds), (rounds - 1) // k)
      more = participation_lib.MinSep(least, k + 1)
      worse[f'{k + 1} participations'] = more
    return {
      text: self.guarantee.for_cohorts(other).proved_epsilon(delta)
      for text, other in worse.items()
    }

  def spent(self, rounds: int) -> Optional[float]:
    """Returns an upper bound on epsilon at `delta` for the first rounds.

    For 0 rounds, the result is 0. For more rounds, it is None if the plan has
    no delta or no noise, or if no epsilon is proved. Sampled cohorts, a
    `Budget` and `Single` spend the epsilon of the whole run in the first round.
    The bound holds for a number of rounds that does not depend on releases, see
    `Guarantee.for_first_rounds`.

    Args:
      rounds: number of rounds that are over, >= 0.
    """
    rounds = _checks.count('rounds', rounds, 'rounds that are over', least=0)
    if not rounds:
      return 0.0
    # The epsilon changes only with the participations that fit in the rounds.
    most = self.schema.participations(min(rounds, self.strategy.rounds))
    if most not in self._spent:
      guarantee = self.guarantee.for_first_rounds(rounds)
      self._spent[most] = guarantee.proved_epsilon(self.delta)
    return self._spent[most]

  @functools.cached_property
  def _spent(self) -> dict[int, Optional[float]]:
    """Cache of `spent`: maps a number of participations to epsilon."""
    return {}

  def rounds_within(self, epsilon: float) -> int:
    """Returns the largest number of rounds whose `spent` is at most `epsilon`.

    The number follows from the plan alone. So a run that stops after these
    rounds has their epsilon, see `Guarantee.for_first_rounds`.

    Raises:
      ValueError: `epsilon` is not a positive number, the plan has no delta or
        no noise, or the first round has a larger epsilon.
    """
    _checks.positive('epsilon', epsilon, 'it is the epsilon at which to stop')

    def fits(rounds: int) -> bool:
      spent = self.spent(rounds)
      return spent is not None and spent <= epsilon

    if not fits(1):
      least, kind = self.spent(1), type(self.cohorts).__name__
      if least is None:
        raise errors.value_error(
          f'epsilon={epsilon}: is not proved, since the plan has no delta, or '
          'too little noise; plan with a delta and more noise'
        )
      raise errors.value_error(
        f'epsilon={epsilon}: is below {least}, the epsilon of the first round '
        f'with {kind}; give more, or plan for a smaller epsilon'
      )
    return feasibility.most(self.rounds, fits)

  def sweep(
    self,
    *,
    clients_per_round: Sequence[int] = (),
    epsilon: Sequence[float] = (),
    population: Optional[int] = None,
  ) -> trade_off.TradeOff:
    """Returns the noise and error for other cohort sizes and epsilons.

    `print` shows the result as a table; the methods `to_dict` and `plot` give
    JSON and a figure.

    Args:
      clients_per_round: cohort sizes to compare; if empty, only the cohort size
        of the plan is used.
      epsilon: epsilons to compare; if empty, only the epsilon of the plan is
        used.
      population: number of clients in the population. `feasible` of a point is
        False if this population cannot fill the cohorts of an enforced schema.
        If None, `feasible` is None.

    Raises:
      ValueError: the plan has no delta, neither the plan nor the argument has
        an epsilon, or a value is out of range.
    """
    epsilons = tuple(epsilon) or ((self.epsilon,) if self.epsilon else ())
    if self.delta is None or not epsilons:
      name = 'delta' if self.delta is None else 'epsilon'
      raise errors.value_error(
        f'{name}=None: a comparison needs epsilon and delta; plan with both'
      )
    # `rmse` already includes the factor for the indicator of an adaptive clip.
    # So `norm` is computed without the indicator.
    norm = clipping_norm.norm(clipping_norm.layers(self.l2_norm_clip))
    # With an enforced schema, the best C is the same for all these values.
    best = self.planned_strategy if self.sampled is None else self.mechanism
    points = []
    for clients in clients_per_round or (self.clients_per_round,):
      for each in epsilons:
        other = attrs.evolve(
          self,
          clients_per_round=clients,
          epsilon=each,
          noise_multiplier=None,
          mechanism=best,
          largest_cohort=None,
          stands_for=None,
        )
        noise = other.guarantee.noise_multiplier, other.z_stddev
        error, fits = other.rmse * norm / clients, None
        if population is not None:
          fits = not other._short_of(population)
        point = trade_off.Point(clients, float(each), *noise, error, fits)
        points.append(point)
    return trade_off.TradeOff(tuple(points), self.delta)

  def plot(self, memory_copies: Sequence[int] = (0, 1, 2, 4, 8)) -> Figure:
    """Returns a Matplotlib figure of `rmse`, by family and by copies in memory.

    The families are those that the search of the plan compared. Each point of
    the curve over memory is a plan with another limit. Every such plan needs a
    search, which takes about as long as the search of this plan.

    Args:
      memory_copies: limits to compare, each >= 0. If the plan names its
        mechanism, a limit in which this mechanism does not fit is left out.

    Raises:
      ImportError: Matplotlib is not installed.
    """
    with errors.importing('a plot'):
      from tff_bandmf import _figures

    points = [(self.copies, self.rmse)]
    for copies in memory_copies:
      other = attrs.evolve(self, memory_copies=copies)
      # A given mechanism may not fit in the limit.
      with contextlib.suppress(ValueError):
        points.append((other.copies, other.rmse))
    scale = clipping_norm.record_factor(self.l2_norm_clip)
    others = [(name, scale * rmse) for name, rmse in self.result.runners_up]
    families = [(self.strategy.family, self.rmse), *others]
    return _figures.errors(families, points, 'rmse for a clip of 1')

  def _short_of(self, clients: int) -> Optional[feasibility.Demand]:
    """Returns the wanted cohorts if a population cannot fill them, else None.

    For sampled cohorts, which may be small by chance, the result is None.
    Before the search, the costs of a `Budget` are unknown. Then the check uses
    only its `apart`, as a min_sep.
    """
    if not self.cohorts.is_enforced:
      return None
    wanted = feasibility.Demand(
      clients,
      self.clients_per_round,
      self.rounds,
      participation_lib.MinSep(self.cohorts.apart)
      if isinstance(self.cohorts, participation_lib.Budget)
      and self._result is None
      else self.schema,
    )
    return wanted if wanted.certainly_infeasible() else None

  def device_rule(self) -> _files.JsonObject:
    """Returns the rule by which a device decides whether it takes part.

    The result is the JSON object of `Budget.device_rule`. It names no client,
    and may be public.

    Raises:
      ValueError: `cohorts` is not a `Budget`, or the costs of its C depend on
        the round.
    """
    if not isinstance(self.schema, participation_lib.Budget):
      raise errors.value_error(
        f'cohorts={self.cohorts.name}: only a Budget has a rule for devices; '
        'plan with cohorts=Budget(min_sep)'
      )
    return self.schema.device_rule()

  def check_population(self, clients: int, name: str = 'clients') -> None:
    """Raises ValueError if a population cannot fill the cohort of every round.

    The sampler of enforced cohorts makes the same check, see `feasibility`.
    Randomly drawn (amplified) cohorts always pass, since they may be small by
    chance. Before the search, the costs of a `Budget` are unknown. Then the
    check uses only its `apart`, as a min_sep.

    Args:
      clients: number of clients in the population.
      name: name of this number in the message.
    """
    wanted = self._short_of(clients)
    if wanted is None:
      return
    names = {'cohort_size': 'clients_per_round'}
    if isinstance(self.cohorts, participation_lib.Budget) and not self._result:
      names['min_sep'] = 'apart'
      kind = f'{self.cohorts.name} apart={self.cohorts.apart}'
    else:
      kind = _cohorts(self, wanted.participation)
    remedy = ', or '.join(
      f'{names.get(each, each)}={value}'
      for each, value in wanted.largest().items()
    )
    raise errors.value_error(
      f'{name}={clients}: cannot fill {self.rounds} rounds of '
      f'{self.clients_per_round} if cohorts are {kind}; use '
      + (remedy or 'more clients')
    )

  def to_dict(self) -> _files.JsonObject:
    """Returns the numbers of the plan under their JSON keys."""
    schema = self.schema
    return {
      **self.guarantee.to_dict(),
      'rounds': self.rounds,
      'mechanism': self.strategy.family,
      'parameters': self.strategy.parameters(),
      'buffers': self.strategy.buffers,
      'memory_copies': self.copies,
      'normals': self.strategy.normals(self.copies),
      'clients_per_round': self.clients_per_round,
      'l2_norm_clip': clipping_norm.to_json(self.l2_norm_clip),
      'min_sep': schema.min_sep,
      'max_participations': schema.participations(self.rounds),
      **self.planned_strategy.error_numbers(self.z_stddev_at_1, self.workload),
      'z_stddev': self.z_stddev,
      'noise_to_signal': self.noise_to_signal(self.dimension),
      'rho': self.guarantee.rho,
      'epsilon': self.guarantee.proved_epsilon(self.delta),
      'delta': self.delta,
      'runners_up': [
        {'mechanism': family, 'rmse': rmse}
        for family, rmse in self.result.runners_up
      ],
      'left_out': dict(self.result.left_out),
      'what_if': self.what_if(),
      'epsilon_unamplified': self.unamplified
      and self.unamplified.proved_epsilon(self.delta),
      'stands_for': self.stands_for,
    }

  def save(self, path: Union[str, os.PathLike]) -> None:
    """Writes the plan to a file, completely or not at all.

    Raises:
      ValueError: the file exists. A file is not replaced, since a run may use
        its plan.
      OSError: the file cannot be written.
    """
    plan_json.save(self.result, path)

  @classmethod
  def load(cls, path: Union[str, os.PathLike]) -> Plan:
    """Returns the plan in a file, with the strategy in the file.

    Raises:
      ValueError: the file is not a plan, has another version or is damaged, or
        its noise does not prove its claim.
      OSError: the file cannot be read.
    """
    result = plan_json.load(path)
    plan = cls(**attrs.asdict(result.request, recurse=False))
    object.__setattr__(plan, '_result', result)
    return plan

  @classmethod
  def from_toml(cls, path: Union[str, os.PathLike]) -> Plan:
    """Returns the plan of a request in TOML, see `plan_toml`.

    Raises:
      TypeError: a value has a wrong type.
      ValueError: the file is not TOML, or a key or a value is wrong.
      OSError: the file cannot be read.
    """
    return cls(**plan_toml.load(path))

  def to_toml(self) -> str:
    """Returns the request of this plan in TOML.

    Raises:
      ValueError: the mechanism is a strategy that is in no file.
    """
    return plan_toml.to_text(self)

  def warning(self, dimension: Optional[int]) -> Optional[str]:
    """Returns a warning if `noise_to_signal` is above `_DROWNED`, else None.

    Args:
      dimension: number of coordinates of the model. If None, the result is
        None.
    """
    ratio = self.noise_to_signal(dimension)
    if ratio is None or ratio <= _DROWNED:
      return None
    return (
      f'WARNING: the noise drowns the updates: in sums of updates, its norm is '
      f'{rounded_up(ratio)} times the largest norm that the sum of '
      f'all updates can have, for {self.clients_per_round} clients a round and '
      f'{dimension} coordinates; take more clients a round, more rounds, a '
      'larger epsilon or a smaller model'
    )

  def __str__(self) -> str:
    return _text(self)


def _text(plan: Plan) -> str:
  """Returns the text of a plan, for `print(plan)`.

  Noise, errors and the numbers of a claim, except delta, are rounded up.
  """
  guarantee, strategy = plan.guarantee, plan.strategy
  sampled, budget = plan.sampled, plan.schema
  unknown = sampled is not None and sampled.population is None
  most = ''
  if not unknown and plan.most_clients != plan.clients_per_round:
    most = f' (at most {plan.most_clients})'
  lines = [
    f'{plan.rounds} rounds of {plan.clients_per_round} clients{most}, '
    + _cohorts(plan, guarantee.cohorts),
    f'claim: {_claim(guarantee, plan.delta)}',
  ]
  if plan.simulated is not None:
    lines.append(
      f'stands for {plan.stands_for} clients a round, which would have: '
      + _claim(plan.simulated, plan.delta)
    )
  if plan.unamplified is not None:
    lines.append(
      f'without amplification: {_claim(plan.unamplified, plan.delta)}; '
      'sampling amplifies if the run draws cohorts in secret, and nobody else '
      'knows the cohorts'
    )
  growth = clipping_norm.record_factor(plan.l2_norm_clip)
  indicator = f' * {rounded_up(growth)}, for the indicator' * (growth > 1)
  exact = guarantee.sensitivity.method.replace('_', ' ')
  size = f'{strategy.inverse_bands or strategy.bands} bands'
  normals = strategy.normals(plan.copies)
  lines += [
    f'noise: z_stddev {rounded_up(plan.z_stddev)} = noise multiplier '
    f'{rounded_up(guarantee.noise_multiplier)} * sensitivity '
    f'{rounded_up(guarantee.sensitivity.value)} ({exact}) * clip' + indicator,
    f'mechanism: {strategy.family}, '
    + (f'{strategy.buffers} buffers' if strategy.buffers else size)
    + f'; its noise keeps {plan.copies} copies of the model'
    + f', and draws {normals:g} normals a round' * (normals != 1),
  ]
  if isinstance(plan.l2_norm_clip, clipping_norm.AdaptiveClip):
    lines.append(f'clip: {_clip(plan, plan.l2_norm_clip)}')
  if guarantee.noise_multiplier:
    lines.append(f'error: rmse {rounded_up(plan.rmse)} at clip 1')
    if sampled is None:
      independent = _independent_rmse(plan)
      lines[-1] += (
        f'; independent noise (DP-FedAvg) has {rounded_up(independent)}, '
        f'{independent / plan.rmse:.2f} times as much'
      )
  ratio = plan.noise_to_signal(plan.dimension)
  if ratio is not None:
    lines.append(
      f'noise to signal: {rounded_up(ratio)} for {plan.dimension} '
      'coordinates, if all updates of all rounds had one direction'
    )
    lines += filter(None, [plan.warning(plan.dimension)])
  runners_up = ', '.join(
    f'{family} {rounded_up(rmse)}' for family, rmse in plan.result.runners_up
  )
  if runners_up:
    lines.append(f'runners-up by rmse: {runners_up}')
  known = strategies.families.known()
  for family, reason in plan.result.left_out.items():
    # A search compares a family that requires a parameter only if the user
    # names the family. So such a family has no line.
    parameters = known[family].parameters if family in known else ()
    if not any(each.required for each in parameters):
      lines.append(f'left out: {family}: {reason}')
  if isinstance(budget, participation_lib.Budget):
    costs, clients = budget.known_costs, plan.clients_per_round
    share = int(costs.table[:, 0].max()) / costs.limit
    lines.append(
      f'budget: a round costs a client {share:.4g} of its budget, and more '
      f'near its earlier rounds; a round of {clients} clients costs '
      f'{share * clients:.4g} budgets or more; the run may stop early, or '
      f'continue to {budget.horizon} rounds, at the same claim'
    )
  worse = '; '.join(
    f'{case}: {"not proved" if epsilon is None else rounded_up(epsilon)}'
    for case, epsilon in plan.what_if().items()
  )
  if worse:
    lines.append(f'epsilon if cohorts turn out otherwise: {worse}')
  return '\n'.join(lines)


def _cohorts(plan: Plan, cohorts: participation_lib.Cohorts) -> str:
  """Returns the kind of cohorts and their values.

  If a schema is enforced, the text also has the largest number of rounds of a
  client, and the largest number of clients of a unit of privacy.

  Args:
    plan: the plan.
    cohorts: the cohorts of the plan's guarantee, with values that the search
      added, such as a sampling probability.
  """
  (_, kind), *values = cohorts.to_dict().items()
  text = ' '.join(
    [kind, *(f'{name}={value}' for name, value in values if value is not None)]
  )
  if not cohorts.is_enforced:
    return text
  k = cohorts.schema.participations(plan.rounds)
  most = f'{text}: a client is in at most {k} round{"s" * (k > 1)}'
  if plan.clients_per_unit == 1:
    return most
  return (
    f'{most}, a unit of privacy has at most {plan.clients_per_unit} clients'
  )


def _claim(guarantee: accounting.Guarantee, delta: Optional[float]) -> str:
  """Returns the claim of a guarantee at `delta`, with adjacency and rho."""
  if not guarantee.noise_multiplier:
    return 'none, there is no noise'
  rho = '' if guarantee.rho is None else f', rho {rounded_up(guarantee.rho)}'
  if delta is None:
    return f'{guarantee.cohorts.adjacency}{rho}; no delta was given'
  epsilon = guarantee.proved_epsilon(delta)
  if epsilon is None:
    return f'none: so little noise proves no epsilon at delta {delta:g}'
  return (
    f'({rounded_up(epsilon)}, {delta:g})-DP, {guarantee.cohorts.adjacency}{rho}'
  )


def _clip(plan: Plan, clip: clipping_norm.AdaptiveClip) -> str:
  """Returns the rule of an adaptive clip, and the noise of its fraction.

  The clipping fraction is the noisy share of a round's updates whose norm is
  below the clip.
  """
  until = '' if clip.until is None else f' until round {clip.until}'
  noise = (
    plan.z_stddev_at_1
    * float(plan.strategy.recursion().row_norms.max())
    / (clip.fraction_weight * plan.clients_per_round)
  )
  return (
    f'begins at {clipping_norm.to_json(clip.initial)} and follows the '
    f'{clip.quantile:g}-quantile of the norms{until}; the noise of a '
    f"round's fraction has at most stddev {rounded_up(noise)}"
  )


def _independent_rmse(plan: Plan) -> float:
  """Returns the error that C = I has with the plan's claim and schema."""
  identity, schema = strategies.Identity(plan.rounds), plan.cohorts.schema
  mean, _ = identity.errors(plan.workload)
  # For an enforced schema, the noise multiplier does not depend on C.
  return (
    plan.guarantee.noise_multiplier
    * plan.clients_per_unit
    * sensitivity.sensitivity(identity, schema.reference_schema).value
    * clipping_norm.record_factor(plan.l2_norm_clip)
    * math.sqrt(mean)
  )


def rounded_up(value: float) -> str:
  """Returns a number rounded up to four significant digits, as text.

  If a value exceeds a multiple of its last digit by less than 1e-9 of this
  digit, the excess counts as a rounding error and is not rounded up.
  """
  if not value or not math.isfinite(value):
    return f'{value:g}'
  unit = 10.0 ** (math.floor(math.log10(abs(value))) - 3)
  return f'{math.ceil(value / unit - 1e-9) * unit:.4g}'
