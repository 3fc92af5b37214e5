"""The base class of cohorts that are drawn at random."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import ClassVar, Optional

import attrs
import numpy as np

from tff_bandmf import _checks, _files, errors, strategies
from tff_bandmf import participation as participation_lib
from tff_bandmf.accounting.kinds import samplers
from tff_bandmf.accounting.methods import accountants

# Adjacency in which one of two neighbouring data sets lacks the client.
ADD_REMOVE = 'add-remove'


@attrs.frozen
class Sampled(participation_lib.Cohorts):
  """Cohorts that are drawn by secret randomness.

  Attributes:
    flags: maps each command-line flag that the kind needs to its attribute.
    follows: names of flags that a plan derives from the population.
    before: maps each attribute that earlier records lack to its value there.
    population: number of clients to draw from, >= 1; None if it is unknown.
    adjacency: `zero-out` or `add-remove`; with `add-remove` the population is
      public.
  """

  flags: ClassVar[Mapping[str, str]]
  follows: ClassVar[frozenset[str]] = frozenset()
  before: ClassVar[Mapping[str, str]] = {}
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
    # PRIVACY: replace-one has another dominating pair, of two mixtures, and
    # dp-accounting 0.4.3 silently computes add-remove for it. It is refused.
    # Guard: accounting_cohorts_test.test_replace_one_is_refused.
    if value not in (participation_lib.ZERO_OUT, ADD_REMOVE):
      raise errors.value_error(
        f'adjacency={value}: must be {participation_lib.ZERO_OUT} or '
        f'{ADD_REMOVE}; no amplified guarantee is proved for it'
      )

  @property
  @abc.abstractmethod
  def rule(self) -> str:
    """The rule by which cohorts are drawn, as a clause of a sentence."""

  @abc.abstractmethod
  def accountant(self, strategy: strategies.Strategy) -> accountants.Accountant:
    """Returns the accountant of a strategy with these cohorts.

    Raises:
      ValueError: nothing is proved for the strategy.
    """

  @property
  def always(self) -> participation_lib.Participation:
    """The schema that every draw satisfies, for claims without chance."""
    return self.schema

  @abc.abstractmethod
  def sampler(self, words: samplers.Words) -> samplers.Sampler:
    """Returns the sampler of the population's cohorts.

    Args:
      words: random words of a secret key, which is fresh and has no other use.

    Raises:
      ValueError: the population is unknown.
    """

  @abc.abstractmethod
  def _drawn(self, rounds: int) -> tuple[int, np.ndarray]:
    """Returns the number of candidates, and their probability by round, [n]."""

  def expected_cohort(self, rounds: int) -> float:
    """Returns the expected size of a cohort, averaged over rounds.

    Raises:
      ValueError: the population is unknown.
    """
    clients, probs = self._drawn(rounds)
    return clients * float(np.mean(probs))

  def largest_cohort(self, rounds: int) -> int:
    """Returns a size that some cohort exceeds with probability <= 1e-24.

    The round of a larger cohort is burnt: its sum is not computed. Delta
    accounts for that event, see `arithmetic`.

    Raises:
      ValueError: the population is unknown.
    """
    return samplers.largest_cohort(*self._drawn(rounds))

  def known_population(self) -> int:
    if self.population is None:
      raise errors.value_error(
        f'population=None: {self.name} cohorts are drawn from it; give the '
        'number of clients'
      )
    return self.population

  def to_dict(self) -> _files.JsonObject:
    """Returns the cohorts as a JSON object, which `kinds.from_dict` reads."""
    record = {'amplification': self.name, **attrs.asdict(self)}
    # The record of a run from before an attribute stays what it was.
    for name, value in self.before.items():
      if record[name] == value:
        del record[name]
    return record
