"""b-min-sep sampling: cohorts drawn from clients without a recent round."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import ClassVar, Optional

import attrs
import numpy as np

from tff_bandmf import _checks, errors, strategies
from tff_bandmf import participation as participation_lib
from tff_bandmf.accounting.kinds import (
  b_min_sep,
  b_min_sep_noise,
  sampled_cohorts,
  samplers,
)
from tff_bandmf.accounting.methods import accountants

# Values of `start`.
WARM, COLD = 'warm', 'cold'


def _min_sep(value: int) -> int:
  return _checks.count('min_sep', value, 'at least the bands of C')


@attrs.frozen
class BMinSep(sampled_cohorts.Sampled):
  """Cohorts in which each eligible client takes part with probability p.

  Each client has a start round. A client is eligible in a round if the round is
  not before its start round, and the client took part in none of the last b - 1
  rounds. With a warm start, the start round is a random round below b, so that
  all cohorts have the same expected size, population * p / (1 + (b - 1) p).
  With a cold start, all clients have start round 0. The first cohort is then by
  far the largest, and the same (epsilon, delta) needs more noise than with a
  warm start. The proof needs a C >= 0 with at most b bands; see the module
  `b_min_sep`.

  Attributes:
    min_sep: b, least distance of two rounds of a client, integer >= 1.
    sampling_prob: p, probability that an eligible client takes part in a round,
      in (0, 1). If None, p is derived from the population and the expected
      number of clients in a round; this needs a warm start.
    start: 'warm' or 'cold'. Files that an earlier version of the library wrote
      have no `start`; the library reads them as 'cold'.
    population: number of clients to draw from, >= 1; None if it is unknown.
    adjacency: `zero-out` or `add-remove`.
  """

  samples: ClassVar[int] = 100_000
  name: ClassVar[str] = 'b-min-sep'
  flags: ClassVar[Mapping[str, str]] = {
    'min_sep': 'min_sep',
    'sampling_prob': 'sampling_prob',
  }
  follows: ClassVar[frozenset[str]] = frozenset({'sampling_prob'})
  # PRIVACY: Files of an earlier version have no `start`; their runs had a cold
  # start, which needs more noise than a warm start for the same (epsilon,
  # delta). If such a file were read as a warm start, epsilon would be too
  # small. It is read as a cold start.
  # Guard: accounting_cohorts_test.test_file_without_a_start_is_cold.
  before: ClassVar[Mapping[str, str]] = {'start': COLD}
  min_sep: int = attrs.field(converter=_min_sep)
  sampling_prob: Optional[float] = attrs.field(
    default=None, converter=attrs.converters.optional(samplers.check_prob)
  )
  start: str = attrs.field(default=WARM, kw_only=True)

  @start.validator
  def _check_start(self, attribute, value):
    if value not in (WARM, COLD):
      raise errors.value_error(
        f'start={value}: is not known; use {WARM}, or {COLD} if all clients '
        'are eligible in round 0'
      )

  @sampling_prob.validator
  def _check_sampling_prob(self, attribute, value):
    if value is not None and value >= 1:
      raise errors.value_error(
        f'sampling_prob={value}: must be below 1; use a smaller probability'
      )

  # PRIVACY: The claim without amplification uses this schema. If the schema did
  # not allow all draws of the sampler, the sensitivity would be too small.
  # Guard: b_min_sep_test.test_sensitivity_is_that_without_amplification.
  @property
  def schema(self) -> participation_lib.Participation:
    return participation_lib.MinSep(self.min_sep)

  @property
  def rule(self) -> str:
    rule = (
      f'each client that took part in none of the last {self.min_sep - 1} '
      f'rounds takes part with probability {self._known_prob()!r}'
    )
    if not self._wait:
      return rule
    return (
      f'{rule}; the first round in which it may take part is each of the '
      f'rounds 1 to {self.min_sep - 1} with probability {self._wait!r}, and '
      'else round 0'
    )

  # PRIVACY: If the p of the accountant were below the p of the sampler, delta
  # would be too small. Both use the p that this method computes from the
  # expected cohort size.
  # Guard:
  # accounting_cohorts_test.test_probability_follows_from_the_clients_a_round.
  def for_cohort_size(self, clients_per_round: float) -> BMinSep:
    """Returns the cohorts with p set for an expected cohort size.

      p = q / (1 - (b - 1) q),  q = clients_per_round / population

    Raises:
      ValueError: p is not given and cannot be computed: the start is cold, the
        population is unknown, or it is at most b times `clients_per_round`.
    """
    if self.sampling_prob is not None:
      return self
    if self.start == COLD or self.population is None:
      self._known_prob()
    rate = clients_per_round / self.known_population()
    if rate * self.min_sep >= 1:
      raise errors.value_error(
        f'clients_per_round={clients_per_round}: must be below population / '
        f'min_sep={self.known_population() / self.min_sep:g}, since a client '
        'takes part at most once in min_sep rounds; use smaller cohorts'
      )
    prob = rate / (1 - (self.min_sep - 1) * rate)
    return attrs.evolve(self, sampling_prob=prob)

  def _known_prob(self) -> float:
    return self._known(
      'sampling_prob', 'it or, if warm, population and clients_per_round'
    )

  # PRIVACY: If a cold start were accounted as a warm start, delta would be the
  # delta of another sampler. For a cold start this property is None.
  # Guard:
  # accounting_cohorts_test.test_probability_follows_from_the_clients_a_round.
  @property
  def _wait(self) -> Optional[float]:
    """w: probability of each start round in [1, b); None for a cold start."""
    if self.start == COLD:
      return None
    return b_min_sep.wait_prob(self.min_sep, self._known_prob())

  @property
  def _law(self) -> b_min_sep.Law:
    return b_min_sep.Law(self.min_sep, self._known_prob(), self._wait)

  def sampler(self, words: samplers.Words) -> samplers.Sampler:
    return samplers.BMinSep(words, self.known_population(), *self._law)

  def _drawn(self, rounds: int) -> tuple[int, np.ndarray]:
    return self.known_population(), b_min_sep.participation(rounds, self._law)

  def needed_noise(self, rounds: int, epsilon: float, delta: float):
    return b_min_sep_noise.BMinSepNoise(rounds, epsilon, delta, self._law)

  def accountant(self, strategy: strategies.Strategy) -> accountants.Accountant:
    entries = b_min_sep.nonnegative_columns(strategy, self.min_sep)
    mixture_of = functools.partial(
      b_min_sep.BMinSepMixture, b_min_sep.Columns(entries), law=self._law
    )
    return accountants.MonteCarlo(
      strategy, self.schema, mixture_of, self.samples
    )
