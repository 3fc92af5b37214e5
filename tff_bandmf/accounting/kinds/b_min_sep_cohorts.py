"""b-min-sep sampling: draws from clients without a recent round."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import ClassVar

import attrs
import numpy as np

from tff_bandmf import _checks, errors, strategies
from tff_bandmf import participation as participation_lib
from tff_bandmf.accounting.kinds import (
  b_min_sep,
  columns,
  sampled_cohorts,
  samplers,
)
from tff_bandmf.accounting.methods import accountants

# Default number of samples for a bound of delta.
_SAMPLES = 100_000


@attrs.frozen
class BMinSep(sampled_cohorts.Sampled):
  """Draws each client without a round in the last b - 1 with probability p.

  Every client is eligible in round 0, so that the first cohorts are the
  largest. The proof needs C >= 0 with at most b bands; see `b_min_sep`.

  Attributes:
    min_sep: b, least distance of two rounds of a client, integer >= 1.
    sampling_prob: p, probability that an eligible client takes part in a round,
      in (0, 1).
    population: the attribute of `Sampled`.
    adjacency: the attribute of `Sampled`.
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
        f'sampling_prob={value}: must be below 1; who takes part for sure is '
        'not sampled'
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
      words, self.known_population(), self.min_sep, self.sampling_prob
    )

  def _drawn(self, rounds: int) -> tuple[int, np.ndarray]:
    return self.known_population(), b_min_sep.participation(
      rounds, self.min_sep, self.sampling_prob
    )

  def accountant(self, strategy: strategies.Strategy) -> accountants.Accountant:
    # PRIVACY: if columns of a client's rounds share rows, the likelihood ratio
    # does not factor into rounds, and the bound is wrong. Such C are refused.
    # Guard: b_min_sep_test.test_more_bands_than_min_sep_are_refused.
    accountants.check_bands(strategy, 'min_sep', self.min_sep)
    rows = strategy.band_rows(0, strategy.rounds)
    accountants.check_nonnegative(np.min(rows))
    mixture_of = functools.partial(
      b_min_sep.BMinSepMixture,
      columns.Columns.of_rows(rows),
      min_sep=self.min_sep,
      sampling_prob=self.sampling_prob,
    )
    return accountants.Sampled(strategy, self.schema, mixture_of, _SAMPLES)
