"""Cyclic Poisson sampling: the clients of one group are drawn in each round."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Optional

import attrs
import numpy as np

from tff_bandmf import _checks, errors, strategies
from tff_bandmf import participation as participation_lib
from tff_bandmf.accounting.kinds import poisson, sampled_cohorts, samplers
from tff_bandmf.accounting.methods import accountants


def _groups(value: int) -> int:
  return _checks.count('groups', value, 'at least the bands of C')


def _clients_per_round(value: float) -> float:
  return _checks.positive('clients_per_round', value, 'the expected number')


@attrs.frozen
class CyclicPoisson(sampled_cohorts.Sampled):
  """Each round draws clients from one of g groups, by Poisson sampling.

  | symbol | name here       | meaning                                         |
  |--------|-----------------|-------------------------------------------------|
  | n      | `rounds`        | rounds of the strategy C                        |
  | m      | `population`    | number of clients                               |
  | B      |                 | expected number of clients in a round           |
  | g      | `groups`        | number of groups, at least the bands of C       |
  | q      | `sampling_prob` | probability of a client in a round of its group |
  | T      |                 | rounds of a group, ceil(n / g)                  |
  | kappa  |                 | largest column norm of C                        |
  | sigma  |                 | standard deviation of z / (clip * kappa)        |

  Clients are split once into g groups of m / g, independently of their data.
  Only group t mod g may take part in round t, and each of its clients takes
  part with probability q, independently of everything else, where

    q = g B / m        (not B / m: a group has one of every g rounds)

  Columns of C that are g >= bands apart do not overlap, so a client's rounds
  change disjoint rows of C x + z, where row t of x is the sum of round t. Each
  round of a client is a Gaussian release of sensitivity at most kappa. So the
  run is

    T compositions of the Poisson-sampled Gaussian of sigma

  [BandMF23, Thm 4 and 5]. C may have negative entries, and gradients may depend
  on earlier releases. The module `poisson` computes epsilon and delta of the
  composition.

  Attributes:
    sampling_prob: q, in (0, 1]. If None, `for_bands` computes q = g B / m.
    groups: g, integer >= 1. If None, g is the number of bands of C.
    clients_per_round: B, expected number of clients in a round, > 0; needed if
      `sampling_prob` is None.
    population: m, number of clients to draw from, >= 1; None if it is unknown.
    adjacency: `zero-out` or `add-remove`.
  """

  name: ClassVar[str] = 'cyclic-poisson'
  flags: ClassVar[Mapping[str, str]] = {'sampling_prob': 'sampling_prob'}
  follows: ClassVar[frozenset[str]] = frozenset({'sampling_prob'})
  sampling_prob: Optional[float] = attrs.field(
    default=None, converter=attrs.converters.optional(samplers.check_prob)
  )
  groups: Optional[int] = attrs.field(
    default=None, converter=attrs.converters.optional(_groups)
  )
  clients_per_round: Optional[float] = attrs.field(
    default=None,
    kw_only=True,
    converter=attrs.converters.optional(_clients_per_round),
  )

  @clients_per_round.validator
  def _check_clients(self, attribute, value):
    if value is not None and self.population is not None:
      _checks.at_most(
        'clients_per_round', value, self.population, 'population', 'use fewer'
      )

  @staticmethod
  def of_population(
    population: int, clients_per_round: float, groups: int
  ) -> CyclicPoisson:
    """Returns cohorts with an expected number of clients in a round.

      q = groups * clients_per_round / population

    Args:
      population: m, number of clients in all groups together, >= 1.
      clients_per_round: B, expected number of clients in a round, > 0.
      groups: g, number of groups, at least the bands of the strategy.

    Raises:
      ValueError: a value is out of range, or a group has fewer clients than a
        cohort.

    >>> CyclicPoisson.of_population(2052, 6, groups=9).sampling_prob
    0.02631578947368421
    """
    cohorts = CyclicPoisson(
      groups=_groups(groups),
      population=population,
      clients_per_round=_clients_per_round(clients_per_round),
    )
    return cohorts.for_bands(groups)

  @property
  def schema(self) -> participation_lib.Participation:
    return participation_lib.Single()

  @property
  def rule(self) -> str:
    return (
      f'clients are split into g={self._known_groups()} groups independently '
      'of their data, and in round t each client of group t mod g takes part '
      f'with probability {self._known_prob()!r}'
    )

  @property
  def worst_case_schema(self) -> participation_lib.Participation:
    """MinSep(g), because rounds of a client are multiples of g apart."""
    return participation_lib.MinSep(self._known_groups())

  def for_cohort_size(self, clients_per_round: float) -> CyclicPoisson:
    """Returns the cohorts with B set, or unchanged if q is given."""
    if self.sampling_prob is not None:
      return self
    return attrs.evolve(self, clients_per_round=clients_per_round)

  def for_bands(self, bands: int) -> CyclicPoisson:
    """Returns the cohorts for a C of `bands` bands, with g and q = g B / m set.

    Raises:
      ValueError: q is not given and cannot be derived, or is above 1.
    """
    groups, clients = self.groups or bands, self.clients_per_round
    if self.sampling_prob is not None or clients is None:
      prob = self._known_prob()
      return attrs.evolve(self, groups=groups, sampling_prob=prob)
    population = self.known_population()
    # PRIVACY: A round draws about B clients from one group of m / g clients, so
    # each client of the group is drawn with probability g B / m. With the value
    # B / m in the accountant, epsilon would be too small. q is set to g B / m.
    # Guard: cyclic_poisson_test.test_sampling_prob_is_that_within_the_group.
    prob = groups * clients / population
    if prob > 1:
      raise errors.value_error(
        f'groups={groups}: each has {population / groups:g} clients, but '
        f'clients_per_round={clients}; use fewer bands or smaller cohorts'
      )
    return attrs.evolve(
      self, groups=groups, sampling_prob=prob, clients_per_round=None
    )

  def candidate_bands(self, rounds: int) -> list[int]:
    """Returns the numbers of bands to compare: g if given, or powers of two."""
    if self.groups is not None:
      return [self.groups]
    most = rounds
    if self.sampling_prob is None and self.clients_per_round is not None:
      # A group needs at least as many clients as a cohort.
      most = min(most, int(self.known_population() / self.clients_per_round))
    return [1 << i for i in range(most.bit_length())]

  def sampler(self, words: samplers.Words) -> samplers.Sampler:
    return samplers.CyclicPoisson(
      words, self.known_population(), self._known_groups(), self._known_prob()
    )

  def _drawn(self, rounds: int) -> tuple[int, np.ndarray]:
    clients = self.known_population() // self._known_groups()
    return clients, np.full(rounds, self._known_prob())

  def _known_groups(self) -> int:
    return self._known('groups', 'a number, at least the bands of C')

  def _known_prob(self) -> float:
    return self._known(
      'sampling_prob', 'it, or population and clients_per_round'
    )

  def compositions(self, strategy: strategies.Strategy) -> int:
    """Returns T, the number of rounds of a group.

    Raises:
      ValueError: C has more bands, or fewer rounds, than g.
    """
    # PRIVACY: Rounds of a client can be g apart. If C had more than g bands,
    # their columns would have non-zero entries in the same row, and the claimed
    # epsilon would not be proved. A C with more bands than groups is refused.
    # Guards: cyclic_poisson_test.test_more_bands_than_groups_are_refused and
    # accounting_cohorts_test.test_json_is_read_back.
    groups = self.groups or strategy.bands
    _checks.at_most('bands', strategy.bands, groups, 'groups', 'use fewer')
    _checks.at_most('groups', groups, strategy.rounds, 'rounds', 'use fewer')
    # PRIVACY: Some groups can have one round more than others. If T were
    # rounded down, the last round of these groups would not count, and epsilon
    # would be too small. T is rounded up.
    # Guard: cyclic_poisson_test.test_sampling_prob_is_that_within_the_group.
    return -(-strategy.rounds // groups)

  def accountant(self, strategy: strategies.Strategy) -> accountants.Accountant:
    # The sensitivity under `Single`, which allows a client one round, is kappa.
    return poisson.Poisson(
      strategy, self.schema, self._known_prob(), self.compositions(strategy)
    )
