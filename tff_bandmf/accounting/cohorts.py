"""Who takes part, where chance decides: the kinds that amplify.

An amplified guarantee holds for the randomness it was proved for and for no
other: cohorts that a ledger enforces, batches cut from a shuffled list or
cohorts of a fixed size give none of the guarantees here, however similar they
look. Each kind is one frozen value: the rule, what draws by it, what accounts
for it, its JSON and its flags. The kinds that are enforced are in
`participation`.

| attribute      | of every kind, enforced or sampled                          |
|----------------|-------------------------------------------------------------|
| `name`         | word of the command line and of JSON                        |
| `schema`       | what a client can do at worst; noise multipliers are        |
|                | relative to the sensitivity under it                        |
| `adjacency`    | which data sets are neighbours                              |
| `to_dict()`    | JSON, which `from_dict` reads back                          |
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import Any, ClassVar, Optional, Union

import attrs
import numpy as np

from tff_bandmf import _checks, errors, strategies
from tff_bandmf import participation as participation_lib
from tff_bandmf import sensitivity as sensitivity_lib
from tff_bandmf.accounting import (
  accountants,
  b_min_sep,
  balls_in_bins,
  poisson,
  samplers,
)

# Neighbours, where chance decides, may also be data sets one of which lacks
# the client.
ADD_REMOVE = 'add-remove'


@attrs.frozen
class Sampled(abc.ABC):
  """Cohorts that are drawn by secret randomness.

  Attributes:
    name: of the kind.
    flags: command-line flags that the kind needs, and the fields they give.
    follows: those that follow from a population in a plan.
    population: clients to draw from; None where they are not known.
    adjacency: `zero-out` or `add-remove`; under the latter the population is
      a number that is public.
  """

  name: ClassVar[str]
  flags: ClassVar[Mapping[str, str]]
  follows: ClassVar[frozenset[str]] = frozenset()
  population: Optional[int] = attrs.field(
    default=None,
    kw_only=True,
    converter=attrs.converters.optional(
      lambda value: _checks.count('population', value, 'the number of clients')
    ),
  )
  adjacency: str = attrs.field(default=participation_lib.ZERO_OUT, kw_only=True)

  @adjacency.validator
  def _check_adjacency(self, attribute, value):
    # PRIVACY: replace-one needs another pair of distributions: both data sets
    # are mixtures (and dp-accounting 0.4.3 silently takes it for add-remove).
    # Guard: accounting_cohorts_test.test_replace_one_is_refused.
    if value not in (participation_lib.ZERO_OUT, ADD_REMOVE):
      raise errors.value_error(
        'adjacency',
        value,
        f'must be {participation_lib.ZERO_OUT} or {ADD_REMOVE}',
        'no amplified guarantee is proved for it',
      )

  @property
  @abc.abstractmethod
  def schema(self) -> participation_lib.Participation:
    """What a client can do at worst; noise multipliers are relative to it."""

  @property
  @abc.abstractmethod
  def rule(self) -> str:
    """How cohorts are drawn, in a clause."""

  @abc.abstractmethod
  def accountant(self, strategy: strategies.Strategy) -> accountants.Accountant:
    """Returns what accounts for a strategy.

    Raises:
      ValueError: nothing is proved for the strategy.
    """

  @property
  def always(self) -> participation_lib.Participation:
    """What holds for sure: a claim about it counts on no chance."""
    return self.schema

  @abc.abstractmethod
  def sampler(self, words: samplers.Words) -> samplers.Sampler:
    """Returns what draws the cohorts of the population.

    Args:
      words: of a secret key that is fresh and serves nothing else.

    Raises:
      ValueError: the population is not known.
    """

  @abc.abstractmethod
  def _drawn(self, rounds: int) -> tuple[int, np.ndarray]:
    """Returns who are drawn from in a round, and [n] each one's probability."""

  def expected_cohort(self, rounds: int) -> float:
    """Returns the expected size of a cohort, on average over rounds.

    Raises:
      ValueError: the population is not known.
    """
    clients, probs = self._drawn(rounds)
    return clients * float(np.mean(probs))

  def largest_cohort(self, rounds: int) -> int:
    """Returns a size that no cohort of a run exceeds but with 1e-24.

    A larger one is not summed: its round is burnt. What that tells is part of
    delta, see `arithmetic`.

    Raises:
      ValueError: the population is not known.
    """
    return samplers.largest_cohort(*self._drawn(rounds))

  def _known_population(self) -> int:
    if self.population is None:
      raise errors.value_error(
        'population',
        None,
        f'{self.name} cohorts are drawn from it',
        'give the number of clients',
      )
    return self.population

  def to_dict(self) -> dict[str, Any]:
    """Returns the cohorts as a JSON object; `from_dict` reads it back."""
    return {'amplification': self.name, **attrs.asdict(self)}


@attrs.frozen
class CyclicPoisson(Sampled):
  """Groups take turns, and members of a group are drawn by Poisson sampling.

  | symbol | name here       | meaning                                         |
  |--------|-----------------|-------------------------------------------------|
  | n      | `rounds`        | rounds of the strategy C                        |
  | m      | `population`    | clients                                         |
  | B      |                 | expected clients a round                        |
  | g      | `groups`        | groups of clients, at least the bands of C      |
  | q      | `sampling_prob` | probability of a client in a round of its group |
  | T      |                 | rounds of a group, ceil(n / g)                  |
  | kappa  |                 | largest column norm of C                        |
  | sigma  |                 | standard deviation of z over clip times kappa   |

  Clients are split once into g groups of m / g, without a look at their data.
  Round t is open to group t mod g alone, and each client of it takes part with
  probability q, independently of everything else, so that

    q = g B / m        (not B / m: a group is open once in g rounds)

  Columns of C that are g >= bands apart share no row, so a client's rounds
  touch disjoint parts of C x + z, each a Gaussian of sensitivity kappa at most
  [BandMF23, Thm 4 and 5]:

    the run is T compositions of the Poisson-sampled Gaussian of sigma

  for any signs of C and gradients that adapt to what was released (`poisson`).

  Attributes:
    sampling_prob: q; None for that of the expected clients, see `completed`.
    groups: g; None for as many as C has bands.
    clients_per_round: B, of which q follows where it is not given.
    population: as in `Sampled`.
    adjacency: as in `Sampled`.
  """

  name: ClassVar[str] = 'cyclic-poisson'
  flags: ClassVar[Mapping[str, str]] = {'sampling_prob': 'sampling_prob'}
  follows: ClassVar[frozenset[str]] = frozenset({'sampling_prob'})
  sampling_prob: Optional[float] = attrs.field(
    default=None,
    converter=attrs.converters.optional(poisson.check_sampling_prob),
  )
  groups: Optional[int] = attrs.field(
    default=None,
    converter=attrs.converters.optional(
      lambda value: _checks.count('groups', value, 'at least the bands of C')
    ),
  )
  clients_per_round: Optional[float] = attrs.field(
    default=None,
    kw_only=True,
    converter=attrs.converters.optional(
      lambda value: _checks.positive(
        'clients_per_round', value, 'the expected number'
      )
    ),
  )

  @clients_per_round.validator
  def _check_clients(self, attribute, value):
    if value is not None and value > (self.population or value):
      raise errors.value_error(
        'clients_per_round',
        value,
        f'must not exceed the population={self.population}',
        'use smaller cohorts',
      )

  @staticmethod
  def of_population(
    population: int, clients_per_round: float, groups: int
  ) -> CyclicPoisson:
    """Returns the cohorts of so many expected clients a round.

      q = groups * clients_per_round / population

    Args:
      population: m, clients in all groups together.
      clients_per_round: B, expected.
      groups: g, at least the bands of the strategy.

    Raises:
      ValueError: a value out of range, or a group is smaller than a cohort.

    >>> CyclicPoisson.of_population(2052, 6, groups=9).sampling_prob
    0.02631578947368421
    """
    _checks.count('population', population, 'give the number of clients')
    _checks.positive(
      'clients_per_round', clients_per_round, 'the expected number'
    )
    _checks.count('groups', groups, 'at least the bands of the strategy')
    # PRIVACY: only one group in `groups` is open in a round.
    # Guard: cyclic_poisson_test.test_sampling_prob_is_that_within_the_group.
    sampling_prob = groups * clients_per_round / population
    if sampling_prob > 1:
      raise errors.value_error(
        'groups',
        groups,
        f'a group has {population / groups:g} clients, fewer than '
        f'clients_per_round={clients_per_round}',
        'use fewer bands or smaller cohorts',
      )
    return CyclicPoisson(sampling_prob, groups, population=population)

  @property
  def schema(self) -> participation_lib.Participation:
    return participation_lib.Single()

  @property
  def rule(self) -> str:
    return (
      f'clients are split into {self._known_groups()} groups without a look at '
      'their data, groups take turns, and each client of the group of a round '
      f'takes part with probability {self._known_prob()!r}'
    )

  @property
  def always(self) -> participation_lib.Participation:
    """Rounds of a client are multiples of g apart."""
    return participation_lib.MinSep(self._known_groups())

  def completed(self, bands: int) -> CyclicPoisson:
    """Returns the cohorts of a C with so many bands: g, and q = g B / m.

    Raises:
      ValueError: q follows from a population or a B that is not given.
    """
    groups = self.groups or bands
    if self.sampling_prob is not None:
      return attrs.evolve(self, groups=groups)
    if self.clients_per_round is None:
      raise _no_prob()
    found = self.of_population(
      self._known_population(), self.clients_per_round, groups
    )
    return attrs.evolve(found, adjacency=self.adjacency)

  def bands_to_compare(self, rounds: int) -> list[int]:
    """Returns as many bands as groups; without groups, powers of two."""
    if self.groups is not None:
      return [self.groups]
    most = rounds
    if self.sampling_prob is None and self.clients_per_round is not None:
      # A group is not smaller than a cohort.
      most = min(most, int(self._known_population() / self.clients_per_round))
    return [1 << i for i in range(most.bit_length())]

  def sampler(self, words: samplers.Words) -> samplers.Sampler:
    return samplers.CyclicPoisson(
      words, self._known_population(), self._known_groups(), self._known_prob()
    )

  def _drawn(self, rounds: int) -> tuple[int, np.ndarray]:
    clients = self._known_population() // self._known_groups()
    return clients, np.full(rounds, self._known_prob())

  def _known_groups(self) -> int:
    if self.groups is None:
      raise errors.value_error(
        'groups', None, 'are as many as C has bands', 'give their number'
      )
    return self.groups

  def _known_prob(self) -> float:
    if self.sampling_prob is None:
      raise _no_prob()
    return self.sampling_prob

  def compositions(self, strategy: strategies.Strategy) -> int:
    """Returns T, the rounds of a group.

    Raises:
      ValueError: C has more bands, or fewer rounds, than there are groups.
    """
    groups = self.groups or strategy.bands
    # PRIVACY: columns nearer than `bands` overlap, and rounds of a client
    # would no longer be compositions.
    # Guard: cyclic_poisson_test.test_more_bands_than_groups_are_refused.
    if strategy.bands > groups:
      raise errors.value_error(
        'groups',
        groups,
        f'must be at least the bands={strategy.bands} of C',
        'use a strategy with fewer bands',
      )
    if groups > strategy.rounds:
      raise errors.value_error(
        'groups',
        groups,
        f'must not exceed the rounds={strategy.rounds}',
        'a group without a round never takes part',
      )
    return -(-strategy.rounds // groups)

  def accountant(self, strategy: strategies.Strategy) -> accountants.Accountant:
    # The column norm is the sensitivity of one participation. A round of a
    # client touches rows that no other round of it does.
    return poisson.Poisson(
      strategy, self.schema, self._known_prob(), self.compositions(strategy)
    )


@attrs.frozen
class BallsInBins(Sampled):
  """Each client draws one of b bins once; round t is that of bin t mod b.

  For C >= 0; see `balls_in_bins`.

  Attributes:
    bins: b, rounds of an epoch, at most the rounds of C.
    population: as in `Sampled`.
    adjacency: as in `Sampled`.
  """

  name: ClassVar[str] = 'balls-in-bins'
  flags: ClassVar[Mapping[str, str]] = {'min_sep': 'bins'}
  bins: int = attrs.field(
    converter=lambda value: _checks.count('bins', value, 'rounds of an epoch')
  )

  @property
  def schema(self) -> participation_lib.Participation:
    return participation_lib.FixedEpoch(self.bins)

  @property
  def rule(self) -> str:
    return (
      f'each client draws one of {self.bins} bins once, all as likely, and '
      f'takes part in round t if that is bin t mod {self.bins}'
    )

  def sampler(self, words: samplers.Words) -> samplers.Sampler:
    return samplers.BallsInBins(words, self._known_population(), self.bins)

  def _drawn(self, rounds: int) -> tuple[int, np.ndarray]:
    return self._known_population(), np.full(rounds, 1 / self.bins)

  def accountant(self, strategy: strategies.Strategy) -> accountants.Accountant:
    return balls_in_bins.BallsInBins(strategy, self.schema, self.bins)


@attrs.frozen
class BMinSep(Sampled):
  """Who took part in none of the last b - 1 rounds joins with probability p.

  Every client is eligible in round 0, so that the first cohorts are the
  largest. For C >= 0 with at most b bands; see `b_min_sep`.

  Attributes:
    min_sep: b.
    sampling_prob: p, of an eligible client in a round, below 1.
    population: as in `Sampled`.
    adjacency: as in `Sampled`.
  """

  name: ClassVar[str] = 'b-min-sep'
  flags: ClassVar[Mapping[str, str]] = {
    'min_sep': 'min_sep',
    'sampling_prob': 'sampling_prob',
  }
  min_sep: int = attrs.field(
    converter=lambda value: _checks.count(
      'min_sep', value, 'at least the bands of C'
    )
  )
  sampling_prob: float = attrs.field(
    converter=lambda value: samplers.check_prob(
      'sampling_prob', value, 'that of an eligible client'
    )
  )

  @sampling_prob.validator
  def _check_sampling_prob(self, attribute, value):
    if value >= 1:
      raise errors.value_error(
        'sampling_prob',
        value,
        'must be below 1',
        'who takes part for sure is not sampled',
      )

  @property
  def schema(self) -> participation_lib.Participation:
    return participation_lib.MinSep(self.min_sep)

  @property
  def rule(self) -> str:
    return (
      f'each client that took part in none of the last {self.min_sep - 1} '
      f'rounds takes part with probability {self.sampling_prob!r}'
    )

  def sampler(self, words: samplers.Words) -> samplers.Sampler:
    return samplers.BMinSep(
      words, self._known_population(), self.min_sep, self.sampling_prob
    )

  def _drawn(self, rounds: int) -> tuple[int, np.ndarray]:
    return self._known_population(), b_min_sep.participation(
      rounds, self.min_sep, self.sampling_prob
    )

  def accountant(self, strategy: strategies.Strategy) -> accountants.Accountant:
    return b_min_sep.BMinSep(
      strategy, self.schema, self.min_sep, self.sampling_prob
    )


@attrs.frozen(eq=False)
class Logged:
  """Cohorts of a run that is over, as its log shows them.

  Nobody need have enforced anything: the guarantee is about the rounds that
  clients really took. It is a statement about this log, and holds if who took
  part did not depend on private data.

  Attributes:
    found: what the log shows, with the sensitivity of the strategy.
  """

  name: ClassVar[str] = 'log'
  adjacency: ClassVar[str] = participation_lib.ZERO_OUT
  found: sensitivity_lib.Observed

  @property
  def schema(self) -> participation_lib.Participation:
    """The least schema that the log keeps."""
    if self.found.min_sep is None:
      return participation_lib.Single()
    return participation_lib.MinSep(
      self.found.min_sep, self.found.max_participations
    )

  def accountant(
    self, strategy: strategies.Strategy, clients_per_unit: int = 1
  ) -> accountants.Accountant:
    """Returns what accounts for a strategy, and units of so many clients."""
    # PRIVACY: of the log, which may be worse than any schema that was planned.
    # Guard: accounting_cohorts_test.test_log_claims_what_its_clients_did.
    return accountants.Logged(
      strategy, self.schema, self.found.sensitivity, clients_per_unit
    )

  def to_dict(self) -> dict[str, Any]:
    """Returns the counts of the log as a JSON object."""
    return {
      'participation': self.name,
      'min_sep': self.found.min_sep,
      'max_participations': self.found.max_participations,
    }


_KINDS: tuple[type[Sampled], ...] = (CyclicPoisson, BallsInBins, BMinSep)
KINDS = {kind.name: kind for kind in _KINDS}


_Any = Union[participation_lib.Participation, Sampled, Logged]


def sampled(cohorts: _Any) -> Optional[Sampled]:
  """Returns cohorts that chance decides; None for others."""
  return cohorts if isinstance(cohorts, Sampled) else None


def completed(cohorts: _Any, bands: int) -> _Any:
  """Returns the cohorts of a C with so many bands, all of it said.

  Raises:
    ValueError: as `CyclicPoisson.completed`.
  """
  if isinstance(cohorts, CyclicPoisson):
    return cohorts.completed(bands)
  return cohorts


def expecting(cohorts: _Any, clients_per_round: float) -> _Any:
  """Returns cohorts that expect so many clients, where they do not say."""
  if isinstance(cohorts, CyclicPoisson) and cohorts.sampling_prob is None:
    return attrs.evolve(cohorts, clients_per_round=clients_per_round)
  return cohorts


def bands_to_compare(cohorts: _Any, rounds: int) -> Optional[list[int]]:
  """Returns the numbers of bands that cohorts ask for; None for any."""
  if isinstance(cohorts, CyclicPoisson):
    return cohorts.bands_to_compare(rounds)
  return None


def check(cohorts: object) -> None:
  """Raises TypeError for what does not say who takes part."""
  if not isinstance(cohorts, (Sampled, Logged)):
    participation_lib.check(cohorts)


def accountant(
  strategy: strategies.Strategy,
  cohorts: Union[participation_lib.Participation, Sampled, Logged],
  clients_per_unit: int = 1,
) -> accountants.Accountant:
  """Returns what accounts for a strategy and who takes part.

  Args:
    strategy: C.
    cohorts: who takes part.
    clients_per_unit: clients that a unit of privacy has at most.

  Raises:
    TypeError: `cohorts` is of neither kind.
    ValueError: nothing is proved for them.
  """
  # PRIVACY: no randomness but the kinds' own has their guarantees.
  # Guard: accounting_cohorts_test.test_other_randomness_is_refused.
  check(cohorts)
  if isinstance(cohorts, Sampled):
    # PRIVACY: clients of one unit may be drawn together or not. Guard:
    # accounting_cohorts_test.test_sampled_units_of_several_are_refused.
    if clients_per_unit > 1:
      raise errors.value_error(
        'clients_per_unit',
        clients_per_unit,
        'nothing is proved for a unit of several clients that are sampled',
        'enforce a schema: MinSep',
      )
    return cohorts.accountant(strategy)
  if isinstance(cohorts, Logged):
    return cohorts.accountant(strategy, clients_per_unit)
  return accountants.Gaussian(
    strategy, cohorts, clients_per_unit=clients_per_unit
  )


def from_dict(
  record: Mapping[str, Any],
) -> Union[participation_lib.Participation, Sampled]:
  """Returns the cohorts of what `to_dict` gave.

  Raises:
    ValueError: an unknown kind, or a value that it does not take.
  """
  fields = dict(record)
  if 'participation' in fields:
    return participation_lib.from_name(fields.pop('participation'), **fields)
  kind = _kind(fields.pop('amplification', None))
  for name in fields.keys() - attrs.fields_dict(kind).keys():
    raise errors.value_error(
      name, fields[name], f'{kind.name} does not take it', 'leave it out'
    )
  return kind(**fields)


def of_claim(record: Mapping[str, Any]) -> Optional[Sampled]:
  """Returns the sampled cohorts of `Guarantee.to_dict`; None for others.

  Raises:
    ValueError: an unknown kind, or a value that it does not take.
  """
  if 'amplification' not in record:
    return None
  kind = _kind(record['amplification'])
  # What a round expects is a number of the run, and q is there.
  return kind(
    **{
      name: record[name]
      for name in attrs.fields_dict(kind)
      if name in record and name != 'clients_per_round'
    }
  )


def from_flags(
  amplification: str,
  min_sep: Optional[int],
  sampling_prob: Optional[float],
  population: Optional[int] = None,
) -> Sampled:
  """Returns the cohorts that flags of the command line name.

  Args:
    amplification: name of the kind.
    min_sep: of the kinds that need it.
    sampling_prob: likewise; it may follow from a population.
    population: clients to draw from; None where they are not known.

  Raises:
    ValueError: an unknown kind, a flag is missing, or one does not apply.
  """
  kind = _kind(amplification)
  fields: dict[str, Any] = {}
  for name, value in (('min_sep', min_sep), ('sampling_prob', sampling_prob)):
    needed = name in kind.flags
    follows = name in kind.follows and population is not None
    if (value is not None) != needed and not (value is None and follows):
      raise errors.value_error(
        name,
        value,
        f'{kind.name} {"needs" if needed else "takes no"} {name}',
        'see --help for its meaning' if needed else 'leave it out',
      )
    if needed:
      fields[kind.flags[name]] = value
  return kind(**fields, population=population)


def _no_prob() -> ValueError:
  return errors.value_error(
    'sampling_prob',
    None,
    'cyclic-poisson needs sampling_prob',
    'give it, or population and clients_per_round',
  )


def _kind(name: Any) -> type[Sampled]:
  """Returns the kind of this name.

  Raises:
    ValueError: there is none.
  """
  if name not in KINDS:
    raise errors.value_error(
      'amplification', name, 'is not known', f'use {" or ".join(KINDS)}'
    )
  return KINDS[name]
