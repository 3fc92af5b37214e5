"""Who takes part, where chance decides: what all kinds have."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import Any, ClassVar, Optional

import attrs
import numpy as np

from tff_bandmf import _checks, errors, strategies
from tff_bandmf import participation as participation_lib
from tff_bandmf.accounting import accountants, samplers

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

  def known_population(self) -> int:
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
