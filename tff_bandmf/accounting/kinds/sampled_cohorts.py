"""The base class of cohorts that are drawn at random."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import Any, ClassVar, Optional

import attrs
import numpy as np

from tff_bandmf import _checks, _files, errors, strategies
from tff_bandmf import participation as participation_lib
from tff_bandmf.accounting.kinds import samplers
from tff_bandmf.accounting.methods import accountants, needed_noise

# Adjacency of data sets that differ by the presence of one client.
ADD_REMOVE = 'add-remove'


def _population(value: int) -> int:
  return _checks.count('population', value, 'the number of clients')


@attrs.frozen
class Sampled(participation_lib.Cohorts):
  """Cohorts that are drawn by secret randomness.

  Attributes:
    flags: maps each command-line flag of the kind to the attribute that it
      sets.
    follows: names of flags that a plan can derive from the population.
    samples: default number of Monte Carlo samples of a bound of delta; None if
      no samples are needed.
    before: maps each attribute that files of earlier versions lack to its value
      for these files.
    population: number of clients to draw from, >= 1; None if it is unknown.
    adjacency: `zero-out` or `add-remove`; a guarantee for `add-remove` assumes
      that the population is public.
  """

  flags: ClassVar[Mapping[str, str]]
  samples: ClassVar[Optional[int]] = None
  follows: ClassVar[frozenset[str]] = frozenset()
  before: ClassVar[Mapping[str, str]] = {}
  population: Optional[int] = attrs.field(
    default=None, kw_only=True, converter=attrs.converters.optional(_population)
  )
  adjacency: str = attrs.field(default=participation_lib.ZERO_OUT, kw_only=True)

  @adjacency.validator
  def _check_adjacency(self, attribute, value):
    # PRIVACY: Under replace-one adjacency both distributions of the dominating
    # pair are mixtures. dp-accounting 0.4.3 silently uses the pair of
    # add-remove instead, so epsilon would be too small. Replace-one is refused.
    # Guard: accounting_cohorts_test.test_replace_one_is_refused.
    if value not in (participation_lib.ZERO_OUT, ADD_REMOVE):
      raise errors.value_error(
        f'adjacency={value}: must be {participation_lib.ZERO_OUT} or '
        f'{ADD_REMOVE}; no amplified guarantee is proved for another adjacency'
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

  def needed_noise(
    self, rounds: int, epsilon: float, delta: float
  ) -> Optional[needed_noise.NeededNoise]:
    """Returns the function from C to the noise that C needs, for a search.

    The result is None if this noise is proportional to the sensitivity of C
    under `schema`.

    Args:
      rounds: number of rounds of the run.
      epsilon: target epsilon of the whole run.
      delta: target delta of the whole run.
    """
    return None

  @property
  def worst_case_schema(self) -> participation_lib.Participation:
    """The schema that all draws satisfy, for claims without amplification."""
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
    """Returns the arguments of `samplers.largest_cohort`.

    Returns:
      The number of clients from which a round is drawn, and the probability of
      each of these clients in each round, [n] float64.
    """

  def expected_cohort(self, rounds: int) -> float:
    """Returns the expected number of clients in a round, averaged over rounds.

    Raises:
      ValueError: the population is unknown.
    """
    clients, probs = self._drawn(rounds)
    return clients * float(np.mean(probs))

  def largest_cohort(self, rounds: int) -> int:
    """Returns a size that a run's cohorts exceed with probability <= 1e-40.

    If a cohort is larger, the sum of its round is not computed and nothing is
    released. The module `stop_probability` adds the probability of this event
    to delta.

    Raises:
      ValueError: the population is unknown.
    """
    return samplers.largest_cohort(*self._drawn(rounds))

  def known_population(self) -> int:
    return self._known('population', 'the number of clients')

  def _known(self, name: str, missing: str) -> Any:
    """Returns an attribute; raises ValueError if it is missing."""
    value = getattr(self, name)
    if value is None:
      raise errors.value_error(
        f'{name}=None: {self.name} needs it here; give {missing}'
      )
    return value

  def to_dict(self) -> _files.JsonObject:
    """Returns the cohorts as JSON, which `known_kinds.from_dict` reads."""
    values = {'amplification': self.name, **attrs.asdict(self)}
    # An attribute that has its value in `before` is left out, so that the JSON
    # object equals the one that earlier versions wrote.
    for name, value in self.before.items():
      if values[name] == value:
        del values[name]
    return values
